"""The judge of episodes: agrees with the simulator on what it made, and finds every kind of
damage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stream_samples import stream, table

import placeopt as po
from placeopt.model.errors import InfeasiblePlacementError
from placeopt.solvers.degree.feasible_first import same_order
from placeopt.streams import DegreePolicy, simulate
from placeopt.streams.judge import blocked_jobs, judge_episode
from placeopt.streams.objective import BLOCKING


def crowded(rule="uniform", **options):
    """Return an episode with completed and blocked jobs."""
    problem = stream(60, beta="C", load=1.2, rule=rule, **options)
    return simulate(problem, DegreePolicy("max-degree"), record_servers=True)


@pytest.mark.parametrize("rule", ["published", "uniform"])
@pytest.mark.parametrize("memory", [80_000_000_000, 400_000_000, 250_000_000])
def test_simulated_episodes_are_valid(rule, memory):
    """What every policy makes passes, also where memory is short, and the blocked jobs are counted
    alike.
    """
    jobs = table(rule=rule, memory=memory)
    problem = replace(stream(60, beta="C", load=1.2, rule=rule), jobs=jobs)
    order = same_order(problem, problem.jobs.degrees[::-1])
    policies = [DegreePolicy(name) for name in ("max-degree", "min-degree", "random-degree")]
    policies += [
        DegreePolicy("constant-degree", degree=2),
        DegreePolicy("feasible-first", order=order),
    ]
    policies += [DegreePolicy("rollout", order=order, samples=3, depth=4)]
    for policy in policies:
        episode = simulate(problem, policy, seed=1, record_servers=True)
        assert judge_episode(problem, episode) == []
        assert blocked_jobs(problem, episode) == episode.blocked


def damage(episode, key, change):
    """Return the episode with one of its arrays changed."""
    array = getattr(episode, key).copy()
    change(array)
    return replace(episode, **{key: array})


def started(episode):
    """Return the first job that completed."""
    return int(np.flatnonzero(episode.cause == 0)[0])


def test_a_doctored_count_is_found():
    """Calling blocked jobs completed does not make them so, and the value does not believe it."""
    episode = crowded()
    lie = damage(episode, "cause", lambda cause: cause.fill(0))
    assert lie.blocked == 0
    assert blocked_jobs(lie.problem, lie) == episode.blocked > 0
    assert (
        "holds no server, but is called started or completed" in judge_episode(lie.problem, lie)[0]
    )
    with pytest.raises(InfeasiblePlacementError, match="holds no server"):
        BLOCKING.value(lie.problem, lie)


@pytest.mark.parametrize("rule", ["published", "uniform"])
def test_servers_that_no_placement_gives(rule):
    """A server dropped from a block, or one added, is found under both rules."""
    episode = crowded(rule)
    job = int(np.flatnonzero((episode.cause == 0) & (episode.held > 1))[0])
    fewer = damage(
        episode,
        "servers",
        lambda servers: servers[job].__setitem__(int(servers[job].argmax()), False),
    )
    words = "no block of" if rule == "uniform" else "not those it holds"
    assert words in " ".join(judge_episode(fewer.problem, fewer))


def test_two_jobs_on_one_server():
    """Two jobs that run at the same time cannot share a server."""
    problem = stream(60, beta=1, load=1.2)
    episode = simulate(problem, DegreePolicy("constant-degree", degree=2), record_servers=True)
    arrival, end = episode.problem.arrival, episode.problem.arrival + episode.jct
    pairs = [
        (a, b)
        for a in range(60)
        for b in range(a + 1, 60)
        if episode.jct[a]
        and episode.jct[b]
        and episode.degree[a] == episode.degree[b]
        and arrival[b] < end[a]
    ]
    first, second = pairs[0]
    both = damage(episode, "servers", lambda servers: servers.__setitem__(second, servers[first]))
    assert "which another job holds until" in " ".join(judge_episode(both.problem, both))


def test_wrong_times():
    """A completion time that the degree does not have, a missed deadline and a missed horizon are
    found.
    """
    episode = crowded()
    job = started(episode)
    short = damage(episode, "jct", lambda jct: jct.__setitem__(job, 1))
    assert (
        f"takes 1 ticks, with degree {episode.degree[job]} it takes {episode.jct[job]}"
        in judge_episode(short.problem, short)[0]
    )
    deadline = episode.problem.deadline.copy()
    deadline[job] = episode.jct[job] - 1
    late = replace(episode, problem=replace(episode.problem, deadline=deadline))
    assert "and its deadline is" in judge_episode(late.problem, late)[0]
    assert blocked_jobs(late.problem, late) == episode.blocked + 1
    soon = replace(episode.problem, horizon=int(episode.problem.arrival[job] + 1))
    assert "the horizon is" in " ".join(judge_episode(soon, episode))


def test_a_degree_that_does_not_exist():
    """A degree that the grid has no block for is named."""
    episode = crowded()
    odd = damage(episode, "degree", lambda degree: degree.__setitem__(started(episode), 3))
    assert "has the degree 3, which the topology lacks" in judge_episode(odd.problem, odd)[0]


def test_episodes_of_other_streams():
    """An episode of another stream, one without its servers, and what is no episode are refused in
    words.
    """
    problem, other = stream(60, beta="C"), stream(30)
    unknown = simulate(problem, DegreePolicy("max-degree"))
    assert "record_servers=True" in BLOCKING.judge(problem, unknown)[0]
    episode = simulate(other, DegreePolicy("max-degree"), record_servers=True)
    assert "30 jobs on" in BLOCKING.judge(problem, episode)[0]
    assert "received Placement" in BLOCKING.judge(problem, po.Placement([0]))[0]
    with pytest.raises(po.InputError, match="initial solution is not valid"):
        po.solve(problem, "max-degree", initial=episode)
