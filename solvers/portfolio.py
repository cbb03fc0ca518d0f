"""The portfolio: every heuristic, then annealing and large neighbourhood search beside a proof.

The default solver of makespan problems. Heuristics and a quick bound come first, in turn. Within a
limit of time the rest are tactics of one scheduler (`placeopt.solving.scheduler`): the searches on
one side, and what proves (`placeopt.solvers.exact.makespan_tactics`) on the other. Where
evaluations are the limit, or the caller measures, cross-entropy and annealing follow one another.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from placeopt.makespan.bounds.analysis import Analysis
from placeopt.model.threads import num_threads
from placeopt.solvers.exact.makespan_cp_sat import search_makespan
from placeopt.solvers.exact.makespan_tactics import PROVERS, MakespanFacts, windows
from placeopt.solvers.search.batch_search import MeasuringSearch
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solvers.stages import LARGE, PLACED, SAMPLING, SLOW, Stages, hot_kernels, in_turn
from placeopt.solving.bound import LEAST_SECONDS
from placeopt.solving.deadline import is_large
from placeopt.solving.options import named, option
from placeopt.solving.plugin import PluginTracker
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run_part
from placeopt.solving.scheduler import Scheduler, load
from placeopt.solving.tactic import VALUE, Runs, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tactic import State, Tactic
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class Portfolio(MeasuringSearch):
    """Heuristics, cross-entropy, annealing and large neighbourhood search on one incumbent."""

    name: ClassVar[str] = "portfolio"
    proves: ClassVar[bool] = True
    kernels: ClassVar[tuple[str, ...]] = (*MeasuringSearch.kernels, "bounds")

    lns: bool = option(True, meaning="use large neighbourhood search (only with a limit of time)")
    walks: int = option(2, low=1, meaning="annealing walks at the same time")
    prove: bool = option(
        True, meaning="prove beside the search, on a core of its own (only with a limit of time)"
    )

    tactics: str = option(
        "all",
        meaning="tactics to use within a limit of time: all, or some names joined by commas",
    )

    def kernels_at_once(self, problem: PlacementProblem) -> tuple[str, ...]:
        """Those of annealing; the other stages are left out or interpreted until theirs are
        compiled.
        """
        return "evaluator", *hot_kernels(problem, "annealing"), "bounds"

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Run the stages until the budget is spent or the bound is met."""
        if PluginTracker.whole_of(tracker) is not tracker and self.measure is None:
            # of a class derived from this one: what ours proves is run as ours
            own = Portfolio(**{part.name: getattr(self, part.name) for part in fields(Portfolio)})
            run_part(tracker, own, initial=tracker.solution)
            return
        timed = tracker.budget.evaluations is None and tracker.seconds_left >= LEAST_SECONDS
        loading = load("placeopt.solvers.portfolio") if timed else None
        stages = self.begin(tracker)
        if loading is not None and self.measure is None and stages.registered("lns"):
            loading.join(min(tracker.seconds_left, threading.TIMEOUT_MAX))
            if not loading.is_alive() and not tracker.stop():
                names = named(self.tactics, NAMES, "portfolio option tactics")
                tactics = chosen(names, lns=self.lns, prove=self.prove)
                improve(stages, tactics, self.walks)
        else:
            options = {"start": "random", "measure": self.measure, "threads": self.threads}
            stages.search("cross-entropy", SAMPLING, refine=0.0, **options)
            stages.search("annealing", 1.0, walks=self.walks, **options)
        stages.evaluator.conclude()

    def begin(self, tracker: Tracker[Placement]) -> Stages:
        """Run the heuristics in turn, with the quick bound between them; return the stages to go on
        with.
        """
        problem = tracker.problem
        evaluator = BudgetedEvaluator(tracker, measure=self.measure, threads=self.threads)
        stages = Stages(evaluator)
        if self.measure is not None and tracker.solution is not None:
            evaluator.value_of(tracker.solution)
        if is_large(problem, LARGE):
            stages.slices()
        for index, name in enumerate(in_turn(problem)):
            if index == (2 if is_large(problem, LARGE) else PLACED):
                stages.bound()
            if problem.num_ops <= SLOW.get(name, problem.num_ops):
                stages.heuristic(name)
        return stages


LNS_SECONDS = 5e-4
"""Seconds per op and device that large neighbourhood search needs for its first step, about."""


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
    cores = num_threads() if threads is None else threads
    Scheduler(tactics, PortfolioFacts(stages, walks), stages.tracker, threads=cores).run()


class PortfolioFacts(MakespanFacts):
    """What the tactics of one solve share."""

    def __init__(self, stages: Stages, walks: int) -> None:
        self.stages, self.walks = stages, walks
        problem, tracker = stages.evaluator.problem, stages.tracker
        settings: Any = make_solver("cp-sat", warm_start=False, windows=False)
        analysis = Analysis(problem, seconds=min(10.0, tracker.seconds_left / 4))
        super().__init__(settings, analysis, tracker, search_makespan)

    @property
    def window_seconds(self) -> float:
        """Seconds that large neighbourhood search needs for its first step, about."""
        problem = self.analysis.problem
        return LNS_SECONDS * problem.num_ops * problem.num_devices

    def takes(self, name: str) -> bool:
        """Whether a search is registered and its kernels are compiled."""
        return self.stages.takes(name, hot_kernels(self.stages.evaluator.problem, name))


def _anneal(state: State, part: Tracker[Placement]) -> bool:
    """Anneal from the incumbent."""
    threads = state.threads
    walks = min(state.facts.walks, threads)
    solver = make_solver("annealing", start="random", walks=walks, threads=threads)
    run_part(part, solver, initial=part.solution)
    return False


SEARCHES: tuple[Tactic, ...] = (
    Runs("annealing", VALUE, _anneal, when=lambda facts: facts.takes("annealing"), slow=True),
    Steps("lns", VALUE, windows, needs=lambda facts: facts.window_seconds),
)
"""Tactics that improve the incumbent; those before others begin first."""

NAMES = tuple(tactic.name for tactic in (*SEARCHES, *PROVERS))
"""Names of all of them."""
