"""placeopt: find, compare and certify device placements and pipeline schedules of ML computation graphs.

    import placeopt as po
    problem = po.load("onnx:inception_v1", cluster="4xA100")
    result = po.solve(problem, seconds=10)
    report = po.verify(problem, result.solution)

Everything is imported on first use, so that `import placeopt` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "InputError": "errors",
    "InfeasiblePlacementError": "errors",
    "OpGraph": "graph",
    "Cluster": "cluster",
    "Device": "cluster",
    "Link": "cluster",
    "PlacementProblem": "problem",
    "Placement": "solution",
    "Schedule": "solution",
    "Budget": "solution",
    "Result": "solution",
    "TracePoint": "solution",
    "Solver": "solver",
    "register": "solver",
    "make_solver": "solver",
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "evaluate_batch": "evaluation",
    "INFEASIBLE": "evaluation",
    "placement_violations": "validate",
    "schedule_violations": "validate",
    "bound": "bounds",
    "verify": "certificate",
    "load": "api",
    "solve": "api",
    "make_cluster": "instances.clusters",
    "read_graph": "instances.readers",
    "generate": "instances.generators",
    "load_pipeline": "schedules.problem",
    "load_stream": "streams",
}
_MODULES = ("bounds", "instances", "schedules", "solvers", "streams", "experiments", "plotting", "serialize")

__all__ = ["__version__", *_EXPORTS, *_MODULES]

if TYPE_CHECKING:
    from placeopt import experiments, instances, plotting, schedules, serialize, solvers, streams
    from placeopt.api import load, solve
    from placeopt.bounds import bound
    from placeopt.certificate import verify
    from placeopt.cluster import Cluster, Device, Link
    from placeopt.errors import InfeasiblePlacementError, InputError
    from placeopt.evaluation import INFEASIBLE, Evaluation, evaluate, evaluate_batch
    from placeopt.graph import OpGraph
    from placeopt.instances.clusters import make_cluster
    from placeopt.instances.generators import generate
    from placeopt.instances.readers import read_graph
    from placeopt.problem import PlacementProblem
    from placeopt.schedules.problem import load_pipeline
    from placeopt.solution import Budget, Placement, Result, Schedule, TracePoint
    from placeopt.solver import Solver, make_solver, register
    from placeopt.streams import load_stream
    from placeopt.validate import placement_violations, schedule_violations


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _EXPORTS:
        value = getattr(importlib.import_module(f"placeopt.{_EXPORTS[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"placeopt.{name}")
    else:
        raise AttributeError(f"module 'placeopt' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
