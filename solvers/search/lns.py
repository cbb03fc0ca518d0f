"""`lns`: large neighbourhood search that re-optimises windows of the incumbent with CP-SAT.

Each step frees some ops, keeps device and order of the rest, and lets CP-SAT look for a shorter
schedule (Shaw 1998; for scheduling Godard, Laborie and Nuijten 2005). Windows (`windows`) are
chosen by time, by a pair of devices, along the critical path, or as a random connected piece of the
graph; a bandit prefers the kinds that pay, and each kind's size grows while its subproblems are
easy and shrinks while they are not. Large problems are worked on in slices of time, whose
surroundings are folded into release times and tails, so that a step does not grow with the graph.

Windows are the parts that papers vary. A window takes the problem, the incumbent, the number of ops
wanted and a generator, and returns the ops to free.

A subproblem splits the ops by the incumbent's times. Those that end before the slice are fixed in
time: they give devices a release time and deliver their tensors. Those that start after it keep
device and order but may move left: they are folded into tails, the longest path from the end of a
slice op, or from a device, to the end of the schedule. Within the slice, free ops choose device and
place; the others keep their device and their order among themselves, with variable starts.
Contended transfers count with the delay they have in the incumbent, or their plain length if they
are new: the evaluator, not the model, decides what an answer is worth.

References
----------
D. Godard, P. Laborie, W. Nuijten, "Randomized large neighborhood search for cumulative scheduling",
ICAPS 2005 (time). A. Carchrae, J. C. Beck, "Principles for the design of large neighborhood
search", Journal of Mathematical Modelling and Algorithms 8, 2009 (windows of time and of resources,
chosen by what they earned).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from ortools.sat.python import cp_model

from placeopt.makespan.bounds.analysis import COMBINATORIAL
from placeopt.makespan.coarsening import COARSE_HORIZON
from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.model.arrays import (
    UNLIMITED,
    Flags,
    Ints,
    row_at,
    stable_order,
    together,
    true_places,
)
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.placement import Placement
from placeopt.solvers.search.cp_sat_start import analyse, offer, warm_start
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import named, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.random import Generator

    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class Lns(SearchSolver):
    """Large neighbourhood search with CP-SAT subproblems; passes on the best combinatorial bound.

    An evaluation is a subproblem.

    References
    ----------
    P. Shaw, "Using constraint programming and local search methods to solve vehicle routing
    problems", CP 1998. D. Godard, P. Laborie, W. Nuijten, "Randomized large neighborhood search for
    cumulative scheduling", ICAPS 2005.
    """

    effort: float = option(
        0.2, "deterministic CP-SAT time of one subproblem (about seconds)", low=1e-3
    )
    slice_ops: int = option(300, "largest number of ops in a subproblem, free or not", low=2)
    first_size: int = option(24, "ops freed at first", low=2)
    num_workers: int = option(1, "CP-SAT threads per subproblem; 1 is reproducible", low=1)
    windows: str = option(
        "all", "windows to free ops in: all, or some of their names joined by commas"
    )
    adaptive: bool = option(True, "prefer the windows that pay; otherwise they are drawn alike")

    kernels = ("ranks", "lists", "lists-by-time", "clusterings", "bounds")
    endless = True

    def __post_init__(self) -> None:
        super().__post_init__()
        named(self.windows, tuple(WINDOWS), "lns option windows")

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Improve the best heuristic placement."""
        warm_start(problem, tracker)
        analysis = analyse(problem, tracker)
        for name in COMBINATORIAL:
            if not tracker.stop():
                tracker.raise_bound(analysis.run(name), name)
        if tracker.solution is None:
            tracker.message = "no placement was found within the memory limits to start from"
        elif not tracker.stop():
            WindowSearch(self, problem, tracker, analysis.relaxation.allowed).run()


class Bandit:
    """Chooses a kind of window in proportion to what it earned lately, and remembers its size."""

    def __init__(self, kinds: tuple[str, ...], size: int, adaptive: bool = True) -> None:
        self.adaptive = adaptive
        self.score = dict.fromkeys(kinds, 1.0)
        self.size = dict.fromkeys(kinds, float(size))

    def choose(self, rng: Generator) -> str:
        """Draw a kind."""
        kinds = list(self.score)
        weight = np.array([self.score[kind] + 0.05 for kind in kinds])
        return kinds[int(rng.choice(len(kinds), p=weight / weight.sum()))]

    def learn(self, kind: str, gain: float, solved: bool, largest: int) -> None:
        """Update by the relative gain; `solved` says whether CP-SAT finished within its effort."""
        reward = min(1.0, 0.2 + 50.0 * gain) if gain > 0 else 0.0
        if self.adaptive:
            self.score[kind] = 0.9 * self.score[kind] + 0.1 * reward
        factor = 1.06 if solved else 0.92
        self.size[kind] = float(np.clip(self.size[kind] * factor, 4, max(4, largest)))


class WindowSearch:
    """The main loop and its window choices."""

    def __init__(
        self, settings: Lns, problem: PlacementProblem, tracker: PlacementTracker, allowed: Flags
    ) -> None:
        self.settings, self.problem, self.tracker = settings, problem, tracker
        self.rng = np.random.default_rng(tracker.seed)
        self.unit = problem.units.unit
        self.allowed = allowed[problem.units.first_op]
        self.grid = problem.common_unit
        if tracker.value is not None and tracker.value // self.grid > COARSE_HORIZON:
            self.grid = -(-tracker.value // COARSE_HORIZON)
        kinds = named(settings.windows, tuple(WINDOWS), "lns option windows")
        self.bandit = Bandit(kinds, settings.first_size, settings.adaptive)

    def run(self) -> None:
        """Take steps until the tracker stops."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Free a window, re-optimise, keep what is not worse, learn; one window per step."""
        if self.tracker.solution is None:
            return
        best = self.tracker.solution
        now = self._incumbent(best)
        stale = 0
        while not self.tracker.stop():
            if self.tracker.solution is not best:  # perhaps found by another side of the same solve
                best = self.tracker.solution
                now = min(now, self._incumbent(best), key=lambda incumbent: incumbent.makespan)
            kind = self.bandit.choose(self.rng)
            compact = stale > 4 and self.rng.random() < 0.3
            inside, free = self._window(now, kind, round(self.bandit.size[kind]))
            found, solved = self._solve(now, inside, free, compact)
            self.tracker.count(1)
            gain = 0.0
            if found is not None:
                trial = self._incumbent(found)
                if trial.makespan <= now.makespan:
                    gain = 1 - trial.makespan / max(1, now.makespan)
                    now = trial
                offer(self.problem, self.tracker, found)
            stale = 0 if gain > 0 else stale + 1
            self.bandit.learn(
                kind, gain, solved, min(self.problem.num_ops, self.settings.slice_ops)
            )
            yield

    def _incumbent(self, placement: Placement) -> Incumbent:
        """Execute the placement the best way and return its times."""
        _, queue = best_queue(self.problem, placement)
        run = evaluate(self.problem, placement, queue, check=False)
        order = np.lexsort((np.argsort(self.problem.topological_order), run.finish, run.start))
        delay = {}
        if self.problem.num_channels:
            for tensor, target, _, end in run.transfers.tolist():
                delay[tensor, target] = end - int(run.finish[self.problem.producer[tensor]])
        return Incumbent(placement.device, run.start, run.finish, delay, order)

    # --- windows
    # -------------------------------------------------------------------------------------

    def _window(self, now: Incumbent, kind: str, size: int) -> tuple[Ints, Ints]:
        """Return (ops of the slice in incumbent order, ops to free).

        The slice is a stretch of the incumbent's order around the ops to free; of these, what does
        not fit stays as it is.
        """
        free = WINDOWS[kind](self.problem, now, size, self.rng)
        most, num_ops = self.settings.slice_ops, self.problem.num_ops
        if num_ops <= most:
            return now.order, free
        at = np.sort(np.argsort(now.order)[free])
        low = max(0, min(int(at[len(at) // 2]) - most // 2, num_ops - most))
        # `order` is by start: ops before the stretch started earlier and are fixed, those after it
        # follow
        inside = now.order[low : low + most]
        return inside, free[np.isin(free, inside)]

    # --- subproblem
    # ----------------------------------------------------------------------------------

    def _solve(
        self, now: Incumbent, inside: Ints, free: Ints, compact: bool
    ) -> tuple[Placement | None, bool]:
        """Return (a placement that is not longer in the model, whether CP-SAT finished within its
        effort).
        """
        lower = -(-self.tracker.lower_bound // self.grid)
        horizon = (now.makespan if compact else now.makespan - 1) // self.grid
        if horizon < lower and not compact:
            return None, True
        held = np.bincount(self.unit[inside], minlength=len(self.allowed))
        whole = held == np.diff(self.problem.units.member_ptr)
        units = {i for i in self.unit[free].tolist() if whole[i]}
        loose = {*free.tolist(), *(v for v in inside.tolist() if self.unit[v] in units)}
        window = Window(inside.tolist(), units, loose, compact)
        model = WindowModel(self.problem, now, window, self.allowed, self.grid, lower, horizon)
        solver = cp_solver(
            workers=self.settings.num_workers,
            seed=int(self.rng.integers(2**31 - 1)),
            effort=self.settings.effort,
            seconds=self.tracker.seconds_left,
        )
        outcome = solve_interruptibly(solver, model.model)
        solved = outcome in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        if outcome not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, solved
        device, rank = model.decode(solver.value)
        return Placement(device, rank), solved


def _stretch(ops: Ints, size: int, rng: Generator) -> Ints:
    """Return so many consecutive ones of some ops, or all where they are fewer."""
    size = min(size, len(ops))
    low = int(rng.integers(0, len(ops) - size + 1))
    return ops[low : low + size]


def by_time(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Take consecutive ops in the order of their starts."""
    return _stretch(now.order, size, rng)


def by_device_pair(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Take consecutive ops of two devices."""
    used = np.unique(now.device)
    pair = rng.choice(used, min(2, len(used)), replace=False)
    return _stretch(now.order[np.isin(now.device[now.order], pair)], size, rng)


def by_critical_path(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Take a stretch of the critical path, and ops that run at the same time."""
    chosen = _stretch(_critical_path(problem, now, rng), max(1, size // 2), rng)
    begin, end = int(now.start[chosen].min()), int(now.finish[chosen].max())
    beside = np.flatnonzero((now.finish > begin) & (now.start < end))
    beside = np.setdiff1d(beside, chosen)
    extra = rng.permutation(beside)[: max(0, size - len(chosen))]
    return np.concatenate([chosen, extra])


def _critical_path(problem: PlacementProblem, now: Incumbent, rng: Generator) -> Ints:
    """Walk back from the last end: each op waits for its device's previous op or for an input."""
    ptr, source, tensor = problem.predecessors
    by_device = now.order[stable_order(now.device[now.order])]
    pairs = pairwise(by_device.tolist())
    previous = {v: u for u, v in pairs if now.device[u] == now.device[v]}
    at = int(now.finish.argmax())
    path = [at]
    while now.start[at] > 0 and len(path) <= problem.num_ops:
        begin = int(now.start[at])
        here, edges = int(now.device[at]), slice(ptr[at], ptr[at + 1])
        inputs = together(source[edges], tensor[edges])
        tight = [
            u
            for u, t in inputs
            if now.finish[u] + arrival_delay(problem, now, t, int(now.device[u]), here) >= begin
        ]
        if at in previous and now.finish[previous[at]] >= begin:
            tight.append(previous[at])
        if not tight:
            break
        at = int(tight[int(rng.integers(len(tight)))])
        path.append(at)
    return np.array(path[::-1], np.int64)


def connected(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Grow a connected piece of the graph from a random op."""
    out, target, _ = problem.successors
    into, source, _ = problem.predecessors
    seed = int(rng.integers(problem.num_ops))
    found: list[int] = []
    known, border = {seed}, [seed]
    while border and len(found) < size:
        v = border.pop(int(rng.integers(len(border))))
        found.append(v)
        around = [*row_at(target, out, v).tolist(), *row_at(source, into, v).tolist()]
        for w in around:
            if w not in known:
                known.add(w)
                border.append(w)
    return np.array(found, np.int64)


WINDOWS: dict[str, Callable[[PlacementProblem, Incumbent, int, Generator], Ints]] = {
    "time": by_time,
    "device-pair": by_device_pair,
    "critical-path": by_critical_path,
    "connected": connected,
}


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
    result = np.zeros(problem.num_ops, np.int64)
    ptr, target, tensor = problem.successors
    follower: dict[int, int] = {}  # device -> the op that was visited last
    for v in now.order[::-1].tolist():
        d = int(now.device[v])
        after = int(result[follower[d]]) if d in follower else 0
        for e in range(ptr[v], ptr[v + 1]):
            w = int(target[e])
            delay = arrival_delay(problem, now, int(tensor[e]), d, int(now.device[w]))
            after = max(after, delay + int(result[w]))
        result[v] = after + int(problem.compute[v, d])
        follower[d] = v
    return result


@dataclass(frozen=True, eq=False)
class Window:
    """What a subproblem may change."""

    inside: list[int]  # ops of the slice, by incumbent order
    free: set[int]  # units that may change device
    loose: set[int]  # ops of the slice that may change their order
    compact: bool  # minimise the ends of all ops at the same makespan, instead of the makespan


class WindowModel:
    """One subproblem.

    Parameters
    ----------
    allowed : whether a unit may run on a device, shape (num_units, num_devices).
    grid : ticks of a step of the model's time.
    lower, horizon : proven bound on the makespan, and the end of all ops at most, in such steps.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        now: Incumbent,
        window: Window,
        allowed: Flags,
        grid: int,
        lower: int,
        horizon: int,
    ) -> None:
        self.problem, self.now, self.unit, self.grid = problem, now, problem.units.unit, grid
        self.inside, self.within = window.inside, set(window.inside)
        self.model = cp_model.CpModel()
        self.loose, self.horizon = window.loose, horizon
        tail = tails(problem, now)
        self._devices(allowed, window.free)
        self._times(tail)
        self._no_overlap()
        self._edges(tail)
        self._memory()
        if window.compact:
            self.model.minimize(sum(self.end[v] for v in self.inside))
        else:
            makespan = self.model.new_int_var(lower, horizon, "makespan")
            for v in self.inside:
                self.model.add(makespan >= self.end[v] + self.after[v])
            for v, d, extra in self.device_tails:
                self.model.add(makespan >= self.end[v] + extra).only_enforce_if(self.on[v][d])
            self.model.minimize(makespan)

    def _devices(self, allowed: Flags, free: set[int]) -> None:
        true = self.model.new_constant(1)
        by_unit: dict[int, dict[int, Any]] = {}
        self.on: dict[int, dict[int, Any]] = {}
        for v in self.inside:
            i, now = int(self.unit[v]), int(self.now.device[v])
            if i not in by_unit:
                devices = true_places(allowed[i]) if i in free else [now]
                only = len(devices) == 1
                by_unit[i] = {devices[0]: true} if only else self._choice(i, devices, now)
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
        lanes: defaultdict[int, list[Any]] = defaultdict(list)
        chain: dict[int, int] = {}
        for v in self.inside:
            for d, x in self.on[v].items():
                size = int(self.problem.compute[v, d]) // self.grid
                lanes[d].append(
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
        """Let free units share what the others leave of each device."""
        units, size = self.problem.units, self.problem.units.bytes.tolist()
        fixed = np.ones(len(size), np.bool_)
        fixed[[*self.free_units]] = False
        left = units.capacity.copy()
        np.subtract.at(left, self.now.device[units.first_op[fixed]], units.bytes[fixed])
        for d in true_places(units.capacity < UNLIMITED):
            terms = [size[i] * x[d] for i, x in self.free_units.items() if size[i] and d in x]
            if terms:
                self.model.add(sum(terms) <= int(left[d]))

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
