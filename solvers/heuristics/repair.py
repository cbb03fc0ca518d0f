"""Make a placement fit: feasibility of units (ops that share a device) against capacities.

Assigning units to devices so that bytes fit is bin packing with eligibility. Repair keeps a given
assignment where it can (move the smallest unit that cures an overload), falls back to best fit
decreasing, then to devices that are filled to the byte, then to an integer program, which also
proves when nothing fits.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from placeopt.model.arrays import Floats, Ints, stable_order
from placeopt.model.linear_program import integer_program
from placeopt.model.projection import Units
from placeopt.solvers.heuristics.filling import Filling, first_filled

UNPACKABLE = "the ops cannot be packed into the capacities (proved by an integer program)"
"""Why there is no solution where `pack` proves it."""


def repair(units: Units, home: Ints, work: Floats) -> Ints | None:
    """Return a device per unit that is allowed and fits, close to `home`; None where moving units
    got stuck.

    Parameters
    ----------
    home : wanted device of each unit, shape (num_units,).
    work : ticks of each unit per device, used to choose among devices, shape (num_units,
    num_devices).
    """
    home = home.copy()
    wrong = ~units.allowed[np.arange(len(home)), home]
    if wrong.any():
        home[wrong] = np.where(units.allowed[wrong], work[wrong], np.inf).argmin(axis=1)
    return home if _relieve(units, home, work) else None


def pack(units: Units, seconds: float = math.inf) -> tuple[Ints | None, bool]:
    """Find any assignment that fits, whatever its speed, in about so many seconds: (device per unit
    or None, proved that none exists).
    """
    home = _best_fit(units)
    if home is None:
        home = first_filled(Filling.of_units(units), np.random.default_rng(0))
    return (home, False) if home is not None else _integer_program(units, seconds)


def fits(units: Units, home: Ints) -> bool:
    """Whether the devices of units can hold their bytes."""
    return bool((_left(units, home) >= 0).all())


def _left(units: Units, home: Ints) -> Ints:
    """Return the bytes that the units leave of each device, negative where they are too many."""
    left = units.capacity.copy()
    np.subtract.at(left, home, units.bytes)
    return left


def _relieve(units: Units, home: Ints, cost: Floats) -> bool:
    """Move units away from overloaded devices, in place; return whether everything fits now."""
    free = _left(units, home)
    for device in range(len(free)):
        members = np.flatnonzero((home == device) & (units.bytes > 0))
        members = members[stable_order(units.bytes[members])]
        waiting, sizes = members.tolist(), units.bytes[members].tolist()
        while free[device] < 0 and waiting:
            # The smallest unit that cures the overload; while none does, the largest.
            at = min(bisect_left(sizes, -free[device]), len(sizes) - 1)
            unit, size = waiting.pop(at), sizes.pop(at)
            room = np.where(units.allowed[unit], free, -1)
            room[device] = -1
            there = np.flatnonzero(room >= size)
            if len(there):  # else it fits nowhere, later neither
                target = int(there[np.lexsort((free[there], cost[unit, there]))[0]])
                home[unit] = target
                free[device] += size
                free[target] -= size
        if free[device] < 0:
            return False
    return True


def _best_fit(units: Units) -> Ints | None:
    """Best fit decreasing: fewest options first, then largest first."""
    for options in (units.allowed.sum(axis=1), np.zeros(len(units.bytes), np.int64)):
        free = units.capacity.copy()
        home = np.full(len(units.bytes), -1, np.int64)
        for unit in np.lexsort((-units.bytes, options)):
            there = np.flatnonzero(units.allowed[unit] & (free >= units.bytes[unit]))
            if not len(there):
                break
            home[unit] = there[np.argmin(free[there])]
            free[home[unit]] -= units.bytes[unit]
        if (home >= 0).all():
            return home
    return None


def _integer_program(
    units: Units,
    seconds: float,
    *,
    most_cells: int = 200_000,
    counted_cells: int = 40_000,
    counted_nodes: int = 2_000,
) -> tuple[Ints | None, bool]:
    """Solve the packing with HiGHS: (device per unit or None, proved impossible).

    Parameters
    ----------
    most_cells : largest (units x devices) table for which the integer program is tried.
    counted_cells, counted_nodes : the same without a limit of time, and the nodes after which it
    then ends, the same on every machine.
    """
    from scipy.sparse import csr_array

    num_units, k = units.allowed.shape
    timed = math.isfinite(seconds)
    if num_units * k > (most_cells if timed else counted_cells):
        return None, False
    unit = np.repeat(np.arange(num_units), k)
    device = np.tile(np.arange(k), num_units)
    column = np.arange(num_units * k)
    # Bytes as shares of the largest unit; the answer is checked exactly below.
    scale = float(max(1, units.bytes.max()))
    limit = np.minimum(units.capacity.astype(np.float64), float(units.bytes.sum())) / scale
    one = csr_array((np.ones(len(column)), (unit, column)), shape=(num_units, len(column)))
    fit = csr_array((units.bytes[unit] / scale, (device, column)), shape=(k, len(column)))
    answer = integer_program(
        np.zeros(len(column)),
        np.ones(len(column)),
        [(one, 1, 1), (fit, -np.inf, limit)],
        (0, units.allowed.ravel().astype(np.float64)),
        **({"time_limit": seconds} if timed else {"node_limit": counted_nodes}),
    )
    if answer.x is None:
        return None, answer.status == 2
    home = answer.x.reshape(num_units, k).argmax(axis=1).astype(np.int64)
    good = fits(units, home) and units.allowed[np.arange(num_units), home].all()
    return (home if good else None), False
