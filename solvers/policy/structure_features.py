"""Structure-aware features of ops: degrees, levels, centrality, fractal dimension, spectral and
positional encodings.

The features of HSDAG, each scaled to [0, 1] (encodings to [-1, 1]) over the graph, so that one set
of weights serves all graphs.

References
----------
- S. Duan et al. A structure-aware framework for learning device placements on computation graphs
  (HSDAG). NeurIPS 2024.
- L. Page, S. Brin, R. Motwani, T. Winograd. The PageRank citation ranking: bringing order to the
  Web. Stanford, 1999.
- C. Song, S. Havlin, H. A. Makse. Self-similarity of complex networks. Nature 433, 2005. (Mass and
  fractal dimension.)
"""

from __future__ import annotations

from collections import Counter
from inspect import signature

import numpy as np
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.linalg import ArpackError, eigsh

from placeopt.model.arrays import Floats
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.heuristics import ranks
from placeopt.solvers.heuristics.context import Context

GRAPH_FEATURES = (
    "in_degree",
    "out_degree",
    "level",
    "height",
    "centrality",
    "fractal_dimension",
    "compute",
    "output",
    "b_level",
)
SPECTRAL_FEATURES = tuple(f"spectral_{i}" for i in range(4))
POSITION_FEATURES = tuple(f"position_{i}" for i in range(4))
STRUCTURE = (*GRAPH_FEATURES, *SPECTRAL_FEATURES, *POSITION_FEATURES)

TYPES = ("types",) * 12
"""Names of the columns of the most frequent op types: an ablation leaves out all of them."""

SEED = {"rng": 0} if "rng" in signature(eigsh).parameters else {}
"""From scipy 1.17 on the search for eigenvectors draws directions when it has run out of them, from
the entropy of the system unless it is given a seed."""


def structure_features(problem: PlacementProblem) -> Floats:
    """Return the features named in STRUCTURE, shape (num_ops, features)."""
    view = Context(problem)
    adjacency = _adjacency(problem)
    # Edges on the longest path from a source to each op, and from it to a sink
    nothing, edges = np.zeros(problem.num_ops), np.ones(problem.num_tensors)
    level = ranks.downward_rank(view.graph, nothing, edges)
    height, _ = ranks.upward_rank(view.graph, nothing, edges)
    columns = np.column_stack(  # in the order of GRAPH_FEATURES
        [
            view.graph.indegree,
            np.diff(problem.successors.pointer),
            level,
            height,
            _centrality(adjacency),
            _fractal_dimension(adjacency),
            view.mean_compute,
            np.bincount(problem.producer, view.mean_transfer, problem.num_ops),
            view.upward_rank()[0],
        ]
    )
    phase = level / max(1.0, float(level.max())) * np.pi
    waves = [
        (np.cos if i % 2 else np.sin)(phase * 2 ** (i // 2)) for i in range(len(POSITION_FEATURES))
    ]
    scale = np.maximum(1e-300, columns.max(axis=0))
    return np.column_stack([columns / scale, _spectral(adjacency), *waves])


def type_features(problem: PlacementProblem) -> Floats:
    """One column per frequent op type (1 where the op has it), shape (num_ops, len(TYPES))."""
    count = Counter(problem.op_types)
    ranked = sorted(count, key=lambda name: (-count[name], name))[: len(TYPES)]
    table = np.zeros((problem.num_ops, len(TYPES)))
    for i, kind in enumerate(ranked):
        table[:, i] = [name == kind for name in problem.op_types]
    return table


def neighbour_means(problem: PlacementProblem, features: Floats) -> Floats:
    """Mean features of each op's neighbours, shape of `features`: what an op's adjacency says about
    it.
    """
    adjacency = _adjacency(problem)
    return adjacency @ features / np.maximum(1.0, adjacency.sum(axis=1))[:, None]


def _adjacency(problem: PlacementProblem) -> csr_array:
    """Undirected adjacency, 1 per connected pair."""
    n = problem.num_ops
    source = problem.edge_source
    both = np.concatenate([source, problem.consumer]), np.concatenate([problem.consumer, source])
    matrix = coo_array((np.ones(2 * problem.num_edges), both), shape=(n, n)).tocsr()
    matrix.data[:] = 1.0
    return matrix


def _centrality(adjacency: csr_array, damping: float = 0.85, steps: int = 60) -> Floats:
    """PageRank by power iteration."""
    n = adjacency.shape[0]
    degree = np.maximum(1.0, adjacency.sum(axis=1))
    rank = np.full(n, 1.0 / n)
    for _ in range(steps):
        rank = (1 - damping) / n + damping * (adjacency @ (rank / degree))
    return rank


def _fractal_dimension(adjacency: csr_array, *, max_radius: int = 8) -> Floats:
    """Slope of log(ops within r steps) against log r, for r = 1, 2, 4, ... (the mass dimension at
    each op).
    """
    n = adjacency.shape[0]
    if n > 4000:  # balls of large graphs are large: a local estimate from the degree alone
        return np.log1p(adjacency.sum(axis=1))
    reach = csr_array((np.ones(n), (np.arange(n), np.arange(n))), shape=(n, n))
    radii, masses = [], []
    for radius in range(1, max_radius + 1):
        reach = reach + reach @ adjacency
        reach.data[:] = 1.0
        if radius & (radius - 1) == 0:
            radii.append(np.log(radius + 1))
            masses.append(np.log(np.diff(reach.tocsr().indptr)))
    x = np.array(radii) - np.mean(radii)
    return np.maximum(0.0, (x[:, None] * np.array(masses)).sum(axis=0) / (x**2).sum())


def _spectral(adjacency: csr_array) -> Floats:
    """Eigenvectors of the smallest non-trivial eigenvalues of the normalised Laplacian, shape (n,
    len(SPECTRAL_FEATURES)).
    """
    n, wanted = adjacency.shape[0], len(SPECTRAL_FEATURES)
    found = np.zeros((n, wanted))
    count = min(wanted + 1, n - 2)
    if count < 2:
        return found
    scale = 1.0 / np.sqrt(np.maximum(1.0, adjacency.sum(axis=1)))
    near_identity = diags_array(scale) @ adjacency @ diags_array(scale) + diags_array(np.ones(n))
    try:
        # A fixed start and a seed make the vectors the same in every run.
        _, vectors = eigsh(
            near_identity, k=count, which="LA", v0=np.linspace(1.0, 2.0, n), maxiter=2000, **SEED
        )
    except ArpackError:
        return found
    vectors = vectors[:, ::-1][:, 1:]
    top = np.abs(vectors).argmax(axis=0)
    sign = np.sign(vectors[top, np.arange(vectors.shape[1])])
    found[:, : vectors.shape[1]] = vectors * sign / np.maximum(1e-12, np.abs(vectors).max(axis=0))
    return found
