"""Pieces of the latency's bounds against their definitions: what shares the accelerators, and when
the bound by flows ends.
"""

from __future__ import annotations

from unittest import mock

import networkx as nx
import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.latency.bounds import flow, latency_bounds, load_bound, longest_path

pytestmark = pytest.mark.interpreted


def path_through(problem, v):
    """Return the longest paths before and after an op, every op at its fastest."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(problem.num_ops))
    ptr, successor, _ = problem.successors
    graph.add_edges_from(
        (u, int(w)) for u in range(problem.num_ops) for w in successor[ptr[u] : ptr[u + 1]]
    )
    least = problem.min_compute.tolist()
    ways = []
    for ends in (graph, graph.reverse()):
        paths = (path for u in nx.ancestors(ends, v) for path in nx.all_simple_paths(ends, u, v))
        ways.append(max((sum(least[w] for w in path[:-1]) for path in paths), default=0))
    return ways


def refuted(problem, around, limit):
    """Whether the ops that no CPU can run in time exceed what the accelerators have for them."""
    paying = [d for d in range(problem.num_devices) if problem.io_class[d] >= 0]
    times = problem.compute
    must, busy = [], []
    for v, (head, tail) in enumerate(around):
        on_cpu = [t for d, t in enumerate(times[v].tolist()) if d not in paying and t >= 0]
        busy.append(min((int(t) for t in times[v, paying] if t >= 0), default=0))
        if not on_cpu or head + min(on_cpu) + tail > limit:
            must.append(v)
    return any(
        sum(busy[v] for v in must if around[v][0] >= a and around[v][1] >= b)
        > len(paying) * (limit - a - b)
        and any(around[v][0] >= a and around[v][1] >= b for v in must)
        for a, _ in around
        for _, b in around
    )


def test_what_no_cpu_can_take_shares_the_accelerators():
    """The bound is the least time that no heads and tails refute, at least the longest path."""
    raised = 0
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, paying = int(rng.integers(3, 8)), int(rng.integers(1, 4))
        edges = [(u, v, 1) for v in range(n) for u in range(v) if rng.random() < 0.25]
        if rng.random() < 0.5:  # a fork and a join
            edges = list({*edges, *((0, v, 1) for v in range(1, n - 1))})
            edges = list({*edges, *((v, n - 1, 1) for v in range(n - 1))})
        cpu = np.where(rng.random(n) < 0.4, -1, rng.integers(1, 30, n))
        compute = np.column_stack([*rng.integers(1, 9, (paying, n)), cpu])
        io_class = [*[0] * paying, -1]
        if rng.random() < 0.2:
            compute, io_class = compute[:, :-1], io_class[:-1]
        problem = po.PlacementProblem.from_edges(
            compute, edges, io_class=io_class, objective="latency"
        )
        path = longest_path(problem)
        around = [path_through(problem, v) for v in range(n)]
        through = [a + int(t) + b for (a, b), t in zip(around, problem.min_compute, strict=True)]
        assert path == max(through)
        found = load_bound(problem, path)
        assert found == path or refuted(problem, around, found - 1)
        assert not any(refuted(problem, around, t) for t in range(found, found + 12))
        raised += found > path
    assert raised > 10
    host = po.PlacementProblem.from_edges([[3], [4]], [], io_class=[-1], objective="latency")
    assert load_bound(host, 4) == 4


def test_load_shares_among_accelerators_that_run_something():
    """Of two accelerators one runs nothing: 12 ops of a tick take 12 on the other one, not 6."""
    compute = np.tile([1, -1, 99], (12, 1))
    problem = po.PlacementProblem.from_edges(compute, [], objective="latency", io_class=[0, 0, -1])
    assert load_bound(problem, 1) == 12


@pytest.mark.parametrize(
    ("upper", "expected"), [(None, [3, 5, 7, 9]), (7, [3, 5, 7]), (6, [3, 5, 7]), (2, [3])]
)
def test_flows_end_where_a_known_latency_is_met(upper, expected):
    """No flow is asked for after one that proves the known latency."""
    asked = []

    def bounds(problem, known, offer, stop):
        for value in (3, 5, 7, 9):
            asked.append(value)
            yield value, True

    problem = problems.random_problem(0, n=4, objective="latency", slots=1)
    with mock.patch.object(flow, "flow_bounds", bounds):
        found = dict(latency_bounds(problem, 60.0, ("flow",), upper))
    assert asked == expected
    assert found == {"flow": expected[-1]}


def test_what_a_flow_is_scaled_and_weighed_by():
    """Ticks of the master problem are shares of all work of the slots; a flow's weight leaves room
    for what any placement costs.
    """
    seen = 0
    for seed in range(12):
        bound = flow.FlowBound(
            problems.random_problem(seed, n=5, objective="latency", slots=1 + seed % 2)
        )
        if not bound.usable:
            continue
        a = bound.arrays
        ticks = [max(0, int(t)) for t in a.slot_time]
        assert bound._scale == max(1, sum(ticks))
        dearest = sum(max(int(s), int(p)) for s, p in zip(a.slot_time, a.pool_time, strict=True))
        dearest += 2 * bound._num_slots * int(a.io_time.sum())
        assert bound._weight * dearest < 2**60
        largest = np.where((a.slot_time < 0), a.pool_time, a.slot_time)
        both = (a.slot_time >= 0) & (a.pool_time >= 0)
        fast = np.where(both, np.minimum(a.slot_time, a.pool_time), largest)
        assert bound._fast.tolist() == fast.tolist()
        seen += 1
    assert seen > 5
