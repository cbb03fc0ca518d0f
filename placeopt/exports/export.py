"""`export`: a placement in the form that a framework loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.exports.job import Exported, Job, framework_devices
from placeopt.exports.targets import target
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.model.result import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    options : of the target; `torch-pipeline` takes schedule (a schedule, its JSON or its CSV), or
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
