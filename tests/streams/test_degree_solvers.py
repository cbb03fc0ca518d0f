"""The contract of every degree solver, and what each promises."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from stream_samples import few_jobs, random_profile, stream

import placeopt as po
from placeopt.model.errors import InputError
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.degree.feasible_first import (
    FeasibleFirst,
    describe,
    padded,
    same_order,
    starting_orders,
)
from placeopt.solvers.degree.policy_degree import (
    PolicyDegree,
    Round,
    ValueNetwork,
    finalists,
    smallest_first,
    trace_returns,
)
from placeopt.solvers.degree.rollout_degree import RolloutDegree
from placeopt.solvers.degree.tuning import (
    TRAINING,
    VALIDATION,
    check_policy,
    clearly_better,
    training_streams,
    tuned_policy,
)
from placeopt.solving.registry import make_solver, solver_class, specs
from placeopt.solving.tracker import Tracker
from placeopt.streams import (
    DegreePolicy,
    JobTable,
    RampTopology,
    StreamSpec,
    offline_bound,
    simulate,
    simulate_many,
)
from placeopt.streams.simulator import network_size

SOLVERS = sorted(specs("jobs"))
QUICK = {
    "training": 2,
    "steps": 10,
    "samples": 4,
    "depth": 4,
    "iterations": 2,
    "streams": 4,
    "validation": 2,
}


def free(problem, seed=0):
    """Return a tracker without a limit."""
    return Tracker("tuning", problem, Budget(), seed=seed)


def make(name):
    """Return a solver with small searches."""
    known = {field.name for field in dataclasses.fields(solver_class(name, "jobs"))}
    return make_solver(name, "jobs", **{key: value for key, value in QUICK.items() if key in known})


def test_registry_has_the_promised_names():
    """The names of the design are registered, and rollout beside them."""
    promised = {
        "max-degree",
        "min-degree",
        "constant-degree",
        "random-degree",
        "feasible-first",
        "policy-degree",
    }
    assert promised | {"rollout"} == set(SOLVERS)


@pytest.mark.parametrize("name", SOLVERS)
def test_contract(name):
    """The objective is that of the episode run again, above the bound; the stream is untouched; a
    seed repeats.
    """
    problem = stream(60, beta="C", load=1.2)
    before = problem.hash
    result = make(name).solve(problem, Budget(evaluations=400), seed=3)
    assert problem.hash == before
    assert result.solution is not None
    assert (result.solver, result.problem, result.objective_name) == (
        name,
        problem.name,
        "blocking",
    )
    again = simulate(problem, result.solution.policy, seed=3)
    assert again.blocked == result.objective == result.solution.blocked
    assert result.lower_bound <= offline_bound(problem).blocked <= result.objective
    assert result.evaluations >= 1
    second = make(name).solve(problem, Budget(evaluations=400), seed=3)
    assert second.objective == result.objective
    assert second.solution.degree.tolist() == result.solution.degree.tolist()


@pytest.mark.parametrize("name", [n for n in SOLVERS if specs("jobs")[n].search])
@pytest.mark.parametrize("evaluations", [1, 2, 7, 60, 300])
def test_budget_of_evaluations_is_kept(name, evaluations):
    """A search counts every episode and never runs more than it may."""
    result = make(name).solve(stream(30), Budget(evaluations=evaluations), seed=0)
    assert 1 <= result.evaluations <= evaluations
    assert result.solution is not None


@pytest.mark.parametrize("name", [n for n in SOLVERS if specs("jobs")[n].search])
def test_no_time_at_all(name):
    """With no time left the first policy is run: there is always an answer."""
    assert make(name).solve(stream(30), Budget(seconds=0), seed=0).solution is not None


@pytest.mark.parametrize("name", SOLVERS)
def test_other_problems_are_refused(name):
    """A placement problem is refused in one line."""
    problem = PlacementProblem.from_edges([[1]], [])
    with pytest.raises(InputError, match="takes no placement problem"):
        make(name).solve(problem, Budget(evaluations=10), seed=0)


def test_optimum_is_recognised():
    """When only hopeless jobs are blocked, here the one that arrives at the horizon, the result is
    optimal.
    """
    problem = stream(20, beta=1, load=0.05)
    result = po.solve(problem, "max-degree")
    assert (result.objective, result.status, result.gap) == (1, "optimal", 0.0)


def test_constant_degree_takes_the_best_of_its_sweep():
    """The sweep's winner blocks no more on the training streams than any other degree."""
    problem = stream(80, beta="C", load=1.1)
    degree = (
        make_solver("constant-degree", "jobs", training=3)
        .solve(problem, Budget(), seed=2)
        .solution.policy.degree
    )
    streams = training_streams(problem, 3, 2)
    blocked = {
        u: sum(simulate(s, DegreePolicy("constant-degree", degree=u)).blocked for s in streams)
        for u in problem.jobs.degrees
    }
    assert blocked[degree] == min(blocked.values())


def test_tuned_order_is_the_best_seen():
    """Feasible-first never blocks more on its training streams than a constant or any starting
    order.
    """
    problem = stream(80, beta="A", load=1.1, seed=5)
    streams = training_streams(problem, 4, 0)

    def blocked(policy):
        return sum(run.blocked for run in simulate_many(streams, policy))

    best = blocked(FeasibleFirst(training=4, steps=30).tune(problem, free(problem)))
    for row in starting_orders(problem.jobs.degrees):
        assert best <= blocked(DegreePolicy("feasible-first", order=padded(problem, [row] * 3)))


def test_models_that_hold_servers_for_long_are_refused():
    """Where short jobs fill a busy cluster, jobs a hundred times as long get no degree."""
    short = random_profile(0)
    long = dataclasses.replace(
        short, name="long", forward=100 * short.forward, backward=100 * short.backward
    )
    table = JobTable((short, long), RampTopology(2, 2, 2))
    gap = float(table.arrays.sequential[0]) * table.tick_seconds / 8
    problem = StreamSpec(beta=3, jobs=80, interval=gap).draw(table, 0)
    policy = FeasibleFirst(training=4, steps=10).tune(problem, free(problem))
    assert (policy.order[1] < 0).all()
    assert policy.order[0].max() >= 0
    streams = [problem.resample(seed) for seed in range(4)]
    orders = [same_order(problem, row) for row in starting_orders(problem.jobs.degrees)]
    blocked, *others = (
        sum(run.blocked for run in simulate_many(streams, each))
        for each in (policy, *(DegreePolicy("feasible-first", order=order) for order in orders))
    )
    assert blocked < 0.8 * min(others)
    assert "long: refused" in describe(problem, policy)


def test_half_of_the_budget_shows_whether_rolling_out_pays(monkeypatch):
    """Where it does not, the base is taken, however long its order could be tuned."""
    monkeypatch.setattr("placeopt.solvers.degree.rollout_degree.clearly_better", lambda *_: True)
    solver = RolloutDegree(training=4, samples=4, depth=4)
    result = solver.solve(stream(30), Budget(evaluations=150), seed=0)
    assert result.evaluations <= 150
    assert result.solution.policy.name == "feasible-first"


def test_given_order_is_used():
    """`order` fixes the degrees of all models."""
    policy = FeasibleFirst(order=(4, 1)).tune(stream(10), free(stream(10)))
    assert policy.order.tolist() == [[2, 0, -1, -1]] * 3
    rolled = RolloutDegree(order=(4, 1), terminal=1.0).tune(stream(10), free(stream(10)))
    assert (rolled.name, rolled.order.tolist()) == ("rollout", policy.order.tolist())


@pytest.mark.parametrize("seed", range(2))
def test_learned_policy_is_never_worse_than_its_seed(seed):
    """On the validation streams, and the choice is the seed itself unless another is clearly
    better.
    """
    problem = stream(60, beta="C", load=1.2, seed=seed)
    solver, tracker = (
        PolicyDegree(iterations=4, streams=6, steps=30, hidden=8, validation=6),
        free(problem, seed),
    )
    base = FeasibleFirst(fragmentation=0.0).tune(problem, tracker)
    trained = solver.train(problem, base, tracker)
    before, after = trained.validation
    assert 0 < after <= before
    streams = training_streams(problem, 6, seed, VALIDATION)
    assert sum(simulate(s, trained.policy, seed=i).blocked for i, s in enumerate(streams)) == after
    assert (
        sum(simulate(s, trained.seed_policy, seed=i).blocked for i, s in enumerate(streams))
        == before
    )
    assert len(trained.rounds) == 4


def test_a_good_round_is_not_lost():
    """The last policy and the two that blocked fewest jobs when they served are compared; of few
    policies, all are.
    """
    blocked = [
        0.5,
        0.2,
        0.1,
        0.3,
        0.1,
        0.4,
    ]  # of what served: the seed, then the policy of the round before
    found = [DegreePolicy("constant-degree", degree=i) for i in range(6)]
    rounds = [Round(0.0, rate) for rate in blocked]
    assert [policy.degree for policy in finalists(found, rounds)] == [1, 3, 5]
    assert finalists(found[:2], rounds[:2]) == found[:2]
    assert finalists([], []) == []


def test_the_second_course_starts_small():
    """It takes the smallest degree that is in time and fits, and its policies are candidates: one
    round suffices them.
    """
    problem = stream(60, beta="C", load=0.3)
    episode = simulate(problem, smallest_first(problem))
    for job in np.flatnonzero(episode.degree):
        times = problem.jobs.arrays.jct[problem.model[job]]
        in_time = [
            u
            for u, t in zip(problem.jobs.degrees, times, strict=True)
            if 0 <= t <= problem.deadline[job]
        ]
        assert episode.degree[job] == in_time[0]  # so light a load that every degree fits


def test_training_repeats():
    """The same seed learns the same values, another seed others."""
    problem = stream(40, beta="C", load=1.2)
    solver = PolicyDegree(iterations=2, streams=4, steps=20, hidden=4, validation=2)
    base = DegreePolicy("feasible-first", order=padded(problem, [(4, 2, 1)] * 3))
    errors = [
        [r.error for r in solver.train(problem, base, free(problem, seed)).rounds]
        for seed in (1, 1, 2)
    ]
    assert errors[0] == errors[1] != errors[2]


def test_values_learned_on_a_stream_lower_its_blocking():
    """From an order that takes the smallest degree, the learned policy blocks clearly fewer jobs on
    streams it never saw.
    """
    problem = stream(80, beta="C", load=1.1)
    base = DegreePolicy("feasible-first", order=padded(problem, [(1,)] * 3))
    solver = PolicyDegree(iterations=2, streams=8, steps=50, validation=4)
    trained = solver.train(problem, base, free(problem))
    judged = [problem.resample(seed) for seed in range(8)]
    before, after = (
        sum(e.blocked for e in simulate_many(judged, p)) for p in (base, trained.policy)
    )
    assert after < 0.9 * before


def test_trace_returns_by_definition():
    """A lambda of 1 adds up the discounted rewards to come, with the value at the end; one of 0
    looks one step ahead.
    """
    rng = np.random.default_rng(0)
    rewards, values = rng.integers(0, 2, 6).astype(float), rng.normal(size=6)
    one, two = (trace_returns(rewards, values, 0.9, trace) for trace in (1.0, 0.0))
    for t in range(5):
        seen = sum(0.9**i * rewards[t + 1 + i] for i in range(5 - t)) + 0.9 ** (5 - t) * values[5]
        assert one[t] == pytest.approx(seen)
        assert two[t] == pytest.approx(rewards[t + 1] + 0.9 * values[t + 1])
    both = trace_returns(np.stack([rewards, rewards]), np.stack([values, 2 * values]), 0.9, 1.0)
    np.testing.assert_allclose(both[0], one)


@pytest.mark.parametrize("trace", [0.0, 0.6, 1.0])
def test_solved_values_are_those_of_the_chain(trace):
    """On streams of a Markov chain with a state per feature, the solved weights are its values,
    from the bellman equation.
    """
    rng = np.random.default_rng(0)
    chain, reward, discount = rng.dirichlet(np.ones(3), size=3), np.array([1.0, 0.2, -0.5]), 0.8
    visited = np.zeros((40, 400), dtype=np.int64)
    for t in range(1, visited.shape[1]):
        visited[:, t] = [rng.choice(3, p=chain[state]) for state in visited[:, t - 1]]
    network = ValueNetwork(3, 0, rng, bins=1)
    to_come = np.full(visited.shape, 9)
    network.solve(np.eye(3, dtype=np.float32)[visited], reward[visited], to_come, discount, trace)
    expected = np.linalg.solve(np.eye(3) - discount * chain, chain @ reward)
    np.testing.assert_allclose(network.outer[0] + network.offset[0], expected, atol=0.05)


def test_solved_values_end_with_the_jobs_to_come():
    """With as many jobs to come as are left and a reward of one for each, the offsets are their
    discounted number.
    """
    network, to_come = (
        ValueNetwork(1, 0, np.random.default_rng(0), bins=7),
        np.tile(np.arange(6)[::-1], (50, 1)),
    )
    network.solve(np.zeros((50, 6, 1), dtype=np.float32), np.ones((50, 6)), to_come, 0.9, 0.5)
    np.testing.assert_allclose(
        network.offset[1:6], [sum(0.9**i for i in range(k)) for k in range(1, 6)], rtol=2e-3
    )


def test_offsets_follow_the_mean_return():
    """By the jobs to come, all larger numbers together; where none was seen there is none."""
    network = ValueNetwork(2, 0, np.random.default_rng(0), bins=4)
    network.follow(np.array([[7, 3, 2], [9, 4, 0]]), np.array([[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]]))
    assert network.offset.tolist() == [6.0, 0.0, 5.0, 2.5]


def test_a_network_fits_what_it_can_express():
    """Least squares on a known function; its values are those that the simulator would compute."""
    rng = np.random.default_rng(0)
    states = rng.random((4000, 5)).astype(np.float32)
    targets = (3 * np.maximum(0, states[:, 0] - states[:, 1]) - states[:, 2]).astype(np.float32)
    network = ValueNetwork(5, 16, rng)
    first = network.fit(states, targets, 1, 0.01, rng)
    network.fit(states, targets, 400, 0.01, rng)
    assert network.fit(states, targets, 1, 1e-6, rng) < 0.02 * first
    assert len(network.weights) == network_size(5, 16)
    linear, output, bias, hidden = (layer.ravel() for layer in network.layers)
    by_hand = states @ linear + np.maximum(0, states @ hidden.reshape(16, 5).T + bias) @ output
    network.outer = network.layers[0], network.layers[1]
    np.testing.assert_allclose(network.values(states), by_hand, atol=1e-3)


def test_tuning_streams_are_never_those_judged():
    """Training and validation streams differ from the problem and from small seeds."""
    problem = stream(30)
    judged = {problem.resample(i).hash for i in range(20)}
    tuned = {
        s.hash
        for offset in (TRAINING, VALIDATION)
        for s in training_streams(problem, 10, 0, offset)
    }
    assert len(tuned) == 20
    assert not judged & tuned


def test_clearly_better_needs_two_standard_errors():
    """A lead within the noise is none."""
    assert clearly_better(np.array([5, 5, 5]), np.array([9, 9, 9]))
    assert not clearly_better(np.array([5, 9, 5]), np.array([5, 6, 8]))
    assert not clearly_better(np.array([5, 5]), np.array([5, 5]))


def test_solve_defaults_to_feasible_first():
    """po.solve picks a solver for streams."""
    assert po.solve(few_jobs(0), evaluations=50).solver == "feasible-first"


def test_policy_texts():
    """NAME and NAME:PARAMETER become tuned policies."""
    problem = stream(20)
    assert tuned_policy("constant-degree:4", problem)[0].degree == 4
    assert tuned_policy("feasible-first:4-2", problem)[0].order[0].tolist() == [2, 1, -1, -1]
    assert check_policy("policy-degree:7", problem) == ("policy-degree", {"iterations": 7})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("best-degree", "policy 'best-degree' is not known; known: constant-degree"),
        (
            "constant-degree:3",
            "degree 3 does not exist on the 2x2x2 grid; choose one of 1, 2, 4, 8",
        ),
        ("constant-degree:x", "expected a degree after the colon, received 'x'"),
        ("feasible-first:4-x", "expected degrees like 8-4-16 after the colon, received '4-x'"),
        ("feasible-first:4-4", "order must be distinct degrees"),
        ("rollout:4-32", "degree 32 does not exist"),
        ("max-degree:4", "takes no parameter, received '4'"),
        ("policy-degree:-1", "policy-degree option iterations"),
    ],
)
def test_wrong_policy_texts(text, words):
    """A wrong policy is refused in one line before anything runs."""
    with pytest.raises(InputError, match=words):
        check_policy(text, stream(5))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("feasible-first", {"training": 0}, "option training"),
        ("rollout", {"samples": 0}, "option samples"),
        ("rollout", {"terminal": -1.0}, "option terminal"),
        ("policy-degree", {"hidden": -1}, "option hidden"),
        ("policy-degree", {"discount": 1.5}, "option discount"),
        ("constant-degree", {"training": 0}, "option training"),
    ],
)
def test_wrong_solver_options(name, options, words):
    """A solver checks its own configuration."""
    with pytest.raises(InputError, match=words):
        make_solver(name, "jobs", **options)


def test_a_stream_of_one_job_teaches_nothing():
    """Nothing follows the job: the learned policy is its seed."""
    result = po.solve(stream(1), make("policy-degree"))
    assert result.solution.policy.name == "feasible-first"


def test_orders_are_tried_while_there_is_time(monkeypatch):
    """An order is not begun to be tried on streams that take longer than what is left."""
    for seconds, tried in ((1e3, False), (0.0, True)):
        monkeypatch.setattr(
            "placeopt.solvers.degree.feasible_first.episode_seconds",
            lambda *_, seconds=seconds: seconds,
        )
        result = make_solver("feasible-first", "jobs").solve(few_jobs(0), Budget(seconds=30.0))
        assert (result.evaluations > 1) == tried
        assert (result.stop_reason == "time") != tried
