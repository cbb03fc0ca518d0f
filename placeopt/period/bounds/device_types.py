"""Lower bounds on the period by the types of devices (types group identical devices).

`op`: some device runs op v (or its colocation class), so its load is at least the smallest time of
v.

`pigeonhole`: suppose the period is at most T. An op that takes longer than T on all types but one,
g, runs there. Of the q n_g + 1 longest such ops some q + 1 share a device, whose load is at least
the sum of the q + 1 shortest of them. If that exceeds T the supposition was wrong; bisection finds
the largest such T.

`area`: let x[v, g] be the share of v on devices of type g. A placement gives x in {0, 1}; the loads
of the n_g devices of type g add up to at least the compute of its ops, plus one transfer for every
tensor that crosses the type's border in each direction, and one of them reaches the average:

    min T  subject to
        sum_v compute[v, g] x[v, g] + sum_t weight[t, g] (in[t, g] + out[t, g]) <= n_g T
        x[c, g] - x[u, g] <= in[t, g]     for consumers c of u's tensor t
        x[u, g] - x[c, g] <= out[t, g]
        sum_g x[v, g] = 1

relaxes every placement. Its value does not depend on floating-point arithmetic: for min c z subject
to A z >= b (some rows with equality) and 0 <= z <= high, any multipliers y (y_i >= 0 on
inequalities) give the bound y b + sum_j min over [0, high_j] of (c - y A)_j z_j. HiGHS only
suggests y; it is rounded to multiples of a power of two and the bound is evaluated in Python
integers, so nothing has to be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.linear_program import linear_program

if TYPE_CHECKING:
    from placeopt.period.contracted import ContractedProblem

SHIFT = 40
"""Multipliers are rounded to multiples of 2^-SHIFT (relative to the row's own unit)."""


def largest_op(model: ContractedProblem) -> int:
    """Return the bound `op`."""
    return int(model.smallest_times.max())


def pigeonhole(model: ContractedProblem, lower: int) -> int:
    """Return the bound `pigeonhole`, at least `lower`."""
    upper = int(model.smallest_times.sum()) + 1
    # Refutation is monotone: a larger T leaves fewer ops bound to one type and a larger allowance.
    while lower < upper:
        middle = (lower + upper) // 2
        if _refuted(model, middle):
            lower = middle + 1
        else:
            upper = middle
    return lower


def _refuted(model: ContractedProblem, limit: int) -> bool:
    usable = model.allowed & (model.total <= limit)
    if not usable.any(axis=1).all():
        return True
    only = usable.sum(axis=1) == 1
    for g, devices in enumerate(model.types):
        times = np.sort(model.total[only & usable[:, g], g])[::-1]
        count = len(devices)
        running = np.append(0, np.cumsum(times))
        q = np.arange(1, (len(times) - 1) // count + 1)
        last = (
            q * count
        )  # times[last - q .. last] are the q + 1 shortest of the first q * count + 1
        if (running[last + 1] - running[last - q] > limit).any():
            return True
    return False


def area(model: ContractedProblem, seconds: float) -> int:
    """Return the bound in ticks; 0 if the linear program takes longer than `seconds`."""
    program = IntegerProgram()
    scale = max(1.0, float(model.smallest_times.sum()))
    shares = [
        [program.variable(int(fits)) for fits in row] for row in model.allowed.tolist()
    ]  # x[v, g]
    period = program.variable(model.largest_load, unit=scale)
    for row in shares:
        program.row([(1, x) for x in row], 1, equal=True)
    for g, devices in enumerate(model.types):
        load = [(-int(ticks), shares[v][g]) for v, ticks in enumerate(model.total[:, g]) if ticks]
        load += _moves(program, model, g, [row[g] for row in shares])
        program.row([(len(devices), period), *load], 0, unit=scale)
    value = program.least(period, seconds)
    return 0 if value is None else max(0, value)


def _moves(
    program: IntegerProgram, model: ContractedProblem, g: int, share: list[int]
) -> list[tuple[int, int]]:
    """Return the load of transfers into and out of the devices of a type, by the shares of the
    nodes that they have.
    """
    moves = {
        t: (program.variable(1), program.variable(1))
        for t in np.flatnonzero(model.weight[:, g]).tolist()
    }
    for t, c in zip(model.edge_tensor.tolist(), model.consumer.tolist(), strict=True):
        if t in moves:
            u, (into, out) = int(model.producer[t]), moves[t]
            program.row([(1, into), (1, share[u]), (-1, share[c])], 0)
            program.row([(1, out), (1, share[c]), (-1, share[u])], 0)
    return [(-int(model.weight[t, g]), way) for t, pair in moves.items() for way in pair]


@dataclass(eq=False)
class IntegerProgram:
    """An LP with integer data and variables of at least 0, built row by row; `least` solves it and
    certifies the bound.
    """

    high: list[int] = field(default_factory=list)
    unit: list[float] = field(default_factory=list)  # size of one scaled unit of each variable
    terms: list[tuple[int, int, int]] = field(default_factory=list)  # (row, column, entry)
    right: list[int] = field(default_factory=list)
    equal: list[bool] = field(default_factory=list)
    row_unit: list[float] = field(default_factory=list)

    def variable(self, high: int, unit: float = 1.0) -> int:
        """Add a variable and return its index."""
        self.high.append(high)
        self.unit.append(unit)
        return len(self.high) - 1

    def row(
        self, terms: list[tuple[int, int]], right: int, unit: float = 1.0, equal: bool = False
    ) -> None:
        """Add sum of coefficient * variable >= right (or == right); `unit` is the size of its
        numbers.
        """
        index = len(self.right)
        self.terms += [(index, column, coefficient) for coefficient, column in terms]
        self.right.append(right)
        self.equal.append(equal)
        self.row_unit.append(unit)

    def least(self, goal: int, seconds: float) -> int | None:
        """Return a proven lower bound on a variable, rounded up; None if HiGHS gives no multipliers
        in time.
        """
        multipliers = self._multipliers(goal, seconds)
        return None if multipliers is None else self._evaluate(goal, multipliers)

    def _multipliers(self, goal: int, seconds: float) -> list[float] | None:
        from scipy.sparse import coo_array

        unit, row_unit = np.array(self.unit), np.array(self.row_unit)
        rows, columns, entries = np.array(self.terms, np.int64).T
        entries = entries * unit[columns] / row_unit[rows]
        matrix = coo_array((entries, (rows, columns)), shape=(len(row_unit), len(unit))).tocsr()
        right = np.array(self.right, np.float64) / row_unit
        equal = np.array(self.equal)
        cost = np.zeros(len(unit))
        cost[goal] = 1.0
        solution = linear_program(
            cost,
            below=(-matrix[~equal], -right[~equal]),
            equal=(matrix[equal], right[equal]),
            bounds=np.column_stack([np.zeros(len(unit)), np.array(self.high, np.float64) / unit]),
            seconds=max(0.1, seconds),
        )
        if solution.status != 0:
            return None
        scaled = np.zeros(len(right))
        scaled[~equal] = -solution.ineqlin.marginals
        scaled[equal] = solution.eqlin.marginals
        return (scaled * unit[goal] / row_unit).tolist()

    def _evaluate(self, goal: int, multipliers: list[float]) -> int:
        """Evaluate the bound of the module text for given multipliers, exactly, rounded up."""
        # rows in large units (bytes) have tiny multipliers: one common shift that resolves all of
        # them
        smallest = 1.0 / max(self.row_unit)
        shift = SHIFT + max(0, -int(np.floor(np.log2(smallest))))
        one = 1 << shift
        exact = [
            _times_power(value if equal else max(value, 0.0), shift)
            for value, equal in zip(multipliers, self.equal, strict=True)
        ]
        reduced = [0] * len(self.high)
        reduced[goal] = one
        for row, column, entry in self.terms:
            reduced[column] -= exact[row] * entry
        total = sum(y * b for y, b in zip(exact, self.right, strict=True))
        total += sum(min(0, slope) * high for slope, high in zip(reduced, self.high, strict=True))
        return -(-total // one)


def _times_power(value: float, shift: int) -> int:
    """Return round(value * 2^shift) as an exact integer."""
    numerator, denominator = float(value).as_integer_ratio()
    return (numerator << shift) // denominator
