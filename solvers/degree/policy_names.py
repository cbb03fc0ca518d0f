"""From the text `name` or `name:parameter` to a tuned degree policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError
from placeopt.model.result import Budget
from placeopt.solving.registry import make_solver, specs
from placeopt.solving.run import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.result import Result
    from placeopt.solving.tracker import OnProgress
    from placeopt.streams.problem import JobStreamProblem
    from placeopt.streams.simulator import DegreePolicy, Episode

DEFAULT_POLICIES = (
    "max-degree",
    "min-degree",
    "random-degree",
    "constant-degree",
    "feasible-first",
)


def solver_options(text: str) -> tuple[str, dict[str, Any]]:
    """Return (solver name, options) of a policy's text.

    ``constant-degree:4`` is a degree, ``feasible-first:8-4-16`` and ``rollout:8-4-16`` are orders,
    ``policy-degree:50`` a number of updates; ``name`` alone leaves all to the solver.

    Raises
    ------
    InputError
        If the name is unknown or the parameter has the wrong form.
    """
    name, colon, parameter = text.partition(":")
    known = specs("jobs")
    if name not in known:
        raise InputError(f"policy '{name}' is not known; known: {', '.join(sorted(known))}")
    if not colon:
        return name, {}
    if name not in _PARAMETERS:
        raise InputError(f"policy '{name}' takes no parameter, received '{parameter}'")
    option, read, form = _PARAMETERS[name]
    try:
        return name, {option: read(parameter)}
    except ValueError:
        raise InputError(
            f"policy '{text}': expected {form} after the colon, received '{parameter}'"
        ) from None


def _degrees(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("-")))


_PARAMETERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "constant-degree": ("degree", int, "a degree"),
    "feasible-first": ("order", _degrees, "degrees like 8-4-16"),
    "rollout": ("order", _degrees, "degrees like 8-4-16"),
    "policy-degree": ("iterations", int, "a number of updates"),
}
"""The option that stands behind the colon, how it is read, and what is expected."""


def check_policy(text: str, problem: JobStreamProblem) -> tuple[str, dict[str, Any]]:
    """Return what `solver_options` does.

    Raises
    ------
    InputError
        If the text is wrong or names a degree that the topology lacks.
    """
    name, options = solver_options(text)
    for degree in options.get("order", ()) + ((options["degree"],) if "degree" in options else ()):
        problem.jobs.topology.require_degree(degree, f"policy '{text}': degree")
    make_solver(name, "jobs", **options)
    return name, options


def tuned_result(
    text: str,
    problem: JobStreamProblem,
    *,
    seed: int = 0,
    seconds: float | None = None,
    on_progress: OnProgress | None = None,
) -> Result[Episode]:
    """Return the Result of a policy's solver: tuned on streams other than `problem`, run on it.

    Parameters
    ----------
    seconds : limit of the tuning; None is none.
    """
    name, options = check_policy(text, problem)
    budget = Budget(seconds=seconds)
    return run(
        problem, make_solver(name, "jobs", **options), budget, seed=seed, on_progress=on_progress
    )


def tuned_policy(
    text: str, problem: JobStreamProblem, *, seed: int = 0
) -> tuple[DegreePolicy, str]:
    """Return (policy, message of its solver), tuned without a limit."""
    result = tuned_result(text, problem, seed=seed)
    assert result.solution is not None  # every job may be refused: there always is one
    return result.solution.policy, result.message
