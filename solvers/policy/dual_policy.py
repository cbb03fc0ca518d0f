"""`dual-policy`: select an op, place it, learn both by policy gradient, starting as a heuristic (Doppler).

Log-linear policies take the place of Doppler's graph networks: stage I imitates a heuristic (maximum likelihood, ties share
the credit), stage II is policy gradient on the simulator, stage III on a real system (`measure`). The policy *starts as* the
heuristic, so what it returns is never worse.

References
----------
- X. Yao et al. DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow graphs. ICLR 2026.
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement learning. Machine
  Learning 8, 1992.
- D. Wierstra, T. Schaul, T. Glasmachers, Y. Sun, J. Peters, J. Schmidhuber. Natural evolution strategies. JMLR 15, 2014.
  (The advantages: utilities of ranks.)
- J. Oh, Y. Guo, S. Singh, H. Lee. Self-imitation learning. ICML 2018. (The best episode, repeated.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.makespan.evaluate import best_queue, evaluate, evaluate_batch
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.solvers.policy import select_and_place
from placeopt.solvers.policy.adam import Parameters
from placeopt.solvers.policy.advantages import rank_utilities
from placeopt.solvers.policy.dual_policy_file import HEURISTICS, SCALINGS, DualPolicyModel
from placeopt.solvers.policy.episodes import Episodes, OrderedProblem, roll, weights_of
from placeopt.solvers.policy.learned_placer import LearnedPlacer, Samples, draw_seeds
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

MEASURED_BATCH = 8
"""Episodes per gradient step where every one is measured: a real system is a thousand times slower than the simulator."""

FROZEN = {"both": (), "sel": ("plc", "plc_residual"), "plc": ("sel", "sel_residual")}
"""Parameters that do not learn, by the option `learn`."""


@dataclass(frozen=True)
class DualPolicy(LearnedPlacer):
    """Doppler's dual policy: pick an op, then its device; starts as a heuristic, learns by policy gradient.

    The teacher is what stage I imitates. Ops are grouped along their most expensive edges, because where communication is
    dear an op hardly ever does well to move alone; the ops of a group share their residual scores.
    """

    name: ClassVar[str] = "dual-policy"

    start: str = option(
        "critical-path", choices=HEURISTICS, meaning="policy to begin with; eft is HEFT without insertion"
    )
    imitation: int = option(60, low=0, meaning="gradient steps of stage I")
    learn: str = option("both", choices=tuple(FROZEN), meaning="which of the two policies learns; the other stays greedy")
    residual: bool = option(
        True, meaning="learn a score per op and per (op, device) too: better on this graph, nothing to transfer"
    )
    groups: int = option(48, low=0, meaning="groups of ops that share their scores per device; 0: every op on its own")
    learning_rate: float = option(0.15, above=0, meaning="Adam's step for the weights of features")
    residual_rate: float = option(0.25, low=0, meaning="Adam's step for the residual")
    elite: float = option(0.5, low=0, meaning="weight of repeating the best episode so far in every step")
    entropy: float = option(0.0, low=0, meaning="advantage of episodes with more entropy: keeps the policy random")
    sel_scaling: str = option(
        "graph", choices=SCALINGS, meaning="what SEL's features are scaled by: the graph, or the candidates at hand"
    )
    queue: str = option(
        "priority", choices=("priority", "fifo"), meaning="execution that values episodes; priority: the order SEL chose"
    )
    policy: str = option("", meaning="policy file to start from, with its own sel_scaling")
    save_policy: str = option("", meaning="file to write the trained policy to")
    measure: Callable[..., float] | None = option(
        None, meaning="stage III: callable that gives the seconds of devices (and of ranks, if it has a true `ordered`)"
    )

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Train on `problem` within the budget, offering the best placement met."""
        learner = self.begin(problem, tracker)
        try:
            self.improve(learner, problem, tracker)
        finally:  # also after Ctrl-C
            if self.save_policy:
                learner.model(f"{problem.name}: {learner.episodes} episodes, seed {tracker.seed}").save(self.save_policy)

    def begin(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> DualLearner:
        """Ask the teacher, try the policy as it starts, then imitate the teacher (stage I)."""
        if self.measure is not None:
            tracker.message = "the value is the caller's measurement of this placement"
        initial = tracker.solution
        if initial is not None and self.measure is not None:
            self._offer_measured(tracker, initial)
        taught = self._teacher(tracker)
        teacher = taught if initial is None else initial
        learner = DualLearner(OrderedProblem.of(problem), self.first_model(), self, tracker.rng())
        if not tracker.stop():
            greedy = learner.greedy()
            learner.remember(greedy, self.value(greedy, problem, tracker))
        if teacher is not None and self.imitation:
            lesson = teaching_order(problem, teacher)
            for _ in range(self.imitation):
                if tracker.seconds_left > 0:
                    learner.imitate(*lesson)
        return learner

    def first_model(self) -> DualPolicyModel:
        """Return the policy that training starts from."""
        if self.policy:
            return DualPolicyModel.load(self.policy)
        return DualPolicyModel.heuristic(self.start, self.sel_scaling)

    def batch_size(self, tracker: Tracker[Placement]) -> int:
        """Episodes of the next step, fewer where each is measured."""
        most = self.batch if self.measure is None else min(self.batch, MEASURED_BATCH)
        return int(min(most, tracker.evaluations_left))

    def values(self, problem: PlacementProblem, samples: Samples) -> NDArray[np.int64]:
        """Return the ticks of every episode: simulated, or measured where there is a callable."""
        if self.queue == "fifo":
            values = evaluate_batch(problem, samples.devices)
        else:
            values = evaluate_batch(problem, samples.devices, samples.ranks, "priority")
        if self.measure is not None:
            for i in np.flatnonzero(values != INFEASIBLE).tolist():
                values[i] = self._measured(problem, samples.devices[i], samples.ranks[i])
        return values

    def _teacher(self, tracker: Tracker[Placement]) -> Placement | None:
        """Return the teacher's placement, offered; simulating is free where the budget counts measurements."""
        result = self.ask_teacher(tracker, adopt=self.measure is None)
        if result is None or result.solution is None:
            return None
        if self.measure is not None:
            self._offer_measured(tracker, result.solution)
        return result.solution

    def _offer_measured(self, tracker: Tracker[Placement], placement: Placement) -> None:
        tracker.count()
        tracker.offer(self._measured(tracker.problem, placement.device, placement.priority), placement)

    def _measured(self, problem: PlacementProblem, devices: NDArray[Any], ranks: NDArray[np.int64] | None) -> int:
        """Ticks that the callable measures."""
        measure: Any = self.measure
        own = devices.astype(np.int64)
        seconds = float(measure(own, ranks) if getattr(measure, "ordered", False) else measure(own))
        return round(seconds / problem.tick_seconds) if math.isfinite(seconds) else int(INFEASIBLE)


class DualLearner:
    """The parameters of a dual policy on one problem, and how they learn.

    Attributes
    ----------
    parameters : "sel" and "plc" (weights of features), "sel_residual" and "plc_residual".
    label : group of each op, by topological place: the row of its scores in "plc_residual".
    best : value, devices and ranks of the best episode so far.
    """

    def __init__(
        self, ordered: OrderedProblem, first: DualPolicyModel, config: DualPolicy, rng: np.random.Generator
    ) -> None:
        n, k = ordered.graph.compute.shape
        self.ordered, self.config, self.rng, self.first = ordered, config, rng, first
        self.label = residual_groups(ordered, config.groups) if config.residual else np.zeros(0, dtype=np.int64)
        rows = int(self.label.max()) + 1 if config.residual else 0
        slow, fast = config.learning_rate, max(1e-12, config.residual_rate)
        self.parameters = Parameters(
            {
                "sel": np.array(first.sel), "plc": np.array(first.plc),
                "sel_residual": np.zeros(n if config.residual else 0), "plc_residual": np.zeros((rows, k)),
            },
            {"sel": slow, "plc": slow, "sel_residual": fast, "plc_residual": fast},
        )  # fmt: skip
        self.best: tuple[int, NDArray[np.int32], NDArray[np.int64]] | None = None
        self.episodes = 0

    def model(self, note: str) -> DualPolicyModel:
        """Return the policy as it is now, without residual."""
        return self.first.trained(self.parameters["sel"], self.parameters["plc"], note)

    def sample(self, count: int, temperature: float) -> Episodes:
        """Draw episodes."""
        self.episodes += count
        return self._roll(count, select_and_place.SAMPLE, temperature)

    def greedy(self) -> Episodes:
        """Return the one episode in which both policies take their best action."""
        return self._roll(1, select_and_place.GREEDY, 1.0)

    def learn(self, samples: Episodes, values: NDArray[np.int64], temperature: float) -> None:
        """Stage II: one policy-gradient step on episodes (and the best so far, repeated)."""
        config = self.config
        self.remember(samples, values)
        advantage = rank_utilities(values)
        if config.entropy > 0:
            more = (samples.entropy - samples.entropy.mean()) / max(1.0, samples.entropy.std())
            advantage = advantage + config.entropy * more
        gradient = self.gradient(samples, advantage)
        if config.elite > 0 and self.best is not None:
            _, devices, ranks = self.best
            again = self._roll(1, select_and_place.REPLAY, temperature, devices[None, :], ranks[None, :])
            repeat = self.gradient(again, np.full(1, config.elite))
            gradient = {key: gradient[key] + repeat[key] for key in gradient}
        self._ascend(gradient)

    def remember(self, episodes: Episodes, values: NDArray[np.int64]) -> None:
        """Keep the best episode of all."""
        i = int(values.argmin())
        value = int(values[i])
        if value != INFEASIBLE and (self.best is None or value < self.best[0]):
            self.best = value, episodes.devices[i].copy(), episodes.ranks[i].copy()

    def imitate(self, devices: NDArray[np.int32], ranks: NDArray[np.int64]) -> None:
        """Stage I: raise the likelihood of the teacher's decisions; all tied actions of critical path count."""
        ties = self.config.teacher == "critical-path"
        mode = select_and_place.REPLAY_TIES if ties else select_and_place.REPLAY
        episode = self._roll(1, mode, self.config.temperature, devices, ranks)
        self._ascend(self.gradient(episode, np.ones(1) / self.ordered.problem.num_ops))

    def gradient(self, episodes: Episodes, advantage: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return sum of advantage times score function, for each group of parameters."""
        found = {"sel": advantage @ episodes.sel, "plc": advantage @ episodes.plc}
        if self.config.residual:
            found["sel_residual"] = advantage @ episodes.sel_residual
            found["plc_residual"] = np.zeros(self.parameters["plc_residual"].shape)
            np.add.at(found["plc_residual"], self.label, np.tensordot(advantage, episodes.plc_residual, axes=1))
        return found

    def _ascend(self, gradient: dict[str, NDArray[np.float64]]) -> None:
        frozen = FROZEN[self.config.learn]
        self.parameters.ascend({key: slope for key, slope in gradient.items() if key not in frozen})

    def _roll(
        self, count: int, mode: int, temperature: float, devices: NDArray[np.int32] | None = None,
        ranks: NDArray[np.int64] | None = None,
    ) -> Episodes:  # fmt: skip
        config, now = self.config, self.parameters
        weights = weights_of(
            DualPolicyModel(now["sel"], now["plc"], sel_scaling=self.first.sel_scaling), self.ordered.problem.num_devices,
            sel_residual=now["sel_residual"] if config.residual else None,
            plc_residual=now["plc_residual"][self.label] if config.residual else None,
            temperature=temperature, sel_random=config.learn != "plc", plc_random=config.learn != "sel",
        )  # fmt: skip
        return roll(self.ordered, weights, draw_seeds(self.rng, count), mode, devices, ranks)


def residual_groups(ordered: OrderedProblem, count: int) -> NDArray[np.int64]:
    """Return the group of each op, by topological place; the ops of one share their scores per device."""
    space = SearchSpace(ordered.problem)
    if not 0 < count < space.num_units:
        return np.arange(ordered.problem.num_ops)
    return np.asarray(space.groups(count)[space.problem.units.unit][ordered.order])


def teaching_order(problem: PlacementProblem, placement: Placement) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return (devices, ranks) of a placement as one episode: ranks follow a topological order.

    An op is ranked when it starts if the placement is executed.
    """
    _, queue = best_queue(problem, placement)
    run = evaluate(problem, placement, queue, check=False)
    ordered = Placement.from_starts(placement.device, run.start, problem.topological_order)
    ranks: Any = ordered.priority
    return placement.device.astype(np.int32)[None, :], ranks[None, :]
