"""`metis` and `min-cut`: balanced parts with a small cut, by a multilevel graph partitioner.

For the period (`metis`) nodes weigh their compute time on the accelerators, edges the time of the
tensor between them; METIS makes as many parts of about equal weight as there are accelerators, with
few ticks between them. It knows neither memory, nor contiguity, nor that loads count both ends of a
transfer: splits that break a constraint are dropped, and the best of several imbalances is kept.
Tarnawski et al. compare with SCOTCH in this role; METIS is the other multilevel partitioner with
bindings that are kept.

For the makespan (`min-cut`) it is what the papers on learned placement call min-cut or Scotch: ops
weigh their mean compute time, edges the mean time of their tensor; as many balanced parts as
devices, one a device, for several allowed imbalances and seeds. The partitioner knows no order of
execution, so that a chain cut into equal parts runs one part after the other.

References
----------
G. Karypis, V. Kumar: "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs",
SIAM Journal on Scientific Computing 20(1), 1998.

F. Pellegrini, J. Roman: "SCOTCH: A Software Package for Static Mapping by Dual Recursive
Bipartitioning of Process and Architecture Graphs", HPCN 1996.

A. Mirhoseini et al.: "Device Placement Optimization with Reinforcement Learning", ICML 2017 (the
baseline).
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placeopt.model.arrays import pointers, together
from placeopt.model.errors import needed_package
from placeopt.period.contracted import ContractedProblem, contract
from placeopt.solvers.exact.linear_dp import accelerator_type, offer_parts
from placeopt.solvers.heuristics.heuristic import Heuristic
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.arrays import Ints
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class GraphPartition(SearchSolver):
    """Parts of equal work with a small cut, one for each accelerator."""

    starts: int = option(5, "seeds of the partitioner for every imbalance", low=1)

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Offer the parts of every imbalance and seed."""
        partitioner = load_partitioner()
        model = contract(problem, contiguity="none")
        kind = accelerator_type(model)
        seed = int(tracker.rng().integers(1, 2**30))
        given = len(model.types[kind]), edges_of(model, kind), model.total[:, kind]
        able = model.allowed[:, kind].all()
        for part in parts_of(partitioner, *given, seed, self.starts) if able else ():
            if tracker.stop():
                return
            offer_parts(tracker, model, part, kind)
        if tracker.solution is None:
            tracker.message = (
                "no part of the partitioner keeps the constraints of the problem "
                "(memory, contiguity, devices)"
            )


def load_partitioner() -> Any:
    """Import pymetis, or say how to install it."""
    return needed_package("pymetis", "partition", "solver 'metis'")


class WeightedGraph(NamedTuple):
    """An undirected graph as METIS reads it."""

    pointer: list[int]  # (num_nodes + 1,) into the neighbours
    neighbour: list[int]
    weight: list[int]  # of each entry of `neighbour`


def parts_of(
    partitioner: Any, parts: int, graph: WeightedGraph, work: Ints, seed: int, starts: int
) -> Iterator[Ints]:
    """Yield the part of every node of a graph, for every imbalance (in thousandths) and seed.

    There are no more parts than nodes: METIS writes what it says of them to standard output.
    """
    parts = min(parts, len(work))
    if parts == 1:
        yield np.zeros(len(work), np.int64)
        return
    for imbalance, start in itertools.product((30, 100, 300, 1000), range(starts)):
        _, part = partitioner.part_graph(
            parts,
            partitioner.CSRAdjacency(graph.pointer, graph.neighbour),
            vweights=scaled(work),
            eweights=graph.weight,
            options=partitioner.Options(ufactor=imbalance, seed=seed + start),
        )
        yield np.asarray(part, np.int64)


def edges_of(model: ContractedProblem, kind: int) -> WeightedGraph:
    """Return the graph of the nodes of a contracted problem, its edges weighed by their tensors on
    a type of device.
    """
    tensor = model.edge_tensor
    return undirected(
        model.num_nodes, model.producer[tensor], model.consumer, model.weight[tensor, kind]
    )


def undirected(num_nodes: int, source: Ints, target: Ints, ticks: Ints) -> WeightedGraph:
    """Return the graph of some edges, both ways; what joins the same nodes is added up, loops are
    dropped.
    """
    total: Counter[tuple[int, int]] = Counter()
    for u, v, weight in together(source, target, ticks):
        if u != v:
            total[u, v] += weight
            total[v, u] += weight
    pairs = sorted(total)
    weights = scaled(np.array([total[pair] for pair in pairs], np.int64))
    pointer = pointers(np.array([u for u, _ in pairs], np.int64), num_nodes)
    return WeightedGraph(pointer.tolist(), [v for _, v in pairs], weights)


def scaled(ticks: Ints) -> list[int]:
    """Return positive whole weights in proportion to ticks, up to 100 000: far from where sums of
    32 bits overflow.
    """
    scale = min(1.0, 100_000 / int(ticks.max(initial=1)))
    return [max(1, round(x * scale)) for x in ticks.tolist()]


@dataclass(frozen=True)
class MinCut(Heuristic):
    """Balanced parts with a small cut, one for each device; what does not fit goes to a device with
    space.
    """

    starts: int = option(5, "seeds of the partitioner for every imbalance", low=1)

    def propose(self, context: Context, tracker: PlacementTracker) -> Iterator[Placement | None]:
        """Yield the parts of every imbalance and seed, list-scheduled."""
        problem, partitioner = context.problem, load_partitioner()
        ticks = np.rint(context.mean_transfer).astype(np.int64)[problem.edge_tensor]
        graph = undirected(problem.num_ops, problem.edge_source, problem.consumer, ticks)
        seed = int(tracker.rng().integers(1, 2**30))
        work = np.rint(context.mean_compute).astype(np.int64)
        for part in parts_of(partitioner, problem.num_devices, graph, work, seed, self.starts):
            yield context.repaired(part)
