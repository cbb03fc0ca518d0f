"""`ModuleRuntime`: the user's own torch module, op by op, under a placement.

Ops are those of the graph that `from_torch` reads; what a reader folds away runs with the op whose
result it reads, and what depends on weights alone is there before the clock starts, as the weights
are. The engine is that of `TorchRuntime`: a thread and a stream per device. On CPUs every device is
a thread of this process with one thread inside its operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from placeopt.instances.readers.torch_ops import flat
from placeopt.model.arrays import Ints, by_key, by_number, positions
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.threads import torch_threads
from placeopt.programs.calls import spread
from placeopt.programs.torch_program import TorchProgram, attribute, check_devices
from placeopt.runtime.measurement import Measurement, check_close, check_placement
from placeopt.runtime.serial_runtime import NamedDevices
from placeopt.runtime.torch_engine import Engine


@dataclass
class ModuleRuntime(NamedDevices):
    """Runs a captured module.

    Parameters
    ----------
    devices : names of torch devices, one per device of the placement; a name may occur twice.
    alias : name in the program of ops that the graph calls otherwise (archives of torch.export).
    """

    program: TorchProgram
    devices: tuple[str, ...] = ("cpu", "cpu")
    alias: Mapping[str, str] = field(default_factory=dict)

    link = (2e-5, 5e9)

    def __post_init__(self) -> None:
        check_devices(self.devices)

    def run(
        self, graph: OpGraph, placement: Placement, *, repeat: int = 1, check: bool = False
    ) -> Measurement:
        """Execute the module `repeat` times after one that does not count.

        Raises
        ------
        ExecutionError
            If an op fails or, with `check`, a result differs from the unsplit module's.
        """
        placement = check_placement(graph, placement, self.num_devices, repeat)
        tasks = ModuleTasks(self.program, graph, self.alias)
        with torch_threads(1):
            expected = self._unsplit() if check else []
            engine = Engine(
                tasks.graph, ModuleWork(tasks, placement, self.devices), placement, self.devices
            )
            engine.run()
            if check:
                _compare(tasks, engine, expected)
            runs = [engine.run() for _ in range(repeat)]
        for _, moved, _ in runs:
            moved[:, 0] = tasks.graph_tensor[moved[:, 0].astype(np.int64)]
        runs = [(times, moved[moved[:, 0] >= 0], wall) for times, moved, wall in runs]
        return Measurement.of_runs(graph.name, "module", self.cluster(), placement, runs, check)

    def _unsplit(self) -> list[Any]:
        """Return the results of the unsplit module.

        Buffers and inputs that it changes keep their values: the first execution begins like it.
        """
        import torch
        from torch.utils import _pytree as pytree

        module, example = self.program.graph_module, self.program.example
        before = [(buffer, buffer.clone()) for buffer in module.buffers()]
        with torch.no_grad():
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, torch.clone, (example.inputs, example.kwargs)
            )
            results = module(*args, **kwargs)
            found = pytree.tree_leaves(pytree.tree_map_only(torch.Tensor, torch.clone, results))
            for buffer, value in before:
                buffer.copy_(value)
        return found


def _compare(tasks: ModuleTasks, engine: Engine, expected: list[Any]) -> None:
    """Raise ExecutionError unless the results are those of the unsplit module."""
    import torch

    # Difference from the unsplit module, as a part of a value
    tolerance = 1e-4
    for node, right in zip(tasks.results, expected, strict=True):
        if node not in tasks.tensor or not isinstance(right, torch.Tensor):
            continue
        found = engine.values[engine.results[tasks.tensor[node]]]
        check_close(
            _array(found),
            _array(right),
            tolerance,
            f"result '{node.name}' differs from that of the unsplit module",
        )


def _array(value: Any) -> Any:
    """Return a tensor as an array, with its own precision where numpy has that; complex numbers as
    pairs.
    """
    import torch

    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    own = value.dtype in (torch.float16, torch.float32, torch.float64)
    return (value.double() if value.is_floating_point() and not own else value).cpu().numpy()


class ModuleTasks:
    """The nodes of a captured module, grouped by the op of the graph that they run with.

    Attributes
    ----------
    nodes : of every op, in order. fixed : nodes that depend on weights alone.
    graph : the same ops with the tensors that really pass between them. tensor : of a node, its
    index there.
    graph_tensor : index in the user's graph of each of these tensors, -1 where it has none.
    results : what the module returns, flat.
    """

    def __init__(self, program: TorchProgram, graph: OpGraph, alias: Mapping[str, str]) -> None:
        self.program, self.names = program, graph.op_names
        index = {alias.get(name, name): op for op, name in enumerate(graph.op_names)}
        calls = {node.name for node in program.nodes}
        missing = [name for name in index if name not in calls]
        if missing:
            raise InputError(
                f"graph '{graph.name}': op '{missing[0]}' is no call of module "
                f"'{program.program.name}'"
            )
        self.fixed = self._fixed(index)
        homes, fixed = spread(program.program, index).tolist(), set(self.fixed)
        self.op_of = {
            node: op for node, op in zip(program.nodes, homes, strict=True) if node not in fixed
        }
        self.nodes = by_number(graph.num_ops, ((op, node) for node, op in self.op_of.items()))
        output = next(node for node in program.graph_module.graph.nodes if node.op == "output")
        self.results = flat(output.args[0])
        self._connect(graph)

    def _fixed(self, index: Mapping[str, int]) -> list[Any]:
        moving = {
            node for node in self.program.graph_module.graph.nodes if node.op == "placeholder"
        }
        fixed = []
        for node in self.program.nodes:
            if node.name in index or any(x in moving for x in node.all_input_nodes):
                moving.add(node)
            else:
                fixed.append(node)
        return fixed

    def _connect(self, graph: OpGraph) -> None:
        readers = self._readers()
        self.tensor = positions(x for x in self.op_of if x in readers)
        triples = [(self.op_of[node], 0, readers[node]) for node in self.tensor]
        try:
            self.graph = OpGraph.from_tensors(graph.name, graph.op_names, triples)
        except InputError as error:
            raise InputError(
                f"module '{self.program.program.name}' cannot run op by op: {error}"
            ) from error
        own = _numbers_of(graph.producer.tolist())
        self.graph_tensor: Ints = np.full(len(self.tensor), -1, np.int64)
        for op, tensors in _numbers_of(self.op_of[node] for node in self.tensor).items():
            if len(tensors) == len(own.get(op, [])):
                self.graph_tensor[tensors] = own[op]

    def _readers(self) -> dict[Any, list[int]]:
        """Return the ops that read each value that another op makes, none of results that only
        the caller reads.
        """
        readers = by_key(
            (source, op)
            for node, op in self.op_of.items()
            for source in node.all_input_nodes
            if source in self.op_of and self.op_of[source] != op
        )
        for node in self.results:
            if node in self.op_of:
                readers.setdefault(node, [])
        return readers

    @cached_property
    def outputs(self) -> list[list[Any]]:
        """Nodes of every op whose tensors leave it."""
        return [[node for node in nodes if node in self.tensor] for nodes in self.nodes]

    @cached_property
    def reads(self) -> list[list[Any]]:
        """Nodes of other ops that every op reads."""
        return [
            list(
                dict.fromkeys(
                    x
                    for node in nodes
                    for x in node.all_input_nodes
                    if x in self.op_of and self.op_of[x] != op
                )
            )
            for op, nodes in enumerate(self.nodes)
        ]


class ModuleWork:
    """What the ops of a captured module do on the devices of a placement."""

    def __init__(self, tasks: ModuleTasks, placement: Placement, names: Sequence[str]) -> None:
        import torch
        from torch.utils import _pytree as pytree

        self.tasks, self.devices = tasks, [torch.device(name) for name in names]
        self.results: Collection[int] = [
            tasks.tensor[node] for node in tasks.results if node in tasks.tensor
        ]
        self.given: list[dict[Any, Any]] = [
            {} for _ in names
        ]  # by device: inputs, weights, what depends on them alone
        program = tasks.program
        leaves = pytree.tree_leaves(
            (program.example.inputs, program.example.kwargs), is_leaf=lambda x: x is None
        )
        nodes = program.graph_module.graph.nodes
        inputs = [node for node in nodes if node.op == "placeholder"]
        values = dict(zip(inputs, leaves, strict=True))
        for node in nodes:
            if node.op == "get_attr":
                values[node] = attribute(program.graph_module, node.target)
        with torch.no_grad():
            for d in set(placement.device.tolist()):
                where, given = self.devices[d], self.given[d]
                given |= {node: _to(value, where) for node, value in values.items()}
                for node in tasks.fixed:
                    given[node] = self._call(node, given, where)

    def reads(self, op: int) -> Collection[int]:
        """Return the tensors that an op reads."""
        return [self.tasks.tensor[node] for node in self.tasks.reads[op]]

    def outputs(self, op: int) -> Sequence[int]:
        """Return the tensors that an op makes."""
        return [self.tasks.tensor[node] for node in self.tasks.outputs[op]]

    def compute(self, op: int, device: int, operands: Mapping[int, Any]) -> Sequence[Any]:
        """Run the nodes of an op."""
        import torch

        tasks, where = self.tasks, self.devices[device]
        known = {
            **self.given[device],
            **{node: operands[tasks.tensor[node]] for node in tasks.reads[op]},
        }
        with torch.no_grad():  # a mode of the thread, not of the process
            for node in tasks.nodes[op]:
                known[node] = self._call(node, known, where)
        return [known[node] for node in tasks.outputs[op]]

    def _call(self, node: Any, known: Mapping[Any, Any], where: Any) -> Any:
        from torch.fx.node import map_arg

        arguments, named = map_arg((node.args, node.kwargs), known.__getitem__)
        if "device" in named:
            named = {**named, "device": where}
        return node.target(*arguments, **named)


def _to(value: Any, where: Any) -> Any:
    import torch

    return value.to(where) if isinstance(value, torch.Tensor) else value


def _numbers_of(makers: Iterable[int]) -> dict[int, list[int]]:
    """Return the numbers of the tensors of each maker."""
    return by_key((maker, t) for t, maker in enumerate(makers))
