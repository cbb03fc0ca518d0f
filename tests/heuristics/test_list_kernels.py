"""The compiled list schedulers against textbook versions, and the properties every plan must
have.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from random_problems import random_problem

from placeopt.makespan.evaluate import evaluate
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.heuristics import idle_gaps, ranks
from placeopt.solvers.heuristics.baechi import favourite_children, greedy_children
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.list_scheduling import cpop_plan, etf_plan, heft_plan, peft_plan

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import python_heft

pytestmark = pytest.mark.interpreted


def problems(count, **options):
    """Random problems, one per seed."""
    return [random_problem(np.random.default_rng(seed), **options) for seed in range(count)]


def start_of(problem, plan_device, finish, op, device):
    """Earliest time at which the inputs of `op` are on `device`."""
    ready = 0
    for e in np.flatnonzero(problem.consumer == op):
        tensor = problem.edge_tensor[e]
        source = problem.producer[tensor]
        home = plan_device[source]
        delay = 0 if home == device else problem.transfer[tensor, problem.link_class[home, device]]
        ready = max(ready, finish[source] + delay)
    return int(ready)


def naive_etf(problem, level):
    """Scan all ready ops and devices at every step; colocation and capacity respected, None when
    stuck.
    """
    n, k = problem.num_ops, problem.num_devices
    device, start, finish, open_at = {}, {}, {}, [0] * k
    order = {op: i for i, op in enumerate(problem.topological_order.tolist())}
    group = [int(g) if g >= 0 else -1 - op for op, g in enumerate(problem.colocation)]
    members = {g: [v for v in range(n) if group[v] == g] for g in group}
    home, free = {}, problem.capacity.tolist()
    while len(device) < n:
        best = None
        for op in range(n):
            parents = problem.producer[problem.edge_tensor[problem.consumer == op]]
            if op in device or any(int(p) not in device for p in parents):
                continue
            size = sum(int(problem.resident[v]) for v in members[group[op]])
            for d in range(k):
                if any(problem.compute[v, d] < 0 for v in members[group[op]]):
                    continue
                if home.get(group[op], d) != d or (group[op] not in home and size > free[d]):
                    continue
                begin = max(open_at[d], start_of(problem, device, finish, op, d))
                key = (begin, -level[op], order[op], d)
                if best is None or key < best[0]:
                    best = (key, op, d, size)
        if best is None:
            return None
        (begin, *_), op, d, size = best
        if group[op] not in home:
            home[group[op]] = d
            free[d] -= size
        device[op], start[op], finish[op] = d, begin, begin + int(problem.compute[op, d])
        open_at[d] = finish[op]
    return [device[v] for v in range(n)], [start[v] for v in range(n)]


def test_heft_equals_plain_python():
    """On 150 random problems the compiled HEFT returns the schedule of the plain one, op by op."""
    for problem in problems(150, colocated=False, max_ops=25):
        device, start, _ = python_heft.schedule(problem)
        plan = heft_plan(Context(problem))
        assert plan.device.tolist() == device
        assert plan.start.tolist() == start


def test_heft_equals_plain_python_where_gaps_are_many(monkeypatch):
    """Hundreds of idle gaps of a device, filled out of order, zero times among the ops: the first
    that fits is found.

    Interpreted, leaves are so small that all of them are divided again and again.
    """
    if numba.config.DISABLE_JIT:
        monkeypatch.setattr(idle_gaps, "WIDTH", 2)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        compute = rng.integers(0, 60, (400, 3)) * (rng.random((400, 1)) < 0.9)
        edges = [
            (int(a), int(b), int(rng.integers(0, 900)))
            for a, b in rng.integers(0, 400, (800, 2))
            if a < b
        ]
        problem = PlacementProblem.from_edges(compute, edges)
        device, start, _ = python_heft.schedule(problem)
        plan = heft_plan(Context(problem))
        assert plan.device.tolist() == device
        assert plan.start.tolist() == start


def test_etf_equals_the_textbook_scan():
    """Two heaps per device give the schedule of the quadratic scan, with memory limits and
    groups.
    """
    compared = 0
    for problem in problems(150, max_ops=15):
        generous = problem.replace(
            capacity=np.full(problem.num_devices, problem.resident.sum() * 2 // 3 + 10)
        )
        view = Context(generous)
        if not view.units.allowed.any(axis=1).all():
            continue
        level, _ = view.upward_rank(communication=False)
        expected = naive_etf(generous, level)
        plan = etf_plan(view)
        assert plan.overflow == (expected is None)
        if expected is not None:
            compared += 1
            assert (plan.device.tolist(), plan.start.tolist()) == expected
    assert compared > 100


@pytest.mark.parametrize("make", [heft_plan, cpop_plan, peft_plan, etf_plan])
def test_plans_are_schedules(make):
    """Ops start after their inputs have arrived and never overlap on a device."""
    for problem in problems(60, max_ops=25):
        view = Context(problem)
        if not view.units.allowed.any(axis=1).all():
            continue
        plan = make(view)
        for op in range(problem.num_ops):
            assert plan.start[op] >= start_of(
                problem, plan.device, plan.finish, op, plan.device[op]
            )
            assert plan.finish[op] == plan.start[op] + problem.compute[op, plan.device[op]]
        for device in range(problem.num_devices):
            mine = np.flatnonzero(plan.device == device)
            mine = mine[np.lexsort((plan.finish[mine], plan.start[mine]))]
            assert (plan.start[mine[1:]] >= plan.finish[mine[:-1]]).all()


@pytest.mark.parametrize("make", [heft_plan, cpop_plan, peft_plan, etf_plan])
def test_ranks_reproduce_the_plan(make):
    """Without contention, executing the ranks in planned order is never later than the plan."""
    for problem in problems(60, contention="none", max_ops=25):
        view = Context(problem)
        if not view.units.allowed.any(axis=1).all():
            continue
        plan = make(view)
        assert evaluate(problem, view.ranked(plan), "planned").makespan <= plan.finish.max()


def test_insertion_fills_gaps():
    """An op ranked last goes into the gap that waiting for a transfer left; appended, it comes
    after.
    """
    compute = [[2, 99], [99, 2], [40, 99], [1, 99]]
    problem = PlacementProblem.from_edges(compute, [(0, 1, 5), (1, 2, 5)])
    filled, appended = heft_plan(Context(problem)), heft_plan(Context(problem), insertion=False)
    assert filled.start.tolist() == [0, 7, 14, 2]  # device 0 idles from 2 to 14
    assert appended.start.tolist() == [0, 7, 14, 54]


def test_contention_is_queued():
    """With one outgoing bus per device the second of two transfers waits, and the plan says so."""
    compute = [[1, 50], [1, 50], [90, 1], [90, 1]]
    edges = [(0, 2, 10), (1, 3, 10)]
    bus = np.zeros((2, 2), dtype=np.int64)
    problem = PlacementProblem.from_edges(compute, edges, channel=bus)
    plan = heft_plan(Context(problem), contention=True)
    assert plan.device.tolist() == [0, 0, 1, 1]
    assert plan.finish.max() == 22
    assert evaluate(problem, Context(problem).ranked(plan), "planned").makespan == 22
    assert heft_plan(Context(problem)).finish.max() == 13


def test_a_tensor_is_sent_once_per_device():
    """Two consumers on one device share a transfer on a busy channel."""
    problem = PlacementProblem.from_arrays(
        compute=[[1, 99], [99, 1], [99, 1]],
        producer=[0],
        consumer_ptr=[0, 2],
        consumer=[1, 2],
        transfer=[10],
        channel=np.zeros((2, 2), dtype=np.int64),
    )
    assert heft_plan(Context(problem), contention=True).finish.max() == 13


def test_favourite_children_match():
    """The linear program gives each op at most one favourite, each child at most one parent, edges
    only.
    """
    for problem in problems(40, max_ops=20):
        edges = {
            (int(problem.producer[t]), int(v))
            for t, v in zip(problem.edge_tensor, problem.consumer, strict=True)
        }
        for favourite in (favourite_children(Context(problem)), greedy_children(Context(problem))):
            chosen = [(op, int(child)) for op, child in enumerate(favourite) if child >= 0]
            assert set(chosen) <= edges
            assert len({child for _, child in chosen}) == len(chosen)


def test_the_linear_program_picks_the_expensive_child():
    """Of two children the one whose transfer is on the longest path becomes the favourite."""
    problem = PlacementProblem.from_edges([[4, 4]] * 3, [(0, 1, 3), (0, 2, 1)])
    assert favourite_children(Context(problem)).tolist() == [1, -1, -1]


def test_priority_list_is_topological():
    """The priority list takes the smallest position among the ready ops, whatever the positions
    are.
    """
    for seed, problem in enumerate(problems(40, max_ops=20)):
        position = np.random.default_rng(seed).permutation(problem.num_ops)
        order = ranks.priority_list(Context(problem).graph, position).tolist()
        done = set()
        for op in order:
            ready = [
                v
                for v in range(problem.num_ops)
                if v not in done
                and set(problem.producer[problem.edge_tensor[problem.consumer == v]].tolist())
                <= done
            ]
            assert op == min(ready, key=lambda v: position[v])
            done.add(op)
