"""`plan-stages`: the best plan of consecutive layers on devices of one or two kinds, with proof.

For every micro-batch, data degree and schedule, in the order of the area bound, the plans on the
front of (longest period m, fill and closing f) are met one after the other: f(m) is the least f of
plans whose periods keep to m, found by an exact dynamic program, and every plan with a period of at
least a that keeps to m takes at least (n - 1) a + f(m). What cannot beat the best plan known is
passed over, so that the bound holds wherever the search is cut off: it is the least bound of what
was not closed. Schedules whose memory depends on the number of stages (interleaved, zero-bubble)
are searched for each number of stages apart, interleaved ones for each kind and number of like
replicas too; zero-bubble ones first for all numbers at once, each stage keeping what it would as
the first one, which is the least, until a plan comes out that does not fit. For repetends, whose
period is longer than that of their stages where memory is short, the dynamic program bounds all
plans with a period in a range (`step_search` says why), and the range is halved until the bound is
not below the best plan: at a single period it is exact.

References
----------
Haimes, Lasdon, Wismer: "On a bicriterion formulation of the problems of integrated system
identification and system optimization", IEEE Trans. Systems, Man, and Cybernetics 1 (1971): the
epsilon-constraint method. Strati et al.: "Sailor: Automating distributed training over dynamic,
heterogeneous, and geo-distributed clusters", SOSP 2025: the space of plans.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from itertools import product

from placeopt.model.arrays import Ints
from placeopt.model.errors import InputError
from placeopt.model.threads import call_interruptibly
from placeopt.plans.plan import TrainingPlan
from placeopt.plans.step_bounds import batch_work, period_and_fill
from placeopt.plans.step_price import StepPrice, step_price
from placeopt.plans.step_problem import StepPlanProblem
from placeopt.plans.step_schedules import NEVER, behind_stages, kept_at, parse_schedule
from placeopt.solvers.planning.step_classes import BatchTables, Closings, DegreeTables, Variant
from placeopt.solvers.planning.step_search import search_period
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.plugin import PluginTracker
from placeopt.solving.tracker import Tracker

METHOD = "stages"
"""Name of the bound."""


@dataclass(frozen=True)
class Opening:
    """How ranges of periods are opened.

    Attributes
    ----------
    first : micro-batches and data degrees in which a first plan is looked for, at most.
    guess : it is looked for up to this part (1 / guess) above the bound on its period.
    near : periods are met one by one instead of halved where the width of those that are left is
    relatively at most this. few_labels : a kernel that made fewer labels the last time takes
    milliseconds, less than a thread is worth.
    """

    first: int = 12
    guess: int = 4
    near: float = 1e-3
    few_labels: int = 4000


@dataclass(frozen=True, order=True)
class _Range:
    """Periods least..most of a micro-batch, data degree and variant that are open; no plan there
    takes less than `bound`.

    `stages` is their number, 0: any. `depth` says what the bound knows: 0 area, 1 stages and memory
    as well, 2 all.
    """

    bound: int
    micro_batch: int
    data: int
    variant: Variant
    stages: int
    least: int
    most: int
    rest: int
    depth: int


@dataclass(frozen=True)
class StepPlanner(SearchSolver):
    """Exact dynamic programs over stages, cut by period; see the module."""

    kernels = ("plan-stages",)
    tolerance: float = option(0.0, "relative gap at which a search may end", low=0.0, high=1.0)

    def search(self, problem: StepPlanProblem, tracker: Tracker[TrainingPlan]) -> None:
        """Open the range with the least bound until none is below the best plan."""
        if problem.shares_stages:
            self._begin(problem.replace(mixed=False), tracker)
        front = _Front(problem, tracker)
        front.dive()
        while any(front.ranges):
            lowest = min(heap[0].bound for heap in front.ranges if heap)
            goal = front.goal
            tracker.raise_bound(min(lowest, goal), METHOD)
            if lowest >= goal * (1 - self.tolerance) or tracker.stop():
                return
            front.open(front.next_range())
        if tracker.value is None and front.passed:
            raise InputError(
                f"plan '{problem.name}': steps of a batch of {problem.batch} pass 2^62 ticks; plan "
                "for a smaller one"
            )
        if tracker.value is None:
            tracker.infeasible("no plan fits the memory of the devices")
        else:
            tracker.raise_bound(tracker.value, METHOD)

    def _begin(self, problem: StepPlanProblem, tracker: Tracker[TrainingPlan]) -> None:
        """Offer the best plan of a part of the space that is searched in much less time, or what
        half of the budget finds there.
        """
        whole = PluginTracker.whole_of(tracker)
        own = tracker.beside(problem, whole.share(0.5))
        try:
            with own.within(whole):
                self.search(problem, own)
        finally:
            tracker.count(own.evaluations)
            if own.solution is not None:
                tracker.offer(own.value, own.solution)


class _Front:
    """What is open, as two heaps of ranges, the second those of repetends.

    Repetends have many plans and low bounds: the heap for which fewer labels were made goes on, so
    that half of the work is for what would be found without them.
    """

    opening = Opening()

    def __init__(self, problem: StepPlanProblem, tracker: Tracker[TrainingPlan]) -> None:
        self.problem, self.tracker = problem, tracker
        self.closings: Closings = {}
        self.batches: dict[int, BatchTables] = {}
        self.tables: dict[tuple[int, int, Variant], DegreeTables] = {}
        self.ranges: tuple[list[_Range], list[_Range]] = [], []
        self.labels = [0, 0]  # made for them
        self.passed = False  # whether a range was dropped since its ticks are too many to count
        schedules = [parse_schedule(name) for name in problem.schedules]
        for size in problem.micro_batches:
            work = batch_work(problem, size)
            for data, schedule in product(problem.data_degrees, schedules):
                least, rest = period_and_fill(work, data, schedule)
                if least >= NEVER:
                    continue
                least = max(least, int(schedule.chooses_kept))  # repetends take a tick at least
                for sharded in (False, True) if problem.sharded and data > 1 else (False,):
                    variant = Variant(schedule.name, sharded)
                    self._push(_Range(0, size, data, variant, 0, least, NEVER, rest, 0))

    @property
    def goal(self) -> int:
        """Ticks of the best plan."""
        return NEVER if self.tracker.value is None else self.tracker.value

    def _push(self, part: _Range) -> None:
        schedule = parse_schedule(part.variant.schedule)
        slots = self.problem.rounds(part.micro_batch, part.data) * schedule.chunks
        bound = (slots - 1) * part.least + part.rest
        self.passed = self.passed or bound >= NEVER
        if bound < self.goal and part.least <= part.most:
            heapq.heappush(self.ranges[schedule.chooses_kept], replace(part, bound=bound))

    def next_range(self) -> _Range:
        """Return the range of the least bound of the heap whose turn it is, and take it out."""
        goal = self.goal
        turn = min(
            (kind for kind in (0, 1) if self.ranges[kind]),
            key=lambda kind: (self.ranges[kind][0].bound >= goal, self.labels[kind]),
        )
        return heapq.heappop(self.ranges[turn])

    def open(self, part: _Range) -> None:
        """Bound a range better, or split it."""
        schedule = parse_schedule(part.variant.schedule)
        if not part.stages and schedule.chunks > 1:
            self._count_stages(part)
            return
        tables = self._tables(part)
        if part.depth == 0:
            most = self._most_period(tables, part)
            if not tables.classes or most < part.least:
                return
            least = tables.least_period(part.least, most, part.stages)
            if least < NEVER:
                rest = max(part.rest, int(tables.least_fill[-1]))
                self._push(replace(part, least=least, rest=rest, depth=1))
        elif part.depth == 1:
            arrays = tables.arrays
            rest = int(arrays.least_fill[-1]) + arrays.least_sync + arrays.least_update
            self._push(replace(part, rest=max(part.rest, rest), depth=2))
        elif schedule.chooses_kept:
            self._halve(tables, part)
        else:
            self._split(tables, part)

    def _count_stages(self, part: _Range) -> None:
        """Put back a range for every number of stages and, where stages share devices, for every
        kind of replicas.
        """
        tables, schedule = self._tables(part), parse_schedule(part.variant.schedule)
        groups = list(dict.fromkeys(c.groups for c in tables.classes))
        for stages in range(2, min(self.problem.max_stages, self.problem.costs.num_layers) + 1):
            if not schedule.allows(stages, tables.rounds):
                continue
            if schedule.chunks == 1:
                self._push(replace(part, stages=stages))
                continue
            for number, held in enumerate(groups):
                room = min(self.problem.pool(g.kind).count // (g.count * g.tensor) for g in held)
                if stages // schedule.chunks <= room:
                    variant = part.variant._replace(groups=number)
                    self._push(replace(part, stages=stages, variant=variant))

    def dive(self) -> None:
        """Look for a first plan where the degree divides all devices, least bounds first, not far
        above their bounds.
        """
        found: list[_Range] = []
        for part in self.ranges[0]:
            if self.tracker.stop():
                return
            divides = all(pool.count % part.data == 0 for pool in self.problem.pools)
            if part.variant.schedule != "1f1b" or not divides:
                continue
            tables = self._tables(part)
            least = tables.least_period(part.least, NEVER) if tables.classes else NEVER
            if least < NEVER:
                bound = tables.turns * least + int(tables.least_fill[-1])
                found.append(replace(part, bound=bound, least=least))
        for part in sorted(found)[: self.opening.first]:
            tables = self._tables(part)
            if self.tracker.stop() or self.goal <= tables.turns * part.least:
                return
            limit = min(part.least + part.least // self.opening.guess, tables.most_period)
            labels, at, _ = self._ask(tables, 0, part.least, limit)
            if at >= 0:
                self._offer(tables.plan(labels, int(at)))

    def _offer(self, plan: TrainingPlan) -> StepPrice:
        """Offer a plan, and return its price."""
        price = step_price(self.problem, plan)
        self.tracker.offer(price.step, plan)
        return price

    def _offer_kept(self, plan: TrainingPlan, tables: DegreeTables, paces: set[int]) -> None:
        """Offer a plan with what its stages have to keep at some periods, where that fits."""
        price = step_price(self.problem, plan)
        periods = [stage.period for stage in price.stages]
        behind = behind_stages([stage.compute for stage in price.stages], price.links)
        for kept in sorted({tuple(kept_at(periods, behind, pace)) for pace in paces}):
            found = replace(plan, kept=kept)
            if tables.fits(found):
                self._offer(found)

    def _tables(self, part: _Range) -> DegreeTables:
        """Return the tables of a range, made on first use."""
        key = part.micro_batch, part.data, part.variant
        if key not in self.tables:
            if part.micro_batch not in self.batches:
                self.batches[part.micro_batch] = BatchTables(
                    self.problem, part.micro_batch, self.closings
                )
            self.tables[key] = DegreeTables(self.batches[part.micro_batch], part.data, part.variant)
        return self.tables[key]

    def _ask(
        self, tables: DegreeTables, stages: int, low: int, limit: int
    ) -> tuple[Ints, int, int]:
        """Run the kernel for periods low..limit, in a thread where it may take long."""
        self.tracker.count()
        arrays, cutoff = tables.arrays_of(stages), max(0, self.goal - tables.turns * low)
        if len(self.problem.pools) == 1 or tables.last_labels < self.opening.few_labels:
            found: tuple[Ints, int, int] = search_period(arrays, low, limit, cutoff)
        else:
            found = call_interruptibly(lambda: search_period(arrays, low, limit, cutoff))
        tables.last_labels = len(found[0])
        self.labels[tables.schedule.chooses_kept] += len(found[0])
        return found

    def _most_period(self, tables: DegreeTables, part: _Range) -> int:
        """Return the longest period of a range with which a plan could be better than the best
        one.
        """
        if not tables.turns or self.goal >= NEVER:
            return part.most
        return min(part.most, (self.goal - 1 - part.rest) // tables.turns)

    def _halve(self, tables: DegreeTables, part: _Range) -> None:
        """Bound the repetends of a range of periods, offer what the bound is made of, and put back
        both halves.
        """
        top = min(self._most_period(tables, part), tables.ample)
        if top < part.least:
            return
        labels, at, rest = self._ask(tables, 0, part.least, top)
        if at < 0:
            return
        plan, middle = tables.plan(labels, int(at)), (part.least + top) // 2
        self._offer_kept(plan, tables, {part.least, middle, top})
        if part.least < top:
            self._push(replace(part, most=middle, rest=rest))
            self._push(replace(part, least=middle + 1, most=top, rest=rest))

    def _split(self, tables: DegreeTables, part: _Range) -> None:
        """Ask for the best plan below a limit inside a range, and put back what is still open."""
        least = part.least
        top = min(self._most_period(tables, part), tables.most_period)
        if top < least:
            return
        if self.goal >= NEVER:
            limit = least + max(1, least // self.opening.guess)  # no plan is known: a guess
        else:
            few = top - least <= self.opening.near * least
            limit = top if few else (least + top) // 2
        limit = min(limit, top)
        labels, at, rest = self._ask(tables, part.stages, least, limit)
        if at >= 0:
            # plans with periods from here to the limit take as long in fill and closing: none of
            # them is better
            plan = tables.plan(labels, int(at))
            if not part.stages and not tables.fits(plan):
                self._count_stages(replace(part, most=limit, rest=rest))
                self._push(replace(part, least=limit + 1, most=top))
                return
            price = self._offer(plan)
            self._push(replace(part, most=min(limit, price.pace - 1), rest=rest))
            if tables.schedule.splits_backward and least < price.pace == price.first:
                # where the fill is the period alone, others from it on may close sooner
                self._push(replace(part, least=price.pace, most=limit, rest=rest))
        if limit < top:
            self._push(replace(part, least=limit + 1, most=top))
