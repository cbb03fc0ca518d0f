"""Speed of HEFT on 5000 ops and 8 devices, compiled and in plain Python (run by hand).

pytest tests/benchmarks/test_heft_speed.py --benchmark-only
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pytest_benchmark")

from placeopt.model.problem import PlacementProblem
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.list_scheduling import heft_plan

sys.path.insert(0, str(Path(__file__).parent))


def layered(n, k, seed=0):
    """Return a random layered graph with two inputs per op and unrelated device times."""
    rng = np.random.default_rng(seed)
    edges = []
    for v in range(25, n):
        sources = np.unique(rng.integers(max(0, v - 100), v - 20 if v > 20 else v, 2))
        edges += [(int(u), v, int(rng.integers(1, 100))) for u in sources]
    return PlacementProblem.from_edges(rng.integers(1, 100, (n, k)), edges, name=f"layered-{n}")


@pytest.fixture(scope="module")
def problem():
    """5000 ops, about 10000 edges, 8 unrelated devices."""
    return layered(5000, 8)


def test_compiled(benchmark, problem):
    """HEFT in milliseconds, derived arrays and ranks included, structure of the problem cached."""
    heft_plan(Context(layered(50, 8)))
    plan = benchmark(lambda: heft_plan(Context(problem)))
    assert plan.finish.max() > 0


def test_plain_python(benchmark, problem):
    """The same schedule in plain Python."""
    from python_heft import schedule

    device, _, finish = benchmark.pedantic(schedule, args=(problem,), rounds=3)
    plan = heft_plan(Context(problem))
    assert max(finish) == plan.finish.max()
    assert device == plan.device.tolist()
