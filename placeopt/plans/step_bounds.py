"""The area bound on the time of a step: all work of a micro-batch, shared by all devices.

With data degree D and micro-batches of b samples, let w_k(v) be the least device-ticks of layer v
on devices of kind k, min over tensor degrees t of t times its ticks. A plan gives replica r of
layer v to some kind; a stage's period is at least the ticks of each of its replicas, so that the
devices of kind k, n_k of them, do at most n_k m device-ticks of work per micro-batch, m being the
longest period. For any prices y_k >= 0,

    D sum_v min_k y_k w_k(v) <= sum_k y_k (work done on kind k) <= m sum_k y_k n_k,

which bounds m; some relative prices are tried. The step is at least (n - 1) m, plus one pass
through all layers at the fastest times there are. The least over all D and b is the bound.
Transfers, all-reduce and memory are left out.

With v stages per device the longest period is that of a stage, at least m / v since a device does
all of its stages, n v of them are counted, and a pass through all layers counts a v-th. Where a
schedule takes w times the gradients of weights from the fill, the pass takes at least the sum over
layers of the least p - w g, p and g being a layer's ticks and their part, and at least m.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.plans.step_problem import StepPlanProblem
from placeopt.plans.step_schedules import NEVER, StepSchedule, parse_schedule


class BatchWork(NamedTuple):
    """Work of one micro-batch.

    Attributes
    ----------
    possible : whether there are times of every layer.
    priced : per choice of prices, the least priced device-ticks of all layers and the priced
    devices.
    least_pass : least fill of all layers by the weight parts of the schedules there are.
    """

    possible: bool
    priced: tuple[tuple[int, int], ...]
    least_pass: dict[int, int]


def batch_work(problem: StepPlanProblem, micro_batch: int) -> BatchWork:
    """Return the work of a micro-batch."""
    layers = problem.costs.num_layers
    device_ticks = np.full((len(problem.pools), layers), NEVER, np.int64)
    parts = {parse_schedule(name).weight_parts for name in problem.schedules}
    passing = {part: np.full(layers, NEVER, np.int64) for part in parts}
    choices = (False, True) if problem.recompute else (False,)
    for (k, tensor, form), again in product(replica_ways(problem), choices):
        kind = problem.pools[k].kind
        ticks = problem.costs.layer_ticks(kind, tensor, micro_batch, again, form)
        if ticks is None:
            continue
        device_ticks[k] = np.minimum(device_ticks[k], ticks * tensor)
        weights = (
            problem.costs.weight_ticks(kind, tensor, micro_batch, form) if any(parts) else None
        )
        for part in parts:
            left = ticks if weights is None else ticks - part * weights
            passing[part] = np.minimum(passing[part], left)
    possible = bool((device_ticks.min(axis=0) < NEVER).all())
    return BatchWork(
        possible,
        tuple(_priced(problem, device_ticks)),
        {part: max(0, int(row.sum())) if possible else 0 for part, row in passing.items()},
    )


def replica_ways(problem: StepPlanProblem) -> Iterator[tuple[int, int, str]]:
    """Yield the number of a pool, degree and form of every replica that its devices suffice for."""
    for k, pool in enumerate(problem.pools):
        for tensor in problem.degrees(pool):
            if tensor <= pool.count:
                yield from ((k, tensor, form) for form in problem.forms_of(pool.kind, tensor))


def _priced(problem: StepPlanProblem, device_ticks: Ints) -> Iterator[tuple[int, int]]:
    """Yield the priced device-ticks of all layers and the priced devices; see `BatchWork`."""
    usable, counts = device_ticks < NEVER, np.array([pool.count for pool in problem.pools])
    for prices in _prices(len(problem.pools)):
        least = np.where(usable, np.where(usable, device_ticks, 0) * prices[:, None], NEVER).min(
            axis=0
        )
        supply = int(prices @ counts)
        if supply and (least < NEVER).all():
            yield int(least.sum()), supply


def _prices(kinds: int) -> list[Ints]:
    """Return whole prices per kind: equal ones, and mixtures; those of two kinds sum to 16."""
    mixtures = price_mixtures(kinds, 16)
    return [
        np.ones(kinds, np.int64),
        *mixtures[mixtures.min(axis=1) > 0 if kinds == 2 else slice(None)],
    ]


def price_mixtures(kinds: int, steps: int) -> Ints:
    """Return all whole prices of kinds that sum to `steps`, or to 4 where there are more than two
    kinds, shape (mixtures, kinds); for one kind its price is one.
    """
    total = {1: 1, 2: steps}.get(kinds, 4)
    places = total + kinds - 1
    bars = np.array(list(combinations(range(places), kinds - 1)), np.int64)
    return np.diff(bars, axis=1, prepend=-1, append=places) - 1


def period_and_fill(work: BatchWork, data: int, schedule: StepSchedule) -> tuple[int, int]:
    """Return bounds on the longest period of a stage, NEVER if there is no plan, and on the
    fill.
    """
    if not work.possible:
        return NEVER, 0
    period = max((-(-data * ticks // supply) for ticks, supply in work.priced), default=0)
    passing = work.least_pass[schedule.weight_parts]
    if schedule.chunks == 1:
        return period, max(period, passing)
    return -(-period // schedule.chunks), -(-passing // schedule.chunks)


def area_bound(problem: StepPlanProblem) -> int:
    """Return the least area bound of all micro-batches, data degrees and schedules."""
    best = NEVER
    for size in problem.micro_batches:
        work = batch_work(problem, size)
        for name, data in product(problem.schedules, problem.data_degrees):
            schedule = parse_schedule(name)
            period, rest = period_and_fill(work, data, schedule)
            if period < NEVER:
                slots = problem.rounds(size, data) * schedule.chunks
                best = min(best, (slots - 1) * period + rest)
    return 0 if best >= NEVER else best
