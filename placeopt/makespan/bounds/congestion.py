"""Congestion: what flows between ops cross from island to island takes turns on the channels there.

Proof. Let islands be a partition of the devices in which every transfer between two of them takes
one of N channels, and let w_t be the least that tensor t takes there. In each of R rounds all ops
send flow to all others and to the ends, along ops of which each shares a tensor with the next
(`placeopt.model.uniform_flow`): Q units in all, of op u q_u, each worth p ticks of work at least,
and a units to the ends for each of them; let C be no less than the units through t in all rounds
divided by w_t, for every t. Take a schedule of D ticks, and let island i have x_i units, and k_i
devices: p x_i <= k_i D. What is sent to an op of another island passes a tensor that is sent from
one island to another; in all these are R times

    Q (Q + a) - sum of x_i^2 - (what is sent to the ends of the same island, at most a max x_i)

units, through tensors that take at least so much / C on the channels, each of which is busy for D
ticks at most. So

    N D >= R (Q (Q + a) - M - a m) / C,

where M is the largest sum of squares, and m the largest x_i, that the islands allow: both are those
of the largest islands filled first. The right side falls with D, so the least D that this allows is
found by bisection. Without ends, D is a bound on the makespan.

With two ops u and v as ends, and the ops between them, all that is said happens between the end of
u and the start of v: tensors of u and of the ops between are sent after the end of u, and what the
ops between and v read of these is there before v starts. So D passes from the end of u to the start
of v, a delay as those of forks and joins (`segments`).

What it adds: loads and paths know nothing of two transfers that wait for one another.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from placeopt.makespan.bounds.relaxation import islands
from placeopt.makespan.bounds.segment_graph import Delay, Segment, SegmentGraph, too_large
from placeopt.model.uniform_flow import best_of_flows, flows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from placeopt.makespan.bounds.segment_graph import Evidence
    from placeopt.model.arrays import Ints
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.uniform_flow import Flow


class Partition(NamedTuple):
    """Islands of devices between which all transfers take channels.

    Attributes
    ----------
    label : island of each device. sizes : devices of each, largest first. channels : between them.
    weight : least ticks of each tensor from one island to another.
    """

    label: list[int]
    sizes: list[int]
    channels: int
    weight: Ints

    def among(self, tensors: Sequence[int]) -> Partition:
        """Return what there is to say of some tensors, renumbered."""
        return self._replace(weight=self.weight[list(tensors)])

    def least(self, flow: Flow) -> int:
        """Return the least ticks in which the channels can carry what a flow says."""
        low, high = 0, max(1, ceil(flow.units * flow.per_unit))
        while low < high:
            middle = (low + high) // 2
            if self._carried(flow, middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _carried(self, flow: Flow, ticks: int) -> bool:
        """Whether so many ticks may be enough."""
        left, squares, largest = flow.units, 0, 0
        for size in self.sizes:
            here = min(left, int(size * ticks / flow.per_unit))
            squares, left, largest = squares + here * here, left - here, max(largest, here)
        crossing = flow.units * (flow.units + flow.ends) - squares - flow.ends * largest
        carried = self.channels * ticks * flow.most
        return left == 0 and carried >= flow.rounds * crossing


def partitions(problem: PlacementProblem) -> list[Partition]:
    """Return partitions into islands: the finest, and that into the islands of the relaxation."""
    if problem.num_channels == 0 or problem.num_tensors == 0:
        return []
    joined = (problem.lanes < 0) | (problem.transfer.sum(axis=0)[problem.link_class] == 0)
    island = islands(problem)
    found = []
    for together in (joined, joined | (island[:, None] == island)):
        count, label = connected_components(together, directed=False)
        apart = label[:, None] != label
        if count > 1:
            weight = problem.transfer[:, np.unique(problem.link_class[apart])].min(axis=1)
            sizes = sorted(np.bincount(label).tolist(), reverse=True)
            channels = len(np.unique(problem.lanes[apart]))
            found.append(Partition(label.tolist(), sizes, channels, weight))
    return found[:1] if len(found) == 2 and found[0].sizes == found[1].sizes else found


def congestion_steps(
    problem: PlacementProblem, evidence: Callable[[], Evidence], end: float
) -> Iterator[int | list[Delay]]:
    """Yield bounds after every round of a flow between all ops, then delays of segments, those with
    most ops first, 0 while there are none.

    Parameters
    ----------
    evidence : what is known now. end : as for `SegmentGraph`.
    """
    parts = partitions(problem)
    if not parts:
        return
    pins = pins_of(problem)
    for part in parts:
        yield from best_of_flows(flows(problem.min_compute, pins, part.weight), part.least)
    yield from segment_steps(problem, parts, evidence, end)


def pins_of(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """Return the ops of every tensor, its producer first."""
    return [(u, *problem.readers_of(t)) for t, u in enumerate(problem.producer.tolist())]


def segment_steps(
    problem: PlacementProblem, parts: list[Partition], evidence: Callable[[], Evidence], end: float
) -> Iterator[int | list[Delay]]:
    """Yield the delays of segments as `congestion_steps` does."""
    now = evidence()
    if too_large(now.relaxation):
        return
    graph, known = SegmentGraph(now.relaxation, end), dict[bytes, int]()
    found, fresh = dict[Segment, int](), 0
    for segment in reversed(graph.worthwhile(graph.nearest(1000), now.heads, now.known)):
        inside = Inside(problem, segment)
        for part in parts:
            key = inside.looks(part)
            for ticks in () if key in known else inside.bounds(part):
                known[key] = max(ticks, known.get(key, 0))
                yield 0
            found[segment] = max(known.get(key, 0), found.get(segment, 0))
        fresh += 1
        if 2 * fresh > len(found):
            fresh = 0
            yield _useful(graph, found, evidence())
    yield _useful(graph, found, evidence())


def _useful(graph: SegmentGraph, found: dict[Segment, int], now: Evidence) -> list[Delay]:
    """Return the delays that could help to pass what is known."""
    chosen = graph.worthwhile(found, now.heads, now.known, found.__getitem__)
    return [Delay(segment, found[segment]) for segment in chosen]


class Inside:
    """The ops of a segment, its ends first and last, and the tensors among them, renumbered."""

    def __init__(self, problem: PlacementProblem, segment: Segment) -> None:
        ops = self.ops = (segment.first, *segment.between, segment.last)
        number = {v: i for i, v in enumerate(ops)}
        self.ends = 0, len(ops) - 1
        self.ticks = problem.min_compute[list(ops)].copy()
        self.ticks[[0, -1]] = 0
        self.tensors, self.pins = list[int](), list[list[int]]()
        pointer, tensor = problem.outputs
        for u in ops[:-1]:
            for t in tensor[pointer[u] : pointer[u + 1]].tolist():
                there = [number[v] for v in problem.readers_of(t) if v in number]
                if there:
                    self.tensors.append(t)
                    self.pins.append([number[u], *there])

    def looks(self, part: Partition) -> bytes:
        """Return what makes two segments alike."""
        tables = self.ticks.tolist(), self.pins, part.among(self.tensors).weight.tolist()
        return repr((part.sizes, part.channels, *tables)).encode()

    def bounds(self, part: Partition) -> Iterator[int]:
        """Yield the least ticks that pass, as far as each round shows, without and with flow to the
        ends. To a hundredth: others wait for their turn.
        """
        weight = part.among(self.tensors).weight
        for ends in (), self.ends:
            flow = flows(self.ticks, self.pins, weight, ends)
            yield from best_of_flows(flow, part.least, gain=0.01)
