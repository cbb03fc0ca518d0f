"""Solvers: heuristics, exact methods, search and policies behind one interface.

The classes are imported on first use: `placeopt.solvers.CpSat(num_workers=2)` imports ortools only
then.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return the registered solver class called `name` (CapWords), imported on demand."""
    from placeopt.solving.registry import solver_class, specs

    for kind in ("placement", "pipeline", "jobs", "sharding", "plan"):
        for spec in specs(kind).values():
            if spec.target.rpartition(":")[2] == name:
                return solver_class(spec.name, kind)
    raise AttributeError(f"module 'placeopt.solvers' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the classes of all registered solvers."""
    from placeopt.solving.registry import specs

    return sorted({spec.target.rpartition(":")[2] for spec in specs().values()})
