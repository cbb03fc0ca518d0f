# mypy: disable-error-code="assignment, return-value, no-any-return"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)
"""How list schedulers keep to memory: a whole unit of ops is reserved on the device of its first
member.

Compiled into the schedulers of `insertion_kernels` and `time_kernels`.

A compiled step of list schedulers and walks: when the inputs of an op are on a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.compiled import inlined, inner_kernel, row_of, uncounted_kernel
from placeopt.model.projection import Units


@inner_kernel
def filled(count: int, value: int) -> Ints:
    """Return memory for so many numbers, all of which are `value` at first."""
    return np.full(count, value, np.int64)


@inner_kernel
def reserve(units: Units, pinned: Ints) -> tuple[Ints, Ints]:
    """Return (device of each unit or -1, free bytes of each device) with the pinned units
    charged.
    """
    home = pinned.copy()
    free = units.capacity.copy()
    for unit in range(len(home)):
        if home[unit] >= 0:
            free[home[unit]] -= units.bytes[unit]
    return home, free


@inlined
def fits(units: Units, home: Ints, free: Ints, unit: int, device: int) -> bool:
    """Whether `unit` is on `device` or may still go there."""
    if home[unit] >= 0:
        return bool(home[unit] == device)
    return bool(units.allowed[unit, device] and units.bytes[unit] <= free[device])


@uncounted_kernel
def roomiest(units: Units, free: Ints, unit: int) -> int:
    """Device for a unit that fits nowhere: the compatible one with the most bytes left; repaired
    later.
    """
    best = -1
    for device in range(len(free)):
        if units.allowed[unit, device] and (best < 0 or free[device] > free[best]):
            best = device
    return best


@inlined
def settle(units: Units, home: Ints, free: Ints, unit: int, device: int) -> None:
    """Reserve the whole of `unit` on `device` at its first member."""
    if home[unit] < 0:
        home[unit] = device
        free[device] -= units.bytes[unit]


@inlined
def data_ready(graph: Any, costs: Any, device_of: Ints, finish: Ints, op: int, device: int) -> int:
    """Time at which all inputs of `op` are on `device`, transfers never waiting for each other.

    Parameters
    ----------
    graph : tuple with `predecessors`. costs : tuple with `transfer` and `link_class`, which may be
    the same.
    """
    ready = np.int64(0)
    for e in row_of(graph.predecessors.pointer, op):
        source = graph.predecessors.op[e]
        arrival = finish[source]
        if device_of[source] != device:
            arrival += costs.transfer[
                graph.predecessors.tensor[e], costs.link_class[device_of[source], device]
            ]
        ready = max(ready, arrival)
    return ready
