"""Prices for `columns` where the sets of a device are paths through a small graph: column
generation, whole and in integers.

Suppose some placement has period at most T. Of the sets that one device of type g may hold within T
at most n_g are used, for every type that pays transfers, and each other type h holds shares of
nodes of at most n_h T ticks. So with N devices that pay

    min N theta  subject to
        sum_g sum_{S of g with v} x_{g,S} + sum_h y[v, h] >= 1,
        sum_S x_{g,S} <= n_g theta,  sum_v compute[v, h] y[v, h] <= n_h T,  y <= 1

is at most N. Its dual values are the prices of nodes that refute T best, and how much of them a
device of each type should hold at most: its weight w_g, with sum_g n_g w_g = N. They are found with
the sets known so far, and the next sets are the dearest ones of each type under them
(`placeopt.period.bounds.set_prices`), or under a mixture with the prices that came closest to a
refutation, which are steadier. For integer prices p, T is refuted where no type has a set within T
with

    sum_f n_f w_f p(S) >= w_g (sum_v p_v - sum_h C_h),

C_h the fractional knapsack's value of the devices of type h, rounded up: then all devices together
hold less than there is. Nothing in that is rounded, whatever the linear program's arithmetic did.
Memory is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from placeopt.model.arrays import NO_VALUE, Flags, Floats, Ints, stable_order, together, true_places
from placeopt.period.bounds.set_prices import (
    PRICES,
    Frontier,
    OutOfTimeError,
    SetPricer,
    UndecidedError,
)
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
    most_nodes : of a model that is tried at all: a table of paths has a byte for every pair.
    near : factor below which what prices miss is looked at closely.
    close : factor below which fine buckets are worth their time.
    part : of what is open; closer is not settled by prices that refute something else, nor looked
    at with graphs that are to be wider.
    fine : width at which it ends, relative to the bound.
    """

    most_nodes: int = 1 << 13
    near: float = 1.1
    close: float = 1.002
    part: float = 0.1
    fine: float = 2e-5


def paying_types(model: ContractedProblem) -> list[int]:
    """Return the types that pay transfers, the most numerous first."""
    paying = [g for g in range(model.num_types) if model.weight[:, g].any()]
    return sorted(paying, key=lambda g: (-int(model.type_counts[g]), g))


def cover_bound(model: ContractedProblem, deadline: float) -> CoverBound | None:
    """Return what refutes periods of `model` until `deadline`; None where no type pays, or there is
    no time for graphs.
    """
    frontier = thin_frontier(model)
    try:
        return None if frontier is None else CoverBound(model, frontier, deadline)
    except OutOfTimeError:
        return None


def thin_frontier(model: ContractedProblem) -> Frontier | None:
    """Return that of the types that pay, None if there are none."""
    types = paying_types(model)
    if not types or not 2 <= model.num_nodes <= CoverBound.bisection.most_nodes:
        return None
    return Frontier.of(model, types)


def knapsack(model: ContractedProblem, h: int, price: Ints, limit: int) -> int:
    """Return what no shares of nodes on the devices of type `h` exceed in price: r room + sum_v
    max(0, p_v - r ticks_v).
    """
    ticks = model.total[:, h]
    fits = np.flatnonzero(model.allowed[:, h] & (ticks <= limit))
    top, bottom = ratio(model, h, price, limit)
    over = sum(max(0, p * bottom - top * t) for p, t in together(price[fits], ticks[fits]))
    return -(-(top * limit * len(model.types[h]) + over) // bottom)


def ratio(model: ContractedProblem, h: int, price: Ints, limit: int) -> tuple[int, int]:
    """Return price and ticks (r of `knapsack`) of the node with which the dearest nodes per tick
    fill the devices of type `h`.

    Any ratio gives a bound. Where everything fits it is 0.
    """
    ticks = model.total[:, h]
    timed = np.flatnonzero(model.allowed[:, h] & (ticks <= limit) & (ticks > 0))
    timed = timed[stable_order(-price[timed] / ticks[timed])]
    full = int(np.searchsorted(np.cumsum(ticks[timed]), limit * len(model.types[h])))
    return (0, 1) if full == len(timed) else (int(price[timed[full]]), int(ticks[timed[full]]))


class Master:
    """The linear program of the module text over the sets that are known, of some of the types."""

    def __init__(self, model: ContractedProblem, types: Sequence[int], limit: int) -> None:
        from ortools.linear_solver import pywraplp

        solver = pywraplp.Solver.CreateSolver("GLOP")
        self._solver, self._sets = solver, set[tuple[int, bytes]]()
        counts = {g: len(model.types[g]) for g in types}
        every = float(sum(counts.values()))
        self._rows = [solver.Constraint(1.0, solver.infinity()) for _ in range(model.num_nodes)]
        self._used = {g: solver.Constraint(-solver.infinity(), 0.0) for g in types}
        self._goal = solver.Objective()
        self._goal.SetMinimization()
        devices = self._add(every, solver.infinity(), [])
        for g, used in self._used.items():
            used.SetCoefficient(devices, -float(counts[g]))
        for row in self._rows:  # alone: no price is above that of all devices of the fewest type
            self._add(every / min(counts.values()), solver.infinity(), [row])
        for h, others in enumerate(model.types):
            ticks = model.total[:, h]
            room = solver.Constraint(-solver.infinity(), float(len(others)))
            for v in true_places(model.allowed[:, h] & (ticks <= limit)) if h not in counts else ():
                share = self._add(0.0, 1.0, [self._rows[v]])
                room.SetCoefficient(share, float(ticks[v]) / max(1, limit))

    def _add(self, cost: float, most: float, rows: list[Any]) -> Any:
        variable = self._solver.NumVar(0.0, most, "")
        self._goal.SetCoefficient(variable, cost)
        for row in rows:
            row.SetCoefficient(variable, 1.0)
        return variable

    def add(self, g: int, members: Flags) -> bool:
        """Add a set of a type; False if it is known."""
        key = g, members.tobytes()
        if key in self._sets:
            return False
        self._sets.add(key)
        rows = [self._rows[v] for v in true_places(members)]
        self._add(0.0, self._solver.infinity(), [self._used[g], *rows])
        return True

    def solve(self, seconds: float) -> tuple[float, Floats, dict[int, float]]:
        """Return the value and a price per node, in devices, and the weights of the types."""
        self._solver.SetTimeLimit(max(1, int(1000 * min(seconds, 1e6))))
        if self._solver.Solve() != self._solver.OPTIMAL:
            raise OutOfTimeError
        prices = np.maximum(0.0, np.array([row.dual_value() for row in self._rows]))
        weights = {g: max(0.0, -used.dual_value()) for g, used in self._used.items()}
        return self._goal.Value(), prices, weights


class Prices(NamedTuple):
    """Prices of nodes, and how much of them a device of each type should hold at most."""

    node: Floats
    weight: dict[int, float]

    def mixed(self, share: float, other: Prices) -> Prices:
        """Return a mixture with a share of these."""
        return Prices(
            share * self.node + (1 - share) * other.node,
            {g: share * w + (1 - share) * other.weight[g] for g, w in self.weight.items()},
        )

    def divided(self, factor: float) -> Prices:
        """Return these over a factor."""
        return Prices(self.node / factor, {g: w / factor for g, w in self.weight.items()})

    def whole(self) -> Ints:
        """Return prices as integers."""
        return whole_prices(self.node)


def whole_prices(node: Floats) -> Ints:
    """Return prices of nodes as integers, 0 where all are: shares cost nothing then."""
    total = float(node.sum())
    return np.floor(node * (PRICES / total if total > 0 else 0.0)).astype(np.int64)


class Answer(NamedTuple):
    """What the sets of all types say of integer prices.

    Attributes
    ----------
    sets : the dear ones that were found, by their types.
    missed : how many times `pay` they hold, as far as is known: 0 is a refutation, 1 without sets
    no answer.
    pay : price that all devices examined have to hold together, at least 1.
    """

    sets: dict[int, Flags]
    missed: float
    pay: int

    @property
    def refuted(self) -> bool:
        """Whether the limit is refuted."""
        return self.missed == 0.0


@dataclass
class CoverBound:
    """Refutes periods of one model; keeps the sets it finds between limits.

    Attributes
    ----------
    pricers : of the types whose sets are examined, the most numerous first. lower : best bound
    proved, ticks. sets : all that were found, with their types.
    within_reach : the smallest limit that prices cannot refute, as far as that is known. unfinished
    : whether time was short.
    """

    rounds: ClassVar[Rounds] = Rounds()
    bisection: ClassVar[Bisection] = Bisection()

    model: ContractedProblem
    frontier: Frontier
    deadline: InitVar[float]
    pricers: dict[int, SetPricer] = field(init=False)
    lower: int = 0
    sets: list[tuple[int, Flags]] = field(default_factory=list)
    within_reach: float = np.inf
    unfinished: bool = False
    _wider: bool = False  # graphs of the frontier's width are still to be made

    def __post_init__(self, deadline: float) -> None:
        self._take_graphs(deadline)

    def _take_graphs(self, deadline: float) -> None:
        graphs, most = self.frontier.graphs(deadline), self.model.largest_load
        self.pricers = {g: SetPricer(graph, most, deadline) for g, graph in graphs.items()}

    @property
    def exact(self) -> bool:
        """Whether every set of the graphs is as long as its load."""
        return self.frontier.width == 0

    @property
    def g(self) -> int:
        """The most numerous of the types."""
        return next(iter(self.pricers))

    @property
    def pricer(self) -> SetPricer:
        """That of the most numerous type."""
        return self.pricers[self.g]

    @property
    def counts(self) -> dict[int, int]:
        """Number of devices of each type examined."""
        return {g: len(self.model.types[g]) for g in self.pricers}

    def give_until(self, deadline: float) -> None:
        """Set the end of the time (`time.perf_counter`)."""
        for pricer in self.pricers.values():
            pricer.deadline = deadline

    def raise_from(self, lower: int, upper: int) -> int:
        """Return the largest bound up to `upper` (ticks) proved before the deadline, at least
        `lower`.
        """
        self.lower, self.unfinished = max(lower, self.lower), False
        try:
            self._bisect(upper)
            while self.lower < upper and (self._wider or self.frontier.widens()):
                self._wider = True
                self._take_graphs(self.pricer.deadline)
                self._wider, self.within_reach = False, np.inf
                self._bisect(upper)
        except OutOfTimeError:
            self.unfinished = True
        return self.lower

    def _bisect(self, upper: int) -> None:
        """Raise `lower` to about the smallest limit that the graphs at hand do not refute.

        Raises
        ------
        OutOfTimeError
            At the deadline.
        """
        high, limit = upper, upper - 1 if self.exact else (self.lower + upper) // 2
        if self.within_reach < upper:
            high, limit = int(self.within_reach), (self.lower + int(self.within_reach)) // 2
        while high - self.lower > max(
            0 if high == upper else 1,
            int(self.lower * self.bisection.fine),
            0 if self.exact else int(self.bisection.part * (upper - self.lower)),
        ):
            if self._refutes(limit):
                self.lower = max(self.lower, limit + 1)
            else:
                self.within_reach = high = limit
            limit = (self.lower + high) // 2

    def fits_memory(self) -> bool:
        """Whether every set that was found fits into the memory of a device, so that leaving memory
        out cost nothing.
        """
        resident, capacity = self.model.resident, self.model.capacity
        return all(int(resident[members].sum()) <= int(capacity[g]) for g, members in self.sets)

    def _refutes(self, limit: int) -> bool:
        """Whether column generation refutes `limit`; `lower` rises on the way."""
        if self._leaves_out(limit):
            return True
        generation = _Generation(self, limit)
        return generation.refutes_at_once() or generation.refutes()

    def _leaves_out(self, limit: int) -> bool:
        """Whether some node is in no set within `limit`, whatever it is together with: its price
        may then be anything, and the linear program knows only prices up to a device's.
        """
        for v in true_places(self._alone > limit):
            price = np.zeros(self.model.num_nodes, np.int64)
            price[v] = 1
            try:
                found = [
                    (g, members)
                    for g, pricer in self.pricers.items()
                    if (members := pricer.dearest(price, self.usable(limit, g), limit, 1))
                    is not None
                ]
            except UndecidedError:
                continue
            if not found:
                return True
            self.sets += found
        return False

    @cached_property
    def _alone(self) -> Ints:
        """Ticks that every node takes by itself on the best type, without transfers on one whose
        sets are not examined.
        """
        model = self.model
        pins = np.concatenate([model.producer, model.consumer])
        tensor = np.concatenate([np.arange(len(model.producer)), model.edge_tensor])
        ticks = model.total.copy()
        for g in self.pricers:
            np.add.at(ticks[:, g], pins, model.weight[tensor, g])
        return np.where(model.allowed, ticks, NO_VALUE).min(axis=1)

    def usable(self, limit: int, g: int) -> Flags:
        """Which nodes a device of type `g` may hold within `limit`."""
        return self.model.allowed[:, g] & (self.model.total[:, g] <= limit)

    def pay(self, price: Ints, limit: int) -> int:
        """Price that the devices of the types examined have to hold together within `limit`."""
        others = (h for h in range(self.model.num_types) if h not in self.pricers)
        return int(price.sum()) - sum(knapsack(self.model, h, price, limit) for h in others)

    def ask(self, price: Ints, weight: dict[int, float], limit: int, depth: int | None) -> Answer:
        """Return what the sets within `limit` say of integer prices: whether those of a type are
        dearer than its weight allows.
        """
        pay, missed, count = self.pay(price, limit), 0.0, self.counts
        found: dict[int, Flags] = {}
        shares = _shares(pay, {g: count[g] * w for g, w in weight.items()})
        undecided, pay = pay <= 0, max(1, pay)
        for g, pricer in self.pricers.items():
            least = max(1, -(-shares[g] // count[g]))
            try:
                members = pricer.dearest(price, self.usable(limit, g), limit, least, depth=depth)
            except UndecidedError:
                members, undecided = None, True
            if members is not None:
                found[g] = members
            held = least if members is None else int(price[members].sum())
            missed += count[g] * held / pay
        if not found:
            missed = 1.0 if undecided else 0.0
        return Answer(found, missed, pay)

    def settle(self, price: Ints, weight: dict[int, float], limit: int, missed: float) -> None:
        """Raise `lower` as far as these prices, which miss refuting `limit` by the factor `missed`,
        go.
        """
        high = int(limit / max(1.0, missed)) + 1
        while high - self.lower > max(1, int(self.bisection.part * (limit - self.lower))):
            middle = (self.lower + high + 1) // 2
            depth = None if missed < self.bisection.close else 1
            if self.ask(price, weight, middle - 1, depth).refuted:
                self.lower = middle
            else:
                high = middle - 1


def disjoint_others(
    ask: Callable[[Ints, Flags], Flags | None],
    price: Ints,
    usable: Flags,
    members: Flags,
    most: int,
) -> Iterator[Flags]:
    """Yield up to `most` dear sets of usable nodes, none in `members` or in a set before.

    Parameters
    ----------
    ask : what finds a dear set, given prices and usable nodes; None ends it.
    """
    for _ in range(most):
        usable = usable & ~members
        found = ask(np.where(usable, price, 0), usable)
        if found is None:
            return
        yield found
        members = found


def _shares(pay: int, weight: dict[int, float]) -> dict[int, int]:
    """Return whole numbers that add up to `pay`, about as the weights do."""
    total, left = sum(weight.values()), pay
    shares: dict[int, int] = {}
    for g, w in weight.items():
        shares[g] = min(left, int(pay * (w / total))) if total > 0 else left
        left -= shares[g]
    if left:
        shares[next(iter(shares))] += left
    return shares


class _Generation:
    """Column generation for one limit."""

    def __init__(self, cover: CoverBound, limit: int) -> None:
        self.cover, self.limit, self.rounds = cover, limit, cover.rounds
        model, self.counts = cover.model, cover.counts
        self.count = sum(self.counts.values())
        times = model.smallest_times if model.smallest_times.any() else np.ones(model.num_nodes)
        self.steady = Prices(times.astype(np.float64), {g: self._speed(g) for g in cover.pricers})
        self.closest = np.inf  # by which factor the steady prices miss a refutation
        self.master = Master(model, tuple(cover.pricers), limit)
        for g, members in cover.sets:
            if cover.pricers[g].load(members) <= limit:
                self.master.add(g, members)

    def _speed(self, g: int) -> float:
        """What a device of a type does in a tick, about, beside the fastest ones."""
        model = self.cover.model
        runs = model.allowed[:, g]
        return float((1 + model.smallest_times[runs].sum()) / (1 + model.total[runs, g].sum()))

    def refutes_at_once(self) -> bool:
        """Whether uniform prices do: they are good ones, and refute much."""
        price = self.steady.whole()
        answer = self.cover.ask(price, self.steady.weight, self.limit, 1)
        self.closest = answer.missed
        if answer.refuted:
            return True
        if answer.sets:
            answer = self._dearest(price, answer)
            self.closest = answer.missed
            self.cover.settle(price, self.steady.weight, self.limit, self.closest)
            self._add(answer.sets)
        self.steady = self._scaled(self.steady)
        return False

    def _scaled(self, prices: Prices) -> Prices:
        """Return prices at which all devices together hold as much as there are of them."""
        total = sum(self.counts[g] * w for g, w in prices.weight.items())
        node = prices.node * (self.count / float(prices.node.sum()))
        return Prices(node, {g: w * (self.count / total) for g, w in prices.weight.items()})

    def refutes(self) -> bool:
        """Whether dual prices do, or their mixtures with the steady ones."""
        share, improved = self.rounds.steady, True  # share of the steady prices
        while True:
            if improved:
                left = self.cover.pricer.deadline - time.perf_counter()
                value, node, weight = self.master.solve(left)
                prices, share = Prices(node, weight), self.rounds.steady
                if value <= self.count * (1 + self.rounds.tolerance):
                    return False
            mixed = self.steady.mixed(share, prices)
            price = mixed.whole()
            answer = self.cover.ask(price, mixed.weight, self.limit, None if share == 0.0 else 1)
            if answer.refuted:
                return True
            improved = bool(answer.sets) and self._learn(price, answer, mixed, prices)
            if not improved:
                if share == 0.0:
                    return False  # arithmetic in floats, or coarse buckets, have no better prices
                share = self.rounds.less_steady(share)

    def _learn(self, price: Ints, answer: Answer, mixed: Prices, prices: Prices) -> bool:
        """Add the sets that answered prices, and others of other nodes; return whether the linear
        program, whose prices are `prices`, changes by it.
        """
        if answer.missed < min(self.closest, self.cover.bisection.near):
            answer = self._dearest(price, answer)
        new = self._add(answer.sets)
        improved = any(
            float(prices.node[answer.sets[g]].sum()) > prices.weight[g] + self.rounds.tolerance
            for g in new
        )
        if answer.missed < self.closest:
            self.closest = answer.missed
            held = answer.missed * answer.pay / float(price.sum())
            self.steady = mixed.divided(held * float(mixed.node.sum()) / self.count)
            self.cover.settle(price, mixed.weight, self.limit, answer.missed)
        if improved:
            self._add_disjoint(price, answer)
        return improved

    def _dearest(self, price: Ints, answer: Answer) -> Answer:
        """Return the dearest sets, or about, and how dear they are: prices count as close by what
        the dearest sets say.
        """
        found, missed = dict(answer.sets), answer.missed
        for g, members in answer.sets.items():
            usable, dearest = self.cover.usable(self.limit, g), self.cover.pricers[g].dearest
            ask = partial(dearest, price, usable, self.limit, depth=1)
            with suppress(UndecidedError):
                while (better := ask(int(price[found[g]].sum()) + 1)) is not None:
                    found[g] = better
            more = int(price[found[g]].sum()) - int(price[members].sum())
            missed += self.counts[g] * more / answer.pay
        return answer._replace(sets=found, missed=missed)

    def _add_disjoint(self, price: Ints, answer: Answer) -> None:
        """Add dear sets of other nodes than the last ones: a linear program over few sets has wild
        prices.
        """
        for g, members in answer.sets.items():
            usable, dearest = self.cover.usable(self.limit, g), self.cover.pricers[g].dearest
            least = int(self.rounds.dear * int(price[members].sum()))
            ask = partial(dearest, limit=self.limit, least=least, depth=0)
            with suppress(UndecidedError):
                for other in disjoint_others(ask, price, usable, members, self.rounds.disjoint):
                    self._add({g: other})

    def _add(self, sets: dict[int, Flags]) -> list[int]:
        """Add sets; return the types whose set was not known."""
        new = [g for g, members in sets.items() if self.master.add(g, members)]
        self.cover.sets += [(g, sets[g]) for g in new]
        return new
