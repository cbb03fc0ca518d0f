"""Solvers: heuristics, exact methods, search and policies behind one interface.

The classes are imported on first use: `placeopt.solvers.CpSat(num_workers=2)` imports ortools only
then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.solving.registry import SolverSpec


def all_specs() -> tuple[SolverSpec, ...]:
    """Return the solvers of all folders, whose `SPECS` list them, the portfolio of this one, and
    those of pipelines.
    """
    from placeopt.schedules import SPECS as PIPELINES
    from placeopt.solvers.degree import SPECS as DEGREE
    from placeopt.solvers.exact import SPECS as EXACT
    from placeopt.solvers.heuristics import SPECS as HEURISTICS
    from placeopt.solvers.planning import SPECS as PLANNING
    from placeopt.solvers.policy import SPECS as POLICY
    from placeopt.solvers.search import SAMPLED, SPECS as SEARCH
    from placeopt.solvers.sharding import SPECS as SHARDING
    from placeopt.solvers.splits import SPECS as SPLITS
    from placeopt.solving.registry import SolverSpec

    portfolio = SolverSpec(
        "portfolio",
        f"{__name__}.portfolio:Portfolio",
        "placement",
        SAMPLED,
        "heuristics, annealing, passes of a learned list and large neighbourhood search, which "
        "share the best placement",
        use="the default",
    )
    searches = *SEARCH, portfolio
    placed = (*HEURISTICS, *EXACT, *SPLITS, *searches, *POLICY)
    return (*placed, *DEGREE, *SHARDING, *PLANNING, *PIPELINES)


def first_run(group: str) -> Callable[[], None]:
    """Return what calls every kernel of a group."""
    from placeopt.solvers import first_runs

    return getattr(first_runs, group.replace("-", "_"))


def __getattr__(name: str) -> Any:
    """Return the registered solver class called `name` (CapWords), imported on demand."""
    from placeopt.solving.registry import known_specs, solver_class

    for spec in known_specs().values():
        if spec.target.rpartition(":")[2] == name:
            return solver_class(spec.name, spec.kind)
    raise AttributeError(f"module 'placeopt.solvers' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the classes of all registered solvers."""
    from placeopt.solving.registry import specs

    return sorted({spec.target.rpartition(":")[2] for spec in specs().values()})
