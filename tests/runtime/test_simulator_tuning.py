"""Stage III by tuning the simulator: on a system that is not what the simulator says, the best
simulated placement is not the best.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runtime_simulated import SimulatedRuntime

import placeopt as po
from placeopt.instances.sources import load_graph
from placeopt.makespan.evaluate import evaluate
from placeopt.model.cost_model import lower
from placeopt.model.errors import InputError
from placeopt.runtime.calibration import Calibration, calibrate
from placeopt.runtime.serial_runtime import worker_cluster

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "results" / "real_execution"))
from simulator_tuning import Candidate, SimulatorTuning, race


@pytest.fixture(scope="module")
def graph():
    """A block whose parts want to be on both devices if transfers are cheap."""
    return load_graph("gen:llama-block?hidden=512&heads=4&seq=256&shards=2")[0]


def system(noise: float) -> SimulatedRuntime:
    """A system whose transfers take thirty times what the calibration below believes."""
    cluster = worker_cluster(2)
    links = tuple(
        replace(link, latency=30 * link.latency, bandwidth=link.bandwidth / 30)
        for link in cluster.links
    )
    return SimulatedRuntime(replace(cluster, links=links), noise=noise, seed=4)


def believed(graph) -> Calibration:
    """What is learned where transfers are as cheap as the nominal cluster says."""
    return calibrate(SimulatedRuntime(worker_cluster(2)), [graph])


def true_seconds(graph, placement) -> float:
    """Makespan without noise."""
    problem = lower(graph, system(0.0).truth)
    return evaluate(problem, placement, "priority").makespan * problem.tick_seconds


def test_the_constants_are_learned(graph) -> None:
    """From three dozen noisy measurements comes a placement that is truly faster than the best of
    the biased simulator.
    """
    calibration = believed(graph)
    best = po.solve(
        calibration.problem(graph), solver="annealing", evaluations=8000, seed=1
    ).solution
    assert best is not None
    runtime = system(0.05)
    tuning = SimulatorTuning(evaluations=2000, generations=3, samples=8, elite=3, final=4)
    end = tuning.run(runtime, graph, calibration, seed=2)
    assert true_seconds(graph, end.placement) < 0.9 * true_seconds(graph, best)
    assert end.factors[1] > 1.5 or end.factors[2] < 1 / 1.5
    assert end.executions == runtime.runs == 3 * (2 * 8 + 2 * 4 + 4 * 2) + 4 * len(end.finalists)
    assert len(end.fastest) == 3
    medians = [candidate.median for candidate in end.finalists]
    assert medians == sorted(medians)


def test_given_placements_run_in_the_final(graph) -> None:
    """A placement that the caller brings is measured beside the finalists, and wins where it is the
    fastest.
    """
    runtime, calibration = system(0.0), believed(graph)
    truth = lower(graph, runtime.truth)
    known = po.solve(truth, seconds=2, seed=0).solution
    tuning = SimulatorTuning(evaluations=200, generations=1, samples=2, elite=1, final=2)
    end = tuning.run(runtime, graph, calibration, seed=0, given=[known])
    assert len(end.finalists) <= 3
    assert true_seconds(graph, end.placement) <= true_seconds(graph, known) * (1 + 1e-9)
    repeated = tuning.run(system(0.0), graph, calibration, seed=0, given=[known])
    assert repeated.placement == end.placement


def test_a_race_leaves_the_slower_half_out(graph) -> None:
    """All run in the first heat, the faster half in the second."""
    problem = lower(graph, worker_cluster(2))
    rng = np.random.default_rng(0)
    candidates = [Candidate(po.Placement(rng.integers(0, 2, problem.num_ops))) for _ in range(5)]
    assert race(system(0.0), graph, candidates, rng, (2, 3)) == 10 + 9
    counts = [len(candidate.seconds) for candidate in candidates]
    assert sorted(counts) == [2, 2, 5, 5, 5]
    assert max(c.median for c in candidates if len(c.seconds) == 5) <= min(
        c.median for c in candidates if len(c.seconds) == 2
    )


def test_factors_scale_the_constants(graph) -> None:
    """Overhead, latency and bandwidth are those of the calibration, times the factors."""
    calibration = believed(graph)
    scaled = calibration.scaled(2.0, 3.0, 0.5)
    assert scaled.overhead == 2 * calibration.overhead
    assert scaled.link.link.latency == 3 * calibration.link.link.latency
    assert scaled.link.link.bandwidth == 0.5 * calibration.link.link.bandwidth


@pytest.mark.parametrize("given", [{"samples": 0}, {"elite": 9, "samples": 8}, {"final": 0}])
def test_bad_settings_are_refused(given: dict[str, int]) -> None:
    """Numbers that make no sense are one line."""
    with pytest.raises(InputError, match="tuning the simulator"):
        SimulatorTuning(**given)
