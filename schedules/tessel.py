"""The `tessel` solver: the published enumeration of repetends, as a baseline.

A repetend holds one instance of every block; r_b is the index of its micro-batch. The indices are
enumerated: r_pred >= r_succ and no index is skipped, fewest micro-batches first. For each
assignment a small problem asks for starts s_b of least period P = R + o, where R is the longest
time of a device from its first start to its last end and o what dependencies between repetitions
add:
  s_j + span_j - s_i <= P                        for i, j on one device,
  s_v + P (r_u - r_v) >= s_u + span_u + lag      for u -> v,
  sum_i m_i r_i + sum_i m_i [s_i <= s_c] <= capacity   on every device, right after c starts.
Solved with CP-SAT instead of the published SMT solver; assignments whose longest chains already
exclude a better period are pruned. The search ends at the first repetend that reaches the load
bound, which is Tessel's own rule; only the winner is completed to a finite schedule (lazy
completion).

References
----------
.. [1] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible
Schedule Search", HPCA
   2024.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from placeopt.model.arrays import Ints, true_places
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.schedules.bounds import Orders, longest_ways
from placeopt.schedules.completion import complete, cp_limits, offer_pattern, prove_first
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class TesselSolver(SearchSolver):
    """Enumerate index assignments, solve each, complete the best; an evaluation is one assignment
    that was solved.
    """

    max_micro_batches: int = option(
        0, "most micro-batches that a repetend may touch; 0 for as many as blocks", low=0
    )
    num_workers: int = option(1, "threads of CP-SAT", low=1)

    def search(self, problem: PipelineProblem, tracker: Tracker[PipelineSchedule]) -> None:
        """Go through the assignments; every repetend has to beat the best so far."""
        if not prove_first(problem, tracker):
            return
        goal, reach = int(problem.work.max()), _same_device_chains(problem)
        # One micro-batch after another always works: an upper bound that every repetend must beat.
        period = int(problem.span.sum() + problem.lag.sum()) + 1
        best: Repetend | None = None
        for assignment in _assignments(problem, self.max_micro_batches or problem.num_blocks):
            if tracker.stop() or period <= goal:
                break
            if _chain_bound(assignment, reach) >= period or _overfull(problem, assignment):
                continue
            model = _AssignmentModel(problem, assignment, period - 1)
            limits = cp_limits(tracker, tracker.seconds_left, self.num_workers)
            found = model.solve(**limits)
            tracker.count()
            if found is not None:
                best, period = found, found.period
                offer_pattern(problem, tracker, found)
        if best is None:
            tracker.message = "no repetend found in time; allow more seconds"
        else:
            start = complete(problem, best, tracker.seconds_left)
            offer_pattern(problem, tracker, best, start)


class _AssignmentModel:
    """CP-SAT model of the least period for given micro-batch indices: variables, one method per
    constraint family.
    """

    def __init__(self, problem: PipelineProblem, index: Ints, most: int) -> None:
        self.problem, self.index = problem, index
        self.model = cp_model.CpModel()
        horizon = int(problem.span.sum() + problem.lag.sum())
        self.start = [
            self.model.new_int_var(0, horizon, f"start{i}") for i in range(problem.num_blocks)
        ]
        self.period = self.model.new_int_var(int(problem.work.max()), most, "period")
        self.orders = Orders(self.model, self.start, problem.span.tolist())
        self._add_devices()
        self._add_precedences()
        for device in true_places(problem.limited):
            self._add_memory(device)
        self.model.minimize(self.period)

    def _add_devices(self) -> None:
        span, start = self.problem.span.tolist(), self.start
        for here in self.problem.on_device:
            self.model.add_no_overlap(
                [self.model.new_fixed_size_interval_var(start[i], span[i], f"run{i}") for i in here]
            )
            for i, j in itertools.permutations(here, 2):
                self.model.add(start[j] + span[j] - start[i] <= self.period)

    def _add_precedences(self) -> None:
        for u, v, ticks in self.problem.edges_of(1):
            gap = int(self.index[u] - self.index[v])
            self.model.add(self.start[v] + gap * self.period >= self.start[u] + ticks)

    def _add_memory(self, device: int) -> None:
        delta = self.problem.memory[:, device]
        changing = [i for i in self.problem.on_device[device] if delta[i]]
        held = int(delta @ self.index)
        for c in changing:
            if delta[c] > 0:
                others = sum(int(delta[i]) * self.orders.before(i, c) for i in changing if i != c)
                self.model.add(held + int(delta[c]) + others <= int(self.problem.capacity[device]))

    def solve(self, num_workers: int, **limits: Any) -> Repetend | None:
        """Return the repetend of least period, or None."""
        solver = cp_solver(workers=num_workers, **limits)
        if solve_interruptibly(solver, self.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        period = int(solver.value(self.period))
        times = np.array([solver.value(s) for s in self.start])
        return Repetend(period, (times + period * (self.index.max() - self.index))[None, :])


def _assignments(problem: PipelineProblem, limit: int) -> Iterator[Ints]:
    """Yield index assignments, those that touch fewer micro-batches first."""
    order = problem.topological_order[::-1].tolist()
    index = np.zeros(problem.num_blocks, np.int64)

    def values(block: int, top: int) -> Iterator[int]:
        """Return the indices that a block may have, those of its successors being known."""
        least = max((int(index[v]) for v in problem.successors[block]), default=0)
        return iter(range(least, top + 1))

    for top in range(limit):
        used, taken = [0] * (top + 1), list[int]()
        tried = [values(order[0], top)]
        while tried:
            if len(taken) == len(tried):
                used[taken.pop()] -= 1
            value = next(tried[-1], None)
            if value is None:
                tried.pop()
                continue
            index[order[len(taken)]] = value
            taken.append(value)
            used[value] += 1
            left = len(order) - len(taken)
            if used.count(0) > left:
                continue  # too few blocks are left to use every index
            if left:
                tried.append(values(order[len(taken)], top))
            else:
                yield index.copy()


def _same_device_chains(problem: PipelineProblem) -> list[tuple[int, int, int]]:
    """Return (u, v, length): the longest chain from u's start to v's end, for u before v on a
    common device.
    """
    ways = longest_ways(problem.topological_order.tolist(), problem.edges_of(1)) + problem.span
    together = {pair for here in problem.on_device for pair in itertools.permutations(here, 2)}
    return [(u, v, int(ways[u, v])) for u, v in together if ways[u, v] >= 0]


def _chain_bound(index: Ints, chains: list[tuple[int, int, int]]) -> int:
    """Smallest period that the chains allow: s_v + span_v - s_u <= P and s_v + P gap >= s_u +
    length - span_v.
    """
    return max((-(-length // (1 + int(index[u] - index[v]))) for u, v, length in chains), default=0)


def _overfull(problem: PipelineProblem, index: Ints) -> bool:
    """Whether the memory held at the start of a repetition already passes a capacity."""
    return bool((problem.memory.T @ index > problem.capacity).any())
