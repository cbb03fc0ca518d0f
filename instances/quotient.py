"""The quotient of an OpGraph or a PlacementProblem: its groups of ops are the ops."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from placeopt.model.arrays import Flags, Ints, by_number, running_sums, sums_by
from placeopt.model.files import Data
from placeopt.model.graph import UNKNOWN, UNSUPPORTED, OpGraph
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem

ModelT = TypeVar("ModelT", OpGraph, PlacementProblem)


def quotient(model: ModelT, label: Ints, root: Ints) -> ModelT:
    """Return the graph or problem whose ops are the groups 0..max(label).

    Parameters
    ----------
    root : representative of the ops that must share a device with each op; decides the colocation
    ids.
    """
    if isinstance(model, OpGraph):
        return _coarse_graph(model, label, root)
    return _coarse_problem(model, label, root)


def _coarse_problem(problem: PlacementProblem, label: Ints, root: Ints) -> PlacementProblem:
    count = int(label.max()) + 1
    compute = sums_by(label, problem.compute, count)
    _mark(compute, label, problem.compute, INCOMPATIBLE)
    kept, tensors = _tensors(problem, label)
    return problem.replace(
        compute=compute,
        **tensors,
        transfer=problem.transfer[kept],
        tensor_bytes=problem.tensor_bytes[kept],
        resident=sums_by(label, problem.resident, count),
        **_common(problem, label, root, problem.min_compute, count),
    )


def _coarse_graph(graph: OpGraph, label: Ints, root: Ints) -> OpGraph:
    count = int(label.max()) + 1
    measured = sums_by(label, np.maximum(graph.measured, 0), count)
    # one unknown part makes the sum unknown, an unsupported one forbids it
    for value in (UNKNOWN, UNSUPPORTED):
        _mark(measured, label, graph.measured, value)
    kept, tensors = _tensors(graph, label)
    layers = by_number(count, zip(label.tolist(), graph.layer, strict=True))
    summed = ("flops", "bytes_moved", "resident", "parameters")
    sums: Data = {key: sums_by(label, getattr(graph, key), count) for key in summed}
    return OpGraph(
        name=graph.name,
        **tensors,
        **_common(graph, label, root, graph.flops + graph.bytes_moved, count),
        tensor_bytes=graph.tensor_bytes[kept],
        layer=tuple(map(_common_path, layers)),
        **sums,
        unshaped=_any(graph.unshaped, label, count),
        measured_kinds=graph.measured_kinds,
        measured=measured,
        measured_transfer=graph.measured_transfer[kept],
        shapes=tuple(graph.shapes[t] for t in kept.tolist()) if graph.shapes else (),
        tick_seconds=graph.tick_seconds,
    )


def _mark(total: Ints, label: Ints, values: Ints, mark: int) -> None:
    """Set the entries of groups to `mark` where it is the value of a member."""
    op, column = np.nonzero(values == mark)
    total[label[op], column] = mark


def _any(flags: Flags, label: Ints, count: int) -> Flags:
    """Return whether a member of each group is set."""
    return np.bincount(label[flags], minlength=count) > 0


def _tensors(model: OpGraph | PlacementProblem, label: Ints) -> tuple[Ints, Data]:
    """Return the tensors that some other group reads, and the coarse producer and consumer
    arrays.
    """
    count = int(label.max()) + 1
    tensor = model.edge_tensor
    target = label[model.consumer]
    outside = target != label[model.producer[tensor]]
    pairs = np.unique(tensor[outside] * count + target[outside])
    kept, degree = np.unique(pairs // count, return_counts=True)
    return kept, {
        "producer": label[model.producer[kept]],
        "consumer_ptr": running_sums(degree),
        "consumer": pairs % count,
    }


def _common(
    model: OpGraph | PlacementProblem, label: Ints, root: Ints, work: Ints, count: int
) -> Data:
    """Fields that graphs and problems share: names, types, colocation, direction, meta labels."""
    # the heaviest member gives a group its name and type: names of members are distinct
    order = np.lexsort((-np.arange(len(label)), work, label))
    heaviest = order[np.cumsum(np.bincount(label)) - 1].tolist()
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(low, label, model.meta)
    np.maximum.at(high, label, model.meta)
    # groups of one class share a device: an id where several groups, or an old id, are in it
    first_root = np.full(count, -1, np.int64)
    first_root[label[::-1]] = root[::-1]
    _, class_of, size = np.unique(first_root, return_inverse=True, return_counts=True)
    colocation = np.where(size[class_of] > 1, class_of, -1)
    return {
        "op_names": tuple(model.op_names[op] for op in heaviest),
        "op_types": tuple(model.op_types[op] for op in heaviest),
        "backward": _any(model.backward, label, count),
        "meta": np.where(low == high, low, -1),
        "colocation": colocation,
    }


def layer_paths(model: OpGraph | PlacementProblem) -> Sequence[str]:
    """Return the layer of every op; where the model declares none, the op's name up to its last
    '/'.
    """
    layers: Sequence[str] = getattr(model, "layer", ())
    return layers if any(layers) else [name.rpartition("/")[0] for name in model.op_names]


def _common_path(paths: list[str]) -> str:
    """Return the longest common leading part of some layer paths."""
    levels = zip(*(path.split("/") for path in paths), strict=False)
    common = itertools.takewhile(lambda names: len(set(names)) == 1, levels)
    return "/".join(names[0] for names in common)


def components(source: Ints, target: Ints, count: int) -> Ints:
    """Return the component of each of `count` nodes in the graph without directions."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(source), np.bool_)
    graph = coo_array((ones, (source, target)), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)
