"""Measuring the ops of the user's own model: ONNX Runtime's profiler, or torch.profiler around
every call.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.instances.op_cost_file import OpCosts, costs_of
from placeopt.instances.traces import MARK, match, read_kineto, read_trace
from placeopt.model.errors import ExecutionError
from placeopt.model.files import one_line, write_bytes, write_text
from placeopt.model.threads import torch_threads
from placeopt.programs.torch_program import TorchProgram, check_devices
from placeopt.runtime.module_runtime import ModuleTasks, ModuleWork
from placeopt.runtime.onnx_sessions import whole_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placeopt.model.graph import OpGraph
    from placeopt.programs.onnx_program import OnnxProgram


def onnx_op_seconds(
    program: OnnxProgram,
    feeds: Mapping[str, Any],
    graph: OpGraph,
    *,
    repeat: int = 5,
    threads: int = 1,
    kind: str = "cpu",
    keep: Path | None = None,
) -> OpCosts:
    """Run an ONNX model on the CPU under ONNX Runtime's profiler.

    Parameters
    ----------
    repeat : executions that count, after one that does not. keep : where the profile goes, None for
    nowhere.

    Raises
    ------
    ExecutionError
        If the model fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        named = _named(program, Path(folder) / "model.onnx")
        session = whole_session(named, threads, str(Path(folder) / "profile"))
        try:
            for _ in range(repeat + 1):
                session.run(None, dict(feeds))
        except Exception as error:
            raise ExecutionError(
                f"model '{program.program.name}': {one_line(str(error), 300)}"
            ) from error
        file = Path(session.end_profiling())
        trace = read_trace(file)
        if keep is not None:
            write_bytes(keep, file.read_bytes())
    return costs_of(graph, match(graph, trace), kind=kind, family=trace.family)


def _named(program: OnnxProgram, path: Path) -> OnnxProgram:
    """Return the model with every node named as the graph names it, in a file."""
    import onnx

    kept = [(node, node.name) for node in program.nodes]
    for node, call in zip(program.nodes, program.program.calls, strict=True):
        node.name = call.name
    try:
        large = program.proto.ByteSize() > 2**30
        onnx.save(program.proto, path, save_as_external_data=large)
    finally:
        for node, name in kept:
            node.name = name
    return replace(program, path=path)


def torch_op_seconds(
    program: TorchProgram,
    graph: OpGraph,
    alias: Mapping[str, str],
    *,
    repeat: int = 5,
    threads: int = 1,
    kind: str = "",
    device: str = "cpu",
    keep: Path | None = None,
) -> OpCosts:
    """Run a torch module op by op under torch.profiler, on a CPU or a CUDA device.

    Raises
    ------
    ExecutionError
        If the module fails.
    """
    import numpy as np

    from placeopt.model.placement import Placement

    check_devices((device,))
    tasks = ModuleTasks(program, graph, alias)
    work = ModuleWork(tasks, Placement(np.zeros(graph.num_ops, np.int64)), (device,))
    try:
        with torch_threads(threads):
            profiler = _profiled(tasks, work, repeat, device)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(file))
            text = file.read_text(encoding="utf-8")
        if keep is not None:
            write_text(keep, text)
    except RuntimeError as error:
        raise ExecutionError(
            f"module '{program.program.name}': {one_line(str(error), 300)}"
        ) from error
    trace = read_kineto(json.loads(text))
    return costs_of(graph, match(graph, trace), kind=kind or _kind(device), family=trace.family)


def _profiled(tasks: ModuleTasks, work: ModuleWork, repeat: int, device: str) -> Any:
    """Return the profiler of some executions, after one that warms up."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    cuda = torch.device(device).type == "cuda"
    _once(tasks, work)
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    ) as profiler:
        for _ in range(repeat + 1):
            _once(tasks, work, mark=True)
            if cuda:
                torch.cuda.synchronize()
    return profiler


def _once(tasks: ModuleTasks, work: ModuleWork, mark: bool = False) -> None:
    """Run every op once, in order, with an annotation of its name around it."""
    from contextlib import nullcontext

    from torch.profiler import record_function

    values: dict[int, Any] = {}
    for op in tasks.graph.topological_order.tolist():
        operands = {tensor: values[tensor] for tensor in work.reads(op)}
        with record_function(MARK + tasks.names[op]) if mark else nullcontext():
            made = work.compute(op, 0, operands)
        values |= dict(zip(work.outputs(op), made, strict=True))


def _kind(device: str) -> str:
    """Return the kind of a device: "cpu", or the name of the GPU as the clusters have it."""
    import torch

    if torch.device(device).type != "cuda":
        return "cpu"
    from placeopt.instances.clusters.hardware import DEVICES

    name = torch.cuda.get_device_name(device)
    return next((kind for kind in DEVICES if kind in name.replace("-", " ").split()), name)
