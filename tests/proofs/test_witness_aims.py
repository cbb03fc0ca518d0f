"""What a witness shows where the claimed bound cannot be shown: the best bound below it that
can.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from exact_instances import random_layered

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.proof import witness
from placeopt.makespan.proof.derivation import OutOfReachError
from placeopt.makespan.proof.supposition import Supposition
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
    derive = witness.derive

    def reluctant(state, effort):
        if state.most >= known[refused - 1] - 1:
            raise OutOfReachError
        return derive(state, effort)

    monkeypatch.setattr(witness, "derive", reluctant)
    monkeypatch.setattr(witness, "_by_fronts", lambda *_: None)
    found = witness.makespan_witness(problem, known[0] + 5, "cp-sat", 1.0)
    assert 0 < found.bound <= known[refused]
    assert found.bound in known
    assert found.method == "propagation"


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
