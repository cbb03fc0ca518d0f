"""`graph-parsing`: learn which edges to keep; what stays connected is placed together (HSDAG).

After "A structure-aware framework for learning device placements on computation graphs" (HSDAG, NeurIPS 2024): every
edge gets a score from structure-aware features of its ends, each op keeps its best edge, connected components
become groups (as many as there are), a softmax places the groups, and one policy gradient trains both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.makespan.evaluate import finish, parallel_slices
from placeopt.model.errors import InputError
from placeopt.solvers.policy import group_kernels
from placeopt.solvers.policy.engine import Adam, rank_utilities
from placeopt.solvers.policy.group_kernels import PLACE_FEATURES
from placeopt.solvers.policy.group_problem import Judge, group_arrays
from placeopt.solvers.policy.grouper_placer import spent
from placeopt.solvers.policy.structure import STRUCTURE, structure_features
from placeopt.solving.registry import require_objective
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

ABLATIONS = ("none", "spectral", "position", "fractal_dimension", "centrality", "structure", "parsing", "placing")


@dataclass(frozen=True)
class GraphParsing:
    """Keep each op's best edge by learned scores, place the connected components (HSDAG).

    Parameters
    ----------
    batch : samples per step.
    teacher : heuristic whose placement is the first incumbent; "" for none.
    learning_rate : Adam's step; `temperature`, `final_temperature` : of both softmaxes.
    residual : learn a score per edge besides the feature weights.
    without : leave a part out (ablation): a kind of feature, all "structure", or learning of "parsing" or "placing".
    """

    batch: int = 64
    teacher: str = "edge-zeroing"
    learning_rate: float = 0.1
    temperature: float = 1.0
    final_temperature: float = 0.3
    residual: bool = True
    without: str = "none"

    name: ClassVar[str] = "graph-parsing"

    def __post_init__(self) -> None:
        if self.without not in ABLATIONS:
            raise InputError(f"graph-parsing: without must be one of {', '.join(ABLATIONS)}, received '{self.without}'")
        if self.batch < 2:
            raise InputError(f"graph-parsing: batch must be at least 2, received {self.batch}")
        for key in ("learning_rate", "temperature", "final_temperature"):
            if not getattr(self, key) > 0:
                raise InputError(f"graph-parsing: {key} must be > 0, received {getattr(self, key)}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Learn on `problem` within the budget and return the best placement met."""
        require_objective(self.name, problem, ("makespan",))
        tracker: Tracker[Placement] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        with tracker:
            rng = np.random.default_rng(seed)
            judge = Judge.of(problem)
            judge.offer_seed(tracker, self.teacher, initial, seed)
            policy = _Parser(problem, self)
            while not tracker.stop():
                count = int(min(self.batch, tracker.evaluations_left))
                temperature = self.temperature * (self.final_temperature / self.temperature) ** spent(tracker)
                seeds = rng.integers(0, 2**63, count, dtype=np.int64).astype(np.uint64)
                sample = policy.sample(seeds, temperature)
                policy.learn(sample, rank_utilities(judge.values(tracker, sample.devices)))
        return finish(tracker)


@dataclass(frozen=True, eq=False)
class _Sample:
    devices: NDArray[np.int32]  # (batch, n)
    groups: NDArray[np.int64]  # (batch,) number of groups
    edge: NDArray[np.float64]  # (batch, edge features) score functions
    residual: NDArray[np.float64]  # (batch, edges) or (0, edges)
    place: NDArray[np.float64]  # (batch, place features)


class _Parser:
    """Weights of the edge scores and of the placer on one problem."""

    def __init__(self, problem: PlacementProblem, config: GraphParsing) -> None:
        self.config = config
        self.arrays = group_arrays(problem)
        self.features = edge_features(problem, self.arrays.source, self.arrays.target, self.arrays.cost, config.without)
        self.edge = np.zeros(self.features.shape[1])
        self.edge[0] = 4.0  # start by keeping the most expensive edge
        self.residual = np.zeros(len(self.features))
        self.place = np.zeros(len(PLACE_FEATURES))
        self.place[PLACE_FEATURES.index("load")] = -4.0
        self.place[PLACE_FEATURES.index("affinity")] = 8.0
        rate = config.learning_rate
        self.adam = {
            "edge": Adam(self.edge.size, rate), "residual": Adam(self.residual.size, 2 * rate),
            "place": Adam(self.place.size, rate),
        }  # fmt: skip

    def sample(self, seeds: NDArray[np.uint64], temperature: float) -> _Sample:
        """Draw one placement per seed."""
        count, (n, _) = len(seeds), self.arrays.compute.shape
        rows = count if self.config.residual else 0
        sample = _Sample(
            np.zeros((count, n), np.int32), np.zeros(count, np.int64), np.zeros((count, len(self.edge))),
            np.zeros((rows, len(self.residual))), np.zeros((count, len(self.place))),
        )  # fmt: skip
        score = self.features @ self.edge + self.residual

        def run(part: slice) -> None:
            inner = part if rows else slice(0, 0)
            group_kernels.parse_and_place(
                self.arrays, self.features, score, self.place, temperature, seeds[part], False, sample.devices[part],
                sample.groups[part], sample.edge[part], sample.residual[inner], sample.place[part],
            )  # fmt: skip

        parallel_slices(run, count, count * n * 40)
        return sample

    def learn(self, sample: _Sample, advantage: NDArray[np.float64]) -> None:
        """Take one step along sum of advantage times score function."""
        gradient = {}
        if self.config.without != "parsing":
            gradient["edge"] = advantage @ sample.edge
            if self.config.residual:
                gradient["residual"] = advantage @ sample.residual
        if self.config.without != "placing":
            gradient["place"] = advantage @ sample.place
        for key, value in gradient.items():
            parameter: NDArray[np.float64] = getattr(self, key)
            parameter += self.adam[key].step(value)


def edge_features(
    problem: PlacementProblem, source: NDArray[np.int64], target: NDArray[np.int64], cost: NDArray[np.float64], without: str
) -> NDArray[np.float64]:
    """Return features of every edge: its cost, then the ends' structure (sum and difference); (edges, features)."""
    structure = structure_features(problem)
    left_out = [i for i, name in enumerate(STRUCTURE) if without == "structure" or name.startswith(without)]
    structure[:, left_out] = 0.0
    own = cost / max(1e-300, float(cost.max())) if len(cost) else cost
    ends = structure[source] + structure[target], np.abs(structure[source] - structure[target])
    return np.column_stack([own, ends[0] / 2, ends[1]])
