"""Cut a training or inference graph into the stages of a shape: V, wave, X, M, K or T, each by the
period DP; from a source, to a table and a placement file with stages.

V     one stage per device
wave  two stages per device, down and up again
X     both directions at once; every device holds the weights of two stages
M     the ops with an outsized share of time or weights (embeddings, heads) tensor-parallel on all
      devices, the rest a chain; where they sit between the stages, as in an encoder-decoder, this
      is Tessel's NN
K     two independent branches on half of the devices each, what joins them tensor-parallel
T     no stages: every op tensor-parallel on all devices, one micro-batch after the other (the
      baseline without a pipeline)

Fewer stages than devices leave room for replicas of the whole, each with its share of the batch.
The DP has a time limit, and what it minimises is the load of the busiest device, not the step: a
cut is one way to cut, and what is proved of its schedules holds for it alone.

The file is a placement of the graph as it was read ("device" by op), with "stage" by op beside it:
what every command that takes a placement reads, and what the export to torch.distributed.pipelining
cuts by.

References
----------
.. [1] J. M. Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators",
NeurIPS 2020 (the DP).
.. [2] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN
Models via Flexible Schedule Search", HPCA
   2024 (the shapes X, M, NN and K).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.instances.module_groups import families
from placeopt.instances.sources import devices_for, limited, load, load_graph, with_costs
from placeopt.instances.training import training_graph
from placeopt.io.placement_file import write_placement
from placeopt.model.arrays import UNLIMITED, Flags, Ints, place_in, stable_order, value_ranks
from placeopt.model.cluster import Cluster
from placeopt.model.errors import InputError, check_choice
from placeopt.model.graph import OP_COLUMNS, OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.schedules.from_model import (
    ALL,
    is_table,
    join_passes,
    pipeline_of_placement,
    resident_bytes,
    stage_of_ops,
)
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.shapes import check_mode
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run_step

PIPELINES = ("V", "wave", "X", "M", "K")
SHAPES = (*PIPELINES, "T")
"""Shapes with stages, and with the one without."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Where the ops of a model go: one shape with one number of stages.

    Attributes
    ----------
    stages : devices of one replica; `replicas` of them work side by side.
    parts : stage of every op where a device holds several, else None.
    sync : seconds per step to sum the gradients of replicas (and of the two directions of X).
    """

    shape: str
    stages: int
    replicas: int
    placed: PlacementProblem
    device: Ints  # (num_ops,) device, or ALL
    parts: Ints | None = None
    sync: float = 0.0

    def problem(self, *, mode: str, recompute: bool, split: bool = False) -> PipelineProblem:
        """Return the pipeline problem; InputError if memory does not suffice."""
        one = self.one_direction(mode=mode, recompute=recompute, split=split)
        return both_directions(one, self.placed, self.device) if self.shape == "X" else one

    def one_direction(self, *, mode: str, recompute: bool, split: bool = False) -> PipelineProblem:
        """Return the pipeline problem, for X that of the first of its two directions."""
        return pipeline_of_placement(
            self.placed, self.device, mode=mode, recompute=recompute, split=split, parts=self.parts
        )


def cut_model(
    shape: str, stages: int, graph: OpGraph, cluster: Cluster, mode: str, seconds: float
) -> Cut:
    """Cut `graph` (with its passes joined) for a shape; `seconds` limits each run of the DP.

    Raises
    ------
    InputError
        If the model has no such shape, or its weights and one micro-batch do not fit.
    """
    group = _one_replica(shape, stages, cluster)
    weights, room = int(graph.resident.sum()), sum(device.memory for device in group.devices)
    if weights > room:
        raise InputError(
            f"'{graph.name}' needs {weights} bytes for weights, {stages} of {cluster.name} have "
            f"{room}"
        )
    found: InputError | None = None
    # Shares of the memory that a cut may fill with weights: what remains is for activations
    memory_shares = (1.0, 0.8, 0.6, 0.4)
    for share in memory_shares:
        try:
            device = _CUTS[shape](graph, group, share, seconds)
            parts = None
            if shape == "wave":  # these are stages, two of each device
                parts, device = device, np.minimum(device, 2 * stages - 1 - device)
            placed = load(graph, group, objective="period")
            cut = Cut(shape, stages, cluster.num_devices // stages, placed, device, parts)
            cut.problem(mode=mode, recompute=mode == "train")
        except InputError as error:
            # The weights alone, with all memory for them, say most about what is missing.
            found = found or error
            continue
        return replace(cut, sync=_sync(cut, graph, cluster)) if mode == "train" else cut
    assert found is not None
    raise found


def _one_replica(shape: str, stages: int, cluster: Cluster) -> Cluster:
    """Return the devices of the first replica; refuse a cluster that has not the like for all, or
    not what the shape needs.
    """
    d = cluster.num_devices
    if d % stages:
        raise InputError(f"stages: expected a divisor of the {d} devices, received {stages}")
    if stages < d and not _replicable(cluster, stages):
        raise InputError(f"'{cluster.name}' does not split into equal groups of {stages} devices")
    group = first_devices(cluster, stages)
    if shape in ("X", "K") and stages % 2:
        raise InputError(f"shape {shape} needs an even number of devices, received {stages}")
    if shape in ("X", "K") and not _replicable(group, 1 if shape == "X" else stages // 2):
        raise InputError(f"shape {shape} needs equal devices, '{group.name}' has different ones")
    different = group.link_class != group.link_class[::-1, ::-1]
    if shape == "X" and different[~np.eye(stages, dtype=np.bool_)].any():
        raise InputError(
            f"shape X needs the same links from either end, those of '{group.name}' differ"
        )
    return group


# --- the shapes: the device of every op, the stage for a wave
# ----------------------------------------------------------------------------------------


def _v(graph: OpGraph, cluster: Cluster, share: float, seconds: float) -> Ints:
    return _cut(graph, _smaller(cluster, share), seconds)


def _wave(graph: OpGraph, cluster: Cluster, share: float, seconds: float) -> Ints:
    d = cluster.num_devices
    virtual = Cluster(
        name=f"{cluster.name} twice",
        devices=tuple(
            replace(device, name=f"{device.name}/{turn}", memory=int(device.memory * share) // 2)
            for turn in range(2)
            for device in cluster.devices
        ),
        links=cluster.links,
        link_class=np.tile(cluster.link_class, (2, 2)),
        channel=np.full((2 * d, 2 * d), -1),
    )
    return _ranked(graph, _cut(graph, virtual, seconds))


def _ranked(graph: OpGraph, stage: Ints) -> Ints:
    """Renumber stages in the order in which the forward pass goes through them."""
    order = graph.topological_order
    forward = order[~graph.backward[order]]
    number = value_ranks(stage).reshape(-1)
    count = np.bincount(number[forward], minlength=number.max() + 1)
    places = np.bincount(number[forward], np.arange(len(forward)), len(count))
    middle = np.where(count > 0, places / np.maximum(count, 1), len(forward))
    return place_in(stable_order(middle))[number]


def _x(graph: OpGraph, cluster: Cluster, share: float, seconds: float) -> Ints:
    # Two stages share a device: half of its memory each is enough, though not always necessary.
    return _cut(graph, _smaller(cluster, share if share == 1 else share / 2), seconds)


def both_directions(
    one: PipelineProblem, placed: PlacementProblem, device: Ints
) -> PipelineProblem:
    """Return `one` together with its mirror image; a micro-batch of it is one of the model in each
    direction.
    """
    d, held = one.num_devices, np.array(resident_bytes(placed, device))
    aside = np.maximum(placed.capacity - held - one.capacity, 0)  # room for recomputation
    capacity = np.where(
        placed.capacity < UNLIMITED,
        placed.capacity - held - held[::-1] - np.maximum(aside, aside[::-1]),
        UNLIMITED,
    )
    if capacity.min() < 0:
        at = int(capacity.argmin())
        raise InputError(
            f"'{one.device_names[at]}' cannot hold the weights of two stages: "
            f"{-int(capacity[at])} bytes are missing"
        )
    blocks = one.blocks()
    mirrored = [
        # devices ascend, as in every problem: turned round, their memory comes in reverse, too
        replace(
            block,
            devices=tuple(d - 1 - x for x in reversed(block.devices)),
            memory=block.memory[::-1],
        )
        for block in blocks
    ]
    return PipelineProblem.from_blocks(
        f"{one.name}, both directions",
        [*_tagged(blocks, "a"), *_tagged(mirrored, "b")],
        one.device_names,
        capacity=capacity.tolist(),
        tick_seconds=one.tick_seconds,
    )


def _tagged(blocks: Iterable[Block], tag: str) -> Iterator[Block]:
    """Yield blocks with a letter behind their names."""
    for block in blocks:
        after = tuple((f"{name}{tag}", lag) for name, lag in block.after)
        yield replace(block, name=f"{block.name}{tag}", after=after)


def _m(graph: OpGraph, cluster: Cluster, share: float, seconds: float) -> Ints:
    spread = outsized_ops(graph, cluster.num_devices)
    if not spread.any():
        raise InputError(f"'{graph.name}' has no op with an outsized share of time or weights")
    rest, kept = subgraph(graph, ~spread)
    small = _smaller(cluster, share, int(graph.resident[spread].sum()))
    device = np.full(graph.num_ops, ALL, np.int64)
    device[kept] = _cut(rest, small, seconds)
    return device


def _k(graph: OpGraph, cluster: Cluster, share: float, seconds: float) -> Ints:
    parts = branches(graph)
    if parts is None:
        raise InputError(f"'{graph.name}' has no two independent branches")
    half = cluster.num_devices // 2
    spread = ~(parts[0] | parts[1])
    per_device = -(-int(graph.resident[spread].sum()) // cluster.num_devices)
    small = _smaller(first_devices(cluster, half), share, per_device * half)
    device = np.full(graph.num_ops, ALL, np.int64)
    for turn, part in enumerate(parts):
        rest, kept = subgraph(graph, part)
        device[kept] = _cut(rest, small, seconds) + turn * half
    return device


def _t(graph: OpGraph, cluster: Cluster, share: float, seconds: float) -> Ints:
    return np.full(graph.num_ops, ALL, np.int64)


_CUTS = {"V": _v, "wave": _wave, "X": _x, "M": _m, "K": _k, "T": _t}


# --- what the shapes are made of
# -----------------------------------------------------------------------


def outsized_ops(graph: OpGraph, num_devices: int) -> Flags:
    """Mark ops (with their backward ops) that have more than half of a device's fair share of time
    or weights.

    What reads an op's table of weights belongs to it. Nothing is marked where more than a quarter
    of the ops with weights would be: such a model is small, not unbalanced.
    """
    family = families(graph)
    flops = np.bincount(family, graph.flops, graph.num_ops)
    weights = np.bincount(family, graph.resident, graph.num_ops)
    share = 1 / (2 * num_devices)
    large = (flops > share * flops.sum()) | (weights > share * weights.sum())
    for t in range(graph.num_tensors):
        producer = int(graph.producer[t])
        if large[producer] and is_table(graph.tensor_bytes[t], graph.resident[producer]):
            large[family[graph.readers_of(t)]] = True
    if 4 * np.count_nonzero(large & (weights > 0)) > np.count_nonzero(weights):
        return np.zeros(graph.num_ops, np.bool_)
    return np.asarray(large[family])


def branches(graph: OpGraph) -> tuple[Flags, Flags] | None:
    """Return the ops of the two largest top-level layers that do not depend on each other, or None.

    Each must do at least a tenth of all work.
    """
    top = np.array([name.split("/")[0] for name in graph.layer] or [""] * graph.num_ops)
    total = max(1, int(graph.flops.sum()))
    work = {name: int(graph.flops[top == name].sum()) for name in set(top.tolist()) - {""}}
    large = [name for name in work if work[name] * 10 >= total]
    large.sort(key=lambda name: (-work[name], name))
    forward = {name: (top == name) & ~graph.backward for name in large}
    reach = {name: _descendants(graph, forward[name]) for name in large}
    for a, b in itertools.combinations(large, 2):
        if not (reach[a] & forward[b]).any() and not (reach[b] & forward[a]).any():
            return top == a, top == b
    return None


def _descendants(graph: OpGraph, start: Flags) -> Flags:
    reached, edges = start.copy(), graph.edges
    position = place_in(graph.topological_order)
    for u, v in edges[np.argsort(position[edges[:, 0]])].tolist():
        reached[v] |= reached[u]
    return reached


def subgraph(graph: OpGraph, keep: Flags) -> tuple[OpGraph, Ints]:
    """Return the graph of some ops, and their indices; tensors to and from the others are
    dropped.
    """
    kept = np.flatnonzero(keep)
    new = place_in(kept, graph.num_ops)
    tensors = []
    columns = np.flatnonzero(keep[graph.producer])
    for t in columns.tolist():
        readers = new[graph.readers_of(t)]
        producer, size = int(new[graph.producer[t]]), int(graph.tensor_bytes[t])
        tensors.append((producer, size, readers[readers >= 0].tolist()))
    part = OpGraph.from_tensors(
        graph.name,
        [graph.op_names[i] for i in kept],
        tensors,
        **{key: np.array(getattr(graph, key))[kept].tolist() for key in ("op_types", *OP_COLUMNS)},
        measured_kinds=graph.measured_kinds,
        measured=graph.measured[kept],
        measured_transfer=graph.measured_transfer[columns],
        tick_seconds=graph.tick_seconds,
    )
    return part, kept


def with_passes(graph: OpGraph, mode: str) -> OpGraph:
    """Return the graph with the passes of every op joined, the backward ones derived where training
    lacks them.
    """
    derive = mode == "train" and not graph.backward.any()
    return join_passes(training_graph(graph) if derive else graph)


def first_devices(cluster: Cluster, count: int) -> Cluster:
    """Return the first `count` devices of a cluster."""
    if count == cluster.num_devices:
        return cluster
    keep = slice(0, count)
    return replace(
        cluster,
        name=f"{count} of {cluster.name}",
        devices=cluster.devices[keep],
        link_class=cluster.link_class[keep, keep],
        channel=cluster.channel[keep, keep],
    )


def _cut(graph: OpGraph, cluster: Cluster, seconds: float) -> Ints:
    """Partition a graph into a chain of stages by the period DP; return the device of every op."""
    problem = load(graph, cluster, objective="period")
    if cluster.num_devices == 1:
        # One stage: nothing to cut, and nothing to say about order.
        return np.zeros(problem.num_ops, np.int64)
    result = run_step(problem, make_solver("ideal-dp"), Budget(seconds=seconds))
    if result.solution is None:
        raise InputError(
            f"'{problem.name}' cannot be cut into stages: {result.message or result.status}"
        )
    return np.asarray(result.solution.device, np.int64)


def _smaller(cluster: Cluster, share: float, spread: int = 0) -> Cluster:
    """Return the cluster with a share of its memory, less each device's part of `spread` bytes."""
    part = -(-spread // cluster.num_devices)
    if share == 1 and part == 0:
        return cluster
    return limited(cluster, [max(1, int(x.memory * share) - part) for x in cluster.devices])


def _replicable(cluster: Cluster, stages: int) -> bool:
    """Whether every group of `stages` consecutive devices is like the first."""
    first = [replace(device, name="") for device in cluster.devices[:stages]]
    inner = ~np.eye(stages, dtype=np.bool_)
    for start in range(0, cluster.num_devices, stages):
        group = slice(start, start + stages)
        if [replace(device, name="") for device in cluster.devices[group]] != first:
            return False
        if (cluster.link_class[group, group] != cluster.link_class[:stages, :stages])[inner].any():
            return False
    return True


def _sync(cut: Cut, graph: OpGraph, cluster: Cluster) -> float:
    """Seconds per step to sum gradients: a ring all-reduce per stage over its slowest link, after
    the last backward.

    The copies of a stage are on its device of every replica; for X, on the two devices that hold
    it. Tensor-parallel weights have one copy per replica.
    """
    copies = [[*range(stage, cluster.num_devices, cut.stages)] for stage in range(cut.stages)]
    if cut.shape == "X":
        copies = [places + copies[-1 - stage] for stage, places in enumerate(copies)]
    gradients = np.array([name.rpartition("/")[2].startswith("wgrad") for name in graph.op_names])
    worst = 0.0
    for stage, places in enumerate(copies):
        if len(places) < 2:
            continue
        size = int(graph.resident[gradients & (cut.device == stage)].sum())
        spread = int(graph.resident[gradients & (cut.device == ALL)].sum())
        pairs = itertools.permutations(places, 2)
        links = [cluster.links[cluster.link_class[a, b]] for a, b in pairs]
        slowest = min(links, key=lambda link: link.bandwidth)
        share = (size + spread // cut.stages) / len(places)
        worst = max(worst, 2 * (len(places) - 1) * (slowest.latency + share / slowest.bandwidth))
    return worst


@dataclass(frozen=True)
class StageRow:
    """One stage of a cut.

    Attributes
    ----------
    device : name, "all" for a tensor-parallel stage.
    first, last : names of its first and last forward op in topological order; `num_ops` of them.
    forward, backward : ticks of its passes of one micro-batch, recomputation included.
    resident : bytes of weights, and when training of gradients and optimizer state.
    activations : bytes that one micro-batch holds from the forward to the backward pass.
    """

    stage: int
    device: str
    first: str
    last: str
    num_ops: int
    forward: int
    backward: int
    resident: int
    activations: int


@dataclass(frozen=True, eq=False)
class ModelCut:
    """A cut and what was cut.

    Attributes
    ----------
    read : the graph as it was read, without the backward ops that were derived, on the devices of
    the cut.
    costs : how measured times are known, "" where there are none.
    """

    cut: Cut
    read: PlacementProblem
    costs: str = ""

    def rows(self, *, mode: str, recompute: bool = False, split: bool = False) -> list[StageRow]:
        """Return the stages, in order; for X those of one direction."""
        placed = self.cut.placed
        one = self.cut.one_direction(mode=mode, recompute=recompute, split=split)
        stage, homes = stage_of_ops(placed, self.cut.device, self.cut.parts)
        order = placed.topological_order[~placed.backward[placed.topological_order]]
        held = np.maximum(one.memory, 0).sum(axis=1)
        forward = one.forward == 1
        rows = []
        for number, home in enumerate(homes):
            ops = order[stage[order] == number]
            blocks = one.stage == number
            rows.append(
                StageRow(
                    number,
                    "all" if home == ALL else placed.device_names[home],
                    placed.op_names[ops[0]],
                    placed.op_names[ops[-1]],
                    len(ops),
                    int(one.span[blocks & forward].sum()),
                    int(one.span[blocks & ~forward].sum()),
                    int(placed.resident[stage == number].sum()),
                    int(held[blocks].sum()),
                )
            )
        return rows

    @property
    def resident(self) -> list[int]:
        """Bytes that stay on every device: those of its stages, and its share of tensor-parallel
        ones.

        With X the opposite device has a copy of each.
        """
        own = resident_bytes(self.cut.placed, self.cut.device)
        if self.cut.shape != "X":
            return own
        return [a + b for a, b in zip(own, own[::-1], strict=True)]

    def write(self, path: Path) -> Path:
        """Write the device and the stage of every op of the model as it was read.

        Raises
        ------
        InputError
            If ops run on all devices: no placement can say that.
        """
        if (self.cut.device == ALL).any():
            raise InputError(
                "ops that run on all devices at once (tensor-parallel) are in no placement"
            )
        count = self.read.num_ops  # ops keep their numbers when the backward pass is derived
        stage = stage_of_ops(self.cut.placed, self.cut.device, self.cut.parts)[0]
        told = stage[:count].tolist() if (stage[:count] >= 0).all() else None
        return write_placement(path, self.read, Placement(self.cut.device[:count]), stage=told)


def cut_source(
    source: Any,
    cluster: Any,
    *,
    shape: str = "V",
    mode: str = "train",
    memory: Sequence[int] | None = None,
    seconds: float = 10.0,
    costs: Any = None,
    **options: Any,
) -> ModelCut:
    """Return a model cut for a shape by the period DP.

    Parameters
    ----------
    source, cluster, options : as for `placeopt.load`; the backward graph is derived for
    mode="train" if it is missing.
    memory : bytes of each device instead of the cluster's.
    seconds : time limit of the DP. costs : a cost file or a trace.

    Raises
    ------
    InputError
        If the model has no such shape, or does not fit.
    """
    check_mode(mode)
    check_choice("shapes", shape, SHAPES)
    graph, bundled = load_graph(source, **options)
    devices = devices_for(graph, bundled, cluster, memory)
    words = ""
    if costs is not None:
        graph, words = with_costs(graph, devices, costs)
    whole = with_passes(graph, mode)
    cut = cut_model(shape, devices.num_devices, whole, devices, mode, seconds)
    return ModelCut(cut, load(graph, devices, objective="period"), words)
