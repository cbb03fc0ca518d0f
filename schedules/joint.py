"""Joint choice for a model and a cluster: stages x shape x micro-batch size x recomputation.

Every candidate is cut by the exact period DP (`ideal-dp`), turned into a pipeline problem under the memory that the
weights leave, and scheduled by `repetend`; its value is the time of one step over the whole batch. Candidates are
taken in the order of a lower bound on that time and given up as soon as the bound passes the best step found, so
what is left out is proved not to be better under this cost model.

Shapes: V (fewer stages than devices means replicas, each with its share of the batch, and an all-reduce of the
gradients), wave (two stages per device, down and up), X (both directions, all weights twice), M (the ops with an
outsized share of time or weights, such as embeddings and heads, tensor-parallel on all devices) and K (two
independent branches on half of the devices each, what joins them tensor-parallel).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.cluster import Cluster
from placeopt.errors import InputError
from placeopt.schedules.bounds import makespan_bound
from placeopt.schedules.from_model import ALL, pipeline_of_placement
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.solve import schedule_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placeopt.graph import OpGraph
    from placeopt.problem import PlacementProblem
    from placeopt.schedules.solution import PipelineSchedule

SHAPES = ("V", "wave", "X", "M", "K")
OUTSIZED = 0.05
"""Least share of all time or weights for which an op is spread over all devices in shape M."""


@dataclass(frozen=True)
class Choice:
    """One candidate and what came of it.

    Attributes
    ----------
    samples : samples per micro-batch of the pipeline problem (two model micro-batches for shape X).
    replicas : pipelines that work side by side.
    step_bound, step : seconds of one step over the batch: proven lower bound, and reached (None if not scheduled).
    reason : why it has no step time.
    """

    shape: str
    stages: int
    replicas: int
    micro_batch: int
    recompute: bool
    samples: int = 0
    step_bound: float = 0.0
    step: float | None = None
    reason: str = ""
    sync: float = 0.0  # seconds of the gradient all-reduce
    problem: PipelineProblem | None = field(default=None, repr=False)
    schedule: PipelineSchedule | None = field(default=None, repr=False)

    @property
    def title(self) -> str:
        """Name for people."""
        parts = [f"{self.shape} of {self.stages} stages", f"micro-batch {self.micro_batch}"]
        parts += [f"{self.replicas} replicas"] if self.replicas > 1 else []
        parts += ["recomputation"] if self.recompute else []
        return ", ".join(parts)


@dataclass(frozen=True)
class JointResult:
    """The best choice, the runner-up and why it lost, and all candidates."""

    best: Choice
    runner_up: Choice | None
    why: str
    candidates: tuple[Choice, ...]
    batch: int

    @property
    def throughput(self) -> float:
        """Samples per second of the best choice."""
        return self.batch / self.best.step if self.best.step else 0.0


def choose_pipeline(
    model: str | Callable[[int], OpGraph],
    cluster: Any,
    *,
    batch: int,
    micro_batches: Sequence[int] = (1, 2, 4),
    shapes: Sequence[str] = SHAPES,
    recompute: Sequence[bool] = (False, True),
    stages: Sequence[int] | None = None,
    seconds: float = 10.0,
    dp_seconds: float = 3.0,
    num_workers: int = 2,
    seed: int = 0,
) -> JointResult:
    """Search stages x shape x micro-batch size x recomputation for the best training throughput under memory.

    Parameters
    ----------
    model : a `gen:` source that takes `batch=` and `training=1`, or a function from the micro-batch size to a training
        graph.
    batch : samples per step.
    micro_batches : sizes to try.
    stages : numbers of stages to try for shape V; the divisors of the number of devices by default.
    seconds, dp_seconds : time limits of one schedule and one partition.

    Raises
    ------
    InputError
        If no candidate fits, with the reason of the first.
    """
    from placeopt.instances.clusters import make_cluster

    devices = make_cluster(cluster) if not isinstance(cluster, Cluster) else cluster
    for name in shapes:
        if name not in SHAPES:
            raise InputError(f"shapes: expected some of {', '.join(SHAPES)}, received '{name}'")
    d = devices.num_devices
    counts = [s for s in range(2 if d > 1 else 1, d + 1) if d % s == 0] if stages is None else list(stages)
    candidates: list[Choice] = []
    for size in micro_batches:
        graph = _graph(model, size)
        plans = _plans(graph, devices, shapes, counts, dp_seconds)
        for shape, count, build in plans:
            replicas = d // count
            for again in recompute:
                choice = Choice(shape, count, replicas, size, again)
                candidates.append(_prepare(choice, build, batch, devices, graph))
    ordered = sorted((c for c in candidates if c.problem is not None), key=lambda c: c.step_bound)
    finished = [c for c in candidates if c.problem is None]
    best: Choice | None = None
    for choice in ordered:
        if best is not None and best.step is not None and choice.step_bound >= best.step:
            finished.append(replace(choice, reason=f"its bound of {choice.step_bound:.4g} s per step already loses"))
            continue
        done = _schedule(choice, batch, seconds, num_workers, seed)
        finished.append(done)
        if done.step is not None and (best is None or best.step is None or done.step < best.step):
            best = done
    if best is None:
        raise InputError("no pipeline of this model fits: " + (finished[0].reason if finished else "no candidate"))
    others = [c for c in finished if c is not best and (c.step is not None or c.problem is not None)]
    runner_up = min(others, key=lambda c: (c.step is None, c.step or c.step_bound), default=None)
    return JointResult(best, runner_up, _why(best, runner_up), tuple(finished), batch)


def _graph(model: str | Callable[[int], OpGraph], size: int) -> OpGraph:
    if callable(model):
        return model(size)
    from placeopt.instances.generators import generate

    join = "&" if "?" in model else "?"
    return generate(f"{model}{join}batch={size}&training=1")


Build = Callable[[bool], PipelineProblem]


def _plans(
    graph: OpGraph, cluster: Cluster, shapes: Sequence[str], counts: Sequence[int], seconds: float
) -> list[tuple[str, int, Build]]:
    """Return (shape, stages, function from recompute to problem) of every shape that the model has."""
    d = cluster.num_devices
    plans: list[tuple[str, int, Build]] = []
    if "V" in shapes:
        plans += [("V", s, lambda again, s=s: v_pipeline(graph, cluster, s, seconds, again)) for s in counts]  # type: ignore[misc]
    if "wave" in shapes and d > 1:
        plans.append(("wave", d, lambda again: wave_pipeline(graph, cluster, seconds, again)))
    if "X" in shapes and d > 1 and d % 2 == 0:
        plans.append(("X", d, lambda again: x_pipeline(graph, cluster, seconds, again)))
    if "M" in shapes and d > 1 and outsized_ops(graph).any():
        plans.append(("M", d, lambda again: m_pipeline(graph, cluster, seconds, again)))
    if "K" in shapes and d > 1 and d % 2 == 0 and branches(graph) is not None:
        plans.append(("K", d, lambda again: k_pipeline(graph, cluster, seconds, again)))
    return plans


def _prepare(choice: Choice, build: Build, batch: int, cluster: Cluster, graph: OpGraph) -> Choice:
    """Build the problem and the bound, or say why there is none."""
    samples = choice.micro_batch * (2 if choice.shape == "X" else 1)
    if batch % (samples * choice.replicas):
        return replace(choice, reason=f"the batch of {batch} is no multiple of {samples * choice.replicas} samples")
    try:
        problem = build(choice.recompute)
    except InputError as error:
        return replace(choice, reason=str(error))
    count = batch // (samples * choice.replicas)
    problem = problem.replace(micro_batches=count)
    sync = _sync_seconds(choice.replicas, cluster, graph, choice.stages)
    bound = makespan_bound(problem, count) * problem.tick_seconds + sync
    return replace(choice, samples=samples, problem=problem, step_bound=bound, sync=sync)


def _sync_seconds(replicas: int, cluster: Cluster, graph: OpGraph, stages: int) -> float:
    """Ring all-reduce of a stage's gradients among the replicas, over the slowest link."""
    if replicas == 1:
        return 0.0
    link = min(cluster.links, key=lambda link: link.bandwidth)
    size = 4 * int(graph.parameters.sum()) / stages
    return 2 * (replicas - 1) * (link.latency + size / replicas / link.bandwidth)


def _schedule(choice: Choice, batch: int, seconds: float, num_workers: int, seed: int) -> Choice:
    assert choice.problem is not None
    try:
        result = schedule_result(choice.problem, "repetend", seconds=seconds, num_workers=num_workers, seed=seed)
    except InputError as error:
        return replace(choice, reason=str(error))
    if result.solution is None:
        return replace(choice, reason=result.message)
    step = result.solution.makespan * choice.problem.tick_seconds + choice.sync
    return replace(choice, step=step, schedule=result.solution)


def _why(best: Choice, other: Choice | None) -> str:
    """Say in one sentence why the runner-up lost."""
    if other is None:
        return "no other candidate fits"
    assert best.step is not None
    if other.step is None:
        return f"{other.title}: {other.reason}"
    slower = other.step / best.step - 1
    best_work, other_work = _work_per_sample(best), _work_per_sample(other)
    if other_work > best_work * 1.001:
        cause = f"its busiest device works {other_work / best_work - 1:.1%} more per sample"
    elif other.sync > best.sync:
        cause = f"it spends {1e3 * other.sync:.3g} ms per step on gradients of replicas"
    else:
        cause = f"it idles {_idle(other):.1%} of a step against {_idle(best):.1%}"
    return f"{other.title} is {slower:.1%} slower: {cause}"


def _work_per_sample(choice: Choice) -> float:
    assert choice.problem is not None
    return float(choice.problem.work.max()) / (choice.samples * choice.replicas)


def _idle(choice: Choice) -> float:
    assert choice.schedule is not None
    return min(choice.schedule.bubble_wall)


# --- the shapes ----------------------------------------------------------------------------------------


def _cut(graph: OpGraph, cluster: Cluster, seconds: float) -> tuple[PlacementProblem, NDArray[np.int64]]:
    """Partition a training graph into a chain of stages by the period DP; return problem and devices."""
    from placeopt.api import load, solve

    problem = load(graph, cluster, objective="period")
    result = solve(problem, "ideal-dp", seconds=seconds)
    if result.solution is None:
        raise InputError(f"'{problem.name}' cannot be cut into stages: {result.message or result.status}")
    return problem, result.solution.device


def first_devices(cluster: Cluster, count: int) -> Cluster:
    """Return the first `count` devices of a cluster."""
    keep = slice(0, count)
    return replace(cluster, name=f"{count} of {cluster.name}", devices=cluster.devices[keep],
                   link_class=cluster.link_class[keep, keep], channel=cluster.channel[keep, keep])  # fmt: skip


def v_pipeline(graph: OpGraph, cluster: Cluster, stages: int, seconds: float, again: bool) -> PipelineProblem:
    """One stage per device on the first `stages` devices."""
    problem, device = _cut(graph, first_devices(cluster, stages), seconds)
    return pipeline_of_placement(problem, device, recompute=again)


def wave_pipeline(graph: OpGraph, cluster: Cluster, seconds: float, again: bool) -> PipelineProblem:
    """Two stages per device, down and up again."""
    d = cluster.num_devices
    virtual = Cluster(
        name=f"{cluster.name} twice",
        devices=tuple(replace(device, name=f"{device.name}/{turn}", memory=device.memory // 2)
                      for turn in range(2) for device in cluster.devices),
        links=cluster.links,
        link_class=np.tile(cluster.link_class, (2, 2)),
        channel=np.full((2 * d, 2 * d), -1),
    )  # fmt: skip
    from placeopt.api import load

    _, stage = _cut(graph, virtual, seconds)
    stage = _ranked(graph, stage)
    device = np.where(stage < d, stage, 2 * d - 1 - stage)
    return pipeline_of_placement(load(graph, cluster, objective="period"), device, recompute=again, parts=stage)


def _ranked(graph: OpGraph, stage: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber stages in the order in which forward ops first need them."""
    forward = [v for v in graph.topological_order.tolist() if not graph.backward[v]]
    position = {v: i for i, v in enumerate(forward)}
    names = sorted({int(s) for s in stage})
    middle = {s: float(np.mean([position[v] for v in forward if stage[v] == s] or [1e18])) for s in names}
    order = sorted(names, key=lambda s: middle[s])
    return np.array([order.index(int(s)) for s in stage], dtype=np.int64)


def x_pipeline(graph: OpGraph, cluster: Cluster, seconds: float, again: bool) -> PipelineProblem:
    """Both directions at once: every device holds the weights of two stages."""
    problem, device = _cut(graph, cluster, seconds)
    one = pipeline_of_placement(problem, device, recompute=again)
    d = cluster.num_devices
    held = np.bincount(device, weights=problem.resident.astype(np.float64), minlength=d).astype(np.int64)
    capacity = one.capacity - held[::-1]
    if capacity.min() < 0:
        at = int(capacity.argmin())
        raise InputError(f"'{one.device_names[at]}' cannot hold the weights of two stages: {-int(capacity[at])} bytes short")
    blocks = []
    for tag, flip in (("a", False), ("b", True)):
        for block in one.blocks():
            devices = tuple(d - 1 - x for x in block.devices) if flip else block.devices
            pairs = sorted(zip(devices, block.memory, strict=True))
            after = tuple((f"{name}{tag}", lag) for name, lag in block.after)
            blocks.append(Block(f"{block.name}{tag}", block.kind, tuple(x for x, _ in pairs), block.span,
                                tuple(m for _, m in pairs), after, block.stage))  # fmt: skip
    return PipelineProblem.from_blocks(f"{one.name}, both directions", blocks, one.device_names,
                                       capacity=capacity.tolist(), tick_seconds=one.tick_seconds)  # fmt: skip


def outsized_ops(graph: OpGraph) -> NDArray[np.bool_]:
    """Forward ops with weights, and their backward ops, that hold an outsized share of all time or weights."""
    family = families(graph)
    flops = np.bincount(family, weights=graph.flops.astype(np.float64), minlength=graph.num_ops)
    weights = np.bincount(family, weights=graph.resident.astype(np.float64), minlength=graph.num_ops)
    large = (flops > OUTSIZED * flops.sum()) | (weights > OUTSIZED * weights.sum())
    large &= graph.resident > 0
    chosen = large[family]
    share = flops[np.unique(family[chosen])].sum() / max(1.0, flops.sum())
    # A model whose every op is outsized is small, not unbalanced.
    return chosen if share < 0.5 else np.zeros(graph.num_ops, dtype=np.bool_)


def families(graph: OpGraph) -> NDArray[np.int64]:
    """Forward op that each op belongs to: itself, or the op whose gradient or update it is."""
    index = {name: i for i, name in enumerate(graph.op_names)}
    family = np.arange(graph.num_ops)
    for i in np.flatnonzero(graph.backward).tolist():
        family[i] = index.get(graph.op_names[i].rpartition("/")[0], i)
    return family


def m_pipeline(graph: OpGraph, cluster: Cluster, seconds: float, again: bool) -> PipelineProblem:
    """Outsized ops tensor-parallel on all devices, the rest in a chain."""
    from placeopt.api import load

    spread = outsized_ops(graph)
    rest, kept = subgraph(graph, ~spread)
    _, inner = _cut(rest, _with_less_memory(cluster, int(graph.resident[spread].sum())), seconds)
    device = np.full(graph.num_ops, ALL, dtype=np.int64)
    device[kept] = inner
    return pipeline_of_placement(load(graph, cluster, objective="period"), device, recompute=again)


def k_pipeline(graph: OpGraph, cluster: Cluster, seconds: float, again: bool) -> PipelineProblem:
    """Two branches on half of the devices each, everything else tensor-parallel on all."""
    from placeopt.api import load

    parts = branches(graph)
    if parts is None:
        raise InputError(f"'{graph.name}' has no two independent branches")
    half = cluster.num_devices // 2
    spread = ~(parts[0] | parts[1])
    small = _with_less_memory(first_devices(cluster, half), int(graph.resident[spread].sum()) // 2)
    device = np.full(graph.num_ops, ALL, dtype=np.int64)
    for turn, part in enumerate(parts):
        rest, kept = subgraph(graph, part)
        _, inner = _cut(rest, small, seconds)
        device[kept] = inner + turn * half
    return pipeline_of_placement(load(graph, cluster, objective="period"), device, recompute=again)


def _with_less_memory(cluster: Cluster, spread: int) -> Cluster:
    """Set aside each device's share of `spread` bytes."""
    share = -(-spread // cluster.num_devices)
    return replace(cluster, devices=tuple(replace(x, memory=max(0, x.memory - share)) for x in cluster.devices))


def branches(graph: OpGraph) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
    """Return the ops of the two largest top-level layers that do not depend on each other, or None.

    Each must do at least a tenth of all work.
    """
    top = np.array([name.split("/")[0] for name in graph.layer])
    total = max(1, int(graph.flops.sum()))
    large = [name for name in sorted(set(top.tolist()) - {""}) if graph.flops[top == name].sum() * 10 >= total]
    large.sort(key=lambda name: (-int(graph.flops[top == name].sum()), name))
    reach = {name: _descendants(graph, (top == name) & ~graph.backward) for name in large}
    for i, a in enumerate(large):
        for b in large[i + 1 :]:
            forward = ~graph.backward
            if not (reach[a] & (top == b) & forward).any() and not (reach[b] & (top == a) & forward).any():
                return top == a, top == b
    return None


def _descendants(graph: OpGraph, start: NDArray[np.bool_]) -> NDArray[np.bool_]:
    reached = start.copy()
    after: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for u, v in graph.edges.tolist():
        after[u].append(v)
    for v in graph.topological_order.tolist():
        if reached[v]:
            reached[after[v]] = True
    return reached


def subgraph(graph: OpGraph, keep: NDArray[np.bool_]) -> tuple[OpGraph, NDArray[np.int64]]:
    """Return the graph of some ops, and their indices; tensors to and from the others are dropped."""
    from placeopt.graph import OpGraph as Graph

    kept = np.flatnonzero(keep)
    new = np.full(graph.num_ops, -1, dtype=np.int64)
    new[kept] = np.arange(len(kept))
    tensors = []
    columns = []
    for t in range(graph.num_tensors):
        if new[graph.producer[t]] < 0:
            continue
        readers = [int(new[c]) for c in graph.consumer[graph.consumer_ptr[t] : graph.consumer_ptr[t + 1]] if new[c] >= 0]
        tensors.append((int(new[graph.producer[t]]), int(graph.tensor_bytes[t]), readers))
        columns.append(t)
    cut = Graph.from_tensors(
        graph.name, [graph.op_names[i] for i in kept], tensors,
        op_types=tuple(graph.op_types[i] for i in kept), layer=tuple(graph.layer[i] for i in kept),
        flops=graph.flops[kept], bytes_moved=graph.bytes_moved[kept], resident=graph.resident[kept],
        parameters=graph.parameters[kept], colocation=graph.colocation[kept], backward=graph.backward[kept],
        measured_kinds=graph.measured_kinds, measured=graph.measured[kept],
        measured_transfer=graph.measured_transfer[columns], tick_seconds=graph.tick_seconds,
    )  # fmt: skip
    return cut, kept
