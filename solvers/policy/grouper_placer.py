"""`grouper-placer`: a softmax grouper and a softmax placer, learned together (Liu et al. 2019).

After "Hierarchical planning for device placement" (Mirhoseini et al., ICLR 2018) and its grouper-placer for TensorFlow
(Liu et al. 2019): ops draw one of G groups from a softmax over their features (type, output size, adjacency), groups
draw a device; both learn by policy gradient on the running time with a moving-average baseline, a square-root
reward and a penalty for placements that fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.makespan.evaluate import finish, parallel_slices
from placeopt.model.errors import InputError
from placeopt.solvers.policy import group_kernels
from placeopt.solvers.policy.engine import Adam, MovingBaseline
from placeopt.solvers.policy.group_kernels import PLACE_FEATURES, GroupArrays
from placeopt.solvers.policy.group_problem import Judge, group_arrays, square_root_rewards
from placeopt.solvers.policy.structure import neighbour_means, structure_features, type_features
from placeopt.solving.registry import require_objective
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

HEAD_START = 6.0
"""Logit that the seed's group of each op gets over the others."""


@dataclass(frozen=True)
class GrouperPlacer:
    """Softmax grouper over op features, softmax placer over groups, one policy gradient (Liu et al. 2019).

    Parameters
    ----------
    groups : G.
    batch : samples per step.
    teacher : heuristic whose placement is the first incumbent, and from which `warm_start` begins; "" for none.
    warm_start : begin with the teacher's devices as groups; otherwise the policy starts uniform, as published.
    penalty : reward of a placement that breaks a constraint is minus this (a reward of -1 is the first incumbent's).
    learning_rate : Adam's step; `temperature`, `final_temperature` : of both softmaxes.
    residual : learn a logit per (op, group) besides the feature weights.
    """

    groups: int = 32
    batch: int = 32
    teacher: str = "edge-zeroing"
    warm_start: bool = True
    penalty: float = 3.0
    learning_rate: float = 0.1
    temperature: float = 1.0
    final_temperature: float = 0.5
    residual: bool = True

    name: ClassVar[str] = "grouper-placer"

    def __post_init__(self) -> None:
        for key, low in (("groups", 1), ("batch", 2)):
            if getattr(self, key) < low:
                raise InputError(f"grouper-placer: {key} must be at least {low}, received {getattr(self, key)}")
        for key in ("learning_rate", "temperature", "final_temperature", "penalty"):
            if not getattr(self, key) > 0:
                raise InputError(f"grouper-placer: {key} must be > 0, received {getattr(self, key)}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Learn on `problem` within the budget and return the best placement met."""
        require_objective(self.name, problem, ("makespan",))
        tracker: Tracker[Placement] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        with tracker:
            rng = np.random.default_rng(seed)
            judge = Judge.of(problem)
            start = judge.offer_seed(tracker, self.teacher, initial, seed)
            policy = _Policy(problem, self, start if self.warm_start else None)
            baseline = MovingBaseline(0.9)
            scale = float(tracker.value or problem.min_compute.sum())
            while not tracker.stop():
                count = int(min(self.batch, tracker.evaluations_left))
                share = spent(tracker)
                temperature = self.temperature * (self.final_temperature / self.temperature) ** share
                seeds = rng.integers(0, 2**63, count, dtype=np.int64).astype(np.uint64)
                sample = policy.sample(seeds, temperature)
                rewards = square_root_rewards(judge.values(tracker, sample.devices), scale, self.penalty)
                centre = float(rewards.mean())
                advantage = rewards - (centre - baseline.advantage(centre))
                policy.learn(sample, advantage / max(1e-9, float(rewards.std())))
        return finish(tracker)


def spent(tracker: Tracker[Placement]) -> float:
    """Share of the budget that is spent: by evaluations where those are limited, so that schedules repeat."""
    budget = tracker.budget
    if budget.evaluations is not None:
        return min(1.0, tracker.evaluations / budget.evaluations)
    return min(1.0, tracker.elapsed / budget.seconds) if budget.seconds else 0.0


@dataclass(frozen=True, eq=False)
class _Sample:
    devices: NDArray[np.int32]  # (batch, n)
    logits: NDArray[np.float64]  # (batch, n, G) score functions
    place: NDArray[np.float64]  # (batch, features)
    bias: NDArray[np.float64]  # (batch, G, k)


class _Policy:
    """Weights of grouper and placer on one problem."""

    def __init__(self, problem: PlacementProblem, config: GrouperPlacer, start: Placement | None) -> None:
        self.arrays: GroupArrays = group_arrays(problem)
        own = np.column_stack([type_features(problem), structure_features(problem)])
        self.features = np.column_stack([np.ones(problem.num_ops), own, neighbour_means(problem, own)])
        n, k, groups = problem.num_ops, problem.num_devices, config.groups
        self.weights = np.zeros((self.features.shape[1], groups))
        self.residual = np.zeros((n, groups))
        self.place = np.zeros(len(PLACE_FEATURES))
        self.place[PLACE_FEATURES.index("load")] = -2.0
        self.place[PLACE_FEATURES.index("affinity")] = 4.0
        self.bias = np.zeros((groups, k))
        self.learns_residual = config.residual
        if start is not None and groups >= k:
            self._begin_as(start, k)
        self.adam = {
            key: Adam(array.size, config.learning_rate * rate)
            for key, array, rate in (
                ("weights", self.weights, 0.3), ("residual", self.residual, 2.0), ("place", self.place, 0.5),
                ("bias", self.bias, 1.0),
            )
        }  # fmt: skip

    def _begin_as(self, start: Placement, k: int) -> None:
        """Give each op the groups of its device (one per level bucket), and each group its device."""
        groups = self.bias.shape[0]
        per_device = groups // k
        bucket = self.arrays.level * per_device // self.arrays.num_levels
        group = start.device * per_device + bucket
        self.residual[np.arange(len(group)), group] = HEAD_START
        for g in range(per_device * k):
            self.bias[g, g // per_device] = HEAD_START

    def sample(self, seeds: NDArray[np.uint64], temperature: float) -> _Sample:
        """Draw one placement per seed."""
        count, (n, k) = len(seeds), self.arrays.compute.shape
        groups = self.bias.shape[0]
        sample = _Sample(
            np.zeros((count, n), np.int32), np.zeros((count, n, groups)), np.zeros((count, len(PLACE_FEATURES))),
            np.zeros((count, groups, k)),
        )  # fmt: skip
        logits = self.features @ self.weights + self.residual

        def run(part: slice) -> None:
            group_kernels.assign_and_place(
                self.arrays, logits, self.place, self.bias, temperature, seeds[part], False, sample.devices[part],
                sample.logits[part], sample.place[part], sample.bias[part],
            )  # fmt: skip

        parallel_slices(run, count, count * n * groups)
        return sample

    def learn(self, sample: _Sample, advantage: NDArray[np.float64]) -> None:
        """Take one step along sum of advantage times score function."""
        logits = np.tensordot(advantage, sample.logits, axes=1)
        gradient = {
            "weights": self.features.T @ logits / len(self.features) ** 0.5,
            "residual": logits if self.learns_residual else np.zeros_like(logits),
            "place": advantage @ sample.place,
            "bias": np.tensordot(advantage, sample.bias, axes=1),
        }
        for key, value in gradient.items():
            parameter: NDArray[np.float64] = getattr(self, key)
            parameter += self.adam[key].step(value.ravel()).reshape(parameter.shape)
