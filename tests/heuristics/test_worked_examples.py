"""Worked examples of the papers: the schedules that HEFT, CPOP and PEFT must reproduce."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.makespan.evaluate import evaluate
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.heuristics import ranks
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.list_scheduling import cpop_plan, heft_plan, peft_plan
from placeopt.solving.registry import make_solver

pytestmark = pytest.mark.interpreted


def paper_problem(name, compute, edges):
    """Build a problem from edges whose tasks are numbered from 1, as in the papers."""
    return PlacementProblem.from_edges(compute, [(u - 1, v - 1, c) for u, v, c in edges], name=name)


@pytest.fixture
def topcuoglu():
    """Return the 10 tasks and 3 processors of Topcuoglu, Hariri, Wu (2002), figure 2 and table
    1.
    """
    return paper_problem(
        "topcuoglu",
        [
            [14, 16, 9],
            [13, 19, 18],
            [11, 13, 19],
            [13, 8, 17],
            [12, 13, 10],
            [13, 16, 9],
            [7, 15, 11],
            [5, 11, 14],
            [18, 12, 20],
            [21, 7, 16],
        ],
        [
            (1, 2, 18),
            (1, 3, 12),
            (1, 4, 9),
            (1, 5, 11),
            (1, 6, 14),
            (2, 8, 19),
            (2, 9, 16),
            (3, 7, 23),
            (4, 8, 27),
            (4, 9, 23),
            (5, 9, 13),
            (6, 8, 15),
            (7, 10, 17),
            (8, 10, 11),
            (9, 10, 13),
        ],
    )


@pytest.fixture
def arabnejad():
    """Return the 10 tasks and 3 processors of Arabnejad, Barbosa (2014), figure 2."""
    return paper_problem(
        "arabnejad",
        [
            [22, 21, 36],
            [22, 18, 18],
            [32, 27, 43],
            [7, 10, 4],
            [29, 27, 35],
            [26, 17, 24],
            [14, 25, 30],
            [29, 23, 36],
            [15, 21, 8],
            [13, 16, 33],
        ],
        [
            (1, 2, 17),
            (1, 3, 31),
            (1, 4, 29),
            (1, 5, 13),
            (1, 6, 7),
            (2, 8, 3),
            (2, 9, 30),
            (3, 7, 16),
            (4, 8, 11),
            (4, 9, 7),
            (5, 9, 57),
            (6, 8, 5),
            (7, 10, 9),
            (8, 10, 42),
            (9, 10, 7),
        ],
    )


def test_upward_ranks_of_the_heft_paper(topcuoglu):
    """Table 2 of the paper: upward ranks to three digits."""
    rank, _ = Context(topcuoglu).upward_rank()
    published = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert np.round(rank, 3).tolist() == published


def test_downward_rank_sums_to_the_critical_path(topcuoglu):
    """Upward plus downward rank is 108 exactly on tasks 1, 2, 9 and 10, the critical path of the
    paper.
    """
    view = Context(topcuoglu)
    total = view.upward_rank()[0] + ranks.downward_rank(
        view.graph, view.mean_compute, view.mean_transfer
    )
    assert (np.flatnonzero(np.isclose(total, 108)) + 1).tolist() == [1, 2, 9, 10]


def test_heft_schedule_of_the_paper(topcuoglu):
    """HEFT: makespan 80 with the starts and processors of figure 3a."""
    plan = heft_plan(Context(topcuoglu))
    assert (plan.device + 1).tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]
    assert plan.start.tolist() == [0, 27, 9, 18, 28, 26, 38, 57, 56, 73]
    assert plan.finish.max() == 80


def test_cpop_schedule_of_the_paper(topcuoglu):
    """CPOP: makespan 86; the critical path 1, 2, 9, 10 runs on processor 2."""
    plan = cpop_plan(Context(topcuoglu))
    assert plan.finish.max() == 86
    assert (plan.device[[0, 1, 8, 9]] == 1).all()


def test_optimistic_cost_table_of_the_peft_paper(arabnejad):
    """Table 1 of the paper: OCT of the first task on three processors, zeros at the exit."""
    view = Context(arabnejad)
    table = ranks.optimistic_cost(view.graph, view.costs, view.mean_transfer)
    assert table[0].tolist() == [64, 68, 86]
    assert table[9].tolist() == [0, 0, 0]


def test_heft_and_peft_makespans_of_the_peft_paper(arabnejad):
    """On the graph of the PEFT paper HEFT takes 133 and PEFT 122."""
    view = Context(arabnejad)
    assert heft_plan(view).finish.max() == 133
    assert peft_plan(view).finish.max() == 122


@pytest.mark.parametrize(("solver", "published"), [("heft", 80), ("cpop", 86)])
def test_solvers_reach_the_published_makespan(topcuoglu, solver, published):
    """The placement returned executes at least as fast as the published schedule; planned, exactly
    so.
    """
    result = make_solver(solver).solve(topcuoglu, Budget(), seed=0)
    assert result.objective <= published
    assert evaluate(topcuoglu, result.solution, "planned").makespan == published


def test_peft_solver_reaches_the_published_makespan(arabnejad):
    """The placement of `peft` executes in 122 when its plan is followed."""
    result = make_solver("peft").solve(arabnejad, Budget(), seed=0)
    assert evaluate(arabnejad, result.solution, "planned").makespan == 122
