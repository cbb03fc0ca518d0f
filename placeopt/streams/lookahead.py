"""The lookahead: how long one training step of a job takes for each degree of splitting.

Every server runs its ready op with the smallest compute cost (preemptive); all ready transfers progress in parallel;
a synchronisation edge starts when its source completes and gates nothing; the step ends when all ops and transfers
are done. The job completion time is the step time multiplied by the number of training steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from placeopt.model.arrays import frozen
from placeopt.model.errors import InputError
from placeopt.streams.split import RULES, SplitJob, place_on_empty, split_counts, split_job

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.streams.profiles import JobProfile
    from placeopt.streams.topology import RampTopology

UNITS = ("consistent", "published")


@dataclass(frozen=True)
class LookaheadConfig:
    """What a step time depends on, besides the profile, the degree and the topology.

    Attributes
    ----------
    rule : "published" splits short ops less, "uniform" splits every op fully or not at all.
    units : "consistent" (seconds and bytes) or "published" (milliseconds taken for seconds, bits for bytes).
    quantum : q of the published rule, in milliseconds of forward time.
    """

    rule: str = "uniform"
    units: str = "consistent"
    quantum: float = 0.01

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"split rule: expected one of {', '.join(RULES)}, received '{self.rule}'")
        if self.units not in UNITS:
            raise InputError(f"units: expected one of {', '.join(UNITS)}, received '{self.units}'")
        if not (math.isfinite(self.quantum) and self.quantum > 0):
            raise InputError(f"quantum: expected a number > 0 (milliseconds), received {self.quantum}")

    @property
    def time_scale(self) -> float:
        """Time units per second of measured compute."""
        return 1000.0 if self.units == "published" else 1.0

    def network(self, topology: RampTopology) -> RampTopology:
        """Return the topology with the bandwidth in bytes per time unit that the units imply."""
        return replace(topology, bandwidth=topology.bandwidth * 8) if self.units == "published" else topology


@dataclass(frozen=True, eq=False)
class StepTime:
    """Lookahead of one (model, degree).

    Attributes
    ----------
    seconds : length of one training step in time units; infinity if the job does not fit an empty cluster.
    servers : number of distinct servers that the job holds on an empty cluster.
    busy : mean fraction of the step during which those servers compute.
    """

    seconds: float
    servers: int
    busy: float


_CACHE: dict[tuple[str, int, RampTopology, LookaheadConfig], StepTime] = {}


def step_time(profile: JobProfile, degree: int, topology: RampTopology, config: LookaheadConfig) -> StepTime:
    """Return the length of one training step; cached by everything it depends on."""
    topology.require_degree(degree)
    key = (profile.hash, degree, topology, config)
    found = _CACHE.get(key)
    if found is None:
        job = build_split_job(profile, degree, topology, config)
        found = StepTime(math.inf, 0, 0.0) if job is None else _simulate(job, topology, config)
        _CACHE[key] = found
    return found


def build_split_job(
    profile: JobProfile, degree: int, topology: RampTopology, config: LookaheadConfig
) -> SplitJob | None:
    """Return the job split with `degree` and placed on an empty cluster, None where it does not fit."""
    splits = split_counts(profile.forward * 1e3, degree, config.rule, config.quantum)
    servers = place_on_empty(profile, splits, degree, config.rule, topology)
    return None if servers is None else split_job(profile, splits, servers)


def _simulate(job: SplitJob, topology: RampTopology, config: LookaheadConfig) -> StepTime:
    times = edge_times(job, config.network(topology))
    compute = job.compute * config.time_scale
    order = np.argsort(job.source, kind="stable")
    out_ptr = np.searchsorted(job.source[order], np.arange(len(compute) + 1)).astype(np.int64)
    gates = ~job.sync
    missing = np.bincount(job.target[gates], minlength=len(compute)).astype(np.int64)
    length, busy = _step(
        compute, job.server, topology.num_servers, out_ptr, order, job.target, times, job.sync, missing
    )
    held = job.num_servers
    return StepTime(float(length), held, float(busy / (held * length)))


def edge_times(job: SplitJob, topology: RampTopology) -> NDArray[np.float64]:
    """Return the time of every edge of a placed split job.

    All out-edges of a split forward op are one collective if the servers of their sources and targets are the same
    multiset; so are the in-edges of a backward op; each synchronised pair is a collective of its own. Anything else
    is one-to-one. An edge inside one server, or without bytes, takes no time.
    """
    start, end = job.server[job.source], job.server[job.target]
    times = topology.propagation + 2 * topology.io_latency + job.size / topology.channel_bandwidth
    order = np.argsort(job.group, kind="stable")
    bounds = np.flatnonzero(np.diff(job.group[order])) + 1
    for members in np.split(order, bounds):
        if job.group[members[0]] < 0:
            continue
        a, b = start[members], end[members]
        if not np.array_equal(np.sort(a), np.sort(b)):
            continue
        servers = tuple(sorted(set(a.tolist())))
        # Collectives differ by the last bits of the sum of their sizes only: one call serves them all.
        times[members] = collective_time(float(job.size[members].sum()), servers, topology)
    times[(start == end) | (job.size == 0)] = 0.0
    return frozen(times)


@lru_cache(maxsize=4096)
def collective_time(size: float, servers: tuple[int, ...], topology: RampTopology) -> float:
    """Return the time of an all-reduce of `size` bytes over `servers` (Ottino et al., RAMP, 2022).

    A reduce-scatter and an all-gather in up to four steps (across groups, positions, racks, and what is left), each
    among g servers at the bandwidth of the transceivers that g leaves free, and the additions in between.
    """
    if len(servers) == 1:
        return 0.0
    spots = topology.coordinates[list(servers)]
    groups, racks, positions = (len(set(spots[:, axis].tolist())) for axis in range(3))
    x = topology.groups
    link = topology.channel_bandwidth / x
    steps = (groups, min(groups, positions), racks, math.ceil(positions / x))
    communication = computation = 0.0
    message = size
    for g in steps:
        message = math.ceil(message / g)
        if g > 1:
            trunk = min(x, x // (g - 1)) * link
            if trunk == 0:  # more positions than transceivers: one link has to do
                trunk = link
            communication += topology.propagation + 2 * topology.io_latency + message / trunk
            computation += _adding_time(message * g, g, topology)
    return 2 * communication + computation


def _adding_time(data: float, devices: int, topology: RampTopology) -> float:
    """Return the time of adding up `devices` vectors of `data` bytes in all, at the roofline of a server."""
    rounds = math.ceil(math.log2(devices))
    intensity = rounds / (2 * (devices + 1))
    operations = rounds * data / (2 * devices)
    return operations / min(topology.memory_frequency * intensity, topology.peak_flops)


@njit(cache=True, nogil=True)
def _push(heap_time, heap_edge, size, time, edge):  # type: ignore[no-untyped-def]
    """Insert into a binary heap ordered by time."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap_time[parent] <= time:
            break
        heap_time[i] = heap_time[parent]
        heap_edge[i] = heap_edge[parent]
        i = parent
    heap_time[i] = time
    heap_edge[i] = edge
    return size + 1


@njit(cache=True, nogil=True)
def _pop(heap_time, heap_edge, size):  # type: ignore[no-untyped-def]
    """Remove the first entry; the caller has read it. Return the new size."""
    size -= 1
    time, edge = heap_time[size], heap_edge[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and heap_time[child + 1] < heap_time[child]:
            child += 1
        if heap_time[child] >= time:
            break
        heap_time[i] = heap_time[child]
        heap_edge[i] = heap_edge[child]
        i = child
    heap_time[i] = time
    heap_edge[i] = edge
    return size


@njit(cache=True, nogil=True)
def _step(compute, server, num_servers, out_ptr, out_edge, target, times, sync, missing_in):  # type: ignore[no-untyped-def]
    """Simulate one training step; return (its length, compute time summed over the servers)."""
    n = len(compute)
    missing = missing_in.copy()
    remaining = compute.copy()
    # ready ops of each server as linked lists: short, so that scanning one for the smallest cost is cheap
    head = np.full(num_servers, -1, np.int64)
    following = np.full(n, -1, np.int64)
    running = np.full(num_servers, -1, np.int64)
    heap_time = np.empty(len(target) + 1)
    heap_edge = np.empty(len(target) + 1, np.int64)
    size = 0
    changed = np.ones(num_servers, np.bool_)
    landed = np.empty(len(target) + n + 1, np.int64)  # ops that became ready, to be queued
    num_landed = 0
    for op in range(n):
        if missing[op] == 0:
            landed[num_landed] = op
            num_landed += 1
    now = 0.0
    busy = 0.0
    done = 0
    while True:
        for k in range(num_landed):
            op = landed[k]
            following[op] = head[server[op]]
            head[server[op]] = op
            changed[server[op]] = True
        num_landed = 0
        nearest = np.inf
        for s in range(num_servers):
            if changed[s]:
                changed[s] = False
                best = -1
                op = head[s]
                while op >= 0:
                    if best < 0 or compute[op] < compute[best] or (compute[op] == compute[best] and op < best):
                        best = op
                    op = following[op]
                running[s] = best
            if running[s] >= 0:
                nearest = min(nearest, remaining[running[s]])
        if size > 0:
            nearest = min(nearest, max(heap_time[0] - now, 0.0))
        if nearest == np.inf:
            break
        now += nearest
        for s in range(num_servers):
            op = running[s]
            if op < 0:
                continue
            remaining[op] -= nearest
            busy += nearest
            if remaining[op] > 1e-12 * compute[op]:
                continue
            done += 1
            changed[s] = True
            running[s] = -1
            previous = -1
            at = head[s]
            while at != op:
                previous, at = at, following[at]
            if previous < 0:
                head[s] = following[op]
            else:
                following[previous] = following[op]
            for k in range(out_ptr[op], out_ptr[op + 1]):
                edge = out_edge[k]
                if times[edge] > 0.0:
                    size = _push(heap_time, heap_edge, size, now + times[edge], edge)
                elif not sync[edge]:
                    missing[target[edge]] -= 1
                    if missing[target[edge]] == 0:
                        landed[num_landed] = target[edge]
                        num_landed += 1
        while size > 0 and heap_time[0] <= now:
            edge = heap_edge[0]
            size = _pop(heap_time, heap_edge, size)
            if not sync[edge]:
                missing[target[edge]] -= 1
                if missing[target[edge]] == 0:
                    landed[num_landed] = target[edge]
                    num_landed += 1
    if done < n:
        return np.nan, busy
    return now, busy
