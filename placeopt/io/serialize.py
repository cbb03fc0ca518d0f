"""Versioned JSON of every object, `{"format": "placeopt/KIND", "version": 1, ...}`, and back.

    save(result, "result.json")
    result = load("result.json")

Reading checks kind, version, types and lengths before the object's own constructor checks the
values. A file written by version N is read by every later version.

What is given (graphs, clusters, placement problems: arrays by column, neutral columns left out) and
what comes back (placements, schedules, budgets, results) has its form here. What a Result derives
from its other fields (gap, seconds, status) is written for readers of the file, computed again when
the file is loaded, and refused where the two disagree. A package with solution types of its own
calls `register` in a module of `_LATE`, which is imported when such an object is first met.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.io.body import CLAIM, FRACTION, Body, int_table, is_number, kind_of, plain, show
from placeopt.model.arrays import Ints
from placeopt.model.cluster import Cluster, Device, Link, Rates
from placeopt.model.errors import InputError, SolverError
from placeopt.model.files import MAX_BYTES, Data, digest, read_json, write_text
from placeopt.model.graph import OP_COLUMNS, OpGraph
from placeopt.model.placement import Placement, Schedule
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget, Result, TacticUse, TracePoint

PREFIX = "placeopt/"
VERSION = 1


@dataclass(frozen=True)
class Codec:
    """How one class becomes JSON: `encode` gives the body, `decode` takes it back."""

    kind: str
    cls: type
    encode: Callable[[Any], Data]
    decode: Callable[[Body], Any]
    version: int = VERSION


_by_kind: dict[str, Codec] = {}
_by_class: dict[type, Codec] = {}
_LATE = ("streams.codecs", "sharding.problem", "schedules.codecs", "plans.codecs", "splits.problem")
"""Modules above this one that register more of them, imported when an unknown class or kind is
met."""


def register(codec: Codec) -> None:
    """Make a class known to `to_dict`, `from_dict`, `save` and `load`.

    Raises
    ------
    InputError
        If its kind is that of another class.
    """
    known = _by_kind.get(codec.kind, codec).cls
    if (known.__module__, known.__qualname__) != (codec.cls.__module__, codec.cls.__qualname__):
        raise InputError(f"the kind '{codec.kind}' is {known.__name__}'s; choose another one")
    _by_kind[codec.kind] = codec
    _by_class[codec.cls] = codec


def to_dict(value: Any) -> Data:
    """Return the JSON object of a graph, cluster, problem, placement, schedule, budget or result.

    Raises
    ------
    InputError
        If the class of `value` has no JSON form.
    """
    codec = _codec_of(type(value)) or (_register_late() and _codec_of(type(value)))
    if not codec:
        raise InputError(
            f"no JSON form for {type(value).__name__}; known: {', '.join(sorted(_by_kind))}"
        )
    return {"format": PREFIX + codec.kind, "version": codec.version, **codec.encode(value)}


def _codec_of(cls: type) -> Codec | None:
    return next((_by_class[base] for base in cls.__mro__ if base in _by_class), None)


def _register_late() -> bool:
    """Import the modules that register further codecs."""
    for module in _LATE:
        importlib.import_module(f"placeopt.{module}")
    return True


def from_dict(data: Any, kind: str | None = None, where: str = "JSON") -> Any:
    """Return the object that `to_dict` wrote.

    Parameters
    ----------
    kind : what is expected ("opgraph", "problem", ...); any kind if None.
    where : the file, for messages.

    Raises
    ------
    InputError
        If the format, the version, a type or a value is wrong; one line.
    """
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected a JSON object, received {kind_of(data)}")
    codec = _codec_for(data, kind, where)
    version = data.get("version")
    if type(version) is not int or not 1 <= version <= codec.version:
        raise InputError(
            f'{where}: "version": expected 1..{codec.version}, received {show(version)}; '
            "a newer placeopt wrote the file, or it is damaged"
        )
    try:
        return codec.decode(Body(data, where))
    except InputError as error:
        text = str(error)
        raise error if text.startswith(where[:40]) else InputError(f"{where}: {text}") from error
    except OverflowError as error:
        raise InputError(f"{where}: a number passes the range of 64 bits") from error


def _codec_for(data: Data, kind: str | None, where: str) -> Codec:
    """Return the codec that the format of an object names."""
    name = data.get("format")
    if not isinstance(name, str) or not name.startswith(PREFIX):
        known = ", ".join(PREFIX + k for k in sorted(_by_kind))
        expected = f'"{PREFIX}{kind}"' if kind else f"one of {known}"
        if "device" in data and name is None:
            raise InputError(f"{where}: this is a placement file; expected {expected}")
        raise InputError(f'{where}: "format": expected {expected}, received {show(name)}')
    found = name.removeprefix(PREFIX)
    if kind not in (None, found):
        raise InputError(f'{where}: "format": expected "{PREFIX}{kind}", received {show(name)}')
    if found not in _by_kind:
        _register_late()
    if found not in _by_kind:
        known = ", ".join(sorted(_by_kind))
        raise InputError(f'{where}: "format": {show(name)} is not known; known: {known}')
    return _by_kind[found]


def to_text(value: Any) -> str:
    """Return `value` as the JSON text that `save` writes."""
    return json.dumps(to_dict(value), separators=(",", ":"), allow_nan=False) + "\n"


def save(value: Any, path: str | Path) -> Path:
    """Write `value` as JSON; the file is replaced at once."""
    return write_text(path, to_text(value))


def load(path: str | Path, kind: str | None = None, *, max_bytes: int = MAX_BYTES) -> Any:
    """Read what `save` wrote; see `from_dict`."""
    return from_dict(read_json(path, max_bytes=max_bytes), kind, f"file '{path}'")


def _encode_graph(graph: OpGraph) -> Data:
    ops = {"name": list(graph.op_names), **plain(graph, *OP_COLUMNS)}
    if any(graph.op_types):
        ops["type"] = list(graph.op_types)
    for key, column in OP_COLUMNS.items():
        if column.kind is int and (getattr(graph, key) == column.default).all():
            del ops[key]
    tensors: Data = {
        "producer": graph.producer.tolist(),
        "consumers": graph.readers(),
        "bytes": graph.tensor_bytes.tolist(),
    }
    if (graph.measured_transfer != -1).any():
        tensors["ticks"] = graph.measured_transfer.tolist()
    if graph.shapes:
        tensors["shape"] = [list(shape) for shape in graph.shapes]
    body = {**plain(graph, "name", "tick_seconds"), "ops": ops, "tensors": tensors}
    if graph.measured_kinds:
        body["measured"] = {"kinds": list(graph.measured_kinds), "ticks": graph.measured.T.tolist()}
    return body


def _decode_graph(body: Body) -> OpGraph:
    ops, tensors = body.body("ops"), body.body("tensors")
    names = ops.texts("name")
    pointer, consumer = _join(tensors.items("consumers"), f'{tensors.where}: "consumers"')
    given: Data = body.fields(OpGraph, "name", "tick_seconds")
    given |= ops.fields(OpGraph, *OP_COLUMNS)
    if body.has("measured"):
        given |= _measured(body.body("measured"), len(names))
    return OpGraph(
        op_names=names,
        producer=tensors.integers("producer"),
        tensor_bytes=tensors.integers("bytes"),
        consumer_ptr=pointer,
        consumer=consumer,
        op_types=ops.texts("type") if ops.has("type") else (),
        measured_transfer=tensors.integers("ticks") if tensors.has("ticks") else None,  # type: ignore[arg-type]
        shapes=_shapes(tensors) if tensors.has("shape") else (),
        **given,
    )


def _measured(part: Body, num_ops: int) -> Data:
    """Return the measured times of a graph: a list of ticks for every kind of device."""
    kinds, columns = part.texts("kinds"), part.items("ticks")
    if len(kinds) != len(columns):
        raise InputError(
            f"{part.where}: expected one list of ticks per kind, "
            f"received {len(columns)} for {len(kinds)} kinds"
        )
    for kind, column in zip(kinds, columns, strict=True):
        if not isinstance(column, list) or len(column) != num_ops:
            raise InputError(f"{part.where}: kind '{kind}': expected {num_ops} ticks, one per op")
    table = int_table(columns, part.where).reshape(len(kinds), num_ops).T
    return {"measured_kinds": kinds, "measured": table}


def _shapes(tensors: Body) -> tuple[tuple[int, ...], ...]:
    rows = tensors.items("shape")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or any(type(x) is not int for x in row):
            raise tensors.wrong(f"shape[{i}]", "a list of whole numbers", row)
    return tuple(tuple(row) for row in rows)


def _join(rows: list[Any], where: str) -> tuple[Ints, Ints]:
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            raise InputError(f"{where}[{i}]: expected a list of op indices, received {show(row)}")
    pointer = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return pointer, int_table(list(itertools.chain.from_iterable(rows)), where)


def _encode_cluster(cluster: Cluster) -> Data:
    return {
        **plain(cluster, but=("devices", "links")),
        "devices": [_encode_device(device) for device in cluster.devices],
        "links": [plain(link) for link in cluster.links],
    }


def _decode_cluster(body: Body) -> Cluster:
    return body.made(
        Cluster,
        but=("devices", "links"),
        devices=tuple(_decode_device(item) for item in body.bodies("devices")),
        links=tuple(item.made(Link) for item in body.bodies("links")),
    )


_RATES = ("half", "attention")


def _encode_device(device: Device) -> Data:
    rates = {key: plain(rates) for key in _RATES if (rates := getattr(device, key)) is not None}
    return {**plain(device, but=_RATES), **rates}


def _decode_device(body: Body) -> Device:
    rates: Data = {key: body.body(key).made(Rates) for key in _RATES if body.has(key)}
    return body.made(Device, but=_RATES, **rates)


_CONSUMERS = ("consumer_ptr", "consumer")


def _encode_problem(problem: PlacementProblem) -> Data:
    return {**plain(problem, but=_CONSUMERS), "consumers": problem.readers()}


def _decode_problem(body: Body) -> PlacementProblem:
    pointer, consumer = _join(body.items("consumers"), f'{body.where}: "consumers"')
    given = body.fields(PlacementProblem, but=_CONSUMERS)
    return PlacementProblem(consumer_ptr=pointer, consumer=consumer, **given)


register(Codec("opgraph", OpGraph, _encode_graph, _decode_graph))
register(Codec("cluster", Cluster, _encode_cluster, _decode_cluster))
register(Codec("problem", PlacementProblem, _encode_problem, _decode_problem))


def register_plain(kind: str, cls: type, but: tuple[str, ...] = ()) -> None:
    """Register a class whose JSON is its fields, `but` those that follow from others."""
    register(Codec(kind, cls, partial(plain, but=but), lambda body: body.made(cls, but=but)))


_SAID_OTHERWISE = (
    "solution",
    "value",
    "lower_bound",
    "objective_name",
    "trace",
    "tactics",
    "given",
)
"""Fields of a result that its JSON does not hold as they are."""


def result_fields(result: Result[Any]) -> Data:
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


def _encode_result(result: Result[Any]) -> Data:
    data = {
        **result_fields(result),
        "solution": None if result.solution is None else to_dict(result.solution),
    }
    return {**data, "digest": digest(data)}


def result_object(result: Result[Any], told: Data) -> Data:
    """Return the JSON object of a result with further fields for readers of the file, which its
    digest covers as well.
    """
    data = {**told, **to_dict(result)}
    return {**data, "digest": digest(_covered(data))}


def _covered(data: Data) -> Data:
    return {key: value for key, value in data.items() if key not in ("digest", "format", "version")}


def _decode_result(body: Body) -> Result[Any]:
    solution = None
    trace = body.items("trace") if body.has("trace") else []
    tactics = body.bodies("tactics") if body.has("tactics") else []
    if body.has("solution"):
        solution = from_dict(body.get("solution"), where=f'{body.where}: "solution"')
    fields: Data = dict(
        solution=solution,
        value=_rational(body, "value") if body.has("value") else None,
        lower_bound=_rational(body, "lower_bound"),
        objective_name=body.text("objective", "makespan"),
        trace=tuple(_trace_point(body, i, row) for i, row in enumerate(trace)),
        tactics=tuple(part.made(TacticUse) for part in tactics),
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


def _number(key: str, value: Any) -> Data:
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
        return body.integer(key, below=CLAIM)
    text = body.text(f"{key}_exact")
    if not FRACTION.fullmatch(text):
        raise body.wrong(f"{key}_exact", "a fraction such as 16/3", text)
    value = Fraction(text)
    if body.number(key) != float(value):
        raise body.wrong(key, f"{float(value)}, which {text} is", body.get(key))
    return value


def _trace_point(body: Body, index: int, row: Any) -> TracePoint:
    ok = (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[0], int | float)
        and type(row[1]) is int
        and type(row[2]) in (int, float, type(None))
        and type(row[3]) in (int, float)
    )
    if not ok:
        raise body.wrong(f"trace[{index}]", "[seconds, evaluations, incumbent, lower bound]", row)
    return TracePoint(float(row[0]), row[1], row[2], row[3])


register_plain("placement", Placement)
register_plain("schedule", Schedule)
register_plain("budget", Budget)
register(Codec("result", Result, _encode_result, _decode_result, version=2))
