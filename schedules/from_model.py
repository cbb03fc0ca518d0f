"""From a placed model to a pipeline problem: one block per device and pass, with times, lags and activations.

Ops are grouped by device and pass: forward (F), backward (B), or, with `split`, the backward pass of the inputs
(I) and of the weights (W: ops called `.../wgrad`). Optimizer updates run once per step, not per micro-batch, and are
left out. Where a device's group cannot be one block, because a path leaves it and comes back, it is cut into the
fewest blocks that a greedy merge finds, so any placement can be scheduled, contiguous or not. Ops may also be placed
on ALL devices: they become tensor-parallel blocks that occupy every device for 1/D of their time.

Memory: a tensor of the forward pass that a backward op on device d reads is held on d from the first forward block
there that produces or receives it until the last backward block there that reads it starts. The capacity is what the
resident bytes (weights, gradients, optimizer state) leave. With `recompute` only what enters a device is held; its
backward block repeats the forward pass, and room for one micro-batch's activations is set aside.

A lag is the time of the tensors between two blocks on different devices, one after the other on their link.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.arrays import UNLIMITED
from placeopt.model.errors import InputError
from placeopt.schedules.problem import Block, PipelineProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from placeopt.model.graph import OpGraph
    from placeopt.model.problem import PlacementProblem

ALL = -1
"""Pseudo device of an op that runs tensor-parallel on every device."""

FORWARD, INPUTS, WEIGHTS, UPDATE = range(4)


def pipeline_of_model(
    source: Any, cluster: Any, *, mode: str = "train", split: bool = False, recompute: bool = False,
    seconds: float = 10.0, **options: Any,
) -> PipelineProblem:  # fmt: skip
    """Cut a model into stages with the exact period DP and return its pipeline problem.

    Parameters
    ----------
    source, cluster : as for `placeopt.load`; the backward graph is derived for mode="train" if it is missing.
    seconds : time limit of `ideal-dp`, which falls back to linear orders.
    """
    from placeopt.instances.sources import load, load_graph
    from placeopt.model.budget import Budget
    from placeopt.solving.registry import make_solver
    from placeopt.solving.run import run

    if mode not in ("train", "infer"):
        raise InputError(f"mode: expected train or infer, received '{mode}'")
    graph, bundled = load_graph(source, **options)
    if mode == "train" and not graph.backward.any():
        from placeopt.instances.training import training_graph

        graph = training_graph(graph)
    placed = load(join_passes(graph), cluster if cluster is not None else bundled, objective="period")
    result = run(placed, make_solver("ideal-dp"), Budget(seconds=seconds))
    if result.solution is None:
        raise InputError(f"model '{placed.name}' cannot be cut into stages: {result.message or result.status}")
    return pipeline_of_placement(placed, result.solution.device, split=split, recompute=recompute, mode=mode)


def families(graph: OpGraph) -> NDArray[np.int64]:
    """Forward op that each op belongs to: itself, or the op whose gradient or update it is; shape (num_ops,)."""
    index = {name: i for i, name in enumerate(graph.op_names)}
    family = np.arange(graph.num_ops)
    for i in np.flatnonzero(graph.backward).tolist():
        family[i] = index.get(graph.op_names[i].rpartition("/")[0], i)
    return family


def join_passes(graph: OpGraph) -> OpGraph:
    """Tie the backward ops of every op to its device, so that a stage's passes stay together.

    Without it an op without weights (a product with a table that another op holds) may have its passes on two
    devices: no stage that a pipeline runtime or a known schedule could run.
    """
    if not graph.backward.any():
        return graph
    family = families(graph)
    leader = np.arange(graph.num_ops)

    def find(v: int) -> int:
        while leader[v] != v:
            leader[v] = leader[leader[v]]
            v = int(leader[v])
        return v

    first: dict[int, int] = {}
    for v, group in enumerate(graph.colocation.tolist()):
        pair = first.setdefault(group, v) if group >= 0 else v
        for other in (pair, int(family[v])):
            a, b = find(v), find(other)
            leader[max(a, b)] = min(a, b)
    root = np.array([find(v) for v in range(graph.num_ops)])
    size = np.bincount(root, minlength=graph.num_ops)
    return replace(graph, colocation=np.where(size[root] > 1, root, -1))


def pipeline_of_placement(
    problem: PlacementProblem,
    device: ArrayLike,
    *,
    split: bool = False,
    recompute: bool = False,
    mode: str = "train",
    parts: ArrayLike | None = None,
    micro_batches: int = 8,
    name: str = "",
) -> PipelineProblem:
    """Return the pipeline problem of a placement.

    Parameters
    ----------
    device : device of every op, or ALL for tensor-parallel ops; shape (num_ops,).
    split : cut backward passes into I and W.
    recompute : keep only what enters a stage and repeat its forward pass before the backward pass.
    mode : "infer" drops the backward ops and holds no activations.
    parts : stage of every op where a device holds several stages that shall stay apart; shape (num_ops,).

    Raises
    ------
    InputError
        If weights do not fit, an op cannot run on its device, or recomputation would need a stage in pieces.
    """
    where = np.asarray(device, dtype=np.int64)
    apart = where if parts is None else np.asarray(parts, dtype=np.int64)
    return _Partition(problem, where, apart, split, recompute, mode).build(micro_batches, name)


@dataclass
class _Piece:
    """A block in the making."""

    place: int
    role: int
    ops: list[int]
    part: int = 0

    @property
    def group(self) -> tuple[int, int, int]:
        """Pieces of one group may be joined."""
        return self.place, self.part, self.role


class _Partition:
    """One partition; the steps of `build` are the sections of the module's docstring."""

    def __init__(
        self,
        problem: PlacementProblem,
        device: NDArray[np.int64],
        part: NDArray[np.int64],
        split: bool,
        recompute: bool,
        mode: str,
    ) -> None:
        self.problem, self.device, self.part, self.recompute = problem, device, part, recompute
        n, k = problem.num_ops, problem.num_devices
        if device.shape != (n,):
            raise InputError(f"device: expected one entry per op ({n}), received shape {device.shape}")
        if device.min() < ALL or device.max() >= k:
            raise InputError(f"device: expected 0..{k - 1}, or -1 for all devices, received {device.max()}")
        single = device >= 0
        bad = single & (problem.compute[np.arange(n), np.maximum(device, 0)] < 0)
        if bad.any():
            op = int(bad.argmax())
            raise InputError(f"op '{problem.op_names[op]}' cannot run on '{problem.device_names[device[op]]}'")
        self.role = np.where(problem.backward, INPUTS, FORWARD)
        for i, op_name in enumerate(problem.op_names):
            leaf = op_name.rpartition("/")[2]
            if leaf.startswith("update") and problem.backward[i]:
                self.role[i] = UPDATE
            elif split and leaf.startswith("wgrad"):
                self.role[i] = WEIGHTS
        self.index = {op_name: i for i, op_name in enumerate(problem.op_names)}
        self.kept = self.role != UPDATE
        if mode == "infer":
            self.kept &= self.role == FORWARD
        self.training = mode == "train" and bool((self.role == INPUTS).any())
        self.split = split

    def build(self, micro_batches: int, name: str) -> PipelineProblem:
        problem = self.problem
        self.pieces = self._pieces()
        self.piece_of = np.full(problem.num_ops, -1, dtype=np.int64)
        for index, piece in enumerate(self.pieces):
            self.piece_of[piece.ops] = index
        edges = self._edges()
        rank = self._order(edges)
        memory, reserve = self._memory(rank)
        span = [self._span(piece) for piece in self.pieces]
        if self.recompute and self.training:
            self._add_recomputation(span)
        names = self._names(rank)
        stage = self._stages(rank)
        blocks = []
        for index in sorted(range(len(self.pieces)), key=lambda i: rank[i]):
            piece = self.pieces[index]
            devices = self._devices(piece.place)
            after = tuple((names[u], lag) for (u, v), lag in sorted(edges.items()) if v == index)
            kind = ("F", "I" if self.split else "B", "W")[piece.role]
            deltas = tuple(int(memory[index, d]) for d in devices)
            blocks.append(Block(names[index], kind, devices, span[index], deltas, after, stage[index]))
        return PipelineProblem.from_blocks(
            name or problem.name, blocks, problem.device_names, capacity=self._capacity(reserve),
            micro_batches=micro_batches, tick_seconds=problem.tick_seconds,
        )  # fmt: skip

    def _devices(self, place: int) -> tuple[int, ...]:
        return tuple(range(self.problem.num_devices)) if place == ALL else (place,)

    # --- grouping ------------------------------------------------------------------------------------

    def _pieces(self) -> list[_Piece]:
        """One piece per (device, role) where the result is acyclic, else several."""
        order = [v for v in self.problem.topological_order.tolist() if self.kept[v]]
        groups: dict[tuple[int, int, int], list[int]] = {}
        for v in order:
            groups.setdefault(self._group(v), []).append(v)
        whole = [_Piece(place, role, ops, part) for (place, part, role), ops in sorted(groups.items())]
        if _is_acyclic(len(whole), self._quotient(whole)):
            return whole
        # Cut at every change of group along a path: always acyclic. Then merge back greedily.
        level = np.zeros(self.problem.num_ops, dtype=np.int64)
        pointer, source, _ = self.problem.predecessors
        for v in order:
            for u in source[pointer[v] : pointer[v + 1]].tolist():
                if self.kept[u]:
                    level[v] = max(level[v], level[u] + int(self._group(u) != self._group(v)))
        fine: dict[tuple[int, int, int, int], list[int]] = {}
        for v in order:
            fine.setdefault((*self._group(v), int(level[v])), []).append(v)
        return self._merge([_Piece(place, role, ops, part) for (place, part, role, _), ops in sorted(fine.items())])

    def _group(self, op: int) -> tuple[int, int, int]:
        return int(self.device[op]), int(self.part[op]), int(self.role[op])

    def _quotient(self, pieces: Sequence[_Piece]) -> set[tuple[int, int]]:
        """Pairs of different pieces with an op edge from one to the other, and I before W."""
        at = np.full(self.problem.num_ops, -1, dtype=np.int64)
        for index, piece in enumerate(pieces):
            at[piece.ops] = index
        tensor = self.problem.edge_tensor
        source, target = at[self.problem.producer[tensor]], at[self.problem.consumer]
        keep = (source >= 0) & (target >= 0) & (source != target)
        pairs = set(zip(source[keep].tolist(), target[keep].tolist(), strict=True))
        inputs: dict[tuple[int, int], list[int]] = {}
        for index, piece in enumerate(pieces):
            if piece.role == INPUTS:
                inputs.setdefault((piece.place, piece.part), []).append(index)
        for index, piece in enumerate(pieces):
            before = inputs.get((piece.place, piece.part), [])
            if piece.role == WEIGHTS and len(before) == 1:
                pairs.add((before[0], index))
        return pairs

    def _merge(self, pieces: list[_Piece]) -> list[_Piece]:
        """Join pieces of one group, in order, as long as no path leaves and re-enters the joined piece."""
        after: list[set[int]] = [set() for _ in pieces]
        before: list[set[int]] = [set() for _ in pieces]
        for u, v in self._quotient(pieces):
            after[u].add(v)
            before[v].add(u)

        def detour(source: int, target: int) -> bool:
            """Whether a path of two or more edges leads from source to target."""
            reached = [v for v in after[source] if v != target]
            seen = set(reached)
            while reached:
                for v in after[reached.pop()]:
                    if v == target:
                        return True
                    if v not in seen:
                        seen.add(v)
                        reached.append(v)
            return False

        alive = list(range(len(pieces)))
        for i in range(len(pieces)):
            if i not in set(alive):
                continue
            for j in [j for j in alive if j > i and pieces[j].group == pieces[i].group]:
                if detour(i, j) or detour(j, i):
                    continue
                pieces[i].ops += pieces[j].ops
                for u in before[j]:
                    after[u].discard(j)
                    if u != i:
                        after[u].add(i)
                        before[i].add(u)
                for v in after[j]:
                    before[v].discard(j)
                    if v != i:
                        before[v].add(i)
                        after[i].add(v)
                after[i].discard(j)
                before[i].discard(j)
                alive.remove(j)
        return [pieces[i] for i in alive]

    # --- times ---------------------------------------------------------------------------------------

    def _span(self, piece: _Piece) -> int:
        """Ticks of a piece; a tensor-parallel one takes 1/D of its time plus the tensors it exchanges.

        It gathers what ops on single devices read. As two products with weights share one all-reduce of twice the
        volume, it exchanges the output of every op with weights once, unless only the op's own backward pass reads
        it (logits stay in shards), or it is the op's table. Between tensor-parallel ops, all else stays in shards.
        """
        problem = self.problem
        if piece.place != ALL:
            return max(1, int(problem.compute[piece.ops, piece.place].sum()))
        k = problem.num_devices
        work = int(problem.compute[piece.ops].max(axis=1).sum())
        gathered = 0
        if k > 1:
            pointer, tensors = problem.outputs
            for v in piece.ops:
                exchanges = self._has_weights(v)
                for t in tensors[pointer[v] : pointer[v + 1]].tolist():
                    readers = problem.consumer[problem.consumer_ptr[t] : problem.consumer_ptr[t + 1]].tolist()
                    kept = [c for c in readers if self.kept[c]]
                    single = any(self.device[c] != ALL for c in kept)
                    table = 0 < problem.resident[v] <= problem.tensor_bytes[t]
                    if single or (exchanges and not table and any(self._base(c) != self._base(v) for c in kept)):
                        gathered += self._slowest(t)
        return max(1, -(-work // k) + gathered)

    def _slowest(self, tensor: int) -> int:
        """Ticks of a tensor on the slowest link."""
        problem = self.problem
        links = np.unique(problem.link_class[~np.eye(problem.num_devices, dtype=np.bool_)])
        return int(problem.transfer[tensor, links].max())

    def _base(self, op: int) -> int:
        """Return the forward op that an op belongs to."""
        if self.role[op] == FORWARD:
            return op
        return self.index.get(self.problem.op_names[op].rpartition("/")[0], op)

    def _has_weights(self, op: int) -> bool:
        """Whether a forward op, or the forward op that an input gradient belongs to, has weights."""
        if self.role[op] == FORWARD:
            return bool(self.problem.resident[op] > 0)
        leaf = self.problem.op_names[op].rpartition("/")[2]
        return leaf.startswith("igrad") and bool(self.problem.resident[self._base(op)] > 0)

    def _add_recomputation(self, span: list[int]) -> None:
        """Backward blocks repeat the forward pass of their device."""
        for place in sorted({(piece.place, piece.part) for piece in self.pieces}):
            forward = [i for i, p in enumerate(self.pieces) if (p.place, p.part) == place and p.role == FORWARD]
            backward = [i for i, p in enumerate(self.pieces) if (p.place, p.part) == place and p.role == INPUTS]
            if len(forward) == len(backward):
                # The j-th backward piece, from the end, belongs to the j-th forward piece.
                for f, b in zip(sorted(forward), sorted(backward, reverse=True), strict=True):
                    span[b] += span[f]
            elif backward:
                span[backward[0]] += sum(span[f] for f in forward)

    def _edges(self) -> dict[tuple[int, int], int]:
        """(piece, piece) -> lag in ticks: the tensors that move from one device to another."""
        problem = self.problem
        lags = dict.fromkeys(self._quotient(self.pieces), 0)
        seen: set[tuple[int, int, int]] = set()
        tensor = problem.edge_tensor
        for t, u, v in zip(
            tensor.tolist(), self.piece_of[problem.producer[tensor]].tolist(),
            self.piece_of[problem.consumer].tolist(), strict=True,
        ):  # fmt: skip
            if u < 0 or v < 0 or u == v or (t, u, v) in seen:
                continue
            seen.add((t, u, v))
            source, target = self.pieces[u].place, self.pieces[v].place
            if source in (ALL, target):
                continue  # tensor-parallel blocks have gathered what they give
            lags[u, v] += (
                self._slowest(t) if target == ALL else int(problem.transfer[t, problem.link_class[source, target]])
            )
        return lags

    # --- memory --------------------------------------------------------------------------------------

    def _memory(self, rank: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (deltas per piece and device, bytes set aside per device)."""
        problem = self.problem
        k = problem.num_devices
        memory = np.zeros((len(self.pieces), k), dtype=np.int64)
        reserve = np.zeros(k, dtype=np.int64)
        if not self.training:
            return memory, reserve
        pointer = problem.consumer_ptr.tolist()
        for t in range(problem.num_tensors):
            size = int(problem.tensor_bytes[t])
            maker = int(problem.producer[t])
            if size == 0 or self.role[maker] != FORWARD:
                continue
            readers = problem.consumer[pointer[t] : pointer[t + 1]].tolist()
            for place in sorted({int(self.device[c]) for c in readers if self.kept[c] and self.role[c] != FORWARD}):
                makers = [maker] if self.device[maker] == place else [
                    c for c in readers if self.device[c] == place and self.role[c] == FORWARD
                ]  # fmt: skip
                users = [c for c in readers if self.device[c] == place and self.kept[c] and self.role[c] != FORWARD]
                if not makers:
                    continue  # arrives for the backward pass only
                first = min((int(self.piece_of[c]) for c in makers), key=lambda i: rank[i])
                last = max((int(self.piece_of[c]) for c in users), key=lambda i: rank[i])
                where = list(self._devices(place))
                share = -(-size // len(where))
                if self.recompute and self.device[maker] == place:
                    reserve[where] += share
                    continue
                memory[first, where] += share
                memory[last, where] -= share
        return memory, reserve

    def _capacity(self, reserve: NDArray[np.int64]) -> list[int]:
        """Bytes that weights and set-aside room leave on each device."""
        problem = self.problem
        capacity = []
        spread = int(problem.resident[self.device == ALL].sum())
        for d in range(problem.num_devices):
            if problem.capacity[d] >= UNLIMITED:
                capacity.append(UNLIMITED)
                continue
            held = int(problem.resident[self.device == d].sum()) - (-spread // problem.num_devices)
            left = int(problem.capacity[d]) - held - int(reserve[d])
            if left < 0:
                raise InputError(
                    f"'{problem.device_names[d]}' has {int(problem.capacity[d])} bytes, but its stage needs {held} for "
                    f"weights and {int(reserve[d])} for recomputation; use more devices or smaller micro-batches"
                )
            capacity.append(left)
        return capacity

    # --- names ---------------------------------------------------------------------------------------

    def _order(self, edges: dict[tuple[int, int], int]) -> list[int]:
        """Topological rank of every piece; forward pieces first where nothing else decides."""
        from heapq import heapify, heappop, heappush

        count = len(self.pieces)
        waiting = [0] * count
        after: list[list[int]] = [[] for _ in range(count)]
        for u, v in sorted(edges):
            waiting[v] += 1
            after[u].append(v)
        ready = [(self.pieces[i].role, i) for i in range(count) if waiting[i] == 0]
        heapify(ready)
        rank = [0] * count
        position = 0
        while ready:
            _, i = heappop(ready)
            rank[i] = position
            position += 1
            for v in after[i]:
                waiting[v] -= 1
                if waiting[v] == 0:
                    heappush(ready, (self.pieces[v].role, v))
        return rank

    def _names(self, rank: list[int]) -> list[str]:
        letters = ("F", "I" if self.split else "B", "W")
        names = [""] * len(self.pieces)
        count: dict[tuple[int, int], int] = {}
        total: dict[tuple[int, int], int] = {}
        for piece in self.pieces:
            key = (piece.place, piece.role)
            total[key] = total.get(key, 0) + 1
        for i in sorted(range(len(self.pieces)), key=lambda i: rank[i]):
            key = (self.pieces[i].place, self.pieces[i].role)
            number = count.get(key, 0)
            count[key] = number + 1
            stem = f"T{letters[key[1]]}" if key[0] == ALL else f"{letters[key[1]]}{key[0]}"
            names[i] = f"{stem}.{number}" if total[key] > 1 else stem
        return names

    def _stages(self, rank: list[int]) -> list[int]:
        """Number the forward pieces by rank; a device's backward pieces count from the end."""
        stage = [-1] * len(self.pieces)
        ordered = sorted(range(len(self.pieces)), key=lambda i: rank[i])
        by_place: dict[tuple[int, int], list[int]] = {}
        for number, i in enumerate(i for i in ordered if self.pieces[i].role == FORWARD):
            stage[i] = number
            by_place.setdefault((self.pieces[i].place, self.pieces[i].part), []).append(number)
        for role in (INPUTS, WEIGHTS):
            left = {place: list(numbers) for place, numbers in by_place.items()}
            for i in ordered:
                mine = left.get((self.pieces[i].place, self.pieces[i].part))
                if self.pieces[i].role == role and mine:
                    stage[i] = mine.pop()
        return stage


def _is_acyclic(count: int, pairs: set[tuple[int, int]]) -> bool:
    """Whether a graph of `count` nodes has no cycle."""
    waiting = [0] * count
    after: list[list[int]] = [[] for _ in range(count)]
    for u, v in sorted(pairs):
        waiting[v] += 1
        after[u].append(v)
    ready = [i for i in range(count) if waiting[i] == 0]
    done = 0
    while ready:
        done += 1
        for v in after[ready.pop()]:
            waiting[v] -= 1
            if waiting[v] == 0:
                ready.append(v)
    return done == count
