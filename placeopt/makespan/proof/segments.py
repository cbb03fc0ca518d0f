"""Delays of segments as steps of a proof: each is derived from its own supposition, whose ops are numbered along the segment.

A step names all segments that look alike, so that one derivation proves the delay of each (`placeopt.makespan.bounds.segments`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.bounds.segments import segment_delays
from placeopt.makespan.proof.derivation import Effort, OutOfReachError, derive

if TYPE_CHECKING:
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.makespan.proof.supposition import Supposition
    from placeopt.model.witness import Step

MOST_CASES = 400
"""Cases told apart for one segment."""

SEARCH_SHARE = 0.3
"""Share of the time for looking for segments."""


def raise_by_segments(state: Supposition, analysis: Analysis, end: float) -> list[Step]:
    """Add the delays of segments to a supposition and return the steps that prove them; none where there are none.

    Parameters
    ----------
    analysis : of the problem, its cheaper bounds run.
    end : in seconds of `time.perf_counter`.
    """
    now = time.perf_counter()
    delays = segment_delays(analysis.evidence(min(state.most, analysis.best()[0])), now + SEARCH_SHARE * (end - now))
    weights = np.ones(len(state.count), dtype=np.int64)
    copies: dict[tuple[int, str], list[list[int]]] = {}
    for segment, ticks in delays:
        ops = [segment.first, *segment.between, segment.last]
        part = state.segment(ops, ticks - 1)
        like = f"{part.time} {sorted(part.edges.items())} {part.group} {part.problem.resident.tolist()}"
        copies.setdefault((ticks, like), []).append(ops)
    steps: list[Step] = []
    for (ticks, _), alike in copies.items():
        part = state.segment(alike[0], ticks - 1)
        try:
            found = derive(part, Effort(MOST_CASES, end, [(weights, np.zeros_like(weights))]))
        except OutOfReachError:
            continue
        steps.append(["segment", alike, ticks, found])
        state.delays.update({(ops[0], ops[-1]): ticks for ops in alike})
    return steps
