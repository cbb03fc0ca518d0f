"""The Solver protocol, the registry of names, and the tracker every search reports to.

A solver is a frozen dataclass: its fields are its configuration, and `solve` leaves it unchanged. The
registry maps names to solvers lazily, so that listing them imports none of the heavy libraries.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from placeopt.errors import InputError
from placeopt.solution import Budget, Result, SolutionT, TracePoint

if TYPE_CHECKING:
    from types import TracebackType

ProblemT = TypeVar("ProblemT")


@dataclass(frozen=True)
class Progress:
    """What a solver tells while it runs."""

    seconds: float
    evaluations: int
    incumbent: int | None  # ticks
    lower_bound: int  # ticks
    note: str = ""


OnProgress = Callable[[Progress], None]


@runtime_checkable
class Solver(Protocol):
    """Anything with a registered name and a `solve` method."""

    name: ClassVar[str]

    def solve(
        self,
        problem: Any,
        budget: Budget,
        *,
        seed: int,
        initial: Any = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Any]:
        """Search for the best solution of `problem` within `budget`."""
        ...


# --- registry ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SolverSpec:
    """One line of the registry.

    Attributes
    ----------
    target : "module:Class", imported when the solver is made.
    kind : "placement", "pipeline" or "jobs".
    objectives : objectives of that problem type that the solver accepts.
    search : whether it uses a budget (False: it stops by itself).
    """

    name: str
    target: str
    kind: str
    objectives: tuple[str, ...]
    summary: str
    search: bool = True


SPEC_MODULES = (
    "placeopt.solvers.heuristics",
    "placeopt.solvers.exact",
    "placeopt.solvers.search",
    "placeopt.solvers.policy",
    "placeopt.solvers.degree",
    "placeopt.schedules",
)
"""Packages whose `SPECS` tuple lists the solvers they bring."""

ENTRY_POINT_GROUP = "placeopt.solvers"
"""A package registers its own solvers by entry points in this group: name = "module:Class"."""

_registered: dict[tuple[str, str], SolverSpec] = {}


def register(
    name: str, *, kind: str = "placement", objectives: tuple[str, ...] = ("makespan",), summary: str = ""
) -> Callable[[type], type]:
    """Class decorator: make a user's solver available by `name`.

    Raises
    ------
    InputError
        If the name is taken by another class.
    """

    def decorate(cls: type) -> type:
        target = f"{cls.__module__}:{cls.__qualname__}"
        known = _known().get(name)
        if known is not None and known.target != target:
            raise InputError(f"solver name '{name}' is taken by {known.target}; choose another name")
        words = summary or (cls.__doc__ or "").strip().split("\n")[0]
        _registered[kind, name] = SolverSpec(name, target, kind, objectives, words)
        _classes[target] = cls
        return cls

    return decorate


_classes: dict[str, type] = {}


def specs(kind: str | None = None) -> dict[str, SolverSpec]:
    """Return the registered solvers by name; of one problem kind, or of all."""
    found = _known()
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if point.name not in found:
            found[point.name] = _spec_of_entry_point(point)
    return {name: spec for name, spec in found.items() if kind in (None, spec.kind)}


def _known() -> dict[str, SolverSpec]:
    """Return the solvers of placeopt and those registered in this process; no entry point is looked up."""
    found: dict[str, SolverSpec] = {}
    for module in SPEC_MODULES:
        for spec in getattr(importlib.import_module(module), "SPECS", ()):
            found[spec.name] = spec
    return {**found, **{name: spec for (_, name), spec in _registered.items()}}


def _spec_of_entry_point(point: importlib.metadata.EntryPoint) -> SolverSpec:
    """Describe a solver of another package; its class may carry `kind`, `objectives` and a docstring."""
    try:
        cls = point.load()
    except Exception as error:
        raise InputError(f"solver '{point.name}' of entry point {point.value} cannot be imported: {error}") from error
    return SolverSpec(
        point.name,
        point.value,
        getattr(cls, "kind", "placement"),
        tuple(getattr(cls, "objectives", ("makespan",))),
        (cls.__doc__ or "").strip().split("\n")[0],
    )


def solver_class(name: str, kind: str = "placement") -> type:
    """Return the class registered under `name`.

    Raises
    ------
    InputError
        If there is none; the message lists the names.
    """
    spec = _known().get(name)
    if spec is None or spec.kind != kind:
        table = specs(kind)  # now with the entry points of other packages, which take longer to find
        if name not in table:
            raise InputError(f"solver '{name}' is not known for {kind} problems; known: {', '.join(sorted(table))}")
        spec = table[name]
    target = spec.target
    if target in _classes:
        return _classes[target]
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]


def make_solver(name: str, kind: str = "placement", **options: Any) -> Solver:
    """Return the solver registered under `name`, configured by `options` (its dataclass fields).

    Raises
    ------
    InputError
        If the name or an option is unknown, or an option has the wrong type.
    """
    cls = solver_class(name, kind)
    known = {field.name: field for field in fields(cls)}
    for key in options:
        if key not in known:
            raise InputError(f"solver '{name}' has no option '{key}'; its options: {', '.join(known) or 'none'}")
    try:
        return cls(**options)  # type: ignore[no-any-return]
    except TypeError as error:
        raise InputError(f"solver '{name}': {error}") from error


def require_objective(solver: str, problem: Any, objectives: tuple[str, ...]) -> None:
    """Refuse a problem whose objective the solver does not handle."""
    if problem.objective not in objectives:
        raise InputError(
            f"solver '{solver}' accepts the objective {' or '.join(objectives)}, received '{problem.objective}' "
            f"of problem '{problem.name}'"
        )


# --- tracker -------------------------------------------------------------------------------------------


class Tracker(Generic[SolutionT]):
    """Keeps the incumbent, the bound, the clock and the trace of one `solve`.

    A search offers candidates and asks `stop` between steps::

        tracker = Tracker("annealing", problem, budget, seed=seed, on_progress=on_progress)
        with tracker:                       # Ctrl-C ends the block, keeps the incumbent
            while not tracker.stop():
                ...
                tracker.count(batch)
                tracker.offer(value, placement)
        return finish(tracker)              # re-evaluates and builds the Result

    Attributes
    ----------
    value : value of the incumbent in ticks, None without one.
    solution : the incumbent.
    """

    def __init__(
        self,
        solver: str,
        problem: Any,
        budget: Budget,
        *,
        seed: int = 0,
        on_progress: OnProgress | None = None,
        progress_interval: float = 0.1,
    ) -> None:
        self.solver, self.problem, self.budget, self.seed = solver, problem, budget, seed
        self.started = time.perf_counter()
        self.value: int | None = None
        self.solution: SolutionT | None = None
        self.lower_bound = 0
        self.bound_method = "none"
        self.evaluations = 0
        self.trace: list[TracePoint] = []
        self.stop_reason = "converged"
        self.stopped = False
        self._on_progress = on_progress
        self._interval = progress_interval
        self._last_report = -1e9

    def __enter__(self) -> Tracker[SolutionT]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.stop_reason, self.stopped = "interrupted", True
            return True
        return False

    @property
    def elapsed(self) -> float:
        """Seconds since the solve began."""
        return time.perf_counter() - self.started

    @property
    def seconds_left(self) -> float:
        """Seconds left in the budget, infinity without a time limit, never negative."""
        return float("inf") if self.budget.seconds is None else max(0.0, self.budget.seconds - self.elapsed)

    @property
    def evaluations_left(self) -> int:
        """Evaluations left in the budget, a huge number without a limit."""
        return 2**62 if self.budget.evaluations is None else max(0, self.budget.evaluations - self.evaluations)

    def count(self, evaluations: int = 1) -> None:
        """Add to the number of evaluations."""
        self.evaluations += evaluations
        self._report()

    def offer(self, value: int, solution: SolutionT) -> bool:
        """Make `solution` the incumbent if it is better; return whether it was."""
        if self.value is not None and value >= self.value:
            return False
        self.value, self.solution = int(value), solution
        self._note()
        return True

    def raise_bound(self, value: int, method: str) -> bool:
        """Record a proven lower bound if it is better; return whether it was."""
        if value <= self.lower_bound:
            return False
        self.lower_bound, self.bound_method = int(value), method
        self._note()
        return True

    def stop(self) -> bool:
        """Whether the search has to end now; sets `stop_reason` when it does."""
        if self.stopped:
            return True
        reason = None
        if self.value is not None and self.value <= self.lower_bound:
            reason = "proved"
        elif self.value is not None and self.budget.target is not None and self.value <= self.budget.target:
            reason = "target"
        elif self.evaluations_left == 0:
            reason = "evaluations"
        elif self.seconds_left == 0.0:
            reason = "time"
        if reason is not None:
            self.stop_reason, self.stopped = reason, True
        return self.stopped

    def result(
        self,
        *,
        status: str | None = None,
        queue: str = "",
        message: str = "",
        solution: SolutionT | None = None,
        objective: int | None = None,
    ) -> Result[SolutionT]:
        """Build the Result. `solution` and `objective` replace the incumbent where it was re-evaluated."""
        if solution is None:
            solution, objective = self.solution, self.value
        if objective is not None and objective <= self.lower_bound:
            status, self.stop_reason = "optimal", "proved" if self.stop_reason != "interrupted" else "interrupted"
        elif status is None:
            status = "unknown" if solution is None else "feasible"
        return Result(
            problem=self.problem.name,
            solver=self.solver,
            solution=solution,
            objective=objective,
            lower_bound=self.lower_bound,
            bound_method=self.bound_method,
            status=status,
            stop_reason=self.stop_reason,
            evaluations=self.evaluations,
            runtime=self.elapsed,
            seed=self.seed,
            queue=queue,
            message=message,
            tick_seconds=getattr(self.problem, "tick_seconds", 1e-9),
            objective_name=getattr(self.problem, "objective", "makespan"),
            trace=tuple(self.trace),
        )

    def _note(self) -> None:
        self.trace.append(TracePoint(self.elapsed, self.evaluations, self.value, self.lower_bound))
        self._report(force=True)

    def _report(self, force: bool = False) -> None:
        if self._on_progress is None:
            return
        now = self.elapsed
        if force or now - self._last_report >= self._interval:
            self._last_report = now
            self._on_progress(Progress(now, self.evaluations, self.value, self.lower_bound))
