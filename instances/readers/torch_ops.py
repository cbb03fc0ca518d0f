"""The ATen ops of torch.export graphs: which cost rule each one has.

Both readers of exported programs, the live one and the one of .pt2 archives, describe a call by its
target and its arguments, in which tensors are `Ref`s. Regions that only set a mode belong to the
graph around them: torch.export writes `with torch.no_grad()` as a call of a nested graph. Left as
it is, the region is one op that ties everything that reads its results together; so readers and
programs both inline it, under the names given here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from placeopt.instances.readers.model_ir import Node
from placeopt.instances.readers.op_costs import look_up, vocabulary


class Ref(str):
    """The name of a tensor among the arguments of a call."""

    __slots__ = ()


OPS = vocabulary("torch")
"""Cost rules and attributes by ATen name, element types by the number of a schema."""


def base_name(target: str) -> str:
    """Return "conv2d" for "torch.ops.aten.conv2d.default" or "aten::conv2d"; in-place marks are
    dropped.
    """
    parts = target.replace("::", ".").removeprefix("torch.ops.").split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.rstrip("_") or name


def make_node(
    name: str,
    target: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: list[str],
    layer: str,
) -> Node:
    """Return the node of a call.

    Inputs are the tensors among the arguments in order; None among them leaves a gap, so that
    positions tell a weight from a bias.
    """
    kind = base_name(target)
    rule, attrs = look_up(OPS, kind)
    inputs = list(_tensors([*args, *kwargs.values()]))
    if rule == "pool":
        attrs["kernel"] = _kernel(args[1] if len(args) > 1 else kwargs.get("kernel_size", ()), kind)
    elif rule == "einsum":
        attrs.setdefault("equation", next((x for x in args if type(x) is str), ""))
    elif kind in ("chain_matmul", "linalg_multi_dot"):
        rule, chain = "einsum", range(ord("a"), ord("a") + len(inputs))
        attrs["equation"] = ",".join(chr(i) + chr(i + 1) for i in chain)
    elif rule == "fft":
        attrs |= _transformed(args, kind)
    elif rule == "rnn":
        attrs["weights"] = tuple(range(3 if kind.startswith("lstm") else 2, len(inputs)))
    elif kind in ("convolution", "_convolution") and len(args) > 6 and args[6] is True:
        rule = "conv_transpose"
    return Node(name, kind, rule, inputs, outputs, attrs, layer)


def _kernel(kernel: Any, kind: str) -> tuple[int, ...]:
    """Return the window of a pool; one number stands for all axes ("2d" in the name: two)."""
    sizes = [kernel] if isinstance(kernel, int) else list(kernel or ())
    axes = kind.partition("d")[0][-1:]
    return tuple(sizes * int(axes) if len(sizes) == 1 and axes.isdecimal() else sizes)


def _transformed(args: Sequence[Any], kind: str) -> dict[str, Any]:
    """Return the axes of a Fourier transform, or the length of its frames."""
    if kind == "stft":
        return {"length": args[1]}
    usual = [-2, -1] if kind.endswith("2") else [] if kind.endswith("n") else [-1]
    at = 1 if kind.startswith("_fft") else 2
    axes = args[at] if len(args) > at else usual
    return {"axes": [axes] if isinstance(axes, int) else list(axes or ())}


def _tensors(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Ref):
            yield str(value)
        elif value is None:
            yield ""
        elif isinstance(value, list | tuple):
            yield from (x for x in _tensors(value) if x)


def flat(value: Any) -> list[Any]:
    """Return what is nested in lists, tuples and dicts, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [x for item in value for x in flat(item)]
    return [value]


def innermost(node: Any) -> str:
    """Return the path of the module that makes a node of a program, as torch writes it; "" for the
    outermost.
    """
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values() if isinstance(entry, tuple)]
    return paths[-1] if paths else ""


def module_path(stack: str) -> str:
    """Return "layers/0/attn" for the path "layers.0.attn" of a module, also in torch's "L['self']"
    notation.
    """
    text = stack.removeprefix("L__self__").removeprefix("L['self']").strip(".")
    return "/".join(
        part.strip("'\"") for part in text.replace("[", ".").replace("]", "").split(".") if part
    )


def region_of(node: Any) -> tuple[Any, tuple[Any, ...], bool] | None:
    """Return (node of the nested graph, its arguments, whether gradients pass), None if a node is
    no such region.

    A region that turns autocast on is none: inlined, it would compute in another precision.
    """
    if node.op != "call_function":
        return None
    name = getattr(node.target, "__name__", "") or str(node.target)
    if name == "wrap_with_set_grad_enabled":
        return node.args[1], tuple(node.args[2:]), bool(node.args[0])
    if name == "wrap_with_autocast" and not node.args[2]:
        return node.args[4], tuple(node.args[5:]), True
    return None


VMAP = "_add_batch_dim"
"""The call that begins a vmap: the shapes behind it lack an axis."""


def is_veiled(node: Any) -> bool:
    """Whether the ops of a program stand behind a node in other shapes (vmap), or inside it in
    another precision (autocast), than they are run in.
    """
    name = getattr(node.target, "__name__", "") or str(node.target)
    return name == VMAP or (name == "wrap_with_autocast" and bool(node.args[2]))


def lost_write(calls: Iterable[tuple[str, Sequence[str], Sequence[str]]]) -> str:
    """Return the target of the first call that writes into a tensor which is read afterwards under
    a name from before, "" if there is none.

    Such a reader seems to depend on nothing that was written.

    Parameters
    ----------
    calls : target, tensors that are read, and those that are made; a call that looks at a tensor in
        another way, or writes into it, has that first.
    """
    source: dict[str, str] = {}
    made: dict[str, int] = {}
    written: dict[str, tuple[int, str]] = {}
    for at, (target, read, makes) in enumerate(calls):
        for x in read:
            since, by = written.get(source.get(x, x), (-1, ""))
            if made.get(x, -1) < since:
                return by
        writes = re.search(r"^(?:torch\.ops\.)?\w+\.\w*[^\W_]_(?:\.|$)", target) is not None
        views = "getitem" in target or OPS["rule"].get(base_name(target)) in ("view", "identity")
        if read and (writes or views):
            source |= dict.fromkeys(makes, source.get(read[0], read[0]))
        if read and writes:
            written[source.get(read[0], read[0])] = at, target
        made |= dict.fromkeys(makes, at)
    return ""


def inner_name(region: str, name: str) -> str:
    """Return the name that an op of a region has outside it; "" is no region."""
    return f"{region}_{name}" if region else name
