"""The annealing walk: its incremental values are those of a plain serial schedule, and its moves
keep every constraint.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from random_problems import random_problem

from placeopt.api import load, solve
from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.makespan.judge import placement_violations
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.random_bits import random_states
from placeopt.model.result import Budget
from placeopt.solvers.search.annealing import MoveShares
from placeopt.solvers.search.annealing_walks import AnnealingWalk, WalkTeam
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solvers.search.walk_kernels import BEST, EMPTY, PROPOSED, THRESHOLD
from placeopt.solving.registry import make_solver

SEEDS = st.integers(0, 10_000)


def serial_schedule(problem, device, sequence):
    """Insert op by op into the earliest gap of its device: plain Python, no shared code; return the
    starts.
    """
    start, finish = {}, {}
    held = {d: [] for d in range(problem.num_devices)}
    tensors = [[] for _ in range(problem.num_ops)]  # of each reader
    for t, producer in enumerate(problem.producer):
        for reader in problem.consumer[problem.consumer_ptr[t] : problem.consumer_ptr[t + 1]]:
            tensors[reader].append((t, producer))
    for op in sequence:
        d, time = device[op], 0
        for t, producer in tensors[op]:
            delay = (
                problem.transfer[t, problem.link_class[device[producer], d]]
                if device[producer] != d
                else 0
            )
            time = max(time, finish[producer] + delay)
        cost = problem.compute[op, d]
        for other in sorted(held[d], key=lambda x: (start[x], finish[x])):
            if time + cost > start[other] and finish[other] > time:
                time = finish[other]
        start[op], finish[op] = time, time + cost
        held[d].append(op)
    return np.array([start[op] for op in range(problem.num_ops)])


def walker_on(seed, *, max_ops=14, capacity=None, contention="none"):
    """Return a random problem and a walker from a random feasible start."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, max_ops=max_ops, contention=contention)
    if capacity:
        room = max(
            int(problem.resident.sum() * 0.7),
            int(problem.resident.sum()) // problem.num_devices + 30,
        )
        problem = problem.replace(capacity=np.full(problem.num_devices, room))
    space = SearchSpace(problem)
    homes = space.random_homes(rng)
    assert homes is not None
    return problem, AnnealingWalk(
        space, space.devices_of(homes), space.sequence, random_states(rng, 1)[0]
    )


@pytest.mark.interpreted
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_incremental_values_are_those_of_a_full_schedule(seed):
    """After any number of accepted and rejected proposals, the value is that of scheduling
    everything anew.
    """
    problem, walker = walker_on(seed)
    for steps, heat in ((1, 0.0), (7, 5.0), (40, 2.0), (40, 0.0)):
        walker.run(steps, heat, heat / 10)
        walk = walker._state
        start = serial_schedule(problem, walk.device, walk.sequence)
        finish = start + problem.compute[np.arange(problem.num_ops), walk.device]
        assert walker.value == finish.max()
        assert walk.start.tolist() == start.tolist()


@pytest.mark.interpreted
@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_best_placement_is_worth_what_the_walk_says(seed):
    """Executed as planned, the placement handed out ends no later than the walk's best value."""
    problem, walker = walker_on(seed)
    walker.run(60, 4.0, 0.1)
    placement = walker.best_placement()
    assert evaluate(problem, placement, "planned").makespan <= walker.best_value
    assert best_queue(problem, placement)[0] <= walker.best_value <= walker.value


@pytest.mark.interpreted
@given(seed=SEEDS, contention=st.sampled_from(["pair", "source"]))
@settings(max_examples=25, deadline=None)
def test_contended_values_are_those_of_executions(seed, contention):
    """Where transfers wait for channels, the value is that of executing the sequence as ranks, and
    the ops of a device are known in the order in which they run.
    """
    problem, walker = walker_on(seed, contention=contention)
    assume(problem.num_channels > 0)  # there are none on one device
    for steps, heat in ((1, 0.0), (20, 5.0), (40, 0.0)):
        walker.run(steps, heat, heat / 10)
        walk = walker._state
        now = evaluate(problem, Placement(walk.device, walk.position), "priority")
        assert (walker.value, walk.start.tolist()) == (now.makespan, now.start.tolist())
        assert (walk.finish[walk.before] <= walk.start)[walk.before >= 0].all()
        best = evaluate(problem, walker.best_placement(), "priority")
        assert best.makespan == walker.best_value


@pytest.mark.interpreted
@given(seed=SEEDS, contention=st.sampled_from(["pair", "source"]))
@settings(max_examples=25, deadline=None)
def test_contended_proposals_are_given_up_beyond_the_limit_alone(seed, contention):
    """A proposal that is so much longer is kept where that much is allowed, and not below."""
    problem, walker = walker_on(seed, contention=contention)
    assume(problem.num_channels > 0)
    space, (device, sequence) = walker.space, walker.origin
    for random in random_states(np.random.default_rng(seed), 8):

        def value(room, random=random):
            walk = AnnealingWalk(space, device, sequence, random, acceptance=THRESHOLD)
            walk.run(1, room, room)
            return walk.value

        longer = value(1e9) - walker.value
        if longer > 0:
            assert value(longer) == walker.value + longer
            assert value(longer - 1) == walker.value


@given(seed=SEEDS, contention=st.sampled_from(["pair", "source", "bus", "mixed"]))
@settings(max_examples=25, deadline=None)
def test_proposals_are_given_up_by_what_channels_carry(seed, contention):
    """The loads of the channels that a proposal is held against are those of its transfers, and an
    execution counts down all of them.
    """
    problem, walker = walker_on(seed, contention=contention)
    assume(problem.num_channels > 0)
    for _ in range(5):
        before = walker.tally.copy()
        walker.run(1, 1e12, 1e12)  # what is not empty is kept
        if (walker.tally - before)[:, EMPTY].any():
            continue
        walk, cutoff = walker._state, walker._run.memory.cutoff
        now = evaluate(problem, Placement(walk.device, walk.position), "priority")
        load = np.zeros(problem.num_channels, np.int64)
        source = walk.device[problem.producer[now.transfers[:, 0]]]
        lane = problem.lanes[source, now.transfers[:, 1]]
        contended = lane >= 0
        np.add.at(load, lane[contended], (now.transfers[:, 3] - now.transfers[:, 2])[contended])
        assert cutoff.load.tolist() == cutoff.carried.tolist() == load.tolist()


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_walks_keep_every_constraint(seed):
    """Capacity, colocation and compatibility hold at every stage, and the sequence stays
    topological.
    """
    problem, walker = walker_on(seed, capacity=True)
    for _ in range(6):
        walker.run(15, 10.0, 1.0)
        walk = walker._state
        assert not placement_violations(problem, Placement(walk.device))
        place = np.argsort(walk.sequence)
        readers = problem.consumer
        assert (place[problem.producer[problem.edge_tensor]] < place[readers]).all()
        assert sorted(walk.sequence.tolist()) == list(range(problem.num_ops))
        used = np.bincount(walk.device, weights=problem.resident, minlength=problem.num_devices)
        assert walk.used.tolist() == used.tolist()


def test_without_heat_a_walk_never_gets_worse():
    """At temperature 0 the current value only falls, and equals the best."""
    _, walker = walker_on(3, max_ops=14)
    last = walker.value
    for _ in range(20):
        walker.run(10, 0.0, 0.0)
        assert walker.value <= last
        assert walker.best_value == walker.value
        last = walker.value


def test_every_move_is_made():
    """On a graph with clusters, each kind of move is proposed and accepted at some point."""
    rng = np.random.default_rng(0)
    edges = [
        (int(rng.integers(max(0, v - 6), v)), v, int(rng.integers(1, 20)))
        for v in range(1, 60)
        for _ in range(2)
    ]
    edges = sorted({(u, v): (u, v, c) for u, v, c in edges}.values())
    problem = PlacementProblem.from_edges(rng.integers(1, 20, (60, 3)), edges)
    space = SearchSpace(problem)
    walker = AnnealingWalk(space, rng.integers(0, 3, 60), space.sequence, random_states(rng, 1)[0])
    walker.run(4000, 100.0, 10.0)
    assert (walker.tally[:, :2] > 0).all()
    assert walker.tally[:, 0].sum() == 4000


def test_the_target_stops_a_walk():
    """A walk ends with the first placement at or below the target, and says how many steps it
    took.
    """
    _, walker = walker_on(5)
    assert walker.run(100, 1.0, 0.1, target=walker.value) == 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_crews_do_not_depend_on_threads(threads):
    """Four walks give the same four values on any number of threads."""
    values = []
    for count in (1, threads):
        walkers = [walker_on(seed)[1] for seed in (11, 12, 13, 14)]
        WalkTeam(walkers, count).run([200] * 4, 5.0, 0.1)
        values.append([walker.best_value for walker in walkers])
    assert values[0] == values[1]


def test_learned_shares_follow_what_moves_gain():
    """A kind that leads to new best placements comes more often, one that does not never dies out,
    one that is left out stays out; worked out here.
    """
    first = np.array([1.0, 1.0, 2.0, 0.0])
    shares = MoveShares(first)
    assert shares.now().tolist() == [0.25, 0.25, 0.5, 0.0]
    tally = np.zeros((4, 4), dtype=np.int64)
    tally[:3, PROPOSED], tally[:3, EMPTY], tally[1, BEST] = 120, 20, 6
    assert shares.count(tally) == 300
    credit = shares.doubt * 6 / 300
    weight = np.array([0.25 * credit, 0.25 * (6 + credit), 0.5 * credit]) / (100 + shares.doubt)
    expected = np.maximum(weight / weight.sum(), shares.rarest)
    assert shares.now()[:3] == pytest.approx(expected / expected.sum())
    for _ in range(60):
        shares.count(tally)
    assert shares.now()[1] > 0.7
    assert shares.now()[0] >= shares.rarest / (1 + 3 * shares.rarest)
    assert shares.now()[3] == 0.0
    tally[:, BEST] = 0
    for _ in range(7300):  # until the last gain is below the smallest number there is
        shares.count(tally)
        assert shares.now().sum() == pytest.approx(1.0)
    assert shares.now().tolist() == [0.25, 0.25, 0.5, 0.0]
    kept = MoveShares(first, learn=False)
    kept.count(tally)
    assert kept.now().tolist() == [0.25, 0.25, 0.5, 0.0]


def test_empty_proposals_cost_nothing_and_walks_end():
    """The budget counts what was evaluated, and is met; where no move changes anything the walk ends
    all the same.
    """
    problem = load("gen:layered?layers=7&width=6&ccr=1.5&seed=3", "uniform:3")
    found = make_solver("annealing", walks=1).solve(problem, Budget(evaluations=700), seed=0)
    assert found.evaluations == 700
    single = PlacementProblem.from_edges([[3], [4]], [(0, 1, 2)])
    found = make_solver("annealing").solve(single, Budget(evaluations=500), seed=0)
    assert (found.value, found.evaluations <= 500) == (7, True)


def test_few_slow_cycles_find_what_many_short_ones_do_not():
    """A million steps on a sharded Llama layer on 8 devices: in more than ten cycles they end above
    286 million ticks.
    """
    problem = load("gen:llama-layer", "uniform:8")
    solver = make_solver("annealing", walks=1, start="random")
    result = solver.solve(problem, Budget(evaluations=1_000_000), seed=0)
    assert result.objective is not None
    assert result.objective <= 285_500_000


def test_full_devices_exchange_a_few_units_for_a_few():
    """From two full devices, no two ops of equal bytes, a walk ends where both work as long."""
    rng, home = np.random.default_rng(0), np.repeat(np.arange(2), 20)
    size, ticks = rng.permutation(np.arange(1, 41)), rng.integers(20, 100, 40) + 50 * home
    problem = PlacementProblem.from_edges(
        np.repeat(ticks[:, None], 2, axis=1), [], resident=size, capacity=np.bincount(home, size)
    )
    result = solve(problem, "annealing", evaluations=3000, initial=Placement(home))
    assert result.value == ticks.sum() // 2
