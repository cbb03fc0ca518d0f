"""The makespan by CP-SAT: heuristics and combinatorial bounds, then tactics, windows of the
incumbent on one side, and what proves on the other.

Every time limit is useful: heuristics give an incumbent in milliseconds, combinatorial bounds may
already prove it, and CP-SAT then improves both from a complete hint, within start-time domains that
the communication-aware heads and tails cut down.

Most tactics ask CP-SAT a small question: for a schedule as long as the bound (`tight`), for the
parts in series, for the problem on its natural grid, for what fits into the ends of a schedule
(`fronts`). `cp-sat` is the model of the whole problem. Parts in series come wholly one after the
other (`placeopt.makespan.bounds.series`); coarse problems have few distinct times, and none of the
ops that have no length there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.bounds.confinement import DEDUCING, confined
from placeopt.makespan.bounds.destructive import is_refutable, refuted
from placeopt.makespan.bounds.front import FrontSearch
from placeopt.makespan.bounds.relaxation import INFINITE, islands
from placeopt.makespan.bounds.series import (
    Place,
    heads_in_series,
    part_looks,
    part_problem,
    placement_in_series,
    restricted,
    series_parts,
)
from placeopt.makespan.coarsening import COARSE_HORIZON, Coarse, coarsen, natural_grid
from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.model.arrays import Ints
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.exact.makespan_grid import lift, solve_on_grid
from placeopt.solvers.exact.placement_cp_sat import (
    CpSatSettings,
    building_seconds,
    run_tactics,
    with_threads,
)
from placeopt.solvers.search.cp_sat_start import analyse, offer, warm_start
from placeopt.solvers.search.lns import Lns, WindowSearch
from placeopt.solvers.search.peak_descent import descend, descent
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solving.deadline import is_large
from placeopt.solving.scheduler import LEAST, Lane
from placeopt.solving.tactic import BOTH, BOUND, VALUE, WAITING, Runs, State, Steps, Tactic
from placeopt.solving.tracker import PlacementTracker

RUNGS = (2**12, 2**16, COARSE_HORIZON)
"""Units in the horizon of the grids of `ladder`, at most those of the exact grid. On the first one
CP-SAT's domains are short, and rounding loses at most a 4096th per op."""


class MakespanFacts:
    """What the tactics of one problem share.

    Attributes
    ----------
    timed : whether seconds alone limit the search: some tactics cannot count their work.
    end : of the search, in seconds of `time.perf_counter`.
    helpful_segments_known : whether the segments that could help at once are all solved.
    searches : of a part in series, beside what proves.
    """

    searches: ClassVar[tuple[Tactic, ...]] = ()

    def __init__(
        self, settings: CpSatSettings, analysis: Analysis, tracker: PlacementTracker
    ) -> None:
        self.settings, self.analysis = settings, analysis
        self.timed = tracker.budget.evaluations is None
        self.end = time.perf_counter() + tracker.seconds_left
        self.grid: int | None = None  # of `grids`, None before an incumbent is known
        self.rung = 0
        self.helpful_segments_known = False

    @cached_property
    def unit(self) -> int:
        """Ticks of the exact grid."""
        return self.analysis.problem.common_unit

    @property
    def exact(self) -> bool:
        """Whether CP-SAT can hold the whole problem on the exact grid."""
        serial = max(1, self.analysis.relaxation.serial)
        return self.model and serial // self.unit <= COARSE_HORIZON

    @property
    def building(self) -> float:
        """Seconds that building the model of the whole takes, about."""
        p = self.analysis.problem
        return building_seconds(p.num_ops + p.num_edges, p.num_devices)

    @property
    def refutable(self) -> bool:
        """Whether horizons may be refuted by what follows from them."""
        return is_refutable(self.analysis.relaxation)

    @property
    def model(self) -> bool:
        """Whether CP-SAT can hold a model of the whole problem."""
        return not is_large(self.analysis.problem)

    @cached_property
    def parts(self) -> list[Place]:
        """Parts of the graph that come wholly one after the other."""
        return series_parts(self.analysis.relaxation)

    @property
    def contended(self) -> bool:
        """Whether transfers wait for one another."""
        return self.analysis.problem.num_channels > 0

    @property
    def in_series(self) -> bool:
        """Whether the graph has such parts."""
        return self.model and len(self.parts) > 0

    @property
    def on_islands(self) -> bool:
        """Whether the devices are on several islands."""
        return self.model and self.refutable and bool(islands(self.analysis.problem).any())

    @cached_property
    def fronts(self) -> FrontSearch:
        """The bound by fronts, gone on with each time."""
        evidence = self.analysis.evidence(self.analysis.best()[0])
        return FrontSearch(evidence, self.settings.num_workers)

    @cached_property
    def flows(self) -> Iterator[int]:
        """The bound by flows, round by round, however long other bounds may take."""
        return self.analysis.congestion(self.end)

    def with_threads(self, state: State, *, small: int = 2000) -> CpSatSettings:
        """Return the settings with the cores that the lane has; with all of theirs on small
        problems, of so many ops times devices, since another of CP-SAT's strategies is worth more
        there than an undisturbed core.
        """
        p = self.analysis.problem
        return self.settings if p.num_ops * p.num_devices <= small else with_threads(state)


def windows(state: State) -> Iterator[str | None]:
    """Re-optimise windows of the incumbent; look for one where the limit on peak memory is all that
    heuristics break.
    """
    facts: MakespanFacts = state.facts
    if state.problem.memory == "peak":
        yield from _keep_peaks(state)
    while state.solution is None:
        yield WAITING
    allowed = facts.analysis.relaxation.allowed
    yield from WindowSearch(Lns(), state.problem, state.tracker, allowed).steps()


def _keep_peaks(state: State) -> Iterator[None]:
    """Descend to a placement within the capacities while none is known."""
    steps, found = descent(SearchSpace(state.problem), state.rng), None
    while found is None and state.solution is None:
        with state.part() as part:
            found = descend(steps, part)
        if found is not None:
            offer(state.problem, state.tracker, found)
        yield


def _combinatorial(state: State) -> Iterator[None]:
    """Prove the quick bounds, cheapest first."""
    analysis = state.facts.analysis
    for name in COMBINATORIAL:
        if name not in analysis.bounds:
            state.raise_bound(analysis.run(name, optional=True), name)
            yield


def _destructive(state: State, part: PlacementTracker) -> bool:
    """Refute horizons by what follows from them: bisection between the bound and the incumbent or
    the least horizon that was not refuted.
    """
    analysis = state.facts.analysis
    above = analysis.relaxation.serial if part.value is None else part.value
    end = time.perf_counter() + part.seconds_left
    while not part.stop() and (bound := part.lower_bound) < above:
        horizon = (bound + above) // 2
        if refuted(analysis.evidence(bound), horizon, end):
            part.raise_bound(horizon + 1, "destructive")
        else:
            above = horizon
    return not part.stop()


def _segments(state: State, part: PlacementTracker) -> bool:
    """Raise the bound, and the heads and tails of all that follows, by what passes between forks
    and joins: first what could help at once, then everything; either again, and longer, as long as
    the time cuts it short.

    The first look is long (`prior` in `PROVERS`): most graphs have few segments that help and need
    far less, and where they help, all other proofs begin from a higher bound (both looks at the
    stack of modules that README places take 0.6 s).
    """
    facts: MakespanFacts = state.facts
    everything, seconds = facts.helpful_segments_known, part.seconds_left
    part.raise_bound(facts.analysis.run_segments(seconds, everything=everything), "segments")
    whole = part.seconds_left > 0.5 * seconds
    facts.helpful_segments_known |= whole
    return everything and whole


def _congestion(state: State, part: PlacementTracker) -> bool:
    """Prove what flows between ops need of shared channels; go on where the last time ended.

    The first look is long (`prior` in `PROVERS`), as that at segments: on four graphs of 120 to 200
    ops three are done within 1.5 s.
    """
    for bound in state.facts.flows:
        part.raise_bound(bound, "congestion")
        if part.stop():
            return False
    return True


def _tight(state: State, part: PlacementTracker) -> bool:
    """Ask for a schedule as long as the bound by restarts; where there is none, for one of the next
    bound.
    """
    facts: MakespanFacts = state.facts
    lift(facts.with_threads(state), part, facts.analysis, facts.unit)
    return False


def _series(state: State) -> Iterator[None]:
    """Close the parts of the graph that come wholly one after the other, each by the tactics of the
    whole, and parts that look alike once: the turn goes to the one that closes most for the time
    that it has had.

    It counts as many as the tactics at work inside (`breadth`), which are those of the whole on
    smaller problems, as far as it can close the gap: the bound can be raised to the sum of the
    parts' values at most. It ends when that is no more than the bound.
    """
    facts: MakespanFacts = state.facts
    state.breadth, unlike, parts = len(PROVERS), dict[bytes, Part](), list[Part]()
    for place in facts.parts:
        problem = part_problem(facts.analysis.problem, place)
        looks = part_looks(problem, place)
        if looks in unlike:
            unlike[looks].places.append(place)
        else:
            inner = analyse(problem, state.tracker, 1.0)
            inner.run_all(COMBINATORIAL, optional=True)
            unlike[looks] = Part(state, inner, place, "series", facts.searches)
        parts.append(unlike[looks])
        yield
    _join(state, parts)  # what is known at once: of many parts the searches take long to begin
    for part in unlike.values():
        yield
        part.begin(state)
    yield from _close(state, parts, unlike.values())


def _close(state: State, parts: Sequence[Part], unlike: Collection[Part]) -> Iterator[None]:
    """Give turns to the parts that are not closed, and join what they have found where the turns
    since the last time have taken as long as that: of many parts each turn changes little.
    """
    joining, waiting, news = _join(state, parts), 0.0, False
    yield  # the gap may be closed now
    while left := [part for part in unlike if part.gap > 0]:
        most = sum(part.most for part in parts) - state.lower_bound
        if most <= 0:
            break
        share = 1.0 if state.value is None else min(1.0, most / (state.value - state.lower_bound))
        state.breadth = max(1.0, share * sum(part.breadth for part in left))
        part = max(left, key=lambda part: len(part.places) * part.gap / part.seconds)
        before = part.seconds
        news |= part.go_on(state)
        waiting += part.seconds - before
        state.raise_bound(sum(part.tracker.lower_bound for part in parts), "series")
        if news and waiting >= joining:
            joining, waiting, news = _join(state, parts), 0.0, False
        yield
    if news:
        _join(state, parts)


def _islands(state: State) -> Iterator[str | None]:
    """Close the problem on the devices that a schedule better than the incumbent needs, by the
    tactics of the whole; again whenever a better incumbent leaves fewer of them.

    It is worth a search of its own where some device is of no use at all, at most half of the
    choices are left, or the quick bounds are above the bound; looking again takes no longer than
    that search has had. As long as its bound is the best, it counts as many as the tactics at work
    inside, and as those which they make needless: they do the same on fewer devices.
    """
    facts: MakespanFacts = state.facts
    part: Part | None = None
    most, tried, looked = 0, None, 0.0
    while True:
        had = math.inf if part is None or part.over else part.seconds
        if state.value not in (None, tried) and looked <= had:
            value, piece, begin = state.value, state.piece, state.tracker.elapsed
            fewer = confined(facts.analysis, value - 1, piece)
            spent = state.tracker.elapsed - begin
            looked += spent
            if fewer is None:
                state.raise_bound(value, "islands")
                return
            tried = value if spent < DEDUCING * piece else None  # cut short: look again, longer
            found = Part.confined(state, fewer, None if part is None else part.tracker.problem)
            part, most = (part, most) if found is None else (found, value)
        if part is None or part.over:
            yield None if tried is None and state.value is not None else WAITING
            continue
        ahead = min(part.tracker.lower_bound, most) >= state.lower_bound
        state.breadth = float(part.breadth + len(PROVERS)) if ahead else 1.0
        part.go_on(state)
        state.raise_bound(min(part.tracker.lower_bound, most), "islands")
        if part.tracker.solution is not None:
            offer(state.problem, state.tracker, part.tracker.solution)
        yield None


class Part:
    """The search of a part of the graph, gone on with each time.

    Attributes
    ----------
    places : where it is in the graph. tracker, analysis : of its problem.
    seconds : that it has had. over : whether nothing is left to do.
    """

    def __init__(
        self,
        state: State,
        analysis: Analysis,
        place: Place,
        without: str,
        searches: Sequence[Tactic] = (),
    ) -> None:
        """Start from the quick bounds of `analysis`, by searches and by all that proves but the
        tactic it is a part of.
        """
        facts: MakespanFacts = state.facts
        self.places, self.analysis = [place], analysis
        whole, problem = state.tracker, analysis.problem
        seconds = whole.seconds_left
        budget = Budget(seconds if math.isfinite(seconds) else None)
        self.tracker = whole.beside(problem, budget)
        self.tracker.raise_bound(*self.analysis.best())
        settings = replace(facts.settings, warm_start=False, windows=False)
        own = MakespanFacts(settings, self.analysis, self.tracker)
        tactics = [*searches, *(tactic for tactic in PROVERS if tactic.name != without)]
        self._lane = Lane(tactics, own, self.tracker, threads=lambda: state.threads)
        self._turns = self._lane.work()
        self._given: Placement | None = None
        self.over = False
        self.seconds = max(LEAST, time.perf_counter() - analysis.started)

    @classmethod
    def confined(
        cls, state: State, fewer: PlacementProblem, before: PlacementProblem | None
    ) -> Part | None:
        """Return the search of the whole graph on fewer devices; None if it is not worth one of its
        own, or they are no fewer than before.
        """
        analysis, able = state.facts.analysis, fewer.compute >= 0
        known = analysis.relaxation.allowed if before is None else before.compute >= 0
        if able.sum() >= known.sum():
            return None
        inner = analyse(fewer, state.tracker, 1.0)
        _take_heads(inner, analysis)
        inner.run_all(COMBINATORIAL, optional=True)
        useless = (able.any(axis=0) < known.any(axis=0)).any()
        if useless or 2 * able.sum() <= known.sum() or inner.best()[0] > state.lower_bound:
            every = np.arange(fewer.num_ops, dtype=np.int64)
            part = cls(state, inner, Place(every, every >= 0), "islands")
            part.begin(state)
            return part
        return None

    def begin(self, state: State) -> None:
        """Give it a schedule to begin with."""
        begin = state.tracker.elapsed
        with self.tracker.within(state.tracker):
            warm_start(self.tracker.problem, self.tracker)
        self.seconds += state.tracker.elapsed - begin

    @property
    def most(self) -> int:
        """Ticks that it needs at most, as far as is known: without a schedule, one op at a time."""
        value = self.tracker.value
        return self.analysis.relaxation.serial if value is None else value

    @property
    def gap(self) -> int:
        """Ticks between value and bound that may be closed."""
        return 0 if self.over else self.most - self.tracker.lower_bound

    @property
    def breadth(self) -> int:
        """Number of tactics that take turns."""
        return sum(not turn.over for turn in self._lane.turns)

    def go_on(self, state: State) -> bool:
        """Give one turn, from the incumbent of the whole if that is better; return whether value or
        bound have changed.
        """
        whole, own = state.tracker, self.tracker
        before, begin = (own.value, own.lower_bound), whole.elapsed
        if whole.solution is not None and whole.solution is not self._given:
            self._given = whole.solution
            for place in self.places:
                offer(own.problem, own, restricted(self._given, place.ops))
        with own.within(whole):
            self.over = next(self._turns, None) is None
        self.seconds += whole.elapsed - begin
        return (own.value, own.lower_bound) != before


def _join(state: State, parts: Sequence[Part]) -> float:
    """Raise the bound, heads and tails of the whole by those of its parts, and offer their
    schedules, one after the other; return the seconds that this has taken.
    """
    begin = time.perf_counter()
    analysis: Analysis = state.facts.analysis
    places, inner = state.facts.parts, [part.analysis for part in parts]
    least = [part.tracker.lower_bound for part in parts]
    analysis.heads = heads_in_series(analysis, places, inner, least)
    state.raise_bound(sum(least), "series")
    found = [part.tracker.solution for part in parts if part.tracker.solution is not None]
    if len(found) == len(places):
        joined = placement_in_series(analysis.problem, places, found)
        offer(analysis.problem, state.tracker, joined)
    return time.perf_counter() - begin


def _grids(state: State, part: PlacementTracker, *, finer: int = 4, short_ops: float = 0.5) -> bool:
    """Solve the whole problem on its natural grid, contention left out, then on finer ones as long
    as that succeeds.

    Where most of the work is in ops whose times are small multiples of one another, as in sharded
    graphs, the coarse problem is solved within a second, and what rounding loses is small. Each
    grid starts from the incumbent that the last one led to.

    Parameters
    ----------
    finer : how much finer the next grid is: each is solved from the one before.
    short_ops : share of the ops that must be without length on a natural grid for it to be tried:
        then the coarse problem is much smaller.
    """
    facts: MakespanFacts = state.facts
    if facts.grid is None:
        if part.value is None:
            return False
        unit = natural_grid(part.problem, part.value)
        short = (facts.analysis.relaxation.min_compute < unit).mean() > short_ops
        facts.grid = unit if short else 0
    if facts.grid <= facts.unit:
        return True
    if solve_coarse(facts.with_threads(state), part, facts.analysis, facts.grid):
        facts.grid //= finer
    return facts.grid <= facts.unit


def _fronts(state: State, part: PlacementTracker) -> bool:
    """Bound what fits into the ends of a schedule; go on where the last time ended."""
    seconds = part.seconds_left

    def go_on(bound: int) -> bool:
        part.raise_bound(bound, "front")
        return not part.stop()

    end = time.perf_counter() + seconds
    found = state.facts.fronts.run(end, part.lower_bound, part.value, go_on)
    if found is not None:
        part.raise_bound(found.bound, "front")
    worth = seconds > FrontSearch.patience.seconds and part.seconds_left > 0.5 * seconds
    return found is None and worth


def _ladder(state: State, part: PlacementTracker) -> bool:
    """Search long horizons on coarse grids, from below: with few distinct times short schedules are
    refuted, and the shape of a good one is found, many times faster; the next finer grid starts
    from it. The exact grid is the last one, where a rung is as fine.
    """
    facts: MakespanFacts = state.facts
    upper = facts.analysis.relaxation.serial if part.value is None else part.value
    if facts.rung == len(RUNGS):
        return True
    scale = max(facts.unit, -(-upper // RUNGS[facts.rung]))
    settings = facts.with_threads(state)
    run = solve_on_grid(settings, part, facts.analysis, scale, from_below=True)
    facts.rung += run.finished
    return run.closed


def _cp_sat(state: State, part: PlacementTracker) -> bool:
    """Run the model of the whole problem."""
    facts: MakespanFacts = state.facts
    return solve_on_grid(facts.with_threads(state), part, facts.analysis, facts.unit).closed


def _building(facts: MakespanFacts) -> float:
    return facts.building


PROVERS: tuple[Tactic, ...] = (
    Steps("combinatorial", BOUND, _combinatorial),
    Runs("destructive", BOUND, _destructive, when=lambda f: f.timed and f.refutable),
    Runs("segments", BOUND, _segments, when=lambda f: f.timed and f.model, prior=2.0),
    Runs("congestion", BOUND, _congestion, when=lambda f: f.timed and f.contended, prior=1.0),
    Runs("tight", BOTH, _tight, when=lambda f: f.timed and f.exact, needs=_building),
    Steps("series", BOTH, _series, when=lambda facts: facts.timed and facts.in_series),
    Steps("islands", BOTH, _islands, when=lambda facts: facts.timed and facts.on_islands),
    Runs("grids", BOTH, _grids, when=lambda facts: facts.model),
    Runs(
        "fronts",
        BOUND,
        _fronts,
        when=lambda facts: facts.timed,
        needs=lambda _: FrontSearch.patience.seconds,
    ),
    Runs("ladder", BOTH, _ladder, when=lambda facts: facts.model, needs=_building),
    Runs("cp-sat", BOTH, _cp_sat, when=lambda facts: facts.exact, needs=_building),
)
"""Tactics that prove; those before others begin first."""

IMPROVER: Tactic = Steps(
    "windows", VALUE, windows, when=lambda facts: facts.timed and facts.settings.windows
)
"""The tactic that improves the incumbent of `cp-sat`."""


def solve_coarse(
    settings: CpSatSettings, tracker: PlacementTracker, analysis: Analysis, unit: int
) -> bool:
    """Solve the problem on a grid of time in what is left of the budget, contention left out; raise
    the bound by it, and offer what it leads to.

    Parameters
    ----------
    unit : ticks.

    Returns
    -------
    bool
        Whether the coarse problem is solved: it was refuted below a schedule, or below the bound.
    """
    coarse = coarsen(analysis.problem, unit)
    own = tracker.beside(coarse.problem, tracker.share(1.0))
    with own.within(tracker):
        finished = _solve(settings, own, tracker, coarse, analysis)
    tracker.count(own.evaluations)
    tracker.raise_bound(own.lower_bound * unit, own.bound_method)
    if own.solution is not None:
        _, queue = best_queue(coarse.problem, own.solution)
        schedule = evaluate(coarse.problem, own.solution, queue).schedule
        offer(coarse.fine, tracker, coarse.extend(schedule))
    return finished


def _solve(
    settings: CpSatSettings,
    own: PlacementTracker,
    tracker: PlacementTracker,
    coarse: Coarse,
    analysis: Analysis,
) -> bool:
    """Search the coarse problem from what is known of the fine one, and return whether it is
    solved.
    """
    if tracker.solution is not None:
        offer(coarse.problem, own, coarse.restrict(tracker.solution))
    unit = coarse.problem.common_unit
    # no bound of the coarse problem: rounded down, since the tracker rounds up what is one
    own.raise_bound(tracker.lower_bound // coarse.unit // unit * unit, tracker.bound_method)
    inner = analyse(coarse.problem, own, 1.0)
    for name in COMBINATORIAL:
        own.raise_bound(inner.run(name, optional=True), name)
    _take_heads(inner, analysis, coarse.unit, coarse.kept)
    timed = math.isfinite(own.seconds_left) and own.budget.evaluations is None
    met = timed and lift(settings, own, inner, unit, 0.5)
    if not met and not own.stop():
        met = solve_on_grid(settings, own, inner, unit).finished
    return met or own.stop_reason == "proved"


def _take_heads(
    inner: Analysis, analysis: Analysis, unit: int = 1, kept: Ints | slice = slice(None)
) -> None:
    """Raise the heads and tails of a coarse or confined problem by those of the whole, rounded
    down.

    Devices that differ in the whole may be of one class in the other: the least of theirs holds for
    all.

    Parameters
    ----------
    unit : ticks of the coarse problem's grid. kept : ops of the whole that it has.
    """
    relaxation, found = inner.relaxation, []
    for own, fine in zip(inner.heads[:2], analysis.device_heads_tails(analysis.heads), strict=True):
        least = relaxation.least_by_class((fine // unit)[kept])
        found.append(np.where((own < 0) | (least >= INFINITE), own, np.maximum(own, least)))
    inner.heads = inner.heads._replace(head=found[0], tail=found[1])


def search_makespan(
    settings: CpSatSettings,
    problem: PlacementProblem,
    tracker: PlacementTracker,
    *,
    prove: bool = False,
) -> None:
    """Start from the heuristics and the combinatorial bounds; then run the tactics, or only those
    that prove, until the budget ends.
    """
    if settings.warm_start:
        warm_start(problem, tracker)
    analysis = analyse(problem, tracker)
    for name in COMBINATORIAL:
        if tracker.stop() and tracker.lower_bound > 0:  # the shortest budget ends with a bound too
            return
        tracker.raise_bound(analysis.run(name), name)
    if not tracker.stop():
        facts = MakespanFacts(settings, analysis, tracker)
        tactics = (*PROVERS[:1], IMPROVER, *PROVERS[1:])  # combinatorial bounds begin first
        run_tactics(tactics, settings, facts, tracker, improve=not prove)
