"""What every heuristic shares: its view of a problem, and the way candidates become a Result.

A heuristic proposes placements; the driver refuses instances that provably have none, repairs what a list
scheduler could not fit into memory, evaluates every candidate, and keeps the best. No heuristic grades itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.makespan.bounds.feasibility import infeasible_reason
from placeopt.makespan.evaluate import INFEASIBLE, best_queue, evaluate_batch, finish
from placeopt.model.arrays import frozen
from placeopt.model.placement import Placement
from placeopt.model.units import group_units
from placeopt.solvers.heuristics import kernels, ranks
from placeopt.solvers.heuristics.repair import pack, repair
from placeopt.solving.registry import require_objective
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.model.units import Units
    from placeopt.solving.solver import OnProgress

INFLATIONS = (0.0, 0.125, 0.25, 0.5, 1.0)
"""Shares of an op's tensors that count as resident when the limit is on the dynamic peak, tried in order."""

BATCH_STEPS = 400_000
"""Ops and edges per batch of candidates, about 0.1 s of evaluation."""


@dataclass(frozen=True, eq=False)
class View:
    """A problem as heuristics see it: graph arrays, units that share a device, mean costs.

    Attributes
    ----------
    inflation : share of the tensors that each op holds (its outputs and its inputs) added to its resident
        bytes. With 1 the static limit implies the peak limit; smaller shares are guesses, always evaluated.
    """

    problem: PlacementProblem
    inflation: float = 0.0

    @cached_property
    def graph(self) -> kernels.GraphArrays:
        """The arrays that kernels take."""
        problem = self.problem
        return kernels.GraphArrays(
            problem.compute, problem.topological_order, *problem.predecessors, *problem.successors,
            problem.transfer, problem.link_class, problem.channel,
        )  # fmt: skip

    @cached_property
    def units(self) -> Units:
        """Colocation groups, and single ops otherwise, numbered by their first op."""
        units = self.problem.units
        return units if self.inflation == 0 else group_units(units.unit, self.op_bytes, self.problem.compute >= 0, units.capacity)

    @cached_property
    def op_bytes(self) -> NDArray[np.int64]:
        """Bytes charged for each op, shape (num_ops,)."""
        problem = self.problem
        held = np.zeros(problem.num_ops, dtype=np.int64)
        if self.inflation > 0 and problem.num_tensors:
            np.add.at(held, problem.producer, problem.tensor_bytes)
            np.add.at(held, problem.consumer, problem.tensor_bytes[problem.edge_tensor])
        return frozen(problem.resident + (held * self.inflation).astype(np.int64))

    @cached_property
    def mean_compute(self) -> NDArray[np.float64]:
        """Mean ticks of each op over its compatible devices, shape (num_ops,)."""
        compute = self.problem.compute
        usable = compute >= 0
        return np.asarray(np.where(usable, compute, 0).sum(axis=1, dtype=np.float64) / usable.sum(axis=1))

    @cached_property
    def mean_transfer(self) -> NDArray[np.float64]:
        """Mean ticks of each tensor over the ordered pairs of different devices, shape (num_tensors,)."""
        problem = self.problem
        k = problem.num_devices
        if k == 1 or not problem.num_tensors:
            return np.zeros(problem.num_tensors)
        classes = problem.link_class[~np.eye(k, dtype=np.bool_)]
        share = np.bincount(classes, minlength=problem.transfer.shape[1]) / len(classes)
        return np.asarray(problem.transfer @ share)

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """Place of each op in the topological order, shape (num_ops,)."""
        return self.inverse(self.problem.topological_order)

    @cached_property
    def unpinned(self) -> NDArray[np.int64]:
        """No unit is fixed beforehand, shape (num_units,)."""
        return np.full(len(self.units.bytes), -1, dtype=np.int64)

    @cached_property
    def contended(self) -> bool:
        """Whether any two devices are joined by a channel."""
        return self.problem.num_channels > 0

    def upward_rank(self, *, communication: bool = True) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """b-levels with mean costs and the next op on each longest path; static levels without communication."""
        delay = self.mean_transfer if communication else np.zeros(self.problem.num_tensors)
        rank, following = ranks.upward_rank(self.graph, self.mean_compute, delay)
        return rank, following

    def by_decreasing(self, key: NDArray[Any]) -> NDArray[np.int64]:
        """Ops sorted by decreasing `key`, ties in topological order."""
        return np.lexsort((self.position, -key)).astype(np.int64)

    @staticmethod
    def inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position of each op in `order`."""
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        return position

    def in_order(
        self,
        sequence: NDArray[np.int64],
        *,
        bias: NDArray[np.float64] | None = None,
        pinned: NDArray[np.int64] | None = None,
        insertion: bool = True,
        contention: bool = False,
    ) -> kernels.Plan:
        """Schedule ops in a given topological order: see `kernels.schedule_in_order`."""
        plan: kernels.Plan = kernels.schedule_in_order(
            self.graph, self.units, sequence, np.zeros((0, 0)) if bias is None else bias,
            self.unpinned if pinned is None else pinned, insertion, contention,
        )  # fmt: skip
        return plan

    def by_time(self, position: NDArray[np.int64]) -> kernels.Plan:
        """Schedule ops earliest start first: see `kernels.schedule_by_time`."""
        plan: kernels.Plan = kernels.schedule_by_time(self.graph, self.units, position, self.unpinned)
        return plan

    def ranked(self, plan: kernels.Plan) -> Placement:
        """Turn a schedule into devices and ranks, ops that take no time first among equal starts."""
        order = np.lexsort((self.position, plan.finish))
        return Placement.from_starts(plan.device, plan.start, order)

    def list_scheduled(self, device: NDArray[np.int64]) -> Placement:
        """Rank the ops of a given assignment by a list schedule: highest b-level first, with insertion."""
        pinned = self.unpinned.copy()
        pinned[self.units.unit] = device
        rank = ranks.placed_rank(self.graph, pinned[self.units.unit])
        return self.ranked(self.in_order(self.by_decreasing(rank), pinned=pinned, contention=self.contended))

    def fitted(self, plan: kernels.Plan) -> Placement | None:
        """Return the plan's placement, repaired where memory overflowed; None if repair found no way."""
        if not plan.overflow:
            return self.ranked(plan)
        return self.repaired(plan.device)

    def repaired(self, device: NDArray[np.int64]) -> Placement | None:
        """Move ops of `device` until every constraint holds, and rank them; None if no way was found."""
        home = repair(self.units, self.unit_first(device), self.unit_work)
        home = self.packing if home is None else home
        return None if home is None else self.list_scheduled(home[self.units.unit])

    @cached_property
    def packing(self) -> NDArray[np.int64] | None:
        """Any assignment of units that fits, None if none was found."""
        return pack(self.units)[0]

    def unit_first(self, values: NDArray[Any]) -> NDArray[Any]:
        """Value of the first op of each unit, shape (num_units,)."""
        _, first = np.unique(self.units.unit, return_index=True)
        return values[first]

    @cached_property
    def unit_work(self) -> NDArray[np.float64]:
        """Ticks of each unit on each device, infinity where it cannot run, shape (num_units, num_devices)."""
        compute = self.problem.compute
        work = np.zeros((len(self.units.bytes), compute.shape[1]))
        np.add.at(work, self.units.unit, np.where(compute >= 0, compute, np.inf))
        return work


def run(
    solver: str,
    problem: PlacementProblem,
    budget: Budget,
    propose: Callable[[View, np.random.Generator], Iterable[Placement | None]],
    *,
    seed: int,
    initial: Placement | None,
    on_progress: OnProgress | None,
    inflations: tuple[float, ...] = INFLATIONS,
    batch: int = 64,
    message: str = "",
) -> Result[Placement]:
    """Evaluate what `propose` yields and return the best as a Result.

    Parameters
    ----------
    propose : called with a view of the problem and a generator; yields placements, None where it failed.
    initial : a placement to be at least as good as.
    inflations : for memory="peak", the shares of tensor bytes counted as resident, tried until one works.
    batch : candidates evaluated at once.
    message : a remark for the Result.

    Raises
    ------
    InputError
        If the objective is not the makespan.
    """
    require_objective(solver, problem, ("makespan",))
    tracker: Tracker[Placement] = Tracker(solver, problem, budget, seed=seed, on_progress=on_progress)
    reason = infeasible_reason(problem)
    if reason:
        return tracker.result(status="infeasible", message=reason)
    with tracker:
        if initial is not None:
            value, _ = best_queue(problem, initial)
            if value != INFEASIBLE:
                tracker.offer(value, initial)
        found = _try_all(tracker, problem, propose, seed, inflations if problem.memory == "peak" else (0.0,), batch)
        if not found and tracker.solution is None:
            message = message or _why_nothing(problem)
    incumbent = tracker.solution
    if incumbent is None:
        full = pack(problem.units)[1]
        if full:
            message = "the ops cannot be packed into the capacities (proved by an integer program)"
        return tracker.result(status="infeasible" if full else "unknown", message=message)
    if incumbent.priority is None:  # a sample: give it ranks; it keeps its value, as fifo ignores them
        incumbent = View(problem).list_scheduled(incumbent.device)
    return finish(tracker, incumbent, message=message)


def _try_all(
    tracker: Tracker[Placement],
    problem: PlacementProblem,
    propose: Callable[[View, np.random.Generator], Iterable[Placement | None]],
    seed: int,
    inflations: tuple[float, ...],
    batch: int,
) -> bool:
    """Run `propose` with more and more bytes reserved for tensors until a candidate is valid."""
    found = False
    # Batches of large problems are small, so that a time limit is noticed.
    size = max(2, min(batch, BATCH_STEPS // (problem.num_ops + problem.num_edges)))
    for inflation in inflations:
        rng = np.random.default_rng(seed)
        for group in _batches(propose(View(problem, inflation), rng), size):
            found |= offer_all(tracker, problem, group)
            if tracker.stop():
                return found
        if found:
            break
    return found


def _batches(candidates: Iterable[Placement | None], size: int) -> Iterator[list[Placement]]:
    group: list[Placement] = []
    for candidate in candidates:
        if candidate is not None:
            group.append(candidate)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def offer_all(tracker: Tracker[Placement], problem: PlacementProblem, group: list[Placement]) -> bool:
    """Evaluate candidates in every execution mode they allow; return whether any is valid."""
    group = group[: tracker.evaluations_left]
    if not group:
        return False
    devices = np.stack([placement.device for placement in group])
    values = evaluate_batch(problem, devices)
    if all(placement.priority is not None for placement in group):
        ranks = np.stack([placement.priority for placement in group if placement.priority is not None])
        for queue in ("priority", "planned"):
            values = np.minimum(values, evaluate_batch(problem, devices, ranks, queue))
    tracker.count(len(group))
    best = int(values.argmin())
    if values[best] == INFEASIBLE:
        return False
    tracker.offer(int(values[best]), group[best])
    return True


def _why_nothing(problem: PlacementProblem) -> str:
    if problem.memory == "peak":
        return "no placement found keeps the peak memory of every device within its capacity"
    return "no placement found fits the capacities, and none was proved impossible"
