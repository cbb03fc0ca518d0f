"""Stage III where the simulator is biased: the simulator's constants are the policy that learns on
the real system.

A simulator that ranks placements well in general may be wrong about the very placements that it
thinks best, for a search finds what it underestimates. Measuring one candidate after the other is
dear. Here every sample is a simulator: its constants (the engine's overhead per op, latency and
bandwidth of transfers) are those of a calibration times factors that a distribution draws; a search
on it gives a placement, which is measured. The distribution is fitted to the factors whose
placements were fastest (cross-entropy), so that three numbers learn from a few dozen measured
placements, and never-seen placements profit.

The placements of a generation race: all are executed a few times in turn, the slower half is left
out, the others are executed more often. Medians count; the best of all generations meet again at
the end, in executions that chose none of them.

References
----------
- X. Yao et al. DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow graphs.
  ICLR 2026. (Stage III.)
- Y. Chebotar et al. Closing the sim-to-real loop: adapting simulation randomization with real world
  experience. ICRA 2019.
- R. Y. Rubinstein. The cross-entropy method for combinatorial and continuous optimization.
  Methodology and Computing in Applied Probability 1, 1999.
- K. Jamieson, A. Talwalkar. Non-stochastic best arm identification and hyperparameter optimization.
  AISTATS 2016. (The race.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.result import Budget
from placeopt.runtime.measurement import with_ranks
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placeopt.model.graph import OpGraph
    from placeopt.model.placement import Placement
    from placeopt.runtime.calibration import Calibration
    from placeopt.runtime.measurement import Runtime

    Floats = NDArray[np.float64]

SPREAD = 1.0
"""Deviation of the logarithm of every factor before anything was measured."""

LEAST = 0.25
"""Least deviation after a fit: measured values are noisy."""

SMOOTHING = 0.7
"""Weight of a fit against the distribution before it."""

RACE = (2, 2, 4)
"""Executions of every candidate in the heats of a race; after each but the last the slower half is
left out."""


@dataclass
class Candidate:
    """A placement on trial.

    Attributes
    ----------
    factors : of the simulator that it is best for: overhead, latency, bandwidth; None for one that
    was given.
    seconds : of its executions so far.
    """

    placement: Placement
    factors: Floats | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median of its executions, in seconds."""
        return float(np.median(self.seconds))


@dataclass(frozen=True, eq=False)
class Tuned:
    """What tuning ends with.

    Attributes
    ----------
    finalists : the best candidates of all generations, by the median of the executions that were
    for them alone, best first.
    factors : medians of the distribution at the end: overhead, latency, bandwidth.
    executions : of all races together. fastest : lowest median of each generation, in seconds.
    """

    finalists: tuple[Candidate, ...]
    factors: tuple[float, float, float]
    executions: int
    fastest: tuple[float, ...]

    @property
    def placement(self) -> Placement:
        """The placement that was fastest in the final."""
        return self.finalists[0].placement


@dataclass(frozen=True)
class SimulatorTuning:
    """Learns the constants of a simulator from what its best placements take on a real system.

    Parameters
    ----------
    solver : name or configured solver that places the graph on each simulator. evaluations : its
    budget.
    generations, samples, elite : of the cross-entropy method; `elite` samples are fitted to.
    finalists : candidates that meet at the end. final : executions of each of them there.
    """

    solver: Any = "annealing"
    evaluations: int = 8000
    generations: int = 4
    samples: int = 16
    elite: int = 4
    finalists: int = 4
    final: int = 8

    def __post_init__(self) -> None:
        for name in ("evaluations", "generations", "samples", "elite", "finalists", "final"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"tuning the simulator: {name} must be at least 1, received "
                    f"{getattr(self, name)}"
                )
        if self.elite > self.samples:
            raise InputError(
                f"tuning the simulator: expected elite <= samples, received {self.elite} and "
                f"{self.samples}"
            )

    def run(
        self,
        runtime: Runtime,
        graph: OpGraph,
        calibration: Calibration,
        *,
        seed: int,
        given: Sequence[Placement] = (),
    ) -> Tuned:
        """Learn on `runtime`, beginning with the constants of `calibration`; placements that are
        `given` run in the final.
        """
        rng = np.random.default_rng(seed)
        mean, deviation = np.zeros(3), np.full(3, SPREAD)
        found: dict[bytes, Candidate] = {}
        executions, fastest = 0, []
        for generation in range(self.generations):
            drawn = mean + deviation * rng.normal(size=(self.samples, 3))
            if generation == 0:
                drawn[0] = 0.0
            candidates = [self._best_for(graph, calibration, np.exp(row), rng) for row in drawn]
            executions += race(runtime, graph, candidates, rng)
            candidates.sort(key=lambda candidate: (-len(candidate.seconds), candidate.median))
            fastest.append(candidates[0].median)
            elites = np.log(
                [
                    candidate.factors
                    for candidate in candidates[: self.elite]
                    if candidate.factors is not None
                ]
            )
            mean = (1 - SMOOTHING) * mean + SMOOTHING * elites.mean(axis=0)
            deviation = np.maximum(
                LEAST, (1 - SMOOTHING) * deviation + SMOOTHING * elites.std(axis=0)
            )
            for candidate in candidates[: self.finalists]:
                key = candidate.placement.device.tobytes()
                if key not in found or candidate.median < found[key].median:
                    found[key] = candidate
        best = sorted(found.values(), key=lambda candidate: candidate.median)[: self.finalists]
        last = [
            *(Candidate(own.placement, own.factors) for own in best),
            *(Candidate(placement) for placement in given),
        ]
        executions += race(runtime, graph, last, rng, (self.final,))
        last.sort(key=lambda candidate: candidate.median)
        overhead, latency, bandwidth = np.exp(mean).tolist()
        return Tuned(tuple(last), (overhead, latency, bandwidth), executions, tuple(fastest))

    def _best_for(
        self, graph: OpGraph, calibration: Calibration, factors: Floats, rng: np.random.Generator
    ) -> Candidate:
        """Return what the search finds on the simulator with these factors."""
        problem = calibration.scaled(*factors.tolist()).problem(graph)
        solver = make_solver(self.solver) if isinstance(self.solver, str) else self.solver
        result = run(
            problem, solver, Budget(evaluations=self.evaluations), seed=int(rng.integers(2**31))
        )
        if result.solution is None:
            raise InputError(
                f"tuning the simulator: {result.solver} found no placement of {graph.name}: "
                f"{result.message}"
            )
        return Candidate(with_ranks(problem, result.solution), factors)


def race(
    runtime: Runtime,
    graph: OpGraph,
    candidates: Sequence[Candidate],
    rng: np.random.Generator,
    heats: Sequence[int] = RACE,
) -> int:
    """Execute candidates in turn, in a new order each time, leaving out the slower half after every
    heat but the last.

    Returns the number of executions; the seconds are added to the candidates.
    """
    left, executions = list(candidates), 0
    for heat, rounds in enumerate(heats):
        if heat:
            left = sorted(left, key=lambda candidate: candidate.median)[: (len(left) + 1) // 2]
        for _ in range(rounds):
            for i in rng.permutation(len(left)).tolist():
                left[i].seconds.append(runtime.run(graph, left[i].placement).makespan)
                executions += 1
    return executions
