"""Local steps of a policy from an incumbent: it places a window of ops anew, keeps the rest, and
learns from what follows.

A chain of local steps is a walk: a step that is not worse is taken, a worse one with Metropolis'
probability at a temperature that falls with the budget. The kinds and sizes of windows are drawn
from preferences, which a gradient bandit learns from what improved the incumbent.

References
----------
- X. Chen, Y. Tian. Learning to perform local rewriting for combinatorial optimization. NeurIPS
  2019. (A policy picks a region of a solution and rewrites it.)
- N. Metropolis, A. W. Rosenbluth, M. N. Rosenbluth, A. H. Teller, E. Teller. Equation of state
  calculations by fast computing machines. Journal of Chemical Physics 21, 1953.
- R. S. Sutton, A. G. Barto. Reinforcement learning: an introduction, 2nd edition, section 2.8
  (gradient bandits). 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.objective import INFEASIBLE
from placeopt.solvers.policy.guides import NUM_KINDS, Incumbent, grow_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.solvers.policy.episode_arrays import Graph
    from placeopt.solvers.policy.episodes import Episodes

CRITICAL_SHARE = 0.8
"""Windows that begin at a critical op; the others begin anywhere."""

LARGEST = 128
"""Largest window of a local step."""


class WindowChoice:
    """Preferences for kinds and sizes of windows.

    Attributes
    ----------
    preference : of each kind and size; the probability of a choice is proportional to its
    exponential.
    """

    def __init__(self, num_ops: int, rate: float) -> None:
        most = min(LARGEST, max(2, num_ops // 4))
        self.sizes = 2 ** np.arange(int(np.log2(most)) + 1, dtype=np.int64)
        self.rate, self.average = rate, 0.0
        self.preference = np.zeros((NUM_KINDS, len(self.sizes)))

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Return choices: places in the flattened table of preferences."""
        return rng.choice(self.preference.size, size=count, p=self._probability())

    def split(self, choices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the kinds and the sizes of choices."""
        kind, size = np.divmod(choices, len(self.sizes))
        return kind, self.sizes[size]

    def learn(self, choices: NDArray[np.int64], rewards: NDArray[np.float64]) -> None:
        """Raise the preference of what was rewarded more than the average so far."""
        flat = self.preference.ravel()
        for choice, reward in zip(choices.tolist(), rewards.tolist(), strict=True):
            step = self.rate * (reward - self.average)
            flat -= step * self._probability()
            flat[choice] += step
            self.average += 0.02 * (reward - self.average)

    def _probability(self) -> NDArray[np.float64]:
        mass = np.exp(self.preference.ravel() - self.preference.max())
        return np.asarray(mass / mass.sum())


class Chain:
    """A walk of local steps.

    Attributes
    ----------
    incumbent : where the walk is. first, best : value where it began, lowest value that it has met.
    heat : first temperature of Metropolis' rule, as a share of the incumbent's value.
    """

    def __init__(
        self, graph: Graph, incumbent: Incumbent, choice: WindowChoice, heat: float
    ) -> None:
        self.graph, self.incumbent, self.choice, self.heat = graph, incumbent, choice, heat
        self.first = self.best = incumbent.value
        self._pull = _pull(graph, incumbent)
        self.rank = np.argsort(incumbent.guide.order)

    def windows(
        self, rng: np.random.Generator, count: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return windows, most of which begin at a critical op, and the choices behind them."""
        now = self.incumbent
        choices = self.choice.draw(rng, count)
        kinds, sizes = self.choice.split(choices)
        seeds = rng.choice(len(now.critical), count, p=self._pull).astype(np.int64)
        random = rng.integers(0, 2**63, 1, dtype=np.int64).astype(np.uint64)
        return grow_windows(self.graph, now.start, now.finish, seeds, sizes, kinds, random), choices

    def move(
        self,
        episodes: Episodes,
        values: NDArray[np.int64],
        choices: NDArray[np.int64],
        heat: float,
        rng: np.random.Generator,
    ) -> None:
        """Go to the best of some local steps, or stay.

        Parameters
        ----------
        heat : temperature of Metropolis' rule now, as a share of the incumbent's value.
        """
        now = self.incumbent.value
        rewards = (values < now).astype(np.float64)
        self.choice.learn(choices, rewards)
        rows = episodes.rows
        i = int(values.argmin())
        if (
            values[i] >= now
        ):  # no step is better: Metropolis' rule for one of those that change something
            changed = (rows.device != self.incumbent.guide.device).any(axis=1) | (
                rows.rank != self.rank
            ).any(axis=1)
            some = np.flatnonzero(changed & (values != INFEASIBLE))
            if len(some) == 0:
                return
            i = int(some[np.argmin(values[some] + heat * now * rng.gumbel(size=len(some)) * -1)])
            if values[i] > now and rng.random() >= np.exp((now - int(values[i])) / (heat * now)):
                return
        value = int(values[i])
        self.best = min(self.best, value)
        self.rank = rows.rank[i].copy()
        self.incumbent = Incumbent.of(
            self.graph, value, episodes.rows.device[i], episodes.rows.rank[i]
        )
        self._pull = _pull(self.graph, self.incumbent)


def _pull(graph: Graph, incumbent: Incumbent) -> NDArray[np.float64]:
    """Return the probability that a window begins at each op: critical ops by the time they take,
    the others a little.
    """
    length = incumbent.finish - incumbent.start
    share = np.where(incumbent.critical, length + 0.02 * length.max(), 0.0)
    n = len(length)
    return (
        CRITICAL_SHARE * share / share.sum() + (1 - CRITICAL_SHARE) / n
        if share.sum() > 0
        else np.full(n, 1 / n)
    )
