"""Lower bounds on the period of any placement, contiguity ignored; each is proved in its module."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from placeopt.model.problem import PlacementProblem

METHODS = ("load", "op", "pigeonhole", "area", "congestion", "columns")
"""Names of the bounds, cheapest first."""


@dataclass(frozen=True)
class Limits:
    """Which bounds are tried.

    Attributes
    ----------
    contract_seconds : what contracting takes, about, per op, edge and a hundredth of an op on a
    device.
    no_time : seconds that contracting may take where there is no time.
    area_nodes : above this `area` is not tried.
    column_seconds : with less time than this `columns` is not tried.
    """

    contract_seconds: float = 8e-6
    no_time: float = 0.5
    area_nodes: int = 20_000
    column_seconds: float = 2.0


LIMITS = Limits()


def period_bounds(
    problem: PlacementProblem,
    seconds: float,
    methods: Sequence[str] = METHODS,
    upper: int | None = None,
) -> Iterator[tuple[str, int]]:
    """Yield (method, ticks) one after the other; without time only those that take milliseconds.

    Parameters
    ----------
    upper : period of a known placement in ticks, which `columns` may prove to be the best.

    Raises
    ------
    InfeasibleProblemError
        If ops that must share a device have no device in common.
    """
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.period.bounds.congestion import congestion_bounds, round_seconds
    from placeopt.period.bounds.device_types import area_bounds, pigeonhole
    from placeopt.period.bounds.prices import column_bound
    from placeopt.period.contracted import contract

    end, best = time.perf_counter() + seconds, 0
    needed = LIMITS.contract_seconds * (
        problem.num_ops * (1 + problem.num_devices / 100) + problem.num_edges
    )
    if seconds < needed and needed > LIMITS.no_time:
        if "load" in methods:
            yield "load", Analysis(problem, seconds=0.0).run("load")
        return
    model = contract(problem, contiguity="none")
    bounds: dict[str, Callable[[float], int]] = {
        "load": lambda left: Analysis(problem, seconds=max(0.0, left)).run("load"),
        "op": lambda _: int(model.surroundings.max()),
        "pigeonhole": lambda _: pigeonhole(model, best),
        "area": lambda left: _best(area_bounds(model), 0.2 * left),
        "congestion": lambda left: _best(congestion_bounds(model), 0.2 * left),
        "columns": lambda left: column_bound(problem, best, upper, left),
    }
    least = {
        "area": 0.0 if model.num_nodes <= LIMITS.area_nodes else math.inf,
        # two rounds in a fifth of the time
        "congestion": 10 * round_seconds(model) if problem.num_devices > 1 else math.inf,
        "columns": max(LIMITS.column_seconds, 3 * needed) if problem.num_devices > 1 else math.inf,
    }
    for method in METHODS:
        left = end - time.perf_counter()
        if method in methods and left > least.get(method, -math.inf):
            value = bounds[method](left)
            best = max(best, value)
            yield method, value


def _best(bounds: Iterator[int], seconds: float) -> int:
    """Return the bound after some seconds, after one of them at least."""
    best, end = 0, time.perf_counter() + seconds
    for bound in bounds:
        best = bound
        if time.perf_counter() > end:
            break
    return best
