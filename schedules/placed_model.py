"""A model's ops with their devices and passes, and the blocks that they are grouped into.

Ops are grouped by device and pass: forward (F), backward (B), or, with `split`, the backward pass
of the inputs (I) and of the weights (W: ops called `.../wgrad`). Optimizer updates run once per
step, not per micro-batch, and are left out. Where a device's group cannot be one block, because a
path leaves it and comes back, it is cut into the fewest blocks that a greedy merge finds, so any
placement can be scheduled, contiguous or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from placeopt.model.arrays import Flags, Ints
    from placeopt.model.problem import PlacementProblem

ALL = -1
"""Pseudo device of an op that runs tensor-parallel on every device."""

FORWARD, INPUTS, WEIGHTS, UPDATE = range(4)
"""Roles of ops: forward pass, backward pass (of the inputs), backward pass of the weights,
optimizer update."""


@dataclass
class Piece:
    """A block in the making: ops of one place, part and role."""

    place: int
    part: int
    role: int
    ops: list[int]

    @property
    def group(self) -> tuple[int, int, int]:
        """Pieces of one group may be joined."""
        return self.place, self.part, self.role


@dataclass(frozen=True, eq=False)
class PlacedModel:
    """Ops with their devices.

    Attributes
    ----------
    device : device of every op, or ALL; part : stage of every op where a device holds several.
    split : cut backward passes into I and W.
    recompute : keep only what enters a stage and repeat its forward pass before the backward pass.
    """

    problem: PlacementProblem
    device: Ints  # (num_ops,)
    part: Ints  # (num_ops,)
    split: bool
    recompute: bool
    mode: str

    def __post_init__(self) -> None:
        problem, device = self.problem, self.device
        n, k = problem.num_ops, problem.num_devices
        if device.shape != (n,):
            raise InputError(
                f"device: expected one entry per op ({n}), received shape {device.shape}"
            )
        if device.min() < ALL or device.max() >= k:
            raise InputError(
                f"device: expected 0..{k - 1}, or -1 for all devices, received {device.max()}"
            )
        bad = (device >= 0) & (problem.compute[np.arange(n), np.maximum(device, 0)] < 0)
        if bad.any():
            op = int(bad.argmax())
            raise InputError(
                f"op '{problem.op_names[op]}' cannot run on '{problem.device_names[device[op]]}'"
            )

    @cached_property
    def role(self) -> Ints:
        """Role of every op."""
        return roles(self.problem, split=self.split)

    @cached_property
    def kept(self) -> Flags:
        """Ops that run once per micro-batch."""
        return kept_ops(self.role, self.mode)

    @cached_property
    def index(self) -> dict[str, int]:
        """Ops by name."""
        return {name: i for i, name in enumerate(self.problem.op_names)}

    @property
    def training(self) -> bool:
        """Whether activations have to be held for a backward pass."""
        return self.mode == "train" and bool((self.role == INPUTS).any())

    def devices(self, place: int) -> tuple[int, ...]:
        """Return the devices of a place."""
        return tuple(range(self.problem.num_devices)) if place == ALL else (place,)

    def base(self, op: int) -> int:
        """Return the forward op that an op belongs to."""
        if self.role[op] == FORWARD:
            return op
        return self.index.get(self.problem.op_names[op].rpartition("/")[0], op)

    def group(self, op: int) -> tuple[int, int, int]:
        """Return the place, part and role of an op."""
        return int(self.device[op]), int(self.part[op]), int(self.role[op])


def roles(problem: PlacementProblem, *, split: bool) -> Ints:
    """Return the role of every op, from its name where it is a backward op; WEIGHTS only with
    `split`.
    """
    found = np.where(problem.backward, INPUTS, FORWARD)
    for i in np.flatnonzero(problem.backward).tolist():
        leaf = problem.op_names[i].rpartition("/")[2]
        if leaf.startswith("update"):
            found[i] = UPDATE
        elif split and leaf.startswith("wgrad"):
            found[i] = WEIGHTS
    return found


def kept_ops(role: Ints, mode: str) -> Flags:
    """Mark the ops that run once per micro-batch."""
    return np.asarray(role == FORWARD if mode == "infer" else role != UPDATE)


def pieces_of(model: PlacedModel) -> list[Piece]:
    """Return one piece per device, part and role where the result is acyclic, else several."""
    order = [v for v in model.problem.topological_order.tolist() if model.kept[v]]
    groups: dict[tuple[int, int, int], list[int]] = {}
    for v in order:
        groups.setdefault(model.group(v), []).append(v)
    whole = [Piece(*group, ops) for group, ops in sorted(groups.items())]
    if nx.is_directed_acyclic_graph(nx.DiGraph(list(quotient(model, whole)))):
        return whole
    # Cut at every change of group along a path: always acyclic. Then merge back greedily.
    level = np.zeros(model.problem.num_ops, np.int64)
    pointer, source, _ = model.problem.predecessors
    for v in order:
        for u in source[pointer[v] : pointer[v + 1]].tolist():
            if model.kept[u]:
                level[v] = max(level[v], level[u] + int(model.group(u) != model.group(v)))
    fine: dict[tuple[int, int, int, int], list[int]] = {}
    for v in order:
        fine.setdefault((*model.group(v), int(level[v])), []).append(v)
    return _Merge(model, [Piece(*key[:3], ops) for key, ops in sorted(fine.items())]).run()


def piece_of_op(model: PlacedModel, pieces: Sequence[Piece]) -> Ints:
    """Return the piece of every op, -1 where it is left out."""
    found = np.full(model.problem.num_ops, -1, np.int64)
    for index, piece in enumerate(pieces):
        found[piece.ops] = index
    return found


def quotient(model: PlacedModel, pieces: Sequence[Piece]) -> set[tuple[int, int]]:
    """Return pairs of different pieces with an op edge from one to the other, and I before W."""
    at = piece_of_op(model, pieces)
    tensor = model.problem.edge_tensor
    source, target = at[model.problem.producer[tensor]], at[model.problem.consumer]
    keep = (source >= 0) & (target >= 0) & (source != target)
    pairs = set(zip(source[keep].tolist(), target[keep].tolist(), strict=True))
    groups: dict[tuple[int, int, int], list[int]] = {}
    for index, piece in enumerate(pieces):
        groups.setdefault(piece.group, []).append(index)
    for (place, part, role), after in groups.items():
        before = groups.get((place, part, INPUTS), [])
        if role == WEIGHTS and len(before) == 1:
            pairs |= {(before[0], index) for index in after}
    return pairs


def ranks(pieces: Sequence[Piece], pairs: Collection[tuple[int, int]]) -> list[int]:
    """Return the topological rank of every piece; forward pieces first where nothing else
    decides.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(pieces)))
    graph.add_edges_from(pairs)
    order = nx.lexicographical_topological_sort(graph, key=lambda i: pieces[i].role)
    return np.argsort(list(order)).tolist()


class _Merge:
    """Joins pieces of one group, in order, as long as no path leaves and re-enters the joined
    piece.
    """

    def __init__(self, model: PlacedModel, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.after: list[set[int]] = [set() for _ in pieces]
        self.before: list[set[int]] = [set() for _ in pieces]
        for u, v in quotient(model, pieces):
            self.after[u].add(v)
            self.before[v].add(u)

    def run(self) -> list[Piece]:
        """Return the pieces that are left."""
        alive = list(range(len(self.pieces)))
        for i in range(len(self.pieces)):
            if i not in set(alive):
                continue
            for j in [j for j in alive if j > i and self.pieces[j].group == self.pieces[i].group]:
                if not self._detour(i, j) and not self._detour(j, i):
                    self._join(i, j)
                    alive.remove(j)
        return [self.pieces[i] for i in alive]

    def _detour(self, source: int, target: int) -> bool:
        """Whether a path of two or more edges leads from source to target."""
        reached = [v for v in self.after[source] if v != target]
        seen = set(reached)
        while reached:
            for v in self.after[reached.pop()]:
                if v == target:
                    return True
                if v not in seen:
                    seen.add(v)
                    reached.append(v)
        return False

    def _join(self, i: int, j: int) -> None:
        """Move the ops and edges of piece j to piece i."""
        self.pieces[i].ops += self.pieces[j].ops
        for u in self.before[j]:
            self.after[u].discard(j)
            if u != i:
                self.after[u].add(i)
                self.before[i].add(u)
        for v in self.after[j]:
            self.before[v].discard(j)
            if v != i:
                self.before[v].add(i)
                self.after[i].add(v)
        self.after[i].discard(j)
        self.before[i].discard(j)
