"""placeopt: find, compare and certify device placements and pipeline schedules of ML computation
graphs.

    import placeopt as po
    problem = po.load("onnx:inception_v1", cluster="4xA100")
    result = po.solve(problem, seconds=10)
    report = po.verify(problem, result)

Everything is imported on first use, so that `import placeopt` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from placeopt.version import __version__

_EXPORTS = {
    "InputError": "model.errors",
    "InfeasiblePlacementError": "model.errors",
    "Refused": "model.errors",
    "SolverError": "model.errors",
    "OpGraph": "model.graph",
    "Cluster": "model.cluster",
    "Device": "model.cluster",
    "Link": "model.cluster",
    "PlacementProblem": "model.problem",
    "Placement": "model.placement",
    "Schedule": "model.placement",
    "Budget": "model.result",
    "Result": "model.result",
    "TracePoint": "model.result",
    "Solver": "solving.registry",
    "SearchSolver": "solving.base",
    "option": "solving.options",
    "run": "solving.run",
    "Objective": "model.objective",
    "register_objective": "model.objective",
    "register": "solving.registry",
    "make_solver": "solving.registry",
    "Evaluation": "makespan.evaluate",
    "evaluate": "makespan.evaluate",
    "evaluate_batch": "makespan.evaluate",
    "INFEASIBLE": "makespan.evaluate",
    "placement_violations": "makespan.judge",
    "schedule_violations": "makespan.judge",
    "bound": "solving.bound",
    "Certificate": "certify.certificate",
    "verify": "certify.verify",
    "recheck": "certify.verify",
    "export": "exports.export",
    "load": "api",
    "solve": "api",
    "make_cluster": "instances.clusters",
    "read_graph": "instances.readers",
    "generate": "instances.generators",
    "PipelineProblem": "schedules.problem",
    "PipelineSchedule": "schedules.solution",
    "JobStreamProblem": "streams.problem",
    "Episode": "streams.simulator",
    "ShardingProblem": "sharding.problem",
    "ShardingSolution": "sharding.problem",
    "TrainingPlan": "plans.plan",
    "InfeasibleProblemError": "model.errors",
    "MissingExtraError": "model.errors",
    "load_pipeline": "schedules.sources",
    "load_stream": "streams",
    "plan": "planning",
}
_MODULES = {
    **{x: x for x in ("instances", "schedules", "solvers", "streams", "experiments", "plotting")},
    "bounds": "makespan.bounds",
    "serialize": "io.serialize",
}

__all__ = ["__version__", *_EXPORTS, *_MODULES]

if TYPE_CHECKING:
    from placeopt import (
        experiments as experiments,
        instances as instances,
        plotting as plotting,
        schedules as schedules,
        solvers as solvers,
        streams as streams,
    )
    from placeopt.api import load as load, solve as solve
    from placeopt.certify.certificate import Certificate as Certificate
    from placeopt.certify.verify import recheck as recheck, verify as verify
    from placeopt.exports.export import export as export
    from placeopt.instances.clusters import make_cluster as make_cluster
    from placeopt.instances.generators import generate as generate
    from placeopt.instances.readers import read_graph as read_graph
    from placeopt.io import serialize as serialize
    from placeopt.makespan import bounds as bounds
    from placeopt.makespan.evaluate import (
        INFEASIBLE as INFEASIBLE,
        Evaluation as Evaluation,
        evaluate as evaluate,
        evaluate_batch as evaluate_batch,
    )
    from placeopt.makespan.judge import (
        placement_violations as placement_violations,
        schedule_violations as schedule_violations,
    )
    from placeopt.model.cluster import Cluster as Cluster, Device as Device, Link as Link
    from placeopt.model.errors import (
        InfeasiblePlacementError as InfeasiblePlacementError,
        InfeasibleProblemError as InfeasibleProblemError,
        InputError as InputError,
        MissingExtraError as MissingExtraError,
        Refused as Refused,
        SolverError as SolverError,
    )
    from placeopt.model.graph import OpGraph as OpGraph
    from placeopt.model.objective import (
        Objective as Objective,
        register_objective as register_objective,
    )
    from placeopt.model.placement import Placement as Placement, Schedule as Schedule
    from placeopt.model.problem import PlacementProblem as PlacementProblem
    from placeopt.model.result import Budget as Budget, Result as Result, TracePoint as TracePoint
    from placeopt.planning import plan as plan
    from placeopt.plans.plan import TrainingPlan as TrainingPlan
    from placeopt.schedules.problem import PipelineProblem as PipelineProblem
    from placeopt.schedules.solution import PipelineSchedule as PipelineSchedule
    from placeopt.schedules.sources import load_pipeline as load_pipeline
    from placeopt.sharding.problem import (
        ShardingProblem as ShardingProblem,
        ShardingSolution as ShardingSolution,
    )
    from placeopt.solving.base import SearchSolver as SearchSolver
    from placeopt.solving.bound import bound as bound
    from placeopt.solving.options import option as option
    from placeopt.solving.registry import (
        Solver as Solver,
        make_solver as make_solver,
        register as register,
    )
    from placeopt.solving.run import run as run
    from placeopt.streams import load_stream as load_stream
    from placeopt.streams.problem import JobStreamProblem as JobStreamProblem
    from placeopt.streams.simulator import Episode as Episode


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _EXPORTS:
        value = getattr(importlib.import_module(f"placeopt.{_EXPORTS[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"placeopt.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'placeopt' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
