"""The dearest set of nodes that one device may hold within a limit on its load: labels on paths
through a small graph (a dynamic program over a frontier).

Which nodes a device holds is decided node by node, in an order in which few tensors are open at any
time: tensors with some pins (producer and consumers) decided and others not. A device pays a
tensor's ticks once where it holds some of its pins but not all: as the producer it sends the
tensor, else it receives it. So all that the rest of the decisions has to know of those made is, for
every open tensor, whether none, all or some but not all of its decided pins are held; in the last
case it is paid already. These are the states; two arcs lead from each, one for leaving the next
node out and one for taking it. Every set of nodes is one path from the first state to the last, and
its load is the length of the path. Graphs of neural networks are long and thin: their frontier has
few open tensors and few states.

Where contiguity asks for convex sets, nodes are decided along the order edges, and a state knows of
every node to come whether a node before it is held, or lies behind a held one without being held
itself: such a node may not be held any more, and the arc that holds it is longer than any limit.
(What leads through a node of several ops need not be a path of ops; then nothing is concluded from
it, and a set that is not convex may be among the others.) There are up to twenty times as many
states as without it, or fewer: what cannot be held any more is settled, and states that differ in
nothing else are one.

A label of a state is a pair (load, price) of some set among the nodes decided so far. A label with
a larger load and no larger price than another one of its state leads nowhere that the other one
does not. With multipliers lambda, the most that can still be added to a label is h_lambda(state) +
lambda (limit - load), where h_lambda(state) is the largest price - lambda load of what remains: a
longest path, the same for all labels. Labels that cannot reach the price asked for go.

What is left may still be many, so loads fall into buckets. Where labels share a bucket either the
dearer one stays (then every label is a set, but the dearest may be lost), or a label of the
smallest load and the largest price takes their place (then none is lost, and an answer "none" is a
proof). Prices and loads are integers: nothing is rounded.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import networkx as nx
import numpy as np

from placeopt.model.compiled import inlined, uncounted_entry
from placeopt.period.evaluate import order_edges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placeopt.model.arrays import Flags, Ints
    from placeopt.period.contracted import ContractedProblem

PRICES = 1 << 40
"""Sum of the integer prices, about: a multiplier times any load stays below 2^62."""
_NONE, _HELD, _LEFT = range(3)
"""What a node to come is behind: nothing that is held, a held node, or one that was left out behind
a held one."""
_SOME = 2  # pins of a tensor that are held: none of those decided (0), all (1), or some but not all


class OutOfTimeError(Exception):
    """The deadline passed."""


class UndecidedError(Exception):
    """No set was found, but the buckets are too coarse to rule one out."""


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


def frontier_graphs(
    model: ContractedProblem, types: Sequence[int], deadline: float
) -> dict[int, FrontierGraph] | None:
    """Return the graphs of the sets of device types, of convex ones if the model is contracted for
    these; None if one has too many states, order edges lead around, or at the deadline. Types that
    pay for the same tensors share an order.
    """
    paths = Paths.of(model)
    if paths is None:
        return None
    graphs: dict[int, FrontierGraph] = {}
    before, order = None, None
    for g in types:
        tensors, compute = _paid_tensors(model, g), model.total[:, g].tolist()
        pins = [tensor.pins for tensor in tensors]
        if pins != before:
            before, order = pins, _thin_order(pins, paths, deadline)
        graph = None if order is None else _states(compute, tensors, order, paths, deadline)
        if graph is None:
            return None
        graphs[g] = graph
    return graphs


class Paths(NamedTuple):
    """What contiguity says of the nodes of one device.

    Attributes
    ----------
    before, after : nodes from which order edges lead to a node, and to which they lead from it.
    conducts : whether every way into a node leads to every way out of it.
    reach : what cannot be held where a node cannot for what it is behind, as bits: the node, and
        all that it leads to through nodes that conduct.
    never : ticks of the arcs that no convex set has.
    """

    before: list[list[int]]
    after: list[list[int]]
    conducts: list[bool]
    reach: list[int]
    never: int

    @classmethod
    def of(cls, model: ContractedProblem) -> Paths | None:
        """Return those of a model contracted for "convex", or for "none", which has no order edges;
        None where these lead around.
        """
        nodes = range(model.num_nodes)
        graph = nx.DiGraph(zip(model.order_from.tolist(), model.order_to.tolist(), strict=True))
        graph.add_nodes_from(nodes)
        if not nx.is_directed_acyclic_graph(graph):
            return None
        before, after = [list(graph.pred[v]) for v in nodes], [list(graph.succ[v]) for v in nodes]
        conducts, reach = _conducting(model), [1 << v for v in nodes]
        for v in reversed(list(nx.topological_sort(graph))):
            for w in after[v] if conducts[v] else ():
                reach[v] |= reach[w]
        return cls(before, after, conducts, reach, model.largest_load + 1)


def _conducting(model: ContractedProblem) -> list[bool]:
    """Return of every node whether all ways into it lead to all ways out, over ops of its own."""
    entries: list[set[int]] = [set() for _ in range(model.num_nodes)]
    exits: list[set[int]] = [set() for _ in range(model.num_nodes)]
    inner: list[list[tuple[int, int]]] = [[] for _ in range(model.num_nodes)]
    ends = (ops.tolist() for ops in order_edges(model.problem, "convex"))
    for u, v in zip(*ends, strict=True):  # by topological rank of u
        if model.node[u] == model.node[v]:
            inner[model.node[u]].append((u, v))
        else:
            exits[model.node[u]].add(u)
            entries[model.node[v]].add(v)

    def reached(op: int, edges: list[tuple[int, int]]) -> set[int]:
        found = {op}
        found.update(v for u, v in edges if u in found)
        return found

    return [
        all(exits[v] <= reached(op, inner[v]) for op in entries[v]) for v in range(len(entries))
    ]


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
    pins: list[list[int]], paths: Paths, deadline: float, *, orders: int = 24
) -> list[int] | None:
    """Return the best of some greedy orders of the nodes along the paths, by 2^(open tensors) added
    up; None if none is ready in time.

    Parameters
    ----------
    orders : that are made at most, each from another node, those with few tensors first.
    """
    touching = _touching(len(paths.before), pins)
    first = [v for v, before in enumerate(paths.before) if not before]
    starts = sorted(first, key=lambda v: (len(touching[v]), v))[:orders]
    best: tuple[int, list[int]] | None = None
    ways = (False, True) if any(paths.before) else (False,)
    for start, newest in itertools.product(starts, ways):
        found = _greedy_order(start, touching, pins, paths, deadline, newest=newest)
        if found is None:
            break
        if best is None or found[0] < best[0]:
            best = found
    return None if best is None else best[1]


def _greedy_order(
    start: int,
    touching: list[list[int]],
    pins: list[list[int]],
    paths: Paths,
    deadline: float,
    *,
    newest: bool,
) -> tuple[int, list[int]] | None:
    """Return (cost, order) of the order that opens least and closes most at every step, oldest or
    newest tensors first; None if late.
    """
    left = list(map(len, pins))
    opened: dict[int, int] = {}  # tensor -> when it was opened
    order: list[int] = []
    waiting, cost = {start}, 0
    outside, behind = set(range(len(touching))), list(map(len, paths.before))

    def score(v: int) -> tuple[int, int, int, int]:
        closing = sum(left[t] == 1 for t in touching[v])
        opening = sum(t not in opened for t in touching[v])
        return (
            opening - closing,
            -closing,
            max((-opened[t] for t in touching[v] if t in opened), default=0)
            if newest
            else min((opened.get(t, len(touching)) for t in touching[v]), default=0),
            v,
        )

    while outside:
        if time.perf_counter() >= deadline:
            return None
        ready = [u for u in waiting if behind[u] == 0]
        v = (
            min(ready, key=score)
            if ready
            else min((u for u in outside if behind[u] == 0), key=lambda u: (len(touching[u]), u))
        )
        for u in paths.after[v]:
            behind[u] -= 1
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
    paths: Paths,
    deadline: float,
    *,
    most_states: int = 200_000,
    most_width: int = 4096,
) -> FrontierGraph | None:
    """Return the graph along an order; None if it has more states than so many, in all or in a
    layer, or it is late.
    """
    pins = [tensor.pins for tensor in tensors]
    touching, left = _touching(len(order), pins), list(map(len, pins))
    opened: list[int] = []  # tensors
    ahead: list[int] = []  # nodes to come that follow decided ones
    bits = [sum(1 << p for p in nodes) for nodes in pins]
    open_ = (1 << len(order)) - 1  # nodes to come
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
        coming = [w for w in dict.fromkeys([*ahead, *paths.after[v]]) if w != v]
        open_ &= ~(1 << v)
        ends = [(t, bits[t] & open_) for t in remain]
        found: dict[tuple[int, ...], int] = {}
        for state, held in itertools.product(states, (0, 1)):
            if held == 0 and len(found) > most_width:
                return None
            here = dict(zip(opened, state, strict=False))
            behind = dict(zip(ahead, state[len(opened) :], strict=True))
            if held and behind.get(v) == _LEFT:
                target[1].append(target[0][-1])
                ticks[1].append(paths.never)
                continue
            paid = compute[v] * held + _touch(here, tensors, touching[v], held)
            _follow(behind, paths, v, held)
            paid += _settle(here, behind, coming, paths, ends, tensors)
            key = (*map(here.__getitem__, remain), *map(behind.__getitem__, coming))
            target[held].append(layer[-1] + found.setdefault(key, len(found)))
            ticks[held].append(paid)
        states, opened, ahead = found, remain, coming
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


def _follow(behind: dict[int, int], paths: Paths, v: int, held: int) -> None:
    """Note for the nodes after one whether it is held, or left out behind a held one."""
    left = behind.get(v, _NONE) != _NONE and paths.conducts[v]
    said = _HELD if held else _LEFT if left else _NONE
    for w in paths.after[v]:
        behind[w] = max(behind.get(w, _NONE), said)


def _settle(
    here: dict[int, int],
    behind: dict[int, int],
    coming: list[int],
    paths: Paths,
    ends: list[tuple[int, int]],
    tensors: list[_Tensor],
) -> int:
    """Conclude from nodes that cannot be held which others cannot, and which tensors are settled:
    states that differ in these alone are one. Return the ticks of tensors that are parted for sure.

    Parameters
    ----------
    ends : open tensors, and their pins that are not decided as bits.
    """
    never = 0
    for w in coming:
        if behind[w] == _LEFT:
            never |= paths.reach[w]
    if not never:
        return 0
    for w in coming:
        if never >> w & 1:
            behind[w] = _LEFT
    paid = 0
    for t, pins in ends:
        if here[t] != _SOME and pins & ~never == 0:
            paid += tensors[t].ticks * here[t]
            here[t] = _SOME
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


@dataclass(frozen=True)
class Labelling:
    """How labels are made and kept.

    Attributes
    ----------
    search_bits, proof_bits : buckets, as powers of two, in the order in which they are tried.
    scales : multipliers whose bounds are used, relative to the best one; 0 sees the least price
    itself.
    labels, most_labels : that there is room for, at first and at most.
    work : labels between two looks at the clock.
    """

    search_bits: tuple[int, ...] = (8, 10)
    proof_bits: tuple[int, ...] = (10, 12, 14, 16)
    scales: tuple[float, ...] = (1.0, 0.0, 0.7, 1.4)
    labels: int = 1 << 18
    most_labels: int = 1 << 24
    work: int = 2_000_000


class Labels(NamedTuple):
    """Labels of all states (S states, room for L labels)."""

    load: Ints  # (L,)
    price: Ints  # (L,)
    origin: Ints  # (L,) 2 label + (1 with the node, else 0)
    first: Ints  # (S + 1,) first label of every state


class Buckets(NamedTuple):
    """One label per bucket of loads, of one state."""

    price: Ints  # -1: empty
    load: Ints
    origin: Ints


class Question(NamedTuple):
    """Which sets are wanted (N nodes, M multipliers)."""

    price: Ints  # (N,)
    usable: Flags  # (N,) nodes that may be held
    limit: int  # largest load, ticks
    least: int  # smallest price
    multiplier: Ints  # (M,) price per tick
    rest: Ints  # (M, S) h of the module text
    shift: int  # loads that differ beyond this bit only are in different buckets
    relaxed: bool


@uncounted_entry
def longest_rest(graph, price, usable, multiplier, rest):
    """Fill rest[state] = h_multiplier(state); return the load of a longest path."""
    layers = len(graph.order)
    rest[graph.layer[layers]] = 0
    for i in range(layers - 1, -1, -1):
        v = graph.order[i]
        for s in range(graph.layer[i], graph.layer[i + 1]):
            best = rest[graph.target[0, s]] - multiplier * graph.ticks[0, s]
            if usable[v]:
                best = max(
                    best, rest[graph.target[1, s]] + price[v] - multiplier * graph.ticks[1, s]
                )
            rest[s] = best
    state = load = 0
    for _ in range(layers):
        held = 0
        if rest[graph.target[0, state]] - multiplier * graph.ticks[0, state] < rest[state]:
            held = 1
        load += graph.ticks[held, state]
        state = graph.target[held, state]
    return load


@inlined
def _promising(ask, state, ticks, worth):
    """Whether a label can still reach the least price, as far as the multipliers tell."""
    for j in range(len(ask.multiplier)):
        if worth + ask.rest[j, state] + ask.multiplier[j] * (ask.limit - ticks) < ask.least:
            return False
    return True


@inlined
def _put(ask, buckets, b, ticks, worth, origin):
    """Put a label into its bucket."""
    if buckets.price[b] < 0:
        buckets.price[b], buckets.load[b], buckets.origin[b] = worth, ticks, origin
        return
    dearer = worth > buckets.price[b]
    if dearer or (worth == buckets.price[b] and ticks < buckets.load[b]):
        buckets.price[b], buckets.origin[b] = worth, origin
        if not ask.relaxed:
            buckets.load[b] = ticks
    if ask.relaxed and ticks < buckets.load[b]:
        buckets.load[b] = ticks


@inlined
def _keep(labels, buckets, state, low, high):
    """Make the labels of a state from what its buckets hold, and empty them."""
    count, top = labels.first[state], np.int64(-1)
    for b in range(low, high + 1):
        if buckets.price[b] > top:
            top = buckets.price[b]
            labels.load[count], labels.price[count], labels.origin[count] = (
                buckets.load[b],
                top,
                buckets.origin[b],
            )
            count += 1
        buckets.price[b] = -1
    labels.first[state + 1] = count


@uncounted_entry
def extend_labels(graph, ask, labels, buckets, layer, work):
    """Make the labels of the layers from `layer` on until `work` is done; return the next layer, -1
    without room.
    """
    while layer < len(graph.order) and work > 0:
        v = graph.order[layer]
        for state in range(graph.layer[layer + 1], graph.layer[layer + 2]):
            low, high = len(buckets.price), -1
            for e in range(graph.arc_ptr[state], graph.arc_ptr[state + 1]):
                source, held = graph.arc[e] >> 1, graph.arc[e] & 1
                if held == 1 and not ask.usable[v]:
                    continue
                for k in range(labels.first[source], labels.first[source + 1]):
                    ticks = labels.load[k] + graph.ticks[held, source]
                    if ticks > ask.limit:
                        break
                    worth = labels.price[k] + held * ask.price[v]
                    if _promising(ask, state, ticks, worth):
                        b = ticks >> ask.shift
                        low, high = min(low, b), max(high, b)
                        _put(ask, buckets, b, ticks, worth, 2 * k + held)
                work -= labels.first[source + 1] - labels.first[source]
            if labels.first[state] + max(0, high - low + 1) > len(labels.load):
                return -1
            _keep(labels, buckets, state, low, high)
        layer += 1
    return layer


@dataclass
class SetPricer:
    """Finds dear sets of one device type; what it allocates is kept between questions.

    Attributes
    ----------
    largest : ticks that no set takes. deadline : when it gives up (`time.perf_counter`).
    """

    labelling: ClassVar[Labelling] = Labelling()

    graph: FrontierGraph
    largest: int
    deadline: float

    def __post_init__(self) -> None:
        self._make_room(self.labelling.labels)
        self._rest = np.zeros((len(self.labelling.scales), int(self.graph.layer[-1])), np.int64)

    def dearest(
        self,
        price: Ints,
        usable: Flags,
        limit: int,
        least: int,
        *,
        depth: int | None = None,
    ) -> Flags | None:
        """Return a set of load at most `limit` and price at least `least`, about the dearest; None
        proves that there is none.

        Parameters
        ----------
        usable : nodes that may be in the set.
        depth : how many sizes of buckets are tried for a proof, all where None; with 0 it gives up
        where the coarsest find no set.

        Raises
        ------
        UndecidedError
            If the buckets are too coarse to tell.
        OutOfTimeError
            At the deadline.
        """
        if time.perf_counter() >= self.deadline:
            raise OutOfTimeError
        asked = self._question(price, usable, limit, least)
        if asked is None:
            return None
        searched, proved = self.labelling.search_bits, self.labelling.proof_bits[:depth]
        search = itertools.product(searched[:1] if depth == 0 else searched, [False])
        for bits, relaxed in (*search, *itertools.product(proved, [True, False])):
            found = self._answer(asked._replace(shift=_shift(limit, bits), relaxed=relaxed))
            if found is None and relaxed:
                return None
            if found is not None and (not relaxed or self.load(found) <= limit):
                return found
        raise UndecidedError

    def dear(self, price: Ints, usable: Flags, limit: int, least: int, bits: int) -> Flags | None:
        """Return a set of load at most `limit` and price at least `least`, the dearer the more
        bits; None says nothing.
        """
        if time.perf_counter() >= self.deadline:
            raise OutOfTimeError
        asked = self._question(price, usable, limit, least)
        try:
            return (
                None if asked is None else self._answer(asked._replace(shift=_shift(limit, bits)))
            )
        except UndecidedError:
            return None

    def load(self, members: Flags) -> int:
        """Ticks of a device that holds `members`."""
        state = ticks = 0
        for v in self.graph.order.tolist():
            held = int(members[v])
            ticks += int(self.graph.ticks[held, state])
            state = int(self.graph.target[held, state])
        return ticks

    def _question(self, price: Ints, usable: Flags, limit: int, least: int) -> Question | None:
        """Choose multipliers; None if they alone rule such a set out."""
        low, high = (
            0,
            min(4 * int(price.sum()) // max(1, limit) + 4, (1 << 60) // max(1, self.largest)),
        )
        best, multiplier = None, 0
        while high - low > 1:
            middle = (low + high) // 2
            load = int(longest_rest(self.graph, price, usable, middle, self._rest[0]))
            most = int(self._rest[0, 0]) + middle * limit
            if most < least:
                return None
            if best is None or most < best:
                best, multiplier = most, middle
            low, high = (middle, high) if load > limit else (low, middle)
        multipliers = np.array(
            [int(scale * multiplier) for scale in self.labelling.scales], np.int64
        )
        for i, chosen in enumerate(multipliers.tolist()):
            longest_rest(self.graph, price, usable, chosen, self._rest[i])
        return Question(price, usable, limit, least, multipliers, self._rest, 0, relaxed=False)

    def _answer(self, ask: Question) -> Flags | None:
        """Return the set behind the dearest label of the last state, None without one."""
        labels = self._labels
        labels.load[0] = labels.price[0] = labels.first[0] = 0
        labels.first[1] = 1
        size = (ask.limit >> ask.shift) + 1
        buckets = Buckets(
            np.full(size, -1, np.int64),
            np.zeros(size, np.int64),
            np.zeros(size, np.int64),
        )
        layer = 0
        while layer < len(self.graph.order):
            if time.perf_counter() >= self.deadline:
                raise OutOfTimeError
            layer = int(extend_labels(self.graph, ask, labels, buckets, layer, self.labelling.work))
            if layer < 0:
                if 2 * len(labels.load) > self.labelling.most_labels:
                    raise UndecidedError
                self._make_room(2 * len(labels.load))
                return self._answer(ask)
        last = int(labels.first[-1]) - 1
        if last < labels.first[-2]:
            return None
        members = np.zeros(len(self.graph.order), np.bool_)
        for v in self.graph.order[::-1].tolist():
            members[v] = labels.origin[last] & 1
            last = int(labels.origin[last]) >> 1
        return members

    def _make_room(self, size: int) -> None:
        load, price, origin = (np.empty(size, np.int64) for _ in range(3))
        self._labels = Labels(
            load, price, origin, np.zeros(int(self.graph.layer[-1]) + 1, np.int64)
        )


def _shift(limit: int, bits: int) -> int:
    return max(0, limit.bit_length() - bits)
