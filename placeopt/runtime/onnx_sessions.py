"""The user's own ONNX model under a placement: its parts in ONNX Runtime sessions, a thread per
device.

A model is cut as `placeopt export --to onnxruntime` cuts it: calls of one device that can run
without waiting for another are one part, and one session. What is measured is a part, so what is
simulated beside it is the graph whose ops are the parts: a part starts when all its inputs are
there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.instances.quotient import quotient
from placeopt.model.arrays import Ints, positions
from placeopt.model.errors import ExecutionError, InputError, needed_package
from placeopt.model.files import one_line
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.programs.calls import homes, segments
from placeopt.programs.onnx_program import OnnxProgram, open_runner, parts_of
from placeopt.runtime.measurement import Measurement, check_close
from placeopt.runtime.serial_runtime import NamedDevices


@dataclass(frozen=True, eq=False)
class Parts:
    """A model cut by a placement: the coarse graph and placement, and the calls and device of every
    part.
    """

    graph: OpGraph
    placement: Placement
    groups: list[list[int]]
    home: list[int]
    op: list[int]  # op of the coarse graph of every part, -1 where no op of the graph is in it


@dataclass
class OnnxSessions(NamedDevices):
    """Runs a model's parts on `num_devices` threads, each with one thread inside its operators."""

    program: OnnxProgram
    feeds: Mapping[str, Any]
    devices: tuple[str, ...] = ("cpu", "cpu")

    link = (5e-5, 1e11)  # tensors are handed over, not copied

    def parts(self, graph: OpGraph, placement: Placement) -> Parts:
        """Cut the model."""
        device = placement.device.tolist()
        home = homes(self.program.program, dict(zip(graph.op_names, device, strict=True)))
        groups = segments(self.program.program, home.tolist())
        index = positions(graph.op_names)
        label: Ints = np.full(graph.num_ops, -1, np.int64)
        number, op_of_part = 0, []
        for group in groups:
            ops = [
                index[name] for i in group if (name := self.program.program.calls[i].name) in index
            ]
            label[ops] = number
            op_of_part.append(number if ops else -1)
            number += bool(ops)
        coarse = quotient(graph, label, np.arange(graph.num_ops))
        at = [int(home[group[0]]) for group in groups]
        where = np.array([d for d, op in zip(at, op_of_part, strict=True) if op >= 0], np.int64)
        return Parts(coarse, Placement(where, np.arange(number)), groups, at, op_of_part)

    def run(self, parts: Parts, *, repeat: int = 1, check: bool = False) -> Measurement:
        """Execute the parts `repeat` times after one execution that does not count.

        Raises
        ------
        ExecutionError
            If a part fails or, with `check`, a result differs from the whole model's.
        """
        with tempfile.TemporaryDirectory() as folder:
            _, files = parts_of(self.program, parts.groups, parts.home, self.devices)
            for name, write in files.items():
                write(Path(folder) / name)
            runner = open_runner(Path(folder), threads=1)
            times, results = [], {}
            try:
                for _ in range(repeat + 1):
                    results = runner.run(dict(self.feeds))
                    times.append(np.array(runner.times))
            except Exception as error:
                raise ExecutionError(
                    f"model '{self.program.program.name}': {one_line(str(error), 300)}"
                ) from error
        if check:
            self._compare(results)
        kept = [i for i, op in enumerate(parts.op) if op >= 0]
        runs = [
            ((spent[kept] - spent[kept, 0].min()).T, np.zeros((0, 4)), float(spent.max()))
            for spent in times[1:]
        ]
        return Measurement.of_runs(
            parts.graph.name, "onnxruntime", self.cluster(), parts.placement, runs, check
        )

    def _compare(self, results: Mapping[str, Any]) -> None:
        session = whole_session(self.program, threads=1)
        expected = session.run(list(results), dict(self.feeds))
        # Difference from the whole model, as a part of a value: onnxruntime fuses differently
        # inside parts
        tolerance = 1e-3
        for (name, found), right in zip(results.items(), expected, strict=True):
            if isinstance(right, np.ndarray) and right.dtype.kind in "fiub":
                check_close(
                    found, right, tolerance, f"result '{name}' differs from the whole model's"
                )


def whole_session(program: OnnxProgram, threads: int, profile: str = "") -> Any:
    """Return a session of the whole model; with `profile`, one that writes its operators' times to
    files so called.
    """
    onnxruntime = needed_package("onnxruntime", "onnxruntime", "running ONNX models")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return onnxruntime.InferenceSession(
            program.path, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise InputError(
            f"{program.path}: onnxruntime cannot load it: {one_line(str(error), 200)}"
        ) from error


def feeds_of(
    program: OnnxProgram, dims: Mapping[str, int], file: Path | None = None
) -> dict[str, Any]:
    """Return inputs of a model: those of an .npz file, else random ones of the declared shapes.

    Raises
    ------
    InputError
        If an input is missing in the file, or a dimension has no value.
    """
    if file is not None:
        try:
            with np.load(file) as data:
                given = {name: data[name] for name in data.files}
        except (OSError, ValueError) as error:
            raise InputError(
                f"inputs: expected an .npz file of arrays, received '{file}' "
                f"({one_line(str(error))})"
            ) from error
        missing = [name for name in program.inputs if name not in given]
        if missing:
            raise InputError(
                f"inputs '{file}': input '{missing[0]}' of the model is missing; it holds "
                f"{', '.join(given)}"
            )
        return {name: given[name] for name in program.inputs}
    from onnx import helper

    rng = np.random.default_rng(0)
    found = {}
    for value in program.proto.graph.input:
        if value.name not in program.inputs:
            continue
        tensor = value.type.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        found[value.name] = _random(rng, _shape(value.name, tensor.shape.dim, dims), dtype)
    return found


def _shape(name: str, declared: Any, dims: Mapping[str, int]) -> list[int]:
    shape = []
    for axis, dim in enumerate(declared):
        title = dim.dim_param or f"{name}:{axis}"
        if dim.HasField("dim_value"):
            shape.append(int(dim.dim_value))
        elif title in dims:
            shape.append(int(dims[title]))
        else:
            raise InputError(
                f"dimension '{title}' of input '{name}' has no value; give --dim {title}=8, or "
                "--inputs FILE.npz"
            )
    return shape


def _random(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    return np.zeros(shape, dtype)
