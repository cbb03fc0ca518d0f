"""The bound by flows where transfers wait for one another: worked values, brute force, schedules."""

from __future__ import annotations

import numpy as np
import pytest
from exact_instances import brute_force
from random_problems import random_device, random_problem

import placeopt as po
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.bounds.congestion import congestion_steps, partitions
from placeopt.makespan.evaluate import evaluate
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.exact.cp_sat import CpSat
from placeopt.solvers.exact.makespan_tactics import MakespanFacts
from placeopt.solving.tracker import Tracker


def found(problem):
    """Return the best bound by flows between all ops, and the delays of all segments."""
    analysis = Analysis(problem, seconds=60.0)
    bound, delays = 0, []
    for step in congestion_steps(problem, lambda: analysis.evidence(0), analysis.end):
        if isinstance(step, int):
            bound = max(bound, step)
        else:
            delays = step
    return bound, delays


def on_a_bus(problem, hosts=None):
    """Let all transfers take one channel, or those from host to host."""
    host = np.arange(problem.num_devices) if hosts is None else np.array(hosts)
    return problem.replace(channel=np.where(host[:, None] == host, -1, 0))


def test_two_ops_share_a_device_or_wait_for_their_tensor():
    """Of 8 and 8 ticks with a tensor of 30: at 14 ticks a device has 14 of 16 units at most, so of
    the 128 pairs that the tensor carries 56 at least cross, which take 13.1 ticks; at 13, 18.3.
    """
    path = PlacementProblem.from_edges([[8, 8], [8, 8]], [(0, 1, 30)])
    assert found(on_a_bus(path))[0] == 14
    assert found(path) == (0, [])
    assert found(on_a_bus(path, [0, 0])) == (0, [])


def test_branches_leave_a_hub_or_pay_their_tensors():
    """Of four branches of 10 ticks that meet, each moves for 20: at D ticks 40 - D are elsewhere,
    which takes 2 (40 - D), so D is 27 at least. (Flows between all show 25, the optimum is 30).
    """
    star = PlacementProblem.from_edges([[10] * 2] * 4 + [[0] * 2], [(v, 4, 20) for v in range(4)])
    assert found(on_a_bus(star))[0] == 27
    join = PlacementProblem.from_edges(
        [[5] * 2, *[[10] * 2] * 4, [0] * 2],
        [(u, v, c) for w in range(1, 5) for u, v, c in ((0, w, 0), (w, 5, 20))],
    )
    ((segment, ticks),) = found(on_a_bus(join))[1]
    assert (segment.first, segment.last, ticks) == (0, 5, 27)


def test_partitions_have_a_channel_between_any_two_islands():
    """Hosts of two devices that share a bus are the islands; where a device of one can reach one of
    the other without it, nothing is left.
    """
    four = PlacementProblem.from_edges(np.full((2, 4), 3), [(0, 1, 5)])
    (part,) = partitions(on_a_bus(four, [0, 0, 1, 1]))
    assert (part.sizes, part.channels, part.weight.tolist()) == ([2, 2], 1, [5])
    channel = on_a_bus(four, [0, 0, 1, 1]).channel.copy()
    channel[0, 2] = -1
    assert partitions(four.replace(channel=channel)) == []


@pytest.mark.parametrize("contention", ["pair", "source", "bus", "mixed"])
def test_nothing_is_above_what_schedules_need(contention):
    """On random problems bounds are at most the best of all placements and orders, and no schedule
    keeps the ends of a segment closer to each other than its delay.
    """
    higher = delayed = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        small = seed % 2 == 0
        problem = random_problem(
            rng, max_ops=5 if small else 14, max_devices=3, contention=contention
        )
        problem = problem.replace(transfer=problem.transfer * int(rng.integers(1, 6)))
        bound, delays = found(problem)
        best = brute_force(problem) if small and bound else None
        assert best is None or bound <= best
        higher += bound > po.bound(problem, seconds=0, methods=["load"]).value
        delayed += len(delays)
        for _ in range(20):
            placement = Placement(random_device(rng, problem), rng.permutation(problem.num_ops))
            run = evaluate(problem, placement, "priority")
            assert bound <= run.makespan
            for (first, last, _), ticks in delays:
                assert run.start[last] - run.finish[first] >= ticks
    assert higher > 0
    assert delayed > 0


def test_grids_and_forks_on_hosts_that_share_a_link():
    """However a grid is cut, tensors cross between the hosts: a half more than the work of a host
    beside others. Stages of a fork-join add up.
    """
    hosts = [0, 0, 1, 1, 2, 2, 3, 3]
    grid = po.load("gen:stencil?rows=4&columns=4&steps=4&ccr=5&seed=1", "uniform:8")
    report = po.bound(on_a_bus(grid, hosts), methods=["load", "congestion"], seconds=60)
    assert report.bounds["congestion"] > 1.5 * report.bounds["load"]
    forks = po.load("gen:fork-join?stages=3&branches=16&ccr=1&seed=1", "uniform:8")
    report = po.bound(on_a_bus(forks, hosts), methods=["communication", "congestion"], seconds=60)
    assert report.bounds["congestion"] > 1.1 * report.bounds["communication"]


def test_a_search_looks_for_segments_however_long_its_quick_bounds_took():
    """The tactic begins when others have had their time, which is not its end."""
    stages = po.load("gen:fork-join?stages=2&branches=5&ccr=2&seed=1", "uniform:4")
    problem = on_a_bus(stages)
    tracker = Tracker(CpSat(), problem, Budget(60.0))
    facts = MakespanFacts(CpSat(), Analysis(problem, seconds=1e-9), tracker)
    assert max(facts.flows) > po.bound(problem, methods=["communication"], seconds=60).value
