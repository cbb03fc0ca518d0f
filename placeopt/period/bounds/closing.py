"""Close the period's gap: list all sets that a placement within a limit may use, and search for
disjoint ones that hold everything.

The best prices for a limit leave a slack that the sets of a placement within it share
(`placeopt.period.bounds.best_prices`). So every set is within the slack of the dearest; near the
linear program's own threshold these are few, and all of them are listed. Either disjoint ones among
them are a placement within the limit, or there is none. Where they are too many the nearest to the
dearest alone may still be a placement, seldom a bad one: the value falls, and with it the next
slack.

Sets that exceed a device's memory are left out of the list. At most one device may be of another
type, and it pays no transfers: what is in no set is its share.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from placeopt.period.bounds.best_prices import PriceSearch
from placeopt.period.bounds.covering import ratio
from placeopt.period.bounds.disjoint_sets import Choice, disjoint_sets
from placeopt.period.bounds.set_prices import OutOfTimeError, UndecidedError
from placeopt.period.bounds.set_tables import SetTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.arrays import Flags, Ints
    from placeopt.period.bounds.best_prices import BestPrices
    from placeopt.period.bounds.covering import CoverBound
    from placeopt.period.bounds.set_tables import NearSets

_MOST_SETS = 300_000
_SHARES = (
    0.02,
    0.05,
    0.12,
    0.3,
    0.6,
    1.0,
)  # of the slack, tried in turn as long as few enough sets are listed
_PRICE_SHARE = 0.6  # of the time that is left, for prices of one limit
_SETTLE = 3  # limits that the same prices are tried for
_CLOSE, _WIDER = (
    1.2e-4,
    1.5,
)  # how far above the threshold of prices the value is tried, relative to it and to what was listed
_ROWS = 20_000
_NEVER = 1 << 62


def can_close(cover: CoverBound) -> bool:
    """Whether the problem is of the kind of the module text."""
    model = cover.model
    others = [h for h in range(model.num_types) if h != cover.g]
    return (
        not model.two_pass
        and sum(len(model.types[h]) for h in others) <= 1
        and not any(model.weight[:, h].any() for h in others)
    )


class Closing:
    """Raises the bound and finds placements until both meet.

    Parameters
    ----------
    cover : for a problem that `can_close`; its sets are where column generation starts.
    value : asked for the value of the best placement known, ticks.
    offer : called with the device of every node of a placement that is better.

    Attributes
    ----------
    unfinished : whether the last turn ended for want of time, so that another one would go on.
    """

    def __init__(
        self,
        cover: CoverBound,
        value: Callable[[], int],
        offer: Callable[[Ints], None],
    ) -> None:
        self._cover, self._value, self._offer = cover, value, offer
        self._model, self._tables = (
            cover.model,
            SetTables(cover.pricer.graph, cover.pricer.deadline),
        )
        self._search = PriceSearch(cover, self._tables)
        self._best = _NEVER  # the value of what was found
        self._settled = 0  # bound by prices alone
        self._listed = 0  # ticks above the threshold of prices at which all sets were listed
        self._limit = -1  # that the last turn ended at
        self.unfinished = True

    def raise_from(self, lower: int, seconds: float) -> int:
        """Return the best bound (ticks), at least `lower`, that is proved within about
        `seconds`.
        """
        deadline = time.perf_counter() + seconds
        for members in self._cover.sets:
            self._search.add(members)
        undecided, limit = _NEVER, self._limit  # undecided: the smallest limit with too many sets
        if not lower <= limit < self._upper():
            limit = (lower + self._upper()) // 2
        try:
            while lower <= limit < min(self._upper(), undecided):
                now = time.perf_counter()
                prices = self._search.best(limit, now + _PRICE_SHARE * (deadline - now))
                if prices.slack < 0:
                    lower = limit + 1
                else:
                    lower = self._settle(lower, prices, deadline)
                    found, whole = self._attain(prices, deadline)
                    lower = max(lower, limit + 1) if whole and not found else lower
                    undecided = min(undecided, limit) if not whole and not found else undecided
                self._limit = limit = self._next(lower, prices, undecided)
            self.unfinished = False
        except OutOfTimeError:
            self.unfinished = True
        except UndecidedError:
            self.unfinished = False
        return max(lower, self._settled)

    def _settle(self, lower: int, prices: BestPrices, deadline: float) -> int:
        """Raise the bound as far as these prices go."""
        limit, known = int(prices.limit * (1 - self._share(prices))), prices
        for _ in range(_SETTLE):
            if limit < lower:
                break
            known = self._search.at(prices, limit, deadline)
            if known.slack < 0:
                self._settled = lower = limit + 1
                break
            limit = int(limit * (1 - self._share(known))) - 1
        return lower

    def _upper(self) -> int:
        return min(self._value(), self._best)

    def _next(self, lower: int, prices: BestPrices, undecided: int) -> int:
        """Choose the next limit: just below the value where all sets can be listed there, else
        nearer to what prices refute.
        """
        top = self._upper() - 1
        threshold = max(
            lower, int(prices.limit * (1 - self._share(prices)))
        )  # about where prices refute
        if top < undecided and top - threshold <= max(_CLOSE * top, _WIDER * self._listed):
            return top
        top = min(top, undecided)
        return (threshold + top) // 2 if threshold < top else (lower + top) // 2

    def _share(self, prices: BestPrices) -> float:
        """The slack's share of what all devices hold: about that of the limit that prices do not
        need.
        """
        return prices.slack / max(1, prices.most * len(self._model.types[self._cover.g]))

    def _attain(self, prices: BestPrices, deadline: float) -> tuple[bool, bool]:
        """Return whether a placement within the limit was found, and whether there is none
        otherwise.
        """
        model, g = self._model, self._cover.g
        self._tables.deadline = deadline
        sets, whole = self._list(prices)
        resident = model.resident
        members = sets.members(model.num_nodes)
        parts = [members[at : at + _ROWS] @ resident for at in range(0, len(members), _ROWS)]
        fits = np.concatenate([np.zeros(0, np.int64), *parts]) <= int(model.capacity[g])
        order = np.argsort(np.where(fits, -sets.price, 1), kind="stable")[: int(fits.sum())]
        ticks, cost, room = self._rest(prices)
        choice = Choice(
            np.ascontiguousarray(sets.bits[order]), prices.most - sets.price[order], ticks, cost
        )
        for chosen in disjoint_sets(choice, len(model.types[g]), prices.slack, room, deadline):
            if self._accept(members[order[chosen]], prices.limit):
                return True, whole
        return False, whole

    def _list(self, prices: BestPrices) -> tuple[NearSets, bool]:
        """Return the sets that a placement may use, and whether these are all; else as many of the
        nearest.
        """
        sets = None
        for share in _SHARES:
            more = self._nearest(prices, share)
            if more is None:
                return self._tables.some(prices.most, _MOST_SETS) if sets is None else sets, False
            sets = more
        assert sets is not None  # the last share is the whole slack
        self._listed = max(self._listed, int(prices.limit * self._share(prices)))
        return sets, True

    def _nearest(self, prices: BestPrices, share: float) -> NearSets | None:
        """Return the sets within a share of the slack of the dearest, None if they are too many."""
        usable, least = (
            self._search.usable(prices.limit),
            max(0, prices.most - int(share * prices.slack)),
        )
        try:
            self._tables.prepare(prices.price, usable, prices.limit, least)
        except UndecidedError:
            return None
        return self._tables.near(least, _MOST_SETS)

    def _rest(self, prices: BestPrices) -> tuple[Ints, Ints, int]:
        """Return the ticks of every node on the device of the other type, what it costs of the
        slack, and the ticks it has.
        """
        model, count = self._model, self._model.num_nodes
        for h in range(model.num_types):
            if h != self._cover.g:
                top, bottom = ratio(model, h, prices.price, prices.limit)
                pairs = zip(prices.price.tolist(), model.total[:, h].tolist(), strict=True)
                cost = [min(_NEVER, max(0, top * t - p * bottom) // bottom) for p, t in pairs]
                ticks = np.where(model.allowed[:, h], model.total[:, h], _NEVER)
                return ticks, np.array(cost, np.int64), prices.limit
        return np.full(count, _NEVER), np.zeros(count, np.int64), -1

    def _accept(self, members: Flags, limit: int) -> bool:
        """Offer the placement with these sets; False if it does not fit."""
        model, g = self._model, self._cover.g
        others = [d for h, devices in enumerate(model.types) if h != g for d in devices]
        device = np.full(model.num_nodes, others[0] if others else model.types[g][0], np.int64)
        for d, held in zip(model.types[g], members, strict=False):
            device[held] = d
        for d in range(model.problem.num_devices):
            if int(model.resident[device == d].sum()) > int(model.capacity[model.type_of[d]]):
                return False
        loads = [self._cover.pricer.load(held) for held in members]
        loads += [
            int(model.total[device == d, h].sum()) for d in others for h in (int(model.type_of[d]),)
        ]
        self._best = min(self._best, max(loads))
        self._offer(device)
        return max(loads) <= limit
