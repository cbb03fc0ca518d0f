"""An ONNX model as a Program, the cutting of it into models of its own, and these as one file
per part, a manifest, and the runner that runs them.

The names of the calls are those of the graph that the reader makes: a node's name, or its first
result's. Calls of the model's own functions are inlined first, as the reader does.

CUDA devices get the CUDA execution provider with their number, and the CPU behind it; a device of
another name is taken for a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from placeopt.instances.readers import locate
from placeopt.instances.readers.ir_graph import distinct_names
from placeopt.instances.readers.model_ir import in_order
from placeopt.instances.readers.onnx_file import load_model, nested_graphs, scope_of
from placeopt.model.errors import InputError, needed_package
from placeopt.model.files import Data, one_line, write_json, write_text
from placeopt.programs import onnx_runner
from placeopt.programs.calls import Call, Program

EXTERNAL = 2**30
"""A part of more bytes keeps its weights in a file of its own: protobuf ends at 2 GiB."""


@dataclass(frozen=True, eq=False)
class Part:
    """A piece of a model: a model of its own, and the names of the tensors that go in and out."""

    proto: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class OnnxProgram:
    """A model with its weights; `nodes` are in the order of the program's calls."""

    program: Program
    proto: Any
    nodes: tuple[Any, ...]
    types: Data = field(repr=False)  # type of every tensor whose type is known
    path: Path = Path()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that the model is fed."""
        stored = {tensor.name for tensor in self.proto.graph.initializer}
        return tuple(value.name for value in self.proto.graph.input if value.name not in stored)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results."""
        return tuple(value.name for value in self.proto.graph.output)

    def cut(self, groups: Sequence[Sequence[int]]) -> list[Part]:
        """Return a model for every group of calls.

        Raises
        ------
        InputError
            If the type of a tensor between two groups is unknown.
        """
        wanted = self._wanted(groups)
        return [
            self._part(f"{self.program.name}_{i}", group, outputs)
            for i, (group, outputs) in enumerate(zip(groups, wanted, strict=True))
        ]

    def _wanted(self, groups: Sequence[Sequence[int]]) -> list[list[str]]:
        """Tensors that every group has to hand over: those read by other groups, and results."""
        group_of = {i: g for g, group in enumerate(groups) for i in group}
        maker = {name: group_of[i] for name, i in _makers(self.nodes).items() if i in group_of}
        wanted: list[dict[str, None]] = [{} for _ in groups]
        for i, g in group_of.items():
            for name in reads(self.nodes[i]):
                if maker.get(name, g) != g:
                    wanted[maker[name]][name] = None
        fed = set(self.inputs)
        for name in self.outputs:
            if name not in fed:  # the first group hands over weights that are results
                wanted[maker.get(name, 0)][name] = None
        return list(map(list, wanted))

    def _part(self, title: str, group: Sequence[int], outputs: list[str]) -> Part:
        from onnx import helper

        graph = self.proto.graph
        nodes = [self.nodes[i] for i in sorted(group)]
        needed = _needed(nodes, outputs)
        stored = {x.name: x for x in graph.initializer if x.name in needed}
        sparse = {x.values.name: x for x in graph.sparse_initializer if x.values.name in needed}
        constants = {
            x.output[0]: x for x in graph.node if _is_constant(x) and x.output[0] in needed
        }
        inside = stored.keys() | sparse.keys() | constants.keys()
        inputs = [name for name in needed if name not in inside]
        part = helper.make_graph(
            [*constants.values(), *nodes],
            title,
            list(map(self._type, inputs)),
            list(map(self._type, outputs)),
            initializer=list(stored.values()),
            sparse_initializer=list(sparse.values()),
        )
        proto = helper.make_model(
            part,
            opset_imports=self.proto.opset_import,
            ir_version=self.proto.ir_version,
            producer_name="placeopt",
        )
        return Part(proto, tuple(inputs), tuple(outputs))

    def _type(self, name: str) -> Any:
        if name not in self.types:
            raise InputError(
                f"model '{self.program.name}': the type of tensor '{one_line(name)}', which goes "
                "from one device to another, is unknown; name it in the model's value_info"
            )
        return self.types[name]


def is_onnx_program(source: Any) -> bool:
    """Whether a source is an ONNX file or a model inside the onnx package."""
    if isinstance(source, str) and source.startswith("onnx:"):
        return True
    if not isinstance(source, str | Path):
        return False
    return Path(str(source).partition("?")[0]).suffix == ".onnx"


def onnx_program(source: str | Path) -> OnnxProgram:
    """Load a model with its weights.

    Raises
    ------
    InputError
        If the file is damaged, or two of its nodes have the same name.
    MissingExtraError
        If the onnx package is not installed.
    """
    onnx = needed_package("onnx", "onnx", "running ONNX models")
    from onnx import inliner

    path, entry = locate(source)
    try:
        load_model(path, max_bytes=entry.max_bytes)  # refuses nonsense within bounded memory
        proto = onnx.load(path)
        if proto.functions:
            proto = inliner.inline_local_functions(proto)
        typed = (
            onnx.shape_inference.infer_shapes(proto, data_prop=True)
            if proto.ByteSize() < 2**31
            else proto
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    except Exception as error:
        raise InputError(
            f"{source}: cannot be loaded with its weights: {one_line(str(error), 200)}"
        ) from error
    graph = typed.graph
    types = {
        value.name: value
        for value in (*graph.value_info, *graph.input, *graph.output)
        if value.type.WhichOneof("value")
    }
    nodes = tuple(node for node in _sorted(proto.graph) if not _is_constant(node))
    program = Program(
        path.stem.removeprefix("light_"),
        tuple(_calls(proto.graph, nodes)),
        tuple(tensor.name for tensor in proto.graph.initializer),
    )
    return OnnxProgram(program, proto, nodes, types, path)


def stored_sizes(program: OnnxProgram) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return shape and bytes of every stored tensor by name."""
    from onnx import helper

    found = {}
    for tensor in program.proto.graph.initializer:
        shape = tuple(int(d) for d in tensor.dims)
        width = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        found[tensor.name] = shape, math.prod(shape) * width
    return found


def _needed(nodes: Sequence[Any], outputs: Sequence[str]) -> dict[str, None]:
    """Return the tensors that nodes read, and results, that they do not make, in order."""
    made = {name for node in nodes for name in node.output}
    names = [*(name for node in nodes for name in reads(node)), *outputs]
    return dict.fromkeys(name for name in names if name not in made)


def _is_constant(node: Any) -> bool:
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def reads(node: Any) -> list[str]:
    """Return the tensors that a node reads, those that its nested graphs take from outside
    included.
    """
    return [name for name in dict.fromkeys([*node.input, *_captured(node)]) if name]


def _captured(node: Any) -> Iterator[str]:
    for body in nested_graphs(node):
        inside = {value.name for value in (*body.input, *body.initializer)}
        for inner in body.node:
            yield from (name for name in reads(inner) if name not in inside)
            inside.update(inner.output)
        yield from (value.name for value in body.output if value.name not in inside)


def _makers(nodes: Sequence[Any]) -> dict[str, int]:
    """Return the number of the node that makes each tensor."""
    return {name: i for i, node in enumerate(nodes) for name in node.output if name}


def _sorted(graph: Any) -> list[Any]:
    """Return the nodes in an order in which every one finds its inputs."""
    made = _makers(graph.node)
    before = [{made[name] for name in reads(node) if name in made} for node in graph.node]
    return [graph.node[i] for i in in_order(before, [node.name for node in graph.node])]


def _calls(graph: Any, nodes: tuple[Any, ...]) -> Iterator[Call]:
    stored = {tensor.name for tensor in graph.initializer}
    made = _makers(nodes)
    titles = [node.name or next(filter(None, node.output), node.op_type) for node in nodes]
    for name, node in zip(distinct_names(titles), nodes, strict=True):
        names = reads(node)
        module = scope_of(node) or module_path(node.name)
        inputs = tuple(dict.fromkeys(made[x] for x in names if x in made))
        yield Call(
            name,
            node.op_type,
            module,
            inputs,
            tuple(x for x in names if x in stored and "." in x),
            node.op_type in _FREE,
        )


def module_path(name: str) -> str:
    """Return "layers.0.fc1" for a node "/layers/layers.0/fc1/MatMul": what the name says of the
    torch module it was.
    """
    path: list[str] = []
    for part in name.strip("/").split("/")[:-1]:
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
    return ".".join(path)


_FREE = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout")


def parts_of(
    program: OnnxProgram,
    groups: Sequence[Sequence[int]],
    home: Sequence[int],
    devices: Sequence[str],
) -> tuple[Data, dict[str, Callable[[Path], object]]]:
    """Return the manifest and the files of a model cut into groups of calls, in order."""
    parts = program.cut(groups)
    # Two devices may have one name in the framework (two threads of one CPU): the manifest keeps
    # them apart.
    titles = [f"{name}#{d}" if devices.count(name) > 1 else name for d, name in enumerate(devices)]
    files: dict[str, Callable[[Path], object]] = {}
    rows = []
    for i, (part, d) in enumerate(zip(parts, home, strict=True)):
        file = f"part{i:03d}.onnx"
        rows.append(
            {
                "file": file,
                "device": titles[d],
                "inputs": list(part.inputs),
                "outputs": list(part.outputs),
            }
        )
        files[file] = partial(_save, part)
    manifest = {
        "model": program.program.name,
        "devices": {title: providers(name) for title, name in zip(titles, devices, strict=True)},
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "parts": rows,
    }
    runner = Path(onnx_runner.__file__).read_text(encoding="utf-8")
    files["manifest.json"] = partial(write_json, data=manifest)
    files["runner.py"] = partial(write_text, text=runner)
    return manifest, files


def providers(device: str) -> list[Any]:
    """Return the execution providers of a device, the preferred one first."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return ["CPUExecutionProvider"]
    if not (number or "0").isdecimal():
        raise InputError(f"device '{device}': expected cuda:0, cuda:1, ..., or the name of a CPU")
    return [["CUDAExecutionProvider", {"device_id": int(number or 0)}], "CPUExecutionProvider"]


def open_runner(folder: Path, threads: int = 0) -> onnx_runner.Runner:
    """Return the runner of a folder.

    Raises
    ------
    InputError
        If onnxruntime cannot load a part.
    MissingExtraError
        If onnxruntime is not installed.
    """
    needed_package("onnxruntime", "onnxruntime", "running ONNX models")
    try:
        return onnx_runner.Runner(folder, threads=threads)
    except OSError:
        raise
    except Exception as error:
        raise InputError(
            f"{folder}: onnxruntime cannot load a part: {one_line(str(error), 200)}"
        ) from error


def _save(part: Part, path: Path) -> None:
    import onnx

    large = part.proto.ByteSize() > EXTERNAL
    onnx.save(
        part.proto,
        path,
        save_as_external_data=large,
        location=f"{path.name}.data" if large else None,
    )
