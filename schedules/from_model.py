"""From a placed model to a pipeline problem: one block per device and pass, with times, lags and
activations.

How ops become blocks is told in `placeopt.schedules.placed_model`, what blocks cost in
`placeopt.schedules.block_costs`. Ops may also be placed on ALL devices: they become tensor-parallel
blocks that occupy every device for 1/D of their time.

A pipeline problem is one way to cut a model. What is proved of its schedules holds for this cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import networkx as nx
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
    ties = nx.Graph(enumerate(families(graph).tolist()))
    first: dict[int, int] = {}
    for v, group in enumerate(graph.colocation.tolist()):
        if group >= 0:
            ties.add_edge(v, first.setdefault(group, v))
    colocation = np.full(graph.num_ops, -1)
    for together in nx.connected_components(ties):
        if len(together) > 1:
            colocation[list(together)] = min(together)
    return replace(graph, colocation=colocation)


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
    model = _placed(problem, device, parts, mode, split=split, recompute=recompute)
    pieces = pieces_of(model)
    edges = lags(model, pieces)
    rank = ranks(pieces, edges)
    memory, reserve = activations(model, pieces, rank)
    span, names, stage = spans(model, pieces), _names(model, pieces, rank), _stages(pieces, rank)
    blocks = []
    for index in np.argsort(rank).tolist():
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
    model = _placed(problem, device, parts, "train" if problem.backward.any() else "infer")
    pieces = pieces_of(model)
    rank = ranks(pieces, lags(model, pieces))
    ordered = [i for i in np.argsort(rank).tolist() if pieces[i].role == FORWARD]
    stage = np.full(problem.num_ops, -1, np.int64)
    for number, i in enumerate(ordered):
        stage[pieces[i].ops] = number
    for op in np.flatnonzero(problem.backward).tolist():
        stage[op] = stage[model.base(op)]
    return stage, [pieces[i].place for i in ordered]


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


def _names(model: PlacedModel, pieces: Sequence[Piece], rank: Sequence[int]) -> list[str]:
    """Name pieces by kind and device, T for all devices, and number those of the same kind and
    device by rank.
    """
    names = [""] * len(pieces)
    total = Counter((piece.place, piece.role) for piece in pieces)
    count: Counter[tuple[int, int]] = Counter()
    for i in np.argsort(rank).tolist():
        place, role = key = pieces[i].place, pieces[i].role
        letter = _letter(model, role)
        stem = f"T{letter}" if place == ALL else f"{letter}{place}"
        names[i] = f"{stem}.{count[key]}" if total[key] > 1 else stem
        count[key] += 1
    return names


def _stages(pieces: Sequence[Piece], rank: Sequence[int]) -> list[int]:
    """Number the forward pieces by rank; a device's backward pieces count from the end."""
    stage = [-1] * len(pieces)
    ordered = np.argsort(rank).tolist()
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
