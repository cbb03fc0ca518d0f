"""Replicas, groups and overlapped transfers against an enumeration of all chains, against ideal-dp,
and through the interface.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.cli import main
from placeopt.io.serialize import from_dict, to_dict
from placeopt.model.errors import InputError
from placeopt.model.ideals import ideal_lattice
from placeopt.model.objective import objective_of
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.exact import ideal_program, split_ideals
from placeopt.solvers.exact.ideal_program import DpOutcome, IdealProgram
from placeopt.solvers.exact.split_ideals import best_split, most_in_pairs, split_model
from placeopt.solving.registry import make_solver
from placeopt.splits.judge import judged_period, split_violations
from placeopt.splits.objective import BOUNDS, split_loads, split_period
from placeopt.splits.problem import Split, SplitProblem, SplitStage

pytestmark = pytest.mark.jit


def identical(seed, devices, n=5):
    """Return a random problem on identical accelerators without colocation."""
    base = problems.random_problem(seed, n=n)
    rng = np.random.default_rng(seed)
    ticks = rng.integers(1, 12, n)
    return PlacementProblem(
        name="identical",
        compute=np.repeat(ticks[:, None], devices, axis=1),
        producer=base.producer,
        consumer_ptr=base.consumer_ptr,
        consumer=base.consumer,
        transfer=base.transfer,
        resident=base.resident,
        capacity=np.full(devices, int(base.resident.sum() * 0.7) + 1),
        io_class=np.zeros(devices, dtype=np.int64),
        objective="period",
    )


def crossing(problem, held, ticks):
    """Sum of ticks of the tensors that cross the border of a set of ops."""
    total = 0
    for t, (producer, consumers, _) in enumerate(problems.tensors(problem)):
        if (producer in held and set(consumers) - held) or (
            producer not in held and held & set(consumers)
        ):
            total += int(ticks[t])
    return total


def enumerate_splits(problem):
    """Return the best period over all chains of ideals, replica counts and groups; None if nothing
    fits.
    """
    base = problem.placement
    n, k = base.num_ops, base.num_devices
    size = k // problem.groups
    edges = [(u, v) for u, consumers, _ in problems.tensors(base) for v in consumers]
    ideals = [
        frozenset(v for v in range(n) if bits >> v & 1)
        for bits in range(2**n)
        if all(bits >> u & 1 or not bits >> v & 1 for u, v in edges)
    ]

    @cache
    def stage(held, r):
        if sum(int(base.resident[v]) for v in held) > base.capacity[0]:
            return float("inf")
        work, moved = (
            sum(int(base.compute[v, 0]) for v in held),
            crossing(base, held, base.transfer[:, 0]),
        )
        weights = -(-2 * (r - 1) * int(sum(problem.sync[v] for v in held)) // r)
        return (
            max(-(-work // r), -(-moved // r) + weights)
            if problem.overlap
            else -(-(work + moved) // r) + weights
        )

    @cache
    def inner(first, last, c):
        if first == last:
            return 0
        choices = [
            max(inner(first, middle, c - r), stage(last - middle, r))
            for middle in ideals
            if first <= middle < last
            for r in range(1, min(problem.max_replicas, c) + 1)
        ]
        return min(choices, default=float("inf"))

    @cache
    def outer(last, j):
        if not last:
            return 0
        if j == 0:
            return float("inf")
        return min(
            max(
                outer(first, j - 1),
                inner(first, last, size),
                crossing(base, last - first, problem.uplink) if problem.groups > 1 else 0,
            )
            for first in ideals
            if first < last
        )

    best = outer(frozenset(range(n)), problem.groups)
    return None if best == float("inf") else best


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("devices", "replicas", "groups"), [(3, 1, 1), (3, 2, 1), (3, 3, 1), (4, 1, 2), (4, 2, 2)]
)
def test_splits_are_optimal(devices, replicas, groups, overlap):
    """The split found is the best of all, valid, valued alike by evaluation and judge, and not
    below a quick bound.
    """
    for seed in range(12):
        base = identical(seed, devices)
        rng = np.random.default_rng(seed + 100)
        sync, uplink = rng.integers(0, 4, base.num_ops), rng.integers(0, 9, base.num_tensors)
        problem = SplitProblem(base, replicas, groups, overlap, sync, uplink)
        expected = enumerate_splits(problem)
        result = po.solve(problem, seconds=20)
        assert result.value == expected, seed
        assert result.status == ("infeasible" if expected is None else "optimal")
        if expected is not None:
            assert split_violations(problem, result.solution) == []
            assert (
                split_period(problem, result.solution)
                == judged_period(problem, result.solution)
                == expected
            )
            assert max(bound(problem) for bound in BOUNDS.values()) <= expected


def test_one_device_a_stage_is_ideal_dp():
    """Without extensions the split has the value of ideal-dp, CPUs and colocation included."""
    for seed in range(15):
        problem = problems.random_problem(seed, training=seed % 2 == 1, contiguity="chain")
        split = po.solve(SplitProblem(problem.replace(pipeline="1f1b")), seconds=20)
        result = make_solver("ideal-dp").solve(problem.replace(pipeline="1f1b"), Budget(), seed=0)
        assert split.value == result.objective


def test_extensions_of_a_published_pipeline(data):
    """On bert24 replication without synchronisation never hurts, a dear one is not used, and
    overlap never hurts.
    """
    base = po.load(
        data / "dnn-partitioning/throughput/layer_bert24_inference.json", objective="period"
    )

    def best(**fields):
        return po.solve(SplitProblem(base, **fields), seconds=20).value

    single = best()
    assert single == 17789906
    assert best(max_replicas=6) <= single
    assert best(max_replicas=6, sync=np.full(base.num_ops, 10**9)) == single
    assert best(overlap=True) <= single
    free = best(groups=3, uplink=np.zeros(base.num_tensors, dtype=np.int64))
    assert free <= best(groups=3, uplink=base.transfer[:, 0] * 1000)


def test_too_many_ideals_and_bad_options():
    """A star falls back to a few orders and says so; wrong options are one clear line."""
    n = 12
    base = PlacementProblem.from_edges(
        np.full((n, 4), 4), [(0, v, 1) for v in range(1, n)], objective="period"
    )
    problem = SplitProblem(base, groups=2)
    assert not best_split(problem, split_model(problem)).complete
    result = po.solve(problem, solver="split-ideals", max_ideals=50, evaluations=5)
    assert result.status == "feasible"
    assert "not all pipelines" in result.message
    for fields, message in (
        ({"groups": 3}, "divisor of 4"),
        ({"max_replicas": 0}, "max_replicas"),
        ({"max_replicas": 2.5}, "a whole number of at least 1, received 2.5"),
        ({"groups": "2"}, "a whole number of at least 1, received .2."),
        ({"overlap": "no"}, "overlap: expected True or False, received 'no'"),
        ({"sync": [1, 2]}, "sync"),
        ({"uplink": [-1] * base.num_tensors}, "at least 0"),
        ({"uplink": [2**59] * base.num_tensors}, "uplink: the sum passes 2.62"),
        ({"sync": [2**58] * n, "max_replicas": 3}, "sync: the sum passes 2.62"),
        ({"objective": "makespan"}, "expected period"),
    ):
        with pytest.raises(InputError, match=message):
            SplitProblem(base, **fields)
    with pytest.raises(InputError, match="pipeline='1f1b'"):
        SplitProblem(base.replace(pipeline="gpipe"))
    with pytest.raises(InputError, match="memory='static', received 'peak'"):
        SplitProblem(base.replace(memory="peak"))


@pytest.mark.parametrize("fields", [{}, {"max_replicas": 2}, {"groups": 2}, {"overlap": True}])
def test_other_orders_follow_where_ideals_are_too_many(fields):
    """With a limit the search goes on along other orders and ends nearer to the best split than
    after the first, the same with every run; without a limit it ends by itself.
    """
    first = more = best = 0
    for seed in range(8):
        problem = SplitProblem(identical(seed, 4, n=8), **fields)
        exact = po.solve(problem, evaluations=10)
        assert exact.status == "optimal"
        one, many, again = (
            po.solve(problem, max_ideals=1, evaluations=count, seed=1) for count in (1, 60, 60)
        )
        assert one.evaluations == 1
        assert exact.value <= many.value <= one.value
        assert (many.value, many.evaluations, many.solution) == (
            again.value,
            again.evaluations,
            again.solution,
        )
        assert (many.status == "optimal") == (many.message == "")
        first, more, best = first + one.value, more + many.value, best + exact.value
        endless = make_solver("split-ideals", "split", max_ideals=1).solve(problem, Budget())
        assert endless.evaluations == 1
    assert best <= more < first


def test_devices_that_are_left_out_prove_nothing_of_overlap(monkeypatch):
    """Where the tables have no room for all devices, limits that the others do not keep are no
    bound, whenever the search ends.
    """
    compute = np.full((8, 4), 8) + np.eye(8, 4, dtype=np.int64)
    base = PlacementProblem.from_edges(compute, [], objective="period")
    problem = SplitProblem(base, overlap=True)
    best = po.solve(problem, evaluations=10).value
    model, runs, run = split_model(problem), [], IdealProgram.run
    lattice = ideal_lattice(model.num_nodes, model.order_from, model.order_to, limit=10**6)
    monkeypatch.setattr(ideal_program, "MAX_CELLS", 4 * lattice.num_ideals)

    def once(program, *limits, stop=None):
        runs.append((limits, program.restricted))
        return run(program, *limits) if not runs[1:] else DpOutcome(None, (), False)

    monkeypatch.setattr(IdealProgram, "run", once)
    outcome = best_split(problem, model, lattice)
    assert [restricted for _, restricted in runs] == [True, True]
    assert runs[0][0][0] >= best
    assert (outcome.split, outcome.complete) == (None, False)
    assert 0 < outcome.lower_bound <= best


def test_tables_of_pairs_stay_small():
    """Of the prefixes of a long chain as many are ends of stages as tables take a second for; the
    split along them is valid, and huge numbers of replicas are as good as all devices.
    """
    n = 3000
    base = PlacementProblem.from_edges(
        np.full((n, 4), 4), [(v, v + 1, 1) for v in range(n - 1)], objective="period"
    )
    problem = SplitProblem(base, groups=2)
    model = split_model(problem)
    assert 2 <= most_in_pairs(problem, model) < 500
    split = best_split(problem, model).split
    assert split_violations(problem, split) == []
    assert split_period(problem, split) <= 1.02 * n
    few = problems.random_problem(1, contiguity="chain")
    values = {po.solve(SplitProblem(few, max_replicas=most)).value for most in (3, 10**30)}
    assert len(values) == 1


def changed(split, at, **fields):
    """Return a split with one stage changed."""
    stages = list(split.stages)
    stages[at] = replace(stages[at], **fields)
    return Split(tuple(stages))


def test_the_judge_finds_what_is_wrong():
    """Every constraint has a violation of its own, in words."""
    base = identical(3, 4).replace(capacity=np.full(4, 10**6))
    problem = SplitProblem(base, max_replicas=2, groups=2)
    order = base.topological_order.tolist()
    good = Split(
        (
            SplitStage(tuple(order[:2]), (0, 1)),
            SplitStage((order[2],), (2,)),
            SplitStage(tuple(order[3:]), (3,)),
        )
    )
    assert split_violations(problem, good) == []
    assert objective_of(problem).finish(problem, good).value == judged_period(problem, good)
    wrong = {
        "is in 2 places": changed(good, 1, ops=(order[2], order[3])),
        "is in no stage": changed(good, 0, ops=(order[0],)),
        "expected 0..3": changed(good, 1, devices=(9,)),
        "has no devices": changed(good, 1, devices=()),
        "at most 2 may share": Split((SplitStage(tuple(order), (0, 1, 2)),)),
        "in several groups": Split((SplitStage(tuple(order), (1, 2)),)),
        "by turns": Split(
            tuple(
                replace(stage, devices=(d,))
                for stage, d in zip(good.stages, (3, 0, 1), strict=True)
            )
        ),
    }
    for words, split in wrong.items():
        assert any(words in line for line in split_violations(problem, split)), words
    tight = SplitProblem(
        base.replace(capacity=base.resident[order[:2]].sum() - 1 + np.zeros(4, dtype=np.int64)),
        max_replicas=2,
    )
    assert any("its capacity is" in line for line in split_violations(tight, good))
    u, v = next((u, v) for u, consumers, _ in problems.tensors(base) for v in consumers)
    back = Split((SplitStage((v,), (0,)), SplitStage(tuple(op for op in order if op != v), (1,))))
    assert any("back to" in line for line in split_violations(problem, back))
    assert objective_of(problem).judge(problem, None) != []
    assert u != v


def test_written_and_read(tmp_path, capsys):
    """Problem and split survive JSON; the command line makes, solves, bounds and verifies the same
    problem.
    """
    base = identical(5, 4)
    problem = SplitProblem(base, 2, 2, True, np.arange(base.num_ops), np.arange(base.num_tensors))
    again = from_dict(json.loads(json.dumps(to_dict(problem))))
    assert again.hash == problem.hash
    result = po.solve(problem, seconds=10)
    assert from_dict(to_dict(result.solution)) == result.solution
    assert (
        objective_of(problem).details(problem, result.solution)["uplinks"]
        == split_loads(problem, result.solution).uplink.tolist()
    )
    po.serialize.save(base, tmp_path / "base.json")
    po.serialize.save(problem, tmp_path / "split.json")
    assert po.load(tmp_path / "split.json").hash == problem.hash

    def run(*words):
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        return stop.value.code, capsys.readouterr()

    code, told = run(
        "solve",
        str(tmp_path / "base.json"),
        "--max-replicas",
        "2",
        "--device-groups",
        "2",
        "--overlap",
        "--json",
        "--out",
        str(tmp_path / "out"),
    )
    assert code == 0, told.err
    shown = json.loads(told.out)
    assert shown["value"] == po.solve(SplitProblem(base, 2, 2, True), seconds=10).value
    assert {"ops", "devices", "load", "group"} == set(shown["stages"][0])
    code, told = run(
        "verify",
        str(tmp_path / "base.json"),
        str(tmp_path / "out" / "result.json"),
        "--max-replicas",
        "2",
        "--device-groups",
        "2",
        "--overlap",
        "--json",
    )
    assert code == 0, told.err
    assert json.loads(told.out)["status"] == "optimal"
    assert run("bound", str(tmp_path / "split.json"), "--json")[0] == 0
    for words in (("--objective", "makespan"), ("--contiguity", "none")):
        code, told = run("solve", str(tmp_path / "base.json"), "--overlap", *words)
        assert code == 2
        assert told.err.count("\n") == 1
    code, told = run("solve", str(tmp_path / "split.json"), "--max-replicas", "2")
    assert code == 2
    assert "leave out 'max_replicas'" in told.err


def test_groups_begin_with_the_stages_of_the_best_pipeline(monkeypatch):
    """Where few ends of stages can be tried, those of the best pipeline without groups are among
    them.
    """
    n = 400
    base = PlacementProblem.from_edges(
        np.ones((n, 8), np.int64), [(v, v + 1, 1) for v in range(n - 1)], objective="period"
    )
    problem = SplitProblem(base, groups=2)
    model = split_model(problem)
    monkeypatch.setattr(split_ideals, "_STEPS", 2000)
    assert most_in_pairs(problem, model) < 8
    assert split_period(problem, best_split(problem, model).split) == n // 8 + 2


def grid_problem(compute):
    """Return a grid of 12 columns whose ops take `compute` (a row of devices for each)."""
    n = len(compute)
    edges = [(v, v + 1, 1 + v % 7) for v in range(n - 1) if (v + 1) % 12]
    edges += [(v, v + 12, 1 + v % 7) for v in range(n - 12)]
    return PlacementProblem.from_edges(compute, sorted(edges), objective="period")


@pytest.mark.parametrize("fields", [{}, {"groups": 2, "uplink": np.zeros(172, np.int64)}])
def test_splits_begin_with_what_the_period_finds(fields):
    """Where ideals are too many, the best split is no worse than the chain that the search of the
    period finds in half of the evaluations.
    """
    ticks = np.random.default_rng(3).integers(1, 60, (96, 1))
    base = grid_problem(np.repeat(ticks, 12, axis=1)).replace(contiguity="chain")
    named = "starts,orders,annealing"
    chain = po.solve(base, solver="cp-sat", tactics=named, evaluations=14, seed=0)
    split = po.solve(SplitProblem(base, **fields), max_ideals=1, evaluations=29, seed=0)
    assert split.value <= chain.value


def test_areas_of_device_types_bound_splits():
    """Slow devices count for as little as they can do, not for as much as the fast ones."""
    base = grid_problem(np.random.default_rng(4).integers(1, 60, (48, 1)) * [1, 1, 9, 9])
    least = base.compute[:, 0].sum() / (2 + 2 / 9)
    for fields in ({"max_replicas": 2}, {"overlap": True}):
        split = po.solve(SplitProblem(base, **fields), max_ideals=1, evaluations=20)
        assert least <= split.lower_bound <= split.value


def test_an_op_that_groups_leave_no_device_for():
    """It makes the problem infeasible, whether all ideals are searched or not."""
    compute = np.full((12, 5), 4)
    compute[3, :4] = -1
    problem = SplitProblem(grid_problem(compute), groups=2)
    for ideals in (1, 0):
        assert po.solve(problem, max_ideals=ideals, evaluations=5).status == "infeasible"
