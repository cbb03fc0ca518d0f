"""Cost models of a training step: what a stage takes, what passes between stages, what closes the
step, what fits.

With n micro-batches per replica, a step takes

    (n - 1) max_i period_i + sum_i fill_i + closing

(1F1B; `placeopt.plans.step_schedules` says what other schedules change),
where a stage's period and fill are its compute plus shares of the transfers before and behind it,
and closing is the all-reduce of the gradients and the optimizer: the largest of a stage, or the
largest all-reduce plus the largest optimizer step, whichever the model says. A cost model names the
source of every number (`sources`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from placeopt.model.arrays import Array, Floats, Ints, running_sums
from placeopt.plans.plan import ReplicaGroup

TICK_SECONDS = 1e-9
MOST_SECONDS = 2**56 * TICK_SECONDS
"""All layers, a transfer, or what closes a step take less, so that sums of ticks can be counted."""


class LinkShares(NamedTuple):
    """Ticks of the transfers over one cut: what they add to the stage before it and to the stage
    behind it.
    """

    period_before: int
    fill_before: int
    period_behind: int
    fill_behind: int


class Load(NamedTuple):
    """What memory depends on.

    Layers first..last - 1, micro-batch, micro-batches in flight, recomputation; `chunks`: stages of
    the device, all counted like this one; `shards`: replicas among which the optimizer's states are
    shared out.
    """

    first: int
    last: int
    micro_batch: int
    flight: int
    recompute: bool
    chunks: int = 1
    shards: int = 1

    def total(self, values: Floats) -> Any:
        """Return the sum over the layers."""
        return float(values[self.first : self.last].sum())


class EverySpan(Load):
    """A load of all spans of layers at once, in entry (first, last) of shape (L + 1, L + 1)."""

    __slots__ = ()

    def total(self, values: Floats) -> Any:
        """Return the sums over the layers, up to rounding; 0 where a span is empty."""
        return span_sums(values)


def span_sums(values: Array) -> Array:
    """Return the sums of values[first:last] for all spans, 0 where a span is empty; shape (L + 1, L
    + 1).
    """
    total = running_sums(values)
    return np.triu(total[None] - total[:, None], 1)


class StepCosts(ABC):
    """A cost model; ticks and bytes are whole numbers.

    Attributes
    ----------
    name : for people.
    closing_apart : whether the largest all-reduce and the largest optimizer step add up.
    splits_backward : whether the model tells the gradients of weights apart (`weight_ticks`).
    shards_states : whether the model knows sharded optimizer states (`Load.shards`).
    """

    name: str
    closing_apart: ClassVar[bool] = False
    splits_backward: ClassVar[bool] = False
    shards_states: ClassVar[bool] = False

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """Layers of the model."""

    @property
    @abstractmethod
    def layer_types(self) -> tuple[int, ...]:
        """Number of each layer, equal for those that are priced alike."""

    @property
    @abstractmethod
    def sources(self) -> tuple[tuple[str, str], ...]:
        """What comes from where."""

    @property
    def spans(self) -> Any:
        """The same for all spans of layers at once, as floats up to rounding; entry (first, last)
        of shape (L + 1, L + 1). None where the model has no such form.

        `optimizer_spans` and `sync_spans`: the seconds of `optimizer_ticks` and `sync_ticks`,
        whatever the layers of `load`; `memory_spans`: the bytes of `memory_bytes` with nothing in
        flight, and those that each micro-batch in flight adds. Searches round them, and ask the
        model where rounding decides.
        """
        return None

    @abstractmethod
    def micro_batches(self, kinds: tuple[str, ...]) -> tuple[int, ...]:
        """Micro-batch sizes with times on any of the kinds."""

    @abstractmethod
    def degrees(self, kind: str) -> tuple[int, ...]:
        """Tensor degrees with times on a kind."""

    def forms(self, kind: str, tensor: int) -> tuple[str, ...]:
        """Ways in which so many devices of a kind may split layers, "" among them; see
        `ReplicaGroup`.
        """
        return ("",)

    @abstractmethod
    def layer_ticks(
        self, kind: str, tensor: int, micro_batch: int, recompute: bool, form: str = ""
    ) -> Ints | None:
        """Forward and backward of each layer for one micro-batch, None where nothing is known."""

    def weight_ticks(self, kind: str, tensor: int, micro_batch: int, form: str = "") -> Ints | None:
        """Part of `layer_ticks` that only the gradients of weights take, None where nothing is
        known.
        """
        return None

    @abstractmethod
    def send_ticks(
        self, cut: int, micro_batch: int, sender: tuple[str, int], receiver: tuple[str, int]
    ) -> tuple[int, int]:
        """Ticks of activations and of gradients of one micro-batch over the cut before layer `cut`.

        `sender` and `receiver` are the (kind, tensor degree) of two replicas of neighbouring
        stages.
        """

    @abstractmethod
    def link_shares(
        self, forward: int, backward: int, first: bool, last: bool, stages: int
    ) -> LinkShares:
        """What transfers add to the stages beside a cut; `first`, `last`: the one before or behind
        is an end.

        The share of the stage before may depend on `first`, and then on whether there are more than
        three stages, that of the stage behind on `last`.
        """

    @abstractmethod
    def optimizer_ticks(self, load: Load, group: ReplicaGroup) -> int:
        """One optimizer step, on a share of the parameters where states are sharded.

        It may depend on the layers, micro-batch, recomputation and shards of `load`, not on what is
        in flight and on the stages of the device; so may `sync_ticks`.
        """

    @abstractmethod
    def sync_ticks(self, load: Load, groups: tuple[ReplicaGroup, ...]) -> int:
        """All-reduce of the gradients of a stage; with sharded states reduce-scatter, and
        all-gather of the parameters.
        """

    @abstractmethod
    def memory_bytes(self, load: Load, group: ReplicaGroup) -> int:
        """Bytes on a device."""
