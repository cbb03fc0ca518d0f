"""Planted instances: random DAGs of any size whose optimal makespan is known by construction.

Each of k identical devices is filled from 0 to T without idling by cutting [0, T] into op times.
Then only tensors are added that this schedule satisfies: u before v if finish(u) + transfer <=
start(v), or finish(u) <= start(v) where both are on one device. So the schedule is feasible, and
since all work is k * T no schedule is shorter than T: T is optimal.

By default transfers do not wait for each other (contention "none"), and the planted ranks reproduce
the schedule under the queues "priority" and "planned" alike, because no device ever idles. With
`contention=source` every device also sends one tensor at a time, in the order of the ranks of their
readers, and transfers are cut until all arrive in time; then the ranks reproduce the schedule under
the queue "planned" and the contention models "source", "pair" and "none".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placeopt.instances.generators import MAX_EDGES, built, check_count
from placeopt.instances.generators.task_graphs import (
    BYTES_PER_TICK,
    MEAN_TICKS,
    tensors_of,
    timed_graph,
)
from placeopt.model.arrays import Ints, row_numbers, stable_order, together
from placeopt.model.cluster import contention_matrix
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem


@dataclass(eq=False)
class Planted:
    """A filled schedule and the tensors that it satisfies; ops are in random order.

    Parameters
    ----------
    ops, devices : size; ops >= devices.
    degree : mean number of consumers of an op.
    ccr : transfers aim at this multiple of the mean op time, and are cut to the planted slack.
    spread : 0 cuts every device evenly, 1 randomly.
    contention : "none", or "source" to keep the optimum where each device sends one tensor at a
    time.

    Attributes
    ----------
    horizon : the optimum in ticks. device, start, duration : of every op. tensors : producers,
    pointer and consumers. transfer : ticks of every tensor.
    """

    name: str
    ops: int = 100
    devices: int = 4
    degree: float = 2.0
    ccr: float = 0.5
    spread: float = 0.9
    contention: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        name, ops, devices = self.name, self.ops, self.devices
        check_count(name, ops)
        if ops < devices:
            raise InputError(
                f"generator '{name}': ops must be at least devices, received {ops} and {devices}"
            )
        check_count(name, round(ops * self.degree), MAX_EDGES, "edges")
        rng = np.random.default_rng(self.seed)
        device, start, duration, self.horizon = _fill(rng, ops, devices, self.spread)
        shuffle = rng.permutation(ops)  # the index of an op must not tell where it is planted
        device, start, duration = device[shuffle], start[shuffle], duration[shuffle]
        finish = start + duration
        edges = _edges(rng, start, finish, device, self.degree, devices)
        producer, pointer = tensors_of(edges)
        self.transfer = _transfers(rng, edges, pointer, start, finish, device, self.ccr)
        if self.contention == "source":
            self.transfer = _one_at_a_time(self.transfer, edges, pointer, start, finish, device)
        self.device, self.start, self.duration = device, start, duration
        self.tensors = producer, pointer, edges[:, 1]

    def build(self) -> OpGraph:
        """Return the graph."""
        return timed_graph(self.name, self.duration, self.tensors, self.transfer)


@built(Planted)
def planted(_: Planted) -> None:
    """Build a planted graph; on "uniform:K", K = `devices`, its optimum is `planted_problem`'s."""


def planted_problem(
    *, unrelated: bool = False, **options: Any
) -> tuple[PlacementProblem, Placement, int]:
    """Return the problem, an optimal placement and the optimal makespan in ticks.

    The options are those of `planted`, and the problem is the one its graph lowers to.

    Parameters
    ----------
    unrelated : make ops up to twice as slow on every device but their planted one. The optimum
    stays:
        the ops' fastest times still sum to devices * optimum.
    """
    known = Planted("planted", **options)
    compute = np.repeat(known.duration[:, None], known.devices, axis=1)
    if unrelated:
        rng = np.random.default_rng([known.seed, 1])
        slower = compute + np.floor(rng.random(compute.shape) * compute).astype(np.int64)
        slower[np.arange(known.ops), known.device] = known.duration
        compute = slower
    producer, pointer, consumer = known.tensors
    problem = PlacementProblem.from_arrays(
        name=known.name,
        compute=compute,
        producer=producer,
        consumer_ptr=pointer,
        consumer=consumer,
        transfer=known.transfer.reshape(-1, 1),
        tensor_bytes=known.transfer * BYTES_PER_TICK,
        channel=contention_matrix(known.devices, known.contention),
    )
    # every op lasts at least a tick, so equal starts do not depend on each other
    return problem, Placement.from_starts(known.device, known.start), known.horizon


def _fill(
    rng: np.random.Generator, ops: int, devices: int, spread: float
) -> tuple[Ints, Ints, Ints, int]:
    """Cut [0, horizon] on every device into ops of at least one tick, without gaps."""
    counts = np.full(devices, ops // devices)
    counts[: ops % devices] += 1
    if spread > 0:  # move some ops between neighbouring devices so that their numbers differ
        for d in range(devices - 1):
            moved = min(int(counts[d]) - 1, int(rng.binomial(int(counts[d]), 0.2 * spread)))
            counts[d] -= moved
            counts[d + 1] += moved
    horizon = max(int(counts.max()), ops * MEAN_TICKS // devices)
    device = np.repeat(np.arange(devices), counts)
    start, duration = np.empty(ops, np.int64), np.empty(ops, np.int64)
    at = 0
    for count in counts.tolist():
        weights = np.cumsum(1 - spread + spread * rng.exponential(size=count))
        cuts = np.floor(weights / weights[-1] * (horizon - count)).astype(np.int64) + np.arange(
            1, count + 1
        )
        cuts[-1] = horizon
        start[at : at + count] = np.append(0, cuts[:-1])
        duration[at : at + count] = cuts - start[at : at + count]
        at += count
    return device, start, duration, horizon


def _edges(
    rng: np.random.Generator, start: Ints, finish: Ints, device: Ints, degree: float, devices: int
) -> Ints:
    """Distinct (producer, consumer) pairs with finish(producer) <= start(consumer), most of them
    close.
    """
    n = len(start)
    by_start = stable_order(start)
    first = np.searchsorted(start[by_start], finish)  # consumers of u: by_start[first[u]:]
    source = np.repeat(np.arange(n), rng.poisson(degree, n))
    window = 3.0 * devices
    position = first[source] + np.floor(rng.exponential(window, len(source))).astype(np.int64)
    keep = position < n
    pairs = np.column_stack([source[keep], by_start[position[keep]]])
    if degree > 0:  # half the ops depend on the op just before them on their device
        order = np.lexsort((start, device))
        chained = (device[order][1:] == device[order][:-1]) & (
            rng.random(n - 1) < min(0.5, degree / 2)
        )
        pairs = np.concatenate([pairs, np.column_stack([order[:-1][chained], order[1:][chained]])])
    return np.unique(pairs, axis=0)


def _transfers(
    rng: np.random.Generator,
    edges: Ints,
    pointer: Ints,
    start: Ints,
    finish: Ints,
    device: Ints,
    ccr: float,
) -> Ints:
    """Aim at ccr * mean op time, cut to the least slack over the consumers on other devices."""
    ticks = rng.uniform(0.5, 1.5, len(pointer) - 1) * ccr * MEAN_TICKS
    wanted = np.floor(ticks + 0.5).astype(np.int64)
    u, v = edges.T
    slack = np.where(device[u] == device[v], np.iinfo(np.int64).max, start[v] - finish[u])
    return np.minimum(wanted, np.minimum.reduceat(slack, pointer[:-1]))


def _one_at_a_time(
    transfer: Ints, edges: Ints, pointer: Ints, start: Ints, finish: Ints, device: Ints
) -> Ints:
    """Shorten transfers until each device can send its own one after the other, earliest deadline
    first.

    In the order of deadlines (start of the first reader on the receiving device) a transfer begins
    when the tensor exists and the one before has ended, and is cut to end by its deadline. Later
    deadlines are no earlier, so what is cut fits, and cutting a tensor again for another receiver
    only lets the others begin sooner.
    """
    tensor = row_numbers(pointer)
    rank = np.argsort(stable_order(start))  # by start, then index
    u, v = edges.T
    remote = np.flatnonzero(device[u] != device[v])
    # one request per (tensor, receiving device), with its first reader
    order = remote[np.lexsort((rank[v[remote]], device[v[remote]], tensor[remote]))]
    key = tensor[order] * (int(device.max()) + 1) + device[v[order]]
    requests = order[np.flatnonzero(np.diff(key, prepend=-1))]
    requests = requests[np.lexsort((tensor[requests], rank[v[requests]], device[u[requests]]))]
    ticks = transfer.tolist()
    sender, free = -1, 0
    for source, t, release, deadline in together(
        device[u[requests]], tensor[requests], finish[u[requests]], start[v[requests]]
    ):
        if source != sender:
            sender, free = source, 0
        begin = max(release, free)
        ticks[t] = min(ticks[t], deadline - begin)
        free = begin + ticks[t]
    return np.array(ticks, np.int64)
