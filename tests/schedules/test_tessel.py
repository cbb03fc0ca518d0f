"""Tessel's enumeration and the exact makespan model, beside the repetend search."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from random_pipelines import random_blocks, random_tree_pipeline

import placeopt as po
from placeopt.model.errors import InputError
from placeopt.schedules import schedule, schedule_result
from placeopt.schedules.bounds import makespan_bound
from placeopt.schedules.evaluate import makespan
from placeopt.schedules.judge import pipeline_violations
from placeopt.schedules.tessel import _assignments
from placeopt.schedules.time_optimal import _greedy, _MakespanModel

if TYPE_CHECKING:
    from placeopt.schedules.problem import PipelineProblem


@pytest.mark.parametrize(
    ("name", "mode", "period"),
    [
        ("V", "train", 4),
        ("X", "train", 8),
        ("K", "train", 6),
        ("M", "train", 6),
        ("NN", "train", 8),
        ("V", "infer", 1),
        ("X", "infer", 2),
        ("K", "infer", 2),
        ("M", "infer", 2),
        ("NN", "infer", 3),
    ],
)
def test_enumeration_finds_the_published_periods(name: str, mode: str, period: int):
    """On 4 devices the enumeration ends at the periods of the published search, and repetend finds
    the same.
    """
    problem = po.load_pipeline(f"shape:{name}?devices=4&mode={mode}")
    theirs = schedule_result(problem, "tessel", seconds=120)
    ours = schedule_result(problem, "repetend", num_workers=1, latency_seconds=0)
    assert theirs.objective == ours.objective == period == problem.work.max()
    assert theirs.status == ours.status == "optimal"
    assert theirs.evaluations >= 1
    assert pipeline_violations(problem, theirs.solution.repetend.unroll(10)) == []


@pytest.mark.parametrize(
    ("name", "capacity", "period"),
    [("V", 2, 8), ("V", 3, 8), ("K", 2, 8), ("K", 3, 6), ("M", 5, 6)],
)
def test_enumeration_respects_memory(name: str, capacity: int, period: int):
    """Under a memory limit the exhaustive enumeration ends at the period that the repetend search
    proves.
    """
    problem = po.load_pipeline(f"shape:{name}?devices=4&memory={capacity}")
    found = schedule(problem, "tessel", seconds=120)
    assert found.period == period
    assert max(found.peak_memory) <= capacity


def best_of_all_orders(problem: PipelineProblem, micro_batches: int) -> int:
    """Least makespan over every order in which instances can be started: each as early as its order
    allows.
    """
    spans = problem.span.tolist()
    devices = [problem.devices_of(i).tolist() for i in range(problem.num_blocks)]
    everything = list(itertools.product(range(micro_batches), range(problem.num_blocks)))
    best = 10**9

    def extend(end: dict[tuple[int, int], int], free: list[int], held: list[int]) -> None:
        nonlocal best
        if len(end) == len(everything):
            best = min(best, max(end.values()))
            return
        for j, i in everything:
            if (j, i) in end or (j and (j - 1, i) not in end):
                continue  # identical micro-batches in order
            before = problem.predecessors_of(i)
            if any((j, u) not in end for u, _ in before):
                continue
            if any(held[d] + problem.memory[i, d] > problem.capacity[d] for d in devices[i]):
                continue
            at = max([end[j, u] + lag for u, lag in before] + [free[d] for d in devices[i]])
            if at + spans[i] >= best:
                continue
            now, level = free.copy(), held.copy()
            for d in devices[i]:
                now[d] = at + spans[i]
                level[d] += int(problem.memory[i, d])
            extend({**end, (j, i): at + spans[i]}, now, level)

    extend({}, [0] * problem.num_devices, [0] * problem.num_devices)
    return best


@pytest.mark.parametrize(
    ("source", "n"),
    [
        ("shape:V?devices=2&memory=1", 3),
        ("shape:V?devices=2&memory=2", 3),
        ("shape:V?devices=3&memory=2&lag=1", 2),
        ("shape:M?devices=2", 2),
        ("shape:K?devices=2&memory=2", 2),
        ("shape:X?devices=2&memory=2", 2),
        ("shape:V?devices=2&split=1&memory=2", 2),
    ],
)
def test_time_optimal_agrees_with_every_order(source: str, n: int):
    """The exact model's makespan is that of the best of all orders, proved."""
    problem = po.load_pipeline(source, micro_batches=n)
    result = schedule_result(problem, "time-optimal", num_workers=1)
    found = result.solution
    assert found.makespan == found.makespan_bound == best_of_all_orders(problem, n)
    assert "proved optimal" in result.message
    assert pipeline_violations(problem, found.start) == []


def test_time_optimal_counts_what_divides_all_times():
    """Spans and lags of whole milliseconds are no harder than those of as many ticks."""
    problem = po.load_pipeline("shape:V?devices=3&memory=2&lag=1", micro_batches=2)
    longer = problem.replace(span=problem.span * 10**6, lag=problem.lag * 10**6)
    found, least = (
        schedule_result(x, "time-optimal", num_workers=1).solution for x in (longer, problem)
    )
    assert found.makespan == found.makespan_bound == least.makespan * 10**6
    assert pipeline_violations(longer, found.start) == []
    model = _MakespanModel(longer, found.makespan, 1, found.start)
    assert (model.unit, model.problem.span.tolist()) == (10**6, problem.span.tolist())


@pytest.mark.parametrize(
    "source", ["shape:V?devices=4&memory=4", "shape:K?devices=4&memory=3", "shape:M?devices=4"]
)
def test_time_optimal_is_between_the_bound_and_the_repetend(source: str):
    """For n micro-batches: lower bound <= exact makespan <= completed repetend, and makespans grow
    with n.
    """
    spans = []
    for n in (1, 2, 3):
        problem = po.load_pipeline(source, micro_batches=n)
        exact = schedule(problem, "time-optimal", num_workers=1, seconds=30)
        assert (
            makespan_bound(problem, n)
            <= exact.makespan
            <= schedule(problem, num_workers=1).makespan
        )
        spans.append(exact.makespan)
    assert spans[0] == po.load_pipeline(source).critical_path
    assert np.all(np.diff(spans) > 0)


@pytest.mark.parametrize(
    "source", ["shape:X?devices=6&memory=6&lag=1", "shape:wave?devices=4&memory=4"]
)
def test_time_optimal_begins_with_as_many_at_once_as_memory_allows(source: str):
    """Where all micro-batches at once hold what each other needs it began with one after another,
    and often ended there.
    """
    problem = po.load_pipeline(source, micro_batches=8)
    begun = _greedy(problem, 60.0)
    assert begun is not None
    assert makespan(problem, begun) < 0.6 * 8 * problem.critical_path
    assert pipeline_violations(problem, begun) == []


@pytest.mark.parametrize("seed", range(24))
def test_makespan_bounds_hold_under_tight_memory(seed: int):
    """Residence and the idle ends never pass the exact makespan of a few micro-batches, forwards or
    in reverse roles.
    """
    for make in (random_blocks, random_tree_pipeline):
        problem = make(seed).replace(micro_batches=3)
        try:
            exact = schedule(problem, "time-optimal", num_workers=1, seconds=20)
        except InputError:
            continue  # not one micro-batch fits
        assert makespan_bound(problem, 3) <= exact.makespan


@pytest.mark.parametrize(
    ("source", "n", "least"),
    [
        (
            "shape:V?devices=4&memory=1",
            5,
            80,
        ),  # one micro-batch after another: the residence fills the memory
        (
            "shape:V?devices=4&memory=4",
            5,
            32,
        ),  # the last device works from 3 to 23, then 9 ticks remain
        ("shape:V?devices=4&memory=2", 64, 8 * 64),  # half the memory, twice the time
    ],
)
def test_makespan_bound_by_hand(source: str, n: int, least: int):
    """Worked examples, each reached by a schedule or within a period of it."""
    problem = po.load_pipeline(source, micro_batches=n)
    assert makespan_bound(problem, n) == least
    assert schedule(problem, num_workers=1).makespan <= least + 8


def test_assignments_of_a_thousand_blocks_are_enumerated():
    """A recursion over the blocks ended at the depth that Python allows."""
    problem = po.load_pipeline("shape:wave?devices=150&waves=2")
    first, second = itertools.islice(_assignments(problem, 2), 2)
    assert problem.num_blocks == 1200
    assert (first.sum(), second.sum()) == (0, 1)
