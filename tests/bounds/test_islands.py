"""Devices of several hosts and speeds: which are an island, and bounds that know it, against every
schedule of small problems.
"""

from __future__ import annotations

import math
import time
from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pytest

import placeopt as po
from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.bounds.confinement import confined
from placeopt.makespan.bounds.destructive import propagate
from placeopt.makespan.bounds.relaxation import islands, relax
from placeopt.model.feasibility import impossible_reason
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.exact.makespan_tactics import _destructive

pytestmark = pytest.mark.interpreted

NEVER = 2**62


def problem_of(compute, edges, link, **named):
    """Return a problem whose edges (u, v, ticks per link class) are tensors of their own."""
    k = len(compute[0])
    return PlacementProblem(
        name="islands",
        compute=np.array(compute, np.int64),
        producer=np.array([u for u, _, _ in edges], np.int64),
        consumer_ptr=np.arange(len(edges) + 1),
        consumer=np.array([v for _, v, _ in edges], np.int64),
        transfer=np.array([t for _, _, t in edges], np.int64).reshape(
            len(edges), -1 if edges else 1
        ),
        link_class=np.array(link),
        channel=np.full((k, k), -1),
        **named,
    )


def drawn(rng):
    """Return a problem on up to four devices of two hosts, of their own speeds."""
    n = int(rng.integers(2, 5))
    k = int(rng.choice([2, 3, 4])) if n < 4 else int(rng.choice([2, 3]))
    host = np.sort(rng.integers(0, 2, k))
    speed = rng.integers(1, 6, 2)[host] if rng.random() < 0.6 else rng.integers(1, 6, k)
    grain = int(rng.choice([1, 1, 2**40]))
    compute = rng.integers(0, int(rng.choice([2, 6, 20])), n)[:, None] * speed * grain
    if rng.random() < 0.3:
        somewhere = rng.integers(0, k, n)
        compute[(rng.random((n, k)) < 0.3) & (np.arange(k) != somewhere[:, None])] = -1
    far = int(rng.choice([5, 30]))
    edges = [
        (u, v, grain * np.array([rng.integers(0, 4), rng.integers(0, 6), rng.integers(2, far)]))
        for v in range(n)
        for u in range(v)
        if rng.random() < 0.5
    ]
    group = rng.integers(-1, 2, n) if rng.random() < 0.3 else np.full(n, -1)
    link = np.where(host[:, None] == host, host, 2)
    room = rng.integers(3, 18, k) if rng.random() < 0.3 else np.full(k, NEVER)
    return problem_of(
        compute,
        edges or [(0, 1, [0, 0, 0])],
        link,
        colocation=group,
        resident=rng.integers(0, 6, n),
        capacity=room,
    )


def schedules(problem):
    """Yield (devices, starts, makespan) of every placement and order without idling on purpose."""
    p, n = problem, problem.num_ops
    edges = list(zip(p.producer.tolist(), p.consumer.tolist(), p.transfer.tolist(), strict=True))
    compute, link, group = p.compute.tolist(), p.link_class.tolist(), p.colocation.tolist()
    orders = [
        order
        for order in permutations(range(n))
        if all(order.index(u) < order.index(v) for u, v, _ in edges)
    ]
    for device in product(range(p.num_devices), repeat=n):
        used = np.bincount(device, weights=p.resident, minlength=p.num_devices)
        home = {}
        if (
            any(compute[v][d] < 0 for v, d in enumerate(device))
            or any(
                g >= 0 and home.setdefault(g, d) != d for g, d in zip(group, device, strict=True)
            )
            or (used > p.capacity).any()
        ):
            continue
        for order in orders:
            start, idle = [0] * n, [0] * p.num_devices
            for v in order:
                d = device[v]
                begin = idle[d]
                for u, w, ticks in edges:
                    if w == v:
                        e = device[u]
                        paid = 0 if d == e else ticks[link[e][d]]
                        begin = max(begin, start[u] + compute[u][e] + paid)
                start[v], idle[d] = begin, begin + compute[v][d]
            yield device, start, max(idle)


def test_an_island_is_what_the_widest_gap_between_links_leaves_together():
    """Hosts are islands; a single host is one, and so are devices that all links join alike."""
    for cluster, expected in (
        ("2xA100+2xV100", [0, 0, 2, 2]),
        ("2x2xV100", [0, 0, 2, 2]),
        ("1xA100+2xP100", [0, 1, 1]),
        ("4xA100", [0, 0, 0, 0]),
        ("cpu+gpu", [0, 0]),
    ):
        label = islands(po.load("gen:chain-mm", cluster)).tolist()
        assert [label.index(x) for x in label] == expected, cluster
    assert islands(problem_of([[1, 2]], [], [[0, 1], [1, 0]])).tolist() == [0, 0]  # no tensors
    found = relax(po.load("gen:chain-mm", "2x2xV100"))
    assert found.beside.tolist() == [[2]]
    found = relax(po.load("gen:chain-mm", "2xA100+1xV100"))
    assert sorted(map(sorted, found.beside.tolist())) == [[0, 1], [0, 2]]


@pytest.mark.parametrize("part", range(4))
def test_bounds_heads_and_what_a_horizon_rules_out_hold_for_every_schedule(part):
    """No bound is above the optimum, no head after a start; what the optimum rules out no optimal
    schedule uses.
    """
    rng, several = np.random.default_rng(part), 0
    for _ in range(25):
        problem = drawn(rng)
        every = list(schedules(problem))
        if not every or impossible_reason(problem):
            continue
        best = min(length for _, _, length in every)
        analysis = Analysis(problem, seconds=3600.0)
        for name in COMBINATORIAL:
            assert analysis.run(name) <= best, name
        kind, heads = analysis.relaxation.class_of, analysis.heads
        supposed = propagate(analysis.relaxation, heads, analysis.load.weights, best, math.inf)
        assert supposed is not None
        several += len(set(islands(problem).tolist())) > 1
        for device, start, length in every:
            for v, d in enumerate(device):
                end = start[v] + int(problem.compute[v, d])
                assert heads.head[v, kind[d]] <= start[v]
                assert heads.tail[v, kind[d]] <= length - end
                if length == best:
                    assert supposed[0].compute[v, kind[d]] >= 0
                    assert supposed[0].head[v, kind[d]] <= start[v]
    assert several > 3


def test_work_that_cannot_be_sent_and_come_back_in_time_stays_on_its_host():
    """Four ops of a fork on two fast devices take two turns, however many devices are far away."""
    near, far = 1, 50
    edges = [(0, v, [near, near, far]) for v in range(1, 5)]
    edges += [(v, 5, [near, near, far]) for v in range(1, 5)]
    link = [[0, 0, 2, 2], [0, 0, 2, 2], [2, 2, 1, 1], [2, 2, 1, 1]]
    problem = problem_of([[10, 10, 30, 30]] * 6, edges, link)
    analysis = Analysis(problem, seconds=3600.0)
    assert analysis.run("communication") == 10 + 20 + 1 + 10


def test_the_destructive_tactic_goes_on_by_bisection():
    """It ends at the least horizon that propagation does not refute."""
    rng, raised = np.random.default_rng(3), 0
    for _ in range(12):
        problem = drawn(rng)
        if impossible_reason(problem):
            continue
        analysis = Analysis(problem, seconds=3600.0)
        known = analysis.run("critical-path")
        state = SimpleNamespace(facts=SimpleNamespace(analysis=analysis))
        part = SimpleNamespace(
            lower_bound=known, value=None, seconds_left=math.inf, stop=lambda: False
        )
        part.raise_bound = lambda bound, _, part=part: setattr(part, "lower_bound", bound)
        assert _destructive(state, part)
        weights = analysis.load.weights
        held = propagate(analysis.relaxation, analysis.heads, weights, part.lower_bound, math.inf)
        assert held is not None or part.lower_bound == analysis.relaxation.serial
        raised += part.lower_bound > known
    assert raised


def twins(rng):
    """Return a problem on two hosts that are alike, of two devices each."""
    n = int(rng.integers(2, 4))
    compute = np.tile(rng.integers(1, 9, (n, 2 if rng.random() < 0.5 else 1)), 2)
    compute = np.repeat(compute, 4 // compute.shape[1], axis=1)
    if rng.random() < 0.3:
        compute[:, 1] += rng.integers(0, 2)  # not alike any more, now and then
    host = np.array([0, 0, 1, 1])
    edges = [
        (u, v, np.array([rng.integers(0, 3), rng.integers(5, 30)]))
        for v in range(n)
        for u in range(v)
        if rng.random() < 0.6
    ]
    link = (host[:, None] != host).astype(np.int64)
    room = rng.integers(4, 12, 2)[host] if rng.random() < 0.3 else np.full(4, NEVER)
    resident = rng.integers(0, 6, n)
    return problem_of(compute, edges or [(0, 1, [0, 0])], link, resident=resident, capacity=room)


@pytest.mark.parametrize("draw", [drawn, twins])
def test_what_is_left_of_the_devices_has_an_optimal_schedule(draw):
    """Confined to a horizon that there is a schedule for, the optimum stays; confined to less, it is
    never below.
    """
    rng, fewer, alike, refuted = np.random.default_rng(11), 0, 0, 0
    for _ in range(120):
        problem = draw(rng)
        lengths = [length for _, _, length in schedules(problem)]
        if not lengths or impossible_reason(problem):
            continue
        best = min(lengths)
        analysis = Analysis(problem, seconds=3600.0)
        for horizon in (best, best + int(rng.integers(0, 9))):
            left = confined(analysis, horizon, 3600.0)
            assert left is not None
            assert min(length for _, _, length in schedules(left)) == best
            fewer += bool(((problem.compute >= 0) & (left.compute < 0)).any())
            alike += bool((left.compute[:, -1] < 0).all())
        refuted += best > 0 and confined(analysis, best - 1, 3600.0) is None
    assert fewer > 40
    assert alike > 20
    assert refuted > 20


def two_hosts():
    """Two hosts that are alike, transfers between them dearer than the whole schedule."""
    rng, n = np.random.default_rng(1), 14
    compute = np.repeat(rng.integers(5, 20, n)[:, None], 4, axis=1)
    host = np.array([0, 0, 1, 1])
    edges = [
        (u, v, np.array([rng.integers(0, 5), 1000]))
        for v in range(n)
        for u in range(v)
        if rng.random() < 0.25
    ]
    edges += [(0, v, np.array([1, 1000])) for v in range(1, n)]
    return problem_of(compute.tolist(), edges, (host[:, None] != host).astype(np.int64))


def test_the_tactic_closes_what_the_quick_bounds_leave():
    """On one of two hosts the problem is closed, and the method has its name."""
    problem = two_hosts()
    analysis = Analysis(problem, seconds=10.0)
    analysis.run_all((*COMBINATORIAL, "segments"), optional=False)
    result = po.solve(problem, "cp-sat", tactics="islands", seconds=60, num_workers=1)
    assert analysis.best()[0] < result.value
    assert (result.status, result.bound_method) == ("optimal", "islands")


def test_a_look_that_is_cut_short_is_taken_again(monkeypatch):
    """The first two find nothing, as on a machine that stands still meanwhile."""
    looks = []

    def cut_short(analysis, horizon, seconds):
        looks.append(seconds)
        if len(looks) > 2:
            return confined(analysis, horizon, seconds)
        time.sleep(seconds)
        return analysis.problem

    monkeypatch.setattr("placeopt.solvers.exact.makespan_tactics.confined", cut_short)
    result = po.solve(two_hosts(), "cp-sat", tactics="islands", seconds=60, num_workers=1)
    assert (result.status, result.bound_method) == ("optimal", "islands")
    assert len(looks) > 2


@pytest.mark.jit
def test_paths_of_single_ops_rule_out_a_host():
    """Ops of a NASNet cell that are joined to no other one for good: on the slower host each makes
    a path that is longer than the horizon.
    """
    problem = po.load("gen:nasnet-cell?cells=2&filters=32", "2xA100+2xV100")
    analysis = Analysis(problem, seconds=600.0)
    analysis.run_all(COMBINATORIAL, optional=False)
    left = confined(analysis, 747_600, 600.0)
    assert left is not None
    assert (left.compute >= 0).any(axis=0).tolist() == [True, True, False, False]
