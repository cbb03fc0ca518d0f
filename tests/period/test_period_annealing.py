"""Annealing of the period: what the kernel keeps up to date, and the best of all placements."""

from __future__ import annotations

import random
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.result import Budget
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_batch, period_loads
from placeopt.period.judge import ordered_pairs, period_violations
from placeopt.solvers.exact import period_local_search as search
from placeopt.solving.tracker import Tracker

sys.path.insert(0, str(Path(__file__).parents[1] / "attack"))

from brute_force import best_period
from case import draw
from compare import problem_of

pytestmark = pytest.mark.jit


def pairs_between(problem, device):
    """Pairs of a device and an op that it lacks on a path between two of its ops, by definition."""
    reach = {(u, v) for u, v in ordered_pairs(problem) if u != v}
    while True:
        longer = {(u, w) for u, v in reach for x, w in reach if v == x} - reach
        if not longer:
            break
        reach |= longer
    return {
        (device[u], x)
        for u, x in reach
        for y, w in reach
        if x == y and device[u] == device[w] != device[x]
    }


def walked(problem, seed):
    """Where 50 moves at a high temperature end, and what the kernel keeps of it."""
    model = contract(problem)
    arrays = search.search_arrays(model)
    walk = search.make_walk(arrays)
    rng = np.random.default_rng(seed)
    nodes = np.array([rng.choice(np.flatnonzero(row >= 0)) for row in arrays.compute[0]])
    cycle = search.Cycle(np.zeros(len(walk.load), np.int64), 0.0, 0.0, 0.0, 9.0, 9.0, 50)
    search._anneal(arrays, walk, cycle, nodes, seed)
    return model.expand(walk.device), walk


@pytest.mark.parametrize("contiguity", ["convex", "none"])
def test_counts_are_those_of_the_definition(contiguity):
    """After moves that were made and taken back, loads, bytes and pairs of ops between are those of
    the definition; no pair is left if and only if the judge finds nothing.
    """
    count = {True: 0, False: 0}
    for seed in range(100):
        problem = problems.random_problem(seed, contiguity=contiguity, n=9)
        device, walk = walked(problem, seed)
        loads = period_loads(problem, device)
        assert (walk.load.sum(axis=0) == loads.sum(axis=0)).all()
        assert (walk.used == np.bincount(device, problem.resident, problem.num_devices)).all()
        found = pairs_between(problem, device.tolist()) if contiguity == "convex" else set()
        assert walk.between[0] == len(found)
        said = [x for x in period_violations(problem, po.Placement(device)) if "convex" in x]
        assert bool(said) == bool(found)
        count[bool(found)] += 1
    assert count[False] > 20
    assert (count[True] > 20) == (contiguity == "convex")


def test_edges_back_are_those_of_the_definition():
    """After moves that were made and taken back in a chain, loads are those of the definition, and
    edges back are counted once.
    """
    count = {True: 0, False: 0}
    for seed in range(100):
        problem = problems.random_problem(seed, contiguity="chain", n=9)
        try:
            model = contract(problem)
        except InfeasibleProblemError:
            continue
        device, walk = walked(problem, seed)
        loads = period_loads(problem, device)
        assert (walk.load.sum(axis=0) == loads.sum(axis=0)).all()
        at = walk.place[walk.device]
        back = at[model.order_from] > at[model.order_to]
        assert walk.between[0] == back.sum()
        count[bool(back.any())] += 1
    assert min(count.values()) > 20


@pytest.mark.parametrize("contiguity", ["chain", "convex", "none"])
def test_alone_it_finds_the_best(contiguity):
    """From nothing, with no other tactic, it ends at the best of all placements of small problems,
    colocation, memory and unlike devices counted (but for a few of two passes, whose shares of the
    target it does not search, and of chains, whose devices it does not bring into another order); it
    offers nothing that is infeasible or below.
    """
    missed = {"1f1b": 0, "gpipe": 0}
    drawn = 0
    for seed in range(150):
        case = draw(random.Random(seed), "period")
        case.contiguity = contiguity
        best = best_period(case)
        problem = problem_of(case)
        if best is None or problem.num_devices < 2 or contract(problem).num_nodes < 2:
            continue
        tracker = Tracker("cp-sat", problem, Budget(evaluations=1000))
        for _ in islice(search.anneal_period(tracker, tracker.rng()), 40):
            if tracker.stop():
                break
        drawn += 1
        missed[case.pipeline] += tracker.value != best
        assert tracker.value is None or tracker.value >= best
        if tracker.solution is not None:
            assert not period_violations(problem, tracker.solution)
    assert drawn > 60
    assert missed["1f1b"] <= 2 * (contiguity == "chain")
    assert missed["gpipe"] <= 3


def test_devices_may_feed_each_other():
    """Two branches that cross twice are convex and no pipeline: annealing alone finds them."""
    problem = po.PlacementProblem.from_edges(
        [[4, 5], [5, 4], [5, 4], [4, 5]],
        [(0, 1, 0), (2, 3, 0)],
        objective="period",
        contiguity="convex",
    )
    assert int(period_batch(problem.replace(contiguity="chain"), [[0, 1, 1, 0]])[0]) == INFEASIBLE
    tracker = Tracker("cp-sat", problem, Budget(evaluations=100))
    next(search.anneal_period(tracker, tracker.rng()))
    assert (tracker.value, tracker.solution.device.tolist()) == (8, [0, 1, 1, 0])


def test_passes_through_full_memory():
    """Where two devices are exactly filled, so that no single op can move, annealing finds a
    placement: at the usual price of bytes alone it found none.
    """
    rng = np.random.default_rng(0)
    home, resident = rng.integers(0, 2, 400), rng.integers(1, 2**20, 400)
    problem = po.PlacementProblem.from_edges(
        np.repeat(rng.integers(1, 1000, (400, 1)), 2, axis=1).tolist(),
        [(v, v + 1, 1) for v in range(399)],
        resident=resident,
        capacity=[int(resident[home == d].sum()) for d in range(2)],
        objective="period",
        contiguity="none",
    )
    tracker = Tracker("cp-sat", problem, Budget(evaluations=100))
    for _ in islice(search.anneal_period(tracker, tracker.rng()), 8):
        if tracker.solution is not None:
            break
    assert tracker.solution is not None


@pytest.mark.parametrize("backwards", [False, True])
def test_what_hangs_on_a_hub_stays_or_leaves_by_what_is_less(backwards):
    """A fork or a join: the device of the hub takes the lesser of work and transfer of each branch,
    as the first pieces do.
    """
    rng, n = np.random.default_rng(4), 60
    compute = np.repeat(rng.integers(10, 100, (n + 1, 1)), 4, axis=1)
    ends = [(0, v, int(rng.integers(10, 100))) for v in range(1, n + 1)]
    if backwards:
        ends = [(v, 0, ticks) for _, v, ticks in ends]
    problem = po.PlacementProblem.from_edges(compute, ends, objective="period")
    model = contract(problem, contiguity="none")
    device = model.expand(next(search.around_hubs(model)))
    assert period_batch(problem, device[None])[0] == model.surroundings.max()


def test_a_tensor_that_all_branches_read_is_paid_for_once():
    """Work is spread evenly beside a transfer that is longer than every branch."""
    compute, n = np.arange(10, 71).reshape(-1, 1).repeat(4, axis=1), 60
    problem = po.PlacementProblem(
        name="broadcast",
        compute=compute,
        producer=[0],
        consumer_ptr=[0, n],
        consumer=np.arange(1, n + 1),
        transfer=[[90]],
        objective="period",
    )
    model = contract(problem, contiguity="none")
    device = model.expand(next(search.around_hubs(model)))
    load = period_loads(problem, device).sum(axis=0)
    assert load.max() - load.min() < compute.max()


def test_pieces_leave_a_hub_where_memory_is_short_or_they_run_elsewhere_only():
    """Two of five branches fit beside the hub, and one does not run there."""
    compute = [[1, 1], *[[10, 10]] * 4, [-1, 10]]
    problem = po.PlacementProblem.from_edges(
        compute,
        [(0, v, 50) for v in range(1, 6)],
        resident=[1] * 6,
        capacity=[3, 6],
        objective="period",
    )
    model = contract(problem, contiguity="none")
    assert any(
        period_batch(problem, model.expand(device)[None])[0] < INFEASIBLE
        for device in search.around_hubs(model)
    )


def test_moves_are_dear_where_blocks_grow_into_hubs():
    """A chain's moves cost one each, those of a star of n branches grow with n."""
    for n, least, most in ((40, 3, 10), (400, 30, 100)):
        star = [(0, v, 5) for v in range(1, n + 1)]
        chain = [(v, v + 1, 5) for v in range(n)]
        models = [
            contract(
                po.PlacementProblem.from_edges([[7] * 3] * (n + 1), edges, objective="period"),
                contiguity="none",
            )
            for edges in (chain, star)
        ]
        assert search._cost_of_moves(models[0]) == 1
        assert least <= search._cost_of_moves(models[1]) <= most
