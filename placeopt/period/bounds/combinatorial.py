"""Lower bounds on the period of any placement (contiguity ignored).

`op`: some device runs op v (or its colocation class), so its load is at least the smallest time of v.

`area`: let x[v, g] be the share of v on devices of type g (types group identical devices). A placement gives
x in {0, 1}; the loads of the n_g devices of type g add up to at least the compute of its ops, plus one
transfer for every tensor that crosses the type's border in each direction, and one of them reaches the
average. The linear program min T with sum of loads of type g <= n_g T relaxes every placement.

`pigeonhole`: suppose the period is at most T. An op that takes longer than T on all types but one, g, runs
there. Of the q n_g + 1 longest such ops some q + 1 share a device, whose load is at least the sum of the
q + 1 shortest of them. If that exceeds T the supposition was wrong; bisection finds the largest such T.

`columns`: prices and one device at a time, see `period_columns`; the strongest, and it takes what time it
gets.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from placeopt.period.contraction import contract

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.period.contraction import PeriodModel
    from placeopt.solving.tracker import Tracker

_LP_NODES = 20_000
_COLUMN_SECONDS = 2.0  # with less time than this `columns` is not tried


def period_bounds(problem: PlacementProblem, seconds: float = 10.0) -> dict[str, int]:
    """Return lower bounds in ticks by method, on the period.

    Parameters
    ----------
    seconds : time for programs (`area`, `columns`); the others take milliseconds.
    """
    model = contract(problem, contiguity="none")
    found = {"op": _largest_op(model)}
    found["pigeonhole"] = _pigeonhole(model, found["op"])
    if seconds > 0 and model.num_nodes <= _LP_NODES:
        started = time.perf_counter()
        found["area"] = _area(model, seconds)
        left = seconds - (time.perf_counter() - started)
        if left > _COLUMN_SECONDS and problem.num_devices > 1:
            found["columns"] = column_bound(problem, max(found.values()), None, left)
    return found


def column_bound(problem: PlacementProblem, lower: int, upper: int | None, seconds: float) -> int:
    """Return the best bound by prices, from `lower` on; at most `upper`, the value of a known placement."""
    from placeopt.period.bounds.columns import ColumnBound

    model = contract(problem, contiguity="none", limit=upper)
    most = int(smallest_times(model).sum()) + 1 if upper is None else upper
    return ColumnBound(model, time.perf_counter() + seconds).raise_from(lower, max(lower, most))


def raise_period_bounds(tracker: Tracker[Placement], seconds: float) -> None:
    """Record the quick bounds of the tracker's problem; `seconds` limits the linear program."""
    for method, value in period_bounds(tracker.problem, min(seconds, _COLUMN_SECONDS)).items():
        tracker.raise_bound(value, method)


def smallest_times(model: PeriodModel) -> NDArray[np.int64]:
    """Ticks of every node on its fastest type, both passes."""
    times: NDArray[np.int64] = np.where(model.allowed, model.total, np.iinfo(np.int64).max).min(axis=1)
    return times


def _largest_op(model: PeriodModel) -> int:
    return int(smallest_times(model).max())


def _pigeonhole(model: PeriodModel, lower: int) -> int:
    upper = int(smallest_times(model).sum()) + 1
    # Refutation is monotone: a larger T leaves fewer ops bound to one type and a larger allowance.
    while lower < upper:
        middle = (lower + upper) // 2
        if _refuted(model, middle):
            lower = middle + 1
        else:
            upper = middle
    return lower


def _refuted(model: PeriodModel, limit: int) -> bool:
    usable = model.allowed & (model.total <= limit)
    if not usable.any(axis=1).all():
        return True
    only = usable.sum(axis=1) == 1
    for g, devices in enumerate(model.types):
        times = np.sort(model.total[only & usable[:, g], g])[::-1]
        count = len(devices)
        running = np.concatenate([[0], np.cumsum(times)])
        for q in range(1, (len(times) - 1) // count + 1):
            last = q * count  # times[last - q .. last] are the q + 1 shortest of the first q * count + 1
            if running[last + 1] - running[last - q] > limit:
                return True
    return False


def _area(model: PeriodModel, seconds: float) -> int:
    """Solve the area program and prove its value with the duals, in integers."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    n, num_types, m = model.num_nodes, model.num_types, len(model.producer)
    scale = max(1.0, float(smallest_times(model).sum()))
    paying = [g for g in range(num_types) if m and model.weight[:, g].any()]
    # columns: x[v, g], then in[t, g] and out[t, g] for paying types, then T
    x0 = np.arange(n * num_types).reshape(n, num_types)
    into = n * num_types + np.arange(m * len(paying)).reshape(m, len(paying))
    out = into + m * len(paying)
    width = n * num_types + 2 * m * len(paying) + 1
    rows, cols, data, right = [], [], [], []
    row = 0
    for g, devices in enumerate(model.types):
        rows += [row] * (n + 1)
        cols += [*x0[:, g].tolist(), width - 1]
        data += [*(model.total[:, g] / scale).tolist(), -float(len(devices))]
        if g in paying:
            for table in (into, out):
                rows += [row] * m
                cols += table[:, paying.index(g)].tolist()
                data += (model.weight[:, g] / scale).tolist()
        right.append(0.0)
        row += 1
    tensor = np.repeat(np.arange(m), np.diff(model.consumer_ptr))
    for at, g in enumerate(paying):
        for t, v in zip(tensor.tolist(), model.consumer.tolist(), strict=True):
            u = int(model.producer[t])
            # x_v - x_u <= in_t and x_u - x_v <= out_t
            for first, second, table in ((v, u, into), (u, v, out)):
                rows += [row] * 3
                cols += [int(x0[first, g]), int(x0[second, g]), int(table[t, at])]
                data += [1.0, -1.0, -1.0]
                right.append(0.0)
                row += 1
    bounds = np.zeros((width, 2))
    bounds[:, 1] = 1.0
    bounds[: n * num_types, 1] = model.allowed.ravel()
    bounds[-1, 1] = np.inf
    equal = coo_matrix(
        (np.ones(n * num_types), (np.repeat(np.arange(n), num_types), x0.ravel())), shape=(n, width)
    )
    cost = np.zeros(width)
    cost[-1] = 1.0
    answer = linprog(
        cost,
        A_ub=coo_matrix((data, (rows, cols)), shape=(row, width)).tocsr(),
        b_ub=np.array(right),
        A_eq=equal.tocsr(),
        b_eq=np.ones(n),
        bounds=bounds,
        method="highs",
        options={"time_limit": seconds},
    )
    if answer.status != 0:
        return 0
    # Any multipliers y <= 0 of the inequalities give the bound sum_v min_g (reduced cost) + .. by duality;
    # rounding errors of the solver therefore cost accuracy, never validity.
    y = np.minimum(answer.ineqlin.marginals, 0.0)
    reduced = -(coo_matrix((data, (rows, cols)), shape=(row, width)).tocsr().T @ y)
    if reduced[-1] + 1.0 < 0:  # the multipliers of T's column add up to more than one: scale them down
        factor = 1.0 / -reduced[-1]
        reduced *= factor
    shares = np.where(model.allowed, reduced[: n * num_types].reshape(n, num_types), np.inf).min(axis=1)
    transfers = np.minimum(reduced[n * num_types : width - 1], 0.0)
    value = (float(shares.sum()) + float(transfers.sum())) * scale
    return max(0, int(np.floor(value * (1 - 1e-9) - 1e-6)) + 1 if value > 1 else 0)
