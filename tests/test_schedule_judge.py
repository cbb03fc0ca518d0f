"""The judge of placements and schedules against a second formulation: schedules of the oracle with
one number changed, and memory that is just enough.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import period_problems
import pytest
import reference
from random_problems import random_device, random_problem

from placeopt.latency.judge import latency_violations, placement_slots
from placeopt.makespan.judge import MOST_WORDS, placement_violations, schedule_violations
from placeopt.model.placement import Placement, Schedule
from placeopt.model.problem import PlacementProblem
from placeopt.period.judge import period_violations


def clash(a, b):
    """Whether two intervals on one resource meet: a moment alone only inside another one."""
    (x, end_x), (y, end_y) = a, b
    if x == end_x or y == end_y:
        return x < y < end_x or y < x < end_y
    return x < end_y and y < end_x


def right(problem, s):
    """Whether a schedule keeps every rule."""
    n, k, device = problem.num_ops, problem.num_devices, s.device.tolist()
    if not all(0 <= d < k for d in device):
        return False
    groups, ticks = problem.colocation.tolist(), problem.compute.tolist()
    if any(
        groups[u] == groups[v] >= 0 and device[u] != device[v] for u, v in combinations(range(n), 2)
    ):
        return False
    held = [sum(int(problem.resident[v]) for v in range(n) if device[v] == d) for d in range(k)]
    if any(h > int(c) for h, c in zip(held, problem.capacity, strict=True)):
        return False
    runs = list(zip(s.start.tolist(), s.finish.tolist(), strict=True))
    for v, (a, b) in enumerate(runs):
        if ticks[v][device[v]] < 0 or a < 0 or b - a != ticks[v][device[v]]:
            return False
    if any(
        device[u] == device[v] and clash(runs[u], runs[v]) for u, v in combinations(range(n), 2)
    ):
        return False
    ends = problem.consumer_ptr.tolist()
    readers = [problem.consumer[ends[t] : ends[t + 1]].tolist() for t in range(problem.num_tensors)]
    sent, lanes = {}, {}
    for t, d, a, b in zip(
        s.transfer_tensor.tolist(),
        s.transfer_destination.tolist(),
        s.transfer_start.tolist(),
        s.transfer_finish.tolist(),
        strict=True,
    ):
        if not (0 <= t < problem.num_tensors and 0 <= d < k) or (t, d) in sent:
            return False
        home = device[int(problem.producer[t])]
        if home == d or all(device[v] != d for v in readers[t]):
            return False
        ready, lane = runs[int(problem.producer[t])][1], int(problem.channel[home, d])
        if a < ready or b - a != int(problem.transfer[t, problem.link_class[home, d]]):
            return False
        if lane < 0 and a != ready:
            return False
        sent[t, d] = (a, b)
        lanes.setdefault(lane, []).append((a, b))
    if any(
        lane >= 0 and clash(x, y) for lane, row in lanes.items() for x, y in combinations(row, 2)
    ):
        return False
    for t, ops in enumerate(readers):
        u = int(problem.producer[t])
        for v in ops:
            away = device[u] != device[v]
            if away and (t, device[v]) not in sent:
                return False
            if runs[v][0] < (sent[t, device[v]][1] if away else runs[u][1]):
                return False
    if problem.memory == "peak":
        most = reference.peak(problem, device, s.start.tolist(), s.finish.tolist(), sent)
        return all(used <= int(room) for used, room in zip(most, problem.capacity, strict=True))
    return True


def schedule_of(rng, problem, queue):
    """Return the oracle's schedule of a random placement, its transfers in any order."""
    device = random_device(rng, problem)
    rank = rng.integers(0, 5, problem.num_ops)
    if queue == "planned":
        rank[problem.topological_order] = np.arange(problem.num_ops)
    _, start, finish, flying = reference.run(problem, device, rank, queue)
    rows = [(t, d, a, b) for (t, d), (a, b) in flying.items()]
    rows = np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)
    if rng.random() < 0.3:
        rows = rng.permutation(rows)
    return {
        "device": device,
        "start": np.array(start),
        "finish": np.array(finish),
        "transfer_tensor": rows[:, 0],
        "transfer_destination": rows[:, 1],
        "transfer_start": rows[:, 2],
        "transfer_finish": rows[:, 3],
    }


def damage(rng, problem, columns):
    """Change one thing: a time, a device, a transfer that is left out, sent twice or elsewhere."""
    found = {key: values.copy() for key, values in columns.items()}
    op, sent = int(rng.integers(problem.num_ops)), len(found["transfer_tensor"])
    what = rng.choice(["op", "length", "device", "move", "late", "drop", "twice", "more", "shift"])
    if what == "op":
        step = rng.choice([-1, 1, 2])
        found["start"][op] += step
        found["finish"][op] += step
    elif what == "length":
        found["finish"][op] += rng.choice([-1, 1])
    elif what == "device":
        found["device"][op] = rng.integers(-1, problem.num_devices + 1)
    elif what == "shift":
        for key in ("start", "finish", "transfer_start", "transfer_finish"):
            found[key] += rng.choice([-1, 1])
    elif sent and what in ("move", "late", "twice"):
        i = int(rng.integers(sent))
        if what == "move":
            step = rng.choice([-1, 1])
            found["transfer_start"][i] += step
            found["transfer_finish"][i] += step
        elif what == "late":
            found["transfer_finish"][i] += rng.choice([-1, 1])
        else:
            for key in [key for key in found if key.startswith("transfer")]:
                found[key] = np.append(found[key], found[key][i])
    elif sent and what == "drop":
        keep = np.arange(sent) != int(rng.integers(sent))
        for key in [key for key in found if key.startswith("transfer")]:
            found[key] = found[key][keep]
    elif what == "more":
        t = int(rng.integers(-1, problem.num_tensors + 1))
        d = int(rng.integers(-1, problem.num_devices + 1))
        begin, ticks = 0, 0
        if 0 <= t < problem.num_tensors and 0 <= d < problem.num_devices:
            u = int(problem.producer[t])
            begin = int(found["finish"][u])
            ticks = int(problem.transfer[t, problem.link_class[found["device"][u], d]])
        more = {"tensor": t, "destination": d, "start": begin, "finish": begin + ticks}
        for key, value in more.items():
            found[f"transfer_{key}"] = np.append(found[f"transfer_{key}"], value)
    return found


@pytest.mark.parametrize("part", range(6))
def test_one_change_is_found_exactly_where_it_breaks_a_rule(part):
    """Schedules of the oracle are right; with one thing changed the judge says what the definition
    says, capacity just enough or one byte less.
    """
    rng, counts = np.random.default_rng(part), {True: 0, False: 0}
    for number in range(60):
        problem = random_problem(rng, max_ops=7, max_devices=3)
        columns = schedule_of(rng, problem, ("fifo", "priority", "planned")[number % 3])
        device, k = columns["device"], problem.num_devices
        if rng.random() < 0.5:
            names = ("transfer_tensor", "transfer_destination", "transfer_start", "transfer_finish")
            rows = zip(*(columns[name].tolist() for name in names), strict=True)
            moved = {(t, d): (a, b) for t, d, a, b in rows}
            start, finish = columns["start"].tolist(), columns["finish"].tolist()
            room, memory = reference.peak(problem, device, start, finish, moved), "peak"
        else:
            memory = "static"
            room = [int(problem.resident[device == d].sum()) for d in range(k)]
        for less in (0, 1):
            tight = np.maximum(0, np.array(room) - less * (np.arange(k) == rng.integers(k)))
            case = problem.replace(capacity=tight, memory=memory)
            for step in range(5):
                found = Schedule(**(columns if step == 0 else damage(rng, case, columns)))
                expected = right(case, found)
                assert (schedule_violations(case, found) == []) == expected, (number, found)
                assert expected or step or less
                counts[expected] += 1
    assert min(counts.values()) > 50


def test_every_device_over_its_peak_is_named():
    """Each with what it holds at the first moment at which that is too much."""
    problem = PlacementProblem.from_edges(
        [[2, 2], [2, 2], [3, 3], [1, 1]],
        [(0, 2, 1), (1, 3, 1)],
        resident=[1, 2, 0, 0],
        tensor_bytes=[8, 16],
        capacity=[8, 17],
        memory="peak",
    )
    found = Schedule(
        device=[0, 1, 0, 1],
        start=[0, 5, 2, 7],
        finish=[2, 7, 5, 8],
        transfer_tensor=[],
        transfer_destination=[],
        transfer_start=[],
        transfer_finish=[],
    )
    assert schedule_violations(problem, found) == [
        "device 'device0' holds 9 bytes at 0, over its capacity of 8",
        "device 'device1' holds 18 bytes at 5, over its capacity of 17",
    ]


def test_transfers_that_meet_are_named():
    """Of two on one channel, beside one that has none, both with their tensors and times."""
    problem = PlacementProblem.from_edges(
        [[1, 1, 1]] * 5, [(0, 2, 3), (0, 3, 3), (1, 4, 3)], channel=[[-1, 0, 0], [-1] * 3, [-1] * 3]
    )
    found = Schedule(
        device=[0, 2, 1, 2, 0],
        start=[0, 0, 5, 6, 4],
        finish=[1, 1, 6, 7, 5],
        transfer_tensor=[2, 0, 1],
        transfer_destination=[0, 1, 2],
        transfer_start=[1, 1, 3],
        transfer_finish=[4, 4, 6],
    )
    assert schedule_violations(problem, found) == [
        "channel 0: transfer of tensor 1 of 'op0' to 'device2' starts at 3, while transfer of tensor "
        "0 of 'op0' to 'device1' runs until 4"
    ]


def test_times_that_wrap_around_are_no_lengths():
    """An op or a transfer that ends before it starts, by what 64 bits do not hold, is named: it
    would be beside everything, and its end be no end.
    """
    problem = PlacementProblem.from_edges([[3, 3], [3, 3]], [(0, 1, 2)])
    far = 2**63 - 2
    together, apart = np.zeros(2, np.int64), np.array([0, 1])
    late = Schedule(together, [0, far], [3, far + 3 - 2**64], *np.zeros((4, 0), np.int64))
    assert any("instead of 3" in words for words in schedule_violations(problem, late))
    sent = Schedule(apart, [0, 3], [3, 6], [0], [1], [far], [far + 2 - 2**64])
    assert any("instead of 2" in words for words in schedule_violations(problem, sent))


def test_checks_of_a_placement_can_be_left_out():
    """Length and devices first, then all else at once; memory and colocation as they are asked."""
    problem = PlacementProblem.from_edges(
        [[1, -1], [2, 2], [3, 3]], [], resident=[5, 5, 5], capacity=[20, 9], colocation=[-1, 7, 7]
    )
    assert placement_violations(problem, Placement([0, 0])) == [
        "expected a device for each of 3 ops, received 2"
    ]
    assert placement_violations(problem, Placement([0, 2, -1])) == [
        "op 'op1' is on device 2; devices are 0..1",
        "op 'op2' is on device -1; devices are 0..1",
    ]
    wrong = placement_violations(problem, Placement([1, 1, 0]))
    assert ["cannot run" in wrong[0], "colocation group 7" in wrong[1], "holds 10" in wrong[2]] == [
        True
    ] * 3
    for memory in (False, True):
        for colocation in (False, True):
            found = placement_violations(
                problem, Placement([1, 1, 0]), memory=memory, colocation=colocation
            )
            assert len(found) == 1 + memory + colocation


def test_no_more_words_than_a_thousand():
    """Of one rule the first thousand violations are put into words."""
    n = MOST_WORDS + 5
    problem = PlacementProblem.from_edges([[1]] * n, [])
    assert len(placement_violations(problem, Placement([1] * n))) == MOST_WORDS
    empty = np.zeros(0, dtype=np.int64)
    same = Schedule(np.zeros(n), np.zeros(n), np.ones(n), empty, empty, empty, empty)
    assert len(schedule_violations(problem, same)) == MOST_WORDS


@pytest.mark.parametrize("slots", [1, 2])
def test_latency_placements_are_judged_as_the_oracle_values_them(slots):
    """Without violations exactly where nothing waits in a circle, everything fits, and no
    accelerator has too many slots; slots are ranks of priorities.
    """
    counts = {True: 0, False: 0}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        problem = period_problems.random_problem(seed, n=5, objective="latency", slots=slots)
        for _ in range(6):
            choices = [np.flatnonzero(row >= 0) for row in problem.compute]
            device = np.array([rng.choice(devices) for devices in choices])
            for group in set(problem.colocation.tolist()) - {-1}:
                device[problem.colocation == group] = device[problem.colocation == group][0]
            priority = None if rng.random() < 0.2 else rng.integers(0, 3, 5)
            placement = Placement(device, priority)
            slot, most = [0] * 5, 0
            for d in np.flatnonzero(problem.io_class >= 0):
                ranks = sorted(
                    {
                        0 if priority is None else int(priority[v])
                        for v in np.flatnonzero(device == d)
                    }
                )
                most = max(most, len(ranks))
                for v in np.flatnonzero(device == d):
                    slot[v] = ranks.index(0 if priority is None else int(priority[v]))
            assert placement_slots(problem, placement).tolist() == slot
            value = period_problems.oracle_latency(problem, tuple(device.tolist()), tuple(slot))
            good = value is not None and most <= slots
            assert (latency_violations(problem, placement) == []) == good, (seed, placement)
            counts[good] += 1
    assert min(counts.values()) > 60
    assert latency_violations(problem, Placement([0, 0]))


@pytest.mark.parametrize("contiguity", ["chain", "convex", "none"])
def test_period_placements_are_judged_as_the_oracle_does(contiguity):
    """Classes with any number, forward and backward ops in one, orphans: without violations exactly
    where everything fits and devices form a pipeline.
    """
    counts = {True: 0, False: 0}
    for seed in range(150):
        rng = np.random.default_rng(seed)
        problem = period_problems.random_problem(seed, training=True, contiguity=contiguity)
        if rng.random() < 0.7:
            classes = rng.integers(-1, 2, problem.num_ops)
            room = np.full(3, 2**62)
            able = np.maximum(problem.compute, 0)
            problem = problem.replace(compute=able, capacity=room, colocation=classes)
        for _ in range(4):
            device = np.sort(rng.integers(0, 3, problem.num_ops))[:: rng.choice([-1, 1])].copy()
            moved = rng.random(problem.num_ops) < 0.2
            device[moved] = rng.integers(0, 3, problem.num_ops)[moved]
            for group in set(problem.colocation.tolist()) - {-1}:
                device[problem.colocation == group] = device[problem.colocation == group][0]
            good = period_problems.oracle_period(problem, tuple(device.tolist())) is not None
            assert (period_violations(problem, Placement(device)) == []) == good, (seed, device)
            counts[good] += 1
    assert min(counts.values()) > 60, counts
