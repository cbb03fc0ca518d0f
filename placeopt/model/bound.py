"""BoundReport: what was proved about every solution of a problem.

Witness: what proves a lower bound, as data that others can check.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from numbers import Rational
from typing import Any

from placeopt.model.errors import InputError
from placeopt.model.shown import Shown


def plain_number(value: Any) -> Any:
    """Return a whole number, of numpy or a fraction, say, as an int; anything else as it is."""
    whole = isinstance(value, Rational) and value.denominator == 1
    return int(value) if whole else value


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain_number(self.value))
        bounds = {method: plain_number(value) for method, value in self.bounds.items()}
        object.__setattr__(self, "bounds", bounds)

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


Step = list[Any]
"""One step of a derivation: its name and its words, plain JSON values."""


@dataclass(frozen=True)
class Belief:
    """A statement that a search proved and a checker can only believe.

    Attributes
    ----------
    statement : in words and whole numbers, about the problem of the proof.
    model : the statement as a model without a solution, that any solver can repeat: `variables`
    {name: [low, high]}, `rows`
        [[[factor, variable], ...], least, [binary variables that are all 1, or the row is void]],
        `alone` lists of [start, ticks, binary variable]: of one list no two overlap.
    """

    statement: str
    model: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Witness:
    """What proves that no solution is better than `bound`.

    Attributes
    ----------
    bound : ticks (for a pipeline perhaps a Fraction) that no solution beats.
    method : the bound that found it. content : whole numbers and names only; docs/proofs.md says
    what they mean.
    beliefs : what nothing but a search has proved; empty for most bounds.
    """

    bound: Any
    method: str
    content: dict[str, Any] = field(default_factory=dict)
    beliefs: tuple[Belief, ...] = ()
