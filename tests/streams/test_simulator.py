"""Episodes: outcomes, choices and figures against a plain-Python simulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import stream_oracle
from stream_samples import stream, table

from placeopt.model.errors import InputError
from placeopt.plotting.jobs import chrome_trace, occupancy, plot_occupancy
from placeopt.solvers.degree.feasible_first import padded
from placeopt.streams import DegreePolicy, JobStreamProblem, Summary, simulate, simulate_many
from placeopt.streams.episode_loop import CAUSES
from placeopt.streams.simulator import confidence_interval, record_episode

GRID = {"grid": (2, 2, 2), "memory": 500_000_000}


def policies(problem):
    """Return one policy of every kind."""
    orders = [row for row in ((4, 2, 1, 8), (2, 1), (8, 4, 1)) if set(row) <= set(problem.jobs.degrees)]
    order = padded(problem, [orders[m % len(orders)] for m in range(len(problem.jobs.profiles))])
    rng = np.random.default_rng(5)
    from placeopt.streams.episode_arrays import num_features

    weights = rng.normal(size=num_features(len(problem.jobs.degrees)))
    return [
        DegreePolicy("max-degree"),
        DegreePolicy("min-degree"),
        DegreePolicy("random-degree"),
        DegreePolicy("constant-degree", degree=2),
        DegreePolicy("feasible-first", order=order),
        DegreePolicy("feasible-first", order=order, fragmentation=1.5),
        DegreePolicy("rollout", order=order, samples=3, depth=4),
        DegreePolicy("policy-degree", order=order, weights=weights),
        DegreePolicy("policy-degree", order=order, weights=weights, temperature=1.0),
    ]


def compare(problem, episode, choose):
    """Assert that the oracle, choosing by `choose`, sees what the episode reports, job by job."""
    expected = stream_oracle.episode(problem, choose)
    topology = problem.jobs.topology
    for job, (outcome, degree, length, servers) in enumerate(expected):
        where = f"job {job} of {problem.name}, {episode.policy.name}"
        assert CAUSES[episode.cause[job]] == outcome, where
        assert int(episode.degree[job]) == degree, where
        assert int(episode.jct[job]) == length, where
        assert set(np.flatnonzero(episode.servers[job]).tolist()) == {topology.index(*s) for s in servers}, where
        assert int(episode.held[job]) == len(servers), where


@pytest.mark.interpreted
@pytest.mark.parametrize("rule", ["published", "uniform"])
@pytest.mark.parametrize("arrivals", ["fixed", "poisson"])
def test_outcomes_equal_the_oracle(rule, arrivals):
    """Whatever a policy chooses, placement, occupancy and blocking causes are those of the definition."""
    problem = stream(40, beta="A", seed=3, load=1.3, rule=rule, arrivals=arrivals, **GRID)
    for policy in policies(problem):
        episode = simulate(problem, policy, seed=1, record_servers=True)
        compare(problem, episode, lambda c, job, *_, e=episode: int(e.degree[job]) or None)
    assert {CAUSES[c] for p in policies(problem) for c in simulate(problem, p, seed=1).cause} >= {
        "completed", "no space", "deadline",
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_fixed_policies_choose_as_defined(seed):
    """Maximum, minimum and constant degree, and feasible-first, choose what their definitions say."""
    problem = stream(50, beta="C", seed=seed, load=1.1, **GRID)
    degrees, sequential = problem.jobs.degrees, problem.jobs.arrays.sequential

    def open_degrees(cluster, now):
        return [u for u in degrees if u <= len(cluster.idle(now))]

    def largest(cluster, job, now, model, deadline):
        return max(open_degrees(cluster, now), default=None)

    def smallest(cluster, job, now, model, deadline):
        valid = open_degrees(cluster, now)
        enough = [u for u in valid if u >= sequential[model] / deadline]
        return min(enough, default=max(valid, default=None))

    def first(cluster, job, now, model, deadline):
        for u in (4, 1, 8):
            length = cluster.length(model, u)
            if length is not None and length <= deadline and cluster.servers(model, u, now) is not None:
                return u
        return None

    order = padded(problem, [(4, 1, 8)] * 3)
    for policy, choose in (
        (DegreePolicy("max-degree"), largest),
        (DegreePolicy("min-degree"), smallest),
        (DegreePolicy("constant-degree", degree=4), lambda *_: 4),
        (DegreePolicy("feasible-first", order=order), first),
    ):
        compare(problem, simulate(problem, policy, record_servers=True), choose)


def test_random_degree_is_uniform_over_what_is_open():
    """On an idle cluster every degree is drawn about equally often."""
    problem = stream(600, beta=1, load=0.01)
    degree = simulate(problem, DegreePolicy("random-degree"), seed=4).degree
    counts = [int(np.count_nonzero(degree == u)) for u in problem.jobs.degrees]
    share = 600 / len(counts)
    assert all(abs(count - share) < 4 * np.sqrt(share) for count in counts)


def by_hand(arrival, deadline, horizon, model=None):
    """Return a stream on one server per job type of one second (1e9 ticks)."""
    types = replace(table(count=1, grid=(2, 1, 1)), steps=1)
    unit = int(types.arrays.sequential[0])
    scale = lambda values: np.array(values) * unit // 10  # noqa: E731
    return JobStreamProblem("hand", types, scale(arrival), np.zeros(len(arrival), int), scale(deadline),
                            int(scale([horizon])[0]))  # fmt: skip


def test_servers_are_free_again_the_moment_a_job_ends():
    """Two servers, jobs of 10 tenths: the third finds no room at 9, the fourth does at exactly 10."""
    problem = by_hand([0, 0, 9, 10], [10, 10, 10, 10], 100)
    episode = simulate(problem, DegreePolicy("constant-degree", degree=1), record_servers=True)
    assert [CAUSES[c] for c in episode.cause] == ["completed", "completed", "no space", "completed"]
    assert episode.servers.tolist() == [[True, False], [False, True], [False, False], [True, False]]


def test_deadline_and_horizon():
    """A deadline may be met exactly; a job that ends after the horizon is unfinished, at it completed."""
    problem = by_hand([0, 0, 90, 91], [10, 9, 10, 10], 100)
    episode = simulate(problem, DegreePolicy("constant-degree", degree=1))
    assert [CAUSES[c] for c in episode.cause] == ["completed", "deadline", "completed", "unfinished"]
    assert episode.blocked == 2
    assert episode.causes == {"refused": 0, "no space": 0, "deadline": 1, "unfinished": 1}


def test_figures_of_an_episode():
    """Blocking rate, completion time, speed-up, throughput, degree and utilisation by hand."""
    problem = by_hand([0, 0, 5, 20], [10, 10, 10, 10], 40)
    episode = simulate(problem, DegreePolicy("constant-degree", degree=1))
    unit = int(problem.jobs.arrays.sequential[0]) * problem.tick_seconds
    assert episode.blocking_rate == 0.25
    assert episode.mean_jct == pytest.approx(unit)
    assert episode.mean_speedup == 1.0
    assert episode.throughput == pytest.approx(3 * 10 / 40, rel=1e-6)
    assert episode.mean_degree == 1.0
    assert episode.utilisation == pytest.approx(30 / 80, rel=1e-6)


def test_occupancy_adds_up_to_utilisation():
    """The bins of the occupancy picture average to the utilisation."""
    problem = stream(80, load=1.2)
    episode = simulate(problem, DegreePolicy("max-degree"))
    edges, share = occupancy(episode, 37)
    assert share.shape == (37, 3)
    assert float(share.sum(axis=1).mean()) == pytest.approx(episode.utilisation)
    assert (share.sum(axis=1) <= 1 + 1e-9).all()
    assert edges[-1] == pytest.approx(problem.horizon * problem.tick_seconds)
    assert plot_occupancy(episode).axes


def test_trace_has_a_slice_per_server_and_job():
    """The Chrome trace shows what every server ran, without overlap, and marks blocked jobs."""
    problem = stream(40, load=1.2)
    with pytest.raises(InputError, match="record_servers"):
        chrome_trace(simulate(problem, DegreePolicy("max-degree")))
    episode = simulate(problem, DegreePolicy("max-degree"), record_servers=True)
    events = chrome_trace(episode)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == int(episode.held.sum())
    assert sum(e["ph"] == "i" for e in events) == episode.blocked
    for server in range(problem.jobs.topology.num_servers):
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == server)
        assert all(b[0] >= a[1] - 1e-3 for a, b in pairwise(mine))


def test_threads_do_not_change_the_answer():
    """One, two and five threads run the same episodes."""
    problem = stream(60)
    streams = [problem.resample(i) for i in range(9)]
    runs = [simulate_many(streams, DegreePolicy("random-degree"), seed=3, threads=w) for w in (1, 2, 5)]
    for one, two, five in zip(*runs, strict=True):
        assert one.degree.tolist() == two.degree.tolist() == five.degree.tolist()


def test_recording_does_not_change_an_episode():
    """Recorded features come with the same outcomes; what was chosen was valid."""
    problem = stream(60, load=1.2)
    for policy in policies(problem):
        run = record_episode(problem, policy, seed=2)
        plain = simulate(problem, policy, seed=2)
        assert run.episode.cause.tolist() == plain.cause.tolist()
        assert run.valid[np.arange(60), run.chosen].all()
        assert np.isfinite(run.features).all()


def test_valid_actions_are_those_that_can_be_carried_out():
    """The mask of the learned policy allows the degrees that meet the deadline and fit, and refusing."""
    problem = stream(40, load=1.3, seed=2, **GRID)
    policy = policies(problem)[7]
    run = record_episode(problem, policy, seed=0)
    degrees = problem.jobs.degrees

    def check(cluster, job, now, model, deadline):
        for d, u in enumerate(degrees):
            length = cluster.length(model, u)
            good = length is not None and length <= deadline and cluster.servers(model, u, now) is not None
            assert bool(run.valid[job, d]) == good
        return int(run.episode.degree[job]) or None

    stream_oracle.episode(problem, check)


def test_zero_weights_but_for_the_order_are_feasible_first():
    """The learned policy starts as an exact copy of its order."""
    problem = stream(80, load=1.2)
    order = padded(problem, [(4, 2, 1), (2, 8), (1,)])
    weights = np.zeros_like(policies(problem)[7].weights)
    weights[0] = 6.0
    copy = simulate(problem, DegreePolicy("policy-degree", order=order, weights=weights))
    plain = simulate(problem, DegreePolicy("feasible-first", order=order))
    assert copy.degree.tolist() == plain.degree.tolist()
    assert copy.cause.tolist() == plain.cause.tolist()


def test_rollout_improves_on_its_base():
    """Over four streams a rollout blocks fewer jobs than the order it simulates."""
    problem = stream(150, beta="C", load=1.1)
    order = padded(problem, [(1, 2, 4, 8)] * 3)
    streams = [problem.resample(i) for i in range(4)]
    base = sum(e.blocked for e in simulate_many(streams, DegreePolicy("feasible-first", order=order)))
    better = sum(e.blocked for e in simulate_many(streams, DegreePolicy("rollout", order=order, samples=8, depth=8)))
    assert better < base


def test_summary():
    """A summary averages episodes; its interval is Student's, within 0 and 1."""
    problem = stream(60)
    runs = simulate_many([problem.resample(i) for i in range(5)], DegreePolicy("max-degree"))
    rates = np.array([run.blocking_rate for run in runs])
    summary = Summary.of("max-degree", runs)
    assert summary.blocking_rate == pytest.approx(rates.mean())
    half = 2.7764 * rates.std(ddof=1) / np.sqrt(5)
    assert summary.ci95 == pytest.approx((rates.mean() - half, rates.mean() + half))
    assert sum(summary.causes.values()) == pytest.approx(summary.blocking_rate)
    assert confidence_interval(np.array([0.3])) == (0.3, 0.3)
    assert confidence_interval(np.array([0.0, 1.0])) == (0.0, 1.0)
    from scipy.stats import t

    from placeopt.streams.simulator import _student

    assert _student(23) == pytest.approx(t.ppf(0.975, 23), rel=2e-4)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "best-degree"}, "expected one of max-degree"),
        ({"name": "feasible-first"}, "needs an order"),
        ({"name": "constant-degree", "degree": 3}, "degree 3 does not exist on the 2x2x2 grid"),
        ({"name": "feasible-first", "order": np.zeros((1, 1), int)}, "must have shape"),
        ({"name": "max-degree", "weights": np.zeros(3)}, "weights, received"),
        ({"name": "max-degree", "samples": 0}, "samples must be >= 1"),
    ],
)
def test_wrong_policies(fields, words):
    """A policy that cannot run on the stream is refused in one line."""
    with pytest.raises(InputError, match=words):
        simulate(stream(5), DegreePolicy(**fields))
