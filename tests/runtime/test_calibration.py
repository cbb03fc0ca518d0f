"""Calibration finds the constants that made the measurements, and says how well it predicts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runtime_simulated import SimulatedRuntime

import placeopt as po
from placeopt.instances.sources import load_graph
from placeopt.model.cluster import Link
from placeopt.model.errors import InputError
from placeopt.runtime.calibration import calibrate, learn, probes, trimmed_mean
from placeopt.runtime.serial_runtime import SerialRuntime, worker_cluster

sys.path.insert(0, str(Path(__file__).parents[2] / "results" / "real_execution"))

from agreement import Comparison, agreement, simulate

OVERHEAD = 2e-3


@pytest.fixture(scope="module")
def truth():
    """Two devices whose constants differ from the nominal ones; launch overhead is what the engine
    costs.
    """
    nominal = worker_cluster(2)
    devices = tuple(
        replace(d, peak_flops=8e9, memory_bandwidth=3e9, launch_overhead=OVERHEAD)
        for d in nominal.devices
    )
    return replace(nominal, devices=devices, links=(Link("loopback", 4e-3, 2e8),))


def graphs():
    """Two small workloads."""
    return [
        load_graph(source)[0]
        for source in ("gen:chain-mm?size=800", "gen:llama-block?hidden=256&heads=4&seq=256")
    ]


def test_constants_are_recovered(truth) -> None:
    """From timelines that follow known constants, calibration finds overhead, link and roofline
    within a percent.
    """
    learned = calibrate(SimulatedRuntime(truth, OVERHEAD), graphs(), placements=2, repeat=1)
    found = learned.summary()
    assert found["launch_overhead"] == pytest.approx(OVERHEAD, rel=0.01)
    assert found["latency"] == pytest.approx(4e-3, rel=0.01)
    assert found["bandwidth"] == pytest.approx(2e8, rel=0.01)
    assert found["peak_flops"] == pytest.approx(8e9, rel=0.01)
    assert found["memory_bandwidth"] == pytest.approx(3e9, rel=0.02)


def test_prediction_after_calibration(truth) -> None:
    """Placements that were not part of the calibration are predicted within 2 %; with nominal costs
    they are not.
    """
    runtime = SimulatedRuntime(truth, OVERHEAD)
    learned = calibrate(runtime, graphs(), placements=2, repeat=1)
    rng = np.random.default_rng(1)
    rows = []
    for graph in graphs():
        for i in range(6):
            placement = po.Placement(
                (rng.random(graph.num_ops) < 0.1 * (i + 1)).astype(np.int64),
                np.arange(graph.num_ops),
            )
            measured = runtime.run(graph, placement).makespan
            predicted = {
                mode: simulate(learned, graph, placement, mode)
                for mode in ("none", "fitted", "measured")
            }
            rows.append(Comparison(graph.name, f"random {i}", measured, 0.0, predicted))
    right, rough, wrong = (agreement(rows, mode) for mode in ("measured", "fitted", "none"))
    assert right.p90_error < 0.02
    assert right.tau["all"] > 0.9
    assert rough.p90_error < 0.05
    assert wrong.median_error > 0.3


def test_measured_times_win_over_the_roofline(truth) -> None:
    """A graph that was measured has the measured times plus the overhead; another one has the
    fitted roofline.
    """
    known, other = graphs()
    learned = calibrate(SimulatedRuntime(truth, OVERHEAD), [known], placements=1, repeat=1)
    problem = learned.problem(known)
    seconds = learned.op_seconds[known.name] + learned.overhead
    np.testing.assert_allclose(problem.compute[:, 0] * problem.tick_seconds, seconds, rtol=1e-5)
    assert other.name not in learned.op_seconds
    np.testing.assert_array_equal(
        learned.problem(other).compute, learned.problem(other, "fitted").compute
    )


def test_probes_bring_every_op_to_every_device() -> None:
    """In the rotated random placements every op is once on each device, and the last probe is one
    device alone.
    """
    graph = graphs()[0]
    found = probes(graph, 3, 2, np.random.default_rng(0))
    assert len(found) == 7
    for first in (0, 3):
        met = np.stack([placement.device for placement in found[first : first + 3]])
        assert (np.sort(met, axis=0) == np.arange(3)[:, None]).all()
    assert (found[-1].device == 2).all()


def test_one_device_needs_no_link() -> None:
    """A serial run calibrates op times; nothing is said about links that nothing crossed."""
    graph, _ = load_graph("gen:chain-mm?size=64&shards=1")
    learned = calibrate(SerialRuntime(1), [graph], placements=1, repeat=2)
    assert learned.link is None
    assert "latency" not in learned.summary()
    assert (learned.op_seconds[graph.name] > 0).all()
    with pytest.raises(InputError, match="expected one of none, fitted, measured"):
        learned.cluster("perfect")


def test_agreement_counts_pairs_of_one_workload_only() -> None:
    """Tau "all" ignores pairs of different workloads, whose order is easy to predict."""
    rows = [
        Comparison(w, str(i), m, 0.0, {"none": s})
        for w, i, m, s in [
            ("a", 0, 1.0, 1.0),
            ("a", 1, 2.0, 3.0),
            ("a", 2, 3.0, 2.0),
            ("b", 0, 100.0, 50.0),
            ("b", 1, 200.0, 40.0),
        ]
    ]
    found = agreement(rows, "none")
    assert found.tau["a"] == pytest.approx(1 / 3)
    assert "b" not in found.tau
    assert found.tau["all"] == pytest.approx((2 - 1 - 1) / 4)
    assert found.median_error == pytest.approx(0.5)
    with pytest.raises(InputError, match="at least one comparison"):
        agreement([], "none")


def test_trimmed_mean_ignores_a_stall() -> None:
    """One execution that stalls for a second does not move the mean."""
    values = np.full(20, 1e-3)
    values[7] = 1.0
    assert trimmed_mean(values) == pytest.approx(1e-3)


def test_learn_without_runs() -> None:
    """Without any measurement the nominal constants stay."""
    learned = learn([], worker_cluster(2))
    assert learned.summary() == {"launch_overhead": 0.0}
    assert learned.cluster("fitted").devices == worker_cluster(2).devices
