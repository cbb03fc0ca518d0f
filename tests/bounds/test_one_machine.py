"""The kernels of the bound `communication` against what they are said to be the largest of."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from placeopt.makespan.bounds.communication import JOB_ROWS, LENGTH, RELEASE, TAIL, jackson

INFINITE = 2**60


def subsets(count):
    """Yield every set of indices but the empty one."""
    for size in range(1, count + 1):
        yield from itertools.combinations(range(count), size)


@pytest.mark.interpreted
def test_jackson_is_the_largest_of_all_sets_of_jobs():
    """The least release, all lengths and the least tail of a set of jobs: J. Carlier (1982)."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        count = int(rng.integers(1, 6))
        jobs = np.zeros((JOB_ROWS, count + 1), dtype=np.int64)
        for row, top in ((RELEASE, 8), (LENGTH, 5), (TAIL, 8)):
            jobs[row, :count] = rng.integers(0, top, count)
        release, length, tail = (jobs[row, :count].tolist() for row in (RELEASE, LENGTH, TAIL))
        best = max(
            min(release[i] for i in chosen)
            + sum(length[i] for i in chosen)
            + min(tail[i] for i in chosen)
            for chosen in subsets(count)
        )
        assert jackson(count, jobs) == best, (release, length, tail)


@pytest.mark.interpreted
def test_energy_of_windows_is_summed_over_ops():
    """Some window offers less than the least weighted ticks of all ops in it, over the classes on
    which an op can still be in time; every op is in time on some class, or nothing is asked.
    """
    from placeopt.makespan.bounds import energy

    if hasattr(energy._overfull, "py_func"):
        pytest.skip("needs NUMBA_DISABLE_JIT=1: called with arrays of any type")
    rng, seen = np.random.default_rng(3), []
    for _ in range(400):
        n, classes, horizon = int(rng.integers(2, 8)), int(rng.integers(1, 4)), 6
        ticks = rng.integers(-1, 6, (n, classes))
        head, tail = rng.integers(0, 3, (n, classes)), rng.integers(0, 3, (n, classes))
        weights, size = rng.integers(1, 4, classes), rng.integers(1, 3, classes)
        begins, ends = np.sort(rng.integers(0, 4, 2)), np.sort(rng.integers(2, 7, 2))
        if not ((ticks >= 0) & (head + ticks + tail <= horizon)).any(axis=1).all():
            continue
        overfull = False
        for begin, end in itertools.product(begins.tolist(), ends.tolist()):
            if end <= begin:
                continue
            need = 0
            for v in range(n):
                ways = []
                for c in range(classes):
                    latest = horizon - tail[v, c] - ticks[v, c]
                    if ticks[v, c] >= 0 and head[v, c] <= latest:
                        inside = min(
                            max(0, min(s + ticks[v, c], end) - max(s, begin))
                            for s in range(head[v, c], latest + 1)
                        )
                        ways.append(int(weights[c] * inside))
                need += min(ways)
            overfull |= need > int(size @ weights) * (end - begin)
        found = energy._overfull(head, tail, ticks, weights, size, begins, ends, horizon)
        assert bool(found) == overfull
        seen.append(overfull)
    assert 10 < sum(seen) < len(seen) - 10
