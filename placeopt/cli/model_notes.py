"""What a report says of a model beside its times: what is assumed of its costs and links, and what
it holds in memory; and where that does not fit how much is missing, where, and what would help.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.cli import common
from placeopt.model.arrays import UNLIMITED, by_key
from placeopt.model.cluster import Cluster
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.objective import objective_of
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Result
from placeopt.model.sizes import bytes_text

LOOPS = ("Loop", "Scan", "TensorIterator", "while_loop", "map_impl", "scan", "associative_scan")
"""Types of ops that run a body several times; what they cost rests on the number of turns."""

BRANCHES = ("If", "cond")
"""Types of ops that run one of their bodies: they cost the dearest."""

WEIGHTED = ("embedding", "gather", "linear", "gemm", "addmm", "matmul", "mm", "fusedmatmul")
"""Types of ops, in small letters, whose weights models tie."""


def is_own_model(source: str) -> bool:
    """Whether a source is a model of the user's own: a module, or a file of a framework."""
    return source.startswith("torch:") or Path(source.partition("?")[0]).suffix.lower() in (
        ".onnx",
        ".pt2",
        ".xml",
    )


def cost_notes(graph: OpGraph) -> list[str]:
    """Say which costs of a graph are guesses: loops of unknown length, and ops of unknown shape."""
    loops: list[str] = []
    others: list[str] = []
    for name, kind, unknown in zip(
        graph.op_names, graph.op_types, graph.unshaped.tolist(), strict=True
    ):
        if unknown:
            (loops if kind in LOOPS else others).append(name)
    notes = []
    if loops:
        many = "s" if len(loops) > 1 else ""
        notes.append(
            f"{len(loops)} loop{many} of unknown length costed for one turn (--trip-count N): "
            f"{_first_names(loops)}"
        )
    if others:
        many = "s have" if len(others) > 1 else " has"
        notes.append(
            f"{len(others)} op{many} guessed costs (unknown kinds, or fix dimensions with --dim): "
            f"{_first_names(others)}"
        )
    return notes


def rate_note(graph: OpGraph, cluster: Cluster) -> str:
    """Say at which rates ops are priced where devices know those of 16-bit kernels, else ""."""
    if not any(device.half for device in cluster.devices):
        return ""
    others = graph.num_ops - int(graph.half.sum())
    if others == 0:
        return "op times: 16-bit values, at what measured kernels sustain"
    advice = "; for a run in 16 bits export the model so, or add ?precision=bf16 to --cluster"
    return (
        f"op times: {others} of {graph.num_ops} ops make no 16-bit values and take the data "
        f"sheet's fp32 peak{'' if graph.half.any() else advice}"
    )


def tied_notes(graph: OpGraph) -> list[str]:
    """Say which ops share a weight and so a device, and what parts them.

    In a graph that is not grouped yet, two ops that have weights share a device for no other
    reason: the others of a group are views.
    """
    notes = []
    for ops in _weighted_groups(graph):
        paths = dict.fromkeys(graph.layer[op] for op in ops)
        if len(paths) < 2:
            continue
        shown = [path.replace("/", ".") or graph.op_names[ops[0]] for path in paths]
        notes.append(
            f"one weight of {_first_names(shown)}: these share a device, and all stages between "
            "them in a chain; --shared copy gives each its copy (a pipeline sums their gradients)"
        )
    return notes


def _weighted_groups(graph: OpGraph) -> Collection[list[int]]:
    """Return the ops that have weights and share a device, group by group."""
    return by_key(
        (group, op)
        for op, group in enumerate(graph.colocation.tolist())
        if group >= 0 and graph.op_types[op].lower() in WEIGHTED and not graph.backward[op]
    ).values()


def control_note(graph: OpGraph) -> str:
    """Say how control flow is costed, "" where there is none."""
    kinds = sorted({*LOOPS, *BRANCHES}.intersection(graph.op_types))
    if not kinds:
        return ""
    rule = "a branch costs its most expensive body, a loop its body times its turns"
    return f"{', '.join(kinds)}: {rule}"


def link_note(problem: Any, result: Result[Any]) -> str:
    """Say how long the best placement takes on links shared as in the hardware, where its
    cluster's name leaves it open.
    """
    from placeopt.instances.clusters import make_cluster
    from placeopt.makespan.evaluate import evaluate

    cluster = problem.name.rpartition(" on ")[2]
    if result.solution is None or not result.value:
        return ""
    if not objective_of(problem).drawn or not _contention_open(problem, cluster):
        return ""
    wanted = f"{cluster}{'&' if '?' in cluster else '?'}contention=hardware"
    try:
        shared = problem.replace(channel=make_cluster(wanted).channel)
        found = evaluate(
            shared,
            result.solution,
            None if result.queue == "planned" else result.queue or None,
            check=False,
        )
    except InputError:
        return ""  # a file's own cluster, which says itself what is shared
    change = found.makespan / int(result.value) - 1
    return (
        f"links: {cluster} has no contention; on the shared links of the hardware this takes "
        f"{common.time_text(found.makespan, problem.tick_seconds)} ({change:+.1%}): "
        f'--cluster "{wanted}"'
    )


def _contention_open(problem: Any, cluster: str) -> bool:
    """Whether transfers have to share links of which the cluster's name says nothing."""
    said = "contention=" in cluster or cluster.startswith("uniform")
    return problem.num_devices > 1 and not said and not (problem.channel >= 0).any()


def memory_note(problem: Any, result: Result[Any]) -> str:
    """Say what the device that holds most holds under the best placement, by what it is, and the
    others' sums; in GiB.
    """
    from placeopt.instances.training import resident_parts
    from placeopt.makespan.evaluate import evaluate

    if result.solution is None:
        return ""
    device = result.solution.device
    parts = resident_parts(
        problem.op_names, problem.backward, problem.resident, device, problem.num_devices
    )
    held = parts.sum(axis=1)
    timed = objective_of(problem).drawn
    peak = (
        evaluate(problem, result.solution, result.queue or None, check=False).peak_memory
        if timed
        else held
    )
    most = int(peak.argmax())
    told = common.kept_text(*parts[most].tolist(), training=problem.backward.any())
    told += (
        f" + live tensors {common.gib_text(int(peak[most] - held[most]))} at the peak"
        if timed
        else ""
    )
    room = int(problem.capacity[most])
    others = [common.gib_text(size) for size in np.delete(peak, most).tolist()]
    rest = f"; the others hold {', '.join(others) if len(others) < 8 else 'less'}"
    limit = f" of {common.gib_text(room)}" if room < UNLIMITED else ""
    return (
        f"memory in GiB: {problem.device_names[most]} {common.gib_text(int(peak[most]))}{limit} "
        f"({told}){rest if others else ''}"
    )


def _first_names(names: list[str]) -> str:
    shown = 4
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")


HELP = "raise --memory-limit, add devices, or use smaller inputs"


def over_limit(problem: Any, placement: Any, queue: str | None) -> str:
    """Warn where one run of a placement holds more than a device has; "" where none does."""
    if not isinstance(problem, PlacementProblem) or not hasattr(placement, "device"):
        return ""
    found = _peaks(problem, placement, queue)
    if found is None:
        return ""
    over = found - problem.capacity
    if (over <= 0).all():
        return ""
    d = int(over.argmax())
    others = int((over > 0).sum()) - 1
    hint = (
        HELP
        if not objective_of(problem).drawn or problem.memory == "peak"
        else "--memory-limit or --memory peak counts live tensors in the search"
    )
    more = f"; {others} more devices are over their limits" if others else ""
    return f"warning: does not fit: {_told(problem, placement, found, d)}{more}; {hint}"


def why_none(problem: Any) -> str:
    """Say what is missing where a search found no placement that fits; "" where memory is not why.

    The reference is a list scheduler's placement that counts weights only.
    """
    if not isinstance(problem, PlacementProblem) or problem.memory != "peak":
        return ""
    if (problem.capacity >= UNLIMITED).all():
        return ""
    from placeopt.api import solve

    plain = problem.replace(memory="static", objective="makespan")
    found = solve(plain, "heft", evaluations=1).solution
    peaks = None if found is None else _peaks(problem, found, None)
    if peaks is None or (peaks <= problem.capacity).all():
        return ""
    d = int((peaks - problem.capacity).argmax())
    return (
        "no placement was found that fits; where only weights are counted, "
        f"{_told(problem, found, peaks, d)}; {HELP}"
    )


def _peaks(problem: PlacementProblem, placement: Any, queue: str | None) -> Any:
    """Return the bytes at the peak of every device, None where the placement cannot be run."""
    from placeopt.makespan.evaluate import evaluate

    try:
        return evaluate(problem, placement, queue or None, check=False).peak_memory
    except InputError:
        return None


def _told(problem: PlacementProblem, placement: Any, peaks: Any, d: int) -> str:
    """Say what a device holds, and how much of it is too much."""
    held = int(problem.resident[np.asarray(placement.device) == d].sum())
    peak, room = int(peaks[d]), int(problem.capacity[d])
    return (
        f"{problem.device_names[d]} peaks at {bytes_text(peak)}, {bytes_text(peak - room)} over "
        f"its {bytes_text(room)} (weights {bytes_text(held)} + live tensors "
        f"{bytes_text(peak - held)})"
    )
