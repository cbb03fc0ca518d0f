"""First incumbent for the latency with slots: segments of a topological order, pipelines, annealing.

The greedy rule of the literature fills one accelerator after the other along a topological order. Its
optimal form is a dynamic program: f[j][a] is the least serial time of the first j nodes with accelerators
0..a-1 used once each, a segment of nodes on one accelerator, everything between segments in the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

from placeopt.latency.evaluate import LatencyArrays, _latency, latency_arrays, offer_latency, placement_slots
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.period.contraction import NoCommonDeviceError, contract
from placeopt.solvers.exact.period_warm_start import enough_cycles

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placeopt.model.problem import PlacementProblem
    from placeopt.period.contraction import PeriodModel
    from placeopt.solving.tracker import Tracker

_HOT, _COLD, _MOVES, _MOST_MOVES = 3e-2, 1e-5, 60_000, 2_000_000
_MOVES_PER_CHOICE = 300  # shorter first cycles for small problems
_CYCLES, _MAX_NODES = 4, 1_000
_SERIAL = 0.01  # weight of the mean slot duration in the energy: tells plateaus of the critical path apart


def warm_start(tracker: Tracker[Placement], *, seconds: float) -> None:
    """Offer good placements to `tracker` within about `seconds`."""
    problem = tracker.problem
    deadline = tracker.elapsed + seconds

    def stop() -> bool:
        return tracker.elapsed >= deadline or tracker.stop()

    _offer(tracker, _all_in_pool(problem))
    try:
        chain = contract(problem.replace(objective="period", contiguity="chain", backward=None))
    except NoCommonDeviceError:
        chain = None
    if chain is not None and chain.num_nodes <= _MAX_NODES:
        _offer(tracker, _segments(problem, chain))
        if not stop():
            _offer(tracker, _pipeline(problem, chain))
    if tracker.solution is not None and not stop():
        cycles = enough_cycles(seconds, problem.num_ops * problem.num_devices, _CYCLES)
        _anneal(tracker, stop, cycles)


def _offer(tracker: Tracker[Placement], device: NDArray[np.int64] | None) -> None:
    if device is not None:
        offer_latency(tracker, device)


def _all_in_pool(problem: PlacementProblem) -> NDArray[np.int64] | None:
    pool = np.flatnonzero(problem.io_class < 0)
    if not pool.size:
        return None
    return np.full(problem.num_ops, int(pool[0]), dtype=np.int64)


def _segments(problem: PlacementProblem, model: PeriodModel) -> NDArray[np.int64] | None:
    """Best consecutive segments of the model's order, one per accelerator, the rest in the pool."""
    n = model.num_nodes
    accelerators = [(d, g) for g, devices in enumerate(model.types) for d in devices if problem.io_class[d] >= 0]
    pools = [(devices[0], g) for g, devices in enumerate(model.types) if problem.io_class[devices[0]] < 0]
    large = float(2**62)
    serial = np.full(n, large)
    for _, g in pools[:1]:
        serial = np.where(model.allowed[:, g], model.total[:, g], large).astype(np.float64)
    durations = {g: _durations(model, g) for g in {g for _, g in accelerators}}
    value = np.full((n + 1, len(accelerators) + 1), large)
    value[0] = 0.0
    choice = np.full((n + 1, len(accelerators) + 1), -1, dtype=np.int64)  # -1 pool, -2 unused, i segment start
    for a in range(len(accelerators) + 1):
        for j in range(n + 1):
            if a > 0:
                value[j, a], choice[j, a] = value[j, a - 1], -2
                if j > 0:
                    through = value[:j, a - 1] + durations[accelerators[a - 1][1]][:j, j]
                    i = int(through.argmin())
                    if through[i] < value[j, a]:
                        value[j, a], choice[j, a] = through[i], i
            if j > 0 and value[j - 1, a] + serial[j - 1] < value[j, a]:
                value[j, a], choice[j, a] = value[j - 1, a] + serial[j - 1], -1
    if value[n, -1] >= large:
        return None
    device = np.zeros(n, dtype=np.int64)
    j, a = n, len(accelerators)
    while j > 0:
        step = int(choice[j, a])
        if step == -2:
            a -= 1
        elif step == -1:
            j -= 1
            device[j] = pools[0][0]
        else:
            device[step:j] = accelerators[a - 1][0]
            j, a = step, a - 1
    return model.expand(device)


def _durations(model: PeriodModel, g: int) -> NDArray[np.float64]:
    """Time of a slot with nodes i..j-1 on a device of type g at [i, j]; 2^62 where they do not fit."""
    n = model.num_nodes
    table = np.full((n, n + 1), float(2**62))
    ends: list[list[int]] = [[] for _ in range(n)]
    pins = []
    for t in range(len(model.producer)):
        members = [int(model.producer[t]), *model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]].tolist()]
        pins.append(members)
        for v in members:
            ends[v].append(t)
    for i in range(n):
        ticks = used = 0
        inside = dict.fromkeys(range(0), 0)
        for j in range(i, n):
            used += int(model.resident[j])
            if not model.allowed[j, g] or used > model.capacity[g]:
                break
            ticks += int(model.total[j, g])
            for t in ends[j]:
                before = _cost(pins[t], i, j - 1) if inside.get(t) else 0
                inside[t] = inside.get(t, 0) + 1
                ticks += (_cost(pins[t], i, j) - before) * int(model.weight[t, g])
            table[i, j + 1] = ticks
    return table


def _cost(pins: list[int], first: int, last: int) -> int:
    """Transfers of a tensor (producer first in `pins`) for the nodes first..last: 0 or 1."""
    if first <= pins[0] <= last:
        return int(any(not first <= c <= last for c in pins[1:]))
    return int(any(first <= c <= last for c in pins[1:]))


def _pipeline(problem: PlacementProblem, chain: PeriodModel) -> NDArray[np.int64] | None:
    """Best pipeline for the period along the model's order."""
    from placeopt.model.ideals import linear_lattice
    from placeopt.solvers.exact.chain_search import best_chain
    from placeopt.solvers.exact.period_dp import IdealProgram, stage_devices

    outcome = best_chain(IdealProgram(chain, linear_lattice(chain.num_nodes)), None)
    return stage_devices(chain, outcome.stages)[0] if outcome.value is not None else None


@numba.njit(cache=True, nogil=True)
def _anneal_cycle(  # type: ignore[no-untyped-def]
    a: LatencyArrays, member_ptr, member, near_ptr, near, device, slot, hot, cold, moves, seed, serial, best_device,
    best_slot,
) -> int:
    """One cooling cycle; leaves the best placement in best_device, best_slot and returns its latency."""
    np.random.seed(seed)  # noqa: NPY002 - numba's own generator, seeded per cycle
    n, k = a.compute.shape
    q = a.slots
    groups = len(member_ptr) - 1
    units = n + k * q
    duration = np.empty(units, dtype=np.int64)
    waiting = np.empty(units, dtype=np.int64)
    ready = np.empty(units, dtype=np.int64)
    queue = np.empty(units, dtype=np.int64)
    seen = np.empty(units, dtype=np.int64)
    first = np.empty(units, dtype=np.int64)
    nxt = np.empty(n, dtype=np.int64)
    used = np.zeros(k, dtype=np.int64)
    for v in range(n):
        used[device[v]] += a.resident[v]
    best_value = _latency(a, device, slot, duration, waiting, ready, queue, seen, first, nxt)
    energy = float(best_value)
    for u in range(n, units):
        energy += serial * duration[u]
    best_device[:] = device
    best_slot[:] = slot
    block = np.empty(8, dtype=np.int64)
    old_device = np.empty(8, dtype=np.int64)
    old_slot = np.empty(8, dtype=np.int64)
    cooling = (cold / hot) ** (1.0 / moves)
    temperature = hot
    for _ in range(moves):
        temperature *= cooling
        x = np.random.randint(groups)  # noqa: NPY002
        lead = member[member_ptr[x]]
        b, s = np.random.randint(k), np.random.randint(q)  # noqa: NPY002
        if near_ptr[x + 1] > near_ptr[x] and np.random.random() < 0.7:  # noqa: NPY002
            y = near[near_ptr[x] + np.random.randint(near_ptr[x + 1] - near_ptr[x])]  # noqa: NPY002
            b, s = device[member[member_ptr[y]]], slot[member[member_ptr[y]]]
        if a.pool[b]:
            s = 0
        if b == device[lead] and s == slot[lead]:
            continue
        size = 1
        block[0] = x
        if np.random.random() < 0.4:  # noqa: NPY002 - a connected block of the same slot
            wanted = 1 + np.random.randint(8)  # noqa: NPY002
            at = 0
            while at < size and size < wanted:
                z = block[at]
                for e in range(near_ptr[z], near_ptr[z + 1]):
                    y = near[e]
                    other = member[member_ptr[y]]
                    if size < wanted and device[other] == device[lead] and slot[other] == slot[lead]:
                        known = False
                        for i in range(size):
                            known = known or block[i] == y
                        if not known:
                            block[size] = y
                            size += 1
                at += 1
        fits = True
        for i in range(size):
            y = block[i]
            old_device[i], old_slot[i] = device[member[member_ptr[y]]], slot[member[member_ptr[y]]]
            for e in range(member_ptr[y], member_ptr[y + 1]):
                v = member[e]
                fits = fits and a.compute[v, b] >= 0
                used[device[v]] -= a.resident[v]
                used[b] += a.resident[v]
                device[v] = b
                slot[v] = s
        fits = fits and used[b] <= a.capacity[b]
        accepted = False
        if fits:
            value = _latency(a, device, slot, duration, waiting, ready, queue, seen, first, nxt)
            if value < INFEASIBLE:
                new = float(value)
                for u in range(n, units):
                    new += serial * duration[u]
                accepted = new <= energy or np.random.random() < np.exp((energy - new) / temperature)  # noqa: NPY002
                if accepted:
                    energy = new
                    if value < best_value:
                        best_value = value
                        best_device[:] = device
                        best_slot[:] = slot
        if not accepted:
            for i in range(size):
                y = block[i]
                for e in range(member_ptr[y], member_ptr[y + 1]):
                    v = member[e]
                    used[b] -= a.resident[v]
                    used[old_device[i]] += a.resident[v]
                    device[v] = old_device[i]
                    slot[v] = old_slot[i]
    return best_value


def _anneal(tracker: Tracker[Placement], stop: Callable[[], bool], cycles: int | None) -> None:
    problem = tracker.problem
    assert tracker.solution is not None
    arrays = latency_arrays(problem)
    groups: dict[int, list[int]] = {}
    for v, leader in enumerate(arrays.leader.tolist()):
        groups.setdefault(leader, []).append(v)
    label = np.empty(problem.num_ops, dtype=np.int64)
    for x, ops in enumerate(groups.values()):
        label[ops] = x
    pointer = np.concatenate([[0], np.cumsum([len(ops) for ops in groups.values()])])
    member = np.array([v for ops in groups.values() for v in ops], dtype=np.int64)
    pairs = np.stack([label[problem.producer[problem.edge_tensor]], label[problem.consumer]], axis=1).reshape(-1, 2)
    pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    near_ptr = np.searchsorted(pairs[:, 0], np.arange(len(groups) + 1))
    near = np.ascontiguousarray(pairs[:, 1])
    generator = tracker.rng()
    device = tracker.solution.device.astype(np.int64)
    slot = placement_slots(problem, tracker.solution).astype(np.int64)
    pool = problem.io_class < 0
    if pool.any():  # the devices of the pool are one: use the first
        device = np.where(pool[device], int(np.flatnonzero(pool)[0]), device)
    best_device, best_slot = device.copy(), slot.copy()
    moves, done = min(_MOVES, _MOVES_PER_CHOICE * len(groups) * problem.num_devices), 0
    while not stop() and (cycles is None or done < cycles):
        done += 1
        value = int(tracker.value or 0)
        hot = _HOT * value * 10.0 ** (-2 * generator.random())
        found = int(
            _anneal_cycle(
                arrays, pointer, member, near_ptr, near, device.copy(), slot.copy(), hot, _COLD * value, moves,
                int(generator.integers(2**31)), _SERIAL, best_device, best_slot,
            )
        )  # fmt: skip
        tracker.count()
        if found < value:
            device, slot = best_device.copy(), best_slot.copy()
            tracker.offer(found, Placement(device, slot if problem.slots > 1 else None))
        else:
            moves = min(2 * moves, _MOST_MOVES)
