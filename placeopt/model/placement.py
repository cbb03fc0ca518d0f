"""Placement: a device for every op and, optionally, the order in which they run.

Schedule: when every op and every transfer of a placement runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from placeopt.model.arrays import ArrayHolder, Ints, as_array, int_array, ints, place_in, settle
from placeopt.model.errors import InputError

QUEUES = ("fifo", "priority", "planned")


@dataclass(frozen=True, eq=False)
class Placement(ArrayHolder):
    """A device for every op and, optionally, a rank (smaller runs first).

    Both are needed: the same devices with another order can be a third slower.
    """

    device: Ints  # (num_ops,) device index
    priority: Ints | None = None  # (num_ops,) rank

    def __post_init__(self) -> None:
        device = as_array(self.device, "device")
        if device.ndim != 1:
            raise InputError(
                f"device: expected one index per op, received {device.ndim} dimensions"
            )
        object.__setattr__(self, "device", int_array(device, device.shape, "device"))
        if self.priority is not None:
            object.__setattr__(self, "priority", int_array(self.priority, device.shape, "priority"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        if self.priority is None or other.priority is None:
            same_order = self.priority is other.priority
        else:
            same_order = np.array_equal(self.priority, other.priority)
        return same_order and np.array_equal(self.device, other.device)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = np.array2string(self.device, threshold=24, edgeitems=8, max_line_width=200)
        return f"Placement({shown}{'' if self.priority is None else ', with priorities'})"

    @classmethod
    def from_starts(
        cls, device: ArrayLike, start: ArrayLike, order: ArrayLike | None = None
    ) -> Placement:
        """Return a placement whose ranks are the ops sorted by (start, position in `order`).

        `order` should be a topological order, so that ops of zero length keep a feasible order.
        """
        start = np.asarray(start)
        position = np.arange(len(start)) if order is None else place_in(np.asarray(order))
        return cls(np.asarray(device), place_in(np.lexsort((position, start))))


@dataclass(frozen=True, eq=False)
class Schedule(ArrayHolder):
    """Start and end of every op and every transfer, in ticks."""

    device: Ints = ints("ops")
    start: Ints = ints("ops")
    finish: Ints = ints("ops")
    transfer_tensor: Ints = ints("transfers")
    transfer_destination: Ints = ints("transfers")  # device
    transfer_start: Ints = ints("transfers")
    transfer_finish: Ints = ints("transfers")

    def __post_init__(self) -> None:
        settle(self, ops=len(self.device), transfers=len(self.transfer_tensor))

    def __repr__(self) -> str:
        return (
            f"<Schedule: {len(self.device)} ops, {len(self.transfer_tensor)} transfers, "
            f"makespan {self.makespan} ticks>"
        )

    @property
    def makespan(self) -> int:
        """End of the last op in ticks."""
        return int(self.finish.max())
