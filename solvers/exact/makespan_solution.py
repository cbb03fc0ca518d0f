"""Solutions of the CP-SAT model of the makespan: hinting one, and reading one with ranks that
reproduce it.
"""

from __future__ import annotations

import heapq
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.placement import Placement

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints
    from placeopt.model.placement import Schedule
    from placeopt.solvers.exact.makespan_model import MakespanModel


def add_hint(built: MakespanModel, schedule: Schedule) -> None:
    """Hint a complete schedule (fine ticks)."""
    m = built.model
    device = built.relabel(schedule.device)
    for v in range(built.problem.num_ops):
        length = int(built.compute[v, device[v]])
        m.add_hint(
            built.start[v], int(schedule.finish[v]) // built.scale - length
        )  # ends are rounded down
    home = np.zeros(len(built.on), np.int64)
    home[built.item] = device
    for i, literals in enumerate(built.on):
        if len(literals) > 1:
            for d, literal in literals.items():
                m.add_hint(literal, int(home[i] == d))
    for (i, j), literal in built.same_of.items():
        if literal.name.startswith("same"):
            m.add_hint(literal, int(home[i] == home[j]))
    sent = _send_starts(built, schedule, device)
    for (t, e), variable in built.transfer_start.items():
        end = int(schedule.finish[built.problem.producer[t]]) // built.scale
        m.add_hint(variable, sent.get((t, e), end))
    for (t, d, e), literal in built.sent.items():
        m.add_hint(literal, int((t, e) in sent and device[built.problem.producer[t]] == d))
    m.add_hint(built.makespan, int(schedule.makespan) // built.scale)


def _send_starts(
    built: MakespanModel, schedule: Schedule, device: Ints
) -> dict[tuple[int, int], int]:
    """Return when each tensor is sent to each device (as the model names it), in units of the
    model.
    """
    p, sent = built.problem, {}
    rows = zip(
        schedule.transfer_tensor,
        schedule.transfer_destination,
        schedule.transfer_start,
        schedule.transfer_finish,
        strict=True,
    )
    for tensor, old, begin, finish in rows:
        readers = p.consumer[p.consumer_ptr[tensor] : p.consumer_ptr[tensor + 1]]
        new = int(device[readers[schedule.device[readers] == old][0]])
        sent[int(tensor), new] = int(finish) // built.scale - int(finish - begin) // built.scale
    return sent


def decode(built: MakespanModel, value: Any) -> Placement:
    """Read a placement; `value` maps a variable to its value. Ranks follow the starts."""
    device = np.empty(len(built.on), np.int64)
    for i, literals in enumerate(built.on):
        device[i] = next(d for d, x in literals.items() if value(x))
    start = np.array([value(x) for x in built.start], np.int64)
    finish = start + built.compute[np.arange(len(start)), device[built.item]]
    sends = sorted(
        (value(built.transfer_start[t, e]), t, d, e)
        for (t, d, e), x in built.sent.items()
        if value(x)
    )
    return Placement(device[built.item], _ranks(built, device[built.item], start, finish, sends))


def _ranks(
    built: MakespanModel,
    device: Ints,
    start: Ints,
    finish: Ints,
    sends: list[tuple[int, int, int, int]],
) -> Ints:
    """Rank ops by start, changed where that makes the channels' orders follow the first readers'
    ranks.

    Planned execution sends tensors in the order of their first readers' ranks. Devices' and
    channels' orders together are a relation on ops; a topological order of it reproduces the
    schedule exactly. Where it has a cycle, no ranks do, and the starts alone decide.
    """
    order = np.lexsort((np.argsort(built.problem.topological_order), finish, start))
    rank = np.argsort(order)
    after = _followers(built, device, order, rank, sends)
    waiting = np.bincount(np.array(list(chain(*after)), np.int64), minlength=len(order))
    heap = sorted(rank[waiting == 0].tolist())
    found = []
    while heap:
        v = int(order[heapq.heappop(heap)])
        found.append(v)
        for w in after[v]:
            waiting[w] -= 1
            if waiting[w] == 0:
                heapq.heappush(heap, int(rank[w]))
    return np.argsort(found) if len(found) == len(order) else rank


def _followers(
    built: MakespanModel,
    device: Ints,
    order: Ints,
    rank: Ints,
    sends: list[tuple[int, int, int, int]],
) -> list[list[int]]:
    """Return the ops that come right after each op on its device, or as first readers on a
    channel.
    """
    p = built.problem
    after: list[list[int]] = [[] for _ in order]
    last_op: dict[int, int] = {}
    for v in order.tolist():
        d = int(device[v])
        if d in last_op:
            after[last_op[d]].append(v)
        last_op[d] = v
    last_reader: dict[int, int] = {}
    for _, t, d, e in sends:
        readers = p.consumer[p.consumer_ptr[t] : p.consumer_ptr[t + 1]]
        reader = int(min(readers[device[readers] == e], key=lambda v: rank[v]))
        channel = int(p.channel[d, e])
        if last_reader.get(channel, reader) != reader:
            after[last_reader[channel]].append(reader)
        last_reader[channel] = reader
    return after
