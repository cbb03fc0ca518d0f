"""The most energy in a first or last window against all placements and orders."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from placeopt.makespan.bounds.front import FrontModel, Fronts
from placeopt.makespan.bounds.relaxation import relax
from placeopt.model.problem import PlacementProblem

pytestmark = pytest.mark.interpreted


def fork_with_twins(rng, classes):
    """Return a small graph in which some ops cost the same and hang on the same ops."""
    levels = [1, int(rng.integers(2, 4)), int(rng.integers(1, 3))]
    level = np.repeat(np.arange(3), levels)
    cost = rng.integers(1, 6, (3, classes))
    columns = [0, 0, 1] if classes == 2 else [0, 0, 0]
    odd = rng.integers(0, 2, len(level)) * rng.integers(0, 6)  # some of a level cost more
    compute = (cost[level] + odd[:, None])[:, columns]
    transfer = rng.integers(0, 5, 3)
    pairs = [(u, v) for u, v in product(range(len(level)), repeat=2) if level[v] == level[u] + 1]
    edges = [(u, v, int(transfer[level[u]])) for u, v in pairs if rng.random() < 0.75]
    return PlacementProblem.from_edges(compute, edges)


def most_energy(front, window):
    """Try all devices and all orders, every op as early as it can start."""
    r, best = front.relaxation, 0
    compute, class_of = r.compute.tolist(), r.class_of.tolist()
    weights, most = front.weights.tolist(), front.energy.tolist()
    n = r.num_ops
    edges = list(
        zip(
            front.source.tolist(),
            front.target.tolist(),
            r.pay.tolist(),
            r.free.tolist(),
            strict=True,
        )
    )
    orders = [
        o for o in permutations(range(n)) if all(o.index(u) < o.index(v) for u, v, _, _ in edges)
    ]
    for device in product(range(len(class_of)), repeat=n):
        lasts = [compute[v][class_of[d]] for v, d in enumerate(device)]
        for order in orders:
            free, end, energy = [0] * len(class_of), [0] * n, 0
            for v in order:
                ready = [
                    end[u] + (f if device[u] == device[v] else p) for u, w, p, f in edges if w == v
                ]
                start = max([free[device[v]], *ready])
                end[v] = free[device[v]] = start + lasts[v]
                rate = weights[class_of[device[v]]]
                energy += max(0, min(most[v], rate * (window - start)))
            best = max(best, energy)
    return best


@pytest.mark.parametrize("seed", range(24))
def test_most_energy_of_a_window(seed):
    """Twins and devices in order, and the shared classes, cut off no energy; questions agree with
    the maximum.
    """
    rng = np.random.default_rng(seed)
    relaxation = relax(fork_with_twins(rng, classes=1 + seed % 2))
    head = np.zeros_like(relaxation.compute)
    weights = rng.integers(1, 3, len(relaxation.class_size))
    front = Fronts(relaxation, head, weights, backwards=seed % 3 == 0, num_workers=1)
    window = int(rng.integers(4, 12))
    known = window * front.width
    model = FrontModel(front, list(front.order), window, known)
    expected = most_energy(front, window)
    assert model.maximum(20) == (expected, expected)
    model = FrontModel(front, list(front.order), window, known)
    assert model.reaches(expected, 20) == expected
    assert model.reaches(expected + 1, 20) is False


def test_twins_may_be_swapped():
    """Two ops are twins just where swapping them changes no cost, no head and no edge."""
    seen = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        relaxation = relax(fork_with_twins(rng, classes=1 + seed % 2))
        head = rng.integers(0, 2, relaxation.compute.shape) * (seed % 4 == 0)
        n, backwards = relaxation.num_ops, seed % 3 == 0
        front = Fronts(
            relaxation,
            head,
            np.ones(relaxation.compute.shape[1], dtype=np.int64),
            backwards=backwards,
            num_workers=1,
        )
        pairs = FrontModel(front, list(range(n)), 9, 9 * front.width).twins()
        kind = list(range(n))
        for u, v in pairs:
            kind[v] = kind[u]
        rows = zip(front.source, front.target, relaxation.pay, relaxation.free, strict=True)
        edges = {tuple(int(x) for x in row) for row in rows}
        for u in range(n):
            for v in range(u):
                swap = {u: v, v: u}
                same = (relaxation.compute[u] == relaxation.compute[v]).all() and (
                    head[u] == head[v]
                ).all()
                same = same and edges == {
                    (swap.get(a, a), swap.get(b, b), pay, free) for a, b, pay, free in edges
                }
                assert (kind[u] == kind[v]) == same, (seed, u, v)
                seen += same
    assert seen > 20
