"""The registry of solvers: names, lazily imported, so that listing them imports none of the heavy libraries."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.solving.solver import Solver


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


def accepted_objectives(solver: Any, kind: str) -> tuple[str, ...] | None:
    """Return the objectives of a type of problem that a configured solver takes; None if it does not say."""
    target = f"{type(solver).__module__}:{type(solver).__qualname__}"
    found = [spec for spec in _known().values() if spec.target == target]
    if not found:
        declared = getattr(solver, "objectives", None)
        if declared is None or getattr(solver, "kind", kind) != kind:
            return None if declared is None else ()
        return tuple(declared)
    return tuple(name for spec in found if spec.kind == kind for name in spec.objectives)


def require_objective(solver: str, problem: Any, objectives: tuple[str, ...]) -> None:
    """Refuse a problem whose objective the solver does not handle."""
    if problem.objective not in objectives:
        raise Refused(
            f"solver '{solver}' accepts the objective {' or '.join(objectives)}, received '{problem.objective}' "
            f"of problem '{problem.name}'"
        )
