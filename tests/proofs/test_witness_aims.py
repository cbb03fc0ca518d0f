"""What a witness shows where the claimed bound cannot be shown: the best bound below it that
can.
"""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from exact_instances import random_layered
from tampering import load_checker

from placeopt.certify.certificate import prove
from placeopt.certify.verify import verify
from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.proof import witness
from placeopt.makespan.proof.derivation import Effort, OutOfReachError
from placeopt.makespan.proof.supposition import Supposition
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem


@pytest.mark.parametrize("refused", [1, 2])
def test_next_best_bound(monkeypatch, refused):
    """A claim that only a search proved, and combinatorial bounds without steps, leave the next
    bound, not none.
    """
    problem = random_layered(60, 4, 1)
    analysis = Analysis(problem, seconds=20.0)
    analysis.run_all((*COMBINATORIAL, "segments"), optional=True)
    known = sorted(set(analysis.bounds.values()), reverse=True)
    assert len(known) > refused
    derive, load_steps = witness.derive, witness._load_steps

    def reluctant(state, effort):
        if state.most >= known[refused - 1] - 1:
            raise OutOfReachError
        return derive(state, effort)

    monkeypatch.setattr(witness, "derive", reluctant)
    monkeypatch.setattr(
        witness,
        "_load_steps",
        lambda state, *given: (
            None if state.most >= known[refused - 1] - 1 else load_steps(state, *given)
        ),
    )
    monkeypatch.setattr(witness, "_by_fronts", lambda *_: None)
    found = witness.makespan_witness(problem, known[0] + 5, "cp-sat", 1.0)
    assert 0 < found.bound <= known[refused]
    assert found.bound in known
    assert found.method == "propagation"


@pytest.mark.parametrize("count", [6, 40])
def test_steps_follow_where_classes_are_weighed(count):
    """On a device and one half as fast, the heads and tails of the communication-aware bound weigh
    the classes; without cases, steps show as much of small problems and of large ones.
    """
    inside = range(1, count + 1)
    edges = [pair for v in inside for pair in ((0, v, 1), (v, count + 1, 1))]
    problem = PlacementProblem.from_edges([[1, 1], *[[2, 4]] * count, [1, 1]], edges)
    analysis = Analysis(problem)
    analysis.run_all(COMBINATORIAL, optional=True)
    bound = analysis.bounds["communication"]
    assert bound > analysis.bounds["load"]
    state = Supposition(problem, bound - 1)
    goals = None if count < 40 else witness.goals_of(state)
    effort = Effort(1, float("inf"), witness.class_choices(state), goals)
    assert witness.derive(state, effort)


@pytest.mark.parametrize("objective", ["makespan", "period"])
def test_bytes_have_prices_where_memory_is_tight(objective):
    """Two of six ops fit on the fast device, and the other one takes 8 ticks for each."""
    problem = PlacementProblem.from_edges(
        [[4, 8]] * 6, [], resident=[1] * 6, capacity=[2, 6], objective=objective
    )
    placement = Placement([0, 0, 1, 1, 1, 1])
    proof = prove(problem, placement, verify(problem, placement, seconds=0.0), seconds=1.0)
    said = load_checker().check(json.loads(json.dumps(proof)))
    assert said == ("value 32, lower bound 32 by load", [])


def test_paths_and_loads_of_any_length_have_steps():
    """Lemmas are looked for in floating point, up to 2^50 ticks; paths and loads need none."""
    huge = 2**52 + 1
    path = PlacementProblem.from_edges([[huge, huge + 1]] * 3, [(0, 1, huge), (1, 2, huge)])
    loads = PlacementProblem.from_edges([[huge, huge + 1]] * 3, [])
    for problem, device in ((path, [0, 0, 0]), (loads, [0, 1, 1])):
        placement = Placement(device)
        certificate = verify(problem, placement, seconds=0.0)
        proof = prove(problem, placement, certificate, seconds=1.0)
        assert proof["lower_bound"] == certificate.lower_bound > 2 * huge - 2
        assert not load_checker().check(json.loads(json.dumps(proof)))[1]


@pytest.mark.jit
def test_fronts_believe_nothing_that_their_models_refute():
    """Heads that see islands prove more of a window than the steps of a proof show: what is written
    down to be believed has no solution, or is left out.
    """
    base = random_layered(24, 3, 7)
    near, host = base.transfer[:, :1], np.array([0, 0, 1])
    problem = base.replace(
        transfer=np.hstack([near, 2 * near]),
        link_class=(host[:, None] != host[None, :]).astype(np.int64),
    )
    found = witness._by_fronts(problem, 964, time.perf_counter() + 10)
    beliefs = () if found is None else found[1]
    assert all(witness.has_no_solution(belief.model, 30.0) is not False for belief in beliefs)


def test_what_cannot_be_is_later_than_all_that_is_supposed():
    """Beside an op that takes too long on the second device, the other one of its group never
    starts there: a number above what is supposed, not one below everything.
    """
    problem = PlacementProblem.from_edges([[1, 9], [1, 1]], [(0, 1, 4)], colocation=[0, 0])
    state = Supposition(problem, 8)
    witness.sweep(state, backwards=False)
    analysis = Analysis(problem, seconds=5.0)
    analysis.run_all(COMBINATORIAL, optional=True)
    assert witness._supposed(state, analysis).heads.head.tolist() == [[0, 0], [1, 9]]


def test_loads_are_proved_by_prices_of_bytes():
    """Memory keeps all but two of ten ops off the fast device: the slow one takes 800 ticks."""
    problem = PlacementProblem.from_edges([[10, 100]] * 10, [])
    problem = problem.replace(resident=np.full(10, 50), capacity=np.array([100, 10_000]))
    assert witness.makespan_witness(problem, 800, "load", 1.0).bound == 800


def test_what_is_shown_below_the_claim_has_an_end(monkeypatch):
    """Every derivation ends with the time; without any, paths or loads are shown, not nothing."""
    problem, ends = random_layered(60, 4, 1), []

    def late(state, effort):
        ends.append(effort.end)
        raise OutOfReachError

    monkeypatch.setattr(witness, "derive", late)
    monkeypatch.setattr(witness, "_by_fronts", lambda *_: None)
    found = witness.makespan_witness(problem, 10_000, "cp-sat", 1.0)
    assert all(map(np.isfinite, ends))
    analysis = Analysis(problem)
    analysis.run_all(["critical-path", "load"], optional=False)
    assert found.bound == analysis.best()[0]
