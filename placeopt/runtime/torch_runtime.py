"""`TorchRuntime`: placements on the devices of one process, by default its CUDA devices.

A thread per device runs the ready op with the smallest rank on the device's stream; a thread per ordered pair
of devices copies tensors, as soon as they exist, on a stream of its own. An op or a copy is over when its
stream has been waited for, so that all times are those of one clock. With devices "cpu" the same code runs without a
GPU, which is how it is tested; ops then share the interpreter, and times mean little.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import ExecutionError, InputError, MissingExtraError
from placeopt.runtime.execution_plan import make_plan
from placeopt.runtime.measurement import Measurement, check_placement, compare_results
from placeopt.runtime.numpy_ops import constant
from placeopt.runtime.serial_runtime import execute, result_tensors, worker_cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.cluster import Cluster
    from placeopt.model.graph import OpGraph
    from placeopt.model.placement import Placement
    from placeopt.runtime.steps import Constant, ExecutionPlan


def unavailable() -> str:
    """Why CUDA devices cannot be used here; empty if they can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "torch finds no CUDA device"


@dataclass
class TorchRuntime:
    """Runs graphs on torch devices.

    Parameters
    ----------
    devices : names of torch devices, one per device of the placement; () for all CUDA devices. A name may occur
        twice: its devices then share the hardware.

    Raises
    ------
    MissingExtraError
        If torch is not installed.
    InputError
        If there is no CUDA device and no other devices were named.
    """

    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtraError("torch", "torch", "the torch runtime") from None
        if not self.devices:
            if reason := unavailable():
                raise InputError(f"torch runtime: {reason}; name devices, e.g. devices=('cpu', 'cpu')")
            self.devices = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))

    @property
    def num_devices(self) -> int:
        """Number of devices, k."""
        return len(self.devices)

    def cluster(self) -> Cluster:
        """Return the devices as the cost model sees them, with nominal constants."""
        return worker_cluster(self.num_devices, name=f"torch {','.join(self.devices)}", latency=2e-5, bandwidth=2e10)

    def run(self, graph: OpGraph, placement: Placement, *, repeat: int = 1, check: bool = False) -> Measurement:
        """Execute `graph` under `placement`, `repeat` times after one that does not count.

        Raises
        ------
        ExecutionError
            If an op fails or, with `check`, a result differs from that of the numpy kernels.
        """
        placement = check_placement(graph, placement, self.num_devices, repeat)
        plan = make_plan(graph)
        engine = _Engine(graph, plan, placement, self.devices)
        runs = [engine.run() for _ in range(repeat + 1)][1:]
        if check:
            results = {tensor: engine.values[key].cpu().numpy() for tensor, key in engine.results.items()}
            compare_results(graph, results, execute(graph, plan, graph.topological_order)[0], tolerance=1e-3)
        times = np.stack([run[0] for run in runs])
        moved = [np.column_stack([np.full(len(run[1]), turn), run[1]]) for turn, run in enumerate(runs)]
        names = tuple(device.name for device in self.cluster().devices)
        return Measurement(graph.name, "torch", names, placement, times[:, 0], times[:, 1], np.concatenate(moved),
                           np.array([run[2] for run in runs]), checked=check)  # fmt: skip


class _Engine:
    """Threads, queues and tensors of one placement; `run` executes it once."""

    def __init__(self, graph: OpGraph, plan: ExecutionPlan, placement: Placement, names: tuple[str, ...]) -> None:
        import torch

        self.graph, self.plan = graph, plan
        self.device: list[int] = placement.device.tolist()
        self.rank: list[int] = placement.priority.tolist()  # type: ignore[union-attr]
        self.torch_devices = [torch.device(name) for name in names]
        self.constants: dict[tuple[int, Constant], Any] = {}
        for op in range(graph.num_ops):
            for key in plan.constants(op):
                home = self.device[op]
                if (home, key) not in self.constants:
                    self.constants[home, key] = torch.from_numpy(constant(*key).copy()).to(self.torch_devices[home])
        self.readers = [graph.consumer[a:b].tolist() for a, b in itertools.pairwise(graph.consumer_ptr.tolist())]
        self.results = {t: (self.device[int(graph.producer[t])], t) for t in result_tensors(graph)}
        self.values: dict[tuple[int, int], Any] = {}

    def run(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Execute once; return (start, finish) of the ops, the transfers and the wall time."""
        k, n = len(self.torch_devices), self.graph.num_ops
        self.values.clear()
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.left = n
        self.waiting = np.bincount(self.graph.consumer, minlength=n).tolist()
        self.ready: list[list[tuple[int, int]]] = [[] for _ in range(k)]
        self.requests: dict[tuple[int, int], list[tuple[int, int]]] = {pair: [] for pair in itertools.permutations(range(k), 2)}
        self.uses: Counter[tuple[int, int]] = Counter(self.results.values())
        self.times, self.moved = np.zeros((2, n)), list[tuple[int, int, float, float]]()
        for op in np.flatnonzero(np.array(self.waiting) == 0).tolist():
            heapq.heappush(self.ready[self.device[op]], (self.rank[op], op))
        threads = [threading.Thread(target=self._guard, args=(self._compute, d)) for d in range(k)]
        threads += [threading.Thread(target=self._guard, args=(self._copy, *pair)) for pair in self.requests]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise ExecutionError(f"graph '{self.graph.name}': {type(self.error).__name__}: {self.error}") from self.error
        zero = self.times[0].min()
        rows = np.array(sorted(self.moved)).reshape(-1, 4)
        rows[:, 2:] -= zero
        return self.times - zero, rows, time.perf_counter() - began

    def _guard(self, loop: Any, *arguments: int) -> None:
        """Run a thread's loop; an error ends all of them."""
        try:
            loop(*arguments)
        except BaseException as error:
            with self.changed:
                self.error = self.error or error
                self.changed.notify_all()

    def _next(self, queue: list[tuple[int, int]]) -> int | None:
        """Wait for the first item of a queue; None when the execution is over."""
        with self.changed:
            self.changed.wait_for(lambda: queue or self.error or not self.left)
            return heapq.heappop(queue)[1] if queue and not self.error else None

    def _compute(self, d: int) -> None:
        from placeopt.runtime.torch_ops import run_kernel

        where = self.torch_devices[d]
        with _stream(where) as stream:
            while (op := self._next(self.ready[d])) is not None:
                step = self.plan.steps[op]
                operands = [self.values[d, x] if isinstance(x, int) else self.constants[d, x] for x in step.operands]
                start = time.perf_counter()
                outputs = run_kernel(step.kernel, step.options, operands, where)
                if stream is not None:
                    stream.synchronize()
                self.times[:, op] = start, time.perf_counter()
                del operands
                with self.changed:
                    self.left -= 1
                    for tensor in {x for x in step.operands if isinstance(x, int)}:
                        self._release(d, tensor)
                    for tensor, value in zip(step.outputs, outputs, strict=False):
                        self._produce(d, tensor, value)
                    self.changed.notify_all()

    def _produce(self, d: int, tensor: int, value: Any) -> None:
        """Hand a new tensor to its readers here, and ask for its copies to the other devices."""
        homes = sorted({self.device[reader] for reader in self.readers[tensor]} - {d})
        self.uses[d, tensor] += len(homes)
        self._deliver(d, tensor, value)
        for home in homes:
            first = min(self.rank[reader] for reader in self.readers[tensor] if self.device[reader] == home)
            heapq.heappush(self.requests[d, home], (first, tensor))

    def _deliver(self, d: int, tensor: int, value: Any) -> None:
        here = [reader for reader in self.readers[tensor] if self.device[reader] == d]
        self.uses[d, tensor] += len(here)
        if self.uses[d, tensor]:
            self.values[d, tensor] = value
        for reader in here:
            self.waiting[reader] -= 1
            if not self.waiting[reader]:
                heapq.heappush(self.ready[d], (self.rank[reader], reader))

    def _release(self, d: int, tensor: int) -> None:
        self.uses[d, tensor] -= 1
        if not self.uses[d, tensor]:
            del self.values[d, tensor]

    def _copy(self, source: int, destination: int) -> None:
        where = self.torch_devices[destination]
        with _stream(where) as stream:
            while (tensor := self._next(self.requests[source, destination])) is not None:
                start = time.perf_counter()
                value = self.values[source, tensor].to(where, copy=True)
                if stream is not None:
                    stream.synchronize()
                self.moved.append((tensor, destination, start, time.perf_counter()))
                with self.changed:
                    self._release(source, tensor)
                    self._deliver(destination, tensor, value)
                    self.changed.notify_all()


def _stream(device: Any) -> Any:
    """Return a context in which a fresh stream of a CUDA device is current; None elsewhere."""
    import torch

    return nullcontext() if device.type != "cuda" else _CudaStream(torch.cuda.Stream(device))


class _CudaStream:
    """Makes a stream current, and yields it (torch's own context yields nothing)."""

    def __init__(self, stream: Any) -> None:
        import torch

        self.stream, self.context = stream, torch.cuda.stream(stream)

    def __enter__(self) -> Any:
        self.context.__enter__()
        return self.stream

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)
