"""Devices that can be swapped: by the definition, on small problems of every kind of channels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import placeopt as po
from placeopt.model.problem import PlacementProblem


def by_definition(problem, first, second):
    """Whether swapping changes no column, no link, and channels but for their names."""
    k = problem.num_devices
    swap = list(range(k))
    for a, b in zip(first, second, strict=True):
        swap[a], swap[b] = b, a
    columns = (problem.capacity, problem.io_class, problem.compute.T)
    if any((column[swap] != column).any() for column in columns):
        return False
    names, back = {-1: -1}, {-1: -1}
    for i, j in itertools.permutations(range(k), 2):
        old, new = int(problem.channel[i, j]), int(problem.channel[swap[i], swap[j]])
        if problem.link_class[i, j] != problem.link_class[swap[i], swap[j]]:
            return False
        if names.setdefault(old, new) != new or back.setdefault(new, old) != old:
            return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_swaps_are_those_of_the_definition(seed):
    """Random links and channels, of few and of many names, and those of ready-made clusters."""
    rng, found = np.random.default_rng(seed), set()
    for _ in range(60):
        k = int(rng.integers(2, 6))
        size = k, k
        group = rng.integers(0, 2, k)
        channel = [
            rng.integers(-1, 2, size),
            np.repeat(rng.permutation(k)[:, None], k, axis=1),
            np.arange(k * k).reshape(size),
            np.where(group[:, None] == group, -1, group[:, None]),
            np.where(rng.random(size) < 0.1, 7, rng.permutation(k)[:, None]),
        ][rng.integers(5)]
        problem = PlacementProblem.from_edges(
            np.ones((2, k), np.int64) + (rng.random(k) < 0.1),
            [(0, 1, 1)],
            link_class=np.zeros(size, np.int64),
            channel=channel,
        )
        places = rng.permutation(k).tolist()
        for width in range(1, k // 2 + 1):
            first, second = places[:width], places[width : 2 * width]
            expected = by_definition(problem, first, second)
            assert problem.interchangeable(first, second) == expected
            found.add(expected)
    assert found == {True, False}


@pytest.mark.parametrize("contention", ["none", "pair", "source", "host"])
def test_devices_of_a_ready_made_cluster_are_alike(contention):
    """Hosts and devices of one kind can be swapped under every kind of contention."""
    problem = po.load("gen:fork-join?branches=2", f"2x4xA100?contention={contention}")
    assert problem.interchangeable([0, 1, 2, 3], [4, 5, 6, 7])
    for a, b in itertools.combinations(range(8), 2):
        assert problem.interchangeable([a], [b]) == by_definition(problem, [a], [b])
