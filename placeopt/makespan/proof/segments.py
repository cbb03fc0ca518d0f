"""Delays of segments as steps of a proof: each is derived from its own supposition, whose ops are
numbered along the segment.

A step names all segments that look alike, so that one derivation proves the delay of each
(`placeopt.makespan.bounds.segments`, `fork_join`).
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.bounds.fork_join import spreads
from placeopt.makespan.bounds.segments import segment_delays
from placeopt.makespan.proof.derivation import Effort, OutOfReachError, derive

if TYPE_CHECKING:
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.makespan.bounds.fork_join import Spread
    from placeopt.makespan.bounds.segment_graph import Segment
    from placeopt.makespan.proof.supposition import Supposition
    from placeopt.model.bound import Step


def raise_by_segments(
    state: Supposition,
    analysis: Analysis,
    end: float,
    *,
    everything: bool = True,
    most_cases: int = 400,
    search_share: float = 0.3,
) -> list[Step]:
    """Add the delays of segments to a supposition and return the steps that prove them; none where
    there are none.

    Parameters
    ----------
    analysis : of the problem, its cheaper bounds run.
    end : in seconds of `time.perf_counter`.
    everything : also segments that only raise heads and tails.
    most_cases : told apart for one segment. search_share : of the time, for looking for segments.
    """
    now = time.perf_counter()
    evidence, until = (
        analysis.evidence(min(state.most, analysis.best()[0])),
        now + search_share * (end - now),
    )
    copies: dict[tuple[int, str], list[tuple[int, ...]]] = {}
    solved: dict[tuple[int, ...], int] = {}
    delays = [
        segment_delays(evidence, until, solved, everything=x)
        for x in (False, True)
        if x <= everything
    ]
    for segment, ticks in dict.fromkeys(chain(*delays)):
        _add(copies, state, segment, ticks)
    weights = np.ones(len(state.count), np.int64)
    steps: list[Step] = []
    for (ticks, _), alike in copies.items():
        part = state.segment(alike[0], ticks - 1)
        try:
            found = derive(part, Effort(most_cases, end, [(weights, np.zeros_like(weights))]))
        except OutOfReachError:
            continue
        steps.append(_step(state, alike, ticks, found))
    return steps + _fork_join_steps(state, spreads(evidence, until))


def _fork_join_steps(state: Supposition, found: list[tuple[Segment, Spread]]) -> list[Step]:
    """Add delays that hold however ops are spread, where none as long is known, and return the
    steps that prove them.
    """
    copies: dict[tuple[int, str], list[tuple[int, ...]]] = {}
    spread_of = {}
    for segment, spread in found:
        if spread.ticks > state.delays.get((segment.first, segment.last), 0):
            number = {v: i for i, v in enumerate(segment.between, 1)}
            spread_of[_add(copies, state, segment, spread.ticks)] = [number[v] for v in spread.ops]
    return [
        _step(state, alike, key[0], [["ends", spread_of[key], 0, len(alike[0]) - 1]])
        for key, alike in copies.items()
    ]


def _add(
    copies: dict[tuple[int, str], list[tuple[int, ...]]],
    state: Supposition,
    segment: Segment,
    ticks: int,
) -> tuple[int, str]:
    """Put a segment with those of the same delay that look alike, and return what they have in
    common.
    """
    ops = (segment.first, *segment.between, segment.last)
    part = state.segment(ops, ticks - 1)
    key = (
        ticks,
        f"{part.time} {sorted(part.edges.items())} {part.group} {part.problem.resident.tolist()}",
    )
    copies.setdefault(key, []).append(ops)
    return key


def _step(state: Supposition, alike: list[tuple[int, ...]], ticks: int, steps: list[Step]) -> Step:
    """Add the delay of segments that look alike to a supposition and return the step that proves
    it.
    """
    state.delays.update({(ops[0], ops[-1]): ticks for ops in alike})
    return ["segment", [list(ops) for ops in alike], ticks, steps]
