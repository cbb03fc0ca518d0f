"""The arrays of placing steps: what a policy says on a graph, and the memory of a walk of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.solvers.search.walk_state import WalkGraph

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

NEVER = 2**63 - 1
"""A time that never comes; the value of a walk that has none yet."""


class StepPolicy(NamedTuple):
    """A policy of placing steps on one graph (n ops, k devices)."""

    place: Floats  # (Place,) weight of each feature of a device, per tick where the feature is a time
    move: Floats  # (Place,) the same where another device is drawn
    pick: Floats  # (Pick,) weight of each feature of an op
    kind: Floats  # (Kind,) scores of the kinds of steps at the beginning
    kind_late: Floats  # (Kind,) what is added to them towards the end
    reach: Floats  # (Kind,) mean logarithm of sizes and distances
    cluster: Ints  # (n,) ops joined along their most expensive edges
    cluster_work: Floats  # (clusters,) mean ticks
    work: Floats  # (n,) mean ticks
    least: Ints  # (n,) ticks on the fastest device
    share: float  # mean ticks of a device's share of the work


class Leg(NamedTuple):
    """How far and how warm to go: the walk ends with the first of its limits."""

    steps: int
    work: int  # units of work, about 10 ns each: see `placing_steps.decode`
    hot: float  # first temperature of accepting worse steps, as a share of the value
    cold: float  # last one
    part: tuple[float, float]  # of the whole walk: how far it is at the beginning and at the end of this leg
    rate: float  # step of the preferences for kinds, learned on the way; 0: none
    price: float  # gain that a unit of work has to earn, in training; negative: no slopes are added up


class StepState(NamedTuple):
    """Where a walk is, the step that is tried, and what the policy sees."""

    random: NDArray[np.uint64]  # (1,)
    sequence: Ints  # (n,) ops in the order in which they are scheduled, topological
    position: Ints  # (n,)
    home: Ints  # (units,) device of each unit; -1 while the policy has to place it
    used: Ints  # (k,) bytes
    load: Ints  # (k,) ticks of the ops there
    device: Ints  # (n,) of the incumbent
    start: Ints  # (n,)
    finish: Ints  # (n,)
    tail: Ints  # (n,) longest path from the start of the op to the end
    held: Ints  # (k,) ops on each device
    table: Ints  # (k, n) ops of each device by start
    before: Ints  # (n,) op that runs before on the same device, -1 for none
    best_device: Ints  # (n,)
    best_start: Ints  # (n,)
    best_finish: Ints  # (n,)
    best_sequence: Ints  # (n,)
    value: Ints  # (2,) current, best
    # the step that is tried
    unit_list: Ints  # (units,) units that change
    role: Ints  # (units,) KEPT, FREE or TOGETHER
    moved: Ints  # (4,) CHANGED, FIRST, LAST, LEADER: see `placing_steps`
    members: Ints  # (n,) ops of a growing window
    new_start: Ints  # (n,)
    new_finish: Ints  # (n,)
    new_tail: Ints  # (n,)
    new_held: Ints  # (k,)
    new_table: Ints  # (k, n)
    # what the policy sees
    siblings: Floats  # (k,) ticks between an op and the other producers of its consumers, by their device
    consumers: Floats  # (k,) ticks between an op and its consumers, by their device
    cluster_on: Floats  # (clusters, k) work of each cluster on each device
    critical: NDArray[np.bool_]  # (n,) whether an op is on a chain that ends last
    binding: Ints  # (n,) producer whose tensor arrives last, -1 for none
    features: Floats  # (n, Pick)
    mean: Floats  # (Pick,) of the features, over the ops as they are drawn
    option: Floats  # (k, Place) features of each device for the op at hand
    option_score: Floats  # (k,)
    cumulated: Floats  # (n,) sum of the ops' masses up to each
    chance: Floats  # (Kind,) cumulated probabilities
    preference: Floats  # (Kind + 1,) learned on the way; the last one is the mean reward
    tally: Ints  # (Kind, 3) steps tried, accepted, that improved the best
    spent: Ints  # (2,) steps, units of work
    # what is learned from
    tried: Floats  # (3,) op, size's logarithm over its mean, device drawn or -1
    drawn: Floats  # (k, Place) features of the devices that one was drawn from
    drawn_score: Floats  # (k,)
    gained: Floats  # (1,) sum of gains
    slope_pick: Floats  # (Pick,) sums of advantage times score function
    slope_kind: Floats  # (2, Kind) at the beginning, towards the end
    slope_reach: Floats  # (Kind,) for the logarithm of the reach
    slope_move: Floats  # (Place,)


def new_step_state(graph: WalkGraph, clusters: int, sizes: tuple[int, int, int]) -> StepState:
    """Allocate the memory of a walk; `sizes` are the numbers of features of devices and ops, and of kinds of steps."""
    n, k = graph.compute.shape
    places, picks, kinds = sizes
    u = len(graph.units.bytes)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return StepState(
        random=np.zeros(1, np.uint64), sequence=ints(n), position=ints(n), home=ints(u), used=ints(k), load=ints(k),
        device=ints(n), start=ints(n), finish=ints(n), tail=ints(n), held=ints(k), table=ints(k, n), before=ints(n),
        best_device=ints(n), best_start=ints(n), best_finish=ints(n), best_sequence=ints(n), value=np.full(2, NEVER),
        unit_list=ints(u), role=ints(u), moved=ints(4), members=ints(n), new_start=ints(n), new_finish=ints(n),
        new_tail=ints(n), new_held=ints(k), new_table=ints(k, n), siblings=np.zeros(k), consumers=np.zeros(k),
        cluster_on=np.zeros((clusters, k)), critical=np.zeros(n, np.bool_), binding=ints(n), features=np.zeros((n, picks)),
        mean=np.zeros(picks), option=np.zeros((k, places)), option_score=np.zeros(k), cumulated=np.zeros(n),
        chance=np.zeros(kinds), preference=np.zeros(kinds + 1), tally=ints(kinds, 3), spent=ints(2), tried=np.zeros(3),
        drawn=np.zeros((k, places)), drawn_score=np.zeros(k), gained=np.zeros(1), slope_pick=np.zeros(picks),
        slope_kind=np.zeros((2, kinds)), slope_reach=np.zeros(kinds), slope_move=np.zeros(places),
    )  # fmt: skip
