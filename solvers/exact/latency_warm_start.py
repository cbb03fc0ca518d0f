"""First incumbent for the latency with slots: segments of a topological order, pipelines,
annealing.

The greedy rule of the literature fills one accelerator after the other along a topological order.
Its optimal form is a dynamic program: f[j][a] is the least serial time of the first j nodes with
accelerators 0..a-1 used once each, a segment of nodes on one accelerator, everything between
segments in the pool.
"""

from __future__ import annotations

import itertools
from enum import IntEnum
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from placeopt.latency.evaluate import latency_batch
from placeopt.latency.judge import placement_slots
from placeopt.latency.slots import Cooling, Groups, anneal_slots, latency_arrays
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.ideals import linear_lattice
from placeopt.model.interruptible import call_interruptibly
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.period.contracted import contract
from placeopt.solvers.exact.annealing_cycles import anneal_in_cycles
from placeopt.solvers.exact.chain_search import best_chain
from placeopt.solvers.exact.ideal_program import IdealProgram, stage_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.random import Generator

    from placeopt.latency.slots import LatencyArrays
    from placeopt.model.arrays import Floats, Ints
    from placeopt.model.problem import PlacementProblem
    from placeopt.period.contracted import ContractedProblem
    from placeopt.solving.tracker import Tracker


class Step(IntEnum):
    """How the last node of a prefix gets where it is, beside the first node of its segment."""

    POOLED = -1
    UNUSED = -2


_MOVES, _MOVES_PER_CHOICE = 60_000, 300  # of a chunk; fewer on small problems
_MAX_NODES = 1_000
# weight of the mean slot duration in the energy: tells plateaus of the critical path apart
_SERIAL = 0.01


def starts(tracker: Tracker[Placement]) -> Iterator[None]:
    """Offer everything on one device, the best segments, and the best pipeline, one per step."""
    problem = tracker.problem
    for d in sorted(set(pooled(problem).tolist())):
        offer_slots(tracker, np.full(problem.num_ops, d, np.int64))
    yield
    try:
        chain = contract(problem.replace(objective="period", contiguity="chain", backward=None))
    except InfeasibleProblemError:
        return
    if chain.num_nodes <= _MAX_NODES:
        offer_slots(tracker, _segments(problem, chain))
        yield
        offer_slots(tracker, _pipeline(problem, chain))


def offer_slots(
    tracker: Tracker[Placement],
    device: Ints | None,
    slot: Ints | None = None,
) -> None:
    """Evaluate a placement (slot 0 by default), count it, and offer it if it is feasible."""
    if device is None:
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
    for d in np.flatnonzero(
        (problem.io_class < 0) & (problem.capacity >= int(problem.resident.sum()))
    ).tolist():
        stands_for[d] = first_of.setdefault(problem.compute[:, d].tobytes(), d)
    return stands_for


def _segments(problem: PlacementProblem, model: ContractedProblem) -> Ints | None:
    """Best consecutive segments of the model's order, one per accelerator, the rest in the pool."""
    n = model.num_nodes
    accelerators = [
        (d, g) for g, devices in enumerate(model.types) for d in devices if problem.io_class[d] >= 0
    ]
    pools = [
        (devices[0], g) for g, devices in enumerate(model.types) if problem.io_class[devices[0]] < 0
    ]
    large = float(2**62)
    serial = np.full(n, large)
    for _, g in pools[:1]:
        serial = np.where(model.allowed[:, g], model.total[:, g], large).astype(np.float64)
    durations = {g: _durations(model, g) for g in {g for _, g in accelerators}}
    value, choice = _best_segments(serial, [durations[g] for _, g in accelerators])
    if value[n, -1] >= large:
        return None
    device = np.zeros(n, np.int64)
    j, a = n, len(accelerators)
    while j > 0:
        step = int(choice[j, a])
        if step == Step.UNUSED:
            a -= 1
        elif step == Step.POOLED:
            j -= 1
            device[j] = pools[0][0]
        else:
            device[step:j] = accelerators[a - 1][0]
            j, a = step, a - 1
    return model.expand(device)


def _best_segments(serial: Floats, durations: list[Floats]) -> tuple[Floats, Ints]:
    """Return the least time of the first j nodes with the first a accelerators, and how the last
    node gets there: in the pool, or in a segment that starts at a node, or the accelerator is
    unused.
    """
    shape = len(serial) + 1, len(durations) + 1
    value, choice = np.full(shape, float(2**62)), np.full(shape, Step.POOLED, np.int64)
    value[0] = 0.0
    for a, j in itertools.product(range(shape[1]), range(shape[0])):
        ways: list[tuple[float, int]] = []
        if a > 0:
            ways.append((value[j, a - 1], Step.UNUSED))
        if a > 0 and j > 0:
            through = value[:j, a - 1] + durations[a - 1][:j, j]
            ways.append((through.min(), int(through.argmin())))
        if j > 0:
            ways.append((value[j - 1, a] + serial[j - 1], Step.POOLED))
        if ways:
            value[j, a], choice[j, a] = min(ways, key=itemgetter(0))
    return value, choice


def _durations(model: ContractedProblem, g: int) -> Floats:
    """Time of a slot with nodes i..j-1 on a device of type g at [i, j]; 2^62 where they do not
    fit.
    """
    n = model.num_nodes
    table = np.full((n, n + 1), float(2**62))
    ends: list[list[int]] = [[] for _ in range(n)]
    pins = []
    for t in range(len(model.producer)):
        members = [
            int(model.producer[t]),
            *model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]].tolist(),
        ]
        pins.append(members)
        for v in members:
            ends[v].append(t)
    for i in range(n):
        ticks = used = 0
        inside = dict.fromkeys(range(0), 0)
        for j in range(i, n):
            used += int(model.resident[j])
            if not model.allowed[j, g] or used > model.capacity[g]:
                break
            ticks += int(model.total[j, g])
            for t in ends[j]:
                before = _cost(pins[t], i, j - 1) if inside.get(t) else 0
                inside[t] = inside.get(t, 0) + 1
                ticks += (_cost(pins[t], i, j) - before) * int(model.weight[t, g])
            table[i, j + 1] = ticks
    return table


def _cost(pins: list[int], first: int, last: int) -> int:
    """Transfers of a tensor (producer first in `pins`) for the nodes first..last: 0 or 1."""
    if first <= pins[0] <= last:
        return int(any(not first <= c <= last for c in pins[1:]))
    return int(any(first <= c <= last for c in pins[1:]))


def _pipeline(problem: PlacementProblem, chain: ContractedProblem) -> Ints | None:
    """Best pipeline for the period along the model's order."""
    outcome = best_chain(IdealProgram(chain, linear_lattice(chain.num_nodes)), None)
    return stage_devices(chain, outcome.stages)[0] if outcome.value is not None else None


def anneal(tracker: Tracker[Placement], rng: Generator) -> Iterator[None]:
    """Anneal from the incumbent, again and again; one chunk per step."""
    arrays, groups = latency_arrays(tracker.problem), _groups(tracker.problem)
    return anneal_in_cycles(tracker, rng, lambda: _Walk(tracker, arrays, groups))


class _Walk:
    """A cycle from the incumbent (see `annealing_cycles`)."""

    def __init__(self, tracker: Tracker[Placement], arrays: LatencyArrays, groups: Groups) -> None:
        problem, solution = tracker.problem, tracker.solution
        assert solution is not None
        self.tracker, self.arrays, self.groups = tracker, arrays, groups
        self.value = int(tracker.value or 0)
        self.device = pooled(problem)[solution.device].copy()
        self.slot = placement_slots(problem, solution).copy()
        self.moves = min(
            _MOVES, _MOVES_PER_CHOICE * (len(groups.member_ptr) - 1) * problem.num_devices
        )

    def cool(self, hot: float, cold: float, seed: int) -> None:
        """Walk one chunk."""
        device, slot = self.device.copy(), self.slot.copy()  # the best of the chunk
        walk = partial(anneal_slots, self.arrays, self.groups, self.device, self.slot)
        cooling = Cooling(hot, cold, self.moves, _SERIAL)
        found = int(call_interruptibly(partial(walk, cooling, seed, device, slot)))
        if found < INFEASIBLE:
            slots = slot if self.tracker.problem.slots > 1 else None
            self.tracker.offer(found, Placement(device, slots))


def _groups(problem: PlacementProblem) -> Groups:
    units = problem.units
    label, count = units.unit, len(units.first_op)
    pairs = np.stack(
        [label[problem.producer[problem.edge_tensor]], label[problem.consumer]], axis=1
    ).reshape(-1, 2)
    pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    near_ptr = np.searchsorted(pairs[:, 0], np.arange(count + 1))
    return Groups(units.member_ptr, units.member, near_ptr, np.ascontiguousarray(pairs[:, 1]))
