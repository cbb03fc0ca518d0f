"""The plan of a graph: for every op the kernel that computes it, its operands in order, and its
options.

An OpGraph says which tensors an op reads, not in which order, and leaves out weights and model
inputs. Both are derived here: the order from shapes (a product needs (.., m, k) x (k, n)), missing
operands as *constants* that are named after the op, so that every process makes the same array from
the name. An op whose type or shapes are unknown gets the calibrated kernel: the same flops and
bytes on real buffers, and outputs of the right size that depend on every input. Sharded graphs have
rules of their own (sharded_rules.py), exact enough for the results to be compared with the
unsharded computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.model.errors import InputError
from placeopt.runtime import shape_rules, sharded_rules
from placeopt.runtime.steps import ExecutionPlan, OpTable, Step

if TYPE_CHECKING:
    from placeopt.model.graph import OpGraph
    from placeopt.runtime.steps import Rule

MAX_BYTES = 1 << 36


def make_plan(graph: OpGraph, flops_per_second: float = 5e10) -> ExecutionPlan:
    """Return the plan of a graph.

    Parameters
    ----------
    flops_per_second : work that stands for a second of measured time, for ops that have no flops
    and bytes.

    Raises
    ------
    InputError
        If a tensor or the work of an op is too large to be executed here.
    """
    table = OpTable(graph)
    steps = []
    for index in range(graph.num_ops):
        op = table.op(index)
        rule = None
        if op is not None:
            rule = sharded_rules.rule(table, op) if graph.meta[index] >= 0 else None
            rule = rule or shape_rules.rule(op)
        kernel, options, operands = rule or _calibrated(table, index, flops_per_second)
        steps.append(
            Step(
                kernel,
                options,
                operands,
                table.outputs[index],
                tuple(table.result(t) for t in table.outputs[index]),
            )
        )
    return ExecutionPlan(graph.name, tuple(steps))


def _calibrated(table: OpTable, index: int, flops_per_second: float) -> Rule:
    graph = table.graph
    flops, moved = int(graph.flops[index]), int(graph.bytes_moved[index])
    if not flops and not moved:  # all that is known is a time
        known = [ticks for ticks in graph.measured[index].tolist() if ticks >= 0]
        flops = round(max(known, default=0) * graph.tick_seconds * flops_per_second)
    max_flops = 1e14
    if flops > max_flops or moved > MAX_BYTES:
        raise InputError(
            f"graph '{graph.name}': op '{graph.op_names[index]}' has {flops:.3g} flops and moves "
            f"{moved:.3g} bytes, too much to be executed here (at most {max_flops:.0e} and "
            f"{MAX_BYTES:.0e}); use a smaller graph"
        )
    outputs = tuple(table.result(tensor) for tensor in table.outputs[index])
    return "calibrated", {"flops": flops, "bytes": moved, "outputs": outputs}, table.inputs[index]
