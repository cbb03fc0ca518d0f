"""The memory that the compiled evaluator works in: allocated once a thread, read and written by all
its pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.compiled import inner

if TYPE_CHECKING:
    from placeopt.makespan.arrays import ProblemArrays
    from placeopt.model.arrays import Flags, Ints

TOUCHED, ACTIVE, EVENTS, REQUESTS, DONE = np.arange(5)
"""Entries of `Workspace.counter`: touched devices, active channels, running transfers, requests so
far, ops completed."""


class Queues(NamedTuple):
    """The ops of every device that are ready, or become so later: heaps in the device's region."""

    first: Ints  # (k + 1,) region of each device in the heaps
    size: Ints  # (k,) entries in the ready heap
    key: Ints  # (n,)
    op: Ints  # (n,)
    later_size: Ints  # (k,) entries in the heap of ops that become ready later
    later_key: Ints  # (n,)
    later_op: Ints  # (n,)


class Channels(NamedTuple):
    """The channels, what they carry, and the heap of the transfers that are under way."""

    root: Ints  # (channels,) request heap
    running: Ints  # (channels,) request or -1
    event_key: Ints  # (channels,) heap of transfer completions
    event_channel: Ints  # (channels,)
    active: Ints  # (channels,) channels that may start a transfer now
    is_active: Flags  # (channels,)


class Requests(NamedTuple):
    """The contended transfers: one per tensor and destination."""

    key: Ints  # (edges,)
    tensor: Ints  # (edges,)
    destination: Ints  # (edges,)
    left: Ints  # (edges,) skew-heap children
    right: Ints  # (edges,)
    start: Ints  # (edges,)
    finish: Ints  # (edges,)


class PlannedOrder(NamedTuple):
    """What is planned: the next op of every device, and every channel's requests in order."""

    op_at: Ints  # (k,) next position of each device in Queues.op
    pair_ptr: Ints  # (m + 1,) first request of each tensor
    lane_ptr: Ints  # (channels + 1,) region of each channel in lane
    lane_at: Ints  # (channels,) next position
    lane: Ints  # (edges,) requests in planned order
    requested: Flags  # (edges,)


class Workspace(NamedTuple):
    """Scratch memory of one thread; nothing is allocated per evaluation."""

    device: Ints  # (n,) the placement
    rank: Ints  # (n,) its priorities, 0 without
    counter: Ints  # (5,) see TOUCHED
    pending: Ints  # (n,) inputs still missing
    cost: Ints  # (n,) ticks of each op on its device
    ready: Ints  # (n,) time the inputs are available
    running: Ints  # (k,) op or -1
    next_time: Ints  # (k,) time of the device's next event
    touched: Ints  # (k,) devices that may start an op now
    is_touched: Flags  # (k,)
    start: Ints  # (n,)
    finish: Ints  # (n,)
    stamp: Ints  # (k,) last tensor that met this destination
    best_rank: Ints  # (k,) smallest rank among its consumers there
    spots: Ints  # (k,) destinations of the tensor at hand
    group_device: Ints  # (groups,)
    load: Ints  # (k,) bytes
    queues: Queues
    channels: Channels
    requests: Requests
    plan: PlannedOrder


@inner
def _empty_queues(n: int, k: int) -> Queues:
    return Queues(
        first=np.empty(k + 1, np.int64),
        size=np.empty(k, np.int64),
        key=np.empty(n, np.int64),
        op=np.empty(n, np.int64),
        later_size=np.empty(k, np.int64),
        later_key=np.empty(n, np.int64),
        later_op=np.empty(n, np.int64),
    )


@inner
def _empty_channels(channels: int) -> Channels:
    return Channels(
        root=np.empty(channels, np.int64),
        running=np.empty(channels, np.int64),
        event_key=np.empty(channels, np.int64),
        event_channel=np.empty(channels, np.int64),
        active=np.empty(channels, np.int64),
        is_active=np.empty(channels, np.bool_),
    )


@inner
def _empty_requests(edges: int) -> Requests:
    return Requests(
        key=np.empty(edges, np.int64),
        tensor=np.empty(edges, np.int64),
        destination=np.empty(edges, np.int64),
        left=np.empty(edges, np.int64),
        right=np.empty(edges, np.int64),
        start=np.empty(edges, np.int64),
        finish=np.empty(edges, np.int64),
    )


@inner
def _empty_plan(k: int, tensors: int, channels: int, edges: int) -> PlannedOrder:
    return PlannedOrder(
        op_at=np.empty(k, np.int64),
        pair_ptr=np.empty(tensors + 1, np.int64),
        lane_ptr=np.empty(channels + 1, np.int64),
        lane_at=np.empty(channels, np.int64),
        lane=np.empty(edges, np.int64),
        requested=np.empty(edges, np.bool_),
    )


@inner
def make_workspace(arrays: ProblemArrays) -> Workspace:
    """Allocate the scratch memory of one thread."""
    n, k = arrays.compute.shape
    edges = arrays.consumer.shape[0]
    tensors = arrays.producer.shape[0]
    channels = arrays.num_channels
    groups = arrays.num_groups
    i64 = np.int64
    return Workspace(
        device=np.empty(n, i64),
        rank=np.zeros(n, i64),
        counter=np.zeros(5, i64),
        pending=np.empty(n, i64),
        cost=np.empty(n, i64),
        ready=np.empty(n, i64),
        running=np.empty(k, i64),
        next_time=np.empty(k, i64),
        touched=np.empty(k, i64),
        is_touched=np.empty(k, np.bool_),
        start=np.empty(n, i64),
        finish=np.empty(n, i64),
        stamp=np.empty(k, i64),
        best_rank=np.empty(k, i64),
        spots=np.empty(k, i64),
        group_device=np.empty(groups, i64),
        load=np.empty(k, i64),
        queues=_empty_queues(n, k),
        channels=_empty_channels(channels),
        requests=_empty_requests(edges),
        plan=_empty_plan(k, tensors, channels, edges),
    )
