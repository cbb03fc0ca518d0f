"""The base of our solvers: it owns the frame, a subclass writes `search`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from placeopt.model.result import Budget, Result
from placeopt.solving.deadline import LARGE
from placeopt.solving.options import check_options
from placeopt.solving.registry import own_names
from placeopt.solving.run import run
from placeopt.solving.tracker import OnProgress, Tracker


@dataclass(frozen=True)
class SearchSolver(ABC):
    """A solver that is its algorithm: a frozen dataclass of options with one method, `search`.

    Attributes
    ----------
    name : registered name; of our own solvers as the list of their package says.
    endless : whether it never stops by itself, so that a budget of seconds or evaluations is
    needed.
    watched_from : ops times devices from which a single step may outlast a limit: see
    `placeopt.solving.deadline`.
    proves : whether it proves the bounds of the objective itself, in a tenth of its time: nobody
    need do so before.
    kernels : groups of kernels that it calls, besides those of the objective: see
    `placeopt.solving.compilation`.
    """

    name: ClassVar[str]
    endless: ClassVar[bool] = False
    watched_from: ClassVar[int] = LARGE
    proves: ClassVar[bool] = False
    kernels: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        name = own_names().get(f"{cls.__module__}:{cls.__qualname__}")
        if name is not None:
            cls.name = name

    def __post_init__(self) -> None:
        check_options(self, getattr(self, "name", type(self).__qualname__))

    @abstractmethod
    def search(self, problem: Any, tracker: Tracker[Any]) -> None:
        """Offer solutions and bounds to `tracker` until it stops or nothing is left to do.

        `tracker.solution` is the initial solution, if there is one; randomness comes from
        `tracker.rng()`. Ctrl-C may end it anywhere. A problem that the solver does not take is
        `Refused`.
        """

    def kernels_at_once(self, problem: Any) -> tuple[str, ...] | None:
        """Groups of kernels without which it cannot begin; the others may be interpreted. None for
        all, as by default.
        """
        return None

    def within(self, problem: Any, seconds: float) -> SearchSolver | None:
        """Return the solver as it runs as one of several on so many seconds; None where it would
        not come back in time, or adds nothing.
        """
        return self

    def solve(
        self,
        problem: Any,
        budget: Budget,
        *,
        seed: int = 0,
        initial: Any = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Any]:
        """Solve `problem` within `budget`; see `placeopt.solving.run`."""
        return run(problem, self, budget, seed=seed, initial=initial, on_progress=on_progress)
