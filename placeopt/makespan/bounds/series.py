"""Series: parts of a graph of which each comes wholly before the next need their times one after
the other.

Proof. Let every op of a part P come before every op of the next part Q in the graph. In any
schedule no op of Q starts before all of P has ended. So the parts run one after the other, and
each, looked at alone, is a schedule of the problem that keeps its ops and the tensors between them:
it needs at least what that problem needs. A part of a single op is a gate: all that comes after it
waits for its end, and all before it ends before its start. What passes from one gate to the next is
therefore at least what the ops between them need together with both gates, which take no time
there: transfers from the first and to the second count as well, and take turns on their channels.
(Other transfers between parts and lives of tensors are left out, which shortens.) Hence the sum
over the parts is a bound on the makespan; an op of a part starts no earlier than the sum over the
parts before plus its head in its own part, and likewise for tails.

Where the parts are: what comes wholly before all others begins every topological order. Cut one
before its place i. If every op without readers before the cut feeds every op without producers
behind it, all before come before all behind, since each leads to one of the former, or is one, and
each behind follows one of the latter. And so it must be: a path from one of the former goes behind
the cut at once, and one of the latter is entered from before the cut. Op u at place p has no reader
before the cut where p < i <= f, the place of its first reader; op v at q no producer behind it
where l < i <= q, with its last producer at l; the edge (u, v) joins two such where l < i <= f. So
three counts of intervals, in the time of a look at every edge, tell all cuts: there are as many
edges of that kind as pairs.

What it adds: a part is a smaller problem, which an exact search closes where the whole is too large
for it; other bounds lose a little at every cut, where all devices wait for the last op of a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.makespan.bounds.relaxation import INFINITE, Relaxation
from placeopt.model.arrays import (
    Flags,
    Ints,
    distinct,
    place_in,
    row_at,
    running_sums,
    stable_order,
)
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.makespan.bounds.communication import HeadsTails


class Place(NamedTuple):
    """A part of a graph, with the gates beside it.

    Attributes
    ----------
    own : which of the ops are the part's own.
    """

    ops: Ints
    own: Flags

    @property
    def members(self) -> Ints:
        """The ops of the part."""
        return self.ops[self.own]


def series_parts(relaxation: Relaxation, fewest_ops: int = 3) -> list[Place]:
    """Return the parts in their order; nothing if fewer than two have something to find.

    Parameters
    ----------
    fewest_ops : ops of a part that can need more than its longest path.
    """
    if relaxation.problem.num_devices < 2:
        return []
    order = relaxation.problem.topological_order
    parts = np.split(order, _cuts(relaxation, place_in(order)))
    return _with_gates(parts) if sum(len(part) >= fewest_ops for part in parts) > 1 else []


def _cuts(relaxation: Relaxation, place: Ints) -> Ints:
    """Return the places of a topological order before which it is cut."""
    n = relaxation.num_ops
    u, v = np.divmod(distinct(place[relaxation.source] * n + place[relaxation.target]), n)
    first, last, places = np.full(n, n), np.full(n, -1), np.arange(n)
    np.minimum.at(first, u, v)
    np.maximum.at(last, v, u)
    pairs = _covering(places, first) * _covering(last, places)
    return np.flatnonzero(_covering(last[v], first[u], n) == pairs) + 1


def _covering(begin: Ints, end: Ints, count: int | None = None) -> Ints:
    """Return in how many intervals begin < i <= end each i in 1..count-1 is."""
    size = len(begin) if count is None else count
    some = begin < end
    changes = np.bincount(begin[some] + 1, minlength=size + 2)
    changes -= np.bincount(end[some] + 1, minlength=size + 2)
    return np.cumsum(changes)[1:size]


def _with_gates(parts: Sequence[Ints]) -> list[Place]:
    """Return the parts with their gates: the single op of the part before, and of the part after,
    where they are single and the part is not.
    """
    found = []
    for i, part in enumerate(parts):
        beside = [x for x in (*parts[max(0, i - 1) : i], *parts[i + 1 : i + 2]) if len(x) == 1]
        ops = np.sort(np.concatenate((part, *beside) if len(part) > 1 else (part,)))
        found.append(Place(ops, np.isin(ops, part)))
    return found


def part_problem(problem: PlacementProblem, place: Place) -> PlacementProblem:
    """Return the problem of a part and the tensors between its ops and gates, without lives of
    tensors; gates take no time.
    """
    ops, own = place
    outputs = problem.outputs
    tensors = np.sort(_rows(outputs.pointer, outputs.tensor, ops))
    readers = _rows(problem.consumer_ptr, problem.consumer, tensors)
    row = np.repeat(np.arange(len(tensors)), np.diff(problem.consumer_ptr)[tensors])
    number = np.minimum(np.searchsorted(ops, readers), len(ops) - 1)
    inside = ops[number] == readers
    kept, counts = np.unique(row[inside], return_counts=True)
    tensors = tensors[kept]
    return PlacementProblem(
        name=f"part of {problem.name}",
        compute=np.where(own[:, None], problem.compute[ops], np.minimum(problem.compute[ops], 0)),
        producer=np.searchsorted(ops, problem.producer[tensors]),
        consumer_ptr=running_sums(counts),
        consumer=number[inside],
        transfer=problem.transfer[tensors],
        link_class=problem.link_class,
        channel=problem.channel,
        resident=problem.resident[ops],
        capacity=problem.capacity,
        colocation=problem.colocation[ops],
        tick_seconds=problem.tick_seconds,
    )


def _rows(pointer: Ints, flat: Ints, rows: Ints) -> Ints:
    """Return what some rows of a CSR table hold, one after the other."""
    return np.concatenate([flat[:0], *(row_at(flat, pointer, i) for i in rows.tolist())])


def part_looks(problem: PlacementProblem, place: Place) -> bytes:
    """Return what makes two parts alike, from the problem of a part: their ops have the same costs,
    tensors and gates in the same order.
    """
    arrays = (problem.compute, problem.producer, problem.consumer_ptr, problem.consumer)
    more = (problem.transfer, problem.resident, problem.units.unit, place.own)
    return b"".join(np.ascontiguousarray(array).tobytes() for array in (*arrays, *more))


def heads_in_series(
    whole: Analysis, parts: Sequence[Place], inner: Sequence[Analysis], least: Sequence[int]
) -> HeadsTails:
    """Return the heads and tails of a problem raised by its parts.

    Devices of one class of the whole may differ in a part, whose own tensors say which links are
    cheap: the least of theirs holds for all.

    Parameters
    ----------
    inner, least : what is known of the problem of each part, and the ticks that it needs at least.
    """
    head, tail = whole.heads.head.copy(), whole.heads.tail.copy()
    before, after = 0, sum(least)
    for place, part, ticks in zip(parts, inner, least, strict=True):
        after -= ticks
        members = place.members
        for found, inside, beyond in zip(
            (head, tail), part.device_heads_tails(part.heads), (before, after), strict=True
        ):
            there = whole.relaxation.least_by_class(inside[place.own])
            off = (found[members] < 0) | (there >= INFINITE)
            raised = np.maximum(found[members], there + beyond)
            found[members] = np.where(off, found[members], raised)
        before += ticks
    return whole.heads._replace(head=head, tail=tail)


def placement_in_series(
    problem: PlacementProblem, parts: Sequence[Place], placements: Sequence[Placement]
) -> Placement:
    """Return the placement that runs each part as its own placement does, one part after the other.

    The devices of a part may be others of a class of identical ones: it begins with its gate where
    the part before has it. Where the two have it in different classes it goes where its own part,
    that of the gate alone, has it.
    """
    position = np.argsort(problem.topological_order)
    device, sequence = np.empty(problem.num_ops, np.int64), []
    kind, settled = np.empty(problem.num_devices, np.int64), np.zeros(problem.num_ops, np.bool_)
    for members in problem.identical_devices:
        kind[list(members)] = members[0]
    for (ops, own), placement in zip(parts, placements, strict=True):
        device[ops[own]] = placement.device[own]
    for (ops, own), placement in zip(parts, placements, strict=True):
        there, known = placement.device, settled[ops]
        for a, b in zip(there[known & ~own], device[ops[known & ~own]], strict=True):
            if kind[a] == kind[b]:
                there = np.select([there == a, there == b], [b, a], there)
        new = ~known & (own | (kind[there] == kind[device[ops]]))
        device[ops[new]], settled[ops[new]] = there[new], True
        rank = position[ops] if placement.priority is None else placement.priority
        order = stable_order(rank)
        sequence.append(ops[order][own[order]])
    return Placement(device, np.argsort(np.concatenate(sequence)))


def restricted(placement: Placement, ops: Ints) -> Placement:
    """Return the placement of a part's ops."""
    priority = None if placement.priority is None else placement.priority[ops]
    return Placement(placement.device[ops], priority)
