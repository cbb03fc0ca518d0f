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
from placeopt.sharding.compact import Draft, condense, costs_of, over_time
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

    def improve(self, choice: Ints) -> Ints | None:
        """Return a choice that costs less than `choice` and differs in a window; None if none was
        found.
        """
        c = self.compact
        amounts = c.usage[c.node_ptr[:-1] + choice]
        used = over_time(c.first, c.last, amounts, len(c.capacity))
        free = self._window(used)
        node, draft = around(c, free, c.capacity - used, choice)
        alive = np.repeat(free[node], np.diff(draft.node_ptr))
        alive[draft.node_ptr[:-1] + choice[node]] = True
        inner = condense(draft, alive)
        rest = inner.compact
        if rest.num_nodes == 0:
            return None
        known = inner.contract(choice[node])
        assert known is not None
        below = sum(int(part.sum()) for part in costs_of(rest, known))
        if below == 0:
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
        if found.choice is None:
            return None
        better = choice.copy()
        better[node] = inner.expand(found.choice)
        return better

    def _shrink(self) -> None:
        self.pairs = max(FIRST_PAIRS // 8, self.pairs // 2)

    def _window(self, used: Ints) -> Flags:
        """Return which nodes are free.

        Parameters
        ----------
        used : usage at every time point.
        """
        c = self.compact
        sizes = c.num_choices
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


def around(c: Compact, free: Flags, room: Ints, choice: Ints) -> tuple[Ints, Draft]:
    """Return the nodes that are free or neighbours of such, and the draft of their edges to those
    that are free; all others keep their choice, and what these nodes use now is free to them.

    Parameters
    ----------
    room : that `choice` leaves at every time point.
    """
    touching = free[c.edge].any(axis=1)
    inside = free.copy()
    inside[c.edge[touching].ravel()] = True
    node = np.flatnonzero(inside)
    rank = np.cumsum(inside) - 1
    strategies = np.repeat(inside, c.num_choices)
    lengths = np.diff(c.edge_ptr)
    first, last = c.first[node], c.last[node]
    mine = over_time(first, last, c.usage[c.node_ptr[node] + choice[node]], len(room))
    return node, Draft(
        np.concatenate([[0], np.cumsum(c.num_choices[node])]).astype(np.int64),
        c.cost[strategies],
        c.usage[strategies],
        first,
        last,
        rank[c.edge[touching]],
        np.concatenate([[0], np.cumsum(lengths[touching])]).astype(np.int64),
        c.table[np.repeat(touching, lengths)],
        room + mine,
    )
