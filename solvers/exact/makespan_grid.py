"""Runs of the CP-SAT model of the makespan on one grid of time: to the end, or by restarts that ask
whether there is a schedule as short as the best lower bound; how a solution is hinted, and read
with ranks that reproduce it.

With the horizon at the bound the start-time domains are so tight that CP-SAT usually answers within
a second, but the time it takes has a heavy tail: another seed needs a tenth or ten times of it. So
the question is asked by short runs with other seeds, one on each thread, with limits of work in the
universal order 1, 1, 2, 1, 1, 2, 4, ...: no order without knowledge of the distribution expects
less than it but for a logarithmic factor.

References
----------
M. Luby, A. Sinclair, D. Zuckerman, "Optimal speedup of Las Vegas algorithms", Information
Processing Letters 47(4), 1993. C. P. Gomes, B. Selman, H. Kautz, "Boosting combinatorial search
through randomization", AAAI 1998.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import networkx as nx
import numpy as np
from ortools.sat.python import cp_model

from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.placement import Placement, Schedule
from placeopt.model.threads import start_thread
from placeopt.solvers.exact.makespan_model import MakespanModel
from placeopt.solvers.exact.placement_cp_sat import (
    CpSatSettings,
    configured,
    evaluations_of,
    run_watched,
)
from placeopt.solvers.search.cp_sat_start import offer

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.model.arrays import Ints
    from placeopt.solving.tracker import PlacementTracker


class GridRun(NamedTuple):
    """How a run on one grid ended.

    Attributes
    ----------
    finished : whether no shorter schedule exists on the grid than what was found, or than the
    bound.
    closed : whether CP-SAT has nothing left to do on the exact grid, or the problem has no
    solution.
    """

    finished: bool
    closed: bool


def lift(
    settings: CpSatSettings,
    tracker: PlacementTracker,
    analysis: Analysis,
    scale: int,
    share: float = 1.0,
) -> bool:
    """Ask for a schedule as long as the bound, by restarts; where a grid has none, for one of the
    next bound until it has.

    Parameters
    ----------
    share : of the time left, for the asking.

    Returns
    -------
    bool
        Whether there is one on the grid of `scale` ticks.
    """
    end = tracker.elapsed + share * tracker.seconds_left
    while tracker.value is not None and not tracker.stop() and tracker.elapsed < end:
        horizon = tracker.lower_bound
        built = MakespanModel(analysis, horizon, horizon, scale)
        tight = TightHorizon(built, tracker.seed)
        tight.run(settings.num_workers, lambda: tracker.elapsed > end or tracker.stop())
        tracker.count(max(1, tight.conflicts))
        if tight.placement is not None:
            offer(built.problem, tracker, tight.placement)
        if tight.outcome != cp_model.INFEASIBLE:
            return tight.outcome in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        record_infeasible(tracker, horizon, scale)
    return False


def solve_on_grid(
    settings: CpSatSettings,
    tracker: PlacementTracker,
    analysis: Analysis,
    scale: int,
    *,
    from_below: bool = False,
) -> GridRun:
    """Look for schedules that are not longer than the incumbent, with one unit of model time per
    `scale` ticks, in the time left.

    Parameters
    ----------
    from_below : branch on the makespan first, on its lower half: every refutation raises the bound.
        By itself CP-SAT does so on one of six workers or more; with two its one complete search
        looks for short schedules, and its bound hardly moves where devices differ.
    """
    exact = scale == analysis.problem.common_unit
    upper = max(1, analysis.relaxation.serial) if tracker.value is None else tracker.value
    model = MakespanModel(analysis, tracker.lower_bound, upper, scale)
    if tracker.solution is not None:
        _, queue = best_queue(model.problem, tracker.solution)
        add_hint(model, evaluate(model.problem, tracker.solution, queue).schedule)
    solver = configured(settings, tracker)
    if from_below:
        _branch_from_below(solver)
    target = tracker.lower_bound // scale

    met = False

    def found(solution: Any) -> bool:
        """Re-evaluate a solution; whether it meets the target."""
        nonlocal met
        offer(analysis.problem, tracker, decode(model, solution.value))
        met = not exact and round(solution.objective_value) <= target
        return met

    def raise_bound(value: float) -> None:
        # The callback reports a float; only what it proves for sure is kept until the exact value
        # is known.
        safe = math.floor(value * (1 - 1e-9)) - 1
        tracker.raise_bound(safe * scale, "cp-sat")

    outcome = run_watched(solver, model.model, tracker, found, raise_bound)
    tracker.count(evaluations_of(solver, tracker))
    if outcome == cp_model.INFEASIBLE:
        record_infeasible(tracker, upper, scale)
        return GridRun(finished=True, closed=tracker.solution is None)
    if outcome in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        tracker.raise_bound(
            int(solver.response_proto.inner_objective_lower_bound) * scale, "cp-sat"
        )
    proved = bool(outcome == cp_model.OPTIMAL and exact)
    if proved and tracker.value is not None and tracker.value > tracker.lower_bound:
        tracker.message = (
            "the optimal schedule orders transfers in a way that no priorities express"
        )
    return GridRun(finished=met or outcome == cp_model.OPTIMAL, closed=proved)


def _branch_from_below(solver: cp_model.CpSolver) -> None:
    """Branch on the makespan first, on its lower half: on one of several workers, or always."""
    if solver.parameters.num_workers > 1:
        solver.parameters.extra_subsolvers.append("objective_lb_search")
    else:
        solver.parameters.use_objective_lb_search = True


def record_infeasible(tracker: PlacementTracker, upper: int, scale: int) -> None:
    """No schedule of at most `upper` ticks: the problem has none at all, or the bound is above
    that.
    """
    if tracker.solution is None:
        tracker.infeasible(
            "no placement meets compatibility, colocation and the memory capacities together"
        )
    else:  # even the rounded-down problem has no schedule of upper // scale units
        tracker.raise_bound((upper // scale + 1) * scale, "cp-sat")


class TightHorizon:
    """Runs of one model until one of them answers; `outcome` and `placement` say how.

    Parameters
    ----------
    work : deterministic CP-SAT time (about seconds) of the shortest run.
    """

    def __init__(self, built: MakespanModel, seed: int, *, work: float = 0.35) -> None:
        self.built, self.seed, self.work = built, seed, work
        self.outcome: Any = cp_model.UNKNOWN
        self.placement: Placement | None = None
        self.conflicts = 0
        self._lock, self._over, self._turn = threading.Lock(), threading.Event(), 0
        self._running: list[cp_model.CpSolver] = []
        self._failure: list[BaseException] = []

    def run(
        self, num_workers: int, stop: Callable[[], bool], *, longest_wait: float = 0.05
    ) -> None:
        """Run on `num_workers` threads until an answer or `stop`, which is asked every
        `longest_wait` seconds.
        """
        threads = [
            start_thread(self._work, name="placeopt-restarts", daemon=False)
            for _ in range(num_workers)
        ]
        try:
            while not self._over.wait(longest_wait) and not stop():
                pass
        finally:
            self._over.set()
            while any(thread.is_alive() for thread in threads):
                # again and again: a run may not have begun when it is first told to stop
                self._end_all()
                threads[0].join(longest_wait)
                threads[-1].join(longest_wait)
        if self._failure:
            raise self._failure[0]

    def _end_all(self) -> None:
        with self._lock:
            for solver in self._running:
                solver.stop_search()

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                self._one_run()
        except BaseException as error:  # raised again in the thread that waits
            self._failure.append(error)
            self._over.set()

    def _one_run(self) -> None:
        with self._lock:
            self._turn += 1
            turn = self._turn
            solver = cp_solver(
                workers=1,
                seed=self.seed + 7919 * turn,
                effort=self.work * luby((turn + 1) // 2),
                linearization_level=turn % 2,  # with and without the linear relaxation
                symmetry_level=2,
            )
            self._running.append(solver)
        code = solve_interruptibly(solver, self.built.model)
        with self._lock:
            self._running.remove(solver)
            self.conflicts += int(solver.num_conflicts)
            if code == cp_model.UNKNOWN:
                return
            self.outcome = code
            if code in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                self.placement = decode(self.built, solver.value)
            self._over.set()


def luby(i: int) -> int:
    """The i-th term, from 1, of the universal order 1, 1, 2, 1, 1, 2, 4, 1, ..."""
    size = 1
    while 2 * size <= i:
        size *= 2
    return size if i == 2 * size - 1 else luby(i - size + 1)


def add_hint(built: MakespanModel, schedule: Schedule) -> None:
    """Hint a complete schedule (fine ticks)."""
    m = built.model
    device = built.relabel(schedule.device)
    for v in range(built.problem.num_ops):
        length = int(built.compute[v, device[v]])
        m.add_hint(
            built.start[v], int(schedule.finish[v]) // built.scale - length
        )  # ends are rounded down
    home = device[built.problem.units.first_op]
    for i, literals in enumerate(built.on):
        if len(literals) > 1:
            for d, literal in literals.items():
                m.add_hint(literal, int(home[i] == d))
    for (i, j), literal in built.same_of.items():
        if literal.name.startswith("same"):
            m.add_hint(literal, int(home[i] == home[j]))
    sent = _send_starts(built, schedule, device)
    for (t, e), variable in built.transfer_start.items():
        end = int(schedule.finish[built.problem.producer[t]]) // built.scale
        m.add_hint(variable, sent.get((t, e), end))
    for (t, e, sources), literal in built.sent.items():
        m.add_hint(literal, int((t, e) in sent and device[built.problem.producer[t]] in sources))
    m.add_hint(built.makespan, int(schedule.makespan) // built.scale)


def _send_starts(
    built: MakespanModel, schedule: Schedule, device: Ints
) -> dict[tuple[int, int], int]:
    """Return when each tensor is sent to each device (as the model names it), in units of the
    model.
    """
    sent = {}
    rows = zip(
        schedule.transfer_tensor,
        schedule.transfer_destination,
        schedule.transfer_start,
        schedule.transfer_finish,
        strict=True,
    )
    for tensor, old, begin, finish in rows:
        new = int(
            device[next(v for v in built.problem.readers_of(tensor) if schedule.device[v] == old)]
        )
        sent[int(tensor), new] = int(finish) // built.scale - int(finish - begin) // built.scale
    return sent


def decode(built: MakespanModel, value: Any) -> Placement:
    """Read a placement; `value` maps a variable to its value. Ranks follow the starts."""
    home = [next(d for d, x in literals.items() if value(x)) for literals in built.on]
    device = np.array(home)[built.item]
    start = np.array([value(x) for x in built.start], np.int64)
    finish = start + built.compute[np.arange(len(start)), device]
    sends = sorted(
        (value(built.transfer_start[t, e]), t, int(device[built.problem.producer[t]]), e)
        for (t, e, _), x in built.sent.items()
        if value(x)
    )
    return Placement(device, _ranks(built, device, start, finish, sends))


def _ranks(
    built: MakespanModel,
    device: Ints,
    start: Ints,
    finish: Ints,
    sends: list[tuple[int, int, int, int]],
) -> Ints:
    """Rank ops by start, changed where that makes the channels' orders follow the first readers'
    ranks.

    Planned execution sends tensors in the order of their first readers' ranks. Devices' and
    channels' orders together are a relation on ops; a topological order of it reproduces the
    schedule exactly. Where it has a cycle, no ranks do, and the starts alone decide.
    """
    order = np.lexsort((np.argsort(built.problem.topological_order), finish, start))
    rank = np.argsort(order)
    after = _followers(built, device, order, rank, sends)
    try:
        found = list(nx.lexicographical_topological_sort(after, rank.__getitem__))
    except nx.NetworkXUnfeasible:
        return rank
    return np.argsort(found)


def _followers(
    built: MakespanModel,
    device: Ints,
    order: Ints,
    rank: Ints,
    sends: list[tuple[int, int, int, int]],
) -> nx.DiGraph:
    """Return edges to the ops that come right after each op on its device, or as first readers on a
    channel.
    """
    p = built.problem
    after = nx.DiGraph()
    after.add_nodes_from(range(p.num_ops))
    for d in range(p.num_devices):
        nx.add_path(after, order[device[order] == d].tolist())
    last_reader: dict[int, int] = {}
    for _, t, d, e in sends:
        reader = min((v for v in p.readers_of(t) if device[v] == e), key=rank.__getitem__)
        channel = int(p.channel[d, e])
        if last_reader.get(channel, reader) != reader:
            after.add_edge(last_reader[channel], reader)
        last_reader[channel] = reader
    return after
