"""Threads, queues and tensors that execute a graph on the torch devices of one process.

A thread per device runs the ready op with the smallest rank on the device's stream; a thread per
ordered pair of devices copies tensors, as soon as they exist, on a stream of its own. An op or a
copy is over when its stream has been waited for, so that all times are those of one clock. What an
op does is the `Work`'s.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np

from placeopt.model.arrays import Floats, true_places
from placeopt.model.errors import ExecutionError
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.threads import call_together
from placeopt.runtime.execution_plan import first_ranks


class Work(Protocol):
    """What the ops of a graph do; tensors are indices of the graph's."""

    @property
    def results(self) -> Collection[int]:
        """Tensors that are kept when everything is done."""
        ...

    def reads(self, op: int) -> Collection[int]:
        """Return the tensors that an op reads, each once."""
        ...

    def outputs(self, op: int) -> Sequence[int]:
        """Return the tensors that an op makes, in the order of `compute`."""
        ...

    def compute(self, op: int, device: int, operands: Mapping[int, Any]) -> Sequence[Any]:
        """Run an op on tensors that are on its device."""
        ...


class Engine:
    """Threads, queues and tensors of one placement; `run` executes it once."""

    def __init__(
        self, graph: OpGraph, work: Work, placement: Placement, names: Sequence[str]
    ) -> None:
        import torch

        self.graph, self.work = graph, work
        self.device: list[int] = placement.device.tolist()
        self.rank: list[int] = placement.priority.tolist()  # type: ignore[union-attr]
        self.torch_devices = [torch.device(name) for name in names]
        self.readers = graph.readers()
        self.results = {t: (self.device[int(graph.producer[t])], t) for t in work.results}
        self.values: dict[tuple[int, int], Any] = {}

    def run(self) -> tuple[Floats, Floats, float]:
        """Execute once; return (start, finish) of the ops, the transfers and the wall time."""
        k, n = len(self.torch_devices), self.graph.num_ops
        self.values.clear()
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.left = n
        self.waiting = np.bincount(self.graph.consumer, minlength=n).tolist()
        self.ready: list[list[tuple[int, int]]] = [[] for _ in range(k)]
        self.requests: dict[tuple[int, int], list[tuple[int, int]]] = {
            pair: [] for pair in itertools.permutations(range(k), 2)
        }
        self.uses: Counter[tuple[int, int]] = Counter(self.results.values())
        self.times, self.moved = np.zeros((2, n)), list[tuple[int, int, float, float]]()
        for op in true_places(np.array(self.waiting) == 0):
            heapq.heappush(self.ready[self.device[op]], (self.rank[op], op))
        loops = [partial(self._guard, self._compute, d) for d in range(k)]
        loops += [partial(self._guard, self._copy, *pair) for pair in self.requests]
        began = time.perf_counter()
        call_together(loops)
        if self.error is not None:
            raise ExecutionError(
                f"graph '{self.graph.name}': {type(self.error).__name__}: {self.error}"
            ) from self.error
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
        where = self.torch_devices[d]
        with _stream(where) as stream:
            while (op := self._next(self.ready[d])) is not None:
                reads = self.work.reads(op)
                operands = {tensor: self.values[d, tensor] for tensor in reads}
                start = time.perf_counter()
                outputs = self.work.compute(op, d, operands)
                if stream is not None:
                    stream.synchronize()
                self.times[:, op] = start, time.perf_counter()
                del operands
                self._finish(d, op, outputs)

    def _finish(self, d: int, op: int, outputs: Sequence[Any]) -> None:
        """Give up what an op has read, and hand on what it made."""
        with self.changed:
            self.left -= 1
            for tensor in self.work.reads(op):
                self._release(d, tensor)
            for tensor, value in zip(self.work.outputs(op), outputs, strict=False):
                self._produce(d, tensor, value)
            self.changed.notify_all()

    def _produce(self, d: int, tensor: int, value: Any) -> None:
        """Hand a new tensor to its readers here, and ask for its copies to the other devices."""
        homes = first_ranks(self.readers[tensor], self.device, self.rank, d)
        self.uses[d, tensor] += len(homes)
        self._deliver(d, tensor, value)
        for home, first in homes:
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


@contextmanager
def _stream(device: Any) -> Iterator[Any]:
    """Make a fresh stream of a CUDA device current, and yield it; None elsewhere."""
    import torch

    if device.type != "cuda":
        yield None
        return
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):  # yields nothing itself
        yield stream
