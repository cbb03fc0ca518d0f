"""What the blocks of a placed model cost: times, lags and memory.

A lag is the time of the tensors between two blocks on different devices, one after the other on
their link.

Memory: a tensor of the forward pass that a backward op on device d reads is held on d from the
first forward block there that produces or receives it until the last backward block there that
reads it starts. The capacity is what the resident bytes (weights, gradients, optimizer state)
leave. With `recompute` only what enters a device is held; its backward block repeats the forward
pass, and room for one micro-batch's activations is set aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import UNLIMITED, Ints
from placeopt.model.errors import InputError
from placeopt.schedules.placed_model import ALL, FORWARD, INPUTS, piece_of_op, quotient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.schedules.placed_model import Piece, PlacedModel


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
    k = problem.num_devices
    work = int(problem.compute[piece.ops].max(axis=1).sum())
    gathered = 0
    if k > 1:
        pointer, tensors = problem.outputs
        for v in piece.ops:
            gathered += sum(
                _slowest(model, t)
                for t in tensors[pointer[v] : pointer[v + 1]].tolist()
                if _exchanged(model, v, t)
            )
    return max(1, -(-work // k) + gathered)


def _exchanged(model: PlacedModel, op: int, tensor: int) -> bool:
    """Whether the devices that share a tensor-parallel op exchange one of its outputs."""
    problem = model.problem
    readers = problem.consumer[
        problem.consumer_ptr[tensor] : problem.consumer_ptr[tensor + 1]
    ].tolist()
    kept = [c for c in readers if model.kept[c]]
    if any(model.device[c] != ALL for c in kept):
        return True
    table = 0 < problem.resident[op] <= problem.tensor_bytes[tensor]
    others_read = any(model.base(c) != model.base(op) for c in kept)
    return _has_weights(model, op) and not table and others_read


def _has_weights(model: PlacedModel, op: int) -> bool:
    """Whether a forward op, or the forward op that an input gradient belongs to, has weights."""
    if model.role[op] == FORWARD:
        return bool(model.problem.resident[op] > 0)
    leaf = model.problem.op_names[op].rpartition("/")[2]
    return leaf.startswith("igrad") and bool(model.problem.resident[model.base(op)] > 0)


def _slowest(model: PlacedModel, tensor: int) -> int:
    """Ticks of a tensor on the slowest link."""
    problem = model.problem
    links = np.unique(problem.link_class[~np.eye(problem.num_devices, dtype=np.bool_)])
    return int(problem.transfer[tensor, links].max())


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
    seen: set[tuple[int, int, int]] = set()
    tensor = problem.edge_tensor
    for t, u, v in zip(
        tensor.tolist(),
        piece_of[problem.producer[tensor]].tolist(),
        piece_of[problem.consumer].tolist(),
        strict=True,
    ):
        if u < 0 or v < 0 or u == v or (t, u, v) in seen:
            continue
        seen.add((t, u, v))
        source, target = pieces[u].place, pieces[v].place
        if source in (ALL, target):
            continue  # tensor-parallel blocks have gathered what they give
        link = problem.link_class[source, target]
        found[u, v] += _slowest(model, t) if target == ALL else int(problem.transfer[t, link])
    return found


def activations(
    model: PlacedModel, pieces: Sequence[Piece], rank: Sequence[int]
) -> tuple[Ints, Ints]:
    """Return (change of memory per piece and device, bytes set aside per device)."""
    problem = model.problem
    memory = np.zeros((len(pieces), problem.num_devices), np.int64)
    reserve = np.zeros(problem.num_devices, np.int64)
    if not model.training:
        return memory, reserve
    piece_of = piece_of_op(model, pieces)
    for t in range(problem.num_tensors):
        size, maker = int(problem.tensor_bytes[t]), int(problem.producer[t])
        if size == 0 or model.role[maker] != FORWARD:
            continue
        for place, makers, later in _kept_at(model, t):
            first = min((int(piece_of[c]) for c in makers), key=lambda i: rank[i])
            last = max((int(piece_of[c]) for c in later), key=lambda i: rank[i])
            where = list(model.devices(place))
            share = -(-size // len(where))
            if model.recompute and model.device[maker] == place:
                reserve[where] += share
                continue
            memory[first, where] += share
            memory[last, where] -= share
    return memory, reserve


def _kept_at(model: PlacedModel, t: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield the places that keep a tensor for later passes, the forward ops with which it gets
    there, and the ops that it is kept for; not where it arrives for the backward pass only.
    """
    problem, device, maker = model.problem, model.device, int(model.problem.producer[t])
    readers = problem.consumer[problem.consumer_ptr[t] : problem.consumer_ptr[t + 1]].tolist()
    later = [c for c in readers if model.kept[c] and model.role[c] != FORWARD]
    for place in sorted({int(device[c]) for c in later}):
        makers = [maker]
        if device[maker] != place:
            makers = [c for c in readers if device[c] == place and model.role[c] == FORWARD]
        if makers:
            yield place, makers, [c for c in later if device[c] == place]


def capacities(model: PlacedModel, reserve: Ints) -> list[int]:
    """Return the bytes that weights and set-aside room leave on each device.

    Raises
    ------
    InputError
        If they leave none.
    """
    problem = model.problem
    found = []
    spread = int(problem.resident[model.device == ALL].sum())
    for d in range(problem.num_devices):
        if problem.capacity[d] >= UNLIMITED:
            found.append(UNLIMITED)
            continue
        held = int(problem.resident[model.device == d].sum()) - (-spread // problem.num_devices)
        left = int(problem.capacity[d]) - held - int(reserve[d])
        if left < 0:
            raise InputError(
                f"'{problem.device_names[d]}' has {int(problem.capacity[d])} bytes, but its stage "
                f"needs {held} for weights and {int(reserve[d])} for recomputation; use more "
                "devices or smaller micro-batches"
            )
        found.append(left)
    return found
