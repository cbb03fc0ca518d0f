"""The makespan of a schedule that keeps every rule of execution; idling is allowed.

A schedule names the start of every op and, per tensor and device that reads it elsewhere, the start
of the transfer. Without contention a transfer starts when its op ends; on a channel at that time or
later, one at a time. An op starts once all its inputs are on its device; a device runs one op at a
time. Under `memory: peak` a device holds its resident bytes and its live tensors: a tensor lives
from the start of its producer (elsewhere: of its transfer) until its last reader there, and its
last transfer, end.
"""

from itertools import pairwise

from proof_checker.reading import INFINITE, NUMBER, demand, fields, numbers, table


def makespan(problem, solution, schedule):
    """Return the end of the last op."""
    fields(schedule, "start transfers")
    device = problem.devices(solution)
    start = numbers(schedule["start"], problem.num_ops, 0, NUMBER)
    end = [s + problem.compute[v][device[v]] for v, s in enumerate(start)]
    there = {(t, device[u]): (start[u], end[u]) for t, u in enumerate(problem.producer)}
    lanes = add_transfers(problem, device, there, schedule["transfers"])
    for u, v, t in problem.edges:
        arrives = there.get((t, device[v]), (0, INFINITE))[1]
        demand(
            start[v] >= arrives,
            f"op {v} starts at {start[v]}, before tensor {t} of op {u} is there",
        )
    for channel, runs in lanes.items():
        alone(runs, f"channel {channel}")
    for d in range(problem.num_devices):
        here = [v for v in range(problem.num_ops) if device[v] == d]
        alone([(start[v], end[v]) for v in here], f"device {d}")
        if problem.memory == "peak":
            check_peak(problem, device, end, there, d)
    return max(end)


def alone(runs, what):
    """Refuse runs (start, end) of one resource that overlap.

    Sorted, every run must end before the next one starts; a run without length inside another fails
    too.
    """
    for (_, end), (start, _) in pairwise(sorted(runs)):
        demand(start >= end, f"{what} runs one thing at a time, also at {start}")


def add_transfers(problem, device, there, transfers):
    """Add to `there` when tensors come to other devices; return the transfers of every channel."""
    lanes = {}
    for row in table(transfers, None, 3, 0, NUMBER):
        t, e, begin = row
        numbers(row[:1], 1, 0, len(problem.producer) - 1)
        numbers(row[1:2], 1, 0, problem.num_devices - 1)
        home = device[problem.producer[t]]
        demand((t, e) not in there and home != e, f"tensor {t} comes to device {e} twice")
        wanted = any(device[v] == e for v in problem.consumers[t])
        demand(wanted, f"nothing needs tensor {t} on device {e}")
        ready, channel = there[t, home][1], problem.channel[home][e]
        right = begin >= ready if channel >= 0 else begin == ready
        demand(right, f"tensor {t}, there at {ready}, leaves for device {e} at {begin}")
        there[t, e] = begin, begin + problem.transfer[t][problem.link[home][e]]
        if channel >= 0:
            lanes.setdefault(channel, []).append(there[t, e])
    return lanes


def check_peak(problem, device, end, there, d):
    """Refuse a schedule under which a device holds more than its capacity at any time."""
    held = sum(b for b, e in zip(problem.resident, device, strict=True) if e == d)
    sent = {}  # tensor -> ends of its transfers
    for (t, e), (_, last) in there.items():
        if device[problem.producer[t]] != e:
            sent.setdefault(t, []).append(last)
    changes = []
    for (t, e), (begin, last) in there.items():
        if e == d:
            ends = [last, *(end[v] for v in problem.consumers[t] if device[v] == d)]
            ends += sent.get(t, []) if device[problem.producer[t]] == d else []
            changes += [(begin, problem.size[t]), (max(ends), -problem.size[t])]
    for moment, change in sorted(changes):  # what ends at a moment is gone before anything begins
        held += change
        room = problem.capacity[d]
        demand(held <= room, f"device {d} holds {held} bytes at {moment}, its capacity is {room}")
