"""Which memory limits admit any schedule at all, the smallest that does, and memory that is freed too early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from placeopt.schedules.problem import PipelineProblem


def require_feasible_memory(problem: PipelineProblem, seconds: float = 20.0) -> None:
    """Refuse memory limits under which not even one micro-batch can run.

    The memory of a micro-batch is never negative, so if one alone does not fit, none does.

    Raises
    ------
    InputError
        If it is proved; the message gives the smallest feasible limit.
    """
    if not problem.limited.any() or _sequential_fits(problem):
        return
    excess = smallest_excess(problem, seconds)
    if excess is not None and excess > 0:
        smallest = problem.capacity + np.where(problem.limited, excess, 0)
        shown = sorted({int(x) for x in smallest[problem.limited]})
        words = str(shown[0]) if len(shown) == 1 else "[" + ", ".join(str(int(x)) for x in smallest) + "]"
        given = sorted({int(x) for x in problem.capacity[problem.limited]})
        was = str(given[0]) if len(given) == 1 else "[" + ", ".join(str(int(x)) for x in problem.capacity) + "]"
        raise InputError(
            f"memory limit {was} of '{problem.name}' is proved infeasible: not even one micro-batch fits; "
            f"the smallest feasible limit is {words}"
        )


def _sequential_fits(problem: PipelineProblem) -> bool:
    """Whether one micro-batch fits when its blocks run in topological order."""
    held = np.cumsum(problem.memory[problem.topological_order], axis=0)
    return bool((held <= problem.capacity[None, :]).all())


def smallest_excess(problem: PipelineProblem, seconds: float = 20.0) -> int | None:
    """Return the least x such that one micro-batch fits into capacity + x on every limited device.

    None if the search did not finish. The order on each device decides its memory, so this is a search over
    orders of the blocks (any order of a device that respects the predecessors can be run).
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    b = problem.num_blocks
    position = [model.new_int_var(0, b - 1, f"position{i}") for i in range(b)]
    model.add_all_different(position)
    for u, v, _ in problem.edges:
        model.add(position[u] < position[v])
    need = int(np.maximum(problem.memory, 0).sum(axis=0).max())
    excess = model.new_int_var(-int(problem.capacity[problem.limited].max()), need, "excess")
    before: dict[tuple[int, int], object] = {}
    for d in np.flatnonzero(problem.limited).tolist():
        changing = [i for i in problem.on_device[d] if problem.memory[i, d]]
        for c in changing:
            if problem.memory[c, d] < 0:
                continue
            terms = []
            for i in changing:
                if i == c:
                    continue
                if (i, c) not in before:
                    flag = model.new_bool_var(f"before{i}_{c}")
                    model.add(position[i] < position[c]).only_enforce_if(flag)
                    model.add(position[i] > position[c]).only_enforce_if(~flag)
                    before[i, c], before[c, i] = flag, ~flag
                terms.append(int(problem.memory[i, d]) * before[i, c])  # type: ignore[operator]
            model.add(sum(terms) + int(problem.memory[c, d]) <= int(problem.capacity[d]) + excess)
    model.minimize(excess)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    return int(solver.value(excess))


def freed_too_early(problem: PipelineProblem) -> tuple[int, int] | None:
    """Return a (block, device) that frees memory which no predecessor has surely allocated, or None.

    Each unit that a block frees is matched with a unit that an ancestor allocated (a maximum flow by
    augmenting paths); by Hall's theorem all are matched exactly when the memory of one micro-batch never
    drops below zero in any order.
    """
    before = ancestors(problem)
    for d in range(problem.num_devices):
        give = {i: int(problem.memory[i, d]) for i in problem.on_device[d] if problem.memory[i, d] > 0}
        take = [(i, -int(problem.memory[i, d])) for i in problem.on_device[d] if problem.memory[i, d] < 0]
        flow: dict[int, dict[int, int]] = {i: {} for i in give}
        for block, amount in take:
            missing = amount
            while missing > 0:
                moved = _augment(block, missing, give, flow, before)
                if moved == 0:
                    return block, d
                missing -= moved
    return None


def ancestors(problem: PipelineProblem) -> list[set[int]]:
    """Return the blocks that each block waits for, directly or not."""
    found: list[set[int]] = [set() for _ in range(problem.num_blocks)]
    for v in problem.topological_order.tolist():
        for u, _ in problem.predecessors_of(v):
            found[v] |= found[u] | {u}
    return found


def _augment(
    block: int, missing: int, give: dict[int, int], flow: dict[int, dict[int, int]], ancestors: list[set[int]]
) -> int:
    """Match up to `missing` more units of `block`, moving earlier matches aside; return how many."""
    # Breadth-first over freeing blocks; parent[x] = (allocating block, freeing block it was taken from).
    parent: dict[int, tuple[int, int]] = {}
    reached, seen = [block], {block}
    while reached:
        at = reached.pop(0)
        for source in sorted(give):
            if source not in ancestors[at]:
                continue
            spare = give[source] - sum(flow[source].values())
            if spare > 0:
                amount, node = min(missing, spare), at
                while node != block:
                    via, back = parent[node]
                    amount, node = min(amount, flow[via][node]), back
                flow[source][at] = flow[source].get(at, 0) + amount
                node = at
                while node != block:
                    via, back = parent[node]
                    flow[via][node] -= amount
                    flow[via][back] = flow[via].get(back, 0) + amount
                    node = back
                return amount
            for other, units in flow[source].items():
                if units > 0 and other not in seen:
                    seen.add(other)
                    parent[other] = (source, at)
                    reached.append(other)
    return 0
