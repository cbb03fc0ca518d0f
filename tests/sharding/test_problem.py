"""Sharding problems: files, evaluator, judge and the compact arrays, against every choice of small
problems.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sharding_problems import draw, oracle, to_contest

import placeopt as po
from placeopt.io.serialize import from_dict, save, to_dict
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import objective_of
from placeopt.sharding.compact import condense, draft_of
from placeopt.sharding.contest_format import from_contest
from placeopt.sharding.evaluate import evaluate, total_cost, usage_profile
from placeopt.sharding.judge import judged_cost, sharding_violations
from placeopt.sharding.problem import ShardingProblem, ShardingSolution

DATA = Path(os.environ.get("PLACEOPT_DATA", "../shared/data")) / "iopddl"
needs_data = pytest.mark.skipif(
    not DATA.exists(), reason=f"no instances at {DATA}; set PLACEOPT_DATA"
)


def choices(problem):
    """Yield every choice of strategies."""
    for choice in itertools.product(*(range(int(k)) for k in problem.num_choices)):
        yield choice, ShardingSolution(np.array(choice, dtype=np.int64))


def compact_cost(compact, choice):
    """Cost of a choice of a compact problem, None where it passes a capacity."""
    cost = sum(int(compact.cost[compact.node_ptr[v] + x]) for v, x in enumerate(choice))
    for e, (u, v) in enumerate(compact.edge.tolist()):
        cost += int(
            compact.table[compact.edge_ptr[e] + choice[u] * compact.num_choices[v] + choice[v]]
        )
    for t, capacity in enumerate(compact.capacity.tolist()):
        live = [v for v in range(len(choice)) if compact.first[v] <= t < compact.last[v]]
        if sum(int(compact.usage[compact.node_ptr[v] + choice[v]]) for v in live) > capacity:
            return None
    return cost


@pytest.fixture(params=range(4), ids="block{}".format)
def drawn(request):
    """Return 60 problems: seed, problem, and the cost of every feasible choice as the oracle finds
    it.
    """
    drawn = [(seed, *draw(seed)) for seed in range(60 * request.param, 60 * request.param + 60)]
    return [(seed, problem, oracle(data)) for seed, problem, data in drawn]


@pytest.mark.interpreted
def test_evaluator_and_judge_agree_with_the_oracle(drawn):
    """Every choice of 60 problems a block: same feasible ones, same cost, in words where not
    feasible.
    """
    for seed, problem, feasible in drawn:
        for choice, solution in choices(problem):
            violations = sharding_violations(problem, solution)
            assert (choice in feasible) == (violations == []), (seed, choice)
            if violations:
                with pytest.raises(InfeasiblePlacementError):
                    evaluate(problem, solution)
            else:
                assert (
                    evaluate(problem, solution)
                    == judged_cost(problem, solution)
                    == feasible[choice]
                )


@pytest.mark.interpreted
def test_condensing_keeps_every_choice(drawn):
    """What is left has the same feasible choices at the same cost, and choices go there and
    back.
    """
    for seed, problem, feasible in drawn:
        draft, fits = draft_of(problem)
        if not np.logical_or.reduceat(fits, problem.node_ptr[:-1]).all():
            assert feasible == {}
            continue
        condensed = condense(draft, fits)
        for choice, solution in choices(problem):
            inner = condensed.contract(solution.strategy)
            if inner is None:
                assert choice not in feasible
                continue
            assert condensed.expand(inner).tolist() == list(choice)
            cost = compact_cost(condensed.compact, inner)
            tight = condensed.compact.capacity.size == 0 or condensed.compact.capacity.min() >= 0
            if choice in feasible:
                assert cost is not None
                if feasible[choice] < 10**17:
                    assert cost + condensed.offset == feasible[choice]
            elif tight and objective_of(problem).impossible(problem) == "":
                assert cost is None, (seed, choice)


@pytest.mark.interpreted
def test_totals_pass_64_bits():
    """Costs and usages near 2^62 are added exactly."""
    big = 2**62 - 1
    problem = ShardingProblem(
        "big", [0, 1, 2, 3], [big] * 3, [big] * 3, [[0, 5]] * 3, [[0, 1]] * 9, [big] * 9, 2**61
    )
    solution = ShardingSolution([0, 0, 0])
    assert total_cost(problem, solution) == judged_cost(problem, solution) == 12 * big
    assert usage_profile(problem, solution).peak == 3 * big
    assert str(3 * big) in sharding_violations(problem, solution)[0]


def test_json_round_trips(tmp_path):
    """Our format and the contest's, plain and gzip, give the same problem; a solution comes back as
    it was.
    """
    for seed in range(30):
        problem, data = draw(seed)
        assert from_dict(json.loads(json.dumps(to_dict(problem)))).hash == problem.hash
        assert from_contest(to_contest(problem)).hash == problem.hash
        ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json.gz"
        save(problem, ours)
        theirs.write_bytes(gzip.compress(json.dumps(data).encode()))
        marked = tmp_path / "marked.json"
        marked.write_bytes(json.dumps(data).encode("utf-8-sig"))
        (tmp_path / "ours.json.gz").write_bytes(gzip.compress(ours.read_bytes()))
        files = ours, theirs, marked, tmp_path / "ours.json.gz"
        assert {po.load(x).hash for x in files} == {problem.hash}
    solution = ShardingSolution([1, 0, 2])
    assert from_dict(to_dict(solution)).strategy.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p["nodes"]["costs"][0].append(1), "usages"),
        (lambda p: p["nodes"]["costs"][0].__setitem__(0, -1), "cost"),
        (lambda p: p["nodes"]["costs"][0].__setitem__(0, 1.5), "whole number"),
        (lambda p: p["nodes"]["costs"][0].__setitem__(0, True), "whole number"),
        (lambda p: p["nodes"]["costs"][0].__setitem__(0, 2**70), "64 bits"),
        (lambda p: p["nodes"]["intervals"].pop(), "intervals"),
        (lambda p: p["nodes"]["intervals"][0].reverse(), "start <= end"),
        (lambda p: p["nodes"]["costs"].__setitem__(0, []), "usages"),
        (lambda p: p["edges"]["nodes"].__setitem__(0, [0, 9]), "nodes"),
        (lambda p: p["edges"]["nodes"].__setitem__(0, [0, 1, 2]), "nodes"),
        (lambda p: p["edges"]["nodes"].__setitem__(0, [0, 0]), "costs"),
        (lambda p: p["edges"]["costs"][0].pop(), "costs"),
        (lambda p: p.pop("nodes"), "nodes"),
        (lambda p: p.__setitem__("usage_limit", "a lot"), "usage_limit"),
        (lambda p: p.__setitem__("usage_limit", -1), "not negative"),
        (lambda p: p.__setitem__("usage_limit", 12.5), "whole number"),
    ],
)
def test_wrong_files_are_one_line(change, words, tmp_path):
    """A file that is wrong says what and where."""
    data = {
        "problem": {
            "nodes": {
                "intervals": [[0, 2], [1, 3]],
                "costs": [[1, 2], [3]],
                "usages": [[1, 1], [1]],
            },
            "edges": {"nodes": [[0, 1]], "costs": [[1, 2]]},
            "usage_limit": 5,
        }
    }
    from_contest(data)
    change(data["problem"])
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=words) as failure:
        po.load(path)
    assert "\n" not in str(failure.value)


def test_a_limit_of_any_size_is_a_limit():
    """More than 64 bits hold is no limit where no choice passes it."""
    data = draw(3)[1]
    data["problem"]["usage_limit"] = 10**30
    assert not from_contest(data).limited


def test_damaged_gzip_is_one_line(tmp_path):
    """Truncated and broken gzip, what follows it, and one that expands beyond the limit."""
    whole = gzip.compress(json.dumps(draw(3)[1]).encode())
    path = tmp_path / "x.json.gz"
    for data, words in (
        (whole[:-9], "truncated"),
        (whole[:40] + b"\0" * 40, "gzip|truncated"),
        (whole + b"junk", "not a valid gzip file"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=words):
            po.load(path)
    path.write_bytes(whole)
    with pytest.raises(InputError, match="limit"):
        po.load(path, max_bytes=100)


def test_gzip_may_be_of_several_pieces(tmp_path):
    """As parallel and block-wise compressors write it: one behind another, zeros at the end."""
    problem, data = draw(3)
    text = json.dumps(data).encode()
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(text[:40]) + gzip.compress(text[40:]) + b"\0" * 9)
    assert np.array_equal(po.load(path).cost, problem.cost)


@needs_data
def test_the_example_is_solved():
    """The contest's example: its best choice by the oracle, found, bounded and verified."""
    path = DATA / "example.json"
    problem = po.load(path)
    best = min(oracle(json.loads(path.read_text())).values())
    result = po.solve(problem, seconds=5)
    assert result.value == best
    report = po.verify(problem, result, seconds=1)
    assert report.feasible
    assert report.lower_bound <= best


@needs_data
def test_a_contest_instance_is_read():
    """Instance G: sizes as its reference says."""
    problem = po.load(DATA / "asplos-2025-iopddl-G.json.gz")
    assert (problem.num_nodes, problem.num_edges, problem.usage_limit) == (816, 1023, 14392528)
    assert round(float(problem.num_choices.mean()), 1) == 12.3


def test_a_limit_of_numpy_is_a_number_like_any_other(tmp_path):
    """A limit that was added up from an array is written, and counted without wrapping around."""
    usage = np.array([2**61, 2**61 - 1])
    problem = ShardingProblem(
        "added",
        [0, 1, 2],
        np.ones(2),
        usage,
        [[0, 1]] * 2,
        np.zeros((0, 2)),
        [],
        usage_limit=usage.sum(),
    )
    assert type(problem.usage_limit) is int
    save(problem, tmp_path / "added.json")
    assert po.load(tmp_path / "added.json").hash == problem.hash
    with pytest.raises(InputError, match="usage limit: expected whole numbers"):
        replace(problem, usage_limit=5.5)
