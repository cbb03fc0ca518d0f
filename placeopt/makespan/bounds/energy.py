"""Energy: the work that must lie between a late start and an early end, weighted by the classes of
devices, and what the devices offer there.

Head-tail: sets of ops that start late, end early and fill all devices in between. Proof (Fernandez
and Bussell 1973, Carlier 1987, with communication-aware heads and tails). Let S be the ops with
head >= a and tail >= b. In a schedule of length T all of S runs inside [a, T - b]. Give class D the
weight y_D >= 0 and op v the energy w_v = min_D y_D p[v, D]: the devices offer at most sum_D s_D y_D
units per tick, so T >= a + b + ceil(sum_S w_v / sum_D s_D y_D). Second form: let the ops of S use j
devices. Each of these is idle before its first op of S and after its last one, the j first ops are
distinct, so are the j last ones, hence j T >= (sum of the j smallest heads in S) + sum_S p_v + (sum
of the j smallest tails in S); the bound is the minimum of that over j = 1..k. All sets S that
thresholds (a, b) define are tried (a sample of the a's for large n).

Energetic windows: refute a horizon T by the work that must lie inside some window. Proof. In a
schedule of length at most T, op v on class D runs inside [head, T - tail]. In a window [s, t) it
must then work at least m = max(0, min(p, t - s, head + p - s, t - (T - tail - p))) ticks: its
length, or less by what can be pushed out on the left or the right. With class weights y >= 0 op v
uses at least min_D y_D m[v, D] of the sum_D s_D y_D (t - s) that the devices offer in the window.
If the sum over the ops exceeds the offer, no schedule of length T exists and T + 1 is a lower
bound. T is searched by doubling steps and bisection, each refuted T being a proof of its own;
windows are spanned by heads, ends, latest starts and latest ends (a sample for large n).

References
----------
E. B. Fernandez, B. Bussell, "Bounds on the number of processors and time for multiprocessor optimal
schedules", IEEE Transactions on Computers 22, 1973.
J. Carlier, "Scheduling jobs with release dates and tails on identical machines to minimize the
makespan", European Journal of Operational Research 29, 1987.
J. Erschler, P. Lopez, C. Thuriot, "Raisonnement temporel sous contraintes de ressource et problèmes
d'ordonnancement", Revue d'Intelligence Artificielle 5(3), 1991.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.bounds.relaxation import Relaxation, fits, sample, weight_choices
from placeopt.model.arrays import stable_order
from placeopt.model.compiled import entry, uncounted_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.segment_graph import Evidence
    from placeopt.model.arrays import Ints


def head_tail_bound(
    relaxation: Relaxation, heads: HeadsTails, weights: Ints, *, most_work: int = 20_000_000
) -> int:
    """Return the best head-tail bound over threshold sets, weighted (`weights` per class) and
    unweighted.

    Parameters
    ----------
    most_work : thresholds times ops times devices, about; of more thresholds a sample is taken.
    """
    head, tail = heads.minima()
    order = stable_order(-tail)
    num_devices = int(relaxation.class_size.sum())
    most = max(8, most_work // (relaxation.num_ops * (num_devices + 1)))
    thresholds = sample(np.unique(head), most)
    best = int(_smallest_ends(head, tail, relaxation.min_compute, order, thresholds, num_devices))
    for choice in weight_choices(relaxation, weights):
        energy = class_energy(relaxation.compute, choice)
        width = int((relaxation.class_size * choice).sum())
        best = max(best, int(_weighted(head, tail, energy, order, thresholds, width)))
    return best


def class_energy(compute: Ints, weights: Ints) -> Ints:
    """Return min over compatible classes of weight * compute, int64[num_ops]."""
    return np.where(compute < 0, np.iinfo(np.int64).max, compute * weights).min(axis=1)


@uncounted_entry
def _weighted(head, tail, energy, order, thresholds, width):  # type: ignore[no-untyped-def]
    best = np.int64(0)
    for a in thresholds:
        total = np.int64(0)
        for v in order:  # tails descend, so b = tail[v]
            if head[v] >= a:
                total += energy[v]
                best = max(best, a + tail[v] + (total + width - 1) // width)
    return best


@entry
def _smallest_ends(  # type: ignore[no-untyped-def]
    head, tail, fastest, order, thresholds, num_devices
):
    best = np.int64(0)
    heads = np.empty(num_devices, np.int64)  # smallest heads in S, ascending
    last = np.empty(
        num_devices, np.int64
    )  # the latest ops' tails: the smallest, since tails descend
    for a in thresholds:
        total = np.int64(0)
        count = 0
        for v in order:
            if head[v] < a:
                continue
            total += fastest[v]
            size = min(count, num_devices)
            if count < num_devices or head[v] < heads[size - 1]:
                at = size if count < num_devices else size - 1
                while at > 0 and heads[at - 1] > head[v]:
                    heads[at] = heads[at - 1]
                    at -= 1
                heads[at] = head[v]
            last[count % num_devices] = tail[v]
            count += 1
            value = np.int64(2**62)
            ends = np.int64(0)
            for j in range(1, min(count, num_devices) + 1):
                ends += heads[j - 1] + last[(count - j) % num_devices]
                value = min(value, (ends + total + j - 1) // j)
            best = max(best, value)
    return best


def energy_bound(evidence: Evidence, end: float = math.inf, tries: float = math.inf) -> int:
    """Return the best refuted horizon + 1, or what is known; stops at `end`, in seconds of
    `time.perf_counter`, or after so many tries.
    """
    known = max(evidence.known, int(evidence.heads.through().max()))
    for choice in weight_choices(evidence.relaxation, evidence.weights):

        def refuted(horizon: int, choice: Ints = choice) -> bool:
            nonlocal tries
            tries -= 1
            return (
                tries >= 0
                and time.perf_counter() < end
                and refutes(evidence.relaxation, evidence.heads, choice, horizon)
            )

        known = search_horizon(refuted, known, evidence.limit)
    return known


def search_horizon(refuted: Callable[[int], bool], known: int, upper: int) -> int:
    """Return 1 + the largest horizon below `upper` found that `refuted` excludes, or `known` (a
    bound already) if none.
    """
    if known >= upper or known < 1 or not refuted(known):
        return known
    low, step = known, max(1, known // 256)
    while low + step < upper and refuted(low + step):
        low, step = low + step, step * 2
    high = min(low + step, upper)  # the smallest horizon that is not known to be refuted
    while high - low > 1:
        middle = (low + high) // 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low + 1


def refutes(
    relaxation: Relaxation,
    heads: HeadsTails,
    weights: Ints,
    horizon: int,
    *,
    most_work: int = 4_000_000,
) -> bool:
    """Whether some window proves that no schedule of length at most `horizon` exists, into which
    every op fits with its head and tail.

    Parameters
    ----------
    most_work : windows times ops times classes; of more windows a sample is taken.
    """
    choices = (row for row in (weights, np.ones_like(weights)) if fits(relaxation, row, horizon))
    choice = next(choices, None)
    if choice is None:
        return False
    head, tail = heads.minima()
    fastest = relaxation.min_compute
    latest_end = horizon - tail
    begins = np.unique(np.concatenate([head, latest_end - fastest]))
    ends = np.unique(np.concatenate([latest_end, head + fastest]))
    most = max(8, int((most_work / relaxation.num_ops / relaxation.compute.shape[1]) ** 0.5))
    result: bool = _overfull(
        heads.head,
        heads.tail,
        relaxation.compute,
        choice,
        relaxation.class_size,
        sample(begins, most),
        sample(ends, most),
        horizon,
    )
    return result


@uncounted_entry
def _overfull(  # type: ignore[no-untyped-def]
    head, tail, compute, weights, class_size, begins, ends, horizon
):
    """Whether some window holds less energy than ops need in it; every op fits into the horizon on
    some class (`refutes`).
    """
    n, num_classes = compute.shape
    width = np.int64(0)
    for c in range(num_classes):
        width += class_size[c] * weights[c]
    for begin in begins:
        for end in ends:
            if end <= begin:
                continue
            offer = width * (end - begin)
            used = np.int64(0)
            for v in range(n):
                least = np.int64(2**62)
                for c in range(num_classes):
                    p = compute[v, c]
                    if p < 0 or head[v, c] + p + tail[v, c] > horizon:
                        continue  # impossible there within the horizon
                    inside = min(
                        min(p, end - begin),
                        min(head[v, c] + p - begin, end - (horizon - tail[v, c] - p)),
                    )
                    least = min(least, weights[c] * max(np.int64(0), inside))
                    if least == 0:
                        break
                used += least
            if used > offer:
                return True
    return False
