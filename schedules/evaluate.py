"""Exact evaluation of pipeline schedules: compaction of an order, list scheduling, memory over
time.

An instance is a (micro-batch, block) pair with the flat index micro_batch * num_blocks + block.
Since no device runs two blocks at once and memory changes only when a block starts, the *order* of
the starts on each device decides its peak memory; moving starts without changing an order never
changes it.

References
----------
.. [1] R. L. Graham, "Bounds for certain multiprocessing anomalies", Bell System Technical Journal
45(9), 1966 (list
   scheduling).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Ints, csr, place_in, stable_order
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.model.errors import InputError
from placeopt.schedules.problem import PipelineProblem

NEVER = np.int64(2**62)


class PipelineArrays(NamedTuple):
    """What the kernels read of a problem."""

    span: Ints
    device_ptr: Ints
    device: Ints
    memory: Ints
    pred_ptr: Ints
    pred: Ints
    lag: Ints
    succ_ptr: Ints
    succ: Ints
    capacity: Ints


def pipeline_arrays(problem: PipelineProblem) -> PipelineArrays:
    """Return the arrays of `problem` for the kernels."""
    return PipelineArrays(
        problem.span,
        problem.device_ptr,
        problem.device,
        problem.memory,
        problem.pred_ptr,
        problem.pred,
        problem.lag,
        *csr(problem.successors),
        problem.capacity,
    )


@entry
def _compact(arrays: PipelineArrays, order: Ints, num_devices: int) -> Ints:
    """Start every instance, in `order`, as early as its devices and predecessors allow."""
    b = len(arrays.span)
    start = np.full(len(order), -1, np.int64)
    free = np.zeros(num_devices, np.int64)
    for instance in order:
        block = instance % b
        base = instance - block
        at = np.int64(0)
        for e in row_of(arrays.pred_ptr, block):
            before = arrays.pred[e]
            if start[base + before] < 0:
                return start  # the order puts a block before its predecessor
            at = max(at, start[base + before] + arrays.span[before] + arrays.lag[e])
        for e in row_of(arrays.device_ptr, block):
            at = max(at, free[arrays.device[e]])
        start[instance] = at
        for e in row_of(arrays.device_ptr, block):
            free[arrays.device[e]] = at + arrays.span[block]
    return start


class Dispatch(NamedTuple):
    """What list scheduling keeps of instances (flat index) and devices."""

    start: Ints  # -1 until it starts
    waiting: Ints  # predecessors that have not started
    release: Ints  # when the last predecessor delivers
    ready: Ints  # instances that wait for no predecessor, in no order; the first `num_ready` count
    free: Ints  # when each device is free
    held: Ints  # memory that each device holds


@entry
def _dispatch(
    arrays: PipelineArrays, rank: Ints, num_micro_batches: int, num_devices: int
) -> tuple[Ints, np.int64]:
    """List scheduling: at each time start the ready instances by rank, where devices are idle and
    memory suffices.

    Returns the starts and how many instances were started: fewer than all means that memory ran out
    for good.
    """
    b = len(arrays.span)
    total = b * num_micro_batches
    state = Dispatch(
        np.full(total, -1, np.int64),
        np.empty(total, np.int64),
        np.zeros(total, np.int64),
        np.empty(total, np.int64),
        np.zeros(num_devices, np.int64),
        np.zeros(num_devices, np.int64),
    )
    num_ready = 0
    for instance in range(total):
        state.waiting[instance] = arrays.pred_ptr[instance % b + 1] - arrays.pred_ptr[instance % b]
        if state.waiting[instance] == 0:
            state.ready[num_ready] = instance
            num_ready += 1
    now = np.int64(0)
    done = np.int64(0)
    while done < total:
        # Start the best instance that can start now; one at a time, since each changes what others
        # may do.
        best, wake = _best_ready(arrays, state, rank, num_ready, now)
        if best >= 0:
            instance = state.ready[best]
            num_ready -= 1
            state.ready[best] = state.ready[num_ready]
            num_ready = _begin(arrays, state, instance, now, num_ready)
            done += 1
        elif wake < NEVER:
            now = wake
        else:
            break
    return state.start, done


@inner_kernel
def _best_ready(
    arrays: PipelineArrays, state: Dispatch, rank: Ints, num_ready: int, now: int
) -> tuple[int, np.int64]:
    """Return the position of the ready instance of smallest rank that can start now, or -1, and
    when another can.
    """
    b = len(arrays.span)
    best, wake = -1, NEVER
    for position in range(num_ready):
        instance = state.ready[position]
        block = instance % b
        at = state.release[instance]
        fits = True
        for e in row_of(arrays.device_ptr, block):
            d = arrays.device[e]
            at = max(at, state.free[d])
            need = arrays.memory[block, d]
            if need > 0 and state.held[d] + need > arrays.capacity[d]:
                fits = False
        if fits and at > now:
            wake = min(wake, at)
        elif fits and (best < 0 or rank[instance] < rank[state.ready[best]]):
            best = position
    return best, wake


@inner_kernel
def _begin(arrays: PipelineArrays, state: Dispatch, instance: int, now: int, num_ready: int) -> int:
    """Start an instance: take its devices and memory, release its successors; return how many are
    ready.
    """
    block = instance % len(arrays.span)
    base = instance - block
    state.start[instance] = now
    for e in row_of(arrays.device_ptr, block):
        d = arrays.device[e]
        state.free[d] = now + arrays.span[block]
        state.held[d] += arrays.memory[block, d]
    for e in row_of(arrays.succ_ptr, block):
        after = arrays.succ[e]
        state.waiting[base + after] -= 1
        if state.waiting[base + after] > 0:
            continue
        earliest = np.int64(0)
        for f in row_of(arrays.pred_ptr, after):
            before = arrays.pred[f]
            earliest = max(
                earliest, state.start[base + before] + arrays.span[before] + arrays.lag[f]
            )
        state.release[base + after] = earliest
        state.ready[num_ready] = base + after
        num_ready += 1
    return num_ready


def compact(problem: PipelineProblem, start: Ints) -> Ints:
    """Shift every instance as early as the order of `start` on each device allows.

    Parameters
    ----------
    start : wanted starts, shape (num_micro_batches, num_blocks): only their order counts. Ties are
    broken
        topologically.

    Returns
    -------
    starts of the same shape, valid whenever the order respects the predecessors; peak memory is
    unchanged.

    Raises
    ------
    InputError
        If the order puts a block before its predecessor.
    """
    wanted = np.asarray(start, np.int64)
    flat_position = np.tile(place_in(problem.topological_order), wanted.shape[0])
    micro_batch = np.repeat(np.arange(wanted.shape[0]), problem.num_blocks)
    order = np.lexsort((micro_batch, flat_position, wanted.ravel()))
    shifted = _compact(pipeline_arrays(problem), order, problem.num_devices)
    if shifted.min() < 0:
        at = int(shifted.argmin())
        raise InputError(
            f"order: block '{problem.block_names[at % problem.num_blocks]}' of micro-batch "
            f"{at // problem.num_blocks} comes before one of its predecessors"
        )
    return shifted.reshape(wanted.shape)


def dispatch(problem: PipelineProblem, rank: Ints) -> Ints | None:
    """Schedule greedily: whenever a device is idle, the ready instance of smallest rank that fits
    in memory.

    Parameters
    ----------
    rank : shape (num_micro_batches, num_blocks).

    Returns
    -------
    starts of the same shape, or None if the memory limit blocks every ready instance for good.
    """
    table = np.asarray(rank, np.int64)
    start, done = _dispatch(
        pipeline_arrays(problem), table.ravel(), table.shape[0], problem.num_devices
    )
    return start.reshape(table.shape) if done == table.size else None


def makespan(problem: PipelineProblem, start: Ints) -> int:
    """Return the end of the last instance minus the start of the first, in ticks."""
    return int((start + problem.span).max() - start.min())


def memory_profile(problem: PipelineProblem, start: Ints, device: int) -> Ints:
    """Return (time, memory held from then on) rows of one device, shape (num_changes, 2)."""
    blocks = np.flatnonzero(problem.memory[:, device])
    times = start[:, blocks].ravel()
    deltas = np.tile(problem.memory[blocks, device], start.shape[0])
    order = stable_order(times)
    return np.column_stack([times[order], np.cumsum(deltas[order])])


def peak_memory(problem: PipelineProblem, start: Ints) -> list[int]:
    """Return the most memory that each device ever holds."""
    return [
        int(memory_profile(problem, start, device)[:, 1].max(initial=0))
        for device in range(problem.num_devices)
    ]
