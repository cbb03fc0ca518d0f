"""The independent judge: every violation of a placement or a schedule, in words.

Plain Python on purpose: no numba, and no code shared with the kernels that it checks.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.schedule import Schedule


def placement_violations(
    problem: PlacementProblem, placement: Placement, *, memory: bool = True, colocation: bool = True
) -> list[str]:
    """List what is wrong with a placement: length, unknown devices, compatibility, colocation, capacity.

    `memory` and `colocation` switch the checks of those constraints. Dynamic peak memory depends on the
    schedule and is judged by `schedule_violations`.
    """
    device = placement.device.tolist()
    n, k = problem.num_ops, problem.num_devices
    if len(device) != n:
        return [f"expected a device for each of {n} ops, received {len(device)}"]
    found = []
    for op, d in enumerate(device):
        if not 0 <= d < k:
            found.append(f"op '{problem.op_names[op]}' is on device {d}; devices are 0..{k - 1}")
    if found:
        return found
    table = problem.compute
    for op, d in enumerate(device):
        if table[op, d] < 0:
            found.append(f"op '{problem.op_names[op]}' cannot run on device '{problem.device_names[d]}'")
    if colocation:
        home: dict[int, int] = {}
        for op, group in enumerate(problem.colocation.tolist()):
            if group < 0:
                continue
            first = home.setdefault(group, op)
            if device[first] != device[op]:
                found.append(
                    f"ops '{problem.op_names[first]}' and '{problem.op_names[op]}' of colocation group {group} are on "
                    f"'{problem.device_names[device[first]]}' and '{problem.device_names[device[op]]}'"
                )
    if memory:
        used = [0] * k
        for op, size in enumerate(problem.resident.tolist()):
            used[device[op]] += size
        for d, capacity in enumerate(problem.capacity.tolist()):
            if used[d] > capacity:
                found.append(
                    f"device '{problem.device_names[d]}' holds {used[d]} resident bytes, over its capacity of {capacity}"
                )
    return found


def schedule_violations(problem: PlacementProblem, schedule: Schedule) -> list[str]:
    """List every violation of a schedule, whatever execution produced it (idling is allowed).

    Checked: durations, one op at a time per device, inputs present before an op starts, exactly one
    transfer per tensor and destination that needs it, transfers after their producer, one transfer at a
    time per channel, compatibility, colocation, capacity, and the dynamic peak where it is limited.
    """
    from placeopt.model.placement import Placement

    found = placement_violations(problem, Placement(schedule.device))
    if found:
        return found
    device = schedule.device.tolist()
    start, end = schedule.start.tolist(), schedule.finish.tolist()
    name = problem.op_names
    for op in range(problem.num_ops):
        expected = int(problem.compute[op, device[op]])
        if start[op] < 0:
            found.append(f"op '{name[op]}' starts at {start[op]}, before time 0")
        if end[op] - start[op] != expected:
            found.append(f"op '{name[op]}' takes {end[op] - start[op]} ticks instead of {expected}")
    for d in range(problem.num_devices):
        here = [op for op in range(problem.num_ops) if device[op] == d]
        found += _overlaps([(start[op], end[op], f"op '{name[op]}'") for op in here],
                           f"device '{problem.device_names[d]}'")  # fmt: skip

    arrival: dict[tuple[int, int], int] = {}
    lanes: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    rows = zip(
        schedule.transfer_tensor.tolist(),
        schedule.transfer_destination.tolist(),
        schedule.transfer_start.tolist(),
        schedule.transfer_finish.tolist(),
        strict=True,
    )
    begins: dict[tuple[int, int], int] = {}
    for tensor, d, begin, finish in rows:
        producer = int(problem.producer[tensor])
        source = device[producer]
        what = f"transfer of tensor {tensor} of '{name[producer]}' to '{problem.device_names[d]}'"
        if (tensor, d) in arrival:
            found.append(f"{what} happens twice")
        if d == source:
            found.append(f"{what} goes to the device it is on")
            continue
        expected = int(problem.transfer[tensor, problem.link_class[source, d]])
        if finish - begin != expected:
            found.append(f"{what} takes {finish - begin} ticks instead of {expected}")
        if begin < end[producer]:
            found.append(f"{what} starts at {begin}, before its producer ends at {end[producer]}")
        arrival[tensor, d] = finish
        begins[tensor, d] = begin
        channel = int(problem.channel[source, d])
        if channel >= 0:
            lanes[channel].append((begin, finish, what))
        elif begin != end[producer]:
            found.append(f"{what} has no contention, so it starts at {end[producer]}, not at {begin}")
    for channel, transfers in sorted(lanes.items()):
        found += _overlaps(transfers, f"channel {channel}")

    needed = set()
    for tensor in range(problem.num_tensors):
        producer = int(problem.producer[tensor])
        for position in range(int(problem.consumer_ptr[tensor]), int(problem.consumer_ptr[tensor + 1])):
            op = int(problem.consumer[position])
            if device[op] == device[producer]:
                available = end[producer]
            else:
                needed.add((tensor, device[op]))
                if (tensor, device[op]) not in arrival:
                    found.append(
                        f"op '{name[op]}' needs tensor {tensor} of '{name[producer]}', which is never sent to it"
                    )
                    continue
                available = arrival[tensor, device[op]]
            if start[op] < available:
                found.append(
                    f"op '{name[op]}' starts at {start[op]}, before its input of '{name[producer]}' arrives at {available}"
                )
    for tensor, d in sorted(set(arrival) - needed):
        found.append(f"tensor {tensor} is sent to '{problem.device_names[d]}', where nothing reads it")
    if problem.memory == "peak" and not found:
        found += _peak_violations(problem, device, start, end, begins, arrival)
    return found


def _overlaps(intervals: list[tuple[int, int, str]], where: str) -> list[str]:
    """List pairs of intervals of positive length that overlap, or cut through one another, on one resource."""
    found = []
    busy = sorted(x for x in intervals if x[1] > x[0])
    for (_, end, what), (start, _, other) in pairwise(busy):
        if start < end:
            found.append(f"{where}: {other} starts at {start}, while {what} runs until {end}")
    for begin, finish, what in intervals:
        if begin == finish and any(a < begin < b for a, b, _ in busy):
            found.append(f"{where}: {what} of no length runs at {begin}, inside another")
    return found


def _peak_violations(
    problem: PlacementProblem,
    device: list[int],
    start: list[int],
    end: list[int],
    begins: dict[tuple[int, int], int],
    arrival: dict[tuple[int, int], int],
) -> list[str]:
    """List devices whose resident bytes plus live tensors pass their capacity at some moment."""
    lives: list[list[tuple[int, int, int]]] = [[] for _ in range(problem.num_devices)]
    for tensor in range(problem.num_tensors):
        producer = int(problem.producer[tensor])
        size = int(problem.tensor_bytes[tensor])
        readers = problem.consumer[problem.consumer_ptr[tensor] : problem.consumer_ptr[tensor + 1]].tolist()
        home = device[producer]
        sent = [d for t, d in arrival if t == tensor]
        last = [end[v] for v in readers if device[v] == home] + [arrival[tensor, d] for d in sent] + [end[producer]]
        lives[home].append((start[producer], max(last), size))
        for d in sent:
            last = [end[v] for v in readers if device[v] == d] + [arrival[tensor, d]]
            lives[d].append((begins[tensor, d], max(last), size))
    found = []
    for d, spans in enumerate(lives):
        fixed = sum(int(problem.resident[op]) for op in range(problem.num_ops) if device[op] == d)
        for moment in sorted({a for a, _, _ in spans}):
            used = fixed + sum(size for a, b, size in spans if a <= moment < b)
            if used > int(problem.capacity[d]):
                found.append(
                    f"device '{problem.device_names[d]}' holds {used} bytes at {moment}, over its capacity of "
                    f"{int(problem.capacity[d])}"
                )
                break
    return found
