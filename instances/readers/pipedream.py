"""PipeDream profiles: measured times and sizes of the layers of a network, as text.

The notation is described in `pipedream_parser`; times are milliseconds per minibatch, sizes bytes.

References
----------
Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.instances.readers.draft import Draft, ticks
from placeopt.instances.readers.pipedream_parser import parse_pipedream
from placeopt.model.errors import InputError
from placeopt.model.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.instances.readers.pipedream_parser import PipedreamProfile
    from placeopt.model.graph import OpGraph


def read(
    path: Path,
    *,
    training: bool = False,
    data_loading: bool = True,
    tick_seconds: float = 1e-9,
    max_bytes: int,
) -> OpGraph:
    """Read a profile.

    Op i of the graph is node i + 1, with its forward time as the measured time on any device. Each
    op has one output tensor of `activation_size` bytes; `parameter_size` stays resident (and counts
    a parameter per 4 bytes).

    Parameters
    ----------
    training : add the mirrored backward graph: with V nodes, node i has the backward node 2V+1-i,
    edge
        (u, v) the edge (2V+1-v, 2V+1-u), which carries the gradient of u's output, and V feeds V+1.
        Both ops of a node share a device.
    data_loading : False sets the time of the Input nodes to 0 (in the image models it is data
    loading).
    tick_seconds : length of a tick.
    """
    profile = parse_pipedream(read_text(path, max_bytes=max_bytes), path.stem)
    last = len(profile.nodes)
    ids = [node.node_id for node in profile.nodes]
    if training and ids != list(range(1, last + 1)):
        raise InputError(
            f"training=True mirrors node i to 2V+1-i and needs the ids 1..{last}, received "
            f"{ids[:8]}"
        )
    unit = 1e-3 / tick_seconds
    draft = Draft(profile.name, tick_seconds=tick_seconds)
    for at, node in enumerate(profile.nodes):
        where = f"node{node.node_id}"
        time = ticks(node.forward, where, "forward_compute_time", unit)
        if not data_loading and node.kind.startswith("Input"):
            time = 0
        size = ticks(node.parameters, where, "parameter_size")
        draft.op(
            node.node_id,
            where,
            name=where,
            type=node.kind,
            times={"*": time},
            resident=size,
            parameters=size // 4,
            colocation=at if training else -1,
        )
    size_of = {
        x.node_id: ticks(x.activation, f"node{x.node_id}", "activation_size") for x in profile.nodes
    }
    for u, v in profile.edges:
        draft.edge(u, v, f"edge node{u} -- node{v}", tensor="activation", size=size_of[u])
    if training:
        _mirror(draft, profile, size_of, unit)
    return draft.build()


def _mirror(draft: Draft, profile: PipedreamProfile, size_of: dict[int, int], unit: float) -> None:
    """Add the backward ops, the mirrored edges and the join from the last forward to the first
    backward op.
    """
    last = len(profile.nodes)
    for node in reversed(profile.nodes):
        mirror = 2 * last + 1 - node.node_id
        where = f"node{node.node_id}"
        time = ticks(node.backward, where, "backward_compute_time", unit)
        draft.op(
            mirror,
            where,
            name=f"node{mirror}",
            type=f"{node.kind}Backward",
            times={"*": time},
            colocation=node.node_id - 1,
            backward=True,
        )
    for u, v in profile.edges:
        source, target = 2 * last + 1 - v, 2 * last + 1 - u
        draft.edge(
            source, target, f"edge node{u} -- node{v}", tensor=("gradient", u), size=size_of[u]
        )
    draft.edge(
        last, last + 1, "join of forward and backward", tensor="activation", size=size_of[last]
    )
