"""A sharding problem from a model: one node per op, one per weight, on a mesh of devices.

The strategies of an op are the products, over the mesh axes, of its ways of being divided; those of
a weight are its layouts. Ways of a torch program are those of DTensor (`torch_calls`): every call
and every stored tensor is a node, and a product of ways counts only if DTensor runs it on the whole
mesh without communication. Ways of ONNX models and generators, which come without torch, are read
off the shapes (`op_rules`). Costs are ticks: an op takes the roofline time of
its share, with every tensor it touches read once; an edge takes the collectives that turn the
layout in which a tensor is made (or a weight kept) into the one its reader needs (`layouts`). Usage
is bytes per device: a tensor while some reader is still to come, a weight all the time.

With `training`, forward and backward pass count: three times the work of the forward pass; the
gradient of a tensor goes back over every edge, partial where the reader is divided but reads the
tensor whole; weights are kept with gradient and optimizer state (16 bytes per value: two moments
and a 32-bit copy), which are read and written once; a tensor is kept until its op's turn in the
backward pass.

References
----------
M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019. L. Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for
Distributed Deep Learning", OSDI 2022.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache, partial
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import Floats, Ints, as_pairs, to_ticks
from placeopt.model.cost_model import op_rates
from placeopt.model.errors import InputError
from placeopt.sharding.layouts import (
    PARTIAL,
    REPLICATE,
    Axis,
    Layout,
    change_seconds,
    divides,
    mesh_axes,
    share,
)
from placeopt.sharding.op_rules import Form, Shape, Way, ways_of
from placeopt.sharding.problem import MAX_NUMBER, ShardingProblem, starts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.cluster import Cluster
    from placeopt.model.graph import OpGraph
    from placeopt.programs.torch_program import TorchProgram
    from placeopt.sharding.torch_calls import TorchCalls

FORBIDDEN = 10**15
"""Cost of a change of layout that does not exist, in ticks of a nanosecond: eleven days."""

TRAINED_BYTES = 16
"""Bytes kept per learned value in training: value, gradient, two moments, and a 32-bit copy."""


class OpStrategy(NamedTuple):
    """One strategy of an op: a way per mesh axis, and the layouts that follow."""

    ways: tuple[Way, ...]
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    weight: Layout
    parts: int  # devices that share the work

    @property
    def name(self) -> str:
        """The ways, one per axis."""
        return " x ".join(way.name for way in self.ways)


class Weight(NamedTuple):
    """A learned table: the op that reads it, its shape and size."""

    op: int
    shape: Shape
    size: int  # bytes
    values: int


@dataclass(frozen=True, eq=False)
class ShardingModel:
    """A model on a mesh, and what the nodes of its problem mean: first the ops, then the weights.

    Attributes
    ----------
    strategies : by op. weights : in the order of their nodes. layouts : by weight, its strategies.
    reads, makes : by op, the tensors that it reads and makes.
    calls : what the ops are in a torch program, whose weights are ops of the graph; None for other
    sources.
    """

    graph: OpGraph
    axes: tuple[Axis, ...]
    problem: ShardingProblem
    strategies: tuple[tuple[OpStrategy, ...], ...]
    weights: tuple[Weight, ...]
    layouts: tuple[tuple[Layout, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    training: bool
    calls: TorchCalls | None = None

    def stores(self, op: int) -> bool:
        """Whether an op only holds a tensor: an argument or a weight of a torch program."""
        return self.calls is not None and self.calls.traced[op] is None


def sharding_model(
    graph: OpGraph,
    cluster: Cluster,
    mesh: tuple[int, ...],
    *,
    training: bool = False,
    memory: int | None = None,
    program: TorchProgram | None = None,
) -> ShardingModel:
    """Return the sharding problem of a model.

    Parameters
    ----------
    graph : the forward pass, with the shapes of its tensors.
    mesh : sizes of the axes; the devices of the cluster fill it in order, the last axis running
    fastest.
    memory : bytes per device, by default those of the smallest device.
    program : the torch program that the graph was read from: the rules are then DTensor's. One with
    nested graphs (control flow) has the rules of other sources.

    Raises
    ------
    InputError
        If the graph has no shapes or backward ops already, or the mesh does not have the cluster's
        devices.
    """
    if not graph.shapes:
        raise InputError(
            f"graph '{graph.name}': its tensors have no shapes, so no op can be split; use ONNX, "
            "torch.export or a generator"
        )
    if graph.backward.any():
        raise InputError(
            f"graph '{graph.name}' has backward ops; give the forward pass and training=True"
        )
    calls = None
    if program is not None:
        from placeopt.sharding.torch_calls import has_nested_graphs, torch_calls

        calls = None if has_nested_graphs(program) else torch_calls(program, graph)
    return _Builder(graph, cluster, mesh, training, calls).build(memory)


class _Builder:
    """The columns of the problem, node by node and edge by edge."""

    def __init__(
        self,
        graph: OpGraph,
        cluster: Cluster,
        mesh: tuple[int, ...],
        training: bool,
        calls: TorchCalls | None,
    ) -> None:
        self.graph = graph = graph if calls is None else calls.graph
        self.cluster, self.training, self.calls = cluster, training, calls
        self.axes = mesh_axes(cluster, mesh)
        self.device = min(cluster.devices, key=lambda d: (d.peak_flops, d.memory_bandwidth))
        self.rates = op_rates(graph, self.device)
        self.made, self.reads, self.readers = graph.makes(), graph.reads(), graph.readers()
        self.place = np.argsort(graph.topological_order)
        self.free = np.zeros(graph.num_ops, np.bool_)
        if graph.measured.size:
            self.free |= (graph.measured == 0).any(axis=1)
        self.whole = {t for t, readers in enumerate(self.readers) if not readers}
        self.weights: list[Weight] = []
        self.change = cache(partial(change_seconds, axes=self.axes))
        self.tables: dict[tuple[object, ...], Floats] = {}
        if calls is not None:
            self._take_calls(calls, mesh)

    def _take_calls(self, calls: TorchCalls, mesh: tuple[int, ...]) -> None:
        """Take note of what a torch program says of the ops, and of its rules."""
        from placeopt.sharding.torch_calls import TorchRules

        self.reads = [list(row) for row in calls.reads]
        self.place = np.arange(self.graph.num_ops)
        self.free |= [call is None or op in calls.folded for op, call in enumerate(calls.traced)]
        self.whole |= calls.returned
        self.rules = TorchRules(mesh)
        self.equal: dict[tuple[object, ...], list[OpStrategy]] = {}

    def build(self, memory: int | None) -> ShardingModel:
        """Return the model."""
        if memory is None:
            memory = min(device.memory for device in self.cluster.devices)
        strategies = tuple(self._strategies(op) for op in range(self.graph.num_ops))
        layouts = tuple(self._weight_layouts(weight) for weight in self.weights)
        return ShardingModel(
            self.graph,
            self.axes,
            self._problem(strategies, layouts, memory),
            strategies,
            tuple(self.weights),
            layouts,
            tuple(map(tuple, self.reads)),
            tuple(map(tuple, self.made)),
            self.training,
            self.calls,
        )

    def _problem(
        self,
        strategies: tuple[tuple[OpStrategy, ...], ...],
        layouts: tuple[tuple[Layout, ...], ...],
        memory: int,
    ) -> ShardingProblem:
        """Return the choice of a strategy for every op and a layout for every weight, whose nodes
        follow those of the ops.
        """
        ops = [(op, s) for op, row in enumerate(strategies) for s in row]
        weights = [(w, x) for w, row in zip(self.weights, layouts, strict=True) for x in row]
        cost = [*starmap(self._op_seconds, ops), *starmap(self._weight_seconds, weights)]
        usage = [*starmap(self._op_bytes, ops), *starmap(self._weight_bytes, weights)]
        edges, tables = self._edges(strategies, layouts)
        sizes = [len(row) for row in (*strategies, *layouts)]
        shape = "x".join(str(axis.size) for axis in self.axes)
        names = self.graph.op_names
        return ShardingProblem(
            name=f"{self.graph.name} on {shape} {self.cluster.name}",
            node_ptr=starts_of(sizes),
            cost=_ticks(np.array(cost)),
            usage=np.array(usage, np.int64),
            interval=np.array(self._intervals(), np.int64),
            edge=as_pairs(edges),
            edge_cost=_ticks(np.concatenate([np.zeros(0), *tables])),
            usage_limit=memory,
            node_names=(*names, *(f"{names[w.op]} (weight)" for w in self.weights)),
            strategy_names=(*(s.name for _, s in ops), *(str(layout) for _, layout in weights)),
            tick_seconds=1e-9,
        )

    # --- strategies
    # ---------------------------------------------------------------------------------------

    def _strategies(self, op: int) -> tuple[OpStrategy, ...]:
        if self.calls is not None:
            return tuple(self._torch_strategies(op, self.calls))
        graph = self.graph
        inputs = tuple(graph.shapes[t] for t in self.reads[op])
        outputs = tuple(graph.shapes[t] for t in self.made[op])
        weight = self._weight_shape(op, inputs, outputs)
        if weight:
            values = int(graph.parameters[op]) or math.prod(weight)
            self.weights.append(Weight(op, weight, int(graph.resident[op]), values))
        ways = ways_of(Form(graph.op_types[op], inputs, outputs, weight))
        return tuple(self._products(op, [ways] * len(self.axes), weight))

    def _products(self, op: int, ways: list[list[Way]], weight: Shape = ()) -> Iterator[OpStrategy]:
        """Yield the strategies of an op: the products of its ways on each axis that divide every
        tensor.
        """
        # Most strategies of an op; a mesh that gives more has too many axes for it. An edge
        # between two such ops has 160 000 costs; 400 are 20 ways on each of two axes, and 7 on
        # each of three
        max_strategies = 400
        most = int(max_strategies ** (1 / len(self.axes)))
        if math.prod(map(len, ways)) > max_strategies:
            ways = [row[:most] for row in ways]
        for chosen in itertools.product(*ways):
            divided = (
                axis.size for axis, way in zip(self.axes, chosen, strict=True) if way.divided
            )
            strategy = OpStrategy(
                chosen,
                tuple(tuple(way.inputs[i] for way in chosen) for i in range(len(self.reads[op]))),
                tuple(tuple(way.outputs[i] for way in chosen) for i in range(len(self.made[op]))),
                tuple(way.weight for way in chosen),
                math.prod(divided),
            )
            if self._is_possible(op, strategy, weight):
                yield strategy

    def _is_possible(self, op: int, strategy: OpStrategy, weight: Shape) -> bool:
        """Whether a strategy divides every tensor, and what the model returns is whole."""
        made = list(zip(self.made[op], strategy.outputs, strict=True))
        if any(t in self.whole and min(layout) <= PARTIAL for t, layout in made):
            return False
        read = zip(self.reads[op], strategy.inputs, strict=True)
        pairs = [(self.graph.shapes[t], layout) for t, layout in (*read, *made)]
        return all(starmap(self._allowed, (*pairs, (weight, strategy.weight))))

    def _allowed(self, shape: Shape, layout: Layout) -> bool:
        """Whether a tensor can have a layout: it divides the shape, in one kind of partial sum."""
        return divides(shape, layout, self.axes) and len({p for p in layout if p <= PARTIAL}) < 2

    def _torch_strategies(self, op: int, calls: TorchCalls) -> list[OpStrategy]:
        """Return the strategies of a call by DTensor's rules, and the layouts of what is stored."""
        call = calls.traced[op]
        if call is None:
            return list(self._products(op, self._stored_ways(op)))
        stored = [calls.traced[self.graph.producer[t]] is None for t in self.reads[op]]
        key = id(call), tuple(stored), tuple(t in self.whole for t in self.made[op])
        if key not in self.equal:
            found = [
                [way for way in self.rules.ways(call, axis.size) if _sums_something(way, stored)]
                for axis in self.axes
            ]
            self.equal[key] = [
                strategy
                for strategy in self._products(op, found)
                if self.rules.agrees(call, strategy.inputs, strategy.outputs)
            ]
        return self.equal[key]

    def _stored_ways(self, op: int) -> list[list[Way]]:
        """Return the ways of a stored tensor by axis: a weight is split along any dimension."""
        shape = self.graph.shapes[self.made[op][0]]
        places = range(len(shape) if self.graph.op_types[op] == "weight" else 0)
        whole = Way("R", (), (REPLICATE,), divided=False)
        split = [Way(f"S{d}", (), (d,)) for d in places]
        return [[whole, *(split if axis.size > 1 else ())] for axis in self.axes]

    def _weight_shape(
        self, op: int, inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]
    ) -> Shape:
        """Return the shape of an op's own weight as far as the rules need it, () without one."""
        values = int(self.graph.parameters[op])
        if values == 0 or not self.graph.resident[op] or not outputs or not outputs[0]:
            return ()
        last = outputs[0][-1]
        kind = self.graph.op_types[op].lower()
        if "conv" in kind and len(outputs[0]) > 2:
            channels = outputs[0][1]
            return (channels, inputs[0][1] if inputs else 1)
        if values <= 2 * last:
            return (last,)
        inner = (inputs[0][-1] if inputs and inputs[0] else 0) or values
        if values // inner >= last and kind not in ("embedding", "gather"):
            return (inner, last)
        return (values // last, last)

    def _weight_layouts(self, weight: Weight) -> tuple[Layout, ...]:
        places = [REPLICATE, *range(len(weight.shape))]
        return tuple(
            x
            for x in itertools.product(places, repeat=len(self.axes))
            if divides(weight.shape, x, self.axes)
        )

    # --- costs and usages
    # ---------------------------------------------------------------------------------

    def _op_seconds(self, op: int, strategy: OpStrategy) -> float:
        graph = self.graph
        if self._stores(op):
            values = int(graph.parameters[op])
            return self._weight_seconds(Weight(op, (), 0, values), strategy.outputs[0])
        if self.free[op]:
            return 0.0
        if graph.op_types[op].lower() in ("embedding", "gather"):
            moved = float(graph.bytes_moved[op]) / strategy.parts
        else:
            read = zip(self.reads[op], strategy.inputs, strict=True)
            made = zip(self.made[op], strategy.outputs, strict=True)
            moved = sum(int(graph.tensor_bytes[t]) / share(x, self.axes) for t, x in (*read, *made))
            moved += int(graph.resident[op]) / share(strategy.weight, self.axes)
        rounds = 3 if self.training else 1
        flops = rounds * float(graph.flops[op]) / strategy.parts
        rates = self.rates[op]
        return max(flops / rates.flops, rounds * moved / rates.bandwidth) + rounds * rates.launch

    def _weight_seconds(self, weight: Weight, layout: Layout) -> float:
        if not self.training:
            return 0.0
        return (
            2
            * weight.values
            * TRAINED_BYTES
            / share(layout, self.axes)
            / self.device.memory_bandwidth
        )

    def _stores(self, op: int) -> bool:
        return self.calls is not None and self.calls.traced[op] is None

    def _op_bytes(self, op: int, strategy: OpStrategy) -> int:
        if self._stores(op):
            size = int(self.graph.tensor_bytes[self.made[op][0]])
            values = int(self.graph.parameters[op])
            if values:
                return self._weight_bytes(Weight(op, (), size, values), strategy.outputs[0])
        elif self.calls is not None and op in self.calls.folded:
            return 0
        return sum(
            -(-int(self.graph.tensor_bytes[t]) // share(x, self.axes))
            for t, x in zip(self.made[op], strategy.outputs, strict=True)
        )

    def _weight_bytes(self, weight: Weight, layout: Layout) -> int:
        kept = weight.values * TRAINED_BYTES if self.training else weight.size
        return -(-kept // share(layout, self.axes))

    def _intervals(self) -> list[list[int]]:
        """A tensor lives from its op to its last reader; in training until the op's turn on the way
        back.
        """
        count = self.graph.num_ops
        end = 2 * count if self.training else count
        found = []
        for op in range(count):
            if self.calls is not None and op in self.calls.names:
                found.append([0, end])
                continue
            start = int(self.place[op])
            last = max(
                (int(self.place[r]) for t in self.made[op] for r in self.readers[t]), default=start
            )
            found.append([start, end - start if self.training else last + 1])
        return found + [[0, end]] * len(self.weights)

    def _edges(
        self,
        strategies: tuple[tuple[OpStrategy, ...], ...],
        layouts: tuple[tuple[Layout, ...], ...],
    ) -> tuple[list[tuple[int, int]], list[Floats]]:
        """Return the pairs of nodes and the seconds of every pair of their strategies."""
        edges, tables = [], []
        for tensor, op in enumerate(self.graph.producer.tolist()):
            before = [s.outputs[self.made[op].index(tensor)] for s in strategies[op]]
            for reader in self.readers[tensor]:
                at = self.reads[reader].index(tensor)
                after = [(s.inputs[at], s.ways) for s in strategies[reader]]
                edges.append((op, reader))
                tables.append(self._table(int(self.graph.tensor_bytes[tensor]), before, after))
        for number, weight in enumerate(self.weights):
            after = [(s.weight, s.ways) for s in strategies[weight.op]]
            edges.append((self.graph.num_ops + number, weight.op))
            tables.append(self._table(weight.size, list(layouts[number]), after))
        return edges, tables

    def _table(
        self, size: int, before: list[Layout], after: list[tuple[Layout, tuple[Way, ...]]]
    ) -> Floats:
        """Return the seconds of every pair; the table of equal ops is made once."""
        needs = tuple(
            (layout, tuple(way.divided or PARTIAL in way.inputs for way in ways))
            for layout, ways in after
        )
        key = size, tuple(before), needs
        if key not in self.tables:
            self.tables[key] = np.array(
                [
                    self._pair(size, made, needed, spread)
                    for made in before
                    for needed, spread in needs
                ]
            )
        return self.tables[key]

    def _pair(self, size: int, made: Layout, needed: Layout, spread: tuple[bool, ...]) -> float:
        """Return the seconds from how a tensor is made to how it is read, and of its gradient back.

        The gradient of a tensor that is read whole is partial where the reader works on a part;
        that of summands is whole.

        Parameters
        ----------
        spread : by axis, whether the devices compute different things.
        """
        seconds = self.change(size, made, needed)
        if not self.training:
            return seconds
        gradient = tuple(
            PARTIAL if place == REPLICATE and apart else REPLICATE if place <= PARTIAL else place
            for place, apart in zip(needed, spread, strict=True)
        )
        back = tuple(REPLICATE if place <= PARTIAL else place for place in made)
        return seconds + self.change(size, gradient, back)


def _sums_something(way: Way, stored: list[bool]) -> bool:
    """Whether a way that reads summands shares work, or reads some that another op has left; what
    is stored is whole.
    """
    left = [here for place, here in zip(way.inputs, stored, strict=True) if place <= PARTIAL]
    return way.divided or not left or not all(left)


def _ticks(seconds: Floats) -> Ints:
    """Return nanoseconds, FORBIDDEN where infinite."""
    finite = np.isfinite(seconds)
    ticks = np.full(seconds.shape, FORBIDDEN, np.int64)
    ticks[finite] = np.minimum(
        to_ticks(seconds[finite], 1e-9, "time of a strategy"), MAX_NUMBER - 1
    )
    return ticks
