"""Why no schedule keeps to a limit on the peak memory: an op whose tensors have no room.

Proof. While op v runs on device d, for more than no time, its inputs are there until it ends, its
outputs from its start on, and its resident bytes always. So d has to hold them all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.feasibility import HELP, infeasible_reason
from placeopt.model.sizes import bytes_text

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem


def impossible_reason(problem: PlacementProblem) -> str:
    """Return one line that says why no schedule exists, or "" if no quick test proves it."""
    reason = infeasible_reason(problem)
    return _live_reason(problem) if not reason and problem.memory == "peak" else reason


def _live_reason(problem: PlacementProblem) -> str:
    """Return why no device has room for the tensors of some op, "" if one has for every op."""
    counts = np.diff(problem.consumer_ptr)
    need = problem.resident.copy()
    np.add.at(need, problem.producer[counts > 0], problem.tensor_bytes[counts > 0])
    np.add.at(need, problem.consumer, np.repeat(problem.tensor_bytes, counts))
    runs = problem.compute >= 0
    fits = runs & ((problem.compute == 0) | (need[:, None] <= problem.capacity[None, :]))
    stuck = np.flatnonzero(~fits.any(axis=1))
    if not stuck.size:
        return ""
    op = int(stuck[need[stuck].argmax()])
    room = int(np.where(runs[op], problem.capacity, -1).max())
    missing = bytes_text(int(need[op]) - room)
    return (
        f"op '{problem.op_names[op]}' holds {bytes_text(int(need[op]))} while it runs (its "
        f"weights, inputs and outputs), {missing} more than any compatible device has; "
        f"{HELP}"
    )
