"""Captured modules as a Python file that needs nothing but torch, and their weights beside it."""

from __future__ import annotations

import importlib.util
import types
from typing import TYPE_CHECKING, Any

from placeopt.exports.job import text_file
from placeopt.model.errors import InputError
from placeopt.programs.torch_program import attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

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


def saved_module(
    file: str, title: str, modules: Mapping[str, Any], extra: str = ""
) -> dict[str, Callable[[Path], None]]:
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
    weights = {name: _weights(module) for name, module in modules.items()}

    def write_code(path: Path) -> None:
        text_file(_code(title, modules) + extra)(path)

    def write_weights(path: Path) -> None:
        import torch

        torch.save(weights, path)

    return {file: write_code, "weights.pt": write_weights}


def _code(title: str, modules: Mapping[str, Any]) -> str:
    """Return the file without what follows the classes."""
    parts, needed = [], dict[str, Any]()
    for name, module in modules.items():
        text, found = class_source(name, module)
        parts.append(text)
        needed |= found
    lines = dict.fromkeys(import_line(name, value) for name, value in needed.items())
    lines |= dict.fromkeys(registering(modules.values()))
    imports = "\n".join(line for line in lines if line)
    code = HEADER.format(title=title, first=next(iter(modules)), imports=imports and imports + "\n")
    return (
        code
        + "\n\n"
        + "\n\n".join(parts)
        + "\n\nCLASSES = {"
        + ", ".join(f'"{x}": {x}' for x in modules)
        + "}\n"
    )


def class_source(name: str, module: Any) -> tuple[str, dict[str, Any]]:
    """Return the source of a class, and the global names that it uses."""
    import torch.utils._pytree as pytree
    from torch.fx import GraphModule
    from torch.fx.graph import CodeGen

    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(attribute(module, node.target), GraphModule):
            raise InputError(
                f"the module holds a nested graph ('{node.target}', control flow), which cannot be "
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
        if definition is None and importlib.util.find_spec(target.namespace):
            yield f"import {target.namespace}"  # as torchvision registers its ops
            continue
        if definition is None:
            raise InputError(
                f"op '{node.name}' calls the custom op '{target._schema.name}', whose Python module "
                "torch does not tell; register it with torch.library.custom_op, or use po.export "
                "in Python"
            )
        yield f"import {definition._init_fn.__module__}  # {target._schema.name}"


def _weights(module: Any) -> dict[str, tuple[str, Any, str, bool | None]]:
    """Return (key of tied names, tensor, device, whether it learns, None for a buffer) by path, for
    what the code reads.
    """
    import torch

    first: dict[int, str] = {}
    found = {}
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        value = attribute(module, node.target)
        if not isinstance(value, torch.Tensor):
            continue
        device = module.meta.get(STORED_DEVICES, {}).get(node.target, str(value.device))
        tensor = value.detach() if value.device.type in ("meta", "cpu") else value.detach().cpu()
        learned = value.requires_grad if isinstance(value, torch.nn.Parameter) else None
        found[node.target] = (first.setdefault(id(value), node.target), tensor, device, learned)
    return found
