"""`bound`: what can be proved of a problem, whatever its objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.model.objective import objective_of
from placeopt.solving.compilation import ensure, kernels_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.model.bound import BoundReport


def bound(
    problem: Any,
    seconds: float = 10.0,
    methods: Sequence[str] | None = None,
    upper: int | None = None,
) -> BoundReport:
    """Return the best lower bound on the objective of `problem` that can be proved in about
    `seconds`.

    Parameters
    ----------
    methods : names of the bounds to run; None for all that the time allows.
    upper : value of a known solution in ticks: the search for bounds ends once it is reached.

    Raises
    ------
    InputError
        If a method is unknown, or `problem` is no problem.
    """
    objective = objective_of(problem)
    ensure(kernels_of(objective, bounds=True))  # compiling does not count
    return objective.bounds(problem, seconds, methods=methods, upper=upper)
