"""BoundReport: what was proved about every solution of a problem."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BoundReport:
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
