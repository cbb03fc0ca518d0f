"""Planning: from a model, devices and a batch to a plan with its bound, its runner-ups and its
exports.
"""

from placeopt.planning.plan_model import Planned, RunnerUp, plan, plan_problem

__all__ = ["Planned", "RunnerUp", "plan", "plan_problem"]
