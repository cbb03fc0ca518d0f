"""`neural-parsing`: graph parsing whose edge scores come from a graph network (HSDAG), with its
ablations.

Each op keeps one of its edges by learned scores and connected components are placed together, as in
`graph-parsing`; here the score of an edge is a network's, of embeddings of its ends by message
passing over structure and op types.

References
----------
- S. Duan et al. A structure-aware framework for learning device placements on computation graphs
  (HSDAG). NeurIPS 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.threads import torch_threads
from placeopt.solvers.policy.graph_parsing import ABLATIONS, GraphParsing, ParsingPolicy
from placeopt.solvers.policy.network_placer import refuse_without_torch
from placeopt.solvers.policy.structure_features import NUM_TYPES, STRUCTURE
from placeopt.solving.options import option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.group_and_place import ParsedSamples
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class NeuralParsing(GraphParsing):
    """Keep each op's best edge by a graph network's scores, place the connected components
    (HSDAG).
    """

    name: ClassVar[str] = "neural-parsing"

    residual: bool = option(False, meaning="learn a score per edge besides the network")
    without: str = option(
        "none",
        choices=(*ABLATIONS, "types"),
        meaning="leave a part out: a kind of feature, all structure, or what learns",
    )
    hidden: int = option(16, low=1, meaning="width of the network")
    rounds: int = option(2, low=0, meaning="rounds of message passing")
    network_rate: float = option(0.01, above=0, meaning="Adam's step for the network")

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Learn on one torch thread."""
        refuse_without_torch(self.name)
        with torch_threads(1):
            super().search(problem, tracker)

    def begin(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> NeuralParsingPolicy:
        """Ask the teacher for an incumbent; the policy starts by keeping the most expensive
        edges.
        """
        self.ask_teacher(tracker)
        return NeuralParsingPolicy(problem, self, tracker.rng())


class NeuralParsingPolicy(ParsingPolicy):
    """Graph parsing with a network's scores on top of the edges' costs."""

    def __init__(
        self, problem: PlacementProblem, config: NeuralParsing, rng: np.random.Generator
    ) -> None:
        import torch

        from placeopt.solvers.policy.network_policy import seeded
        from placeopt.solvers.policy.placement_networks import EdgeScores, describe

        super().__init__(problem, config, rng)
        nodes = describe(problem, np.arange(problem.num_ops), None, 0.0)
        features = nodes.features.clone()
        features[:, left_out(config.without)] = 0.0
        cost = torch.from_numpy(
            (self.graph.cost / max(1e-300, float(self.graph.cost.max(initial=0)))).astype(
                np.float32
            )
        )
        ends = torch.from_numpy(self.graph.source), torch.from_numpy(self.graph.target)

        def make() -> EdgeScores:
            return EdgeScores(
                nodes._replace(features=features), ends, cost, config.hidden, config.rounds
            )

        self.network: Any = seeded(make, int(rng.integers(2**62)))
        self.steps = torch.optim.Adam(self.network.parameters(), lr=config.network_rate)

    @property
    def slopes_per_edge(self) -> bool:
        """The network learns from the score function of every edge."""
        return True

    def scores(self) -> NDArray[np.float64]:
        """Return the cost's weight and the network's score of every edge."""
        import torch

        with torch.no_grad():
            return np.asarray(super().scores() + self.network().numpy().astype(np.float64))

    def learn(self, samples: ParsedSamples, values: NDArray[np.int64], temperature: float) -> None:
        """Take one step along sum of advantage times score function, through the scores into the
        network.
        """
        import torch

        from placeopt.solvers.policy.network_policy import descend

        advantage = self.advantages(values)
        super().learn(samples, values, temperature)
        if self.config.without != "parsing" and len(self.graph.source):
            slope = torch.from_numpy((advantage @ samples.residual).astype(np.float32))
            descend(self.steps, -(self.network() * slope).sum())


def left_out(without: str) -> list[int]:
    """Return the columns of the nodes' features that an ablation blanks."""
    names = [*STRUCTURE, *("types" for _ in range(NUM_TYPES))]
    return [
        i
        for i, name in enumerate(names)
        if name.startswith(without) or (without == "structure" and i < len(STRUCTURE))
    ]
