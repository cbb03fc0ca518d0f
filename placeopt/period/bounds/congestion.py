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

import time
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from math import ceil

import numpy as np

from placeopt.model.bound import Witness
from placeopt.model.problem import PlacementProblem
from placeopt.model.uniform_flow import MOST_SENT, Flow, best_of_flows, flow_above, flows
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


def period_witness(problem: PlacementProblem, bound: int, method: str, seconds: float) -> Witness:
    """Return what proves that some device has a load of at least `bound`, or than as much of it as
    can be shown: by its work, or by a flow between groups of ops that share a device.

    Parameters
    ----------
    bound, method : a bound in ticks that is known to hold, and what found it.
    seconds : time for flows.
    """
    from placeopt.makespan.proof.supposition import Supposition
    from placeopt.makespan.proof.witness import load_witness

    known = load_witness(problem, bound, method)
    state = Supposition(problem, bound, edges=False)
    first = np.array([members[0] for members in state.group])
    ticks, weights = np.zeros(problem.num_ops, np.int64), dict[tuple[int, ...], int]()
    for members in {id(x): x for x in state.group}.values():
        rows = zip(*(state.time[v] for v in members), strict=True)
        ticks[members[0]] = min((sum(row) for row in rows if None not in row), default=0)
    for t, u in enumerate(problem.producer.tolist()):
        pins = tuple(sorted(set(first[[u, *problem.readers_of(t)]].tolist())))
        weights[pins] = weights.get(pins, 0) + int(problem.io_ticks[t].min())
    if known.bound == bound or np.count_nonzero(ticks) * sum(map(len, weights)) > MOST_SENT:
        return known
    found = flows(ticks, list(weights), np.array(list(weights.values())), kept=True)
    least, end = partial(least_load, problem.num_devices), time.perf_counter() + seconds
    best, flow = flow_above(found, least, bound, end, gain=0.0)
    if flow is None or best <= known.bound:
        return known
    steps = [["leaving", *flow.words(problem.num_ops, weights)]]
    name = method if best >= bound else "congestion"
    return Witness(min(best, bound), name, {"steps": steps, "unit": problem.common_unit})
