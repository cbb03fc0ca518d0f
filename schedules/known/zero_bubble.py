"""ZB-H1 and ZB-H2: zero bubble schedules with handcrafted orders (Qi et al., ICLR 2024).

The backward pass is split into I (gradient of the inputs, on the critical path) and W (of the
weights, whenever there is time). With S stages of times f, i, w each device idles between its first
start and its last end for
  ZB-H1   (S - 1)(f + i - w), holding what S micro-batches need on every device, as 1F1B does on its
          first;
  ZB-H2   (S - 1)(f + i - 2w), holding 2S - 1,
exactly so for f = i = w, provided there are enough micro-batches (n >= S, n >= 2S - 1).

References
----------
.. [1] P. Qi et al., "Zero Bubble (Almost) Pipeline Parallelism", ICLR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.schedules.known.base import OneStagePerDevice

if TYPE_CHECKING:
    from placeopt.schedules.known.chains import Chain, Instance
    from placeopt.schedules.problem import PipelineProblem


@dataclass(frozen=True)
class _Handcrafted(OneStagePerDevice):
    shape: ClassVar[str] = (
        "one chain with one stage per device and split backward (shape V with split=1)"
    )

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        super().check(problem, chains)
        if not chains[0].split:
            raise self.refuse(problem, "has whole backward passes")

    def warm_up_blocks(self, stages: int, stage: int) -> int:
        """Forward passes of a stage before its first backward pass."""
        raise NotImplementedError

    def delay(self, stage: int) -> int:
        """Return how many I's later the W of a micro-batch runs on a stage."""
        raise NotImplementedError

    def stage_order(self, chain: Chain, stage: int, micro_batches: int) -> list[Instance]:
        """Warm up, then I, a W that is `delay` old, F; what is left of W at the end."""
        warm = min(micro_batches, self.warm_up_blocks(chain.num_stages, stage))
        delay = self.delay(stage)
        order = [(j, chain.forward[stage]) for j in range(warm)]
        for j in range(micro_batches):
            order.append((j, chain.backward[stage]))
            if j >= delay:
                order.append((j - delay, chain.weight[stage]))
            if j + warm < micro_batches:
                order.append((j + warm, chain.forward[stage]))
        return order + [
            (j, chain.weight[stage]) for j in range(max(0, micro_batches - delay), micro_batches)
        ]


@dataclass(frozen=True)
class ZeroBubbleH1(_Handcrafted):
    """ZB-H1: the in-flight micro-batches of 1F1B's first stage on every stage; W fills part of the
    cool-down.
    """

    name: ClassVar[str] = "zb-h1"

    def warm_up_blocks(self, stages: int, stage: int) -> int:
        """As 1F1B."""
        return stages - stage

    def delay(self, stage: int) -> int:
        """One W later per stage, so that every stage holds S micro-batches."""
        return stage


@dataclass(frozen=True)
class ZeroBubbleH2(_Handcrafted):
    """ZB-H2: twice the micro-batches in flight fill the warm-up; W fills the whole cool-down."""

    name: ClassVar[str] = "zb-h2"

    def warm_up_blocks(self, stages: int, stage: int) -> int:
        """Enough forward passes to last until the first backward pass arrives."""
        return 2 * (stages - stage) - 1

    def delay(self, stage: int) -> int:
        """Two W's later per stage, so that every stage holds 2S - 1 micro-batches."""
        return 2 * stage
