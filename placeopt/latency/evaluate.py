"""Latency of one sample when every accelerator runs its ops in q convex slots.

Devices without an io class (`io_class` -1, CPUs) are one unlimited pool: an op there starts when its inputs
are in host memory and takes its compute time, whatever else runs. The ops of an accelerator d form at most
q slots that run one after the other. A slot S starts when all its inputs are in host memory and the slot
before it has ended, and takes

    sum_t transfer[t, io] [producer not in S, a consumer in S] + sum_{v in S} compute[v, d]
    + sum_t transfer[t, io] [producer in S, a consumer not in S];

its results are in host memory when it ends. The latency is the end of the last op or slot. A slot that waits,
directly or not, for itself never starts: every slot is convex, and slots do not wait for each other in a
circle. The bytes of all slots of an accelerator together obey its capacity.

A placement says which ops share a slot by `priority`: ops of an accelerator with equal priority form a slot,
slots run by rising priority (without priorities there is one slot per accelerator). Tarnawski et al., NeurIPS 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np

from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.period.evaluate import io_ticks

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.tracker import Tracker


class LatencyArrays(NamedTuple):
    """What the kernels read (n ops, k devices, m tensors, q slots)."""

    compute: NDArray[np.int64]  # (n, k) ticks, -1 incompatible
    producer: NDArray[np.int64]  # (m,)
    consumer_ptr: NDArray[np.int64]  # (m + 1,)
    consumer: NDArray[np.int64]
    io_ticks: NDArray[np.int64]  # (m, k)
    out_ptr: NDArray[np.int64]  # (n + 1,) tensors of each op
    out_tensor: NDArray[np.int64]
    pool: NDArray[np.bool_]  # (k,) whether the device belongs to the CPU pool
    resident: NDArray[np.int64]  # (n,) bytes
    capacity: NDArray[np.int64]  # (k,) bytes
    leader: NDArray[np.int64]  # (n,)
    slots: int


def latency_arrays(problem: PlacementProblem) -> LatencyArrays:
    """Return the arrays of `problem` that the latency kernels read.

    Raises
    ------
    InputError
        If the problem asks for memory="peak".
    """
    if problem.memory != "static":
        raise InputError(
            f"problem '{problem.name}': objective 'latency' expects memory='static', received '{problem.memory}'"
        )
    pointer, tensor = problem.outputs
    return LatencyArrays(
        problem.compute,
        problem.producer,
        problem.consumer_ptr,
        problem.consumer,
        io_ticks(problem),
        pointer,
        tensor,
        problem.io_class < 0,
        problem.resident,
        problem.capacity,
        problem.units.head,
        problem.slots,
    )


@numba.njit(cache=True, nogil=True)
def _latency(  # type: ignore[no-untyped-def]
    a: LatencyArrays, device, slot, duration, waiting, ready, queue, seen, first, nxt
) -> int:
    """Latency of one placement with slots 0..q-1; the other arrays are scratch.

    Units are n + d * q + s for slot s of accelerator d, and v for op v in the pool.
    """
    n, k = a.compute.shape
    q = a.slots
    units = n + k * q
    duration[:] = 0
    waiting[:] = 0
    ready[:] = 0
    first[:] = -1
    for v in range(n):
        d = device[v]
        unit = v if a.pool[d] else n + d * q + slot[v]
        duration[unit] += a.compute[v, d]
        nxt[v] = first[unit]  # list of the ops of a unit
        first[unit] = v
    seen[:] = -1
    for t in range(len(a.producer)):
        p = a.producer[t]
        home = p if a.pool[device[p]] else n + device[p] * q + slot[p]
        leaves = False
        for e in range(a.consumer_ptr[t], a.consumer_ptr[t + 1]):
            c = a.consumer[e]
            unit = c if a.pool[device[c]] else n + device[c] * q + slot[c]
            if unit != home:
                leaves = True
                waiting[unit] += 1
                if seen[unit] != t:
                    seen[unit] = t
                    if unit >= n:
                        duration[unit] += a.io_ticks[t, device[c]]
        if leaves and home >= n:
            duration[home] += a.io_ticks[t, device[p]]
    for d in range(k):  # a slot waits for the one before it
        for s in range(1, q):
            waiting[n + d * q + s] += 1
    head = tail = 0
    for unit in range(units):
        if waiting[unit] == 0 and (unit >= n or first[unit] >= 0):
            queue[tail] = unit
            tail += 1
    latest = 0
    reached = 0
    while head < tail:
        unit = queue[head]
        head += 1
        end = ready[unit] + duration[unit]
        latest = max(latest, end)
        v = first[unit]
        while v >= 0:
            reached += 1
            for i in range(a.out_ptr[v], a.out_ptr[v + 1]):
                t = a.out_tensor[i]
                for e in range(a.consumer_ptr[t], a.consumer_ptr[t + 1]):
                    c = a.consumer[e]
                    other = c if a.pool[device[c]] else n + device[c] * q + slot[c]
                    if other != unit:
                        ready[other] = max(ready[other], end)
                        waiting[other] -= 1
                        if waiting[other] == 0:
                            queue[tail] = other
                            tail += 1
            v = nxt[v]
        if unit >= n and (unit - n) % q + 1 < q:
            ready[unit + 1] = max(ready[unit + 1], end)
            waiting[unit + 1] -= 1
            if waiting[unit + 1] == 0:
                queue[tail] = unit + 1
                tail += 1
    return latest if reached == n else INFEASIBLE


@numba.njit(cache=True, nogil=True)
def latency_rows(a: LatencyArrays, devices, slots, value) -> None:  # type: ignore[no-untyped-def]
    """Fill value[b] with the latency of row b, INFEASIBLE where a constraint is broken."""
    n, k = a.compute.shape
    units = n + k * a.slots
    duration = np.empty(units, dtype=np.int64)
    waiting = np.empty(units, dtype=np.int64)
    ready = np.empty(units, dtype=np.int64)
    queue = np.empty(units, dtype=np.int64)
    seen = np.empty(units, dtype=np.int64)
    first = np.empty(units, dtype=np.int64)
    nxt = np.empty(n, dtype=np.int64)
    used = np.empty(k, dtype=np.int64)
    for b in range(devices.shape[0]):
        used[:] = 0
        fits = True
        for v in range(n):
            d = devices[b, v]
            if d < 0 or d >= k or a.compute[v, d] < 0 or devices[b, a.leader[v]] != d:
                fits = False
                break
            if not a.pool[d] and (slots[b, v] < 0 or slots[b, v] >= a.slots):
                fits = False
                break
            used[d] += a.resident[v]
        if fits:
            for d in range(k):
                fits = fits and used[d] <= a.capacity[d]
        value[b] = INFEASIBLE
        if fits:
            value[b] = _latency(a, devices[b], slots[b], duration, waiting, ready, queue, seen, first, nxt)


def placement_slots(problem: PlacementProblem, placement: Placement) -> NDArray[np.int32]:
    """Slot of every op on its accelerator, 0 for ops in the pool; q or more where there are too many."""
    slot = np.zeros(problem.num_ops, dtype=np.int32)
    if placement.priority is None:
        return slot
    for d in np.flatnonzero(problem.io_class >= 0):
        ops = placement.device == d
        slot[ops] = np.unique(placement.priority[ops], return_inverse=True)[1]
    return slot


def latency_batch(problem: PlacementProblem, devices: ArrayLike, slots: ArrayLike | None = None) -> NDArray[np.int64]:
    """Return the latency of every row, INFEASIBLE where a constraint is broken.

    Parameters
    ----------
    devices : device of every op, shape (num_placements, num_ops).
    slots : slot of every op on its accelerator (0 by default), same shape.
    """
    rows = np.ascontiguousarray(devices, dtype=np.int32)
    if rows.ndim != 2 or rows.shape[1] != problem.num_ops:
        raise InputError(f"devices: expected shape (placements, {problem.num_ops}), received {rows.shape}")
    chosen = np.zeros_like(rows) if slots is None else np.ascontiguousarray(slots, dtype=np.int32)
    value = np.empty(len(rows), dtype=np.int64)
    latency_rows(latency_arrays(problem), rows, chosen, value)
    return value


def latency_value(problem: PlacementProblem, placement: Placement) -> int:
    """Return the latency of `placement` in ticks.

    Raises
    ------
    InfeasiblePlacementError
        If it breaks a constraint; the message is the first violation.
    """
    value = int(latency_batch(problem, placement.device[None, :], placement_slots(problem, placement)[None, :])[0])
    if value == INFEASIBLE:
        raise InfeasiblePlacementError(latency_violations(problem, placement)[0])
    return value


def latency_violations(problem: PlacementProblem, placement: Placement) -> list[str]:
    """List in words every constraint that `placement` breaks; empty if it is feasible."""
    from placeopt.period.evaluate import period_violations

    found = period_violations(problem.replace(contiguity="none"), placement)
    if len(placement.device) != problem.num_ops or any("expected a device" in text for text in found):
        return found
    slot = placement_slots(problem, placement)
    device = placement.device.tolist()
    for d in np.flatnonzero(problem.io_class >= 0).tolist():
        count = int(slot[placement.device == d].max(initial=-1)) + 1
        if count > problem.slots:
            found.append(f"device '{problem.device_names[d]}': expected at most {problem.slots} slots, received {count}")
    stuck = _stuck_units(problem, device, slot.tolist())
    if stuck:
        found.append(f"slots wait for each other in a circle: {', '.join(stuck)}")
    return found


def _stuck_units(problem: PlacementProblem, device: list[int], slot: list[int]) -> list[str]:
    """Names of the accelerator slots that never start."""
    unit: list[tuple[int, ...]] = [
        (device[v], slot[v]) if problem.io_class[device[v]] >= 0 else (v,) for v in range(problem.num_ops)
    ]
    before: dict[tuple[int, ...], set[tuple[int, ...]]] = {u: set() for u in unit}
    for e, t in enumerate(problem.edge_tensor.tolist()):
        a, b = unit[int(problem.producer[t])], unit[int(problem.consumer[e])]
        if a != b:
            before[b].add(a)
    for u in before:
        if len(u) == 2:
            before[u] |= {other for other in before if len(other) == 2 and other[0] == u[0] and other[1] < u[1]}
    free = [u for u in before if not before[u]]
    while free:
        for u in free:
            del before[u]
        for waits in before.values():
            waits.difference_update(free)
        free = [u for u in before if not before[u]]
    return [f"slot {u[1]} of '{problem.device_names[u[0]]}'" for u in sorted(before) if len(u) == 2]


def offer_latency(
    tracker: Tracker[Placement], device: NDArray[np.int64], slot: NDArray[np.int64] | None = None
) -> None:
    """Evaluate a placement (slot 0 by default), count it, and offer it to a tracker if it is feasible."""
    from placeopt.model.placement import Placement

    problem = tracker.problem
    value = int(latency_batch(problem, device[None, :], None if slot is None else slot[None, :])[0])
    tracker.count()
    if value < INFEASIBLE:
        tracker.offer(value, Placement(device, slot if problem.slots > 1 else None))


def latency_finish(
    tracker: Tracker[Placement],
    placement: Placement | None = None,
    *,
    status: str | None = None,
    message: str = "",
) -> Result[Placement]:
    """Recompute the latency of `placement` (default: the incumbent) and build the Result."""
    chosen = tracker.solution if placement is None else placement
    if chosen is None:
        return tracker.result(status=status, message=message)
    value = latency_value(tracker.problem, chosen)
    return tracker.result(status=status, message=message, solution=chosen, objective=value)


__all__ = [
    "latency_batch",
    "latency_finish",
    "latency_rows",
    "latency_value",
    "latency_violations",
    "offer_latency",
    "placement_slots",
]
