"""What the studies share: intervals of means."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.experiments.studies import half_width


def test_half_width_of_two_values():
    """Student's t with one degree of freedom: 12.706 times the standard error, which is 1 here."""
    assert half_width([0.0, 2.0]) == pytest.approx(12.7062, abs=1e-3)


def test_half_width_covers_the_mean():
    """Of 400 samples of five normal numbers about 95 % have the true mean in their interval."""
    rng = np.random.default_rng(0)
    samples = rng.normal(loc=3.0, size=(400, 5))
    covered = sum(abs(sample.mean() - 3.0) <= half_width(sample.tolist()) for sample in samples)
    assert 0.92 * 400 <= covered <= 0.98 * 400
