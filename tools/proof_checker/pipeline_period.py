"""The period of a pattern that repeats, the completion of it to all micro-batches, and the bound by
the work of a device.

A solution is a pattern: starts of the blocks of K micro-batches that begin anew every P ticks. Its
value are these P ticks of K micro-batches. The schedule is one of all micro-batches of the problem,
the pattern with what comes before and after it; its makespan is claimed with it.
"""

from itertools import pairwise

from proof_checker.reading import NUMBER, choice, demand, fields, table, whole


def pattern_period(problem, solution, schedule):
    """Return the period of a pattern that keeps every rule for ever; check its completion."""
    fields(solution, "period starts")
    period = whole(solution["period"], 1, NUMBER)
    starts = table(solution["starts"], None, problem.num_blocks, 0, NUMBER)
    demand(starts, "the pattern has a micro-batch")
    check_waits(problem, starts)
    for d in range(problem.num_devices):
        check_repeated_device(problem, period, starts, d)
    check_completion(problem, schedule)
    return period


def check_waits(problem, starts):
    """Refuse starts of which one comes before the end, and the lag, of what its block waits for."""
    for row in starts:
        for b, before in enumerate(problem.after):
            for a, lag in before:
                in_time = row[b] >= row[a] + problem.span[a] + lag
                demand(in_time, f"block {b} starts before block {a} and its lag are over")


def check_repeated_device(problem, period, starts, d):
    """Refuse a pattern whose blocks meet on a device, or hold too much there, when it repeats.

    Repeated for ever, the device looks alike every `period` ticks: it is enough that the blocks,
    moved by whole periods into one, do not overlap there, the last one and the first one of the
    next period included. Memory changes at starts only. Of the block at s, so many runs more have
    started by a moment t than of one at 0: floor((t - s) / period), less floor(t / period). As the
    changes of a micro-batch add up to 0, the common part adds nothing. Within the period that
    begins at 0 the former is -1 - floor(s / period) before the block's turn, and one more from it.
    """
    mine = sorted((row[b] % period, row[b], b) for row in starts for b in problem.on(d))
    ends = [(at, at + problem.span[b]) for at, _, b in mine]
    ends += [(at + period, 0) for at, _ in ends[:1]]
    apart = all(end <= later for (_, end), (later, _) in pairwise(ends))
    demand(apart, f"device {d} runs one block at a time, for ever")
    held = sum(problem.memory[b][d] * (-1 - start // period) for _, start, b in mine)
    for _, _, b in mine if problem.capacity[d] is not None else ():
        held += problem.memory[b][d]
        demand(held <= problem.capacity[d], f"device {d} holds {held} bytes at most")


def check_completion(problem, schedule):
    """Refuse a schedule of all micro-batches that breaks a rule, or whose makespan or bound is not
    what is claimed.

    No schedule of n micro-batches is shorter than `least`: a device runs n times the work of its
    blocks, one after the other, after the least ticks in which one of them can start, and before
    the least ticks that pass from the end of one of them to the end of its micro-batch.
    """
    fields(schedule, "start makespan least")
    starts = table(schedule["start"], problem.micro_batches, problem.num_blocks, 0, NUMBER)
    check_waits(problem, starts)
    for d in range(problem.num_devices):
        check_device(problem, starts, d)
    last = max(row[b] + ticks for row in starts for b, ticks in enumerate(problem.span))
    demand(whole(schedule["makespan"]) == last, f"the makespan is {last}")
    least = makespan_bound(problem)
    demand(whole(schedule["least"]) <= least, f"the bound on the makespan is {least}")
    demand(schedule["least"] <= last, "the bound on the makespan is not above it")


def check_device(problem, starts, d):
    """Refuse blocks that meet on a device, or hold too much there."""
    mine = sorted((row[b], b) for row in starts for b in problem.on(d))
    ends = [(at, at + problem.span[b]) for at, b in mine]
    apart = all(end <= later for (_, end), (later, _) in pairwise(ends))
    demand(apart, f"device {d} runs one block at a time")
    held = 0
    for _, b in mine:
        held += problem.memory[b][d]
        fits = problem.capacity[d] is None or held <= problem.capacity[d]
        demand(fits, f"device {d} holds {held} bytes at most")


def makespan_bound(problem):
    """Return the bound on the makespan of `check_completion`."""
    head, tail = [0] * problem.num_blocks, [0] * problem.num_blocks
    for v in problem.order:
        head[v] = max((head[u] + problem.span[u] + lag for u, lag in problem.after[v]), default=0)
    for v in reversed(problem.order):
        for u, lag in problem.after[v]:
            tail[u] = max(tail[u], lag + problem.span[v] + tail[v])
    found = [0]
    for d, work in enumerate(problem.work):
        here = problem.on(d)
        ends = min((head[b] for b in here), default=0) + min((tail[b] for b in here), default=0)
        found.append(ends + problem.micro_batches * work)
    return max(found)


def work_bound(problem, bound, content, _believed, solution):
    """Verify that no pattern of as many micro-batches repeats faster than in `bound` ticks.

    In every period each block of K micro-batches runs once more. A device runs all of its own, one
    at a time: K times its work.
    """
    choice(content["method"], "load")
    d = whole(content["device"], 0, problem.num_devices - 1)
    most = len(solution["starts"]) * problem.work[d]
    demand(bound <= most, f"device {d} works {most} ticks in a period")
