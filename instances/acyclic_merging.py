"""Kernels that group ops: matching along heavy edges, admission to labelled groups, cutting an
order.

Two invariants are kept by every kernel.

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
J. Herrmann, M. Y. Özkaya, B. Uçar, K. Kaya, Ü. V. Çatalyürek, "Multilevel algorithms for acyclic
partitioning of directed acyclic graphs", SIAM Journal on Scientific Computing 41, 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placeopt.model.compiled import entry
from placeopt.model.union_find import root as find_root

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Classes(NamedTuple):
    """Union-find of ops that share a device; the arrays of a class are at its root."""

    parent: NDArray[np.int64]  # (num_ops,)
    compatible: NDArray[np.bool_]  # (num_ops, num_devices) devices that every member supports
    resident: NDArray[np.float64]  # (num_ops,) bytes
    weight: NDArray[np.float64]  # (num_ops,) work


class Limits(NamedTuple):
    """What a group, or a class of ops that share a device, may grow to."""

    group_weight: float
    class_weight: float
    class_resident: float


class Nodes(NamedTuple):
    """The nodes of a contracted graph."""

    member: NDArray[np.int64]  # (num_nodes,) any op of the node
    weight: NDArray[np.float64]  # (num_nodes,) work
    backward: NDArray[np.bool_]  # (num_nodes,)
    heavy: NDArray[np.bool_]  # (num_nodes,) two heavy nodes are never matched


@entry
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
def roots(parent: Any) -> Any:
    """Return the root of every op."""
    result = np.empty(len(parent), dtype=np.int64)
    for op in range(len(parent)):
        result[op] = find_root(parent, op)
    return result


@entry
def join_colocated(classes: Any, colocation: Any) -> None:
    """Join the classes of ops with the same non-negative colocation id, whatever the limits."""
    if len(colocation) == 0:
        return
    first = np.full(colocation.max() + 2, -1, dtype=np.int64)
    for op in range(len(colocation)):
        group = colocation[op]
        if group >= 0:
            if first[group] < 0:
                first[group] = op
            else:
                share(classes, first[group], op)


@entry
def levels(num_nodes: int, pointer: Any, target: Any) -> Any:
    """Return the number of edges of the longest path to every node; -1 on or behind a cycle."""
    waiting = np.bincount(target, minlength=num_nodes)
    queue = np.empty(num_nodes, dtype=np.int64)
    tail = 0
    for node in range(num_nodes):
        if waiting[node] == 0:
            queue[tail] = node
            tail += 1
    level = np.zeros(num_nodes, dtype=np.int64)
    head = 0
    while head < tail:
        node = queue[head]
        head += 1
        for edge in range(pointer[node], pointer[node + 1]):
            other = target[edge]
            level[other] = max(level[other], level[node] + 1)
            waiting[other] -= 1
            if waiting[other] == 0:
                queue[tail] = other
                tail += 1
    for node in range(num_nodes):
        if waiting[node] > 0:
            level[node] = -1
    return level


@entry
def earliest_starts(order: Any, pointer: Any, target: Any, work: Any) -> Any:
    """Return the start of every op with as many devices as ops and free communication."""
    start = np.zeros(len(order))
    for op in order:
        end = start[op] + work[op]
        for edge in range(pointer[op], pointer[op + 1]):
            start[target[edge]] = max(start[target[edge]], end)
    return start


@entry
def depth_first_order(num_nodes: int, pointer: Any, target: Any) -> Any:
    """Return a topological order that follows one branch to its end before the next."""
    waiting = np.bincount(target, minlength=num_nodes)
    stack = np.empty(num_nodes, dtype=np.int64)
    top = 0
    for node in range(num_nodes - 1, -1, -1):
        if waiting[node] == 0:
            stack[top] = node
            top += 1
    order = np.empty(num_nodes, dtype=np.int64)
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
    mate = np.full(count, -1, dtype=np.int64)
    upper = np.zeros(count, dtype=np.bool_)
    merges = 0
    for edge in ranked:
        if merges >= max_merges:
            break
        u, v = source[edge], target[edge]
        if mate[u] >= 0 or mate[v] >= 0 or (nodes.heavy[u] and nodes.heavy[v]):
            continue
        if nodes.weight[u] + nodes.weight[v] > limits.group_weight:
            continue
        if acyclic:
            if level[v] != level[u] + 1 or nodes.backward[u] != nodes.backward[v]:
                continue
            crossing = False
            for other in range(pointer[u], pointer[u + 1]):
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
        if nodes.heavy[waiting] and nodes.heavy[node]:
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
def admit(order: Any, label: Any, num_labels: int, backward: Any, classes: Any, limits: Any) -> Any:
    """Give the ops of each label a group, opening another one where an op does not fit.

    Cutting a group along a topological order keeps an acyclic contraction acyclic.
    """
    group = np.full(len(label), -1, dtype=np.int64)
    latest = np.full(num_labels, -1, dtype=np.int64)  # last op that opened a group, by label
    count = 0
    for op in order:
        first = latest[label[op]]
        if first >= 0 and backward[first] == backward[op] and can_share(classes, first, op, limits):
            share(classes, first, op)
            group[op] = group[first]
        else:
            latest[label[op]] = op
            group[op] = count
            count += 1
    return group


@entry
def cut_order(
    order: Any, num_groups: int, nodes: Any, classes: Any, limits: Any, keep_direction: bool
) -> Any:
    """Cut a sequence of nodes into about `num_groups` runs of equal work."""
    group = np.full(len(order), -1, dtype=np.int64)
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


@entry
def stages(order: Any, pointer: Any, target: Any, label: Any, component: Any) -> Any:
    """Count, on the worst path to every op, how often it changes the label within a strong
    component.

    `component` is the strongly connected component of each op's label in the contracted graph.
    Splitting labels by this number makes the contraction acyclic: it never falls along an edge
    inside a component, and rises where the label changes.
    """
    stage = np.zeros(len(order), dtype=np.int64)
    for op in order:
        for edge in range(pointer[op], pointer[op + 1]):
            other = target[edge]
            if component[op] == component[other]:
                step = 0 if label[op] == label[other] else 1
                stage[other] = max(stage[other], stage[op] + step)
    return stage
