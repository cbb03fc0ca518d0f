"""The Solver protocol, and what a solver tells while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from placeopt.model.budget import Budget
    from placeopt.model.result import Result


@dataclass(frozen=True)
class Progress:
    """What a solver tells while it runs."""

    seconds: float
    evaluations: int
    incumbent: int | None  # ticks
    lower_bound: int  # ticks
    note: str = ""


OnProgress = Callable[[Progress], None]


@runtime_checkable
class Solver(Protocol):
    """Anything with a registered name and a `solve` method."""

    name: ClassVar[str]

    def solve(
        self,
        problem: Any,
        budget: Budget,
        *,
        seed: int,
        initial: Any = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Any]:
        """Search for the best solution of `problem` within `budget`."""
        ...
