"""Evaluate placements: the full schedule of one, the makespans of many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from placeopt.io.placement_file import placement_of
from placeopt.makespan import simulator as kernels
from placeopt.makespan.judge import placement_violations
from placeopt.makespan.simulator import problem_arrays
from placeopt.model.arrays import (
    Array,
    Ints,
    as_array,
    device_rows,
    distinct,
    frozen,
    int_array,
    sums_by,
)
from placeopt.model.errors import InfeasiblePlacementError, InputError, check_choice
from placeopt.model.objective import INFEASIBLE, time_text
from placeopt.model.placement import QUEUES, Placement, Schedule
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Result
from placeopt.model.shown import Shown
from placeopt.model.threads import parallel_slices

__all__ = ["INFEASIBLE", "Evaluation", "best_queue", "evaluate", "evaluate_batch"]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Shown):
    """A simulated execution of a placement: times of ops and transfers, load and memory of devices.

    Attributes
    ----------
    makespan : end of the last op, ticks.
    queue : the execution: "fifo", "priority" or "planned".
    peak_memory : largest number of bytes on each device (resident and live tensors), shape
        (num_devices,).
    """

    problem: PlacementProblem
    placement: Placement
    makespan: int
    queue: str
    start: Ints  # (num_ops,) ticks
    finish: Ints  # (num_ops,) ticks
    peak_memory: Ints  # (num_devices,) bytes
    _contended: Ints  # (4, requests): tensor, destination, start, finish

    def shown(self) -> dict[str, str]:
        """Return the makespan, the load of the busiest device and the largest peak of memory."""
        tick, names = self.problem.tick_seconds, self.problem.device_names
        busiest, fullest = int(self.busy.argmax()), int(self.peak_memory.argmax())
        load = float(self.busy[busiest]) / max(1, self.makespan)
        peak = float(self.peak_memory[fullest]) / 2**30
        return {
            "of": f"'{self.problem.name}'",
            "makespan": f"{time_text(self.makespan * tick)} ({self.makespan} ticks)",
            "execution": self.queue,
            "busiest": f"{names[busiest]} {load:.0%}",
            "peak memory": f"{names[fullest]} {peak:.3g} GiB",
        }

    @cached_property
    def busy(self) -> Ints:
        """Ticks that each device computes, shape (num_devices,)."""
        return sums_by(self.placement.device, self.finish - self.start, self.problem.num_devices)

    @cached_property
    def transfers(self) -> Ints:
        """Rows (tensor, destination, start, finish) of every transfer, sorted by (tensor,
        destination).
        """
        problem, device = self.problem, self.placement.device
        source = device[problem.edge_source]
        destination = device[problem.consumer]
        free = (source != destination) & (problem.channel[source, destination] < 0)
        key = distinct(problem.edge_tensor[free] * problem.num_devices + destination[free])
        tensor, target = np.divmod(key, problem.num_devices)
        producer = problem.producer[tensor]
        begin = self.finish[producer]
        end = begin + problem.transfer[tensor, problem.link_class[device[producer], target]]
        rows = np.column_stack([tensor, target, begin, end])
        if not self._contended.size:
            return rows  # in order already
        rows = np.concatenate([rows, self._contended.T])
        return rows[np.lexsort((rows[:, 1], rows[:, 0]))]

    @property
    def schedule(self) -> Schedule:
        """Start and end of every op and transfer."""
        return Schedule(self.placement.device, self.start, self.finish, *self.transfers.T)


_NO_RANKS = frozen(np.zeros((0, 0), np.int64))


def _empty_trace(ops: int, edges: int, devices: int) -> kernels.Trace:
    """Return the memory for the execution of one placement; without ops none is executed."""
    shapes = (ops, ops, (4, edges), 1, devices)
    return kernels.Trace(*(np.zeros(shape, np.int64) for shape in shapes))


_NO_TRACE = _empty_trace(0, 0, 0)


def _table(rows: Array, kind: type[np.integer[Any]]) -> Array:
    """Return rows as kernels read them."""
    return _read_only(np.ascontiguousarray(rows, kind))


def _read_only(array: Array) -> Array:
    """Return a read-only view: one kind of array means one compiled version of every kernel."""
    view = array.view()
    view.setflags(write=False)
    return view


def _mode(queue: str | None, has_priority: bool) -> str:
    if queue is None:
        return "priority" if has_priority else "fifo"
    check_choice("queue", queue, QUEUES)
    if queue != "fifo" and not has_priority:
        raise InputError(
            f"queue '{queue}' needs a placement with priorities; use 'fifo' or add priorities"
        )
    return queue


def evaluate(
    problem: PlacementProblem,
    placement: Placement | ArrayLike | Mapping[Any, Any],
    queue: str | None = None,
    *,
    check: bool = True,
) -> Evaluation:
    """Simulate a placement and return its schedule.

    Parameters
    ----------
    placement : a Placement, a Result, the device of every op, or a mapping of ops to devices (see
        `placeopt.io.placement_file.placement_of`).
    queue : "fifo", "priority" or "planned"; by default "priority" if the placement has one, else
        "fifo".
    check : refuse placements that break colocation or capacity (compatibility is always needed).

    Raises
    ------
    InfeasiblePlacementError
        If a constraint is broken, or a planned order can never be executed.
    """
    if isinstance(placement, Result) or hasattr(placement, "keys"):
        placement = placement_of(placement, problem)
    elif not isinstance(placement, Placement):
        placement = Placement(as_array(placement, "device"))
    mode = _mode(queue, placement.priority is not None)
    arrays = problem_arrays(problem)
    problems = placement_violations(problem, placement, memory=check, colocation=check)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InfeasiblePlacementError(f"the placement is not valid: {problems[0]}{more}")
    ranks = (
        _NO_RANKS
        if placement.priority is None or mode == "fifo"
        else _table(placement.priority[None, :], np.int64)
    )
    makespan = np.empty(1, np.int64)
    trace = _empty_trace(problem.num_ops, problem.num_edges, problem.num_devices)
    kernels.batch(
        arrays,
        _table(placement.device[None, :], np.int32),
        ranks,
        kernels.MODES[mode],
        makespan,
        trace,
    )
    if makespan[0] == INFEASIBLE:
        raise InfeasiblePlacementError(
            "the placement's priorities cannot be executed in 'planned' order: some op is ranked "
            "before one it "
            "waits for; use queue='priority', or ranks that follow a topological order"
        )
    if check and problem.memory == "peak" and (trace.peak > problem.capacity).any():
        d = int((trace.peak > problem.capacity).argmax())
        raise InfeasiblePlacementError(
            f"device '{problem.device_names[d]}' peaks at {int(trace.peak[d])} bytes, over its "
            f"capacity of {int(problem.capacity[d])}; move ops with large tensors to other devices"
        )
    start, finish, peak = map(_read_only, (trace.start, trace.finish, trace.peak))
    return Evaluation(
        problem,
        placement,
        int(makespan[0]),
        mode,
        start,
        finish,
        peak,
        trace.requests[:, : trace.num_requests[0]],
    )


def evaluate_batch(
    problem: PlacementProblem,
    devices: ArrayLike,
    priorities: ArrayLike | None = None,
    queue: str | None = None,
    *,
    threads: int | None = None,
) -> Ints:
    """Makespans of many placements, on all cores.

    Parameters
    ----------
    devices : device of every op, shape (batch, num_ops).
    priorities : ranks, shape (batch, num_ops), or (num_ops,) for one order shared by all; None for
        "fifo".
    threads : number of threads, by default one per core. The result does not depend on it.

    Returns
    -------
    Ticks, shape (batch,); INFEASIBLE (2^63 - 1) for placements that break a constraint.
    """
    table = _read_only(device_rows(devices))
    if table.ndim != 2 or table.shape[1] != problem.num_ops:
        raise InputError(
            f"devices: expected shape (batch, {problem.num_ops}), received {table.shape}"
        )
    mode = kernels.MODES[_mode(queue, priorities is not None)]
    if priorities is None or mode == kernels.FIFO:
        ranks = _NO_RANKS
    else:
        ranks = np.atleast_2d(np.asarray(priorities))
        if ranks.dtype.kind != "i":
            ranks = int_array(ranks, ranks.shape, "priorities")
        ranks = _table(ranks, np.int64)
        if ranks.shape not in ((1, problem.num_ops), table.shape):
            raise InputError(
                f"priorities: expected shape {table.shape} or ({problem.num_ops},), received "
                f"{ranks.shape}"
            )
    arrays = problem_arrays(problem)
    out = np.empty(len(table), np.int64)
    shared = len(ranks) < 2

    def run(piece: slice) -> None:
        kernels.batch(
            arrays, table[piece], ranks if shared else ranks[piece], mode, out[piece], _NO_TRACE
        )

    parallel_slices(run, len(table), len(table) * (problem.num_ops + problem.num_edges), threads)
    return out


def best_queue(problem: PlacementProblem, placement: Placement) -> tuple[int, str]:
    """Return (makespan, queue) of the execution under which the placement is fastest; INFEASIBLE if
    under none.

    Ties prefer the simpler execution: fifo, then priority, then planned.
    """
    row, ranks = placement.device[None, :], placement.priority
    value_of = {
        mode: int(evaluate_batch(problem, row, ranks, mode, threads=1)[0])
        for mode in (QUEUES if ranks is not None else ("fifo",))
    }
    fastest = min(value_of, key=value_of.__getitem__)
    return value_of[fastest], fastest


def warm_up() -> None:
    """Compile the kernels (or load them from numba's cache), so that timings start warm."""
    tiny = PlacementProblem.from_edges([[1, 1], [1, 1]], [(0, 1, 1)], name="warm-up")
    evaluate_batch(tiny, np.zeros((1, tiny.num_ops), np.int32), threads=1)
