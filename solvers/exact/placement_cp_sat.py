"""What CP-SAT models of the period and the latency share: the run, decoding of solutions, bounds,
hints.

A model of ticks on a grid coarser than one tick is a relaxation (all times are rounded down): its
bound and its infeasibility hold for the problem, and its solutions are evaluated again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.errors import SolverError
from placeopt.model.threads import num_threads
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import named, option
from placeopt.solving.scheduler import Scheduler
from placeopt.solving.tactic import VALUE, State, Tactic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ortools.sat.python import cp_model

    from placeopt.model.placement import Placement
    from placeopt.solving.tracker import PlacementTracker, Tracker

MAX_GRID = 2**40
"""Sums of ticks above this are solved on a coarser grid."""


@dataclass(frozen=True)
class CpSatSettings(SearchSolver):
    """The options of the solver `cp-sat`, with which models are run.

    Attributes
    ----------
    work_a_conflict : deterministic CP-SAT time (about seconds) that counts as an evaluation, like a
    conflict: some models have no conflicts for long.
    """

    num_workers: int = option(2, "threads of CP-SAT", low=1)
    log: bool = option(False, "print CP-SAT's own log")
    warm_start: bool = option(
        True, "start from the best fast heuristic, not only from the initial solution"
    )
    windows: bool = option(
        True, "re-optimise windows of the incumbent (makespan); without, all time goes to the proof"
    )

    tactics: str = option(
        "all", "tactics to use: all, or some names of the objective's joined by commas"
    )

    work_a_conflict: ClassVar[float] = 0.05


def configured(
    settings: CpSatSettings, tracker: Tracker[Any], effort: float = 0.0, **parameters: Any
) -> Any:
    """Return a CP-SAT solver with limits, workers and seed from what is left of the tracker's
    budget; where evaluations are, with one worker: what several tell each other depends on time.

    Parameters
    ----------
    effort : CP-SAT's deterministic time where evaluations are the budget; by default what conflicts
    are worth.
    """
    workers = settings.num_workers
    if tracker.budget.evaluations is not None:
        workers, conflicts = 1, max(1, tracker.evaluations_left)
        parameters |= {
            "max_number_of_conflicts": conflicts,
            "effort": effort or settings.work_a_conflict * conflicts,
        }
    return cp_solver(
        workers=workers,
        seconds=tracker.seconds_left,
        seed=tracker.seed,
        log_search_progress=settings.log,
        symmetry_level=2,
        **parameters,
    )


def run_watched(
    solver: Any,
    model: Any,
    tracker: Tracker[Any],
    found: Callable[[Any], object],
    bound: Callable[[float], object],
) -> Any:
    """Run CP-SAT on a model until proof, or until the tracker or those with whom it exchanges end
    it; return the status.

    Parameters
    ----------
    found : told every solution; True ends the run. bound : told every bound on the objective.
    """
    from ortools.sat.python import cp_model

    class Watch(cp_model.CpSolverSolutionCallback):
        """Tells solutions."""

        def on_solution_callback(self) -> None:
            if found(self) or tracker.stop():
                self.stop_search()

    def on_bound(value: float) -> None:
        bound(value)
        if tracker.stop():
            solver.stop_search()

    solver.best_bound_callback = on_bound
    exchange = tracker.exchange
    with nullcontext() if exchange is None else exchange.ending(solver.stop_search):
        return solve_interruptibly(solver, model, Watch())


def evaluations_of(solver: Any, tracker: Tracker[Any]) -> int:
    """Return what a run of CP-SAT counts: its conflicts, or its work where evaluations are the
    limit and that is more.
    """
    if tracker.budget.evaluations is None:
        return max(1, int(solver.num_conflicts))
    work = int(solver.response_proto.deterministic_time / CpSatSettings.work_a_conflict)
    return max(1, int(solver.num_conflicts), work)


def building_seconds(size: int, choices: int, *, each: float = 2e-5) -> float:
    """Return about how long building a model takes.

    Parameters
    ----------
    size : ops, tensors and edges. choices : devices, or their slots.
    each : seconds for one of each: 1.2e-5 to 2e-5 on two models that were measured.
    """
    return each * size * choices


def run_tactics(
    known: tuple[Tactic, ...],
    settings: CpSatSettings,
    facts: Any,
    tracker: PlacementTracker,
    *,
    improve: bool = True,
) -> None:
    """Run those of the tactics that the settings name; where the time was over before the starts,
    if they are among them, had a turn, they have it after all.

    Parameters
    ----------
    known : all of the objective.
    improve : whether to run those that prove nothing, too.
    """
    names = named(settings.tactics, tuple(t.name for t in known), "cp-sat option tactics")
    threads = min(settings.num_workers, num_threads())
    chosen = [t for t in known if t.name in names and (improve or t.side != VALUE)]
    Scheduler(chosen, facts, tracker, threads=threads).run()
    starts = [tactic for tactic in chosen if tactic.name == "starts"]
    if starts and not tracker.stop_with_solution() and tracker.value is None:
        next(starts[0].steps(State(tracker, facts, tracker.rng())), None)


def with_threads(state: State) -> CpSatSettings:
    """Return the settings with the cores that the lane has; where evaluations are the limit, as
    they are: the answer depends on no machine.
    """
    settings: CpSatSettings = state.facts.settings
    if state.by_evaluations:
        return settings
    return replace(settings, num_workers=min(settings.num_workers, state.threads))


class PlacementModel(ABC):
    """A CP-SAT model whose solutions are placements.

    Attributes
    ----------
    evaluations_per_unit : of CP-SAT's deterministic time, where evaluations are the budget.
    """

    evaluations_per_unit: ClassVar[int] = 100

    cp: cp_model.CpModel

    @abstractmethod
    def offer(self, tracker: PlacementTracker, value: Callable[[Any], int]) -> None:
        """Evaluate a solution of the model, given as the value of every variable, and offer it."""

    @abstractmethod
    def ticks(self, bound: int) -> int:
        """Ticks that a lower bound on the model's objective proves."""

    @abstractmethod
    def hint(self, placement: Placement) -> None:
        """Hint a placement, its identical devices renamed as the symmetry constraints want them."""

    def solve(self, settings: CpSatSettings, tracker: PlacementTracker) -> bool:
        """Run CP-SAT until proof or the end of the budget; an evaluation is a conflict.

        Returns
        -------
        bool
            Whether the model has no better placement, or none at all (what is optimal on a coarse
            grid may leave a gap).
        """
        from ortools.sat.python import cp_model

        def found(solution: Any) -> None:
            self.offer(tracker, solution.value)
            self._raise_bound(tracker, solution.best_objective_bound)

        effort = 1.0 + tracker.evaluations_left / self.evaluations_per_unit
        solver = configured(settings, tracker, effort, linearization_level=2)
        if tracker.solution is not None:
            self.hint(tracker.solution)

        raise_bound = partial(self._raise_bound, tracker)
        code = run_watched(solver, self.cp, tracker, found, raise_bound)
        if code == cp_model.MODEL_INVALID:
            raise SolverError(f"CP-SAT refused the model: {self.cp.validate()}")
        if tracker.budget.evaluations is not None:
            # CP-SAT looks at its limit between restarts: conflicts beyond the budget are its own;
            # the last evaluation is that of its solution
            work = int(solver.response_proto.deterministic_time * self.evaluations_per_unit)
            spent = max(int(solver.num_conflicts), work)
            tracker.count(min(spent, max(0, tracker.evaluations_left - 1)))
        if code == cp_model.INFEASIBLE:
            tracker.infeasible(
                "no placement fits the devices' memory, compatibility, colocation and contiguity"
            )
            return True
        if code in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.offer(tracker, solver.value)
        self._raise_bound(tracker, solver.best_objective_bound)
        tracker.stop()
        return bool(code == cp_model.OPTIMAL)

    def _implies(
        self, here: Iterable[cp_model.IntVar | None], beside: cp_model.IntVar | None, then: Any
    ) -> None:
        """Each variable of `here` is beside the other one, or `then`."""
        for var in here:
            if var is not None:
                self.cp.add_bool_or([var.negated(), then, *([] if beside is None else [beside])])

    def _raise_bound(self, tracker: PlacementTracker, bound: float) -> None:
        if np.isfinite(bound):  # a whole number, of which the float misses some last bits
            tracker.raise_bound(self.ticks(round(bound)), "cp-sat")
