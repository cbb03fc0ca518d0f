"""A program of torch.export as the graph that is sharded: one op per input, stored tensor and call.

A reader folds calls away that take no time (views of weights, masks made of constants); here every
call stays, since each of its operands needs a layout when it runs. What a call costs is what the
reader says of the op of that name; a call that the reader folded costs nothing. A stored tensor
under several names (tied weights) is one op.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.files import one_line
from placeopt.model.graph import OpGraph
from placeopt.programs.torch_program import attribute
from placeopt.sharding.torch_rules import Traced, tensors_of, traced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.programs.torch_program import TorchProgram

INPUT, WEIGHT, BUFFER = "input", "weight", "buffer"
"""Types of ops that compute nothing: an argument of the module, what it learns, what else it
stores."""


@dataclass(frozen=True, eq=False)
class TorchCalls:
    """The graph, and what its ops are in the program.

    Attributes
    ----------
    graph : in the order of the program.
    traced : by op, what runs within the call; equal calls share one. None for what is no call.
    reads : by op, the tensors that it reads, in the order of `traced.inputs`.
    names : by op that stores a tensor, all names of the tensor.
    folded : ops that the reader of the program folded away.
    returned : tensors among the results of the program.
    tensor_of : tensor by the name of the node of the program that gives it.
    """

    graph: OpGraph
    traced: tuple[Traced | None, ...]
    reads: tuple[tuple[int, ...], ...]
    names: dict[int, tuple[str, ...]]
    folded: frozenset[int]
    returned: frozenset[int]
    tensor_of: dict[str, int]


def has_nested_graphs(program: TorchProgram) -> bool:
    """Whether a program calls graphs of its own (control flow), which have no layouts here."""
    from torch.fx import GraphModule

    module = program.graph_module
    return any(
        isinstance(attribute(module, node.target), GraphModule)
        for node in module.graph.nodes
        if node.op == "get_attr"
    )


def torch_calls(program: TorchProgram, graph: OpGraph) -> TorchCalls:
    """Return the calls of a program with the costs of its graph.

    Raises
    ------
    InputError
        If a call cannot be run on fake tensors.
    """
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return _Walk(program, graph).calls()


class _Walk:
    """Runs a program on fake tensors, node by node."""

    def __init__(self, program: TorchProgram, graph: OpGraph) -> None:
        self.program, self.cost = program, graph
        self.values: dict[Any, Any] = {}  # by node
        self.tensor_of: dict[int, int] = {}  # by id of the fake tensor
        self.kept: list[Any] = []  # fake tensors, so that their ids stay theirs
        self.triples: list[tuple[int, int, list[int]]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.op_names: list[str] = []
        self.kinds: list[str] = []
        self.traced: list[Traced | None] = []
        self.reads: list[tuple[int, ...]] = []
        self.names: dict[int, tuple[str, ...]] = {}
        self.parameters: list[int] = []
        self.known: dict[Any, Traced] = {}

    def calls(self) -> TorchCalls:
        """Return what was found."""
        stored: dict[int, Any] = {}
        returned: list[Any] = []
        for node in self.program.graph_module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._input(node)
            elif node.op == "get_attr":
                self.values[node] = self._stored(node, stored)
            elif node.op == "output":
                returned = tensors_of(self._given(node.args))
            elif node.target is operator.getitem:
                whole, at = self._given(node.args)
                self.values[node] = whole[at]
            else:
                self.values[node] = self._call(node)
        return TorchCalls(
            self._graph(),
            tuple(self.traced),
            tuple(self.reads),
            self.names,
            frozenset(self._folded()),
            frozenset(self.tensor_of[id(x)] for x in returned if id(x) in self.tensor_of),
            {
                node.name: self.tensor_of[id(value)]
                for node, value in self.values.items()
                if id(value) in self.tensor_of
            },
        )

    def _given(self, value: Any) -> Any:
        from torch.fx import map_arg

        return map_arg(value, lambda node: self.values[node])

    def _op(self, name: str, kind: str, made: Sequence[Any], parameters: int = 0) -> int:
        op = len(self.op_names)
        self.op_names.append(name)
        self.kinds.append(kind)
        self.parameters.append(parameters)
        self.traced.append(None)
        self.reads.append(())
        for value in made:
            self.tensor_of[id(value)] = len(self.triples)
            self.kept.append(value)
            self.triples.append((op, value.numel() * value.element_size(), []))
            self.shapes.append(tuple(value.shape))
        return op

    def _input(self, node: Any) -> Any:
        import torch

        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return value
        sizes, strides = map(_whole, value.shape), map(_whole, value.stride())
        made = torch.empty_strided(
            tuple(sizes), tuple(strides), dtype=value.dtype, device=value.device
        )
        self._op(node.name, INPUT, [made])
        return made

    def _stored(self, node: Any, known: dict[int, Any]) -> Any:
        import torch
        from torch._guards import detect_fake_mode

        value = attribute(self.program.graph_module, node.target)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in known:
            mode: Any = detect_fake_mode()
            made = mode.from_tensor(value.detach(), static_shapes=True)
            learned = isinstance(value, torch.nn.Parameter)
            op = self._op(
                str(node.target), WEIGHT if learned else BUFFER, [made], value.numel() * learned
            )
            known[id(value)] = made, op
            self.names[op] = ()
        made, op = known[id(value)]
        self.names[op] = (*self.names[op], str(node.target))
        return made

    def _call(self, node: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_map

        args, kwargs = self._given(node.args), self._given(node.kwargs)
        inputs = tensors_of((args, kwargs))
        key = _key(node.target, args, kwargs, inputs)
        try:
            with torch.no_grad():
                if key in self.known:
                    found, result = self.known[key], node.target(*args, **kwargs)
                else:
                    result, found = traced(node.target, args, kwargs)
                    self.known[key] = found
                same = {id(x) for x in (*inputs, *self.kept)}
                result = tree_map(
                    lambda x: torch.ops.aten.alias.default(x) if id(x) in same else x, result
                )
        except Exception as error:
            reason = one_line(str(error).strip().split("\n")[0], 200)
            raise InputError(
                f"call '{node.name}' of {self.program.program.name} cannot be run on fake tensors: "
                f"{reason}"
            ) from error
        made = tensors_of(result)
        if made:
            kind = self.program_kinds[node.name]
            op = self._op(node.name, kind, made)
            self.traced[op] = found
            self.reads[op] = tuple(self.tensor_of[id(x)] for x in inputs)
            for tensor in self.reads[op]:
                self.triples[tensor][2].append(op)
        return result

    @property
    def program_kinds(self) -> dict[str, str]:
        """Kind of every call by name."""
        if not hasattr(self, "_kinds"):
            self._kinds = {call.name: call.kind for call in self.program.program.calls}
        return self._kinds

    def _folded(self) -> list[int]:
        known = set(self.cost.op_names)
        return [
            op
            for op, name in enumerate(self.op_names)
            if self.traced[op] is not None and name not in known
        ]

    def _graph(self) -> OpGraph:
        """Return the graph, with the costs of the ops of the same name."""
        at = {name: op for op, name in enumerate(self.cost.op_names)}
        rows = [
            at.get(name, -1) if traced is not None else -1
            for name, traced in zip(self.op_names, self.traced, strict=True)
        ]

        def column(values: Any) -> Any:
            return np.array([values[row] if row >= 0 else 0 for row in rows], np.int64)

        free = [row >= 0 and 0 in self.cost.measured[row].tolist() for row in rows]
        timed: dict[str, Any] = {}
        if any(free):
            timed = {"measured_kinds": ("*",), "measured": np.where(np.array(free)[:, None], 0, -1)}
        return OpGraph.from_tensors(
            self.cost.name,
            self.op_names,
            self.triples,
            op_types=tuple(self.kinds),
            flops=column(self.cost.flops),
            bytes_moved=column(self.cost.bytes_moved),
            parameters=np.array(self.parameters, np.int64),
            shapes=tuple(self.shapes),
            **timed,
        )


def _whole(size: Any) -> int:
    """Return a size; a symbolic one is that of the example."""
    if isinstance(size, int):
        return size
    return int(size.node.hint)


def _key(target: Any, args: Any, kwargs: Any, inputs: Sequence[Any]) -> Any:
    """Return what two calls have in common whose ways are the same."""
    from torch.utils._pytree import tree_flatten

    at = {id(x): i for i, x in enumerate(inputs)}
    leaves, nesting = tree_flatten((args, kwargs))
    words = tuple(
        (at[id(x)], tuple(x.shape), x.stride(), x.dtype, x.device) if id(x) in at else repr(x)
        for x in leaves
    )
    return target, str(nesting), words
