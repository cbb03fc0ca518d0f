"""Stage III: a real system as the objective of a search, and the final word on whether the search
helped.

`Measured` turns a runtime into the callable that `annealing`, `cross-entropy`, `post` and
`dual-policy` take as `measure`: devices in, seconds out. Measurements are noisy and dear, so
candidates race: one execution decides that a candidate is clearly slower than the best so far; only
the others are repeated, and the median counts.

The lowest of many noisy values is lower than the truth, so what a search returns may be slower than
what it began with. `refine` therefore measures both again, in pairs that alternate, and keeps the
start unless a t-test on the logarithm of the ratios says, with the confidence asked for, that the
candidate is faster.

After stage III of "DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow
graphs" (2025).

References
----------
"Doppler: dual-policy learning for device assignment in asynchronous dataflow graphs", 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from placeopt.model.arrays import Floats, Ints, frozen
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget, Result
from placeopt.model.shown import Shown
from placeopt.runtime.measurement import Runtime, with_ranks
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run


@dataclass
class Measured:
    """Seconds that a placement takes on a runtime; a callable for the `measure` of a search.

    Parameters
    ----------
    problem : the simulated problem of the same graph: where neither the caller nor `ranks` orders
        the ops,
        its fifo simulation does.
    repeats : executions of a candidate that keeps up with the best; their median is its value.
    margin : a first execution slower than the best median by more than this share is a lost race.
    ranks : order of the ops for devices that come without one, typically that of the placement a
        search begins with.

    Attributes
    ----------
    best : lowest median of a candidate executed `repeats` times, in seconds.
    executions : executions so far.
    """

    runtime: Runtime
    graph: OpGraph
    problem: PlacementProblem
    repeats: int = 3
    margin: float = 0.1
    ranks: Ints | None = None
    best: float = math.inf
    executions: int = 0
    _times: dict[bytes, list[float]] = field(default_factory=dict, repr=False)

    ordered: ClassVar[bool] = True
    """A search that chooses ranks may pass them as second argument."""

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InputError(
                f"measured objective: repeats must be at least 1, received {self.repeats}"
            )
        if not self.margin >= 0:
            raise InputError(f"measured objective: margin must be >= 0, received {self.margin}")

    def __call__(self, devices: ArrayLike, ranks: ArrayLike | None = None) -> float:
        """Return the median of the executions of a candidate, or its first if that lost the
        race.
        """
        placement = self.placement(devices, ranks)
        assert placement.priority is not None
        times = self._times.setdefault(
            placement.device.tobytes() + placement.priority.tobytes(), []
        )
        while len(times) < self.repeats:
            times.append(self.execute(placement))
            if times[-1] > self.best * (1 + self.margin):
                break
        value = float(np.median(times))
        if len(times) >= self.repeats:
            self.best = min(self.best, value)
        return value

    def placement(self, devices: ArrayLike, ranks: ArrayLike | None = None) -> Placement:
        """Return the placement that is executed for these devices, with ranks."""
        given = self.ranks if ranks is None else np.asarray(ranks)
        return with_ranks(self.problem, Placement(np.asarray(devices), given))

    def execute(self, placement: Placement) -> float:
        """Execute a placement once and return its makespan in seconds."""
        self.executions += 1
        return self.runtime.run(self.graph, placement).makespan


@dataclass(frozen=True, eq=False, repr=False)
class Refinement(Shown):
    """What stage III ends with.

    Attributes
    ----------
    placement : the start, or the candidate if it is faster with the confidence asked for.
    improved : whether it is the candidate.
    start_seconds, candidate_seconds : the pairs of final measurements; empty if the search found
        nothing new.
    executions : of the search and of the final measurements together.
    ratio, interval : candidate over start: geometric mean, and its two-sided confidence interval.
    result : what the search returned.
    """

    placement: Placement
    improved: bool
    start_seconds: Floats
    candidate_seconds: Floats
    ratio: float
    interval: tuple[float, float]
    executions: int
    result: Result[Placement]

    def shown(self) -> dict[str, str]:
        """Return whether the candidate is faster, by how much, and the interval."""
        low, high = self.interval
        return {
            "of": f"'{self.result.problem}'",
            "keeps": "the candidate" if self.improved else "the start",
            "candidate over start": f"{self.ratio:.3f} ({low:.3f} to {high:.3f})",
            "executions": str(self.executions),
        }


def refine(
    start: Placement,
    solver: Any,
    measure: Measured,
    budget: Budget,
    *,
    seed: int,
    pairs: int = 10,
    confidence: float = 0.95,
    fewest_pairs: int = 4,
) -> Refinement:
    """Search on the real system from `start`; keep the start unless the search found something
    faster.

    Parameters
    ----------
    start : placement to improve, for instance the best simulated one.
    solver : name, or a configured solver; its field `measure` is set.
    budget : of the search; an evaluation is one candidate.
    pairs : final measurements of start and candidate, in turn.
    confidence : of the test that the candidate is faster (one-sided).
    fewest_pairs : after which a candidate that is slower on average is given up.
    """
    if pairs < fewest_pairs:
        raise InputError(f"refine: pairs must be at least {fewest_pairs}, received {pairs}")
    if not 0.5 < confidence < 1:
        raise InputError(f"refine: confidence must be in (0.5, 1), received {confidence}")
    start = with_ranks(measure.problem, start)
    if measure.ranks is None:
        measure = replace(measure, ranks=start.priority)
    chosen: Any = make_solver(solver) if isinstance(solver, str) else solver
    chosen = replace(chosen, measure=measure)
    result = run(measure.problem, chosen, budget, seed=seed, initial=start)
    found = result.solution
    candidate = start if found is None else measure.placement(found.device, found.priority)
    if candidate == start:
        none = frozen(np.zeros(0))
        return Refinement(start, False, none, none, 1.0, (1.0, 1.0), measure.executions, result)
    first, second = duel(measure, start, candidate, pairs, fewest_pairs)
    ratio, interval, faster = judge(first, second, confidence)
    return Refinement(
        candidate if faster else start,
        faster,
        first,
        second,
        ratio,
        interval,
        measure.executions,
        result,
    )


def duel(
    measure: Measured, start: Placement, candidate: Placement, pairs: int, fewest: int
) -> tuple[Floats, Floats]:
    """Measure two placements in turn; stop early, after the `fewest` pairs, only in favour of the
    start, which no error can make worse.
    """
    seconds = np.zeros((pairs, 2))
    for i in range(pairs):
        for side in (0, 1) if i % 2 == 0 else (1, 0):  # neither always runs first
            seconds[i, side] = measure.execute((start, candidate)[side])
        if i + 1 >= fewest and np.log(seconds[: i + 1, 1] / seconds[: i + 1, 0]).mean() >= 0:
            seconds = seconds[: i + 1]
            break
    return frozen(seconds[:, 0]), frozen(seconds[:, 1])


def judge(
    start: Floats, candidate: Floats, confidence: float
) -> tuple[float, tuple[float, float], bool]:
    """Return the mean ratio candidate / start, its interval, and whether the candidate is faster.

    Student's t on the logarithms of the ratios of pairs: measured close together, a pair shares
    most of what else the machine was doing.
    """
    from scipy.stats import t

    logs = np.log(candidate / start)
    mean, n = float(logs.mean()), len(logs)
    error = float(logs.std(ddof=1)) / math.sqrt(n)
    width = float(t.ppf((1 + confidence) / 2, n - 1)) * error
    faster = mean + float(t.ppf(confidence, n - 1)) * error < 0
    return math.exp(mean), (math.exp(mean - width), math.exp(mean + width)), bool(faster)
