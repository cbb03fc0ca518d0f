"""`lns`: large neighbourhood search that re-optimises windows of the incumbent with CP-SAT.

Each step frees some ops, keeps device and order of the rest, and lets CP-SAT look for a shorter
schedule (Shaw 1998; for scheduling Godard, Laborie and Nuijten 2005). Windows (`windows`) are
chosen by time, by a pair of devices, along the critical path, or as a random connected piece of the
graph; a bandit prefers the kinds that pay, and each kind's size grows while its subproblems are
easy and shrinks while they are not. Large problems are worked on in slices of time, whose
surroundings are folded into release times and tails, so that a step does not grow with the graph.

Windows are the parts that papers vary. A window takes the problem, the incumbent, the number of ops
wanted and a generator, and returns the ops to free.

References
----------
D. Godard, P. Laborie, W. Nuijten, "Randomized large neighborhood search for cumulative scheduling",
ICAPS 2005 (time). A. Carchrae, J. C. Beck, "Principles for the design of large neighborhood
search", Journal of Mathematical Modelling and Algorithms 8, 2009 (windows of time and of resources,
chosen by what they earned).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from ortools.sat.python import cp_model

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.coarsening import COARSE_HORIZON, common_unit
from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.placement import Placement
from placeopt.solvers.search.cp_sat_start import offer, warm_start
from placeopt.solvers.search.window_model import Incumbent, Window, WindowModel, arrival_delay
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import named, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.random import Generator

    from placeopt.model.arrays import Flags, Ints
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker


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
        0.2, low=1e-3, meaning="deterministic CP-SAT time of one subproblem (about seconds)"
    )
    slice_ops: int = option(
        300, low=2, meaning="largest number of ops in a subproblem, free or not"
    )
    first_size: int = option(24, low=2, meaning="ops freed at first")
    num_workers: int = option(1, low=1, meaning="CP-SAT threads per subproblem; 1 is reproducible")
    windows: str = option(
        "all", meaning="windows to free ops in: all, or some of their names joined by commas"
    )
    adaptive: bool = option(
        True, meaning="prefer the windows that pay; otherwise they are drawn alike"
    )

    name: ClassVar[str] = "lns"
    kernels: ClassVar[tuple[str, ...]] = (
        "ranks",
        "lists",
        "lists-by-time",
        "clusterings",
        "bounds",
    )
    endless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        named(self.windows, tuple(WINDOWS), "lns option windows")

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Improve the best heuristic placement."""
        warm_start(problem, tracker)
        analysis = Analysis(problem, seconds=min(10.0, tracker.seconds_left / 4))
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
        self,
        settings: Lns,
        problem: PlacementProblem,
        tracker: Tracker[Placement],
        allowed: Flags,
    ) -> None:
        self.settings, self.problem, self.tracker = settings, problem, tracker
        self.rng = np.random.default_rng(tracker.seed)
        self.unit = problem.units.unit
        self.allowed = np.zeros((int(self.unit.max()) + 1, problem.num_devices), np.bool_)
        self.allowed[self.unit] = allowed
        self.grid = common_unit(problem)
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
        """Return (ops of the slice in incumbent order, ops to free)."""
        free = WINDOWS[kind](self.problem, now, size, self.rng)
        most = self.settings.slice_ops
        return self._slice(now, free, most) if self.problem.num_ops > most else (now.order, free)

    def _slice(self, now: Incumbent, free: Ints, most: int) -> tuple[Ints, Ints]:
        """Cut a stretch of the incumbent's order around the free ops; what does not fit stays as it
        is.
        """
        position = np.argsort(now.order)
        at = np.sort(position[free])
        middle = int(at[len(at) // 2])
        low = max(0, min(middle - most // 2, self.problem.num_ops - most))
        # `order` is by start: ops before the stretch started earlier and are fixed, those after it
        # follow
        inside = now.order[low : low + most]
        kept = free[(position[free] >= low) & (position[free] < low + most)]
        return inside, kept

    # --- subproblem
    # ----------------------------------------------------------------------------------

    def _solve(
        self, now: Incumbent, inside: Ints, free: Ints, compact: bool
    ) -> tuple[Placement | None, bool]:
        """Return (a placement that is not longer in the model, whether CP-SAT finished within its
        effort).
        """
        members = np.bincount(self.unit, minlength=len(self.allowed))
        held = np.bincount(self.unit[inside], minlength=len(self.allowed))
        units = {i for i in self.unit[free].tolist() if members[i] == held[i]}
        loose = {*free.tolist(), *(v for v in inside.tolist() if self.unit[v] in units)}
        window = Window(inside, units, loose, compact)
        model = WindowModel(
            self.problem, now, window, self.allowed, self.grid, self.tracker.lower_bound
        )
        if model.infeasible:
            return None, True
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


def by_time(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Take consecutive ops in the order of their starts."""
    size = min(size, problem.num_ops)
    low = int(rng.integers(0, problem.num_ops - size + 1))
    return now.order[low : low + size]


def by_device_pair(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Take consecutive ops of two devices."""
    used = np.unique(now.device)
    pair = rng.choice(used, min(2, len(used)), replace=False)
    if len(used) == 1 and problem.num_devices > 1:
        pair = used
    ops = now.order[np.isin(now.device[now.order], pair)]
    size = min(size, len(ops))
    low = int(rng.integers(0, len(ops) - size + 1))
    return np.asarray(ops[low : low + size])


def by_critical_path(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Take a stretch of the critical path, and ops that run at the same time."""
    path = _critical_path(problem, now, rng)
    take = max(1, min(len(path), size // 2))
    low = int(rng.integers(0, len(path) - take + 1))
    chosen = path[low : low + take]
    begin, end = int(now.start[chosen].min()), int(now.finish[chosen].max())
    beside = np.flatnonzero((now.finish > begin) & (now.start < end))
    beside = np.setdiff1d(beside, chosen)
    extra = rng.permutation(beside)[: max(0, size - take)]
    return np.concatenate([chosen, extra])


def _critical_path(problem: PlacementProblem, now: Incumbent, rng: Generator) -> Ints:
    """Walk back from the last end: each op waits for its device's previous op or for an input."""
    ptr, source, tensor = problem.predecessors
    previous: dict[int, int] = {}
    last: dict[int, int] = {}
    for v in now.order.tolist():
        d = int(now.device[v])
        if d in last:
            previous[v] = last[d]
        last[d] = v
    at = int(now.finish.argmax())
    path = [at]
    while now.start[at] > 0 and len(path) <= problem.num_ops:
        begin = int(now.start[at])
        here, edges = int(now.device[at]), slice(ptr[at], ptr[at + 1])
        inputs = zip(source[edges].tolist(), tensor[edges].tolist(), strict=True)
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
        around = [*target[out[v] : out[v + 1]].tolist(), *source[into[v] : into[v + 1]].tolist()]
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
