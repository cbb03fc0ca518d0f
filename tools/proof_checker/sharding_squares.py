"""Squares: what costs are left when a sum of squares is taken out (M. J. Wainwright, M. I. Jordan,
2008).

A vector of integers `first` and one for every strategy of some nodes, l_0 and l_x: for any choice
the square of l_0 plus the vectors that it chooses is not negative. Written out that is

    |l_0|^2 + sum over nodes of [|l_x|^2 + 2 l_0 l_x] + sum over pairs of nodes of 2 l_x l_y,

so a choice costs no less than if all these were taken from the costs, 2^shift times in units of
2^-k; then all pairs of these nodes have tables.
"""

from itertools import combinations
from operator import mul

from proof_checker.reading import NUMBER, entries, numbers, table, whole


def with_squares(squares, node, tables):
    """Take squares [shift, first, [[node, vectors], ...]] from costs; return what is left of 0."""
    shift, first, rows = entries(squares, 3)
    whole(shift, 0, 64)
    width, vectors = len(numbers(first, None, -NUMBER, NUMBER)), {}
    for row in entries(rows):
        v, of = entries(row, 2)
        whole(v, max(vectors, default=-1) + 1, len(node) - 1)
        vectors[v] = table(of, len(node[v]), width, -NUMBER, NUMBER)
        node[v] = [
            cost - (product(x, x) + 2 * product(first, x) << shift)
            for cost, x in zip(node[v], vectors[v], strict=True)
        ]
    for u, v in combinations(vectors, 2):
        known = tables.get((u, v), [[0] * len(node[v])] * len(node[u]))
        tables[u, v] = [
            [cost - (2 * product(x, y) << shift) for cost, y in zip(row, vectors[v], strict=True)]
            for row, x in zip(known, vectors[u], strict=True)
        ]
    return -(product(first, first) << shift)


def product(x, y):
    """Return the inner product of two vectors."""
    return sum(map(mul, x, y))
