"""Threads that share work among the cores: how many, and how slices of a batch are handed to
them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEAST_WORK = 40_000
"""Steps (about a millisecond) below which handing work to threads costs more than it saves."""


def num_threads() -> int:
    """Cores that evaluation may use: PLACEOPT_THREADS, or those available to the process."""
    wanted = os.environ.get("PLACEOPT_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parallel_slices(
    run: Callable[[slice], None], count: int, work: int, threads: int | None = None
) -> None:
    """Call `run` on slices that cover 0..count, in threads where there is enough `work` (steps) to
    share.

    For kernels that release the interpreter lock and write each item's result to its own place, so
    that the outcome does not depend on the number of threads.
    """
    workers = num_threads() if threads is None else max(1, threads)
    if workers == 1 or count < 2 or work < LEAST_WORK:
        run(slice(0, count))
        return
    edges = np.linspace(0, count, min(count, 4 * workers) + 1).astype(int).tolist()
    list(_pool(workers).map(run, [slice(a, b) for a, b in pairwise(edges)]))


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


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _pool(workers: int) -> ThreadPoolExecutor:
    key = (os.getpid(), workers)  # a forked child must not use its parent's threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(workers, thread_name_prefix="placeopt")
    return _pools[key]
