"""Learning of placement networks: REINFORCE, or the clipped steps of PPO, on rewards of sampled
placements.

Needs torch; only the solvers' `begin` imports this file.

References
----------
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement
  learning. Machine Learning 8, 1992.
- J. Schulman, F. Wolski, P. Dhariwal, A. Radford, O. Klimov. Proximal policy optimization
  algorithms. arXiv 1707.06347, 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from placeopt.model.arrays import Floats, Ints, SmallInts
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.policy.advantages import square_root_rewards
from placeopt.solvers.policy.grouping_graph import b_level_ranks


class NetworkSamples(NamedTuple):
    """Placements that a network drew, and the choices that made them."""

    devices: SmallInts  # (batch, n)
    ranks: Ints  # (batch, n)
    choices: torch.Tensor  # (batch, choices)


class NetworkPolicy:
    """A placement network that learns from the values of its samples; `config` has the options of a
    `NetworkPlacer`.

    `make` makes a network of `placement_networks`: `sample` draws rows of choices,
    `log_probability` returns the logarithm of the probability of each choice, `devices` the device
    of every op (rows, n).
    """

    def __init__(
        self,
        problem: PlacementProblem,
        config: Any,
        scale: float,
        rng: np.random.Generator,
        make: Callable[[], Any],
    ) -> None:
        self.config, self.scale = config, scale
        self.ranks = b_level_ranks(problem)
        self.generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        self.network = seeded(make, rng)
        self.steps = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        self.baseline: float | None = None

    def sample(self, count: int, temperature: float) -> NetworkSamples:
        """Draw placements."""
        with torch.no_grad():
            choices = self.network.sample(count, temperature, self.generator)
            devices = self.network.devices(choices).numpy().astype(np.int32)
        return NetworkSamples(devices, np.tile(self.ranks, (count, 1)), choices)

    def learn(self, samples: NetworkSamples, values: Ints, temperature: float) -> None:
        """Take one step (REINFORCE) or several clipped ones (PPO) towards the better samples."""
        advantage = torch.from_numpy(self._advantages(values).astype(np.float32))[:, None]
        clipped = self.config.learning == "ppo"
        before = None
        for _ in range(self.config.epochs if clipped else 1):
            now = self.network.log_probability(samples.choices, temperature)
            before = now.detach() if before is None else before
            ratio = torch.exp(now - before)
            gain = ratio * advantage
            if clipped:  # eq. 7 of PPO, for each choice
                low, high = 1 - self.config.clip, 1 + self.config.clip
                gain = torch.minimum(gain, ratio.clamp(low, high) * advantage)
            # -log p of what was drawn estimates the entropy; its gradient is that of REINFORCE
            surprise = -(now.detach().sum(dim=1) * now.sum(dim=1)).mean() / now.shape[1]
            descend(self.steps, -gain.sum(dim=1).mean() - self.config.entropy * surprise)

    def _advantages(self, values: Ints, *, decay: float = 0.9) -> Floats:
        """Return square-root rewards over their moving average, scaled by their deviation."""
        rewards = square_root_rewards(values, self.scale, self.config.penalty)
        mean = float(rewards.mean())
        self.baseline = (
            mean if self.baseline is None else decay * self.baseline + (1 - decay) * mean
        )
        return (rewards - self.baseline) / max(1e-9, float(rewards.std()))


def seeded(make: Callable[[], Any], rng: np.random.Generator) -> Any:
    """Return a network with weights that `rng` decides; torch's own generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**62)))
        return make()


def descend(steps: torch.optim.Adam, loss: torch.Tensor, *, most: float = 1.0) -> None:
    """Take one step along the gradient of a loss; a norm above `most` is shortened to it."""
    steps.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(steps.param_groups[0]["params"], most)
    steps.step()
