"""`tuned-list`: samples of the learned list scheduler, then a walk from the best of them.

With a `learning_rate` the policy learns on the problem at hand: after each round of samples, those
below the round's median become likelier (policy gradient, advantages by rank), with credit only for
choices about ops on a longest chain of the schedule. That costs twice the time and gained 0.3 % on
families set apart, so it is off; what learned weights are worth stands beside it in
results/policy/ablation.md.

`learned-list`: a list scheduler whose priorities and choices of devices were learned on other
graphs.

One pass takes the best scores; further ones draw ops and devices by them. Nothing is learned on the
problem: every pass is a list schedule of at most a few milliseconds on some hundred ops.

References
----------
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement
  learning. Machine Learning 8, 1992.
- D. Wierstra, T. Schaul, T. Glasmachers, Y. Sun, J. Peters, J. Schmidhuber. Natural evolution
  strategies. JMLR 15, 2014. (Advantages: utilities of ranks.)
- H. Topcuoglu, S. Hariri, M.-Y. Wu. Performance-effective and low-complexity task scheduling for
  heterogeneous computing. IEEE TPDS 13(3), 2002. (HEFT, from which the weights began.)
- WeCAN: weighted cross-attention networks for scheduling on heterogeneous devices.
  arXiv 2603.23249. (One pass of scores, and a decoding that reaches every schedule.)
- T. Salimans et al. Evolution strategies as a scalable alternative to reinforcement learning. 2017.
  (Training.)

A learned list scheduler as data: what a problem is to it, its weights, and their file.

Nothing in what it sees has a unit or a size: the same weights mean the same on any graph and any
number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.heuristics import ranks
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.heuristic import Heuristic
from placeopt.solvers.policy.advantages import Adam, rank_utilities
from placeopt.solvers.policy.dual_policy_file import PolicyFile
from placeopt.solvers.policy.learned_placer import spent
from placeopt.solvers.policy.list_kernels import (
    DEVICE,
    OP,
    TURN,
    Lesson,
    ListFacts,
    ListTask,
    ListWeights,
    learned_schedule,
)
from placeopt.solvers.search.annealing import anneal
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.heuristics.insertion_kernels import ListSchedule
    from placeopt.solving.tracker import Tracker


TRAINED = Path(__file__).resolve().parent / "learned_list.json"
"""The weights of the package; results/policy/train.py made them."""

HIDDEN = 12
"""Width of the hidden layers of a policy before its training."""

SHARPNESS = 10.0
"""Linear weight of the upward rank in a policy before its training: a tenth of the longest path is
one in log-odds."""


def facts_of(context: Context) -> ListFacts:
    """Return what a problem is to the scores: see `OP`."""
    problem, graph = context.problem, context.graph
    n, k = problem.num_ops, problem.num_devices
    mean, weight = context.mean_compute, context.mean_transfer
    up, _ = context.upward_rank()
    level, _ = context.upward_rank(communication=False)
    down = ranks.downward_rank(graph, mean, weight)
    path, bare = max(1e-9, float(up.max())), max(1e-9, float(level.max()))
    edge = weight[problem.edge_tensor]
    sent, received = np.zeros(n), np.zeros(n)
    np.add.at(sent, problem.producer[problem.edge_tensor], edge)
    np.add.at(received, problem.consumer, edge)
    work = float(mean.sum())
    unit = max(1e-9, work / n + (float(edge.mean()) if len(edge) else 0.0))
    usable = problem.compute >= 0
    deviation = np.sqrt(
        np.where(usable, (problem.compute - mean[:, None]) ** 2, 0.0).sum(axis=1)
        / usable.sum(axis=1)
    )
    spread = _soft(deviation / np.maximum(mean, 1e-9))
    outdegree = np.diff(graph.successors.pointer)
    columns = (
        up / path,
        down / path,
        (up + down) / path,
        level / bare,
        _soft(mean / max(1e-9, work / n)),
        _soft(sent / unit),
        _soft(received / unit),
        _soft(np.log1p(outdegree)),
        _soft(np.log1p(graph.indegree)),
        spread,
        _soft(edge.sum() / max(1e-9, work)),
        _soft(work / (bare * k)),
        2.0 / (k + 1),
        spread.mean(),
        1.0,
    )
    return ListFacts(
        np.ascontiguousarray(np.stack([np.broadcast_to(x, n) for x in columns], axis=1)),
        np.asarray(ranks.optimistic_cost(graph, context.costs, weight), np.float64),
        np.ascontiguousarray(weight, np.float64),
        np.ascontiguousarray(mean, np.float64),
        np.array([unit, max(1e-9, work / k)]),
    )


def _soft(x: Any) -> Any:
    return x / (1.0 + abs(x))


@dataclass(frozen=True, eq=False)
class ListPolicy(PolicyFile):
    """Weights of a learned list scheduler.

    Attributes
    ----------
    weights : see `ListWeights`. heats : temperatures of ops and devices at which it is sampled.
    provenance : what it was trained on.
    """

    format: ClassVar[str] = "placeopt/list-policy"
    version: ClassVar[int] = 1

    weights: ListWeights
    heats: tuple[float, float] = (0.1, 0.1)
    provenance: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for array in self.weights:
            array.setflags(write=False)

    @classmethod
    def heft(cls, hidden: int = HIDDEN, seed: int = 0) -> ListPolicy:
        """Return the policy before its training: by upward rank, to the earliest finish.

        Its hidden layers see at random and say nothing: their output weights are 0.
        """
        rng = np.random.default_rng(seed)
        zero = {name: np.zeros(shape) for name, shape in shapes(hidden).items()}
        zero["op_linear"][OP.index("upward rank")] = SHARPNESS
        zero["linear"][DEVICE.index("finish")] = -1.0
        for name in ("op_hidden", "hidden", "context"):
            zero[name] = rng.normal(size=zero[name].shape) / np.sqrt(len(zero[name]))
        return cls(ListWeights(**zero), provenance=("upward rank, earliest finish",))

    @property
    def vector(self) -> Floats:
        """All weights in one row."""
        return np.concatenate([array.ravel() for array in self.weights])

    def with_vector(self, vector: Floats, *notes: str) -> ListPolicy:
        """Return a policy with other weights, and more lines of provenance."""
        return ListPolicy(unravelled(vector, self.weights), self.heats, (*self.provenance, *notes))

    def schedule(
        self, context: Context, facts: ListFacts, *, random: int | None = None
    ) -> ListSchedule:
        """Return a schedule: that of the best scores, or drawn at `heats` from a random number."""
        plan: ListSchedule = learned_schedule(
            self._task(context, facts),
            np.zeros(2) if random is None else np.array(self.heats),
            np.array([random or 0], np.uint64),
            context.unpinned,
            Lesson(NO_CREDIT, _empty(1)),
        )
        return plan

    def gradient(self, context: Context, facts: ListFacts, random: int, credit: Floats) -> Floats:
        """Return the gradient of the log-probability of the choices of a schedule that was drawn,
        in all weights.

        Parameters
        ----------
        random : what the schedule was drawn from. credit : weight of the choices about each op.
        """
        grad = ListWeights(*(np.zeros(array.shape) for array in self.weights))
        learned_schedule(
            self._task(context, facts),
            np.array(self.heats),
            np.array([random], np.uint64),
            context.unpinned,
            Lesson(credit, grad),
        )
        return np.concatenate([array.ravel() for array in grad])

    def _task(self, context: Context, facts: ListFacts) -> ListTask:
        return ListTask(context.graph, context.costs, context.units, facts, self.weights)

    def content(self) -> dict[str, Any]:
        """Return the policy as JSON, in four digits."""
        tables = {
            name: np.vectorize(lambda x: float(f"{x:.4g}"))(array).tolist()
            for name, array in self.weights._asdict().items()
        }
        said = {"op": list(OP), "turn": list(TURN), "device": list(DEVICE)}
        return said | tables | {"heats": list(self.heats), "provenance": list(self.provenance)}

    @classmethod
    def from_content(cls, data: Any, path: str | Path) -> ListPolicy:
        """Return the policy of a file's JSON; see `PolicyFile`."""
        if (
            not isinstance(data, dict)
            or data.get("format") != cls.format
            or data.get("version") != cls.version
        ):
            raise InputError(
                f'policy \'{path}\': expected a file with "format": "{cls.format}" and version '
                f"{cls.version}"
            )
        try:
            hidden = len(data["out"])
            arrays = {
                name: np.array(data[name], np.float64).reshape(shape)
                for name, shape in shapes(hidden).items()
            }
            first, second = (float(x) for x in data["heats"])
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"policy '{path}': expected tables of numbers {', '.join(ListWeights._fields)} "
                "of matching shapes, and two numbers heats"
            ) from None
        if not all(np.isfinite(array).all() for array in arrays.values()) or hidden == 0:
            raise InputError(f"policy '{path}': expected finite weights and a hidden layer")
        return cls(
            ListWeights(**arrays),
            (first, second),
            tuple(str(x) for x in data.get("provenance", ())),
        )


NO_CREDIT = np.zeros(0)
"""What learns nothing."""


@cache
def _empty(hidden: int) -> ListWeights:
    """Return a gradient to which nothing is added."""
    return ListWeights(**{name: np.zeros(shape) for name, shape in shapes(hidden).items()})


def shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each table of `ListWeights`."""
    return {
        "op_linear": (len(OP),),
        "op_hidden": (len(OP), hidden),
        "op_out": (hidden,),
        "turn": (len(TURN),),
        "linear": (len(DEVICE),),
        "hidden": (len(DEVICE), hidden),
        "context": (len(OP) + 1, hidden),
        "out": (hidden,),
    }


def unravelled(vector: Floats, like: ListWeights) -> ListWeights:
    """Return a row of numbers as the weights of which it is all."""
    arrays, at = [], 0
    for array in like:
        arrays.append(vector[at : at + array.size].reshape(array.shape).copy())
        arrays[-1].setflags(write=False)
        at += array.size
    return ListWeights(*arrays)


@cache
def trained() -> ListPolicy:
    """Return the policy that comes with the package."""
    return ListPolicy.load(TRAINED)


@dataclass(frozen=True)
class TunedList(SearchSolver):
    """A list scheduler that learns on the problem, then a walk."""

    name: ClassVar[str] = "tuned-list"
    endless: ClassVar[bool] = True
    kernels: ClassVar[tuple[str, ...]] = ("ranks", "lists", "learned-lists", "walks")

    policy: str = option(
        "", meaning="policy file; empty for the package's, heft for the one before any training"
    )
    samples: float = option(
        0.1, low=0, high=1, meaning="share of the budget for samples of the policy"
    )
    round: int = option(32, low=2, meaning="samples between two steps of the policy gradient")
    learning_rate: float = option(
        0.0, low=0, meaning="Adam's step for the weights; 0: the policy stays as it is"
    )
    credit: str = option(
        "critical",
        choices=("all", "critical"),
        meaning="choices that earn an advantage: all, or those about critical ops",
    )

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Sample and learn for a share of the budget, then walk."""
        evaluator = BudgetedEvaluator(tracker)
        tuner = Tuner(self, Context(problem), evaluator)
        tuner.offer([tuner.policy.schedule(tuner.context, tuner.facts)])
        while not tracker.stop() and spent(tracker) < self.samples:
            tuner.step(int(min(self.round, tracker.evaluations_left)))
        if tracker.solution is not None and not tracker.stop():
            anneal(evaluator, [tracker.solution], tuner.rng)
        evaluator.conclude()


class Tuner:
    """A list policy that learns on one problem.

    Attributes
    ----------
    policy : as it is now.
    """

    def __init__(self, config: TunedList, context: Context, evaluator: BudgetedEvaluator) -> None:
        self.config, self.context, self.evaluator = config, context, evaluator
        self.facts: ListFacts = facts_of(context)
        self.policy: ListPolicy = first_policy(config.policy)
        self.adam = Adam(len(self.policy.vector), config.learning_rate)
        self.rng = evaluator.tracker.rng()

    def step(self, count: int) -> None:
        """Draw schedules, offer them, and take a step towards the better ones."""
        draws = self.rng.integers(1, 2**62, count).tolist()
        plans = [self.policy.schedule(self.context, self.facts, random=random) for random in draws]
        values = self.offer(plans)
        if self.config.learning_rate == 0 or count < 2:
            return
        total = np.zeros(len(self.policy.vector))
        for random, plan, weight in zip(draws, plans, rank_utilities(values).tolist(), strict=True):
            if weight != 0:
                total += weight * self.policy.gradient(
                    self.context, self.facts, random, self._credit(plan)
                )
        self.policy = self.policy.with_vector(self.policy.vector + self.adam.step(total))

    def offer(self, plans: list[ListSchedule]) -> Ints:
        """Return the values of schedules, counted, the best one offered."""
        placements = [self.context.fitted(plan) for plan in plans]
        values = np.full(len(plans), 2**62, np.int64)
        for i, placement in enumerate(placements):
            if placement is not None:
                values[i] = self.evaluator.value_of(placement)
        return values

    def _credit(self, plan: ListSchedule) -> Floats:
        """Return the weight of the choices about each op."""
        if self.config.credit == "all":
            return np.ones(len(plan.device))
        return critical(self.context, plan).astype(np.float64)


def critical(context: Context, plan: ListSchedule) -> Flags:
    """Return whether each op is on a chain of waits that ends last, shape (num_ops,)."""
    problem, finish, start = context.problem, plan.finish, plan.start
    marked = finish >= finish.max()
    order = np.lexsort((context.position, start))
    tensor, reader = problem.edge_tensor, problem.consumer
    producer = problem.producer[tensor]
    source, target = plan.device[producer], plan.device[reader]
    delay = problem.transfer[tensor, problem.link_class[source, target]]
    tight = finish[producer] + np.where(source == target, 0, delay) >= start[reader]
    before: dict[int, list[int]] = {}
    for u, v in zip(producer[tight].tolist(), reader[tight].tolist(), strict=True):
        before.setdefault(v, []).append(u)
    last = np.full(problem.num_devices, -1)
    for v in order.tolist():  # what ran before on the same device, where that was waited for
        u = int(last[plan.device[v]])
        if u >= 0 and finish[u] >= start[v]:
            before.setdefault(v, []).append(u)
        last[plan.device[v]] = v
    for v in order[::-1].tolist():
        if marked[v]:
            marked[before.get(v, [])] = True
    return np.asarray(marked)


@dataclass(frozen=True)
class LearnedList(Heuristic):
    """A list scheduler with learned scores: the best ones first, then samples."""

    name: ClassVar[str] = "learned-list"
    kernels: ClassVar[tuple[str, ...]] = ("ranks", "lists", "learned-lists")

    passes: int = option(
        64, low=1, meaning="schedules: the first takes the best scores, the others are drawn"
    )
    policy: str = option(
        "", meaning="policy file; empty for the package's, heft for the one before any training"
    )

    def propose(self, context: Context, tracker: Tracker[Placement]) -> Iterator[Placement | None]:
        """Yield the schedule of the best scores, then drawn ones."""
        policy = first_policy(self.policy)
        facts, rng = facts_of(context), tracker.rng()
        for index in range(self.passes):
            random = int(rng.integers(1, 2**62)) if index else None
            yield context.fitted(policy.schedule(context, facts, random=random))


def first_policy(name: str) -> ListPolicy:
    """Return the policy that an option names."""
    if name == "heft":
        return ListPolicy.heft()
    return ListPolicy.load(name) if name else trained()
