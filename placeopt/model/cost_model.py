"""The cost model: from an OpGraph and a Cluster to a PlacementProblem with integer times.

An op takes, on a device, the time measured for that kind of device if the graph has one; otherwise
the roofline

    max(flops / peak, bytes moved / memory bandwidth) + launch overhead

at the rates of its kernels (`Device.rates`). Those of 16-bit values on ready-made devices are
fitted to measured products and attention (`results/plans/ops.py`); others are data-sheet values.

A tensor takes, on a link, its measured time if the graph has one; otherwise latency + bytes /
bandwidth. Times are rounded to ticks once, half up, and never to 0 for a positive time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from placeopt.model.arrays import Floats, Ints, to_ticks
from placeopt.model.cluster import Cluster, Device, Rates
from placeopt.model.errors import InputError
from placeopt.model.graph import UNKNOWN, UNSUPPORTED, OpGraph
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem

OF_THE_GRAPH = (
    "producer",
    "consumer_ptr",
    "consumer",
    "resident",
    "colocation",
    "tensor_bytes",
    "tick_seconds",
    "backward",
    "meta",
    "op_names",
    "op_types",
)
"""Fields of a problem that are its graph's."""


def lower(graph: OpGraph, cluster: Cluster, **fields: Any) -> PlacementProblem:
    """Return the placement problem of running `graph` on `cluster`.

    `fields` are further fields of PlacementProblem (objective, memory, contiguity, pipeline,
    slots).
    """
    columns: dict[Device, Ints] = {}  # of devices that take the same times
    alike = [replace(device, name="", memory=0) for device in cluster.devices]
    for device, kind in zip(cluster.devices, alike, strict=True):
        if kind not in columns:
            columns[kind] = op_ticks(graph, device)
    transfer = (
        np.column_stack(
            [transfer_ticks(graph, link.latency, link.bandwidth) for link in cluster.links]
        )
        if graph.num_tensors
        else np.zeros((0, len(cluster.links)), np.int64)
    )
    fields.setdefault("io_class", io_classes(cluster))
    return PlacementProblem(
        name=f"{graph.name} on {cluster.name}",
        compute=np.column_stack([columns[kind] for kind in alike]),
        transfer=transfer,
        link_class=cluster.link_class,
        channel=cluster.channel,
        capacity=np.array([device.memory for device in cluster.devices], np.int64),
        device_names=tuple(device.name for device in cluster.devices),
        **{name: getattr(graph, name) for name in OF_THE_GRAPH},
        **fields,
    )


def op_ticks(graph: OpGraph, device: Device) -> Ints:
    """Ticks of every op on `device`, -1 where it cannot run there; shape (num_ops,)."""
    work, launch = op_seconds(graph, device)
    ticks = to_ticks(work + launch, graph.tick_seconds, f"op time on '{device.name}'")
    measured = np.full(graph.num_ops, UNKNOWN, np.int64)
    # The most specific column wins: the kind ("A100"), then the family ("gpu"), then any device.
    known = [k for k in ("*", device.family, device.kind) if k in graph.measured_kinds]
    if not known and (graph.measured > 0).any() and not (graph.flops + graph.bytes_moved).any():
        raise InputError(
            f"graph '{graph.name}': no op has a time on '{device.kind}', or flops; "
            f"choose devices that it was measured on: {', '.join(graph.measured_kinds)}"
        )
    for kind in known:
        column = graph.measured[:, graph.measured_kinds.index(kind)]
        measured = np.where(column == UNKNOWN, measured, column)
    ticks = np.where(measured >= 0, measured, ticks)
    return np.where(measured == UNSUPPORTED, INCOMPATIBLE, ticks)


def op_rates(graph: OpGraph, device: Device) -> list[Rates]:
    """Return what the kernels of every op reach on `device`."""
    fused = ["attention" in kind.lower() for kind in graph.op_types]
    kinds = list(zip(graph.half.tolist(), fused, strict=True))
    found = {kind: device.rates(half=kind[0], attention=kind[1]) for kind in set(kinds)}
    return [found[kind] for kind in kinds]


def op_seconds(graph: OpGraph, device: Device, moved: Ints | None = None) -> tuple[Floats, Floats]:
    """Seconds that every op works on `device`, and that it takes beside, where nothing was
    measured; each of shape (num_ops,). `moved` stands for the graph's bytes.
    """
    moved = graph.bytes_moved if moved is None else moved
    rates = [(r.flops, r.bandwidth, r.launch) for r in op_rates(graph, device)]
    flops, bandwidth, launch = np.array(rates).T
    return np.maximum(graph.flops / flops, moved / bandwidth), launch


def transfer_ticks(graph: OpGraph, latency: float, bandwidth: float) -> Ints:
    """Ticks of every tensor on a link; shape (num_tensors,)."""
    seconds = latency + graph.tensor_bytes / bandwidth
    ticks = to_ticks(seconds, graph.tick_seconds, "transfer time")
    return np.where(graph.measured_transfer == UNKNOWN, ticks, graph.measured_transfer)


def io_classes(cluster: Cluster) -> Ints:
    """Link class over which each device reaches the others in the period model; -1 for CPUs, which
    never pay.

    Where a device has several, the slowest counts: a pipeline's boundary may lie on any of its
    links.
    """
    same = np.eye(cluster.num_devices, dtype=np.bool_)
    pays = [device.family != "cpu" for device in cluster.devices]
    rates = [(link.bandwidth, -link.latency) for link in cluster.links]
    place = np.array([sorted(rates).index(rate) for rate in rates])  # the slowest first
    links = np.where(same, 0, cluster.link_class)
    slowest = np.where(same, len(rates), place[links]).argmin(axis=1)
    return np.where(pays, links[np.arange(len(links)), slowest], -1)
