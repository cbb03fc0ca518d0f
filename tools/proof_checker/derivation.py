"""Following the steps of a witness to a contradiction."""

from itertools import chain

from proof_checker import (
    case_steps,
    flow_steps,
    front_steps,
    segment_steps,
    sharing_steps,
    sweep_steps,
    work_steps,
)
from proof_checker.reading import choice, demand, entries, numbers, require, whole
from proof_checker.supposition import Supposition

STEPS = {
    **sweep_steps.STEPS,
    **sharing_steps.STEPS,
    **work_steps.STEPS,
    **case_steps.STEPS,
    **segment_steps.STEPS,
    **flow_steps.STEPS,
    **front_steps.STEPS,
}
"""Every step by its name: a function of (state, words, refute)."""


def refute(state, steps):
    """Follow steps until they contradict a supposition; the last one of them must have done so."""
    for step in entries(steps):
        follow(state, step)
    demand(state.closed, "the steps end without a contradiction")


def follow(state, step):
    """Follow one step, unless the state is a contradiction already."""
    require(entries(step), "a step: expected its name and its words, received an empty list")
    name, *words = step
    function = STEPS[choice(name, " ".join(STEPS))]
    if not state.closed:
        function(state, words, refute)


def placement_bound(problem, bound, content, believed, _solution=None):
    """Verify that no solution is below a bound: suppose one of less, and refute it.

    Keep the order of all starts and ends of a schedule, and let each be as early as that allows:
    the schedule is valid and no longer, and all its times are sums of given ones; so are loads. If
    a unit divides all these, it is enough to refute its largest multiple that is below the bound.
    """
    edges, k, unit = problem.objective == "makespan", problem.num_devices, content.get("unit", 1)
    islands = numbers(content["islands"], k, 0, k - 1) if "islands" in content else ()
    times = chain(*problem.compute, *problem.transfer)
    divides = whole(unit, 1) == 1 or all(ticks < 0 or ticks % unit == 0 for ticks in times)
    demand(divides, f"the unit {unit} divides all times")
    if whole(bound) > 0:
        most = (bound - 1) // unit * unit
        refute(Supposition(problem, most, believed, edges, islands), content["steps"])
    else:
        entries(content["steps"], 0)
