"""The prices of nodes that say most about one limit on the period: column generation to the end,
with exact dearest sets.

The linear program is that of `placeopt.period.bounds.covering`. Far from the end sets come from its
coarse buckets, one at a time with others of other nodes, near the end from tables that know all
nearly dearest sets (`placeopt.period.bounds.set_tables`): many at a time, and with a price that
none exceeds.

For integer prices p let W be such a price, K what the other devices hold at most, P = sum_v p_v and
n the number of devices. A placement within the limit has sets S_1 ... S_n and a rest R with

    sum_i (W - p(S_i)) + (K - p(R)) = n W + K - P,

its slack: no term on the left is negative, so none exceeds the slack, and a negative slack refutes
the limit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.period.bounds.covering import Master, knapsack
from placeopt.period.bounds.set_prices import PRICES, OutOfTimeError

if TYPE_CHECKING:
    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.period.bounds.covering import CoverBound
    from placeopt.period.bounds.set_tables import SetTables


_STEADY, _CLOSE_STEADY, _LEAST_STEADY = 0.8, 0.5, 0.1  # share of the steady prices in a mixture
_TOGETHER, _LISTED = 100, 4000  # sets added in a round, of so many listed
_DISJOINT, _DEAR = 5, 0.5
_NEAR, _NEAREST = 2e-3, 1e-6  # how near the dearest listed sets are, relative to it
_DONE, _DONE_SLACK = (
    2e-7,
    0.02,
)  # differences of values that end it, per device, and relative to the slack
_COARSE_SHARE = 0.7  # of the time, at most, for coarse sets: they prove nothing
_TOLERANCE = 1e-9


class _Phase(NamedTuple):
    """Rounds with coarse sets."""

    bits: int  # buckets, as a power of two
    close: float  # factor between the program's value and what the sets say below which they end


_PHASES = (_Phase(8, 1.004), _Phase(10, 1.002), _Phase(12, 1.0005))
"""Before tables are made; the first has the coarsest buckets."""


class BestPrices(NamedTuple):
    """What prices say of a limit."""

    limit: int  # ticks
    price: Ints  # (N,)
    most: int  # price that no set within the limit exceeds
    # that the sets of a placement within the limit share; negative: there is no such placement
    slack: int
    value: float  # of the linear program, in devices


class PriceSearch:
    """Column generation for limits of one model; sets and prices are kept between them."""

    def __init__(self, cover: CoverBound, tables: SetTables) -> None:
        self.cover, self.tables = cover, tables
        self._sets: list[tuple[int, Flags]] = []  # (load, members)
        self._known = set[bytes]()
        times = cover.model.smallest_times
        self._steady = times / max(1.0, float(times.sum())) * len(cover.model.types[cover.g])
        for members in cover.sets:
            self.add(members)

    def add(self, members: Flags) -> None:
        """Add a set to those known."""
        if members.tobytes() not in self._known:
            self._known.add(members.tobytes())
            self._sets.append((self.cover.pricer.load(members), members))

    def usable(self, limit: int) -> Flags:
        """Which nodes a device may hold within `limit`."""
        model, g = self.cover.model, self.cover.g
        found: Flags = model.allowed[:, g] & (model.total[:, g] <= limit)
        return found

    def best(self, limit: int, deadline: float) -> BestPrices:
        """Return the best prices for `limit`, or the first that refute it; at the deadline the best
        so far.

        Raises
        ------
        UndecidedError
            If there are too many labels.
        OutOfTimeError
            At the deadline, if there are none yet.
        """
        self.cover.pricer.deadline = self.tables.deadline = deadline
        generation = _Generation(self, limit, self._steady, deadline)
        try:
            return generation.run()
        except OutOfTimeError:
            if generation.proved is None:
                raise
            return generation.proved
        finally:
            self._steady = generation.steady

    def at(self, prices: BestPrices, limit: int, deadline: float) -> BestPrices:
        """Return what the same prices say of another limit; if they refute it, `most` and slack are
        no better than needed.

        Raises
        ------
        UndecidedError
            If there are too many labels.
        OutOfTimeError
            At the deadline.
        """
        self.tables.deadline = deadline
        count, price, pay = (
            len(self.cover.model.types[self.cover.g]),
            prices.price,
            self.pay(prices.price, limit),
        )
        least = max(1, -(-pay // count))
        self.tables.prepare(price, self.usable(limit), limit, least, near=_NEAREST, dear=least)
        most = self.tables.dearest()
        return prices._replace(limit=limit, most=most, slack=count * most - pay)

    def pay(self, price: Ints, limit: int) -> int:
        """Price that the devices of the type examined have to hold together within `limit`."""
        model = self.cover.model
        return int(price.sum()) - sum(
            knapsack(model, h, price, limit) for h in range(model.num_types) if h != self.cover.g
        )

    def known(self, limit: int) -> list[Flags]:
        """Sets within `limit` that are known."""
        return [members for load, members in self._sets if load <= limit]


class _Generation:
    """Column generation for one limit."""

    def __init__(self, search: PriceSearch, limit: int, steady: Floats, deadline: float) -> None:
        self.search, self.limit, self.deadline = search, limit, deadline
        self.model, self.count = search.cover.model, len(search.cover.model.types[search.cover.g])
        self.usable, self.steady, self.share = search.usable(limit), steady, _STEADY
        self.master = Master(self.model, search.cover.g, limit)
        for members in search.known(limit):
            self.master.add(members)
        self.closest = (
            np.inf
        )  # by which factor coarse sets keep the steady prices from the program's value
        self.proved: BestPrices | None = None
        self.near = _NEAR  # how near the dearest set others are listed, relative to its price

    def run(self) -> BestPrices:
        phase, coarse_end = (
            0,
            self.deadline - (1 - _COARSE_SHARE) * (self.deadline - time.perf_counter()),
        )
        while True:
            value, prices = self.master.solve(self.deadline - time.perf_counter())
            mixed = self.share * self.steady + (1 - self.share) * prices
            price = np.floor(mixed * (PRICES / mixed.sum())).astype(np.int64)
            if phase < len(_PHASES) and time.perf_counter() < coarse_end:
                if self._coarse(value, prices, price, mixed, _PHASES[phase]):
                    phase, self.closest = phase + 1, np.inf
                continue
            if self._exact(value, prices, price, mixed) and self.proved is not None:
                return self.proved._replace(value=value)

    def _coarse(
        self,
        value: float,
        prices: Floats,
        price: Ints,
        mixed: Floats,
        phase: _Phase,
    ) -> bool:
        """Add a dear set and others of other nodes; return whether the phase ends."""
        pricer, pay = self.search.cover.pricer, self.search.pay(price, self.limit)
        found = pricer.dear(
            price, self.usable, self.limit, max(1, int(_DEAR * pay / self.count)), phase.bits
        )
        if found is None:
            return True
        worth = int(price[found].sum())
        missed = value * worth / max(1, pay)
        if missed < self.closest:
            self.closest, self.steady = missed, mixed
        new = self._add(found)
        usable, other = self.usable, found
        for _ in range(_DISJOINT):
            usable = usable & ~other
            more = pricer.dear(
                np.where(usable, price, 0),
                usable,
                self.limit,
                max(1, int(_DEAR * worth)),
                _PHASES[0].bits,
            )
            if more is None:
                break
            other = more
            self._add(other)
        if self.closest < phase.close:
            return True
        return self._adapt(new and float(prices[found].sum()) > 1 + _TOLERANCE, _STEADY)

    def _exact(
        self,
        value: float,
        prices: Floats,
        price: Ints,
        mixed: Floats,
    ) -> bool:
        """Add many dear sets; return whether the prices are the best."""
        tables, pay = self.search.tables, self.search.pay(price, self.limit)
        if self.proved is not None:
            self.near = min(
                self.near, max(_NEAREST, value * self.proved.most / max(1, self._paid()) - 1)
            )
        near = self.near
        least = max(1, pay // self.count)  # prices of a refutation have no dearer set
        found = self.search.cover.pricer.dear(
            price, self.usable, self.limit, least, _PHASES[-1].bits
        )
        least = max(least, 0 if found is None else int(price[found].sum()))
        tables.prepare(
            price, self.usable, self.limit, max(1, int(least * (1 - near))), near=near, dear=least
        )
        most = tables.dearest()
        while (sets := tables.near(int(most * (1 - near)), _LISTED)) is None and near > _NEAREST:
            near /= 4
        self.near = near if sets is None or 2 * len(sets.price) > _LISTED else self.near
        listed = (tables.some(int(most * (1 - near)), _LISTED) if sets is None else sets).members(
            len(price)
        )
        slack = self.count * most - pay
        if self.proved is None or pay * self.proved.most > self._paid() * most:
            self.proved, self.steady = BestPrices(self.limit, price, most, slack, value), mixed
        if slack < 0 or most == 0:  # refuted, or no set is worth anything: what costs no time
            return True
        worth = listed.astype(np.float64) @ prices
        order = np.argsort(-worth, kind="stable")[:_TOGETHER]
        new = sum(self._add(listed[j]) for j in order.tolist() if worth[j] > 1 + _TOLERANCE)
        gap = value - self._paid() / self.proved.most
        if gap <= max(_DONE * self.count, _DONE_SLACK * self.proved.slack / self.proved.most):
            return True
        return self._adapt(new > 0, _CLOSE_STEADY)

    def _paid(self) -> int:
        assert self.proved is not None
        return self.count * self.proved.most - self.proved.slack

    def _adapt(self, improved: bool, share: float) -> bool:
        """Choose the share of steady prices for the next round; return whether it was none already,
        in vain.
        """
        if improved:
            self.share = share
        elif self.share == 0.0:
            self.share = share
            return True
        else:
            self.share = self.share / 2 if self.share >= _LEAST_STEADY else 0.0
        return False

    def _add(self, members: Flags) -> bool:
        if not self.master.add(members):
            return False
        self.search.add(members)
        return True
