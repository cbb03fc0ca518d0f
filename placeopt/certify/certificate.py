"""Verify a placement from any source and certify how far from optimal it can be at most.

A certificate states whether the placement is valid, its value, a proven lower bound and hence its gap. It
carries the hashes of the problem and of the placement and the versions used, so that it can be checked
again later.
"""

from __future__ import annotations

import hashlib
import platform
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.budget import Budget
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placeopt.model.problem import PlacementProblem

FORMAT, FORMAT_VERSION = "placeopt-certificate", 1
LIBRARIES = ("placeopt", "ortools", "numpy", "scipy", "numba")


@dataclass(frozen=True)
class Certificate:
    """What is proved about one placement.

    Attributes
    ----------
    feasible : whether the placement meets every constraint; `violations` lists those it breaks, in words.
    value : its objective in ticks under the execution `queue` ("" where the objective has none), None if
    invalid. lower_bound, bound_method : ticks that no placement beats, and the method that proved it.
    bounds : ticks per method that was run. status : "optimal" if value and bound meet, "feasible", or
    "infeasible" for a placement that is not valid. better : value of a better placement found on the way,
    None if none was. problem_infeasible : why no placement of the problem can be valid, "" unless that is
    proved.
    """

    problem: str
    problem_hash: str
    placement_hash: str
    objective: str
    feasible: bool
    violations: tuple[str, ...]
    value: int | None
    queue: str
    lower_bound: int
    bound_method: str
    bounds: dict[str, int]
    status: str
    better: int | None = None
    problem_infeasible: str = ""
    tick_seconds: float = 1e-9
    runtime: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def gap(self) -> float | None:
        """(value - lower_bound) / value, 0 when optimal; None for an invalid placement."""
        if self.value is None:
            return None
        return 0.0 if self.value == 0 else (self.value - self.lower_bound) / self.value

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain JSON values."""
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "problem": self.problem,
            "problem_hash": self.problem_hash,
            "placement_hash": self.placement_hash,
            "objective": self.objective,
            "feasible": self.feasible,
            "violations": list(self.violations),
            "value": self.value,
            "seconds": None if self.value is None else self.value * self.tick_seconds,
            "queue": self.queue,
            "lower_bound": self.lower_bound,
            "bound_method": self.bound_method,
            "bounds": dict(self.bounds),
            "gap": self.gap,
            "status": self.status,
            "better": self.better,
            "problem_infeasible": self.problem_infeasible,
            "tick_seconds": self.tick_seconds,
            "runtime": self.runtime,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "certificate") -> Certificate:
        """Read a certificate back.

        Raises
        ------
        InputError
            If it is not a certificate, of another version, or a field is missing or of the wrong type.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(
                f'{where}: expected "format": "{FORMAT}"; write one with placeopt verify --out FILE'
            )
        if data.get("version") != FORMAT_VERSION:
            raise InputError(f"{where}: expected version {FORMAT_VERSION}, received {data.get('version')}")
        values: dict[str, Any] = {}
        for key, kinds in _FIELDS.items():
            if key not in data:
                raise InputError(f"{where}: the field '{key}' is missing")
            if not isinstance(data[key], kinds) or (isinstance(data[key], bool) and bool not in kinds):
                raise InputError(f"{where}: field '{key}' has the wrong type: {data[key]!r:.40}")
            values[key] = data[key]
        values["violations"] = tuple(str(x) for x in values["violations"])
        return cls(**values)


_FIELDS: dict[str, tuple[type, ...]] = {
    "problem": (str,),
    "problem_hash": (str,),
    "placement_hash": (str,),
    "objective": (str,),
    "feasible": (bool,),
    "violations": (list,),
    "value": (int, type(None)),
    "queue": (str,),
    "lower_bound": (int,),
    "bound_method": (str,),
    "bounds": (dict,),
    "status": (str,),
    "better": (int, type(None)),
    "problem_infeasible": (str,),
    "tick_seconds": (float, int),
    "runtime": (float, int),
    "versions": (dict,),
}


def verify(
    problem: PlacementProblem,
    placement: Placement | str | Path,
    seconds: float = 60.0,
    queue: str | None = None,
    num_workers: int = 2,
) -> Certificate:
    """Check a placement, value it, and bound its distance from the optimum.

    The combinatorial and linear bounds run first; the rest of the time goes to CP-SAT's bound, seeded by the
    placement.

    Parameters
    ----------
    placement : a Placement, or a file of one (JSON or CSV, see `placeopt.io.placement_file`).
    seconds : time for the bounds; the validity check and the value always come.
    queue : execution; None is the one that the file names, else "priority" if the placement has priorities, else "fifo".
    num_workers : threads of CP-SAT.

    Raises
    ------
    InputError
        If the file cannot be read as a placement of this problem.
    """
    from placeopt.solving.bound import bound

    started = time.perf_counter()
    if not isinstance(placement, Placement):
        from placeopt.io.placement_file import read_placement, read_queue

        path, placement = placement, read_placement(placement, problem)
        if queue is None and placement.priority is not None:
            queue = read_queue(path)
    violations, value, queue = _judge(problem, placement, queue)
    report = bound(problem, seconds=min(seconds / 2, 30.0), upper=value)
    bounds, lower, method = dict(report.bounds), report.value, report.method
    better = None
    left = seconds - (time.perf_counter() - started)
    if value is not None and lower < value and left > 0.5 and not report.infeasible:
        from placeopt.solvers.exact.cp_sat import CpSat

        solver = CpSat(num_workers=num_workers, warm_start=False)
        result = solver.solve(problem, Budget(seconds=left), seed=0, initial=placement)
        bounds["cp-sat"] = min(result.lower_bound, value)
        if result.lower_bound > lower:
            lower, method = result.lower_bound, result.bound_method
        if result.objective is not None and result.objective < value:
            better = result.objective
    if value is None:
        status = "infeasible"
    else:
        status = "optimal" if lower >= value else "feasible"
    return Certificate(
        problem=problem.name,
        problem_hash=problem.hash,
        placement_hash=placement_hash(placement),
        objective=problem.objective,
        feasible=not violations,
        violations=tuple(violations),
        value=value,
        queue=queue,
        lower_bound=lower,
        bound_method=method,
        bounds=bounds,
        status=status,
        better=better,
        problem_infeasible=report.infeasible,
        tick_seconds=problem.tick_seconds,
        runtime=time.perf_counter() - started,
        versions=_versions(),
    )


def recheck(
    certificate: Certificate | Mapping[str, Any] | str | Path,
    problem: PlacementProblem,
    placement: Placement | str | Path,
    seconds: float = 60.0,
) -> list[str]:
    """Check a certificate against its problem and placement; return every difference in words.

    The value is recomputed, and the bound is proved again within `seconds`: a bound that is not reached again
    is reported as such (more time may be needed), one that is contradicted by the value as wrong.

    Raises
    ------
    InputError
        If the file is not a certificate.
    """
    if isinstance(certificate, (str, Path)):
        from placeopt.model.files import read_json

        path = certificate
        certificate = Certificate.from_dict(read_json(path, what="certificate"), f"certificate '{path}'")
    elif not isinstance(certificate, Certificate):
        certificate = Certificate.from_dict(certificate)
    if not isinstance(placement, Placement):
        from placeopt.io.placement_file import read_placement

        placement = read_placement(placement, problem)
    if certificate.problem_hash != problem.hash:
        return [f"the certificate is about another problem: hash {certificate.problem_hash[:12]}..., "
                f"'{problem.name}' has {problem.hash[:12]}..."]  # fmt: skip
    if certificate.placement_hash != placement_hash(placement):
        return ["the certificate is about another placement of this problem (devices or priorities differ)"]
    found = []
    fresh = verify(problem, placement, seconds=seconds, queue=certificate.queue or None)
    if fresh.feasible != certificate.feasible:
        found.append(f"feasible: certified {certificate.feasible}, found {fresh.feasible}")
    if fresh.value != certificate.value:
        found.append(f"value: certified {certificate.value}, found {fresh.value}")
    best = min((x for x in (fresh.value, fresh.better) if x is not None), default=None)
    if best is not None and certificate.lower_bound > best:
        found.append(
            f"lower bound: certified {certificate.lower_bound}, but a placement of {best} ticks exists"
        )
    elif fresh.lower_bound < certificate.lower_bound:
        found.append(
            f"lower bound: certified {certificate.lower_bound} by {certificate.bound_method}, proved again only "
            f"{fresh.lower_bound} within {seconds:g} s; more time may be needed"
        )
    expected = "infeasible"
    if certificate.value is not None:
        expected = "optimal" if certificate.lower_bound >= certificate.value else "feasible"
    if certificate.status != expected:
        found.append(f"status: certified '{certificate.status}', its own numbers say '{expected}'")
    return found


def _judge(
    problem: PlacementProblem, placement: Placement, queue: str | None
) -> tuple[list[str], int | None, str]:
    """Return (violations, value, execution); the value is None for an invalid placement."""
    if problem.objective != "makespan":
        return _judge_pipeline(problem, placement)
    from placeopt.makespan.evaluate import evaluate
    from placeopt.makespan.judge import placement_violations, schedule_violations
    from placeopt.model.errors import InfeasiblePlacementError

    queue = queue or ("fifo" if placement.priority is None else "priority")
    violations = placement_violations(problem, placement)
    if violations:
        return violations, None, queue
    try:
        evaluation = evaluate(problem, placement, queue, check=False)
    except InfeasiblePlacementError as error:  # planned orders that wait for each other
        return [str(error)], None, queue
    violations = schedule_violations(problem, evaluation.schedule)
    return violations, None if violations else evaluation.makespan, queue


def _judge_pipeline(problem: PlacementProblem, placement: Placement) -> tuple[list[str], int | None, str]:
    if problem.objective == "period":
        from placeopt.period.evaluate import period_value, period_violations

        violations = period_violations(problem, placement)
        return violations, None if violations else period_value(problem, placement), ""
    from placeopt.latency.evaluate import latency_value, latency_violations

    violations = latency_violations(problem, placement)
    return violations, None if violations else latency_value(problem, placement), ""


def placement_hash(placement: Placement) -> str:
    """SHA-256 of the devices and priorities of a placement."""
    digest = hashlib.sha256(np.asarray(placement.device, dtype=np.int64).tobytes())
    if placement.priority is not None:
        digest.update(b"priority")
        digest.update(np.asarray(placement.priority, dtype=np.int64).tobytes())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


__all__ = ["Certificate", "placement_hash", "recheck", "verify"]
