"""Splits into stages: every chain of stages with every choice of devices, valued by definition. The
oracle uses no placeopt.
"""

from __future__ import annotations

import random
from itertools import combinations

import compare
from case import NO_LIMIT, draw

import placeopt as po
from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of
from placeopt.splits.problem import Split, SplitProblem, SplitStage


def draw_split(rng):
    """Return (case, max_replicas, groups, overlap, sync, uplink): accelerators mostly alike, and
    syncs of ops of no time.
    """
    case = draw(rng, "period")
    while case.num_ops > 4 or case.num_devices > 8:
        case = draw(rng, "period")
    case.pipeline, case.contiguity = "1f1b", "chain"
    k, alike = rng.choice([1, 2, 3, 4]), rng.random() < 0.7
    if alike and case.num_ops < 4 and rng.random() < 0.2:
        k = 6  # groups of two and three devices
    if alike:
        case.compute = [[max(row)] * k for row in case.compute]
        case.io_class = [rng.choice([0, 0, 0, -1])] * k
        case.capacity = [rng.choice([NO_LIMIT, rng.randint(0, sum(case.resident) + 1)])] * k
    else:
        k = case.num_devices
    divisors = [h for h in range(1, k + 1) if k % h == 0]
    groups = rng.choice(divisors) if alike and rng.random() < 0.4 else 1
    if groups > 1 and rng.random() < 0.3:  # another one, of a type that groups leave out
        k += 1
        case.compute = [[*row, row[0] + 1] for row in case.compute]
        case.io_class, case.capacity = [*case.io_class, case.io_class[0]], [*case.capacity, 9]
    case.link_class, case.channel = [[0] * k for _ in range(k)], [[-1] * k for _ in range(k)]
    sync = [rng.choice([0, 0, rng.randint(1, 20)]) for _ in range(case.num_ops)]
    uplink = [rng.randint(0, 9) for _ in case.producer]
    return case, rng.choice([1, 2, 3]), groups, rng.random() < 0.4, sync, uplink


def type_of(case, d):
    """What tells a device from others: its times, its costs of transfers, and its capacity."""
    io = [0 if case.io_class[d] < 0 else row[case.io_class[d]] for row in case.transfer]
    return [row[d] for row in case.compute], io, case.capacity[d], case.io_class[d] < 0


def used(case, groups):
    """Number of the devices, the first ones, that a split may use: with groups those of one type."""
    every = range(case.num_devices)
    return sum(groups == 1 or type_of(case, d) == type_of(case, 0) for d in every)


def order_of(case):
    """Pairs of ops (before, after) of a chain: forward edges, and edges of backward classes without
    a forward op, turned.
    """
    import brute_force

    return brute_force.order_pairs(case)


def stage_lists(n):
    """Yield every assignment of n ops to the stages 0, 1, ... of which none is empty."""

    def extend(prefix):
        if len(prefix) == n:
            count = 1 + max(prefix)
            if set(prefix) == set(range(count)):
                yield tuple(prefix)
            return
        for stage in range(n):
            yield from extend([*prefix, stage])

    return extend([])


def value(case, groups, overlap, sync, uplink, max_replicas, stages, devices):
    """Return the period of a split, None where it breaks a rule; `stages` is a stage per op,
    `devices` a tuple per stage.
    """
    size = used(case, groups) // groups
    flat = [d for part in devices for d in part]
    if len(set(flat)) < len(flat) or max(flat) >= used(case, groups):
        return None
    for u, v in order_of(case):
        if stages[u] > stages[v]:
            return None
    home = {}
    for v, group in enumerate(case.colocation):
        if group >= 0 and home.setdefault(group, stages[v]) != stages[v]:
            return None
    for at, part in enumerate(devices):
        ops = [v for v in range(case.num_ops) if stages[v] == at]
        if not 0 < len(part) <= max_replicas or len({d // size for d in part}) > 1:
            return None
        if any(type_of(case, d) != type_of(case, part[0]) for d in part):
            return None
        if any(case.compute[v][d] < 0 for v in ops for d in part):
            return None
        if any(sum(case.resident[v] for v in ops) > case.capacity[d] for d in part):
            return None
    group_of = [part[0] // size for part in devices]
    if group_of != sorted(group_of):
        return None
    loads = [0] * groups
    for t, u in enumerate(case.producer):
        touched = {group_of[stages[v]] for v in (u, *case.consumers[t])}
        if len(touched) > 1:
            for g in touched:
                loads[g] += uplink[t]
    for at, part in enumerate(devices):
        r, d = len(part), part[0]
        work = sum(case.compute[v][d] for v in range(case.num_ops) if stages[v] == at)
        moved = 0
        for t, u in enumerate(case.producer):
            here = {stages[v] == at for v in (u, *case.consumers[t])}
            if len(here) == 2 and case.io_class[d] >= 0:
                moved += case.transfer[t][case.io_class[d]]
        weights = sum(sync[v] for v in range(case.num_ops) if stages[v] == at)
        ring = -(-2 * (r - 1) * weights // r)
        if overlap:
            loads.append(max(-(-work // r), -(-moved // r) + ring))
        else:
            loads.append(-(-(work + moved) // r) + ring)
    return max(loads)


def device_lists(case, groups, max_replicas, count):
    """Yield every choice of disjoint devices for `count` stages; of devices that are alike in a
    group the first free ones.
    """
    size = used(case, groups) // groups
    kinds = {}
    for d in range(used(case, groups)):
        kinds.setdefault(str((type_of(case, d), d // size)), []).append(d)

    def extend(chosen, free):
        if len(chosen) == count:
            yield tuple(chosen)
            return
        for name, devices in free.items():
            for r in range(1, min(max_replicas, len(devices)) + 1):
                yield from extend([*chosen, tuple(devices[:r])], {**free, name: devices[r:]})

    return extend([], kinds)


def best_split(case, max_replicas, groups, overlap, sync, uplink):
    """Return the least period over all splits, None if there is none."""
    best = None
    for stages in stage_lists(case.num_ops):
        count = 1 + max(stages)
        if count > used(case, groups) or any(stages[u] > stages[v] for u, v in order_of(case)):
            continue
        for devices in device_lists(case, groups, max_replicas, count):
            found = value(case, groups, overlap, sync, uplink, max_replicas, stages, devices)
            if found is not None and (best is None or found < best):
                best = found
    return best


def attack(seed):
    """Return (whether a split exists, every difference)."""
    rng = random.Random(seed)
    case, max_replicas, groups, overlap, sync, uplink = draw_split(rng)
    best = best_split(case, max_replicas, groups, overlap, sync, uplink)
    try:
        problem = SplitProblem(
            compare.problem_of(case), max_replicas, groups, overlap, sync, uplink
        )
    except InputError:
        return best is not None, [] if best is None else [
            f"refused as input, brute force has {best}"
        ]
    objective, found = objective_of(problem), []
    report = objective.bounds(problem, 10.0)
    for name, bound in report.bounds.items():
        if best is not None and bound > best:
            found.append(f"bound {name} {bound} exceeds the optimum {best}")
    if report.infeasible and best is not None:
        found.append(f"called infeasible, brute force has {best}")
    for _ in range(3):  # the evaluator and the judge
        n = rng.randint(1, case.num_ops)
        stages = [rng.randrange(n) for _ in range(case.num_ops)]
        stages = [sorted(set(stages)).index(at) for at in stages]
        pool = [part for r in (1, 2) for part in combinations(range(case.num_devices), r)]
        devices = [rng.choice(pool) for _ in range(1 + max(stages))]
        parts = [
            SplitStage(tuple(v for v in range(case.num_ops) if stages[v] == at), part)
            for at, part in enumerate(devices)
        ]
        said = objective.finish(problem, Split(tuple(parts)))
        true = value(case, groups, overlap, sync, uplink, max_replicas, stages, devices)
        if said.value != true:
            found.append(
                f"value of {stages} {devices}: {said.value} ({said.violations}), brute force {true}"
            )
    if rng.random() < 0.3:
        options = {"max_ideals": rng.choice([0, 0, 1, 4])}
        result = po.solve(problem, "split-ideals", evaluations=8, seed=0, **options)
        if best is not None and result.lower_bound > best:
            found.append(
                f"split-ideals {options} proves {result.lower_bound}, the optimum is {best}"
            )
        if result.status == "optimal" and result.value != best:
            found.append(
                f"split-ideals {options} calls {result.value} optimal, the optimum is {best}"
            )
        if result.status == "infeasible" and best is not None:
            found.append(f"split-ideals {options} says infeasible, brute force has {best}")
    return best is not None, found
