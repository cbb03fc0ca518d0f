"""Running streams: one episode, or many on all cores, and the figures that describe them.

References
----------
Parsonson et al., "Partitioning distributed compute jobs with reinforcement learning and graph
neural networks" (2023): the model, and the degree policies it compares with (PAC-ML).
Bertsekas, Tsitsiklis and Wu, "Rollout algorithms for combinatorial optimization" (1997).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placeopt.model.arrays import Array, ArrayHolder, Bits, Flags, Floats, Ints, frozen
from placeopt.model.errors import InputError, check_choice
from placeopt.model.threads import map_threads, num_threads
from placeopt.streams.episode_loop import (
    CAUSES,
    COMPLETED,
    CONSTANT,
    FEASIBLE_FIRST,
    LOOKS_AHEAD,
    MAX_DEGREE,
    MIN_DEGREE,
    PACKED_AHEAD,
    RANDOM,
    ROLLOUT,
    VALUE,
    Outcome,
    PolicyArrays,
    make_scratch,
    num_features,
    run_episode,
)
from placeopt.streams.problem import JobStreamProblem

POLICY_KINDS = {
    "max-degree": MAX_DEGREE,
    "min-degree": MIN_DEGREE,
    "constant-degree": CONSTANT,
    "random-degree": RANDOM,
    "feasible-first": FEASIBLE_FIRST,
    "rollout": ROLLOUT,
    "policy-degree": VALUE,
}

NEEDS = {
    "feasible-first": ("order", "an order of degrees per model"),
    "rollout": ("order", "an order of degrees per model"),
    "policy-degree": ("weights", "the weights of its network"),
}
"""Fields without which a policy cannot be run, and what they are."""


@dataclass(frozen=True, eq=False)
class DegreePolicy:
    """A rule that chooses a degree for each arriving job; a value that the simulator can run.

    Attributes
    ----------
    name : a key of `POLICY_KINDS`.
    degree : constant-degree only.
    order : (models, degrees) indices of degrees, best first, padded with -1: feasible-first, and
    the base of a rollout.
    fragmentation : feasible-first; weight of spoilt large blocks against one place in the order.
    samples, depth, terminal : rollout; futures per decision, arrivals per future, and the price of
    work left at the
        end of a future, in jobs per mean job area.
    weights : policy-degree; the value network as `network_size` lays it out.
    discount : policy-degree; worth of a job that completes one arrival later.
    explore : probability of a random choice, to learn from.
    """

    name: str
    degree: int = 0
    order: Ints | None = None
    fragmentation: float = 0.0
    samples: int = 8
    depth: int = 20
    terminal: float = 1.0
    weights: Floats | None = None
    discount: float = 0.97
    explore: float = 0.0

    def __post_init__(self) -> None:
        check_choice("degree policy", self.name, POLICY_KINDS)
        key, what = NEEDS.get(self.name, ("name", ""))
        if getattr(self, key) is None:
            raise InputError(f"degree policy '{self.name}' needs {what}")
        if self.order is not None:
            object.__setattr__(self, "order", frozen(np.asarray(self.order, np.int64)))
        if self.weights is not None:
            object.__setattr__(self, "weights", frozen(np.asarray(self.weights, np.float64)))
        if self.samples < 1 or self.depth < 0:
            raise InputError("degree policy: samples must be >= 1 and depth >= 0")
        for key in ("discount", "explore"):
            if not 0 <= getattr(self, key) <= 1:
                raise InputError(
                    f"degree policy: {key} must be in 0..1, received {getattr(self, key)}"
                )

    def arrays(self, problem: JobStreamProblem, seed: int = 0) -> PolicyArrays:
        """Return the policy as the kernels take it, for streams like `problem`.

        Raises
        ------
        InputError
            If the topology lacks the constant degree, or the order is for other models or degrees.
        """
        table = problem.jobs
        shape = (len(table.profiles), len(table.degrees))
        order = np.full(shape, -1, np.int64) if self.order is None else self.order
        if order.shape != shape or order.max() >= shape[1]:
            raise InputError(
                f"degree policy '{self.name}': the order must have shape {shape}, received "
                f"{order.shape}"
            )
        constant = 0
        if self.name == "constant-degree":
            constant = table.topology.require_degree(self.degree)
        pool = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64)
        terminal = 0.0
        if self.name == "rollout":
            other = problem.resample(1_000_003 + seed)
            gaps = (
                np.diff(other.arrival) if other.num_jobs > 1 else np.array([int(problem.mean_gap)])
            )
            size = len(gaps)
            pool = other.model[:size], other.deadline[:size], gaps
            terminal = self.terminal / float(table.arrays.sequential[problem.model].mean())
        # arrays are writable, all of them: kernels are compiled per type, and read-only is a type
        return PolicyArrays(
            POLICY_KINDS[self.name],
            constant,
            np.array(order),
            _complete(order),
            float(self.fragmentation),
            self.samples,
            self.depth,
            np.array(pool[0]),
            np.array(pool[1]),
            np.array(pool[2]),
            terminal,
            problem.mean_gap,
            np.array(LOOKS_AHEAD),
            np.array(PACKED_AHEAD),
            float(self.explore),
            float(self.discount),
            *_layers(self.weights, num_features(shape[1])),
        )


def network_size(num_features: int, hidden: int) -> int:
    """Return the number of weights of a value network: of each feature, of each hidden unit its
    output, bias and features.
    """
    return num_features + hidden * (num_features + 2)


def _layers(weights: Floats | None, size: int) -> tuple[Floats, ...]:
    """Return the weights of the features, and the outputs, biases and features of the hidden units,
    of `size` features.
    """
    flat = np.zeros(size) if weights is None else weights
    hidden = (len(flat) - size) // (size + 2)
    if flat.shape != (network_size(size, max(0, hidden)),):
        raise InputError(
            f"degree policy 'policy-degree': expected {size} weights and {size + 2} more per "
            f"hidden unit, received {flat.shape}"
        )
    linear, output, bias, rest = np.split(flat, np.cumsum([size, hidden, hidden]))
    return np.array(linear), np.array(output), np.array(bias), rest.reshape(hidden, size).T.copy()


def _complete(order: Ints) -> Ints:
    """Return each row's degrees followed by those it leaves out, largest first."""
    size = order.shape[1]
    rows = [[d for d in row if d >= 0] for row in order.tolist()]
    return np.array(
        [row + [d for d in range(size - 1, -1, -1) if d not in row] for row in rows], np.int64
    )


@dataclass(frozen=True, eq=False)
class Episode(ArrayHolder):
    """What happened to every job of one stream under one policy."""

    problem: JobStreamProblem
    policy: DegreePolicy
    seed: int
    cause: NDArray[np.int8]  # (J,) index into CAUSES
    degree: NDArray[np.int16]  # (J,) chosen degree, 0 where none
    jct: Ints  # (J,) ticks, 0 for a job that did not start
    held: NDArray[np.int16]  # (J,) servers
    servers: Flags  # (J, S), or (0, S) unless recorded

    def __post_init__(self) -> None:
        for key in ("cause", "degree", "jct", "held", "servers"):
            object.__setattr__(self, key, frozen(getattr(self, key)))

    def __repr__(self) -> str:
        return (
            f"<Episode of '{self.problem.name}': {self.blocked} of {self.problem.num_jobs} jobs "
            "blocked>"
        )

    @property
    def blocked(self) -> int:
        """Number of blocked jobs."""
        return int(np.count_nonzero(self.cause != COMPLETED))

    @property
    def blocking_rate(self) -> float:
        """Blocked jobs over arrivals."""
        return self.blocked / self.problem.num_jobs

    @cached_property
    def causes(self) -> dict[str, int]:
        """Number of blocked jobs by cause."""
        counts = np.bincount(self.cause, minlength=len(CAUSES))
        return {name: int(counts[i]) for i, name in enumerate(CAUSES) if i != COMPLETED}

    @property
    def _done(self) -> Flags:
        return self.cause == COMPLETED

    @property
    def _sequential(self) -> Ints:
        """Ticks on one server of the completed jobs."""
        return self.problem.jobs.arrays.sequential[self.problem.model[self._done]]

    @property
    def mean_jct(self) -> float:
        """Mean completion time of the completed jobs in time units (0 if there are none)."""
        return _mean(self.jct[self._done]) * self.problem.tick_seconds

    @property
    def mean_speedup(self) -> float:
        """Mean of sequential time over completion time of the completed jobs."""
        return _mean(self._sequential / self.jct[self._done])

    @property
    def throughput(self) -> float:
        """Offered throughput: sequential time of the completed jobs per time unit of the stream."""
        return float(self._sequential.sum()) / self.problem.horizon

    @property
    def mean_degree(self) -> float:
        """Mean degree of the completed jobs."""
        return _mean(self.degree[self._done])

    @property
    def utilisation(self) -> float:
        """Mean fraction of servers held by started jobs, up to the horizon."""
        started = self.jct > 0
        left = self.problem.horizon - self.problem.arrival[started]
        length = np.clip(left, 0, self.jct[started])
        held = float((length.astype(np.float64) * self.held[started]).sum())
        return held / (self.problem.horizon * self.problem.num_servers)


def _mean(values: Array) -> float:
    """Return the mean of some values, 0 of none."""
    return float(values.mean()) if len(values) else 0.0


def simulate(
    problem: JobStreamProblem, policy: DegreePolicy, *, seed: int = 0, record_servers: bool = False
) -> Episode:
    """Run one episode.

    Parameters
    ----------
    seed : of the policy's own randomness; the stream is fixed by the problem.
    record_servers : keep which servers each job held (pictures, traces).
    """
    return _run(problem, policy, seed, servers=record_servers)[0]


def _run(
    problem: JobStreamProblem,
    policy: DegreePolicy,
    seed: int,
    *,
    servers: bool = False,
    clusters: bool = False,
) -> tuple[Episode, Floats]:
    """Run one episode; record the servers of every job, and the cluster that it leaves, on
    demand.
    """
    size, degrees = problem.num_jobs, len(problem.jobs.degrees)
    outcome = Outcome(
        np.zeros(size, np.int8),
        np.zeros(size, np.int16),
        np.zeros(size, np.int64),
        np.zeros(size, np.int16),
        np.zeros((size * servers, problem.num_servers), np.bool_),
    )
    afterwards = np.zeros((size * clusters, num_features(degrees)))
    jobs, rule = problem.jobs.arrays, policy.arrays(problem, seed)
    work = make_scratch(jobs, problem.num_servers, len(rule.bias))
    run_episode(jobs, problem.arrays, rule, random_state(seed), work, outcome, afterwards)
    return Episode(problem, policy, seed, *outcome), afterwards


def simulate_each(
    problems: Sequence[JobStreamProblem],
    policy: DegreePolicy,
    *,
    seed: int = 0,
    threads: int | None = None,
) -> Iterator[Episode]:
    """Run one episode on each problem, in threads (the kernel releases the interpreter's lock), and
    yield them in order.

    The i-th episode uses seed + i, so that the result does not depend on the number of threads
    (None: all cores).
    """
    jobs = [(problem, seed + i) for i, problem in enumerate(problems)]

    def run(job: tuple[JobStreamProblem, int]) -> Episode:
        return simulate(job[0], policy, seed=job[1])

    yield from map(run, jobs[:1])  # compiles before the threads start
    threads = threads or num_threads()
    if threads == 1 or len(jobs) < 3:
        yield from map(run, jobs[1:])
        return
    # an interrupt waits for the episodes that have begun, not for all
    yield from map_threads(run, jobs[1:], threads, "episodes")


def simulate_many(
    problems: Sequence[JobStreamProblem],
    policy: DegreePolicy,
    *,
    seed: int = 0,
    threads: int | None = None,
) -> list[Episode]:
    """Return the episodes of `simulate_each`."""
    return list(simulate_each(problems, policy, seed=seed, threads=threads))


def random_state(seed: int) -> Bits:
    """Return the random state of an episode (uint64[2], never all zero)."""
    state = np.random.SeedSequence([seed, 0x5EED]).generate_state(2, np.uint64)
    return state | np.uint64(1)


@dataclass(frozen=True)
class Summary:
    """Figures of a policy over several episodes: means, and 95 % intervals of the mean blocking
    rate.
    """

    policy: str
    episodes: int
    blocking_rate: float
    ci95: tuple[float, float]
    mean_jct: float  # time units
    mean_speedup: float
    throughput: float  # sequential time units per time unit
    mean_degree: float
    utilisation: float
    causes: dict[str, float]  # blocking rate by cause

    @classmethod
    def of(cls, name: str, episodes: Sequence[Episode]) -> Summary:
        """Summarise episodes of one policy."""
        rates = np.array([episode.blocking_rate for episode in episodes])
        jobs = sum(episode.problem.num_jobs for episode in episodes)
        # means over completed jobs are none where no job completes, not 0
        served = [e for e in episodes if e.blocked < e.problem.num_jobs] or episodes
        means = {"mean_jct": served, "mean_speedup": served, "mean_degree": served}
        means |= {"throughput": episodes, "utilisation": episodes}
        return cls(
            policy=name,
            episodes=len(episodes),
            blocking_rate=float(rates.mean()),
            ci95=confidence_interval(rates),
            causes={key: sum(e.causes[key] for e in episodes) / jobs for key in episodes[0].causes},
            **{key: float(np.mean([getattr(e, key) for e in of])) for key, of in means.items()},
        )


def confidence_interval(values: Floats) -> tuple[float, float]:
    """Return the 95 % interval of a mean rate by Student's t, within 0..1; the mean itself for a
    single value.
    """
    from scipy.special import stdtrit

    mean = float(values.mean())
    if len(values) < 2:
        return mean, mean
    half = stdtrit(len(values) - 1, 0.975) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return max(0.0, mean - half), min(1.0, mean + half)


def record_episode(
    problem: JobStreamProblem, policy: DegreePolicy, seed: int
) -> tuple[Episode, Floats]:
    """Run one episode; return it and the features of the cluster that each job leaves behind,
    (jobs, features).
    """
    return _run(problem, policy, seed, clusters=True)
