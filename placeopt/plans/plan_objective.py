"""What the objectives of plans share: judged first, then priced."""

from __future__ import annotations

from typing import ClassVar

from placeopt.model.objective import JudgedObjective
from placeopt.plans.plan import TrainingPlan


class PlanObjective(JudgedObjective):
    """An objective of plans; subclasses name it and say how a plan is judged, priced and
    bounded.
    """

    __slots__ = ()

    kind: ClassVar[str] = "plan"
    bounded: ClassVar[str] = "a plan"
    solution_class: ClassVar[type] = TrainingPlan
    expected: ClassVar[str] = "expected a TrainingPlan"
