"""What a run on a real system takes and gives back: the `Runtime` protocol and the
`Measurement`; and the simulated side of it: the same ranks, and the measured run as a timeline
in the problem's ticks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from placeopt.model.arrays import Array, Floats, Ints, frozen, place_in, sums_by
from placeopt.model.cluster import Cluster
from placeopt.model.errors import ExecutionError, InputError
from placeopt.model.graph import OpGraph
from placeopt.model.objective import time_text
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.shown import Shown

Run = tuple[Floats, Floats, float]
"""(start, finish) of the ops, rows (tensor, destination, start, finish) of the transfers, and
the wall time."""


@runtime_checkable
class Runtime(Protocol):
    """Executes graphs under placements on real devices and takes the time."""

    @property
    def num_devices(self) -> int:
        """Number of devices, k."""
        ...

    def cluster(self) -> Cluster:
        """Return the devices and links as the cost model sees them, before any calibration."""
        ...

    def run(
        self, graph: OpGraph, placement: Placement, *, repeat: int = 1, check: bool = False
    ) -> Measurement:
        """Execute `graph` under `placement`, `repeat` times; with `check`, compare the results with
        a serial run.
        """
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(Shown):
    """Times of one or several executions of a placement.

    Times are in seconds since the first op of the execution started, by the clocks of the workers.

    Attributes
    ----------
    placement : what was executed, with the ranks that were used.
    transfers : rows (repeat, tensor, destination, start, finish).
    wall : from handing the graph to the engine until everything was done, as the caller saw it.
    checked : whether the results were compared with those of a serial execution (and found equal).
    """

    graph_name: str
    runtime: str
    device_names: tuple[str, ...]
    placement: Placement
    start: Floats  # (repeats, num_ops)
    finish: Floats  # (repeats, num_ops)
    transfers: Floats  # (num_transfers, 5)
    wall: Floats  # (repeats,)
    checked: bool = False

    def __post_init__(self) -> None:
        for key in ("start", "finish", "transfers", "wall"):
            object.__setattr__(self, key, frozen(np.array(getattr(self, key), np.float64)))

    @classmethod
    def of_runs(
        cls,
        graph_name: str,
        runtime: str,
        cluster: Cluster,
        placement: Placement,
        runs: Sequence[Run],
        checked: bool,
    ) -> Measurement:
        """Return the measurement of several executions of a placement."""
        times = np.stack([run[0] for run in runs])
        moved = [
            np.column_stack([np.full(len(run[1]), turn), run[1]]) for turn, run in enumerate(runs)
        ]
        names = tuple(device.name for device in cluster.devices)
        return cls(
            graph_name,
            runtime,
            names,
            placement,
            times[:, 0],
            times[:, 1],
            np.concatenate(moved),
            np.array([run[2] for run in runs]),
            checked=checked,
        )

    def shown(self) -> dict[str, str]:
        """Return the median makespan of the executions, and whether results were compared."""
        return {
            "of": f"'{self.graph_name}' on {self.runtime}",
            "makespan": f"{time_text(self.makespan)} +-{self.spread:.1%}",
            "executions": str(len(self.wall)),
            "results": "compared" if self.checked else "not compared",
        }

    @property
    def makespans(self) -> Floats:
        """End of the last op of each execution, shape (repeats,)."""
        return self.finish.max(axis=1)

    @property
    def makespan(self) -> float:
        """Median makespan in seconds."""
        return float(np.median(self.makespans))

    @property
    def spread(self) -> float:
        """Half the difference of the quartiles of the makespans, over their median."""
        low, high = np.quantile(self.makespans, [0.25, 0.75])
        return float(high - low) / 2 / self.makespan if self.makespan > 0 else 0.0

    @cached_property
    def typical(self) -> int:
        """The execution whose makespan is nearest to the median."""
        return int(np.abs(self.makespans - self.makespan).argmin())

    @property
    def op_seconds(self) -> Floats:
        """Median time of every op, shape (num_ops,)."""
        return np.median(self.finish - self.start, axis=0)


def check_placement(
    graph: OpGraph, placement: Placement, num_devices: int, repeat: int
) -> Placement:
    """Return the placement with ranks (those of a topological order where it has none), or refuse
    it.
    """
    if repeat < 1:
        raise InputError(f"repeat: expected at least 1, received {repeat}")
    if len(placement.device) != graph.num_ops:
        raise InputError(
            f"placement: expected {graph.num_ops} ops of graph '{graph.name}', received "
            f"{len(placement.device)}"
        )
    outside = (placement.device < 0) | (placement.device >= num_devices)
    if outside.any():
        op = int(outside.argmax())
        raise InputError(
            f"placement of op '{graph.op_names[op]}': expected a device in 0..{num_devices - 1} of "
            f"the runtime, received {int(placement.device[op])}; use a runtime with more devices"
        )
    if placement.priority is not None:
        return placement
    return Placement(placement.device, place_in(graph.topological_order))


def compare_results(
    graph: OpGraph, results: Mapping[int, Any], expected: Mapping[int, Any], tolerance: float = 1e-4
) -> None:
    """Raise ExecutionError unless two sets of tensors are equal up to rounding.

    Kernels and their operands are the same in both, so the difference is only that of another
    library or another number of threads of the same one.
    """
    if set(results) != set(expected):
        raise ExecutionError(
            f"graph '{graph.name}': expected results {sorted(expected)}, received {sorted(results)}"
        )
    for tensor in sorted(results):
        found, right = np.asarray(results[tensor]), np.asarray(expected[tensor])
        name = graph.op_names[int(graph.producer[tensor])]
        if found.shape != right.shape or found.dtype != right.dtype:
            raise ExecutionError(
                f"result of op '{name}': expected {right.dtype}{right.shape}, "
                f"received {found.dtype}{found.shape}"
            )
        check_close(
            found, right, tolerance, f"result of op '{name}' differs from the serial execution"
        )


def check_close(found: Array, right: Array, tolerance: float, difference: str) -> None:
    """Raise ExecutionError unless two arrays are equal, floats up to a share of each and of the
    middle one that is not 0, and some roundings of the largest; `difference` begins the message.
    """
    if found.shape != right.shape:
        raise ExecutionError(f"{difference}: expected shape {right.shape}, received {found.shape}")
    share, rounding = 0.0, 0.0
    if right.dtype.kind == "f":
        share, rounding = tolerance, 8 * float(np.finfo(right.dtype).eps)
    found, right = found.astype(np.float64), right.astype(np.float64)
    size = np.abs(right[np.isfinite(right) & (right != 0)])
    room = share * np.median(size) + rounding * size.max() if size.size else share * 1e-12
    close = np.isclose(found, right, share, room, equal_nan=True)
    if not close.all():
        at = int(np.argmin(close))
        raise ExecutionError(
            f"{difference}: expected {right.flat[at]:.9g}, received {found.flat[at]:.9g}"
        )


def with_ranks(problem: PlacementProblem, placement: Placement) -> Placement:
    """Return the placement with ranks: where it has none, those of the ops' starts in the fifo
    simulation.

    Engines have priorities, not the simulator's fifo queue; with explicit ranks both do the same.
    """
    from placeopt.makespan.evaluate import evaluate

    if placement.priority is not None:
        return placement
    run = evaluate(problem, placement, "fifo", check=False)
    return Placement.from_starts(placement.device, run.start, problem.topological_order)


@dataclass(frozen=True, eq=False)
class Timeline:
    """A measured execution in ticks, for pictures: the same fields as an Evaluation."""

    problem: PlacementProblem
    placement: Placement
    start: Ints  # (num_ops,) ticks
    finish: Ints  # (num_ops,) ticks
    transfers: Ints  # rows (tensor, destination, start, finish)

    @property
    def makespan(self) -> int:
        """End of the last op in ticks."""
        return int(self.finish.max())

    @property
    def busy(self) -> Ints:
        """Ticks that each device computes, shape (num_devices,)."""
        return sums_by(self.placement.device, self.finish - self.start, self.problem.num_devices)


def timeline(problem: PlacementProblem, measurement: Measurement) -> Timeline:
    """Return the execution nearest to the median makespan."""
    turn, tick = measurement.typical, problem.tick_seconds

    def ticks(seconds: Floats) -> Ints:
        return frozen(np.rint(seconds / tick).astype(np.int64))

    rows = measurement.transfers[measurement.transfers[:, 0] == turn]
    transfers = np.column_stack([rows[:, 1:3].astype(np.int64), ticks(rows[:, 3:])])
    return Timeline(
        problem,
        measurement.placement,
        ticks(measurement.start[turn]),
        ticks(measurement.finish[turn]),
        frozen(transfers),
    )
