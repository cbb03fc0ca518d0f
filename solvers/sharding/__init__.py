"""Solvers of sharding problems: a strategy for every node under a limit on usage."""

from placeopt.solving.registry import listed

CONTEST = (
    "Moffitt, Fegade: The ASPLOS 2025 / EuroSys 2025 contest on intra-operator parallelism, 2025"
)

_spec = listed(__name__, "sharding", "cost")

SPECS = (
    _spec(
        "tree-descent",
        "tree_search:TreeDescent",
        "starts from the least memory, then improves whole trees of nodes by dynamic programming",
        "",
        "a quick solution without a bound",
    ),
    _spec(
        "sharding-portfolio",
        "portfolio:ShardingPortfolio",
        "a Lagrangian bound and a search by tree moves, side by side",
        CONTEST,
        "the default",
    ),
)
