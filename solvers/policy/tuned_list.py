"""`tuned-list`: samples of the learned list scheduler, then a walk from the best of them.

With a `learning_rate` the policy learns on the problem at hand: after each round of samples, those
below the round's median become likelier (policy gradient, advantages by rank), with credit only for
choices about ops on a longest chain of the schedule. That takes more samples, so ten times as
long, and gained less than its interval on families set apart, so it is off; what learned weights
are worth stands beside it in results/policy/ablation.md.

`learned-list`: a list scheduler whose priorities and choices of devices were learned on other
graphs.

Passes schedule from the sources and from the sinks in turn: what is read from its end is a schedule
as well. The first from each end takes the best scores; further ones draw ops and devices by them.
Nothing is learned on the problem: every pass is a list schedule of at most a few milliseconds on
some hundred ops.

References
----------
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement
  learning. Machine Learning 8, 1992.
- D. Wierstra, T. Schaul, T. Glasmachers, Y. Sun, J. Peters, J. Schmidhuber. Natural evolution
  strategies. JMLR 15, 2014. (Advantages: utilities of ranks.)
- H. Topcuoglu, S. Hariri, M.-Y. Wu. Performance-effective and low-complexity task scheduling for
  heterogeneous computing. IEEE TPDS 13(3), 2002. (HEFT, from which the weights began.)
- WeCAN: weighted cross-attention networks for scheduling on heterogeneous devices.
  arXiv 2603.23249. (One pass of scores, and a decoding that reaches every schedule.)
- T. Salimans et al. Evolution strategies as a scalable alternative to reinforcement learning. 2017.
  (Training.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.heuristic import Heuristic
from placeopt.solvers.policy.advantages import Adam, rank_utilities
from placeopt.solvers.policy.learned_placer import spent
from placeopt.solvers.policy.list_policy import LearnedScheduler, ListPolicy, trained
from placeopt.solvers.search.annealing import anneal
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.heuristics.insertion_kernels import ListSchedule
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class TunedList(SearchSolver):
    """A list scheduler that learns on the problem, then a walk."""

    name: ClassVar[str] = "tuned-list"
    endless: ClassVar[bool] = True
    kernels: ClassVar[tuple[str, ...]] = ("ranks", "lists", "learned-lists", "walks")

    policy: str = option(
        "", meaning="policy file; empty for the package's, heft for the one before any training"
    )
    samples: float = option(
        0.016,
        low=0,
        high=1,
        meaning="share of the budget for samples of the policy; the default is fitted in "
        "results/policy/list_scheduler.md",
    )
    round: int = option(32, low=2, meaning="samples between two steps of the policy gradient")
    learning_rate: float = option(
        0.0, low=0, meaning="Adam's step for the weights; 0: the policy stays as it is"
    )
    credit: str = option(
        "critical",
        choices=("all", "critical"),
        meaning="choices that earn an advantage: all, or those about critical ops",
    )

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Sample and learn for a share of the budget, then walk."""
        evaluator = BudgetedEvaluator(tracker)
        tuner = Tuner(self, Context(problem), evaluator)
        tuner.step(1)
        while not tracker.stop() and spent(tracker) < self.samples:
            tuner.step(int(min(self.round, tracker.evaluations_left)))
        if tracker.solution is not None and not tracker.stop():
            anneal(evaluator, [tracker.solution], tuner.rng)
        evaluator.conclude()


class Tuner:
    """A list policy that learns on one problem.

    Attributes
    ----------
    scheduler : the policy as it is now.
    """

    def __init__(self, config: TunedList, context: Context, evaluator: BudgetedEvaluator) -> None:
        self.config, self.context, self.evaluator = config, context, evaluator
        self.scheduler = first_policy(config.policy).scheduler(context)
        self.adam = Adam(len(self.scheduler.policy.vector), config.learning_rate)
        self.rng = evaluator.tracker.rng()
        self.passes = self.scheduler.passes(self.rng)

    def step(self, count: int) -> None:
        """Make passes, offer their schedules, and take a step towards the better ones."""
        ways, plans = zip(*islice(self.passes, count), strict=True)
        values = self.offer(plans)
        if self.config.learning_rate == 0 or count < 2:
            return
        weights = rank_utilities(values).tolist()
        gradient = self.scheduler.gradient(
            [
                (way, weight * self._credit(plan))
                for way, plan, weight in zip(ways, plans, weights, strict=True)
                if weight != 0 and way.random is not None
            ]
        )
        policy = self.scheduler.policy
        policy = policy.with_vector(policy.vector + self.adam.step(gradient))
        self.scheduler = LearnedScheduler(policy, self.context, self.scheduler.sights)
        self.passes = self.scheduler.passes(self.rng)

    def offer(self, plans: Sequence[ListSchedule]) -> Ints:
        """Return the values of schedules, counted, the best one offered."""
        placements = [self.context.fitted(plan) for plan in plans]
        values = np.full(len(plans), 2**62, np.int64)
        for i, placement in enumerate(placements):
            if placement is not None:
                values[i] = self.evaluator.value_of(placement)
        return values

    def _credit(self, plan: ListSchedule) -> Floats:
        """Return the weight of the choices about each op."""
        if self.config.credit == "all":
            return np.ones(len(plan.device))
        return critical(self.context, plan).astype(np.float64)


def critical(context: Context, plan: ListSchedule) -> Flags:
    """Return whether each op is on a chain of waits that ends last, shape (num_ops,)."""
    problem, finish, start = context.problem, plan.finish, plan.start
    marked = finish >= finish.max()
    order = np.lexsort((context.position, start))
    tensor, reader = problem.edge_tensor, problem.consumer
    producer = problem.producer[tensor]
    source, target = plan.device[producer], plan.device[reader]
    delay = problem.transfer[tensor, problem.link_class[source, target]]
    tight = finish[producer] + np.where(source == target, 0, delay) >= start[reader]
    before: dict[int, list[int]] = {}
    for u, v in zip(producer[tight].tolist(), reader[tight].tolist(), strict=True):
        before.setdefault(v, []).append(u)
    last = np.full(problem.num_devices, -1)
    for v in order.tolist():  # what ran before on the same device, where that was waited for
        u = int(last[plan.device[v]])
        if u >= 0 and finish[u] >= start[v]:
            before.setdefault(v, []).append(u)
        last[plan.device[v]] = v
    for v in order[::-1].tolist():
        if marked[v]:
            marked[before.get(v, [])] = True
    return np.asarray(marked)


@dataclass(frozen=True)
class LearnedList(Heuristic):
    """A list scheduler with learned scores, from both ends: the best ones first, then samples."""

    name: ClassVar[str] = "learned-list"
    kernels: ClassVar[tuple[str, ...]] = ("ranks", "lists", "learned-lists")

    passes: int = option(
        64,
        low=1,
        meaning="schedules, from the sources and the sinks in turn: the first two take the best "
        "scores, the others are drawn",
    )
    policy: str = option(
        "", meaning="policy file; empty for the package's, heft for the one before any training"
    )

    def propose(self, context: Context, tracker: Tracker[Placement]) -> Iterator[Placement | None]:
        """Yield the schedule of the best scores, then drawn ones."""
        scheduler, rng = first_policy(self.policy).scheduler(context), tracker.rng()
        for _, plan in islice(scheduler.passes(rng), self.passes):
            yield context.fitted(plan)


def first_policy(name: str) -> ListPolicy:
    """Return the policy that an option names."""
    if name == "heft":
        return ListPolicy.heft()
    return ListPolicy.load(name) if name else trained()
