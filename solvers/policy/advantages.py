"""How good an outcome was: returns, baselines and advantages of what policies sampled; larger is
better.

References
----------
- W. Kool, H. van Hoof, M. Welling. Buy 4 REINFORCE samples, get a baseline for free! ICLR workshop,
  2019.
- A. Mirhoseini, A. Goldie, H. Pham, B. Steiner, Q. V. Le, J. Dean. A hierarchical model for device
  placement. ICLR 2018.
- D. Wierstra, T. Schaul, T. Glasmachers, Y. Sun, J. Peters, J. Schmidhuber. Natural evolution
  strategies. JMLR 15, 2014.

Adam, the step rule of every policy here, on one array or on several that learn at their own
rates.

References
----------
- D. P. Kingma, J. Ba. Adam: a method for stochastic optimization. ICLR 2015.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placeopt.model.arrays import Floats, Ints, stable_order
from placeopt.model.objective import INFEASIBLE


def discounted_returns(rewards: Floats, discount: float) -> Floats:
    """Return G_t = sum_k discount^k r_(t+k) along the last axis."""
    returns = np.array(rewards, np.float64)
    for t in range(returns.shape[-1] - 2, -1, -1):
        returns[..., t] += discount * returns[..., t + 1]
    return returns


def peer_advantages(returns: Floats) -> Floats:
    """Return each rollout's return minus the mean of its peers (leave-one-out), along the first
    axis.

    Rollouts of the same instance are each other's baseline: unbiased, because a rollout is not in
    its own baseline (Kool et al. 2019). One rollout alone keeps its return.
    """
    count = len(returns)
    if count < 2:
        return returns
    return (returns - returns.mean(axis=0)) * (count / (count - 1))


def rank_utilities(values: Ints) -> Floats:
    """Return an advantage for each rollout from the rank of its cost: smaller is better, the sum is
    zero.

    The utilities of natural evolution strategies (Wierstra et al. 2014): only the better half
    pushes, so that neither a failed rollout nor the scale of the costs matters. Equal costs get
    equal utilities.
    """
    count = len(values)
    order = stable_order(values)
    raw = np.maximum(0.0, np.log(count / 2 + 1) - np.log(np.arange(1, count + 1)))
    raw = raw / raw.sum() - 1.0 / count
    utility = np.empty(count)
    utility[order] = raw
    _, group = np.unique(values, return_inverse=True)
    return (np.bincount(group, utility) / np.bincount(group))[group]


def square_root_rewards(values: Ints, scale: float, penalty: float) -> Floats:
    """Return -sqrt(time / scale), and -penalty for samples that break a constraint (Mirhoseini et
    al. 2018).
    """
    failed = values == INFEASIBLE
    return np.where(failed, -penalty, -np.sqrt(np.where(failed, 0, values) / max(1.0, scale)))


class Adam:
    """Steps uphill for one array (Kingma and Ba 2015, algorithm 1)."""

    def __init__(self, shape: int | tuple[int, ...], learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.first = np.zeros(shape)
        self.second = np.zeros(shape)
        self.steps = 0

    def step(self, gradient: Floats) -> Floats:
        """Return the change of the weights."""
        a, b = 0.9, 0.999
        self.steps += 1
        self.first = a * self.first + (1 - a) * gradient
        self.second = b * self.second + (1 - b) * gradient**2
        mean = self.first / (1 - a**self.steps)
        scale = np.sqrt(self.second / (1 - b**self.steps)) + 1e-8
        return self.learning_rate * mean / scale


class Parameters:
    """Named arrays that learn, each by an Adam of its own.

    Attributes
    ----------
    steps : the Adam of each array, by name.
    """

    def __init__(self, arrays: Mapping[str, Floats], rates: Mapping[str, float]) -> None:
        self._arrays = dict(arrays)
        self.steps = {name: Adam(array.shape, rates[name]) for name, array in arrays.items()}

    def __getitem__(self, name: str) -> Floats:
        return self._arrays[name]

    def ascend(self, gradient: Mapping[str, Floats]) -> None:
        """Take one step along the gradient; arrays that it does not name stay."""
        for name, slope in gradient.items():
            self._arrays[name] += self.steps[name].step(slope)
