"""Proofs of periods of pipelines: a pattern, its completion, and the work of a device."""

from __future__ import annotations

import copy
import itertools
import json
import random
import sys
import tracemalloc
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tampering import load_checker, verdict

import placeopt as po
from placeopt.certify.certificate import finished, prove
from placeopt.io.serialize import from_dict
from placeopt.model.errors import InputError
from placeopt.schedules import schedule
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.solution import PipelineSchedule

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attack"))

import family_pipeline

checker = load_checker()
from proof_checker.pipeline import Pipeline  # noqa: E402
from proof_checker.pipeline_memory import never_below_zero  # noqa: E402 - as the checker sees it


def problem_of(seed):
    """Return (blocks, capacity, problem) of a random pipeline of the attack, None where its memory
    is refused.
    """
    blocks, capacity = family_pipeline.draw_blocks(random.Random(seed))
    try:
        return blocks, capacity, family_pipeline.problem_of(seed, blocks, capacity)
    except InputError:
        return None


def proof_of(problem, **options):
    """Return the proof of the schedule that the default search finds; None where it finds none."""
    try:
        found = schedule(problem, seconds=5.0, num_workers=1, latency_seconds=0, **options)
    except Exception:
        return None
    certificate = po.verify(problem, found, seconds=0.0)
    return json.loads(json.dumps(prove(problem, found, certificate)))


@pytest.mark.parametrize("size", [1, 2])
def test_shapes_are_proved(size):
    """The period of every shape without a memory limit is the work of its busiest device."""
    for shape in ("V", "X", "K", "M", "NN"):
        problem = po.load_pipeline(f"shape:{shape}?devices=4", micro_batches=12)
        proof = proof_of(problem, size=size)
        assert verdict(checker, proof) == "accepted"
        assert proof["value"] == proof["lower_bound"] == size * int(problem.work.max())


def test_what_is_proved_of_random_pipelines_is_true():
    """The checker accepts what is written, and its bound is not above the least period of brute
    force; some meet it.
    """
    seen = met = 0
    for seed in range(60):
        drawn = problem_of(seed)
        proof = None if drawn is None else proof_of(drawn[2])
        if proof is None:
            continue
        assert verdict(checker, proof) == "accepted"
        least = family_pipeline.least_period(drawn[0], drawn[1], 1)
        assert proof["lower_bound"] <= least <= proof["value"]
        seen, met = seen + 1, met + (proof["lower_bound"] == least)
    assert seen > 30
    assert met > 10


def test_a_pattern_is_valid_for_the_checker_where_brute_force_says_so():
    """Random starts and periods, tick by tick against the checker's sums."""
    right = 0
    for seed in range(400):
        rng, drawn = random.Random(seed), problem_of(seed)
        if drawn is None:
            continue
        blocks, capacity, problem = drawn
        read = checker.Pipeline(json.loads(json.dumps(plain_problem(problem))))
        period = rng.randint(1, 7)
        starts = [[rng.randint(0, 7) for _ in blocks] for _ in range(rng.choice([1, 1, 2]))]
        expected = family_pipeline.valid(blocks, capacity, period, starts)
        said = accepts_pattern(read, period, starts)
        assert said == expected, (seed, period, starts)
        right += expected
    assert right > 10


def plain_problem(problem):
    """Return the JSON of a problem as a proof holds it."""
    from tampering import plain

    return plain(problem)


def accepts_pattern(read, period, starts):
    """Whether the checker takes a pattern, whatever its completion."""
    try:
        checker.pattern_period(read, {"period": period, "starts": starts}, {})
    except checker.FalseStatementError:
        return False
    except checker.UnreadableError:  # there is no completion
        return True
    raise AssertionError


CLAIMS = {
    "a bound above the work": lambda proof: proof.update(lower_bound=proof["value"] + 1),
    "a longer period as optimal": lambda proof: [
        proof.update(value=proof["value"] + 1, lower_bound=proof["value"] + 1),
        proof["solution"].update(period=proof["solution"]["period"] + 1),
    ],
    "a shorter period": lambda proof: [
        proof.update(value=proof["value"] - 1, lower_bound=proof["value"] - 1),
        proof["solution"].update(period=proof["solution"]["period"] - 1),
    ],
    "another device": lambda proof: proof["witness"].update(device=99),
    "another makespan": lambda proof: proof["schedule"].update(makespan=1),
    "a bound on the makespan that is too high": lambda proof: proof["schedule"].update(
        least=proof["schedule"]["makespan"] + 1
    ),
    "a start before its block may": lambda proof: proof["schedule"]["start"][0].__setitem__(-1, 0),
    "no micro-batch": lambda proof: proof["solution"].update(starts=[]),
    "one micro-batch less": lambda proof: proof["schedule"]["start"].pop(),
    "two blocks at once": lambda proof: proof["solution"]["starts"].append(
        proof["solution"]["starts"][0]
    ),
    "a smaller span": lambda proof: proof["problem"]["blocks"][0].update(span=0),
    "no memory": lambda proof: proof["problem"].update(capacity=[0, 0, 0, 0]),
    "a cycle": lambda proof: proof["problem"]["blocks"][0].update(
        after=[proof["problem"]["blocks"][-1]["name"]]
    ),
    "a word more": lambda proof: proof["solution"].update(trust=1),
}


@cache
def honest():
    """Return a proof of shape V."""
    return proof_of(po.load_pipeline("shape:V?devices=4", micro_batches=6))


@pytest.mark.parametrize("claim", CLAIMS)
def test_false_claims_are_refused(claim):
    """Each of them, whatever else is right."""
    proof = copy.deepcopy(honest())
    assert verdict(checker, proof) == "accepted"
    CLAIMS[claim](proof)
    assert verdict(checker, finished(proof)) != "accepted"


def test_a_limit_on_memory_is_kept():
    """Under a limit the period is above the work of any device: the bound says less, and that."""
    problem = po.load_pipeline("shape:V?devices=4", memory=2, micro_batches=6)
    proof = proof_of(problem)
    assert verdict(checker, proof) == "accepted"
    assert (proof["value"], proof["lower_bound"]) == (8, 4)
    proof["lower_bound"] = 5
    assert verdict(checker, finished(proof)) == "refused"


def test_a_schedule_that_begins_late_is_proved():
    """Its makespan counts from its first start, in the proof too."""
    problem = po.load_pipeline("shape:V?devices=2", micro_batches=2)
    found = schedule(problem, "1f1b")
    late = PipelineSchedule(problem, found.start + 7, found.repetend)
    data = json.loads(json.dumps(prove(problem, late, po.verify(problem, late, seconds=0.0))))
    assert verdict(checker, data) == "accepted"
    assert data["schedule"]["makespan"] == found.makespan


def test_lags_count():
    """A start that a lag forbids is refused."""
    blocks = [
        Block("f", "F", (0,), 1, (1,)),
        Block("b", "B", (0,), 1, (-1,), (("f", 3),)),
    ]
    problem = PipelineProblem.from_blocks("lag", blocks, ["d"], micro_batches=3)
    proof = proof_of(problem)
    assert verdict(checker, proof) == "accepted"
    proof["solution"]["starts"] = [[0, 1]]
    assert verdict(checker, finished(proof)) == "refused"


def draw_changes(rng):
    """Return the changes of memory of up to six blocks on a device, and what each waits for."""
    n = rng.randint(1, 6)
    before = [set() for _ in range(n)]
    for v in range(n):
        for u in range(v):
            if rng.random() < 0.4:
                before[v] |= {u} | before[u]
    top = rng.choice([1, 2, 5, 2**60])
    changes = [rng.randint(-top, top) for _ in range(n)]
    return changes, before


def least_memory(changes, before):
    """Return the least sum of changes over all sets of blocks that hold what their blocks wait
    for.
    """
    sets = itertools.product([False, True], repeat=len(changes))
    return min(
        sum(change for change, has in zip(changes, held, strict=True) if has)
        for held in sets
        if all(held[u] for v, has in enumerate(held) if has for u in before[v])
    )


def as_bits(blocks):
    """Return blocks as the checker holds them: bit u says that u is one."""
    return sum(1 << u for u in blocks)


def test_memory_is_freed_in_time_where_no_order_goes_below_zero():
    """The checker's giving of units says what all sets of blocks that may have started say."""
    said = Counter()
    for seed in range(3000):
        rng = random.Random(seed)
        changes, before = draw_changes(rng)
        names = rng.sample(range(len(changes)), len(changes))  # givers and takers in any order
        at = {name: i for i, name in enumerate(names)}
        there = [as_bits(at[u] for u in before[name]) for name in names]
        right = least_memory(changes, before) >= 0
        assert never_below_zero([changes[name] for name in names], there) == right, seed
        said[right] += 1
    assert min(said.values()) > 300


def test_units_are_passed_on_along_several_blocks():
    """The first taker took what only the last one can use, and each gives way to the next one."""
    before = [*map(as_bits, [(), (), (), (0, 1), (1, 2), (1,)])]
    assert never_below_zero([4, 4, 4, -4, -4, -4], before)
    assert never_below_zero([4, 4, 4, -4, -4, -3], before)
    assert not never_below_zero([4, 4, 3, -4, -4, -4], before)
    assert not never_below_zero([3, 4, 4, -4, -4, -4], before)


def test_memory_that_is_freed_too_early_is_refused():
    """A pipeline whose block frees what another one, for which it does not wait, allocates."""
    problem = po.load_pipeline("shape:V?devices=4", micro_batches=6)
    proof = proof_of(problem)
    blocks = [row for row in proof["problem"]["blocks"] if row["devices"] == ["device0"]]
    row = next(row for row in blocks if row["memory"][0] < 0)
    giver = next(row for row in blocks if row["memory"][0] > 0)
    row["memory"], giver["memory"] = giver["memory"], row["memory"]
    with pytest.raises(checker.FalseStatementError, match="frees what was allocated"):
        checker.check(finished(proof))
    with pytest.raises(InputError, match="that no predecessor has allocated"):
        from_dict({"format": "placeopt/pipeline", "version": 1, **proof["problem"]})


def test_a_long_chain_takes_little_room():
    """What each block waits for is a number, not a set: a file of 2 MB took tens of GB."""
    blocks = [
        {"name": str(b), "kind": "other", "devices": ["d"], "span": 1, "memory": [0], "stage": 0}
        | {"after": [str(b - 1)] if b else []}
        for b in range(1000)
    ]
    tracemalloc.start()
    Pipeline({"name": "chain", "devices": ["d"], "micro_batches": 1, "blocks": blocks})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20
