"""The tactics of the latency: starts, filled devices, annealing, flows over ideals, and the CP-SAT
model.

`flow` proves by the flows of `placeopt.latency.bounds.flow`, from coarse graphs to fine ones, and
its program finds placements that are good as well; `cp-sat` runs where they end and leave a gap: it
gained nothing on any problem of results/engine, in half of the time of the lane. It does not wait
where its model is built within a tactic's first piece of work, nor while no placement is known or
flows prove less than half of what the best one takes.

The CP-SAT model is that of `placeopt.latency.evaluate`, with q slots per accelerator. Variables:
x[c, u] puts class c (ops that share a device) into unit u, a slot or the pool; start and end of
every slot; ready[v], when op v's outputs are in host memory. With in[t, u], out[t, u] as for the
period

    end[u] = start[u] + sum compute x + sum transfer (in + out)
    ready[v] >= end[u]                 if v in u
    start[u] >= ready[p]               if a consumer of p's tensor is in u and p is not
    ready[v] >= ready[p] + compute[v]  if v is in the pool, for every producer p

All times are multiplied by a factor above the number of slots and every slot lasts one unit more,
so that slots of no length cannot wait for each other in a circle; the value is the integer part
after division. For q > 1 ops of a class may sit in different slots of one accelerator, so x is per
op and device per class.

Starts are parts side by side (`placeopt.solvers.exact.latency_parts`), segments of a topological
order, and pipelines. The greedy rule of the literature fills
one accelerator after the other along a topological order. Its optimal form is a dynamic program:
f[j][a] is the least serial time of the first j nodes with accelerators 0..a-1 used once each, a
segment of nodes on one accelerator, everything between segments in the pool.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.latency.bounds import latency_bounds
from placeopt.latency.bounds.flow import flow_bounds
from placeopt.latency.evaluate import Cooling, Groups, anneal_slots, latency_arrays, latency_batch
from placeopt.latency.judge import placement_slots
from placeopt.model.arrays import (
    Floats,
    Ints,
    neighbours,
    row_at,
    running_sums,
    stable_order,
    sums_by,
    together,
    touching_tensors,
    true_places,
)
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.ideals import linear_lattice
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem
from placeopt.model.threads import call_interruptibly
from placeopt.period.contracted import ContractedProblem, contract, device_types
from placeopt.solvers.exact.annealing_cycles import anneal_in_cycles
from placeopt.solvers.exact.ideal_program import (
    IdealProgram,
    best_chain,
    stage_devices,
    states_along,
)
from placeopt.solvers.exact.latency_parts import side_by_side
from placeopt.solvers.exact.linear_dp import QUICK
from placeopt.solvers.exact.placement_cp_sat import (
    MAX_GRID,
    CpSatSettings,
    PlacementModel,
    building_seconds,
    run_tactics,
    with_threads,
)
from placeopt.solvers.heuristics.filling import Filling, fillings, first_filled
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solving.tactic import BOTH, BOUND, FIRST_SECONDS, VALUE, Runs, State, Steps, Tactic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.random import Generator
    from ortools.sat.python import cp_model

    from placeopt.solving.tracker import PlacementTracker


class LatencyFacts:
    """What the tactics of one problem share."""

    def __init__(self, settings: CpSatSettings, problem: PlacementProblem) -> None:
        self.settings, self.problem = settings, problem
        self.flows_gain = False  # whether flows prove half of the best value and may prove more
        self.model: LatencyCpModel | None = None

    @property
    def building(self) -> float:
        """Seconds that building the CP-SAT model takes, about; more than there are for a large one
        while flows gain.
        """
        p = self.problem
        size = p.num_ops + p.num_tensors + p.num_edges
        seconds = building_seconds(size, p.num_devices * p.slots)
        return math.inf if self.flows_gain and seconds > FIRST_SECONDS else seconds


def search_latency(
    settings: CpSatSettings,
    problem: PlacementProblem,
    tracker: PlacementTracker,
    *,
    prove: bool = False,
) -> None:
    """Minimise the latency by its tactics, or run only those that prove, after the bounds that take
    milliseconds.
    """
    for method, ticks in latency_bounds(tracker.problem, 0.0):
        tracker.raise_bound(ticks, method)
    facts, improve = LatencyFacts(settings, tracker.problem), settings.warm_start and not prove
    run_tactics(TACTICS, settings, facts, tracker, improve=improve)


def _filling(state: State) -> Iterator[None]:
    """Offer the first chain that fits, while there is no placement."""
    if state.value is not None:
        return
    turn, chain = _chain(state.problem)
    for device in () if chain is None else fillings(chain, state.rng):
        if state.value is not None:
            return
        state.tracker.count(int(device is None))
        offer_slots(state.tracker, device, turn * (state.problem.slots - 1))
        yield


def _flow(state: State) -> Iterator[None]:
    """Prove by flows, and offer the placements found."""
    facts: LatencyFacts = state.facts

    def offer(device: Ints, slot: Ints) -> None:
        offer_slots(state.tracker, device, slot)

    try:
        for bound, over in flow_bounds(state.problem, lambda: state.value, offer, state.stop):
            if over or not state.by_evaluations:  # pieces of a round are cut by the clock
                state.raise_bound(bound, "flow")
                facts.flows_gain = state.value is not None and not 0 < 2 * bound < state.value
                yield
    finally:
        facts.flows_gain = False


def _cp_sat(state: State, part: PlacementTracker) -> bool:
    """Run the model of the whole problem for a piece of time."""
    facts: LatencyFacts = state.facts
    if facts.model is None:
        facts.model = LatencyCpModel(part.problem, part.value)
    elif part.value is not None:
        facts.model.cut_off(part.value)
    return facts.model.solve(with_threads(state), part)


TACTICS: tuple[Tactic, ...] = (
    Steps("starts", VALUE, lambda state: starts(state.tracker)),
    Steps("filling", VALUE, _filling),
    Steps("annealing", VALUE, lambda state: anneal(state.tracker, state.rng)),
    Steps("flow", BOUND, _flow),
    Runs("cp-sat", BOTH, _cp_sat, needs=lambda facts: facts.building),
)
"""Tactics of the latency; those before others begin first."""


class LatencyCpModel(PlacementModel):
    """The CP-SAT model of one problem; solutions above `incumbent` ticks are cut off."""

    def __init__(self, problem: PlacementProblem, incumbent: int | None) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        self.cp = cp_model.CpModel()
        self.accelerators = true_places(problem.io_class >= 0)
        self.alike = [x for x in device_types(problem) if problem.io_class[x[0]] >= 0]
        self.pools = sorted({d for d in pooled(problem).tolist() if problem.io_class[d] < 0})
        self.units = [(d, s) for d in self.accelerators for s in range(problem.slots)] + [
            (d, -1) for d in self.pools
        ]
        self.factor = 2 * len(self.accelerators) * problem.slots + 2
        worst = _longest(problem) if incumbent is None else incumbent
        self.grid = max(1, -(-worst * self.factor // MAX_GRID))
        self.horizon = (worst // self.grid + 1) * self.factor
        self._place()
        self._times()

    def _place(self) -> None:
        p, heads = self.problem, self.problem.units.head
        self.x: list[dict[int, cp_model.IntVar]] = []  # by op and unit
        for v, head in enumerate(heads.tolist()):
            if p.slots > 1:
                self.x.append(self._row(v, np.array([v])))
            elif head == v:
                self.x.append(self._row(v, np.flatnonzero(heads == v)))
            else:
                self.x.append(self.x[head])
        if p.slots > 1:
            self._keep_units_together()
        self._limit_memory()

    def _row(self, v: int, members: Ints) -> dict[int, cp_model.IntVar]:
        """Return a variable per unit that can hold these ops; exactly one does."""
        p = self.problem
        fits = (p.compute[members] != INCOMPATIBLE).all(axis=0)
        fits &= p.resident[members].sum() <= p.capacity
        row = {
            u: self.cp.new_bool_var(f"x{v}_{u}") for u, (d, _) in enumerate(self.units) if fits[d]
        }
        if row:
            self.cp.add_exactly_one(row.values())
        else:
            self.cp.add_bool_or([])
        return row

    def _keep_units_together(self) -> None:
        """Keep ops that share a device on one, in whatever slots of it."""
        for v, head in enumerate(self.problem.units.head.tolist()):
            for d in dict(self.units) if head != v else ():
                self.cp.add(sum(self._on(v, d)) == sum(self._on(head, d)))

    def _limit_memory(self) -> None:
        p = self.problem
        total = p.resident.sum()
        unit = max(1, int(total) // MAX_GRID)
        for d in dict(self.units):
            if total > p.capacity[d]:
                terms = [
                    int(p.resident[v]) // unit * x for v in range(p.num_ops) for x in self._on(v, d)
                ]
                self.cp.add(sum(terms) <= int(p.capacity[d]) // unit)

    def _on(self, v: int, d: int) -> list[cp_model.IntVar]:
        return [x for u, x in self.x[v].items() if self.units[u][0] == d]

    def _ticks(self, ticks: int) -> int:
        return ticks // self.grid * self.factor

    def _times(self) -> None:
        cp, p = self.cp, self.problem
        self.latency = cp.new_int_var(0, self.horizon, "L")
        self.ready = [cp.new_int_var(0, self.horizon, f"r{v}") for v in range(p.num_ops)]
        for r in self.ready:
            cp.add(r <= self.latency)
        ends: list[cp_model.IntVar] = []
        durations = []
        for u, (_, s) in enumerate(self.units):
            if s < 0:
                self._pool(u)
                continue
            start, end = self._slot(u)
            if s > 0:
                cp.add(start >= ends[-1])
            ends.append(end)
            durations.append(end - start)
        self._paths()
        self._break_symmetry(durations)
        cp.minimize(self.latency)

    def _slot(self, u: int) -> tuple[cp_model.IntVar, cp_model.IntVar]:
        """Return start and end of a slot, which takes as long as its ops and transfers."""
        cp, p, d = self.cp, self.problem, self.units[u][0]
        start = cp.new_int_var(0, self.horizon, f"s{u}")
        end = cp.new_int_var(0, self.horizon, f"e{u}")
        terms: list[Any] = [1]
        for v, row in enumerate(self.x):
            x = row.get(u)
            if x is not None:
                ticks = self._ticks(int(p.compute[v, d]))
                if ticks:
                    terms.append(ticks * x)
                cp.add(self.ready[v] >= end).only_enforce_if(x)
        for t in range(p.num_tensors):
            terms.extend(
                self._ticks(int(p.io_ticks[t, d])) * y for y in self._transfers(t, u, start)
            )
        cp.add(end == start + sum(terms))
        return start, end

    def _pool(self, u: int) -> None:
        """Let each op of the pool be ready its own time after the ops before it."""
        ptr, producer, _ = self.problem.predecessors
        for v, row in enumerate(self.x):
            x = row.get(u)
            if x is not None:
                ticks = self._ticks(int(self.problem.compute[v, self.units[u][0]]))
                self.cp.add(self.ready[v] >= ticks).only_enforce_if(x)
                for w in np.unique(row_at(producer, ptr, v)).tolist():
                    self.cp.add(self.ready[v] >= self.ready[w] + ticks).only_enforce_if(x)

    def _transfers(self, t: int, u: int, start: cp_model.IntVar) -> list[cp_model.IntVar]:
        """In and out variables of tensor t at slot u; the slot starts after the tensors it
        reads.
        """
        cp, p = self.cp, self.problem
        producer = int(p.producer[t])
        mine = self.x[producer].get(u)
        rows = [self.x[c].get(u) for c in p.readers_of(t)]
        # classes may share a variable
        others = list({id(c): c for c in rows if c is not mine}.values())
        found = []
        present = [c for c in others if c is not None]
        if present:
            into = cp.new_bool_var(f"in{t}_{u}")
            self._implies(present, mine, into)
            cp.add(start >= self.ready[producer]).only_enforce_if(into)
            found.append(into)
        if mine is not None and others:
            out = cp.new_bool_var(f"out{t}_{u}")
            for c in others:
                self._implies([mine], c, out)
            found.append(out)
        return found

    def _paths(self) -> None:
        """Every path takes at least its compute and the transfers where it changes units
        (redundant).

        A path enters and leaves a slot at most once, so along it the compute of its ops and the
        transfers of its own edges are counted once in the times of the slots. Unlike the times of
        slots this needs no implication, so the linear relaxation sees it.
        """
        cp, p = self.cp, self.problem
        after = [cp.new_int_var(0, self.horizon, f"path{v}") for v in range(p.num_ops)]
        own: list[list[Any]] = [[] for _ in self.x]
        for v, d, _, x in self._choices():
            if p.compute[v, d] > 0:
                own[v].append(self._ticks(int(p.compute[v, d])) * x)
        for v in range(p.num_ops):
            cp.add(after[v] >= sum(own[v]))
            cp.add(after[v] <= self.ready[v])
        for e, t in enumerate(p.edge_tensor.tolist()):
            w, v = int(p.producer[t]), int(p.consumer[e])
            cp.add(after[v] >= after[w] + sum(own[v]) + sum(self._crossings(e, t, w, v)))

    def _crossings(self, e: int, t: int, w: int, v: int) -> Iterator[Any]:
        """Yield the ticks of tensor t out of and into each slot that holds one end of the edge e
        only.
        """
        for u, (d, s) in enumerate(self.units):
            ticks = self._ticks(int(self.problem.io_ticks[t, d])) if s >= 0 else 0
            x, y = self.x[w].get(u), self.x[v].get(u)
            if not ticks or x is y:
                continue
            for first, second in ((x, y), (y, x)):
                if first is not None:
                    crossed = self.cp.new_bool_var(f"c{e}_{u}")
                    self._implies([first], second, crossed)
                    yield ticks * crossed

    def _break_symmetry(self, durations: list[Any]) -> None:
        """Among identical accelerators the first slots last ever less long."""
        first = dict(zip(self.accelerators, durations[:: self.problem.slots], strict=True))
        for devices in self.alike:
            for a, b in itertools.pairwise(devices):
                self.cp.add(first[a] >= first[b])

    # --- solutions
    # -------------------------------------------------------------------------------------

    def cut_off(self, incumbent: int) -> None:
        """Leave out what is longer than a new incumbent."""
        self.cp.add(self.latency <= (incumbent // self.grid + 1) * self.factor)

    def ticks(self, bound: int) -> int:
        """One unit per slot is not time."""
        slots = len(self.accelerators) * self.problem.slots
        return -(-max(0, bound - slots) // self.factor) * self.grid

    def offer(self, tracker: PlacementTracker, value: Callable[[Any], int]) -> None:
        """Evaluate a solution of the model on the fine grid and offer it."""
        p = self.problem
        device, slot = np.zeros((2, p.num_ops), np.int64)
        for v, d, s, x in self._choices():
            if value(x):
                device[v], slot[v] = d, max(s, 0)
        offer_slots(tracker, device, slot)

    def hint(self, placement: Placement) -> None:
        """Hint the incumbent; interchangeable accelerators by the falling length of their first
        slot.
        """
        p = self.problem
        device = pooled(p)[placement.device]
        slot = placement_slots(p, placement)
        lasts = _slot_durations(p, device, slot)
        rename = np.arange(p.num_devices)
        self.cp.clear_hints()
        for devices in self.alike:
            rename[sorted(devices, key=lambda d: (-lasts[d], d))] = devices
        device = rename[device]
        hinted: set[int] = set()
        for v, d, s, x in self._choices():
            if x.index not in hinted:
                hinted.add(x.index)
                self.cp.add_hint(x, int(device[v] == d and (s < 0 or slot[v] == s)))

    def _choices(self) -> Iterator[tuple[int, int, int, cp_model.IntVar]]:
        """Yield op, device, slot and variable of what may be chosen."""
        for v, row in enumerate(self.x):
            for u, x in row.items():
                yield v, *self.units[u], x


def _longest(problem: PlacementProblem) -> int:
    """Ticks that no placement exceeds: everything in turn, every tensor moved once by its sender
    and by each slot that reads it.
    """
    slots = problem.num_devices * problem.slots
    moves = 1 + np.minimum(np.diff(problem.consumer_ptr), slots)
    transfers = problem.io_ticks.max(axis=1, initial=0) * moves
    return int(problem.compute.max(axis=1).sum()) + int(transfers.sum())


def _slot_durations(p: PlacementProblem, device: Ints, slot: Ints) -> Ints:
    """Ticks of the first slot of every device."""
    first = np.flatnonzero(slot == 0)
    lasts = sums_by(device[first], p.compute[first, device[first]], p.num_devices)
    unit = list(together(device, slot))
    for t, u in enumerate(p.producer.tolist()):
        readers = {unit[c] for c in p.readers_of(t)}
        if readers <= {unit[u]}:
            continue
        for d, s in sorted(readers | {unit[u]}):
            if s == 0:
                lasts[d] += p.io_ticks[t, d]
    return lasts


POOLED, UNUSED = -1, -2
"""How the last node of a prefix gets where it is, beside the first node of its segment."""


def starts(tracker: PlacementTracker, *, max_nodes: int = 1_000) -> Iterator[None]:
    """Offer everything on one device, segments with their parts side by side, and the best segments
    and the best pipeline with nodes joined until about `max_nodes` are left; all in one step, since
    annealing finds little before.
    """
    problem = tracker.problem
    for d in np.unique(pooled(problem)).tolist():
        offer_slots(tracker, np.full(problem.num_ops, d, np.int64))
    turn, chain = _chain(problem)
    if chain is None:
        return

    def one_by_one() -> Iterator[tuple[Ints | None, Ints]]:
        small, slot = chain.coarse(max_nodes), turn * (problem.slots - 1)
        yield _segments(problem, small), slot
        yield _pipeline(small, None if tracker.value is None else tracker.stop), slot

    ways: Iterator[tuple[Ints | None, Ints]] = itertools.chain(
        side_by_side(problem, chain, turn), one_by_one()
    )
    while not tracker.stop() and (way := next(ways, None)) is not None:
        offer_slots(tracker, *way)
    yield


def _chain(problem: PlacementProblem) -> tuple[Ints, ContractedProblem | None]:
    """Return the turns of the ops, and the problem contracted for chains, None if there are
    none.
    """
    turn = turns(problem)
    try:
        period = problem.replace(objective="period", contiguity="chain", backward=turn > 0)
        return turn, contract(period)
    except InfeasibleProblemError:
        return turn, None


def turns(problem: PlacementProblem) -> Ints:
    """Return 1 for the ops behind a path that came back to the ops that share a device with one of
    its own, as backward ops do, else 0; 0 for all with a single slot, that must hold such a path.
    """
    turn, unit = np.zeros(problem.num_ops, np.int64), problem.units.unit
    several = np.bincount(unit) > 1
    if problem.slots == 1 or not several.any():
        return turn
    mark = np.where(several, np.cumsum(several) - 1, -1)[unit].tolist()
    ptr, producer, _ = problem.predecessors
    left = [0] * problem.num_ops  # a bit for each unit of several ops that paths to the op left
    for v in problem.topological_order.tolist():
        for u in row_at(producer, ptr, v).tolist():
            left[v] |= left[u] | (mark[u] >= 0 and mark[u] != mark[v]) << max(0, mark[u])
            turn[v] |= turn[u]
        turn[v] |= mark[v] >= 0 and left[v] >> mark[v] & 1
    return turn


def offer_slots(tracker: PlacementTracker, device: Ints | None, slot: Ints | None = None) -> None:
    """Evaluate a placement (slot 0 by default), count it, and offer it if it is feasible; nothing
    once no evaluation is left.
    """
    if device is None or not tracker.evaluations_left:
        return
    problem = tracker.problem
    value = int(latency_batch(problem, device[None, :], None if slot is None else slot[None, :])[0])
    tracker.count()
    if value < INFEASIBLE:
        tracker.offer(value, Placement(device, slot if problem.slots > 1 else None))


def pooled(problem: PlacementProblem) -> Ints:
    """Return the device that stands for each: CPUs that take equal times and can hold every op are
    one unlimited pool.
    """
    stands_for = np.arange(problem.num_devices)
    first_of: dict[bytes, int] = {}
    unlimited = problem.capacity >= int(problem.resident.sum())
    for d in true_places((problem.io_class < 0) & unlimited):
        stands_for[d] = first_of.setdefault(problem.compute[:, d].tobytes(), d)
    return stands_for


def _segments(problem: PlacementProblem, model: ContractedProblem) -> Ints | None:
    """Best consecutive segments of the model's order, one per accelerator, the rest in the pool."""
    ordered = [d for devices in model.types for d in devices]
    accelerators = [d for d in ordered if problem.io_class[d] >= 0]
    pool = next((d for d in ordered if problem.io_class[d] < 0), None)
    serial = np.full(model.num_nodes, float(2**62))
    if pool is not None:
        g = model.type_of[pool]
        serial[model.allowed[:, g]] = model.total[model.allowed[:, g], g]
    kinds = model.type_of[accelerators].tolist()
    durations = {g: _durations(model, g) for g in set(kinds)}
    value, choice = _best_segments(serial, [durations[g] for g in kinds])
    if value[-1, -1] >= 2**62:
        return None
    return model.expand(_read_segments(choice, accelerators, pool))


def _read_segments(choice: Ints, accelerators: list[int], pool: int | None) -> Ints:
    """Return the device of every node, from how the last one of each prefix gets where it is."""
    j, a = (size - 1 for size in choice.shape)
    device = np.zeros(j, np.int64)
    while j > 0:
        step = int(choice[j, a])
        if step == UNUSED:
            a -= 1
        elif step == POOLED:
            j -= 1
            device[j] = pool
        else:
            device[step:j] = accelerators[a - 1]
            j, a = step, a - 1
    return device


def _best_segments(serial: Floats, durations: list[Floats]) -> tuple[Floats, Ints]:
    """Return the least time of the first j nodes with the first a accelerators, and how the last
    node gets there: in the pool, or in a segment that starts at a node, or the accelerator is
    unused.
    """
    shape = len(serial) + 1, len(durations) + 1
    value, choice = np.full(shape, float(2**62)), np.full(shape, POOLED, np.int64)
    value[0] = 0.0
    for a, j in itertools.product(range(shape[1]), range(shape[0])):
        ways: list[tuple[float, int]] = []
        if a > 0:
            ways.append((value[j, a - 1], UNUSED))
        if a > 0 and j > 0:
            through = value[:j, a - 1] + durations[a - 1][:j, j]
            ways.append((through.min(), int(through.argmin())))
        if j > 0:
            ways.append((value[j - 1, a] + serial[j - 1], POOLED))
        if ways:
            value[j, a], choice[j, a] = min(ways, key=itemgetter(0))
    return value, choice


def _durations(model: ContractedProblem, g: int) -> Floats:
    """Time of a slot with nodes i..j-1 on a device of type g at [i, j]; 2^62 where they do not fit.

    It pays for every tensor but those that have all of their ends in it, or none: two ends that
    follow one another, or the first or the last one, are its borders then.
    """
    n, at = model.num_nodes, np.arange(model.num_nodes + 1)
    tensor = np.concatenate([np.arange(len(model.producer)), model.edge_tensor])
    end = np.concatenate([model.producer, model.consumer])
    order = np.lexsort((end, tensor))
    tensor, end, weight = tensor[order], end[order], model.weight[tensor[order], g]
    first = np.flatnonzero(np.diff(tensor, prepend=-1))
    last = np.flatnonzero(np.diff(tensor, append=-1))
    following = np.roll(end, -1)
    following[last] = n
    around, between = np.zeros((2, n + 1, n + 1), np.int64)
    np.add.at(around, (end[first], end[last] + 1), weight[first])
    np.add.at(between[0], end[first], weight[first])
    np.add.at(between, (end + 1, following), weight)
    free = around[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
    free += between.cumsum(axis=0)[:, ::-1].cumsum(axis=1)[:, ::-1]
    rows = model.total[:, g], model.resident, ~model.allowed[:, g]
    ticks, held, barred = (running_sums(row) for row in rows)
    table = (ticks - ticks[:, None] + model.weight[:, g].sum() - free).astype(np.float64)
    fits = (held - held[:, None] <= model.capacity[g]) & (barred == barred[:, None])
    table[~fits | (at <= at[:, None])] = 2**62
    return table


def _pipeline(chain: ContractedProblem, stop: Callable[[], bool] | None) -> Ints | None:
    """Best pipeline for the period along the model's order."""
    few = min(QUICK, states_along(chain, least=chain.problem.num_devices + 1))
    program = IdealProgram(chain, linear_lattice(chain.num_nodes), most_states=few)
    outcome = best_chain(program, None, stop)
    return stage_devices(chain, outcome.stages)[0] if outcome.value is not None else None


def anneal(tracker: PlacementTracker, rng: Generator) -> Iterator[None]:
    """Anneal from the incumbent, again and again; one chunk per step."""
    return anneal_in_cycles(tracker, rng, partial(_Walk(tracker).begin, rng))


class _Walk:
    """A cycle from the incumbent (see `annealing_cycles`); as long as there is none, from where the
    last one ended, at first from one device.

    Some cycles move groups of units, at least as many as there are slots, any number about as
    likely as twice it: single units do not leave a slot where all that they exchange much with
    stays. Groups grow along heavy edges, those within a factor of two in any order, and gather
    where the first op of each is. How many cycles do goes by the part of such chunks, and of the
    others, that found something better (Laplace's rule of succession).

    Attributes
    ----------
    weight : ticks that broken constraints cost, see `anneal_slots`.

    Parameters
    ----------
    moves, moves_per_choice, work : moves of a chunk, at most, fewer on small problems; and ops and
    edges that they look at, about a second's.
    """

    def __init__(
        self,
        tracker: PlacementTracker,
        *,
        moves: int = 60_000,
        moves_per_choice: int = 300,
        work: int = 1_000_000_000,
    ) -> None:
        problem = tracker.problem
        self.tracker, self.arrays = tracker, latency_arrays(problem)
        self.space, self.turn = SearchSpace(problem), turns(problem)
        self.single = _groups(problem, self.turn, np.arange(self.space.num_units))
        self.groups, self.pooled = self.single, pooled(problem)
        choices = (len(self.groups.member_ptr) - 1) * problem.num_devices
        size = problem.num_ops + problem.num_edges
        self.moves = min(moves, moves_per_choice * choices, 1 + work // size)
        self.value = max(1, int(problem.compute.max(axis=1).sum()))
        self.weight = np.array([float(self.value)])
        above = (problem.resident.sum() - problem.capacity).clip(0) / problem.resident.sum().clip(1)
        d = int(np.argmin(above + (problem.compute == INCOMPATIBLE).mean(axis=0)))
        self.device = np.full(problem.num_ops, self.pooled[d])
        if above[d] > 0:
            home = first_filled(Filling.of_units(problem.units), tracker.rng())
            self.device = self.device if home is None else self.pooled[home[problem.units.unit]]
        self.slot = self.turn * (problem.slots - 1)
        self.won, self.walked = np.ones(2), np.full(2, 2.0)  # by single units, and by groups

    def begin(self, rng: Generator) -> _Walk:
        """Go back to the incumbent, and draw what moves together."""
        solution = self.tracker.solution
        if solution is not None:
            self.value = int(self.tracker.value or 0)
            self.device = self.pooled[solution.device].copy()
            self.slot = placement_slots(self.tracker.problem, solution).copy()
        rates = self.won / self.walked
        gathers = rng.random() * rates.sum() < rates[1]
        self.groups, joined = self.single, self._joined(rng) if gathers else None
        if joined is not None:
            self.groups = _groups(self.tracker.problem, self.turn, joined)
            lead = self.groups.member[self.groups.member_ptr[:-1]]
            homes = np.repeat(lead, np.diff(self.groups.member_ptr))
            self.device[self.groups.member] = self.device[homes]
            self.slot[self.groups.member] = self.slot[homes]
        return self

    def _joined(self, rng: Generator) -> Ints | None:
        """Draw a group of every unit; None where there are no more units than slots."""
        problem, units = self.tracker.problem, self.space.num_units
        slots = problem.slots * int((problem.io_class >= 0).sum())
        if not 0 < slots < units:
            return None
        weight = self.space.tensor_weight * np.exp2(rng.random(problem.num_tensors))
        return self.space.groups(int(slots * (units / slots) ** rng.random()), weight)

    def cool(self, hot: float, cold: float, seed: int, *, serial: float = 0.01) -> None:
        """Walk one chunk; `serial` is the weight of the mean slot duration in the energy: it tells
        plateaus of the critical path apart.
        """
        device, slot = self.device.copy(), self.slot.copy()  # the best of the chunk
        most = float(self.value) * len(device)  # an op in a wrong place costs as much as all of it
        walk = partial(anneal_slots, self.arrays, self.groups, self.device, self.slot)
        cooling = Cooling(hot, cold, self.moves, serial, self.weight, most)
        found = int(call_interruptibly(partial(walk, cooling, seed, device, slot)))
        kind = int(self.groups is not self.single)
        self.walked[kind] += 1
        self.won[kind] += found < (self.tracker.value or INFEASIBLE)
        if found < INFEASIBLE:
            slots = slot if self.tracker.problem.slots > 1 else None
            self.tracker.offer(found, Placement(device, slots))


def _groups(problem: PlacementProblem, turn: Ints, label: Ints) -> Groups:
    """Return the ops of each turn in units of the same label, whose numbers have no gaps."""
    key = 2 * label[problem.units.unit] + turn
    keys, group, sizes = np.unique(key, return_inverse=True, return_counts=True)
    at = np.arange(len(keys))
    other = np.searchsorted(keys, keys ^ 1).clip(max=len(keys) - 1)
    consumers = group[problem.consumer]
    touching = touching_tensors(len(keys), group[problem.producer], problem.consumer_ptr, consumers)
    return Groups(
        running_sums(sizes),
        stable_order(key),
        np.where(keys[other] == keys ^ 1, other, at),
        *neighbours(len(keys), group[problem.edge_source], consumers),
        *touching[:2],
        sums_by(label, problem.units.bytes, int(label.max()) + 1)[keys >> 1],
    )
