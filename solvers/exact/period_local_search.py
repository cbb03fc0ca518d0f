"""Simulated annealing on the period without contiguity: a warm start for CP-SAT and MILP.

The energy of a placement is the excess of its device loads (and bytes) over a target slightly below the
best period found: zero energy is a new incumbent, after which the target falls. Against minimising the
largest load directly this says which of many equally bad placements is closer. Moves: an op, or a small
connected block of its device, goes to the device of a neighbour or to any other; two ops swap devices.
The loads are kept up to date by the tensors of the moved op only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np

from placeopt.model.arrays import touching_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placeopt.period.contracted import ContractedProblem

_AIM = 0.004  # the target is this far below the incumbent, or at the bound
_HOT, _COLD = 3e-2, 1e-5  # temperatures, relative to the incumbent
_BLOCK, _LARGE_BLOCK = 6, 48  # most nodes of most block moves, and of every fourth one
_MOVES, _MOST_MOVES = 300_000, 8_000_000  # moves of a cycle: doubled after every cycle without success
_MOVES_PER_CHOICE = 500  # shorter first cycles for small problems


class SearchArrays(NamedTuple):
    """What the kernel reads (N nodes, k devices, P passes, m tensors)."""

    compute: NDArray[np.int64]  # (P, N, k) ticks, -1 where the node cannot run
    resident: NDArray[np.int64]  # (N,) bytes
    capacity: NDArray[np.int64]  # (k,) bytes
    weight: NDArray[np.int64]  # (m, k) ticks
    tensor_pass: NDArray[np.int64]  # (m,)
    producer: NDArray[np.int64]  # (m,)
    consumer_ptr: NDArray[np.int64]  # (m + 1,)
    consumer: NDArray[np.int64]
    touch_ptr: NDArray[np.int64]  # (N + 1,) tensors that touch a node
    touch_tensor: NDArray[np.int64]
    touch_role: NDArray[np.int64]  # 1 producer, 0 consumer
    near_ptr: NDArray[np.int64]  # (N + 1,) nodes that share a tensor with a node
    near: NDArray[np.int64]


def search_arrays(model: ContractedProblem) -> SearchArrays:
    """Return the arrays of a contracted model, one column per device."""
    n = model.num_nodes
    type_of = np.empty(model.problem.num_devices, dtype=np.int64)
    for g, devices in enumerate(model.types):
        type_of[list(devices)] = g
    passes = model.compute if model.two_pass else model.compute.sum(axis=0, keepdims=True)
    compute = np.where(model.allowed[None], passes, -1)[:, :, type_of]
    tensor = np.repeat(np.arange(len(model.producer)), np.diff(model.consumer_ptr))
    touch_ptr, touch_tensor, touch_role = touching_tensors(n, model.producer, model.consumer_ptr, model.consumer)
    pairs = np.stack([model.producer[tensor], model.consumer], axis=1).reshape(-1, 2)
    pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
    return SearchArrays(
        compute=np.ascontiguousarray(compute),
        resident=np.ascontiguousarray(model.resident),
        capacity=np.ascontiguousarray(model.capacity[type_of]),
        weight=np.ascontiguousarray(model.weight[:, type_of]),
        tensor_pass=model.tensor_pass,
        producer=model.producer,
        consumer_ptr=model.consumer_ptr,
        consumer=model.consumer,
        touch_ptr=touch_ptr,
        touch_tensor=touch_tensor,
        touch_role=touch_role,
        near_ptr=np.searchsorted(pairs[:, 0], np.arange(n + 1)).astype(np.int64),
        near=np.ascontiguousarray(pairs[:, 1]),
    )


@numba.njit(cache=True, nogil=True)
def _move(a, device, count, load, used, v, b):  # type: ignore[no-untyped-def]
    """Move node v to device b; count[t, d] consumers of t on d, load[p, d] and used[d] follow."""
    old = device[v]
    for p in range(a.compute.shape[0]):
        load[p, old] -= a.compute[p, v, old]
        load[p, b] += a.compute[p, v, b]
    used[old] -= a.resident[v]
    used[b] += a.resident[v]
    for e in range(a.touch_ptr[v], a.touch_ptr[v + 1]):
        t = a.touch_tensor[e]
        p = a.tensor_pass[t]
        size = a.consumer_ptr[t + 1] - a.consumer_ptr[t]
        if a.touch_role[e] == 1:
            if count[t, old] < size:
                load[p, old] -= a.weight[t, old]
            if count[t, old] > 0:
                load[p, old] += a.weight[t, old]
            if count[t, b] > 0:
                load[p, b] -= a.weight[t, b]
            if count[t, b] < size:
                load[p, b] += a.weight[t, b]
        else:
            home = device[a.producer[t]]
            left_before = count[t, home] < size
            count[t, old] -= 1
            if old != home and count[t, old] == 0:
                load[p, old] -= a.weight[t, old]
            if b != home and count[t, b] == 0:
                load[p, b] += a.weight[t, b]
            count[t, b] += 1
            left_after = count[t, home] < size
            if left_before and not left_after:
                load[p, home] -= a.weight[t, home]
            elif left_after and not left_before:
                load[p, home] += a.weight[t, home]
    device[v] = b


@numba.njit(cache=True, nogil=True)
def _energy(load, used, capacity, target, byte_price):  # type: ignore[no-untyped-def]
    total = 0.0
    for d in range(load.shape[1]):
        for p in range(load.shape[0]):
            if load[p, d] > target[p]:
                total += load[p, d] - target[p]
        if used[d] > capacity[d]:
            total += (used[d] - capacity[d]) * byte_price
    return total


@numba.njit(cache=True, nogil=True)
def _anneal(a, start, target, aim, hot, cold, byte_price, moves, seed, best):  # type: ignore[no-untyped-def]
    """One cooling cycle from `start`; leaves the best placement in `best` and returns its value (-1: none)."""
    np.random.seed(seed)  # noqa: NPY002 - numba's own generator, seeded per cycle
    passes, n, k = a.compute.shape
    m = len(a.producer)
    device = np.empty(n, dtype=np.int64)
    count = np.zeros((m, k), dtype=np.int64)
    load = np.zeros((passes, k), dtype=np.int64)
    used = np.zeros(k, dtype=np.int64)
    # Everything starts on device 0 and is moved from there, so that the bookkeeping exists once.
    device[:] = 0
    for v in range(n):
        used[0] += a.resident[v]
        for p in range(passes):
            load[p, 0] += a.compute[p, v, 0]
    for t in range(m):
        count[t, 0] = a.consumer_ptr[t + 1] - a.consumer_ptr[t]
    for v in range(n):
        if start[v] != 0:
            _move(a, device, count, load, used, v, start[v])
    block = np.empty(_LARGE_BLOCK, dtype=np.int64)
    came = np.empty(_LARGE_BLOCK, dtype=np.int64)
    energy = _energy(load, used, a.capacity, target, byte_price)
    best_value = np.int64(-1)
    cooling = (cold / hot) ** (1.0 / moves)
    temperature = hot
    for _ in range(moves):
        temperature *= cooling
        v = np.random.randint(n)  # noqa: NPY002
        kind = np.random.random()  # noqa: NPY002
        size = 1
        block[0] = v
        b = np.random.randint(k)  # noqa: NPY002
        near = a.near_ptr[v + 1] - a.near_ptr[v]
        if kind < 0.55 and near > 0:
            b = device[a.near[a.near_ptr[v] + np.random.randint(near)]]  # noqa: NPY002
        if b == device[v]:
            continue
        if kind > 0.35 and kind < 0.7:  # grow a connected block on the same device
            wanted = 1 + np.random.randint(_BLOCK)  # noqa: NPY002
            if np.random.random() < 0.25:  # noqa: NPY002
                wanted = int((_LARGE_BLOCK + 1.0) ** np.random.random())  # noqa: NPY002
            at = 0
            while at < size and size < wanted:
                u = block[at]
                for e in range(a.near_ptr[u], a.near_ptr[u + 1]):
                    w = a.near[e]
                    if size < wanted and device[w] == device[v]:
                        known = False
                        for i in range(size):
                            known = known or block[i] == w
                        if not known:
                            block[size] = w
                            size += 1
                at += 1
        elif kind > 0.85:  # swap with a node of the target device
            for _try in range(8):
                w = np.random.randint(n)  # noqa: NPY002
                if device[w] == b:
                    block[1] = w
                    size = 2
                    break
        home = device[v]
        fits = True
        for i in range(size):
            to = b if device[block[i]] == home else home
            fits = fits and a.compute[0, block[i], to] >= 0
        if not fits:
            continue
        for i in range(size):
            came[i] = device[block[i]]
            _move(a, device, count, load, used, block[i], b if came[i] == home else home)
        new = _energy(load, used, a.capacity, target, byte_price)
        if new > energy and np.random.random() >= np.exp((energy - new) / temperature):  # noqa: NPY002
            for i in range(size - 1, -1, -1):
                _move(a, device, count, load, used, block[i], came[i])
            continue
        energy = new
        value = np.int64(0)
        for p in range(passes):
            value += load[p].max()
        if best_value < 0 or value < best_value:
            fits = True
            for d in range(k):
                fits = fits and used[d] <= a.capacity[d]
            if fits:
                best_value = value
                best[:] = device
                if value <= target.sum():
                    for p in range(passes):
                        target[p] = np.int64(load[p].max() * (1.0 - aim))
                    energy = _energy(load, used, a.capacity, target, byte_price)
    return best_value


def anneal_period(
    model: ContractedProblem,
    node_device: NDArray[np.int64],
    value: int,
    *,
    lower_bound: int,
    seed: int,
    cycles: int | None,
    stop: Callable[[], bool],
    offer: Callable[[int, NDArray[np.int64]], None],
) -> None:
    """Search from `node_device` until `stop` or `cycles` are over; report improvements to `offer`.

    Parameters
    ----------
    value : period of `node_device` in ticks, or any large number if it is infeasible.
    offer : called with (ticks, device of every node) for every cycle that improves.
    """
    arrays = search_arrays(model)
    generator = np.random.default_rng(seed)
    best_device, best = node_device.copy(), value
    passes = len(arrays.compute)
    found = np.empty(model.num_nodes, dtype=np.int64)
    byte_price = 4.0 * value / max(1.0, float(model.resident.sum()))
    done, moves = 0, min(_MOVES, _MOVES_PER_CHOICE * model.num_nodes * model.problem.num_devices)
    while not stop() and (cycles is None or done < cycles):
        done += 1
        low = max(lower_bound, int(best * (1 - _AIM * generator.random() * 2)))
        share = _pass_shares(model, best_device) if passes == 2 else np.ones(1)
        target = np.maximum(np.floor(low * share), 1).astype(np.int64)
        hot = _HOT * best * 10.0 ** (-2 * generator.random())
        reached = int(
            _anneal(
                arrays, best_device, target, _AIM / 4, hot, _COLD * best, byte_price, moves,
                int(generator.integers(2**31)), found,
            )
        )  # fmt: skip
        if 0 <= reached < best:
            best, best_device = reached, found.copy()
            offer(best, best_device)
        else:
            moves = min(2 * moves, _MOST_MOVES)


def _pass_shares(model: ContractedProblem, node_device: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of the forward and the backward pass in the period of a placement."""
    from placeopt.model.placement import Placement
    from placeopt.period.evaluate import period_loads

    load = period_loads(model.problem, Placement(model.expand(node_device))).max(axis=1).astype(np.float64)
    share: NDArray[np.float64] = load / max(1.0, float(load.sum()))
    return share
