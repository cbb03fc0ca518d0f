"""Policies: placers that learn by policy gradient, seeded by heuristics."""

from __future__ import annotations

from placeopt.solving.registry import SolverSpec

SPECS: tuple[SolverSpec, ...] = (
    SolverSpec(
        "dual-policy", "placeopt.solvers.policy.dual_policy:DualPolicy", "placement", ("makespan",),
        "select an op, place it; starts as critical path, learns by policy gradient (Doppler)",
    ),
    SolverSpec(
        "grouper-placer", "placeopt.solvers.policy.grouper_placer:GrouperPlacer", "placement", ("makespan",),
        "softmax grouper and softmax placer, learned together (Liu et al. 2019)",
    ),
    SolverSpec(
        "graph-parsing", "placeopt.solvers.policy.graph_parsing:GraphParsing", "placement", ("makespan",),
        "learned edge scores parse the graph into groups, which are placed (HSDAG 2024)",
    ),
)  # fmt: skip
