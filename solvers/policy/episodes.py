"""Roll out a dual policy on a problem, and add up the score functions of what it did."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import Array, Bits, Floats, Ints, SmallInts, place_in, stable_order
from placeopt.model.projection import Edges, edges_by
from placeopt.model.threads import parallel_slices
from placeopt.solvers.heuristics import ranks
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.policy import select_and_place
from placeopt.solvers.policy.episode_arrays import (
    Gradient,
    Graph,
    Rows,
    Sel,
    Weights,
    new_state,
    zero_gradient,
)
from placeopt.solvers.policy.message_passing import NUM_COLUMNS, op_contexts, type_numbers
from placeopt.solvers.search.search_space import SearchSpace

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.dual_policy_file import DualPolicyModel


@dataclass(frozen=True, eq=False)
class OrderedProblem:
    """A problem prepared for episodes; ops are renumbered in topological order.

    Attributes
    ----------
    order : op at each place of the topological order; column i of the kernels' rows is op order[i].
    """

    problem: PlacementProblem
    graph: Graph
    order: Ints  # (num_ops,)
    own: Floats  # (num_ops, len(OWN)) what is known of each op alone, in the problem's numbering

    @classmethod
    def of(cls, problem: PlacementProblem, *, groups: int = 48) -> OrderedProblem:
        """Prepare a problem.

        Parameters
        ----------
        groups : of ops joined along their most expensive edges, for the feature that draws an op to
            its group.
        """
        view = Context(problem)
        order = problem.topological_order
        place = place_in(order)
        level, _ = view.upward_rank()
        mean, delay = view.mean_compute, view.mean_transfer
        units = problem.units
        static = _ready_op_features(problem, level, mean, delay)
        cluster = SearchSpace(problem).groups(groups)[units.unit]
        graph = Graph(
            compute=problem.compute[order].astype(np.float64),
            transfer=problem.transfer.astype(np.float64),
            link_class=np.array(problem.link_class),
            predecessors=_renumber(problem.predecessors, place),
            successors=_renumber(problem.successors, place),
            weight=np.array(delay),
            sel_static=static[order],
            horizon=max(1.0, float(level.max()) * 2, float(mean.sum()) / problem.num_devices * 2),
            unit=units.unit[order],
            unit_allowed=np.array(units.allowed),
            unit_bytes=units.bytes.astype(np.float64),
            capacity=problem.capacity.astype(np.float64),
            cluster=cluster[order].astype(np.int64),
            work=mean[order],
            num_clusters=int(cluster.max()) + 1,
        )
        return cls(problem, graph, order, _own_features(problem, view, static, cluster))

    @cached_property
    def contexts(self) -> Floats:
        """What the graph says of every op, by topological place, shape (num_ops, NUM_COLUMNS)."""
        return op_contexts(self.problem, self.own)[self.order]

    def to_ops(self, rows: Array) -> Array:
        """Return rows with columns by topological place as rows by op."""
        result = np.empty_like(rows)
        result[..., self.order] = rows
        return result

    def from_ops(self, rows: Array) -> Array:
        """Return rows by op as rows with columns by topological place."""
        return np.ascontiguousarray(rows[..., self.order])


def _ready_op_features(
    problem: PlacementProblem, level: Floats, mean: Floats, delay: Floats
) -> Floats:
    """Return SEL's features of every op over their maxima; the others are filled in by the
    episode.
    """
    table = np.zeros((problem.num_ops, len(Sel)))
    table[:, Sel.B_LEVEL] = level
    table[:, Sel.T_LEVEL] = ranks.downward_rank(problem.graph, mean, delay)
    table[:, Sel.COMPUTE] = mean
    np.add.at(table[:, Sel.INCOMING], problem.consumer, delay[problem.edge_tensor])
    np.add.at(table[:, Sel.OUTGOING], problem.producer, delay)
    table[:, Sel.OUT_DEGREE] = np.diff(problem.successors[0])
    return table / np.maximum(1e-300, table.max(axis=0))


def _own_features(
    problem: PlacementProblem, view: Context, static: Floats, cluster: Ints
) -> Floats:
    """Return the features named in `message_passing.OWN`."""
    fastest = problem.min_compute.astype(np.float64)
    graph, work, delay = view.graph, view.mean_compute, view.mean_transfer
    free_level, _ = view.upward_rank(communication=False)
    free = free_level + ranks.downward_rank(graph, work, np.zeros(len(delay)))
    level, _ = view.upward_rank()
    paid = level + ranks.downward_rank(graph, work, delay)
    outgoing = np.bincount(problem.producer, delay, minlength=problem.num_ops)
    share = work.sum() / problem.num_devices
    columns = (
        static[:, : Sel.READY_TIME],  # what is known before any episode
        1.0 - paid / max(1e-300, float(paid.max())),
        np.round(1.0 - free / max(1e-300, float(free.max())), 12),
        graph.indegree / max(1, int(graph.indegree.max())),
        np.minimum(2.0, np.bincount(cluster, work)[cluster] / max(1e-300, share)) / 2,
        outgoing / (outgoing + work + 1e-300),
        fastest / np.maximum(1e-300, work),
    )
    return np.column_stack([*columns, type_numbers(problem.op_types)])


def _renumber(edges: Edges, place: Ints) -> Edges:
    """Return edges grouped by op with the ops in topological order."""
    owner = np.repeat(place, np.diff(edges.pointer))
    return edges_by(len(place), owner, place[edges.op], edges.tensor)


def weights_of(
    model: DualPolicyModel,
    ordered: OrderedProblem,
    *,
    sel_residual: Floats | None = None,
    plc_residual: Floats | None = None,
    temperature: float | None = None,
    sel_random: bool = True,
    plc_random: bool = True,
) -> Weights:
    """Return what the kernels take of a policy on a problem."""
    n, k = ordered.graph.compute.shape
    hidden = len(model.sel_out)
    context = ordered.contexts if hidden else np.zeros((n, NUM_COLUMNS))
    return Weights(
        sel=np.array(model.sel),
        sel_inside=np.array(model.sel_inside),
        sel_context=np.ascontiguousarray(context @ model.sel_context),
        sel_out=np.array(model.sel_out),
        sel_residual=np.zeros(0) if sel_residual is None else sel_residual,
        plc=np.array(model.plc),
        plc_inside=np.array(model.plc_inside),
        plc_context=np.ascontiguousarray(context @ model.plc_context),
        plc_out=np.array(model.plc_out),
        plc_residual=np.zeros((0, k)) if plc_residual is None else plc_residual,
        temperature=float(model.temperature if temperature is None else temperature),
        sel_random=sel_random,
        plc_random=plc_random,
    )


@dataclass(frozen=True, eq=False)
class Episodes:
    """What a batch of episodes did, by topological place, and what followed."""

    ordered: OrderedProblem
    rows: Rows

    @property
    def devices(self) -> SmallInts:
        """Device of every op, shape (batch, num_ops)."""
        return self.ordered.to_ops(self.rows.device)

    @property
    def ranks(self) -> Ints:
        """Place of every op in the order in which the episode ran them, shape (batch, num_ops)."""
        return self.ordered.to_ops(self.rows.rank)

    @property
    def log_probability(self) -> Floats:
        """Of all decisions of each episode together, shape (batch,)."""
        return self.rows.log_probability

    @property
    def entropy(self) -> Floats:
        """Summed over the decisions of each episode, shape (batch,)."""
        return self.rows.entropy

    @classmethod
    def given(cls, ordered: OrderedProblem, devices: Array, ranks: Array) -> Episodes:
        """Return placements as episodes; `ranks` (by op) must follow the
        graph.
        """
        place = stable_order(stable_order(ordered.from_ops(ranks), axis=1), axis=1)
        rows = _new_rows(len(devices), len(ordered.order))
        return cls(
            ordered,
            rows._replace(
                device=ordered.from_ops(devices).astype(np.int32), rank=place.astype(np.int64)
            ),
        )


def _new_rows(batch: int, n: int) -> Rows:
    return Rows(
        np.zeros((batch, n), np.int32),
        np.zeros((batch, n), np.int64),
        np.zeros(batch),
        np.zeros(batch),
        np.zeros(batch),
    )


def roll(
    ordered: OrderedProblem,
    weights: Weights,
    seeds: Bits,
    mode: int = select_and_place.SAMPLE,
) -> Episodes:
    """Run one episode per seed, on all cores; the result does not depend on how many there are.

    Parameters
    ----------
    mode : SAMPLE or GREEDY.
    """
    rows = _new_rows(len(seeds), len(ordered.order))
    _run(ordered, weights, rows, seeds, mode)
    return Episodes(ordered, rows)


def score_functions(
    weights: Weights, episodes: Episodes, credit: Floats
) -> tuple[Gradient, Episodes]:
    """Return the sum of credit times score function over all decisions, and the episodes with their
    present probabilities.

    Parameters
    ----------
    credit : of the decisions of each episode, shape (batch,).
    """
    count = len(credit)
    rows = episodes.rows._replace(
        credit=np.ascontiguousarray(credit),
        log_probability=np.zeros(count),
        entropy=np.zeros(count),
    )
    seeds = np.zeros(count, np.uint64)
    parts = _run(episodes.ordered, weights, rows, seeds, select_and_place.REPLAY)
    total = Gradient(*(np.sum(arrays, axis=0) for arrays in zip(*parts, strict=True)))
    return total, Episodes(episodes.ordered, rows)


def _run(
    ordered: OrderedProblem,
    weights: Weights,
    rows: Rows,
    seeds: Bits,
    mode: int,
    *,
    chunk: int = 8,
    steps_per_op: int = 20,
) -> list[Gradient]:
    """Run the episodes in chunks; return the gradient of each chunk (zeros but in replays).

    Parameters
    ----------
    chunk : episodes whose score functions are added up in one place: fixed, so that sums do not
        depend on the number of threads.
    steps_per_op : of an episode, to decide whether a batch is worth several threads.
    """
    n, batch = len(ordered.order), len(seeds)
    chunks = [slice(at, min(batch, at + chunk)) for at in range(0, batch, chunk)]
    replay = mode == select_and_place.REPLAY
    nothing = zero_gradient(weights)
    gradients = [zero_gradient(weights) if replay else nothing for _ in chunks]

    def run(which: slice) -> None:
        state = new_state(ordered.graph, weights)
        for part, gradient in zip(chunks[which], gradients[which], strict=True):
            own = Rows._make(array[part] for array in rows)
            select_and_place.episodes(
                ordered.graph, weights, state, seeds[part], own, gradient, mode
            )

    parallel_slices(run, len(chunks), batch * n * steps_per_op)
    return gradients
