"""Witness: what proves a lower bound, as data that others can check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
