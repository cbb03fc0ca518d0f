"""`dual-policy`: select an op, place it, learn both by policy gradient, starting as a heuristic
(Doppler).

Log-linear policies with a small hidden layer, which sees what message passing says of the graph,
take the place of Doppler's graph networks: stage I imitates a teacher (maximum likelihood), stage
II is policy gradient on the simulator, stage III on a real system (`measure`). The policy *starts
as* a heuristic, so what it returns is never worse than its first episode and its teacher's
placement.

The budget is spent in three parts, each from the best placement so far. `groups`: a distribution
per group of ops learns where groups go, by cross-entropy and proximal policy optimisation as in
Post. `episodes`: the two policies place whole graphs and learn. What is left is a `walk`: annealing
(see `search.annealing`). Where whole episodes only repeat what the seed gave, the walk has their
rest, too. The first two parts learn by gradient, the third is search: what each is worth is
measured in results/policy.

What a dual policy learns on one problem: its parameters, how they are credited, and how they
step.

Whole episodes are credited by the utilities of their ranks. The best episodes so far are repeated,
weighted by how probable they still are (importance weights per decision, at most 1).

References
----------
- X. Yao et al. DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow graphs.
  ICLR 2026.
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement
  learning. Machine Learning 8, 1992.
- Y. Gao, L. Chen, B. Li. Post: Device placement with cross-entropy minimization and proximal policy
  optimization. NeurIPS 2018.
- D. Wierstra, T. Schaul, T. Glasmachers, Y. Sun, J. Peters, J. Schmidhuber. Natural evolution
  strategies. JMLR 15, 2014. (The advantages: utilities of ranks.)
- J. Oh, Y. Guo, S. Singh, H. Lee. Self-imitation learning. ICML 2018. (The best episodes,
  repeated.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.makespan.evaluate import best_queue, evaluate, evaluate_batch
from placeopt.model.arrays import Array, SmallInts, stable_order, true_places
from placeopt.model.errors import InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.solvers.policy import select_and_place
from placeopt.solvers.policy.advantages import Parameters, rank_utilities
from placeopt.solvers.policy.dual_policy_file import ARRAYS, HEURISTICS, DualPolicyModel
from placeopt.solvers.policy.episodes import (
    Episodes,
    OrderedProblem,
    roll,
    score_functions,
    weights_of,
)
from placeopt.solvers.policy.learned_placer import LearnedPlacer, Samples, draw_seeds, spent
from placeopt.solvers.search.annealing import anneal
from placeopt.solvers.search.cross_entropy import Post
from placeopt.solvers.search.evaluator import BudgetedEvaluator, Measure, measured_ticks
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solving.options import option

if TYPE_CHECKING:
    from numpy.random import Generator

    from placeopt.model.arrays import Floats, Ints
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.episode_arrays import Gradient, Weights
    from placeopt.solving.tracker import PlacementTracker


FROZEN = {"both": (), "sel": ("plc",), "plc": ("sel",), "none": ("plc", "sel")}
"""Beginnings of the names of parameters that do not learn, by the option `learn`."""


@dataclass(frozen=True)
class DualPolicy(LearnedPlacer):
    """Doppler's dual policy: pick an op, then its device; starts as a heuristic, learns by policy
    gradient.

    The teacher is what stage I imitates. Ops are grouped along their most expensive edges, because
    where communication is dear an op hardly ever does well to move alone; the ops of a group share
    their residual scores.
    """

    gain: ClassVar[float] = 0.002
    """Part of the value by which groups and whole episodes must be below the seed to go on."""

    start: str = option(
        "critical-path", "heuristic that whole episodes begin as (eft: HEFT)", choices=HEURISTICS
    )
    groups: float = option(
        0.1,
        "share of the budget in which a policy per group places groups of ops, and learns "
        "as Post's",
        low=0,
        high=1,
    )
    episodes: float = option(
        0.1,
        "share for whole episodes of the two policies, which learn; the rest is for a walk",
        low=0,
        high=1,
    )
    hidden: int = option(
        8, "width of the hidden layers; 0: scores are linear in the features", low=0
    )
    imitation: int = option(60, "gradient steps of stage I", low=0)
    learn: str = option(
        "both", "which of the two policies learns; the other stays greedy", choices=tuple(FROZEN)
    )
    residual: bool = option(
        True,
        "learn a score per op and per (op, device) too: better on this graph, nothing to transfer",
    )
    score_groups: int = option(
        48, "groups of ops that share their scores per device; 0: every op on its own", low=0
    )
    learning_rate: float = option(0.15, "Adam's step for the weights of features", above=0)
    residual_rate: float = option(0.25, "Adam's step for the residual", low=0)
    elite: float = option(0.5, "weight of repeating the best episodes so far in every step", low=0)
    memory: int = option(1, "best episodes that are repeated", low=1)
    entropy: float = option(
        0.0, "advantage of episodes with more entropy: keeps the policy random", low=0
    )
    queue: str = option(
        "priority",
        "execution that values episodes; priority: the order SEL chose",
        choices=("priority", "fifo"),
    )
    policy: str = option("", "policy file to start from")
    save_policy: str = option("", "file to write the trained policy to")
    measure: Measure | None = option(
        None,
        "stage III: callable that gives the seconds of devices (and of ranks, if it has a "
        "true `ordered`)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups + self.episodes > 1 + 1e-9:
            raise InputError(
                "dual-policy: expected groups + episodes of at most 1, received "
                f"{self.groups} + {self.episodes}"
            )

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Train on `problem` within the budget, offering the best placement met."""
        learner = self.begin(tracker)
        try:
            self.improve(learner, tracker)
        finally:  # also after Ctrl-C
            if self.save_policy:
                note = f"{problem.name}: {learner.episodes} episodes, seed {tracker.seed}"
                try:
                    learner.model(note).save(self.save_policy)
                except InputError as error:  # the placement is not lost with it
                    tracker.message = f"the policy is not saved: {error}"

    def begin(self, tracker: PlacementTracker) -> DualLearner:
        """Ask the teacher, try the policy as it starts, then imitate the teacher (stage I)."""
        if self.measure is not None:
            tracker.message = "the value is the caller's measurement of this placement"
        problem, initial = tracker.problem, tracker.solution
        if initial is not None and self.measure is not None:
            self._offer_measured(tracker, initial)
        taught = self._teacher(tracker)
        teacher = taught if initial is None else initial
        learner = DualLearner(OrderedProblem.of(problem), self.first_model(), self, tracker.rng())
        if not tracker.stop():
            greedy = learner.greedy()
            learner.remember(greedy, self.value(greedy, tracker))
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
        return DualPolicyModel.heuristic(self.start)

    def improve(self, policy: Any, tracker: PlacementTracker) -> None:
        """Place groups, take steps on whole episodes, then walk, until the budget is spent; whole
        episodes alone where each is measured.
        """
        seed, evaluator = tracker.value, BudgetedEvaluator(tracker)
        if not tracker.stop():
            self._place_groups(evaluator, seed, policy.rng)
        self._place_whole_graphs(policy, tracker, seed)
        if tracker.solution is not None and not tracker.stop():
            anneal(evaluator, [tracker.solution], policy.rng)

    def _place_groups(self, evaluator: BudgetedEvaluator, seed: int | None, rng: Generator) -> None:
        """Learn where groups go, and end at half of the share if nothing is ahead of the seed's
        value by then.
        """
        tracker = evaluator.tracker
        if self.groups == 0 or self.measure is not None:
            return
        search, share = Post().sampling(evaluator, tracker.solution, rng), self.groups / 2
        evaluations, seconds = int(tracker.evaluations_left * share), tracker.seconds_left * share
        for _ in range(2):
            search.run(evaluations, tracker.elapsed + seconds)
            if tracker.value is not None and not self._ahead(tracker.value, seed):
                return

    def _ahead(self, value: int, seed: int | None) -> bool:
        """Whether a value is clearly below the seed's, if that has one."""
        return seed is None or value < (1 - self.gain) * seed

    def _place_whole_graphs(
        self,
        policy: DualLearner,
        tracker: PlacementTracker,
        seed: int | None,
        *,
        patience: int = 2,
    ) -> None:
        """Learn from whole episodes, and end early if none is ahead of the seed's value soon.

        Parameters
        ----------
        patience : batches after which a policy that is not ahead of its seed leaves the rest of the
            budget to the walk, if it has a share.
        """
        ahead, batches = False, 0
        until = self.groups + self.episodes if self.measure is None else 1.0
        while not tracker.stop() and (spent(tracker) < until or not policy.elite):
            if until < 1 and batches == patience and not ahead:
                return
            temperature = self.temperature_now(tracker)
            samples = policy.sample(self.batch_size(tracker), temperature)
            policy.learn(samples, self.value(samples, tracker), temperature)
            ahead = self._ahead(policy.elite[0][0] if policy.elite else INFEASIBLE, seed)
            batches += 1

    def batch_size(self, tracker: PlacementTracker, *, measured: int = 8) -> int:
        """Episodes of the next step: at most `measured` where each is measured, since a real system
        is a thousand times slower than the simulator.
        """
        most = self.batch if self.measure is None else min(self.batch, measured)
        return int(min(most, tracker.evaluations_left))

    def values(self, problem: PlacementProblem, samples: Samples) -> Ints:
        """Return the ticks of every episode: simulated, or measured where there is a callable."""
        devices, ranks = samples.devices, samples.ranks
        values = evaluate_batch(problem, devices, ranks, self.queue)
        if self.measure is not None:
            for i in true_places(values != INFEASIBLE):
                values[i] = self._measured(problem, devices[i], ranks[i])
        return values

    def _teacher(self, tracker: PlacementTracker) -> Placement | None:
        """Return the teacher's placement, offered; simulating is free where the budget counts
        measurements.
        """
        result = self.ask_teacher(tracker, adopt=self.measure is None)
        if result is None or result.solution is None:
            return None
        if self.measure is not None:
            self._offer_measured(tracker, result.solution)
        return result.solution

    def _offer_measured(self, tracker: PlacementTracker, placement: Placement) -> None:
        tracker.count()
        value = self._measured(tracker.problem, placement.device, placement.priority)
        if value != INFEASIBLE:
            tracker.offer(value, placement)

    def _measured(self, problem: PlacementProblem, devices: Array, ranks: Ints | None) -> int:
        """Ticks that the callable measures."""
        measure: Any = self.measure
        own = devices.astype(np.int64)
        ordered = getattr(measure, "ordered", False)
        return measured_ticks(problem, measure(own, ranks) if ordered else measure(own))


class DualLearner:
    """The parameters of a dual policy on one problem, and how they learn.

    Parameters
    ----------
    layer_rate : Adam's step for hidden layers over that for the weights of features.

    Attributes
    ----------
    config : the options of `dual_policy.DualPolicy`.
    parameters : the model's `ARRAYS`, and "sel_residual" and "plc_residual".
    label : group of each op, by topological place: the row of its scores in "plc_residual"; none
    where there are no residual scores.
    elite : (value, devices, ranks) of the best episodes so far, best first; `devices` and `ranks`
    by op.
    """

    def __init__(
        self,
        ordered: OrderedProblem,
        first: DualPolicyModel,
        config: Any,
        rng: Generator,
        *,
        layer_rate: float = 0.2,
    ) -> None:
        k = ordered.problem.num_devices
        self.ordered, self.config, self.rng = ordered, config, rng
        self.first = (
            first.with_hidden(config.hidden, rng) if config.hidden and not first.hidden else first
        )
        self.label = np.zeros(0, np.int64)
        if config.residual:
            self.label = residual_groups(ordered, config.score_groups)
        arrays = {name: np.array(getattr(self.first, name)) for name in ARRAYS}
        arrays |= {
            "sel_residual": np.zeros(len(self.label)),
            "plc_residual": np.zeros((int(self.label.max(initial=-1)) + 1, k)),
        }
        rates = {
            name: config.learning_rate * (1.0 if name in ("sel", "plc") else layer_rate)
            for name in ARRAYS
        }
        rates |= dict.fromkeys(("sel_residual", "plc_residual"), max(1e-12, config.residual_rate))
        self.parameters = Parameters(arrays, rates)
        self.elite: list[tuple[int, SmallInts, Ints]] = []
        self.episodes = 0
        self._known: Weights | None = None

    def model(self, note: str) -> DualPolicyModel:
        """Return the policy as it is now, without residual."""
        return self.first.trained(self.parameters, note)

    def weights(self, temperature: float) -> Weights:
        """Return what the kernels take; the same as before where nothing was learned in between."""
        known, now = self._known, self.parameters
        if known is None or known.temperature != temperature:
            known = self._known = weights_of(
                self.model(""),
                self.ordered,
                temperature=temperature,
                sel_residual=now["sel_residual"],
                plc_residual=now["plc_residual"][self.label],
                sel_random=self.config.learn != "plc",
                plc_random=self.config.learn != "sel",
            )
        return known

    def sample(self, count: int, temperature: float) -> Episodes:
        """Draw episodes."""
        self.episodes += count
        return roll(self.ordered, self.weights(temperature), draw_seeds(self.rng, count))

    def greedy(self) -> Episodes:
        """Return the one episode in which both policies take their best action."""
        return roll(
            self.ordered, self.weights(1.0), np.zeros(1, np.uint64), select_and_place.GREEDY
        )

    def learn(self, samples: Episodes, values: Ints, temperature: float) -> None:
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

    def remember(self, episodes: Episodes, values: Ints) -> None:
        """Keep the best episodes of all, each value once."""
        for i in stable_order(values)[: self.config.memory].tolist():
            value = int(values[i])
            if value == INFEASIBLE or any(value == known for known, _, _ in self.elite):
                continue
            if len(self.elite) < self.config.memory or value < self.elite[-1][0]:
                self.elite.append((value, episodes.devices[i].copy(), episodes.ranks[i].copy()))
                self.elite.sort(key=lambda kept: kept[0])
                del self.elite[self.config.memory :]

    def imitate(self, devices: Array, ranks: Ints) -> None:
        """Stage I: raise the likelihood of a teacher's decisions."""
        lesson = Episodes.given(self.ordered, devices, ranks)
        advantage = np.full(len(devices), 1.0 / self.ordered.problem.num_ops)
        self._ascend(self.gradient(self.weights(self.config.temperature), lesson, advantage))

    def gradient(
        self, weights: Weights, episodes: Episodes, advantage: Floats
    ) -> dict[str, Floats]:
        """Return sum of advantage times score function, for each group of parameters."""
        return self.named(score_functions(weights, episodes, advantage)[0])

    def named(self, total: Gradient) -> dict[str, Floats]:
        """Return a gradient by the names of the parameters."""
        contexts = self.ordered.contexts
        found = {name: getattr(total, name) for name in ARRAYS}
        for name in ("sel_context", "plc_context"):
            found[name] = contexts.T @ found[name] / len(contexts) ** 0.5
        found["sel_residual"] = total.sel_residual
        found["plc_residual"] = np.zeros(self.parameters["plc_residual"].shape)
        np.add.at(found["plc_residual"], self.label, total.plc_residual)
        return found

    def _repeat(self, weights: Weights) -> dict[str, Floats]:
        """Return the gradient of repeating the best episodes, those most that are still as probable
        as the best.
        """
        _, devices, ranks = (np.stack(rows) for rows in zip(*self.elite, strict=True))
        again = Episodes.given(self.ordered, devices, ranks)
        _, now = score_functions(weights, again, np.zeros(len(devices)))
        per_decision = (now.log_probability - now.log_probability[0]) / devices.shape[1]
        share = np.minimum(1.0, np.exp(per_decision)) * 0.5 ** np.arange(len(devices))
        return self.gradient(weights, again, self.config.elite * share / share.sum())

    def _ascend(self, gradient: dict[str, Floats]) -> None:
        frozen = FROZEN[self.config.learn]
        moving = {
            key: slope for key, slope in gradient.items() if key.partition("_")[0] not in frozen
        }
        self.parameters.ascend(moving)
        self._known = None  # the parameters are taken anew before the next episode


def residual_groups(ordered: OrderedProblem, count: int) -> Ints:
    """Return the group of each op, by topological place; the ops of one share their scores per
    device.
    """
    space = SearchSpace(ordered.problem)
    if not 0 < count < space.num_units:
        return np.arange(ordered.problem.num_ops)
    return space.groups(count)[space.problem.units.unit][ordered.order]


def teaching_order(problem: PlacementProblem, placement: Placement) -> tuple[SmallInts, Ints]:
    """Return (devices, ranks) of a placement as one episode: ranks follow a topological order.

    An op is ranked when it starts if the placement is executed.
    """
    _, queue = best_queue(problem, placement)
    run = evaluate(problem, placement, queue, check=False)
    ordered = Placement.from_starts(placement.device, run.start, problem.topological_order)
    ranks: Any = ordered.priority
    return placement.device.astype(np.int32)[None, :], ranks[None, :]
