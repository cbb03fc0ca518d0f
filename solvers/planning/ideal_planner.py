"""`plan-ideals`: the best plan over ideals, data and tensor degrees and recomputation, with proof.

The smallest limit for which there is a plan whose stages all keep to it is found by bisection; each
question is answered exactly (see `ideal_plan_search`), so that a limit that is refuted is a bound
over all plans, wherever the search is cut off. Plans of prefixes of the given order come first:
their value lets most pairs of ideals be passed over.

References
----------
Tarnawski, Narayanan, Phanishayee: "Piper: multidimensional planner for DNN parallelization",
NeurIPS 2021: the space and the cost model. The search by limits replaces its table over (ideal,
devices, sum of data degrees). Kellerer, Pferschy, Pisinger: "Knapsack problems", Springer 2004, ch.
5: branch and bound by the linear relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.plans.sample_price import sample_prices
from placeopt.solvers.planning.ideal_plans import all_plans, prefix_plans
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.sample_problem import SamplePlanProblem
    from placeopt.solvers.planning.ideal_plans import IdealPlans
    from placeopt.solving.tracker import Tracker

METHOD = "ideals"
"""Name of the bound that refuted limits prove."""


@dataclass(frozen=True)
class IdealPlanner(SearchSolver):
    """Bisection over the time per sample; each step an exact dynamic program over ideals."""

    name: ClassVar[str] = "plan-ideals"
    kernels: ClassVar[tuple[str, ...]] = ("plan-ideals",)
    max_ideals: int = option(
        2_000_000, low=1, meaning="above this only prefixes of the given order are searched"
    )

    def search(self, problem: SamplePlanProblem, tracker: Tracker[TrainingPlan]) -> None:
        """Plans of prefixes, then of all ideals."""
        prefixes = prefix_plans(problem)
        tracker.raise_bound(prefixes.least, "area")
        _bisect(problem, prefixes, tracker)
        everything = all_plans(problem, self.max_ideals)
        if everything is None:
            tracker.message = (
                f"more than {self.max_ideals} ideals: plans of one order of the layers only"
            )
        elif not tracker.stop():
            _bisect(problem, everything, tracker)
            if tracker.value is None and not tracker.stop():
                tracker.infeasible("no plan fits the memory of the devices")


def _bisect(problem: SamplePlanProblem, plans: IdealPlans, tracker: Tracker[TrainingPlan]) -> None:
    """Narrow bound and value; what is refuted among prefixes only is no bound, but ends that search
    too.
    """
    low, widening = tracker.lower_bound, 1.0
    high = tracker.value
    while not tracker.stop() and (high is None or low < high):
        limit = _next_limit(plans, low, high, widening, low == tracker.lower_bound == plans.least)
        plan = plans.within(limit)
        tracker.count()
        if plan is not None:
            high = max(price.ticks for price in sample_prices(problem, plan))
            tracker.offer(high, plan)
            continue
        if plans.refuted(limit):
            tracker.raise_bound(limit + 1, METHOD)
        elif plans.complete:
            return
        if high is None and limit >= plans.most:
            return
        low, widening = limit + 1, widening * 2


def _next_limit(
    plans: IdealPlans,
    low: int,
    high: int | None,
    widening: float,
    at_least: bool,
    close: float = 1e-3,
) -> int:
    """Return the limit to ask for: wider ones until a plan is known, then the middle.

    Where bound and value are relatively as near as `close`, or the bound is the least one that
    there is (`at_least`), the question is whether the value can be beaten at all.
    """
    if high is None:
        return plans.most if widening > 4 else min(plans.most, int(low * (1 + 0.05 * widening)))
    return high - 1 if at_least or high - low <= close * high else (low + high) // 2
