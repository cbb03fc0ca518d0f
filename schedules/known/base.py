"""What the known schedules share: from device orders to a judged schedule."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from placeopt.model.arrays import UNLIMITED
from placeopt.model.errors import InputError
from placeopt.schedules.bounds import best_bound
from placeopt.schedules.evaluate import makespan, peak_memory
from placeopt.schedules.known.chains import Chain, Instance, chains_of, starts_of_orders
from placeopt.schedules.solution import PipelineSchedule
from placeopt.schedules.solve import finish_pipeline, warm_up
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.result import Result
    from placeopt.schedules.problem import PipelineProblem
    from placeopt.solving.solver import OnProgress


@dataclass(frozen=True)
class KnownSchedule:
    """A published schedule; subclasses give the order of each device.

    The period of such a finite schedule is the growth of its makespan per further micro-batch.
    """

    name: ClassVar[str] = ""
    shape: ClassVar[str] = ""  # what the schedule expects, in words

    def unit(self, chains: list[Chain]) -> int:
        """Return the number that the micro-batches must be a multiple of."""
        return 1

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        """Raise InputError if the problem has another placement than the schedule is made for."""
        raise NotImplementedError

    def orders(self, problem: PipelineProblem, chains: list[Chain], micro_batches: int) -> list[list[Instance]]:
        """Return the (micro-batch, block) pairs of every device in execution order."""
        raise NotImplementedError

    def starts(self, problem: PipelineProblem, micro_batches: int) -> NDArray[np.int64]:
        """Return the starts, shape (micro_batches, num_blocks), whatever the memory limit says."""
        chains = chains_of(problem)
        self.check(problem, chains)
        unit = self.unit(chains)
        if micro_batches % unit:
            raise InputError(f"{self.name}: expected a multiple of {unit} micro-batches, received {micro_batches}")
        return starts_of_orders(problem, self.orders(problem, chains, micro_batches), micro_batches)

    def refuse(self, problem: PipelineProblem, reason: str) -> InputError:
        """Return the error for a problem of another shape."""
        return InputError(f"{self.name} is made for {self.shape}; '{problem.name}' {reason}")

    def solve(
        self,
        problem: PipelineProblem,
        budget: Budget,
        *,
        seed: int = 0,
        initial: PipelineSchedule | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[PipelineSchedule]:
        """Construct the schedule; infeasible if it needs more memory than there is."""
        warm_up()
        tracker: Tracker[PipelineSchedule] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        start = self.starts(problem, problem.micro_batches)
        tracker.count()
        peaks = peak_memory(problem, start)
        over = [d for d, peak in enumerate(peaks) if peak > problem.capacity[d] and problem.capacity[d] < UNLIMITED]
        if over:
            d = over[0]
            return finish_pipeline(
                tracker,
                None,
                status="infeasible",
                message=f"{self.name} holds {peaks[d]} on '{problem.device_names[d]}', whose capacity is "
                f"{problem.capacity[d]}; raise it or use the solver repetend",
            )
        bound, method = best_bound(problem)
        period = max(bound, self.steady_period(problem))
        schedule = PipelineSchedule(
            problem=problem,
            start=start,
            solver=self.name,
            period=period,
            period_bound=bound,
            period_status="optimal" if period <= bound else "feasible",
            bound_method=method,
            runtime=tracker.elapsed,
        )
        return finish_pipeline(tracker, schedule)

    def steady_period(self, problem: PipelineProblem) -> Fraction:
        """Return how much longer the schedule gets per micro-batch, once it is long."""
        chains = chains_of(problem)
        step = self.unit(chains) * max(1, -(-2 * problem.num_devices // self.unit(chains)))
        short = makespan(problem, self.starts(problem, 2 * step))
        return Fraction(makespan(problem, self.starts(problem, 3 * step)) - short, step)


def one_chain(solver: KnownSchedule, problem: PipelineProblem, chains: list[Chain]) -> Chain:
    """Return the only chain or refuse."""
    if len(chains) != 1:
        raise solver.refuse(problem, f"has {len(chains)} independent chains")
    return chains[0]


def is_v(chain: Chain, num_devices: int) -> bool:
    """Whether the stages go down the devices once and come back up: two stages per device."""
    return chain.num_stages == 2 * num_devices and all(
        chain.device[s] == chain.device[2 * num_devices - 1 - s] for s in range(num_devices)
    ) and len(set(chain.device[:num_devices])) == num_devices  # fmt: skip
