"""What a row of a study must look like before it is compared with others: types, ranges, and what
follows from its own value and bound.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from placeopt.experiments.consistency import is_above, number_of
from placeopt.model.result import STATUSES

if TYPE_CHECKING:
    from collections.abc import Callable

    Row = dict[str, Any]

MOST = 2**63
"""Below which all numbers of a row are, as 64-bit integers are."""

_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")
_FRACTION = re.compile(r"[0-9]{1,19}/[1-9][0-9]{0,18}")


def _text(value: Any) -> bool:
    """A text of one line, without escape codes."""
    return isinstance(value, str) and _TEXT.fullmatch(value) is not None


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < MOST


def _fraction(value: Any) -> bool:
    return isinstance(value, str) and _FRACTION.fullmatch(value) is not None


def _point(value: Any) -> bool:
    """Seconds, evaluations, incumbent or None, lower bound."""
    if not isinstance(value, list) or len(value) != 4:
        return False
    seconds, evaluations, incumbent, bound = value
    return (
        _number(seconds)
        and _whole(evaluations)
        and (incumbent is None or _number(incumbent))
        and _number(bound)
    )


NEEDED: dict[str, Callable[[Any], bool]] = {
    "key": _text,
    "instance": _text,
    "objective": _text,
    "problem_hash": _text,
    "label": _text,
    "seed": _whole,
    "status": lambda x: x in (*STATUSES, "failed") if isinstance(x, str) else False,
    "value": lambda x: x is None or _number(x),
    "lower_bound": _number,
    "bound_method": _text,
    "evaluations": _whole,
    "runtime": _number,
    "trace": lambda x: isinstance(x, list) and all(map(_point, x)),
}
"""Columns that every row has."""

OPTIONAL: dict[str, Callable[[Any], bool]] = {
    "cluster": lambda x: x is None or _text(x),
    "version": _text,
    "queue": _text,
    "message": _text,
    "error": lambda x: x is None or _text(x),
    "tick_seconds": lambda x: _number(x) and x > 0,
    "value_exact": _fraction,
    "lower_bound_exact": _fraction,
    "gap": lambda x: x is None or (_number(x) and x <= 1),
}
"""Columns that a row may have."""


def wrong_column(row: Row) -> str:
    """Return the first column of a row that is missing, of another type or out of range; empty
    where all are right.
    """
    for column, right in NEEDED.items():
        if column not in row or not right(row[column]):
            return column
    for column, right in OPTIONAL.items():
        if column in row and not right(row[column]):
            return column
    return ""


def false_column(row: Row) -> str:
    """Return the first column of a row that does not follow from its value and bound; empty where
    all do.
    """
    for column in ("value", "lower_bound"):
        exact = row.get(f"{column}_exact")
        if exact is not None and row[column] != float(Fraction(exact)):
            return f"{column}_exact"
    value, bound = number_of(row, "value"), number_of(row, "lower_bound")
    if value is None:
        return "" if row["status"] in ("infeasible", "unknown", "failed") else "status"
    assert bound is not None
    optimal = () if is_above(value, bound) else ("optimal",)
    if row["status"] not in ("feasible", *optimal):
        return "status"
    if any(point[2] is not None and is_above(value, point[2]) for point in row["trace"]):
        return "trace"
    gap = row.get("gap")
    right = 0.0 if value == 0 else float((value - bound) / value)
    return "" if gap is None or math.isclose(gap, right, abs_tol=1e-9) else "gap"
