"""Two sides of one solve: what the searches and the proof that run beside each other tell one
another.

Each side has a tracker of its own and a thread of its own; whenever one asks its tracker whether to
stop, the tracker meets the exchange: it leaves a better incumbent or bound, and takes what the
other side left.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Side(Protocol):
    """What the exchange asks of a tracker."""

    gained: tuple[float, ...]

    @property
    def value(self) -> Any:
        """Value of its incumbent, None without one."""

    @property
    def solution(self) -> Any:
        """Its incumbent."""

    @property
    def lower_bound(self) -> Any:
        """What is proved there."""

    @property
    def bound_method(self) -> str:
        """How that is proved."""

    def offer(self, value: Any, solution: Any) -> Any:
        """Take a solution if it is better."""

    def raise_bound(self, value: Any, method: str) -> Any:
        """Take a bound if it is better."""


class Whole(Protocol):
    """What a search for a part asks of the whole one."""

    exchange: Exchange | None

    def stop(self) -> bool:
        """Whether it has to end now."""


class Exchange:
    """The best incumbent and the best bound of all sides."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: Any = None
        self._solution: Any = None
        self._bound: Any = 0
        self._method = "none"
        self._stops: list[Callable[[], object]] = []

    def meet(self, tracker: Side) -> None:
        """Leave what is better in the tracker, and give it what is better here."""
        with self._lock:
            if tracker.value is not None and (self._value is None or tracker.value < self._value):
                self._value, self._solution = tracker.value, tracker.solution
            if tracker.lower_bound > self._bound:
                self._bound, self._method = tracker.lower_bound, tracker.bound_method
            value, solution, bound, method = self._value, self._solution, self._bound, self._method
        before = tracker.gained
        if value is not None:
            tracker.offer(value, solution)
        tracker.raise_bound(bound, method)
        tracker.gained = before  # another side gained it

    @contextlib.contextmanager
    def ending(self, stop: Callable[[], object]) -> Iterator[None]:
        """Have a long call in the block stopped when the exchange ends."""
        self._stops.append(stop)
        try:
            yield
        finally:
            self._stops.remove(stop)

    def end(self, thread: threading.Thread, patience: float = 0.3) -> None:
        """End a side that helps, and wait so many seconds for its end; one that takes longer ends
        by itself, at the latest with the process.
        """
        until = time.perf_counter() + patience
        while thread.is_alive() and time.perf_counter() < until:
            for stop in list(self._stops):
                stop()  # again and again: the call may not have begun when it is first told to stop
            thread.join(0.01)


class Follower(Exchange):
    """The exchange of a search for a part of another search's problem: they share nothing but their
    end.
    """

    def __init__(self, whole: Whole) -> None:
        super().__init__()
        self.whole = whole

    def meet(self, tracker: Any) -> None:
        """End with the whole search."""
        if self.whole.stop():
            tracker.interrupt()

    @contextlib.contextmanager
    def ending(self, stop: Callable[[], object]) -> Iterator[None]:
        """Have a long call in the block stopped when the whole search ends."""
        exchange = self.whole.exchange
        with contextlib.nullcontext() if exchange is None else exchange.ending(stop):
            yield
