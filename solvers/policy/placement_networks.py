"""Networks that place: message passing over the graph, and a recurrent placer with attention.

Each network offers `sample`, which draws choices, and `log_probability`, which values given ones; a
row of choices is one placement. Needs torch; only the solvers' `begin` imports this file.

References
----------
- A. Mirhoseini et al. Device placement optimization with reinforcement learning. ICML 2017.
  (`RecurrentNetwork`.)
- Y. Zhou et al. GDP: generalized device placement for dataflow graphs. arXiv 1910.01578, 2019.
  (`GraphNetwork`.)
- R. Addanki et al. Placeto: learning generalizable device placement algorithms for distributed
  machine learning. NeurIPS
  2019. (`VisitNetwork`.)
- S. Duan et al. A structure-aware framework for learning device placements on computation graphs
  (HSDAG). NeurIPS 2024. (`EdgeScores`.)
- W. Hamilton, R. Ying, J. Leskovec. Inductive representation learning on large graphs. NeurIPS
  2017. (Message passing.)
- A. Mirhoseini et al. A hierarchical model for device placement. ICLR 2018. (`SoftGrouperNetwork`.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from placeopt.model.arrays import Floats, Ints, sums_by
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.policy.structure_features import structure_features, type_features


class Nodes(NamedTuple):
    """What is placed, m groups of ops on k devices, as tensors."""

    label: Tensor  # (n,) group of each op
    features: Tensor  # (m, features)
    source: Tensor  # (edges,) group of the producer; edges within a group are left out
    target: Tensor  # (edges,)
    allowed: Tensor  # (m, k) where every op of the group can run
    prior: Tensor  # (m, k) logits that the first placement is given ahead


def describe(
    problem: PlacementProblem, label: Ints, first: Ints | None, lead: float = 3.0
) -> Nodes:
    """Return the groups of `label` with mean features of their ops, their shares of time and
    memory, and their edges.

    Parameters
    ----------
    first : device of every op in the placement to begin with, None for none. lead : logit that its
    device is given over the others.
    """
    m, k = int(label.max()) + 1, problem.num_devices
    op_features = np.column_stack([structure_features(problem), type_features(problem)])
    count = np.bincount(label, minlength=m)[:, None]
    mean = sums_by(label, op_features, m)
    time = sums_by(label, np.maximum(0.0, problem.compute), m)
    size = np.bincount(label, problem.resident.astype(np.float64), minlength=m)
    allowed, prior = np.ones((m, k), np.bool_), np.zeros((m, k))
    np.logical_and.at(allowed, label, problem.compute >= 0)
    if first is not None:
        np.add.at(prior, (label, first), 1.0)
        prior *= lead / count
    shares = np.column_stack(
        [mean / count, m * time / max(1.0, time.sum() / k), m * size / max(1.0, size.sum())]
    )
    ends = label[problem.edge_source], label[problem.consumer]
    crossing = ends[0] != ends[1]
    source, target = (torch.from_numpy(end[crossing]) for end in ends)
    open_to = torch.from_numpy(allowed | ~allowed.any(axis=1, keepdims=True))
    return Nodes(
        torch.from_numpy(label.copy()), _tensor(shares), source, target, open_to, _tensor(prior)
    )


def _tensor(array: Floats) -> Tensor:
    return torch.from_numpy(array.astype(np.float32))


class MessagePassing(nn.Module):
    """Rounds of mean messages along and against the edges; input (..., m, features), output (...,
    m, hidden).
    """

    def __init__(self, nodes: Nodes, num_features: int, hidden: int, rounds: int) -> None:
        super().__init__()
        self.source, self.target = nodes.source, nodes.target
        self.enter = nn.Linear(num_features, hidden)
        self.messages = nn.ModuleList(nn.Linear(hidden, 2 * hidden) for _ in range(rounds))
        self.updates = nn.ModuleList(nn.Linear(3 * hidden, hidden) for _ in range(rounds))

    def forward(self, features: Tensor) -> Tensor:
        """Embed every node."""
        state = torch.relu(self.enter(features))
        for message, update in zip(self.messages, self.updates, strict=True):
            down, up = torch.relu(message(state)).chunk(2, dim=-1)
            received = [
                _means(down, self.source, self.target),
                _means(up, self.target, self.source),
            ]
            state = state + torch.relu(update(torch.cat([state, *received], dim=-1)))
        return state


def _means(messages: Tensor, sender: Tensor, receiver: Tensor) -> Tensor:
    """Return the mean message that every node receives, 0 where there is none."""
    total = torch.zeros_like(messages).index_add(-2, receiver, messages.index_select(-2, sender))
    count = torch.bincount(receiver, minlength=messages.shape[-2]).clamp(min=1)
    return total / count[:, None]


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw an index from the softmax of the last axis."""
    flat = torch.softmax(logits, dim=-1).reshape(-1, logits.shape[-1])
    return torch.multinomial(flat, 1, generator=generator).reshape(logits.shape[:-1])


def log_probability_of(logits: Tensor, choices: Tensor) -> Tensor:
    """Return the log-probability of each choice under the softmax of the last axis."""
    return torch.log_softmax(logits, dim=-1).gather(-1, choices[..., None])[..., 0]


class GraphNetwork(nn.Module):
    """One-shot placement: embeddings by message passing, attention among all nodes, a softmax per
    node (GDP).
    """

    def __init__(self, nodes: Nodes, hidden: int, rounds: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.embed = MessagePassing(nodes, nodes.features.shape[1], hidden, rounds)
        self.attend = nn.MultiheadAttention(hidden, num_heads=1, batch_first=True)
        self.leave = nn.Linear(2 * hidden, nodes.allowed.shape[1])

    def logits(self) -> Tensor:
        """Return the logits of every device for every node, (m, k)."""
        state = self.embed(self.nodes.features)
        context = self.attend(state[None], state[None], state[None], need_weights=False)[0][0]
        logits = self.leave(torch.cat([state, context], dim=-1)) + self.nodes.prior
        return torch.where(self.nodes.allowed, logits, -torch.inf)

    def sample(self, count: int, temperature: float, generator: torch.Generator) -> Tensor:
        """Draw `count` placements, (count, m)."""
        return draw((self.logits() / temperature).expand(count, -1, -1), generator)

    def log_probability(self, choices: Tensor, temperature: float) -> Tensor:
        """Return the log-probability of every choice, (count, m)."""
        logits = (self.logits() / temperature).expand(len(choices), -1, -1)
        return log_probability_of(logits, choices)

    def devices(self, choices: Tensor) -> Tensor:
        """Return the device of every op, (count, n)."""
        return choices[:, self.nodes.label]


class VisitNetwork(nn.Module):
    """The device of one node, given where all nodes are now (Placeto): message passing, then a
    softmax for the node.
    """

    def __init__(self, nodes: Nodes, hidden: int, rounds: int) -> None:
        super().__init__()
        self.nodes = nodes
        k = nodes.allowed.shape[1]
        self.embed = MessagePassing(nodes, nodes.features.shape[1] + k + 2, hidden, rounds)
        self.leave = nn.Linear(2 * hidden, k)

    def forward(self, node: int, device: Tensor, visited: Tensor) -> Tensor:
        """Return the logits of the node's device in every episode, (episodes, k).

        Parameters
        ----------
        device : (episodes, m) where the nodes are. visited : (m,) 1 for nodes that had their turn.
        """
        count, (m, k) = len(device), self.nodes.allowed.shape
        marks = torch.zeros(m, 2)
        marks[:, 0] = visited
        marks[node, 1] = 1.0
        fixed = torch.cat([self.nodes.features, marks], dim=-1).expand(count, -1, -1)
        state = self.embed(torch.cat([fixed, nn.functional.one_hot(device, k).float()], dim=-1))
        logits = (
            self.leave(torch.cat([state[:, node], state.mean(dim=1)], dim=-1))
            + self.nodes.prior[node]
        )
        return torch.where(self.nodes.allowed[node], logits, -torch.inf)


class EdgeScores(nn.Module):
    """A score for every edge from its cost and from embeddings of its ends (HSDAG)."""

    def __init__(
        self, nodes: Nodes, ends: tuple[Tensor, Tensor], cost: Tensor, hidden: int, rounds: int
    ) -> None:
        super().__init__()
        self.features, self.ends, self.cost = nodes.features, ends, cost[:, None]
        self.embed = MessagePassing(nodes, nodes.features.shape[1], hidden, rounds)
        self.leave = nn.Sequential(
            nn.Linear(2 * hidden + 1, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self) -> Tensor:
        """Return the scores, (edges,)."""
        state = self.embed(self.features)
        return self.leave(torch.cat([state[self.ends[0]], state[self.ends[1]], self.cost], dim=-1))[
            :, 0
        ]


class RecurrentNetwork(nn.Module):
    """Sequence to sequence with attention: an LSTM reads the groups, another writes a device for
    each (2017).

    The decoder sees, at each group, what the encoder made of it and the device of the group before.
    """

    def __init__(self, nodes: Nodes, hidden: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.num_devices = nodes.allowed.shape[1]
        self.encoder = nn.LSTM(nodes.features.shape[1], hidden, batch_first=True)
        self.before = nn.Embedding(
            self.num_devices + 1, hidden
        )  # the last row stands for "none yet"
        self.decoder = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden)
        self.leave = nn.Linear(2 * hidden, self.num_devices)

    def read(self, features: Tensor) -> Tensor:
        """Return what the encoder makes of every group, (m, hidden)."""
        return self.encoder(features[None])[0][0]

    def write(self, read: Tensor, written: Tensor) -> Tensor:
        """Return the logits of every group after the decoder's states `written`, (count, groups,
        k).
        """
        attention = torch.softmax(self.query(written) @ read.T / read.shape[1] ** 0.5, dim=-1)
        return self.leave(torch.cat([written, attention @ read], dim=-1))

    def masked(self, logits: Tensor, groups: slice) -> Tensor:
        """Return logits with the prior, -inf where a group cannot run."""
        return torch.where(
            self.nodes.allowed[groups], logits + self.nodes.prior[groups], -torch.inf
        )

    def sample(
        self, count: int, temperature: float, generator: torch.Generator, read: Tensor | None = None
    ) -> Tensor:
        """Draw `count` placements, group by group, (count, m)."""
        read = self.read(self.nodes.features) if read is None else read
        last, state, chosen = torch.full((count,), self.num_devices), None, []
        for g in range(len(read)):
            here = torch.cat([read[g].expand(count, -1), self.before(last)], dim=-1)
            written, state = self.decoder(here[:, None], state)
            logits = self.masked(self.write(read, written), slice(g, g + 1))
            last = draw(logits[:, 0] / temperature, generator)
            chosen.append(last)
        return torch.stack(chosen, dim=1)

    def log_probability(
        self, choices: Tensor, temperature: float, read: Tensor | None = None
    ) -> Tensor:
        """Return the log-probability of every choice, (count, m)."""
        read = self.read(self.nodes.features) if read is None else read
        none = torch.full((len(choices), 1), self.num_devices)
        before = self.before(torch.cat([none, choices[:, :-1]], dim=1))
        written, _ = self.decoder(torch.cat([read.expand(len(choices), -1, -1), before], dim=-1))
        return log_probability_of(
            self.masked(self.write(read, written), slice(None)) / temperature, choices
        )

    def devices(self, choices: Tensor) -> Tensor:
        """Return the device of every op, (count, n)."""
        return choices[:, self.nodes.label]


class SoftGrouperNetwork(nn.Module):
    """A grouper and a recurrent placer that learn together: the placer reads groups as softly
    assigned means of nodes.

    A row of choices is the group of every node, then the device of every group. The placer's
    gradient reaches the grouper through the means, besides the gradient of the groups that were
    drawn.
    """

    def __init__(self, nodes: Nodes, hidden: int, groups: int) -> None:
        super().__init__()
        m, k = nodes.allowed.shape
        self.nodes, self.groups = nodes, groups
        self.grouper = nn.Sequential(
            nn.Linear(nodes.features.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, groups)
        )
        self.own = nn.Parameter(torch.zeros(m, groups))
        blank = nodes._replace(
            features=torch.zeros(groups, nodes.features.shape[1] + groups),
            allowed=torch.ones(groups, k, dtype=torch.bool),
            prior=torch.zeros(groups, k),
        )
        self.placer = RecurrentNetwork(blank, hidden)
        if groups >= k and bool(nodes.prior.any()):
            self._begin_at_prior(k)

    def _begin_at_prior(self, k: int) -> None:
        """Give the nodes of each device groups of its own, by turns, and each group its device."""
        lead, home = self.nodes.prior.max(dim=1)
        rank = (
            torch.arange(len(home)) * (self.groups // k) // len(home)
        )  # neighbours in the order share a group
        with torch.no_grad():
            self.own[torch.arange(len(home)), home * (self.groups // k) + rank] = lead
        device = (torch.arange(self.groups) // (self.groups // k)).clamp(max=k - 1)
        self.placer.nodes.prior[torch.arange(self.groups), device] = lead.max()

    def group_logits(self) -> Tensor:
        """Return the logits of every group for every node, (m, groups)."""
        return self.grouper(self.nodes.features) + self.own

    def read(self, soft: Tensor) -> Tensor:
        """Return what the placer's encoder makes of softly assigned groups, (groups, hidden)."""
        size = soft.sum(dim=0)[:, None]
        source, target = self.nodes.source, self.nodes.target
        traffic = soft[source].T @ soft[target] / max(1, len(source))
        return self.placer.read(
            torch.cat([soft.T @ self.nodes.features / (size + 1e-6), traffic], dim=-1)
        )

    def sample(self, count: int, temperature: float, generator: torch.Generator) -> Tensor:
        """Draw groups and their devices, (count, m + groups)."""
        logits = self.group_logits() / temperature
        read = self.read(torch.softmax(logits, dim=-1))
        group = draw(logits.expand(count, -1, -1), generator)
        return torch.cat([group, self.placer.sample(count, temperature, generator, read)], dim=1)

    def log_probability(self, choices: Tensor, temperature: float) -> Tensor:
        """Return the log-probability of every choice, (count, m + groups)."""
        logits = self.group_logits() / temperature
        group, device = choices.split([len(logits), self.groups], dim=1)
        grouped = log_probability_of(logits.expand(len(choices), -1, -1), group)
        read = self.read(torch.softmax(logits, dim=-1))
        return torch.cat([grouped, self.placer.log_probability(device, temperature, read)], dim=1)

    def devices(self, choices: Tensor) -> Tensor:
        """Return the device of every op, (count, n)."""
        group, device = choices.split([len(self.own), self.groups], dim=1)
        return device.gather(1, group)[:, self.nodes.label]
