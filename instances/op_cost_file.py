"""Cost files: measured times of a model's ops, how each is known, and the rule that carries them to
other devices.

    {"format": "placeopt/costs", "version": 1, "model": name, "device": {constants}, "ops": {op:
    {"seconds", "how"}}}

The device's peak, bandwidth and launch overhead are fitted to its measured ops (`cost_fit`), so an
op that was not measured gets its roofline time there: *fitted*. On a device of another kind an op
takes

    overhead' + max(0, t - overhead) * roofline' / roofline,

where roofline = max(flops / peak, bytes / bandwidth) with the constants of either device (of memory
alone where an op has neither flops nor bytes): fitted too. An op keeps the share of the roofline
that it was measured to reach. Where there are too few measurements for a fit, what was not measured
is left to the cost model: *guessed*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.instances.cost_fit import fit_device, with_measured_times
from placeopt.instances.traces import FITTED, GUESSED, MEASURED, match, read_trace
from placeopt.io.body import Body
from placeopt.model.arrays import Floats, positions
from placeopt.model.cluster import Cluster, Device
from placeopt.model.cost_model import op_seconds
from placeopt.model.errors import InputError, check_choice
from placeopt.model.files import parse_json, read_text, write_json
from placeopt.model.graph import OpGraph

FORMAT, VERSION = "placeopt/costs", 1

_FITTED = ("peak_flops", "memory_bandwidth", "launch_overhead")
"""Constants of a device that a cost file keeps."""


@dataclass(frozen=True, eq=False)
class OpCosts:
    """Times of ops on one kind of device.

    Attributes
    ----------
    device : the device with fitted constants; None where there was too little to fit.
    seconds, how : by op name.
    """

    model: str
    kind: str
    family: str
    device: Device | None
    seconds: dict[str, float]
    how: dict[str, str]

    def counts(self) -> dict[str, int]:
        """Return the number of ops by how their time is known."""
        return word_counts(self.how.values())


def word_counts(words: Iterable[str]) -> dict[str, int]:
    """Return how often each word for how a time is known occurs, the best first."""
    found = Counter(words)
    return {word: found[word] for word in (MEASURED, FITTED, GUESSED) if found[word]}


def costs_of(
    graph: OpGraph,
    found: dict[str, tuple[float, str]],
    *,
    kind: str,
    family: str,
    known: Device | None = None,
) -> OpCosts:
    """Return the costs of all ops of a graph: those that were found, and fitted ones for the rest.

    Parameters
    ----------
    known : constants to fit the rest with where too few ops were measured to fit a device anew.
    """
    seconds = {name: max(time, 1e-9) for name, (time, _) in found.items()}
    how = {name: word for name, (_, word) in found.items()}
    measured = {name: seconds[name] for name, word in how.items() if word == MEASURED}
    device = _fitted_device(graph, measured, kind, family) or known
    rest = [name for name in graph.op_names if name not in seconds]
    if device is not None and rest:
        times = device.launch_overhead + rooflines(graph, device)
        of = dict(zip(graph.op_names, times.tolist(), strict=True))
        seconds |= {name: of[name] for name in rest}
        how |= dict.fromkeys(rest, FITTED)
    return OpCosts(graph.name, kind, family, device, seconds, how)


def _fitted_device(
    graph: OpGraph, measured: dict[str, float], kind: str, family: str
) -> Device | None:
    """Fit a device to the seconds of measured ops; None where they are too few."""
    index = positions(graph.op_names)
    ops = [index[name] for name in measured]
    ops = [op for op in ops if graph.flops[op] + graph.bytes_moved[op] > 0]
    # Fewest measured ops of different work that a device is fitted to
    least = 4
    if len({(int(graph.flops[op]), int(graph.bytes_moved[op])) for op in ops}) < least:
        return None
    times = [measured[graph.op_names[op]] for op in ops]
    return fit_device(
        graph.flops[ops], graph.bytes_moved[ops], times, kind=kind, family=family, name=kind
    ).device


def rooflines(graph: OpGraph, device: Device) -> Floats:
    """Seconds of every op without overhead; ops of no known work have 1 byte, so that only
    bandwidths are compared.
    """
    idle = graph.flops + graph.bytes_moved == 0
    moved = np.where(idle, 1, graph.bytes_moved)
    return op_seconds(graph, device, moved)[0]


def apply_costs(
    graph: OpGraph, cluster: Cluster, costs: OpCosts
) -> tuple[OpGraph, dict[str, dict[str, str]]]:
    """Return the graph with times for every kind of device of a cluster, and how they are known by
    kind and op.

    Raises
    ------
    InputError
        If no op of the graph is in the file.
    """
    known = [name for name in graph.op_names if name in costs.seconds]
    if not known:
        raise InputError(
            f"costs of '{costs.model}': none of its ops is an op of graph '{graph.name}'; profile "
            "this model"
        )
    # Ops that are not in the file (a backward pass) are fitted like those that were not measured.
    here = costs_of(
        graph,
        {name: (costs.seconds[name], costs.how[name]) for name in known},
        kind=costs.kind,
        family=costs.family,
        known=costs.device,
    )
    here = replace(here, device=costs.device or here.device)
    marks: dict[str, dict[str, str]] = {}
    for device in {device.kind: device for device in cluster.devices}.values():
        times, words = _on(graph, here, device)
        marks[device.kind] = {name: words.get(name, GUESSED) for name in graph.op_names}
        graph = with_measured_times(graph, times, device.kind)
    return graph, marks


def _on(graph: OpGraph, costs: OpCosts, device: Device) -> tuple[dict[str, float], dict[str, str]]:
    """Return times and how they are known on a device of a cluster."""
    if device.kind == costs.kind:
        return costs.seconds, costs.how
    if costs.device is None:
        return {}, {}
    ratio = rooflines(graph, device) / rooflines(graph, costs.device)
    seconds = np.array([costs.seconds[name] for name in graph.op_names])
    work = np.maximum(seconds - costs.device.launch_overhead, 0.0) * ratio + device.launch_overhead
    return dict(zip(graph.op_names, work.tolist(), strict=True)), dict.fromkeys(
        graph.op_names, FITTED
    )


def write_costs(path: str | Path, costs: OpCosts) -> Path:
    """Write a cost file; it is replaced at once."""
    device: dict[str, Any] = {"kind": costs.kind, "family": costs.family}
    if costs.device is not None:
        device |= {key: value for key, value in asdict(costs.device).items() if key in _FITTED}
    ops = {
        name: {"seconds": seconds, "how": costs.how[name]}
        for name, seconds in costs.seconds.items()
    }
    data = {
        "format": FORMAT,
        "version": VERSION,
        "model": costs.model,
        "device": device,
        "ops": ops,
    }
    return write_json(path, data)


def read_costs(path: str | Path, graph: OpGraph, kind: str | None = None) -> OpCosts:
    """Read a cost file, or a profiler's trace of the model (see `placeopt.instances.traces`).

    Parameters
    ----------
    kind : kind of device that a trace was made on; by default "cpu" or "gpu".

    Raises
    ------
    InputError
        One line: what is wrong with the file, and where.
    """
    if not isinstance(path, str | Path):
        raise InputError(f"costs: expected a file or OpCosts, received {type(path).__name__}")
    text, where = read_text(path, max_bytes=2**30, what="costs"), f"costs '{path}'"
    if f'"{FORMAT}"' in text[:4096]:
        return _parse(Body(parse_json(text, where), where))
    trace = read_trace(path)
    return costs_of(graph, match(graph, trace), kind=kind or trace.family, family=trace.family)


def _parse(body: Body) -> OpCosts:
    version, device, ops = body.integer("version"), body.body("device"), body.body("ops")
    if version != VERSION:
        raise body.wrong("version", str(VERSION), version)
    if not ops.data:
        raise body.wrong("ops", "at least one op", ops.data)
    kind, family = device.text("kind", "cpu"), device.text("family", "cpu")
    fitted = None
    if device.has("peak_flops"):
        fitted = Device(kind, kind, family, **device.fields(Device, *_FITTED))
    seconds, how = {}, {}
    for name in ops.data:
        row = ops.body(name)
        seconds[name], how[name] = row.number("seconds"), row.text("how")
        check_choice(f'{row.where}: "how"', how[name], (MEASURED, FITTED, GUESSED))
        if seconds[name] < 0:
            raise row.wrong("seconds", "a finite number >= 0", seconds[name])
    return OpCosts(body.text("model", ""), kind, family, fitted, seconds, how)
