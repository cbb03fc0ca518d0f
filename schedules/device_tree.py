r"""Decides a period by dynamic programming over the devices, where these form a tree.

Draw a line between two devices when a precedence leads from a block of one to a block of the other.
If every block runs on one device and the lines form a forest (V and X: a path), devices on two
sides of a device know of each other only through that device's own blocks. So list, for every
device, its *local patterns*: the starts of its blocks that keep them apart modulo P, respect the
longest paths between them, and fit into memory. Then walk from the leaves to the root and keep a
device's local pattern only if every child has a surviving local pattern that agrees with it. The
period is feasible if and only if some pattern of every root survives.

A local pattern is taken up to two shifts: all starts may move by any rho (first block at 0), and
the starts of one connected part of the precedence graph may move by a multiple of P against the
others (micro-batches of the parts are numbered independently). Two patterns agree if for some rho
every part c has a whole x_c with

    lo_c <= rho + x_c P <= hi_c,

where lo_c collects the precedences towards the child and hi_c those back from it: arcs of the
circle of P ticks that must have a point in common, and if they have one, the beginning of one of
them is such a point.

Memory bounds the list. While one micro-batch has begun on a device and not ended there, it holds at
least u units, u > 0 the least that any set of blocks closed under predecessors leaves; so it takes
less than P (floor(capacity / u) + 1) ticks from the first start to the last. Where u = 0, a device
is unlimited, or the list grows too long (spans in nanoseconds, many micro-batches per pattern),
`decide` says that it does not apply.

Of the survivors of a child only those are compared that no other makes needless (`undominated`).

The number of devices enters as a factor only: it proves in milliseconds what a solver of
constraints refutes in a minute, and is a second formulation besides that
(`placeopt.schedules.cyclic`).

References
----------
.. [1] U. Bertele, F. Brioschi, "Nonserial Dynamic Programming", Academic Press 1972 (elimination on
trees).
.. [2] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible
Schedule Search", HPCA
   2024 (the question).
"""

from __future__ import annotations

import itertools
from math import comb, factorial
from typing import Any

import networkx as nx
import numpy as np

from placeopt.model.arrays import Flags, Ints, positions, true_places
from placeopt.model.compiled import entry, row_of
from placeopt.schedules.bounds import longest_ways
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import Repetend

UNBOUNDED = 1 << 60


class DeviceTree:
    """The devices of K micro-batches of a problem as a forest, root first; built once for all
    periods.

    Attributes
    ----------
    applies : whether the method can be used at all, whatever the period.
    """

    def __init__(self, problem: PipelineProblem, size: int = 1) -> None:
        self.problem, self.size = problem, size
        self.span = np.tile(problem.span, size)
        self.memory = np.tile(problem.memory, (size, 1))
        self.edges = problem.edges_of(size)
        self.blocks = [problem.instances_on(d, size) for d in range(problem.num_devices)]
        used = [d for d, here in enumerate(self.blocks) if here]
        self.applies = self._can_be_listed(used)
        if not self.applies:
            return
        self.home = np.tile(problem.device, size)
        self.part = self._parts()
        first = np.arange(size)[:, None] * problem.num_blocks
        self.order = (first + problem.topological_order).ravel().tolist()
        lines = self._lines(used)
        self.applies = nx.is_forest(lines)
        if not self.applies:
            return
        self.parent: dict[int, int] = {}
        self.leaves_first: list[int] = []
        for root in sorted(min(tree) for tree in nx.connected_components(lines)):
            self.parent |= {child: above for above, child in nx.dfs_edges(lines, root)}
            self.leaves_first += nx.dfs_postorder_nodes(lines, root)
        self.distance = longest_ways(self.order, self.edges)
        self.turns = {d: self._most_turns(d) for d in used}
        self.applies = all(self.turns.values())

    def _can_be_listed(self, used: list[int]) -> bool:
        """Whether every block runs on one device, and each device in use has a limit and at most
        10 blocks, since their orders are listed.
        """
        one_device_each = bool((np.diff(self.problem.device_ptr) == 1).all())
        few = max(map(len, self.blocks)) <= 10
        return one_device_each and few and bool(self.problem.limited[used].all())

    def _parts(self) -> Ints:
        """Number the parts of the blocks that edges connect, shape (num_instances,)."""
        number = np.zeros(len(self.span), np.int64)
        for c, part in enumerate(nx.weakly_connected_components(self.problem.graph(self.size))):
            number[sorted(part)] = c
        return number

    def _lines(self, used: list[int]) -> Any:
        """Return the graph of the devices whose blocks wait for each other."""
        home = self.home.tolist()
        lines = nx.Graph((home[u], home[v]) for u, v, _ in self.edges if home[u] != home[v])
        lines.add_nodes_from(used)
        return lines

    def _most_turns(self, device: int) -> int:
        """Repetitions that a micro-batch touches on a device at most, 0 if memory does not bound
        them.
        """
        least = UNBOUNDED
        for part in self._parts_on(device):
            if (self.distance[part[0], part] < 0).any():
                return 0  # no block comes first
            for chosen in itertools.product((False, True), repeat=len(part) - 1):
                inside = [part[0], *itertools.compress(part[1:], chosen)]
                rest = [i for i in part if i not in inside]
                if rest and (self.distance[np.ix_(rest, inside)] < 0).all():
                    least = min(least, int(self.memory[inside, device].sum()))
        return 0 if least <= 0 else int(self.problem.capacity[device]) // least + 1

    def _parts_on(self, device: int) -> list[list[int]]:
        """Blocks of a device by connected part, in topological order."""
        here = set(self.blocks[device])
        ordered = [i for i in self.order if i in here]
        return [
            [i for i in ordered if self.part[i] == c]
            for c in dict.fromkeys(self.part[ordered].tolist())
        ]

    # --- local patterns
    # -----------------------------------------------------------------------------------

    def local_patterns(self, device: int, period: int, limit: int) -> Ints | None:
        """Return the starts of a device's blocks in all its local patterns, one a row.

        None if more than `limit` rows are needed on the way.
        """
        here = self.blocks[device]
        n, idle = len(here), period - int(self.span[here].sum())
        if idle < 0:
            return np.zeros((0, n), np.int64)
        if factorial(n - 1) * comb(idle + n - 1, n - 1) > limit:
            return None
        starts = self._cyclic_orders(here, idle)
        finished: list[int] = []
        for part in self._parts_on(device):
            columns = [here.index(i) for i in part]
            for done in range(1, len(part)):
                before, at = columns[:done], columns[done]
                soonest = (starts[:, before] + self.distance[part[:done], part[done]]).max(axis=1)
                starts[:, at] += -(-(soonest - starts[:, at]) // period) * period
                # Not beyond the turns that memory allows; of those, every one.
                end = starts[:, before[0]] + self.turns[device] * period
                left = np.maximum((end - 1 - starts[:, at]) // period + 1, 0)
                if left.sum() > limit:
                    return None
                later = np.arange(left.sum()) - np.repeat(np.cumsum(left) - left, left)
                starts = np.repeat(starts, left, axis=0)
                starts[:, at] += later * period
            # No part ever holds less than nothing, so what the finished ones hold together must
            # fit.
            finished += columns
            starts = starts[self._fit(starts, finished, device, period)]
        return starts

    def _fit(self, starts: Ints, columns: list[int], device: int, period: int) -> Flags:
        """Whether the blocks in some columns stay within the device's capacity, for each row."""
        delta = self.memory[np.array(self.blocks[device])[columns], device]
        starts, fits = starts[:, columns], np.ones(len(starts), np.bool_)
        for c in true_places(delta > 0):
            begun = (starts[:, c : c + 1] - starts) // period + 1
            fits &= begun @ delta <= self.problem.capacity[device]
        return fits

    def _cyclic_orders(self, here: list[int], idle: int) -> Ints:
        """Starts within one period of all orders and idle gaps, the first block at 0."""
        n, span = len(here), self.span[here]
        bars = np.array(list(itertools.combinations(range(idle + n - 1), n - 1)), np.int64).reshape(
            -1, n - 1
        )
        waited = (np.diff(bars, axis=1, prepend=-1) - 1).cumsum(axis=1)
        order = np.array(list(itertools.permutations(range(1, n))), np.int64).reshape(-1, n - 1)
        busy = span[order].cumsum(axis=1) - span[order] + span[0]
        starts = np.zeros((len(order), len(bars), n), np.int64)
        np.put_along_axis(starts, order[:, None, :], busy[:, None, :] + waited[None, :, :], axis=2)
        return starts.reshape(-1, n)

    # --- the walk from the leaves to the roots
    # --------------------------------------------------------------

    def decide(self, period: int, seconds: float = 10.0) -> tuple[bool, Repetend | None] | None:
        """Return (feasible, pattern), or None where the method does not apply or needs far more
        than `seconds`.

        What "far more" means is counted, not timed: the answer does not depend on the machine.
        """
        if not self.applies:
            return None
        # Local patterns of all devices that are listed, and pairs of them that are compared, for
        # each second allowed; so many patterns at most
        patterns_per_second, pairs_per_second, most_patterns = 500_000, 100_000_000, 4_000_000
        rows = min(most_patterns, int(seconds * patterns_per_second))
        patterns: dict[int, Ints] = {}
        for device in self.leaves_first:
            listed = self.local_patterns(device, period, rows)
            if listed is None:
                return None
            if not len(listed):
                return False, None
            patterns[device] = listed
            rows -= len(listed)
        return self._walk(patterns, period, seconds * pairs_per_second)

    def _walk(
        self, patterns: dict[int, Ints], period: int, pairs: float
    ) -> tuple[bool, Repetend | None] | None:
        """Keep the patterns that agree with one of every child, from the leaves to the roots.

        Return what `decide` does; None if more than `pairs` of patterns are to be compared.
        """
        partner: dict[int, tuple[Ints, Ints]] = {}
        for device in self.leaves_first:
            above = self.parent.get(device)
            if above is None:
                continue
            links = self._links(above, device)
            best = undominated(patterns[device], links, period)
            pairs -= len(patterns[above]) * len(best)
            if pairs < 0:
                return None
            which, shift = agree(patterns[above], patterns[device][best], links, period)
            alive = which >= 0
            if not alive.any():
                return False, None
            patterns[above] = patterns[above][alive]
            for child in (x for x in partner if self.parent[x] == above):
                partner[child] = (partner[child][0][alive], partner[child][1][alive])
            partner[device] = (best[which[alive]], shift[alive])
        return True, self._assemble(patterns, partner, period)

    def _links(self, above: int, below: int) -> Ints:
        """Return the precedences between a device and its child: part, block above, block below, 1
        if upwards, ticks.
        """
        top = positions(self.blocks[above])
        bottom = positions(self.blocks[below])
        parts = np.intersect1d(self.part[list(top)], self.part[list(bottom)]).tolist()
        rows = []
        for u, v, ticks in self.edges:
            if u in top and v in bottom:
                rows.append((parts.index(self.part[u]), top[u], bottom[v], 0, ticks))
            elif u in bottom and v in top:
                rows.append((parts.index(self.part[u]), top[v], bottom[u], 1, ticks))
        return np.array(rows, np.int64)

    def _assemble(
        self, patterns: dict[int, Ints], partner: dict[int, tuple[Ints, Ints]], period: int
    ) -> Repetend:
        """Follow the partners from the roots down and put the local patterns together."""
        start = np.zeros(len(self.span), np.int64)
        row: dict[int, int] = {}
        for device in self.leaves_first[::-1]:
            here, above = self.blocks[device], self.parent.get(device)
            if above is None:
                row[device] = 0
                start[here] = patterns[device][0]
                continue
            which, shift = partner[device]
            row[device] = int(which[row[above]])
            # The device above may have moved as a whole; its parts by multiples of the period
            # besides.
            moved = int(start[self.blocks[above][0]] - patterns[above][row[above]][0])
            start[here] = patterns[device][row[device]] + moved + int(shift[row[above]])
            for part in self._parts_on(device):
                into = [
                    start[u] + ticks - start[v]
                    for u, v, ticks in self.edges
                    if self.home[u] == above and v in part
                ]
                back = [
                    start[v] - ticks - start[u]
                    for u, v, ticks in self.edges
                    if u in part and self.home[v] == above
                ]
                turns = -(-max(into) // period) if into else min(back, default=0) // period
                start[part] += turns * period
        return Repetend(period, _numbered(start, self.part, period).reshape(self.size, -1))


def _numbered(start: Ints, part: Ints, period: int) -> Ints:
    """Number the micro-batches of every part such that it begins in the first repetition."""
    start = start.copy()
    for c in range(int(part.max()) + 1):
        mine = part == c
        start[mine] -= start[mine].min() // period * period
    return start


def undominated(patterns: Ints, links: Ints, period: int) -> Ints:
    """Return the rows that agree with whatever any row agrees with.

    Of two patterns whose linked blocks run at the same points of the period, one is no worse if it
    runs those that the device above waits for no more turns later, and those that wait for the
    device above no fewer.
    """
    waits, waited_for = np.zeros((2, patterns.shape[1]), np.bool_)
    waits[links[links[:, 3] == 0, 2]] = True
    waited_for[links[links[:, 3] == 1, 2]] = True
    both = waits & waited_for
    turn, point = np.divmod(patterns, period)
    same = np.concatenate([point[:, waits | waited_for], turn[:, both]], axis=1)
    cost = np.concatenate([turn[:, waited_for & ~both], -turn[:, waits & ~both]], axis=1)
    order = np.lexsort([*cost.T[::-1], *same.T[::-1]])
    starts = np.flatnonzero(np.append(True, (same[order][1:] != same[order][:-1]).any(axis=1)))
    kept = _undominated_of_groups(np.ascontiguousarray(cost[order]), np.append(starts, len(order)))
    return np.sort(order[kept])


@entry
def _undominated_of_groups(cost: Ints, group: Ints) -> Ints:
    """Rows of least cost in some sense of each group; rows of a group ascend, so what dominates a
    row comes before it.
    """
    kept = np.empty(len(cost), np.int64)
    count = 0
    for g in range(len(group) - 1):
        first = count
        for i in row_of(group, g):
            beaten = False
            for at in range(first, count):
                if (cost[kept[at]] <= cost[i]).all():
                    beaten = True
                    break
            if not beaten:
                kept[count] = i
                count += 1
    return kept[:count]


@entry
def agree(above: Ints, below: Ints, links: Ints, period: int) -> tuple[Ints, Ints]:
    """Return for every pattern above the first pattern below that agrees with it, or -1, and the
    shift rho.
    """
    which = np.full(len(above), -1, np.int64)
    shift = np.zeros(len(above), np.int64)
    num_parts = links[:, 0].max() + 1
    lo, hi = np.empty(num_parts, np.int64), np.empty(num_parts, np.int64)
    for a in range(len(above)):
        for b in range(len(below)):
            lo[:] = -UNBOUNDED
            hi[:] = UNBOUNDED
            for e in range(len(links)):
                c, gap = links[e, 0], above[a, links[e, 1]] - below[b, links[e, 2]]
                if links[e, 3] == 0:
                    lo[c] = max(lo[c], gap + links[e, 4])
                else:
                    hi[c] = min(hi[c], gap - links[e, 4])
            if (lo > hi).any():
                continue
            for c in range(num_parts):
                rho = lo[c] % period
                meets = True
                for other in range(num_parts):
                    meets = meets and lo[other] + (rho - lo[other]) % period <= hi[other]
                if meets:
                    which[a], shift[a] = b, rho
                    break
            if which[a] >= 0:
                break
    return which, shift
