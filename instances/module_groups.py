"""Granularity: ops of one module stay together, so that a placement can be told as a device of
every module.

    graph = group_ops(graph, "block")

Groups are colocation ids: the graph keeps its ops, every solver keeps the groups, and the value of
a placement is that of the ungrouped graph. The path of an op's module (`OpGraph.layer`) decides:

layer   ops of one module: its own ops, not those of the modules inside it
block   ops of one element of a list of modules ("h/3" with all that is inside), else of one module
        without modules inside. An op that belongs to a module around these (the sum of two
        embeddings, a skip connection) joins what it reads, since a framework that places whole
        modules runs it there
N       at most N groups: blocks, merged along heavy edges
none    as the graph is
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placeopt.instances.quotient import components, layer_paths
from placeopt.model.arrays import Ints, as_pairs, positions, true_places
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.problem import PlacementProblem

WORDS = ("none", "layer", "block")

_NUMBERED = re.compile(r"(^|[._])\d+$")
"""Last characters of the name of a list's element: "3" in torch, "layers.3" in ONNX files that
torch wrote."""


def group_ops(graph: OpGraph, group: str | int | None) -> OpGraph:
    """Return the graph with its groups as colocation ids; ids that are there already are kept
    together.

    Parameters
    ----------
    group : "none", "layer", "block" or the largest number of groups.

    Raises
    ------
    InputError
        If the word is unknown, or the ops' modules are.
    """
    count = parse_group(group)
    if group in (None, "none"):
        return graph
    if count is None:
        return colocated(graph, _pairs(graph, str(group)))
    from placeopt.instances.coarsen import group_labels

    whole = colocated(graph, _pairs(graph, "block")) if any(layer_paths(graph)) else graph
    return _labelled(graph, group_labels(whole, count))


def parse_group(group: str | int | None) -> int | None:
    """Return the number of groups that was asked for, None for a word.

    Raises
    ------
    InputError
        If it is neither a word that is known nor a number of at least 1.
    """
    if group is None or group in WORDS:
        return None
    try:
        count = int(group)
    except ValueError:
        count = 0
    if count < 1 or isinstance(group, float | bool):
        raise InputError(
            f"group: expected {', '.join(WORDS)} or a whole number >= 1, received '{group}'"
        )
    return count


def _pairs(graph: OpGraph, word: str) -> list[tuple[int, int]]:
    """Return pairs of ops that have to share a device."""
    paths = layer_paths(graph)
    if not any(paths):
        raise InputError(
            f"group '{word}': graph '{graph.name}' does not tell the modules of its ops; "
            "use a number of groups instead"
        )
    label = list(paths) if word == "layer" else [block_of(path) for path in paths]
    around = _prefixes(label) if word == "block" else {""}
    # the passes of a module share its weights
    pairs = list(enumerate(families(graph).tolist()))
    first: dict[str, int] = {}
    loose = set()
    for op, path in enumerate(label):
        if path in around:
            loose.add(op)
        else:
            pairs.append((first.setdefault(path, op), op))
    if word == "block":
        pairs += [(u, v) for u, v in graph.edges.tolist() if v in loose and not graph.backward[v]]
    return pairs


def _prefixes(paths: Sequence[str]) -> set[str]:
    """Return the modules that other modules of the paths lie in."""
    return {
        "/".join(path.split("/")[:depth])
        for path in set(paths)
        for depth in range(path.count("/") + 1)
    }


def block_of(path: str) -> str:
    """Return the path up to the first element of a list of modules: "encoder/layer/3" of
    "encoder/layer/3/attn/query".
    """
    parts = path.split("/")
    for depth, part in enumerate(parts, start=1):
        if _NUMBERED.search(part):
            return "/".join(parts[:depth])
    return path


def families(graph: OpGraph | PlacementProblem) -> Ints:
    """Forward op that each op belongs to: itself, or the op whose gradient or update it is; shape
    (num_ops,).
    """
    index = positions(graph.op_names)
    family = np.arange(graph.num_ops)
    for i in true_places(graph.backward):
        family[i] = index.get(graph.op_names[i].rpartition("/")[0], i)
    return family


def colocated(graph: OpGraph, pairs: list[tuple[int, int]]) -> OpGraph:
    """Return the graph whose ops share a device where pairs, or ids that are there already, say
    so.
    """
    first: dict[int, int] = {}
    tied = [
        (first.setdefault(g, op), op) for op, g in enumerate(graph.colocation.tolist()) if g >= 0
    ]
    source, target = as_pairs([*pairs, *tied]).T
    return _labelled(graph, components(source, target, graph.num_ops))


def _labelled(graph: OpGraph, label: Ints) -> OpGraph:
    """Return the graph with labels as colocation ids; an op with a label of its own has none."""
    return replace(graph, colocation=np.where(np.bincount(label)[label] > 1, label, -1))
