"""`tuned-list`: a climb in the scores of the learned list scheduler, then a walk.

`learned-list`: a list scheduler whose priorities and choices of devices were learned on other
graphs.

Passes schedule from the sources or from the sinks: what is read from its end is a schedule as well.
The first from each end takes the best scores; further ones add random numbers to them and keep
those that gain. `tuned-list` makes the same first passes with the weights before any training, and
goes on from the shortest. The weights stay as they are: every pass is a list schedule of at most a
few milliseconds on some hundred ops. (A policy gradient in them gained less than its interval on
families set apart, in ten times the time.)

References
----------
- J. C. Bean. Genetic algorithms and random keys for sequencing and optimization. ORSA Journal on
  Computing 6(2), 1994. (Numbers that a list scheduler decodes.)
- H. Topcuoglu, S. Hariri, M.-Y. Wu. Performance-effective and low-complexity task scheduling for
  heterogeneous computing. IEEE TPDS 13(3), 2002. (HEFT, from which the weights began.)
- WeCAN: weighted cross-attention networks for scheduling on heterogeneous devices.
  arXiv 2603.23249. (One pass of scores, and a decoding that reaches every schedule.)
- T. Salimans et al. Evolution strategies as a scalable alternative to reinforcement learning. 2017.
  (Training.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from placeopt.model.graph import depths
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.heuristic import Heuristic, Proposals
from placeopt.solvers.policy.learned_placer import spent
from placeopt.solvers.policy.list_kernels import FAR
from placeopt.solvers.policy.list_policy import (
    LearnedScheduler,
    ListPolicy,
    climb,
    sights_of,
    trained,
)
from placeopt.solvers.search.annealing import anneal
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class TunedList(SearchSolver):
    """A climb in the scores of a learned list scheduler, then a walk."""

    endless = True
    kernels = ("ranks", "lists", "learned-lists", "walks", "populations")

    policy: str = option(
        "", "policy file; empty for the package's, heft for the one before any training"
    )
    samples: float = option(
        0.016,
        "share of the budget for passes of the policy; the default is fitted in "
        "results/policy/list_scheduler.md",
        low=0,
        high=1,
    )

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Make passes for a share of the budget, then walk from the best."""
        evaluator, rng = BudgetedEvaluator(tracker), tracker.rng()
        for _ in passes(evaluator, Context(problem), self.policy, rng):
            if tracker.stop() or spent(tracker) >= self.samples:
                break
        if tracker.solution is not None and not tracker.stop():
            anneal(evaluator, [tracker.solution], rng)
        evaluator.conclude()


@dataclass(frozen=True)
class LearnedList(Heuristic):
    """A list scheduler with learned scores, from both ends: the best ones first, then a climb."""

    kernels = ("ranks", "lists", "learned-lists")

    passes: int = option(
        64,
        "schedules: the first two, from the sources and from the sinks, take the best "
        "scores, the others add what gained to them",
        low=1,
    )
    policy: str = option(
        "", "policy file; empty for the package's, heft for the one before any training"
    )

    def within(
        self,
        problem: PlacementProblem,
        seconds: float,
        *,
        many: int = 2000,
        look_seconds: float = 1e-6,
    ) -> LearnedList | None:
        """Return it with one pass from each end on large graphs, None where a pass looks at too
        many ready ops: at each step as many are ready as a level of the graph has ops, about.

        Parameters
        ----------
        many : ops of a large graph; without edges, those of the largest whose ready ops are few.
        look_seconds : that a look at a ready op takes, about.
        """
        n = problem.num_ops
        levels = depths(n, problem.edge_source, problem.consumer, problem.op_names)
        if n**2 // (int(levels.max()) + 1) > min(many**2, seconds / look_seconds):
            return None
        return replace(self, passes=2) if n > many else self

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Yield the schedules of the best scores, then those of a climb."""
        schedulers = [first_policy(self.policy).scheduler(context)]
        for plan in islice(climb(schedulers, tracker.rng()), self.passes):
            yield context.fitted(plan)


def passes(
    evaluator: BudgetedEvaluator, context: Context, name: str, rng: np.random.Generator
) -> Iterator[None]:
    """Make passes of the policy that an option names, without end, and value those that are
    shorter than all before.

    They go on from its first passes or from those of the weights before any training, whichever are
    shorter: on graphs unlike those that it learned on the policy may have nothing to tell.
    """
    shortest, sights = FAR, sights_of(context)
    before = [] if name == "heft" else [ListPolicy.heft()]
    policies = [first_policy(name), *before]
    for plan in climb([LearnedScheduler(one, context, sights) for one in policies], rng):
        length = int(plan.finish.max())
        gains = plan.overflow or length < shortest
        placement = context.fitted(plan) if gains else None
        if placement is None:
            evaluator.tracker.count(1)
        else:
            evaluator.value_of(placement)
        if not plan.overflow:
            shortest = min(shortest, length)
        yield


def first_policy(name: str) -> ListPolicy:
    """Return the policy that an option names."""
    if name == "heft":
        return ListPolicy.heft()
    return ListPolicy.load(name) if name else trained()
