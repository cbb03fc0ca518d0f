"""A learned list scheduler as data: what a problem is to it, its weights, and their file.

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
from placeopt.solvers.policy.policy_file import PolicyFile

if TYPE_CHECKING:
    from placeopt.model.arrays import Floats
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solvers.heuristics.insertion_kernels import ListSchedule


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
