"""torch.export archives (.pt2), read without torch: the graph in them is JSON.

Only the program (`models/*.json`) is unpacked, up to a size limit; weights and pickled objects are
not touched.
"""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from placeopt.instances.readers.ir_graph import Reading
from placeopt.instances.readers.model_ir import Model, Node, Value, Values
from placeopt.instances.readers.torch_export import add_bodies, finish_exported
from placeopt.instances.readers.torch_ops import (
    OPS,
    VMAP,
    Ref,
    base_name,
    flat,
    inner_name,
    lost_write,
    make_node,
    module_path,
)
from placeopt.model.errors import InputError
from placeopt.model.files import Data, one_line, parse_json
from placeopt.model.graph import OpGraph

MIN_UNPACKED = 8 * 2**20
"""A program may unpack to this many bytes, or to `max_ratio` times the size of the archive where
that is more."""

DTYPES = {int(number): name for number, name in OPS["dtypes"].items()}
"""Element types by their number in the schema of torch.export."""


def read(path: Path, *, max_bytes: int, **reading: Any) -> OpGraph:
    """Read the program of an archive; options as for ONNX models."""
    how = Reading(**reading)
    program = parse_json(_program(path, max_bytes), "program of the archive")
    try:
        graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
        model = _translate(graph, signature["input_specs"], path.stem, how.trip_count)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(
            f"not the JSON of an exported program: {type(error).__name__} {one_line(str(error))}"
        ) from error
    return finish_exported(model, how)


def _program(path: Path, max_bytes: int) -> str:
    """Unpack the JSON of the program, refusing what is larger than `max_bytes` when unpacked."""
    # Most files in an archive
    max_entries = 200_000
    # A program may unpack to so many times the size of the archive, or to MIN_UNPACKED bytes
    max_ratio = 16
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if len(entries) > max_entries:
                raise InputError(f"more than {max_entries} files in the archive")
            models = [
                x
                for x in entries
                if x.filename.endswith("serialized_exported_program.json")
                or ("models/" in x.filename and x.filename.endswith(".json"))
            ]
            if not models:
                raise InputError(
                    "a zip archive, but not of torch.export: it holds no models/*.json"
                )
            most = min(max_bytes, max(MIN_UNPACKED, max_ratio * path.stat().st_size))
            with archive.open(min(models, key=lambda x: x.filename)) as stream:
                data = stream.read(
                    most + 1
                )  # what is declared may be a lie: stop when it is enough
    except (InputError, MemoryError):
        raise
    except Exception as error:  # every way to pack has errors of its own
        raise InputError(f"truncated or damaged archive: {one_line(str(error))}") from error
    if len(data) > most:
        raise InputError(f"the program unpacks to more than the limit of {most} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("program of the archive: expected UTF-8 text") from error


def _translate(graph: Data, specs: list[Any], name: str, turns: int | None) -> Model:
    values = {key: _value(meta) for key, meta in graph["tensor_values"].items()}
    for spec, kind in itertools.product(specs, ("parameter", "buffer", "tensor_constant")):
        value = values.get(spec[kind]["arg"]["name"]) if kind in spec else None
        if value is not None:
            value.make_constant(learned=kind == "parameter")
    _refuse_lost_writes(graph)
    nodes: list[Node] = []
    seen: dict[str, str] = {}
    for call in graph["nodes"]:
        outputs = _tensors(call["outputs"])
        if _is_region(call):
            body = _inlined(call, values, seen, turns)
            seen |= zip(outputs, body.outputs, strict=False)
            nodes += body.nodes
        elif outputs:
            nodes.append(_renamed(_node(call, outputs, values, turns), seen))
    return Model(name, nodes, values, [seen.get(x, x) for x in _tensors(graph["outputs"])])


def _is_region(call: Data) -> bool:
    """Whether a call only sets a mode for the graph that is its second argument."""
    return str(call["target"]).endswith("wrap_with_set_grad_enabled")


def _inlined(call: Data, values: Values, seen: dict[str, str], turns: int | None) -> Model:
    """Return what a region computes, in the names that it has outside; its values are added.

    Parameters
    ----------
    seen : names of outside by names of results of regions before.
    """
    arguments = [x["arg"] for x in call["inputs"]]
    graph, region = arguments[1]["as_graph"]["graph"], call.get("name") or "region"
    body = _translate(graph, [], "", turns)
    outer = {name: inner_name(region, name) for name in body.values}
    given = (seen.get(x, x) for x in _tensors(arguments[2:]))
    outer |= zip(_tensors(graph["inputs"]), given, strict=False)
    for name, value in body.values.items():
        values.setdefault(outer[name], value)
    for node in body.nodes:
        node.name = inner_name(region, node.name)
        node.outputs = [outer[x] for x in node.outputs]
        _renamed(node, outer)
    body.outputs = [outer[x] for x in body.outputs]
    return body


def _renamed(node: Node, names: dict[str, str]) -> Node:
    node.inputs = [names.get(x, x) for x in node.inputs]
    return node


def _refuse_lost_writes(graph: Data) -> None:
    calls = [
        (str(call["target"]), _tensors(x["arg"] for x in call["inputs"]), _tensors(call["outputs"]))
        for call in graph["nodes"]
    ]
    by = lost_write([*calls, ("", _tensors(graph["outputs"]), [])])
    reason = f"'{base_name(by)}' writes into a tensor that others read afterwards"
    if any(target.endswith(VMAP) for target, _, _ in calls):
        by, reason = VMAP, "behind a vmap shapes lack an axis"
    if by:
        raise InputError(f"{reason}; save program.run_decompositions({{}})")


def _node(call: Data, outputs: list[str], values: dict[str, Value], turns: int | None) -> Node:
    """Translate a call, and the graphs among its arguments."""
    for key in outputs:
        if key not in values:
            raise InputError(f"output '{one_line(key)}' has no entry in tensor_values")
    args = [
        _translate(x["arg"]["as_graph"]["graph"], [], "", turns)
        if "as_graph" in x["arg"]
        else _argument(x["arg"])
        for x in call["inputs"]
    ]
    stack = (call.get("metadata") or {}).get("nn_module_stack", "")
    last = stack.split(";")[-1].split(",")
    layer = module_path(last[1] if len(last) > 2 else "")
    target = str(call["target"])
    title = call.get("name") or (outputs[0] if len(outputs) == 1 else base_name(target))
    node = make_node(title, target, args, {}, outputs, layer)
    add_bodies(node, args, values, turns)
    return node


def _value(meta: Data) -> Value:
    return Value(tuple(_size(d) for d in meta["sizes"]), DTYPES.get(meta["dtype"], "float32"))


def _size(dim: Data) -> int | None:
    """Return a dimension; a symbolic one has the size of the example input, if the file tells
    it.
    """
    if "as_int" in dim:
        return int(dim["as_int"])
    hint = (dim.get("as_expr") or {}).get("hint") or {}
    return int(hint["as_int"]) if "as_int" in hint else None


def _tensors(arguments: Iterable[Data]) -> list[str]:
    """Return the tensors among arguments or outputs: each is one, a list, or a plain value."""
    return [str(x) for item in arguments for x in flat(_argument(item)) if isinstance(x, Ref)]


def _argument(arg: Data) -> Any:
    """Return an argument: a Ref, a list of them, None, or a plain value."""
    if not arg:
        raise InputError("an argument of an op is empty: expected as_tensor, as_int or the like")
    key, value = next(iter(arg.items()))
    if key == "as_tensor":
        return Ref(value["name"])
    if key == "as_tensors":
        return [Ref(x["name"]) for x in value]
    if key == "as_optional_tensor":
        return _argument(value) if value else None
    if key == "as_optional_tensors":
        return [x for x in (_argument(item) for item in value) if x is not None]
    if key == "as_none":
        return None
    return value if key.removesuffix("s") in _PLAIN else ()


_PLAIN = ("as_int", "as_bool", "as_float", "as_string")
"""Arguments that are plain values, or with an "s" lists of them."""
