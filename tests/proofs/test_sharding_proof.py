"""Proofs of sharding costs: the checker follows prices and messages, and no integers prove more
than the best choice.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from sharding_problems import draw, draw_dense, draw_linked, oracle
from tampering import load_checker, verdict

import placeopt as po
from placeopt.certify.certificate import finished, prove
from placeopt.sharding.contest_format import from_contest
from placeopt.sharding.problem import ShardingSolution

checker = load_checker()


def proofs(seeds, draws=(draw, draw_linked)):
    """Yield (proof of the best choice's certificate, its cost) of the problems that have one."""
    for seed, make in itertools.product(seeds, draws):
        problem, data = make(seed)
        feasible = oracle(data)
        if feasible:
            choice = min(feasible, key=feasible.get)
            solution = ShardingSolution(np.array(choice))
            certificate = po.verify(problem, solution, seconds=0.05)
            yield prove(problem, solution, certificate, seconds=0.2), feasible[choice]


@pytest.mark.interpreted
def test_proofs_are_accepted_and_most_reach_the_best():
    """The checker adds up what the witness adds up; on most small problems that is the cost of the
    best choice.
    """
    reached = []
    for proof, best in proofs(range(12)):
        assert verdict(checker, proof) == "accepted"
        assert proof["lower_bound"] <= best == proof["value"]
        reached.append(proof["lower_bound"] == best)
    assert sum(reached) > 0.6 * len(reached)


def test_no_integers_prove_more_than_the_best():
    """Whatever prices, messages and bits are claimed: a bound above the best choice, and a wrong
    cost, are refused.
    """
    rng = random.Random(3)
    for proof, best in proofs(range(20, 30), (draw_linked,)):
        for _ in range(20):
            data = json.loads(json.dumps(proof))
            witness = data["witness"]
            for _u, _v, to_u, to_v in witness["messages"]:
                for messages in (to_u, to_v):
                    messages[rng.randrange(len(messages))] += rng.randint(-(10**7), 10**7)
            witness["prices"] = [
                [rng.randint(0, 3), rng.randint(0, 10**6)] for _ in range(rng.randint(0, 3))
            ]
            sizes = np.diff(data["problem"]["node_ptr"]).tolist()
            centres = [rng.randrange(len(sizes)) for _ in range(3)]
            witness["stars"] = [
                [v, rng.randrange(sizes[v]), rng.randint(0, 3), rng.randint(0, 10**6)]
                for v in centres
            ]
            witness["bits"] = [rng.randint(0, 30), rng.randint(0, 30)]
            data["value"] = data["lower_bound"] = best + 1
            assert verdict(checker, finished(data)) == "refused"
            data["value"] = best
            assert verdict(checker, finished(data)) == "refused"


@pytest.mark.jit
def test_prices_that_cost_more_than_they_show_are_left_out():
    """Costs of 10^18 with a tight limit: the proof claimed 0, and its integers showed less."""
    (proof, _), *_ = proofs([1001], (draw_linked,))
    assert verdict(checker, proof) == "accepted"


def test_an_edge_to_itself_is_no_problem():
    """Messages along an edge from a node to itself would not cancel; such a file is not read."""
    data, _ = next(iter(proofs(range(40, 60), (draw_linked,))))
    data = json.loads(json.dumps(data))
    data["problem"]["edge"][0] = [0, 0]
    assert verdict(checker, finished(data)) == "no proof"


@pytest.mark.jit
def test_the_checker_follows_stars():
    """Of three in a row two fit: without the price of a star the same bound is refused, and so is
    one above the best choice.
    """
    nodes = {"intervals": [[0, 1]] * 3, "costs": [[100, 1]] * 3, "usages": [[3, 13]] * 3}
    edges = {"nodes": [[1, 0], [1, 2]], "costs": [[0, 40, 40, 0]] * 2}
    problem = from_contest({"problem": {"nodes": nodes, "edges": edges, "usage_limit": 29}})
    solution = ShardingSolution(np.array([0, 1, 1]))
    proof = prove(problem, solution, po.verify(problem, solution, seconds=1.0), seconds=2.0)
    assert verdict(checker, proof) == "accepted"
    assert proof["lower_bound"] > 138
    assert proof["witness"]["stars"]
    assert verdict(checker, finished(proof | {"lower_bound": 143})) == "refused"
    assert (
        verdict(checker, finished(proof | {"witness": proof["witness"] | {"stars": []}}))
        == "refused"
    )
    for wrong in ([[3, 0, 0, 1]], [[0, 2, 0, 1]], [[0, 0, 0, -1]], [[0, 0, 0]]):
        data = proof | {"witness": proof["witness"] | {"stars": wrong}}
        assert verdict(checker, finished(data)) == "no proof"


@pytest.mark.jit
def test_squares_prove_more_than_messages_and_no_more_than_the_best():
    """Where any two nodes have an edge most proofs have squares; without them, with other vectors
    or another shift they are refused, and whatever the vectors are the best choice is not.
    """
    rng, squared = random.Random(5), 0
    for seed in range(6):
        problem, data = draw_dense(seed)
        feasible = oracle(data)
        if not feasible:
            continue
        choice = min(feasible, key=feasible.get)
        best, solution = feasible[choice], ShardingSolution(np.array(choice))
        certificate = replace(po.verify(problem, solution, seconds=0.0), lower_bound=best)
        proof = json.loads(json.dumps(prove(problem, solution, certificate, seconds=0.2)))
        assert verdict(checker, proof) == "accepted"
        if "squares" not in proof["witness"]:
            continue
        squared += 1
        bare = {key: x for key, x in proof["witness"].items() if key != "squares"}
        assert verdict(checker, finished(proof | {"witness": bare})) != "accepted"
        shift, first, rows = proof["witness"]["squares"]
        for _ in range(20):
            other = [
                [v, [[x + rng.choice([0, 0, 1, -9]) for x in y] for y in of]] for v, of in rows
            ]
            wrong = [max(0, shift + rng.choice([-1, 0, 1])), first, other[rng.choice([0, 0, 1]) :]]
            data = proof | {"witness": proof["witness"] | {"squares": wrong}}
            data["value"] = data["lower_bound"] = best + 1
            assert verdict(checker, finished(data)) != "accepted"
            read = checker.Sharding(data["problem"])
            with pytest.raises((checker.FalseStatementError, checker.UnreadableError)):
                checker.sharding_bound(read, best + 1, data["witness"], [])
        for wrong in ([shift, first[1:], rows], [shift, first, rows[::-1]], [-1, first, rows], []):
            data = proof | {"witness": proof["witness"] | {"squares": wrong}}
            assert verdict(checker, finished(data)) == "no proof"
    assert squared > 1
