"""What a choice of strategies means: a table of ops and weights with their layouts, memory per
device, and reference layouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.sharding.evaluate import usage_profile
from placeopt.sharding.layouts import (
    PARTIAL,
    REPLICATE,
    change_seconds,
    change_steps,
    partition_spec,
    torch_placements,
)
from placeopt.sharding.problem import ShardingSolution

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.arrays import Ints
    from placeopt.sharding.from_model import OpStrategy, ShardingModel
    from placeopt.sharding.layouts import Layout
    from placeopt.sharding.op_rules import Way


def layout_rows(model: ShardingModel, solution: ShardingSolution) -> list[dict[str, Any]]:
    """Return one row per op and weight: its strategy, its layout for torch and for JAX, bytes per
    device.
    """
    graph, chosen = model.graph, solution.strategy.tolist()
    usage = model.problem.usage[model.problem.node_ptr[:-1] + solution.strategy].tolist()
    rows: list[dict[str, Any]] = []
    made: dict[int, int] = {}
    for tensor, op in enumerate(graph.producer.tolist()):
        made.setdefault(op, tensor)
    for op in graph.topological_order.tolist():
        strategy = model.strategies[op][chosen[op]]
        layout = strategy.outputs[0] if strategy.outputs else ()
        rank = len(graph.shapes[made[op]]) if op in made else 0
        rows.append(
            _row(graph.op_names[op], graph.op_types[op], strategy.name, layout, rank, usage[op])
        )
    for number, weight in enumerate(model.weights):
        node = graph.num_ops + number
        layout = model.layouts[number][chosen[node]]
        rows.append(
            _row(
                model.problem.node_names[node], "weight", "", layout, len(weight.shape), usage[node]
            )
        )
    return rows


def _row(
    name: str, kind: str, strategy: str, layout: Layout, rank: int, size: int
) -> dict[str, Any]:
    return {
        "op": name,
        "type": kind,
        "strategy": strategy,
        "torch": torch_placements(layout),
        "jax": partition_spec(layout, rank),
        "bytes": size,
    }


def peak_usage(model: ShardingModel, solution: ShardingSolution) -> int:
    """Return the most bytes that a device holds at any time."""
    return usage_profile(model.problem, solution).peak


def collectives(model: ShardingModel, solution: ShardingSolution) -> dict[str, int]:
    """Return how many collectives of each kind a forward pass of a choice takes, as it is priced:
    those between how a tensor is made and how each of its readers needs it.
    """
    chosen, found = solution.strategy.tolist(), dict[str, int]()
    graph = model.graph
    made: dict[int, Layout] = {}
    pairs: list[tuple[Layout, Layout]] = []
    for op, outputs in enumerate(_made(model)):
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
                found[step.collective] = found.get(step.collective, 0) + 1
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
    made = _made(model)
    for op in graph.topological_order.tolist():
        wanted = [
            tuple(REPLICATE if p <= PARTIAL else p for p in known[t]) for t in model.reads[op]
        ]
        strategies = model.strategies[op]
        if not model.stores(op):
            chosen[op] = min(
                range(len(strategies)), key=lambda i: _distance(model, op, strategies[i], wanted)
            )
        known.update(zip(made[op], strategies[chosen[op]].outputs, strict=True))
    for number, weight in enumerate(model.weights):
        needed = model.strategies[weight.op][chosen[weight.op]].weight
        chosen[graph.num_ops + number] = model.layouts[number].index(needed)
    for op in filter(model.stores, range(graph.num_ops)):
        chosen[op] = _as_read(model, op, made[op][0], chosen)
    return ShardingSolution(chosen)


def _as_read(model: ShardingModel, op: int, tensor: int, chosen: Ints) -> int:
    """Return the strategy of a stored tensor whose layout its first reader needs that can have
    it.
    """
    graph = model.graph
    layouts = [strategy.outputs[0] for strategy in model.strategies[op]]
    readers = graph.consumer[graph.consumer_ptr[tensor] : graph.consumer_ptr[tensor + 1]]
    needs = (
        model.strategies[r][chosen[r]].inputs[model.reads[r].index(tensor)]
        for r in readers.tolist()
    )
    return next((layouts.index(x) for x in needs if x in layouts), 0)


def _made(model: ShardingModel) -> list[list[int]]:
    """Return the tensors that each op makes."""
    found: list[list[int]] = [[] for _ in range(model.graph.num_ops)]
    for tensor, op in enumerate(model.graph.producer.tolist()):
        found[op].append(tensor)
    return found


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
    kept_whole = weighted and _keeps_whole(model, op, way, first=not given)
    return batch, changes, sliced + split_alone, kept_whole, not way.divided


def _keeps_whole(model: ShardingModel, op: int, way: Way, *, first: bool) -> bool:
    """Whether a way keeps a weight whole that Megatron splits: an embedding, which reads nothing
    that is computed, by its vocabulary.
    """
    if first and PARTIAL in {s.ways[-1].outputs[0] for s in model.strategies[op]}:
        return way.outputs[0] != PARTIAL
    own, _ = _own_weight(model, op)
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
