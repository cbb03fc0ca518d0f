"""CP-SAT for the latency of one sample with q slots per accelerator (model in `placeopt.latency.evaluate`).

It runs where the bound by flows (`placeopt.latency.bounds.flow`) and the placements that come with it leave a gap.

Variables: x[c, u] puts class c (ops that share a device) into unit u, a slot or the pool; start and end of
every slot; ready[v], when op v's outputs are in host memory. With in[t, u], out[t, u] as for the period

    end[u] = start[u] + sum compute x + sum transfer (in + out)
    ready[v] >= end[u]                 if v in u
    start[u] >= ready[p]               if a consumer of p's tensor is in u and p is not
    ready[v] >= ready[p] + compute[v]  if v is in the pool, for every producer p

All times are multiplied by a factor above the number of slots and every slot lasts one unit more, so that
slots of no length cannot wait for each other in a circle; the value is the integer part after division.
For q > 1 ops of a class may sit in different slots of one accelerator, so x is per op and device per class.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.latency.bounds import latency_bounds
from placeopt.latency.bounds.flow import raise_flow_bound
from placeopt.latency.evaluate import latency_arrays, offer_latency, placement_slots
from placeopt.model.interruptible import solve_interruptibly
from placeopt.model.problem import INCOMPATIBLE
from placeopt.solvers.exact.latency_warm_start import warm_start
from placeopt.solvers.exact.period_warm_start import warm_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ortools.sat.python import cp_model

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.exact.period_cp_sat import CpSatSettings
    from placeopt.solving.tracker import Tracker

_FLOW_SHARE = 0.3  # of the time, for the bound by flows
MAX_GRID = 2**40
"""Horizons above this are solved on a coarser grid (floored, so that bounds stay proofs)."""


def search_latency(settings: CpSatSettings, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
    """Minimise the latency with CP-SAT from the bound by flows and the best of several heuristics."""
    for method, value in latency_bounds(problem, 0.0).items():
        tracker.raise_bound(value, method)
    raise_flow_bound(tracker, seconds=_FLOW_SHARE * tracker.seconds_left)
    if settings.warm_start and not tracker.stop():
        warm_start(tracker, seconds=warm_seconds(tracker))
    if not tracker.stop():
        LatencyCpModel(problem, tracker.value).solve(settings, tracker)


class LatencyCpModel:
    """The CP-SAT model of one problem; solutions above `incumbent` ticks are cut off."""

    def __init__(self, problem: PlacementProblem, incumbent: int | None) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.arrays = problem, latency_arrays(problem)
        self.cp = cp_model.CpModel()
        self.accelerators = [d for d in range(problem.num_devices) if problem.io_class[d] >= 0]
        pools = [d for d in range(problem.num_devices) if problem.io_class[d] < 0]
        # CPUs with equal times are one unlimited pool: its first device stands for all without a memory limit.
        self.pools = [d for i, d in enumerate(pools) if not any(self._same(d, e) for e in pools[:i])]
        self.units = [(d, s) for d in self.accelerators for s in range(problem.slots)] + [(d, -1) for d in self.pools]
        self.factor = 2 * len(self.accelerators) * problem.slots + 2
        total = int(problem.compute.max(axis=1).sum()) + 2 * int(self.arrays.io_ticks.max(axis=1, initial=0).sum())
        worst = total if incumbent is None else incumbent
        self.grid = max(1, -(-worst * self.factor // MAX_GRID))
        self.horizon = (worst // self.grid + 1) * self.factor
        self._place()
        self._times()

    def _same(self, a: int, b: int) -> bool:
        p = self.problem
        unlimited = min(int(p.capacity[a]), int(p.capacity[b])) >= int(p.resident.sum())
        return unlimited and bool((p.compute[:, a] == p.compute[:, b]).all())

    def _place(self) -> None:
        cp, p = self.cp, self.problem
        leader = self.arrays.leader
        self.x: list[list[cp_model.IntVar | None]] = []
        shared: dict[int, list[cp_model.IntVar | None]] = {}
        for v in range(p.num_ops):
            if p.slots == 1 and int(leader[v]) in shared:
                self.x.append(shared[int(leader[v])])
                continue
            members = np.flatnonzero(leader == leader[v]) if p.slots == 1 else np.array([v])
            row: list[cp_model.IntVar | None] = []
            for u, (d, _) in enumerate(self.units):
                fits = (p.compute[members, d] != INCOMPATIBLE).all() and p.resident[members].sum() <= p.capacity[d]
                row.append(cp.new_bool_var(f"x{v}_{u}") if fits else None)
            present = [var for var in row if var is not None]
            if present:
                cp.add_exactly_one(present)
            else:
                cp.add_bool_or([])
            shared[int(leader[v])] = row
            self.x.append(row)
        if p.slots > 1:
            for v in range(p.num_ops):
                if leader[v] != v:
                    for d in {d for d, _ in self.units}:
                        cp.add(sum(self._on(v, d)) == sum(self._on(int(leader[v]), d)))
        unit = max(1, int(p.resident.sum()) // MAX_GRID)
        for d in {d: None for d, _ in self.units}:
            if p.resident.sum() > p.capacity[d]:
                terms = [int(p.resident[v]) // unit * x for v in range(p.num_ops) for x in self._on(v, d)]
                cp.add(sum(terms) <= int(p.capacity[d]) // unit)

    def _on(self, v: int, d: int) -> list[cp_model.IntVar]:
        return [x for x, (e, _) in zip(self.x[v], self.units, strict=True) if e == d and x is not None]

    def _ticks(self, ticks: int) -> int:
        return ticks // self.grid * self.factor

    def _times(self) -> None:
        cp, p, a = self.cp, self.problem, self.arrays
        self.latency = cp.new_int_var(0, self.horizon, "L")
        self.ready = [cp.new_int_var(0, self.horizon, f"r{v}") for v in range(p.num_ops)]
        for r in self.ready:
            cp.add(r <= self.latency)
        previous = None
        durations = []
        for u, (d, s) in enumerate(self.units):
            if s < 0:
                continue
            start = cp.new_int_var(0, self.horizon, f"s{u}")
            end = cp.new_int_var(0, self.horizon, f"e{u}")
            terms: list[Any] = [1]
            for v in range(p.num_ops):
                x = self.x[v][u]
                if x is not None:
                    ticks = self._ticks(int(p.compute[v, d]))
                    if ticks:
                        terms.append(ticks * x)
                    cp.add(self.ready[v] >= end).only_enforce_if(x)
            for t in range(p.num_tensors):
                terms.extend(self._ticks(int(a.io_ticks[t, d])) * y for y in self._transfers(t, u, start))
            cp.add(end == start + sum(terms))
            durations.append(end - start)
            if s > 0 and previous is not None:
                cp.add(start >= previous)
            previous = end
        for u, (d, s) in enumerate(self.units):
            if s >= 0:
                continue
            for v in range(p.num_ops):
                x = self.x[v][u]
                if x is None:
                    continue
                ticks = self._ticks(int(p.compute[v, d]))
                cp.add(self.ready[v] >= ticks).only_enforce_if(x)
                for w in self._producers(v):
                    cp.add(self.ready[v] >= self.ready[w] + ticks).only_enforce_if(x)
        self._paths()
        self._break_symmetry(durations)
        cp.minimize(self.latency)

    def _producers(self, v: int) -> list[int]:
        ptr, producer, _ = self.problem.predecessors
        return sorted(set(producer[ptr[v] : ptr[v + 1]].tolist()))

    def _transfers(self, t: int, u: int, start: cp_model.IntVar) -> list[cp_model.IntVar]:
        """In and out variables of tensor t at slot u; the slot starts after the tensors it reads."""
        cp, p = self.cp, self.problem
        producer = int(p.producer[t])
        mine = self.x[producer][u]
        rows = [self.x[int(c)][u] for c in p.consumer[p.consumer_ptr[t] : p.consumer_ptr[t + 1]]]
        others = list({id(c): c for c in rows if c is not mine}.values())  # classes may share a variable
        found = []
        present = [c for c in others if c is not None]
        if present:
            into = cp.new_bool_var(f"in{t}_{u}")
            for c in present:
                cp.add_bool_or([c.negated(), into] + ([] if mine is None else [mine]))
            cp.add(start >= self.ready[producer]).only_enforce_if(into)
            found.append(into)
        if mine is not None and others:
            out = cp.new_bool_var(f"out{t}_{u}")
            for c in others:
                cp.add_bool_or([mine.negated(), out] + ([] if c is None else [c]))
            found.append(out)
        return found

    def _paths(self) -> None:
        """Every path takes at least its compute and the transfers where it changes units (redundant).

        A path enters and leaves a slot at most once, so along it the compute of its ops and the transfers of
        its own edges are counted once in the times of the slots. Unlike the times of slots this needs no
        implication, so the linear relaxation sees it.
        """
        cp, p = self.cp, self.problem
        after = [cp.new_int_var(0, self.horizon, f"path{v}") for v in range(p.num_ops)]
        own = [
            [self._ticks(int(p.compute[v, d])) * x for (d, _), x in zip(self.units, self.x[v], strict=True)
             if x is not None and p.compute[v, d] > 0]
            for v in range(p.num_ops)
        ]  # fmt: skip
        for v in range(p.num_ops):
            cp.add(after[v] >= sum(own[v]))
            cp.add(after[v] <= self.ready[v])
        for e, t in enumerate(p.edge_tensor.tolist()):
            w, v = int(p.producer[t]), int(p.consumer[e])
            moves = []
            for u, (d, s) in enumerate(self.units):
                ticks = self._ticks(int(self.arrays.io_ticks[t, d])) if s >= 0 else 0
                x, y = self.x[w][u], self.x[v][u]
                if ticks and x is not y:
                    for first, second in ((x, y), (y, x)):
                        if first is not None:
                            crossed = cp.new_bool_var(f"c{e}_{u}")
                            cp.add_bool_or([first.negated(), crossed] + ([] if second is None else [second]))
                            moves.append(ticks * crossed)
            cp.add(after[v] >= after[w] + sum(own[v]) + sum(moves))

    def _break_symmetry(self, durations: list[Any]) -> None:
        """Among identical accelerators the first slots last ever less long."""
        slots = self.problem.slots
        for members in self._identical():
            for a, b in itertools.pairwise(members):
                self.cp.add(durations[a * slots] >= durations[b * slots])

    def _identical(self) -> list[list[int]]:
        """Positions in `accelerators` of interchangeable devices."""
        p, io = self.problem, self.arrays.io_ticks
        groups: dict[tuple[bytes, bytes, int], list[int]] = {}
        for i, d in enumerate(self.accelerators):
            key = (p.compute[:, d].tobytes(), io[:, d].tobytes(), int(p.capacity[d]))
            groups.setdefault(key, []).append(i)
        return list(groups.values())

    # --- solving ---------------------------------------------------------------------------------------

    def solve(self, settings: CpSatSettings, tracker: Tracker[Placement]) -> None:
        """Run CP-SAT until proof or the end of the budget."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = settings.num_workers
        parameters.random_seed = tracker.seed % 2**31
        parameters.log_search_progress = settings.log
        parameters.linearization_level = 2
        if np.isfinite(tracker.seconds_left):
            parameters.max_time_in_seconds = max(0.01, tracker.seconds_left)
        if tracker.budget.evaluations is not None:
            parameters.max_number_of_conflicts = tracker.evaluations_left
        if tracker.solution is not None:
            self._hint(tracker.solution)
        code = solve_interruptibly(solver, self.cp, _callback(self, tracker))
        if code == cp_model.MODEL_INVALID:
            raise RuntimeError(f"CP-SAT refused the model: {self.cp.validate()}")
        if code == cp_model.INFEASIBLE:
            tracker.infeasible("no placement fits the devices' memory, compatibility and colocation")
            return
        if code in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.offer(tracker, solver.value)
        self.raise_bound(tracker, solver.best_objective_bound)
        if tracker.budget.evaluations is not None:
            tracker.count(int(solver.num_conflicts))
        tracker.stop()

    def raise_bound(self, tracker: Tracker[Placement], bound: float) -> None:
        """Record the bound of the model on the fine grid: at most one unit per slot is not time."""
        if np.isfinite(bound) and bound > 0:
            slots = len(self.accelerators) * self.problem.slots
            ticks = -(-max(0, int(np.ceil(bound - 1e-6)) - slots) // self.factor) * self.grid
            tracker.raise_bound(ticks, "cp-sat")

    def offer(self, tracker: Tracker[Placement], value: Any) -> None:
        """Evaluate a solution of the model on the fine grid and offer it."""
        p = self.problem
        device = np.zeros(p.num_ops, dtype=np.int64)
        slot = np.zeros(p.num_ops, dtype=np.int64)
        for v, row in enumerate(self.x):
            for (d, s), x in zip(self.units, row, strict=True):
                if x is not None and value(x):
                    device[v], slot[v] = d, max(s, 0)
        offer_latency(tracker, device, slot)

    def _hint(self, placement: Placement) -> None:
        p = self.problem
        device = placement.device.copy()
        slot = placement_slots(p, placement)
        pool = {d: e for d in range(p.num_devices) if p.io_class[d] < 0 for e in self.pools if d == e or self._same(d, e)}
        device = np.array([pool.get(d, d) for d in device.tolist()], dtype=np.int64)
        lasts = _slot_durations(p, self.arrays.io_ticks, device, slot)
        rename = np.arange(p.num_devices)
        for members in self._identical():
            devices = [self.accelerators[i] for i in members]
            rename[sorted(devices, key=lambda d: (-lasts[d], d))] = devices
        device = rename[device]
        hinted: set[int] = set()
        for v, row in enumerate(self.x):
            for (d, s), x in zip(self.units, row, strict=True):
                if x is not None and x.index not in hinted:
                    hinted.add(x.index)
                    self.cp.add_hint(x, int(device[v] == d and (s < 0 or slot[v] == s)))


def _slot_durations(
    p: PlacementProblem, io: NDArray[np.int64], device: NDArray[np.int64], slot: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Ticks of the first slot of every device."""
    first = slot == 0
    lasts = np.zeros(p.num_devices, dtype=np.int64)
    for v in np.flatnonzero(first):
        lasts[device[v]] += p.compute[v, device[v]]
    for t in range(p.num_tensors):
        u = int(p.producer[t])
        consumers = p.consumer[p.consumer_ptr[t] : p.consumer_ptr[t + 1]]
        home = (int(device[u]), int(slot[u]))
        units = sorted({(int(device[c]), int(slot[c])) for c in consumers} - {home})
        for d, s in units:
            if s == 0:
                lasts[d] += io[t, d]
        if units and home[1] == 0:
            lasts[home[0]] += io[t, home[0]]
    return lasts


def _callback(model: LatencyCpModel, tracker: Tracker[Placement]) -> Any:
    from ortools.sat.python import cp_model

    class Callback(cp_model.CpSolverSolutionCallback):
        """Offers every solution and keeps the bound."""

        def on_solution_callback(self) -> None:
            model.offer(tracker, self.value)
            model.raise_bound(tracker, self.best_objective_bound)
            if tracker.stop():
                self.stop_search()

    return Callback()
