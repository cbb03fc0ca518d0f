"""Which memory limits admit any schedule at all, and the smallest that does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.cp_sat import cp_solver, solve_interruptibly

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints
    from placeopt.schedules.problem import PipelineProblem


def memory_shortage(problem: PipelineProblem, seconds: float, *, most_seconds: float = 20.0) -> str:
    """Return why the memory limits admit no schedule and the smallest that do, "" unless that is
    proved in time.

    The memory of a micro-batch is never negative, so if one alone does not fit, none does.

    Parameters
    ----------
    most_seconds : spent on the proof that a limit is too small, however many `seconds` are left.
    """
    if not problem.limited.any() or one_fits(problem):
        return ""
    excess = smallest_excess(problem, min(seconds, most_seconds))
    if excess is None or excess <= 0:
        return ""
    least = _limits(problem, problem.capacity + np.where(problem.limited, excess, 0))
    return (
        f"memory limit {_limits(problem, problem.capacity)} of '{problem.name}' is proved "
        f"infeasible: not even one micro-batch fits; the smallest feasible limit is {least}"
    )


def one_fits(problem: PipelineProblem) -> bool:
    """Whether one micro-batch fits when its blocks run in topological order."""
    held = np.cumsum(problem.memory[problem.topological_order], axis=0)
    return bool((held <= problem.capacity[None, :]).all())


def _limits(problem: PipelineProblem, capacity: Ints) -> str:
    """Return the limits in words: one number where they are equal."""
    distinct = set(capacity[problem.limited].tolist())
    return str(distinct.pop()) if len(distinct) == 1 else str(capacity.tolist())


def smallest_excess(problem: PipelineProblem, seconds: float) -> int | None:
    """Return the least x such that one micro-batch fits into capacity + x on every limited device.

    None if the search did not finish. The order on each device decides its memory, so this is a
    search over orders of the blocks (any order of a device that respects the predecessors can be
    run).
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    position = [
        model.new_int_var(0, problem.num_blocks - 1, f"position{i}")
        for i in range(problem.num_blocks)
    ]
    model.add_all_different(position)
    for u, v, _ in problem.edges:
        model.add(position[u] < position[v])
    need = int(np.maximum(problem.memory, 0).sum(axis=0).max())
    excess = model.new_int_var(-int(problem.capacity[problem.limited].max()), need, "excess")
    before: dict[tuple[int, int], Any] = {}

    def comes_before(i: int, j: int) -> Any:
        """Return the literal of block i standing before block j."""
        if (i, j) not in before:
            flag = model.new_bool_var(f"before{i}_{j}")
            model.add(position[i] < position[j]).only_enforce_if(flag)
            model.add(position[i] > position[j]).only_enforce_if(~flag)
            before[i, j], before[j, i] = flag, ~flag
        return before[i, j]

    for d in np.flatnonzero(problem.limited).tolist():
        changing = [i for i in problem.on_device[d] if problem.memory[i, d]]
        for c in changing:
            if problem.memory[c, d] < 0:
                continue
            terms = [int(problem.memory[i, d]) * comes_before(i, c) for i in changing if i != c]
            model.add(sum(terms) + int(problem.memory[c, d]) <= int(problem.capacity[d]) + excess)
    model.minimize(excess)
    solver = cp_solver(workers=1, seconds=seconds)
    if solve_interruptibly(solver, model) != cp_model.OPTIMAL:
        return None
    return int(solver.value(excess))
