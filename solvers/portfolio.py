"""The portfolio: every heuristic, then cross-entropy and annealing, then large neighbourhood search.

The default solver of makespan problems. Each stage starts from the incumbent of those before it and may use what
is left of the budget; a bound is computed first, and whoever meets it ends the search with a proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from placeopt.makespan.evaluate import num_threads
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.solvers.search.objective import Measure, Objective
from placeopt.solving.registry import make_solver, specs
from placeopt.solving.solver import OnProgress, Progress

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result

HEURISTICS = (
    "single-device", "heft", "etf", "critical-path", "edge-zeroing", "dsc", "peft", "cpop", "m-etf", "m-topo",
    "round-robin", "enumerative", "m-sct", "linear-dp",
)  # fmt: skip
"""Run in this order as far as they are registered for the objective and the budget lasts."""

PLACED = 4
"""The first heuristics run before the bound is computed: even the shortest budget ends with a placement."""

SLOW = {"m-sct": 2000, "linear-dp": 2000, "edge-zeroing": 20_000, "dsc": 20_000, "enumerative": 20_000}
"""Number of ops above which a heuristic is left out: it may not come back in time."""

BOUND_SECONDS = 2.0
BOUND_SECONDS_PER_OP = 1e-4
FRONT_SECONDS, FRONT_LEAST, FRONT_SHARE = 10.0, 3.0, 0.2
"""Time for the bound by fronts before annealing: seconds at most, at least, and the share of the time left."""

SAMPLING = 0.1
"""Share of the budget, after the heuristics, for cross-entropy."""

WALKING = 0.6
"""Share of the time left then for annealing, where large neighbourhood search follows."""


LNS_SECONDS = 5e-4
"""Seconds per op and device that large neighbourhood search needs for its first step."""


@dataclass(frozen=True)
class Portfolio:
    """Heuristics, cross-entropy, annealing and large neighbourhood search on one incumbent.

    Parameters
    ----------
    lns : use large neighbourhood search (only with a limit of time: its steps are no evaluations).
    walks : annealing walks at the same time.
    objective : callable that measures a placement (devices, shape (num_ops,)) in seconds, instead of the makespan.
    threads : None for one per core.
    """

    lns: bool = True
    walks: int = 2
    objective: Measure | None = None
    threads: int | None = None

    name: ClassVar[str] = "portfolio"

    def __post_init__(self) -> None:
        if self.walks < 1:
            raise InputError(f"portfolio: walks must be at least 1, received {self.walks}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Run the stages until the budget is spent or the bound is met; never worse than `initial`."""
        objective = Objective(
            self.name, problem, budget, seed=seed, measure=self.objective, threads=self.threads,
            on_progress=on_progress,
        )  # fmt: skip
        reason = objective.impossible()
        if reason is not None:
            return objective.tracker.result(status="infeasible", message=reason)
        stages = Stages(objective, seed, on_progress)
        with objective.tracker:
            if initial is not None and objective.space.feasible(initial.device[None, :].astype("int32"))[0]:
                objective.value_of(initial)
            for index, name in enumerate(HEURISTICS):
                if index == PLACED and self.objective is None:
                    stages.bound()
                if problem.num_ops <= SLOW.get(name, problem.num_ops):
                    stages.run(name, 0.5)
            shared = {"start": "random", "objective": self.objective, "threads": self.threads}
            stages.run("cross-entropy", SAMPLING, refine=0.0, **shared)
            use_lns = self.lns and objective.ordered and budget.seconds is not None and "lns" in specs("placement")
            if use_lns and self.objective is None:
                stages.front()
            stages.run("annealing", WALKING if use_lns else 1.0, walks=self.walks, **shared)
            # Only where its first window, whose model grows with ops times devices, surely ends in time.
            size = problem.num_ops * problem.num_devices
            if use_lns and objective.tracker.seconds_left > LNS_SECONDS * size:
                threads = num_threads() if self.threads is None else self.threads
                stages.run("lns", 1.0, num_workers=threads)
            if use_lns:
                stages.run("annealing", 1.0, walks=self.walks, **shared)  # where lns ended early
            objective.tracker.stop()
        return objective.finish()


class Stages:
    """Runs solvers one after the other on one budget and one incumbent."""

    def __init__(self, objective: Objective, seed: int, on_progress: OnProgress | None) -> None:
        self.objective, self.seed, self.on_progress = objective, seed, on_progress
        self.tracker = objective.tracker

    def bound(self) -> None:
        """Prove a lower bound, in a tenth of the time, unless that is not enough for the quickest one."""
        from placeopt.solving.bound import bound

        seconds = min(BOUND_SECONDS, 0.1 * self.tracker.seconds_left)
        if seconds < BOUND_SECONDS_PER_OP * self.objective.problem.num_ops:
            return
        report = bound(self.objective.problem, seconds=seconds, upper=self.tracker.value)
        if report.value > 0:
            self.tracker.raise_bound(report.value, report.method)

    def front(self) -> None:
        """Raise the bound by what fits into the ends of a schedule, where that is still open."""
        from placeopt.solving.bound import bound

        seconds = min(FRONT_SECONDS, FRONT_SHARE * self.tracker.seconds_left)
        if seconds < FRONT_LEAST or self.tracker.stop():
            return
        methods = ("communication", "head-tail", "front")
        # Half of what `bound` gets is for fronts.
        report = bound(self.objective.problem, seconds=2 * seconds, methods=methods, upper=self.tracker.value)
        self.tracker.raise_bound(report.value, report.method)

    def run(self, name: str, share: float, **options: Any) -> None:
        """Run a solver on a share of what is left, from the incumbent, unless it is not there or refuses."""
        tracker, problem, measure = self.tracker, self.objective.problem, self.objective.measure
        spec = specs("placement").get(name)
        if spec is None or problem.objective not in spec.objectives:
            return
        heuristic = name in HEURISTICS
        needed = heuristic and tracker.solution is None  # an answer, even a late one
        if not needed and tracker.stop():
            return
        left = tracker.seconds_left * share
        # What remains of a nearly spent budget would not carry another solver's start.
        if tracker.budget.seconds is not None and left < 1e-3 and not needed:
            return
        evaluations = None
        if tracker.budget.evaluations is not None:
            evaluations = max(1, int(tracker.evaluations_left * (1.0 if heuristic else share)))
        target = tracker.budget.target
        if tracker.lower_bound > 0:
            target = max(target or 0, tracker.lower_bound)
        part = Budget(None if tracker.budget.seconds is None else left, evaluations, target)
        if needed or (heuristic and not spec.search and tracker.budget.seconds is None and evaluations is None):
            part = Budget(None, evaluations)
        try:
            result = make_solver(name, **options).solve(
                problem,
                part,
                seed=self.seed,
                initial=None if heuristic else tracker.solution,
                on_progress=self._reporter(tracker.evaluations),
            )
        except InputError:
            return  # a stage that refuses this problem is left out
        if result.solution is not None and result.objective is not None:
            if measure is not None and heuristic:
                tracker.count(0)
                self.objective.value_of(Placement(result.solution.device))
            else:
                tracker.count(min(result.evaluations, tracker.evaluations_left) if evaluations is not None
                              else result.evaluations)  # fmt: skip
                tracker.offer(result.objective, result.solution)
        if measure is None and result.lower_bound > tracker.lower_bound:
            tracker.raise_bound(result.lower_bound, result.bound_method)
        if result.stop_reason == "interrupted":  # the stage kept Ctrl-C to itself
            tracker.stop_reason, tracker.stopped = "interrupted", True

    def _reporter(self, evaluations: int) -> OnProgress | None:
        """Return a callback that adds what the stages before have done."""
        if self.on_progress is None:
            return None
        tell, tracker = self.on_progress, self.tracker

        def report(progress: Progress) -> None:
            known = [x for x in (progress.incumbent, tracker.value) if x is not None]
            tell(
                Progress(
                    tracker.elapsed,
                    evaluations + progress.evaluations,
                    min(known) if known else None,
                    max(progress.lower_bound, tracker.lower_bound),
                    progress.note,
                )
            )

        return report
