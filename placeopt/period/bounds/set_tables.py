"""All sets of nodes of one device that are nearly as dear as the dearest: two tables of labels that
prune each other.

A path of the frontier's graph (`placeopt.period.bounds.set_prices`) is cut in two at every state. A
label of a beginning is a pair (load, price) of some set among the nodes decided so far, one of a
rest the same of the nodes to come; of two labels of a state the one with more load and no more
price is left out. A beginning matters only if some rest within the remaining load makes it as dear
as asked, and the other way round. So the table of the one, with loads in coarse buckets, prunes the
table of the other, in finer ones, and so on: labels in one bucket become one of the smallest load
and the largest price, by which no set is lost. After a few turns both tables are small and nearly
exact, and a depth-first search for the sets themselves, bounded by the rests, meets hardly a dead
end. Loads and prices are integers: nothing is rounded.

References
----------
R. Baldacci, N. Christofides, A. Mingozzi: "An exact algorithm for the vehicle routing problem based
on the set partitioning formulation with additional cuts", Mathematical Programming 115, 2008 (all
columns of small reduced cost). G. Righini, M. Salani: "Symmetry helps: bounded bi-directional
dynamic programming", Discrete Optimization 3, 2006.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Bits, Flags, Ints
from placeopt.model.compiled import inlined, row_of, uncounted_entry
from placeopt.period.bounds.set_prices import FrontierGraph, OutOfTimeError, UndecidedError


@dataclass(frozen=True)
class Room:
    """How fine and how large tables are, and how long they are searched.

    Attributes
    ----------
    bucket_bits : buckets as powers of two, beginnings and rests in turn.
    labels, most_labels : that there is room for, at first and at most.
    nearest : share of the dearest set's price below which no fewer sets are asked for.
    steps, dive : of a depth-first search, and of a short one.
    """

    bucket_bits: tuple[int, ...] = (8, 10, 12, 14, 16, 20)
    labels: int = 1 << 20
    most_labels: int = 1 << 25
    nearest: float = 1e-7
    steps: int = 20_000_000
    dive: int = 100_000


class Table(NamedTuple):
    """Labels of all states (S states, room for L labels), by rising load and price in every
    state.
    """

    load: Ints  # (L,)
    price: Ints  # (L,)
    first: Ints  # (S,) first label of every state
    end: Ints  # (S,) and the one behind its last


class Wanted(NamedTuple):
    """Which sets are wanted (N nodes)."""

    price: Ints  # (N,)
    usable: Flags  # (N,) nodes that may be held
    limit: int  # largest load, ticks
    least: int  # smallest price
    shift: int  # loads that differ beyond this bit only are in different buckets


class Last(NamedTuple):
    """The last bucket of a state's labels, which is not stored yet (all -1 or 0 if there is
    none).
    """

    other: int  # the label across of the largest load that still goes with the bucket's
    bucket: int
    low: int  # its smallest load
    high: int  # its largest price
    top: int  # price of the label stored last


class Walk(NamedTuple):
    """State of a depth-first search along the layers (N nodes)."""

    state: Ints  # (N + 1,)
    load: Ints  # (N + 1,)
    price: Ints  # (N + 1,)
    tried: Ints  # (N + 1,) arcs that were tried
    held: Ints  # (N + 1,) whether the layer's node is held


class NearSets(NamedTuple):
    """Sets of nodes as bits: node v is bit v mod 64 of word v div 64."""

    bits: Bits  # (number, words)
    price: Ints  # (number,)

    def members(self, num_nodes: int) -> Flags:
        """Return a row per set and a column per node."""
        octets = self.bits.astype("<u8").view(np.uint8)
        return np.unpackbits(octets, axis=1, count=num_nodes, bitorder="little").view(np.bool_)


@inlined
def _store(table, count, load, price):
    """Store a label; return the number of labels."""
    table.load[count], table.price[count] = load, price
    return count + 1


@inlined
def _take(want, across, s, table, count, last, ticks, worth):
    """Take a label of a state, by rising load: store the bucket before where it opens a new one,
    nothing where no set needs it.

    `across` holds the labels that complete it. Return the number of labels stored, and the last
    bucket; no later label matters once its `other` is before the state's first.
    """
    other, bucket, low, high, top = last
    if worth > high and worth > top:
        while other >= across.first[s] and across.load[other] > want.limit - ticks:
            other -= 1
        if other >= across.first[s] and across.price[other] + worth >= want.least:
            if ticks >> want.shift != bucket:
                if high > top:
                    count, top = _store(table, count, low, high), high
                bucket, low = ticks >> want.shift, ticks
            high = worth
    return count, Last(other, bucket, low, high, top)


@uncounted_entry
def rests(graph, want, beginnings, table):
    """Fill the table of the rests from the last layer on; return the number of labels, -1 without
    room.
    """
    layers, count = len(graph.order), 0
    for s in row_of(graph.layer, layers):
        table.first[s] = count
        count = _store(table, count, 0, 0)
        table.end[s] = count
    for i in range(layers - 1, -1, -1):
        v = graph.order[i]
        for s in row_of(graph.layer, i):
            table.first[s] = table.end[s] = count
            out, held = graph.target[0, s], graph.target[1, s]
            a, a_end, b = table.first[out], table.end[out], table.first[held]
            b_end = table.end[held] if want.usable[v] else b
            if count + a_end - a + b_end - b > len(table.load):
                return -1
            last = Last(beginnings.end[s] - 1, -1, 0, -1, -1)
            while a < a_end or b < b_end:  # by rising load
                if b >= b_end or (
                    a < a_end
                    and table.load[a] + graph.ticks[0, s] <= table.load[b] + graph.ticks[1, s]
                ):
                    ticks, worth = table.load[a] + graph.ticks[0, s], table.price[a]
                    a += 1
                else:
                    ticks, worth = table.load[b] + graph.ticks[1, s], table.price[b] + want.price[v]
                    b += 1
                count, last = _take(want, beginnings, s, table, count, last, ticks, worth)
                if last.other < beginnings.first[s]:
                    break
            if last.high > last.top:
                count = _store(table, count, last.low, last.high)
            table.end[s] = count
    return count


@inlined
def _nearest(graph, table, pointer, first_arc, arcs):
    """Which of the arcs into a state has the next label by load, -1 where none has one."""
    best, least = -1, 0
    for j in range(arcs):
        if pointer[0, j] < pointer[1, j]:
            arc = graph.arc[first_arc + j]
            ticks = table.load[pointer[0, j]] + graph.ticks[arc & 1, arc >> 1]
            if best < 0 or ticks < least:
                best, least = j, ticks
    return best, least


@inlined
def _open_arcs(graph, want, table, pointer, state, node):
    """Point to the labels at the beginnings of the arcs into a state; return how many labels there
    are.
    """
    total = 0
    for j in range(graph.arc_ptr[state + 1] - graph.arc_ptr[state]):
        arc = graph.arc[graph.arc_ptr[state] + j]
        source = arc >> 1
        pointer[0, j] = pointer[1, j] = table.first[source]
        if arc & 1 == 0 or want.usable[node]:
            pointer[1, j] = table.end[source]
        total += pointer[1, j] - pointer[0, j]
    return total


@uncounted_entry
def beginnings(graph, want, rest, table, pointer):
    """Fill the table of the beginnings from the first layer on; return the number of labels, -1
    without room.
    """
    table.first[0] = 0
    count = _store(table, 0, 0, 0)
    table.end[0] = count
    for i in range(len(graph.order)):
        v = graph.order[i]
        for s in range(graph.layer[i + 1], graph.layer[i + 2]):
            table.first[s] = table.end[s] = count
            if count + _open_arcs(graph, want, table, pointer, s, v) > len(table.load):
                return -1
            arcs = graph.arc_ptr[s + 1] - graph.arc_ptr[s]
            last = Last(rest.end[s] - 1, -1, 0, -1, -1)
            while True:
                j, ticks = _nearest(graph, table, pointer, graph.arc_ptr[s], arcs)
                if j < 0:
                    break
                worth = (
                    table.price[pointer[0, j]]
                    + (graph.arc[graph.arc_ptr[s] + j] & 1) * want.price[v]
                )
                pointer[0, j] += 1
                count, last = _take(want, rest, s, table, count, last, ticks, worth)
                if last.other < rest.first[s]:
                    break
            if last.high > last.top:
                count = _store(table, count, last.low, last.high)
            table.end[s] = count
    return count


@inlined
def _within(table, state, room):
    """The dearest rest of a state of at most `room` ticks, -1 without one."""
    low, high = table.first[state] - 1, table.end[state]
    while high - low > 1:
        middle = (low + high) >> 1
        if table.load[middle] <= room:
            low = middle
        else:
            high = middle
    return table.price[low] if low >= table.first[state] else -1


@inlined
def _reach(graph, want, rest, walk, i, held):
    """The price that the walk can reach at most if layer i's node is held or not, -1 if that is not
    possible.
    """
    s = walk.state[i]
    if held == 1 and not want.usable[graph.order[i]]:
        return -1
    more = _within(rest, graph.target[held, s], want.limit - walk.load[i] - graph.ticks[held, s])
    return -1 if more < 0 else walk.price[i] + held * want.price[graph.order[i]] + more


@inlined
def _write(graph, walk, bits, row):
    """Write the set of a whole walk."""
    for k in range(bits.shape[1]):
        bits[row, k] = 0
    for j in range(len(graph.order)):
        if walk.held[j] == 1:
            v = graph.order[j]
            bits[row, v >> 6] |= np.uint64(1) << np.uint64(v & 63)


@uncounted_entry
def list_sets(graph, want, rest, walk, bits, price, raising, most_steps):
    """Write all sets that are wanted, with `raising` the dearest alone; return (sets met, whether
    none is missing).
    """
    layers, count, steps, least, i = len(graph.order), 0, 0, want.least, 0
    walk.state[0] = walk.load[0] = walk.price[0] = walk.tried[0] = 0
    while i >= 0:
        if i == layers:
            if not raising and count == len(price):
                return count, False
            row = 0 if raising else count
            _write(graph, walk, bits, row)
            price[row] = walk.price[i]
            least = walk.price[i] + 1 if raising else least
            count, i = count + 1, i - 1
            continue
        walk.tried[i] += 1
        if walk.tried[i] > 2:
            i -= 1
            continue
        without = _reach(graph, want, rest, walk, i, 0)
        taken = _reach(graph, want, rest, walk, i, 1)
        # what promises more comes first
        held = 1 if (taken >= without) == (walk.tried[i] == 1) else 0
        if (taken if held == 1 else without) < least:
            walk.tried[i] = 2
            continue
        steps += 1
        if steps > most_steps:
            return count, False
        s, v = walk.state[i], graph.order[i]
        walk.held[i] = held
        walk.state[i + 1], walk.tried[i + 1] = graph.target[held, s], 0
        walk.load[i + 1] = walk.load[i] + graph.ticks[held, s]
        walk.price[i + 1] = walk.price[i] + held * want.price[v]
        i += 1
    return count, True


class SetTables:
    """Lists the sets of one device type that are nearly the dearest; what it allocates is kept
    between questions.

    Attributes
    ----------
    deadline : when it gives up (`time.perf_counter`).
    """

    room = Room()

    def __init__(self, graph: FrontierGraph, deadline: float) -> None:
        self.graph, self.deadline = graph, deadline
        layers, states = len(graph.order), int(graph.layer[-1])
        self._pointer = np.zeros((2, int(np.diff(graph.arc_ptr).max())), np.int64)
        self._walk = Walk(*np.zeros((len(Walk._fields), layers + 1), np.int64))
        self._begin, self._rest = (_table(states, max(self.room.labels, states)) for _ in range(2))
        self._want = Wanted(np.zeros(layers, np.int64), np.zeros(layers, np.bool_), 0, 1, 0)

    def prepare(
        self,
        price: Ints,
        usable: Flags,
        limit: int,
        least: int,
        *,
        near: float = 0.0,
        dear: int = 0,
    ) -> bool:
        """Make the tables for sets within `limit` of price at least `least`; False if there is
        none.

        Parameters
        ----------
        near : if not 0, only the sets that are so near the dearest, relative to its price, are
        wanted; fewer if they are too many.
        dear : price of a set that is known.

        Raises
        ------
        UndecidedError
            If there are too many labels.
        OutOfTimeError
            At the deadline.
        """
        dearest = max(least, int(dear * (1 - near)) if near else 0)
        self._want = Wanted(price, np.ascontiguousarray(usable), limit, dearest, 0)
        states = np.arange(len(self._rest.first))
        left = np.append(np.cumsum(price[self.graph.order][::-1])[::-1], 0)
        self._rest.load[: len(states)] = 0  # at first any rest may be everything, at no load
        self._rest.price[: len(states)] = np.repeat(left, np.diff(self.graph.layer))
        self._rest.first[:], self._rest.end[:] = states, states + 1
        for turn, bits in enumerate(self.room.bucket_bits):
            while (count := self._fill(turn % 2 == 1, max(0, limit.bit_length() - bits))) < 0:
                if near < self.room.nearest:
                    raise UndecidedError
                near /= 4
                self._ask_for(int(dear * (1 - near)))
            if count == 0:
                self._rest.end[0] = self._rest.first[0]
                return False
            if near and turn % 2 == 1:
                found, _ = self._list(
                    1, max(dear + 1, self._want.least), raising=True, steps=self.room.dive
                )
                dear = max(dear, *found.price.tolist(), 0)
                self._ask_for(int(dear * (1 - near)))
        return True

    def _ask_for(self, least: int) -> None:
        self._want = self._want._replace(least=max(least, self._want.least))

    def dearest(self) -> int:
        """Return a price that no set exceeds: of those prepared the dearest's, where that is
        found.
        """
        found, whole = self._list(1, self._want.least, raising=True)
        best = int(found.price[0]) if len(found.price) else self._want.least - 1
        first, end = int(self._rest.first[0]), int(self._rest.end[0])
        most = int(self._rest.price[end - 1]) if end > first else self._want.least - 1
        return best if whole else max(best, most)

    def near(self, least: int, most: int) -> NearSets | None:
        """Return all sets of price at least `least` (not below what was prepared); None if more
        than `most` or too many steps.
        """
        found, whole = self._list(most, max(least, self._want.least))
        return found if whole else None

    def some(self, least: int, most: int) -> NearSets:
        """Return sets of price at least `least`, `most` of them or all that were met in a while."""
        return self._list(most, max(least, self._want.least))[0]

    def _list(
        self, most: int, least: int, *, raising: bool = False, steps: int | None = None
    ) -> tuple[NearSets, bool]:
        words, steps = (len(self.graph.order) + 63) // 64, steps or self.room.steps
        bits, price = np.zeros((most, words), np.uint64), np.zeros(most, np.int64)
        if self._rest.first[0] == self._rest.end[0]:
            return NearSets(bits[:0], price[:0]), True
        want = self._want._replace(least=least)
        count, whole = list_sets(
            self.graph, want, self._rest, self._walk, bits, price, raising, np.int64(steps)
        )
        return NearSets(bits[: min(count, most)], price[: min(count, most)]), bool(whole)

    def _fill(self, backward: bool, shift: int) -> int:
        """Fill one of the tables, with more room where it needs some; return the labels of whole
        paths, -1 if all are too many.
        """
        want = self._want._replace(shift=shift)
        while True:
            if time.perf_counter() >= self.deadline:
                raise OutOfTimeError
            if backward:
                table, state = self._rest, 0
                count = rests(self.graph, want, self._begin, table)
            else:
                table, state = self._begin, -1
                count = beginnings(self.graph, want, self._rest, table, self._pointer)
            if count >= 0:
                return int(table.end[state] - table.first[state])
            if 2 * len(table.load) > self.room.most_labels:
                return -1
            larger = _table(len(table.first), 2 * len(table.load))
            if backward:
                self._rest = larger
            else:
                self._begin = larger


def _table(states: int, room: int) -> Table:
    return Table(*np.empty((2, room), np.int64), *np.zeros((2, states), np.int64))
