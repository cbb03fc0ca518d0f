"""A value network for clusters: one layer of rectified units beside a linear part, fitted to returns by least squares.

    V(x) = linear . x + sum_h output_h max(0, bias_h + hidden_h . x)

x describes the cluster that a decision leaves (free servers and packable blocks from now on). The simulator runs the same
formula on the weights as one flat array (`placeopt.streams.simulator.network_size`).

References
----------
D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.solvers.policy.adam import Adam

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH = 4096
"""States of one step."""

CENTRING = 0.1
"""Share of a batch's mean error by which the constant follows."""


class ValueNetwork:
    """Weights of V, and what their training remembers.

    Attributes
    ----------
    layers : linear (features,), output (hidden,), bias (hidden,), hidden (hidden, features).
    constant : added to V in training; a choice does not depend on it.
    """

    def __init__(self, num_features: int, hidden: int, rng: np.random.Generator) -> None:
        self.layers = [
            np.zeros(num_features),
            np.zeros(hidden),
            0.3 * rng.normal(size=hidden),
            rng.normal(size=(hidden, num_features)) * (2 / num_features) ** 0.5,
        ]
        self.constant = 0.0
        self._steps = [Adam(layer.shape, 1.0) for layer in self.layers]

    @property
    def weights(self) -> NDArray[np.float64]:
        """All layers in one flat array, as `DegreePolicy` takes them."""
        return np.concatenate([layer.ravel() for layer in self.layers])

    def values(self, states: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return V of every state, (states,)."""
        linear, output, bias, hidden = (layer.astype(np.float32) for layer in self.layers)
        units = np.maximum(states @ hidden.T + bias, 0)
        return np.asarray(units @ output + states @ linear + self.constant, dtype=np.float64)

    def fit(
        self, states: NDArray[np.float32], targets: NDArray[np.float32], steps: int, rate: float, rng: np.random.Generator
    ) -> float:
        """Take Adam steps on the squared error of random batches; return the mean squared error met."""
        total = 0.0
        for _ in range(steps):
            rows = rng.integers(len(states), size=BATCH)
            total += self._step(states[rows], targets[rows], rate)
        return total / max(1, steps)

    def _step(self, states: NDArray[np.float32], targets: NDArray[np.float32], rate: float) -> float:
        linear, output, bias, hidden = (layer.astype(np.float32) for layer in self.layers)
        units = np.maximum(states @ hidden.T + bias, 0)
        error = units @ output + states @ linear + np.float32(self.constant) - targets
        loss = float(error @ error) / len(error)
        error /= len(error)
        self.constant -= CENTRING * float(error.sum())
        back = np.outer(error, output) * (units > 0)
        slopes = (states.T @ error, units.T @ error, back.sum(axis=0), back.T @ states)
        for layer, adam, slope in zip(self.layers, self._steps, slopes, strict=True):
            adam.learning_rate = rate
            layer -= adam.step(slope.astype(np.float64))
        return loss


def trace_returns(rewards: NDArray[np.float64], values: NDArray[np.float64], discount: float, trace: float) -> NDArray[np.float64]:
    """Return the lambda-return of every state but the last: what is still to come, seen from it.

    G_t = r_(t+1) + discount ((1 - trace) V_(t+1) + trace G_(t+1)), with G = V at the end; `rewards[t]` came with state t.

    References
    ----------
    R. S. Sutton, "Learning to predict by the methods of temporal differences", Machine Learning 3 (1988).
    """
    returns = np.array(values, dtype=np.float64)
    for t in range(len(returns) - 2, -1, -1):
        ahead = (1 - trace) * values[t + 1] + trace * returns[t + 1]
        returns[t] = rewards[t + 1] + discount * ahead
    return returns[:-1]
