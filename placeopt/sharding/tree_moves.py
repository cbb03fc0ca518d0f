"""Moves of a sharding search: the best choice of a whole tree of nodes at once, never over the
capacity.

A move grows a tree of nodes of the core in which no two have an edge but those of the tree; the
trees that hang on its nodes follow them. It gives back the usage of all of them, finds by dynamic
programming from the leaves what each subtree costs at least (edges to nodes outside are fixed,
usage costs its price, what has no room is left out), and decides from the root down: the cheapest
strategy that the room left over time allows. Usages are counted above the smallest of each node, so
there is always one. `decode` does the same for all nodes, with the messages of the bound in the
core.

The room is kept in a segment tree: `least` holds the smallest room of a node's part, less what was
added above it, and `added` what was added to its part as a whole.

References
----------
Q. Chen, V. Koltun, "Fast MRF Optimization with Application to Depth Reconstruction", CVPR 2014
(blocks by dynamic programming).
J. L. Bentley, "Solutions to Klee's rectangle problems", 1977 (segment trees).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.compiled import entry, inner
from placeopt.model.random_bits import below, uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.sharding.compact import Compact

    Ints = NDArray[np.int64]

NO_LIMIT = 2**62


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
    belief: NDArray[np.float64]  # (S,) cost of the subtree by strategy


class Manner(NamedTuple):
    """How moves are made."""

    most: int  # nodes of a tree in the core
    skip: float  # chance that a tree leaves out a node it could take
    heat: float  # mean rise that is accepted, in costs


def board_of(compact: Compact, choice: Ints) -> Board:
    """Return a board on which `choice`, which fits the capacity, is played."""
    least, added = room_of(compact.capacity)
    amounts = compact.usage[compact.node_ptr[:-1] + choice]
    _take_all(least, added, compact.first, compact.last, amounts)
    most = np.where(
        compact.last > compact.first, np.maximum.reduceat(compact.usage, compact.node_ptr[:-1]), 0
    )
    place = np.full(len(choice), -1, dtype=np.int64)
    order, parent, link, old = np.zeros((4, len(choice)), dtype=np.int64)
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
def room_of(capacity):
    """Return a segment tree over the time points, all of the capacity free."""
    size = 1
    while size < len(capacity):
        size *= 2
    least = np.full(2 * size, NO_LIMIT, dtype=np.int64)
    added = np.zeros(2 * size, dtype=np.int64)
    for t in range(len(capacity)):
        least[size + t] = capacity[t]
    for i in range(size - 1, 0, -1):
        least[i] = min(least[2 * i], least[2 * i + 1])
    return least, added


@inner
def _take(least, added, first, last, amount):
    """Take an amount (give, if negative) at the time points first .. last - 1."""
    if first >= last or amount == 0:
        return
    size = len(least) // 2
    left, right = first + size, last + size
    while left < right:
        if left & 1:
            least[left] -= amount
            added[left] -= amount
            left += 1
        if right & 1:
            right -= 1
            least[right] -= amount
            added[right] -= amount
        left >>= 1
        right >>= 1
    for end in (first + size, last - 1 + size):
        i = end >> 1
        while i > 0:
            least[i] = min(least[2 * i], least[2 * i + 1]) + added[i]
            i >>= 1


@inner
def _room(least, added, first, last):
    """Return the smallest room at the time points first .. last - 1."""
    if first >= last:
        return NO_LIMIT
    size = len(least) // 2
    left, right = first + size, last - 1 + size
    a, b = least[left], least[right]
    while left >> 1 != right >> 1 and left != right:
        if not left & 1:
            a = min(a, least[left + 1])
        if right & 1:
            b = min(b, least[right - 1])
        left >>= 1
        right >>= 1
        a += added[left]
        b += added[right]
    a = min(a, b)
    i = left >> 1
    while i > 0:
        a += added[i]
        i >>= 1
    return a


@entry
def _take_all(least, added, first, last, amounts):
    """Take the usage of every node."""
    for v in range(len(first)):
        _take(least, added, first[v], last[v], amounts[v])


@inner
def _add_fixed(f, choice, v, i, belief):
    """Add to `belief` of v the costs of its i-th edge, whose other node has its choice."""
    e, w = f.adj_edge[i], f.adj_node[i]
    size = f.node_ptr[v + 1] - f.node_ptr[v]
    at = f.edge_ptr[e] + choice[w] * size
    table = f.table if w < v else f.turned
    for x in range(size):
        belief[x] += table[at + x]


@entry
def least_usage(c):
    """Return the choice of the smallest usage of every node, the cheapest among equals."""
    choice = np.zeros(len(c.node_ptr) - 1, dtype=np.int64)
    for v in range(len(choice)):
        start = c.node_ptr[v]
        best = start
        for x in range(start, c.node_ptr[v + 1]):
            if c.usage[x] < c.usage[best] or (
                c.usage[x] == c.usage[best] and c.cost[x] < c.cost[best]
            ):
                best = x
        choice[v] = best - start
    return choice


@entry
def roots_at(f, c, over):
    """Return the nodes, no leaves, whose usage or that of nodes that hang on them falls on marked
    time points.
    """
    n = len(f.node_ptr) - 1
    marked = np.zeros(n, dtype=np.bool_)
    count = np.zeros(len(over) + 1, dtype=np.int64)
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


@entry
def decode(f, c, width):
    """Return a choice that fits, after sweeps: each node the cheapest by the choices before and the
    messages from behind.

    The nodes of the core in order, then those of trees from their roots down.
    """
    n = len(f.node_ptr) - 1
    least, added = room_of(c.capacity)
    choice = np.zeros(n, dtype=np.int64)
    b = np.empty(width)
    for k in range(n):
        v = f.core + k if f.core + k < n else n - 1 - k
        start = f.node_ptr[v]
        size = f.node_ptr[v + 1] - start
        for x in range(size):
            b[x] = f.base[start + x]
        for i in range(f.core_ptr[v], f.adj_ptr[v + 1]):
            if f.adj_node[i] < v or v < f.core:
                _add_fixed(f, choice, v, i, b)
            else:
                at = f.low_ptr[f.adj_edge[i]]
                for x in range(size):
                    b[x] += f.to_low[at + x]
        best = _cheapest(b, c.usage, start, size, _room(least, added, c.first[v], c.last[v]))
        choice[v] = best
        _take(least, added, c.first[v], c.last[v], c.usage[start + best])
    return choice


@inner
def _cheapest(b, usage, start, size, room):
    """Return the strategy of the smallest b among those that fit into the room."""
    best, value = -1, np.inf
    for x in range(size):
        if usage[start + x] <= room and (best < 0 or b[x] < value):
            best, value = x, b[x]
    return best


@inner
def _touches_once(f, board, w):
    """Whether a node outside has exactly one neighbour in the tree."""
    touching = 0
    for j in range(f.core_ptr[w], f.adj_ptr[w + 1]):
        touching += board.place[f.adj_node[j]] >= 0
        if touching > 1:
            return False
    return touching == 1


@inner
def _join(f, board, count, w, parent, edge):
    """Put a node into the tree at position `count`."""
    board.order[count] = w
    board.place[w] = count
    board.parent[count] = parent
    board.link[count] = edge


@inner
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


@inner
def _believe(f, c, board, cores, count, price):
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
                    _add_fixed(f, board.choice, v, k, b)
    for i in range(count - 1, -1, -1):
        v = board.order[i]
        start = f.node_ptr[v]
        b = board.belief[start : f.node_ptr[v + 1]]
        free = True
        if board.most_usage[v] > 0:
            room = _room(board.least, board.added, c.first[v], c.last[v])
            if board.most_usage[v] > room:
                free = False
                for x in range(len(b)):
                    if c.usage[start + x] > room:
                        b[x] = np.inf
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


@inner
def _pass_on(b, table, at, target):
    """Add to `target` of each strategy of the parent the least of b with its row of the table."""
    size = len(b)
    for y in range(len(target)):
        least = np.inf
        for x in range(size):
            value = b[x] + table[at + y * size + x]
            least = value if value < least else least
        target[y] += least


@inner
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
        width = f.node_ptr[v + 1] - f.node_ptr[v]
        for k in range(f.core_ptr[v], f.adj_ptr[v + 1]):
            w, e = f.adj_node[k], f.adj_edge[k]
            if board.place[w] > i:
                continue  # an edge of the tree, counted at its child
            if w < v:
                cost += f.table[f.edge_ptr[e] + board.choice[w] * width + board.choice[v]]
            else:
                cost += f.turned[f.edge_ptr[e] + board.choice[w] * width + board.choice[v]]
    return cost, cost + priced


@inner
def _use(f, c, board, count, sign):
    """Take (sign 1) or give back (-1) the usage of the tree."""
    for i in range(count):
        v = board.order[i]
        _take(
            board.least,
            board.added,
            c.first[v],
            c.last[v],
            sign * c.usage[f.node_ptr[v] + board.choice[v]],
        )


@inner
def _decide(f, c, board, count):
    """Choose from the root down, within the room; the usage of the tree has been given back."""
    for i in range(count):
        v = board.order[i]
        start = f.node_ptr[v]
        b = board.belief[start : f.node_ptr[v + 1]]
        size = len(b)
        if i > 0:
            w = board.order[board.parent[i]]
            at = f.edge_ptr[board.link[i]] + board.choice[w] * size
            table = f.table if w < v else f.turned
            for x in range(size):
                b[x] += table[at + x]
        room = NO_LIMIT
        if board.most_usage[v] > 0:
            room = _room(board.least, board.added, c.first[v], c.last[v])
        best = _cheapest(b, c.usage, start, size, room)
        board.choice[v] = best
        _take(board.least, board.added, c.first[v], c.last[v], c.usage[start + best])


@entry
def improve(f, c, board, roots, price, manner, state):
    """Make a move at each root, after `lift_trees` with the same prices; return by how much the
    cost rose in all.

    A move that raises costs and prices together is undone, unless by less than an exponential draw
    of mean `heat`.
    """
    change = 0.0
    heat = manner.heat
    for r in range(len(roots)):
        cores, count = _grow(f, board, roots[r], 1 + below(state, manner.most), manner.skip, state)
        cost, priced = _value(f, board, count, price)
        for i in range(count):
            board.old[i] = board.choice[board.order[i]]
        _use(f, c, board, count, -1)
        _believe(f, c, board, cores, count, price)
        _decide(f, c, board, count)
        new_cost, new_priced = _value(f, board, count, price)
        limit = priced - heat * np.log(max(uniform(state), 1e-300)) if heat > 0 else priced
        if new_priced <= limit:
            change += new_cost - cost
        else:
            _use(f, c, board, count, -1)
            for i in range(count):
                board.choice[board.order[i]] = board.old[i]
            _use(f, c, board, count, 1)
        for i in range(count):
            board.place[board.order[i]] = -1
    return change
