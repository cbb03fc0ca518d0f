"""`pipedream`: PipeDream's optimizer, without replicas.

The nodes are taken in a topological order; the stage of the nodes i + 1 .. j takes the larger of
its compute time and of the transfers over its two ends, since PipeDream overlaps computation with
communication. With A(j, m) the smallest slowest stage of the first j nodes on m accelerators,

    A(j, m) = min over i < j of max(A(i, m - 1), cut(i), time(i, j)),

with cut(i) the ticks of all tensors that cross from the first i nodes to the rest, and stages that
fit the memory of a device only. What is returned is judged under the problem's own load, where
computation and communication add up. PipeDream's replicas are left out: a replicated stage is no
placement (see `placeopt.splits.problem`).

References
----------
D. Narayanan, A. Harlap, A. Phanishayee, V. Seshadri, N. Devanur, G. Ganger, P. Gibbons, M. Zaharia:
"PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placeopt.model.arrays import Floats, Ints, running_sums
from placeopt.model.errors import Refused
from placeopt.model.problem import PlacementProblem
from placeopt.period.contracted import ContractedProblem
from placeopt.solvers.exact.linear_dp import accelerator_type, chain_model, offer_parts
from placeopt.solving.base import SearchSolver
from placeopt.solving.tracker import PlacementTracker

NEVER = float("inf")


@dataclass(frozen=True)
class PipeDream(SearchSolver):
    """Stages of consecutive nodes whose slowest one, computation and communication overlapped, is
    fastest.

    Attributes
    ----------
    most_nodes : of a graph: a table has a number for every pair, a gigabyte with so many.
    """

    most_nodes: ClassVar[int] = 12_000

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Offer the optimizer's split."""
        model = chain_model(tracker)
        if model is None:
            return
        if model.num_nodes > self.most_nodes:
            raise Refused(
                f"pipedream compares all pairs of ends of {model.num_nodes} nodes; it takes "
                f"{self.most_nodes} at most"
            )
        kind = accelerator_type(model)
        part = best_stages(stage_times(model, kind), cuts(model, kind), len(model.types[kind]))
        if part is None:
            tracker.message = "no stages of consecutive ops fit the memory of the devices"
        elif not offer_parts(tracker, model, part, kind):
            tracker.message = "the optimizer's stages break a constraint of the problem"


def stage_times(model: ContractedProblem, kind: int) -> Floats:
    """Return the compute ticks of the nodes i .. j - 1 as a stage, at [i, j]; infinite where they
    cannot be one.
    """
    n = model.num_nodes
    work = running_sums(model.total[:, kind])
    held = running_sums(model.resident)
    barred = running_sums(~model.allowed[:, kind])
    time = (work[None, :] - work[:, None]).astype(np.float64)
    fits = (held[None, :] - held[:, None] <= model.capacity[kind]) & (
        barred[None, :] == barred[:, None]
    )
    time[~fits | (np.arange(n + 1)[:, None] >= np.arange(n + 1)[None, :])] = NEVER
    return time


def cuts(model: ContractedProblem, kind: int) -> Floats:
    """Return the ticks of the tensors that cross from the first i nodes to the rest, shape
    (num_nodes + 1,).
    """
    change = np.zeros(model.num_nodes + 2)
    for t in range(len(model.producer)):
        pins = (int(model.producer[t]), *model.readers(t))
        first, last = min(pins), max(pins)
        change[first + 1] += model.weight[t, kind]
        change[last + 1] -= model.weight[t, kind]
    return np.cumsum(change)[: model.num_nodes + 1]


def best_stages(time: Floats, cut: Floats, devices: int) -> Ints | None:
    """Return the stage of every node; None if nothing fits."""
    n = len(cut) - 1
    slowest = np.full((devices + 1, n + 1), NEVER)
    before = np.zeros((devices + 1, n + 1), np.int64)
    slowest[0, 0] = 0.0
    for m in range(1, devices + 1):
        ends = np.maximum(slowest[m - 1], cut)[:, None]
        candidates = np.maximum(ends, time)
        before[m] = candidates.argmin(axis=0)
        slowest[m] = candidates.min(axis=0)
    m = int(slowest[:, n].argmin())
    if slowest[m, n] == NEVER:
        return None
    part, j = np.zeros(n, np.int64), n
    for stage in range(m, 0, -1):
        i = int(before[stage, j])
        part[i:j] = stage - 1
        j = i
    return part
