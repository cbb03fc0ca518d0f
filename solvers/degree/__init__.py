"""Degree policies: how far to split each job of a stream."""

from __future__ import annotations

from placeopt.solving.registry import SolverSpec

SPECS: tuple[SolverSpec, ...] = (
    SolverSpec(
        "max-degree", "placeopt.solvers.degree.fixed:MaxDegree", "jobs", ("blocking",),
        "largest degree not above the free servers", search=False,
    ),
    SolverSpec(
        "min-degree", "placeopt.solvers.degree.fixed:MinDegree", "jobs", ("blocking",),
        "smallest degree that should meet the deadline", search=False,
    ),
    SolverSpec(
        "random-degree", "placeopt.solvers.degree.fixed:RandomDegree", "jobs", ("blocking",),
        "random degree not above the free servers", search=False,
    ),
    SolverSpec(
        "constant-degree", "placeopt.solvers.degree.fixed:ConstantDegree", "jobs", ("blocking",),
        "one degree for all jobs; the best of a sweep unless given", search=False,
    ),
    SolverSpec(
        "feasible-first", "placeopt.solvers.degree.feasible_first:FeasibleFirst", "jobs", ("blocking",),
        "first degree of a learned order that fits and meets the deadline",
    ),
    SolverSpec(
        "rollout", "placeopt.solvers.degree.rollout_degree:RolloutDegree", "jobs", ("blocking",),
        "simulates the near future for each degree",
    ),
    SolverSpec(
        "policy-degree", "placeopt.solvers.degree.policy_degree:PolicyDegree", "jobs", ("blocking",),
        "log-linear policy trained by policy gradient from the best simple policy",
    ),
)  # fmt: skip
