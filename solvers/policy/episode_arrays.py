"""The arrays of an episode of a dual policy: the problem, the weights, what comes back, and what is
kept on the way.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Bits, Flags, Floats, Ints, SmallInts
from placeopt.model.projection import Edges

# The features are compiled into the kernels of `select_and_place`, whose cache does not notice a
# change here: save that
# file too.


class Sel(IntEnum):
    """Features of a ready op."""

    B_LEVEL = 0
    T_LEVEL = 1
    COMPUTE = 2
    INCOMING = 3
    OUTGOING = 4
    OUT_DEGREE = 5
    READY_TIME = 6


class Plc(IntEnum):
    """Features of a device for the op at hand."""

    EARLIEST_START = 0
    EARLIEST_FINISH = 1
    DEVICE_FREE = 2
    COMMUNICATION = 3
    PREDECESSOR_COMPUTE = 4
    PREDECESSOR_START = 5
    PREDECESSOR_END = 6
    LOAD = 7
    MEMORY_LEFT = 8
    LINK_LOAD = 9
    SIBLING_PULL = 10  # communication with other producers of its consumers that are placed there
    CLUSTER = 11  # work of the op's cluster that is placed there


class Graph(NamedTuple):
    """What an episode needs of a problem, ops in topological order; times are float64 ticks, exact
    below 2^53.
    """

    compute: Floats  # (n, k), negative where incompatible
    transfer: Floats  # (m, c)
    link_class: Ints  # (k, k)
    predecessors: Edges
    successors: Edges
    weight: Floats  # (m,) mean transfer ticks of each tensor
    sel_static: Floats  # (n, SEL features) READY_TIME is filled in when an op becomes ready
    horizon: float  # scale of ready times
    unit: Ints  # (n,) ops of one unit share a device
    unit_allowed: Flags  # (units, k)
    unit_bytes: Floats  # (units,)
    capacity: Floats  # (k,)
    cluster: Ints  # (n,) ops joined along their most expensive edges
    work: Floats  # (n,) mean ticks of each op
    num_clusters: int


class Weights(NamedTuple):
    """Parameters of a dual policy: linear in the features, plus a hidden layer, plus what is
    learned for one graph.

    A score is w . f + out . max(0, inside f + context of the op) + residual.
    """

    sel: Floats  # (SEL features,)
    sel_inside: Floats  # (SEL features, hidden); hidden is 0 without a network
    sel_context: Floats  # (n, hidden)
    sel_out: Floats  # (hidden,)
    sel_residual: Floats  # (n,) or (0,) without
    plc: Floats  # (PLC features,)
    plc_inside: Floats  # (PLC features, hidden)
    plc_context: Floats  # (n, hidden)
    plc_out: Floats  # (hidden,)
    plc_residual: Floats  # (n, k) or (0, k) without
    temperature: float
    sel_random: bool  # whether SEL is sampled; otherwise it takes the best op (ablation: PLC only)
    plc_random: bool  # whether PLC is sampled (ablation: SEL only)


class Gradient(NamedTuple):
    """Sum over decisions of credit times d log-probability / d parameter, field by field as in
    `Weights`.
    """

    sel: Floats
    sel_inside: Floats
    sel_context: Floats
    sel_out: Floats
    sel_residual: Floats
    plc: Floats
    plc_inside: Floats
    plc_context: Floats
    plc_out: Floats
    plc_residual: Floats


class Rows(NamedTuple):
    """What a batch of episodes fills in, one row each; replays read devices, ranks and credits."""

    device: SmallInts  # (batch, n)
    rank: Ints  # (batch, n)
    credit: Floats  # (batch,)
    log_probability: Floats  # (batch,)
    entropy: Floats  # (batch,) summed over decisions


class State(NamedTuple):
    """What an episode keeps while it runs: the memory of one thread."""

    order: Ints  # (n,) replays: ops by rank; otherwise the ops as they are placed
    waiting: Ints  # (n,) inputs that are not placed yet
    ready: Ints  # (n + 1,) ready ops of the window, then the next op outside
    features: Floats  # (n, SEL features)
    score: Floats  # (n,)
    mass: Floats  # (n,) exp of the score minus the reference
    reference: Floats  # (1,)
    sel_hidden: Floats  # (n, hidden) of every op that is ready, before the rectifier
    pull_on_score: Floats  # (n,) credit times d log-probability / d score
    start: Floats  # (n,)
    finish: Floats  # (n,)
    free_at: Floats  # (k,)
    load: Floats  # (k,)
    room: Floats  # (k,)
    link: Floats  # (k,) ticks of transfers to each device
    unit_home: Ints  # (units,)
    pull: Floats  # (n, k) communication of placed producers that an op will read on each device
    cluster_on: Floats  # (clusters, k) work of each cluster that is placed on each device
    candidate: Flags  # (k,) where the op at hand may go
    plc: Floats  # (k, PLC features)
    plc_hidden: Floats  # (k, hidden) of each device, before the rectifier
    mass_on: Floats  # (k,) of each device
    random: Bits  # (1,)


def new_state(graph: Graph, weights: Weights) -> State:
    """Return the memory that episodes on a graph need."""
    n, k = graph.compute.shape
    return State(
        order=np.empty(n, np.int64),
        waiting=np.empty(n, np.int64),
        ready=np.empty(n + 1, np.int64),
        features=np.empty((n, len(Sel))),
        score=np.empty(n),
        mass=np.empty(n),
        reference=np.empty(1),
        sel_hidden=np.empty((n, len(weights.sel_out))),
        pull_on_score=np.empty(n),
        start=np.empty(n),
        finish=np.empty(n),
        free_at=np.empty(k),
        load=np.empty(k),
        room=np.empty(k),
        link=np.empty(k),
        unit_home=np.empty(graph.unit_bytes.shape[0], np.int64),
        pull=np.empty((n, k)),
        cluster_on=np.empty((graph.num_clusters, k)),
        candidate=np.empty(k, np.bool_),
        plc=np.empty((k, len(Plc))),
        plc_hidden=np.empty((k, len(weights.plc_out))),
        mass_on=np.empty(k),
        random=np.empty(1, np.uint64),
    )


def zero_gradient(weights: Weights) -> Gradient:
    """Return a gradient of zeros in the shapes of some weights."""
    return Gradient(*(np.zeros(getattr(weights, name).shape) for name in Gradient._fields))
