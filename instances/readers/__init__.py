"""Readers: files of many formats become OpGraphs; a few formats are written as well.

`read_graph(source)` recognises the format by content. Nothing in a file is ever executed, only a
bounded amount of it is read, and whatever is wrong with it is one line. Reader modules are imported
when needed.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placeopt.model.cluster import Cluster
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.files import (
    MAX_BYTES,
    Data,
    is_file,
    no_garbage_collection,
    one_line,
    raised,
    regular_file,
    write_text,
)
from placeopt.model.graph import OpGraph
from placeopt.model.lazy import on_first_use
from placeopt.model.query import parse_query, typed, without_none


@dataclass(frozen=True)
class Format:
    """One format of graph files.

    Attributes
    ----------
    target : "module:function" that reads it: (path, *, max_bytes, options...) -> OpGraph or
    (OpGraph, Cluster).
    writer : "module:function" that writes it: (graph) -> text; "" if it cannot be written.
    suffixes : file names that choose this format when writing.
    """

    name: str
    target: str
    summary: str
    writer: str = ""
    suffixes: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES


_HERE = "placeopt.instances.readers."

FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        Format(
            "onnx",
            "onnx_reader:read",
            "ONNX models; onnx:NAME for those inside the onnx package",
            max_bytes=2**40,
        ),
        Format(
            "placeopt",
            "placeopt_json:read",
            "placeopt's own JSON",
            "placeopt_json:write",
            (".json",),
        ),
        Format("pipedream", "pipedream:read", "PipeDream profiles (measured times of layers)"),
        Format("doppler", "doppler:read", "Doppler's sharded op graphs"),
        Format(
            "dnn-partitioning",
            "dnn_partitioning:read",
            "layer and operator graphs with their devices, JSON",
        ),
        Format(
            "graphs-json",
            "task_library:read",
            "libraries of task graphs, JSON; FILE#NAME picks one",
        ),
        Format(
            "unrelated",
            "unrelated_times:read",
            "task graphs with one time per device, with their devices",
        ),
        Format("dot", "dot:read", "Graphviz DOT", "dot:write", (".dot", ".gv")),
        Format("graphml", "graphml:read", "GraphML", "graphml:write", (".graphml", ".xml")),
        Format("node-link", "networkx_graph:read_node_link", "node-link JSON of networkx"),
        Format(
            "csv", "csv_tables:read", "CSV tables of ops and edges", "csv_tables:write", (".csv",)
        ),
        Format("edge-list", "edge_list:read", "one edge per line: u v [weight]"),
        Format("stg", "stg:read", "standard task graphs", "stg:write", (".stg",)),
        Format("wfcommons", "wfcommons:read", "WfCommons workflow instances, JSON"),
        Format("openvino", "openvino:read", "OpenVINO IR, the XML alone"),
        Format("pt2", "pt2:read", "torch.export archives (.pt2), without torch"),
    )
}
"""Every format by name."""

# What a malformed file can raise where a reader takes its structure for granted. The readers check
# what
# they use; this is the net below them, so that no file prints a stack trace.
_MALFORMED = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def read_graph(source: str | Path, format: str | None = None, **options: Any) -> OpGraph:
    """Read a computation graph from a file, without the devices that `read_bundled` also gives."""
    return read_bundled(source, format, **options)[0]


def read_bundled(
    source: str | Path, format: str | None = None, **options: Any
) -> tuple[OpGraph, Cluster | None]:
    """Read a computation graph and the devices that its file describes, if any.

    Parameters
    ----------
    source : a file, `FILE#NAME` for a graph of a library, or `onnx:NAME`; each may be followed by
    options of the
        reader, as in `model.onnx?fuse=false&dims=batch=8`.
    format : a name of `FORMATS`; by default it is recognised by content.
    options : of the format's reader, such as `dims` and `fuse` (onnx), `cost_scale`
    (dnn-partitioning),
        `tick_seconds`; `max_bytes` raises the size limit of any. `training=True` adds the backward
        ops: the measured ones where the format has them (pipedream), else derived ones. None means:
        not given.

    Raises
    ------
    InputError
        One line: what is wrong with the file, where, and what was expected.
    """
    path, entry = locate(source, format, options)
    shown = str(source) if str(source).startswith("onnx:") else str(path)
    read = _function(entry.target)
    known = options_of(read)
    values = without_none(options)
    derive = "training" not in known and typed(
        str(values.pop("training", False)), False, "option training"
    )
    _check_options(entry.name, known, values)
    values.setdefault("max_bytes", entry.max_bytes)
    try:
        with no_garbage_collection():
            result = read(path, **values)
    except InputError as error:
        raise _located(error, shown) from error
    except _MALFORMED as error:
        raise InputError(f"{shown}: not a valid {entry.name} file ({raised(error)})") from error
    graph, cluster = result if isinstance(result, tuple) else (result, None)
    if derive:
        from placeopt.instances.training import training_graph

        graph = training_graph(graph)
    return graph, cluster


def locate(
    source: str | Path, format: str | None = None, options: Data | None = None
) -> tuple[Path, Format]:
    """Return the file of a source and its format; `?name=value&...` and `#NAME` go into
    `options`.
    """
    format = _known_format(format)
    text, found = str(source), {} if options is None else options
    if "?" in text and not is_file(text):
        text, _, query = text.partition("?")
        found.update(parse_query(query, text, found))
    if text.startswith("onnx:"):
        if format not in (None, "onnx"):
            raise InputError(f"{text} is an ONNX model; leave out format='{format}'")
        return _function("onnx_file:find_model")(text.removeprefix("onnx:")), FORMATS["onnx"]
    if text.startswith("gen:"):
        raise InputError(
            f"{text} names a generator, not a file: use placeopt.generate or placeopt.load"
        )
    if "#" in text and not is_file(text):
        text, _, found["graph"] = text.partition("#")
    path = regular_file(text)
    return path, FORMATS[format or _detected(path)]


def _known_format(format: str | None) -> str | None:
    """Return the name in FORMATS of a format that was asked for."""
    format = "placeopt" if format == "json" else format
    if format is not None and format not in FORMATS:
        raise InputError(f"format '{format}' is not known; {did_you_mean(format, FORMATS)}")
    return format


def _detected(path: Path) -> str:
    """Recognise the format of a file; where it is none of them, say which there are."""
    from placeopt.instances.readers.detect import detect

    try:
        return detect(path)
    except InputError as error:
        known = f"; formats: {', '.join(FORMATS)}" if "not recognised" in str(error) else ""
        raise InputError(f"{path}: {error}{known}") from error


def write_graph(graph: OpGraph, path: str | Path, format: str | None = None) -> Path:
    """Write a graph; the format is chosen by the suffix unless given. The file is replaced at once.

    Raises
    ------
    InputError
        If the format is unknown or cannot hold the graph.
    """
    path = Path(path)
    if format is None:
        suffix = path.suffix.lower()
        format = next((x.name for x in FORMATS.values() if suffix in x.suffixes), None)
        if format is None:
            known = ", ".join(s for x in FORMATS.values() for s in x.suffixes)
            raise InputError(
                f"{path}: no format is written with the suffix '{suffix}'; use one of {known}, or "
                "--to FORMAT (in Python format=)"
            )
    entry = FORMATS.get("placeopt" if format == "json" else format)
    if entry is None or not entry.writer:
        known = ", ".join(x.name for x in FORMATS.values() if x.writer)
        raise InputError(f"format '{format}' cannot be written; these can: {known}")
    return write_text(path, _function(entry.writer)(graph))


__getattr__, _ = on_first_use(
    __name__,
    {"networkx_graph": "from_networkx to_networkx", "torch_export": "from_torch from_exported"},
)


def _function(target: str) -> Callable[..., Any]:
    return pkgutil.resolve_name(_HERE + target)


def options_of(read: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the options of a reader; `**names` and `**reading` stand for those of `Names` and
    `Reading`.
    """
    from placeopt.instances.readers.attributes import Names
    from placeopt.instances.readers.ir_graph import Reading

    found = dict(inspect.signature(read).parameters)
    for key, shared in (("names", Names), ("reading", Reading)):
        if key in found:
            found |= inspect.signature(shared).parameters
    return {key: item for key, item in found.items() if item.kind is item.KEYWORD_ONLY}


def _check_options(format: str, known: dict[str, inspect.Parameter], values: Data) -> None:
    """Refuse unknown options; convert texts (from a command line) to the type of the default."""
    for key, value in values.items():
        if key not in known:
            raise InputError(
                f"format {format} has no option '{key}'; "
                f"{did_you_mean(key, [k for k in known if k != 'max_bytes'])}"
            )
        default = known[key].default
        if isinstance(value, str) and not isinstance(default, str):
            values[key] = typed(value, default, f"option {key}")
        elif isinstance(default, bool) and not isinstance(value, bool):
            raise InputError(f"option {key}: expected true or false, received {value!r:.40}")
    if "tick_seconds" in values and not 0 < values["tick_seconds"] < float("inf"):
        raise InputError(
            f"option tick_seconds: expected a positive number, received {values['tick_seconds']}"
        )


def _located(error: InputError, shown: str) -> InputError:
    """Put the file's name before a message that lacks it."""
    text = one_line(str(error), 1000)
    return error if shown in text and "\n" not in str(error) else type(error)(f"{shown}: {text}")
