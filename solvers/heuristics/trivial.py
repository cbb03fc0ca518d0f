"""Baselines without a model of the graph: one device, contiguous chunks, uniform sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.solvers.heuristics.driver import View, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress


@dataclass(frozen=True)
class SingleDevice:
    """Everything on one device: the best of all devices that can hold the whole graph.

    Where no device can, each device is filled first and the rest spills over to the others.
    """

    name: ClassVar[str] = "single-device"

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Return the fastest single device; the message says where ops had to spill over."""
        everywhere = np.logical_and.reduce(problem.compute >= 0, axis=0)
        whole = bool((everywhere & (problem.capacity >= problem.resident.sum())).any())
        message = "" if whole else "no single device can hold every op: the rest spills over to other devices"

        def propose(view: View, rng: np.random.Generator) -> Iterator[Placement | None]:
            for device in range(problem.num_devices):
                wanted = np.full(problem.num_ops, device, dtype=np.int64)
                fits = everywhere[device] and view.units.bytes.sum() <= problem.capacity[device]
                if fits:
                    yield view.list_scheduled(wanted)
                elif not whole or problem.memory == "peak":
                    yield view.repaired(wanted)

        return run(self.name, problem, budget, propose, seed=seed, initial=initial, on_progress=on_progress,
                   message=message)  # fmt: skip


@dataclass(frozen=True)
class RoundRobin:
    """Contiguous chunks of a topological order, dealt to the devices in turn.

    Parameters
    ----------
    chunks : number of chunks of about equal work; one per device by default.
    """

    chunks: int | None = None

    name: ClassVar[str] = "round-robin"

    def __post_init__(self) -> None:
        if self.chunks is not None and self.chunks < 1:
            raise InputError(f"round-robin: chunks must be at least 1, received {self.chunks}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Cut the order into chunks of equal mean work; what does not fit goes to a device with space."""

        def propose(view: View, rng: np.random.Generator) -> Iterator[Placement | None]:
            order = problem.topological_order
            work = view.mean_compute[order]
            if work.sum() == 0:
                work = np.ones(problem.num_ops)
            chunks = problem.num_devices if self.chunks is None else self.chunks
            middle = (np.cumsum(work) - work / 2) / work.sum()
            chunk = np.minimum((middle * chunks).astype(np.int64), chunks - 1)
            device = np.empty(problem.num_ops, dtype=np.int64)
            device[order] = chunk % problem.num_devices
            yield view.repaired(device)

        return run(self.name, problem, budget, propose, seed=seed, initial=initial, on_progress=on_progress)


@dataclass(frozen=True)
class RandomPlacement:
    """The best of many uniform random placements.

    Each unit (colocation group or op) gets a uniform compatible device; samples that break a capacity are
    drawn again one unit after the other among the devices with space. Samples run first come, first served;
    the best one is ranked by a list schedule at the end, which can only make it faster.

    Parameters
    ----------
    samples : how many to draw where the budget limits neither seconds nor evaluations.
    """

    samples: int = 2000

    name: ClassVar[str] = "random"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"random: samples must be at least 1, received {self.samples}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Sample until the budget is spent."""
        limited = budget.seconds is not None or budget.evaluations is not None
        batch = 256

        def propose(view: View, rng: np.random.Generator) -> Iterator[Placement | None]:
            drawn = 0
            failures = 0
            while (limited or drawn < self.samples) and failures < 10_000:
                for home in sample_units(view, batch if limited else min(batch, self.samples - drawn), rng):
                    drawn += 1
                    if home is None:
                        failures += 1
                    yield None if home is None else Placement(home[view.units.unit])

        return run(self.name, problem, budget, propose, seed=seed, initial=initial, on_progress=on_progress,
                   batch=batch)  # fmt: skip


def sample_units(view: View, count: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64] | None]:
    """Yield `count` random assignments of units to devices that respect compatibility and capacity."""
    units = view.units
    num_units = len(units.bytes)
    options = units.allowed.sum(axis=1)
    # column j of `choice` is the j-th device that the unit may use
    choice = np.argsort(~units.allowed, axis=1, kind="stable")
    draws = (rng.random((count, num_units)) * options).astype(np.int64)
    homes = choice[np.arange(num_units), np.minimum(draws, options - 1)]
    unlimited = bool((units.bytes.sum() <= units.capacity).all())
    for home in homes:
        if unlimited or _fits(view, home):
            yield home
        else:
            yield _sequential(view, rng)


def _fits(view: View, home: NDArray[np.int64]) -> bool:
    used = np.zeros(view.problem.num_devices, dtype=np.int64)
    np.add.at(used, home, view.units.bytes)
    return bool((used <= view.units.capacity).all())


def _sequential(view: View, rng: np.random.Generator) -> NDArray[np.int64] | None:
    """Draw units in random order, large ones more likely first, each among the devices with space."""
    units = view.units
    home = np.zeros(len(units.bytes), dtype=np.int64)
    free = units.capacity.copy()
    weight = units.bytes.astype(np.float64) / max(1, int(units.bytes.max()))
    for unit in np.argsort(rng.random(len(home)) - weight, kind="stable"):
        there = np.flatnonzero(units.allowed[unit] & (free >= units.bytes[unit]))
        if not len(there):
            return view.packing
        home[unit] = there[rng.integers(len(there))]
        free[home[unit]] -= units.bytes[unit]
    return home
