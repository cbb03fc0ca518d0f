"""`graph-parsing`: learn which edges to keep; what stays connected is placed together (HSDAG).

Every edge gets a score from structure-aware features of its ends, each op keeps one of its edges,
connected components become groups (as many as there are), a softmax places the groups, and one
policy gradient trains both. Scores are linear in the features, where HSDAG learns graph networks.

References
----------
- S. Duan et al. A structure-aware framework for learning device placements on computation graphs
  (HSDAG). NeurIPS 2024.
- D. Wierstra, T. Schaul, T. Glasmachers, Y. Sun, J. Peters, J. Schmidhuber. Natural evolution
  strategies. JMLR 15, 2014. (The advantages: utilities of ranks.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.solvers.policy.adam import Parameters
from placeopt.solvers.policy.advantages import rank_utilities
from placeopt.solvers.policy.group_and_place import (
    ParsedSamples,
    Parser,
    Place,
    Placer,
    new_sampling,
    parse_and_place,
)
from placeopt.solvers.policy.grouping_graph import GroupingGraph, b_level_ranks, grouping_graph
from placeopt.solvers.policy.learned_placer import LearnedPlacer, fill_samples
from placeopt.solvers.policy.structure_features import STRUCTURE, structure_features
from placeopt.solving.options import option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

ABLATIONS = (
    "none",
    "spectral",
    "position",
    "fractal_dimension",
    "centrality",
    "structure",
    "parsing",
    "placing",
)
EDGE_FEATURES = (
    "cost",
    *(f"mean_{name}" for name in STRUCTURE),
    *(f"difference_{name}" for name in STRUCTURE),
)
STEPS_PER_OP = 40
"""Steps of a sample for each op, to decide whether a batch is worth several threads."""


@dataclass(frozen=True)
class GraphParsing(LearnedPlacer):
    """Keep each op's best edge by learned scores, place the connected components (HSDAG)."""

    name: ClassVar[str] = "graph-parsing"

    final_temperature: float = option(
        0.3, above=0, meaning="temperature of the softmaxes at the end of the budget"
    )
    residual: bool = option(True, meaning="learn a score per edge besides the weights of features")
    without: str = option(
        "none",
        choices=ABLATIONS,
        meaning="leave a part out: a kind of feature, all structure, or what learns",
    )

    def begin(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> ParsingPolicy:
        """Ask the teacher for an incumbent; the policy starts by keeping the most expensive
        edges.
        """
        self.ask_teacher(tracker)
        return ParsingPolicy(problem, self, tracker.rng())


class ParsingPolicy:
    """Weights of the edge scores and of the placer on one problem.

    Attributes
    ----------
    parameters : "edge" (weights of EDGE_FEATURES), "residual" (a score per edge), "place" (weights
    of `Place`).
    """

    def __init__(
        self, problem: PlacementProblem, config: GraphParsing, rng: np.random.Generator
    ) -> None:
        self.config, self.rng = config, rng
        self.graph = grouping_graph(problem)
        self.ranks = b_level_ranks(problem)
        self.features = edge_features(problem, self.graph, config.without)
        edge, place = np.zeros(len(EDGE_FEATURES)), np.zeros(len(Place))
        edge[EDGE_FEATURES.index("cost")] = 4.0  # start by keeping the most expensive edge
        place[Place.LOAD], place[Place.AFFINITY] = -4.0, 8.0
        rate = config.learning_rate
        self.parameters = Parameters(
            {"edge": edge, "residual": np.zeros(len(self.features)), "place": place},
            {"edge": rate, "residual": 2 * rate, "place": rate},
        )

    def sample(self, count: int, temperature: float) -> ParsedSamples:
        """Draw placements."""
        n, k = self.graph.compute.shape
        now = self.parameters
        samples = ParsedSamples(
            devices=np.zeros((count, n), np.int32),
            ranks=np.tile(self.ranks, (count, 1)),
            groups=np.zeros(count, np.int64),
            edge=np.zeros((count, len(EDGE_FEATURES))),
            residual=np.zeros((count, len(self.features) if self.slopes_per_edge else 0)),
            place=np.zeros((count, len(Place))),
        )
        parser = Parser(self.features, self.scores())
        placer = Placer(now["place"], np.zeros((0, k)))

        def draw(seeds: NDArray[np.uint64], rows: ParsedSamples) -> None:
            parse_and_place(self.graph, parser, placer, new_sampling(temperature), seeds, rows)

        return fill_samples(samples, self.rng, draw, count * n * STEPS_PER_OP)

    @property
    def slopes_per_edge(self) -> bool:
        """Whether the samples are to carry the score function of every edge."""
        return self.config.residual

    def scores(self) -> NDArray[np.float64]:
        """Return the score of every edge, (edges,)."""
        return np.asarray(self.features @ self.parameters["edge"] + self.parameters["residual"])

    def advantages(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the utility of every sample."""
        return rank_utilities(values)

    def learn(self, samples: ParsedSamples, values: NDArray[np.int64], temperature: float) -> None:
        """Take one step along sum of advantage times score function."""
        advantage = self.advantages(values)
        gradient = {}
        if self.config.without != "parsing":
            gradient["edge"] = advantage @ samples.edge
            if self.config.residual:
                gradient["residual"] = advantage @ samples.residual
        if self.config.without != "placing":
            gradient["place"] = advantage @ samples.place
        self.parameters.ascend(gradient)


def edge_features(
    problem: PlacementProblem, graph: GroupingGraph, without: str
) -> NDArray[np.float64]:
    """Return the EDGE_FEATURES of every edge: its cost, then mean and difference of its ends;
    (edges, features).
    """
    structure = structure_features(problem)
    left_out = [
        i for i, name in enumerate(STRUCTURE) if without == "structure" or name.startswith(without)
    ]
    structure[:, left_out] = 0.0
    cost = graph.cost
    own = cost / max(1e-300, float(cost.max())) if len(cost) else cost
    source, target = structure[graph.source], structure[graph.target]
    return np.column_stack([own, (source + target) / 2, np.abs(source - target)])
