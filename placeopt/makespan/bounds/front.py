"""Front: how much work fits into the first t ticks of any schedule, and into the last s.

Proof. Give class D of devices the weight y_D >= 0 and op v the energy w_v = min_D y_D p[v, D]; a
device of class D delivers at most y_D per tick, all devices together at most Y = sum_D s_D y_D. Let
W(t) be the most energy that any schedule delivers before t, and W'(s) the most that any delivers in
its last s ticks. In a schedule of length T >= t + s what is left has to fit into the middle, so

    T >= t + s + ceil((sum_v w_v - W(t) - W'(s)) / Y).

W(t) is the maximum of a small scheduling problem: only ops whose head is below t can start before
t, an op that does counts with the part before t, and nothing after t matters. CP-SAT bounds it for
growing t, first as a maximum, then by asking whether so much energy can be reached (its upper bound
is enough for the proof); W'(s) is the same problem on the reversed graph with tails for heads.
Precedence, transfers between different devices and one op at a time per device are kept;
contention, memory and the choice of links are relaxed. At the start of a schedule devices wait for
the first results to arrive: this is where the bounds by heads alone lose most.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from placeopt.makespan.bounds.energy import class_energy
from placeopt.makespan.bounds.relaxation import INFINITE, Relaxation, fastest_ticks, weight_choices
from placeopt.model.arrays import Ints, by_key
from placeopt.model.cp_sat import cp_solver, solve_interruptibly

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortools.sat.python import cp_model

    from placeopt.makespan.bounds.segment_graph import Evidence

LARGEST_TIME = 2**40


@dataclass(frozen=True)
class Patience:
    """How long one front is tried.

    Attributes
    ----------
    seconds : first limit for one front: with less the search does not begin. About the first piece
    of other tactics, which begin anew as well: a front that is left open is tried again for longer,
    so a short beginning costs half of the first limit that suffices, and a long one keeps the bound
    from having a turn at all.
    growth : how many times as long each later round has.
    """

    seconds: float = 0.1
    growth: float = 3.0


@dataclass(frozen=True)
class Windows:
    """Which windows are tried from one side, and what is asked about each.

    Attributes
    ----------
    first, last : the least and the longest one, as shares of the known bound.
    growth : of the next one, over the last.
    fine : where the first one not solved is at most so many times the last one solved, none is
    tried between them.
    most_ops : of one front beyond which it is not tried.
    failures : windows that may take too long before a round ends.
    close : part of a window's ticks and devices below which its maximum is known well enough.
    look, question : shares of the time for the maximum itself, and for one question of the
    bisection.
    """

    first: float = 0.05
    last: float = 0.7
    growth: float = 1.3
    fine: float = 1.06
    most_ops: int = 160
    failures: int = 2
    close: int = 5000
    look: float = 0.3
    question: float = 0.25


class FrontProof(NamedTuple):
    """What proves a bound by fronts: the most energy of a first and of a last window, with the
    weights of the classes.
    """

    bound: int
    weights: tuple[int, ...]
    first: tuple[int, int]  # ticks, energy
    last: tuple[int, int]


def front_bound(evidence: Evidence, end: float) -> int:
    """Return the best bound by fronts found until `end` (`time.perf_counter`), at least `known` (a
    bound in ticks).
    """
    found = front_proof(evidence, end)
    return evidence.known if found is None else found.bound


def front_proof(evidence: Evidence, end: float) -> FrontProof | None:
    """Return the best bound by fronts with what proves it, None if none is above what is known."""
    return FrontSearch(evidence).run(end, evidence.known, evidence.upper)


class FrontSearch:
    """The bound by fronts in one run or several, each of which goes on where the last one ended."""

    patience = Patience()

    def __init__(self, evidence: Evidence, num_workers: int = 2) -> None:
        relaxation, heads = evidence.relaxation, evidence.heads
        self._pairs = [
            tuple(
                Fronts(relaxation, head, choice, backwards=backwards, num_workers=num_workers)
                for head, backwards in ((heads.head, False), (heads.tail, True))
            )
            for choice in weight_choices(relaxation, evidence.weights)
            if relaxation.problem.num_devices > 1
        ]
        self._limit = self.patience.seconds  # for one front
        self.proof: FrontProof | None = None

    def run(
        self,
        end: float,
        known: int,
        upper: int | None = None,
        go_on: Callable[[int], bool] = lambda _: True,
    ) -> FrontProof | None:
        """Return what proves the best bound found until `end` (`time.perf_counter`); None if none
        is above `known`.

        Parameters
        ----------
        known : a bound, ticks. upper : value of a known solution, at which the search ends.
        go_on : told the best bound before every window, says whether to try it.
        """
        seconds, patience = end - time.perf_counter(), self.patience
        if not 1 <= known <= LARGEST_TIME or seconds < patience.seconds:
            return None
        best, goal = known, math.inf if upper is None else upper
        limit = min(self._limit, max(patience.seconds, seconds / patience.growth))
        # rounds, each with more time for a window, until none is left open or the bound is met
        while limit <= seconds and time.perf_counter() < end and go_on(best):
            for pair in self._pairs:
                best = self._round(pair, limit, end, best, goal, go_on)
            complete = all(side.failed is None for pair in self._pairs for side in pair)
            if complete or best >= goal:
                break
            if time.perf_counter() < end:
                self._limit = limit = patience.growth * limit
        return self.proof if self.proof is not None and self.proof.bound > known else None

    def _round(
        self,
        pair: tuple[Fronts, ...],
        limit: float,
        end: float,
        known: int,
        goal: float,
        go_on: Callable[[int], bool],
    ) -> int:
        """Try windows for `limit` seconds each, from both ends by turns, and return the best
        bound.
        """
        total = int(pair[0].energy.sum())
        for side in pair:
            side.failed, side.failures = None, 0
        tried = True
        while tried and time.perf_counter() < end and known < goal:
            tried = False
            for side in pair:
                left = end - time.perf_counter()
                window = side.next_window(known)
                if window is None or left <= 0 or not go_on(known):
                    continue
                tried = True
                side.extend(window, min(left, limit))
                better = _combine(pair[0], pair[1], total, known)
                if better is not None:
                    known, self.proof = better.bound, better
        return known


def _combine(first: Fronts, last: Fronts, total: int, known: int) -> FrontProof | None:
    """Best pair of windows that cannot overlap, as no schedule is shorter than `known`; None if
    none gives more.
    """
    best, proof = known, None
    weights = tuple(first.weights.tolist())
    for front, back in product(first.most.items(), last.most.items()):
        (t, before), (s, after) = front, back
        if t + s <= best:
            bound = t + s + -(-max(0, total - before - after) // first.width)
            if bound > best:
                best, proof = bound, FrontProof(bound, weights, front, back)
    return proof


class Fronts:
    """The fronts of one direction: W for growing windows.

    Parameters
    ----------
    head : earliest start of every op in this direction, per class.
    """

    windows = Windows()

    def __init__(
        self,
        relaxation: Relaxation,
        head: Ints,
        weights: Ints,
        *,
        backwards: bool,
        num_workers: int,
    ) -> None:
        r = self.relaxation = relaxation
        self.head, self.weights, self.num_workers = head, weights, num_workers
        self.energy = class_energy(r.compute, weights)
        self.width = int((r.class_size * weights).sum())
        self.source, self.target = (r.target, r.source) if backwards else (r.source, r.target)
        order = r.problem.topological_order
        self.order = order[::-1] if backwards else order
        self.earliest = fastest_ticks(head)  # start on any class
        self.most: dict[int, int] = {0: 0}  # window -> energy
        self.solved = 0  # largest window whose maximum is known
        self.failed: int | None = None  # smallest window that took too long
        self.failures = 0  # windows that did, in this round

    def next_window(self, known: int) -> int | None:
        """The window to try next: ever larger ones, then between the last one solved and the first
        one not.
        """
        windows = self.windows
        if self.failed is None:
            window = max(int(windows.first * known), int(self.solved * windows.growth)) + 1
            return window if window <= windows.last * known else None
        wide = self.failures < windows.failures and self.failed > self.solved * windows.fine + 1
        return (self.solved + self.failed) // 2 if wide else None

    def extend(self, window: int, seconds: float) -> None:
        """Bound the energy of one window within about `seconds`."""
        before = max(w for w in self.most if w < window)
        known = self.most[before] + (window - before) * self.width
        known = min(known, self.most.get(window, known))
        candidates = self.order[self.earliest[self.order] < window].tolist()
        exact = False
        if len(candidates) <= self.windows.most_ops:
            energy, exact = self._maximum(candidates, window, known, seconds)
            self.most[window] = min(known, energy)
        if exact:
            self.solved = max(self.solved, window)
        else:
            self.failed, self.failures = window, self.failures + 1

    def _maximum(
        self, candidates: list[int], window: int, known: int, seconds: float
    ) -> tuple[int, bool]:
        """Return the best bound on the energy of a window found, and whether some schedule (nearly)
        reaches it.

        After a first look at the maximum itself CP-SAT is asked, by bisection, whether a schedule
        of at least so much energy exists: that is refuted where its own bound on the maximum hardly
        moves.
        """
        end = time.perf_counter() + seconds
        model = FrontModel(self, candidates, window, known)
        reached, known = model.maximum(self.windows.look * seconds)
        doubtful = reached  # least energy that may be out of reach: a question below it stays open
        close = window * self.width // self.windows.close
        while known - doubtful > close and (left := end - time.perf_counter()) > 0:
            target = doubtful + -(-(known - doubtful) // 2)
            found = model.reaches(target, min(left, self.windows.question * seconds))
            if found is False:
                known = target - 1
            else:
                reached = max(reached, found or 0)
                doubtful = max(target, reached)
        return known, known - reached <= close


@dataclass(eq=False)
class FrontModel:
    """The model of one window for CP-SAT: which ops run in it, where and from when.

    Devices of a class are interchangeable: the i-th op uses one of the first i. So are twins, ops
    that cost the same and hang on the same ops: they run in the order of their numbers.
    """

    front: Fronts
    candidates: list[int]
    window: int
    known: int

    def __post_init__(self) -> None:
        from ortools.sat.python import cp_model

        self.cp = cp_model.CpModel()
        self.runs: dict[int, dict[int, cp_model.IntVar]] = {}  # by op and device
        self.active: dict[int, cp_model.IntVar] = {}
        self.start: dict[int, cp_model.IntVar] = {}
        self.gained: list[cp_model.IntVar] = []
        self._place()
        self._order()
        self._share_classes()
        self._order_twins()
        self.cp.add(sum(self.gained) <= self.known)

    def maximum(self, seconds: float) -> tuple[int, int]:
        """Return the energy of the best schedule found and a bound on that of all schedules."""
        from ortools.sat.python import cp_model

        model = self.cp.clone()
        model.maximize(sum(self.gained))
        solver = cp_solver(workers=self.front.num_workers, seconds=seconds)
        if solve_interruptibly(solver, model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return 0, self.known
        # in whole numbers: CP-SAT minimises the negative, and a float rounds what passes 2^53
        most = -int(solver.response_proto.inner_objective_lower_bound)
        self.known = min(self.known, most)
        return sum(solver.value(x) for x in self.gained), self.known

    def reaches(self, energy: int, seconds: float) -> int | bool | None:
        """Return the energy of a schedule of at least `energy`, False if there is none, None if
        that stays open.
        """
        from ortools.sat.python import cp_model

        model = self.cp.clone()
        model.add(sum(self.gained) >= energy)
        solver = cp_solver(workers=self.front.num_workers, seconds=seconds, linearization_level=2)
        status = solve_interruptibly(solver, model)
        if status == cp_model.INFEASIBLE:
            return False
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return sum(solver.value(x) for x in self.gained)

    def _place(self) -> None:
        """At most one device runs an op, from its head on; what is before the end of the window
        counts.
        """
        front, model, window = self.front, self.cp, self.window
        r, head = front.relaxation, front.head
        on_device: list[list[cp_model.IntervalVar]] = [[] for _ in r.class_of]
        for i, v in enumerate(self.candidates):
            active = self.active[v] = model.new_bool_var(f"a{v}")
            start = self.start[v] = model.new_int_var(int(head[v].min()), window, f"s{v}")
            gain = model.new_int_var(0, int(front.energy[v]), f"g{v}")
            self.gained.append(gain)
            model.add(gain == 0).only_enforce_if(~active)
            runs = self.runs[v] = {}
            seen = [0] * r.compute.shape[1]
            for d, c in enumerate(r.class_of.tolist()):
                seen[c] += 1
                ticks = int(r.compute[v, c])
                if ticks < 0 or head[v, c] >= window or seen[c] > i + 1:
                    continue
                here = runs[d] = model.new_bool_var(f"x{v}_{d}")
                on_device[d].append(
                    model.new_optional_fixed_size_interval_var(start, ticks, here, f"i{v}_{d}")
                )
                model.add(start >= int(head[v, c])).only_enforce_if(here)
                model.add(gain <= int(front.weights[c]) * (window - start)).only_enforce_if(here)
            model.add(sum(runs.values()) == active)
        for intervals in on_device:
            model.add_no_overlap(intervals)

    def _order(self) -> None:
        """An op follows its predecessors, and their transfers where it is on another device."""
        r, model = self.front.relaxation, self.cp
        runs, active, start = self.runs, self.active, self.start
        for u, v, pay, free in self._edges():
            if u not in active:
                model.add(active[v] == 0)
                continue
            model.add_implication(active[v], active[u])
            lasts: int | cp_model.LinearExprT = int(r.compute[u, 0])
            if r.compute.shape[1] > 1:
                lasts = sum(int(r.compute[u, r.class_of[d]]) * x for d, x in runs[u].items())
            model.add(start[v] >= start[u] + lasts + free).only_enforce_if(active[v])
            if pay == free:
                continue
            same = model.new_bool_var(f"same{u}_{v}")
            for d, y in runs[v].items():
                model.add_bool_or([~same, ~y, *([runs[u][d]] if d in runs[u] else [])])
            if pay >= INFINITE:
                model.add_implication(active[v], same)
            else:
                model.add(start[v] >= start[u] + lasts + pay).only_enforce_if([active[v], ~same])

    def _edges(self) -> list[tuple[int, int, int, int]]:
        """Edges into candidates: predecessor, op, ticks between different devices and between
        any.
        """
        front, r = self.front, self.front.relaxation
        columns = (front.source, front.target, r.pay, r.free)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [row for row in rows if row[1] in self.active]

    def _share_classes(self) -> None:
        """No more ops run at a time than a class has devices: implied, and what the linear
        relaxation sees.
        """
        r, model = self.front.relaxation, self.cp
        for c, size in enumerate(r.class_size.tolist()):
            if size == 1:
                continue  # its ops do not overlap already
            intervals = []
            for v in self.candidates:
                here = [x for d, x in self.runs[v].items() if r.class_of[d] == c]
                if not here:
                    continue
                present = model.new_bool_var(f"c{v}_{c}")
                model.add(sum(here) == present)
                ticks = int(r.compute[v, c])
                intervals.append(
                    model.new_optional_fixed_size_interval_var(
                        self.start[v], ticks, present, f"c{v}_{c}"
                    )
                )
            if len(intervals) > size:
                model.add_cumulative(intervals, [1] * len(intervals), size)

    def _order_twins(self) -> None:
        """Of interchangeable ops the first runs first, and none runs without those before it."""
        for u, v in self.twins():
            self.cp.add_implication(self.active[v], self.active[u])
            self.cp.add(self.start[u] <= self.start[v]).only_enforce_if(self.active[v])

    def twins(self) -> list[tuple[int, int]]:
        """Return pairs of candidates that a schedule may swap, each op with the next one of its
        kind.
        """
        compute, head = self.front.relaxation.compute, self.front.head
        edges = self._edges()
        before = by_key((v, (u, pay, free)) for u, v, pay, free in edges)
        after = by_key((u, (v, pay, free)) for u, v, pay, free in edges)
        pairs: list[tuple[int, int]] = []
        last: dict[tuple[Any, ...], int] = {}
        for v in self.candidates:
            key = (
                *compute[v].tolist(),
                *head[v].tolist(),
                *sorted(before.get(v, ())),
                None,
                *sorted(after.get(v, ())),
            )
            if key in last:
                pairs.append((last[key], v))
            last[key] = v
        return pairs
