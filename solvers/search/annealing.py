"""Simulated annealing on devices and order, with moves of clusters and of steps of the critical
path.

A proposal that is worse by x is accepted with probability exp(-x / T), T falling geometrically;
there are other rules. With expensive communication single ops hardly ever move alone, so most
moves take a connected cluster along.

The walk is compiled and, without contention, evaluates incrementally (`walk_kernels`); several
walks run at once, in cycles: after each they all go on from the best placement, reheated. Other
objectives (period, a measurement) and peak-memory problems are walked in lockstep on the batch
evaluator.

How often a walk takes each kind of move is set at first, then learned: a kind comes as often as it
did at first, times what its proposals gained over what all did (probability matching), where a gain
is a new best placement and older proposals count less.

How a temperature falls, and which worse values it accepts, are the parts that papers vary. A
cooling gives the temperature after a share of the steps. An acceptance gives the largest value
that a proposal may have, from the current value, the best one, the temperature and a random number
in [0, 1): drawn before the proposal is valued, so that its evaluation can be given up early.

References
----------
- D. Thierens. An adaptive pursuit strategy for allocating operator probabilities. GECCO 2005.
  (Probability matching, section 2.)
- A. Fialho. Adaptive operator selection for optimization. PhD thesis, Universite Paris-Sud, 2010.
  (Credit by what was gained lately.)

S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing", Science 220, 1983
(metropolis, geometric). M. Lundy, A. Mees, "Convergence of an annealing algorithm", Mathematical
Programming 34, 1986. G. Dueck, T. Scheuer, "Threshold accepting: a general purpose optimization
algorithm appearing superior to simulated annealing", Journal of Computational Physics 90, 1990.
G. Dueck, "New optimization heuristics: the great deluge algorithm and the record-to-record travel",
Journal of Computational Physics 104, 1993.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from placeopt.makespan.objective import MAKESPAN
from placeopt.model.errors import InputError
from placeopt.model.random_bits import random_states
from placeopt.period.objective import PERIOD
from placeopt.solvers.search.annealing_walks import (
    AnnealingWalk,
    MutatedRows,
    WalkTeam,
    move_weights,
    order_of,
)
from placeopt.solvers.search.batch_search import BatchSearch
from placeopt.solvers.search.walk_kernels import (
    BEST,
    EMPTY,
    METROPOLIS,
    PROPOSED,
    RECORD,
    THRESHOLD,
)
from placeopt.solving.options import option

if TYPE_CHECKING:
    from numpy.random import Generator

    from placeopt.model.arrays import Floats, Ints
    from placeopt.model.placement import Placement
    from placeopt.solvers.search.evaluator import BudgetedEvaluator


@dataclass(frozen=True)
class Cooling(ABC):
    """Temperature that falls from `hot` to `cold`."""

    hot: float
    cold: float

    @abstractmethod
    def at(self, progress: float) -> float:
        """Temperature after a share of the steps."""

    def scaled(self, scale: float) -> Self:
        """Return the same cooling in other units."""
        return replace(self, hot=self.hot * scale, cold=self.cold * scale)

    def reheated(self, share: float) -> Self:
        """Return the same cooling from a share of its first temperature."""
        return replace(self, hot=max(self.cold, self.hot * share))


class GeometricCooling(Cooling):
    """A constant factor per step."""

    def at(self, progress: float) -> float:
        """Temperature after a share of the steps."""
        return self.hot * (self.cold / self.hot) ** progress


class LinearCooling(Cooling):
    """A constant difference per step."""

    def at(self, progress: float) -> float:
        """Temperature after a share of the steps."""
        return self.hot + (self.cold - self.hot) * progress


class LundyMeesCooling(Cooling):
    """T / (1 + beta T) per step: the inverse of the temperature grows by a constant."""

    def at(self, progress: float) -> float:
        """Temperature after a share of the steps."""
        return 1.0 / ((1.0 - progress) / self.hot + progress / self.cold)


COOLINGS: dict[str, type[Cooling]] = {
    "geometric": GeometricCooling,
    "linear": LinearCooling,
    "lundy-mees": LundyMeesCooling,
}

ACCEPTANCES = {"metropolis": METROPOLIS, "threshold": THRESHOLD, "record-to-record": RECORD}
"""Rules by name: the number by which the compiled walk knows them."""


def limits(
    acceptance: str, values: Ints, best: int | None, temperature: float, draw: Floats
) -> Floats:
    """Return the largest value that the next proposal of each row may have.

    Metropolis accepts what is worse by x with probability exp(-x / temperature); threshold
    accepting what is worse by at most the temperature; record-to-record travel what is worse than
    the best by at most that, or not worse than the current value.

    Parameters
    ----------
    acceptance : one of ACCEPTANCES.
    best : the best value known, None before there is one. draw : a random number per row.
    """
    now = np.minimum(values, 2**61)
    if acceptance == "metropolis":
        return now - temperature * np.log(draw + 1e-300)
    if acceptance == "threshold":
        return now + temperature
    return np.maximum(now, float(now.min() if best is None else best) + temperature)


@dataclass(frozen=True)
class Annealing(BatchSearch):
    """Simulated annealing on devices and order; compiled for the makespan with static memory."""

    walks: int = option(
        2, "walks at the same time (on threads); fewer where evaluations are few", low=1
    )
    hot: float = option(
        0.0,
        "first temperature, as a share of the mean work of a device (of the first value, "
        "where it is measured or of an objective of your own); 0: by the number of steps",
        low=0,
    )
    cold: float = option(1e-5, "last temperature, likewise", above=0)
    cooling: str = option("geometric", "how the temperature falls", choices=tuple(COOLINGS))
    acceptance: str = option(
        "metropolis", "which worse placements are accepted", choices=tuple(ACCEPTANCES)
    )
    moves: str = option(
        "all", "moves of the compiled walk: all, or some of their names joined by commas"
    )
    focus: float = option(
        10.0,
        "how many times as often as another move each of `critical` and `overtake` comes at first",
        above=0,
    )
    learn: bool = option(True, "learn on the way which moves gain, and take those more often")
    cycles: int = option(0, "cycles of the compiled walk; 0: by the number of steps", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.cold <= self.hot or self.hot == 0) or not self.hot < math.inf:
            raise InputError(
                f"annealing: expected 0 <= cold <= hot, received cold={self.cold}, hot={self.hot}"
            )
        move_weights(self.moves)

    def cooled(self, evaluator: BudgetedEvaluator, states: int = 1) -> Cooling:
        """Return how the temperature falls; `states` share the steps of the budget."""
        hot = self.hot or first_heat(evaluator, states)
        return COOLINGS[self.cooling](hot, min(hot, self.cold))

    def improve(
        self, evaluator: BudgetedEvaluator, starts: list[Placement], rng: Generator
    ) -> None:
        """Anneal until the budget is spent."""
        if starts and not evaluator.tracker.stop():
            anneal(evaluator, starts, rng, self)


def first_heat(
    evaluator: BudgetedEvaluator,
    states: int = 1,
    *,
    heat: float = 0.001,
    steps_an_op: int = 20,
    most: float = 0.05,
) -> float:
    """Return the first temperature for the steps that the budget allows, as a share of the mean
    work of a device; the most where the caller measures, whose values are noisy.

    Between 0.0003 and 0.03 no value is better than another by more than half a percent up to 2000
    steps an op (results/policy/walks.md); longer walks, as of a million steps on a sharded Llama
    layer, end lower from a higher one.

    Parameters
    ----------
    states : that share the steps.
    heat : of a walk of `steps_an_op`; it grows with the root of the number of steps, up to `most`.
    """
    if evaluator.measure is not None:
        return most
    tracker = evaluator.tracker
    steps = float(tracker.evaluations_left)
    if tracker.budget.evaluations is None:
        steps = tracker.seconds_left / evaluator.chunk_seconds * evaluator.chunk
    steps = max(1.0, steps / states / evaluator.problem.num_ops)
    return min(most, heat * math.sqrt(steps / steps_an_op))


def anneal(
    evaluator: BudgetedEvaluator,
    starts: list[Placement],
    rng: Generator,
    settings: Annealing | None = None,
    *,
    steps_per_walk: int = 10_000,
) -> None:
    """Spend the rest of the budget on annealing from `starts`, compiled where the problem allows
    it.

    Parameters
    ----------
    settings : how to walk, by default as `Annealing` does.
    steps_per_walk : with fewer evaluations than this for each of two walks, one does them all.
    """
    settings = settings or Annealing()
    if not evaluator.walkable:
        lockstep(evaluator, starts, rng, settings)
        return
    cooling = settings.cooled(evaluator)
    tracker, space = evaluator.tracker, evaluator.space
    walks = int(np.clip(tracker.evaluations_left // steps_per_walk, 1, settings.walks))
    acceptance = ACCEPTANCES[settings.acceptance]
    shares = MoveShares(move_weights(settings.moves, settings.focus), learn=settings.learn)
    begun = []
    for i, random in enumerate(random_states(rng, walks)):
        placement = starts[i % len(starts)]
        sequence = space.sequence_of(placement)
        begun.append(
            AnnealingWalk(space, placement.device, sequence, random, shares.first, acceptance)
        )
    team = WalkTeam(begun, evaluator.threads)
    anneal_in_cycles(evaluator, team, shares, cooling.scaled(space.mean_load), settings.cycles)


def lockstep(
    evaluator: BudgetedEvaluator,
    starts: list[Placement],
    rng: Generator,
    settings: Annealing,
    *,
    steps_per_lane: int = 400,
    most_lanes: int = 8,
) -> None:
    """Walk several states at once, one proposal each per batch.

    Parameters
    ----------
    steps_per_lane : evaluations that justify another state. most_lanes : states per walk.
    """
    tracker, space = evaluator.tracker, evaluator.space
    lanes = int(np.clip(tracker.evaluations_left // steps_per_lane, 1, most_lanes * settings.walks))
    if evaluator.measure is not None:
        lanes = 1  # a measurement is dear: every one is used by the next step
    cooling = settings.cooled(evaluator, lanes)
    begin = [starts[i % len(starts)] for i in range(lanes)]
    homes = np.stack([space.homes_of(placement.device) for placement in begin])
    rows = MutatedRows(
        evaluator, homes, [order_of(evaluator, p) for p in begin], random_states(rng, lanes)
    )
    # Makespans and periods are of the order of the work of a device. Measurements, and objectives
    # of others, have a scale of their own: that of their values.
    timed = evaluator.measure is None and evaluator.objective in (MAKESPAN, PERIOD)
    cooling = cooling.scaled(space.mean_load if timed else float(tracker.value or 1))
    pace = _Pace(evaluator, lanes, 1)
    while not tracker.stop():
        temperature, before = cooling.at(min(1.0, pace.share)), tracker.evaluations
        rows.step(
            limits(settings.acceptance, rows.values, tracker.value, temperature, rng.random(lanes))
        )
        pace.spend(tracker.evaluations - before)


def anneal_in_cycles(
    evaluator: BudgetedEvaluator,
    team: WalkTeam,
    shares: MoveShares,
    cooling: Cooling,
    cycles: int,
    *,
    scatter: float = 0.5,
    reheat: tuple[float, ...] = (1.0, 0.5, 0.25),
) -> None:
    """Anneal the walks until the budget is spent; they meet at the best placement after each cycle.

    A proposal that changes nothing is not evaluated and costs nothing.

    Parameters
    ----------
    cooling : temperatures in ticks of the first cycle.
    cycles : number of cycles; 0 for what the number of steps suggests.
    scatter : share of the cycles, the first ones, that begin where the walk began instead of at the
        best placement.
    reheat : share of the initial temperature at which the cycles begin, in turn.
    """
    tracker, pace, cycle = evaluator.tracker, _Pace(evaluator, len(team.walks), cycles), 0
    while not tracker.stop() and pace.goes_on:
        position = pace.share * pace.cycles
        if int(position) > cycle:
            cycle = int(position)
            best = team.leader.best()
            for walk in team.walks:
                walk.jump(*(walk.origin if cycle < scatter * pace.cycles else best))
        reheated = cooling.reheated(reheat[cycle % len(reheat)])
        steps = pace.steps()
        phase, ahead = position - cycle, pace.ahead(steps) * pace.cycles
        first, last = (reheated.at(min(1.0, x)) for x in (phase, phase + ahead))
        team.weigh(shares.now())
        tally = team.tally
        made = team.run(steps, first, last, evaluator.target)
        evaluated = shares.count(team.tally - tally) or made  # so that every walk ends
        team.report(tracker, evaluated)
        if made < sum(steps):
            return  # the target is reached
        pace.spend(evaluated)


class _Pace:
    """What walks have spent of their budget, and how many steps of cycles come next.

    Parameters
    ----------
    least_look : proposals of a walk between two looks at what the kinds of moves gained, at least.
    looks : of a cycle, about.
    pieces : of the interpreter's switch interval that steps take by the clock, once their pace is
        known. After each call of a kernel a walk waits so long for another thread that runs Python
        code; with ten intervals of its own it loses at most one in eleven.

    Attributes
    ----------
    share : part of the budget that is spent. cycles : their number, 1 before the first steps tell.
    """

    def __init__(
        self,
        evaluator: BudgetedEvaluator,
        walks: int,
        cycles: int,
        *,
        least_look: int = 100,
        looks: int = 40,
        pieces: float = 10.0,
    ) -> None:
        self.tracker, self.walks = evaluator.tracker, walks
        self.piece = pieces * sys.getswitchinterval()
        self.chunk, self.num_ops = evaluator.chunk, evaluator.problem.num_ops
        self.most = self.chunk
        self.by_count = self.tracker.budget.evaluations is not None
        self.total, self.began = self.tracker.evaluations_left, self.tracker.elapsed
        self.seconds = self.tracker.seconds_left
        self.done, self.share, self.before = 0, 0.0, 0.0
        self.look, self.least_look, self.looks = least_look, least_look, looks
        self.cycles, self.chosen = cycles or 1, cycles > 0
        if self.by_count and not self.chosen:
            self.cycles, self.chosen = _cycles(self.total / walks, self.num_ops), True

    @property
    def goes_on(self) -> bool:
        """Whether something of the budget is left."""
        return self.share < 1.0 and self.done < self.total

    def steps(self) -> list[int]:
        """Return the steps of each walk until the next look at clock and gains."""
        left = min(self.total - self.done, self.tracker.evaluations_left)
        if left < self.walks:
            return [1] * left
        return [min(self.most, self.look, left // self.walks)] * self.walks

    def ahead(self, steps: list[int]) -> float:
        """Return the share of the budget that steps will take; by the clock, that of the last."""
        return sum(steps) / self.total if self.by_count else self.share - self.before

    def spend(self, evaluated: int) -> None:
        """Count evaluated proposals, and see how many there will be in all."""
        self.done += max(1, evaluated)
        used = (self.tracker.elapsed - self.began) / self.seconds if self.seconds > 0 else 1.0
        # The count decides, so that the walk is reproducible, unless the clock will clearly come
        # first.
        by_count = self.by_count and 4 * self.done >= used * self.total
        if not by_count:
            pace = self.done / self.walks / max(self.tracker.elapsed - self.began, 1e-9)
            self.most = max(self.chunk, int(self.piece * pace))
        self.before, self.share = self.share, self.done / self.total if by_count else used
        whole = self.done / max(self.share, 1e-9)
        if not self.chosen:
            self.cycles, self.chosen = _cycles(whole / self.walks, self.num_ops), True
        self.look = max(self.least_look, int(whole / (self.walks * self.cycles * self.looks)))


def _cycles(steps: float, num_ops: int, *, length: int = 300, most: int = 10) -> int:
    """Return the number of cycles for a walk of so many steps.

    Parameters
    ----------
    length : steps of a cycle per op; longer budgets are split into more cycles.
    most : a slow cooling finds what many short ones, of the same steps together, do not.
    """
    return int(np.clip(steps / (length * num_ops), 1, most))


class MoveShares:
    """Shares of the kinds of moves, and what each kind has gained lately.

    Parameters
    ----------
    first : relative frequency of each kind before anything is learned; kinds of 0 never come.
    learn : whether gains change them.
    doubt : proposals of the average gain that every kind is credited with.
    rarest : least share of a kind that is taken at all.

    Attributes
    ----------
    tried, better : evaluated proposals of each kind, and new best placements among them.
    """

    def __init__(
        self, first: Floats, *, learn: bool = True, doubt: float = 50.0, rarest: float = 0.02
    ) -> None:
        self.first, self.learn = first / first.sum(), learn
        self.doubt, self.rarest = doubt, rarest
        self.tried, self.better = np.zeros(len(first)), np.zeros(len(first))

    def count(self, tally: Ints, memory: float = 0.9) -> int:
        """Learn from new proposals, a tally of them; return how many were evaluated.

        What was gained before one look at the gains has a weight of `memory` at the next.
        """
        tried = tally[:, PROPOSED] - tally[:, EMPTY]
        if self.learn:
            self.tried = memory * self.tried + tried
            self.better = memory * self.better + tally[:, BEST]
        return int(tried.sum())

    def now(self) -> Floats:
        """Return the probability of each kind of move."""
        total = float(self.better.sum())
        if total < np.finfo(float).tiny:  # nothing was gained, or too long ago for its digits
            return self.first
        gain = self.better / total * self.tried.sum()  # in units of the average of a proposal
        weight = self.first * (gain + self.doubt) / (self.tried + self.doubt)
        share = np.where(self.first > 0, np.maximum(weight / weight.sum(), self.rarest), 0.0)
        return share / share.sum()
