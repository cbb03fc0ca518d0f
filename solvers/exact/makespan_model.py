"""The CP-SAT model of the makespan: unrelated devices, link classes, memory, colocation,
contention.

Variables: a literal per (item, device), where an item is a colocation group or a single op; a start
per op; a literal "same device" per pair of items joined by a tensor; the makespan. Contended
transfers add, per tensor and destination, a start and one optional interval per channel and length
of the transfers that may bring it there.

A coarse grid of `scale` ticks is allowed: every duration p is rounded down, p' = floor(p / scale).
Proof that `scale` times a bound of the coarse model bounds the fine one: let every op and transfer
of a fine schedule end at E' = floor(E / scale), so it starts at S' = E' - p' >= floor(S / scale),
because floor(a + b) >= floor(a) + floor(b). What started at or after an end still does, and heads,
tails and the horizon may be rounded down too. What lives from a to b lives from a' >= floor(a /
scale) to b' = floor(b / scale); if it is alive in the coarse moment t then a < (t + 1) scale <= b,
so it was alive in the fine moment (t + 1) scale - 1, like all others that are alive in t: peaks are
no higher. (Rounding the starts down instead would let ops end before floor(E / scale), and
uncontended transfers, which start with those ends, live longer than in the fine schedule.)
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from placeopt.makespan.bounds.relaxation import sample
from placeopt.model.arrays import (
    UNLIMITED,
    Ints,
    by_key,
    stable_order,
    sums_by,
    together,
    true_places,
)

if TYPE_CHECKING:
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.makespan.bounds.destructive import Clusters

Literal = Any  # a CP-SAT Boolean variable or its negation


class Carried(NamedTuple):
    """A transfer that a channel may carry.

    Attributes
    ----------
    before, after : units of the model's time that pass at least before it begins and after it ends.
    """

    interval: Any
    sent: Literal
    ticks: int
    before: int
    after: int


class MakespanModel:
    """Builds the model; `makespan_grid` hints and reads solutions.

    Parameters
    ----------
    analysis : heads, tails and the relaxation of the problem.
    lower, upper : bounds on the makespan in ticks; solutions longer than `upper` are excluded.
    scale : ticks of one unit of the model's time.
    propagation_seconds : time for deductions from the horizon before the model is built.
    """

    def __init__(
        self,
        analysis: Analysis,
        lower: int,
        upper: int,
        scale: int = 1,
        *,
        propagation_seconds: float = 1.0,
    ) -> None:
        self.problem, self.analysis, self.scale = analysis.problem, analysis, scale
        self.model = cp_model.CpModel()
        self.horizon = upper // scale
        self.item = self.problem.units.unit
        self.allowed = analysis.relaxation.allowed
        # what holds for all schedules that round down to the coarse horizon
        deduced = analysis.within((self.horizon + 1) * scale - 1, propagation_seconds)
        self.clusters: Clusters | None = None
        heads = analysis.heads
        if deduced is not None:
            heads, self.clusters = deduced
        self.infeasible = self.clusters is None
        self.head, self.tail = (
            np.maximum(x, 0) // scale for x in analysis.device_heads_tails(heads)
        )
        self.compute = np.where(self.allowed, self.problem.compute // scale, -1)
        self._restrict_to_horizon()
        self._variables(lower // scale)
        self._durations()
        self._devices_run_one_op_at_a_time()
        self._precedences()
        self.transfer_start: dict[tuple[int, int], Any] = {}
        self.sent: dict[tuple[int, int, tuple[int, ...]], Literal] = {}
        self._transfers_share_channels()
        self._memory()
        self._symmetry()
        self._load_and_energy_cuts()
        self._shared_and_separated()
        self.model.minimize(self.makespan)

    # --- variables
    # -----------------------------------------------------------------------------------

    def _restrict_to_horizon(self) -> None:
        """Forbid devices on which an op cannot meet the horizon, for all ops of an item
        together.
        """
        late = self.head + self.compute + self.tail > self.horizon
        possible = np.ones((int(self.item.max()) + 1, self.problem.num_devices), np.bool_)
        np.logical_and.at(possible, self.item, self.allowed & ~late)
        nowhere = ~possible.any(axis=1)
        if nowhere.any():
            self.infeasible = True  # no solution within the horizon: keep a well-formed model
            able = np.zeros_like(possible)
            np.logical_or.at(able, self.item, self.allowed)
            possible[nowhere] = able[nowhere]
        self.devices = [true_places(row) for row in possible]

    def _variables(self, lower: int) -> None:
        m = self.model
        self.makespan = m.new_int_var(min(max(0, lower), self.horizon), self.horizon, "makespan")
        true = m.new_constant(1)
        self.on: list[dict[int, Literal]] = []  # item -> device -> literal
        for i, devices in enumerate(self.devices):
            if len(devices) == 1:
                self.on.append({devices[0]: true})
                continue
            literals = {d: m.new_bool_var(f"on_{i}_{d}") for d in devices}
            m.add_exactly_one(literals.values())
            self.on.append(literals)
        self.start: list[Any] = []
        self.end: list[Any] = []
        self.same_of: dict[tuple[int, int], Literal] = {}
        for v, item in enumerate(self.item.tolist()):
            devices = self.devices[item]
            first = min(int(self.head[v, d]) for d in devices)
            last = max(
                self.horizon - int(self.tail[v, d]) - int(self.compute[v, d]) for d in devices
            )
            self.start.append(m.new_int_var(first, max(first, last), f"start_{v}"))

    @property
    def _shared(self) -> bool:
        """Whether devices share channels: what each has of its own seldom binds."""
        return 0 < self.problem.num_channels < self.problem.num_devices

    def _where(self, v: int) -> dict[int, Literal]:
        """Literals of the devices of op v."""
        return self.on[self.item[v]]

    def _durations(self) -> None:
        """End of every op; heads and tails that depend on the device."""
        m = self.model
        for v in range(self.problem.num_ops):
            literals = self._where(v)
            times = {d: int(self.compute[v, d]) for d in literals}
            if len(set(times.values())) == 1:
                self.end.append(self.start[v] + next(iter(times.values())))
            else:
                self.end.append(
                    self.start[v] + sum(times[d] * literal for d, literal in literals.items())
                )
            heads = {d: int(self.head[v, d]) for d in literals}
            tails = {d: int(self.tail[v, d]) for d in literals}
            low, short = min(heads.values()), min(tails.values())
            m.add(
                self.makespan
                >= self.end[v] + sum((tails[d] - short) * x for d, x in literals.items()) + short
            )
            if max(heads.values()) > low:
                m.add(self.start[v] >= low + sum((heads[d] - low) * x for d, x in literals.items()))

    # --- constraint families
    # -------------------------------------------------------------------------

    def _devices_run_one_op_at_a_time(self) -> None:
        m = self.model
        lanes: list[list[Any]] = [[] for _ in range(self.problem.num_devices)]
        for v in range(self.problem.num_ops):
            for d, literal in self._where(v).items():
                size = int(self.compute[v, d])
                interval = m.new_optional_fixed_size_interval_var(
                    self.start[v], size, literal, f"run_{v}_{d}"
                )
                lanes[d].append(interval)
        for lane in lanes:
            m.add_no_overlap(lane)

    def same(self, i: int, j: int) -> Literal:
        """Literal: items i and j are on one device."""
        key = (min(i, j), max(i, j))
        if key in self.same_of:
            return self.same_of[key]
        m, a, b = self.model, self.on[i], self.on[j]
        common = [d for d in a if d in b]
        if not common:
            found = m.new_constant(0)
        elif len(a) == 1 and len(b) == 1:
            found = m.new_constant(1)
        else:
            found = m.new_bool_var(f"same_{key[0]}_{key[1]}")
            for d in common:
                m.add_bool_or([~a[d], ~b[d], found])
                m.add_bool_or([~found, ~a[d], b[d]])
                m.add_bool_or([~found, a[d], ~b[d]])
            for d, literal in (*a.items(), *b.items()):
                if d not in common:
                    m.add_implication(found, ~literal)
        self.same_of[key] = found
        return found

    def _precedences(self) -> None:
        """Start a consumer after its producer, and after the transfer if the devices differ."""
        m, p = self.model, self.problem
        edges = together(p.consumer, p.edge_tensor)
        pairs = by_key(((int(p.producer[t]), v), t) for v, t in edges)
        transfer = p.transfer // self.scale
        for (u, v), tensors in pairs.items():
            i, j = int(self.item[u]), int(self.item[v])
            worst = transfer[tensors].max(axis=0)
            cost = {
                (d, e): int(worst[p.link_class[d, e]])
                for d, e in itertools.product(self.devices[i], self.devices[j])
                if d != e and i != j
            }
            base = min(cost.values(), default=0)
            if base == 0:
                m.add(self.start[v] >= self.end[u])
            else:
                m.add(self.start[v] >= self.end[u] + base - base * self.same(i, j))
            for (d, e), ticks in cost.items():
                if ticks > base:
                    both = [self.on[i][d], self.on[j][e]]
                    m.add(self.start[v] >= self.end[u] + ticks).only_enforce_if(both)

    def _transfers_share_channels(self) -> None:
        """One optional interval per tensor, destination and channel on which it comes there as
        fast; the makespan is no shorter than all that a channel of several devices carries.
        """
        m, p = self.model, self.problem
        lanes: dict[int, list[Carried]] = {}
        for t in range(p.num_tensors):
            i = int(self.item[p.producer[t]])
            elsewhere = [v for v in p.readers_of(t) if self.item[v] != i]
            for e in range(p.num_devices):
                readers = [v for v in elsewhere if e in self._where(v)]
                sources = [d for d in self.devices[i] if d != e and p.channel[d, e] >= 0]
                if readers and sources:
                    self._transfer(t, e, readers, sources, lanes)
        for lane in lanes.values():
            m.add_no_overlap([carried.interval for carried in lane])
        for lane in lanes.values() if self._shared else ():
            used = m.new_bool_var("used")
            for carried in lane:
                m.add_implication(carried.sent, used)
            ends = min(x.before for x in lane) + min(x.after for x in lane)
            m.add(self.makespan >= ends * used + sum(x.ticks * x.sent for x in lane))

    def _transfer(
        self,
        t: int,
        e: int,
        readers: list[int],
        sources: list[int],
        lanes: dict[int, list[Carried]],
    ) -> None:
        m, p = self.model, self.problem
        u = int(p.producer[t])
        before = min(int(self.head[u, d] + self.compute[u, d]) for d in sources)
        after = min(int(self.compute[v, e] + self.tail[v, e]) for v in readers)
        start = m.new_int_var(0, self.horizon, f"send_{t}_{e}")
        self.transfer_start[t, e] = start
        m.add(start >= self.end[u])
        transfer = p.transfer[t] // self.scale
        ways = [((int(p.channel[d, e]), int(transfer[p.link_class[d, e]])), d) for d in sources]
        for (channel, ticks), group in by_key(ways).items():
            sent = m.new_bool_var(f"sent_{t}_{e}_{group[0]}")
            self.sent[t, e, tuple(group)] = sent
            here = [self._where(u)[d] for d in group]
            others = [x for d, x in self._where(u).items() if d not in group]
            apart = [others] if len(others) < len(here) else [[~x] for x in here]
            m.add_bool_or([~sent, *here])
            m.add_bool_or([~sent, *(self._where(v)[e] for v in readers)])
            for v in readers:
                there = self._where(v)[e]
                for elsewhere in apart:  # or the producer is in the group
                    m.add_bool_or([*elsewhere, ~there, sent])
                m.add(self.start[v] >= start + ticks).only_enforce_if([sent, there])
            interval = m.new_optional_fixed_size_interval_var(
                start, ticks, sent, f"move_{t}_{e}_{group[0]}"
            )
            lanes.setdefault(channel, []).append(Carried(interval, sent, ticks, before, after))

    def _memory(self) -> None:
        m, p = self.model, self.problem
        weight = p.units.bytes.tolist()
        total = sum(weight)
        for d in range(p.num_devices):
            capacity = int(p.capacity[d])
            if capacity >= UNLIMITED or total <= capacity:
                continue
            m.add(
                sum(w * self.on[i][d] for i, w in enumerate(weight) if w and d in self.on[i])
                <= capacity
            )
        live = int(p.tensor_bytes.sum())
        if p.memory == "peak" and (p.capacity < total + live).any():
            self._peak_memory()

    def _peak_memory(self) -> None:
        """Dynamic peak: resident bytes plus a cumulative of live tensors (never longer than in the
        execution).
        """
        m, p = self.model, self.problem
        for d in range(p.num_devices):
            capacity = int(p.capacity[d])
            if capacity >= UNLIMITED:
                continue
            intervals: list[Any] = []
            demands: list[int] = []
            for v in range(p.num_ops):
                if p.resident[v] and d in self._where(v):
                    literal = self._where(v)[d]
                    whole = m.new_optional_fixed_size_interval_var(
                        0, self.horizon + 1, literal, f"rest_{v}_{d}"
                    )
                    intervals.append(whole)
                    demands.append(int(p.resident[v]))
            for t in true_places(p.tensor_bytes):
                lives = self._live(t, d)
                intervals += lives
                demands += [int(p.tensor_bytes[t])] * len(lives)
            m.add_cumulative(intervals, demands, min(capacity, 2**61))

    def _live(self, t: int, d: int) -> list[Any]:
        """Life of tensor t on device d: at home from its producer's start, elsewhere from its
        transfer's start.
        """
        m, p = self.model, self.problem
        u = int(p.producer[t])
        i = int(self.item[u])
        home = self.on[i].get(d)
        size = m.new_int_var(0, self.horizon, f"life_{t}_{d}")
        lives: list[Any] = []
        if home is not None:
            end = m.new_int_var(0, self.horizon, f"gone_{t}_{d}")
            lives.append(
                m.new_optional_interval_var(self.start[u], size, end, home, f"home_{t}_{d}")
            )
            self._keep_at_home(t, d, home, end)
        visitors = [v for v in p.readers_of(t) if d in self._where(v) and self.item[v] != i]
        for source, literal in self.on[i].items():
            if source == d or not visitors:
                continue
            present = m.new_bool_var(f"visits_{t}_{source}_{d}")
            start = self.transfer_start[t, d] if p.channel[source, d] >= 0 else self.end[u]
            away = m.new_int_var(0, self.horizon, f"leaves_{t}_{source}_{d}")
            span = m.new_int_var(0, self.horizon, f"stay_{t}_{source}_{d}")
            for v in visitors:
                there = self._where(v)[d]
                m.add_bool_or([~literal, ~there, present])
                m.add(away >= self.end[v]).only_enforce_if([present, there])
            begin = m.new_int_var(0, self.horizon, f"enters_{t}_{source}_{d}")
            m.add(begin == start).only_enforce_if(present)
            lives.append(
                m.new_optional_interval_var(begin, span, away, present, f"visit_{t}_{source}_{d}")
            )
        return lives

    def _keep_at_home(self, t: int, d: int, home: Literal, end: cp_model.IntVar) -> None:
        """Keep tensor t on its producer's device d until its readers there have ended, and until it
        has arrived on the others.
        """
        m, p, u = self.model, self.problem, int(self.problem.producer[t])
        m.add(end >= self.end[u]).only_enforce_if(home)
        readers = p.readers_of(t)
        for v in readers:
            if d in self._where(v):
                m.add(end >= self.end[v]).only_enforce_if([home, self._where(v)[d]])
        for v in readers:
            for e, there in self._where(v).items():
                if e == d or self.item[v] == self.item[u]:
                    continue
                ticks = int(p.transfer[t, p.link_class[d, e]]) // self.scale
                start = self.transfer_start[t, e] if p.channel[d, e] >= 0 else self.end[u]
                m.add(end >= start + ticks).only_enforce_if([home, there])

    def _shared_and_separated(self) -> None:
        """Fix the "same device" literals that the horizon decides (see
        `placeopt.makespan.bounds.destructive`).
        """
        if self.infeasible or self.clusters is None:
            self.model.add_bool_or([])
            return
        relaxation, clusters = self.analysis.relaxation, self.clusters
        for e, (u, v) in enumerate(together(relaxation.source, relaxation.target)):
            i, j = int(self.item[u]), int(self.item[v])
            if i == j:
                continue
            if clusters.cluster[u] == clusters.cluster[v]:
                self.model.add(self.same(i, j) == 1)
            elif clusters.free[e] > 0:
                self.model.add(self.same(i, j) == 0)

    # --- symmetry and cuts
    # ---------------------------------------------------------------------------

    def _pivot_order(self) -> Ints:
        """Items in the order in which they open new devices: longest first, with their transfers
        where channels carry these; what many branches part from or meet at is then on a device
        that is known, and relaxations tell what is not.
        """
        p, ops = self.problem, np.maximum(self.compute, 0).max(axis=1)
        if self._shared:
            ticks = p.transfer.max(axis=1) // self.scale
            ops += sums_by(p.producer, ticks, p.num_ops)
            ops += sums_by(p.consumer, ticks[p.edge_tensor], p.num_ops)
        weight = sums_by(self.item, ops, len(self.on))
        return stable_order(-weight)

    def _symmetry(self) -> None:
        """Device j + 1 of a class is opened by a later item than device j (in pivot order)."""
        m, order = self.model, self._pivot_order().tolist()
        for members in self.problem.identical_devices:
            opened: list[list[Literal]] = [[] for _ in members]
            items = enumerate(order[: 4 * len(members)])
            for (position, i), (j, d) in itertools.product(items, enumerate(members)):
                on = self.on[i]
                if d not in on:
                    continue
                if j > position:
                    m.add(on[d] == 0)
                elif j > 0:
                    m.add_bool_or([~on[d], *opened[j - 1]])
                opened[j].append(on[d])

    def relabel(self, device: Ints) -> Ints:
        """Permute interchangeable devices so that the placement obeys `_symmetry`."""
        renamed = np.arange(self.problem.num_devices)
        by_item = device[self.problem.units.first_op]
        used = list(dict.fromkeys(by_item[self._pivot_order()].tolist()))
        for members in self.problem.identical_devices:
            seen = [d for d in used if d in members]
            seen += [d for d in members if d not in seen]
            renamed[seen] = members
        return renamed[device]

    def _load_and_energy_cuts(self) -> None:
        """Makespan >= a + work on one device of the ops with head >= a and tail >= b, + b."""
        head, tail, fastest = (
            np.where(self.allowed, ticks, np.iinfo(np.int64).max).min(axis=1)
            for ticks in (self.head, self.tail, self.compute)
        )
        for a, b in self._energy_thresholds(head, tail, fastest):
            inside = true_places((head >= a) & (tail >= b))
            for d in range(self.problem.num_devices):
                terms = [
                    int(self.compute[v, d]) * self._where(v)[d]
                    for v in inside
                    if d in self._where(v) and self.compute[v, d] > 0
                ]
                if len(terms) > 1:
                    self.model.add(self.makespan >= a + b + sum(terms))

    def _energy_thresholds(
        self, head: Ints, tail: Ints, fastest: Ints, *, most: int = 12
    ) -> list[tuple[int, int]]:
        """Return (0, 0) and the at most `most` thresholds whose head-tail bounds are largest,
        spread over the graph.
        """
        pick = [sample(np.unique(x), 24).tolist() for x in (head, tail)]
        scored = []
        for a, b in itertools.product(*pick):
            inside = (head >= a) & (tail >= b)
            if inside.sum() > 1:
                work = int(fastest[inside].sum())
                scored.append((a + b + work // self.problem.num_devices, a, b))
        scored.sort(reverse=True)
        return [(0, 0), *((a, b) for _, a, b in scored[:most] if (a, b) != (0, 0))]
