"""What `placeopt schedule` writes and prints: ms and GiB where a problem has such units, plain
ticks and units elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.cli import common
from placeopt.instances.training_memory import resident_parts
from placeopt.io.result_codecs import result_object
from placeopt.model.arrays import UNLIMITED
from placeopt.model.errors import InputError
from placeopt.model.files import write_text
from placeopt.model.result import Result
from placeopt.plotting.pipeline import draw_pipeline
from placeopt.schedules.placed_model import ALL
from placeopt.schedules.torch_csv import write_torch_csv
from placeopt.schedules.trace import write_starts_csv, write_trace

if TYPE_CHECKING:
    from placeopt.model.errors import Refused
    from placeopt.schedules.joint import JointResult
    from placeopt.schedules.model_cut import ModelCut, StageRow
    from placeopt.schedules.problem import PipelineProblem
    from placeopt.schedules.solution import PipelineSchedule

NO_UNIT = 1e-9
"""The tick of a block table that names none: such times are shown as ticks."""


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
        return self.model is not None or self.problem.tick_seconds != NO_UNIT

    def heading(self, word: str) -> str:
        """Return the heading of a column of times."""
        return f"{word} ms" if self.timed else word

    def time(self, ticks: Any) -> str:
        """Return a time of such a column."""
        value = float(ticks) * (1e3 * self.problem.tick_seconds if self.timed else 1.0)
        return (
            f"{value:.0f}"
            if value >= 1e4 and self.timed
            else f"{value:.4g}"
            if self.timed
            else f"{value:g}"
        )

    def memory(self, peaks: list[int]) -> str:
        """Return what devices hold at most: all their bytes in GiB for a model, the units of its
        blocks for others.
        """
        if self.model is None:
            return " ".join(str(peak) for peak in peaks)
        total = [a + b for a, b in zip(self.model.resident, peaks, strict=True)]
        return (
            " ".join(common.gib_text(x) for x in total)
            if len(total) <= 8
            else f"at most {common.gib_text(max(total))}"
        )


def outcome_object(
    name: str, outcome: Result[PipelineSchedule] | Refused, shown: ScheduledSource
) -> dict[str, Any]:
    """Return the JSON object of one solver: the schedule's contract and the result's fields.

    For a model the problem is one way to cut it: what is proved holds for this cut, and nothing is
    optimal.
    """
    if not isinstance(outcome, Result):
        return {"solver": name, "status": "unknown", "message": str(outcome), "value": None}
    data: dict[str, Any] = (
        {} if outcome.solution is None else _schedule_object(outcome, outcome.solution)
    )
    data |= {
        "problem": outcome.problem,
        "solver": outcome.solver,
        "objective": outcome.objective_name,
        "value": _plain(outcome.value),
        "seconds": outcome.seconds,
        "lower_bound": _plain(outcome.lower_bound),
        "bound_method": outcome.bound_method,
        "gap": outcome.gap,
        "status": outcome.status,
        "stop_reason": outcome.stop_reason,
        "evaluations": outcome.evaluations,
        "runtime": outcome.runtime,
        "seed": outcome.seed,
        "message": outcome.message,
    }
    if shown.model is not None:
        data["bounds_hold_for"] = "this cut"
        data["stages"] = [vars(row) for row in shown.stages]
        data["resident_per_device"] = shown.model.resident
        if outcome.status == "optimal":
            data["status"] = "feasible"
            data["period_status"] += " for this cut"
    return data


def _schedule_object(
    result: Result[PipelineSchedule], schedule: PipelineSchedule
) -> dict[str, Any]:
    """Return the contract of the `schedule` command; a bound for one size of pattern is called
    so.
    """
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
        "tick_seconds": schedule.problem.tick_seconds,
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
    return (
        float(value)
        if isinstance(value, Fraction) and value.denominator > 1
        else value
        if value is None
        else int(value)
    )


def write_schedule(
    outcome: Result[PipelineSchedule] | Refused,
    data: dict[str, Any],
    folder: Path,
    *,
    single: bool,
    picture: bool = True,
) -> tuple[list[str], list[str]]:
    """Write every export that applies; return the files and the reasons for those left out."""
    if not isinstance(outcome, Result) or outcome.solution is None:
        return [], []
    schedule = outcome.solution
    stem = "schedule" if single else f"schedule-{outcome.solver}"
    files, skipped = [], []
    drawn = ((".png", draw_pipeline),) if picture else ()
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


def print_stages(shown: ScheduledSource) -> None:
    """Print the stages of a model, one line each."""
    from rich.table import Table

    assert shown.model is not None
    console = common.console()
    if shown.model.costs:
        console.print(shown.model.costs, markup=False)
    table = Table(
        title=f"{shown.model.cut.placed.name}, shape {shown.model.cut.shape}: stages (times of one "
        "micro-batch)"
    )
    right = ("stage", "ops", "forward ms", "backward ms", "resident GiB", "activations GiB")
    for heading in (
        "stage",
        "device",
        "ops",
        "from",
        "to",
        "forward ms",
        "backward ms",
        "resident GiB",
        "activations GiB",
    ):
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in shown.stages:
        table.add_row(
            str(row.stage),
            row.device,
            str(row.num_ops),
            row.first.replace("[", "\\["),
            row.last.replace("[", "\\["),
            shown.time(row.forward),
            shown.time(row.backward),
            common.gib_text(row.resident),
            common.gib_text(row.activations),
        )
    console.print(table)
    if any(row.backward for row in shown.stages):
        console.print(
            "resident: weights, gradients and optimizer states; activations: of one micro-batch"
        )


def print_memory(shown: ScheduledSource, schedule: PipelineSchedule) -> None:
    """Print what every device of a model holds under a schedule, by what it is."""
    assert shown.model is not None
    cut, say = shown.model.cut, common.console().print
    placed, count = cut.placed, cut.placed.num_devices
    single = cut.device != ALL
    parts = resident_parts(
        [name for name, own in zip(placed.op_names, single.tolist(), strict=True) if own],
        placed.backward[single],
        placed.resident[single],
        cut.device[single],
        count,
    )
    spread = resident_parts(
        [name for name, own in zip(placed.op_names, single.tolist(), strict=True) if not own],
        placed.backward[~single],
        placed.resident[~single],
        cut.device[~single] * 0,
        1,
    )[0]
    parts = parts - (-spread // count)
    parts = parts + parts[::-1] if cut.shape == "X" else parts
    say("memory per device in GiB:")
    for d, peak in enumerate(schedule.peak_memory):
        weights, gradients, states = parts[d].tolist()
        told = f"weights {common.gib_text(weights)}"
        if gradients or states:
            told += (
                f" + gradients {common.gib_text(gradients)} + optimizer states "
                f"{common.gib_text(states)}"
            )
        told += f" + activations {common.gib_text(peak)} at the peak" if peak else ""
        limit = int(placed.capacity[d])
        room = f" of {common.gib_text(limit)}" if limit < UNLIMITED else ""
        say(
            f"  {placed.device_names[d]}: {told} = "
            f"{common.gib_text(weights + gradients + states + peak)}{room}",
            markup=False,
        )


def print_schedules(
    shown: ScheduledSource,
    names: list[str],
    outcomes: list[Result[PipelineSchedule] | Refused],
    best: int,
    objects: list[dict[str, Any]],
) -> None:
    """Print a table of the solvers that found a schedule, and a line for each of the others."""
    from rich.table import Table

    console, problem = common.console(), shown.problem
    table = Table(
        title=f"{problem.name}, {problem.num_devices} devices, {problem.micro_batches} "
        "micro-batches"
    )
    memory = "peak memory" if shown.model is None else "memory GiB"
    for heading in (
        "solver",
        shown.heading("period"),
        shown.heading("bound"),
        "status",
        shown.heading("makespan"),
        "bubble (period)",
        "bubble (wall)",
        memory,
        "time",
    ):
        table.add_column(heading, justify="left" if heading in ("solver", "status") else "right")
    lines = []
    for i, (name, outcome, data) in enumerate(zip(names, outcomes, objects, strict=True)):
        if not isinstance(outcome, Result):
            lines.append(f"skipped {name}: {outcome}")
            continue
        if outcome.solution is None:
            lines.append(f"{name} found none: {data['message'] or data['stop_reason']}")
            continue
        found, wall = outcome.solution, outcome.solution.bubble_wall
        proof = (
            "proved"
            if found.makespan <= found.makespan_bound
            else f">= {shown.time(found.makespan_bound)}"
        )
        size = (
            ""
            if data["period_bound_holds_for"] == "every K"
            else f" ({data['period_bound_holds_for']})"
        )
        table.add_row(
            f"{data['solver']} *" if i == best and len(outcomes) > 1 else data["solver"],
            shown.time(data["period"]),
            f"{shown.time(data['period_bound'])}{size}",
            data["period_status"],
            f"{shown.time(found.makespan)} ({proof})",
            f"{found.bubble_period:.1%}",
            f"{sum(wall) / len(wall):.1%}",
            shown.memory(found.peak_memory),
            f"{outcome.runtime:.2f} s",
        )
        lines += [f"{name}: {outcome.message}"] if outcome.message else []
        lines += [f"{name}: {larger_text(shown, data)}"] if "larger_pattern" in data else []
        lines += (
            [f"{name}: {transfers_text(shown, data['transfers'])}"] if "transfers" in data else []
        )
    console.print(table)
    for line in lines:
        console.print(line, markup=False)


def larger_text(shown: ScheduledSource, data: dict[str, Any]) -> str:
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
        f"{least} "
        "(--repetend-size 0 tries 1 to 4)"
    )


def transfers_text(shown: ScheduledSource, found: dict[str, Any]) -> str:
    """Say how long the order of a schedule takes where transfers occupy something."""
    unit = " ms" if shown.timed else " ticks"
    return (
        f"in this order with {found['mode']} transfers the makespan is "
        f"{shown.time(found['makespan'])}{unit}, "
        f"{found['ratio']:.3f} times as long"
    )


def print_choice(chosen: JointResult) -> None:
    """Print the table of candidates and the sentence on the runner-up."""
    from rich.table import Table

    console = common.console()
    table = Table(title=f"steps of {chosen.batch} samples")
    for heading in ("candidate", "schedule", "step ms", "bound for its cut ms", "note"):
        table.add_column(heading, justify="right" if heading.endswith("ms") else "left")
    for choice in chosen.candidates:
        table.add_row(
            choice.title + (" *" if choice is chosen.best else ""),
            "-" if choice.result is None else choice.result.solver,
            f"{1e3 * choice.step:.4g}" if choice.step else "-",
            f"{1e3 * choice.cut_bound:.4g}" if choice.cut_bound else "-",
            choice.reason,
        )
    console.print(table)
    console.print(
        f"best found: {chosen.best.title}: {chosen.throughput:.4g} samples/s (simulated); a better "
        f"schedule of these cuts could save {chosen.gap_of_cuts:.2%} of the step at most, another "
        f"cut {chosen.gap:.2%}",
        markup=False,
    )
    console.print(f"runner-up: {chosen.why}", markup=False)


def print_files(files: list[str], skipped: list[str]) -> None:
    """Say what was written, and why the rest was not."""
    console = common.console()
    for file in files:
        console.print(f"wrote {file}", markup=False)
    for reason in skipped:
        console.print(f"left out {reason}", markup=False)
