"""Our own prediction of step time and memory from layer tables and a network.

A stage takes its layers' times. Per micro-batch it waits for its input, and its predecessor for the
gradients: twice the transfer over the cut before it; of the transfers over the cut behind it a part
stays in sight (`exposed`). Transfers run at most at `largest_rate`. Gradients are summed by a ring
over the aggregate bandwidth of the replicas; the optimizer step, measured on a model of two blocks,
is scaled by parameters. Memory is base + state bytes per parameter + activations times an overhead
of the allocator, for as many micro-batches as are in flight, + a part of the loss layer's.

The constants are fitted on measured plans, which `FITTED_ON` names; all else is measured or
counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from placeopt.model.arrays import Floats, Ints, to_ticks
from placeopt.model.errors import InputError
from placeopt.plans.layer_tables import BACKWARD, FORWARD, OPTIMIZER, TabledStepCosts
from placeopt.plans.plan import EXPERT, SEQUENCE, ReplicaGroup
from placeopt.plans.published_costs import ticks
from placeopt.plans.step_costs import TICK_SECONDS, EverySpan, LinkShares, Load, span_sums

FITTED_ON = ("clariden N8_D2", "clariden N8_D4", "mit N4_D1", "mit N2_D1")
"""Measured plans that the constants of time were fitted on."""

MEMORY_FITTED_ON = ("clariden N8_D2", "mit N4_D1", "clariden N1_D1_M4_G32", "clariden N32_D32")
"""Measured plans that the constants of memory were fitted on."""

FORM_SOURCES = {
    SEQUENCE: "columns of the cost file or, without them, counted: an even share of all "
    "activations, collectives as long",
    EXPERT: "columns of the cost file, or roofline with an all-to-all inside the host",
}
"""What sequence and expert parallelism are priced by."""


@dataclass(frozen=True)
class Constants:
    """What is fitted.

    Attributes
    ----------
    largest_rate : bytes per second of a transfer between stages at most. exposed : part of the
    transfer over the cut
        behind a stage that it waits for.
    base_bytes, state_bytes, overhead, loss : memory: of the runtime, per parameter, factor of the
    activations, and
        part of the last layer's activations that is needed once more.
    source : in words.
    """

    largest_rate: float = 12e9
    exposed: float = 0.6
    base_bytes: float = 2.5e9
    state_bytes: float = 32.0
    overhead: float = 1.2
    loss: float = 0.0
    source: str = (
        f"fitted on the step times of {', '.join(FITTED_ON)} and the memory of "
        f"{', '.join(MEMORY_FITTED_ON)}"
    )

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if key == "source":
                continue
            above = key in ("largest_rate", "overhead")
            finite = key == "largest_rate" or value < math.inf
            if not (finite and (value > 0 if above else value >= 0)):
                raise InputError(
                    f"constants: {key}: expected a number {'above' if above else 'of at least'} 0, "
                    f"received {value:g}"
                )


@dataclass(frozen=True, eq=False)
class PredictedStepCosts(TabledStepCosts):
    """See the module."""

    constants: Constants = field(default_factory=Constants)
    name: str = "predicted step time"
    splits_backward = True
    shards_states = True

    @cached_property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """Where the numbers come from."""
        return (
            *self.table_sources,
            ("gradients of weights", self.table.weights_source),
            ("constants", self.constants.source),
            *((f"splitting by {name}", FORM_SOURCES[name]) for name in self.table.forms),
            (
                "sharded states",
                "counted: two 32-bit moments per parameter; reduce-scatter and all-gather take as "
                "long as the all-reduce by a ring, the optimizer a share",
            ),
        )

    def forms(self, kind: str, tensor: int) -> tuple[str, ...]:
        """Ways to split layers with times."""
        return self.table.forms_of(kind, tensor)

    def layer_ticks(
        self, kind: str, tensor: int, micro_batch: int, recompute: bool, form: str = ""
    ) -> Ints | None:
        """Forward and backward, and forward again with recomputation."""
        times = self.table.form(form).times_of(kind, micro_batch, tensor)
        if times is None:
            return None
        seconds = (1 + recompute) * times[:, FORWARD] + times[:, BACKWARD]
        return to_ticks(seconds, TICK_SECONDS)

    def weight_ticks(self, kind: str, tensor: int, micro_batch: int, form: str = "") -> Ints | None:
        """A part of the backward pass of each layer, rounded down."""
        times = self.table.form(form).times_of(kind, micro_batch, tensor)
        if times is None:
            return None
        seconds = np.asarray(self.table.weight_part) * times[:, BACKWARD]
        return np.floor(seconds / TICK_SECONDS).astype(np.int64)

    def send_ticks(
        self, cut: int, micro_batch: int, sender: tuple[str, int], receiver: tuple[str, int]
    ) -> tuple[int, int]:
        """The output of the last layer before the cut, either way."""
        size = float(self.table.outputs[cut - 1]) * self.table.float_bytes * micro_batch
        rate = self.network.bandwidth(sender, receiver, size / min(sender[1], receiver[1]))
        once = ticks(size / min(rate, self.constants.largest_rate))
        return once, once

    def link_shares(
        self, forward: int, backward: int, first: bool, last: bool, stages: int
    ) -> LinkShares:
        """See the module."""
        exposed = int(self.constants.exposed * forward + 0.5)
        return LinkShares(exposed, 0, forward + backward, forward + backward)

    def optimizer_ticks(self, load: Load, group: ReplicaGroup) -> int:
        """The measured step of a small model, by parameters."""
        return ticks(self._update(load, group))

    def _parameters(self, group: ReplicaGroup) -> Floats:
        return self.table.form(group.form).parameters[group.tensor]

    def _update(self, load: Load, group: ReplicaGroup) -> Any:
        """Seconds of an optimizer step."""
        profiled = max(profiled_parameters(self._parameters(group)), 1.0)
        seconds = float(self._known(group, load.micro_batch)[1, OPTIMIZER])
        return seconds * load.total(self._parameters(group)) / profiled / load.shards

    def sync_ticks(self, load: Load, groups: tuple[ReplicaGroup, ...]) -> int:
        """Ring over the slowest pair of neighbours, all devices of a replica sending their share.

        Its two halves are the reduce-scatter of gradients and the all-gather of parameters that
        sharded states need.
        """
        return ticks(self._ring_seconds(load, groups) + self._shared_seconds(load, groups[0]))

    def _ring_seconds(self, load: Load, groups: tuple[ReplicaGroup, ...]) -> Any:
        count = sum(group.count for group in groups)
        size = np.maximum.reduce([load.total(self._own(g)) * g.tensor for g in groups])
        size = size * self.table.float_bytes
        if count == 1:
            return 0.0 * size
        rates: list[Any] = [
            self.network.bandwidth((a.kind, a.tensor), (b.kind, b.tensor), size / a.tensor / count)
            for a, b in _neighbours(groups)
        ]
        return 2 * (count - 1) / count * size / np.minimum.reduce(rates)

    def _own(self, group: ReplicaGroup) -> Floats:
        """Floats of parameters that each device of a replica has for itself."""
        table = self.table.form(group.form)
        own = self._parameters(group)
        return own - table.shared[group.tensor] if group.tensor in table.shared else own

    def _shared_seconds(self, load: Load, group: ReplicaGroup) -> float:
        """All-reduce of the gradients that all devices of a replica hold: a ring through all of
        them, host by host.
        """
        table, members = self.table.form(group.form), group.count * group.tensor
        if group.tensor not in table.shared or members == 1:
            return 0.0
        size = load.total(table.shared[group.tensor]) * table.float_bytes
        return 2 * (members - 1) / members * size / self._ring_rate(group, size / members)

    def _ring_rate(self, group: ReplicaGroup, part: float) -> float:
        """Bytes per second of one device of a ring: between hosts where there are several
        replicas.
        """
        if group.count == 1:
            return self.network.inside(group.kind)
        return self.network.bandwidth((group.kind, 1), (group.kind, 1), part)

    def optimizer_spans(self, load: Load, group: ReplicaGroup) -> Floats:
        """See `StepCosts.spans`."""
        return np.asarray(self._update(EverySpan(*load), group))

    def sync_spans(self, load: Load, groups: tuple[ReplicaGroup, ...]) -> Floats:
        """See `StepCosts.spans`."""
        total = np.asarray(self._ring_seconds(EverySpan(*load), groups))
        if groups[0].tensor in self.table.form(groups[0].form).shared:
            # each span has a size, and the rate of a ring may depend on it
            for first, last in combinations(range(self.num_layers + 1), 2):
                span = load._replace(first=first, last=last)
                total[first, last] += self._shared_seconds(span, groups[0])
        return total

    def memory_bytes(self, load: Load, group: ReplicaGroup) -> int:
        """See the module; with recomputation only the inputs of layers are kept, and one layer is
        unfolded at a time.

        Sharded states leave each replica its share of the moments.
        """
        inside, scale = slice(load.first, load.last), load.micro_batch * self.table.float_bytes
        kept = self.table.form(group.form).activations[group.tensor][inside]
        floats = float(kept.sum()) * load.flight
        if load.recompute:
            floats = float(
                np.minimum(self._inputs(group)[inside], kept).sum()
            ) * load.flight + float(kept.max())
        if load.last == self.num_layers:
            floats += self.constants.loss / self.constants.overhead * float(kept[-1])
        kept_bytes = load.chunks * self.constants.overhead * floats * scale
        return math.ceil(self.constants.base_bytes + self._state(load, group) + kept_bytes)

    def _inputs(self, group: ReplicaGroup) -> Floats:
        """Floats per sample of what recomputation keeps of each layer; forms share it out."""
        return self.table.outputs / group.tensor if group.form else self.table.outputs

    def memory_spans(self, load: Load, group: ReplicaGroup) -> tuple[Floats, Floats]:
        """See `StepCosts.spans`."""
        kept = each = self.table.form(group.form).activations[group.tensor]
        fixed = np.zeros((len(kept) + 1,) * 2)
        if load.recompute:
            each = np.minimum(self._inputs(group), kept)
            for first in range(len(kept)):
                fixed[first, first + 1 :] = np.maximum.accumulate(kept[first:])
        fixed[:, -1] += self.constants.loss / self.constants.overhead * float(kept[-1])
        per_float = (
            load.chunks * self.constants.overhead * load.micro_batch * self.table.float_bytes
        )
        sums = span_sums(self._parameters(group))
        state = load.chunks * sums * self._bytes_per_parameter(load)
        return self.constants.base_bytes + state + fixed * per_float, span_sums(each) * per_float

    def state_bytes(self, load: Load, group: ReplicaGroup) -> int:
        """Bytes of weights, gradients and optimizer state on a device, of those that `memory_bytes`
        counts.
        """
        return math.ceil(self._state(load, group))

    def _state(self, load: Load, group: ReplicaGroup) -> float:
        parameters = load.total(self._parameters(group))
        return load.chunks * parameters * self._bytes_per_parameter(load)

    def _bytes_per_parameter(self, load: Load) -> float:
        """Bytes that are left of a parameter where replicas share out the states of the optimizer:
        two 32-bit moments.
        """
        return self.constants.state_bytes - 8.0 * (1 - 1 / load.shards)


def profiled_parameters(sizes: Floats) -> float:
    """Return the parameters of the model whose optimizer step was measured: the first and the last
    layer, and two like the second; of all layers where these have none.
    """
    some = float(sizes[0] + sizes[-1] + 2 * sizes[min(1, len(sizes) - 1)])
    return some or float(sizes.sum())


def _neighbours(groups: tuple[ReplicaGroup, ...]) -> set[tuple[ReplicaGroup, ReplicaGroup]]:
    """Return the pairs of neighbours in the ring of all replicas."""
    inside = {(group, group) for group in groups if group.count > 1}
    return inside | set(zip(groups, groups[1:] + groups[:1], strict=True))
