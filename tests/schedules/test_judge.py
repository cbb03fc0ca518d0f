"""What a pipeline schedule is worth is found by the judge, never taken from the solver."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
from random_pipelines import random_blocks, random_tree_pipeline

import placeopt as po
from placeopt.io import serialize
from placeopt.model.errors import SolverError
from placeopt.model.objective import objective_of
from placeopt.schedules import codecs, schedule, schedule_result
from placeopt.schedules.cyclic import CyclicModel
from placeopt.schedules.judge import pattern_violations, pipeline_violations
from placeopt.schedules.period_search import greedy_pattern
from placeopt.schedules.solution import PipelineSchedule, Repetend

assert codecs  # registers the files of schedules


@pytest.mark.parametrize("seed", range(20))
def test_a_pattern_is_valid_exactly_when_it_is_valid_for_long(seed: int):
    """The judge of patterns agrees with the judge of many repetitions, for good patterns and for
    shortened ones.
    """
    rng = np.random.default_rng(seed)
    problem = (random_blocks if seed % 2 else random_tree_pipeline)(seed)
    pattern = greedy_pattern(problem, 1 + seed % 3)
    if pattern is None:
        return  # not one micro-batch fits
    assert pattern_violations(problem, pattern.period, pattern.start) == []
    for period in range(pattern.period, max(1, pattern.period - 12), -1):
        start = pattern.start + (
            rng.integers(0, 2, pattern.start.shape) if rng.random() < 0.3 else 0
        )
        rows = Repetend(period, start)
        # The steady state begins once every instance runs, and ends when the first has no
        # successor.
        count = pattern.size * (3 + 2 * (int(rows.start.max() + problem.span.max()) // period + 2))
        assert bool(pattern_violations(problem, period, rows.start)) == bool(
            pipeline_violations(problem, rows.unroll(count))
        )


def claims(schedule_: PipelineSchedule, **changes: object) -> list[str]:
    """Return what the judge says of a changed schedule."""
    return objective_of(schedule_.problem).judge(schedule_.problem, replace(schedule_, **changes))


def test_no_self_graded_period():
    """A shorter period, a pattern that has nothing to do with the schedule, bounds above values:
    all are found out.
    """
    good = schedule(po.load_pipeline("shape:V?devices=4&memory=3", micro_batches=6), num_workers=1)
    assert claims(good) == []
    assert (
        "the pattern of period 7 runs" in claims(good, repetend=Repetend(7, good.repetend.start))[0]
    )
    late = good.start + np.arange(6)[:, None] * 100
    assert "longer than its pattern repeated" in claims(good, start=late)[0]
    assert "below the bound of 9999" in claims(good, makespan_bound=9999)[0]
    assert "below the bound of 9" in claims(good, size_bound=Fraction(9))[0]
    assert (
        "another problem"
        in objective_of(good.problem).judge(good.problem.with_capacity(2), good)[0]
    )
    few = schedule(good.problem, num_workers=1, micro_batches=3)
    assert objective_of(good.problem).judge(good.problem, few)


def test_a_schedule_without_a_pattern_repeats_as_a_whole():
    """time-optimal is worth the period of its whole schedule, no average over its makespan."""
    problem = po.load_pipeline("shape:V?devices=4", micro_batches=4)
    result = schedule_result(problem, "time-optimal", num_workers=1)
    found = result.solution
    assert (result.value, found.makespan) == (7, 28)
    assert pipeline_violations(problem.replace(micro_batches=12), found.pattern.unroll(12)) == []
    assert result.status == "feasible"
    assert result.lower_bound == 4


def test_size_three_is_valued_by_its_period_per_micro_batch():
    """16 ticks for 3 micro-batches are worth 16/3; K = 1 with 8 is not optimal and has the same
    bound.
    """
    problem = po.load_pipeline("shape:V?devices=4&memory=3", micro_batches=6)
    one, three = (schedule_result(problem, size=size, num_workers=1) for size in (1, 3))
    assert (one.value, one.lower_bound, one.status) == (8, Fraction(16, 3), "feasible")
    assert (three.value, three.lower_bound, three.status) == (
        Fraction(16, 3),
        Fraction(16, 3),
        "optimal",
    )
    assert three.value < one.value
    assert po.bound(problem, seconds=0).value == Fraction(16, 3)


@dataclass(frozen=True)
class Liar:
    """A solver from outside that calls its schedule better than it is."""

    name: ClassVar[str] = "liar"
    kind: ClassVar[str] = "pipeline"
    objectives: ClassVar[tuple[str, ...]] = ("period",)
    period: int = 4

    def solve(self, problem: po.PipelineProblem, budget: po.Budget, **_: object) -> po.Result:
        """Return one micro-batch after another with a pattern of `period` ticks."""
        pattern = greedy_pattern(problem, 1)
        found = PipelineSchedule(
            problem, pattern.unroll(problem.micro_batches), Repetend(self.period, pattern.start)
        )
        return po.Result(
            problem.name, self.name, found, 1, 0, "none", "optimal", "proved", 1, 0.0, 0
        )


def test_a_plug_in_that_lies_is_found_out():
    """A pattern that cannot repeat so fast is a SolverError; one that can gets its own value,
    whatever was claimed.
    """
    problem = po.load_pipeline("shape:V?devices=4&memory=3", micro_batches=4)
    with pytest.raises(SolverError, match="liar"):
        po.solve(problem, Liar())
    result = po.solve(problem, Liar(period=greedy_pattern(problem, 1).period))
    assert result.value == greedy_pattern(problem, 1).period
    assert result.status == "feasible"


@cache
def found_before():
    """Return problems with schedules to begin with, of patterns of one micro-batch and of three."""
    problem = po.load_pipeline("shape:V?devices=4&memory=4", micro_batches=4)
    tight = problem.with_capacity(3)
    three = schedule(tight, size=3, num_workers=1, latency_seconds=0.2)
    return (problem, schedule(problem, num_workers=1)), (tight, three)


@cache
def known_k():
    """Return a problem of shape K with its best schedule."""
    problem = po.load_pipeline("shape:K?devices=4&memory=3", micro_batches=4)
    return problem, schedule(problem, num_workers=1, latency_seconds=0.2)


@pytest.mark.parametrize("solver", ["repetend", "tessel", "time-optimal", "1f1b", "gpipe"])
@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_never_worse_than_the_initial_schedule(solver: str, seconds: float):
    """Whatever is found in whatever time, the result has at most the period of the schedule that it
    began with.
    """
    for case, initial in found_before():
        result = po.solve(case, solver, initial=initial, seconds=seconds)
        assert result.value <= initial.period
        assert objective_of(case).judge(case, result.solution) == []


@pytest.mark.parametrize(
    ("solver", "where"),
    [
        ("repetend", "cyclic"),
        ("tessel", "tessel"),
        ("time-optimal", "time_optimal"),
        ("repetend", "bounds"),
    ],
)
def test_ctrl_c_keeps_the_best_so_far(solver: str, where: str, monkeypatch: pytest.MonkeyPatch):
    """Wherever CP-SAT is interrupted, what was known is judged and returned."""
    problem, best = known_k()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"placeopt.schedules.{where}.solve_interruptibly", interrupted)
    monkeypatch.setattr("placeopt.schedules.bounds.one_fits", lambda _: where != "bounds")
    monkeypatch.setattr("placeopt.schedules.time_optimal.makespan_bound", lambda *_: 1)
    slow = greedy_pattern(problem, 1)
    initial = replace(
        best, repetend=slow, start=slow.unroll(4), makespan_bound=0, size_bound=Fraction(0)
    )
    result = po.solve(problem, solver, initial=initial, seconds=30)
    assert result.stop_reason == "interrupted"
    assert result.value <= slow.period
    assert objective_of(problem).judge(problem, result.solution) == []


def test_an_invalid_initial_schedule_is_refused():
    """One line says what is wrong with it."""
    problem = po.load_pipeline("shape:V?devices=4&memory=4", micro_batches=4)
    best = schedule(problem, num_workers=1)
    with pytest.raises(po.InputError, match="initial solution is not valid"):
        po.solve(problem, initial=replace(best, start=best.start * 0), seconds=1)
    with pytest.raises(po.InputError, match="expected a schedule"):
        po.solve(problem, initial=po.Placement(np.zeros(4)), seconds=1)


@pytest.mark.parametrize("size", [1, 3])
def test_schedules_and_problems_survive_their_files(size: int, tmp_path):
    """Problem, schedule and result are read back as they were written, and judged alike."""
    problem = po.load_pipeline("shape:M?devices=4&memory=3", micro_batches=4, tick_seconds=2e-6)
    result = schedule_result(problem, size=size, num_workers=1, seconds=5)
    again = serialize.load(serialize.save(problem, tmp_path / "problem.json"))
    assert again.hash == problem.hash
    assert again.name == problem.name
    found = serialize.load(serialize.save(result.solution, tmp_path / "schedule.json"))
    assert np.array_equal(found.start, result.solution.start)
    assert found.period == result.value
    assert objective_of(problem).judge(problem, found) == []
    read = serialize.load(serialize.save(result, tmp_path / "result.json"))
    assert (read.value, read.lower_bound) == (result.value, result.lower_bound)
    assert po.solve(problem, initial=read.solution, seconds=0.5).value <= result.value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": [[0]]}, "start: expected shape"),
        ({"start": "x"}, "expected a list"),
        ({"repetend": {"period": 0, "start": [[0] * 8]}}, "at least 1, received 0"),
        ({"repetend": {"period": 4, "start": [[0] * 7]}}, "expected 8 blocks"),
        ({"repetend": {"period": 4, "start": [0]}}, "expected starts of shape"),
        ({"problem": {}}, "format"),
    ],
)
def test_damaged_files_are_refused_in_one_line(change: dict[str, object], message: str, tmp_path):
    """What is wrong, in which file."""
    good = schedule(po.load_pipeline("shape:V?devices=4", micro_batches=2), num_workers=1)
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(serialize.to_dict(good) | change))
    with pytest.raises(po.InputError, match=message) as error:
        serialize.load(path)
    assert str(error.value).startswith("file '")
    assert "schedule.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_infeasible_period_is_no_bound_for_larger_patterns():
    """K = 1 cannot have 7 ticks, K = 3 has 16/3: the bound of the result is below both."""
    problem = po.load_pipeline("shape:V?devices=4&memory=3")
    assert CyclicModel(problem, 7).solve(20, num_workers=1, seed=0)[0] == "infeasible"
    assert schedule_result(problem, num_workers=1).lower_bound == Fraction(16, 3)
