"""The independent judge of pipeline schedules: plain Python, no code shared with the kernels or the solvers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from placeopt.schedules.problem import PipelineProblem

MAX_VIOLATIONS = 50


def pipeline_violations(problem: PipelineProblem, start: ArrayLike) -> list[str]:
    """List, in words, everything wrong with a schedule; an empty list means it is valid.

    Parameters
    ----------
    start : starts in ticks, shape (num_micro_batches, num_blocks).
    """
    rows = [[int(value) for value in row] for row in np.asarray(start).tolist()]
    names, found = problem.block_names, []
    spans = [int(value) for value in problem.span]
    if not rows:
        return ["the schedule has no micro-batch"]
    for j, row in enumerate(rows):
        if len(row) != len(names):
            return [f"micro-batch {j}: expected {len(names)} starts, received {len(row)}"]
        for i, at in enumerate(row):
            if at < 0:
                found.append(f"block '{names[i]}' of micro-batch {j} starts at {at}, before time 0")
            for before, lag in problem.predecessors_of(i):
                ready = row[before] + spans[before] + lag
                if at < ready:
                    found.append(
                        f"block '{names[i]}' of micro-batch {j} starts at {at}, but its predecessor "
                        f"'{names[before]}' delivers at {ready}"
                    )
    for d in range(problem.num_devices):
        runs = sorted(
            (row[i], row[i] + spans[i], i, j)
            for j, row in enumerate(rows)
            for i in range(len(names))
            if d in [int(x) for x in problem.devices_of(i)]
        )
        for (_, end, i, j), (begin, _, other, k) in itertools.pairwise(runs):
            if begin < end:
                found.append(
                    f"device '{problem.device_names[d]}' runs '{names[other]}' of micro-batch {k} from {begin}, while "
                    f"'{names[i]}' of micro-batch {j} runs until {end}"
                )
        held = 0
        for begin, _, i, j in runs:
            held += int(problem.memory[i, d])
            if held > int(problem.capacity[d]):
                found.append(
                    f"device '{problem.device_names[d]}' holds {held} from {begin}, when '{names[i]}' of micro-batch "
                    f"{j} starts; its capacity is {int(problem.capacity[d])}"
                )
    return found[:MAX_VIOLATIONS]
