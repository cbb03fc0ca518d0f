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

import time
from typing import TYPE_CHECKING, NamedTuple

from placeopt.makespan.bounds.front_windows import Fronts
from placeopt.makespan.bounds.relaxation import fits, weight_choices

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.makespan.bounds.evidence import Evidence

LARGEST_TIME = 2**40
TRY_SECONDS = 1.5
"""First limit for one front: with less the search does not begin."""

_PATIENCE = 3.0  # how much more each later round has


class FrontProof(NamedTuple):
    """What proves a bound by fronts: the most energy of a first and of a last window, with the
    weights of the classes.
    """

    bound: int
    weights: tuple[int, ...]
    first: tuple[int, int]  # ticks, energy
    last: tuple[int, int]


def front_bound(evidence: Evidence, end: float, num_workers: int = 2) -> int:
    """Return the best bound by fronts found until `end` (`time.perf_counter`), at least `known` (a
    bound in ticks).
    """
    found = front_proof(evidence, end, num_workers)
    return evidence.known if found is None else found.bound


def front_proof(evidence: Evidence, end: float, num_workers: int = 2) -> FrontProof | None:
    """Return the best bound by fronts with what proves it, None if none is above what is known."""
    return FrontSearch(evidence, num_workers).run(end, evidence.known, evidence.upper)


class FrontSearch:
    """The bound by fronts in one run or several, each of which goes on where the last one ended."""

    def __init__(self, evidence: Evidence, num_workers: int = 2) -> None:
        relaxation, heads = evidence.relaxation, evidence.heads
        self._pairs = [
            tuple(
                Fronts(relaxation, head, choice, backwards=backwards, num_workers=num_workers)
                for head, backwards in ((heads.head, False), (heads.tail, True))
            )
            for choice in weight_choices(relaxation, evidence.weights)
            if fits(relaxation, choice) and choice.any() and relaxation.problem.num_devices > 1
        ]
        self._limit = TRY_SECONDS  # for one front
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
        seconds, before = end - time.perf_counter(), known
        if not 1 <= known <= LARGEST_TIME or seconds < TRY_SECONDS:
            return None
        limit = min(self._limit, max(TRY_SECONDS, seconds / _PATIENCE))
        while limit <= seconds and time.perf_counter() < end and go_on(known):
            for pair in self._pairs:
                known = self._round(pair, limit, end, known, upper, go_on)
            complete = all(side.failed is None for pair in self._pairs for side in pair)
            if complete or (upper is not None and known >= upper):
                break
            if time.perf_counter() < end:
                self._limit = limit = _PATIENCE * limit
        return self.proof if self.proof is not None and self.proof.bound > before else None

    def _round(
        self,
        pair: tuple[Fronts, ...],
        limit: float,
        end: float,
        known: int,
        upper: int | None,
        go_on: Callable[[int], bool],
    ) -> int:
        """Try windows for `limit` seconds each, from both ends by turns, and return the best
        bound.
        """
        total = int(pair[0].energy.sum())
        for side in pair:
            side.again()
        tried = True
        while tried and time.perf_counter() < end and (upper is None or known < upper):
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
    for t in first.most:
        for s in last.most:
            if t + s <= best:
                rest = total - first.most[t] - last.most[s]
                bound = t + s + -(-max(0, rest) // first.width)
                if bound > best:
                    weights = tuple(first.weights.tolist())
                    best, proof = (
                        bound,
                        FrontProof(bound, weights, (t, first.most[t]), (s, last.most[s])),
                    )
    return proof
