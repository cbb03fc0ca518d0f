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

Who sends how much is free, as long as a unit is worth so much work: ops send what they work to all
others, to both ends besides, or to one op above all, the hub, which many branches part from or meet
at. With nothing else sent, S the ops on the hub's island, of k devices, and c(S) the ticks of the
tensors that leave it, p(S) <= k D and c(S) <= N D, so for any factor x

    (N + k x) D >= c(S) + x p(S) >= F(x),

the largest flow from the hub to the ops through tensors, of which op v takes x p_v at most: a
minimum cut. What the ops take of the flow for the best x, divided by x, is what they send.

What it adds: loads and paths know nothing of two transfers that wait for one another.

References
----------
G. Gallo, M. D. Grigoriadis, R. E. Tarjan, "A fast parametric maximum flow algorithm and
applications", SIAM Journal on Computing 18(1), 1989 (least cuts whose ends pay by a factor).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain, zip_longest
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from placeopt.makespan.bounds.relaxation import islands
from placeopt.makespan.bounds.segment_graph import Delay, Evidence, Segment, SegmentGraph, too_large
from placeopt.model.arrays import Ints, positions, row_at, stable_order
from placeopt.model.problem import PlacementProblem
from placeopt.model.uniform_flow import Flow, best_of_flows, flows

Pins = Sequence[Sequence[int]]
"""Parts that each tensor touches."""


PULL = 2**8
"""How much more is sent to a hub than to all others, which costs a share of a hundredth: the units
of a thousand rounds stay below 2^63."""

MOST_FLOW = 2**40
"""Units of all that a hub's tensors carry: rounding costs a share of 2^-40 for each op and tensor,
and the sum of all arcs stays below 2^63."""


class Sending(NamedTuple):
    """Who sends how much to whom, beside all to all.

    Attributes
    ----------
    ticks : of each op, at most its work. ends, pull : as for `flows`.
    """

    ticks: Ints
    ends: tuple[int, ...] = ()
    pull: int = 1

    def flows(self, part: Partition, pins: Pins, *, kept: bool = False) -> Iterator[Flow]:
        """Yield the flows between the islands of a partition."""
        return flows(self.ticks, pins, part.weight, self.ends, pull=self.pull, kept=kept)


class Hub(NamedTuple):
    """A bound by what is sent to a hub, and flow in rounds that shows about as much."""

    bound: int
    sending: Sending


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
        low, high = 0, max(1, math.ceil(flow.units * flow.per_unit))
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
    problem: PlacementProblem,
    evidence: Callable[[], Evidence],
    end: float,
    *,
    written: bool = False,
) -> Iterator[int | list[Delay]]:
    """Yield bounds by flows to hubs; by turns after every round of a flow between all ops, and
    delays of segments by hubs, those with most ops first, 0 while there are none; then delays by
    other flows.

    Parameters
    ----------
    evidence : what is known now. end : as for `SegmentGraph`.
    written : whether only flows count that a proof can write down: to hubs in rounds, too.
    """
    parts = partitions(problem)
    if not parts:
        return
    ticks, pins = problem.min_compute, pins_of(problem)
    segments = Segments(problem, parts, evidence, end)
    for part in parts:
        yield from hub_bounds(part, ticks, pins, written=written)
    everywhere = (best_bounds(part, pins, [Sending(ticks)], 0.001) for part in parts)
    by_hubs = segments.steps(partial(Inside.to_hubs, written=written))
    for steps in zip_longest(chain.from_iterable(everywhere), by_hubs):
        yield from (step for step in steps if step is not None)
    yield from segments.steps(Inside.to_all)


def pins_of(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """Return the ops of every tensor, its producer first."""
    return [(u, *problem.readers_of(t)) for t, u in enumerate(problem.producer.tolist())]


def best_bounds(part: Partition, pins: Pins, some: Iterable[Sending], gain: float) -> Iterator[int]:
    """Yield the best of the bounds by some flows after each round, which ends as `best_of_flows`
    does.
    """
    best = 0
    for sending in some:
        for found in best_of_flows(sending.flows(part, pins), part.least, gain=gain):
            best = max(best, found)
            yield best


def hub_bounds(part: Partition, ticks: Ints, pins: Pins, *, written: bool) -> Iterator[int]:
    """Yield the best of the bounds by hubs; `written` as for `congestion_steps`."""
    if written:
        yield from best_bounds(part, pins, to_best_hub(part, ticks, pins), 0.01)
        return
    most = 0
    for hub in hubs(part, ticks, pins):
        most = max(most, hub.bound)
        yield most


def to_best_hub(part: Partition, ticks: Ints, pins: Pins) -> Iterator[Sending]:
    """Yield what is sent to the hub that shows most, nothing where none could show more than
    work.
    """
    found = max(hubs(part, ticks, pins), key=attrgetter("bound"), default=None)
    if found is not None:
        yield found.sending


def hubs(part: Partition, ticks: Ints, pins: Pins) -> Iterator[Hub]:
    """Yield the bounds by hubs that could pass what is known by then, at first that the devices
    have to do the work; those whose tensors weigh most first.
    """
    row = np.repeat(np.arange(len(pins)), [len(x) for x in pins])
    pin = np.array([v for x in pins for v in x], np.int64)
    near = np.bincount(pin, part.weight[row], len(ticks))
    best = -(-int(ticks.sum()) // sum(part.sizes))
    for op in stable_order(-near).tolist():
        if near[op] <= part.channels * best:
            return  # no cut weighs more than that around the hub
        found = _to_hub(part, ticks, (row, pin), op)
        best = max(best, found.bound)
        yield found


def _to_hub(
    part: Partition, ticks: Ints, pins: tuple[Ints, Ints], hub: int, *, halvings: int = 16
) -> Hub:
    """Return the best bound by what is sent to a hub.

    Parameters
    ----------
    pins : number of the tensor, and op, of each pin.
    halvings : of the interval of log x, from where all ops take all that they can to where each
    could take all that there is.
    """
    weight, work, near = part.weight.tolist(), ticks.tolist(), pins[0][pins[1] == hub]
    own, work[hub] = work[hub], 0
    most = sum(weight[t] for t in near.tolist())
    low = math.log(min(filter(None, weight)) / max(1, sum(work)))
    high = math.log(most / min(filter(None, work), default=1))
    scale, best = Fraction(MOST_FLOW, most), Hub(0, Sending(ticks))
    carried = _rounded(weight, scale)
    for _ in range(halvings):
        x = Fraction(math.exp((low + high) / 2))
        flow, taken, side = _largest_flow(carried, _rounded(work, scale * x), pins, hub)
        bound = math.ceil((flow / scale + own * x) / (part.channels + part.sizes[0] * x))
        if bound > best.bound:
            sent = np.minimum(ticks, np.rint(taken / float(scale * x)).astype(np.int64))
            best = Hub(bound, Sending(sent, (hub,), PULL))
        here = sum(work[v] for v in side if v < len(work))
        if (own + here) * part.channels > part.sizes[0] * (flow / scale - x * here):
            low = math.log(x)
        else:
            high = math.log(x)
    return best


def _rounded(amounts: list[int], scale: Fraction) -> list[int]:
    """Return amounts on a scale, rounded down; more than the largest flow is as much as that."""
    above, below = scale.numerator, scale.denominator
    return [min(MOST_FLOW, amount * above // below) for amount in amounts]


def _largest_flow(
    carried: list[int], room: list[int], pins: tuple[Ints, Ints], hub: int
) -> tuple[int, Ints, list[int]]:
    """Return the largest flow from a hub, what each op takes of it, and the nodes on the hub's side
    of a least cut, ops first.

    Parameters
    ----------
    carried : by each tensor at most. room : what each op takes at most. pins : as for `_to_hub`.
    """
    from ortools.graph.python.max_flow import SimpleMaxFlow

    (row, pin), n, m = pins, len(room), len(carried)
    entered, left, sink = n + np.arange(m), n + m + np.arange(m), n + 2 * m
    model, wide = SimpleMaxFlow(), np.full(len(row), MOST_FLOW)
    model.add_arcs_with_capacity(pin, entered[row], wide)
    model.add_arcs_with_capacity(entered, left, np.array(carried, np.int64))
    model.add_arcs_with_capacity(left[row], pin, wide)
    arcs = model.add_arcs_with_capacity(np.arange(n), np.full(n, sink), np.array(room, np.int64))
    if model.solve(hub, sink) != SimpleMaxFlow.OPTIMAL:
        return 0, np.zeros(n, np.int64), []
    return model.optimal_flow(), model.flows(arcs), model.get_source_side_min_cut()


@dataclass(eq=False)
class Segments:
    """Delays of segments, found bit by bit.

    Parameters
    ----------
    evidence, end : as for `congestion_steps`.
    """

    problem: PlacementProblem
    parts: list[Partition]
    evidence: Callable[[], Evidence]
    end: float

    def __post_init__(self) -> None:
        self.found: dict[Segment, int] = {}

    def steps(
        self, bounds: Callable[[Inside, Partition], Iterator[int]]
    ) -> Iterator[int | list[Delay]]:
        """Yield the delays as `congestion_steps` does.

        Parameters
        ----------
        bounds : of a segment.
        """
        now = self.evidence()
        if too_large(now.relaxation):
            return
        graph, known, fresh = SegmentGraph(now.relaxation, self.end), dict[bytes, int](), 0
        for segment in reversed(graph.worthwhile(graph.nearest(1000), now.heads, now.known)):
            inside = Inside(self.problem, segment)
            for part in self.parts:
                key = inside.looks(part)
                for ticks in () if key in known else bounds(inside, part):
                    known[key] = max(ticks, known.get(key, 0))
                    yield 0
                self.found[segment] = max(known.get(key, 0), self.found.get(segment, 0))
            fresh += 1
            if 2 * fresh > len(self.found):
                fresh = 0
                yield self._useful(graph)
        yield self._useful(graph)

    def _useful(self, graph: SegmentGraph) -> list[Delay]:
        """Return the delays that could help to pass what is known."""
        now, found = self.evidence(), self.found
        chosen = graph.worthwhile(found, now.heads, now.known, found.__getitem__)
        return [Delay(segment, found[segment]) for segment in chosen]


class Inside:
    """The ops of a segment, its ends first and last, and the tensors among them, renumbered."""

    def __init__(self, problem: PlacementProblem, segment: Segment) -> None:
        ops = self.ops = (segment.first, *segment.between, segment.last)
        number = positions(ops)
        self.ends = 0, len(ops) - 1
        self.ticks = problem.min_compute[list(ops)].copy()
        self.ticks[[0, -1]] = 0
        self.tensors, self.pins = list[int](), list[list[int]]()
        pointer, tensor = problem.outputs
        for u in ops[:-1]:
            for t in row_at(tensor, pointer, u).tolist():
                there = [number[v] for v in problem.readers_of(t) if v in number]
                if there:
                    self.tensors.append(t)
                    self.pins.append([number[u], *there])

    def looks(self, part: Partition) -> bytes:
        """Return what makes two segments alike."""
        tables = self.ticks.tolist(), self.pins, part.among(self.tensors).weight.tolist()
        return repr((part.sizes, part.channels, *tables)).encode()

    def to_all(self, part: Partition) -> Iterator[int]:
        """Yield the least ticks that pass, as far as each round shows, without and with flow to the
        ends. To a hundredth: others wait for their turn.
        """
        some = Sending(self.ticks), Sending(self.ticks, self.ends)
        return best_bounds(part.among(self.tensors), self.pins, some, 0.01)

    def to_hubs(self, part: Partition, *, written: bool) -> Iterator[int]:
        """Yield the least ticks that pass by what is sent to hubs; see `congestion_steps`."""
        inside = part.among(self.tensors)
        return hub_bounds(inside, self.ticks, self.pins, written=written)

    def sendings(self, part: Partition) -> Iterator[Sending]:
        """Yield all that a proof may write down."""
        yield from (Sending(self.ticks), Sending(self.ticks, self.ends))
        yield from to_best_hub(part.among(self.tensors), self.ticks, self.pins)
