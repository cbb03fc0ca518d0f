"""Independent judges of plans, in plain Python: layer by layer under the published cost model per
sample, and from the numbers per layer under a cost model of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.model.arrays import Ints, together
from placeopt.plans.step_costs import Load
from placeopt.plans.step_problem import StepPlanProblem, shared_counts

if TYPE_CHECKING:
    from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
    from placeopt.plans.sample_problem import SamplePlanProblem


def judge_sample_plan(problem: SamplePlanProblem, plan: TrainingPlan) -> list[str]:
    """Return every violation of a plan in words."""
    wrong = _sample_layers(problem, plan)
    for i, stage in enumerate(plan.stages):
        wrong += [f"stage {i}: {words}" for words in _degrees(problem, stage)]
    if wrong:
        return wrong
    wrong = [*_totals(problem, plan), *_order(problem, plan)]
    for i in range(len(plan.stages)):
        used, flight = _sample_memory(problem, plan, i)
        if used > problem.capacity:
            wrong.append(
                f"stage {i} needs {used / problem.units_per_byte:.0f} bytes with {flight} "
                "micro-batches in "
                f"flight, a device has {problem.capacity / problem.units_per_byte:.0f}"
            )
    return wrong


def _totals(problem: SamplePlanProblem, plan: TrainingPlan) -> list[str]:
    wrong, groups = [], [stage.replicas[0] for stage in plan.stages]
    devices = sum(group.count * group.tensor for group in groups)
    if devices > problem.devices:
        wrong.append(f"the stages use {devices} devices, there are {problem.devices}")
    total = sum(group.count for group in groups)
    if total > problem.samples:
        wrong.append(
            f"the data degrees sum to {total}, more than the {problem.samples} samples of a step"
        )
    return wrong


def _order(problem: SamplePlanProblem, plan: TrainingPlan) -> list[str]:
    stage_of = {layer: i for i, stage in enumerate(plan.stages) for layer in stage.layers}
    return [
        f"layer {v} in stage {stage_of[v]} needs layer {u}, which is in the later stage "
        f"{stage_of[u]}"
        for u, v in together(problem.source, problem.target)
        if stage_of[u] > stage_of[v]
    ]


def _sample_layers(problem: SamplePlanProblem, plan: TrainingPlan) -> list[str]:
    seen: dict[int, int] = {}
    wrong = []
    for i, stage in enumerate(plan.stages):
        if not stage.layers:
            wrong.append(f"stage {i} has no layers")
        for layer in stage.layers:
            if not 0 <= layer < problem.num_layers:
                wrong.append(f"stage {i} has the layer {layer}, there are {problem.num_layers}")
            elif layer in seen:
                wrong.append(f"layer {layer} is in the stages {seen[layer]} and {i}")
            seen[layer] = i
    lacking = [layer for layer in range(problem.num_layers) if layer not in seen]
    return wrong + ([f"no stage has the layers {lacking}"] if lacking else [])


def _degrees(problem: SamplePlanProblem, stage: PlanStage) -> list[str]:
    if len(stage.replicas) != 1:
        return [f"expected one group of equal replicas, received {len(stage.replicas)}"]
    group, wrong = stage.replicas[0], []
    if problem.samples % group.count:
        wrong.append(
            f"the data degree {group.count} does not divide the {problem.samples} samples of a step"
        )
    if group.tensor not in problem.tensor_degrees:
        return [
            *wrong,
            f"the tensor degree {group.tensor} is none of {list(problem.tensor_degrees)}",
        ]
    t = problem.tensor_degrees.index(group.tensor)
    wrong += [
        f"layer {layer} is recomputed, but not in the stage"
        for layer in stage.recompute
        if layer not in stage.layers
    ]
    if stage.recompute and not problem.allow_recompute:
        wrong.append("layers are recomputed, which is not allowed")
    return wrong + [
        f"layer {layer} has no such choice at tensor degree {group.tensor}"
        for layer in stage.layers
        if 0 <= layer < problem.num_layers
        and problem.work[t, int(layer in stage.recompute), layer] < 0
    ]


def _sample_memory(problem: SamplePlanProblem, plan: TrainingPlan, i: int) -> tuple[int, int]:
    """Return the units that a device of stage i uses, and its micro-batches in flight."""
    group = plan.stages[i].replicas[0]
    after = sum(stage.replicas[0].count for stage in plan.stages[i:])
    flight = (after + group.count - 1) // group.count
    t, used = problem.tensor_degrees.index(group.tensor), 0
    for layer in plan.stages[i].layers:
        r = 1 if layer in plan.stages[i].recompute else 0
        used += int(problem.kept[t, r, layer]) * flight + int(problem.fixed[t, r, layer])
    return used, flight


def judge_step_plan(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    """Return every violation of a plan in words."""
    wrong = [*_layers(problem, plan), *_sizes(problem, plan), *_schedule(problem, plan)]
    if len(plan.stages) > problem.max_stages:
        wrong.append(f"{len(plan.stages)} stages, at most {problem.max_stages} are allowed")
    for i, stage in enumerate(plan.stages):
        wrong += [f"stage {i}: {words}" for words in _replicas(problem, stage)]
    if wrong:
        return wrong
    wrong += _devices(problem, plan)
    for i in range(len(plan.stages)):
        wrong += [f"stage {i}: {words}" for words in _memory(problem, plan, i)]
    return wrong


def _sizes(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    wrong, degrees = [], {stage.data for stage in plan.stages}
    if plan.micro_batch not in problem.micro_batches:
        wrong.append(f"micro-batch {plan.micro_batch} is none of {list(problem.micro_batches)}")
    if len(degrees) != 1 or not degrees <= set(problem.data_degrees):
        wrong.append(f"expected one of the data degrees in every stage, received {sorted(degrees)}")
    return wrong


def _schedule(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    if (plan.schedule == "repetend") != (len(plan.kept) > 0):
        return [f"schedule {plan.schedule} with {len(plan.kept)} numbers of micro-batches kept"]
    if plan.schedule not in problem.schedules:
        return [f"schedule {plan.schedule} is none of {', '.join(problem.schedules)}"]
    if not plan.stages:
        return ["the plan has no stages"]
    wrong = []
    if plan.sharded and not problem.sharded:
        wrong.append("the optimizer states are sharded, which is not allowed")
    if _chunks(plan) > 1:
        wrong += _interleaved(problem, plan)
    if plan.kept:
        wrong += _kept_numbers(plan)
    if plan.schedule.startswith("zb"):
        wrong += _zero_bubble(problem, plan)
    return wrong


def _interleaved(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    wrong, count, rounds = [], len(plan.stages), _rounds(problem, plan)
    ranks, rest = divmod(count, _chunks(plan))
    if rest or ranks < 2 or rounds % ranks:
        wrong.append(
            f"{count} stages and {rounds} micro-batches: expected {_chunks(plan)} stages on each "
            "of at least 2 devices, and micro-batches a multiple of these"
        )
    if any(stage.replicas != plan.stages[0].replicas for stage in plan.stages):
        wrong.append("interleaved stages: expected like replicas of all")
    return wrong


def _kept_numbers(plan: TrainingPlan) -> list[str]:
    kept, count = list(plan.kept), len(plan.stages)
    if len(kept) == count and min(kept) > 0 and kept == sorted(kept, reverse=True):
        return []
    return [
        f"{count} stages keep {kept} micro-batches: expected one number each, none above the one "
        "before"
    ]


def _zero_bubble(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    count, rounds = len(plan.stages), _rounds(problem, plan)
    if count > 1 and rounds >= max(_kept(plan, i) for i in range(count)):
        return []
    return [f"{rounds} micro-batches are too few for {plan.schedule} on {count} stages"]


def _chunks(plan: TrainingPlan) -> int:
    return int(plan.schedule.split(":")[1]) if plan.schedule.startswith("interleaved") else 1


def _rounds(problem: StepPlanProblem, plan: TrainingPlan) -> int:
    """Micro-batches per replica, 0 where the plan has no sizes."""
    samples = plan.micro_batch * sum(group.count for group in plan.stages[0].replicas)
    return -(-problem.batch // samples) if samples > 0 else 0


def _kept(plan: TrainingPlan, i: int) -> int:
    """Micro-batches kept by a stage of a schedule with one stage per device, however many there
    are.
    """
    count = len(plan.stages)
    return {"1f1b": count - i, "zb-h1": count, "zb-h2": 2 * count - 1}[plan.schedule]


def _flight(problem: StepPlanProblem, plan: TrainingPlan, i: int) -> int:
    """Most micro-batches kept by a stage; interleaved, by going through the passes of its device
    one by one, of three rounds of all devices: later ones repeat what the third does.
    """
    rounds, chunks = _rounds(problem, plan), _chunks(plan)
    if plan.kept:
        return min(rounds, plan.kept[i])
    if chunks == 1:
        return min(rounds, _kept(plan, i))
    ranks = len(plan.stages) // chunks
    turns = min(3, rounds // ranks)
    forward = [stage for _ in range(turns) for stage in range(chunks) for _ in range(ranks)]
    backward = [chunks - 1 - stage for stage in forward]
    early = min(len(forward), 2 * (ranks - 1 - i % ranks) + (chunks - 1) * ranks)
    held = most = 0
    for at in range(len(forward) + early):
        held += at < len(forward) and forward[at] == i // ranks
        most = max(most, held)
        held -= at >= early and backward[at - early] == i // ranks
    return most


def judged_step(problem: StepPlanProblem, plan: TrainingPlan) -> int:
    """Return the ticks of a step of a plan without violations, from the model's numbers."""
    costs, count, chunks = problem.costs, len(plan.stages), _chunks(plan)
    rounds = _rounds(problem, plan)
    periods, passes, first_pass, syncs, updates = [], [], 0, [], []
    links: list[int] = []
    for i, stage in enumerate(plan.stages):
        compute, filling = _compute(problem, plan, i)
        period, load = compute, _load(problem, plan, i)
        first_pass += (filling + chunks - 1) // chunks
        if i > 0:
            shares = costs.link_shares(*_sent(problem, plan, i), i == 1, i == count - 1, count)
            links[-1] += shares.fill_behind
            period += shares.period_behind
            first_pass += (shares.fill_behind + chunks - 1) // chunks
        if i < count - 1:
            shares = costs.link_shares(*_sent(problem, plan, i + 1), i == 0, i == count - 2, count)
            period += shares.period_before
            first_pass += (shares.fill_before + chunks - 1) // chunks
            links.append(shares.fill_before)
        passes.append(compute)
        periods.append(period)
        syncs.append(chunks * costs.sync_ticks(load, stage.replicas))
        updates.append(chunks * max(costs.optimizer_ticks(load, group) for group in stage.replicas))
    closing = max(x + y for x, y in zip(syncs, updates, strict=True))
    if costs.closing_apart:
        closing = max(syncs) + max(updates)
    if plan.kept:
        pace, first_pass = _repetend(periods, passes, links, plan.kept)
        return pace * (rounds - 1) + first_pass + closing
    if plan.schedule.startswith("zb"):
        first_pass = max(first_pass, *periods)
    return max(periods) * (rounds * chunks - 1) + first_pass + closing


def _compute(problem: StepPlanProblem, plan: TrainingPlan, i: int) -> tuple[int, int]:
    """Return the ticks of a stage's passes, and those of them before the next stage's first one, on
    its slowest replica.
    """
    costs, stage, ticks, filling = problem.costs, plan.stages[i], [], []
    parts = {"zb-h1": 2, "zb-h2": 3}.get(plan.schedule, 0)
    for group in stage.replicas:
        row = costs.layer_ticks(
            group.kind, group.tensor, plan.micro_batch, len(stage.recompute) > 0, group.form
        )
        ticks.append(_sum_of(row, stage))
        saved = 0
        if parts and i < len(plan.stages) - 1:
            weights = costs.weight_ticks(group.kind, group.tensor, plan.micro_batch, group.form)
            saved = parts * _sum_of(weights, stage)
        filling.append(ticks[-1] - min(saved, ticks[-1]))
    return max(ticks), max(filling)


def _repetend(
    periods: list[int], passes: list[int], links: list[int], kept: tuple[int, ...]
) -> tuple[int, int]:
    """Return the least period in which stages can keep so many micro-batches, by halving, and the
    first micro-batch's time.
    """
    low, high = 0, max(1, sum(periods) + sum(passes) + sum(links))
    while high - low > 1:
        middle = (low + high) // 2
        if _waits(periods, passes, links, kept, middle):
            high = middle
        else:
            low = middle
    return high, _waits(periods, passes, links, kept, high)[0] + passes[0]


def _waits(
    periods: list[int], passes: list[int], links: list[int], kept: tuple[int, ...], pace: int
) -> list[int]:
    """Return each stage's wait between forward and backward pass, stage by stage from the last;
    nothing if one is too long.
    """
    found: list[int] = []
    for i in range(len(periods) - 1, -1, -1):
        after = found[0] + passes[i + 1] + links[i] if found else 0
        found.insert(0, max(after, pace * (kept[i] - 1)))
        if found[0] + periods[i] > pace * kept[i]:
            return []
    return found


def _sum_of(row: Ints | None, stage: PlanStage) -> int:
    return 0 if row is None else sum(int(row[v]) for v in stage.layers)


def _sent(problem: StepPlanProblem, plan: TrainingPlan, i: int) -> tuple[int, int]:
    """Ticks either way of the slowest pair of replicas of stages i - 1 and i with the same
    number.
    """
    ends = [
        [(group.kind, group.tensor) for group in stage.replicas for _ in range(group.count)]
        for stage in plan.stages[i - 1 : i + 1]
    ]
    found = [
        problem.costs.send_ticks(plan.stages[i].layers[0], plan.micro_batch, a, b)
        for a, b in set(zip(*ends, strict=True))
    ]
    return max(forward for forward, _ in found), max(backward for _, backward in found)


def _load(problem: StepPlanProblem, plan: TrainingPlan, i: int) -> Load:
    stage = plan.stages[i]
    shards = sum(group.count for group in stage.replicas) if plan.sharded else 1
    return Load(
        min(stage.layers),
        max(stage.layers) + 1,
        plan.micro_batch,
        _flight(problem, plan, i),
        len(stage.recompute) > 0,
        _chunks(plan),
        shards,
    )


def _layers(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    found = [layer for stage in plan.stages for layer in stage.layers]
    if any(not stage.layers for stage in plan.stages) or found != list(
        range(problem.costs.num_layers)
    ):
        return [
            f"expected stages of consecutive layers 0 .. {problem.costs.num_layers - 1}, received "
            f"{found}"
        ]
    return []


def _replicas(problem: StepPlanProblem, stage: PlanStage) -> list[str]:
    wrong = _kinds(problem, stage)
    if stage.recompute and (not problem.recompute or set(stage.recompute) != set(stage.layers)):
        wrong.append(
            "expected all layers of a stage or none to be recomputed"
            if problem.recompute
            else "layers are recomputed, which is not allowed"
        )
    return wrong + [words for group in stage.replicas for words in _group(problem, stage, group)]


def _kinds(problem: StepPlanProblem, stage: PlanStage) -> list[str]:
    wrong, kinds = [], [group.kind for group in stage.replicas]
    if len(set(kinds)) < len(kinds) or len(kinds) > (2 if problem.mixed else 1):
        wrong.append(
            f"replicas of {', '.join(kinds)}: expected one kind"
            + (" or two unlike ones" * problem.mixed)
        )
    if len(kinds) == 2 and stage.replicas[0].count not in shared_counts(stage.data):
        wrong.append(
            f"{stage.replicas[0].count} of {stage.data} replicas on '{kinds[0]}': expected a share "
            "of quarters"
        )
    if len(kinds) == 2 and kinds == [p.kind for p in problem.pools if p.kind in kinds][::-1]:
        wrong.append(f"replicas on '{kinds[0]}' before '{kinds[1]}': expected the devices' order")
    return wrong


def _group(problem: StepPlanProblem, stage: PlanStage, group: ReplicaGroup) -> list[str]:
    """Return the first violation of a group of replicas."""
    known = {pool.kind: pool for pool in problem.pools}
    if group.kind not in known:
        return [f"there are no devices '{group.kind}'"]
    degrees = problem.degrees(known[group.kind])
    if group.tensor not in degrees:
        return [f"tensor degree {group.tensor} on '{group.kind}' is none of {list(degrees)}"]
    forms = problem.costs.forms(group.kind, group.tensor)
    if group.form not in forms or group.form not in ("", *problem.forms):
        return [
            f"{group.tensor} devices '{group.kind}' do not split layers by "
            f"{group.form or 'tensor parallelism'}"
        ]
    if group.form and len(stage.replicas) > 1:
        return [f"replicas of two kinds: expected tensor parallelism, received {group.form}"]
    return []


def _devices(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    used: dict[str, int] = {}
    for stage in plan.stages[: len(plan.stages) // _chunks(plan)]:
        for group in stage.replicas:
            used[group.kind] = used.get(group.kind, 0) + group.tensor * group.count
    return [
        f"{used[pool.kind]} devices of '{pool.kind}' are used, there are {pool.count}"
        for pool in problem.pools
        if used.get(pool.kind, 0) > pool.count
    ]


def _memory(problem: StepPlanProblem, plan: TrainingPlan, i: int) -> list[str]:
    stage, load, wrong = plan.stages[i], _load(problem, plan, i), []
    for group in stage.replicas:
        times = problem.costs.layer_ticks(
            group.kind, group.tensor, plan.micro_batch, load.recompute, group.form
        )
        if times is None:
            wrong.append(
                f"no times of '{group.kind}' at degree {group.tensor} and micro-batch "
                f"{plan.micro_batch}"
            )
            continue
        needed, there = problem.costs.memory_bytes(load, group), problem.pool(group.kind).memory
        if needed > there:
            wrong.append(
                f"{needed} bytes on '{group.kind}' with {load.flight} micro-batches in flight, a "
                f"device has {there}"
            )
    return wrong
