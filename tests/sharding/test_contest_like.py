"""Problems like the contest's: what a seed, a family and a derivation promise."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from sharding_problems import draw, oracle

from placeopt.model.errors import InputError
from placeopt.sharding.evaluate import profile_of, total_cost
from placeopt.sharding.objective import least_usage
from placeopt.sharding.problem import ShardingSolution

sys.path.insert(0, str(Path(__file__).parents[2] / "results" / "sharding"))
from contest_like import APART, FAMILIES, contest_like, derived


@pytest.mark.parametrize("family", [*FAMILIES, *APART])
def test_families_are_drawn_as_their_seed_says_and_have_a_choice(family):
    """The same seed gives the same problem, another one another; the smallest usages keep the
    limit, the largest do not.
    """
    problem = contest_like(family, 300, 5)
    assert problem.hash == contest_like(family, 300, 5).hash != contest_like(family, 300, 6).hash
    assert 240 <= problem.num_nodes <= 450
    assert profile_of(problem.interval, least_usage(problem)).peak <= problem.usage_limit
    most = np.maximum.reduceat(problem.usage, problem.node_ptr[:-1])
    assert profile_of(problem.interval, most).peak > problem.usage_limit


def test_a_limit_is_a_multiple_of_the_smallest_peak():
    """`derived` takes the peak of the smallest usages times the factor, rounded down."""
    problem = contest_like("inference", 200, 1)
    peak = profile_of(problem.interval, least_usage(problem)).peak
    assert derived(problem, limit=Fraction(4, 3)).usage_limit == peak * 4 // 3


def test_permuted_costs_are_those_of_their_nodes():
    """Permuting keeps every node's and every edge's costs, as sets, and everything else."""
    problem = contest_like("follow", 200, 1)
    other = derived(problem, permuted=3)
    assert (other.cost != problem.cost).any()
    for key, pointer in (("cost", "node_ptr"), ("edge_cost", "edge_ptr")):
        for start, stop in zip(
            getattr(problem, pointer)[:-1], getattr(problem, pointer)[1:], strict=True
        ):
            old, new = getattr(problem, key)[start:stop], getattr(other, key)[start:stop]
            assert sorted(old.tolist()) == sorted(new.tolist())
    assert (other.usage == problem.usage).all()
    assert (other.interval == problem.interval).all()


def test_copies_without_joints_cost_as_much_as_their_parts():
    """A choice played in every copy costs its cost times the copies, and the joints."""
    for seed in range(30):
        problem, data = draw(seed)
        feasible = oracle(data)
        if not feasible:
            continue
        choice = np.array(min(feasible, key=feasible.get))
        twice = derived(problem, copies=2)
        joints = twice.num_edges - 2 * problem.num_edges
        whole = total_cost(twice, ShardingSolution(np.tile(choice, 2)))
        assert joints in (0, 1)
        assert whole >= 2 * min(feasible.values())
        if joints == 0:
            assert whole == 2 * min(feasible.values())


def test_unknown_families_and_small_sizes_are_refused_in_one_line():
    """The message names what is expected."""
    with pytest.raises(InputError, match="family: expected one of training"):
        contest_like("trainng", 100, 0)
    with pytest.raises(InputError, match="nodes: expected at least 10, received 3"):
        contest_like("training", 3, 0)
