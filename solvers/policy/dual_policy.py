"""`dual-policy`: select an op, place it, learn both by policy gradient, starting as a heuristic (Doppler).

After "DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow graphs" (2025), with
log-linear policies instead of graph networks: stage I imitates a heuristic (maximum likelihood, ties share the
credit), stage II is policy gradient on the simulator, stage III on a real system. The policy *starts as* the
heuristic, so what it returns is never worse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.makespan.evaluate import INFEASIBLE, best_queue, evaluate_batch, finish
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.solvers.policy import rollout
from placeopt.solvers.policy.dual_model import SCALINGS, DualPolicyModel, Episodes, Stage, roll, weights_of
from placeopt.solvers.policy.engine import Adam, rank_utilities
from placeopt.solving.registry import make_solver, require_objective
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

MEASURED_BATCH = 8
"""Episodes per gradient step where every one is measured: a real system is a thousand times slower than the simulator."""

STARTS = ("critical-path", "eft", "scratch")
ABLATIONS = ("both", "sel", "plc")


@dataclass(frozen=True)
class DualPolicy:
    """Doppler's dual policy: pick an op, then its device; starts as a heuristic, learns by policy gradient.

    Parameters
    ----------
    start : the policy to begin with: "critical-path", "eft" (HEFT without insertion) or "scratch".
    teacher : registered heuristic that stage I imitates, and whose placement is the first incumbent; "" for none.
    imitation : gradient steps of stage I.
    batch : episodes per policy-gradient step.
    learn : "both" policies, or only "sel" or "plc" (the other one stays greedy).
    residual : learn a score per op and per (op, device) besides the feature weights; better on the graph at
        hand, nothing to transfer.
    groups : number of groups of ops that share their scores per device; 0 for every op on its own. Ops are grouped
        along their most expensive edges: where communication is dear, an op hardly ever does well to move alone.
    learning_rate, residual_rate : Adam's steps for the weights and for the residual.
    temperature, final_temperature : of both softmaxes, at the start and at the end of the budget.
    elite : weight of repeating the best episode so far in every step (self-imitation).
    entropy : strength of keeping the policy random: episodes with more entropy get this much more advantage.
    sel_scaling : whether SEL's features are scaled by the "graph", or over the "candidates" of every decision.
    queue : execution that episodes are valued under: "priority" (the order SEL chose) or "fifo".
    policy : policy file to start from (with its own sel_scaling); `save_policy` : where to write the trained one.
    objective : stage III: callable that measures a placement in seconds instead of simulating it; receives the devices,
        shape (num_ops,), and the ranks too where it has a true attribute `ordered`. Batches have at most 8 episodes then.
    """

    start: str = "critical-path"
    teacher: str = "edge-zeroing"
    imitation: int = 60
    batch: int = 64
    learn: str = "both"
    residual: bool = True
    groups: int = 48
    learning_rate: float = 0.15
    residual_rate: float = 0.25
    temperature: float = 1.0
    final_temperature: float = 0.5
    elite: float = 0.5
    entropy: float = 0.0
    sel_scaling: str = "graph"
    queue: str = "priority"
    policy: str = ""
    save_policy: str = ""
    objective: Callable[..., float] | None = None

    name: ClassVar[str] = "dual-policy"

    def __post_init__(self) -> None:
        choices = {"start": STARTS, "learn": ABLATIONS, "queue": ("priority", "fifo"), "sel_scaling": SCALINGS}
        for key, options in choices.items():
            if getattr(self, key) not in options:
                raise InputError(
                    f"dual-policy: {key} must be one of {', '.join(options)}, received '{getattr(self, key)}'"
                )
        for key in ("learning_rate", "temperature", "final_temperature"):
            if not getattr(self, key) > 0:
                raise InputError(f"dual-policy: {key} must be > 0, received {getattr(self, key)}")
        for key in ("residual_rate", "elite", "entropy", "imitation"):
            if not getattr(self, key) >= 0:
                raise InputError(f"dual-policy: {key} must be >= 0, received {getattr(self, key)}")
        if self.groups < 0:
            raise InputError(f"dual-policy: groups must be at least 0 (0: every op on its own), received {self.groups}")
        if self.batch < 2:
            raise InputError(f"dual-policy: batch must be at least 2, received {self.batch}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Train on `problem` within the budget and return the best placement met."""
        require_objective(self.name, problem, ("makespan",))
        tracker: Tracker[Placement] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        model = self.first_model()
        with tracker:
            stage = Stage.of(problem)
            teacher = self._teacher(tracker, problem, seed)
            if initial is not None:
                value, _ = best_queue(problem, initial)
                if value != INFEASIBLE:
                    tracker.offer(self._value(tracker, problem, initial, value), initial)
                    teacher = initial
            learner = Learner(stage, model, self, np.random.default_rng(seed))
            if not tracker.stop():
                greedy = learner.greedy()
                tracker.count(1)
                learner.credit(tracker, greedy, self._values(problem, greedy))
            if teacher is not None and self.imitation:
                learner.imitate(teacher, self.imitation)
            while not tracker.stop():
                most = self.batch if self.objective is None else min(self.batch, MEASURED_BATCH)
                batch = int(min(most, tracker.evaluations_left))
                learner.step(tracker, batch, self._progress(tracker), self._values)
            model = learner.model(f"{problem.name}: {learner.episodes} episodes, seed {seed}")
        if self.save_policy:
            model.save(self.save_policy)
        if self.objective is not None:
            return tracker.result(message="the objective is the caller's measurement of this placement")
        return finish(tracker)

    def first_model(self) -> DualPolicyModel:
        """Return the policy that training starts from."""
        return (
            DualPolicyModel.load(self.policy) if self.policy else DualPolicyModel.heuristic(self.start, self.sel_scaling)
        )

    def _teacher(self, tracker: Tracker[Placement], problem: PlacementProblem, seed: int) -> Placement | None:
        """Run the teacher heuristic within the budget; its placement is the first incumbent."""
        if not self.teacher or tracker.stop():
            return None
        seconds = None if tracker.budget.seconds is None else 0.5 * tracker.seconds_left
        left = Budget(seconds, tracker.evaluations_left if tracker.budget.evaluations else None)
        result = make_solver(self.teacher).solve(problem, left, seed=seed)
        if self.objective is None:  # simulating is free where the budget counts measurements
            tracker.count(result.evaluations)
        if result.solution is not None and result.objective is not None:
            tracker.offer(self._value(tracker, problem, result.solution, result.objective), result.solution)
        return result.solution

    def _values(self, problem: PlacementProblem, batch: Episodes) -> NDArray[np.int64]:
        if self.queue == "fifo":
            values = evaluate_batch(problem, batch.devices)
        else:
            values = evaluate_batch(problem, batch.devices, batch.ranks, "priority")
        if self.objective is not None:
            for i in np.flatnonzero(values != INFEASIBLE).tolist():
                values[i] = self._measured(problem, batch.devices[i], batch.ranks[i])
        return values

    def _value(self, tracker: Tracker[Placement], problem: PlacementProblem, placement: Placement, simulated: int) -> int:
        """Value of one placement: simulated, or measured where there is an objective."""
        if self.objective is None:
            return simulated
        tracker.count(1)
        return self._measured(problem, placement.device, placement.priority)

    def _measured(self, problem: PlacementProblem, devices: NDArray[Any], ranks: NDArray[np.int64] | None) -> int:
        """Ticks that the objective measures."""
        assert self.objective is not None
        arguments = (devices.astype(np.int64), ranks) if getattr(self.objective, "ordered", False) else (devices.astype(np.int64),)
        seconds = float(self.objective(*arguments))
        return round(seconds / problem.tick_seconds) if math.isfinite(seconds) else int(INFEASIBLE)

    def _progress(self, tracker: Tracker[Placement]) -> float:
        """Share of the budget that is spent, for schedules; by evaluations where those are limited."""
        budget = tracker.budget
        if budget.evaluations is not None:
            return tracker.evaluations / budget.evaluations
        return 0.0 if not budget.seconds else min(1.0, tracker.elapsed / budget.seconds)


class Learner:
    """The parameters of a dual policy on one problem, and how they learn."""

    def __init__(self, stage: Stage, model: DualPolicyModel, config: DualPolicy, rng: np.random.Generator) -> None:
        n, k = stage.arrays.compute.shape
        self.stage, self.config, self.rng = stage, config, rng
        self.first = model
        self.sel, self.plc = np.array(model.sel), np.array(model.plc)
        self.label = residual_groups(stage, config.groups) if config.residual else np.zeros(0, dtype=np.int64)
        self.sel_residual = np.zeros(n if config.residual else 0)
        self.plc_residual = np.zeros((int(self.label.max()) + 1 if config.residual else 0, k))
        self.adam = {
            "sel": Adam(len(self.sel), config.learning_rate), "plc": Adam(len(self.plc), config.learning_rate),
            "sel_residual": Adam(self.sel_residual.size, max(1e-12, config.residual_rate)),
            "plc_residual": Adam(self.plc_residual.size, max(1e-12, config.residual_rate)),
        }  # fmt: skip
        self.best: tuple[int, NDArray[np.int32], NDArray[np.int64]] | None = None
        self.episodes = 0

    def model(self, note: str) -> DualPolicyModel:
        """Return the policy as it is now, without residual."""
        return self.first.trained(self.sel, self.plc, note)

    def _roll(
        self, count: int, mode: int, temperature: float, devices: NDArray[np.int32] | None = None,
        ranks: NDArray[np.int64] | None = None,
    ) -> Episodes:  # fmt: skip
        config = self.config
        weights = weights_of(
            DualPolicyModel(self.sel, self.plc, sel_scaling=self.first.sel_scaling), self.stage.problem.num_devices,
            sel_residual=self.sel_residual if config.residual else None,
            plc_residual=self.plc_residual[self.label] if config.residual else None,
            temperature=temperature, sel_random=config.learn != "plc", plc_random=config.learn != "sel",
        )  # fmt: skip
        seeds = self.rng.integers(0, 2**63, count, dtype=np.int64).astype(np.uint64)
        return roll(self.stage, weights, seeds, mode, devices, ranks)

    def greedy(self) -> Episodes:
        """Return the one episode in which both policies take their best action."""
        return self._roll(1, rollout.GREEDY, 1.0)

    def credit(self, tracker: Tracker[Placement], batch: Episodes, values: NDArray[np.int64]) -> None:
        """Offer the best episode of a batch, and remember the best of all."""
        i = int(values.argmin())
        value = int(values[i])
        if value == INFEASIBLE:
            return
        if self.best is None or value < self.best[0]:
            self.best = (value, batch.devices[i].copy(), batch.ranks[i].copy())
        if tracker.value is None or value < tracker.value:
            tracker.offer(value, Placement(batch.devices[i].astype(np.int64), batch.ranks[i]))

    def imitate(self, teacher: Placement, steps: int) -> None:
        """Stage I: raise the likelihood of the teacher's decisions; all tied actions of critical path count."""
        devices, ranks = teaching_order(self.stage.problem, teacher)
        mode = rollout.REPLAY_TIES if self.config.teacher == "critical-path" else rollout.REPLAY
        for _ in range(steps):
            batch = self._roll(1, mode, self.config.temperature, devices, ranks)
            n = self.stage.problem.num_ops
            self._ascend(batch, np.ones(1) / n)

    def step(self, tracker: Tracker[Placement], count: int, progress: float, values_of: object) -> None:
        """Stage II: one policy-gradient step on `count` episodes (and the best so far, repeated)."""
        config = self.config
        temperature = config.temperature * (config.final_temperature / config.temperature) ** progress
        batch = self._roll(count, rollout.SAMPLE, temperature)
        values = values_of(self.stage.problem, batch)  # type: ignore[operator]
        tracker.count(count)
        self.episodes += count
        self.credit(tracker, batch, values)
        advantage = rank_utilities(values)
        if config.entropy > 0:
            advantage = advantage + config.entropy * (batch.entropy - batch.entropy.mean()) / max(1.0, batch.entropy.std())
        gradient = self._gradient(batch, advantage)
        if config.elite > 0 and self.best is not None:
            again = self._roll(1, rollout.REPLAY, temperature, self.best[1][None, :], self.best[2][None, :])
            repeat = self._gradient(again, np.full(1, config.elite))
            gradient = {key: gradient[key] + repeat[key] for key in gradient}
        self._apply(gradient)

    def _gradient(self, batch: Episodes, advantage: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return sum of advantage times score function, for each group of parameters."""
        found = {"sel": advantage @ batch.sel, "plc": advantage @ batch.plc}
        if self.config.residual:
            found["sel_residual"] = advantage @ batch.sel_residual
            found["plc_residual"] = np.zeros(self.plc_residual.shape)
            np.add.at(found["plc_residual"], self.label, np.tensordot(advantage, batch.plc_residual, axes=1))
        return found

    def _ascend(self, batch: Episodes, advantage: NDArray[np.float64]) -> None:
        self._apply(self._gradient(batch, advantage))

    def _apply(self, gradient: dict[str, NDArray[np.float64]]) -> None:
        frozen = {"sel": ("plc", "plc_residual"), "plc": ("sel", "sel_residual")}.get(self.config.learn, ())
        for key, value in gradient.items():
            if key in frozen:
                continue
            parameter: NDArray[np.float64] = getattr(self, key)
            parameter += self.adam[key].step(value.ravel()).reshape(parameter.shape)


def residual_groups(stage: Stage, count: int) -> NDArray[np.int64]:
    """Return the group of each op, by topological place; the ops of one share their scores per device."""
    from placeopt.solvers.search.space import Space

    space = Space(stage.problem)
    if not 0 < count < space.num_units:
        return np.arange(stage.problem.num_ops)
    return np.asarray(space.groups(count)[space.view.units.unit][stage.order])


def teaching_order(problem: PlacementProblem, placement: Placement) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return (devices, ranks) of a placement as one episode: ranks follow a topological order.

    An op is ranked when it starts if the placement is executed.
    """
    from placeopt.makespan.evaluate import evaluate

    _, queue = best_queue(problem, placement)
    run = evaluate(problem, placement, queue, check=False)
    ordered = Placement.from_starts(placement.device, run.start, problem.topological_order)
    assert ordered.priority is not None
    return placement.device.astype(np.int32)[None, :], ordered.priority[None, :]
