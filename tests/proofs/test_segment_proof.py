"""Segments as steps of a proof: the checker derives every delay, and refuses what does not
follow.
"""

from __future__ import annotations

import copy
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attack"))

from compare import solvable
from tampering import load_checker, plain
from test_segments import draw_fork

import placeopt as po
from placeopt.makespan.bounds import bound
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.proof.supposition import Supposition
from placeopt.makespan.proof.witness import makespan_witness, raise_by_segments

checker = load_checker()


def supposition(problem, most):
    """Return the checker's supposition that a problem has a schedule of at most `most` ticks."""
    return checker.Supposition(checker.Placement(plain(problem)), most, [])


@cache
def proved(source, method):
    """Return a problem, its bound by `method`, and the steps that prove it."""
    problem = po.load(source, "4xP100")
    report = bound(problem, methods=["communication", method], seconds=3600)
    assert report.bounds[method] > report.bounds["communication"]
    witness = makespan_witness(problem, report.value, method, 3600)
    assert (witness.bound, witness.beliefs) == (report.value, ())
    return problem, report.value, witness.content["steps"]


def recurrent():
    """Return three steps of a recurrent network with what proves its bound."""
    return proved("gen:rnn-lm?steps=3", "segments")


def experts():
    """Return two layers of experts with what proves their bound."""
    return proved("gen:moe?layers=2", "fork-join")


def test_the_bound_of_a_recurrent_network_is_derived():
    """The steps name alike segments together, and nothing has to be believed."""
    problem, value, steps = recurrent()
    state = supposition(problem, value - 1)
    checker.refute(state, steps)
    assert state.believed == []
    named = [step for step in steps if step[0] == "segment"]
    assert max(len(step[1]) for step in named) >= 4


def broken(steps, way):
    """Return the steps with something of the first segment of several ops changed."""
    steps = copy.deepcopy(steps)
    step = next(x for x in steps if x[0] == "segment" and len(x[1][0]) > 6)
    if way == "longer":
        step[2] += 1
    elif way == "not between":
        step[1][0][1] = max(max(ops) for ops in step[1]) + 50
    elif way == "order":
        step[1][0][1:3] = step[1][0][2:0:-1]
        step[1][0].reverse()
    elif way == "other copy":
        step[1].append([v + 1 for v in step[1][0]])
    elif way == "no steps":
        step[3] = []
    else:
        step[3] = [["front", [1], [step[2], 0], [0, 0]]]
    return steps


@pytest.mark.parametrize(
    "way", ["longer", "not between", "order", "other copy", "no steps", "believed"]
)
def test_what_does_not_follow_is_refused(way):
    """A delay that is longer, ops that lie elsewhere, a copy that is none, and statements to
    believe inside a segment.
    """
    problem, value, steps = recurrent()
    state = supposition(problem, value - 1)
    with pytest.raises((checker.FalseStatementError, checker.UnreadableError)):
        checker.refute(state, broken(steps, way))


def test_delays_of_random_forks_are_derived():
    """On small problems of every option the checker follows the steps, and the delays never pass
    brute force.
    """
    raised = 0
    for _, problem, best in solvable(draw_fork, range(40)):
        analysis, state = (
            Analysis(problem, seconds=3600.0),
            Supposition(problem, best),
        )  # nothing known: no segment is left out
        steps = raise_by_segments(state, analysis, float("inf"))
        checked = supposition(problem, best)
        for step in steps:
            checker.follow(checked, step)
            _, copies, ticks, _ = step
            assert all(checked.waits[ops[0], ops[-1]] == ticks <= best for ops in copies)
            raised += 1
    assert raised > 3


def test_the_bound_of_experts_is_derived():
    """Both layers share the derivation of what passes between their fork and their join."""
    problem, value, steps = experts()
    state = supposition(problem, value - 1)
    checker.refute(state, steps)
    assert state.believed == []
    assert (
        max(len(step[1]) for step in steps if step[0] == "segment" and step[3][0][0] == "ends") == 2
    )


@pytest.mark.parametrize("way", ["longer", "more devices", "no fork", "no join", "fewer ops"])
def test_a_spread_that_does_not_follow_is_refused(way):
    """A longer delay, one device more, ways that are left out, and half of the ops."""
    problem, value, steps = experts()
    steps = copy.deepcopy(steps)
    step = max((x for x in steps if x[0] == "segment"), key=lambda x: x[2])
    ends = step[3][0]
    if way == "longer":
        step[2] += 1
    elif way == "more devices":
        problem = po.load("gen:moe?layers=2", "5xP100")
    elif way == "no fork":
        ends[2] = None
    elif way == "no join":
        ends[3] = None
    else:
        ends[1] = ends[1][::2]
    with pytest.raises(checker.FalseStatementError):
        checker.refute(supposition(problem, value - 1), steps)
