"""Energetic windows: refute a horizon T by the work that must lie inside some window.

Proof. In a schedule of length at most T, op v on class D runs inside [head, T - tail]. In a window
[s, t) it must then work at least m = max(0, min(p, t - s, head + p - s, t - (T - tail - p))) ticks:
its length, or less by what can be pushed out on the left or the right. With class weights
y >= 0 op v uses at least min_D y_D m[v, D] of the sum_D s_D y_D (t - s) that the devices offer in
the window. If the sum over the ops exceeds the offer, no schedule of length T exists and T + 1 is a
lower bound. T is searched by doubling steps and bisection, each refuted T being a proof of its own;
windows are spanned by heads, ends, latest starts and latest ends (a sample for large n).

References
----------
J. Erschler, P. Lopez, C. Thuriot, "Raisonnement temporel sous contraintes de ressource et problèmes
d'ordonnancement", Revue d'Intelligence Artificielle 5(3), 1991.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.bounds.relaxation import sample, weight_choices
from placeopt.model.compiled import uncounted_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.evidence import Evidence
    from placeopt.makespan.bounds.relaxation import Relaxation
    from placeopt.model.arrays import Ints


def energy_bound(evidence: Evidence, end: float = math.inf) -> int:
    """Return the best refuted horizon + 1, or what is known; stops at `end`, in seconds of
    `time.perf_counter`.
    """
    known = max(evidence.known, int(evidence.heads.through().max()))
    for choice in weight_choices(evidence.relaxation, evidence.weights):

        def refuted(horizon: int, choice: Ints = choice) -> bool:
            return time.perf_counter() < end and refutes(
                evidence.relaxation, evidence.heads, choice, horizon
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
    high = None  # smallest horizon known not to be refuted
    while high is None:
        trial = low + step
        if trial >= upper:
            high = upper
        elif refuted(trial):
            low, step = trial, step * 2
        else:
            high = trial
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
        weights,
        relaxation.class_size,
        sample(begins, most),
        sample(ends, most),
        horizon,
    )
    return result


@uncounted_entry
def _overfull(head, tail, compute, weights, class_size, begins, ends, horizon):  # type: ignore[no-untyped-def]
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
