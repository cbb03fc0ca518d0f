"""Joint choice for a model and a cluster: stages x shape x micro-batch size x recomputation.

Every candidate is cut by the period DP (`placeopt.schedules.cuts`), turned into a pipeline problem
under the memory that the weights leave, and scheduled by `repetend` and whichever known schedules
fit it; its value is the time of one step over the whole batch, gradients of replicas summed.
Candidates are taken in the order of a lower bound on that time and given up as soon as the bound
passes the second best step found, so that the runner-up is one.

Two bounds are told apart. That of a candidate holds for its cut, and the cut is the best that the
DP found in its time: another may be better. The bound of the choice holds for every cut, shape,
number of stages and replicas, recomputation and schedule of the micro-batch sizes that were tried:
all the work of a step, shared equally by all devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from placeopt.instances.clusters import make_cluster
from placeopt.instances.sources import limited, load, load_graph
from placeopt.model.cluster import Cluster
from placeopt.model.errors import InputError, Refused
from placeopt.model.files import Data
from placeopt.model.graph import OpGraph
from placeopt.model.objective import time_text
from placeopt.model.query import told
from placeopt.model.result import Result
from placeopt.model.shown import Shown
from placeopt.schedules.bounds import makespan_bound
from placeopt.schedules.cuts import SHAPES, Cut, ModelCut, cut_model, first_devices, with_passes
from placeopt.schedules.from_model import least_work
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.shapes import check_mode
from placeopt.schedules.solution import PipelineSchedule
from placeopt.schedules.solve import schedule_result

KNOWN = ("1f1b", "gpipe", "chimera", "hanayo")
"""Schedules that are tried beside `repetend` where they fit the shape."""


@dataclass(frozen=True)
class JointOptions:
    """What to choose from, and how long.

    Attributes
    ----------
    batch : samples per step.
    mode : "train", or "infer" for forward passes only.
    micro_batches : sizes to try, in samples.
    stages : numbers of stages to try; every divisor of the number of devices by default. Shapes
    other than V are tried
        with at most 4 replicas.
    solvers : what schedules a candidate; the shortest step wins, the first of equals. Those made
    for other shapes are
        passed over.
    memory : bytes per device instead of the cluster's.
    seconds, dp_seconds : time limits of one schedule and one cut.
    """

    batch: int = 64
    mode: str = "train"
    micro_batches: Sequence[int] = (1, 2, 4)
    shapes: Sequence[str] = SHAPES
    stages: Sequence[int] | None = None
    recompute: Sequence[bool] = (False, True)
    solvers: Sequence[str] = ("repetend", *KNOWN)
    memory: int | None = None
    seconds: float = 10.0
    dp_seconds: float = 5.0
    num_workers: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or not self.micro_batches or min(self.micro_batches) < 1:
            raise InputError(
                f"batch, micro_batches: expected at least 1, received {self.batch} and "
                f"{list(self.micro_batches)}"
            )
        check_mode(self.mode)
        if self.stages is not None and min(self.stages, default=1) < 1:
            raise InputError(f"stages: expected at least 1, received {list(self.stages)}")
        if not self.solvers:
            raise InputError("solvers: expected at least one, received none")
        for name in self.shapes:
            if name not in SHAPES:
                raise InputError(f"shapes: expected some of {', '.join(SHAPES)}, received '{name}'")


@dataclass(frozen=True, eq=False)
class Choice:
    """One candidate and what came of it.

    Attributes
    ----------
    samples : samples per micro-batch of the pipeline problem (two model micro-batches for shape X).
    replicas : pipelines that work side by side.
    step : seconds of one step over the batch that was reached, None if not scheduled.
    cut_bound : seconds; no schedule of this cut has a shorter step.
    sync : seconds of `step` that the sum of the gradients takes.
    reason : why it has no step time.
    cut : where the ops go, on the devices of the first replica; of the best choice only.
    """

    shape: str
    stages: int
    micro_batch: int
    recompute: bool
    replicas: int = 1
    samples: int = 0
    cut_bound: float = 0.0
    step: float | None = None
    sync: float = 0.0
    reason: str = ""
    problem: PipelineProblem | None = field(default=None, repr=False)
    result: Result[PipelineSchedule] | None = field(default=None, repr=False)
    cut: ModelCut | None = field(default=None, repr=False)

    @property
    def title(self) -> str:
        """Name for people."""
        parts = [f"{self.shape} of {self.stages} stage{'s' if self.stages > 1 else ''}"]
        parts += [f"{self.replicas} replicas"] if self.replicas > 1 else []
        parts += [f"micro-batch {self.micro_batch}"]
        parts += ["recomputation"] if self.recompute else []
        return ", ".join(parts)

    @property
    def schedule(self) -> PipelineSchedule | None:
        """The schedule of one replica, if it has one."""
        return None if self.result is None else self.result.solution

    def to_json(self) -> Data:
        """Return what a table of candidates shows."""
        return {
            **told(self, "title shape stages replicas micro_batch recompute reason"),
            "solver": self.result.solver if self.result else None,
            "step_seconds": self.step,
            "cut_bound_seconds": self.cut_bound or None,
            "sync_seconds": self.sync,
        }


@dataclass(frozen=True, eq=False, repr=False)
class JointResult(Shown):
    """The best choice, the runner-up and why it lost, and all candidates, best first.

    Attributes
    ----------
    step_bound : seconds; no cut, shape, number of stages and replicas, recomputation or schedule of
    the micro-batch sizes
        tried has a shorter step.
    cut_bound : seconds; no schedule of the cuts that were tried has a shorter step. Other cuts may.
    """

    best: Choice
    runner_up: Choice | None
    why: str
    candidates: tuple[Choice, ...]
    batch: int
    step_bound: float
    cut_bound: float

    def shown(self) -> dict[str, str]:
        """Return the step of the best choice, its throughput, and what any other could save."""
        return {
            "of": f"{len(self.candidates)} candidates",
            "step": f"{time_text(self.best.step)} for {self.batch} samples",
            "gap": f"{self.gap:.2%}",
            "runner-up": self.why,
        }

    @property
    def throughput(self) -> float:
        """Samples per second of the best choice."""
        return self.batch / self.best.step if self.best.step else 0.0

    @property
    def gap(self) -> float:
        """Share of the best step that any other choice could save at most."""
        return 1 - self.step_bound / self.best.step if self.best.step else 1.0

    @property
    def gap_of_cuts(self) -> float:
        """Share of the best step that a better schedule of the cuts that were tried could save at
        most.
        """
        return 1 - self.cut_bound / self.best.step if self.best.step else 1.0

    def to_json(self) -> Data:
        """Return the object that `placeopt schedule --joint` prints."""
        return {
            "best": self.best.to_json(),
            "runner_up": None if self.runner_up is None else self.runner_up.to_json(),
            **told(self, "why batch throughput gap gap_of_cuts"),
            "step_bound_seconds": self.step_bound,
            "cut_bound_seconds": self.cut_bound,
            "candidates": [choice.to_json() for choice in self.candidates],
        }


Cuts = dict[tuple[str, int, int], Any]
"""(shape, stages, micro-batch size) -> Cut or the InputError in its place; ("graph", 0, size) ->
OpGraph, ("read", 0, size) -> the graph without the backward ops that were derived."""


def choose_pipeline(
    model: Any,
    cluster: Any,
    options: JointOptions | None = None,
    *,
    cuts: Cuts | None = None,
    **settings: Any,
) -> JointResult:
    """Search stages x shape x micro-batch size x recomputation for the best throughput under
    memory.

    Parameters
    ----------
    model : a `gen:` source that takes `batch=`, or a function from the micro-batch size to a graph;
    any other source
        of `placeopt.load` is one micro-batch as it is, and one sample. The backward graph is
        derived if it is missing.
    settings : fields of `JointOptions`, such as `batch=64`.
    cuts : an empty dictionary to share between calls that differ in schedules only (same model,
    cluster, memory and
        mode): each cut is made once.

    Raises
    ------
    InputError
        If an option is not understood, or no candidate fits; with the reason of the first.
    """
    try:
        chosen = replace(options or JointOptions(), **settings)
    except TypeError as error:
        raise InputError(
            f"choose_pipeline: {error}; options: {', '.join(JointOptions.__dataclass_fields__)}"
        ) from error
    devices = cluster if isinstance(cluster, Cluster) else make_cluster(cluster)
    if chosen.memory is not None:
        devices = limited(devices, chosen.memory)
    search = _Search(model, devices, chosen, {} if cuts is None else cuts)
    scales = callable(model) or str(model).startswith("gen:")
    for size, shape in itertools.product(chosen.micro_batches if scales else [1], chosen.shapes):
        for count in _stage_counts(shape, devices.num_devices, chosen.stages):
            search.add(shape, count, size)
    return search.run()


def _stage_counts(shape: str, d: int, stages: Sequence[int] | None) -> list[int]:
    """Return the numbers of stages to try for a shape: by default, those that divide the devices;
    shapes but V need two and no more than four devices each.
    """
    counts = [s for s in range(1, d + 1) if d % s == 0] if stages is None else list(stages)
    return counts if shape == "V" else [s for s in counts if s > 1 and 4 * s >= d]


def _graph(model: Any, size: int) -> OpGraph:
    """Return the graph of one micro-batch of `size` samples."""
    if callable(model):
        return model(size)  # type: ignore[no-any-return]
    if str(model).startswith("gen:"):
        text = str(model)
        return load_graph(f"{text}{'&' if '?' in text else '?'}batch={size}")[0]
    return load_graph(model)[0]


@dataclass(eq=False)
class _Search:
    """Collects candidates, then schedules them in the order of their bounds."""

    model: Any
    cluster: Cluster
    options: JointOptions
    cuts: Cuts

    def __post_init__(self) -> None:
        self.waiting: list[Choice] = []
        self.finished: list[Choice] = []
        self.interrupted = False
        self.work: dict[
            int, float
        ] = {}  # micro-batch size -> seconds of a step that all devices work at least

    def graph(self, size: int) -> OpGraph:
        """Return the graph of a micro-batch of `size` samples, with the passes of every op
        joined.
        """
        key = ("graph", 0, size)
        if key not in self.cuts:
            graph = self.cuts["read", 0, size] = _graph(self.model, size)
            self.cuts[key] = with_passes(graph, self.options.mode)
        return self.cuts[key]  # type: ignore[no-any-return]

    def cut(self, shape: str, stages: int, size: int) -> Cut:
        """Return the cut, or raise why there is none."""
        key = (shape, stages, size)
        if key not in self.cuts:
            try:
                self.cuts[key] = cut_model(
                    shape,
                    stages,
                    self.graph(size),
                    self.cluster,
                    self.options.mode,
                    self.options.dp_seconds,
                )
            except InputError as error:
                self.cuts[key] = error
        if isinstance(self.cuts[key], InputError):
            raise self.cuts[key]
        return self.cuts[key]  # type: ignore[no-any-return]

    def add(self, shape: str, stages: int, size: int) -> None:
        """Cut the graph for one shape; a candidate with and one without recomputation comes of
        it.
        """
        if size not in self.work:
            self.work[size] = self._work(size)
        again = tuple(self.options.recompute) if self.options.mode == "train" else (False,)
        replicas = max(1, self.cluster.num_devices // max(1, stages))
        choices = [Choice(shape, stages, size, recompute, replicas) for recompute in again]
        samples = size * (2 if shape == "X" else 1)
        if self.options.batch % (samples * replicas):
            reason = (
                f"the batch of {self.options.batch} is no multiple of {samples * replicas} samples"
            )
            self.finished.append(replace(choices[0], reason=reason))
            return
        try:
            cut = self.cut(shape, stages, size)
        except InputError as error:
            self.finished.append(replace(choices[0], reason=str(error)))
            return
        for choice in choices:
            self._prepare(replace(choice, samples=samples, sync=cut.sync), cut)

    def _work(self, size: int) -> float:
        """Seconds that a step takes at least, however the model is cut and scheduled."""
        placed = load(self.graph(size), self.cluster, objective="period")
        ticks = least_work(placed, self.options.mode) * self.options.batch / size
        return ticks / self.cluster.num_devices * placed.tick_seconds

    def _prepare(self, choice: Choice, cut: Cut) -> None:
        """Build the problem and the bound on a step, or say why there is none."""
        count = self.options.batch // (choice.samples * choice.replicas)
        try:
            problem = cut.problem(mode=self.options.mode, recompute=choice.recompute).replace(
                micro_batches=count
            )
        except InputError as error:
            self.finished.append(replace(choice, reason=str(error)))
            return
        bound = makespan_bound(problem, count) * problem.tick_seconds + choice.sync
        self.waiting.append(replace(choice, problem=problem, cut_bound=bound))

    def run(self) -> JointResult:
        """Schedule what may still win or come second."""
        done: list[Choice] = []
        skipped: list[Choice] = []
        for choice in sorted(self.waiting, key=lambda choice: choice.cut_bound):
            needless = self._needless(choice, done)
            if needless:
                skipped.append(replace(choice, reason=needless))
                continue
            tried = self._schedule(choice)
            (done if tried.step is not None else self.finished).append(tried)
        if not done:
            why = self.finished[0].reason if self.finished else "there is no candidate"
            raise InputError(f"no pipeline of this model fits: {why}")
        done.sort(key=lambda choice: choice.step or 0.0)
        best = done[0] = replace(done[0], cut=self._told(done[0]))
        runner_up = done[1] if len(done) > 1 else None
        return JointResult(
            best,
            runner_up,
            _why(best, runner_up, self.finished),
            (*done, *skipped, *self.finished),
            self.options.batch,
            step_bound=min(self.work.values()),
            cut_bound=min(choice.cut_bound for choice in (*done, *skipped)),
        )

    def _needless(self, choice: Choice, done: Sequence[Choice]) -> str:
        """Say why a candidate is not scheduled, "" if it may still win or come second."""
        if self.interrupted:
            return "interrupted before its turn"
        steps = sorted(other.step for other in done if other.step is not None)
        if len(steps) > 1 and choice.cut_bound >= steps[1]:
            return (
                f"no schedule of its cut takes less than {1e3 * choice.cut_bound:.4g} ms "
                "per step: it has lost"
            )
        return ""

    def _told(self, choice: Choice) -> ModelCut:
        """Return the cut of a choice, with the graph as it was read."""
        cut = self.cut(choice.shape, choice.stages, choice.micro_batch)
        graph = self.cuts["read", 0, choice.micro_batch]
        return ModelCut(
            cut, load(graph, first_devices(self.cluster, choice.stages), objective="period")
        )

    def _schedule(self, choice: Choice) -> Choice:
        """Schedule one candidate with every solver that fits it, until one reaches the bound."""
        assert choice.problem is not None
        best: Result[PipelineSchedule] | None = None
        shortest = math.inf
        reasons: list[str] = []
        goal = makespan_bound(choice.problem, choice.problem.micro_batches)
        for name in self.options.solvers:
            try:
                result = self._run(choice.problem, name)
            except Refused as error:
                reasons.append(str(error))
                continue
            if result.solution is None:
                reasons.append(result.message)
            elif result.solution.makespan < shortest:
                best, shortest = result, result.solution.makespan
            self.interrupted = result.stop_reason == "interrupted"
            if self.interrupted or shortest <= goal:
                break
        if best is None:
            return replace(choice, reason=reasons[0])
        step = shortest * choice.problem.tick_seconds + choice.sync
        return replace(choice, step=step, result=best)

    def _run(self, problem: PipelineProblem, name: str) -> Result[PipelineSchedule]:
        settings: Data = {}
        if name in ("repetend", "time-optimal"):
            settings["num_workers"] = self.options.num_workers
        if name == "repetend":
            settings["latency_seconds"] = min(2.0, self.options.seconds / 5)
        seconds, seed = self.options.seconds, self.options.seed
        return schedule_result(problem, name, seconds=seconds, seed=seed, **settings)


def _why(best: Choice, other: Choice | None, unfit: Sequence[Choice]) -> str:
    """Say in one sentence why the runner-up lost."""
    if other is None:
        return "no other candidate fits" + (
            f"; {unfit[0].title}: {unfit[0].reason}" if unfit else ""
        )
    assert best.step is not None
    assert other.step is not None
    slower = f"{other.title} is {other.step / best.step - 1:.2%} slower per step"
    parts = {
        "its busiest device works {:.2%} of a step more": _work(other) - _work(best),
        "filling, draining and waiting cost {:.2%} of a step more": _idle(other) - _idle(best),
        "summing gradients takes {:.2%} of a step more": other.sync - best.sync,
    }
    text, seconds = max(parts.items(), key=lambda part: part[1])
    if seconds <= 0:
        return f"{other.title} is as fast; the first found is kept"
    words = text.format(seconds / best.step)
    if "waiting" in text and _memory_binds(other):
        words += ", since memory limits the micro-batches in flight"
    return f"{slower}: {words}"


def _work(choice: Choice) -> float:
    """Seconds of a step in which the busiest device works."""
    problem = choice.problem
    assert problem is not None
    return int(problem.work.max()) * problem.micro_batches * problem.tick_seconds


def _idle(choice: Choice) -> float:
    """Seconds of a step in which the busiest device idles."""
    assert choice.step is not None
    return choice.step - choice.sync - _work(choice)


def _memory_binds(choice: Choice) -> bool:
    """Whether memory alone keeps the period above the load of the busiest device."""
    problem, schedule = choice.problem, choice.schedule
    assert problem is not None
    busiest = problem.work.max()
    return schedule is not None and schedule.period > busiest and bool(problem.limited.any())
