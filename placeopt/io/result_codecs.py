"""Codecs of what comes back: placements, schedules, budgets and results.

What a Result derives from its other fields (gap, seconds, status) is written for readers of the
file, computed again when the file is loaded, and refused where the two disagree.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from placeopt.io.body import is_number, plain
from placeopt.io.codec import Codec, from_dict, register, to_dict
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError, SolverError
from placeopt.model.files import digest
from placeopt.model.placement import Placement, Schedule
from placeopt.model.result import Result, TacticUse, TracePoint

if TYPE_CHECKING:
    from placeopt.io.body import Body


def _register_plain(kind: str, cls: type) -> None:
    """Register a class whose JSON is its fields."""
    register(Codec(kind, cls, plain, lambda body: cls(**body.fields(cls))))


_SAID_OTHERWISE = (
    *("solution", "value", "lower_bound"),
    *("objective_name", "trace", "tactics", "given"),
)
"""Fields of a result that its JSON does not hold as they are."""


def result_fields(result: Result[Any]) -> dict[str, Any]:
    """Return the JSON fields of a result, the solution left out."""
    return {
        **plain(result, but=_SAID_OTHERWISE),
        "objective": result.objective_name,
        **_number("value", result.value),
        "seconds": result.seconds,
        **_number("lower_bound", result.lower_bound),
        "gap": result.gap,
        "trace": [
            [p.seconds, p.evaluations, _plain(p.incumbent), _plain(p.lower_bound)]
            for p in result.trace
        ],
        "tactics": [plain(use) for use in result.tactics],
    }


def _encode_result(result: Result[Any]) -> dict[str, Any]:
    data = {
        **result_fields(result),
        "solution": None if result.solution is None else to_dict(result.solution),
    }
    return {**data, "digest": digest(data)}


def result_object(result: Result[Any], told: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of a result with further fields for readers of the file, which its
    digest covers as well.
    """
    data = {**told, **to_dict(result)}
    return {**data, "digest": digest(_covered(data))}


def _covered(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in ("digest", "format", "version")}


def _decode_result(body: Body) -> Result[Any]:
    solution = None
    trace = body.items("trace") if body.has("trace") else []
    tactics = body.bodies("tactics") if body.has("tactics") else []
    if body.has("solution"):
        solution = from_dict(body.get("solution"), where=f'{body.where}: "solution"')
    fields: dict[str, Any] = dict(
        solution=solution,
        value=_rational(body, "value") if body.has("value") else None,
        lower_bound=_rational(body, "lower_bound"),
        objective_name=body.text("objective", "makespan"),
        trace=tuple(_trace_point(body, i, row) for i, row in enumerate(trace)),
        tactics=tuple(TacticUse(**part.fields(TacticUse)) for part in tactics),
        **body.fields(Result, but=_SAID_OTHERWISE),
    )
    try:
        result: Result[Any] = Result(**fields)
    except SolverError as error:  # a bound above the value
        raise InputError(f"{body.where}: {error}") from error
    _refuse_false_claims(body, result)
    _refuse_changes(body)
    return result


def _refuse_changes(body: Body) -> None:
    """Refuse a result that was changed after it was written; version 1 had no digest."""
    if (body.get("version") > 1 or body.has("digest")) and body.text("digest") != digest(
        _covered(body.data)
    ):
        raise InputError(
            f"{body.where}: the result was changed after it was written (its digest differs); "
            "solve again, or verify its placement alone"
        )


def _refuse_false_claims(body: Body, result: Result[Any]) -> None:
    """Refuse a gap, seconds or status that value and bound do not give."""
    for key in ("gap", "seconds"):
        claimed, found = body.data.get(key), getattr(result, key)
        if key in body.data and not _agree(claimed, found):
            raise body.wrong(key, f"{found}, which value and bound give", claimed)
    if result.value is None:
        possible: tuple[str, ...] = ("infeasible", "unknown")
    else:
        possible = ("optimal",) if result.value == result.lower_bound else ("feasible",)
    if result.status not in possible:
        raise body.wrong(
            "status", f"{' or '.join(possible)}, which value and bound give", result.status
        )


def _agree(claimed: Any, found: float | None) -> bool:
    """Whether a file's number, or its null, is the one that was found."""
    if claimed is None or found is None:
        return claimed is found
    return is_number(claimed) and math.isclose(claimed, found, rel_tol=1e-9, abs_tol=1e-12)


def _number(key: str, value: Any) -> dict[str, Any]:
    """Return a number of ticks; a fraction as a float, and exactly beside it."""
    if isinstance(value, Fraction):
        return {key: float(value), f"{key}_exact": f"{value.numerator}/{value.denominator}"}
    return {key: value}


def _plain(value: Any) -> Any:
    """Return a number of ticks for a trace: a fraction as a float."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return value


def _rational(body: Body, key: str) -> Any:
    """Return what `_number` wrote."""
    if f"{key}_exact" not in body.data:
        return body.integer(key)
    text = body.text(f"{key}_exact")
    if not re.fullmatch(r"[0-9]{1,19}/[1-9][0-9]{0,18}", text):
        raise body.wrong(f"{key}_exact", "a fraction such as 16/3", text)
    value = Fraction(text)
    if body.number(key) != float(value):
        raise body.wrong(key, f"{float(value)}, which {text} is", body.get(key))
    return value


def _trace_point(body: Body, index: int, row: Any) -> TracePoint:
    ok = isinstance(row, list) and len(row) == 4 and isinstance(row[0], int | float)
    ok = (
        ok
        and type(row[1]) is int
        and type(row[2]) in (int, float, type(None))
        and type(row[3]) in (int, float)
    )
    if not ok:
        raise body.wrong(f"trace[{index}]", "[seconds, evaluations, incumbent, lower bound]", row)
    return TracePoint(float(row[0]), row[1], row[2], row[3])


_register_plain("placement", Placement)
_register_plain("schedule", Schedule)
_register_plain("budget", Budget)
register(Codec("result", Result, _encode_result, _decode_result, version=2))
