"""`min-cut`: the makespan of balanced parts with a small cut, by METIS.

What the papers on learned placement call min-cut or Scotch: ops weigh their mean compute time,
edges the mean time of their tensor; as many balanced parts as devices, one a device, for several
allowed imbalances and seeds. The partitioner knows no order of execution, so that a chain cut into
equal parts runs one part after the other.

References
----------
.. [1] G. Karypis, V. Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular
Graphs", SIAM Journal on
   Scientific Computing 20(1), 1998.
.. [2] A. Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning", ICML 2017
(the baseline).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.solvers.heuristics.heuristic import Heuristic
from placeopt.solvers.splits.graph_partition import load_partitioner, parts_of, undirected
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.placement import Placement
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class MinCut(Heuristic):
    """Balanced parts with a small cut, one for each device; what does not fit goes to a device with
    space.
    """

    name: ClassVar[str] = "min-cut"

    starts: int = option(5, low=1, meaning="seeds of the partitioner for every imbalance")

    def propose(self, context: Context, tracker: Tracker[Placement]) -> Iterator[Placement | None]:
        """Yield the parts of every imbalance and seed, list-scheduled."""
        problem, partitioner = context.problem, load_partitioner()
        tensor = np.repeat(np.arange(len(problem.producer)), np.diff(problem.consumer_ptr))
        ticks = np.rint(context.mean_transfer).astype(np.int64)[tensor]
        graph = undirected(problem.num_ops, problem.producer[tensor], problem.consumer, ticks)
        seed = int(tracker.rng().integers(1, 2**30))
        work = np.rint(context.mean_compute).astype(np.int64)
        for part in parts_of(partitioner, problem.num_devices, graph, work, seed, self.starts):
            yield context.repaired(part)
