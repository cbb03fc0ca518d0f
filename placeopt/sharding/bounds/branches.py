"""Branch and bound on the usage of one node at a time.

Where the limit binds, the bound by prices mixes choices of much and of little usage, and no price
closes that gap. So what a known choice of cost U leaves is parted: in one part a node uses little,
in the other much, and each is reduced and bounded by itself (`bounding`): what a node that uses
much leaves to others often decides many of them. Every choice costs at least the smaller of U and
the least bound of the parts that are open; the part of the least bound is parted next.

The node is one whose usage the chains of the bound disagree on, where usage is dear: its spread of
usage at the prices, times how far the average usage is from both ends.

References
----------
A. H. Land, A. G. Doig, "An automatic method of solving discrete programming problems", Econometrica
28, 1960. M. L. Fisher, "The Lagrangian relaxation method for solving integer programming problems",
Management Science 27, 1981.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import row_at
from placeopt.sharding.bounds.exact_pass import prices_of_nodes, survivors
from placeopt.sharding.bounds.lagrangian import Dual, State
from placeopt.sharding.bounds.message_passing import chain_choices
from placeopt.sharding.compact import Condensed, cost_of
from placeopt.sharding.decode import decode
from placeopt.sharding.reduction import composed, what_survives

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.arrays import Flags, Ints
    from placeopt.sharding.bounds.bounding import Bounding

STEPS = 60
"""Most steps of the bound of a part, which begins at the prices and messages of what it was taken
from. Of 15, 30, 60 and 120 the bound after 3 s on four problems of the families of results/sharding
that choices are made on is best with 60."""

SURE = 0.02
"""Part of the spread that counts where all chains agree: of nodes alike that of dear usage is
parted."""

MOST_NUMBERS = 10**8
"""Most numbers in all open parts together, 0.8 GB: then no more are made."""


class Part(NamedTuple):
    """What remains of a compact problem in a part, and how to part it."""

    condensed: Condensed
    bound: int  # of the choices in it, without an offset
    state: State  # of its bound
    alive: Flags  # strategies and pairs that survive
    pairs: Flags
    low: Flags  # strategies of the node that is parted next that use little, all of the others


class Branches:
    """Open parts of what a bounding leaves.

    Attributes
    ----------
    upper : cost of the best known choice, without the offset of `bounding.condensed`.
    choice : the best choice that was found, None without one.
    """

    def __init__(self, bounding: Bounding) -> None:
        assert bounding.upper is not None
        self.compact, self.upper = bounding.compact, bounding.upper
        self.choice: Ints | None = None
        self._open: list[tuple[int, int, Part]] = []
        self._order = count()
        self._numbers = 0
        dual, narrowed = bounding.dual, bounding.narrowed
        self._keep(self._kept(narrowed, dual, bounding.inner_bound))

    @property
    def bound(self) -> int:
        """The least that any choice costs."""
        return min([self.upper, *(item[0] for item in self._open[:1])])

    @property
    def full(self) -> bool:
        """Whether the parts take all the room they may."""
        return self._numbers > MOST_NUMBERS

    def step(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Part the part of the least bound.

        Parameters
        ----------
        stop : asked now and then; once it says so, and goes on saying so, the part stays whole.
        """
        item = heapq.heappop(self._open)
        self._numbers -= _numbers(item[2])
        found = self._halves(item[2], stop)
        self._keep([item[2]] if found is None else found)

    def _keep(self, parts: list[Part]) -> None:
        for part in parts:
            self._numbers += _numbers(part)
            heapq.heappush(self._open, (part.bound, next(self._order), part))

    def _halves(self, part: Part, stop: Callable[[], bool]) -> list[Part] | None:
        """Return the parts of a part that may hold a better choice; None if it was stopped."""
        halves = []
        below = self.upper - part.condensed.offset
        compact = part.condensed.compact
        one = np.ones(len(part.low), np.bool_)
        span = slice(*_parted(part.low, compact.node_ptr))
        one[span] = ~part.low[span]
        for side in (part.low, one):
            rest = what_survives(compact, part.alive & side, part.pairs, below)
            if rest is not None:
                halves += self._bounded(part, rest, stop)
                if stop():
                    return None
        return halves

    def _bounded(self, part: Part, rest: Condensed, stop: Callable[[], bool]) -> list[Part]:
        """Bound what remains of a part in one half, and return it unless it holds no better
        choice.
        """
        condensed = composed(part.condensed, rest)
        compact = condensed.compact
        if compact.num_nodes == 0:
            self._offer(condensed.expand(np.zeros(0, np.int64)))
            return []
        dual = Dual(compact)
        dual.begin_at(part.state, rest)
        below = max(1, self.upper - condensed.offset)
        dual.aim(below)
        for _ in range(STEPS):
            dual.step()
            if stop():
                return []
            if dual.bound > below:  # in floats, so passed rather than met
                break
        self._offer(condensed.expand(decode(dual.factors, compact, dual.width)))
        return self._kept(condensed, dual, part.bound)

    def _kept(self, condensed: Condensed, dual: Dual, known: int) -> list[Part]:
        """Return a part as far as its bound has come, nothing if it holds no better choice.

        Parameters
        ----------
        known : a bound of its choices.
        """
        offset = condensed.offset
        below = self.upper - offset
        found, witness, clamped = dual.certify()
        bound = max(known, found.bound + offset)
        if bound >= self.upper:
            return []
        alive, pairs = survivors(clamped, witness, found, below)
        alive &= dual.compact.cost < below
        pairs &= dual.compact.table < below
        return [Part(condensed, bound, dual.state(), alive, pairs, _usage_split(dual, alive))]

    def _offer(self, choice: Ints) -> None:
        """Take note of a choice if it is better."""
        cost = cost_of(self.compact, choice)
        if cost < self.upper:
            self.upper, self.choice = cost, choice

    def close(self, upper: int) -> None:
        """Take note of the cost of a known choice; drop parts that hold none better."""
        self.upper = min(self.upper, upper)
        while self._open and self._open[0][0] >= self.upper:
            self._numbers -= _numbers(heapq.heappop(self._open)[2])

    @property
    def over(self) -> bool:
        """Whether no part is open."""
        return not self._open


def _numbers(part: Part) -> int:
    """Return about how many numbers a part holds."""
    compact = part.condensed.compact
    return len(compact.table) + 8 * len(compact.cost)


def _parted(low: Flags, node_ptr: Ints) -> tuple[int, int]:
    """Return where the strategies of the parted node begin and end."""
    v = int(np.searchsorted(node_ptr, int(np.argmin(low)), side="right")) - 1
    return int(node_ptr[v]), int(node_ptr[v + 1])


def _usage_split(dual: Dual, alive: Flags) -> Flags:
    """Return all strategies but those of one node that use more than the middle of its spread, or,
    where usage differs nowhere, half of those of the node that has most.
    """
    c = dual.compact
    node_ptr = c.node_ptr
    usage = c.usage.astype(np.float64)
    most = np.maximum.reduceat(np.where(alive, usage, 0.0), node_ptr[:-1])
    least = np.minimum.reduceat(np.where(alive, usage, np.inf), node_ptr[:-1])
    spread = np.where(np.isfinite(least), most - least, 0.0)
    mean = chain_choices(dual.factors, dual.width).usage
    mixed = np.clip(np.minimum(mean - least, most - mean), 0.0, None)
    worth = prices_of_nodes(c, dual.prices) * (mixed + SURE * spread)
    v = int(np.argmax(worth if worth.max(initial=0.0) > 0 else spread))
    low = np.ones(len(usage), np.bool_)
    if spread[v] > 0:
        span = slice(int(node_ptr[v]), int(node_ptr[v + 1]))
        low[span] = usage[span] - least[v] <= spread[v] / 2
        return low
    v = int(np.argmax(np.add.reduceat(alive.astype(np.int64), node_ptr[:-1])))
    left = node_ptr[v] + np.flatnonzero(row_at(alive, node_ptr, v))
    low[left[len(left) // 2 :]] = False
    return low
