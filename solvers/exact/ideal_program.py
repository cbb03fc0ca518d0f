"""Dynamic program over ideals for the smallest period of a chain of stages, and the limits under
which it proves the best chain quickly.

For a vector s of used devices per type and an ideal I

    dp[s][I] = min over ideals I' inside I, types g and replicas r of
               max(dp[s - r e_g][I'], load_g(I - I', r)),

where load_g(S, 1) is the load of a device of type g that holds S, and r devices that share a stage
as data-parallel replicas take load_g(S, r) = ceil(load_g(S, 1) / r) + ceil(2 (r - 1) sync(S) /
r), the ring all-reduce of its weights. Differences from the published program, all exact:

- no list of pairs (I', I): for each I its sub-ideals are walked depth first (see `ideals`), the
  load of I - I' being updated by the tensors of one node per step;
- a walk is cut where the part of the load that can only grow (compute, and transfers to outside of
  I) exceeds the incumbent;
- states from which the remaining work cannot fit the remaining devices are skipped.

Memory is O(ideals * states). Both passes of a training graph are one load for "1f1b"; for "gpipe"
the program minimises the largest forward load under a limit on the backward one.

`best_chain` chooses the limits. "1f1b" needs one run below the incumbent; without a good incumbent
the limit grows from the area bound, because a run is the faster the tighter its limit. "gpipe" adds
the largest forward and backward loads: the smallest forward load F under a limit on the backward
one is found again and again, each time asking for less than the best sum, until no plan is left
(the epsilon-constraint method).

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import ceil, isqrt, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeopt.model.arrays import (
    NO_VALUE,
    Bits,
    Flags,
    Ints,
    SmallInts,
    running_sums,
    stable_order,
    together,
    true_places,
)
from placeopt.model.compiled import entry, inlined, inner_kernel, row_of
from placeopt.model.ideals import Lattice, contains, cross, ideal_sums, put_back
from placeopt.period.contracted import ContractedProblem, TensorArrays
from placeopt.period.evaluate import period_loads

MAX_STATES, MAX_CELLS = 2**17, 2**25  # of the tables; a cell takes 17 bytes

_HUGE = NO_VALUE - 1  # no period is longer


@dataclass(frozen=True)
class Stage:
    """One stage of a plan: nodes of the model on devices of one type (several are replicas)."""

    nodes: Ints
    device_type: int
    replicas: int


@dataclass(frozen=True)
class DpOutcome:
    """What one run of the program says: `value` is None if nothing is within the limits.

    `complete` is False when the deadline cut the run; then nothing is proved.
    """

    value: int | None
    stages: tuple[Stage, ...]
    complete: bool


class IdealProgram:
    """The dynamic program for one model and lattice; runs for any limits.

    Attributes
    ----------
    counts : devices of each type that are used. most : ticks that no stage exceeds.
    restricted : whether the states of all devices are too many: devices are taken in one order
    only, some perhaps not at all, so that nothing is proved of the others.

    Parameters
    ----------
    sequence : types of devices in the order in which they are taken where it is restricted; by
    default that of a greedy chain.
    """

    def __init__(
        self,
        model: ContractedProblem,
        lattice: Lattice,
        *,
        max_replicas: int = 1,
        sync: Ints | None = None,
        most_states: int = MAX_STATES,
        sequence: Ints | None = None,
    ) -> None:
        n = model.num_nodes
        self.model, self.lattice = model, lattice
        self.counts = counts = model.type_counts
        most = min(most_states, max(2, MAX_CELLS // lattice.num_ideals))
        self.restricted = prod((counts + 1).tolist()) > most
        if self.restricted:
            self.counts = counts = _affordable_counts(model, most)
            types = _greedy_types(model) if sequence is None else sequence
            if sequence is None and max_replicas > 1:  # they come one right after the other
                types = types[stable_order(np.unique(types, return_index=True)[1][types])]
            self._used, digit = _states_along(types, counts)
            stride = np.ones_like(counts)
        else:
            states = list(product(*(range(c + 1) for c in counts.tolist())))
            self._used = digit = np.array(states, np.int64)
            stride = np.append(np.cumprod(counts[:0:-1] + 1)[::-1], 1)
        passes = model.pass_compute
        self.arrays = DpArrays(
            compute=np.ascontiguousarray(passes.transpose(1, 0, 2).reshape(n, -1)),
            banned=(~model.allowed).astype(np.int64),
            resident=model.resident,
            capacity=model.capacity,
            sync=np.zeros(n, np.int64) if sync is None else sync,
            weight=model.weight,
            tensors=model.tensors,
            digit=digit,
            stride=stride,
            max_replicas=np.minimum(max_replicas, counts),
        )
        shape = lattice.num_ideals, len(digit)
        self.tables = Tables(
            value=np.empty(shape, np.int64),
            back_ideal=np.zeros(shape, np.int32),
            back_type=np.zeros(shape, np.int16),
            back_replicas=np.zeros(shape, np.int16),
            alive=np.zeros(shape[0], np.bool_),
            viable=np.zeros(shape, np.bool_),
        )
        self._amount, self._rates = _work_rates(model)
        self._sums = ideal_sums(lattice, self._amount)
        exchanged = 2 * int(self.arrays.sync.sum())
        self.most = min(_HUGE, model.largest_load + exchanged)

    def area_bound(self) -> int:
        """Ticks that every period (forward part only for "gpipe") reaches: all work spread
        evenly.
        """
        rates = self._rates[0]
        if any(rate is None for rate in rates):
            return 0  # one type does all of it in no time
        full = sum(
            rate * count for rate, count in zip(rates, self.model.type_counts.tolist(), strict=True)
        )
        return ceil(Fraction(int(self._amount[0].sum())) / full) if full else 0

    def run(
        self,
        limit: int,
        limit2: int = NO_VALUE,
        *,
        stop: Callable[[], bool] | None = None,
        chunk: int = 16,
        seconds: float = 0.1,
    ) -> DpOutcome:
        """Find the smallest largest load that is at most `limit` (backward loads at most `limit2`).

        `stop` is asked about every so many seconds, after `chunk` ideals for the first time; when
        it answers True the run ends incomplete. So short are the calls of the kernel that they need
        no thread of their own for Ctrl-C, which would take longer than small programs do.
        """
        tables, lattice = self.tables, self.lattice
        if min(limit, limit2) < 0:
            return DpOutcome(None, (), True)
        limits = self._limits(limit, limit2)
        self._mark_viable(limits)
        row = 0
        while row < lattice.num_ideals:
            begin = time.perf_counter()
            last = min(row + chunk, lattice.num_ideals)
            fill_rows(self.arrays, lattice, tables, limits, row, last)
            row = last
            spent = time.perf_counter() - begin
            chunk = max(1, min(chunk * 4, int(chunk * seconds / max(spent, 1e-9))))
            if row < lattice.num_ideals and stop is not None and stop():
                return DpOutcome(None, (), False)
        value = int(tables.value[-1, -1])
        if value >= NO_VALUE:
            return DpOutcome(None, (), True)
        return DpOutcome(value, self._stages(), True)

    def _limits(self, limit: int, limit2: int) -> Limits:
        load = [min(x, _HUGE) for x in (limit, limit2)[: len(self._amount) - 1]]
        fixed = [min(x * r, _HUGE) for x in load for r in self.arrays.max_replicas.tolist()]
        return Limits(np.array(load, np.int64), np.array(fixed, np.int64))

    def _mark_viable(self, limits: Limits) -> None:
        """Mark the (ideal, state) pairs whose work fits the used, and the rest the unused, devices.

        In whole numbers: devices hold at most their rate times their number times the limit of any
        amount.
        """
        counts, used = self.counts, self._used
        viable = self.tables.viable
        viable[:] = True
        for q, (rates, done) in enumerate(zip(self._rates, self._sums, strict=True)):
            total = int(done[-1])
            # bytes have their capacity as rate
            limit = int(limits.load[q]) if q < len(limits.load) else 1
            room, rest = np.zeros((2, len(used)), np.int64)
            for g, rate in enumerate(rates):
                held = [
                    total
                    if rate is None
                    else min(total, rate.numerator * d * limit // rate.denominator)
                    for d in range(int(counts[g]) + 1)
                ]
                most = np.array(held, np.int64)
                room = np.minimum(total, room + most[used[:, g]])
                rest = np.minimum(total, rest + most[counts[g] - used[:, g]])
            viable &= (done[:, None] <= room) & (total - done[:, None] <= rest)

    def _stages(self) -> tuple[Stage, ...]:
        tables, lattice, n = self.tables, self.lattice, self.model.num_nodes
        ideal, state = lattice.num_ideals - 1, len(self.arrays.digit) - 1
        stages: list[Stage] = []
        while ideal > 0:
            g, r = int(tables.back_type[ideal, state]), int(tables.back_replicas[ideal, state])
            if r == 0:
                state -= int(self.arrays.stride[g])
                continue
            below = int(tables.back_ideal[ideal, state])
            nodes = np.flatnonzero(lattice.members(ideal, n) & ~lattice.members(below, n))
            stages.append(Stage(nodes, g, r))
            ideal, state = below, state - r * int(self.arrays.stride[g])
        return tuple(reversed(stages))


def _work_rates(model: ContractedProblem) -> tuple[Ints, list[list[Fraction | None]]]:
    """Return amounts (P + 1, N) and rates per amount and type: load L on a device holds at most
    rate * L of each.

    The first amounts are the ticks of each pass on type 0 (0 for nodes it cannot run); a rate of
    None has no limit: the type does some of it in no time. The last amount is bytes, whose rate is
    the capacity.
    """
    passes = model.pass_compute
    amounts = [np.where(model.allowed[:, 0], ticks[:, 0], 0) for ticks in passes]
    rates: list[list[Fraction | None]] = []
    for amount, ticks in zip(amounts, passes, strict=True):
        row: list[Fraction | None] = []
        for g in range(model.num_types):
            runs = model.allowed[:, g] & (amount > 0)
            pairs = set(together(amount[runs], ticks[runs, g]))
            free = any(time == 0 for _, time in pairs)
            row.append(
                None if free else max((Fraction(*pair) for pair in pairs), default=Fraction(0))
            )
        rates.append(row)
    rates.append([Fraction(int(capacity)) for capacity in model.capacity])
    return np.stack([*amounts, model.resident]), rates


def coarse_enough(model: ContractedProblem) -> ContractedProblem:
    """Return the model with nodes joined until a pass along their order takes about a second: it
    looks at half of their pairs, and for each at the pair and at every type of devices.
    """
    return model.coarse(isqrt(2 * MAX_CELLS // (1 + model.num_types)))


def states_along(
    model: ContractedProblem, replicas: int = 1, *, least: int = 2**8, steps: int = 2**28
) -> int:
    """Return how many states a pass along an order of the nodes has time for, in about a second:
    it looks at most pairs of nodes, as the first and the last one of a stage.
    """
    pairs = model.num_nodes**2 * model.num_types // model.problem.num_devices
    return max(least, min(MAX_STATES, steps // max(1, pairs * replicas)))


def _states_along(types: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return the states of devices that are taken in an order of types, at most so many of each:
    used devices of each type, and how many of a type were taken last, one right after the other.
    """
    used, last = ([np.zeros_like(counts)] for _ in range(2))
    for g in types.tolist():
        if used[-1][g] < counts[g]:
            one = np.arange(len(counts)) == g
            used.append(used[-1] + one)
            last.append((last[-1] + 1) * one)
    return np.array(used), np.array(last)


def _greedy_types(model: ContractedProblem, *, halvings: int = 20) -> Ints:
    """Return the types of all devices in the order of a greedy chain without transfers: each stage
    goes to the type that holds most of what is left, within the least limit that suffices.
    """
    ticks = np.where(model.allowed, model.total, model.largest_load + 1).astype(np.float64)
    done = np.concatenate([np.zeros((model.num_types, 1)), np.cumsum(ticks.T, axis=1)], axis=1)
    held = running_sums(model.resident)
    room, low, high = model.capacity.astype(np.float64), 0.0, float(model.largest_load)
    best: list[int] = []
    for _ in range(halvings):
        limit, at, left = (low + high) / 2, 0, model.type_counts
        found: list[int] = []
        while left.any():
            reach = [
                min(
                    int(done[g].searchsorted(done[g, at] + limit, "right")),
                    int(held.searchsorted(held[at] + room[g], "right")),
                )
                if left[g]
                else 0
                for g in range(len(left))
            ]
            g = int(np.argmax(reach))
            found.append(g)
            at, left[g] = reach[g] - 1, left[g] - 1
        if at == model.num_nodes:
            high, best = limit, found
        else:
            low = limit
    return np.array(best or found, np.int64)


def _affordable_counts(model: ContractedProblem, most: int) -> Ints:
    """Devices of each type that may be taken in an order: all, unless more than `most` states are
    too many for the tables.

    The slowest ones are left out first, those that some node needs last.
    """
    counts = model.type_counts
    slow = np.where(model.allowed, model.total, model.total.max()).astype(np.float64).sum(axis=0)
    while counts.sum() >= most:
        spare = [
            g
            for g in true_places(counts)
            if counts[g] > 1
            or model.allowed[:, (counts > 0) & (np.arange(len(counts)) != g)].any(axis=1).all()
        ]
        counts[max(spare or true_places(counts), key=lambda g: (slow[g], g))] -= 1
    return counts


def stage_devices(
    model: ContractedProblem, stages: tuple[Stage, ...]
) -> tuple[Ints, list[tuple[int, ...]]]:
    """Give devices to stages in order: (device of every op, devices of every stage).

    An op of a replicated stage gets the stage's first device.
    """
    free = [list(devices) for devices in model.types]
    node_device = np.zeros(model.num_nodes, np.int64)
    groups: list[tuple[int, ...]] = []
    for stage in stages:
        group = tuple(free[stage.device_type][: stage.replicas])
        del free[stage.device_type][: stage.replicas]
        node_device[stage.nodes] = group[0]
        groups.append(group)
    return model.expand(node_device), groups


class DpArrays(NamedTuple):
    """What the kernel reads (N nodes, G types, P passes, m tensors, S states)."""

    compute: Ints  # (N, P * G) ticks
    banned: Ints  # (N, G) 1 where the node cannot run on the type
    resident: Ints  # (N,) bytes
    capacity: Ints  # (G,) bytes
    sync: Ints  # (N,) ticks to send the node's weights once
    weight: Ints  # (m, G) ticks
    tensors: TensorArrays
    digit: Ints  # (S, G) devices of each type that the last stage may have
    stride: Ints  # (G,) distance between states that differ by one device
    max_replicas: Ints  # (G,)


class Limits(NamedTuple):
    """Largest loads of a stage per pass, and of the part of it that larger stages keep, per pass
    and type.
    """

    load: Ints  # (P,) ticks
    fixed: Ints  # (P * G,) ticks


class Tables(NamedTuple):
    """State of the program (I ideals, S states)."""

    value: Ints  # (I, S)
    back_ideal: SmallInts  # (I, S)
    back_type: NDArray[np.int16]  # (I, S) type of the last stage
    # (I, S) its devices; 0 leaves one device of the type without a stage
    back_replicas: NDArray[np.int16]
    alive: Flags  # (I,)
    viable: Flags  # (I, S)


@inner_kernel
def _outside(a: DpArrays, bits: Bits, ideal: int, outside: Ints, foreign: Flags) -> None:
    """Count the consumers of every tensor outside an ideal; whether its producer is outside."""
    for t in range(len(a.tensors.producer)):
        foreign[t] = not contains(bits, ideal, a.tensors.producer[t])
        outside[t] = 0
        for e in row_of(a.tensors.consumer_ptr, t):
            if not contains(bits, ideal, a.tensors.consumer[e]):
                outside[t] += 1


@inner_kernel
def _leave_unused(a: DpArrays, tables: Tables, ideal: int) -> None:
    """Let a device stay empty where that is better, and note whether any state is reached."""
    row = tables.value[ideal]
    for s in range(len(row)):
        for g in range(a.digit.shape[1]):
            if a.digit[s, g] > 0 and row[s - a.stride[g]] < row[s] and tables.viable[ideal, s]:
                row[s] = row[s - a.stride[g]]
                tables.back_ideal[ideal, s] = ideal
                tables.back_type[ideal, s] = g
                tables.back_replicas[ideal, s] = 0
        if row[s] < NO_VALUE:
            tables.alive[ideal] = True


@inlined
def _take(a, j, tensors, load, fixed):  # type: ignore[no-untyped-def]
    """Put node j into S: add to its load, and to what larger S keep of it, the tensors that now
    cross its edge.
    """
    inside, outside, holds, foreign = tensors
    num_types = a.banned.shape[1]
    for e in row_of(a.tensors.touch_ptr, j):
        t = a.tensors.touch_tensor[e]
        base = a.tensors.of_pass[t] * num_types
        size = a.tensors.consumer_ptr[t + 1] - a.tensors.consumer_ptr[t]
        made = a.tensors.touch_role[e] == 1
        stays = outside[t] > 0 if made else foreign[t] and inside[t] == 0
        before, after = cross(made, t, size, inside, holds)
        if before != after:
            for g in range(num_types):
                load[base + g] += a.weight[t, g] if after else -a.weight[t, g]
        if stays:
            for g in range(num_types):
                fixed[base + g] += a.weight[t, g]


@inlined
def _offer(a, tables, limits, ideals, kind, loads):  # type: ignore[no-untyped-def]
    """Offer S = I - I' as a stage on 1, 2, ... devices of a type, of each state of I.

    `ideals` is (I, I'), `kind` the type and the bytes that its replicas exchange, `loads` those of
    S in the first pass and in the second, 0 if there is none.
    """
    ideal, below = ideals
    g, sync = kind
    row, passes = tables.value[ideal], a.compute.shape[1] // a.banned.shape[1]
    for r in range(1, a.max_replicas[g] + 1):
        stage, stage2 = loads
        if r > 1:
            exchange = (2 * (r - 1) * sync + r - 1) // r
            stage = (stage + r - 1) // r + (exchange if passes == 1 else 0)
            stage2 = (stage2 + r - 1) // r + exchange if passes == 2 else 0
        if stage > limits.load[0] or stage2 > limits.load[-1]:
            continue
        step = r * a.stride[g]
        for s in range(a.digit.shape[0]):
            if a.digit[s, g] >= r and tables.viable[ideal, s]:
                value = max(stage, tables.value[below, s - step])
                if value < row[s]:
                    row[s] = value
                    tables.back_ideal[ideal, s] = below
                    tables.back_type[ideal, s] = g
                    tables.back_replicas[ideal, s] = r


@entry
def fill_rows(
    a: DpArrays, lattice: Lattice, tables: Tables, limits: Limits, first: int, last: int
) -> None:
    """Fill the rows `first`..`last`-1 of the tables with values up to the limits.

    The steps on the way down from I to I' become a part of this function: numba counts a reference
    to every array of a record at each call, which made them fifteen times slower.
    """
    n, num_types = a.banned.shape
    width, m = a.compute.shape[1], len(a.tensors.producer)
    second = width - num_types  # where the loads of the second pass begin, 0 if there is none
    # consumers inside S = I - I', and outside I; whether the producer is
    inside, outside = np.zeros((2, m), np.int64)
    holds, foreign = np.zeros((2, m), np.bool_)
    # at each depth: of S, and the part of it that larger S keep
    load, fixed = np.zeros((2, n + 1, width), np.int64)
    banned = np.zeros((n + 1, num_types), np.int64)
    # likewise: bytes, sync, ideal, and next child to try
    used, sync, at, edge = np.zeros((4, n + 1), np.int64)
    taken = np.full(n + 1, n, np.int64)  # node removed last
    for ideal in range(first, last):
        row = tables.value[ideal]
        row[:] = 0 if ideal == 0 else NO_VALUE
        tables.alive[ideal] = ideal == 0
        if ideal == 0 or not tables.viable[ideal].any():
            continue
        _outside(a, lattice.bits, ideal, outside, foreign)
        depth = 0
        at[0], edge[0] = ideal, lattice.child_ptr[ideal]
        while depth >= 0:
            if edge[depth] == lattice.child_ptr[at[depth] + 1]:
                if depth > 0:
                    put_back(a.tensors, taken[depth], inside, holds)
                depth -= 1
                continue
            j, below = lattice.child_node[edge[depth]], lattice.child_ideal[edge[depth]]
            edge[depth] += 1
            if j > taken[depth]:  # nodes fall along the way, so that every sub-ideal is met once
                continue
            d = depth + 1
            for x in range(width):
                load[d, x] = load[depth, x] + a.compute[j, x]
                fixed[d, x] = fixed[depth, x] + a.compute[j, x]
            _take(a, j, (inside, outside, holds, foreign), load[d], fixed[d])
            used[d] = used[depth] + a.resident[j]
            sync[d] = sync[depth] + a.sync[j]
            deeper = False
            for g in range(num_types):
                banned[d, g] = banned[depth, g] + a.banned[j, g]
                if banned[d, g] > 0 or used[d] > a.capacity[g] or fixed[d, g] > limits.fixed[g]:
                    continue
                if second and fixed[d, second + g] > limits.fixed[second + g]:
                    continue
                deeper = True
                if not tables.alive[below]:
                    continue
                stage2 = load[d, second + g] if second else 0
                _offer(a, tables, limits, (ideal, below), (g, sync[d]), (load[d, g], stage2))
            depth = d
            # where no larger S is a stage all children count as tried
            taken[d], at[d], edge[d] = j, below, lattice.child_ptr[below if deeper else below + 1]
        _leave_unused(a, tables, ideal)


@dataclass(frozen=True)
class ChainOutcome:
    """Best chain below the incumbent: `value` is None if there is none (or none was found in time).

    `lower_bound` holds for every chain of the program's lattice; `complete` says that nothing is
    left open.
    """

    value: int | None
    stages: tuple[Stage, ...]
    lower_bound: int
    complete: bool


def best_chain(
    program: IdealProgram,
    incumbent: int | None,
    stop: Callable[[], bool] | None = None,
    find: Callable[..., ChainOutcome] | None = None,
) -> ChainOutcome:
    """Find the best chain of `program` that beats `incumbent` (ticks).

    Parameters
    ----------
    find : what does so for the devices that the program uses, by (program, incumbent, stop); by
    default as the pipeline asks.
    """
    find = find or (_best_gpipe if program.model.two_pass else _best_1f1b)
    outcome = find(program, incumbent, stop)
    if program.restricted:  # a chain of the devices that were left out may be better
        return replace(
            outcome, lower_bound=min(outcome.lower_bound, program.area_bound()), complete=False
        )
    return outcome


def _best_1f1b(
    program: IdealProgram,
    incumbent: int | None,
    stop: Callable[[], bool] | None,
    *,
    close: float = 1.25,
) -> ChainOutcome:
    """Try rising limits, each by the factor `close` above the last one; an incumbent within this
    factor of the area bound is tried at once.
    """
    last = program.most if incumbent is None else incumbent - 1
    lower = program.area_bound()
    limit = last if last <= close * lower else int(close * lower)
    while True:
        limit = min(limit, last)
        outcome = program.run(limit, stop=stop)
        if not outcome.complete:
            return ChainOutcome(None, (), lower, False)
        if outcome.value is not None:
            return ChainOutcome(outcome.value, outcome.stages, outcome.value, True)
        lower = max(lower, limit + 1)
        if limit == last:
            return ChainOutcome(None, (), lower, True)
        limit = int(limit * close) + 1


def _best_gpipe(
    program: IdealProgram, incumbent: int | None, stop: Callable[[], bool] | None
) -> ChainOutcome:
    model = program.model
    swapped = replace(
        model, compute=np.ascontiguousarray(model.compute[::-1]), tensor_pass=1 - model.tensor_pass
    )
    states = len(program.arrays.digit)
    other = IdealProgram(swapped, program.lattice, most_states=states)
    smallest = other.run(_HUGE, _HUGE, stop=stop)
    forward = program.area_bound()
    if not smallest.complete:
        return ChainOutcome(None, (), forward, False)
    if smallest.value is None:
        return ChainOutcome(None, (), _HUGE, True)
    backward = smallest.value
    best = incumbent
    value: int | None = None
    stages: tuple[Stage, ...] = ()
    while True:
        room = _HUGE if best is None else best - 1
        outcome = program.run(room - backward, room - forward, stop=stop)
        if not outcome.complete:
            return ChainOutcome(value, stages, forward + backward, False)
        if outcome.value is None:
            return ChainOutcome(value, stages, room + 1, True)
        forward = outcome.value
        load = period_loads(model.problem, stage_devices(model, outcome.stages)[0]).max(axis=1)
        if best is None or int(load.sum()) < best:
            best = value = int(load.sum())
            stages = outcome.stages
