"""Windows: a part of a problem decided anew by CP-SAT, everything else as it is chosen.

The nodes outside are decided, so that their edges become costs of the nodes inside and their usage leaves the room
that these have (`condense`); what cannot be in a cheaper choice is taken away (`reduce`), and CP-SAT looks for one.

References
----------
P. Shaw, "Using Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems", CP 1998 (large
neighbourhood search).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from placeopt.sharding.compact import as_draft, condense
from placeopt.sharding.exact_rest import solve_rest
from placeopt.sharding.reduction import reduce

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.sharding.compact import Compact

    Ints = NDArray[np.int64]


def region(compact: Compact, root: int, most_pairs: int) -> Ints:
    """Return nodes around `root` in the order of their distance, whose edges have at most `most_pairs` pairs."""
    sizes, pointer, neighbour = compact.num_choices, compact.adj_ptr, compact.adj_node
    inside, queue, pairs = {root}, deque([root]), 0
    while queue and pairs < most_pairs:
        v = queue.popleft()
        others = neighbour[pointer[v] : pointer[v + 1]]
        for w in others.tolist():
            pairs += int(sizes[v] * sizes[w])
            if w not in inside:
                inside.add(w)
                queue.append(w)
            if pairs >= most_pairs:
                break
    return np.fromiter(inside, dtype=np.int64, count=len(inside))


def decide_anew(compact: Compact, choice: Ints, nodes: Ints, *, most_pairs: int, seconds: float, workers: int = 1) -> Ints | None:
    """Return a cheaper choice that differs in `nodes` only, None if none was found.

    Parameters
    ----------
    most_pairs : of strategies that may be left for CP-SAT.
    """
    inside = np.zeros(compact.num_nodes, dtype=np.bool_)
    inside[nodes] = True
    alive = np.repeat(inside, compact.num_choices)
    alive[compact.node_ptr[:-1] + choice] = True
    window = condense(as_draft(compact), alive)
    now = window.contract(choice)
    if now is None or window.compact.num_nodes == 0:
        return None
    c = window.compact
    pairs = c.edge_ptr[:-1] + now[c.edge[:, 0]] * c.num_choices[c.edge[:, 1]] + now[c.edge[:, 1]]
    cost = int(c.cost[c.node_ptr[:-1] + now].sum()) + int(c.table[pairs].sum())
    rest = reduce(window, cost)
    if rest is None or rest.compact.capacity.min(initial=0) < 0:
        return None
    upper = cost + window.offset - rest.offset
    if rest.compact.num_nodes == 0:
        return rest.expand(np.zeros(0, dtype=np.int64)) if upper > 0 else None
    left = rest.compact.table < min(cost, upper)
    if upper <= 0 or left.sum() > most_pairs:
        return None
    found = solve_rest(rest.compact, rest.compact.cost < upper, left, upper, seconds=seconds, workers=workers)
    return None if found.choice is None else rest.expand(found.choice)
