"""The period of a split as an objective, with quick lower bounds on the period of every split
(model in `placeopt.splits.problem`).

area : let T be the period, and r_S the devices of stage S. Its load is at least work(S) / r_S, so
       r_S T >= work(S), which is at least the ticks of its ops on their fastest devices. The r_S
       add up to at most the usable devices: T is at least all of these ticks shared equally,
       rounded up.
op   : the stage of an op has at most as many devices as replicas are allowed, all of one type that
       can run the op, so T is at least the op's ticks there divided by the most such devices, the
       least over the types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Ints, sums_by
from placeopt.model.objective import JudgedObjective
from placeopt.splits.judge import judged_period, split_violations
from placeopt.splits.problem import Split, SplitProblem

NEVER = np.iinfo(np.int64).max


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
    work = sums_by(stage, base.compute[np.arange(base.num_ops), first[stage]], count)
    sync = sums_by(stage, problem.sync, count)
    moved = (crossings(problem, stage, count) * base.io_ticks[:, first]).sum(axis=0)
    load = stage_load(work, moved, sync, replicas, overlap=problem.overlap)
    group = np.array([problem.group_of[int(device)] for device in first], np.int64)
    border = crossings(problem, group[stage], problem.groups)
    return Loads(load, (border * problem.uplink[:, None]).sum(axis=0))


def stage_load(work: Ints, moved: Ints, sync: Ints, replicas: Ints | int, *, overlap: bool) -> Ints:
    """Return the ticks of stages on so many devices each, by those of their ops, of their transfers
    and of sending their weights once.
    """
    exchanged = -(-2 * (replicas - 1) * sync // replicas)
    if overlap:
        return np.maximum(-(-work // replicas), -(-moved // replicas) + exchanged)
    return -(-(work + moved) // replicas) + exchanged


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


def usable_ticks(problem: SplitProblem) -> Ints:
    """Ticks of every op on every usable device, NEVER where it cannot run."""
    compute = problem.placement.compute[:, list(problem.usable_devices)]
    return np.where(compute < 0, NEVER, compute)


def area_bound(problem: SplitProblem) -> int:
    """All work on the fastest devices, shared equally."""
    least = usable_ticks(problem).min(axis=1)
    return 0 if (least == NEVER).any() else -(-sum(map(int, least)) // len(problem.usable_devices))


def op_bound(problem: SplitProblem) -> int:
    """The largest op, shared by as many replicas as there may be."""
    usable = set(problem.usable_devices)
    found = []
    for devices in problem.types:
        count = min(problem.max_replicas, len(usable.intersection(devices)) // problem.groups)
        if count:
            ticks = problem.placement.compute[:, devices[0]]
            found.append(np.where(ticks < 0, NEVER, -(-ticks // count)))
    least = np.min(found, axis=0)
    return 0 if (least == NEVER).any() else int(least.max())


BOUNDS = {"area": area_bound, "op": op_bound}


class SplitPeriod(JudgedObjective):
    """Ticks per sample of a pipeline whose stages may have replicas, groups of devices and
    overlapped transfers.
    """

    __slots__ = ()

    name = "period"
    kind = "split"
    default_solver = "split-ideals"
    prover = "split-ideals"
    bounded = "a split"
    bound_methods = tuple(BOUNDS)
    solution_class = Split
    expected = "a solution of a split problem is a Split"
    violations = staticmethod(split_violations)
    measured = staticmethod(split_period)
    judged = staticmethod(judged_period)

    def details(self, problem: SplitProblem, solution: Split) -> dict[str, Any]:
        """Return the stages and their loads, for the command line."""
        loads, names = split_loads(problem, solution), problem.placement.device_names
        stages = [
            {
                "ops": [problem.placement.op_names[op] for op in stage.ops],
                "devices": [names[d] for d in stage.devices],
                "load": int(load),
                "group": problem.group_of[stage.devices[0]],
            }
            for stage, load in zip(solution.stages, loads.stage, strict=True)
        ]
        return {"stages": stages, "uplinks": loads.uplink.tolist()}

    def prove(
        self, problem: SplitProblem, seconds: float, methods: Sequence[str], upper: int | None
    ) -> Iterator[tuple[str, int]]:
        """Yield the quick lower bounds, which take milliseconds."""
        for name in methods:
            yield name, BOUNDS[name](problem)


SPLIT_PERIOD = SplitPeriod()
