"""Training plans: how to train a model on a set of devices, priced by cost models that say where
each number comes from.

Everything is imported on first use.
"""

from placeopt.model.lazy import on_first_use

_HOMES = {
    "plan": "TrainingPlan PlanStage ReplicaGroup",
    "sample_problem": "SamplePlanProblem",
    "piper_json": "read_piper",
}

__getattr__, _names = on_first_use(__name__, _HOMES)

__all__ = list(_names)
