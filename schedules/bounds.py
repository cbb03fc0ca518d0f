"""Lower bounds on the period that hold for any schedule, and the smallest memory that allows one."""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from placeopt.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.schedules.problem import PipelineProblem


def load_bound(problem: PipelineProblem) -> Fraction:
    """Return the work of the busiest device: it runs all of it once per micro-batch."""
    return Fraction(int(problem.work.max()))


def residence_bound(problem: PipelineProblem) -> Fraction:
    r"""Return a bound from the time that memory stays occupied; 0 without memory limits.

    Proof. Let block b of a micro-batch start at S_b and change device d by m_b. One micro-batch occupies
    R = sum_b -m_b S_b >= R* unit-ticks of d, where R* is the minimum over all starts that respect the
    predecessors. In a schedule of one micro-batch per p ticks, d therefore holds R/p units on average
    (Little's law). It never holds more than its capacity C, and while a block that frees f units runs it holds
    at most C - f, since no other block starts on d meanwhile and the f units are gone from its start on. So
    R*/p <= C - sum_freeing f_b span_b / p, that is p >= (R* + sum f_b span_b) / C. It holds for any number of
    micro-batches per repetend: for V on 4 devices with C = 3 it gives (13 + 3) / 3 = 16/3.
    """
    occupied = _occupied(problem)
    return max((Fraction(occupied[d], int(problem.capacity[d])) for d in occupied), default=Fraction(0))


@lru_cache(maxsize=64)
def _occupied(problem: PipelineProblem) -> dict[int, int]:
    """Unit-ticks that one micro-batch occupies at least of every device whose memory is limited."""
    limited = np.flatnonzero(problem.limited & (problem.capacity > 0)).tolist()
    return {d: _least_residence(problem, d) + freed_while_running(problem, d) for d in limited}


def freed_while_running(problem: PipelineProblem, device: int) -> int:
    """Unit-ticks that one micro-batch's blocks have freed on a device while they still run there."""
    pairs = zip(problem.memory[:, device].tolist(), problem.span.tolist(), strict=True)
    return sum(-memory * span for memory, span in pairs if memory < 0)


def _least_residence(problem: PipelineProblem, device: int) -> int:
    """Minimum of sum_b -m_b S_b over starts that respect the predecessors, rounded down to be safe.

    The constraint matrix is a network matrix, so the linear program has a whole optimum.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    edges = problem.edges
    if not edges:
        return 0
    rows = np.repeat(np.arange(len(edges)), 2)
    columns = np.array([[u, v] for u, v, _ in edges]).ravel()
    values = np.tile([1.0, -1.0], len(edges))
    matrix = csr_array((values, (rows, columns)), shape=(len(edges), problem.num_blocks))
    # Scaling keeps the solver's tolerances meaningful for nanosecond ticks.
    time_unit = float(max(1, problem.span.max()))
    weights = -problem.memory[:, device].astype(np.float64)
    memory_unit = float(np.abs(weights).max())
    gaps = np.array([-(int(problem.span[u]) + lag) for u, _, lag in edges]) / time_unit
    answer = linprog(weights / memory_unit, A_ub=matrix, b_ub=gaps, bounds=(0, None), method="highs")
    if answer.status != 0:
        return 0
    value = float(answer.fun) * time_unit * memory_unit
    return max(0, int(np.floor(value * (1 - 1e-9) + 1e-6 * min(time_unit, 1.0))))


def period_bounds(problem: PipelineProblem) -> dict[str, Fraction]:
    """Return every bound on the period in ticks per micro-batch, by method."""
    return {"load": load_bound(problem), "residence": residence_bound(problem)}


def makespan_bound(problem: PipelineProblem, micro_batches: int) -> int:
    """Return a bound on the makespan of n micro-batches in ticks.

    On every device, n instances of any set of its blocks take n times their spans, after the shortest way to one of them
    and before the shortest way from one of them to the end of a micro-batch. Where memory is limited, more time is
    lost before and after all of them (`_idle_at_the_ends`), and the unit-ticks that n micro-batches occupy must fit
    between the first start of a block that allocates and the last end of one that frees.
    """
    tail = np.zeros(problem.num_blocks, dtype=np.int64)
    for v in problem.topological_order[::-1].tolist():
        for u, lag in problem.predecessors_of(v):
            tail[u] = max(tail[u], lag + problem.span[v] + tail[v])
    best = problem.critical_path
    for d, blocks in enumerate(problem.on_device):
        here = list(blocks)
        if here:
            best = max(best, micro_batches * int(problem.work[d]) + _idle_at_the_ends(problem, d, micro_batches, tail))
            head, end = problem.heads[here], tail[here]
            # Of the sets with the same earliest head and least tail the largest counts.
            for h, t in itertools.product(np.unique(head).tolist(), np.unique(end).tolist()):
                inside = problem.span[here][(head >= h) & (end >= t)]
                if inside.size:
                    best = max(best, h + micro_batches * int(inside.sum()) + t)
    for d, occupied in _occupied(problem).items():
        delta = problem.memory[:, d]
        ends = int(problem.heads[delta > 0].min()) + int(tail[delta < 0].min())
        best = max(best, ends - (-micro_batches * occupied // int(problem.capacity[d])))
    return best


def _idle_at_the_ends(problem: PipelineProblem, device: int, micro_batches: int, tail: NDArray[np.int64]) -> int:
    """Ticks of a schedule in which a device does not work, as it waits to begin or has ended.

    Until the first block that frees memory can start, only others run, of which memory admits so many; the same holds
    backwards in time after the last block that allocates. If memory cannot hold all micro-batches, the first freeing
    block comes before the last allocating one, and both losses add up.
    """
    here = np.array(problem.on_device[device])
    delta, span, head, tail = problem.memory[here, device], problem.span[here], problem.heads[here], tail[here]
    front, back = int(head.min()), int(tail.min())
    if not problem.limited[device]:
        return front + back
    capacity = int(problem.capacity[device])
    waits = int(head[delta < 0].min()) - _most_work(span, delta, micro_batches, capacity)
    drains = int(tail[delta > 0].min()) - _most_work(span, -delta, micro_batches, capacity)
    if micro_batches * int(delta[delta > 0].sum()) > capacity:
        return max(front, waits) + max(back, drains)
    return max(max(front, waits) + back, front + max(back, drains))


def _most_work(span: NDArray[np.int64], need: NDArray[np.int64], micro_batches: int, capacity: int) -> int:
    """Most ticks of blocks with need >= 0 that fit into a capacity: the relaxed knapsack, rounded up."""
    work = micro_batches * int(span[need == 0].sum())
    packs = sorted(((Fraction(int(s), int(m)), int(m)) for s, m in zip(span, need, strict=True) if m > 0), reverse=True)
    for density, size in packs:
        taken = min(capacity, micro_batches * size)
        work += ceil(density * taken)
        capacity -= taken
    return work


def best_bound(problem: PipelineProblem) -> tuple[Fraction, str]:
    """Return the largest bound and its method."""
    bounds = period_bounds(problem)
    method = max(bounds, key=lambda key: bounds[key])
    return bounds[method], method


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
