"""The area bound on the time of a step: all work of a micro-batch, shared by all devices.

With data degree D and micro-batches of b samples, let w_k(v) be the least device-ticks of layer v on devices of kind k,
min over tensor degrees t of t times its ticks. A plan gives replica r of layer v to some kind; a stage's period is at
least the ticks of each of its replicas, so that the devices of kind k, n_k of them, do at most n_k m device-ticks of work
per micro-batch, m being the longest period. For any prices y_k >= 0,

    D sum_v min_k y_k w_k(v) <= sum_k y_k (work done on kind k) <= m sum_k y_k n_k,

which bounds m; prices 1 / n_k^a for some a are tried. The step is at least (n - 1) m, plus one pass through all layers at
the fastest times there are. The least over all D and b is the bound. Transfers, all-reduce and memory are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.plans.step_problem import StepPlanProblem

NEVER = 2**62
PRICE_STEPS = 16
"""Relative prices of two kinds of devices that are tried."""


class BatchWork(NamedTuple):
    """Work of one micro-batch.

    Attributes
    ----------
    fastest : least ticks of each layer, NEVER: impossible; shape (L,).
    priced : per choice of prices, the least priced device-ticks of all layers and the priced devices.
    """

    fastest: NDArray[np.int64]
    priced: tuple[tuple[int, int], ...]


def batch_work(problem: StepPlanProblem, micro_batch: int) -> BatchWork:
    """Return the work of a micro-batch."""
    layers = problem.costs.num_layers
    device_ticks = np.full((len(problem.pools), layers), NEVER, dtype=np.int64)
    fastest = np.full(layers, NEVER, dtype=np.int64)
    for k, pool in enumerate(problem.pools):
        for tensor in problem.degrees(pool) if pool.count else ():
            ticks = problem.costs.layer_ticks(pool.kind, tensor, micro_batch, False)
            if ticks is not None and tensor <= pool.count:
                device_ticks[k] = np.minimum(device_ticks[k], ticks * tensor)
                fastest = np.minimum(fastest, ticks)
    priced = []
    for prices in _prices(len(problem.pools)):
        usable = device_ticks < NEVER
        least = np.where(usable, np.where(usable, device_ticks, 0) * prices[:, None], NEVER).min(axis=0)
        supply = int(sum(price * pool.count for price, pool in zip(prices.tolist(), problem.pools, strict=True)))
        if supply and (least < NEVER).all():
            priced.append((int(least.sum()), supply))
    return BatchWork(fastest, tuple(priced))


def least_period(work: BatchWork, data: int) -> int:
    """Return a lower bound on the longest period of any plan with a data degree, NEVER if there is none."""
    if (work.fastest >= NEVER).any():
        return NEVER
    return max((-(-data * ticks // supply) for ticks, supply in work.priced), default=0)


def _prices(kinds: int) -> list[NDArray[np.int64]]:
    """Return whole prices per kind: equal ones, and all mixtures for two kinds."""
    found = [np.ones(kinds, dtype=np.int64)]
    if kinds == 2:
        found += [np.array([part, PRICE_STEPS - part], dtype=np.int64) for part in range(1, PRICE_STEPS)]
    return found


def area_of(problem: StepPlanProblem, work: BatchWork, micro_batch: int, data: int) -> int:
    """Return the area bound of one micro-batch and data degree."""
    period = least_period(work, data)
    if period >= NEVER:
        return NEVER
    return (problem.rounds(micro_batch, data) - 1) * period + max(period, int(work.fastest.sum()))


def area_bound(problem: StepPlanProblem) -> int:
    """Return the least area bound of all micro-batches and data degrees."""
    best = NEVER
    for size in problem.micro_batches:
        work = batch_work(problem, size)
        best = min([best, *(area_of(problem, work, size, data) for data in problem.data_degrees)])
    return 0 if best >= NEVER else best
