"""Simulated annealing on devices and order, with moves of clusters and of steps of the critical path.

Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 1983: a proposal that is worse by
x is accepted with probability exp(-x / T), T falling geometrically. With expensive communication single ops
hardly ever move alone, so most moves take a connected cluster along.

Without contention the walk is compiled and evaluates incrementally (`anneal_kernels`); several walks run at
once, in cycles: after each they all go on from the best placement, reheated. Other objectives (period, a
measurement) and contended or peak-memory problems are walked in lockstep on the batch evaluator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.makespan.evaluate import INFEASIBLE
from placeopt.model.errors import InputError
from placeopt.solvers.search import population_kernels
from placeopt.solvers.search.objective import Measure, Objective
from placeopt.solvers.search.starts import check_start, starting_placements
from placeopt.solvers.search.walker import Crew, Walker, random_states

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

CYCLE_STEPS = 150
"""Steps of a cycle per op: longer budgets are split into more cycles, up to MAX_CYCLES."""

MAX_CYCLES = 400
SCATTER = 0.5
"""Share of the cycles, the first ones, that begin where the walk began instead of at the best placement."""

REHEAT = (1.0, 0.5, 0.25)
"""Share of the initial temperature at which the cycles begin, in turn."""

CHUNK_WORK = 400_000
"""Ops and edges replayed between two looks at the clock, about ten milliseconds."""

STEPS_PER_WALK = 10_000
"""With fewer evaluations than this for each of two walks, one does them all."""

STEPS_PER_LANE = 400
LANES = 8
"""Lockstep: evaluations that justify another state, and the most states per walk."""


@dataclass(frozen=True)
class Annealing:
    """Simulated annealing on devices and order; incremental where transfers do not contend.

    Parameters
    ----------
    walks : walks at the same time (on threads); fewer where the budget of evaluations is small.
    hot, cold : first and last temperature, as a share of the mean work of a device.
    start : solver whose placement the walks begin from; "random" for none.
    objective : callable that measures a placement (devices, shape (num_ops,)) in seconds, instead of the makespan.
    threads : None for one per core; the result does not depend on it.
    """

    walks: int = 2
    hot: float = 0.05
    cold: float = 1e-5
    start: str = "edge-zeroing"
    objective: Measure | None = None
    threads: int | None = None

    name: ClassVar[str] = "annealing"

    def __post_init__(self) -> None:
        if self.walks < 1:
            raise InputError(f"annealing: walks must be at least 1, received {self.walks}")
        if not 0 < self.cold <= self.hot < math.inf:
            raise InputError(f"annealing: expected 0 < cold <= hot, received cold={self.cold}, hot={self.hot}")
        check_start(self.name, self.start)

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Anneal until the budget is spent; never worse than `initial` and the start."""
        objective = Objective(
            self.name, problem, budget, seed=seed, measure=self.objective, threads=self.threads,
            on_progress=on_progress,
        )  # fmt: skip
        reason = objective.impossible()
        if reason is not None:
            return objective.tracker.result(status="infeasible", message=reason)
        rng = np.random.default_rng(seed)
        with objective.tracker:
            starts = starting_placements(objective, self.start, initial, rng)
            if starts and not objective.tracker.stop():
                improve(objective, starts, rng, walks=self.walks, hot=self.hot, cold=self.cold)
            objective.tracker.stop()
        return objective.finish()


def improve(
    objective: Objective,
    starts: list[Placement],
    rng: np.random.Generator,
    *,
    walks: int = 2,
    hot: float = 0.05,
    cold: float = 1e-5,
    cycles: int | None = None,
) -> None:
    """Spend the rest of the budget on annealing from `starts`, compiled where the problem allows it.

    Parameters
    ----------
    walks, hot, cold : as in `Annealing`. cycles : number of cycles of the compiled walk, None for its own choice.
    """
    if objective.walkable:
        walk(objective, starts, rng, walks, hot, cold, cycles)
    else:
        lockstep(objective, starts, rng, walks, hot, cold)


def walk(
    objective: Objective,
    starts: list[Placement],
    rng: np.random.Generator,
    walks: int,
    hot: float,
    cold: float,
    cycles: int | None,
) -> None:
    """Walk in cycles; the walks meet at the best placement after each."""
    tracker, space = objective.tracker, objective.space
    walks = int(np.clip(tracker.evaluations_left // STEPS_PER_WALK, 1, walks))
    walkers = []
    for i, random in enumerate(random_states(rng, walks)):
        placement = starts[i % len(starts)]
        walkers.append(Walker(space, placement.device, space.sequence_of(placement), random))
    with Crew(walkers, objective.threads) as crew:
        anneal_in_cycles(objective, crew, hot * space.mean_load, cold * space.mean_load, cycles)


def lockstep(
    objective: Objective, starts: list[Placement], rng: np.random.Generator, walks: int, hot: float, cold: float
) -> None:
    """Walk several states at once, one proposal each per batch."""
    tracker, space = objective.tracker, objective.space
    lanes = int(np.clip(tracker.evaluations_left // STEPS_PER_LANE, 1, LANES * walks))
    if objective.measure is not None:
        lanes = 1  # a measurement is dear: every one is used by the next step
    begin = [starts[i % len(starts)] for i in range(lanes)]
    homes = np.stack([space.homes_of(placement.device) for placement in begin])
    ranks = np.zeros((lanes, 0), dtype=np.int64)
    if objective.ordered:
        ranks = np.stack([rank_of(objective, placement) for placement in begin]) * population_kernels.RANK_GAP
    current = objective.values(space.devices_of(homes), ranks if objective.ordered else None)
    states = random_states(rng, lanes)
    # A measured objective has its own scale: that of its values.
    scale = space.mean_load if objective.measure is None else float(tracker.value or 1)
    start_time, start_count = tracker.elapsed, tracker.evaluations
    while not tracker.stop():
        temperature = scale * hot * (cold / hot) ** _progress(objective, start_time, start_count)
        new_homes, new_ranks = homes.copy(), ranks.copy()
        population_kernels.mutate(space.graph, new_homes, new_ranks, states, 1)
        values = objective.values(space.devices_of(new_homes), new_ranks if objective.ordered else None)
        limit = np.minimum(current, 2**61) - temperature * np.log(rng.random(lanes) + 1e-300)
        accept = (values <= limit) & (values != INFEASIBLE)
        homes[accept], ranks[accept], current[accept] = new_homes[accept], new_ranks[accept], values[accept]


def rank_of(objective: Objective, placement: Placement) -> NDArray[np.int64]:
    """Ranks of a placement: its own, or the order in which its fastest execution starts the ops."""
    if placement.priority is not None:
        order = np.argsort(placement.priority, kind="stable")
    else:
        order = objective.space.sequence_of(placement)
    return objective.space.view.inverse(order.astype(np.int64))


def anneal_in_cycles(objective: Objective, crew: Crew, hot: float, cold: float, cycles: int | None = None) -> None:
    """Anneal the walkers until the budget is spent.

    Parameters
    ----------
    hot, cold : temperatures in ticks of the first cycle.
    cycles : number of cycles; None for what the number of steps suggests.
    """
    tracker, problem = objective.tracker, objective.problem
    walks = len(crew.walkers)
    chunk = int(np.clip(CHUNK_WORK // (problem.num_ops + problem.num_edges), 4, 4096))
    by_count = tracker.budget.evaluations is not None
    total = tracker.evaluations_left if by_count else 2**62
    began, seconds = tracker.elapsed, tracker.seconds_left
    done, share, before, cycle = 0, 0.0, 0.0, 0
    target = max(tracker.budget.target or 0, tracker.lower_bound)
    if by_count and cycles is None:
        cycles = _cycles(total / walks, problem.num_ops)
    while not tracker.stop() and share < 1.0 and done < total:
        position = share * (cycles or 1)
        if cycles is not None and int(position) > cycle:
            cycle = int(position)
            best = crew.leader.best()
            for walker in crew.walkers:
                walker.jump(*(walker.origin if cycle < SCATTER * cycles else best))
        top = max(cold, hot * REHEAT[cycle % len(REHEAT)])
        left = min(total - done, tracker.evaluations_left)
        steps = [min(chunk, left // walks)] * walks if left >= walks else [1] * left
        ahead = sum(steps) / total if by_count else share - before
        before = share
        phase = position - cycle
        first, last = (top * (cold / top) ** min(1.0, x) for x in (phase, phase + ahead * (cycles or 1)))
        made = crew.run(steps, first, last, target)
        done += made
        tracker.count(made)
        leader = crew.leader
        if tracker.value is None or leader.best_value < tracker.value:
            tracker.offer(leader.best_value, leader.best_placement())
        used = (tracker.elapsed - began) / seconds if seconds > 0 else 1.0
        if by_count:
            # The count decides, so that the walk is reproducible, unless the clock will clearly come first.
            share = done / total if 4 * done >= used * total else used
        else:
            share = used
        if cycles is None:
            cycles = _cycles(done / max(share, 1e-9) / walks, problem.num_ops)
        if made < sum(steps):
            return  # the target is reached


def _cycles(steps: float, num_ops: int) -> int:
    """Return the number of cycles for a walk of so many steps."""
    return int(np.clip(steps / (CYCLE_STEPS * num_ops), 1, MAX_CYCLES))


def _progress(objective: Objective, start_time: float, start_count: int) -> float:
    """Share of the budget used since a moment, in [0, 1]."""
    tracker = objective.tracker
    used = 0.0
    if tracker.budget.seconds is not None:
        room = tracker.budget.seconds - start_time
        used = (tracker.elapsed - start_time) / room if room > 0 else 1.0
    if tracker.budget.evaluations is None:
        return min(1.0, used)
    room = tracker.budget.evaluations - start_count
    share = (tracker.evaluations - start_count) / room if room > 0 else 1.0
    return min(1.0, share if 4 * share >= used else used)
