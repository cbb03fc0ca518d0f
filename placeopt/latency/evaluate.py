"""Latency of one sample when every accelerator runs its ops in q convex slots.

Devices without an io class (`io_class` -1, CPUs) are one unlimited pool: an op there starts when
its inputs are in host memory and takes its compute time, whatever else runs. The ops of an
accelerator d form at most q slots that run one after the other. A slot S starts when all its inputs
are in host memory and the slot before it has ended, and takes

    sum_t transfer[t, io] [producer not in S, a consumer in S] + sum_{v in S} compute[v, d]
    + sum_t transfer[t, io] [producer in S, a consumer not in S];

its results are in host memory when it ends. The latency is the end of the last op or slot. A slot
that waits, directly or not, for itself never starts: every slot is convex, and slots do not wait
for each other in a circle. The bytes of all slots of an accelerator together obey its capacity.

A placement says which ops share a slot by `priority`: ops of an accelerator with equal priority
form a slot, slots run by rising priority (without priorities there is one slot per accelerator).

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.latency.judge import latency_violations, placement_slots
from placeopt.latency.slots import latency_arrays, latency_rows
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import INFEASIBLE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from placeopt.model.arrays import Ints
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem


def latency_batch(
    problem: PlacementProblem, devices: ArrayLike, slots: ArrayLike | None = None
) -> Ints:
    """Return the latency of every row, INFEASIBLE where a constraint is broken.

    Parameters
    ----------
    devices : device of every op, shape (num_placements, num_ops).
    slots : slot of every op on its accelerator (0 by default), same shape.
    """
    rows = np.array(devices, np.int64, order="C")
    if rows.ndim != 2 or rows.shape[1] != problem.num_ops:
        raise InputError(
            f"devices: expected shape (placements, {problem.num_ops}), received {rows.shape}"
        )
    chosen = np.zeros_like(rows) if slots is None else np.array(slots, np.int64, order="C")
    value = np.empty(len(rows), np.int64)
    latency_rows(latency_arrays(problem), rows, chosen, value)
    return value


def latency_value(problem: PlacementProblem, placement: Placement) -> int:
    """Return the latency of `placement` in ticks.

    Raises
    ------
    InfeasiblePlacementError
        If it breaks a constraint; the message is the first violation.
    """
    value = int(
        latency_batch(
            problem, placement.device[None, :], placement_slots(problem, placement)[None, :]
        )[0]
    )
    if value == INFEASIBLE:
        raise InfeasiblePlacementError(latency_violations(problem, placement)[0])
    return value
