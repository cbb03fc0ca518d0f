"""A memetic algorithm: crossover of assignments, then local search on every child.

Crossover is uniform over *groups* of ops (a new random coarseness every time), so that clusters survive it, and
happens after the devices of the second parent are relabelled: identical devices may be exchanged without
changing a placement, and crossing placements that name them differently would only mix them up. Local search is
the annealing walk at (almost) no temperature where it applies, mutation with selection in batches elsewhere.
Moscato, "On evolution, search, optimization, genetic algorithms and martial arts", 1989.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from placeopt.makespan.evaluate import INFEASIBLE
from placeopt.model.errors import InputError
from placeopt.solvers.search import population_kernels as kernels
from placeopt.solvers.search.annealing import CHUNK_WORK, rank_of
from placeopt.solvers.search.objective import Measure, Objective
from placeopt.solvers.search.starts import check_start, starting_placements
from placeopt.solvers.search.walker import Crew, Walker, random_states

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

    Ints = NDArray[np.int64]

LEVELS = (0, 8, 16, 32, 64, 128)
"""Numbers of groups that crossover takes units in; 0 for every unit on its own."""

CLIMB_HEAT = 0.002
"""Temperature at which a child's local search begins, as a share of the mean work of a device."""

EVALUATIONS_PER_MEMBER = 4000
GENERATIONS = 7
"""A small budget keeps a small population, so that about this many generations fit."""

CLIMBERS = 2
"""Children that climb at the same time."""


class Member(NamedTuple):
    """One placement of the population."""

    value: int  # ticks
    home: Ints  # (num_units,)
    order: Ints  # (num_ops,) ops in order (empty where order does not matter)


@dataclass(frozen=True)
class Genetic:
    """Memetic algorithm: group-wise crossover of relabelled parents, local search on every child.

    Parameters
    ----------
    population : most placements kept (fewer where evaluations are few).
    climb : proposals of local search per child; 0 to derive it from the budget.
    mutation : random moves on a child before its local search.
    start : solver whose placement joins the first population; "random" for none.
    objective : callable that measures a placement (devices, shape (num_ops,)) in seconds, instead of the makespan.
    threads : None for one per core; the result does not depend on it.
    """

    population: int = 16
    climb: int = 0
    mutation: int = 2
    start: str = "edge-zeroing"
    objective: Measure | None = None
    threads: int | None = None

    name: ClassVar[str] = "genetic"

    def __post_init__(self) -> None:
        if self.population < 2:
            raise InputError(f"genetic: population must be at least 2, received {self.population}")
        if self.climb < 0 or self.mutation < 0:
            raise InputError(
                f"genetic: climb and mutation must be at least 0, received {self.climb} and {self.mutation}"
            )
        check_start(self.name, self.start)

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Evolve until the budget is spent; never worse than `initial` and the start."""
        objective = Objective(
            self.name, problem, budget, seed=seed, measure=self.objective, threads=self.threads,
            on_progress=on_progress,
        )  # fmt: skip
        reason = objective.impossible()
        if reason is not None:
            return objective.tracker.result(status="infeasible", message=reason)
        rng = np.random.default_rng(seed)
        with objective.tracker:
            starts = starting_placements(objective, self.start, initial, rng)
            if starts:
                self._evolve(objective, starts, rng)
            objective.tracker.stop()
        return objective.finish()

    def _evolve(self, objective: Objective, starts: list[Placement], rng: np.random.Generator) -> None:
        tracker, space = objective.tracker, objective.space
        # A few generations of well-improved members beat many of hardly improved ones.
        size = int(np.clip(tracker.evaluations_left // EVALUATIONS_PER_MEMBER, min(4, self.population), self.population))
        share = min(tracker.evaluations_left, 10**9) // (size * GENERATIONS)
        climb = self.climb or int(np.clip(share, 8, 10 * objective.problem.num_ops))
        climber = _Walks(objective, rng) if objective.walkable else _Batches(objective, rng)
        labels = [space.groups(level) if level else np.arange(space.num_units)
                  for level in LEVELS if level < space.num_units]  # fmt: skip
        with climber:
            first = [_member(objective, placement) for placement in starts[:size]]
            scratch = (space.random_homes(rng) for _ in range(size - len(first)))
            first += [first[0]._replace(home=home) for home in scratch if home is not None]
            members = climber.climb(first, climb)
            while len(members) >= 1 and not tracker.stop():
                children = [self._child(objective, members, labels, rng) for _ in range(size)]
                members = _select(members + climber.climb(children, climb), size)

    def _child(
        self, objective: Objective, members: list[Member], labels: list[Ints], rng: np.random.Generator
    ) -> Member:
        """Cross two members chosen by binary tournaments, and mutate the outcome."""
        space = objective.space
        first, second = (min(rng.integers(len(members), size=2)) for _ in range(2))  # members are sorted
        a, b = members[int(first)], members[int(second)]
        label = labels[int(rng.integers(len(labels)))]
        other = _relabelled(objective.problem, a.home, b.home)
        take = rng.random(int(label.max()) + 1) < 0.5
        home = np.where(take[label], other, a.home)
        order = a.order
        if len(order) and rng.random() < 0.5:
            # Mean place in both orders: consistent with what both agree upon.
            place = space.view.inverse(a.order) + space.view.inverse(b.order)
            order = np.lexsort((space.view.inverse(a.order), place)).astype(np.int64)
        homes, states = home[None, :].astype(np.int64), random_states(rng, 1)
        if not kernels.fit(space.graph, homes, states)[0]:
            homes = a.home[None, :].copy()
        kernels.mutate(space.graph, homes, np.zeros((1, 0), dtype=np.int64), states, self.mutation)
        return Member(INFEASIBLE, homes[0], order)


class _Walks:
    """Local search by compiled walks at almost no temperature."""

    def __init__(self, objective: Objective, rng: np.random.Generator) -> None:
        self.objective = objective
        space = objective.space
        home = space.repaired(np.zeros(space.num_units, dtype=np.int64))
        start = space.devices_of(home if home is not None else np.zeros(space.num_units, dtype=np.int64))
        self.crew = Crew(
            [Walker(space, start, space.sequence, state) for state in random_states(rng, CLIMBERS)], objective.threads
        )

    def __enter__(self) -> _Walks:
        return self

    def __exit__(self, *error: object) -> None:
        self.crew.__exit__(*error)

    def climb(self, members: list[Member], steps: int) -> list[Member]:
        """Return the members improved; fewer if the budget ends."""
        objective, tracker = self.objective, self.objective.tracker
        space, problem = objective.space, objective.problem
        chunk = int(np.clip(CHUNK_WORK // (problem.num_ops + problem.num_edges), 4, 4096))
        heat = CLIMB_HEAT * space.mean_load
        target = max(tracker.budget.target or 0, tracker.lower_bound)
        done: list[Member] = []
        for at in range(0, len(members), CLIMBERS):
            team = members[at : at + CLIMBERS]
            for walker, member in zip(self.crew.walkers, team, strict=False):
                walker.restart(space.devices_of(member.home), space.topological(member.order))
            left = steps
            while left > 0 and not tracker.stop():
                share = tracker.evaluations_left // len(team)
                now = min(left, chunk, max(1, share))
                made = self.crew.run([now] * min(len(team), tracker.evaluations_left), heat, heat / 100, target)
                tracker.count(made)
                left -= now
                if made == 0:
                    break
            for walker in self.crew.walkers[: len(team)]:
                device, order = walker.best()
                done.append(Member(walker.best_value, space.homes_of(device), order))
                if tracker.value is None or walker.best_value < tracker.value:
                    tracker.offer(walker.best_value, walker.best_placement())
            if tracker.stop():
                break
        return sorted(done, key=lambda member: member.value)


class _Batches:
    """Local search by rounds of mutation and selection on the batch evaluator."""

    def __init__(self, objective: Objective, rng: np.random.Generator) -> None:
        self.objective, self.rng = objective, rng

    def __enter__(self) -> _Batches:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def climb(self, members: list[Member], steps: int) -> list[Member]:
        """Return the members improved."""
        objective, space = self.objective, self.objective.space
        homes = np.stack([member.home for member in members])
        ranks = np.zeros((len(members), 0), dtype=np.int64)
        if objective.ordered:
            ranks = np.stack([space.view.inverse(member.order) for member in members]) * kernels.RANK_GAP
        states = random_states(self.rng, len(members))
        values = objective.values(space.devices_of(homes), ranks if objective.ordered else None)
        for _ in range(steps - 1):
            if objective.tracker.stop():
                break
            new_homes, new_ranks = homes.copy(), ranks.copy()
            kernels.mutate(space.graph, new_homes, new_ranks, states, 1)
            fresh = objective.values(space.devices_of(new_homes), new_ranks if objective.ordered else None)
            better = (fresh <= values) & (fresh != INFEASIBLE)
            homes[better], ranks[better], values[better] = new_homes[better], new_ranks[better], fresh[better]
        done = [
            Member(int(value), home, np.argsort(rank, kind="stable").astype(np.int64))
            for value, home, rank in zip(values, homes, ranks, strict=True)
        ]
        return sorted(done, key=lambda member: member.value)


def _member(objective: Objective, placement: Placement) -> Member:
    order = np.zeros(0, dtype=np.int64)
    if objective.walkable:
        order = objective.space.sequence_of(placement)
    elif objective.ordered:
        order = np.argsort(rank_of(objective, placement), kind="stable").astype(np.int64)
    return Member(INFEASIBLE, objective.space.homes_of(placement.device), order)


def _relabelled(problem: PlacementProblem, a: Ints, b: Ints) -> Ints:
    """Exchange identical devices in `b` so that it agrees with `a` as much as a greedy matching finds."""
    k = problem.num_devices
    overlap = np.zeros((k, k), dtype=np.int64)  # units that are on x in b and on y in a
    np.add.at(overlap, (b, a), 1)
    name = np.arange(k)
    for members in problem.identical_devices:
        free_from, free_to = list(members), list(members)
        pairs = sorted((-overlap[x, y], x, y) for x in members for y in members)
        for _, x, y in pairs:
            if x in free_from and y in free_to:
                name[x] = y
                free_from.remove(x)
                free_to.remove(y)
    return np.asarray(name[b])


def _select(members: list[Member], size: int) -> list[Member]:
    """Keep the best, without copies; worse than nothing is a population of clones."""
    kept: list[Member] = []
    for member in sorted(members, key=lambda member: member.value):
        if member.value == INFEASIBLE and kept:
            break
        if not any(np.array_equal(member.home, other.home) for other in kept if other.value == member.value):
            kept.append(member)
        if len(kept) == size:
            break
    return kept
