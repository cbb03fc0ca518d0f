"""Restarts on the tightest horizon: they ask whether there is a schedule as short as the best lower
bound.

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

import threading
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.threads import start_thread
from placeopt.solvers.exact.makespan_solution import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.placement import Placement
    from placeopt.solvers.exact.makespan_model import MakespanModel

WORK = 0.35
"""Deterministic CP-SAT time (about seconds) of the shortest run."""

LONGEST_WAIT = 0.05
"""Seconds between questions whether to stop."""


class TightHorizon:
    """Runs of one model until one of them answers; `outcome` and `placement` say how."""

    def __init__(self, built: MakespanModel, seed: int) -> None:
        self.built, self.seed = built, seed
        self.outcome: Any = cp_model.UNKNOWN
        self.placement: Placement | None = None
        self.conflicts = 0
        self._lock, self._over, self._turn = threading.Lock(), threading.Event(), 0
        self._running: list[cp_model.CpSolver] = []
        self._failure: list[BaseException] = []

    def run(self, num_workers: int, stop: Callable[[], bool]) -> None:
        """Run on `num_workers` threads until an answer or `stop`."""
        threads = [
            start_thread(self._work, name="placeopt-restarts", daemon=False)
            for _ in range(num_workers)
        ]
        try:
            while not self._over.wait(LONGEST_WAIT) and not stop():
                pass
        finally:
            self._over.set()
            while any(thread.is_alive() for thread in threads):
                # again and again: a run may not have begun when it is first told to stop
                self._end_all()
                threads[0].join(LONGEST_WAIT)
                threads[-1].join(LONGEST_WAIT)
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
                effort=WORK * luby((turn + 1) // 2),
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
