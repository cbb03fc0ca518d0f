"""Exact methods: proven optima and bounds."""

from __future__ import annotations

from placeopt.solving.registry import SolverSpec

SPECS: tuple[SolverSpec, ...] = (
    SolverSpec(
        "ideal-dp",
        "placeopt.solvers.exact.ideal_dp:IdealDp",
        "placement",
        ("period",),
        "best pipeline of ideals by dynamic programming, proved",
        search=False,
    ),
    SolverSpec(
        "linear-dp",
        "placeopt.solvers.exact.linear_dp:LinearDp",
        "placement",
        ("period",),
        "best pipeline along topological orders by dynamic programming",
        search=False,
    ),
    SolverSpec(
        "milp",
        "placeopt.solvers.exact.milp:Milp",
        "placement",
        ("period",),
        "mixed-integer linear program solved by HiGHS, with a proven bound",
    ),
    SolverSpec(
        "cp-sat",
        "placeopt.solvers.exact.cp_sat:CpSat",
        "placement",
        ("makespan", "period", "latency"),
        "constraint programming: anytime, with a proven bound",
    ),
    SolverSpec(
        "lns",
        "placeopt.solvers.search.lns:Lns",
        "placement",
        ("makespan",),
        "re-optimise windows of the best placement with CP-SAT, for large problems",
    ),
)
