"""What a dual policy learns on one problem: its parameters, how they are credited, and how they
step.

Whole episodes are credited by the utilities of their ranks, local steps against each other; a
decision about an op that is not on a critical chain of what came of it earns nothing (`credit`).
The best episodes so far are repeated, weighted by how probable they still are (importance weights
per decision, at most 1).

References
----------
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement
  learning. Machine Learning 8, 1992.
- D. Wierstra, T. Schaul, T. Glasmachers, Y. Sun, J. Peters, J. Schmidhuber. Natural evolution
  strategies. JMLR 15, 2014. (The advantages: utilities of ranks.)
- J. Oh, Y. Guo, S. Singh, H. Lee. Self-imitation learning. ICML 2018. (The best episodes,
  repeated.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.solvers.policy import select_and_place
from placeopt.solvers.policy.adam import Parameters
from placeopt.solvers.policy.advantages import rank_utilities
from placeopt.solvers.policy.dual_policy_file import ARRAYS, DualPolicyModel
from placeopt.solvers.policy.episodes import (
    Episodes,
    OrderedProblem,
    roll,
    score_functions,
    weights_of,
)
from placeopt.solvers.policy.guides import Incumbent, critical_rows
from placeopt.solvers.policy.learned_placer import draw_seeds
from placeopt.solvers.search.search_space import SearchSpace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.episode_arrays import Gradient, Weights

FROZEN = {"both": (), "sel": ("plc",), "plc": ("sel",), "none": ("plc", "sel")}
"""Beginnings of the names of parameters that do not learn, by the option `learn`."""

LAYER_RATE = 0.2
"""Adam's step for hidden layers over that for the weights of features."""


class DualLearner:
    """The parameters of a dual policy on one problem, and how they learn.

    Attributes
    ----------
    config : the options of `dual_policy.DualPolicy`.
    parameters : the model's `ARRAYS`, and "sel_residual" and "plc_residual".
    label : group of each op, by topological place: the row of its scores in "plc_residual".
    elite : (value, devices, ranks) of the best episodes so far, best first; `devices` and `ranks`
    by op.
    first_episode : the same of the episode before any learning, one or none.
    """

    def __init__(
        self,
        ordered: OrderedProblem,
        first: DualPolicyModel,
        config: Any,
        rng: np.random.Generator,
        *,
        residual: bool = True,
    ) -> None:
        n, k = ordered.graph.compute.shape
        self.ordered, self.config, self.rng = ordered, config, rng
        self.residual = residual and config.residual
        self.first = (
            first.with_hidden(config.hidden, rng) if config.hidden and not first.hidden else first
        )
        self.label = (
            residual_groups(ordered, config.score_groups)
            if self.residual
            else np.zeros(0, dtype=np.int64)
        )
        rows = int(self.label.max()) + 1 if self.residual else 0
        arrays = {name: np.array(getattr(self.first, name)) for name in ARRAYS}
        arrays |= {
            "sel_residual": np.zeros(n if self.residual else 0),
            "plc_residual": np.zeros((rows, k)),
        }
        rates = {
            name: config.learning_rate * (1.0 if name in ("sel", "plc") else LAYER_RATE)
            for name in ARRAYS
        }
        rates |= dict.fromkeys(("sel_residual", "plc_residual"), max(1e-12, config.residual_rate))
        self.parameters = Parameters(arrays, rates)
        self.elite: list[tuple[int, NDArray[np.int32], NDArray[np.int64]]] = []
        self.first_episode: list[tuple[int, NDArray[np.int32], NDArray[np.int64]]] = []
        self.episodes = 0
        self._known: Weights | None = None

    @property
    def best(self) -> tuple[int, NDArray[np.int32], NDArray[np.int64]] | None:
        """Value, devices and ranks of the best episode so far."""
        return self.elite[0] if self.elite else None

    def model(self, note: str) -> DualPolicyModel:
        """Return the policy as it is now, without residual."""
        return self.first.trained({name: self.parameters[name] for name in ARRAYS}, note)

    def weights(self, temperature: float) -> Weights:
        """Return what the kernels take; the same as before where nothing was learned in between."""
        if self._known is None or self._known.temperature != temperature:
            self._known = self._weights(temperature)
        return self._known

    def _weights(self, temperature: float) -> Weights:
        config, now = self.config, self.parameters
        return weights_of(
            self.first.trained({name: now[name] for name in ARRAYS}, ""),
            self.ordered,
            temperature=temperature,
            sel_residual=now["sel_residual"] if self.residual else None,
            plc_residual=now["plc_residual"][self.label] if self.residual else None,
            sel_random=config.learn != "plc",
            plc_random=config.learn != "sel",
        )

    def sample(self, count: int, temperature: float) -> Episodes:
        """Draw episodes."""
        self.episodes += count
        return roll(self.ordered, self.weights(temperature), draw_seeds(self.rng, count))

    def greedy(self) -> Episodes:
        """Return the one episode in which both policies take their best action."""
        return roll(
            self.ordered, self.weights(1.0), np.zeros(1, np.uint64), select_and_place.GREEDY
        )

    def rewrite(
        self, incumbent: Incumbent, windows: NDArray[np.bool_], temperature: float
    ) -> Episodes:
        """Draw local steps: episodes that place only the ops of their windows."""
        self.episodes += len(windows)
        seeds = draw_seeds(self.rng, len(windows))
        return roll(
            self.ordered, self.weights(temperature), seeds, guide=incumbent.guide, windows=windows
        )

    def learn(self, samples: Episodes, values: NDArray[np.int64], temperature: float) -> None:
        """Stage II: one policy-gradient step on whole episodes, and the best so far, repeated."""
        self.remember(samples, values)
        advantage = rank_utilities(values)
        if self.config.entropy > 0:
            more = (samples.entropy - samples.entropy.mean()) / max(1.0, samples.entropy.std())
            advantage = advantage + self.config.entropy * more
        weights = self.weights(temperature)
        gradient = self.gradient(weights, samples, advantage)
        if self.config.elite > 0 and self.elite:
            again = self._repeat(weights)
            gradient = {key: gradient[key] + again[key] for key in gradient}
        self._ascend(gradient)

    def learn_locally(
        self, steps: Episodes, values: NDArray[np.int64], now: int, temperature: float
    ) -> None:
        """Repeat the local steps that were better than the incumbent, each by its gain; the others,
        most of all, teach nothing.

        Most steps are worse than the incumbent: learning to avoid them is learning to stay.
        """
        gain = np.where(values < now, now - np.minimum(values, now), 0).astype(np.float64)
        if gain.any():
            self._ascend(
                self.gradient(self.weights(temperature), steps, gain / gain.sum()),
                self.config.window_rate,
            )

    def remember(self, episodes: Episodes, values: NDArray[np.int64]) -> None:
        """Keep the best episodes of all, each value once."""
        for i in np.argsort(values, kind="stable")[: self.config.memory].tolist():
            value = int(values[i])
            if value == INFEASIBLE or any(value == known for known, _, _ in self.elite):
                continue
            if len(self.elite) < self.config.memory or value < self.elite[-1][0]:
                self.elite.append((value, episodes.devices[i].copy(), episodes.ranks[i].copy()))
                self.elite.sort(key=lambda kept: kept[0])
                del self.elite[self.config.memory :]

    def imitate(self, devices: NDArray[Any], ranks: NDArray[np.int64]) -> None:
        """Stage I: raise the likelihood of a teacher's decisions."""
        lesson = Episodes.given(self.ordered, devices, ranks)
        advantage = np.full(len(devices), 1.0 / self.ordered.problem.num_ops)
        self._ascend(
            self.gradient(self.weights(self.config.temperature), lesson, advantage, everywhere=True)
        )

    def gradient(
        self,
        weights: Weights,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        *,
        everywhere: bool = False,
    ) -> dict[str, NDArray[np.float64]]:
        """Return sum of credit times score function, for each group of parameters.

        An episode's advantage is credited to its decisions about critical ops, or to all
        (`everywhere`).
        """
        rows = episodes.rows
        credit = np.repeat(advantage[:, None], rows.device.shape[1], axis=1)
        if self.config.credit == "critical" and not everywhere:
            credit *= critical_rows(self.ordered.graph, rows.device, rows.rank)
        total, _ = score_functions(weights, episodes, credit)
        return self.named(total)

    def named(self, total: Gradient) -> dict[str, NDArray[np.float64]]:
        """Return a gradient by the names of the parameters."""
        contexts = self.ordered.contexts
        found = {name: getattr(total, name) for name in ARRAYS}
        for name in ("sel_context", "plc_context"):
            found[name] = contexts.T @ found[name] / len(contexts) ** 0.5
        if self.residual:
            found["sel_residual"] = total.sel_residual
            found["plc_residual"] = np.zeros(self.parameters["plc_residual"].shape)
            np.add.at(found["plc_residual"], self.label, total.plc_residual)
        return found

    def _repeat(self, weights: Weights) -> dict[str, NDArray[np.float64]]:
        """Return the gradient of repeating the best episodes, those most that are still as probable
        as the best.
        """
        devices, ranks = (np.stack(rows) for rows in list(zip(*self.elite, strict=True))[1:])
        again = Episodes.given(self.ordered, devices, ranks)
        _, now = score_functions(weights, again, np.zeros(devices.shape))
        per_decision = (now.log_probability - now.log_probability[0]) / devices.shape[1]
        share = np.minimum(1.0, np.exp(per_decision)) * 0.5 ** np.arange(len(devices))
        return self.gradient(
            weights, again, self.config.elite * share / share.sum(), everywhere=True
        )

    def _ascend(self, gradient: dict[str, NDArray[np.float64]], share: float = 1.0) -> None:
        frozen = FROZEN[self.config.learn]
        moving = {
            key: slope for key, slope in gradient.items() if key.partition("_")[0] not in frozen
        }
        self.parameters.ascend(moving, share)
        self.forget()

    def forget(self) -> None:
        """Take the parameters anew before the next episode: they have changed."""
        self._known = None


def residual_groups(ordered: OrderedProblem, count: int) -> NDArray[np.int64]:
    """Return the group of each op, by topological place; the ops of one share their scores per
    device.
    """
    space = SearchSpace(ordered.problem)
    if not 0 < count < space.num_units:
        return np.arange(ordered.problem.num_ops)
    return np.asarray(space.groups(count)[space.problem.units.unit][ordered.order])


def teaching_order(
    problem: PlacementProblem, placement: Placement
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return (devices, ranks) of a placement as one episode: ranks follow a topological order.

    An op is ranked when it starts if the placement is executed.
    """
    _, queue = best_queue(problem, placement)
    run = evaluate(problem, placement, queue, check=False)
    ordered = Placement.from_starts(placement.device, run.start, problem.topological_order)
    ranks: Any = ordered.priority
    return placement.device.astype(np.int32)[None, :], ranks[None, :]
