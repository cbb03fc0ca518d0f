"""Which format a file has, by its first bytes; names and suffixes play no role.

Only a prefix is read, so that a gigabyte of anything is told apart in no time.
"""

from __future__ import annotations

import itertools
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable
from pathlib import Path

from placeopt.instances.readers.csv_tables import header_of, is_edge_header, is_op_header
from placeopt.instances.readers.edge_list import parse_line
from placeopt.instances.readers.onnx_file import read_varint
from placeopt.model.errors import InputError

NUMBERS = re.compile(r"[0-9\s,]*$")
_TOLD = {
    b"\x1f\x8b": "the file is compressed (gzip); unpack it first: gunzip FILE",
    b"BZh": "the file is compressed (bzip2); unpack it first: bunzip2 FILE",
    b"\xfd7zXZ": "the file is compressed (xz); unpack it first: unxz FILE",
    b"\x28\xb5\x2f\xfd": "the file is compressed (zstd); unpack it first: unzstd FILE",
    **dict.fromkeys((BOM_UTF16_LE, BOM_UTF16_BE), "the text is UTF-16; write it as UTF-8"),
}
"""What is said of files that begin like this."""

_DOT_HEAD = re.compile(
    r"(?:\s|(?://|#)[^\n]*\n|/\*.*?\*/)*+(?:strict\s+)?(?:di)?graph\b[^{]{0,300}\{", re.I | re.S
)
"""How a DOT file begins, behind blanks and comments."""


def detect(path: Path) -> str:
    """Return the name of the format of a file.

    Raises
    ------
    InputError
        If the file is empty or of no known format, or is called .onnx and is text of another
        format.
    """
    try:
        found = _by_content(path)
    except InputError as error:
        if path.suffix != ".onnx":
            raise
        raise InputError(
            f"expected an ONNX model, as its suffix says: {error}; export the model again"
        ) from None
    if path.suffix == ".onnx" and found != "onnx":
        raise InputError(
            f"expected an ONNX model, as its suffix says, received {found}; export the model "
            f"again, or give --format {found}"
        )
    return found


def _by_content(path: Path) -> str:
    prefix_bytes = 65536
    try:
        with path.open("rb") as stream:
            prefix = stream.read(prefix_bytes)
            size = path.stat().st_size
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from error
    if not prefix.strip():
        raise InputError(
            "the file is empty"
            if size == len(prefix)
            else "the file begins with nothing but blanks"
        )
    if prefix.startswith(b"PK\x03\x04"):
        return "pt2"
    told = next((words for start, words in _TOLD.items() if prefix.startswith(start)), None)
    if told:
        raise InputError(told)
    text = _text(prefix, whole=size == len(prefix))
    known = None if text is None else _by_text(text.lstrip())
    if known is not None:
        return known
    if _looks_like_protobuf(prefix):  # a tiny model can be all ASCII
        return "onnx"
    what = "neither UTF-8 text nor an ONNX model"
    if text is not None:
        what = f"it begins with {text.lstrip().splitlines()[0][:40]!r}"
    raise InputError(f"the format is not recognised: {what}")


def _by_text(text: str) -> str | None:
    """Return the format of a text, None where it is of none."""
    if text.startswith(("{", "[")):
        return _json(text)
    if text.startswith("<"):
        return _xml(text)
    if _DOT_HEAD.match(text):
        return "dot"
    lines = text.splitlines()
    return next((name for name, test in _LINE_TESTS if test(lines)), None)


def _text(prefix: bytes, *, whole: bool) -> str | None:
    """Return the prefix as text, None if it is not UTF-8 text; a cut last character is forgiven."""
    for cut in range(1 if whole else 4):
        try:
            text = prefix[: len(prefix) - cut].decode("utf-8-sig")
        except UnicodeDecodeError:
            continue
        control = any(ord(c) < 32 and c not in "\t\n\r\f" for c in text[:4096])
        return None if control else text
    return None


def _looks_like_protobuf(prefix: bytes) -> bool:
    """Whether a file begins like an ONNX model: known fields with plausible lengths until the
    graph.
    """
    wire = {1: 0, 5: 0} | dict.fromkeys((2, 3, 4, 6, 7, 8, 14, 20, 25, 26), 2)
    at, end = 0, len(prefix)
    try:
        while at < end - 1:
            tag, at = read_varint(prefix, at, end)
            if wire.get(tag >> 3) != tag & 7:
                return False
            value, at = read_varint(prefix, at, end)
            if tag & 7 == 2 and (tag >> 3 == 7 or at + value > end):
                return True  # the graph itself, or more than we have seen: the reader checks
            at += value if tag & 7 == 2 else 0
    except InputError:
        return False
    return at > 0


def _json(text: str) -> str:
    """Tell JSON formats apart by the keys they must have."""
    found = re.search(r'"format"\s*:\s*"placeopt/([\w-]*)"', text)
    if found:
        if found[1] == "opgraph":
            return "placeopt"
        raise InputError(f"holds placeopt/{found[1]}, expected a graph (placeopt/opgraph)")
    keys = set(re.findall(r'"([A-Za-z_]{1,40})"\s*:', text))
    known = {"", *keys}
    kinds = (kind for key, some, kind in _JSON_KEYS if key in known and keys & set(some.split()))
    kind = next(kinds, None)
    if kind in _NO_GRAPHS:
        raise InputError(f"this is {_NO_GRAPHS[kind]}")
    if kind:
        return kind
    if "device" in keys:
        raise InputError("this is a placement file, not a graph")
    if not keys:
        raise InputError("not valid JSON, or an object without keys; write the file again")
    shown = ", ".join(sorted(keys)[:6])
    raise InputError(f"JSON of no known graph format (its first keys: {shown})")


# What JSON is, by a key that it has (if any) and keys of which it has one; the first that holds.
_JSON_KEYS = (
    ("", "maxFPGAs maxSizePerFPGA fpgaLatency supportedOnFpga", "dnn-partitioning"),
    ("", "schemaVersion workflow", "wfcommons"),
    ("fpgas", "cpus", "split"),
    ("nodes", "directed multigraph", "node-link"),
    ("work", "edges", "graphs-json"),
    ("nodes", "links edges source", "node-link"),
    ("", "hidden_size model_type architectures", "configuration"),
)

_NO_GRAPHS = {
    "split": "a split of a dnn-partitioning graph, not a graph: "
    "placeopt verify GRAPH.json SPLIT.json",
    "configuration": "the configuration of a model, not a graph; `placeopt plan` takes it",
}


def _xml(text: str) -> str:
    if re.search(r"<!DOCTYPE|<!ENTITY", text, re.I):
        raise InputError(
            "XML with a document type declaration (DOCTYPE) is refused: it can expand without limit"
        )
    head, *parts = text.split("<!--")
    root = re.search(
        r"<(?:\w+:)?([A-Za-z_]\w*)[\s>/]",
        head + "".join(part.partition("-->")[2] for part in parts),
    )
    names = {"net": "openvino", "graphml": "graphml"}
    if root and root[1] in names:
        return names[root[1]]
    shown = f"<{root[1][:40]}>" if root else "no element"
    raise InputError(
        f"XML of no known graph format: expected <net> (OpenVINO) or <graphml>, received {shown}"
    )


def _doppler(lines: list[str]) -> bool:
    if not re.match(r"[0-9]+\s*$", lines[0]):
        return False
    if len(lines) < 3:
        return len(lines) == 2 and "," in lines[1]
    return all(NUMBERS.match(line) for line in lines[1:4]) and any(
        "," in line for line in lines[1:5]
    )


def _stg(lines: list[str]) -> bool:
    lines = list(itertools.dropwhile(lambda line: not line.partition("#")[0].strip(), lines))
    if len(lines) < 2 or not re.match(r"\s*[0-9]+\s*(#.*)?$", lines[0]):
        return False
    body = [line.partition("#")[0].split() for line in lines[1:6]]
    return all(re.fullmatch(r"[0-9]+|[0-9]*\.[0-9]+", cell) for row in body for cell in row)


def _csv(lines: list[str]) -> bool:
    header, _ = header_of("\n".join(lines))
    return is_op_header(header) or is_edge_header(header)


def _edge_list(lines: list[str]) -> bool:
    said = [line for line in lines if line.partition("#")[0].strip()]
    body = (said[:-1] or said)[:50]  # the last line may be cut
    try:
        return bool(body) and all(parse_line(line, at) for at, line in enumerate(body, start=1))
    except InputError:
        return False


_LINE_TESTS: tuple[tuple[str, Callable[[list[str]], bool]], ...] = (
    ("unrelated", lambda lines: bool(re.match(r"#(critical|tasks)\s*$", lines[0].strip(), re.I))),
    ("pipedream", lambda lines: any(re.match(r"\s*node[0-9]+ -- ", line) for line in lines[:50])),
    ("doppler", _doppler),
    ("stg", _stg),
    ("csv", _csv),
    ("edge-list", _edge_list),
)
