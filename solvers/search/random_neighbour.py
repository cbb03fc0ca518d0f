"""A compiled step of walks and populations to an op nearby."""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from placeopt.model.compiled import uncounted
from placeopt.model.random_bits import below


@uncounted
def random_neighbour(g, s, op):
    """Return a random op that shares a tensor with `op`, -1 if there is none."""
    ins, outs = g.predecessors, g.successors
    first, count = ins.pointer[op], ins.pointer[op + 1] - ins.pointer[op]
    total = count + outs.pointer[op + 1] - outs.pointer[op]
    if total == 0:
        return -1
    pick = below(s, total)
    return ins.op[first + pick] if pick < count else outs.op[outs.pointer[op] + pick - count]
