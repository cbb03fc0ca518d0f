"""Layouts by the names of a model's parameters.

In a torch program every stored tensor has a node of its own, in its own dimensions. The rules of
other sources see an op's weight as (in, out), an embedding as (rows, width) and a convolution as
(out, in); ONNX stores it as it likes. There every parameter that an op reads gets the layout in its
own dimensions: a bias is split where the result is, and what the rules do not know is replicated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placeopt.sharding.layouts import REPLICATE, partition_spec, share, torch_placements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placeopt.programs.calls import Program
    from placeopt.sharding.from_model import ShardingModel, Weight
    from placeopt.sharding.layouts import Layout
    from placeopt.sharding.op_rules import Shape
    from placeopt.sharding.problem import ShardingSolution


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

    def row(self) -> dict[str, Any]:
        """Return what a table shows."""
        return {
            "parameter": self.name,
            "shape": list(self.shape),
            "torch": torch_placements(self.layout),
            "jax": partition_spec(self.layout, len(self.shape)),
            "bytes": self.bytes,
        }


def torch_parameter_layouts(
    model: ShardingModel, solution: ShardingSolution
) -> list[ParameterLayout]:
    """Return the layout of every stored tensor of a torch program, by each of its names."""
    assert model.calls is not None
    graph, found = model.graph, []
    tensor = {op: t for t, op in enumerate(graph.producer.tolist())}
    for op, names in model.calls.names.items():
        layout = model.strategies[op][int(solution.strategy[op])].outputs[0]
        size = -(-int(graph.tensor_bytes[tensor[op]]) // share(layout, model.axes))
        shape = graph.shapes[tensor[op]]
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
            if own is not None and _divides(stored[name][0], own, model):
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
    if len(shape) == 1:
        return _bias_layout(0 if kind.lower().startswith("conv") else 1, seen, layout, shape)
    if shape[:2] == seen:
        return layout
    if shape == seen[::-1]:
        return tuple(1 - place if place >= 0 else place for place in layout)
    return None


def _bias_layout(result: int, seen: Shape, layout: Layout, shape: Shape) -> Layout | None:
    """Return the layout of a bias, which lies along dimension `result` of the weight."""
    if shape[0] != seen[result]:
        return None
    return tuple(0 if place == result else REPLICATE for place in layout)


def _divides(shape: Shape, layout: Layout, model: ShardingModel) -> bool:
    """Whether every split dimension is a multiple of the devices it is split over."""
    parts = [1] * len(shape)
    for axis, place in zip(model.axes, layout, strict=True):
        if place >= 0:
            parts[place] *= axis.size
    return all(size % part == 0 for size, part in zip(shape, parts, strict=True))


def summarised(rows: Sequence[Mapping[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the rows of a summary: equal layouts of the same name in all layers are one row.

    Parameters
    ----------
    rows : with the keys parameter (or op), torch, jax and bytes.
    most : rows at most; what is smallest is then counted in a last row.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        name = str(row.get("parameter") or row.get("op"))
        groups.setdefault((pattern(name), row["torch"], row["jax"]), []).append(row)
    found: list[dict[str, Any]] = []
    for (name, torch, jax), members in groups.items():
        first = members[0].get("parameter") or members[0].get("op")
        size = sum(int(row["bytes"]) for row in members)
        shown = first if len(members) == 1 else name
        found.append(
            {"name": shown, "count": len(members), "torch": torch, "jax": jax, "bytes": size}
        )
    if len(found) <= most:
        return found
    kept = set(sorted(range(len(found)), key=lambda i: -found[i]["bytes"])[: most - 1])
    shown_rows = [row for i, row in enumerate(found) if i in kept]
    return [*shown_rows, _together([row for i, row in enumerate(found) if i not in kept])]


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
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
