"""What the learned placers share: a teacher's placement to begin with, and one main loop of policy
gradient.

Every placer samples a batch of placements from its policy, values them, keeps the best one met, and
moves its policy along sum_i A_i d log pi(placement_i) / d parameters: REINFORCE (Williams 1992),
with an advantage A of its own.

References
----------
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement
  learning. Machine Learning 8, 1992.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from placeopt.makespan.evaluate import evaluate_batch
from placeopt.model.arrays import Bits, Ints, SmallInts
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Result
from placeopt.model.threads import parallel_slices
from placeopt.solvers.policy.group_and_place import Sampling, new_sampling
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run_part
from placeopt.solving.tracker import PlacementTracker, Tracker


def ticks_of_unit_reward(tracker: PlacementTracker) -> float:
    """Return the ticks that rewards are measured by: the first incumbent's, else those of all ops,
    at least one.
    """
    return max(1.0, float(tracker.value or tracker.problem.min_compute.sum()))


class Samples(Protocol):
    """A batch of placements, with what the policy needs to learn from them."""

    @property
    def devices(self) -> SmallInts:
        """Device of every op, shape (batch, num_ops)."""
        ...

    @property
    def ranks(self) -> Ints:
        """Rank of every op, shape (batch, num_ops)."""
        ...


Rows = TypeVar("Rows", bound="tuple[Any, ...]")
"""Samples as a NamedTuple of arrays with one row each."""


class Policy(Protocol):
    """A distribution over placements that learns."""

    def sample(self, count: int, temperature: float) -> Any:
        """Draw `Samples` of `count` placements."""
        ...

    def learn(self, samples: Any, values: Ints, temperature: float) -> None:
        """Take one step towards the better ones of these samples; `values` in ticks, INFEASIBLE
        where refused.
        """
        ...


@dataclass(frozen=True)
class LearnedPlacer(SearchSolver):
    """A policy that is trained on the problem at hand by policy gradient.

    `begin` makes it, warm-started perhaps from the placement of a teacher. The best placement met
    is the answer, so what comes back is never worse than the teacher's.
    """

    endless = True
    kernels = ("ranks", "lists", "lists-by-time", "clusterings", "walks", "policies")

    teacher: str = option(
        "edge-zeroing", "solver whose placement is the first incumbent; empty for none"
    )
    batch: int = option(64, "samples per step of the policy gradient", low=2)
    learning_rate: float = option(0.1, "Adam's step for the weights of features", above=0)
    temperature: float = option(1.0, "temperature of the softmaxes at the start", above=0)
    final_temperature: float = option(
        0.5, "temperature of the softmaxes at the end of the budget", above=0
    )

    @abstractmethod
    def begin(self, tracker: PlacementTracker) -> Policy:
        """Return the policy before its first step, after the teacher has been asked."""

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Learn on `problem` within the budget, offering the best placement met."""
        self.improve(self.begin(tracker), tracker)

    def improve(self, policy: Policy, tracker: PlacementTracker) -> None:
        """Take policy-gradient steps until the budget is spent."""
        while not tracker.stop():
            temperature = self.temperature_now(tracker)
            samples = policy.sample(self.batch_size(tracker), temperature)
            policy.learn(samples, self.value(samples, tracker), temperature)

    def temperature_now(self, tracker: PlacementTracker) -> float:
        """Temperature of the softmaxes for the share of the budget that is spent."""
        return self.temperature * (self.final_temperature / self.temperature) ** spent(tracker)

    def batch_size(self, tracker: PlacementTracker) -> int:
        """Samples of the next step."""
        return int(min(self.batch, tracker.evaluations_left))

    def value(self, samples: Samples, tracker: PlacementTracker) -> Ints:
        """Return the value of every sample, counted, the best one offered."""
        values = self.values(tracker.problem, samples)
        tracker.count(len(values))
        best = int(values.argmin())
        if values[best] != INFEASIBLE:
            tracker.offer(
                int(values[best]),
                Placement(samples.devices[best].astype(np.int64), samples.ranks[best]),
            )
        return values

    def values(self, problem: PlacementProblem, samples: Samples) -> Ints:
        """Return the ticks of every sample, INFEASIBLE where it breaks a constraint."""
        return evaluate_batch(problem, samples.devices, samples.ranks, "priority")

    def ask_teacher(
        self, tracker: PlacementTracker, *, adopt: bool = True, share: float = 0.5
    ) -> Result[Placement] | None:
        """Run the teacher on a share of a limit of time; its placement is offered if it is to be
        adopted.
        """
        if not self.teacher or tracker.stop_with_solution():
            return None
        seconds = tracker.share(share).seconds
        return run_part(tracker, make_solver(self.teacher), seconds=seconds, adopt=adopt)


def spent(tracker: Tracker[Any]) -> float:
    """Share of the budget that is spent: by evaluations where those are limited, so that schedules
    repeat.
    """
    budget = tracker.budget
    if budget.evaluations is not None:
        return min(1.0, tracker.evaluations / budget.evaluations)
    return min(1.0, tracker.elapsed / budget.seconds) if budget.seconds else 0.0


def fill_samples(
    samples: Rows,
    rng: np.random.Generator,
    draw: Callable[[Sampling, Bits, Rows], object],
    temperature: float,
    steps: int,
) -> Rows:
    """Draw every row of `samples` (a NamedTuple of arrays) from a seed of its own, on all cores;
    return them.

    Parameters
    ----------
    draw : fills the rows that it is given from their seeds. steps : work of all rows together.
    """
    seeds = draw_seeds(rng, len(samples[0]))

    def run(part: slice) -> None:
        rows = (array[part] for array in samples)
        draw(new_sampling(temperature), seeds[part], samples._make(rows))  # type: ignore[attr-defined]

    parallel_slices(run, len(seeds), steps)
    return samples


def draw_seeds(rng: np.random.Generator, count: int) -> Bits:
    """Return a seed for every sample, so that samples do not depend on the number of threads."""
    return rng.integers(0, 2**63, count, dtype=np.int64).astype(np.uint64)
