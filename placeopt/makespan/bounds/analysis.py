"""Analysis: the bounds of one problem, computed once and shared by solvers and by `bound`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import takewhile
from operator import itemgetter
from weakref import WeakKeyDictionary

from placeopt.makespan.bounds.communication import HeadsTails, communication_bound, heads_tails
from placeopt.makespan.bounds.congestion import congestion_steps
from placeopt.makespan.bounds.destructive import (
    Clusters,
    destructive_bound,
    is_refutable,
    is_small,
    propagate,
)
from placeopt.makespan.bounds.elementary import LoadBound, critical_path_bound, load_bound
from placeopt.makespan.bounds.energy import energy_bound, head_tail_bound
from placeopt.makespan.bounds.front import front_bound
from placeopt.makespan.bounds.relaxation import Relaxation, relax
from placeopt.makespan.bounds.segment_graph import Delay, Evidence
from placeopt.makespan.bounds.segments import fork_join_bound, half_way, segments_bound
from placeopt.model.arrays import Ints
from placeopt.model.problem import PlacementProblem

PROGRAMS = {"congestion": 1.0, "segments": 1.0, "front": 3.0}
"""Bounds by flows and by CP-SAT, which take what they are given, and the seconds from which on they
are worth it: fronts are not for the quick bounds at the start of a search (at most two seconds),
which would wait for them; beside the search they have turns of their own."""

COMBINATORIAL = (
    "critical-path",
    "load",
    "communication",
    "fork-join",
    "head-tail",
    "energy",
    "destructive",
)
"""Bounds that take milliseconds to a few seconds, cheapest first."""


@dataclass(frozen=True)
class Pace:
    """How much work takes how long, and how much is done where no time is given.

    Attributes
    ----------
    cheap_work : ops times devices, plus edges, that are read in about a tenth of a second; beyond
    it, without time, classes are merged.
    work_a_second, steps_a_second : steps of a combinatorial bound in a second, with care, and
    those of its innermost loops, about.
    idle_seconds : time that bounds may take where none is given, by the estimate of their work:
    what runs must not depend on the load.
    idle_end : seconds after which programs end all the same where no time is given; other bounds
    end after the steps of so many.
    """

    cheap_work: int = 4_000_000
    work_a_second: int = 40_000_000
    steps_a_second: int = 150_000_000
    idle_seconds: float = 0.1
    idle_end: float = 5.0


_loads: WeakKeyDictionary[PlacementProblem, LoadBound] = WeakKeyDictionary()
"""Load bounds whose linear program was solved."""


@dataclass(eq=False)
class Analysis:
    """Runs bounds on the makespan by name and remembers what they share.

    Parameters
    ----------
    counted : whether no clock may decide what runs, or how far, as where no time is given:
    `seconds` limit estimates of the work, nothing else.
    written : whether only those flows count that a proof can write down.

    Attributes
    ----------
    bounds : ticks per method run so far. delays : between forks and joins, as far as they were
    looked for.
    """

    pace = Pace()

    problem: PlacementProblem
    seconds: float = 10.0
    upper: int | None = None
    _: KW_ONLY
    counted: bool = False
    written: bool = False

    def __post_init__(self) -> None:
        self.started = time.perf_counter()
        self.idle = self.seconds <= 0
        limit = math.inf if self.counted else self.seconds
        self.end = self.started + (self.pace.idle_end if self.idle else limit)
        self.timed = not (self.idle or self.counted)
        work = self.pace.steps_a_second * max(self.seconds, self.pace.idle_end)
        self.work = math.inf if self.timed else work
        self.bounds: dict[str, int] = {}
        self.delays: list[Delay] = []
        self._solved: dict[tuple[int, ...], int] = {}  # segments

    @cached_property
    def relaxation(self) -> Relaxation:
        """The cheapest version of the problem; without time for a large one, that of its fastest
        devices.
        """
        size = self.problem.num_ops * self.problem.num_devices + self.problem.num_edges
        return relax(self.problem, merged=size > self.pace.cheap_work * (1 + 20 * self.seconds))

    @cached_property
    def heads(self) -> HeadsTails:
        """Communication-aware heads and tails per device class."""
        n, classes = self.relaxation.compute.shape
        pairs = self.work / (classes * (34 + classes))
        cut = n if n * n <= 2 * pairs else max(64, int(pairs / 8) // n)
        return heads_tails(
            self.relaxation,
            None if self.timed else cut,
            self._until(0.4),
            self.load.weights,
            work=0.2 * self.work,
        )

    @cached_property
    def load(self) -> LoadBound:
        """The load bound and its class weights; its linear program is solved once for a problem."""
        known = _loads.get(self.problem)
        if known is None or len(known.weights) != len(self.relaxation.class_size):
            known = load_bound(self.relaxation, self._until(1.0))
            if known.shares is not None:
                _loads[self.problem] = known
        return known

    @property
    def seconds_left(self) -> float:
        """Time left of the budget."""
        return max(0.0, self.end - time.perf_counter())

    def within(self, horizon: int, seconds: float) -> tuple[HeadsTails, Clusters] | None:
        """Return heads, tails and shared or separated ops of all schedules up to `horizon`; None if
        there is none.
        """
        if not is_refutable(self.relaxation):
            return self.heads, Clusters(self.relaxation, horizon)
        end = math.inf if self.counted else time.perf_counter() + seconds
        return propagate(self.relaxation, self.heads, self.load.weights, horizon, end)

    def device_heads_tails(self, heads: HeadsTails) -> tuple[Ints, Ints]:
        """Return (head, tail) per op and device, int64[num_ops, num_devices]; -1 where the op
        cannot run.
        """
        column = self.relaxation.class_of
        return heads.head[:, column], heads.tail[:, column]

    def evidence(self, known: int) -> Evidence:
        """What is known where `known` is a bound."""
        return Evidence(
            self.relaxation, self.heads, self.load.weights, known, self.upper, self.delays
        )

    def best(self) -> tuple[int, str]:
        """Return (value, method) of the best bound so far, the earliest method among equals."""
        method, value = max({"none": 0, **self.bounds}.items(), key=itemgetter(1))
        return value, method

    def closed(self) -> bool:
        """Whether the bound meets the known solution, or refutes every one."""
        value = self.best()[0]
        return (self.upper is not None and value >= self.upper) or value >= self.most

    @cached_property
    def most(self) -> int:
        """One more than the length of the schedule that runs everything in turn: as a bound, it
        proves that there is none.
        """
        return self.relaxation.serial + 1

    def run_all(self, chosen: Sequence[str], *, optional: bool) -> None:
        """Run the bounds `chosen`, cheapest first, until one meets the known solution."""
        for name in (*COMBINATORIAL, *PROGRAMS):
            if name in chosen and not self.closed():
                self.run(name, optional=optional)

    def run(self, name: str, *, optional: bool = False) -> int:
        """Run one bound and return its value; an optional one is skipped if time is short, and any
        where no clock may decide that.
        """
        if (optional or self.counted) and not self._affordable(name):
            return 0
        known, r = self.best()[0], self.relaxation
        end = half_way(self.end)
        # steps of a look at a horizon, about
        windows = max(4_000_000, 64 * r.compute.size)
        rounds = 3 * r.num_ops * r.compute.size * (34 + r.compute.shape[1])
        compute: dict[str, Callable[[], int]] = {
            "critical-path": lambda: critical_path_bound(self.relaxation),
            "load": lambda: self.load.value,
            "communication": lambda: communication_bound(self.heads),
            "fork-join": lambda: self._fork_join(known),
            "head-tail": lambda: head_tail_bound(self.relaxation, self.heads, self.load.weights),
            "energy": lambda: energy_bound(
                self.evidence(known), self._until(0.5), 0.5 * self.work / windows
            ),
            "destructive": lambda: destructive_bound(
                self.evidence(known), self._until(0.3), 0.3 * self.work / rounds
            ),
            "congestion": lambda: max(
                takewhile(lambda _: time.perf_counter() < end, self.congestion(self.end)), default=0
            ),
            "segments": lambda: max(
                self.run_segments(0.2 * self.seconds_left, everything=x) for x in (False, True)
            ),
            "front": lambda: front_bound(self.evidence(known), end),
        }
        value = int(compute[name]())
        self.bounds[name] = max(value, self.bounds.get(name, 0))
        return value

    def _fork_join(self, known: int) -> int:
        """Run the bound by forks and joins, which raises heads and tails for those that follow."""
        value, self.heads, self.delays = fork_join_bound(
            self.evidence(known), self._until(0.2), 0.1 * self.work
        )
        return value

    def congestion(self, end: float) -> Iterator[int]:
        """Yield the bound by flows, round by round; delays between ops raise heads and tails for
        what follows.

        Parameters
        ----------
        end : in seconds of `time.perf_counter`, until which segments are looked for.
        """
        value = 0
        for found in congestion_steps(
            self.problem, lambda: self.evidence(self.best()[0]), end, written=self.written
        ):
            if isinstance(found, int):
                value = max(value, found)
            elif found:
                self.heads = self.evidence(value).heads_with(found)
                value = max(value, communication_bound(self.heads))
            self.bounds["congestion"] = max(value, self.bounds.get("congestion", 0))
            yield value

    def run_segments(self, seconds: float, *, everything: bool) -> int:
        """Run the bound by segments, which raises heads and tails for those that follow.

        Parameters
        ----------
        seconds : time for it, whatever is left of the budget.
        everything : as for `segment_delays`.
        """
        end, evidence = time.perf_counter() + seconds, self.evidence(self.best()[0])
        value, self.heads = segments_bound(evidence, end, self._solved, everything=everything)
        self.bounds["segments"] = max(value, self.bounds.get("segments", 0))
        return value

    def _until(self, share: float) -> float:
        """End of a share of the time left, in seconds of `time.perf_counter`; infinity where no
        clock may decide anything.
        """
        return time.perf_counter() + share * self.seconds_left if self.timed else math.inf

    def _affordable(self, name: str) -> bool:
        """Whether there is time for a bound, by an estimate of its steps."""
        if name in PROGRAMS:
            return self.seconds >= PROGRAMS[name] and self.seconds_left >= 0.5
        r = self.relaxation
        cells = r.compute.size
        steps = {
            "communication": min(r.num_ops, 64) * cells,
            "fork-join": 20_000 * r.num_ops,
            "head-tail": min(r.num_ops, 64) * (r.num_ops + cells),
            "energy": 256 * cells,
            "destructive": 50 * r.num_ops * cells if is_small(r) else math.inf,
        }
        seconds = self.pace.idle_seconds if self.idle else min(self.seconds, self.seconds_left)
        return steps.get(name, 0) <= self.pace.work_a_second * seconds
