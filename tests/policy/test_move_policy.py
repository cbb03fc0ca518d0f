"""Policies of moves: seeds, walks, zero-shot runs, training, files."""

from __future__ import annotations

import numpy as np
import pytest
from random_problems import random_problem

from placeopt.api import load
from placeopt.makespan.evaluate import evaluate
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError, Refused
from placeopt.model.problem import PlacementProblem
from placeopt.model.random_bits import random_states
from placeopt.solvers.policy.move_policy import (
    COLDEST,
    HOTTEST,
    PRETRAINED,
    TABLES,
    WHOLE,
    MovePolicy,
    pretrained,
    said_of,
)
from placeopt.solvers.policy.move_training import SPREADS, drawn_around, fittest, race, walked
from placeopt.solvers.policy.move_walk import (
    DOUBT,
    LEGS,
    RAREST,
    MoveGains,
    MoveWalk,
    walk_on,
    walkable,
)
from placeopt.solvers.policy.walk_seeds import seeds
from placeopt.solvers.policy.zero_shot import FEW, ZeroShot
from placeopt.solvers.search.annealing_walks import AnnealingWalk
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solvers.search.walk_kernels import EMPTY, MOVES, PROPOSED
from placeopt.solving.registry import make_solver
from placeopt.solving.tracker import Tracker


def random_policy(seed):
    """Return a policy all of whose numbers matter."""
    rng = np.random.default_rng(seed)
    policy = MovePolicy.untrained()
    return policy.with_vector(policy.vector + 0.3 * rng.normal(size=len(policy.vector)))


def problems():
    """Return problems that walks evaluate, with colocation and capacities among them."""
    drawn = (random_problem(np.random.default_rng(seed), max_ops=16) for seed in range(70))
    return [problem for problem in drawn if walkable(problem) and problem.num_devices > 1]


def test_seeds_are_schedules_of_their_value():
    """Executed as planned, every seed takes at most its value and respects every constraint; the
    best comes first.
    """
    count = 0
    for problem in problems():
        space = SearchSpace(problem)
        found = seeds(space.context)
        assert [seed.value for seed in found] == sorted(seed.value for seed in found)
        for seed in found:
            assert (
                evaluate(problem, space.context.ranked(seed.plan), "planned").makespan <= seed.value
            )
        count += len(found)
    assert count >= 60


def test_seeds_have_the_values_of_the_solvers():
    """List schedulers among the seeds give what the solvers of their names give, and the best is
    none worse.
    """
    for seed in range(3):
        problem = load(f"gen:layered?layers=6&width=6&ccr=2.5&seed={seed}", "uniform:3")
        found = seeds(SearchSpace(problem).context)
        for name in ("heft", "peft", "etf", "cpop", "m-etf"):
            value = make_solver(name).solve(problem, Budget(evaluations=1), seed=0).value
            planned = [own.value for own in found if own.heuristic == name]
            assert found[0].value <= planned[0]
            assert (
                value <= planned[0]
            )  # the solver takes the best of three executions of the same plan
        assert {"edge-zeroing", "dsc", "m-sct", "critical-path"} <= {own.heuristic for own in found}


def test_runs_have_the_values_of_the_evaluator():
    """The value of a run is that of the `planned` execution of its placement, never above its
    seed's.
    """
    count = 0
    for problem in problems():
        graph = ZeroShot(problem)
        if not graph.seeds:
            continue
        for sample in range(2):
            found = graph.run(random_policy(1), sample=sample, work_per_op=3_000)
            assert (
                evaluate(problem, found.placement, "planned").makespan
                == found.value
                <= found.seeded
            )
            assert found.heuristic in {seed.heuristic for seed in graph.seeds[:FEW]}
            count += 1
    assert count >= 12


def test_a_run_repeats():
    """The same sample gives the same placement, a graph prepared anew too; another one draws other
    moves.
    """
    problem = load("gen:lu?tiles=4&seed=3", "uniform:5")
    graph = ZeroShot(problem)
    first, other = (graph.run(pretrained(), sample=sample) for sample in (4, 5))
    assert (
        graph.run(pretrained(), sample=4).placement
        == first.placement
        == ZeroShot(problem).run(pretrained(), sample=4).placement
    )
    assert other.placement != first.placement
    assert first.steps == 18_000 * problem.num_ops // (300 + problem.num_ops + problem.num_edges)


def test_a_walk_takes_the_moves_that_its_policy_draws():
    """A policy that is sure of one kind takes it almost always; late scores count at the end of a
    walk.
    """
    space = SearchSpace(load("gen:layered?layers=7&width=6&ccr=1.5&seed=1", "uniform:3"))
    sure = {name: np.zeros((len(rows), len(WHOLE))) for name, rows in TABLES.items()}
    sure["kind"][:, 0], sure["kind"][MOVES.index("swap"), 0] = -6.0, 6.0
    sure["kind_late"][MOVES.index("swap"), 0], sure["kind_late"][MOVES.index("join"), 0] = (
        -12.0,
        12.0,
    )
    walk = MoveWalk(
        space,
        space.sequence,
        np.zeros(space.problem.num_ops, dtype=np.int64),
        np.random.default_rng(0),
    )
    tally = walk._walk.tally
    walk.run(MovePolicy(sure), 800, (0.0, 0.01))
    assert tally[MOVES.index("swap"), 0] > 790
    walk.run(MovePolicy(sure), 800, (0.99, 1.0))
    assert tally[MOVES.index("join"), 0] > 790
    assert tally[:, 0].sum() == 1600
    assert evaluate(space.problem, walk.best(), "planned").makespan == walk.best_value


def test_legs_are_those_of_an_annealing_walk():
    """A run is LEGS legs of annealing with the policy's chances and temperatures, worked out
    here.
    """
    space = SearchSpace(load("gen:layered?layers=7&width=6&ccr=1.5&seed=2", "uniform:4"))
    policy, whole = random_policy(3), said_of(space)
    device = np.zeros(space.problem.num_ops, dtype=np.int64)
    walk = MoveWalk(space, space.sequence, device, np.random.default_rng(8))
    walk.run(policy, 80 * LEGS)
    other = AnnealingWalk(
        space, device, space.sequence, random_states(np.random.default_rng(8), 1)[0]
    )
    hot, cold = (
        np.exp(policy.tables["walk"][0] @ whole),
        np.exp(policy.tables["walk"].sum(axis=0) @ whole),
    )
    for leg in range(LEGS):
        score = (policy.tables["kind"] + (leg + 0.5) / LEGS * policy.tables["kind_late"]) @ whole
        other.weigh(np.exp(score) / np.exp(score).sum())
        first, last = (space.mean_load * hot * (cold / hot) ** (at / LEGS) for at in (leg, leg + 1))
        other.run(80, first, last)
    assert walk.best_value == other.best_value
    assert walk.best() == other.best_placement()


def test_temperatures_stay_within_bounds():
    """However large the weights, temperatures fall and stay where walks make sense."""
    for size in (-80.0, -3.0, 0.0, 5.0, 90.0):
        policy = MovePolicy.untrained().with_vector(
            np.full(len(MovePolicy.untrained().vector), size)
        )
        hot, cold = policy.heats(np.array([1.0, 0.5, 0.5]))
        assert COLDEST <= cold <= hot <= HOTTEST
        assert policy.chances(np.array([1.0, 0.5, 0.5]), 0.5).sum() == pytest.approx(1.0)


def test_what_is_said_of_a_graph():
    """Two chains of two ops on two devices: communication is a third of all time, and the chains
    fill the devices.
    """
    problem = PlacementProblem.from_edges(np.full((4, 2), 6), [(0, 1, 6), (2, 3, 6)])
    assert said_of(SearchSpace(problem)) == pytest.approx([1.0, 12 / 36, 24 / 12 / 4])


def test_contention_is_refused():
    """Walks do not evaluate channels."""
    drawn = (random_problem(np.random.default_rng(seed), contention="source") for seed in range(20))
    problem = next(problem for problem in drawn if problem.num_channels > 0)
    space = SearchSpace(problem)
    with pytest.raises(Refused):
        MoveWalk(
            space,
            space.sequence,
            np.zeros(problem.num_ops, dtype=np.int64),
            np.random.default_rng(0),
        )


def test_a_race_is_won_by_the_nearest_to_its_judge():
    """On a noisy distance to a known policy, the nearest is left; the same seed gives the same; no
    graphs is an error.
    """
    target = random_policy(5).vector
    policies = drawn_around(MovePolicy.untrained("critical"), 16, np.random.default_rng(0))

    def distance(graph, policy, sample):
        noise = np.random.default_rng([sample, int(abs(policy.vector[0]) * 1e9)]).normal()
        return float(((policy.vector - target) ** 2).sum()) + noise

    graphs = [ZeroShot(load("gen:lu?tiles=2", "uniform:2"))]
    exact = [float(((policy.vector - target) ** 2).sum()) for policy in policies]
    won = race(policies, graphs, distance, seed=0, first=16)
    assert won is race(policies, graphs, distance, seed=0, first=16)
    assert float(((won.vector - target) ** 2).sum()) <= sorted(exact)[1]
    assert fittest(policies, graphs, distance, samples=400) == int(np.argmin(exact))
    for some in (([], graphs), (policies, [])):
        with pytest.raises(InputError, match="at least one graph"):
            race(*some, distance, seed=0)


def test_policies_are_drawn_around_one():
    """Deviations are normal with the stated spread, independent of each other."""
    first = MovePolicy.untrained("critical")
    found = (
        np.array([policy.vector for policy in drawn_around(first, 400, np.random.default_rng(1))])
        - first.vector
    )
    assert np.abs(found.mean(axis=0)).max() < 0.15
    assert found.reshape(400, -1, 3).std(axis=(0, 1)) == pytest.approx(SPREADS, rel=0.05)


def test_walks_are_judged_by_their_last_value():
    """What training asks for is the logarithm of the run's value."""
    graph = ZeroShot(load("gen:lu?tiles=3&seed=1", "uniform:3"))
    assert walked(graph, pretrained(), 3) == pytest.approx(
        np.log(graph.run(pretrained(), sample=3).value)
    )


def test_dual_policy_ends_with_moves_and_keeps_its_seed():
    """With all local steps as moves the budget is kept and the value is not above the teacher's,
    whichever policy draws.
    """
    problem = load("gen:layered?layers=6&width=6&ccr=2&seed=1", "uniform:3")
    seed = make_solver("critical-path").solve(problem, Budget(evaluations=50), seed=0).value
    for moves in ("pretrained", "untrained"):
        solver = make_solver("dual-policy", teacher="critical-path", moving=1.0, moves=moves)
        found = solver.solve(problem, Budget(evaluations=400), seed=0)
        assert found.evaluations <= 400
        assert found.value <= seed


def test_policy_files_come_back_and_wrong_ones_are_refused(tmp_path):
    """A saved policy has the same weights; a wrong version, row or number is one clear line."""
    policy = random_policy(7)
    path = policy.save(tmp_path / "moves.json")
    assert MovePolicy.load(path).vector == pytest.approx(policy.vector, rel=1e-5)
    text = path.read_text()
    for old, new in (('"version": 1', '"version": 9'), ('"swap"', '"swop"'), ('"kind"', '"kine"')):
        path.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=r"moves\.json"):
            MovePolicy.load(path)
    with pytest.raises(InputError, match="kind must be"):
        MovePolicy({"kind": np.zeros((len(MOVES), len(WHOLE) + 1))})


def test_the_pretrained_policy_says_how_it_was_made():
    """The file in the package names its command, and differs from the policy before training."""
    policy = MovePolicy.load(PRETRAINED)
    assert any("pretrain.py" in line for line in policy.provenance)
    assert (policy.vector != MovePolicy.untrained().vector).any()


def test_what_moves_gain_weighs_them():
    """A kind that leads to new best placements comes more often, one that does not never dies out;
    worked out here.
    """
    gains, before = MoveGains(memory=0.5), np.full(len(MOVES), 1 / len(MOVES))
    assert gains.share(before) is before
    tried, better = np.full(len(MOVES), 100), np.zeros(len(MOVES), dtype=np.int64)
    better[2] = 6
    gains.count(np.zeros(len(MOVES), dtype=np.int64) + 8, 0 * better)
    gains.count(tried, better)
    mean = 6 / (104 * len(MOVES))
    weight = np.where(np.arange(len(MOVES)) == 2, 6 + DOUBT * mean, DOUBT * mean) / (104 + DOUBT)
    expected = np.maximum(weight / weight.sum(), RAREST)
    assert gains.share(before) == pytest.approx(expected / expected.sum())
    for _ in range(40):
        gains.count(tried, better)
    share = gains.share(before)
    assert share[2] > 0.7
    assert share.min() >= RAREST / (1 + RAREST * len(MOVES))
    fixed = MoveGains(memory=None)
    fixed.count(tried, better)
    assert fixed.share(before) is before


def test_steps_that_change_nothing_cost_nothing():
    """A walk within a budget proposes until so many proposals were evaluated; the empty ones come
    on top.
    """
    problem = load("gen:layered?layers=7&width=6&ccr=1.5&seed=3", "uniform:3")
    space = SearchSpace(problem)
    walk = MoveWalk(
        space, space.sequence, np.zeros(problem.num_ops, dtype=np.int64), np.random.default_rng(0)
    )
    made = [walk.learn(pretrained(), MoveGains(), 100, (0.0, 0.1)) for _ in range(10)]
    tally = walk._walk.tally
    assert tally[:, PROPOSED].sum() == 1000
    assert sum(made) == 1000 - tally[:, EMPTY].sum() < 900
    for learn in (True, False):
        tracker = Tracker("walk", problem, Budget(evaluations=700), seed=0)
        start = make_solver("heft").solve(problem, Budget(evaluations=1), seed=0)
        tracker.offer(start.value, start.solution)
        walk_on(space, pretrained(), tracker, np.random.default_rng(1), learn=learn)
        assert tracker.evaluations == 700
        assert (
            evaluate(problem, tracker.solution, "planned").makespan == tracker.value < start.value
        )


def test_walks_that_learn_take_other_moves():
    """The option `adapt` of dual-policy matters, and the answer is the same whenever it is asked
    again.
    """
    problem = load("gen:layered?layers=9&width=9&ccr=2&seed=4", "uniform:4")
    found = [
        [
            make_solver("dual-policy", adapt=adapt)
            .solve(problem, Budget(evaluations=1500), seed=seed)
            .solution
            for seed in range(3)
        ]
        for adapt in (True, False, True)
    ]
    assert found[0] == found[2] != found[1]
