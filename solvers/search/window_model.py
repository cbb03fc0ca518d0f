"""The CP-SAT subproblem of `lns`: some ops are free, the rest keep device and order.

Ops are split by the incumbent's times. Those that end before the slice are fixed in time: they give
devices a release time and deliver their tensors. Those that start after it keep device and order
but may move left: they are folded into tails, the longest path from the end of a slice op, or from
a device, to the end of the schedule. Within the slice, free ops choose device and place; the others
keep their device and their order among themselves, with variable starts. Contended transfers count
with the delay they have in the incumbent, or their plain length if they are new: the evaluator, not
the model, decides what an answer is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from ortools.sat.python import cp_model

from placeopt.model.arrays import UNLIMITED, Flags, Ints

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class Incumbent:
    """A placement with the times of its execution."""

    device: Ints  # (num_ops,)
    start: Ints  # (num_ops,) ticks
    finish: Ints  # (num_ops,) ticks
    delay: dict[
        tuple[int, int], int
    ]  # (tensor, destination) -> ticks from the producer's end to the arrival
    order: Ints  # (num_ops,) ops by (start, finish, topological position)

    @property
    def makespan(self) -> int:
        """End of the last op."""
        return int(self.finish.max())


def arrival_delay(
    problem: PlacementProblem, now: Incumbent, tensor: int, source: int, target: int
) -> int:
    """Ticks from the end of the producer on `source` to the tensor's arrival on `target`."""
    if source == target:
        return 0
    plain = int(problem.transfer[tensor, problem.link_class[source, target]])
    if problem.channel[source, target] < 0 or now.device[problem.producer[tensor]] != source:
        return plain
    return max(plain, now.delay.get((tensor, target), plain))


def tails(problem: PlacementProblem, now: Incumbent) -> Ints:
    """Longest path from the start of every op to the end, with devices and orders of the
    incumbent.
    """
    n = problem.num_ops
    result = np.zeros(n, np.int64)
    ptr, target, tensor = problem.successors
    follower: dict[int, int] = {}  # device -> the op that was visited last
    for v in now.order[::-1].tolist():
        after = 0
        d = int(now.device[v])
        if d in follower:
            after = int(result[follower[d]])
        for e in range(ptr[v], ptr[v + 1]):
            w = int(target[e])
            after = max(
                after,
                arrival_delay(problem, now, int(tensor[e]), d, int(now.device[w])) + int(result[w]),
            )
        result[v] = after + int(problem.compute[v, d])
        follower[d] = v
    return result


@dataclass(frozen=True, eq=False)
class Window:
    """What a subproblem may change."""

    inside: Ints  # ops of the slice, by incumbent order
    free: set[int]  # units that may change device
    loose: set[int]  # ops of the slice that may change their order
    compact: bool  # minimise the ends of all ops at the same makespan, instead of the makespan


class WindowModel:
    """One subproblem.

    Parameters
    ----------
    allowed : whether a unit may run on a device, shape (num_units, num_devices).
    grid : ticks of a step of the model's time.
    lower : proven bound on the makespan, ticks.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        now: Incumbent,
        window: Window,
        allowed: Flags,
        grid: int,
        lower: int,
    ) -> None:
        self.problem, self.now, self.unit, self.grid = problem, now, problem.units.unit, grid
        self.inside = [int(v) for v in window.inside]
        self.within = set(self.inside)
        self.model = cp_model.CpModel()
        self.loose = window.loose
        top = now.makespan if window.compact else now.makespan - 1
        self.horizon = top // grid
        self.infeasible = self.horizon < -(-lower // grid) and not window.compact
        if self.infeasible:
            return
        tail = tails(problem, now)
        self._devices(allowed, window.free)
        self._times(tail)
        self._no_overlap()
        self._edges(tail)
        self._memory()
        if window.compact:
            self.model.minimize(sum(self.end[v] for v in self.inside))
        else:
            self.makespan = self.model.new_int_var(-(-lower // grid), self.horizon, "makespan")
            for v in self.inside:
                self.model.add(self.makespan >= self.end[v] + self.after[v])
            for v, d, extra in self.device_tails:
                self.model.add(self.makespan >= self.end[v] + extra).only_enforce_if(self.on[v][d])
            self.model.minimize(self.makespan)

    def _devices(self, allowed: Flags, free: set[int]) -> None:
        true = self.model.new_constant(1)
        by_unit: dict[int, dict[int, Any]] = {}
        self.on: dict[int, dict[int, Any]] = {}
        for v in self.inside:
            i, now = int(self.unit[v]), int(self.now.device[v])
            if i not in by_unit:
                devices = np.flatnonzero(allowed[i]).tolist() if i in free else [now]
                if len(devices) == 1:
                    by_unit[i] = {devices[0]: true}
                else:
                    by_unit[i] = self._choice(i, devices, now)
            self.on[v] = by_unit[i]
        self.free_units = {i: literals for i, literals in by_unit.items() if len(literals) > 1}

    def _choice(self, unit: int, devices: list[int], now: int) -> dict[int, Any]:
        """Return a literal per device; the unit is on one of them."""
        literals = {d: self.model.new_bool_var(f"on_{unit}_{d}") for d in devices}
        self.model.add_exactly_one(literals.values())
        for d, literal in literals.items():
            self.model.add_hint(literal, int(d == now))
        return literals

    def _times(self, tail: Ints) -> None:
        """Add starts and ends; release times and tails of the devices from the ops outside the
        slice.
        """
        m, p, now = self.model, self.problem, self.now
        last, follow = self._outside(tail)
        self.start: dict[int, Any] = {}
        self.end: dict[int, Any] = {}
        self.device_tails: list[tuple[int, int, int]] = []
        for v in self.inside:
            on = self.on[v]
            early = min(last[d] for d in on) // self.grid
            start = m.new_int_var(early, max(early, self.horizon), f"start_{v}")
            m.add_hint(start, int(now.start[v]) // self.grid)
            self.start[v] = start
            times = {d: int(p.compute[v, d]) // self.grid for d in on}
            if len(set(times.values())) == 1:
                self.end[v] = start + next(iter(times.values()))
            else:
                self.end[v] = start + sum(times[d] * x for d, x in on.items())
            for d, x in on.items():
                if last[d] // self.grid > early:
                    m.add(start >= last[d] // self.grid).only_enforce_if(x)
                if follow[d]:
                    self.device_tails.append((v, d, follow[d] // self.grid))
                    m.add(self.end[v] + follow[d] // self.grid <= self.horizon).only_enforce_if(x)

    def _outside(self, tail: Ints) -> tuple[list[int], list[int]]:
        """Return per device the end of the ops before the slice and the tail of the first after
        it.
        """
        now = self.now
        first = min(int(now.start[v]) for v in self.inside)
        last, follow = [0] * self.problem.num_devices, [0] * self.problem.num_devices
        self.before: set[int] = set()
        for v in now.order.tolist():
            d = int(now.device[v])
            if v in self.within:
                continue
            if now.start[v] < first or now.finish[v] <= first:
                self.before.add(v)
                last[d] = max(last[d], int(now.finish[v]))
            elif follow[d] == 0:
                follow[d] = int(tail[v])
        return last, follow

    def _no_overlap(self) -> None:
        m = self.model
        lanes: dict[int, list[Any]] = {}
        chain: dict[int, int] = {}
        for v in self.inside:
            for d, x in self.on[v].items():
                size = int(self.problem.compute[v, d]) // self.grid
                lanes.setdefault(d, []).append(
                    m.new_optional_fixed_size_interval_var(self.start[v], size, x, f"run_{v}_{d}")
                )
            if v not in self.loose:
                d = int(self.now.device[v])
                if d in chain:
                    m.add(self.start[v] >= self.end[chain[d]])
                chain[d] = v
        for lane in lanes.values():
            m.add_no_overlap(lane)

    def _edges(self, tail: Ints) -> None:
        self.after: dict[int, int] = dict.fromkeys(self.inside, 0)
        ptr, source, tensor = self.problem.predecessors
        for v in self.inside:
            for e in range(ptr[v], ptr[v + 1]):
                u, t = int(source[e]), int(tensor[e])
                if u in self.within:
                    self._edge(u, v, t)
                else:
                    self._edge_into(u, v, t)
        out, target, sent = self.problem.successors
        for u in self.inside:
            for e in range(out[u], out[u + 1]):
                w = int(target[e])
                if w not in self.within and w not in self.before:
                    self._edge_out_of(u, w, int(sent[e]), int(tail[w]))

    def _edge_into(self, u: int, v: int, t: int) -> None:
        """Let v start after what it reads of u, which stays where it is."""
        finish, home = int(self.now.finish[u]), int(self.now.device[u])
        for d, x in self.on[v].items():
            delay = arrival_delay(self.problem, self.now, t, home, d)
            ready = -(-(finish + delay) // self.grid)
            if ready > 0:
                self.model.add(self.start[v] >= ready).only_enforce_if(x)

    def _edge_out_of(self, u: int, w: int, t: int, tail: int) -> None:
        """Let u end early enough for w, which stays where it is."""
        there = int(self.now.device[w])
        delays = {d: arrival_delay(self.problem, self.now, t, d, there) for d in self.on[u]}
        base = min(delays.values())
        self.after[u] = max(self.after[u], (base + tail) // self.grid)
        for d, x in self.on[u].items():
            left = (delays[d] + tail) // self.grid
            self.model.add(self.end[u] + left <= self.horizon).only_enforce_if(x)
            if delays[d] > base:
                self.device_tails.append((u, d, left))

    def _edge(self, u: int, v: int, t: int) -> None:
        """Delay between two ops of the slice."""
        m, p, now = self.model, self.problem, self.now
        m.add(self.start[v] >= self.end[u])
        if self.unit[u] == self.unit[v]:
            return
        for d, x in self.on[u].items():
            delays = {e: arrival_delay(p, now, t, d, e) // self.grid for e in self.on[v] if e != d}
            if not delays:
                continue
            base = min(delays.values())
            stay = [self.on[v][d]] if d in self.on[v] else []
            if base > 0:
                m.add(self.start[v] >= self.end[u] + base).only_enforce_if([x, *(~y for y in stay)])
            for e, ticks in delays.items():
                if ticks > base:
                    m.add(self.start[v] >= self.end[u] + ticks).only_enforce_if([x, self.on[v][e]])

    def _memory(self) -> None:
        p = self.problem
        used = np.zeros(p.num_devices, np.int64)
        weight: dict[int, int] = dict.fromkeys(self.free_units, 0)
        for v, i in enumerate(self.unit.tolist()):
            if i in weight:
                weight[i] += int(p.resident[v])
            else:
                used[self.now.device[v]] += p.resident[v]
        for d in range(p.num_devices):
            if p.capacity[d] >= UNLIMITED:
                continue
            terms = [
                w * self.free_units[i][d]
                for i, w in weight.items()
                if w and d in self.free_units[i]
            ]
            if terms:
                self.model.add(sum(terms) <= int(p.capacity[d] - used[d]))

    def decode(self, value: Any) -> tuple[Ints, Ints]:
        """Return (device, rank): slice ops by their new starts, between the ops before and after
        the slice.
        """
        p, now = self.problem, self.now
        device = now.device.copy()
        position = np.argsort(p.topological_order)
        start, finish = np.empty((2, len(self.inside)), np.int64)
        for at, v in enumerate(self.inside):
            device[v] = next(d for d, x in self.on[v].items() if value(x))
            start[at] = value(self.start[v])
            finish[at] = start[at] + int(p.compute[v, device[v]]) // self.grid
        inside = np.array(self.inside)
        inside = inside[np.lexsort((position[inside], finish, start))]
        rest = [v for v in now.order.tolist() if v not in self.within]
        early = [v for v in rest if v in self.before]
        late = [v for v in rest if v not in self.before]
        return device, np.argsort([*early, *inside.tolist(), *late])
