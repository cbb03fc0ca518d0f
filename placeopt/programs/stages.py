"""Cutting a captured torch module into pipeline stages: every stage is a module that takes and
returns flat tensors.

A stage of a pipeline talks to the next one only, so a tensor that a later stage reads passes
through all stages between. The first stage takes the module's arguments, the last returns its
results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError
from placeopt.programs.torch_program import attribute, flat, with_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from placeopt.programs.calls import Program
    from placeopt.programs.torch_program import TorchProgram


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage.

    Attributes
    ----------
    module : a GraphModule; weights keep their names.
    inputs, outputs : names of the values that go in and out, in order.
    split_point : module that begins here, "" where the stage begins inside one, or nowhere in
    particular.
    """

    module: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    split_point: str


def stage_of_calls(program: Program, placed: Mapping[str, int], count: int) -> list[int]:
    """Return the stage of every call; calls that are no ops of the placement run as late as their
    inputs allow.

    Raises
    ------
    InputError
        If a call reads from a later stage: the placement is no pipeline.
    """
    found = [placed.get(call.name, -1) for call in program.calls]
    for i, call in enumerate(program.calls):
        if found[i] < 0:
            found[i] = max((found[j] for j in call.inputs), default=-1)
    for i in range(program.num_calls - 1, -1, -1):
        if found[i] < 0:
            found[i] = min((found[j] for j in program.readers[i]), default=count - 1)
    _refuse_backward(program, found)
    return found


def _refuse_backward(program: Program, stage: Sequence[int]) -> None:
    """Refuse stages of which one reads from a later one."""
    for i, call in enumerate(program.calls):
        for j in call.inputs:
            if stage[j] > stage[i]:
                raise InputError(
                    f"torch-pipeline: op '{call.name}' of stage {stage[i]} reads "
                    f"'{program.calls[j].name}' of stage "
                    f"{stage[j]}; solve with --objective period --contiguity chain"
                )


def cut_stages(program: TorchProgram, stage: Sequence[int], count: int) -> list[Stage]:
    """Return the stages of a captured module.

    Parameters
    ----------
    stage : stage of every call, 0..count-1, none before its inputs'.
    """
    cutter = _Cutter(program, stage, count)
    return [cutter.stage(number) for number in range(count)]


class _Cutter:
    """What lives at every boundary, and how a stage is copied out."""

    def __init__(self, program: TorchProgram, stage: Sequence[int], count: int) -> None:
        graph = program.graph_module.graph
        self.program, self.count, self.numbers = program, count, stage
        self.of = dict(zip(program.nodes, stage, strict=True))
        self.nodes = [node for node in graph.nodes if node.op in ("placeholder", "call_function")]
        self.of |= {node: 0 for node in self.nodes if node.op == "placeholder"}
        self.results = flat(next(node for node in graph.nodes if node.op == "output").args[0])
        self.last = dict(self.of)  # last stage that needs a value
        for node in self.nodes:
            for source in node.all_input_nodes:
                if source in self.last:
                    self.last[source] = max(self.last[source], self.of[node])
        for node in self.results:
            if node in self.last:
                self.last[node] = count - 1

    def live(self, boundary: int) -> list[Any]:
        """Return the values that pass from stage `boundary` to the next."""
        found = [node for node in self.nodes if self.of[node] <= boundary < self.last[node]]
        for node in found:
            if not _is_tensor(node):
                raise InputError(
                    f"torch-pipeline: '{node.name}', which is no tensor, is read by a later stage; "
                    "place it with its readers"
                )
        return found

    def stage(self, number: int) -> Stage:
        """Return a stage as a module."""
        from torch import fx

        inputs = self._given() if number == 0 else self.live(number - 1)
        graph, copied = self._copy(inputs, number)
        _follow_device(graph)
        last = number == self.count - 1
        outputs = self.results if last else self.live(number)
        given = tuple(map(copied, outputs))
        if not last:  # a tensor with strides of zero, such as an expanded mask, cannot be sent
            given = tuple(graph.call_method("contiguous", (node,)) for node in given)
        graph.output(given[0] if len(given) == 1 else given)
        root = {
            node.target: attribute(self.program.graph_module, node.target)
            for node in graph.nodes
            if node.op == "get_attr"
        }
        module = fx.GraphModule(root, graph, class_name=f"Stage{number}")
        names = tuple(node.name if hasattr(node, "op") else str(node) for node in outputs)
        return Stage(module, tuple(node.name for node in inputs), names, self._split_point(number))

    def _copy(self, inputs: list[Any], number: int) -> tuple[Any, Callable[[Any], Any]]:
        """Return a graph with the calls of a stage, and what copies one more value into it."""
        from torch import fx

        graph = fx.Graph()
        copies: dict[Any, Any] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)

        def copied(node: Any) -> Any:
            if not hasattr(node, "op"):
                return node  # a result that is a plain value
            if node not in copies:
                copies[node] = graph.node_copy(node, copied)
            return copies[node]

        for node in self.nodes:
            if node.op == "call_function" and self.of[node] == number:
                copies[node] = graph.node_copy(node, copied)
        return graph, copied

    def _given(self) -> list[Any]:
        """Return what the first stage is given: a flag or a number that was fixed when the module
        was captured has no reader, and is no input.
        """
        return [
            node
            for node in self.nodes
            if node.op == "placeholder" and (_is_tensor(node) or node.users)
        ]

    def _split_point(self, number: int) -> str:
        """Return the outermost module that begins with the stage, if the program runs stage after
        stage there.
        """
        calls = self.program.program.calls
        first = next(
            (i for i, s in enumerate(self.numbers) if s == number and not calls[i].free), -1
        )
        if number == 0 or first < 0:
            return ""
        parts = calls[first].module.split(".")
        paths = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return next((path for path in paths if path and self._begins_with(number, path)), "")

    def _begins_with(self, number: int, path: str) -> bool:
        """Whether the first calls of a stage and those that follow are a module's."""
        calls = self.program.program.calls
        inside = [i for i, call in enumerate(calls) if f"{call.module}.".startswith(f"{path}.")]
        before = [
            i
            for i in range(min(inside, default=0))
            if self.numbers[i] >= number and calls[i].inputs
        ]
        return bool(inside) and not before and all(self.numbers[i] >= number for i in inside)


def _follow_device(graph: Any) -> None:
    """Make tensors on the device of the stage's inputs where the captured module names the device
    it ran on.
    """
    source = next(
        (node for node in graph.nodes if node.op == "placeholder" and _is_tensor(node)), None
    )
    if source is None:
        return
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        device = graph.call_function(getattr, (source, "device"))
    used = [with_devices(node, device) for node in graph.nodes if node.op == "call_function"]
    if not any(used):
        graph.erase_node(device)


def _is_tensor(node: Any) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.Tensor)
