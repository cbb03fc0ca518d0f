"""The searches as solvers: never worse than the seed, budgets, threads, the period, black boxes,
published targets.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import ClassVar

import numpy as np
import pytest
from random_problems import random_problem

from placeopt.api import load, solve
from placeopt.instances.generators import generate
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.evaluate import best_queue, evaluate, evaluate_batch
from placeopt.makespan.objective import MAKESPAN
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.period.evaluate import period_batch, period_value
from placeopt.solvers.heuristics import context
from placeopt.solvers.heuristics.repair import pack
from placeopt.solvers.policy.tuned_list import TunedList
from placeopt.solvers.portfolio import Portfolio
from placeopt.solvers.portfolio_tactics import dealt
from placeopt.solvers.search.annealing import Annealing
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solvers.stages import HEURISTICS, SWEEPS, Stages
from placeopt.solving.compilation import kernels_of
from placeopt.solving.registry import make_solver, specs
from placeopt.solving.tracker import Tracker

SEARCHES = ("cross-entropy", "post", "annealing", "genetic")
ALL = (*SEARCHES, "portfolio")
SCALE = 1e10  # doppler's simulator divides its times by this


def small(seed=0, n=7, k=2):
    """Return a problem small enough to enumerate."""
    rng = np.random.default_rng(seed)
    edges = [
        (u, v, int(rng.integers(1, 9))) for v in range(1, n) for u in range(v) if rng.random() < 0.4
    ]
    return PlacementProblem.from_edges(rng.integers(1, 12, (n, k)), edges, name=f"small-{seed}")


def every_assignment(problem):
    """Return all device assignments."""
    rows = itertools.product(range(problem.num_devices), repeat=problem.num_ops)
    return np.array(list(rows), dtype=np.int32)


@pytest.fixture(scope="module")
def layered():
    """A layered graph of about 400 ops on 8 devices."""
    assert generate("gen:layered?layers=20&width=20&seed=1").num_ops >= 380
    return load("gen:layered?layers=20&width=20&seed=1", "8xP100")


@pytest.mark.parametrize(
    ("solver", "seed"), [*itertools.product(SEARCHES, range(3)), ("portfolio", 0)]
)
def test_never_worse_than_the_seed_on_a_large_graph(layered, solver, seed):
    """400 ops, 8 devices: neither a heuristic's placement nor a random one is lost, however small
    the budget.
    """
    rng = np.random.default_rng(seed)
    starts = [
        make_solver("etf").solve(layered, Budget(evaluations=1), seed=seed).solution,
        Placement(rng.integers(0, 8, layered.num_ops)),
    ]
    for initial in starts:
        value, _ = best_queue(layered, initial)
        for evaluations in (2, 300):
            result = make_solver(solver).solve(
                layered, Budget(evaluations=evaluations), seed=seed, initial=initial
            )
            assert result.objective <= value
            assert result.evaluations <= evaluations
            assert evaluate(layered, result.solution, result.queue).makespan == result.objective


@pytest.mark.parametrize("solver", ALL)
def test_the_answer_does_not_depend_on_threads(layered, solver):
    """One, two and three threads give the same placement and the same sequence of incumbents."""
    results = [
        make_solver(solver, threads=threads).solve(layered, Budget(evaluations=700), seed=5)
        for threads in (1, 2, 3)
    ]
    for other in results[1:]:
        assert other.solution == results[0].solution
        assert [p.incumbent for p in other.trace] == [p.incumbent for p in results[0].trace]


@pytest.mark.parametrize("solver", SEARCHES)
def test_seeds_differ(layered, solver):
    """Another seed walks another way."""
    search = make_solver(solver, start="random").solve
    values = {search(layered, Budget(evaluations=400), seed=seed).objective for seed in range(3)}
    assert len(values) > 1


@pytest.mark.parametrize("solver", SEARCHES)
def test_a_time_budget_is_kept(solver, monkeypatch):
    """With a clock that only measurements move, a search ends within 5 % (one measurement) of its
    time.
    """
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def measure(device):
        now[0] += 0.02
        return float(np.bincount(device).max())

    result = make_solver(solver, measure=measure, start="random").solve(
        small(n=12), Budget(seconds=2.0), seed=0
    )
    assert 2.0 - 1e-9 <= result.runtime <= 2.0 * 1.05
    assert result.stop_reason == "time"
    assert result.evaluations == round(now[0] / 0.02)


@pytest.mark.parametrize("solver", ALL)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_black_box_is_minimised(solver, seed):
    """The user's own function, here with a hole and a preference, is brought to the minimum over
    all placements.
    """
    problem = small(seed).replace(tick_seconds=1e-3)
    wish = np.random.default_rng(seed).integers(0, 2, problem.num_ops)
    calls = []

    def measure(device):
        calls.append(device.copy())
        if device.sum() == 0:
            return math.nan  # fails
        return 1.0 + (device != wish).sum() + 0.25 * device[0]

    best = min(measure(row) for row in every_assignment(problem) if row.sum())
    calls.clear()
    result = make_solver(solver, measure=measure).solve(problem, Budget(evaluations=600), seed=seed)
    assert result.objective == round(best * 1000)
    assert len(calls) <= 600
    assert result.evaluations <= 600
    assert measure(result.solution.device) == pytest.approx(result.objective / 1000)


@pytest.mark.parametrize("solver", SEARCHES)
def test_a_black_box_only_sees_placements_that_fit(solver):
    """Capacities and colocation are kept before anything is measured."""
    rng = np.random.default_rng(5)
    problem = PlacementProblem.from_edges(
        rng.integers(1, 9, (10, 3)),
        [(u, u + 1, 2) for u in range(9)],
        resident=np.full(10, 4),
        capacity=np.full(3, 16),
        colocation=[0, -1, 0, -1, 1, -1, 1, -1, -1, -1],
    )
    seen = []

    def measure(device):
        seen.append(
            (np.bincount(device, minlength=3).max(), device[0] == device[2], device[4] == device[6])
        )
        return float(device.sum())

    make_solver(solver, measure=measure).solve(problem, Budget(evaluations=150), seed=0)
    assert seen
    assert all(most <= 4 and a and b for most, a, b in seen)


@pytest.mark.parametrize("solver", [*ALL, "dual-policy"])
def test_measurements_may_beat_the_bounds_of_the_model(solver):
    """The bounds are proved for the cost model: a system that is faster than it is no
    contradiction.
    """
    problem = small(1)
    result = solve(
        problem, make_solver(solver, measure=lambda device: 1e-9 * (1 + device[0])), evaluations=40
    )
    assert result.objective == 1
    assert result.lower_bound == 0


@pytest.mark.parametrize("solver", ["annealing", "dual-policy"])
@pytest.mark.parametrize("seconds", [-1.0, 1e300])
def test_impossible_measurements_are_refused(solver, seconds):
    """Seconds that are negative, or more than ticks can say, are an error of one line."""
    search = make_solver(solver, measure=lambda device: seconds)
    with pytest.raises(InputError, match="seconds") as error:
        search.solve(small(), Budget(evaluations=20), seed=0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("solver", [*ALL, "dual-policy"])
def test_measurements_that_all_fail_are_no_solution(solver):
    """What has no finite time is offered by nobody."""
    search = make_solver(solver, measure=lambda device: math.inf)
    for initial in (None, Placement(np.zeros(7, np.int64))):
        result = search.solve(small(), Budget(evaluations=20), seed=0, initial=initial)
        assert result.solution is None


@pytest.mark.parametrize(
    ("solver", "seed"), [*itertools.product(ALL, (0, 1)), ("post", 2), ("genetic", 2)]
)
def test_the_period_is_minimised(solver, seed):
    """The same solvers find the smallest period over all placements of a small problem.

    On the third problem the optimum has no neighbour without a cycle between devices: only
    populations get there.
    """
    problem = small(seed, n=8).replace(objective="period")
    best = period_batch(problem, every_assignment(problem)).min()
    result = make_solver(solver).solve(problem, Budget(evaluations=3000), seed=seed)
    assert result.objective == best
    assert period_value(problem, result.solution) == best


@pytest.mark.parametrize("solver", ALL)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_small_problems_are_solved(solver, seed):
    """No placement of a small problem, in fifo execution or by upward rank, is better than what is
    found.
    """
    problem = small(seed)
    rows = every_assignment(problem)
    best = min(
        evaluate_batch(problem, rows).min(),
        evaluate_batch(problem, rows, SearchSpace(problem).rank).min(),
    )
    assert make_solver(solver).solve(problem, Budget(evaluations=4000), seed=seed).objective <= best


@pytest.mark.parametrize("seed", range(4))
def test_the_portfolio_is_not_worse_than_its_heuristics(seed):
    """On random problems with any contention, every heuristic in it is matched."""
    problem = random_problem(np.random.default_rng(seed), max_ops=12)
    result = make_solver("portfolio").solve(problem, Budget(evaluations=4000), seed=seed)
    for name in HEURISTICS:
        spec = specs("placement")[name]
        if "makespan" in spec.objectives:
            try:
                other = make_solver(name).solve(problem, Budget(evaluations=200), seed=seed)
            except InputError:
                continue  # refuses this kind of problem
            assert other.objective is None or result.objective <= other.objective


def test_passes_of_the_learned_list_go_on_beside_the_other_searches():
    """Where every op likes other devices best they are a search of their own, as long as a
    pass does not look at too many ready ops.
    """
    rng = np.random.default_rng(1)
    problem = load("gen:layered?layers=12&width=8&ccr=1&seed=1", cluster="uniform:4")
    times = problem.compute * np.exp(rng.uniform(0, np.log(4), problem.compute.shape))
    problem = problem.replace(compute=times.astype(np.int64))
    result = solve(problem, make_solver("portfolio", tactics="passes"), seconds=4, seed=0)
    (use,) = result.tactics
    assert (use.name, use.side) == ("passes", "value")
    assert use.turns > 2
    assert result.value <= solve(problem, make_solver("learned-list", passes=2)).value
    wide = PlacementProblem.from_edges(np.full((2001, 2), 3), [])
    long = PlacementProblem.from_edges(np.full((4000, 2), 3), [(v, v + 2, 1) for v in range(3998)])
    for of, runs in ((problem, True), (wide, False), (long, True)):
        stages = Stages(BudgetedEvaluator(Tracker("", of, Budget(evaluations=1))))
        assert (stages.able("learned-list") is not None) == runs


def test_a_long_sweep_takes_turns_with_the_searches():
    """Edge-zeroing of a graph of a thousand ops takes seconds: it goes on after each batch, finds
    in the end what it finds alone, and is not one of the heuristics that come before.
    """
    problem = load("gen:series-parallel?ops=120&ccr=1&seed=4", cluster="uniform:4")
    tracker = Tracker("", problem, Budget())
    batches = make_solver("edge-zeroing").batches(problem, tracker)
    next(batches)
    assert 0 < tracker.evaluations <= 64
    values = [tracker.value for _ in batches]
    assert values[-1] == make_solver("edge-zeroing").solve(problem, Budget()).value
    begun = []
    stages = Stages(BudgetedEvaluator(tracker))
    stages.heuristic = begun.append
    Portfolio().begin(stages, SWEEPS)
    assert begun == [name for name in HEURISTICS if name not in SWEEPS]


@pytest.mark.parametrize("solver", [*SEARCHES, "tuned-list", "portfolio"])
@pytest.mark.parametrize("memory", ["static", "peak"])
def test_evaluations_are_kept_where_transfers_contend(solver, memory):
    """The walk without contention, and the valuing of what it found, count as well."""
    problem = load("gen:layered?layers=4&width=3&seed=1", "3xP100?contention=pair", memory=memory)
    start = make_solver("heft").solve(problem, Budget()).solution
    for evaluations in (1, 2, 3, 4, 5, 9):
        for initial in (None, start):
            result = make_solver(solver).solve(
                problem, Budget(evaluations=evaluations), initial=initial
            )
            assert result.evaluations <= evaluations


@pytest.mark.parametrize(("seed", "capacity"), [(5, 34), (6, 40), (11, 35)])
def test_placements_are_found_where_those_to_start_from_break_the_peak(seed, capacity):
    """Of random orders on random devices the best of hundreds keeps the limit, no heuristic does."""
    problem = load(f"gen:layered?layers=4&width=4&seed={seed}", "uniform:2", memory="peak")
    problem = problem.replace(
        tensor_bytes=np.arange(problem.num_tensors) * 7 % 19 + 1, capacity=np.full(2, capacity)
    )
    assert all(
        result is None or result.solution is None
        for result in (make_solver(name).solve(problem, Budget()) for name in ("etf", "heft"))
    )
    found = (
        solve(problem, "annealing", evaluations=3000),
        solve(problem, "cp-sat", seconds=60, target=10**9, tactics="windows"),
    )
    for result in found:
        assert evaluate(problem, result.solution, result.queue).peak_memory.max() <= capacity


def test_solvers_name_the_kernels_of_what_they_run():
    """None of the portfolio's heuristics is compiled while its clock runs, and a walk on any links
    needs the moves of populations, too.
    """
    taken = [name for name in HEURISTICS if "makespan" in specs("placement")[name].objectives]
    solvers = [make_solver(name) for name in taken]
    assert set(kernels_of(MAKESPAN, solvers)) <= set(kernels_of(MAKESPAN, [Portfolio()]))
    assert {"walks", "populations"} <= set(kernels_of(MAKESPAN, [TunedList()]))


def test_few_hosts_are_tried_where_there_are_several():
    """Layers whose tensors queue for the link between two hosts: HEFT takes longer than one device
    does, and half of that on the devices of one host. On a single host the portfolio need not try.
    """
    edges = [(v, v // 8 * 8 + 8 + (3 * v + d) % 8, 1) for v in range(40) for d in (0, 1, 4)]
    far = (np.arange(4)[:, None] // 2 != np.arange(4) // 2).astype(np.int64)
    problem = PlacementProblem.from_edges(np.full((48, 4), 10), edges).replace(
        transfer=np.tile([1, 60], (len(edges), 1)), link_class=far, channel=far - 1
    )
    few, heft = (make_solver(name) for name in ("few-hosts", "heft"))
    assert heft.solve(problem, Budget(evaluations=10)).value > 480
    assert few.solve(problem, Budget(evaluations=10)).value == 240
    assert few.within(problem, 1.0) is few
    assert few.within(problem.replace(link_class=0 * far), 1.0) is None
    assert "few-hosts" in HEURISTICS


def test_a_heuristic_that_adds_nothing_is_not_left_out(monkeypatch):
    """A first run names the heuristics whose kernels it misses, of those that it would have run."""
    monkeypatch.setattr("placeopt.solvers.stages.ready", lambda kernels: False)
    problem = PlacementProblem.from_edges([[1, 1]] * 2, [(0, 1, 1)])
    tracker = Tracker("test", problem, Budget(evaluations=10))
    tracker.offer(2, Placement([0, 0]))
    stages = Stages(BudgetedEvaluator(tracker))
    assert stages.able("few-hosts") is None
    assert not tracker.message
    assert stages.able("heft") is None
    assert "without 1 heuristics" in tracker.message


def test_packing_is_asked_for_once(monkeypatch):
    """Its integer program may take long; heuristics and searches share the answer."""
    problem = PlacementProblem.from_edges(
        np.ones((5, 2), np.int64), [(0, 1, 1)], resident=[7, 7, 2, 2, 2], capacity=[10, 10]
    )
    asked = []
    monkeypatch.setattr(context, "pack", lambda *how: asked.append(how) or pack(*how))
    result = make_solver("portfolio").solve(problem, Budget(evaluations=100))
    assert result.status == "infeasible"
    assert len(asked) == 1


def test_somebody_else_can_derive_from_annealing_where_transfers_contend():
    """The walk without contention is a part of the solve behind the face that a plug-in sees."""

    class Derived(Annealing):
        name: ClassVar[str] = "derived"

    problem = load("gen:layered?layers=6&width=5&seed=1", cluster="4xP100?contention=pair")
    found = [solve(problem, solver, evaluations=500).value for solver in (Derived(), Annealing())]
    assert found[0] == found[1]


def test_the_portfolio_stops_with_a_proof():
    """Meeting the bound ends the search, whatever is left of the budget."""
    problem = PlacementProblem.from_edges([[5, 5], [5, 5]], [])
    result = make_solver("portfolio").solve(problem, Budget(seconds=30), seed=0)
    assert (result.objective, result.lower_bound, result.status, result.stop_reason) == (
        5,
        5,
        "optimal",
        "proved",
    )


def test_wrong_settings_are_one_line():
    """Options out of range are refused with the value received."""
    for solver, options in [
        ("annealing", {"walks": 0}),
        ("annealing", {"hot": -1.0}),
        ("annealing", {"start": "nothing"}),
        ("annealing", {"measure": "fast"}),
        ("annealing", {"threads": "all"}),
        ("cross-entropy", {"groups": "many"}),
        ("round-robin", {"chunks": 2.5}),
        ("genetic", {"population": 1}),
        ("genetic", {"climb": -1}),
        ("cross-entropy", {"elite": 0.0}),
        ("cross-entropy", {"refine": 1.0}),
        ("cross-entropy", {"groups": -2}),
        ("cross-entropy", {"exploration": 1.0}),
        ("post", {"cross_entropy": False, "policy_gradient": False}),
        ("post", {"batch": 1}),
        ("post", {"refit": 8}),
        ("post", {"clip": 0.0}),
        ("portfolio", {"walks": 0}),
        ("portfolio", {"tactics": "passes, nothing"}),
    ]:
        with pytest.raises(InputError, match=solver) as error:
            make_solver(solver, **options)
        assert "\n" not in str(error.value)


def mean_value(problem, solver, evaluations, seeds, **options):
    """Mean makespan over seeds, in the units of the published simulator."""
    runs = [
        make_solver(solver, **options).solve(problem, Budget(evaluations=evaluations), seed=s)
        for s in range(seeds)
    ]
    return np.mean([run.objective for run in runs]) / SCALE


@pytest.mark.parametrize(
    ("graph", "target"), [("chain_mm", 1370), ("ffnn", 70), ("llama_block", 185)]
)
def test_targets_from_scratch(data, graph, target):
    """2400 evaluations from random placements: the cross-entropy method stays below the project's
    targets.
    """
    problem = load(data / "doppler" / f"{graph}.txt", "uniform:4")
    assert mean_value(problem, "cross-entropy", 2400, 5, start="random") <= target


@pytest.mark.parametrize(
    ("graph", "target"), [("chain_mm", 1200.08), ("ffnn", 56.70), ("llama_block", 150)]
)
def test_targets_from_a_heuristic(data, graph, target):
    """24 000 evaluations from edge-zeroing: annealing reaches the optima, or comes close to it."""
    problem = load(data / "doppler" / f"{graph}.txt", "uniform:4")
    assert mean_value(problem, "annealing", 24_000, 3) <= target


def test_ops_without_order_are_shared_out_by_a_program():
    """Independent ops on devices that differ, some alike: each class of devices has its share of
    the program's load, but for an op or two, and nobody's ops.
    """
    rng = np.random.default_rng(0)
    compute = np.concatenate(
        [np.repeat(rng.integers(1, 99, (90, 1)), 2, 1), rng.integers(1, 99, (90, 3))], 1
    )
    compute[::7, 2] = -1
    problem = PlacementProblem.from_edges(compute, [], colocation=[-1] * 80 + [1, 2] * 5)
    analysis = Analysis(problem, 60.0)
    bound = analysis.run("load")
    home = dealt(analysis.relaxation, analysis.load.shares)
    device = home[problem.units.unit]
    ticks = problem.compute[np.arange(90), device]
    assert (ticks >= 0).all()
    assert np.bincount(device, ticks).max() <= 1.2 * bound
    assert Analysis(problem, 0.0).load is analysis.load
