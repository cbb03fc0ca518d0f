"""The tables of the program over ideals that prices slots, against its recursion written out over
sets: every state, and the step that each comes from.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

import placeopt as po
from placeopt.latency.bounds.flow import FlowBound
from placeopt.latency.bounds.slot_program import (
    APART,
    FREE,
    ONE,
    SEVERAL,
    TOGETHER,
    UNKNOWN,
    UNRELATED,
    Flow,
    _holders_after,
    fill_rows,
    find_dead,
)
from placeopt.latency.evaluate import latency_batch
from placeopt.model.arrays import NO_VALUE
from placeopt.model.ideals import ideal_sums
from placeopt.model.objective import INFEASIBLE

pytestmark = pytest.mark.interpreted


def drawn_bound(rng, slots):
    """Return the flow bound of a problem with classes that slots part, and tight memory; of some ops
    are left out.
    """
    n = int(rng.integers(4, 9))
    edges = {(int(rng.integers(v)), v) for v in range(1, n) if rng.random() < 0.7}
    edges |= {(int(rng.integers(v)), v) for v in range(1, n) if rng.random() < 0.4}
    ticks, slow = rng.integers(1, 9, n), rng.integers(1, 12, n)
    slow[rng.random(n) < 0.4] = -1
    ticks[(rng.random(n) < 0.1) & (slow >= 0)] = -1
    resident = rng.integers(0, 6, n)
    room = max(int(resident.max()), int(rng.uniform(0.4, 1.1) * resident.sum()))
    problem = po.PlacementProblem.from_edges(
        np.stack([ticks, ticks, slow], axis=1),
        [(u, v, int(rng.integers(0, 4))) for u, v in sorted(edges)],
        resident=resident,
        capacity=[room, room, 1 << 40],
        colocation=rng.choice([0, 0, 1, 1, 2, 2, 3], n),
        io_class=[0, 0, -1],
        objective="latency",
        slots=slots,
    )
    return FlowBound(problem, max_ideals=int(rng.choice([3, 4, 60_000, 60_000])))


def drawn_flow(rng, bound, *, back=False):
    """Return what some random paths carry, per node and per edge; to no node twice."""
    node, edge = np.zeros(len(bound.nodes.ops), np.int64), np.zeros(len(bound._ends), np.int64)
    tails, heads = bound._ends.T
    may_go = (heads > tails) | back
    for weight in rng.integers(1, 9, 4).tolist():
        v = int(rng.integers(len(node)))
        node[v] += weight
        seen = {v}
        while rng.random() < 0.8:
            out = np.flatnonzero((tails == v) & may_go & ~np.isin(heads, list(seen)))
            if not len(out):
                break
            e = int(rng.choice(out))
            edge[e], v = edge[e] + weight, int(heads[e])
            node[v] += weight
            seen.add(v)
    return node, edge


def with_rules(rng, bound):
    """Return the bound with some more edges, in any direction, and with rules for some pairs."""
    next(over for over in bound.pieces(lambda: None) if over)
    for _ in range(2 * (len(bound.nodes.ops) > 1)):
        tail, head = rng.permutation(len(bound.nodes.ops))[:2].tolist()
        bound, _ = bound._with_edge(tail, head)
    rule = rng.choice([FREE, FREE, APART, TOGETHER, UNRELATED], len(bound._ends)).astype(np.int8)
    bound.arrays = bound.arrays._replace(edge_rule=rule)
    return bound


class Written:
    """The recursion: per ideal what each (state, slots used) costs at least, and by which steps.

    A state is (holders, least, last): how many slots hold the classes that cross the border, and
    what the slots of the first and the last of these classes are known to take, in steps.
    """

    def __init__(self, bound, node, edge):
        self.a, self.node, self.edge = bound.arrays, node.tolist(), edge.tolist()
        self.ends, self.tensors = bound._ends.tolist(), bound.nodes.tensors
        self.between = bound.nodes.between
        self.slots, n = bound._num_slots, len(node)
        self.two = bound.problem.slots == 2 and max(self.a.group_size) > 1
        self.classes = [
            set(np.flatnonzero(self.a.group == g)) for g in range(max(self.a.group) + 1)
        ]
        held = [bound.lattice.members(i, n) for i in range(bound.lattice.num_ideals)]
        self.ideals = [frozenset(np.flatnonzero(x)) for x in held]
        self.value = [{} for _ in self.ideals]
        self.steps = [{} for _ in self.ideals]
        for s in range(self.slots + 1):
            self.value[0][(0, 0, 0), s] = 0
        for i, ideal in enumerate(self.ideals[1:], 1):
            for below, smaller in enumerate(self.ideals):
                if smaller < ideal:
                    self.pool(i, below)
                    self.slot(i, below)

    def put(self, i, state, s, value, came):
        """Keep the least of a state, and every step that reaches it."""
        old = self.value[i].get((state, s), NO_VALUE)
        if value < old:
            self.value[i][state, s], self.steps[i][state, s] = value, set()
        if value <= old:
            self.steps[i][state, s].add(came)

    def crossing(self, i):
        """Classes with nodes on both sides of an ideal's border."""
        return [g for g, c in enumerate(self.classes) if c & self.ideals[i] and c - self.ideals[i]]

    def pool(self, i, below):
        """What lies between two ideals enters the pool: an op, and all that follow it there."""
        a, gone = self.a, self.ideals[i] - self.ideals[below]
        leader = a.leader[min(gone)]
        if gone != set(np.flatnonzero(a.leader == leader)) or a.pool_time[leader] < 0:
            return
        cost = sum(self.node[v] * int(a.pool_time[v]) for v in gone)
        kept = gone == self.classes[a.group[leader]]
        for (state, s), value in self.value[below].items():
            self.put(i, state if kept else (0, 0, 0), s, value + cost, (below, state, 0))

    def cost(self, held, ticks):
        """The flow that visits a slot times its ticks, of which `ticks` are at work."""
        visits = sum(self.node[v] for v in held)
        visits -= sum(x for x, e in zip(self.edge, self.ends, strict=True) if set(e) <= held)
        for u, heads, io in self.tensors:
            ticks += io * (u not in held and bool(held & set(heads)))
            ticks += io * (u in held and not set(heads) <= held)
        return visits * ticks

    def slot(self, i, below):
        """What lies between two ideals is one slot."""
        a, ideal, smaller = self.a, self.ideals[i], self.ideals[below]
        held = ideal - smaller
        between = [b for b in self.between if held & set(b.before) and held & set(b.behind)]
        used = int(sum(a.resident[v] for v in held)) + sum(b.resident for b in between)
        times = [*(int(a.slot_time[v]) for v in held), *(b.time for b in between)]
        if min(times) < 0 or used > a.capacity:
            return
        for (u, v), rule in zip(self.ends, a.edge_rule.tolist(), strict=True):
            shared = {u, v} <= held
            if (rule >= APART and shared) or (
                rule == TOGETHER and min(u, v) in held and not shared
            ):
                return
        here = {g for g, c in enumerate(self.classes) if c & held}
        earlier = {g for g in here if self.classes[g] & smaller}
        later = {g for g in here if self.classes[g] - ideal}
        if bool(earlier) + bool(later) > a.most_open:
            return
        before, after, cost = self.crossing(below), self.crossing(i), self.cost(held, sum(times))
        first, final = (before[0], before[-1]) if before else (None, None)
        for (state, s), value in self.value[below].items():
            holders, low, high = state
            one = self.two and holders == ONE
            shared = [low] * (one or first in here) + [high] * (one or final in here)
            if earlier and max(shared, default=0) * a.step + used > a.capacity:
                continue  # both are on one accelerator
            if earlier and one and set(before) - here:
                continue  # the one slot of the classes has all of its accelerator's other slot
            if earlier and self.two and holders == SEVERAL and set(before) <= here:
                continue  # two slots of one accelerator have them, and no third one is there
            if s == self.slots:
                continue

            def known(g, low=low, high=high, one=one):
                if g in here:
                    return used // a.step
                if g == first:
                    return low
                return high if g == final else max(low, high) * one

            to = [known(after[0]), known(after[-1])] if after else [known(None), known(None)]
            number = self.holders(holders, later, after, before) if self.two else UNKNOWN
            self.put(i, (number, *to), s + 1, value + cost, (below, state, 1))

    def holders(self, holders, later, after, before):
        """How many slots hold the classes `after` a slot that parts the classes `later`."""
        if later == set(after):
            return ONE
        if later:
            return SEVERAL
        if holders == ONE or len(after) == 1:
            return ONE
        return holders if len(after) == len(before) else UNKNOWN


@pytest.mark.parametrize("part", range(4))
def test_the_tables_are_those_of_the_recursion(part):
    """Every state of every ideal costs what the recursion over sets says, and comes from a step of
    that cost; below a limit the value of the whole is the same.
    """
    rng, parted, several, between = np.random.default_rng(part), 0, 0, 0
    for _ in range(48):
        bound = drawn_bound(rng, int(rng.choice([1, 2, 2, 2, 3])))
        if not bound.usable:
            continue
        if part % 2:
            bound = with_rules(rng, bound)
        node, edge = drawn_flow(rng, bound)
        written = Written(bound, node, edge)
        lattice, tables, steps = bound.lattice, bound._tables, bound._steps
        low = ideal_sums(lattice, (np.maximum(bound._fast, 0) * node)[None])[0]
        for i, ideal in enumerate(written.ideals):
            assert low[i] == sum(max(bound._fast[v], 0) * node[v] for v in ideal)

        def fill(limit, bound=bound, flow=(node, edge, low), lattice=lattice, tables=tables):
            rows = bound.lattice.num_ideals
            given = Flow(*flow, np.zeros(rows, np.bool_), limit)
            fill_rows(bound.arrays, lattice, given, tables, 0, rows)
            return int(tables.value[-1, :, -1].min())

        def number(state, steps=steps):
            return state[0] * steps**2 + state[1] * steps + state[2]

        best = fill(NO_VALUE - 1)
        states = tables.value.shape[1]
        for i, reached in enumerate(written.value):
            expected = np.full(tables.value.shape[1:], NO_VALUE)
            for (state, s), value in reached.items():
                expected[number(state), s] = value
                if i:
                    came, choice = divmod(int(tables.back[i, number(state), s]), 2)
                    ways = {(w * states + number(k), c) for w, k, c in written.steps[i][state, s]}
                    assert (came, choice) in ways
                several += state[0] == SEVERAL
            assert (tables.value[i] == expected).all()
            alive = np.flatnonzero(expected[:, -1] < NO_VALUE).tolist()
            assert tables.live[i, : tables.num_live[i]].tolist() == alive
            crossing = written.crossing(i)
            assert tables.num_crossing[i] == len(crossing)
            parted += len(crossing) > 1
        between += len(written.between)
        if best < NO_VALUE:
            assert (fill(best + 1), fill(best)) == (best, NO_VALUE)
    assert between > 2
    assert parted > 20
    assert several > 10


@pytest.mark.parametrize("slots", [1, 2])
def test_flow_goes_back_along_edges_that_stay_in_a_slot(slots):
    """The least cost is that of the recursion, also where what costs too much is left out early."""
    rng, back = np.random.default_rng(slots), 0
    for _ in range(100):
        bound = drawn_bound(rng, slots)
        if not bound.usable or len(bound.nodes.ops) < 2:
            continue
        next(over for over in bound.pieces(lambda: None) if over)
        for _ in range(2):
            if bound._priced:
                tail, head = rng.permutation(len(bound.nodes.ops))[:2].tolist()
                bound, at = bound._with_edge(tail, head)
                bound = bound._half(len(bound.arrays.group_size) + at, True)
        node, edge = drawn_flow(rng, bound, back=True)
        costs = Written(bound, node, edge).value[-1].values()
        list(bound._price(node, edge, 1, lambda: None))
        least = int(bound._tables.value[-1, :, -1].min())
        assert least == min(costs, default=NO_VALUE)
        if least < NO_VALUE:
            list(bound._price(node, edge, 1, lambda most=least + 1: most))
            assert int(bound._tables.value[-1, :, -1].min()) == least
            back += edge[bound._ends[:, 0] > bound._ends[:, 1]].any()
    assert back > 3


class Passing(Written):
    """The recursion with every step that may be taken, not only the best."""

    def __init__(self, bound, node, edge):
        self.taken = []
        super().__init__(bound, node, edge)

    def put(self, i, state, s, value, came):
        """Keep every step."""
        below, before, choice = came
        step = value - self.value[below][before, s - choice]
        self.taken.append(((below, before, s - choice), (i, state, s), step))
        super().put(i, state, s, value, came)

    def through(self):
        """Return per ideal what the placements that pass it cost at least."""
        whole = len(self.ideals) - 1
        rest = {(whole, state, s): 0 for state, s in self.value[whole]}
        for before, after, step in reversed(self.taken):
            least = rest.get(after, NO_VALUE) + step
            rest[before] = min(rest.get(before, NO_VALUE), least)
        return [
            min((v + rest.get((i, *k), NO_VALUE) for k, v in reached.items()), default=NO_VALUE)
            for i, reached in enumerate(self.value)
        ]


@pytest.mark.parametrize("slots", [1, 2])
def test_dead_ideals_are_passed_by_no_placement_below_the_limit(slots):
    """With one slot each, by just those; the values of the others then need no dead one."""
    rng, dead, alive = np.random.default_rng(slots), 0, 0
    for _ in range(60):
        bound = drawn_bound(rng, slots)
        if not bound.usable:
            continue
        bound = with_rules(rng, bound)
        passing = Passing(bound, *drawn_flow(rng, bound))
        through = np.array(passing.through())
        best = through.min()
        limits = best + 1, best + int(rng.integers(2, 40)), int(np.median(through))
        for limit in np.minimum(limits, NO_VALUE - 1).tolist():
            node, edge = np.array(passing.node), np.array(passing.edge)
            low = ideal_sums(bound.lattice, (np.maximum(bound._fast, 0) * node)[None])[0]
            given = Flow(node, edge, low, np.zeros(len(through), np.bool_), limit)
            bound._tables.rest.fill(NO_VALUE)
            for kernel in (fill_rows, find_dead, fill_rows):
                kernel(bound.arrays, bound.lattice, given, bound._tables, 0, len(through))
                if best < limit < NO_VALUE:
                    assert bound._tables.value[-1, :, -1].min() == best
            assert not (given.dead & (through < limit)).any()
            assert slots > 1 or given.dead[through >= limit].all()
            dead += given.dead.sum()
            alive += (~given.dead).sum()
    assert min(dead, alive) > 200


def known_of(slots):
    """Return how many slots hold classes, given the slot of each."""
    return ONE if len(set(slots)) == 1 else SEVERAL


@pytest.mark.parametrize("holders", [UNKNOWN, ONE, SEVERAL])
@pytest.mark.parametrize("before", range(4))
def test_what_is_known_of_holders_is_all_that_can_be(before, holders):
    """After a slot that holds some classes, of all ways to put those before it into slots that agree
    with what was known: one or several slots where all ways say so, else unknown.
    """
    known_after = getattr(_holders_after, "py_func", _holders_after)  # only kernels call it
    worlds = [
        slots
        for slots in product(range(before), repeat=before)
        if holders == UNKNOWN or (slots and holders == known_of(slots))
    ]
    for behind, stay in product(range(4), range(before + 1)):
        after = {
            known_of([slots[v] for v in kept] + ["here"] * behind)
            for slots in worlds
            for kept in combinations(range(before), stay)
            if behind + stay > 0
        }
        if after:
            expected = after.pop() if len(after) == 1 else UNKNOWN
            assert known_after(holders, behind, behind + stay, before) == expected


def test_finer_graphs_begin_with_the_flow_of_coarser_ones():
    """One unit flows in and out; through the same nodes at least, and proves no less there, if none
    stands for several ops; then the longest path has its turn.
    """
    rng, raised, carried = np.random.default_rng(7), 0, 0
    for _ in range(60):
        coarse = drawn_bound(rng, 1)
        fine = FlowBound(coarse.problem)
        if not coarse.usable or not fine.usable:
            continue
        longest = fine._begin[0]
        fine.begin_at(coarse)  # which has no flow yet
        assert len(fine._begin) == 1
        coarse.run(lambda: None, lambda: False)
        fine.begin_at(coarse)
        flow, path = fine._begin
        assert path is longest
        n = len(fine.nodes.ops)
        into, out = flow[:n].copy(), flow[n : 2 * n].copy()
        np.add.at(into, fine._ends[:, 1], flow[2 * n :])
        np.add.at(out, fine._ends[:, 0], flow[2 * n :])
        assert into == pytest.approx(out, abs=1e-9)
        assert flow[:n].sum() == pytest.approx(1.0, abs=1e-3)
        next(over for over in fine.pieces(lambda: None) if over)
        if max(map(len, coarse.nodes.ops)) > 1:
            continue
        through, _, total = coarse._round(coarse._best_flow)
        for v, ops in enumerate(coarse.nodes.ops):
            here = next(i for i, held in enumerate(fine.nodes.ops) if ops[0] in held)
            assert into[here] > through[v] / total - 1e-3
        assert fine.lower >= 0.999 * coarse.lower - 1
        carried += 1
        raised += fine.lower > coarse.lower
    assert carried > 20
    assert raised > 5


def test_finer_graphs_know_the_placements_of_coarser_ones():
    """Those that fit: no flow makes one of them cost more than it takes, and they end no bound
    below what is proved without them.
    """
    rng, known = np.random.default_rng(5), 0
    for _ in range(30):
        coarse = drawn_bound(rng, 1)
        fine, alone = FlowBound(coarse.problem), FlowBound(coarse.problem)
        if not coarse.usable or not fine.usable:
            continue
        placements = []
        coarse.run(lambda: None, lambda: False, lambda *x, to=placements: to.append(x))
        fine.begin_at(coarse)
        devices, slots = np.array(placements[::2]).swapaxes(0, 1)  # with the others early
        taken = latency_batch(coarse.problem, devices, slots).tolist()
        fits = [ticks for ticks in taken if ticks < INFEASIBLE]
        assert len(fine._guesses) == len(fits)
        for guess, ticks in zip(fine._guesses, fits, strict=True):
            for flow in fine._begin:
                assert -float(guess[:-1] @ flow) * fine._scale <= ticks * (1 + 1e-6)
        for bound in (fine, alone):
            bound.run(lambda: None, lambda: False)
        assert fine.lower >= alone.lower - 1 - 1e-3 * alone.lower
        known += len(fits)
    assert known > 10
