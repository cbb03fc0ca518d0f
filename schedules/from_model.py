"""From a placed model to a pipeline problem: one block per device and pass, with times, lags and
activations.

How ops become blocks is told in `placeopt.schedules.placed_model`, what blocks cost in
`placeopt.schedules.block_costs`. Ops may also be placed on ALL devices: they become tensor-parallel
blocks that occupy every device for 1/D of their time.

A pipeline problem is one way to cut a model. What is proved of its schedules holds for this cut.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placeopt.schedules.block_costs import activations, capacities, lags, spans
from placeopt.schedules.placed_model import (
    ALL,
    FORWARD,
    INPUTS,
    WEIGHTS,
    PlacedModel,
    kept_ops,
    pieces_of,
    ranks,
    roles,
)
from placeopt.schedules.problem import Block, PipelineProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from placeopt.model.arrays import Ints
    from placeopt.model.graph import OpGraph
    from placeopt.model.problem import PlacementProblem
    from placeopt.schedules.placed_model import Piece


def families(graph: OpGraph) -> Ints:
    """Forward op that each op belongs to: itself, or the op whose gradient or update it is; shape
    (num_ops,).
    """
    index = {name: i for i, name in enumerate(graph.op_names)}
    family = np.arange(graph.num_ops)
    for i in np.flatnonzero(graph.backward).tolist():
        family[i] = index.get(graph.op_names[i].rpartition("/")[0], i)
    return family


def join_passes(graph: OpGraph) -> OpGraph:
    """Tie the backward ops of every op to its device, so that a stage's passes stay together.

    Without it an op without weights (a product with a table that another op holds) may have its
    passes on two devices: no stage that a pipeline runtime or a known schedule could run.
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
    parts : stage of every op where a device holds several stages that shall stay apart; shape
    (num_ops,).

    Raises
    ------
    InputError
        If weights do not fit, an op cannot run on its device, or recomputation would need a stage
        in pieces.
    """
    where = np.asarray(device, np.int64)
    apart = where if parts is None else np.asarray(parts, np.int64)
    model = PlacedModel(problem, where, apart, split, recompute, mode)
    pieces = pieces_of(model)
    edges = lags(model, pieces)
    rank = ranks(pieces, edges)
    memory, reserve = activations(model, pieces, rank)
    span, names, stage = spans(model, pieces), _names(model, pieces, rank), _stages(pieces, rank)
    blocks = []
    for index in sorted(range(len(pieces)), key=lambda i: rank[i]):
        piece = pieces[index]
        devices = model.devices(piece.place)
        after = tuple((names[u], lag) for (u, v), lag in sorted(edges.items()) if v == index)
        deltas = tuple(int(memory[index, d]) for d in devices)
        blocks.append(
            Block(
                names[index],
                _letter(model, piece.role),
                devices,
                span[index],
                deltas,
                after,
                stage[index],
            )
        )
    return PipelineProblem.from_blocks(
        name or problem.name,
        blocks,
        problem.device_names,
        capacity=capacities(model, reserve),
        micro_batches=micro_batches,
        tick_seconds=problem.tick_seconds,
    )


def stage_of_ops(
    problem: PlacementProblem, device: ArrayLike, parts: ArrayLike | None = None
) -> tuple[Ints, list[int]]:
    """Return the stage of every op, counted as the blocks of `pipeline_of_placement` are, and the
    device of every stage.

    A backward op has the stage of its forward op. -1 is an op that belongs to no stage.
    """
    where = np.asarray(device, np.int64)
    apart = where if parts is None else np.asarray(parts, np.int64)
    model = PlacedModel(
        problem, where, apart, False, False, "train" if problem.backward.any() else "infer"
    )
    pieces = pieces_of(model)
    rank = ranks(pieces, lags(model, pieces))
    ordered = sorted(
        (i for i, piece in enumerate(pieces) if piece.role == FORWARD), key=lambda i: rank[i]
    )
    stage = np.full(problem.num_ops, -1, np.int64)
    for number, i in enumerate(ordered):
        stage[pieces[i].ops] = number
    for op in np.flatnonzero(problem.backward).tolist():
        stage[op] = stage[model.base(op)]
    return stage, [pieces[i].place for i in ordered]


def _letter(model: PlacedModel, role: int) -> str:
    """Return the kind of the blocks of a role."""
    return {FORWARD: "F", INPUTS: "I" if model.split else "B", WEIGHTS: "W"}[role]


def _names(model: PlacedModel, pieces: Sequence[Piece], rank: Sequence[int]) -> list[str]:
    """Name pieces by kind and device, T for all devices, and number those of the same kind and
    device by rank.
    """
    names = [""] * len(pieces)
    count: dict[tuple[int, int], int] = {}
    total: dict[tuple[int, int], int] = {}
    for piece in pieces:
        key = (piece.place, piece.role)
        total[key] = total.get(key, 0) + 1
    for i in sorted(range(len(pieces)), key=lambda i: rank[i]):
        key = (pieces[i].place, pieces[i].role)
        number = count.get(key, 0)
        count[key] = number + 1
        letter = _letter(model, key[1])
        stem = f"T{letter}" if key[0] == ALL else f"{letter}{key[0]}"
        names[i] = f"{stem}.{number}" if total[key] > 1 else stem
    return names


def _stages(pieces: Sequence[Piece], rank: Sequence[int]) -> list[int]:
    """Number the forward pieces by rank; a device's backward pieces count from the end."""
    stage = [-1] * len(pieces)
    ordered = sorted(range(len(pieces)), key=lambda i: rank[i])
    by_place: dict[tuple[int, int], list[int]] = {}
    for number, i in enumerate(i for i in ordered if pieces[i].role == FORWARD):
        stage[i] = number
        by_place.setdefault((pieces[i].place, pieces[i].part), []).append(number)
    for role in (INPUTS, WEIGHTS):
        left = {place: list(numbers) for place, numbers in by_place.items()}
        for i in ordered:
            mine = left.get((pieces[i].place, pieces[i].part))
            if pieces[i].role == role and mine:
                stage[i] = mine.pop()
    return stage
