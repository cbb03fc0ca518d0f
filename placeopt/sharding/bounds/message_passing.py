"""Sequential tree-reweighted message passing on the edges of a compact problem, with prices on
usage.

For prices p_v >= 0 of usage and messages m, the cost of any choice is at least

    sum_v min_x b_v(x) + sum_e min_(x, y) [T_e(x, y) - m_(e to u)(x) - m_(e to v)(y)],
    b_v(x) = c_v(x) + p_v u_v(x) + sum_(e at v) m_(e to v)(x),

because the messages cancel. The trees that hang on the core are settled first, exactly: every node
sends all of b_v to its parent (`lift_trees`). A sweep then visits the nodes of the core in order
and sends from each one its share 1 / max(before, after) of b_v along every edge to a later node,
`before` and `after` being its numbers of earlier and later neighbours in the core: the bound over
the monotonic chains of the core never falls (Kolmogorov 2006). Leaves are no chains of their own,
or a node with thousands of them would hardly pass anything on.

References
----------
V. Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization", IEEE TPAMI
28(10), 2006.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Floats, Ints
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.sharding.compact import Compact, size_of
from placeopt.sharding.problem import starts_of


class Factors(NamedTuple):
    """A compact problem as message passing takes it: costs as floats, tables in both orders, room
    for messages.
    """

    node_ptr: Ints
    cost: Floats  # (S,)
    usage: Floats  # (S,)
    edge: Ints  # (m, 2)
    edge_ptr: Ints  # (m + 1,)
    table: Floats  # (E,) row-major by the smaller node
    turned: Floats  # (E,) row-major by the larger node
    adj_ptr: Ints
    adj_edge: Ints
    adj_node: Ints
    low_ptr: Ints  # (m + 1,) of the messages to the smaller node
    high_ptr: Ints  # (m + 1,) of those to the larger node
    to_low: Floats
    to_high: Floats
    core: int
    # (n,) where in adj_edge the edges of a node to the core begin; those to its children come
    # before
    core_ptr: Ints
    base: Floats  # (S,) b without the edges to the core or, in a tree, to the parent


def factors_of(compact: Compact) -> Factors:
    """Return the factors of a compact problem, all messages 0."""
    sizes = compact.num_choices
    low, high = compact.edge.T
    low_ptr, high_ptr = starts_of(sizes[low]), starts_of(sizes[high])
    cost = compact.cost.astype(np.float64)
    children = np.bincount(high[low < compact.core], minlength=compact.num_nodes)
    table = compact.table.astype(np.float64)
    turned = np.empty_like(table)
    _turn(compact.edge_ptr, sizes[low], sizes[high], table, turned)
    return Factors(
        compact.node_ptr,
        cost,
        compact.usage.astype(np.float64),
        compact.edge,
        compact.edge_ptr,
        table,
        turned,
        compact.adj_ptr,
        compact.adj_edge,
        compact.adj_node,
        low_ptr,
        high_ptr,
        np.zeros(int(low_ptr[-1])),
        np.zeros(int(high_ptr[-1])),
        compact.core,
        compact.adj_ptr[:-1] + children,
        cost.copy(),
    )


@entry
def _turn(edge_ptr, rows, columns, table, turned):
    """Write every table transposed."""
    for e in range(len(rows)):
        at = edge_ptr[e]
        for x in range(rows[e]):
            for y in range(columns[e]):
                turned[at + y * rows[e] + x] = table[at + x * columns[e] + y]


class Messages(NamedTuple):
    """Messages to the smaller and to the larger node of every edge, and where they begin."""

    low_ptr: Ints  # (m + 1,)
    high_ptr: Ints  # (m + 1,)
    to_low: Floats
    to_high: Floats


@entry
def carry_over(c, messages, node, strategy, f):
    """Write the messages of a compact problem to the edges that factors of a part of it have, too.

    Parameters
    ----------
    node, strategy : the node of `c` that every node of the part is, and its strategy within that
    node that every strategy is.
    """
    for e in range(len(f.edge)):
        for side in range(2):
            v, w = f.edge[e, side], f.edge[e, 1 - side]
            low, high = min(node[v], node[w]), max(node[v], node[w])
            i = c.adj_ptr[low] + np.searchsorted(
                c.adj_node[c.adj_ptr[low] : c.adj_ptr[low + 1]], high
            )
            if i == c.adj_ptr[low + 1] or c.adj_node[i] != high:
                continue
            old, to_low = c.adj_edge[i], node[v] == low
            for x in range(size_of(f, v)):
                z = strategy[f.node_ptr[v] + x]
                if to_low:
                    value = messages.to_low[messages.low_ptr[old] + z]
                else:
                    value = messages.to_high[messages.high_ptr[old] + z]
                if side == 0:
                    f.to_low[f.low_ptr[e] + x] = value
                else:
                    f.to_high[f.high_ptr[e] + x] = value


@inner_kernel
def _gather(f, v, b):
    """Write b_v of a node of the core and return its number of entries and of earlier neighbours in
    the core.
    """
    start = f.node_ptr[v]
    size = size_of(f, v)
    for x in range(size):
        b[x] = f.base[start + x]
    before = 0
    for i in range(f.core_ptr[v], f.adj_ptr[v + 1]):
        e = f.adj_edge[i]
        if f.adj_node[i] < v:
            before += 1
            at = f.high_ptr[e]
            for x in range(size):
                b[x] += f.to_high[at + x]
        else:
            at = f.low_ptr[e]
            for x in range(size):
                b[x] += f.to_low[at + x]
    return size, before


@inner_kernel
def _send(source, message, target, table, rows, columns, share, b):
    """Write target(y) = min_x share b(x) - message(x) + table(x, y), less its minimum, which is
    returned.
    """
    for y in range(columns):
        target[y] = np.inf
    for x in range(rows):
        a = share * b[x] - message[source + x]
        row = table[x * columns : (x + 1) * columns]
        for y in range(columns):
            value = a + row[y]
            target[y] = value if value < target[y] else target[y]
    least = np.inf
    for y in range(columns):
        least = min(least, target[y])
    for y in range(columns):
        target[y] -= least
    return least


@entry
def lift_trees(f, price):
    """Write what the trees that hang on the core cost at least by the strategy of their parents;
    return their minima.

    The messages to the nodes of trees are 0.
    """
    bound = 0.0
    for v in range(len(f.node_ptr) - 1):
        for x in row_of(f.node_ptr, v):
            f.base[x] = f.cost[x] + price[v] * f.usage[x]
    for v in range(f.core):
        i = f.core_ptr[v]
        e, w = f.adj_edge[i], f.adj_node[i]
        rows, columns = size_of(f, v), size_of(f, w)
        f.to_low[f.low_ptr[e] : f.low_ptr[e + 1]] = 0.0
        target = f.to_high[f.high_ptr[e] : f.high_ptr[e + 1]]
        bound += _send(
            f.low_ptr[e],
            f.to_low,
            target,
            f.table[f.edge_ptr[e] : f.edge_ptr[e + 1]],
            rows,
            columns,
            1.0,
            f.base[f.node_ptr[v] : f.node_ptr[v + 1]],
        )
        for y in range(columns):
            f.base[f.node_ptr[w] + y] += target[y]
    return bound


@entry
def sweep_up(f, width):
    """Send messages from every node of the core to its later neighbours; return the bound of the
    core.
    """
    b = np.empty(width)
    bound = 0.0
    for v in range(f.core, len(f.node_ptr) - 1):
        size, before = _gather(f, v, b)
        after = f.adj_ptr[v + 1] - f.core_ptr[v] - before
        share = 1.0 / max(before, after, 1)
        for i in range(f.core_ptr[v] + before, f.adj_ptr[v + 1]):
            e, w = f.adj_edge[i], f.adj_node[i]
            columns = size_of(f, w)
            bound += _send(
                f.low_ptr[e],
                f.to_low,
                f.to_high[f.high_ptr[e] : f.high_ptr[e + 1]],
                f.table[f.edge_ptr[e] : f.edge_ptr[e + 1]],
                size,
                columns,
                share,
                b,
            )
        if after * share < 1.0 - 1e-12:
            bound += (1.0 - after * share) * np.min(b[:size])
    return bound


@entry
def sweep_down(f, width):
    """Send messages from every node of the core, last first, to its earlier neighbours."""
    b = np.empty(width)
    for v in range(len(f.node_ptr) - 2, f.core - 1, -1):
        size, before = _gather(f, v, b)
        share = 1.0 / max(before, f.adj_ptr[v + 1] - f.core_ptr[v] - before, 1)
        for i in range(f.core_ptr[v], f.core_ptr[v] + before):
            e, u = f.adj_edge[i], f.adj_node[i]
            columns = size_of(f, u)
            _send(
                f.high_ptr[e],
                f.to_high,
                f.to_low[f.low_ptr[e] : f.low_ptr[e + 1]],
                f.turned[f.edge_ptr[e] : f.edge_ptr[e + 1]],
                size,
                columns,
                share,
                b,
            )


class Chains(NamedTuple):
    """The cheapest choices of the chains of the core; trees follow their parents."""

    weight: Floats  # (S,) part of the chains through its node that choose a strategy
    usage: Floats  # (n,) on average
    low: Ints  # (m,) of the smaller node of an edge of the core, in the chain over it
    high: Ints  # (m,) of the larger node


@entry
def chain_choices(f, width):
    """Return, after `sweep_up`, the cheapest choices of the chains.

    The gradient of the bound with respect to the prices: chains are followed back from their last
    node, where b is smallest. A node with k = max(before, after) chains passes its i-th chain from
    a later neighbour on to its i-th earlier one.
    """
    n = len(f.node_ptr) - 1
    weight = np.zeros(len(f.cost))
    low_label, label = np.full((2, len(f.edge)), -1, np.int64)
    b = np.empty(width)
    for v in range(n - 1, f.core - 1, -1):
        size, before = _gather(f, v, b)
        start, stop = f.core_ptr[v], f.adj_ptr[v + 1]
        after = stop - start - before
        chains = max(before, after, 1)
        share = 1.0 / chains
        best = np.argmin(b[:size])
        for k in range(chains):
            x = int(best)
            if k < after:
                e, w = f.adj_edge[start + before + k], f.adj_node[start + before + k]
                columns = size_of(f, w)
                at, low = f.edge_ptr[e] + label[e], f.low_ptr[e]
                least = np.inf
                for z in range(size):
                    value = share * b[z] - f.to_low[low + z] + f.table[at + z * columns]
                    if value < least:
                        least, x = value, z
                low_label[e] = x
            if k < before:
                label[f.adj_edge[start + k]] = x
            weight[f.node_ptr[v] + x] += share
    return Chains(weight, _followed(f, weight), low_label, label)


@inner_kernel
def following(f, v, e, y):
    """Return the strategy of a node of a tree, the cheapest, where its parent has y."""
    size = size_of(f, v)
    best, least = 0, np.inf
    for x in range(size):
        value = f.base[f.node_ptr[v] + x] + f.turned[f.edge_ptr[e] + y * size + x]
        if value < least:
            best, least = x, value
    return best


@inner_kernel
def _followed(f, weight):
    """Return usages by weights of strategies; write those of trees, by the weights of their
    parents' strategies.
    """
    for v in range(f.core - 1, -1, -1):
        i, start = f.core_ptr[v], f.node_ptr[v]
        e, w = f.adj_edge[i], f.adj_node[i]
        for y in range(size_of(f, w)):
            share = weight[f.node_ptr[w] + y]
            if share > 0.0:
                weight[start + following(f, v, e, y)] += share
    expected = np.zeros(len(f.node_ptr) - 1)
    for v in range(len(expected)):
        for x in row_of(f.node_ptr, v):
            expected[v] += weight[x] * f.usage[x]
    return expected


@entry
def settle(f, width):
    """Move, after `sweep_up`, every node's shares of b into its edges, so that the plain sum of
    minima is the bound.
    """
    for v in range(f.core):
        at, start = f.low_ptr[f.adj_edge[f.core_ptr[v]]], f.node_ptr[v]
        for x in range(size_of(f, v)):
            f.to_low[at + x] -= f.base[start + x]
    b = np.empty(width)
    for v in range(f.core, len(f.node_ptr) - 1):
        size, before = _gather(f, v, b)
        after = f.adj_ptr[v + 1] - f.core_ptr[v] - before
        share = 1.0 / max(before, after, 1)
        for i in range(f.core_ptr[v] + before, f.adj_ptr[v + 1]):
            at = f.low_ptr[f.adj_edge[i]]
            for x in range(size):
                f.to_low[at + x] -= share * b[x]


@entry
def clamp_to(f, cost, table, most):
    """Take the costs of nodes and edges anew, each at most `most`."""
    for i in range(len(cost)):
        f.cost[i] = min(float(cost[i]), most)
    for e in range(len(f.edge)):
        rows = size_of(f, f.edge[e, 0])
        columns = size_of(f, f.edge[e, 1])
        at = f.edge_ptr[e]
        for x in range(rows):
            for y in range(columns):
                value = min(float(table[at + x * columns + y]), most)
                f.table[at + x * columns + y] = value
                f.turned[at + y * rows + x] = value
