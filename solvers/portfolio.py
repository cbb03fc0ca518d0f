"""The portfolio: every heuristic, a learned one too, then searches beside a proof.

The default solver of makespan problems. Heuristics and a quick bound come first, in turn. Within a
limit of time the rest are tactics of one scheduler (`placeopt.solving.scheduler`): the searches on
one side, and what proves (`placeopt.solvers.exact.makespan_tactics`) on the other. Where
evaluations are the limit, or the caller measures, cross-entropy and annealing follow one another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from placeopt.model.problem import PlacementProblem
from placeopt.model.threads import start_thread
from placeopt.solvers.search.batch_search import MeasuringSearch
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solvers.stages import SWEEPS, Stages, hot_kernels, in_turn, is_vast
from placeopt.solving.bound import LEAST_SECONDS
from placeopt.solving.options import named, option
from placeopt.solving.plugin import PluginTracker
from placeopt.solving.run import run_part
from placeopt.solving.tracker import PlacementTracker


def _import_tactics() -> None:
    """Import the tactics, on another thread: CP-SAT takes a part of a second."""
    import placeopt.solvers.portfolio_tactics  # noqa: F401


@dataclass(frozen=True)
class Portfolio(MeasuringSearch):
    """Heuristics, cross-entropy, annealing, passes of a learned list and large neighbourhood search
    on one incumbent.

    Attributes
    ----------
    sampling : share of the evaluations, after the heuristics, for cross-entropy; annealing has the
    others.
    """

    proves = True
    kernels = (*MeasuringSearch.kernels, "learned-lists", "bounds")
    sampling: ClassVar[float] = 0.1

    lns: bool = option(True, "use large neighbourhood search (only with a limit of time)")
    walks: int = option(2, "annealing walks at the same time", low=1)
    prove: bool = option(
        True, "prove beside the search, on a core of its own (only with a limit of time)"
    )

    tactics: str = option(
        "all", "tactics to use within a limit of time: all, or some names joined by commas"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tactics != "all":
            self._named_tactics()

    def kernels_at_once(self, problem: PlacementProblem) -> tuple[str, ...]:
        """Those of annealing; the other stages are left out or interpreted until theirs are
        compiled.
        """
        return "evaluator", *hot_kernels(problem, "annealing"), "bounds"

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Run the stages until the budget is spent or the bound is met."""
        if PluginTracker.whole_of(tracker) is not tracker and self.measure is None:
            # of a class derived from this one: what ours proves is run as ours
            own = Portfolio(**{part.name: getattr(self, part.name) for part in fields(Portfolio)})
            run_part(tracker, own, initial=tracker.solution)
            return
        stages = Stages(BudgetedEvaluator(tracker, measure=self.measure, threads=self.threads))
        timed = tracker.budget.evaluations is None and tracker.seconds_left >= LEAST_SECONDS
        by_tactics = timed and self.measure is None and stages.registered("lns")
        loading = start_thread(_import_tactics) if by_tactics else None
        self.begin(stages, SWEEPS if by_tactics else ())
        if loading is not None:
            self._use_tactics(stages, loading)
        else:
            options = {"start": "random", "measure": self.measure, "threads": self.threads}
            stages.search("cross-entropy", self.sampling, refine=0.0, **options)
            stages.search("annealing", 1.0, walks=self.walks, **options)
        stages.evaluator.conclude()

    def _use_tactics(self, stages: Stages, loading: threading.Thread) -> None:
        """Improve and prove by tactics, once their module is loaded."""
        tracker = stages.tracker
        loading.join(min(tracker.seconds_left, threading.TIMEOUT_MAX))
        if not loading.is_alive() and not tracker.stop():
            from placeopt.solvers.portfolio_tactics import chosen, improve

            names = self._named_tactics()
            improve(stages, chosen(names, lns=self.lns, prove=self.prove), self.walks)

    def _named_tactics(self) -> tuple[str, ...]:
        from placeopt.solvers.portfolio_tactics import NAMES

        return named(self.tactics, NAMES, "portfolio option tactics")

    def begin(self, stages: Stages, later: Sequence[str]) -> None:
        """Run the heuristics in turn but those that come later, with the quick bound between
        them.
        """
        tracker, problem = stages.tracker, stages.evaluator.problem
        if self.measure is not None and tracker.solution is not None:
            stages.evaluator.value_of(tracker.solution)
        # Heuristics that run before the bound, fewer where problems are large: even the shortest
        # budget ends with a placement.
        before_bound = 4
        if is_vast(problem):
            stages.slices()
            before_bound = 2
        for index, name in enumerate(in_turn(problem)):
            if index == before_bound:
                stages.bound()
            if name not in later:
                stages.heuristic(name)
