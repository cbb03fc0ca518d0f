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
from placeopt.streams import (
    DegreePolicy,
    JobStreamProblem,
    Summary,
    simulate,
    simulate_many,
    simulator,
)
from placeopt.streams.episode_loop import CAUSES, LOOKS_AHEAD, PACKED_AHEAD, num_features
from placeopt.streams.simulator import confidence_interval, network_size, record_episode

GRID = {"grid": (2, 2, 2), "memory": 500_000_000}


def policies(problem):
    """Return one policy of every kind."""
    orders = [
        row for row in ((4, 2, 1, 8), (2, 1), (8, 4, 1)) if set(row) <= set(problem.jobs.degrees)
    ]
    order = padded(problem, [orders[m % len(orders)] for m in range(len(problem.jobs.profiles))])
    rng = np.random.default_rng(5)
    weights = rng.normal(size=network_size(num_features(len(problem.jobs.degrees)), 3))
    return [
        DegreePolicy("max-degree"),
        DegreePolicy("min-degree"),
        DegreePolicy("random-degree"),
        DegreePolicy("constant-degree", degree=2),
        DegreePolicy("feasible-first", order=order),
        DegreePolicy("feasible-first", order=order, fragmentation=1.5),
        DegreePolicy("rollout", order=order, samples=3, depth=4),
        DegreePolicy("policy-degree", weights=weights),
        DegreePolicy("policy-degree", weights=weights, explore=0.5),
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
        assert set(np.flatnonzero(episode.servers[job]).tolist()) == {
            topology.index(*s) for s in servers
        }, where
        assert int(episode.held[job]) == len(servers), where


@pytest.mark.interpreted
@pytest.mark.parametrize("rule", ["published", "uniform"])
@pytest.mark.parametrize("arrivals", ["fixed", "poisson"])
def test_outcomes_equal_the_oracle(rule, arrivals):
    """Whatever a policy chooses, placement, occupancy and blocking causes are those of the
    definition.
    """
    problem = stream(40, beta="A", seed=3, load=1.3, rule=rule, arrivals=arrivals, **GRID)
    for policy in policies(problem):
        episode = simulate(problem, policy, seed=1, record_servers=True)
        compare(problem, episode, lambda c, job, *_, e=episode: int(e.degree[job]) or None)
    assert {CAUSES[c] for p in policies(problem) for c in simulate(problem, p, seed=1).cause} >= {
        "completed",
        "no space",
        "deadline",
    }


@pytest.mark.parametrize("seed", range(3))
def test_fixed_policies_choose_as_defined(seed):
    """Maximum, minimum and constant degree, and feasible-first, choose what their definitions
    say.
    """
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
            if (
                length is not None
                and length <= deadline
                and cluster.servers(model, u, now) is not None
            ):
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
    return JobStreamProblem(
        "hand",
        types,
        scale(arrival),
        np.zeros(len(arrival), int),
        scale(deadline),
        int(scale([horizon])[0]),
    )


def test_servers_are_free_again_the_moment_a_job_ends():
    """Two servers, jobs of 10 tenths: the third finds no room at 9, the fourth does at exactly
    10.
    """
    problem = by_hand([0, 0, 9, 10], [10, 10, 10, 10], 100)
    episode = simulate(problem, DegreePolicy("constant-degree", degree=1), record_servers=True)
    assert [CAUSES[c] for c in episode.cause] == ["completed", "completed", "no space", "completed"]
    assert episode.servers.tolist() == [[True, False], [False, True], [False, False], [True, False]]


def test_deadline_and_horizon():
    """A deadline may be met exactly; a job that ends after the horizon is unfinished, at it
    completed.
    """
    problem = by_hand([0, 0, 90, 91], [10, 9, 10, 10], 100)
    episode = simulate(problem, DegreePolicy("constant-degree", degree=1))
    assert [CAUSES[c] for c in episode.cause] == [
        "completed",
        "deadline",
        "completed",
        "unfinished",
    ]
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


def test_a_job_that_arrives_after_the_horizon_uses_nothing_of_it():
    """It is unfinished, and what it holds is no negative share of the servers."""
    problem = by_hand([0, 50], [10, 10], 40)
    episode = simulate(problem, DegreePolicy("constant-degree", degree=1))
    assert [CAUSES[c] for c in episode.cause] == ["completed", "unfinished"]
    assert episode.utilisation == pytest.approx(10 / 80, rel=1e-6)


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
    runs = [
        simulate_many(streams, DegreePolicy("random-degree"), seed=3, threads=w) for w in (1, 2, 5)
    ]
    for one, two, five in zip(*runs, strict=True):
        assert one.degree.tolist() == two.degree.tolist() == five.degree.tolist()


def test_recording_does_not_change_an_episode():
    """Recorded descriptions come with the same outcomes."""
    problem = stream(60, load=1.2)
    for policy in policies(problem):
        episode, afterwards = record_episode(problem, policy, seed=2)
        plain = simulate(problem, policy, seed=2)
        assert episode.cause.tolist() == plain.cause.tolist()
        assert afterwards.shape == (60, num_features(len(problem.jobs.degrees)))
        assert ((afterwards >= 0) & (afterwards <= 1)).all()


def packed(problem, free, size):
    """Return the servers of the blocks that first fit packs side by side into the free servers."""
    blocks, left, count = problem.jobs.topology.blocks, set(free), 0
    for row in range(blocks.size_ptr[size], blocks.size_ptr[size + 1]):
        block = set(blocks.server[blocks.server_ptr[row] : blocks.server_ptr[row + 1]].tolist())
        if block <= left:
            left -= block
            count += size
    return count


def described(problem, free_at, now):
    """Return the servers that are free, and those in packable blocks, at every look; none from the
    horizon on.
    """
    looks = {look: now + int(problem.mean_gap * look) for look in LOOKS_AHEAD}
    at = {
        look: [s for s, t in enumerate(free_at) if t <= time and time < problem.horizon]
        for look, time in looks.items()
    }
    row = [len(at[look]) for look in LOOKS_AHEAD]
    return row + [
        packed(problem, at[look], size)
        for look in PACKED_AHEAD
        for size in problem.jobs.degrees[1:]
    ]


@pytest.mark.interpreted
@pytest.mark.parametrize("grid", [GRID, {"grid": (5, 5, 3), "memory": 500_000_000}])
def test_descriptions_by_definition(grid):
    """Free servers and packable blocks at every look, from when each server is free again; more
    than one word of bits, too.
    """
    problem = stream(12, load=1.3, seed=2, **grid)
    episode, afterwards = record_episode(problem, DegreePolicy("max-degree"), seed=0)
    shown = simulate(problem, DegreePolicy("max-degree"), record_servers=True)
    num_servers = problem.jobs.topology.num_servers
    free_at = np.full(num_servers, -1)
    for job, now in enumerate(problem.arrival.tolist()):
        if episode.jct[job]:
            free_at[shown.servers[job]] = now + int(episode.jct[job])
        np.testing.assert_allclose(afterwards[job] * num_servers, described(problem, free_at, now))
    assert afterwards[0].any()
    assert not afterwards[-1].any()  # arrives at the horizon


def test_a_value_policy_takes_the_best_of_what_it_can_start():
    """Its choice is the degree, or refusing, with the largest reward and discounted value, computed
    here once more.
    """
    problem = stream(40, load=1.3, seed=2, **GRID)
    policy = policies(problem)[7]
    size = num_features(len(problem.jobs.degrees))
    linear, output, bias, hidden = np.split(policy.weights, [size, size + 3, size + 6])
    episode, _ = record_episode(problem, policy, seed=0)
    topology, degrees = problem.jobs.topology, problem.jobs.degrees

    def value(free_at, now):
        row = np.array(described(problem, free_at, now)) / topology.num_servers
        return float(linear @ row + output @ np.maximum(0, bias + hidden.reshape(3, size) @ row))

    free_at = [-1] * topology.num_servers

    def check(cluster, job, now, model, deadline):
        scores = {0: policy.discount * value(free_at, now)}
        ends = {}
        for u in degrees:
            length = cluster.length(model, u)
            servers = None if length is None else cluster.servers(model, u, now)
            if servers is None or length > deadline or now + length > problem.horizon:
                continue
            ends[u] = list(free_at)
            for server in servers:
                ends[u][topology.index(*server)] = now + length
            scores[u] = 1.0 + policy.discount * value(ends[u], now)
        chosen = int(episode.degree[job])
        assert scores[chosen] == pytest.approx(max(scores.values()))
        free_at[:] = ends.get(chosen, free_at)
        return chosen or None

    stream_oracle.episode(problem, check)


@pytest.mark.parametrize(
    "fields", [{"weights": None}, {"weights": np.zeros(7)}, {"weights": np.zeros(0)}]
)
def test_networks_of_the_wrong_size_are_refused(fields):
    """The weights must make whole layers for the topology's features."""
    with pytest.raises(InputError, match="weights"):
        simulate(stream(5), DegreePolicy("policy-degree", **fields))


def test_rollout_improves_on_its_base():
    """Over four streams a rollout blocks fewer jobs than the order it simulates."""
    problem = stream(150, beta="C", load=1.1)
    order = padded(problem, [(1, 2, 4, 8)] * 3)
    streams = [problem.resample(i) for i in range(4)]
    base = sum(
        e.blocked for e in simulate_many(streams, DegreePolicy("feasible-first", order=order))
    )
    better = sum(
        e.blocked
        for e in simulate_many(streams, DegreePolicy("rollout", order=order, samples=8, depth=8))
    )
    assert better < base


def test_summary():
    """A summary averages episodes; its interval is Student's, within 0 and 1."""
    problem = stream(60)
    runs = simulate_many([problem.resample(i) for i in range(5)], DegreePolicy("max-degree"))
    rates = np.array([run.blocking_rate for run in runs])
    summary = Summary.of("max-degree", runs)
    assert summary.blocking_rate == pytest.approx(rates.mean())
    half = 2.776445 * rates.std(ddof=1) / np.sqrt(5)
    assert summary.ci95 == pytest.approx((rates.mean() - half, rates.mean() + half))
    assert sum(summary.causes.values()) == pytest.approx(summary.blocking_rate)
    hopeless = simulate(replace(problem, deadline=np.zeros(60, int)), DegreePolicy("max-degree"))
    more = Summary.of("max-degree", [*runs, hopeless])
    assert (more.mean_jct, more.mean_speedup) == (summary.mean_jct, summary.mean_speedup)
    assert more.throughput < summary.throughput
    assert confidence_interval(np.array([0.3])) == (0.3, 0.3)
    assert confidence_interval(np.array([0.0, 1.0])) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "best-degree"}, "expected one of max-degree"),
        ({"name": "feasible-first"}, "needs an order"),
        ({"name": "constant-degree", "degree": 3}, "degree 3 does not exist on the 2x2x2 grid"),
        ({"name": "feasible-first", "order": np.zeros((1, 1), int)}, "must have shape"),
        ({"name": "max-degree", "weights": np.zeros(3)}, "more per hidden unit, received"),
        ({"name": "max-degree", "samples": 0}, "samples must be >= 1"),
    ],
)
def test_wrong_policies(fields, words):
    """A policy that cannot run on the stream is refused in one line."""
    with pytest.raises(InputError, match=words):
        simulate(stream(5), DegreePolicy(**fields))


def test_one_thread_is_enough_where_one_is_asked_for(monkeypatch):
    """PLACEOPT_THREADS holds for episodes, too."""
    monkeypatch.setenv("PLACEOPT_THREADS", "1")
    monkeypatch.setattr(simulator, "map_threads", None)
    streams = [stream(6, seed=seed) for seed in range(4)]
    assert len(simulate_many(streams, DegreePolicy("max-degree"))) == 4
