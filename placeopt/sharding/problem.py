"""ShardingProblem: choose one strategy per node; costs on nodes and edges, a limit on what is used
at every moment.

Node v has the strategies 0 .. K_v - 1 with costs c_v and usages u_v, and is live at the time points
of its interval [start, end). A choice x costs sum_v c_v(x_v) + sum_(v, w) C_vw(x_v, x_w); parallel
edges add up. It is feasible if at every time point the usages u_v(x_v) of the live nodes add up to
at most the limit; without a limit usages decide nothing. Costs are int64 and may be huge
("forbidden" is a cost like any other), so totals are Python integers.

References
----------
M. Moffitt, P. Fegade, "The ASPLOS 2025 / EuroSys 2025 Contest on Intra-Operator Parallelism for
Distributed Deep Learning", 2025.
L. Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep
Learning", OSDI 2022.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from placeopt.io.serialize import Codec, register, register_plain
from placeopt.model.arrays import (
    UNLIMITED,
    UNSET,
    ArrayHolder,
    Ints,
    check_positive,
    int_array,
    row_at,
)
from placeopt.model.errors import InputError
from placeopt.model.objective import check_objective

MAX_NUMBER = 2**62
"""Costs and usages are below this, so that two of them can be added in 64 bits."""


def starts_of(sizes: ArrayLike) -> Ints:
    """Return where parts of these sizes begin, one behind the other, and where the last ends."""
    return np.append(0, np.cumsum(sizes, dtype=np.int64))


@dataclass(frozen=True, eq=False, repr=False)
class ShardingProblem(ArrayHolder):
    """One strategy for each of n nodes, with m edges between them; S strategies and E pairs of
    strategies in all.

    Attributes
    ----------
    usage_limit : most usage at any time point, `UNLIMITED` for no limit.
    tick_seconds : seconds per unit of cost; 1.0 where the unit is not known.
    node_names, strategy_names : for people, n and S of them; empty where there are none.
    """

    name: str
    node_ptr: Ints  # (n + 1,) strategies of node v: node_ptr[v] .. node_ptr[v + 1] - 1
    cost: Ints  # (S,)
    usage: Ints  # (S,) bytes
    # (n, 2) start and end of the time points at which a node is live; equal: never
    interval: Ints
    edge: Ints  # (m, 2) its two nodes
    # (E,) one table per edge, row-major over the strategies of its first and second node
    edge_cost: Ints
    usage_limit: int = UNLIMITED
    node_names: tuple[str, ...] = ()
    strategy_names: tuple[str, ...] = ()
    tick_seconds: float = 1.0
    objective: str = "cost"
    edge_ptr: Ints = UNSET  # (m + 1,) table of edge e: edge_ptr[e] .. edge_ptr[e + 1] - 1; follows

    problem_kind: ClassVar[str] = "sharding"

    def shown(self) -> dict[str, str]:
        """Return the name and the sizes."""
        sizes = f"{self.num_nodes} nodes, {len(self.edge)} edges, {len(self.cost)} strategies"
        return {"": f"'{self.name}'", "with": sizes}

    def __post_init__(self) -> None:
        where = f"sharding problem '{self.name}'"
        check_objective(self, where)
        self._check_nodes(where)
        self._check_edges(where)
        if not 0 <= self.usage_limit <= UNLIMITED:
            raise InputError(
                f"{where}: usage limit: expected 0 to 2^62 (no limit), received {self.usage_limit}"
            )
        limit = int_array(self.usage_limit, (), f"{where}: usage limit")
        object.__setattr__(self, "usage_limit", int(limit))
        check_positive(f"{where}: tick_seconds", self.tick_seconds)
        for key, size in (("node_names", self.num_nodes), ("strategy_names", self.num_strategies)):
            names = getattr(self, key)
            if len(names) not in (0, size):
                raise InputError(
                    f"{where}: {key}: expected {size} names or none, received {len(names)}"
                )

    def _check_nodes(self, where: str) -> None:
        pointer = np.asarray(self.node_ptr)
        n = len(pointer) - 1
        if n < 1:
            raise InputError(f"{where}: expected at least one node, received none")
        object.__setattr__(self, "node_ptr", int_array(pointer, (n + 1,), "node_ptr"))
        few = np.flatnonzero(np.diff(self.node_ptr) < 1)
        if few.size or self.node_ptr[0] != 0:
            raise InputError(
                f"{where}: node {int(few[0]) if few.size else 0} has no strategy; give it at least "
                "one"
            )
        total = int(self.node_ptr[-1])
        for key in ("cost", "usage"):
            self._check_numbers(where, key, total)
        object.__setattr__(self, "interval", int_array(self.interval, (n, 2), f"{where}: interval"))
        bad = np.flatnonzero(
            (self.interval[:, 0] < 0) | (self.interval[:, 1] < self.interval[:, 0])
        )
        if bad.size:
            v = int(bad[0])
            raise InputError(
                f"{where}: interval of node {v}: expected 0 <= start <= end, received "
                f"{self.interval[v].tolist()}"
            )

    def _check_edges(self, where: str) -> None:
        m = len(np.asarray(self.edge))
        edge = int_array(self.edge, (m, 2), f"{where}: edge")
        object.__setattr__(self, "edge", edge)
        if m and (int(edge.min()) < 0 or int(edge.max()) >= self.num_nodes):
            e = int(np.argmax(((edge < 0) | (edge >= self.num_nodes)).any(axis=1)))
            raise InputError(
                f"{where}: edge {e}: expected nodes 0..{self.num_nodes - 1}, received "
                f"{edge[e].tolist()}"
            )
        loops = np.flatnonzero(edge[:, 0] == edge[:, 1])
        if loops.size:
            raise InputError(
                f"{where}: edge {int(loops[0])} joins node {int(edge[loops[0], 0])} with itself; "
                "add its costs to those of the node"
            )
        sizes = np.diff(self.node_ptr)
        pointer = starts_of(sizes[edge[:, 0]] * sizes[edge[:, 1]])
        object.__setattr__(self, "edge_ptr", int_array(pointer, (m + 1,), "edge_ptr"))
        self._check_numbers(where, "edge_cost", int(pointer[-1]))

    def _check_numbers(self, where: str, key: str, count: int) -> None:
        array = int_array(getattr(self, key), (count,), f"{where}: {key}")
        object.__setattr__(self, key, array)
        if array.size and (int(array.min()) < 0 or int(array.max()) >= MAX_NUMBER):
            i = int(np.argmax((array < 0) | (array >= MAX_NUMBER)))
            raise InputError(
                f"{where}: {key}[{i}]: expected 0 to 2^62 - 1, received {int(array[i])}"
            )

    @property
    def limited(self) -> bool:
        """Whether there is a limit on usage."""
        return self.usage_limit < UNLIMITED

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_ptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges, parallel ones counted."""
        return len(self.edge)

    @property
    def num_strategies(self) -> int:
        """Number of strategies of all nodes together."""
        return int(self.node_ptr[-1])

    @cached_property
    def num_choices(self) -> Ints:
        """Number of strategies of each node."""
        return np.diff(self.node_ptr)

    @cached_property
    def hash(self) -> str:
        """Digest of everything that decides values."""
        digest = hashlib.sha256(f"{self.usage_limit}".encode())
        for key in ("node_ptr", "cost", "usage", "interval", "edge", "edge_cost"):
            array = getattr(self, key)
            digest.update(f"{key}{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def node_name(self, node: int) -> str:
        """Return the name of a node, or its number."""
        return self.node_names[node] if self.node_names else f"node {node}"

    def edge_table(self, edge: int) -> Ints:
        """Return the costs of an edge by the strategies of its first and its second node."""
        first, second = self.edge[edge]
        flat = row_at(self.edge_cost, self.edge_ptr, edge)
        return flat.reshape(int(self.num_choices[first]), int(self.num_choices[second]))


@dataclass(frozen=True, eq=False, repr=False)
class ShardingSolution(ArrayHolder):
    """The index of the chosen strategy of every node.

    Attributes
    ----------
    strategy : counted from 0 within each node.
    """

    strategy: Ints  # (n,)

    def shown(self) -> dict[str, str]:
        """Return how many nodes have a strategy."""
        return {"of": f"{len(self.strategy)} nodes"}

    def __post_init__(self) -> None:
        array = np.asarray(self.strategy)
        object.__setattr__(self, "strategy", int_array(array, (array.size,), "strategies"))


# fields that follow from others, or have one value only, are left out
register_plain("sharding", ShardingProblem, ("objective", "edge_ptr"))
register(
    Codec(
        "sharding-solution",
        ShardingSolution,
        lambda solution: {"strategies": solution.strategy.tolist()},
        lambda body: ShardingSolution(body.integers("strategies")),
    )
)
