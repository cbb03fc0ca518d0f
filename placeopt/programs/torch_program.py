"""A torch module as a Program, and the cutting of it into pipeline stages.

torch.export captures the module; every node that calls something is a call. The names of the calls
are those of the graph that `from_torch` reads, since both come from the same export.

Every stage is a module that takes and returns flat tensors. A stage of a pipeline talks to the next
one only, so a tensor that a later stage reads passes through all stages between. The first stage
takes the module's arguments, the last returns its results.
"""

from __future__ import annotations

import operator
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placeopt.instances.readers.torch_export import exported as export_module, functional, refusing
from placeopt.instances.readers.torch_ops import (
    OPS,
    base_name,
    flat,
    inner_name,
    innermost,
    module_path,
    region_of,
)
from placeopt.instances.sources import TorchModel, is_torch_source, torch_model
from placeopt.model.arrays import positions
from placeopt.model.errors import InputError, needed_package
from placeopt.model.files import Data, regular_file
from placeopt.programs.calls import Call, Program

_TURN = re.compile(r"@\d+$")
"""What torch.export appends to the path of a module that is called again."""


@dataclass(frozen=True, eq=False)
class TorchProgram:
    """A captured module.

    Attributes
    ----------
    graph_module : takes the module's arguments, returns its results; weights keep their names.
    nodes : of the graph, in the order of the program's calls.
    example : the arguments it was captured with.
    exported : the ExportedProgram itself.
    """

    program: Program
    graph_module: Any
    nodes: tuple[Any, ...]
    example: TorchModel
    exported: Any


def is_archive(source: Any) -> bool:
    """Whether a source is an archive of torch.export."""
    return isinstance(source, str | Path) and Path(source).suffix == ".pt2"


def is_torch_program(source: Any) -> bool:
    """Whether a source is a torch module, the name of one, or an archive of torch.export."""
    return is_torch_source(source) or is_archive(source)


def torch_program(source: Any, *, inputs: Any = None, kwargs: Data | None = None) -> TorchProgram:
    """Capture `torch:FILE.py:NAME`, a .pt2 archive or a module.

    Raises
    ------
    InputError
        If the source cannot be read or exported.
    """
    torch = needed_package("torch", "torch", "running torch modules")
    if is_torch_source(source):
        example = torch_model(source, inputs, kwargs)
        exported = export_module(example.module, example.inputs, example.kwargs)
        name = type(example.module).__name__
    else:
        exported, name = _load(Path(source)), Path(source).stem
        if exported.example_inputs is None:
            raise InputError(
                f"{source}: the archive holds no example inputs; export the module again with "
                "torch.export"
            )
        arguments, named = exported.example_inputs
        example = TorchModel(None, tuple(arguments), dict(named))
    exported = functional(exported)
    with warnings.catch_warnings(action="ignore"):
        module = exported.module(check_guards=False)
    _inline_regions(module)
    _erase_checks(module.graph)
    module.graph.lint()
    module.recompile()
    nodes = tuple(node for node in module.graph.nodes if node.op == "call_function")
    weights = tuple(x for x, value in held(module).items() if isinstance(value, torch.Tensor))
    paths = _module_paths(example.module, weights)
    return TorchProgram(
        Program(name, tuple(_calls(nodes)), weights, paths), module, nodes, example, exported
    )


def known_devices(names: Sequence[str]) -> None:
    """Refuse devices that torch has no name for."""
    import torch

    for name in names:
        try:
            torch.device(name)
        except RuntimeError:
            raise InputError(
                f"device '{name}': expected a torch device such as cpu or cuda:0"
            ) from None


def is_here(name: str) -> bool:
    """Whether torch finds a device on this machine."""
    import torch

    device = torch.device(name)
    return device.type != "cuda" or (device.index or 0) < _cuda_count()


def check_devices(names: Sequence[str]) -> None:
    """Refuse devices that torch does not know, or does not find here."""
    known_devices(names)
    for name in names:
        if not is_here(name):
            raise InputError(
                f"device '{name}': torch finds {_cuda_count()} CUDA devices here; "
                "name others (--devices cpu,cpu)"
            )


def _cuda_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def with_devices(node: Any, device: Any) -> bool:
    """Make a call's device arguments `device`, by position or by name; return whether it has
    any.
    """
    import torch

    found = [x for x in (*node.args, *node.kwargs.values()) if isinstance(x, torch.device)]
    node.args = tuple(device if isinstance(x, torch.device) else x for x in node.args)
    node.kwargs = {k: device if isinstance(x, torch.device) else x for k, x in node.kwargs.items()}
    return bool(found)


def _erase_checks(graph: Any) -> None:
    """Erase checks of devices and types, which moving tensors would break."""
    for node in list(graph.nodes):
        if node.op == "call_function" and "_assert_" in str(node.target) and not node.users:
            graph.erase_node(node)


def _inline_regions(module: Any) -> None:
    """Replace every region that only sets a mode by its ops; where it stops gradients, its results
    still do.
    """
    graph = module.graph
    while regions := [(node, found) for node in graph.nodes if (found := region_of(node))]:
        for node, (nested, given, grad) in regions:
            results = _inline(module, node, nested, given)
            if not grad:
                results = [_detached(graph, node, x) if hasattr(x, "op") else x for x in results]
            for reader in list(node.users):
                reader.replace_all_uses_with(results[reader.args[1]])
                graph.erase_node(reader)
            graph.erase_node(node)
            if not nested.users:
                graph.erase_node(nested)


def _inline(module: Any, node: Any, nested: Any, given: Any) -> Any:
    """Put the ops of a region before the call of it, and return its results."""
    import torch

    body = attribute(module, nested.target)
    inputs = (x for x in body.graph.nodes if x.op == "placeholder")
    copies = dict(zip(inputs, given, strict=True))
    results: Any = ()
    with module.graph.inserting_before(node):
        for inside in body.graph.nodes:
            if inside.op == "output":
                results = torch.fx.map_arg(inside.args[0], copies.__getitem__)
            elif inside.op != "placeholder":
                copies[inside] = _inlined(module, node, inside, body, copies)
    return results


def _inlined(module: Any, region: Any, inside: Any, body: Any, copies: dict[Any, Any]) -> Any:
    """Return the copy of an op of a region; what the region itself stores moves into the module
    around it.
    """
    target = inside.target
    if inside.op == "get_attr":
        target = inner_name(region.name, str(target).replace(".", "_"))
        setattr(module, target, attribute(body, inside.target))
    import torch

    args = torch.fx.map_arg(inside.args, copies.__getitem__)
    kwargs = torch.fx.map_arg(inside.kwargs, copies.__getitem__)
    made = module.graph.create_node(
        inside.op, target, args, kwargs, inner_name(region.name, inside.name)
    )
    made.meta = dict(inside.meta)
    return made


def _detached(graph: Any, region: Any, result: Any) -> Any:
    import torch

    with graph.inserting_before(region):
        made = graph.call_function(torch.ops.aten.detach.default, (result,))
    made.meta = {**result.meta, "nn_module_stack": region.meta.get("nn_module_stack")}
    return made


def _load(path: Path) -> Any:
    import torch

    regular_file(path)
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not an archive of torch.export (.pt2)")
    with refusing(f"{path}: torch.export cannot load it"):
        return torch.export.load(path)


def attribute(module: Any, path: str) -> Any:
    """Return what lies at a dotted path in a module."""
    return operator.attrgetter(path)(module)


def held(module: Any) -> Data:
    """Return what the graph of a module reads of it, by name."""
    nodes = (node for node in module.graph.nodes if node.op == "get_attr")
    return {node.target: attribute(module, node.target) for node in nodes}


def _module_paths(module: Any, weights: tuple[str, ...]) -> tuple[str, ...]:
    if module is not None:
        return tuple(name for name, _ in module.named_modules())
    return tuple(dict.fromkeys(["", *(name.rpartition(".")[0] for name in weights)]))


def _calls(nodes: tuple[Any, ...]) -> Iterator[Call]:
    index = positions(nodes)
    for node in nodes:
        inputs = tuple(dict.fromkeys(index[x] for x in node.all_input_nodes if x in index))
        weights = tuple(dict.fromkeys(x.target for x in node.all_input_nodes if x.op == "get_attr"))
        kind = "getitem" if node.target is operator.getitem else base_name(str(node.target))
        free = kind == "getitem" or OPS["rule"].get(kind) in ("view", "identity")
        yield Call(node.name, kind, module_of(node), inputs, weights, free)


def module_of(node: Any) -> str:
    """Return the path of the module that makes a node, "" for the outermost."""
    return _TURN.sub("", module_path(innermost(node)).replace("/", "."))


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage.

    Attributes
    ----------
    module : a GraphModule; weights keep their names.
    inputs, outputs : names of the values that go in and out, in order.
    split_point : module that begins here, "" where the stage begins inside one, or nowhere in
    particular.
    """

    module: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    split_point: str


def stage_of_calls(program: Program, placed: Mapping[str, int], count: int) -> list[int]:
    """Return the stage of every call; calls that are no ops of the placement run as late as their
    inputs allow.

    Raises
    ------
    InputError
        If a call reads from a later stage: the placement is no pipeline.
    """
    found = [placed.get(call.name, -1) for call in program.calls]
    for i, call in enumerate(program.calls):
        if found[i] < 0:
            found[i] = max((found[j] for j in call.inputs), default=-1)
    for i in reversed(range(program.num_calls)):
        if found[i] < 0:
            found[i] = min((found[j] for j in program.readers[i]), default=count - 1)
    _refuse_backward(program, found)
    return found


def _refuse_backward(program: Program, stage: Sequence[int]) -> None:
    """Refuse stages of which one reads from a later one."""
    for i, call in enumerate(program.calls):
        for j in call.inputs:
            if stage[j] > stage[i]:
                raise InputError(
                    f"torch-pipeline: op '{call.name}' of stage {stage[i]} reads "
                    f"'{program.calls[j].name}' of stage "
                    f"{stage[j]}; solve with --objective period --contiguity chain"
                )


def cut_stages(program: TorchProgram, stage: Sequence[int], count: int) -> list[Stage]:
    """Return the stages of a captured module.

    Parameters
    ----------
    stage : stage of every call, 0..count-1, none before its inputs'.
    """
    cutter = _Cutter(program, stage, count)
    return [cutter.stage(number) for number in range(count)]


class _Cutter:
    """What lives at every boundary, and how a stage is copied out."""

    def __init__(self, program: TorchProgram, stage: Sequence[int], count: int) -> None:
        graph = program.graph_module.graph
        self.program, self.count, self.numbers = program, count, stage
        self.of = dict(zip(program.nodes, stage, strict=True))
        self.nodes = [node for node in graph.nodes if node.op in ("placeholder", "call_function")]
        self.of |= {node: 0 for node in self.nodes if node.op == "placeholder"}
        self.results = flat(next(node for node in graph.nodes if node.op == "output").args[0])
        self.last = dict(self.of)  # last stage that needs a value
        for node in self.nodes:
            for source in node.all_input_nodes:
                if source in self.last:
                    self.last[source] = max(self.last[source], self.of[node])
        for node in self.results:
            if node in self.last:
                self.last[node] = count - 1

    def live(self, boundary: int) -> list[Any]:
        """Return the values that pass from stage `boundary` to the next."""
        found = [node for node in self.nodes if self.of[node] <= boundary < self.last[node]]
        for node in found:
            if not _is_tensor(node):
                raise InputError(
                    f"torch-pipeline: '{node.name}', which is no tensor, is read by a later stage; "
                    "place it with its readers"
                )
        return found

    def stage(self, number: int) -> Stage:
        """Return a stage as a module."""
        from torch import fx

        inputs = self._given() if number == 0 else self.live(number - 1)
        graph, copied = self._copy(inputs, number)
        _follow_device(graph)
        last = number == self.count - 1
        outputs = self.results if last else self.live(number)
        given = tuple(map(copied, outputs))
        if not last:  # a tensor with strides of zero, such as an expanded mask, cannot be sent
            given = tuple(graph.call_method("contiguous", (node,)) for node in given)
        graph.output(given[0] if len(given) == 1 else given)
        root = {
            node.target: attribute(self.program.graph_module, node.target)
            for node in graph.nodes
            if node.op == "get_attr"
        }
        module = fx.GraphModule(root, graph, class_name=f"Stage{number}")
        names = tuple(node.name if hasattr(node, "op") else str(node) for node in outputs)
        return Stage(module, tuple(node.name for node in inputs), names, self._split_point(number))

    def _copy(self, inputs: list[Any], number: int) -> tuple[Any, Callable[[Any], Any]]:
        """Return a graph with the calls of a stage, and what copies one more value into it."""
        from torch import fx

        graph = fx.Graph()
        copies: dict[Any, Any] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)

        def copied(node: Any) -> Any:
            if not hasattr(node, "op"):
                return node  # a result that is a plain value
            if node not in copies:
                copies[node] = graph.node_copy(node, copied)
            return copies[node]

        for node in self.nodes:
            if node.op == "call_function" and self.of[node] == number:
                copies[node] = graph.node_copy(node, copied)
        return graph, copied

    def _given(self) -> list[Any]:
        """Return what the first stage is given: a flag or a number that was fixed when the module
        was captured has no reader, and is no input.
        """
        return [
            node
            for node in self.nodes
            if node.op == "placeholder" and (_is_tensor(node) or node.users)
        ]

    def _split_point(self, number: int) -> str:
        """Return the outermost module that begins with the stage, if the program runs stage after
        stage there.
        """
        calls = self.program.program.calls
        first = next(
            (i for i, s in enumerate(self.numbers) if s == number and not calls[i].free), -1
        )
        if number == 0 or first < 0:
            return ""
        parts = calls[first].module.split(".")
        paths = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return next((path for path in paths if path and self._begins_with(number, path)), "")

    def _begins_with(self, number: int, path: str) -> bool:
        """Whether the first calls of a stage and those that follow are a module's."""
        calls = self.program.program.calls
        inside = [i for i, call in enumerate(calls) if f"{call.module}.".startswith(f"{path}.")]
        before = [
            i
            for i in range(min(inside, default=0))
            if self.numbers[i] >= number and calls[i].inputs
        ]
        return bool(inside) and not before and all(self.numbers[i] >= number for i in inside)


def _follow_device(graph: Any) -> None:
    """Make tensors on the device of the stage's inputs where the captured module names the device
    it ran on.
    """
    source = next(
        (node for node in graph.nodes if node.op == "placeholder" and _is_tensor(node)), None
    )
    if source is None:
        return
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        device = graph.call_function(getattr, (source, "device"))
    used = [with_devices(node, device) for node in graph.nodes if node.op == "call_function"]
    if not any(used):
        graph.erase_node(device)


def _is_tensor(node: Any) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.Tensor)
