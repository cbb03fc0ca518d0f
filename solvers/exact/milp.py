"""`milp`: the period as a mixed-integer linear program, solved by HiGHS through scipy.

Columns: x[v, d] in {0, 1}; in[t, d], out[t, d] in [0, 1] (one for both where a tensor has a single
consumer); T, one per pass for "gpipe". Rows: every node once; load of every device and pass at most
T; transfers; memory; falling loads of identical devices; and for contiguity

- `convex`: z[v, d] >= x[v, d], z[u, d] >= z[v, d] and z[v, d] <= x[v, d] - x[u, d] + 1 for an edge
  u -> v (Tarnawski et al. 2020, section 4);
- `chain`: before[a, b] is a transitive total order of the devices, those of a type in the order of
  their numbers, and x[u, a] + x[v, b] <= 1 + before[a, b] for an edge u -> v.

The problem is contracted first, warm-started by dynamic programming and annealing (which HiGHS
cannot take, but whose value bounds T from above) and the proven bounds bound T from below. HiGHS
works in floating point, so that its bound and its infeasibility are claims; they count once CP-SAT
has refuted every smaller period in integers.

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from placeopt.model.arrays import together, true_places
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.linear_program import integer_program
from placeopt.model.problem import PlacementProblem
from placeopt.period.contracted import contract
from placeopt.period.evaluate import order_edges
from placeopt.solvers.exact.linear_dp import offer_devices, raise_bounds
from placeopt.solvers.exact.period_tactics import first_placements, fitting, refutes
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class Milp(SearchSolver):
    """Period by mixed-integer programming: any contiguity, 1F1B and GPipe, unrelated devices."""

    kernels = ("period-dp", "period-search")
    watched_from = 4000  # building the program takes its time, and HiGHS looks at the clock seldom
    warm_start: bool = option(True, "find an incumbent by dynamic programming and annealing first")
    log: bool = option(False, "print HiGHS' own log")

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Minimise the period; the time limit is that of HiGHS."""
        raise_bounds(tracker)
        if self.warm_start:
            first_placements(tracker)
        if tracker.stop():
            return
        try:
            program = PeriodProgram(problem, tracker.value, tracker.lower_bound, tracker.stop)
        except _OutOfTimeError:
            return
        except InfeasibleProblemError as error:
            tracker.infeasible(str(error))
            return
        program.solve(tracker, log=self.log)


class _Rows:
    """Sparse rows of a linear program, built one by one: low <= row <= high."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.column: list[int] = []
        self.value: list[float] = []
        self.limits: list[tuple[float, float]] = []

    def add(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        self.row += [len(self.limits)] * len(terms)
        self.column += (column for column, _ in terms)
        self.value += (value for _, value in terms)
        self.limits.append((low, high))


class _OutOfTimeError(Exception):
    """The time was over before the program was built."""


class PeriodProgram:
    """The program of one problem; placements above `incumbent` ticks are cut off.

    `stop` says whether the time is over while the program is built.

    Attributes
    ----------
    tolerance : part by which values in floating point may be off.
    """

    tolerance: ClassVar[float] = 1e-6

    def __init__(
        self,
        problem: PlacementProblem,
        incumbent: int | None,
        lower_bound: int,
        stop: Callable[[], bool],
    ) -> None:
        self.problem, self._stop = problem, stop
        self.model = contract(problem, limit=incumbent)
        m, k = self.model, problem.num_devices
        self.top = m.largest_load if incumbent is None else incumbent
        self.scale = float(max(1, self.top))
        self.rows = _Rows()
        self.upper: list[float] = []
        self.integer: list[int] = []
        self.x = np.arange(m.num_nodes * k).reshape(m.num_nodes, k)
        self._place()
        self.period = [self._column(1.0) for _ in m.pass_compute]
        self._loads()
        self._memory()
        self.rows.add(
            [(c, 1.0) for c in self.period], lower_bound / self.scale * (1 - self.tolerance), 1.0
        )
        if problem.contiguity == "convex":
            self._convex()
        elif problem.contiguity == "chain":
            self._chain()

    def _look_at_the_clock(self) -> None:
        if self._stop():
            raise _OutOfTimeError

    def _column(self, upper: float, *, integer: bool = False) -> int:
        self.upper.append(upper)
        self.integer.append(int(integer))
        return len(self.upper) - 1

    def _place(self) -> None:
        """Put every node on one device that it fits."""
        for columns, fits in together(self.x, fitting(self.model, self.top)):
            for fit in fits:
                self._column(float(fit), integer=True)
            self.rows.add([(c, 1.0) for c in columns], 1.0, 1.0)

    def _loads(self) -> None:
        loads = []
        for d in range(self.problem.num_devices):
            terms = self._terms(d)
            for load, period in zip(terms, self.period, strict=True):
                self.rows.add([*load, (period, -1.0)], -np.inf, 0.0)
            loads.append(terms[0])
        if self.problem.contiguity != "chain":
            for devices in self.model.types:
                for a, b in itertools.pairwise(devices):
                    self.rows.add([*loads[a], *[(c, -value) for c, value in loads[b]]], 0.0, np.inf)

    def _terms(self, d: int) -> list[list[tuple[int, float]]]:
        """Return the load of a device in each pass."""
        m, g = self.model, int(self.model.type_of[d])
        terms = [
            [
                (int(self.x[v, d]), float(compute[v, g]) / self.scale)
                for v in np.flatnonzero(compute[:, g])
            ]
            for compute in m.pass_compute
        ]
        for t in true_places(m.weight[:, g]):
            share = float(m.weight[t, g]) / self.scale
            terms[int(m.tensor_pass[t])].extend((c, share) for c in self._transfer(t, d))
        return terms

    def _transfer(self, t: int, d: int) -> list[int]:
        m = self.model
        u = int(self.x[m.producer[t], d])
        consumers = self.x[m.readers(t), d].tolist()
        into = self._column(1.0)
        out = into if len(consumers) == 1 else self._column(1.0)
        for c in consumers:
            self.rows.add([(c, 1.0), (u, -1.0), (into, -1.0)], -np.inf, 0.0)
            self.rows.add([(u, 1.0), (c, -1.0), (out, -1.0)], -np.inf, 0.0)
        return [into] if out == into else [into, out]

    def _memory(self) -> None:
        m = self.model
        for d in range(self.problem.num_devices):
            capacity = float(m.capacity[self.model.type_of[d]])
            if m.resident.sum() > capacity:
                unit = max(1.0, capacity)
                terms = [
                    (int(self.x[v, d]), float(m.resident[v]) / unit)
                    for v in range(m.num_nodes)
                    if m.resident[v]
                ]
                self.rows.add(terms, -np.inf, capacity / unit)

    def _convex(self) -> None:
        source, target = order_edges(self.problem, "convex")
        ops = np.unique(np.concatenate([source, target])).tolist()
        node = self.model.node
        for d in range(self.problem.num_devices):
            self._look_at_the_clock()
            z = {op: self._column(1.0) for op in ops}
            for op in ops:
                self.rows.add([(z[op], 1.0), (int(self.x[node[op], d]), -1.0)], 0.0, np.inf)
            for u, v in together(source, target):
                self.rows.add([(z[u], 1.0), (z[v], -1.0)], 0.0, np.inf)
                if node[u] != node[v]:
                    x, y = int(self.x[node[u], d]), int(self.x[node[v], d])
                    self.rows.add([(z[v], 1.0), (y, -1.0), (x, 1.0)], -np.inf, 1.0)

    def _chain(self) -> None:
        k, m = self.problem.num_devices, self.model
        before = {
            pair: self._column(1.0, integer=True) for pair in itertools.permutations(range(k), 2)
        }
        for a, b in itertools.combinations(range(k), 2):
            low = float(m.type_of[a] == m.type_of[b])
            self.rows.add([(before[a, b], 1.0), (before[b, a], 1.0)], 1.0, 1.0)
            self.rows.add([(before[a, b], 1.0)], low, 1.0)
        for a, b in before:
            self._look_at_the_clock()
            for c in sorted(set(range(k)) - {a, b}):
                terms = [(before[a, b], 1.0), (before[b, c], 1.0), (before[a, c], -1.0)]
                self.rows.add(terms, -np.inf, 1.0)
        for u, v in together(m.order_from, m.order_to):
            self._look_at_the_clock()
            for a, b in before:
                terms = [(int(self.x[u, a]), 1.0), (int(self.x[v, b]), 1.0), (before[a, b], -1.0)]
                self.rows.add(terms, -np.inf, 1.0)

    def solve(
        self, tracker: PlacementTracker, *, log: bool = False, proof_share: float = 0.25
    ) -> None:
        """Run HiGHS for the rest of the budget, but for a share of the time in which what it claims
        is settled.
        """
        from scipy.sparse import coo_matrix

        rows, width = self.rows, len(self.upper)
        shape = len(rows.limits), width
        matrix = coo_matrix((rows.value, (rows.row, rows.column)), shape).tocsr()
        cost = np.zeros(width)
        cost[self.period] = 1.0
        options: dict[str, Any] = {"mip_rel_gap": 0.0, "disp": log}
        left = tracker.seconds_left * (1 - proof_share)
        # an evaluation is a node of the tree, which may take a second
        if tracker.budget.evaluations is not None:
            options["node_limit"] = min(tracker.evaluations_left, 2**31 - 1)
            left = min(left, float(tracker.evaluations_left))
        if np.isfinite(left):
            options["time_limit"] = max(0.01, left)
        answer = integer_program(
            cost,
            np.array(self.integer),
            [(matrix, *np.array(rows.limits).T)],
            (np.zeros(width), np.array(self.upper)),
            **options,
        )
        tracker.count(max(1, int(getattr(answer, "mip_node_count", None) or 0)))
        if answer.x is not None:
            offer_devices(tracker, self.model.expand(answer.x[self.x].argmax(axis=1)))
        if answer.status == 2:
            self._settle(tracker, self.top + 1)
        bound = getattr(answer, "mip_dual_bound", None)
        if bound is not None and np.isfinite(bound):
            self._settle(
                tracker,
                int(np.ceil(float(bound) * self.scale * (1 - self.tolerance) - self.tolerance)),
            )
        tracker.stop()

    def _settle(self, tracker: PlacementTracker, claim: int, *, seconds: float = 20.0) -> None:
        """Record the bound that HiGHS claims, or the incumbent where it comes close to it, once it
        is proved in integers, in at most so many seconds of what is left.
        """
        if tracker.value is not None and claim >= tracker.value * (1 - 2 * self.tolerance) - 1:
            claim = tracker.value
        if claim <= tracker.lower_bound:
            return
        if refutes(self.problem, claim - 1, min(seconds, max(0.1, tracker.seconds_left))):
            if tracker.value is None and claim > self.top:
                tracker.infeasible(
                    "no placement fits the devices' memory, compatibility, colocation and "
                    "contiguity"
                )
            else:
                tracker.raise_bound(claim, "milp")
