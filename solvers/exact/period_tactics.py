"""The tactics of the period: pipelines, filled devices, annealing, prices, and the CP-SAT model.

Prices refute short periods, over the frontier of the graph, with all sets that a device may hold
(`prices`) or those that contiguity allows (`convex`). Where identical devices pay for transfers,
with at most one that does not, bound and value also meet without CP-SAT, but for chains
(`closing`).

The CP-SAT model takes any contiguity, 1F1B and GPipe, unrelated devices and link classes.
Variables: x[v, d] puts node v on device d; in[t, d] (out[t, d]) says that d receives (sends) tensor
t. With

    load[d] = sum_v compute[v, d] x[v, d] + sum_t weight[t, d] (in[t, d] + out[t, d])
    x[c, d] -> x[u, d] or in[t, d]     for each consumer c of u's tensor t
    x[u, d] -> x[c, d] or out[t, d]

minimise the period T >= load[d] (two such variables for "gpipe"). A tensor between two nodes has
one variable per device, for both directions.

Convexity: z[v, d] >= x[v, d] says that v or a descendant is on d; z grows upwards along order
edges, and x[u, d] and not x[v, d] forbid z[v, d] for an edge u -> v (section 4). Chain: a total
order of the devices, transitive, that every order edge respects.

The problem is contracted first under the incumbent's value, and the bound is a constraint.
Identical devices are told apart by falling load (by their order in the chain).

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 4.
"""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.arrays import together
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.ideals import ideal_lattice
from placeopt.period.bounds.congestion import congestion_bounds, round_seconds
from placeopt.period.bounds.device_types import area_bounds
from placeopt.period.bounds.prices import PriceBound
from placeopt.period.contracted import ContractedProblem, contract
from placeopt.period.evaluate import order_edges, period_loads
from placeopt.solvers.exact.ideal_program import MAX_CELLS, IdealProgram, best_chain
from placeopt.solvers.exact.linear_dp import (
    chain_positions,
    improve_orders,
    offer_devices,
    offer_stages,
    raise_bounds,
    search_orders,
)
from placeopt.solvers.exact.period_local_search import anneal_period, around_hubs
from placeopt.solvers.exact.placement_cp_sat import (
    MAX_GRID,
    CpSatSettings,
    PlacementModel,
    building_seconds,
    run_tactics,
    with_threads,
)
from placeopt.solvers.heuristics.context import packing_seconds
from placeopt.solvers.heuristics.filling import fillings
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solving.tactic import (
    BOTH,
    BOUND,
    FIRST_EVALUATIONS,
    VALUE,
    WAITING,
    Runs,
    State,
    Steps,
    Tactic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortools.sat.python import cp_model

    from placeopt.model.arrays import Flags, Ints
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import PlacementTracker


class PeriodFacts:
    """What the tactics of one problem share.

    Attributes
    ----------
    max_ideals : of the program over all of them: more take seconds that bounds and annealing need.
    """

    max_ideals: ClassVar[int] = 60_000

    def __init__(self, settings: Any, problem: PlacementProblem, *, timed: bool) -> None:
        self.settings, self.problem, self.timed = settings, problem, timed
        self.prices = PriceBound(problem)
        self.convex = PriceBound(problem, "convex")

    @cached_property
    def free(self) -> ContractedProblem:
        """The problem without contiguity, contracted."""
        return contract(self.problem, contiguity="none")

    @cached_property
    def chain(self) -> ContractedProblem | None:
        """The problem contracted for chains; None if there is none (fused cycles fit no device,
        perhaps). Of large graphs nodes are joined, so that a pass over all pairs takes a second.
        """
        try:
            model = contract(self.problem, contiguity="chain")
        except InfeasibleProblemError:
            return None
        return model.coarse(math.isqrt(MAX_CELLS))

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
        """Whether annealing has something to choose, and its table of all paths is not larger than
        those of ideals may be.
        """
        p = self.problem
        model = self.chain if p.contiguity == "chain" else self.free
        few = p.contiguity != "convex" or p.num_ops**2 <= MAX_CELLS
        return few and p.num_devices > 1 and model is not None and model.num_nodes > 1

    @property
    def contiguous(self) -> bool:
        """Whether devices may not hold every set, and prices may prove something by that."""
        return self.prices_apply and self.problem.contiguity != "none"

    @property
    def prices_apply(self) -> bool:
        """Whether prices may prove something; they go by the clock."""
        return self.timed and self.problem.num_devices > 1

    @property
    def building(self) -> float:
        """Seconds that building the CP-SAT model takes, about."""
        m, k = self.free, self.problem.num_devices
        size = m.num_nodes + len(m.producer) + len(m.consumer)
        if self.problem.contiguity == "chain":  # a clause, a quarter of the others, for two devices
            size += k * (k + len(m.consumer)) // 4
        return building_seconds(size, k)


def search_period(
    settings: CpSatSettings,
    problem: PlacementProblem,
    tracker: PlacementTracker,
    *,
    prove: bool = False,
) -> None:
    """Minimise the period by its tactics, or run only those that prove, after the bounds that take
    milliseconds.
    """
    raise_bounds(tracker)
    timed = tracker.budget.evaluations is None and math.isfinite(tracker.seconds_left)
    facts = PeriodFacts(settings, tracker.problem, timed=timed)
    improve = settings.warm_start and not prove
    run_tactics(TACTICS, settings, facts, tracker, improve=improve)


def first_placements(tracker: PlacementTracker) -> None:
    """Offer what pipelines and a first piece of annealing find."""
    facts = PeriodFacts(None, tracker.problem, timed=False)
    pieces = [] if facts.chain is None else [search_orders(tracker, facts.chain)]
    if facts.anneals:
        pieces.append(islice(anneal_period(tracker, tracker.rng()), FIRST_EVALUATIONS))
    for _ in chain(*pieces):
        if tracker.stop():
            break


def _starts(state: State) -> Iterator[None]:
    """Offer the best pipeline along a few orders; before a large graph is contracted for that,
    chunks of equal work, and without contiguity pieces around hubs.
    """
    if state.problem.num_ops**2 > MAX_CELLS:
        space = SearchSpace(state.problem, packing_seconds(state.tracker))
        homes = space.chunk_homes()
        if homes is not None:
            _offer(state, space.devices_of(homes))
            yield
    if state.problem.contiguity == "none":
        for device in around_hubs(state.facts.free):
            _offer(state, state.facts.free.expand(device))
            yield
    if state.facts.chain is not None:
        yield from search_orders(state.tracker, state.facts.chain)


def _filling(state: State) -> Iterator[None]:
    """Offer the first placement that fits, while there is none: a chain, or, by turns, any."""
    problem, ways = state.problem, []
    kinds = ("chain", "none") if problem.contiguity == "none" else ("chain",)
    for contiguity in kinds if state.value is None else ():
        with suppress(InfeasibleProblemError):
            ways.append(fillings(contract(problem, contiguity=contiguity), state.rng))
    for home in chain.from_iterable(zip_longest(*ways)):
        if state.value is not None:
            return
        state.tracker.count()
        if home is not None:
            offer_devices(state.tracker, home)
        yield


def _orders(state: State) -> Iterator[None]:
    """Offer the best pipelines along orders near the incumbent."""
    if state.facts.chain is not None:
        yield from improve_orders(state.tracker, state.facts.chain, state.rng)


def _ideals(state: State, part: PlacementTracker) -> bool:
    """Offer the best pipeline of all."""
    program = state.facts.ideals
    outcome = best_chain(program, part.value, part.stop)
    part.count()
    offer_stages(part, program.model, outcome)
    return outcome.complete or not part.stop()


def _area(state: State) -> Iterator[None]:
    """Prove what the areas of the device types give."""
    for bound in area_bounds(state.facts.free, lambda: state.lower_bound):
        state.raise_bound(bound, "area")
        yield


def _congestion(state: State) -> Iterator[str | None]:
    """Prove what flows between all pairs give, round by round; not while prices over the frontier
    see every set.
    """
    prices: PriceBound = state.facts.prices
    for bound in congestion_bounds(state.facts.free):
        state.raise_bound(bound, "congestion")
        yield None
        while prices.sees_all:
            yield WAITING


def _over_frontier(state: State, prices: PriceBound) -> Iterator[str | None]:
    """Prove by prices over the frontier, anew for every better value."""
    more = True
    while more:
        value = state.value
        state.raise_bound(prices.raise_from(state.lower_bound, value, state.piece), "columns")
        yield None
        while prices.cover is not None and not prices.goes_on and state.value == value:
            yield WAITING
        more = prices.goes_on or prices.cover is not None


def _closing(state: State) -> Iterator[str | None]:
    """Raise the bound and lower the value until they meet."""
    prices: PriceBound = state.facts.convex if state.facts.contiguous else state.facts.prices
    while prices.cover is None or not prices.cover.exact or state.value is None:
        yield WAITING
    closing = prices.closing(lambda: state.value, lambda device: _offer(state, device))
    while closing is not None:
        value = state.value
        state.raise_bound(closing.raise_from(state.lower_bound, state.piece), "columns")
        yield None
        while not closing.unfinished and state.value == value:
            yield WAITING


def _offer(state: State, device: Ints) -> None:
    state.tracker.count()
    offer_devices(state.tracker, device)


def _cp_sat(state: State, part: PlacementTracker) -> bool:
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
    if not model.solve(with_threads(state), part):
        return False
    if part.value is not None and max(1, -(-part.value // MAX_GRID)) < model.grid:
        return False  # a model for this value has a finer grid
    state.tracker.stopped = True
    return True


TACTICS: tuple[Tactic, ...] = (
    Steps("starts", VALUE, _starts),
    Steps("filling", VALUE, _filling),
    Runs("ideals", VALUE, _ideals, when=lambda facts: facts.uses_ideals),
    Steps("orders", VALUE, _orders, when=lambda facts: facts.problem.contiguity == "chain"),
    Steps(
        "annealing",
        VALUE,
        lambda state: anneal_period(state.tracker, state.rng),
        when=lambda facts: facts.anneals,
    ),
    Steps("area", BOUND, _area),
    Steps(
        "prices",
        BOUND,
        lambda state: _over_frontier(state, state.facts.prices),
        when=lambda facts: facts.prices_apply,
    ),
    Steps(
        "convex",
        BOUND,
        lambda state: _over_frontier(state, state.facts.convex),
        when=lambda facts: facts.contiguous,
    ),
    Steps("congestion", BOUND, _congestion, needs=lambda facts: round_seconds(facts.free)),
    Steps("closing", BOTH, _closing, when=lambda facts: facts.prices_apply),
    Runs("cp-sat", BOTH, _cp_sat, needs=lambda facts: facts.building),
)
"""Tactics of the period; those before others begin first."""


def refutes(problem: PlacementProblem, limit: int, seconds: float, num_workers: int = 1) -> bool:
    """Whether CP-SAT proves, in integers, that no placement has a period of at most `limit`
    ticks.
    """
    from ortools.sat.python import cp_model

    if limit < 0:
        return True
    try:
        model = PeriodCpModel(problem, limit, 0)
    except InfeasibleProblemError:
        return True
    solver = cp_solver(
        workers=num_workers, seconds=seconds, linearization_level=2, stop_after_first_solution=True
    )
    return bool(solve_interruptibly(solver, model.cp) == cp_model.INFEASIBLE)


def fitting(model: ContractedProblem, limit: int) -> Flags:
    """Return whether each node alone fits each device, its time within `limit` ticks; shape (N,
    num_devices).
    """
    held = model.resident[:, None] <= model.capacity
    return (model.allowed & held & (model.total <= limit))[:, model.type_of]


class PeriodCpModel(PlacementModel):
    """The CP-SAT model of one problem; solutions above `incumbent` ticks are cut off."""

    def __init__(self, problem: PlacementProblem, incumbent: int | None, lower_bound: int) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        self.model = contract(problem, limit=incumbent)
        self.cp = cp_model.CpModel()
        self.limit = (
            self.model.largest_load
            if incumbent is None
            else min(incumbent, self.model.largest_load)
        )
        self.grid = max(1, -(-self.limit // MAX_GRID))
        self.lower_bound = lower_bound
        self._place()
        self._memory()
        self._loads()
        if problem.contiguity == "convex":
            self._convex()
        elif problem.contiguity == "chain":
            self._chain()

    # --- variables and constraints
    # ---------------------------------------------------------------------

    def _place(self) -> None:
        m, cp = self.model, self.cp
        self.x: list[list[cp_model.IntVar | None]] = []
        for v, fits in enumerate(fitting(m, self.limit).tolist()):
            row = [cp.new_bool_var(f"x{v}_{d}") if x else None for d, x in enumerate(fits)]
            self.x.append(row)
            present = [var for var in row if var is not None]
            if present:
                cp.add_exactly_one(present)
            else:
                cp.add_bool_or([])  # nothing within the limit

    def _memory(self) -> None:
        m = self.model
        total = int(m.resident.sum())
        unit = max(1, total // MAX_GRID)
        for d in range(self.problem.num_devices):
            capacity = int(m.capacity[m.type_of[d]])
            if total > capacity:
                # With a unit above one byte, floors relax the constraint; every solution is checked
                # again.
                self.cp.add(
                    sum(int(m.resident[v]) // unit * x for v, x in self._on(d) if m.resident[v])
                    <= capacity // unit
                )

    def _on(self, d: int) -> list[tuple[int, cp_model.IntVar]]:
        return [(v, x) for v in range(self.model.num_nodes) if (x := self.x[v][d]) is not None]

    def _loads(self) -> None:
        cp, top = self.cp, self.limit // self.grid
        passes = len(self.model.pass_compute)
        period = [cp.new_int_var(0, top, f"T{p}") for p in range(passes)]
        self.load: list[list[cp_model.IntVar]] = []
        for d in range(self.problem.num_devices):
            row = []
            for p, terms in enumerate(self._load_terms(d)):
                load = cp.new_int_var(0, top, f"load{p}_{d}")
                cp.add(load == sum(terms))
                cp.add(load <= period[p])
                row.append(load)
            self.load.append(row)
        cp.add(sum(period) >= self.lower_bound // self.grid)
        if passes == 2:
            cp.add(sum(period) <= top)
        if self.problem.contiguity != "chain":
            for devices in self.model.types:
                for a, b in itertools.pairwise(devices):
                    cp.add(self.load[a][0] >= self.load[b][0])
        cp.minimize(sum(period))

    def _load_terms(self, d: int) -> list[list[Any]]:
        """Terms of the load of a device, per pass."""
        m, g = self.model, int(self.model.type_of[d])
        terms: list[list[Any]] = [[] for _ in m.pass_compute]
        for v, x in self._on(d):
            for p, compute in enumerate(m.pass_compute):
                terms[p].append(self._coarse(compute[v, g]) * x)
        for t in range(len(m.producer)):
            ticks = self._coarse(m.weight[t, g])
            if ticks:
                terms[int(m.tensor_pass[t])].extend(ticks * var for var in self._transfer(t, d))
        return terms

    def _coarse(self, ticks: np.int64) -> int:
        """Ticks on the grid; what exceeds the limit only has to say so."""
        return min(int(ticks), self.limit + 1) // self.grid

    def _transfer(self, t: int, d: int) -> list[cp_model.IntVar]:
        """Variables that are 1 where device d receives or sends tensor t."""
        m, cp = self.model, self.cp
        u = self.x[int(m.producer[t])][d]
        consumers = [self.x[c][d] for c in m.readers(t)]
        present = [c for c in consumers if c is not None]
        if u is None and not present:
            return []
        if len(consumers) == 1:  # one variable for both directions
            cut = cp.new_bool_var(f"cut{t}_{d}")
            self._implies(present, u, cut)
            self._implies([u], consumers[0], cut)
            return [cut]
        found = []
        if present:
            into = cp.new_bool_var(f"in{t}_{d}")
            self._implies(present, u, into)
            found.append(into)
        if u is not None:
            out = cp.new_bool_var(f"out{t}_{d}")
            for c in consumers:
                self._implies([u], c, out)
            found.append(out)
        return found

    def _convex(self) -> None:
        # Convexity is about paths of ops: nodes would join paths that no op path follows.
        cp, node = self.cp, self.model.node
        source, target = order_edges(self.problem, "convex")
        edges = list(together(source, target))
        ops = np.union1d(source, target).tolist()
        for d in range(self.problem.num_devices):
            z = {op: cp.new_bool_var(f"z{op}_{d}") for op in ops}
            for op in ops:
                x = self.x[node[op]][d]
                if x is not None:
                    cp.add_implication(x, z[op])
            for u, v in edges:
                cp.add_implication(z[v], z[u])
                if node[u] != node[v]:
                    self._implies([self.x[node[u]][d]], self.x[node[v]][d], z[v].negated())

    def _chain(self) -> None:
        cp, m, k = self.cp, self.model, self.problem.num_devices
        before: dict[tuple[int, int], Any] = {}
        for a, b in itertools.combinations(range(k), 2):
            alike = m.type_of[a] == m.type_of[b]
            first = cp.new_constant(1) if alike else cp.new_bool_var(f"before{a}_{b}")
            before[a, b], before[b, a] = first, first.negated()
        for a, b, c in itertools.permutations(range(k), 3):
            cp.add_bool_or([before[a, b].negated(), before[b, c].negated(), before[a, c]])
        for u, v in together(m.order_from, m.order_to):
            for a, b in itertools.permutations(range(k), 2):
                x, y = self.x[u][a], self.x[v][b]
                if x is not None and y is not None:
                    cp.add_bool_or([x.negated(), y.negated(), before[a, b]])

    # --- solutions
    # -------------------------------------------------------------------------------------

    def offer(self, tracker: PlacementTracker, value: Callable[[Any], int]) -> None:
        """Evaluate a solution of the model on the fine grid and offer it."""
        rows = [[0 if x is None else int(value(x)) for x in row] for row in self.x]
        device = self.model.expand(np.array(rows, np.int64).argmax(axis=1))
        tracker.count()
        offer_devices(tracker, device)

    def ticks(self, bound: int) -> int:
        """Every load of the model is rounded down."""
        return bound * self.grid

    def hint(self, placement: Placement) -> None:
        """Hint the incumbent; devices of a type by falling load, in a chain by their order."""
        loads = period_loads(self.problem, placement.device)
        load = loads[0] if self.model.two_pass else loads.sum(axis=0)
        position, draw = -load, np.random.default_rng(0)
        if self.problem.contiguity == "chain":
            position = chain_positions(self.problem, placement.device, draw)
        rename = np.arange(self.problem.num_devices)
        for devices in self.model.types:
            rename[sorted(devices, key=lambda d: (position[d], d))] = devices
        node_device = self.model.node_devices(rename[placement.device])
        for v, row in enumerate(self.x):
            for d, x in enumerate(row):
                if x is not None:
                    self.cp.add_hint(x, int(node_device[v] == d))
