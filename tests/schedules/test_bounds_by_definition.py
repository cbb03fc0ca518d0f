"""The bounds of pipelines against their definitions: longest ways by trying all, every set of
blocks, a linear program of starts, memory unit by unit.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import ceil

import pytest
from random_pipelines import random_mixed_pipeline
from scipy.optimize import linprog

from placeopt.schedules.bounds import (
    makespan_bound,
    relaxations,
    residence_bound,
    work_between_ends,
)


class Plain:
    """A problem with some blocks made points in time, in plain Python."""

    def __init__(self, problem, left_out, lags):
        self.problem, self.blocks = problem, range(problem.num_blocks)
        self.shared = sum(int(problem.span[v]) for v in left_out)
        self.span = [0 if v in left_out else int(problem.span[v]) for v in self.blocks]
        self.gaps = [(u, v, self.span[u] + lag * lags) for u, v, lag in problem.edges]
        self.head = [self.before(v) for v in self.blocks]
        self.tail = [self.behind(v) for v in self.blocks]

    def before(self, v):
        """Longest way from the first start to the start of a block."""
        return max((self.before(u) + gap for u, w, gap in self.gaps if w == v), default=0)

    def behind(self, u):
        """Longest way from the end of a block to the last end."""
        ways = (
            gap - self.span[u] + self.span[v] + self.behind(v) for w, v, gap in self.gaps if w == u
        )
        return max(ways, default=0)

    def occupied(self, d):
        """Unit-ticks that a micro-batch occupies at least, until the last of it is freed."""
        memory = self.problem.memory[:, d]
        rows = [[(w == u) - (w == v) for w in self.blocks] for u, v, _ in self.gaps]
        least = linprog(-memory, rows, [-gap for _, _, gap in self.gaps], bounds=(0, None)).fun
        return round(least) + sum(
            -int(m) * s for m, s in zip(memory, self.span, strict=True) if m < 0
        )

    def most_work(self, d, sign, n):
        """Most ticks of blocks that free nothing (sign 1; -1: allocate nothing) while memory lasts."""
        here = self.problem.on_device[d]
        need = {v: sign * int(self.problem.memory[v, d]) for v in here}
        free = n * sum(self.span[v] for v in here if need[v] == 0)
        units = [Fraction(self.span[v], need[v]) for v in here for _ in range(n * need[v])]
        room = int(self.problem.capacity[d])
        return free + ceil(sum(sorted(units, reverse=True)[:room], Fraction(0)))

    def idle(self, d, n):
        """Ticks in which a device waits to begin, or has ended."""
        here, memory = self.problem.on_device[d], self.problem.memory[:, d].tolist()
        front, back = min(self.head[v] for v in here), min(self.tail[v] for v in here)
        if not self.problem.limited[d]:
            return front + back
        waits = min(self.head[v] for v in here if memory[v] < 0) - self.most_work(d, 1, n)
        drains = min(self.tail[v] for v in here if memory[v] > 0) - self.most_work(d, -1, n)
        if n * sum(m for m in memory if m > 0) > int(self.problem.capacity[d]):
            return max(front, waits) + max(back, drains)
        return max(max(front, waits) + back, front + max(back, drains))

    def makespan(self, n):
        """Return the bound of n micro-batches."""
        problem, memory = self.problem, self.problem.memory
        found = [h + s for h, s in zip(self.head, self.span, strict=True)]
        for d, here in enumerate(problem.on_device):
            for size in range(1, len(here) + 1):
                for some in combinations(here, size):
                    ends = min(self.head[v] for v in some) + min(self.tail[v] for v in some)
                    found.append(ends + n * sum(self.span[v] for v in some))
            if here:
                found.append(n * sum(self.span[v] for v in here) + self.idle(d, n))
            if problem.limited[d]:
                ends = min(self.head[v] for v in here if memory[v, d] > 0)
                ends += min(self.tail[v] for v in here if memory[v, d] < 0)
                found.append(ends + ceil(Fraction(n * self.occupied(d), int(problem.capacity[d]))))
        return n * self.shared + max(found)


def both(problem):
    """Return a problem as it is and, if there are some, without the blocks on all devices."""
    used = [d for d in range(problem.num_devices) if problem.on_device[d]]
    everywhere = [v for v in range(problem.num_blocks) if len(problem.devices_of(v)) == len(used)]
    found = [Plain(problem, [], lags=True)]
    return found + [Plain(problem, everywhere, lags=False)] * (len(used) > 1 and bool(everywhere))


@pytest.mark.parametrize("part", range(6))
def test_bounds_are_what_their_definitions_say(part):
    """Heads, tails, occupied unit-ticks and both bounds of 12 problems, with and without the blocks
    on all devices.
    """
    for seed in range(12 * part, 12 * part + 12):
        problem = random_mixed_pipeline(seed)
        plain, found = both(problem), relaxations(problem)
        assert len(plain) == len(found), seed
        for one, other in zip(plain, found, strict=True):
            assert (one.shared, one.span) == (other.shared, other.span.tolist())
            assert (one.head, one.tail) == (other.head.tolist(), other.tail.tolist()), seed
            limited = [d for d in range(problem.num_devices) if problem.limited[d]]
            assert {d: one.occupied(d) for d in limited} == other.occupied, seed
            works = [
                min(one.head[v] for v in here)
                + min(one.tail[v] for v in here)
                + 3 * sum(one.span[v] for v in here)
                for here in problem.on_device
                if here
            ]
            assert work_between_ends(other, 3) == max(works)
        shares = [
            one.shared + Fraction(one.occupied(d), int(problem.capacity[d]))
            for one in plain
            for d in limited
        ]
        assert residence_bound(problem) == max(shares, default=0), seed
        for n in (1, 2, 5, 40):
            assert makespan_bound(problem, n) == max(one.makespan(n) for one in plain), (seed, n)
