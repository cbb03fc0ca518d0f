"""Period (throughput) of a placement: the largest device load of a steady-state pipeline.

A device d with an io class (an accelerator) exchanges tensors with host memory over that link
class; a device without one (`io_class` -1, a CPU) computes out of host memory and never pays. For
the ops S of d

    load(d) = sum_{v in S} compute[v, d]
            + sum_t transfer[t, io_class[d]] * [producer of t not in S, a consumer in S]
            + sum_t transfer[t, io_class[d]] * [producer of t in S, a consumer not in S],

so a tensor costs its sender once and every receiving accelerator once. Every op and tensor belongs
to a pass: a tensor to the pass of its producer. With pipeline "1f1b" the period is max_d (FW_d +
BW_d), with "gpipe" it is max_d FW_d + max_d BW_d; without backward ops they agree.

Contiguity restricts the *forward* ops of each device:

- `chain`: the devices can be ordered so that no forward edge goes back: each device holds the
  difference of two ideals (down-sets). A backward op whose colocation class has no forward op is
  mirrored: an edge x -> y of the backward graph that touches such a class counts as the forward
  edge y -> x.
- `convex`: no forward path leaves a device and re-enters it.
- `none`: any assignment.

Devices may be unrelated here, and every device may have its own link class.

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.period.judge import period_violations
from placeopt.period.loads import loads_of, period_arrays, period_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from placeopt.model.arrays import Ints
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem


def period_batch(problem: PlacementProblem, devices: ArrayLike) -> Ints:
    """Return the period of every row of `devices`, INFEASIBLE where a constraint is broken.

    Parameters
    ----------
    devices : device index of every op, shape (num_placements, num_ops).
    """
    rows = np.ascontiguousarray(devices, np.int32)
    if rows.ndim != 2 or rows.shape[1] != problem.num_ops:
        raise InputError(
            f"devices: expected shape (placements, {problem.num_ops}), received {rows.shape}"
        )
    value = np.empty(len(rows), np.int64)
    period_rows(period_arrays(problem), rows, value)
    return value


def period_value(problem: PlacementProblem, placement: Placement) -> int:
    """Return the period of `placement` in ticks.

    Raises
    ------
    InfeasiblePlacementError
        If it breaks a constraint; the message is the first violation.
    """
    value = int(period_batch(problem, placement.device[None, :])[0])
    if value == INFEASIBLE:
        raise InfeasiblePlacementError(period_violations(problem, placement)[0])
    return value


def period_loads(problem: PlacementProblem, placement: Placement) -> Ints:
    """Return the load of every device in ticks, shape (2, num_devices): forward and backward
    pass.
    """
    k = problem.num_devices
    load = np.zeros((2, k), np.int64)
    loads_of(period_arrays(problem), placement.device.astype(np.int32), load, np.empty(k, np.int64))
    return load
