"""Typed failure: what the user did wrong, what a solver refuses, and what contradicts itself."""

from __future__ import annotations

import difflib
import importlib
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

MAX_MESSAGE = 200
"""Most characters of an error message before its hint, which begins with the first "; "."""

MAX_QUOTED = 80
"""Most characters of a name or a file inside a message."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_LONG_QUOTE = re.compile(rf"'([^']{{{MAX_QUOTED + 1},}})'")


class InputError(ValueError):
    """Input (a file, an argument, an option) is wrong; the message is one line for a person.

    It says what, where, expected, received, and how to fix it. The command line prints it and exits
    with code 2. What the input brought along is cut in its middle, so that the line stays short.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(brief(message))


class InfeasiblePlacementError(InputError):
    """A placement breaks a constraint (compatibility, colocation, capacity, planned order)."""


class InfeasibleProblemError(InputError):
    """No solution of the problem can be valid: proved, and the message says why."""


class Refused(InputError):
    """A solver does not take this problem; the only failure that a portfolio or a comparison
    skips.
    """


class MissingExtraError(InputError):
    """An optional dependency is needed; the message names the extra to install."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed: "
            f"run pip install 'placeopt[{extra}]'"
        )
        self._given = package, extra, purpose

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        """Be pickled by what it was made of: a pool of processes waits forever for an error that
        it cannot read.
        """
        return type(self), self._given


def needed_package(package: str, extra: str, purpose: str) -> Any:
    """Import and return a package of an extra, whose name the error gives where it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingExtraError(package, extra, purpose) from None


class SolverError(RuntimeError):
    """A solver failed or contradicts itself: it raised, or a bound exceeds a value, or its judge
    rejects its solution.

    Never swallowed: whoever runs several solvers names it and goes on with the others.

    Attributes
    ----------
    partial : Result of what the solver had found before it failed, None if that was nothing.
    """

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class ExecutionError(RuntimeError):
    """A run on a real system failed: a worker died, a kernel raised, a result was wrong; one line
    for a person.
    """


def brief(message: str) -> str:
    """Return a message on one line, at most 200 characters before its hint and 1000 in all."""
    text = CONTROL.sub(" ", str(message)[:100_000]).strip()
    text = _LONG_QUOTE.sub(lambda quote: f"'{_cut_middle(quote[1], MAX_QUOTED)}'", text)
    head, separator, hint = text.partition("; ")
    return _cut_middle(_cut_middle(head, MAX_MESSAGE) + separator + hint, 5 * MAX_MESSAGE)


def _cut_middle(text: str, length: int) -> str:
    half = (length - 3) // 2
    return text if len(text) <= length else f"{text[:half]}...{text[-half:]}"


def check_choice(where: str, received: Any, choices: Collection[str]) -> None:
    """Refuse what is none of the choices.

    Raises
    ------
    InputError
        If it is not; the message begins with `where` and lists the choices.
    """
    if received not in choices:
        raise InputError(f"{where}: expected one of {', '.join(choices)}, received '{received}'")


def twice_in(words: Iterable[str]) -> str:
    """Return the first of these words that occurs twice."""
    return next(word for word, count in Counter(words).items() if count > 1)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint for a name that is not known: the nearest one, or what is said otherwise, by
    default all of them.
    """
    names = list(known)
    near = nearest(word, names)
    if near:
        return f"did you mean '{near}'?"
    return otherwise or f"known: {', '.join(names) or 'none'}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like `word`, "" if none is; long words and lists are cut
    to bound the work.
    """
    short = {name[:60]: name for name in itertools.islice(known, 1000)}
    found = difflib.get_close_matches(word[:60], short, n=1, cutoff=0.5)
    return short[found[0]] if found else ""
