"""Search: population and local search on the batch evaluator."""

from __future__ import annotations

from placeopt.solving.registry import ANY_OTHER, SolverSpec

SAMPLED = ("makespan", "period", ANY_OTHER)
"""Of searches that see no more of an objective than the values of placements."""


def _spec(
    name: str, target: str, objectives: tuple[str, ...], summary: str, paper: str, use: str
) -> SolverSpec:
    return SolverSpec(
        name,
        f"placeopt.solvers.search.{target}",
        "placement",
        objectives,
        summary,
        paper=paper,
        use=use,
    )


SPECS: tuple[SolverSpec, ...] = (
    _spec(
        "cross-entropy",
        "cross_entropy:CrossEntropy",
        SAMPLED,
        "cross-entropy method on groups of ops, then refined",
        "Rubinstein: The cross-entropy method for combinatorial and continuous optimization, 1999",
        "objectives that can only be measured, such as your own runs",
    ),
    _spec(
        "post",
        "cross_entropy:Post",
        SAMPLED,
        "cross-entropy method with proximal policy optimisation",
        "Gao et al.: Post, device placement with cross-entropy minimization and proximal policy "
        "optimization, NeurIPS 2018",
        "for comparison: the published method",
    ),
    _spec(
        "annealing",
        "annealing:Annealing",
        SAMPLED,
        "simulated annealing with cluster and critical-path moves",
        "Kirkpatrick, Gelatt, Vecchi: Optimization by simulated annealing, Science 1983",
        "the strongest single search above a few hundred ops",
    ),
    _spec(
        "genetic",
        "genetic:Genetic",
        SAMPLED,
        "memetic: group-wise crossover, local search on every child",
        "Moscato: On evolution, search, optimization, genetic algorithms and martial arts, 1989 "
        "(memetic algorithms)",
        "many different good placements",
    ),
    _spec(
        "lns",
        "lns:Lns",
        ("makespan",),
        "re-optimise windows of the best placement with CP-SAT, for large problems",
        "Shaw: Using constraint programming and local search methods to solve vehicle routing "
        "problems, CP 1998 (the idea)",
        "to improve a good placement of a large graph",
    ),
)
