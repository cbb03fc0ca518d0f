"""No limit on usage is no limit: anywhere, whatever the usages add up to."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sharding_problems import draw_huge, oracle, to_contest

import placeopt as po
from placeopt.cli import main
from placeopt.io.serialize import from_dict, to_dict
from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of
from placeopt.sharding.compact import draft_of, usage_unit
from placeopt.sharding.contest_format import from_contest
from placeopt.sharding.evaluate import evaluate
from placeopt.sharding.judge import sharding_violations
from placeopt.sharding.problem import ShardingProblem, ShardingSolution

HALF = 2**61 + 1
"""Two of these pass 2^62."""


def two_nodes(usages, limit=None):
    """Return the contest's JSON of two nodes that are live together."""
    nodes = {
        "intervals": [[0, 2], [1, 3]],
        "costs": [[1 + i for i in range(len(row))] for row in usages],
        "usages": usages,
    }
    problem = {"nodes": nodes, "edges": {"nodes": [], "costs": []}}
    return {"problem": problem if limit is None else {**problem, "usage_limit": limit}}


@pytest.mark.parametrize(
    "usages", [[[HALF], [HALF]], [[HALF, 0], [HALF, 0]], [[HALF, HALF - 5], [HALF, 3]]]
)
def test_usages_without_a_limit_decide_nothing(usages):
    """The cheapest choice is solved, proved, judged, bounded and written, though it uses more than
    2^62.
    """
    problem = from_contest(two_nodes(usages))
    best = ShardingSolution(np.zeros(2, dtype=np.int64))
    assert not problem.limited
    assert evaluate(problem, best) == 2
    assert sharding_violations(problem, best) == []
    assert usage_unit(problem) == 1
    assert len(draft_of(problem)[0].capacity) == 0
    assert objective_of(problem).impossible(problem) == ""
    for again in (problem, from_dict(to_dict(problem)), from_contest(to_contest(problem))):
        result = po.solve(again, seconds=5)
        assert (result.value, result.lower_bound, result.status) == (2, 2, "optimal")
        assert again.hash == problem.hash
    assert po.bound(problem, seconds=0.1).value == 2
    assert objective_of(problem).details(problem, best)["usage_limit"] is None


@pytest.mark.jit
def test_huge_usages_without_a_limit_against_the_oracle():
    """Values and bounds agree with brute force where only the limit is gone."""
    optimal = 0
    for seed in range(60):
        _, data = draw_huge(seed)
        data["problem"].pop("usage_limit")
        problem = from_contest(data)
        best = min(oracle({"problem": {**data["problem"], "usage_limit": 10**30}}).values())
        result = po.solve(problem, evaluations=200, seed=0)
        assert result.status in ("optimal", "feasible"), seed
        assert result.lower_bound <= best <= result.value, seed
        assert po.bound(problem, seconds=0.0).value <= best, seed
        optimal += result.status == "optimal"
    assert optimal > 20


def test_a_limit_too_large_for_64_bits_is_refused_only_where_it_matters():
    """A limit of 2^62 or more is taken for none where no choice passes it, and refused where one
    does.
    """
    small, large = [[HALF, 0], [HALF - 2, 0]], [[HALF, 0], [2**62 - 1, 0]]
    assert not from_contest(two_nodes(small, 2**62)).limited
    assert not from_contest(two_nodes(large, 2**63 - 1)).limited
    assert from_contest(two_nodes(small, 2**62 - 1)).limited
    for limit in (2**62, 2**62 + 5):
        with pytest.raises(InputError, match=r"usage_limit.*larger units"):
            from_contest(two_nodes(large, limit))
    with pytest.raises(InputError, match="no limit"):
        ShardingProblem(
            "x",
            np.array([0, 1]),
            np.zeros(1),
            np.zeros(1),
            np.zeros((1, 2)),
            np.zeros((0, 2)),
            np.zeros(0),
            usage_limit=2**62 + 1,
        )


def test_the_command_line_says_that_there_is_no_limit(tmp_path, capsys):
    """JSON has null for a limit that is not there."""
    path = tmp_path / "two.json"
    path.write_text(json.dumps(two_nodes([[HALF, 0], [HALF, 0]])))
    for words in (("solve", str(path), "--seconds", "1"), ("info", str(path))):
        with pytest.raises(SystemExit) as stop:
            main([*words, "--json"])
        assert stop.value.code == 0
        assert json.loads(capsys.readouterr().out)["usage_limit"] is None
