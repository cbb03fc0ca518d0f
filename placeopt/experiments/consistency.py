"""Whether the rows of a study can all be true: no proven bound above a value, no two optima, no
solution of the infeasible.

Rows speak of one problem where hash and objective are the same. A row that is "optimal" claims its
value as a bound.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError
from placeopt.model.files import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    Row = dict[str, Any]
    Number = int | float | Fraction

ROUNDING = 1e-9
"""Relative error that two numbers may differ by where one of them was rounded to a float."""


CLAIMS = (
    "problem_hash",
    "objective",
    "instance",
    "label",
    "seed",
    "status",
    "value",
    "lower_bound",
    "bound_method",
)
"""What a row must have to claim anything."""


def check_consistent(rows: Iterable[Row], where: str | Path = "these runs") -> None:
    """Refuse rows that contradict one another.

    Raises
    ------
    InputError
        Naming two rows of which at least one is false.
    """
    words = contradiction(rows)
    if words:
        raise InputError(
            f"{where}: {words}: one of them is false, remove it and its cell will run again"
        )


def contradiction(rows: Iterable[Row]) -> str:
    """Say in words which two rows contradict each other first; empty where none do. Rows that lack
    a column say nothing.
    """
    problems: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if all(key in row for key in CLAIMS):
            problems.setdefault((row["problem_hash"], row["objective"]), []).append(row)
    for same in problems.values():
        words = _bound_above_value(same) or _solution_of_infeasible(same) or _other_units(same)
        if words:
            where = (
                f"{same[0]['instance']} on {same[0]['cluster']}"
                if same[0].get("cluster")
                else same[0]["instance"]
            )
            return (
                f"{one_line(where)} ({same[0]['objective']}): results contradict each other; "
                f"{words}"
            )
    return ""


def number_of(row: Row, key: str) -> Number | None:
    """Return a value or bound of a row, exactly where the row says it exactly."""
    shown: Number | None = row[key]
    exact = row.get(f"{key}_exact")
    if shown is None or not isinstance(exact, str):
        return shown
    try:
        fraction = Fraction(exact)
        return fraction if float(fraction) == shown else shown
    except (ValueError, ZeroDivisionError, OverflowError):
        return shown


def is_above(a: Number, b: Number) -> bool:
    """Whether a number is above another one, by more than rounding where one is a float; numbers
    that are none are.
    """
    if isinstance(a, float) or isinstance(b, float):
        return not float(a) <= float(b) + ROUNDING * max(1.0, abs(float(a)), abs(float(b)))
    return a > b


def _bound_above_value(rows: list[Row]) -> str:
    """Compare the best value of any row with the largest bound of any row, and with the value of
    every optimal one.
    """
    values = [(value, row) for row in rows if (value := number_of(row, "value")) is not None]
    proofs = [(claimed, row) for row in rows if (claimed := _claimed(row)) is not None]
    if not values or not proofs:
        return ""
    best = min(values, key=lambda found: found[0])
    proof = max(proofs, key=lambda found: found[0])
    if not is_above(proof[0], best[0]):
        return ""
    claim = f"lower bound {proof[0]} by '{proof[1]['bound_method']}'"
    if proof[0] == number_of(proof[1], "value") and proof[1]["status"] == "optimal":
        claim = f"optimal value {proof[0]}"
    return f"value {best[0]} of {_name(best[1])} is below the {claim} of {_name(proof[1])}"


def _claimed(row: Row) -> Number | None:
    """Return what a row says no value can be below: its bound, or its value where that is
    optimal.
    """
    value, bound = number_of(row, "value"), number_of(row, "lower_bound")
    if row["status"] != "optimal" or value is None:
        return bound
    return value if bound is None or is_above(value, bound) else bound


def _solution_of_infeasible(rows: list[Row]) -> str:
    """Look for a row that says infeasible beside one with a solution."""
    without = next((row for row in rows if row["status"] == "infeasible"), None)
    solved = next((row for row in rows if row["value"] is not None), None)
    if without is None or solved is None:
        return ""
    return (
        f"value {number_of(solved, 'value')} of {_name(solved)}, but infeasible says "
        f"{_name(without)}"
    )


def _other_units(rows: list[Row]) -> str:
    """Look for rows whose ticks are not as long as those of others."""
    known = [row for row in rows if row.get("tick_seconds") is not None]
    other = next((row for row in known if row["tick_seconds"] != known[0]["tick_seconds"]), None)
    if other is None:
        return ""
    return (
        f"ticks of {known[0]['tick_seconds']} s of {_name(known[0])}, but of "
        f"{other['tick_seconds']} s of {_name(other)}"
    )


def _name(row: Row) -> str:
    """Name a row for people: solver, seed, cell."""
    return (
        f"solver '{one_line(str(row['label']))}', seed {row['seed']} (row "
        f"'{one_line(str(row.get('key', '?')), 60)}')"
    )
