"""Policies: placers that learn by policy gradient, seeded by heuristics."""

from __future__ import annotations

from placeopt.solver import SolverSpec

SPECS: tuple[SolverSpec, ...] = (
    SolverSpec(
        "dual-policy", "placeopt.solvers.policy.dual_policy:DualPolicy", "placement", ("makespan",),
        "select an op, place it; starts as critical path, learns by policy gradient (Doppler)",
    ),
)  # fmt: skip
