"""The bound by forks and joins: worked values, brute force, and what reads the heads that it
raises.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from exact_instances import brute_force

import placeopt as po
from placeopt.makespan.bounds import bound, segment_graph
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.bounds.communication import heads_tails
from placeopt.makespan.bounds.segments import Spread, fork_join_bound, spreads
from placeopt.model.problem import PlacementProblem

pytestmark = pytest.mark.interpreted


def fan(ticks, pay, num_devices):
    """Return an op of no length that feeds branches of one op each, which meet in another; every
    edge takes `pay` ticks.
    """
    compute, last = [0, *ticks, 0], len(ticks) + 1
    edges = [(0, v, pay) for v in range(1, last)] + [(v, last, pay) for v in range(1, last)]
    return PlacementProblem.from_edges(
        np.repeat(np.array(compute)[:, None], num_devices, axis=1), edges
    )


def raised(problem, *names):
    """Return the analysis of a problem after some bounds, forks and joins last."""
    analysis = Analysis(problem, seconds=3600.0)
    for name in (*names, "fork-join"):
        analysis.run(name)
    return analysis


def test_a_worked_fan():
    """Nine ops of 4 ticks on three devices, 3 ticks to send: two devices lose 6 of their ticks
    each, (36 + 12) / 3 = 16.
    """
    problem = fan([4] * 9, 3, 3)
    analysis = raised(problem, "communication")
    assert [spread for _, spread in spreads(analysis.evidence(0), np.inf)] == [
        Spread(16, tuple(range(1, 10)))
    ]
    assert analysis.bounds == {"communication": 14, "fork-join": 16}


def on_hosts(problem, host, far):
    """Return a problem on devices of hosts, between which a transfer takes `far` times as long."""
    host = np.array(host)
    return problem.replace(
        transfer=problem.transfer[:, :1] * [1, far],
        link_class=(host[:, None] != host).astype(np.int64),
    )


def test_a_worked_fan_on_two_hosts():
    """Nine ops of 4 ticks, 3 ticks to send inside a host and 9 to the other one: its two devices
    lose 18 of their ticks each, the second of the first host 6, (36 + 42) / 4 = 19.5; three devices
    take (36 + 24) / 3 = 20, and two (36 + 6) / 2 = 21.
    """
    problem = on_hosts(fan([4] * 9, 3, 4), [0, 0, 1, 1], 3)
    analysis = raised(problem, "communication")
    assert analysis.bounds == {"communication": 15, "fork-join": 20}
    assert raised(on_hosts(problem, [0, 0, 0, 1], 1)).bounds["fork-join"] == 14  # (36 + 18) / 4
    unlike = on_hosts(fan([4] * 9, 3, 4), [0, 0, 0, 1], 9)  # 3 devices: (36 + 12) / 3
    assert raised(unlike).bounds["fork-join"] == 16


def test_heads_raised_by_delays_end_with_the_time(monkeypatch):
    """Delays are looked for in half of it."""
    ends = []

    def noted(relaxation, window, end, *rest, **more):
        ends.append(end)
        return heads_tails(relaxation, window, end, *rest, **more)

    monkeypatch.setattr(segment_graph, "heads_tails", noted)
    end = time.perf_counter() + 60.0
    known = Analysis(fan([4] * 9, 3, 3), seconds=3600.0).evidence(0)
    assert fork_join_bound(known, end)[0] == 16
    assert ends == [end]


def test_one_device_where_sending_takes_long():
    """Where sending takes longer than the work, everything runs on the device of the fork."""
    assert raised(fan([4] * 3, 50, 2)).bounds["fork-join"] == 12


def test_ops_that_cannot_be_apart_do_not_count():
    """A branch that has to share the device of the fork is left out, whatever the others cost."""
    problem = fan([4] * 9, 3, 3)
    colocation = np.full(problem.num_ops, -1)
    colocation[[0, 1]] = 0
    bounded = raised(problem.replace(colocation=colocation)).bounds["fork-join"]
    assert bounded == -(-(32 + 12) // 3)


@pytest.mark.jit
def test_below_brute_force():
    """On random fans the bound is at most the best of all placements and orders, and at times above
    cheaper ones.
    """
    rng, higher, met = np.random.default_rng(5), 0, 0
    for _ in range(25):
        compute = np.repeat(rng.integers(1, 6, 7)[:, None], 2, axis=1)
        edges = [
            (u, v, int(rng.integers(0, 4)))
            for middle in range(1, 6)
            for u, v in ((0, middle), (middle, 6))
        ]
        problem = PlacementProblem.from_edges(compute, edges)
        analysis = raised(problem, "critical-path", "load", "communication")
        known, optimum = (
            max(v for name, v in analysis.bounds.items() if name != "fork-join"),
            brute_force(problem),
        )
        assert analysis.bounds["fork-join"] <= optimum
        for name in ("head-tail", "energy", "destructive", "segments"):
            assert analysis.run(name) <= optimum
        higher += analysis.bounds["fork-join"] > known
        met += analysis.bounds["fork-join"] == optimum
    assert higher > 0
    assert met > 0


@pytest.mark.jit
def test_hosts_are_below_brute_force():
    """Random fans on a host of one device and one of two: above what is known without hosts, and
    never above the best of all placements and orders.
    """
    rng, higher, met = np.random.default_rng(5), 0, 0
    for _ in range(25):
        problem = fan(rng.integers(1, 6, 4), int(rng.integers(1, 3)), 3)
        alike = raised(problem).bounds["fork-join"]
        hosts = on_hosts(problem, [0, 1, 1], int(rng.integers(2, 5)))
        optimum = brute_force(hosts)
        analysis = raised(hosts)
        for name in ("head-tail", "energy", "destructive", "segments"):
            assert analysis.run(name) <= optimum
        assert alike <= analysis.bounds["fork-join"] <= optimum
        higher += analysis.bounds["fork-join"] > alike
        met += analysis.bounds["fork-join"] == optimum
    assert higher > 0
    assert met > 0


@pytest.mark.jit
@pytest.mark.parametrize(
    ("source", "before", "least", "known"),
    [
        ("gen:moe?layers=2", 118442914, 118529058, 118536378),
        ("gen:nasnet-cell", 2136309, 2161240, 2183891),
    ],
)
def test_layers_that_fan_out(source, before, least, known):
    """Experts and cells pay for the way to their branches and for the way back; `known` is a
    schedule's length.
    """
    report = bound(po.load(source, "4xP100"), methods=["communication", "fork-join"], seconds=3600)
    assert report.bounds["communication"] == before
    assert least <= report.bounds["fork-join"] <= known
