"""CP-SAT for the period: any contiguity, 1F1B and GPipe, unrelated devices and link classes.

Variables: x[v, d] puts node v on device d; in[t, d] (out[t, d]) says that d receives (sends) tensor
t. With

    load[d] = sum_v compute[v, d] x[v, d] + sum_t weight[t, d] (in[t, d] + out[t, d])
    x[c, d] -> x[u, d] or in[t, d]     for each consumer c of u's tensor t
    x[u, d] -> x[c, d] or out[t, d]

minimise the period T >= load[d] (two such variables for "gpipe"). A tensor between two nodes has
one variable per device, for both directions.

Convexity: z[v, d] >= x[v, d] says that v or a descendant is on d; z grows upwards along order
edges, and x[u, d] and not x[v, d] forbid z[v, d] for an edge u -> v (section 4). Chain: a total
order of the devices, transitive, that every order edge respects.

The problem is contracted first under the incumbent's value, and the bound is a constraint.
Identical devices are told apart by falling load (by their order in the chain).

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 4.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.period.contracted import contract
from placeopt.period.evaluate import order_edges, period_batch, period_loads
from placeopt.solvers.exact.linear_dp import chain_positions
from placeopt.solvers.exact.placement_cp_sat import MAX_GRID, PlacementModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortools.sat.python import cp_model

    from placeopt.model.arrays import Flags
    from placeopt.model.problem import PlacementProblem
    from placeopt.period.contracted import ContractedProblem
    from placeopt.solving.tracker import Tracker


def refutes(problem: PlacementProblem, limit: int, seconds: float, num_workers: int = 1) -> bool:
    """Whether CP-SAT proves, in integers, that no placement has a period of at most `limit`
    ticks.
    """
    from ortools.sat.python import cp_model

    if limit < 0:
        return True
    try:
        model = PeriodCpModel(problem, limit, 0)
    except InfeasibleProblemError:
        return True
    solver = cp_solver(
        workers=num_workers,
        seconds=seconds,
        linearization_level=2,
        stop_after_first_solution=True,
    )
    return bool(solve_interruptibly(solver, model.cp) == cp_model.INFEASIBLE)


def fitting(model: ContractedProblem, limit: int) -> Flags:
    """Return whether each node alone fits each device, its time within `limit` ticks; shape (N,
    num_devices).
    """
    held = model.resident[:, None] <= model.capacity
    return (model.allowed & held & (model.total <= limit))[:, model.type_of]


class PeriodCpModel(PlacementModel):
    """The CP-SAT model of one problem; solutions above `incumbent` ticks are cut off."""

    def __init__(self, problem: PlacementProblem, incumbent: int | None, lower_bound: int) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        self.model = contract(problem, limit=incumbent)
        self.cp = cp_model.CpModel()
        self.limit = (
            self.model.largest_load
            if incumbent is None
            else min(incumbent, self.model.largest_load)
        )
        self.grid = max(1, -(-self.limit // MAX_GRID))
        self.lower_bound = lower_bound
        self._place()
        self._memory()
        self._loads()
        if problem.contiguity == "convex":
            self._convex()
        elif problem.contiguity == "chain":
            self._chain()

    # --- variables and constraints
    # ---------------------------------------------------------------------

    def _place(self) -> None:
        m, cp = self.model, self.cp
        self.x: list[list[cp_model.IntVar | None]] = []
        for v, fits in enumerate(fitting(m, self.limit).tolist()):
            row = [cp.new_bool_var(f"x{v}_{d}") if x else None for d, x in enumerate(fits)]
            self.x.append(row)
            present = [var for var in row if var is not None]
            if present:
                cp.add_exactly_one(present)
            else:
                cp.add_bool_or([])  # nothing within the limit

    def _memory(self) -> None:
        m = self.model
        total = int(m.resident.sum())
        unit = max(1, total // MAX_GRID)
        for d in range(self.problem.num_devices):
            capacity = int(m.capacity[m.type_of[d]])
            if total > capacity:
                # With a unit above one byte, floors relax the constraint; every solution is checked
                # again.
                self.cp.add(
                    sum(int(m.resident[v]) // unit * x for v, x in self._on(d) if m.resident[v])
                    <= capacity // unit
                )

    def _on(self, d: int) -> list[tuple[int, cp_model.IntVar]]:
        return [(v, x) for v in range(self.model.num_nodes) if (x := self.x[v][d]) is not None]

    def _loads(self) -> None:
        cp, top = self.cp, self.limit // self.grid
        passes = len(self.model.pass_compute)
        period = [cp.new_int_var(0, top, f"T{p}") for p in range(passes)]
        self.load: list[list[cp_model.IntVar]] = []
        for d in range(self.problem.num_devices):
            row = []
            for p, terms in enumerate(self._load_terms(d)):
                load = cp.new_int_var(0, top, f"load{p}_{d}")
                cp.add(load == sum(terms))
                cp.add(load <= period[p])
                row.append(load)
            self.load.append(row)
        cp.add(sum(period) >= self.lower_bound // self.grid)
        if passes == 2:
            cp.add(sum(period) <= top)
        if self.problem.contiguity != "chain":
            for devices in self.model.types:
                for a, b in itertools.pairwise(devices):
                    cp.add(self.load[a][0] >= self.load[b][0])
        cp.minimize(sum(period))

    def _load_terms(self, d: int) -> list[list[Any]]:
        """Terms of the load of a device, per pass."""
        m, g = self.model, int(self.model.type_of[d])
        terms: list[list[Any]] = [[] for _ in m.pass_compute]
        for v, x in self._on(d):
            for p, compute in enumerate(m.pass_compute):
                terms[p].append(self._coarse(compute[v, g]) * x)
        for t in range(len(m.producer)):
            ticks = self._coarse(m.weight[t, g])
            if ticks:
                terms[int(m.tensor_pass[t])].extend(ticks * var for var in self._transfer(t, d))
        return terms

    def _coarse(self, ticks: np.int64) -> int:
        """Ticks on the grid; what exceeds the limit only has to say so."""
        return min(int(ticks), self.limit + 1) // self.grid

    def _transfer(self, t: int, d: int) -> list[cp_model.IntVar]:
        """Variables that are 1 where device d receives or sends tensor t."""
        m, cp = self.model, self.cp
        u = self.x[int(m.producer[t])][d]
        consumers = [
            self.x[int(c)][d] for c in m.consumer[m.consumer_ptr[t] : m.consumer_ptr[t + 1]]
        ]
        present = [c for c in consumers if c is not None]
        if u is None and not present:
            return []
        if len(consumers) == 1:  # one variable for both directions
            cut = cp.new_bool_var(f"cut{t}_{d}")
            self._implies(present, u, cut)
            self._implies([u], consumers[0], cut)
            return [cut]
        found = []
        if present:
            into = cp.new_bool_var(f"in{t}_{d}")
            self._implies(present, u, into)
            found.append(into)
        if u is not None:
            out = cp.new_bool_var(f"out{t}_{d}")
            for c in consumers:
                self._implies([u], c, out)
            found.append(out)
        return found

    def _op_edges(self) -> list[tuple[int, int]]:
        """Order edges between ops that are not in the same node."""
        source, target = order_edges(self.problem, self.problem.contiguity)
        node = self.model.node
        return [
            (u, v)
            for u, v in zip(source.tolist(), target.tolist(), strict=True)
            if u != v and node[u] >= 0
        ]

    def _convex(self) -> None:
        # Convexity is about paths of ops: nodes would join paths that no op path follows.
        cp, node = self.cp, self.model.node
        edges = self._op_edges()
        ops = sorted({op for edge in edges for op in edge})
        for d in range(self.problem.num_devices):
            z = {op: cp.new_bool_var(f"z{op}_{d}") for op in ops}
            for op in ops:
                x = self.x[node[op]][d]
                if x is not None:
                    cp.add_implication(x, z[op])
            for u, v in edges:
                cp.add_implication(z[v], z[u])
                if node[u] != node[v]:
                    self._implies([self.x[node[u]][d]], self.x[node[v]][d], z[v].negated())

    def _chain(self) -> None:
        cp, m, k = self.cp, self.model, self.problem.num_devices
        before: dict[tuple[int, int], Any] = {}
        for a, b in itertools.combinations(range(k), 2):
            alike = m.type_of[a] == m.type_of[b]
            first = cp.new_constant(1) if alike else cp.new_bool_var(f"before{a}_{b}")
            before[a, b], before[b, a] = first, first.negated()
        for a, b, c in itertools.permutations(range(k), 3):
            cp.add_bool_or([before[a, b].negated(), before[b, c].negated(), before[a, c]])
        for u, v in zip(m.order_from.tolist(), m.order_to.tolist(), strict=True):
            for a, b in itertools.permutations(range(k), 2):
                x, y = self.x[u][a], self.x[v][b]
                if x is not None and y is not None:
                    cp.add_bool_or([x.negated(), y.negated(), before[a, b]])

    # --- solutions
    # -------------------------------------------------------------------------------------

    def offer(self, tracker: Tracker[Placement], value: Callable[[Any], int]) -> None:
        """Evaluate a solution of the model on the fine grid and offer it."""
        rows = [[0 if x is None else int(value(x)) for x in row] for row in self.x]
        device = self.model.expand(np.array(rows, np.int64).argmax(axis=1))
        ticks = int(period_batch(self.problem, device[None, :])[0])
        tracker.count()
        if ticks < INFEASIBLE:
            tracker.offer(ticks, Placement(device))

    def ticks(self, bound: int) -> int:
        """Every load of the model is rounded down."""
        return bound * self.grid

    def hint(self, placement: Placement) -> None:
        """Hint the incumbent; devices of a type by falling load, in a chain by their order."""
        loads = period_loads(self.problem, placement)
        load = loads[0] if self.model.two_pass else loads.sum(axis=0)
        chain = self.problem.contiguity == "chain"
        position = chain_positions(self.problem, placement.device) if chain else -load
        rename = np.arange(self.problem.num_devices)
        for devices in self.model.types:
            rename[sorted(devices, key=lambda d: (position[d], d))] = devices
        node_device = np.zeros(self.model.num_nodes, np.int64)
        node_device[self.model.node] = rename[placement.device]
        for v, row in enumerate(self.x):
            for d, x in enumerate(row):
                if x is not None:
                    self.cp.add_hint(x, int(node_device[v] == d))
