"""`placeopt schedule` and `placeopt shapes`: pipeline schedules on the command line."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeopt.cli import common
from placeopt.model.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from placeopt.model.result import Result
    from placeopt.schedules.joint import JointResult
    from placeopt.schedules.problem import PipelineProblem
    from placeopt.schedules.solution import PipelineSchedule


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
    from placeopt.schedules.solve import schedule_result

    folder = common.out_folder(out)
    if joint:
        if split or recompute or option or micro_batches is not None:
            raise InputError("--joint chooses for itself: leave out --split, --recompute, --option and --micro-batches")
        chosen = _choose(source, cluster, memory, mode, solver, shapes, batch, micro_batch_sizes, seconds, seed)
        _report_choice(chosen, folder, json=json)
        return
    names = [name for text in solver or ["repetend"] for name in text.split(",") if name]
    settings = common.options(option)
    if settings and len(names) > 1:
        raise InputError(f"--option belongs to one solver, received {len(names)} solvers")
    problem = _load(source, cluster, memory, micro_batches, mode, split=split, recompute=recompute)
    results: list[Result[PipelineSchedule]] = []
    for name in names:
        extra = dict(settings)
        if name == "repetend" and "size" not in extra:
            extra["size"] = repetend_size
        results.append(schedule_result(problem, name, seconds=seconds, seed=seed, **extra))
    found = [(i, result.solution) for i, result in enumerate(results) if result.solution is not None]
    if not found:
        raise InputError(f"no schedule of '{problem.name}': " + "; ".join(f"{r.solver}: {r.message}" for r in results))
    best = min(found, key=lambda pair: (pair[1].makespan, pair[1].period))[0]
    objects = [_object(result) for result in results]
    if folder is not None:
        for result, data in zip(results, objects, strict=True):
            data["files"], data["skipped"] = _write(result, folder, single=len(results) == 1)
    if json:
        common.print_json(objects[0] if len(objects) == 1 else {"results": objects, "best": best})
        return
    _print(problem, results, best, objects)


def shapes_command(
    devices: Annotated[int, typer.Option("--devices", "-d", min=1, help="Devices to show the bounds for.")] = 4,
    json: common.Json = False,
) -> None:
    """List the placement shapes with their lower bounds on the period.

    Example: `placeopt shapes --devices 8`
    """
    from placeopt.schedules.shapes import SHAPES, ShapeOptions, shape

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
    from placeopt.schedules.problem import load_pipeline

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
    from placeopt.schedules.from_model import pipeline_of_model

    problem = pipeline_of_model(source, cluster, mode=mode or "train", split=split, recompute=recompute)
    problem = problem if limits is None else problem.with_capacity(limits)
    return problem if micro_batches is None else problem.replace(micro_batches=micro_batches)


def _choose(
    source: str, cluster: str | None, memory: str | None, mode: str | None, solver: list[str] | None, shapes: str,
    batch: int, sizes: str, seconds: float, seed: int,
) -> JointResult:  # fmt: skip
    from placeopt.schedules.joint import choose_pipeline

    if cluster is None or source.startswith("shape:"):
        raise InputError(f"--joint is for models with --cluster, for example gen:gpt2 --cluster 4xA100; received '{source}'")
    try:
        numbers = [int(part) for part in sizes.split(",")]
    except ValueError:
        raise InputError(f"--micro-batch-sizes: expected whole numbers such as 1,2,4, received '{sizes}'") from None
    try:
        limit = None if memory is None else int(float(memory))
    except (ValueError, OverflowError):
        raise InputError(f"--memory: with --joint, expected bytes per device, received '{memory}'") from None
    named = [name for text in solver or [] for name in text.split(",") if name]
    given: dict[str, Any] = {"solvers": named} if named else {}
    return choose_pipeline(
        source, cluster, batch=batch, mode=mode or "train", micro_batches=numbers, memory=limit, seed=seed,
        shapes=[name for name in shapes.split(",") if name], seconds=min(seconds, 10.0), **given,
    )  # fmt: skip


def _report_choice(chosen: JointResult, folder: Path | None, *, json: bool) -> None:
    """Print the table of candidates and the sentence on the runner-up; write the schedule of the best."""
    assert chosen.best.result is not None
    data = _object(chosen.best.result)
    if folder is not None:
        data["files"], data["skipped"] = _write(chosen.best.result, folder, single=True)
    data["joint"] = {
        "best": chosen.best.to_json(),
        "runner_up": None if chosen.runner_up is None else chosen.runner_up.to_json(),
        "why": chosen.why,
        "batch": chosen.batch,
        "throughput": chosen.throughput,
        "step_bound_seconds": chosen.step_bound,
        "gap": chosen.gap,
        "candidates": [choice.to_json() for choice in chosen.candidates],
    }
    if json:
        common.print_json(data)
        return
    from rich.table import Table

    console = common.console()
    table = Table(title=f"steps of {chosen.batch} samples")
    for heading in ("candidate", "schedule", "step", "bound", "note"):
        table.add_column(heading, justify="right" if heading in ("step", "bound") else "left")
    for choice in chosen.candidates:
        schedule = choice.schedule
        table.add_row(
            choice.title + (" *" if choice is chosen.best else ""), schedule.solver if schedule else "-",
            f"{1e3 * choice.step:.4g} ms" if choice.step else "-",
            f"{1e3 * choice.step_bound:.4g} ms" if choice.step_bound else "-", choice.reason,
        )  # fmt: skip
    console.print(table)
    console.print(f"best: {chosen.best.title}: {chosen.throughput:.4g} samples/s (simulated), "
                  f"at most {chosen.gap:.2%} from the best of all candidates", markup=False)  # fmt: skip
    console.print(f"runner-up: {chosen.why}", markup=False)
    _print_files(console, [data])


def _object(result: Result[PipelineSchedule]) -> dict[str, Any]:
    """Return the JSON object of one result: the schedule's contract and the result's fields."""
    data: dict[str, Any] = {} if result.solution is None else result.solution.to_json()
    return data | {
        "problem": result.problem,
        "solver": result.solver,
        "objective": "period",
        "value": result.objective,
        "seconds": result.seconds,
        "lower_bound": result.lower_bound,
        "bound_method": result.bound_method,
        "gap": result.gap,
        "status": result.status,
        "stop_reason": result.stop_reason,
        "evaluations": result.evaluations,
        "runtime": result.runtime,
        "seed": result.seed,
        "message": result.message,
    }


def _write(result: Result[PipelineSchedule], folder: Path, *, single: bool) -> tuple[list[str], list[str]]:
    """Write every export that applies; return the files and the reasons for those left out."""
    from placeopt.plotting.pipeline import draw_pipeline
    from placeopt.schedules.torch_csv import write_torch_csv
    from placeopt.schedules.trace import write_starts_csv, write_trace

    if result.solution is None:
        return [], [result.message]
    stem = "schedule" if single else f"schedule-{result.solver}"
    files, skipped = [], []

    def attempt(suffix: str, write: Any) -> None:
        path = folder / f"{stem}{suffix}"
        try:
            write(result.solution, path)
        except MissingExtraError as error:
            skipped.append(f"{path.name}: {error}")
        except InputError as error:
            skipped.append(f"{path.name}: {error}")
        else:
            files.append(str(path))

    attempt(".png", draw_pipeline)
    attempt(".trace.json", write_trace)
    attempt(".starts.csv", write_starts_csv)
    attempt(".torch.csv", write_torch_csv)
    path = folder / f"{stem}.json"
    data = _object(result) | {"start": result.solution.start.tolist(),
                              "blocks": list(result.solution.problem.block_names)}  # fmt: skip
    path.write_text(json_module.dumps(data, indent=1) + "\n")
    files.append(str(path))
    return files, skipped


def _print(
    problem: PipelineProblem, results: list[Result[PipelineSchedule]], best: int, objects: list[dict[str, Any]]
) -> None:
    from rich.table import Table

    console = common.console()
    table = Table(title=f"{problem.name}, {problem.num_devices} devices, {problem.micro_batches} micro-batches")
    for heading in ("solver", "period", "bound", "status", "makespan", "bubble (period)", "bubble (wall)",
                    "peak memory", "time"):  # fmt: skip
        table.add_column(heading, justify="left" if heading in ("solver", "status") else "right")
    for i, result in enumerate(results):
        found = result.solution
        name = f"{result.solver} *" if i == best and len(results) > 1 else result.solver
        if found is None:
            table.add_row(name, "-", "-", f"{result.status}: {result.message}", "-", "-", "-", "-", "-")
            continue
        wall = found.bubble_wall
        proof = "proved" if found.makespan <= found.makespan_bound else f">= {found.makespan_bound}"
        table.add_row(
            name, f"{float(found.period):g}", f"{float(found.period_bound):g}", found.period_status,
            f"{found.makespan} ({proof})", f"{found.bubble_period:.1%}", f"{sum(wall) / len(wall):.1%}",
            " ".join(str(peak) for peak in found.peak_memory), f"{result.runtime:.2f} s",
        )  # fmt: skip
    console.print(table)
    for result in results:
        if result.solution is not None and result.message:
            console.print(f"{result.solver}: {result.message}", markup=False)
    _print_files(console, objects)


def _print_files(console: Any, objects: list[dict[str, Any]]) -> None:
    """Say what was written, and why the rest was not."""
    for data in objects:
        for file in data.get("files", []):
            console.print(f"wrote {file}", markup=False)
        for reason in data.get("skipped", []):
            console.print(f"left out {reason}", markup=False)
