"""Prices for `columns` where the sets of a device are paths through a small graph: column
generation, whole and in integers.

Suppose some placement has period at most T. Of the sets that one device of type g may hold within T
(the most numerous type that pays transfers) at most n_g are used, and each other type h holds
shares of nodes of at most n_h T ticks. So

    min sum_S x_S  subject to
        sum_{S with v} x_S + sum_h y[v, h] >= 1,  sum_v compute[v, h] y[v, h] <= n_h T,  y <= 1

is at most n_g. Its dual values are the prices that refute T best. They are found with the sets
known so far, and the next set is the dearest one under them (`placeopt.period.bounds.set_prices`),
or under a mixture with the prices that came closest to a refutation, which are steadier. For
integer prices p, T is refuted where no set within T has

    n_g p(S) >= sum_v p_v - sum_h C_h,

C_h the fractional knapsack's value of the devices of type h, rounded up. Nothing in that is
rounded, whatever the linear program's arithmetic did. Memory is left out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.period.bounds.set_prices import (
    PRICES,
    OutOfTimeError,
    SetPricer,
    UndecidedError,
    frontier_graph,
)

if TYPE_CHECKING:
    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.period.contracted import ContractedProblem


@dataclass(frozen=True)
class Rounds:
    """Rounds of column generation.

    Attributes
    ----------
    steady : share of the steady prices in a mixture.
    least_steady : below this share the mixture has none of them.
    disjoint : further sets of a round, of nodes not in the others.
    dear : least price of those, relative to the first one's.
    tolerance : of the linear program, relative to a device.
    """

    steady: float = 0.8
    least_steady: float = 0.1
    disjoint: int = 3
    dear: float = 0.5
    tolerance: float = 1e-7

    def less_steady(self, share: float) -> float:
        """Return half of the share of steady prices in a mixture, none where it is small."""
        return share / 2 if share >= self.least_steady else 0.0


@dataclass(frozen=True)
class Bisection:
    """Where the search for the largest limit that prices refute begins to look closely, and ends.

    Attributes
    ----------
    most_nodes : of a model that is tried at all.
    near : factor below which what prices miss is looked at closely.
    close : factor below which fine buckets are worth their time.
    part : of what is open; closer is not settled by prices that refute something else.
    fine : width at which it ends, relative to the bound.
    """

    most_nodes: int = 1500
    near: float = 1.1
    close: float = 1.002
    part: float = 0.1
    fine: float = 2e-5


def main_type(model: ContractedProblem) -> int | None:
    """Return the most numerous type that pays transfers, None if no type does."""
    paying = [g for g in range(model.num_types) if model.weight[:, g].any()]
    return max(paying, key=lambda g: (int(model.type_counts[g]), -g)) if paying else None


def cover_bound(model: ContractedProblem, deadline: float) -> CoverBound | None:
    """Return what refutes periods of `model` until `deadline`; None where its sets make no small
    graph.
    """
    g = main_type(model)
    if g is None or not 2 <= model.num_nodes <= CoverBound.bisection.most_nodes:
        return None
    graph = frontier_graph(model, g, deadline)
    return (
        None
        if graph is None
        else CoverBound(model, g, SetPricer(graph, model.largest_load, deadline))
    )


def knapsack(model: ContractedProblem, h: int, price: Ints, limit: int) -> int:
    """Return what no shares of nodes on the devices of type `h` exceed in price: r room + sum_v
    max(0, p_v - r ticks_v).
    """
    ticks = model.total[:, h]
    fits = np.flatnonzero(model.allowed[:, h] & (ticks <= limit))
    top, bottom = ratio(model, h, price, limit)
    over = sum(
        max(0, p * bottom - top * t)
        for p, t in zip(price[fits].tolist(), ticks[fits].tolist(), strict=True)
    )
    return -(-(top * limit * len(model.types[h]) + over) // bottom)


def ratio(model: ContractedProblem, h: int, price: Ints, limit: int) -> tuple[int, int]:
    """Return price and ticks (r of `knapsack`) of the node with which the dearest nodes per tick
    fill the devices of type `h`.

    Any ratio gives a bound. Where everything fits it is 0.
    """
    ticks = model.total[:, h]
    timed = np.flatnonzero(model.allowed[:, h] & (ticks <= limit) & (ticks > 0))
    timed = timed[np.argsort(-price[timed] / ticks[timed], kind="stable")]
    full = int(np.searchsorted(np.cumsum(ticks[timed]), limit * len(model.types[h])))
    return (0, 1) if full == len(timed) else (int(price[timed[full]]), int(ticks[timed[full]]))


class Master:
    """The linear program of the module text over the sets that are known."""

    def __init__(self, model: ContractedProblem, g: int, limit: int) -> None:
        from ortools.linear_solver import pywraplp

        solver = pywraplp.Solver.CreateSolver("GLOP")
        self._solver, self._sets = solver, set[bytes]()
        self._rows = [solver.Constraint(1.0, solver.infinity()) for _ in range(model.num_nodes)]
        self._goal = solver.Objective()
        self._goal.SetMinimization()
        for row in self._rows:  # alone: no price is above that of a device
            self._add(1.0, solver.infinity(), [row])
        for h, devices in enumerate(model.types):
            ticks = model.total[:, h]
            room = solver.Constraint(-solver.infinity(), float(len(devices)))
            for v in (
                np.flatnonzero(model.allowed[:, h] & (ticks <= limit)).tolist() if h != g else ()
            ):
                share = self._add(0.0, 1.0, [self._rows[v]])
                room.SetCoefficient(share, float(ticks[v]) / max(1, limit))

    def _add(self, cost: float, most: float, rows: list[Any]) -> Any:
        variable = self._solver.NumVar(0.0, most, "")
        self._goal.SetCoefficient(variable, cost)
        for row in rows:
            row.SetCoefficient(variable, 1.0)
        return variable

    def add(self, members: Flags) -> bool:
        """Add a set; False if it is known."""
        if members.tobytes() in self._sets:
            return False
        self._sets.add(members.tobytes())
        self._add(
            1.0, self._solver.infinity(), [self._rows[v] for v in np.flatnonzero(members).tolist()]
        )
        return True

    def solve(self, seconds: float) -> tuple[float, Floats]:
        """Return the value and a price per node, in devices."""
        self._solver.SetTimeLimit(max(1, int(1000 * min(seconds, 1e6))))
        if self._solver.Solve() != self._solver.OPTIMAL:
            raise OutOfTimeError
        return self._goal.Value(), np.maximum(
            0.0, np.array([row.dual_value() for row in self._rows])
        )


@dataclass
class CoverBound:
    """Refutes periods of one model; keeps the sets it finds between limits.

    Attributes
    ----------
    g : type whose sets are examined. lower : best bound proved, ticks. sets : all that were found.
    within_reach : the smallest limit that prices cannot refute, as far as that is known. unfinished
    : whether time was short.
    """

    rounds: ClassVar[Rounds] = Rounds()
    bisection: ClassVar[Bisection] = Bisection()

    model: ContractedProblem
    g: int
    pricer: SetPricer
    lower: int = 0
    sets: list[Flags] = field(default_factory=list)
    within_reach: float = np.inf
    unfinished: bool = False

    def raise_from(self, lower: int, upper: int) -> int:
        """Return the largest bound up to `upper` (ticks) proved before the deadline, at least
        `lower`.
        """
        self.lower, high, limit, self.unfinished = max(lower, self.lower), upper, upper - 1, False
        if self.within_reach < upper:
            high, limit = int(self.within_reach), (self.lower + int(self.within_reach)) // 2
        try:
            while high - self.lower > max(
                0 if high == upper else 1, int(self.lower * self.bisection.fine)
            ):
                if self._refutes(limit):
                    self.lower = max(self.lower, limit + 1)
                else:
                    self.within_reach = high = limit
                limit = (self.lower + high) // 2
        except OutOfTimeError:
            self.unfinished = True
        return self.lower

    def fits_memory(self) -> bool:
        """Whether every set that was found fits into the memory of a device, so that leaving memory
        out cost nothing.
        """
        resident = self.model.resident
        return all(
            int(resident[members].sum()) <= int(self.model.capacity[self.g])
            for members in self.sets
        )

    def _refutes(self, limit: int) -> bool:
        """Whether column generation refutes `limit`; `lower` rises on the way."""
        generation = _Generation(self, limit)
        return generation.refutes_at_once() or generation.refutes()

    def usable(self, limit: int) -> Flags:
        """Which nodes a device may hold within `limit`."""
        found: Flags = self.model.allowed[:, self.g] & (self.model.total[:, self.g] <= limit)
        return found

    def pay(self, price: Ints, limit: int) -> int:
        """Price that the devices of the type examined have to hold together within `limit`."""
        others = (h for h in range(self.model.num_types) if h != self.g)
        return int(price.sum()) - sum(knapsack(self.model, h, price, limit) for h in others)

    def ask(self, price: Ints, limit: int, depth: int | None) -> tuple[Flags | None, float]:
        """Return (None, 0) if integer prices refute `limit`, (None, 1) if that is not known, else a
        set and how dear it is.
        """
        least = -(-self.pay(price, limit) // len(self.model.types[self.g]))
        try:
            found = self.pricer.dearest(
                price, self.usable(limit), limit, max(1, least), depth=depth
            )
        except UndecidedError:
            return None, 1.0
        if found is None:
            return None, 0.0 if least > 0 else 1.0
        return found, float(price[found].sum()) / max(1, least)

    def settle(self, price: Ints, limit: int, missed: float) -> None:
        """Raise `lower` as far as these prices, which miss refuting `limit` by the factor `missed`,
        go.
        """
        high = int(limit / max(1.0, missed)) + 1
        while high - self.lower > max(1, int(self.bisection.part * (limit - self.lower))):
            middle = (self.lower + high + 1) // 2
            found, short = self.ask(price, middle - 1, None if missed < self.bisection.close else 1)
            if found is None and short == 0.0:
                self.lower = middle
            else:
                high = middle - 1


class _Generation:
    """Column generation for one limit."""

    def __init__(self, cover: CoverBound, limit: int) -> None:
        self.cover, self.limit, self.usable = cover, limit, cover.usable(limit)
        self.rounds = cover.rounds
        times, self.count = cover.model.smallest_times, len(cover.model.types[cover.g])
        self.steady: Floats = times / max(1.0, float(times.sum()))
        self.closest = np.inf  # by which factor the steady prices miss a refutation
        self.master = Master(cover.model, cover.g, limit)
        for members in cover.sets:
            if cover.pricer.load(members) <= limit:
                self.master.add(members)

    def refutes_at_once(self) -> bool:
        """Whether uniform prices do: they are good ones, and refute much."""
        price = np.floor(self.steady * PRICES).astype(np.int64)
        found, self.closest = self.cover.ask(price, self.limit, 1)
        if found is None and self.closest == 0.0:
            return True
        if found is not None:
            found, self.closest = self._dearest(price, found, self.closest)
            self.cover.settle(price, self.limit, self.closest)
            self._add(found)
        self.steady *= self.count
        return False

    def refutes(self) -> bool:
        """Whether dual prices do, or their mixtures with the steady ones."""
        share, improved = self.rounds.steady, True  # share of the steady prices
        while True:
            if improved:
                value, prices = self.master.solve(self.cover.pricer.deadline - time.perf_counter())
                share = self.rounds.steady
                if value <= self.count * (1 + self.rounds.tolerance):
                    return False
            mixed = share * self.steady + (1 - share) * prices
            price = np.floor(mixed * (PRICES / mixed.sum())).astype(np.int64)
            found, missed = self.cover.ask(price, self.limit, None if share == 0.0 else 1)
            if found is None and missed == 0.0:
                return True
            improved = found is not None and self._learn(price, found, missed, mixed, prices)
            if not improved:
                if (
                    share == 0.0
                ):  # floating-point arithmetic or coarse buckets have no better prices
                    return False
                share = self.rounds.less_steady(share)

    def _learn(
        self, price: Ints, found: Flags, missed: float, mixed: Floats, prices: Floats
    ) -> bool:
        """Add the set that answered prices, and others of other nodes; return whether the linear
        program, whose prices are `prices`, changes by it.
        """
        if missed < min(self.closest, self.cover.bisection.near):
            found, missed = self._dearest(price, found, missed)
        improved = self._add(found) and float(prices[found].sum()) > 1 + self.rounds.tolerance
        if missed < self.closest:
            self.closest, self.steady = missed, mixed / float(mixed[found].sum())
            self.cover.settle(price, self.limit, missed)
        if improved:
            self._add_disjoint(price, found)
        return improved

    def _dearest(self, price: Ints, found: Flags, missed: float) -> tuple[Flags, float]:
        """Return the dearest set, or about, and how dear it is: prices count as close by what the
        dearest set says.
        """
        dearest, worth = self.cover.pricer.dearest, int(price[found].sum())
        ask = partial(dearest, price, self.usable, self.limit, depth=1)
        try:
            while (better := ask(int(price[found].sum()) + 1)) is not None:
                found = better
        except UndecidedError:
            pass
        return found, missed * float(price[found].sum()) / max(1, worth)

    def _add_disjoint(self, price: Ints, found: Flags) -> None:
        """Add dear sets of other nodes than the last one: a linear program over few sets has wild
        prices.
        """
        usable, dearest = self.usable, self.cover.pricer.dearest
        least = int(self.rounds.dear * int(price[found].sum()))
        for _ in range(self.rounds.disjoint):
            usable = usable & ~found
            try:
                other = dearest(np.where(usable, price, 0), usable, self.limit, least, depth=0)
            except UndecidedError:
                return
            if other is None:
                return
            self._add(other)
            found = other

    def _add(self, members: Flags) -> bool:
        """Add a set; False if it is known."""
        if not self.master.add(members):
            return False
        self.cover.sets.append(members)
        return True
