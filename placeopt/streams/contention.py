"""The general lookahead: a split job on the servers it was given, by the exact placement evaluator.

The split job becomes a `PlacementProblem` whose devices are the job's servers: sub-ops are fixed to
their servers, every edge is a tensor, and transfers queue on channels (one outgoing bus per server,
or one per ordered pair) where the published lookahead lets them all progress at once. Servers run
the ready sub-op with the smallest compute cost, without preemption. A synchronisation edge ends in
an op of no length that nothing waits for, and lets other transfers pass.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import Floats, to_ticks
from placeopt.model.errors import InputError
from placeopt.streams.lookahead import LookaheadConfig, build_split_job
from placeopt.streams.split import SplitJob, split_counts, split_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.streams.profiles import JobProfile
    from placeopt.streams.topology import RampTopology

TICK = 1e-9
"""Time units per tick of the placement problem of one training step."""


def split_job_problem(
    job: SplitJob,
    topology: RampTopology,
    config: LookaheadConfig,
    contention: str = "source",
    name: str = "split job",
) -> tuple[PlacementProblem, Placement]:
    """Return the split job as a placement problem on its servers, and the placement it was given.

    Parameters
    ----------
    contention : "none", "pair" or "source".
    """
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem

    if contention not in ("none", "pair", "source"):
        raise InputError(f"contention: expected none, pair or source, received '{contention}'")
    used, device = np.unique(job.server, return_inverse=True)
    k = len(used)
    network = config.network(topology)
    seconds = network.propagation + 2 * network.io_latency + job.size / network.channel_bandwidth
    ticks = np.where(job.size > 0, to_ticks(seconds, TICK), 0)
    cost = to_ticks(job.compute * config.time_scale, TICK)
    n = len(cost)
    sinks = np.flatnonzero(job.sync)
    consumer = job.target.copy()
    consumer[sinks] = n + np.arange(
        len(sinks)
    )  # arrival of a synchronised gradient: waited for by nobody
    devices = np.concatenate([device, device[job.target[sinks]]])
    times = np.concatenate([cost, np.zeros(len(sinks), np.int64)])
    channel = np.full((k, k), -1, np.int64)
    off = ~np.eye(k, dtype=bool)
    if contention == "source":
        channel[off] = np.broadcast_to(np.arange(k)[:, None], (k, k))[off]
    elif contention == "pair":
        channel[off] = np.arange(k * (k - 1))
    problem = PlacementProblem.from_arrays(
        compute=np.repeat(times[:, None], k, axis=1),
        producer=job.source,
        consumer_ptr=np.arange(len(consumer) + 1),
        consumer=consumer,
        transfer=ticks[:, None],
        link_class=np.zeros((k, k), np.int64),
        channel=channel,
        name=name,
        tick_seconds=TICK,
    )
    rank = np.empty(len(times), np.int64)
    waiting = np.arange(len(times)) >= n  # gradients let the transfers go first that ops wait for
    rank[np.lexsort((np.arange(len(times)), times, waiting))] = np.arange(len(times))
    return problem, Placement(devices, rank)


def contended_step_time(
    profile: JobProfile,
    degree: int,
    topology: RampTopology,
    config: LookaheadConfig,
    *,
    contention: str = "source",
    block: Sequence[int] | None = None,
) -> float:
    """Return the length of one training step in time units, contention included.

    Parameters
    ----------
    block : servers of the split ops (uniform rule; as many as the degree), in the order of the
    sub-ops; unsplit ops
        run on the first. None places the job on an empty cluster.
    """
    from placeopt.makespan.evaluate import evaluate

    topology.require_degree(degree)
    if block is None:
        job = build_split_job(profile, degree, topology, config)
    else:
        servers = tuple(int(server) for server in block)
        if config.rule != "uniform" or len(set(servers)) != degree:
            raise InputError(
                f"contended step: a block needs the uniform rule and {degree} distinct servers, "
                "received "
                f"{len(set(servers))} under '{config.rule}'"
            )
        if min(servers) < 0 or max(servers) >= topology.num_servers:
            raise InputError(
                f"contended step: servers must be in 0..{topology.num_servers - 1}, received "
                f"{servers}"
            )
        splits = split_counts(profile.forward * 1e3, degree, config.rule, config.quantum)
        job = split_job(
            profile, splits, tuple(servers if s == degree else servers[:1] for s in splits)
        )
    if job is None:
        return math.inf
    problem, placement = split_job_problem(
        job, topology, config, contention, f"{profile.name} x{degree}"
    )
    return evaluate(problem, placement, queue="priority").makespan * TICK


def completion_table(
    profiles: Sequence[JobProfile], topology: RampTopology, config: LookaheadConfig, contention: str
) -> Floats:
    """Return step times (models, degrees) in time units; infinity where a job does not fit.

    Every pair of servers is connected alike, so that a step takes the same time on all blocks of
    the same size: one evaluation, on an empty cluster, serves them all.
    """
    rows = [
        [
            contended_step_time(profile, degree, topology, config, contention=contention)
            for degree in topology.degrees
        ]
        for profile in profiles
    ]
    return np.array(rows)
