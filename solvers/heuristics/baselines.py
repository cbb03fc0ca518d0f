"""Baselines without a model of the graph: one device, contiguous chunks, uniform sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from placeopt.model.arrays import Ints, stable_order
from placeopt.model.placement import Placement
from placeopt.solvers.heuristics.context import Context, equal_parts
from placeopt.solvers.heuristics.heuristic import Heuristic, Proposals
from placeopt.solvers.heuristics.repair import fits
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class SingleDevice(Heuristic):
    """Everything on one device: the best of all devices that can hold the whole graph.

    Where no device can, each device is filled first and the rest spills over to the others.
    """

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Return the fastest single device; the message says where ops had to spill over."""
        problem = context.problem
        everywhere = np.logical_and.reduce(problem.compute >= 0, axis=0)
        whole = bool((everywhere & (problem.capacity >= problem.resident.sum())).any())
        if not whole:
            tracker.message = (
                "no single device can hold every op: the rest spills over to other devices"
            )
        first = {twin: group[0] for group in problem.identical_devices for twin in group}
        for device in range(problem.num_devices):
            wanted = np.full(problem.num_ops, device, np.int64)
            fits = everywhere[device] and context.units.bytes.sum() <= problem.capacity[device]
            if fits:
                if first[device] == device:  # its twins are neither better nor worse
                    yield context.list_scheduled(wanted)
            elif not whole or problem.memory == "peak":
                yield context.repaired(wanted)


@dataclass(frozen=True)
class RoundRobin(Heuristic):
    """Contiguous chunks of a topological order, dealt to the devices in turn."""

    chunks: int | None = option(None, "chunks of about equal work; None for one per device", low=1)

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Cut the order into chunks of equal mean work; what does not fit goes to a device with
        space.
        """
        problem = context.problem
        order = problem.topological_order
        work = context.mean_compute[order]
        if work.sum() == 0:
            work = np.ones(problem.num_ops)
        chunks = problem.num_devices if self.chunks is None else self.chunks
        device = np.empty(problem.num_ops, np.int64)
        device[order] = equal_parts(work, chunks) % problem.num_devices
        yield context.repaired(device)


@dataclass(frozen=True)
class RandomPlacement(Heuristic):
    """The best of many uniform random placements.

    Each unit (colocation group or op) gets a uniform compatible device; samples that break a
    capacity are drawn again one unit after the other among the devices with space. Samples run
    first come, first served; the best one is ranked by a list schedule at the end, which can only
    make it faster.
    """

    batch = 256

    samples: int = option(
        2000, "placements drawn where nothing limits seconds or evaluations", low=1
    )

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Sample until the budget is spent."""
        problem = context.problem
        limited = tracker.budget.ends
        rng = tracker.rng()
        drawn = 0
        failures = 0
        # Samples times ops that are drawn at once
        most_cells = 2_000_000
        most = max(1, min(self.batch, most_cells // problem.num_ops))
        while (limited or drawn < self.samples) and failures < 10_000:
            count = most if limited else min(most, self.samples - drawn)
            for home in sample_units(context, count, rng):
                drawn += 1
                if home is None:
                    failures += 1
                yield None if home is None else Placement(home[context.units.unit])


def sample_units(context: Context, count: int, rng: np.random.Generator) -> Iterator[Ints | None]:
    """Yield `count` random assignments of units to devices that respect compatibility and
    capacity.
    """
    units = context.units
    num_units = len(units.bytes)
    options = units.allowed.sum(axis=1)
    # column j of `choice` is the j-th device that the unit may use
    choice = stable_order(~units.allowed, axis=1)
    draws = (rng.random((count, num_units)) * options).astype(np.int64)
    homes = choice[np.arange(num_units), np.minimum(draws, options - 1)]
    unlimited = bool((units.bytes.sum() <= units.capacity).all())
    for home in homes:
        if unlimited or fits(units, home):
            yield home
        else:
            yield _sequential(context, rng)


def _sequential(context: Context, rng: np.random.Generator) -> Ints | None:
    """Draw units in random order, large ones more likely first, each among the devices with
    space.
    """
    units = context.units
    home = np.zeros(len(units.bytes), np.int64)
    free = units.capacity.copy()
    weight = units.bytes.astype(np.float64) / max(1, int(units.bytes.max()))
    for unit in stable_order(rng.random(len(home)) - weight):
        there = np.flatnonzero(units.allowed[unit] & (free >= units.bytes[unit]))
        if not len(there):
            return context.packed[0]
        home[unit] = there[rng.integers(len(there))]
        free[home[unit]] -= units.bytes[unit]
    return home
