"""`visiting-placer`: visit the ops one after the other and move each, judged after every move
(Placeto).

An episode begins at a placement and gives every unit one visit, in topological order; a graph
network that sees where all units are draws a device for the one that is visited. The reward of a
visit is what the makespan falls by. Episodes run side by side, so that at each visit the others are
the baseline, and learning does not wait for the end of an episode: after `horizon` visits the
returns so far make one step of REINFORCE.

References
----------
- R. Addanki, S. B. Venkatakrishnan, S. Gupta, H. Mao, M. Alizadeh. Placeto: learning generalizable
  device placement algorithms for distributed machine learning. NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from placeopt.model.arrays import Floats, Ints, SmallInts, stable_order
from placeopt.model.objective import INFEASIBLE
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.policy.advantages import discounted_returns, peer_advantages
from placeopt.solvers.policy.grouping_graph import b_level_ranks
from placeopt.solvers.policy.learned_placer import ticks_of_unit_reward
from placeopt.solvers.policy.network_placer import TorchPlacer
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker


class Moved(NamedTuple):
    """Placements of the episodes after a visit, as `LearnedPlacer.value` takes them."""

    devices: SmallInts  # (episodes, n)
    ranks: Ints  # (episodes, n)


@dataclass(frozen=True)
class VisitingPlacer(TorchPlacer):
    """One visit per op and episode, a reward per visit (Placeto); `batch` episodes side by side."""

    batch: int = option(8, "episodes side by side; each visit costs an evaluation of each", low=2)
    rounds: int = option(2, "rounds of message passing", low=0)
    horizon: int = option(16, "visits between two steps of learning", low=1)
    discount: float = option(0.9, "discount of rewards per visit", low=0, high=1)

    def begin(self, tracker: PlacementTracker) -> Any:
        """Ask the teacher for an incumbent, at which episodes begin if the start is to be warm."""
        return Visits(self, self.first_devices(tracker), tracker)

    def improve(self, policy: Any, tracker: PlacementTracker) -> None:
        """Run episodes side by side, learning every `horizon` visits, until the budget is spent."""
        while not tracker.stop():
            policy.reset()
            visits = range(policy.num_units)
            for begin in visits[:: self.horizon]:
                if tracker.stop():
                    return
                policy.segment(visits[begin : begin + self.horizon], tracker)


class Visits:
    """Episodes under way, and the network that moves their units."""

    def __init__(
        self, config: VisitingPlacer, first: Ints | None, tracker: PlacementTracker
    ) -> None:
        import torch

        from placeopt.solvers.policy.network_policy import seeded
        from placeopt.solvers.policy.placement_networks import VisitNetwork, describe

        problem: PlacementProblem = tracker.problem
        self.config, self.first, self.rng = config, first, tracker.rng()
        self.units, self.ranks = problem.units, b_level_ranks(problem)
        self.scale = ticks_of_unit_reward(tracker)
        self.num_units = len(self.units.first_op)
        position = np.argsort(problem.topological_order)
        self.order = stable_order(position[self.units.first_op])
        nodes = describe(problem, np.array(self.units.unit), None)
        self.generator = torch.Generator().manual_seed(int(self.rng.integers(2**62)))
        self.network = seeded(lambda: VisitNetwork(nodes, config.hidden, config.rounds), self.rng)
        self.steps = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)

    def reset(self) -> None:
        """Begin new episodes at the teacher's placement, or at random ones."""
        count = self.config.batch
        if self.first is not None:
            self.device = np.tile(self.first[self.units.first_op], (count, 1))
        else:
            keys = self.rng.random((count, *self.units.allowed.shape))
            self.device = np.where(self.units.allowed, keys, -1.0).argmax(axis=2)
        self.value: Floats | None = None

    def segment(self, visits: range, tracker: PlacementTracker) -> None:
        """Visit some units in all episodes, then take one step towards what paid."""
        import torch

        from placeopt.solvers.policy.network_policy import descend
        from placeopt.solvers.policy.placement_networks import draw, log_probability_of

        rewards, chosen = [], []
        for at in visits:
            if tracker.stop():
                break
            if tracker.evaluations_left < 2 * len(self.device):
                # values before the first visit, and after this one
                tracker.count(min(tracker.evaluations_left, len(self.device)))
                break
            if self.value is None:
                self.value = self._values(tracker)
            node = int(self.order[at])
            visited = torch.zeros(self.num_units)
            visited[torch.from_numpy(self.order[:at].copy())] = 1.0
            temperature = self.config.temperature_now(tracker)
            logits = self.network(node, torch.from_numpy(self.device), visited) / temperature
            choice = draw(logits.detach(), self.generator)
            chosen.append(log_probability_of(logits, choice))
            self.device[:, node] = choice.numpy()
            after = self._values(tracker)
            rewards.append((self.value - after) / self.scale)
            self.value = after
        if not rewards:
            return
        returns = discounted_returns(np.array(rewards).T, self.config.discount)
        advantage = peer_advantages(returns)
        advantage /= max(1e-9, float(advantage.std()))
        weight = torch.from_numpy(advantage.T.astype(np.float32))
        descend(self.steps, -(torch.stack(chosen) * weight).mean())

    def _values(self, tracker: PlacementTracker) -> Floats:
        """Return the ticks of every episode's placement, counted; `penalty` times the scale where
        it breaks a constraint.
        """
        devices = self.device[:, self.units.unit].astype(np.int32)
        values = self.config.value(Moved(devices, np.tile(self.ranks, (len(devices), 1))), tracker)
        return np.where(
            values == INFEASIBLE, self.config.penalty * self.scale, values.astype(np.float64)
        )
