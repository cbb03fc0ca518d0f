"""torch.export: any torch.nn.Module becomes an OpGraph, from the metadata of its exported program.

The weights themselves are not looked at, so that a module on the meta device will do. The extra
`torch` is needed.
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from placeopt.instances.readers import op_costs
from placeopt.instances.readers.ir_graph import Reading, finish
from placeopt.instances.readers.model_ir import Model, Node, Value
from placeopt.instances.readers.torch_ops import (
    Ref,
    flat,
    inner_name,
    innermost,
    is_veiled,
    lost_write,
    make_node,
    module_path,
    region_of,
)
from placeopt.model.errors import InputError, needed_package
from placeopt.model.files import Data, one_line
from placeopt.model.graph import OpGraph

RefOf = dict[Any, Any]
"""What nodes of a graph have become."""


def from_torch(
    module: Any,
    example_inputs: tuple[Any, ...],
    *,
    kwargs: Data | None = None,
    dynamic_shapes: Any = None,
    name: str = "",
    **reading: Any,
) -> OpGraph:
    """Export a module with torch.export and read the program.

    Parameters
    ----------
    module : in the mode (train or eval) that is wanted; usually call `module.eval()` first.
    example_inputs, kwargs : as the module's `forward` takes them; their sizes are the sizes of the
    graph.
    name : name of the graph, by default the module's class.
    reading : fuse, fold, shared, trip_count, as for ONNX models; `torch.cond` costs its dearer
    branch, `map` and `scan` their body
        times the length of what they run over, `while_loop` its body times `trip_count`.

    Raises
    ------
    InputError
        If torch cannot export the module; the first line of its reason is given.
    MissingExtraError
        If torch is not installed.
    """
    torch = needed_package("torch", "torch", "reading torch modules")
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"from_torch: expected a torch.nn.Module, received {type(module).__name__}"
        )
    several = isinstance(example_inputs, tuple | list)
    inputs = tuple(example_inputs) if several else (example_inputs,)
    program = exported(module, inputs, kwargs, dynamic_shapes)
    return from_exported(program, name=name or type(module).__name__, **reading)


def exported(
    module: Any, inputs: tuple[Any, ...], kwargs: Data | None, dynamic_shapes: Any = None
) -> Any:
    """Export a module with torch.export."""
    import torch

    with refusing(f"torch.export cannot export {type(module).__name__}"):
        return torch.export.export(
            module, inputs, kwargs=kwargs or None, dynamic_shapes=dynamic_shapes
        )


def from_exported(program: Any, *, name: str = "module", **reading: Any) -> OpGraph:
    """Read a torch.export.ExportedProgram."""
    how = Reading(**reading)
    return finish_exported(_translate(functional(program), name, how.trip_count), how)


def functional(program: Any) -> Any:
    """Return a program in which no write into a tensor is lost to who reads it afterwards, and
    shapes and precisions are those of the run: itself, or a decomposed one.
    """
    calls = (
        (str(node.target), [x.name for x in node.all_input_nodes], [node.name])
        for node in program.graph.nodes
    )
    if not (any(map(is_veiled, program.graph.nodes)) or lost_write(calls)):
        return program
    with refusing("torch cannot decompose the program"):
        return program.run_decompositions({})


def finish_exported(model: Model, how: Reading) -> OpGraph:
    """Sort and finish the model of an exported program; what is known before the run is
    constant.
    """
    model.sort()
    for node in model.nodes:
        if node.rule == "fill":  # arange, zeros, ...
            for key in node.outputs:
                model.values[key].make_constant()
    return finish(model, how, free_views=True)


def _translate(program: Any, name: str, turns: int | None) -> Model:
    from torch.export.graph_signature import InputKind

    constant = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}
    constants = {
        spec.arg.name: spec.kind == InputKind.PARAMETER
        for spec in program.graph_signature.input_specs
        if spec.kind in constant and hasattr(spec.arg, "name")
    }
    return _Reader(turns, constants).read(program.graph, program.graph_module, name)


class _Reader:
    """Reads a graph of a program, and has others read the graphs nested in it.

    Parameters
    ----------
    constants : constant inputs by name, and whether they are learned.
    """

    def __init__(self, turns: int | None, constants: dict[str, bool]) -> None:
        self.turns, self.constants = turns, constants
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []

    def read(self, graph: Any, owner: Any, name: str) -> Model:
        """Return the model of a graph; `owner` is the module that holds its nested graphs."""
        results = self._walk(graph, owner, {}, "")
        outputs = [str(x) for x in flat(results) if isinstance(x, Ref)]
        return Model(name, self.nodes, self.values, outputs)

    def _walk(self, graph: Any, owner: Any, refs: RefOf, region: str) -> Any:
        """Collect the nodes of a graph and of the regions inlined in it; return what stands for its
        results.

        Parameters
        ----------
        refs : what a node of the program stands for: a Ref, a tuple of them, a Model, or None.
        region : name of the region that the graph is the body of, "" for none; its inputs are in
        `refs` already.
        """
        results: Any = ()
        for node in graph.nodes:
            name = inner_name(region, node.name)
            if node.op == "placeholder":
                if not region:
                    self._placeholder(node, refs)
            elif node.op == "get_attr":
                self._attribute(node, name, owner, refs)
            elif node.op == "output":
                results = _resolve(node.args[0], refs)
            elif node.target is operator.getitem:
                whole = refs.get(node.args[0])
                refs[node] = whole[node.args[1]] if isinstance(whole, list | tuple) else whole
            elif found := region_of(node):
                body = getattr(owner, str(found[0].target))
                inside = _bound(body.graph, found[1], refs)
                refs[node] = self._walk(body.graph, body, inside, name)
            elif node.op == "call_function":
                self._call(node, name, refs)
        return results

    def _placeholder(self, node: Any, refs: RefOf) -> None:
        refs[node] = self._declare(node.name, node.meta.get("val"))
        if node.name in self.constants and node.name in self.values:
            self.values[node.name].make_constant(learned=self.constants[node.name])

    def _attribute(self, node: Any, name: str, owner: Any, refs: RefOf) -> None:
        nested: Any = getattr(owner, str(node.target), None)
        if hasattr(nested, "graph"):
            if not all(region_of(user) for user in node.users):
                refs[node] = _Reader(self.turns, {}).read(nested.graph, nested, node.name)
            return
        refs[node] = self._declare(name, node.meta.get("val"))
        if name in self.values:
            self.values[name].make_constant()

    def _call(self, node: Any, name: str, refs: RefOf) -> None:
        refs[node] = self._declare(name, node.meta.get("val"))
        outputs = [str(x) for x in flat(refs[node]) if isinstance(x, Ref)]
        if outputs:
            args, kwargs = _resolve(node.args, refs), _resolve(node.kwargs, refs)
            layer = module_path(innermost(node))
            made = make_node(name, str(node.target), args, kwargs, outputs, layer)
            add_bodies(made, args, self.values, self.turns)
            self.nodes.append(made)

    def _declare(self, name: str, meta: Any) -> Any:
        """Declare the tensors that a node makes; return a Ref, a tuple of Refs, or None if it makes
        none.
        """
        if isinstance(meta, list | tuple):
            return tuple(self._declare(f"{name}:{i}", item) for i, item in enumerate(meta))
        if not hasattr(meta, "shape") or not hasattr(meta, "dtype"):
            return None
        dtype = str(meta.dtype).removeprefix("torch.")
        dtype = "float8" if dtype.startswith("float8") else dtype
        self.values[name] = Value(tuple(_size(d) for d in meta.shape), dtype)
        return Ref(name)


def add_bodies(
    node: Node, args: Sequence[Any], values: Mapping[str, Value], turns: int | None
) -> None:
    """Charge a call that runs nested graphs for the dearest of them, times the turns that it takes.

    `map` and `scan` take as many turns as what they run over is long; how many a `while_loop` takes
    is not known.
    """
    bodies = [arg for arg in args if isinstance(arg, Model)]
    if not bodies:
        return
    costs = [op_costs.run_cost(body.nodes, body.values) for body in bodies]
    known: int | None = 1
    if node.type in OVER_SEQUENCES:
        carried = args[1] if node.type == "scan" and len(args) > 1 else ()
        first = len(carried) if isinstance(carried, list | tuple) else 0
        sizes = values[node.inputs[first]].shape
        known = sizes[0] if sizes else None
    elif node.type == "while_loop":
        known = None
    op_costs.charge_bodies(node, costs, op_costs.turns_of(node, known, turns))


OVER_SEQUENCES = ("map_impl", "scan", "associative_scan")
"""Calls that run a nested graph along the first axis of their tensors, `scan` of those behind what
it carries."""


def _bound(graph: Any, arguments: Sequence[Any], refs: RefOf) -> RefOf:
    """Return what the inputs of a region stand for, where its arguments are nodes."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    pairs = zip(inputs, arguments, strict=True)
    return {node: refs.get(argument) for node, argument in pairs if hasattr(argument, "op")}


def _size(dim: Any) -> int | None:
    """Return a dimension; a symbolic one has the size of the example input."""
    if isinstance(dim, int):
        return dim
    hint = getattr(getattr(dim, "node", None), "hint", None)
    return hint if isinstance(hint, int) else None


def _resolve(value: Any, refs: RefOf) -> Any:
    """Replace the nodes among arguments by what they stand for."""
    if isinstance(value, list | tuple):
        return [_resolve(item, refs) for item in value]
    if isinstance(value, dict):
        return {key: _resolve(item, refs) for key, item in value.items()}
    if hasattr(value, "op") and hasattr(
        value, "meta"
    ):  # a node; one that makes no tensor (a size) leaves no gap
        found = refs.get(value)
        return () if found is None else found
    return value


@contextmanager
def quiet_export() -> Iterator[None]:
    """Silence warnings, logs and prints inside the block; errors are raised as ever."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    nowhere = io.StringIO()
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            yield
    finally:
        logging.disable(before)


@contextmanager
def refusing(words: str) -> Iterator[None]:
    """Refuse what torch.export cannot do, with the first line of its reason."""
    try:
        with quiet_export():
            yield
    except Exception as error:
        raise InputError(f"{words}: {one_line(export_reason(str(error)), 200)}") from error


def export_reason(message: str) -> str:
    """Return why torch.export cannot export a module, with the fix where it is known."""
    first = message.strip().split("\n")[0]
    if "data-dependent" in first:
        return (
            "its control flow depends on the values of tensors; use torch.cond or torch.where "
            f"instead of if ({first})"
        )
    return first
