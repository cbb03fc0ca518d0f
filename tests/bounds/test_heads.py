"""Heads and tails that pay for transfers, written out over paths and sets of ancestors, the window
of a large graph, and the delays of forks by their recursion.
"""

from __future__ import annotations

import itertools
import math
import os
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from placeopt.makespan.bounds import communication, segments
from placeopt.makespan.bounds.communication import Graph, earliest_starts, heads_tails
from placeopt.makespan.bounds.relaxation import INFINITE
from placeopt.makespan.bounds.segment_graph import MOST_TICKS
from placeopt.model.arrays import frozen

pytestmark = pytest.mark.interpreted


def drawn_graph(rng):
    """Return a graph with delays in any case, edges that join two devices never, classes of devices
    on one island or two, and weights.
    """
    n, classes = int(rng.integers(3, 8)), int(rng.choice([1, 2, 2, 3]))
    order = rng.permutation(n)
    pairs = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.55]
    edges = {v: [] for v in range(n)}
    for i, j in pairs:
        free = int(rng.choice([0, 0, 0, 1, 3]))
        pay = INFINITE if rng.random() < 0.15 else free + int(rng.integers(0, 7))
        far = INFINITE if rng.random() < 0.15 else min(pay, 9) + int(rng.integers(0, 9))
        edges[int(order[j])].append((int(order[i]), free, pay, far))
    compute = rng.integers(0, 7, (n, classes))
    for row in compute:
        if rng.random() < 0.3:
            row[rng.permutation(classes)[: int(rng.integers(0, classes))]] = -1
    rows = [row for v in range(n) for row in edges[v]]
    op, free, pay, far = np.array(rows, np.int64).reshape(-1, 4).T
    size = rng.integers(1, 3, classes)
    island = rng.integers(0, 2, classes)
    beside = np.where(island[:, None] == island, size, 0)
    if rng.random() < 0.3:  # a class on several islands
        beside = np.minimum(beside, np.eye(classes, dtype=np.int64))
    weights = np.unique(rng.integers(0, 4, (int(rng.integers(0, 3)), classes)), axis=0)
    arrays = (
        order.astype(np.int64),
        np.cumsum([0, *(len(edges[v]) for v in range(n))]),
        op,
        free,
        pay,
        far,
        compute,
        size,
        np.where(compute < 0, INFINITE, compute).min(axis=1),
        beside,
        weights,
        communication.energies(compute, beside, weights),
    )
    # frozen, as those of the bound: no kernel is compiled a second time
    return Graph(*(frozen(np.ascontiguousarray(array)) for array in arrays)), edges


def one_machine(jobs):
    """Return the largest, over all sets, of least release, lengths and least tail."""
    sets = (some for size in range(1, len(jobs) + 1) for some in itertools.combinations(jobs, size))
    return max(
        (
            min(r for r, _, _ in some) + sum(p for _, p, _ in some) + min(q for _, _, q in some)
            for some in sets
        ),
        default=0,
    )


def total(values):
    """Return a sum in which what cannot be stays so."""
    return min(sum(values), INFINITE)


def soonest(ops, own, near, far, there):
    """Return the least t at which three kinds of devices can have run ops, each from the earliest
    start on its kind to t less the least delay from it.

    Parameters
    ----------
    ops : (earliest starts, times, delays), by kind. own, near, far : weights of the kinds.
    there : weighted times on the first two kinds, and on all.
    """
    ends = [min(o[0][x] for o in ops) + min(o[2][x] for o in ops) for x in range(3)]
    last = min(ends[2], INFINITE)
    middle = min(ends[1], last)
    alone = ends[0] + total(o[1] for o in ops)
    if alone < INFINITE and alone <= middle:
        return alone
    first = min(ends[0], middle)
    for end, after, work, (a, b, c) in (
        (middle, last, there[0], (own, near, 0)),
        (last, INFINITE, there[1], (own, near, far)),
    ):
        t = end
        if end == INFINITE or work == INFINITE:
            continue
        while a + b + c and a * (t - first) + b * (t - middle) + c * max(0, t - last) < work:
            t += 1
        if t <= after:
            return t
    return 0


def spread_work(graph, before, v_class, weights, earliest, head, delays):
    """Return the latest that sets of ops let an op on a class start: those of each least head and
    least delay to another device, or to another island.
    """
    classes = range(len(weights))
    compute, beside, size = graph.compute, graph.beside[v_class], graph.class_size
    own = int(weights[v_class])
    near = int(beside @ weights) - own
    far = int(size @ weights) - own - near
    there = [c for c in classes if beside[c] > 0]

    def least(u, where):
        return min((int(head[u, c]) for c in where if compute[u, c] >= 0), default=INFINITE)

    def energy(u, where):
        ways = [int(compute[u, c] * weights[c]) for c in where if compute[u, c] >= 0]
        return min(ways, default=INFINITE)

    rows = {
        u: (
            (
                least(u, [v_class]),
                least(u, [c for c in there if beside[c] > (c == v_class)]),
                least(u, [c for c in classes if size[c] > beside[c]]),
            ),
            int(compute[u, v_class]) if compute[u, v_class] >= 0 else INFINITE,
            delays[u],
        )
        for u in before
    }
    best = 0
    for a, b in itertools.product({earliest[u] for u in before}, {delays[u][1] for u in before}):
        some = [u for u in before if earliest[u] >= a and delays[u][1] >= b]
        if some:
            works = (
                total(energy(u, there) for u in some),
                total(energy(u, classes) for u in some),
            )
            best = max(best, soonest([rows[u] for u in some], own, near, far, works))
    return best


def heads_by_definition(graph, edges, window, steps):
    """Return the heads, by the recursion of the module text over the ancestors in the window."""
    order, size = graph.order.tolist(), graph.class_size.tolist()
    n, classes = graph.compute.shape
    place = {v: i for i, v in enumerate(order)}
    head = np.full((n, classes), -1)
    ends, earliest = [INFINITE] * n, [INFINITE] * n
    for v in order:
        near, apart, across = {v: 0}, {v: INFINITE}, {v: INFINITE}
        for w in reversed(order[max(0, place[v] - window + 1) : place[v] + 1]):
            run = 0 if w == v else int(graph.fastest[w])
            for u, free, pay, far in edges[w] if w in near else ():
                later = INFINITE if free else total([run, apart[w]])
                paid = min(total([pay, run, near[w]]), later)
                crossed = min(total([far, run, near[w]]), total([free, run, across[w]]))
                near[u] = max(near.get(u, 0), free + run + near[w])
                apart[u] = max(apart.get(u, 0), paid)
                across[u] = max(across.get(u, 0), crossed, paid)
        before = [u for u in near if u != v and place[u] > place[v] - window]
        base = max([0, *(ends[u] + near[u] for u in before)])
        base = max([base, *(ends[u] + free for u, free, _, _ in edges[v])])
        for c in range(classes):
            if graph.compute[v, c] < 0:
                continue
            key, floor = {}, base
            for u in before:
                ways = [
                    int(head[u, x] + graph.compute[u, x]) + delay[u]
                    for x in range(classes)
                    for delay, others in (
                        (apart, graph.beside[c, x] - (x == c)),
                        (across, size[x] - graph.beside[c, x]),
                    )
                    if graph.compute[u, x] >= 0 and others > 0 and delay[u] < INFINITE
                ]
                key[u] = min(ways, default=INFINITE)
                here = []
                if graph.compute[u, c] >= 0:
                    here = [int(head[u, c] + graph.compute[u, c]) + near[u]]
                if min([key[u], *here]) < INFINITE:
                    floor = max([floor, min([key[u], *here])])
            delays = {u: (near[u], apart[u], across[u]) for u in before}
            for weights in graph.weights if steps and len(before) > 1 else ():
                found = spread_work(graph, before, c, weights, earliest, head, delays)
                floor = max(floor, found)
            here = [u for u in before if key[u] > floor and graph.compute[u, c] >= 0]
            here.sort(key=lambda u: -key[u])
            starts = []
            for j in range(len(here) + 1):
                jobs = [(int(head[u, c]), int(graph.compute[u, c]), near[u]) for u in here[:j]]
                starts.append(max(one_machine(jobs), *(key[u] for u in here[j : j + 1]), 0))
            head[v, c] = max(floor, min(starts)) if here else floor
            earliest[v] = min(earliest[v], int(head[v, c]))
            ends[v] = min(ends[v], int(head[v, c] + graph.compute[v, c]))
    return head


def littered(rng):
    """Let new arrays hold anything where kernels are interpreted: what is not set is not read."""
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        return nullcontext()
    empty, litter = np.empty, rng.integers(0, 8, 50)

    def filled(shape, *given, **named):
        made = empty(shape, *given, **named)
        made.flat = litter
        return made

    return mock.patch.object(np, "empty", filled)


@pytest.mark.parametrize("part", range(4))
def test_heads_are_those_of_the_definition(part):
    """Every op's head on every class, with all ancestors and with those of a window."""
    rng = np.random.default_rng(part)
    for _ in range(120):
        graph, edges = drawn_graph(rng)
        n = len(graph.order)
        window = int(rng.choice([n, n, max(1, n - 2), 2]))
        steps = int(rng.choice([0, 99]))
        head = np.full(graph.compute.shape, -1, np.int64)
        earliest, ends, at = np.zeros(n, np.int64), np.zeros(n, np.int64), int(rng.integers(0, n))
        with littered(rng):
            earliest_starts(graph, head, earliest, ends, 0, at, window, steps)
            earliest_starts(graph, head, earliest, ends, at, n, window, steps)
        assert head.tolist() == heads_by_definition(graph, edges, window, steps).tolist()


@pytest.mark.parametrize(
    ("n", "end", "expected"),
    [
        (100, math.inf, 100),  # all ancestors
        (14_000, math.inf, 14_000),
        (20_000, math.inf, 11_000),  # 20 million visits a second, 11 of them
        (20_000, 0.0, 1_000),
        (4_000_000, math.inf, 64),  # but 64 ancestors in any case
        (4_000_000, 0.0, 64),
    ],
)
def test_the_window_of_a_large_graph_follows_the_time(n, end, expected):
    """As many ancestors of each op as the time allows to visit, 64 of them without time."""
    made = SimpleNamespace(num_ops=n, forwards="out", backwards="back", compute=None)
    asked = []

    def run(relaxation, direction, weights, window, until, work):
        asked.append((direction, window))

    with mock.patch.object(communication, "_run", run):
        heads_tails(made, end=end)
        heads_tails(made, 7, end=end)
    assert asked == [("out", expected), ("back", expected), ("out", 7), ("back", 7)]


def test_delays_between_the_ends_of_a_fork_are_those_of_the_recursion():
    """In any case the longest path; on another device, or on another island, each edge is paid, or
    what follows is.
    """
    rng = np.random.default_rng(5)
    for _ in range(60):
        n = int(rng.integers(3, 8))
        before = [[] for _ in range(n)]
        for v in range(1, n):
            for u in range(v):
                if rng.random() < 0.6:
                    free = int(rng.choice([0, 0, 1, 3]))
                    pay = INFINITE if rng.random() < 0.1 else free + int(rng.integers(0, 7))
                    far = INFINITE if rng.random() < 0.1 else pay + int(rng.integers(0, 7))
                    before[v].append((u, free, pay, far))
        ticks = rng.integers(0, 9, n).tolist()

        @cache
        def near(v, before=before, ticks=ticks):
            ways = [f + near(u) + (ticks[u] if u else 0) for u, f, *_ in before[v]]
            return max(ways, default=0) if v else 0

        @cache
        def apart(v, before=before, ticks=ticks):
            if v == 0:
                return INFINITE
            ways = []
            for u, free, pay, _ in before[v]:
                run = ticks[u] if u else 0
                ways.append(min(pay + run + near(u), INFINITE if free else run + apart(u)))
            return max(ways, default=0)

        @cache
        def away(v, before=before, ticks=ticks):
            if v == 0:
                return INFINITE
            ways = [0]
            for u, free, _, far in before[v]:
                run = ticks[u] if u else 0
                ways.append(min(far + run + near(u), free + run + away(u)))
            return max(apart(v), min(max(ways), MOST_TICKS))

        found = segments._delays(0, range(1, n), before, ticks)
        assert found == tuple({v: delay(v) for v in range(n)} for delay in (near, apart, away))
