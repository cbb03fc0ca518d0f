"""Where a search starts: the caller's placement, a heuristic, or chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.evaluate import INFEASIBLE
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.solvers.search.space import distinct
from placeopt.solving.registry import make_solver, specs

if TYPE_CHECKING:
    from placeopt.solvers.search.objective import Objective

RANDOM = "random"
"""Name of the start from scratch."""

ATTEMPTS = 16
"""Random placements tried, at most, to find one that satisfies every constraint."""


def check_start(solver: str, start: str) -> None:
    """Refuse a start that is no solver name.

    Raises
    ------
    InputError
        With the names that are known.
    """
    if start != RANDOM and start not in specs("placement"):
        known = ", ".join(sorted(specs("placement")))
        raise InputError(f"{solver}: start must be 'random' or the name of a solver ({known}), received '{start}'")


def starting_placements(
    objective: Objective, start: str, initial: Placement | None, rng: np.random.Generator
) -> list[Placement]:
    """Evaluate the placements to start from, best first; at least one unless none was found.

    Parameters
    ----------
    start : solver that proposes a start, at most a quarter of the budget; "random" for none.
    initial : the caller's placement; one that breaks a constraint is not used.
    """
    found: list[tuple[int, Placement]] = []

    def consider(placement: Placement) -> None:
        if objective.tracker.evaluations_left > 0:
            value = objective.value_of(placement)
            if value != INFEASIBLE:
                found.append((value, placement))

    if initial is not None:
        if len(initial.device) != objective.problem.num_ops:
            raise InputError(
                f"initial: expected a device for each of {objective.problem.num_ops} ops, "
                f"received {len(initial.device)}"
            )
        if objective.space.feasible(initial.device[None, :].astype(np.int32))[0]:
            consider(initial)
    if start != RANDOM:
        proposed = _heuristic(objective, start)
        if proposed is not None:
            value, placement = proposed
            found.append((value, placement)) if value is not None else consider(placement)
    if not found:
        for placement in _fallbacks(objective, rng):
            consider(placement)
            if found or objective.tracker.stop():
                break
    if not found and objective.tracker.evaluations_left > 0 and objective.problem.objective == "makespan":
        # Peak memory: only the heuristics reserve room for tensors.
        proposed = _heuristic(objective, "etf")
        if proposed is not None:
            consider(proposed[1])
    found.sort(key=lambda pair: pair[0])
    return distinct(placement for _, placement in found)


def _heuristic(objective: Objective, name: str) -> tuple[int | None, Placement] | None:
    """Run a solver on a part of the budget; return (value or None if it has to be evaluated, placement)."""
    tracker, problem = objective.tracker, objective.problem
    spec = specs("placement").get(name)
    if problem.objective == "period" and (spec is None or "period" not in spec.objectives):
        name = "linear-dp"
        spec = specs("placement").get(name)
    if spec is None or problem.objective not in spec.objectives or tracker.stop():
        return None
    seconds = None if tracker.budget.seconds is None else 0.25 * tracker.seconds_left
    evaluations = None if tracker.budget.evaluations is None else max(1, tracker.evaluations_left // 4)
    try:
        result = make_solver(name).solve(problem, Budget(seconds, evaluations), seed=tracker.seed)
    except InputError:
        return None  # the start is an offer; a solver that refuses the problem makes none
    if result.stop_reason == "interrupted":  # the solver kept Ctrl-C to itself
        tracker.stop_reason, tracker.stopped = "interrupted", True
    if result.solution is None or result.objective is None:
        return None
    if objective.measure is None:
        tracker.count(min(result.evaluations, tracker.evaluations_left))
        placement = result.solution if objective.ordered else Placement(result.solution.device)
        tracker.offer(result.objective, placement)
        return result.objective, placement
    return None, result.solution


def _fallbacks(objective: Objective, rng: np.random.Generator) -> list[Placement]:
    """Random placements that fit, then contiguous chunks, then everything on one device."""
    space = objective.space
    rows = [space.random_homes(rng) for _ in range(ATTEMPTS)]
    chunk = space.chunk_homes()
    # A pipeline of random parts is hardly ever a chain.
    rows = [chunk, *rows] if objective.problem.objective == "period" else [*rows, chunk]
    rows += [space.repaired(np.full(space.num_units, d)) for d in range(objective.problem.num_devices)]
    rank = space.rank if objective.ordered else None
    return [Placement(space.devices_of(row), rank) for row in rows if row is not None]
