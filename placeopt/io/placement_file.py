"""Placement files: how a learned policy, or a person, hands over which op runs where.

JSON: `{"problem": name, "device": {op: device}, "priority": {op: rank}}` (priority optional;
"stage", the pipeline stage by op, may stand beside them: `placeopt schedule` writes it, exports of
pipelines read it). CSV: the header `op,device` or `op,device,priority`, one line per op; cells are
separated by commas, semicolons or tabs, and a first column without a name is left out. Ops and
devices are given by name or by index; a name wins over an index that reads the same. `numpy.save`:
an array of the device of every op, as the JSON list "device" is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from placeopt.io.body import Body
from placeopt.io.serialize import from_dict
from placeopt.model.arrays import Ints, as_array, int_array, positions
from placeopt.model.errors import InputError, brief, did_you_mean
from placeopt.model.files import (
    Data,
    csv_rows,
    csv_text,
    parse_json,
    read_bytes,
    text_of,
    write_json,
    write_text,
)
from placeopt.model.placement import QUEUES, Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Result

JSON_KEYS = ("problem", "device", "priority", "queue", "stage")
CSV_HEADERS = (["op", "device"], ["op", "device", "priority"])
_NPY = b"\x93NUMPY"


class PlacementText(NamedTuple):
    """A placement file that was read: what messages call it, its text, and its parsed JSON (None of
    a CSV file).
    """

    where: str
    text: str
    data: Any


def open_placement(path: str | Path | PlacementText) -> PlacementText:
    """Read a placement file once for all that is asked of it.

    Raises
    ------
    InputError
        If it cannot be read, or begins like JSON and is none.
    """
    if isinstance(path, PlacementText):
        return path
    where = f"placement '{path}'"
    content = read_bytes(path, what="placement")
    if content.startswith(_NPY):
        return PlacementText(where, "", {"device": _saved_array(Path(path), where)})
    text = text_of(content, where)
    is_json = text.lstrip().startswith(("{", "["))
    return PlacementText(where, text, parse_json(text, where) if is_json else None)


def _saved_array(path: Path, where: str) -> list[Any]:
    """Return the entries of an array of `numpy.save`; nothing in it is executed."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: not a whole .npy file: {brief(str(error))}") from error
    if array.dtype.kind != "U":
        array = int_array(array, array.shape, where)
    if array.ndim != 1:
        raise InputError(f"{where}: expected one device per op, received shape {array.shape}")
    return list(array.tolist())


def read_placement(path: str | Path | PlacementText, problem: PlacementProblem) -> Placement:
    """Read a placement of `problem` from a JSON, CSV or .npy file (told apart by content).

    The JSON of a `Result` or a `Placement` written by `placeopt.io.serialize` is accepted as well.

    Raises
    ------
    InputError
        If the file is truncated, has another header, names an unknown op or device (the nearest
        name is suggested), has an op twice or leaves one out. Constraints are not checked here:
        that is `verify`.
    """
    where, text, data = open_placement(path)
    return _from_csv(text, problem, where) if data is None else _from_json(data, problem, where)


def placement_of(value: Any, problem: PlacementProblem) -> Placement:
    """Return the placement that a Python object stands for.

    Parameters
    ----------
    value : a Placement, a Result with one, the device of every op in order (a list, an array or a
        tensor), or a mapping (a dict, a pandas Series): of ops to devices, each by name or index,
        of the keys of a placement file, or of the columns of its CSV (a pandas DataFrame).

    Raises
    ------
    InputError
        If it is none of these, names what is not there, or leaves an op out.
    """
    if isinstance(value, Result):
        value = value.solution
    if isinstance(value, Placement):
        return value
    if hasattr(value, "keys"):  # a Series is an array, too, but its order is not that of the ops
        keys = list(value.keys())
        if keys in CSV_HEADERS and all(np.iterable(value[key]) for key in keys):
            return _from_columns([list(value[key]) for key in keys], problem)
        data = dict(value) if {"device", "format"} & set(value) else {"device": dict(value)}
        return _from_json(data, problem, "placement")
    if isinstance(value, list | tuple) or hasattr(value, "__array__"):
        devices = as_array(value, "device")
        if devices.dtype.kind in "OU":  # names
            return _from_json({"device": list(value)}, problem, "placement")
        placement = Placement(devices)
        check_devices(problem, placement, "placement")
        return placement
    raise InputError(
        f"problem '{problem.name}': expected a Placement, a Result, a file, a list of devices or a "
        f"mapping of ops to devices, received {type(value).__name__}"
    )


def check_devices(problem: PlacementProblem, placement: Placement, where: str) -> None:
    """Refuse a placement of other ops, or on devices that are not there."""
    if len(placement.device) != problem.num_ops:
        raise InputError(
            f"{where}: expected {problem.num_ops} ops of problem '{problem.name}', "
            f"received {len(placement.device)}"
        )
    outside = (placement.device < 0) | (placement.device >= problem.num_devices)
    if outside.any():
        op = int(outside.argmax())
        raise InputError(
            f"{where}: op '{problem.op_names[op]}': expected a device in "
            f"0..{problem.num_devices - 1}, received {int(placement.device[op])}"
        )


def write_placement(
    path: str | Path,
    problem: PlacementProblem,
    placement: Placement,
    queue: str | None = None,
    stage: Sequence[int] | None = None,
) -> Path:
    """Write a placement by names: CSV where `path` ends in .csv, else JSON.

    `queue` is the execution ("fifo", "priority" or "planned") under which the placement was valued,
    `stage` the pipeline stage of every op; JSON only. The file is replaced at once.
    """
    path = Path(path)
    check_devices(problem, placement, "placement")
    if path.suffix.lower() == ".csv":
        return write_text(path, placement_csv(problem, placement))
    data: Data = {"problem": problem.name}
    devices = [problem.device_names[d] for d in placement.device.tolist()]
    data["device"] = dict(zip(problem.op_names, devices, strict=True))
    if placement.priority is not None:
        ranks = placement.priority.tolist()
        data["priority"] = dict(zip(problem.op_names, ranks, strict=True))
    if queue is not None:
        data["queue"] = queue
    if stage is not None:
        data["stage"] = dict(zip(problem.op_names, stage, strict=True))
    return write_json(path, data)


def placement_csv(problem: PlacementProblem, placement: Placement) -> str:
    """Return a placement by names as CSV; the rank is left out where there is none."""
    devices = [problem.device_names[d] for d in placement.device.tolist()]
    columns: list[Sequence[Any]] = [problem.op_names, devices]
    if placement.priority is not None:
        columns.append(placement.priority.tolist())
    return csv_text([CSV_HEADERS[len(columns) - 2], *zip(*columns, strict=True)])


def read_queue(path: str | Path | PlacementText) -> str | None:
    """Return the execution a JSON placement file names ("queue"), None where it names none."""
    where, _, data = open_placement(path)
    return (_check_queue(data, where) or None) if isinstance(data, dict) else None


def read_stages(path: str | Path, problem: PlacementProblem) -> list[int] | None:
    """Return the pipeline stage of every op that a JSON placement file tells, None where it tells
    none.
    """
    where, _, data = open_placement(path)
    if not isinstance(data, dict) or data.get("stage") is None:
        return None
    given = Body(data, where).body("stage")
    found = {name: given.integer(name) for name in problem.op_names}
    for name, stage in found.items():
        if not 0 <= stage < problem.num_ops:
            raise given.wrong(name, f"0..{problem.num_ops - 1}", stage)
    return list(found.values())


# --- JSON and CSV
# ---------------------------------------------------------------------------------------


def _from_json(data: Any, problem: PlacementProblem, where: str) -> Placement:
    if isinstance(data, dict) and str(data.get("format", "")).startswith("placeopt/"):
        return _from_object(data, problem, where)
    if not isinstance(data, dict) or "device" not in data:
        found = f"the keys {', '.join(list(data)[:5])}" if isinstance(data, dict) else "a list"
        raise InputError(
            f'{where}: expected an object with "device": {{op: device}}, received {found}'
        )
    _check_names(data, problem, where)
    table = _Table(problem, where)
    for op, device in _pairs(data["device"], "device", where):
        table.add(op, device, f'"device" of op {op!r}')
    ranks = data.get("priority")
    if ranks is not None:
        for op, rank in _pairs(ranks, "priority", where):
            table.rank(op, rank, f'"priority" of op {op!r}')
    return table.placement(with_ranks=ranks is not None)


def graph_of(name: str) -> str:
    """Name of the graph in a problem's name: "model" of "model on 4xA100"; a placement may go to
    another cluster.
    """
    return name.rpartition(" on ")[0] or name


def _check_names(data: Data, problem: PlacementProblem, where: str) -> None:
    """Refuse a placement of another problem, an unknown execution, and keys that mean nothing."""
    Body(data, where).only(JSON_KEYS)
    named = data.get("problem", problem.name)
    if graph_of(str(named)) != graph_of(problem.name):
        raise InputError(
            f"{where}: it is for problem '{named}', expected '{problem.name}'; "
            'change or remove "problem" if it is meant for this one'
        )
    _check_queue(data, where)


def _check_queue(data: Data, where: str) -> str | None:
    queue = data.get("queue")
    if queue is not None and queue not in (*QUEUES, ""):
        raise InputError(f'{where}: "queue": expected {", ".join(QUEUES)}, received {queue!r:.40}')
    return queue


def _pairs(value: Any, key: str, where: str) -> Iterable[tuple[Any, Any]]:
    """Yield (op, value) of a mapping, or of a list that has one entry per op by index."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple | np.ndarray):
        return enumerate(value)
    raise InputError(f'{where}: "{key}": expected an object {{op: value}}, received {value!r:.40}')


def _from_object(data: Data, problem: PlacementProblem, where: str) -> Placement:
    """Take the placement out of a serialized Placement or Result."""
    value = from_dict(data, where=where)
    if isinstance(value, Result):
        if graph_of(value.problem) != graph_of(problem.name):
            raise InputError(
                f"{where}: it is for problem '{value.problem}', expected '{problem.name}'"
            )
        value = value.solution
    if not isinstance(value, Placement):
        raise InputError(f"{where}: {data['format']} holds no placement")
    check_devices(problem, value, where)
    return value


def placement_rows(text: str, where: str) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV placement, the header first, each with the line it ends in."""
    separator = re.search("[,;\t]", text)
    rows = list(csv_rows(text, f"{where}: ", separator=separator[0] if separator else ","))
    if rows and len(rows[0][1]) > 2 and not rows[0][1][0]:  # the index of a data frame
        return [(line, cells[1:]) for line, cells in rows]
    return rows


def _from_csv(text: str, problem: PlacementProblem, where: str) -> Placement:
    rows = placement_rows(text, where)
    header = [cell.lower() for cell in rows[0][1]] if rows else []
    if header not in CSV_HEADERS:
        raise InputError(
            f"{where}: expected the header op,device or op,device,priority, "
            f"received {','.join(header)[:80] or 'an empty file'}"
        )
    table = _Table(problem, where)
    for line, cells in rows[1:]:
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise InputError(
                f"{where}: line {line}: expected {len(header)} cells, received {len(cells)}"
            )
        table.add(cells[0], cells[1], f"line {line}")
        if len(header) == 3:
            table.rank(cells[0], cells[2], f"line {line}")
    return table.placement(with_ranks=len(header) == 3)


def _from_columns(columns: list[list[Any]], problem: PlacementProblem) -> Placement:
    """Take a placement out of the columns of its CSV."""
    if len({len(column) for column in columns}) > 1:
        raise InputError("placement: expected columns of one length")
    table = _Table(problem, "placement")
    for row, (op, device, *rank) in enumerate(zip(*columns, strict=True)):
        table.add(op, device, f"row {row}")
        if rank:
            table.rank(op, rank[0], f"row {row}")
    return table.placement(with_ranks=len(columns) == 3)


class _Table:
    """Devices and ranks by op, filled entry by entry."""

    def __init__(self, problem: PlacementProblem, where: str) -> None:
        self.problem, self.where = problem, where
        self.op_index = positions(problem.op_names)
        self.device_index = positions(problem.device_names)
        self.device: dict[int, int] = {}
        self.priority: dict[int, int] = {}

    def add(self, op: Any, device: Any, at: str) -> None:
        i = self._find(op, self.op_index, "op", at)
        if i in self.device:
            raise InputError(
                f"{self.where}: {at}: op '{self.problem.op_names[i]}' is placed twice; keep one"
            )
        self.device[i] = self._find(device, self.device_index, "device", at)

    def rank(self, op: Any, rank: Any, at: str) -> None:
        i = self._find(op, self.op_index, "op", at)
        if i in self.priority:
            name = self.problem.op_names[i]
            raise InputError(f"{self.where}: {at}: op '{name}' has two priorities; keep one")
        value = _whole(rank)
        if value is None or abs(value) >= 2**62:
            raise InputError(
                f"{self.where}: {at}: expected a whole number as priority, received {rank!r:.40}"
            )
        self.priority[i] = value

    def placement(self, *, with_ranks: bool) -> Placement:
        device = self._column(self.device, "has no device", "give one to every op")
        if not with_ranks:
            return Placement(device)
        fix = "give one to every op, or to none"
        return Placement(device, self._column(self.priority, "has no priority", fix))

    def _column(self, found: dict[int, int], what: str, fix: str) -> Ints:
        """Return the entries of all ops, and refuse that one has none."""
        missing = [name for i, name in enumerate(self.problem.op_names) if i not in found]
        if missing:
            more = f", nor have {len(missing) - 1} others" if len(missing) > 1 else ""
            raise InputError(f"{self.where}: op '{missing[0]}' {what}{more}; {fix}")
        return np.array([found[i] for i in range(len(found))], np.int64)

    def _find(self, key: Any, index: dict[str, int], what: str, at: str) -> int:
        """Return the index of a name or an index given as a number or as text."""
        if isinstance(key, str) and key in index:
            return index[key]
        where = f"{self.where}: {at}"
        value = _whole(key)
        if value is not None:
            if 0 <= value < len(index):
                return value
            raise InputError(
                f"{where}: expected a {what} in 0..{len(index) - 1} or a name, received {key}"
            )
        if not isinstance(key, str):
            raise InputError(
                f"{where}: expected the name or index of a {what}, received {key!r:.40}"
            )
        hint = did_you_mean(
            key, index, f"known: {', '.join(list(index)[:6])}{', ...' * (len(index) > 6)}"
        )
        raise InputError(
            f"{where}: {what} '{key[:60]}' is not in problem '{self.problem.name}'; {hint}"
        )


def _whole(value: Any) -> int | None:
    """Return a whole number given as int, of numpy too, or as text, None for anything else."""
    if type(value) is int or isinstance(value, np.integer):
        return int(value)
    if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,19}", value.strip()):
        return int(value)
    return None
