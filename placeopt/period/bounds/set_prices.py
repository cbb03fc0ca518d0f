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

Where there are too many states, all states of a layer forget the same things until they are few (a
relaxed decision diagram): first what nodes to come are behind, then what the tensors of the least
ticks will cost. A tensor that is forgotten counts as paid, but is not paid by those that have not
parted it yet. No set is longer for it, and some are shorter: what such a graph refutes is refuted,
and what it does not a wider one may.

A label of a state is a pair (load, price) of some set among the nodes decided so far. A label with
a larger load and no larger price than another one of its state leads nowhere that the other one
does not. With multipliers lambda, the most that can still be added to a label is h_lambda(state) +
lambda (limit - load), where h_lambda(state) is the largest price - lambda load of what remains: a
longest path, the same for all labels. Labels that cannot reach the price asked for go.

What is left may still be many, so loads fall into buckets. Where labels share a bucket either the
dearer one stays (then every label is a set, but the dearest may be lost), or a label of the
smallest load and the largest price takes their place (then none is lost, and an answer "none" is a
proof). Prices and loads are integers: nothing is rounded.

References
----------
D. Bergman, A. A. Cire, W.-J. van Hoeve, J. Hooker: "Decision Diagrams for Optimization", Springer
2016, chapter 4 (relaxed diagrams).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import networkx as nx
import numpy as np

from placeopt.model.arrays import Flags, Ints, by_number, pointers, stable_order, true_places
from placeopt.model.compiled import inlined, row_of, uncounted_entry
from placeopt.period.evaluate import order_edges

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from placeopt.period.contracted import ContractedProblem

    Bytes = NDArray[np.uint8]

Lists = list[list[int]]
"""Nodes of each tensor, or tensors or nodes of each node."""


PRICES = 1 << 40
"""Sum of the integer prices, about: a multiplier times any load stays below 2^62."""
_NONE, _HELD, _LEFT = map(np.uint8, range(3))
"""What a node to come is behind: nothing that is held, a held node, or one that was left out behind
a held one."""
_SOME = np.uint8(2)
"""Which of a tensor's decided pins are held: none (0), all (1), or some but not all."""
_BITS = np.uint64(1) << np.arange(0, 64, 2, dtype=np.uint64)
"""Of 32 numbers below four in a word."""


class OutOfTimeError(Exception):
    """The deadline passed."""


class UndecidedError(Exception):
    """No set was found, but the buckets are too coarse, or the time too short, to rule one out."""


class FrontierGraph(NamedTuple):
    """States and arcs of the sets of one device type (N nodes, S states)."""

    order: Ints  # (N,) node that each layer decides
    layer: Ints  # (N + 2,) first state of every layer, and S
    target: Ints  # (2, S - 1) state reached without and with the node
    # (2, S - 1) length of the arcs: transfers that begin to be paid, and the node's compute
    ticks: Ints
    arc_ptr: Ints  # (S + 1,) arcs into a state
    arc: Ints  # (2 S - 2,) 2 source + (1 with the node, else 0)


class _Tensor(NamedTuple):
    pins: list[int]
    ticks: Ints  # (G,)


@dataclass
class Frontier:
    """What graphs of the sets of G device types are made from.

    Attributes
    ----------
    compute : (N, G) ticks of the nodes. order, orders : in which they are decided, and better ones
        that are still to be looked for.
    width : states of a layer at most, where graphs of all sets have too many: then some sets are
        shorter than their loads, none is longer. 0: every set is as long as its load.
    most_states, most_width : of graphs of all sets, in all and in a layer. first_width, wider :
        where `width` begins, and by what factor it grows.
    most_relaxed : states of other graphs, in all.
    """

    most_states: ClassVar[int] = 200_000
    most_width: ClassVar[int] = 4096
    first_width: ClassVar[int] = 32
    wider: ClassVar[int] = 4
    most_relaxed: ClassVar[int] = 1 << 21

    types: tuple[int, ...]
    compute: Ints
    tensors: list[_Tensor]
    paths: Paths
    orders: Iterator[list[int]]
    order: list[int] = field(default_factory=list)
    width: int = 0

    @classmethod
    def of(cls, model: ContractedProblem, types: Sequence[int]) -> Frontier | None:
        """Return that of any sets, or of convex ones if the model is contracted for these; None
        where order edges lead around.
        """
        paths, tensors = Paths.of(model), _paid_tensors(model, types)
        if paths is None:
            return None
        orders = _thin_orders([tensor.pins for tensor in tensors], paths)
        return cls(tuple(types), model.total[:, types], tensors, paths, orders)

    def graphs(self, deadline: float) -> dict[int, FrontierGraph]:
        """Return the graphs by device type.

        Raises
        ------
        OutOfTimeError
            At the deadline.
        """
        for order in self.orders:
            self.order = order
            if time.perf_counter() >= deadline:
                raise OutOfTimeError
        if self.width == 0 and (graphs := _states(self, deadline)):
            return graphs
        self.width = self.width or self.first_width
        graphs = _states(self, deadline)
        assert graphs is not None
        return graphs

    def widens(self) -> bool:
        """Let graphs be wider, if they may."""
        wider = self.width * self.wider
        possible = 0 < wider * len(self.order) <= self.most_relaxed
        self.width = wider if possible else self.width
        return possible


class Paths(NamedTuple):
    """What contiguity says of the nodes of one device.

    Attributes
    ----------
    before, after : nodes from which order edges lead to a node, and to which they lead from it.
    conducts : whether every way into a node leads to every way out of it.
    reach : (N, N) what cannot be held where a node cannot for what it is behind: the node, and all
        that it leads to through nodes that conduct.
    never : ticks of the arcs that no convex set has.
    """

    before: Lists
    after: Lists
    conducts: list[bool]
    reach: Flags
    never: int

    @classmethod
    def of(cls, model: ContractedProblem) -> Paths | None:
        """Return those of a model contracted for "convex", or for "none", which has no order edges;
        None where these lead around.
        """
        graph = model.order_graph
        if not nx.is_directed_acyclic_graph(graph):
            return None
        before, after = ([list(side[v]) for v in graph] for side in (graph.pred, graph.succ))
        conducts, reach = _conducting(model), np.eye(model.num_nodes, dtype=np.bool_)
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


def _paid_tensors(model: ContractedProblem, types: Sequence[int]) -> list[_Tensor]:
    """Return the tensors that devices of some of the types pay for."""
    weight, tensors = model.weight[:, types], []
    for t in true_places(weight.any(axis=1)):
        pins = sorted({int(model.producer[t]), *model.readers(t)})
        tensors.append(_Tensor(pins, weight[t]))
    return tensors


def _touching(num_nodes: int, pins: Lists) -> Lists:
    return by_number(num_nodes, ((v, t) for t, nodes in enumerate(pins) for v in nodes))


def _thin_orders(pins: Lists, paths: Paths, *, orders: int = 24) -> Iterator[list[int]]:
    """Yield the best of greedy orders of the nodes along the paths, by 2^(open tensors) added up,
    after every node of another; empty until one is made.

    Parameters
    ----------
    orders : that are made at most, each from another node, those with few tensors first.
    """
    touching = _touching(len(paths.before), pins)
    first = [v for v, before in enumerate(paths.before) if not before]
    starts = sorted(first, key=lambda v: (len(touching[v]), v))[:orders]
    best: tuple[float, list[int]] = math.inf, []
    ways = (False, True) if any(paths.before) else (False,)
    for start, newest in itertools.product(starts, ways):
        best = (yield from _greedy_order(start, touching, pins, paths, best, newest=newest)) or best
        yield best[1]


def _greedy_order(
    start: int,
    touching: Lists,
    pins: Lists,
    paths: Paths,
    best: tuple[float, list[int]],
    *,
    newest: bool,
) -> Generator[list[int], None, tuple[int, list[int]] | None]:
    """Return (cost, order) of the order that opens least and closes most at every step, oldest or
    newest tensors first; None if it costs as much as the best one known, which is yielded after
    every node.
    """
    left = list(map(len, pins))
    opened: dict[int, int] = {}  # tensor -> when it was opened
    order: list[int] = []
    waiting, cost = {start}, 0
    outside, behind = set(range(len(touching))), list(map(len, paths.before))
    scores: dict[int, tuple[int, int, int, int]] = {}  # until a tensor of the node changes

    def score(v: int) -> tuple[int, int, int, int]:
        if v not in scores:
            closing = sum(left[t] == 1 for t in touching[v])
            opening = sum(t not in opened for t in touching[v])
            age = (
                max((-opened[t] for t in touching[v] if t in opened), default=0)
                if newest
                else min((opened.get(t, len(touching)) for t in touching[v]), default=0)
            )
            scores[v] = opening - closing, -closing, age, v
        return scores[v]

    while outside:
        if cost >= best[0]:
            return None
        yield best[1]
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
            for u in pins[t]:
                scores.pop(u, None)
        order.append(v)
        cost += 1 << len(opened)
    return None if cost >= best[0] else (cost, order)


@dataclass
class _States:
    """States between two decisions, or what follows from them (S of them; N nodes, T tensors).

    Attributes
    ----------
    here : (S, T) which of the decided pins of every open tensor are held.
    behind : (S, N) what every node to come is behind.
    """

    here: Bytes
    behind: Bytes

    def rows(self, chosen: Ints) -> _States:
        """Return some of the states, or the same ones several times."""
        return _States(self.here[chosen], self.behind[chosen])

    def touch(self, t: int, held: Bytes, *, first: bool) -> Flags:
        """Note on which side a node is with a tensor; return whether that parts it."""
        before = held if first else self.here[:, t].copy()
        self.here[:, t] = np.where(before == held, before, _SOME)
        return (before != held) & (before != _SOME)

    def follow(self, v: int, held: Bytes, paths: Paths) -> Flags:
        """Note for the nodes after one whether it is held, or left out behind a held one, and what
        cannot be held for that; return the nodes (N,) of which this is new in some state.
        """
        was, new = self.behind[:, v].copy(), np.zeros(len(paths.after), np.bool_)
        self.behind[:, v] = _NONE
        left = (was != _NONE) & paths.conducts[v]
        said = np.where(held == 1, _HELD, np.where(left, _LEFT, _NONE))
        for w in paths.after[v]:
            rows = np.flatnonzero((said == _LEFT) & (self.behind[:, w] != _LEFT))
            self.behind[:, w] = np.maximum(self.behind[:, w], said)
            if len(rows):
                self.behind[np.ix_(rows, paths.reach[w])] = _LEFT
                new[paths.reach[w]] = True
        return new

    def settle(self, near: list[int], pins: Lists) -> Flags:
        """Take tensors whose pins to come cannot be held as settled: states that differ in these
        alone are one. Return which of them are parted by it, (S, tensors).

        Parameters
        ----------
        near, pins : tensors that are looked at, and their pins to come, of every one at least one.
        """
        ends = np.cumsum([0, *map(len, pins)])[:-1]
        never = self.behind[:, list(itertools.chain(*pins))] == _LEFT
        before = self.here[:, near]
        settled = np.logical_and.reduceat(never, ends, axis=1) & (before != _SOME)
        self.here[:, near] = np.where(settled, _SOME, before)
        return settled & (before == 1)

    def forget(self, dear: Ints) -> None:
        """Take from all states a part of what they know: what half of the nodes are behind, those
        of high numbers, or if they know nothing of that, what the cheapest tensor will cost.
        """
        nodes, tensors = (np.flatnonzero((x != x[0]).any(axis=0)) for x in (self.behind, self.here))
        if len(nodes):
            self.behind[:, nodes[len(nodes) // 2 :]] = _NONE
        else:
            self.here[:, tensors[np.argmin(dear[tensors])]] = _SOME

    def numbers(self) -> tuple[Ints, Ints]:
        """Return (rows, number): states that are equal have one number, whose first row is
        rows[number].
        """
        known = [x[:, (x != x[0]).any(axis=0)] for x in (self.here, self.behind)]
        size = sum(x.shape[1] for x in known)
        words = np.zeros((len(self.here), max(1, -(-size // _BITS.size)), _BITS.size), np.uint64)
        words.reshape(len(words), -1)[:, :size] = np.concatenate(known, axis=1)
        packed = words @ _BITS
        keys = packed.view(np.dtype((np.void, packed[0].nbytes))) if len(packed[0]) > 1 else packed
        _, first, number = np.unique(keys.ravel(), return_index=True, return_inverse=True)
        return first, number


def _states(frontier: Frontier, deadline: float) -> dict[int, FrontierGraph] | None:
    """Return the graphs; None if they have too many states, where no set may be shorter than its
    load. Where nothing was forgotten every set is as long as its load, whatever the width.
    """
    compute, tensors = frontier.compute, frontier.tensors
    paths, order = frontier.paths, frontier.order
    most = frontier.width or frontier.most_width
    weight = np.array([t.ticks for t in tensors]).reshape(len(tensors), -1)
    touching = _touching(len(order), [t.pins for t in tensors])
    pins = [list(t.pins) for t in tensors]  # to come
    states = _States(np.zeros((1, len(pins)), np.uint8), np.zeros((1, len(order)), np.uint8))
    opened = set[int]()  # tensors with some pins decided
    layer, targets, ticks, forgotten = [0, 1], [], [], False
    for v in order:
        width = layer[-1] - layer[-2]
        if time.perf_counter() >= deadline:
            raise OutOfTimeError
        if width > most or (layer[-1] > frontier.most_states and not frontier.width):
            return None
        held = np.repeat(np.array((0, 1), np.uint8), width)  # without the node, and with it
        decided = states.rows(np.tile(np.arange(width), 2))
        never = (held == 1) & (decided.behind[:, v] == _LEFT)
        paid = np.outer(compute[v], held)
        for t in touching[v]:
            paid += np.outer(weight[t], decided.touch(t, held, first=t not in opened))
            opened.add(t)
            pins[t].remove(v)
            if not pins[t]:
                opened.remove(t)
                decided.here[:, t] = 0
        new = decided.follow(v, held, paths)
        near = [t for t in opened if v in tensors[t].pins or any(new[u] for u in pins[t])]
        if near:
            paid += (decided.settle(near, [pins[t] for t in near]) @ weight[near]).T
        paid[:, never] = paths.never
        possible = decided.rows(np.flatnonzero(~never))
        first, number = possible.numbers()
        while frontier.width and len(first) > most:
            forgotten = True
            possible.forget(weight.max(axis=1))
            first, number = possible.numbers()
        states = possible.rows(first)
        target = np.tile(number[:width], (2, 1))
        target[1, ~never[width:]] = number[width:]
        targets.append(layer[-1] + target)
        ticks.append(paid.reshape(-1, 2, width))
        layer.append(layer[-1] + len(first))
    graph = _graph(order, layer, np.concatenate(targets, axis=1))
    arcs = np.concatenate(ticks, axis=2)
    frontier.width = frontier.width if forgotten else 0
    return {g: graph._replace(ticks=arcs[i]) for i, g in enumerate(frontier.types)}


def _graph(order: list[int], layer: list[int], target: Ints) -> FrontierGraph:
    """Return the graph with the arcs into every state, which take no time."""
    width = target.shape[1]
    codes = (2 * np.arange(width)[None, :] + np.arange(2)[:, None]).ravel()
    by_target = stable_order(target.ravel())
    arc_ptr = pointers(target.ravel()[by_target], layer[-1])
    return FrontierGraph(
        np.array(order, np.int64),
        np.array(layer, np.int64),
        target,
        np.zeros_like(target),
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
        for s in row_of(graph.layer, i):
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
            for e in row_of(graph.arc_ptr, state):
                source, held = graph.arc[e] >> 1, graph.arc[e] & 1
                if held == 1 and not ask.usable[v]:
                    continue
                for k in row_of(labels.first, source):
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
        self, price: Ints, usable: Flags, limit: int, least: int, *, depth: int | None = None
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
        low, best, multiplier = 0, None, 0
        high = min(4 * int(price.sum()) // max(1, limit) + 4, (1 << 60) // max(1, self.largest))
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
        buckets = Buckets(np.full(size, -1, np.int64), *np.zeros((2, size), np.int64))
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
        first = np.zeros(int(self.graph.layer[-1]) + 1, np.int64)
        load, price, origin = np.empty((3, size), np.int64)
        self._labels = Labels(load, price, origin, first)


def _shift(limit: int, bits: int) -> int:
    return max(0, limit.bit_length() - bits)
