"""The bound by segments: worked values, brute force, and what reads the heads that it raises."""

from __future__ import annotations

import numpy as np
import pytest
from exact_instances import brute_force, random_layered

import placeopt as po
from placeopt.makespan.bounds import bound
from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.bounds.segment_graph import Delay, Segment
from placeopt.makespan.bounds.segments import segment_delays
from placeopt.model.problem import PlacementProblem

pytestmark = pytest.mark.interpreted


def fork(ticks, pay, num_devices=2):
    """Return an op that feeds branches of two ops each, which meet in one op; every edge takes
    `pay` ticks.
    """
    compute, edges = [1], []
    for first, second in ticks:
        edges += [(0, len(compute), pay), (len(compute), len(compute) + 1, pay)]
        compute += [first, second]
    edges += [(v, len(compute), pay) for v in range(2, len(compute), 2)]
    compute.append(1)
    return PlacementProblem.from_edges(
        np.repeat(np.array(compute)[:, None], num_devices, axis=1), edges
    )


def test_a_worked_fork():
    """Three branches of 2 + 2 ticks and 3 ticks to send: at best, both devices have run 6 ticks of
    them when 9 have passed.
    """
    problem = fork([(2, 2)] * 3, 3)
    analysis = Analysis(problem, seconds=3600.0)
    for name in COMBINATORIAL:
        analysis.run(name)
    known = analysis.best()[0]
    optimum = brute_force(problem)
    assert segment_delays(analysis.evidence(known - 1), np.inf) == [
        Delay(Segment(0, 7, (1, 3, 5, 2, 4, 6)), 9)
    ]
    assert known <= optimum == analysis.run("segments") == 11


@pytest.mark.jit
def test_below_brute_force_on_forks():
    """On random forks the bound is at most the best of all placements and orders, and sometimes
    above all cheaper ones.
    """
    rng, raised = np.random.default_rng(3), 0
    for _ in range(25):
        compute = np.repeat(rng.integers(0, 9, 6)[:, None], int(rng.integers(2, 4)), axis=1)
        edges = [(0, v, int(rng.integers(0, 9))) for v in range(1, 5)] + [
            (v, 5, int(rng.integers(0, 9))) for v in range(1, 5)
        ]
        problem = PlacementProblem.from_edges(compute, edges)
        analysis = Analysis(problem, seconds=3600.0)
        for name in COMBINATORIAL:
            analysis.run(name)
        known, optimum = analysis.best()[0], brute_force(problem)
        assert analysis.run("segments") <= optimum
        assert analysis.run("destructive") <= optimum
        raised += analysis.bounds["segments"] > known
    assert raised > 0


@pytest.mark.jit
def test_a_recurrent_network_is_all_but_closed():
    """What heads lose in every step of a recurrent network is proved: the gap falls from 3 % to a
    tenth of a percent.
    """
    problem = po.load("gen:rnn-lm", "4xP100")
    report = bound(problem, methods=["communication", "segments"], seconds=3600)
    assert report.bounds["communication"] == 3493786
    assert report.bounds["segments"] >= 3608106
    assert report.value <= 3611977  # a known schedule


@pytest.mark.parametrize("name", ["fork-join", "segments"])
def test_segments_raise_what_front_and_cp_sat_read(name):
    """The heads and tails of an analysis are never lower after the bounds by segments."""
    for seed in range(3):
        analysis = Analysis(random_layered(20, 3, seed), seconds=3600.0)
        before = analysis.heads
        analysis.run(name)
        assert (analysis.heads.head >= before.head).all()
        assert (analysis.heads.tail >= before.tail).all()


def test_alike_segments_are_solved_once(monkeypatch):
    """A chain of equal forks asks for one small problem per size."""
    from placeopt.makespan.bounds import segments

    solved = []
    least = segments._Model.least
    monkeypatch.setattr(
        segments._Model, "least", lambda self, end: solved.append(self.key) or least(self, end)
    )
    edges = [
        edge
        for a in range(0, 15, 3)
        for edge in ((a, a + 1, 4), (a, a + 2, 4), (a + 1, a + 3, 4), (a + 2, a + 3, 4))
    ]
    problem = PlacementProblem.from_edges([[3, 3]] * 16, edges)
    delays = segment_delays(Analysis(problem, seconds=3600.0).evidence(0), np.inf)
    assert len(solved) == len(set(solved))
    assert len(solved) < 12
    assert all(delay.ticks > 0 for delay in delays)


@pytest.mark.jit
def test_transfers_that_no_segment_can_have_in_turn():
    """Ten transfers, one after the other, would take more ticks than a variable holds."""
    kinds = [[1, 1], *([[2, -1], [-1, 2]] * 5), [1, 1]]
    problem = PlacementProblem.from_arrays(
        compute=kinds,
        producer=range(11),
        consumer_ptr=[0, *range(10, 21)],
        consumer=[*range(1, 11), *[11] * 10],
        transfer=[[2**60], *[[1]] * 10],
    )
    assert po.bound(problem, seconds=2.0, methods=["segments"]).value <= 2**60 + 14
