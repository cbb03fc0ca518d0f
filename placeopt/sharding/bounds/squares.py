"""Squares: a bound for graphs in which every node has many neighbours.

Let a choice be the vector x of a 1, then a 1 for every strategy that is chosen and a 0 for every
other. For any vectors l_k its cost is

    cost(x) = sum_k (l_k x)^2 + rest(x) >= rest(x),

and as no node has two strategies, the rest is again a cost of nodes and of pairs of nodes, now of
all pairs: with M = sum_k l_k l_k^T a strategy i costs M_ii + 2 M_0i less, a pair 2 M_ij, and all
together M_00. Prices and messages bound the rest. Where costs are drawn at random, what messages
prove falls behind by half as degrees grow, while the best squares stay within some per cent: the
local polytope and positive semidefiniteness together. Vectors are rounded to whole numbers; any
prove something.

The best M is looked for by the method of multipliers, alternating between matrices R that are
positive semidefinite, and Y that have the form of a mixture of choices: Y_0i = Y_ii, no two
strategies of a node together, nothing below 0 nor above 1. The projection P keeps of a matrix what
depends on choices of one strategy per node.

References
----------
D. E. Oliveira, H. Wolkowicz, Y. Xu, "ADMM for the SDP relaxation of the QAP", Mathematical
Programming Computation 10, 2018. M. J. Wainwright, M. I. Jordan, "Graphical Models, Exponential
Families, and Variational Inference", 2008 (relaxations beyond the local polytope).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, sparse

from placeopt.model.arrays import Flags, Floats, Ints, row_at
from placeopt.model.compiled import entry
from placeopt.model.threads import one_blas_thread
from placeopt.sharding.bounds.exact_pass import Witness, prices_of_nodes, survivors
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.compact import Compact, adjacency
from placeopt.sharding.problem import starts_of

ROUND = 5
"""Steps between two proofs: on dense graphs the first ones gain most of what 60 do."""

STEPS = 25
"""Steps of the bound of what squares leave."""

FITS = 0.001
"""Misfit at which the squares are nearly as good as they become."""

MOST_STRATEGIES = 3000
"""Ten matrices of so many rows take 0.7 GB."""

COST_BITS = 36
"""Bits of the cost of a known choice in the unit of the rest: what is rounded is far below what
matters, and products of vectors, some times as large, are exact in floats."""

EXACT = 2.0**50
"""Largest square of a vector in that unit, and what is given up costs as much."""


class Proof(NamedTuple):
    """What squares prove: a bound, and which strategies a better choice can use.

    Attributes
    ----------
    vectors : of the constant, then of each strategy, whole numbers; their products are in units of
    2^-bits. rest : what they leave. witness : of the bound of that.
    """

    bound: int
    alive: Flags
    vectors: Ints
    bits: int
    rest: Compact
    witness: Witness


class Squares:
    """Squares of a problem, improved step by step.

    Parameters
    ----------
    below : cost of a known choice. prices : of usage by time point, to begin at.

    Attributes
    ----------
    misfit : how far R and Y are apart, as a part of them.
    """

    def __init__(self, compact: Compact, below: int, prices: Floats) -> None:
        self.compact, self.prices, self._below = compact, prices, below
        self._costs, self._open = _matrices(compact, below)
        sizes = compact.num_choices
        mean = np.concatenate([np.ones(1), np.repeat(1 / sizes, sizes)])
        self._basis = _basis(mean, sizes)
        self._y = np.outer(mean, mean)
        self._z = np.zeros_like(self._y)
        self._vectors = np.zeros((len(mean), 1))
        self.misfit = np.inf
        self._aim()
        self._weight = float(np.linalg.norm(self._aimed) / np.linalg.norm(self._y)) or 1.0

    @one_blas_thread()
    def step(self) -> None:
        """Take a step of the method of multipliers."""
        values, vectors = np.linalg.eigh(self._inner(self._y + self._z / self._weight))
        vectors, up = self._basis @ vectors, values > 0
        r = (vectors[:, up] * values[up]) @ vectors[:, up].T
        self._vectors = vectors[:, ~up] * np.sqrt(-self._weight * self._unit * values[~up])
        y = np.clip(r - (self._aimed + self._z) / self._weight, 0.0, 1.0) * self._open
        diagonal = np.einsum("ii->i", y)
        diagonal[1:] = y[0, 1:] = y[1:, 0] = (2 * y[0, 1:] + diagonal[1:]) / 3
        diagonal[0] = 1.0
        self._z += self._weight * (y - r)
        self._y, self.misfit = y, float(np.linalg.norm(y - r) / np.linalg.norm(y))

    @one_blas_thread()
    def prove(self, upper: int) -> Proof:
        """Bound what the squares leave; go on at the prices that are found.

        Parameters
        ----------
        upper : cost of a known choice, at most `below`.
        """
        bits = 2 * ((COST_BITS - self._below.bit_length()) // 2)
        rest, offset, vectors = self._rest(bits)
        dual = Dual(rest, self.prices * 2.0**bits)
        below = max(1, -_shifted(-upper, bits) - offset)
        dual.aim(below)
        for _ in range(STEPS):
            dual.step()
        found, witness, clamped = dual.certify()
        self.prices = dual.prices / 2.0**bits
        self._aim()
        bound = -_shifted(-(found.bound + offset), -bits)
        alive = survivors(clamped, witness, found, below)[0]
        return Proof(bound, alive, vectors, bits, rest, witness)

    def _rest(self, bits: int) -> tuple[Compact, int, Ints]:
        """Return what the squares leave, in units of 2^-bits, what every choice costs besides, and
        the vectors.
        """
        c = self.compact
        longest = float(np.square(self._vectors).sum(axis=1).max()) * 2.0**bits
        scale = min(1.0, EXACT / longest) if longest else 1.0
        vectors = np.rint(self._vectors * np.sqrt(scale) * 2.0 ** (bits // 2))
        squares = (vectors @ vectors.T).astype(np.int64)
        left = _shifted(self._costs, bits) - 2 * squares
        diagonal = np.einsum("ii->i", left)
        diagonal += squares.diagonal() - 2 * squares[0]
        left[~self._open] = int(EXACT)
        cost = diagonal[1:]
        least = np.minimum.reduceat(cost, c.node_ptr[:-1])
        n, sizes = c.num_nodes, c.num_choices
        edge = np.column_stack(np.triu_indices(n, 1))
        edge_ptr = starts_of(sizes[edge[:, 0]] * sizes[edge[:, 1]])
        table = np.empty(int(edge_ptr[-1]), np.int64)
        offset = int(least.sum() + _fill(c.node_ptr, left, table)) - int(squares[0, 0])
        adj_ptr, adj_edge, adj_node = adjacency(n, edge)
        rest = c._replace(
            cost=cost - np.repeat(least, sizes),
            edge=edge,
            edge_ptr=edge_ptr,
            table=table,
            adj_ptr=adj_ptr,
            adj_edge=adj_edge,
            adj_node=adj_node,
            core=0,
        )
        return rest, offset, vectors.astype(np.int64)

    def _aim(self) -> None:
        """Take the costs at the prices, without what every choice costs, in a unit in which they
        are at most 1.
        """
        c = self.compact
        priced = np.where(self._open, self._costs / 2, 0.0)
        usage = np.repeat(prices_of_nodes(c, self.prices), c.num_choices) * c.usage
        np.einsum("ii->i", priced)[1:] = np.minimum(c.cost, self._below) + usage
        inner = self._inner(priced)
        inner[0, 0] = 0.0
        priced = self._basis @ (self._basis @ inner).T
        self._unit = float(np.abs(priced).max()) or 1.0
        self._aimed = priced / self._unit

    def _inner(self, matrix: Floats) -> Floats:
        """Return a symmetric matrix by the basis of choices."""
        return self._basis.T @ (self._basis.T @ matrix).T


def _basis(mean: Floats, sizes: Ints) -> Any:
    """Return orthonormal columns, sparse, that span all choices: their mean, then, by node, what
    sums to 0.
    """
    alike = {k: linalg.helmert(k).T for k in np.unique(sizes).tolist()}
    blocks = sparse.block_diag([alike[k] for k in sizes.tolist()])
    rest = sparse.vstack([sparse.csr_array((1, blocks.shape[1])), blocks])
    first = sparse.csr_array(mean[:, None] / np.linalg.norm(mean))
    return sparse.hstack([first, rest]).tocsr()


def _shifted(costs, bits):
    """Return whole numbers times 2^bits, rounded down."""
    return costs << bits if bits >= 0 else costs >> -bits


def _matrices(compact: Compact, below: int) -> tuple[Ints, Flags]:
    """Return costs of strategies (diagonal) and pairs, row and column 0 those of the constant, and
    what may be chosen together.
    """
    c, ptr = compact, compact.node_ptr
    count = 1 + len(c.cost)
    costs = np.zeros((count, count), np.int64)
    owner = np.concatenate([np.full(1, -1), np.repeat(np.arange(c.num_nodes), c.num_choices)])
    open_ = owner[:, None] != owner[None]
    for e, (u, v) in enumerate(c.edge.tolist()):
        rows, columns = slice(1 + ptr[u], 1 + ptr[u + 1]), slice(1 + ptr[v], 1 + ptr[v + 1])
        table = row_at(c.table, c.edge_ptr, e).reshape(-1, ptr[v + 1] - ptr[v])
        costs[rows, columns] = np.minimum(table, below)
        costs[columns, rows] = costs[rows, columns].T
    np.einsum("ii->i", costs)[1:] = np.minimum(c.cost, below)
    np.einsum("ii->i", open_)[:] = True
    open_ &= costs < below
    alive = open_.diagonal()
    return costs, open_ & alive[:, None] & alive[None]


@entry
def _fill(node_ptr, left, table):
    """Write the tables of all pairs of nodes, each less its minimum; return the sum of these."""
    total = at = 0
    for u in range(len(node_ptr) - 1):
        for v in range(u + 1, len(node_ptr) - 1):
            begin, least = at, left[1 + node_ptr[u], 1 + node_ptr[v]]
            for x in range(1 + node_ptr[u], 1 + node_ptr[u + 1]):
                for y in range(1 + node_ptr[v], 1 + node_ptr[v + 1]):
                    table[at] = left[x, y]
                    least = min(least, left[x, y])
                    at += 1
            table[begin:at] -= least
            total += least
    return total
