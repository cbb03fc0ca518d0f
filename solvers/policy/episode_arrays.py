"""The arrays of an episode of a dual policy: the problem, the weights, what comes back, and what is kept on the way."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placeopt.model.projection import Edges

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


# The features are compiled into the kernels of `select_and_place`, whose cache does not notice a change here: save that
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
    SIBLING_PULL = 10


class Graph(NamedTuple):
    """What an episode needs of a problem, ops in topological order; times are float64 ticks, exact below 2^53."""

    compute: Floats  # (n, k), negative where incompatible
    transfer: Floats  # (m, c)
    link_class: Ints  # (k, k)
    predecessors: Edges
    successors: Edges
    weight: Floats  # (m,) mean transfer ticks of each tensor
    sel_static: Floats  # (n, SEL features); READY_TIME is filled in when an op becomes ready
    horizon: float  # scale of ready times
    unit: Ints  # (n,) ops of one unit share a device
    unit_allowed: NDArray[np.bool_]  # (units, k)
    unit_bytes: Floats  # (units,)
    capacity: Floats  # (k,)


class Weights(NamedTuple):
    """Parameters of a dual policy."""

    sel: Floats  # (SEL features,)
    plc: Floats  # (PLC features,)
    sel_residual: Floats  # (n,) or (0,) without
    plc_residual: Floats  # (n, k) or (0, k) without
    temperature: float
    sel_random: bool  # whether SEL is sampled; otherwise it takes the best op (ablation: PLC only)
    plc_random: bool  # whether PLC is sampled (ablation: SEL only)
    sel_scaled: bool  # whether SEL's features are scaled over the ready ops


class Record(NamedTuple):
    """What an episode fills in; with one more axis before the others, what a batch of them does.

    Gradients are of the log-probability; those of residuals have length 0 where the policy has no residual.
    """

    device: NDArray[np.int32]  # (n,) read in replays
    rank: Ints  # (n,) read in replays
    sel: Floats  # (SEL features,)
    plc: Floats  # (PLC features,)
    sel_residual: Floats  # (n,) or (0,)
    plc_residual: Floats  # (n, k) or (0, k)
    log_probability: Floats  # (1,)
    entropy: Floats  # (1,) summed over decisions


class State(NamedTuple):
    """What an episode keeps while it runs: the memory of one thread."""

    waiting: Ints  # (n,) inputs that are not placed yet
    ready: Ints  # (n,) ready ops
    features: Floats  # (n, SEL features)
    scaled: Floats  # (n, SEL features) the same over the ready ops
    score: Floats  # (n,)
    mass: Floats  # (n,) exp of the score minus the reference
    reference: Floats  # (1,)
    start: Floats  # (n,)
    finish: Floats  # (n,)
    free_at: Floats  # (k,)
    load: Floats  # (k,)
    room: Floats  # (k,)
    link: Floats  # (k,) ticks of transfers to each device
    unit_home: Ints  # (units,)
    pull: Floats  # (n, k) communication of placed producers that an op will read on each device
    candidate: NDArray[np.bool_]  # (k,) where the op at hand may go
    plc: Floats  # (k, PLC features)
    mass_on: Floats  # (k,) of each device
    tied: NDArray[np.bool_]  # (max(n, k),)
    random: NDArray[np.uint64]  # (1,)


def new_state(graph: Graph, num_plc: int) -> State:
    """Return the memory that episodes on a graph need; `num_plc` features are kept per device."""
    (n, k), num_sel = graph.compute.shape, graph.sel_static.shape[1]
    return State(
        waiting=np.empty(n, np.int64),
        ready=np.empty(n, np.int64),
        features=np.empty((n, num_sel)),
        scaled=np.empty((n, num_sel)),
        score=np.empty(n),
        mass=np.empty(n),
        reference=np.empty(1),
        start=np.empty(n),
        finish=np.empty(n),
        free_at=np.empty(k),
        load=np.empty(k),
        room=np.empty(k),
        link=np.empty(k),
        unit_home=np.empty(graph.unit_bytes.shape[0], np.int64),
        pull=np.empty((n, k)),
        candidate=np.empty(k, np.bool_),
        plc=np.empty((k, num_plc)),
        mass_on=np.empty(k),
        tied=np.empty(max(n, k), np.bool_),
        random=np.empty(1, np.uint64),
    )
