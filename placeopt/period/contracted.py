"""Contraction of a period problem: what must, or may without loss, share a device becomes one node.

Every step keeps at least one optimal placement of the original problem:

1. colocation classes (forward and backward ops of a class alike) become one node;
2. for `chain`, the strongly connected components of the order edges between nodes do too: a
   pipeline of ideals cannot split them;
3. a node that costs nothing and touches a single other node joins it, where neither memory nor
   compatibility can object: moving it there removes its transfers and adds no load (see
   `_merge_leaves`);
4. tensors with the same pins are added up. A tensor with two pins costs both sides the same
   whichever of them produces it, so it is undirected; with "1f1b" the pass does not matter either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import (
    Flags,
    Ints,
    by_key,
    by_number,
    row_at,
    row_numbers,
    sums_by,
    together,
    touching_tensors,
    true_places,
    value_ranks,
)
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem
from placeopt.period.evaluate import order_edges

if TYPE_CHECKING:
    import networkx as nx

DeviceTypes = tuple[tuple[int, ...], ...]
"""Devices of each type, types in order."""


class TensorArrays(NamedTuple):
    """The tensors of a contracted problem as kernels read them (N nodes, m tensors)."""

    of_pass: Ints  # (m,)
    producer: Ints  # (m,)
    consumer_ptr: Ints  # (m + 1,)
    consumer: Ints
    touch_ptr: Ints  # (N + 1,) tensors that touch a node
    touch_tensor: Ints
    touch_role: Ints  # 1 producer, 0 consumer


@dataclass(frozen=True, eq=False)
class ContractedProblem:
    """A contracted period problem with N nodes, G device types and m tensors.

    Attributes
    ----------
    node : node of every op of the problem.
    types : devices of each type; devices of a type have equal times, io costs and capacity.
    compute : ticks per pass, node and type (pass 1 is empty unless the pipeline is "gpipe").
    allowed : whether a node can run on a type.
    weight : ticks to move a tensor between host memory and a device of a type.
    tensor_pass : pass of each tensor (always 0 unless the pipeline is "gpipe").
    two_pass : whether the objective adds the largest forward and the largest backward load.
    order_from, order_to : pairs of nodes that contiguity orders.
    """

    problem: PlacementProblem
    node: Ints  # (num_ops,)
    types: DeviceTypes
    compute: Ints  # (2, N, G) ticks, 0 where not allowed
    allowed: Flags  # (N, G)
    resident: Ints  # (N,) bytes
    capacity: Ints  # (G,) bytes
    producer: Ints  # (m,)
    consumer_ptr: Ints  # (m + 1,)
    consumer: Ints
    weight: Ints  # (m, G) ticks
    tensor_pass: Ints  # (m,)
    order_from: Ints
    order_to: Ints
    two_pass: bool

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return len(self.resident)

    @property
    def num_types(self) -> int:
        """Number of device types, G."""
        return len(self.types)

    @property
    def type_counts(self) -> Ints:
        """Number of devices of each type."""
        return np.array([len(devices) for devices in self.types], np.int64)

    @cached_property
    def edge_tensor(self) -> Ints:
        """Tensor of each entry of `consumer`."""
        return row_numbers(self.consumer_ptr)

    @cached_property
    def successors(self) -> list[list[int]]:
        """Nodes to which order edges lead from each node."""
        edges = together(self.order_from, self.order_to)
        return by_number(self.num_nodes, edges)

    @cached_property
    def order_graph(self) -> nx.DiGraph:
        """The nodes and the order edges between them."""
        import networkx as nx

        return nx.from_dict_of_lists(dict(enumerate(self.successors)), nx.DiGraph)

    @cached_property
    def tensors(self) -> TensorArrays:
        """The tensors as kernels read them."""
        touching = touching_tensors(self.num_nodes, self.producer, self.consumer_ptr, self.consumer)
        return TensorArrays(
            self.tensor_pass, self.producer, self.consumer_ptr, self.consumer, *touching
        )

    @cached_property
    def total(self) -> Ints:
        """Ticks of both passes, shape (N, G)."""
        return self.compute.sum(axis=0)

    @cached_property
    def smallest_times(self) -> Ints:
        """Ticks of every node on its fastest type, both passes, shape (N,)."""
        return np.where(self.allowed, self.total, np.iinfo(np.int64).max).min(axis=1)

    @cached_property
    def surroundings(self) -> Ints:
        """Ticks, both passes, that a device takes at least if it holds a node, shape (N,).

        Proof. It runs the node. Whatever else it holds, it runs a producer of what the node reads
        or pays for all that comes from there, and runs all readers of a tensor that the node makes
        or pays for the tensor; a neighbour that may be run for several of these counts for each
        with an equal part.
        """
        outer = self.producer[self.edge_tensor] != self.consumer
        tensor, reader = self.edge_tensor[outer], self.consumer[outer]
        maker, n = self.producer[tensor], self.num_nodes
        keys, first, pair, reads = np.unique(
            maker * n + reader, return_index=True, return_inverse=True, return_counts=True
        )
        place = np.searchsorted(keys, reader * n + maker).clip(max=len(keys) - 1)
        back = np.where(keys[place] == reader * n + maker, reads[place], 0)  # the other way
        run = np.where(self.allowed, self.total, np.iinfo(np.int64).max)
        comes = sums_by(pair, self.weight[tensor], len(keys))
        inputs = np.minimum(comes, run[maker[first]] // (1 + back[first, None]))
        part = run[reader] // (reads[pair] + (back > 0))[:, None]
        sent = sums_by(tensor, np.minimum(part, self.weight[tensor]), len(self.weight))
        outputs = np.minimum(sent, self.weight)
        load = self.total + sums_by(reader[first], inputs, n)
        load += sums_by(self.producer, outputs, n)
        return np.where(self.allowed, load, np.iinfo(np.int64).max).min(axis=1)

    @cached_property
    def largest_load(self) -> int:
        """Ticks that no load exceeds, nor the sum of the largest loads of both passes: everything
        counts once.
        """
        return int(self.total.max(axis=1).sum()) + int(self.weight.max(axis=1, initial=0).sum())

    @cached_property
    def type_of(self) -> Ints:
        """Type of every device, shape (num_devices,)."""
        found = np.empty(self.problem.num_devices, np.int64)
        for g, devices in enumerate(self.types):
            found[list(devices)] = g
        return found

    @cached_property
    def pass_compute(self) -> Ints:
        """Ticks of each pass that has loads of its own, shape (P, N, G): two for "gpipe", else
        their sum.
        """
        return self.compute if self.two_pass else self.total[None]

    def readers(self, tensor: int) -> list[int]:
        """Nodes that read a tensor."""
        return row_at(self.consumer, self.consumer_ptr, tensor).tolist()

    def expand(self, node_device: Ints) -> Ints:
        """Device of every op, given the device of every node."""
        return node_device[self.node]

    def node_devices(self, device: Ints) -> Ints:
        """Device of every node, given the device of every op; of its last op, where they differ."""
        found = np.zeros(self.num_nodes, np.int64)
        found[self.node] = device
        return found

    def renumbered(self, order: Ints) -> ContractedProblem:
        """Return the model with node `order[i]` renamed i."""
        position = np.argsort(order)
        return replace(
            self,
            node=position[self.node],
            compute=np.ascontiguousarray(self.compute[:, order]),
            allowed=self.allowed[order],
            resident=self.resident[order],
            producer=position[self.producer],
            consumer=position[self.consumer],
            order_from=position[self.order_from],
            order_to=position[self.order_to],
        )

    def coarse(self, most: int) -> ContractedProblem:
        """Return the model with neighbours in its order joined, so that about `most` nodes are left
        of more; what fits no device together stays apart.
        """
        size = -(-self.num_nodes // most)
        if size == 1:
            return self
        label, number = np.zeros(self.num_nodes, np.int64), -1
        count, held, able = size, 0, self.allowed[0]
        for v in range(self.num_nodes):
            held, able = held + int(self.resident[v]), able & self.allowed[v]
            if count == size or not (able & (self.capacity >= held)).any():
                number, count, held, able = number + 1, 0, int(self.resident[v]), self.allowed[v]
            label[v], count = number, count + 1
        edges = order_edges(self.problem, "chain")
        return _build(self.problem, label[self.node], self.types, *edges)


def device_types(problem: PlacementProblem) -> DeviceTypes:
    """Group the devices that a period cannot tell apart; types without io cost (CPUs) come last."""
    free = problem.io_class < 0
    compute, io = (np.ascontiguousarray(table.T) for table in (problem.compute, problem.io_ticks))
    groups = by_key(
        ((bool(free[d]), int(problem.capacity[d]), compute[d].tobytes(), io[d].tobytes()), d)
        for d in range(problem.num_devices)
    )
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], item[1][0]))
    return tuple(tuple(devices) for _, devices in ordered)


def contract(
    problem: PlacementProblem,
    *,
    contiguity: str | None = None,
    limit: int | None = None,
    sync: Ints | None = None,
    uplink: Ints | None = None,
) -> ContractedProblem:
    """Contract `problem` for the given contiguity (default: its own).

    Parameters
    ----------
    limit : ticks; only placements of at most that period matter: two nodes also join where a
    transfer
        between them would by itself exceed it (see `_merge_heavy`).
    sync : (num_ops,) ticks by which an op lengthens the stage that it is in, beside its compute.
    uplink : (num_tensors,) ticks of a tensor that leaves a group of devices, beside its io ticks.

    Raises
    ------
    InfeasibleProblemError
        If ops that must share a device have no device in common.
    """
    contiguity = problem.contiguity if contiguity is None else contiguity
    types = device_types(problem)
    edge_from, edge_to = order_edges(problem, contiguity)
    label = problem.units.unit
    while True:
        if contiguity == "chain":
            label = _fuse_cycles(label, edge_from, edge_to)
        model = _build(problem, label, types, edge_from, edge_to)
        merged = _merge_leaves(model, sync, uplink)
        if merged is None and limit is not None:
            merged = _merge_heavy(model, limit)
        if merged is None:
            break
        label = merged[label]
    if contiguity == "convex" and model.num_nodes < problem.num_ops:
        return model  # convexity speaks about paths of ops, which contraction would join
    return model.renumbered(_depth_first_order(model))


def _fuse_cycles(label: Ints, edge_from: Ints, edge_to: Ints) -> Ints:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    size = int(label.max()) + 1
    ones = np.ones(len(edge_from), np.int8)
    graph = coo_matrix((ones, (label[edge_from], label[edge_to])), shape=(size, size))
    component: Ints = connected_components(graph, directed=True, connection="strong")[1].astype(
        np.int64
    )
    return component[label]


def _build(
    problem: PlacementProblem, label: Ints, types: DeviceTypes, edge_from: Ints, edge_to: Ints
) -> ContractedProblem:
    size, num_types = int(label.max()) + 1, len(types)
    passes = (problem.backward & (problem.pipeline == "gpipe")).astype(np.int64)
    columns = problem.compute[:, [devices[0] for devices in types]]
    allowed = np.ones((size, num_types), np.bool_)
    np.logical_and.at(allowed, label, columns != INCOMPATIBLE)
    if not allowed.any(axis=1).all():
        node = int((~allowed.any(axis=1)).argmax())
        names = [problem.op_names[v] for v in np.flatnonzero(label == node)[:3]]
        raise InfeasibleProblemError(
            f"ops {', '.join(repr(name) for name in names)} must share a device, but no device can "
            "run all of them"
        )
    compute = np.zeros((2, size, num_types), np.int64)
    np.add.at(compute, (passes, label), np.where(columns == INCOMPATIBLE, 0, columns))
    pairs = np.column_stack([label[edge_from], label[edge_to]])
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return ContractedProblem(
        problem=problem,
        node=label,
        types=types,
        compute=compute,
        allowed=allowed,
        resident=sums_by(label, problem.resident, size),
        capacity=np.array([problem.capacity[devices[0]] for devices in types], np.int64),
        order_from=pairs[:, 0],
        order_to=pairs[:, 1],
        two_pass=bool(passes.any()),
        **_merged_tensors(problem, label, types, passes),
    )


def _merged_tensors(
    problem: PlacementProblem, label: Ints, types: DeviceTypes, passes: Ints
) -> dict[str, Ints]:
    """Join the tensors of one pass, source and targets; a tensor between two nodes has no way."""
    io = problem.io_ticks[:, [devices[0] for devices in types]]
    home, passes = label[problem.producer].tolist(), passes[problem.producer].tolist()
    ends, pointer = label[problem.consumer].tolist(), problem.consumer_ptr.tolist()
    merged: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    for t in true_places(io.any(axis=1)):
        source, targets = _ends(home[t], ends[pointer[t] : pointer[t + 1]])
        if targets:
            merged.setdefault((passes[t], source, targets), []).append(t)
    keys = sorted(merged)
    weight = np.zeros((len(keys), len(types)), np.int64)
    rows = np.repeat(np.arange(len(keys)), [len(merged[key]) for key in keys])
    np.add.at(weight, rows, io[[t for key in keys for t in merged[key]]])
    return {
        "producer": np.array([source for _, source, _ in keys], np.int64),
        "consumer_ptr": np.cumsum([0, *(len(targets) for *_, targets in keys)], dtype=np.int64),
        "consumer": np.array([v for *_, targets in keys for v in targets], np.int64),
        "weight": weight,
        "tensor_pass": np.array([part for part, *_ in keys], np.int64),
    }


def _ends(source: int, readers: list[int]) -> tuple[int, tuple[int, ...]]:
    """Return source and targets of a tensor of nodes, the lower one first where there are two."""
    targets = tuple(sorted(set(readers) - {source}))
    if len(targets) == 1 and targets[0] < source:
        return targets[0], (source,)
    return source, targets


def _renumbered(label: Ints) -> Ints | None:
    """Return new labels 0, 1, ... of nodes, None where no two have the same."""
    if (label == np.arange(len(label))).all():
        return None
    return value_ranks(label)


def _merge_leaves(model: ContractedProblem, sync: Ints | None, uplink: Ints | None) -> Ints | None:
    """Return a new label per node with idle leaves joined to their neighbour, None if there are
    none.

    Let v take no time on any device, and let u be the only node that shares a tensor of any cost or
    an order edge with v. Let every type that runs u run v, and let the bytes of v fit: it has none,
    or all nodes fit any one device. Take a solution and move v to where u is. Then no load rises:

    - work: v has none, on any type and in both passes;
    - transfers and uplinks: every tensor of v has an end at u, so the devices, stages and groups
      that hold an end of it after the move are some of those that did before. It costs no more on
      any of them, added to the work or beside it, shared by replicas or not;
    - the ring all-reduce of a stage with replicas grows with the `sync` of its ops. So v must have
      none; with `sync`, v may be worth a device of its own beside replicas of u.

    Every order edge of v has its other end at u, so no order is broken. If v shares nothing with
    any node, all of this holds for every u.
    """
    neighbours, idle = _neighbours(model, uplink), _idle(model, sync)
    label = np.arange(model.num_nodes)
    for v in true_places(idle):
        while idle[v] and label[v] == v and len(neighbours[v]) < 2:
            u = next(iter(neighbours[v]), 0 if v else min(1, len(label) - 1))
            while label[u] != u:
                u = int(label[u])
            if u == v or not (model.allowed[v] >= model.allowed[u]).all():
                break
            label[v] = u
            neighbours[u].discard(v)
            v = u  # which may be the end of a chain now
    while (label != label[label]).any():
        label = label[label]
    return _renumbered(label)


def _idle(model: ContractedProblem, sync: Ints | None) -> Flags:
    """Whether each node takes no time and its bytes are in nobody's way."""
    idle: Flags = np.asarray(~model.compute.any(axis=(0, 2)))
    if sync is not None:
        idle[model.node[sync > 0]] = False
    if int(model.resident.sum()) > int(model.capacity.min()):
        idle &= model.resident == 0
    return idle


def _neighbours(model: ContractedProblem, uplink: Ints | None) -> list[set[int]]:
    """Return the nodes that share a tensor of any cost, or an order edge, with each node."""
    tensor = model.edge_tensor
    ends = [
        np.column_stack([model.producer[tensor], model.consumer]),
        np.column_stack([model.order_from, model.order_to]),
    ]
    if uplink is not None:
        problem = model.problem
        pairs = np.column_stack([problem.edge_source, problem.consumer])
        ends.append(model.node[pairs[uplink[problem.edge_tensor] > 0]])
    neighbours: list[set[int]] = [set() for _ in range(model.num_nodes)]
    for u, v in np.concatenate(ends).tolist():
        if u != v:
            neighbours[u].add(v)
            neighbours[v].add(u)
    return neighbours


def _merge_heavy(model: ContractedProblem, limit: int) -> Ints | None:
    """Return a new label per node that joins what no placement within `limit` separates.

    Let u produce a tensor that c consumes, of w ticks. If u sits on a paying device without c it
    pays its compute and w; if c sits on a paying device without u, likewise. Where both exceed the
    limit for every paying type, each of them on a paying device has the other beside it. So they
    are together, or both on devices that do not pay; with at most one such device they are together
    in any case.
    """
    pays = np.array([model.problem.io_class[devices[0]] >= 0 for devices in model.types])
    if int(model.type_counts[~pays].sum()) > 1 or not pays.any():
        return None
    parent = list(range(model.num_nodes))
    allowed = model.allowed.copy()

    def root(v: int) -> int:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    producer, total = model.producer[model.edge_tensor], model.total[:, pays]
    ends = np.stack([producer, model.consumer])  # (2, edges)
    paid = total[ends] + model.weight[model.edge_tensor][:, pays]
    stuck = ((paid > limit) | ~model.allowed[:, pays][ends]).all(axis=(0, 2))
    for u, c in ends[:, stuck].T.tolist():
        a, b = root(u), root(c)
        # Without a common type the limit is refuted; that is left to the solver to find.
        if a != b and (allowed[a] & allowed[b]).any():
            parent[a] = b
            allowed[b] &= allowed[a]
    return _renumbered(np.array(list(map(root, range(model.num_nodes))), np.int64))


def _depth_first_order(model: ContractedProblem) -> Ints:
    """Return a topological order of the order edges that follows branches to their end.

    There are no cycles: `chain` has joined them, `none` has no order edges, and a `convex` model
    that comes here has a node for every op.
    """
    waiting = np.bincount(model.order_to, minlength=model.num_nodes)
    stack = np.flatnonzero(waiting == 0)[::-1].tolist()
    order: list[int] = []
    while stack:
        u = stack.pop()
        order.append(u)
        for v in reversed(model.successors[u]):
            waiting[v] -= 1
            if waiting[v] == 0:
                stack.append(v)
    return np.array(order, np.int64)
