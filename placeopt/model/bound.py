"""BoundReport: what was proved about every solution of a problem."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placeopt.model.errors import InputError
from placeopt.model.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, repr=False)
class BoundReport(Shown):
    """The outcome of an objective's bounds.

    Attributes
    ----------
    value : the best lower bound in ticks; no solution is better.
    method : the bound that proved it, the cheapest one among equals.
    bounds : ticks per method that was run.
    seconds : time it took.
    infeasible : why the problem has no solution at all, "" unless that is proved.
    """

    value: int
    method: str
    bounds: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    infeasible: str = ""

    def shown(self) -> dict[str, str]:
        """Return the best bound, and which others were tried."""
        if self.infeasible:
            return {"no solution": self.infeasible}
        return {
            "lower bound": f"{self.value} ticks",
            "by": self.method,
            "of": "; ".join(self.bounds),
            "after": f"{self.seconds:.3g} s",
        }

    @classmethod
    def of(cls, found: dict[str, int], started: float, infeasible: str = "") -> BoundReport:
        """Report the best of the bounds that were found since `started`, a `time.perf_counter()`; 0
        where none was.
        """
        best = max(found, key=lambda name: found[name], default="none")
        return cls(found.get(best, 0), best, found, time.perf_counter() - started, infeasible)


def check_methods(what: str, methods: Sequence[str] | None, known: Collection[str]) -> None:
    """Refuse the name of a bound that is not known.

    Raises
    ------
    InputError
        If one of `methods` is not in `known`.
    """
    for method in methods or ():
        if method not in known:
            raise InputError(
                f"bound method '{method}' is not known for {what}; known: {', '.join(known)}"
            )
