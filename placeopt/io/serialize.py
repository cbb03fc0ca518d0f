"""Versioned JSON of graphs, clusters, problems, placements, schedules, budgets and results.

Every object is `{"format": "placeopt/KIND", "version": 1, ...}`. Arrays are stored by column, neutral
columns are left out, and reading checks kind, version, types and lengths before the object's own
constructor checks the values. A file written by version N is read by every later version.

Other packages add their solution types with `register`.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.budget import Budget
from placeopt.model.cluster import Cluster, Device, Link
from placeopt.model.errors import InputError
from placeopt.model.files import MAX_BYTES, read_json, write_text
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Result, TracePoint
from placeopt.model.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

PREFIX = "placeopt/"
VERSION = 1


@dataclass(frozen=True)
class Codec:
    """How one class becomes JSON: `encode` gives the body, `decode` takes it back."""

    kind: str
    cls: type
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[Body], Any]
    version: int = VERSION


_by_kind: dict[str, Codec] = {}
_by_class: dict[type, Codec] = {}


def register(codec: Codec) -> None:
    """Make a class known to `to_dict`, `from_dict`, `save` and `load`."""
    _by_kind[codec.kind] = codec
    _by_class[codec.cls] = codec


def to_dict(value: Any) -> dict[str, Any]:
    """Return the JSON object of a graph, cluster, problem, placement, schedule, budget or result.

    Raises
    ------
    InputError
        If the class of `value` has no JSON form.
    """
    codec = next((_by_class[cls] for cls in type(value).__mro__ if cls in _by_class), None)
    if codec is None:
        raise InputError(f"no JSON form for {type(value).__name__}; known: {', '.join(sorted(_by_kind))}")
    return {"format": PREFIX + codec.kind, "version": codec.version, **codec.encode(value)}


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
        raise InputError(f"{where}: expected a JSON object, received {_kind_of(data)}")
    name = data.get("format")
    if not isinstance(name, str) or not name.startswith(PREFIX):
        expected = f'"{PREFIX}{kind}"' if kind else "one of " + ", ".join(PREFIX + k for k in sorted(_by_kind))
        raise InputError(f'{where}: "format": expected {expected}, received {_show(name)}')
    found = name.removeprefix(PREFIX)
    if kind is not None and found != kind:
        raise InputError(f'{where}: "format": expected "{PREFIX}{kind}", received {_show(name)}')
    if found not in _by_kind:
        known = ", ".join(sorted(_by_kind))
        raise InputError(f'{where}: "format": {_show(name)} is not known; known: {known}')
    codec = _by_kind[found]
    version = data.get("version")
    if type(version) is not int or not 1 <= version <= codec.version:
        raise InputError(f'{where}: "version": expected 1..{codec.version}, received {_show(version)}; '
                         "a newer placeopt wrote the file, or it is damaged")  # fmt: skip
    try:
        return codec.decode(Body(data, where))
    except InputError as error:
        text = str(error)
        raise error if text.startswith(where) else InputError(f"{where}: {text}") from error
    except OverflowError as error:
        raise InputError(f"{where}: a number passes the range of 64 bits") from error


def save(value: Any, path: str | Path) -> Path:
    """Write `value` as JSON; the file is replaced at once."""
    return write_text(path, json.dumps(to_dict(value), separators=(",", ":"), allow_nan=False) + "\n")


def load(path: str | Path, kind: str | None = None, *, max_bytes: int = MAX_BYTES) -> Any:
    """Read what `save` wrote; see `from_dict`."""
    return from_dict(read_json(path, max_bytes=max_bytes), kind, f"file '{path}'")


# --- checked access -------------------------------------------------------------------------------------


class Body:
    """A JSON object whose entries are taken with a type; what is wrong is said in one line."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise InputError(f"{where}: expected an object, received {_kind_of(data)}")
        self.data, self.where = data, where

    def has(self, key: str) -> bool:
        """Whether `key` is there and not null."""
        return self.data.get(key) is not None

    def get(self, key: str) -> Any:
        """Return an entry that must be there."""
        if key not in self.data:
            raise InputError(f'{self.where}: "{key}" is missing')
        return self.data[key]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self.data.get(key, default) if default is not None else self.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a string", value)
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at most 63 bits."""
        value = self.data.get(key, default) if default is not None else self.get(key)
        if type(value) is not int or abs(value) >= 2**63:
            raise self.wrong(key, "a whole number", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self.data.get(key, default) if default is not None else self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number", value)
        return float(value)

    def items(self, key: str) -> list[Any]:
        """Return a list."""
        value = self.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, "a list", value)
        return value

    def body(self, key: str) -> Body:
        """Return a nested object."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return Body(value, f'{self.where}: "{key}"')

    def bodies(self, key: str) -> list[Body]:
        """Return a list of objects."""
        return [Body(item, f'{self.where}: "{key}"[{i}]') for i, item in enumerate(self.items(key))]

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self.items(key)
        for i, value in enumerate(values):
            if not isinstance(value, str):
                raise self.wrong(f"{key}[{i}]", "a string", value)
        return tuple(values)

    def integers(self, key: str) -> NDArray[np.int64]:
        """Return a list of whole numbers (or a table of equally long rows) as an int64 array."""
        return _int_table(self.items(key), f'{self.where}: "{key}"')

    def optional_integers(self, key: str) -> NDArray[np.int64] | None:
        """Return a list of whole numbers, None where it is not there."""
        return self.integers(key) if self.has(key) else None

    def flags(self, key: str) -> NDArray[np.bool_] | None:
        """Return a list of 0/1 or true/false as a mask, None where it is not there."""
        if not self.has(key):
            return None
        values = self.items(key)
        for i, value in enumerate(values):
            if value not in (0, 1):
                raise self.wrong(f"{key}[{i}]", "true or false", value)
        return np.array(values, dtype=np.bool_)

    def wrong(self, key: str, expected: str, value: Any) -> InputError:
        """Return the error for an entry of the wrong type."""
        return InputError(f'{self.where}: "{key}": expected {expected}, received {_show(value)}')


def _int_table(values: list[Any], where: str) -> NDArray[np.int64]:
    """Convert a list of ints, or of equally long lists of ints, checking every entry."""
    rows = values if values and isinstance(values[0], list) else None
    if rows is not None:
        width = len(rows[0])
        for i, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != width:
                raise InputError(f"{where}[{i}]: expected a row of {width} numbers, received {_show(row)}")
        flat = [x for row in rows for x in row]
    else:
        width, flat = 0, values
    if set(map(type, flat)) - {int}:
        i = next(i for i, x in enumerate(flat) if type(x) is not int)
        at = f"[{i}]" if rows is None else f"[{i // width}][{i % width}]"
        raise InputError(f"{where}{at}: expected a whole number, received {_show(flat[i])}")
    try:
        array = np.array(flat, dtype=np.int64)
    except OverflowError as error:
        raise InputError(f"{where}: a number passes the range of 64 bits") from error
    return array.reshape(len(rows), width) if rows is not None else array


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _show(value: Any) -> str:
    """Return a value for a message: short, on one line."""
    if isinstance(value, dict | list):
        return f"{_kind_of(value)} of {len(value)}"
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


# --- OpGraph --------------------------------------------------------------------------------------------

_OP_COLUMNS = ("flops", "bytes_moved", "resident", "parameters", "colocation", "meta")


def _encode_graph(graph: OpGraph) -> dict[str, Any]:
    ops: dict[str, Any] = {"name": list(graph.op_names)}
    for key, names in (("type", graph.op_types), ("layer", graph.layer)):
        if any(names):
            ops[key] = list(names)
    for key in _OP_COLUMNS:
        array = getattr(graph, key)
        neutral = -1 if key in ("colocation", "meta") else 0
        if (array != neutral).any():
            ops[key] = array.tolist()
    for key in ("backward", "unshaped"):
        array = getattr(graph, key)
        if array.any():
            ops[key] = array.astype(int).tolist()
    tensors: dict[str, Any] = {
        "producer": graph.producer.tolist(),
        "consumers": _split(graph.consumer_ptr, graph.consumer),
        "bytes": graph.tensor_bytes.tolist(),
    }
    if (graph.measured_transfer != -1).any():
        tensors["ticks"] = graph.measured_transfer.tolist()
    if graph.shapes:
        tensors["shape"] = [list(shape) for shape in graph.shapes]
    body: dict[str, Any] = {"name": graph.name, "tick_seconds": graph.tick_seconds}
    body["ops"], body["tensors"] = ops, tensors
    if graph.measured_kinds:
        body["measured"] = {
            "kinds": list(graph.measured_kinds),
            "ticks": [graph.measured[:, j].tolist() for j in range(len(graph.measured_kinds))],
        }
    return body


def _decode_graph(body: Body) -> OpGraph:
    ops, tensors = body.body("ops"), body.body("tensors")
    names = ops.texts("name")
    pointer, consumer = _join(tensors.items("consumers"), f'{tensors.where}: "consumers"')
    columns: dict[str, Any] = {key: ops.optional_integers(key) for key in _OP_COLUMNS}
    kinds: tuple[str, ...] = ()
    measured = None
    if body.has("measured"):
        part = body.body("measured")
        kinds, columns_of_kind = part.texts("kinds"), part.items("ticks")
        if len(kinds) != len(columns_of_kind):
            raise InputError(f"{part.where}: expected one list of ticks per kind, "
                             f"received {len(columns_of_kind)} for {len(kinds)} kinds")  # fmt: skip
        for kind, column in zip(kinds, columns_of_kind, strict=True):
            if not isinstance(column, list) or len(column) != len(names):
                raise InputError(f"{part.where}: kind '{kind}': expected {len(names)} ticks, one per op")
        measured = _int_table(columns_of_kind, part.where).reshape(len(kinds), len(names)).T
    return OpGraph(
        name=body.text("name"),
        op_names=names,
        producer=tensors.integers("producer"),
        tensor_bytes=tensors.integers("bytes"),
        consumer_ptr=pointer,
        consumer=consumer,
        op_types=ops.texts("type") if ops.has("type") else (),
        layer=ops.texts("layer") if ops.has("layer") else (),
        backward=ops.flags("backward"),  # type: ignore[arg-type]
        unshaped=ops.flags("unshaped"),  # type: ignore[arg-type]
        measured_kinds=kinds,
        measured=measured,  # type: ignore[arg-type]
        measured_transfer=tensors.optional_integers("ticks"),  # type: ignore[arg-type]
        shapes=_shapes(tensors) if tensors.has("shape") else (),
        tick_seconds=body.number("tick_seconds", 1e-9),
        **columns,
    )


def _shapes(tensors: Body) -> tuple[tuple[int, ...], ...]:
    rows = tensors.items("shape")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or any(type(x) is not int for x in row):
            raise tensors.wrong(f"shape[{i}]", "a list of whole numbers", row)
    return tuple(tuple(row) for row in rows)


def _split(pointer: NDArray[np.int64], flat: NDArray[np.int64]) -> list[list[int]]:
    bounds, values = pointer.tolist(), flat.tolist()
    return [values[a:b] for a, b in itertools.pairwise(bounds)]


def _join(rows: list[Any], where: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            raise InputError(f"{where}[{i}]: expected a list of op indices, received {_show(row)}")
    pointer = np.zeros(len(rows) + 1, dtype=np.int64)
    pointer[1:] = np.cumsum([len(row) for row in rows])
    return pointer, _int_table([x for row in rows for x in row], where)


# --- Cluster --------------------------------------------------------------------------------------------


def _encode_cluster(cluster: Cluster) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "devices": [{f.name: getattr(device, f.name) for f in fields(Device)} for device in cluster.devices],
        "links": [{f.name: getattr(link, f.name) for f in fields(Link)} for link in cluster.links],
        "link_class": cluster.link_class.tolist(),
        "channel": cluster.channel.tolist(),
    }


def _decode_cluster(body: Body) -> Cluster:
    devices = tuple(
        Device(
            name=item.text("name"),
            kind=item.text("kind"),
            family=item.text("family"),
            peak_flops=item.number("peak_flops"),
            memory_bandwidth=item.number("memory_bandwidth"),
            memory=item.integer("memory"),
            launch_overhead=item.number("launch_overhead", 0.0),
        )
        for item in body.bodies("devices")
    )
    links = tuple(
        Link(item.text("name"), item.number("latency"), item.number("bandwidth")) for item in body.bodies("links")
    )
    return Cluster(body.text("name"), devices, links, body.integers("link_class"), body.integers("channel"))


# --- PlacementProblem -----------------------------------------------------------------------------------

_PROBLEM_ARRAYS = ("compute", "producer", "transfer", "link_class", "channel", "resident", "capacity",
                   "colocation", "tensor_bytes", "io_class", "meta")  # fmt: skip
_PROBLEM_WORDS = ("memory", "objective", "contiguity", "pipeline")


def _encode_problem(problem: PlacementProblem) -> dict[str, Any]:
    body: dict[str, Any] = {"name": problem.name, "tick_seconds": problem.tick_seconds}
    body["slots"] = problem.slots
    body.update({key: getattr(problem, key) for key in _PROBLEM_WORDS})
    body["op_names"], body["device_names"] = list(problem.op_names), list(problem.device_names)
    if any(problem.op_types):
        body["op_types"] = list(problem.op_types)
    body.update({key: getattr(problem, key).tolist() for key in _PROBLEM_ARRAYS})
    body["consumers"] = _split(problem.consumer_ptr, problem.consumer)
    if problem.backward.any():
        body["backward"] = problem.backward.astype(int).tolist()
    return body


def _decode_problem(body: Body) -> PlacementProblem:
    pointer, consumer = _join(body.items("consumers"), f'{body.where}: "consumers"')
    arrays: dict[str, Any] = {key: body.integers(key) for key in ("compute", "producer", "transfer")}
    arrays.update({key: body.optional_integers(key) for key in _PROBLEM_ARRAYS if key not in arrays})
    words: dict[str, Any] = {key: body.text(key) for key in _PROBLEM_WORDS if body.has(key)}
    if not len(arrays["producer"]):  # a table without rows has lost its width
        arrays["transfer"] = arrays["transfer"].reshape(0, 1)
    return PlacementProblem(
        name=body.text("name"),
        consumer_ptr=pointer,
        consumer=consumer,
        tick_seconds=body.number("tick_seconds", 1e-9),
        slots=body.integer("slots", 1),
        op_names=body.texts("op_names") if body.has("op_names") else (),
        op_types=body.texts("op_types") if body.has("op_types") else (),
        device_names=body.texts("device_names") if body.has("device_names") else (),
        backward=body.flags("backward"),  # type: ignore[arg-type]
        **words,
        **arrays,
    )


# --- Placement, Schedule, Budget ------------------------------------------------------------------------


def _encode_placement(placement: Placement) -> dict[str, Any]:
    body: dict[str, Any] = {"device": placement.device.tolist()}
    if placement.priority is not None:
        body["priority"] = placement.priority.tolist()
    return body


def _decode_placement(body: Body) -> Placement:
    return Placement(body.integers("device"), body.optional_integers("priority"))


_SCHEDULE_ARRAYS = tuple(f.name for f in fields(Schedule))


def _encode_schedule(schedule: Schedule) -> dict[str, Any]:
    return {key: getattr(schedule, key).tolist() for key in _SCHEDULE_ARRAYS}


def _decode_schedule(body: Body) -> Schedule:
    return Schedule(**{key: body.integers(key) for key in _SCHEDULE_ARRAYS})


def _encode_budget(budget: Budget) -> dict[str, Any]:
    return {"seconds": budget.seconds, "evaluations": budget.evaluations, "target": budget.target}


def _decode_budget(body: Body) -> Budget:
    return Budget(
        seconds=body.number("seconds") if body.has("seconds") else None,
        evaluations=body.integer("evaluations") if body.has("evaluations") else None,
        target=body.integer("target") if body.has("target") else None,
    )


# --- Result ---------------------------------------------------------------------------------------------


def result_fields(result: Result[Any]) -> dict[str, Any]:
    """Return the JSON fields of a result, the solution left out."""
    return {
        "problem": result.problem,
        "solver": result.solver,
        "objective": result.objective_name,
        **_number("value", result.value),
        "seconds": result.seconds,
        **_number("lower_bound", result.lower_bound),
        "bound_method": result.bound_method,
        "gap": result.gap,
        "status": result.status,
        "stop_reason": result.stop_reason,
        "evaluations": result.evaluations,
        "runtime": result.runtime,
        "seed": result.seed,
        "queue": result.queue,
        "message": result.message,
        "tick_seconds": result.tick_seconds,
        "problem_hash": result.problem_hash,
        "trace": [[p.seconds, p.evaluations, _plain(p.incumbent), _plain(p.lower_bound)] for p in result.trace],
    }


def _encode_result(result: Result[Any]) -> dict[str, Any]:
    return {**result_fields(result), "solution": None if result.solution is None else to_dict(result.solution)}


def _decode_result(body: Body) -> Result[Any]:
    solution = None
    trace = body.items("trace") if body.has("trace") else []
    if body.has("solution"):
        solution = from_dict(body.get("solution"), where=f'{body.where}: "solution"')
    return Result(
        problem=body.text("problem"),
        solver=body.text("solver"),
        solution=solution,
        value=_rational(body, "value") if body.has("value") else None,
        lower_bound=_rational(body, "lower_bound"),
        bound_method=body.text("bound_method"),
        status=body.text("status"),
        stop_reason=body.text("stop_reason"),
        evaluations=body.integer("evaluations"),
        runtime=body.number("runtime"),
        seed=body.integer("seed"),
        queue=body.text("queue", ""),
        message=body.text("message", ""),
        tick_seconds=body.number("tick_seconds", 1e-9),
        objective_name=body.text("objective", "makespan"),
        problem_hash=body.text("problem_hash", ""),
        trace=tuple(_trace_point(body, i, row) for i, row in enumerate(trace)),
    )


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
    if not body.has(f"{key}_exact"):
        return body.integer(key)
    text = body.text(f"{key}_exact")
    if not re.fullmatch(r"[0-9]{1,19}/[1-9][0-9]{0,18}", text):
        raise body.wrong(f"{key}_exact", "a fraction such as 16/3", text)
    return Fraction(text)


def _trace_point(body: Body, index: int, row: Any) -> TracePoint:
    ok = isinstance(row, list) and len(row) == 4 and isinstance(row[0], int | float)
    ok = ok and type(row[1]) is int and type(row[2]) in (int, float, type(None)) and type(row[3]) in (int, float)
    if not ok:
        raise body.wrong(f"trace[{index}]", "[seconds, evaluations, incumbent, lower bound]", row)
    return TracePoint(float(row[0]), row[1], row[2], row[3])


for _codec in (
    Codec("opgraph", OpGraph, _encode_graph, _decode_graph),
    Codec("cluster", Cluster, _encode_cluster, _decode_cluster),
    Codec("problem", PlacementProblem, _encode_problem, _decode_problem),
    Codec("placement", Placement, _encode_placement, _decode_placement),
    Codec("schedule", Schedule, _encode_schedule, _decode_schedule),
    Codec("budget", Budget, _encode_budget, _decode_budget),
    Codec("result", Result, _encode_result, _decode_result),
):
    register(_codec)

__all__ = ["Body", "Codec", "from_dict", "load", "register", "result_fields", "save", "to_dict"]
