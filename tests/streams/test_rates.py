"""Blocking rates of the published set-up: the published ones, and what the uniform rule gains (six
seeds each).
"""

from __future__ import annotations

import pytest

from placeopt.streams import DegreePolicy, Summary, load_stream, offline_bound, simulate_many

pytestmark = pytest.mark.jit

SEEDS = 6
PUBLISHED = {
    "max-degree": (0.2624, 0.2631, 0.2674, 0.2631),
    "min-degree": (0.3087, 0.3956, 0.3074, 0.1419),
    "random-degree": (0.5172, 0.6011, 0.5055, 0.4652),
}
BEST = {"A": 0.2038, "B": 0.2567, "C": 0.1166, "D": 0.0992}
"""PAC-ML's best checkpoints."""


def streams(data, beta, rule):
    """Return the held-out streams of a distribution."""
    problem = load_stream(
        f"stream:ramp?beta={beta}&rule={rule}&units=published", profiles=data / "pipedream"
    )
    return [problem.resample(seed) for seed in range(SEEDS)]


def rate(problems, name, **fields):
    """Mean blocking rate of a policy."""
    return Summary.of(
        name, simulate_many(problems, DegreePolicy(name, **fields), threads=1)
    ).blocking_rate


@pytest.mark.parametrize("k", range(4))
def test_published_blocking_rates(data, k):
    """Maximum, minimum and random degree block what was published, within the spread of six
    seeds.
    """
    problems = streams(data, "ABCD"[k], "published")
    for name, values in PUBLISHED.items():
        assert rate(problems, name) == pytest.approx(values[k], abs=0.025)


def test_constants(data):
    """Degree 4 under the published rule and degree 8 under the uniform rule block what was
    measured.
    """
    assert rate(streams(data, "A", "published"), "constant-degree", degree=4) == pytest.approx(
        0.218, abs=0.015
    )
    problems = streams(data, "A", "uniform")
    assert rate(problems, "constant-degree", degree=8) == pytest.approx(0.142, abs=0.01)
    assert rate(problems, "constant-degree", degree=8) < BEST["A"]


def test_rollout_beats_the_published_checkpoints_on_loose_deadlines(data):
    """With the uniform rule a rollout on two streams of D blocks less than PAC-ML's best
    checkpoint.
    """
    from placeopt.solvers.degree.feasible_first import padded

    problems = streams(data, "D", "uniform")[:2]
    order = padded(problems[0], [(1, 2, 4, 6, 8, 16)] * 5)
    assert rate(problems, "rollout", order=order, samples=16, terminal=0.5) < BEST["D"]


def test_offline_bound_of_the_published_stream(data):
    """No policy blocks less than 2 % of A; the bound is below a policy that blocks 15 %."""
    problem = streams(data, "A", "uniform")[0]
    assert 0.02 < offline_bound(problem).blocking_rate < 0.1
