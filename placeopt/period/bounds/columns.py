"""Lower bound on the period by prices and one device at a time (`columns`).

Suppose some placement has period at most T. Give every node v a price p_v >= 0. Each device of type
g holds a set S with load_g(S) <= T, so with C_g = max { p(S) : load_g(S) <= T } the devices hold at
most sum_g n_g C_g of the total price. If that is less than sum_v p_v, T is refuted. Dual prices of
a covering program over the sets found so far (column generation) make the argument as strong as the
set-partition relaxation, which sees transfers that any assignment relaxation spreads away: in
fractions of a placement a k-th of everything sits on every device and nothing moves.

The same flaw sits in C_g: the relaxation of "price subject to load <= T" takes a fraction of the
whole graph. It is cured by a root: some node of S has the largest price in S. With that node fixed
in and all dearer ones out the relaxation is tight, and most roots need one linear program. Only
sets above the threshold (sum p - others) / n_g matter, so every subproblem is a yes-or-no question.

Where the sets of a device are paths through a small graph (graphs of neural networks are long and
thin), column generation is exact and much faster: see `placeopt.period.bounds.covering`. What
follows is for the others, and for tight memory.

The linear and integer programs are solved in floating point, with every threshold lowered by 1e-5
of its value and every limit raised by as much; they only say which prices to try. What they refute
counts once CP-SAT has refuted it with integer prices, without a margin.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.linear_program import integer_program, linear_program
from placeopt.period.bounds.covering import knapsack
from placeopt.period.bounds.set_prices import OutOfTimeError, UndecidedError

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from placeopt.model.arrays import Flags, Floats
    from placeopt.period.contracted import ContractedProblem

_MARGIN = 1e-5
_INTEGER_PRICES = 10**9


@dataclass(frozen=True)
class Effort:
    """How much is done for a bound.

    Attributes
    ----------
    most_nodes : of a model that is tried at all.
    parts : the bisection with uniform prices ends at this part of the first interval.
    fine : and that with column generation at this relative width.
    rounds : of column generation, for a limit.
    smoothing : share of the dual prices in a mixture with uniform ones.
    direct_seconds, root_seconds : of a subproblem without a root, and with one.
    least_seconds : shorter limits are not worth a call.
    close : relative gap below which CP-SAT tries to finish the proof.
    """

    most_nodes: int = 1500
    parts: int = 24
    fine: float = 2e-5
    rounds: int = 60
    smoothing: float = 0.5
    direct_seconds: float = 6.0
    root_seconds: float = 10.0
    least_seconds: float = 0.01
    close: float = 1e-3


@dataclass
class _Subproblem:
    """Sets of one device type: binary membership, one variable per transfer, one load row (the
    last).
    """

    matrix: Any
    width: int
    load: Floats  # (width,) ticks of every variable
    fits: Floats  # (N,) 1 where the node may be in a set
    resident: Floats | None


@dataclass
class ColumnBound:
    """Refutes periods of one model; keeps the sets it finds between calls.

    Attributes
    ----------
    deadline : when it gives up (`time.perf_counter`). unfinished : whether time was short.
    """

    effort: ClassVar[Effort] = Effort()

    model: ContractedProblem
    deadline: float
    sets: list[tuple[int, Flags]] = field(default_factory=list)
    unfinished: bool = False

    def __post_init__(self) -> None:
        self._problems = [_subproblem(self.model, g) for g in range(self.model.num_types)]
        self._loads: list[float] = []
        self._exact = False  # integers and CP-SAT instead of margins and HiGHS
        self._direct = True  # ask without a root first, until that takes too long once

    def raise_from(self, lower: int, upper: int) -> int:
        """Return the largest bound up to `upper` (ticks) proved before the deadline, at least
        `lower`.
        """
        self.unfinished, self._exact, effort = False, False, self.effort
        if not 2 <= self.model.num_nodes <= effort.most_nodes:
            return lower
        uniform = self._uniform()
        try:
            # Uniform prices first: they need one pass, and bisection soon finds how far they reach.
            high = min(upper, int(lower * 1.5) + 1)
            coarse = max(1, (high - lower) // effort.parts)
            while high - lower > coarse:
                middle = (lower + high + 1) // 2
                if self._refutes(middle - 1, uniform, 0):
                    lower = middle
                else:
                    high = middle - 1
            # Then column generation, with all sets found so far.
            high, middle = upper, lower + (upper - lower + 3) // 4
            while high - lower > max(1, int(lower * effort.fine)):
                if self._refutes(middle - 1, uniform, effort.rounds):
                    lower = middle
                else:
                    high = middle - 1
                middle = (lower + high + 1) // 2
            if 0 < upper - lower <= int(upper * effort.close):
                self._exact = True
                if self._refutes(upper - 1, uniform, effort.rounds):
                    lower = upper
        except OutOfTimeError:  # or a program that failed, which another turn would do as well
            self.unfinished = time.perf_counter() >= self.deadline - effort.least_seconds
        return lower

    def _uniform(self) -> Floats:
        """Prices of nodes by their times; all alike where no node needs any time."""
        times = self.model.smallest_times.astype(np.float64)
        return times / times.sum() if times.any() else np.full(len(times), 1 / len(times))

    def _refutes(self, limit: int, uniform: Floats, rounds: int) -> bool:
        """Whether no placement has a period of at most `limit` ticks, tried with 1 + `rounds` price
        vectors.
        """
        prices = uniform if rounds == 0 else self._prices(limit, uniform)
        for _ in range(rounds + 1):
            if prices is None:
                return False
            try:
                answer = self._prices_refute(limit, prices)
            except UndecidedError:
                return False
            if answer is None:
                return True
            self._add(*answer)
            if rounds:
                prices = self._prices(limit, uniform)
        return False

    def _add(self, g: int, members: Flags) -> None:
        self.sets.append((g, members))
        self._loads.append(_load(self.model, g, members))

    def _prices(self, limit: int, uniform: Floats) -> Floats | None:
        """Dual prices of covering the nodes by known sets; None if they cover (T cannot be
        refuted).
        """
        n, num_types = self.model.num_nodes, self.model.num_types
        loads = zip(self.sets, self._loads, strict=True)
        usable = [found for found, load in loads if load <= limit * (1 + _MARGIN)]
        cover = np.zeros((n, len(usable)))
        budget = np.zeros((num_types, len(usable)))
        for column, (g, members) in enumerate(usable):
            cover[:, column] = members
            budget[g, column] = 1.0
        cost = np.concatenate([np.zeros(len(usable)), uniform])
        matrix = np.vstack(
            [np.hstack([-cover, -np.eye(n)]), np.hstack([budget, np.zeros((num_types, n))])]
        )
        right = np.concatenate([-np.ones(n), self.model.type_counts.astype(np.float64)])
        answer = linear_program(cost, below=(matrix, right))
        if answer.status != 0 or answer.fun <= 1e-7:
            return None
        prices = np.maximum(0.0, -answer.ineqlin.marginals[:n])
        total = prices.sum()
        if total <= 0:
            return None
        share = self.effort.smoothing
        mixed: Floats = share * prices / total + (1 - share) * uniform
        if self.sets and self._finds_again(mixed, limit):
            mixed = prices / total  # the smoothed prices would only find the last set again
        return mixed

    def _finds_again(self, prices: Floats, limit: int) -> bool:
        """Whether the last set already exceeds the threshold of `prices`."""
        caps = [self._cap(g, prices, limit) for g in range(self.model.num_types)]
        g, members = self.sets[-1]
        worth = float(prices[members].sum())
        return self._loads[-1] <= limit and worth > self._threshold(g, prices, caps)

    def _cap(self, g: int, prices: Floats, limit: int) -> float:
        """Upper bound on the price of a set of type g: the fractional knapsack without
        transfers.
        """
        fits = self._problems[g].fits * (self.model.total[:, g] <= limit)
        time = self.model.total[:, g].astype(np.float64)
        free = prices[(time == 0) & (fits > 0)].sum()
        at = np.flatnonzero((time > 0) & (fits > 0))
        at = at[np.argsort(-prices[at] / time[at], kind="stable")]
        before = np.append(0, np.cumsum(time[at]))
        share = np.clip((limit - before[:-1]) / time[at], 0.0, 1.0)
        return float(free + (prices[at] * share).sum())

    def _threshold(self, g: int, prices: Floats, caps: list[float]) -> float:
        counts = self.model.type_counts
        others = sum(float(counts[h]) * caps[h] for h in range(len(caps)) if h != g)
        return (float(prices.sum()) * (1 - _MARGIN) - others) / float(counts[g])

    def _prices_refute(self, limit: int, prices: Floats) -> tuple[int, Flags] | None:
        """Return None if `prices` refute the limit, else a set above the threshold (or the best
        one).
        """
        caps = [self._cap(g, prices, limit) for g in range(self.model.num_types)]
        # One type is examined exactly, the most numerous paying one; the others keep their knapsack
        # caps.
        paying = [g for g in range(len(caps)) if self.model.weight[:, g].any()] or [0]
        g = max(paying, key=lambda h: (float(self.model.type_counts[h]) * caps[h], -h))
        threshold = self._threshold(g, prices, caps)
        found = None
        if not self._exact and threshold <= caps[g]:
            # At a threshold of 0 or less even the empty set is dear enough: these prices refute
            # nothing.
            least = _MARGIN * float(prices.sum())
            found = self._above(g, limit, prices, max(threshold, least))
            if found is None and threshold < least:
                raise UndecidedError
        if found is None:  # so far a claim of floating-point arithmetic at most
            found = self._exactly_above(g, limit, prices)
        return None if found is None else (g, found)

    def _exactly_above(self, g: int, limit: int, prices: Floats) -> Flags | None:
        """Find by CP-SAT a set of type g within `limit` that keeps integer prices from refuting
        it.
        """
        from ortools.sat.python import cp_model

        model, counts = self.model, self.model.type_counts
        price = np.floor(prices / prices.sum() * _INTEGER_PRICES).astype(np.int64)
        others = sum(knapsack(model, h, price, limit) for h in range(model.num_types) if h != g)
        cp = cp_model.CpModel()
        usable = model.allowed[:, g] & (model.total[:, g] <= limit)
        x = [cp.new_bool_var("") if fits else cp.new_constant(0) for fits in usable.tolist()]
        self._limit_load(cp, x, g, limit)
        self._limit_bytes(cp, x, g)
        worth = sum(int(price[v]) * x[v] for v in range(model.num_nodes) if price[v])
        cp.add(int(counts[g]) * worth >= int(price.sum()) - others)
        cp.maximize(worth)
        solver = cp_solver(
            workers=1,
            seconds=min(2 * self.effort.root_seconds, self._left()),
            relative_gap_limit=0.02,
            linearization_level=2,
        )
        code = solve_interruptibly(solver, cp)
        if code == cp_model.INFEASIBLE:
            return None
        if code not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            raise UndecidedError
        return np.array([bool(solver.value(var)) for var in x])

    def _limit_load(
        self, cp: cp_model.CpModel, x: list[cp_model.IntVar], g: int, limit: int
    ) -> None:
        """The times of a set and the tensors that cross its border take at most `limit` ticks."""
        model = self.model
        terms = [int(model.total[v, g]) * x[v] for v in range(model.num_nodes) if model.total[v, g]]
        for t in np.flatnonzero(model.weight[:, g]).tolist():
            ticks, u = int(model.weight[t, g]), x[int(model.producer[t])]
            readers = model.readers(t)
            into, out = cp.new_bool_var(""), cp.new_bool_var("")
            terms.append(ticks * into)
            if len(readers) > 1:
                terms.append(ticks * out)
            else:
                out = into
            for c in readers:
                cp.add_bool_or([x[c].negated(), u, into])
                cp.add_bool_or([u.negated(), x[c], out])
        cp.add(sum(terms) <= limit)

    def _limit_bytes(self, cp: cp_model.CpModel, x: list[cp_model.IntVar], g: int) -> None:
        """A set fits into the memory of a device, where not all nodes do."""
        resident, capacity = self.model.resident, int(self.model.capacity[g])
        if resident.sum() > capacity:
            unit = max(1, int(resident.sum()) >> 40)
            cp.add(sum(int(r) // unit * x[v] for v, r in enumerate(resident)) <= capacity // unit)

    def _above(self, g: int, limit: int, prices: Floats, threshold: float) -> Flags | None:
        """Find a set of type g dearer than `threshold` within `limit`; None if there is none."""
        part, effort = self._problems[g], self.effort
        n = self.model.num_nodes
        upper = np.ones(part.width)
        upper[:n] = part.fits * (self.model.total[:, g] <= limit)
        lower = np.zeros(part.width)
        cost, rows = -_pad(prices, part.width), _with_limit(part, limit)
        if self._direct:
            try:
                return self._ask(cost, rows, lower, upper, effort.direct_seconds, threshold)
            except UndecidedError:
                self._left()  # a turn that is over says nothing about longer ones
                self._direct = False
        for root in np.lexsort((np.arange(n), -prices)).tolist():
            if upper[root] == 0.0:
                continue
            if float(prices[upper[:n] > 0].sum()) <= threshold:
                return None
            if self._relaxed(cost, rows, lower, upper) <= threshold:
                return None
            lower[root] = 1.0
            if self._relaxed(cost, rows, lower, upper) > threshold:
                found = self._ask(cost, rows, lower, upper, effort.root_seconds, threshold)
                if found is not None:
                    return found
            lower[root] = upper[root] = 0.0
        return None

    def _relaxed(
        self, cost: Floats, rows: tuple[Any, Floats], lower: Floats, upper: Floats
    ) -> float:
        """Value of the linear relaxation (minus infinity if it is infeasible)."""
        answer = linear_program(
            cost,
            below=rows,
            bounds=np.stack([lower, upper], axis=1),
            seconds=self._left(),
        )
        if answer.status == 2:
            return -np.inf
        if answer.status != 0:
            raise OutOfTimeError
        return float(-answer.fun)

    def _ask(
        self,
        cost: Floats,
        rows: tuple[Any, Floats],
        lower: Floats,
        upper: Floats,
        seconds: float,
        threshold: float,
    ) -> Flags | None:
        """Return a set above the threshold, None if there is none.

        Raises
        ------
        UndecidedError
            If the time was too short.
        """
        from scipy.sparse import csr_matrix, vstack

        n, (matrix, right) = self.model.num_nodes, rows
        scaled = cost * (1.0 / max(threshold, 1e-12))
        integrality = np.zeros(len(cost))
        integrality[:n] = 1
        answer = integer_program(
            scaled,
            integrality,
            [(vstack([matrix, csr_matrix(scaled)]).tocsr(), -np.inf, np.append(right, -1.0))],
            (lower, upper),
            time_limit=min(seconds, self._left()),
            mip_rel_gap=0.01,
        )
        if answer.status == 2:
            return None
        if answer.x is not None:
            return answer.x[:n] > 0.5
        raise UndecidedError if answer.status in (0, 1) else OutOfTimeError

    def _left(self) -> float:
        left = self.deadline - time.perf_counter()
        if left <= self.effort.least_seconds:
            raise OutOfTimeError
        return left


def _pad(values: Floats, width: int) -> Floats:
    return np.pad(values, (0, width - len(values)))


def _load(model: ContractedProblem, g: int, members: Flags) -> float:
    """Ticks of a device of type g that holds `members`."""
    crosses = members[model.producer[model.edge_tensor]] != members[model.consumer]
    cut = np.unique(model.edge_tensor[crosses])
    return float(int(model.total[members, g].sum()) + int(model.weight[cut, g].sum()))


def _subproblem(model: ContractedProblem, g: int) -> _Subproblem:
    from scipy.sparse import coo_matrix

    n = model.num_nodes
    terms: list[tuple[int, int, int]] = []  # (a, b, y): x_a - x_b <= y
    extra: list[float] = []
    for t in np.flatnonzero(model.weight[:, g]).tolist():
        u, readers = int(model.producer[t]), model.readers(t)
        into, out = [(c, u) for c in readers], [(u, c) for c in readers]
        for pairs in [out + into] if len(readers) == 1 else [into, out]:
            terms += [(a, b, n + len(extra)) for a, b in pairs]
            extra.append(float(model.weight[t, g]))
    columns = np.array(terms, np.int64).reshape(-1)
    rows, data = np.repeat(np.arange(len(terms)), 3), np.tile([1.0, -1.0, -1.0], len(terms))
    width = n + len(extra)
    binding = int(model.resident.sum()) > int(model.capacity[g])
    return _Subproblem(
        matrix=coo_matrix((data, (rows, columns)), shape=(len(terms), width)).tocsr(),
        width=width,
        load=np.concatenate([model.total[:, g].astype(np.float64), np.array(extra)]),
        fits=model.allowed[:, g].astype(np.float64),
        resident=model.resident / float(model.capacity[g])
        if binding and model.capacity[g] > 0
        else None,
    )


def _with_limit(part: _Subproblem, limit: int) -> tuple[Any, Floats]:
    """Add the load (and memory) row to the transfer rows."""
    from scipy.sparse import csr_matrix, vstack

    blocks = [part.matrix, csr_matrix(part.load / max(float(limit), 1.0))]
    if part.resident is not None:
        blocks.append(csr_matrix(_pad(part.resident, part.width)))
    right = np.repeat([0.0, 1.0 + _MARGIN], [part.matrix.shape[0], len(blocks) - 1])
    return vstack(blocks).tocsr(), right
