"""Head-tail: sets of ops that start late, end early and fill all devices in between.

Proof (Fernandez and Bussell 1973, Carlier 1987, with communication-aware heads and tails). Let S be
the ops with head >= a and tail >= b. In a schedule of length T all of S runs inside [a, T - b].
Give class D the weight y_D >= 0 and op v the energy w_v = min_D y_D p[v, D]: the devices offer at
most sum_D s_D y_D units per tick, so T >= a + b + ceil(sum_S w_v / sum_D s_D y_D). Second form: let
the ops of S use j devices. Each of these is idle before its first op of S and after its last one,
the j first ops are distinct, so are the j last ones, hence j T >= (sum of the j smallest heads in
S) + sum_S p_v + (sum of the j smallest tails in S); the bound is the minimum of that over j = 1..k.
All sets S that thresholds (a, b) define are tried (a sample of the a's for large n).

References
----------
E. B. Fernandez, B. Bussell, "Bounds on the number of processors and time for multiprocessor optimal
schedules", IEEE Transactions on Computers 22, 1973.
J. Carlier, "Scheduling jobs with release dates and tails on identical machines to minimize the
makespan", European Journal of Operational Research 29, 1987.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.bounds.relaxation import sample, weight_choices
from placeopt.model.compiled import entry, uncounted_entry

if TYPE_CHECKING:
    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.relaxation import Relaxation
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
    order = np.argsort(-tail, kind="stable")
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
    return np.asarray(
        np.where(compute < 0, np.iinfo(np.int64).max, compute * weights[None, :]).min(axis=1)
    )


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
def _smallest_ends(head, tail, fastest, order, thresholds, num_devices):  # type: ignore[no-untyped-def]
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
