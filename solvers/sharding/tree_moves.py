"""Moves of a sharding search: the best choice of a whole tree of nodes at once, never over the
capacity.

A move grows a tree of nodes of the core in which no two have an edge but those of the tree; the
trees that hang on its nodes follow them (in a flat graph, whose core is all, nothing does). It
gives back the usage of all of them, finds by dynamic programming from the leaves what each subtree
costs at least (edges to nodes outside are fixed, usage costs its price, what has no room is left
out), and decides from the root down: the cheapest strategy that the room left over time allows.
Usages are counted above the smallest of each node, so there is always one.

References
----------
Q. Chen, V. Koltun, "Fast MRF Optimization with Application to Depth Reconstruction", CVPR 2014
(blocks by dynamic programming).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.compiled import entry, inner_kernel
from placeopt.model.random_bits import below, uniform
from placeopt.sharding.compact import Compact, size_of
from placeopt.sharding.decode import (
    NO_LIMIT,
    add_fixed,
    cheapest,
    least_room,
    room_of,
    take,
    take_all,
)

if TYPE_CHECKING:
    from placeopt.model.arrays import Floats, Ints
    from placeopt.sharding.bounds.message_passing import Factors


class Board(NamedTuple):
    """What a move works on: the choice, the room left, and room for a tree of nodes."""

    choice: Ints  # (n,)
    least: Ints  # (2 size,)
    added: Ints  # (2 size,)
    most_usage: Ints  # (n,) largest of a node
    place: Ints  # (n,) position in the tree, -1 outside; all -1 between moves
    order: Ints  # (n,) nodes of the tree, parents first
    parent: Ints  # (n,) position of the parent
    link: Ints  # (n,) edge to the parent
    old: Ints  # (n,) choices before the move
    belief: Floats  # (S,) cost of the subtree by strategy


class Manner(NamedTuple):
    """How large the trees of moves are."""

    most: int  # nodes of a tree in the core
    skip: float  # chance that a tree leaves out a node it could take


def flat(factors: Factors) -> Factors:
    """Return the same graph with all nodes in the core: moves there are of a few nodes, where else
    a whole tree follows. Messages of the given factors stay as they are.
    """
    return factors._replace(core=0, core_ptr=factors.adj_ptr[:-1])


def board_of(compact: Compact, choice: Ints) -> Board:
    """Return a board on which `choice`, which fits the capacity, is played."""
    least, added = room_of(compact.capacity)
    amounts = compact.usage[compact.node_ptr[:-1] + choice]
    take_all(least, added, compact.first, compact.last, amounts)
    most = np.where(compact.last > compact.first, compact.most_usage, 0)
    place = np.full(len(choice), -1, np.int64)
    order, parent, link, old = np.zeros((4, len(choice)), np.int64)
    return Board(
        choice.copy(),
        least,
        added,
        most,
        place,
        order,
        parent,
        link,
        old,
        np.zeros(len(compact.cost)),
    )


@entry
def mean_subtree(f):
    """Return how many nodes follow a node that hangs on the core, itself counted, in the mean."""
    size = np.ones(len(f.node_ptr) - 1, np.int64)
    for v in range(f.core):
        size[f.adj_node[f.core_ptr[v]]] += size[v]
    return size[: f.core].sum() / max(f.core, 1)


@entry
def roots_at(f, c, over):
    """Return the nodes, no leaves, whose usage or that of nodes that hang on them falls on marked
    time points.
    """
    n = len(f.node_ptr) - 1
    marked = np.zeros(n, np.bool_)
    count = np.zeros(len(over) + 1, np.int64)
    for t in range(len(over)):
        count[t + 1] = count[t] + over[t]
    for v in range(n):
        marked[v] |= count[c.last[v]] > count[c.first[v]]
        if marked[v] and v < f.core:
            marked[f.adj_node[f.core_ptr[v]]] = True
    for v in range(f.core):
        if f.core_ptr[v] == f.adj_ptr[v]:
            marked[v] = False
    return np.flatnonzero(marked)


@inner_kernel
def _touches_once(f, board, w):
    """Whether a node outside has exactly one neighbour in the tree."""
    touching = 0
    for j in range(f.core_ptr[w], f.adj_ptr[w + 1]):
        touching += board.place[f.adj_node[j]] >= 0
        if touching > 1:
            return False
    return touching == 1


@inner_kernel
def _join(f, board, count, w, parent, edge):
    """Put a node into the tree at position `count`."""
    board.order[count] = w
    board.place[w] = count
    board.parent[count] = parent
    board.link[count] = edge


@inner_kernel
def _grow(f, board, root, most, skip, state):
    """Grow a tree in the core from `root` by breadth first search; return its number of nodes, then
    with what follows.

    A root outside the core is alone with what follows it.
    """
    count, done = 1, 0
    _join(f, board, 0, root, -1, -1)
    while done < count and count < most and root >= f.core:
        v = board.order[done]
        start, degree = f.core_ptr[v], f.adj_ptr[v + 1] - f.core_ptr[v]
        turn = below(state, max(degree, 1))
        for k in range(degree):
            i = start + (k + turn) % degree
            w = f.adj_node[i]
            if count == most or board.place[w] >= 0 or (skip > 0 and uniform(state) < skip):
                continue
            if _touches_once(f, board, w):
                _join(f, board, count, w, done, f.adj_edge[i])
                count += 1
        done += 1
    total, done = count, 0
    while done < total:
        v = board.order[done]
        for i in range(f.adj_ptr[v], f.core_ptr[v]):
            _join(f, board, total, f.adj_node[i], done, f.adj_edge[i])
            total += 1
        done += 1
    return count, total


@inner_kernel
def _fill_beliefs(f, c, board, cores, count, price):
    """Fill the beliefs of the tree: prices, costs of edges to the outside, then, from the leaves,
    of the subtrees.

    The usage of the tree has been given back. What every strategy of a leaf has room for is known
    already: `to_high`.
    """
    for i in range(count):
        v = board.order[i]
        start = f.node_ptr[v]
        b = board.belief[start : f.node_ptr[v + 1]]
        for x in range(len(b)):
            b[x] = f.cost[start + x] + price[v] * f.usage[start + x]
        if i < cores:
            for k in range(f.core_ptr[v], f.adj_ptr[v + 1]):
                if board.place[f.adj_node[k]] < 0:
                    add_fixed(f, board.choice, v, f.adj_edge[k], f.adj_node[k], b)
    for i in range(count - 1, -1, -1):
        v = board.order[i]
        start = f.node_ptr[v]
        b = board.belief[start : f.node_ptr[v + 1]]
        room = NO_LIMIT
        if board.most_usage[v] > 0:
            room = least_room(board.least, board.added, c.first[v], c.last[v])
        free = board.most_usage[v] <= room
        if not free:
            _leave_out(b, c.usage, start, room)
        if i == 0:
            break
        w = board.order[board.parent[i]]
        target = board.belief[f.node_ptr[w] : f.node_ptr[w + 1]]
        if free and v < f.core and f.core_ptr[v] == f.adj_ptr[v]:
            at = f.high_ptr[board.link[i]]
            for y in range(len(target)):
                target[y] += f.to_high[at + y]
        else:
            at = f.edge_ptr[board.link[i]]
            _pass_on(b, f.table if w < v else f.turned, at, target)


@inner_kernel
def _leave_out(b, usage, start, room):
    """Let strategies that have no room cost infinity."""
    for x in range(len(b)):
        if usage[start + x] > room:
            b[x] = np.inf


@inner_kernel
def _pass_on(b, table, at, target):
    """Add to `target` of each strategy of the parent the least of b with its row of the table."""
    size = len(b)
    for y in range(len(target)):
        least = np.inf
        for x in range(size):
            value = b[x] + table[at + y * size + x]
            least = value if value < least else least
        target[y] += least


@inner_kernel
def _value(f, board, count, price):
    """Return what the tree costs with the choices on the board: (costs, costs and prices of
    usage).
    """
    cost = priced = 0.0
    for i in range(count):
        v = board.order[i]
        at = f.node_ptr[v] + board.choice[v]
        cost += f.cost[at]
        priced += price[v] * f.usage[at]
        width = size_of(f, v)
        for k in range(f.core_ptr[v], f.adj_ptr[v + 1]):
            w, e = f.adj_node[k], f.adj_edge[k]
            if board.place[w] > i:
                continue  # an edge of the tree, counted at its child
            table = f.table if w < v else f.turned
            cost += table[f.edge_ptr[e] + board.choice[w] * width + board.choice[v]]
    return cost, cost + priced


@inner_kernel
def _use(f, c, board, count, sign):
    """Take (sign 1) or give back (-1) the usage of the tree."""
    for i in range(count):
        v = board.order[i]
        take(
            board.least,
            board.added,
            c.first[v],
            c.last[v],
            sign * c.usage[f.node_ptr[v] + board.choice[v]],
        )


@inner_kernel
def _decide(f, c, board, count):
    """Choose from the root down, within the room; the usage of the tree has been given back."""
    for i in range(count):
        v = board.order[i]
        start = f.node_ptr[v]
        b = board.belief[start : f.node_ptr[v + 1]]
        if i > 0:
            add_fixed(f, board.choice, v, board.link[i], board.order[board.parent[i]], b)
        room = NO_LIMIT
        if board.most_usage[v] > 0:
            room = least_room(board.least, board.added, c.first[v], c.last[v])
        best = cheapest(b, c.usage, start, len(b), room)
        board.choice[v] = best
        take(board.least, board.added, c.first[v], c.last[v], c.usage[start + best])


@entry
def improve(f, c, board, roots, price, manner, state):
    """Make a move at each root, after `lift_trees` with the same prices; return by how much the
    cost rose in all.

    A move that raises costs and prices together is undone.
    """
    change = 0.0
    for r in range(len(roots)):
        cores, count = _grow(f, board, roots[r], 1 + below(state, manner.most), manner.skip, state)
        cost, priced = _value(f, board, count, price)
        for i in range(count):
            board.old[i] = board.choice[board.order[i]]
        _use(f, c, board, count, -1)
        _fill_beliefs(f, c, board, cores, count, price)
        _decide(f, c, board, count)
        new_cost, new_priced = _value(f, board, count, price)
        if new_priced <= priced:
            change += new_cost - cost
        else:
            _use(f, c, board, count, -1)
            for i in range(count):
                board.choice[board.order[i]] = board.old[i]
            _use(f, c, board, count, 1)
        for i in range(count):
            board.place[board.order[i]] = -1
    return change
