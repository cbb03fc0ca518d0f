"""`torch`: the captured module with its weights on their devices and a transfer wherever a
tensor changes device; and captured modules as a Python file that needs nothing but torch, their
weights beside it.

A tensor goes once to every device that reads it. Weights keep their names, so a state dict of the
original module fits; gradients flow through the transfers. On CUDA devices calls return before the
device is done, so devices work at the same time, each in the order of the program.
"""

from __future__ import annotations

import copy
import importlib.util
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from placeopt.exports.export import Exported, Job
from placeopt.model.errors import InputError
from placeopt.model.files import Data, write_text
from placeopt.programs.torch_program import (
    TorchProgram,
    attribute,
    held,
    is_here,
    known_devices,
    with_devices,
)

STORED_DEVICES = "placeopt_devices"
"""Key of a GraphModule's `meta`: device of every stored tensor by name, which this machine may
lack."""

BUILT_IN = ("aten", "prim", "prims", "higher_order", "_c10d_functional")
"""Namespaces of ops that are there as soon as torch is."""

HEADER = '''\
"""Written by placeopt: {title}.

    model = load("{first}")        # the weights are read from weights.pt beside this file
"""

import os

import torch
import torch.utils._pytree as pytree
{imports}

def _fill(module, weights):
    """Put the weights where the code looks for them, each on its device; tied names share one tensor."""
    tied = {{}}
    for path, (key, value, device, learned) in weights.items():
        if key not in tied:
            moved = value.to(device)
            tied[key] = moved if learned is None else torch.nn.Parameter(moved, requires_grad=learned)
        *parents, leaf = path.split(".")
        home = module
        for name in parents:
            if not hasattr(home, name):
                home.add_module(name, torch.nn.Module())
            home = getattr(home, name)
        if learned is None:
            home.register_buffer(leaf, tied[key])
        else:
            home.register_parameter(leaf, tied[key])


def load(name="{first}", folder=None):
    """Return a module of this file with its weights."""
    folder = os.path.dirname(os.path.abspath(__file__)) if folder is None else folder
    module = CLASSES[name]()
    _fill(module, torch.load(os.path.join(folder, "weights.pt"), weights_only=True)[name])
    return module
'''

NESTED = '''
    KEYWORDS = {keywords!r}
    RESULT = {result!r}

    def forward(self, *args, **kwargs):
        """Take and return what the original module does."""
        named = {{key: kwargs[key] for key in self.KEYWORDS}}
        results = self._flat(*pytree.tree_leaves((args, named), is_leaf=lambda x: x is None))
        return pytree.tree_unflatten(results, pytree.treespec_loads(self.RESULT))
'''


def export(job: Job) -> Exported:
    """Return the module; its files are a Python file and the weights."""
    known_devices(job.devices)
    module, transfers = placed_module(job.torch, job.home.tolist(), job.devices)
    files = saved_module("placed.py", "a module on several devices", {"Placed": module})
    notes = [f"{transfers} transfers between devices"]
    absent = [name for name in dict.fromkeys(job.devices) if not is_here(name)]
    if absent:
        notes.append(
            f"{', '.join(absent)}: not on this machine; the files run where torch finds them"
        )
    return Exported(module, files, tuple(notes))


def placed_module(
    program: TorchProgram, home: Sequence[int], devices: Sequence[str]
) -> tuple[Any, int]:
    """Return a copy of the captured module that computes every call on its device, and its number
    of transfers.

    Parameters
    ----------
    home : device of every call; `devices` are their names in torch.
    """
    import torch

    module = own_copy(program.graph_module)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    where = {node: devices[d] for node, d in zip(nodes, home, strict=True)}
    stored = _place_stored(module, where, devices[0])
    module.meta[STORED_DEVICES] = stored
    for name, device in stored.items():
        if is_here(device):
            _put(module, name, device)
    copies: dict[tuple[Any, str], Any] = {}
    for node in nodes:
        with_devices(node, torch.device(where[node]))
        for source in node.all_input_nodes:
            if where.get(source) == where[node] or not moves(source):
                continue
            node.replace_input_with(source, _copy(module, copies, source, node, where[node]))
    module.graph.lint()
    module.recompile()
    return module, sum(source.op != "placeholder" for source, _ in copies)


def _place_stored(module: Any, where: dict[Any, str], default: str) -> dict[str, str]:
    """Put what the module stores on the device of its first reader; return the device by name."""
    stored = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            readers = (where[user] for user in node.users if user in where)
            stored[node.target] = where[node] = next(readers, default)
    return stored


def moves(node: Any) -> bool:
    """Whether a node gives a tensor, and not a number, several tensors or a nested graph."""
    import torch

    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) if value is not None else node.op != "get_attr"


def _copy(
    module: Any, copies: dict[tuple[Any, str], Any], source: Any, reader: Any, device: str
) -> Any:
    """Return the node that holds `source` on `device`, made before its first reader there."""
    if (source, device) not in copies:
        with module.graph.inserting_before(reader):
            copies[source, device] = module.graph.call_method("to", (source, device))
        copies[source, device].meta["val"] = source.meta.get("val")
    return copies[source, device]


def own_copy(module: Any) -> Any:
    """Return a GraphModule of its own graph and its own tree of modules, on the same tensors."""
    import torch

    memo = {id(x): x for x in (*module.parameters(), *module.buffers())}
    memo |= {id(x): x for x in held(module).values() if isinstance(x, torch.Tensor)}
    # torch's own warnings, on how its specs are copied
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return copy.deepcopy(module, memo)


def _put(module: Any, name: str, device: str) -> None:
    """Replace a stored tensor by one on `device`; tied names keep sharing one."""
    import torch

    path, _, leaf = name.rpartition(".")
    parent = attribute(module, path) if path else module
    value = getattr(parent, leaf)
    if not isinstance(value, torch.Tensor) or value.device == torch.device(device):
        return
    moved = value.detach().to(device)
    if isinstance(value, torch.nn.Parameter):
        moved = torch.nn.Parameter(moved, value.requires_grad)
    setattr(parent, leaf, moved)


def saved_module(
    file: str, title: str, modules: Mapping[str, Any], extra: str = ""
) -> dict[str, Callable[[Path], object]]:
    """Return how to write the Python file and weights.pt.

    Parameters
    ----------
    modules : GraphModules by the name of their class. One that knows how its arguments are nested
    takes
        them so; another takes and returns a flat list of tensors.
    extra : Python code that follows the classes.

    Raises
    ------
    InputError
        When the file is written, if a module holds nested graphs (control flow), which cannot be
        written as code.
    """
    import torch

    weights = {name: _weights(module) for name, module in modules.items()}
    return {
        file: lambda path: write_text(path, _code(title, modules) + extra),
        "weights.pt": partial(torch.save, weights),
    }


def _code(title: str, modules: Mapping[str, Any]) -> str:
    """Return the file without what follows the classes."""
    parts, needed = [], Data()
    for name, module in modules.items():
        text, found = class_source(name, module)
        parts.append(text)
        needed |= found
    lines = dict.fromkeys(import_line(name, value) for name, value in needed.items())
    lines |= dict.fromkeys(registering(modules.values()))
    imports = "\n".join(line for line in lines if line)
    code = HEADER.format(title=title, first=next(iter(modules)), imports=imports and imports + "\n")
    classes = ", ".join(f'"{name}": {name}' for name in modules)
    return "\n\n".join([code, *parts, f"CLASSES = {{{classes}}}\n"])


def class_source(name: str, module: Any) -> tuple[str, Data]:
    """Return the source of a class, and the global names that it uses."""
    import torch.utils._pytree as pytree
    from torch.fx import GraphModule
    from torch.fx.graph import CodeGen

    for path, value in held(module).items():
        if isinstance(value, GraphModule):
            raise InputError(
                f"the module holds a nested graph ('{path}', control flow), which cannot be "
                "written as code; use po.export in Python"
            )
    nested = hasattr(module, "_in_spec")
    graph = module.graph
    codegen = graph._codegen
    graph.set_codegen(CodeGen())
    try:
        made = graph.python_code("self")
    finally:
        graph.set_codegen(codegen)
    body = made.src.strip("\n").replace(
        "def forward(", "def _flat(" if nested else "def forward(", 1
    )
    lines = [f"    {line}".rstrip() for line in body.split("\n")]
    text = f"class {name}(torch.nn.Module):\n" + "\n".join(lines) + "\n"
    if nested:
        keywords = list(module._in_spec.children()[1].context or [])
        try:
            result = pytree.treespec_dumps(module._out_spec)
        except (NotImplementedError, TypeError) as error:
            raise InputError(
                f"the results of the module are of a type that cannot be written ({error}); "
                "return tensors, tuples or dicts"
            ) from error
        text += NESTED.format(keywords=keywords, result=result)
    return text, dict(made.globals)


def import_line(name: str, value: Any) -> str:
    """Return the line that makes a global name of generated code known."""
    if name in ("torch", "pytree"):
        return ""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}"
    if isinstance(value, float):
        return f"from math import {name}"
    if value is type(None):
        return f"{name} = type(None)"
    return f"from {value.__module__} import {value.__name__} as {name}"


def registering(modules: Iterable[Any]) -> Iterator[str]:
    """Yield the imports that make custom ops known to torch, such as those of transformers.

    Raises
    ------
    InputError
        If an op's library cannot be told.
    """
    import torch
    from torch._library.custom_ops import OPDEFS

    targets = {node.target: node for module in modules for node in module.graph.nodes}
    for target, node in targets.items():
        if not isinstance(target, torch._ops.OpOverload) or target.namespace in BUILT_IN:
            continue
        definition = OPDEFS.get(target._schema.name)
        if definition is not None:
            yield f"import {definition._init_fn.__module__}  # {target._schema.name}"
        elif importlib.util.find_spec(target.namespace):
            yield f"import {target.namespace}"  # as torchvision registers its ops
        else:
            raise InputError(
                f"op '{node.name}' calls the custom op '{target._schema.name}', whose Python "
                "module torch does not tell; register it with torch.library.custom_op, or use po.export "
                "in Python"
            )


def _weights(module: Any) -> dict[str, tuple[str, Any, str, bool | None]]:
    """Return (key of tied names, tensor, device, whether it learns, None for a buffer) by path, for
    what the code reads.
    """
    import torch

    first: dict[int, str] = {}
    found = {}
    for path, value in held(module).items():
        if not isinstance(value, torch.Tensor):
            continue
        device = module.meta.get(STORED_DEVICES, {}).get(path, str(value.device))
        tensor = value.detach() if value.device.type in ("meta", "cpu") else value.detach().cpu()
        learned = value.requires_grad if isinstance(value, torch.nn.Parameter) else None
        found[path] = (first.setdefault(id(value), path), tensor, device, learned)
    return found
