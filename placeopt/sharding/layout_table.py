"""What a choice of strategies means: a table of ops and weights with their layouts, memory per
device, reference layouts, and layouts by the names of a model's parameters.

In a torch program every stored tensor has a node of its own, in its own dimensions. The rules of
other sources see an op's weight as (in, out), an embedding as (rows, width) and a convolution as
(out, in); ONNX stores it as it likes. There every parameter that an op reads gets the layout in its
own dimensions: a bias is split where the result is, and what the rules do not know is replicated.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.files import Data
from placeopt.sharding.layouts import (
    PARTIAL,
    REPLICATE,
    Layout,
    change_seconds,
    change_steps,
    divides,
    partition_spec,
    share,
    torch_placements,
)
from placeopt.sharding.problem import ShardingSolution

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from placeopt.model.arrays import Ints
    from placeopt.programs.calls import Program
    from placeopt.sharding.from_model import OpStrategy, ShardingModel, Weight
    from placeopt.sharding.op_rules import Shape, Way


@dataclass(frozen=True)
class ParameterLayout:
    """A parameter and its layout.

    Attributes
    ----------
    layout : per mesh axis the dimension of the parameter that is split, or REPLICATE.
    bytes : of the share of a device.
    """

    name: str
    shape: Shape
    layout: Layout
    bytes: int

    def row(self) -> Data:
        """Return what a table shows."""
        return {
            "parameter": self.name,
            "shape": list(self.shape),
            "torch": torch_placements(self.layout),
            "jax": partition_spec(self.layout, len(self.shape)),
            "bytes": self.bytes,
        }


def layout_rows(model: ShardingModel, solution: ShardingSolution) -> list[Data]:
    """Return one row per op and weight: its strategy, its layout for torch and for JAX, bytes per
    device.
    """
    graph, chosen = model.graph, solution.strategy.tolist()
    usage = model.problem.usage[model.problem.node_ptr[:-1] + solution.strategy].tolist()

    def row(node: int, kind: str, strategy: str, layout: Layout, rank: int) -> Data:
        return {
            "op": model.problem.node_names[node],
            "type": kind,
            "strategy": strategy,
            "torch": torch_placements(layout),
            "jax": partition_spec(layout, rank),
            "bytes": usage[node],
        }

    rows = []
    for op in graph.topological_order.tolist():
        strategy = model.strategies[op][chosen[op]]
        layout = strategy.outputs[0] if strategy.outputs else ()
        rank = len(graph.shapes[model.makes[op][0]]) if model.makes[op] else 0
        rows.append(row(op, graph.op_types[op], strategy.name, layout, rank))
    for number, weight in enumerate(model.weights):
        node = graph.num_ops + number
        layout = model.layouts[number][chosen[node]]
        rows.append(row(node, "weight", "", layout, len(weight.shape)))
    return rows


def collectives(model: ShardingModel, solution: ShardingSolution) -> dict[str, int]:
    """Return how many collectives of each kind a forward pass of a choice takes, as it is priced:
    those between how a tensor is made and how each of its readers needs it.
    """
    chosen, found = solution.strategy.tolist(), Counter[str]()
    graph = model.graph
    made: dict[int, Layout] = {}
    pairs: list[tuple[Layout, Layout]] = []
    for op, outputs in enumerate(model.makes):
        made.update(zip(outputs, model.strategies[op][chosen[op]].outputs, strict=True))
    for op, tensors in enumerate(model.reads):
        needed = model.strategies[op][chosen[op]].inputs
        pairs += [(made[t], layout) for t, layout in zip(tensors, needed, strict=True)]
    for number, weight in enumerate(model.weights):
        layout = model.layouts[number][chosen[graph.num_ops + number]]
        pairs.append((layout, model.strategies[weight.op][chosen[weight.op]].weight))
    for before, after in pairs:
        for step in change_steps(before, after) or ():
            if step.collective and model.axes[step.axis].size > 1:
                found[step.collective] += 1
    return dict(sorted(found.items()))


def megatron_layout(model: ShardingModel) -> ShardingSolution:
    """Return Megatron-LM's layout: the batch over all axes but the last, tensor parallelism over
    the last.

    A product of a replicated input and a weight is split by columns, one of a split input by rows,
    whose partial sums are added up; what lies between follows its input; norms and residuals are
    replicated. Where the batch cannot be split, those axes replicate.

    References
    ----------
    M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
    Parallelism", 2019.
    """
    graph, chosen = model.graph, np.zeros(model.problem.num_nodes, np.int64)
    known: dict[int, Layout] = {}
    for op in graph.topological_order.tolist():
        wanted = [
            tuple(REPLICATE if p <= PARTIAL else p for p in known[t]) for t in model.reads[op]
        ]
        strategies = model.strategies[op]
        if not model.stores(op):
            chosen[op] = min(
                range(len(strategies)), key=lambda i: _distance(model, op, strategies[i], wanted)
            )
        known.update(zip(model.makes[op], strategies[chosen[op]].outputs, strict=True))
    for number, weight in enumerate(model.weights):
        needed = model.strategies[weight.op][chosen[weight.op]].weight
        chosen[graph.num_ops + number] = model.layouts[number].index(needed)
    for op in filter(model.stores, range(graph.num_ops)):
        chosen[op] = _as_read(model, op, model.makes[op][0], chosen)
    return ShardingSolution(chosen)


def _as_read(model: ShardingModel, op: int, tensor: int, chosen: Ints) -> int:
    """Return the strategy of a stored tensor whose layout its first reader needs that can have
    it.
    """
    layouts = [strategy.outputs[0] for strategy in model.strategies[op]]
    needs = (
        model.strategies[r][chosen[r]].inputs[model.reads[r].index(tensor)]
        for r in model.graph.readers_of(tensor)
    )
    return next((layouts.index(x) for x in needs if x in layouts), 0)


def _distance(
    model: ShardingModel, op: int, strategy: OpStrategy, wanted: list[Layout]
) -> tuple[float, ...]:
    """Order strategies as Megatron would: the batch split first, then no change of layout, then
    shared work.
    """
    own, weighted = _own_weight(model, op)
    batch = sum(way.outputs[:1] != (0,) or own(way) != REPLICATE for way in strategy.ways[:-1])
    axes = model.axes[-1:]
    given = [
        (t, before, after)
        for t, before, after in zip(model.reads[op], wanted, strategy.inputs, strict=True)
        if not model.stores(int(model.graph.producer[t]))
    ]
    changes = sum(
        change_seconds(float(model.graph.tensor_bytes[t]), before[-1:], after[-1:], axes)
        for t, before, after in given
    )
    way = strategy.ways[-1]
    sliced = sum(b[-1] == REPLICATE and a[-1] >= 0 for _, b, a in given)
    split_alone = way.divided and not weighted and not any(b[-1] >= 0 for _, b, _ in given)
    kept_whole = weighted and _keeps_whole(model, op, way, own, first=not given)
    return batch, changes, sliced + split_alone, kept_whole, not way.divided


def _keeps_whole(
    model: ShardingModel, op: int, way: Way, own: Callable[[Way], int], *, first: bool
) -> bool:
    """Whether a way keeps a weight whole that Megatron splits: an embedding, which reads nothing
    that is computed, by its vocabulary.
    """
    if first and PARTIAL in {s.ways[-1].outputs[0] for s in model.strategies[op]}:
        return way.outputs[0] != PARTIAL
    return not way.divided or own(way) == REPLICATE


def _own_weight(model: ShardingModel, op: int) -> tuple[Callable[[Way], int], bool]:
    """Return how a way of an op places the op's weight, and whether that has two dimensions."""
    if model.calls is None:
        weighted = any(weight.op == op and len(weight.shape) == 2 for weight in model.weights)
        return lambda way: way.weight, weighted
    graph = model.graph
    learned = [
        (-len(graph.shapes[t]), i)
        for i, t in enumerate(model.reads[op])
        if graph.op_types[graph.producer[t]] == "weight"
    ]
    if not learned:
        return lambda way: REPLICATE, False
    rank, position = min(learned)
    return lambda way: way.inputs[position], rank <= -2


def torch_parameter_layouts(
    model: ShardingModel, solution: ShardingSolution
) -> list[ParameterLayout]:
    """Return the layout of every stored tensor of a torch program, by each of its names."""
    assert model.calls is not None
    graph, found = model.graph, []
    for op, names in model.calls.names.items():
        tensor = model.makes[op][0]
        layout = model.strategies[op][int(solution.strategy[op])].outputs[0]
        size = -(-int(graph.tensor_bytes[tensor]) // share(layout, model.axes))
        shape = graph.shapes[tensor]
        found += [ParameterLayout(name, shape, layout, size) for name in names]
    return found


def parameter_layouts(
    model: ShardingModel,
    solution: ShardingSolution,
    program: Program,
    stored: Mapping[str, tuple[Shape, int]],
) -> list[ParameterLayout]:
    """Return the layout of every parameter of a program, in the program's order.

    Parameters
    ----------
    program : the model as calls, whose names are those of the ops of the graph.
    stored : shape and bytes of every stored tensor by name. A tensor that several ops read gets the
    layout of the first that has one.
    """
    chosen = solution.strategy.tolist()
    by_op: dict[str, tuple[Weight, Layout]] = {}
    for number, weight in enumerate(model.weights):
        layout = model.layouts[number][chosen[model.graph.num_ops + number]]
        by_op[model.graph.op_names[weight.op]] = weight, layout
    found: dict[str, Layout] = {}
    for call in program.calls:
        if call.name not in by_op:
            continue
        weight, layout = by_op[call.name]
        for name in call.weights:
            if name in found or name not in stored:
                continue
            own = _own_layout(call.kind, weight.shape, layout, stored[name][0])
            if own is not None and divides(stored[name][0], own, model.axes):
                found[name] = own
    whole = (REPLICATE,) * len(model.axes)
    rows = []
    for name, (shape, size) in stored.items():
        layout = found.get(name, whole)
        rows.append(ParameterLayout(name, shape, layout, -(-size // share(layout, model.axes))))
    return rows


def _own_layout(kind: str, seen: Shape, layout: Layout, shape: Shape) -> Layout | None:
    """Return the layout of a parameter in its own dimensions, None where it is not what was seen.

    Parameters
    ----------
    seen : the weight as the rules see it. shape : of the parameter.
    """
    if len(seen) == 1:
        return layout if shape == seen else None
    if len(shape) == 1:  # a bias lies along one dimension of the weight
        along = 0 if kind.lower().startswith("conv") else 1
        if shape[0] != seen[along]:
            return None
        return tuple(0 if place == along else REPLICATE for place in layout)
    if shape[:2] == seen:
        return layout
    if shape == seen[::-1]:
        return tuple(1 - place if place >= 0 else place for place in layout)
    return None


def summarised(rows: Sequence[Mapping[str, Any]], most: int) -> list[Data]:
    """Return the rows of a summary: equal layouts of the same name in all layers are one row.

    Parameters
    ----------
    rows : with the keys parameter (or op), torch, jax and bytes.
    most : rows at most; what is smallest is then counted in a last row.
    """
    groups: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for row in rows:
        name = str(row.get("parameter") or row.get("op"))
        key = pattern(name), row["torch"], row["jax"]
        groups.setdefault(key, []).append((name, int(row["bytes"])))
    found: list[Data] = []
    for (name, torch, jax), members in groups.items():
        size = sum(size for _, size in members)
        shown = members[0][0] if len(members) == 1 else name
        found.append(
            {"name": shown, "count": len(members), "torch": torch, "jax": jax, "bytes": size}
        )
    if len(found) <= most:
        return found
    kept = set(sorted(range(len(found)), key=lambda i: -found[i]["bytes"])[: most - 1])
    shown_rows = [row for i, row in enumerate(found) if i in kept]
    return [*shown_rows, _together([row for i, row in enumerate(found) if i not in kept])]


def _together(rows: list[Data]) -> Data:
    """Return the last row of a summary: how much the rows are that it does not show."""
    return {
        "name": f"... {len(rows)} more (--out writes all)",
        "count": sum(row["count"] for row in rows),
        "torch": "",
        "jax": "",
        "bytes": sum(row["bytes"] for row in rows),
    }


def pattern(name: str) -> str:
    """Return the name with its numbers as '*': "h.*.attn.weight"."""
    return re.sub(r"\d+", "*", name)


def input_layouts(model: ShardingModel, solution: ShardingSolution) -> Layout:
    """Return the layout of the model's inputs: split along the batch (dimension 0) over the axes on
    which every op that reads an input, or (where inputs are no ops) no other op's result, does so.
    """
    chosen = solution.strategy.tolist()
    strategies = [row[chosen[op]] for op, row in enumerate(model.strategies)]
    if model.calls is None:
        firsts = (s for s, read in zip(strategies, model.reads, strict=True) if not read)
        layouts = [strategy.outputs[0] for strategy in firsts if strategy.outputs]
    else:
        kinds = [model.graph.op_types[op] for op in model.graph.producer.tolist()]
        layouts = [
            layout
            for strategy, tensors in zip(strategies, model.reads, strict=True)
            for layout, tensor in zip(strategy.inputs, tensors, strict=True)
            if kinds[tensor] == "input"
        ]
    return tuple(
        0 if layouts and all(layout[axis] == 0 for layout in layouts) else REPLICATE
        for axis in range(len(model.axes))
    )
