"""torch.export: any torch.nn.Module becomes an OpGraph, from the metadata of its exported program.

The weights themselves are not looked at, so that a module on the meta device will do. The extra `torch` is
needed.
"""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any

from placeopt.instances.readers.ir_graph import finish
from placeopt.instances.readers.model_ir import Model, Value
from placeopt.instances.readers.torch_ops import Ref, make_node, module_path
from placeopt.model.errors import InputError, MissingExtraError
from placeopt.model.files import one_line

if TYPE_CHECKING:
    from placeopt.model.graph import OpGraph


def from_torch(
    module: Any,
    example_inputs: tuple[Any, ...],
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    name: str = "",
    fuse: bool = True,
    fold: bool = True,
    shared: str = "colocate",
) -> OpGraph:
    """Export a module with torch.export and read the program.

    Parameters
    ----------
    module : in the mode (train or eval) that is wanted; usually call `module.eval()` first.
    example_inputs, kwargs : as the module's `forward` takes them; their sizes are the sizes of the graph.
    name : name of the graph, by default the module's class.
    fuse, fold, shared : as for ONNX models.

    Raises
    ------
    InputError
        If torch cannot export the module; the first line of its reason is given.
    MissingExtraError
        If torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "reading torch modules") from None
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch: expected a torch.nn.Module, received {type(module).__name__}")
    if not isinstance(example_inputs, tuple):
        example_inputs = tuple(example_inputs) if isinstance(example_inputs, list) else (example_inputs,)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on how the export went about it, not on the result
            program = torch.export.export(module, example_inputs, kwargs=kwargs, dynamic_shapes=dynamic_shapes)
    except Exception as error:
        reason = one_line(str(error).strip().split("\n")[0], 200)
        raise InputError(f"torch.export cannot export {type(module).__name__}: {reason}") from error
    return from_exported(program, name=name or type(module).__name__, fuse=fuse, fold=fold, shared=shared)


def from_exported(
    program: Any, *, name: str = "module", fuse: bool = True, fold: bool = True, shared: str = "colocate"
) -> OpGraph:
    """Read a torch.export.ExportedProgram."""
    return finish_exported(_translate(program, name), fuse=fuse, fold=fold, shared=shared)


def finish_exported(model: Model, *, fuse: bool, fold: bool, shared: str) -> OpGraph:
    """Sort and finish the model of an exported program; what is known before the run is constant."""
    model.sort()
    for node in model.nodes:
        if node.rule == "fill":  # arange, zeros, ...
            for key in node.outputs:
                model.values[key].constant, model.values[key].learned = True, False
    return finish(model, fuse=fuse, fold=fold, shared=shared, free_views=True)


def _translate(program: Any, name: str) -> Model:
    from torch.export.graph_signature import InputKind

    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
    constant = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}
    values: dict[str, Value] = {}
    refs: dict[Any, Any] = {}  # what a node of the program stands for: a Ref, a tuple of them, or None
    nodes = []
    results: list[str] = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            kind = kinds.get(node.name)
            refs[node] = _declare(node.name, node.meta.get("val"), values)
            if kind in constant and node.name in values:
                values[node.name].constant, values[node.name].learned = True, kind == InputKind.PARAMETER
        elif node.op == "get_attr":
            refs[node] = _declare(node.name, node.meta.get("val"), values)
            if node.name in values:
                values[node.name].constant, values[node.name].learned = True, False
        elif node.op == "output":
            results = [str(x) for x in _flat(_resolve(node.args, refs)) if isinstance(x, Ref)]
        elif node.target is operator.getitem:
            whole = refs.get(node.args[0])
            refs[node] = whole[node.args[1]] if isinstance(whole, tuple) else whole
        elif node.op == "call_function":
            refs[node] = _declare(node.name, node.meta.get("val"), values)
            outputs = [str(x) for x in _flat([refs[node]]) if isinstance(x, Ref)]
            if outputs:
                args, kwargs = _resolve(node.args, refs), _resolve(node.kwargs, refs)
                nodes.append(make_node(node.name, str(node.target), args, kwargs, outputs, _layer(node)))
    return Model(name, nodes, values, results)


def _declare(name: str, meta: Any, values: dict[str, Value]) -> Any:
    """Declare the tensors that a node makes; return a Ref, a tuple of Refs, or None if it makes none."""
    if isinstance(meta, list | tuple):
        return tuple(_declare(f"{name}:{i}", item, values) for i, item in enumerate(meta))
    if not hasattr(meta, "shape") or not hasattr(meta, "dtype"):
        return None
    values[name] = Value(tuple(_size(d) for d in meta.shape), str(meta.dtype).removeprefix("torch."))
    if values[name].dtype.startswith("float8"):
        values[name].dtype = "float8"
    return Ref(name)


def _size(dim: Any) -> int | None:
    """Return a dimension; a symbolic one has the size of the example input."""
    if isinstance(dim, int):
        return dim
    hint = getattr(getattr(dim, "node", None), "hint", None)
    return hint if isinstance(hint, int) else None


def _resolve(value: Any, refs: dict[Any, Any]) -> Any:
    """Replace the nodes among arguments by what they stand for."""
    if isinstance(value, list | tuple):
        return [_resolve(item, refs) for item in value]
    if isinstance(value, dict):
        return {key: _resolve(item, refs) for key, item in value.items()}
    if hasattr(value, "op") and hasattr(value, "meta"):  # a node; one that makes no tensor (a size) leaves no gap
        found = refs.get(value)
        return () if found is None else found
    return value


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [x for item in value for x in _flat(item)]
    return [value]


def _layer(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, tuple)]
    return module_path(str(paths[-1])) if paths else ""
