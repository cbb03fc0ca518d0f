r"""A walk over the orders of blocks on devices to patterns of shorter periods.

What a pattern decides is, for any two instances i and j of a device, a whole number h_ij: how many
repetitions j runs ahead of the i that it waits for. Starts and a period P fit these *heights* if

    S_j >= S_i + span_i - P h_ij  and  S_i >= S_j + span_j - P (1 - h_ij)

beside the precedences, whose heights are 0. So the least P is the largest ratio of ticks to heights
of a circle of such arcs, and a circle that reaches it is *critical*: only who changes one of its
heights shortens the period. A step raises the height of a critical arc from i to j by one (j no
longer waits for this i but for the one before, and i, in turn, for j), as van Laarhoven and others
exchange critical operations of job shops [1]_. Memory right after c starts is
sum_i m_i (1 - h_ic), so an exchange changes it in two places; what passes a capacity is not done.

A device runs its instances one after the other, over and over: the arcs from each to the next one
add up to those of all other pairs, so only these are looked at. Instances that share several
devices change places once they are neighbours on all of them: before that, what lies between is
exchanged with the target or with the source, one after the other.

Annealing takes a step to a longer period with the probability exp(-increase / temperature). The
temperature falls from the mean increase of a step to nothing, in proportion to the effort left;
that of steps not taken is as much of it as was seen, and a mean span counts as the first one.

References
----------
.. [1] P. J. M. van Laarhoven, E. H. L. Aarts, J. K. Lenstra, "Job shop scheduling by simulated
annealing", Operations Research 40(1), 1992.
.. [2] A. Dasdan, "Experimental analysis of the fastest optimum cycle ratio and mean algorithms",
ACM Transactions on Design Automation of Electronic Systems 9(4), 2004 (from circle to circle).
.. [3] C. Hanen, "Study of a NP-hard cyclic scheduling problem: the recurrent job-shop", EJOR 72(1),
1994 (heights).
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import (
    Ints,
    as_pairs,
    csr,
    pointers,
    positions,
    stable_order,
    true_places,
)
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.model.random_bits import below, uniform
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import Repetend

MOST_TICKS = np.int64(2**62)


class Arcs(NamedTuple):
    """S[target] >= S[source] + ticks - P height: two arcs for each pair of a device, 2 k and
    2 k + 1, then the precedences.
    """

    source: Ints
    target: Ints
    ticks: Ints
    height: Ints
    shared: Ints  # devices that the ends have in common, of arcs of pairs
    looked_at: Ints  # arcs between neighbours on a device, and precedences, by initial starts


class Uses(NamedTuple):
    """Instances on devices, each a use, and who runs next there: the others follow from these.

    The arcs from a use to the others of its device are `arc[row + rank of the other]`.
    """

    use_ptr: Ints  # uses of each instance
    instance: Ints
    device: Ints
    row: Ints
    rank: Ints  # number on its device
    arc: Ints
    after: Ints  # the use that runs next
    before: Ints
    slot: Ints  # place in `Arcs.looked_at` of the arc to the next one


class Rows(NamedTuple):
    """Memory of a device right after an instance starts: row r says sum of amount (1 - height) over
    its arcs <= room.
    """

    row_ptr: Ints  # rows of each instance
    room: Ints
    entry_ptr: Ints  # arcs of each row
    arc: Ints
    amount: Ints


class Walk(NamedTuple):
    """Starts and a critical circle at a period, and room to find them."""

    start: Ints  # (num_instances,) ticks
    circle: Ints  # arcs
    before: Ints  # (num_instances,) arc that decides a start
    mark: Ints


def tighten(problem: PipelineProblem, pattern: Repetend) -> Repetend:
    """Return the pattern of least period with the same order on every device and the same indices
    k.
    """
    return walk(problem, pattern, np.array([128, 128, 128]), 0, 0)


def walk(
    problem: PipelineProblem, pattern: Repetend, state: Ints, low: int, effort: int
) -> Repetend:
    """Return the pattern of the shortest period on a walk that begins with a pattern.

    Parameters
    ----------
    state : of the random numbers (`placeopt.model.random_bits`).
    low : ticks; a pattern of such a period ends the walk.
    effort : how many arcs may be looked at.
    """
    arcs, uses, of = _arcs(problem, pattern)
    if not len(arcs.source):
        return pattern
    rows = _rows(problem, pattern.size, of)
    low = max(low, int(problem.span.max()), int(problem.work.max()) * pattern.size)
    period, start = _walk(arcs, uses, rows, state, low, effort)
    return Repetend(period, start.reshape(pattern.start.shape))


def _arcs(
    problem: PipelineProblem, pattern: Repetend
) -> tuple[Arcs, Uses, dict[tuple[int, int], int]]:
    """Return the arcs and uses of a pattern, and the numbers of the arcs of pairs."""
    size, start = pattern.size, pattern.start.ravel()
    span = np.tile(problem.span, size)
    here = [problem.instances_on(d, size) for d in range(problem.num_devices)]
    shared = Counter(pair for each in here for pair in itertools.combinations(each, 2))
    pairs = sorted(shared)
    both = as_pairs([(i, j, j, i) for i, j in pairs])
    edges = np.array(problem.edges_of(size), np.int64).reshape(-1, 3)
    i, j = both[::2].T
    ahead = -((start[j] - start[i] - span[i]) // pattern.period)
    heights = np.column_stack([ahead, 1 - ahead]).ravel()
    source, target = map(np.ascontiguousarray, np.concatenate([both, edges[:, :2]]).T)
    of = {(u, v): number for number, (u, v) in enumerate(both.tolist())}
    uses, neighbours = _uses(here, of, start % pattern.period, len(start))
    looked_at = np.append(neighbours, np.arange(len(both), len(source)))
    place = stable_order(start[source[looked_at]])
    uses.slot[np.flatnonzero(uses.after != np.arange(len(uses.after)))] = np.argsort(place)[
        : len(neighbours)
    ]
    arcs = Arcs(
        source,
        target,
        np.concatenate([span[both[:, 0]], edges[:, 2]]),
        np.concatenate([heights, np.zeros(len(edges), np.int64)]),
        np.repeat(np.array([shared[pair] for pair in pairs], np.int64), 2),
        looked_at[place],
    )
    return arcs, uses, of


def _uses(
    here: list[list[int]], of: dict[tuple[int, int], int], begin: Ints, num_instances: int
) -> tuple[Uses, Ints]:
    """Return the uses of devices with these instances, which begin at these ticks of a period, and
    the arcs from each use to the next one where there is another.
    """
    found = sorted((i, d) for d, each in enumerate(here) for i in each)
    number = positions(found)
    instance, device = as_pairs(found).T.copy()
    after, before, row, rank = (np.zeros(len(found), np.int64) for _ in range(4))
    arc: list[int] = []
    for d, each in enumerate(here):
        turns = sorted(each, key=lambda i: int(begin[i]))
        for i, following in zip(turns, [*turns[1:], *turns[:1]], strict=True):
            after[number[i, d]], before[number[following, d]] = number[following, d], number[i, d]
        for at, i in enumerate(each):
            row[number[i, d]], rank[number[i, d]] = len(arc), at
            arc += [of.get((i, j), -1) for j in each]
    arcs = np.array(arc, np.int64)
    use_ptr = pointers(instance, num_instances)
    uses = Uses(use_ptr, instance, device, row, rank, arcs, after, before, np.zeros_like(row))
    neighbours = arcs[row + rank[after]] if len(found) else arcs
    return uses, neighbours[neighbours >= 0]


def _rows(problem: PipelineProblem, size: int, of: dict[tuple[int, int], int]) -> Rows:
    """Return a row for each device that an instance takes memory of."""
    b = problem.num_blocks
    found: list[tuple[int, int, list[int], list[int]]] = []
    for d in true_places(problem.limited):
        memory, capacity = np.tile(problem.memory[:, d], size).tolist(), int(problem.capacity[d])
        changing = [i for i in problem.instances_on(d, size) if memory[i]]
        for c in changing:
            if memory[c] > 0:
                others = [i for i in changing if i != c]
                arcs, amounts = [of[i, c] for i in others], [memory[i] for i in others]
                found.append((c, capacity - memory[c], arcs, amounts))
    found.sort(key=lambda row: row[0])
    instance, room = as_pairs([row[:2] for row in found]).T
    entry_ptr, arc = csr([row[2] for row in found])
    _, amount = csr([row[3] for row in found])
    row_ptr = pointers(instance, size * b)
    return Rows(row_ptr, np.ascontiguousarray(room), entry_ptr, arc, amount)


@entry
def _walk(
    arcs: Arcs, uses: Uses, rows: Rows, state: Ints, low: int, effort: int
) -> tuple[np.int64, Ints]:
    """Return the least period that was reached and starts that have it."""
    num_instances = len(uses.use_ptr) - 1
    now, trial = _nothing_yet(num_instances), _nothing_yet(num_instances)
    period, length, used = _least_period(arcs, now, np.int64(low), MOST_TICKS)
    best, increase, steps = period, arcs.ticks.mean(), 1
    moves = np.empty(len(uses.after), np.int64)
    best_height, best_looked_at = arcs.height.copy(), arcs.looked_at.copy()
    while used < effort and best > low:
        arc = _any_exchanged(arcs, now, length, state)
        if arc < 0:
            break
        used += length
        count = _pass(arcs, uses, arc, below(state, 2) == 0, moves)
        used += count
        if count == 0:
            continue
        fits = True
        for at in range(count):
            fits &= _fits(arcs, rows, arcs.target[moves[at]])
            fits &= _fits(arcs, rows, arcs.source[moves[at]])
        if not fits:
            _take_back(arcs, uses, moves, count)
            continue
        temperature = increase / steps * max(0.0, 1 - used / effort)
        most = period - np.int64(temperature * np.log(1 - uniform(state)))
        # The circle is still there
        least = max(np.int64(low), _ratio(arcs, now, length))
        trial.start[:] = now.start - now.start.min()
        found, circle, looked = _least_period(arcs, trial, least, most)
        used += looked
        if period < found < MOST_TICKS:
            increase, steps = increase + found - period, steps + 1
        if found > most:
            _take_back(arcs, uses, moves, count)
            continue
        period = found
        now.start[:] = trial.start
        if circle:
            length = circle
            now.circle[:length] = trial.circle[:length]
        if period < best:
            best, best_height[:], best_looked_at[:] = period, arcs.height, arcs.looked_at
    arcs.height[:], arcs.looked_at[:] = best_height, best_looked_at
    now.start[:] = 0
    _least_period(arcs, now, best, MOST_TICKS)
    return best, now.start


@inner_kernel
def _nothing_yet(num_instances: int) -> Walk:
    return Walk(
        np.zeros(num_instances, np.int64),
        np.empty(num_instances, np.int64),
        np.empty(num_instances, np.int64),
        np.empty(num_instances, np.int64),
    )


@inner_kernel
def _exchange(arcs: Arcs, uses: Uses, arc: int) -> bool:
    """Let the target of an arc run before its source; False if others run between them somewhere,
    which would wait for themselves.
    """
    i, j, together = arcs.source[arc], arcs.target[arc], 0
    for u in row_of(uses.use_ptr, i):
        together += uses.instance[uses.after[u]] == j
    if together < arcs.shared[arc]:
        return False
    arcs.height[arc] += 1
    arcs.height[arc ^ 1] -= 1
    for u in row_of(uses.use_ptr, i):
        v = uses.after[u]
        first, last = uses.before[u], uses.after[v]
        if uses.instance[v] == j and last != u:
            _link(arcs, uses, first, v)
            _link(arcs, uses, v, u)
            _link(arcs, uses, u, last)
    return True


@inner_kernel
def _pass(arcs: Arcs, uses: Uses, arc: int, back: bool, moves: Ints) -> int:
    """Let the target of an arc run before its source, and before what runs between them on some
    device (`back`), or let the source run after all that; return the number of exchanges, 0 if one
    is impossible.
    """
    i, j = arcs.source[arc], arcs.target[arc]
    for count in range(len(moves)):
        if _exchange(arcs, uses, arc):
            moves[count] = arc
            return count + 1
        step = _between(uses, i, j, back)
        if step < 0 or not _exchange(arcs, uses, step):
            _take_back(arcs, uses, moves, count)
            return 0
        moves[count] = step
    _take_back(arcs, uses, moves, len(moves))
    return 0


@inner_kernel
def _between(uses: Uses, i: int, j: int, back: bool) -> int:
    """Return the arc from the one before j to j, or from i to the one after it, on a device that
    has others between them.
    """
    for u in row_of(uses.use_ptr, i):
        for v in row_of(uses.use_ptr, j):
            if uses.device[u] == uses.device[v] and uses.after[u] != v:
                first = uses.before[v] if back else u
                return uses.arc[uses.row[first] + uses.rank[uses.after[first]]]
    return -1


@inner_kernel
def _take_back(arcs: Arcs, uses: Uses, moves: Ints, count: int) -> None:
    for at in range(count - 1, -1, -1):
        _exchange(arcs, uses, moves[at] ^ 1)


@inner_kernel
def _link(arcs: Arcs, uses: Uses, u: int, v: int) -> None:
    """Let use v run right after u."""
    uses.after[u], uses.before[v] = v, u
    arcs.looked_at[uses.slot[u]] = uses.arc[uses.row[u] + uses.rank[v]]


@inner_kernel
def _any_exchanged(arcs: Arcs, now: Walk, length: int, state: Ints) -> int:
    """Return any arc of a pair on the critical circle, -1 if there is none."""
    count = 0
    for at in range(length):
        count += now.circle[at] < len(arcs.shared)
    left = below(state, count)
    for at in range(length):
        if now.circle[at] < len(arcs.shared):
            if left == 0:
                return now.circle[at]
            left -= 1
    return -1


@inner_kernel
def _fits(arcs: Arcs, rows: Rows, instance: int) -> bool:
    """Whether memory suffices right after an instance starts."""
    for r in row_of(rows.row_ptr, instance):
        held = 0
        for e in row_of(rows.entry_ptr, r):
            held += rows.amount[e] * (1 - arcs.height[rows.arc[e]])
        if held > rows.room[r]:
            return False
    return True


@inner_kernel
def _ratio(arcs: Arcs, walk: Walk, length: int) -> np.int64:
    """Return the least whole period that a circle allows, MOST_TICKS if none is enough."""
    ticks, height = np.int64(0), np.int64(0)
    for at in range(length):
        arc = walk.circle[at]
        ticks += arcs.ticks[arc]
        height += arcs.height[arc]
    return -(-ticks // height) if height > 0 else MOST_TICKS


@inner_kernel
def _least_period(
    arcs: Arcs, trial: Walk, period: np.int64, most: np.int64
) -> tuple[np.int64, int, int]:
    """Find the least period from `period` on for which starts exist, from circle to circle.

    Return it, the length of the last circle, and how many arcs were looked at; some period above
    `most` as soon as it is known to be.
    """
    length, looked = 0, 0
    trial.before[:] = -1
    while period <= most:
        moved = False
        for e in arcs.looked_at:
            at = trial.start[arcs.source[e]] + arcs.ticks[e] - period * arcs.height[e]
            if at > trial.start[arcs.target[e]]:
                trial.start[arcs.target[e]] = at
                trial.before[arcs.target[e]] = e
                moved = True
        looked += len(arcs.looked_at)
        if not moved:
            break
        found = _circle(arcs, trial)
        if found:
            length = found
            period = _ratio(arcs, trial, length)
            trial.before[:] = -1
    return period, length, looked


@inner_kernel
def _circle(arcs: Arcs, trial: Walk) -> int:
    """Find a circle of arcs that decide each other's starts; return its length, 0 if there is
    none.
    """
    trial.mark[:] = -1
    for first in range(len(trial.mark)):
        at = first
        while trial.mark[at] < 0:
            trial.mark[at] = first
            if trial.before[at] < 0:
                break
            at = arcs.source[trial.before[at]]
        else:
            if trial.mark[at] == first:
                length, end = 0, at
                while length == 0 or at != end:
                    trial.circle[length] = trial.before[at]
                    length += 1
                    at = arcs.source[trial.before[at]]
                return length
    return 0
