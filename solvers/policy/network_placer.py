"""The placers whose policy is a torch network: a recurrent one, a one-shot graph network, and a
soft grouper.

They are the published learners in small, as faithfully as a comparison needs: what they see and how
they decide is theirs, the sizes are ours. All learn on the problem at hand, from its simulated
makespan; torch comes with the extra of that name.

References
----------
- A. Mirhoseini, H. Pham, Q. V. Le, B. Steiner, R. Larsen, Y. Zhou, N. Kumar, M. Norouzi, S. Bengio,
  J. Dean. Device placement optimization with reinforcement learning. ICML 2017.
- Y. Zhou, S. Roy, A. Abdolrashidi, D. Wong, P. C. Ma, Q. Xu, M. Zhong, H. Liu, A. Goldie, A.
  Mirhoseini, J. Laudon. GDP: generalized device placement for dataflow graphs. arXiv 1910.01578,
  2019.
- A. Mirhoseini, A. Goldie, H. Pham, B. Steiner, Q. V. Le, J. Dean. A hierarchical model for device
  placement. ICLR 2018.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.arrays import stable_order, value_ranks
from placeopt.model.errors import MissingExtraError, Refused
from placeopt.model.threads import torch_threads
from placeopt.solvers.heuristics.context import equal_parts
from placeopt.solvers.policy.learned_placer import LearnedPlacer, ticks_of_unit_reward
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.arrays import Ints
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.network_policy import NetworkPolicy
    from placeopt.solvers.policy.placement_networks import Nodes
    from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class TorchPlacer(LearnedPlacer):
    """A placer whose policy is a torch network; one torch thread, so that runs repeat."""

    batch: int = option(32, "samples per step of the policy gradient", low=2)
    learning_rate: float = option(0.005, "Adam's step", above=0)
    final_temperature: float = option(
        1.0, "temperature of the softmaxes at the end of the budget", above=0
    )
    hidden: int = option(32, "width of the network", low=2)
    penalty: float = option(3.0, "negative reward of a placement that breaks a constraint", above=0)
    warm_start: bool = option(
        True, "begin near the teacher's placement; otherwise near uniform, as published"
    )

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Learn on one torch thread."""
        refuse_without_torch(self.name)
        with torch_threads(1):
            super().search(problem, tracker)

    def first_devices(self, tracker: PlacementTracker) -> Ints | None:
        """Ask the teacher for an incumbent; return its devices if the start is to be warm."""
        self.ask_teacher(tracker)
        return None if tracker.solution is None or not self.warm_start else tracker.solution.device


@dataclass(frozen=True)
class NetworkPlacer(TorchPlacer):
    """A placement network, trained on the problem by REINFORCE or PPO."""

    learning: str = option("reinforce", "rule of the policy gradient", choices=("reinforce", "ppo"))
    clip: float = option(
        0.2, "ppo: change of a choice's probability that still pays", above=0, high=1
    )
    epochs: int = option(3, "ppo: steps per batch", low=1)
    entropy: float = option(0.0, "weight of the entropy bonus", low=0)

    def begin(self, tracker: PlacementTracker) -> NetworkPolicy:
        """Ask the teacher for an incumbent, and begin near it if the start is to be warm."""
        from placeopt.solvers.policy.network_policy import NetworkPolicy
        from placeopt.solvers.policy.placement_networks import describe

        problem, first = tracker.problem, self.first_devices(tracker)
        scale = ticks_of_unit_reward(tracker)
        nodes = describe(problem, self.groups_of(problem), first)
        return NetworkPolicy(problem, self, scale, tracker.rng(), self.network(nodes))

    def groups_of(self, problem: PlacementProblem) -> Ints:
        """Return the group of every op that the network places as one: its unit."""
        return np.array(problem.units.unit)

    def network(self, nodes: Nodes) -> Callable[[], Any]:
        """Return what makes the network for these nodes."""
        raise NotImplementedError


@dataclass(frozen=True)
class RecurrentPlacer(NetworkPlacer):
    """Sequence-to-sequence LSTM with attention over groups of ops (Mirhoseini et al. 2017)."""

    length: int = option(
        128, "groups at most; ops are grouped in topological order by equal work", low=1
    )

    def groups_of(self, problem: PlacementProblem) -> Ints:
        """Return stretches of units in topological order."""
        return stretches(problem, self.length)

    def network(self, nodes: Nodes) -> Callable[[], Any]:
        """Return what makes the recurrent network."""
        from placeopt.solvers.policy.placement_networks import RecurrentNetwork

        return lambda: RecurrentNetwork(nodes, self.hidden)


@dataclass(frozen=True)
class GraphPlacer(NetworkPlacer):
    """Message passing, attention, and a device for every op at once (GDP)."""

    rounds: int = option(3, "rounds of message passing", low=0)

    def network(self, nodes: Nodes) -> Callable[[], Any]:
        """Return what makes the graph network."""
        from placeopt.solvers.policy.placement_networks import GraphNetwork

        return lambda: GraphNetwork(nodes, self.hidden, self.rounds)


@dataclass(frozen=True)
class SoftGrouper(NetworkPlacer):
    """Grouper and recurrent placer, learned jointly through softly assigned groups (Liu et al.
    2019).
    """

    learning: str = option("ppo", "rule of the policy gradient", choices=("reinforce", "ppo"))
    groups: int = option(32, "groups that ops may draw", low=1)

    def network(self, nodes: Nodes) -> Callable[[], Any]:
        """Return what makes grouper and placer."""
        from placeopt.solvers.policy.placement_networks import SoftGrouperNetwork

        return lambda: SoftGrouperNetwork(nodes, self.hidden, self.groups)


def refuse_without_torch(name: str) -> None:
    """Refuse to run where torch is not installed.

    Raises
    ------
    Refused
        Saying which extra to install.
    """
    if importlib.util.find_spec("torch") is None:
        raise Refused(str(MissingExtraError("torch", "torch", f"solver '{name}'")))


def stretches(problem: PlacementProblem, length: int) -> Ints:
    """Return the group of every op: at most `length` stretches of units in topological order, of
    about equal work.
    """
    units = problem.units
    order = stable_order(np.argsort(problem.topological_order)[units.first_op])
    if len(order) > length:
        work = np.bincount(units.unit, np.maximum(1, problem.min_compute)).astype(np.float64)[order]
        bucket = value_ranks(equal_parts(work, length))
    else:
        bucket = np.arange(len(order))
    group = np.empty(len(order), np.int64)
    group[order] = bucket
    return group[units.unit]
