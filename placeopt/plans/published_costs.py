"""The step-time formula of the authors of the published training plans.

    n = ceil(batch / (mbs dp)); (n - 1) max(compute + comm) + sum compute + sum comm + max optimizer
    + max all-reduce

compute are measured layer times; comm of a stage is the time to send its output forward and its
gradients back (the last stage counts the latter twice, the first one the former, twice where there
are more than three stages), over the fitted network between hosts; gradients are summed in buckets
of 5e8 bytes by a ring between neighbouring replicas, over the fit of one device per host. Memory:
24 bytes per parameter, the activations of S - i micro-batches, 2 or 3 GB beside them.

References
----------
Strati et al.: "Sailor: Automating distributed training over dynamic, heterogeneous, and
geo-distributed clusters", SOSP 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from placeopt.model.arrays import Floats, Ints, to_ticks
from placeopt.model.errors import InputError
from placeopt.plans.layer_tables import BACKWARD, FORWARD, OPTIMIZER, TabledStepCosts
from placeopt.plans.plan import ReplicaGroup
from placeopt.plans.step_costs import MOST_SECONDS, TICK_SECONDS, EverySpan, LinkShares, Load

BUCKET_BYTES = 5e8
"""Bytes of gradients that are summed at a time."""

STATE_BYTES = 24
"""Bytes of a parameter: weights, gradients, two Adam moments and two copies."""

BESIDE_BYTES = (2_000_000_000, 3_000_000_000)
"""Bytes beside the model without and with tensor parallelism."""

LARGEST_SHARE = 4
"""Gradients are shared by at most so many devices of a replica."""

FEW_STAGES = 3
"""With more stages than this the first one sends twice."""


def ticks(seconds: float) -> int:
    """Return ticks, rounded half up and never to 0 for positive times.

    Raises
    ------
    InputError
        If they are too many to count.
    """
    if not seconds < MOST_SECONDS:
        raise InputError(f"plan: a transfer, sum or update takes {seconds:g} s, too long to count")
    return max(int(seconds / TICK_SECONDS + 0.5), int(seconds > 0))


@dataclass(frozen=True, eq=False)
class PublishedStepCosts(TabledStepCosts):
    """See the module."""

    name: str = "published step time"
    closing_apart = True

    @cached_property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """Where the numbers come from."""
        return *self.table_sources, (
            "memory",
            "published formula: 24 bytes per parameter, 2 or 3 GB beside the model",
        )

    def layer_ticks(
        self, kind: str, tensor: int, micro_batch: int, recompute: bool, form: str = ""
    ) -> Ints | None:
        """Measured forward and backward times; the formula knows no recomputation."""
        times = self.table.times_of(kind, micro_batch, tensor)
        if times is None or recompute or form:
            return None
        return to_ticks(times[:, FORWARD] + times[:, BACKWARD], TICK_SECONDS)

    def send_ticks(
        self, cut: int, micro_batch: int, sender: tuple[str, int], receiver: tuple[str, int]
    ) -> tuple[int, int]:
        """Output of the last layer before the cut, and as gradients the output of the first one
        behind it.
        """
        sizes = self.table.outputs[[cut - 1, cut]] * self.table.float_bytes * micro_batch
        forward, backward = (float(size) for size in sizes)
        return (
            ticks(forward / self.network.bandwidth(sender, receiver, forward)),
            ticks(backward / self.network.bandwidth(receiver, sender, backward)),
        )

    def link_shares(
        self, forward: int, backward: int, first: bool, last: bool, stages: int
    ) -> LinkShares:
        """See the module."""
        before = 2 * forward if first and stages > FEW_STAGES else forward
        behind = 2 * backward if last else backward
        return LinkShares(before, before, behind, behind)

    def optimizer_ticks(self, load: Load, group: ReplicaGroup) -> int:
        """The measured step, whatever the stage holds."""
        return ticks(float(self._known(group, load.micro_batch)[load.first, OPTIMIZER]))

    def sync_ticks(self, load: Load, groups: tuple[ReplicaGroup, ...]) -> int:
        """Ring all-reduce in buckets, at the slowest pair of neighbours."""
        return ticks(float(self._sync_seconds(load, groups)))

    def optimizer_spans(self, load: Load, group: ReplicaGroup) -> Floats:
        """See `StepCosts.spans`."""
        seconds = np.append(self._known(group, load.micro_batch)[:, OPTIMIZER], 0.0)
        return np.tile(seconds[:, None], len(seconds))

    def sync_spans(self, load: Load, groups: tuple[ReplicaGroup, ...]) -> Floats:
        """See `StepCosts.spans`."""
        return np.asarray(self._sync_seconds(EverySpan(*load), groups))

    def _sync_seconds(self, load: Load, groups: tuple[ReplicaGroup, ...]) -> Any:
        count = sum(group.count for group in groups)
        share = min(LARGEST_SHARE, *(group.tensor for group in groups))
        left = load.total(self.table.parameters[1]) * self.table.float_bytes / share
        pairs = sorted(_neighbours(groups))
        total = np.zeros((len(pairs), *np.shape(left)))
        while pairs and np.any(left > 0):
            part = np.clip(left, 0.0, BUCKET_BYTES) / count
            rates = [self.network.bandwidth((a, 1), (b, 1), part) for a, b in pairs]
            total += [2 * (count - 1) * part / rate for rate in rates]
            left = left - BUCKET_BYTES
        return total.max(axis=0, initial=0.0)

    def memory_bytes(self, load: Load, group: ReplicaGroup) -> int:
        """See the module."""
        state, kept = self._held(load, group)
        return load.chunks * int(state + kept * load.flight) + BESIDE_BYTES[group.tensor > 1]

    def memory_spans(self, load: Load, group: ReplicaGroup) -> tuple[Floats, Floats]:
        """See `StepCosts.spans`."""
        state, kept = self._held(EverySpan(*load), group)
        return load.chunks * state + BESIDE_BYTES[group.tensor > 1], load.chunks * kept

    def _held(self, load: Load, group: ReplicaGroup) -> tuple[Any, Any]:
        """Return the bytes of the parameters of a stage, and of the activations of a
        micro-batch.
        """
        floats = load.total(self.table.activations[group.tensor]) * load.micro_batch
        state = load.total(self.table.parameters[group.tensor]) * STATE_BYTES
        return state, floats * self.table.float_bytes


def _neighbours(groups: tuple[ReplicaGroup, ...]) -> set[tuple[str, str]]:
    """Return the kinds of neighbouring replicas."""
    inside = {(group.kind, group.kind) for group in groups if group.count > 1}
    return inside | {(a.kind, b.kind) for a, b in pairwise(groups)}
