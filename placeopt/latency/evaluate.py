"""Latency of one sample when every accelerator runs its ops in q convex slots: its value, and a
local search over slots.

Devices without an io class (`io_class` -1, CPUs) are one unlimited pool: an op there starts when
its inputs are in host memory and takes its compute time, whatever else runs. The ops of an
accelerator d form at most q slots that run one after the other. A slot S starts when all its inputs
are in host memory and the slot before it has ended, and takes

    sum_t transfer[t, io] [producer not in S, a consumer in S] + sum_{v in S} compute[v, d]
    + sum_t transfer[t, io] [producer in S, a consumer not in S];

its results are in host memory when it ends. The latency is the end of the last op or slot. A slot
that waits, directly or not, for itself never starts: every slot is convex, and slots do not wait
for each other in a circle. The bytes of all slots of an accelerator together obey its capacity.

A placement says which ops share a slot by `priority`: ops of an accelerator with equal priority
form a slot, slots run by rising priority (without priorities there is one slot per accelerator).

In kernels, units are v for op v in the pool, if there is one, and behind them d * q + s for slot s
of accelerator d. A move changes only the units of its ops and of the tensors that they produce or
read; what units wait for is then followed along the tensors that leave one. The search lives
beside the evaluation that it calls.

The search may break constraints, at a price per share that is broken, which rises while it does
and falls while it does not (Gendreau, Hertz and Laporte).

References
----------
M. Gendreau, A. Hertz, G. Laporte: "A tabu search heuristic for the vehicle routing problem",
Management Science 40, 1994.

J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from placeopt.latency.judge import latency_violations, placement_slots
from placeopt.model.arrays import Flags, Floats, Ints, int_array
from placeopt.model.compiled import entry, inlined, inner_kernel, row_of
from placeopt.model.errors import InfeasiblePlacementError
from placeopt.model.exchanges import MANY, few_between
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.placement_objective import check_static
from placeopt.model.problem import PlacementProblem
from placeopt.period.evaluate import fits, placement_rows

_NEAR = 0.7  # chance to move to a neighbour's slot


class LatencyArrays(NamedTuple):
    """What the kernels read (n ops, k devices, m tensors, q slots)."""

    compute: Ints  # (n, k) ticks, -1 incompatible
    producer: Ints  # (m,)
    consumer_ptr: Ints  # (m + 1,)
    consumer: Ints
    io_ticks: Ints  # (m, k)
    pool: Flags  # (k,) whether the device belongs to the CPU pool
    pooled: int  # n where there are CPUs, else 0
    resident: Ints  # (n,) bytes
    capacity: Ints  # (k,) bytes
    leader: Ints  # (n,)
    slots: int


class Groups(NamedTuple):
    """Ops that share a device and a turn, and groups that share a tensor (G groups)."""

    member_ptr: Ints  # (G + 1,)
    member: Ints  # (n,) ops by group
    mate: Ints  # (G,) the group of the other turn on the same device, itself without one
    near_ptr: Ints  # (G + 1,)
    near: Ints
    tensor_ptr: Ints  # (G + 1,) tensors that the ops of a group produce or read
    tensor: Ints
    bytes: Ints  # (G,) of the group and its mate


class Cooling(NamedTuple):
    """A cooling cycle.

    Attributes
    ----------
    serial : weight of the slots' durations, which tells plateaus of the critical path apart.
    weight : (1,) ticks that `_breach` costs now, at most `most`.
    """

    hot: float
    cold: float
    moves: int
    serial: float
    weight: Floats
    most: float


class Units(NamedTuple):
    """The units of one placement, and working memory of its evaluation."""

    of: Ints  # (n,) unit of every op
    used: Ints  # (k,) bytes of every device
    runs: Ints  # (units,) ops that can run where they are
    duration: Ints  # (units,) ticks
    inputs: Ints  # (units,) edges from other units
    first: Ints  # (units,) first tensor that leaves the unit, -1 for none
    following: Ints  # (m,) the next tensor that leaves the same unit, -1 for none
    before: Ints  # (m,) the one before, -1 for none
    waiting: Ints  # (units,) inputs that are not there yet
    ready: Ints  # (units,) ticks
    queue: Ints  # (units,)
    seen: Ints  # (units,) last tensor received, by the number of its count
    counts: Ints  # (1,) tensors counted
    some: Ints  # (MANY,) groups that may come back


def latency_batch(
    problem: PlacementProblem, devices: ArrayLike, slots: ArrayLike | None = None
) -> Ints:
    """Return the latency of every row, INFEASIBLE where a constraint is broken.

    Parameters
    ----------
    devices : device of every op, shape (num_placements, num_ops).
    slots : slot of every op on its accelerator (0 by default), same shape.
    """
    rows = placement_rows(problem, devices).astype(np.int64)
    chosen = np.zeros_like(rows)
    if slots is not None:
        chosen[:] = int_array(slots, rows.shape, "slots")
    value = np.empty(len(rows), np.int64)
    latency_rows(latency_arrays(problem), rows, chosen, value)
    return value


def latency_value(problem: PlacementProblem, placement: Placement) -> int:
    """Return the latency of `placement` in ticks.

    Raises
    ------
    InfeasiblePlacementError
        If it breaks a constraint; the message is the first violation.
    """
    value = int(
        latency_batch(
            problem, placement.device[None, :], placement_slots(problem, placement)[None, :]
        )[0]
    )
    if value == INFEASIBLE:
        raise InfeasiblePlacementError(latency_violations(problem, placement)[0])
    return value


def latency_arrays(problem: PlacementProblem) -> LatencyArrays:
    """Return the arrays of `problem` that the latency kernels read.

    Raises
    ------
    InputError
        If the problem asks for memory="peak".
    """
    check_static(problem)
    pool = problem.io_class < 0
    return LatencyArrays(
        problem.compute,
        problem.producer,
        problem.consumer_ptr,
        problem.consumer,
        problem.io_ticks,
        pool,
        problem.num_ops * int(pool.any()),
        problem.resident,
        problem.capacity,
        problem.units.head,
        problem.slots,
    )


@inner_kernel
def _no_units(a: LatencyArrays) -> Units:
    n, k = a.compute.shape
    units, m = a.pooled + k * a.slots, len(a.producer)
    return Units(
        np.empty(n, np.int64),
        np.empty(k, np.int64),
        np.empty(units, np.int64),
        np.empty(units, np.int64),
        np.empty(units, np.int64),
        np.empty(units, np.int64),
        np.empty(m, np.int64),
        np.empty(m, np.int64),
        np.empty(units, np.int64),
        np.empty(units, np.int64),
        np.empty(units, np.int64),
        np.zeros(units, np.int64),
        np.zeros(1, np.int64),
        np.zeros(MANY, np.int64),
    )


@inlined
def _count_op(a: LatencyArrays, v: int, d: int, s: int, sign: int, w: Units) -> None:
    """Add op v to slot s of device d, or take it away (sign -1); one that cannot run takes no
    time.
    """
    unit = w.of[v] = v if a.pool[d] else a.pooled + d * a.slots + s
    w.runs[unit] += sign * (a.compute[v, d] >= 0)
    w.duration[unit] += sign * max(0, a.compute[v, d])
    w.used[d] += sign * a.resident[v]


@inlined
def _count_tensor(a: LatencyArrays, t: int, device: Ints, sign: int, w: Units) -> None:
    """Add what tensor t makes units wait for and move, or take it away (sign -1)."""
    p = a.producer[t]
    home, leaves = w.of[p], False
    w.counts[0] += 1
    for e in row_of(a.consumer_ptr, t):
        c = a.consumer[e]
        unit = w.of[c]
        if unit != home:
            leaves = True
            w.inputs[unit] += sign
            if unit >= a.pooled and w.seen[unit] != w.counts[0]:
                w.seen[unit] = w.counts[0]
                w.duration[unit] += sign * a.io_ticks[t, device[c]]
    if not leaves:
        return
    if home >= a.pooled:
        w.duration[home] += sign * a.io_ticks[t, device[p]]
    if sign > 0:
        w.before[t], w.following[t] = -1, w.first[home]
        if w.first[home] >= 0:
            w.before[w.first[home]] = t
        w.first[home] = t
    else:
        if w.before[t] >= 0:
            w.following[w.before[t]] = w.following[t]
        else:
            w.first[home] = w.following[t]
        if w.following[t] >= 0:
            w.before[w.following[t]] = w.before[t]


@inner_kernel
def _count_all(a: LatencyArrays, device: Ints, slot: Ints, w: Units) -> None:
    """Set the units of a placement."""
    w.used[:] = 0
    w.runs[:] = 0
    w.duration[:] = 0
    w.first[:] = -1
    w.inputs[:] = 0
    for unit in range(a.pooled, len(w.inputs)):  # a slot waits for the one before it
        w.inputs[unit] = (unit - a.pooled) % a.slots > 0
    for v in range(len(device)):
        _count_op(a, v, device[v], slot[v], 1, w)
    for t in range(len(a.producer)):
        _count_tensor(a, t, device, 1, w)


@inlined
def latency_of(a: LatencyArrays, w: Units) -> tuple[int, int]:
    """Latency of the placement whose units are set, with slots 0..q-1, and how many ops cannot run
    where they are or never start; units that wait for themselves run in turn after all others.
    """
    units = len(w.duration)
    head = tail = latest = reached = 0
    for unit in range(units):
        w.ready[unit], w.waiting[unit] = 0, w.inputs[unit]
        if w.waiting[unit] == 0 and (unit >= a.pooled or w.of[unit] == unit):
            w.queue[tail] = unit
            tail += 1
    while head < tail:
        unit = w.queue[head]
        head += 1
        end = w.ready[unit] + w.duration[unit]
        latest = max(latest, end)
        reached += w.runs[unit]
        t = w.first[unit]
        while t >= 0:
            for e in row_of(a.consumer_ptr, t):
                other = w.of[a.consumer[e]]
                if other != unit:
                    w.ready[other] = max(w.ready[other], end)
                    w.waiting[other] -= 1
                    if w.waiting[other] == 0:
                        w.queue[tail] = other
                        tail += 1
            t = w.following[t]
        if unit >= a.pooled and (unit - a.pooled) % a.slots + 1 < a.slots:
            w.ready[unit + 1] = max(w.ready[unit + 1], end)
            w.waiting[unit + 1] -= 1
            if w.waiting[unit + 1] == 0:
                w.queue[tail] = unit + 1
                tail += 1
    for unit in range(units if reached < len(w.of) else 0):
        if w.waiting[unit] > 0:
            latest += w.duration[unit]
    return latest, len(w.of) - reached


@inner_kernel
def _fits(a: LatencyArrays, device: Ints, slot: Ints, used: Ints) -> bool:
    """Whether compatibility, colocation, the capacities and the number of slots hold; `used` is
    scratch (k,).
    """
    if not fits(a, device, used):
        return False
    for v in range(len(device)):
        if not a.pool[device[v]] and (slot[v] < 0 or slot[v] >= a.slots):
            return False
    return True


@entry
def latency_rows(a: LatencyArrays, devices: Ints, slots: Ints, value: Ints) -> None:
    """Fill value[b] with the latency of row b, INFEASIBLE where a constraint is broken."""
    w = _no_units(a)
    for b in range(devices.shape[0]):
        value[b] = INFEASIBLE
        if _fits(a, devices[b], slots[b], w.used):
            _count_all(a, devices[b], slots[b], w)
            latency, lost = latency_of(a, w)
            value[b] = latency if lost == 0 else INFEASIBLE


@inlined
def _energy(a: LatencyArrays, w: Units, value: int, serial: float) -> float:
    """Latency plus the weighted durations of all slots."""
    energy = float(value)
    for unit in range(a.pooled, len(w.duration)):
        energy += serial * w.duration[unit]
    return energy


@inlined
def _breach(a: LatencyArrays, used: Ints, lost: int) -> float:
    """Share of the bytes that are above capacities, and of the ops that are lost."""
    above = 0
    for d in range(len(used)):
        above += max(0, used[d] - a.capacity[d])
    return above / max(1, used.sum()) + lost / len(a.resident)


@inlined
def _connected(
    groups: Groups,
    x: int,
    wanted: int,
    device: Ints,
    slot: Ints,
    block: Ints,
    seen: Ints,
    step: int,
) -> int:
    """Collect up to `wanted` groups around x in its slot; return how many."""
    lead = groups.member[groups.member_ptr[x]]
    block[0], seen[x] = x, step
    size, at = 1, 0
    while at < size and size < wanted:
        z = block[at]
        for e in row_of(groups.near_ptr, z):
            y = groups.near[e]
            other = groups.member[groups.member_ptr[y]]
            together = device[other] == device[lead] and slot[other] == slot[lead]
            if size < wanted and together and seen[y] != step:
                block[size], seen[y] = y, step
                size += 1
        at += 1
    return size


@inlined
def _move(
    a: LatencyArrays, groups: Groups, y: int, d: int, s: int, device: Ints, slot: Ints, w: Units
) -> bool:
    """Move the ops of group y, whose tensors are not counted, to slot s of device d; return whether
    all can run there.
    """
    runs = True
    for e in row_of(groups.member_ptr, y):
        v = groups.member[e]
        runs = runs and a.compute[v, d] >= 0
        _count_op(a, v, device[v], slot[v], -1, w)
        _count_op(a, v, d, s, 1, w)
        device[v] = d
        slot[v] = s
    return runs


@inlined
def _touched(groups: Groups, block: Ints, size: int, touched: Ints, last: Ints, step: int) -> int:
    """Collect the tensors of the first groups of a block; return how many."""
    found = 0
    for i in range(size):
        for e in row_of(groups.tensor_ptr, block[i]):
            t = groups.tensor[e]
            if last[t] != step:
                touched[found], last[t] = t, step
                found += 1
    return found


@inlined
def _give_back(
    a: LatencyArrays,
    groups: Groups,
    block: Ints,
    size: int,
    ends: tuple[int, int],
    device: Ints,
    seen: Ints,
    w: Units,
) -> int:
    """Add to a block a few groups that come back from where it goes, where only with them both
    devices, `ends`, hold what they can; return its size.
    """
    home, d = ends
    step, into = seen[block[0]], 0
    for i in range(size):
        for e in row_of(groups.member_ptr, block[i]):
            into += a.resident[groups.member[e]]
    least, most = w.used[d] + into - a.capacity[d], a.capacity[home] - w.used[home] + into
    if least <= 0 or least > most:
        return size
    count, total = 0, len(groups.mate)
    first = np.random.randint(total)  # noqa: NPY002
    for i in range(total):
        y = (first + i) % total
        lead = groups.member[groups.member_ptr[y]]
        if count < MANY and device[lead] == d and seen[y] != step and groups.mate[y] >= y:
            w.some[count] = y
            count += 1
    for i in range(few_between(groups.bytes, w.some, count, least, most)):
        for y in (w.some[i], groups.mate[w.some[i]]):
            if seen[y] != step:
                block[size], seen[y] = y, step
                size += 1
    return size


@entry
def anneal_slots(
    a: LatencyArrays,
    groups: Groups,
    device: Ints,
    slot: Ints,
    schedule: Cooling,
    seed: int,
    best_device: Ints,
    best_slot: Ints,
) -> int:
    """One cooling cycle from (device, slot), which it changes; leaves the best placement in best_*
    and returns its latency, INFEASIBLE where it met none that keeps all constraints.

    Where a block does not fit, a few groups come back from there, if that makes both devices fit.
    Capacities may be broken on the way, slots wait for each other in a circle, and ops begin where
    they cannot run; that costs ticks by `_breach`, twice as many after as many moves as there are
    groups that end so, half after as many that do not.
    """
    np.random.seed(seed)  # noqa: NPY002 - numba's own generator, seeded per cycle
    k, count = a.compute.shape[1], len(groups.member_ptr) - 1
    w = _no_units(a)
    _count_all(a, device, slot, w)
    value, lost = latency_of(a, w)
    breach = _breach(a, w.used, lost)
    best = value if breach == 0 else INFEASIBLE
    energy = _energy(a, w, value, schedule.serial)
    best_device[:] = device
    best_slot[:] = slot
    block, old_device, old_slot = np.empty((3, count), np.int64)
    seen = np.full(count, -1, np.int64)  # last step that looked at the group
    touched, last = np.empty(len(a.producer), np.int64), np.full(len(a.producer), -1)
    cooling = (schedule.cold / schedule.hot) ** (1.0 / schedule.moves)
    temperature = schedule.hot
    weight, growth = schedule.weight, 2.0 ** (1.0 / count)
    for step in range(schedule.moves):
        temperature *= cooling
        weight[0] *= growth if breach > 0 else 1 / growth
        weight[0] = min(max(weight[0], 1.0), schedule.most)
        x = np.random.randint(count)  # noqa: NPY002
        lead = groups.member[groups.member_ptr[x]]
        d, s = np.random.randint(k), np.random.randint(a.slots)  # noqa: NPY002
        near = groups.near_ptr[x + 1] - groups.near_ptr[x]
        if near > 0 and np.random.random() < _NEAR:  # noqa: NPY002
            y = groups.near[groups.near_ptr[x] + np.random.randint(near)]  # noqa: NPY002
            other = groups.member[groups.member_ptr[y]]
            d, s = device[other], slot[other]
        if a.pool[d]:
            s = 0
        home = device[lead]
        if d == home and s == slot[lead]:
            continue
        wanted = min(count, int(1.0 / (1.0 - np.random.random())))  # noqa: NPY002
        size = alike = _connected(groups, x, wanted, device, slot, block, seen, step)
        for i in range(alike if d != home else 0):
            y = groups.mate[block[i]]
            if seen[y] != step:
                block[size], seen[y] = y, step
                size += 1
        moved = size
        if d != home:
            size = _give_back(a, groups, block, size, (home, d), device, seen, w)
        tensors = _touched(groups, block, size, touched, last, step)
        for i in range(tensors):
            _count_tensor(a, touched[i], device, -1, w)
        runs = True
        for i in range(size):
            y = block[i]
            first = groups.member[groups.member_ptr[y]]
            old_device[i], old_slot[i] = device[first], slot[first]
            near = groups.near_ptr[y + 1] - groups.near_ptr[y]
            to = d if i < moved else home
            if i >= alike:  # the slot of a neighbour there, or as before
                s = slot[first]
                z = groups.near[groups.near_ptr[y] + np.random.randint(near)] if near else y  # noqa: NPY002
                other = groups.member[groups.member_ptr[z]]
                if device[other] == to and a.leader[other] != a.leader[first]:
                    s = slot[other]
            runs = _move(a, groups, y, to, s, device, slot, w) and runs
        for i in range(tensors):
            _count_tensor(a, touched[i], device, 1, w)
        if runs:
            value, lost = latency_of(a, w)
            new, over = _energy(a, w, value, schedule.serial), _breach(a, w.used, lost)
            gain = energy - new + weight[0] * (breach - over)
            if gain >= 0 or np.random.random() < np.exp(gain / temperature):  # noqa: NPY002
                energy, breach = new, over
                if breach == 0 and value < best:
                    best = value
                    best_device[:] = device
                    best_slot[:] = slot
                continue
        for i in range(tensors):
            _count_tensor(a, touched[i], device, -1, w)
        for i in range(size):
            _move(a, groups, block[i], old_device[i], old_slot[i], device, slot, w)
        for i in range(tensors):
            _count_tensor(a, touched[i], device, 1, w)
    return best
