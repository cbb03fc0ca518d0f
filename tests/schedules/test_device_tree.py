"""The dynamic program over trees of devices, against the CP-SAT model of the same question."""

from __future__ import annotations

import pytest
from random_pipelines import random_blocks, random_tree_pipeline

import placeopt as po
from placeopt.schedules import schedule_result
from placeopt.schedules.cyclic import CyclicModel
from placeopt.schedules.device_tree import DeviceTree
from placeopt.schedules.judge import pipeline_violations
from placeopt.schedules.problem import Block, PipelineProblem


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=pytest.mark.interpreted) if s < 6 else s for s in range(60)]
)
def test_agrees_with_the_constraint_model_on_every_period(seed: int):
    """Feasible and infeasible periods are the same for both, and every pattern is a valid
    schedule.
    """
    compare(random_tree_pipeline(seed))


@pytest.mark.parametrize("seed", range(30))
def test_agrees_where_parts_fork_and_join(seed: int):
    """The same for graphs with joins, forks and several sources, as far as memory bounds their
    patterns.
    """
    problem = random_blocks(seed)
    if DeviceTree(problem).applies:
        compare(problem)


def test_enough_of_the_forks_and_joins_are_compared():
    """The test before is not empty."""
    assert sum(DeviceTree(random_blocks(seed)).applies for seed in range(30)) >= 8


def compare(problem: PipelineProblem) -> None:
    """Compare the two models on eight periods."""
    tree = DeviceTree(problem)
    assert tree.applies
    answers = []
    for period in range(int(problem.work.max()), int(problem.work.max()) + 8):
        answer = tree.decide(period)
        if answer is None:
            break
        status, _ = CyclicModel(problem, period).solve(30, num_workers=1, seed=0)
        assert status in ("infeasible", "optimal", "feasible")
        assert answer[0] == (status != "infeasible"), period
        answers.append(answer[0])
        if answer[1] is not None:
            assert answer[1].period == period
            assert pipeline_violations(problem, answer[1].unroll(9)) == []
    assert answers
    assert answers == sorted(answers), "feasibility is monotone in the period"


@pytest.mark.parametrize("seed", [66, 68, 70, 73, 76, 80, 91])
def test_several_micro_batches_per_pattern(seed: int):
    """Two micro-batches per pattern: the same answers again and valid patterns."""
    problem = random_tree_pipeline(seed)
    tree, least = DeviceTree(problem, 2), 2 * int(problem.work.max())
    for period in range(least, least + 4):
        answer = tree.decide(period)
        assert answer is not None
        status, _ = CyclicModel(problem, period, 2).solve(30, num_workers=1, seed=0)
        assert answer[0] == (status != "infeasible")
        if answer[1] is not None:
            assert answer[1].size == 2
            assert pipeline_violations(problem, answer[1].unroll(8)) == []


@pytest.mark.parametrize(
    ("source", "period"),
    [
        ("shape:X?devices=8&memory=3", 17),
        ("shape:X?devices=8&memory=4", 13),
        ("shape:X?devices=8&memory=5", 11),
        ("shape:X?devices=16&memory=6", 14),
        ("shape:V?devices=32&memory=6", 24),
        ("shape:V?devices=32&memory=12", 12),
    ],
)
def test_proves_tight_memory_on_many_devices(source: str, period: int):
    """Cells that take a constraint solver a minute or more; the device tree needs milliseconds for
    each proof.
    """
    problem = po.load_pipeline(source)
    result = schedule_result(problem, num_workers=1, micro_batches=4, latency_seconds=0)
    assert result.solution.period == result.solution.size_bound == period
    assert DeviceTree(problem).decide(period - 1) == (False, None)
    assert pipeline_violations(problem, result.solution.repetend.unroll(40)) == []


def test_says_where_it_does_not_apply():
    """Blocks on several devices, unlimited memory, memory that is zero in between, and long spans
    are left to others.
    """
    for source in ("shape:M?devices=4&memory=4", "shape:V?devices=4"):
        assert not DeviceTree(po.load_pipeline(source)).applies
    twice = [
        Block("a", "F", (0,), 1, (1,)),
        Block("b", "B", (0,), 1, (-1,), (("a", 0),)),
        Block("c", "F", (0,), 1, (1,), (("b", 0),)),
        Block("d", "B", (0,), 1, (-1,), (("c", 0),)),
    ]
    assert not DeviceTree(
        PipelineProblem.from_blocks("twice", twice, ["device0"], capacity=2)
    ).applies
    chain = po.load_pipeline("shape:V?devices=4&memory=3")
    assert DeviceTree(chain).applies
    long = chain.replace(span=chain.span * 10**6)
    assert DeviceTree(long).decide(6 * 10**6) is None
    assert DeviceTree(long).decide(3 * 10**6) == (False, None), "less than the work of a device"


def test_cycle_of_devices_is_no_tree():
    """A chain that comes back to its first device over a third one closes a cycle of lines."""
    names = ["a", "b", "c", "d"]
    blocks = [
        Block(n, "other", (d,), 1, (0,), ((names[i - 1], 0),) if i else ())
        for i, (n, d) in enumerate(zip(names, (0, 1, 2, 0), strict=True))
    ]
    blocks[0], blocks[3] = (
        Block("a", "F", (0,), 1, (1,)),
        Block("d", "B", (0,), 1, (-1,), (("c", 0),)),
    )
    blocks[1] = Block("b", "F", (1,), 1, (1,), (("a", 0),))
    blocks[2] = Block("c", "F", (2,), 1, (1,), (("b", 0),))
    blocks += [
        Block("e", "B", (1,), 1, (-1,), (("b", 0),)),
        Block("f", "B", (2,), 1, (-1,), (("c", 0),)),
    ]
    problem = PipelineProblem.from_blocks("ring", blocks, ["x", "y", "z"], capacity=3)
    assert not DeviceTree(problem).applies
