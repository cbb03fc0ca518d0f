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
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.period.bounds.frontier import frontier_graph
from placeopt.period.bounds.set_prices import (
    DEPTH,
    PRICES,
    OutOfTimeError,
    SetPricer,
    UndecidedError,
)

if TYPE_CHECKING:
    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.period.contracted import ContractedProblem

_STEADY, _LEAST_STEADY = 0.8, 0.1  # share of the steady prices in a mixture; below the second none
_DISJOINT, _DEAR = (
    3,
    0.5,
    # further sets of a round, of nodes not in the others, and their least price relative to the
    # first's
)
_PART = 0.1  # of what is open: closer is not settled
_NEAR = 1.1  # factor below which what prices miss is looked at closely
_CLOSE = 1.002  # and below which fine buckets are worth their time
_FINE = 2e-5  # a bisection ends at this relative width
_TOLERANCE = 1e-7
_MAX_NODES = 1500


def main_type(model: ContractedProblem) -> int | None:
    """Return the most numerous type that pays transfers, None if no type does."""
    paying = [g for g in range(model.num_types) if model.weight[:, g].any()]
    return max(paying, key=lambda g: (int(model.type_counts[g]), -g)) if paying else None


def cover_bound(model: ContractedProblem, deadline: float) -> CoverBound | None:
    """Return what refutes periods of `model` until `deadline`; None where its sets make no small
    graph.
    """
    g = main_type(model)
    if g is None or not 2 <= model.num_nodes <= _MAX_NODES:
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
            while high - self.lower > max(0 if high == upper else 1, int(self.lower * _FINE)):
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
        master = Master(self.model, self.g, limit)
        for members in self.sets:
            if self.pricer.load(members) <= limit:
                master.add(members)
        steady = self.model.smallest_times / max(1.0, float(self.model.smallest_times.sum()))
        count, price = len(self.model.types[self.g]), np.floor(steady * PRICES).astype(np.int64)
        found, closest = self._ask(
            price, limit, 1
        )  # uniform prices are good ones, and refute much at once
        if found is None and closest == 0.0:
            return True
        if found is not None:
            found, closest = self._dearest(price, limit, found, closest)
            self._settle(price, limit, closest)
            self._add(master, found)
        steady, share, improved = steady * count, _STEADY, True  # share of the steady prices
        while True:
            if improved:
                value, prices = master.solve(self.pricer.deadline - time.perf_counter())
                share = _STEADY
                if value <= count * (1 + _TOLERANCE):
                    return False
            mixed = share * steady + (1 - share) * prices
            price = np.floor(mixed * (PRICES / mixed.sum())).astype(np.int64)
            found, missed = self._ask(price, limit, DEPTH if share == 0.0 else 1)
            if found is None and missed == 0.0:
                return True
            if found is not None and missed < min(closest, _NEAR):
                found, missed = self._dearest(price, limit, found, missed)
            improved = (
                found is not None
                and self._add(master, found)
                and float(prices[found].sum()) > 1 + _TOLERANCE
            )
            if found is not None and missed < closest:
                closest, steady = missed, mixed / float(mixed[found].sum())
                self._settle(price, limit, missed)
            if found is not None and improved:
                self._add_disjoint(master, price, limit, found)
            elif share == 0.0:
                return False  # floating-point arithmetic, or coarse buckets, have no better prices
            else:
                share = share / 2 if share >= _LEAST_STEADY else 0.0

    def _ask(self, price: Ints, limit: int, depth: int) -> tuple[Flags | None, float]:
        """Return (None, 0) if integer prices refute `limit`, (None, 1) if that is not known, else a
        set and how dear it is.
        """
        usable = self.model.allowed[:, self.g] & (self.model.total[:, self.g] <= limit)
        count = len(self.model.types[self.g])
        pay = int(price.sum()) - sum(
            knapsack(self.model, h, price, limit)
            for h in range(self.model.num_types)
            if h != self.g
        )
        least = -(-pay // count)
        try:
            found = self.pricer.dearest(price, usable, limit, max(1, least), depth=depth)
        except UndecidedError:
            return None, 1.0
        if found is None:
            return None, 0.0 if least > 0 else 1.0
        return found, float(price[found].sum()) / max(1, least)

    def _dearest(self, price: Ints, limit: int, found: Flags, missed: float) -> tuple[Flags, float]:
        """Return the dearest set, or about, and how dear it is: prices count as close by what the
        dearest set says.
        """
        usable = self.model.allowed[:, self.g] & (self.model.total[:, self.g] <= limit)
        worth = int(price[found].sum())
        try:
            while (
                better := self.pricer.dearest(
                    price, usable, limit, int(price[found].sum()) + 1, depth=1
                )
            ) is not None:
                found = better
        except UndecidedError:
            pass
        return found, missed * float(price[found].sum()) / max(1, worth)

    def _settle(self, price: Ints, limit: int, missed: float) -> None:
        """Raise `lower` as far as these prices, which miss refuting `limit` by the factor `missed`,
        go.
        """
        high = int(limit / max(1.0, missed)) + 1
        while high - self.lower > max(1, int(_PART * (limit - self.lower))):
            middle = (self.lower + high + 1) // 2
            found, short = self._ask(price, middle - 1, DEPTH if missed < _CLOSE else 1)
            if found is None and short == 0.0:
                self.lower = middle
            else:
                high = middle - 1

    def _add_disjoint(self, master: Master, price: Ints, limit: int, found: Flags) -> None:
        """Add dear sets of other nodes than the last one: a linear program over few sets has wild
        prices.
        """
        usable = self.model.allowed[:, self.g] & (self.model.total[:, self.g] <= limit)
        least = int(_DEAR * int(price[found].sum()))
        for _ in range(_DISJOINT):
            usable = usable & ~found
            try:
                other = self.pricer.dearest(
                    np.where(usable, price, 0), usable, limit, least, depth=0
                )
            except UndecidedError:
                return
            if other is None:
                return
            self._add(master, other)
            found = other

    def _add(self, master: Master, members: Flags) -> bool:
        """Add a set; False if it is known."""
        if not master.add(members):
            return False
        self.sets.append(members)
        return True
