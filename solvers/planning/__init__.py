"""Planners: how to train a model on a set of devices."""

from placeopt.solving.registry import listed

PIPER = "Tarnawski et al.: Piper: multidimensional planner for DNN parallelization, NeurIPS 2021"
SAILOR = (
    "Strati et al.: Sailor: automating distributed training over dynamic, heterogeneous "
    "clusters, SOSP 2025"
)

_spec = listed(__name__, "plan")

SPECS = (
    _spec(
        "plan-ideals",
        "ideal_planner:IdealPlanner",
        "bisection over exact dynamic programs on ideals, with memory and recomputation",
        PIPER,
        "stages with unequal data and tensor degrees on equal devices; proves its optimum",
        objectives=("sample-time",),
    ),
    _spec(
        "plan-stages",
        "step_planner:StepPlanner",
        "exact dynamic programs over stages, one for each range of the longest period",
        SAILOR,
        "a training step on devices of any kinds, under any cost model of a step; proves its "
        "optimum",
        objectives=("step-time",),
    ),
)
