"""Calibration: from measured runs to the constants of the cost model, and how well it then
predicts.

A few placements are run in which every op meets every device while the others compute too. From
them come

- op times: the mean of the middle four fifths, over all ops with the same kernel and shapes;
- the engine's overhead per op, added to every op as launch cost: the value with which the simulated
  makespans of these placements agree with the measured ones on average (of the logarithm). The
  search for it begins at the mean gap between the moment an op could have started (its device was
  free, its inputs were there) and its start; some gaps are hidden behind other waiting, so the two
  differ;
- transfer times, as the model means them: from the moment the tensor exists and the channel is free
  to its arrival, engine included; latency and bandwidth are fitted to them;
- peak, memory bandwidth and launch overhead of a roofline fitted to the op times, for ops never
  measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.instances.cost_fit import (
    DeviceFit,
    LinkFit,
    fit_device,
    fit_link,
    with_measured_times,
)
from placeopt.makespan.evaluate import evaluate
from placeopt.model.arrays import Floats, Ints, by_key, stable_order, together
from placeopt.model.cost_model import lower
from placeopt.model.errors import check_choice
from placeopt.model.objective import time_text
from placeopt.model.placement import Placement
from placeopt.model.shown import Shown
from placeopt.runtime.execution_plan import Constant, Step, make_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placeopt.model.cluster import Cluster
    from placeopt.model.graph import OpGraph
    from placeopt.model.problem import PlacementProblem
    from placeopt.runtime.measurement import Measurement, Runtime

MODES = ("none", "fitted", "measured")
"""What a problem's times come from: nominal constants, constants fitted to measurements, or
measured op times."""


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Shown):
    """What was learned about a runtime.

    Attributes
    ----------
    overhead : seconds that the engine adds to every op.
    device, link : fitted constants, with the report of the fit; `device` includes the overhead.
        None where
        there was nothing to fit (a single device has no transfers).
    op_seconds : time of the ops of each measured graph, without overhead, by graph name.
    """

    nominal: Cluster
    overhead: float
    device: DeviceFit | None
    link: LinkFit | None
    op_seconds: dict[str, Floats]

    def shown(self) -> dict[str, str]:
        """Return the overhead per op and what was fitted."""
        fitted = [name for name in ("device", "link") if getattr(self, name) is not None]
        return {
            "on": f"'{self.nominal.name}'",
            "overhead": f"{time_text(self.overhead)} per op",
            "fitted": ", ".join(fitted),
            "graphs": ", ".join(self.op_seconds),
        }

    def with_overhead(self, overhead: float) -> Calibration:
        """Return the calibration with another overhead of the engine."""
        fit = self.device
        if fit is not None:
            launch = fit.device.launch_overhead - self.overhead + overhead
            fit = replace(fit, device=replace(fit.device, launch_overhead=max(0.0, launch)))
        return replace(self, overhead=overhead, device=fit)

    def scaled(
        self, overhead: float = 1.0, latency: float = 1.0, bandwidth: float = 1.0
    ) -> Calibration:
        """Return the calibration with the engine's overhead, and the fitted link's constants, times
        these factors.
        """
        found = self.with_overhead(self.overhead * overhead)
        if self.link is None:
            return found
        link = replace(
            self.link.link,
            latency=self.link.link.latency * latency,
            bandwidth=self.link.link.bandwidth * bandwidth,
        )
        return replace(found, link=replace(self.link, link=link))

    def cluster(self, mode: str = "measured") -> Cluster:
        """Return the devices with nominal constants ("none") or with fitted ones."""
        check_choice("calibration", mode, MODES)
        devices, links = self.nominal.devices, self.nominal.links
        if mode != "none" and self.device is not None:
            fitted = self.device.device
            devices = tuple(
                replace(
                    fitted,
                    name=device.name,
                    kind=device.kind,
                    family=device.family,
                    memory=device.memory,
                )
                for device in devices
            )
        if mode != "none" and self.link is not None:
            links = tuple(replace(self.link.link, name=link.name) for link in links)
        return replace(self.nominal, devices=devices, links=links)

    def problem(self, graph: OpGraph, mode: str = "measured", **fields: Any) -> PlacementProblem:
        """Return the placement problem of `graph` on the calibrated devices.

        Parameters
        ----------
        mode : "none", "fitted" or "measured" (op times measured where the graph was part of the
            calibration).
        """
        cluster = self.cluster(mode)
        if mode == "measured" and graph.name in self.op_seconds:
            seconds = self.op_seconds[graph.name] + self.overhead
            times = dict(zip(graph.op_names, seconds.tolist(), strict=True))
            for kind in dict.fromkeys(device.kind for device in cluster.devices):
                graph = with_measured_times(graph, times, kind)
        return lower(graph, cluster, **fields)

    def summary(self) -> dict[str, Any]:
        """Return the constants for JSON."""
        found: dict[str, Any] = {"launch_overhead": self.overhead}
        if self.device is not None:
            found |= {
                "peak_flops": self.device.device.peak_flops,
                "memory_bandwidth": self.device.device.memory_bandwidth,
                "op_error": self.device.median_error,
            }
        if self.link is not None:
            found |= {
                "latency": self.link.link.latency,
                "bandwidth": self.link.link.bandwidth,
                "transfer_error": self.link.median_error,
            }
        return found


def calibrate(
    runtime: Runtime,
    graphs: Iterable[OpGraph],
    *,
    placements: int = 2,
    repeat: int = 3,
    seed: int = 0,
    cluster: Cluster | None = None,
) -> Calibration:
    """Measure op times, transfers and the engine's overhead on a few placements of each graph.

    Parameters
    ----------
    placements : random placements per graph (see `probes`).
    repeat : executions of each.
    cluster : names, kinds, memory and channels of the devices, and their constants before
        calibration; None for
        the runtime's own.
    """
    rng = np.random.default_rng(seed)
    pairs = []
    for graph in graphs:
        chosen = probes(graph, runtime.num_devices, placements, rng)
        pairs.append(
            (graph, [runtime.run(graph, placement, repeat=repeat) for placement in chosen])
        )
    return learn(pairs, cluster or runtime.cluster())


def probes(
    graph: OpGraph, num_devices: int, count: int, rng: np.random.Generator
) -> list[Placement]:
    """Return the placements that a calibration runs.

    `count` times the ops are dealt to the devices at random, and again with the devices rotated, so
    that every op meets every device while all are busy; and once all ops are on the last device,
    which then is undisturbed.
    """
    found = []
    for _ in range(count):
        device = rng.permutation(np.arange(graph.num_ops) % num_devices)
        found += [Placement((device + turn) % num_devices) for turn in range(num_devices)]
    return [*found, Placement(np.full(graph.num_ops, num_devices - 1))]


def learn(
    measured: Iterable[tuple[OpGraph, Sequence[Measurement]]], nominal: Cluster
) -> Calibration:
    """Return the calibration that runs of graphs tell, whatever placements they were."""
    samples, pairs = _Samples(), list(measured)
    op_seconds: dict[str, Floats] = {}
    for graph, runs in pairs:
        op_seconds[graph.name] = op_times(graph, runs)
        samples.add(graph, op_seconds[graph.name], runs)
    return fit_overhead(samples.calibration(nominal, op_seconds), pairs)


def fit_overhead(
    start: Calibration, measured: Sequence[tuple[OpGraph, Sequence[Measurement]]]
) -> Calibration:
    """Return the calibration with the overhead at which simulated and measured makespans agree on
    average.

    The simulated makespan hardly ever falls when every op takes longer, so bisection finds it.
    """
    if not measured:
        return start

    def excess(found: Calibration) -> float:
        logs = []
        for graph, runs in measured:
            problem = found.problem(graph)
            for run in runs:
                ticks = evaluate(problem, run.placement, "priority", check=False).makespan
                logs.append(np.log(ticks * problem.tick_seconds / run.makespan))
        return float(np.mean(logs))

    low, high = 0.0, 4 * start.overhead + 1e-6
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(start.with_overhead(middle)) < 0 else (low, middle)
    return start.with_overhead((low + high) / 2)


def op_times(graph: OpGraph, runs: Sequence[Measurement]) -> Floats:
    """Return seconds per op: the trimmed mean over all executions of all ops that do the same."""
    times = np.concatenate([run.finish - run.start for run in runs])  # (executions, num_ops)
    steps = enumerate(make_plan(graph).steps)
    groups = by_key((_signature(graph, op, step), op) for op, step in steps)
    seconds = np.empty(graph.num_ops)
    for ops in groups.values():
        seconds[ops] = trimmed_mean(times[:, ops].ravel())
    return np.maximum(seconds, 1e-9)


def _signature(graph: OpGraph, op: int, step: Step) -> Any:
    """What decides how long an op takes: kernel, type, shapes, and the work of a calibrated
    kernel.
    """
    sizes = tuple(
        x.shape if isinstance(x, Constant) else int(graph.tensor_bytes[x]) for x in step.operands
    )
    work = tuple(
        sorted(
            (key, str(value))
            for key, value in step.options.items()
            if key not in ("offset", "first")
        )
    )
    return step.kernel, graph.op_types[op], sizes, step.result, work


def trimmed_mean(values: Floats) -> float:
    """Mean without the smallest and the largest tenth: robust, and right for sums, which a median
    is not.
    """
    ordered = np.sort(values)
    cut = len(ordered) // 10
    return float(ordered[cut : len(ordered) - cut].mean())


class _Samples:
    """Overheads and transfers, as the model means them, from the timelines of runs."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.sizes: list[float] = []
        self.moves: list[float] = []
        self.work: list[tuple[float, float, float]] = []  # flops, bytes, seconds

    def add(self, graph: OpGraph, seconds: Floats, runs: Sequence[Measurement]) -> None:
        known = graph.flops + graph.bytes_moved > 0
        self.work += together(graph.flops[known], graph.bytes_moved[known], seconds[known])
        for run in runs:
            for turn in range(len(run.start)):
                rows = run.transfers[run.transfers[:, 0] == turn]
                self.gaps += overheads(graph, run, turn).tolist()
                size, move = transfer_times(graph, run.placement.device, run.finish[turn], rows)
                self.sizes += size.tolist()
                self.moves += move.tolist()

    def calibration(self, nominal: Cluster, op_seconds: dict[str, Floats]) -> Calibration:
        overhead = float(np.mean(self.gaps)) if self.gaps else 0.0
        device = None
        if len(self.work) >= 4:
            flops, moved, seconds = np.array(self.work).T
            device = fit_device(flops, moved, seconds, kind="worker", family="cpu", name="worker")
            # What the fit calls overhead is within the op; the engine's comes on top.
            whole = replace(device.device, launch_overhead=device.device.launch_overhead + overhead)
            device = replace(device, device=whole)
        link = fit_link(self.sizes, self.moves) if len(self.sizes) >= 3 else None
        return Calibration(nominal, overhead, device, link, op_seconds)


def overheads(graph: OpGraph, run: Measurement, turn: int) -> Floats:
    """Seconds between the moment an op could have started and its start, shape (num_ops,).

    It could have started when its device had finished the op before it, and its inputs were there.
    """
    start, finish, device = run.start[turn], run.finish[turn], run.placement.device
    could = np.zeros(graph.num_ops)
    for d in range(len(run.device_names)):
        ops = np.flatnonzero(device == d)
        ops = ops[stable_order(start[ops])]
        could[ops[1:]] = finish[ops[:-1]]
    arrival = {
        (int(t), int(d)): end
        for _, t, d, _, end in run.transfers[run.transfers[:, 0] == turn].tolist()
    }
    for tensor, readers in enumerate(graph.readers()):
        producer = int(graph.producer[tensor])
        for op in readers:
            there = (
                finish[producer]
                if device[op] == device[producer]
                else arrival.get((tensor, int(device[op])), 0.0)
            )
            could[op] = max(could[op], there)
    return np.maximum(0.0, start - could)


def transfer_times(
    graph: OpGraph, device: Ints, finish: Floats, rows: Floats
) -> tuple[Floats, Floats]:
    """Return (bytes, seconds) of the transfers of one execution.

    A transfer begins, for the model, when its tensor exists and the one before it between the same
    two devices has arrived.
    """
    tensor, destination = rows[:, 1:3].astype(np.int64).T
    source = device[graph.producer[tensor]]
    seconds = np.empty(len(rows))
    last: dict[tuple[int, int], float] = {}
    for i in stable_order(rows[:, 4]).tolist():
        channel = (int(source[i]), int(destination[i]))
        begin = max(finish[graph.producer[tensor[i]]], last.get(channel, 0.0))
        seconds[i] = max(1e-6, rows[i, 4] - begin)
        last[channel] = rows[i, 4]
    return graph.tensor_bytes[tensor].astype(np.float64), seconds
