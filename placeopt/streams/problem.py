"""JobStreamProblem: jobs arrive at a cluster; choose at once how far to split each, or refuse it.

Job j arrives at a_j with model m_j and must end by a_j + deadline_j. With degree u it holds a block
of servers for its completion time. A job is blocked if it is refused, cannot be placed, would miss
its deadline, or has not ended at the horizon. Objective "blocking": the number of blocked jobs
(Parsonson et al., PAC-ML, 2023).

The general lookahead runs a split job on the servers it was given by the exact placement evaluator.
The job becomes a `PlacementProblem` whose devices are the job's servers: sub-ops are fixed to their
servers, every edge is a tensor, and transfers queue on channels (one outgoing bus per server, or
one per ordered pair) where the published lookahead lets them all progress at once. Servers run the
ready sub-op with the smallest compute cost, without preemption. A synchronisation edge ends in an
op of no length that nothing waits for, and lets other transfers pass.

References
----------
C. W. F. Parsonson, Z. Shabka, A. Ottino, G. Zervas, "Partitioning distributed compute jobs with
reinforcement learning and graph neural networks" (PAC-ML), 2023.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.arrays import (
    MAX_SUM,
    ArrayHolder,
    Ints,
    csr,
    int_array,
    positions,
    tells_types,
    to_ticks,
)
from placeopt.model.cluster import CONTENTION, contention_matrix
from placeopt.model.errors import InputError, check_choice
from placeopt.model.objective import check_objective
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.streams.episode_loop import JobArrays, StreamArrays
from placeopt.streams.lookahead import LookaheadConfig, build_split_job, step_time
from placeopt.streams.split import SplitJob, split_counts
from placeopt.streams.topology import RampTopology

if TYPE_CHECKING:
    from placeopt.streams.profiles import JobProfile


@tells_types
@dataclass(frozen=True, eq=False)
class JobTable:
    """Job types on a topology: what each model costs for each degree.

    Attributes
    ----------
    steps : training steps of a job.
    contention : "none" takes the lookahead of the job-stream model; "source" or "pair" evaluates
    the split job with
        the exact placement evaluator, transfers queueing on channels.
    tick_seconds : time units per tick.
    """

    profiles: tuple[JobProfile, ...]
    topology: RampTopology = field(default_factory=RampTopology)
    config: LookaheadConfig = field(default_factory=LookaheadConfig)
    steps: int = 50
    contention: str = "none"
    tick_seconds: float = 1e-9

    def __post_init__(self) -> None:
        if not self.profiles:
            raise InputError("job stream: expected at least one job type, received none")
        names = [profile.name for profile in self.profiles]
        if len(set(names)) != len(names):
            raise InputError(
                f"job stream: job types must have distinct names, received {', '.join(names)}"
            )
        if self.steps < 1:
            raise InputError(f"job stream: training steps must be >= 1, received {self.steps}")
        check_choice("contention", self.contention, CONTENTION)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the job types."""
        return tuple(profile.name for profile in self.profiles)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees a policy may choose."""
        return self.topology.degrees

    def model_index(self, name: str) -> int:
        """Return the index of a job type.

        Raises
        ------
        InputError
            If there is none of that name.
        """
        if name not in self.models:
            raise InputError(f"model '{name}' is unknown; this stream has {', '.join(self.models)}")
        return self.models.index(name)

    @cached_property
    def lookahead(self) -> dict[str, dict[int, float]]:
        """Completion time of every (model, degree) in time units; degrees that do not fit are left
        out.
        """
        scale = self.tick_seconds
        return {
            name: {u: int(t) * scale for u, t in zip(self.degrees, row, strict=True) if t >= 0}
            for name, row in zip(self.models, self.arrays.jct, strict=True)
        }

    @cached_property
    def arrays(self) -> JobArrays:
        """Everything the simulator needs, computed once."""
        degrees = self.degrees
        jct = self._completion_times()
        width = np.zeros(jct.shape, np.int64)
        splits, memory, parents = [], [], []
        op_ptr = np.zeros(len(self.profiles) + 1, np.int64)
        sequential = np.zeros(len(self.profiles), np.int64)
        for m, profile in enumerate(self.profiles):
            counts = [
                split_counts(profile.forward * 1e3, u, self.config.rule, self.config.quantum)
                for u in degrees
            ]
            position = positions(profile.order)
            for op in profile.order:
                splits.append([row[op] for row in counts])
                memory.append(float(profile.memory[op]))
                parents.append([position[parent] for parent in profile.parents[op]])
            op_ptr[m + 1] = len(splits)
            width[m] = degrees if self.config.rule == "uniform" else [max(row) for row in counts]
            alone = profile.sequential * self.config.time_scale * self.steps
            # equal to the completion time unsplit (the first degree is 1) to the last tick, so that
            # a deadline of 1.0 can be met
            sequential[m] = jct[m, 0] if jct[m, 0] > 0 else to_ticks(alone, self.tick_seconds)
        parent_ptr, parent = csr(parents)
        blocks = self.topology.blocks
        return JobArrays(
            np.array(degrees, np.int64),
            jct,
            width,
            sequential,
            blocks.size_ptr,
            blocks.server_ptr,
            blocks.server,
            blocks.masks(self.topology.num_servers),
            self.config.rule == "uniform",
            float(self.topology.memory),
            op_ptr,
            np.array(splits, np.int64),
            np.array(memory),
            parent_ptr,
            parent,
        )

    def _completion_times(self) -> Ints:
        """Return jct[M, D] in ticks."""
        table = np.array([[self._step_time(p, u) for u in self.degrees] for p in self.profiles])
        ticks = np.full(table.shape, -1, np.int64)
        fits = np.isfinite(table)
        ticks[fits] = to_ticks(table[fits] * self.steps, self.tick_seconds, "job completion time")
        return ticks

    def _step_time(self, profile: JobProfile, degree: int) -> float:
        """Return the length of one training step in time units; infinity where a job does not fit.

        Every pair of servers is connected alike, so that a step takes the same time on all blocks
        of the same size: one evaluation, on an empty cluster, serves them all.
        """
        if self.contention == "none":
            return step_time(profile, degree, self.topology, self.config)
        return contended_step_time(profile, degree, self.topology, self.config, self.contention)


@dataclass(frozen=True, eq=False)
class JobStreamProblem(ArrayHolder):
    """One stream of J jobs on a cluster.

    Attributes
    ----------
    jobs : job types, topology and lookahead.
    arrival, model, deadline : of each job; the deadline counts from the arrival.
    horizon : end of the stream in ticks.
    spec : how the stream was drawn (`draw(jobs, seed)` draws one), so that others can be drawn from
    the same distribution; None
    for a bare trace.
    seed : seed of the draw.
    """

    name: str
    jobs: JobTable
    arrival: Ints  # (J,) ticks
    model: Ints  # (J,) index of the job type
    deadline: Ints  # (J,) ticks
    horizon: int  # ticks
    spec: Any = None
    seed: int = 0
    objective: str = "blocking"

    problem_kind: ClassVar[str] = "jobs"

    def __post_init__(self) -> None:
        size = len(np.asarray(self.arrival))
        if size == 0:
            raise InputError(f"stream '{self.name}': expected at least one job, received none")
        check_objective(self, f"stream '{self.name}'")
        for key in ("arrival", "model", "deadline"):
            object.__setattr__(self, key, int_array(getattr(self, key), (size,), key))
        if int(self.arrival.min()) < 0:
            job = int(np.argmax(self.arrival < 0))
            raise InputError(
                f"stream '{self.name}': job {job} arrives at {self._units(self.arrival[job])}, "
                "before 0"
            )
        if int(self.arrival.max()) >= MAX_SUM:
            raise InputError(f"stream '{self.name}': arrivals pass 2^62 ticks; use larger ones")
        late = np.flatnonzero(np.diff(self.arrival) < 0)
        if late.size:
            job = int(late[0]) + 1
            raise InputError(
                f"stream '{self.name}': arrivals out of order: job {job} arrives at "
                f"{self._units(self.arrival[job])}, job {job - 1} at "
                f"{self._units(self.arrival[job - 1])}; sort them"
            )
        if int(self.deadline.min()) < 0:
            job = int(np.argmax(self.deadline < 0))
            raise InputError(f"stream '{self.name}': job {job} has a negative deadline")
        if int(self.model.min()) < 0 or int(self.model.max()) >= len(self.jobs.profiles):
            raise InputError(
                f"stream '{self.name}': model indices must be 0..{len(self.jobs.profiles) - 1}"
            )
        horizon = int_array(self.horizon, (), f"stream '{self.name}': horizon")
        object.__setattr__(self, "horizon", int(horizon))
        if self.horizon <= 0 or self.horizon >= MAX_SUM:
            raise InputError(
                f"stream '{self.name}': the horizon must be positive, received {self.horizon} ticks"
            )

    def _units(self, ticks: int) -> str:
        return f"{int(ticks) * self.tick_seconds:g}"

    @property
    def num_jobs(self) -> int:
        """Number of arrivals."""
        return len(self.arrival)

    @property
    def num_servers(self) -> int:
        """Number of servers of the cluster."""
        return self.jobs.topology.num_servers

    @property
    def tick_seconds(self) -> float:
        """Time units per tick."""
        return self.jobs.tick_seconds

    @cached_property
    def arrays(self) -> StreamArrays:
        """The arrivals as the simulator takes them."""
        return StreamArrays(self.arrival, self.model, self.deadline, int(self.horizon))

    @cached_property
    def mean_gap(self) -> float:
        """Mean ticks between arrivals."""
        if self.num_jobs < 2 or self.arrival[-1] == self.arrival[0]:
            return float(self.horizon)
        return float(self.arrival[-1] - self.arrival[0]) / (self.num_jobs - 1)

    @cached_property
    def offered_load(self) -> float:
        """Sequential work per server and time: 1 saturates a cluster that splits jobs without
        loss.
        """
        work = float(self.jobs.arrays.sequential[self.model].astype(np.float64).sum())
        return work / (self.num_jobs * self.mean_gap * self.num_servers)

    def __repr__(self) -> str:
        return (
            f"<JobStreamProblem '{self.name}': {self.num_jobs} jobs on {self.num_servers} servers>"
        )

    @cached_property
    def hash(self) -> str:
        """Digest of the arrivals, the completion times, and what decides where jobs fit."""
        digest, jobs, grid = hashlib.sha256(), self.jobs.arrays, self.jobs.topology
        numbers = self.horizon, grid.groups, grid.racks, grid.servers, grid.memory, jobs.whole
        for array in (
            *(self.arrival, self.model, self.deadline, np.array(numbers, np.int64)),
            *(jobs.jct, jobs.op_ptr, jobs.op_splits, jobs.op_memory, jobs.parent_ptr, jobs.parent),
        ):
            digest.update(f"{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def resample(self, seed: int) -> JobStreamProblem:
        """Draw another stream from the same distribution.

        A trace is resampled from its own jobs, with replacement, and its gaps, in another order.
        Where its horizon cuts off no deadline, that of the other cuts off none.
        """
        if self.spec is not None:
            return self.spec.draw(self.jobs, seed)
        rng = np.random.default_rng(seed)
        pick = rng.integers(self.num_jobs, size=self.num_jobs)
        gaps = np.diff(self.arrival, prepend=0)
        arrival = np.cumsum(np.concatenate([gaps[:1], rng.permutation(gaps[1:])]))
        deadline, horizon = self.deadline[pick], self.horizon
        if (self.arrival + self.deadline).max() <= horizon:
            horizon = min(max(horizon, int((arrival + deadline).max())), MAX_SUM - 1)
        model = self.model[pick]
        return replace(
            self, arrival=arrival, model=model, deadline=deadline, horizon=horizon, seed=seed
        )


TICK = 1e-9
"""Time units per tick of the placement problem of one training step."""


def _split_job_problem(
    job: SplitJob, network: RampTopology, time_scale: float, contention: str, name: str
) -> tuple[PlacementProblem, Placement]:
    """Return the split job as a placement problem on its servers, and the placement it has."""
    used, device = np.unique(job.server, return_inverse=True)
    k = len(used)
    seconds = network.propagation + 2 * network.io_latency + job.size / network.channel_bandwidth
    ticks = np.where(job.size > 0, to_ticks(seconds, TICK), 0)
    cost = to_ticks(job.compute * time_scale, TICK)
    n = len(cost)
    sinks = np.flatnonzero(job.sync)
    consumer = job.target.copy()
    # arrival of a synchronised gradient: waited for by nobody
    consumer[sinks] = n + np.arange(len(sinks))
    devices = np.concatenate([device, device[job.target[sinks]]])
    times = np.pad(cost, (0, len(sinks)))
    problem = PlacementProblem.from_arrays(
        compute=np.repeat(times[:, None], k, axis=1),
        producer=job.source,
        consumer_ptr=np.arange(len(consumer) + 1),
        consumer=consumer,
        transfer=ticks,
        channel=contention_matrix(k, contention),
        name=name,
        tick_seconds=TICK,
    )
    rank = np.empty(len(times), np.int64)
    waiting = np.arange(len(times)) >= n  # gradients let the transfers go first that ops wait for
    rank[np.lexsort((times, waiting))] = np.arange(len(times))
    return problem, Placement(devices, rank)


def contended_step_time(
    profile: JobProfile,
    degree: int,
    topology: RampTopology,
    config: LookaheadConfig,
    contention: str = "source",
) -> float:
    """Return the length of one training step in time units on an empty cluster, contention
    included; infinity where the job does not fit.
    """
    from placeopt.makespan.evaluate import evaluate

    topology.require_degree(degree)
    job = build_split_job(profile, degree, topology, config)
    if job is None:
        return math.inf
    problem, placement = _split_job_problem(
        job, config.network(topology), config.time_scale, contention, f"{profile.name} x{degree}"
    )
    return evaluate(problem, placement, queue="priority").makespan * TICK
