"""Lower bound on the period by the areas of device types (`area`).

Let x[v, g] be the share of v on devices of type g (types group identical devices). A placement
gives x in {0, 1}; the loads of the n_g devices of type g add up to at least the compute of its ops,
plus one transfer for every tensor that crosses the type's border in each direction, and one of them
reaches the average:

    min T  subject to
        sum_v compute[v, g] x[v, g] + sum_t weight[t, g] (in[t, g] + out[t, g]) <= n_g T
        x[c, g] - x[u, g] <= in[t, g]     for consumers c of u's tensor t
        x[u, g] - x[c, g] <= out[t, g]
        sum_g x[v, g] = 1

relaxes every placement. Its value is proved by rounded multipliers in integers
(`placeopt.model.exact_program`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.exact_program import IntegerProgram

if TYPE_CHECKING:
    from placeopt.period.contracted import ContractedProblem


def area(model: ContractedProblem, seconds: float) -> int:
    """Return the bound in ticks; 0 if the linear program takes longer than `seconds`."""
    program = IntegerProgram()
    scale = max(1.0, float(model.smallest_times.sum()))
    most = model.largest_load
    shares = [
        [program.variable(0, int(fits)) for fits in row] for row in model.allowed.tolist()
    ]  # x[v, g]
    period = program.variable(0, most, unit=scale, cost=1)
    for row in shares:
        program.row([(1, x) for x in row], 1, equal=True)
    for g, devices in enumerate(model.types):
        load = [(-int(ticks), shares[v][g]) for v, ticks in enumerate(model.total[:, g]) if ticks]
        load += _moves(program, model, g, [row[g] for row in shares])
        program.row([(len(devices), period), *load], 0, unit=scale)
    value = program.value(scale, seconds)
    return 0 if value is None else max(0, value)


def _moves(
    program: IntegerProgram, model: ContractedProblem, g: int, share: list[int]
) -> list[tuple[int, int]]:
    """Return the load of transfers into and out of the devices of a type, by the shares of the
    nodes that they have.
    """
    moves = {
        t: (program.variable(0, 1), program.variable(0, 1))
        for t in np.flatnonzero(model.weight[:, g]).tolist()
    }
    for t, c in zip(model.edge_tensor.tolist(), model.consumer.tolist(), strict=True):
        if t in moves:
            u, (into, out) = int(model.producer[t]), moves[t]
            program.row([(1, into), (1, share[u]), (-1, share[c])], 0)
            program.row([(1, out), (1, share[c]), (-1, share[u])], 0)
    return [(-int(model.weight[t, g]), way) for t, pair in moves.items() for way in pair]
