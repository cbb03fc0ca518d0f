"""Tactics: pieces of a search or of a proof that a scheduler gives time to.

A tactic is a value. What it does is a generator: between two yields it does a bounded piece of
work, offers what it has, and ends when nothing is left for it to do. It knows nothing of shares of
time; `placeopt.solving.scheduler` decides who goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placeopt.model.result import Budget
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

VALUE, BOUND, BOTH = "value", "bound", "both"
"""Sides that a tactic serves: it improves the incumbent, the bound, or both."""

WAITING = "waiting"
"""What `steps` yields where nothing can be done before another tactic has found something: the
tactic gives up its turns in this round."""

FIRST_SECONDS, FIRST_EVALUATIONS = 0.05, 32
"""Length of the first piece of work. The scheduler's argument holds for any; it has to be short
beside the shortest useful limit (a second) and long beside the start of a piece (milliseconds)."""


class State:
    """What a tactic sees of the solve that it is a part of: all of the tracker of its lane, such as
    `problem`, `value`, `solution`, `lower_bound`, `stop`, `offer`, `raise_bound`, and its own.

    Attributes
    ----------
    tracker : of its lane. facts : shared by the tactics of a problem. used : seconds (evaluations,
    where they limit) that the tactic has had. first : length of its first piece. rng : its own
    generator of random numbers. breadth : number of tactics that it stands for, if it gives turns
    to others.
    """

    def __init__(
        self,
        tracker: Tracker[Any],
        facts: Any,
        rng: np.random.Generator,
        threads: Callable[[], int] = lambda: 1,
    ) -> None:
        self.tracker, self.facts, self.rng, self._threads = tracker, facts, rng, threads
        self.breadth = 1.0
        self.used, self.first = (
            0.0,
            float(FIRST_EVALUATIONS if self.by_evaluations else FIRST_SECONDS),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tracker, name)

    @property
    def threads(self) -> int:
        """Cores that this lane has now."""
        return self._threads()

    @property
    def by_evaluations(self) -> bool:
        """Whether evaluations are the limit: then no clock may decide anything."""
        return self.tracker.budget.evaluations is not None

    @property
    def piece(self) -> float:
        """How long the next piece may be: as long as all before it together, so that runs that
        begin anew each time are of doubling length.
        """
        left = self.tracker.evaluations_left if self.by_evaluations else self.tracker.seconds_left
        return min(max(self.first, self.used), left)

    @contextmanager
    def part(self) -> Iterator[Tracker[Any]]:
        """Give a tracker whose budget is the next piece, from the incumbent and the bound; what is
        found in it counts at once.
        """
        whole = self.tracker
        if self.by_evaluations:
            seconds = None if whole.budget.seconds is None else whole.seconds_left
            budget = Budget(seconds, max(1, int(self.piece)), whole.budget.target)
        else:
            budget = Budget(self.piece, None, whole.budget.target)
        own: Tracker[Any] = Tracker(whole.solver, whole.problem, budget, seed=whole.seed)
        own.value, own.solution = whole.value, whole.solution
        own.lower_bound, own.bound_method = whole.lower_bound, whole.bound_method
        own.exchange, own.on_progress = whole.exchange, lambda _: self._adopt(own)
        with own.within(whole):
            try:
                yield own
            finally:
                self._adopt(own)
                limited = min(own.evaluations, whole.evaluations_left)
                whole.count(limited if self.by_evaluations else own.evaluations)
                whole.message = own.message or whole.message
                if own.reason:
                    whole.infeasible(own.reason)
                if own.stop_reason == "interrupted":
                    whole.interrupt()

    def _adopt(self, own: Tracker[Any]) -> None:
        """Take what a part has; who gained it is counted at its end."""
        before = self.tracker.gained
        if own.value is not None:
            self.tracker.offer(own.value, own.solution)
        self.tracker.raise_bound(own.lower_bound, own.bound_method)
        self.tracker.gained = before


def always(facts: Any) -> bool:
    """Apply to every problem."""
    return True


def at_once(facts: Any) -> float:
    """Offer something from the first moment on."""
    return 0.0


@dataclass(frozen=True)
class Tactic(ABC):
    """What the scheduler gives turns to, made of functions.

    Attributes
    ----------
    name : what people read. side : "value", "bound" or "both".
    work : what it does, as its class says.
    when : whether it can do anything for the problem. needs : seconds before which it offers
    nothing. Both are asked of the facts: what is computed once about the problem and shared by its
    tactics.
    """

    name: str
    side: str
    work: Callable[..., Any]
    when: Callable[[Any], bool] = always
    needs: Callable[[Any], float] = at_once

    def applies(self, facts: Any) -> bool:
        """Whether it can do anything for the problem; asked when its first turn comes."""
        return self.when(facts)

    def least(self, facts: Any) -> float:
        """Seconds before which it offers nothing, about: it waits for a turn of that length. Asked
        where seconds are the limit.
        """
        return self.needs(facts)

    @abstractmethod
    def steps(self, state: State) -> Iterator[str | None]:
        """Work; a piece between two yields is at most as long as `state.piece` (or a second).

        Yields WAITING or None. Ending means that nothing is left to do. `Refused` is taken as that;
        any other exception ends the solve.
        """


class Steps(Tactic):
    """A tactic whose `work(state)` is the generator."""

    def steps(self, state: State) -> Iterator[str | None]:
        """See `Tactic`."""
        return self.work(state)


@dataclass(frozen=True)
class Runs(Tactic):
    """A tactic that cannot be gone on with: runs of doubling length, each from the incumbent and
    the bound of the last.

    `work(state, part)` works until the tracker `part` stops, and returns whether nothing is left to
    do. `prior` is the length of the first run in seconds, for what mostly ends within it and makes
    all that follows easier. With `slow`, a run is as long as the whole solve so far: what cools
    finds more in one long run than in several short ones.
    """

    prior: float = 0.0
    slow: bool = False

    def steps(self, state: State) -> Iterator[None]:
        """See `Tactic`."""
        over = False
        if not state.by_evaluations:
            state.first = max(state.first, self.prior)
        while not over:
            if self.slow and not state.by_evaluations:
                state.first = max(state.first, state.tracker.elapsed)
            with state.part() as part:
                over = self.work(state, part)
            yield
