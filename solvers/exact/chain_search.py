"""Choose the limits of the ideal program so that it proves the best chain quickly.

"1f1b" needs one run below the incumbent; without a good incumbent the limit grows from the area
bound, because a run is the faster the tighter its limit. "gpipe" adds the largest forward and
backward loads: the smallest forward load F under a limit on the backward one is found again and
again, each time asking for less than the best sum, until no plan is left (the epsilon-constraint
method).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import NO_VALUE
from placeopt.model.placement import Placement
from placeopt.period.evaluate import period_loads
from placeopt.solvers.exact.ideal_program import IdealProgram, stage_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.solvers.exact.ideal_program import Stage

_HUGE = NO_VALUE - 1  # no period is longer


@dataclass(frozen=True)
class ChainOutcome:
    """Best chain below the incumbent: `value` is None if there is none (or none was found in time).

    `lower_bound` holds for every chain of the program's lattice; `complete` says that nothing is
    left open.
    """

    value: int | None
    stages: tuple[Stage, ...]
    lower_bound: int
    complete: bool


def best_chain(
    program: IdealProgram, incumbent: int | None, stop: Callable[[], bool] | None = None
) -> ChainOutcome:
    """Find the best chain of `program` that beats `incumbent` (ticks)."""
    find = _best_gpipe if program.model.two_pass else _best_1f1b
    outcome = find(program, incumbent, stop)
    if program.restricted:  # a chain of the devices that were left out may be better
        return replace(
            outcome, lower_bound=min(outcome.lower_bound, program.area_bound()), complete=False
        )
    return outcome


def _best_1f1b(
    program: IdealProgram,
    incumbent: int | None,
    stop: Callable[[], bool] | None,
    *,
    close: float = 1.25,
) -> ChainOutcome:
    """Try rising limits, each by the factor `close` above the last one; an incumbent within this
    factor of the area bound is tried at once.
    """
    last = _HUGE if incumbent is None else incumbent - 1
    lower = program.area_bound()
    limit = last if last <= close * lower else int(close * lower)
    while True:
        limit = min(limit, last)
        outcome = program.run(limit, stop=stop)
        if not outcome.complete:
            return ChainOutcome(None, (), lower, False)
        if outcome.value is not None:
            return ChainOutcome(outcome.value, outcome.stages, outcome.value, True)
        lower = max(lower, limit + 1)
        if limit == last:
            return ChainOutcome(None, (), lower, True)
        limit = int(limit * close) + 1


def _best_gpipe(
    program: IdealProgram, incumbent: int | None, stop: Callable[[], bool] | None
) -> ChainOutcome:
    model = program.model
    swapped = replace(
        model, compute=np.ascontiguousarray(model.compute[::-1]), tensor_pass=1 - model.tensor_pass
    )
    smallest = IdealProgram(swapped, program.lattice).run(_HUGE, _HUGE, stop=stop)
    forward = program.area_bound()
    if not smallest.complete:
        return ChainOutcome(None, (), forward, False)
    if smallest.value is None:
        return ChainOutcome(None, (), _HUGE, True)
    backward = smallest.value
    best = incumbent
    value: int | None = None
    stages: tuple[Stage, ...] = ()
    while True:
        room = _HUGE if best is None else best - 1
        outcome = program.run(room - backward, room - forward, stop=stop)
        if not outcome.complete:
            return ChainOutcome(value, stages, forward + backward, False)
        if outcome.value is None:
            return ChainOutcome(value, stages, room + 1, True)
        forward = outcome.value
        load = period_loads(model.problem, Placement(stage_devices(model, outcome.stages)[0])).max(
            axis=1
        )
        if best is None or int(load.sum()) < best:
            best = value = int(load.sum())
            stages = outcome.stages
