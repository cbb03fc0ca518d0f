"""The ideal program of one problem: its tables, the (ideal, state) pairs that matter, and the chain
that it finds.

The recurrence is in `period_dp`; here are the limits of a run, what the remaining devices can still
hold, and the way back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil, floor, prod
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import NO_VALUE, Ints
from placeopt.model.interruptible import call_interruptibly
from placeopt.solvers.exact.period_dp import DpArrays, Limits, Tables, fill_rows, ideal_sums

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.ideals import Lattice
    from placeopt.period.contracted import ContractedProblem

_FIRST_CHUNK, _CHUNK_SECONDS = 16, 0.1
_MAX_STATES, MAX_CELLS = 2**17, 2**25  # of the tables; a cell takes 17 bytes


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
    pairs: int


class IdealProgram:
    """The dynamic program for one model and lattice; runs for any limits."""

    def __init__(
        self,
        model: ContractedProblem,
        lattice: Lattice,
        *,
        max_replicas: int = 1,
        sync: Ints | None = None,
    ) -> None:
        n, num_types = model.num_nodes, model.num_types
        self.model, self.lattice = model, lattice
        self.counts = counts = _affordable_counts(model, lattice.num_ideals)
        states = list(product(*(range(c + 1) for c in counts.tolist())))
        stride = np.ones(num_types, np.int64)
        for g in range(num_types - 2, -1, -1):
            stride[g] = stride[g + 1] * (counts[g + 1] + 1)
        passes = model.pass_compute
        self.arrays = DpArrays(
            compute=np.ascontiguousarray(passes.transpose(1, 0, 2).reshape(n, -1)),
            banned=(~model.allowed).astype(np.int64),
            resident=np.ascontiguousarray(model.resident),
            capacity=model.capacity,
            sync=np.zeros((n, num_types), np.int64) if sync is None else np.ascontiguousarray(sync),
            weight=np.ascontiguousarray(model.weight),
            tensors=model.tensors,
            digit=np.array(states, np.int64),
            stride=stride,
            max_replicas=np.minimum(max_replicas, counts),
        )
        ideals = lattice.num_ideals
        self.tables = Tables(
            value=np.empty((ideals, len(states)), np.int64),
            back_ideal=np.zeros((ideals, len(states)), np.int32),
            back_type=np.zeros((ideals, len(states)), np.int16),
            back_replicas=np.zeros((ideals, len(states)), np.int16),
            alive=np.zeros(ideals, np.bool_),
            viable=np.zeros((ideals, len(states)), np.bool_),
        )
        self._amount, self._rates = _work_rates(model)
        self._sums = ideal_sums(lattice.arrays, self._amount)

    @property
    def restricted(self) -> bool:
        """Whether some devices had to be left out, so that nothing is proved of the others."""
        return bool((self.counts < self.model.type_counts).any())

    @property
    def nbytes(self) -> int:
        """Bytes of the tables and the lattice."""
        return (
            sum(int(x.nbytes) for x in self.tables) + self.lattice.nbytes + int(self._sums.nbytes)
        )

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
        self, limit: int, limit2: int = NO_VALUE, *, stop: Callable[[], bool] | None = None
    ) -> DpOutcome:
        """Find the smallest largest load that is at most `limit` (backward loads at most `limit2`).

        `stop` is asked about ten times a second; when it answers True the run ends incomplete.
        """
        tables, lattice = self.tables, self.lattice
        if min(limit, limit2) < 0:
            return DpOutcome(None, (), True, 0)
        limits = self._limits(limit, limit2)
        self._mark_viable(limits)
        row, chunk, pairs = 0, _FIRST_CHUNK, 0
        while row < lattice.num_ideals:
            begin = time.perf_counter()
            last = min(row + chunk, lattice.num_ideals)
            fill = partial(fill_rows, self.arrays, lattice.arrays, tables, limits, row, last)
            pairs += call_interruptibly(fill)
            row = last
            spent = time.perf_counter() - begin
            chunk = max(1, min(chunk * 4, int(chunk * _CHUNK_SECONDS / max(spent, 1e-9))))
            if row < lattice.num_ideals and stop is not None and stop():
                return DpOutcome(None, (), False, pairs)
        value = int(tables.value[-1, -1])
        if value >= NO_VALUE:
            return DpOutcome(None, (), True, pairs)
        return DpOutcome(value, self._stages(), True, pairs)

    def _limits(self, limit: int, limit2: int) -> Limits:
        load = [min(x, NO_VALUE - 1) for x in (limit, limit2)[: len(self._amount) - 1]]
        fixed = [min(x * r, NO_VALUE - 1) for x in load for r in self.arrays.max_replicas.tolist()]
        return Limits(np.array(load, np.int64), np.array(fixed, np.int64))

    def _mark_viable(self, limits: Limits) -> None:
        """Mark the (ideal, state) pairs whose work fits the used, and the rest the unused, devices.

        In whole numbers: devices hold at most their rate times their number times the limit of any
        amount.
        """
        counts, digit = self.counts, self.arrays.digit
        viable = self.tables.viable
        viable[:] = True
        for q, (rates, done) in enumerate(zip(self._rates, self._sums, strict=True)):
            total = int(done[-1])
            limit = (
                int(limits.load[q]) if q < len(limits.load) else 1
            )  # bytes have their capacity as rate
            room = np.zeros(len(digit), np.int64)
            rest = np.zeros(len(digit), np.int64)
            for g, rate in enumerate(rates):
                held = [
                    total if rate is None else min(total, floor(rate * d * limit))
                    for d in range(int(counts[g]) + 1)
                ]
                most = np.array(held, np.int64)
                room = np.minimum(total, room + most[digit[:, g]])
                rest = np.minimum(total, rest + most[counts[g] - digit[:, g]])
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
            pairs = set(zip(amount[runs].tolist(), ticks[runs, g].tolist(), strict=True))
            free = any(time == 0 for _, time in pairs)
            row.append(
                None if free else max((Fraction(*pair) for pair in pairs), default=Fraction(0))
            )
        rates.append(row)
    rates.append([Fraction(int(capacity)) for capacity in model.capacity])
    return np.stack([*amounts, model.resident]), rates


def _affordable_counts(model: ContractedProblem, num_ideals: int) -> Ints:
    """Devices of each type that the program may use: all, unless their states are too many for the
    tables.

    The slowest ones are left out first, those that some node needs last.
    """
    counts = model.type_counts
    most = min(_MAX_STATES, max(2, MAX_CELLS // num_ideals))
    slow = np.where(model.allowed, model.total, model.total.max()).astype(np.float64).sum(axis=0)
    while prod(c + 1 for c in counts.tolist()) > most:
        spare = [
            g
            for g in np.flatnonzero(counts).tolist()
            if counts[g] > 1
            or model.allowed[:, (counts > 0) & (np.arange(len(counts)) != g)].any(axis=1).all()
        ]
        counts[max(spare or np.flatnonzero(counts).tolist(), key=lambda g: (slow[g], g))] -= 1
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
