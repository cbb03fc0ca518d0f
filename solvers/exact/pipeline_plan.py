"""Pipelines with replicated stages and with a two-level hierarchy of devices (options of the ideal program).

Replication: r devices that share a stage S as data-parallel replicas, each holding all of its weights, take

    load(S, r) = ceil(load(S) / r) + ceil(2 (r - 1) sync(S) / r)

per sample, the second term being the ring all-reduce of the stage's gradients (0 for inference).

Hierarchy: the devices of one type form h equal clusters. Devices inside a cluster exchange tensors as ever; a
tensor that enters or leaves a cluster also occupies the cluster's uplink, once per cluster. With V(A, B, c) the
smallest period of the nodes B - A on c devices of one cluster, over ideals A within M within B,

    V(A, B, c) = min over M, r of max(V(A, M, c - r), load(B - M, r))
    W(B, j)    = min over A of    max(W(A, j - 1), V(A, B, size), uplink(B - A)).

Both are extensions that Tarnawski et al. (NeurIPS 2020, section 5) describe for their program. A replicated
stage is not an assignment of ops to single devices, so the result is a plan of its own and not a Placement.

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for Device Placement of
DNN Graph Operators", NeurIPS 2020, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import NO_VALUE
from placeopt.model.compiled import entry
from placeopt.model.errors import InputError
from placeopt.model.ideals import ideal_lattice, linear_lattice
from placeopt.period.contracted import contract
from placeopt.solvers.exact.chain_search import best_chain
from placeopt.solvers.exact.ideal_dp import IdealDp
from placeopt.solvers.exact.ideal_program import IdealProgram, stage_devices
from placeopt.solving.run import check_accepts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from placeopt.model.problem import PlacementProblem
    from placeopt.period.contracted import ContractedProblem


@dataclass(frozen=True)
class PlannedStage:
    """One stage: its ops, the devices that run it as replicas, and its cluster (0 without a hierarchy)."""

    ops: tuple[int, ...]
    devices: tuple[int, ...]
    cluster: int = 0


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline in order.

    Attributes
    ----------
    period : ticks per sample.
    optimal : whether it is the best over all ideals (False: over the prefixes of one topological order, because
        there are too many ideals).
    """

    period: int
    stages: tuple[PlannedStage, ...]
    optimal: bool


def plan_pipeline(
    problem: PlacementProblem,
    *,
    max_replicas: int = 1,
    sync: ArrayLike | None = None,
    clusters: int = 1,
    uplink: ArrayLike | None = None,
    max_ideals: int | None = None,
) -> PipelinePlan | None:
    """Return the best pipeline of ideals with replicas or clusters; None if none fits the devices.

    Parameters
    ----------
    max_replicas : largest number of devices of a stage.
    sync : ticks to send each op's weights once, shape (num_ops,); default 0 (inference).
    clusters : number of equal clusters that the devices of the most numerous type form; with more than one,
        the devices of other types are not used.
    uplink : ticks of each tensor on a cluster's uplink, shape (num_tensors,); default its io time.
    max_ideals : above this a topological order is used; default 2 000 000, and 400 with clusters.

    Raises
    ------
    InputError
        If an option is out of range, or clusters come with pipeline "gpipe".
    Refused
        If the problem's objective is not the one of the ideal program.
    """
    check_accepts(IdealDp(), problem)
    if max_replicas < 1 or clusters < 1:
        raise InputError(
            f"plan_pipeline: max_replicas and clusters must be at least 1, received {max_replicas} and {clusters}"
        )
    weights = _ticks(sync, problem.num_ops, "sync")
    model = contract(problem, contiguity="chain")
    node_sync = np.zeros(model.num_nodes, dtype=np.int64)
    np.add.at(node_sync, model.node, weights)
    limit = (2_000_000 if clusters == 1 else 400) if max_ideals is None else max_ideals
    lattice = ideal_lattice(model.num_nodes, model.order_from, model.order_to, limit=limit)
    optimal = lattice is not None
    lattice = linear_lattice(model.num_nodes) if lattice is None else lattice
    if clusters > 1:
        members = np.array([lattice.members(i, model.num_nodes) for i in range(lattice.num_ideals)])
        return _hierarchical(model, members, node_sync, max_replicas, clusters, uplink, optimal)
    per_type = np.repeat(node_sync[:, None], model.num_types, axis=1)
    outcome = best_chain(IdealProgram(model, lattice, max_replicas=max_replicas, sync=per_type), None)
    if outcome.value is None:
        return None
    _, groups = stage_devices(model, outcome.stages)
    stages = tuple(
        PlannedStage(_ops(model, stage.nodes), group)
        for stage, group in zip(outcome.stages, groups, strict=True)
    )
    return PipelinePlan(outcome.value, stages, optimal)


def _ticks(values: ArrayLike | None, size: int, name: str) -> NDArray[np.int64]:
    if values is None:
        return np.zeros(size, dtype=np.int64)
    found = np.asarray(values, dtype=np.int64)
    if found.shape != (size,) or (found < 0).any():
        raise InputError(f"plan_pipeline: {name}: expected {size} ticks of at least 0, received shape {found.shape}")
    return found


def _ops(model: ContractedProblem, nodes: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(np.isin(model.node, nodes)).tolist())


def _hierarchical(
    model: ContractedProblem,
    members: NDArray[np.bool_],
    sync: NDArray[np.int64],
    max_replicas: int,
    clusters: int,
    uplink: ArrayLike | None,
    optimal: bool,
) -> PipelinePlan | None:
    problem = model.problem
    if model.two_pass:
        raise InputError("plan_pipeline: clusters expect pipeline='1f1b', received 'gpipe'")
    g = int(np.argmax(model.type_counts))
    size, left = divmod(len(model.types[g]), clusters)
    if left:
        raise InputError(
            f"plan_pipeline: clusters: expected a divisor of {len(model.types[g])} devices, received {clusters}"
        )
    outer = problem.transfer.max(axis=1, initial=0) if uplink is None else _ticks(uplink, problem.num_tensors, "uplink")
    inner = problem.transfer[:, problem.io_class[model.types[g][0]]] if problem.io_class[model.types[g][0]] >= 0 else None
    inner = np.zeros(problem.num_tensors, dtype=np.int64) if inner is None else np.ascontiguousarray(inner)
    cluster_model = ClusterModel(
        np.ascontiguousarray(model.total[:, g]), model.allowed[:, g], model.resident, int(model.capacity[g]), sync,
        model.node[problem.producer], problem.consumer_ptr, model.node[problem.consumer], inner, outer,
    )  # fmt: skip
    load, moved, replicated = _segments(cluster_model, members)
    stage = _stage_loads(load, replicated, min(max_replicas, size))
    inside = _inside(stage, size)
    best = np.full((clusters + 1, len(members)), NO_VALUE, dtype=np.int64)
    best[:, 0] = 0
    cluster = np.maximum(inside[:, :, size], moved)
    for j in range(1, clusters + 1):
        best[j] = np.minimum(best[j - 1], np.maximum(best[j - 1][:, None], cluster).min(axis=0))
    if best[clusters, -1] >= NO_VALUE:
        return None
    return PipelinePlan(int(best[clusters, -1]), _trace(model, members, g, stage, inside, cluster, best), optimal)


class ClusterModel(NamedTuple):
    """The problem as the devices of one type and their clusters see it (N nodes, m tensors)."""

    ticks: NDArray[np.int64]  # (N,) on a device
    usable: NDArray[np.bool_]  # (N,) whether the type can run the node
    resident: NDArray[np.int64]  # (N,) bytes
    capacity: int  # bytes of a device
    sync: NDArray[np.int64]  # (N,) ticks to send the node's weights once
    producer: NDArray[np.int64]  # (m,) node
    consumer_ptr: NDArray[np.int64]  # (m + 1,)
    consumer: NDArray[np.int64]  # nodes
    inner: NDArray[np.int64]  # (m,) ticks between devices
    outer: NDArray[np.int64]  # (m,) ticks on a cluster's uplink


@entry
def _segments(a, members):  # type: ignore[no-untyped-def]
    """Load, uplink time and weights' time of the nodes B - A for every pair of ideals (A, B), A within B."""
    count, n = members.shape
    load = np.full((count, count), NO_VALUE, dtype=np.int64)
    moved = np.full((count, count), NO_VALUE, dtype=np.int64)
    weights = np.zeros((count, count), dtype=np.int64)
    held = np.zeros(n, dtype=np.bool_)
    for first in range(count):
        for last in range(first, count):
            nested, fits, used, total = True, True, 0, 0
            for v in range(n):
                if members[first, v] and not members[last, v]:
                    nested = False
                    break
                held[v] = members[last, v] and not members[first, v]
                if held[v]:
                    used += a.resident[v]
                    total += a.ticks[v]
                    weights[first, last] += a.sync[v]
                    fits = fits and a.usable[v]
            if not nested:
                weights[first, last] = 0
                continue
            up = 0
            for t in range(len(a.producer)):
                reads = stays = False
                for e in range(a.consumer_ptr[t], a.consumer_ptr[t + 1]):
                    if held[a.consumer[e]]:
                        reads = True
                    else:
                        stays = True
                if (reads and not held[a.producer[t]]) or (stays and held[a.producer[t]]):
                    total += a.inner[t]
                    up += a.outer[t]
            if fits:
                moved[first, last] = up
                if used <= a.capacity:
                    load[first, last] = total
    return load, moved, weights


def _stage_loads(load: NDArray[np.int64], sync: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """load(S, r) for r = 1..most, shape (most + 1, I, I)."""
    stage = np.full((most + 1, *load.shape), NO_VALUE, dtype=np.int64)
    fits = load < NO_VALUE
    for r in range(1, most + 1):
        ticks = -(-load // r) + -(-2 * (r - 1) * sync // r)
        stage[r][fits] = ticks[fits]
    return stage


@entry
def _inside(stage, size):  # type: ignore[no-untyped-def]
    """V(A, B, c) of the module text, shape (I, I, size + 1)."""
    most, count = stage.shape[0] - 1, stage.shape[1]
    value = np.full((count, count, size + 1), NO_VALUE, dtype=np.int64)
    for a in range(count):
        value[a, a, :] = 0
        for b in range(a + 1, count):
            for c in range(1, size + 1):
                best = value[a, b, c - 1]
                for m in range(a, b):
                    for r in range(1, min(most, c) + 1):
                        best = min(best, max(value[a, m, c - r], stage[r, m, b]))
                value[a, b, c] = best
    return value


def _trace(
    model: ContractedProblem,
    members: NDArray[np.bool_],
    g: int,
    stage: NDArray[np.int64],
    inside: NDArray[np.int64],
    cluster: NDArray[np.int64],
    best: NDArray[np.int64],
) -> tuple[PlannedStage, ...]:
    """Read one optimal plan from the tables, from the last stage to the first."""
    size, b, j = inside.shape[2] - 1, len(members) - 1, len(best) - 1
    found: list[PlannedStage] = []
    while b > 0:
        if best[j, b] == best[j - 1, b]:
            j -= 1
            continue
        a = int(np.argmax(np.maximum(best[j - 1], cluster[:, b]) == best[j, b]))
        j -= 1
        devices = list(model.types[g][j * size : (j + 1) * size])
        c, end = size, b
        while end > a:
            goal = int(inside[a, end, c])
            if inside[a, end, c - 1] == goal:
                c -= 1
                continue
            r, m = next(
                (r, m)
                for r in range(1, min(len(stage) - 1, c) + 1)
                for m in range(a, end)
                if max(inside[a, m, c - r], stage[r, m, end]) == goal
            )
            nodes = np.flatnonzero(members[end] & ~members[m])
            found.append(PlannedStage(_ops(model, nodes), tuple(devices[c - r : c]), j))
            c, end = c - r, m
        b = a
    return tuple(reversed(found))


__all__ = ["PipelinePlan", "PlannedStage", "plan_pipeline"]
