"""A search by tree moves on a compact problem that passes the capacity and comes back: strategic
oscillation.

Moves that never pass the capacity get stuck where room is scarce: what one part of the graph would
give up another cannot take at the same time. So the search makes attempts, each in three phases:

1. *free*: from a choice that the bound's messages decode, or from the best one, moves without a
   capacity, usage at the bound's prices: at good prices the result passes the capacity little;
2. *squeeze*: no move may add usage where the capacity is passed, and prices there double until it
   is passed nowhere;
3. *strict*: moves within the capacity, prices of usage high and low by turns.

The trees of a phase have 3, 30, 300, ... nodes by turns, up to the whole core; within the capacity
local ones as well, up to a tenth of what follows a node of a hanging tree in the mean. A phase ends
with a cycle that gains nothing, or so little that in as many cycles again the attempt would not
become the best, or after so many turns; the number doubles from attempt to attempt, so that a first
good choice is there soon. There are six ways to begin: from what a dive ends with
(`dive`), from a decoded choice, with the strict phase alone from one that is decoded within the
capacity, from the best one, from the best one with the strict phase alone, and from what CP-SAT
makes of windows of the best one. The next attempt begins as the last one did if that found a better
choice, else in the next way. What an attempt ends with is rarely better everywhere than the best
choice, and rarely worse everywhere: CP-SAT mixes both, in windows in which a node may have its
strategy of either.

In a window some nodes are free, and all others keep their strategy. It grows from a node by breadth
first search over edges, and, where the node is live at a time point that has little room, over the
nodes that are live there too: those share the room; then from another node. It grows while the
pairs of strategies that stay open fit a number that doubles with every window that CP-SAT settles
and halves with every one that it does not.

`tree-descent` makes such attempts, without prices, from the choice of the least usage.

References
----------
F. Glover, J.-K. Hao, "The case for strategic oscillation", Annals of Operations Research 183, 2011.

P. Shaw, "Using constraint programming and local search methods to solve vehicle routing problems",
CP 1998 (large neighbourhood search).

V. Lempitsky, C. Rother, S. Roth, A. Blake, "Fusion Moves for Markov Random Field Optimization",
IEEE TPAMI 32(8), 2010.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from placeopt.model.arrays import row_at
from placeopt.model.random_bits import random_states
from placeopt.sharding.bounds.bounding import CP_SAT_PAIRS, amount_left
from placeopt.sharding.bounds.exact_pass import prices_of_nodes
from placeopt.sharding.bounds.message_passing import Factors, factors_of, lift_trees
from placeopt.sharding.compact import (
    Compact,
    Condensed,
    as_draft,
    condense,
    cost_of,
    cost_scale,
    draft_of,
    over_time,
    usage_of,
)
from placeopt.sharding.decode import least_usage
from placeopt.sharding.evaluate import total_cost
from placeopt.sharding.exact_rest import solve_rest
from placeopt.sharding.problem import ShardingProblem, ShardingSolution
from placeopt.solvers.sharding.dive import dive
from placeopt.solvers.sharding.tree_moves import (
    Manner,
    board_of,
    flat,
    improve,
    mean_subtree,
    roots_at,
)
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.sharding.bounds.lagrangian import State
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class AttemptOptions:
    """How attempts are made.

    Attributes
    ----------
    scales : of the prices of usage within the capacity, by turns: a high price frees room that a
    low one gives to those who gain most. urgent_scale : of the prices while the best choice still
    uses what is all but forbidden: room has to be made for what it lacks.
    jitter : most part by which the prices of a turn are more or less: at prices a little off others
    gain and lose.
    inner_size : turns of trees of at most so many nodes begin at nodes of hanging trees, too.
    skip : chance that a tree leaves out a node it could take.
    sweep : nodes that the trees of one turn have together, as a multiple of those of the core.
    piece : nodes that the trees of one piece of work have together at most: some tens of
    milliseconds.
    doublings : a price that has doubled so often passes the cost of every choice.
    """

    scales: tuple[float, ...] = (1.0, 1.0, 0.5, 0.0)
    urgent_scale: float = 2.0
    jitter: float = 0.2
    inner_size: int = 30
    skip: float = 0.05
    sweep: float = 3.0
    piece: int = 20_000
    doublings: int = 64


class Start(Enum):
    """Ways in which an attempt begins."""

    DIVED = auto()
    DECODED = auto()
    FITTED = auto()
    RELAXED = auto()
    POLISHED = auto()
    WINDOW = auto()


class Guide(NamedTuple):
    """What the bound tells the search."""

    prices: Floats  # by time point
    decoded: Ints  # by its messages, without a capacity
    fitted: Ints  # within it
    narrowed: Condensed  # what the bound works on
    state: State  # of it


class Trees(NamedTuple):
    """Which trees the moves of a turn have."""

    most: int  # nodes in the core of `factors`
    factors: Factors
    roots: Ints


class TreeSearch:
    """A choice and the moves that improve it.

    Attributes
    ----------
    best, best_cost : the cheapest choice so far and what it costs in the compact problem.
    attempts : begun so far. urgent : whether the best choice uses what is all but forbidden.
    """

    options = AttemptOptions()

    def __init__(self, compact: Compact, choice: Ints, rng: np.random.Generator) -> None:
        self.compact, self.rng = compact, rng
        self.factors = factors_of(compact)
        self.state = random_states(rng, 1)[0]
        self._prices = np.zeros(len(compact.capacity))
        self._guide: Guide | None = None
        self.best, self.best_cost = choice, self.cost_of(choice)
        self.urgent = False
        inner = np.flatnonzero(
            np.diff(self.factors.adj_ptr)[: compact.core] > 1
        )  # leaves move with their parents
        core = np.arange(compact.core, compact.num_nodes)
        roots = np.concatenate([inner, core])
        self.following = [
            Trees(most, self.factors, roots if most <= self.options.inner_size else core)
            for most in tree_sizes(max(3, len(core)))
        ]
        nodes, whole = np.arange(compact.num_nodes), flat(self.factors)
        local = tree_sizes(mean_subtree(self.factors) / 10)
        self.trees = [*self.following, *(Trees(most, whole, nodes) for most in local)]
        peak = over_time(compact.first, compact.last, compact.most_usage, len(compact.capacity))
        self.unlimited = compact._replace(capacity=np.maximum(peak, 0))
        self.attempts = 0
        self._made, self._limit = 0, 1
        self.board = board_of(compact, choice)
        self.window, self.mixture = Windows(compact, rng), Windows(compact, rng)
        self._work = self._attempts()

    def guide(self, guide: Guide) -> None:
        """Take note of what the bound has found."""
        self._guide, self._prices = guide, guide.prices

    def offer_best(self, choice: Ints) -> None:
        """Take note of a choice that keeps the capacity, if it is the best; the attempt goes on."""
        cost = self.cost_of(choice)
        if cost < self.best_cost:
            self.best, self.best_cost = choice.copy(), cost

    def round(self, limit: int) -> int:
        """Do the next piece of work: at most `limit` moves; return their number, at least 1."""
        self._made, self._limit = 0, max(1, limit)
        next(self._work)
        return max(1, self._made)

    def cost_of(self, choice: Ints) -> int:
        """Return what a choice costs, edges and nodes that were decided before left out."""
        return cost_of(self.compact, choice)

    def moves(self, roots: Ints, trees: Trees, prices: Floats, compact: Compact) -> None:
        """Make a move at each root, usage priced by time point."""
        price = prices_of_nodes(compact, prices)
        lift_trees(trees.factors, price)
        manner = Manner(trees.most, self.options.skip)
        improve(trees.factors, compact, self.board, roots, price, manner, self.state)
        self._made += len(roots)

    def _attempts(self) -> Iterator[None]:
        """Make attempts without end; first descend from the choice on the board, as long as nothing
        is decoded.
        """
        first = self._strict(self.options.doublings * len(self.options.scales))
        while self._guide is None and next(first, first) is None:
            yield
        ways, turns = itertools.cycle(Start), 1
        way = next(ways)
        while True:
            known = self.best_cost
            self.attempts += 1
            self.board = board_of(self.unlimited, self._start(way))
            if way is Start.DIVED:
                yield from self._dive()
            if way is Start.WINDOW:
                yield from self._windows(turns)
            elif way not in (Start.FITTED, Start.POLISHED):
                prices = self._prices * self._jitter()
                yield from self._phase(self.unlimited, prices, (1.0,), turns)  # free
                yield from self._squeeze()
            yield from self._strict(turns * len(self.options.scales))
            yield from self._merge(self.board.choice.copy())
            turns *= 2
            if self.best_cost >= known:
                way = next(ways)

    def _start(self, way: Start) -> Ints:
        guide = self._guide
        if guide is None:
            return self.best
        return {Start.DECODED: guide.decoded, Start.FITTED: guide.fitted}.get(way, self.best)

    def _dive(self) -> Iterator[None]:
        """Dive from where the bound is."""
        if self._guide is None:
            return
        narrowed, state = self._guide.narrowed, self._guide.state
        for found in dive(state, max(1, self.best_cost - narrowed.offset), self.rng):
            if found is not None:
                self.board = board_of(self.unlimited, narrowed.expand(found))
            self._made += 1
            yield

    def _windows(self, turns: int) -> Iterator[None]:
        """Choose windows of the best choice anew, until one brings nothing, at most `turns`."""
        for _ in range(turns):
            found = self.window.improve(self.best, self.best_cost)
            self._made += 1
            if found is not None:
                self.board = board_of(self.compact, found)
                self.offer_best(self.board.choice)
            yield
            if found is None:
                return

    def _merge(self, other: Ints) -> Iterator[None]:
        """Give the best choice what is better in another one, until a window brings nothing."""
        found: Ints | None = self.best
        while found is not None and (self.best != other).any():
            found = self.mixture.improve(self.best, self.best_cost, other)
            self._made += 1
            if found is not None:
                self.offer_best(found)
            yield

    def _strict(self, turns: int) -> Iterator[None]:
        """Make moves within the capacity."""
        self.board = board_of(self.compact, self.board.choice)
        self.offer_best(self.board.choice)
        yield from self._phase(self.compact, None, self.options.scales, turns)

    def _phase(
        self, compact: Compact, prices: Floats | None, scales: tuple[float, ...], turns: int
    ) -> Iterator[None]:
        """Make turns of all sizes at all scales until a cycle gains little, at most `turns`.

        Parameters
        ----------
        prices : by time point; None for those of the bound, as they become better.
        """
        before, known = self._priced(prices), float(self.best_cost)
        kinds = self.trees if prices is None else self.following  # exact without a capacity
        cycle = [(scale, trees) for scale in scales for trees in kinds]
        for turn in range(turns):
            scale, trees = cycle[turn % len(cycle)]
            now = self._prices_now(scale) if prices is None else scale * prices
            for roots in self._turn(trees):
                self.moves(roots, trees, now, compact)
                if prices is None:
                    self.offer_best(self.board.choice)
                yield
            cycles, rest = divmod(turn + 1, len(cycle))
            if rest == 0:
                after = self._priced(prices)
                gain = before - after
                if gain <= 0 or (prices is None and after - gain * cycles > known):
                    return
                before = after

    def _prices_now(self, scale: float) -> Floats:
        """Return the bound's prices for a turn, a little off."""
        urgent = self.urgent and scale == 1.0
        return self._prices * (self._jitter() * (self.options.urgent_scale if urgent else scale))

    def _priced(self, prices: Floats | None) -> float:
        """Return what the choice on the board costs, its usage as well if there are prices."""
        cost = float(self.cost_of(self.board.choice))
        if prices is None:
            return cost
        return cost + float(prices @ usage_of(self.compact, self.board.choice))

    def _turn(self, trees: Trees) -> Iterator[Ints]:
        """Yield the roots of a turn's moves, piece by piece."""
        left = self._most_roots(trees)
        while left > 0:
            count = min(left, self._limit, max(1, self.options.piece // trees.most))
            yield trees.roots[self.rng.integers(len(trees.roots), size=count)]
            left -= count

    def _most_roots(self, trees: Trees) -> int:
        core = self.compact.num_nodes - trees.factors.core
        return max(1, int(self.options.sweep * core) // trees.most)

    def _squeeze(self) -> Iterator[None]:
        """Lower the usage where it passes the capacity until it does so nowhere."""
        c = self.compact
        prices, extra = self._prices.copy(), 0.0
        for turn in range(self.options.doublings):
            usage = usage_of(c, self.board.choice)
            over = usage > c.capacity
            if not over.any():
                return
            if turn == 0:
                worth = self.cost_of(self.board.choice) / float(usage[over].sum(dtype=np.float64))
                extra = max(float(prices.max(initial=0.0)) / 4, worth / 16, 2.0**-20)
            prices[over] += extra
            extra *= 2.0
            within = c._replace(capacity=np.maximum(c.capacity, usage))
            self.board = board_of(within, self.board.choice)
            trees = self.trees[turn % min(3, len(self.trees))]
            roots = self.rng.permutation(roots_at(self.factors, c, over))
            roots = roots[: self._most_roots(trees)]
            while len(roots):
                count = min(self._limit, max(1, self.options.piece // trees.most))
                self.moves(roots[:count], trees, prices, within)
                roots = roots[count:]
                yield
        choice = self.board.choice.copy()
        live = prices_of_nodes(c, over) > 0
        choice[live] = least_usage(c)[live]
        self.board = board_of(c, choice)

    def _jitter(self) -> float:
        return 1.0 + self.options.jitter * (2.0 * float(self.rng.random()) - 1.0)


def fitting(condensed: Condensed, solution: ShardingSolution) -> Ints | None:
    """Return a choice as one of what is condensed, None where it uses what was removed or, with
    usages rounded up, does not fit.
    """
    compact, choice = condensed.compact, condensed.contract(solution.strategy)
    if choice is None or (usage_of(compact, choice) > compact.capacity).any():
        return None
    return choice


def start_of(condensed: Condensed, solution: ShardingSolution | None) -> Ints:
    """Return where a search begins: at a choice that is known, if it can, or at the least usage."""
    choice = None if solution is None else fitting(condensed, solution)
    return least_usage(condensed.compact) if choice is None else choice


def tree_sizes(most: float) -> list[int]:
    """Return the sizes of trees: 3, 30, 300, ... up to `most`."""
    return list(
        itertools.takewhile(lambda size: size <= most, (3 * 10**i for i in itertools.count()))
    )


@dataclass(eq=False)
class Windows:
    """Windows on one problem.

    Attributes
    ----------
    pairs : about how many pairs of strategies the next window leaves open; at first `first_pairs`.
    seconds : deterministic ones of CP-SAT per window: the length of one step of a search, after
    which others get their turn.
    """

    first_pairs: ClassVar[int] = 2000
    seconds: ClassVar[float] = 0.1

    compact: Compact
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.pairs = self.first_pairs

    def improve(self, choice: Ints, cost: int, other: Ints | None = None) -> Ints | None:
        """Return a choice of less than `cost`, that of `choice`, which differs in a window, and has
        strategies of `other` there if that is given; None if none was found.
        """
        c = self.compact
        if other is None:
            alive = np.repeat(self._window(choice, c.num_choices), c.num_choices)
        else:
            free = self._window(choice, 1 + (choice != other))
            alive = np.zeros(len(c.cost), np.bool_)
            alive[(c.node_ptr[:-1] + other)[free]] = True
        alive[c.node_ptr[:-1] + choice] = True
        inner = condense(as_draft(c), alive)
        rest, below = inner.compact, cost - inner.offset
        if rest.num_nodes == 0 or below <= 0:
            return None
        if amount_left(rest, below) > CP_SAT_PAIRS:
            self._shrink()
            return None
        found = solve_rest(
            rest,
            below,
            seconds=self.seconds,
            deterministic=True,
            seed=int(self.rng.integers(2**31)),
        )
        if found.choice is not None or found.bound >= below:
            self.pairs = min(2 * self.pairs, CP_SAT_PAIRS)
        else:
            self._shrink()
        return None if found.choice is None else inner.expand(found.choice)

    def _shrink(self) -> None:
        self.pairs = max(self.first_pairs // 8, self.pairs // 2)

    def _window(self, choice: Ints, sizes: Ints) -> Flags:
        """Return which nodes are free, if they have so many strategies there: more than one."""
        c = self.compact
        used = usage_of(c, choice)
        free = np.zeros(c.num_nodes, np.bool_)
        seen = sizes < 2
        starts, open_pairs = iter(self.rng.permutation(np.flatnonzero(~seen)).tolist()), 0
        queue: list[int] = []
        while open_pairs < self.pairs:
            if not queue:
                v = next((v for v in starts if not seen[v]), None)
                if v is None:
                    break
                seen[v] = True
                queue.append(v)
            v = queue.pop(0)
            free[v] = True
            near = row_at(c.adj_node, c.adj_ptr, v)
            open_pairs += int(sizes[v]) + int((sizes[near] * sizes[v])[free[near]].sum())
            more = self.rng.permutation(near).tolist()
            more += self._sharing(v, used)
            for w in more:
                if not seen[w]:
                    seen[w] = True
                    queue.append(w)
        return free

    def _sharing(self, v: int, used: Ints) -> list[int]:
        """Return a node that is live at the fullest time point of v, if any."""
        c = self.compact
        first, last = int(c.first[v]), int(c.last[v])
        if first == last:
            return []
        full = used[first:last] / np.maximum(1, c.capacity[first:last])
        time = first + int(full.argmax())
        live = np.flatnonzero((c.first <= time) & (time < c.last))
        return [int(live[self.rng.integers(len(live))])]


@dataclass(frozen=True)
class TreeDescent(SearchSolver):
    """Attempts of the search by tree moves, without prices, until they bring nothing."""

    kernels = ("sharding",)
    patience: int = option(2, "attempts without an improvement after which it ends", low=1)

    def search(self, problem: ShardingProblem, tracker: Tracker[ShardingSolution]) -> None:
        """Improve the initial solution, or the one of the least usage."""
        condensed = condense(*draft_of(problem, cost_scale(problem)))
        compact = condensed.compact
        start = start_of(condensed, tracker.solution)

        def offer(choice: Ints) -> None:
            solution = ShardingSolution(condensed.expand(choice))
            tracker.offer(total_cost(problem, solution), solution)

        tracker.count(1)
        offer(start)
        if not compact.num_nodes:
            return
        search = TreeSearch(compact, start, tracker.rng())
        idle = 0
        while idle < self.patience and not tracker.stop():
            before, attempt = search.best_cost, search.attempts
            while search.attempts == attempt and not tracker.stop():
                tracker.count(min(search.round(tracker.evaluations_left), tracker.evaluations_left))
            offer(search.best)
            idle = idle + 1 if search.best_cost == before else 0
