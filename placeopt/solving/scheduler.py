"""The scheduler: which tactic goes on, and for how long.

A lane is a list of tactics that take turns. Its rounds double in length:

    for target in first, 2 first, 4 first, ...:
        every tactic that is not exhausted goes on until it has had `target` in all
        three times as much again goes to whoever closed most of the gap per second lately

No tactic starves. Let a lane have m tactics, and let one of them close the gap alone within time t
of its own. It has had t at the end of the first round whose target is at least t; as targets
double, that target L is below 2t (or the first one). A piece is at most as long as all before it of
the same tactic together, so a tactic that is stopped at its target has had at most 2L, and the
floors of all rounds together are at most 2mL. The time of the fastest is a credit: the rounds add
3m times their targets, in all 6mL, and what a piece takes too much is taken from later rounds, so
at most one piece goes beyond it, no longer than all that its tactic has had, 6mL + 2L. The lane has
then spent at most 2mL + 6mL + 6mL + 2L < 14 (m + 1) L < 28 (m + 1) t. A tactic that begins anew in
runs of doubling length reaches a run of length t when it has had 2t: the factor is twice that. This
is dovetailing, and the constant is its worst case: where one tactic closes the gap steadily it has
three quarters of all time and more.

A first piece that is longer by a prior of its tactic is a constant added to all that. The
constant is not for a lane with a tactic whose runs are as long as the whole solve so far (`slow` of
`Runs`): each such run at most doubles the time that has passed, and the next one by the floor comes
only when every other tactic has had half as long as that run.

A tactic that offers nothing before some seconds (a model has to be built) waits for the round whose
target is as long, or for a credit that pays its first piece, which is twice that; up to then the
argument is the same.

A tactic that waits for what another one has to find gives its turns up, and counts them as had; if
all wait, the lane sleeps, or ends where no other lane is at work.

Two lanes, one of tactics that prove and one of tactics that improve the incumbent, run on two
threads where seconds are the limit and two cores are there; they tell each other what they find
(`placeopt.solving.exchange`). Otherwise all tactics are in one lane, by turns; where evaluations
are the limit the clock counts evaluations, and the same seed gives the same answer.
"""

from __future__ import annotations

import importlib
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import Refused
from placeopt.model.result import TacticUse
from placeopt.model.threads import start_thread
from placeopt.solving.exchange import Exchange
from placeopt.solving.tactic import FIRST_EVALUATIONS, FIRST_SECONDS, VALUE, WAITING, State

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from placeopt.solving.tactic import Tactic
    from placeopt.solving.tracker import Tracker

WAIT = 0.02
"""Seconds between two looks at what is waited for, another lane say."""

FASTEST = 3
"""Time of the fastest tactic, relative to the floors of all: the argument above holds for any, with
another constant."""

LEAST = 1e-3
"""Seconds that a piece costs at least: one that returns at once is not asked for again and
again."""


def load(module: str) -> threading.Thread:
    """Begin to import a module on another thread: CP-SAT takes a part of a second."""
    return start_thread(importlib.import_module, module)


class Turn:
    """How far one tactic of a lane has come."""

    def __init__(self, tactic: Tactic, state: State) -> None:
        self.tactic, self.state = tactic, state
        self.steps: Iterator[str | None] | None = None
        self.over, self.waits, self.turns = False, False, 0
        self.seconds = self.passed = 0.0  # that it was at work, and that it let pass waiting
        self.gained = (0.0, 0.0)  # parts of the gap, by value and by bound
        self._then = self._now = (0.0, 0.0)  # (used, gained) when the last two rounds began

    @property
    def used(self) -> float:
        """Seconds or evaluations it has had."""
        return self.state.used

    @property
    def speed(self) -> tuple[float, float]:
        """Part of the gap that it closed per second or evaluation: since the round before, and in
        all.
        """
        gained = sum(self.gained)
        spans = [(self.used - then, gained - before) for then, before in (self._then, (0.0, 0.0))]
        lately, ever = (gain / span if span > 0 else 0.0 for span, gain in spans)
        return lately, ever

    def begin_round(self) -> None:
        """Forget what is longer ago than the last round."""
        self.waits = False
        self._then, self._now = self._now, (self.used, sum(self.gained))

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
        self.first: float = FIRST_EVALUATIONS if self._counted else FIRST_SECONDS
        self._clock = clock or self._read
        seeds = np.random.SeedSequence(tracker.seed).spawn(len(tactics))
        self.turns = [
            Turn(tactic, State(tracker, facts, np.random.default_rng(seed), threads))
            for tactic, seed in zip(tactics, seeds, strict=True)
        ]

    def run(self) -> None:
        """Give turns until every tactic is exhausted or the tracker stops."""
        target, credit = self.first, 0.0
        while self._open():
            # asked before the tracker meets what the other lane found last
            alone = self.other is None or self.other.idle
            if self.tracker.stop():
                break
            for turn in self._open():
                turn.begin_round()
                while self._ready(turn, target) and not self.tracker.stop():
                    self._advance(turn)
                if turn.waits:
                    turn.passed = max(turn.passed, target - turn.used)
            credit += FASTEST * target * len(self._at_work())
            while credit > 0 and (turns := self._at_work(credit)) and not self.tracker.stop():
                credit -= self._advance(self._fastest(turns))
            self.idle = all(turn.waits for turn in self._open())
            if not self.idle:
                target *= 2
            elif alone:
                break
            else:
                time.sleep(WAIT)

    @property
    def _counted(self) -> bool:
        return self.tracker.budget.evaluations is not None

    def _read(self) -> float:
        return float(self.tracker.evaluations) if self._counted else self.tracker.elapsed

    def _open(self) -> list[Turn]:
        return [turn for turn in self.turns if not turn.over]

    def _at_work(self, credit: float = 0.0) -> list[Turn]:
        """Return those that can go on, and with `credit` those whose first piece it pays."""
        open_ = [turn for turn in self._open() if not turn.waits]
        return [turn for turn in open_ if turn.steps is not None or self._begin(turn, credit / 2)]

    def _ready(self, turn: Turn, target: float) -> bool:
        """Begin a tactic when its first turn is long enough; whether it goes on in this round."""
        behind = turn.used + turn.passed < target and not (turn.over or turn.waits)
        return behind and (turn.steps is not None or self._begin(turn, target))

    def _begin(self, turn: Turn, longest: float) -> bool:
        """Begin a tactic that offers something within `longest`; whether it was."""
        if not turn.over and turn.steps is None and longest > 0:
            turn.over = not turn.tactic.applies(self.facts)
            least = 0.0 if self._counted else turn.tactic.least(self.facts)
            if not turn.over and least <= longest:
                turn.state.first = max(self.first, 2 * least)
                turn.steps = turn.tactic.steps(turn.state)
        return not turn.over and turn.steps is not None

    def _fastest(self, turns: list[Turn]) -> Turn:
        """Who closed most of the gap per second lately, or, where nobody closed anything, in all;
        of those who never did, who had least.
        """
        return max(turns, key=lambda turn: (*turn.speed, -turn.used))

    def _advance(self, turn: Turn) -> float:
        """Let a tactic do a piece of work; return what it took."""
        assert turn.steps is not None
        tracker = self.tracker
        begin, second, tracker.gained = self._clock(), tracker.elapsed, (0.0, 0.0)
        tracker.at_work = turn.tactic.name
        try:
            turn.waits = next(turn.steps) == WAITING
            if self._counted and self._clock() == begin:
                tracker.count()  # a piece costs something, or it could be asked for for ever
        except (StopIteration, Refused):
            turn.over = True
        finally:
            spent = max(self._clock() - begin, LEAST)
            turn.state.used += spent
            turn.turns += 1
            turn.seconds += tracker.elapsed - second
            turn.gained = tuple(map(sum, zip(turn.gained, tracker.gained, strict=True)))  # type: ignore[assignment]
        return spent


class Scheduler:
    """Runs the tactics of a problem in lanes (see the module).

    Parameters
    ----------
    facts : what is computed once about the problem; given to every tactic.
    threads : cores that may be used.
    """

    def __init__(
        self, tactics: Sequence[Tactic], facts: Any, tracker: Tracker[Any], *, threads: int = 1
    ) -> None:
        self.tactics, self.facts, self.tracker, self.threads = tactics, facts, tracker, threads
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
