"""A memetic algorithm: crossover of assignments, then local search on every child.

Crossover exchanges *groups* of ops (of a new random coarseness every time), so that clusters
survive it, and happens after the devices of the second parent are relabelled: identical devices may
be exchanged without changing a placement, and crossing placements that name them differently would
only mix them up. Local search is the annealing walk at (almost) no temperature where it applies,
mutation with selection in batches elsewhere.

How parents are chosen, and what a child has of them, are the parts that papers vary. A selection
draws the place of a member among `count` that are sorted, best first. A crossover draws, for each
group of ops, whether a child has it from the second parent; groups are numbered along the graph.

References
----------
P. Moscato, "On evolution, search, optimization, genetic algorithms and martial arts: towards
memetic algorithms", Caltech Concurrent Computation Program, report 826, 1989.

D. E. Goldberg, K. Deb, "A comparative analysis of selection schemes used in genetic algorithms",
FOGA 1991. G. Syswerda, "Uniform crossover in genetic algorithms", ICGA 1989.
J. H. Holland, "Adaptation in natural and artificial systems", 1975 (crossover at a point).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Ints, place_in
from placeopt.model.objective import INFEASIBLE
from placeopt.model.random_bits import random_states
from placeopt.solvers.search import population_kernels as kernels
from placeopt.solvers.search.annealing_walks import AnnealingWalk, MutatedRows, WalkTeam, order_of
from placeopt.solvers.search.batch_search import BatchSearch
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.search.evaluator import BudgetedEvaluator


def tournament(rng: Generator, count: int) -> int:
    """Take the better one of two."""
    return int(min(rng.integers(count, size=2)))


def linear_ranking(rng: Generator, count: int) -> int:
    """Draw the member at place i with a probability proportional to count - i."""
    weight = np.arange(count, 0, -1, dtype=np.float64)
    return int(rng.choice(count, p=weight / weight.sum()))


def anyone(rng: Generator, count: int) -> int:
    """Draw every member with the same probability."""
    return int(rng.integers(count))


SELECTIONS: dict[str, Callable[[Generator, int], int]] = {
    "tournament": tournament,
    "linear-ranking": linear_ranking,
    "anyone": anyone,
}


def uniform(rng: Generator, groups: int) -> Flags:
    """Take every group with probability one half."""
    return rng.random(groups) < 0.5


def one_point(rng: Generator, groups: int) -> Flags:
    """Take the groups behind a random point."""
    return np.arange(groups) >= rng.integers(groups + 1)


def two_point(rng: Generator, groups: int) -> Flags:
    """Take the groups between two random points."""
    first, last = np.sort(rng.integers(groups + 1, size=2))
    place = np.arange(groups)
    return (place >= first) & (place < last)


CROSSOVERS: dict[str, Callable[[Generator, int], Flags]] = {
    "uniform": uniform,
    "one-point": one_point,
    "two-point": two_point,
}


class Member(NamedTuple):
    """One placement of the population."""

    value: int  # ticks
    home: Ints  # (num_units,)
    order: Ints  # (num_ops,) ops in order (empty where order does not matter)


@dataclass(frozen=True)
class Effort:
    """How a budget is shared out: a few generations of well-improved members beat many of hardly
    improved ones.

    Attributes
    ----------
    per_member : evaluations that justify a member of the population. least : members.
    generations : about how many fit where no number of proposals per child is given.
    levels : numbers of groups that crossover takes units in; 0 for every unit on its own.
    """

    per_member: int = 4000
    least: int = 4
    generations: int = 7
    levels: tuple[int, ...] = (0, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Genetic(BatchSearch):
    """Memetic algorithm: group-wise crossover of relabelled parents, local search on every
    child.
    """

    effort: ClassVar[Effort] = Effort()

    population: int = option(16, "most placements kept (fewer where evaluations are few)", low=2)
    climb: int = option(
        0, "proposals of local search per child; 0 to derive it from the budget", low=0
    )
    mutation: int = option(2, "random moves on a child before its local search", low=0)
    selection: str = option("tournament", "how parents are chosen", choices=tuple(SELECTIONS))
    crossover: str = option(
        "uniform", "which groups a child has from the second parent", choices=tuple(CROSSOVERS)
    )

    def improve(
        self, evaluator: BudgetedEvaluator, starts: list[Placement], rng: Generator
    ) -> None:
        """Evolve until the budget is spent."""
        if not starts:
            return
        tracker, space, effort = evaluator.tracker, evaluator.space, self.effort
        worth = tracker.evaluations_left // effort.per_member
        size = int(np.clip(worth, min(effort.least, self.population), self.population))
        share = min(tracker.evaluations_left, 10**9) // (size * effort.generations)
        climb = self.climb or int(np.clip(share, 8, 10 * evaluator.problem.num_ops))
        climber: WalkClimber | RowClimber = (
            WalkClimber(evaluator, starts[0], rng)
            if evaluator.walkable
            else RowClimber(evaluator, rng)
        )
        labels = [
            space.groups(level) if level else np.arange(space.num_units)
            for level in effort.levels
            if level < space.num_units
        ]
        first = _first_members(evaluator, starts[:size], size, rng)
        members = sorted(climber.climb(first, climb), key=lambda member: member.value)
        while members and not tracker.stop():
            children = [self.child(evaluator, members, labels, rng) for _ in range(size)]
            members = _select(members + climber.climb(children, climb), size)

    def child(
        self,
        evaluator: BudgetedEvaluator,
        members: list[Member],
        labels: list[Ints],
        rng: Generator,
    ) -> Member:
        """Cross two members, and mutate the outcome."""
        space, select = evaluator.space, SELECTIONS[self.selection]
        a, b = (members[select(rng, len(members))] for _ in range(2))  # members are sorted
        label = labels[int(rng.integers(len(labels)))]
        other = _relabelled(evaluator.problem, a.home, b.home)
        take = CROSSOVERS[self.crossover](rng, int(label.max()) + 1)
        home = np.where(take[label], other, a.home)
        order = a.order
        if len(order) and rng.random() < 0.5:
            # Mean place in both orders: consistent with what both agree upon.
            place = place_in(a.order) + place_in(b.order)
            order = np.lexsort((place_in(a.order), place)).astype(np.int64)
        homes, states = home[None, :].astype(np.int64), random_states(rng, 1)
        if not kernels.fit(space.graph, homes, states)[0]:
            homes = a.home[None, :].copy()
        kernels.mutate(space.graph, homes, np.zeros((1, 0), np.int64), states, self.mutation)
        return Member(INFEASIBLE, homes[0], order)


class WalkClimber:
    """Local search by compiled walks at almost no temperature, of `count` members at a time."""

    def __init__(
        self, evaluator: BudgetedEvaluator, start: Placement, rng: Generator, *, count: int = 2
    ) -> None:
        self.evaluator, space = evaluator, evaluator.space
        walks = [  # they restart from members
            AnnealingWalk(space, start.device, space.sequence, state)
            for state in random_states(rng, count)
        ]
        self.team = WalkTeam(walks, evaluator.threads)

    def climb(self, members: list[Member], steps: int) -> list[Member]:
        """Return the members improved by `steps` proposals each; fewer if the budget ends."""
        space, tracker = self.evaluator.space, self.evaluator.tracker
        done: list[Member] = []
        count = len(self.team.walks)
        for at in range(0, len(members), count):
            team = members[at : at + count]
            for walk, member in zip(self.team.walks, team, strict=False):
                walk.restart(space.devices_of(member.home), space.context.topological(member.order))
            self._walk(len(team), steps)
            for walk in self.team.walks[: len(team)]:
                device, order = walk.best()
                done.append(Member(walk.best_value, space.homes_of(device), order))
                walk.offer_best(tracker)
            if tracker.stop():
                break
        return done

    def _walk(self, count: int, steps: int, *, heat: float = 0.002) -> None:
        """Let the first `count` walks take `steps` steps each, or as many as the budget allows.

        Parameters
        ----------
        heat : first temperature, as a share of the mean work of a device.
        """
        tracker = self.evaluator.tracker
        heat = heat * self.evaluator.space.mean_load
        while steps > 0 and not tracker.stop():
            now = min(steps, self.evaluator.chunk, max(1, tracker.evaluations_left // count))
            made = self.team.run(
                [now] * min(count, tracker.evaluations_left),
                heat,
                heat / 100,
                self.evaluator.target,
            )
            tracker.count(made)
            steps -= now
            if made == 0:
                break


@dataclass(eq=False)
class RowClimber:
    """Local search by rounds of mutation and selection on the batch evaluator."""

    evaluator: BudgetedEvaluator
    rng: Generator

    def climb(self, members: list[Member], steps: int) -> list[Member]:
        """Return the members improved by `steps` proposals each."""
        homes = np.stack([member.home for member in members])
        states = random_states(self.rng, len(members))
        rows = MutatedRows(self.evaluator, homes, [member.order for member in members], states)
        for _ in range(steps - 1):
            if self.evaluator.tracker.stop():
                break
            rows.step(rows.values)
        return [
            Member(*row)
            for row in zip(rows.values.tolist(), rows.homes, rows.orders(), strict=True)
        ]


def _first_members(
    evaluator: BudgetedEvaluator, starts: list[Placement], size: int, rng: Generator
) -> list[Member]:
    """Return the placements to start from, and random ones in the first one's order."""
    space = evaluator.space
    members = [
        Member(INFEASIBLE, space.homes_of(start.device), order_of(evaluator, start))
        for start in starts
    ]
    scratch = (space.random_homes(rng) for _ in range(size - len(starts)))
    return members + [members[0]._replace(home=home) for home in scratch if home is not None]


def _relabelled(problem: PlacementProblem, a: Ints, b: Ints) -> Ints:
    """Exchange identical devices in `b` so that it agrees with `a` as much as a greedy matching
    finds.
    """
    k = problem.num_devices
    overlap = np.zeros((k, k), np.int64)  # units that are on x in b and on y in a
    np.add.at(overlap, (b, a), 1)
    name = np.arange(k)
    for members in problem.identical_devices:
        free_from, free_to = dict.fromkeys(members), dict.fromkeys(members)
        inside = overlap[np.ix_(members, members)]
        pairs = sorted((-inside[at], *at) for at in zip(*np.nonzero(inside), strict=True))
        for _, i, j in pairs:
            x, y = members[i], members[j]
            if x in free_from and y in free_to:
                name[x] = y
                del free_from[x], free_to[y]
        name[[*free_from]] = [*free_to]  # share no units
    return name[b]


def _select(members: list[Member], size: int) -> list[Member]:
    """Keep the best, without copies; worse than nothing is a population of clones."""
    kept: list[Member] = []
    for member in sorted(members, key=lambda member: member.value):
        if member.value == INFEASIBLE and kept:
            break
        if not any(
            np.array_equal(member.home, other.home) for other in kept if other.value == member.value
        ):
            kept.append(member)
        if len(kept) == size:
            break
    return kept
