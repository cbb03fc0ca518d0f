"""`export`: a placement in the form that a framework loads.

To add a target: a function of a job that returns what is exported, and a line in `TARGETS`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.exports.job import Exported, Job, framework_devices
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.placement import Placement
from placeopt.model.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placeopt.model.problem import PlacementProblem


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
    options : of the target; `device-map` and `jax` take parameters (names that an ONNX file may have
        folded away: a list, a .safetensors file or its index); `torch-pipeline` takes schedule (a schedule, its JSON or its CSV), or
        micro_batches, solver and
        seconds to search for one, and stage (of every op, where a device holds several).

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
    devices: Any = None,
    **given: Any,
) -> Exported:
    """Return what `export` writes and returns, with its notes."""
    chosen = target(to)
    queue = None
    if isinstance(placement, Result):
        queue = placement.queue or None
        if placement.solution is None:
            raise InputError(
                f"the result of '{placement.solver}' on '{placement.problem}' holds no placement "
                "to export"
            )
        placement = placement.solution
    if not isinstance(placement, Placement) or len(placement.device) != problem.num_ops:
        raise InputError(
            f"placement: expected the {problem.num_ops} ops of problem '{problem.name}', received "
            f"{len(placement.device) if isinstance(placement, Placement) else type(placement).__name__}"
        )
    own = {key: given.pop(key, None) for key in ("model", "inputs")}
    options = {key: value for key, value in given.items() if value is not None}
    job = Job(
        problem,
        placement,
        devices=framework_devices(problem, devices),
        queue=queue,
        options=options,
        **own,
    )
    return chosen.export(job)


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
        module, _, function = self.maker.partition(":")
        make: Callable[[Job], Exported] = getattr(
            importlib.import_module(f".{module}", __package__), function
        )
        return make(job)


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
            "files:onnxruntime_parts",
            "one ONNX file per device and segment, and a runner",
        ),
        Target(
            "jax",
            "device_map:jax_shardings",
            "device of every parameter of a jax model",
            needs_model=False,
            options=("parameters",),
        ),
        Target("csv", "files:csv_table", "op,device,priority: one line per op", needs_model=False),
    )
}
"""Every target by name."""


def target(name: str) -> Target:
    """Return a target by name."""
    if name not in TARGETS:
        raise InputError(f"export target '{name}' is not known; {did_you_mean(name, TARGETS)}")
    return TARGETS[name]
