"""The period of a split (model in `placeopt.splits.problem`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from placeopt.model.arrays import Flags, Ints
    from placeopt.splits.problem import Split, SplitProblem


class Loads(NamedTuple):
    """Ticks per sample of s stages and h uplinks."""

    stage: Ints  # (s,)
    uplink: Ints  # (h,)


def split_loads(problem: SplitProblem, split: Split) -> Loads:
    """Return the loads of the stages and uplinks of a valid split."""
    base, count = problem.placement, len(split.stages)
    stage = np.full(base.num_ops, -1, np.int64)
    for at, part in enumerate(split.stages):
        stage[list(part.ops)] = at
    first = np.array([part.devices[0] for part in split.stages], np.int64)
    replicas = np.array([len(part.devices) for part in split.stages], np.int64)
    work, sync = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(work, stage, base.compute[np.arange(base.num_ops), first[stage]])
    np.add.at(sync, stage, problem.sync)
    moved = (crossings(problem, stage, count) * base.io_ticks[:, first]).sum(axis=0)
    exchanged = -(-2 * (replicas - 1) * sync // replicas)
    if problem.overlap:
        load = np.maximum(-(-work // replicas), -(-moved // replicas) + exchanged)
    else:
        load = -(-(work + moved) // replicas) + exchanged
    group = np.array([problem.group_of[int(device)] for device in first], np.int64)
    border = crossings(problem, group[stage], problem.groups)
    return Loads(load, (border * problem.uplink[:, None]).sum(axis=0))


def crossings(problem: SplitProblem, part: Ints, count: int) -> Flags:
    """Whether each tensor crosses the border of each part of the ops, shape (num_tensors,
    count).
    """
    base = problem.placement
    inside = np.zeros((base.num_tensors, count), np.bool_)
    tensor = np.arange(base.num_tensors)
    inside[tensor, part[base.producer]] = True
    inside[base.edge_tensor, part[base.consumer]] = True
    return inside & (inside.sum(axis=1) > 1)[:, None]


def split_period(problem: SplitProblem, split: Split) -> int:
    """Return the period of a valid split in ticks."""
    loads = split_loads(problem, split)
    return int(max(loads.stage.max(), loads.uplink.max()))
