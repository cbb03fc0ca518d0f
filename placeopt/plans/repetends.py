"""Repetends of a plan: each stage keeps fewer micro-batches than 1F1B, and the period grows as that
needs.

A repetend of one micro-batch holds the forward and the backward pass of every stage once and
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
Lin et al.: "Tessel: boosting distributed execution of large DNN models via flexible schedule
search", HPCA 2024 (repetends). Rau: "Iterative modulo scheduling", MICRO 27 (1994).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NEVER = 2**62


def behind_stages(passes: Sequence[int], links: Sequence[int]) -> list[int]:
    """Return all passes and links behind every stage, b; `links` has one less."""
    found = [0]
    for ticks, link in zip(passes[:0:-1], reversed(links), strict=True):
        found.append(found[-1] + ticks + link)
    return found[::-1]


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
    wait = 0
    for i in range(len(periods) - 1, -1, -1):
        if found:
            wait += behind[i] - behind[i + 1]
        between = max(0, -(-(wait + periods[i]) // pace) - 1)
        wait = max(wait, between * pace)
        found.append(between + 1)
    return found[::-1]
