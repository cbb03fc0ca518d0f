"""Derive a contradiction from a supposition: propagation until nothing changes, then cases.

The tree of cases is a proof without a search to believe: each case adds that two ops share a device
or not, that one runs before the other there, or which class of devices an op is on; each leaf is
closed by a step that a checker can follow.

References
----------
R. Klein, A. Scholl, "Computing lower bounds by destructive improvement: an application to
resource-constrained project scheduling", European Journal of Operational Research 112(2), 1999.
J. Carlier, E. Pinson, "An algorithm for solving the job-shop problem", Management Science 35(2),
1989 (branching on the order of two ops).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from placeopt.makespan.proof.steps import (
    Columns,
    Lemma,
    clique,
    critical_ops,
    late_and_early,
    overfull_window,
    pigeonhole,
    sweep,
)
from placeopt.makespan.proof.supposition import INFINITE, Supposition
from placeopt.model.arrays import Ints
from placeopt.model.bound import Step

Choice = tuple["Ints", "Ints"]
"""Weights of the classes of devices, and prices of their bytes."""

T = TypeVar("T")


class OutOfReachError(Exception):
    """The proof would take more cases or more time than allowed, or there is none."""


@dataclass(eq=False)
class Effort:
    """How far a derivation may go.

    Attributes
    ----------
    cases : most cases in all. end : in seconds of `time.perf_counter`.
    choices : weights of classes for windows of work; those of the first two serve lemmas, too.
    goals : heads and tails of a state by op and class, found faster elsewhere: only what they
    promise is looked for.
    rounds : of propagation before cases are tried.
    spent : cases so far.
    """

    cases: int
    end: float
    choices: Sequence[Choice]
    goals: Callable[[Supposition], tuple[Ints, Ints]] | None = None
    rounds: int = 12
    spent: int = 0

    def sweep(self, state: Supposition, *, backwards: bool, goal: Ints | None) -> list[Lemma]:
        """Raise the heads (or tails) of all ops and return the lemmas that it took."""
        weights = [weights for weights, _ in self.choices[:2] if np.ptp(weights)]
        return sweep(state, backwards=backwards, goal=goal, weights=weights, end=self.end)

    def spend(self) -> None:
        """Count a case.

        Raises
        ------
        OutOfReachError
            If it is one too many, or the time is over.
        """
        self.spent += 1
        if self.spent > self.cases or time.perf_counter() > self.end:
            raise OutOfReachError

    def timed(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items while there is time.

        Raises
        ------
        OutOfReachError
            If the time is over.
        """
        for item in items:
            if time.perf_counter() > self.end:
                raise OutOfReachError
            yield item


def derive(state: Supposition, effort: Effort) -> list[Step]:
    """Return steps that end in a contradiction.

    Raises
    ------
    OutOfReachError
        If the effort does not suffice.
    """
    effort.spend()
    steps: list[Step] = []
    if state.closed or propagate(state, effort, steps):
        return steps
    kind, u, v = _branch(state)
    cases = []
    for supposed in (True, False):
        case = state.child()
        if kind == "share":
            case.join(u, v) if supposed else case.separate(u, v)
        elif kind == "order":
            case.precede(u, v) if supposed else case.precede(v, u)
        else:
            case.narrow(u, [v] if supposed else [c for c in case.classes(u) if c != v])
        cases.append(derive(case, effort))
    return [*steps, ["branch", kind, u, v, *cases]]


def propagate(state: Supposition, effort: Effort, steps: list[Step]) -> bool:
    """Add steps that follow without cases until nothing changes; return whether they close the
    supposition.
    """
    step = clique(state)
    if step is not None:
        steps.append(step)
        return True
    for _ in effort.timed(range(effort.rounds)):
        before = [list(map(list, table)) for table in (state.head, state.tail, state.time)]
        goals = effort.goals(state) if effort.goals else (None, None)
        for backwards, goal in enumerate(goals):
            lemmas = effort.sweep(state, backwards=bool(backwards), goal=goal)
            steps.append(["sweep", backwards, lemmas])
            if state.closed:
                return True
        if (
            _share(state, effort, steps)
            or _crowded(state, effort, steps)
            or _separate(state, effort, steps)
            or _close(state, effort, steps)
        ):
            return True
        if before == [state.head, state.tail, state.time]:
            break
    return False


def _close(state: Supposition, effort: Effort, steps: list[Step]) -> bool:
    """Look for a step that closes the supposition as it is."""
    columns = Columns(state)
    step = (
        pigeonhole(columns)
        or late_and_early(columns)
        or overfull_window(columns, effort.choices, until=effort.end)
    )
    if step is not None:
        steps.append(step)
        state.closed = True
    return step is not None


def _share(state: Supposition, effort: Effort, steps: list[Step]) -> bool:
    """Add which ops must share a device; return whether that is a contradiction."""
    for u, v in effort.timed(_undecided(state)):
        if state.must_share(u, v):
            steps.append(["same", u, v])
            state.join(u, v)
            if state.closed:
                return True
    return False


def _crowded(state: Supposition, effort: Effort, steps: list[Step]) -> bool:
    """Whether ops that share a device are too much for it, which is added."""
    for members in effort.timed({id(x): x for x in state.group}.values()):
        if len(members) > 1 and (ops := critical_ops(state, members)) is not None:
            steps.append(["apart", members[0], members[1], ops])
            state.closed = True
            return True
    return False


def _separate(state: Supposition, effort: Effort, steps: list[Step]) -> bool:
    """Add which ops cannot share a device; return whether that is a contradiction."""
    for u, v in effort.timed(_undecided(state)):
        if (state.group[u][0], state.group[v][0]) in state.splits():
            continue
        ops = critical_ops(state, state.group[u] + state.group[v])
        if ops is not None:
            steps.append(["apart", u, v, ops])
            state.separate(u, v)
            if state.closed:
                return True
    return False


def _undecided(state: Supposition) -> Iterator[tuple[int, int]]:
    """Yield pairs of ops joined by an edge whose ends may share a device or not."""
    for (u, v), (free, pay) in list(state.edges.items()):
        if state.group[u] is not state.group[v] and free < pay:
            yield u, v


def _branch(state: Supposition) -> tuple[str, int, int]:
    """Return the two cases to tell apart next: (kind, op, op or class).

    Raises
    ------
    OutOfReachError
        If everything is decided: then a schedule exists, or a step is missing.
    """
    undecided = sorted(_undecided(state), key=lambda pair: -_slip(state, *pair))
    if undecided:
        return "share", *undecided[0]
    mixed = [v for v in range(state.problem.num_ops) if len(state.classes(v)) > 1]
    if mixed:
        v = max(mixed, key=state.fastest)
        return "class", v, min(state.classes(v), key=lambda c: state.time[v][c] or 0)
    for u, v in _groups_to_join(state):
        return "share", u, v
    order = _unordered(state)
    if order:
        return "order", *max(
            order, key=lambda pair: state.fastest(pair[0]) + state.fastest(pair[1])
        )
    raise OutOfReachError


def _groups_to_join(state: Supposition) -> Iterator[tuple[int, int]]:
    """Yield groups that may share a device or not, by their first ops, those with most work
    first.
    """
    split = state.splits()
    firsts = sorted(
        {members[0] for members in state.group},
        key=lambda v: -sum(map(state.fastest, state.group[v])),
    )
    for i, u in enumerate(firsts):
        for v in firsts[:i]:
            if (u, v) not in split and set(state.classes(u)) & set(state.classes(v)):
                yield v, u


def _unordered(state: Supposition) -> list[tuple[int, int]]:
    """Return the pairs of ops on one device of which neither comes after the other."""
    reach, n = _reachable(state), state.problem.num_ops
    together = [(u, v) for u in range(n) for v in range(u) if state.group[u] is state.group[v]]
    return [(u, v) for u, v in together if not (reach[u] >> v | reach[v] >> u) & 1]


def _slip(state: Supposition, u: int, v: int) -> float:
    """By how much paying an edge delays its end."""
    pay = state.edges[u, v][1]
    late = state.least(state.head, u) + state.fastest(u) + pay - state.least(state.head, v)
    return 2.0**60 if pay == INFINITE else late


def _reachable(state: Supposition) -> list[int]:
    """Return, per op, the ops after it as bits."""
    found = [0] * state.problem.num_ops
    into = state.neighbours(backwards=True)
    for u in reversed(state.order):
        for v, _, _ in into.get(u, ()):
            found[u] |= found[v] | 1 << v
    return found
