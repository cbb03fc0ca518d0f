"""A value network for clusters: one layer of rectified units beside a linear part, fitted to
returns by least squares.

    V(x) = linear . x + sum_h output_h max(0, bias_h + hidden_h . x)

x describes the cluster that a decision leaves (free servers and packable blocks from now on). The
simulator runs the same formula on the weights as one flat array
(`placeopt.streams.simulator.network_size`). Steps of gradients shape the hidden units; on those the
outer weights are solved for, as steps alone leave them too noisy to tell apart choices that differ
by a tenth of a job.

References
----------
D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
J. A. Boyan, "Least-squares temporal difference learning", ICML 1999.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.solvers.policy.adam import Adam

if TYPE_CHECKING:
    from numpy.typing import NDArray

RIDGE = 3e-4
"""Part of each outer input's square that holds the solution near the weights of the steps, for
inputs that hardly differ."""

CHUNK = 16
"""Streams whose inputs are in memory at once while outer weights are solved for."""

BATCH = 2048
"""States of one step."""


class ValueNetwork:
    """Weights of V, and what their training remembers.

    Attributes
    ----------
    layers : linear (features,), output (hidden,), bias (hidden,), hidden (hidden, features).
    outer : the linear part and the output that are solved for on these hidden units; what the
    policy takes.
    offset : (bins,) the mean return by the jobs to come, the last bin for all larger numbers. All
    choices of a moment
        leave as many, so that none depends on it.
    """

    def __init__(
        self, num_features: int, hidden: int, rng: np.random.Generator, bins: int = 1
    ) -> None:
        self.layers = [
            np.zeros(num_features),
            np.zeros(hidden),
            0.3 * rng.normal(size=hidden),
            rng.normal(size=(hidden, num_features)) * (2 / num_features) ** 0.5,
        ]
        self.outer = self.layers[0].copy(), self.layers[1].copy()
        self.offset = np.zeros(bins)
        self._steps = [Adam(layer.shape, 1.0) for layer in self.layers]

    @property
    def weights(self) -> NDArray[np.float64]:
        """All layers in one flat array, as `DegreePolicy` takes them."""
        return np.concatenate([layer.ravel() for layer in (*self.outer, *self.layers[2:])])

    def values(self, states: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return V of every state, (states,)."""
        linear, output, bias, hidden = (
            layer.astype(np.float32) for layer in (*self.outer, *self.layers[2:])
        )
        units = np.maximum(states @ hidden.T + bias, 0)
        return np.asarray(units @ output + states @ linear, dtype=np.float64)

    def bins(self, to_come: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place in `offset` for each number of jobs to come."""
        return np.minimum(to_come, len(self.offset) - 1)

    def follow(self, to_come: NDArray[np.int64], returns: NDArray[np.float64]) -> None:
        """Make the offsets the means of these returns, less the network's values, by the jobs to
        come.
        """
        bins, size = self.bins(to_come).ravel(), len(self.offset)
        self.offset = np.bincount(bins, returns.ravel(), size) / np.maximum(
            1, np.bincount(bins, minlength=size)
        )

    def solve(
        self,
        states: NDArray[np.float32],
        rewards: NDArray[np.float64],
        to_come: NDArray[np.int64],
        discount: float,
        trace: float,
    ) -> None:
        """Set the outer weights and the offsets to the fixed point of temporal differences on these
        streams.

        With inputs x_t, traces z_t = x_t + discount trace z_(t-1) and rewards r_(t+1), LSTD(lambda)
        solves sum_t z_t (x_t - discount x_(t+1)) w = sum_t z_t r_(t+1). Shapes: (streams, jobs,
        features) and (streams, jobs).
        """
        linear, output = self.layers[:2]
        near = np.concatenate(
            [linear, output, self.offset]
        )  # found by steps: stays where the streams tell nothing
        size = len(near)
        matrix, squares, vector = np.zeros((size, size)), np.zeros(size), np.zeros(size)
        fade = np.float32(discount * trace)
        for begin in range(0, len(states), CHUNK):
            part = slice(begin, begin + CHUNK)
            inputs = self._outer_inputs(states[part], to_come[part])
            traces = np.empty_like(inputs)
            passed = np.zeros_like(inputs[:, 0])
            for t in range(inputs.shape[1]):
                passed = fade * passed + inputs[:, t]
                traces[:, t] = passed
            after = inputs[:, 1:] * np.float32(discount) * (to_come[part][:, 1:, None] > 0)
            flat = traces[:, :-1].reshape(-1, size)
            matrix += flat.T @ (inputs[:, :-1] - after).reshape(-1, size)
            vector += flat.T @ rewards[part][:, 1:].ravel().astype(np.float32)
            squares += np.einsum("ijk,ijk->k", inputs, inputs)
        squares = RIDGE * (squares + np.prod(rewards.shape) * 1e-3)
        found = np.linalg.solve(matrix + np.diag(squares), vector + squares * near)
        found_linear, found_output, self.offset = np.split(
            found, [len(linear), len(linear) + len(output)]
        )
        self.outer = found_linear, found_output

    def _outer_inputs(
        self, states: NDArray[np.float32], to_come: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return features, hidden units and the bin of the jobs to come, as a one among zeros."""
        bias, hidden = (layer.astype(np.float32) for layer in self.layers[2:])
        units = np.maximum(states @ hidden.T + bias, 0)
        return np.concatenate(
            [states, units, np.eye(len(self.offset), dtype=np.float32)[self.bins(to_come)]], axis=2
        )

    def fit(
        self,
        states: NDArray[np.float32],
        targets: NDArray[np.float32],
        steps: int,
        rate: float,
        rng: np.random.Generator,
    ) -> float:
        """Take Adam steps on the squared error of random batches; return the mean squared error
        met.
        """
        total = 0.0
        for _ in range(steps):
            rows = rng.integers(len(states), size=BATCH)
            total += self._step(states[rows], targets[rows], rate)
        return total / max(1, steps)

    def _step(
        self, states: NDArray[np.float32], targets: NDArray[np.float32], rate: float
    ) -> float:
        linear, output, bias, hidden = (layer.astype(np.float32) for layer in self.layers)
        units = np.maximum(states @ hidden.T + bias, 0)
        error = units @ output + states @ linear - targets
        loss = float(error @ error) / len(error)
        error /= len(error)
        back = np.outer(error, output) * (units > 0)
        slopes = (states.T @ error, units.T @ error, back.sum(axis=0), back.T @ states)
        for layer, adam, slope in zip(self.layers, self._steps, slopes, strict=True):
            adam.learning_rate = rate
            layer -= adam.step(slope.astype(np.float64))
        return loss


def trace_returns(
    rewards: NDArray[np.float64], values: NDArray[np.float64], discount: float, trace: float
) -> NDArray[np.float64]:
    """Return the lambda-return of every state but the last: what is still to come, seen from it;
    states on the last axis.

    G_t = r_(t+1) + discount ((1 - trace) V_(t+1) + trace G_(t+1)), with G = V at the end;
    `rewards[t]` came with state t.

    References
    ----------
    R. S. Sutton, "Learning to predict by the methods of temporal differences", Machine Learning 3
    (1988).
    """
    returns = np.array(values, dtype=np.float64)
    for t in range(returns.shape[-1] - 2, -1, -1):
        ahead = (1 - trace) * values[..., t + 1] + trace * returns[..., t + 1]
        returns[..., t] = rewards[..., t + 1] + discount * ahead
    return returns[..., :-1]
