"""`plan`: how to train a model on some devices with a batch, with a bound over all plans; it
returns a `Planned`: a plan with its price, bound, runner-ups and devices, and its JSON.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.instances.clusters import make_cluster
from placeopt.instances.sources import load_graph, with_costs
from placeopt.model.errors import InputError, check_choice, did_you_mean
from placeopt.model.files import Data
from placeopt.model.objective import time_text
from placeopt.model.query import told, without_none
from placeopt.model.result import Budget, Result
from placeopt.model.shown import Shown
from placeopt.model.sizes import MemoryLimit, device_limits
from placeopt.planning.launch_search import slower_by
from placeopt.plans.layer_tables import read_layer_table
from placeopt.plans.network_table import read_network
from placeopt.plans.predicted_costs import PredictedStepCosts
from placeopt.plans.published_costs import PublishedStepCosts
from placeopt.plans.roofline_tables import roofline_costs
from placeopt.plans.step_price import StepPrice, step_price
from placeopt.plans.step_problem import Pools, StepPlanProblem, parse_pools
from placeopt.plans.step_schedules import parse_schedule
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run, run_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.step_costs import StepCosts
    from placeopt.solving.tracker import OnProgress


SCHEDULES = ("1f1b", "interleaved-1f1b:2", "zb-h1", "repetend")
"""Schedules that are searched unless others are named."""

FORMULAS = ("predicted", "published")

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
"""Those that are tried by roofline, up to the batch."""


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

    def to_json(self) -> Data:
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
    runner_ups: tuple[RunnerUp, ...] = ()

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
        """Samples per second, None without a plan or where a step takes no time."""
        return self.problem.batch / self.step_seconds if self.step_seconds else None

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

    def to_json(self) -> Data:
        """Return what `placeopt plan --json` prints."""
        tick = self.problem.tick_seconds
        body: Data = {
            "problem": self.problem.name,
            **told(self.result, "solver status stop_reason bound_method gap runtime message"),
            "step_seconds": self.step_seconds,
            "lower_bound_seconds": self.result.lower_bound * tick,
            "batch": self.problem.batch,
            "throughput": self.throughput,
            "price_per_hour": self.price_per_hour or None,
            "price_per_million_samples": self.price_per_million,
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


def plan_problem(
    model: Any,
    cluster: str | Pools,
    batch: int,
    *,
    costs: str | Path | None = None,
    formula: str = "predicted",
    precision: str = "bf16",
    memory_limit: MemoryLimit | None = None,
    **space: Any,
) -> StepPlanProblem:
    """Return the problem of training a model.

    Parameters
    ----------
    model : a graph of one sample, or its source (see `placeopt.load`; generators are given
    batch=1); with `costs` the
        name of a model in that folder.
    cluster : a cluster or its name; with a folder as `costs` devices as `32xA100-40+96xV100-16`
    (see `parse_pools`).
    batch : samples of a step.
    costs : folder with layer_times.json, layer_sizes.json and network.json, or a cost file of
    `placeopt profile`, whose
        model's example inputs then are one sample; without it times come from a roofline.
    formula : how a step is priced with `costs`: our prediction, or the published formula.
    precision : of matrix products by roofline.
    memory_limit : bytes of every device ("16GiB"), or one for each pool, instead of the cluster's.
    space : recompute (whether stages may be recomputed, by default True), mixed (whether replicas
    of a stage may be of two
        kinds, by default False), schedules, sharded and forms (see `StepPlanProblem`; by default
        what the cost model knows of `SCHEDULES`, whether it knows sharded states, and what it knows
        of sequence and expert parallelism).

    Raises
    ------
    InputError
        If something is not known.
    """
    check_choice("formula", formula, FORMULAS)
    if costs is not None and not Path(costs).is_file():
        found, pools, name = _by_layer_tables(model, cluster, Path(costs), formula)
    elif formula == "predicted":
        found, pools, name = _by_roofline(model, cluster, batch, costs, precision)
    else:
        raise InputError(f"formula '{formula}' needs a folder of layer tables as costs")
    fields = _space_of(found, formula, space)
    return _within(StepPlanProblem(found, pools, batch, name=name, **fields), memory_limit)


def _by_roofline(
    model: Any, cluster: str | Pools, batch: int, costs: str | Path | None, precision: str
) -> tuple[StepCosts, Pools, str]:
    """Return times by roofline, and those of `placeopt profile` where `costs` is its file; with the
    devices and a name.
    """
    graph, own = load_graph(_one_sample(model) if costs is None else model)
    if isinstance(cluster, tuple):
        raise InputError(
            "cluster: expected the name of a cluster; devices by pools need a folder of layer "
            "tables"
        )
    sizes = tuple(size for size in MICRO_BATCHES if size <= batch)
    devices, said = own or make_cluster(cluster), ""
    if costs is not None:
        graph, how = with_costs(graph, devices, costs)
        said = (
            f"'{Path(costs).name}', {how}; other micro-batches, tensor degrees and backward "
            "passes by roofline"
        )
    found, pools = roofline_costs(graph, devices, sizes, known_times=said, precision=precision)
    return found, pools, f"{graph.name} on {cluster}"


def _by_layer_tables(
    model: Any, cluster: str | Pools, folder: Path, formula: str
) -> tuple[StepCosts, Pools, str]:
    """Return times of a folder of layer tables, as published or predicted from it; with the devices
    and a name.
    """
    table, path = read_layer_table(folder, str(model)), folder / "network.json"
    pools = parse_pools(cluster) if isinstance(cluster, str) else cluster
    zones = tuple(pool.kind.partition("@")[2] for pool in pools if "@" in pool.kind)
    found: StepCosts
    if formula == "published":
        found = PublishedStepCosts(table, read_network(path, raw=True, zones=zones))
    else:
        table = table.monotone().with_sequence()
        found = PredictedStepCosts(table, read_network(path, zones=zones))
    return found, pools, f"{model} on {' + '.join(f'{pool.count} {pool.kind}' for pool in pools)}"


def _within(problem: StepPlanProblem, limit: MemoryLimit | None) -> StepPlanProblem:
    """Return the problem with other limits on the memory of its devices, if there are any."""
    if limit is None:
        return problem
    pools = zip(problem.pools, device_limits(limit, len(problem.pools)), strict=True)
    return problem.replace(pools=tuple(replace(pool, memory=size) for pool, size in pools))


def _space_of(costs: StepCosts, formula: str, space: Data) -> Data:
    """Return the fields of a problem that say which plans there are, as given or by default."""
    known = tuple(
        name
        for name in SCHEDULES
        if costs.splits_backward or not parse_schedule(name).splits_backward
    )
    forms = tuple(costs.table.forms) if isinstance(costs, PredictedStepCosts) else ()
    defaults = {
        "recompute": True,
        "mixed": False,
        "schedules": ("1f1b",) if formula == "published" else known,
        "sharded": costs.shards_states,
        "forms": forms,
    }
    for name in space:
        if name not in defaults:
            raise InputError(
                f"plan: option '{name}' is not known; {did_you_mean(name, list(defaults))}"
            )
    chosen = defaults | without_none(space)
    chosen["recompute"] = chosen["recompute"] and formula == "predicted"
    return chosen


def _one_sample(model: Any) -> Any:
    """Return the source of a generated graph with a batch of one sample; other sources are what
    they are.
    """
    if not isinstance(model, str) or not model.startswith("gen:") or "batch=" in model:
        return model
    single = f"{model}{'&' if '?' in model else '?'}batch=1"
    try:
        load_graph(single)
    except InputError:  # a generator without a batch
        return model
    return single


def plan(
    model: Any,
    cluster: str | Pools,
    batch: int,
    *,
    costs: str | Path | None = None,
    seconds: float = 10.0,
    runner_ups: int = 3,
    memory_limit: MemoryLimit | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Planned:
    """Return the best plan to train a model, its bound over all plans, and runner-ups.

    Parameters
    ----------
    model, cluster, batch, costs, options : see `plan_problem`; a StepPlanProblem as `model` stands
    for all of them.
    seconds : time of the search; runner-ups take up to half as long again.
    runner_ups : how many to look for.
    memory_limit : bytes of every device ("16GiB"), or one for each pool, instead of the cluster's.
    on_progress : called with time, evaluations, incumbent and bound while the search runs.
    """
    problem = (
        model
        if isinstance(model, StepPlanProblem)
        else plan_problem(model, cluster, batch, costs=costs, **options)
    )
    problem = _within(problem, memory_limit)
    result: Result[TrainingPlan] = run(
        problem, make_solver("plan-stages", "plan"), Budget(seconds), on_progress=on_progress
    )
    found: list[RunnerUp] = []
    if result.solution is not None and result.stop_reason != "interrupted":
        with suppress(KeyboardInterrupt):  # the best plan is known
            for what, restricted in _others(problem, result.solution)[:runner_ups]:
                found.append(_runner_up(what, restricted, result, seconds / 2 / max(1, runner_ups)))
    return Planned(problem, result, tuple(found))


def _others(problem: StepPlanProblem, best: TrainingPlan) -> list[tuple[str, StepPlanProblem]]:
    """Return restrictions that rule the best plan out."""
    data, stages = best.stages[0].data, len(best.stages)
    degrees = _without(problem.data_degrees, data)
    sizes = _without(problem.micro_batches, best.micro_batch)
    schedules = _without(problem.schedules, best.schedule) if stages > 1 else ()
    again = any(stage.recompute for stage in best.stages)
    split = any(group.form for stage in best.stages for group in stage.replicas)
    found: list[tuple[object, str, Data]] = [
        (degrees, f"a data degree other than {data}", {"data_degrees": degrees}),
        (sizes, f"a micro-batch other than {best.micro_batch}", {"micro_batches": sizes}),
        (stages > 1, f"fewer than {stages} stages", {"max_stages": stages - 1}),
        (again, "no recomputation", {"recompute": False}),
        (schedules, f"a schedule other than {best.schedule}", {"schedules": schedules}),
        (split, "tensor parallelism alone", {"forms": ()}),
        (best.sharded, "whole optimizer states", {"sharded": False}),
    ]
    return [(what, problem.replace(**changes)) for there_are, what, changes in found if there_are]


def _without(options: tuple[Any, ...], chosen: object) -> tuple[Any, ...]:
    return tuple(option for option in options if option != chosen)


def _runner_up(
    what: str, problem: StepPlanProblem, best: Result[TrainingPlan], seconds: float
) -> RunnerUp:
    """Return the best plan of a problem, found to a hundredth, against the best of all."""
    solver = make_solver("plan-stages", "plan", tolerance=0.01)
    other: Result[TrainingPlan] = run_step(problem, solver, Budget(seconds))
    if other.solution is None or best.solution is None or other.seconds is None:
        return RunnerUp(what, None, None, other.message or "none was found in time")
    mine, theirs = step_price(problem, best.solution), step_price(problem, other.solution)
    return RunnerUp(what, other.solution, other.seconds, _why(mine, theirs))


def _why(mine: StepPrice, theirs: StepPrice) -> str:
    """Say which part of a step is longer."""

    def parts(price: StepPrice) -> dict[str, int]:
        steady = (price.slots - 1) * price.pace
        return {
            "the time between micro-batches": price.slots * price.pace,
            "filling and draining": price.first - price.pace,
            "gradients and optimizer": price.step - steady - price.first,
        }

    return slower_by(parts(mine), parts(theirs), max(1, mine.step), theirs.step)
