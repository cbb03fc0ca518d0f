"""Period (throughput) of a placement: the largest device load of a steady-state pipeline.

A device d with an io class (an accelerator) exchanges tensors with host memory over that link
class; a device without one (`io_class` -1, a CPU) computes out of host memory and never pays. For
the ops S of d

    load(d) = sum_{v in S} compute[v, d]
            + sum_t transfer[t, io_class[d]] * [producer of t not in S, a consumer in S]
            + sum_t transfer[t, io_class[d]] * [producer of t in S, a consumer not in S],

so a tensor costs its sender once and every receiving accelerator once. Every op and tensor belongs
to a pass: a tensor to the pass of its producer. With pipeline "1f1b" the period is max_d (FW_d +
BW_d), with "gpipe" it is max_d FW_d + max_d BW_d; without backward ops they agree.

Contiguity restricts the *forward* ops of each device:

- `chain`: the devices can be ordered so that no forward edge goes back: each device holds the
  difference of two ideals (down-sets). A backward op whose colocation class has no forward op is
  mirrored: an edge x -> y of the backward graph that touches such a class counts as the forward
  edge y -> x.
- `convex`: no forward path leaves a device and re-enters it.
- `none`: any assignment.

Devices may be unrelated here, and every device may have its own link class.

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 3.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from placeopt.model.arrays import Array, Flags, Ints, SmallInts, device_rows, frozen
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.placement_objective import check_static
from placeopt.model.problem import PlacementProblem
from placeopt.period.judge import period_violations

CHAIN, CONVEX, NONE = range(3)
_CONTIGUITY_CODE = {"chain": CHAIN, "convex": CONVEX, "none": NONE}

FORWARD, BACKWARD = range(2)
"""Passes: rows of a table of loads."""


class PeriodArrays(NamedTuple):
    """What the kernels read (n ops, k devices, m tensors, e order edges)."""

    compute: Ints  # (n, k) ticks, -1 incompatible
    producer: Ints  # (m,)
    consumer_ptr: Ints  # (m + 1,)
    consumer: Ints  # (edges,)
    io_ticks: Ints  # (m, k) ticks to move a tensor between a device and host memory
    backward: Flags  # (n,)
    resident: Ints  # (n,) bytes
    capacity: Ints  # (k,) bytes
    leader: Ints  # (n,) first op of the colocation class
    order_from: Ints  # (e,) order edges, topologically sorted by their source
    order_to: Ints  # (e,)
    contiguity: int
    gpipe: bool


def placement_rows(problem: PlacementProblem, devices: ArrayLike) -> SmallInts:
    """Return the devices of many placements, shape (num_placements, num_ops)."""
    rows = device_rows(devices)
    if rows.ndim != 2 or rows.shape[1] != problem.num_ops:
        raise InputError(
            f"devices: expected shape (placements, {problem.num_ops}), received {rows.shape}"
        )
    return rows


def period_batch(problem: PlacementProblem, devices: ArrayLike) -> Ints:
    """Return the period of every row of `devices`, INFEASIBLE where a constraint is broken.

    Parameters
    ----------
    devices : device index of every op, shape (num_placements, num_ops).
    """
    rows = placement_rows(problem, devices)
    value = np.empty(len(rows), np.int64)
    period_rows(period_arrays(problem), rows, value)
    return value


def period_value(problem: PlacementProblem, placement: Placement) -> int:
    """Return the period of `placement` in ticks.

    Raises
    ------
    InfeasiblePlacementError
        If it breaks a constraint; the message is the first violation.
    """
    value = int(period_batch(problem, placement.device[None, :])[0])
    if value == INFEASIBLE:
        raise InfeasiblePlacementError(period_violations(problem, placement)[0])
    return value


def period_loads(problem: PlacementProblem, device: Ints) -> Ints:
    """Return the load of every device in ticks, shape (2, num_devices), forward and backward pass,
    by the device of every op.
    """
    k = problem.num_devices
    load = np.zeros((2, k), np.int64)
    loads_of(period_arrays(problem), device.astype(np.int32), load, np.empty(k, np.int64))
    return load


_cache: weakref.WeakKeyDictionary[PlacementProblem, PeriodArrays] = weakref.WeakKeyDictionary()


def period_arrays(problem: PlacementProblem) -> PeriodArrays:
    """Return the arrays of `problem` that the period kernels read (cached).

    Raises
    ------
    InputError
        If the problem asks for memory="peak": a steady-state pipeline has no single dynamic peak.
    """
    known = _cache.get(problem)
    if known is not None:
        return known
    check_static(problem)
    edge_from, edge_to = order_edges(problem, problem.contiguity)
    arrays = PeriodArrays(
        problem.compute,
        problem.producer,
        problem.consumer_ptr,
        problem.consumer,
        problem.io_ticks,
        problem.backward,
        problem.resident,
        problem.capacity,
        problem.units.head,
        edge_from,
        edge_to,
        _CONTIGUITY_CODE[problem.contiguity],
        problem.pipeline == "gpipe",
    )
    _cache[problem] = arrays
    return arrays


def order_edges(problem: PlacementProblem, contiguity: str) -> tuple[Ints, Ints]:
    """Return the op pairs (from, to) that contiguity speaks about, sorted by topological rank of
    `from`.

    All pairs of forward ops joined by a tensor; for `chain` also the mirrored edges of orphan
    backward classes (see the module docstring). Empty for `none`.
    """
    empty = frozen(np.zeros(0, np.int64))
    if contiguity == "none" or problem.num_edges == 0:
        return empty, empty
    source, target = problem.edge_source, problem.consumer
    backward = problem.backward
    forward = ~backward[source] & ~backward[target]
    pairs = np.column_stack([source[forward], target[forward]])
    if contiguity == "chain" and backward.any():
        leader = problem.units.head
        has_forward = np.zeros(problem.num_ops, np.bool_)
        has_forward[leader[~backward]] = True
        orphan = ~has_forward[leader]
        mirrored = backward[source] & backward[target] & (orphan[source] | orphan[target])
        pairs = np.concatenate([pairs, np.column_stack([target[mirrored], source[mirrored]])])
    pairs = np.unique(pairs, axis=0)
    rank = np.argsort(problem.topological_order)
    pairs = pairs[np.lexsort((pairs[:, 1], rank[pairs[:, 0]]))]
    return frozen(pairs[:, 0]), frozen(pairs[:, 1])


@entry
def loads_of(a: PeriodArrays, device: SmallInts, load: Ints, seen: Ints) -> None:
    """Fill load[pass, device]; `seen` is scratch of length k."""
    k = a.compute.shape[1]
    load[:] = 0
    seen[:] = -1
    for v in range(a.compute.shape[0]):
        load[BACKWARD if a.backward[v] else FORWARD, device[v]] += a.compute[v, device[v]]
    for t in range(len(a.producer)):
        u = a.producer[t]
        home = device[u]
        part = BACKWARD if a.backward[u] else FORWARD
        leaves = False
        for e in row_of(a.consumer_ptr, t):
            d = device[a.consumer[e]]
            if d != home:
                leaves = True
                if seen[d] != t:
                    seen[d] = t
                    load[part, d] += a.io_ticks[t, d]
        if leaves and k > 1:
            load[part, home] += a.io_ticks[t, home]


@inner_kernel
def _acyclic_devices(a: PeriodArrays, device: SmallInts) -> bool:
    """Whether the devices can be ordered so that no order edge goes back."""
    k = a.compute.shape[1]
    edge = np.zeros((k, k), np.bool_)
    waiting = np.zeros(k, np.int64)  # devices before each one that are not sorted yet
    for e in range(len(a.order_from)):
        u, v = device[a.order_from[e]], device[a.order_to[e]]
        if u != v and not edge[u, v]:
            edge[u, v] = True
            waiting[v] += 1
    order = np.empty(k, np.int64)
    count = done = 0
    for d in range(k):
        if waiting[d] == 0:
            order[count] = d
            count += 1
    while done < count:
        for d in range(k):
            if edge[order[done], d]:
                waiting[d] -= 1
                if waiting[d] == 0:
                    order[count] = d
                    count += 1
        done += 1
    return count == k


@inner_kernel
def _convex_devices(a: PeriodArrays, device: SmallInts, left: Flags) -> bool:
    """Whether no path of order edges leaves a device and re-enters it; `left` is scratch (n, k)."""
    k = a.compute.shape[1]
    left[:] = False
    # Edges are sorted by the topological rank of their source, so left[u] is final when u is a
    # source.
    for e in range(len(a.order_from)):
        u, v = a.order_from[e], a.order_to[e]
        for d in range(k):
            if left[u, d]:
                left[v, d] = True
        if device[u] != device[v]:
            left[v, device[u]] = True
    for v in range(a.compute.shape[0]):
        if left[v, device[v]]:
            return False
    return True


@inner_kernel
def fits(a: Any, device: Array, used: Ints) -> bool:
    """Whether compatibility, colocation and the capacities hold; `used` is scratch (k,)."""
    n, k = a.compute.shape
    used[:] = 0
    for v in range(n):
        d = device[v]
        if d < 0 or d >= k or a.compute[v, d] < 0 or device[a.leader[v]] != d:
            return False
        used[d] += a.resident[v]
    for d in range(k):
        if used[d] > a.capacity[d]:
            return False
    return True


@inner_kernel
def _contiguous(a: PeriodArrays, device: SmallInts, left: Flags) -> bool:
    """Whether the devices keep the contiguity that is asked for; `left` is scratch (n, k)."""
    if a.contiguity == CHAIN:
        return _acyclic_devices(a, device)
    if a.contiguity == CONVEX:
        return _convex_devices(a, device, left)
    return True


@entry
def period_rows(a: PeriodArrays, devices: SmallInts, value: Ints) -> None:
    """Fill value[b] with the period of row b, INFEASIBLE where a constraint is broken."""
    n, k = a.compute.shape
    load = np.zeros((2, k), np.int64)
    seen, used = np.empty((2, k), np.int64)
    left = np.zeros((n, k), np.bool_)
    for b in range(devices.shape[0]):
        if not (fits(a, devices[b], used) and _contiguous(a, devices[b], left)):
            value[b] = INFEASIBLE
            continue
        loads_of(a, devices[b], load, seen)
        forward = backward = together = 0
        for d in range(k):
            forward = max(forward, load[FORWARD, d])
            backward = max(backward, load[BACKWARD, d])
            together = max(together, load[FORWARD, d] + load[BACKWARD, d])
        value[b] = forward + backward if a.gpipe else together
