"""The default: the Lagrangian bound, CP-SAT on what it leaves, and the search by tree moves.

`prices`, `branches`, `joins`, `squares` and `cp-sat` raise the bound, `tree-moves` improves the
choice. What one finds serves the others: the prices and the choices that the bound's messages
decode guide the moves, and the cost of the best choice aims and narrows the bound.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.threads import num_threads
from placeopt.sharding.bounds.bounding import CP_SAT_PAIRS, Bounding
from placeopt.sharding.bounds.branches import STEPS, Branches
from placeopt.sharding.bounds.joins import GAINED, GROWTH, MOST_PAIRS, Joins
from placeopt.sharding.bounds.squares import FITS, MOST_STRATEGIES, ROUND, Squares
from placeopt.sharding.compact import MAX_TOTAL, Compact, Condensed, cost_of, costs_of
from placeopt.sharding.decode import least_usage
from placeopt.sharding.evaluate import total_cost
from placeopt.sharding.exact_rest import allowed_choice
from placeopt.sharding.objective import PROOF_PART
from placeopt.sharding.problem import ShardingProblem, ShardingSolution
from placeopt.solvers.sharding.dive import LEAST_STEPS
from placeopt.solvers.sharding.tree_search import Guide, TreeSearch, fitting, start_of
from placeopt.solving.base import SearchSolver
from placeopt.solving.plugin import PluginTracker
from placeopt.solving.run import run_part
from placeopt.solving.scheduler import Scheduler
from placeopt.solving.tactic import BOTH, BOUND, VALUE, WAITING, Runs, State, Steps, Tactic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from placeopt.model.arrays import Ints
    from placeopt.solving.bound import BoundTracker
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class ShardingPortfolio(SearchSolver):
    """Tactics that share what they find."""

    endless = True
    kernels = ("sharding",)

    def search(self, problem: ShardingProblem, tracker: Tracker[ShardingSolution]) -> None:
        """Improve choice and bound until the budget is spent or they meet."""
        if PluginTracker.whole_of(tracker) is tracker:
            work(problem, tracker)
        else:  # of a class derived from this one: what ours proves is run as ours
            run_part(tracker, ShardingPortfolio(), initial=tracker.solution)

    def proves_objective(self, name: str) -> bool:
        """Whether it proves bounds on the objective."""
        return name == "cost"

    def prove(self, problem: ShardingProblem, tracker: BoundTracker) -> None:
        """Raise the bound; a better choice helps to, so that one is looked for as well."""
        work(problem, tracker, tracker.upper)


@dataclass(frozen=True)
class Pieces:
    """How long the pieces of work are, and what counts as one.

    Attributes
    ----------
    guess : the best cost is guessed to be at most this multiple of a choice's costs that are not
    all but forbidden.
    most_seconds : until the sides tell each other what they have.
    noticed : part of the gap by which a bound has to rise to be reported before the end: steps that
    gain next to nothing are not to look like the fastest way to close it.
    steps, moves : of the bound, of the search: where evaluations are the limit, so many steps count
    as so many moves, for they take about as long.
    effort : CP-SAT's deterministic seconds that count as one evaluation.
    build_seconds : per pair of strategies that building the model for CP-SAT takes, about.
    literal_seconds : per literal of clauses and usages that building a model of what is allowed
    takes, about. most_literals : of such a model; so many take about a gigabyte.
    cube_seconds : per cube of the number of strategies, one of each node left out, that a step of
    squares takes, about.
    """

    guess: int = 4
    most_seconds: float = 2.0
    noticed: float = 1e-3
    steps: int = 10
    moves: int = 500
    effort: float = 1e-3
    build_seconds: float = 2.5e-5
    literal_seconds: float = 2e-6
    most_literals: int = 5_000_000
    cube_seconds: float = 4e-10


class Sides:
    """What the tactics of one solve share.

    Attributes
    ----------
    guide : the latest of the bound and what it is about, None before the first.
    step_seconds : that a step of the bound takes. reduce_seconds : that the first reductions took,
    about the most that later ones take.
    """

    pieces = Pieces()

    def __init__(
        self, problem: ShardingProblem, tracker: Tracker[ShardingSolution], upper: int | None
    ) -> None:
        self.problem = problem
        begun = time.perf_counter()
        # half of the time is for the bound and the search
        self.bounding = Bounding(problem, upper, lambda: tracker.seconds_left < tracker.elapsed)
        self.reduce_seconds = time.perf_counter() - begun
        self.guide: tuple[Condensed, Guide] | None = None
        self.step_seconds = math.inf
        self._aimed: tuple[int, Condensed] | tuple[None, None] = None, None

    def begin(self, tracker: Tracker[ShardingSolution]) -> None:
        """Offer the choice of the least usage, unless there is a choice already."""
        compact = self.bounding.compact
        if self.bounding.found is not None:
            self.offer(tracker, self.bounding.condensed, self.bounding.found)
        elif tracker.solution is None:
            self.offer(tracker, self.bounding.condensed, least_usage(compact))
        tracker.raise_bound(self.bounding.bound, "lagrangian")

    def offer(
        self, to: State | Tracker[ShardingSolution], condensed: Condensed, choice: Ints
    ) -> None:
        """Offer a choice of a condensed problem."""
        solution = ShardingSolution(condensed.expand(choice))
        to.offer(total_cost(self.problem, solution), solution)

    def aim(self, state: State) -> None:
        """Aim the bound at the best choice, and at a guess of the best cost: what a choice costs
        without what is all but forbidden.
        """
        bounding = self.bounding
        value, solution, condensed = state.value, state.solution, bounding.condensed
        if value is None or (self._aimed[0] == value and self._aimed[1] is condensed):
            return
        self._aimed = value, condensed
        cost, guess, choice = min(MAX_TOTAL, condensed.counted(value)), math.inf, None
        if cost >= bounding.forbidden or bounding.unit > 1:
            choice = condensed.contract(solution.strategy)
        if choice is not None:
            costs = np.concatenate(costs_of(condensed.compact, choice))
            if bounding.unit > 1:
                cost = int(costs.sum())
            guess = self.pieces.guess * int(costs[costs < bounding.forbidden].sum()) + 1
        bounding.aim(cost, guess)

    def tell(self, state: State) -> None:
        """Give the search prices and choices, and offer the one that keeps the limit."""
        bounding = self.bounding
        decoded, fitted = (bounding.decoded(limited=limited) for limited in (False, True))
        dual = bounding.dual.state()
        guide = Guide(bounding.prices, decoded, fitted, bounding.narrowed, dual)
        self.guide = bounding.condensed, guide
        self.offer(state, bounding.condensed, fitted)

    def report(self, state: State, method: str) -> None:
        """Report the bound, and a choice that was found on the way."""
        bounding = self.bounding
        if bounding.found is not None:
            self.offer(state, bounding.condensed, bounding.found)
            if bounding.unit > 1:  # in units it is better, but perhaps not in truth
                bounding.aim(cost_of(bounding.compact, bounding.found))
            bounding.found = None
        state.raise_bound(bounding.bound, method)


def work(
    problem: ShardingProblem, tracker: Tracker[ShardingSolution], upper: int | None = None
) -> None:
    """Improve choice and bound until the budget is spent or they meet.

    Parameters
    ----------
    upper : value of a known choice that is not at hand.
    """
    sides = Sides(problem, tracker, upper)
    sides.begin(tracker)
    tracker.count(1)
    Scheduler(TACTICS, sides, tracker, threads=num_threads()).run()


def _prices(state: State) -> Iterator[None]:
    """Take steps of the bound, and certify it now and then."""
    sides: Sides = state.facts
    bounding, tracker = sides.bounding, state.tracker
    pause, certified = 0.0, -math.inf  # seconds of the last exact pass, and when it ended
    while not bounding.settled and not state.stop():
        sides.aim(state)
        _take_turn(state, pause)
        sides.tell(state)
        now = time.perf_counter()
        last = tracker.seconds_left <= 2 * pause + 0.01
        if state.by_evaluations or last or now - certified >= PROOF_PART * pause:
            sides.aim(state)
            bounding.certify(
                narrow=state.by_evaluations or tracker.seconds_left > sides.reduce_seconds
            )
            certified = time.perf_counter()
            pause = certified - now
            rise = bounding.bound - state.lower_bound
            if last or rise > sides.pieces.noticed * (state.value - state.lower_bound):
                sides.report(state, "lagrangian")
        if last and not state.by_evaluations:
            return
        yield
    sides.report(state, "lagrangian")


def _take_turn(state: State, pause: float) -> None:
    """Take the steps of one turn.

    Parameters
    ----------
    pause : seconds of an exact pass; steps take a multiple of them.
    """
    sides, tracker = state.facts, state.tracker
    if state.by_evaluations:
        _take_steps(sides, sides.pieces.steps)
        tracker.count(min(sides.pieces.moves, tracker.evaluations_left))
    else:
        left = max(0.0, tracker.seconds_left - 2 * pause)
        length = min(sides.pieces.most_seconds, PROOF_PART * pause)
        _take_steps(sides, LEAST_STEPS, length, left)


def _take_steps(sides: Sides, least: int, length: float = 0.0, left: float = math.inf) -> None:
    """Take one step or more: at least so many, and for `length` seconds, but none once there are
    none `left`.
    """
    begun, taken, spent = time.perf_counter(), 0, 0.0
    while taken == 0 or ((taken < least or spent < length) and spent < left):
        sides.bounding.step()
        taken += 1
        spent = time.perf_counter() - begun
    sides.step_seconds = spent / taken


def _branches(state: State) -> Iterator[str | None]:
    """Part what is left, the first time once prices were stuck, and begin anew where the bound of
    the whole has become better than that of the parts.
    """
    sides: Sides = state.facts
    bounding, branches = sides.bounding, None
    while not bounding.settled and not state.stop():
        sides.aim(state)
        if bounding.settled or bounding.upper is None or not bounding.cheap:
            yield None
            continue
        if branches is None and not bounding.dual.calm:
            yield WAITING
            continue
        compact, whole = bounding.compact, bounding.inner_bound
        if branches is None or branches.compact is not compact or branches.bound < whole:
            branches = Branches(bounding)
        late = not state.by_evaluations and state.tracker.seconds_left < _part_seconds(sides)
        _take_branch(state, branches, bounding.upper, late=late)
        if branches.full or late:
            return
        yield None
    sides.report(state, "branches")


def _take_branch(state: State, branches: Branches, upper: int, *, late: bool) -> None:
    """Close parts by a known cost, part one more unless it is too late, and report the bound."""
    sides: Sides = state.facts
    branches.close(upper)
    if not (branches.over or late):
        branches.step(state.stop)
    if state.by_evaluations:
        spent = 2 * STEPS * sides.pieces.moves // sides.pieces.steps
        state.tracker.count(min(spent, state.tracker.evaluations_left))
    if branches.choice is not None:
        sides.bounding.found, branches.choice = branches.choice, None
    sides.bounding.prove(branches.bound)
    sides.report(state, "branches")


def _part_seconds(sides: Sides) -> float:
    """Return about how long it takes to part something, infinity while no good choice is known."""
    if sides.bounding.settled:
        return 0.0
    if not sides.bounding.cheap:
        return math.inf
    return 2 * (STEPS * sides.step_seconds + sides.reduce_seconds)


def _joins(state: State) -> Iterator[str | None]:
    """Join nodes of what is left: first while its tables double, then anew, more and more."""
    sides: Sides = state.facts
    bounding, growth, narrowed = sides.bounding, 1, None
    while not bounding.settled and not state.stop():
        sides.aim(state)
        if bounding.settled or not bounding.cheap:
            yield WAITING
            continue
        assert bounding.upper is not None
        pairs = len(bounding.dual.compact.table)
        if narrowed is not bounding.narrowed:
            narrowed, prices = bounding.narrowed, bounding.dual.prices
        if growth * pairs > MOST_PAIRS or _late_for_joins(state, growth):
            return
        below = bounding.upper - narrowed.offset
        joins = Joins(bounding.dual.compact, below, prices, growth * pairs)
        growth *= GROWTH
        yield None
        if joins.empty:
            continue
        yield from _join_steps(state, joins, below)
        if narrowed is bounding.narrowed and not bounding.settled:
            prices = joins.prices
            bounding.certify_by(joins)
            sides.report(state, "joins")


def _join_steps(state: State, joins: Joins, below: int) -> Iterator[None]:
    """Take steps until the later half of them gained next to nothing, or as long as there is time
    for a proof.
    """
    pieces, looked, before = state.facts.pieces, STEPS, -math.inf
    cost = pieces.moves * len(joins.dual.compact.table)
    cost //= pieces.steps * max(1, len(state.facts.bounding.dual.compact.table))
    for taken, _ in enumerate(_before_a_proof(state, joins.step, max(1, cost), 5), start=1):
        if taken == looked:
            if joins.bound - before <= GAINED * (below - joins.bound):
                return
            before, looked = joins.bound, 2 * taken
        yield


def _before_a_proof(
    state: State, step: Callable[[], None], cost: int, spare: int
) -> Iterator[None]:
    """Take steps, each of so many evaluations, as long as `spare` times the longest one is left:
    time for one more and for a proof.
    """
    tracker, longest = state.tracker, 0.0
    while not state.stop():
        if not state.by_evaluations and tracker.seconds_left < spare * longest:
            return
        begun = time.perf_counter()
        step()
        if state.by_evaluations:
            tracker.count(min(cost, tracker.evaluations_left))
        longest = max(longest, time.perf_counter() - begun)
        yield


def _late_for_joins(state: State, growth: int) -> bool:
    """Whether too little time is left for a round of joins."""
    seconds = _joins_seconds(state.facts) * (1 + growth)
    return not state.by_evaluations and state.tracker.seconds_left < seconds


def _joins_seconds(sides: Sides) -> float:
    """Return about how long joining takes for each time that the tables grow."""
    if sides.bounding.settled:
        return 0.0
    if not sides.bounding.cheap:
        return math.inf
    return sides.reduce_seconds + STEPS * sides.step_seconds


def _squares(state: State) -> Iterator[str | None]:
    """Look for squares of what is left, and bound what these leave, until they fit and bring no
    more.
    """
    sides: Sides = state.facts
    bounding, narrowed = sides.bounding, None
    while not bounding.settled and not state.stop():
        sides.aim(state)
        early = state.by_evaluations and state.tracker.evaluations < ROUND * sides.pieces.moves
        if bounding.settled or early or _squares_seconds(sides) == math.inf:
            yield WAITING
            continue
        if not state.by_evaluations and state.tracker.seconds_left < _squares_seconds(sides):
            return
        assert bounding.upper is not None
        if narrowed is not bounding.narrowed:
            narrowed = bounding.narrowed
            below = bounding.upper - narrowed.offset
            squares = Squares(bounding.dual.compact, below, bounding.dual.prices)
        yield from islice(_before_a_proof(state, squares.step, sides.pieces.moves, 3), ROUND)
        if narrowed is bounding.narrowed and not state.stop():
            known = bounding.bound
            bounding.certify_by(squares)
            sides.report(state, "squares")
            if bounding.bound <= known and squares.misfit < FITS:
                return


def _squares_seconds(sides: Sides) -> float:
    """Return about how long a round of squares takes, infinity while no good choice is known or too
    much is left.
    """
    bounding = sides.bounding
    if bounding.settled:
        return 0.0
    compact = bounding.narrowed.compact
    strategies = len(compact.cost)
    if not bounding.cheap or strategies > MOST_STRATEGIES:
        return math.inf
    return ROUND * sides.pieces.cube_seconds * (strategies - compact.num_nodes) ** 3


def _cp_sat(state: State, part: Tracker[ShardingSolution]) -> bool:
    """Solve what is left by CP-SAT for a piece of time."""
    sides: Sides = state.facts
    bounding = sides.bounding
    if state.by_evaluations and bounding.left() > CP_SAT_PAIRS:
        return True
    sides.aim(state)
    if not bounding.settled:
        if state.by_evaluations:
            spent = part.evaluations_left
            bounding.finish(sides.pieces.effort * spent, deterministic=True)
            part.count(spent)
        else:
            ending = None if part.exchange is None else part.exchange.ending
            bounding.finish(part.seconds_left, workers=state.threads, ending=ending)
    sides.report(state, "cp-sat")
    return bounding.settled


def _model_seconds(sides: Sides) -> float:
    """Return about how long building the model takes, infinity while too much is left."""
    left = sides.bounding.left()
    return math.inf if left > CP_SAT_PAIRS else sides.pieces.build_seconds * left


def _moves(state: State) -> Iterator[None]:
    """Make attempts, each guided by the latest prices."""
    sides: Sides = state.facts
    condensed, search, told = None, None, None
    while not state.stop() and not sides.bounding.rounded:
        if condensed is not sides.bounding.condensed or search is None:
            condensed = sides.bounding.condensed
            if condensed.compact.num_nodes == 0:
                return
            search = TreeSearch(condensed.compact, start_of(condensed, state.solution), state.rng)
        guide = sides.guide
        if guide is not None and guide is not told and guide[0] is condensed:
            search.guide(guide[1])
            told = guide
        if condensed.counted(state.value) < search.best_cost:
            choice = fitting(condensed, state.solution)
            if choice is not None:
                search.offer_best(choice)
        search.urgent = search.best_cost >= sides.bounding.forbidden
        _make_moves(state, search)
        if search.best_cost < condensed.counted(state.value):
            sides.offer(state, condensed, search.best)
        yield


def _allowed(state: State, part: Tracker[ShardingSolution]) -> bool:
    """Look for a choice that uses nothing that is all but forbidden, until one is known, or that
    there is none.
    """
    sides: Sides = state.facts
    condensed, forbidden = sides.bounding.condensed, sides.bounding.forbidden
    literals = _allowed_literals(condensed.compact)
    if condensed.counted(state.value) < forbidden or literals > sides.pieces.most_literals:
        return True
    spent = part.evaluations_left
    rest = allowed_choice(
        condensed.compact,
        forbidden,
        seconds=sides.pieces.effort * spent if state.by_evaluations else part.seconds_left,
        deterministic=state.by_evaluations,
        seed=int(state.rng.integers(2**31)),
    )
    if state.by_evaluations:
        part.count(spent)
    if rest.choice is not None:
        sides.offer(state, condensed, rest.choice)
    return rest.choice is not None or rest.bound == forbidden


def _allowed_literals(compact: Compact) -> int:
    """Return how many literals the clauses and usages of what is allowed have, about."""
    return len(compact.table) + int((compact.last - compact.first) @ compact.num_choices)


def _allowed_seconds(sides: Sides) -> float:
    """Return about how long building the model of what is allowed takes."""
    return sides.pieces.literal_seconds * _allowed_literals(sides.bounding.compact)


def _make_moves(state: State, search: TreeSearch) -> None:
    """Work for a piece of time, or of evaluations, or until a better choice is found."""
    tracker, known, pieces = state.tracker, search.best_cost, state.facts.pieces
    end = time.perf_counter() + min(pieces.most_seconds, state.piece)
    while not state.stop():
        made = search.round(min(pieces.moves, tracker.evaluations_left))
        tracker.count(min(made, tracker.evaluations_left))
        if search.best_cost < known or state.by_evaluations or time.perf_counter() >= end:
            return


TACTICS: tuple[Tactic, ...] = (
    Steps("prices", BOUND, _prices),
    Steps("branches", BOTH, _branches, needs=_part_seconds),
    Steps("joins", BOUND, _joins, needs=_joins_seconds),
    Steps("squares", BOUND, _squares, needs=_squares_seconds),
    Runs("cp-sat", BOTH, _cp_sat, needs=_model_seconds),
    Steps("tree-moves", VALUE, _moves),
    Runs("allowed", VALUE, _allowed, needs=_allowed_seconds),
)
"""Tactics of a sharding problem; those before others begin first."""
