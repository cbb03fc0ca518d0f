"""Shared by the random and numeric families: a task graph with times of its own, for identical
devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.graph import OpGraph

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints

MEAN_TICKS = 1000
"""Mean time of an op in the random families: fine enough for integer costs, coarse enough to
read."""

BYTES_PER_TICK = 16
"""Size that stands for one tick of transfer where a cost model wants bytes (16 GB/s at 1 ns)."""


def random_times(rng: np.random.Generator, count: int, spread: float) -> Ints:
    """Draw times around MEAN_TICKS, uniform within a factor 1 -+ spread, at least 1."""
    low, high = MEAN_TICKS * (1 - spread), MEAN_TICKS * (1 + spread)
    return np.maximum(1, rng.uniform(low, high, count).astype(np.int64))


def random_transfers(rng: np.random.Generator, compute: Ints, count: int, ccr: float) -> Ints:
    """Draw times of `count` tensors with mean ccr * mean(compute), uniform within a factor 0.5 to
    1.5.
    """
    mean = ccr * float(compute.mean())
    return np.floor(rng.uniform(0.5, 1.5, count) * mean + 0.5).astype(np.int64)


def task_graph(
    name: str,
    source: Ints,
    target: Ints,
    compute: Ints,
    rng: np.random.Generator,
    ccr: float,
    **fields: Any,
) -> OpGraph:
    """Build a graph from edges between ops; all out-edges of an op are one tensor.

    Parameters
    ----------
    source, target : ops of each edge; repeated edges are merged.
    compute : ticks of every op on any device.
    """
    n = len(compute)
    pairs = np.unique(np.stack([source, target], axis=1).astype(np.int64), axis=0)
    producer, degree = np.unique(pairs[:, 0], return_counts=True)
    transfer = random_transfers(rng, compute, len(producer), ccr)
    fields.setdefault("op_names", tuple(f"op{i}" for i in range(n)))
    return OpGraph(
        name=name,
        producer=producer,
        tensor_bytes=transfer * BYTES_PER_TICK,
        consumer_ptr=np.concatenate(([0], np.cumsum(degree))),
        consumer=pairs[:, 1],
        measured_kinds=("*",),
        measured=compute.reshape(n, 1),
        measured_transfer=transfer,
        **fields,
    )
