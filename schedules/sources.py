"""Where pipeline problems come from: the name of a shape, or a block table as TOML, JSON or
CSV file.

TOML and JSON hold the same object::

    name = "two stages"
    devices = ["gpu0", "gpu1"]        # names, or their number
    capacity = 4                      # one for every device, or a list; optional
    micro_batches = 8                 # optional
    tick_seconds = 1e-6               # optional, default 1e-9
    [[blocks]]
    name = "F0"
    kind = "F"                        # F, B, I, W or other
    devices = ["gpu0"]                # names or numbers; all are occupied at the same time
    span = 3                          # ticks
    memory = 1                        # for each of its devices, or a list; optional
    after = ["X", {block = "Y", lag = 2}]
    stage = 0                         # optional

CSV has one line per block and the header `shape,mode,ndevs,gid,kind,span,mem,devices,preds`: `gid`
names the block, `devices` and `preds` are separated by blanks, `shape` and `mode` select the lines
of one table (`file.csv?shape=vshape`); further columns are ignored.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.instances.readers.draft import whole
from placeopt.io.body import Body
from placeopt.model.arrays import UNLIMITED, positions
from placeopt.model.errors import InputError
from placeopt.model.files import Data, csv_columns, is_file, read_json, read_text, read_toml
from placeopt.model.query import parse_query, without_none
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.shapes import check_mode, only_forward, shape_from_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

MAX_DEVICES = 100_000

_number = partial(whole, least=-(2**63), below=2**63)
"""Reads a whole number, or the digits of one."""

OPTIONS = ("memory", "micro_batches", "mode", "shape")


def load_pipeline(source: str | os.PathLike[str], **options: Any) -> PipelineProblem:
    """Read a pipeline problem from a shape's name, a block table, or a table file.

    Parameters
    ----------
    source : `shape:NAME?devices=4&...` (see `placeopt.schedules.shapes`), or the path of a `.toml`,
    `.json`
        or `.csv` block table.
    options : what may also stand behind the `?`; an option given here wins. All sources take
    `memory` (capacity
        of every device, or a sequence), `micro_batches` and `mode` ("train" or "infer").

    Examples
    --------
    >>> load_pipeline("shape:V?devices=4&memory=3").work.tolist()
    [4, 4, 4, 4]
    """
    text = str(source)
    return (
        shape_from_text(text, **options)
        if text.startswith("shape:")
        else read_table(text, **options)
    )


def read_table(source: str, **options: Any) -> PipelineProblem:
    """Read a block table from the file `source`, which may carry options behind a `?`.

    Raises
    ------
    InputError
        If the file is missing or is not a block table.
    """
    text, _, query = source.partition("?")
    given: Data = dict(parse_query(query, f"'{text}'"))
    given |= without_none(options)
    for key in given:
        if key not in OPTIONS:
            raise InputError(
                f"option '{key}' is not known for a block table; known: {', '.join(OPTIONS)}"
            )
    path = Path(text)
    if not is_file(path):
        raise InputError(
            f"'{text}' is no file and no shape; expected shape:NAME or a .toml, .json or .csv "
            "block table"
        )
    mode = given.get("mode", "train")
    check_mode(mode)
    if path.suffix == ".csv":
        name, blocks, devices = _read_csv(path, given.get("shape"), mode)
        fields: Data = {}
    else:
        table = read_toml(path) if path.suffix == ".toml" else read_json(path)
        name, blocks, devices, fields = _from_object(table, path.stem)
    if mode == "infer":
        blocks = only_forward(blocks)
    given["capacity"] = given.pop("memory", None)
    fields |= {key: read(given[key]) for key, read in _FIELDS.items() if given.get(key) is not None}
    return PipelineProblem.from_blocks(name, blocks, devices, **fields)


def problem_from_dict(table: Mapping[str, Any]) -> PipelineProblem:
    """Build a problem from the object described at the top of this module."""
    title, blocks, devices, fields = _from_object(table, "pipeline")
    return PipelineProblem.from_blocks(title, blocks, devices, **fields)


def problem_to_dict(problem: PipelineProblem) -> Data:
    """Return the object that `problem_from_dict` reads; names, times and memory survive the round
    trip.
    """
    table: Data = {
        "name": problem.name,
        "devices": list(problem.device_names),
        "micro_batches": problem.micro_batches,
        "tick_seconds": problem.tick_seconds,
        "blocks": [
            {
                **vars(block),
                "devices": [problem.device_names[d] for d in block.devices],
                "memory": list(block.memory),
                "after": [
                    {"block": before, "lag": lag} if lag else before for before, lag in block.after
                ],
            }
            for block in problem.blocks()
        ],
    }
    if (problem.capacity < UNLIMITED).any():
        table["capacity"] = problem.capacity.tolist()
    return table


def _from_object(table: Mapping[str, Any], name: str) -> tuple[str, list[Block], list[str], Data]:
    body = Body(table, f"block table '{name}'").only(_KEYS)
    for key in ("devices", "blocks"):
        if key not in table:
            raise InputError(f"block table '{name}': '{key}' is missing")
    devices = _device_names(table["devices"], name)
    index = positions(devices)
    if not isinstance(table["blocks"], list):
        raise InputError(f"block table '{name}': blocks must be a list")
    blocks = [_block(entry, index, position) for position, entry in enumerate(table["blocks"])]
    fields: Data = {key: read(table[key]) for key, read in _FIELDS.items() if key in table}
    if "tick_seconds" in table:
        fields["tick_seconds"] = body.number("tick_seconds")
    return str(table.get("name", name)), blocks, devices, fields


def _device_names(devices: Any, name: str) -> list[str]:
    """Return the names of devices that are given, or counted."""
    if isinstance(devices, int) and not isinstance(devices, bool):
        if not 1 <= devices <= MAX_DEVICES:
            raise InputError(
                f"block table '{name}': expected 1 to {MAX_DEVICES} devices, received {devices}"
            )
        return [f"device{i}" for i in range(devices)]
    if not isinstance(devices, list) or not all(isinstance(device, str) for device in devices):
        raise InputError(
            f"block table '{name}': devices must be a number or a list of names, received "
            f"{devices!r}"
        )
    return devices


def _block(entry: Any, index: Mapping[str, int], position: int) -> Block:
    body = Body(entry, f"blocks[{position}]").only(Block.__dataclass_fields__)
    name = str(body.get("name"))
    body.where = where = f"block '{name}'"
    devices = tuple(_device(place, index, name) for place in _listed(body.get("devices")))
    memory = entry.get("memory", 0)
    deltas = memory if isinstance(memory, list) else [memory] * len(devices)
    return Block(
        name,
        str(entry.get("kind", "other")),
        devices,
        _number(body.get("span"), where, "span"),
        tuple(_number(delta, where, "memory") for delta in deltas),
        tuple(_wait(before, where) for before in _listed(entry.get("after", []))),
        _number(entry.get("stage", -1), where, "stage"),
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _device(place: Any, index: Mapping[str, int], name: str) -> int:
    """Return the index of a device that is given by it, or by name."""
    known = index.get(place) if isinstance(place, str) else place
    if type(known) is not int or not 0 <= known < len(index):
        raise InputError(
            f"block '{name}': unknown device '{place}'; the devices are "
            f"{', '.join(list(index)[:12])}"
        )
    return known


def _wait(before: Any, where: str) -> tuple[str, int]:
    """Return the predecessor that a block waits for, and the lag after it."""
    if not isinstance(before, dict):
        return str(before), 0
    wait = Body(before, f"{where}: after").only(("block", "lag"))
    return str(wait.get("block")), _number(wait.get("lag", 0), wait.where, "lag")


def _read_csv(path: Path, shape: str | None, mode: str) -> tuple[str, list[Block], list[str]]:
    rows, title = _lines_of_table(_csv_rows(path), path, shape, mode)
    where = f"{path}: block"
    blocks = [_csv_block(row, f"{where} '{row['gid']}'") for row in rows]
    count = max(_number(row.get("ndevs") or 0, f"{where} '{row['gid']}'", "ndevs") for row in rows)
    count = count or 1 + max((device for block in blocks for device in block.devices), default=0)
    if not 1 <= count <= MAX_DEVICES:
        raise InputError(f"{path}: expected 1 to {MAX_DEVICES} devices, received {count}")
    return title, blocks, [f"device{i}" for i in range(count)]


def _csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file that has the columns of a block table."""
    columns, rows = csv_columns(read_text(path), str(path))
    needed = ("gid", "kind", "span", "devices", "preds")
    missing = [key for key in needed if not rows or key not in columns]
    if missing:
        raise InputError(
            f"{path}: expected the columns {', '.join(needed)}; missing: {', '.join(missing)}"
        )
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise InputError(
                f"{path}: line {number}: expected {len(columns)} fields as in the header, received "
                f"{'more' if None in row else 'fewer'}"
            )
    return rows


def _csv_block(row: Mapping[str, str], where: str) -> Block:
    devices = tuple(_number(text, where, "devices") for text in row["devices"].split())
    return Block(
        row["gid"],
        row["kind"],
        devices,
        _number(row["span"], where, "span"),
        (_number(row.get("mem") or 0, where, "mem"),) * len(devices),
        tuple((before, 0) for before in row["preds"].split()),
    )


def _lines_of_table(
    rows: list[dict[str, str]], path: Path, shape: str | None, mode: str
) -> tuple[list[dict[str, str]], str]:
    """Return the lines of one table of a file, and its name."""
    if "shape" not in rows[0]:
        return rows, shape or path.stem
    known = list(dict.fromkeys(row["shape"] for row in rows))
    if shape is None and len(known) > 1:
        raise InputError(
            f"{path} holds several tables; choose one with ?shape=NAME from {', '.join(known)}"
        )
    shape = shape or known[0]
    if shape not in known:
        raise InputError(f"{path}: shape '{shape}' is not there; it holds {', '.join(known)}")
    rows = [row for row in rows if row["shape"] == shape]
    return [row for row in rows if row.get("mode") == mode] or rows, shape


def _capacity(value: Any) -> int | list[int]:
    if isinstance(value, str):
        value = value.split(",") if "," in value else value
    if isinstance(value, list | tuple):
        return [_number(part, "block table", "memory") for part in value]
    return _number(value, "block table", "memory")


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "capacity": _capacity,
    "micro_batches": partial(_number, where="block table", what="micro_batches"),
}
"""How the optional fields of a problem are read, in this order."""

_KEYS = ("name", "devices", "blocks", "tick_seconds", *_FIELDS, "format", "version")
"""What the object of a table may hold; `placeopt.io` writes the last two."""
