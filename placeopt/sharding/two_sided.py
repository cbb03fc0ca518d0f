"""Bound and search side by side: the bound's prices guide the search, the search's cost clamps and
aims the bound.

Both work in slices. With a time limit the bound's slice runs in a thread of its own beside that of
the search (the kernels of both release the interpreter lock); without one they take turns in fixed
numbers of steps, so that the same seed gives the same answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.sharding.bounds.exact_pass import survivors
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.compact import MAX_TOTAL, Condensed, condense, draft_of, usage_unit
from placeopt.sharding.exact_rest import solve_rest
from placeopt.sharding.reduction import reduce
from placeopt.sharding.tree_moves import decode, least_usage
from placeopt.sharding.tree_search import TreeSearch

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from numpy.typing import NDArray

    from placeopt.sharding.compact import Compact
    from placeopt.sharding.problem import ShardingProblem

    Ints = NDArray[np.int64]

FIRST_STEPS = 6
"""Steps of the bound before the first choice is decoded."""

LOOK_PAIRS = 300_000
"""Most pairs of strategies that survive where a look is taken at what the reductions leave of
them."""

SHRUNK = 0.7
"""CP-SAT is tried again at once where this part of the pairs is left."""

FINISH_PAIRS = 30_000
"""Most pairs of strategies, and hundredths of the live nodes of all time points, that are left to
CP-SAT."""

GUESS = 4
"""The best cost is guessed to be at most this multiple of a choice's costs that are not all but
forbidden."""

TURN_STEPS, TURN_MOVES = 10, 500
"""Steps and moves of a turn without a time limit."""


class Remainder(NamedTuple):
    """What remains of a problem; what every other choice costs at least, without its offset; a
    bound of all choices.
    """

    condensed: Condensed
    others: int
    bound: int


def without_forbidden(problem: ShardingProblem, forbidden: int, upper: int | None) -> Remainder:
    """Return what remains of a problem for choices that cost less than `upper` and use nothing that
    is all but forbidden.

    Where nothing does, or its smallest usages pass the limit, less is taken away: that is a bound.
    """
    whole = condense(*draft_of(problem))
    bound = 0
    for least in (
        forbidden if upper is None else max(1, min(forbidden, upper - whole.offset)),
        forbidden,
    ):
        reduced = reduce(whole, least)
        if reduced is not None and (
            len(reduced.compact.capacity) == 0 or reduced.compact.capacity.min() >= 0
        ):
            return Remainder(reduced, least + whole.offset - reduced.offset, bound)
        bound = least + whole.offset
    return Remainder(whole, MAX_TOTAL, bound)


def what_survives(
    compact: Compact, alive: NDArray[np.bool_], pairs: NDArray[np.bool_], upper: int
) -> Condensed | None:
    """Return what the reductions leave of the strategies and pairs that survive, None if no choice
    of less than `upper`.
    """
    strategy = np.arange(len(alive)) - np.repeat(compact.node_ptr[:-1], compact.num_choices)
    raised = compact._replace(
        cost=np.where(alive, compact.cost, upper), table=np.where(pairs, compact.table, upper)
    )
    nodes = np.arange(compact.num_nodes)
    undecided, times = np.full(len(nodes), -1, dtype=np.int64), np.arange(len(compact.capacity))
    rest = reduce(Condensed(raised, 0, undecided, nodes, strategy, times), upper)
    if rest is None or rest.compact.capacity.min(initial=0) < 0 or rest.offset >= upper:
        return None
    return rest


def rest_size(compact: Compact, upper: int) -> int:
    """Return about how much CP-SAT would have to look at."""
    return max(int((compact.table < upper).sum()), int((compact.last - compact.first).sum()) // 100)


class TwoSided:
    """A dual and a search on one problem.

    Attributes
    ----------
    value : cost of the best choice in the compact problem, None before one. moves : made so far.
    """

    def __init__(
        self, problem: ShardingProblem, rng: np.random.Generator, *, upper: int | None = None
    ) -> None:
        self.problem, self.rng = problem, rng
        self._forbidden = MAX_TOTAL // (
            problem.num_nodes + problem.num_edges + 1
        )  # where draft_of clamps
        self._exact = (
            usage_unit(problem) == 1
        )  # else usages are rounded up, and choices may fit that seem not to
        self._bound = self.moves = 0
        self.search: TreeSearch | None = None
        self.certify_seconds = 0.0
        self._open(without_forbidden(problem, self._forbidden, upper))
        if upper is not None and not self.trivial:
            self.dual.aim(max(0, upper - self.condensed.offset))

    @property
    def bound(self) -> int:
        """The best bound proved, exactly; 0 where usages were rounded."""
        return self._bound if self._exact else 0

    def _open(self, remainder: Remainder) -> None:
        """Work on what remains."""
        self.condensed, self._others = remainder.condensed, remainder.others
        self.compact = self.condensed.compact
        self._bound = max(self._bound, remainder.bound)
        self.trivial = self.compact.num_nodes == 0
        self._rest: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
        self._tried, self._spell, self._finished = np.inf, 1.0, time.perf_counter()
        if self.trivial:
            self._raise(0)
        else:
            self.dual = Dual(self.compact)

    def start(self, choice: Ints | None = None) -> None:
        """Make the first steps of the bound and the first choice, unless one of the problem is
        given.
        """
        if self.trivial:
            return
        inner = None if choice is None else self.condensed.contract(choice)
        self.search = TreeSearch(
            self.compact, least_usage(self.compact) if inner is None else inner, self.rng
        )
        self.moves += 1
        self._aim(self.search.best)
        for _ in range(FIRST_STEPS):
            self.dual.step()
        self.exchange()

    def solution(self) -> Ints:
        """Return the best choice, of the problem itself."""
        if self.search is None:
            return self.condensed.expand(np.zeros(0, dtype=np.int64))
        return self.condensed.expand(self.search.best)

    def turn(self, most_moves: int) -> None:
        """Take turns: a fixed number of steps of the bound, then of moves."""
        if self.trivial:
            return
        for _ in range(TURN_STEPS):
            self.dual.step()
        self.exchange()
        if self.search is not None:
            self.moves += self.search.round(min(TURN_MOVES, most_moves))
            self.exchange()

    def side_by_side(self, seconds: float, pool: ThreadPoolExecutor) -> None:
        """Improve both for about `seconds`."""
        end = time.perf_counter() + seconds
        stepping = pool.submit(self._steps_until, end)
        try:
            while self.search is not None and time.perf_counter() < end:
                self.moves += self.search.round(TURN_MOVES)
        finally:
            stepping.result()
        self.exchange()

    def exchange(self) -> None:
        """Give the search the prices and perhaps a better choice, and the bound the cost of the
        best one.
        """
        if self.search is None:
            return
        fitted = decode(self.dual.factors, self.compact, self.dual.width)
        self.search.guide(self.dual.prices, self._decoded(self.search), fitted)
        self.search.urgent = self.search.best_cost >= self._forbidden
        self._aim(self.search.best)

    def _aim(self, choice: Ints) -> None:
        """Aim the bound at the best cost, or at a guess: what a choice costs without what is all
        but forbidden.
        """
        if self.search is not None:
            guess = GUESS * self.search.cost_below(choice, self._forbidden) + 1
            self.dual.aim(self.search.best_cost, guess)

    def certify(self) -> bool:
        """Prove the bound exactly; return whether it rose."""
        if self.trivial:
            return True
        started = time.perf_counter()
        found, witness, clamped = self.dual.certify()
        before = self._bound
        if not np.isfinite(self.dual.upper):
            self._raise(found.bound)
        else:
            upper = int(self.dual.upper)
            self._raise(min(found.bound, upper))
            alive, pairs = survivors(clamped, witness, found, upper)
            pairs &= self.dual.compact.table < upper  # clamped costs say less than these
            alive &= self.dual.compact.cost < upper
            self.dual.rule_out(alive, pairs)
            self._rest = alive, pairs
        self._reopen_if_empty()
        self.certify_seconds = time.perf_counter() - started
        return self._bound > before

    @property
    def rest_pairs(self) -> int:
        """Pairs that survive, more than any limit before the first exact pass."""
        return 2**62 if self._rest is None else int(self._rest[1].sum())

    def finish(self, seconds: float, *, deterministic: bool = False) -> None:
        """Solve what is left by CP-SAT, if the bound has ruled most of it out.

        It is tried once much less is left than the last time or, against the clock, once as much
        time has gone by as the next attempt takes: twice as long as the last one.
        """
        if self.trivial or self._rest is None or self.rest_pairs > LOOK_PAIRS:
            return
        if not deterministic:
            seconds = min(seconds, self._spell)
        waited = not deterministic and time.perf_counter() - self._finished >= self._spell
        if self.rest_pairs > SHRUNK * self._tried and not waited:
            return
        upper = int(self.dual.upper)
        if upper > self._forbidden:
            return
        self._tried = float(self.rest_pairs)
        rest = what_survives(self.compact, *self._rest, upper)
        if rest is None:
            self._raise(upper)
        elif rest_size(rest.compact, upper - rest.offset) <= FINISH_PAIRS:
            c, below = rest.compact, upper - rest.offset
            found = solve_rest(
                c,
                c.cost < below,
                c.table < below,
                below,
                seconds=seconds,
                deterministic=deterministic,
                workers=1 if deterministic else 2,
            )
            if found.choice is not None and self.search is not None:
                self.search.restart(rest.expand(found.choice))
                self.exchange()
            self._raise(min(found.bound + rest.offset, upper))
        self._spell, self._finished = 2 * self._spell, time.perf_counter()
        self._reopen_if_empty()

    def _raise(self, bound: int) -> None:
        self._bound = max(self._bound, min(bound, self._others) + self.condensed.offset)

    def _reopen_if_empty(self) -> None:
        """Work on the whole problem if it is proved that every choice uses what is all but
        forbidden.
        """
        empty = self._others < MAX_TOTAL and self._bound >= self._others + self.condensed.offset
        if empty and self.search is not None and self.search.best_cost > self._others:
            best = self.solution()
            self._open(Remainder(condense(*draft_of(self.problem)), MAX_TOTAL, self._bound))
            self.start(best)

    def _steps_until(self, end: float) -> None:
        while True:
            started = time.perf_counter()
            self.dual.step()
            if 2 * time.perf_counter() - started > end:
                return

    def _decoded(self, search: TreeSearch) -> Ints:
        """Return the choice that the bound's messages decode without a capacity."""
        choice: Ints = decode(self.dual.factors, search.unlimited, self.dual.width)
        return choice
