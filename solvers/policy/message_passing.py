"""What the graph says of every op: features passed along and against the edges, for the hidden
layers of a dual policy.

Round r takes, for each op, the mean of its producers' means and the maximum of their maxima of
round r - 1 (round 0 are the op's own features), and the same of its consumers. All rounds stand
side by side, so that one linear layer sees what is up to r edges away. The types of ops are
embedded by their names: four numbers drawn from a hash, the same for every graph, passed on like
the other features.

What is known of the optimum is among the features: the slack of each op on the critical path with
mean communication and without any, and the work of its cluster of expensive edges over a device's
share.

References
----------
- J. Gilmer, S. S. Schoenholz, P. F. Riley, O. Vinyals, G. E. Dahl. Neural message passing for
  quantum chemistry. ICML 2017.
- R. Addanki et al. Placeto: learning generalizable device placement algorithms for distributed
  machine learning. NeurIPS 2019. (Messages both ways, aggregated over a few rounds.)
"""

from __future__ import annotations

import hashlib

import numpy as np

from placeopt.model.arrays import Floats
from placeopt.model.compiled import row_of, uncounted_entry
from placeopt.model.problem import PlacementProblem
from placeopt.model.projection import Edges

ROUNDS = 2
TYPE_NUMBERS = 4

OWN = (
    "b_level",
    "t_level",
    "compute",
    "incoming",
    "outgoing",
    "out_degree",
    "slack",
    "free_slack",
    "in_degree",
    "cluster_work",
    "communication_share",
    "best_device",
    *(f"type_{i}" for i in range(TYPE_NUMBERS)),
)
"""Features of an op alone, each in [0, 1] but for the types' numbers, in [-1, 1]."""

WHOLE = ("one", "devices", "communication", "parallelism")
"""What is said of the whole graph, in every row."""

NUM_COLUMNS = len(WHOLE) + len(OWN) * (1 + 4 * ROUNDS)
"""Numbers per op that `op_contexts` returns."""


def op_contexts(problem: PlacementProblem, own: Floats) -> Floats:
    """Return what the graph says of every op, shape (num_ops, NUM_COLUMNS).

    Parameters
    ----------
    own : the ops' own features, shape (num_ops, len(OWN)).
    """
    n, width = own.shape
    table = np.zeros((n, width * (1 + 4 * ROUNDS)))
    table[:, :width] = own
    for r in range(ROUNDS):
        for side, edges in enumerate((problem.predecessors, problem.successors)):
            for kind in (0, 1):  # means, then maxima
                to = width * (1 + 4 * r + 2 * side + kind)
                source = 0 if r == 0 else to - 4 * width
                _pass_on(edges, table, source, to, width, kind == 1)
    work = problem.compute.max(axis=1).sum() + 1e-300
    delay = problem.transfer.max(axis=1).sum() if problem.num_tensors else 0.0
    longest = max(
        1e-300, float((problem.min_compute * (own[:, OWN.index("free_slack")] == 0)).sum())
    )
    whole = (
        1.0,
        np.log2(problem.num_devices) / 6,
        delay / (delay + work),
        min(1.0, float(problem.min_compute.sum()) / longest / (4 * problem.num_devices)),
    )
    return np.ascontiguousarray(np.hstack([np.tile(whole, (n, 1)), table]))


@uncounted_entry
def _pass_on(edges: Edges, table: Floats, source: int, to: int, width: int, largest: bool) -> None:
    """Fill `width` columns from `to` on with the mean, or the largest, of each op's neighbours in
    the columns from `source`.
    """
    for v in range(table.shape[0]):
        count = edges.pointer[v + 1] - edges.pointer[v]
        for e in row_of(edges.pointer, v):
            u = edges.op[e]
            for f in range(width):
                if largest:
                    if e == edges.pointer[v] or table[u, source + f] > table[v, to + f]:
                        table[v, to + f] = table[u, source + f]
                else:
                    table[v, to + f] += table[u, source + f] / count


def type_numbers(op_types: tuple[str, ...]) -> Floats:
    """Return TYPE_NUMBERS numbers in [-1, 1] per op: a hash of the name of its type."""
    numbers = {}
    for name in dict.fromkeys(op_types):
        digest = hashlib.blake2b(name.lower().encode(), digest_size=TYPE_NUMBERS).digest()
        numbers[name] = [byte / 127.5 - 1.0 for byte in digest]
    return np.array([numbers[name] for name in op_types]).reshape(len(op_types), TYPE_NUMBERS)
