"""A learned list scheduler as data: what a problem is to it, its weights, and their file.

Nothing in what it sees has a unit or a size: the same weights mean the same on any graph and any
number of devices. An encoder looks at each op and at its neighbours' neighbours once for a problem;
a decoder (`list_kernels`) adds what it learned of an op to what is so at a step.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from placeopt.model.arrays import Floats, frozen
from placeopt.model.errors import InputError
from placeopt.solvers.heuristics import ranks
from placeopt.solvers.policy.dual_policy_file import PolicyFile
from placeopt.solvers.policy.list_kernels import (
    DEVICE,
    FAR,
    TURN,
    Lesson,
    ListEmbedding,
    ListFacts,
    ListTask,
    ListWeights,
    learned_schedule,
    shares_of_work,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.model.projection import CostArrays, GraphArrays
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solvers.heuristics.insertion_kernels import ListSchedule


TRAINED = Path(__file__).resolve().parent / "learned_list.json"
"""The weights of the package; results/policy/train.py made them."""

OP = (
    "upward rank",
    "downward rank",
    "criticality",
    "slack",
    "static level",
    "work",
    "data sent",
    "data received",
    "consumers",
    "producers",
    "spread of work",
    "work above",
    "work below",
    "no work",
    "communication of the graph",
    "parallelism of the graph",
    "devices",
    "spread of the graph",
    "one",
)
"""What is said of an op, whatever is scheduled: ranks as parts of the longest path, times as parts
of their mean, squashed to [0, 1)."""


class ListSight(NamedTuple):
    """A problem as a list policy sees it, from one of its ends."""

    graph: GraphArrays
    costs: CostArrays
    facts: ListFacts
    after: csr_array  # (num_ops, num_ops) mean over consumers
    before: csr_array  # (num_ops, num_ops) mean over producers


def turned(graph: GraphArrays, costs: CostArrays) -> tuple[GraphArrays, CostArrays]:
    """Return a graph whose edges point the other way, and its costs.

    A schedule of it that is read from its end is one of the graph: without contention a transfer
    takes as long for each consumer. `outputs` and `channel` stay as they are.
    """
    back = graph._replace(
        order=frozen(np.ascontiguousarray(graph.order[::-1])),
        predecessors=graph.successors,
        successors=graph.predecessors,
        indegree=frozen(np.diff(graph.successors.pointer)),
    )
    return back, costs._replace(link_class=frozen(np.ascontiguousarray(costs.link_class.T)))


def sight_of(context: Context, *, backward: bool = False) -> ListSight:
    """Return what a problem is to the policy, see `OP`; `backward`: with its edges turned."""
    problem, graph, costs = context.problem, context.graph, context.costs
    producer, consumer = problem.edge_source, problem.consumer
    if backward:
        graph, costs = turned(graph, costs)
        producer, consumer = consumer, producer
    n, k = problem.num_ops, problem.num_devices
    mean, weight = context.mean_compute, context.mean_transfer
    up, following = ranks.upward_rank(graph, mean, weight)
    level, _ = ranks.upward_rank(graph, mean, np.zeros(len(weight)))
    down = ranks.downward_rank(graph, mean, weight)
    rest = ranks.optimistic_cost(graph, costs, weight)
    path, bare = max(1e-9, float(up.max())), max(1e-9, float(level.max()))
    edge = weight[problem.edge_tensor]
    work = float(mean.sum())
    unit = max(1e-9, work / n + (float(edge.mean()) if len(edge) else 0.0))
    usable = problem.compute >= 0
    deviation = np.sqrt(
        np.where(usable, (problem.compute - mean[:, None]) ** 2, 0.0).sum(axis=1)
        / usable.sum(axis=1)
    )
    spread = _soft(deviation / np.maximum(mean, 1e-9))
    outdegree = np.diff(graph.successors.pointer)
    above, below = shares_of_work(graph, mean)
    columns = (
        up / path,
        down / path,
        (up + down) / path,
        _soft((path - up - down) / unit),
        level / bare,
        _soft(mean / max(1e-9, work / n)),
        _soft(np.bincount(producer, edge, n) / unit),
        _soft(np.bincount(consumer, edge, n) / unit),
        _soft(np.log1p(outdegree)),
        _soft(np.log1p(graph.indegree)),
        spread,
        above / max(1e-9, work),
        below / max(1e-9, work),
        mean == 0,
        _soft(edge.sum() / max(1e-9, work)),
        _soft(work / (bare * k)),
        2.0 / (k + 1),
        spread.mean(),
        1.0,
    )
    least = np.where(usable, problem.compute + rest, np.inf).min(axis=1).max()
    facts = ListFacts(
        np.ascontiguousarray(np.column_stack([np.broadcast_to(x, n) for x in columns]), float),
        rest,
        weight,
        mean,
        up,
        following,
        np.array([unit, max(1e-9, work / k), float(least)]),
    )
    after = csr_array((1.0 / outdegree[producer], (producer, consumer)), shape=(n, n))
    before = csr_array((1.0 / graph.indegree[consumer], (consumer, producer)), shape=(n, n))
    return ListSight(graph, costs, facts, after, before)


def sights_of(context: Context) -> tuple[ListSight, ListSight]:
    """Return what a problem is to the policy, from both ends."""
    return sight_of(context), sight_of(context, backward=True)


def _soft(x: Any) -> Any:
    return x / (1.0 + abs(x))


@dataclass(frozen=True, eq=False)
class ListPolicy(PolicyFile):
    """Weights of a learned list scheduler.

    Attributes
    ----------
    weights : see `ListWeights`. heats : temperatures of ops and devices at which it is drawn from.
    provenance : what it was trained on.
    """

    format = "placeopt/list-policy"
    version = 2

    weights: ListWeights
    heats: tuple[float, float] = (0.1, 0.1)
    provenance: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for array in self.weights:
            array.setflags(write=False)

    @classmethod
    def heft(
        cls, widths: tuple[int, int, int] = (16, 8, 16), seed: int = 0, *, sharpness: float = 10.0
    ) -> ListPolicy:
        """Return the policy before its training: by upward rank, to the earliest finish.

        Its hidden layers see at random and say nothing: their output weights are 0. Temperatures
        are those of its best climb, chosen as those of the trained policy are.

        Parameters
        ----------
        widths : of the encoder and of the hidden layers of ops and devices.
        sharpness : linear weight of the upward rank: at 10, a tenth of the longest path is one in
            log-odds.
        """
        rng = np.random.default_rng(seed)
        zero = {name: np.zeros(shape) for name, shape in shapes(*widths).items()}
        for name, array in zero.items():
            if array.ndim == 2:
                zero[name] = rng.normal(size=array.shape) / np.sqrt(len(array))
        zero["score_linear"][OP.index("upward rank")] = sharpness
        zero["linear"][DEVICE.index("finish")] = -1.0
        return cls(ListWeights(**zero), (1.6, 0.02), ("upward rank, earliest finish",))

    @property
    def vector(self) -> Floats:
        """All weights in one row."""
        return np.concatenate([array.ravel() for array in self.weights])

    def with_vector(self, vector: Floats, *notes: str) -> ListPolicy:
        """Return a policy with other weights, and more lines of provenance."""
        ends = np.cumsum([array.size for array in self.weights])
        parts = zip(self.weights, np.split(vector, ends[:-1]), strict=True)
        weights = ListWeights(*(part.reshape(array.shape).copy() for array, part in parts))
        return ListPolicy(weights, self.heats, (*self.provenance, *notes))

    def scheduler(self, context: Context) -> LearnedScheduler:
        """Return the policy applied to a problem."""
        return LearnedScheduler(self, context, sights_of(context))

    def content(self) -> dict[str, Any]:
        """Return the policy as JSON, in four digits."""
        tables = {
            name: " ".join(f"{x:.4g}" for x in array.ravel().tolist())
            for name, array in self.weights._asdict().items()
        }
        widths = [len(self.weights.score_out), len(self.weights.turn_out), len(self.weights.out)]
        said = {"op": list(OP), "turn": list(TURN), "device": list(DEVICE)}
        more = {"heats": list(self.heats), "provenance": list(self.provenance)}
        return said | {"widths": widths} | tables | more

    @classmethod
    def from_content(cls, data: Any, path: str | Path) -> ListPolicy:
        """Return the policy of a file's JSON; see `PolicyFile`."""
        try:
            encoded, turn, hidden = map(int, data["widths"])
            arrays = {
                name: np.array(data[name].split(), np.float64).reshape(shape)
                for name, shape in shapes(encoded, turn, hidden).items()
            }
            first, second = map(float, data["heats"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InputError(
                f"policy '{path}': expected three widths, tables {', '.join(ListWeights._fields)} "
                "of numbers with spaces between, as many as the widths say, and two numbers heats"
            ) from None
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise InputError(f"policy '{path}': expected finite weights")
        return cls(
            ListWeights(**arrays), (first, second), tuple(map(str, data.get("provenance", ())))
        )


class Encoded:
    """A policy applied to a problem, from one of its ends: what it learned of each op is encoded
    once.

    Attributes
    ----------
    embedding : see `ListEmbedding`.
    """

    def __init__(self, policy: ListPolicy, context: Context, sight: ListSight) -> None:
        self.policy, self.sight = policy, sight
        w, op = policy.weights, sight.facts.op
        self._first = _soft(op @ w.first)
        seen = (self._first, sight.after @ self._first, sight.before @ self._first)
        self._seen = np.concatenate((op, *seen), axis=1)
        self._second = _soft(self._seen @ w.second)
        self._known = np.concatenate((op, self._second), axis=1)
        self.embedding = ListEmbedding(
            op @ w.score_linear + self._second @ w.score_out,
            self._known @ w.turn_context,
            self._known @ w.context,
        )
        self._task = ListTask(
            sight.graph,
            sight.costs,
            context.units,
            sight.facts,
            self.embedding,
            w,
            np.zeros(context.problem.compute.shape),
        )

    def run(self, way: Pass, lesson: Lesson) -> ListSchedule:
        """Return the schedule of a pass; see `learned_schedule`."""
        heats = np.zeros(2) if way.random is None else np.array(self.policy.heats)
        state, task = np.array([way.random or 0], np.uint64), self._task
        if way.shift is not None:
            shifted = self.embedding._replace(score=self.embedding.score + way.shift.op)
            task = task._replace(embedding=shifted, bias=way.shift.device)
        return learned_schedule(task, heats, state, lesson)

    def learn(self, embedding: ListEmbedding, grad: ListWeights) -> None:
        """Add the gradient in what was learned of the ops to those of the encoder's weights."""
        w, sight = self.policy.weights, self.sight
        op, width = sight.facts.op, self._first.shape[1]
        grad.score_linear[:] += op.T @ embedding.score
        grad.score_out[:] += self._second.T @ embedding.score
        grad.turn_context[:] += self._known.T @ embedding.turn
        grad.context[:] += self._known.T @ embedding.device
        known = embedding.turn @ w.turn_context.T + embedding.device @ w.context.T
        second = known[:, op.shape[1] :] + np.outer(embedding.score, w.score_out)
        second *= (1.0 - abs(self._second)) ** 2
        grad.second[:] += self._seen.T @ second
        seen = (second @ w.second.T)[:, op.shape[1] :]
        own, after, before = (seen[:, width * i : width * (i + 1)] for i in range(3))
        first = own + sight.after.T @ after + sight.before.T @ before
        grad.first[:] += op.T @ (first * (1.0 - abs(self._first)) ** 2)


class Shift(NamedTuple):
    """What is added to the scores in a pass."""

    op: Floats  # (num_ops,)
    device: Floats  # (num_ops, num_devices)


class Pass(NamedTuple):
    """How a pass is made.

    `random` draws ops and devices at the policy's temperatures; None takes the best scores.
    `backward` schedules from the sinks. `shift` is added to the scores; None adds nothing.
    """

    random: int | None = None
    backward: bool = False
    shift: Shift | None = None


GREEDY = Pass()


class LearnedScheduler:
    """A policy applied to a problem."""

    def __init__(
        self, policy: ListPolicy, context: Context, sights: tuple[ListSight, ListSight]
    ) -> None:
        self.policy, self.context = policy, context
        self._ends = tuple(Encoded(policy, context, sight) for sight in sights)

    def schedule(self, way: Pass = GREEDY) -> ListSchedule:
        """Return the schedule of a pass."""
        plan = self._ends[way.backward].run(way, Lesson(NO_CREDIT, _NO_VIEW, _NO_WEIGHTS))
        return self._read_back(plan) if way.backward else plan

    def gradient(self, lessons: list[tuple[Pass, Floats]]) -> Floats:
        """Return the gradient of the log-probability of the choices of schedules that were drawn,
        in all weights.

        Parameters
        ----------
        lessons : how each was drawn, and the weight of its choices about each op.
        """
        grad = ListWeights(*(np.zeros(array.shape) for array in self.policy.weights))
        for backward, end in enumerate(self._ends):
            embedding = ListEmbedding(*(np.zeros(array.shape) for array in end.embedding))
            for way, credit in lessons:
                if way.backward == bool(backward):
                    end.run(way, Lesson(credit, embedding, grad))
            end.learn(embedding, grad)
        return np.concatenate([array.ravel() for array in grad])

    def _read_back(self, plan: ListSchedule) -> ListSchedule:
        """Return a schedule of the turned graph as one of the graph: from its end, each op then as
        early as it can.
        """
        context, start = self.context, plan.finish.max() - plan.finish
        pinned = context.unit_first(plan.device)
        again = context.in_order(np.lexsort((context.position, start)), pinned=pinned)
        return again._replace(overflow=plan.overflow)


def climb(
    schedulers: Sequence[LearnedScheduler], rng: np.random.Generator
) -> Iterator[ListSchedule]:
    """Yield schedules without end: those of the best scores, of each scheduler from each end, then
    those of a climb.

    Gumbel numbers at the policy's temperatures, one for each op and one for each op and device, are
    added to the scores: a random key, which the policy decodes. A step draws those of some ops
    anew, in the best key of the scheduler and end whose best pass is shortest, and stays if the
    schedule is no longer. Each op is among them with one probability, drawn log-uniformly from that
    of one op to that of all.
    """
    n, k = schedulers[0].context.problem.compute.shape
    ends = [(scheduler, backward) for scheduler in schedulers for backward in (False, True)]
    lengths, keys = [0] * len(ends), [Shift(np.zeros(n), np.zeros((n, k)))] * len(ends)
    for count in itertools.count():
        end = count if count < len(ends) else lengths.index(min(lengths))
        (scheduler, backward), key = ends[end], keys[end]
        if count >= len(ends):
            op_heat, heat = scheduler.policy.heats
            again = rng.random(n) < n ** -rng.random()
            op, device = rng.gumbel(size=(n, 1)), rng.gumbel(size=(n, k))
            key = Shift(
                np.where(again, op_heat * op[:, 0], key.op),
                np.where(again[:, None], heat * device, key.device),
            )
        plan = scheduler.schedule(Pass(backward=backward, shift=key))
        length = FAR if plan.overflow else int(plan.finish.max())
        if count < len(ends) or length <= lengths[end]:
            lengths[end], keys[end] = length, key
        yield plan


def shapes(encoded: int, turn: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each table of `ListWeights`."""
    ops = len(OP)
    return {
        "first": (ops, encoded),
        "second": (ops + 3 * encoded, encoded),
        "score_linear": (ops,),
        "score_out": (encoded,),
        "turn_context": (ops + encoded, turn),
        "context": (ops + encoded, hidden),
        "turn": (len(TURN),),
        "turn_hidden": (len(TURN), turn),
        "turn_out": (turn,),
        "linear": (len(DEVICE),),
        "hidden": (len(DEVICE), hidden),
        "out": (hidden,),
    }


NO_CREDIT = np.zeros(0)
_NO_VIEW = ListEmbedding(NO_CREDIT, np.zeros((0, 0)), np.zeros((0, 0)))
_NO_WEIGHTS = ListWeights(**{name: np.zeros(shape) for name, shape in shapes(0, 0, 0).items()})
"""What learns nothing, and the gradients to which nothing is added."""


@cache
def trained() -> ListPolicy:
    """Return the policy that comes with the package."""
    return ListPolicy.load(TRAINED)
