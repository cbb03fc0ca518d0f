"""The errors a user can cause, each one line: what, where, expected, received, how to fix."""

from __future__ import annotations


class InputError(ValueError):
    """Input (a file, an argument, an option) is wrong; the message is one line for a person.

    The command line prints the message and exits with code 2.
    """


class InfeasiblePlacementError(InputError):
    """A placement breaks a constraint (compatibility, colocation, capacity, planned order)."""


class MissingExtraError(InputError):
    """An optional dependency is needed; the message names the extra to install."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed: "
            f"run pip install 'placeopt[{extra}]'"
        )


class ExecutionError(RuntimeError):
    """A run on a real system failed: a worker died, a kernel raised, a result was wrong; one line for a person."""
