"""Options of a solver, declared once: default, range or choices, meaning.

A solver is a frozen dataclass whose fields are its options::

    walks: int = option(2, "annealing walks at the same time", low=1)

The check, the error, `placeopt solvers NAME` and the documentation come from that line.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from placeopt.model.errors import InputError, SolverError

_KEY = "option"


@dataclass(frozen=True)
class Option:
    """What a field may be.

    Attributes
    ----------
    low, high : smallest and largest value; `above` and `below` are limits that the value may not
    meet.
    choices : the values allowed, None for any.
    optional : whether None is allowed.
    """

    meaning: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] | None = None
    optional: bool = False

    @property
    def expected(self) -> str:
        """The constraint in words, "" if there is none."""
        if self.choices is not None:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        limits = {
            "more than": self.above,
            "at least": self.low,
            "at most": self.high,
            "below": self.below,
        }
        return " and ".join(f"{words} {x:g}" for words, x in limits.items() if x is not None)

    def accepts(self, value: Any) -> bool:
        """Whether a value of the right type is allowed."""
        if self.choices is not None:
            return value in self.choices
        if not issubclass(type(value), Real) or isinstance(value, bool):
            return True
        return (
            not math.isnan(value)  # which keeps no limits
            and (self.above is None or value > self.above)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )


def option(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """Return a dataclass field with its constraints; None as default allows None."""
    declared = Option(meaning, low, high, above, below, choices, default is None)
    return dataclasses.field(default=default, metadata={_KEY: declared})


def declared_options(cls: type) -> dict[str, tuple[dataclasses.Field[Any], Option | None]]:
    """Return the options of a solver class by name: its fields and their constraints, in order.

    Raises
    ------
    SolverError
        If the class was not made a dataclass: its options would be what `option` returns.
    """
    for key, value in vars(cls).items():
        if isinstance(value, dataclasses.Field):
            raise SolverError(
                f"solver class '{cls.__qualname__}': write @dataclass(frozen=True) above it, "
                f"since it has the option '{key}'"
            )
    if not dataclasses.is_dataclass(cls):
        return {}
    return {
        field.name: (field, field.metadata.get(_KEY))
        for field in dataclasses.fields(cls)
        if field.init
    }


def default_of(field: dataclasses.Field[Any]) -> str:
    """Return the default of an option as it is written, "required" if it has none."""
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    return (
        "required"
        if field.default_factory is dataclasses.MISSING
        else repr(field.default_factory())
    )


def named(names: str, known: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return those of `known` that an option names: "all", or some joined by commas.

    Raises
    ------
    InputError
        If one is not known.
    """
    wanted = known if names == "all" else tuple(name.strip() for name in names.split(","))
    for name in wanted:
        if name not in known:
            raise InputError(
                f"{where}: expected all, or some of {', '.join(known)}, received {name!r:.60}"
            )
    return wanted


def check_options(solver: Any, name: str) -> None:
    """Check every option of a configured solver.

    Raises
    ------
    InputError
        If one has the wrong type or is out of range; names the option, what is expected and what
        was received.
    """
    for key, (field, declared) in declared_options(type(solver)).items():
        value = getattr(solver, key)
        if declared is None or (value is None and declared.optional):
            continue
        wanted = _wrong_type(field.type, value)
        if wanted or not declared.accepts(value):
            raise InputError(
                f"{name} option {key}: expected {wanted or declared.expected}, received "
                f"{value!r:.60}"
            )


def _is_whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) or hasattr(value, "__float__")
    return number and not isinstance(value, bool | str)


_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", _is_whole),
    "float": ("a number", _is_number),
    "str": ("a text", lambda value: isinstance(value, str)),
    "Measure": ("a function", callable),
}
"""What is expected of an option, in words, and whether a value is that, by its annotation."""


def _wrong_type(annotation: Any, value: Any) -> str:
    """Return the expected type in words if a value is not of it, else ""; annotations that are not
    plain allow anything.
    """
    kind = getattr(annotation, "__name__", str(annotation)).removesuffix(" | None")
    found = _TYPES.get(kind)
    return found[0] if found and not found[1](value) else ""
