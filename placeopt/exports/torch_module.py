"""`torch`: the captured module with its weights on their devices and a transfer wherever a tensor
changes device.

A tensor goes once to every device that reads it. Weights keep their names, so a state dict of the
original module fits; gradients flow through the transfers. On CUDA devices calls return before the
device is done, so devices work at the same time, each in the order of the program.
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

from placeopt.exports.job import Exported
from placeopt.exports.torch_source_code import STORED_DEVICES, saved_module
from placeopt.programs.torch_program import attribute, is_here, known_devices, with_devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.exports.job import Job
    from placeopt.programs.torch_program import TorchProgram


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
    memo |= {
        id(value): value
        for node in module.graph.nodes
        if node.op == "get_attr"
        if isinstance(value := attribute(module, node.target), torch.Tensor)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, on how its specs are copied
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
        setattr(parent, leaf, torch.nn.Parameter(moved, value.requires_grad))
    elif leaf in parent._buffers:
        parent._buffers[leaf] = moved
    else:
        setattr(parent, leaf, moved)
