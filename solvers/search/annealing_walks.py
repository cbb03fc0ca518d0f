"""Annealing walks as objects: a compiled walk with its placements, several of them at the same
time, and rows of placements that change step by step.

Rows take a random move each, kept where its value is within a limit: the walk on problems that only
the batch evaluator can value (any objective, peak memory).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.simulator import problem_arrays
from placeopt.model.arrays import Floats, Ints, place_in, stable_order
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.threads import map_threads, num_threads
from placeopt.solvers.search import population_kernels, walk_kernels
from placeopt.solvers.search.walk_kernels import METROPOLIS, MOVES
from placeopt.solvers.search.walk_state import NEVER, Leg, make_state, new_execution
from placeopt.solving.options import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.solvers.search.evaluator import BudgetedEvaluator
    from placeopt.solvers.search.search_space import SearchSpace
    from placeopt.solving.tracker import PlacementTracker

ALL_MOVES = (1.0,) * len(MOVES)

DIRECTED = ("critical", "overtake")
"""Moves that begin where the schedule says that something has to change."""


def move_weights(names: str, focus: float = 1.0) -> Floats:
    """Return the relative frequency of each move: 1 for those named, "all" or some joined by
    commas; `focus` for those of DIRECTED among them.
    """
    wanted = named(names, MOVES, "annealing option moves")
    return np.array([(focus if x in DIRECTED else 1.0) * (x in wanted) for x in MOVES])


class AnnealingWalk:
    """A walk on (device, sequence); see `walk_kernels`.

    Parameters
    ----------
    device : of each op; must satisfy every constraint. sequence : ops in a topological order.
    weights : relative frequency of each of MOVES.
    acceptance : which worse values are accepted: METROPOLIS, THRESHOLD or RECORD.
    """

    def __init__(
        self,
        space: SearchSpace,
        device: Ints,
        sequence: Ints,
        random: Ints,
        weights: Sequence[float] = ALL_MOVES,
        acceptance: int = METROPOLIS,
    ) -> None:
        self.space, self.acceptance = space, acceptance
        self.weigh(weights)
        self.origin = np.array(device, np.int64), np.array(sequence, np.int64)
        self.tally = np.zeros((len(MOVES), 4), np.int64)
        self._state = make_state(space.graph, random, *self.origin)
        self._run = new_execution(problem_arrays(space.problem))
        self.run(0, 0.0, 0.0)

    def weigh(self, weights: Sequence[float] | Floats) -> None:
        """Set the relative frequency of each of MOVES for the steps to come."""
        share = np.asarray(weights, np.float64)
        self._chance = np.cumsum(share / share.sum())

    @property
    def value(self) -> int:
        """Makespan of the current placement in ticks."""
        return int(self._state.value[0])

    @property
    def best_value(self) -> int:
        """Makespan of the best placement of the walk so far, in ticks."""
        return int(self._state.value[1])

    def run(self, steps: int, hot: float, cold: float, target: int = 0) -> int:
        """Walk; return the number of proposals made (fewer than `steps` if the target was reached).

        hot, cold : temperature in ticks at the beginning and the end; 0 accepts what is not worse.
        """
        leg = Leg(int(steps), float(hot), float(cold), int(target), self._chance, self.acceptance)
        return int(walk_kernels.anneal(self.space.graph, self._state, self._run, leg, self.tally))

    def jump(self, device: Ints, sequence: Ints) -> None:
        """Continue from another placement; the best of this walk is kept."""
        self._state.device[:] = device
        self._state.sequence[:] = sequence
        self._state.value[0] = NEVER
        self.run(0, 0.0, 0.0)

    def restart(self, device: Ints, sequence: Ints) -> None:
        """Continue from another placement and forget the best so far."""
        self._state.value[1] = NEVER
        self.jump(device, sequence)

    def best(self) -> tuple[Ints, Ints]:
        """(device, sequence) of the best placement."""
        return self._state.best_device.copy(), self._state.best_sequence.copy()

    def best_placement(self) -> Placement:
        """Return the best placement: its `planned` execution, or where transfers contend its
        execution by `priority`, has the best value.
        """
        device, sequence = self.best()
        if self.space.problem.num_channels:
            return Placement(device, place_in(sequence))
        other = AnnealingWalk(self.space, device, sequence, self._state.random)._state
        order = np.lexsort((other.position, other.finish))
        return Placement.from_starts(device, other.start, order)

    def offer_best(self, tracker: PlacementTracker) -> None:
        """Offer the best placement if it is better than the incumbent."""
        if tracker.value is None or self.best_value < tracker.value:
            tracker.offer(self.best_value, self.best_placement())


class WalkTeam:
    """Several walks that take steps at the same time, on threads; the outcome does not depend on
    how many.
    """

    def __init__(self, walks: Sequence[AnnealingWalk], threads: int | None = None) -> None:
        self.walks = list(walks)
        cores = num_threads() if threads is None else max(1, threads)
        self._workers = min(len(self.walks), cores)

    def run(self, steps: Sequence[int], hot: float, cold: float, target: int = 0) -> int:
        """Let walk i take steps[i] steps; return the number of proposals made in all."""

        def one(work: tuple[AnnealingWalk, int]) -> int:
            walk, count = work
            return walk.run(count, hot, cold, target) if count > 0 else 0

        work = zip(self.walks, steps, strict=False)
        if self._workers == 1:
            return sum(map(one, work))
        return sum(map_threads(one, work, self._workers, "walk"))

    def weigh(self, weights: Floats) -> None:
        """Set the relative frequency of each of MOVES for the steps to come."""
        for walk in self.walks:
            walk.weigh(weights)

    @property
    def tally(self) -> Ints:
        """Proposals of all walks together, by kind of move: see `walk_kernels.anneal`."""
        return np.sum([walk.tally for walk in self.walks], axis=0)

    def report(self, tracker: PlacementTracker, evaluated: int) -> None:
        """Count the proposals that were evaluated, and offer the best placement."""
        tracker.count(evaluated)
        self.leader.offer_best(tracker)

    @property
    def leader(self) -> AnnealingWalk:
        """The walk with the best placement, the first among equals."""
        return min(self.walks, key=lambda walk: walk.best_value)


class MutatedRows:
    """Several placements as rows of homes of units and, where order matters, ranks of ops.

    Parameters
    ----------
    orders : ops of each row in order, read where order matters.
    states : random state of each row, shape (rows, 3).

    Attributes
    ----------
    values : of the rows in ticks, INFEASIBLE where a constraint is broken.
    """

    def __init__(
        self, evaluator: BudgetedEvaluator, homes: Ints, orders: Sequence[Ints], states: Ints
    ) -> None:
        self.evaluator, self.homes, self.states = evaluator, homes, states
        self.ranks = np.zeros((len(homes), 0), np.int64)
        if evaluator.ordered:
            self.ranks = (
                np.stack([place_in(order) for order in orders]) * population_kernels.RANK_GAP
            )
        self.values = self._evaluate(self.homes, self.ranks)

    def step(self, limit: Ints | Floats) -> None:
        """Propose one random move per row and keep those whose value is at most `limit`, one per
        row.
        """
        homes, ranks = self.homes.copy(), self.ranks.copy()
        population_kernels.mutate(self.evaluator.space.graph, homes, ranks, self.states, 1)
        values = self._evaluate(homes, ranks)
        accept = (values <= limit) & (values != INFEASIBLE)
        self.homes[accept], self.ranks[accept], self.values[accept] = (
            homes[accept],
            ranks[accept],
            values[accept],
        )

    def orders(self) -> list[Ints]:
        """Ops of each row in order; empty where order does not matter."""
        return [stable_order(rank) for rank in self.ranks]

    def _evaluate(self, homes: Ints, ranks: Ints) -> Ints:
        devices = self.evaluator.space.devices_of(homes)
        return self.evaluator.values(devices, ranks if self.evaluator.ordered else None)


def order_of(evaluator: BudgetedEvaluator, placement: Placement) -> Ints:
    """Ops of a placement by its ranks, else as its fastest execution starts them; empty where order
    does not matter.
    """
    if not evaluator.ordered:
        return np.zeros(0, np.int64)
    if placement.priority is not None and not evaluator.walkable:
        return stable_order(placement.priority)
    return evaluator.space.sequence_of(placement)
