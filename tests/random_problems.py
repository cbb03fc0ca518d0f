"""Random problems for tests: heterogeneous devices, shared channels, zero times, ties,
colocation.
"""

from __future__ import annotations

import numpy as np

from placeopt.model.problem import PlacementProblem


def random_problem(
    rng, *, max_ops=12, max_devices=4, incompatible=True, colocated=True, contention=None
):
    """Return a small random PlacementProblem; times are small so that ties and zeros are common."""
    n, k = int(rng.integers(1, max_ops + 1)), int(rng.integers(1, max_devices + 1))
    top = int(rng.choice([1, 3, 20]))
    compute = rng.integers(0, top + 1, (n, k))
    if rng.random() < 0.5:
        compute[:] = compute[:, :1]
    colocation = np.full(n, -1)
    if incompatible and k > 1 and rng.random() < 0.3:
        free = rng.integers(0, k, n)
        hole = (rng.random((n, k)) < 0.2) & (np.arange(k)[None, :] != free[:, None])
        compute[hole] = -1
    elif colocated and rng.random() < 0.4:
        colocation = np.where(rng.random(n) < 0.5, rng.integers(0, 3, n), -1)
    names = rng.permutation(
        n
    )  # a random topological order, so that index order is not execution order
    producer, pointer, consumer = [], [0], []
    for u in range(n - 1):
        for _ in range(int(rng.integers(0, 3))):
            later = np.arange(u + 1, n)
            targets = rng.choice(later, int(rng.integers(1, min(4, len(later)) + 1)), replace=False)
            producer.append(names[u])
            consumer += [names[v] for v in targets]
            pointer.append(len(consumer))
    m, c = len(producer), int(rng.integers(1, 3))
    transfer = rng.integers(0, top + 1, (m, c))
    kind = contention or rng.choice(["none", "pair", "source", "mixed", "bus"])
    channel = np.full((k, k), -1)
    if kind == "pair":
        channel = np.arange(k * k).reshape(k, k)
    elif kind == "source":
        channel = np.repeat(np.arange(k)[:, None], k, axis=1)
    elif kind == "bus":
        channel = np.zeros((k, k), dtype=np.int64)
    elif kind == "mixed":
        channel = rng.integers(-1, 3, (k, k))
    return PlacementProblem(
        name="random",
        compute=compute,
        producer=np.array(producer, dtype=np.int64),
        consumer_ptr=np.array(pointer),
        consumer=np.array(consumer, dtype=np.int64),
        transfer=transfer.reshape(m, c),
        link_class=rng.integers(0, c, (k, k)),
        channel=channel,
        resident=rng.integers(0, 10, n),
        tensor_bytes=rng.integers(0, 10, m),
        colocation=colocation,
    )


def random_device(rng, problem):
    """Return a device per op that respects compatibility and colocation."""
    device = np.array([rng.choice(np.flatnonzero(row >= 0)) for row in problem.compute])
    for group in np.unique(problem.colocation[problem.colocation >= 0]):
        members = problem.colocation == group
        device[members] = device[np.flatnonzero(members)[0]]
    return device
