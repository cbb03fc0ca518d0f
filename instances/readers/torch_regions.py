"""Regions of an exported program that only set a mode: their ops are those of the graph around
them.

torch.export writes `with torch.no_grad()` as a call of a nested graph. Left as it is, the region is
one op that ties everything that reads its results together; so readers and programs both inline it,
under the names given here.
"""

from __future__ import annotations

from typing import Any


def region_of(node: Any) -> tuple[Any, tuple[Any, ...], bool] | None:
    """Return (node of the nested graph, its arguments, whether gradients pass), None if a node is
    no such region.

    A region that turns autocast on is none: inlined, it would compute in another precision.
    """
    if node.op != "call_function":
        return None
    name = getattr(node.target, "__name__", "") or str(node.target)
    if name == "wrap_with_set_grad_enabled":
        return node.args[1], tuple(node.args[2:]), bool(node.args[0])
    if name == "wrap_with_autocast" and not node.args[2]:
        return node.args[4], tuple(node.args[5:]), True
    return None


def inner_name(region: str, name: str) -> str:
    """Return the name that an op of a region has outside it."""
    return f"{region}_{name}"
