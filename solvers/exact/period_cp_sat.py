"""CP-SAT for the period: any contiguity, 1F1B and GPipe, unrelated devices and link classes.

Variables: x[v, d] puts node v on device d; in[t, d] (out[t, d]) says that d receives (sends) tensor t. With

    load[d] = sum_v compute[v, d] x[v, d] + sum_t weight[t, d] (in[t, d] + out[t, d])
    x[c, d] -> x[u, d] or in[t, d],   x[u, d] -> x[c, d] or out[t, d]    for each consumer c of u's tensor t

minimise the period T >= load[d] (two such variables for "gpipe"). A tensor between two nodes has one
variable per device, for both directions.

Convexity: z[v, d] >= x[v, d] says that v or a descendant is on d; z grows upwards along order edges, and
x[u, d] and not x[v, d] forbid z[v, d] for an edge u -> v (Tarnawski et al. 2020, section 4). Chain: a total
order of the devices, transitive, that every order edge respects.

The problem is contracted first under the incumbent's value, and the bounds of `placeopt.period.bounds.combinatorial` are
constraints. Identical devices are told apart by falling load (by their order in the chain).
"""

from __future__ import annotations

import itertools
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.period.bounds.combinatorial import column_bound, raise_period_bounds
from placeopt.period.contraction import contract
from placeopt.period.evaluate import INFEASIBLE, order_edges, period_batch, period_finish, period_loads
from placeopt.solvers.exact.interrupt import solve_interruptibly
from placeopt.solvers.exact.linear_dp import offer_initial
from placeopt.solvers.exact.period_warm_start import improve, warm_seconds, warm_start
from placeopt.solving.registry import require_objective
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ortools.sat.python import cp_model

    from placeopt.model.budget import Budget
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

MAX_GRID = 2**40
"""Sums of ticks above this are solved on a coarser grid (floored, so that bounds stay proofs)."""

_FIRST_SHARE, _COLUMN_SHARE, _IMPROVE_SHARE = 0.12, 0.4, 0.3


def solve_period(
    solver: Any,
    problem: PlacementProblem,
    budget: Budget,
    *,
    seed: int,
    initial: Placement | None = None,
    on_progress: OnProgress | None = None,
) -> Result[Placement]:
    """Minimise the period of `problem` with CP-SAT.

    Parameters
    ----------
    solver : its `name`, and `num_workers` where it has one, are read.
    budget : the warm start takes at most a quarter of its seconds; CP-SAT runs for the rest.
    """
    require_objective(solver.name, problem, ("period",))
    tracker: Tracker[Placement] = Tracker(solver.name, problem, budget, seed=seed, on_progress=on_progress)
    status, message = None, ""
    with tracker:
        message = prepare(tracker, initial, seed=seed, heuristics=bool(getattr(solver, "warm_start", True)))
        if message:
            status = "infeasible"
        elif not tracker.stop():
            status = _prove(solver, tracker, seed)
            if status == "infeasible":
                message = "no placement fits the devices' memory, compatibility, colocation and contiguity"
    return period_finish(tracker, status=status, message=message)


def solve(
    solver: Any,
    problem: PlacementProblem,
    budget: Budget,
    *,
    seed: int,
    initial: Placement | None = None,
    on_progress: OnProgress | None = None,
) -> Result[Placement]:
    """Minimise the period or the latency of `problem` with CP-SAT."""
    if problem.objective == "latency":
        from placeopt.solvers.exact.latency_cp_sat import solve_latency

        return solve_latency(solver, problem, budget, seed=seed, initial=initial, on_progress=on_progress)
    return solve_period(solver, problem, budget, seed=seed, initial=initial, on_progress=on_progress)


def prepare(
    tracker: Tracker[Placement], initial: Placement | None, *, seed: int, heuristics: bool = True
) -> str:
    """Find a first incumbent and quick bounds; return why there is no placement, if that is clear."""
    try:
        raise_period_bounds(tracker, seconds=min(2.0, 0.2 * tracker.seconds_left))
    except InputError as error:
        return str(error)
    if not heuristics:
        offer_initial(tracker, initial)
        return ""
    return warm_start(tracker, initial, seconds=warm_seconds(tracker), seed=seed)


def _prove(solver: Any, tracker: Tracker[Placement], seed: int) -> str | None:
    """Run CP-SAT shortly, then the price bound, annealing where that left a gap, CP-SAT for the rest of the time."""
    workers, log = int(getattr(solver, "num_workers", 2)), bool(getattr(solver, "log", False))
    left = tracker.seconds_left
    for seconds in (_FIRST_SHARE * left, np.inf):
        seconds = min(seconds, tracker.seconds_left)
        model = PeriodCpModel(tracker.problem, tracker.value, tracker.lower_bound)
        status = model.solve(tracker, seconds=seconds, seed=seed, num_workers=workers, log=log)
        if status is not None or np.isinf(left) or tracker.stop():
            return status
        if seconds < _FIRST_SHARE * left * 1.01:
            _bound_and_anneal(tracker, _COLUMN_SHARE * left, seed)
            if not tracker.stop():
                improve(tracker, seconds=_IMPROVE_SHARE * left, seed=seed)
            if tracker.stop():
                return None
    return None


def _bound_and_anneal(tracker: Tracker[Placement], seconds: float, seed: int) -> None:
    """Prove the bound by prices on one thread while annealing improves the incumbent on another."""
    found: list[int] = []
    errors: list[Exception] = []
    problem, lower, upper = tracker.problem, tracker.lower_bound, tracker.value

    def prove() -> None:
        try:
            found.append(column_bound(problem, lower, upper, seconds))
        except Exception as error:  # raised again below, in the solver's own thread
            errors.append(error)

    thread = Thread(target=prove, daemon=True)  # Ctrl-C does not wait for it
    thread.start()
    improve(tracker, seconds=seconds, seed=seed + 1, walks=1, done=lambda: not thread.is_alive())
    thread.join()
    if errors:
        raise errors[0]
    tracker.raise_bound(found[0], "columns")


class PeriodCpModel:
    """The CP-SAT model of one problem; solutions above `incumbent` ticks are cut off."""

    def __init__(self, problem: PlacementProblem, incumbent: int | None, lower_bound: int) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        self.model = contract(problem, limit=incumbent)
        self.cp = cp_model.CpModel()
        total = int(self.model.total.max(axis=1).sum()) + 2 * int(self.model.weight.sum())
        self.grid = max(1, -(-total // MAX_GRID))
        self.limit = total if incumbent is None else incumbent
        self.lower_bound = lower_bound
        self.type_of = np.empty(problem.num_devices, dtype=np.int64)
        for g, devices in enumerate(self.model.types):
            self.type_of[list(devices)] = g
        self._place()
        self._memory()
        self._loads()
        if problem.contiguity == "convex":
            self._convex()
        elif problem.contiguity == "chain":
            self._chain()

    # --- variables and constraints ---------------------------------------------------------------------

    def _place(self) -> None:
        m, cp = self.model, self.cp
        self.x: list[list[cp_model.IntVar | None]] = []
        for v in range(m.num_nodes):
            row: list[cp_model.IntVar | None] = []
            for d in range(self.problem.num_devices):
                g = self.type_of[d]
                fits = m.allowed[v, g] and m.total[v, g] <= self.limit and m.resident[v] <= m.capacity[g]
                row.append(cp.new_bool_var(f"x{v}_{d}") if fits else None)
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
            capacity = int(m.capacity[self.type_of[d]])
            if total > capacity:
                # With a unit above one byte, floors relax the constraint; every solution is checked again.
                self.cp.add(
                    sum(int(m.resident[v]) // unit * x for v, x in self._on(d) if m.resident[v]) <= capacity // unit
                )

    def _on(self, d: int) -> list[tuple[int, cp_model.IntVar]]:
        return [(v, x) for v in range(self.model.num_nodes) if (x := self.x[v][d]) is not None]

    def _loads(self) -> None:
        m, cp, problem = self.model, self.cp, self.problem
        passes = 2 if m.two_pass else 1
        top = self.limit // self.grid
        self.period = [cp.new_int_var(0, top, f"T{p}") for p in range(passes)]
        self.load: list[list[cp_model.IntVar]] = []
        self.moves: dict[tuple[int, int, int], cp_model.IntVar] = {}
        for d in range(problem.num_devices):
            g = int(self.type_of[d])
            terms: list[list[Any]] = [[] for _ in range(passes)]
            for v, x in self._on(d):
                for p in range(passes):
                    ticks = int(m.compute[p, v, g] if passes == 2 else m.total[v, g]) // self.grid
                    if ticks:
                        terms[p].append(ticks * x)
            for t in range(len(m.producer)):
                ticks = int(m.weight[t, g]) // self.grid
                if ticks:
                    p = int(m.tensor_pass[t]) if passes == 2 else 0
                    terms[p].extend(ticks * var for var in self._transfer(t, d))
            row = []
            for p in range(passes):
                load = cp.new_int_var(0, top, f"load{p}_{d}")
                cp.add(load == sum(terms[p]))
                cp.add(load <= self.period[p])
                row.append(load)
            self.load.append(row)
        cp.add(sum(self.period) >= self.lower_bound // self.grid)
        if passes == 2:
            cp.add(sum(self.period) <= top)
        if problem.contiguity != "chain":
            for devices in m.types:
                for a, b in itertools.pairwise(devices):
                    cp.add(self.load[a][0] >= self.load[b][0])
        cp.minimize(sum(self.period))

    def _transfer(self, t: int, d: int) -> list[cp_model.IntVar]:
        """Variables that are 1 where device d receives or sends tensor t."""
        m, cp = self.model, self.cp
        u = self.x[int(m.producer[t])][d]
        consumers = [self.x[int(c)][d] for c in m.consumer[m.consumer_ptr[t] : m.consumer_ptr[t + 1]]]
        if len(consumers) == 1:
            c = consumers[0]
            if u is None and c is None:
                return []
            cut = cp.new_bool_var(f"cut{t}_{d}")
            self.moves[t, d, 0] = cut
            for first, second in ((u, c), (c, u)):
                if first is not None:
                    cp.add_bool_or([first.negated(), cut] + ([] if second is None else [second]))
            return [cut]
        found = []
        present = [c for c in consumers if c is not None]
        if present:
            into = cp.new_bool_var(f"in{t}_{d}")
            self.moves[t, d, 1] = into
            for c in present:
                cp.add_bool_or([c.negated(), into] + ([] if u is None else [u]))
            found.append(into)
        if u is not None:
            out = cp.new_bool_var(f"out{t}_{d}")
            self.moves[t, d, 2] = out
            for c in consumers:
                cp.add_bool_or([u.negated(), out] + ([] if c is None else [c]))
            found.append(out)
        return found

    def _op_edges(self) -> list[tuple[int, int]]:
        """Order edges between ops that are not in the same node."""
        source, target = order_edges(self.problem, self.problem.contiguity)
        node = self.model.node
        return [(u, v) for u, v in zip(source.tolist(), target.tolist(), strict=True) if u != v and node[u] >= 0]

    def _convex(self) -> None:
        # Convexity is about paths of ops: nodes would join paths that no op path follows.
        cp, node = self.cp, self.model.node
        edges = self._op_edges()
        ops = sorted({op for edge in edges for op in edge})
        for d in range(self.problem.num_devices):
            z = {op: cp.new_bool_var(f"z{op}_{d}") for op in ops}
            self.moves.update({(op, d, 3): var for op, var in z.items()})
            for op in ops:
                x = self.x[node[op]][d]
                if x is not None:
                    cp.add_implication(x, z[op])
            for u, v in edges:
                cp.add_implication(z[v], z[u])
                x, y = self.x[node[u]][d], self.x[node[v]][d]
                if x is not None and node[u] != node[v]:
                    cp.add_bool_or([x.negated(), z[v].negated()] + ([] if y is None else [y]))

    def _chain(self) -> None:
        cp, k = self.cp, self.problem.num_devices
        before: dict[tuple[int, int], Any] = {}
        for a in range(k):
            for b in range(a + 1, k):
                first = cp.new_constant(1) if self.type_of[a] == self.type_of[b] else cp.new_bool_var(f"before{a}_{b}")
                before[a, b], before[b, a] = first, first.negated()
        self.before = before
        for a in range(k):
            for b in range(k):
                for c in range(k):
                    if len({a, b, c}) == 3:
                        cp.add_bool_or([before[a, b].negated(), before[b, c].negated(), before[a, c]])
        m = self.model
        for u, v in zip(m.order_from.tolist(), m.order_to.tolist(), strict=True):
            for a in range(k):
                for b in range(k):
                    x, y = self.x[u][a], self.x[v][b]
                    if a != b and x is not None and y is not None:
                        cp.add_bool_or([x.negated(), y.negated(), before[a, b]])

    # --- solving ---------------------------------------------------------------------------------------

    def solve(
        self, tracker: Tracker[Placement], *, seconds: float, seed: int, num_workers: int, log: bool = False
    ) -> str | None:
        """Run CP-SAT until proof or the end of the budget; return "infeasible" if that is proved."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = num_workers
        parameters.random_seed = seed
        parameters.linearization_level = 2
        parameters.symmetry_level = 2
        parameters.log_search_progress = log
        if np.isfinite(seconds):
            parameters.max_time_in_seconds = max(0.01, seconds)
        if tracker.budget.evaluations is not None:
            parameters.max_number_of_conflicts = tracker.evaluations_left
        if tracker.solution is not None:
            self._hint(tracker.solution.device)
        code = solve_interruptibly(solver, self.cp, _callback(self, tracker))
        if code == cp_model.INFEASIBLE:
            # The incumbent satisfies the model, so with one this cannot be.
            return "infeasible" if tracker.value is None else None
        if code != cp_model.MODEL_INVALID:
            self._raise_bound(tracker, solver.best_objective_bound)
            if code in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                self.offer(tracker, [[solver.value(x) if x is not None else 0 for x in row] for row in self.x])
        else:
            raise RuntimeError(f"CP-SAT refused the model: {self.cp.validate()}")
        if tracker.budget.evaluations is not None:
            tracker.count(int(solver.num_conflicts))
        tracker.stop()
        return None

    def _raise_bound(self, tracker: Tracker[Placement], bound: float) -> None:
        if np.isfinite(bound):
            ticks = int(np.ceil(bound - 1e-6)) * self.grid
            tracker.raise_bound(ticks if tracker.value is None else min(ticks, tracker.value), "cp-sat")

    def offer(self, tracker: Tracker[Placement], rows: list[list[int]]) -> None:
        """Evaluate a solution of the model on the fine grid and offer it."""
        device = self.model.expand(np.array(rows, dtype=np.int64).argmax(axis=1))
        value = int(period_batch(self.problem, device[None, :])[0])
        tracker.count()
        if value < INFEASIBLE:
            tracker.offer(value, Placement(device))

    def _hint(self, device: NDArray[np.int64]) -> None:
        """Hint the incumbent, its identical devices renamed as the symmetry constraints want them."""
        placement = Placement(device)
        loads = period_loads(self.problem, placement)
        load = loads[0] if self.model.two_pass else loads.sum(axis=0)
        rename = np.arange(self.problem.num_devices)
        position = _chain_positions(self.problem, device) if self.problem.contiguity == "chain" else -load
        for devices in self.model.types:
            members = list(devices)
            by_position = sorted(members, key=lambda d: (position[d], d))
            rename[by_position] = members
        device = rename[device]
        node_device = np.zeros(self.model.num_nodes, dtype=np.int64)
        node_device[self.model.node] = device
        for v, row in enumerate(self.x):
            for d, x in enumerate(row):
                if x is not None:
                    self.cp.add_hint(x, int(node_device[v] == d))


def _chain_positions(problem: PlacementProblem, device: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of every device in a pipeline order of a feasible chain."""
    source, target = order_edges(problem, "chain")
    k = problem.num_devices
    edge = np.zeros((k, k), dtype=np.bool_)
    edge[device[source], device[target]] = True
    np.fill_diagonal(edge, False)
    position = np.full(k, -1, dtype=np.int64)
    for rank in range(k):
        free = [d for d in range(k) if position[d] < 0 and not edge[position < 0, d].any()]
        position[free[0]] = rank
    return position


def _callback(model: PeriodCpModel, tracker: Tracker[Placement]) -> Any:
    from ortools.sat.python import cp_model

    class Callback(cp_model.CpSolverSolutionCallback):
        """Offers every solution and keeps the bound."""

        def on_solution_callback(self) -> None:
            rows = [[int(self.value(x)) if x is not None else 0 for x in row] for row in model.x]
            model.offer(tracker, rows)
            model._raise_bound(tracker, self.best_objective_bound)
            if tracker.stop():
                self.stop_search()

    return Callback()


__all__ = ["PeriodCpModel", "prepare", "solve", "solve_period"]
