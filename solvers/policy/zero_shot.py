"""Apply a policy of placing steps to a graph at once: decode it from several orders, then let the policy take local steps.

Nothing is learned on the graph. How many steps are taken follows from their work, counted in the kernels, not from a clock: the
same seed gives the same placement everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import Refused
from placeopt.solvers.heuristics.list_scheduling import etf_plan, heft_plan, peft_plan
from placeopt.solvers.policy import placing_steps
from placeopt.solvers.policy.episodes import OrderedProblem
from placeopt.solvers.policy.placing_steps import BEST, REJECTED
from placeopt.solvers.policy.step_arrays import NEVER, Leg, StepState, new_step_state
from placeopt.solvers.policy.step_policy import GraphView, StepPolicyModel
from placeopt.solvers.search.search_space import SearchSpace, ranked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem

    Ints = NDArray[np.int64]

WORK_PER_OP = 14_000
"""Units of work of one run for each op: with 200 ops about 35 ms, preparation not counted."""

COOLING = 0.02
"""Last temperature over the first."""

NOISE = 0.05
"""Spread of the priorities of later samples, as a share of that among the ops."""


class StepWalk:
    """A walk of placing steps on one graph.

    Raises
    ------
    Refused
        If transfers contend or peak memory counts: the steps do not decode those.
    """

    def __init__(self, problem: PlacementProblem, view: GraphView | None = None, space: SearchSpace | None = None) -> None:
        if not walkable(problem):
            raise Refused("placing steps: transfers contend, or peak memory counts")
        self.problem = problem
        self.space = space or SearchSpace(problem)
        self.view = view or GraphView.of(OrderedProblem.of(problem))
        clusters = int(self.view.cluster.max()) + 1
        self.state: StepState = new_step_state(self.space.graph, clusters, placing_steps.SIZES)

    def begin(self, model: StepPolicyModel, sequence: Ints, device: Ints | None = None, seed: int = 0) -> int:
        """Start from an order of the ops, and from their devices or, without, where the policy places them; return the value.

        The best of earlier starts is forgotten. NEVER where the policy found no room for an op.
        """
        state = self.state
        state.sequence[:] = sequence
        state.home[:] = -1 if device is None else self.space.homes_of(device)
        state.random[0] = np.uint64(seed)
        state.preference[:] = 0.0
        value = int(placing_steps.begin(self.space.graph, self.view.policy(model), state))
        return NEVER if value == REJECTED else value

    def run(
        self, model: StepPolicyModel, *, work: int = NEVER, steps: int = NEVER, heat: tuple[float, float] | None = None,
        part: tuple[float, float] = (0.0, 1.0), rate: float = 0.0, price: float = -1.0,
    ) -> int:  # fmt: skip
        """Take steps until a limit is met; return how many.

        Parameters
        ----------
        heat : temperatures at the beginning and the end of the whole walk; by default the model's.
        part : the part of the whole walk that this is. rate, price : see `Leg`.
        """
        hot = self.view.heat(model)
        first, last = (hot, COOLING * hot) if heat is None else heat
        leg = Leg(int(steps), int(work), float(first), float(last), part, float(rate), float(price))
        return int(placing_steps.take_steps(self.space.graph, self.view.policy(model), self.state, leg))

    @property
    def best_value(self) -> int:
        """Lowest value since the start."""
        return int(self.state.value[BEST])

    def best(self) -> Placement:
        """Return the best placement, ranked by start: its `planned` execution has the best value."""
        state = self.state
        place = np.argsort(state.best_sequence)
        return ranked(state.best_device.copy(), state.best_start, state.best_finish, place)


def walkable(problem: PlacementProblem) -> bool:
    """Whether placing steps decode a problem exactly."""
    return problem.num_channels == 0 and problem.memory == "static"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a zero-shot run found.

    Attributes
    ----------
    decoded : value of the greedy placement in the policy's own order. seeded : lowest value before any step.
    value : ticks of `placement`.
    """

    decoded: int
    seeded: int
    value: int
    placement: Placement
    steps: int


class ZeroShot:
    """A policy on one graph: what is prepared once serves any number of samples."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.walk = StepWalk(problem)

    @cached_property
    def starts(self) -> list[tuple[Ints, Ints]]:
        """Orders and devices of list schedules: HEFT, PEFT, ETF."""
        context = self.walk.space.context
        plans = [make(context) for make in (heft_plan, peft_plan, etf_plan)]
        space = self.walk.space
        return [
            (space.topological(context.by_decreasing(-plan.start.astype(np.float64))), plan.device)
            for plan in plans if not plan.overflow
        ]  # fmt: skip

    def own_order(self, model: StepPolicyModel, rng: np.random.Generator | None = None) -> Ints:
        """Return the order in which the policy places the ops; with a generator, a noisy one."""
        space = self.walk.space
        priority = self.walk.view.priority(model)
        if rng is not None:
            priority = priority + NOISE * priority.std() * rng.normal(size=len(priority))
        return space.topological(space.context.by_decreasing(priority))

    def begin_at(self, model: StepPolicyModel, seed: int) -> int:
        """Start from one of the starts, drawn by a seed; return the value."""
        rng = np.random.default_rng(seed)
        known = list(self.orders(model, rng))
        return self.walk.begin(model, *known[int(rng.integers(len(known)))], seed=int(rng.integers(0, 2**62)))

    def orders(self, model: StepPolicyModel, rng: np.random.Generator | None) -> Iterator[tuple[Ints, Ints | None]]:
        """Yield the starts of a run: the policy's own order first, then list schedules, with their devices and without."""
        yield self.own_order(model, rng), None
        for sequence, device in self.starts:
            yield sequence, device
            yield sequence, None

    def run(self, model: StepPolicyModel, *, seed: int = 0, work_per_op: int = WORK_PER_OP) -> Outcome:
        """Decode, then take steps from the best start; sample 0 is without noise."""
        walk, rng = self.walk, np.random.default_rng(seed)
        known = list(self.orders(model, rng if seed else None))
        values = [walk.begin(model, *start) for start in known]
        best = int(np.argmin(values))
        if values[best] == NEVER:
            raise Refused("placing steps: found no room for an op")
        walk.begin(model, *known[best], seed=int(rng.integers(0, 2**62)))
        taken = walk.run(model, work=work_per_op * walk.problem.num_ops)
        return Outcome(values[0], values[best], walk.best_value, walk.best(), taken)
