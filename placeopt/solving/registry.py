"""The Solver protocol and the registry of solvers: names, lazily imported, so that listing them
imports none of the heavy libraries.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

from placeopt.model.errors import InputError, SolverError, did_you_mean
from placeopt.model.files import one_line, raised
from placeopt.model.objective import added_objectives
from placeopt.model.result import Budget, Result
from placeopt.solving.options import declared_options
from placeopt.solving.plugin import declared
from placeopt.solving.tracker import OnProgress
from placeopt.version import __version__

ANY_OTHER = "any other"
"""Among a solver's objectives: it only asks for values in batches, and takes any objective that a
user registered."""


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


@dataclass(frozen=True)
class SolverSpec:
    """One line of the registry.

    Attributes
    ----------
    target : "module:Class", imported when the solver is made.
    kind : "placement", "split", "pipeline", "jobs", "sharding" or "plan".
    objectives : objectives of that problem type that the solver accepts, maybe with ANY_OTHER.
    search : whether it uses a budget (False: it stops by itself).
    paper : what it implements: authors, title, venue and year; "" where there is no paper.
    use : when to use it, in one line.
    broken : why the class of a plug-in cannot be used, "" if it can.
    """

    name: str
    target: str
    kind: str
    objectives: tuple[str, ...]
    summary: str
    search: bool = True
    paper: str = ""
    use: str = ""
    broken: str = ""

    @property
    def accepted(self) -> tuple[str, ...]:
        """Names of the objectives that the solver takes, those included that users have
        registered.
        """
        named = tuple(name for name in self.objectives if name != ANY_OTHER)
        return (
            named if len(named) == len(self.objectives) else (*named, *added_objectives(self.kind))
        )


def listed(
    room: str, kind: str, *objectives: str, search: bool = True
) -> Callable[..., SolverSpec]:
    """Return what lists a solver of the package `room`; what all of them share is said once, what
    is given to one alone by name.
    """
    shared = {"kind": kind, "objectives": objectives, "search": search}

    def spec(name: str, target: str, summary: str, paper: str, use: str, **own: Any) -> SolverSpec:
        told: dict[str, Any] = shared | own
        return SolverSpec(name, f"{room}.{target}", summary=summary, paper=paper, use=use, **told)

    return spec


SOLVERS = "placeopt.solvers"
"""The room above this one: `all_specs()` lists all solvers, and `first_run(group)` returns what
calls every kernel of a group."""

ENTRY_POINT_GROUP = "placeopt.solvers"
"""A package registers its own solvers by entry points in this group: name = "module:Class"."""

_registered: dict[str, SolverSpec] = {}


def register(
    name: str,
    *,
    kind: str = "placement",
    objectives: tuple[str, ...] = ("makespan",),
    summary: str = "",
) -> Callable[[type], type]:
    """Class decorator: make a user's solver available by `name`.

    Raises
    ------
    InputError
        If none is given, the name is taken by another class, or the class is one of this package;
        if `objectives` is one text.
    """
    if not isinstance(name, str) or not name:
        raise InputError(
            f'register: expected a name, as in @placeopt.register("mine"), received {name!r:.60}'
        )
    if isinstance(objectives, str):
        raise InputError(
            f"register: expected objectives as a tuple of names, received {objectives!r:.60}; "
            f"write ({objectives!r:.60},)"
        )

    def decorate(cls: type) -> type:
        target = f"{cls.__module__}:{cls.__qualname__}"
        known = known_specs().get(name)
        if known is not None and (known.target != target or target in own_names()):
            raise InputError(
                f"solver name '{name}' is taken by {known.target}; choose another name"
            )
        if target in own_names():  # what they take decides where they are believed
            raise InputError(
                f"solver '{name}': {target} is a class of placeopt; derive one from it"
            )
        _name(cls, name)
        words = summary or _summary_of(cls)
        _registered[name] = SolverSpec(name, target, kind, objectives, words)
        _classes[name] = cls
        return cls

    return decorate


_classes: dict[str, type] = {}


def _name(cls: Any, name: str) -> None:
    """Name a class that has no name of its own as it is registered."""
    if isinstance(cls, type) and not hasattr(cls, "name"):
        cls.name = name  # type: ignore[attr-defined]


def registered_solver(name: str) -> tuple[SolverSpec, type] | None:
    """Return a solver that `register` was given in this process, None for others."""
    return (_registered[name], _classes[name]) if name in _registered else None


def take_solver(spec: SolverSpec, cls: type) -> None:
    """Register what `registered_solver` returned in another process, whatever has its name here."""
    _registered[spec.name], _classes[spec.name] = spec, cls


def _summary_of(cls: type) -> str:
    """Return the first paragraph of a class's docstring, in one line."""
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def specs(kind: str | None = None) -> dict[str, SolverSpec]:
    """Return the registered solvers by name; of one problem kind, or of all. What kind broken ones
    are of nobody knows.
    """
    found = known_specs()
    for point in _entry_points():
        if point.name not in found:
            found[point.name] = _spec_of_entry_point(point)
        elif point.name not in _registered and found[point.name].target != point.value:
            taken = found[point.name].target
            words = f"solver '{point.name}' of {point.value} is left out: {taken} has its name"
            warnings.warn(words, stacklevel=2)
    return {name: x for name, x in found.items() if kind in (None, x.kind) or x.broken}


def spec_of(name: str, kind: str) -> SolverSpec | None:
    """Return what is known of a solver, None if there is none.

    No package of others is imported but the one that names it: that may take long, or fail.
    """
    known = known_specs().get(name)
    if known is not None and known.kind == kind:
        return known
    named = (_spec_of_entry_point(point) for point in _entry_points() if point.name == name)
    return next((spec for spec in named if spec.kind == kind or spec.broken), None)


def known_specs() -> dict[str, SolverSpec]:
    """Return the solvers of placeopt and those registered in this process; no entry point is looked
    up.
    """
    return {spec.name: spec for spec in _own_specs()} | _registered


@functools.cache
def _own_specs() -> tuple[SolverSpec, ...]:
    """Return the solvers that this package brings."""
    return importlib.import_module(SOLVERS).all_specs()


@functools.cache
def own_names() -> dict[str, str]:
    """Return the name of every solver of this package, by its target."""
    return {spec.target: spec.name for spec in _own_specs()}


def is_ours(solver: Any) -> bool:
    """Whether what a solver says of bounds is believed: its class is one that this package
    registers, unchanged.

    The class object decides, not what it says of itself: a class derived from ours, one of the same
    name, or one of ours with anything but its options on the instance is not ours.
    """
    cls = type(solver)
    target = f"{cls.__module__}:{cls.__qualname__}"
    if target not in own_names() or pkgutil.resolve_name(target) is not cls:
        return False
    return vars(solver).keys() <= {field.name for field in fields(cls)}


def _entry_points() -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the solvers of other packages; the folders of installed packages are read again when
    one has changed.
    """
    return _entry_points_in(tuple((folder, _changed(folder)) for folder in sys.path))


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=4)
def _entry_points_in(
    folders: tuple[tuple[str, int], ...],
) -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def _spec_of_entry_point(point: importlib.metadata.EntryPoint) -> SolverSpec:
    """Describe a solver of another package; its class may carry `kind`, `objectives`, `paper`,
    `use` and a docstring.
    """
    try:
        cls = point.load()
        if point.name in _registered:  # its module says of what kind it is, and what it takes
            return _registered[point.name]
        _name(cls, point.name)
        return SolverSpec(
            point.name,
            point.value,
            str(getattr(cls, "kind", "placement")),
            _names(cls, getattr(cls, "objectives", ("makespan",))),
            _summary_of(cls),
            paper=str(getattr(cls, "paper", "")),
            use=str(getattr(cls, "use", "")),
        )
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # one broken package must not disable the others
        words = f"cannot be imported from {point.value}: {raised(error)}"
        return SolverSpec(
            point.name, point.value, "placement", (), f"broken: {words}", broken=words
        )


def solver_class(name: str, kind: str = "placement") -> type:
    """Return the class registered under `name`.

    Raises
    ------
    InputError
        If there is none; the message names the nearest one.
    SolverError
        If it belongs to a plug-in that cannot be imported.
    """
    spec = spec_of(name, kind)
    if spec is None:
        hint = did_you_mean(name, sorted(specs(kind)))
        raise InputError(f"solver '{name}' is not known for {kind} problems; {hint}")
    if spec.broken:
        raise SolverError(f"solver '{name}' {spec.broken}")
    return _classes.get(name) or pkgutil.resolve_name(spec.target)


def solver_version(name: str, kind: str = "placement") -> str:
    """Return the version of a solver: its class attribute `version`, else the version of the
    package it comes from.
    """
    cls = solver_class(name, kind)
    declared = getattr(cls, "version", None)
    if isinstance(declared, str | int | float):
        return str(declared)
    package = cls.__module__.partition(".")[0]
    if package == "placeopt":
        return __version__
    for distribution in _distributions().get(package, ()):
        return f"{distribution} {importlib.metadata.version(distribution)}"
    for point in _entry_points():
        if point.name == name and point.dist is not None:
            return f"{point.dist.name} {point.dist.version}"
    return ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Return who brings which package: all files of all that is installed are looked at."""
    return importlib.metadata.packages_distributions()


def make_solver(name: str, kind: str = "placement", **options: Any) -> Solver:
    """Return the solver registered under `name`, configured by `options` (its dataclass fields).

    Raises
    ------
    InputError
        If the name or an option is unknown, or an option has the wrong type.
    SolverError
        If the class cannot be imported or made: a broken plug-in.
    """
    cls = solver_class(name, kind)
    known = declared_options(cls)
    for key in options:
        if key not in known:
            raise InputError(f"solver '{name}' has no option '{key}'; {did_you_mean(key, known)}")
    try:
        solver = cls(**options)
    except InputError:
        raise
    except TypeError as error:
        if options:
            raise InputError(f"solver '{name}': {error}") from error
        raise SolverError(f"solver '{name}' cannot be made without options: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SolverError(f"solver '{name}' cannot be made: {raised(error)}") from error
    declared(solver)
    return solver  # type: ignore[no-any-return]


def _names(cls: Any, declared: Any) -> tuple[str, ...]:
    if isinstance(declared, list | tuple | set | frozenset):
        return tuple(map(str, declared))
    raise SolverError(
        f"solver class '{getattr(cls, '__qualname__', cls)}': expected objectives as a tuple of "
        f"names, received {one_line(repr(declared), 60)}"
    )


def accepted_objectives(solver: Any, kind: str) -> tuple[str, ...] | None:
    """Return the objectives of a type of problem that a configured solver takes; None if it does
    not say.
    """
    target = f"{type(solver).__module__}:{type(solver).__qualname__}"
    found = [spec for spec in known_specs().values() if spec.target == target]
    if not found:
        said = declared(solver)
        if said.objectives is None or said.kind not in (None, kind):
            return None if said.objectives is None else ()
        return _names(type(solver), said.objectives)
    return tuple(name for spec in found if spec.kind == kind for name in spec.accepted)
