"""Typed failure: what the user did wrong, what a solver refuses, and what contradicts itself."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class InputError(ValueError):
    """Input (a file, an argument, an option) is wrong; the message is one line for a person.

    It says what, where, expected, received, and how to fix it. The command line prints it and exits with code 2.
    """


class InfeasiblePlacementError(InputError):
    """A placement breaks a constraint (compatibility, colocation, capacity, planned order)."""


class Refused(InputError):
    """A solver does not take this problem; the only failure that a portfolio or a comparison skips."""


class MissingExtraError(InputError):
    """An optional dependency is needed; the message names the extra to install."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed: "
            f"run pip install 'placeopt[{extra}]'"
        )


class SolverError(RuntimeError):
    """A solver failed or contradicts itself: it raised, or a bound exceeds a value, or its judge rejects its solution.

    Never swallowed: whoever runs several solvers names it and goes on with the others.

    Attributes
    ----------
    partial : Result of what the solver had found before it failed, None if that was nothing.
    """

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class ExecutionError(RuntimeError):
    """A run on a real system failed: a worker died, a kernel raised, a result was wrong; one line for a person."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint for a name that is not known: the nearest one, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names) or 'none'}"
