"""Solvers of sharding problems: a strategy for every node under a limit on usage."""

from __future__ import annotations

from placeopt.solving.registry import SolverSpec

SPECS: tuple[SolverSpec, ...] = (
    SolverSpec(
        "tree-descent",
        "placeopt.solvers.sharding.tree_search:TreeDescent",
        "sharding",
        ("cost",),
        "starts from the least memory, then improves whole trees of nodes by dynamic programming",
        use="a quick solution without a bound",
    ),
    SolverSpec(
        "sharding-portfolio",
        "placeopt.solvers.sharding.portfolio:ShardingPortfolio",
        "sharding",
        ("cost",),
        "a Lagrangian bound and a search by tree moves, side by side",
        paper="Moffitt, Fegade: The ASPLOS 2025 / EuroSys 2025 contest on intra-operator "
        "parallelism, 2025",
        use="the default",
    ),
)
