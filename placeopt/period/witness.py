"""The witness of a bound on the period: what devices have to run, or what flows make them pay."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.proof.supposition import Supposition
from placeopt.makespan.proof.witness import load_witness
from placeopt.model.bound import Witness
from placeopt.model.uniform_flow import MOST_SENT, flow_above, flows
from placeopt.period.bounds.congestion import least_load

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem


def period_witness(problem: PlacementProblem, bound: int, method: str, seconds: float) -> Witness:
    """Return what proves that some device has a load of at least `bound`, or than as much of it as
    can be shown: by its work, or by a flow between groups of ops that share a device.

    Parameters
    ----------
    bound, method : a bound in ticks that is known to hold, and what found it.
    seconds : time for flows.
    """
    known = load_witness(problem, bound, method)
    state = Supposition(problem, bound, edges=False)
    first = np.array([members[0] for members in state.group])
    ticks, weights = np.zeros(problem.num_ops, np.int64), dict[tuple[int, ...], int]()
    for members in {id(x): x for x in state.group}.values():
        rows = zip(*(state.time[v] for v in members), strict=True)
        ticks[members[0]] = min((sum(row) for row in rows if None not in row), default=0)
    pays = problem.transfer[:, np.maximum(problem.io_class, 0)] * (problem.io_class >= 0)
    for t, u in enumerate(problem.producer.tolist()):
        pins = tuple(sorted(set(first[[u, *problem.readers_of(t)]].tolist())))
        weights[pins] = weights.get(pins, 0) + int(pays[t].min())
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
