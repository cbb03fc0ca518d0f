"""Close the period's gap: list all sets that a placement within a limit may use, and search for
disjoint ones that hold everything.

The best prices for a limit leave a slack that the sets of a placement within it share (see below).
So every set is within the slack of the dearest; near the linear program's own threshold these are
few, and all of them are listed. Either disjoint ones among them are a placement within the limit,
or there is none. Where they are too many the nearest to the dearest alone may still be a placement,
seldom a bad one: the value falls, and with it the next slack.

Sets that exceed a device's memory are left out of the list. At most one device may be of another
type, and it pays no transfers: what is in no set is its share. Where contiguity asks
for convex sets, and the graph's paths have others too (`set_prices`), answers are judged by it: one
that breaks it is none, and the search goes on.

The best prices are those that say most about the limit, by column generation to the end, with exact
dearest sets. The linear program is that of `placeopt.period.bounds.covering`. Far from the end sets
come from its coarse buckets, one at a time with others of other nodes, near the end from tables
that know all nearly dearest sets (`placeopt.period.bounds.set_tables`): many at a time, and with a
price that none exceeds.

For integer prices p let W be such a price, K what the other devices hold at most, P = sum_v p_v and
n the number of devices. A placement within the limit has sets S_1 ... S_n and a rest R with

    sum_i (W - p(S_i)) + (K - p(R)) = n W + K - P,

its slack: no term on the left is negative, so none exceeds the slack, and a negative slack refutes
the limit.

Whether few disjoint sets out of the list, and the rest, hold every node, a depth-first search finds
out. Every set has an excess (by how much it is cheaper than the dearest) and the excesses of those
chosen share a budget. The node that the fewest sets of those left hold is decided next: one of
these sets is chosen, or the node joins the rest, which has room for some ticks and whose nodes cost
of the budget, too. Sets that meet a chosen one, hold a node of the rest, or exceed what is left of
the budget are dropped from the list of the next level. Nothing else is: where the search ends
without an answer there is none.

References
----------
D. E. Knuth: "Dancing links", 2000 (branch on the element that the fewest sets hold).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Bits, Flags, Floats, Ints, stable_order, together
from placeopt.model.compiled import inlined, uncounted_entry
from placeopt.model.ideals import contains
from placeopt.model.objective import INFEASIBLE
from placeopt.period.bounds.covering import (
    CoverBound,
    Master,
    Rounds,
    disjoint_others,
    ratio,
    whole_prices,
)
from placeopt.period.bounds.set_prices import OutOfTimeError, UndecidedError
from placeopt.period.bounds.set_tables import NearSets, SetTables
from placeopt.period.evaluate import period_batch

_NEVER = 1 << 62

NONE, FOUND, WORKING, FULL = range(4)
"""How the search stopped: for good, at an answer, to look at the clock, or for want of room."""
_WORK = 20_000_000


class Choice(NamedTuple):
    """What may be chosen (S sets by rising excess, N nodes)."""

    bits: Bits  # (S, words) nodes of every set
    excess: Ints  # (S,)
    rest_ticks: Ints  # (N,) of a node in the rest
    rest_cost: Ints  # (N,) of the budget for it


class Levels(NamedTuple):
    """The search's levels (F of them) and the lists of sets left at each, one behind the other."""

    sets: Ints  # (room,)
    first: Ints  # (F,) the list of a level
    end: Ints  # (F,)
    node: Ints  # (F,) that is decided, -1: not chosen yet
    at: Ints  # (F,) next set in the list, -1: the node joins the rest first
    # (F,) the set that led to the next level, -1: the node joined the rest
    taken: Ints
    budget: Ints  # (F,)
    room: Ints  # (F,) ticks left for the rest
    devices: Ints  # (F,) left
    held: Bits  # (F, words) nodes that are decided
    ways: Ints  # (N,) scratch


class Phase(NamedTuple):
    """Rounds with coarse sets."""

    bits: int  # buckets, as a power of two
    close: float  # factor between the program's value and what the sets say below which they end


@dataclass(frozen=True)
class Listing:
    """Which limits are tried, and which sets are listed for one.

    Attributes
    ----------
    price_share : of the time that is left, for prices of one limit.
    settled : limits that the same prices are tried for.
    close, wider : how far above the threshold of prices the value is tried, relative to it and to
    what was listed.
    shares : of the slack, tried in turn as long as few enough sets are listed; the last is all.
    most_sets : that are listed.
    rows : sets whose memory is added up at once.
    """

    price_share: float = 0.6
    settled: int = 3
    close: float = 1.2e-4
    wider: float = 1.5
    shares: tuple[float, ...] = (0.02, 0.05, 0.12, 0.3, 0.6, 1.0)
    most_sets: int = 300_000
    rows: int = 20_000


def can_close(cover: CoverBound) -> bool:
    """Whether the problem is of the kind of the module text."""
    model = cover.model
    others = [h for h in range(model.num_types) if h != cover.g]
    return (
        cover.exact
        and not model.two_pass
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

    listing = Listing()

    def __init__(
        self, cover: CoverBound, value: Callable[[], int], offer: Callable[[Ints], None]
    ) -> None:
        self._cover, self._value, self._offer = cover, value, offer
        self._model = cover.model
        self._tables = SetTables(cover.pricer.graph, cover.pricer.deadline)
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
        for _, members in self._cover.sets:
            self._search.add(members)
        undecided, limit = _NEVER, self._limit  # undecided: the smallest limit with too many sets
        if not lower <= limit < self._upper():
            limit = (lower + self._upper()) // 2
        try:
            while lower <= limit < min(self._upper(), undecided):
                now = time.perf_counter()
                end = now + self.listing.price_share * (deadline - now)
                prices = self._search.best(limit, end)
                if prices.slack < 0:
                    lower = limit + 1
                else:
                    lower = self._settle(lower, prices, deadline)
                    attained = self._attain(prices, deadline)
                    lower = max(lower, limit + 1) if attained is False else lower
                    undecided = min(undecided, limit) if attained is None else undecided
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
        for _ in range(self.listing.settled):
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
        top, listing = self._upper() - 1, self.listing
        threshold = max(
            lower, int(prices.limit * (1 - self._share(prices)))
        )  # about where prices refute
        near = max(listing.close * top, listing.wider * self._listed)
        if top < undecided and top - threshold <= near:
            return top
        top = min(top, undecided)
        return (threshold + top) // 2 if threshold < top else (lower + top) // 2

    def _share(self, prices: BestPrices) -> float:
        """The slack's share of what all devices hold: about that of the limit that prices do not
        need.
        """
        return prices.slack / max(1, prices.most * self._search.count)

    def _attain(self, prices: BestPrices, deadline: float) -> bool | None:
        """Whether there is a placement within the limit; None where that stays open."""
        model, g = self._model, self._cover.g
        self._tables.deadline = deadline
        sets, whole = self._list(prices)
        resident = model.resident
        members = sets.members(model.num_nodes)
        rows = self.listing.rows
        parts = [members[at : at + rows] @ resident for at in range(0, len(members), rows)]
        fits = np.concatenate([np.zeros(0, np.int64), *parts]) <= int(model.capacity[g])
        order = stable_order(np.where(fits, -sets.price, 1))[: int(fits.sum())]
        ticks, cost, room = self._rest(prices)
        choice = Choice(
            np.ascontiguousarray(sets.bits[order]), prices.most - sets.price[order], ticks, cost
        )
        for chosen in disjoint_sets(choice, self._search.count, prices.slack, room, deadline):
            if self._accept(members[order[chosen]], prices.limit):
                return True
        return False if whole else None

    def _list(self, prices: BestPrices) -> tuple[NearSets, bool]:
        """Return the sets that a placement may use, and whether these are all; else as many of the
        nearest.
        """
        sets, most = None, self.listing.most_sets
        for share in self.listing.shares:
            more = self._nearest(prices, share)
            if more is None:
                return self._tables.some(prices.most, most) if sets is None else sets, False
            sets = more
        assert sets is not None  # the last share is the whole slack
        self._listed = max(self._listed, int(prices.limit * self._share(prices)))
        return sets, True

    def _nearest(self, prices: BestPrices, share: float) -> NearSets | None:
        """Return the sets within a share of the slack of the dearest, None if they are too many."""
        usable = self._cover.usable(prices.limit, self._cover.g)
        least = max(0, prices.most - int(share * prices.slack))
        try:
            self._tables.prepare(prices.price, usable, prices.limit, least)
        except UndecidedError:
            return None
        return self._tables.near(least, self.listing.most_sets)

    def _rest(self, prices: BestPrices) -> tuple[Ints, Ints, int]:
        """Return the ticks of every node on the device of the other type, what it costs of the
        slack, and the ticks it has.
        """
        model = self._model
        for h in range(model.num_types):
            if h != self._cover.g:
                top, bottom = ratio(model, h, prices.price, prices.limit)
                pairs = together(prices.price, model.total[:, h])
                cost = [min(_NEVER, max(0, top * t - p * bottom) // bottom) for p, t in pairs]
                ticks = np.where(model.allowed[:, h], model.total[:, h], _NEVER)
                return ticks, np.array(cost, np.int64), prices.limit
        return np.full(model.num_nodes, _NEVER), np.zeros(model.num_nodes, np.int64), -1

    def _accept(self, members: Flags, limit: int) -> bool:
        """Offer the placement with these sets; False if it is none, or exceeds the limit."""
        model, g = self._model, self._cover.g
        others = [d for h, devices in enumerate(model.types) if h != g for d in devices]
        device = np.full(model.num_nodes, others[0] if others else model.types[g][0], np.int64)
        for d, held in zip(model.types[g], members, strict=False):
            device[held] = d
        value = int(period_batch(model.problem, model.expand(device)[None, :])[0])
        if value == INFEASIBLE:
            return False
        self._best = min(self._best, value)
        self._offer(device)
        return value <= limit


@dataclass(frozen=True)
class ExactRounds(Rounds):
    """Rounds with coarse sets, then with exact ones.

    Attributes
    ----------
    phases : before tables are made; the first has the coarsest buckets.
    coarse_share : of the time, at most, for coarse sets: they prove nothing.
    close_steady : `steady` with exact sets.
    together, listed : sets added in a round, of so many listed.
    near, nearest : how near the dearest listed sets are, relative to it, at first and at least.
    done, done_slack : differences of values that end it, per device, and relative to the slack.
    """

    disjoint: int = 5
    tolerance: float = 1e-9
    phases: tuple[Phase, ...] = (Phase(8, 1.004), Phase(10, 1.002), Phase(12, 1.0005))
    coarse_share: float = 0.7
    close_steady: float = 0.5
    together: int = 100
    listed: int = 4000
    near: float = 2e-3
    nearest: float = 1e-6
    done: float = 2e-7
    done_slack: float = 0.02


class BestPrices(NamedTuple):
    """What prices say of a limit."""

    limit: int  # ticks
    price: Ints  # (N,)
    most: int  # price that no set within the limit exceeds
    # that the sets of a placement within the limit share; negative: there is no such placement
    slack: int


class PriceSearch:
    """Column generation for limits of one model; sets and prices are kept between them.

    Attributes
    ----------
    count : devices of the most numerous type, whose sets are examined.
    """

    rounds = ExactRounds()

    def __init__(self, cover: CoverBound, tables: SetTables) -> None:
        self.cover, self.tables = cover, tables
        self._sets: dict[bytes, tuple[int, Flags]] = {}  # (load, members)
        self.count = cover.counts[cover.g]
        times = cover.model.smallest_times
        self._steady = times / max(1.0, float(times.sum())) * self.count
        for _, members in cover.sets:
            self.add(members)

    def add(self, members: Flags) -> None:
        """Add a set to those known."""
        key = members.tobytes()
        if key not in self._sets:
            self._sets[key] = self.cover.pricer.load(members), members

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
        price = prices.price
        pay = self.cover.pay(price, limit)
        least = max(1, -(-pay // self.count))
        usable = self.cover.usable(limit, self.cover.g)
        self.tables.prepare(price, usable, limit, least, near=self.rounds.nearest, dear=least)
        most = self.tables.dearest()
        return prices._replace(limit=limit, most=most, slack=self.count * most - pay)

    def known(self, limit: int) -> list[Flags]:
        """Sets within `limit` that are known."""
        return [members for load, members in self._sets.values() if load <= limit]


class _Generation:
    """Column generation for one limit."""

    def __init__(self, search: PriceSearch, limit: int, steady: Floats, deadline: float) -> None:
        self.search, self.limit, self.deadline = search, limit, deadline
        self.count, self.rounds, cover = search.count, search.rounds, search.cover
        self.usable, self.steady = cover.usable(limit, cover.g), steady
        self.share = self.rounds.steady
        self.master = Master(cover.model, (cover.g,), limit)
        for members in search.known(limit):
            self.master.add(cover.g, members)
        # by which factor coarse sets keep the steady prices from the program's value
        self.closest = np.inf
        self.proved: BestPrices | None = None
        # how near the dearest set others are listed, relative to its price
        self.near = self.rounds.near

    def run(self) -> BestPrices:
        phase, phases, exact_share = 0, self.rounds.phases, 1 - self.rounds.coarse_share
        coarse_end = self.deadline - exact_share * (self.deadline - time.perf_counter())
        while True:
            value, prices, _ = self.master.solve(self.deadline - time.perf_counter())
            mixed = self.share * self.steady + (1 - self.share) * prices
            price = whole_prices(mixed)
            if phase < len(phases) and time.perf_counter() < coarse_end:
                if self._coarse(value, prices, price, mixed, phases[phase]):
                    phase, self.closest = phase + 1, np.inf
                continue
            if self._exact(value, prices, price, mixed) and self.proved is not None:
                return self.proved

    def _coarse(
        self, value: float, prices: Floats, price: Ints, mixed: Floats, phase: Phase
    ) -> bool:
        """Add a dear set and others of other nodes; return whether the phase ends."""
        pricer, pay = self.search.cover.pricer, self.search.cover.pay(price, self.limit)
        rounds = self.rounds
        found = pricer.dear(
            price, self.usable, self.limit, max(1, int(rounds.dear * pay / self.count)), phase.bits
        )
        if found is None:
            return True
        worth = int(price[found].sum())
        missed = value * worth / max(1, pay)
        if missed < self.closest:
            self.closest, self.steady = missed, mixed
        new = self._add(found)
        least, bits = max(1, int(rounds.dear * worth)), rounds.phases[0].bits
        ask = partial(pricer.dear, limit=self.limit, least=least, bits=bits)
        for other in disjoint_others(ask, price, self.usable, found, rounds.disjoint):
            self._add(other)
        if self.closest < phase.close:
            return True
        return self._adapt(new and float(prices[found].sum()) > 1 + rounds.tolerance, rounds.steady)

    def _exact(self, value: float, prices: Floats, price: Ints, mixed: Floats) -> bool:
        """Add many dear sets; return whether the prices are the best."""
        pay, rounds = self.search.cover.pay(price, self.limit), self.rounds
        if self.proved is not None:
            missed = value * self.proved.most / max(1, self._paid()) - 1
            self.near = min(self.near, max(rounds.nearest, missed))
        most, listed = self._dearest(price, pay)
        slack = self.count * most - pay
        if self.proved is None or pay * self.proved.most > self._paid() * most:
            self.proved, self.steady = BestPrices(self.limit, price, most, slack), mixed
        if slack < 0 or most == 0:  # refuted, or no set is worth anything: what costs no time
            return True
        worth = listed.astype(np.float64) @ prices
        order = stable_order(-worth)[: rounds.together]
        new = sum(self._add(listed[j]) for j in order.tolist() if worth[j] > 1 + rounds.tolerance)
        gap = value - self._paid() / self.proved.most
        if gap <= max(
            rounds.done * self.count, rounds.done_slack * self.proved.slack / self.proved.most
        ):
            return True
        return self._adapt(new > 0, rounds.close_steady)

    def _dearest(self, price: Ints, pay: int) -> tuple[int, Flags]:
        """Return a price that no set exceeds, and sets that are nearly as dear."""
        tables, near, rounds = self.search.tables, self.near, self.rounds
        least = max(1, pay // self.count)  # prices of a refutation have no dearer set
        found = self.search.cover.pricer.dear(
            price, self.usable, self.limit, least, rounds.phases[-1].bits
        )
        least = max(least, 0 if found is None else int(price[found].sum()))
        tables.prepare(
            price, self.usable, self.limit, max(1, int(least * (1 - near))), near=near, dear=least
        )
        most = tables.dearest()
        listed, nearest = rounds.listed, rounds.nearest
        while (sets := tables.near(int(most * (1 - near)), listed)) is None and near > nearest:
            near /= 4
        self.near = near if sets is None or 2 * len(sets.price) > listed else self.near
        if sets is None:
            sets = tables.some(int(most * (1 - near)), listed)
        return most, sets.members(len(price))

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
            self.share = self.rounds.less_steady(self.share)
        return False

    def _add(self, members: Flags) -> bool:
        if not self.master.add(self.search.cover.g, members):
            return False
        self.search.add(members)
        return True


@inlined
def _count(choice, levels, d):
    """Count the sets of a level's list by node."""
    nodes = len(levels.ways)
    for v in range(nodes):
        levels.ways[v] = 0
    for j in range(levels.first[d], levels.end[d]):
        for k in range(choice.bits.shape[1]):
            word, v = choice.bits[levels.sets[j], k], 64 * k
            while word != 0:
                while word & np.uint64(255) == 0:
                    word >>= np.uint64(8)
                    v += 8
                levels.ways[v] += np.int64(word & np.uint64(1))
                word >>= np.uint64(1)
                v += 1


@inlined
def _joins_rest(choice, levels, d, v):
    """Whether a node may join the rest."""
    return choice.rest_ticks[v] <= levels.room[d] and choice.rest_cost[v] <= levels.budget[d]


@inlined
def _choose_node(choice, levels, d):
    """Return the open node with the fewest ways, -1 if all are decided, -2 if one has none."""
    best, fewest = -1, 0
    for v in range(len(levels.ways)):
        if contains(levels.held, d, v):
            continue
        ways = levels.ways[v] if levels.devices[d] > 0 else 0
        if _joins_rest(choice, levels, d, v):
            ways += 1
        if ways == 0:
            return -2
        if best < 0 or ways < fewest:
            best, fewest = v, ways
    return best


@inlined
def _push(choice, levels, d, taken, budget):
    """Make the next level's list: sets that go with the one taken, or (-1) without the node."""
    v, end, meets = levels.node[d], levels.end[d], False
    levels.first[d + 1], levels.node[d + 1], levels.at[d + 1] = end, -1, -1
    levels.budget[d + 1] = budget
    levels.room[d + 1], levels.devices[d + 1] = levels.room[d], levels.devices[d]
    for k in range(levels.held.shape[1]):
        levels.held[d + 1, k] = levels.held[d, k]
    if taken < 0:
        levels.room[d + 1] -= choice.rest_ticks[v]
        levels.held[d + 1, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    else:
        levels.devices[d + 1] -= 1
        for k in range(levels.held.shape[1]):
            levels.held[d + 1, k] |= choice.bits[taken, k]
    for j in range(levels.first[d], levels.end[d]):
        other = levels.sets[j]
        if choice.excess[other] > budget or levels.devices[d + 1] == 0:
            break
        if taken < 0:
            meets = contains(choice.bits, other, v)
        else:
            meets = False
            for k in range(choice.bits.shape[1]):
                meets = meets or choice.bits[taken, k] & choice.bits[other, k] != 0
        if not meets:
            levels.sets[end] = other
            end += 1
    levels.end[d + 1] = end
    levels.taken[d] = taken


@uncounted_entry
def search_disjoint(choice, levels, d, work):
    """Go on at level `d`; return (how it stopped, level)."""
    while d >= 0:
        if levels.node[d] < 0:
            _count(choice, levels, d)
            work -= 16 * (levels.end[d] - levels.first[d])
            v = _choose_node(choice, levels, d)
            if v == -1:
                return FOUND, d
            if v == -2:
                d -= 1
                continue
            levels.node[d], levels.at[d] = v, -1
        if levels.end[d] + levels.end[d] - levels.first[d] > len(levels.sets):
            return FULL, d
        if work <= 0:
            return WORKING, d
        v, moved = levels.node[d], False
        if levels.at[d] < 0:
            levels.at[d] = levels.first[d]
            if _joins_rest(choice, levels, d, v):
                _push(choice, levels, d, -1, levels.budget[d] - choice.rest_cost[v])
                moved = True
        while not moved and levels.at[d] < levels.end[d] and levels.devices[d] > 0:
            taken = levels.sets[levels.at[d]]
            levels.at[d] += 1
            work -= 1
            if contains(choice.bits, taken, v) and choice.excess[taken] <= levels.budget[d]:
                _push(choice, levels, d, taken, levels.budget[d] - choice.excess[taken])
                moved = True
        work -= levels.end[d] - levels.first[d]
        d += 1 if moved else -1
    return NONE, d


def disjoint_sets(
    choice: Choice, devices: int, budget: int, room: int, deadline: float
) -> Iterator[Ints]:
    """Yield the sets (rows of `choice`) of every answer; nodes in none of them are the rest's.

    Parameters
    ----------
    devices : most sets of an answer. budget : that their excesses and the rest's nodes share.
    room : ticks for the rest, -1 if there is no device for it.

    Raises
    ------
    OutOfTimeError
        At the deadline.
    """
    nodes, size = len(choice.rest_ticks), len(choice.excess)
    depth = nodes + 2
    first, end, node, at, taken, left, ticks, free = np.zeros((8, depth), np.int64)
    sets, ways = np.zeros(4 * size + 1024, np.int64), np.zeros(nodes, np.int64)
    held = np.zeros((depth, choice.bits.shape[1]), np.uint64)
    levels = Levels(sets, first, end, node, at, taken, left, ticks, free, held, ways)
    levels.sets[:size] = np.arange(size)
    levels.end[0], levels.node[0], levels.at[0] = size, -1, -1
    levels.budget[0], levels.room[0], levels.devices[0] = budget, room, devices
    stopped, d = WORKING, 0
    while stopped != NONE and d >= 0:
        stopped, d = search_disjoint(choice, levels, np.int64(d), np.int64(_WORK))
        if stopped == FULL:
            levels = levels._replace(sets=np.concatenate([levels.sets, np.zeros_like(levels.sets)]))
        elif stopped == FOUND:
            chosen = levels.taken[:d]
            yield chosen[chosen >= 0].copy()
            d -= 1
        elif stopped == WORKING and time.perf_counter() >= deadline:
            raise OutOfTimeError
