"""Calibration: known constants come back from noisy synthetic measurements."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.instances.cost_fit import fit_device, fit_link, with_measured_times
from placeopt.instances.generators import generate
from placeopt.model.cluster import Device
from placeopt.model.cost_model import op_ticks
from placeopt.model.errors import InputError
from placeopt.model.graph import UNKNOWN

TRUE = Device("d", "d", "gpu", peak_flops=1.2e13, memory_bandwidth=7e11, launch_overhead=5e-6)


def _measure(graph, noise, seed, device=TRUE):
    """Return the times of the cost model itself, times a random factor."""
    seconds = op_ticks(graph, device) * graph.tick_seconds
    return seconds * np.exp(np.random.default_rng(seed).normal(0, noise, graph.num_ops))


@pytest.mark.parametrize("name", ["resnet50?batch=16", "bert-base?batch=8"])
@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.005), (0.05, 0.05)])
def test_constants_come_back_from_a_models_ops(name, noise, tolerance):
    """Peak, bandwidth and overhead are recovered from one run of a model, within the noise."""
    graph = generate(name)
    fit = fit_device(graph.flops, graph.bytes_moved, _measure(graph, noise, 1), kind="mine")
    assert fit.device.peak_flops == pytest.approx(TRUE.peak_flops, rel=tolerance)
    assert fit.device.memory_bandwidth == pytest.approx(TRUE.memory_bandwidth, rel=tolerance)
    assert fit.device.launch_overhead == pytest.approx(TRUE.launch_overhead, rel=tolerance)
    assert all(fit.known.values())
    assert fit.median_error < max(0.002, noise)
    assert fit.device.kind == "mine"


def test_outliers_hardly_pull():
    """One measurement in ten is five times too slow: the constants stay, the outliers are named."""
    graph = generate("resnet50?batch=16")
    seconds = _measure(graph, 0.03, 2)
    slow = np.arange(0, graph.num_ops, 10)
    seconds[slow] *= 5
    fit = fit_device(graph.flops, graph.bytes_moved, seconds)
    assert fit.device.peak_flops == pytest.approx(TRUE.peak_flops, rel=0.05)
    assert fit.device.memory_bandwidth == pytest.approx(TRUE.memory_bandwidth, rel=0.05)
    assert fit.device.launch_overhead == pytest.approx(TRUE.launch_overhead, rel=0.1)


def test_the_error_is_relative():
    """It is the median of predicted over measured time minus one."""
    graph = generate("squeezenet?batch=8")
    seconds = _measure(graph, 0.1, 4)
    fit = fit_device(graph.flops, graph.bytes_moved, seconds)
    predicted = op_ticks(graph, fit.device) * graph.tick_seconds
    errors = np.abs(predicted / seconds - 1)
    assert fit.median_error == pytest.approx(np.median(errors), abs=1e-3)


def test_what_is_not_measured_is_said_to_be_unknown():
    """Without a compute-bound op the peak is unknown: reported, and too large to matter."""
    size = np.geomspace(1e5, 1e9, 30)
    flops = size * np.random.default_rng(0).uniform(0.001, 5, 30)
    seconds = 5e-6 + size / 7e11
    fit = fit_device(flops, size, seconds)
    assert not fit.known["peak_flops"]
    assert fit.device.memory_bandwidth == pytest.approx(7e11, rel=0.01)
    predicted = fit.device.launch_overhead + np.maximum(
        flops / fit.device.peak_flops, size / fit.device.memory_bandwidth
    )
    assert predicted == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_links_come_back(noise):
    """Latency and bandwidth from transfers of 1 KB to 1 GB."""
    size = np.tile(np.geomspace(1e3, 1e9, 25), 4)
    seconds = (12e-6 + size / 2.2e10) * np.exp(np.random.default_rng(5).normal(0, noise, len(size)))
    fit = fit_link(size, seconds, name="cable")
    assert fit.link.latency == pytest.approx(12e-6, rel=0.005 + noise)
    assert fit.link.bandwidth == pytest.approx(2.2e10, rel=0.005 + noise)
    assert fit.link.name == "cable"
    assert all(fit.known.values())


def test_bad_measurements_are_refused():
    """Too few, negative, not finite, no time, different lengths."""
    for flops, size, seconds, words in (
        ([1, 2], [1, 2], [1, 2], "at least 4"),
        ([1, 2, 3, -4], [1] * 4, [1] * 4, "flops"),
        ([1] * 4, [1] * 4, [1, 2, 0, 4], "above 0"),
        ([1] * 4, [1] * 4, [1, 2, np.nan, 4], "finite"),
        ([1] * 4, [1] * 3, [1] * 4, "bytes_moved"),
        ([1] * 4, [1] * 4, [1] * 3, "seconds"),
    ):
        with pytest.raises(InputError, match=words):
            fit_device(flops, size, seconds)
    with pytest.raises(InputError, match="at least 3"):
        fit_link([1], [1])


def test_measured_times_go_into_a_graph():
    """Named ops get ticks in the column of the kind; the others stay unknown; a second kind adds a
    column.
    """
    graph = generate("alexnet")
    timed = with_measured_times(graph, {graph.op_names[2]: 3e-6}, "A100")
    assert timed.measured_kinds == ("A100",)
    assert timed.measured[:, 0].tolist() == [
        3000 if i == 2 else UNKNOWN for i in range(graph.num_ops)
    ]
    again = with_measured_times(timed, {graph.op_names[0]: 1e-6}, "cpu")
    assert again.measured_kinds == ("A100", "cpu")
    with pytest.raises(InputError, match="no op 'x'"):
        with_measured_times(graph, {"x": 1.0})


@pytest.mark.parametrize("seed", [1, 3, 6])
def test_what_nothing_depends_on_stays_within_what_was_measured(seed):
    """Where launches are all that takes time, peak and bandwidth are the smallest that leave it so:
    ratios of rooflines, which carry times to other devices, stay finite.
    """
    rng = np.random.default_rng(seed)
    flops = np.where(rng.random(16) < 0.3, rng.integers(1, 5000, 16), 0).astype(float)
    moved = rng.integers(4, 4000, 16).astype(float)
    seconds = 2e-6 * np.exp(rng.normal(0, 0.3, 16))
    device = fit_device(flops, moved, seconds).device
    least = 1e-3 * seconds  # of an op, besides its launch
    assert device.peak_flops <= (flops / least).max() * (1 + 1e-9)
    assert device.memory_bandwidth <= (moved / least).max() * (1 + 1e-9)
