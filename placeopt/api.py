"""The two calls most scripts need: `load` a problem of any type and `solve` it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from placeopt.instances import sources
from placeopt.io.serialize import load as load_json
from placeopt.model.errors import InputError
from placeopt.model.files import Data, says_format
from placeopt.model.objective import default_solver, objective_names, objective_of
from placeopt.model.placement import Placement
from placeopt.model.result import Budget, Result
from placeopt.sharding.contest_format import holds_sharding, read as read_sharding
from placeopt.sharding.problem import ShardingProblem
from placeopt.solving.registry import Solver, make_solver
from placeopt.solving.run import run
from placeopt.solving.tracker import OnProgress
from placeopt.splits.problem import SplitProblem

SPLIT_OPTIONS = {"max_replicas": "max_replicas", "device_groups": "groups", "overlap": "overlap"}
"""Options of `load` that make a split problem, with its fields."""

SAVED = {
    "step-plan-problem": "planning problem, which has its devices and costs",
    "sample-plan-problem": "planning problem, which has its devices and costs",
    "split": "split problem, which has devices, replicas and groups",
}
"""Formats of files of a problem that is taken as it is, and what it has."""

DEFAULT_SECONDS = 10.0
"""Time limit of `solve` when nothing else limits the search."""


def load(source: Any, cluster: Any = None, **options: Any) -> Any:
    """Load a problem from a file, a generator, a graph, or a shape or stream by name.

    Parameters
    ----------
    source : a file, a generator, an OpGraph or a problem for a placement (see
        `placeopt.instances.sources.load`, which
        also says what the options are); `shape:NAME?...` for a pipeline (`load_pipeline`);
        `stream:NAME?...` for a job stream (`load_stream`); a file of a sharding problem, in the
        contest's format or ours, plain or gzip; a planning problem as `placeopt plan --out` writes
        it.
    cluster : the devices of a placement, where the source does not bring its own.
    """
    kind = source.partition(":")[0] if isinstance(source, str) else ""
    if kind not in ("shape", "stream"):
        if saved := _saved_format(source):
            for key in (*options, *(("cluster",) if cluster is not None else ())):
                raise InputError(f"'{source}' is a {SAVED[saved]} already; leave out '{key}'")
            return load_json(source, saved)
        if isinstance(source, ShardingProblem) or holds_sharding(source):
            return _load_sharding(source, cluster, options)
        return _load_placement(source, cluster, options)
    if cluster is not None:
        raise InputError(f"'{source}' brings its own devices; leave out cluster='{cluster}'")
    if kind == "shape":
        from placeopt.schedules.sources import load_pipeline as read

        taken = {"memory", "micro_batches", "mode"}
    else:
        from placeopt.streams.sources import load_stream as read  # type: ignore[assignment]

        taken = set(inspect.signature(read).parameters) - {"source"}
    for key in options:
        if key not in taken:
            raise InputError(
                f"'{source}': option '{key}' is for placements; a {kind} takes "
                f"{', '.join(sorted(taken))}"
            )
    return read(source, **options)


def _saved_format(source: Any) -> str:
    """Return the format of a file of a problem that is taken as it was saved, "" for other
    sources.
    """
    if not isinstance(source, str | Path):
        return ""
    found = (name for name in SAVED if says_format(source, f"placeopt/{name}", within=256))
    return next(found, "")


def _load_placement(source: Any, cluster: Any, options: Data) -> Any:
    """Return a placement, or the split problem that some options ask for."""
    wanted = {field: options.pop(key) for key, field in SPLIT_OPTIONS.items() if key in options}
    if not wanted:
        return sources.load(source, cluster, **options)
    for key, expected in (("objective", objective_names("split")), ("contiguity", ("chain",))):
        if options.setdefault(key, expected[0]) not in expected:
            raise InputError(
                f"replicas, groups and overlap are for {key} {expected[0]}, received "
                f"'{options[key]}'"
            )
    return SplitProblem(sources.load(source, cluster, **options), **wanted)


def _load_sharding(source: Any, cluster: Any, options: Data) -> ShardingProblem:
    """Return the problem of a sharding file, which takes no devices and no options but the size
    limit.
    """
    if cluster is not None:
        raise InputError(
            f"'{source}' is a sharding problem, which has its costs already; leave out "
            f"cluster='{cluster}'"
        )
    for key in options:
        if key != "max_bytes":
            raise InputError(
                f"'{source}': option '{key}' is for placements; a sharding file takes max_bytes"
            )
    return source if isinstance(source, ShardingProblem) else read_sharding(source, **options)


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
    problem : PlacementProblem, PipelineProblem, JobStreamProblem or ShardingProblem.
    solver : a registered name or a configured solver; by default the portfolio (makespan), the
        exact DP
        (period of a chain of stages), cp-sat (period otherwise, latency), the repetend search
        (pipelines) or sharding-portfolio (sharding).
    seconds, evaluations, target : the budget; 10 seconds if nothing else limits the search.
    seed : same seed and evaluation budget, same answer.
    initial : a solution to start from, in any form that `verify` takes; the result is never worse.
    on_progress : called with a Progress (time, evaluations, incumbent, bound) while the solver
        runs.
    options : fields of the named solver, for instance `num_workers=2`.

    Returns
    -------
    The solver's Result; for placements, with the quick combinatorial bounds where the solver proved
    less.
    """
    if solver is None:
        solver = default_solver(problem)
    if isinstance(solver, str):
        solver = make_solver(solver, objective_of(problem).kind, **options)
    elif options:
        raise InputError(
            f"options {', '.join(options)} belong into the solver object, which is configured "
            "already"
        )
    if initial is not None:
        from placeopt.certify.verify import read_solution

        initial = read_solution(problem, initial).solution
    if seconds is None and evaluations is None:
        seconds = DEFAULT_SECONDS
    budget = Budget(seconds, evaluations, target)
    return run(
        problem, solver, budget, seed=seed, initial=initial, on_progress=on_progress, bound=True
    )


__all__ = ["DEFAULT_SECONDS", "load", "solve"]
