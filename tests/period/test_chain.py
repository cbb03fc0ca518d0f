"""Chains: ideals, contraction, ideal-dp and linear-dp against brute force and the published
optima.
"""

from __future__ import annotations

from itertools import islice, product

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.model import ideals
from placeopt.model.errors import InputError
from placeopt.model.ideals import ideal_lattice, linear_lattice
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.period.contracted import contract
from placeopt.period.judge import period_violations
from placeopt.solvers.exact import ideal_dp, ideal_program
from placeopt.solvers.exact.ideal_program import ChainOutcome, IdealProgram
from placeopt.solvers.exact.linear_dp import improve_orders, search_orders
from placeopt.solvers.exact.period_tactics import PeriodFacts
from placeopt.solving.registry import make_solver
from placeopt.solving.tracker import Tracker

pytestmark = pytest.mark.interpreted

# (file, ideals, chain optimum in the file's unit of 1e6 ticks)
PUBLISHED = [
    ("layer_bert24_inference", 30, 17.78991),
    ("layer_bert24_training", 30, 41.74581),
    ("layer_gnmt_inference", 17914, 32.91066),
    ("layer_resnet50_inference", 242, 33.77467),
    ("layer_inceptionv3_inference", 36596, 51.55186),
    ("layer_inceptionv3_training", 36596, 122.76162),
    ("operator_bert_l-3_inference", 1428, 27.91857),
    ("operator_bert_l-3_training", 2774, 65.30315),
    ("operator_bert_l-12_inference", 2906, 147.47798),
    ("operator_resnet50_inference", 241, 124.34885),
]

SMALL_STENCIL = "gen:stencil?rows=2&columns=3&steps=3"


def test_lattice_holds_every_ideal_once():
    """The lattice of random orders lists exactly the down-sets, each with its maximal nodes."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        edges = [(u, v) for u in range(7) for v in range(u + 1, 7) if rng.random() < 0.3]
        expected = {
            bits
            for bits in product((False, True), repeat=7)
            if all(bits[u] or not bits[v] for u, v in edges)
        }
        source, target = (np.array([e[i] for e in edges], dtype=np.int64) for i in (0, 1))
        lattice = ideal_lattice(7, source, target, limit=10**6)
        found = [tuple(lattice.members(i, 7).tolist()) for i in range(lattice.num_ideals)]
        assert set(found) == expected
        assert len(found) == len(expected)
        for i, bits in enumerate(found):
            nodes = lattice.child_node[lattice.child_ptr[i] : lattice.child_ptr[i + 1]].tolist()
            assert nodes == sorted(
                (v for v in range(7) if bits[v] and not any(bits[w] for u, w in edges if u == v)),
                reverse=True,
            )
        assert ideal_lattice(7, source, target, limit=len(expected) - 1) is None
    assert linear_lattice(70).members(65, 70).sum() == 65


@pytest.mark.jit
@pytest.mark.parametrize("pipeline", ["1f1b", "gpipe"])
@pytest.mark.parametrize("training", [False, True])
def test_ideal_dp_is_optimal(pipeline, training):
    """On random problems ideal-dp finds and proves the best chain of all placements, or that there
    is none.
    """
    for seed in range(25):
        problem = problems.random_problem(
            seed, training=training, contiguity="chain", pipeline=pipeline
        )
        expected = problems.best_period(problem)
        result = make_solver("ideal-dp").solve(problem, Budget(), seed=0)
        assert result.objective == expected
        assert result.status == ("infeasible" if expected is None else "optimal")
        linear = make_solver("linear-dp").solve(problem, Budget(), seed=0)
        if linear.solution is not None:
            assert linear.objective >= expected
            assert linear.lower_bound <= expected
            assert not period_violations(problem, linear.solution)


@pytest.mark.jit
def test_chain_is_feasible_for_other_contiguity():
    """ideal-dp on `convex` and `none` returns a valid placement and never claims more than a true
    bound.
    """
    for seed in range(10):
        for contiguity in ("convex", "none"):
            problem = problems.random_problem(seed, training=True, contiguity=contiguity)
            result = make_solver("ideal-dp").solve(problem, Budget(), seed=0)
            if result.solution is not None:
                assert not period_violations(problem, result.solution)
                assert result.lower_bound <= problems.best_period(problem) <= result.objective


def test_contraction_keeps_the_optimum():
    """Joining nodes under a limit keeps every placement within the limit representable: the best
    one survives.
    """
    for seed in range(15):
        problem = problems.random_problem(seed, contiguity="none", n=5)
        best = problems.best_period(problem)
        if best is None:
            continue
        model = contract(problem, limit=best)
        spread = [
            problems.oracle_period(problem, tuple(model.expand(np.array(choice)).tolist()))
            for choice in product(range(3), repeat=model.num_nodes)
        ]
        assert min(value for value in spread if value is not None) == best


@pytest.mark.jit
@pytest.mark.parametrize(("name", "ideals", "optimum"), PUBLISHED)
def test_published_chain_optima(data, name, ideals, optimum):
    """ideal-dp proves the published chain optimum to 1e-5, over as many ideals as the published
    program.
    """
    problem = po.load(data / "dnn-partitioning" / "throughput" / f"{name}.json", objective="period")
    model = contract(problem)
    assert (
        ideal_lattice(model.num_nodes, model.order_from, model.order_to, limit=10**6).num_ideals
        == ideals
    )
    result = make_solver("ideal-dp").solve(problem, Budget(), seed=0)
    assert result.status == "optimal"
    assert result.objective * 1e-6 == pytest.approx(optimum, rel=1e-5)


@pytest.mark.jit
def test_too_many_ideals_falls_back_to_linear_orders():
    """With more ideals than allowed the best linear pipeline comes back, with a message and a valid
    bound.
    """
    n = 12
    problem = PlacementProblem.from_edges(
        np.full((n, 3), 4), [(0, v, 1) for v in range(1, n)], objective="period", name="star"
    )
    result = make_solver("ideal-dp", max_ideals=100).solve(problem, Budget(), seed=0)
    assert "100 ideals" in result.message
    assert result.lower_bound == 16
    assert result.objective >= 16
    with pytest.raises(InputError, match="max_ideals"):
        make_solver("ideal-dp", max_ideals=0)


def test_memory_that_cannot_fit_is_infeasible():
    """Where no chain fits the capacities ideal-dp says so."""
    problem = PlacementProblem.from_edges(
        [[1, 1], [1, 1], [1, 1]],
        [(0, 1, 0), (1, 2, 0)],
        resident=np.array([3, 3, 3]),
        capacity=np.array([5, 5]),
        objective="period",
    )
    for name in ("ideal-dp", "cp-sat", "milp"):
        result = make_solver(name).solve(problem, Budget(20.0), seed=0)
        assert result.status == "infeasible"
        assert "resident bytes" in result.message


@pytest.mark.jit
@pytest.mark.parametrize("seed", range(6))
def test_orders_near_the_incumbent_find_the_best_chain(seed):
    """Moving nodes along the stages of the incumbent ends at the optimum over all ideals, from a
    single order.
    """
    problem = problems.random_problem(seed, contiguity="chain", training=seed % 2 == 0, n=8)
    best = make_solver("ideal-dp").solve(problem, Budget(evaluations=100))
    tracker = Tracker("orders", problem, Budget(evaluations=10**6))
    model = contract(problem, contiguity="chain")
    for _ in search_orders(tracker, model, 1):
        pass
    for _ in islice(improve_orders(tracker, model, np.random.default_rng(seed)), 300):
        pass
    assert tracker.value == best.value
    if tracker.solution is not None:
        assert period_violations(problem, tracker.solution) == []


def test_joined_nodes_come_first_where_a_pass_is_long(monkeypatch):
    """On many types of devices the first pass is one over fewer nodes; the next one sees all."""
    ticks = np.random.default_rng(0).integers(1, 99, (60, 4))
    edges = [(v, v + 1, 1) for v in range(59)]
    problem = PlacementProblem.from_edges(ticks, edges, objective="period", contiguity="chain")
    tracker = Tracker("orders", problem, Budget(evaluations=10**6))
    model, seen = contract(problem, contiguity="chain"), []
    monkeypatch.setattr(ideal_program, "MAX_CELLS", 1000)
    assert ideal_program.coarse_enough(model).num_nodes == 20
    for _ in search_orders(tracker, model, 1):
        seen.append(tracker.value)
    assert len(seen) == 2
    assert seen[0] > seen[1]


@pytest.mark.jit
def test_too_many_ideals_go_to_cp_sat():
    """With more ideals than allowed the answer is not that of a few orders: it is improved, and a
    bound beyond the quick ones is proved; `beyond="nothing"` keeps it.
    """
    problem = po.load(SMALL_STENCIL, "uniform:3", objective="period", contiguity="chain")
    few = po.solve(problem, "ideal-dp", evaluations=200, max_ideals=10, beyond="nothing")
    more = po.solve(problem, "ideal-dp", evaluations=200, max_ideals=10)
    assert "kept the best of 4 linear orders" in few.message
    assert "cp-sat went on" in more.message
    assert more.value < few.value
    assert more.lower_bound > few.lower_bound


@pytest.mark.jit
def test_a_program_that_is_not_done_in_time_leaves_time_for_cp_sat(monkeypatch):
    """Where the program over the ideals does not end in its half of the time, CP-SAT goes on, and
    its tactics are listed.
    """
    problem = po.load(SMALL_STENCIL, "uniform:3", objective="period", contiguity="chain")
    unfinished = ChainOutcome(None, (), 1, complete=False)
    monkeypatch.setattr(ideal_dp, "best_chain", lambda *_: unfinished)
    monkeypatch.setattr(ideals, "ideal_lattice", lambda n, *_, limit: linear_lattice(n))
    result = po.solve(problem, "ideal-dp", evaluations=200)
    assert "too many for the time: cp-sat went on" in result.message
    assert "cp-sat" in {use.name for use in result.tactics}


@pytest.mark.jit
def test_devices_that_the_tables_have_no_room_for_are_left_to_cp_sat(monkeypatch):
    """Where all ideals fit the tables with a part of the devices only, nothing is proved by them,
    and CP-SAT goes on with all devices.
    """
    problem = po.load("gen:stencil?rows=1&columns=4&steps=4", "uniform:3", objective="period")
    problem = problem.replace(contiguity="chain")
    best = po.solve(problem, "ideal-dp", evaluations=2000)
    model = contract(problem, contiguity="chain")
    lattice = ideal_lattice(model.num_nodes, model.order_from, model.order_to, limit=10**6)
    monkeypatch.setattr(ideal_program, "MAX_CELLS", 3 * lattice.num_ideals)
    result = po.solve(problem, "ideal-dp", evaluations=2000)
    assert "no room for the states of all devices: cp-sat went on" in result.message
    assert (result.value, result.lower_bound) == (best.value, best.lower_bound)


@pytest.fixture
def states(monkeypatch):
    """Numbers of states of all programs that are made, but those that compile kernels."""
    found, init = [], IdealProgram.__init__

    def noted(program, *given, **options):
        init(program, *given, **options)
        if program.model.num_nodes > 7:
            found.append(len(program.arrays.digit))

    monkeypatch.setattr(IdealProgram, "__init__", noted)
    return found


def path_of(n, k):
    """A path of ops that like any of the devices."""
    compute = np.random.default_rng(0).integers(1, 9, (n, k))
    edges = [(v, v + 1, 1) for v in range(n - 1)]
    return PlacementProblem.from_edges(compute, edges, objective="period", contiguity="chain")


def test_the_first_answer_of_many_unlike_devices_is_quick(states):
    """The states of twelve devices that all differ would take many times the limit: along the first
    order of nodes they are taken in one order, along the next ones in any.
    """
    result = make_solver("linear-dp").solve(path_of(12, 12), Budget(seconds=20.0), seed=0)
    assert states[:2] == [13, 2**12]
    assert result.value is not None


@pytest.mark.jit
def test_the_first_pass_over_a_large_graph_is_quick(states):
    """All states of eight devices that differ take long where pairs of nodes are many: along the
    first order of nodes they are taken in one order before any.
    """
    for n in (100, 1200):
        make_solver("linear-dp").solve(path_of(n, 8), Budget(evaluations=2), seed=0)
    assert states == [2**8, 2**8, 9, 2**8]


def test_models_of_chains_on_many_devices_wait_for_their_time():
    """Every edge has a clause for every two devices: 64 devices take long beside the same problem
    without an order of devices, 4 do not.
    """
    edges = [(v, v + 1, 1) for v in range(40)]
    for devices, least, most in ((64, 10, 40), (4, 1, 3)):
        problem = PlacementProblem.from_edges([[1] * devices] * 41, edges, objective="period")
        free, chain = (
            PeriodFacts(None, problem.replace(contiguity=contiguity), timed=True).building
            for contiguity in ("none", "chain")
        )
        assert least < chain / free < most
