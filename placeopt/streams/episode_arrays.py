"""What the simulator's kernel reads and writes: job types, arrivals, a degree policy, and what
happened to each job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.arrays import Flags, Floats, Ints

LOOKS_AHEAD = (*range(1, 21), 25, 30, 37)
"""Mean gaps between arrivals at which the free servers are counted: jobs of up to 37 gaps are seen
to their end."""

PACKED_AHEAD = (*range(1, 11), 12, 14, 16, 18, 20)
"""Mean gaps at which the blocks that fit side by side are counted, too."""


def num_features(num_degrees: int) -> int:
    """Return the number of features of a cluster: free servers at each look, and packable ones for
    each larger degree.
    """
    return len(LOOKS_AHEAD) + len(PACKED_AHEAD) * (num_degrees - 1)


class JobArrays(NamedTuple):
    """Job types on a topology: M models, D degrees, S servers."""

    degrees: Ints  # (D,)
    jct: Ints  # (M, D) ticks, -1 where the job does not fit an empty cluster
    width: Ints  # (M, D) servers the job needs at least
    sequential: Ints  # (M,) ticks on one server
    size_ptr: Ints  # blocks: see topology.Blocks
    server_ptr: Ints
    server: Ints
    block_mask: NDArray[np.uint64]  # (blocks, words) servers of each block as bits
    whole: bool  # True: the job takes one block of `degree` servers ("uniform" rule)
    memory: float  # bytes of a server
    op_ptr: Ints  # (M + 1,) ops of each model in placing order
    op_splits: Ints  # (num_ops_of_all_models, D)
    op_memory: Floats  # (num_ops_of_all_models,) bytes
    parent_ptr: Ints  # (num_ops_of_all_models + 1,)
    parent: Ints  # parents as positions among the ops of the model


class StreamArrays(NamedTuple):
    """The arrivals of one stream of J jobs."""

    arrival: Ints  # (J,) ticks, ascending
    model: Ints  # (J,)
    deadline: Ints  # (J,) ticks after the arrival
    horizon: int  # ticks


class PolicyArrays(NamedTuple):
    """A degree policy; which fields count depends on `kind`."""

    kind: int
    constant: int  # index of the degree
    order: Ints  # (M, D) indices of degrees, best first, then -1
    candidates: Ints  # (M, D) rollout: every degree, those of the order first
    fragmentation: float  # weight of lost block room against one place in the order
    samples: int  # rollout: futures per decision
    depth: int  # rollout: arrivals per future
    pool_model: Ints  # rollout: (P,) sampled jobs
    pool_deadline: Ints  # (P,) ticks
    pool_gap: Ints  # (P,) ticks between arrivals
    terminal: float  # rollout: price of a server-tick of work left when a future ends
    gap: float  # value network: mean ticks between arrivals
    looks: Ints  # mean gaps at which clusters are described: LOOKS_AHEAD
    packed_looks: Ints  # PACKED_AHEAD
    explore: float  # probability of a random choice
    discount: float  # value network: of a job that completes one arrival later
    linear: Floats  # value network: (F,) weights of the features themselves
    output: Floats  # (H,) weights of the hidden units
    bias: Floats  # (H,)
    hidden: Floats  # (F, H): all units of a feature side by side


class Arrival(NamedTuple):
    """The job that has just arrived, as a policy sees it."""

    model: int
    deadline: int  # ticks after the arrival
    now: int  # ticks
    num_free: int  # servers


class Scratch(NamedTuple):
    """Work space of one episode."""

    free: Flags  # (S,)
    held: Flags  # (S,) servers of the placement that was chosen
    trial: Flags  # (S,) servers of the placement being tried
    open: NDArray[np.uint64]  # (words,) servers that will be free, as bits
    room: NDArray[np.uint64]  # (words,) those of them not yet packed
    before: NDArray[np.uint64]  # (words,) what was free at the last look
    feature: Floats  # (F,)
    unit: Floats  # (H,)
    op_servers: Ints  # (max ops, max degree)
    memory: Floats  # (S,) bytes left
    future: Ints  # (S,) when each is free again, if a choice is made


def make_scratch(jobs: JobArrays, num_servers: int, hidden: int = 0) -> Scratch:
    """Return the work space of an episode, of a policy with so many hidden units."""
    return Scratch(
        np.zeros(num_servers, np.bool_),
        np.zeros(num_servers, np.bool_),
        np.zeros(num_servers, np.bool_),
        np.zeros(jobs.block_mask.shape[1], np.uint64),
        np.zeros(jobs.block_mask.shape[1], np.uint64),
        np.zeros(jobs.block_mask.shape[1], np.uint64),
        np.zeros(num_features(len(jobs.degrees))),
        np.zeros(hidden),
        np.zeros((int(np.diff(jobs.op_ptr).max()), int(jobs.degrees[-1])), np.int64),
        np.zeros(num_servers),
        np.zeros(num_servers, np.int64),
    )


class Outcome(NamedTuple):
    """What happened to each job of a stream."""

    cause: NDArray[np.int8]  # (J,)
    degree: NDArray[np.int16]  # (J,) chosen degree, 0 where none was
    jct: Ints  # (J,) ticks, 0 for a job that did not start
    held: NDArray[np.int16]  # (J,) number of servers
    servers: Flags  # (J, S) servers held, or (0, S) if not recorded
