"""The Lagrangian bound: prices on usage at time points, message passing on what is left, and steps
for the prices.

For fixed prices the problem is a sum of costs on nodes and edges, which message passing bounds
(`message_passing`). The prices climb along the gradient, the usage of the cheapest choices of all
chains above the capacities, averaged over steps (the volume algorithm's direction), with Polyak's
step towards the cost of a known choice; a step that loses too much is taken back. What is proved is
found by one exact pass over integers (`exact_pass`).

Stars (`stars`) have prices, too, which climb with the others: they follow those of usage in one
array.

Costs are clamped at the cost of a known choice, or at a guess of it: lower costs only lower the
bound, and messages need not climb over entries of 10^18, which no better choice uses.

References
----------
B. T. Polyak, "Minimization of unsmooth functionals", USSR Computational Mathematics and
Mathematical Physics 9, 1969. F. Barahona, R. Anbil, "The volume algorithm: producing primal
solutions with a subgradient method", Mathematical Programming 87, 2000.
V. Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization", IEEE TPAMI
28(10), 2006.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.sharding.bounds.exact_pass import (
    Pass,
    Witness,
    exact_pass,
    in_units,
    prices_of_nodes,
    witness_of,
)
from placeopt.sharding.bounds.message_passing import (
    Messages,
    carry_over,
    chain_choices,
    clamp_to,
    factors_of,
    lift_trees,
    settle,
    sweep_down,
    sweep_up,
)
from placeopt.sharding.bounds.stars import NO_STARS, Stars, carried, excess, stars_of, weigh

if TYPE_CHECKING:
    from placeopt.model.arrays import Flags, Floats
    from placeopt.sharding.compact import Compact, Condensed


MOST_PRICE = 2.0**62
"""Largest price: a unit of usage then costs more than any choice. Without it, prices of a dual
without a bound pass all floats."""

BEYOND = 2**61
"""Cost of what has been ruled out, before it is clamped."""


class State(NamedTuple):
    """How far a dual has come."""

    compact: Compact
    prices: Floats  # of usage, then of stars
    stars: Stars
    messages: Messages
    length: float  # of its steps


@dataclass(frozen=True)
class Pace:
    """How prices move.

    Attributes
    ----------
    memory : weight of the earlier gradients in the direction of a step. Of 0.8, 0.9, 0.95, 0.97,
    0.98 and 0.99 the bound after 3 s is with it better than with 0.8 and 0.9 on six problems of the
    families of results/sharding that choices are made on; with more it comes later.
    warm : the prices move once a sweep gains less than this part of the distance to the known cost.
    length : of the first steps, and of those after a new star, relative to Polyak's. settled, stuck
    : lengths at which prices have settled, and at which they no longer move.
    loss : a step that loses more than this part of the distance is taken back.
    fall : a known cost that falls below this part of the one before makes messages start again.
    reach : steps aim at most this part of the bound above it.
    """

    memory: float = 0.95
    warm: float = 0.002
    length: float = 0.1
    settled: float = 0.01
    stuck: float = 1e-4
    loss: float = 0.2
    fall: float = 0.1
    reach: float = 0.5


class Dual:
    """Prices and messages, improved step by step.

    Attributes
    ----------
    prices : of usage by time point, those of the best bound. bound : the best bound, in floats;
    `certify` finds it in integers.
    upper : cost of a known choice. clamp : no cost is taken to be more.
    calm : whether the prices were stuck once, new stars or not.

    Parameters
    ----------
    prices : to begin at.
    """

    pace = Pace()

    def __init__(self, compact: Compact, prices: Floats | None = None) -> None:
        self.compact = compact
        self.factors = factors_of(compact)
        self.width = int(compact.num_choices.max())
        self.capacity = compact.capacity.astype(np.float64)
        self.stars = NO_STARS
        self._best = self._now = np.zeros(len(compact.capacity)) if prices is None else prices
        self._weighed = np.zeros(0)  # prices of stars that the costs of the factors hold
        self._tried = np.zeros(0, np.int64)  # stars, as numbers
        self.bound = self._last = -np.inf
        self.upper = np.inf
        self.clamp = np.inf
        self.warm = self.calm = False
        self._length, self._fails = self.pace.length, 0
        self._direction: Floats | None = None
        self._messages = self._copy()

    @property
    def prices(self) -> Floats:  # noqa: D102
        return self._best[: len(self.capacity)]

    @property
    def settled(self) -> bool:
        """Whether prices hardly move any more."""
        return self._length <= self.pace.settled

    def aim(self, upper: float, guess: float = np.inf) -> None:
        """Take note of the cost of a known choice and clamp costs at it, or at a guess of the best
        cost if that is less.
        """
        self.upper = min(self.upper, float(upper))
        wanted = min(self.upper, float(guess))
        if (
            0.9 * self.clamp < wanted and wanted != self.upper and wanted < 1.1 * self.clamp
        ) or wanted == self.clamp:
            return
        # the first clamp finds messages carried over
        much = wanted < self.pace.fall * self.clamp < np.inf
        self.clamp = wanted
        self._clamp()
        if much:  # messages that climbed over what is no longer there are worth less than none
            self.factors.to_low[:] = self.factors.to_high[:] = 0.0
            self.warm, self._last = False, -np.inf
            self._now = self._best.copy()
        else:
            self._restore()
        self.bound = self._sweep()
        self._messages = self._copy()

    def state(self) -> State:
        """Return the best prices and messages so far."""
        f = self.factors
        messages = Messages(f.low_ptr, f.high_ptr, *self._messages)
        return State(self.compact, self._best, self.stars, messages, self._length)

    def begin_at(self, state: State, part: Condensed) -> None:
        """Begin at the prices and messages of a problem that this one is a part of.

        Parameters
        ----------
        part : how it was made of that problem.
        """
        prices, new = state.prices[part.time], NO_STARS
        if state.stars.node.size:
            new = stars_of(self.compact, prices, self.clamp)
        count = len(state.compact.capacity)
        priced = carried(state.compact, (state.stars, state.prices[count:]), part, new)
        kept = priced > 0
        self.stars = Stars(*(x[kept] for x in new))
        self._tried = self.stars.strategy * (len(self.capacity) + 1) + self.stars.time
        self._weighed = np.zeros(len(self.stars.node))
        self._best = np.concatenate([prices, priced[kept]])
        self._now, self._length = self._best.copy(), state.length
        carry_over(state.compact, state.messages, part.node, part.strategy, self.factors)
        self._messages = self._copy()

    def step(self) -> None:
        """Sweep down and up, then move the prices."""
        bound = self._sweep()
        if bound > self.bound:
            self.bound, self._best, self._messages = bound, self._now.copy(), self._copy()
            self._fails, self._length = 0, min(1.0, self._length * 1.03)
        else:
            self._fails += 1
            if self._fails >= 5:
                self._fails, self._length = 0, max(1e-5, self._length * 0.9)
        self.calm |= self._length <= self.pace.stuck
        if not self.warm:
            self.warm = bound - self._last < self.pace.warm * (self._target() - bound)
            self._last = bound
        elif len(self.capacity):
            self._move(bound)

    def certify(self) -> tuple[Pass, Witness, Compact]:
        """Return what the best prices and messages prove exactly, by which integers, of which
        costs in their units; then look for stars at the prices.
        """
        self._restore()
        self._sweep()
        f = self.factors
        up = f.to_low.copy(), f.to_high.copy()
        settle(f, self.width)
        count = len(self.capacity)
        witness = witness_of(
            self.compact,
            self._now[:count],
            (f.low_ptr, f.high_ptr),
            (f.to_low, f.to_high),
            (self.stars, self._now[count:]),
            max(
                float(max(part.max(initial=0.0), -part.min(initial=0.0)))
                for part in (f.cost, f.table)
            ),
        )
        f.to_low[:], f.to_high[:] = up
        priced = in_units(self.compact, witness, int(min(self.clamp, BEYOND)))
        self.look_for_stars()
        return exact_pass(priced, witness), witness, priced

    def rule_out(self, alive: Flags, pairs: Flags) -> None:
        """Raise what no better choice uses to the cost of the known one: a bound below that cost
        holds as before.
        """
        c = self.compact
        self.compact = c._replace(
            cost=np.where(alive, c.cost, BEYOND), table=np.where(pairs, c.table, BEYOND)
        )
        self._clamp()

    def look_for_stars(self) -> None:
        """Once the prices have settled: keep the stars that are priced, and try those that were not
        tried before or, once nothing moves, all. Steps are long again where there are such.
        """
        if not self.settled:
            return
        count, old = len(self.capacity), self.stars
        new = stars_of(self.compact, self.prices, self.clamp)
        keys = new.strategy * (count + 1) + new.time
        if self._length <= self.pace.stuck:
            self._tried = old.strategy * (count + 1) + old.time
        more = ~np.isin(keys, self._tried)
        self._tried = np.union1d(self._tried, keys)
        kept = self._best[count:] > 0
        weigh(self.factors, self.compact, old, -self._weighed)
        self.stars = Stars(
            *(np.concatenate([a[kept], b[more]]) for a, b in zip(old, new, strict=True))
        )
        self._weighed = np.zeros(len(self.stars.node))
        if more.any():
            self._length = max(self._length, self.pace.length)
        rest = np.zeros(int(more.sum()))

        def moved(values: Floats) -> Floats:
            return np.concatenate([values[:count], values[count:][kept], rest])

        self._best, self._now = moved(self._best), moved(self._now)
        self._direction = None if self._direction is None else moved(self._direction)

    def _clamp(self) -> None:
        """Write costs anew, each at most the clamp."""
        clamp_to(self.factors, self.compact.cost, self.compact.table, self.clamp)
        self._weighed = np.zeros(len(self._weighed))

    def _sweep(self) -> float:
        now, weights = np.split(self._now, [len(self.capacity)])
        weigh(self.factors, self.compact, self.stars, weights - self._weighed)
        self._weighed = weights
        node_prices = prices_of_nodes(self.compact, now)
        trees = lift_trees(self.factors, node_prices)
        sweep_down(self.factors, self.width)
        return float(trees + sweep_up(self.factors, self.width)) - float(now @ self.capacity)

    def _move(self, bound: float) -> None:
        """Move the prices along the averaged gradient."""
        target = self._target()
        if bound < self.bound - self.pace.loss * (target - self.bound):
            self._restore()
            self._length *= 0.5
            self._direction = None
            bound = self._sweep()
        gradient = self._gradient()
        if self._direction is not None:
            gradient = self.pace.memory * self._direction + (1 - self.pace.memory) * gradient
        self._direction = gradient
        moving = np.where((self._now <= 0) & (gradient < 0), 0.0, gradient)
        square = float(moving @ moving)
        step = self._length * max(target - bound, 0.0) / square if square > 0 else 0.0
        if np.isfinite(step):  # else nothing but the memory of gradients is left of the direction
            self._now = np.clip(self._now + step * moving, 0.0, MOST_PRICE)

    def _gradient(self) -> Floats:
        """Return the usage above the capacity at every time point, averaged over the cheapest
        choices of all chains, and how far these pass the room of stars.
        """
        c, count = self.compact, len(self.capacity) + 1
        chains = chain_choices(self.factors, self.width)
        change = np.bincount(c.first, chains.usage, count)
        change -= np.bincount(c.last, chains.usage, count)
        beyond = excess(self.factors, c, self.stars, chains)
        return np.concatenate([np.cumsum(change)[:-1] - self.capacity, beyond])

    def _target(self) -> float:
        """Return the cost that steps aim at: the known one, unless it is far away."""
        return min(self.upper, self.bound + self.pace.reach * abs(self.bound) + 1.0)

    def _copy(self) -> tuple[Floats, Floats]:
        return self.factors.to_low.copy(), self.factors.to_high.copy()

    def _restore(self) -> None:
        self._now = self._best.copy()
        self.factors.to_low[:], self.factors.to_high[:] = self._messages
