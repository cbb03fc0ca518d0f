"""The scheduler: which tactic goes on, and for how long.

A lane is a list of tactics that take turns. Before each turn every tactic that is not exhausted has

    cost   : what its next doubling costs: the time that it has had
    weight : what the next doubling may bring: the logarithm of the gap that it closed lately, at
             most 1, and 1 / m besides, for m tactics

and the turn goes to the greatest weight / cost. One that gives its turns to b tactics inside counts
as b of the m (its breadth), and has b / m instead of 1 / m. A piece is at most as long as all
before it of the same tactic together, so it is the cost. "Lately" forgets half with each doubling:
searches and proofs gain about as much with each doubling of their time, and what gained nothing in
the last one is expected to gain less in the next, which costs twice as much. Gains are parts of the
gap that there was (logarithms), so that early ones, which are large and easy, do not outweigh later
ones. Cheap tactics come first, since nobody has cost anything, in the order of the list. While one
tactic alone closes the gap, by a factor of e with each doubling, it has half of the time, and the
others the other half in equal parts; where gains are small, all are looked at alike.

No tactic starves. Let m be the sum of a lane's breadths, each at least 1 (the most that it comes
to, where they change), and let a tactic close the gap alone within time t of its own (or a first
piece, if that is longer). Its weight is at least 1 / m, that of another of breadth b at most
1 + b / m. Whenever that one had a turn, its weight / cost was at least that of this one, so its
cost was at most (1 + b / m) / (1 / m) = m + b times the cost of this one, which was at most t;
after the turn it had had twice that, 2 (m + b) t. All others, at most m - 1 of breadths that sum
to at most m - 1, have had at most 2 (m - 1) (m + 1) t together, and this one 2 t with its last
piece: the lane has spent less than 2 m^2 t when the gap is closed (2 m t where nobody else gains).
A tactic that begins anew in runs of doubling length reaches a run of length t when it has had 2 t:
the factor is twice that. This is dovetailing, and the constant is its worst case.

A first piece that is longer by a prior of its tactic is a constant added to all that. The
constant is not for a lane with a tactic whose runs are as long as the whole solve so far (`slow` of
`Runs`): each such run at most doubles the time that has passed, and the next one comes only when
every other tactic has had the (m + 1)th part of that run, or gains less.

A tactic that offers nothing before some seconds (a model has to be built) costs twice these seconds
before its first piece, which is as long; where evaluations are the limit, no seconds are asked for.
They are asked for before each turn: what is left of a problem shrinks, and a part may not begin
before another tactic has found something.

A tactic that waits for what another one has to find gives its turn up: a look counts as if its
cost had been spent, so that looks are few and it has nothing to make up for when it goes on. If all
wait, the lane sleeps, or ends where no other lane is at work.

Two lanes, one of tactics that prove and one of tactics that improve the incumbent, run on two
threads where seconds are the limit and two cores are there; they tell each other what they find
(`placeopt.solving.tracker`). Otherwise all tactics are in one lane, by turns; where evaluations
are the limit the clock counts evaluations, and the same seed gives the same answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from placeopt.model.errors import Refused
from placeopt.model.result import TacticUse
from placeopt.model.threads import start_thread
from placeopt.solving.tactic import VALUE, WAITING, State, Tactic
from placeopt.solving.tracker import Exchange, Tracker

WAIT = 0.02
"""Seconds between two looks at what is waited for, another lane say."""

LEAST = 1e-3
"""Seconds that a piece costs at least: one that returns at once is not asked for again and
again."""


class Turn:
    """How far one tactic of a lane has come."""

    def __init__(self, tactic: Tactic, state: State) -> None:
        self.tactic, self.state = tactic, state
        self.steps: Iterator[str | None] | None = None
        self.over, self.turns = False, 0
        self.seconds = self.passed = 0.0  # that it was at work, and that it let pass waiting
        self.gained = (0.0, 0.0)  # parts of the gap, by value and by bound
        self.lately = 0.0  # logarithm of the gap that it closed, half forgotten with each doubling

    @property
    def cost(self) -> float:
        """What its next doubling costs, in seconds or evaluations: at first twice what the tactic
        needs, as far as is known by now.
        """
        state = self.state
        if self.steps is not None:
            return state.used + self.passed
        least = 0.0 if state.by_evaluations else self.tactic.least(state.facts)
        return max(state.first, 2 * least)

    def spend(self, spent: float, gain: float) -> None:
        """Note a piece of work and the logarithm of the gap that it closed."""
        before = self.state.used
        self.state.used += spent
        self.lately = self.lately * before / self.state.used + gain
        self.turns += 1

    def report(self) -> TacticUse:
        """Say what it did."""
        return TacticUse(
            self.tactic.name, self.tactic.side, self.seconds, self.turns, *self.gained, self.over
        )


class Lane:
    """Tactics that take turns on one tracker (see the module).

    Parameters
    ----------
    clock : seconds or evaluations so far; by default what limits the tracker.
    threads : asked for the number of cores of this lane.

    Attributes
    ----------
    other : lane beside it. idle : whether it has nothing to do before that one finds something.
    """

    def __init__(
        self,
        tactics: Sequence[Tactic],
        facts: Any,
        tracker: Tracker[Any],
        *,
        threads: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.facts, self.tracker = facts, tracker
        self.other: Lane | None = None
        self.idle = False
        self._clock = clock or self._read
        seeds = np.random.SeedSequence(tracker.seed).spawn(len(tactics))
        self.turns = [
            Turn(tactic, State(tracker, facts, np.random.default_rng(seed), threads))
            for tactic, seed in zip(tactics, seeds, strict=True)
        ]

    def run(self) -> None:
        """Give turns until every tactic is exhausted or the tracker stops."""
        for _ in self.work():
            pass

    def work(self) -> Iterator[Turn]:
        """Do so, and yield who had a turn after each piece of work."""
        waiting: set[Turn] = set()  # since the last piece of work
        last = False  # whether the looks since then can be the last ones
        while not all(turn.over for turn in self.turns):
            # asked before the tracker meets what the other lane found last
            alone = self._alone
            if self.tracker.stop():
                break
            if ready := self._ready(waiting):
                turn = self._next(ready)
                if self._begin(turn, ready[turn]) and self._advance(turn):
                    waiting.add(turn)
                else:
                    waiting.clear()
                    self.idle = last = False
                    yield turn
            elif alone and last:
                break
            else:  # look again, once if no other lane is at work
                self.idle, last = True, alone
                waiting.clear()
                if not alone:
                    time.sleep(WAIT)

    @property
    def _counted(self) -> bool:
        return self.tracker.budget.evaluations is not None

    def _read(self) -> float:
        return float(self.tracker.evaluations) if self._counted else self.tracker.elapsed

    @property
    def _alone(self) -> bool:
        """Whether no other lane is at work."""
        return self.other is None or self.other.idle

    def _ready(self, waiting: set[Turn]) -> dict[Turn, float]:
        """Return the tactics that can have a turn, and what their next doublings cost; where nobody
        can say yet, it is infinity, and is waited for.
        """
        open_ = (turn for turn in self.turns if not turn.over and turn not in waiting)
        costs = {turn: turn.cost for turn in open_}
        return {turn: cost for turn, cost in costs.items() if cost < math.inf}

    def _next(self, ready: dict[Turn, float]) -> Turn:
        """Return who may bring most for what it costs (see the module)."""
        all_ = sum(turn.state.breadth for turn in ready)

        def worth(turn: Turn) -> float:
            return (min(1.0, turn.lately) + turn.state.breadth / all_) / ready[turn]

        return max(ready, key=worth)

    def _begin(self, turn: Turn, cost: float) -> bool:
        """Begin a tactic when its first turn comes, with a piece of that cost, if it applies and
        there is time for what it needs; whether it has begun.
        """
        if turn.steps is None:
            late = not self._counted and turn.tactic.least(self.facts) > self.tracker.seconds_left
            turn.over = late or not turn.tactic.applies(self.facts)
            if not turn.over:
                turn.state.first = cost
                turn.steps = turn.tactic.steps(turn.state)
        return not turn.over

    def _advance(self, turn: Turn) -> bool:
        """Let a tactic do a piece of work; whether it waits for what another one has to find."""
        assert turn.steps is not None
        tracker, waits = self.tracker, False
        begin, second, tracker.gained = self._clock(), tracker.elapsed, (0.0, 0.0)
        tracker.at_work = turn.tactic.name
        try:
            waits = next(turn.steps) == WAITING
            if self._counted and self._clock() == begin:
                tracker.count()  # a piece costs something, or it could be asked for for ever
        except (StopIteration, Refused):
            turn.over = True
        finally:
            now = self._clock()
            turn.spend(max(now - begin, LEAST), self._closed(*tracker.gained))
            turn.seconds += tracker.elapsed - second
            gained = zip(turn.gained, tracker.gained, strict=True)
            turn.gained = tuple(map(sum, gained))  # type: ignore[assignment]
        if waits and not self.idle:
            turn.passed += max(turn.cost, turn.state.first)
        return waits

    def _closed(self, by_value: float, by_bound: float) -> float:
        """Return the logarithm of the gap before over that after a gain."""
        tracker = self.tracker
        if tracker.value is None or tracker.lower_bound >= tracker.value:
            return by_value + by_bound
        left = float((tracker.value - tracker.lower_bound) / tracker.value)
        return math.log1p((by_value + by_bound) / left)


@dataclass(eq=False)
class Scheduler:
    """Runs the tactics of a problem in lanes (see the module).

    Parameters
    ----------
    facts : what is computed once about the problem; given to every tactic.
    threads : cores that may be used.
    """

    tactics: Sequence[Tactic]
    facts: Any
    tracker: Tracker[Any]
    _: KW_ONLY
    threads: int = 1

    def __post_init__(self) -> None:
        self._beside = 0  # lanes on other threads
        self._failure: list[BaseException] = []

    def run(self) -> None:
        """Run until every tactic is exhausted or the tracker stops."""
        improve = [tactic for tactic in self.tactics if tactic.side == VALUE]
        prove = [tactic for tactic in self.tactics if tactic.side != VALUE]
        if self.threads < 2 or not improve or not prove or not self._timed:
            self._run(Lane(self.tactics, self.facts, self.tracker, threads=lambda: self.threads))
        else:
            self._run_two(improve, prove)

    @property
    def _timed(self) -> bool:
        """Whether seconds are the limit, and no other side of a solve is there already."""
        tracker = self.tracker
        return (
            tracker.budget.evaluations is None
            and math.isfinite(tracker.seconds_left)
            and tracker.exchange is None
        )

    def _run(self, lane: Lane) -> None:
        self.tracker.reports.extend(turn.report for turn in lane.turns)
        try:
            lane.run()
        finally:
            self.tracker.at_work = ""

    def _run_two(self, improve: list[Tactic], prove: list[Tactic]) -> None:
        """Improve on this thread and prove on another one."""
        tracker, exchange = self.tracker, Exchange()
        own = tracker.copy(exchange)
        lanes = [
            Lane(tactics, self.facts, mine, threads=lambda: self.threads - self._beside)
            for tactics, mine in ((improve, tracker), (prove, own))
        ]
        lanes[0].other, lanes[1].other = lanes[1], lanes[0]
        tracker.exchange, self._beside = exchange, 1
        tracker.reports.extend(turn.report for turn in lanes[1].turns)
        with own.within(tracker):
            thread = start_thread(
                self._work, lanes[1], own, name="placeopt-bound-lane", daemon=False
            )
            try:
                self._run(lanes[0])
                exchange.meet(tracker)
                lanes[0].idle, self._beside = True, 0
                while thread.is_alive() and not tracker.stop():
                    thread.join(WAIT)
            finally:
                own.stopped = True
                exchange.end(thread)
                exchange.meet(tracker)
                tracker.exchange = None
                tracker.message = tracker.message or own.message
        if self._failure:
            raise self._failure[0]

    def _work(self, lane: Lane, own: Tracker[Any]) -> None:
        """Run the lane that proves on its thread."""
        try:
            lane.run()
            if own.reason:
                self.tracker.infeasible(own.reason)
        except BaseException as error:  # told to the thread that waits
            self._failure.append(error)
            self.tracker.stopped = True
        finally:
            if own.exchange is not None:
                own.exchange.meet(own)
            lane.idle, self._beside = True, 0
