"""Windows of a choice, chosen anew by CP-SAT: some nodes are free, all others keep their strategy.

A window grows from a node by breadth first search over edges, and, where the node is live at a time
point that has little room, over the nodes that are live there too: those share the room. It grows
while the pairs of strategies that stay open fit a number that doubles with every window that
CP-SAT settles and halves with every one that it does not.

References
----------
P. Shaw, "Using constraint programming and local search methods to solve vehicle routing problems",
CP 1998 (large neighbourhood search).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.sharding.bounds.bounding import CP_SAT_PAIRS, amount_left
from placeopt.sharding.compact import as_draft, condense, over_time
from placeopt.sharding.exact_rest import solve_rest

if TYPE_CHECKING:
    from placeopt.model.arrays import Flags, Ints
    from placeopt.sharding.compact import Compact


FIRST_PAIRS = 2000
"""Open pairs of the first window."""

SECONDS = 0.1
"""CP-SAT's deterministic seconds per window: the length of one step of a search, after which others
get their turn."""


class Windows:
    """Windows on one problem.

    Attributes
    ----------
    pairs : about how many pairs of strategies the next window leaves open.
    """

    def __init__(self, compact: Compact, rng: np.random.Generator) -> None:
        self.compact, self.rng = compact, rng
        self.pairs = FIRST_PAIRS

    def improve(self, choice: Ints, cost: int) -> Ints | None:
        """Return a choice of less than `cost`, that of `choice`, which differs in a window; None if
        none was found.
        """
        c = self.compact
        free = self._window(choice)
        alive = np.repeat(free, c.num_choices)
        alive[c.node_ptr[:-1] + choice] = True
        inner = condense(as_draft(c), alive)
        rest, below = inner.compact, cost - inner.offset
        if rest.num_nodes == 0 or below <= 0:
            return None
        if amount_left(rest, below) > CP_SAT_PAIRS:
            self._shrink()
            return None
        found = solve_rest(
            rest,
            below,
            seconds=SECONDS,
            deterministic=True,
            seed=int(self.rng.integers(2**31)),
        )
        settled = found.bound >= below if found.choice is None else True
        if settled:
            self.pairs = min(2 * self.pairs, CP_SAT_PAIRS)
        else:
            self._shrink()
        return None if found.choice is None else inner.expand(found.choice)

    def _shrink(self) -> None:
        self.pairs = max(FIRST_PAIRS // 8, self.pairs // 2)

    def _window(self, choice: Ints) -> Flags:
        """Return which nodes are free."""
        c = self.compact
        sizes = c.num_choices
        amounts = c.usage[c.node_ptr[:-1] + choice]
        used = over_time(c.first, c.last, amounts, len(c.capacity))
        free = np.zeros(c.num_nodes, np.bool_)
        first = int(self.rng.integers(c.num_nodes))
        queue, open_pairs = [first], 0
        seen = {first}
        while queue and open_pairs < self.pairs:
            v = queue.pop(0)
            free[v] = True
            near = c.adj_node[c.adj_ptr[v] : c.adj_ptr[v + 1]]
            open_pairs += int(sizes[v]) + int((sizes[near] * sizes[v])[free[near]].sum())
            more = self.rng.permutation(near).tolist()
            more += self._sharing(v, used)
            for w in more:
                if w not in seen:
                    seen.add(w)
                    queue.append(w)
        return free

    def _sharing(self, v: int, used: Ints) -> list[int]:
        """Return a node that is live at the fullest time point of v, if any."""
        c = self.compact
        first, last = int(c.first[v]), int(c.last[v])
        if first == last:
            return []
        full = used[first:last] / np.maximum(1, c.capacity[first:last])
        time = first + int(full.argmax())
        live = np.flatnonzero((c.first <= time) & (time < c.last))
        return [int(live[self.rng.integers(len(live))])]
