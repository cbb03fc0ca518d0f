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
weights, which do not learn, places a window of ops around a critical op anew, the others stay (see
`local_steps`). What is left is a `walk`: annealing (see `search.annealing`), where transfers do not
contend. Where whole episodes only repeat what the seed gave, the walk has their rest and the
windows' part, too. The first two parts learn by gradient, the others are search: what each is
worth is measured in results/policy.

References
----------
- X. Yao et al. DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow graphs.
  ICLR 2026.
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement
  learning. Machine Learning 8, 1992.
- Y. Gao, L. Chen, B. Li. Post: Device placement with cross-entropy minimization and proximal policy
  optimization. NeurIPS 2018.
- X. Chen, Y. Tian. Learning to perform local rewriting for combinatorial optimization. NeurIPS
  2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.makespan.evaluate import evaluate_batch
from placeopt.model.errors import InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.solvers.policy.dual_learner import FROZEN, DualLearner, teaching_order
from placeopt.solvers.policy.dual_policy_file import DualPolicyModel
from placeopt.solvers.policy.episodes import Episodes, OrderedProblem
from placeopt.solvers.policy.guides import Incumbent
from placeopt.solvers.policy.learned_placer import LearnedPlacer, Samples, spent
from placeopt.solvers.policy.local_steps import Chain, WindowChoice
from placeopt.solvers.search.annealing import anneal
from placeopt.solvers.search.cross_entropy import Post
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

STARTS = ("critical-path", "eft", "scratch")
"""What whole episodes may begin as."""

MEASURED_BATCH = 8
"""Episodes per gradient step where every one is measured: a real system is a thousand times slower
than the simulator."""

WINDOW_RATE = 0.05
"""Step of the preferences for kinds and sizes of windows."""

COOLING = 0.01
"""Last temperature of accepting worse local steps over the first."""

COOLER = 0.5
"""Temperature of the windows' walk from the best placement over that of the others."""

APART = 0.6
"""Part of the local steps after which the best chain goes on alone."""

STUCK = 0.002
"""Part of the value by which a chain must be below where it began by then, and whole episodes below
the seed, to go on where the walk may follow."""

PATIENCE = 2
"""Batches of whole episodes after which a policy that is not ahead of its seed leaves the rest of
the budget to the walk."""

SETTLED = 0.85
"""Part after which it goes on from the best placement met, or the walk does."""


@dataclass(frozen=True)
class DualPolicy(LearnedPlacer):
    """Doppler's dual policy: pick an op, then its device; starts as a heuristic, learns by policy
    gradient.

    The teacher is what stage I imitates. Ops are grouped along their most expensive edges, because
    where communication is dear an op hardly ever does well to move alone; the ops of a group share
    their residual scores.
    """

    name: ClassVar[str] = "dual-policy"

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
    measure: Callable[..., float] | None = option(
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

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Train on `problem` within the budget, offering the best placement met."""
        learner = self.begin(problem, tracker)
        try:
            self.improve(learner, problem, tracker)
        finally:  # also after Ctrl-C
            if self.save_policy:
                learner.model(
                    f"{problem.name}: {learner.episodes} episodes, seed {tracker.seed}"
                ).save(self.save_policy)

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

    def improve(self, policy: Any, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Place groups, take steps on whole episodes, then windows, then walk, until the budget is
        spent.
        """
        taught = tracker.value, tracker.solution
        evaluator = BudgetedEvaluator(tracker)
        walk = self.measure is None and evaluator.walkable
        walk = walk and self.groups + self.episodes + self.windows < 1
        if self.groups > 0 and self.measure is None and not tracker.stop():
            self._place_groups(evaluator, taught[0], policy.rng)
        ahead = self._place_whole_graphs(
            policy, problem, tracker, taught[0], PATIENCE if walk else None
        )
        if self.windows > 0 and not tracker.stop() and (ahead or not walk):
            rewriter = DualLearner(
                policy.ordered,
                DualPolicyModel.heuristic("rewriting"),
                self,
                policy.rng,
                residual=False,
            )
            until = self.groups + self.episodes + self.windows if walk else 1.0
            self._place_windows(
                rewriter, self._chains(policy, problem, tracker, *taught), problem, tracker, until
            )
        if walk and tracker.solution is not None and not tracker.stop():
            anneal(evaluator, [tracker.solution], policy.rng)

    def _place_groups(
        self, evaluator: BudgetedEvaluator, seed: int | None, rng: np.random.Generator
    ) -> None:
        """Learn where groups go, and end at half of the share if nothing is ahead of the seed's
        value by then.
        """
        tracker = evaluator.tracker
        search, share = Post().sampling(evaluator, tracker.solution, rng), self.groups / 2
        evaluations, seconds = int(tracker.evaluations_left * share), tracker.seconds_left * share
        for _ in range(2):
            search.run(evaluations, tracker.elapsed + seconds)
            if (
                seed is not None
                and tracker.value is not None
                and tracker.value >= (1 - STUCK) * seed
            ):
                return

    def _place_whole_graphs(
        self,
        policy: Any,
        problem: PlacementProblem,
        tracker: Tracker[Placement],
        seed: int | None,
        patience: int | None,
    ) -> bool:
        """Learn from whole episodes; return whether one is ahead of the seed's value, and end early
        if none is soon.
        """
        ahead, batches = False, 0
        until = self.groups + self.episodes
        if self.windows == 0 and patience is None:
            until = 1.0  # nothing comes after them
        while not tracker.stop() and (spent(tracker) < until or not policy.elite):
            if batches == patience and not ahead:
                break
            temperature = self.temperature * (self.final_temperature / self.temperature) ** spent(
                tracker
            )
            samples = policy.sample(self.batch_size(tracker), temperature)
            policy.learn(samples, self.value(samples, problem, tracker), temperature)
            ahead, batches = seed is None or policy.elite[0][0] < (1 - STUCK) * seed, batches + 1
        return ahead

    def _chains(
        self,
        learner: DualLearner,
        problem: PlacementProblem,
        tracker: Tracker[Placement],
        value: int | None,
        taught: Placement | None,
    ) -> list[Chain]:
        """Return walks from the best own episode and from what groups gave, if that is better.

        Where the teacher is still ahead: from its placement and the first episode.
        """
        own = [
            (value, devices[None, :], ranks[None, :])
            for value, devices, ranks in (*learner.elite, *learner.first_episode)
        ]
        if taught is None or value is None or own[0][0] < (1 - STUCK) * value:
            starts = own[:1]
            if (
                tracker.solution is not None
                and tracker.value is not None
                and tracker.value < own[0][0]
            ):
                starts.append((tracker.value, *teaching_order(problem, tracker.solution)))
        else:
            starts = [(value, *teaching_order(problem, taught)), own[-1]]
        choice = WindowChoice(problem.num_ops, WINDOW_RATE)
        return [self._chain(learner, *start, choice) for start in starts]

    def _chain(
        self,
        learner: DualLearner,
        value: int,
        devices: NDArray[Any],
        ranks: NDArray[np.int64],
        choice: WindowChoice,
    ) -> Chain:
        rows = Episodes.given(learner.ordered, devices, ranks).rows
        graph = learner.ordered.graph
        return Chain(
            graph, Incumbent.of(graph, value, rows.device[0], rows.rank[0]), choice, self.heat
        )

    def _place_windows(
        self,
        learner: DualLearner,
        chains: list[Chain],
        problem: PlacementProblem,
        tracker: Tracker[Placement],
        until: float,
    ) -> None:
        """Place windows, one chain after the other, until a share of the budget is spent."""
        began, turn, settling = spent(tracker), 0, False
        while not tracker.stop() and spent(tracker) < until:
            progress = (spent(tracker) - began) / max(1e-9, until - began)
            if progress > APART:
                moved = [chain for chain in chains if chain.best < (1 - STUCK) * chain.first]
                if not moved and until < 1:
                    return  # the walk may lead away from where windows do not
                chains = [min(moved or chains, key=lambda chain: chain.best)]
            if progress > SETTLED and until < 1:
                return  # the walk begins where the best chain would go on
            if (
                progress > SETTLED
                and not settling
                and tracker.solution is not None
                and tracker.value is not None
            ):
                best, settling = (tracker.value, *teaching_order(problem, tracker.solution)), True
                chains = [self._chain(learner, *best, chains[0].choice)]
                chains[0].heat *= COOLER
            chain = chains[turn % len(chains)]
            turn += 1
            windows, choices = chain.windows(
                learner.rng, int(min(self.window_batch, tracker.evaluations_left))
            )
            steps = learner.rewrite(chain.incumbent, windows, self.window_temperature)
            values = self.value(steps, problem, tracker)
            if self.window_rate > 0:
                learner.learn_locally(steps, values, chain.incumbent.value, self.window_temperature)
            chain.move(steps, values, choices, chain.heat * COOLING**progress, learner.rng)

    def batch_size(self, tracker: Tracker[Placement]) -> int:
        """Episodes of the next step, fewer where each is measured."""
        most = self.batch if self.measure is None else min(self.batch, MEASURED_BATCH)
        return int(min(most, tracker.evaluations_left))

    def values(self, problem: PlacementProblem, samples: Samples) -> NDArray[np.int64]:
        """Return the ticks of every episode: simulated, or measured where there is a callable."""
        devices, ranks = samples.devices, samples.ranks
        if self.queue == "fifo":
            values = evaluate_batch(problem, devices)
        else:
            values = evaluate_batch(problem, devices, ranks, "priority")
        if self.measure is not None:
            for i in np.flatnonzero(values != INFEASIBLE).tolist():
                values[i] = self._measured(problem, devices[i], ranks[i])
        return values

    def _teacher(self, tracker: Tracker[Placement]) -> Placement | None:
        """Return the teacher's placement, offered; simulating is free where the budget counts
        measurements.
        """
        result = self.ask_teacher(tracker, adopt=self.measure is None)
        if result is None or result.solution is None:
            return None
        if self.measure is not None:
            self._offer_measured(tracker, result.solution)
        return result.solution

    def _offer_measured(self, tracker: Tracker[Placement], placement: Placement) -> None:
        tracker.count()
        tracker.offer(
            self._measured(tracker.problem, placement.device, placement.priority), placement
        )

    def _measured(
        self, problem: PlacementProblem, devices: NDArray[Any], ranks: NDArray[np.int64] | None
    ) -> int:
        """Ticks that the callable measures."""
        measure: Any = self.measure
        own = devices.astype(np.int64)
        seconds = float(measure(own, ranks) if getattr(measure, "ordered", False) else measure(own))
        return round(seconds / problem.tick_seconds) if math.isfinite(seconds) else int(INFEASIBLE)
