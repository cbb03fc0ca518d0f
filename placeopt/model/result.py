"""What a search is given and what comes back: the budget, when it has to stop, and the result, what
it found and what is proved about it.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any, Generic, TypeVar

from placeopt.model.arrays import tells_types
from placeopt.model.bound import BoundReport, plain_number
from placeopt.model.errors import InputError, SolverError, check_choice
from placeopt.model.objective import objective_of
from placeopt.model.shown import Shown

Number = int | float | Fraction

STATUSES = ("optimal", "feasible", "infeasible", "unknown")

STOPPED_BY = {
    "proved": "proved",
    "time": "out of time",
    "evaluations": "out of evaluations",
    "target": "target met",
    "interrupted": "interrupted",
    "converged": "ended by itself",
}
STOP_REASONS = tuple(STOPPED_BY)
SolutionT = TypeVar("SolutionT")


def gap_of(value: Number, lower_bound: Number) -> float:
    """Return (value - lower_bound) / value, 0 of the value 0."""
    return 0.0 if value == 0 else float((value - lower_bound) / value)


@dataclass(frozen=True)
class Budget:
    """Limits of a search; None means no limit.

    Attributes
    ----------
    seconds : wall-clock time.
    evaluations : number of candidate solutions evaluated.
    target : stop as soon as the objective is at most this many ticks.
    """

    seconds: float | None = None
    evaluations: int | None = None
    target: int | None = None

    def __post_init__(self) -> None:
        for key, kind in (("seconds", Real), ("evaluations", Integral), ("target", Real)):
            limit = getattr(self, key)
            if limit is None:
                continue
            check_number(f"budget {key}", limit, kind)
            plain = plain_number(limit) if isinstance(limit, Rational) else float(limit)
            object.__setattr__(self, key, plain)
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise InputError(f"budget seconds: expected a number >= 0, received {self.seconds}")
        if self.evaluations is not None and self.evaluations < 1:
            raise InputError(
                f"budget evaluations: expected at least 1, received {self.evaluations}"
            )

    @property
    def unlimited(self) -> bool:
        """Whether nothing limits the search."""
        return self.seconds is None and self.evaluations is None and self.target is None

    @property
    def ends(self) -> bool:
        """Whether seconds or evaluations end every search."""
        return self.seconds is not None or self.evaluations is not None


def check_number(what: str, value: Any, kind: type[Real] | type[Integral] = Real) -> Any:
    """Return a number of a kind.

    Raises
    ------
    InputError
        If it is none.
    """
    if not isinstance(value, kind) or value != value:  # NaN is none
        number = "whole number" if kind is Integral else "number"
        raise InputError(f"{what}: expected a {number}, received {value!r:.40}")
    return value


@dataclass(frozen=True)
class TracePoint:
    """One improvement of the incumbent or the bound."""

    seconds: float
    evaluations: int
    incumbent: int | None  # ticks
    lower_bound: int  # ticks


@dataclass(frozen=True)
class TacticUse:
    """What one tactic of a search did.

    Attributes
    ----------
    side : "value", "bound" or "both". turns : pieces of work. value_gained, bound_gained : parts of
    the gap that it closed, relative to the value (1 for the first solution). exhausted : whether it
    had nothing left to do.
    """

    name: str
    side: str
    seconds: float
    turns: int
    value_gained: float
    bound_gained: float
    exhausted: bool


@tells_types
@dataclass(frozen=True, eq=False)
class Result(Shown, Generic[SolutionT]):
    """What a solver found and what is proved about it.

    Attributes
    ----------
    solution : the best solution, None if there is none (yet).
    value : its value in ticks, recomputed by the evaluator; None without a solution. A pipeline's
    is its period per
        micro-batch, a Fraction where that is no whole number.
    lower_bound : ticks; no solution can be better. 0 if nothing is proved.
    bound_method : which bound proved it.
    queue : execution under which `value` holds ("" where the objective has no queue).
    message : one line a person should read (why infeasible, what was given up); usually empty.
    objective_name : what the value is: the name of the objective, or "measured".
    problem_hash : of the problem it solves, "" if unknown.
    tactics : what each tactic of the search did, where it has tactics.
    given : the problem itself, for pictures and tables; None where the result was read from a file.
    """

    problem: str
    solver: str
    solution: SolutionT | None
    value: int | None
    lower_bound: int
    bound_method: str
    status: str
    stop_reason: str
    evaluations: int
    runtime: float  # seconds
    seed: int
    queue: str = ""
    message: str = ""
    tick_seconds: float = 1e-9
    objective_name: str = "makespan"
    problem_hash: str = ""
    trace: tuple[TracePoint, ...] = field(default=(), repr=False)
    tactics: tuple[TacticUse, ...] = field(default=(), repr=False)
    given: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_choice("status", self.status, STATUSES)
        check_choice("stop_reason", self.stop_reason, STOP_REASONS)
        if (self.solution is None) != (self.value is None):
            raise InputError("a result has both a solution and a value, or neither")
        for key in ("value", "lower_bound"):
            object.__setattr__(self, key, plain_number(getattr(self, key)))
        if self.value is not None and self.lower_bound > self.value:
            raise SolverError(
                f"lower bound {self.lower_bound} ({self.bound_method}) exceeds the value "
                f"{self.value} of '{self.solver}' on '{self.problem}': one of them is wrong"
            )

    @property
    def objective(self) -> int | None:
        """Alias of `value`."""
        return self.value

    @property
    def gap(self) -> float | None:
        """(value - lower_bound) / value, 0 when optimal; None without a solution."""
        return None if self.value is None else gap_of(self.value, self.lower_bound)

    @property
    def seconds(self) -> float | None:
        """The value in seconds."""
        return None if self.value is None else float(self.value) * self.tick_seconds

    def with_bound(self, report: BoundReport) -> Result[SolutionT]:
        """Return this result with the lower bound of `report` where that is better.

        Raises
        ------
        SolverError
            If that bound exceeds the value.
        """
        if report.value <= self.lower_bound:
            return self
        proved = self.value is not None and self.value == report.value
        return replace(
            self,
            lower_bound=report.value,
            bound_method=report.method,
            status="optimal" if proved else self.status,
            stop_reason="proved"
            if proved and self.stop_reason == "converged"
            else self.stop_reason,
        )

    def summary(self) -> dict[str, str]:
        """Return what a person wants to know, in words; empty where there is nothing to say."""
        found = self.value is not None
        objective = None if self.given is None else objective_of(self.given)

        def text(value: Any) -> str:
            return f"{value} ticks" if objective is None else objective.text(self.given, value)

        return {
            "problem": self.problem,
            "solver": self.solver,
            self.objective_name: text(self.value) if found else "no solution",
            "lower bound": f"{text(self.lower_bound)} ({self.bound_method})"
            if self.lower_bound
            else "",
            "gap": f"{self.gap:.2%}" if self.gap is not None and self.lower_bound else "",
            "status": f"{self.status}, {STOPPED_BY[self.stop_reason]} after {self.runtime:.3g} s",
            "message": self.message,
        }

    def __repr__(self) -> str:
        words = self.summary()
        shown = ", ".join(
            f"{key} {words[key]}"
            for key in (self.objective_name, "lower bound", "gap")
            if words.get(key)
        )
        return f"<Result of '{self.solver}' on '{self.problem}': {shown}; {words['status']}>"

    def shown(self) -> dict[str, str]:
        """Return the summary, as a table in a notebook."""
        return self.summary()

    def plot(self, problem: Any = None) -> Any:
        """Return a matplotlib figure of the schedule, or of value and bound over time where there
        is none to draw.

        Parameters
        ----------
        problem : needed only where the result was read from a file.

        Raises
        ------
        InputError
            If the problem is not known.
        MissingExtraError
            If matplotlib is not installed.
        """
        return _view("plot_result")(self, self._problem(problem))

    def to_frame(self, problem: Any = None) -> Any:
        """Return a pandas DataFrame with a row per op, or per block and micro-batch of a pipeline;
        see `plot`.
        """
        return _view("result_frame")(self, self._problem(problem))

    def _problem(self, problem: Any) -> Any:
        known = problem if problem is not None else self.given
        if known is None:
            raise InputError(
                f"the result of '{self.solver}' was read from a file: give its problem "
                f"'{self.problem}' too"
            )
        return known


def _view(name: str) -> Any:
    """Return a function of the room that draws, which stands above this one and is named, not
    imported.
    """
    return getattr(importlib.import_module("placeopt.plotting.show"), name)
