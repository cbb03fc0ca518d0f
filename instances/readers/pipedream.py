"""PipeDream profiles: measured times and sizes of the layers of a network, as text.

The notation is described below; times are milliseconds per minibatch, sizes bytes.

References
----------
Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019.

The text format of PipeDream profiles, parsed into plain records.

Node lines: ``nodeK -- Desc(args) -- forward_compute_time=F, backward_compute_time=B,
activation_size=A, parameter_size=P[ -- stage_id=n]``; edge lines begin with a tab: ``nodeU --
nodeV``. Times are milliseconds per minibatch, sizes bytes; A may be a list ``[a; b; c]``, which is
summed. Ids are 1..V in any order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from placeopt.instances.readers.draft import Draft, number, ticks, whole
from placeopt.model.errors import InputError
from placeopt.model.files import read_text
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
    if training:
        _check_ids([node.node_id for node in profile.nodes])
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


def _check_ids(ids: list[int]) -> None:
    """Refuse ids with gaps, which cannot be mirrored."""
    last = len(ids)
    if ids != list(range(1, last + 1)):
        raise InputError(
            f"training=True mirrors node i to 2V+1-i and needs the ids 1..{last}, received "
            f"{ids[:8]}"
        )


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


_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_ID = re.compile(r"node([0-9]{1,18})$")


@dataclass(frozen=True)
class PipedreamNode:
    """One op of a profile.

    Attributes
    ----------
    description : the layer as printed, such as ``Conv2d(64, 128, kernel_size=(3, 3))``.
    forward, backward : milliseconds per minibatch.
    activation, parameters : bytes.
    """

    node_id: int
    description: str
    forward: float  # milliseconds
    backward: float  # milliseconds
    activation: float  # bytes
    parameters: float  # bytes

    @property
    def kind(self) -> str:
        """The layer's type: the description up to the first bracket."""
        return self.description.split("(", 1)[0].strip()


@dataclass(frozen=True)
class PipedreamProfile:
    """A parsed profile: nodes by ascending id, edges as pairs of ids in file order.

    `file_order` lists the ids as the node lines come: splitting ops in that order is what a
    published simulator does, and its results depend on it.
    """

    name: str
    nodes: tuple[PipedreamNode, ...]
    edges: tuple[tuple[int, int], ...]
    file_order: tuple[int, ...]


def parse_pipedream(text: str, name: str) -> PipedreamProfile:
    """Parse the text of a PipeDream profile.

    Parameters
    ----------
    text : contents of the file.
    name : used in messages and as the name of the profile.

    Raises
    ------
    InputError
        With the line number, if a line is not understood, a number is negative or not finite, an id
        occurs twice, an edge names an unknown node, or an edge is repeated.
    """
    nodes: dict[int, PipedreamNode] = {}
    edges: list[tuple[int, int, int]] = []
    for at, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {at}"
        if line[0] in "\t ":
            edges.append((*_edge(line, where), at))
        else:
            node = _node(line, where)
            if node.node_id in nodes:
                raise InputError(
                    f"{where}: node{node.node_id} occurs twice; node ids must be distinct"
                )
            nodes[node.node_id] = node
    if not nodes:
        raise InputError(
            f"{name}: expected lines like 'node1 -- Input0 -- forward_compute_time=...', found none"
        )
    _check_edges(name, nodes, edges)
    ordered = tuple(nodes[key] for key in sorted(nodes))
    return PipedreamProfile(
        name, ordered, tuple((source, target) for source, target, _ in edges), tuple(nodes)
    )


def _check_edges(
    name: str, nodes: dict[int, PipedreamNode], edges: list[tuple[int, int, int]]
) -> None:
    """Refuse edges (source, target, line) of unknown nodes, and those that are there twice."""
    seen: set[tuple[int, int]] = set()
    for source, target, at in edges:
        for node_id in (source, target):
            if node_id not in nodes:
                raise InputError(
                    f"{name}, line {at}: edge names node{node_id}, which has no node line"
                )
        if (source, target) in seen:
            raise InputError(f"{name}, line {at}: edge node{source} -- node{target} occurs twice")
        seen.add((source, target))


def read_pipedream(path: str | Path) -> PipedreamProfile:
    """Read and parse a profile file; the profile is named after the file.

    Raises
    ------
    InputError
        If the file cannot be read or parsed.
    """
    return parse_pipedream(read_text(path, what="profile"), Path(path).stem)


def _node(line: str, where: str) -> PipedreamNode:
    parts = line.strip().split(" -- ")
    match = _ID.match(parts[0].strip())
    if match is None or len(parts) not in (3, 4):
        raise InputError(
            f"{where}: expected 'nodeK -- description -- forward_compute_time=..., ...', received "
            f"'{line.strip()[:60]}'"
        )
    values: dict[str, float] = {}
    for item in parts[2].split(", "):
        name, _, value = item.partition("=")
        key = name.strip()
        if key in values:
            raise InputError(f"{where}: {key} is there twice; keep one")
        values[key] = _sum(value, where, key)
    for key in _FIELDS:
        if key not in values:
            raise InputError(f"{where}: {key} is missing; a node line has {', '.join(_FIELDS)}")
    if len(parts) == 4:  # the stage that PipeDream's optimiser assigned
        key, _, value = parts[3].partition("=")
        if key.strip() != "stage_id":
            raise InputError(f"{where}: expected 'stage_id=n', received '{parts[3].strip()}'")
        whole(value, where, "stage_id")
    return PipedreamNode(int(match[1]), parts[1].strip(), *(values[key] for key in _FIELDS))


def _sum(text: str, where: str, what: str) -> float:
    """Return a number, or the sum of a bracketed list of numbers like [1.0; 2.0]."""
    text = text.strip()
    items = text[1:-1].split(";") if text.startswith("[") and text.endswith("]") else [text]
    total = sum(number(item, where, what) for item in items if item.strip())
    return number(total, where, what)


def _edge(line: str, where: str) -> tuple[int, int]:
    ends = [_ID.match(part.strip()) for part in line.strip().split(" -- ")]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        raise InputError(
            f"{where}: expected an edge 'nodeU -- nodeV', received '{line.strip()[:60]}'"
        )
    return int(ends[0][1]), int(ends[1][1])
