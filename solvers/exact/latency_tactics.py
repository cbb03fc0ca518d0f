"""The tactics of the latency: starts, annealing, flows over ideals, and the CP-SAT model.

`flow` proves by the flows of `placeopt.latency.bounds.flow`, from coarse graphs to fine ones, and
its program finds placements that are good as well; `cp-sat` runs where both leave a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.latency.bounds import latency_bounds
from placeopt.latency.bounds.flow import flow_bounds
from placeopt.solvers.exact.latency_cp_sat import LatencyCpModel
from placeopt.solvers.exact.latency_warm_start import anneal, offer_slots, starts
from placeopt.solvers.exact.placement_cp_sat import BUILD_SECONDS, run_tactics, with_threads
from placeopt.solving.tactic import BOTH, BOUND, VALUE, WAITING, Runs, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.arrays import Ints
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.exact.placement_cp_sat import CpSatSettings
    from placeopt.solving.tactic import State, Tactic
    from placeopt.solving.tracker import Tracker


class LatencyFacts:
    """What the tactics of one problem share."""

    def __init__(self, settings: CpSatSettings, problem: PlacementProblem) -> None:
        self.settings, self.problem = settings, problem
        self.model: LatencyCpModel | None = None

    @property
    def building(self) -> float:
        """Seconds that building the CP-SAT model takes, about."""
        p = self.problem
        size = p.num_ops + p.num_tensors + p.num_edges
        return BUILD_SECONDS * size * p.num_devices * p.slots


def search_latency(
    settings: CpSatSettings, problem: PlacementProblem, tracker: Tracker[Placement]
) -> None:
    """Minimise the latency by its tactics."""
    heuristics = ("starts", "annealing")
    _run([t for t in TACTICS if settings.warm_start or t.name not in heuristics], settings, tracker)


def prove_latency(
    settings: CpSatSettings, problem: PlacementProblem, tracker: Tracker[Placement]
) -> None:
    """Run only the tactics that prove."""
    _run([t for t in TACTICS if t.side != VALUE], settings, tracker)


def _run(tactics: list[Tactic], settings: CpSatSettings, tracker: Tracker[Placement]) -> None:
    """Run tactics after the bounds that take milliseconds."""
    for method, ticks in latency_bounds(tracker.problem, 0.0):
        tracker.raise_bound(ticks, method)
    run_tactics(tactics, TACTICS, settings, LatencyFacts(settings, tracker.problem), tracker)


def _starts(state: State) -> Iterator[None]:
    """Offer constructed placements."""
    for _ in starts(state.tracker):
        yield


def _anneal(state: State) -> Iterator[str | None]:
    """Anneal from the incumbent, again and again."""
    while state.solution is None:
        yield WAITING
    yield from anneal(state.tracker, state.rng)


def _flows(state: State, problem: PlacementProblem) -> Iterator[int]:
    """Yield the bound by flows after every piece of work, and offer the placements found."""

    def offer(device: Ints, slot: Ints) -> None:
        offer_slots(state.tracker, device, slot)

    def upper() -> int | None:
        return state.value if problem is state.problem else None

    for bound, over in flow_bounds(problem, upper, offer, state.stop):
        if over or not state.by_evaluations:  # pieces of a round are cut by the clock
            yield bound


def _flow(state: State) -> Iterator[None]:
    """Prove by flows."""
    for bound in _flows(state, state.problem):
        state.raise_bound(bound, "flow")
        yield


def _one_slot(state: State) -> Iterator[None]:
    """Find placements with one slot per accelerator by flows: they are some with several."""
    for _ in _flows(state, state.problem.replace(slots=1)):
        yield


def _cp_sat(state: State, part: Tracker[Placement]) -> bool:
    """Run the model of the whole problem for a piece of time."""
    facts: LatencyFacts = state.facts
    if facts.model is None:
        facts.model = LatencyCpModel(part.problem, part.value)
    elif part.value is not None:
        facts.model.cut_off(part.value)
    return facts.model.solve(with_threads(state), part, part.seconds_left)


TACTICS: tuple[Tactic, ...] = (
    Steps("starts", VALUE, _starts),
    Steps("annealing", VALUE, _anneal),
    Steps("one-slot", VALUE, _one_slot, when=lambda facts: facts.problem.slots > 1),
    Steps("flow", BOUND, _flow),
    Runs("cp-sat", BOTH, _cp_sat, needs=lambda facts: facts.building),
)
"""Tactics of the latency; those before others begin first."""
