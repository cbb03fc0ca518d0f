"""`shard --to dtensor` and `--to jax`: layouts as Python files that frameworks run.

`dtensor_plan.py` makes the parameters of a torch module DTensors. Of a torch program it also holds
the module's calls, as torch.export captured them, with the layout in which each of them reads its
operands: every tensor is redistributed to the layout that its reader needs, which is what was
priced, and the calls themselves communicate nothing. Of an ONNX model it holds the parameters only,
and torch chooses what lies between. `jax_shardings.py` holds a PartitionSpec for every parameter;
what lies between them is JAX's own choice, so the collectives that run may be others.

Gradients flow through the DTensors of a torch program. In the backward pass torch places gradients
by its own rules, op by op, and adds the collectives it needs: those are not the ones priced.
"""

from __future__ import annotations

import operator
from itertools import chain
from typing import TYPE_CHECKING, Any

from placeopt.exports.torch_module import class_source, import_line, own_copy, registering
from placeopt.model.arrays import positions
from placeopt.model.errors import InputError
from placeopt.programs.torch_program import TorchProgram, attribute
from placeopt.sharding.layouts import (
    AXIS_NAMES,
    REPLICATE,
    Layout,
    partition_spec,
    torch_placements,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.sharding.from_model import ShardingModel
    from placeopt.sharding.layout_table import ParameterLayout
    from placeopt.sharding.problem import ShardingSolution

DTENSOR = '''\
"""Written by placeopt: the layouts of a module as DTensors.

    mesh = make_mesh("cuda")                 # on every rank, after init_process_group
    distribute(module, mesh)
    result = call(module, mesh, *inputs)     # whole tensors in, whole tensors out
"""

{imports}
import torch
import torch.utils._pytree as pytree
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

MESH, AXES = {mesh!r}, {axes!r}
WHOLE = [Replicate()] * len(MESH)

PARAMETERS = {{
{rows}
}}
"""Placements by the name of the parameter, one per mesh axis; what is not named is replicated."""


def make_mesh(device_type="cpu"):
    """Return the mesh of all ranks."""
    return init_device_mesh(device_type, MESH, mesh_dim_names=AXES)


def distribute(module, mesh):
    """Make every parameter and buffer of a module a DTensor, in place; tied ones stay one tensor."""
    places, made = {{}}, {{}}
    parameters = list(module.named_parameters(remove_duplicate=False))
    for path, value in parameters:
        if path in PARAMETERS:
            places.setdefault(id(value), PARAMETERS[path])
    for path, value in parameters:
        owner = module.get_submodule(path.rpartition(".")[0])
        if id(value) not in made:
            tensor = distribute_tensor(value.detach(), mesh, places.get(id(value), WHOLE))
            made[id(value)] = torch.nn.Parameter(tensor, requires_grad=value.requires_grad)
        owner.register_parameter(path.rpartition(".")[2], made[id(value)])
    for path, value in list(module.named_buffers(remove_duplicate=False)):
        owner, name = module.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        kept = name not in owner._non_persistent_buffers_set
        owner.register_buffer(name, distribute_tensor(value, mesh, WHOLE), kept)
    return module


def call(module, mesh, *inputs, **named):
    """Call a distributed module with whole tensors; its results are whole tensors on every rank."""
    results = forward(module, mesh, *inputs, **named)
    return pytree.tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, results)


'''

PARAMETERS_ONLY = '''\
INPUTS = {inputs}
"""Placements of every input: its first dimension is the batch."""


def forward(module, mesh, *inputs, **named):
    """Call a distributed module with whole tensors; torch chooses the layout of its results."""

    def cut(value):
        if not isinstance(value, torch.Tensor):
            return value
        fits = value.dim() > 0 and value.shape[0] % mesh.size() == 0
        return distribute_tensor(value, mesh, INPUTS if fits else WHOLE)

    inputs, named = pytree.tree_map(cut, (inputs, named))
    plain = sdpa_kernel(SDPBackend.MATH) if mesh.device_type == "cpu" else nullcontext()
    with implicit_replication(), plain:  # torch cannot cut the fused attention of the CPU
        return module(*inputs, **named)
'''

CALLS = '''\
CONSTANTS = {constants!r}
"""Tensors that the calls read and the module does not store, as torch.save writes them."""

LAYOUTS = {{
{layouts}
}}
"""By call: the placements in which it reads its tensors. What is not named runs whole on every rank."""


def forward(module, mesh, *inputs, **named):
    """Call a distributed module with whole tensors; results are in the layouts they are made in."""
    calls = Calls()
    calls._modules, calls._parameters, calls._buffers = module._modules, module._parameters, module._buffers
    calls.__dict__["mesh"] = mesh
    for name, value in torch.load(io.BytesIO(base64.b64decode(CONSTANTS))).items():
        calls.__dict__[name] = value.to(mesh.device_type)
    return calls(*inputs, **named)


def placed(value, mesh, places):
    """Return a tensor in a layout; one that is no DTensor is whole on every rank."""
    if not isinstance(value, DTensor):
        value = DTensor.from_local(value, mesh, WHOLE, run_check=False)
    now = [Replicate() if p.is_partial() and q.is_replicate() else p for p, q in zip(places, value.placements)]
    if list(value.placements) != now:
        value = value.redistribute(mesh, now)
    if now == places:
        return value
    ranks = math.prod(mesh.size(i) for i in range(len(places)) if places[i] != now[i])
    local = value.to_local(grad_placements=places) / ranks  # summands of what is whole
    return DTensor.from_local(local, mesh, places, run_check=False)


def masked(value):
    """Return rows of a table that is cut by rows as plain summands: those of other ranks are zero."""
    masks = [p.mask_buffer for p in getattr(value, "placements", ()) if hasattr(p, "mask_buffer")]
    if not masks:
        return value
    back = [Replicate() if p.is_partial() else p for p in value.placements]
    local = value.to_local(grad_placements=back)
    for buffer in masks:
        local = local.masked_fill(buffer.data[(...,) + (None,) * (local.dim() - buffer.data.dim())], 0)
        buffer.release_mask()
    places = [Partial() if hasattr(p, "mask_buffer") else p for p in value.placements]
    return DTensor.from_local(local, value.device_mesh, places, run_check=False)


VIEWS = {{"view", "reshape", "flatten", "unflatten", "linear", "matmul"}}
"""Ops that look at an operand in another shape, if the strides of the whole tensor allow it."""


def contiguous(value, view):
    """Return a tensor whose entries on this rank lie as torch takes them to lie by the whole one's strides.

    A layout may have other strides than its export; a view needs its operand in one piece.
    """
    if not isinstance(value, DTensor):
        return value.contiguous() if view else value
    with torch.no_grad():
        whole, here = value.is_contiguous(), value.to_local().is_contiguous()
    if here and whole or not (whole or view):
        return value
    back = [Replicate() if p.is_partial() else p for p in value.placements]
    local = value.to_local(grad_placements=back).contiguous()
    return DTensor.from_local(local, value.device_mesh, value.placements, run_check=False)


def run(mesh, name, op, args, kwargs):
    """Run a call on operands in their layouts. Within it nothing is communicated."""
    leaves, nesting = pytree.tree_flatten((args, kwargs))
    leaves = [torch.device(mesh.device_type) if isinstance(x, torch.device) else x for x in leaves]
    at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    places = LAYOUTS.get(name, [WHOLE] * len(at))
    view = getattr(op, "_opname", "") in VIEWS
    for i, wanted in zip(at, places, strict=True):
        leaves[i] = contiguous(placed(leaves[i], mesh, wanted), view)
    alone = name not in LAYOUTS or op is torch.ops.aten.scaled_dot_product_attention.default
    if alone:  # on what every rank has: torch has no rule for every op, nor for the CPU's attention
        for i in at:
            leaves[i] = leaves[i].to_local()
    args, kwargs = pytree.tree_unflatten(leaves, nesting)
    result = op(*args, **kwargs)
    if not alone:
        return pytree.tree_map(masked, result)
    if name not in LAYOUTS:
        return result
    return DTensor.from_local(result, mesh, places[0], run_check=False)


{code}'''

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
    """Return the text of dtensor_plan.py for a module whose calls are not known."""
    imports = (
        "from contextlib import nullcontext\n\nfrom torch.distributed.tensor.experimental import "
        "implicit_replication\nfrom torch.nn.attention import SDPBackend, sdpa_kernel\n"
    )
    return _head(rows, mesh, imports) + PARAMETERS_ONLY.format(inputs=torch_placements(inputs))


def dtensor_program_file(
    rows: Sequence[ParameterLayout],
    model: ShardingModel,
    solution: ShardingSolution,
    program: TorchProgram,
) -> str:
    """Return the text of dtensor_plan.py for a torch program: parameters, calls and their layouts.

    Raises
    ------
    InputError
        If a call writes into a tensor that others read.
    """
    import base64
    import io

    import torch

    module, constants = _with_runs(program)
    stream = io.BytesIO()
    torch.save(constants, stream)
    text, names = class_source("Calls", module)
    for name, value in names.items():
        if value is run_call:
            text = text.replace(f"{name}(", "run(self.mesh, ")
    lines = [import_line(name, value) for name, value in names.items() if value is not run_call]
    lines += registering([program.graph_module])
    imports = "\n".join(
        ["import base64", "import io", "import math", *dict.fromkeys(x for x in lines if x), ""]
    )
    layouts = "\n".join(
        f"    {name!r}: [{', '.join(map(torch_placements, found))}],"
        for name, found in _operand_layouts(model, solution, module).items()
    )
    head = _head(rows, [axis.size for axis in model.axes], imports)
    return head + CALLS.format(
        constants=base64.b64encode(stream.getvalue()).decode(), layouts=layouts, code=text
    )


def run_call(name: str, op: Any, args: Any, kwargs: Any) -> Any:
    """Stand for the function that runs a call in the code of a file."""
    raise NotImplementedError(name)


def _with_runs(program: TorchProgram) -> tuple[Any, dict[str, Any]]:
    """Return a copy of the captured module in which every call goes through `run_call`, and the
    tensors that the user's module does not store, by name.
    """
    import torch

    module = own_copy(program.graph_module)
    live, constants = program.example.module, dict[str, Any]()
    stored = set(dict(module.named_parameters()) | dict(module.named_buffers()))
    if live is not None:
        every = (live.named_parameters, live.named_buffers)
        stored = {name for found in every for name, _ in found(remove_duplicate=False)}
    for node in module.graph.nodes:
        if node.op == "get_attr" and node.target not in stored:
            name = f"constant_{len(constants)}"
            constants[name] = attribute(module, node.target).detach()
            setattr(module, name, constants[name])
            node.target = name
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            _check_writes(node)
            node.args = (node.name, node.target, node.args, node.kwargs)
            node.kwargs, node.target = {}, run_call
    return module, constants


def _check_writes(node: Any) -> None:
    """Refuse a call that writes into what others read: it may have a copy in another layout."""
    written = [
        given
        for given, argument in zip(node.args, node.target._schema.arguments, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    place = positions(node.graph.nodes)
    for source in written:
        later = any(place[reader] > place[node] for reader in source.users)
        if later or _looks_at_another(source):
            raise InputError(
                f"--to dtensor: call '{node.name}' ({node.target}) writes into '{source.name}', "
                "which is also read elsewhere; use the op that returns a new tensor"
            )


def _looks_at_another(node: Any) -> bool:
    """Whether a node may share its memory with another: inputs, what is stored, views."""
    if node.op == "call_function" and node.target is operator.getitem:
        return _looks_at_another(node.args[0])
    if node.op != "call_function" or node.target is not run_call:
        return True
    returns = node.args[1]._schema.returns
    return any(value.alias_info is not None and not value.alias_info.is_write for value in returns)


def _operand_layouts(
    model: ShardingModel, solution: ShardingSolution, module: Any
) -> dict[str, list[Layout]]:
    """Return the layout of every tensor that a call reads, for calls that are not whole."""
    from torch.fx import Node
    from torch.utils._pytree import tree_leaves

    assert model.calls is not None
    found: dict[str, list[Layout]] = {}
    op_of = positions(model.graph.op_names)
    for node in module.graph.nodes:
        op = op_of.get(node.name, -1)
        if node.op != "call_function" or node.target is not run_call or op < 0:
            continue
        chosen = model.strategies[op][int(solution.strategy[op])]
        if set(chain(*chosen.inputs, *chosen.outputs)) <= {REPLICATE}:
            continue
        layout = dict(zip(model.reads[op], chosen.inputs, strict=True))
        tensor = model.calls.tensor_of
        operands = [x.name for x in tree_leaves(node.args[2:]) if isinstance(x, Node)]
        found[node.name] = [layout[tensor[name]] for name in operands if name in tensor]
    return found


def _head(rows: Sequence[ParameterLayout], mesh: Sequence[int], imports: str) -> str:
    table = "\n".join(f"    {row.name!r}: {torch_placements(row.layout)}," for row in rows)
    return DTENSOR.format(mesh=tuple(mesh), axes=_axes(mesh), rows=table, imports=imports)


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
