"""Pipeline schedules of a plan: the order of passes, the micro-batches kept, and what each takes
from the price of a step.

With S stages and n micro-batches of time f + i + w each (forward, gradient of the inputs, gradient
of the weights), equal stages idle for

    1f1b                    (S - 1)(f + i + w)                 stage i keeps S - i micro-batches
    interleaved-1f1b:v      (S / v - 1)(f + i + w)  devices hold v stages each: S / v devices, n a
                            multiple of S / v
    zb-h1                   (S - 1)(f + i - w), n >= S         every stage keeps S
    zb-h2                   (S - 1)(f + i - 2 w), n >= 2S - 1  every stage keeps 2S - 1
    repetend                see below                          as many as the plan says

(exactly so for f = i = w where W is split off; for zb-h2 between a device's first pass and its
last: it gains only where steps follow each other without a barrier, as a global norm of the
gradients would be one). `StepPrice` applies this to unequal stages: every stage but the last gives
up `weight_parts` times its w of the fill, of which one period of the longest stage is left, since
its device works through all n; v stages on a device are priced as if all of them were as
long, as large and as late to close as the stage looked at, so that each may take a v-th of the
time, and of the memory beside the base, of its device. What is in flight is counted on the order
itself, whatever the times.

With a repetend each stage keeps fewer micro-batches than with 1F1B, and the period grows as that
needs. A repetend of one micro-batch holds the forward and the backward pass of every stage once and
repeats every P ticks. Let z_i be the time from the end of stage i's forward pass to the start of
its backward pass of the same micro-batch, q_i the forward passes of later micro-batches between the
two, d_i the ticks of a stage's passes, p_i >= d_i those that its device is occupied per micro-batch
(its period) and w_i what passes over the cut behind stage i take both ways. A schedule with these
numbers exists iff

    z_i >= z_(i+1) + d_(i+1) + w_i,    q_i P <= z_i <= (q_i + 1) P - p_i,    z_i >= 0:

the first is the order of passes, the second says that the next backward pass of the device ends
before its forward pass number q_i + 1 begins and that number q_i is over, whatever the parts of
d_i. Stage i keeps q_i + 1 micro-batches. For given q the least z_i(P) is the largest of q_j P + b_i
- b_j over j >= i and of b_i, b_i being all d and w behind stage i, so that the least P is the
  largest of

    (p_i + b_i - b_j) / (q_i + 1 - q_j) for i <= j,    (p_i + b_i) / (q_i + 1),

rounded up; there is none if a stage keeps fewer than one behind it. The step takes (n - 1) P + z_0
+ d_0 and what closes it, both of which grow with P. Equal stages with q_i = S - 1 - i are 1F1B,
whose closed formula leaves waits out where stages are unequal.

References
----------
Narayanan et al.: "Efficient large-scale language model training on GPU clusters using Megatron-LM",
SC 2021 (1F1B and its interleaved form). Qi et al.: "Zero bubble (almost) pipeline parallelism",
ICLR 2024 (ZB-H1, ZB-H2). Lin et al.: "Tessel: boosting distributed execution of large DNN models
via flexible schedule search", HPCA 2024 (repetends). Rau: "Iterative modulo scheduling", MICRO 27
(1994).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
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

MOST_CHUNKS = 1000
"""Stages of a device of an interleaved schedule."""

NEVER = 2**62


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
            return interleaved_order(stages // self.chunks, self.chunks, device, rounds)
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
    if not chunks.isdecimal() or not 2 <= int(chunks) <= MOST_CHUNKS:
        raise InputError(
            f"schedule '{name}': expected 2 to {MOST_CHUNKS} stages per device, as {INTERLEAVED}:2"
        )
    return StepSchedule(f"{INTERLEAVED}:{int(chunks)}", int(chunks))


def interleaved_order(devices: int, chunks: int, device: int, rounds: int) -> list[Step]:
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
    for step in interleaved_order(devices, chunks, position % devices, rounds):
        if step.stage == position:
            held += 1 if step.kind == FORWARD else -1
            most = max(most, held)
    return most


def behind_stages(passes: Sequence[int], links: Sequence[int]) -> list[int]:
    """Return all passes and links behind every stage, b; `links` has one less."""
    pairs = zip(passes[:0:-1], reversed(links), strict=True)
    return list(accumulate((ticks + link for ticks, link in pairs), initial=0))[::-1]


def least_pace(periods: Sequence[int], behind: Sequence[int], kept: Sequence[int]) -> int:
    """Return the least P of stages that keep so many micro-batches, NEVER if there is none; see the
    module.
    """
    pace = 1
    for i, (period, rest) in enumerate(zip(periods, behind, strict=True)):
        pace = max(pace, -(-(period + rest) // kept[i]))
        for j in range(i, len(periods)):
            turns = kept[i] + 1 - kept[j]
            if turns <= 0:
                return NEVER
            pace = max(pace, -(-(period + rest - behind[j]) // turns))
    return pace


def longest_wait(behind: Sequence[int], kept: Sequence[int], pace: int) -> int:
    """Return z of the first stage: from the end of its forward pass to the start of its backward
    pass.
    """
    return max(
        behind[0],
        *((count - 1) * pace + behind[0] - rest for count, rest in zip(kept, behind, strict=True)),
    )


def kept_at(periods: Sequence[int], behind: Sequence[int], pace: int) -> list[int]:
    """Return the fewest micro-batches that stages may keep with a period, from the last stage
    forwards.
    """
    found: list[int] = []
    wait = last = 0
    for period, rest in zip(reversed(periods), reversed(behind), strict=True):
        wait += rest - last
        between = max(0, -(-(wait + period) // pace) - 1)
        wait, last = max(wait, between * pace), rest
        found.append(between + 1)
    return found[::-1]
