"""`graph-parsing`: learn which edges to keep; what stays connected is placed together (HSDAG).

Every edge gets a score from structure-aware features of its ends, each op keeps one of its edges,
connected components become groups (as many as there are), a softmax places the groups, and one
policy gradient trains both. Scores are linear in the features, where HSDAG learns graph networks.

`neural-parsing`: graph parsing whose edge scores come from a graph network (HSDAG), with its
ablations.

Each op keeps one of its edges by learned scores and connected components are placed together, as in
`graph-parsing`; here the score of an edge is a network's, of embeddings of its ends by message
passing over structure and op types.

References
----------
- S. Duan et al. A structure-aware framework for learning device placements on computation graphs
  (HSDAG). NeurIPS 2024.
- D. Wierstra, T. Schaul, T. Glasmachers, Y. Sun, J. Peters, J. Schmidhuber. Natural evolution
  strategies. JMLR 15, 2014. (The advantages: utilities of ranks.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from placeopt.model.arrays import Floats, Ints
from placeopt.model.problem import PlacementProblem
from placeopt.model.threads import torch_threads
from placeopt.solvers.policy.advantages import Parameters, rank_utilities
from placeopt.solvers.policy.group_and_place import (
    ParsedSamples,
    Parser,
    Place,
    Placer,
    parse_and_place,
)
from placeopt.solvers.policy.grouping_graph import GroupingGraph, b_level_ranks, grouping_graph
from placeopt.solvers.policy.learned_placer import LearnedPlacer, fill_samples
from placeopt.solvers.policy.network_placer import refuse_without_torch
from placeopt.solvers.policy.structure_features import STRUCTURE, TYPES, structure_features
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker

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


@dataclass(frozen=True)
class GraphParsing(LearnedPlacer):
    """Keep each op's best edge by learned scores, place the connected components (HSDAG)."""

    final_temperature: float = option(
        0.3, "temperature of the softmaxes at the end of the budget", above=0
    )
    residual: bool = option(True, "learn a score per edge besides the weights of features")
    without: str = option(
        "none",
        "leave a part out: a kind of feature, all structure, or what learns",
        choices=ABLATIONS,
    )

    def begin(self, tracker: PlacementTracker) -> ParsingPolicy:
        """Ask the teacher for an incumbent; the policy starts by keeping the most expensive
        edges.
        """
        self.ask_teacher(tracker)
        return ParsingPolicy(tracker.problem, self, tracker.rng())


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

    def sample(self, count: int, temperature: float, *, steps_per_op: int = 40) -> ParsedSamples:
        """Draw placements; `steps_per_op` of each decide whether they are worth several threads."""
        n, k = self.graph.compute.shape
        now = self.parameters
        samples = ParsedSamples(
            devices=np.zeros((count, n), np.int32),
            ranks=np.tile(self.ranks, (count, 1)),
            edge=np.zeros((count, len(EDGE_FEATURES))),
            residual=np.zeros((count, len(self.features) if self.slopes_per_edge else 0)),
            place=np.zeros((count, len(Place))),
        )
        parser = Parser(self.features, self.scores())
        placer = Placer(now["place"], np.zeros((0, k)))
        draw = partial(parse_and_place, self.graph, parser, placer)
        return fill_samples(samples, self.rng, draw, temperature, count * n * steps_per_op)

    @property
    def slopes_per_edge(self) -> bool:
        """Whether the samples are to carry the score function of every edge."""
        return self.config.residual

    def scores(self) -> Floats:
        """Return the score of every edge, (edges,)."""
        return self.features @ self.parameters["edge"] + self.parameters["residual"]

    def learn(self, samples: ParsedSamples, values: Ints, temperature: float) -> None:
        """Take one step along sum of advantage times score function."""
        advantage = rank_utilities(values)
        gradient = {}
        if self.config.without != "parsing":
            gradient["edge"] = advantage @ samples.edge
            if self.config.residual:
                gradient["residual"] = advantage @ samples.residual
        if self.config.without != "placing":
            gradient["place"] = advantage @ samples.place
        self.parameters.ascend(gradient)


def edge_features(problem: PlacementProblem, graph: GroupingGraph, without: str) -> Floats:
    """Return the EDGE_FEATURES of every edge: its cost, then mean and difference of its ends;
    (edges, features).
    """
    structure = structure_features(problem)
    structure[:, [i for i in left_out(without) if i < len(STRUCTURE)]] = 0.0
    own = graph.cost / max(1e-300, float(graph.cost.max(initial=0)))
    source, target = structure[graph.source], structure[graph.target]
    return np.column_stack([own, (source + target) / 2, np.abs(source - target)])


@dataclass(frozen=True)
class NeuralParsing(GraphParsing):
    """Keep each op's best edge by a graph network's scores, place the connected components
    (HSDAG).
    """

    residual: bool = option(False, "learn a score per edge besides the network")
    without: str = option(
        "none",
        "leave a part out: a kind of feature, all structure, or what learns",
        choices=(*ABLATIONS, "types"),
    )
    hidden: int = option(16, "width of the network", low=1)
    rounds: int = option(2, "rounds of message passing", low=0)
    network_rate: float = option(0.01, "Adam's step for the network", above=0)

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Learn on one torch thread."""
        refuse_without_torch(self.name)
        with torch_threads(1):
            super().search(problem, tracker)

    def begin(self, tracker: PlacementTracker) -> NeuralParsingPolicy:
        """Ask the teacher for an incumbent; the policy starts by keeping the most expensive
        edges.
        """
        self.ask_teacher(tracker)
        return NeuralParsingPolicy(tracker.problem, self, tracker.rng())


class NeuralParsingPolicy(ParsingPolicy):
    """Graph parsing with a network's scores on top of the edges' costs."""

    def __init__(
        self, problem: PlacementProblem, config: NeuralParsing, rng: np.random.Generator
    ) -> None:
        import torch

        from placeopt.solvers.policy.network_policy import seeded
        from placeopt.solvers.policy.placement_networks import EdgeScores, describe

        super().__init__(problem, config, rng)
        nodes = describe(problem, np.arange(problem.num_ops), None)
        features = nodes.features.clone()
        features[:, left_out(config.without)] = 0.0
        cost = self.features[:, EDGE_FEATURES.index("cost")]
        ends = torch.from_numpy(self.graph.source), torch.from_numpy(self.graph.target)
        make = partial(
            EdgeScores,
            nodes._replace(features=features),
            ends,
            torch.from_numpy(cost.astype(np.float32)),
            config.hidden,
            config.rounds,
        )
        self.network = seeded(make, rng)
        self.steps = torch.optim.Adam(self.network.parameters(), lr=config.network_rate)

    @property
    def slopes_per_edge(self) -> bool:
        """The network learns from the score function of every edge."""
        return True

    def scores(self) -> Floats:
        """Return the cost's weight and the network's score of every edge."""
        import torch

        with torch.no_grad():
            return super().scores() + self.network().numpy().astype(np.float64)

    def learn(self, samples: ParsedSamples, values: Ints, temperature: float) -> None:
        """Take one step along sum of advantage times score function, through the scores into the
        network.
        """
        import torch

        from placeopt.solvers.policy.network_policy import descend

        advantage = rank_utilities(values)
        super().learn(samples, values, temperature)
        if self.config.without != "parsing" and len(self.graph.source):
            slope = torch.from_numpy((advantage @ samples.residual).astype(np.float32))
            descend(self.steps, -(self.network() * slope).sum())


def left_out(without: str) -> list[int]:
    """Return the columns of the nodes' features that an ablation blanks."""
    names = [*STRUCTURE, *TYPES]
    return [
        i
        for i, name in enumerate(names)
        if name.startswith(without) or (without == "structure" and i < len(STRUCTURE))
    ]
