"""Simulated annealing on devices and order, with moves of clusters and of steps of the critical path.

A proposal that is worse by x is accepted with probability exp(-x / T), T falling geometrically. With expensive
communication single ops hardly ever move alone, so most moves take a connected cluster along.

Without contention the walk is compiled and evaluates incrementally (`walk_kernels`); several walks run at
once, in cycles: after each they all go on from the best placement, reheated. Other objectives (period, a
measurement) and contended or peak-memory problems are walked in lockstep on the batch evaluator.

References
----------
S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing", Science 220, 1983.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.random_bits import random_states
from placeopt.solvers.search.annealing_walks import AnnealingWalk, WalkTeam, warm_up
from placeopt.solvers.search.evaluator import BudgetedEvaluator, Measure
from placeopt.solvers.search.mutated_rows import MutatedRows, order_of
from placeopt.solvers.search.starting_points import check_start, starting_placements
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

CYCLE_STEPS = 150
"""Steps of a cycle per op: longer budgets are split into more cycles, up to MAX_CYCLES."""

MAX_CYCLES = 400
SCATTER = 0.5
"""Share of the cycles, the first ones, that begin where the walk began instead of at the best placement."""

REHEAT = (1.0, 0.5, 0.25)
"""Share of the initial temperature at which the cycles begin, in turn."""

STEPS_PER_WALK = 10_000
"""With fewer evaluations than this for each of two walks, one does them all."""

STEPS_PER_LANE = 400
LANES = 8
"""Lockstep: evaluations that justify another state, and the most states per walk."""


@dataclass(frozen=True)
class GeometricCooling:
    """Temperature that falls from `hot` to `cold` by a constant factor per step."""

    hot: float
    cold: float

    def at(self, progress: float) -> float:
        """Temperature after a share of the steps."""
        return self.hot * (self.cold / self.hot) ** progress

    def scaled(self, scale: float) -> GeometricCooling:
        """Return the same cooling in other units."""
        return GeometricCooling(self.hot * scale, self.cold * scale)


@dataclass(frozen=True)
class Annealing(SearchSolver):
    """Simulated annealing on devices and order; incremental where transfers do not contend."""

    name: ClassVar[str] = "annealing"
    endless: ClassVar[bool] = True

    walks: int = option(2, low=1, meaning="walks at the same time (on threads); fewer where evaluations are few")
    hot: float = option(0.05, above=0, meaning="first temperature, as a share of the mean work of a device")
    cold: float = option(1e-5, above=0, meaning="last temperature, likewise")
    start: str = option("edge-zeroing", meaning="solver whose placement the walks begin from; 'random' for none")
    measure: Measure | None = option(None, meaning="callable: devices to seconds, instead of the problem's objective")
    threads: int | None = option(None, meaning="threads, one per core by default; the result does not depend on it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cold <= self.hot < math.inf:
            raise InputError(f"annealing: expected 0 < cold <= hot, received cold={self.cold}, hot={self.hot}")
        check_start(self.name, self.start)

    @staticmethod
    def warm_up() -> None:
        """Compile the kernels before the clock starts."""
        warm_up()

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Anneal until the budget is spent."""
        evaluator = BudgetedEvaluator(tracker, measure=self.measure, threads=self.threads)
        rng = tracker.rng()
        starts = starting_placements(evaluator, self.start, rng)
        if starts and not tracker.stop():
            improve(evaluator, starts, rng, GeometricCooling(self.hot, self.cold), walks=self.walks)
        evaluator.conclude()


def improve(
    evaluator: BudgetedEvaluator,
    starts: list[Placement],
    rng: np.random.Generator,
    cooling: GeometricCooling,
    *,
    walks: int = 2,
    cycles: int | None = None,
) -> None:
    """Spend the rest of the budget on annealing from `starts`, compiled where the problem allows it.

    Parameters
    ----------
    cooling : temperatures as shares of the mean work of a device.
    walks : walks at the same time. cycles : number of cycles of the compiled walk, None for its own choice.
    """
    if not evaluator.walkable:
        lockstep(evaluator, starts, rng, cooling, walks)
        return
    tracker, space = evaluator.tracker, evaluator.space
    walks = int(np.clip(tracker.evaluations_left // STEPS_PER_WALK, 1, walks))
    begun = []
    for i, random in enumerate(random_states(rng, walks)):
        placement = starts[i % len(starts)]
        begun.append(AnnealingWalk(space, placement.device, space.sequence_of(placement), random))
    with WalkTeam(begun, evaluator.threads) as team:
        anneal_in_cycles(evaluator, team, cooling.scaled(space.mean_load), cycles)


def lockstep(
    evaluator: BudgetedEvaluator,
    starts: list[Placement],
    rng: np.random.Generator,
    cooling: GeometricCooling,
    walks: int,
) -> None:
    """Walk several states at once, one proposal each per batch."""
    tracker, space = evaluator.tracker, evaluator.space
    lanes = int(np.clip(tracker.evaluations_left // STEPS_PER_LANE, 1, LANES * walks))
    if evaluator.measure is not None:
        lanes = 1  # a measurement is dear: every one is used by the next step
    begin = [starts[i % len(starts)] for i in range(lanes)]
    homes = np.stack([space.homes_of(placement.device) for placement in begin])
    rows = MutatedRows(evaluator, homes, [order_of(evaluator, p) for p in begin], random_states(rng, lanes))
    # Measurements have a scale of their own: that of their values.
    cooling = cooling.scaled(space.mean_load if evaluator.measure is None else float(tracker.value or 1))
    start_time, start_count = tracker.elapsed, tracker.evaluations
    while not tracker.stop():
        temperature = cooling.at(_progress(tracker, start_time, start_count))
        # Metropolis: accept what is worse by x with probability exp(-x / temperature).
        rows.step(np.minimum(rows.values, 2**61) - temperature * np.log(rng.random(lanes) + 1e-300))


def anneal_in_cycles(
    evaluator: BudgetedEvaluator, team: WalkTeam, cooling: GeometricCooling, cycles: int | None = None
) -> None:
    """Anneal the walks until the budget is spent; they meet at the best placement after each cycle.

    Parameters
    ----------
    cooling : temperatures in ticks of the first cycle.
    cycles : number of cycles; None for what the number of steps suggests.
    """
    tracker, num_ops = evaluator.tracker, evaluator.problem.num_ops
    walks = len(team.walks)
    by_count = tracker.budget.evaluations is not None
    total = tracker.evaluations_left if by_count else 2**62
    began, seconds = tracker.elapsed, tracker.seconds_left
    done, share, before, cycle = 0, 0.0, 0.0, 0
    if by_count and cycles is None:
        cycles = _cycles(total / walks, num_ops)
    while not tracker.stop() and share < 1.0 and done < total:
        position = share * (cycles or 1)
        if cycles is not None and int(position) > cycle:
            cycle = int(position)
            best = team.leader.best()
            for walk in team.walks:
                walk.jump(*(walk.origin if cycle < SCATTER * cycles else best))
        reheated = GeometricCooling(max(cooling.cold, cooling.hot * REHEAT[cycle % len(REHEAT)]), cooling.cold)
        left = min(total - done, tracker.evaluations_left)
        steps = [min(evaluator.chunk, left // walks)] * walks if left >= walks else [1] * left
        ahead = sum(steps) / total if by_count else share - before
        before = share
        phase = position - cycle
        first, last = (reheated.at(min(1.0, x)) for x in (phase, phase + ahead * (cycles or 1)))
        made = team.run(steps, first, last, evaluator.target)
        done += made
        team.report(tracker, made)
        used = (tracker.elapsed - began) / seconds if seconds > 0 else 1.0
        # The count decides, so that the walk is reproducible, unless the clock will clearly come first.
        share = done / total if by_count and 4 * done >= used * total else used
        if cycles is None:
            cycles = _cycles(done / max(share, 1e-9) / walks, num_ops)
        if made < sum(steps):
            return  # the target is reached


def _cycles(steps: float, num_ops: int) -> int:
    """Return the number of cycles for a walk of so many steps."""
    return int(np.clip(steps / (CYCLE_STEPS * num_ops), 1, MAX_CYCLES))


def _progress(tracker: Tracker[Placement], start_time: float, start_count: int) -> float:
    """Share of the budget used since a moment, in [0, 1]."""
    used = 0.0
    if tracker.budget.seconds is not None:
        room = tracker.budget.seconds - start_time
        used = (tracker.elapsed - start_time) / room if room > 0 else 1.0
    if tracker.budget.evaluations is None:
        return min(1.0, used)
    room = tracker.budget.evaluations - start_count
    share = (tracker.evaluations - start_count) / room if room > 0 else 1.0
    return min(1.0, share if 4 * share >= used else used)
