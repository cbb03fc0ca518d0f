"""A placement that keeps the limit on peak memory, where those of heuristics and chance break it.

It descends on the bytes that devices hold beyond their capacities at their peaks, added up, in
`planned` or `priority` execution. A move takes one op and all that share its device to another
device, or the op to another place in the order of all, between what it waits for and what waits for
it; every other one begins at a device that holds too much. What is no worse is taken: most moves
change nothing, and the way down leads across plateaus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.makespan.evaluate import evaluate
from placeopt.model.arrays import Flags, Ints, place_in
from placeopt.model.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.random import Generator

    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.search.search_space import SearchSpace
    from placeopt.solving.tracker import PlacementTracker


class _State(NamedTuple):
    homes: Ints  # (num_units,) device
    order: Ints  # (num_ops,) topological
    bytes: int  # beyond the capacities
    full: Flags  # (num_devices,) whether it holds too much


def descend(steps: Iterator[Placement | None], tracker: PlacementTracker) -> Placement | None:
    """Go on with a `descent` until it ends, the budget does, or a placement is known; return what
    was found. A step is an evaluation.
    """
    for found in steps:
        if found is not None or tracker.stop() or tracker.solution is not None:
            return found
        tracker.count()
    return None


def descent(space: SearchSpace, rng: Generator) -> Iterator[Placement | None]:
    """Yield None before every step, and in the end a placement that keeps every capacity."""
    problem = space.problem
    homes, order = space.chunk_homes(), problem.topological_order
    if homes is None:
        homes = problem.units.allowed.argmax(axis=1)
    state = min(_executed(problem, homes, order), key=lambda state: state.bytes)
    while state.bytes > 0:
        yield None
        op = int(rng.integers(problem.num_ops))
        if rng.random() < 0.5:
            op = int(rng.choice(np.flatnonzero(state.full[space.devices_of(state.homes)])))
        if problem.num_devices > 1 and rng.random() < 0.5:
            moved = _elsewhere(problem, state.homes, op, rng), state.order
        else:
            moved = state.homes, _sooner_or_later(problem, state.order, op, rng)
        found = (x for x in _executed(problem, *moved) if x.bytes <= state.bytes)
        state = next(found, state)
    yield Placement(space.devices_of(state.homes), place_in(state.order))


def _executed(problem: PlacementProblem, homes: Ints, order: Ints) -> Iterator[_State]:
    placement = Placement(homes[problem.units.unit], place_in(order))
    for queue in ("planned", "priority"):
        evaluation = evaluate(problem, placement, queue, check=False)
        over = evaluation.peak_memory - problem.capacity
        yield _State(homes, order, sum(np.maximum(0, over).tolist()), over > 0)


def _elsewhere(problem: PlacementProblem, homes: Ints, op: int, rng: Generator) -> Ints:
    moved, unit = homes.copy(), problem.units.unit[op]
    moved[unit] = rng.choice(np.flatnonzero(problem.units.allowed[unit]))
    return moved


def _sooner_or_later(problem: PlacementProblem, order: Ints, op: int, rng: Generator) -> Ints:
    place = place_in(order)
    before = place[problem.edge_source[problem.consumer == op]]
    after = place[problem.consumer[problem.edge_source == op]]
    first, end = int(before.max(initial=-1)) + 1, int(after.min(initial=len(order)))
    return np.insert(np.delete(order, place[op]), rng.integers(first, end), op)
