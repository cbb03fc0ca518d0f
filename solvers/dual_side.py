"""The dual side of a solve: CP-SAT proves, in a thread of its own, while the searches improve the
incumbent.

Both sides tell each other what they find (`placeopt.solving.exchange`): the proof tests horizons
just below the best incumbent that anyone has, and a search ends when the bound of the other side
meets its value.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from placeopt.model.budget import Budget
from placeopt.model.errors import Refused
from placeopt.solving.exchange import Exchange
from placeopt.solving.registry import make_solver
from placeopt.solving.run import search_beside
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem

LARGEST = 8000
"""Ops times devices above which the whole model would take too long to build, and would prove
nothing."""

SMALL = 2000
"""Ops times devices up to which CP-SAT has two threads: what the second one finds is worth more
than a second walk."""

ALONE_SECONDS, ALONE_SHARE = 4.0, 0.2
"""Time for which CP-SAT has every core to itself on small problems: seconds at most, and share of
the time left."""

STALLED_SECONDS, STALLED_SHARE, STALLED_GAIN = 10.0, 0.2, 0.02
"""A proof that in so many seconds, at least, and in this share of its time closed less than this
part of the gap leaves its cores to the search: short ones go on, as what an exact search is about
to prove does not show."""

LEAST_SECONDS = 1.0
"""Time left below which a second side is not worth its start."""


class DualSide:
    """A context in which CP-SAT proves beside the searches of `tracker`.

    Attributes
    ----------
    small : whether it has two threads. ended : whether it has left its cores to the search.
    """

    def __init__(self, tracker: Tracker[Any]) -> None:
        self.tracker, self.exchange = tracker, Exchange()
        self.small = tracker.problem.num_ops * tracker.problem.num_devices <= SMALL
        num_workers = 2 if self.small else 1
        solver: Any = make_solver(
            "cp-sat", num_workers=num_workers, warm_start=False, windows=False
        )
        self._solver, self._failure = solver, list[BaseException]()
        own: Tracker[Any] = Tracker(
            "cp-sat", tracker.problem, Budget(tracker.seconds_left), seed=tracker.seed
        )
        own.exchange = self.exchange
        self.ended = False
        self._own, self._thread = (
            own,
            threading.Thread(target=self._prove, name="placeopt-dual-side"),
        )

    def __enter__(self) -> DualSide:
        self.tracker.exchange = self.exchange
        self.tracker.reports = self._own.reports
        self.exchange.meet(self.tracker)
        self.exchange.meet(self._own)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        self.tracker.exchange = None
        if self._failure and error[0] is None:
            raise self._failure[0]

    def alone(self) -> None:
        """Let a proof that has two threads begin undisturbed: what it finds on the horizon of the
        bound ends the search.
        """
        seconds = min(ALONE_SECONDS, ALONE_SHARE * self.tracker.seconds_left) if self.small else 0.0
        end = self.tracker.elapsed + seconds
        while self._thread.is_alive() and self.tracker.elapsed < end and not self.tracker.stop():
            self._thread.join(0.02)

    def end(self) -> None:
        """End the proof and take what it found."""
        self.ended = self._own.stopped = True
        self.exchange.end(self._thread)
        self.exchange.meet(self.tracker)

    def end_if_stalled(self, *, large: bool = False) -> None:
        """Leave the cores to the search where the proof has hardly gained of late; with `large`, on
        large problems only.
        """
        own = self._own
        since = own.elapsed - max(STALLED_SECONDS, STALLED_SHARE * (own.budget.seconds or 0.0))
        before = max(
            (point.lower_bound for point in own.trace if point.seconds <= since), default=0
        )
        gains = (
            since < 0
            or own.value is None
            or own.lower_bound - before >= STALLED_GAIN * (own.value - before)
        )
        if not gains and not (large and self.small):
            self.end()

    def _prove(self) -> None:
        try:
            search_beside(self._solver, self._own)
        except Refused:
            pass
        except BaseException as error:  # told to whoever waits for both sides
            self._failure.append(error)
        finally:
            self.exchange.meet(self._own)


def worth_it(problem: PlacementProblem, seconds: float, threads: int) -> bool:
    """Whether a second side can pay: time, a core of its own, and a model that CP-SAT can hold."""
    small = problem.num_ops * problem.num_devices <= LARGEST
    return small and threads > 1 and LEAST_SECONDS <= seconds < float("inf")
