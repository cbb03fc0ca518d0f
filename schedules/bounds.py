"""Lower bounds on the period and the makespan that hold for every schedule, whatever its pattern;
and which memory limits admit any schedule at all.

Two *relaxations* of a problem give bounds. One is the problem as it is. In the other the blocks
that occupy all devices at once are left out: while they run nothing else does, so cutting their n G
ticks out of a schedule leaves one of the other blocks, in which they are points in time (and a lag,
in which they may run, counts for nothing). A bound of that relaxation plus n G is a bound, and the
better one where long chains alternate with such blocks: it proves that n micro-batches of NN on 4
devices take 8 n + 12 ticks.

References
----------
.. [1] J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9(3),
1961 (residence).
.. [2] B. R. Rau, "Iterative modulo scheduling", MICRO 1994: the load is its minimum initiation
interval by resources.
.. [3] R. K. Ahuja, T. L. Magnanti, J. B. Orlin, "Network flows", Prentice Hall 1993, ch. 11
(network simplex).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

import networkx as nx
import numpy as np

from placeopt.model.arrays import Flags, Ints, by_number, together, true_places
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.schedules.problem import PipelineProblem

UNREACHED = -(2**60)
"""The longest way to where none leads."""


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A problem with or without the blocks that occupy all devices.

    Attributes
    ----------
    shared : ticks per micro-batch in which left-out blocks run.
    head, tail : longest way from the start of a micro-batch to a block's start, and from its end to
    the end.
    occupied : unit-ticks that one micro-batch occupies at least of every device whose memory is
    limited.
    """

    problem: PipelineProblem
    shared: int
    span: Ints  # (num_blocks,) ticks, 0 for what is left out
    head: Ints  # (num_blocks,) ticks
    tail: Ints  # (num_blocks,) ticks
    occupied: dict[int, int]


@lru_cache(maxsize=64)
def relaxations(problem: PipelineProblem) -> tuple[Relaxation, ...]:
    """Return the problem as it is, and without the blocks that occupy all devices where there are
    some.
    """
    used = sum(bool(here) for here in problem.on_device)
    everywhere = np.diff(problem.device_ptr) == used
    plain = _relaxation(problem, np.zeros(problem.num_blocks, np.bool_))
    if used == 1 or not everywhere.any():
        return (plain,)
    return plain, _relaxation(problem, everywhere)


def _relaxation(problem: PipelineProblem, left_out: Flags) -> Relaxation:
    span = np.where(left_out, 0, problem.span)
    lags = not left_out.any()
    # (predecessor, block, ticks from start to start at least)
    edges = [(u, v, int(span[u]) + lag * lags) for u, v, lag in problem.edges]
    ways = longest_ways(problem.topological_order.tolist(), edges)
    head, tail = ways.max(axis=0), (ways + span).max(axis=1) - span
    occupied = {}
    for d in true_places(problem.limited & (problem.capacity > 0)):
        memory = problem.memory[:, d]
        occupied[d] = _least_residence(memory, ways, edges) + freed_while_running(memory, span)
    return Relaxation(problem, int(problem.span[left_out].sum()), span, head, tail, occupied)


def residence_bound(problem: PipelineProblem) -> Fraction:
    r"""Return a bound from the time that memory stays occupied; 0 without memory limits.

    Proof. Let block b of a micro-batch start at S_b and change device d by m_b. One micro-batch
    occupies R = sum_b -m_b S_b >= R* unit-ticks of d, where R* is the minimum over all starts that
    respect the predecessors. In a schedule of one micro-batch per p ticks, d therefore holds R/p
    units on average (Little's law). It never holds more than its capacity C, and while a block that
    frees f units runs it holds at most C - f, since no other block starts on d meanwhile and the f
    units are gone from its start on. So R*/p <= C - sum_freeing f_b span_b / p, that is p >= (R* +
    sum f_b span_b) / C. It holds for any number of micro-batches per repetend: for V on 4 devices
    with C = 3 it gives (13 + 3) / 3 = 16/3.
    """
    found = [
        relaxed.shared + Fraction(ticks, int(problem.capacity[d]))
        for relaxed in relaxations(problem)
        for d, ticks in relaxed.occupied.items()
    ]
    return max(found, default=Fraction(0))


def freed_while_running(memory: Ints, span: Ints) -> int:
    """Unit-ticks that one micro-batch's blocks have freed on a device while they still run
    there.
    """
    return sum(-m * ticks for m, ticks in together(memory, span) if m < 0)


def _least_residence(memory: Ints, ways: Ints, edges: list[tuple[int, int, int]]) -> int:
    """Return the minimum of sum_b -m_b S_b over starts that respect the predecessors.

    By duality it is the most that all allocated units can travel to blocks that free them, over
    edges or, where these are fewer, over the longest way between each two: a flow of greatest cost
    [3]_, in whole numbers.
    """
    gives, takes = true_places(memory > 0), true_places(memory < 0)
    if len(gives) * len(takes) < len(edges):
        pairs = itertools.product(gives, takes)
        edges = [(u, v, int(ways[u, v])) for u, v in pairs if ways[u, v] >= 0]
    units = nx.DiGraph()
    for u, v, ticks in sorted(edges, key=lambda edge: edge[2]):  # of equal ends the longest stays
        units.add_edge(u, v, weight=-ticks)
    for block in gives + takes:
        units.add_node(block, demand=-int(memory[block]))
    return -int(nx.network_simplex(units)[0])


def longest_ways(order: Sequence[int], edges: Iterable[tuple[int, int, int]]) -> Ints:
    """Return the longest way from every node to every other, 0 to itself, UNREACHED where there is
    none.

    Parameters
    ----------
    order : all nodes, each before those that its edges (from, to, length) lead to.
    """
    into = by_number(len(order), ((v, (u, length)) for u, v, length in edges))
    ways = np.full((len(order), len(order)), UNREACHED)  # at [to, from]
    np.fill_diagonal(ways, 0)
    for v in order:
        for u, length in into[v]:
            np.maximum(ways[v], ways[u] + length, out=ways[v], where=ways[u] >= 0)
    return ways.T


def period_bounds(problem: PipelineProblem) -> dict[str, Fraction]:
    """Return every bound on the period in ticks per micro-batch, by method.

    The load is the work of the busiest device: it runs all of it once per micro-batch.
    """
    return {"load": Fraction(int(problem.work.max())), "residence": residence_bound(problem)}


def best_bound(problem: PipelineProblem) -> tuple[Fraction, str]:
    """Return the largest bound and its method."""
    bounds = period_bounds(problem)
    method = max(bounds, key=lambda key: bounds[key])
    return bounds[method], method


@lru_cache(maxsize=64)
def makespan_bound(problem: PipelineProblem, micro_batches: int) -> int:
    """Return a bound on the makespan of n micro-batches in ticks.

    On every device, n instances of any set of its blocks take n times their spans, after the
    shortest way to one of them and before the shortest way from one of them to the end of a
    micro-batch. Where memory is limited, more time is lost before and after all of them
    (`_idle_at_the_ends`), and the unit-ticks that n micro-batches occupy must fit between the first
    start of a block that allocates and the last end of one that frees.
    """
    n, best = micro_batches, 0
    for relaxed in relaxations(problem):
        ticks = int((relaxed.head + relaxed.span).max())
        for d, here in enumerate(map(list, problem.on_device)):
            if here:
                busy = n * int(relaxed.span[here].sum())
                ticks = max(
                    ticks, busy + _idle_at_the_ends(relaxed, d, n), _inner_sets(relaxed, here, n)
                )
        for d, occupied in relaxed.occupied.items():
            delta = problem.memory[:, d]
            ends = int(relaxed.head[delta > 0].min()) + int(relaxed.tail[delta < 0].min())
            ticks = max(ticks, ends - (-n * occupied // int(problem.capacity[d])))
        best = max(best, n * relaxed.shared + ticks)
    return best


def work_between_ends(relaxed: Relaxation, micro_batches: int) -> int:
    """Return the most ticks of a device: all its work, after the least head and before the least
    tail of its blocks.
    """
    found = [0]
    for here in map(list, relaxed.problem.on_device):
        if here:
            ends = int(relaxed.head[here].min()) + int(relaxed.tail[here].min())
            found.append(ends + micro_batches * int(relaxed.span[here].sum()))
    return max(found)


def _inner_sets(relaxed: Relaxation, here: list[int], micro_batches: int) -> int:
    """Return the best bound of the sets of a device's blocks: of those with the same ends, the
    largest counts.
    """
    span, head, tail = relaxed.span[here], relaxed.head[here], relaxed.tail[here]
    best = 0
    for h, t in itertools.product(np.unique(head).tolist(), np.unique(tail).tolist()):
        inside = span[(head >= h) & (tail >= t)]
        if inside.any():
            best = max(best, h + micro_batches * int(inside.sum()) + t)
    return best


def _idle_at_the_ends(relaxed: Relaxation, device: int, micro_batches: int) -> int:
    """Ticks of a schedule in which a device does not work, as it waits to begin or has ended.

    Until the first block that frees memory can start, only others run, of which memory admits so
    many; the same holds backwards in time after the last block that allocates. If memory cannot
    hold all micro-batches, the first freeing block comes before the last allocating one, and both
    losses add up. If it can, either loss is that of the set of freeing, or of allocating, blocks
    (`_inner_sets`).
    """
    problem, here = relaxed.problem, list(relaxed.problem.on_device[device])
    delta, span, head, tail = (
        problem.memory[here, device],
        relaxed.span[here],
        relaxed.head[here],
        relaxed.tail[here],
    )
    front, back = int(head.min()), int(tail.min())
    capacity = int(problem.capacity[device])
    if micro_batches * int(delta[delta > 0].sum()) <= capacity:
        return front + back
    waits = int(head[delta < 0].min()) - _most_work(span, delta, micro_batches, capacity)
    drains = int(tail[delta > 0].min()) - _most_work(span, -delta, micro_batches, capacity)
    return max(front, waits) + max(back, drains)


def _most_work(span: Ints, need: Ints, micro_batches: int, capacity: int) -> int:
    """Most ticks of blocks with need >= 0 that fit into a capacity: the relaxed knapsack, rounded
    up.
    """
    work = micro_batches * int(span[need == 0].sum())
    packs = sorted(
        ((Fraction(int(s), int(m)), int(m)) for s, m in zip(span, need, strict=True) if m > 0),
        reverse=True,
    )
    for density, size in packs:
        taken = min(capacity, micro_batches * size)
        work += ceil(density * taken)
        capacity -= taken
    return work


def memory_shortage(problem: PipelineProblem, seconds: float) -> str:
    """Return why the memory limits admit no schedule and the smallest that do, "" unless that is
    proved in time.

    The memory of a micro-batch is never negative, so if one alone does not fit, none does. At most
    20 s by CP-SAT's own clock are spent on the proof that a limit is too small, however many
    `seconds` are left.
    """
    if not problem.limited.any() or one_fits(problem):
        return ""
    excess = smallest_excess(problem, seconds)
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
    return bool((held <= problem.capacity).all())


def _limits(problem: PipelineProblem, capacity: Ints) -> str:
    """Return the limits in words: one number where they are equal."""
    distinct = set(capacity[problem.limited].tolist())
    return str(distinct.pop()) if len(distinct) == 1 else str(capacity.tolist())


@dataclass(eq=False)
class Orders:
    """Literals that say which of two runs comes first, made where they are asked for."""

    model: Any
    start: Sequence[Any]
    span: Sequence[int]

    def __post_init__(self) -> None:
        self._known: dict[tuple[int, int], Any] = {}

    def before(self, i: int, j: int) -> Any:
        """Return the literal that run i ends before run j starts; else j ends before i starts."""
        if (i, j) not in self._known:
            flag = self.model.new_bool_var(f"before{i}_{j}")
            for first, second, literal in ((i, j, flag), (j, i, ~flag)):
                end = self.start[first] + self.span[first]
                self.model.add(end <= self.start[second]).only_enforce_if(literal)
                self._known[first, second] = literal
        return self._known[i, j]


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
    orders = Orders(model, position, [1] * problem.num_blocks)
    for d in true_places(problem.limited):
        changing = [i for i in problem.on_device[d] if problem.memory[i, d]]
        for c in changing:
            if problem.memory[c, d] < 0:
                continue
            terms = [int(problem.memory[i, d]) * orders.before(i, c) for i in changing if i != c]
            model.add(sum(terms) + int(problem.memory[c, d]) <= int(problem.capacity[d]) + excess)
    model.minimize(excess)
    solver = cp_solver(workers=1, seconds=seconds, effort=20.0)
    if solve_interruptibly(solver, model) != cp_model.OPTIMAL:
        return None
    return int(solver.value(excess))
