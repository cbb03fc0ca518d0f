"""Quick lower bounds on the period of every split.

area : let T be the period, and r_S the devices of stage S. Its load is at least work(S) / r_S, so
       r_S T >= work(S), which is at least the ticks of its ops on their fastest devices. The r_S
       add up to at most the usable devices: T is at least all of these ticks shared equally,
       rounded up.
op   : the stage of an op has at most as many devices as replicas are allowed, all of one type that
       can run the op, so T is at least the op's ticks there divided by the most such devices, the
       least over the types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints
    from placeopt.splits.problem import SplitProblem

NEVER = np.iinfo(np.int64).max


def usable_ticks(problem: SplitProblem) -> Ints:
    """Ticks of every op on every usable device, NEVER where it cannot run."""
    compute = problem.placement.compute[:, list(problem.usable_devices)]
    return np.where(compute < 0, NEVER, compute)


def area_bound(problem: SplitProblem) -> int:
    """All work on the fastest devices, shared equally."""
    least = usable_ticks(problem).min(axis=1)
    return 0 if (least == NEVER).any() else -(-sum(map(int, least)) // len(problem.usable_devices))


def op_bound(problem: SplitProblem) -> int:
    """The largest op, shared by as many replicas as there may be."""
    usable = set(problem.usable_devices)
    found = []
    for devices in problem.types:
        count = min(problem.max_replicas, len(usable.intersection(devices)) // problem.groups)
        if count:
            ticks = problem.placement.compute[:, devices[0]]
            found.append(np.where(ticks < 0, NEVER, -(-ticks // count)))
    least = np.min(found, axis=0)
    return 0 if (least == NEVER).any() else int(least.max())


BOUNDS = {"area": area_bound, "op": op_bound}
