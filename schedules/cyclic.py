r"""The cyclic CP-SAT model decides whether a schedule can repeat every P ticks.

Modulo scheduling (software pipelining) of the blocks of K micro-batches. Instance i = (member q of
the pattern, block b) starts at S_i = sigma_i + P * k_i in the first repetition and P later in every
next one, with 0 <= sigma_i < P and k_i >= 0:

- precedence u -> v with lag l:  S_v >= S_u + span_u + l;
- two instances on one device, in one of the two orders: sigma_j >= sigma_i + span_i and
  sigma_i + P >= sigma_j + span_j (the second keeps j clear of i's next repetition);
- memory of device d right after an allocating instance c starts, in the steady state:
  sum_i m_i ([sigma_i <= sigma_c] - k_i) <= capacity_d  (before time 0 of a repetition, instance i
  has run k_i times less often than repetitions have begun; k_i cancels for what a micro-batch
  allocates and frees).

Stretching a schedule of period P to P + 1 (keep every sigma and k) stays valid, so feasibility is
monotone in P and an infeasible P proves that every shorter period is infeasible too.

Without loss of generality: the pattern may be rotated, so one source starts at 0; members of a
block may be sorted, since micro-batches are identical and sorting two sequences that respect a
precedence pairwise keeps it.

Where a unit divides all spans, lags and P, starts are whole units: with orders and k as they are
every constraint is S_v - S_u >= w - P h, all of it whole units, so it holds of starts that are
rounded down, too. These keep k, since P is whole, and the orders on a device, since spans are. The
model asks for ticks all the same where the least latency is to be proved, which may be half a unit.

With one member, nothing waits a whole period for nothing. Let D hold b and all its descendants, and
let b be the only way into D: every predecessor of a descendant lies in D. If S_b >= S_u + span_u +
l + P for all predecessors u of b, then D can start P earlier: no precedence breaks, no device
changes its order, and memory changes by the sum of D's memory deltas, which is at most 0, as a
micro-batch never holds less than nothing before D. So among the patterns of the smallest sum of
starts there is one in which some predecessor of b ends less than P before b starts (and in which
k_b = 0 where b has none). This leaves few indices k to search: proofs get ten to a hundred times
faster.

Redundant: on a limited device sum_i -m_i S_i + sum of freed units times spans is at most P times
its capacity (Little's law, see `bounds.residence_bound`). And where two parts of a problem are
mirror images of each other, as the two chains of X, the first takes no longer than the second.

References
----------
.. [1] B. R. Rau, "Iterative modulo scheduling: an algorithm for software pipelining loops", MICRO
1994.
.. [2] A. E. Eichenberger, E. S. Davidson, "Efficient formulation for optimal modulo schedulers",
PLDI 1997 (the stage k
   and the offset sigma of every instance).
.. [3] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible
Schedule Search", HPCA
   2024.
"""

from __future__ import annotations

import itertools
from math import gcd
from typing import Any

import networkx as nx
import numpy as np
from ortools.sat.python import cp_model

from placeopt.model.arrays import MAX_SUM, true_places
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.schedules.bounds import freed_while_running
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import Repetend


class CyclicModel:
    """One period P, one pattern size K: variables, one method per constraint family, objective,
    decode.

    Attributes
    ----------
    for_latency : keep the patterns of least latency, and let `minimize_latency` ask for nothing
    else. Without it only some
        pattern of every feasible period is kept: unconnected parts all begin in the first
        repetition, although one that begins later may share more time with the others.
    """

    def __init__(
        self, problem: PipelineProblem, period: int, size: int = 1, *, for_latency: bool = False
    ) -> None:
        self._unit = 1 if for_latency else gcd(period, problem.unit)
        self.problem = problem = problem.in_units(self._unit)
        self.period, self.size, self.for_latency = period // self._unit, size, for_latency
        self.model = cp_model.CpModel()
        self.num_instances = problem.num_blocks * size
        self._span = np.tile(problem.span, size).tolist()
        self._edges = problem.edges_of(size)
        self._sources = true_places(np.diff(problem.pred_ptr) == 0)
        self._add_variables()
        self._add_devices()
        self._add_precedences()
        self._add_memory()
        self._add_symmetry_breaking()
        self._add_residence()
        if size == 1:
            self._forbid_idle_turns()
            self._order_mirror_images()

    def _add_variables(self) -> None:
        # Whatever is closed under successors can move down by P as long as no precedence breaks,
        # and that never
        # adds memory (what a micro-batch allocated is freed no later). So some block has k = 0 and
        # is reached from
        # every other over at most num_blocks precedences that would break, each with a bounded step
        # of k.
        longest = max((ticks for _, _, ticks in self._edges), default=0)
        deepest = self.problem.num_blocks * (2 + longest // self.period + (self.size > 1))
        n = self.num_instances
        self._latest = self.period * (deepest + 1)
        self.sigma = [self.model.new_int_var(0, self.period - 1, f"sigma{i}") for i in range(n)]
        self.turn = [self.model.new_int_var(0, deepest, f"k{i}") for i in range(n)]

    def _add_devices(self) -> None:
        """Cyclic no-overlap; `before[i, j]` says sigma_i <= sigma_j for instances that share a
        device.
        """
        self.before: dict[tuple[int, int], Any] = {}
        model, sigma, span, period = self.model, self.sigma, self._span, self.period
        interval = [
            model.new_fixed_size_interval_var(sigma[i], span[i], f"run{i}")
            for i in range(len(sigma))
        ]
        again = [
            model.new_fixed_size_interval_var(sigma[i] + period, span[i], f"next{i}")
            for i in range(len(sigma))
        ]
        for device in range(self.problem.num_devices):
            here = self.problem.instances_on(device, self.size)
            for i, j in itertools.combinations(here, 2):
                if (i, j) in self.before:
                    continue
                flag = model.new_bool_var(f"before{i}_{j}")
                self.before[i, j], self.before[j, i] = flag, ~flag
                for first, second, literal in ((i, j, flag), (j, i, ~flag)):
                    model.add(sigma[second] >= sigma[first] + span[first]).only_enforce_if(literal)
                    model.add(
                        sigma[first] + period >= sigma[second] + span[second]
                    ).only_enforce_if(literal)
            if len(here) > 1:
                model.add_no_overlap([interval[i] for i in here] + [again[i] for i in here])

    def _add_precedences(self) -> None:
        for u, v, ticks in self._edges:
            if (u, v) in self.before and ticks == self._span[u]:
                # On one device the order of the sigmas decides alone.
                self.model.add(self.turn[v] >= self.turn[u] + self.before[v, u])
            else:
                self.model.add(self._start(v) >= self._start(u) + ticks)
                self.model.add(self.turn[v] >= self.turn[u])

    def _start(self, instance: int) -> Any:
        return self.sigma[instance] + self.period * self.turn[instance]

    def _add_memory(self) -> None:
        b = self.problem.num_blocks
        for device in true_places(self.problem.limited):
            delta = self.problem.memory[:, device]
            changing = [i for i in self.problem.instances_on(device, self.size) if delta[i % b]]
            capacity = int(self.problem.capacity[device])
            for c in changing:
                if delta[c % b] < 0:
                    continue  # a block that frees memory never makes the peak
                others = sum(
                    int(delta[i % b]) * (self.before[i, c] - self.turn[i])
                    for i in changing
                    if i != c
                )
                self.model.add(others + int(delta[c % b]) * (1 - self.turn[c]) <= capacity)

    def _add_symmetry_breaking(self) -> None:
        b = self.problem.num_blocks
        first, *others = self._sources
        self.model.add(self.sigma[first] == 0)
        if not others:
            self.model.add(self.turn[first] == 0)
        for i in range(b if self.size > 1 else 0):
            for q in range(self.size - 1):
                self.model.add(
                    self._start((q + 1) * b + i) >= self._start(q * b + i) + self._span[i]
                )
            self.model.add(
                self._start(i) + self.period >= self._start((self.size - 1) * b + i) + self._span[i]
            )

    def _add_residence(self) -> None:
        b, memory = self.problem.num_blocks, self.problem.memory
        for device in true_places(self.problem.limited):
            here = [
                i for i in self.problem.instances_on(device, self.size) if memory[i % b, device]
            ]
            freed = self.size * freed_while_running(memory[:, device], self.problem.span)
            room = self.period * int(self.problem.capacity[device]) - freed
            # Bytes times nanoseconds outgrow 64 bits: round the coefficients of the starts, which
            # are >= 0, down.
            amount = [-int(memory[i % b, device]) for i in here]
            unit = max(1, -(-max(room, self._latest * sum(abs(x) for x in amount)) // 2**60))
            terms = [
                x // unit * self._start(i) for x, i in zip(amount, here, strict=True) if x // unit
            ]
            if terms:
                self.model.add(sum(terms) <= room // unit)

    def _order_mirror_images(self) -> None:
        for one, other in mirror_images(self.problem):
            lasts = [self._start(part[-1]) - self._start(part[0]) for part in (one, other)]
            self.model.add(lasts[0] <= lasts[1])

    def _forbid_idle_turns(self) -> None:
        """A block that alone leads to its descendants starts less than P after some predecessor
        ends, see above.
        """
        model = self.model
        for b in entries(self.problem):
            before = self.problem.predecessors_of(b)
            if not before:
                # Whatever part begins first, the others gain nothing by beginning a whole period
                # after it.
                model.add(self.turn[b] <= self.for_latency)
                continue
            soon = (
                [model.new_bool_var(f"soon{u}_{b}") for u, _ in before] if len(before) > 1 else []
            )
            for at, (u, lag) in enumerate(before):
                latest = self._start(u) + self._span[u] + lag + self.period - 1
                constraint = model.add(self._start(b) <= latest)
                if soon:
                    constraint.only_enforce_if(soon[at])
            if soon:
                model.add_bool_or(soon)

    def minimize_latency(self) -> None:
        """Ask for the least time that a micro-batch spends in the pipeline (the slowest member's).

        Early starts count a little, too, unless the model is `for_latency`: a pattern without slack
        completes to shorter schedules, and the search is faster.
        """
        b = self.problem.num_blocks
        # Lags may be many times the period, and with them the latest start
        horizon = max(self.period * (2 * self.num_instances + 2), self._latest) + max(self._span)
        horizon = min(horizon, MAX_SUM)  # CP-SAT counts to 2^63
        latency = self.model.new_int_var(self.problem.critical_path, horizon, "latency")
        sinks = [i for i, after in enumerate(self.problem.successors) if not after]
        for q, last, first in itertools.product(range(self.size), sinks, self._sources):
            end = self._start(q * b + last) + self._span[last]
            self.model.add(latency >= end - self._start(q * b + first))
        if self.for_latency:
            self.model.minimize(latency)
            return
        # Shortening every start by a tick is worth less than a tick of latency.
        weight = min(self.num_instances * 4, 2**60 // max(1, horizon * self.num_instances))
        starts = sum(self._start(i) for i in range(self.num_instances))
        self.model.minimize(max(1, weight) * latency + starts)

    def solve(
        self, seconds: float, *, num_workers: int, first_only: bool = True, **limits: Any
    ) -> tuple[str, Repetend | None]:
        """Return ("feasible" | "optimal" | "infeasible" | "unknown", pattern or None); `limits` as
        `cp_solver` takes them.
        """
        solver = cp_solver(
            workers=num_workers, seconds=seconds, stop_after_first_solution=first_only, **limits
        )
        status = solve_interruptibly(solver, self.model)
        if status == cp_model.INFEASIBLE:
            return "infeasible", None
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return "unknown", None
        start = np.array(
            [
                solver.value(s) + self.period * solver.value(k)
                for s, k in zip(self.sigma, self.turn, strict=True)
            ]
        )
        pattern = Repetend(self.period, start.reshape(self.size, -1)).in_ticks(self._unit)
        return "optimal" if status == cp_model.OPTIMAL else "feasible", pattern


def entries(problem: PipelineProblem) -> list[int]:
    """Blocks b such that every predecessor of a descendant of b is b or another descendant."""
    before = problem.ancestors
    return [
        b
        for b in range(problem.num_blocks)
        if all(u == b or before[u] >> b & 1 for u, v, _ in problem.edges if before[v] >> b & 1)
    ]


def mirror_images(problem: PipelineProblem) -> list[tuple[list[int], list[int]]]:
    """Pairs of unconnected parts that an exchange of devices maps onto each other, block by block
    in their order.

    Each pair alone is a symmetry of the whole problem; parts with one first and one last block
    only.
    """
    graph = problem.graph()
    parts = [sorted(part) for part in nx.weakly_connected_components(graph)]
    found = []
    for one, other in itertools.pairwise(parts):
        swap = {i: i for i in range(problem.num_blocks)}
        swap |= dict(zip([*one, *other], [*other, *one], strict=True))
        alike = len(one) == len(other) and _has_one_way(graph, one) and _has_one_way(graph, other)
        if alike and _is_symmetry(problem, swap):
            found.append((one, other))
    return found


def _has_one_way(graph: nx.DiGraph, part: list[int]) -> bool:
    """Whether the first block alone begins a part, and the last one alone ends it."""
    firsts = [i for i in part if graph.in_degree(i) == 0]
    lasts = [i for i in part if graph.out_degree(i) == 0]
    return firsts == part[:1] and lasts == part[-1:]


def _is_symmetry(problem: PipelineProblem, swap: dict[int, int]) -> bool:
    """Whether exchanging blocks as `swap` says, and devices with the blocks on single ones, leaves
    the problem as it is.
    """
    to, image = np.arange(problem.num_devices), np.array(list(swap.values()))
    edges = set(problem.edges)
    for i, j in swap.items():
        if len(problem.devices_of(i)) == 1:
            to[problem.home_of(i)] = problem.home_of(j)
    return (
        len(set(to.tolist())) == len(to)
        and all(
            np.array_equal(np.sort(to[problem.devices_of(i)]), problem.devices_of(j))
            for i, j in swap.items()
        )
        and np.array_equal(problem.span[image], problem.span)
        and np.array_equal(problem.capacity[to], problem.capacity)
        and np.array_equal(problem.memory[np.ix_(image, to)], problem.memory)
        and {(swap[u], swap[v], lag) for u, v, lag in edges} == edges
    )
