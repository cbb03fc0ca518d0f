"""Small job types and streams for tests: no measured profile needed."""

from __future__ import annotations

import numpy as np

from placeopt.streams import (
    JobProfile,
    JobStreamProblem,
    JobTable,
    LookaheadConfig,
    RampTopology,
    StreamSpec,
)


def random_profile(seed, num_ops=6, name=None):
    """Return a job type with a random graph, some free ops and a random order of splitting."""
    rng = np.random.default_rng(seed)
    edges = [(int(rng.integers(v)), v) for v in range(1, num_ops)]
    edges += [(int(rng.integers(v - 1)), v) for v in range(2, num_ops) if rng.random() < 0.5]
    forward = rng.uniform(0.001, 0.02, num_ops) * (rng.random(num_ops) > 0.2)
    forward[-1] = 0.01
    return JobProfile(
        name or f"random{seed}",
        forward,
        rng.uniform(0.001, 0.04, num_ops),
        rng.integers(1_000, 300_000_000, num_ops).astype(float),
        np.array(list(dict.fromkeys(edges))),
        rng.permutation(num_ops),
    )


def table(rule="uniform", units="consistent", count=3, grid=(2, 2, 2), quantum=4.0, **fields):
    """Return a few random job types on a small grid."""
    topology = RampTopology(*grid, **fields)
    config = LookaheadConfig(rule, units, quantum)
    return JobTable(tuple(random_profile(seed) for seed in range(count)), topology, config)


def stream(jobs=60, beta="A", seed=0, load=1.0, arrivals="fixed", **fields):
    """Return a stream of small jobs that loads the grid as told."""
    types = table(**fields)
    work = float(types.arrays.sequential.mean()) * types.tick_seconds / types.topology.num_servers
    return StreamSpec(beta=beta, jobs=jobs, arrivals=arrivals, interval=work / load).draw(
        types, seed
    )


def few_jobs(seed, jobs=5, grid=(2, 1, 2)):
    """Return a short crowded stream, small enough to try every choice."""
    rng = np.random.default_rng(seed)
    types = table(grid=grid, count=2)
    longest = int(types.arrays.sequential.max())
    arrival = np.sort(rng.integers(0, longest, jobs))
    model = rng.integers(0, 2, jobs)
    deadline = (types.arrays.sequential[model] * rng.uniform(0.4, 1.2, jobs)).astype(np.int64)
    return JobStreamProblem("few", types, arrival, model, deadline, int(2.2 * longest), seed=seed)
