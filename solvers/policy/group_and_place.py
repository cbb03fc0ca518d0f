"""Sample groups of ops and place them, in numba, with the score function of every decision.

Groups are placed one after the other, heaviest first, by softmax(w . f / T) over devices; f says
how full a device would be, how much communication stays inside, how fast it is for the group, how
much memory is left. One setting of w is longest processing time with affinity, the heuristic to
start from.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import Bits, SmallInts
from placeopt.model.compiled import entry, inner_kernel, pasted, row_of
from placeopt.model.random_bits import split_uniform
from placeopt.model.union_find import number_sets, root as find_root

if TYPE_CHECKING:
    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.solvers.policy.grouping_graph import GroupingGraph


class Place(IntEnum):
    """Features of a device for the group at hand."""

    LOAD = 0
    AFFINITY = 1
    SLOWNESS = 2
    MEMORY_USED = 3
    SHARED_LEVELS = 4


NUM_PLACE = len(Place)


class Sampling(NamedTuple):
    """How decisions are drawn."""

    temperature: float
    random: Bits  # (1,) state of the generator


def new_sampling(temperature: float) -> Sampling:
    """Return the memory of one thread; the kernels seed it for every sample."""
    return Sampling(temperature, np.zeros(1, np.uint64))


class Parser(NamedTuple):
    """Scores of edges."""

    feature: Floats  # (edges, features)
    score: Floats  # (edges,)


class Placer(NamedTuple):
    """Parameters of the placer."""

    weights: Floats  # (Place,)
    bias: Floats  # (groups, k), or (0, k) without


class ParsedSamples(NamedTuple):
    """Samples of graph parsing, with the score function of each."""

    devices: SmallInts  # (batch, n)
    ranks: Ints  # (batch, n) order in which they are executed
    edge: Floats  # (batch, edge features)
    residual: Floats  # (batch, edges), or (batch, 0)
    place: Floats  # (batch, Place)


class AssignedSamples(NamedTuple):
    """Samples of the grouper and the placer, with the score function of each."""

    devices: SmallInts  # (batch, n)
    ranks: Ints  # (batch, n) order in which they are executed
    logits: Floats  # (batch, n, G)
    place: Floats  # (batch, Place)
    bias: Floats  # (batch, G, k)


class Groups(NamedTuple):
    """Sums over the ops of each group."""

    work: Floats  # (groups, k) ticks, -inf where incompatible
    mean: Floats  # (groups,) ticks, mean over the compatible devices
    size: Floats  # (groups,) bytes
    depth: Floats  # (groups, levels) mean ticks
    pointer: Ints  # (groups + 1,) into the next two
    other: Ints  # group at the other end of an edge
    cost: Floats  # ticks of that edge


class Devices(NamedTuple):
    """The devices while groups are placed."""

    home: Ints  # (groups,) device, -1 before
    load: Floats  # (k,)
    room: Floats  # (k,)
    busy: Floats  # (k, levels) mean ticks
    near: Floats  # (k,) communication with groups there
    open: Flags  # (k,) where the group at hand may go
    feature: Floats  # (k, Place)
    score: Floats  # (k,) then probability


@inner_kernel
def _merge_units(graph: GroupingGraph, parent: Ints) -> None:
    """Join the ops of each unit."""
    first = np.full(graph.unit.max() + 1, -1, np.int64)
    for v in range(graph.unit.shape[0]):
        u = graph.unit[v]
        if first[u] < 0:
            first[u] = v
        else:
            x, y = find_root(parent, first[u]), find_root(parent, v)
            if x != y:
                parent[max(x, y)] = min(x, y)


@inner_kernel
def _draw(score: Floats, count: int, how: Sampling) -> int:
    """Turn scores[:count] into probabilities in place and pick one; -inf is never picked."""
    top = -np.inf
    best = 0
    for i in range(count):
        if score[i] > top:
            top, best = score[i], i
    total = 0.0
    for i in range(count):
        score[i] = np.exp(score[i] - top)
        total += score[i]
    left = split_uniform(how.random) * total
    for i in range(count):
        score[i] /= total
    for i in range(count):
        left -= score[i] * total
        if left < 0:
            return i
    return best


@entry
def parse(
    graph: GroupingGraph,
    parser: Parser,
    how: Sampling,
    label: Ints,
    gradient: Floats,
    residual: Floats,
) -> int:
    """Each op keeps one of its edges by softmax(score); connected components are groups. Return
    their number.

    Adds d log-probability / d weights to `gradient` (features,) and / d score to `residual`
    (edges,), where that has a size.
    """
    n = graph.resident.shape[0]
    parent = np.arange(n)
    widest = 1
    for v in range(n):
        widest = max(widest, graph.incident_ptr[v + 1] - graph.incident_ptr[v])
    p = np.empty(widest)
    width = parser.feature.shape[1]
    for v in range(n):
        low, high = graph.incident_ptr[v], graph.incident_ptr[v + 1]
        if low == high:
            continue
        for i in range(low, high):
            p[i - low] = parser.score[graph.incident[i]] / how.temperature
        chosen = _draw(p, high - low, how)
        edge = graph.incident[low + chosen]
        x, y = find_root(parent, graph.source[edge]), find_root(parent, graph.target[edge])
        if x != y:
            parent[max(x, y)] = min(x, y)
        if high - low > 1:
            for i in range(high - low):
                d = ((1.0 if i == chosen else 0.0) - p[i]) / how.temperature
                e = graph.incident[low + i]
                for f in range(width):
                    gradient[f] += d * parser.feature[e, f]
                if residual.shape[0] > 0:
                    residual[e] += d
    _merge_units(graph, parent)
    return number_sets(parent, label)


@entry
def assign(
    graph: GroupingGraph, logits: Floats, how: Sampling, label: Ints, gradient: Floats
) -> int:
    """Each op draws one of G groups by softmax(logits); the ops of a unit follow their first.
    Return G.

    Adds d log-probability / d logits to `gradient`, shape (n, G).
    """
    n, groups = logits.shape
    p = np.empty(groups)
    first = np.full(graph.unit.max() + 1, -1, np.int64)
    for v in range(n):
        u = graph.unit[v]
        if first[u] >= 0:
            label[v] = label[first[u]]
            continue
        first[u] = v
        for g in range(groups):
            p[g] = logits[v, g] / how.temperature
        label[v] = _draw(p, groups, how)
        for g in range(groups):
            gradient[v, g] += ((1.0 if g == label[v] else 0.0) - p[g]) / how.temperature
    return groups


@inner_kernel
def _sum_up(graph: GroupingGraph, label: Ints, groups: int) -> Groups:
    """Add up the ops of every group, and list what it communicates with each other group."""
    n, k = graph.compute.shape
    work, mean, size = np.zeros((groups, k)), np.zeros(groups), np.zeros(groups)
    depth = np.zeros((groups, graph.num_levels))
    for v in range(n):
        g = label[v]
        size[g] += graph.resident[v]
        count = 0
        total = 0.0
        for d in range(k):
            if graph.compute[v, d] < 0:
                work[g, d] = -np.inf
            else:
                work[g, d] += graph.compute[v, d]
                total += graph.compute[v, d]
                count += 1
        mean[g] += total / count
        depth[g, graph.level[v]] += total / count
    pointer = np.zeros(groups + 1, np.int64)
    for e in range(graph.source.shape[0]):
        x, y = label[graph.source[e]], label[graph.target[e]]
        if x != y:
            pointer[x + 1] += 1
            pointer[y + 1] += 1
    for g in range(groups):
        pointer[g + 1] += pointer[g]
    at = pointer[:-1].copy()
    other = np.empty(pointer[groups], np.int64)
    cost = np.empty(pointer[groups])
    for e in range(graph.source.shape[0]):
        x, y = label[graph.source[e]], label[graph.target[e]]
        if x != y:
            other[at[x]], cost[at[x]] = y, graph.cost[e]
            other[at[y]], cost[at[y]] = x, graph.cost[e]
            at[x] += 1
            at[y] += 1
    return Groups(work, mean, size, depth, pointer, other, cost)


@pasted
def _describe(graph: GroupingGraph, groups: Groups, devices: Devices, g: int, share: float) -> None:
    """Fill the features of group g on every device, and mark where it may go: where it fits, if it
    fits anywhere.
    """
    k = devices.load.shape[0]
    devices.near[:] = 0.0
    all_near = 0.0
    for j in row_of(groups.pointer, g):
        all_near += groups.cost[j]
        home = devices.home[groups.other[j]]
        if home >= 0:
            devices.near[home] += groups.cost[j]
    fastest = np.inf
    fits = False
    for d in range(k):
        if groups.work[g, d] >= 0:
            fastest = min(fastest, groups.work[g, d])
            fits = fits or devices.room[d] >= groups.size[g]
    for d in range(k):
        work, left = groups.work[g, d], devices.room[d] - groups.size[g]
        devices.open[d] = work >= 0 and (left >= 0 or not fits)
        if not devices.open[d]:
            devices.feature[d] = 0.0
            continue
        devices.feature[d, Place.LOAD] = (devices.load[d] + work) / share
        devices.feature[d, Place.AFFINITY] = devices.near[d] / all_near if all_near > 0 else 0.0
        devices.feature[d, Place.SLOWNESS] = 1.0 - fastest / work if work > 0 else 0.0
        devices.feature[d, Place.MEMORY_USED] = (
            (1.0 - left / graph.capacity[d]) if graph.capacity[d] > 0 else 1.0
        )
        clash = 0.0
        for level in range(graph.num_levels):
            clash += min(devices.busy[d, level], groups.depth[g, level])
        devices.feature[d, Place.SHARED_LEVELS] = clash / max(1e-300, groups.mean[g])


@pasted
def _choose(
    placer: Placer, devices: Devices, g: int, how: Sampling, gradient: Floats, bias_gradient: Floats
) -> int:
    """Draw the device of group g; add the score function to the gradients."""
    k = devices.load.shape[0]
    for d in range(k):
        score = 0.0
        for f in range(NUM_PLACE):
            score += placer.weights[f] * devices.feature[d, f]
        if placer.bias.shape[0] > 0:
            score += placer.bias[g, d]
        devices.score[d] = score / how.temperature if devices.open[d] else -np.inf
    chosen = _draw(devices.score, k, how)
    for d in range(k):
        delta = ((1.0 if d == chosen else 0.0) - devices.score[d]) / how.temperature
        for f in range(NUM_PLACE):
            gradient[f] += delta * devices.feature[d, f]
        if placer.bias.shape[0] > 0:
            bias_gradient[g, d] += delta
    return chosen


@entry
def place(
    graph: GroupingGraph,
    placer: Placer,
    how: Sampling,
    label: Ints,
    count: int,
    device: SmallInts,
    gradient: Floats,
    bias_gradient: Floats,
) -> None:
    """Place groups, heaviest first; the groups of the ops are `label`.

    Adds d log-probability / d weights to `gradient` (features,) and / d bias to `bias_gradient`.
    """
    n, k = graph.compute.shape
    groups = _sum_up(graph, label, count)
    devices = Devices(
        np.full(count, -1, np.int64),
        np.zeros(k),
        graph.capacity.copy(),
        np.zeros((k, graph.num_levels)),
        np.empty(k),
        np.empty(k, np.bool_),
        np.zeros((k, NUM_PLACE)),
        np.empty(k),
    )
    share = max(1e-300, groups.mean.sum() / k)
    for g in np.argsort(-groups.mean, kind="mergesort"):
        if (
            groups.mean[g] == 0.0
            and groups.size[g] == 0.0
            and groups.pointer[g] == groups.pointer[g + 1]
        ):
            # An empty group, or one that costs nothing and touches nothing.
            for d in range(k):
                if groups.work[g, d] >= 0:
                    devices.home[g] = d
                    break
            continue
        _describe(graph, groups, devices, g, share)
        if not devices.open.any():  # no device runs all of it: the evaluation refuses the placement
            devices.home[g] = 0
            continue
        d = _choose(placer, devices, g, how, gradient, bias_gradient)
        devices.home[g] = d
        devices.load[d] += max(0.0, groups.work[g, d])
        devices.room[d] -= groups.size[g]
        for level in range(graph.num_levels):
            devices.busy[d, level] += groups.depth[g, level]
    for v in range(n):
        device[v] = devices.home[label[v]]


@entry
def parse_and_place(
    graph: GroupingGraph,
    parser: Parser,
    placer: Placer,
    how: Sampling,
    seeds: Bits,
    samples: ParsedSamples,
) -> None:
    """Sample one placement per seed by graph parsing."""
    n, k = graph.compute.shape
    label = np.empty(n, np.int64)
    none = np.empty((0, k))
    for b in range(seeds.shape[0]):
        how.random[0] = seeds[b]
        count = parse(graph, parser, how, label, samples.edge[b], samples.residual[b])
        place(graph, placer, how, label, count, samples.devices[b], samples.place[b], none)


@entry
def assign_and_place(
    graph: GroupingGraph,
    logits: Floats,
    placer: Placer,
    how: Sampling,
    seeds: Bits,
    samples: AssignedSamples,
) -> None:
    """Sample one placement per seed by assigning ops to groups."""
    label = np.empty(graph.compute.shape[0], np.int64)
    for b in range(seeds.shape[0]):
        how.random[0] = seeds[b]
        count = assign(graph, logits, how, label, samples.logits[b])
        place(
            graph, placer, how, label, count, samples.devices[b], samples.place[b], samples.bias[b]
        )
