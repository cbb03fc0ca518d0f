"""Analysis: the bounds of one problem, computed once and shared by solvers and by `bound`."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

from placeopt.makespan.bounds.assignment import assignment_bound
from placeopt.makespan.bounds.communication import HeadsTails, communication_bound, heads_tails
from placeopt.makespan.bounds.critical_path import critical_path_bound
from placeopt.makespan.bounds.destructive import LARGEST, Clusters, destructive_bound, propagate
from placeopt.makespan.bounds.energy import energy_bound
from placeopt.makespan.bounds.front import front_bound
from placeopt.makespan.bounds.head_tail import head_tail_bound
from placeopt.makespan.bounds.load import LoadBound, load_bound
from placeopt.makespan.bounds.relaxation import Relaxation, relax
from placeopt.makespan.bounds.time_indexed import time_indexed_bound

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from placeopt.model.problem import PlacementProblem


COMBINATORIAL = ("critical-path", "load", "communication", "head-tail", "energy", "destructive")
"""Bounds that take milliseconds to a few seconds at any size, cheapest first."""


class Analysis:
    """Runs bounds on the makespan by name and remembers what they share.

    Attributes
    ----------
    bounds : ticks per method run so far.
    """

    def __init__(self, problem: PlacementProblem, seconds: float = 10.0, upper: int | None = None) -> None:
        self.problem, self.seconds, self.upper = problem, seconds, upper
        self.started = time.perf_counter()
        self.bounds: dict[str, int] = {}

    @cached_property
    def relaxation(self) -> Relaxation:
        """The cheapest version of the problem."""
        return relax(self.problem)

    @cached_property
    def heads(self) -> HeadsTails:
        """Communication-aware heads and tails per device class."""
        return heads_tails(self.relaxation, seconds=self.seconds)

    @cached_property
    def load(self) -> LoadBound:
        """The load bound and its class weights."""
        return load_bound(self.relaxation)

    @property
    def seconds_left(self) -> float:
        """Time left of the budget."""
        return max(0.0, self.seconds - (time.perf_counter() - self.started))

    def within(self, horizon: int, seconds: float) -> tuple[HeadsTails, Clusters] | None:
        """Return heads, tails and shared or separated ops of all schedules up to `horizon`; None if there is none."""
        if len(self.relaxation.source) > LARGEST or self.problem.num_devices == 1:
            return self.heads, Clusters(self.relaxation, horizon)
        end = time.perf_counter() + seconds
        return propagate(self.relaxation, self.heads, self.load.weights, horizon, end)

    def device_heads_tails(self, heads: HeadsTails) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (head, tail) per op and device, int64[num_ops, num_devices]; -1 where the op cannot run."""
        column = self.relaxation.class_of
        return heads.head[:, column], heads.tail[:, column]

    def best(self) -> tuple[int, str]:
        """Return (value, method) of the best bound so far, the earliest method among equals."""
        value, method = 0, "none"
        for name, found in self.bounds.items():
            if found > value:
                value, method = found, name
        return value, method

    def _share(self, share: float) -> float:
        """Time for one program; an explicit request gets at least a second."""
        return max(1.0, share * self.seconds_left)

    def closed(self) -> bool:
        """Whether the bound meets the known solution."""
        return self.upper is not None and self.best()[0] >= self.upper

    def run(self, name: str, *, optional: bool = False) -> int:
        """Run one bound and return its value; an optional one is skipped if time is short."""
        compute: dict[str, Callable[[], int]] = {
            "critical-path": lambda: critical_path_bound(self.relaxation),
            "load": lambda: self.load.value,
            "communication": lambda: communication_bound(self.heads),
            "head-tail": lambda: head_tail_bound(self.relaxation, self.heads, self.load.weights),
            "energy": lambda: energy_bound(
                self.relaxation, self.heads, self.load.weights, self.best()[0], self.upper
            ),
            "destructive": lambda: destructive_bound(
                self.relaxation, self.heads, self.load.weights, self.best()[0], self._share(0.3), self.upper
            ),
            "front": lambda: front_bound(
                self.relaxation, self.heads, self.load.weights, self.best()[0], self._share(0.5), self.upper
            ),
            "assignment-lp": lambda: assignment_bound(
                self.relaxation, self.heads, self.load, self.best()[0], self._share(0.4)
            ),
            "time-indexed-lp": lambda: time_indexed_bound(
                self.relaxation, self.heads, self.load.weights, self.best()[0], self._share(0.6), self.upper
            ),
        }
        if optional and name not in COMBINATORIAL and self.seconds_left < 1.0:
            return 0
        value = int(compute[name]())
        self.bounds[name] = max(value, self.bounds.get(name, 0))
        return value
