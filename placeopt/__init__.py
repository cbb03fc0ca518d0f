"""placeopt: find, compare and certify device placements and pipeline schedules of ML computation
graphs.

    import placeopt as po
    problem = po.load("onnx:inception_v1", cluster="4xA100")
    result = po.solve(problem, seconds=10)
    report = po.verify(problem, result)

Everything is imported on first use, so that `import placeopt` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.model.lazy import on_first_use
from placeopt.version import __version__

_HOMES = {
    "model.errors": "InputError InfeasiblePlacementError InfeasibleProblemError MissingExtraError "
    "Refused SolverError",
    "model.graph": "OpGraph",
    "model.cluster": "Cluster Device Link",
    "model.problem": "PlacementProblem",
    "model.placement": "Placement Schedule",
    "model.result": "Budget Result TracePoint",
    "solving.registry": "Solver register make_solver",
    "solving.base": "SearchSolver",
    "solving.options": "option",
    "solving.run": "run",
    "model.objective": "Objective register_objective",
    "makespan.evaluate": "Evaluation evaluate evaluate_batch INFEASIBLE",
    "makespan.judge": "placement_violations schedule_violations",
    "solving.bound": "bound",
    "certify.certificate": "Certificate",
    "certify.verify": "verify recheck",
    "exports.export": "export",
    "api": "load solve",
    "instances.clusters": "make_cluster",
    "instances.readers": "read_graph",
    "instances.generators": "generate",
    "schedules.problem": "PipelineProblem",
    "schedules.solution": "PipelineSchedule",
    "streams.problem": "JobStreamProblem",
    "streams.simulator": "Episode",
    "sharding.problem": "ShardingProblem ShardingSolution",
    "plans.plan": "TrainingPlan",
    "schedules.sources": "load_pipeline",
    "streams": "load_stream",
    "planning": "plan",
}
_MODULES = {
    **{x: x for x in ("instances", "schedules", "solvers", "streams", "experiments", "plotting")},
    "bounds": "makespan.bounds",
    "serialize": "io.serialize",
}

__getattr__, _names = on_first_use(__name__, _HOMES, _MODULES)

__all__ = ["__version__", *_names]

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


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
