"""What a report says where memory does not fit: how much is missing, where, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.arrays import UNLIMITED
from placeopt.model.objective import objective_of
from placeopt.model.problem import PlacementProblem
from placeopt.model.sizes import bytes_text

if TYPE_CHECKING:
    from placeopt.model.placement import Placement

HELP = "raise --memory-limit, add devices, or use smaller inputs"


def over_limit(problem: Any, placement: Placement | Any, queue: str | None = None) -> str:
    """Warn where one run of a placement holds more than a device has; "" where none does."""
    if not isinstance(problem, PlacementProblem) or not hasattr(placement, "device"):
        return ""
    found = _peaks(problem, placement, queue)
    if found is None:
        return ""
    over = found - problem.capacity
    if (over <= 0).all():
        return ""
    d = int(over.argmax())
    others = int((over > 0).sum()) - 1
    counted = (
        ""
        if not objective_of(problem).drawn or problem.memory == "peak"
        else "; --memory-limit or --memory peak counts live tensors in the search"
    )
    return (
        f"warning: does not fit: {_told(problem, placement, found, d)}"
        + (f"; {others} more devices are over their limits" if others else "")
        + (counted or f"; {HELP}")
    )


def why_none(problem: Any) -> str:
    """Say what is missing where a search found no placement that fits; "" where memory is not why.

    The reference is a list scheduler's placement that counts weights only.
    """
    if not isinstance(problem, PlacementProblem) or problem.memory != "peak":
        return ""
    if (problem.capacity >= UNLIMITED).all():
        return ""
    from placeopt.api import solve

    found = solve(problem.replace(memory="static"), "heft", evaluations=1).solution
    peaks = None if found is None else _peaks(problem, found, None)
    if peaks is None or (peaks <= problem.capacity).all():
        return ""
    d = int((peaks - problem.capacity).argmax())
    return (
        "no placement was found that fits; where only weights are counted, "
        f"{_told(problem, found, peaks, d)}; {HELP}"
    )


def _peaks(problem: PlacementProblem, placement: Any, queue: str | None) -> Any:
    """Return the bytes at the peak of every device, None where the placement cannot be run."""
    from placeopt.makespan.evaluate import evaluate
    from placeopt.model.errors import InputError

    try:
        return evaluate(problem, placement, queue or None, check=False).peak_memory
    except InputError:
        return None


def _told(problem: PlacementProblem, placement: Any, peaks: Any, d: int) -> str:
    """Say what a device holds, and how much of it is too much."""
    held = int(problem.resident[np.asarray(placement.device) == d].sum())
    peak, room = int(peaks[d]), int(problem.capacity[d])
    return (
        f"{problem.device_names[d]} peaks at {bytes_text(peak)}, {bytes_text(peak - room)} over "
        f"its {bytes_text(room)} (weights {bytes_text(held)} + live tensors "
        f"{bytes_text(peak - held)})"
    )
