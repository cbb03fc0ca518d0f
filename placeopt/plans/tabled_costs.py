"""What cost models of a training step share that take layer times from a table: layers,
micro-batches, degrees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from placeopt.plans.layer_tables import device_kind

if TYPE_CHECKING:
    from placeopt.model.arrays import Floats
    from placeopt.plans.layer_tables import LayerTable
    from placeopt.plans.network_table import Network
    from placeopt.plans.plan import ReplicaGroup


@dataclass(frozen=True, eq=False)
class TabledStepCosts:
    """Costs from a table of layers and a network; what `StepCosts` may tell apart is not, unless a
    subclass does.
    """

    table: LayerTable
    network: Network
    closing_apart: bool = field(default=False, init=False)
    splits_backward: bool = field(default=False, init=False)
    shards_states: bool = field(default=False, init=False)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return self.table.num_layers

    @property
    def layer_types(self) -> tuple[int, ...]:
        """Layers that are priced alike have equal numbers."""
        return self.table.layer_types

    @property
    def table_sources(self) -> tuple[tuple[str, str], ...]:
        """Where times, sizes and transfers come from."""
        return ("layer times, sizes", self.table.source), (
            "transfers, all-reduce",
            self.network.source,
        )

    @property
    def spans(self) -> Self:
        """Costs of all spans at once; see `SpanCosts`."""
        return self

    def _known(self, group: ReplicaGroup, micro_batch: int) -> Floats:
        times = self.table.form(group.form).times_of(group.kind, micro_batch, group.tensor)
        if times is None:
            raise LookupError(
                f"no times of {group.kind} at degree {group.tensor} and micro-batch {micro_batch}"
            )
        return times

    def micro_batches(self, kinds: tuple[str, ...]) -> tuple[int, ...]:
        """Micro-batch sizes with times on any of the kinds."""
        known = {device_kind(kind) for kind in kinds}
        return tuple(sorted({size for kind, size, _ in self.table.times if kind in known}))

    def forms(self, kind: str, tensor: int) -> tuple[str, ...]:
        """Ways to split layers with times."""
        return self.table.forms_of(kind, tensor)

    def degrees(self, kind: str) -> tuple[int, ...]:
        """Tensor degrees with times."""
        return self.table.degrees(kind)


def span_sums(values: Floats) -> Floats:
    """Return the sums of values[first:last] for all spans, 0 where a span is empty; shape (L + 1, L
    + 1).
    """
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.triu(total[None] - total[:, None], 1)
