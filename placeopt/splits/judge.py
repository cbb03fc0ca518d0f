"""The judge of a split: every violation in words, and its period by plain counting; no code shared
with the evaluation.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from placeopt.period.judge import ordered_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.splits.problem import Split, SplitProblem, SplitStage

MAX_VIOLATIONS = 50


def split_violations(problem: SplitProblem, split: Split) -> list[str]:
    """List in words everything that is wrong with a split; empty if it is valid."""
    found = list(_assignment(problem, split))
    if not found:
        found = [*_devices(problem, split), *_memory(problem, split), *_order(problem, split)]
    return found[:MAX_VIOLATIONS]


def _assignment(problem: SplitProblem, split: Split) -> Iterator[str]:
    """Every op in one stage, every device in at most one, all of them known."""
    base, stages = problem.placement, split.stages
    ops = Counter(chain.from_iterable(stage.ops for stage in stages))
    yield from _places("op", base.op_names, ops)
    devices = Counter(chain.from_iterable(stage.devices for stage in stages))
    yield from _places("device", base.device_names, devices)
    missing = sorted(set(range(base.num_ops)) - ops.keys())
    if missing:
        others = f", nor are {len(missing) - 1} others" if missing[1:] else ""
        yield f"op '{base.op_names[missing[0]]}' is in no stage{others}"
    for at, stage in enumerate(stages):
        if not stage.ops or not stage.devices:
            yield f"stage {at} has no {'devices' if stage.ops else 'ops'}"


def _places(what: str, names: Sequence[str], given: Counter[int]) -> Iterator[str]:
    """Each is known and named once."""
    for index, times in sorted(given.items()):
        if not 0 <= index < len(names):
            yield f"{what} {index}: expected 0..{len(names) - 1}"
        elif times > 1:
            yield f"{what} '{names[index]}' is in {times} places of the split"


def _devices(problem: SplitProblem, split: Split) -> Iterator[str]:
    """Devices of a stage are alike, not too many, usable, and of one group."""
    for at in range(len(split.stages)):
        yield from _devices_of(problem, split, at)
    order = [problem.group_of.get(stage.devices[0], -1) for stage in split.stages]
    if order != sorted(order):
        yield f"the stages lie in the groups {order} by turns; a group holds consecutive stages"


def _devices_of(problem: SplitProblem, split: Split, at: int) -> Iterator[str]:
    """The same of one stage."""
    names, stage = problem.placement.device_names, split.stages[at]
    if len(stage.devices) > problem.max_replicas:
        yield (
            f"stage {at} has {len(stage.devices)} devices; at most {problem.max_replicas} "
            "may share one"
        )
    if not any(set(stage.devices) <= set(devices) for devices in problem.types):
        shown = ", ".join(map(names.__getitem__, stage.devices))
        yield f"stage {at}: its devices {shown} are not alike"
    unused = [device for device in stage.devices if device not in problem.group_of]
    if unused:
        yield f"stage {at}: device '{names[unused[0]]}' is in no group"
    elif len({problem.group_of[device] for device in stage.devices}) > 1:
        yield f"stage {at}: its devices lie in several groups"
    first = stage.devices[0]
    for op in stage.ops:
        if int(problem.placement.compute[op, first]) < 0:
            yield f"op '{problem.placement.op_names[op]}' cannot run on '{names[first]}'"


def _memory(problem: SplitProblem, split: Split) -> Iterator[str]:
    """Every device of a stage holds all of it."""
    base = problem.placement
    for at, stage in enumerate(split.stages):
        held = sum(int(base.resident[op]) for op in stage.ops)
        for device in stage.devices:
            if held > int(base.capacity[device]):
                yield (
                    f"stage {at}: '{base.device_names[device]}' holds {held} bytes, its capacity "
                    f"is {int(base.capacity[device])}"
                )


def _order(problem: SplitProblem, split: Split) -> Iterator[str]:
    """Ops that belong together share a stage; no forward edge leads back."""
    base = problem.placement
    stage_of = {op: at for at, stage in enumerate(split.stages) for op in stage.ops}
    together: dict[int, int] = {}
    for op, group in enumerate(base.colocation.tolist()):
        if group >= 0 and stage_of[together.setdefault(group, op)] != stage_of[op]:
            yield (
                f"ops '{base.op_names[together[group]]}' and '{base.op_names[op]}' "
                "must share a stage"
            )
    for u, v in ordered_pairs(base):
        if stage_of[u] > stage_of[v]:
            yield (
                f"the edge from '{base.op_names[u]}' to '{base.op_names[v]}' leads from stage "
                f"{stage_of[u]} back to {stage_of[v]}"
            )


def judged_period(problem: SplitProblem, split: Split) -> int:
    """Return the period of a valid split, counted tensor by tensor."""
    base = problem.placement
    stage_of = {op: at for at, stage in enumerate(split.stages) for op in stage.ops}
    moved, uplink = [0] * len(split.stages), [0] * problem.groups
    for t in range(base.num_tensors):
        stages = {stage_of[op] for op in (int(base.producer[t]), *base.readers_of(t))}
        groups = {problem.group_of[split.stages[at].devices[0]] for at in stages}
        for at in stages if len(stages) > 1 else ():
            moved[at] += int(base.io_ticks[t, split.stages[at].devices[0]])
        for group in groups if len(groups) > 1 else ():
            uplink[group] += int(problem.uplink[t])
    return max([*uplink, *map(partial(_load, problem), split.stages, moved)])


def _load(problem: SplitProblem, stage: SplitStage, moved: int) -> int:
    """Return the ticks of a stage on each of its devices, which share its samples."""
    r = len(stage.devices)
    work = sum(int(problem.placement.compute[op, stage.devices[0]]) for op in stage.ops)
    weights = sum(int(problem.sync[op]) for op in stage.ops)
    exchanged = -(-2 * (r - 1) * weights // r)
    if problem.overlap:
        return max(-(-work // r), -(-moved // r) + exchanged)
    return -(-(work + moved) // r) + exchanged
