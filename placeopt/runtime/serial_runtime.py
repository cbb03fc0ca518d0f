"""Serial execution in this process: one op after the other, the reference that every engine is
compared with.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from placeopt.model.arrays import Array, Floats, Ints, true_places
from placeopt.model.cluster import Cluster, Device, Link, contention_matrix
from placeopt.model.graph import OpGraph, depths
from placeopt.model.placement import Placement
from placeopt.runtime.array_ops import constant
from placeopt.runtime.execution_plan import Constant, ExecutionPlan, make_plan
from placeopt.runtime.measurement import Measurement, check_placement

NOMINAL = Device(
    "worker", "worker", "cpu", peak_flops=5e10, memory_bandwidth=1e10, launch_overhead=1e-4
)
"""One core of a present server, as a data sheet would have it."""


def worker_cluster(
    num_devices: int, *, name: str = "workers", latency: float = 1e-3, bandwidth: float = 1e9
) -> Cluster:
    """Return k equal CPU workers, one transfer at a time per ordered pair; constants are nominal,
    not measured.
    """
    devices = tuple(replace(NOMINAL, name=f"worker{d}") for d in range(num_devices))
    link = Link("loopback", latency, bandwidth)
    channel = contention_matrix(num_devices, "pair")
    return Cluster(name, devices, (link,), channel=channel)


class NamedDevices:
    """Runtimes whose devices are threads of this process.

    Attributes
    ----------
    devices : names, one per device of the placement.
    link : latency in seconds and bandwidth in bytes per second between two of them, before any
    calibration.
    """

    devices: tuple[str, ...]
    link: ClassVar[tuple[float, float]]

    @property
    def num_devices(self) -> int:
        """Number of devices, k."""
        return len(self.devices)

    def title(self) -> str:
        """Name of the devices together."""
        return f"{self.num_devices} threads"

    def cluster(self) -> Cluster:
        """Return the devices as the cost model sees them, with nominal constants."""
        return worker_cluster(
            self.num_devices, name=self.title(), latency=self.link[0], bandwidth=self.link[1]
        )


def result_tensors(graph: OpGraph) -> list[int]:
    """Tensors that no op reads: the results of the graph."""
    return true_places(np.diff(graph.consumer_ptr) == 0)


def make_constants(plan: ExecutionPlan, ops: Iterable[int], have: dict[Constant, Array]) -> None:
    """Make the constants that ops read and that are not there yet."""
    for op in ops:
        for key in plan.constants(op):
            if key not in have:
                have[key] = constant(*key)


def execute(graph: OpGraph, plan: ExecutionPlan, order: Ints) -> tuple[dict[int, Array], Floats]:
    """Run all ops in `order`; return the results by tensor, and (start, finish) of every op, shape
    (2, num_ops).
    """
    constants: dict[Constant, Array] = {}
    make_constants(plan, range(graph.num_ops), constants)
    readers = Counter(x for step in plan.steps for x in step.operands)
    values: dict[Any, Array] = dict(constants)
    results = set(result_tensors(graph))
    times = np.zeros((2, graph.num_ops))
    for op in order.tolist():
        times[0, op] = time.perf_counter()
        found = plan.run(op, values)
        times[1, op] = time.perf_counter()
        values.update(zip(plan.steps[op].outputs, found, strict=False))
        for key in plan.steps[op].operands:
            readers[key] -= 1
            if not readers[key] and key not in constants and key not in results:
                del values[key]
    return {tensor: values[tensor] for tensor in sorted(results)}, times - times[0].min()


@dataclass
class SerialRuntime:
    """Runs every op in this process, one after the other, whatever device it is placed on.

    The makespan is the time of all ops together: what a placement on one device costs without any
    engine.
    """

    num_devices: int = 1
    _planned: tuple[OpGraph, ExecutionPlan] | None = field(default=None, repr=False)

    def cluster(self) -> Cluster:
        """Return the devices that placements may name; they all are this process."""
        return worker_cluster(self.num_devices, name="serial")

    def run(
        self, graph: OpGraph, placement: Placement, *, repeat: int = 1, check: bool = False
    ) -> Measurement:
        """Execute the graph `repeat` times; there is nothing to check a serial execution
        against.
        """
        placement = check_placement(graph, placement, self.num_devices, repeat)
        if self._planned is None or self._planned[0] is not graph:
            self._planned = graph, make_plan(graph)
        plan = self._planned[1]
        assert placement.priority is not None
        # by depth, then rank: an order in which every op finds its inputs
        depth = depths(graph.num_ops, graph.edge_source, graph.consumer, graph.op_names)
        order = np.lexsort((placement.priority, depth))
        times = [execute(graph, plan, order)[1] for _ in range(repeat)]
        runs = [(spent, np.zeros((0, 4)), spent[1].max()) for spent in times]
        return Measurement.of_runs(graph.name, "serial", self.cluster(), placement, runs, check)
