"""`dual-policy`: select an op, place it, learn both by policy gradient, starting as a heuristic
(Doppler).

Log-linear policies with a small hidden layer, which sees what message passing says of the graph,
take the place of Doppler's graph networks: stage I imitates a teacher (maximum likelihood), stage
II is policy gradient on the simulator, stage III on a real system (`measure`). The policy *starts
as* a heuristic, so what it returns is never worse than its first episode and its teacher's
placement.

The budget is spent in four parts, each from the best placement so far. `groups`: a distribution
per group of ops learns where groups go, by cross-entropy and proximal policy optimisation as in
Post. `episodes`: the two policies place whole graphs and learn. `windows`: a policy with given
weights, which do not learn, places a window of ops around a critical op anew, the others stay
(local steps, below). What is left is a `walk`: annealing (see `search.annealing`), where transfers
do not contend. Where whole episodes only repeat what the seed gave, the walk has their rest and the
windows' part, too. The first two parts learn by gradient, the others are search: what each is
worth is measured in results/policy.

What a dual policy learns on one problem: its parameters, how they are credited, and how they
step.

Whole episodes are credited by the utilities of their ranks, local steps against each other; a
decision about an op that is not on a critical chain of what came of it earns nothing (`credit`).
The best episodes so far are repeated, weighted by how probable they still are (importance weights
per decision, at most 1).

Local steps of a policy from an incumbent: it places a window of ops anew, keeps the rest, and
learns from what follows.

A chain of local steps is a walk: a step that is not worse is taken, a worse one with Metropolis'
probability at a temperature that falls with the budget. The kinds and sizes of windows are drawn
from preferences, which a gradient bandit learns from what improved the incumbent.

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
- X. Chen, Y. Tian. Learning to perform local rewriting for combinatorial optimization. NeurIPS
  2019. (A policy picks a region of a solution and rewrites it.)
- N. Metropolis, A. W. Rosenbluth, M. N. Rosenbluth, A. H. Teller, E. Teller. Equation of state
  calculations by fast computing machines. Journal of Chemical Physics 21, 1953.
- R. S. Sutton, A. G. Barto. Reinforcement learning: an introduction, 2nd edition, section 2.8
  (gradient bandits). 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.makespan.evaluate import best_queue, evaluate, evaluate_batch
from placeopt.model.arrays import Array, SmallInts, together
from placeopt.model.errors import InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.solvers.policy import select_and_place
from placeopt.solvers.policy.advantages import Parameters, rank_utilities
from placeopt.solvers.policy.dual_policy_file import ARRAYS, DualPolicyModel
from placeopt.solvers.policy.episodes import (
    Episodes,
    OrderedProblem,
    roll,
    score_functions,
    weights_of,
)
from placeopt.solvers.policy.guides import KINDS, Incumbent, critical_rows, grow_windows
from placeopt.solvers.policy.learned_placer import LearnedPlacer, Samples, draw_seeds, spent
from placeopt.solvers.search.annealing import anneal
from placeopt.solvers.search.cross_entropy import Post
from placeopt.solvers.search.evaluator import BudgetedEvaluator, Measure, measured_ticks
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solving.options import option

if TYPE_CHECKING:
    from numpy.random import Generator

    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.episode_arrays import Gradient, Graph, Weights
    from placeopt.solving.tracker import PlacementTracker


FROZEN = {"both": (), "sel": ("plc",), "plc": ("sel",), "none": ("plc", "sel")}
"""Beginnings of the names of parameters that do not learn, by the option `learn`."""

STARTS = ("critical-path", "eft", "scratch")
"""What whole episodes may begin as."""


@dataclass(frozen=True)
class Milestones:
    """When parts of the budget end early, or go on from elsewhere.

    Attributes
    ----------
    apart : part of the local steps after which the best chain goes on alone.
    settled : part after which it goes on from the best placement met, or the walk does.
    gain : part of the value by which a chain must be below where it began by then, and groups and
    whole episodes below the seed, to go on where the walk may follow.
    """

    apart: float = 0.6
    settled: float = 0.85
    gain: float = 0.002

    def ahead(self, value: int, before: int) -> bool:
        """Whether a value is clearly below the one before."""
        return value < (1 - self.gain) * before


@dataclass(frozen=True)
class DualPolicy(LearnedPlacer):
    """Doppler's dual policy: pick an op, then its device; starts as a heuristic, learns by policy
    gradient.

    The teacher is what stage I imitates. Ops are grouped along their most expensive edges, because
    where communication is dear an op hardly ever does well to move alone; the ops of a group share
    their residual scores.
    """

    milestones: ClassVar[Milestones] = Milestones()

    start: str = option(
        "critical-path",
        choices=STARTS,
        meaning="heuristic that whole episodes begin as (eft: HEFT)",
    )
    groups: float = option(
        0.1,
        low=0,
        high=1,
        meaning="share of the budget in which a policy per group places groups of ops, and learns "
        "as Post's",
    )
    episodes: float = option(
        0.1,
        low=0,
        high=1,
        meaning="share for whole episodes of the two policies, which learn; 1 for nothing else",
    )
    windows: float = option(
        0.48,
        low=0,
        high=1,
        meaning="share for windows of ops that a policy places anew; what is left is for the walk",
    )
    hidden: int = option(
        8, low=0, meaning="width of the hidden layers; 0: scores are linear in the features"
    )
    imitation: int = option(60, low=0, meaning="gradient steps of stage I")
    learn: str = option(
        "both",
        choices=tuple(FROZEN),
        meaning="which of the two policies learns; the other stays greedy",
    )
    residual: bool = option(
        True,
        meaning="learn a score per op and per (op, device) too: better on this graph, nothing to "
        "transfer",
    )
    score_groups: int = option(
        48,
        low=0,
        meaning="groups of ops that share their scores per device; 0: every op on its own",
    )
    learning_rate: float = option(0.15, above=0, meaning="Adam's step for the weights of features")
    residual_rate: float = option(0.25, low=0, meaning="Adam's step for the residual")
    elite: float = option(
        0.5, low=0, meaning="weight of repeating the best episodes so far in every step"
    )
    memory: int = option(1, low=1, meaning="best episodes that are repeated")
    entropy: float = option(
        0.0, low=0, meaning="advantage of episodes with more entropy: keeps the policy random"
    )
    credit: str = option(
        "all",
        choices=("all", "critical"),
        meaning="decisions that earn an advantage: all, or those about critical ops",
    )
    window_batch: int = option(
        8, low=1, meaning="windows placed from the same incumbent, of which the best is taken"
    )
    window_temperature: float = option(
        3.0, above=0, meaning="temperature of the softmaxes in windows"
    )
    window_rate: float = option(
        0.0,
        low=0,
        meaning="Adam's step in windows over that in whole episodes; 0: their policy stays as "
        "given",
    )
    heat: float = option(
        0.15,
        above=0,
        meaning="first temperature of accepting worse windows, as a share of the value",
    )
    queue: str = option(
        "priority",
        choices=("priority", "fifo"),
        meaning="execution that values episodes; priority: the order SEL chose",
    )
    policy: str = option("", meaning="policy file to start from")
    save_policy: str = option("", meaning="file to write the trained policy to")
    measure: Measure | None = option(
        None,
        meaning="stage III: callable that gives the seconds of devices (and of ranks, if it has a "
        "true `ordered`)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups + self.episodes + self.windows > 1 + 1e-9:
            raise InputError(
                "dual-policy: expected groups + episodes + windows of at most 1, received "
                f"{self.groups} + {self.episodes} + {self.windows}"
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
            learner.first_episode = learner.elite[:]
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
        """Place groups, take steps on whole episodes, then windows, then walk, until the budget is
        spent.
        """
        taught = tracker.value, tracker.solution
        evaluator = BudgetedEvaluator(tracker)
        shared = self.groups + self.episodes + self.windows
        walk = self.measure is None and evaluator.walkable and shared < 1
        if not tracker.stop():
            self._place_groups(evaluator, taught[0], policy.rng)
        ahead = self._place_whole_graphs(policy, tracker, taught[0], walk=walk)
        if (ahead or not walk) and not tracker.stop():
            self._place_windows(policy, tracker, taught, walk=walk)
        if walk and tracker.solution is not None and not tracker.stop():
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
            if (
                seed is not None
                and tracker.value is not None
                and not self.milestones.ahead(tracker.value, seed)
            ):
                return

    def _place_whole_graphs(
        self,
        policy: Any,
        tracker: PlacementTracker,
        seed: int | None,
        *,
        walk: bool,
        patience: int = 2,
    ) -> bool:
        """Learn from whole episodes; return whether one is ahead of the seed's value, and end early
        if none is soon.

        Parameters
        ----------
        walk : whether a walk follows. patience : batches after which a policy that is not ahead of
            its seed leaves the rest of the budget to it.
        """
        ahead, batches = False, 0
        until = self.groups + self.episodes
        if self.windows == 0 and not walk:
            until = 1.0  # nothing comes after them
        while not tracker.stop() and (spent(tracker) < until or not policy.elite):
            if walk and batches == patience and not ahead:
                break
            temperature = self.temperature_now(tracker)
            samples = policy.sample(self.batch_size(tracker), temperature)
            policy.learn(samples, self.value(samples, tracker), temperature)
            best = policy.elite[0][0] if policy.elite else INFEASIBLE
            ahead = seed is None or self.milestones.ahead(best, seed)
            batches += 1
        return ahead

    def _chains(
        self,
        learner: DualLearner,
        tracker: PlacementTracker,
        value: int | None,
        taught: Placement | None,
    ) -> list[Chain]:
        """Return walks from the best own episode and from what groups gave, if that is better.

        Where the teacher is still ahead: from its placement and the first episode.
        """
        problem = tracker.problem
        own = [
            (value, devices[None, :], ranks[None, :])
            for value, devices, ranks in (*learner.elite, *learner.first_episode)
        ]
        if taught is None or value is None or self.milestones.ahead(own[0][0], value):
            starts = own[:1]
            if (
                tracker.solution is not None
                and tracker.value is not None
                and tracker.value < own[0][0]
            ):
                starts.append((tracker.value, *teaching_order(problem, tracker.solution)))
        else:
            starts = [(value, *teaching_order(problem, taught)), own[-1]]
        choice = WindowChoice(problem.num_ops)
        return [self._chain(learner, *start, choice, self.heat) for start in starts]

    def _chain(
        self,
        learner: DualLearner,
        value: int,
        devices: Array,
        ranks: Ints,
        choice: WindowChoice,
        heat: float,
    ) -> Chain:
        rows = Episodes.given(learner.ordered, devices, ranks).rows
        graph = learner.ordered.graph
        return Chain(graph, Incumbent.of(graph, value, rows.device[0], rows.rank[0]), choice, heat)

    def _place_windows(
        self,
        policy: DualLearner,
        tracker: PlacementTracker,
        taught: tuple[int | None, Placement | None],
        *,
        walk: bool,
        cooling: float = 0.01,
        cooler: float = 0.5,
    ) -> None:
        """Place windows, one chain after the other, in their share of the budget; all of it where
        no walk follows.

        Parameters
        ----------
        taught : value and placement before learning, if there were any.
        walk : whether a walk follows.
        cooling : last temperature of accepting worse local steps over the first.
        cooler : temperature of the walk from the best placement over that of the others.
        """
        if self.windows == 0:
            return
        chains = self._chains(policy, tracker, *taught)
        rewriting = DualPolicyModel.heuristic("rewriting")
        learner = DualLearner(policy.ordered, rewriting, self, policy.rng, residual=False)
        until = self.groups + self.episodes + self.windows if walk else 1.0
        began, turn, settled = spent(tracker), 0, False
        while not tracker.stop() and spent(tracker) < until:
            progress = (spent(tracker) - began) / max(1e-9, until - began)
            chains = _going_on(chains, progress, self.milestones, walk=walk)
            if not chains:
                return
            if progress > self.milestones.settled and not settled and tracker.solution is not None:
                value: Any = tracker.value
                best, heat = teaching_order(tracker.problem, tracker.solution), cooler * self.heat
                last = self._chain(learner, value, *best, chains[0].choice, heat)
                chains, settled = [last], True
            chain = chains[turn % len(chains)]
            turn += 1
            windows, choices = chain.windows(
                learner.rng, int(min(self.window_batch, tracker.evaluations_left))
            )
            steps = learner.rewrite(chain.incumbent, windows, self.window_temperature)
            values = self.value(steps, tracker)
            if self.window_rate > 0:
                learner.learn_locally(steps, values, chain.incumbent.value, self.window_temperature)
            chain.move(steps, values, choices, chain.heat * cooling**progress, learner.rng)

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
            for i in np.flatnonzero(values != INFEASIBLE).tolist():
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
    first_episode : the same of the episode before any learning, one or none.
    """

    def __init__(
        self,
        ordered: OrderedProblem,
        first: DualPolicyModel,
        config: Any,
        rng: Generator,
        *,
        residual: bool = True,
        layer_rate: float = 0.2,
    ) -> None:
        k = ordered.problem.num_devices
        self.ordered, self.config, self.rng = ordered, config, rng
        self.first = (
            first.with_hidden(config.hidden, rng) if config.hidden and not first.hidden else first
        )
        self.label = np.zeros(0, np.int64)
        if residual and config.residual:
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
        self.first_episode: list[tuple[int, SmallInts, Ints]] = []
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

    def rewrite(self, incumbent: Incumbent, windows: Flags, temperature: float) -> Episodes:
        """Draw local steps: episodes that place only the ops of their windows."""
        self.episodes += len(windows)
        seeds = draw_seeds(self.rng, len(windows))
        return roll(
            self.ordered, self.weights(temperature), seeds, guide=incumbent.guide, windows=windows
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

    def learn_locally(self, steps: Episodes, values: Ints, now: int, temperature: float) -> None:
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

    def remember(self, episodes: Episodes, values: Ints) -> None:
        """Keep the best episodes of all, each value once."""
        for i in np.argsort(values, kind="stable")[: self.config.memory].tolist():
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
        self._ascend(
            self.gradient(self.weights(self.config.temperature), lesson, advantage, everywhere=True)
        )

    def gradient(
        self, weights: Weights, episodes: Episodes, advantage: Floats, *, everywhere: bool = False
    ) -> dict[str, Floats]:
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
        _, now = score_functions(weights, again, np.zeros(devices.shape))
        per_decision = (now.log_probability - now.log_probability[0]) / devices.shape[1]
        share = np.minimum(1.0, np.exp(per_decision)) * 0.5 ** np.arange(len(devices))
        return self.gradient(
            weights, again, self.config.elite * share / share.sum(), everywhere=True
        )

    def _ascend(self, gradient: dict[str, Floats], share: float = 1.0) -> None:
        frozen = FROZEN[self.config.learn]
        moving = {
            key: slope for key, slope in gradient.items() if key.partition("_")[0] not in frozen
        }
        self.parameters.ascend(moving, share)
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


class WindowChoice:
    """Preferences for kinds and sizes of windows.

    Parameters
    ----------
    rate : step of the preferences. largest : most ops of a window.

    Attributes
    ----------
    preference : of each kind and size; the probability of a choice is proportional to its
    exponential.
    """

    def __init__(self, num_ops: int, rate: float = 0.05, *, largest: int = 128) -> None:
        most = min(largest, max(2, num_ops // 4))
        self.sizes = 2 ** np.arange(int(np.log2(most)) + 1, dtype=np.int64)
        self.rate, self.average = rate, 0.0
        self.preference = np.zeros((len(KINDS), len(self.sizes)))

    def draw(self, rng: Generator, count: int) -> Ints:
        """Return choices: places in the flattened table of preferences."""
        return rng.choice(self.preference.size, size=count, p=self._probability())

    def split(self, choices: Ints) -> tuple[Ints, Ints]:
        """Return the kinds and the sizes of choices."""
        kind, size = np.divmod(choices, len(self.sizes))
        return kind, self.sizes[size]

    def learn(self, choices: Ints, rewards: Floats) -> None:
        """Raise the preference of what was rewarded more than the average so far."""
        flat = self.preference.ravel()
        for choice, reward in together(choices, rewards):
            step = self.rate * (reward - self.average)
            flat -= step * self._probability()
            flat[choice] += step
            self.average += 0.02 * (reward - self.average)

    def _probability(self) -> Floats:
        mass = np.exp(self.preference.ravel() - self.preference.max())
        return mass / mass.sum()


@dataclass(eq=False)
class Chain:
    """A walk of local steps.

    Attributes
    ----------
    incumbent : where the walk is. first, best : value where it began, lowest value that it has met.
    heat : first temperature of Metropolis' rule, as a share of the incumbent's value.
    """

    graph: Graph
    incumbent: Incumbent
    choice: WindowChoice
    heat: float

    def __post_init__(self) -> None:
        self.first = self.best = self.incumbent.value

    def windows(self, rng: Generator, count: int) -> tuple[Flags, Ints]:
        """Return windows, most of which begin at a critical op, and the choices behind them."""
        now = self.incumbent
        choices = self.choice.draw(rng, count)
        kinds, sizes = self.choice.split(choices)
        seeds = rng.choice(len(now.critical), count, p=_pull(now)).astype(np.int64)
        random = rng.integers(0, 2**63, 1, dtype=np.int64).astype(np.uint64)
        return grow_windows(self.graph, now.start, now.finish, seeds, sizes, kinds, random), choices

    def move(
        self, episodes: Episodes, values: Ints, choices: Ints, heat: float, rng: Generator
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
        if values[i] >= now:
            # No step is better: Metropolis' rule for one of those that change something.
            guide = self.incumbent.guide
            moved = rows.rank != np.argsort(guide.order)
            changed = (rows.device != guide.device).any(axis=1) | moved.any(axis=1)
            some = np.flatnonzero(changed & (values != INFEASIBLE))
            if len(some) == 0:
                return
            i = int(some[np.argmin(values[some] + heat * now * rng.gumbel(size=len(some)) * -1)])
            if values[i] > now and rng.random() >= np.exp((now - int(values[i])) / (heat * now)):
                return
        value = int(values[i])
        self.best = min(self.best, value)
        self.incumbent = Incumbent.of(self.graph, value, rows.device[i], rows.rank[i])


def _going_on(
    chains: list[Chain], progress: float, milestones: Milestones, *, walk: bool
) -> list[Chain]:
    """Return the chains that go on; none where the walk that follows does better: it may lead away
    from where windows do not, and begins where the best chain would go on.
    """
    if progress <= milestones.apart:
        return chains
    moved = [chain for chain in chains if milestones.ahead(chain.best, chain.first)]
    if walk and (not moved or progress > milestones.settled):
        return []
    return [min(moved or chains, key=lambda chain: chain.best)]


def _pull(incumbent: Incumbent, *, critical: float = 0.8) -> Floats:
    """Return the probability that a window begins at each op: a `critical` share at critical ops by
    the time they take, the others anywhere.
    """
    length = incumbent.finish - incumbent.start
    share = np.where(incumbent.critical, length + 0.02 * length.max(), 0.0)
    n, total = len(length), share.sum()
    return critical * share / total + (1 - critical) / n if total > 0 else np.full(n, 1 / n)
