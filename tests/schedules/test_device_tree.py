"""The dynamic programme over trees of devices, against the CP-SAT model of the same question."""

from __future__ import annotations

import numpy as np
import pytest

import placeopt as po
from placeopt.schedules import schedule_result
from placeopt.schedules.cyclic import CyclicModel
from placeopt.schedules.device_tree import DeviceTree
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.validate import pipeline_violations


def random_tree_pipeline(seed: int) -> PipelineProblem:
    """Return one or two chains that walk over a random tree of devices and back, some with split backward blocks."""
    rng = np.random.default_rng(seed)
    num_devices = int(rng.integers(1, 5))
    above = [0, *(int(rng.integers(0, d)) for d in range(1, num_devices))]
    blocks: list[Block] = []
    for chain in range(int(rng.integers(1, 3))):
        walk = [int(rng.integers(0, num_devices))]
        for _ in range(int(rng.integers(1, 4))):
            near = [d for d in range(num_devices) if d != walk[-1] and (above[d] == walk[-1] or above[walk[-1]] == d)]
            new = [d for d in near if d not in walk]
            if new:
                walk.append(new[int(rng.integers(0, len(new)))])
        last: str | None = None

        def add(name: str, kind: str, device: int, memory: int, after: str | None) -> str:
            lag = int(rng.integers(0, 3)) if rng.random() < 0.3 else 0
            span, before = int(rng.integers(1, 4)), ((after, lag),) if after else ()
            blocks.append(Block(name, kind, (device,), span, (memory,), before))
            return name

        split = rng.random() < 0.3
        for d in walk:
            last = add(f"F{chain}.{d}", "F", d, 2 if split else 1, last)
        for d in walk[::-1]:
            last = add(f"B{chain}.{d}", "I" if split else "B", d, -1, last)
            if split:
                add(f"W{chain}.{d}", "W", d, -1, last)
    capacity = [int(rng.integers(2, 5)) for _ in range(num_devices)]
    names = [f"device{d}" for d in range(num_devices)]
    return PipelineProblem.from_blocks(f"random{seed}", blocks, names, capacity=capacity)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.interpreted) if s < 6 else s for s in range(60)])
def test_agrees_with_the_constraint_model_on_every_period(seed: int):
    """Feasible and infeasible periods are the same for both, and every pattern is a valid schedule."""
    problem = random_tree_pipeline(seed)
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
        ("shape:X?devices=8&memory=3", 17), ("shape:X?devices=8&memory=4", 13), ("shape:X?devices=8&memory=5", 11),
        ("shape:X?devices=16&memory=6", 14), ("shape:V?devices=32&memory=6", 24), ("shape:V?devices=32&memory=12", 12),
    ],
)  # fmt: skip
def test_proves_tight_memory_on_many_devices(source: str, period: int):
    """Cells that take a constraint solver a minute or more; the device tree needs milliseconds for each proof."""
    problem = po.load_pipeline(source)
    result = schedule_result(problem, num_workers=1, micro_batches=4, latency_seconds=0)
    assert (result.solution.period, result.solution.period_bound) == (period, period)
    assert result.solution.bound_method == "device tree infeasible period"
    assert pipeline_violations(problem, result.solution.repetend.unroll(40)) == []


def test_says_where_it_does_not_apply():
    """Blocks on several devices, unlimited memory, memory that is zero in between, and long spans are left to others."""
    for source in ("shape:M?devices=4&memory=4", "shape:V?devices=4"):
        assert not DeviceTree(po.load_pipeline(source)).applies
    twice = [Block("a", "F", (0,), 1, (1,)), Block("b", "B", (0,), 1, (-1,), (("a", 0),)),
             Block("c", "F", (0,), 1, (1,), (("b", 0),)), Block("d", "B", (0,), 1, (-1,), (("c", 0),))]  # fmt: skip
    assert not DeviceTree(PipelineProblem.from_blocks("twice", twice, ["device0"], capacity=2)).applies
    chain = po.load_pipeline("shape:V?devices=4&memory=3")
    assert DeviceTree(chain).applies
    long = chain.replace(span=chain.span * 10**6)
    assert DeviceTree(long).decide(6 * 10**6) is None
    assert DeviceTree(long).decide(3 * 10**6) == (False, None), "less than the work of a device"


def test_cycle_of_devices_is_no_tree():
    """A chain that comes back to its first device over a third one closes a cycle of lines."""
    names = ["a", "b", "c", "d"]
    blocks = [Block(n, "other", (d,), 1, (0,), ((names[i - 1], 0),) if i else ())
              for i, (n, d) in enumerate(zip(names, (0, 1, 2, 0), strict=True))]  # fmt: skip
    blocks[0], blocks[3] = (Block("a", "F", (0,), 1, (1,)), Block("d", "B", (0,), 1, (-1,), (("c", 0),)))
    blocks[1] = Block("b", "F", (1,), 1, (1,), (("a", 0),))
    blocks[2] = Block("c", "F", (2,), 1, (1,), (("b", 0),))
    blocks += [Block("e", "B", (1,), 1, (-1,), (("b", 0),)), Block("f", "B", (2,), 1, (-1,), (("c", 0),))]
    problem = PipelineProblem.from_blocks("ring", blocks, ["x", "y", "z"], capacity=3)
    assert not DeviceTree(problem).applies
