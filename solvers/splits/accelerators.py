"""The accelerators of a contracted period problem, and splits of its nodes over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.solvers.exact.linear_dp import offer_devices

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints
    from placeopt.model.placement import Placement
    from placeopt.period.contracted import ContractedProblem
    from placeopt.solving.tracker import Tracker


def accelerator_type(model: ContractedProblem) -> int:
    """Return the most numerous type of device that can run most nodes: the accelerators of a
    problem with both.
    """
    return max(
        range(model.num_types),
        key=lambda g: (len(model.types[g]), int(model.allowed[:, g].sum()), -g),
    )


def offer_parts(
    tracker: Tracker[Placement], model: ContractedProblem, part: Ints, kind: int
) -> bool:
    """Offer the split that puts part p of the nodes on the p-th device of a type; return whether it
    is valid.
    """
    device = np.asarray(model.types[kind])[part][model.node]
    tracker.count()
    return offer_devices(tracker, device)
