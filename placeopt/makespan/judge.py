"""The independent judge: every violation of a placement or a schedule, in words.

Plain arrays on purpose: no numba, and no code shared with the kernels that it checks. Each rule is
a test of whole columns; words are made only for the rows that break it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Ints, stable_order, sums_by, together
from placeopt.model.placement import Placement, Schedule
from placeopt.model.problem import PlacementProblem

MOST_WORDS = 1000
"""Violations of one rule that are put into words."""


def placement_violations(
    problem: PlacementProblem, placement: Placement, *, memory: bool = True, colocation: bool = True
) -> list[str]:
    """List what is wrong with a placement: length, unknown devices, compatibility, colocation,
    capacity.

    `memory` and `colocation` switch the checks of those constraints. Dynamic peak memory depends on
    the schedule and is judged by `schedule_violations`.
    """
    device = placement.device
    n, k = problem.num_ops, problem.num_devices
    names, devices = problem.op_names, problem.device_names
    if len(device) != n:
        return [f"expected a device for each of {n} ops, received {len(device)}"]
    unknown = _rows((device < 0) | (device >= k))
    if unknown:
        return [
            f"op '{names[op]}' is on device {device[op]}; devices are 0..{k - 1}" for op in unknown
        ]
    stuck = _rows(problem.compute[np.arange(n), device] < 0)
    found = [f"op '{names[op]}' cannot run on device '{devices[device[op]]}'" for op in stuck]
    if colocation:
        found += _split_groups(problem, device)
    if memory:
        used = sums_by(device, problem.resident, k)
        found += [
            f"device '{devices[d]}' holds {used[d]} resident bytes, over its capacity of "
            f"{problem.capacity[d]}"
            for d in _rows(used > problem.capacity)
        ]
    return found


def schedule_violations(problem: PlacementProblem, schedule: Schedule) -> list[str]:
    """List every violation of a schedule, whatever execution produced it (idling is allowed).

    Checked: durations, one op at a time per device, inputs present before an op starts, exactly one
    transfer per tensor and destination that needs it, transfers after their producer, one transfer
    at a time per channel, compatibility, colocation, capacity, and the dynamic peak where it is
    limited.
    """
    found = placement_violations(problem, Placement(schedule.device))
    if found:
        return found
    found = _op_violations(problem, schedule)
    transfers, words = _transfer_violations(problem, schedule)
    found += words
    found += _input_violations(problem, schedule, transfers)
    if problem.memory == "peak" and not found:
        found += _peak_violations(problem, schedule, transfers)
    return found


class _Transfers(NamedTuple):
    """The transfers of a schedule that leave their tensor's device, sorted by key = tensor *
    num_devices + destination.
    """

    key: Ints
    start: Ints
    finish: Ints

    def position(self, key: Ints) -> Ints:
        """Return the transfer of each key, -1 where there is none."""
        if not len(self.key):
            return np.full(len(key), -1, np.int64)
        at = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        return np.where(self.key[at] == key, at, -1)


def _rows(broken: Flags) -> list[int]:
    """Return the first rows that break a rule."""
    return np.flatnonzero(broken)[:MOST_WORDS].tolist()


def _other_length(start: Ints, finish: Ints, expected: Ints) -> Flags:
    """Whether intervals last otherwise than expected: a difference of 64 bits may wrap around."""
    return (finish < start) | (finish - start != expected)


def _split_groups(problem: PlacementProblem, device: Ints) -> list[str]:
    """List ops that are not on the device of the first op of their colocation group."""
    grouped = np.flatnonzero(problem.colocation >= 0)
    _, first, group = np.unique(problem.colocation[grouped], return_index=True, return_inverse=True)
    home = grouped[first][group]
    return [
        f"ops '{problem.op_names[home[i]]}' and '{problem.op_names[grouped[i]]}' of colocation "
        f"group {problem.colocation[home[i]]} are on '{problem.device_names[device[home[i]]]}' and "
        f"'{problem.device_names[device[grouped[i]]]}'"
        for i in _rows(device[home] != device[grouped])
    ]


def _op_violations(problem: PlacementProblem, schedule: Schedule) -> list[str]:
    """Durations, no start before 0, one op at a time on a device."""
    device, start, finish, name = schedule.device, schedule.start, schedule.finish, problem.op_names
    expected = problem.compute[np.arange(problem.num_ops), device]
    found = [f"op '{name[op]}' starts at {start[op]}, before time 0" for op in _rows(start < 0)]
    found += [
        f"op '{name[op]}' takes {int(finish[op]) - int(start[op])} ticks instead of {expected[op]}"
        for op in _rows(_other_length(start, finish, expected))
    ]
    return found + _overlaps(
        device,
        start,
        finish,
        lambda d: f"device '{problem.device_names[d]}'",
        lambda op: f"op '{name[op]}'",
    )


def _transfer_violations(
    problem: PlacementProblem, schedule: Schedule
) -> tuple[_Transfers, list[str]]:
    """Each transfer happens once, leaves its device, takes its time, follows its producer, and has
    its channel alone.
    """
    tensor, target = schedule.transfer_tensor, schedule.transfer_destination
    start, finish = schedule.transfer_start, schedule.transfer_finish
    inside = (
        (tensor >= 0)
        & (tensor < problem.num_tensors)
        & (target >= 0)
        & (target < problem.num_devices)
    )
    found = [
        f"transfer {i} is of tensor {tensor[i]} to device {target[i]}, which do not exist"
        for i in _rows(~inside)
    ]
    tensor, target, start, finish = tensor[inside], target[inside], start[inside], finish[inside]
    producer = problem.producer[tensor]
    source, ready = schedule.device[producer], schedule.finish[producer]

    def what(i: int) -> str:
        return (
            f"transfer of tensor {tensor[i]} of '{problem.op_names[producer[i]]}' to "
            f"'{problem.device_names[target[i]]}'"
        )

    away = source != target
    found += [f"{what(i)} goes to the device it is on" for i in _rows(~away)]
    key = tensor * problem.num_devices + target
    order = stable_order(key)
    again = np.zeros(len(key), np.bool_)
    again[order[1:]] = key[order[1:]] == key[order[:-1]]
    found += [f"{what(i)} happens twice" for i in _rows(again)]
    expected = problem.transfer[tensor, np.where(away, problem.link_class[source, target], 0)]
    found += [
        f"{what(i)} takes {int(finish[i]) - int(start[i])} ticks instead of {expected[i]}"
        for i in _rows(away & _other_length(start, finish, expected))
    ]
    found += [
        f"{what(i)} starts at {start[i]}, before its producer ends at {ready[i]}"
        for i in _rows(away & (start < ready))
    ]
    channel = np.where(away, problem.channel[source, target], -1)
    found += [
        f"{what(i)} has no contention, so it starts at {ready[i]}, not at {start[i]}"
        for i in _rows(away & (channel < 0) & (start != ready))
    ]
    lane = np.flatnonzero(channel >= 0)
    found += _overlaps(
        channel[lane],
        start[lane],
        finish[lane],
        lambda c: f"channel {c}",
        lambda i: what(int(lane[i])),
    )
    kept = order[away[order]]
    return _Transfers(key[kept], start[kept], finish[kept]), found


def _input_violations(
    problem: PlacementProblem, schedule: Schedule, transfers: _Transfers
) -> list[str]:
    """Every input is there before its op starts, and nothing is sent to where nobody reads it."""
    device, name = schedule.device, problem.op_names
    op, tensor = problem.consumer, problem.edge_tensor
    producer = problem.producer[tensor]
    away = device[op] != device[producer]
    key = tensor * problem.num_devices + device[op]
    at = transfers.position(key)
    found = [
        f"op '{name[op[e]]}' needs tensor {tensor[e]} of '{name[producer[e]]}', which is never "
        "sent to it"
        for e in _rows(away & (at < 0))
    ]
    available = schedule.finish[producer].copy()
    sent = away & (at >= 0)
    available[sent] = transfers.finish[at[sent]]
    found += [
        f"op '{name[op[e]]}' starts at {schedule.start[op[e]]}, before its input of "
        f"'{name[producer[e]]}' arrives at {available[e]}"
        for e in _rows((~away | sent) & (schedule.start[op] < available))
    ]
    read = np.zeros(len(transfers.key), np.bool_)
    read[at[sent]] = True
    unread = ~read & (transfers.position(transfers.key) == np.arange(len(read)))
    return found + [
        f"tensor {x // problem.num_devices} is sent to "
        f"'{problem.device_names[x % problem.num_devices]}', where nothing reads it"
        for x in transfers.key[_rows(unread)].tolist()
    ]


def _overlaps(
    where: Ints, start: Ints, finish: Ints, place: Callable[[int], str], what: Callable[[int], str]
) -> list[str]:
    """List neighbours that overlap on one resource, and intervals of no length that run inside
    another.
    """
    rows = np.flatnonzero(finish > start)
    rows = rows[np.lexsort((start[rows], where[rows]))]
    first, second = rows[:-1], rows[1:]
    clash = _rows((where[first] == where[second]) & (start[second] < finish[first]))
    found = [
        f"{place(int(where[a]))}: {what(b)} starts at {start[b]}, while {what(a)} runs until "
        f"{finish[a]}"
        for a, b in together(first[clash], second[clash])
    ]
    empty = np.flatnonzero(finish == start)
    if not (len(empty) and len(rows)):
        return found
    # the last interval on the same resource that starts before it
    both = np.concatenate([rows, empty])
    lasts = finish[both] > start[both]
    order = np.lexsort((lasts, start[both], where[both]))  # of equal starts, those that last later
    latest = np.maximum.accumulate(np.where(lasts[order], np.arange(len(order)), -1))
    at = np.flatnonzero(~lasts[order] & (latest >= 0))
    x, y = both[order[at]], both[order[latest[at]]]
    broken = (where[x] == where[y]) & (start[x] < finish[y])
    return found + [
        f"{place(int(where[i]))}: {what(i)} of no length runs at {start[i]}, inside another"
        for i in np.sort(x[broken])[:MOST_WORDS].tolist()
    ]


def _peak_violations(
    problem: PlacementProblem, schedule: Schedule, transfers: _Transfers
) -> list[str]:
    """List devices whose resident bytes plus live tensors pass their capacity at some moment.

    A tensor lives at home from its producer's start, elsewhere from its transfer's start; in both
    cases until its last reader there, or a transfer of it, ends.
    """
    device, k = schedule.device, problem.num_devices
    op, tensor = problem.consumer, problem.edge_tensor
    home = device[problem.producer]
    away = device[op] != home[tensor]
    sent_tensor = transfers.key // k
    last_home = schedule.finish[problem.producer].copy()
    np.maximum.at(last_home, tensor[~away], schedule.finish[op[~away]])
    np.maximum.at(last_home, sent_tensor, transfers.finish)
    last_away = transfers.finish.copy()
    np.maximum.at(
        last_away,
        transfers.position(tensor[away] * k + device[op[away]]),
        schedule.finish[op[away]],
    )
    where = np.concatenate([home, transfers.key % k])
    begin = np.concatenate([schedule.start[problem.producer], transfers.start])
    end = np.concatenate([last_home, last_away])
    size = np.concatenate([problem.tensor_bytes, problem.tensor_bytes[sent_tensor]])
    lives = end > begin
    where, begin, end, size = where[lives], begin[lives], end[lives], size[lives]
    fixed = sums_by(device, problem.resident, k)
    # what ends at a moment is gone before anything begins
    time, change = np.concatenate([begin, end]), np.concatenate([size, -size])
    where = np.concatenate([where, where])
    order = np.lexsort((change > 0, time, where))
    total = np.cumsum(change[order])  # 0 at the end of every device: its lives have all ended
    over = np.flatnonzero(fixed[where[order]] + total > problem.capacity[where[order]])
    found = []
    for d, first in zip(*np.unique(where[order][over], return_index=True), strict=True):
        moment = time[order[over[first]]]
        used = fixed[d] + size[(where[: len(size)] == d) & (begin <= moment) & (moment < end)].sum()
        found.append(
            f"device '{problem.device_names[d]}' holds {used} bytes at {moment}, over its capacity "
            f"of {problem.capacity[d]}"
        )
    return found
