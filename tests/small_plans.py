"""Small planning problems for tests of every solver."""

from __future__ import annotations

import numpy as np

from placeopt.plans.sample_problem import SamplePlanProblem


def sample_chain(layers=5, devices=4, capacity=60):
    """Return a chain of layers with two tensor degrees and recomputation."""
    rng = np.random.default_rng(layers)
    work = rng.integers(10, 40, (2, 2, layers))
    work[:, 1] = work[:, 0] + 9
    kept = rng.integers(4, 9, (2, 2, layers))
    kept[:, 1] = 1
    edges = layers - 1
    return SamplePlanProblem(
        layers=tuple(f"l{i}" for i in range(layers)), tensor_degrees=(1, 2), work=work,
        sync=rng.integers(0, 3, (2, layers)), kept=kept, fixed=rng.integers(0, 9, (2, 2, layers)),
        source=np.arange(edges), target=np.arange(edges) + 1, sent=np.full((2, edges), 2),
        received=np.full((2, edges), 2), devices=devices, samples=12, capacity=capacity, name=f"chain-{layers}",
        tick_seconds=1e-3,
    )  # fmt: skip


def small_plan_problems(objective):
    """Return small problems about plans with an objective."""
    return (sample_chain(), sample_chain(6, 5, 45))
