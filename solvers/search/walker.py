"""One annealing walk as an object: the compiled walk, its placements, and several of them at once."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan import evaluate as evaluation
from placeopt.makespan.evaluate import num_threads
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.search import anneal_kernels, population_kernels
from placeopt.solvers.search.space import ranked
from placeopt.solvers.search.walk import NEVER, make_walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.solvers.search.space import Space

    Ints = NDArray[np.int64]

DEFAULT_WEIGHTS = (1.0,) * len(anneal_kernels.MOVES)


def random_states(rng: np.random.Generator, count: int) -> Ints:
    """Return states of the compiled generators, shape (count, 3); each part is at least 128, as they require."""
    return rng.integers(128, 2**32, (count, 3), dtype=np.int64)


@functools.cache
def warm_up() -> None:
    """Compile the kernels of the searches (or load them from numba's cache), before any clock starts."""
    problem = PlacementProblem.from_edges([[1, 1], [1, 1], [1, 1]], [(0, 1, 1), (1, 2, 1)], name="warm-up")
    evaluation.warm_up()
    # The import is late because `space` needs the walk's types.
    from placeopt.solvers.search.space import Space

    space, states = Space(problem), np.full((2, 3), 200, dtype=np.int64)
    Walker(space, np.zeros(3, dtype=np.int64), space.sequence, states[0]).run(2, 1.0, 1.0)
    homes, ranks = np.zeros((2, 3), dtype=np.int64), np.zeros((2, 3), dtype=np.int64)
    population_kernels.fit(space.graph, homes, states)
    population_kernels.mutate(space.graph, homes, ranks, states, 1)
    half, rows = np.full((3, 2), 0.5), np.zeros((2, 3), dtype=np.int32)
    drawn = population_kernels.sample(np.arange(3), np.cumsum(half, axis=1), states, rows)
    population_kernels.frequencies(drawn, 2)
    population_kernels.surrogate_gradient(half, half, drawn, np.zeros(2), 0.2, 0.01)


class Walker:
    """A walk on (device, sequence); see `anneal_kernels`. Only for problems without contention.

    Parameters
    ----------
    device : of each op; must satisfy every constraint. sequence : ops in a topological order.
    weights : relative frequency of each move in `anneal_kernels.MOVES`.
    """

    def __init__(
        self,
        space: Space,
        device: Ints,
        sequence: Ints,
        random: Ints,
        weights: Sequence[float] = DEFAULT_WEIGHTS,
    ) -> None:
        self.space = space
        share = np.asarray(weights, dtype=np.float64)
        self._chance = np.cumsum(share / share.sum())
        self.origin = np.array(device, dtype=np.int64), np.array(sequence, dtype=np.int64)
        self.tally = np.zeros((len(anneal_kernels.MOVES), 3), dtype=np.int64)
        self._walk = make_walk(
            space.graph, random, np.asarray(device, dtype=np.int64), np.asarray(sequence, dtype=np.int64)
        )
        anneal_kernels.settle(space.graph, self._walk)

    @property
    def value(self) -> int:
        """Makespan of the current placement in ticks."""
        return int(self._walk.value[0])

    @property
    def best_value(self) -> int:
        """Makespan of the best placement of the walk so far, in ticks."""
        return int(self._walk.value[1])

    def run(self, steps: int, hot: float, cold: float, target: int = 0) -> int:
        """Walk; return the number of proposals made (fewer than `steps` if the target was reached).

        hot, cold : temperature in ticks at the beginning and the end; 0 accepts what is not worse.
        """
        return int(
            anneal_kernels.anneal(
                self.space.graph, self._walk, self._chance, steps, float(hot), float(cold), target, self.tally
            )
        )

    def jump(self, device: Ints, sequence: Ints) -> None:
        """Continue from another placement; the best of this walk is kept."""
        self._walk.device[:] = device
        self._walk.sequence[:] = sequence
        anneal_kernels.settle(self.space.graph, self._walk)

    def restart(self, device: Ints, sequence: Ints) -> None:
        """Continue from another placement and forget the best so far."""
        self._walk.value[1] = NEVER
        self.jump(device, sequence)

    def best(self) -> tuple[Ints, Ints]:
        """(device, sequence) of the best placement."""
        return self._walk.best_device.copy(), self._walk.best_sequence.copy()

    def best_placement(self) -> Placement:
        """Return the best placement, ranked by start: its `planned` execution has the best value."""
        device, sequence = self.best()
        other = make_walk(self.space.graph, self._walk.random, device, sequence)
        anneal_kernels.settle(self.space.graph, other)
        return ranked(device, other.start, other.finish, Context.inverse(sequence))


class Crew:
    """Several walkers that take steps at the same time, on threads; the outcome does not depend on how many."""

    def __init__(self, walkers: Sequence[Walker], threads: int | None = None) -> None:
        self.walkers = list(walkers)
        workers = min(len(self.walkers), num_threads() if threads is None else max(1, threads))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="walk") if workers > 1 else None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def run(self, steps: Sequence[int], hot: float, cold: float, target: int = 0) -> int:
        """Let walker i take steps[i] steps; return the number of proposals made in all."""

        def one(walker: Walker, count: int) -> int:
            return walker.run(count, hot, cold, target) if count > 0 else 0

        if self._pool is None:
            return sum(map(one, self.walkers, steps))
        return sum(self._pool.map(one, self.walkers, steps))

    @property
    def leader(self) -> Walker:
        """The walker with the best placement, the first among equals."""
        return min(self.walkers, key=lambda walker: walker.best_value)
