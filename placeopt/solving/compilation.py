"""Kernels are compiled once, before any clock starts: in other processes, while this one stays free
to react.

numba compiles a kernel when it is first called and keeps it in a cache on disk. Kernels that are
used together form a group; solvers and objectives name the groups that they call (their attribute
`kernels`), and `ensure` compiles those that are not in the cache yet, the groups of a run side by
side. What a process loads from the cache it loads here too, before the time of a search begins.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from placeopt.model import interpreted
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.threads import num_threads, start_thread
from placeopt.solving.registry import SOLVERS


@dataclass(frozen=True)
class KernelGroup:
    """Kernels that are compiled together.

    Attributes
    ----------
    modules : where they are, below `placeopt`.
    seconds : processor seconds that compiling takes, about (results/start measures them).
    objectives : names of the objectives whose problems need them; none for any.
    """

    name: str
    modules: tuple[str, ...]
    seconds: float
    objectives: tuple[str, ...] = ()


_MAKESPAN, _PERIOD, _LATENCY = ("makespan",), ("period",), ("latency",)

GROUPS = {
    group.name: group
    for group in (
        KernelGroup("evaluator", ("makespan.simulator",), 12.0),
        KernelGroup("ranks", ("solvers.heuristics.ranks",), 4.0),
        KernelGroup("lists", ("solvers.heuristics.insertion_kernels",), 6.0, _MAKESPAN),
        KernelGroup("lists-by-time", ("solvers.heuristics.time_kernels",), 8.0, _MAKESPAN),
        KernelGroup("clusterings", ("solvers.heuristics.clustering_kernels",), 7.0, _MAKESPAN),
        KernelGroup(
            "walks", ("solvers.search.walk_kernels", "solvers.search.walk_state"), 9.0, _MAKESPAN
        ),
        KernelGroup(
            "populations", ("solvers.search.population_kernels", "solvers.search.search_space"), 7.0
        ),
        KernelGroup(
            "bounds",
            (
                "makespan.bounds.communication",
                "makespan.bounds.energy",
                "makespan.bounds.elementary",
            ),
            7.0,
            _MAKESPAN,
        ),
        KernelGroup(
            "policies",
            (
                "solvers.policy.group_and_place",
                "solvers.policy.select_and_place",
                "solvers.policy.message_passing",
            ),
            30.0,
            _MAKESPAN,
        ),
        KernelGroup("learned-lists", ("solvers.policy.list_kernels",), 6.0, _MAKESPAN),
        KernelGroup("period", ("period.evaluate",), 5.0, _PERIOD),
        KernelGroup("period-dp", ("solvers.exact.ideal_program", "model.ideals"), 6.0, _PERIOD),
        KernelGroup("period-search", ("solvers.exact.period_local_search",), 6.0, _PERIOD),
        KernelGroup(
            "period-columns",
            ("period.bounds.set_prices", "period.bounds.set_tables", "period.bounds.closing"),
            12.0,
            _PERIOD,
        ),
        KernelGroup(
            "latency",
            (
                "latency.evaluate",
                "latency.bounds.slot_program",
                "solvers.exact.latency_parts",
                "solvers.search.search_space",
            ),
            10.0,
            _LATENCY,
        ),
        KernelGroup(
            "sharding",
            (
                "solvers.sharding.tree_moves",
                "solvers.sharding.dive",
                "sharding.decode",
                "sharding.compact",
                "sharding.reduction",
                "sharding.bounds.message_passing",
                "sharding.bounds.exact_pass",
                "sharding.bounds.stars",
                "sharding.bounds.squares",
            ),
            20.0,
        ),
        KernelGroup("plan-ideals", ("solvers.planning.ideal_planner",), 9.0),
        KernelGroup("plan-stages", ("solvers.planning.step_search",), 4.0),
        KernelGroup("replicas", ("solvers.exact.split_ideals",), 4.0, _PERIOD),
        KernelGroup("streams", ("streams.episode_loop",), 9.0),
        KernelGroup(
            "pipelines",
            ("schedules.evaluate", "schedules.device_tree", "schedules.period_walk"),
            12.0,
        ),
    )
}
"""In the order in which they are compiled: first what takes longest, or what another one's first
run calls."""

_ready: set[str] = set()
_elsewhere: set[str] = set()
"""Groups that other processes compile while this one goes on."""


class _FirstRun(threading.local):
    active = (
        False  # whether what runs here is only there to be compiled: it prepares nothing itself
    )


_first_run = _FirstRun()


def kernels_of(objective: Any, solvers: Iterable[Any] = (), *, bounds: bool = False) -> list[str]:
    """Return the groups that an objective, its bounds and some solvers call, without
    repetitions.
    """
    names = [
        *getattr(objective, "kernels", ()),
        *(getattr(objective, "bound_kernels", ()) if bounds else ()),
    ]
    for solver in solvers:
        named = getattr(solver, "kernels", ())
        names += [
            name
            for name in named
            if not _group(name).objectives or objective.name in _group(name).objectives
        ]
    return list(dict.fromkeys(names))


def ensure(names: Iterable[str], *, meanwhile: Callable[[], object] | None = None) -> None:
    """Compile what is not compiled yet and load it, before the time of a search begins; lines on
    the standard error stream say that kernels are compiled and how long that took.

    Parameters
    ----------
    names : groups of kernels.
    meanwhile : called while other processes compile, with kernels interpreted; not at all where
    nothing has to be compiled.

    Raises
    ------
    InputError
        If a name is not known.
    """
    wanted = _wanted(names)
    cold = _cold(wanted)
    # Compiling that takes less is done here: another process would take that long to start
    worker_seconds = 3.0
    if sum(group.seconds for group in cold) >= worker_seconds:
        with _compiling(cold, cold, meanwhile):
            pass
    for group in wanted:
        run_first(group)


@contextlib.contextmanager
def early_start(
    names: Iterable[str], needed: Iterable[str], *, meanwhile: Callable[[], object] | None = None
) -> Iterator[None]:
    """Do in a block what `ensure` would do before it, where that takes more than 20 seconds: begin
    with the groups `needed`.

    In the block kernels of the others are interpreted until they are compiled, at low priority
    (`ready` tells). At its end the compiling ends, too.
    """
    worth_seconds = 20.0
    wanted, at_once = _wanted(names), set(needed)
    cold = _cold(wanted)
    first = [group for group in cold if group.name in at_once]
    if (
        len(first) == len(cold)
        or sum(group.seconds for group in cold) / _num_workers(cold) < worth_seconds
    ):
        ensure(names, meanwhile=meanwhile)
        yield
        return
    order = sorted(cold, key=lambda group: group.name not in at_once)
    with _compiling(order, first, meanwhile):
        for group in wanted:
            if ready([group.name]):
                run_first(group)
        left = [group.name for group in order if not ready([group.name])]
        if left:
            _say(f"not compiled yet: {', '.join(left)}; what needs them is interpreted or left out")
        yield


def ready(names: Iterable[str]) -> bool:
    """Whether no kernel of these groups is interpreted because it is still being compiled."""
    return _elsewhere.isdisjoint(names)


def _wanted(names: Iterable[str]) -> list[KernelGroup]:
    """Return the groups that have to be loaded or compiled here and now."""
    from numba import config

    wanted = find_groups(name for name in names if name not in _ready and name not in _elsewhere)
    return [] if not wanted or _first_run.active or config.DISABLE_JIT else wanted


def _cold(groups: list[KernelGroup]) -> list[KernelGroup]:
    return [group for group in groups if not cached(group)]


@contextlib.contextmanager
def _compiling(
    groups: list[KernelGroup], needed: list[KernelGroup], meanwhile: Callable[[], object] | None
) -> Iterator[None]:
    """Begin to compile groups in other processes, and go on when those that are needed are
    compiled, and loaded.
    """
    workers = _num_workers(groups)
    _say(
        "compiling kernels, once after an installation: about "
        f"{sum(g.seconds for g in needed) / workers:.0f} s on "
        f"{workers} core{'s' if workers > 1 else ''} ('placeopt warm-up' compiles all of them)"
    )
    started = time.perf_counter()
    _interpret(groups)
    try:
        with _Workers(
            groups, workers, lambda name, _: _stop_interpreting([GROUPS[name]])
        ) as compiling:
            if meanwhile is not None:
                meanwhile()
            compiling.wait(needed)
            _stop_interpreting(needed)  # what no worker could compile is compiled here
            _say(f"compiled in {time.perf_counter() - started:.1f} s (not counted in --seconds)")
            compiling.step_back()
            yield
    finally:
        _stop_interpreting(groups)


def _interpret(groups: Iterable[KernelGroup]) -> None:
    for group in groups:
        _elsewhere.add(group.name)
        interpreted.MODULES.update(f"placeopt.{module}" for module in group.modules)


def _stop_interpreting(groups: Iterable[KernelGroup]) -> None:
    for group in groups:
        interpreted.MODULES.difference_update(f"placeopt.{module}" for module in group.modules)
        _elsewhere.discard(group.name)


def find_groups(names: Iterable[str]) -> list[KernelGroup]:
    """Return the groups of some names, in the order in which they are compiled."""
    known = {_group(name).name for name in names}
    return [group for group in GROUPS.values() if group.name in known]


def compile_cold(
    groups: list[KernelGroup], done: Callable[[str, float], object] = lambda *_: None
) -> None:
    """Compile groups in other processes; `done` is told the name of each and its seconds. Ctrl-C
    ends them.
    """
    if groups:
        with _Workers(groups, _num_workers(groups), done) as compiling:
            compiling.wait()


def _num_workers(groups: list[KernelGroup]) -> int:
    return min(len(groups), num_threads())


def run_first(group: KernelGroup) -> None:
    """Load the kernels of a group in this process, compiling those that are not in the cache."""
    if group.name in _ready:
        return
    _first_run.active = True
    try:
        first_run_of(group)()
    finally:
        _first_run.active = False
    _ready.add(group.name)


def first_run_of(group: KernelGroup) -> Callable[[], None]:
    """Return what calls each kernel of a group once, on something small."""
    return importlib.import_module(SOLVERS).first_run(group.name)


def cached(group: KernelGroup) -> bool:
    """Whether every kernel of a group that Python calls is in numba's cache, compiled for this
    processor.
    """
    return all(
        _in_cache(kernel)
        for module in group.modules
        for kernel in entries(importlib.import_module(f"placeopt.{module}"))
    )


def entries(module: Any) -> list[Any]:
    """Return the kernels of a module that Python calls."""
    return [
        value
        for value in vars(module).values()
        if hasattr(value, "py_func")
        and value.py_func.__module__ == module.__name__
        and not value.targetoptions.get("no_cpython_wrapper", False)
        and value.targetoptions.get("inline", "never")
        == "never"  # the others are parts of their callers
    ]


def _in_cache(kernel: Any) -> bool:
    """Whether a kernel has a compiled version, loaded or on disk; False where numba does not
    say.
    """
    if kernel.signatures:
        return True
    try:
        index = kernel._cache._cache_file._load_index()
        return any(key[1] == kernel.targetctx.codegen().magic_tuple() for key in index)
    except Exception:  # the inside of numba: compiling once more is slow, but right
        return False


def _group(name: str) -> KernelGroup:
    if name not in GROUPS:
        raise InputError(f"kernels: there is no group '{name}'; {did_you_mean(name, list(GROUPS))}")
    return GROUPS[name]


def _say(words: str) -> None:
    print(f"placeopt: {words}", file=sys.stderr, flush=True)


class _Workers:
    """Processes that compile groups of kernels, each taking the next one when it is done; Ctrl-C
    ends them.
    """

    def __init__(
        self, groups: list[KernelGroup], count: int, done: Callable[[str, float], object]
    ) -> None:
        self._left, self._done = list(groups), done
        self._lock = threading.Lock()
        path = os.pathsep.join([part for part in sys.path if part])
        code = "from placeopt.solving.compilation import serve; serve()"
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
            for _ in range(count)
        ]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Workers:
        self._threads = [start_thread(self._feed, process) for process in self._processes]
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def wait(self, needed: Iterable[KernelGroup] | None = None) -> None:
        """Wait for some groups and load each as it comes, or for all; in steps in which a signal is
        noticed.
        """
        left = None if needed is None else list(needed)
        while any(thread.is_alive() for thread in self._threads) and left != []:
            for group in [group for group in left or () if ready([group.name])]:
                run_first(group)
                left = [other for other in left or () if other is not group]
            time.sleep(0.05)

    def step_back(self) -> None:
        """Leave the processor to this process as far as it has work for it."""
        priority = 19  # 0 is usual, 19 the least
        for process in self._processes:
            with contextlib.suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, process.pid, priority)

    def _feed(self, process: subprocess.Popen[str]) -> None:
        """Hand a process one group after the other; one that fails is left to whoever calls its
        kernels.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while (group := self._next_group()) is not None:
                started = time.perf_counter()
                process.stdin.write(group.name + "\n")
                process.stdin.flush()
                if not process.stdout.readline():
                    return
                self._done(group.name, time.perf_counter() - started)

    def _next_group(self) -> KernelGroup | None:
        """Take the next group, None where nothing is left."""
        with self._lock:
            return self._left.pop(0) if self._left else None


def serve() -> None:
    """Compile the groups named on the standard input, line by line, and answer with a line each (a
    worker's main).
    """
    waiting: list[str] = []
    arrived = threading.Semaphore(0)

    def listen(lines: IO[str]) -> None:
        for line in lines:
            waiting.append(line.strip())
            arrived.release()
        os._exit(0)  # whoever asked is gone

    start_thread(listen, sys.stdin)
    while True:
        arrived.acquire()
        group = _group(waiting.pop(0))
        with _alone(group.name):
            run_first(group)
        print(group.name, flush=True)


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Let one process compile a group, the others wait and load it: several may start at the same
    time.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    place = zlib.crc32(
        f"{Path(__file__).resolve()} {os.environ.get('NUMBA_CACHE_DIR', '')}".encode()
    )
    user = os.getuid()
    with open(
        Path(tempfile.gettempdir()) / f"placeopt-{user}-{place:08x}-{name}.lock", "w"
    ) as lock:
        with contextlib.suppress(OSError):  # without locks several compile the same
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
