"""What cost models of a training step share that take layer times from a table: layers, micro-batches, degrees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placeopt.plans.layer_tables import LayerTable
    from placeopt.plans.network_table import Network


@dataclass(frozen=True, eq=False)
class TabledStepCosts:
    """Costs from a table of layers and a network."""

    table: LayerTable
    network: Network

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
        return ("layer times, sizes", self.table.source), ("transfers, all-reduce", self.network.source)

    def micro_batches(self, kinds: tuple[str, ...]) -> tuple[int, ...]:
        """Micro-batch sizes with times on any of the kinds."""
        return tuple(sorted({size for kind, size, _ in self.table.times if kind in kinds}))

    def degrees(self, kind: str) -> tuple[int, ...]:
        """Tensor degrees with times."""
        return self.table.degrees(kind)
