"""Period (throughput) of a placement: the largest device load of a steady-state pipeline.

A device d with an io class (an accelerator) exchanges tensors with host memory over that link class; a
device without one (`io_class` -1, a CPU) computes out of host memory and never pays. For the ops S of d

    load(d) = sum_{v in S} compute[v, d]
            + sum_t transfer[t, io_class[d]] * [producer of t not in S, a consumer in S]
            + sum_t transfer[t, io_class[d]] * [producer of t in S, a consumer not in S],

so a tensor costs its sender once and every receiving accelerator once. Every op and tensor belongs to a
pass: a tensor to the pass of its producer. With pipeline "1f1b" the period is max_d (FW_d + BW_d), with
"gpipe" it is max_d FW_d + max_d BW_d; without backward ops they agree.

Contiguity restricts the *forward* ops of each device:

- `chain`: the devices can be ordered so that no forward edge goes back: each device holds the difference
  of two ideals (down-sets). A backward op whose colocation class has no forward op is mirrored: an edge
  x -> y of the backward graph that touches such a class counts as the forward edge y -> x.
- `convex`: no forward path leaves a device and re-enters it.
- `none`: any assignment.

The model is that of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators",
NeurIPS 2020; here the devices may be unrelated and every device may have its own link class.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np

from placeopt.model.arrays import frozen
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.problem import INCOMPATIBLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.tracker import Tracker

_CHAIN, _CONVEX, _NONE = 0, 1, 2
_CONTIGUITY_CODE = {"chain": _CHAIN, "convex": _CONVEX, "none": _NONE}


class PeriodArrays(NamedTuple):
    """What the kernels read (n ops, k devices, m tensors, e order edges)."""

    compute: NDArray[np.int64]  # (n, k) ticks, -1 incompatible
    producer: NDArray[np.int64]  # (m,)
    consumer_ptr: NDArray[np.int64]  # (m + 1,)
    consumer: NDArray[np.int64]  # (edges,)
    io_ticks: NDArray[np.int64]  # (m, k) ticks to move a tensor between a device and host memory
    backward: NDArray[np.bool_]  # (n,)
    resident: NDArray[np.int64]  # (n,) bytes
    capacity: NDArray[np.int64]  # (k,) bytes
    leader: NDArray[np.int64]  # (n,) first op of the colocation class
    order_from: NDArray[np.int64]  # (e,) order edges, topologically sorted by their source
    order_to: NDArray[np.int64]  # (e,)
    contiguity: int
    gpipe: bool


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
    if problem.memory != "static":
        raise InputError(
            f"problem '{problem.name}': objective '{problem.objective}' expects memory='static', received "
            f"'{problem.memory}'; set memory='static'"
        )
    edge_from, edge_to = order_edges(problem, problem.contiguity)
    arrays = PeriodArrays(
        problem.compute,
        problem.producer,
        problem.consumer_ptr,
        problem.consumer,
        io_ticks(problem),
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


def io_ticks(problem: PlacementProblem) -> NDArray[np.int64]:
    """Ticks to move each tensor between each device and host memory, shape (num_tensors, num_devices)."""
    table = np.zeros((problem.num_tensors, problem.num_devices), dtype=np.int64)
    pays = problem.io_class >= 0
    if problem.num_tensors:
        table[:, pays] = problem.transfer[:, problem.io_class[pays]]
    return frozen(table)


def order_edges(problem: PlacementProblem, contiguity: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the op pairs (from, to) that contiguity speaks about, sorted by topological rank of `from`.

    All pairs of forward ops joined by a tensor; for `chain` also the mirrored edges of orphan backward
    classes (see the module docstring). Empty for `none`.
    """
    empty = np.zeros(0, dtype=np.int64)
    if contiguity == "none" or problem.num_edges == 0:
        return empty, empty
    source, target = problem.producer[problem.edge_tensor], problem.consumer
    backward = problem.backward
    forward = ~backward[source] & ~backward[target]
    pairs = np.stack([source[forward], target[forward]], axis=1)
    if contiguity == "chain" and backward.any():
        leader = problem.units.head
        has_forward = np.zeros(problem.num_ops, dtype=np.bool_)
        has_forward[leader[~backward]] = True
        orphan = ~has_forward[leader]
        mirrored = backward[source] & backward[target] & (orphan[source] | orphan[target])
        pairs = np.concatenate([pairs, np.stack([target[mirrored], source[mirrored]], axis=1)])
    pairs = np.unique(pairs, axis=0)
    rank = np.empty(problem.num_ops, dtype=np.int64)
    rank[problem.topological_order] = np.arange(problem.num_ops)
    pairs = pairs[np.lexsort((pairs[:, 1], rank[pairs[:, 0]]))]
    return frozen(pairs[:, 0]), frozen(pairs[:, 1])


# --- kernels -------------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _loads(a: PeriodArrays, device: NDArray[np.int32], load: NDArray[np.int64], seen: NDArray[np.int64]) -> None:
    """Fill load[pass, device]; `seen` is scratch of length k."""
    k = a.compute.shape[1]
    load[:] = 0
    seen[:] = -1
    for v in range(a.compute.shape[0]):
        load[1 if a.backward[v] else 0, device[v]] += a.compute[v, device[v]]
    for t in range(len(a.producer)):
        u = a.producer[t]
        home = device[u]
        part = 1 if a.backward[u] else 0
        leaves = False
        for e in range(a.consumer_ptr[t], a.consumer_ptr[t + 1]):
            d = device[a.consumer[e]]
            if d != home:
                leaves = True
                if seen[d] != t:
                    seen[d] = t
                    load[part, d] += a.io_ticks[t, d]
        if leaves and k > 1:
            load[part, home] += a.io_ticks[t, home]


@numba.njit(cache=True, nogil=True)
def _acyclic_devices(a: PeriodArrays, device: NDArray[np.int32]) -> bool:
    """Whether the devices can be ordered so that no order edge goes back."""
    k = a.compute.shape[1]
    edge = np.zeros((k, k), dtype=np.bool_)
    for e in range(len(a.order_from)):
        edge[device[a.order_from[e]], device[a.order_to[e]]] = True
    gone = np.zeros(k, dtype=np.bool_)
    for _ in range(k):
        found = -1
        for d in range(k):
            if gone[d]:
                continue
            free = True
            for b in range(k):
                if b != d and not gone[b] and edge[b, d]:
                    free = False
                    break
            if free:
                found = d
                break
        if found < 0:
            return False
        gone[found] = True
    return True


@numba.njit(cache=True, nogil=True)
def _convex_devices(a: PeriodArrays, device: NDArray[np.int32], left: NDArray[np.bool_]) -> bool:
    """Whether no path of order edges leaves a device and re-enters it; `left` is scratch (n, k)."""
    k = a.compute.shape[1]
    left[:] = False
    # Edges are sorted by the topological rank of their source, so left[u] is final when u is a source.
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


@numba.njit(cache=True, nogil=True)
def _feasible(a: PeriodArrays, device: NDArray[np.int32], used: NDArray[np.int64], left: NDArray[np.bool_]) -> bool:
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
    if a.contiguity == _CHAIN:
        return _acyclic_devices(a, device)
    if a.contiguity == _CONVEX:
        return _convex_devices(a, device, left)
    return True


@numba.njit(cache=True, nogil=True)
def _period_rows(a: PeriodArrays, devices: NDArray[np.int32], value: NDArray[np.int64]) -> None:
    """Fill value[b] with the period of row b, INFEASIBLE where a constraint is broken."""
    n, k = a.compute.shape
    load = np.zeros((2, k), dtype=np.int64)
    seen = np.empty(k, dtype=np.int64)
    used = np.empty(k, dtype=np.int64)
    left = np.zeros((n, k), dtype=np.bool_)
    for b in range(devices.shape[0]):
        if not _feasible(a, devices[b], used, left):
            value[b] = INFEASIBLE
            continue
        _loads(a, devices[b], load, seen)
        forward = backward = together = 0
        for d in range(k):
            forward = max(forward, load[0, d])
            backward = max(backward, load[1, d])
            together = max(together, load[0, d] + load[1, d])
        value[b] = forward + backward if a.gpipe else together


# --- public --------------------------------------------------------------------------------------------


def period_batch(problem: PlacementProblem, devices: ArrayLike) -> NDArray[np.int64]:
    """Return the period of every row of `devices`, INFEASIBLE where a constraint is broken.

    Parameters
    ----------
    devices : device index of every op, shape (num_placements, num_ops).
    """
    rows = np.ascontiguousarray(devices, dtype=np.int32)
    if rows.ndim != 2 or rows.shape[1] != problem.num_ops:
        raise InputError(f"devices: expected shape (placements, {problem.num_ops}), received {rows.shape}")
    value = np.empty(len(rows), dtype=np.int64)
    _period_rows(period_arrays(problem), rows, value)
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


def period_loads(problem: PlacementProblem, placement: Placement) -> NDArray[np.int64]:
    """Return the load of every device in ticks, shape (2, num_devices): forward and backward pass."""
    k = problem.num_devices
    load = np.zeros((2, k), dtype=np.int64)
    _loads(period_arrays(problem), placement.device.astype(np.int32), load, np.empty(k, dtype=np.int64))
    return load


def period_violations(problem: PlacementProblem, placement: Placement) -> list[str]:
    """List in words every constraint that `placement` breaks; empty if it is feasible.

    Plain Python without the kernels, so that the two can be held against each other.
    """
    ops, names, device = problem.op_names, problem.device_names, placement.device.tolist()
    if len(device) != problem.num_ops:
        return [f"placement: expected {problem.num_ops} devices, one per op, received {len(device)}"]
    found = [
        f"op '{ops[v]}': expected a device in 0..{problem.num_devices - 1}, received {d}"
        for v, d in enumerate(device)
        if not 0 <= d < problem.num_devices
    ]
    if found:
        return found
    for v, d in enumerate(device):
        if problem.compute[v, d] == INCOMPATIBLE:
            found.append(f"op '{ops[v]}' cannot run on device '{names[d]}'")
    first: dict[int, int] = {}
    for v, group in enumerate(problem.colocation.tolist()):
        if group >= 0:
            head = first.setdefault(group, v)
            if device[head] != device[v]:
                found.append(f"ops '{ops[head]}' and '{ops[v]}' must share a device (colocation {group})")
    for d in range(problem.num_devices):
        used = sum(int(problem.resident[v]) for v in range(problem.num_ops) if device[v] == d)
        if used > problem.capacity[d]:
            found.append(f"device '{names[d]}': {used} bytes exceed its capacity of {problem.capacity[d]}")
    if problem.contiguity == "chain":
        found.extend(_chain_violations(problem, device))
    elif problem.contiguity == "convex":
        found.extend(_convex_violations(problem, device))
    return found


def _chain_violations(problem: PlacementProblem, device: Sequence[int]) -> list[str]:
    source, target = (x.tolist() for x in order_edges(problem, "chain"))
    follows: dict[int, dict[int, None]] = {d: {} for d in range(problem.num_devices)}
    for u, v in zip(source, target, strict=True):
        if device[u] != device[v]:
            follows[device[u]][device[v]] = None
    while True:  # peel off devices without a predecessor
        reached = {b for after in follows.values() for b in after}
        free = [d for d in follows if d not in reached]
        if not free:
            break
        for d in free:
            del follows[d]
    if not follows:
        return []
    on_cycle = ", ".join(f"'{problem.device_names[d]}'" for d in sorted(follows))
    return [f"contiguity 'chain': devices {on_cycle} feed each other in a cycle, so they form no pipeline"]


def _convex_violations(problem: PlacementProblem, device: Sequence[int]) -> list[str]:
    source, target = (x.tolist() for x in order_edges(problem, "convex"))
    left: list[set[int]] = [set() for _ in range(problem.num_ops)]
    for u, v in zip(source, target, strict=True):
        left[v] |= left[u]
        if device[u] != device[v]:
            left[v].add(device[u])
    return [
        f"contiguity 'convex': a path leaves device '{problem.device_names[device[v]]}' and re-enters it at op "
        f"'{problem.op_names[v]}'"
        for v in range(problem.num_ops)
        if device[v] in left[v]
    ]


def period_finish(
    tracker: Tracker[Placement],
    placement: Placement | None = None,
    *,
    status: str | None = None,
    message: str = "",
) -> Result[Placement]:
    """Recompute the period of `placement` (default: the incumbent) and build the Result.

    Raises
    ------
    InfeasiblePlacementError
        If the placement breaks a constraint: a solver must never report it.
    """
    chosen = tracker.solution if placement is None else placement
    if chosen is None:
        return tracker.result(status=status, message=message)
    chosen = Placement(chosen.device)  # a period has no order: ranks would only mislead
    value = period_value(tracker.problem, chosen)
    return tracker.result(status=status, message=message, solution=chosen, objective=value)
