"""What solvers take and give back: Placement, Schedule, Budget, Result and its trace."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from placeopt.arrays import int_array
from placeopt.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

QUEUES = ("fifo", "priority", "planned")
STATUSES = ("optimal", "feasible", "infeasible", "unknown")
STOP_REASONS = ("proved", "time", "evaluations", "target", "interrupted", "converged")

SolutionT = TypeVar("SolutionT")


@dataclass(frozen=True, eq=False)
class Placement:
    """A device for every op and, optionally, a rank (smaller runs first).

    Both are needed: the same devices with another order can be a third slower.
    """

    device: NDArray[np.int64]  # (num_ops,) device index
    priority: NDArray[np.int64] | None = None  # (num_ops,) rank

    def __post_init__(self) -> None:
        device = np.asarray(self.device)
        if device.ndim != 1:
            raise InputError(f"device: expected one index per op, received {device.ndim} dimensions")
        object.__setattr__(self, "device", int_array(device, device.shape, "device"))
        if self.priority is not None:
            object.__setattr__(self, "priority", int_array(self.priority, device.shape, "priority"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        if (self.priority is None) != (other.priority is None):
            return False
        same = np.array_equal(self.device, other.device)
        return same and (self.priority is None or np.array_equal(self.priority, other.priority))  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_starts(cls, device: ArrayLike, start: ArrayLike, order: ArrayLike | None = None) -> Placement:
        """Return a placement whose ranks are the ops sorted by (start, position in `order`).

        `order` should be a topological order, so that ops of zero length keep a feasible order.
        """
        start = np.asarray(start)
        sequence = np.arange(len(start)) if order is None else np.asarray(order)
        position = np.empty(len(start), dtype=np.int64)
        position[sequence] = np.arange(len(start))
        rank = np.empty(len(start), dtype=np.int64)
        rank[np.lexsort((position, start))] = np.arange(len(start))
        return cls(np.asarray(device), rank)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Start and end of every op and every transfer, in ticks."""

    device: NDArray[np.int64]  # (num_ops,)
    start: NDArray[np.int64]  # (num_ops,)
    finish: NDArray[np.int64]  # (num_ops,)
    transfer_tensor: NDArray[np.int64]  # (num_transfers,)
    transfer_destination: NDArray[np.int64]  # (num_transfers,) device
    transfer_start: NDArray[np.int64]  # (num_transfers,)
    transfer_finish: NDArray[np.int64]  # (num_transfers,)

    def __post_init__(self) -> None:
        n, t = len(self.device), len(self.transfer_tensor)
        for key in ("device", "start", "finish"):
            object.__setattr__(self, key, int_array(getattr(self, key), (n,), key))
        for key in ("transfer_tensor", "transfer_destination", "transfer_start", "transfer_finish"):
            object.__setattr__(self, key, int_array(getattr(self, key), (t,), key))

    @property
    def makespan(self) -> int:
        """End of the last op in ticks."""
        return int(self.finish.max())


@dataclass(frozen=True)
class Budget:
    """When a search has to stop; None means no such limit.

    Attributes
    ----------
    seconds : wall-clock time.
    evaluations : number of candidate solutions evaluated.
    target : stop as soon as the objective is at most this many ticks.
    """

    seconds: float | None = None
    evaluations: int | None = None
    target: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise InputError(f"budget seconds: expected a number >= 0, received {self.seconds}")
        if self.evaluations is not None and self.evaluations < 1:
            raise InputError(f"budget evaluations: expected at least 1, received {self.evaluations}")

    @property
    def unlimited(self) -> bool:
        """Whether nothing limits the search."""
        return self.seconds is None and self.evaluations is None and self.target is None


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


__all__ = ["QUEUES", "Budget", "Placement", "Result", "Schedule", "TracePoint"]
