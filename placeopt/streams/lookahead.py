"""The lookahead: how long one training step of a job takes for each degree of splitting.

Every server runs its ready op with the smallest compute cost (preemptive); all ready transfers
progress in parallel; a synchronisation edge starts when its source completes and gates nothing; the
step ends when all ops and transfers are done. The job completion time is the step time multiplied
by the number of training steps.

References
----------
Parsonson et al., "Partitioning distributed compute jobs with reinforcement learning and graph
neural networks" (2023). Ottino et al., "RAMP: a flat nanosecond optical network and MPI operations
for distributed deep learning systems" (2022): the network, and the times of its collectives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import (
    Flags,
    Floats,
    Ints,
    frozen,
    pointers,
    stable_order,
    tells_types,
)
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.model.errors import InputError, check_choice
from placeopt.model.heaps import pop, push
from placeopt.streams.split import RULES, SplitJob, place_on_empty, split_counts, split_job

if TYPE_CHECKING:
    from placeopt.streams.profiles import JobProfile
    from placeopt.streams.topology import RampTopology

UNITS = ("consistent", "published")


@tells_types
@dataclass(frozen=True)
class LookaheadConfig:
    """What a step time depends on, besides the profile, the degree and the topology.

    Attributes
    ----------
    rule : "published" splits short ops less, "uniform" splits every op fully or not at all.
    units : "consistent" (seconds and bytes) or "published" (milliseconds taken for seconds, bits
    for bytes).
    quantum : q of the published rule, in milliseconds of forward time.
    """

    rule: str = "uniform"
    units: str = "consistent"
    quantum: float = 0.01

    def __post_init__(self) -> None:
        check_choice("split rule", self.rule, RULES)
        check_choice("units", self.units, UNITS)
        if not (math.isfinite(self.quantum) and self.quantum > 0):
            raise InputError(
                f"quantum: expected a number > 0 (milliseconds), received {self.quantum}"
            )

    @property
    def time_scale(self) -> float:
        """Time units per second of measured compute."""
        return 1000.0 if self.units == "published" else 1.0

    def network(self, topology: RampTopology) -> RampTopology:
        """Return the topology with the bandwidth in bytes per time unit that the units imply."""
        return (
            replace(topology, bandwidth=topology.bandwidth * 8)
            if self.units == "published"
            else topology
        )


_CACHE: dict[tuple[str, int, RampTopology, LookaheadConfig], float] = {}


def step_time(
    profile: JobProfile, degree: int, topology: RampTopology, config: LookaheadConfig
) -> float:
    """Return the length of one training step in time units, infinity where the job does not fit an
    empty cluster; cached by everything it depends on.
    """
    topology.require_degree(degree)
    key = (profile.hash, degree, topology, config)
    if key not in _CACHE:
        job = build_split_job(profile, degree, topology, config)
        _CACHE[key] = math.inf if job is None else _simulate(job, topology, config)
    return _CACHE[key]


def build_split_job(
    profile: JobProfile, degree: int, topology: RampTopology, config: LookaheadConfig
) -> SplitJob | None:
    """Return the job split with `degree` and placed on an empty cluster, None where it does not
    fit.
    """
    splits = split_counts(profile.forward * 1e3, degree, config.rule, config.quantum)
    servers = place_on_empty(profile, splits, degree, config.rule, topology)
    return None if servers is None else split_job(profile, splits, servers)


class _StepArrays(NamedTuple):
    """A placed split job as the kernel takes it: n sub-ops, E edges."""

    compute: Floats  # (n,) time units
    server: Ints  # (n,)
    missing: Ints  # (n,) edges that gate each sub-op
    out_ptr: Ints  # (n + 1,)
    out_edge: Ints  # (E,) edges by source
    target: Ints  # (E,)
    times: Floats  # (E,) time units
    sync: Flags  # (E,) whether an edge gates nothing


def _simulate(job: SplitJob, topology: RampTopology, config: LookaheadConfig) -> float:
    compute = job.compute * config.time_scale
    order = stable_order(job.source)
    arrays = _StepArrays(
        compute,
        job.server,
        np.bincount(job.target[~job.sync], minlength=len(compute)).astype(np.int64),
        pointers(job.source[order], len(compute)),
        order,
        job.target,
        edge_times(job, config.network(topology)),
        job.sync,
    )
    return float(_step(arrays, topology.num_servers))


def edge_times(job: SplitJob, topology: RampTopology) -> Floats:
    """Return the time of every edge of a placed split job.

    All out-edges of a split forward op are one collective if the servers of their sources and
    targets are the same multiset; so are the in-edges of a backward op; each synchronised pair is a
    collective of its own. Anything else is one-to-one. An edge inside one server, or without bytes,
    takes no time.
    """
    start, end = job.server[job.source], job.server[job.target]
    times = topology.propagation + 2 * topology.io_latency + job.size / topology.channel_bandwidth
    order = stable_order(job.group)
    bounds = np.flatnonzero(np.diff(job.group[order])) + 1
    for members in np.split(order, bounds):
        if job.group[members[0]] < 0:
            continue
        a, b = start[members], end[members]
        if not np.array_equal(np.sort(a), np.sort(b)):
            continue
        servers = tuple(sorted(set(a.tolist())))
        # Collectives differ by the last bits of the sum of their sizes only: one call serves them
        # all.
        times[members] = collective_time(float(job.size[members].sum()), servers, topology)
    times[(start == end) | (job.size == 0)] = 0.0
    return frozen(times)


@lru_cache(maxsize=4096)
def collective_time(size: float, servers: tuple[int, ...], topology: RampTopology) -> float:
    """Return the time of an all-reduce of `size` bytes over `servers` (Ottino et al., RAMP, 2022).

    A reduce-scatter and an all-gather in up to four steps (across groups, positions, racks, and
    what is left), each among g servers at the bandwidth of the transceivers that g leaves free, and
    the additions in between.
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
    """Return the time of adding up `devices` vectors of `data` bytes in all, at the roofline of a
    server.
    """
    rounds = math.ceil(math.log2(devices))
    intensity = rounds / (2 * (devices + 1))
    operations = rounds * data / (2 * devices)
    return operations / min(topology.memory_frequency * intensity, topology.peak_flops)


@inner_kernel
def _best_ready(head, following, compute):  # type: ignore[no-untyped-def]
    """Return the op of a list with the smallest compute cost, then index; -1 if it is empty."""
    best, op = -1, head
    while op >= 0:
        if best < 0 or compute[op] < compute[best] or (compute[op] == compute[best] and op < best):
            best = op
        op = following[op]
    return best


@inner_kernel
def _drop(op, s, head, following):  # type: ignore[no-untyped-def]
    """Take an op out of the list of server `s`."""
    previous, at = -1, head[s]
    while at != op:
        previous, at = at, following[at]
    if previous < 0:
        head[s] = following[op]
    else:
        following[previous] = following[op]


@inner_kernel
def _queue(op, job, head, following, changed):  # type: ignore[no-untyped-def]
    """Put a ready op into the list of its server."""
    s = job.server[op]
    following[op] = head[s]
    head[s] = op
    changed[s] = True


@inner_kernel
def _land(edge, job, missing, landed, count):  # type: ignore[no-untyped-def]
    """Complete an edge; note its target if nothing else is missing there. Return how many ops have
    landed.
    """
    if job.sync[edge]:
        return count
    op = job.target[edge]
    missing[op] -= 1
    if missing[op] == 0:
        landed[count] = op
        count += 1
    return count


@entry
def _step(job, num_servers):  # type: ignore[no-untyped-def]
    """Simulate one training step; return its length."""
    n, num_edges = len(job.compute), len(job.target)
    missing, remaining = job.missing.copy(), job.compute.copy()
    # ready ops of each server as linked lists: short, so that scanning one for the smallest cost is
    # cheap
    head, following = np.full(num_servers, -1, np.int64), np.full(n, -1, np.int64)
    running, changed = np.full(num_servers, -1, np.int64), np.ones(num_servers, np.bool_)
    heap_time, heap_edge, size = np.empty(num_edges + 1), np.empty(num_edges + 1, np.int64), 0
    landed = np.empty(num_edges + n + 1, np.int64)  # ops that became ready, to be queued
    num_landed = 0
    for op in range(n):
        if missing[op] == 0:
            _queue(op, job, head, following, changed)
    now, done = 0.0, 0
    while True:
        for k in range(num_landed):
            _queue(landed[k], job, head, following, changed)
        num_landed = 0
        nearest = np.inf
        for s in range(num_servers):
            if changed[s]:
                changed[s] = False
                running[s] = _best_ready(head[s], following, job.compute)
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
            if remaining[op] > 1e-12 * job.compute[op]:
                continue
            done += 1
            changed[s], running[s] = True, -1
            _drop(op, s, head, following)
            for k in row_of(job.out_ptr, op):
                edge = job.out_edge[k]
                if job.times[edge] > 0.0:
                    push(heap_time, heap_edge, 0, size, now + job.times[edge], edge)
                    size += 1
                else:
                    num_landed = _land(edge, job, missing, landed, num_landed)
        while size > 0 and heap_time[0] <= now:
            edge = heap_edge[0]
            pop(heap_time, heap_edge, 0, size)
            size -= 1
            num_landed = _land(edge, job, missing, landed, num_landed)
    return now if done == n else np.nan
