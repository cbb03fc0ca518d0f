"""The sets of nodes that one device may hold, as paths through a small graph (a dynamic program
over a frontier).

Which nodes a device holds is decided node by node, in an order in which few tensors are open at any
time: tensors with some pins (producer and consumers) decided and others not. A device pays a
tensor's ticks once where it holds some of its pins but not all: as the producer it sends the
tensor, else it receives it. So all that the rest of the decisions has to know of those made is, for
every open tensor, whether none, all or some but not all of its decided pins are held; in the last
case it is paid already. These are the states; two arcs lead from each, one for leaving the next
node out and one for taking it. Every set of nodes is one path from the first state to the last, and
its load is the length of the path. Graphs of neural networks are long and thin: their frontier has
few open tensors and few states.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.arrays import Ints
    from placeopt.period.contracted import ContractedProblem

_SOME = 2  # pins of a tensor that are held: none of those decided (0), all (1), or some but not all


class FrontierGraph(NamedTuple):
    """States and arcs of the sets of one device type (N nodes, S states)."""

    order: Ints  # (N,) node that each layer decides
    layer: Ints  # (N + 2,) first state of every layer, and S
    target: Ints  # (2, S - 1) state reached without and with the node
    ticks: NDArray[
        np.int64
    ]  # (2, S - 1) length of the arcs: transfers that begin to be paid, and the node's compute
    arc_ptr: Ints  # (S + 1,) arcs into a state
    arc: Ints  # (2 S - 2,) 2 source + (1 with the node, else 0)


class _Tensor(NamedTuple):
    pins: list[int]
    ticks: int


def frontier_graph(model: ContractedProblem, g: int, deadline: float) -> FrontierGraph | None:
    """Return the graph of the sets of device type `g`; None if it has too many states, or at the
    deadline.
    """
    tensors = _paid_tensors(model, g)
    order = _thin_order(model.num_nodes, [tensor.pins for tensor in tensors], deadline)
    return None if order is None else _states(model.total[:, g].tolist(), tensors, order, deadline)


def _paid_tensors(model: ContractedProblem, g: int) -> list[_Tensor]:
    tensors = []
    for t in np.flatnonzero(model.weight[:, g]).tolist():
        consumers = model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]].tolist()
        tensors.append(
            _Tensor(sorted({int(model.producer[t]), *consumers}), int(model.weight[t, g]))
        )
    return tensors


def _touching(num_nodes: int, pins: list[list[int]]) -> list[list[int]]:
    touching: list[list[int]] = [[] for _ in range(num_nodes)]
    for t, nodes in enumerate(pins):
        for v in nodes:
            touching[v].append(t)
    return touching


def _thin_order(
    num_nodes: int, pins: list[list[int]], deadline: float, *, orders: int = 24
) -> list[int] | None:
    """Return the best of some greedy orders of the nodes, by 2^(open tensors) added up; None if
    none is ready in time.

    Parameters
    ----------
    orders : that are made at most, each from another node, those with few tensors first.
    """
    touching = _touching(num_nodes, pins)
    starts = sorted(range(num_nodes), key=lambda v: (len(touching[v]), v))[:orders]
    best: tuple[int, list[int]] | None = None
    for start in starts:
        found = _greedy_order(start, touching, pins, deadline)
        if found is None:
            break
        if best is None or found[0] < best[0]:
            best = found
    return None if best is None else best[1]


def _greedy_order(
    start: int, touching: list[list[int]], pins: list[list[int]], deadline: float
) -> tuple[int, list[int]] | None:
    """Return (cost, order) of the order that opens least and closes most at every step, oldest
    tensors first; None if late.
    """
    left = list(map(len, pins))
    opened: dict[int, int] = {}  # tensor -> when it was opened
    order: list[int] = []
    waiting, cost = {start}, 0
    outside = set(range(len(touching)))

    def score(v: int) -> tuple[int, int, int, int]:
        closing = sum(left[t] == 1 for t in touching[v])
        opening = sum(t not in opened for t in touching[v])
        return (
            opening - closing,
            -closing,
            min((opened.get(t, len(touching)) for t in touching[v]), default=0),
            v,
        )

    while outside:
        if time.perf_counter() >= deadline:
            return None
        v = (
            min(waiting, key=score)
            if waiting
            else min(outside, key=lambda u: (len(touching[u]), u))
        )
        waiting.discard(v)
        outside.discard(v)
        for t in touching[v]:
            opened.setdefault(t, len(order))
            left[t] -= 1
            if left[t] == 0:
                del opened[t]
            waiting.update(u for u in pins[t] if u in outside)
        order.append(v)
        cost += 1 << len(opened)
    return cost, order


def _states(
    compute: list[int],
    tensors: list[_Tensor],
    order: list[int],
    deadline: float,
    *,
    most_states: int = 100_000,
    most_width: int = 4096,
) -> FrontierGraph | None:
    """Return the graph along an order; None if it has more states than so many, in all or in a
    layer, or it is late.
    """
    pins = [tensor.pins for tensor in tensors]
    touching, left = _touching(len(order), pins), list(map(len, pins))
    opened: list[int] = []
    states: dict[tuple[int, ...], int] = {(): 0}
    layer = [0, 1]
    target: tuple[list[int], list[int]] = ([], [])
    ticks: tuple[list[int], list[int]] = ([], [])
    for v in order:
        if layer[-1] > most_states or time.perf_counter() >= deadline:
            return None
        for t in touching[v]:
            left[t] -= 1
        remain = [t for t in dict.fromkeys([*opened, *touching[v]]) if left[t]]
        found: dict[tuple[int, ...], int] = {}
        for state, held in itertools.product(states, (0, 1)):
            if held == 0 and len(found) > most_width:
                return None
            here = dict(zip(opened, state, strict=True))
            paid = compute[v] * held + _touch(here, tensors, touching[v], held)
            key = tuple(map(here.__getitem__, remain))
            target[held].append(layer[-1] + found.setdefault(key, len(found)))
            ticks[held].append(paid)
        states, opened = found, remain
        layer.append(layer[-1] + len(found))
    return _graph(order, layer, np.array(target, np.int64), np.array(ticks, np.int64))


def _touch(here: dict[int, int], tensors: list[_Tensor], touching: list[int], held: int) -> int:
    """Note on which side a node is with each of its tensors; return the ticks of those it parts."""
    paid = 0
    for t in touching:
        before = here.get(t, held)
        if before not in (held, _SOME):
            paid += tensors[t].ticks
        here[t] = before if before == held else _SOME
    return paid


def _graph(order: list[int], layer: list[int], target: Ints, ticks: Ints) -> FrontierGraph:
    """Add the arcs into every state."""
    width = target.shape[1]
    codes = (2 * np.arange(width)[None, :] + np.arange(2)[:, None]).ravel()
    by_target = np.argsort(target.ravel(), kind="stable")
    arc_ptr = np.searchsorted(target.ravel()[by_target], np.arange(layer[-1] + 1)).astype(np.int64)
    return FrontierGraph(
        np.array(order, np.int64),
        np.array(layer, np.int64),
        target,
        ticks,
        arc_ptr,
        np.ascontiguousarray(codes[by_target]),
    )
