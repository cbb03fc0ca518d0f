"""Steps of a proof that show what flows between ops carry from island to island: of the whole
problem, or of segments, whose delays then count (`placeopt.makespan.bounds.congestion`).

What every op sends through every tensor is written down, so that a checker adds up and searches
nothing.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from placeopt.makespan.bounds.congestion import Inside, partitions, pins_of, segment_steps
from placeopt.model.uniform_flow import MOST_SENT, flow_above, flows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.makespan.bounds.congestion import Partition
    from placeopt.makespan.bounds.segment_graph import Evidence, Segment
    from placeopt.model.arrays import Ints
    from placeopt.model.bound import Step
    from placeopt.model.problem import PlacementProblem


def whole_step(problem: PlacementProblem, most: int, end: float) -> Step | None:
    """Return the step by which a flow between all ops refutes a horizon, None if none does."""
    pins, ticks = pins_of(problem), problem.min_compute
    steps = (_step(part, ticks, pins, (), most, end) for part in partitions(problem))
    return next(filter(None, steps), None)


def segment_flows(
    problem: PlacementProblem, evidence: Evidence, end: float
) -> Iterator[tuple[list[tuple[int, ...]], int, Step]]:
    """Yield segments that look alike, by their ops, a delay of each and the step that refutes
    less.
    """
    parts = partitions(problem)
    found: dict[Segment, int] = {}
    for delays in segment_steps(problem, parts, lambda: evidence, end):
        found.update(delays if isinstance(delays, list) else ())
    alike: dict[tuple[int, bytes], list[Inside]] = {}
    for segment, ticks in found.items():
        inside = Inside(problem, segment)
        alike.setdefault((ticks, b"".join(map(inside.looks, parts))), []).append(inside)
    for (ticks, _), (inside, *others) in alike.items():
        steps = (
            _step(part.among(inside.tensors), inside.ticks, inside.pins, ends, ticks - 1, end)
            for part, ends in product(parts, ((), inside.ends))
        )
        for step in filter(None, steps):
            yield [inside.ops, *(x.ops for x in others)], ticks, step
            break


def _step(
    part: Partition,
    ticks: Ints,
    pins: Sequence[Sequence[int]],
    ends: Sequence[int],
    most: int,
    end: float,
) -> Step | None:
    """Return the step by which a flow among nodes refutes `most` ticks.

    Parameters
    ----------
    end : in seconds of `time.perf_counter`.
    """
    if len(ticks) * sum(map(len, pins)) > MOST_SENT:
        return None
    found = flows(ticks, pins, part.weight, ends, kept=True)
    best, flow = flow_above(found, part.least, most + 1, end)
    if flow is None or best <= most:
        return None
    return ["crossing", part.label, *flow.words(len(ticks), pins)]
