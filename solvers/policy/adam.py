"""Adam, the step rule of every policy here, on one array or on several that learn at their own
rates.

References
----------
- D. P. Kingma, J. Ba. Adam: a method for stochastic optimization. ICLR 2015.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placeopt.model.arrays import Floats


class Adam:
    """Steps uphill for one array (Kingma and Ba 2015, algorithm 1)."""

    def __init__(
        self,
        shape: int | tuple[int, ...],
        learning_rate: float,
        decay: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.learning_rate, self.decay = learning_rate, decay
        self.first = np.zeros(shape)
        self.second = np.zeros(shape)
        self.steps = 0

    def step(self, gradient: Floats) -> Floats:
        """Return the change of the weights."""
        a, b = self.decay
        self.steps += 1
        self.first = a * self.first + (1 - a) * gradient
        self.second = b * self.second + (1 - b) * gradient**2
        mean = self.first / (1 - a**self.steps)
        scale = np.sqrt(self.second / (1 - b**self.steps)) + 1e-8
        return np.asarray(self.learning_rate * mean / scale)


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

    def ascend(self, gradient: Mapping[str, Floats], share: float = 1.0) -> None:
        """Take one step along the gradient, or a share of it; arrays that it does not name stay."""
        for name, slope in gradient.items():
            self._arrays[name] += share * self.steps[name].step(slope)
