"""Search: population and local search on the batch evaluator."""

from placeopt.solving.registry import ANY_OTHER, listed

SAMPLED = ("makespan", "period", ANY_OTHER)
"""Of searches that see no more of an objective than the values of placements."""

_spec = listed(__name__, "placement", *SAMPLED)

SPECS = (
    _spec(
        "cross-entropy",
        "cross_entropy:CrossEntropy",
        "cross-entropy method on groups of ops, then refined",
        "Rubinstein: The cross-entropy method for combinatorial and continuous optimization, 1999",
        "objectives that can only be measured, such as your own runs",
    ),
    _spec(
        "post",
        "cross_entropy:Post",
        "cross-entropy method with proximal policy optimisation",
        "Gao et al.: Post, device placement with cross-entropy minimization and proximal policy "
        "optimization, NeurIPS 2018",
        "for comparison: the published method",
    ),
    _spec(
        "annealing",
        "annealing:Annealing",
        "simulated annealing with cluster and critical-path moves",
        "Kirkpatrick, Gelatt, Vecchi: Optimization by simulated annealing, Science 1983",
        "the strongest single search above a few hundred ops",
    ),
    _spec(
        "genetic",
        "genetic:Genetic",
        "memetic: group-wise crossover, local search on every child",
        "Moscato: On evolution, search, optimization, genetic algorithms and martial arts, 1989 "
        "(memetic algorithms)",
        "many different good placements",
    ),
    _spec(
        "lns",
        "lns:Lns",
        "re-optimise windows of the best placement with CP-SAT, for large problems",
        "Shaw: Using constraint programming and local search methods to solve vehicle routing "
        "problems, CP 1998 (the idea)",
        "to improve a good placement of a large graph",
        objectives=("makespan",),
    ),
)
