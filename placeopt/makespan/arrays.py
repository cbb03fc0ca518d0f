"""The arrays of a problem as the kernels of the makespan read them, computed once per problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import Ints, frozen

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem


class ProblemArrays(NamedTuple):
    """What the kernels need of a PlacementProblem (n ops, k devices, m tensors, c link classes).

    Every array is read-only, int64 and C-contiguous, so that each kernel is compiled once.
    """

    compute: Ints  # (n, k)
    indegree: Ints  # (n,) number of input tensors
    edge_ptr: Ints  # (n + 1,) out-edges of each op
    edge_op: Ints  # (edges,) consumer
    edge_tensor: Ints  # (edges,) tensor, edges of one tensor are adjacent
    consumer_ptr: Ints  # (m + 1,)
    consumer: Ints  # (edges,)
    producer: Ints  # (m,)
    transfer: Ints  # (m, c)
    link_class: Ints  # (k, k)
    channel: Ints  # (k, k)
    num_channels: int  # 0 without contention
    resident: Ints  # (n,)
    capacity: Ints  # (k,)
    colocation: Ints  # (n,)
    tensor_bytes: Ints  # (m,)
    num_groups: int  # largest colocation id + 1
    peak_memory: bool  # whether capacity bounds the dynamic peak


def problem_arrays(problem: PlacementProblem) -> ProblemArrays:
    """Return the arrays that kernels take; computed once per problem."""
    cached: ProblemArrays | None = problem.__dict__.get("_kernel_arrays")
    if cached is None:
        edge_ptr, edge_op, edge_tensor = problem.successors
        cached = ProblemArrays(
            compute=problem.compute,
            indegree=frozen(
                np.bincount(problem.consumer, minlength=problem.num_ops).astype(np.int64)
            ),
            edge_ptr=edge_ptr,
            edge_op=edge_op,
            edge_tensor=edge_tensor,
            consumer_ptr=problem.consumer_ptr,
            consumer=problem.consumer,
            producer=problem.producer,
            transfer=problem.transfer,
            link_class=problem.link_class,
            channel=problem.channel,
            num_channels=problem.num_channels,
            resident=problem.resident,
            capacity=problem.capacity,
            colocation=problem.colocation,
            tensor_bytes=problem.tensor_bytes,
            num_groups=int(problem.colocation.max()) + 1,
            peak_memory=problem.memory == "peak",
        )
        problem.__dict__["_kernel_arrays"] = cached
    return cached
