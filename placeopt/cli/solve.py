"""`placeopt solve`: run solvers, compare them, save the best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeopt.cli import common
from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from placeopt.model.bound import BoundReport
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress, Progress

COMPARISON = {
    "makespan": ("single-device", "round-robin", "m-etf", "heft", "etf", "critical-path", "edge-zeroing", "portfolio"),
    "period": ("linear-dp", "ideal-dp"),
    "latency": ("cp-sat",),
}
"""What `placeopt solve` runs when no solver is named; the search among them gets the time limit."""


def solve_command(
    source: common.Source,
    cluster: common.ClusterOption = None,
    solver: Annotated[
        list[str] | None, typer.Option("--solver", "-s", help="Solver to run; repeatable or separated by commas.")
    ] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", "-t", min=0, help="Time limit of each search.")] = None,
    evaluations: Annotated[int | None, typer.Option("--evaluations", min=1, help="Evaluations of each search.")] = None,
    target: Annotated[int | None, typer.Option("--target", help="Stop at this objective (ticks).")] = None,
    seed: common.Seed = 0,
    objective: common.Objective = "makespan",
    initial: Annotated[Path | None, typer.Option("--initial", help="Placement file to start from.")] = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="Trained policy file to place with.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="KEY=VALUE of the (single) named solver. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for placement, results, Gantt, trace.")
    ] = None,
    bound_seconds: Annotated[float, typer.Option("--bound-seconds", min=0, help="Time for the lower bound.")] = 5.0,
    format: common.Format = None,
    training: common.Training = False,
    dim: common.Dim = None,
    memory: common.Memory = None,
    contiguity: common.Contiguity = None,
    pipeline: common.Pipeline = None,
    slots: common.Slots = None,
    json: common.Json = False,
) -> None:
    """Place a model on a cluster, compare solvers, prove a bound.

    Example: `placeopt solve onnx:inception_v1 --cluster 4xA100 --out out/`
    """
    from placeopt.api import DEFAULT_SECONDS
    from placeopt.io.placement_file import read_placement
    from placeopt.model.budget import Budget
    from placeopt.solving.bound import bound

    folder = common.out_folder(out)
    problem = common.load_problem(
        source, cluster, objective=objective, format=format, training=training, dim=dim, memory=memory,
        contiguity=contiguity, pipeline=pipeline, slots=slots,
    )  # fmt: skip
    runs = _runs(problem, solver, common.options(option), policy)
    start = None if initial is None else read_placement(initial, problem)
    if seconds is None and evaluations is None:
        seconds = DEFAULT_SECONDS
    budget = Budget(seconds, evaluations, target)

    results: list[Result[Any]] = []
    failures: list[tuple[str, str]] = []
    report: BoundReport | None = None
    interrupted = False
    with _progress(problem, json) as (announce, on_progress):
        try:
            announce("compiling")
            _warm_up(problem, runs)
            announce("lower bound")
            report = bound(problem, seconds=bound_seconds)
            for name, run in runs:
                announce(name)
                try:
                    result = run.solve(problem, budget, seed=seed, initial=start, on_progress=on_progress)
                except InputError as error:
                    if len(runs) == 1:
                        raise
                    failures.append((name, str(error)))
                    continue
                results.append(result.with_bound(report))
                if folder is not None:
                    _save_result(folder, results[-1])
                if result.stop_reason == "interrupted":
                    interrupted = True
                    break
        except KeyboardInterrupt:
            interrupted = True
    if not results:
        raise InputError("interrupted before any result" if interrupted else f"no solver ran: {failures[0][1]}")
    if report is not None:
        # A bound that one solver proved holds for all of them.
        results = _share_bounds(results)
    best = _best(results)
    single = None if best is None else _single_device(problem, results)
    files = [] if folder is None or best is None else _save_best(folder, problem, results, best, objective)
    if json:
        common.print_json(_json(problem, results, failures, best, single, files, solver, report))
    else:
        _print(problem, results, failures, best, single, files, report)
    if interrupted:
        raise typer.Exit(130)
    if best is None:
        raise typer.Exit(1)


def _runs(
    problem: PlacementProblem, named: list[str] | None, options: dict[str, Any], policy: Path | None
) -> list[tuple[str, Any]]:
    """Return the (name, solver) pairs to run; every name is checked before anything runs."""
    from placeopt.solving.registry import make_solver, specs
    from placeopt.solving.run import check_accepts

    names = [part.strip() for value in named or [] for part in value.split(",") if part.strip()]
    if policy is not None:
        options = {**options, "policy": str(policy)}
        names = names or ["dual-policy"]
    if options and len(names) != 1:
        raise InputError("--option and --policy need exactly one --solver, to know which one they configure")
    if not names:
        known = specs("placement")
        names = [name for name in COMPARISON[problem.objective] if name in known]
    runs = []
    for name in dict.fromkeys(names):
        solver = make_solver(name, **options)
        check_accepts(solver, problem)
        runs.append((name, solver))
    return runs


def _warm_up(problem: PlacementProblem, runs: list[tuple[str, Any]]) -> None:
    """Compile the kernels of our own solvers on a small problem, so that no one's runtime contains it.

    The first run after an installation takes a minute here; later ones load what is compiled.
    """
    from placeopt.model.budget import Budget
    from placeopt.model.problem import PlacementProblem as Problem
    from placeopt.solvers.portfolio import HEURISTICS
    from placeopt.solving.registry import make_solver, specs

    if problem.objective != "makespan":
        return
    known = specs("placement")
    names = [name for name, run in runs if name in known and type(run).__module__.startswith("placeopt.")]
    if "portfolio" in names:
        names += [*HEURISTICS, "cross-entropy", "annealing", "lns"]
    fork = [(0, v, 3) for v in range(1, 6)] + [(v, 6, 3) for v in range(1, 6)]
    small = Problem.from_edges([[v + 2] * 2 for v in range(7)], fork, name="warm-up")
    for name in dict.fromkeys(names):
        if "makespan" in known[name].objectives:
            with suppress(InputError):  # what a solver refuses it will say about the problem itself
                make_solver(name).solve(small, Budget(0.02, 64), seed=0)


@contextmanager
def _progress(problem: PlacementProblem, quiet: bool) -> Iterator[tuple[Any, OnProgress | None]]:
    """Show solver, time, incumbent, bound and gap on a terminal; nothing elsewhere."""
    with common.progress(quiet) as (announce, show):

        def report(progress: Progress) -> None:
            words = f"{progress.evaluations} evaluations"
            if progress.incumbent is not None:
                gap = (progress.incumbent - progress.lower_bound) / max(1, progress.incumbent)
                words = (f"incumbent {common.time_text(progress.incumbent, problem.tick_seconds)}  "
                         f"bound {common.time_text(progress.lower_bound, problem.tick_seconds)}  "
                         f"gap {common.percent(gap)}  {words}")  # fmt: skip
            show(words)

        yield announce, report


def _share_bounds(results: list[Result[Any]]) -> list[Result[Any]]:
    from placeopt.model.bound import BoundReport

    strongest = max(results, key=lambda r: r.lower_bound)
    report = BoundReport(strongest.lower_bound, strongest.bound_method)
    return [result.with_bound(report) for result in results]


def _best(results: list[Result[Any]]) -> int | None:
    """Index of the best result, the earliest among equals; None if no solver found a placement."""
    found = [i for i, result in enumerate(results) if result.objective is not None]
    return min(found, key=lambda i: (results[i].objective, i)) if found else None


def _single_device(problem: PlacementProblem, results: list[Result[Any]]) -> int | None:
    """Makespan of the best single device, whether or not it was among the solvers; None if no device fits."""
    if problem.objective != "makespan":
        return None
    for result in results:
        if result.solver == "single-device":
            return result.objective
    from placeopt.model.budget import Budget
    from placeopt.solving.registry import make_solver

    result = make_solver("single-device").solve(problem, Budget(evaluations=problem.num_devices), seed=0)
    return result.objective


def _devices_used(result: Result[Any]) -> int:
    return 0 if result.solution is None else len(set(result.solution.device.tolist()))


def _save_result(folder: Path, result: Result[Any]) -> None:
    from placeopt.io.serialize import save

    (folder / "results").mkdir(exist_ok=True)
    save(result, folder / "results" / f"{result.solver}.json")


def _save_best(
    folder: Path, problem: PlacementProblem, results: list[Result[Any]], best: int, objective: str
) -> list[str]:
    from placeopt.io.placement_file import write_placement
    from placeopt.io.serialize import save
    from placeopt.plotting.files import write_pictures

    for result in results:
        _save_result(folder, result)
    result = results[best]
    assert result.solution is not None
    files = [
        write_placement(folder / "placement.json", problem, result.solution, result.queue or None),
        save(result, folder / "result.json"),
    ]
    if objective == "makespan":
        files += write_pictures(folder, problem, result.solution, result.queue or None, result.lower_bound)
    return [str(path) for path in files]


def _json(
    problem: PlacementProblem,
    results: list[Result[Any]],
    failures: list[tuple[str, str]],
    best: int | None,
    single: int | None,
    files: list[str],
    named: list[str] | None,
    report: BoundReport | None,
) -> dict[str, Any]:
    """One result object for one named solver; for several, the list and the best one's fields beside it."""
    from placeopt.io.serialize import to_dict

    rows = [{**to_dict(result), "devices_used": _devices_used(result), "single_device": single} for result in results]
    extra = {"bounds": {} if report is None else report.bounds, "files": files}
    if named and len(results) + len(failures) == 1:
        return {**rows[0], **extra}
    head = rows[best] if best is not None else rows[0]
    failed = [{"solver": name, "error": message} for name, message in failures]
    return {**head, **extra, "results": rows, "best": best, "failures": failed}


def _print(
    problem: PlacementProblem,
    results: list[Result[Any]],
    failures: list[tuple[str, str]],
    best: int | None,
    single: int | None,
    files: list[str],
    report: BoundReport | None,
) -> None:
    from rich.table import Table

    say = common.console().print
    tick = problem.tick_seconds
    say(f"{problem.name}: {problem.num_ops} ops, {problem.num_edges} edges, {problem.num_devices} devices")
    if report is not None and report.infeasible:
        say(f"infeasible: {report.infeasible}")
    view = Table(
        "solver", problem.objective, "gap", "devices", "status", "evaluations", "runtime", box=None, pad_edge=False
    )
    for column in view.columns[1:4] + view.columns[5:]:
        column.justify = "right"
    for i, result in enumerate(results):
        mark = " *" if i == best else ""
        view.add_row(
            result.solver + mark, common.time_text(result.objective, tick), common.percent(result.gap),
            str(_devices_used(result) or "-"), result.status, str(result.evaluations), f"{result.runtime:.2f} s",
        )  # fmt: skip
    say(view)
    for result in results:
        if result.message:
            say(f"{result.solver}: {result.message}")
    for name, message in failures:
        say(f"{name}: not run: {message}")
    if best is None:
        return
    winner = results[best]
    assert winner.objective is not None
    say(f"\nbest: {winner.solver}, {problem.objective} {common.time_text(winner.objective, tick)} "
        f"({winner.objective} ticks{', ' + winner.queue + ' execution' if winner.queue else ''})")  # fmt: skip
    say(f"proven lower bound: {common.time_text(winner.lower_bound, tick)} by {winner.bound_method}; "
        + ("the placement is optimal" if winner.status == "optimal" else f"gap {common.percent(winner.gap)}"))  # fmt: skip
    if single is not None:
        if _devices_used(winner) == 1:
            say("one device is fastest here: sending tensors costs more than a second device saves")
        else:
            say(f"one device alone: {common.time_text(single, tick)}, {single / max(1, winner.objective):.2f} x slower "
                f"than {_devices_used(winner)} devices")  # fmt: skip
    elif problem.objective == "makespan":
        say("no single device can hold the whole model")
    for path in files:
        say(f"wrote {path}")
