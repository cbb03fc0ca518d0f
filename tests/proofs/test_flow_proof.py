"""Flows as steps of a proof: the checker adds up what crosses, and refuses what does not arrive."""

from __future__ import annotations

import copy
import json
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import period_problems
import pytest
from exact_instances import brute_force
from random_problems import random_problem
from tampering import load_checker, plain, verdict

sys.path.insert(0, str(Path(__file__).resolve().parent))

from adversary import plain_words
from test_checker_edges import problem_of

import placeopt as po
from placeopt.certify.certificate import finished, prove
from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.proof.derivation import Effort, derive
from placeopt.makespan.proof.supposition import Supposition
from placeopt.makespan.proof.witness import class_choices, raise_by_flows, segment_flows, whole_step
from placeopt.model import uniform_flow
from placeopt.period.bounds.congestion import period_witness

checker = load_checker()
BUS = np.array([[-1, 0], [0, -1]])


def refutes(problem, most, step):
    """Return whether a step contradicts a solution of so many ticks."""
    timed = problem.objective == "makespan"
    state = checker.Supposition(checker.Placement(plain(problem)), most, None, timed)
    try:
        checker.follow(state, plain_words(step))
    except checker.FalseStatementError:
        return False
    return state.closed


def test_two_ops_share_a_device_or_wait_for_their_tensor():
    """Of 8 and 8 ticks with a tensor of 30: 78 of 256 pairs at least cross in 13 ticks, which take
    18.3 of the bus; in 14 ticks 56, which take 13.1.
    """
    problem = problem_of([[8, 8]] * 2, [(0, 1, 30)], channel=BUS)
    step = ["crossing", [0, 1], [8, 8], [0, 0], 1, [[[-8, 8]], [[8, -8]]]]
    assert refutes(problem, 13, step)
    assert not refutes(problem, 14, step)
    assert not refutes(problem.replace(channel=-np.ones((2, 2), np.int64)), 13, step)
    assert not refutes(problem.replace(channel=np.array([[-1, 0], [1, -1]])), 13, step)


def test_what_is_sent_to_a_hub_is_written_down():
    """Of four branches of 10 ticks that meet, each moves for 20, so 26 ticks are too few."""
    star = problem_of([[10] * 2] * 4 + [[0] * 2], [(v, 4, 20) for v in range(4)], channel=BUS)
    step = whole_step(star, 26, math.inf)
    assert refutes(star, 26, step)
    assert not refutes(star, 27, step)
    assert whole_step(star, 27, math.inf) is None


def test_two_ops_pay_their_tensor_or_share_a_device_in_a_period():
    """Of 8 and 8 ticks with a tensor of 3: 11 on two devices. Two ops of one group are one node,
    and a device that pays nothing for what passes lets everything pass.
    """
    problem = problem_of([[8, 8]] * 2, [(0, 1, 3)], objective="period")
    step = ["leaving", [8, 8], [0, 0], 1, [[[-8, 8]], [[8, -8]]]]
    assert refutes(problem, 10, step)
    assert not refutes(problem, 11, step)
    assert not refutes(problem.replace(io_class=np.array([0, -1])), 10, step)
    compute, edges = [[4, 4], [8, 8], [4, 4]], [(0, 1, 3)]
    grouped = problem_of(compute, edges, objective="period", colocation=[5, -1, 5])
    step = ["leaving", [8, 8, 0], [0, 0, 0], 1, [[[-8, 8]], [[8, -8]]]]
    assert refutes(grouped, 10, step)
    assert not refutes(grouped, 11, step)
    step = ["leaving", [4, 8, 4], [0, 0, 0], 1, [[[-8, 8]], [[8, -8]], [[-8, 8]]]]
    assert not refutes(grouped, 10, step)


def test_a_device_without_tensors_pays_nothing():
    """The link class of the only device has no column where no tensor is: there is a witness."""
    problem = problem_of([[8]], [], objective="period", io_class=[1])
    assert period_witness(problem, 9, "test", 1.0).bound == 8


@cache
def grid(objective):
    """Return the proof of a certificate of a grid whose best bound is by flows."""
    problem = po.load("gen:stencil?rows=3&columns=3&steps=3&ccr=2&seed=1", "uniform:3")
    problem = problem.replace(
        objective=objective,
        contiguity="none",
        channel=np.zeros((3, 3), np.int64) - np.eye(3, dtype=np.int64),
    )
    placement = po.Placement(np.arange(problem.num_ops) % 3)
    certificate = po.verify(problem, placement, seconds=0.0)
    report = po.bound(problem, seconds=1.5, methods=["load", "congestion"])
    assert report.method == "congestion"
    certificate = replace(certificate, lower_bound=report.value, bound_method="congestion")
    proof = json.loads(json.dumps(prove(problem, placement, certificate, seconds=5.0)))
    assert proof["lower_bound"] == report.value
    assert proof["witness"]["method"] == "congestion"
    assert verdict(checker, proof) == "accepted"
    return proof


@pytest.mark.parametrize("objective", ["makespan", "period"])
@pytest.mark.parametrize(
    "way", ["bound", "rounds", "units", "lost", "made", "detour", "ends", "nobody", "cheap"]
)
def test_what_does_not_follow_is_refused(objective, way):
    """More is claimed than is sent, what goes into a tensor does not come out or the other way
    round, a detour takes what others need, ops without work send, tensors are cheaper.
    """
    data = copy.deepcopy(grid(objective))
    (step,) = data["witness"]["steps"]
    units, ends, _, sent = step[-4:]
    if way == "bound":
        data["lower_bound"] = data["value"]
    elif way == "rounds":
        step[-2] += 1
    elif way == "units":
        units[:] = [2 * x for x in units]
    elif way == "lost":
        sent[0][0][0] -= 1
    elif way == "made":
        sent[0][0][-1] += 1
    elif way == "detour":
        sent[0][0][0] += 10**9
        sent[0][0][-1] -= 10**9
    elif way == "ends":
        ends[0] = 1
    elif way == "nobody":
        sent[:] = [[[0] * len(row) for row in rows] for rows in sent]
    else:
        data["problem"]["transfer"] = [[x // 2 for x in row] for row in data["problem"]["transfer"]]
    assert verdict(checker, finished(data)) in ("refused", "no proof")


def test_no_flow_refutes_the_optimum_of_random_problems():
    """Of every option of contention and memory: all steps are accepted below the optimum, each
    refutes no more than what it was looked for, and delays of segments hold.
    """
    closed = delayed = periods = 0
    for seed in range(6, 16):
        rng = np.random.default_rng(seed)
        kind = ["pair", "source", "bus", "mixed"][seed % 4]
        problem = random_problem(rng, max_ops=4, max_devices=3, contention=kind)
        problem = problem.replace(transfer=problem.transfer * int(rng.integers(1, 6)))
        best = brute_force(problem) or 0
        for most in range(best):
            step = whole_step(problem, most, math.inf)
            if step is None:
                break
            closed += refutes(problem, most, step)
            assert not refutes(problem, best, step), seed
        assert whole_step(problem, best, math.inf) is None
        state = checker.Supposition(checker.Placement(plain(problem)), best, None)
        for alike, ticks, step in segment_flows(problem, Analysis(problem).evidence(0), math.inf):
            checker.follow(state, plain_words(["segment", alike, ticks, [step]]))
            delayed += not state.closed
        problem = period_problems.random_problem(seed, n=5, contiguity="none")
        problem = problem.replace(io_class=np.maximum(problem.io_class, 0))
        best = period_problems.best_period(problem) or 0
        witness = period_witness(problem, best, "test", 5.0)
        for step in witness.content["steps"]:
            if step[0] == "leaving":
                periods += refutes(problem, witness.bound - 1, step)
                assert not refutes(problem, best, step), seed
    assert min(closed, delayed, periods) > 0


def test_forks_add_up_what_flows_show_between_their_ends():
    """The delays of segments that flows show are derived, and then those of the whole."""
    problem = po.load("gen:fork-join?stages=2&branches=8&ccr=1&seed=1", "uniform:8")
    problem = problem.replace(channel=np.where(np.eye(8, dtype=bool), -1, 0))
    analysis = Analysis(problem, seconds=20.0, written=True)
    analysis.run_all((*COMBINATORIAL, "congestion"), optional=True)
    bound = analysis.bounds["congestion"]
    assert bound > max(x for name, x in analysis.bounds.items() if name != "congestion")
    state = Supposition(problem, bound - 1)
    steps = raise_by_flows(state, analysis, math.inf)
    assert any(step[3][0][0] == "crossing" for step in steps)
    steps = plain_words([*steps, *derive(state, Effort(1, math.inf, class_choices(state)))])
    state = checker.Supposition(checker.Placement(plain(problem)), bound - 1, None)
    checker.refute(state, steps)


def test_flows_that_would_be_long_are_left_out(monkeypatch):
    """Of more numbers than other witnesses have, nothing is written."""
    problem = problem_of([[8, 8]] * 2, [(0, 1, 30)], channel=BUS)
    assert whole_step(problem, 13, math.inf) is not None
    monkeypatch.setattr("placeopt.makespan.proof.witness.MOST_SENT", 3)
    assert whole_step(problem, 13, math.inf) is None
    assert uniform_flow.MOST_SENT == 200_000
