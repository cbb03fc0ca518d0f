"""`shard --to dtensor` and `--to jax`: the layouts of parameters as Python files that frameworks run.

`dtensor_plan.py` makes the parameters of a torch module DTensors, as `distribute_tensor` takes
them, and calls the module: torch then inserts the collectives. `jax_shardings.py` holds a
PartitionSpec for every parameter. Layouts of what lies between parameters are the frameworks' own
choice, so the collectives that run may be others than those that were priced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.sharding.layouts import AXIS_NAMES, partition_spec, torch_placements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.sharding.from_model_parameters import ParameterLayout
    from placeopt.sharding.layouts import Layout

DTENSOR = '''\
"""Written by placeopt: the layouts of a module's parameters as DTensors.

    mesh = make_mesh("cuda")                 # on every rank, after init_process_group
    distribute(module, mesh)
    result = call(module, mesh, *inputs)     # whole tensors in, whole tensors out
"""

from contextlib import nullcontext

import torch
import torch.utils._pytree as pytree
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.attention import SDPBackend, sdpa_kernel

MESH, AXES = {mesh!r}, {axes!r}

PARAMETERS = {{
{rows}
}}
"""Placements by the name of the parameter, one per mesh axis; what is not named is replicated."""

INPUTS = {inputs}
"""Placements of every input: its first dimension is the batch."""


def make_mesh(device_type="cpu"):
    """Return the mesh of all ranks."""
    return init_device_mesh(device_type, MESH, mesh_dim_names=AXES)


def distribute(module, mesh):
    """Make every parameter and buffer of a module a DTensor, in place; tied ones stay one tensor."""
    whole, made = [Replicate()] * len(MESH), {{}}
    for path, value in list(module.named_parameters(remove_duplicate=False)):
        owner = module.get_submodule(path.rpartition(".")[0])
        if id(value) not in made:
            tensor = distribute_tensor(value.detach(), mesh, PARAMETERS.get(path, whole))
            made[id(value)] = torch.nn.Parameter(tensor, requires_grad=value.requires_grad)
        owner.register_parameter(path.rpartition(".")[2], made[id(value)])
    for path, value in list(module.named_buffers(remove_duplicate=False)):
        owner, name = module.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        owner.register_buffer(name, distribute_tensor(value, mesh, whole), name not in owner._non_persistent_buffers_set)
    return module


def call(module, mesh, *inputs, **named):
    """Call a distributed module with whole tensors; its results are whole tensors on every rank."""

    def cut(value):
        if not isinstance(value, torch.Tensor):
            return value
        fits = value.dim() > 0 and value.shape[0] % mesh.size() == 0
        return distribute_tensor(value, mesh, INPUTS if fits else [Replicate()] * len(MESH))

    inputs, named = pytree.tree_map(cut, (inputs, named))
    plain = sdpa_kernel(SDPBackend.MATH) if mesh.device_type == "cpu" else nullcontext()
    with implicit_replication(), plain:  # torch cannot cut the fused attention of the CPU
        results = module(*inputs, **named)
    return pytree.tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, results)
'''

JAX = '''\
"""Written by placeopt: a PartitionSpec for every parameter, for jax."""

import math

import jax
import numpy
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MESH, AXES = {mesh!r}, {axes!r}

PARAMETERS = {{
{rows}
}}
"""PartitionSpec by the path of the parameter; what is not named is replicated."""

INPUTS = {inputs}
"""PartitionSpec of every input: its first dimension is the batch."""


def make_mesh(devices=None):
    """Return the mesh of the first devices, or of those given."""
    devices = jax.devices()[: math.prod(MESH)] if devices is None else devices
    return Mesh(numpy.array(devices).reshape(MESH), AXES)


def shardings(parameters, mesh):
    """Return a NamedSharding for every leaf of a tree of parameters, nested by the parts of their paths."""

    def of(path, _):
        name = ".".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
        return NamedSharding(mesh, PARAMETERS.get(name, P()))

    return jax.tree_util.tree_map_with_path(of, parameters)


def place(parameters, mesh):
    """Return the parameters, each cut over the mesh."""
    return jax.device_put(parameters, shardings(parameters, mesh))
'''


def dtensor_file(rows: Sequence[ParameterLayout], inputs: Layout, mesh: Sequence[int]) -> str:
    """Return the text of dtensor_plan.py."""
    table = "\n".join(f"    {row.name!r}: {torch_placements(row.layout)}," for row in rows)
    return DTENSOR.format(
        mesh=tuple(mesh), axes=_axes(mesh), rows=table, inputs=torch_placements(inputs)
    )


def jax_file(rows: Sequence[ParameterLayout], inputs: Layout, mesh: Sequence[int]) -> str:
    """Return the text of jax_shardings.py."""
    table = "\n".join(
        f"    {row.name!r}: {partition_spec(row.layout, len(row.shape))}," for row in rows
    )
    return JAX.format(
        mesh=tuple(mesh), axes=_axes(mesh), rows=table, inputs=partition_spec(inputs, 1)
    )


def _axes(mesh: Sequence[int]) -> tuple[str, ...]:
    return tuple(AXIS_NAMES[: len(mesh)])


FILES = {"dtensor": ("dtensor_plan.py", dtensor_file), "jax": ("jax_shardings.py", jax_file)}
"""File and how to write it, by the word of --to."""
