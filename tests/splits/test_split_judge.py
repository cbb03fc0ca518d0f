"""The judge of splits and the quick bounds against the definition, on random splits with and without
something wrong.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from placeopt.io.serialize import to_dict
from placeopt.model.errors import InputError
from placeopt.model.problem import PlacementProblem
from placeopt.splits.judge import judged_period, split_violations
from placeopt.splits.objective import NEVER, area_bound, op_bound, usable_ticks
from placeopt.splits.problem import Split, SplitProblem, SplitStage

sys.path.insert(0, str(Path(__file__).parent))
from every_split import _Case, draw


def random_split(rng, problem):
    """Return a split into consecutive ops, or any, on devices of a kind, or any."""
    n, k = problem.placement.num_ops, problem.placement.num_devices
    order = list(range(n)) if rng.random() < 0.8 else rng.sample(range(n), n)
    if rng.random() < 0.1:
        order.append(rng.choice([-1, n, rng.randrange(n)]))
    cuts = sorted(rng.sample(range(len(order) + 1), min(len(order), rng.choice([0, 1, 1, 2]))))
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    parts = [part for part in parts if part or rng.random() < 0.1]
    if rng.random() < 0.1 and parts[0]:
        parts[0].pop()
    free = list(range(k)) if rng.random() < 0.6 else rng.sample(range(k), k)
    if rng.random() < 0.1:
        free.insert(0, rng.choice([-1, k, rng.randrange(k)]))
    stages = []
    for part in parts:
        take = rng.choice([1, 1, 2, 3]) if rng.random() < 0.95 else 0
        stages.append(SplitStage(tuple(part), tuple(free[:take])))
        free = free[take:]
    return Split(tuple(stages))


def right(problem, case, split):
    """Whether a split is valid, and its period if it is."""
    stages = split.stages
    ops = [v for stage in stages for v in stage.ops]
    devices = [d for stage in stages for d in stage.devices]
    if sorted(ops) != list(range(case.n)) or len(set(devices)) < len(devices):
        return None
    if not all(stage.ops and stage.devices for stage in stages):
        return None
    pool = {d: key for key, members in case.pools.items() for d in members}
    if not set(devices) <= set(pool):
        return None
    keys = [{pool[d] for d in stage.devices} for stage in stages]
    if any(len(key) > 1 for key in keys):
        return None
    choice = [(key.pop(), len(stage.devices)) for key, stage in zip(keys, stages, strict=True)]
    if any(r > problem.max_replicas for _, r in choice):
        return None
    if any(a[0][0] > b[0][0] for a, b in pairwise(choice)):
        return None
    for stage in stages:
        for d in stage.devices:
            if any(case.compute[v][d] < 0 for v in stage.ops):
                return None
            if sum(case.resident[v] for v in stage.ops) > case.capacity[d]:
                return None
    place = {v: at for at, stage in enumerate(stages) for v in stage.ops}
    if any(len({place[v] for v in group}) > 1 for group in case.classes):
        return None
    if any(place[u] > place[v] for u, v in case.order):
        return None
    parts = [frozenset(stage.ops) for stage in stages]
    weights = [sum(case.sync[v] for v in part) for part in parts]
    return case.period(parts, choice, [case.crossing(part) for part in parts], weights)


@pytest.mark.parametrize("part", range(4))
def test_the_judge_knows_every_rule(part):
    """A split is rejected exactly where a rule is broken; else its period is that of the
    definition.
    """
    counts = {True: 0, False: 0}
    for seed in range(100 * part, 100 * part + 100):
        problem = draw(seed)
        if problem is None:
            continue
        rng, case = random.Random(seed), _Case(problem)
        for _ in range(12):
            split = random_split(rng, problem)
            expected = right(problem, case, split)
            assert (not split_violations(problem, split)) == (expected is not None), (seed, split)
            if expected is not None:
                assert judged_period(problem, split) == expected, (seed, split)
            counts[expected is not None] += 1
    assert min(counts.values()) > 60


def words(split, **changes):
    """Return what the judge says of a split of three ops on three devices of which two are alike."""
    fields = {
        "name": "three",
        "compute": np.array([[3, 3, 4], [3, 3, 4], [3, 3, -1]]),
        "producer": np.array([0, 1]),
        "consumer_ptr": np.array([0, 1, 2]),
        "consumer": np.array([1, 2]),
        "transfer": np.array([[1], [1]]),
        "resident": np.array([2, 3, 4]),
        "capacity": np.array([9, 9, 9]),
        "objective": "period",
    }
    options = {key: changes.pop(key) for key in ("max_replicas", "groups") if key in changes}
    problem = SplitProblem(PlacementProblem(**{**fields, **changes}), **options)
    return split_violations(problem, Split(tuple(SplitStage(*stage) for stage in split)))


WHOLE = (0, 1, 2)
SAID = {
    "ops that are not there": ([((0, 1, 2, 3), (0,))], {}, ["op 3: expected 0..2"]),
    "devices that are not there": ([(WHOLE, (3,))], {}, ["device 3: expected 0..2"]),
    "an op twice": ([((0, 1), (0,)), ((1, 2), (1,))], {}, ["op 'op1' is in 2 places"]),
    "a device twice": ([((0, 1), (0,)), ((2,), (0,))], {}, ["device 'device0' is in 2 places"]),
    "an op missing": ([((0, 1), (0,))], {}, ["op 'op2' is in no stage"]),
    "two ops missing": ([((0,), (0,))], {}, ["op 'op1' is in no stage, nor are 1 others"]),
    "no devices": ([((0, 1), (0,)), ((2,), ())], {}, ["stage 1 has no devices"]),
    "no ops": ([(WHOLE, (0,)), ((), (1,))], {}, ["stage 1 has no ops"]),
    "too many devices": ([(WHOLE, (0, 1))], {}, ["stage 0 has 2 devices; at most 1"]),
    "devices unlike": (
        [((0, 1), (1, 2)), ((2,), (0,))],
        {"max_replicas": 2},
        ["stage 0: its devices device1, device2 are not alike"],
    ),
    "a device in no group": (
        [((0, 1), (2,)), ((2,), (0,))],
        {"groups": 2},
        ["stage 0: device 'device2' is in no group"],
    ),
    "several groups": (
        [(WHOLE, (0, 1))],
        {"groups": 2, "max_replicas": 2},
        ["stage 0: its devices lie in several groups"],
    ),
    "groups by turns": (
        [((0, 1), (1,)), ((2,), (0,))],
        {"groups": 2},
        ["the stages lie in the groups [1, 0] by turns"],
    ),
    "an op that cannot run": (
        [((0, 1), (0,)), ((2,), (2,))],
        {},
        ["op 'op2' cannot run on 'device2'"],
    ),
    "too many bytes": (
        [(WHOLE, (0, 1))],
        {"max_replicas": 2, "capacity": np.array([8, 8, 9])},
        ["stage 0: 'device0' holds 9 bytes, its capacity is 8", "stage 0: 'device1' holds 9"],
    ),
    "a class apart": (
        [((0,), (0,)), ((1, 2), (1,))],
        {"colocation": np.array([5, -1, 5])},
        ["ops 'op0' and 'op2' must share a stage"],
    ),
    "an edge back": (
        [((0, 2), (0,)), ((1,), (1,))],
        {},
        ["the edge from 'op1' to 'op2' leads from stage 1 back to 0"],
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_wrong_with_a_split_is_named(name):
    """Every rule, broken alone, in its own words; ops and devices are checked before all others."""
    split, changes, expected = SAID[name]
    found = words(split, **changes)
    assert len(found) == len(expected), found
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start)


def test_stages_hold_whole_numbers():
    """Those of arrays, too, which are written as any others; what is no number is refused."""
    stage = SplitStage(np.arange(2), [np.int64(1)])  # type: ignore[arg-type]
    assert json.loads(json.dumps(to_dict(Split((stage,)))))["stages"] == [
        {"ops": [0, 1], "devices": [1]}
    ]
    for ops in ((0.5,), ("0",), None):
        with pytest.raises(InputError, match="stage: ops: expected"):
            SplitStage(ops, (0,))  # type: ignore[arg-type]


def test_no_more_words_than_fifty():
    """The first fifty violations are enough."""
    assert len(words([((0, 0, 1, 1, 2, 2, *range(3, 90)), (0,))])) == 50


def test_quick_bounds_are_what_they_say():
    """All work on the fastest devices shared equally, and the largest op shared by as many replicas
    as there may be; 0 where an op runs nowhere.
    """
    none = 0
    for seed in range(300):
        problem = draw(seed)
        if problem is None:
            continue
        case, usable = _Case(problem), problem.usable_devices
        ticks = [[row[d] if row[d] >= 0 else NEVER for d in usable] for row in case.compute]
        assert usable_ticks(problem).tolist() == ticks
        nowhere = any(min(row) == NEVER for row in ticks)
        none += nowhere
        total = sum(min(row) for row in ticks)
        assert area_bound(problem) == (0 if nowhere else -(-total // len(usable))), seed
        most = {}
        for devices in case.pools.values():
            for d in devices:
                most[d] = min(problem.max_replicas, len(devices))
        best = [
            min((-(-row[d] // most[d]) for d in usable if row[d] >= 0), default=0)
            for row in case.compute
        ]
        assert op_bound(problem) == (0 if nowhere else max(best)), seed
    assert none > 0
