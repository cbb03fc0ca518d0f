"""Published schedules, and what they share: from device orders to a schedule and the pattern that
it repeats.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placeopt.model.arrays import Ints, true_places
from placeopt.model.errors import InputError, Refused
from placeopt.plans.step_schedules import parse_schedule
from placeopt.schedules import SPECS
from placeopt.schedules.bounds import best_bound
from placeopt.schedules.completion import offer_schedule
from placeopt.schedules.evaluate import makespan, peak_memory
from placeopt.schedules.judge import pattern_violations
from placeopt.schedules.known.chains import Chain, Instance, chains_of, starts_of_orders
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.solving.base import SearchSolver
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run_part
from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class KnownSchedule(SearchSolver):
    """A published schedule; subclasses give the order of each device.

    The period of a schedule that settles down is that of the pattern in the middle of a long one.
    One that never does, as GPipe, repeats as a whole.
    """

    shape: ClassVar[str]
    """What the schedule expects, in words."""

    def unit(self, problem: PipelineProblem) -> int:
        """Return the number that the micro-batches must be a multiple of."""
        return 1

    @abstractmethod
    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        """Raise Refused if the problem has another placement than the schedule is made for."""

    def orders(
        self, problem: PipelineProblem, chains: list[Chain], micro_batches: int
    ) -> list[list[Instance]]:
        """Return the (micro-batch, block) pairs of every device in execution order."""
        return [
            self.order(chains, device, micro_batches) if here else []
            for device, here in enumerate(problem.on_device)
        ]

    def order(self, chains: list[Chain], device: int, micro_batches: int) -> list[Instance]:
        """Return those of a device that has stages: what a subclass gives that leaves `orders` as
        it is.
        """
        raise NotImplementedError

    def starts(self, problem: PipelineProblem, micro_batches: int) -> Ints:
        """Return the starts, shape (micro_batches, num_blocks), whatever the memory limit says."""
        try:
            chains = chains_of(problem)
        except InputError as error:
            raise Refused(f"{self.name} is made for {self.shape}: {error}") from error
        self.check(problem, chains)
        unit = self.unit(problem)
        if micro_batches % unit:
            raise Refused(
                f"{self.name}: expected a multiple of {unit} micro-batches, received "
                f"{micro_batches}"
            )
        return starts_of_orders(problem, self.orders(problem, chains, micro_batches), micro_batches)

    def squeezed(self, problem: PipelineProblem, start: Ints, seconds: float) -> Ints:
        """Return a schedule that is shorter after about so many seconds, where a subclass knows
        how.
        """
        return start

    def refuse(self, problem: PipelineProblem, reason: str) -> Refused:
        """Return the error for a problem of another shape."""
        return Refused(f"{self.name} is made for {self.shape}; '{problem.name}' {reason}")

    def search(self, problem: PipelineProblem, tracker: Tracker[PipelineSchedule]) -> None:
        """Construct the schedule; say so if it needs more memory than there is."""
        tracker.raise_bound(*best_bound(problem))
        half = tracker.seconds_left / 2
        start = self.squeezed(problem, self.starts(problem, problem.micro_batches), half)
        tracker.count()
        peaks = peak_memory(problem, start)
        over = true_places(problem.capacity < peaks)
        if over:
            d = over[0]
            tracker.message = (
                f"{self.name} holds {peaks[d]} on '{problem.device_names[d]}', whose capacity is "
                f"{problem.capacity[d]}; raise it or use the solver repetend"
            )
            return
        whole = PipelineSchedule(problem, start)
        offer_schedule(tracker, whole)
        pattern = self.steady_pattern(problem, half)
        if pattern is not None and whole.makespan <= makespan(
            problem, pattern.unroll(problem.micro_batches)
        ):
            offer_schedule(tracker, PipelineSchedule(problem, start, pattern))

    def steady_pattern(self, problem: PipelineProblem, seconds: float) -> Repetend | None:
        """Return the shortest pattern in the middle of a long schedule that repeats for ever, if
        there is one.
        """
        unit = self.unit(problem)
        longest = unit * -(-2 * problem.num_devices // unit)
        start = self.squeezed(problem, self.starts(problem, 3 * longest), seconds)
        repeated = _repetitions(start, longest)
        for found in sorted(repeated, key=lambda found: found.per_micro_batch):
            if not pattern_violations(problem, found.period, found.start):
                return found
        return None


def published(tracker: Tracker[PipelineSchedule]) -> list[PipelineSchedule]:
    """Return what the published schedules make that fit the problem and its memory, the best
    first; none is begun once half the time is gone.
    """
    found, half = [], tracker.seconds_left / 2
    for spec in SPECS:
        solver = make_solver(spec.name, "pipeline")
        if isinstance(solver, KnownSchedule) and tracker.seconds_left >= half:
            with suppress(InputError):
                share = tracker.share(1 / len(SPECS))
                made = run_part(
                    tracker,
                    solver,
                    seconds=share.seconds,
                    evaluations=share.evaluations,
                    adopt=False,
                )
                if made is not None and made.solution is not None:
                    found.append(made.solution)
    return sorted(found, key=lambda one: (one.period, one.makespan))


def _repetitions(start: Ints, longest: int) -> Iterator[Repetend]:
    """Yield what happens twice in a row in the middle of a schedule, for up to `longest`
    micro-batches.
    """
    middle = len(start) // 2
    for size in range(1, longest + 1):
        once, again = start[middle - size : middle], start[middle : middle + size]
        period = int(again[0, 0] - once[0, 0])
        if period > 0 and (again - once == period).all():
            yield Repetend(period, once)


def one_chain(solver: KnownSchedule, problem: PipelineProblem, chains: list[Chain]) -> Chain:
    """Return the only chain or refuse."""
    if len(chains) != 1:
        raise solver.refuse(problem, f"has {len(chains)} independent chains")
    return chains[0]


@dataclass(frozen=True)
class OneStagePerDevice(KnownSchedule):
    """A schedule of one chain with every stage on a device of its own: a stage warms up with
    forward passes, then alternates between backward and forward passes.
    """

    shape = "one chain with one stage per device (shape V)"
    plan_schedule: ClassVar[str] = "1f1b"
    """Name of the order among the schedules of training plans."""

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        """Refuse other chains."""
        chain = one_chain(self, problem, chains)
        if len(set(chain.device)) != chain.num_stages:
            raise self.refuse(problem, "has several stages on one device")

    def kept(self, stages: int, micro_batches: int) -> tuple[int, ...]:
        """Return how many forward passes warm each stage up, where the order leaves that open."""
        return ()

    def order(self, chains: list[Chain], device: int, micro_batches: int) -> list[Instance]:
        """Run what a device of a training plan runs."""
        chain, schedule = chains[0], parse_schedule(self.plan_schedule)
        stages, stage = chain.num_stages, chain.device.index(device)
        kept = self.kept(stages, micro_batches)
        return chain.instances(schedule.order(stages, micro_batches, stage, kept))


def waves_of(chain: Chain) -> int:
    """Return how often the stages go down the devices and come back up, 0 where they lie
    elsewhere.
    """
    down = chain.device[: len(set(chain.device))]
    turns = chain.num_stages // (2 * len(down))
    alike = chain.device == (down + down[::-1]) * turns and len(set(down)) == len(down)
    return turns if alike else 0
