"""Published schedules, and what they share: from device orders to a schedule and the pattern that
it repeats.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.model.arrays import UNLIMITED, Ints
from placeopt.model.errors import InputError, Refused
from placeopt.schedules.bounds import best_bound
from placeopt.schedules.completion import offer_schedule
from placeopt.schedules.evaluate import makespan, peak_memory
from placeopt.schedules.judge import pattern_violations
from placeopt.schedules.known.chains import Chain, Instance, chains_of, starts_of_orders
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.solving.base import SearchSolver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.schedules.problem import PipelineProblem
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class KnownSchedule(SearchSolver):
    """A published schedule; subclasses give the order of each device.

    The period of a schedule that settles down is that of the pattern in the middle of a long one.
    One that never does, as GPipe, repeats as a whole.
    """

    shape: ClassVar[str]
    """What the schedule expects, in words."""

    def unit(self, chains: list[Chain]) -> int:
        """Return the number that the micro-batches must be a multiple of."""
        return 1

    def group(self, problem: PipelineProblem) -> int:
        """Return the same for a problem."""
        return self.unit(chains_of(problem))

    @abstractmethod
    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        """Raise Refused if the problem has another placement than the schedule is made for."""

    def orders(
        self, problem: PipelineProblem, chains: list[Chain], micro_batches: int
    ) -> list[list[Instance]]:
        """Return the (micro-batch, block) pairs of every device in execution order."""
        used = {device for chain in chains for device in chain.device}
        return [
            self.order(chains, device, micro_batches) if device in used else []
            for device in range(problem.num_devices)
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
        unit = self.unit(chains)
        if micro_batches % unit:
            raise Refused(
                f"{self.name}: expected a multiple of {unit} micro-batches, received "
                f"{micro_batches}"
            )
        return starts_of_orders(problem, self.orders(problem, chains, micro_batches), micro_batches)

    def refuse(self, problem: PipelineProblem, reason: str) -> Refused:
        """Return the error for a problem of another shape."""
        return Refused(f"{self.name} is made for {self.shape}; '{problem.name}' {reason}")

    def search(self, problem: PipelineProblem, tracker: Tracker[PipelineSchedule]) -> None:
        """Construct the schedule; say so if it needs more memory than there is."""
        tracker.raise_bound(*best_bound(problem))
        start = self.starts(problem, problem.micro_batches)
        tracker.count()
        peaks = peak_memory(problem, start)
        over = [
            d
            for d, peak in enumerate(peaks)
            if peak > problem.capacity[d] and problem.capacity[d] < UNLIMITED
        ]
        if over:
            d = over[0]
            tracker.message = (
                f"{self.name} holds {peaks[d]} on '{problem.device_names[d]}', whose capacity is "
                f"{problem.capacity[d]}; raise it or use the solver repetend"
            )
            return
        whole = PipelineSchedule(problem, start)
        offer_schedule(tracker, whole)
        pattern = self.steady_pattern(problem)
        if pattern is not None and whole.makespan <= makespan(
            problem, pattern.unroll(problem.micro_batches)
        ):
            offer_schedule(tracker, PipelineSchedule(problem, start, pattern))

    def steady_pattern(self, problem: PipelineProblem) -> Repetend | None:
        """Return the shortest pattern in the middle of a long schedule that repeats for ever, if
        there is one.
        """
        unit = self.group(problem)
        longest = unit * max(1, -(-2 * problem.num_devices // unit))
        found = sorted(
            _repetitions(self.starts(problem, 3 * longest), longest),
            key=lambda found: found.per_micro_batch,
        )
        return next(
            (
                found
                for found in found
                if not pattern_violations(problem, found.period, found.start)
            ),
            None,
        )


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
    """A schedule of one chain with every stage on a device of its own."""

    shape: ClassVar[str] = "one chain with one stage per device (shape V)"

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        """Refuse other chains."""
        chain = one_chain(self, problem, chains)
        if len(set(chain.device)) != chain.num_stages:
            raise self.refuse(problem, "has several stages on one device")

    def order(self, chains: list[Chain], device: int, micro_batches: int) -> list[Instance]:
        """Return the order of the stage on the device."""
        return self.stage_order(chains[0], chains[0].device.index(device), micro_batches)

    def stage_order(self, chain: Chain, stage: int, micro_batches: int) -> list[Instance]:
        """Return the (micro-batch, block) pairs of one stage in execution order."""
        raise NotImplementedError


def is_v(chain: Chain, num_devices: int) -> bool:
    """Whether the stages go down the devices once and come back up: two stages per device."""
    return (
        chain.num_stages == 2 * num_devices
        and all(
            chain.device[s] == chain.device[2 * num_devices - 1 - s] for s in range(num_devices)
        )
        and len(set(chain.device[:num_devices])) == num_devices
    )
