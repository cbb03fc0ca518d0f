"""Reasons why a problem has no placement at all: an op, a colocation group, the total memory, a
count, or an op whose tensors have no room.

Proof of each: an op (or a group whose members share a device) needs one device that is compatible
with it and holds its resident bytes; every resident byte needs room on some device; and of the ops
(or groups) of at least s bytes a device takes at most as many as its capacity holds of the smallest
of them. With memory="peak" the resident bytes are part of every peak, so the same reasons hold.
Besides, while op v then runs on device d, for more than no time, its inputs are there until it
ends, its outputs from its start on, and its resident bytes always: d has to hold them all at once.
"""

from __future__ import annotations

import numpy as np

from placeopt.model.arrays import UNLIMITED, Flags, sums_by, unique_rows
from placeopt.model.problem import PlacementProblem
from placeopt.model.sizes import bytes_text

HELP = "give more devices, or raise --memory-limit"
"""What helps where nothing smaller than the model can be changed."""


def infeasible_reason(problem: PlacementProblem) -> str:
    """Return one line that says why no placement exists, or "" if none of the quick tests proves
    it.
    """
    if (problem.colocation < 0).all() and problem.resident.sum() <= problem.capacity.min():
        return ""  # a problem has a compatible device for every op
    allowed = allowed_devices(problem)
    stuck = np.flatnonzero(~allowed.any(axis=1))
    if stuck.size:
        return _why(problem, int(stuck[0]))
    need, room = sum(problem.resident.tolist()), sum(problem.capacity.tolist())
    if need > room:
        return (
            f"the ops hold {bytes_text(need)} of weights ({need} resident bytes), the devices "
            f"together {bytes_text(room)}: {bytes_text(need - room)} are missing; {HELP}"
        )
    return _by_device_set(problem, allowed) or _by_count(problem)


def allowed_devices(problem: PlacementProblem) -> Flags:
    """Return bool[num_ops, num_devices]: the whole colocation group can run and fits there."""
    if (problem.colocation < 0).all():
        return np.asarray(
            (problem.compute >= 0) & (problem.resident[:, None] <= problem.capacity[None, :])
        )
    units = problem.units
    possible = units.allowed & (units.bytes[:, None] <= units.capacity[None, :])
    return possible[units.unit]


def _why(problem: PlacementProblem, op: int) -> str:
    group = int(problem.colocation[op])
    members = np.flatnonzero(problem.colocation == group) if group >= 0 else np.array([op])
    compatible = (problem.compute[members] >= 0).all(axis=0)
    what = f"op '{problem.op_names[op]}'"
    if len(members) > 1:
        what = (
            f"colocation group {group} ({len(members)} ops, "
            f"'{problem.op_names[int(members[0])]}' first)"
        )
    if not compatible.any():
        return f"{what}: no device is compatible with all its ops"
    need = int(problem.resident[members].sum())
    best = int(np.where(compatible, problem.capacity, -1).argmax())
    room = int(problem.capacity[best])
    finer = ", or group less (--group layer or none)" if len(members) > 1 else ""
    return (
        f"{what} needs {need} resident bytes ({bytes_text(need)}), "
        f"{bytes_text(need - room)} more than the largest compatible device "
        f"'{problem.device_names[best]}' has; raise --memory-limit{finer}"
    )


def _by_device_set(
    problem: PlacementProblem, allowed: Flags, *, most_cells: int = 1_000_000_000
) -> str:
    """Ops restricted to the same devices must fit there together (the sets that occur, each tried
    once).

    Parameters
    ----------
    most_cells : of the table of sets that are looked at in all; of more sets, some are tried.
    """
    mask = np.zeros((len(problem.units.bytes), problem.num_devices), np.bool_)
    mask[problem.units.unit] = allowed
    rows, kind = unique_rows(mask)
    sets, held = mask[rows], sums_by(kind, problem.units.bytes, len(rows))
    for devices in sets[:: 1 + len(sets) * sets.size // most_cells]:
        room = sum(problem.capacity[devices].tolist())
        if room >= UNLIMITED:
            continue
        inside = ~(sets & ~devices).any(axis=1)
        need = int(held[inside].sum())
        if need > room:
            names = ", ".join(problem.device_names[int(d)] for d in np.flatnonzero(devices)[:4])
            return (
                f"{int(inside[kind].sum())} ops or groups that can only run on {names} hold {need} "
                f"resident bytes ({bytes_text(need)}), {bytes_text(need - room)} more than there "
                f"is; {HELP}"
            )
    return ""


def _by_count(problem: PlacementProblem) -> str:
    """Of the ops of at least some size, the devices must hold all, each at most as many as fit of
    the smallest.
    """
    sizes = np.sort(problem.units.bytes[problem.units.bytes > 0])
    starts = np.unique(np.searchsorted(sizes, np.unique(sizes)))
    # Sizes whose larger ops are counted, spread over the different ones
    counted_sizes = 64
    for start in starts[
        np.unique(np.linspace(0, len(starts) - 1, min(len(starts), counted_sizes)).astype(np.int64))
    ]:
        together = np.cumsum(sizes[start:])
        fit = int(np.searchsorted(together, problem.capacity, side="right").sum())
        if fit < len(together):
            return (
                f"{len(together)} ops or groups hold at least {int(sizes[start])} resident bytes "
                "each, of which at most "
                f"{fit} fit into the devices, counted one device at a time; {HELP}"
            )
    return ""


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
        f"weights, inputs and outputs), {missing} more than any compatible device has; {HELP}"
    )
