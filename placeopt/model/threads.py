"""Threads: the one place that makes them. How many there are, a call beside the caller's own work,
a long call that Ctrl-C can end, several at once, and a function called on many items.

Nothing heavy is imported here: the handler of signals starts its thread before anything else.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import ThreadPoolExecutor

S = TypeVar("S")
T = TypeVar("T")


def num_threads() -> int:
    """Cores that evaluation may use: PLACEOPT_THREADS, or those available to the process."""
    wanted = os.environ.get("PLACEOPT_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else num_cores()


def num_cores() -> int:
    """Cores that are there for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep the linear algebra of numpy's wheels on the thread that calls it, in a block or a
    function: its own threads wait for each other in loops, and where other work has a core, a
    decomposition takes ten times as long.
    """
    library = _openblas()
    if library is None:
        yield
        return
    before = library.scipy_openblas_get_num_threads64_()
    library.scipy_openblas_set_num_threads64_(1)
    try:
        yield
    finally:
        library.scipy_openblas_set_num_threads64_(before)


@cache
def _openblas() -> Any:
    """Return the OpenBLAS that numpy's wheels bring along, None where numpy has another library."""
    import ctypes

    import numpy as np

    folder = Path(np.__file__).parents[1] / "numpy.libs"
    path = next(folder.glob("libscipy_openblas64_*"), None)
    return None if path is None else ctypes.CDLL(str(path))


def start_thread(
    function: Callable[..., object], *args: Any, name: str = "placeopt", daemon: bool = True
) -> threading.Thread:
    """Call `function(*args)` on a thread of its own, from now on.

    Parameters
    ----------
    daemon : the end of the process does not wait for the call.
    """
    thread = threading.Thread(target=function, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


class BackgroundCall(Generic[T]):
    """`function()` on a daemon thread, once `begin` is called."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function, self._over = function, threading.Event()
        self._answer: list[T] = []
        self._failure: list[BaseException] = []

    def begin(self, name: str) -> None:
        """Begin the call; `name` is the thread's."""
        start_thread(self._run, name=name)

    def _run(self) -> None:
        try:
            self._answer.append(self._function())
        except BaseException as error:  # told to whoever asks for the result
            self._failure.append(error)
        finally:
            self._over.set()

    def ended(self, seconds: float = 0.0) -> bool:
        """Wait for the end, at most so long; return whether the call has ended, well or not."""
        return self._over.wait(seconds)

    def result(self) -> T:
        """Return what the call returned, or raise what it raised; only after its end."""
        if self._failure:
            raise self._failure[0]
        return self._answer[0]


def call_interruptibly(function: Callable[[], T], stop: Callable[[], object] | None = None) -> T:
    """Return `function()`; Ctrl-C raises KeyboardInterrupt at once, however long the call takes.

    A compiled library returns to Python only when it is done, and only then are signals handled;
    CP-SAT even takes SIGINT for itself and returns as if its time were over. So the call runs in a
    thread while the main thread waits for signals.

    Parameters
    ----------
    function : a call that gives up the interpreter lock while it works.
    stop : ends the call early; without it an interrupted call is left behind in a daemon thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    call = BackgroundCall(function)
    try:
        call.begin("placeopt-call")
        while not call.ended(0.5):
            pass
    except BaseException:  # whatever the handler of a signal raises: KeyboardInterrupt for SIGINT
        for _ in range(20):
            if stop is not None and not call.ended():
                stop()  # again and again: the call may not have begun when it is first told to stop
                call.ended(0.05)
        raise
    return call.result()


_left_behind: list[tuple[BackgroundCall[Any], float]] = []


def leave_behind(call: BackgroundCall[Any], seconds: float) -> None:
    """Note that a call goes on for which nobody waits any longer, but the end of the process, so
    many seconds at most.
    """
    _left_behind.append((call, seconds))


def left_behind(waited: float = 0.0) -> bool:
    """Whether a call that was left behind still runs, and is waited for longer than this."""
    _left_behind[:] = [(call, seconds) for call, seconds in _left_behind if not call.ended()]
    return any(seconds > waited for _, seconds in _left_behind)


def call_together(calls: Iterable[Callable[[], object]]) -> None:
    """Make all calls at the same time, each on a thread of its own, and wait for all.

    What a call raises is not raised here; calls that may fail keep their errors.
    """
    for thread in [start_thread(call, daemon=False) for call in calls]:
        thread.join()


def map_threads(
    function: Callable[[S], T], items: Iterable[S], workers: int, name: str = "placeopt"
) -> Iterator[T]:
    """Yield `function(item)` of all items, in their order, computed by `workers` threads.

    When an item fails, or whoever takes the results stops, items that have not begun are dropped
    and the others are waited for. `function` must not call `map_threads` by the same name: the
    threads of a name are kept, and would wait for each other.
    """
    from concurrent.futures import wait

    pool = _pool(workers, name)
    futures = deque(pool.submit(function, item) for item in items)
    try:
        while futures:
            yield futures[0].result()
            futures.popleft()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


def parallel_slices(
    run: Callable[[slice], None], count: int, work: int, threads: int | None = None
) -> None:
    """Call `run` on slices that cover 0..count, in threads where there is enough `work` (steps) to
    share.

    For kernels that release the interpreter lock and write each item's result to its own place, so
    that the outcome does not depend on the number of threads.
    """
    workers = num_threads() if threads is None else max(1, threads)
    # Steps (about a millisecond) below which handing work to threads costs more than it saves
    least_work = 40_000
    if workers == 1 or count < 2 or work < least_work:
        run(slice(0, count))
        return
    parts = min(count, 4 * workers)
    edges = [count * i // parts for i in range(parts + 1)]
    deque(map_threads(run, [slice(a, b) for a, b in pairwise(edges)], workers), maxlen=0)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_pools: dict[tuple[int, int, str], ThreadPoolExecutor] = {}


def _pool(workers: int, name: str) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    key = (os.getpid(), workers, name)  # a forked child must not use its parent's threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(workers, thread_name_prefix=name)
    return _pools[key]
