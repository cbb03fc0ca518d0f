"""Streams, episodes and their results survive a file; damaged files are refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from stream_samples import few_jobs, stream, table

import placeopt as po
from placeopt.io.serialize import from_dict, load, save, to_dict
from placeopt.model.errors import InputError
from placeopt.streams import DegreePolicy, JobStreamProblem, simulate
from placeopt.streams.objective import BLOCKING


@pytest.mark.parametrize(
    "make",
    [
        lambda: stream(20, beta="C", rule="published"),
        lambda: stream(20, beta=0.5),
        lambda: few_jobs(0),
    ],
    ids=["drawn", "one fraction", "trace"],
)
def test_streams_round_trip(make, tmp_path):
    """The problem read back is the same, to its digest and to the streams drawn like it."""
    problem = make()
    again = load(save(problem, tmp_path / "stream.json"))
    assert again.hash == problem.hash
    assert again.resample(5).hash == problem.resample(5).hash
    assert to_dict(again) == to_dict(problem)


def test_jobs_on_more_servers_are_another_problem():
    """Also where no completion time tells the grids apart."""
    one, two = (
        JobStreamProblem("s", table(grid=(1, 1, n), max_degree=1), [0], [0], [10**12], 1e12)
        for n in (1, 2)
    )
    assert (one.jobs.arrays.jct == two.jobs.arrays.jct).all()
    assert one.hash != two.hash
    assert from_dict(to_dict(one)).hash == one.hash  # the horizon is a whole number, too


@pytest.mark.parametrize("solver", ["random-degree", "feasible-first", "rollout", "policy-degree"])
def test_results_round_trip(solver, tmp_path):
    """A result read back has the same solution, and that is still valid and runs again to the same
    episode.
    """
    problem = stream(30, beta="C", load=1.2)
    result = po.solve(problem, solver, evaluations=20, seed=2)
    again = load(save(result, tmp_path / "result.json"))
    episode = again.solution
    assert BLOCKING.value(problem, episode) == (result.value, "")
    rerun = simulate(problem, episode.policy, seed=2, record_servers=True)
    for key in ("cause", "degree", "jct", "held", "servers"):
        np.testing.assert_array_equal(getattr(episode, key), getattr(rerun, key))
        np.testing.assert_array_equal(getattr(episode, key), getattr(result.solution, key))


def test_an_episode_without_servers(tmp_path):
    """Servers that were not recorded stay unrecorded."""
    episode = simulate(stream(10), DegreePolicy("max-degree"))
    again = load(save(episode, tmp_path / "episode.json"))
    assert again.servers.shape == (0, 8)
    assert again.blocked == episode.blocked


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("cause",), [9] * 10, "cause: expected 0..4"),
        (("degree",), [1], "expected 10 values"),
        (("degree",), [65537] * 10, "degree: expected 0..8"),
        (("problem", "profiles", 0, "edges"), [[0, 1, 2]], "edges: expected shape"),
        (("servers", 0), [99], "servers in 0..7"),
        (("policy", "name"), "best", "degree policy"),
        (("problem", "horizon"), -1, "horizon"),
        (("problem", "topology", "groups"), "4", "whole number"),
        (("problem", "lookahead", "rule"), "magic", "split rule"),
        (("problem", "profiles", 0, "forward"), ["x"], "a number"),
        (("problem", "drawn_from", "beta"), "Z", "beta"),
        (("problem",), 3, "an object"),
    ],
)
def test_damaged_files(path, value, words):
    """One line that names what is wrong."""
    data = json.loads(
        json.dumps(to_dict(simulate(stream(10), DegreePolicy("max-degree"), record_servers=True)))
    )
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(InputError, match=words) as error:
        from_dict(data)
    assert "\n" not in str(error.value)


def test_a_stream_from_elsewhere_keeps_no_draw():
    """A stream whose distribution is not ours is stored as a bare trace."""

    class Elsewhere:
        def draw(self, table, seed):
            raise NotImplementedError

    assert to_dict(replace(stream(5), spec=Elsewhere()))["drawn_from"] is None
