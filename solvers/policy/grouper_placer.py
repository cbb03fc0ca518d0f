"""`grouper-placer`: a softmax grouper and a softmax placer, learned together (Mirhoseini et al.
2018).

Ops draw one of G groups from a softmax over their features (type, output size, adjacency), groups
draw a device; both learn by policy gradient on the running time with a moving-average baseline, a
square-root reward and a penalty for placements that fail. The placer is a softmax per group, as in
the grouper-placer of Liu et al. (2019), where Mirhoseini et al. learn a recurrent network.

References
----------
- A. Mirhoseini, A. Goldie, H. Pham, B. Steiner, Q. V. Le, J. Dean. A hierarchical model for device
  placement. ICLR 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from placeopt.model.arrays import Floats, Ints
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.policy.advantages import Parameters, square_root_rewards
from placeopt.solvers.policy.group_and_place import AssignedSamples, Place, Placer, assign_and_place
from placeopt.solvers.policy.grouping_graph import GroupingGraph, b_level_ranks, grouping_graph
from placeopt.solvers.policy.learned_placer import LearnedPlacer, fill_samples, ticks_of_unit_reward
from placeopt.solvers.policy.structure_features import (
    neighbour_means,
    structure_features,
    type_features,
)
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker

RATES = {"weights": 0.3, "residual": 2.0, "place": 0.5, "bias": 1.0}
"""Learning rate of each parameter over that of the solver."""


@dataclass(frozen=True)
class GrouperPlacer(LearnedPlacer):
    """Softmax grouper over op features, softmax placer over groups, one policy gradient (Mirhoseini
    et al. 2018).

    A placement that breaks a constraint is rewarded with minus `penalty`; the first incumbent's
    reward is -1.
    """

    groups: int = option(32, "groups that ops may draw", low=1)
    batch: int = option(32, "samples per step of the policy gradient", low=2)
    warm_start: bool = option(
        True,
        "begin with the teacher's devices as groups, if there are as many; otherwise "
        "uniform, as published",
    )
    penalty: float = option(3.0, "negative reward of a placement that breaks a constraint", above=0)
    residual: bool = option(True, "learn a logit per (op, group) besides the weights of features")

    def begin(self, tracker: PlacementTracker) -> GroupingPolicy:
        """Ask the teacher for an incumbent, from which the policy begins if it is to be warm."""
        self.ask_teacher(tracker)
        scale = ticks_of_unit_reward(tracker)
        return GroupingPolicy(
            tracker.problem,
            self,
            scale,
            tracker.solution if self.warm_start else None,
            tracker.rng(),
        )


class GroupingPolicy:
    """Weights of grouper and placer on one problem.

    Attributes
    ----------
    parameters : "weights" of the ops' features for each group, "residual" logits of each op,
    "place" (weights of `Place`),
        "bias" of each group towards each device.
    scale : ticks of the reward -1.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        config: GrouperPlacer,
        scale: float,
        start: Placement | None,
        rng: np.random.Generator,
    ) -> None:
        self.config, self.rng, self.scale = config, rng, scale
        self.baseline: float | None = None
        self.graph: GroupingGraph = grouping_graph(problem)
        self.ranks = b_level_ranks(problem)
        own = np.column_stack([type_features(problem), structure_features(problem)])
        self.features = np.column_stack(
            [np.ones(problem.num_ops), own, neighbour_means(problem, own)]
        )
        n, k, groups = problem.num_ops, problem.num_devices, config.groups
        place = np.zeros(len(Place))
        place[Place.LOAD], place[Place.AFFINITY] = -2.0, 4.0
        self.parameters = Parameters(
            {
                "weights": np.zeros((self.features.shape[1], groups)),
                "residual": np.zeros((n, groups)),
                "place": place,
                "bias": np.zeros((groups, k)),
            },
            {name: config.learning_rate * rate for name, rate in RATES.items()},
        )
        if start is not None and groups >= k:
            self._begin_as(start, k)

    def _begin_as(self, start: Placement, k: int, *, lead: float = 6.0) -> None:
        """Give each op the groups of its device (one per level bucket), and each group its device,
        by a logit of `lead` over the others.
        """
        per_device = self.config.groups // k
        bucket = self.graph.level * per_device // self.graph.num_levels
        group = start.device * per_device + bucket
        self.parameters["residual"][np.arange(len(group)), group] = lead
        for g in range(per_device * k):
            self.parameters["bias"][g, g // per_device] = lead

    def sample(self, count: int, temperature: float) -> AssignedSamples:
        """Draw placements."""
        (n, k), groups, now = self.graph.compute.shape, self.config.groups, self.parameters
        samples = AssignedSamples(
            devices=np.zeros((count, n), np.int32),
            ranks=np.tile(self.ranks, (count, 1)),
            logits=np.zeros((count, n, groups)),
            place=np.zeros((count, len(Place))),
            bias=np.zeros((count, groups, k)),
        )
        logits = self.features @ now["weights"] + now["residual"]
        placer = Placer(now["place"], now["bias"])
        draw = partial(assign_and_place, self.graph, logits, placer)
        return fill_samples(samples, self.rng, draw, temperature, count * n * groups)

    def learn(self, samples: AssignedSamples, values: Ints, temperature: float) -> None:
        """Take one step along sum of advantage times score function."""
        advantage = self._advantages(values)
        logits = np.tensordot(advantage, samples.logits, axes=1)
        self.parameters.ascend(
            {
                "weights": self.features.T @ logits / len(self.features) ** 0.5,
                "residual": logits if self.config.residual else np.zeros_like(logits),
                "place": advantage @ samples.place,
                "bias": np.tensordot(advantage, samples.bias, axes=1),
            }
        )

    def _advantages(self, values: Ints, *, decay: float = 0.9) -> Floats:
        """Return square-root rewards over the moving average of those before, scaled by their
        deviation.
        """
        rewards = square_root_rewards(values, self.scale, self.config.penalty)
        centre = float(rewards.mean())
        before = centre if self.baseline is None else self.baseline
        advantage = rewards - before
        self.baseline = (
            centre if self.baseline is None else decay * self.baseline + (1 - decay) * centre
        )
        return advantage / max(1e-9, float(rewards.std()))
