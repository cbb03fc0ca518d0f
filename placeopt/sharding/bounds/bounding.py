"""The bound of a whole problem: reductions, the Lagrangian bound on what they leave, and, time and
again, the same on what no known choice makes needless.

A known choice of cost U rules out strategies and pairs (`exact_pass.survivors`). Once much is ruled
out, what survives is reduced and bounded anew (`narrow`): with fewer strategies the least that a
node uses rises, the others have less room, and what has no room goes too, so that the bound rises
far beyond that of the local polytope with the limit. Every choice costs at least the smaller of U
and the bound of what survives; U only falls, so this holds whatever U was when something was ruled
out.

References
----------
H. Crowder, E. L. Johnson, M. Padberg, "Solving large-scale zero-one linear programming problems",
Operations Research 31, 1983 (fixing by reduced costs, then again on what is left).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.sharding.bounds.exact_pass import survivors
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.compact import (
    MAX_TOTAL,
    Compact,
    Condensed,
    condense,
    cost_scale,
    draft_of,
    most_cost,
    unchanged,
    usage_unit,
    without_unavoidable,
)
from placeopt.sharding.decode import decode
from placeopt.sharding.exact_rest import Ending, solve_rest
from placeopt.sharding.reduction import composed, reduce, what_survives

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.sharding.bounds.joins import Joins
    from placeopt.sharding.bounds.squares import Squares
    from placeopt.sharding.problem import ShardingProblem

SHRUNK = 0.9
"""What survives is bounded anew where it is at most this part of what is bounded now."""

CP_SAT_PAIRS = 30_000
"""Most pairs of strategies, and hundredths of the live nodes of all time points, that are left to
CP-SAT."""


class Remainder(NamedTuple):
    """What remains of a problem; what every other choice costs at least, without its offset; a
    bound of all choices.
    """

    condensed: Condensed
    others: int
    bound: int


class Bounding:
    """A bound that rises step by step.

    Costs of choices are counted as `condensed` does, without its offset.

    Attributes
    ----------
    forbidden : costs of so much or more are all but forbidden.
    condensed : what remains of the problem once choices that use such are left out; searches work
    on its `compact`; a new one where the whole problem has to be looked at after all.
    upper : cost of the best known choice, None before one.
    narrowed : what remains of `compact` for choices of less than `upper`.
    settled : whether nothing is left to prove. found : a choice of `compact` that was found on the
    way, None without one.

    Parameters
    ----------
    late : once it says so, the first reductions end.
    """

    def __init__(
        self,
        problem: ShardingProblem,
        upper: int | None = None,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.problem = problem
        # else usages are rounded up, and choices may fit that seem not to
        self._exact = usage_unit(problem) == 1
        self._bound = 0
        self.upper: int | None = None
        self.found: Ints | None = None
        self.settled: bool
        self.dual: Dual
        self._open(without_forbidden(problem, upper, late))
        if upper is not None:
            self.aim(self.condensed.counted(upper))

    @property
    def bound(self) -> int:
        """The best bound proved of the problem, exactly; 0 where usages were rounded."""
        return self._bound if self._exact else 0

    @property
    def inner_bound(self) -> int:
        """The best bound as `condensed` counts costs, without its offset."""
        return self.condensed.counted(self.bound)

    @property
    def unit(self) -> int:
        """The unit of costs."""
        return self.condensed.scale.unit

    @property
    def rounded(self) -> bool:
        """Whether no better choice is left but for what costs lose in their unit."""
        return self.settled and self.unit > 1

    @property
    def compact(self) -> Compact:
        """What searches work on."""
        return self.condensed.compact

    @property
    def prices(self) -> Floats:
        """Prices on usage by time point of `compact`."""
        prices = np.zeros(len(self.compact.capacity))
        prices[self.narrowed.time] = self.dual.prices
        return prices

    def aim(self, cost: int, guess: float = math.inf) -> None:
        """Take note of the cost of a known choice, and of a guess of the best cost."""
        self.upper = cost if self.upper is None else min(self.upper, cost)
        if self.settled:
            self._reopen_if_empty()
            return
        offset = self.narrowed.offset
        guess = max(1.0, guess - offset) if self._others < MAX_TOTAL else math.inf
        self.dual.aim(max(1, self.upper - offset), guess)

    def step(self) -> None:
        """Improve prices and messages by one step."""
        self.dual.step()

    def decoded(self, *, limited: bool) -> Ints:
        """Return the choice of `compact` that the messages decode, within the capacity or without
        one.
        """
        inner = self.narrowed.compact
        if not limited:
            most = np.full(len(inner.capacity), MAX_TOTAL, np.int64)
            inner = inner._replace(capacity=most)
        return self.narrowed.expand(decode(self.dual.factors, inner, self.dual.width))

    def certify(self, *, narrow: bool = True) -> None:
        """Prove the bound exactly, rule out what no better choice uses, and narrow what is left.

        Parameters
        ----------
        narrow : whether there is time for narrowing, which may take as long as the reductions of
            the whole problem.
        """
        if self.settled:
            return
        offset = self.narrowed.offset
        found, witness, clamped = self.dual.certify()
        if self.upper is None:
            self._raise(found.bound + offset)
            return
        below = self.upper - offset
        self._raise(min(found.bound + offset, self.upper))
        alive, pairs = survivors(clamped, witness, found, below)
        compact = self.dual.compact  # clamped costs say less than these
        alive &= compact.cost < below
        pairs &= compact.table < below
        self.dual.rule_out(alive, pairs)
        if narrow and self.cheap and _size(alive, pairs) <= SHRUNK * self._size:
            self._narrow(alive, pairs)
        self._reopen_if_empty()

    def certify_by(self, other: Squares | Joins) -> None:
        """Prove the bound by squares or joins of what is left, and rule out what no better choice
        uses.
        """
        assert self.upper is not None
        offset = self.narrowed.offset
        proof = other.prove(self.upper - offset)
        pairs = np.ones(len(self.dual.compact.table), np.bool_)
        self.dual.rule_out(proof.alive, pairs)
        self.prove(min(proof.bound + offset, self.upper))

    def prove(self, bound: int) -> None:
        """Take note of a bound of the choices of `compact` that was found elsewhere."""
        self._raise(bound)
        self.settled |= self.upper is not None and bound >= self.upper
        self._reopen_if_empty()

    @property
    def cheap(self) -> bool:
        """Whether a choice is known that uses nothing that is all but forbidden."""
        return self.upper is not None and self.upper <= self.forbidden

    def left(self) -> int:
        """Return about how much CP-SAT would have to look at, 0 where nothing is left to prove."""
        if self.settled:
            return 0
        if self.upper is None:
            return MAX_TOTAL
        return amount_left(self.dual.compact, self._below(self.upper))

    def finish(
        self,
        seconds: float,
        *,
        deterministic: bool = False,
        workers: int = 1,
        ending: Ending | None = None,
    ) -> None:
        """Solve what is left by CP-SAT, if it is small enough.

        Parameters
        ----------
        seconds, deterministic, workers, ending : see `solve_rest`.
        """
        if self.settled or self.left() > CP_SAT_PAIRS or self.upper is None:
            return
        offset, below = self.narrowed.offset, self._below(self.upper)
        rest = solve_rest(
            self.dual.compact,
            below,
            seconds=seconds,
            deterministic=deterministic,
            workers=workers,
            ending=ending,
        )
        if rest.choice is not None:
            self.found = self.narrowed.expand(rest.choice)
        self._raise(min(rest.bound + offset, self.upper))
        if rest.bound >= below:
            self.settled = True
        self._reopen_if_empty()

    def _open(self, remainder: Remainder) -> None:
        """Work on what remains."""
        self.settled = False  # first: others may look
        self.condensed, self._others = remainder.condensed, remainder.others
        self.forbidden = min(most_cost(self.problem), self._others)
        self._bound = max(self._bound, remainder.bound)
        self.upper = None
        self._work_on(unchanged(self.compact))

    def _work_on(self, narrowed: Condensed) -> None:
        """Bound what remains of `compact`."""
        self.narrowed = narrowed
        compact = narrowed.compact
        self.settled = compact.num_nodes == 0
        below = self.forbidden if self.upper is None else self.upper - narrowed.offset
        self._size = _size(compact.cost < below, compact.table < below)
        if self.settled:
            self.found = narrowed.expand(np.zeros(0, np.int64))
            self._raise(narrowed.offset)
        else:
            self.dual = Dual(compact)

    def _narrow(self, alive: Flags, pairs: Flags) -> None:
        """Go on with what survives."""
        assert self.upper is not None
        below, before = self.upper - self.narrowed.offset, self.dual
        rest = what_survives(before.compact, alive, pairs, below)
        if rest is None:
            self._raise(self.upper)
            self.settled = True
            return
        self._work_on(composed(self.narrowed, rest))
        if not self.settled:
            self.dual.begin_at(before.state(), rest)
            self.aim(self.upper)

    def _below(self, upper: int) -> int:
        """Return what the choices cost less than that are looked for, as `narrowed` counts."""
        return min(upper, self._others) - self.narrowed.offset

    def _raise(self, bound: int) -> None:
        reached = min(bound, self._others) + self.condensed.offset
        self._bound = max(self._bound, self.condensed.scale.meant(reached))

    def _reopen_if_empty(self) -> None:
        """Work on the whole problem if it is proved that every choice uses what is all but
        forbidden, and a choice of the whole is not known to be the best.
        """
        empty = self._others < MAX_TOTAL and self.condensed.counted(self._bound) >= self._others
        if empty and self.upper is not None and self.upper > self._others:
            self.found = None
            self._open(_whole(self.problem, self._bound))


def without_forbidden(
    problem: ShardingProblem, upper: int | None, late: Callable[[], bool]
) -> Remainder:
    """Return what remains of a problem for choices that cost less than `upper` and use nothing that
    is all but forbidden.

    Where nothing does, or its smallest usages pass the limit, less is taken away: that is a bound.
    """
    bound = 0
    for known in dict.fromkeys((upper, None)):
        whole = _condensed(problem)  # anew: reductions use it up
        offset = whole.offset
        forbidden = min(most_cost(problem), whole.scale.clamp)
        least = forbidden if known is None else max(1, min(forbidden, whole.counted(known)))
        reduced = reduce(whole, least, late)
        if reduced is not None and reduced.compact.capacity.min(initial=0) >= 0:
            return Remainder(reduced, least + offset - reduced.offset, bound)
        bound = whole.scale.meant(least + offset)
    return _whole(problem, bound)


def _whole(problem: ShardingProblem, bound: int) -> Remainder:
    """Return all of a problem, of which a bound is known."""
    return Remainder(_condensed(problem, in_units=True), MAX_TOTAL, bound)


def _condensed(problem: ShardingProblem, *, in_units: bool = False) -> Condensed:
    """Return a problem condensed, its costs counted in a unit if need be; what every choice costs
    is put aside where it would be clamped.
    """
    rest, paid = without_unavoidable(problem)
    scale = cost_scale(rest)
    if not in_units:
        scale = scale._replace(unit=1)
    whole = condense(*draft_of(rest, scale))
    return whole._replace(offset=whole.offset + paid // scale.unit, scale=scale)


def amount_left(compact: Compact, below: int) -> int:
    """Return about how much CP-SAT has to look at for choices that cost less than `below`: pairs,
    or hundredths of the live nodes of all time points.
    """
    live = int((compact.last - compact.first).sum())
    return max(int((compact.table < below).sum()), live // 100)


def _size(alive: Flags, pairs: Flags) -> int:
    """Return how many strategies and pairs there are."""
    return int(alive.sum()) + int(pairs.sum())
