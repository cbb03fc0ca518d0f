"""What a search of another package meets: a problem of its own, and a narrow face of the tracker.

A bound counts if a solver of this package proved it. What a plug-in says of bounds, infeasibility
or reasons is a claim: the Result's message shows it as one, however the search ends. What it offers
is copied, valued and judged before it is taken, so that nothing that it does to the object
afterwards matters; what it is given, problem, incumbent and trace, are copies that share no array:
numpy lets arrays be unpickled on top of bytes, and writes to them.

Where the line is: Python has no walls inside a process. This holds against solvers that are wrong,
careless or boastful, and that use what they are given in any way. It cannot hold against code that
replaces functions of this package, reads its private names, finds the objects of others (by frames,
the garbage collector, or since it was handed them beforehand), or writes to memory through ctypes.
Whoever needs more than that asks for a proof file and has `tools/check_proof.py` follow it.
"""

from __future__ import annotations

import copy
import operator
import sys
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from placeopt.model.arrays import frozen_copy
from placeopt.model.errors import SolverError, brief
from placeopt.model.files import Data, one_line, raised
from placeopt.model.result import Budget, SolutionT, TracePoint
from placeopt.solving.deadline import LARGE
from placeopt.solving.tracker import Exchange, Follower, OnProgress, Tracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.objective import Finished, Objective

MOST_EVALUATIONS = 2**62
"""Evaluations counted in all; more is no number of evaluations."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, Fraction, type, np.dtype)
"""Types whose values cannot change."""


class PluginTracker(Generic[SolutionT]):
    """The tracker of a search of another package.

    It has the members of a Tracker, so that a search need not know which of the two it meets, but
    what a search writes here decides nothing beyond its own end.

    Attributes
    ----------
    problem, initial : copies. trace : copies of what has been noted so far.
    value, solution : of the incumbent, the solution a copy.
    lower_bound, bound_method : what this package has proved.
    """

    def __init__(self, whole: Tracker[SolutionT], objective: Objective) -> None:
        self.__whole, self.__objective = whole, objective
        self.__shown: tuple[Any, Any] = (None, None)  # the incumbent and its copy
        self.__claimed: Any = 0
        self.__message = ""
        self.solver, self.seed = whole.solver, whole.seed
        self.problem = lent(whole.problem)
        self.initial = lent(whole.initial)
        self.budget: Budget = replace(whole.budget)
        self.stopped, self.stop_reason, self.reason = False, "converged", ""
        self.exchange: Exchange | None = None
        self.gained: tuple[float, ...] = (0.0, 0.0)
        self.on_progress: OnProgress | None = None

    @staticmethod
    def whole_of(tracker: Any) -> Tracker[Any]:
        """Return the tracker behind a face, and any other as it is."""
        if type(tracker) is not PluginTracker:
            return tracker  # type: ignore[no-any-return]
        return tracker.__whole

    def __enter__(self) -> PluginTracker[SolutionT]:
        return self

    def __exit__(self, *error: Any) -> bool:
        """Let Ctrl-C end the block and keep the incumbent."""
        return self.__whole.__exit__(*error)

    # --- what a search asks
    # ------------------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """Value of the incumbent, as it was found here."""
        return self.__whole.value

    @property
    def solution(self) -> Any:
        """A copy of the incumbent."""
        if self.__whole.solution is not self.__shown[0]:
            known = self.__whole.solution
            self.__shown = known, lent(known)
        return self.__shown[1]

    @solution.setter
    def solution(self, solution: Any) -> None:
        """Replace the incumbent by one that is as good, judged like any other."""
        whole = self.__whole
        own, finished = self.__judged(solution, None)
        if not whole.closed and finished.value == whole.value:
            whole.solution, whole.verdict = own, (own, finished)
        else:
            self.__keep(own, finished)

    @property
    def lower_bound(self) -> int:
        """What this package has proved."""
        return self.__whole.lower_bound

    @property
    def bound_method(self) -> str:
        """Name of the bound that this package has proved."""
        return self.__whole.bound_method

    @property
    def evaluations(self) -> int:
        """Evaluations counted so far."""
        return self.__whole.evaluations

    @property
    def evaluations_left(self) -> int:
        """Evaluations left in the budget, a huge number without a limit."""
        return self.__whole.evaluations_left

    def share(self, part: float) -> Budget:
        """Return the budget of a search that may take that part of what is left."""
        return self.__whole.share(part)

    @property
    def elapsed(self) -> float:
        """Seconds since the solve began."""
        return self.__whole.elapsed

    @property
    def seconds_left(self) -> float:
        """Seconds left in the budget, infinity without a limit."""
        return self.__whole.seconds_left

    def left(self) -> float:
        """Seconds left in the budget, none where the search has to end now."""
        return self.__whole.left()

    @property
    def in_time(self) -> bool:
        """Whether time is left and nobody else has ended the search."""
        return self.__whole.in_time

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self.__whole.closed

    @property
    def trace(self) -> list[TracePoint]:
        """What has been noted so far."""
        return [replace(point) for point in self.__whole.trace]

    def rng(self) -> np.random.Generator:
        """Return a generator of random numbers that depends on the seed alone."""
        return np.random.default_rng(self.__whole.seed)

    def stop(self) -> bool:
        """Whether the search has to end now; a claim that meets the incumbent ends it too, as far
        as it is concerned.
        """
        if self.exchange is not None:
            self.exchange.meet(self)
        value = self.__whole.value
        return (
            self.__whole.stop() or self.stopped or (value is not None and value <= self.__claimed)
        )

    def stop_with_solution(self) -> bool:
        """The same, but not before there is a solution if time is all that ran out."""
        return self.stop() and (self.stopped or self.__whole.stop_with_solution())

    # --- what a search tells
    # -----------------------------------------------------------------------------

    def offer(self, value: Any, solution: Any = None) -> bool:
        """Copy, value and judge a solution and make it the incumbent if it is better; return
        whether it was.

        `offer(value, solution)` leaves a solution aside whose value, as the search has it, is not
        better. `offer(solution)` values it in any case.

        Raises
        ------
        SolverError
            If it is not valid.
        """
        if solution is None:
            value, solution = None, value
        known = self.__whole.value
        if self.__whole.closed or (
            known is not None and _number(value) is not None and value >= known
        ):
            return False
        return self.take(value, solution)

    def take(self, value: Any, solution: Any) -> bool:
        """Do what `offer` does, whatever value the search has for the solution."""
        return self.__keep(*self.__judged(solution, value))

    def __judged(self, solution: Any, value: Any) -> tuple[Any, Finished]:
        whole, objective = self.__whole, self.__objective
        try:
            own = restated(solution, whole.problem, objective)
            if type(own) in (tuple, np.ndarray) and objective.kind == "placement":
                # arrays have a `device` of their own
                raise TypeError(f"expected a Placement, received {type(solution).__name__}")
            finished = objective.finish(whole.problem, own)
        except SolverError:
            raise
        except Exception as error:
            raise SolverError(
                f"solver '{whole.solver}' found something that is no solution "
                f"({brief(raised(error))})"
            ) from error
        if finished.value is None or finished.violations:
            why = finished.violations[0]
            raise SolverError(f"solver '{whole.solver}' found a solution that is not valid: {why}")
        claimed = _number(value)
        if claimed is not None and claimed < finished.value:
            whole.claim(
                "value", f"claims a value of {claimed} ticks for a solution of {finished.value}"
            )
        return own, finished

    def __keep(self, own: Any, finished: Finished) -> bool:
        whole = self.__whole
        if not whole.offer(finished.value, own):
            return False
        whole.verdict = own, finished
        return True

    def count(self, evaluations: int = 1) -> None:
        """Add to the number of evaluations, within the budget."""
        whole = self.__whole
        room = min(whole.evaluations_left, MOST_EVALUATIONS - whole.evaluations)
        whole.count(max(0, min(int(evaluations), room)))

    def raise_bound(self, value: Any, method: Any = "") -> bool:
        """Record a lower bound as a claim; return whether it is above the last one."""
        claimed = _number(value)
        if claimed is None or claimed <= self.__claimed or claimed <= self.__whole.lower_bound:
            return False
        self.__claimed = claimed
        words = f"claims a bound of {claimed} ticks{_by(method)}, not proved here"
        self.__whole.claim("bound", words)
        return True

    def infeasible(self, reason: Any) -> None:
        """Record as a claim that there is no solution, and end the search."""
        self.reason, self.stopped = _words(reason), True
        self.__whole.claim(
            "infeasible", f"claims that there is no solution ('{self.reason}'), not proved here"
        )

    @property
    def message(self) -> str:
        """What the search says of itself; the Result shows it as that."""
        return self.__message

    @message.setter
    def message(self, text: Any) -> None:
        self.__message = _words(text)
        self.__whole.claim("message", f"says '{self.__message}'" if self.__message else "")

    def interrupt(self) -> None:
        """End the search as Ctrl-C does."""
        self.stopped = True
        self.__whole.interrupt()

    def beside(self, problem: Any, budget: Budget) -> Tracker[Any]:
        """Return a tracker for the search of another problem, a part of this one, say: it ends with
        this search.
        """
        own: Tracker[Any] = Tracker(self.solver, problem, budget, seed=self.seed)
        own.exchange = Follower(self)
        return own


def adopt(face: PluginTracker[Any], result: Any) -> None:
    """Take what the `solve` of another package returned: the solution, and what it says of it as
    claims.

    Raises
    ------
    SolverError
        If it is no Result, or the solution is not valid.
    """
    if not (result is None or hasattr(result, "status") or hasattr(result, "solution")):
        raise SolverError(
            f"solver '{face.solver}': its solve returned a {type(result).__name__}, expected a "
            "Result"
        )
    face.count(_number(getattr(result, "evaluations", 0)) or 0)
    face.message = getattr(result, "message", "")
    face.raise_bound(getattr(result, "lower_bound", 0), getattr(result, "bound_method", ""))
    if _text(getattr(result, "status", "")) == "infeasible":
        face.infeasible(face.message)
    solution = getattr(result, "solution", None)
    if solution is not None:
        face.take(getattr(result, "value", None), solution)
    if (
        _text(getattr(result, "stop_reason", "")) == "interrupted"
    ):  # Ctrl-C that it has caught ends more than itself
        face.interrupt()
    face.stop()  # says what ended it, if it was the budget


def settled(solver: Any) -> Any:
    """Return one of our solvers with its options made plain and checked again, so that nothing that
    is done to it, or that an option does, matters later.
    """
    read = {field.name: getattr(solver, field.name) for field in fields(solver) if field.init}
    return replace(solver, **{key: _settled(value) for key, value in read.items()})


def _settled(value: Any) -> Any:
    for kind, plain in _MAKE_PLAIN[:5]:
        if isinstance(value, kind):
            return plain(value)
    return operator.index(value) if hasattr(value, "__index__") else value


@dataclass(frozen=True)
class Declared:
    """What a solver says of itself, read once: see `placeopt.solving.base.SearchSolver`. The
    problems that it takes are None where it does not say.
    """

    name: str
    endless: bool
    watched_from: int
    kernels: tuple[str, ...]
    kind: Any
    objectives: Any


def declared(solver: Any) -> Declared:
    """Return what a solver says of itself, its name fit to be shown.

    Raises
    ------
    SolverError
        If that cannot be read.
    """
    try:
        return Declared(
            _words(solver.name) or type(solver).__name__,
            bool(getattr(solver, "endless", False)),
            operator.index(getattr(solver, "watched_from", LARGE)),
            tuple(map(str, getattr(solver, "kernels", ()))),
            getattr(solver, "kind", None),
            getattr(solver, "objectives", None),
        )
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SolverError(
            f"solver class '{type(solver).__qualname__}': its name, kind, objectives, endless, "
            f"watched_from or kernels cannot be read ({raised(error)})"
        ) from error


# --- copies
# ------------------------------------------------------------------------------------------------


def lent(value: Any) -> Any:
    """Return a copy of a problem or a solution for others: they share nothing that can change."""
    return _lent(value, {})


def _lent(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if id(value) in known:
        return known[id(value)]
    if is_dataclass(value) and hasattr(value, "__dict__"):
        made = known[id(value)] = object.__new__(type(value))
        for key, part in vars(value).items():
            object.__setattr__(made, key, _lent(part, known))
    else:
        made = known[id(value)] = _lent_parts(value, known)
    return made


def _lent_parts(value: Any, known: dict[int, Any]) -> Any:
    """The same of an array, a collection, or an object of another kind."""
    if isinstance(value, np.ndarray):
        keep = value.flags.writeable or value.dtype.hasobject
        return value.copy() if keep else frozen_copy(value)
    if isinstance(value, tuple):
        parts = [_lent(part, known) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if type(value) is dict:
        return {key: _lent(part, known) for key, part in value.items()}
    if type(value) is list:
        return [_lent(part, known) for part in value]
    try:
        return copy.deepcopy(value)
    except Exception:  # a lock, say: no copy can be made, and nothing that is solved holds one
        return value


def restated(solution: Any, problem: Any, objective: Any) -> Any:
    """Return a copy of what somebody else calls a solution, made of plain values and of classes of
    this package alone.

    Every part is read once. A solution that holds its problem gets `problem`, and what its class
    lists in `claims` is left out. Where the class of solutions, or of the problem, is not of this
    package, solutions are copied as they see fit.

    Raises
    ------
    TypeError
        If it is made of anything else.
    """
    expected = getattr(objective, "solution_class", None)
    foreign = problem is not None and _class_here(type(problem)) is None
    if expected is not None:
        foreign = _class_here(expected) is not expected
    if foreign:
        return copy.deepcopy(solution)
    return _restated(solution, problem)


def _restated(value: Any, problem: Any) -> Any:
    for kind, plain in _MAKE_PLAIN:
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, list | tuple):
        return tuple(_restated(part, problem) for part in value)
    cls = _class_here(type(value))
    if cls is None or not is_dataclass(cls):
        raise TypeError(
            f"expected a solution of classes of this package, received {type(value).__name__}"
        )
    return cls(**_restated_fields(cls, value, problem))


def _restated_fields(cls: type, value: Any, problem: Any) -> Data:
    """Return what the fields of a class are in `value`, but its problem and what it claims."""
    read: Data = {}
    for field in fields(cls):
        if field.name == "problem":
            read["problem"] = problem
        elif field.init and field.name not in getattr(cls, "claims", ()):
            read[field.name] = _restated(getattr(value, field.name), problem)
    return read


def _array(value: Any) -> Any:
    plain = np.asarray(value)
    if plain.dtype.kind not in "biuf":
        raise TypeError(f"expected an array of numbers, received {plain.dtype}")
    return frozen_copy(plain)


_MAKE_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (type(None), lambda value: None),
    (bool, bool),
    (int, int.__index__),
    (float, float.__pos__),
    (str, str.__str__),
    (Fraction, lambda value: Fraction(value.numerator, value.denominator)),
    (np.generic, lambda value: _array(value).item()),
    (np.ndarray, _array),
)
"""What is plain already, or is made so: classes derived from these may change their mind."""


def _class_here(cls: type) -> type | None:
    """Return the nearest base that a module of this package has under its name, `cls` itself for
    one; None if none is.
    """
    for base in cls.__mro__:
        found: Any = (
            sys.modules.get(base.__module__)
            if str(base.__module__).startswith("placeopt.")
            else None
        )
        for name in base.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is base:
            return base
    return None


# --- words
# -------------------------------------------------------------------------------------------------


def _number(value: Any) -> Any:
    """Return a finite number as a plain one, None for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in (int, Fraction) or (type(value) is float and np.isfinite(value)):
        return value
    return None


def _text(value: Any) -> str:
    return value if type(value) is str else ""


def _words(value: Any) -> str:
    return one_line(brief(_text(value)), 160)


def _by(method: Any) -> str:
    return f" by '{_words(method)}'" if _text(method) else ""
