"""Run several solvers on one problem: what one of them does wrong is named, and the others go
on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from placeopt.model.bound import BoundReport
from placeopt.model.errors import InputError, Refused, SolverError
from placeopt.model.objective import compared_solvers, objective_of
from placeopt.model.result import Budget, Result
from placeopt.solving.bound import bound
from placeopt.solving.compilation import early_start, kernels_of, ready
from placeopt.solving.registry import make_solver
from placeopt.solving.run import best_so_far, check_accepts, run
from placeopt.solving.tracker import OnProgress

INTERPRETED_SECONDS = 0.5
"""Time of each heuristic that is interpreted; a sweep gives what it has found by then."""


@dataclass(frozen=True)
class SolverFailure:
    """Why a solver has no result of its own: it refused the problem, or it failed."""

    solver: str
    message: str
    refused: bool


@dataclass
class SolverComparison:
    """What several solvers found on one problem.

    Attributes
    ----------
    first : what interpreted heuristics found while kernels were compiled: it counts where a search
    began before their
        kernels were, or nothing else is found.
    results : in the order of the solvers; bounds are shared, for one that holds for one solution
    holds for all.
    failures : solvers that refused or failed; what a failed one had found is among the results.
    report : bounds proved before the solvers, or after them if who was to prove bounds failed; None
    without.
    alone : value of the best single device, None if no device can hold the model or the objective
    has no such line.
    contradiction : whether a bound of one solver exceeds the value of another. note : a line about
    how they ran, "" for as usual.
    """

    problem: Any
    results: list[Result[Any]] = field(default_factory=list)
    first: list[Result[Any]] = field(default_factory=list)
    failures: list[SolverFailure] = field(default_factory=list)
    report: BoundReport | None = None
    alone: Any = None
    interrupted: bool = False
    contradiction: bool = False
    note: str = ""

    @property
    def best(self) -> int | None:
        """Index of the best result, the earliest among equals; None if no solver found a
        solution.
        """
        found = {i: one.value for i, one in enumerate(self.results) if one.value is not None}
        return min(found, key=found.__getitem__, default=None)

    @property
    def winner(self) -> Result[Any] | None:
        """The best result."""
        return None if self.best is None else self.results[self.best]

    def share_bounds(self) -> None:
        """Give every result the strongest bound.

        A bound above another solver's value is a failure of whoever proved it, and is not shared.
        """
        proofs = [(r.solver, BoundReport(r.lower_bound, r.bound_method)) for r in self.results]
        if self.report is not None:
            proofs.append(("the bounds", self.report))
        least = min((r.value for r in self.results if r.value is not None), default=None)
        valid = []
        for solver, proof in proofs:
            if least is not None and proof.value > least:
                message = (
                    f"the lower bound {proof.value} ({proof.method}) exceeds the value "
                    f"{least} of a valid solution"
                )
                self.failures.append(SolverFailure(solver, message, refused=False))
                self.contradiction = True
            else:
                valid.append(proof)
        if valid:
            strongest = max(valid, key=lambda proof: proof.value)
            self.results = [result.with_bound(strongest) for result in self.results]

    def snapshot(self) -> SolverComparison:
        """Return what is known now, the incumbent of the running solver with it."""
        running = best_so_far()
        known = list(self.results or self.first)
        if running is not None and running.problem == self.problem.name:
            known.append(running)
        found = replace(self, results=known, failures=list(self.failures), interrupted=True)
        found.share_bounds()
        return found


def chosen_solvers(
    problem: Any, named: Sequence[str], options: dict[str, Any]
) -> tuple[list[tuple[str, Any]], list[SolverFailure]]:
    """Return the (name, solver) pairs to run, and the broken plug-ins among the names.

    Every name and option is checked before anything runs.
    """
    objective = objective_of(problem)
    if options and len(named) != 1:
        raise InputError(
            "--option and --policy-file need exactly one --solver, to know which one they configure"
        )
    named = named or compared_solvers(problem)
    solvers: list[tuple[str, Any]] = []
    broken: list[SolverFailure] = []
    for name in dict.fromkeys(named):
        try:
            solver = make_solver(name, objective.kind, **options)
        except SolverError as error:
            if len(named) == 1:
                raise
            broken.append(SolverFailure(name, str(error), refused=False))
            continue
        check_accepts(solver, problem)
        solvers.append((name, solver))
    return solvers, broken


def compare(
    comparison: SolverComparison,
    solvers: Sequence[tuple[str, Any]],
    budget: Budget,
    *,
    seed: int,
    initial: Any,
    bound_seconds: float | None,
    announce: Callable[[str], None],
    on_progress: OnProgress | None,
    keep: Callable[[Result[Any]], object],
    meanwhile: Callable[[SolverComparison], object],
) -> None:
    """Prove bounds, run the solvers one after the other, and fill `comparison`; Ctrl-C ends it with
    what is known.

    Parameters
    ----------
    bound_seconds : time for bounds before the solvers, None where one of them proves bounds.
    announce : told what runs now. keep : called with every result as soon as there is one.
    meanwhile : called while other processes compile kernels.
    """
    problem = comparison.problem

    def run_all() -> None:
        if bound_seconds is not None:
            announce("lower bound")
            comparison.report = bound(problem, seconds=bound_seconds)
        for name, solver in solvers:
            announce(name)
            alone = len(solvers) == 1
            result = _run_one(
                comparison, name, solver, budget, seed, initial, on_progress, alone=alone
            )
            if result is None:
                continue
            comparison.results.append(result)
            keep(result)
            failed = any(f.solver == name for f in comparison.failures)
            if result.stop_reason == "interrupted" and not failed:
                comparison.interrupted = True
                return
        comparison.alone = plainest_value(comparison)
        proved = any(result.lower_bound for result in comparison.results)
        if comparison.report is None and not proved:  # whoever was to prove one has failed
            comparison.report = bound(problem, seconds=0.0)

    try:
        announce("kernels")
        groups = kernels_of(objective_of(problem), [solver for _, solver in solvers], bounds=True)
        needed = _kernels_at_once(problem, solvers, budget) or groups
        with early_start(groups, needed, meanwhile=lambda: meanwhile(comparison)):
            run_all()
    except KeyboardInterrupt:
        comparison.interrupted = True
    comparison.results = comparison.results or comparison.first
    comparison.share_bounds()


def _kernels_at_once(problem: Any, solvers: Sequence[tuple[str, Any]], budget: Budget) -> list[str]:
    """Groups of kernels that have to be compiled before the solvers run; none stand for all.

    All for an evaluation budget, whose answer must not depend on what is compiled, for problems of
    some size, and for who runs nothing but heuristics: the outcome is evaluated, too.
    """
    # Ops times devices up to which bounds and single schedules may be interpreted while their
    # kernels are compiled
    interpreted = 2000
    size = getattr(problem, "num_ops", interpreted) * getattr(problem, "num_devices", interpreted)
    if budget.evaluations is not None or size > interpreted:
        return []
    needed: list[str] = []
    for _, solver in solvers:
        kernels = _at_once(solver, problem)
        if kernels is None:
            return []
        needed += kernels
    return needed


def interpretable(solver: Any, problem: Any) -> bool:
    """Whether a solver needs no compiled kernel at all."""
    return _at_once(solver, problem) == ()


def _at_once(solver: Any, problem: Any) -> tuple[str, ...] | None:
    """Groups of kernels without which a solver cannot begin, None where it does not say: all of its
    groups.
    """
    at_once = getattr(solver, "kernels_at_once", lambda _: None)
    return at_once(problem)  # type: ignore[no-any-return]


def _run_one(
    comparison: SolverComparison,
    name: str,
    solver: Any,
    budget: Budget,
    seed: int,
    initial: Any,
    on_progress: OnProgress | None,
    *,
    alone: bool,
) -> Result[Any] | None:
    """Run one solver; None where it refuses, or fails with nothing in hand.

    One whose kernels are still being compiled starts from the best of the first results, or has run
    already.
    """
    if not ready(getattr(solver, "kernels", ())):
        if interpretable(solver, comparison.problem):
            comparison.note = (
                "a first run: heuristics were interpreted, for half a second each, "
                "while kernels were compiled"
            )
            shown = [result for result in comparison.first if result.solver == name]
            if shown and initial is None:
                return shown[0]
            seconds = budget.seconds
            if seconds is None or seconds > INTERPRETED_SECONDS:
                budget = replace(budget, seconds=INTERPRETED_SECONDS)
        winner = SolverComparison(comparison.problem, comparison.first).winner
        if initial is None and winner is not None:
            initial = winner.solution
    try:
        return run(
            comparison.problem, solver, budget, seed=seed, initial=initial, on_progress=on_progress
        )
    except Refused as refusal:
        if alone:
            raise
        comparison.failures.append(SolverFailure(name, str(refusal), refused=True))
        return None
    except SolverError as error:
        comparison.failures.append(SolverFailure(name, str(error), refused=False))
        return error.partial  # type: ignore[no-any-return]


def plainest_value(comparison: SolverComparison) -> Any:
    """Value of the best single device where the objective compares with it, None where no device
    can hold the model.
    """
    problem = comparison.problem
    objective = objective_of(problem)
    if not objective.baseline:
        return None
    budget = Budget(evaluations=problem.num_devices)
    result = run(problem, make_solver(objective.baseline, objective.kind), budget)
    return result.value if devices_used(result) == 1 else None


def devices_used(result: Result[Any]) -> int:
    """Return how many devices a placement uses, 0 for anything else."""
    device = getattr(result.solution, "device", None)
    return 0 if device is None else len(set(device.tolist()))
