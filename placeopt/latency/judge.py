"""The judge of a placement under the latency: every violation in words, in plain Python without the
kernels.
"""

from __future__ import annotations

import itertools

import numpy as np

from placeopt.makespan.judge import placement_violations
from placeopt.model.arrays import Ints, true_places, value_ranks
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.period.judge import wait_forever


def placement_slots(problem: PlacementProblem, placement: Placement) -> Ints:
    """Slot of every op on its accelerator, 0 for ops in the pool; q or more where there are too
    many.
    """
    slot = np.zeros(problem.num_ops, np.int64)
    if placement.priority is None:
        return slot
    for d in np.flatnonzero(problem.io_class >= 0):
        ops = placement.device == d
        slot[ops] = value_ranks(placement.priority[ops])
    return slot


def latency_violations(problem: PlacementProblem, placement: Placement) -> list[str]:
    """List in words every constraint that `placement` breaks; empty if it is feasible."""
    found = placement_violations(problem, placement)
    device = placement.device.tolist()
    if len(device) != problem.num_ops or not all(0 <= d < problem.num_devices for d in device):
        return found
    slot = placement_slots(problem, placement)
    for d in true_places(problem.io_class >= 0):
        count = int(slot[placement.device == d].max(initial=-1)) + 1
        if count > problem.slots:
            found.append(
                f"device '{problem.device_names[d]}': expected at most {problem.slots} slots, "
                f"received {count}"
            )
    stuck = _stuck_units(problem, device, slot.tolist())
    if stuck:
        found.append(f"slots wait for each other in a circle: {', '.join(stuck)}")
    return found


def _stuck_units(problem: PlacementProblem, device: list[int], slot: list[int]) -> list[str]:
    """Names of the accelerator slots that never start."""
    unit: list[tuple[int, ...]] = [
        (device[v], slot[v]) if problem.io_class[device[v]] >= 0 else (v,)
        for v in range(problem.num_ops)
    ]
    before: dict[tuple[int, ...], set[tuple[int, ...]]] = {u: set() for u in unit}
    for e, t in enumerate(problem.edge_tensor.tolist()):
        a, b = unit[int(problem.producer[t])], unit[int(problem.consumer[e])]
        if a != b:
            before[b].add(a)
    slots = sorted(u for u in before if len(u) == 2)
    for first, later in itertools.pairwise(slots):
        if first[0] == later[0]:
            before[later].add(first)
    stuck = wait_forever(before)
    return [f"slot {u[1]} of '{problem.device_names[u[0]]}'" for u in slots if u in stuck]
