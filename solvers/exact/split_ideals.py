"""`split-ideals`: the best pipeline of ideals with replicas, groups of devices or overlapped
transfers, proved, by dynamic programs (model in `placeopt.splits.problem`).

Without groups it is the program of `ideal_program`. Overlapped communication is its form with two
passes, work in the one and transfers in the other, under one limit for both: the smallest limit
that admits a pipeline is found by bisection.

With h groups, let V(A, B, c) be the smallest period of the nodes B - A on c devices of one group,
over ideals A within M within B:

    V(A, B, c) = min over M, r of max(V(A, M, c - r), load(B - M, r))
    W(B, j)    = min over A of    max(W(A, j - 1), V(A, B, size), uplink(B - A)).

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 5 and appendix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from placeopt.model.arrays import NO_VALUE, Flags, Ints, sums_by, true_places
from placeopt.model.compiled import entry, row_of
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.ideals import Lattice, lattice_in_time, linear_lattice
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem
from placeopt.period.bounds.device_types import area_bounds
from placeopt.period.contracted import ContractedProblem, contract
from placeopt.solvers.exact.cp_sat import CpSat
from placeopt.solvers.exact.ideal_program import (
    MAX_CELLS,
    MAX_STATES,
    ChainOutcome,
    IdealProgram,
    Stage,
    best_chain,
    coarse_enough,
    stage_devices,
    states_along,
)
from placeopt.solvers.exact.linear_dp import chain_positions, order_by, orders_near
from placeopt.solvers.exact.period_tactics import search_period
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.tracker import Tracker
from placeopt.splits.objective import BOUNDS, NEVER, split_period, stage_load, usable_ticks
from placeopt.splits.problem import Split, SplitProblem, SplitStage

Stop = Callable[[], bool] | None
"""Whether to stop; nothing stops a search where it is not given."""


MAX_IDEALS = 2_000_000
"""Ideals up to which all are searched, without groups."""

NO_CHAIN = "no chain of stages fits the devices' memory and compatibility"

_STEPS = 2**28
"""Of filling the tables for groups, where every pair of ideals has a row of its own: a second."""


@dataclass(frozen=True)
class SplitOutcome:
    """What a search found.

    Attributes
    ----------
    split : the best split, None if there is none.
    lower_bound : ticks; no pipeline of ideals has a shorter period. 0 where not all ideals were
    searched.
    complete : whether all ideals were searched to the end: then nothing is better, and no split
    means that none is short enough.
        False where only the prefixes of one topological order were, or where time ran out.
    """

    split: Split | None
    complete: bool
    lower_bound: int = 0


def split_model(problem: SplitProblem) -> ContractedProblem:
    """Contract the graph for the stages of a split.

    Raises
    ------
    InfeasibleProblemError
        If ops that must share a device have no device in common.
    """
    return contract(
        problem.placement,
        contiguity="chain",
        sync=problem.sync if problem.max_replicas > 1 else None,
        uplink=problem.uplink if problem.groups > 1 else None,
    )


def best_split(
    problem: SplitProblem,
    model: ContractedProblem,
    lattice: Lattice | None = None,
    upper: int | None = None,
    stop: Stop = None,
    sequence: Ints | None = None,
) -> SplitOutcome:
    """Return the best pipeline of ideals.

    Parameters
    ----------
    model : of `split_model`, or a renumbered one.
    lattice : of all its ideals; None for the prefixes of its order, with groups some of them.
    upper : ticks; only shorter periods count.
    stop : asked now and then; when it answers True the search ends with what it has.
    sequence : types of the devices in an order, see `IdealProgram`.
    """
    n, whole = model.num_nodes, lattice is not None
    if problem.groups > 1:
        if lattice is None:
            members = np.arange(n) < _cuts(problem, model, stop)[:, None]
        else:
            members = np.array([lattice.members(i, n) for i in range(lattice.num_ideals)])
        return SplitOutcome(_best_in_groups(problem, model, members, upper), whole)
    outcome = _best_pipeline(problem, model, lattice, upper, stop, sequence)
    split = _split_of(model, outcome.stages) if outcome.stages else None
    return SplitOutcome(split, whole and outcome.complete, outcome.lower_bound if whole else 0)


def _cuts(problem: SplitProblem, model: ContractedProblem, stop: Stop) -> Ints:
    """Return how many nodes of an order come before each end of a stage that is tried: those of the
    best pipeline without groups, and others spread evenly, as many as tables take a second for.
    """
    n, most = model.num_nodes, most_in_pairs(problem, model)
    if n < most:
        return np.arange(n + 1)
    stages = _best_pipeline(replace(problem, groups=1), model, None, None, stop).stages
    ends = np.cumsum([len(stage.nodes) for stage in stages], dtype=np.int64)
    return np.union1d(ends, np.linspace(0, n, max(2, most - len(ends))).astype(np.int64))


def most_in_pairs(problem: SplitProblem, model: ContractedProblem) -> int:
    """Return how many ideals take `_STEPS` steps for what is said of all pairs of them."""
    size = len(problem.usable_devices) // problem.groups
    ends = model.num_nodes + problem.placement.num_tensors + problem.num_edges
    ways = size * min(problem.max_replicas, size)
    return max(2, min(math.isqrt(2 * _STEPS // ends), int((6 * _STEPS / ways) ** (1 / 3))))


def _best_pipeline(
    problem: SplitProblem,
    model: ContractedProblem,
    lattice: Lattice | None,
    upper: int | None,
    stop: Stop,
    sequence: Ints | None = None,
) -> ChainOutcome:
    """Find the best chain of ideals below `upper` ticks, without groups of devices; of the prefixes
    of the model's order without a lattice.
    """
    replicas = min(problem.max_replicas, problem.num_devices)
    given = _two_passes(model) if problem.overlap else model
    least = problem.num_devices + 1
    program = IdealProgram(
        given,
        lattice or linear_lattice(model.num_nodes),
        max_replicas=replicas,
        sync=sums_by(model.node, problem.sync, model.num_nodes),
        most_states=MAX_STATES if lattice else states_along(model, replicas, least=least),
        sequence=sequence,
    )
    overlapped = partial(
        _best_overlapped, lambda stages: split_period(problem, _split_of(model, stages))
    )
    return best_chain(program, upper, stop, overlapped if problem.overlap else None)


def _split_of(model: ContractedProblem, stages: tuple[Stage, ...]) -> Split:
    """Return the split of a chain of nodes."""
    _, groups = stage_devices(model, stages)
    return Split(
        tuple(
            SplitStage(_ops(model, stage.nodes), group)
            for stage, group in zip(stages, groups, strict=True)
        )
    )


def _two_passes(model: ContractedProblem) -> ContractedProblem:
    """Return the model with work in its first pass and transfers in a second one."""
    compute = np.stack([model.total, np.zeros_like(model.total)])
    one = np.ones_like(model.tensor_pass)
    return replace(model, compute=compute, tensor_pass=one, two_pass=True)


def _best_overlapped(
    price: Callable[[tuple[Stage, ...]], int],
    program: IdealProgram,
    upper: int | None,
    stop: Stop,
    *,
    growth: float = 1.25,
) -> ChainOutcome:
    """Find the smallest limit below `upper` on work and transfers of every stage, each by itself,
    that a chain keeps.

    A run gives the chain of the least work W whose transfers keep the limit: a chain within the
    limit has at least W. The limit grows by the factor `growth` until a pipeline keeps it.
    """
    lower = program.area_bound()
    stages: tuple[Stage, ...] = ()
    best = program.most + 1 if upper is None else upper
    limit = best - 1 if best <= growth * lower else int(growth * lower) + 1
    while lower < best:
        limit = min(limit, best - 1)
        outcome = program.run(limit, limit, stop=stop)
        if not outcome.complete:
            return ChainOutcome(None if not stages else best, stages, lower, False)
        if outcome.value is not None:
            best, stages, lower = price(outcome.stages), outcome.stages, max(lower, outcome.value)
        else:
            lower = limit + 1
        limit = (lower + best) // 2 if stages else int(growth * limit) + 1
    return ChainOutcome(best if stages else None, stages, lower, True)


def _ops(model: ContractedProblem, nodes: Ints) -> tuple[int, ...]:
    return tuple(true_places(np.isin(model.node, nodes)))


def _best_in_groups(
    problem: SplitProblem, model: ContractedProblem, members: Flags, upper: int | None
) -> Split | None:
    """Run the program of the module text over ideals (a row of nodes each) on the devices of the
    most numerous type; None where nothing is shorter than `upper` ticks.
    """
    base = problem.placement
    g = model.types.index(problem.usable_devices)
    size = len(problem.usable_devices) // problem.groups
    group_model = GroupModel(
        model.total[:, g].copy(),
        model.allowed[:, g].copy(),
        model.resident,
        int(model.capacity[g]),
        sums_by(model.node, problem.sync, model.num_nodes),
        model.node[base.producer],
        base.consumer_ptr,
        model.node[base.consumer],
        base.io_ticks[:, problem.usable_devices[0]].copy(),
        problem.uplink,
    )
    work, moved, border, replicated = _segments(group_model, members)
    stage = _stage_loads(
        work, moved, replicated, min(problem.max_replicas, size), overlap=problem.overlap
    )
    inside = _inside(stage, size)
    best = np.full((problem.groups + 1, len(members)), NO_VALUE, np.int64)
    best[:, 0] = 0
    group = np.maximum(inside[:, :, size], border)
    for j in range(1, problem.groups + 1):
        best[j] = np.minimum(best[j - 1], np.maximum(best[j - 1][:, None], group).min(axis=0))
    if best[problem.groups, -1] >= NO_VALUE:
        return None
    split = Split(_trace(model, members, g, stage, inside, group, best))
    return split if upper is None or split_period(problem, split) < upper else None


class GroupModel(NamedTuple):
    """The problem as the devices of one type and their groups see it (N nodes, m tensors)."""

    ticks: Ints  # (N,) on a device
    usable: Flags  # (N,) whether the type can run the node
    resident: Ints  # (N,) bytes
    capacity: int  # bytes of a device
    sync: Ints  # (N,) ticks to send the node's weights once
    producer: Ints  # (m,) node
    consumer_ptr: Ints  # (m + 1,)
    consumer: Ints  # nodes
    inner: Ints  # (m,) ticks between devices
    outer: Ints  # (m,) ticks on a group's uplink


@entry
def _segments(a, members):  # type: ignore[no-untyped-def]
    """Work, transfers, uplink time and weights' time of the nodes B - A for every pair of ideals
    (A, B), A within B.
    """
    count, n = members.shape
    work, border = np.full((2, count, count), NO_VALUE, np.int64)
    moved, weights = np.zeros((2, count, count), np.int64)
    held = np.zeros(n, np.bool_)
    for first in range(count):
        for last in range(first, count):
            nested, fits, used, total = True, True, 0, 0
            for v in range(n):
                if members[first, v] and not members[last, v]:
                    nested = False
                    break
                held[v] = members[last, v] and not members[first, v]
                if held[v]:
                    used += a.resident[v]
                    total += a.ticks[v]
                    weights[first, last] += a.sync[v]
                    fits = fits and a.usable[v]
            if not nested:
                weights[first, last] = 0
                continue
            up = inner = 0
            for t in range(len(a.producer)):
                reads = stays = False
                for e in row_of(a.consumer_ptr, t):
                    if held[a.consumer[e]]:
                        reads = True
                    else:
                        stays = True
                if (reads and not held[a.producer[t]]) or (stays and held[a.producer[t]]):
                    inner += a.inner[t]
                    up += a.outer[t]
            if fits:
                border[first, last] = up
                if used <= a.capacity:
                    work[first, last] = total
                    moved[first, last] = inner
    return work, moved, border, weights


def _stage_loads(work: Ints, moved: Ints, sync: Ints, most: int, *, overlap: bool) -> Ints:
    """load(S, r) for r = 1..most, shape (most + 1, I, I)."""
    stage = np.full((most + 1, *work.shape), NO_VALUE, np.int64)
    fits = work < NO_VALUE
    for r in range(1, most + 1):
        stage[r][fits] = stage_load(work, moved, sync, r, overlap=overlap)[fits]
    return stage


@entry
def _inside(stage, size):  # type: ignore[no-untyped-def]
    """V(A, B, c) of the module text, shape (I, I, size + 1)."""
    most, count = stage.shape[0] - 1, stage.shape[1]
    value = np.full((count, count, size + 1), NO_VALUE, np.int64)
    for a in range(count):
        value[a, a, :] = 0
        for b in range(a + 1, count):
            for c in range(1, size + 1):
                best = value[a, b, c - 1]
                for m in range(a, b):
                    for r in range(1, min(most, c) + 1):
                        best = min(best, max(value[a, m, c - r], stage[r, m, b]))
                value[a, b, c] = best
    return value


def _trace(
    model: ContractedProblem,
    members: Flags,
    g: int,
    stage: Ints,
    inside: Ints,
    group: Ints,
    best: Ints,
) -> tuple[SplitStage, ...]:
    """Read one optimal split from the tables, from the last stage to the first."""
    size, b, j = inside.shape[2] - 1, len(members) - 1, len(best) - 1
    found: list[SplitStage] = []
    while b > 0:
        if best[j, b] == best[j - 1, b]:
            j -= 1
            continue
        a = int(np.argmax(np.maximum(best[j - 1], group[:, b]) == best[j, b]))
        j -= 1
        devices = list(model.types[g][j * size : (j + 1) * size])
        c, end = size, b
        while end > a:
            goal = int(inside[a, end, c])
            if inside[a, end, c - 1] == goal:
                c -= 1
                continue
            r, m = next(
                (r, m)
                for r in range(1, min(len(stage) - 1, c) + 1)
                for m in range(a, end)
                if max(inside[a, m, c - r], stage[r, m, end]) == goal
            )
            nodes = np.flatnonzero(members[end] & ~members[m])
            found.append(SplitStage(_ops(model, nodes), tuple(devices[c - r : c])))
            c, end = c - r, m
        b = a
    return tuple(reversed(found))


def _of_usable(problem: SplitProblem) -> PlacementProblem:
    """Return the placement problem in which nothing runs on devices that groups leave out."""
    base = problem.placement
    unused = np.setdiff1d(np.arange(base.num_devices), problem.usable_devices)
    compute = base.compute.copy()
    compute[:, unused] = INCOMPATIBLE
    return base.replace(compute=compute)


def _half_of(tracker: Tracker[Split]) -> Callable[[], bool]:
    """Return what ends a search after half of the time that is left."""
    half = tracker.elapsed + tracker.seconds_left / 2
    return lambda: tracker.stop() or tracker.elapsed >= half


def _chain_of(problem: SplitProblem, tracker: Tracker[Split]) -> Split | None:
    """Return the best split over single devices that the search of the period finds in half of the
    time, without regard to groups and overlap.
    """
    base = problem.placement
    own: Tracker[Any] = tracker.beside(_of_usable(problem), tracker.share(0.5))
    search_period(CpSat(tactics="starts,filling,orders,annealing"), own.problem, own)
    tracker.count(min(own.evaluations, tracker.evaluations_left))
    if own.solution is None:
        return None
    home = own.solution.device
    place = chain_positions(base, home, tracker.rng())
    used = sorted(set(home.tolist()), key=lambda d: place[d])
    # groups have devices of one type, and hold consecutive stages
    devices = used if problem.groups == 1 else problem.usable_devices
    return Split(
        tuple(
            SplitStage(tuple(true_places(home == old)), (new,))
            for old, new in zip(used, devices, strict=False)
        )
    )


def _stages(model: ContractedProblem, split: Split) -> Ints:
    """Return the stage of every node in a split."""
    stage = np.zeros(model.num_nodes, np.int64)
    for at, part in enumerate(split.stages):
        stage[model.node[list(part.ops)]] = at
    return stage


def _places(problem: SplitProblem, split: Split) -> Ints:
    """Return the stage of every device in a split, unused ones after all."""
    place = np.full(problem.num_devices, len(split.stages))
    for at, part in enumerate(split.stages):
        place[list(part.devices)] = at
    return place


@dataclass(frozen=True)
class SplitIdeals(SearchSolver):
    """The program over all ideals; where there are too many, or half of the time is not enough, a
    chain of single devices, then the program along topological orders near the best split.
    """

    name: ClassVar[str] = "split-ideals"
    kernels: ClassVar[tuple[str, ...]] = ("period", "period-dp", "period-search", "replicas")

    max_ideals: int = option(
        0,
        f"ideals up to which all are searched; 0: {MAX_IDEALS}, with groups as many as "
        "take about a second",
        low=0,
    )

    def search(self, problem: SplitProblem, tracker: Tracker[Split]) -> None:
        """Raise the quick bounds, then search and prove."""
        for name, bound in BOUNDS.items():
            tracker.raise_bound(bound(problem), name)
        if (usable_ticks(problem) == NEVER).all(axis=1).any():
            tracker.infeasible("an op runs on no device that groups leave")
            return
        try:
            self._search(problem, tracker, split_model(problem))
        except InfeasibleProblemError as error:
            tracker.infeasible(str(error))

    def _search(
        self, problem: SplitProblem, tracker: Tracker[Split], model: ContractedProblem
    ) -> None:
        """Take the best split along one topological order, then look for a better one among all
        ideals, or along other orders.
        """

        def improve(
            model: ContractedProblem,
            lattice: Lattice | None = None,
            sequence: Ints | None = None,
            stop: Stop = tracker.stop,
        ) -> SplitOutcome:
            found = best_split(problem, model, lattice, tracker.value, stop, sequence)
            tracker.count()
            if found.split is not None:
                tracker.offer(split_period(problem, found.split), found.split)
            return found

        improve(coarse_enough(model), stop=None)
        if tracker.stop():
            return
        lattice = self._lattice(problem, tracker, model)
        if lattice is not None:
            found = improve(model, lattice, stop=_half_of(tracker))
            if not found.complete:
                tracker.raise_bound(found.lower_bound, self.name)
            elif tracker.value is None:
                tracker.infeasible(NO_CHAIN)
            else:
                tracker.raise_bound(tracker.value, self.name)
            if tracker.stop() and found.complete:
                return
        elif problem.groups > 1:
            self._without_groups(problem, tracker)
        tracker.message = (
            "not all pipelines of ideals were searched: too many ideals, or too little time"
        )
        if not tracker.stop() and tracker.budget.ends:
            self._along_orders(problem, tracker, model.coarse(math.isqrt(MAX_CELLS)), improve)
        if tracker.stop_reason == "proved":
            tracker.message = ""

    def _lattice(
        self, problem: SplitProblem, tracker: Tracker[Split], model: ContractedProblem
    ) -> Lattice | None:
        """Return all ideals, None where there are too many or half of the time is not enough."""
        most = MAX_IDEALS if problem.groups == 1 else most_in_pairs(problem, model)
        return lattice_in_time(
            model.num_nodes,
            model.order_from,
            model.order_to,
            limit=self.max_ideals or most,
            left=tracker.left,
        )[0]

    def _without_groups(self, problem: SplitProblem, tracker: Tracker[Split]) -> None:
        """Prove what holds of all splits over the same devices, whatever groups they lie in, and
        offer the best one if its stages lie in groups each.
        """
        free = replace(problem, placement=_of_usable(problem), groups=1)
        model = split_model(free)
        lattice = self._lattice(free, tracker, model)
        if lattice is None:
            return
        found = best_split(free, model, lattice, tracker.value, _half_of(tracker))
        tracker.count()
        split, value = found.split, tracker.value
        if split is not None:
            value = split_period(free, split)
            if all(len({problem.group_of[d] for d in x.devices}) == 1 for x in split.stages):
                tracker.offer(split_period(problem, split), split)
        if not found.complete:
            tracker.raise_bound(found.lower_bound, self.name)
        elif value is None:
            tracker.infeasible(NO_CHAIN)
        else:
            tracker.raise_bound(value, self.name)

    def _along_orders(
        self,
        problem: SplitProblem,
        tracker: Tracker[Split],
        model: ContractedProblem,
        improve: Callable[..., SplitOutcome],
    ) -> None:
        """Bound by the areas of the device types in a tenth of the time, or once; then take the
        best split along orders of nodes and of devices near the best one, which begins as a chain
        of single devices.
        """
        tenth = tracker.share(0.1).seconds
        if problem.groups == 1:
            free, end = replace(model, weight=np.zeros_like(model.weight)), tracker.elapsed
            given = free if problem.overlap else model
            for bound in area_bounds(given, lambda: tracker.lower_bound):
                tracker.raise_bound(bound, "area")
                if tracker.elapsed >= end + (tenth or 0.0):
                    break
        chain = _chain_of(problem, tracker)
        if chain is not None:
            tracker.offer(split_period(problem, chain), chain)
            along = model.renumbered(order_by(model, _stages(model, chain)))
            improve(along, sequence=model.type_of[np.argsort(_places(problem, chain))])

        def known() -> tuple[Ints, Ints] | None:
            split = tracker.solution
            return None if split is None else (_stages(model, split), _places(problem, split))

        orders = orders_near(model, known, *tracker.rng().spawn(2))
        while not tracker.stop():
            order, sequence = next(orders)
            improve(model.renumbered(order), sequence=sequence)
