"""Loading an ONNX file without its weights.

A model can hold gigabytes of weights of which only type and shape matter here. The file is walked
as protobuf wire format, and the content of every large tensor is left out before the rest is
parsed: memory is bounded by the structure of the model, and nonsense is refused at the first field
that makes no sense.

The models inside the installed onnx package, by name: `onnx:resnet50`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placeopt.model.errors import InputError, MissingExtraError, nearest, needed_package
from placeopt.model.files import one_line

MAX_STRUCTURE = 512 * 2**20
"""Most bytes of a model without its large tensors."""

KEEP_BYTES = 65536
"""Tensors up to this size keep their content: shapes and axes are computed from small ones."""

MAX_DEPTH = 40

# Which fields of a message are messages that may hold a large tensor: {field number: kind}.
_NESTED: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_CONTENT = frozenset({4, 5, 6, 7, 9, 10, 11})
"""Fields of a TensorProto that hold its elements."""


def load_model(path: Path, *, max_bytes: int) -> Any:
    """Return the ModelProto of a file, large tensors without content.

    Raises
    ------
    InputError
        If the file is truncated, too large or no ONNX model.
    MissingExtraError
        If the onnx package is not installed.
    """
    onnx = needed_package("onnx", "onnx", "reading ONNX models")
    from google.protobuf.message import DecodeError

    size = path.stat().st_size
    if size > max_bytes:
        raise InputError(
            f"{size} bytes, more than the limit of {max_bytes}; raise it with max_bytes"
        )
    if size == 0:
        raise InputError("the file is empty")
    try:
        with (
            path.open("rb") as stream,
            contextlib.closing(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)) as data,
        ):
            structure = _Stripper(data).strip(0, size, "model", 0)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(structure)
    except DecodeError as error:
        raise InputError(f"truncated or damaged ONNX model: {one_line(str(error))}") from error
    if not model.graph.node:
        raise InputError("no ONNX model, or one without any op")
    _check_names(model.graph.node)
    _fetch_small(model.graph.initializer, path.parent)
    return model


def _fetch_small(tensors: Any, folder: Path) -> None:
    """Read the whole numbers that lie in files beside the model, few as the targets of reshapes
    are; what cannot be read stays unknown, as large weights do.
    """
    from onnx import TensorProto
    from onnx.external_data_helper import load_external_data_for_tensor

    whole = TensorProto.INT32, TensorProto.INT64
    for tensor in tensors:
        size = {x.key: x.value for x in tensor.external_data}.get("length", "")
        small = len(size) < 6 and size.isdecimal() and int(size) <= KEEP_BYTES
        if small and tensor.data_type in whole:
            with contextlib.suppress(Exception):  # the package raises its own and others
                load_external_data_for_tensor(tensor, str(folder))
                tensor.data_location = 0


def _check_names(nodes: Any) -> None:
    """Refuse names that are bytes: what is no UTF-8 text is left as such."""
    for node in nodes:
        names = (node.name, node.op_type, node.domain, *node.input, *node.output)
        if not all(isinstance(name, str) for name in names):
            raise InputError("damaged ONNX model: a name is no UTF-8 text")


class _Stripper:
    """Copies messages field by field, leaving out the content of large tensors."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.kept = 0

    def strip(self, at: int, end: int, kind: str, depth: int) -> bytes:
        """Return the message in data[at:end] without the content of large tensors."""
        if depth > MAX_DEPTH:
            raise InputError(f"ONNX graphs nested more than {MAX_DEPTH} deep")
        nested = _NESTED.get(kind, {})
        drop = _CONTENT if kind == "tensor" else frozenset()
        parts: list[bytes] = []
        while at < end:
            start = at
            number, content, at = self.field(start, end)
            if at - content > KEEP_BYTES and number in nested:
                body = self.strip(content, at, nested[number], depth + 1)
                parts += [_varint(number << 3 | 2), _varint(len(body)), body]
                continue
            if number in drop:
                continue
            self.kept += at - start
            if self.kept > MAX_STRUCTURE:
                raise InputError(
                    f"the model has more than {MAX_STRUCTURE} bytes besides its weights"
                )
            parts.append(self.data[start:at])
        return b"".join(parts)

    def field(self, start: int, end: int) -> tuple[int, int, int]:
        """Return the number of the field at `start`, where its content begins and where it ends."""
        tag, at = read_varint(self.data, start, end)
        number, wire = tag >> 3, tag & 7
        if number == 0 or wire not in (0, 1, 2, 5):
            raise InputError(f"truncated or damaged ONNX model: no valid field at byte {start}")
        if wire == 0:
            return number, at, read_varint(self.data, at, end)[1]
        if wire == 2:
            length, at = read_varint(self.data, at, end)
            if at + length > end:
                raise InputError(
                    f"truncated ONNX model: a field at byte {start} needs {length} bytes, "
                    f"{end - at} are left"
                )
            return number, at, at + length
        stop = at + (8 if wire == 1 else 4)
        if stop > end:
            raise InputError(f"truncated ONNX model: a field at byte {start} is cut")
        return number, at, stop


def read_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """Return the base-128 number at byte `at`, and where it ends."""
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise InputError(f"truncated or damaged ONNX model: no valid number at byte {at}")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def nested_graphs(node: Any) -> Iterator[Any]:
    """Yield the graphs among the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def scope_of(node: Any) -> str:
    """Return the dotted path of the torch module that a node was exported from, "" where torch's
    dynamo exporter says none.
    """
    text = next((x.value for x in node.metadata_props if x.key == "pkg.torch.onnx.name_scopes"), "")
    try:
        scopes = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    return (
        scopes[-2]
        if isinstance(scopes, list) and len(scopes) > 1 and isinstance(scopes[-2], str)
        else ""
    )


ALIASES = {
    "alexnet": "bvlc_alexnet",
    "zfnet": "zfnet512",
    "vgg": "vgg19",
    "googlenet": "inception_v1",
}


def list_models() -> dict[str, Path]:
    """Return the files of the models that the onnx package ships, by name, sorted.

    The package itself is not imported. Test models of single ops are left out: only the folder
    "light", wherever the installed version keeps it.
    """
    spec = importlib.util.find_spec("onnx")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("onnx", "onnx", "reading onnx:NAME")
    found: dict[str, Path] = {}
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("backend/test/data/**/light_*.onnx")):
            found.setdefault(path.stem.removeprefix("light_"), path)
    return dict(sorted(found.items()))


def find_model(name: str) -> Path:
    """Return the file of a model by name.

    Raises
    ------
    InputError
        If there is none; the message lists the names.
    """
    models = list_models()
    key = name.strip().lower().replace("-", "_").removeprefix("light_")
    key = key if key in models else ALIASES.get(key, key)
    if key in models:
        return models[key]
    if not models:
        raise InputError(f"onnx:{name}: the installed onnx package brings no models; give a file")
    near = nearest(key, models)
    hint = f"did you mean onnx:{near}? " if near else ""
    raise InputError(
        f"onnx:{name[:60]}: no such model in the onnx package; {hint}known: {', '.join(models)}"
    )
