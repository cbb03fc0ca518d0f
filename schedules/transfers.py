"""What transfers occupy while they last: nothing, a channel of their own, or both devices.

A lag between two blocks only says how long a tensor travels. A runtime does more than wait:

lag        the model of the search: any number of transfers at once, beside the blocks (nothing is
           occupied);
channel    non-blocking sends and receives: transfers overlap with blocks, but those from one place
           to another follow each other on one channel;
blocking   a send and its receive occupy sender and receiver for as long as the transfer takes, so
           that neither computes.

`with_transfers` makes the transfers of a problem blocks of their own, on the devices or on channels
beside them, so that every solver, bound and judge takes the result as any other problem. `executed`
keeps the order of a given schedule on every device, puts each transfer where its tensor is ready,
and starts everything as early as that allows: how the same schedule does under another runtime.
Sends and receives lie in one order on both sides, so that none waits for the other for ever.

References
----------
.. [1] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible
Schedule Search", HPCA 2024
   (section 5, blocking and non-blocking communication of its runtime).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placeopt.model.arrays import UNLIMITED
from placeopt.model.errors import check_choice
from placeopt.schedules.evaluate import compact
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.solution import PipelineSchedule

MODES = ("lag", "channel", "blocking")


def transfers_of(problem: PipelineProblem) -> dict[tuple[int, int], str]:
    """Return the transfers: waits of at least a tick between blocks that do not lie on the same
    devices, as (block, block that waits for it) -> name of the transfer between them.
    """
    places = [tuple(problem.devices_of(i).tolist()) for i in range(problem.num_blocks)]
    names = problem.block_names
    return {
        (u, v): f"{names[u]}>{names[v]}"
        for u, v, lag in problem.edges
        if lag > 0 and places[u] != places[v]
    }


def with_transfers(problem: PipelineProblem, mode: str) -> PipelineProblem:
    """Return the problem with its transfers as blocks that occupy channels or devices; blocks keep
    their indices.

    Parameters
    ----------
    mode : one of MODES; "lag" returns the problem itself.

    Raises
    ------
    InputError
        If the mode is not known.
    """
    check_choice("transfers", mode, MODES)
    moved = transfers_of(problem)
    if mode == "lag" or not moved:
        return problem
    blocks, devices, sent = problem.blocks(), list(problem.device_names), []
    channel: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for (u, v), name in moved.items():
        ends = blocks[u].devices, blocks[v].devices
        occupied = tuple(sorted({*ends[0], *ends[1]}))
        if mode == "channel":
            if ends not in channel:
                channel[ends] = len(devices)
                names = ("+".join(problem.device_names[d] for d in end) for end in ends)
                devices.append(">".join(names))
            occupied = (channel[ends],)
        span = max(lag for before, lag in blocks[v].after if before == blocks[u].name)
        sent.append(Block(name, "other", occupied, span, after=((blocks[u].name, 0),)))
    for v, block in enumerate(blocks):
        after = tuple(
            (moved[u, v], 0) if (u, v) in moved else (problem.block_names[u], lag)
            for u, lag in problem.predecessors_of(v)
        )
        blocks[v] = replace(block, after=after)
    return PipelineProblem.from_blocks(
        f"{problem.name}, {mode} transfers",
        [*blocks, *sent],
        devices,
        capacity=[*problem.capacity.tolist(), *[UNLIMITED] * (len(devices) - problem.num_devices)],
        micro_batches=problem.micro_batches,
        tick_seconds=problem.tick_seconds,
    )


def executed(schedule: PipelineSchedule, mode: str) -> PipelineSchedule:
    """Return the schedule as it runs under another treatment of transfers: the order of every
    device is kept.

    What repeats is no longer known, so the result has no pattern. Memory peaks are those of the
    schedule.
    """
    problem = schedule.problem
    there = with_transfers(problem, mode)
    wanted = schedule.start
    if there is not problem:
        ends = [wanted[:, u] + problem.span[u] for u, _ in transfers_of(problem)]
        wanted = np.column_stack([wanted, *ends])
    return PipelineSchedule(there, compact(there, wanted))
