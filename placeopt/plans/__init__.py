"""Training plans: how to train a model on a set of devices, priced by cost models that say where
each number comes from.

Everything is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "TrainingPlan": "plan",
    "PlanStage": "plan",
    "ReplicaGroup": "plan",
    "SamplePlanProblem": "sample_problem",
    "read_piper": "piper_json",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
