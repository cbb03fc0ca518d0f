"""The tactics of the portfolio within a limit of time: its searches, and what proves makespans."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.threads import num_threads
from placeopt.solvers.exact.makespan_tactics import PROVERS, MakespanFacts, windows
from placeopt.solvers.heuristics.context import Context, packing_seconds
from placeopt.solvers.policy.tuned_list import passes
from placeopt.solvers.search.cp_sat_start import analyse, offer
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solvers.stages import SWEEPS, Stages
from placeopt.solving.compilation import ready
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run_part
from placeopt.solving.scheduler import Scheduler
from placeopt.solving.tactic import VALUE, Runs, State, Steps, Tactic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.makespan.bounds.relaxation import Relaxation
    from placeopt.model.arrays import Floats, Ints
    from placeopt.solving.tracker import PlacementTracker


def chosen(names: Sequence[str], *, lns: bool, prove: bool) -> list[Tactic]:
    """Return the tactics of these names that the options of the portfolio allow."""
    known = [*SEARCHES, *(PROVERS if prove else ())]
    return [t for t in known if t.name in names and (lns or t.name != "lns")]


def improve(stages: Stages, tactics: list[Tactic], walks: int) -> None:
    """Improve what the heuristics found, and prove beside it, until the budget is spent or the
    bound is met.

    Parameters
    ----------
    walks : of annealing at the same time, where it has as many cores.
    """
    threads = stages.evaluator.threads
    cores, facts = num_threads() if threads is None else threads, PortfolioFacts(stages, walks)
    _balance(facts, stages.tracker)
    Scheduler(tactics, facts, stages.tracker, threads=cores).run()


def _anneal(part: PlacementTracker, walks: int, threads: int) -> bool:
    """Anneal from the incumbent, of the whole or of a part of the graph."""
    solver = make_solver("annealing", start="random", walks=walks, threads=threads)
    run_part(part, solver, initial=part.solution)
    return False


class PortfolioFacts(MakespanFacts):
    """What the tactics of one solve share.

    Attributes
    ----------
    lns_seconds : per op and device that large neighbourhood search needs for its first step, about.
    """

    lns_seconds: ClassVar[float] = 5e-4
    searches = (
        Runs("annealing", VALUE, lambda _, part: _anneal(part, 1, 1), lambda _: ready(("walks",))),
    )

    def __init__(self, stages: Stages, walks: int) -> None:
        self.stages, self.walks = stages, walks
        problem, tracker = stages.evaluator.problem, stages.tracker
        settings: Any = make_solver("cp-sat", warm_start=False, windows=False)
        super().__init__(settings, analyse(problem, tracker), tracker)

    @property
    def window_seconds(self) -> float:
        """Seconds that large neighbourhood search needs for its first step, about."""
        problem = self.analysis.problem
        return self.lns_seconds * problem.num_ops * problem.num_devices


def _balance(facts: PortfolioFacts, tracker: PlacementTracker) -> None:
    """Offer what the linear program of the load bound makes of devices that differ: how it shares
    the ops out.
    """
    problem, relaxation = tracker.problem, facts.analysis.relaxation
    if len(relaxation.class_size) > 1 and facts.analysis.load.shares is not None:
        context = Context(problem, patience=packing_seconds(tracker))
        home = dealt(relaxation, facts.analysis.load.shares)
        placement = context.repaired(home[problem.units.unit])
        if placement is not None:
            offer(problem, tracker, placement)


def dealt(relaxation: Relaxation, shares: Floats, *, least: float = 1e-6) -> Ints:
    """Return a device of each item, of a class that has a share of it: the one on which it ends
    first, those of a single class before the others, longer ones before shorter ones.

    Parameters
    ----------
    least : of a share; smaller ones are the rounding of the linear program.
    """
    has = shares > least
    ticks = relaxation.items[0][:, relaxation.class_of].astype(np.float64)
    ticks[~has[:, relaxation.class_of]] = np.inf
    home, load = np.empty(len(shares), np.int64), np.zeros(ticks.shape[1])
    for item in np.lexsort((-ticks.min(axis=1), has.sum(axis=1))).tolist():
        home[item] = (load + ticks[item]).argmin()
        load[home[item]] += ticks[item, home[item]]
    return home


def _passes(state: State) -> Iterator[None]:
    """Go through the sweep of edge-zeroing and climb in the scores of the learned list scheduler,
    by turns; at first a tenth of the time without a pause, at most half a second, since that is
    what the searches go on from.
    """
    stages, tracker = state.facts.stages, state.tracker
    first = tracker.elapsed + min(0.5, 0.1 * tracker.seconds_left)
    parts: list[Iterator[None]] = []
    if solver := stages.able("edge-zeroing"):
        parts.append(solver.batches(state.problem, tracker))
    if stages.able("learned-list"):
        evaluator = BudgetedEvaluator(tracker, threads=state.threads)
        parts.append(passes(evaluator, Context(state.problem), "", state.rng))
    for _ in zip_longest(*parts):
        if tracker.stop() or tracker.elapsed > first:
            yield


SEARCHES: tuple[Tactic, ...] = (
    Steps("passes", VALUE, _passes, when=lambda facts: any(map(facts.stages.able, SWEEPS))),
    Runs(
        "annealing",
        VALUE,
        lambda state, part: _anneal(part, min(state.facts.walks, state.threads), state.threads),
        when=lambda facts: facts.stages.takes("annealing"),
        slow=True,
    ),
    Steps("lns", VALUE, windows, needs=lambda facts: facts.window_seconds),
)
"""Tactics that improve the incumbent; those before others begin first."""

NAMES = tuple(tactic.name for tactic in (*SEARCHES, *PROVERS))
"""Names of all of them."""
