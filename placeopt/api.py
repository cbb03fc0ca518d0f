"""The two calls most scripts need: `load` a problem and `solve` it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.budget import Budget
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.solving.registry import make_solver, specs

if TYPE_CHECKING:
    from placeopt.makespan.bounds import BoundReport
    from placeopt.model.cluster import Cluster
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress, Solver

DEFAULT_SECONDS = 10.0
"""Time limit of `solve` when nothing else limits the search."""


def load_graph(
    source: str | Path | OpGraph, *, format: str | None = None, training: bool = False, **options: Any
) -> tuple[OpGraph, Cluster | None]:
    """Return the graph of a source, and the devices that came with it, if any.

    Parameters
    ----------
    source : a file, `onnx:NAME`, `gen:NAME?...`, or an OpGraph.
    format : reader to use instead of the one detected by content.
    training : derive the backward graph.
    options : passed to the reader (for ONNX: dims, fuse, fold).
    """
    if isinstance(source, OpGraph):
        graph = source
    elif str(source).startswith("gen:"):
        from placeopt.instances.generators import generate

        graph = generate(str(source))
    else:
        from placeopt.instances.readers import read_bundled

        # Profiles bring measured backward times: the reader knows whether to use or to derive them.
        return read_bundled(source, format=format, training=training or None, **options)
    if training:
        if graph.backward.any():
            raise InputError(f"graph '{graph.name}' has backward ops already; load it without training=True")
        from placeopt.instances.training import training_graph

        graph = training_graph(graph)
    return graph, None


def load(
    source: str | Path | OpGraph | PlacementProblem,
    cluster: str | Path | Cluster | None = None,
    *,
    objective: str | None = None,
    format: str | None = None,
    training: bool = False,
    memory: str | None = None,
    contiguity: str | None = None,
    pipeline: str | None = None,
    slots: int | None = None,
    **options: Any,
) -> PlacementProblem:
    """Return a placement problem: a computation graph on a cluster.

    Parameters
    ----------
    source : a file (reader chosen by content), `onnx:NAME`, `gen:NAME?...`, an OpGraph or a problem saved as JSON.
    cluster : a name such as "4xA100" (see `placeopt clusters`), a TOML file or a Cluster; not needed where the
        file carries its own devices.
    objective : "makespan" (default), "period" or "latency".
    training : derive the backward graph first.
    memory, contiguity, pipeline, slots : see PlacementProblem.
    options : passed to the reader.

    Raises
    ------
    InputError
        If something is unreadable or unknown; one line that says what to change.
    """
    choices = {
        "objective": objective, "memory": memory, "contiguity": contiguity, "pipeline": pipeline, "slots": slots
    }  # fmt: skip
    fields = {key: value for key, value in choices.items() if value is not None}
    if isinstance(source, str | Path) and not str(source).startswith(("gen:", "onnx:")):
        from placeopt.io.serialize import load as load_json

        if _holds_problem(source):
            source = load_json(source, "problem")
    if isinstance(source, PlacementProblem):
        if cluster is not None:
            raise InputError(f"problem '{source.name}' has its devices already; leave out cluster='{cluster}'")
        return source.replace(**fields) if fields else source
    graph, bundled = load_graph(source, format=format, training=training, **options)
    if cluster is not None:
        from placeopt.instances.clusters import make_cluster

        devices = make_cluster(cluster)
    elif bundled is not None:
        devices = bundled
    else:
        raise InputError(f"graph '{graph.name}' needs devices: give cluster='4xA100' or another ('placeopt clusters')")
    from placeopt.model.cost_model import lower

    return lower(graph, devices, **fields)


def _holds_problem(path: str | Path) -> bool:
    """Whether a file says, in its first bytes, that it is a PlacementProblem saved by placeopt."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(4096)
    except OSError:
        return False  # the reader says what is wrong with it
    return re.search(rb'"format"\s*:\s*"placeopt/problem"', head) is not None


def solve(
    problem: Any,
    solver: str | Solver | None = None,
    *,
    seconds: float | None = None,
    evaluations: int | None = None,
    target: int | None = None,
    seed: int = 0,
    initial: Placement | Any = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Result[Any]:
    """Solve a problem of any type.

    Parameters
    ----------
    problem : PlacementProblem, PipelineProblem or JobStreamProblem.
    solver : a registered name or a configured solver; by default the portfolio (makespan), the exact DP
        (period), cp-sat (latency) or the repetend search (pipelines).
    seconds, evaluations, target : the budget; 10 seconds if nothing else limits the search.
    seed : same seed and evaluation budget, same answer.
    initial : a solution to start from; the result is never worse.
    on_progress : called with a Progress (time, evaluations, incumbent, bound) while the solver runs.
    options : fields of the named solver, for instance `num_workers=2`.

    Returns
    -------
    The solver's Result; for placements, with the quick combinatorial bounds where the solver proved less.
    """
    kind = problem_kind(problem)
    if solver is None:
        solver = default_solver(problem)
    if isinstance(solver, str):
        solver = make_solver(solver, kind, **options)
    elif options:
        raise InputError(f"options {', '.join(options)} belong into the solver object, which is configured already")
    check_solver(solver, problem)
    if isinstance(initial, list | tuple) or (initial is not None and hasattr(initial, "dtype")):
        initial = Placement(np.asarray(initial))
    budget = Budget(seconds, evaluations, target)
    if budget.seconds is None and budget.evaluations is None:
        budget = Budget(DEFAULT_SECONDS, None, target)
    result = solver.solve(problem, budget, seed=seed, initial=initial, on_progress=on_progress)
    measured = callable(getattr(solver, "objective", None))  # bounds hold for the model, not for the caller's clock
    if kind == "placement" and result.solution is not None and result.status != "optimal" and not measured:
        from placeopt.makespan.bounds import bound

        result = with_bound(result, bound(problem, seconds=0.0, upper=result.objective))
    return result


def with_bound(result: Result[Any], report: BoundReport) -> Result[Any]:
    """Return the result with the lower bound of `report` where that is better."""
    if report.value <= result.lower_bound:
        return result
    proved = result.objective is not None and result.objective <= report.value
    return replace(
        result,
        lower_bound=report.value,
        bound_method=report.method,
        status="optimal" if proved else result.status,
        stop_reason="proved" if proved and result.stop_reason == "converged" else result.stop_reason,
    )


def problem_kind(problem: Any) -> str:
    """Return "placement", "pipeline" or "jobs"."""
    kinds = {"PlacementProblem": "placement", "PipelineProblem": "pipeline", "JobStreamProblem": "jobs"}
    for cls in type(problem).__mro__:
        if cls.__name__ in kinds:
            return kinds[cls.__name__]
    raise InputError(
        f"expected a problem (po.load, po.load_pipeline, po.load_stream), received {type(problem).__name__}"
    )


def default_solver(problem: Any) -> str:
    """Name of the solver used when none is given."""
    kind = problem_kind(problem)
    if kind == "pipeline":
        return "repetend"
    if kind == "jobs":
        return "feasible-first"
    return {"makespan": "portfolio", "period": "ideal-dp", "latency": "cp-sat"}[problem.objective]


def check_solver(solver: Solver, problem: Any) -> None:
    """Refuse a registered solver for an objective it does not accept."""
    spec = specs(problem_kind(problem)).get(solver.name)
    if spec is not None and problem.objective not in spec.objectives:
        raise InputError(
            f"solver '{spec.name}' accepts the objective {' or '.join(spec.objectives)}, received "
            f"'{problem.objective}' of problem '{problem.name}'"
        )
