"""A runtime for tests that executes nothing: the evaluator's schedule of known costs, with
noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.evaluate import evaluate
from placeopt.model.cost_model import lower
from placeopt.runtime.measurement import Measurement, check_placement

if TYPE_CHECKING:
    from placeopt.model.cluster import Cluster
    from placeopt.model.graph import OpGraph
    from placeopt.model.placement import Placement


@dataclass
class SimulatedRuntime:
    """Ops start `overhead` late within their slot; `noise` is the relative spread of a whole
    execution.
    """

    truth: Cluster
    overhead: float = 0.0
    noise: float = 0.0
    seed: int = 0
    runs: int = 0
    _rng: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return self.truth.num_devices

    def cluster(self) -> Cluster:
        """Return nominal devices, not the true ones."""
        from placeopt.runtime.serial_runtime import worker_cluster

        return worker_cluster(self.num_devices)

    def run(
        self, graph: OpGraph, placement: Placement, *, repeat: int = 1, check: bool = False
    ) -> Measurement:
        """Return the simulated schedule as if it had been measured."""
        placement = check_placement(graph, placement, self.num_devices, repeat)
        problem = lower(graph, self.truth)
        found = evaluate(problem, placement, "priority", check=False)
        tick = problem.tick_seconds
        starts, finishes, rows = [], [], []
        for turn in range(repeat):
            factor = float(np.exp(self.noise * self._rng.standard_normal()))
            starts.append((found.start * tick + self.overhead) * factor)
            finishes.append(found.finish * tick * factor)
            rows.append(
                np.column_stack(
                    [
                        np.full(len(found.transfers), turn),
                        found.transfers[:, :2],
                        found.transfers[:, 2:] * tick * factor,
                    ]
                )
            )
            self.runs += 1
        finish = np.stack(finishes)
        names = tuple(device.name for device in self.truth.devices)
        return Measurement(
            graph.name,
            "simulated",
            names,
            placement,
            np.stack(starts),
            finish,
            np.concatenate(rows),
            finish.max(axis=1),
        )
