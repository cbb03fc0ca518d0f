"""The two elementary bounds: the longest path, and the load of the busiest device.

Critical path, with the fastest device of every op and free communication. Proof. Along a path every
op starts after its predecessor ends and runs at least as long as on its fastest device. Where two
neighbours have no device in common, or their weights fit on none together, the tensor between them
must be sent, over a link no faster than the cheapest one between two devices that they can use. The
sum along the path is therefore at most the end of its last op, in any schedule.

Load: no schedule ends before its busiest device has run all its ops. Proof. Let x[v, D] be the
share of item v (a colocation group or a single op) on device class D of s_D devices with total
capacity M_D. Any placement satisfies sum_D x[v, D] = 1, sum_v p[v, D] x[v, D] <= s_D T and sum_v
r_v x[v, D] <= M_D. For any weights y >= 0 and z >= 0, adding these up gives T sum_D s_D y_D >=
sum_v min_D (p[v, D] y_D + r_v z_D) - sum_D M_D z_D: a bound that needs no solver to be trusted.
Good weights are the dual solution of the linear program (HiGHS), rounded to integers; the sum is
then taken in exact integers and divided, rounding up because T is a whole number of ticks. For
identical devices without binding memory y = 1 gives ceil(sum p / k). Besides, no item is split; and
of the h k + 1 largest items h + 1 share a device (pigeonhole), which takes at least the sum of the
h + 1 smallest of them.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np

from placeopt.makespan.bounds.relaxation import Relaxation, fastest_ticks, most_weight
from placeopt.model.arrays import UNLIMITED, Floats, Ints, place_in, running_sums, sums_by
from placeopt.model.compiled import entry, row_of
from placeopt.model.linear_program import linear_program

_COARSE = 1024
"""Largest weight of a class of devices where that is exact enough."""


def critical_path_bound(relaxation: Relaxation) -> int:
    """Return the length of the longest path in ticks."""
    fastest = relaxation.min_compute
    return int((_longest(*relaxation.forwards[:4], fastest) + fastest).max())


@entry
def _longest(order, ptr, op, free, fastest):  # type: ignore[no-untyped-def]
    before = np.zeros(len(order), np.int64)
    for v in order:
        for e in row_of(ptr, v):
            before[v] = max(before[v], before[op[e]] + fastest[op[e]] + free[e])
    return before


class LoadBound(NamedTuple):
    """The bound, the class weights that prove its fractional part (for the energy bounds), and how
    the linear program shares the items out, None where it was not solved; weights and prices of the
    classes' bytes that prove more, None where there are none.
    """

    value: int  # ticks
    weights: Ints  # (num_classes,) integers >= 0, not all 0
    shares: Floats | None = None  # (num_items, num_classes)
    priced: tuple[Ints, Ints] | None = None  # (num_classes,) each, Python integers >= 0


def load_bound(relaxation: Relaxation, end: float = math.inf) -> LoadBound:
    """Return the best load bound and its class weights; the search for weights ends at `end`
    (`time.perf_counter`), or where that is infinity after a fixed amount of work.
    """
    compute, resident = relaxation.items
    possible = (compute >= 0).any(axis=1)
    compute, resident, size = compute[possible], resident[possible], relaxation.class_size
    uniform = np.ones(len(size), np.int64)
    if not len(compute):
        return LoadBound(0, uniform)
    shortest = fastest_ticks(compute)
    value = max(
        int(shortest.max()),
        _pigeonhole(shortest, int(size.sum())),
        _weighted(compute, uniform, relaxation),
    )
    capacity = np.bincount(relaxation.class_of, relaxation.problem.capacity).astype(np.float64)
    binding = float(resident.sum()) > float(capacity.min())
    if len(size) == 1:
        return LoadBound(value, uniform)
    table, row, count = np.unique(
        np.column_stack([compute, resident]), axis=0, return_inverse=True, return_counts=True
    )
    best, best_weights, shares, priced = value, uniform, None, None
    rows = _Rows(table[:, :-1], table[:, -1], count, size, capacity if binding else None)
    for y, z, x in _dual_weights(rows, end):
        shares = x if x is None or not possible.all() else x[row.ravel()]
        weights, found = _class_weights(y, compute, relaxation)
        if weights is None:
            continue
        if z is not None:
            duals = _scaled(y, z)
            dear = _weighted(compute, duals[0], relaxation, (resident, duals[1]))
            if dear > max(best, found):
                found, priced = dear, duals
        if found > best:
            best, best_weights = found, weights
    return LoadBound(best, best_weights, shares, priced)


def _pigeonhole(shortest: Ints, num_devices: int) -> int:
    """Of the h k + 1 largest items some device holds h + 1."""
    ordered = np.sort(shortest)[::-1]
    total = running_sums(ordered)
    h = np.arange(1, (len(ordered) - 1) // num_devices + 1)
    last = h * num_devices + 1
    return int((total[last] - total[last - h - 1]).max(initial=0))


def _class_weights(y: Floats, compute: Ints, relaxation: Relaxation) -> tuple[Ints | None, int]:
    """Return integer weights, and what they prove; None if they vanish.

    Small ones, which cost the energy bounds least, unless rounding takes more than one part in
    `_COARSE`, as where speeds lie orders of magnitude apart.
    """
    best: Ints | None = None
    most, proved = 0, -1
    for largest in (_COARSE, most_weight(relaxation) // (2 * relaxation.class_size.sum())):
        weights = _rounded(y, largest)
        if weights is not None:
            proved = _weighted(compute, weights, relaxation)
        if proved > most + most // _COARSE or best is None:
            best, most = weights, proved
    return best, most


def _rounded(y: Floats, largest: float) -> Ints | None:
    """Scale weights to integers of at most `largest`; None if they vanish."""
    y = np.maximum(y, 0.0)
    if not np.isfinite(y).all() or y.max() <= 0:
        return None
    return np.asarray(np.round(y / y.max() * largest), np.int64)


def _weighted(
    compute: Ints, weights: Ints, relaxation: Relaxation, memory: tuple[Ints, Ints] | None = None
) -> int:
    """Evaluate the bound of the module text for integer weights, exactly; `memory` are the bytes of
    the items and the weights of those of the classes.
    """
    large = memory is not None or int(compute.max(initial=0)) * int(weights.max()) >= 2**60
    cost = (compute.astype(object) if large else compute) * weights[None, :]
    if memory is not None:
        cost = cost + np.multiply.outer(*(x.astype(object) for x in memory))
    cost = np.where(compute < 0, 2**200 if large else 2**62, cost)
    total = sum(map(int, cost.min(axis=1).tolist()))
    if memory is not None:
        ends = relaxation.problem.capacity.astype(object)
        capacity = sums_by(relaxation.class_of, ends, len(weights))
        total -= int(capacity @ memory[1])
    width = int(relaxation.class_size.astype(object) @ weights)
    return max(0, -(-total // width)) if width > 0 else 0


def _scaled(y: Floats, z: Floats) -> tuple[Ints, Ints]:
    """Return weights of ticks and of bytes, scaled by 2^40 and rounded, as Python integers."""
    scale = 2.0**40 / max(float(y.max()), 1e-300)
    big_y, big_z = (
        np.array([round(float(v) * scale) for v in np.maximum(x, 0.0)], object) for x in (y, z)
    )
    return big_y, big_z


class _Rows(NamedTuple):
    """The distinct rows of a problem, and its classes of devices."""

    compute: Ints  # (num_rows, num_classes) ticks, -1 where incompatible
    resident: Ints  # (num_rows,) bytes
    alike: Ints  # (num_rows,) number of ops
    size: Ints  # (num_classes,) devices
    capacity: Floats | None  # (num_classes,) bytes, None where they do not bind


def _dual_weights(
    rows: _Rows, end: float, *, most_variables: int = 30_000
) -> list[tuple[Floats, Floats | None, Floats | None]]:
    """Return candidate (y, z) and the shares of the rows on the classes, None where no program
    gives them; z is None where memory plays no part.

    Parameters
    ----------
    most_variables : of the linear program; where there are more, all weights come from the
    subgradient ascent.
    """
    result: list[tuple[Floats, Floats | None, Floats | None]] = [(_ascent(rows, end), None, None)]
    if rows.compute.size <= most_variables:
        duals = _linear_program(rows, end)
        if duals is not None:
            result.append(duals)
    return result


def _ascent(rows: _Rows, end: float, *, most_cells: int = 100_000_000) -> Floats:
    """Multiplicative-weights ascent on y: raise the weight of the classes that get most load.

    Parameters
    ----------
    most_cells : of the table that are looked at in all where there is no end.
    """
    compute, count, size = rows.compute, rows.alike, rows.size
    ticks = np.where(compute < 0, np.inf, compute.astype(np.float64))
    y = np.ones(len(size))
    best_y, best = y, -1.0
    steps = 200 if math.isfinite(end) else min(200, 1 + most_cells // ticks.size)
    for step in range(steps):
        if step and time.perf_counter() >= end:
            break
        cost = ticks * y[None, :]
        choice = cost.argmin(axis=1)
        value = float((cost[np.arange(len(cost)), choice] * count).sum() / (size * y).sum())
        if value > best:
            best, best_y = value, y
        load = (
            np.bincount(
                choice, weights=ticks[np.arange(len(cost)), choice] * count, minlength=len(size)
            )
            / size
        )
        y = y * np.exp((load / max(load.max(), 1e-300) - 0.5) * 0.7 / (1 + step / 10))
        y = np.maximum(y / y.max(), 1e-9)
    return best_y


def _linear_program(
    rows: _Rows, end: float, *, most_seconds: float = 20.0, most_iterations: int = 20_000
) -> tuple[Floats, Floats | None, Floats] | None:
    """Solve the LP of the module text over distinct rows; return its duals (y, z) and the shares,
    None if it fails or takes more than `most_seconds`, or `most_iterations` where there is no end.
    """
    from scipy.sparse import coo_array

    compute, resident, count, size, capacity = rows
    num_ops, classes = compute.shape
    v, d = np.nonzero(compute >= 0)
    unit = float(np.maximum(compute, 0).max()) or 1.0  # ticks of one LP time unit
    column = np.arange(len(v))
    last = len(v)  # the variable T
    parts = [
        (d, column, compute[v, d] / unit * count[v]),
        (np.arange(classes), np.full(classes, last), -size.astype(float)),
    ]
    limit = [np.zeros(classes)]
    num_rows = classes
    limited = np.zeros(0, np.int64)
    weight = max(float(resident.max()), 1.0)
    if capacity is not None:
        limited = np.flatnonzero(capacity < UNLIMITED)
        row = place_in(limited, classes)[d]
        inside = row >= 0
        parts.append(
            (classes + row[inside], column[inside], resident[v[inside]] / weight * count[v[inside]])
        )
        limit.append(capacity[limited] / weight)
        num_rows += len(limited)
    row, place, data = map(np.concatenate, zip(*parts, strict=True))
    upper = coo_array((data, (row, place)), shape=(num_rows, last + 1)).tocsr()
    equal = coo_array((np.ones(last), (v, column)), shape=(num_ops, last + 1)).tocsr()
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    solution = linear_program(
        cost,
        below=(upper, np.concatenate(limit)),
        equal=(equal, np.ones(num_ops)),
        seconds=min(most_seconds, end - time.perf_counter()) if math.isfinite(end) else None,
        iterations=None if math.isfinite(end) else most_iterations,
    )
    if solution.status != 0:
        return None
    dual = -solution.ineqlin.marginals
    y, shares = dual[:classes], np.zeros(compute.shape)
    shares[v, d] = solution.x[:last]
    if not len(limited):
        return y, None, shares
    z = np.zeros(classes)
    z[limited] = dual[classes:] * unit / weight  # ticks of load per byte
    return y, z, shares
