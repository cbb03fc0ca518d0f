"""Lower bounds on the cost of every feasible choice; `placeopt.sharding.objective` runs them,
cheapest first.

The independent bound: every node and every edge at its cheapest. Proof. A choice pays for each node
at least the smallest of its costs, and for each edge at least the smallest entry of its table; the
limit is ignored.
"""

from __future__ import annotations

import numpy as np

from placeopt.sharding.evaluate import exact_sum
from placeopt.sharding.problem import ShardingProblem


def independent_bound(problem: ShardingProblem) -> int:
    """Return the sum of the smallest costs of nodes and edges."""
    total = exact_sum(np.minimum.reduceat(problem.cost, problem.node_ptr[:-1]))
    if problem.num_edges:
        total += exact_sum(np.minimum.reduceat(problem.edge_cost, problem.edge_ptr[:-1]))
    return total
