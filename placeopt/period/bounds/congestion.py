"""Congestion: a flow between all nodes has to leave every device, through tensors that it pays for.

Proof. Let node u have q_u units, Q in all, and k be the number of devices. In each of R rounds
every u sends q_u q_v units to every v, along nodes of which each shares a tensor with the next
(`placeopt.model.uniform_flow`). Let w_t be the least that a device pays for tensor t if some of the
nodes that touch it are there and some are not, and C be no less than the units through t in all
rounds divided by w_t, for every t. Now let a device have x units. Between its nodes and the others
pass 2 R x (Q - x) units, each through a tensor that touches both, so these tensors cost the device
at least 2 R x (Q - x) / C. As node u takes at least q_u / s ticks wherever it runs, the load is at
least

    h(x) = x / s + 2 R x (Q - x) / C.

Some device has x >= Q / k, and h is concave: on [Q / k, Q] it is no less than at one of the ends.
So the period is at least min(h(Q / k), Q / s). What is left out of the part of the graph with the
most work only lowers the period.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.uniform_flow import best_of_flows, flows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.uniform_flow import Flow
    from placeopt.period.contracted import ContractedProblem


def congestion_bounds(model: ContractedProblem) -> Iterator[int]:
    """Yield the best bound after every round, until they gain nothing; nothing where no flow proves
    any.
    """
    weight = model.weight.min(axis=1, initial=np.iinfo(np.int64).max)
    pins = [(v, *model.readers(t)) for t, v in enumerate(model.producer.tolist())]

    least = partial(least_load, model.problem.num_devices)
    return best_of_flows(flows(model.smallest_times, pins, weight), least)


def least_load(num_devices: int, flow: Flow) -> int:
    """Return the least load of some device that a flow proves."""
    q = flow.units
    x = Fraction(q, num_devices)
    load = x * flow.per_unit + 2 * flow.rounds * x * (q - x) / flow.most
    return ceil(min(load, q * flow.per_unit))


def round_seconds(model: ContractedProblem, *, each: float = 4e-7) -> float:
    """Return about how long a round takes; `each` is for a path of a pair of nodes, or of a node
    and a tensor: 2e-7 to 4e-7 on twelve graphs that were measured.
    """
    return each * model.num_nodes * (model.num_nodes + len(model.producer))
