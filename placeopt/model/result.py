"""Result: what a solver found and what is proved about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from placeopt.model.errors import InputError

STATUSES = ("optimal", "feasible", "infeasible", "unknown")
STOP_REASONS = ("proved", "time", "evaluations", "target", "interrupted", "converged")

SolutionT = TypeVar("SolutionT")


@dataclass(frozen=True)
class TracePoint:
    """One improvement of the incumbent or the bound."""

    seconds: float
    evaluations: int
    incumbent: int | None  # ticks
    lower_bound: int  # ticks


@dataclass(frozen=True, eq=False)
class Result(Generic[SolutionT]):
    """What a solver found and what is proved about it.

    Attributes
    ----------
    solution : the best solution, None if there is none (yet).
    objective : its value in ticks, recomputed by the evaluator; None without a solution.
    lower_bound : ticks; no solution can be better. 0 if nothing is proved.
    bound_method : which bound proved it.
    queue : execution under which `objective` holds ("" where the objective has no queue).
    message : one line a person should read (why infeasible, what was given up); usually empty.
    """

    problem: str
    solver: str
    solution: SolutionT | None
    objective: int | None
    lower_bound: int
    bound_method: str
    status: str
    stop_reason: str
    evaluations: int
    runtime: float  # seconds
    seed: int
    queue: str = ""
    message: str = ""
    tick_seconds: float = 1e-9
    objective_name: str = "makespan"
    trace: tuple[TracePoint, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InputError(f"status: expected one of {', '.join(STATUSES)}, received '{self.status}'")
        if self.stop_reason not in STOP_REASONS:
            raise InputError(f"stop_reason: expected one of {', '.join(STOP_REASONS)}, received '{self.stop_reason}'")
        if (self.solution is None) != (self.objective is None):
            raise InputError("a result has both a solution and an objective, or neither")
        if self.objective is not None and self.lower_bound > self.objective:
            raise InputError(f"lower bound {self.lower_bound} ({self.bound_method}) exceeds the objective "
                             f"{self.objective} of '{self.solver}' on '{self.problem}': one of them is wrong")  # fmt: skip

    @property
    def gap(self) -> float | None:
        """(objective - lower_bound) / objective, 0 when optimal; None without a solution."""
        if self.objective is None:
            return None
        return 0.0 if self.objective == 0 else (self.objective - self.lower_bound) / self.objective

    @property
    def seconds(self) -> float | None:
        """The objective in seconds."""
        return None if self.objective is None else self.objective * self.tick_seconds
