"""From a placed model to a pipeline problem: one block per device and pass, with times, lags and
activations.

Ops are grouped by device and pass: forward (F), backward (B), or, with `split`, the backward pass
of the inputs (I) and of the weights (W: ops called `.../wgrad`). Optimizer updates run once per
step, not per micro-batch, and are left out. Where a device's group cannot be one block, because a
path leaves it and comes back, it is cut into the fewest blocks that a greedy merge finds, so any
placement can be scheduled, contiguous or not. Ops may also be placed on ALL devices: they become
tensor-parallel blocks that occupy every device for 1/D of their time.

A lag is the time of the tensors between two blocks on different devices, one after the other on
their link.

Memory: a tensor of the forward pass that a backward op on device d reads is held on d from the
first forward block there that produces or receives it until the last backward block there that
reads it starts. The capacity is what the resident bytes (weights, gradients, optimizer state)
leave. With `recompute` only what enters a device is held; its backward block repeats the forward
pass, and room for one micro-batch's activations is set aside.

A pipeline problem is one way to cut a model. What is proved of its schedules holds for this cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike

from placeopt.instances.module_groups import colocated, families
from placeopt.model.arrays import UNLIMITED, Flags, Ints, by_key, row_at, together, true_places
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.problem import PlacementProblem
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.shapes import check_mode

ALL = -1
"""Pseudo device of an op that runs tensor-parallel on every device."""

FORWARD, INPUTS, WEIGHTS, UPDATE = range(4)
"""Roles of ops: forward pass, backward pass (of the inputs), backward pass of the weights,
optimizer update."""


def join_passes(graph: OpGraph) -> OpGraph:
    """Tie the backward ops of every op to its device, so that a stage's passes stay together.

    Without it an op without weights (a product with a table that another op holds) may have its
    passes on two devices: no stage that a pipeline runtime or a known schedule could run.
    """
    if not graph.backward.any():
        return graph
    return colocated(graph, list(enumerate(families(graph).tolist())))


def least_work(problem: PlacementProblem, mode: str) -> int:
    """Return the ticks that all devices together work on one micro-batch at least, however the
    model is cut.

    Every op that runs once per micro-batch takes at least its time on its fastest device, on one or
    in shares on all.
    """
    kept = kept_ops(roles(problem, split=False), mode)
    compute = problem.compute[kept]
    return int(np.where(compute < 0, np.iinfo(np.int64).max, compute).min(axis=1).sum())


def pipeline_of_placement(
    problem: PlacementProblem,
    device: ArrayLike,
    *,
    split: bool = False,
    recompute: bool = False,
    mode: str = "train",
    parts: ArrayLike | None = None,
) -> PipelineProblem:
    """Return the pipeline problem of a placement.

    Parameters
    ----------
    device : device of every op, or ALL for tensor-parallel ops; shape (num_ops,).
    split : cut backward passes into I and W.
    recompute : keep only what enters a stage and repeat its forward pass before the backward pass.
    mode : "infer" drops the backward ops and holds no activations.
    parts : stage of every op where a device holds several stages that shall stay apart; shape
    (num_ops,).

    Raises
    ------
    InputError
        If weights do not fit, an op cannot run on its device, or recomputation would need a stage
        in pieces.
    """
    model = _placed(problem, device, parts, mode, split=split, recompute=recompute)
    pieces = pieces_of(model)
    edges = lags(model, pieces)
    order = in_order(pieces, edges)
    memory, reserve = activations(model, pieces, order)
    span, names, stage = spans(model, pieces), _names(model, pieces, order), _stages(pieces, order)
    blocks = []
    for index in order:
        piece = pieces[index]
        devices = model.devices(piece.place)
        blocks.append(
            Block(
                names[index],
                _letter(model, piece.role),
                devices,
                span[index],
                tuple(memory[index, list(devices)].tolist()),
                tuple((names[u], lag) for (u, v), lag in sorted(edges.items()) if v == index),
                stage[index],
            )
        )
    return PipelineProblem.from_blocks(
        problem.name,
        blocks,
        problem.device_names,
        capacity=capacities(model, reserve),
        tick_seconds=problem.tick_seconds,
    )


def stage_of_ops(
    problem: PlacementProblem, device: ArrayLike, parts: ArrayLike | None = None
) -> tuple[Ints, list[int]]:
    """Return the stage of every op, counted as the blocks of `pipeline_of_placement` are, and the
    device of every stage.

    A backward op has the stage of its forward op. -1 is an op that belongs to no stage.
    """
    model = _placed(problem, device, parts, "train" if problem.backward.any() else "infer")
    pieces = pieces_of(model)
    order = in_order(pieces, lags(model, pieces))
    forward = [pieces[i] for i in order if pieces[i].role == FORWARD]
    stage = np.full(problem.num_ops, -1, np.int64)
    for number, piece in enumerate(forward):
        stage[piece.ops] = number
    for op in true_places(problem.backward):
        stage[op] = stage[model.family[op]]
    return stage, [piece.place for piece in forward]


def _placed(
    problem: PlacementProblem,
    device: ArrayLike,
    parts: ArrayLike | None,
    mode: str,
    *,
    split: bool = False,
    recompute: bool = False,
) -> PlacedModel:
    """Return the model with its devices, which are the stages, too, where `parts` says none."""
    where = np.asarray(device, np.int64)
    apart = where if parts is None else np.asarray(parts, np.int64)
    return PlacedModel(problem, where, apart, split, recompute, mode)


def _letter(model: PlacedModel, role: int) -> str:
    """Return the kind of the blocks of a role."""
    return {FORWARD: "F", INPUTS: "I" if model.split else "B", WEIGHTS: "W"}[role]


def _names(model: PlacedModel, pieces: Sequence[Piece], order: Sequence[int]) -> list[str]:
    """Name pieces by kind and device, T for all devices, and number those of the same kind and
    device in their order.
    """
    names = [""] * len(pieces)
    total = Counter((piece.place, piece.role) for piece in pieces)
    count: Counter[tuple[int, int]] = Counter()
    for i in order:
        place, role = key = pieces[i].place, pieces[i].role
        letter = _letter(model, role)
        stem = f"T{letter}" if place == ALL else f"{letter}{place}"
        names[i] = f"{stem}.{count[key]}" if total[key] > 1 else stem
        count[key] += 1
    return names


def _stages(pieces: Sequence[Piece], order: Sequence[int]) -> list[int]:
    """Number the forward pieces in their order; a device's backward pieces count from the end."""
    stage = [-1] * len(pieces)
    left: dict[tuple[int, int, int], list[int]] = {}
    for number, i in enumerate(i for i in order if pieces[i].role == FORWARD):
        stage[i] = number
        for role in (INPUTS, WEIGHTS):
            left.setdefault((pieces[i].place, pieces[i].part, role), []).append(number)
    for i in order:
        mine = left.get(pieces[i].group)
        if mine:
            stage[i] = mine.pop()
    return stage


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
        check_mode(self.mode)
        for what, column in (("device", device), ("parts", self.part)):
            if column.shape != (n,):
                raise InputError(
                    f"{what}: expected one entry per op ({n}), received shape {column.shape}"
                )
        unknown = device[(device < ALL) | (device >= k)]
        if unknown.size:
            raise InputError(
                f"device: expected 0..{k - 1}, or -1 for all devices, received {unknown[0]}"
            )
        # an op on all devices has to run on the one that it suits least
        used = np.where(device == ALL, problem.compute.argmin(axis=1), device)
        bad = problem.compute[np.arange(n), used] < 0
        if bad.any():
            op = int(bad.argmax())
            raise InputError(
                f"op '{problem.op_names[op]}' cannot run on '{problem.device_names[used[op]]}'"
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
    def family(self) -> Ints:
        """Forward op that each op belongs to."""
        return families(self.problem)

    @property
    def training(self) -> bool:
        """Whether activations have to be held for a backward pass."""
        return self.mode == "train" and bool((self.role == INPUTS).any())

    def devices(self, place: int) -> tuple[int, ...]:
        """Return the devices of a place."""
        return tuple(range(self.problem.num_devices)) if place == ALL else (place,)

    def group(self, op: int) -> tuple[int, int, int]:
        """Return the place, part and role of an op."""
        return int(self.device[op]), int(self.part[op]), int(self.role[op])


def roles(problem: PlacementProblem, *, split: bool) -> Ints:
    """Return the role of every op, from its name where it is a backward op; WEIGHTS only with
    `split`.
    """
    found = np.where(problem.backward, INPUTS, FORWARD)
    for i in true_places(problem.backward):
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
    level = np.zeros(model.problem.num_ops, np.int64)

    def pieces() -> list[Piece]:
        """Return one piece per device, part, role and level."""
        groups = by_key(((*model.group(v), int(level[v])), v) for v in order)
        return [Piece(*key[:3], ops) for key, ops in sorted(groups.items())]

    whole = pieces()
    if nx.is_directed_acyclic_graph(nx.DiGraph(list(quotient(model, whole)))):
        return whole
    # Cut at every change of group along a path: always acyclic. Then merge back greedily.
    pointer, source, _ = model.problem.predecessors
    for v in order:
        for u in row_at(source, pointer, v).tolist():
            if model.kept[u]:
                level[v] = max(level[v], level[u] + int(model.group(u) != model.group(v)))
    return _merged(model, pieces())


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
    pairs = set(together(source[keep], target[keep]))
    groups = by_key((piece.group, index) for index, piece in enumerate(pieces))
    for (place, part, role), after in groups.items():
        before = groups.get((place, part, INPUTS), [])
        if role == WEIGHTS and len(before) == 1:
            pairs |= {(before[0], index) for index in after}
    return pairs


def in_order(pieces: Sequence[Piece], pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the pieces in topological order; forward pieces first where nothing else decides."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(pieces)))
    graph.add_edges_from(pairs)
    return list(nx.lexicographical_topological_sort(graph, key=lambda i: pieces[i].role))


def _merged(model: PlacedModel, pieces: list[Piece]) -> list[Piece]:
    """Join pieces of one group, in order, as long as no path leaves and re-enters the joined
    piece.
    """
    graph = nx.DiGraph(list(quotient(model, pieces)))
    graph.add_nodes_from(range(len(pieces)))
    for i, piece in enumerate(pieces):
        if i not in graph:
            continue
        for j in sorted(j for j in graph if j > i and pieces[j].group == piece.group):
            if not _detour(graph, i, j) and not _detour(graph, j, i):
                piece.ops += pieces[j].ops
                nx.contracted_nodes(graph, i, j, self_loops=False, copy=False)
    return [pieces[i] for i in sorted(graph)]


def _detour(graph: nx.DiGraph, source: int, target: int) -> bool:
    """Whether a path of two or more edges leads from source to target."""
    return any(v != target and nx.has_path(graph, v, target) for v in graph[source])


def spans(model: PlacedModel, pieces: Sequence[Piece]) -> list[int]:
    """Return the ticks of every piece, with recomputation where the model asks for it."""
    found = [_span(model, piece) for piece in pieces]
    if model.recompute and model.training:
        _add_recomputation(pieces, found)
    return found


def _span(model: PlacedModel, piece: Piece) -> int:
    """Ticks of a piece; a tensor-parallel one takes 1/D of its time plus the tensors it exchanges.

    It gathers what ops on single devices read. As two products with weights share one all-reduce of
    twice the volume, it exchanges the output of every op with weights once, unless only the op's
    own backward pass reads it (logits stay in shards), or it is the op's table. Between
    tensor-parallel ops, all else stays in shards.
    """
    problem = model.problem
    if piece.place != ALL:
        return max(1, int(problem.compute[piece.ops, piece.place].sum()))
    work = int(problem.compute[piece.ops].max(axis=1).sum())
    made = true_places(np.isin(problem.producer, piece.ops))
    gathered = sum(_slowest(model, t) for t in made if _exchanged(model, t))
    return max(1, -(-work // problem.num_devices) + gathered)


def _exchanged(model: PlacedModel, tensor: int) -> bool:
    """Whether the devices that share a tensor-parallel op exchange this output of it."""
    problem, op = model.problem, int(model.problem.producer[tensor])
    kept = [c for c in problem.readers_of(tensor) if model.kept[c]]
    if any(model.device[c] != ALL for c in kept):
        return True
    table = is_table(problem.tensor_bytes[tensor], problem.resident[op])
    others_read = bool((model.family[kept] != model.family[op]).any())
    return _has_weights(model, op) and not table and others_read


def is_table(tensor_bytes: int, resident: int) -> bool:
    """Whether a tensor is the table of weights that its producer keeps (tied embeddings hand theirs
    on).
    """
    return 0 < resident <= tensor_bytes


def _has_weights(model: PlacedModel, op: int) -> bool:
    """Whether a forward op, or the forward op that an input gradient belongs to, has weights."""
    leaf = model.problem.op_names[op].rpartition("/")[2]
    counts = model.role[op] == FORWARD or leaf.startswith("igrad")
    return bool(counts and model.problem.resident[model.family[op]] > 0)


def _slowest(model: PlacedModel, tensor: int) -> int:
    """Ticks of a tensor on the slowest link."""
    problem = model.problem
    links = np.unique(problem.link_class[~np.eye(problem.num_devices, dtype=np.bool_)])
    return int(problem.transfer[tensor, links].max(initial=0))


def _add_recomputation(pieces: Sequence[Piece], span: list[int]) -> None:
    """Backward blocks repeat the forward pass of their device."""
    for place in sorted({(piece.place, piece.part) for piece in pieces}):
        forward = [i for i, piece in enumerate(pieces) if piece.group == (*place, FORWARD)]
        backward = [i for i, piece in enumerate(pieces) if piece.group == (*place, INPUTS)]
        if len(forward) == len(backward):
            # The j-th backward piece, from the end, belongs to the j-th forward piece.
            for f, b in zip(forward, backward[::-1], strict=True):
                span[b] += span[f]
        elif backward:
            span[backward[0]] += sum(span[f] for f in forward)


def lags(model: PlacedModel, pieces: Sequence[Piece]) -> dict[tuple[int, int], int]:
    """Return (piece, piece) -> lag in ticks: the tensors that move from one device to another."""
    problem, piece_of = model.problem, piece_of_op(model, pieces)
    found = dict.fromkeys(quotient(model, pieces), 0)
    tensor = problem.edge_tensor
    source, target = piece_of[problem.producer[tensor]], piece_of[problem.consumer]
    for t, u, v in set(together(tensor, source, target)):
        if (u, v) not in found:
            continue
        here, there = pieces[u].place, pieces[v].place
        if here in (ALL, there):
            continue  # tensor-parallel blocks have gathered what they give
        link = problem.link_class[here, there]
        found[u, v] += _slowest(model, t) if there == ALL else int(problem.transfer[t, link])
    return found


def activations(
    model: PlacedModel, pieces: Sequence[Piece], order: Sequence[int]
) -> tuple[Ints, Ints]:
    """Return (change of memory per piece and device, bytes set aside per device)."""
    problem = model.problem
    memory = np.zeros((len(pieces), problem.num_devices), np.int64)
    reserve = np.zeros(problem.num_devices, np.int64)
    if not model.training:
        return memory, reserve
    at = np.argsort(order)[piece_of_op(model, pieces)]  # of every op's piece in the order
    waits = nx.DiGraph(list(quotient(model, pieces)))
    waits.add_nodes_from(order)
    for t in range(problem.num_tensors):
        size, maker = int(problem.tensor_bytes[t]), int(problem.producer[t])
        if size == 0 or model.role[maker] != FORWARD:
            continue
        for place, makers, later in _kept_at(model, t):
            where = list(model.devices(place))
            share = -(-size // len(where))
            if model.recompute and model.device[maker] == place:
                reserve[where] += share
                continue
            # From the first block to the last that waits for it; what no path joins is not kept.
            held = next(
                (
                    (order[a], order[b])
                    for a in np.unique(at[makers])
                    for b in np.unique(at[later])[::-1]
                    if nx.has_path(waits, order[a], order[b])
                ),
                None,
            )
            if held is not None:
                memory[held[0], where] += share
                memory[held[1], where] -= share
    return memory, reserve


def _kept_at(model: PlacedModel, t: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield the places that keep a tensor for later passes, the forward ops with which it gets
    there, and the ops that it is kept for; not where it arrives for the backward pass only.
    """
    problem, device, maker = model.problem, model.device, int(model.problem.producer[t])
    readers = problem.readers_of(t)
    later = [c for c in readers if model.kept[c] and model.role[c] != FORWARD]
    for place in sorted({int(device[c]) for c in later}):
        makers = [maker]
        if device[maker] != place:
            makers = [c for c in readers if device[c] == place and model.role[c] == FORWARD]
        if makers:
            yield place, makers, [c for c in later if device[c] == place]


def resident_bytes(problem: PlacementProblem, device: Ints) -> list[int]:
    """Return the bytes that stay on every device: those of its ops, and its share of
    tensor-parallel ones.
    """
    spread = int(problem.resident[device == ALL].sum())
    return [
        int(problem.resident[device == d].sum()) - (-spread // problem.num_devices)
        for d in range(problem.num_devices)
    ]


def capacities(model: PlacedModel, reserve: Ints) -> list[int]:
    """Return the bytes that weights and set-aside room leave on each device.

    Raises
    ------
    InputError
        If they leave none.
    """
    problem, held = model.problem, np.array(resident_bytes(model.problem, model.device))
    limited = problem.capacity < UNLIMITED
    left = np.where(limited, problem.capacity - held - reserve, UNLIMITED)
    if left.min() < 0:
        d = int((left < 0).argmax())
        raise InputError(
            f"'{problem.device_names[d]}' has {problem.capacity[d]} bytes, but its stage needs "
            f"{held[d]} for weights and {reserve[d]} for recomputation; use more devices or "
            "smaller micro-batches"
        )
    return left.tolist()
