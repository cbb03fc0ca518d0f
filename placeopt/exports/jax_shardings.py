"""`jax`: the device of every parameter of a jax model, as `jax.sharding.SingleDeviceSharding`s by
path.

A placement says where whole ops run, so a parameter lies on one device: such shardings are all that
it can say (no parameter is cut). What is written is a Python file that needs jax only:
`place(parameters)` puts a tree of parameters, nested as the modules are, on its devices;
`to_device(path, values)` moves activations to a module's device, between functions that are jitted
each for one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.exports.device_map import ModuleDevices
from placeopt.exports.job import Exported, text_file
from placeopt.programs.calls import Call, Program
from placeopt.programs.onnx_program import is_onnx_program
from placeopt.programs.torch_program import is_torch_program

if TYPE_CHECKING:
    from placeopt.exports.job import Job

CODE = '''\
"""Written by placeopt: the device of every module, for jax."""

import jax

DEVICES = {devices!r}
"""Number of the device among jax.devices(), by path of a module; the longest path that a parameter's begins with counts."""


def device_of(path):
    """Return the jax device of a module or a parameter, given its path, such as ("h", "3", "attn", "kernel")."""
    parts = [str(part) for part in path]
    for end in range(len(parts), -1, -1):
        number = DEVICES.get("/".join(parts[:end]))
        if number is not None:
            return jax.devices()[number]
    raise KeyError("/".join(parts))


def shardings(parameters):
    """Return a SingleDeviceSharding for every leaf of a tree of parameters."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.sharding.SingleDeviceSharding(device_of([_name(key) for key in path])), parameters)


def place(parameters):
    """Return the parameters, each on its device."""
    return jax.device_put(parameters, shardings(parameters))


def to_device(path, values):
    """Return activations on the device of a module."""
    return jax.device_put(values, device_of(path.replace(".", "/").split("/")))


def _name(key):
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)
'''


def export(job: Job) -> Exported:
    """Return the number of the device by path of a module; the file makes shardings of them."""
    table = {path.replace(".", "/"): device for path, device in _modules(job).items()}
    text = CODE.format(devices=table)
    return Exported(table, {"shardings.py": text_file(text)})


def _modules(job: Job) -> dict[str, int]:
    """Return the device of every module by path; without the model, the names of the ops tell the
    modules.
    """
    if is_torch_program(job.model) or is_onnx_program(job.model):
        home = job.home.tolist()
        return ModuleDevices(job.program, home, job.parameters, job.constants).shortest()
    problem = job.problem
    calls = [Call(name, "", name.replace("/", "."), ()) for name in problem.op_names]
    return ModuleDevices(
        Program(problem.name, tuple(calls)), job.placement.device.tolist(), job.parameters
    ).shortest()
