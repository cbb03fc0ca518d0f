"""`DaskRuntime`: placements on dask.distributed, an asynchronous work-conserving dataflow engine.

One worker with one thread is one device. Every op is a task pinned to its device's worker; the rank
of the placement is the priority of the task. A tensor that another device reads is sent as soon as
it exists: a task that does nothing waits for it there, for Dask on its own fetches inputs only when
a task has all of them. Between two workers Dask moves one message at a time, and a message is one
tensor here: the channels of the model "pair".
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placeopt.model.arrays import Array, Floats, Ints, true_places
from placeopt.model.cluster import Cluster
from placeopt.model.errors import ExecutionError, InputError, needed_package
from placeopt.model.files import Data, one_line
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.runtime import dask_worker
from placeopt.runtime.execution_plan import ExecutionPlan, first_ranks, make_plan
from placeopt.runtime.measurement import Measurement, check_placement, compare_results
from placeopt.runtime.serial_runtime import execute, result_tensors, worker_cluster

SETTINGS = {
    "distributed.scheduler.work-stealing": False,  # the placement decides
    # a lost worker is seen, not retried behind our back
    "distributed.scheduler.allowed-failures": 0,
    # it would drop tensors that arrived early
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.worker-saturation": float("inf"),
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.comm.compression": False,
    "distributed.nanny.pre-spawn-environ": {
        "OMP_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
        "MKL_NUM_THREADS": 1,
        "NUMBA_NUM_THREADS": 1,
        # glibc: reuse the memory of large arrays instead of mapping (and touching) fresh pages for
        # each
        "MALLOC_ARENA_MAX": 1,
        "MALLOC_MMAP_THRESHOLD_": 2**25,
        "MALLOC_TRIM_THRESHOLD_": 2**36,
    },
}
"""Dask's settings for a cluster that only does what the placement says."""

ARRIVAL_PRIORITY = 2**40  # tasks that do nothing never wait behind an op
_runs = itertools.count()


@dataclass
class DaskRuntime:
    """Runs graphs on a Dask cluster; a context manager, so that the workers end with it.

    Parameters
    ----------
    num_devices : workers used, one device each.
    address : of a running scheduler, whose workers must have one thread each; None starts workers
        here.
    retries : executions repeated after a worker was lost, before it is an error.
    timeout : seconds that one execution may take.

    Raises
    ------
    MissingExtraError
        If dask.distributed is not installed.
    InputError
        If a scheduler at `address` has too few workers, or workers with several threads.
    """

    num_devices: int = 2
    address: str | None = None
    retries: int = 1
    timeout: float = 300.0
    _client: Any = field(default=None, repr=False)
    _local: Any = field(default=None, repr=False)
    _graph: OpGraph = field(init=False, repr=False)
    _plan: ExecutionPlan = field(init=False, repr=False)
    _token: str = field(default="", repr=False)
    _installed: frozenset[str] = field(default=frozenset(), repr=False)
    _serial: dict[int, Array] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise InputError(
                f"Dask runtime: expected at least one device, received {self.num_devices}"
            )
        if self.retries < 0 or not self.timeout > 0:
            raise InputError(
                f"Dask runtime: expected retries >= 0 and timeout > 0, received {self.retries}, "
                f"{self.timeout}"
            )

    # --- the cluster
    # ----------------------------------------------------------------------------------

    def __enter__(self) -> DaskRuntime:
        self._connect()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, and stop the workers that were started here."""
        client, local = self._client, self._local
        self._client = self._local = None
        self._installed = frozenset()
        if client is not None:
            client.close()
        if local is not None:
            local.close()

    def cluster(self) -> Cluster:
        """Return the workers as the cost model sees them; nominal constants (calibration.py fits
        them).
        """
        return worker_cluster(self.num_devices, name=f"{self.num_devices} Dask workers")

    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers, by device."""
        found = self._connect().run(os.getpid)
        return tuple(found[address] for address in self._workers())

    def _connect(self) -> Any:
        if self._client is not None:
            return self._client
        connect = needed_package("distributed", "dask", "the Dask runtime").Client
        if self.address is None:
            import dask

            with dask.config.set(SETTINGS):
                self._local = local_cluster(
                    n_workers=self.num_devices,
                    processes=True,
                    preload=[dask_worker.__name__],
                    dashboard_address=":0",
                    memory_limit=0,
                    silence_logs=50,
                )
            self._client = connect(self._local, set_as_default=False)
            return self._client
        try:
            self._client = connect(
                self.address, set_as_default=False, timeout=min(10.0, self.timeout)
            )
        except OSError as error:
            raise InputError(
                f"Dask scheduler '{self.address}': cannot be reached ({type(error).__name__}); "
                "start one with: dask scheduler"
            ) from None
        self._client.amm.stop()
        return self._client

    def _workers(self) -> tuple[str, ...]:
        """Return the addresses of the workers by device, as the scheduler knows them now."""
        found = self._connect().run_on_scheduler(_worker_table)
        if self.address is not None and any(count != 1 for _, _, count in found):
            raise InputError(
                "Dask runtime: a device is a worker with one thread; start them with: dask worker "
                "--nthreads 1"
            )
        found = sorted(found, key=lambda row: (len(row[1]), row[1]))
        return tuple(address for address, _, _ in found[: self.num_devices])

    def _wait_for_workers(self, seconds: float) -> tuple[str, ...]:
        end = time.monotonic() + seconds
        while True:
            addresses = self._workers()
            if len(addresses) == self.num_devices:
                return addresses
            if time.monotonic() > end:
                where = f"at '{self.address}'" if self.address else "started here"
                raise ExecutionError(
                    f"Dask runtime: expected {self.num_devices} workers {where}, found "
                    f"{len(addresses)}; start more, or use fewer devices"
                )
            time.sleep(0.1)

    # --- runs
    # -----------------------------------------------------------------------------------------

    def run(
        self, graph: OpGraph, placement: Placement, *, repeat: int = 1, check: bool = False
    ) -> Measurement:
        """Execute `graph` under `placement`, `repeat` times.

        Parameters
        ----------
        check : compare the results of the first execution with those of a serial one in this
            process.

        Raises
        ------
        ExecutionError
            If a worker is lost more often than `retries`, an op fails, the time is over, or a
            result is wrong.
        """
        placement = check_placement(graph, placement, self.num_devices, repeat)
        self._load(graph)
        # the first execution of a graph pays for first touches; it is not counted
        if not self._installed:
            self._with_retries(placement, check=False)
        runs = [self._with_retries(placement, turn == 0 and check) for turn in range(repeat)]
        return Measurement.of_runs(graph.name, "dask", self.cluster(), placement, runs, check)

    def _load(self, graph: OpGraph) -> None:
        if getattr(self, "_graph", None) is not graph:
            self._graph, self._plan, self._serial = graph, make_plan(graph), None
            self._token = f"plan-{uuid.uuid4().hex[:12]}"
            self._installed = frozenset()

    def _with_retries(self, placement: Placement, check: bool) -> tuple[Floats, Floats, float]:
        restart_seconds = 60.0
        for attempt in range(self.retries + 1):
            addresses = self._wait_for_workers(restart_seconds)
            try:
                return self._execute(placement, addresses, check)
            except _WorkerLostError as error:
                self._installed = frozenset()
                if attempt == self.retries:
                    raise ExecutionError(
                        f"graph '{self._graph.name}': {error}; the execution was given up after "
                        f"{attempt + 1} attempt(s)"
                    ) from None
        raise AssertionError  # not reached: the loop returns or raises

    def _execute(
        self, placement: Placement, addresses: tuple[str, ...], check: bool
    ) -> tuple[Floats, Floats, float]:
        """Run once; return (start, finish) of the ops, the transfers, and the wall time."""
        client, graph = self._connect(), self._graph
        self._prepare(placement, addresses)
        run = f"r{os.getpid()}-{next(_runs)}-"
        tasks = _Tasks(graph, self._plan, placement, addresses, self._token, run)
        began = time.perf_counter()
        futures = tasks.submit(client)
        try:
            self._wait(futures, addresses)
            wall = time.perf_counter() - began
            records = self._call(dask_worker.collect, addresses, run)
            if check:
                results = client.gather(
                    {t: futures[tasks.key_of[t]] for t in result_tensors(graph)}
                )
                compare_results(graph, results, self._expected())
        finally:
            for future in futures.values():
                future.release()
        return (*self._times(tasks, records, addresses), wall)

    def _prepare(self, placement: Placement, addresses: tuple[str, ...]) -> None:
        """Put the plan and the constants into the workers."""
        if not set(addresses) <= self._installed:
            self._call(dask_worker.install, addresses, self._token, self._plan)
            self._installed = frozenset(addresses)
        ops = {address: true_places(placement.device == d) for d, address in enumerate(addresses)}
        self._call(dask_worker.prepare, addresses, self._token, ops)

    def _call(self, function: Any, addresses: tuple[str, ...], *arguments: Any) -> Data:
        """Call a function in every worker; a worker that cannot answer is lost."""
        try:
            return dict(self._connect().run(function, *arguments, workers=list(addresses)))
        except (OSError, KeyError, ValueError) as error:
            raise _WorkerLostError(
                self._lost(addresses) or f"a worker stopped answering ({error})"
            ) from None

    def _wait(self, futures: Data, addresses: tuple[str, ...]) -> None:
        """Wait for all tasks, looking every half second whether the workers still live."""
        from distributed import wait

        end = time.monotonic() + self.timeout
        todo = list(futures.values())
        poll_seconds = 0.5
        while todo:
            with contextlib.suppress(TimeoutError), self._client.as_current():
                wait(todo, timeout=poll_seconds)
            failed = next(
                (future for future in todo if future.status in ("error", "cancelled", "lost")), None
            )
            if failed is not None:
                self._explain(failed, addresses)
            todo = [future for future in todo if future.status != "finished"]
            if todo and (lost := self._lost(addresses)):
                raise _WorkerLostError(lost)
            if todo and time.monotonic() > end:
                raise ExecutionError(
                    f"graph '{self._graph.name}': {len(todo)} of {len(futures)} results are "
                    f"missing after {self.timeout:g} s; give the runtime a longer timeout"
                )

    def _explain(self, future: Any, addresses: tuple[str, ...]) -> None:
        """Raise what made a task fail."""
        error = future.exception() if future.status == "error" else None
        lost = self._lost(addresses)
        if (
            lost
            or error is None
            or type(error).__name__ in ("KilledWorker", "NoValidWorkerError", "CommClosedError")
        ):
            raise _WorkerLostError(lost or f"a worker died while it ran '{future.key}'")
        if "lost its plan" in str(error):
            raise _WorkerLostError("a worker restarted")
        raise ExecutionError(
            f"graph '{self._graph.name}': task '{future.key}' failed: {type(error).__name__}: "
            f"{error}"
        )

    def _lost(self, addresses: tuple[str, ...]) -> str:
        """Say which of the workers is gone; empty if none."""
        alive = {row[0] for row in self._connect().run_on_scheduler(_worker_table)}
        gone = [d for d, address in enumerate(addresses) if address not in alive]
        return f"worker {gone[0]} at {addresses[gone[0]]} died during the execution" if gone else ""

    def _expected(self) -> dict[int, Array]:
        if self._serial is None:
            self._serial, _ = execute(self._graph, self._plan, self._graph.topological_order)
        return self._serial

    def _times(
        self, tasks: _Tasks, records: Data, addresses: tuple[str, ...]
    ) -> tuple[Floats, Floats]:
        nanoseconds: Ints = np.full((2, self._graph.num_ops), -1, np.int64)
        moved = []
        for d, address in enumerate(addresses):
            for op, start, finish in records[address][0]:
                nanoseconds[:, op] = start, finish
            for key, start, finish in records[address][1]:
                if key in tasks.tensor_of:
                    moved.append((tasks.tensor_of[key], d, start, finish))
        if (nanoseconds < 0).any():
            op = int((nanoseconds[0] < 0).argmax())
            raise _WorkerLostError(
                f"op '{self._graph.op_names[op]}' has no record; its worker restarted"
            )
        zero = int(nanoseconds[0].min())
        rows = np.array(sorted(moved), np.int64).reshape(-1, 4)
        transfers = np.column_stack([rows[:, :2], 1e-9 * (rows[:, 2:] - zero)]).astype(np.float64)
        return (1e-9 * (nanoseconds - zero)).astype(np.float64), transfers


def local_cluster(**settings: Any) -> Any:
    """Return a cluster of Dask workers of this machine, with a thread each.

    Raises
    ------
    InputError
        If they cannot be started, as without a folder for temporary files.
    """
    from distributed import LocalCluster

    try:
        return LocalCluster(threads_per_worker=1, **settings)
    except (OSError, RuntimeError) as error:
        raise InputError(f"Dask workers cannot be started: {one_line(str(error), 200)}") from error


class _WorkerLostError(Exception):
    """A worker died; the execution may be repeated."""


def _worker_table(dask_scheduler: Any = None) -> list[tuple[str, str, int]]:
    """Address, name and number of threads of every worker, on the scheduler."""
    return [
        (address, str(state.name), state.nthreads)
        for address, state in dask_scheduler.workers.items()
    ]


class _Tasks:
    """The tasks of one execution: ops, outputs of ops that have several, and arrivals of
    tensors.
    """

    def __init__(
        self,
        graph: OpGraph,
        plan: ExecutionPlan,
        placement: Placement,
        addresses: tuple[str, ...],
        token: str,
        run: str,
    ) -> None:
        self.tasks: dict[str, tuple[Any, ...]] = {}
        self.address: dict[str, str] = {}
        self.priority: dict[str, int] = {}
        self.key_of: dict[int, str] = {}  # tensor to key
        self.wanted: list[str] = []
        device = placement.device.tolist()
        rank = placement.priority.tolist()  # type: ignore[union-attr]

        def add(key: str, home: int, priority: int, *task: Any) -> None:
            self.tasks[key], self.address[key], self.priority[key] = task, addresses[home], priority

        readers_of_tensor = graph.readers()
        for op in graph.topological_order.tolist():
            step, key = plan.steps[op], f"{run}op{op}"
            inputs = [self.key_of[x] for x in step.operands if isinstance(x, int)]
            add(key, device[op], -rank[op], dask_worker.execute, token, run, op, *inputs)
            for position, tensor in enumerate(step.outputs):
                made = key
                if len(step.outputs) > 1:
                    made = f"{key}out{position}"
                    add(made, device[op], ARRIVAL_PRIORITY, dask_worker.pick, key, position)
                self.key_of[tensor] = made
                readers = readers_of_tensor[tensor]
                for home, first in first_ranks(readers, device, rank, device[op]):
                    arrival = f"{made}to{home}"
                    add(arrival, home, ARRIVAL_PRIORITY - first, dask_worker.arrive, made)
                    self.wanted.append(arrival)
                if not readers:
                    self.wanted.append(made)
            if not step.outputs:
                self.wanted.append(key)
        self.tensor_of = {key: tensor for tensor, key in self.key_of.items()}

    def submit(self, client: Any) -> Data:
        """Hand all tasks to the scheduler at once; return the futures of those nobody else waits
        for.
        """
        from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

        annotations = {"workers": self.address.__getitem__, "priority": self.priority.__getitem__}
        layer = MaterializedLayer(self.tasks, annotations=annotations)
        graph = HighLevelGraph({"placement": layer}, {"placement": set()})
        futures = client.get(graph, self.wanted, sync=False)
        return dict(zip(self.wanted, futures, strict=True))
