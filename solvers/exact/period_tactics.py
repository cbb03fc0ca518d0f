"""The tactics of the period: pipelines, annealing, what prices prove, and the CP-SAT model.

Prices refute short periods, over a thin frontier of the graph where it has one (`prices`) or by
sets one by one (`columns`). Where identical devices pay for transfers, with at most one that does
not, bound and value of "none" also meet without CP-SAT (`closing`).
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar

from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.ideals import ideal_lattice
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.period.bounds.device_types import area
from placeopt.period.bounds.prices import PriceBound
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_batch
from placeopt.solvers.exact.chain_search import best_chain
from placeopt.solvers.exact.ideal_program import MAX_CELLS, IdealProgram
from placeopt.solvers.exact.linear_dp import (
    improve_orders,
    offer_stages,
    raise_bounds,
    search_orders,
)
from placeopt.solvers.exact.period_cp_sat import PeriodCpModel
from placeopt.solvers.exact.period_local_search import anneal_period
from placeopt.solvers.exact.placement_cp_sat import (
    MAX_GRID,
    building_seconds,
    run_tactics,
    with_threads,
)
from placeopt.solving.tactic import BOTH, BOUND, FIRST_EVALUATIONS, VALUE, WAITING, Runs, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.arrays import Ints
    from placeopt.model.problem import PlacementProblem
    from placeopt.period.contracted import ContractedProblem
    from placeopt.solvers.exact.placement_cp_sat import CpSatSettings
    from placeopt.solving.tactic import State, Tactic
    from placeopt.solving.tracker import Tracker


class PeriodFacts:
    """What the tactics of one problem share.

    Attributes
    ----------
    max_ideals, max_nodes : ideals of the program over all of them, and nodes of those along one
    order: more take seconds that bounds and annealing need.
    """

    max_ideals: ClassVar[int] = 60_000
    max_nodes: ClassVar[int] = 2_000

    def __init__(self, settings: Any, problem: PlacementProblem, *, timed: bool) -> None:
        self.settings, self.problem, self.timed = settings, problem, timed
        self.prices = PriceBound(problem)

    @cached_property
    def free(self) -> ContractedProblem:
        """The problem without contiguity, contracted."""
        return contract(self.problem, contiguity="none")

    @cached_property
    def chain(self) -> ContractedProblem | None:
        """The problem contracted for chains; None if there is none (fused cycles fit no device,
        perhaps) or it is large.
        """
        try:
            model = contract(self.problem, contiguity="chain")
        except InfeasibleProblemError:
            return None
        return model if model.num_nodes <= self.max_nodes else None

    @cached_property
    def ideals(self) -> IdealProgram | None:
        """The program over all ideals, None where they are too many."""
        model = self.chain
        if model is None:
            return None
        lattice = ideal_lattice(
            model.num_nodes, model.order_from, model.order_to, limit=self.max_ideals
        )
        return None if lattice is None else IdealProgram(model, lattice)

    @property
    def uses_ideals(self) -> bool:
        """Whether the best chain is a placement among others: where it is the whole answer, a model
        that starts from it would prove nothing by itself.
        """
        return self.problem.contiguity != "chain" and self.ideals is not None

    @property
    def anneals(self) -> bool:
        """Whether annealing, which knows no chains, has something to choose, and its table of all
        paths is not larger than those of ideals may be.
        """
        p = self.problem
        few = p.contiguity == "none" or p.num_ops**2 <= MAX_CELLS
        return p.contiguity != "chain" and few and p.num_devices > 1 and self.free.num_nodes > 1

    @property
    def prices_apply(self) -> bool:
        """Whether prices may prove something; they go by the clock."""
        return self.timed and self.problem.num_devices > 1

    @property
    def building(self) -> float:
        """Seconds that building the CP-SAT model takes, about."""
        m = self.free
        size = m.num_nodes + len(m.producer) + len(m.consumer)
        return building_seconds(size, self.problem.num_devices)


def search_period(
    settings: CpSatSettings, problem: PlacementProblem, tracker: Tracker[Placement]
) -> None:
    """Minimise the period by its tactics."""
    heuristics = ("starts", "ideals", "orders", "annealing")
    _run([t for t in TACTICS if settings.warm_start or t.name not in heuristics], settings, tracker)


def prove_period(
    settings: CpSatSettings, problem: PlacementProblem, tracker: Tracker[Placement]
) -> None:
    """Run only the tactics that prove."""
    _run([t for t in TACTICS if t.side != VALUE], settings, tracker)


def _run(tactics: list[Tactic], settings: CpSatSettings, tracker: Tracker[Placement]) -> None:
    """Run tactics after the bounds that take milliseconds."""
    if not bounded(tracker):
        return
    timed = tracker.budget.evaluations is None and math.isfinite(tracker.seconds_left)
    facts = PeriodFacts(settings, tracker.problem, timed=timed)
    run_tactics(tactics, TACTICS, settings, facts, tracker)


def bounded(tracker: Tracker[Placement]) -> bool:
    """Record the bounds that take milliseconds; False if there is no placement at all."""
    try:
        raise_bounds(tracker)
    except InfeasibleProblemError as error:
        tracker.infeasible(str(error))
        return False
    return True


def first_placements(tracker: Tracker[Placement]) -> None:
    """Offer what pipelines and a first piece of annealing find."""
    facts = PeriodFacts(None, tracker.problem, timed=False)
    pieces = [] if facts.chain is None else [search_orders(tracker, facts.chain)]
    if facts.anneals:
        pieces.append(islice(anneal_period(tracker, tracker.rng()), FIRST_EVALUATIONS))
    for _ in chain(*pieces):
        if tracker.stop():
            break


def _starts(state: State) -> Iterator[None]:
    """Offer the best pipeline along a few orders."""
    if state.facts.chain is not None:
        yield from search_orders(state.tracker, state.facts.chain)


def _orders(state: State) -> Iterator[None]:
    """Offer the best pipelines along orders near the incumbent."""
    if state.facts.chain is not None:
        yield from improve_orders(state.tracker, state.facts.chain, state.rng)


def _ideals(state: State, part: Tracker[Placement]) -> bool:
    """Offer the best pipeline of all."""
    program = state.facts.ideals
    outcome = best_chain(program, part.value, part.stop)
    part.count()
    offer_stages(part, program.model, outcome)
    return outcome.complete or not part.stop()


def _anneal(state: State) -> Iterator[None]:
    """Anneal from the incumbent."""
    yield from anneal_period(state.tracker, state.rng)


def _area(state: State, part: Tracker[Placement]) -> bool:
    """Prove what the areas of the device types give."""
    part.raise_bound(area(state.facts.free, part.seconds_left), "area")
    return not part.stop()


def _prices(state: State) -> Iterator[str | None]:
    """Prove by prices over the frontier, anew for every better value."""
    prices: PriceBound = state.facts.prices
    while prices.goes_on:
        value = state.value
        state.raise_bound(prices.raise_from(state.lower_bound, value, state.piece), "columns")
        yield None
        while prices.cover is not None and not prices.goes_on and state.value == value:
            yield WAITING
        prices.goes_on |= prices.cover is not None


def _columns(state: State) -> Iterator[str | None]:
    """Prove by prices and sets one by one, where the frontier is wide or memory tight."""
    prices: PriceBound = state.facts.prices
    while prices.one_by_one:
        value = state.value
        bound = prices.raise_one_by_one(state.lower_bound, value, state.piece)
        state.raise_bound(bound, "columns")
        yield None


def _closing(state: State) -> Iterator[str | None]:
    """Raise the bound and lower the value until they meet."""
    while state.facts.prices.cover is None or state.value is None:
        yield WAITING
    closing = state.facts.prices.closing(lambda: state.value, lambda device: _offer(state, device))
    while closing is not None:
        value = state.value
        state.raise_bound(closing.raise_from(state.lower_bound, state.piece), "columns")
        yield None
        while not closing.unfinished and state.value == value:
            yield WAITING


def _offer(state: State, device: Ints) -> None:
    ticks = int(period_batch(state.problem, device[None, :])[0])
    state.tracker.count()
    if ticks < INFEASIBLE:
        state.offer(ticks, Placement(device))


def _cp_sat(state: State, part: Tracker[Placement]) -> bool:
    """Run the model of the whole problem for a piece of time.

    What is optimal on a grid that no better value would make finer ends the search: only rounding
    is left.
    """
    try:
        model = PeriodCpModel(part.problem, part.value, part.lower_bound)
    except InfeasibleProblemError as error:
        # of a chain: the nodes of a circle have no device in common
        part.infeasible(str(error))
        return True
    if not model.solve(with_threads(state), part, part.seconds_left):
        return False
    if part.value is not None and max(1, -(-part.value // MAX_GRID)) < model.grid:
        return False  # a model for this value has a finer grid
    state.tracker.stopped = True
    return True


TACTICS: tuple[Tactic, ...] = (
    Steps("starts", VALUE, _starts),
    Runs("ideals", VALUE, _ideals, when=lambda facts: facts.uses_ideals),
    Steps("orders", VALUE, _orders, when=lambda facts: facts.problem.contiguity == "chain"),
    Steps("annealing", VALUE, _anneal, when=lambda facts: facts.anneals),
    Runs("area", BOUND, _area),
    Steps("prices", BOUND, _prices, when=lambda facts: facts.prices_apply),
    Steps("columns", BOUND, _columns, when=lambda facts: facts.prices_apply),
    Steps("closing", BOTH, _closing, when=lambda facts: facts.prices_apply),
    Runs("cp-sat", BOTH, _cp_sat, needs=lambda facts: facts.building),
)
"""Tactics of the period; those before others begin first."""
