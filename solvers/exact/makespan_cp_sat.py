"""The makespan by CP-SAT: heuristics and combinatorial bounds, then the tactics of
`placeopt.solvers.exact.makespan_tactics`.

Every time limit is useful: heuristics give an incumbent in milliseconds, combinatorial bounds may
already prove it, and CP-SAT then improves both from a complete hint, within start-time domains that
the communication-aware heads and tails cut down.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.solvers.exact.makespan_tactics import IMPROVERS, PROVERS, MakespanFacts
from placeopt.solvers.exact.placement_cp_sat import run_tactics
from placeopt.solvers.search.cp_sat_start import warm_start

if TYPE_CHECKING:
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.exact.cp_sat import CpSat
    from placeopt.solving.tracker import Tracker


def search_makespan(
    settings: CpSat, problem: PlacementProblem, tracker: Tracker[Placement]
) -> None:
    """Start from the heuristics and the combinatorial bounds; then run the tactics until the budget
    ends.
    """
    if settings.warm_start:
        warm_start(problem, tracker)
    analysis = Analysis(problem, seconds=min(10.0, tracker.seconds_left / 4))
    for name in COMBINATORIAL:
        if tracker.stop() and tracker.lower_bound > 0:  # the shortest budget ends with a bound too
            return
        tracker.raise_bound(analysis.run(name), name)
    if not tracker.stop():
        facts = MakespanFacts(settings, analysis, tracker)
        known = {tactic.name: tactic for tactic in (*IMPROVERS, *PROVERS)}.values()
        run_tactics(known, known, settings, facts, tracker)


def prove_makespan(settings: CpSat, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
    """Do so without tactics that only improve, from the heuristics."""
    search_makespan(replace(settings, windows=False), problem, tracker)
