"""What `placeopt run` needs to execute a model of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from placeopt.model.cluster import Cluster
    from placeopt.model.graph import OpGraph
    from placeopt.runtime.module_runtime import ModuleRuntime
    from placeopt.runtime.onnx_sessions import OnnxSessions

KINDS = ("model", "dask", "torch", "serial")


def runtime_name(given: str | None, source: str, scheduler: str | None) -> str:
    """Return the runtime to use: the model's own operators where the source is a model that can be
    run.
    """
    from placeopt.programs.onnx_program import is_onnx_program
    from placeopt.programs.torch_program import is_torch_program

    own = is_torch_program(source) or is_onnx_program(source)
    if given is None:
        return "model" if own and scheduler is None else "dask"
    if given not in KINDS:
        raise InputError(f"--runtime: expected {', '.join(KINDS)}, received '{given}'")
    if given == "model" and not own:
        raise InputError(
            f"--runtime model: '{source}' is no model that can be run (torch:FILE.py:NAME, .pt2 or "
            ".onnx); "
            "the others run synthetic operators of the same sizes"
        )
    return given


def model_runtime(
    source: str,
    graph: OpGraph,
    count: int,
    devices: str | None,
    dims: dict[str, int],
    inputs: Path | None,
) -> ModuleRuntime | OnnxSessions:
    """Return what runs a torch module or an ONNX model on `count` devices."""
    from placeopt.programs.torch_program import is_torch_program, torch_program

    names = _devices(devices, count)
    if is_torch_program(source):
        from placeopt.exports.job import alias_of
        from placeopt.runtime.module_runtime import ModuleRuntime

        if inputs is not None:
            raise InputError(
                "--inputs is for ONNX models; a torch module brings its example inputs"
            )
        program = torch_program(source)
        return ModuleRuntime(
            program, names or _torch_devices(count), alias_of(source, graph, program)
        )
    from placeopt.programs.onnx_program import onnx_program
    from placeopt.runtime.onnx_sessions import OnnxSessions, feeds_of

    model = onnx_program(source)
    return OnnxSessions(model, feeds_of(model, dims, inputs), names or ("cpu",) * count)


def _devices(text: str | None, count: int) -> tuple[str, ...]:
    names = tuple(part.strip() for part in (text or "").split(",") if part.strip())
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


def played(cluster: Cluster | None, runtime: Any) -> tuple[Cluster | None, str]:
    """Return the cluster to simulate with, and a warning where CPUs play devices of another kind.

    The times of such a cluster say nothing about a run on CPUs: the runtime's own devices are
    simulated, under its names.
    """
    if cluster is None or any(name.startswith("cuda") for name in getattr(runtime, "devices", ())):
        return cluster, ""
    others = [device.name for device in cluster.devices if device.family != "cpu"]
    if not others:
        return cluster, ""
    from dataclasses import replace

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
