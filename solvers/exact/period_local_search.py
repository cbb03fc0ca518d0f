"""Simulated annealing on the period, for any contiguity: a warm start for CP-SAT and MILP.

The energy of a placement is the excess of its device loads (and bytes) over a target slightly below
the best period found: zero energy is a new incumbent, after which the target falls. Against
minimising the largest load directly this says which of many equally bad placements is closer.
Moves: an op, or a small connected block of its device, goes to the device of a neighbour or to any
other; two ops swap devices. Where one of the two devices is too full for that, a few nodes come
back (`placeopt.model.exchanges`). The loads are kept up to date by the tensors of the moved op
only.

With `convex` the walk may pass through placements that are not: every pair of a device and an op
that it does not hold, but that lies on a path between two of its ops, adds a price to the energy,
and only placements without such pairs are kept. The pairs are kept up to date by counting, for
every device and op, the nodes of the device that the op comes after, and those it comes before; a
move changes the counts of what is before and after the moved node. Devices that feed each other are
allowed, as long as no path returns: an order of the ops cut into intervals, or a pipeline, has none
of these placements.

With `chain` a cycle keeps an order of the devices in which no edge of the incumbent leads back (any
order without one); an edge that does costs as much as the incumbent. A device that nothing orders
is anywhere.
"""

# Kernels take NamedTuples of arrays, described where those are defined, and draw from numba's own
# generator.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: NPY002
from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from placeopt.model.arrays import (
    UNLIMITED,
    Floats,
    Ints,
    SmallInts,
    by_number,
    neighbours,
    pointers,
    stable_order,
    sums_by,
    together,
    value_ranks,
)
from placeopt.model.compiled import inlined, row_of, uncounted_entry, uncounted_kernel
from placeopt.model.exchanges import FEW, MANY, few_between
from placeopt.model.threads import call_interruptibly
from placeopt.period.contracted import ContractedProblem, TensorArrays, contract
from placeopt.period.evaluate import order_edges, period_loads
from placeopt.solvers.exact.annealing_cycles import anneal_in_cycles
from placeopt.solvers.exact.linear_dp import chain_positions, offer_devices
from placeopt.solvers.heuristics.filling import Filling, first_filled
from placeopt.solving.tracker import PlacementTracker

_BLOCK, _LARGE_BLOCK = 6, 48  # most nodes of most block moves, and of every fourth one
_GROWING = 0.35  # part of the moves that are of blocks


class SearchArrays(NamedTuple):
    """What the kernel reads (N nodes, k devices, P passes, m tensors)."""

    compute: Ints  # (P, N, k) ticks, -1 where the node cannot run
    resident: Ints  # (N,) bytes
    capacity: Ints  # (k,) bytes, UNLIMITED where everything fits
    weight: Ints  # (m, k) ticks
    tensors: TensorArrays
    near_ptr: Ints  # (N + 1,) nodes that share a tensor with a node
    near: Ints
    paths: Paths


def search_arrays(model: ContractedProblem) -> SearchArrays:
    """Return the arrays of a contracted model, one column per device."""
    near_ptr, near = neighbours(model.num_nodes, model.producer[model.edge_tensor], model.consumer)
    compute = np.where(model.allowed[None], model.pass_compute, -1)
    loose = model.capacity >= model.resident.sum()
    return SearchArrays(
        compute=np.ascontiguousarray(compute[:, :, model.type_of]),
        resident=model.resident,
        capacity=np.where(loose, UNLIMITED, model.capacity)[model.type_of],
        weight=np.ascontiguousarray(model.weight[:, model.type_of]),
        tensors=model.tensors,
        near_ptr=near_ptr,
        near=near,
        paths=paths_of(model),
    )


class Paths(NamedTuple):
    """What comes after and before what on the paths that convexity orders, and the edges of chains;
    empty without them.

    Only the X ops count that have a predecessor and a successor there: no other lies between two.
    """

    reach_ptr: Ints  # (2, N + 1) of each node: ops that come after one of its ops, and before
    reach_op: SmallInts
    op_ptr: Ints  # (N + 1,) ops of a node
    op: Ints
    node: Ints  # (X,) of each op
    edge_ptr: Ints  # (2, N + 1) of each node: nodes that edges of a chain lead to, and come from
    edge_end: Ints


def paths_of(model: ContractedProblem) -> Paths:
    """Return the paths of a contracted model, for the contiguity of its problem."""
    problem = model.problem
    chain = problem.contiguity == "chain"
    source, target = order_edges(problem, "none" if chain else problem.contiguity)
    inner = np.intersect1d(source, target)
    bit = dict(zip(inner.tolist(), (1 << x for x in range(len(inner))), strict=True))
    after, before = ([0] * problem.num_ops for _ in range(2))
    edges = list(together(source, target))
    for u, v in reversed(edges):
        after[u] |= after[v] | bit.get(v, 0)
    for u, v in edges:
        before[v] |= before[u] | bit.get(u, 0)
    reached = [_reached(model, ops, len(inner)) for ops in (after, before)]
    sizes = np.array([[len(found) for found in side] for side in reached], np.int64)
    home = model.node[inner]
    ends = np.stack([model.order_from, model.order_to])[:, : None if chain else 0]
    row = np.arange(2)[:, None] * model.num_nodes
    near = (ends + row).ravel()  # a row for each side of a node
    return Paths(
        reach_ptr=np.append(0, sizes.cumsum())[np.arange(model.num_nodes + 1) + row],
        reach_op=np.concatenate(reached[0] + reached[1]),
        op_ptr=pointers(np.sort(home), model.num_nodes),
        op=stable_order(home),
        node=home,
        edge_ptr=np.searchsorted(np.sort(near), np.arange(model.num_nodes + 1) + row),
        edge_end=ends[::-1].ravel()[stable_order(near)],
    )


def _reached(model: ContractedProblem, ops: list[int], count: int) -> list[SmallInts]:
    """Return what the ops of every node reach, given as bits per op."""
    rows = [0] * model.num_nodes
    for v, bits in zip(model.node.tolist(), ops, strict=True):
        rows[v] |= bits
    words = (np.frombuffer(row.to_bytes(count // 8 + 1, "little"), np.uint8) for row in rows)
    return [np.flatnonzero(np.unpackbits(x, bitorder="little")).astype(np.int32) for x in words]


class Cycle(NamedTuple):
    """One cooling cycle: what it aims at and how it cools."""

    target: Ints  # (P,) ticks; falls when it is reached
    aim: float  # share by which the next target lies below a load that was reached
    byte_price: float  # ticks of a byte over the capacity
    op_price: float  # ticks of an op between those of a device, or of an edge back
    hot: float  # first temperature, ticks
    cold: float  # last temperature, ticks
    moves: int


class Walk(NamedTuple):
    """State of a cycle and its scratch memory."""

    device: Ints  # (N,) of each node
    readers: Ints  # (m, k) consumers of a tensor on a device
    load: Ints  # (P, k) ticks
    used: Ints  # (k,) bytes
    reach: SmallInts  # (2, k, X) nodes of a device that an op comes after, and before
    between: Ints  # (1,) pairs of a device and an op it would have to take to be convex; edges back
    place: Ints  # (k,) of each device in a chain
    block: Ints  # (_LARGE_BLOCK + FEW,) nodes of the proposal
    came: Ints  # (_LARGE_BLOCK + FEW,) the devices they leave
    best: Ints  # (N,) best placement of the cycle


def make_walk(a: SearchArrays) -> Walk:
    """Allocate the state of a cycle."""
    passes, n, k = a.compute.shape

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    return Walk(
        ints(n),
        ints(len(a.tensors.producer), k),
        ints(passes, k),
        ints(k),
        np.zeros((2, k, len(a.paths.node)), np.int32),
        ints(1),
        np.arange(k),
        ints(_LARGE_BLOCK + FEW),
        ints(_LARGE_BLOCK + FEW),
        ints(n),
    )


@inlined
def _move(a, w, v, b):
    """Move node v to device b; the counts, loads and bytes follow."""
    paths = a.paths
    tensors = a.tensors
    weight = a.weight
    device, count, load = w.device, w.readers, w.load
    old = device[v]
    for p in range(a.compute.shape[0]):
        load[p, old] -= a.compute[p, v, old]
        load[p, b] += a.compute[p, v, b]
    w.used[old] -= a.resident[v]
    w.used[b] += a.resident[v]
    for e in row_of(tensors.touch_ptr, v):
        t = tensors.touch_tensor[e]
        p = tensors.of_pass[t]
        size = tensors.consumer_ptr[t + 1] - tensors.consumer_ptr[t]
        if tensors.touch_role[e] == 1:
            if count[t, old] < size:
                load[p, old] -= weight[t, old]
            if count[t, old] > 0:
                load[p, old] += weight[t, old]
            if count[t, b] > 0:
                load[p, b] -= weight[t, b]
            if count[t, b] < size:
                load[p, b] += weight[t, b]
        else:
            home = device[tensors.producer[t]]
            left_before = count[t, home] < size
            count[t, old] -= 1
            if old != home and count[t, old] == 0:
                load[p, old] -= weight[t, old]
            if b != home and count[t, b] == 0:
                load[p, b] += weight[t, b]
            count[t, b] += 1
            left_after = count[t, home] < size
            if left_before and not left_after:
                load[p, home] -= weight[t, home]
            elif left_after and not left_before:
                load[p, home] += weight[t, home]
    _count(paths, w, v, old, -1)
    for e in row_of(paths.op_ptr, v):
        x = paths.op[e]
        if w.reach[0, old, x] > 0 and w.reach[1, old, x] > 0:
            w.between[0] += 1
        if w.reach[0, b, x] > 0 and w.reach[1, b, x] > 0:
            w.between[0] -= 1
    for side in range(2):
        sign = 1 - 2 * side
        for e in range(paths.edge_ptr[side, v], paths.edge_ptr[side, v + 1]):
            end = sign * w.place[device[paths.edge_end[e]]]
            w.between[0] += int(end < sign * w.place[b]) - int(end < sign * w.place[old])
    device[v] = b
    _count(paths, w, v, b, 1)


@uncounted_kernel
def _count(paths, w, v, d, by):
    """Add `by` to the counts of what comes after and before the nodes of device d, for node v."""
    for side in range(2):
        for e in range(paths.reach_ptr[side, v], paths.reach_ptr[side, v + 1]):
            x = paths.reach_op[e]
            count = w.reach[side, d, x]
            w.reach[side, d, x] = count + by
            if (
                (count == 0 or count + by == 0)
                and w.reach[1 - side, d, x] > 0
                and w.device[paths.node[x]] != d
            ):
                w.between[0] += by


@uncounted_kernel
def _settle(a, w, start):
    """Put every node where `start` has it."""
    # Everything begins on device 0 and is moved from there, so that the bookkeeping exists once.
    passes, n, k = a.compute.shape
    w.between[0] = 0
    for d in range(k):
        w.used[d] = 0
        for x in range(len(a.paths.node)):
            w.reach[0, d, x] = w.reach[1, d, x] = 0
        for p in range(passes):
            w.load[p, d] = 0
        for t in range(len(a.tensors.producer)):
            w.readers[t, d] = (
                a.tensors.consumer_ptr[t + 1] - a.tensors.consumer_ptr[t] if d == 0 else 0
            )
    for v in range(n):
        w.device[v] = 0
        w.used[0] += a.resident[v]
        for p in range(passes):
            w.load[p, 0] += a.compute[p, v, 0]
    for v in range(n):
        _count(a.paths, w, v, 0, 1)
    for v in range(n):
        if start[v] != 0:
            _move(a, w, v, start[v])


@uncounted_kernel
def _energy(a, w, cycle):
    """Return the excess of loads over the targets and of bytes over the capacities, ticks."""
    total = w.between[0] * cycle.op_price
    for d in range(w.load.shape[1]):
        for p in range(w.load.shape[0]):
            if w.load[p, d] > cycle.target[p]:
                total += w.load[p, d] - cycle.target[p]
        if w.used[d] > a.capacity[d]:
            total += (w.used[d] - a.capacity[d]) * cycle.byte_price
    return total


@uncounted_kernel
def _grow(a, w):
    """Grow a connected block around `w.block[0]` on its device; return its size."""
    wanted = 1 + np.random.randint(_BLOCK)
    if np.random.random() < 0.25:
        wanted = int((_LARGE_BLOCK + 1.0) ** np.random.random())
    home, size, at = w.device[w.block[0]], 1, 0
    while at < size and size < wanted:
        u = w.block[at]
        for e in row_of(a.near_ptr, u):
            x = a.near[e]
            if size < wanted and w.device[x] == home and not _is_among(w.block, size, x):
                w.block[size] = x
                size += 1
        at += 1
    return size


@uncounted_kernel
def _is_among(block, size, x):
    """Whether a node is among the first ones of a block."""
    for i in range(size):
        if block[i] == x:
            return True
    return False


@uncounted_kernel
def _partner(w, b):
    """Put a random node of device b, if one is met soon, into the proposal; return its size."""
    for _ in range(8):
        x = np.random.randint(len(w.device))
        if w.device[x] == b:
            w.block[1] = x
            return 2
    return 1


@uncounted_kernel
def _give_back(a, w, size, b):
    """Add a few nodes to the proposal that bring both of its devices within their capacities, if
    there are such nodes and it does not; return its size.
    """
    home, into = w.device[w.block[0]], 0
    for i in range(size):
        x = w.block[i]
        into += a.resident[x] if w.device[x] == home else -a.resident[x]
    above, beside = w.used[b] + into - a.capacity[b], w.used[home] - into - a.capacity[home]
    if max(above, beside) <= 0 or above + beside > 0:
        return size
    source, target, least = b, home, above
    if above <= 0:
        source, target, least = home, b, beside
    n, count = len(w.device), 0
    first = np.random.randint(n)
    for i in range(n):
        x = (first + i) % n
        able = w.device[x] == source and a.compute[0, x, target] >= 0
        if able and count < MANY and not _is_among(w.block, size, x):
            w.came[count] = x
            count += 1
    few = few_between(a.resident, w.came, count, least, least - above - beside)
    for i in range(few):
        w.block[size + i] = w.came[i]
    return size + few


@uncounted_kernel
def _propose(a, w):
    """Choose nodes and a device b for them; return (number of nodes, b), 0 nodes where nothing
    would change.
    """
    v = np.random.randint(len(w.device))
    kind = np.random.random()
    b = np.random.randint(len(w.used))
    near = a.near_ptr[v + 1] - a.near_ptr[v]
    if kind < 0.55 and near > 0:
        b = w.device[a.near[a.near_ptr[v] + np.random.randint(near)]]
    home, size = w.device[v], 1
    if b == home:
        return 0, b
    w.block[0] = v
    if kind > 0.35 and kind < 0.35 + _GROWING:
        size = _grow(a, w)
    elif kind > 0.85:
        size = _partner(w, b)
    for i in range(size):
        x = w.block[i]
        if a.compute[0, x, b if w.device[x] == home else home] < 0:
            return 0, b
    if min(a.capacity[b], a.capacity[home]) < UNLIMITED:
        size = _give_back(a, w, size, b)
    return size, b


@inlined
def _apply(a, w, size, b):
    """Move the proposal's nodes to device b, and a node of b to where the first one was."""
    home = w.device[w.block[0]]
    for i in range(size):
        w.came[i] = w.device[w.block[i]]
        _move(a, w, w.block[i], b if w.came[i] == home else home)


@inlined
def _undo(a, w, size):
    """Take the proposal's nodes back."""
    for i in range(size - 1, -1, -1):
        _move(a, w, w.block[i], w.came[i])


@uncounted_kernel
def _largest(row):
    """Return the largest load of a pass."""
    largest = row[0]
    for d in range(1, len(row)):
        largest = max(largest, row[d])
    return largest


@uncounted_kernel
def _keep_best(a, w, best_value):
    """Keep the placement if it fits and beats `best_value` (-1: none yet); return the best
    value.
    """
    value = 0
    for p in range(len(w.load)):
        value += _largest(w.load[p])
    if w.between[0] > 0 or 0 <= best_value <= value:
        return best_value
    for d in range(len(w.used)):
        if w.used[d] > a.capacity[d]:
            return best_value
    for v in range(len(w.device)):
        w.best[v] = w.device[v]
    return value


@uncounted_kernel
def _lower_target(w, cycle, value):
    """Aim below the loads if `value` reaches the target; return whether it does."""
    total = 0
    for p in range(len(cycle.target)):
        total += cycle.target[p]
    if value > total:
        return False
    for p in range(len(cycle.target)):
        cycle.target[p] = int(_largest(w.load[p]) * (1.0 - cycle.aim))
    return True


@uncounted_entry
def _anneal(a, w, cycle, start, seed):
    """Walk one cooling cycle from `start`; leave the best placement in `w.best`, return its value
    (-1: none).
    """
    np.random.seed(seed)  # numba's own generator, seeded per cycle
    _settle(a, w, start)
    energy = _energy(a, w, cycle)
    best_value = -1
    cooling = (cycle.cold / cycle.hot) ** (1.0 / cycle.moves)
    temperature = cycle.hot
    for _ in range(cycle.moves):
        temperature *= cooling
        size, b = _propose(a, w)
        if size == 0:
            continue
        _apply(a, w, size, b)
        new = _energy(a, w, cycle)
        if new > energy and np.random.random() >= np.exp((energy - new) / temperature):
            _undo(a, w, size)
            continue
        energy = new
        value = _keep_best(a, w, best_value)
        if value != best_value:
            best_value = value
            if _lower_target(w, cycle, value):
                energy = _energy(a, w, cycle)
    return best_value


def anneal_period(tracker: PlacementTracker, rng: np.random.Generator) -> Iterator[None]:
    """Anneal from the incumbent (from a balanced placement, without one); one chunk per step."""
    walk = _Annealing(tracker)

    def begin() -> _Annealing | None:
        nonlocal walk
        if tracker.value != walk.start:
            walk = _Annealing(tracker)
        walk.begin(rng)
        return walk if walk.model.num_nodes > 1 else None

    yield from anneal_in_cycles(tracker, rng, begin)


class _Annealing:
    """Cycles from one placement of the problem, contracted for what beats its value (see
    `annealing_cycles`).

    Attributes
    ----------
    aim : the target is this part of the value below it in the mean, or at the bound.
    most_moves, moves_per_choice : of a chunk, at most; fewer on small problems, and where hubs make
    moves dear.
    """

    aim: ClassVar[float] = 0.004
    most_moves: ClassVar[int] = 300_000
    moves_per_choice: ClassVar[int] = 500

    def __init__(self, tracker: PlacementTracker) -> None:
        self.tracker, self.start = tracker, tracker.value
        model = contract(tracker.problem, limit=tracker.value)
        if tracker.solution is None:
            self.device = _balanced(model, tracker.rng())
            self.value = int(model.total.max(axis=1).sum()) + 2 * int(model.weight.sum()) + 1
        else:
            self.device = model.node_devices(tracker.solution.device)
            self.value = int(tracker.value or 0)
        self.model, self.arrays = model, search_arrays(model)
        self.walk = make_walk(self.arrays)
        choices = model.num_nodes * model.problem.num_devices
        self.moves = min(self.most_moves, self.moves_per_choice * choices) // _cost_of_moves(model)
        self.byte_price = 4.0 * self.value / max(1.0, float(model.resident.sum()))
        # from a quarter of this to 16 times it, four graphs differed less than seeds do
        self.op_price = self.value / max(1, len(self.arrays.paths.node))  # an edge: all of it

    def begin(self, rng: np.random.Generator) -> None:
        """Begin a cycle from the best placement so far, with a target drawn below its value, and
        every second one, in the mean, with another price of bytes: between a hundredth of the usual
        and ten times it, since where memory is full any may be the one that passes through.
        """
        low = max(self.tracker.lower_bound, int(self.value * (1 - self.aim * rng.random() * 2)))
        self.price = self.byte_price * 10.0 ** (rng.uniform(-2, 1) * rng.integers(2))
        share = _pass_shares(self.model, self.device) if len(self.walk.load) == 2 else np.ones(1)
        self.target = np.maximum(np.floor(low * share), 1).astype(np.int64)
        self.at = self.device
        problem = self.model.problem
        if problem.contiguity != "chain":
            return
        if self.tracker.solution is None:
            self.walk.place[:] = rng.permutation(problem.num_devices)
        else:
            self.walk.place[:] = chain_positions(problem, self.model.expand(self.device), rng)

    def cool(self, hot: float, cold: float, seed: int) -> None:
        """Walk one chunk."""
        cycle = Cycle(self.target, self.aim / 4, self.price, self.op_price, hot, cold, self.moves)
        work = partial(_anneal, self.arrays, self.walk, cycle, self.at, seed)
        reached = int(call_interruptibly(work))
        if 0 <= reached < self.value:
            self.value, self.device = reached, self.walk.best.copy()
            offer_devices(self.tracker, self.model.expand(self.device))
        self.at = self.walk.device.copy()


def _balanced(model: ContractedProblem, rng: np.random.Generator) -> Ints:
    """Give nodes, the largest bytes first, to the compatible device with the most free memory left;
    fill one device after the other where that does not fit, if it is found soon.
    """
    free, allowed = model.capacity[model.type_of], model.allowed[:, model.type_of]
    device = np.zeros(model.num_nodes, np.int64)
    for v in stable_order(-model.resident).tolist():
        device[v] = np.where(allowed[v], free, np.iinfo(np.int64).min).argmax()
        free[device[v]] -= model.resident[v]
    found = first_filled(Filling.of_nodes(model).unordered, rng) if (free < 0).any() else None
    return device if found is None else found


def _cost_of_moves(model: ContractedProblem) -> int:
    """Return how many times the tensors of a node a move touches, about: one where nodes touch
    about as many, more where blocks grow along tensors into hubs.
    """
    touched = np.diff(model.tensors.touch_ptr).astype(np.float64)
    if not touched.any():
        return 1
    met = float((touched**2).sum() / touched.sum() / touched[touched > 0].mean())
    return max(1, round(1 - _GROWING + _GROWING * met))


def around_hubs(model: ContractedProblem) -> Iterator[Ints]:
    """Yield devices of the nodes of a contracted model without contiguity: 1, 2, 4, ... hubs, the
    nodes of the largest surroundings, are on one device with all pieces that are left without them,
    and pieces leave it as long as another device stays below it.

    Hubs together, and each piece, take no more than a device's share of the work. Pieces leave in
    the order of work per transfer; none whose work is no more than its transfers, each shared by
    the pieces that it touches, but where memory is short.
    """
    share = model.smallest_times.sum() / model.problem.num_devices
    order = stable_order(-model.surroundings)
    hubs_work, count = np.cumsum(model.smallest_times[order]), 1
    while count < len(order) and hubs_work[count - 1] <= share:
        hubs = order[:count]
        piece, ties = _pieces(model, hubs)
        able = model.allowed[hubs].all(axis=0)
        if np.bincount(piece, model.smallest_times)[1:].max() <= share and able.any():
            kind = int(np.where(able, model.total[hubs].sum(axis=0), UNLIMITED).argmin())
            yield _spread(model, piece, ties, model.types[kind][0])
        count *= 2


def _pieces(model: ContractedProblem, hubs: Ints) -> tuple[Ints, Ints]:
    """Return the piece of each node, 0 for hubs, and pairs of a piece and a tensor that a hub
    touches.
    """
    n, m = model.num_nodes, len(model.producer)
    of_hubs = np.isin(np.arange(n), hubs)
    pin = np.concatenate([model.producer, model.consumer])
    tensor = np.concatenate([np.arange(m), model.edge_tensor])
    tied = np.isin(tensor, tensor[of_hubs[pin]])
    ends = pin[~tied], n + tensor[~tied]
    graph = coo_matrix((np.ones(len(ends[0]), np.int8), ends), shape=(n + m, n + m))
    label = connected_components(graph, directed=False)[1][:n]
    piece = np.zeros(n, np.int64)
    piece[~of_hubs] = 1 + value_ranks(label[~of_hubs])
    return piece, np.unique(np.stack([piece[pin], tensor])[:, tied & ~of_hubs[pin]], axis=1).T


def _spread(model: ContractedProblem, piece: Ints, ties: Ints, home: int) -> Ints:
    """Return the devices of nodes where pieces leave `home`; see `around_hubs`."""
    count, kinds = int(piece.max()) + 1, model.type_of
    able = np.ones((count, model.num_types), np.bool_)
    np.logical_and.at(able, piece, model.allowed)
    work = np.where(able, sums_by(piece, model.total, count), np.inf)[:, kinds]
    held, room = sums_by(piece, model.resident, count), model.capacity[kinds].copy()
    weight, tied = model.weight[:, kinds], by_number(count, ties.tolist())
    touched = np.maximum(1, np.bincount(ties[:, 1], minlength=len(weight)))
    shared = np.bincount(ties[:, 0], (weight[:, home] / touched)[ties[:, 1]], minlength=count)
    here, load, device = (
        np.zeros(weight.shape, np.bool_),
        np.zeros(len(kinds)),
        np.full(count, home),
    )
    own = np.where(np.isfinite(work[:, home]), work[:, home], 0.0)
    load[home], room[home] = own.sum(), room[home] - held.sum()
    for x in np.lexsort((-own, shared / np.maximum(1, own))).tolist():
        forced = room[home] < 0 or work[x, home] == np.inf
        if x == 0 or not (forced or own[x] > shared[x]):
            continue
        comes = work[x] + np.where(here[tied[x]], 0, weight[tied[x]]).sum(axis=0)
        after = np.where(room >= held[x], load + comes, np.inf)
        after[home] = np.inf
        d = int(after.argmin())
        if after[d] < (np.inf if forced else load[home]):
            load[home] += weight[tied[x], home][~here[tied[x], home]].sum() - own[x]
            load[d], device[x] = after[d], d
            room[d], room[home] = room[d] - held[x], room[home] + held[x]
            here[tied[x], d] = here[tied[x], home] = True
    return device[piece]


def _pass_shares(model: ContractedProblem, node_device: Ints) -> Floats:
    """Share of the forward and the backward pass in the period of a placement."""
    load = period_loads(model.problem, model.expand(node_device)).max(axis=1).astype(np.float64)
    return load / max(1.0, float(load.sum()))
