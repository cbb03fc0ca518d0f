"""Planners: how to train a model on a set of devices."""

from __future__ import annotations

from placeopt.solving.registry import SolverSpec

PIPER = "Tarnawski et al.: Piper: multidimensional planner for DNN parallelization, NeurIPS 2021"
SAILOR = (
    "Strati et al.: Sailor: automating distributed training over dynamic, heterogeneous "
    "clusters, SOSP 2025"
)

SPECS: tuple[SolverSpec, ...] = (
    SolverSpec(
        "plan-ideals",
        "placeopt.solvers.planning.ideal_planner:IdealPlanner",
        "plan",
        ("sample-time",),
        "bisection over exact dynamic programs on ideals, with memory and recomputation",
        True,
        PIPER,
        "stages with unequal data and tensor degrees on equal devices; proves its optimum",
    ),
    SolverSpec(
        "plan-stages",
        "placeopt.solvers.planning.step_planner:StepPlanner",
        "plan",
        ("step-time",),
        "exact dynamic programs over stages, one for each range of the longest period",
        True,
        SAILOR,
        "a training step on devices of any kinds, under any cost model of a step; proves its "
        "optimum",
    ),
)
