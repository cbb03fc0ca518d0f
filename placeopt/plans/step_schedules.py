"""Pipeline schedules of a plan: the order of passes, the micro-batches kept, and what each takes
from the price of a step.

With S stages and n micro-batches of time f + i + w each (forward, gradient of the inputs, gradient
of the weights), equal stages idle for

    1f1b                    (S - 1)(f + i + w)                 stage i keeps S - i micro-batches
    interleaved-1f1b:v      (S / v - 1)(f + i + w)  devices hold v stages each: S / v devices, n a
                            multiple of S / v
    zb-h1                   (S - 1)(f + i - w), n >= S         every stage keeps S
    zb-h2                   (S - 1)(f + i - 2 w), n >= 2S - 1  every stage keeps 2S - 1
    repetend                see `placeopt.plans.repetends`     as many as the plan says

(exactly so for f = i = w where W is split off; for zb-h2 between a device's first pass and its
last: it gains only where steps follow each other without a barrier, as a global norm of the
gradients would be one). `StepPrice` applies this to unequal stages: every stage but the last gives
up `weight_parts` times its w of the fill; v stages on a device are priced as if all of them were as
long, as large and as late to close as the stage looked at, so that each may take a v-th of the
time, and of the memory beside the base, of its device. What is in flight is counted on the order
itself, whatever the times.

References
----------
Narayanan et al.: "Efficient large-scale language model training on GPU clusters using Megatron-LM",
SC 2021 (1F1B and its interleaved form). Qi et al.: "Zero bubble (almost) pipeline parallelism",
ICLR 2024 (ZB-H1, ZB-H2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from placeopt.model.errors import InputError, did_you_mean

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"
"""Kinds of passes; where W is not split off, B holds it."""

INTERLEAVED = "interleaved-1f1b"
REPETEND = "repetend"
WEIGHT_PARTS = {"1f1b": 0, REPETEND: 0, "zb-h1": 2, "zb-h2": 3}
"""How often the time of W is taken from the fill of a stage."""

LAPS = 3
"""After so many times S / v micro-batches nothing new is in flight in the interleaved order."""


class Step(NamedTuple):
    """One pass: stage, micro-batch, kind."""

    stage: int
    micro_batch: int
    kind: str


@dataclass(frozen=True)
class StepSchedule:
    """A schedule.

    Attributes
    ----------
    name : as `TrainingPlan.schedule` has it. chunks : stages of a device, v. weight_parts : see the
    module.
    """

    name: str
    chunks: int = 1
    weight_parts: int = 0

    @property
    def splits_backward(self) -> bool:
        """Whether W is a pass of its own."""
        return self.weight_parts > 0

    @property
    def has_barrier(self) -> bool:
        """Whether all devices begin a step together."""
        return self.name != "zb-h2"

    @property
    def chooses_kept(self) -> bool:
        """Whether a plan says how many micro-batches each stage keeps (`TrainingPlan.kept`)."""
        return self.name == REPETEND

    def allows(self, stages: int, rounds: int) -> bool:
        """Whether the schedule exists for this number of stages and of micro-batches per
        replica.
        """
        if self.chunks > 1:
            devices = stages // self.chunks
            return stages % self.chunks == 0 and devices > 1 and rounds % devices == 0
        return (
            stages > 1 and rounds >= self._warm_up(stages, 0)
            if self.splits_backward
            else stages > 0
        )

    def needs(self) -> str:
        """Say which numbers of stages and micro-batches it takes."""
        if self.chunks > 1:
            return (
                f"a multiple of {self.chunks} stages on at least 2 devices, and micro-batches "
                "a "
                "multiple of these"
            )
        return (
            "at least 2 stages and "
            + {"zb-h1": "S", "zb-h2": "2S - 1"}.get(self.name, "1")
            + " micro-batches"
        )

    def flight(self, stages: int, position: int, rounds: int, kept: tuple[int, ...] = ()) -> int:
        """Most micro-batches that a stage keeps at a time; `kept` is that of the plan."""
        if self.chunks > 1:
            devices = stages // self.chunks
            return _interleaved_flight(devices, self.chunks, position, min(rounds, LAPS * devices))
        return min(
            rounds,
            kept[position]
            if kept
            else self._warm_up(stages, 0 if self.splits_backward else position),
        )

    def order(
        self, stages: int, rounds: int, device: int, kept: tuple[int, ...] = ()
    ) -> list[Step]:
        """Return the passes of a device in order; `kept` is that of the plan."""
        if self.chunks > 1:
            return _interleaved(stages // self.chunks, self.chunks, device, rounds)
        warm = min(rounds, kept[device] if kept else self._warm_up(stages, device))
        delay = device * max(0, self.weight_parts - 1)
        steps = [Step(device, j, FORWARD) for j in range(warm)]
        for j in range(rounds):
            steps.append(Step(device, j, BACKWARD))
            if self.splits_backward and j >= delay:
                steps.append(Step(device, j - delay, WEIGHT))
            if warm + j < rounds:
                steps.append(Step(device, warm + j, FORWARD))
        late = range(max(0, rounds - delay), rounds) if self.splits_backward else ()
        return steps + [Step(device, j, WEIGHT) for j in late]

    def _warm_up(self, stages: int, position: int) -> int:
        left = stages - position
        return 2 * left - 1 if self.name == "zb-h2" else left


@cache
def parse_schedule(name: str) -> StepSchedule:
    """Return the schedule with a name: 1f1b, repetend, interleaved-1f1b:V, zb-h1 or zb-h2.

    Raises
    ------
    InputError
        If there is none.
    """
    base, _, chunks = name.partition(":")
    if base in WEIGHT_PARTS and not chunks:
        return StepSchedule(base, 1, WEIGHT_PARTS[base])
    if base != INTERLEAVED:
        known = [*WEIGHT_PARTS, f"{INTERLEAVED}:2"]
        raise InputError(
            f"schedule '{name}': expected one of {', '.join(known)}; {did_you_mean(name, known)}"
        )
    if not chunks.isdigit() or int(chunks) < 2:
        raise InputError(
            f"schedule '{name}': expected at least 2 stages per device, as {INTERLEAVED}:2"
        )
    return StepSchedule(f"{INTERLEAVED}:{int(chunks)}", int(chunks))


def _interleaved(devices: int, chunks: int, device: int, rounds: int) -> list[Step]:
    """Passes go round in turns of `devices` micro-batches per stage; one forward, one backward
    after the warm-up.
    """
    total, lap = rounds * chunks, devices * chunks

    def step(slot: int, kind: str) -> Step:
        turn = slot // devices % chunks
        turn = chunks - 1 - turn if kind == BACKWARD else turn
        return Step(turn * devices + device, slot // lap * devices + slot % devices, kind)

    warm = min(total, 2 * (devices - device - 1) + (chunks - 1) * devices)
    steps = [step(slot, FORWARD) for slot in range(warm)]
    for slot in range(total):
        if warm + slot < total:
            steps.append(step(warm + slot, FORWARD))
        steps.append(step(slot, BACKWARD))
    return steps


@cache
def _interleaved_flight(devices: int, chunks: int, position: int, rounds: int) -> int:
    held = most = 0
    for step in _interleaved(devices, chunks, position % devices, rounds):
        if step.stage == position:
            held += 1 if step.kind == FORWARD else -1
            most = max(most, held)
    return most
