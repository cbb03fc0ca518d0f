"""The portfolio: every heuristic, then cross-entropy and annealing, then large neighbourhood
search.

The default solver of makespan problems. Each stage starts from the incumbent of those before it and
may use what is left of the budget; a bound is computed first, and whoever meets it ends the search
with a proof. With a limit of time, a second core and a model that CP-SAT can hold, that proof is
pursued beside the searches (`dual_side`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.placement import Placement
from placeopt.model.threads import num_threads
from placeopt.solvers.dual_side import DualSide, worth_it
from placeopt.solvers.search.batch_search import MeasuringSearch
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solving.compilation import kernels_of, ready
from placeopt.solving.deadline import is_large
from placeopt.solving.options import option
from placeopt.solving.registry import make_solver, specs
from placeopt.solving.run import run_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

HEURISTICS = (
    "single-device",
    "heft",
    "etf",
    "critical-path",
    "edge-zeroing",
    "dsc",
    "peft",
    "cpop",
    "m-etf",
    "m-topo",
    "round-robin",
    "enumerative",
    "m-sct",
    "linear-dp",
)
"""Run in this order as far as they are registered for the objective and the budget lasts."""

PLACED = 4
"""The first heuristics (one on large problems) run before the bound: even the shortest budget ends
with a placement."""

LARGE, FIRST, SECOND = 1_000_000, "heft", "etf"
"""Size (ops times devices) above which these heuristics come before the others."""

SHARE_OF_FIRST = {"heft": 0.0, "etf": 1.5, "critical-path": 3.0}
"""On large problems, the least time of a heuristic as a multiple of the first one's (2 where not
named): one that would not come back in time is left out."""

SLOW = {
    "m-sct": 2000,
    "linear-dp": 2000,
    "edge-zeroing": 20_000,
    "dsc": 20_000,
    "enumerative": 20_000,
}
"""Number of ops above which a heuristic is left out: it may not come back in time."""

BOUND_SECONDS = 2.0
BOUND_SECONDS_PER_OP = 1e-4
FRONT_SECONDS, FRONT_LEAST, FRONT_SHARE = 10.0, 3.0, 0.2
"""Time for the bound by fronts before annealing: seconds at most, at least, and the share of the
time left."""

SAMPLING = 0.1
"""Share of the budget, after the heuristics, for cross-entropy."""

WALKING = 0.6
"""Share of the time left then for annealing, where large neighbourhood search follows."""

BESIDE, BESIDE_SMALL = (0.2, 0.5), (0.25, 0.3, 0.35)
"""The same beside a proof, each of what is left, and where that has two threads, without
cross-entropy before: after each part the proof has to have gained."""


LNS_SECONDS = 5e-4
"""Seconds per op and device that large neighbourhood search needs for its first step."""


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

    def kernels_at_once(self, problem: PlacementProblem) -> tuple[str, ...]:
        """Those of annealing; the other stages are left out or interpreted until theirs are
        compiled.
        """
        return "evaluator", *_hot_kernels(problem, "annealing"), "bounds"

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Run the stages until the budget is spent or the bound is met."""
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
        threads = num_threads() if self.threads is None else self.threads
        two_sided = (
            self.prove
            and evaluator.ordered
            and self.measure is None
            and tracker.budget.evaluations is None
        )
        if two_sided and not tracker.stop() and worth_it(problem, tracker.seconds_left, threads):
            with DualSide(tracker) as proof:
                proof.alone()
                self._improve(stages, threads, proof)
        else:
            self._improve(stages, threads)
        evaluator.conclude()

    def _improve(self, stages: Stages, threads: int, proof: DualSide | None = None) -> None:
        """Improve what the heuristics found until the budget is spent or the bound is met.

        A proof beside it has a core of its own as long as it gains.
        """
        evaluator, tracker = stages.evaluator, stages.tracker
        problem, timed = evaluator.problem, tracker.budget.seconds is not None
        use_lns = self.lns and evaluator.ordered and timed and "lns" in specs("placement")

        def search(name: str, share: float, **options: Any) -> None:
            beside = int(proof is not None and not proof.ended)
            options["num_workers" if name == "lns" else "threads"] = threads - beside
            if name != "lns":
                options |= {"start": "random", "measure": self.measure}
            if name == "annealing":
                options["walks"] = max(1, self.walks - beside)
            stages.search(name, share, **options)

        if proof is None or not proof.small:
            search("cross-entropy", SAMPLING, refine=0.0)
        if use_lns and proof is None:
            stages.front()
        walking = (WALKING,) if proof is None else BESIDE_SMALL if proof.small else BESIDE
        for part, share in enumerate(walking):
            search("annealing", share if use_lns else 1.0)
            if proof is not None:
                proof.end_if_stalled(large=part == 0)
        # Only where its first window, whose model grows with ops times devices, surely ends in
        # time.
        if use_lns and tracker.seconds_left > LNS_SECONDS * problem.num_ops * problem.num_devices:
            search("lns", 1.0)
        if use_lns:
            search("annealing", 1.0)  # where lns ended early


def _hot_kernels(problem: PlacementProblem, search: str) -> tuple[str, ...]:
    """Groups of kernels in which a search spends its time."""
    walks = search == "annealing" and problem.num_channels == 0 and problem.memory == "static"
    return {
        "annealing": ("walks",) if walks else ("populations",),
        "cross-entropy": ("populations",),
    }.get(search, ())


def in_turn(problem: PlacementProblem) -> tuple[str, ...]:
    """Heuristics in the order in which they run; on large problems the one that is worth its time
    comes first.
    """
    if not is_large(problem, LARGE):
        return HEURISTICS
    return FIRST, SECOND, *(name for name in HEURISTICS if name not in (FIRST, SECOND))


class Stages:
    """Runs solvers one after the other on one budget and one incumbent."""

    def __init__(self, evaluator: BudgetedEvaluator) -> None:
        self.evaluator, self.tracker = evaluator, evaluator.tracker
        self._left_out: list[str] = []  # in a first run
        self.first_seconds = 0.0  # that the first heuristic took, where the problem is large

    def bound(self) -> None:
        """Prove a lower bound, in a tenth of the time; only the quickest ones where that is not
        enough.
        """
        seconds = min(BOUND_SECONDS, 0.1 * self.tracker.seconds_left)
        enough = seconds >= BOUND_SECONDS_PER_OP * self.evaluator.problem.num_ops
        if (
            enough or self.tracker.lower_bound == 0
        ):  # the quickest ones are often proved before the search
            self._prove(seconds if enough else 0.0)

    def slices(self) -> None:
        """Offer equal slices of a topological order: an answer at once, where every heuristic takes
        its time.
        """
        problem = self.evaluator.problem
        device = np.empty(problem.num_ops, dtype=np.int64)
        device[problem.topological_order] = (
            np.arange(problem.num_ops) * problem.num_devices // problem.num_ops
        )
        self.evaluator.value_of(Placement(device))

    def front(self) -> None:
        """Raise the bound by what fits into the ends of a schedule, where that is still open."""
        seconds = min(FRONT_SECONDS, FRONT_SHARE * self.tracker.seconds_left)
        if seconds >= FRONT_LEAST and not self.tracker.stop():
            self._prove(
                2 * seconds, ("communication", "head-tail", "segments", "front")
            )  # half of it is for fronts

    def _prove(self, seconds: float, methods: tuple[str, ...] | None = None) -> None:
        if self.evaluator.measure is not None:
            return  # bounds hold for the model, not for the caller's clock
        report = self.evaluator.objective.bounds(
            self.evaluator.problem, seconds, methods, self.tracker.value
        )
        self.tracker.raise_bound(report.value, report.method)

    def heuristic(self, name: str) -> None:
        """Run a heuristic on half of what is left; the first one that finds an answer may take it
        all.
        """
        tracker, measured = self.tracker, self.evaluator.measure is not None
        if not self._takes(name) or not self._compiled(
            name, kernels_of(self.evaluator.objective, [make_solver(name)])
        ):
            return
        large = is_large(self.evaluator.problem, LARGE)
        needed = tracker.solution is None  # an answer, even a late one
        expected = self.first_seconds * SHARE_OF_FIRST.get(name, 2.0)
        if not needed and (
            tracker.stop() or self._nothing_left() or tracker.seconds_left < expected
        ):
            return
        before = tracker.elapsed
        result = run_part(
            tracker,
            make_solver(name),
            seconds=None if needed or (large and name == FIRST) else self._seconds(0.5),
            target=self.evaluator.target,
            adopt=not measured,
        )
        if name == FIRST and large:
            self.first_seconds = tracker.elapsed - before
        if measured and result is not None and result.solution is not None:
            self.evaluator.value_of(Placement(result.solution.device))

    def search(self, name: str, share: float, **options: Any) -> None:
        """Run a search from the incumbent on a share of what is left."""
        tracker = self.tracker
        if not self._takes(name) or tracker.stop() or self._nothing_left():
            return
        if not self._compiled(name, _hot_kernels(self.evaluator.problem, name)):
            return
        evaluations = None
        if tracker.budget.evaluations is not None:
            evaluations = max(1, int(tracker.evaluations_left * share))
        run_part(
            tracker,
            make_solver(name, **options),
            seconds=self._seconds(share),
            evaluations=evaluations,
            initial=tracker.solution,
            target=self.evaluator.target,
        )

    def _takes(self, name: str) -> bool:
        spec = specs("placement").get(name)
        return spec is not None and self.evaluator.objective.name in spec.accepted

    def _compiled(self, name: str, kernels: Sequence[str]) -> bool:
        """Whether the kernels of a stage are compiled; notes that it is left out where they are
        not.
        """
        if ready(kernels) or (name in HEURISTICS and self.tracker.solution is None):
            return True
        self._left_out.append(name)
        searches = [part for part in self._left_out if part not in HEURISTICS]
        parts = [f"{len(self._left_out) - len(searches)} heuristics", *searches]
        self.tracker.message = (
            f"a first run, without {' and '.join(parts)}: their kernels were not compiled yet"
        )
        return False

    def _seconds(self, share: float) -> float | None:
        return None if self.tracker.budget.seconds is None else self.tracker.seconds_left * share

    def _nothing_left(self) -> bool:
        """Whether what remains of a nearly spent budget would not carry another solver's start."""
        return self.tracker.seconds_left < 1e-3
