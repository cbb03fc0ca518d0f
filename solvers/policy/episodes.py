"""Roll out a dual policy on a problem: one episode places all ops, and says how to make itself more likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.projection import Edges
from placeopt.model.threads import parallel_slices
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.policy import select_and_place
from placeopt.solvers.policy.episode_arrays import Graph, Plc, Record, Sel, Weights, new_state

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.dual_policy_file import DualPolicyModel

STEPS_PER_OP = 20
"""Steps of an episode for each op, to decide whether a batch is worth several threads."""


@dataclass(frozen=True, eq=False)
class OrderedProblem:
    """A problem prepared for episodes; ops are renumbered in topological order.

    Attributes
    ----------
    order : op at each place of the topological order; column i of the kernels' rows is op order[i].
    """

    problem: PlacementProblem
    graph: Graph
    order: NDArray[np.int64]  # (num_ops,)

    @classmethod
    def of(cls, problem: PlacementProblem) -> OrderedProblem:
        """Prepare a problem."""
        view = Context(problem)
        order = problem.topological_order
        place = view.inverse(order)
        level, _ = view.upward_rank()
        mean, delay = view.mean_compute, view.mean_transfer
        units = problem.units
        graph = Graph(
            compute=problem.compute[order].astype(np.float64),
            transfer=problem.transfer.astype(np.float64),
            link_class=np.array(problem.link_class),
            predecessors=_renumber(problem.graph.predecessors, order, place),
            successors=_renumber(problem.graph.successors, order, place),
            weight=delay,
            sel_static=_ready_op_features(problem, level, mean, delay)[order],
            horizon=max(1.0, float(level.max()) * 2, float(mean.sum()) / problem.num_devices * 2),
            unit=units.unit[order],
            unit_allowed=np.array(units.allowed),
            unit_bytes=units.bytes.astype(np.float64),
            capacity=problem.capacity.astype(np.float64),
        )
        return cls(problem, graph, order)

    def to_ops(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows with columns by topological place as rows by op."""
        result = np.empty_like(rows)
        result[..., self.order] = rows
        return result

    def from_ops(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows by op as rows with columns by topological place."""
        return np.ascontiguousarray(rows[..., self.order])


def _ready_op_features(
    problem: PlacementProblem, level: NDArray[np.float64], mean: NDArray[np.float64], delay: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return SEL's features of every op over their maxima; READY_TIME is filled in by the episode."""
    table = np.zeros((problem.num_ops, len(Sel)))
    table[:, Sel.B_LEVEL] = level
    table[:, Sel.T_LEVEL] = _t_level(problem, mean, delay)
    table[:, Sel.COMPUTE] = mean
    np.add.at(table[:, Sel.INCOMING], problem.consumer, delay[problem.edge_tensor])
    np.add.at(table[:, Sel.OUTGOING], problem.producer, delay)
    table[:, Sel.OUT_DEGREE] = np.diff(problem.successors[0])
    return table / np.maximum(1e-300, table.max(axis=0))


def _renumber(edges: Edges, order: NDArray[np.int64], place: NDArray[np.int64]) -> Edges:
    """Return edges grouped by op with the ops in topological order."""
    pointer, op, tensor = edges
    counts = np.diff(pointer)[order]
    new = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    flat = np.concatenate([np.arange(pointer[v], pointer[v + 1]) for v in order]) if len(op) else np.zeros(0, np.int64)
    return Edges(new, place[op[flat]], tensor[flat])


def _t_level(problem: PlacementProblem, work: NDArray[np.float64], delay: NDArray[np.float64]) -> NDArray[np.float64]:
    """Longest path from a source to the start of each op, with mean costs."""
    pointer, source, tensor = problem.predecessors
    level = np.zeros(problem.num_ops)
    for v in problem.topological_order.tolist():
        here = slice(pointer[v], pointer[v + 1])
        if pointer[v + 1] > pointer[v]:
            level[v] = (level[source[here]] + work[source[here]] + delay[tensor[here]]).max()
    return level


def weights_of(
    model: DualPolicyModel,
    num_devices: int,
    *,
    sel_residual: NDArray[np.float64] | None = None,
    plc_residual: NDArray[np.float64] | None = None,
    temperature: float | None = None,
    sel_random: bool = True,
    plc_random: bool = True,
) -> Weights:
    """Return what the kernels take of a policy."""
    return Weights(
        np.array(model.sel), np.array(model.plc),
        np.zeros(0) if sel_residual is None else sel_residual,
        np.zeros((0, num_devices)) if plc_residual is None else plc_residual,
        model.temperature if temperature is None else temperature, sel_random, plc_random,
        model.sel_scaling == "candidates",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Episodes:
    """What a batch of episodes returns; ops are columns in the problem's own numbering.

    Attributes
    ----------
    sel, plc : d log-probability / d weights of each episode.
    sel_residual, plc_residual : the same for the residuals, in topological numbering; empty without residual.
    """

    devices: NDArray[np.int32]  # (batch, n)
    ranks: NDArray[np.int64]  # (batch, n)
    sel: NDArray[np.float64]  # (batch, SEL features)
    plc: NDArray[np.float64]  # (batch, PLC features)
    sel_residual: NDArray[np.float64]  # (batch, n) or (batch, 0)
    plc_residual: NDArray[np.float64]  # (batch, n, k) or (batch, 0, k)
    log_probability: NDArray[np.float64]  # (batch,)
    entropy: NDArray[np.float64]  # (batch,) summed over decisions


def roll(
    ordered: OrderedProblem,
    weights: Weights,
    seeds: NDArray[np.uint64],
    mode: int = select_and_place.SAMPLE,
    devices: NDArray[Any] | None = None,
    ranks: NDArray[Any] | None = None,
) -> Episodes:
    """Run one episode per seed, on all cores; the result does not depend on how many there are.

    With mode REPLAY or REPLAY_TIES the given `devices` and `ranks` are repeated (ranks topological).
    """
    (n, k), batch = ordered.graph.compute.shape, len(seeds)
    learned = n if weights.sel_residual.shape[0] > 0 or weights.plc_residual.shape[0] > 0 else 0
    records = Record(
        device=np.zeros((batch, n), np.int32) if devices is None else ordered.from_ops(devices).astype(np.int32),
        rank=np.zeros((batch, n), np.int64) if ranks is None else ordered.from_ops(ranks).astype(np.int64),
        sel=np.zeros((batch, len(Sel))),
        plc=np.zeros((batch, len(Plc))),
        sel_residual=np.zeros((batch, learned)),
        plc_residual=np.zeros((batch, learned, k)),
        log_probability=np.zeros((batch, 1)),
        entropy=np.zeros((batch, 1)),
    )

    def run(part: slice) -> None:
        state = new_state(ordered.graph, len(Plc))
        rows = Record._make(array[part] for array in records)
        select_and_place.episodes(ordered.graph, weights, state, seeds[part], rows, mode)

    parallel_slices(run, batch, batch * n * STEPS_PER_OP)
    return Episodes(
        ordered.to_ops(records.device), ordered.to_ops(records.rank), records.sel, records.plc, records.sel_residual,
        records.plc_residual, records.log_probability[:, 0], records.entropy[:, 0],
    )  # fmt: skip
