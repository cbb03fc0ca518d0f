"""The smaller graph whose ideals the latency bound prices (see `placeopt.latency.bounds.flow`).

Ops that take no time and whose results nobody needs are left out; ops of a colocation class that
only follow, or only feed, their neighbour become one node; and if there are still too many ideals,
the cheapest ops are left out, while the order through them stays. Each step relaxes the problem: a
bound for the reduced graph holds for the whole one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from placeopt.model.arrays import Ints
    from placeopt.model.ideals import Lattice
    from placeopt.model.problem import PlacementProblem


@dataclass(frozen=True)
class Nodes:
    """The reduced graph: nodes in topological order, the ops that each stands for, the order, and
    the tensors.
    """

    ops: list[list[int]]
    pool_time: list[int]
    edges: list[tuple[int, int]]
    tensors: list[tuple[int, tuple[int, ...], int]]  # producer, consumers, op tensor


class Reduction:
    """What decides which ops are kept and merged.

    Attributes
    ----------
    slot_time, pool_time : ticks of every op on the fastest accelerator and in the fastest pool, -1
    where it runs on none.
    io : ticks of every tensor between an accelerator and the host at least.
    most_nodes : of the first graph that was tried, which has only free ends left out.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        slot_time: Ints,
        pool_time: Ints,
        io: Ints,
    ) -> None:
        self.problem, self.slot_time, self.pool_time, self.io = problem, slot_time, pool_time, io
        self.graph = _op_graph(problem, range(problem.num_ops))
        self.most_nodes = 0

    def reduce(self, max_ideals: int, stop: Callable[[], bool]) -> tuple[Nodes, Lattice] | None:
        """Return the reduced graph with its ideals, or None if even two ops have too many, or at a
        stop.
        """
        from placeopt.model.ideals import ideal_lattice

        kept = self._without_idle_ends()
        cheapest = self._by_cost(kept)
        left_out = 0
        while not stop():
            nodes = self._nodes(kept)
            n = len(nodes.ops)
            self.most_nodes = max(self.most_nodes, n)
            edges = np.array(nodes.edges, np.int64).reshape(-1, 2)
            lattice = ideal_lattice(n, edges[:, 0], edges[:, 1], limit=max_ideals)
            if lattice is not None:
                return nodes, lattice
            step = max(1, len(kept) // 12)
            gone = cheapest[left_out : left_out + step]
            left_out += step
            if len(kept) - len(gone) < 2:
                return None
            kept = kept - set(gone)
        return None

    def _without_idle_ends(self) -> set[int]:
        """Ops without those at either end of the graph that take no time and whose tensors cost
        nothing.
        """
        p = self.problem
        free = (self.slot_time <= 0) & (self.pool_time == 0)
        costs = self._sent()
        graph = self.graph
        kept = set(range(p.num_ops))
        for v in reversed(p.topological_order.tolist()):
            if free[v] and not any(w in kept for w in graph.successors(v)):
                kept.discard(v)
        for v in p.topological_order.tolist():
            if free[v] and not costs[v] and not any(u in kept for u in graph.predecessors(v)):
                kept.discard(v)
        return kept if len(kept) > 1 else set(range(p.num_ops))

    def _sent(self) -> Ints:
        """Ticks to send all tensors of every op."""
        sent = np.zeros(self.problem.num_ops, np.int64)
        np.add.at(sent, self.problem.producer, self.io)
        return sent

    def _by_cost(self, ops: set[int]) -> list[int]:
        """Ops by the time that leaving them out can hide."""
        size = np.maximum(self.slot_time, self.pool_time) + self._sent()
        return sorted(ops, key=lambda v: (size[v], v))

    def _nodes(self, kept: set[int]) -> Nodes:
        """Return the reduced graph of the ops `kept`."""
        p = self.problem
        graph = _op_graph(p, kept)
        group = {v: v for v in kept}
        members = {v: [v] for v in kept}
        self._merge_classes(graph, group, members)
        position = {v: i for i, v in enumerate(p.topological_order.tolist())}
        merged = nx.DiGraph()
        merged.add_nodes_from(members)
        merged.add_edges_from((group[u], group[v]) for u, v in graph.edges if group[u] != group[v])
        order = list(nx.lexicographical_topological_sort(merged, key=position.__getitem__))
        number = {g: i for i, g in enumerate(order)}
        node = {v: number[g] for v, g in group.items()}
        tensors = []
        for t, u in enumerate(p.producer.tolist()):
            consumers = p.consumer[p.consumer_ptr[t] : p.consumer_ptr[t + 1]].tolist()
            heads = {node[c] for c in consumers if c in kept} - {node.get(u)}
            if u in kept and heads:
                tensors.append((node[u], tuple(sorted(heads)), t))
        return Nodes(
            [sorted(members[g]) for g in order],
            [self._group_pool_time(graph, members[g]) for g in order],
            sorted((number[u], number[v]) for u, v in merged.edges),
            tensors,
        )

    def _merge_classes(
        self, graph: nx.DiGraph, group: dict[int, int], members: dict[int, list[int]]
    ) -> None:
        """Merge neighbours of one class where one only follows, or only feeds, the other.

        Either both are in one slot, or both are in the pool, where the one can be next to the other
        in every order; every way in must reach every way out, or the node would order what the ops
        do not. With several slots an accelerator's class may sit in several of them, so only
        weights join: first ops that take no time and feed one other only, which cost nothing in
        that one's slot.
        """
        colour = self.problem.units.head
        again = True
        while again:
            again = False
            for u, v in list(graph.edges):
                a, b = group[u], group[v]
                if a == b or colour[u] != colour[v] or len(members[a]) + len(members[b]) > 64:
                    continue
                if self._may_merge(graph, group, members, a, b):
                    group.update(dict.fromkeys(members[b], a))
                    members[a] += members.pop(b)
                    again = True

    def _may_merge(
        self,
        graph: nx.DiGraph,
        group: dict[int, int],
        members: dict[int, list[int]],
        a: int,
        b: int,
    ) -> bool:
        """Whether the node b can become a part of a, which feeds it."""
        before_b = {group[x] for w in members[b] for x in graph.predecessors(w)} - {b}
        after_a = {group[x] for w in members[a] for x in graph.successors(w)} - {a}
        if self.problem.slots > 1:
            weight = len(members[a]) == 1 and not self.slot_time[a] and not graph.in_degree(a)
            joins = weight and after_a == {b}
        else:
            joins = before_b == {a} or after_a == {b}
        both = members[a] + members[b]
        return joins and _crossing_time(graph, both, dict.fromkeys(both, 0)) is not None

    def _group_pool_time(self, graph: nx.DiGraph, ops: list[int]) -> int:
        """Ticks that any path through the node takes in the pool, -1 if some op cannot run
        there.
        """
        times = {v: int(self.pool_time[v]) for v in ops}
        if min(times.values()) < 0:
            return -1
        if len(ops) == 1:
            return times[ops[0]]
        crossing = _crossing_time(graph, ops, times)
        return 0 if crossing is None else crossing


def _op_graph(problem: PlacementProblem, ops: Iterable[int]) -> nx.DiGraph:
    """Return the order of the ops `ops`; those left out hand their order on."""
    kept = set(ops)
    graph = nx.DiGraph()
    graph.add_nodes_from(kept)
    ptr, successor, _ = problem.successors
    after: dict[int, set[int]] = {}  # kept ops right after an op that was left out
    for u in reversed(problem.topological_order.tolist()):
        heads: set[int] = set()
        for v in successor[ptr[u] : ptr[u + 1]].tolist():
            heads |= {v} if v in kept else after[v]
        if u in kept:
            graph.add_edges_from((u, v) for v in heads)
        else:
            after[u] = heads
    return graph


def _crossing_time(graph: nx.DiGraph, ops: list[int], times: dict[int, int]) -> int | None:
    """Smallest longest time from an op with a predecessor outside to one with a successor outside.

    None if some way in does not reach some way out. Without ways in (out), the first (last) ops of
    the group count.
    """
    inside = set(ops)
    part = graph.subgraph(ops)
    entries = [v for v in ops if not inside.issuperset(graph.predecessors(v))]
    exits = [v for v in ops if not inside.issuperset(graph.successors(v))]
    entries = entries or [v for v in ops if part.in_degree(v) == 0]
    exits = exits or [v for v in ops if part.out_degree(v) == 0]
    order = list(nx.topological_sort(part))
    longest = [_longest_from(part, order, entry, times) for entry in entries]
    if not all(reach.keys() >= set(exits) for reach in longest):
        return None
    return min(reach[last] for reach in longest for last in exits)


def _longest_from(
    part: nx.DiGraph, order: list[int], entry: int, times: dict[int, int]
) -> dict[int, int]:
    """Return the longest time from the start of one node to the end of each that it reaches."""
    reach = {entry: times[entry]}
    for v in order:
        for w in part.successors(v) if v in reach else ():
            reach[w] = max(reach.get(w, 0), reach[v] + times[w])
    return reach
