"""The offline bound: linear program <= exact optimum <= any policy, and an exhaustive search on few
jobs.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import stream_oracle
from stream_samples import few_jobs, stream, table

from placeopt.model.errors import InputError
from placeopt.model.linear_program import linear_program
from placeopt.solvers.degree.feasible_first import padded
from placeopt.streams import DegreePolicy, JobStreamProblem, bound, offline_bound, simulate
from placeopt.streams.bound import hopeless_jobs


def every_policy(problem):
    """Blocked jobs of many policies."""
    degrees = problem.jobs.degrees
    rows = len(problem.jobs.profiles)
    policies = [DegreePolicy("constant-degree", degree=u) for u in degrees]
    policies += [DegreePolicy("feasible-first", order=padded(problem, [degrees] * rows))]
    policies += [
        DegreePolicy("rollout", order=padded(problem, [degrees[::-1]] * rows), samples=4, depth=5)
    ]
    policies += [DegreePolicy(name) for name in ("max-degree", "min-degree", "random-degree")]
    return [simulate(problem, policy).blocked for policy in policies]


@pytest.mark.parametrize("seed", range(8))
def test_exact_is_the_clairvoyant_optimum(seed):
    """CP-SAT with blocks finds what trying every degree and block of every job finds."""
    problem = few_jobs(seed, jobs=6)
    best = problem.num_jobs - stream_oracle.most_completed(problem)
    exact = offline_bound(problem, method="exact")
    assert exact.exact
    assert exact.blocked == best


def test_exact_matters():
    """Among the crowded streams are some that block jobs, and some where refusing or waiting room
    decides.
    """
    bounds = [offline_bound(few_jobs(seed, jobs=6), method="exact").blocked for seed in range(8)]
    assert max(bounds) > 0
    assert min(bounds) < 6


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("beta", ["A", "B"])
def test_bounds_are_ordered(seed, beta):
    """Hopeless jobs <= linear program <= integers <= exact <= every policy, on streams of 20
    jobs.
    """
    problem = stream(20, beta=beta, seed=seed, load=1.2, grid=(2, 1, 2))
    lp, integer, exact = (
        offline_bound(problem, method=m, seconds=10).blocked for m in ("lp", "cp-sat", "exact")
    )
    assert hopeless_jobs(problem) <= lp <= integer <= exact <= min(every_policy(problem))


@pytest.mark.parametrize("rule", ["published", "uniform"])
def test_linear_bound_holds_on_long_streams(rule):
    """The linear program stays below every policy on a crowded stream under either rule."""
    problem = stream(200, beta="C", load=1.5, rule=rule, arrivals="poisson")
    bound = offline_bound(problem)
    assert 0 < bound.blocked <= min(every_policy(problem))
    assert not bound.exact
    assert bound.blocking_rate == bound.blocked / 200


def test_simultaneous_arrivals_share_the_servers():
    """Five jobs that need all four servers at once: four of them are blocked, and the bound says
    so.
    """
    types = table(count=1, grid=(2, 1, 2))
    length = int(types.arrays.jct[0].min())
    zero = np.zeros(5, dtype=np.int64)
    problem = JobStreamProblem("five", types, zero, zero, zero + length, 10 * length)
    width = types.degrees[int(types.arrays.jct[0].argmin())]
    assert offline_bound(problem).blocked == 5 - types.topology.num_servers // width
    assert offline_bound(problem, method="exact").blocked == 5 - types.topology.num_servers // width


def test_nothing_can_complete():
    """Deadlines shorter than any completion time block everything, and the bound is exact."""
    types = table(count=1)
    zero = np.zeros(3, dtype=np.int64)
    problem = JobStreamProblem("hopeless", types, zero, zero, zero + 1, 10**12)
    bound = offline_bound(problem)
    assert (bound.blocked, bound.exact) == (3, True)


def test_what_exact_cannot_do():
    """Long streams, the published rule and unknown methods are refused in one line."""
    with pytest.raises(InputError, match="at most 200 jobs under the uniform rule, received 201"):
        offline_bound(stream(201), method="exact")
    with pytest.raises(InputError, match="under 'published'; use lp or cp-sat"):
        offline_bound(stream(5, rule="published"), method="exact")
    with pytest.raises(InputError, match="expected one of lp, cp-sat, exact, received 'magic'"):
        offline_bound(stream(5), method="magic")


@pytest.mark.parametrize("jobs", [100, 400])
def test_integers_without_time_for_any_prove_no_more_than_prices(jobs):
    """CP-SAT that has not begun to search has no bound, which is no bound of zero jobs."""
    problem = stream(jobs, load=1.2)
    bound = offline_bound(problem, method="cp-sat", seconds=0.0).blocked
    assert bound <= min(every_policy(problem))


def test_a_program_is_as_large_as_its_jobs_not_as_their_lengths(monkeypatch):
    """Jobs that run on while hundreds arrive take two entries each, as others do."""
    sizes = []

    def measured(cost, **program):
        sizes.append(sum(program[key][0].nnz for key in ("below", "equal")))
        return linear_program(cost, **program)

    monkeypatch.setattr(bound, "linear_program", measured)
    problem = stream(300, beta="3", load=40)
    options = bound.completing_options(problem)
    assert (options.last - options.job).mean() > 100
    assert offline_bound(problem).blocked > 200
    assert sizes[0] <= 3 * len(options.job) + 2 * problem.num_jobs


@pytest.mark.parametrize("load", [0.5, 1.5, 8])
def test_without_time_one_price_bounds_what_is_blocked(load, monkeypatch):
    """The price at which the cheapest jobs fill the cluster is no worse than other single ones."""
    problem = stream(200, beta="3", load=load)
    options = bound.completing_options(problem)
    exact = offline_bound(problem).blocked
    monkeypatch.setattr(bound, "linear_program", lambda *_, **__: SimpleNamespace(x=None))
    found = offline_bound(problem).blocked
    others = [
        200 - bound.completed_at_prices(problem, options, np.full(200, price))
        for price in np.geomspace(1e-4, 1, 50)
    ]
    assert max(*others, hopeless_jobs(problem)) <= found <= exact
    assert load < 8 or found > 0.7 * exact
