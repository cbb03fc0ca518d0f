"""GPipe, 1F1B, interleaved 1F1B and Hanayo: schedules of a single chain of stages with whole
backward passes.

With S stages of equal forward time f and backward time b and n micro-batches the idle time of a
device, from time 0 to the makespan, is
  GPipe, 1F1B        (S - 1)(f + b)  (Huang et al. 2019; Narayanan et al. 2019, 2021)
  interleaved, v     (D - 1)(f + b), f and b of a stage that is 1/v as long  (Narayanan et al. 2021)
  Hanayo, w waves    4 (D - 1) f for n = D and b = 2f, f of a stage that is 1/(2w) as long: a share
                     of (2D - 2) / (3Dw + 2D - 2)  (Liu et al. 2023)

ZB-H1 and ZB-H2: zero bubble schedules with handcrafted orders (Qi et al., ICLR 2024).

The backward pass is split into I (gradient of the inputs, on the critical path) and W (of the
weights, whenever there is time). With S stages of times f, i, w each device idles between its first
start and its last end for
  ZB-H1   (S - 1)(f + i - w), holding what S micro-batches need on every device, as 1F1B does on its
          first;
  ZB-H2   (S - 1)(f + i - 2w), holding 2S - 1,
exactly so for f = i = w, provided there are enough micro-batches (n >= S, n >= 2S - 1).

References
----------
.. [1] Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
Parallelism", NeurIPS 2019.
.. [2] D. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN
Training", ICML 2021 (PipeDream-Flush, 1F1B).
.. [3] D. Narayanan et al., "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", SC 2021
   (interleaved 1F1B).
.. [4] Z. Liu et al., "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model
Training Efficiency",
   SC 2023.
.. [5] P. Qi et al., "Zero Bubble (Almost) Pipeline Parallelism", ICLR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeopt.model.arrays import UNLIMITED
from placeopt.plans.step_schedules import interleaved_order
from placeopt.schedules.completion import time_reversed
from placeopt.schedules.evaluate import dispatch, makespan
from placeopt.schedules.known import KnownSchedule, OneStagePerDevice, one_chain, waves_of
from placeopt.schedules.known.chains import Chain, Instance
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import order_on


@dataclass(frozen=True)
class GPipe(OneStagePerDevice):
    """All forward passes, then all backward passes (Huang et al., NeurIPS 2019)."""

    def kept(self, stages: int, micro_batches: int) -> tuple[int, ...]:
        """All of them."""
        return (micro_batches,) * stages


@dataclass(frozen=True)
class OneForwardOneBackward(OneStagePerDevice):
    """1F1B with a flush: S - s forward passes on stage s, then one backward, one forward."""


@dataclass(frozen=True)
class InterleavedOneForwardOneBackward(KnownSchedule):
    """Interleaved 1F1B: v stages per device, stage s on device s mod D (Narayanan et al., SC
    2021).
    """

    shape = "one chain with stage s on device s mod D (shape interleaved)"

    def unit(self, problem: PipelineProblem) -> int:
        """Micro-batches run in groups of D."""
        return sum(map(bool, problem.on_device))

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        """Refuse anything but v rounds over the devices."""
        chain = one_chain(self, problem, chains)
        count = len(set(chain.device))
        if chain.num_stages % count or any(
            chain.device[s] != chain.device[s % count] for s in range(chain.num_stages)
        ):
            raise self.refuse(problem, "has its stages elsewhere")

    def order(self, chains: list[Chain], device: int, micro_batches: int) -> list[Instance]:
        """Pass groups of D micro-batches through the device's stages, one stage after the other."""
        chain = chains[0]
        count = len(set(chain.device))
        steps = interleaved_order(
            count, chain.num_stages // count, chain.device.index(device), micro_batches
        )
        return chain.instances(steps)


@dataclass(frozen=True)
class Hanayo(KnownSchedule):
    """Hanayo's waves: the stages go down and up the devices `w` times (Liu et al., SC 2023).

    Every device greedily runs what is ready, backward passes first, seen from the end of the
    iteration: the cool-down is packed, and what has to wait does so in the warm-up.
    """

    shape = "one chain in waves over the devices (shape wave)"

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        """Refuse anything but down and up again."""
        if not waves_of(one_chain(self, problem, chains)):
            raise self.refuse(problem, "has its stages elsewhere")

    def orders(
        self, problem: PipelineProblem, chains: list[Chain], micro_batches: int
    ) -> list[list[Instance]]:
        """Return the orders of the greedy execution backwards in time."""
        free = problem.with_capacity(UNLIMITED)
        scale = 1 + int(problem.heads.max())
        turn = np.arange(micro_batches, dtype=np.int64)[:, None] * scale
        first = dispatch(free, problem.forward * micro_batches * scale + turn - problem.heads)
        assert first is not None  # without a memory limit nothing can block
        backwards = time_reversed(free)
        mirrored = dispatch(backwards, makespan(free, first) - (first + free.span))
        assert mirrored is not None
        end = makespan(backwards, mirrored) - mirrored
        return [order_on(problem, end, device) for device in range(problem.num_devices)]


@dataclass(frozen=True)
class _Handcrafted(OneStagePerDevice):
    shape = "one chain with one stage per device and split backward (shape V with split=1)"

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        super().check(problem, chains)
        if not chains[0].split:
            raise self.refuse(problem, "has whole backward passes")


@dataclass(frozen=True)
class ZeroBubbleH1(_Handcrafted):
    """ZB-H1: the in-flight micro-batches of 1F1B's first stage on every stage, by one W later per
    stage; W fills part of the cool-down.
    """

    plan_schedule = "zb-h1"


@dataclass(frozen=True)
class ZeroBubbleH2(_Handcrafted):
    """ZB-H2: twice the micro-batches in flight fill the warm-up, two W's later per stage; W fills
    the whole cool-down.
    """

    plan_schedule = "zb-h2"
