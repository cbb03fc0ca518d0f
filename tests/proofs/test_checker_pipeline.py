"""The checker's reading of pipelines, patterns and completions: what it reads, every rule broken
alone, and random starts tick by tick.
"""

from __future__ import annotations

import copy
import random
import sys
from pathlib import Path

import pytest
from tampering import load_checker

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attack"))

import family_pipeline

checker = load_checker()
from proof_checker.pipeline_period import check_completion, makespan_bound, work_bound  # noqa: E402

UNREADABLE, FALSE = checker.UnreadableError, checker.FalseStatementError


def block(name, devices, span, memory, after=()):
    """Return a block as a proof holds it."""
    row = {"name": name, "kind": "F", "devices": devices, "span": span, "memory": memory}
    return {**row, "after": list(after), "stage": -1}


FOUR = {
    "name": "four",
    "devices": ["x", "y"],
    "micro_batches": 2,
    "capacity": [4, 2],
    "blocks": [
        block("f", ["x"], 2, [1]),
        block("g", ["x", "y"], 3, [1, 2], ["f"]),
        block("b", ["y"], 1, [-2], [{"block": "g", "lag": 1}]),
        block("a", ["x"], 5, [-2], ["b", {"block": "f", "lag": 9}]),
    ],
}
GOOD = [[0, 2, 6, 11], [5, 16, 20, 25]]
"""Starts of two micro-batches of FOUR: heads 0, 2, 6, 11 and tails 14, 7, 5, 0."""


def problem_with(change):
    """Return FOUR with a change."""
    data = copy.deepcopy(FOUR)
    change(data, data["blocks"])
    return data


def test_a_problem_is_read_as_it_is_written():
    """Devices, spans, memory, waits with and without lags, work and an order along the waits."""
    read = checker.Pipeline(FOUR)
    assert (read.devices, read.span) == ([[0], [0, 1], [1], [0]], [2, 3, 1, 5])
    assert read.memory == [{0: 1}, {0: 1, 1: 2}, {1: -2}, {0: -2}]
    assert read.after == [[], [(0, 0)], [(1, 1)], [(2, 0), (0, 9)]]
    assert (read.work, read.order, read.capacity) == ([10, 4], [0, 1, 2, 3], [4, 2])
    assert (read.on(0), read.on(1), read.micro_batches) == ([0, 1, 3], [1, 2], 2)
    free = problem_with(lambda data, _: data.pop("capacity"))
    assert checker.Pipeline(free).capacity == [None, None]
    empty = problem_with(
        lambda data, rows: (
            [data.update(capacity=[0, 0])]
            + [row.update(memory=[0] * len(row["devices"])) for row in rows]
        )
    )
    assert checker.Pipeline(empty).capacity == [0, 0]


WRONG = {
    "a word more": (lambda d, _: d.update(trust=1), UNREADABLE, None),
    "a word less": (lambda d, _: d.pop("name"), UNREADABLE, None),
    "no devices": (lambda d, _: d.update(devices=[], capacity=[]), UNREADABLE, "devices: expected"),
    "a device twice": (lambda d, _: d.update(devices=["x", "x"]), UNREADABLE, "devices: expected"),
    "no micro-batch": (lambda d, _: d.update(micro_batches=0), UNREADABLE, None),
    "room below nothing": (lambda d, _: d.update(capacity=[4, -1]), UNREADABLE, None),
    "room of one device": (lambda d, _: d.update(capacity=[4]), UNREADABLE, None),
    "no blocks": (lambda d, _: d.update(blocks=[]), UNREADABLE, "blocks: expected"),
    "a block twice": (lambda _, b: b[1].update(name="f"), UNREADABLE, "blocks: expected"),
    "a circle": (lambda _, b: b[0].update(after=["a"]), FALSE, "no block waits for itself"),
    "memory left": (lambda _, b: b[2].update(memory=[-1]), FALSE, "leaves nothing on device 1"),
    "memory lent": (lambda _, b: b[3].update(memory=[-3]), FALSE, "leaves nothing on device 0"),
    "another kind": (lambda _, b: b[0].update(kind="Z"), UNREADABLE, None),
    "a stage too low": (lambda _, b: b[0].update(stage=-2), UNREADABLE, None),
    "a stage in words": (lambda _, b: b[0].update(stage="0"), UNREADABLE, None),
    "no ticks": (lambda _, b: b[0].update(span=0), UNREADABLE, None),
    "a block nowhere": (
        lambda _, b: b[0].update(devices=[], memory=[]),
        UNREADABLE,
        "expected devices of a block",
    ),
    "a block twice on a device": (
        lambda _, b: b[0].update(devices=["x", "x"], memory=[1, 1]),
        UNREADABLE,
        "expected devices of a block",
    ),
    "an unknown device": (lambda _, b: b[0].update(devices=["z"]), UNREADABLE, "expected the name"),
    "a device by number": (lambda _, b: b[0].update(devices=[0]), UNREADABLE, "expected the name"),
    "an unknown block": (lambda _, b: b[1].update(after=["z"]), UNREADABLE, "expected the name"),
    "a wait without its lag": (lambda _, b: b[1].update(after=[{"block": "f"}]), UNREADABLE, None),
    "a lag below nothing": (
        lambda _, b: b[1].update(after=[{"block": "f", "lag": -1}]),
        UNREADABLE,
        None,
    ),
    "too few changes": (lambda _, b: b[1].update(memory=[1]), UNREADABLE, None),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_pipeline_is_refused(name):
    """Every rule of the reader, broken alone."""
    change, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        checker.Pipeline(problem_with(change))


def schedule(starts, makespan, least):
    """Return a completion."""
    return {"start": starts, "makespan": makespan, "least": least}


def completion(starts, makespan, least, data=FOUR):
    """Return whether a completion of a problem is accepted."""
    try:
        check_completion(checker.Pipeline(data), schedule(starts, makespan, least))
    except (FALSE, UNREADABLE):
        return False
    return True


def test_a_completion_is_what_it_says():
    """Its makespan is the last end; its bound at most the work of a device between the least ways
    to its blocks; as many micro-batches as the problem has.
    """
    assert completion(GOOD, 30, 20)  # device x: 2 * 10, its first block at 0, its last at the end
    for starts, makespan, least in (
        (GOOD, 31, 20),
        (GOOD, 29, 20),
        (GOOD, 30, 21),
        (GOOD[:1], 16, 10),
        ([*GOOD, GOOD[0]], 30, 20),
        ([[0, 2, 6, 10], GOOD[1]], 30, 20),
        ([[0, 2, 5, 11], GOOD[1]], 30, 20),
        ([GOOD[0], [6, 16, 20, 25]], 30, -1),
    ):
        assert not completion(starts, makespan, least), (starts, makespan, least)
    assert completion([GOOD[0], [5, 16, 20, 26]], 31, 0)
    with pytest.raises(UNREADABLE):
        check_completion(checker.Pipeline(FOUR), {**schedule(GOOD, 30, 20), "trust": 1})


def longest(read, v, ends):
    """Return the longest way to a block, or (with `ends`) from its end to the last."""
    if ends:
        ways = [
            lag + read.span[w] + longest(read, w, ends)
            for w, before in enumerate(read.after)
            for u, lag in before
            if u == v
        ]
    else:
        ways = [longest(read, u, ends) + read.span[u] + lag for u, lag in read.after[v]]
    return max(ways, default=0)


def as_written(blocks, capacity, count):
    """Return drawn blocks as a proof holds them; where there is much room none is written."""
    names = [f"d{i}" for i in range(len(capacity))]
    rows = [
        block(
            f"b{i}",
            [names[d] for d in devices],
            span,
            [change] * len(devices),
            [{"block": f"b{a}", "lag": lag} for a, lag in after],
        )
        for i, (devices, span, change, after) in enumerate(blocks)
    ]
    data = {"name": "drawn", "devices": names, "micro_batches": count, "blocks": rows}
    return data if min(capacity) > 1000 else {**data, "capacity": capacity}


def fits(blocks, capacity, starts):
    """Whether a schedule keeps every rule, tick by tick."""
    if any(
        row[b] < row[a] + blocks[a][1] + lag
        for row in starts
        for b, (_, _, _, after) in enumerate(blocks)
        for a, lag in after
    ):
        return False
    for d, room in enumerate(capacity):
        here = [
            (row[b], span, change)
            for row in starts
            for b, (devices, span, change, _) in enumerate(blocks)
            if d in devices
        ]
        for tick in {at for at, _, _ in here}:
            if sum(at <= tick < at + span for at, span, _ in here) > 1:
                return False
            if sum(change for at, _, change in here if at <= tick) > room:
                return False
    return True


@pytest.mark.parametrize("part", range(4))
def test_random_starts_are_right_where_brute_force_says_so(part):
    """Patterns and completions, and the bound on the makespan against the longest ways."""
    counts = {(kind, good): 0 for kind in ("pattern", "whole") for good in (True, False)}
    for seed in range(400 * part, 400 * part + 400):
        rng = random.Random(seed)
        blocks, capacity = family_pipeline.draw_blocks(rng)
        size = rng.choice([1, 1, 2])
        read = checker.Pipeline(as_written(blocks, capacity, size))
        period = rng.randint(1, 7)
        starts = [[rng.randint(0, 7) for _ in blocks] for _ in range(size)]
        if rng.random() < 0.7:  # blocks in their order, nearly
            starts = [sorted(row) for row in starts]
        good = family_pipeline.valid(blocks, capacity, period, starts)
        try:
            checker.pattern_period(read, {"period": period, "starts": starts}, {})
        except FALSE:
            assert not good, seed
        except UNREADABLE:  # the pattern is right, and there is no completion
            assert good, seed
        counts["pattern", good] += 1
        good = fits(blocks, capacity, starts)
        last = max(row[b] + blocks[b][1] for row in starts for b in range(len(blocks)))
        bound = max(
            size * sum(read.span[b] for b in read.on(d))
            + min((longest(read, b, False) for b in read.on(d)), default=0)
            + min((longest(read, b, True) for b in read.on(d)), default=0)
            for d in range(read.num_devices)
        )
        assert makespan_bound(read) == bound, seed
        data = as_written(blocks, capacity, size)
        assert completion(starts, last, min(bound, last), data) == good, seed
        assert not completion(starts, last, bound + 1, data), seed
        counts["whole", good] += 1
    assert min(counts.values()) > 5, counts


def test_patterns_have_a_micro_batch_and_a_period():
    """A period of one tick is enough for a block of one; no micro-batch, no ticks, no word more."""
    data = {
        "name": "one",
        "devices": ["x"],
        "micro_batches": 1,
        "blocks": [block("f", ["x"], 1, [0])],
    }
    read, whole = checker.Pipeline(data), schedule([[0]], 1, 1)
    assert checker.pattern_period(read, {"period": 1, "starts": [[3]]}, whole) == 1
    for solution, error in (
        ({"period": 1, "starts": []}, FALSE),
        ({"period": 0, "starts": [[0]]}, UNREADABLE),
        ({"period": 1, "starts": [[0], [5]]}, FALSE),
        ({"period": 1, "starts": [[0]], "trust": 1}, UNREADABLE),
        ({"period": 1, "starts": [[-1]]}, UNREADABLE),
    ):
        with pytest.raises(error):
            checker.pattern_period(read, solution, whole)


def test_the_work_of_a_device_bounds_the_period():
    """K times its work, on any device there is."""
    read = checker.Pipeline(FOUR)
    for device, work in enumerate((10, 4)):
        for size in (1, 2):
            content = {"method": "load", "device": device}
            solution = {"starts": GOOD[:size]}
            work_bound(read, size * work, content, None, solution)
            with pytest.raises(FALSE):
                work_bound(read, size * work + 1, content, None, solution)
    for content in ({"method": "load", "device": 2}, {"method": "trust", "device": 0}):
        with pytest.raises(UNREADABLE):
            work_bound(read, 1, content, None, {"starts": GOOD})


def test_the_bound_on_the_makespan_knows_the_longest_ways():
    """Where every block, or every second one, has a device of its own: to the block and from it."""
    for seed in range(80):
        rng = random.Random(seed)
        n = rng.randint(1, 6)
        names = [f"d{rng.choice([b, b // 2])}" for b in range(n)]
        rows = [
            block(
                f"b{b}",
                [names[b]],
                rng.randint(1, 9),
                [0],
                [
                    {"block": f"b{a}", "lag": rng.randint(0, 9)}
                    for a in range(b)
                    if rng.random() < 0.6
                ],
            )
            for b in range(n)
        ]
        rng.shuffle(rows)
        devices, count = sorted(set(names)), rng.randint(1, 3)
        read = checker.Pipeline(
            {"name": "ways", "devices": devices, "micro_batches": count, "blocks": rows}
        )
        assert makespan_bound(read) == max(
            count * sum(read.span[b] for b in read.on(d))
            + min(longest(read, b, False) for b in read.on(d))
            + min(longest(read, b, True) for b in read.on(d))
            for d in range(len(devices))
        ), seed
