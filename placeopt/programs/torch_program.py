"""A torch module as a Program: torch.export captures it, every node that calls something is a call.

The names of the calls are those of the graph that `from_torch` reads, since both come from the same
export.
"""

from __future__ import annotations

import operator
import re
import warnings
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.instances.readers.torch_ops import OPS, base_name, inner_name, region_of
from placeopt.instances.sources import TorchModel, is_torch_source, torch_model
from placeopt.model.errors import InputError, MissingExtraError
from placeopt.model.files import one_line, regular_file
from placeopt.programs.calls import Call, Program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def is_torch_program(source: Any) -> bool:
    """Whether a source is a torch module, the name of one, or an archive of torch.export."""
    if is_torch_source(source):
        return True
    return isinstance(source, str | Path) and Path(source).suffix == ".pt2"


def torch_program(
    source: Any, *, inputs: Any = None, kwargs: dict[str, Any] | None = None
) -> TorchProgram:
    """Capture `torch:FILE.py:NAME`, a .pt2 archive or a module.

    Raises
    ------
    InputError
        If the source cannot be read or exported.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "running torch modules") from None
    if is_torch_source(source):
        example = torch_model(source, inputs, kwargs)
        exported = _export(example)
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
    with warnings.catch_warnings(action="ignore"):
        module = exported.module(check_guards=False)
    _inline_regions(module)
    _erase_checks(module.graph)
    module.graph.lint()
    module.recompile()
    nodes = tuple(node for node in module.graph.nodes if node.op == "call_function")
    weights = tuple(
        dict.fromkeys(
            node.target
            for node in module.graph.nodes
            if node.op == "get_attr" and isinstance(attribute(module, node.target), torch.Tensor)
        )
    )
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
    while regions := [
        (node, found) for node in graph.nodes if (found := region_of(node)) is not None
    ]:
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


def _export(example: TorchModel) -> Any:
    import torch

    with _refusing(f"torch.export cannot export {type(example.module).__name__}"):
        return torch.export.export(example.module, example.inputs, kwargs=example.kwargs or None)


def _load(path: Path) -> Any:
    import torch

    regular_file(path)
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not an archive of torch.export (.pt2)")
    with _refusing(f"{path}: torch.export cannot load it"):
        return torch.export.load(path)


@contextmanager
def _refusing(words: str) -> Iterator[None]:
    """Refuse with the first line of whatever torch raises; its warnings are not shown."""
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except Exception as error:
        reason = one_line(str(error).strip().split("\n")[0], 200)
        raise InputError(f"{words}: {reason}") from error


def attribute(module: Any, path: str) -> Any:
    """Return what lies at a dotted path in a module."""
    return operator.attrgetter(path)(module)


def flat(value: Any) -> list[Any]:
    """Return what is nested in lists, tuples and dicts, in order."""
    if isinstance(value, list | tuple):
        return [x for item in value for x in flat(item)]
    return (
        [x for item in value.values() for x in flat(item)] if isinstance(value, dict) else [value]
    )


def _module_paths(module: Any, weights: tuple[str, ...]) -> tuple[str, ...]:
    if module is not None:
        return tuple(name for name, _ in module.named_modules())
    return tuple(dict.fromkeys(["", *(name.rpartition(".")[0] for name in weights)]))


def _calls(nodes: tuple[Any, ...]) -> Iterator[Call]:
    index = {node: i for i, node in enumerate(nodes)}
    for node in nodes:
        inputs = tuple(dict.fromkeys(index[x] for x in node.all_input_nodes if x in index))
        weights = tuple(dict.fromkeys(x.target for x in node.all_input_nodes if x.op == "get_attr"))
        kind = "getitem" if node.target is operator.getitem else base_name(str(node.target))
        free = kind == "getitem" or OPS["rule"].get(kind) in ("view", "identity")
        yield Call(node.name, kind, module_of(node), inputs, weights, free)


def module_of(node: Any) -> str:
    """Return the path of the module that makes a node, "" for the outermost."""
    entries = [
        entry[0]
        for entry in (node.meta.get("nn_module_stack") or {}).values()
        if isinstance(entry, tuple)
    ]
    if not entries:
        return ""
    path = str(entries[-1]).removeprefix("L__self__").removeprefix("L['self']").strip(".")
    return _TURN.sub("", path.replace("['", ".").replace("']", "").strip("."))
