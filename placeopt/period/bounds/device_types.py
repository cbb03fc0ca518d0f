"""Lower bounds on the period by the types of devices (types group identical devices).

`op`: some device runs op v (or its colocation class), so its load is at least the smallest time of
v.

`pigeonhole`: suppose the period is at most T. An op that takes longer than T on all types but one,
g, runs there. Of the q n_g + 1 longest such ops some q + 1 share a device, whose load is at least
the sum of the q + 1 shortest of them. If that exceeds T the supposition was wrong; bisection finds
the largest such T.

`area`: let x[v, g] be the share of v on devices of type g. A placement gives x in {0, 1}; the loads
of the n_g devices of type g add up to at least the compute of its ops, plus one transfer for every
tensor that crosses the type's border in each direction, and one of them reaches the average:

    min T  subject to
        sum_v compute[v, g] x[v, g] + sum_t weight[t, g] (in[t, g] + out[t, g]) <= n_g T
        x[c, g] - x[u, g] <= in[t, g]     for consumers c of u's tensor t
        x[u, g] - x[c, g] <= out[t, g]
        sum_g x[v, g] = 1

relaxes every placement. Let y_g >= 0 with sum_g n_g y_g = 1 be multipliers of the loads, and
a[t, c, g], b[t, c, g] >= 0 those of the transfers. As 0 <= in, out <= 1, the value is at least

    sum_v min_g (y_g compute[v, g] + r[v, g]) + sum_{t, g} (min(0, y_g weight[t, g] - sum_c a)
                                                           + min(0, y_g weight[t, g] - sum_c b))

where r[v, g] sums a - b over what v reads, and b - a over what it sends. This holds for any
multipliers: they are looked for in floating point and rounded to multiples of a power of two, and
the bound is evaluated in Python integers, so nothing has to be trusted.

A tensor counts at most as much as all nodes take at their slowest: that can only lower the value,
and lengths of steps stay those of the nodes.

Shares and multipliers move in turn by a primal-dual gradient method, which is a few products of
sparse matrices a step: after a hundred steps it mostly proves some 99 %, where a simplex method has
nothing before its end. It begins again from the mean of the steps so far, or from the last of them,
whenever that halves what is left between load and bound (or the steps since are a good third of all
of them); there lengths of steps of shares and of multipliers are balanced, by how far each went.

References
----------
D. Applegate, M. Diaz, O. Hinder, H. Lu, M. Lubin, B. O'Donoghue, W. Schudy: "Practical Large-Scale
Linear Programming using Primal-Dual Hybrid Gradient", NeurIPS 2021 (restarts, weights).
T. Pock, A. Chambolle: "Diagonal preconditioning for first order primal-dual algorithms in convex
optimization", ICCV 2011 (lengths of steps).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array

from placeopt.model.arrays import Floats, Ints, running_sums, sums_by
from placeopt.period.contracted import ContractedProblem

SHIFT = 40
"""Multipliers are rounded to multiples of 2^-SHIFT."""

STEPS = 32
"""Between two looks at the bound, which cost a few of them."""


def pigeonhole(model: ContractedProblem, lower: int) -> int:
    """Return the bound `pigeonhole`, at least `lower`."""
    upper = int(model.smallest_times.sum()) + 1
    # Refutation is monotone: a larger T leaves fewer ops bound to one type and a larger allowance.
    while lower < upper:
        middle = (lower + upper) // 2
        if _refuted(model, middle):
            lower = middle + 1
        else:
            upper = middle
    return lower


def _refuted(model: ContractedProblem, limit: int) -> bool:
    usable = model.allowed & (model.total <= limit)
    if not usable.any(axis=1).all():
        return True
    only = usable.sum(axis=1) == 1
    for g, devices in enumerate(model.types):
        times = np.sort(model.total[only & usable[:, g], g])[::-1]
        count = len(devices)
        running = running_sums(times)
        q = np.arange(1, (len(times) - 1) // count + 1)
        # times[last - q .. last] are the q + 1 shortest of the first q * count + 1
        last = q * count
        if (running[last + 1] - running[last - q] > limit).any():
            return True
    return False


def area_bounds(model: ContractedProblem, known: Callable[[], int] = lambda: 0) -> Iterator[int]:
    """Yield the best bound `area` so far, every `STEPS` steps; ends where it is the value of the
    program, as far as floating point can tell, or what is `known` otherwise is no less.
    """
    program = _Areas(model)
    now = begun = program.start()
    total, since, steps, balance, gap = now.scaled(0.0), 0, 0, 1.0, np.inf
    best, load = program.proved(now), program.load(now)
    yield best
    while max(best, known()) < load * (1 - 1e-9):
        for _ in range(STEPS):
            now = program.step(now, balance)
            total = _Point(*map(np.add, total, now))
        since, steps = since + STEPS, steps + STEPS
        ends = now, total.scaled(1 / since)
        loads, bounds = [program.load(x) for x in ends], [program.bound(x) for x in ends]
        gaps = np.subtract(loads, bounds)
        best, load = max(best, program.proved(ends[np.argmax(bounds)])), min(load, *loads)
        if 2 * gaps.min() <= gap or since >= 0.36 * steps:
            now, gap = ends[gaps.argmin()], gaps.min()
            moved = program.distances(begun, now)
            balance = np.sqrt(balance * moved[1] / moved[0]) if min(moved) > 0 else balance
            begun, total, since = now, now.scaled(0.0), 0
        yield best


class _Point(NamedTuple):
    """Shares and transfers (x, in, out; a row each, a column per type), their multipliers (a, b),
    and those of the loads.
    """

    shares: Floats
    moves: Floats
    loads: Floats

    def scaled(self, factor: float) -> _Point:
        return _Point(*(factor * part for part in self))


class _Areas:
    """The linear program of `area`, its ticks in units of the longest node."""

    def __init__(self, model: ContractedProblem) -> None:
        n, m, e = model.num_nodes, len(model.producer), len(model.consumer)
        self.allowed, self.count = model.allowed, model.type_counts
        weight = np.minimum(model.weight, model.total.max(axis=1).sum())
        self.ticks = np.concatenate([model.total, weight, weight])
        self.unit = max(1, int(model.smallest_times.max()))
        self.cost = self.ticks / self.unit
        t, edge = model.edge_tensor, np.arange(e)
        u, c = model.producer[t], model.consumer
        self.move = np.concatenate([t, m + t])  # in or out of each row of `matrix`
        self.row = np.concatenate([edge, edge, edge, e + edge, e + edge, e + edge])
        self.column = np.concatenate([c, u, n + t, u, c, n + m + t])
        self.sign = np.tile(np.repeat([1, -1, -1], e), 2)
        shape = 2 * e, n + 2 * m
        self.matrix = coo_array((self.sign / 1.0, (self.row, self.column)), shape).tocsr()
        self.transposed = self.matrix.T.tocsr()
        entries = self.cost + np.bincount(self.column, minlength=shape[1])[:, None]
        self.lengths = (
            1 / np.maximum(entries, 1e-9),
            1 / 3,
            1 / np.maximum(self.cost.sum(axis=0), 1e-9),
        )

    def start(self) -> _Point:
        """Return equal shares, and multipliers for which all types are as fast in the mean."""
        shares = np.zeros(self.cost.shape)
        shares[: len(self.allowed)] = self.allowed / self.allowed.sum(axis=1, keepdims=True)
        moves = np.zeros((len(self.move), len(self.count)))
        mean = self.cost[: len(self.allowed)].sum(axis=0) / self.allowed.sum(axis=0).clip(1)
        speed = 1 / np.maximum(mean, 1 / self.unit)
        return _Point(shares, moves, speed / (speed @ self.count))

    def step(self, at: _Point, balance: float) -> _Point:
        """Return the point after a step of both sides."""
        n, (share, move, load) = len(self.allowed), self.lengths
        x = at.shares - share / balance * self._slopes(at)
        x[:n] = _nearest(
            np.where(self.allowed, x[:n], -np.inf), share[:n], np.ones_like(self.count)
        )
        x[n:] = np.clip(x[n:], 0, 1)
        ahead = 2 * x - at.shares
        moves = np.maximum(at.moves + balance * move * (self.matrix @ ahead), 0)
        loads = at.loads + balance * load * (self.cost * ahead).sum(axis=0)
        return _Point(x, moves, _nearest(loads[None], load[None], self.count)[0])

    def distances(self, a: _Point, b: _Point) -> tuple[float, float]:
        """Return how far the shares and the multipliers of two points are apart, by lengths."""
        far = [((x - y) ** 2 / s).sum() for x, y, s in zip(a, b, self.lengths, strict=True)]
        return far[0] ** 0.5, (far[1] + far[2]) ** 0.5

    def load(self, at: _Point) -> float:
        """Return the largest mean load of a type by the shares, in ticks."""
        n = len(self.allowed)
        x = np.concatenate([at.shares[:n], np.zeros_like(at.shares[n:])])
        np.maximum.at(x, n + self.move, self.matrix @ x)
        return self.unit * float(((self.cost * x).sum(axis=0) / self.count).max())

    def bound(self, at: _Point) -> float:
        """Return the bound of the module text by the multipliers, about."""
        return self.unit * float(self._least(self._slopes(at)))

    def proved(self, at: _Point) -> int:
        """Return it in integers, rounded up."""
        loads, moves = _rounded(at.loads), _rounded(at.moves * self.unit)
        moved = sums_by(self.column, self.sign[:, None] * moves[self.row], len(self.ticks))
        least = self._least(loads * self.ticks.astype(object) + moved)
        return max(0, -(-int(least) // int(loads @ self.count.astype(object))))

    def _slopes(self, at: _Point) -> Floats:
        return at.loads * self.cost + self.transposed @ at.moves

    def _least(self, slopes: Any) -> Any:
        """Return the least that all shares and transfers together cost by their slopes."""
        n = len(self.allowed)
        nodes = np.where(self.allowed, slopes[:n], slopes[:n].max()).min(axis=1)
        return nodes.sum() + np.minimum(slopes[n:], 0).sum()


def _nearest(point: Floats, length: Floats, count: Ints) -> Floats:
    """Return what is nearest to each row of a point, by lengths of steps, among the x >= 0 with
    count @ x = 1.
    """
    along = count * length
    order = np.argsort(-point / along, axis=1)
    z, s, n = *(np.take_along_axis(part, order, 1) for part in (point, along)), count[order]
    shift = (np.cumsum(n * z, axis=1) - 1) / np.cumsum(n * s, axis=1)
    last = (z > s * shift).sum(axis=1, keepdims=True) - 1
    return np.maximum(point - along * np.take_along_axis(shift, last, 1), 0)


def _rounded(values: Floats) -> Any:
    """Return round(value * 2^SHIFT) as Python integers."""
    return np.frompyfunc(int, 1, 1)(np.rint(np.ldexp(values, SHIFT)))
