"""Training plans: how to train a model on a set of devices, priced by cost models that say where
each number comes from.

Everything is imported on first use.
"""

from placeopt.model.lazy import on_first_use

_EXPORTS = {
    "TrainingPlan": "plan",
    "PlanStage": "plan",
    "ReplicaGroup": "plan",
    "SamplePlanProblem": "sample_problem",
    "read_piper": "piper_json",
}

__all__ = list(_EXPORTS)

__getattr__ = on_first_use(__name__, _EXPORTS)
