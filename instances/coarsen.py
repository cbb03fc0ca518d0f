"""Coarsening: merge ops into groups, and map a solution of the coarse graph back.

    coarsening = coarsen(problem, 64)
    result = po.solve(coarsening.coarse, ...)
    placement = coarsening.expand(result.solution)

A group is one op of the coarse problem: its time is the sum of its members' times (-1 where one of
them cannot run), its resident bytes their sum, and it starts when all inputs of all members are
there. Tensors inside a group disappear; a tensor with readers outside keeps its cost and goes once
to each reading group. Groups are convex: the coarse graph has no cycle.

What a coarse solution promises. Replace every group, in a schedule of the coarse problem, by its
members one after the other: that is a schedule of the fine problem, with the same makespan.
`expand(placement, start)` returns its order; executed as planned on the fine problem, without
contention, it ends no later than the coarse schedule, and where groups are chains exactly with it.

For searches that only tie devices together and keep all ops, `group_labels` gives groups that
need not be convex.

Groups grow by matching along heavy edges, level by level (Karypis and Kumar 1998, made acyclic),
and where that comes to an end by cutting an order. Two invariants are kept by every merge.

Sharing. Ops of one group, and ops with one colocation id, must run on one device. The classes of
ops that share a device are a union-find (`Classes`) with, for each class, the devices that all
members support, the bytes they keep there and their work; a merge that leaves no device, or too
many bytes, is refused.

Acyclicity. With l(v) the number of edges of the longest path to v, an edge (u, v) with l(v) = l(u)
+ 1 is the only path from u to v, so that contracting it makes no cycle. Contracting several such
edges at once makes none either, unless edges run from the lower op of one pair to the upper op of
another in a cycle: the minimum level of a group cannot fall along an edge of the contracted graph,
so a cycle stays among pairs with one minimum level t, and leaves each of them at level t for the op
at level t + 1 of the next. Pairs are made one after the other, and a pair is refused if its lower
op has an edge to the upper op of an earlier one; so the edges between pairs of one level run from
earlier to later pairs only. Groups of ops of one level cannot be part of a cycle at all. (After
Herrmann et al. 2019, "Multilevel algorithms for acyclic partitioning of directed acyclic graphs",
whose rule is stricter.)

References
----------
G. Karypis, V. Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs",
SIAM Journal on Scientific Computing 20, 1998.
M. Holtgrewe, P. Sanders, C. Schulz, "Engineering a scalable high quality graph partitioner", IPDPS
2010 (rating of edges).
J. Herrmann, M. Y. Özkaya, B. Uçar, K. Kaya, Ü. V. Çatalyürek, "Multilevel algorithms for acyclic
partitioning of directed acyclic graphs", SIAM Journal on Scientific Computing 41, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from placeopt.instances.quotient import ModelT, quotient
from placeopt.model.arrays import (
    UNLIMITED,
    Flags,
    Floats,
    Ints,
    distinct,
    int_array,
    pointers,
    stable_order,
)
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.model.errors import InputError
from placeopt.model.graph import UNSUPPORTED, OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem
from placeopt.model.projection import unit_of_ops
from placeopt.model.union_find import root as find_root


@dataclass(frozen=True, eq=False)
class Coarsening(Generic[ModelT]):
    """A coarse graph or problem and the way back.

    Attributes
    ----------
    fine, coarse : both graphs or both problems.
    group : coarse op of every fine op.
    """

    fine: ModelT
    coarse: ModelT
    group: Ints  # (num_fine_ops,)

    def expand(self, placement: Placement, start: ArrayLike | None = None) -> Placement:
        """Return the placement of the fine ops that a placement of the coarse ops stands for.

        Members of a group get consecutive ranks in topological order.

        Parameters
        ----------
        placement : devices and, optionally, ranks of the coarse ops.
        start : start of every coarse op in a schedule; ranks follow it instead of the placement's.
            Pass the evaluation's `start` to keep the coarse makespan under `queue="planned"`.
        """
        coarse = self.coarse
        _check_length(placement, coarse.num_ops, "coarse op")
        # ranks of the coarse ops that are all different keep the members of a group together
        if start is not None:
            times = int_array(start, (coarse.num_ops,), "start")
            placement = Placement.from_starts(placement.device, times, coarse.topological_order)
        elif placement.priority is not None:
            placement = Placement.from_starts(placement.device, placement.priority)
        device = placement.device[self.group]
        if placement.priority is None:
            return Placement(device)
        rank = placement.priority[self.group]
        return Placement.from_starts(device, rank, self.fine.topological_order)

    def restrict(self, placement: Placement) -> Placement:
        """Return the coarse placement nearest to a fine one: most members decide, ties to the first
        device.

        Ranks become the order of each group's first member. Colocation between groups, and devices
        that cannot run the whole group, are not repaired.
        """
        _check_length(placement, self.fine.num_ops, "op")
        votes = np.zeros((self.coarse.num_ops, int(placement.device.max()) + 1), np.int64)
        np.add.at(votes, (self.group, placement.device), 1)
        device = votes.argmax(axis=1)
        if placement.priority is None:
            return Placement(device)
        first = np.full(self.coarse.num_ops, np.iinfo(np.int64).max)
        np.minimum.at(first, self.group, placement.priority)
        return Placement.from_starts(device, first)


def _check_length(placement: Placement, count: int, what: str) -> None:
    if len(placement.device) != count:
        raise InputError(
            f"placement: expected {count} devices, one per {what}, received {len(placement.device)}"
        )


def coarsen(model: ModelT, groups: int) -> Coarsening[ModelT]:
    """Merge the ops of a graph or a problem into at most so many convex groups, more where the
    constraints forbid merges.

    Colocation is kept: groups that hold ops of one colocation id share a new id. Forward and
    backward ops are never merged. Merges that leave no compatible device, or more resident bytes on
    one device than the largest capacity, are refused.

    Raises
    ------
    InputError
        If there is to be no group.
    """
    grouping = Grouping(model, groups, acyclic=True)
    label = grouping.ordered_labels()
    return Coarsening(model, quotient(model, label, grouping.roots()), label)


def group_labels(model: OpGraph | PlacementProblem, groups: int) -> Ints:
    """Return a group 0..G-1 for every op, with G at most `groups` unless constraints forbid it.

    The groups only say which ops share a device: they need not be convex, ops of one colocation id
    are always in one group, and every group has a device that can run all of it.
    """
    return Grouping(model, groups, acyclic=False).ordered_labels()


def _costs(model: OpGraph | PlacementProblem) -> tuple[Floats, Floats, Flags, float]:
    """Return what grouping needs to know of a graph or a problem: the work of every op, the traffic
    of every tensor, the devices (or kinds of device) that can run an op, and the bytes of the
    largest device.
    """
    if isinstance(model, PlacementProblem):
        return (
            model.min_compute.astype(np.float64),
            model.min_transfer.astype(np.float64),
            model.compute != INCOMPATIBLE,
            float(model.capacity.max()),
        )
    known = np.maximum(model.measured, 0)
    work = known.max(axis=1) if (known > 0).any() else np.maximum(model.flops, model.bytes_moved)
    timed = (model.measured_transfer >= 0).all()
    return (
        work.astype(np.float64),
        (model.measured_transfer if timed else model.tensor_bytes).astype(np.float64),
        model.measured != UNSUPPORTED
        if model.measured_kinds
        else np.ones((model.num_ops, 1), np.bool_),
        float(UNLIMITED),
    )


class Grouping:
    """Groups of ops that grow from single ones by merging, until there are at most so many.

    Parameters
    ----------
    acyclic : keep the contracted graph acyclic (convex groups), and forward and backward ops apart.
        Otherwise groups only share a device, and ops of one colocation id start as one group.
    """

    def __init__(self, model: OpGraph | PlacementProblem, groups: int, acyclic: bool) -> None:
        if groups < 1:
            raise InputError(f"groups: expected at least 1, received {groups}")
        self.model, self.acyclic = model, acyclic
        self.work, self.traffic, compatible, self.capacity = _costs(model)
        n = model.num_ops
        self.classes = Classes(
            np.arange(n), compatible, model.resident.astype(np.float64), self.work.copy()
        )
        unit = unit_of_ops(model.colocation)
        share_units(self.classes, np.unique(unit, return_index=True)[1][unit])
        # a link is a (tensor, consumer): links that stop mattering as groups grow are dropped
        self._link_tensor = model.edge_tensor
        self._link_source = model.producer[self._link_tensor]
        self._link_target = model.consumer
        self.label = np.arange(n)
        # the distinct pairs of ops that a tensor joins
        pair = distinct(self._link_source * n + self._link_target)
        self.source, self.target = pair // n, pair % n
        self.successor = pointers(self.source, n), self.target
        self._start = earliest_starts(model.topological_order, *self.successor, self.work)
        if not acyclic:
            self._relabel(self.roots())
        self.backward = model.backward if acyclic else np.zeros(n, np.bool_)
        self._reduce(groups)

    def roots(self) -> Ints:
        """Return a representative of the ops that share a device with each op."""
        return _followed(self.classes.parent)

    def ordered_labels(self) -> Ints:
        """Return the groups, numbered by their first op in topological order."""
        return np.argsort(self._by_first_op(self.model.topological_order))[self.label]

    def _by_first_op(self, order: Ints) -> Ints:
        """Return the groups in the order of their first ops."""
        return np.argsort(np.unique(self.label[order], return_index=True)[1])

    @property
    def count(self) -> int:
        """Number of groups."""
        return int(self.label.max()) + 1

    def _relabel(self, label: Ints) -> None:
        self.label = (np.cumsum(np.bincount(label) > 0) - 1)[label]

    def _cut(self, groups: int) -> None:
        """Cut a depth-first topological order into runs of equal work."""
        nodes = self._nodes()
        if self.acyclic:
            source, target, _ = self._quotient()
            pointer = pointers(source, self.count)
            order = depth_first_order(self.count, pointer, target)
        else:
            order = self._by_first_op(depth_first_order(len(self.label), *self.successor))
        tied = self.acyclic and (self.model.colocation >= 0).any()
        limits = self._limits(groups if tied else None)
        self._relabel(
            cut_order(order, groups, nodes, self.classes, limits, self.acyclic)[self.label]
        )

    # --- merging
    # -----------------------------------------------------------------------------------------

    def _reduce(self, groups: int) -> None:
        """Merge along heavy edges until at most `groups` are left, as far as the constraints
        allow.
        """
        limits = self._limits(groups)
        idle, reverse = 0, False
        while self.count > groups and idle < 2:
            before = self.count
            self._match(groups, limits, reverse)
            reverse = not reverse
            idle = idle + 1 if self.count > 0.95 * before else 0
        if self.count > groups:
            self._cut(groups)

    def _limits(self, groups: int | None) -> Limits:
        """Return what a group may grow to if there are to be `groups` of them; None for any number.

        A class of convex groups may hold forward and backward groups of the same weights: it may be
        wider, but not so wide that groups chained by colocation end up on one device.
        """
        # A group's work may reach this multiple of the mean before the limit is relaxed
        balance = 1.5
        cap = np.inf if groups is None else balance * float(self.work.sum()) / groups
        return Limits(cap, 4 * cap if self.acyclic else cap, self.capacity)

    def _match(self, groups: int, limits: Limits, reverse: bool) -> None:
        """Merge groups in pairs, once."""
        count = self.count
        source, target, traffic = self._quotient(reverse)
        if not len(source):
            return
        pointer = pointers(source, count)
        nodes = self._nodes()
        level = np.zeros(count, np.int64)
        if self.acyclic:  # edges of the longest path to every group
            order = depth_first_order(count, pointer, target)
            level += earliest_starts(order, pointer, target, np.ones(count)).astype(np.int64)
        # heavy edges between light groups first (Holtgrewe et al. 2010, rating "expansion*2")
        scale = float(nodes.weight.mean()) or 1.0
        rating = (traffic + 1e-3) ** 2 / (
            (nodes.weight[source] / scale + 1e-3) * (nodes.weight[target] / scale + 1e-3)
        )
        # ... and hardly ever ops that could run in parallel; the power was tuned on sharded and
        # unrolled graphs
        rating = rating * self._sequential(nodes.weight, source, target) ** 4
        ranked = stable_order(-rating)
        mate = match_edges(
            ranked,
            source,
            target,
            pointer,
            level,
            nodes,
            self.classes,
            limits,
            count - groups,
            self.acyclic,
        )
        merges = int((mate >= 0).sum()) // 2
        if merges < min(0.2 * count, count - groups):
            key = _sibling_keys(count, source, target, traffic, level)
            match_siblings(
                stable_order(key),
                key,
                mate,
                nodes,
                self.classes,
                limits,
                count - groups - merges,
                self.acyclic,
            )
        pair = np.where(mate >= 0, np.minimum(mate, np.arange(count)), np.arange(count))
        self._relabel(pair[self.label])

    def _sequential(self, weight: Floats, source: Ints, target: Ints) -> Floats:
        """Return how much of the work of two groups could not run in parallel anyway, 0..1.

        1 if the work fits into the time from the earliest start to the latest end of the union,
        where every op runs as early as it can on a device of its own.
        """
        first = np.full(self.count, np.inf)
        last = np.zeros(self.count)
        np.minimum.at(first, self.label, self._start)
        np.maximum.at(last, self.label, self._start + self.work)
        extent = np.maximum(last[source], last[target]) - np.minimum(first[source], first[target])
        both = weight[source] + weight[target]
        return np.minimum(1.0, (extent + 1e-9) / (both + 1e-9))

    def _nodes(self) -> Nodes:
        count = self.count
        member = np.empty(count, np.int64)
        member[self.label[::-1]] = np.arange(len(self.label))[::-1]
        weight = np.bincount(self.label, weights=self.work).astype(np.float64)
        return Nodes(member, weight, self.backward[member])

    def _quotient(self, reverse: bool = False) -> tuple[Ints, Ints, Floats]:
        """Return edges between groups sorted by source, and their traffic; a tensor counts once per
        pair.
        """
        count = self.count
        source, target = self.label[self._link_source], self.label[self._link_target]
        # links inside a group, and second links of a tensor to a group, will never matter again
        outside = np.flatnonzero(source != target)
        links = self._link_tensor[outside] * count + target[outside]
        keep = outside[np.unique(links, return_index=True)[1]]
        self._link_tensor = self._link_tensor[keep]
        self._link_source, self._link_target = self._link_source[keep], self._link_target[keep]
        ends = (source[keep], target[keep])
        u, v = ends[::-1] if reverse else ends
        key = u * count + v
        order = stable_order(key)
        key = key[order]
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        traffic = np.add.reduceat(self.traffic[self._link_tensor][order], starts)
        return key[starts] // count, key[starts] % count, traffic


def _followed(parent: Ints) -> Ints:
    """Return where following the parents ends, from each member (pointer jumping)."""
    while not np.array_equal(further := parent[parent], parent):
        parent = further
    return parent


def _sibling_keys(count: int, source: Ints, target: Ints, traffic: Floats, level: Ints) -> Ints:
    """Return one number per (heaviest neighbour, its side, level) of a node; -1 for a node without
    edges.
    """
    node = np.concatenate([target, source])
    neighbour = np.concatenate([source, target + count])
    order = np.lexsort((neighbour, -np.tile(traffic, 2), node))
    first = order[np.unique(node[order], return_index=True)[1]]
    key = np.full(count, -1, np.int64)
    key[node[first]] = neighbour[first] * (int(level.max()) + 1) + level[node[first]]
    return key


class Classes(NamedTuple):
    """Union-find of ops that share a device; the arrays of a class are at its root."""

    parent: Ints  # (num_ops,)
    compatible: Flags  # (num_ops, num_devices) devices that every member supports
    resident: Floats  # (num_ops,) bytes
    weight: Floats  # (num_ops,) work


class Limits(NamedTuple):
    """What a group, or a class of ops that share a device, may grow to."""

    group_weight: float
    class_weight: float
    class_resident: float


class Nodes(NamedTuple):
    """The nodes of a contracted graph."""

    member: Ints  # (num_nodes,) any op of the node
    weight: Floats  # (num_nodes,) work
    backward: Flags  # (num_nodes,)


@inner_kernel
def can_share(classes: Any, a: int, b: int, limits: Any) -> bool:
    """Whether the classes of two ops may be joined."""
    a, b = find_root(classes.parent, a), find_root(classes.parent, b)
    if a == b:
        return True
    if classes.resident[a] + classes.resident[b] > limits.class_resident:
        return False
    if classes.weight[a] + classes.weight[b] > limits.class_weight:
        return False
    for device in range(classes.compatible.shape[1]):
        if classes.compatible[a, device] and classes.compatible[b, device]:
            return True
    return False


@entry
def share(classes: Any, a: int, b: int) -> None:
    """Join the classes of two ops; the smaller root stays."""
    a, b = find_root(classes.parent, a), find_root(classes.parent, b)
    if a == b:
        return
    if b < a:
        a, b = b, a
    classes.parent[b] = a
    classes.resident[a] += classes.resident[b]
    classes.weight[a] += classes.weight[b]
    for device in range(classes.compatible.shape[1]):
        classes.compatible[a, device] &= classes.compatible[b, device]


@entry
def share_units(classes: Any, head: Any) -> None:
    """Join the class of every op with that of the first op of its unit, whatever the limits."""
    for op in range(len(head)):
        share(classes, head[op], op)


@entry
def earliest_starts(order: Any, pointer: Any, target: Any, work: Any) -> Any:
    """Return the start of every op with as many devices as ops and free communication."""
    start = np.zeros(len(order))
    for op in order:
        end = start[op] + work[op]
        for edge in row_of(pointer, op):
            start[target[edge]] = max(start[target[edge]], end)
    return start


@entry
def depth_first_order(num_nodes: int, pointer: Any, target: Any) -> Any:
    """Return a topological order that follows one branch to its end before the next."""
    waiting = np.bincount(target, minlength=num_nodes)
    stack = np.empty(num_nodes, np.int64)
    top = 0
    for node in range(num_nodes - 1, -1, -1):
        if waiting[node] == 0:
            stack[top] = node
            top += 1
    order = np.empty(num_nodes, np.int64)
    done = 0
    while top:
        top -= 1
        node = stack[top]
        order[done] = node
        done += 1
        for edge in range(pointer[node + 1] - 1, pointer[node] - 1, -1):
            other = target[edge]
            waiting[other] -= 1
            if waiting[other] == 0:
                stack[top] = other
                top += 1
    return order


@entry
def match_edges(
    ranked: Any,
    source: Any,
    target: Any,
    pointer: Any,
    level: Any,
    nodes: Any,
    classes: Any,
    limits: Any,
    max_merges: int,
    acyclic: bool,
) -> Any:
    """Match the ends of edges greedily; see the module's docstring for what is refused.

    Parameters
    ----------
    ranked : edges, best first.
    source, target, pointer : edges sorted by source, in CSR form.
    level : longest path to every node (used if `acyclic`).

    Returns
    -------
    The partner of every node, -1 for none.
    """
    count = len(nodes.weight)
    mate = np.full(count, -1, np.int64)
    upper = np.zeros(count, np.bool_)
    merges = 0
    for edge in ranked:
        if merges >= max_merges:
            break
        u, v = source[edge], target[edge]
        if mate[u] >= 0 or mate[v] >= 0:
            continue
        if nodes.weight[u] + nodes.weight[v] > limits.group_weight:
            continue
        if acyclic:
            if level[v] != level[u] + 1 or nodes.backward[u] != nodes.backward[v]:
                continue
            crossing = False
            for other in row_of(pointer, u):
                if upper[target[other]] and level[target[other]] == level[u] + 1:
                    crossing = True
                    break
            if crossing:
                continue
        if not can_share(classes, nodes.member[u], nodes.member[v], limits):
            continue
        share(classes, nodes.member[u], nodes.member[v])
        mate[u], mate[v] = v, u
        upper[v] = True
        merges += 1
    return mate


@entry
def match_siblings(
    ranked: Any,
    key: Any,
    mate: Any,
    nodes: Any,
    classes: Any,
    limits: Any,
    max_merges: int,
    keep_direction: bool,
) -> int:
    """Match unmatched nodes with equal keys (same level and same heaviest neighbour) pairwise, in
    place.

    `ranked` lists nodes sorted by key; returns the number of pairs.
    """
    merges = 0
    waiting = -1
    for node in ranked:
        if merges >= max_merges:
            break
        if mate[node] >= 0 or key[node] < 0:
            continue
        if waiting < 0 or key[waiting] != key[node]:
            waiting = node
            continue
        fits = nodes.weight[waiting] + nodes.weight[node] <= limits.group_weight
        if keep_direction and nodes.backward[waiting] != nodes.backward[node]:
            fits = False
        if fits and can_share(classes, nodes.member[waiting], nodes.member[node], limits):
            share(classes, nodes.member[waiting], nodes.member[node])
            mate[waiting], mate[node] = node, waiting
            merges += 1
            waiting = -1
        else:
            waiting = node
    return merges


@entry
def cut_order(
    order: Any, num_groups: int, nodes: Any, classes: Any, limits: Any, keep_direction: bool
) -> Any:
    """Cut a sequence of nodes into about `num_groups` runs of equal work."""
    group = np.full(len(order), -1, np.int64)
    left = nodes.weight.sum()
    count, size = 0, 0.0
    first = -1
    for node in order:
        weight = nodes.weight[node]
        share_of_group = (left + size) / max(1, num_groups - count + 1)
        fits = first >= 0 and (count >= num_groups or size + weight / 2 <= share_of_group)
        if fits and keep_direction and nodes.backward[first] != nodes.backward[node]:
            fits = False
        if fits and can_share(classes, nodes.member[first], nodes.member[node], limits):
            share(classes, nodes.member[first], nodes.member[node])
        else:
            first, size = node, 0.0
            count += 1
        group[node] = count - 1
        size += weight
        left -= weight
    return group
