"""Schedule: when every op and every transfer of a placement runs."""

from __future__ import annotations

from dataclasses import dataclass

from placeopt.model.arrays import ArrayHolder, Ints, int_array


@dataclass(frozen=True, eq=False)
class Schedule(ArrayHolder):
    """Start and end of every op and every transfer, in ticks."""

    device: Ints  # (num_ops,)
    start: Ints  # (num_ops,)
    finish: Ints  # (num_ops,)
    transfer_tensor: Ints  # (num_transfers,)
    transfer_destination: Ints  # (num_transfers,) device
    transfer_start: Ints  # (num_transfers,)
    transfer_finish: Ints  # (num_transfers,)

    def __post_init__(self) -> None:
        n, t = len(self.device), len(self.transfer_tensor)
        for key in ("device", "start", "finish"):
            object.__setattr__(self, key, int_array(getattr(self, key), (n,), key))
        for key in ("transfer_tensor", "transfer_destination", "transfer_start", "transfer_finish"):
            object.__setattr__(self, key, int_array(getattr(self, key), (t,), key))

    def __repr__(self) -> str:
        return (
            f"<Schedule: {len(self.device)} ops, {len(self.transfer_tensor)} transfers, "
            f"makespan {self.makespan} ticks>"
        )

    @property
    def makespan(self) -> int:
        """End of the last op in ticks."""
        return int(self.finish.max())
