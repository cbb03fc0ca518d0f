"""Objectives are objects: what a problem minimises, how it is evaluated, judged and bounded.

A problem names its objective (`problem.objective`); `objective_of` returns the object. It is the
only place that turns the name into behaviour: nothing else compares names of objectives. A new
objective is a class with the members of `Objective` and one call of `register_objective`.
"""

from __future__ import annotations

import pkgutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from numbers import Rational
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from placeopt.model.arrays import Ints
from placeopt.model.bound import BoundReport, Witness, check_methods
from placeopt.model.errors import (
    InfeasiblePlacementError,
    InfeasibleProblemError,
    InputError,
    SolverError,
    brief,
    check_choice,
)
from placeopt.model.files import Data, raised

INFEASIBLE = 2**63 - 1
"""Value of a solution that breaks a constraint, in batches."""


class Finished(NamedTuple):
    """The final word on a solution.

    `value` is None where `violations` (in words) says why there is none; `queue` names the
    execution under which the value holds ("" where the objective has none).
    """

    value: int | None
    queue: str
    violations: tuple[str, ...]


class Objective(ABC):
    """What a problem minimises; whatever has these members will do.

    Attributes
    ----------
    name : as in `problem.objective`. kind : type of the problem: "placement", "split", "pipeline",
    "jobs", "sharding" or "plan".
    default_solver : solver used when none is named. comparison : solvers that are compared when
    none is named: the default solver alone, unless a class says more.
        An objective whose problems differ in the default has a method `default_for`, of a problem,
        too.
    ordered : whether the priorities of a placement matter.
    prover : solver whose bound proves optima, given time; "" if the bounds alone do it.
    baseline : solver of the plainest solution, to compare with; "" if there is none.
    drawn : whether a solution is a schedule in time, which a Gantt picture shows.
    bounded : what the bounds are of, for messages. bound_methods : their names, cheapest first.
    ends_at_upper : whether bounding ends once a bound meets a known value.
    kernels : groups of kernels that its values need. bound_kernels : those that its bounds need
    besides.

    Objectives are shared by all problems, and foreign searches can reach them: slots leave nothing
    on an instance that could be set.
    """

    __slots__ = ()

    name: ClassVar[str]
    kind: ClassVar[str]
    default_solver: ClassVar[str]
    comparison: ClassVar[tuple[str, ...]] = ()
    ordered: ClassVar[bool] = False
    prover: ClassVar[str] = ""
    baseline: ClassVar[str] = ""
    drawn: ClassVar[bool] = False
    bounded: ClassVar[str] = ""
    bound_methods: ClassVar[tuple[str, ...]] = ()
    ends_at_upper: ClassVar[bool] = False
    kernels: ClassVar[tuple[str, ...]] = ()
    bound_kernels: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if "default_solver" in cls.__dict__ and not cls.comparison:
            cls.comparison = (cls.default_solver,)

    def default_queue(self, solution: Any) -> str:
        """Return the execution of a solution that names none; "" where there is no choice."""
        return ""

    def impossible(self, problem: Any) -> str:
        """Return why no solution can exist, "" unless a simple reason proves it."""
        return ""

    def evaluate_batch(
        self,
        problem: Any,
        devices: ArrayLike,
        priorities: ArrayLike | None = None,
        *,
        threads: int | None = None,
    ) -> Ints:
        """Values of many placements in ticks, shape (batch,); INFEASIBLE where a constraint is
        broken. A solution that is no placement is no row of devices, and refused.
        """
        raise InputError(
            f"problem '{problem.name}': its solutions are no placements and are evaluated one by "
            "one"
        )

    def least_value(self, problem: Any, bound: Any) -> Any:
        """Return the least value that a solution can have which is no less than a bound."""
        return bound

    def witness(self, problem: Any, bound: Any, method: str, seconds: float) -> Witness | None:
        """Return what proves `bound`, or as much of it as can be shown, as data; None where there
        are no witnesses yet.
        """
        return None

    def timetable(self, problem: Any, solution: Any, queue: str) -> Data:
        """When everything of a solution runs, as plain JSON; {} where the solution says it all."""
        return {}

    def proof_parts(self, problem: Any, solution: Any, value: Any, witness: Witness) -> Data:
        """Entries of a proof that are not the solution, its value and its bound as they are."""
        return {}

    @abstractmethod
    def judge(self, problem: Any, solution: Any, queue: str | None = None) -> list[str]:
        """Every violation of a solution in words, found without the code that evaluates it."""

    def measured(self, problem: Any, solution: Any, /) -> Any:
        """Value of a solution without violations; a class gives this or `value`."""
        return self.value(problem, solution)[0]

    def judged(self, problem: Any, solution: Any, /) -> int | None:
        """Return the value that the judge finds; None where it finds none of its own, or has
        compared it already.
        """
        return None

    def finish(self, problem: Any, solution: Any, queue: str | None = None) -> Finished:
        """Judge and value a solution, whoever made it; evaluator and judge must agree."""
        said = self.judge(problem, solution)
        violations = (said,) if isinstance(said, str) else tuple(said or ())
        if violations:
            return Finished(None, "", violations)
        try:
            found, judged = self.measured(problem, solution), self.judged(problem, solution)
        except InfeasiblePlacementError as error:
            return Finished(None, "", (str(error),))
        if judged is not None and found != judged:
            return Finished(
                None, "", (f"the evaluator finds a {self.name} of {found}, the judge {judged}",)
            )
        return Finished(found, "", ())

    def value(self, problem: Any, solution: Any, queue: str | None = None) -> tuple[Any, str]:
        """Value of a solution and the execution under which it holds; the fastest one unless
        `queue` is given.

        Raises
        ------
        InfeasiblePlacementError
            If the solution breaks a constraint; the message is the first violation.
        """
        finished = self.finish(problem, solution, queue)
        if finished.value is None:
            raise InfeasiblePlacementError(finished.violations[0])
        return finished.value, ""

    def usual_methods(self, seconds: float) -> tuple[str, ...]:
        """Return the bounds that are proved where none are named: all."""
        return self.bound_methods

    def prove(
        self, problem: Any, seconds: float, methods: Sequence[str], upper: int | None
    ) -> Iterator[tuple[str, int]]:
        """Yield (method, value) of the bounds named that the time allows."""
        yield from ()

    def bounds(
        self,
        problem: Any,
        seconds: float,
        methods: Sequence[str] | None = None,
        upper: int | None = None,
    ) -> BoundReport:
        """Prove lower bounds for about `seconds`.

        Raises
        ------
        InputError
            If a method is unknown.
        """
        started = time.perf_counter()
        check_methods(self.bounded, methods, self.bound_methods)
        found: dict[str, int] = {}
        reason = self.impossible(problem)
        try:
            proofs = (
                self.prove(problem, seconds, methods or self.usual_methods(seconds), upper)
                if not reason
                else ()
            )
            for method, value in proofs:
                found[method] = self.least_value(problem, value)
                if self.ends_at_upper and upper is not None and value >= upper:
                    break
        except InfeasibleProblemError as error:
            reason = str(error)
        return BoundReport.of(found, started, reason)

    def quick_bounds(self, problem: Any, seconds: float, upper: int | None = None) -> BoundReport:
        """Prove lower bounds in milliseconds; those that take longer on large problems end after
        `seconds`, if it is not 0.
        """
        return self.bounds(problem, 0.0, upper=upper)

    def text(self, problem: Any, value: Any) -> str:
        """Return a value in ticks as a time."""
        return time_text(None if value is None else float(value) * problem.tick_seconds)


PlainObjective = Objective
"""Its former name, which classes of other packages may derive from."""


class JudgedObjective(Objective):
    """What objectives of solutions that are no placements share: solutions of one class.

    Attributes
    ----------
    solution_class : class of its solutions. expected : what a solution is, for messages.
    """

    __slots__ = ()

    solution_class: ClassVar[type]
    expected: ClassVar[str]

    @abstractmethod
    def violations(self, problem: Any, solution: Any, /) -> list[str]:
        """Return what is wrong with a solution, in words, found without its evaluation."""

    def judge(self, problem: Any, solution: Any, queue: str | None = None) -> list[str]:
        """Violations of a solution in words."""
        if not isinstance(solution, self.solution_class):
            return [f"{self.expected}, received {type(solution).__name__}"]
        return self.violations(problem, solution)


OF_SOLUTIONS = ("finish", "judge", "value")
"""What an objective is asked of a solution."""


class OutsideObjective:
    """An objective of another package: what it raises, and what is no answer, is an error that
    names it.
    """

    __slots__ = ("_given",)

    def __init__(self, given: Any) -> None:
        self._given = given

    def __getattr__(self, key: str) -> Any:
        """Return a member; what can be called asks the objective."""
        found = getattr(self._given, key)
        if isinstance(found, type) or not callable(found):
            return found
        return partial(self._ask, key)

    def evaluate_batch(
        self, problem: Any, devices: ArrayLike, priorities: ArrayLike | None = None, **how: Any
    ) -> Ints:
        """Values of many placements, copies of which it is given. Of numbers with a point those
        beyond 63 bits are INFEASIBLE, as that is itself where it has become one.
        """
        rows = np.array(devices)
        given = self._ask("evaluate_batch", problem, rows.copy(), priorities, **how)
        found = np.array(None)
        with suppress(Exception):  # unlike rows, tensors that numpy does not take
            found = np.asarray(given)
            if found.dtype == object:
                found = np.asarray(found.tolist())
        right = found.shape == rows.shape[:1] and found.dtype.kind in "iuf"
        # an infinite one is whole
        if not right or not ((found >= 0) & (found == np.floor(found))).all():
            raise self._wrong(
                "evaluate_batch", f"{len(rows)} numbers of whole ticks, 0 or more", given
            )
        ticks, valid = np.full(len(rows), INFEASIBLE, np.int64), found < INFEASIBLE
        ticks[valid] = found[valid]
        return ticks

    def finish(self, problem: Any, solution: Any, queue: str | None = None) -> Finished:
        """Judge and value a solution."""
        found = self._ask("finish", problem, solution, queue)
        if not isinstance(found, Finished):
            raise self._wrong("finish", "a Finished", found)
        self._check_words("finish", found.violations)
        if not found.violations:
            self._check_ticks("finish", found.value)
        return found

    def judge(self, problem: Any, solution: Any, queue: str | None = None) -> list[str]:
        """Every violation of a solution in words."""
        found = self._ask("judge", problem, solution, queue)
        self._check_words("judge", found)
        return list(found)

    def impossible(self, problem: Any) -> str:
        """Return why no solution can exist, "" unless a simple reason proves it."""
        found = self._ask("impossible", problem)
        self._check_words("impossible", [found])
        return str(found)

    def bounds(self, *given: Any, **how: Any) -> BoundReport:
        """Prove lower bounds for some time."""
        return self._bounded("bounds", *given, **how)

    def quick_bounds(self, *given: Any, **how: Any) -> BoundReport:
        """Prove lower bounds in milliseconds."""
        return self._bounded("quick_bounds", *given, **how)

    def witness(self, *given: Any) -> Witness | None:
        """Return what proves a bound, as data; None where there is nothing."""
        found = self._ask("witness", *given)
        if not isinstance(found, Witness | None):
            raise self._wrong("witness", "a Witness or None", found)
        return found

    def _bounded(self, key: str, *given: Any, **how: Any) -> BoundReport:
        found = self._ask(key, *given, **how)
        if not isinstance(found, BoundReport):
            raise self._wrong(key, "a BoundReport", found)
        self._check_words(key, [found.infeasible, found.method, *found.bounds])
        for value in (found.value, *found.bounds.values()):
            self._check_ticks(key, value)
        return found

    def _ask(self, key: str, *given: Any, **how: Any) -> Any:
        """Return what the objective answers, or raise what it raised under its name."""
        try:
            return getattr(self._given, key)(*given, **how)
        except (InputError, SolverError, KeyboardInterrupt):
            raise
        except BaseException as error:
            if key in OF_SOLUTIONS and not any(hasattr(x, "device") for x in given[1:2]):
                raise  # what is no placement may be the fault of who made it
            words = f"objective '{self.name}': its {key} raised {raised(error)}"
            raise SolverError(brief(words)) from error

    def _check_words(self, key: str, words: Any) -> None:
        if not isinstance(words, list | tuple) or not all(isinstance(x, str) for x in words):
            raise self._wrong(key, "texts", words)

    def _check_ticks(self, key: str, value: Any) -> None:
        fits = isinstance(value, Rational) and not value < 0 and value <= sys.float_info.max
        if not fits:
            raise self._wrong(key, "whole ticks, 0 or more, below 2^1024", value)

    def _wrong(self, key: str, expected: str, received: Any) -> SolverError:
        given = type(received).__name__
        with suppress(Exception):  # which may be unable to say what it is
            given = f"{received!r:.60}"
        words = f"its {key} gives {given}, expected {expected}"
        return SolverError(brief(f"objective '{self.name}': {words}"))


_targets: dict[tuple[str, str], str | Objective] = {
    ("placement", "makespan"): "placeopt.makespan.objective:MAKESPAN",
    ("placement", "period"): "placeopt.period.objective:PERIOD",
    ("placement", "latency"): "placeopt.latency.objective:LATENCY",
    ("pipeline", "period"): "placeopt.schedules.objective:PIPELINE_PERIOD",
    ("jobs", "blocking"): "placeopt.streams.objective:BLOCKING",
    ("sharding", "cost"): "placeopt.sharding.objective:COST",
    ("plan", "sample-time"): "placeopt.plans.objective:SAMPLE_TIME",
    ("plan", "step-time"): "placeopt.plans.objective:STEP_TIME",
    ("split", "period"): "placeopt.splits.objective:SPLIT_PERIOD",
}


_ours = frozenset(_targets)


def objective_names(kind: str) -> tuple[str, ...]:
    """Return the names of the objectives of a type of problem."""
    return tuple(name for known, name in _targets if known == kind)


def check_objective(problem: Any, where: str) -> None:
    """Refuse a problem whose objective is none of its type.

    Raises
    ------
    InputError
        If `problem.objective` is no objective of `problem.problem_kind`; the message begins with
        `where`.
    """
    known = objective_names(problem.problem_kind)
    if problem.objective not in known:
        raise InputError(
            f"{where}: objective: expected {', '.join(known)}, received '{problem.objective}'"
        )


def added_objectives(kind: str) -> tuple[str, ...]:
    """Return the names of those that `register_objective` added and that value placements in
    batches.
    """
    return tuple(
        name
        for (known, name), objective in _targets.items()
        if known == kind and (known, name) not in _ours and hasattr(objective, "evaluate_batch")
    )


def register_objective(objective: Objective) -> None:
    """Make an objective available to problems by its name.

    Raises
    ------
    InputError
        If the name is taken by one of this package, or by one of another class.
    """
    key: Any = getattr(objective, "kind", None), getattr(objective, "name", None)
    if isinstance(objective, type) or not all(isinstance(word, str) for word in key):
        given = objective if isinstance(objective, type) else type(objective)
        raise InputError(
            "register_objective: expected an object with the texts kind and name, received "
            f"{'the class ' if given is objective else ''}{given.__qualname__}"
        )
    known = _targets.get(key, objective)
    if key in _ours or _class_name(known) != _class_name(objective):
        raise InputError(
            f"objective '{objective.name}' of {objective.kind} problems is taken; choose another "
            "name"
        )
    _targets[key] = objective


def _class_name(objective: Any) -> str:
    return f"{type(objective).__module__}:{type(objective).__qualname__}"


def registered_objective(kind: str, name: str) -> Objective | None:
    """Return an objective that `register_objective` was given in this process, None for others."""
    found: Any = _targets.get((kind, name))
    return None if (kind, name) in _ours else found  # type: ignore[no-any-return]


def take_objective(objective: Objective) -> None:
    """Register what `registered_objective` returned in another process, whatever has its name
    here.
    """
    _targets[objective.kind, objective.name] = objective


def named_objective(kind: str, name: str) -> Objective:
    """Return the objective of a type of problem by its name.

    Raises
    ------
    InputError
        If there is none; the message lists the names.
    """
    check_choice("objective", name, objective_names(kind))
    target = _targets[kind, name]
    if isinstance(target, str):
        target = _targets[kind, name] = pkgutil.resolve_name(target)
    return target  # type: ignore[return-value]


def objective_of(problem: Any) -> Objective:
    """Return the objective of a problem.

    Raises
    ------
    InputError
        If it is no problem.
    """
    kind, name = getattr(problem, "problem_kind", None), getattr(problem, "objective", None)
    if not isinstance(kind, str) or not isinstance(name, str):
        raise InputError(
            "expected a problem (po.load, po.load_pipeline, po.load_stream), received "
            f"{type(problem).__name__}"
        )
    found = named_objective(kind, name)
    return found if (kind, name) in _ours else OutsideObjective(found)  # type: ignore[return-value]


def default_solver(problem: Any) -> str:
    """Return the name of the solver that runs when none is named."""
    objective = objective_of(problem)
    chosen = getattr(objective, "default_for", None)
    return objective.default_solver if chosen is None else str(chosen(problem))


def compared_solvers(problem: Any) -> tuple[str, ...]:
    """Return the names of the solvers that are compared when none is named, the default among
    them.
    """
    return tuple(dict.fromkeys((*objective_of(problem).comparison, default_solver(problem))))


def time_text(seconds: float | None) -> str:
    """Return a time for people, in four digits."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"
