"""Splitting a job: how often each op is split, where its sub-ops go, and what its edges carry.

With degree u, an op is split s = max(1, min(2 * ceil(ceil(forward / q) / 2), u)) ways under the
rule ``published`` (Parsonson et al. 2023, section on SiP-ML-style partitioning; q is the smallest
worthwhile run time) and u ways under ``uniform``; ops of zero cost stay whole. Sub-ops take 1/s of
compute and memory; op v's backward op copies its split.

References
----------
C. W. F. Parsonson, Z. Shabka, A. Ottino, G. Zervas, "Partitioning distributed compute jobs with
reinforcement learning and graph neural networks" (PAC-ML), 2023.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Floats, Ints, frozen, running_sums
from placeopt.model.errors import check_choice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from placeopt.streams.profiles import JobProfile
    from placeopt.streams.topology import RampTopology

RULES = ("published", "uniform")


def split_counts(forward: Floats, degree: int, rule: str, quantum: float = 0.01) -> tuple[int, ...]:
    """Return how many ways each op is split.

    Parameters
    ----------
    forward : times of the forward ops in the unit of `quantum` (milliseconds in the published
    set-up).
    degree : u.
    rule : "published" or "uniform".
    quantum : q, a multiple of which each sub-op should run (published rule only).
    """
    check_choice("split rule", rule, RULES)
    if rule == "uniform":
        return tuple(degree if time > 0 else 1 for time in forward.tolist())
    return tuple(
        max(1, min(2 * math.ceil(math.ceil(min(time / quantum, degree)) / 2), degree))
        for time in forward.tolist()
    )


@dataclass(frozen=True, eq=False)
class SplitJob:
    """A job split with one degree and placed on servers (counted from the first free one of an
    empty cluster).

    Sub-ops are numbered op by op, forward ops first, then backward ops. Edges come in groups: all
    out-edges of a forward op, all in-edges of a backward op other than synchronisation, and each
    pair of synchronised sub-ops.
    """

    server: Ints  # (num_subops,)
    compute: Floats  # (num_subops,) seconds
    source: Ints  # (num_edges,) sub-op
    target: Ints  # (num_edges,) sub-op
    size: Floats  # (num_edges,) bytes
    group: Ints  # (num_edges,) collective candidate, -1 for an edge that is always one-to-one
    sync: Flags  # (num_edges,) whether it synchronises two sub-ops of one backward op


def place_on_empty(
    profile: JobProfile, splits: tuple[int, ...], degree: int, rule: str, topology: RampTopology
) -> tuple[list[int], ...] | None:
    """Return the servers of each op on an empty cluster, None where an op does not fit.

    Under ``published`` each op reuses a parent's servers if those are as many as its sub-ops and
    have the memory together, else takes the first fitting block. Under ``uniform`` the job takes
    one block of `degree` servers and unsplit ops stay inside it.
    """
    free = [float(topology.memory)] * topology.num_servers
    placed: dict[int, list[int]] = {}

    def blocks_of(count: int) -> Iterable[list[int]]:
        if rule == "published":
            return topology.blocks.of_size(count)
        block = next(topology.blocks.of_size(degree))
        return [block] if count == degree else [[server] for server in block]

    for op in profile.order:
        count, need = splits[op], float(profile.memory[op])
        parents = map(placed.__getitem__, profile.parents[op])
        roomy = (p for p in parents if len(p) == count and sum(free[s] for s in p) >= need)
        fresh = (b for b in blocks_of(count) if all(free[s] >= need / count for s in b))
        found = next(itertools.chain(roomy, fresh), None)
        if found is None:
            return None
        for server in found:
            free[server] -= need / count
        placed[op] = found
    return tuple(placed[op] for op in range(profile.num_ops))


def split_job(
    profile: JobProfile, splits: tuple[int, ...], servers: tuple[list[int], ...]
) -> SplitJob:
    """Build the split graph of one training step.

    Ops are split one after the other in the order of `split_rank`, so that an edge between two
    split ops carries the bytes of the op split first, over the product of both splits; an edge with
    one split end X carries the bytes of the *other* end over X's split; an unsplit edge carries its
    source's bytes.
    """
    count = np.array(splits, np.int64)
    times = profile.forward / count, profile.backward / count
    compute = np.concatenate([np.repeat(time, count) for time in times])
    # the sub-ops of op v are from first[v] on, those of its backward op from first[V + v] on
    first = running_sums(np.tile(count, 2))
    parts = [*_dependencies(profile, splits, first), *_synchronisations(profile, splits, first)]
    lengths = [len(part.source) for part in parts]
    return SplitJob(
        frozen(np.array([s for row in servers + servers for s in row], np.int64)),
        frozen(compute),
        frozen(np.concatenate([part.source for part in parts])),
        frozen(np.concatenate([part.target for part in parts])),
        frozen(np.repeat([part.size for part in parts], lengths)),
        frozen(np.repeat([part.group for part in parts], lengths)),
        frozen(np.repeat([part.sync for part in parts], lengths)),
    )


class _Edges(NamedTuple):
    """Edges with the same bytes that belong to the same group."""

    source: Ints
    target: Ints
    size: float
    group: int
    sync: bool


def _dependencies(profile: JobProfile, splits: tuple[int, ...], first: Ints) -> Iterator[_Edges]:
    """Yield the edges between sub-ops of different nodes; nodes count forward ops, then backward
    ops.
    """
    num_ops = profile.num_ops

    def connect(a: int, b: int, size: float, group: int) -> _Edges:
        source = np.repeat(np.arange(first[a], first[a + 1]), first[b + 1] - first[b])
        target = np.tile(np.arange(first[b], first[b + 1]), int(first[a + 1] - first[a]))
        return _Edges(source, target, size, group, False)

    for u, v in profile.edges.tolist():
        split = splits[u] > 1
        yield connect(u, v, _carried(profile, splits, u, v, u), 2 * u if split else -1)
        yield connect(
            num_ops + v, num_ops + u, _carried(profile, splits, u, v, v), 2 * u + 1 if split else -1
        )
    last = num_ops - 1
    join = float(profile.memory[last]) / (splits[last] ** 2)
    yield connect(last, num_ops + last, join, 2 * last if splits[last] > 1 else -1)


def _carried(profile: JobProfile, splits: tuple[int, ...], u: int, v: int, source: int) -> float:
    """Return the bytes of an edge between sub-ops of u and v; `source` is where an unsplit edge
    starts.
    """
    memory, rank, su, sv = profile.memory, profile.rank, splits[u], splits[v]
    if su > 1 and sv > 1:
        return float(memory[u if rank[u] < rank[v] else v]) / (su * sv)
    if su > 1:
        return float(memory[v]) / su
    return float(memory[u]) / sv if sv > 1 else float(memory[source])


def _synchronisations(
    profile: JobProfile, splits: tuple[int, ...], first: Ints
) -> Iterator[_Edges]:
    """Yield both edges of every pair of sub-ops of a backward op, each pair a group of its own."""
    group = 2 * profile.num_ops
    for u, count in enumerate(splits):
        base = int(first[profile.num_ops + u])
        for i in range(count):
            for j in range(i):
                pair = np.array([base + i, base + j])
                yield _Edges(pair, pair[::-1], float(profile.memory[u]) / count, group, True)
                group += 1
