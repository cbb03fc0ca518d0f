"""The accelerators of a contracted period problem, and splits of its nodes over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_batch

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints
    from placeopt.model.problem import PlacementProblem
    from placeopt.period.contracted import ContractedProblem
    from placeopt.solving.tracker import Tracker


def contracted(tracker: Tracker[Placement], contiguity: str) -> ContractedProblem | None:
    """Contract the tracker's problem; None, with the reason recorded, if it cannot be."""
    try:
        return contract(tracker.problem, contiguity=contiguity)
    except InfeasibleProblemError as error:
        if contiguity == tracker.problem.contiguity:
            tracker.infeasible(str(error))
        else:
            tracker.message = f"no {contiguity}: {error}"
    return None


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
    problem: PlacementProblem = tracker.problem
    devices = np.asarray(model.types[kind])[part][model.node].astype(np.int32)
    value = period_batch(problem, devices[None, :])[0]
    tracker.count(1)
    if value == INFEASIBLE:
        return False
    tracker.offer(int(value), Placement(devices.astype(np.int64)))
    return True
