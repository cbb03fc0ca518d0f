"""`placeopt run`: execute a placement for real, and compare with the simulation: graphs of
ops, or a model of the user's own.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from placeopt.cli import common
from placeopt.cli.problem import GraphOptions, takes_options
from placeopt.io.placement_file import read_placement, write_placement
from placeopt.model.cost_model import lower
from placeopt.model.errors import ExecutionError, InputError, check_choice
from placeopt.model.files import Data, csv_text, write_text
from placeopt.programs.onnx_program import is_onnx_program, onnx_program
from placeopt.programs.torch_program import is_torch_program, torch_program
from placeopt.runtime.measurement import timeline, with_ranks
from placeopt.runtime.module_runtime import ModuleRuntime
from placeopt.runtime.onnx_sessions import OnnxSessions, feeds_of

if TYPE_CHECKING:
    from placeopt.makespan.evaluate import Evaluation
    from placeopt.model.cluster import Cluster
    from placeopt.model.graph import OpGraph
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.runtime import Calibration, Measurement


@takes_options
def run_command(
    options: GraphOptions,
    placement: Annotated[
        str, Argument(help="JSON or CSV: op,device[,priority]; or solver:NAME.", show_default=False)
    ],
    runtime: Annotated[
        str | None,
        Option(
            help="model (its own operators; default where it can be run), or synthetic operators "
            "on dask, torch (CUDA devices) or serial."
        ),
    ] = None,
    devices: Annotated[
        str | None, Option(help="model: torch devices, such as cuda:0,cuda:1.")
    ] = None,
    inputs: Annotated[Path | None, Option(help="ONNX model: .npz file of its inputs.")] = None,
    workers: Annotated[
        int | None, Option(min=1, help="Devices of the runtime; default: the cluster's, or 2.")
    ] = None,
    scheduler: Annotated[str | None, Option(help="Address of a running Dask scheduler.")] = None,
    repeat: Annotated[int, Option(min=1, help="Executions to measure; the median is used.")] = 5,
    calibrate: Annotated[
        bool,
        Option(
            "--calibrate", help="First measure op times and transfers, then simulate with them too."
        ),
    ] = False,
    check: Annotated[
        bool, Option("--check/--no-check", help="Compare results with a serial execution.")
    ] = True,
    memory_limit: common.MemoryLimit = None,
    seed: common.Seed = 0,
    out: common.OutFolder = None,
    json: common.Json = False,
) -> None:
    """Run a placement on real workers, and compare the measured times with the simulated ones.

    A torch module or an ONNX model runs its own operators, and its results are compared with the
    unsplit model's.

    Example: `placeopt run torch:model.py:make solver:heft --workers 2 --calibrate --out run/`
    """
    name = runtime_name(runtime, options.source, scheduler)
    if name == "model" and options.training:
        raise InputError(
            "--training: a model's own operators are run forward; use --runtime dask for synthetic "
            "ones"
        )
    graph, bundled = options.graph()
    folder = common.out_folder(out)
    hosts = hosts_of(options.cluster, bundled, placement, graph)
    count = workers or (hosts.num_devices if hosts is not None else 2)
    try:
        with (
            nullcontext(model_runtime(options, graph, count, devices, inputs))
            if name == "model"
            else open_runtime(name, count, scheduler)
        ) as chosen:
            simulated_on, warning = played(hosts, chosen, memory_limit)
            kind = _PartsExecution if hasattr(chosen, "parts") else _Execution
            execution = kind(graph, simulated_on, seed)
            execution.measure(chosen, placement, calibrate, repeat, check)
    except ExecutionError as error:
        print(f"placeopt: error: {error}", file=sys.stderr)
        raise Exit(1) from None
    simulated = execution.simulated()
    data = _describe(execution, simulated, warning)
    try:
        if folder is not None:
            data["files"] = _write(folder, execution.measurement, simulated, data)
    finally:  # a full disk does not hide the outcome
        if json:
            common.print_json(data)
        else:
            _print_run(data)


@dataclass
class _Execution:
    """One placement, measured and simulated."""

    graph: OpGraph
    cluster: Cluster
    seed: int
    learned: Calibration | None = None
    problems: dict[str, PlacementProblem] = field(default_factory=dict)
    measurement: Measurement = field(init=False)

    def measure(
        self, runtime: Any, placement: str, calibrate: bool, repeat: int, check: bool
    ) -> None:
        """Calibrate if asked to, find the placement, and execute it."""
        from placeopt.runtime import calibrate as calibration_of

        self.problems["nominal"] = lower(self.graph, self.cluster)
        if calibrate:
            self.learned = calibration_of(
                runtime, [self.graph], repeat=2, seed=self.seed, cluster=self.cluster
            )
            self.problems |= {
                mode: self.learned.problem(self.graph, mode) for mode in ("fitted", "measured")
            }
        problem = list(self.problems.values())[-1]
        given = with_ranks(problem, _placement(placement, problem, self.seed))
        self.measurement = runtime.run(self.graph, given, repeat=repeat, check=check)

    def simulated(self) -> dict[str, Evaluation]:
        """Return the simulated execution by what its costs come from."""
        from placeopt.makespan.evaluate import evaluate

        given = self.measurement.placement
        return {
            mode: evaluate(problem, given, "priority", check=False)
            for mode, problem in self.problems.items()
        }


class _PartsExecution(_Execution):
    """A model of which whole parts are measured: the graph becomes that of the parts."""

    def measure(
        self, runtime: Any, placement: str, calibrate: bool, repeat: int, check: bool
    ) -> None:
        """Find the placement, cut the model by it, and execute the parts."""
        from placeopt.instances.cost_fit import with_measured_times
        from placeopt.runtime.profile_model import onnx_op_seconds

        fine = {"nominal": self.graph}
        if calibrate:
            seconds = onnx_op_seconds(
                runtime.program, runtime.feeds, self.graph, repeat=max(3, repeat)
            ).seconds
            kinds = dict.fromkeys(device.kind for device in self.cluster.devices)
            measured = self.graph
            for kind in kinds:
                measured = with_measured_times(measured, seconds, kind)
            fine["measured"] = measured
        given = _placement(placement, lower(list(fine.values())[-1], self.cluster), self.seed)
        cut = {mode: runtime.parts(graph, given) for mode, graph in fine.items()}
        self.problems = {mode: lower(parts.graph, self.cluster) for mode, parts in cut.items()}
        self.graph = cut["nominal"].graph
        self.measurement = runtime.run(cut["nominal"], repeat=repeat, check=check)


def hosts_of(
    cluster: str | None, bundled: Cluster | None, placement: str, graph: OpGraph
) -> Cluster | None:
    """Return the cluster that is named, else the source's own, else the one that the placement
    file was made for; None for a solver's placement without them.
    """
    from placeopt.cli.export import cluster_of

    if cluster is None and placement.startswith("solver:"):
        return bundled
    return cluster_of(Path(placement), cluster, bundled, graph)


def open_runtime(name: str, count: int, scheduler: str | None) -> AbstractContextManager[Any]:
    """Return a runtime as a context manager."""
    from placeopt.runtime import DaskRuntime, SerialRuntime, TorchRuntime

    if scheduler is not None and name != "dask":
        raise InputError(f"--scheduler: only the runtime 'dask' has one, received --runtime {name}")
    if name == "dask":
        return DaskRuntime(count, scheduler)
    return nullcontext(TorchRuntime() if name == "torch" else SerialRuntime(count))


def _placement(placement: str, problem: PlacementProblem, seed: int) -> Placement:
    """Read a placement file, or run the solver that is named instead."""
    if not placement.startswith("solver:"):
        return read_placement(placement, problem)
    from placeopt.api import solve

    result = solve(problem, solver=placement.removeprefix("solver:"), seed=seed)
    if result.stop_reason == "interrupted":
        raise KeyboardInterrupt
    if result.solution is None:
        raise InputError(
            f"{placement}: found no placement of '{problem.name}' "
            f"({result.message or result.status})"
        )
    return result.solution


def _describe(execution: _Execution, simulated: dict[str, Evaluation], warning: str) -> Data:
    """Return everything for JSON; the timeline is that of the execution nearest to the median."""
    graph, measurement = execution.graph, execution.measurement
    typical, names = measurement.typical, measurement.device_names
    rows = measurement.transfers[measurement.transfers[:, 0] == typical]
    predictions = {}
    for mode, run in simulated.items():
        seconds = run.makespan * run.problem.tick_seconds
        predictions[mode] = {
            "makespan": run.makespan,
            "seconds": seconds,
            "relative_error": seconds / measurement.makespan - 1,
        }
    times = zip(
        graph.op_names,
        measurement.placement.device.tolist(),
        measurement.start[typical].tolist(),
        measurement.finish[typical].tolist(),
        strict=True,
    )
    data: Data = {
        "problem": list(simulated.values())[-1].problem.name,
        "runtime": measurement.runtime,
        "seconds": measurement.makespan,
        "measured": {
            "seconds": measurement.makespan,
            "repeats": measurement.makespans,
            "spread": measurement.spread,
            "wall": measurement.wall,
            "checked": measurement.checked,
        },
        "simulated": predictions,
        "timeline": [
            {"op": op, "device": names[d], "start": start, "finish": end}
            for op, d, start, end in times
        ],
        "transfers": [
            {
                "tensor": int(t),
                "op": graph.op_names[int(graph.producer[int(t)])],
                "destination": names[int(d)],
                "start": start,
                "finish": end,
            }
            for _, t, d, start, end in rows.tolist()
        ],
    }
    if execution.learned is not None:
        data["calibration"] = execution.learned.summary()
    if warning:
        data["warning"] = warning
    return data


def _write(
    folder: Path, measurement: Measurement, simulated: dict[str, Evaluation], data: Data
) -> list[str]:
    """Write the timeline, the placement, the numbers and the picture; return the paths."""
    from placeopt.plotting.gantt import comparison_figure
    from placeopt.plotting.style import write_figure

    run = list(simulated.values())[-1]
    lines = [["op", "device", "start", "finish", "simulated_start", "simulated_finish"]]
    tick = run.problem.tick_seconds
    for row, start, end in zip(
        data["timeline"], run.start.tolist(), run.finish.tolist(), strict=True
    ):
        times = (row["start"], row["finish"], start * tick, end * tick)
        lines.append([row["op"], row["device"], *(f"{x:.9f}" for x in times)])
    files = [
        write_text(folder / "timeline.csv", csv_text(lines)),
        write_placement(folder / "placement.json", run.problem, measurement.placement, "priority"),
    ]
    figure = comparison_figure(
        [("simulated", run), ("measured", timeline(run.problem, measurement))]
    )
    write_figure(figure, folder / "gantt.png")
    files += [folder / "gantt.png", folder / "run.json"]
    names = [str(path) for path in files]
    write_text(folder / "run.json", common.json_text({**data, "files": names}))
    return names


def _print_run(data: Data) -> None:
    """Print the outcome for people."""
    say = common.say
    measured = data["measured"]
    own = data["runtime"] in ("module", "onnxruntime")
    whole = "the unsplit model's" if own else "the serial ones"
    checked = f", results equal {whole}" if measured["checked"] else ""
    say(
        f"measured {common.time_text(measured['seconds'], 1.0)}  (median of "
        f"{len(measured['repeats'])}, +-{100 * measured['spread']:.1f} %{checked})"
    )
    view = common.table("simulated with", "makespan", "error")
    words = {
        "nominal": "nominal costs",
        "fitted": "fitted constants",
        "measured": "measured op times",
    }
    for mode, row in data["simulated"].items():
        view.add_row(
            words[mode],
            common.time_text(row["seconds"], 1.0),
            f"{100 * row['relative_error']:+.1f} %",
        )
    say(view)
    if "calibration" in data:
        found = data["calibration"]
        line = f"engine overhead {common.time_text(found['launch_overhead'], 1.0)} per op"
        if "latency" in found:
            line += (
                f", transfers {common.time_text(found['latency'], 1.0)} + "
                f"{common.bytes_text(found['bandwidth'])}/s"
            )
        say(line)
    if "warning" in data:
        say(f"warning: {data['warning']}")
    for path in data.get("files", []):
        say(f"wrote {path}")


KINDS = ("model", "dask", "torch", "serial")


def runtime_name(given: str | None, source: str, scheduler: str | None) -> str:
    """Return the runtime to use: the model's own operators where the source is a model that can be
    run.
    """
    own = is_torch_program(source) or is_onnx_program(source)
    if given is None:
        return "model" if own and scheduler is None else "dask"
    check_choice("--runtime", given, KINDS)
    if given == "model" and not own:
        raise InputError(
            f"--runtime model: '{source}' is no model that can be run (torch:FILE.py:NAME, .pt2 or "
            ".onnx); the others run synthetic operators of the same sizes"
        )
    return given


def model_runtime(
    options: GraphOptions, graph: OpGraph, count: int, devices: str | None, inputs: Path | None
) -> ModuleRuntime | OnnxSessions:
    """Return what runs a torch module or an ONNX model on `count` devices."""
    source, names = options.source, _devices(devices, count)
    if is_torch_program(source):
        from placeopt.exports.export import alias_of

        if inputs is not None:
            raise InputError(
                "--inputs is for ONNX models; a torch module brings its example inputs"
            )
        program = torch_program(source)
        return ModuleRuntime(
            program, names or _torch_devices(count), alias_of(source, graph, program)
        )

    model = onnx_program(source)
    return OnnxSessions(
        model, feeds_of(model, common.dims(options.dim), inputs), names or ("cpu",) * count
    )


def _devices(text: str | None, count: int) -> tuple[str, ...]:
    names = tuple(common.words([text or ""]))
    if names and len(names) != count:
        raise InputError(
            f"--devices: expected {count} names, one per device of the placement, received "
            f"{len(names)}"
        )
    return names


def _torch_devices(count: int) -> tuple[str, ...]:
    """Return as many CUDA devices as are needed, or else as many threads of the CPU."""
    import torch

    if torch.cuda.is_available() and torch.cuda.device_count() >= count:
        return tuple(f"cuda:{i}" for i in range(count))
    return ("cpu",) * count


def played(cluster: Cluster | None, runtime: Any, memory_limit: str | None) -> tuple[Cluster, str]:
    """Return the cluster to simulate with, and a warning where CPUs play others' devices."""
    from placeopt.instances.sources import limited

    if cluster is None:
        chosen, warning = runtime.cluster(), ""
    else:
        chosen, warning = _played_by_cpus(cluster, runtime)
    return chosen if memory_limit is None else limited(chosen, memory_limit), warning


def _played_by_cpus(cluster: Cluster, runtime: Any) -> tuple[Cluster, str]:
    """Return the runtime's own devices, under the cluster's names, where CPUs play devices of
    another kind: the times of such a cluster say nothing about a run on CPUs.
    """
    if any(name.startswith("cuda") for name in getattr(runtime, "devices", ())):
        return cluster, ""
    others = [device.name for device in cluster.devices if device.family != "cpu"]
    if not others:
        return cluster, ""

    own = runtime.cluster()
    if own.num_devices != cluster.num_devices:
        return cluster, ""
    devices = tuple(
        replace(device, name=old.name)
        for device, old in zip(own.devices, cluster.devices, strict=True)
    )
    shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    return replace(own, devices=devices), (
        f"CPU workers play {shown} here: their times are those of this machine, and so are the "
        "simulated ones beside them; "
        "what the cluster itself would take is what 'placeopt evaluate' says"
    )
