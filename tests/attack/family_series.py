"""Parts in series on devices whose links are of different use to different parts: heads, tails and
bounds against drawn schedules.

A part's own tensors say which links are cheap, so that devices that are alike in the whole may
differ in a part, and the other way round. Every drawn schedule is valid: its ops start no earlier
than their heads, what follows them is no shorter than their tails, and no bound is above its
length.
"""

from __future__ import annotations

import random

import compare
from case import NO_LIMIT, Case
from deep_bounds import series_heads

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.bounds.series import series_parts

DRAWN = 60
"""Schedules that heads, tails and bounds are held against."""


def draw(rng):
    """Return a case of two or three parts on three or four devices, one of which has links of
    another class; what is cheap on the one class is dear on the other, part by part.
    """
    k, sizes = rng.choice([3, 3, 4]), [rng.choice([3, 4, 4]) for _ in range(rng.choice([2, 2, 3]))]
    top, parts, n = rng.choice([1, 5, 20]), [], 0
    for size in sizes:
        parts.append(range(n, n + size))
        n += size
    producer, consumers, transfer = [], [], []

    def send(u, readers, ticks):
        producer.append(u)
        consumers.append(readers)
        transfer.append(ticks)

    for at, part in enumerate(parts):
        joins = [(u, v) for v in part[2:] for u in rng.sample(range(part[0], v), 2)]
        forks = [(u, v) for u in part[:-2] for v in rng.sample(range(u + 1, part[-1] + 1), 2)]
        for u, v in rng.sample(rng.choice([joins, forks]), 2):
            near, far = rng.choice([0, 0, 1]), rng.choice([1, 2, 4, 4]) * top
            ticks = [far, far] if rng.random() < 0.2 else [near, far]
            send(u, [v], ticks[::-1] if at % 2 else ticks)
        for u in part if at + 1 < len(parts) else ():
            send(u, list(parts[at + 1]), [rng.choice([0, 0, top])] * 2)
    if rng.random() < 0.7:  # so that the whole sees no difference between the links
        sums = [sum(column) for column in zip(*transfer, strict=True)]
        row = transfer[rng.choice([0, len(transfer) - 1])]
        row[:] = [x + max(sums) - done for x, done in zip(row, sums, strict=True)]
    alone = rng.choice([0, rng.randrange(k)])
    times = [[rng.choice([top, rng.randint(0, top)])] * k for _ in range(n)]
    if rng.random() < 0.2:
        times = [[x + rng.choice([0, 0, 0, top]) for x in row] for row in times]
    return Case(
        compute=times,
        producer=producer,
        consumers=consumers,
        transfer=transfer,
        link_class=[[int(alone in (a, b)) for b in range(k)] for a in range(k)],
        channel=[[-1] * k for _ in range(k)],
        resident=[0] * n,
        capacity=[NO_LIMIT] * k,
        tensor_bytes=[0] * len(producer),
        colocation=[-1] * n,
        backward=[False] * n,
        io_class=[0] * k,
    )


def scheduled(case, rng):
    """Return a drawn device and the start and end of every op; most ops go where they end first."""
    device, start, end = ([0] * case.num_ops for _ in range(3))
    free, greedy = [0] * case.num_devices, rng.choice([0.0, 0.5, 1.0, 1.0])
    waiting = list(range(case.num_ops))
    while waiting:
        ready = [
            v
            for v in waiting
            if not any(
                v in readers and u in waiting
                for u, readers in zip(case.producer, case.consumers, strict=True)
            )
        ]
        v = rng.choice(ready)
        waiting.remove(v)
        begins = list(free)
        for t, u in enumerate(case.producer):
            for d in range(case.num_devices) if v in case.consumers[t] else ():
                way = case.transfer[t][case.link_class[device[u]][d]] if d != device[u] else 0
                begins[d] = max(begins[d], end[u] + way)
        ends = [begin + ticks for begin, ticks in zip(begins, case.compute[v], strict=True)]
        most = min(ends) if rng.random() < greedy else max(ends)
        device[v] = rng.choice([d for d, ticks in enumerate(ends) if ticks <= most])
        start[v], end[v] = begins[device[v]], ends[device[v]]
        free[device[v]] = end[v]
    return device, start, end


def attack(seed):
    """Return (True, every difference)."""
    rng = random.Random(seed)
    case = draw(rng)
    problem = compare.problem_of(case)
    schedules = [scheduled(case, rng) for _ in range(DRAWN)]
    best = min(max(end) for _, _, end in schedules)
    found = compare.bounds(case, problem, best, 0.0)
    whole = Analysis(problem, seconds=3600.0)
    for name in rng.sample(COMBINATORIAL, 2):
        whole.run(name)
    parts = series_parts(whole.relaxation, float("inf"))
    if not parts:
        return True, found
    least, heads = series_heads(problem, whole, parts)
    bound = max(sum(least), int(heads.through().max()))
    found += [f"parts in series {bound}, {best} suffices"] if bound > best else []
    for device, start, end in schedules:
        for v, d in enumerate(device):
            head, tail = (int(x[v, whole.relaxation.class_of[d]]) for x in heads[:2])
            after = max(end) - end[v]
            if head > start[v] or tail > after:
                found.append(f"op {v} on {d}: head {head} of {start[v]}, tail {tail} of {after}")
    return True, found
