"""`export`: a placement in the form that a framework loads; what a target is given (`Job`), and
what it gives back (`Exported`).

Two targets are here, whose files other rooms know to write. `csv`: one line per op, with its device
and rank; other programs read it, and so does `placeopt verify`. `onnxruntime`: the model cut into
one ONNX file per device and segment, a manifest, and a runner that stands alone. A segment holds
calls of one device that can run one after the other without waiting for another device. Weights are
in the part that uses them, in each where several do.

To add a target: a function of a job that returns what is exported, and a line in `TARGETS`.
"""

from __future__ import annotations

import itertools
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from placeopt.instances.sources import load_graph
from placeopt.io.placement_file import check_devices, placement_csv, placement_of
from placeopt.model.arrays import Ints
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.files import MAX_BYTES, parse_json, read_text, regular_file, write_text
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.query import without_none
from placeopt.model.result import Result
from placeopt.model.shown import Shown
from placeopt.programs.calls import Program, constants, homes, segments
from placeopt.programs.onnx_program import OnnxProgram, is_onnx_program, onnx_program, parts_of
from placeopt.programs.torch_program import (
    TorchProgram,
    is_archive,
    is_torch_program,
    torch_program,
)


@dataclass(frozen=True, eq=False, repr=False)
class Exported(Shown):
    """What an export made.

    Attributes
    ----------
    artifact : for a script: a dict, a module, a runner.
    files : how to write each file, by its name.
    notes : lines that a person should read.
    """

    artifact: Any
    files: dict[str, Callable[[Path], object]]
    notes: tuple[str, ...] = ()

    def shown(self) -> dict[str, str]:
        """Return the files and the notes."""
        return {
            "of": type(self.artifact).__name__,
            "files": ", ".join(self.files),
            "notes": "; ".join(self.notes),
        }

    def write(self, out: Path) -> list[Path]:
        """Write to `out`: the file itself where there is one file and `out` has a suffix, else into
        the folder.
        """
        alone = len(self.files) == 1 and out.suffix
        paths = [out] if alone else [out / name for name in self.files]
        try:
            for path, write in zip(paths, self.files.values(), strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path)
        except OSError as error:
            raise InputError(
                f"--out '{out}': cannot write there: {error.strerror or error}"
            ) from error
        return paths


@dataclass(frozen=True, eq=False)
class Job:
    """A placement to export.

    Attributes
    ----------
    model : the user's model: a file, `torch:FILE.py:NAME` or a module; None where only the graph is
    there.
    devices : name in the framework of every device of the problem ("cuda:0").
    inputs : example inputs of a module.
    options : of the target.
    """

    problem: PlacementProblem
    placement: Placement
    model: Any = None
    devices: tuple[str, ...] = ()
    inputs: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def placed(self) -> dict[str, int]:
        """Device of every op by name."""
        return dict(zip(self.problem.op_names, self.placement.device.tolist(), strict=True))

    @cached_property
    def torch(self) -> TorchProgram:
        """The model as a torch program."""
        if not is_torch_program(self.model):
            raise InputError(
                f"model '{self.model}': expected a torch module (torch:FILE.py:NAME, or a .pt2 "
                "archive of torch.export); an ONNX file is exported --to onnxruntime"
            )
        return torch_program(self.model, inputs=self.inputs)

    @cached_property
    def onnx(self) -> OnnxProgram:
        """The model as an ONNX program."""
        if not is_onnx_program(self.model):
            raise InputError(
                f"model '{self.model}': expected an ONNX file, as torch.onnx.export writes one; a "
                "torch module is exported --to torch or torch-pipeline"
            )
        return onnx_program(self.model)

    @property
    def program(self) -> Program:
        """The model as calls."""
        return self.torch.program if is_torch_program(self.model) else self.onnx.program

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of parameters given beside the model, which may hold them or not."""
        given = self.options.get("parameters", ())
        return tuple(parameter_names(given) if isinstance(given, str | Path) else map(str, given))

    @cached_property
    def graph(self) -> OpGraph:
        """The graph of the model, read anew: its ops are those of the problem."""
        return load_graph(self.model, **({} if self.inputs is None else {"inputs": self.inputs}))[0]

    @cached_property
    def home(self) -> Ints:
        """Device of every call of the program, shape (num_calls,)."""
        return homes(self.program, self._placed_calls)

    @cached_property
    def constants(self) -> set[int]:
        """Calls of the program that are constants, made wherever they are read."""
        return constants(self.program, self._placed_calls)

    @cached_property
    def _placed_calls(self) -> dict[str, int]:
        """Device of every op by the name of its call."""
        alias = alias_of(self.model, self.graph, self.torch) if is_archive(self.model) else {}
        return {alias.get(name, name): device for name, device in self.placed.items()}


def parameter_names(path: str | Path) -> list[str]:
    """Return the names of parameters that a file holds: a `.safetensors` file, its index, or JSON
    with a list of names.

    Raises
    ------
    InputError
        If it is none of these.
    """
    path = regular_file(path, "--parameters")
    if path.suffix == ".safetensors":
        with path.open("rb") as file:  # the length of the header, then the header
            length = int.from_bytes(file.read(8), "little")
            text = file.read(min(length, MAX_BYTES)).decode("utf-8", "replace")
    else:
        text = read_text(path, what="--parameters")
    data = parse_json(text, f"--parameters '{path}'")
    if isinstance(data, dict):
        data = [name for name in data.get("weight_map", data) if name != "__metadata__"]
    if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
        raise InputError(
            f"--parameters '{path}': expected a .safetensors file, its index, or a JSON list of "
            "names"
        )
    return data


def text_file(text: str) -> Callable[[Path], object]:
    """Return how to write a text."""
    return partial(write_text, text=text)


def csv_table(job: Job) -> Exported:
    """Return the table as text; the rank is left out where the placement has none."""
    text = placement_csv(job.problem, job.placement)
    return Exported(text, {"placement.csv": text_file(text)})


def onnxruntime_parts(job: Job) -> Exported:
    """Return the manifest; `placeopt.programs.onnx_program.open_runner` runs what is written."""
    groups = segments(job.onnx.program, job.home.tolist())
    home = [int(job.home[group[0]]) for group in groups]
    manifest, files = parts_of(job.onnx, groups, home, job.devices)
    used = sorted({job.devices[d] for d in home})
    note = f"{len(groups)} parts on {len(used)} devices ({', '.join(used)})"
    return Exported(manifest, files, (note,))


def alias_of(model: Any, graph: OpGraph, program: TorchProgram) -> dict[str, str]:
    """Return the loaded program's names of ops: an archive does not keep the names of calls with
    several results.
    """
    from placeopt.instances.readers.torch_export import from_exported

    if not is_archive(model):
        return {}
    live = from_exported(program.exported).op_names
    return dict(zip(graph.op_names, live, strict=True)) if len(live) == graph.num_ops else {}


def framework_devices(
    problem: PlacementProblem, devices: Sequence[str] | dict[str, str] | None
) -> tuple[str, ...]:
    """Return the framework's name of every device of a problem.

    Parameters
    ----------
    devices : names by index or by name; by default CPUs and workers are "cpu", and the others
        "cuda:0", "cuda:1", ...

    Raises
    ------
    InputError
        If there are more or fewer than devices.
    """
    names = problem.device_names
    if devices is None:
        numbers = itertools.count()
        last = (name.rpartition("/")[2] for name in names)  # "gpu0" of "host0/gpu0"
        return tuple(
            "cpu" if name.startswith(("cpu", "worker", "host")) else f"cuda:{next(numbers)}"
            for name in last
        )
    if isinstance(devices, dict):
        wrong = sorted(set(names) ^ devices.keys())
        if wrong:
            what = "none for" if wrong[0] in names else "unknown"
            raise InputError(
                f"devices: expected a name for each of {', '.join(names)}, received {what} "
                f"{wrong[0]}"
            )
        return tuple(str(devices[name]) for name in names)
    given = tuple(map(str, devices))
    if len(given) != len(names):
        raise InputError(
            f"devices: expected {len(names)} names, for {', '.join(names)}, received {len(given)}"
        )
    return given


def export(
    problem: PlacementProblem,
    placement: Placement | Result[Placement],
    to: str,
    *,
    model: Any = None,
    inputs: Any = None,
    devices: Sequence[str] | dict[str, str] | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Any:
    """Return a placement in the form that a framework loads, and write it where `out` is given.

    Parameters
    ----------
    problem, placement : which op runs where; a Result's solution is taken.
    to : "device-map" (dict of module paths), "torch" (a module that moves its tensors),
        "torch-pipeline" (stages and
        schedule), "onnxruntime" (a runner of the model's parts), "jax" (shardings of parameters) or
        "csv".
    model : the model that was placed: an ONNX file, a .pt2 archive, `torch:FILE.py:NAME` or a torch
        module.
    inputs : example inputs of a torch module.
    devices : the framework's name of every device ("cuda:0", "cpu"), by index or by name.
    out : file or folder.
    options : of the target; `device-map` and `jax` take parameters (names that an ONNX file may
        have folded away: a list, a .safetensors file or its index); `torch-pipeline` takes schedule
        (a schedule, its JSON or its CSV), or micro_batches, solver and seconds to search for one,
        and stage (of every op, where a device holds several).

    Raises
    ------
    InputError
        If the target is unknown, or cannot express the placement; one line that says what to
        change.
    """
    done = make(problem, placement, to, model=model, inputs=inputs, devices=devices, **options)
    if out is not None:
        done.write(Path(out))
    return done.artifact


def make(
    problem: PlacementProblem,
    placement: Placement | Result[Placement],
    to: str,
    *,
    model: Any = None,
    inputs: Any = None,
    devices: Any = None,
    **options: Any,
) -> Exported:
    """Return what `export` writes and returns, with its notes."""
    chosen = target(to)
    if isinstance(placement, Result):
        if placement.solution is None:
            raise InputError(
                f"the result of '{placement.solver}' on '{placement.problem}' holds no placement "
                "to export"
            )
        placement = placement.solution
    placement = placement_of(placement, problem)
    check_devices(problem, placement, "placement")
    names = framework_devices(problem, devices)
    given = without_none(options)
    return chosen.export(Job(problem, placement, model, names, inputs, given))


@dataclass(frozen=True)
class Target:
    """One form of a placement.

    Attributes
    ----------
    maker : "module:function" of this package that makes it.
    needs_model : whether the user's model itself is needed, and not only its graph.
    options : names that `export` takes for this target.
    """

    name: str
    maker: str
    summary: str
    needs_model: bool = True
    options: tuple[str, ...] = ()

    def export(self, job: Job) -> Exported:
        """Make it."""
        for key in job.options:
            if key not in self.options:
                known = f"it takes {', '.join(self.options)}" if self.options else "it takes none"
                raise InputError(f"export to {self.name} has no option '{key}'; {known}")
        if self.needs_model and job.model is None:
            raise InputError(
                f"export to {self.name} needs the model itself; give it (--model FILE, or "
                "model=...)"
            )
        return pkgutil.resolve_name(f"{__package__}.{self.maker}")(job)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "device-map",
            "device_map:device_map",
            "device of every module, as accelerate and transformers take it",
            options=("parameters",),
        ),
        Target("torch", "torch_module:export", "a torch module whose tensors move between devices"),
        Target(
            "torch-pipeline",
            "torch_pipeline:export",
            "stages and schedule for torch.distributed.pipelining",
            options=("schedule", "micro_batches", "solver", "seconds", "stage"),
        ),
        Target(
            "onnxruntime",
            "export:onnxruntime_parts",
            "one ONNX file per device and segment, and a runner",
        ),
        Target(
            "jax",
            "device_map:jax_shardings",
            "device of every parameter of a jax model",
            needs_model=False,
            options=("parameters",),
        ),
        Target("csv", "export:csv_table", "op,device,priority: one line per op", needs_model=False),
    )
}
"""Every target by name."""


def target(name: str) -> Target:
    """Return a target by name."""
    if name not in TARGETS:
        raise InputError(f"export target '{name}' is not known; {did_you_mean(name, TARGETS)}")
    return TARGETS[name]
