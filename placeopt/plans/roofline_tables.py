"""Layer tables by roofline: from a model's graph and a cluster, where nothing was measured.

Ops that share a layer path, cut behind its first number, form a layer; layers on a circle are
joined, and all are put into a topological order. On t devices every op is split evenly, and the
layer's output is summed twice per pass by a ring over the links inside a host. The backward pass
takes twice the forward pass; an optimizer step reads and writes 28 bytes per parameter (weights,
gradients, two moments).

Ops below a layer named `expertN` are experts. With expert parallelism each of t devices has an even
share of the experts of every layer, the rest of the model as a whole, and a t-th of the samples of
a micro-batch; what enters and leaves experts passes an all-to-all over the links inside a host, in
which every device sends (t - 1) / t of its share. All other splits are even ones of every op, whose
activations already are those of sequence parallelism, so that this is no choice of its own here.

Parameters are counted, and floats have the bytes of the precision, whatever the graph's are; matrix
units run at the peak that the best matmul sustains (`placeopt.instances.clusters.hardware`).

Where the graph has measured times of its ops (a cost file of `placeopt profile`), these are the
forward pass of one sample; other micro-batches and degrees take what is above the overhead of a
launch times the ratio of their roofline to that of one sample.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np

from placeopt.instances.clusters.hardware import find_gpu
from placeopt.model.arrays import Floats, Ints, by_key, place_in, positions
from placeopt.model.cluster import Cluster, Device
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.plans.layer_tables import LayerTable
from placeopt.plans.network_table import FlatNetwork
from placeopt.plans.plan import EXPERT
from placeopt.plans.predicted_costs import Constants, PredictedStepCosts, profiled_parameters
from placeopt.plans.step_problem import DevicePool, Pools

EXPERT_NAME = r"(?:^|/)experts?[./]?(\d+)"
ROOFLINE = Constants(
    largest_rate=float("inf"),
    exposed=0.0,
    base_bytes=1e9,
    state_bytes=16.0,
    overhead=1.0,
    loss=0.0,
    source="assumed: 16 bytes per parameter, 1 GB beside the model, no overlap of communication",
)


DEGREES = (1, 2, 4, 8)
"""Tensor degrees that are priced."""

BACKWARD_RATIO = 2.0
"""Time of a backward pass over that of its forward pass."""

SUMS = 2
"""Sums of a layer's output over the devices that share it, per pass."""

OPTIMIZER_BYTES = 28
"""Bytes that an optimizer step moves per 32-bit parameter: weights, gradients and two moments, all
but the gradients read and written."""


def chain_of_layers(graph: OpGraph) -> Ints:
    """Return the layer of every op, numbered so that no edge runs back; shape (num_ops,)."""
    import networkx as nx

    most_layers = 128  # where the graph names none
    paths = [_layer_path(path) for path in graph.layer or [""] * graph.num_ops]
    rank = place_in(graph.topological_order)
    if len(set(paths)) < 2:  # no layers are named: equal shares of the ops along the order
        return rank * min(most_layers, graph.num_ops) // graph.num_ops
    named = nx.DiGraph()
    named.add_nodes_from(paths)
    sources = graph.producer[graph.edge_tensor].tolist()
    named.add_edges_from(
        (paths[u], paths[v]) for u, v in zip(sources, graph.consumer.tolist(), strict=True)
    )
    chain = nx.condensation(named)
    joined = [chain.graph["mapping"][path] for path in paths]
    first: dict[int, int] = {}  # where a layer comes first among the ops, by number
    for op in graph.topological_order.tolist():
        first.setdefault(joined[op], len(first))
    # next comes the earliest of the layers whose predecessors are all placed
    order = nx.lexicographical_topological_sort(chain, key=first.__getitem__)
    place = positions(order)
    return np.array([place[layer] for layer in joined], np.int64)


def _layer_path(path: str) -> str:
    """Cut a path behind its first number, which counts layers, or to two levels."""
    parts = path.split("/")
    numbers = (i for i, part in enumerate(parts, 1) if part.isdigit())
    return "/".join(parts[: next(numbers, 2)])


def roofline_costs(
    graph: OpGraph,
    cluster: Cluster,
    micro_batches: tuple[int, ...],
    known_times: str = "",
    precision: str = "bf16",
) -> tuple[PredictedStepCosts, Pools]:
    """Return a cost model of a forward graph of one sample, and the devices of a cluster.

    `known_times` says where measured times of the graph's ops come from; without it they are not
    used. `precision` is that of matrix products where nothing was measured.

    Raises
    ------
    InputError
        If the graph has backward ops, or costs of its own that no roofline explains.
    """
    _check_forward(graph)
    layer = chain_of_layers(graph)
    pools, devices, inside, between = _hosts(cluster)
    size_of = 4 if known_times or precision == "fp32" else 2
    work = _Work(graph, layer, int(layer.max()) + 1, size_of, measured=bool(known_times))
    if not known_times:
        devices = {kind: _with_peak(device, precision) for kind, device in devices.items()}
    cases = [
        (pool.kind, size, tensor)
        for pool, tensor, size in product(pools, DEGREES, micro_batches)
        if tensor <= pool.per_host
    ]
    table = LayerTable(
        graph.name,
        {
            (kind, size, t): work.times(devices[kind], size, t, inside[kind])
            for kind, size, t in cases
        },
        _shares(work.parameters, DEGREES),
        _shares(work.activations, DEGREES),
        work.outputs,
        size_of,
        known_times or f"roofline of '{graph.name}' on '{cluster.name}', {precision}",
        work.weight_part,
        "flops of the ops with weights, of all flops",
    )
    table = work.with_experts(table, cases, devices, inside)
    rate = FlatNetwork(
        {pool.kind: between for pool in pools},
        f"slowest link of '{cluster.name}', shared by no one else",
        inside,
    )
    return PredictedStepCosts(table, rate, ROOFLINE, "roofline step time"), pools


def _check_forward(graph: OpGraph) -> None:
    if graph.backward.any():
        raise InputError(
            f"graph '{graph.name}': expected a forward graph: the planner derives the backward pass"
        )
    if not graph.flops.any():
        raise InputError(
            f"graph '{graph.name}' has no flops; measure a layer table and give it as costs"
        )


def _shares(values: Ints | Floats, degrees: tuple[int, ...]) -> dict[int, Floats]:
    """Return even shares of values by degree."""
    return {degree: values / degree for degree in degrees}


def _with_peak(device: Device, precision: str) -> Device:
    """Return a device with the sustained peak of a precision, itself where none is known."""
    gpu, unknown = find_gpu(device.kind)
    if unknown or device.family == "cpu":
        return device
    peak, used = gpu.peak(precision)
    share = 1.0 if used == "fp32" else gpu.share(used)
    return replace(device, peak_flops=peak * share)


class _Work:
    """What each layer computes, moves, keeps and passes on, for one sample, in floats of
    `size` bytes.
    """

    def __init__(
        self, graph: OpGraph, layer: Ints, count: int, size: int, *, measured: bool
    ) -> None:
        seconds = graph.measured.T * graph.tick_seconds
        self.measured = dict(zip(graph.measured_kinds, seconds, strict=True)) if measured else {}
        self.layer, self.count = layer, count
        self.flops = graph.flops.astype(float)
        self.weights = np.minimum(graph.resident, graph.bytes_moved).astype(float)
        counted = graph.parameters if graph.parameters.any() else graph.resident / 4.0
        own_size = float(graph.resident.sum()) / max(1.0, float(counted.sum())) or 4.0
        self.size = size  # bytes of a float here, `own_size` those of the graph
        self.moved = (graph.bytes_moved - self.weights) * (size / own_size)
        self.weights *= size / own_size
        self.counted = np.asarray(counted, np.float64)
        self.parameters = np.bincount(layer, self.counted, count)
        floats = graph.tensor_bytes / own_size
        self.activations = np.bincount(layer[graph.producer], floats, count)
        own = np.bincount(layer, self.flops * (graph.resident > 0), count)
        # the gradients of inputs and of weights take as many flops as the forward pass each
        forward = np.maximum(np.bincount(layer, self.flops, count), 1.0)
        self.weight_part = own / forward / BACKWARD_RATIO
        self._count_experts(graph, own_size)
        self.outputs = np.zeros(count)
        last = layer[graph.producer].copy()
        np.maximum.at(last, graph.edge_tensor, layer[graph.consumer])
        for cut in range(1, count):  # what crosses the cut behind a layer
            crossing = (layer[graph.producer] < cut) & (last >= cut)
            self.outputs[cut - 1] = floats[crossing].sum()

    def _count_experts(self, graph: OpGraph, own_size: float) -> None:
        """Find experts, the parameters beside them, and the floats that enter and leave them, by
        layer.
        """
        named = [re.findall(EXPERT_NAME, path) for path in graph.layer or [""] * graph.num_ops]
        self.expert = np.array([bool(found) for found in named])
        self.experts = len({int(found[-1]) for found in named if found})
        own = np.where(self.expert, 0.0, self.counted)
        self.dense = np.asarray(np.bincount(self.layer, own, self.count), np.float64)
        self.expert_parameters = self.parameters - self.dense
        source = graph.producer[graph.edge_tensor]
        crossing = self.expert[source] != self.expert[graph.consumer]
        floats = graph.tensor_bytes[graph.edge_tensor] / own_size
        self.exchanged = np.bincount(
            self.layer[graph.consumer], np.where(crossing, floats, 0.0), self.count
        )

    def with_experts(
        self,
        table: LayerTable,
        cases: list[tuple[str, int, int]],
        devices: dict[str, Device],
        inside: dict[str, float],
    ) -> LayerTable:
        """Return a table with expert parallelism in the cases that it is possible in."""
        times = {
            (kind, size, t): self.expert_times(devices[kind], size, t, inside[kind])
            for kind, size, t in cases
            if self.shares_experts(t) and size % t == 0
        }
        if not times:
            return table
        degrees, own = tuple(filter(self.shares_experts, table.parameters)), self.expert_parameters
        form = replace(
            table,
            times=times,
            parameters={t: self.dense + own / t for t in degrees},
            activations=_shares(self.activations, degrees),
            shared=dict.fromkeys(degrees, self.dense),
        )
        return replace(table, forms={EXPERT: form})

    def shares_experts(self, tensor: int) -> bool:
        """Whether there are experts that so many devices can share out evenly."""
        return tensor > 1 and self.experts > 0 and self.experts % tensor == 0

    def expert_times(self, device: Device, micro_batch: int, tensor: int, inside: float) -> Floats:
        """Seconds of each layer with expert parallelism; see the module."""
        passes = np.where(
            self.expert,
            self._op_seconds(device, micro_batch, 1) / tensor,
            self._op_seconds(device, micro_batch // tensor, 1),
        )
        sent = self.exchanged * self.size * micro_batch / tensor * (tensor - 1) / tensor
        forward = np.bincount(self.layer, passes, self.count) + sent / inside
        return self._with_update(device, forward, self.dense + self.expert_parameters / tensor)

    def _roofline(self, device: Device, micro_batch: int, tensor: int) -> Floats:
        moved = (self.moved * micro_batch + self.weights) / tensor
        return np.maximum(
            self.flops * micro_batch / tensor / device.peak_flops, moved / device.memory_bandwidth
        )

    def _op_seconds(self, device: Device, micro_batch: int, tensor: int) -> Floats:
        """Forward seconds of each op: measured and scaled where they are known, else by
        roofline.
        """
        roofline = self._roofline(device, micro_batch, tensor)
        found = np.asarray(roofline + device.launch_overhead)
        if device.kind in self.measured:
            known, once = self.measured[device.kind], self._roofline(device, 1, 1)
            ratio = np.where(once > 0, roofline / np.where(once > 0, once, 1.0), 1.0)
            overhead = np.minimum(device.launch_overhead, known)
            found = np.where(known >= 0, overhead + (known - overhead) * ratio, found)
        return found

    def times(self, device: Device, micro_batch: int, tensor: int, inside: float) -> Floats:
        """Forward, backward and optimizer seconds of each layer."""
        passes = self._op_seconds(device, micro_batch, tensor)
        ring = 2 * (tensor - 1) / tensor * self.outputs * self.size * micro_batch / inside
        forward = np.bincount(self.layer, passes, self.count) + SUMS * ring
        return self._with_update(device, forward, self.parameters / tensor)

    def _with_update(self, device: Device, forward: Floats, own: Floats) -> Floats:
        """Add the backward pass, and the optimizer step of the parameters that a device has."""
        update = own * OPTIMIZER_BYTES / device.memory_bandwidth
        # the prediction scales a profiled step by parameters: give it the rate of the profiled
        # layers
        profiled = profiled_parameters(own)
        whole = float(update.sum()) * profiled / max(float(own.sum()), 1.0)
        return np.column_stack([forward, BACKWARD_RATIO * forward, np.full(self.count, whole)])


def _hosts(cluster: Cluster) -> tuple[Pools, dict[str, Device], dict[str, float], float]:
    """Return the devices in pools, one of each pool, the bytes per second inside its hosts, and
    those between hosts.

    Devices of a kind that differ are pools of their own; hosts of unlike sizes are taken as several
    of a size that divides all.
    """
    rates = [float(link.bandwidth) for link in cluster.links] or [float("inf")]
    classes = np.where(np.eye(cluster.num_devices, dtype=np.bool_), -1, cluster.link_class)
    used = [rates[c] for c in np.unique(classes).tolist() if c >= 0] or [max(rates)]
    alike = by_key((replace(device, name=""), i) for i, device in enumerate(cluster.devices))
    pools: list[DevicePool] = []
    devices: dict[str, Device] = {}
    inside: dict[str, float] = {}
    for device, members in alike.items():
        kind = device.kind
        if kind in devices:
            kind = f"{kind} like {cluster.devices[members[0]].name}"
        own = classes[np.ix_(members, members)]
        link = max(np.unique(own[own >= 0]).tolist(), key=rates.__getitem__, default=0)
        joined = rates[link] == max(rates) or rates[link] > min(rates)
        near = math.gcd(*(1 + (own == link).sum(axis=1)).tolist()) if joined else 1
        pools.append(DevicePool(kind, len(members), near, int(device.memory)))
        devices[kind], inside[kind] = device, rates[link]
    return tuple(pools), devices, inside, min(used)
