"""Verify a solution from any source, of any type of problem, and certify how far from optimal it
can be at most.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from placeopt.certify.certificate import (
    Certificate,
    alterations,
    names_hash,
    solution_hash,
    versions,
)
from placeopt.io.placement_file import (
    PlacementText,
    open_placement,
    placement_of,
    read_placement,
    read_queue,
)
from placeopt.io.serialize import load
from placeopt.model.bound import BoundReport
from placeopt.model.errors import InputError, Refused, SolverError, brief
from placeopt.model.files import read_json
from placeopt.model.objective import Finished, Objective, objective_of
from placeopt.model.result import Budget, Result, check_number
from placeopt.solving.options import declared_options
from placeopt.solving.registry import make_solver, solver_class
from placeopt.solving.run import run


def verify(
    problem: Any,
    solution: Any,
    seconds: float = 60.0,
    queue: str | None = None,
    num_workers: int = 2,
) -> Certificate:
    """Check a solution, compute its value, and prove how far from the optimum it is at most.

    The combinatorial and linear bounds run first; the rest of the time goes to the bound of the
    exact solver of the objective, seeded by the solution.

    Parameters
    ----------
    problem : of any type.
    solution : a solution, a Result (which names its execution), or a file of either; placements
        also as CSV (see `placeopt.io.placement_file`), as the device of every op (a list or an
        array), or as a mapping of ops to devices, by name or index.
    seconds : time for the bounds; the validity check and the value always come.
    queue : execution; None is the one that the Result or the file names, else the default of the
        objective
        ("priority" if a placement has priorities, else "fifo").
    num_workers : threads of the exact solver.

    Raises
    ------
    InputError
        If the file cannot be read as a solution of this problem, or a Result claims another value
        than its solution has.
    SolverError
        If a bound exceeds the value of a valid solution.
    """
    started = time.perf_counter()
    seconds = float(check_number("seconds", seconds))
    objective = objective_of(problem)
    given = read_solution(problem, solution)
    solution, queue = (
        given.solution,
        queue or given.queue or objective.default_queue(given.solution),
    )
    finished = _judged(objective, problem, solution, queue)
    upper = finished.value
    if queue == given.queue:
        _refuse_other_value(problem, given, upper)
    report, interrupted = _bounds(objective, problem, min(seconds / 2, 30.0), upper)
    _refuse_contradiction(problem, report, upper)
    better = None
    left = seconds - (time.perf_counter() - started)
    if upper is not None and report.value < upper and left > 0.5 and not interrupted:
        report, better = _prove(objective, problem, solution, report, left, num_workers)
        _refuse_contradiction(problem, report, upper)
    return Certificate(
        problem=problem.name,
        problem_hash=problem.hash,
        names_hash=names_hash(problem),
        solution_hash=solution_hash(solution),
        objective=objective.name,
        violations=finished.violations,
        value=upper,
        queue=finished.queue,
        lower_bound=report.value,
        bound_method=report.method,
        bounds=dict(report.bounds),
        better=better if better is not None and better < upper else None,
        problem_infeasible=report.infeasible,
        tick_seconds=problem.tick_seconds,
        runtime=time.perf_counter() - started,
        versions=versions(),
    )


def recheck(
    certificate: Certificate | Mapping[str, Any] | str | Path,
    problem: Any,
    solution: Any,
    seconds: float = 60.0,
) -> list[str]:
    """Check a certificate against its problem and solution; return a line for every difference.

    What follows from the claims is recomputed, the solution is judged and valued again, and the
    bound is proved again within `seconds`: a bound that is not reached again is reported as such
    (more time may be needed), one that is contradicted by a value as wrong.

    Raises
    ------
    InputError
        If the file is not a certificate.
    """
    data: Any = certificate
    if isinstance(certificate, str | Path):
        data = read_json(certificate, what="certificate")
    elif isinstance(certificate, Certificate):
        data = certificate.to_dict()
    claimed = Certificate.from_dict(data)
    found = alterations(data)
    solution = read_solution(problem, solution).solution
    if claimed.problem_hash != problem.hash:
        return [
            *found,
            "the certificate is about another problem: hash "
            f"{brief(claimed.problem_hash[:12])}..., '{problem.name}' has {problem.hash[:12]}...",
        ]
    if claimed.solution_hash != solution_hash(solution):
        return [
            *found,
            "the certificate is about another solution of this problem (devices or priorities "
            "differ)",
        ]
    if claimed.names_hash != names_hash(problem):
        found.append(
            "names: the ops or devices of the problem have other names than those certified"
        )
    fresh = verify(problem, solution, seconds=seconds, queue=claimed.queue or None)
    for key in (
        "problem",
        "objective",
        "tick_seconds",
        "feasible",
        "violations",
        "value",
        "queue",
        "problem_infeasible",
    ):
        old, new = getattr(claimed, key), getattr(fresh, key)
        if old != new:
            found.append(f"{key}: certified {old!r:.80}, found {new!r:.80}")
    quick, _ = _bounds(objective_of(problem), problem, 0.0, fresh.value)
    return found + _bound_differences(claimed, fresh, quick.bounds, seconds)


class Given(NamedTuple):
    """A solution from outside.

    `queue` is the execution it is for ("" where none is named) and `claimed` the value that a
    Result says it has under it (None where there is no such claim).
    """

    solution: Any
    queue: str = ""
    claimed: Any = None


def read_solution(problem: Any, solution: Any) -> Given:
    """Return what is given as a solution, a Result, or a file of either; of a placement also as a
    list of devices or a mapping of ops to devices.

    Raises
    ------
    InputError
        If the file cannot be read as a solution of this problem, or the result has none or is of
        another problem.
    """
    where = "result"
    if isinstance(solution, Given):
        return solution
    of_ops = objective_of(problem).kind == "placement"
    if isinstance(solution, PlacementText) or (of_ops and isinstance(solution, str | Path)):
        return _read_placement_file(problem, open_placement(solution))
    if isinstance(solution, str | Path):
        where, solution = f"file '{solution}'", load(solution)
    if not isinstance(solution, Result):
        return Given(placement_of(solution, problem) if of_ops else solution)
    _refuse_other_problem(problem, solution.problem_hash, where)
    if solution.solution is None:
        raise InputError(
            f"{where}: '{solution.solver}' found no solution of '{solution.problem}': "
            f"{solution.message}"
        )
    claimed = solution.value if solution.objective_name == objective_of(problem).name else None
    return Given(solution.solution, solution.queue, claimed)


def _read_placement_file(problem: Any, file: PlacementText) -> Given:
    placement = read_placement(file, problem)
    queue, claimed, data = read_queue(file) or "", None, file.data
    if isinstance(data, dict):
        _refuse_other_problem(problem, str(data.get("problem_hash", "")), file.where)
        if data.get("objective") == problem.objective:
            claimed = data.get("value")
    return Given(
        placement, "" if placement.priority is None and queue != "fifo" else queue, claimed
    )


def _refuse_other_problem(problem: Any, claimed: str, where: str) -> None:
    if claimed and claimed != problem.hash:
        raise InputError(
            f"{where}: is a solution of another problem: hash {claimed[:12]}..., "
            f"'{problem.name}' has {problem.hash[:12]}..."
        )


def _judged(objective: Objective, problem: Any, solution: Any, queue: str) -> Finished:
    """Value and judge a solution, whatever object was given."""
    try:
        return objective.finish(problem, solution, queue or None)
    except (AttributeError, TypeError) as error:
        raise InputError(
            f"problem '{problem.name}' is a {objective.kind} problem: expected a solution of it, "
            f"received {type(solution).__name__}"
        ) from error


def _refuse_other_value(problem: Any, given: Given, value: Any) -> None:
    """Refuse a Result that claims another value than its solution has under its execution."""
    if given.claimed is not None and value is not None and value != given.claimed:
        raise InputError(
            f"the result claims {given.claimed} ticks for '{problem.name}', its solution has "
            f"{value} under "
            f"'{given.queue}': it was changed after it was found; verify its placement alone"
        )


def _bounds(
    objective: Objective, problem: Any, seconds: float, upper: Any
) -> tuple[BoundReport, bool]:
    """Return the bounds, after Ctrl-C those that take milliseconds, and whether it came."""
    known = None if upper is None else int(upper)
    try:
        return objective.bounds(problem, seconds, upper=known), False
    except KeyboardInterrupt:
        return objective.bounds(problem, 0.0, upper=known), True


def _prove(
    objective: Objective,
    problem: Any,
    solution: Any,
    report: BoundReport,
    seconds: float,
    num_workers: int,
) -> tuple[BoundReport, Any]:
    """Return the bounds with that of the exact solver, if there is one, and the value of the best
    solution it knows.
    """
    if not objective.prover:
        return report, None
    wanted = {"num_workers": num_workers, "warm_start": False}
    known = declared_options(solver_class(objective.prover, objective.kind))
    options = {key: value for key, value in wanted.items() if key in known}
    solver = make_solver(objective.prover, objective.kind, **options)
    try:
        result = run(problem, solver, Budget(seconds=seconds), initial=solution, bound=report)
    except Refused:
        return report, None
    bounds = dict(report.bounds)
    if result.lower_bound > report.value:
        bounds[result.bound_method] = max(result.lower_bound, bounds.get(result.bound_method, 0))
        report = BoundReport(
            result.lower_bound, result.bound_method, bounds, infeasible=report.infeasible
        )
    return report, result.value


def _refuse_contradiction(problem: Any, report: BoundReport, value: Any) -> None:
    if value is not None and (report.infeasible or report.value > value):
        bound = report.infeasible or f"the lower bound {report.value} ({report.method})"
        raise SolverError(
            f"problem '{problem.name}': {bound} contradicts a valid solution of value {value}: one "
            "of them is wrong"
        )


def _bound_differences(
    claimed: Certificate, fresh: Certificate, quick: Mapping[str, Any], seconds: float
) -> list[str]:
    """Return what is wrong with the bounds of a certificate, or not proved again.

    Parameters
    ----------
    quick : bounds that need no time: each is held to what it proves itself; of the others, which
        have more on another day, any may prove what one did.
    """
    found = []
    best = min((x for x in (fresh.value, fresh.better) if x is not None), default=None)
    if best is not None and claimed.lower_bound > best:
        found.append(
            f"lower bound: certified {claimed.lower_bound}, but a solution of {best} ticks exists"
        )
    elif fresh.lower_bound < claimed.lower_bound:
        found.append(
            f"lower bound: certified {claimed.lower_bound} by {claimed.bound_method}, proved again "
            f"only {fresh.lower_bound} within {seconds:g} s; more time may be needed"
        )
    for method, value in claimed.bounds.items():
        again = max(fresh.bounds.get(method, 0), quick.get(method, 0))
        if value > (again if method in quick else max(again, fresh.lower_bound)):
            found.append(f"bound {method}: certified {value}, proved again only {again}")
    better = claimed.better
    if better is not None and (
        claimed.value is None or not fresh.lower_bound <= better < claimed.value
    ):
        found.append(f"better: certified {better}, outside {fresh.lower_bound} to {claimed.value}")
    return found
