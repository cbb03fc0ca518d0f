"""Planned: a plan with its price, bound, runner-ups and devices, and its JSON."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from placeopt.model.objective import time_text
from placeopt.model.shown import Shown
from placeopt.plans.step_price import StepPrice, step_price

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.result import Result
    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.step_problem import StepPlanProblem


@dataclass(frozen=True, repr=False)
class RunnerUp(Shown):
    """The best plan of another kind, and why it lost.

    Attributes
    ----------
    what : the restriction under which it is the best. reason : where its step is longer.
    """

    what: str
    plan: TrainingPlan | None
    step_seconds: float | None
    reason: str

    def shown(self) -> dict[str, str]:
        """Return the restriction, the step and the reason."""
        return {"with": self.what, "step": time_text(self.step_seconds), "reason": self.reason}

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return vars(self) | {"plan": self.plan.text() if self.plan else None}


@dataclass(frozen=True, eq=False, repr=False)
class Planned(Shown):
    """What `plan` found.

    Attributes
    ----------
    result : plan, value and bound over all plans of the problem. runner_ups : see there.
    """

    problem: StepPlanProblem
    result: Result[TrainingPlan]
    runner_ups: tuple[RunnerUp, ...] = field(default=())

    def shown(self) -> dict[str, str]:
        """Return step, throughput, bound, gap and the plan itself."""
        if self.plan is None:
            return {"of": f"'{self.problem.name}'", "no plan": self.result.message}
        bound = time_text(self.result.lower_bound * self.problem.tick_seconds)
        return {
            "of": f"'{self.problem.name}'",
            "step": f"{time_text(self.step_seconds)} for {self.problem.batch} samples",
            "lower bound": bound,
            "gap": f"{self.result.gap:.2%}",
            "plan": self.plan.text(),
        }

    @property
    def plan(self) -> TrainingPlan | None:
        """The plan, None if nothing fits."""
        return self.result.solution

    @cached_property
    def price(self) -> StepPrice | None:
        """Its price."""
        return None if self.plan is None else step_price(self.problem, self.plan)

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step."""
        return self.result.seconds

    @property
    def throughput(self) -> float | None:
        """Samples per second."""
        return None if self.step_seconds is None else self.problem.batch / self.step_seconds

    @property
    def price_per_hour(self) -> float:
        """Price of the devices that the plan uses."""
        used = {} if self.plan is None else self.plan.devices()
        return sum(pool.price * used.get(pool.kind, 0) for pool in self.problem.pools)

    @property
    def price_per_million(self) -> float | None:
        """Price of a million samples, None without prices."""
        if not self.throughput or not self.price_per_hour:
            return None
        return self.price_per_hour / 3600 / self.throughput * 1e6

    def device_names(self) -> list[list[list[str]]]:
        """Return the devices of every stage and replica by name, `KIND/NUMBER`.

        Stages that share devices repeat their names. Wide replicas come first, so that none spreads
        over two hosts where degrees divide the devices of a host.
        """
        if self.plan is None:
            return []
        replicas = [
            (i, j, group)
            for i, stage in enumerate(self.plan.on_devices)
            for j, group in enumerate(stage.each_replica())
        ]
        names: list[list[list[str]]] = [
            [[] for _ in stage.each_replica()] for stage in self.plan.on_devices
        ]
        free: dict[str, Iterator[int]] = defaultdict(count)
        for i, j, group in sorted(replicas, key=lambda item: -item[2].tensor):
            numbers = islice(free[group.kind], group.tensor)
            names[i][j] = [f"{group.kind}/{number}" for number in numbers]
        return [names[i % len(names)] for i in range(len(self.plan.stages))]

    def to_json(self) -> dict[str, Any]:
        """Return what `placeopt plan --json` prints."""
        tick = self.problem.tick_seconds
        body: dict[str, Any] = {
            "problem": self.problem.name,
            "solver": self.result.solver,
            "status": self.result.status,
            "stop_reason": self.result.stop_reason,
            "step_seconds": self.step_seconds,
            "lower_bound_seconds": self.result.lower_bound * tick,
            "bound_method": self.result.bound_method,
            "gap": self.result.gap,
            "batch": self.problem.batch,
            "throughput": self.throughput,
            "price_per_hour": self.price_per_hour or None,
            "price_per_million_samples": self.price_per_million,
            "runtime": self.result.runtime,
            "message": self.result.message,
            "space": list(self.problem.space),
            "sources": [
                {"what": what, "source": source} for what, source in self.problem.costs.sources
            ],
            "runner_ups": [runner.to_json() for runner in self.runner_ups],
            "stages": [],
        }
        if self.plan is None or self.price is None:
            return body
        names = self.device_names()
        body |= {
            "micro_batch": self.plan.micro_batch,
            "micro_batches": self.price.rounds,
            "schedule": self.plan.schedule,
            "kept": list(self.plan.kept),
            "sharded_states": self.plan.sharded,
        }
        for stage, priced, held in zip(self.plan.stages, self.price.stages, names, strict=True):
            body["stages"].append(
                {
                    "layers": list(stage.layers),
                    "devices": [name for replica in held for name in replica],
                    "data": stage.data,
                    "tensor": stage.replicas[0].tensor,
                    "replicas": [asdict(group) for group in stage.replicas],
                    "recompute": bool(stage.recompute),
                    "compute_seconds": priced.compute * tick,
                    "period_seconds": priced.period * tick,
                    "sync_seconds": priced.sync * tick,
                    "optimizer_seconds": priced.optimizer * tick,
                    "memory_bytes": priced.memory,
                    "in_flight": priced.flight,
                }
            )
        return body
