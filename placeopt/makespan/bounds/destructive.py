"""Destructive improvement: suppose the makespan is at most T, propagate, and look for a
contradiction.

Proof. Let T be given. Heads and tails turn into start windows; an op whose window is empty on a
class of devices cannot run there, nor can those that share its device; one that can run nowhere
refutes T, and so does an overfull energetic window. For an edge (u, v) whose transfer cannot be
paid within the windows, u and v must share a device; sharing is transitive, so ops fall into
clusters. A cluster runs on one device, hence no faster than the preemptive one-machine optimum of
its heads and tails (Jackson): more than T is a contradiction. If the union of the clusters of u and
v takes more than T on one machine, or no device can hold them, u and v cannot share, and the edge
must be paid. All this goes back into the communication-aware heads and tails (a shared edge is
never paid, a separated one always, and no class counts that is ruled out), which shrink the windows
further, until nothing changes. A contradiction refutes T, so T + 1 is a bound. T grows in doubling
steps, then by bisection.

References
----------
R. Klein, A. Scholl, "Computing lower bounds by destructive improvement: an application to
resource-constrained project scheduling", European Journal of Operational Research 112(2), 1999.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.bounds.communication import (
    JOB_ROWS,
    LENGTH,
    RELEASE,
    TAIL,
    HeadsTails,
    heads_tails,
    jackson,
)
from placeopt.makespan.bounds.energy import refutes as energy_refutes, search_horizon
from placeopt.makespan.bounds.relaxation import INFINITE, Relaxation, fastest_ticks
from placeopt.model.arrays import Ints, by_key
from placeopt.model.problem import INCOMPATIBLE

if TYPE_CHECKING:
    from placeopt.makespan.bounds.segment_graph import Evidence


def destructive_bound(evidence: Evidence, end: float, tries: float = math.inf) -> int:
    """Return the best refuted horizon + 1, or `known`; stops at `end`, in seconds of
    `time.perf_counter`, or after so many tries.
    """
    if not is_refutable(evidence.relaxation):
        return evidence.known

    def fails(horizon: int) -> bool:
        nonlocal tries
        tries -= 1
        return tries >= 0 and time.perf_counter() < end and refuted(evidence, horizon, end)

    return search_horizon(fails, evidence.known, evidence.limit)


def is_refutable(relaxation: Relaxation) -> bool:
    """Whether the graph is small enough, and there is anything to decide."""
    return is_small(relaxation) and relaxation.problem.num_devices > 1


def is_small(relaxation: Relaxation, *, most_edges: int = 4_000) -> bool:
    """Whether the graph has at most so many edges, beyond which the bound is left out."""
    return len(relaxation.source) <= most_edges


def refuted(evidence: Evidence, horizon: int, end: float) -> bool:
    """Whether propagation until `end` proves that no schedule of length at most `horizon`
    exists.
    """
    r, heads, weights = evidence.relaxation, evidence.heads, evidence.weights
    return propagate(r, heads, weights, horizon, end) is None


def propagate(
    relaxation: Relaxation,
    heads: HeadsTails,
    weights: Ints,
    horizon: int,
    end: float,
    *,
    rounds: int = 12,
) -> tuple[HeadsTails, Clusters] | None:
    """Return what every schedule of length at most `horizon` obeys; None if there is none.

    Parameters
    ----------
    end : when to stop deducing, in seconds of `time.perf_counter`; what is known then is returned.
    rounds : of propagation, at most.
    """
    clusters = Clusters(relaxation, horizon)
    for _ in range(rounds):
        if int(heads.through().max()) > horizon:
            return None
        changed, heads = clusters.rule_out(heads)
        if clusters.contradiction:
            return None
        relaxation = clusters.relaxation
        if energy_refutes(relaxation, heads, weights, horizon):
            return None
        changed = clusters.propagate(heads) or changed
        if clusters.contradiction:
            return None
        if not changed or time.perf_counter() > end:
            break
        decided = replace(relaxation, free=clusters.free, pay=clusters.pay)
        heads = heads.raised(heads_tails(decided, end=end, weights=weights))
    return heads, clusters


class Clusters:
    """Ops that must share a device, and edges that must be paid, within one horizon."""

    def __init__(self, relaxation: Relaxation, horizon: int) -> None:
        self.relaxation, self.horizon = relaxation, horizon
        self.free, self.pay = relaxation.free.copy(), relaxation.pay.copy()
        self.cluster = relaxation.problem.units.unit.copy()  # of each op
        self.contradiction = False
        self.room = int(relaxation.problem.capacity.max())

    def rule_out(self, heads: HeadsTails) -> tuple[bool, HeadsTails]:
        """Rule out classes of devices on which an op would come too late, for all ops of its
        cluster; return whether there are any, and heads and tails without them.
        """
        compute = heads.compute
        late = (compute < 0) | (heads.head + compute + heads.tail > self.horizon)
        off = np.zeros_like(late)
        np.logical_or.at(off, self.cluster, late)
        off = off[self.cluster]
        self.contradiction |= bool(off.all(axis=1).any())
        left = np.where(off, INCOMPATIBLE, compute)
        self.relaxation = replace(self.relaxation, compute=left, min_compute=fastest_ticks(left))
        return bool((left != compute).any()), heads._replace(compute=left)

    def propagate(self, heads: HeadsTails) -> bool:
        """Deduce what the windows imply; return whether an edge was decided."""
        r = self.relaxation
        head, tail = heads.minima()
        latest = self.horizon - tail - r.min_compute  # latest start
        alone = self.pay >= INFINITE
        arrives = head[r.source] + r.min_compute[r.source] + np.where(alone, 0, self.pay)
        together = alone | (arrives > latest[r.target])
        together &= self.cluster[r.source] != self.cluster[r.target]
        for u, v in zip(r.source[together], r.target[together], strict=True):
            self.cluster[self.cluster == self.cluster[v]] = self.cluster[u]
        members = by_key((label, v) for v, label in enumerate(self.cluster.tolist()))
        several = [ops for ops in members.values() if len(ops) > 1]
        if any(self._one_machine(ops, head, tail) > self.horizon for ops in several):
            self.contradiction = True
            return True
        return self._decide(members, head, tail)

    def _decide(self, members: dict[int, list[int]], head: Ints, tail: Ints) -> bool:
        """Decide which edges are shared, and which paid; return whether any is."""
        r, changed = self.relaxation, False
        known: dict[tuple[int, int], bool] = {}
        ends = self.cluster[r.source].tolist(), self.cluster[r.target].tolist()
        for e, (a, b) in enumerate(zip(*ends, strict=True)):
            if a == b:
                if self.free[e] > 0:
                    self.contradiction = True
                    return True
                if self.pay[e] < INFINITE:
                    self.pay[e] = INFINITE
                    changed = True
            elif self.free[e] == 0 and 0 < self.pay[e] < INFINITE:
                key = (min(a, b), max(a, b))
                if key not in known:
                    known[key] = self._cannot_share(members[a] + members[b], head, tail)
                if known[key]:
                    self.free[e] = self.pay[e]
                    changed = True
        return changed

    def _cannot_share(self, ops: list[int], head: Ints, tail: Ints) -> bool:
        if not (self.relaxation.compute[ops] >= 0).all(axis=0).any():
            return True
        if int(self.relaxation.problem.resident[ops].sum()) > self.room:
            return True
        return self._one_machine(ops, head, tail) > self.horizon

    def _one_machine(self, ops: list[int], head: Ints, tail: Ints) -> int:
        jobs = np.empty((JOB_ROWS, len(ops)), np.int64)
        jobs[[RELEASE, LENGTH, TAIL]] = head[ops], self.relaxation.min_compute[ops], tail[ops]
        return int(jackson(len(ops), jobs))
