"""`placeopt schedule` and `placeopt shapes`: pipeline schedules on the command line.

What `placeopt schedule` writes and prints: ms and GiB where a problem has such units, plain
ticks and units elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Argument, Option

from placeopt.cli import common, interrupt
from placeopt.cli.common import gib_text, print_json, say
from placeopt.instances.sources import load_graph
from placeopt.instances.training import resident_parts
from placeopt.io.serialize import result_object
from placeopt.model.arrays import UNLIMITED
from placeopt.model.errors import InputError, Refused, SolverError
from placeopt.model.files import Data, write_text
from placeopt.model.query import without_none
from placeopt.model.result import Result
from placeopt.model.sizes import parse_bytes
from placeopt.plotting.pipeline import draw_pipeline
from placeopt.schedules.cuts import SHAPES as CUT_SHAPES, ModelCut, StageRow, cut_source
from placeopt.schedules.files import schedule_in, write_starts_csv, write_torch_csv, write_trace
from placeopt.schedules.from_model import ALL
from placeopt.schedules.joint import JointResult, choose_pipeline
from placeopt.schedules.shapes import SHAPES, ShapeOptions, shape
from placeopt.schedules.solve import schedule_result
from placeopt.schedules.sources import load_pipeline
from placeopt.schedules.transfers import executed, with_transfers
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from placeopt.schedules.problem import PipelineProblem
    from placeopt.schedules.solution import PipelineSchedule
    from placeopt.solving.tracker import OnProgress

    Outcome = Result[PipelineSchedule] | Refused | SolverError
    """What comes of a solver: a result, or why there is none."""


@dataclass(frozen=True)
class _SourceOptions:
    """How a source is read and cut, as the command line says it."""

    source: str
    cluster: str | None
    memory: str | None
    micro_batches: int | None
    mode: str | None
    shapes: str | None
    split: bool
    recompute: bool
    reader: Data
    costs: Path | None

    @property
    def names_model(self) -> bool:
        """Whether the source can be nothing but a model."""
        return self.source.startswith(("torch:", "gen:", "onnx:")) or self.source.endswith(".onnx")


def schedule_command(
    source: Annotated[
        str,
        Argument(
            help="shape:V|X|M|NN|K|interleaved|wave?devices=4&..., a .toml, .json or .csv block "
            "table, or a model (file, torch:FILE.py:NAME, onnx:NAME, gen:NAME) with --cluster.",
            show_default=False,
        ),
    ],
    solver: Annotated[
        list[str] | None,
        Option("--solver", "-s", help="Solver to run; repeatable or separated by commas."),
    ] = None,
    micro_batches: Annotated[
        int | None,
        Option("--micro-batches", "-n", min=1, help="Number of micro-batches to schedule."),
    ] = None,
    capacity: Annotated[
        str | None,
        Option(
            help="Shape or table: capacity of every device in its own units, or one per device: "
            "4,4,3,3. A model takes --memory-limit."
        ),
    ] = None,
    seconds: Annotated[
        float, Option("--seconds", "-t", min=0, help="Time limit of each solver.")
    ] = 60.0,
    repetend_size: Annotated[
        int,
        Option(
            "--repetend-size",
            "-k",
            min=0,
            help="Micro-batches per repetend (K); 0 tries 1 to 4, and published schedules.",
        ),
    ] = 0,
    mode: Annotated[str | None, Option(help="train or infer.")] = None,
    cluster: common.ClusterOption = None,
    split: Annotated[
        bool, Option("--split", help="Model: cut backward passes into I and W.")
    ] = False,
    recompute: Annotated[bool, Option("--recompute", help="Model: recompute activations.")] = False,
    shapes: Annotated[
        str | None,
        Option(
            "--shape",
            "--shapes",
            help="Model: V (default), wave, X, M, K or T; with --joint several.",
        ),
    ] = None,
    group: common.Group = None,
    costs: common.Costs = None,
    format: common.Format = None,
    dim: common.Dim = None,
    trip_count: common.TripCount = None,
    memory_limit: common.MemoryLimit = None,
    joint: Annotated[
        bool,
        Option(
            "--joint", help="Model: also choose stages, shape, micro-batch size and recomputation."
        ),
    ] = False,
    batch: Annotated[
        int | None,
        Option("--batch", "-b", min=1, help="With --joint: samples per step.", show_default="64"),
    ] = None,
    micro_batch_sizes: Annotated[
        str | None,
        Option(help="With --joint: samples per micro-batch to try.", show_default="1,2,4"),
    ] = None,
    transfers: Annotated[
        str | None,
        Option(help="Also evaluate with transfers that take a channel, or block both devices."),
    ] = None,
    option: common.SolverOptions = None,
    initial: Annotated[
        Path | None,
        Option(help="Schedule to start from: a schedule.json of --out.", show_default=False),
    ] = None,
    seed: common.Seed = 0,
    out: Annotated[
        Path | None,
        Option(
            "--out",
            "-o",
            help="Folder for picture, trace, PyTorch CSV, starts, JSON, and a model's cut.",
        ),
    ] = None,
    json: common.Json = False,
) -> None:
    """Schedule a pipeline: find and prove the shortest repeating pattern, or use a known one.

    A model is cut into stages first; the cut is written beside the schedule. With --joint the time
    of a step over a batch decides, and the runner-up is named with the reason why it lost.

    Example: `placeopt schedule "shape:V?devices=4&memory=4" --solver repetend --solver 1f1b
    --micro-batches 16`
    """
    folder = common.out_folder(out)
    memory = _memory(source, cluster, capacity, memory_limit)
    if cluster is not None:
        common.check_source(source)
    reader = {"group": group, "format": format, **common.reader_options(dim, trip_count)}
    given = _SourceOptions(
        source, cluster, memory, micro_batches, mode, shapes, split, recompute, reader, costs
    )
    if joint:
        _refuse_beside_joint(given, option, transfers, initial)
        wanted = {
            "batch": batch or 64,
            "mode": mode or "train",
            "micro_batches": _sizes(micro_batch_sizes or "1,2,4"),
            "shapes": tuple(common.words([shapes or ",".join(CUT_SHAPES)])),
            "solvers": tuple(common.words(solver)),
            "memory": _one_size(memory),
            "seconds": min(seconds, 10.0),
            "seed": seed,
        }
        _choose(given, wanted, folder, json=json)
        return
    _refuse_without_joint({"--batch": batch, "--micro-batch-sizes": micro_batch_sizes})
    shown = _load(given)
    if transfers is not None:
        with_transfers(
            shown.problem, transfers
        )  # refuses a word that it does not know before anything runs
    known = None if initial is None else schedule_in(initial, f"--initial '{initial}'")
    names = common.words(solver) or ["repetend"]
    solvers = _solvers(names, repetend_size, common.options(option))
    with common.search_progress(shown.problem, json) as (announce, show):
        outcomes = _run_all(shown.problem, solvers, seconds, seed, known, announce, show)
    best = _best(shown.problem, names, outcomes)
    objects = [
        outcome_object(name, outcome, shown) for name, outcome in zip(names, outcomes, strict=True)
    ]
    for outcome, data in zip(outcomes, objects, strict=True):
        if repetend_size:
            _try_larger(shown.problem, outcome, data, seconds, seed)
        _execute(outcome, data, transfers)
    try:
        _write(shown, outcomes, objects, folder)
    finally:  # a full disk does not hide the outcome
        if json:
            single = len(objects) == 1
            print_json(objects[0] if single else {"results": objects, "best": best})
        else:
            print_report(shown, names, outcomes, best, objects)
            print_files(objects)


def _memory(
    source: str, cluster: str | None, capacity: str | None, memory_limit: str | None
) -> str | None:
    """Return the limit on memory: --capacity of a shape or a table, --memory-limit of a model."""
    if memory_limit is not None:
        parse_bytes(memory_limit, "--memory-limit")  # with a unit
    if memory_limit is not None and cluster is None:
        raise InputError(
            f"--memory-limit is for models with --cluster; '{source}' has units of its own: "
            "--capacity 4"
        )
    if capacity is not None and cluster is not None:
        raise InputError(
            f"--capacity is for shapes and tables, which have units of their own; '{source}' on a "
            "cluster takes --memory-limit 16GiB"
        )
    return capacity if cluster is None else memory_limit


def _solvers(names: list[str], repetend_size: int, settings: Data) -> list[Any]:
    """Return the solvers of these names, with the options of the command line."""
    if settings and len(names) > 1:
        raise InputError(f"--option belongs to one solver, received {len(names)} solvers")
    sizes = {"repetend": {"size": repetend_size or int("period" in settings)}}
    return [_solver(name, sizes.get(name, {}) | settings) for name in names]


def _solver(name: str, options: Data) -> Any:
    """Return a solver, or why a plug-in cannot be used: the others go on."""
    try:
        return make_solver(name, "pipeline", **options)
    except SolverError as error:
        return error


def shapes_command(
    devices: Annotated[
        int, Option("--num-devices", "-d", min=1, help="Devices to show the bounds for.")
    ] = 4,
    json: common.Json = False,
) -> None:
    """List the placement shapes with their lower bounds on the period.

    Example: `placeopt shapes --num-devices 8`
    """
    rows: list[Data] = []
    for name, (_, words) in SHAPES.items():
        row: Data = {"shape": name, "description": words}
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
        options = {field.name: field.default for field in fields} | {
            "memory": None,
            "micro_batches": 8,
        }
        print_json({"devices": devices, "shapes": rows, "options": options})
        return
    headings = ("shape", "chain", "bound, train", "bound, infer")
    title = f"Shapes on {devices} devices (forward 1, backward 3 ticks)"
    table = _framed_table(title, headings, left=headings)
    for row in rows:
        shown = ["-" if row[mode] is None else str(row[mode]) for mode in ("train", "infer")]
        table.add_row(str(row["shape"]), str(row["description"]), *shown)
    say(table)
    say("options: shape:NAME?devices=4&forward=1&backward=3&mode=train&memory=4&split=0&lag=0")


def _load(given: _SourceOptions) -> ScheduledSource:
    """Return the pipeline problem, of a model with its cut."""
    if given.cluster is None and not given.names_model:
        return ScheduledSource(_table(given))
    if given.cluster is None:
        raise InputError(
            f"'{given.source}' is a model: give its devices with --cluster, for example --cluster "
            "4xA100"
        )
    if given.source.startswith("shape:"):
        raise InputError(
            f"--cluster is for models; '{given.source}' brings its own devices (devices=N)"
        )
    mode, shape_name = given.mode or "train", _cut_shape(given)
    memory = None if given.memory is None else parse_bytes(given.memory, "--memory-limit")
    model = cut_source(
        given.source,
        given.cluster,
        shape=shape_name,
        mode=mode,
        memory=memory,
        costs=given.costs,
        **given.reader,
    )
    problem = model.cut.problem(mode=mode, recompute=given.recompute, split=given.split)
    if given.micro_batches is not None:
        problem = problem.replace(micro_batches=given.micro_batches)
    return ScheduledSource(
        problem, model, tuple(model.rows(mode=mode, recompute=given.recompute, split=given.split))
    )


def _cut_shape(given: _SourceOptions) -> str:
    """Return the one shape that a model is cut for."""
    name = given.shapes or "V"
    if name not in CUT_SHAPES:
        hint = "; give --joint to try several" if "," in name else ""
        raise InputError(
            f"--shape: expected one of {', '.join(CUT_SHAPES)}, received '{name}'{hint}"
        )
    return name


def _table(given: _SourceOptions) -> PipelineProblem:
    """Return the problem of a shape or a block table."""
    for option, value in (
        ("--split", given.split),
        ("--recompute", given.recompute),
        ("--shape", given.shapes),
        ("--costs", given.costs),
        ("--group", given.reader["group"]),
        ("--dim", given.reader.get("dims")),
    ):
        if value:
            raise InputError(
                f"{option} is for models with --cluster; '{given.source}' is none (of shapes: "
                "shape:V?split=1)"
            )
    limits: Any = None
    if given.memory is not None:
        try:
            numbers = [float(part) for part in given.memory.split(",")]
        except ValueError:
            numbers = [0.5]
        if not all(number.is_integer() for number in numbers):
            raise InputError(
                "--capacity: expected whole numbers such as 4 or 4,4,3,3, received "
                f"'{given.memory}'"
            )
        values = [int(number) for number in numbers]
        limits = values[0] if len(values) == 1 else values
    return load_pipeline(
        given.source, memory=limits, micro_batches=given.micro_batches, mode=given.mode
    )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--micro-batch-sizes: expected whole numbers such as 1,2,4, received '{text}'"
        ) from None


def _one_size(memory: str | None) -> int | None:
    if memory is None:
        return None
    sizes = parse_bytes(memory, "--memory-limit", bare=True)
    if len(sizes) > 1:
        raise InputError(
            "--memory-limit: with --joint, expected bytes per device, one number for all, received "
            f"'{memory}'"
        )
    return sizes[0]


def _run_all(
    problem: PipelineProblem,
    solvers: list[Any],
    seconds: float,
    seed: int,
    initial: PipelineSchedule | None,
    announce: Callable[[str], None],
    on_progress: OnProgress | None,
) -> list[Outcome]:
    """Run every solver; one that has no result gives its reason instead."""
    outcomes: list[Outcome] = []
    for solver in solvers:
        try:
            if interrupt.received():
                raise Refused("interrupted before its turn")
            if isinstance(solver, SolverError):
                raise solver
            announce(solver.name)
            outcomes.append(
                schedule_result(
                    problem,
                    solver,
                    seconds=seconds,
                    seed=seed,
                    initial=initial,
                    on_progress=on_progress,
                )
            )
        except (Refused, SolverError) as error:
            if len(solvers) == 1 and isinstance(error, SolverError):
                raise
            outcomes.append(error)
    return outcomes


def _best(problem: PipelineProblem, names: list[str], outcomes: list[Outcome]) -> int:
    """Return the place of the outcome with the smallest (makespan, period).

    Raises
    ------
    InputError
        If no solver found a schedule; the message has every one's reason.
    """
    found = [
        ((outcome.solution.makespan, outcome.solution.period), at)
        for at, outcome in enumerate(outcomes)
        if isinstance(outcome, Result) and outcome.solution is not None
    ]
    if not found:
        words = (
            outcome.message if isinstance(outcome, Result) else str(outcome) for outcome in outcomes
        )
        raise InputError(
            f"no schedule of '{problem.name}': "
            + "; ".join(f"{name}: {why}" for name, why in zip(names, words, strict=True))
        )
    return min(found)[1]


def _schedule_of(outcome: Outcome) -> PipelineSchedule | None:
    """Return the schedule that a solver found, None if it found none."""
    return outcome.solution if isinstance(outcome, Result) else None


def _try_larger(
    problem: PipelineProblem, outcome: Outcome, data: Data, seconds: float, seed: int
) -> None:
    """Try patterns of one micro-batch more where what was proved holds for one size only, and tell
    what came of it.
    """
    known = _schedule_of(outcome)
    if known is None or data.get("period_bound_holds_for") == "every K" or interrupt.received():
        return
    # Most seconds for patterns of one micro-batch more, where the best pattern found may not be
    # the best of all
    larger_seconds = 5.0
    size, limit = known.pattern.size + 1, min(larger_seconds, seconds)
    started = time.perf_counter()
    other = schedule_result(problem, "repetend", size=size, seconds=limit, seed=seed)
    found = other.solution
    data["larger_pattern"] = larger = {
        "size": size if found is None else found.pattern.size,
        "period": None if found is None else float(found.period),
        "seconds": time.perf_counter() - started,
    }
    if found is not None and found.period < known.period:
        data["period_status"] += f", K = {larger['size']} is shorter"


def _execute(outcome: Outcome, data: Data, transfers: str | None) -> None:
    """Tell how long a schedule takes where transfers occupy channels or devices."""
    known = _schedule_of(outcome)
    if transfers is None or known is None:
        return
    there = executed(known, transfers)
    data["transfers"] = {
        "mode": transfers,
        "makespan": there.makespan,
        "ratio": there.makespan / known.makespan,
    }


def _write(
    shown: ScheduledSource, outcomes: list[Outcome], objects: list[Data], folder: Path | None
) -> None:
    """Write the cut and every schedule; tell the files and the reasons for those left out."""
    if folder is None:
        return
    files, skipped = write_cut(shown.model, folder)
    for outcome, data in zip(outcomes, objects, strict=True):
        written, left = write_schedule(outcome, data, folder, single=len(objects) == 1)
        data["files"], data["skipped"] = [*files, *written], [*skipped, *left]


def _refuse_beside_joint(
    given: _SourceOptions, option: list[str] | None, transfers: str | None, initial: Path | None
) -> None:
    """Refuse options that say what --joint chooses."""
    chosen = given.split or given.recompute or given.micro_batches is not None
    if chosen or option or transfers or initial:
        raise InputError(
            "--joint chooses for itself: leave out --split, --recompute, --option, --transfers, "
            "--initial and --micro-batches"
        )


def _refuse_without_joint(options: Data) -> None:
    """Refuse options that --joint alone reads."""
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"{name} {value}: expected --joint beside it; --micro-batches says how many there "
                "are of one size"
            )


def _choose(given: _SourceOptions, wanted: Data, folder: Path | None, *, json: bool) -> None:
    """Choose stages, shape and the rest, print the candidates and write the best schedule and its
    cut.
    """
    if given.cluster is None or given.source.startswith("shape:"):
        raise InputError(
            "--joint is for models with --cluster, for example gen:gpt2 --cluster 4xA100; "
            f"received '{given.source}'"
        )
    if given.costs is not None:
        raise InputError(
            "--joint and --costs: times are measured for one micro-batch size; leave out one of "
            "the two"
        )
    settings = {key: value for key, value in wanted.items() if value != ()}
    chosen = choose_pipeline(_source_to_cut(given), given.cluster, **settings)
    best = chosen.best
    assert best.result is not None
    assert best.problem is not None
    assert best.cut is not None
    rows = best.cut.rows(mode=wanted["mode"], recompute=best.recompute)
    shown = ScheduledSource(best.problem, best.cut, tuple(rows))
    data = outcome_object(best.result.solver, best.result, shown)
    try:
        _write(shown, [best.result], [data], folder)
    finally:  # a full disk does not hide the outcome
        if json:
            print_json(data | {"joint": chosen.to_json()})
        else:
            print_choice(chosen)
            print_stages(shown)
            if best.result.solution is not None:
                print_memory(best.cut, best.result.solution)
            print_files([data])


def _source_to_cut(given: _SourceOptions) -> Any:
    """Return the source, or its graph where options say how it is read."""
    reader = without_none(given.reader)
    return load_graph(given.source, **reader)[0] if reader else given.source


@dataclass(frozen=True)
class ScheduledSource:
    """What a report is about.

    Attributes
    ----------
    model : the cut of a model, None for shapes and block tables.
    stages : its stages.
    """

    problem: PipelineProblem
    model: ModelCut | None = None
    stages: tuple[StageRow, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether a tick is a time."""
        # The tick of a block table that names none: such times are shown as ticks
        no_unit = 1e-9
        return self.model is not None or self.problem.tick_seconds != no_unit

    def heading(self, word: str) -> str:
        """Return the heading of a column of times."""
        return f"{word} ms" if self.timed else word

    def time(self, ticks: Any) -> str:
        """Return a time of such a column."""
        if not self.timed:
            return f"{float(ticks):g}"
        value = float(ticks) * (1e3 * self.problem.tick_seconds)
        return f"{value:.0f}" if value >= 1e4 else f"{value:.4g}"

    def memory(self, peaks: list[int]) -> str:
        """Return what devices hold at most: all their bytes in GiB for a model, the units of its
        blocks for others.
        """
        if self.model is None:
            return " ".join(str(peak) for peak in peaks)
        total = [a + b for a, b in zip(self.model.resident, peaks, strict=True)]
        return (
            " ".join(gib_text(x) for x in total)
            if len(total) <= 8
            else f"at most {gib_text(max(total))}"
        )


def outcome_object(name: str, outcome: Outcome, shown: ScheduledSource) -> Data:
    """Return the JSON object of one solver: the schedule's contract and the result's fields.

    For a model the problem is one way to cut it: what is proved holds for this cut, and nothing is
    optimal.
    """
    if not isinstance(outcome, Result):
        return {"solver": name, "status": "unknown", "message": str(outcome), "value": None}
    data: Data = {} if outcome.solution is None else _schedule_object(outcome, outcome.solution)
    data |= {
        **common.told(outcome, "problem solver"),
        "objective": outcome.objective_name,
        "value": common.plain_json(outcome.value),
        "seconds": outcome.seconds,
        "lower_bound": common.plain_json(outcome.lower_bound),
        **common.told(
            outcome, "bound_method gap status stop_reason evaluations runtime seed message"
        ),
    }
    if shown.model is not None:
        data["bounds_hold_for"] = "this cut"
        data["stages"] = [vars(row) for row in shown.stages]
        data["resident_per_device"] = shown.model.resident
        if outcome.status == "optimal":
            data["status"] = "feasible"
            data["period_status"] += " for this cut"
    return data


def _schedule_object(result: Result[PipelineSchedule], schedule: PipelineSchedule) -> Data:
    """Return the contract of the `schedule` command; a bound for one size of pattern is called
    so.
    """
    every = Fraction(result.lower_bound)
    for_size = schedule.size_bound > every
    return {
        "period": common.plain_json(schedule.period),
        "period_bound": common.plain_json(max(schedule.size_bound, every)),
        "period_bound_holds_for": f"K = {schedule.pattern.size}" if for_size else "every K",
        "period_status": "optimal" if result.status == "optimal" else schedule.period_status,
        "tick_seconds": schedule.problem.tick_seconds,
        **common.told(
            schedule,
            "makespan makespan_bound micro_batches peak_memory bubble_period bubble_wall "
            "bubble_span throughput",
        ),
        "repetend_size": schedule.pattern.size,
        "latency": schedule.pattern.latency(schedule.problem.span),
        "candidates": result.evaluations,
    }


def write_schedule(
    outcome: Outcome, data: Data, folder: Path, *, single: bool
) -> tuple[list[str], list[str]]:
    """Write every export that applies; return the files and the reasons for those left out."""
    if not isinstance(outcome, Result) or outcome.solution is None:
        return [], []
    schedule = outcome.solution
    stem = "schedule" if single else f"schedule-{outcome.solver.replace('/', '-')}"
    files, skipped = [], []
    # a picture takes longer than a signal leaves
    drawn = () if interrupt.received() else ((".png", draw_pipeline),)
    for suffix, write in (
        *drawn,
        (".trace.json", write_trace),
        (".starts.csv", write_starts_csv),
        (".torch.csv", write_torch_csv),
    ):
        path = folder / f"{stem}{suffix}"
        try:
            write(schedule, path)
        except InputError as error:
            skipped.append(f"{path.name}: {error}")
        else:
            files.append(str(path))
    path = folder / f"{stem}.json"
    # The fields that the command prints, and what `--initial` and exports read, which has the last
    # word.
    starts = {"start": schedule.start.tolist(), "blocks": list(schedule.problem.block_names)}
    write_text(path, common.json_text(result_object(outcome, common.plain_json(data | starts))))
    files.append(str(path))
    return files, skipped


def write_cut(model: ModelCut | None, folder: Path) -> tuple[list[str], list[str]]:
    """Write cut.json; return the file, or the reason why there is none."""
    if model is None:
        return [], []
    try:
        return [str(model.write(folder / "cut.json"))], []
    except InputError as error:
        return [], [f"cut.json: {error}"]


# --- what a person reads
# --------------------------------------------------------------------------------


def _framed_table(title: str, headings: Sequence[str], left: Sequence[str], **column: Any) -> Any:
    """Return a table with a frame, its columns to the right but for those on the left."""
    from rich.table import Table

    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", **column)
    return table


def print_stages(shown: ScheduledSource) -> None:
    """Print the stages of a model, one line each."""
    assert shown.model is not None
    if shown.model.costs:
        say(shown.model.costs)
    table = _framed_table(
        f"{shown.model.cut.placed.name}, shape {shown.model.cut.shape}: stages (times of one "
        "micro-batch)",
        (
            *("stage", "device", "ops", "from", "to"),
            *("forward ms", "backward ms", "resident GiB", "activations GiB"),
        ),
        left=("device", "from", "to"),
        overflow="fold",
    )
    for row in shown.stages:
        table.add_row(
            str(row.stage),
            row.device,
            str(row.num_ops),
            row.first,
            row.last,
            shown.time(row.forward),
            shown.time(row.backward),
            gib_text(row.resident),
            gib_text(row.activations),
        )
    say(table)
    if any(row.backward for row in shown.stages):
        say("resident: weights, gradients and optimizer states; activations: of one micro-batch")


def print_memory(model: ModelCut, schedule: PipelineSchedule) -> None:
    """Print what every device of a model holds under a schedule, by what it is."""
    cut = model.cut
    placed, count = cut.placed, cut.placed.num_devices
    device = np.where(cut.device == ALL, count, cut.device)  # what all share comes last
    parts = resident_parts(placed.op_names, placed.backward, placed.resident, device, count + 1)
    parts = parts[:-1] - (-parts[-1] // count)
    parts = parts + parts[::-1] if cut.shape == "X" else parts
    say("memory per device in GiB:")
    for d, peak in enumerate(schedule.peak_memory):
        kept = parts[d].tolist()
        told = common.kept_text(*kept, training=any(kept[1:]))
        told += f" + activations {gib_text(peak)} at the peak" if peak else ""
        limit = int(placed.capacity[d])
        room = f" of {gib_text(limit)}" if limit < UNLIMITED else ""
        say(f"  {placed.device_names[d]}: {told} = {gib_text(sum(kept) + peak)}{room}")


def print_report(
    shown: ScheduledSource,
    names: list[str],
    outcomes: list[Outcome],
    best: int,
    objects: list[Data],
) -> None:
    """Print a table of the solvers that found a schedule, and a line for each of the others; of a
    model its stages and what its devices hold, too.
    """
    if shown.model is not None:
        print_stages(shown)
    problem = shown.problem
    table = _framed_table(
        f"{problem.name}, {problem.num_devices} devices, {problem.micro_batches} micro-batches",
        (
            "solver",
            shown.heading("period"),
            shown.heading("bound"),
            "status",
            shown.heading("makespan"),
            "bubble (period)",
            "bubble (wall)",
            "peak memory" if shown.model is None else "memory GiB",
            "time",
        ),
        left=("solver", "status"),
    )
    lines: list[str] = []
    for i, (name, outcome, data) in enumerate(zip(names, outcomes, objects, strict=True)):
        lines += _remarks(shown, name, outcome, data)
        if isinstance(outcome, Result) and outcome.solution is not None:
            star = " *" if i == best and len(outcomes) > 1 else ""
            cells = _row(shown, outcome.solution, data)
            table.add_row(f"{data['solver']}{star}", *cells, f"{outcome.runtime:.2f} s")
    say(table)
    for line in lines:
        say(line)
    winner = _schedule_of(outcomes[best])
    if shown.model is not None and winner is not None:
        print_memory(shown.model, winner)


def _remarks(shown: ScheduledSource, name: str, outcome: Outcome, data: Data) -> Iterator[str]:
    """Say of a solver what the table has no column for: why it found none, and what else is
    known of what it found.
    """
    if not isinstance(outcome, Result):
        yield f"skipped {name}: {outcome}"
        return
    if outcome.solution is None:
        yield f"{name} found none: {data['message'] or data['stop_reason']}"
        return
    if outcome.message:
        yield f"{name}: {outcome.message}"
    if "larger_pattern" in data:
        yield f"{name}: {larger_text(shown, data)}"
    if "transfers" in data:
        yield f"{name}: {transfers_text(shown, data['transfers'])}"


def _row(shown: ScheduledSource, found: PipelineSchedule, data: Data) -> tuple[str, ...]:
    """Return what the table says of a schedule, between the solver's name and its time."""
    wall = found.bubble_wall
    proved = found.makespan <= found.makespan_bound
    proof = "proved" if proved else f">= {shown.time(found.makespan_bound)}"
    size = data["period_bound_holds_for"]
    return (
        shown.time(data["period"]),
        shown.time(data["period_bound"]) + ("" if size == "every K" else f" ({size})"),
        data["period_status"],
        f"{shown.time(found.makespan)} ({proof})",
        f"{found.bubble_period:.1%}",
        f"{sum(wall) / len(wall):.1%}",
        shown.memory(found.peak_memory),
    )


def larger_text(shown: ScheduledSource, data: Data) -> str:
    """Say what patterns of more micro-batches do, where "optimal" holds for one size only."""
    unit, larger = " ms" if shown.timed else " ticks", data["larger_pattern"]
    least = f"no K does better than {shown.time(data['lower_bound'])}{unit}"
    if larger["period"] is not None and larger["period"] < data["period"]:
        return (
            f"not the best pattern: K = {larger['size']} repeats every "
            f"{shown.time(larger['period'])}{unit} per micro-batch "
            f"(--repetend-size {larger['size']}); {least}"
        )
    return (
        f"K = {larger['size']} was tried for {larger['seconds']:.2g} s and gave nothing shorter; "
        f"{least} (--repetend-size 0 tries 1 to 4)"
    )


def transfers_text(shown: ScheduledSource, found: Data) -> str:
    """Say how long the order of a schedule takes where transfers occupy something."""
    unit = " ms" if shown.timed else " ticks"
    return (
        f"in this order with {found['mode']} transfers the makespan is "
        f"{shown.time(found['makespan'])}{unit}, {found['ratio']:.3f} times as long"
    )


def print_choice(chosen: JointResult) -> None:
    """Print the table of candidates and the sentence on the runner-up."""
    table = _framed_table(
        f"steps of {chosen.batch} samples",
        ("candidate", "schedule", "step ms", "bound for its cut ms", "note"),
        left=("candidate", "schedule", "note"),
    )
    for choice in chosen.candidates:
        table.add_row(
            choice.title + (" *" if choice is chosen.best else ""),
            "-" if choice.result is None else choice.result.solver,
            f"{1e3 * choice.step:.4g}" if choice.step else "-",
            f"{1e3 * choice.cut_bound:.4g}" if choice.cut_bound else "-",
            choice.reason,
        )
    say(table)
    say(
        f"best found: {chosen.best.title}: {chosen.throughput:.4g} samples/s (simulated); a better "
        f"schedule of these cuts could save {chosen.gap_of_cuts:.2%} of the step at most, another "
        f"cut {chosen.gap:.2%}"
    )
    say(f"runner-up: {chosen.why}")


def print_files(objects: list[Data]) -> None:
    """Say what was written, and why the rest was not."""
    for key, word in (("files", "wrote"), ("skipped", "left out")):
        for said in dict.fromkeys(line for data in objects for line in data.get(key, ())):
            say(f"{word} {said}")
