"""Planners: how to train a model on a set of devices."""

from __future__ import annotations

from placeopt.solving.registry import SolverSpec

SPECS: tuple[SolverSpec, ...] = (
    SolverSpec(
        "plan-ideals",
        f"{__name__}.ideal_planner:IdealPlanner",
        "plan",
        ("sample-time",),
        "bisection over exact dynamic programs on ideals, with memory and recomputation",
        paper="Tarnawski et al.: Piper: multidimensional planner for DNN parallelization, "
        "NeurIPS 2021",
        use="stages with unequal data and tensor degrees on equal devices; proves its optimum",
    ),
    SolverSpec(
        "plan-stages",
        f"{__name__}.step_planner:StepPlanner",
        "plan",
        ("step-time",),
        "exact dynamic programs over stages, one for each range of the longest period",
        paper="Strati et al.: Sailor: automating distributed training over dynamic, heterogeneous "
        "clusters, SOSP 2025",
        use="a training step on devices of any kinds, under any cost model of a step; proves its "
        "optimum",
    ),
)
