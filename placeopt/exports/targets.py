"""The targets of `export`. To add one: a file with `export(job) -> Exported`, and a line here."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placeopt.model.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.exports.job import Exported, Job


@dataclass(frozen=True)
class Target:
    """One form of a placement.

    Attributes
    ----------
    module : file of this package whose `export` makes it.
    needs_model : whether the user's model itself is needed, and not only its graph.
    options : names that `export` takes for this target.
    """

    name: str
    module: str
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
        make: Callable[[Job], Exported] = importlib.import_module(
            f"placeopt.exports.{self.module}"
        ).export
        return make(job)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "device-map",
            "device_map",
            "device of every module, as accelerate and transformers take it",
        ),
        Target("torch", "torch_module", "a torch module whose tensors move between devices"),
        Target(
            "torch-pipeline",
            "torch_pipeline",
            "stages and schedule for torch.distributed.pipelining",
            options=("schedule", "micro_batches", "solver", "seconds", "stage"),
        ),
        Target(
            "onnxruntime", "onnxruntime_parts", "one ONNX file per device and segment, and a runner"
        ),
        Target(
            "jax", "jax_shardings", "device of every parameter of a jax model", needs_model=False
        ),
        Target("csv", "csv_table", "op,device,priority: one line per op", needs_model=False),
    )
}
"""Every target by name."""


def target(name: str) -> Target:
    """Return a target by name."""
    if name not in TARGETS:
        raise InputError(f"export target '{name}' is not known; {did_you_mean(name, TARGETS)}")
    return TARGETS[name]
