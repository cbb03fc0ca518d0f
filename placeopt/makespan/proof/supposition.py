"""What every schedule of at most T ticks obeys: heads, tails, ops that share a device and ops that
cannot.

Everything here follows from T by steps that are written down (docs/proofs.md), so that a checker
that shares no code with this package can follow them. A supposition is closed once it contradicts
itself: no schedule of at most T ticks exists.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from copy import copy
from functools import cache
from itertools import product

import networkx as nx
import numpy as np

from placeopt.model.arrays import positions, together
from placeopt.model.feasibility import allowed_devices
from placeopt.model.problem import PlacementProblem

INFINITE = math.inf
"""Delay of what cannot be; it is only compared with and added to whole numbers."""

Delay = float
"""Whole ticks, or INFINITE."""

Neighbours = dict[int, list[tuple[int, Delay, Delay]]]
"""Per op (op before it, least delay in any case, least delay between two devices)."""


class Supposition:
    """The state of a derivation.

    Attributes
    ----------
    most : T, ticks.
    kind : class of every device; devices of a class run every op in the same time. count : devices
    of every class.
    time : ticks of every op by class, None where it cannot run.
    head, tail : least ticks before the start and after the end of every op, by class.
    group : the ops that share a device with each op, one list for all of them. apart : pairs that
    cannot share one.
    edges : (u, v) to the least delay [in any case, between two devices].
    delays : (u, v) to ticks that pass at least between the end of u and the start of v, whatever
    devices they are on.
    """

    def __init__(self, problem: PlacementProblem, most: int, *, edges: bool = True) -> None:
        self.problem, self.most, self.closed = problem, most, False
        n = problem.num_ops
        able, times = allowed_devices(problem), problem.compute.astype(object)
        times[~able] = None
        columns = list(map(tuple, times.T.tolist()))
        kinds = list(dict.fromkeys(columns))
        self.kind = list(map(kinds.index, columns))
        self.count = list(map(self.kind.count, range(len(kinds))))
        self.time: list[list[int | None]] = list(map(list, zip(*kinds, strict=True)))
        self.head: list[list[Delay]] = [[0] * len(kinds) for _ in range(n)]
        self.tail: list[list[Delay]] = [[0] * len(kinds) for _ in range(n)]
        units = problem.units
        members = [ops.tolist() for ops in np.split(units.member, units.member_ptr[1:-1])]
        self.group: list[list[int]] = [members[i] for i in units.unit.tolist()]
        self.apart: list[tuple[int, int]] = []
        self.edges: dict[tuple[int, int], list[Delay]] = {}
        self.delays: dict[tuple[int, int], int] = {}
        self.order = list(range(n))
        if edges:
            self.order = problem.topological_order.tolist()
            self._set_edges(list(map(tuple, able.tolist())))

    def _set_edges(self, able: list[tuple[bool, ...]]) -> None:
        """Cheapest link between two devices that both ops can use; nothing where one device can
        hold both.
        """
        p = self.problem
        resident, transfer = p.resident.tolist(), p.transfer.tolist()
        links_and_room = cache(self._links_and_room)
        for t, v in together(p.edge_tensor, p.consumer):
            u = int(p.producer[t])
            links, room = links_and_room(able[u], able[v])
            joined = self.group[u] is self.group[v]
            pay = max(
                min((transfer[t][c] for c in links), default=INFINITE),
                self.edges.get((u, v), [0, 0])[1],
            )
            shared = joined or resident[u] + resident[v] <= room
            self.edges[u, v] = [0 if shared else pay, INFINITE if joined else pay]

    def _links_and_room(
        self, first: tuple[bool, ...], last: tuple[bool, ...]
    ) -> tuple[list[int], int]:
        """Return the classes of links between two devices that two ops can use, and the most bytes
        of a device that both can.
        """
        p, both = self.problem, np.logical_and(first, last)
        pairs = np.outer(first, last) & ~np.eye(p.num_devices, dtype=np.bool_)
        return np.unique(p.link_class[pairs]).tolist(), int(p.capacity[both].max(initial=-1))

    def child(self) -> Supposition:
        """Return a copy in which more can be supposed."""
        other = copy(self)
        other.time = [row[:] for row in self.time]
        other.head, other.tail = [row[:] for row in self.head], [row[:] for row in self.tail]
        other.edges = {pair: delays[:] for pair, delays in self.edges.items()}
        other.group, other.apart = self.group[:], self.apart[:]
        return other

    def segment(self, ops: Sequence[int], most: int) -> Supposition:
        """Return the supposition that all ops between the first and the last one run within `most`
        ticks, ops renumbered.
        """
        part, number = copy(self), positions(ops)
        rows, p = list(ops), self.problem
        part.problem = PlacementProblem.from_edges(
            p.compute[rows],
            [],
            resident=p.resident[rows],
            capacity=p.capacity,
            objective=p.objective,
        )
        part.most, part.closed = most, False
        part.time = [self.time[v][:] for v in ops]
        for row in (part.time[0], part.time[-1]):
            row[:] = (None if ticks is None else 0 for ticks in row)
        part.head, part.tail = ([[0.0] * len(self.count) for _ in ops] for _ in range(2))
        part.group, part.apart, part.delays = self._groups_among(number), [], {}
        part.edges = {
            (number[u], number[v]): delays[:]
            for (u, v), delays in self.edges.items()
            if u in number and v in number
        }
        part.order = list(range(len(ops)))
        return part

    def _groups_among(self, number: dict[int, int]) -> list[list[int]]:
        """Return the groups of some ops, renumbered, one list for all ops of a group."""
        groups = {
            id(self.group[v]): [number[w] for w in self.group[v] if w in number] for v in number
        }
        return [groups[id(self.group[v])] for v in number]

    def classes(self, v: int) -> list[int]:
        """Return the classes of devices on which an op can run."""
        return [c for c, ticks in enumerate(self.time[v]) if ticks is not None]

    def fastest(self, v: int) -> Delay:
        """Return the least ticks of an op."""
        return min((ticks for ticks in self.time[v] if ticks is not None), default=INFINITE)

    def least(self, far: list[list[Delay]], v: int) -> Delay:
        """Return the least head (or tail) of an op over its classes."""
        return min((far[v][c] for c in self.classes(v)), default=INFINITE)

    def narrow(self, v: int, allowed: Collection[int] | None = None) -> None:
        """Drop classes that are not allowed, and those on which an op cannot meet the horizon."""
        row = self.time[v]
        for c, ticks in enumerate(row):
            if ticks is not None and (
                (allowed is not None and c not in allowed)
                or self.head[v][c] + ticks + self.tail[v][c] > self.most
            ):
                row[c] = None
        self.closed = self.closed or all(ticks is None for ticks in row)

    def splits(self) -> set[tuple[int, int]]:
        """Return the pairs of groups that cannot share a device, by their first ops, in both
        orders.
        """
        found = {(self.group[u][0], self.group[v][0]) for u, v in self.apart}
        return found | {(b, a) for a, b in found}

    def neighbours(self, *, backwards: bool) -> Neighbours:
        """Return the ops before each op (after it, read backwards) with the delays between them."""
        edges = [(u, v, free, pay) for (u, v), (free, pay) in self.edges.items()]
        edges += [(u, v, ticks, ticks) for (u, v), ticks in self.delays.items()]
        found: Neighbours = {}
        for u, v, free, pay in edges:
            first, last = (v, u) if backwards else (u, v)
            found.setdefault(last, []).append((first, free, pay))
        return found

    # --- what is supposed, or follows
    # ----------------------------------------------------------------

    def join(self, u: int, v: int) -> None:
        """Let two ops share a device, with all that share it already."""
        group = self.group
        members = group[u] if group[u] is group[v] else group[u] + group[v]
        for w in members:
            group[w] = members
        self.closed |= any(group[a] is group[b] for a, b in self.apart)
        for (a, b), delays in self.edges.items():
            if group[a] is members and group[b] is members:
                self.closed |= delays[0] > 0
                delays[1] = INFINITE
        for w in members:
            self.narrow(
                w, [c for c in self.classes(w) if all(self.time[x][c] is not None for x in members)]
            )

    def separate(self, u: int, v: int) -> None:
        """Let two ops be on two devices, with all that share theirs."""
        group = self.group
        self.closed = self.closed or group[u] is group[v]
        self.apart.append((u, v))
        sides = {group[u][0], group[v][0]}
        for (a, b), delays in self.edges.items():
            if {group[a][0], group[b][0]} == sides:
                delays[0] = delays[1]

    def precede(self, u: int, v: int) -> None:
        """Let u end before v starts, on the device that they share."""
        self.edges[u, v] = [self.edges.get((u, v), [0])[0], INFINITE]
        graph = nx.DiGraph()
        graph.add_nodes_from(range(self.problem.num_ops))
        graph.add_edges_from(self.edges)
        if nx.is_directed_acyclic_graph(graph):
            self.order = list(nx.topological_sort(graph))
        else:
            self.closed = True

    def must_share(self, u: int, v: int) -> bool:
        """Whether the transfer of an edge would come too late, or both ops can use one and the same
        device only.
        """
        pay = self.edges[u, v][1]
        before = [(c, self.head[u][c] + (self.time[u][c] or 0)) for c in self.classes(u)]
        after = [(d, (self.time[v][d] or 0) + self.tail[v][d]) for d in self.classes(v)]
        return all(
            end + pay + rest > self.most
            for (c, end), (d, rest) in product(before, after)
            if c != d or self.count[c] > 1
        )

    def too_much(self, ops: list[int]) -> bool:
        """Whether ops cannot all be on one device, in time or in memory."""
        if int(self.problem.resident[ops].sum()) > int(self.problem.capacity.max()):
            return True
        for c in range(len(self.count)):
            ticks = [self.time[v][c] for v in ops]
            total = sum(INFINITE if t is None else t for t in ticks)
            head, tail = (min(far[v][c] for v in ops) for far in (self.head, self.tail))
            if total + head + tail <= self.most:
                return False
        return True
