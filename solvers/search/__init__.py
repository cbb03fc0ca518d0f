"""Search: population and local search on the batch evaluator."""

from __future__ import annotations

from placeopt.solving.registry import SolverSpec


def _spec(name: str, target: str, summary: str, objectives: tuple[str, ...] = ("makespan", "period")) -> SolverSpec:
    return SolverSpec(name, f"placeopt.solvers.{target}", "placement", objectives, summary)


SPECS: tuple[SolverSpec, ...] = (
    _spec("cross-entropy", "search.cross_entropy:CrossEntropy", "cross-entropy method on groups of ops, then refined"),
    _spec("post", "search.cross_entropy:Post", "cross-entropy joined with proximal policy optimisation (2018)"),
    _spec("annealing", "search.annealing:Annealing", "simulated annealing with cluster and critical-path moves"),
    _spec("genetic", "search.genetic:Genetic", "memetic: group-wise crossover, local search on every child"),
    SolverSpec(
        "lns",
        "placeopt.solvers.search.lns:Lns",
        "placement",
        ("makespan",),
        "re-optimise windows of the best placement with CP-SAT, for large problems",
        True,
        "Shaw: Using constraint programming and local search methods to solve vehicle routing problems, CP 1998 (the idea)",
        "improves a good placement of a large graph",
    ),
    _spec("portfolio", "portfolio:Portfolio", "heuristics, search and large neighbourhood search on one incumbent"),
)
