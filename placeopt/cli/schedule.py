"""`placeopt schedule` and `placeopt shapes`: pipeline schedules on the command line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeopt.cli import common
from placeopt.io import serialize
from placeopt.model.errors import InputError, Refused
from placeopt.model.result import Result
from placeopt.plotting.pipeline import draw_pipeline
from placeopt.schedules import codecs  # noqa: F401 (registers the files of schedules)
from placeopt.schedules.from_model import pipeline_of_model
from placeopt.schedules.joint import choose_pipeline
from placeopt.schedules.shapes import SHAPES, ShapeOptions, shape
from placeopt.schedules.solution import PipelineSchedule
from placeopt.schedules.solve import schedule_result
from placeopt.schedules.sources import load_pipeline
from placeopt.schedules.torch_csv import write_torch_csv
from placeopt.schedules.trace import write_starts_csv, write_trace
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from placeopt.schedules.joint import JointResult
    from placeopt.schedules.problem import PipelineProblem


def schedule_command(
    source: Annotated[
        str,
        typer.Argument(
            help="shape:V|X|M|NN|K|interleaved|wave?devices=4&..., a .toml, .json or .csv block table, or a model "
            "(file, onnx:NAME, gen:NAME) with --cluster.",
            show_default=False,
        ),
    ],
    solver: Annotated[
        list[str] | None, typer.Option("--solver", "-s", help="Solver to run; repeatable or separated by commas.")
    ] = None,
    micro_batches: Annotated[
        int | None, typer.Option("--micro-batches", "-n", min=1, help="Micro-batches of the finite schedule.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Capacity of every device, or one per device: 4,4,3,3.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", "-t", min=0, help="Time limit of each solver.")] = 60.0,
    repetend_size: Annotated[
        int, typer.Option("--repetend-size", "-k", min=0, help="Micro-batches per repetend (K); 0 tries 1 to 4.")
    ] = 1,
    mode: Annotated[str | None, typer.Option("--mode", help="train or infer.")] = None,
    cluster: common.ClusterOption = None,
    split: Annotated[bool, typer.Option("--split", help="Model: cut backward passes into I and W.")] = False,
    recompute: Annotated[bool, typer.Option("--recompute", help="Model: recompute activations.")] = False,
    joint: Annotated[
        bool, typer.Option("--joint", help="Model: choose stages, shape, micro-batch size and recomputation, too.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="With --joint: samples per step.")] = 64,
    micro_batch_sizes: Annotated[
        str, typer.Option("--micro-batch-sizes", help="With --joint: samples per micro-batch to try.")
    ] = "1,2,4",
    shapes: Annotated[str, typer.Option("--shapes", help="With --joint: shapes to try.")] = "V,wave,X,M,K",
    option: Annotated[
        list[str] | None, typer.Option("--option", help="KEY=VALUE of the (single) named solver. Repeatable.")
    ] = None,
    initial: Annotated[
        Path | None, typer.Option("--initial", help="Schedule to start from: a schedule.json of --out.", show_default=False)
    ] = None,
    seed: common.Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for picture, trace, PyTorch CSV, starts and JSON.")
    ] = None,
    json: common.Json = False,
) -> None:
    """Schedule micro-batches on pipeline stages: shortest repeating pattern, proved; or a known schedule.

    With --joint the time of a step over a batch decides, and the runner-up is named with the reason why it lost.

    Example: `placeopt schedule "shape:V?devices=4&memory=4" --solver repetend --solver 1f1b --micro-batches 16`
    """
    folder = common.out_folder(out)
    if joint:
        if split or recompute or option or micro_batches is not None:
            raise InputError("--joint chooses for itself: leave out --split, --recompute, --option and --micro-batches")
        wanted = {"batch": batch, "mode": mode or "train", "micro_batches": _sizes(micro_batch_sizes),
                  "shapes": tuple(_words([shapes])), "solvers": tuple(_words(solver)), "memory": _bytes(memory),
                  "seconds": min(seconds, 10.0), "seed": seed}  # fmt: skip
        _report_choice(_choose(source, cluster, wanted), folder, json=json)
        return
    problem = _load(source, cluster, memory, micro_batches, mode, split=split, recompute=recompute)
    known = None if initial is None else _initial(initial)
    settings = common.options(option)
    names = _words(solver) or ["repetend"]
    if settings and len(names) > 1:
        raise InputError(f"--option belongs to one solver, received {len(names)} solvers")
    solvers = [make_solver(name, "pipeline", **({"size": repetend_size} if name == "repetend" else {}) | settings)
               for name in names]  # fmt: skip
    outcomes = _run_all(problem, solvers, seconds, seed, known)
    best = _best(problem, names, outcomes)
    objects = [_object(name, outcome, cut=cluster is not None) for name, outcome in zip(names, outcomes, strict=True)]
    if folder is not None:
        for outcome, data in zip(outcomes, objects, strict=True):
            data["files"], data["skipped"] = _write(outcome, data, folder, single=len(names) == 1)
    if json:
        common.print_json(objects[0] if len(objects) == 1 else {"results": objects, "best": best})
        return
    _print(problem, outcomes, best, objects)


def shapes_command(
    devices: Annotated[int, typer.Option("--devices", "-d", min=1, help="Devices to show the bounds for.")] = 4,
    json: common.Json = False,
) -> None:
    """List the placement shapes with their lower bounds on the period.

    Example: `placeopt shapes --devices 8`
    """
    rows: list[dict[str, Any]] = []
    for name, (_, words) in SHAPES.items():
        row: dict[str, Any] = {"shape": name, "description": words}
        for mode in ("train", "infer"):
            try:
                problem = shape(name, devices=devices, mode=mode)
            except InputError as error:
                row[mode] = None
                row["note"] = str(error)
                continue
            row[mode] = int(problem.work.max())
            row[f"blocks_{mode}"] = problem.num_blocks
        rows.append(row)
    if json:
        fields = ShapeOptions.__dataclass_fields__.values()
        options = {field.name: field.default for field in fields} | {"memory": None, "micro_batches": 8}
        common.print_json({"devices": devices, "shapes": rows, "options": options})
        return
    from rich.table import Table

    table = Table(title=f"Shapes on {devices} devices (forward 1, backward 3 ticks)")
    for heading in ("shape", "chain", "bound, train", "bound, infer"):
        table.add_column(heading)
    for row in rows:
        shown = ["-" if row[mode] is None else str(row[mode]) for mode in ("train", "infer")]
        table.add_row(str(row["shape"]), str(row["description"]), *shown)
    console = common.console()
    console.print(table)
    console.print("options: shape:NAME?devices=4&forward=1&backward=3&mode=train&memory=4&split=0&lag=0", markup=False)


def _load(
    source: str,
    cluster: str | None,
    memory: str | None,
    micro_batches: int | None,
    mode: str | None,
    *,
    split: bool,
    recompute: bool,
) -> PipelineProblem:
    limits: Any = None
    if memory is not None:
        try:
            values = [int(float(part)) for part in memory.split(",")]
        except (ValueError, OverflowError):
            raise InputError(f"--memory: expected whole numbers such as 4 or 4,4,3,3, received '{memory}'") from None
        limits = values[0] if len(values) == 1 else values
    if cluster is None:
        if split or recompute:
            raise InputError("--split and --recompute are for models with --cluster; for shapes use shape:V?split=1")
        if source.startswith(("gen:", "onnx:")):
            raise InputError(f"'{source}' is a model: give its devices with --cluster, for example --cluster 4xA100")
        return load_pipeline(source, memory=limits, micro_batches=micro_batches, mode=mode)
    if source.startswith("shape:"):
        raise InputError(f"--cluster is for models; '{source}' brings its own devices (devices=N)")
    problem = pipeline_of_model(source, cluster, mode=mode or "train", split=split, recompute=recompute)
    problem = problem if limits is None else problem.with_capacity(limits)
    return problem if micro_batches is None else problem.replace(micro_batches=micro_batches)


def _words(texts: list[str] | None) -> list[str]:
    """Return what is repeated or separated by commas."""
    return [name for text in texts or [] for name in text.split(",") if name]


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--micro-batch-sizes: expected whole numbers such as 1,2,4, received '{text}'") from None


def _bytes(memory: str | None) -> int | None:
    try:
        return None if memory is None else int(float(memory))
    except (ValueError, OverflowError):
        raise InputError(f"--memory: with --joint, expected bytes per device, received '{memory}'") from None


def _initial(path: Path) -> PipelineSchedule:
    """Read a schedule, or that of a result."""
    found = serialize.load(path)
    found = found.solution if isinstance(found, Result) else found
    if not isinstance(found, PipelineSchedule):
        raise InputError(f"--initial '{path}': expected a pipeline schedule or a result with one, "
                         f"received a {type(found).__name__}")  # fmt: skip
    return found


def _run_all(
    problem: PipelineProblem, solvers: list[Any], seconds: float, seed: int, initial: PipelineSchedule | None
) -> list[Result[PipelineSchedule] | Refused]:
    """Run every solver; one that does not take the problem gives its reason instead of a result."""
    outcomes: list[Result[PipelineSchedule] | Refused] = []
    for solver in solvers:
        try:
            outcomes.append(schedule_result(problem, solver, seconds=seconds, seed=seed, initial=initial))
        except Refused as error:
            outcomes.append(error)
    return outcomes


def _best(problem: PipelineProblem, names: list[str], outcomes: list[Result[PipelineSchedule] | Refused]) -> int:
    """Return the place of the outcome with the smallest (makespan, period).

    Raises
    ------
    InputError
        If no solver found a schedule; the message has every one's reason.
    """
    found = [((outcome.solution.makespan, outcome.solution.period), at) for at, outcome in enumerate(outcomes)
             if isinstance(outcome, Result) and outcome.solution is not None]  # fmt: skip
    if not found:
        words = (outcome.message if isinstance(outcome, Result) else str(outcome) for outcome in outcomes)
        raise InputError(f"no schedule of '{problem.name}': "
                         + "; ".join(f"{name}: {why}" for name, why in zip(names, words, strict=True)))  # fmt: skip
    return min(found)[1]


def _choose(source: str, cluster: str | None, wanted: dict[str, Any]) -> JointResult:
    if cluster is None or source.startswith("shape:"):
        raise InputError(f"--joint is for models with --cluster, for example gen:gpt2 --cluster 4xA100; received '{source}'")
    return choose_pipeline(source, cluster, **{key: value for key, value in wanted.items() if value != ()})


def _report_choice(chosen: JointResult, folder: Path | None, *, json: bool) -> None:
    """Print the table of candidates and the sentence on the runner-up; write the schedule of the best."""
    assert chosen.best.result is not None
    data = _object(chosen.best.result.solver, chosen.best.result, cut=True)
    if folder is not None:
        data["files"], data["skipped"] = _write(chosen.best.result, data, folder, single=True)
    data["joint"] = chosen.to_json()
    if json:
        common.print_json(data)
        return
    from rich.table import Table

    console = common.console()
    table = Table(title=f"steps of {chosen.batch} samples")
    for heading in ("candidate", "schedule", "step", "bound for its cut", "note"):
        table.add_column(heading, justify="right" if heading in ("step", "bound for its cut") else "left")
    for choice in chosen.candidates:
        table.add_row(
            choice.title + (" *" if choice is chosen.best else ""), "-" if choice.result is None else choice.result.solver,
            f"{1e3 * choice.step:.4g} ms" if choice.step else "-",
            f"{1e3 * choice.cut_bound:.4g} ms" if choice.cut_bound else "-", choice.reason,
        )  # fmt: skip
    console.print(table)
    console.print(f"best found: {chosen.best.title}: {chosen.throughput:.4g} samples/s (simulated); no schedule of the cuts "
                  f"that were tried saves more than {chosen.gap_of_cuts:.2%} of its step, no cut at all more than "
                  f"{chosen.gap:.2%}", markup=False)  # fmt: skip
    console.print(f"runner-up: {chosen.why}", markup=False)
    _print_files(console, [data])


def _object(name: str, outcome: Result[PipelineSchedule] | Refused, *, cut: bool) -> dict[str, Any]:
    """Return the JSON object of one solver: the schedule's contract and the result's fields.

    With `cut` the problem is one way to cut a model: what is proved of it holds for this cut, and nothing is optimal.
    """
    if not isinstance(outcome, Result):
        return {"solver": name, "status": "unknown", "message": str(outcome), "value": None}
    data: dict[str, Any] = {} if outcome.solution is None else _schedule_object(outcome, outcome.solution)
    data |= {
        "problem": outcome.problem, "solver": outcome.solver, "objective": outcome.objective_name,
        "value": _plain(outcome.value), "seconds": outcome.seconds,
        "lower_bound": _plain(outcome.lower_bound), "bound_method": outcome.bound_method, "gap": outcome.gap,
        "status": outcome.status, "stop_reason": outcome.stop_reason, "evaluations": outcome.evaluations,
        "runtime": outcome.runtime, "seed": outcome.seed, "message": outcome.message,
    }  # fmt: skip
    if cut:
        data["bounds_hold_for"] = "this cut"
        if outcome.status == "optimal":
            data["status"] = "feasible"
            data["period_status"] += " for this cut"
    return data


def _schedule_object(result: Result[PipelineSchedule], schedule: PipelineSchedule) -> dict[str, Any]:
    """Return the contract of the `schedule` command; a bound for one size of pattern is called so."""
    every = Fraction(result.lower_bound)
    for_size = schedule.size_bound > every
    return {
        "period": _plain(schedule.period),
        "period_bound": _plain(max(schedule.size_bound, every)),
        "period_bound_holds_for": f"K = {schedule.pattern.size}" if for_size else "every K",
        "period_status": "optimal" if result.status == "optimal" else schedule.period_status,
        "makespan": schedule.makespan,
        "makespan_bound": schedule.makespan_bound,
        "micro_batches": schedule.micro_batches,
        "peak_memory": schedule.peak_memory,
        "bubble_period": schedule.bubble_period,
        "bubble_wall": schedule.bubble_wall,
        "bubble_span": schedule.bubble_span,
        "throughput": schedule.throughput,
        "repetend_size": schedule.pattern.size,
        "latency": schedule.pattern.latency(schedule.problem.span),
        "candidates": result.evaluations,
    }


def _plain(value: Any) -> Any:
    """Return a whole number of ticks as int, another fraction as float."""
    return float(value) if isinstance(value, Fraction) and value.denominator > 1 else value if value is None else int(value)


def _write(
    outcome: Result[PipelineSchedule] | Refused, data: dict[str, Any], folder: Path, *, single: bool
) -> tuple[list[str], list[str]]:
    """Write every export that applies; return the files and the reasons for those left out."""
    if not isinstance(outcome, Result) or outcome.solution is None:
        return [], [data["message"]]
    schedule = outcome.solution
    stem = "schedule" if single else f"schedule-{outcome.solver}"
    files, skipped = [], []
    for suffix, write in ((".png", draw_pipeline), (".trace.json", write_trace), (".starts.csv", write_starts_csv),
                          (".torch.csv", write_torch_csv)):  # fmt: skip
        path = folder / f"{stem}{suffix}"
        try:
            write(schedule, path)
        except InputError as error:
            skipped.append(f"{path.name}: {error}")
        else:
            files.append(str(path))
    path = folder / f"{stem}.json"
    # What `--initial` reads, and the fields that the command prints.
    starts = {"start": schedule.start.tolist(), "blocks": list(schedule.problem.block_names)}
    path.write_text(common.json_text(serialize.to_dict(outcome) | data | starts))
    files.append(str(path))
    return files, skipped


def _print(
    problem: PipelineProblem, outcomes: list[Result[PipelineSchedule] | Refused], best: int, objects: list[dict[str, Any]]
) -> None:
    from rich.table import Table

    console = common.console()
    table = Table(title=f"{problem.name}, {problem.num_devices} devices, {problem.micro_batches} micro-batches")
    for heading in ("solver", "period", "bound", "status", "makespan", "bubble (period)", "bubble (wall)",
                    "peak memory", "time"):  # fmt: skip
        table.add_column(heading, justify="left" if heading in ("solver", "status") else "right")
    for i, (outcome, data) in enumerate(zip(outcomes, objects, strict=True)):
        name = f"{data['solver']} *" if i == best and len(outcomes) > 1 else data["solver"]
        if not isinstance(outcome, Result) or outcome.solution is None:
            table.add_row(name, "-", "-", f"{data['status']}: {data['message']}", "-", "-", "-", "-", "-")
            continue
        found, wall = outcome.solution, outcome.solution.bubble_wall
        proof = "proved" if found.makespan <= found.makespan_bound else f">= {found.makespan_bound}"
        size = "" if data["period_bound_holds_for"] == "every K" else f" ({data['period_bound_holds_for']})"
        table.add_row(
            name, f"{data['period']:g}", f"{data['period_bound']:g}{size}", data["period_status"],
            f"{found.makespan} ({proof})", f"{found.bubble_period:.1%}", f"{sum(wall) / len(wall):.1%}",
            " ".join(str(peak) for peak in found.peak_memory), f"{outcome.runtime:.2f} s",
        )  # fmt: skip
    console.print(table)
    for outcome in outcomes:
        if isinstance(outcome, Result) and outcome.solution is not None and outcome.message:
            console.print(f"{outcome.solver}: {outcome.message}", markup=False)
    _print_files(console, objects)


def _print_files(console: Any, objects: list[dict[str, Any]]) -> None:
    """Say what was written, and why the rest was not."""
    for data in objects:
        for file in data.get("files", []):
            console.print(f"wrote {file}", markup=False)
        for reason in data.get("skipped", []):
            console.print(f"left out {reason}", markup=False)
