"""A program of torch.export as what is sharded: one op per input, stored tensor and call, and how a
call can be divided over one mesh axis, by DTensor's own rules.

A reader folds calls away that take no time (views of weights, masks made of constants); here every
call stays, since each of its operands needs a layout when it runs. What a call costs is what the
reader says of the op of that name; a call that the reader folded costs nothing. A stored tensor
under several names (tied weights) is one op.

A call is run on fake tensors to get the ATen ops within it: composites such as `linear` and
`layer_norm` are several. DTensor's sharding propagator says, op by op, which placements of the
inputs need no redistribution and what placement the results then have. Placements of the call's
inputs with which no op within it communicates are a *way* of the call; its results are placed as
torch says. So what lies between calls is chosen here, and within a call nothing is left for torch
to choose. A call with an op that has no rule is only replicated.

The mesh belongs to no process group, and nothing of a process that has one is touched.
Only what has a torch program at hand imports this module, and torch with it.

`scaled_dot_product_attention` is one op here: which fused kernel it becomes depends on the device,
and the one of CPUs has no rule. It is divided as torch's rules divide those of GPUs, over batch or
heads.

Three kinds of rule are not taken: those of ops that communicate within their own handler (argmax,
sharded images in convolutions), that of the channels of a convolution (torch passes them through
unchecked), and results that are strided shards, which no reader takes.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema
from torch.fx import GraphModule, map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from placeopt.model.arrays import positions
from placeopt.model.errors import InputError
from placeopt.model.files import Data, one_line
from placeopt.model.graph import OpGraph
from placeopt.programs.torch_program import TorchProgram, attribute
from placeopt.sharding.layouts import PARTIAL, PARTIAL_KINDS, REPLICATE, Layout
from placeopt.sharding.op_rules import Way

ByIdentity = dict[int, Any]
"""What is known of each value, by its identity."""


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
    with FakeTensorMode(allow_non_fake_inputs=True):
        return _Walk(program, graph).calls()


class _Walk:
    """Runs a program on fake tensors, node by node."""

    def __init__(self, program: TorchProgram, graph: OpGraph) -> None:
        self.program, self.cost = program, graph
        self.row = positions(graph.op_names)  # of what has a cost
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
        self.kind_of = {call.name: call.kind for call in program.program.calls}
        nodes = program.graph_module.graph.nodes
        self.taken = {node.name for node in nodes if node.op != "get_attr"}

    def calls(self) -> TorchCalls:
        """Return what was found."""
        stored: ByIdentity = {}
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
            frozenset(
                op
                for op, (name, call) in enumerate(zip(self.op_names, self.traced, strict=True))
                if call is not None and name not in self.row
            ),
            frozenset(self.tensor_of[id(x)] for x in returned if id(x) in self.tensor_of),
            {
                node.name: self.tensor_of[id(value)]
                for node, value in self.values.items()
                if id(value) in self.tensor_of
            },
        )

    def _given(self, value: Any) -> Any:
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
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return value
        sizes, strides = map(_whole, value.shape), map(_whole, value.stride())
        made = torch.empty_strided(
            tuple(sizes), tuple(strides), dtype=value.dtype, device=value.device
        )
        self._op(node.name, INPUT, [made])
        return made

    def _stored(self, node: Any, known: ByIdentity) -> Any:
        value = attribute(self.program.graph_module, node.target)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in known:
            mode: Any = detect_fake_mode()
            made = mode.from_tensor(value.detach(), static_shapes=True)
            learned, name = isinstance(value, torch.nn.Parameter), str(node.target)
            kind = WEIGHT if learned else BUFFER
            if name in self.taken:
                name = f"{name} ({kind})"
            op = self._op(name, kind, [made], value.numel() * learned)
            known[id(value)] = made, op
            self.names[op] = ()
        made, op = known[id(value)]
        self.names[op] = (*self.names[op], str(node.target))
        return made

    def _call(self, node: Any) -> Any:
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
            op = self._op(node.name, self.kind_of[node.name], made)
            self.traced[op] = found
            self.reads[op] = tuple(self.tensor_of[id(x)] for x in inputs)
            for tensor in self.reads[op]:
                self.triples[tensor][2].append(op)
        return result

    def _graph(self) -> OpGraph:
        """Return the graph, with the costs of the ops of the same name."""
        rows = [
            self.row.get(name, -1) if traced is not None else -1
            for name, traced in zip(self.op_names, self.traced, strict=True)
        ]

        def column(values: Any) -> Any:
            return np.array([values[row] if row >= 0 else 0 for row in rows], np.int64)

        free = [row >= 0 and 0 in self.cost.measured[row].tolist() for row in rows]
        timed: Data = {}
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
    return size if isinstance(size, int) else int(size.node.hint)


def _key(target: Any, args: Any, kwargs: Any, inputs: Sequence[Any]) -> Any:
    """Return what two calls have in common whose ways are the same."""
    at = {id(x): i for i, x in enumerate(inputs)}
    leaves, nesting = tree_flatten((args, kwargs))
    words = tuple(
        (at[id(x)], tuple(x.shape), x.stride(), x.dtype, x.device) if id(x) in at else repr(x)
        for x in leaves
    )
    return target, str(nesting), words


class Inner(NamedTuple):
    """An ATen op within a call, as it ran on fake tensors."""

    op: Any
    args: tuple[Any, ...]
    kwargs: Data
    result: Any


class Traced(NamedTuple):
    """A call on fake tensors.

    Attributes
    ----------
    inputs : distinct tensors among its arguments, in order. outputs : tensors that it returns.
    """

    inner: tuple[Inner, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def tensors_of(value: Any) -> list[Any]:
    """Return the distinct tensors nested in a value, in order."""
    found = {id(x): x for x in tree_leaves(value) if isinstance(x, torch.Tensor)}
    return list(found.values())


def traced(target: Any, args: tuple[Any, ...], kwargs: Data) -> tuple[Any, Traced]:
    """Run a call on fake tensors; return its result and what ran."""
    ran: list[Inner] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            result = op(*args, **(kwargs or {}))
            if op.namespace != "prim":
                ran.append(Inner(op, args, kwargs or {}, result))
            return result

    if is_attention(target):
        result = target(*args, **kwargs)
        ran.append(Inner(target, args, kwargs, result))
    else:
        with Recorder():
            result = target(*args, **kwargs)
    return result, Traced(tuple(ran), tuple(tensors_of((args, kwargs))), tuple(tensors_of(result)))


def is_attention(target: Any) -> bool:
    """Whether a call is the attention that torch may fuse."""
    return str(target).startswith("aten.scaled_dot_product_attention")


def attention_placements(given: tuple[Any, ...], tensors: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the placements of the result of an attention, None where it would communicate.

    Batch or heads of queries, keys and values are split alike; a mask follows where it has them.

    Parameters
    ----------
    given : placements of `tensors`: queries, keys, values and the mask, if any.
    """
    rank = tensors[0].dim()
    for number, place in enumerate(given[0]):
        split = place.is_shard() and place.dim < rank - 2
        if not split and not place.is_replicate():
            return None
        for places_of, value in zip(given[1:], tensors[1:], strict=True):
            at = place.dim - rank + value.dim() if split else -1
            follows = split and at >= 0 and value.shape[at] > 1
            wanted = placement(at if follows else REPLICATE)
            if places_of[number] != wanted:
                return None
    return tuple(given[0])


class _Free(NamedTuple):
    """The placements among which those of a call's inputs are chosen.

    Attributes
    ----------
    group : of every input, by identity: those of one group are placed alike. choices : of every
    group.
    """

    group: ByIdentity
    choices: dict[Any, list[Any]]

    @classmethod
    def of(cls, call: Traced, size: int, most: int = 4096) -> _Free:
        """Return the placements of the inputs of a call over an axis.

        Parameters
        ----------
        most : combinations that are tried. Where there are more (six tensors that are joined),
        inputs of one shape are placed alike; where that leaves more, those of as many dimensions.
        """
        found = {id(x): places(x, size) for x in call.inputs}
        used = {id(x) for step in call.inner for x in tensors_of((step.args, step.kwargs))}
        used |= {id(x) for x in call.outputs}
        for key in found.keys() - used:  # only its shape or type is looked at
            found[key] = found[key][:1]
        kinds: list[Callable[[Any], Any]] = [id, lambda x: tuple(x.shape), lambda x: (x.dim(),)]
        for kind in kinds:
            group = {id(x): kind(x) if id(x) in used else id(x) for x in call.inputs}
            choices: dict[Any, list[Any]] = {}
            for key, same in group.items():
                choices[same] = [x for x in choices.get(same, found[key]) if x in found[key]]
            if math.prod(map(len, choices.values())) <= most:
                break
        return cls(group, choices)

    def extended(self, placed: ByIdentity, keys: Iterable[int]) -> Iterator[ByIdentity]:
        """Yield what is placed with every choice for those inputs among `keys` that are not."""
        left = {key: self.group[key] for key in keys if key in self.group and key not in placed}
        known = {self.group[key]: place for key, place in placed.items() if key in self.group}
        open_ = [group for group in dict.fromkeys(left.values()) if group not in known]
        for chosen in itertools.product(*(self.choices[group] for group in open_)):
            now = known | dict(zip(open_, chosen, strict=True))
            yield placed | {key: now[group] for key, group in left.items()}


class TorchRules:
    """The rules of DTensor on a mesh of some sizes.

    Parameters
    ----------
    sizes : of the axes. A way is sought with one axis, whether a choice for all axes needs no
    redistribution (`agrees`) with all of them.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.dispatcher: Any = DTensor._op_dispatcher
        self.meshes = {
            key: DeviceMesh(
                "cpu", torch.arange(math.prod(key)).reshape(key), _init_backend=False, _rank=0
            )
            for key in {(size,) for size in sizes} | {sizes}
        }
        self.known: dict[Any, Any] = {}
        self._calls: dict[int, Traced] = {}  # kept, or another one would get the number of one

    def ways(self, call: Traced, size: int) -> list[Way]:
        """Return the ways of a call over an axis of a size, to replicate it first; those whose
        inputs cost no less and whose results are the same are left out.
        """
        count, made = len(call.inputs), len(call.outputs)
        whole = Way("R", (REPLICATE,) * count, (REPLICATE,) * made, divided=False)
        found = {whole.inputs: whole}
        if size > 1 and call.inputs and call.outputs:
            for inputs, outputs in self._found(call, size):
                places = (*inputs, *outputs)
                name = f"{_words(inputs)} -> {_words(outputs)}"
                way = Way(name, inputs, outputs, divided=any(p >= 0 for p in places))
                found.setdefault(inputs, way)
        rows = list(found.values())
        kept = [
            way for way in rows if way is whole or not any(_replaces(other, way) for other in rows)
        ]
        return sorted(kept, key=lambda way: (way is not whole, PARTIAL in way.inputs))

    def agrees(self, call: Traced, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> bool:
        """Whether DTensor, on the mesh of all axes, runs a call on these layouts without
        communication and makes its results in those. A call that is whole on every device needs no
        rule.
        """
        if all(place == REPLICATE for layout in (*inputs, *outputs) for place in layout):
            return True
        placed = {
            id(x): tuple(map(placement, layout))
            for x, layout in zip(call.inputs, inputs, strict=True)
        }
        for number, step in enumerate(call.inner):
            read = tuple(placed.get(id(x)) for x in tensors_of((step.args, step.kwargs)))
            made = self._step(call, number, tuple(p or self._whole for p in read), self.sizes)
            if made is None:
                return False
            placed |= zip(map(id, tensors_of(step.result)), made, strict=True)
        return all(
            tuple(map(code, placed.get(id(x), self._whole))) == layout
            for x, layout in zip(call.outputs, outputs, strict=True)
        )

    @property
    def _whole(self) -> tuple[Any, ...]:
        return (placement(REPLICATE),) * len(self.sizes)

    def _found(self, call: Traced, size: int) -> Iterator[tuple[Layout, Layout]]:
        """Yield the placements of inputs and outputs with which nothing is communicated."""
        for placed in self._placed(call, size, _Free.of(call, size), 0, {}):
            inputs = tuple(code(placed[id(x)]) or 0 for x in call.inputs)
            made = [code(placed.get(id(x), placement(REPLICATE))) for x in call.outputs]
            outputs = tuple(place for place in made if place is not None)
            if len(outputs) == len(made) and _divisible(call.outputs, outputs, size):
                yield inputs, outputs

    def _placed(
        self, call: Traced, size: int, free: _Free, number: int, placed: ByIdentity
    ) -> Iterator[ByIdentity]:
        """Yield the placements of all tensors, by identity, that go on from those of the tensors of
        the ops before `number`.
        """
        if number == len(call.inner):
            yield from free.extended(placed, free.group)
            return
        step = call.inner[number]
        given = tensors_of((step.args, step.kwargs))
        for now in free.extended(placed, map(id, given)):
            needed = tuple((now.get(id(x), placement(REPLICATE)),) for x in given)
            made = self._step(call, number, needed, (size,))
            if made is not None:
                outputs = zip(map(id, tensors_of(step.result)), (p[0] for p in made), strict=True)
                yield from self._placed(call, size, free, number + 1, now | dict(outputs))

    def _step(
        self, call: Traced, number: int, given: tuple[Any, ...], sizes: tuple[int, ...]
    ) -> list[Any] | None:
        """Return the placements of the results of an op, None if it communicates or has no rule."""
        self._calls[id(call)] = call
        key = id(call), number, given, sizes
        if key not in self.known:
            try:
                if len(sizes) > 1 and self._by_axis(call.inner[number].op):
                    self.known[key] = self._joined(call, number, given, sizes)
                else:
                    self.known[key] = self._propagated(call.inner[number], given, sizes)
            except Exception:  # torch's rules raise what they like for placements they do not take
                self.known[key] = None
        return self.known[key]  # type: ignore[no-any-return]

    def _by_axis(self, op: Any) -> bool:
        """Whether torch itself makes the strategies of an op on a mesh as the products of those on
        one axis, which costs it seconds for what is known here.
        """
        return op in self.dispatcher.sharding_propagator.op_single_dim_strategy_funcs

    def _joined(
        self, call: Traced, number: int, given: tuple[Any, ...], sizes: tuple[int, ...]
    ) -> list[Any] | None:
        """Return the placements of the results on a mesh, from those on each axis."""
        by_axis = []
        for axis, size in enumerate(sizes):
            made = self._step(call, number, tuple((row[axis],) for row in given), (size,))
            if made is None:
                return None
            by_axis.append([row[0] for row in made])
        rows = [tuple(row) for row in zip(*by_axis, strict=True)]
        kinds = [{x.reduce_op for x in row if x.is_partial()} for row in rows]
        return rows if all(len(found) < 2 for found in kinds) else None

    def _propagated(
        self, step: Inner, given: tuple[Any, ...], sizes: tuple[int, ...]
    ) -> list[Any] | None:
        results = tree_leaves(step.result)
        if not given:
            return [(placement(REPLICATE),) * len(sizes)] * len(tensors_of(step.result))
        read = tensors_of((step.args, step.kwargs))
        if is_attention(step.op):
            found = attention_placements(given, read)
            return None if found is None else [found]
        if not self._taken(step, read, given):
            return None
        specs = {
            id(x): DTensorSpec(self.meshes[sizes], places, TensorMeta(x.shape, x.stride(), x.dtype))
            for x, places in zip(read, given, strict=True)
        }
        args, kwargs = tree_map(lambda x: specs.get(id(x), x), (step.args, step.kwargs))
        rules = self.dispatcher.sharding_propagator
        info = rules.op_to_schema_info.get(step.op)
        info = info or rules.op_to_schema_info_for_single_dim_strategy.get(step.op)
        schema = OpSchema(step.op, args, kwargs, schema_info=info)
        answer = rules.propagate_op_sharding_non_cached(schema)
        if answer.needs_redistribute and not _same_placements(schema, answer.redistribute_schema):
            return None
        made = answer.output_spec
        specs_out = list(made) if isinstance(made, list | tuple) else [made] * len(results)
        by_value = {
            id(value): spec.placements
            for value, spec in zip(results, specs_out, strict=True)
            if isinstance(value, torch.Tensor)
        }
        return list(by_value.values())

    def _taken(self, step: Inner, read: list[Any], given: tuple[Any, ...]) -> bool:
        """Whether torch's rule holds and its handler does not communicate."""
        named = {id(x) for x in tensors_of(step.kwargs)}
        by_name = [row for x, row in zip(read, given, strict=True) if id(x) in named]
        if not _replicated(by_name):  # torch redistributes no keyword
            return False
        if step.op is torch.ops.aten.convolution.default:
            batch = (p.is_shard(0) or p.is_replicate() for p in given[0])
            return all(batch) and _replicated(given[1:])
        return step.op not in self.dispatcher._custom_op_handlers or _replicated(given)


def placement(place: int) -> Any:
    """Return a placement as torch has it."""
    if place >= 0:
        return Shard(place)
    return Replicate() if place == REPLICATE else Partial(PARTIAL_KINDS[place])


def code(place: Any) -> int | None:
    """Return torch's placement as a number, None for one that has none.

    Summands that torch still has to mask (rows of an embedding) are summands: the file that runs
    masks them at once.
    """
    if type(place) is Replicate:
        return REPLICATE
    if type(place) is Shard:
        return int(place.dim)
    if type(place) is Partial or _masked(place):
        kinds = {kind: number for number, kind in PARTIAL_KINDS.items()}
        return kinds.get(place.reduce_op)
    return None


def places(value: Any, size: int) -> list[Any]:
    """Return the placements of a tensor over an axis: replicated, summands, every dimension that
    the devices divide.
    """
    split = [d for d, length in enumerate(value.shape) if length and length % size == 0]
    summed = [PARTIAL] if value.dtype.is_floating_point or value.dtype.is_complex else []
    return [placement(place) for place in (REPLICATE, *split, *summed)]


def _same_placements(schema: Any, wanted: Any) -> bool:
    """Whether two schemas place their arguments alike; a copy serves as a masked sum."""
    return all(
        a == b or (a.is_replicate() and _masked(b))
        for x, y in zip(schema.args_spec, wanted.args_spec, strict=True)
        for a, b in zip(x.placements, y.placements, strict=True)
    )


def _replicated(rows: Iterable[Any]) -> bool:
    """Whether all placements are to replicate."""
    return all(place.is_replicate() for row in rows for place in row)


def _masked(place: Any) -> bool:
    return type(place).__name__ == "_MaskPartial"


def _divisible(values: Sequence[Any], layout: Layout, size: int) -> bool:
    return all(
        place < 0 or value.shape[place] % size == 0
        for value, place in zip(values, layout, strict=True)
    )


def _replaces(one: Way, other: Way) -> bool:
    """Whether a way has the same results and splits what the other reads whole, which costs no
    less from any layout.
    """
    return (
        one is not other
        and one.outputs == other.outputs
        and one.divided >= other.divided
        and all(
            a == b or (a >= 0 and b == REPLICATE)
            for a, b in zip(one.inputs, other.inputs, strict=True)
        )
    )


def _words(layout: Layout) -> str:
    short = {place: f"P({kind})" for place, kind in PARTIAL_KINDS.items()}
    short |= {REPLICATE: "R", PARTIAL: "P"}
    return " ".join(short.get(place, f"S{place}") for place in layout)
