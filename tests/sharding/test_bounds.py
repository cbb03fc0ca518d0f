"""Bounds of sharding problems against the best of all choices, and the exact pass against any
integers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from sharding_problems import draw, draw_huge, oracle

import placeopt as po
from placeopt.model.objective import objective_of
from placeopt.sharding.bounds import branches as branches_module, independent_bound
from placeopt.sharding.bounds.bounding import Bounding
from placeopt.sharding.bounds.branches import Branches
from placeopt.sharding.bounds.exact_pass import Witness, exact_pass, in_units
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.bounds.stars import Stars
from placeopt.sharding.compact import condense, costs_of, draft_of, unchanged
from placeopt.sharding.contest_format import from_contest
from placeopt.sharding.problem import ShardingSolution

sys.path.insert(0, str(Path(__file__).parents[2] / "results" / "sharding"))
from contest_like import contest_like

DATA = Path(os.environ.get("PLACEOPT_DATA", "../shared/data")) / "iopddl"


def solvable(seeds, **how):
    """Yield (problem, {feasible choice: cost}) of the problems that have a solution and a node to
    decide.
    """
    for seed in seeds:
        problem, data = draw(seed, **how)
        feasible = oracle(data)
        if feasible and condense(*draft_of(problem)).compact.num_nodes:
            yield problem, feasible


def random_stars(rng, compact):
    """Return up to four stars of a compact problem, those without room for their centre left out."""
    c = compact
    strategy = rng.integers(len(c.cost), size=4)
    node = np.searchsorted(c.node_ptr, strategy, side="right") - 1
    time = rng.integers(max(1, len(c.capacity)), size=4)
    live = (c.first[node] <= time) & (time < c.last[node])
    room = np.append(c.capacity, 0)[np.minimum(time, len(c.capacity))] - c.usage[strategy] * live
    kept = (room >= 0) & (time < len(c.capacity))
    return Stars(*(x[kept].astype(np.int64) for x in (node, strategy, time, room)))


@pytest.mark.interpreted
def test_any_integers_prove_no_more_than_the_best():
    """Random messages and prices, of stars too, are certificates: their bound holds, and so do the
    slacks.
    """
    rng = np.random.default_rng(5)
    for problem, feasible in solvable(range(150)):
        condensed = condense(*draft_of(problem))
        compact = condensed.compact
        sizes = compact.num_choices
        pointers = [
            np.concatenate([[0], np.cumsum(sizes[compact.edge[:, side]])]).astype(np.int64)
            for side in (0, 1)
        ]
        messages = [rng.integers(-300, 300, int(p[-1])) for p in pointers]
        count = len(compact.capacity)
        time = np.flatnonzero(rng.random(count) < 0.7)
        chosen = random_stars(rng, compact)
        prices = rng.integers(0, 40, len(time)), rng.integers(0, 40, len(chosen.node))
        witness = Witness(3, 2, time, prices[0], *pointers, *messages, chosen, prices[1])
        found = exact_pass(in_units(compact, witness), witness)
        best = min(feasible.values())
        assert found.bound + condensed.offset <= best
        for choice, cost in feasible.items():
            inner = condensed.contract(np.array(choice))
            if cost < 10**17:
                slack = found.slack[compact.node_ptr[:-1] + inner].max()
                assert found.scaled + slack <= (cost - condensed.offset) << witness.cost_bits


def test_no_bound_where_usages_are_rounded():
    """Usages whose sums pass 64 bits are rounded up: what fits exactly then seems not to, and must
    not be ruled out.
    """
    limit = 2**61
    usages = [[limit - 28, limit]] + [
        [7, 8]
    ] * 4  # the first strategies use the limit to the last byte
    data = {
        "problem": {
            "name": "huge",
            "nodes": {
                "intervals": [[0, 1]] * 5,
                "costs": [[1, 50]] + [[1, 100]] * 4,
                "usages": usages,
            },
            "edges": {"nodes": [[0, 1]], "costs": [[0, 0, 0, 0]]},
            "usage_limit": limit,
        }
    }
    problem = from_contest(data)
    assert min(oracle(data).values()) == 5
    assert po.bound(problem, seconds=0.5).value <= 5
    assert po.solve(problem, evaluations=200).lower_bound <= 5


@pytest.mark.parametrize("block", range(2))
def test_huge_numbers(block):
    """Costs and usages up to 2^62, limits that a choice uses to the last byte: value, bound and
    status agree with the oracle.
    """
    for seed in range(20 * block, 20 * block + 20):
        problem, data = draw_huge(seed)
        best = min(oracle(data).values(), default=None)
        report = po.bound(problem, seconds=0.02, upper=best)
        result = po.solve(problem, evaluations=60, seed=seed)
        if best is None:
            assert result.value is None
        else:
            assert not report.infeasible
            assert report.value <= best
            assert result.lower_bound <= best <= result.value
            assert result.status != "optimal" or result.value == best


@pytest.mark.interpreted
def test_bounds_hold_with_and_without_a_known_value():
    """The independent and the Lagrangian bound never pass the best choice, whatever they are
    told.
    """
    narrowed = 0
    for problem, feasible in solvable(range(200, 320)):
        best = min(feasible.values())
        assert independent_bound(problem) <= best
        for upper in (None, best, best + 3, 2 * best):
            bounding = Bounding(problem, upper)
            begun = bounding.settled
            for _ in range(4):
                for _ in range(0 if bounding.settled else 10):
                    bounding.step()
                if upper is None and not bounding.settled:
                    choice = bounding.decoded(limited=True)
                    bounding.aim(sum(int(x.sum()) for x in costs_of(bounding.compact, choice)))
                bounding.certify()
                assert bounding.bound <= best
            again = bounding.settled or bounding.narrowed.compact is not bounding.compact
            narrowed += again and not begun
    assert narrowed > 20


@pytest.mark.jit
def test_trees_without_a_limit_are_solved_by_messages():
    """Where nothing limits usage and the graph is a tree, the bound is the best cost."""
    for seed in range(40):
        problem, data = draw(seed, structure="tree")
        problem = po.load(problem)
        free = type(problem)(
            problem.name,
            problem.node_ptr,
            problem.cost,
            problem.usage,
            problem.interval,
            problem.edge,
            problem.edge_cost,
        )
        data["problem"]["usage_limit"] = 10**30
        best = min(oracle(data).values())
        condensed = condense(*draft_of(free))
        if condensed.compact.num_nodes == 0 or best > 10**17:
            continue
        dual = Dual(condensed.compact)
        dual.aim(best - condensed.offset)
        for _ in range(60):
            dual.step()
        assert dual.certify()[0].bound + condensed.offset == best, seed


def test_solver_and_bound_of_the_objective_agree_with_the_oracle():
    """`po.solve` finds the best of small problems and `po.bound` never passes it; where there is
    none both say so.
    """
    found = 0
    for seed in range(300, 330):
        problem, data = draw(seed)
        feasible = oracle(data)
        if not feasible:
            result = po.solve(problem, evaluations=500)
            assert result.solution is None
            assert objective_of(problem).impossible(problem) or result.message
            continue
        result = po.solve(problem, evaluations=1500)
        best = min(feasible.values())
        assert result.lower_bound <= best <= result.value
        found += result.value == best
        assert po.bound(problem, seconds=0.05).value <= best
        assert (
            objective_of(problem).value(problem, ShardingSolution(min(feasible, key=feasible.get)))[
                0
            ]
            == best
        )
    assert found >= 20


@pytest.mark.skipif(not DATA.exists(), reason=f"no instances at {DATA}; set PLACEOPT_DATA")
def test_an_instance_of_the_contest_is_bounded():
    """On instance G two seconds of the Lagrangian bound pass ten times the independent one, and
    hold.
    """
    problem = po.load(DATA / "asplos-2025-iopddl-G.json.gz")
    report = po.bound(problem, seconds=2.0, upper=217039)
    assert 5 * report.bounds["independent"] < report.bounds["lagrangian"] <= 217039


@pytest.mark.jit
@pytest.mark.parametrize(("seed", "steps"), [(8, 150), (115, 150), (0, 6000), (10, 6000)])
def test_prices_on_huge_usages_stay_sums(seed, steps):
    """Prices that grow without end, as no choice fits, pass neither 64 bits nor all floats; what
    they prove is true.
    """
    problem, data = draw_huge(seed)
    condensed = condense(*draft_of(problem))
    dual = Dual(condensed.compact)
    for _ in range(steps):
        dual.step()
    found, witness, _ = dual.certify()
    assert np.isfinite(dual.prices).all()
    assert (
        max(abs(int(x)) for part in (witness.to_low, witness.to_high, witness.price) for x in part)
        < 2**60
    )
    best = min(oracle(data).values(), default=None)
    assert best is None or found.bound + condensed.offset <= best


@pytest.mark.jit
def test_parts_hold_every_better_choice(monkeypatch):
    """Parting what is left never passes the best choice, and ends at it, with or without finding
    it.
    """
    monkeypatch.setattr(branches_module, "STEPS", 1)
    parted = 0
    for problem, feasible in solvable(range(400, 520)):
        best = min(feasible.values())
        bounding = Bounding(problem)
        if bounding.settled or best >= bounding.forbidden:
            continue
        offset = bounding.condensed.offset
        for upper in (2 * best + 5 - offset, best + 1 - offset, best - offset):
            bounding = Bounding(problem)
            bounding.aim(upper)
            branches = Branches(bounding)
            while not branches.over:
                assert branches.bound + offset <= best
                branches.step()
                branches.close(branches.upper)
                parted += 1
            assert branches.bound + offset == best
            if branches.choice is not None:
                found = bounding.condensed.expand(branches.choice)
                assert feasible[tuple(found.tolist())] == best
    assert parted > 20


@pytest.mark.jit
def test_a_part_that_is_stopped_stays_whole():
    """A step that is told to stop proves nothing and loses nothing."""
    bounding = Bounding(contest_like("tight", 100, 1))
    bounding.aim(
        sum(int(x.sum()) for x in costs_of(bounding.compact, bounding.decoded(limited=True)))
    )
    branches = Branches(bounding)
    before = branches.bound
    branches.step(lambda: True)
    assert branches.bound == before
    assert not branches.over


@pytest.mark.jit
def test_what_is_carried_over_bounds_as_much():
    """A dual that begins at the prices and messages of the same problem has its bound at once."""
    dual = Dual(condense(*draft_of(contest_like("training", 100, 1))).compact)
    for _ in range(40):
        dual.step()
    again = Dual(dual.compact)
    again.begin_at(dual.state(), unchanged(dual.compact))
    again.step()
    assert again.bound >= dual.bound - 1e-9 * abs(dual.bound)


@pytest.mark.jit
def test_reductions_that_end_early_leave_what_is_bounded():
    """Whenever the time is over, the bound holds, and choices of what is left are choices."""
    shown = 0
    for number, (problem, feasible) in enumerate(solvable(range(400, 440))):
        asked = iter([False] * (number % 7))
        bounding = Bounding(problem, late=lambda asked=asked: next(asked, True))
        best = min(feasible.values())
        for _ in range(30):
            if not bounding.settled:
                bounding.step()
        bounding.certify()
        assert bounding.bound <= best
        if not bounding.settled:
            choice = bounding.condensed.expand(bounding.decoded(limited=True))
            assert tuple(choice.tolist()) in feasible
            shown += 1
    assert shown > 10


def test_usages_that_are_next_to_each_other_are_parted():
    """Of two usages with no float between them one is little and one is much, or parting would
    never end.
    """
    usages = [[0, 2**60 + 256, 2**60 + 512], [0, 5]]
    nodes = {"intervals": [[0, 1]] * 2, "costs": [[9, 0, 0], [1, 0]], "usages": usages}
    edges = {"nodes": [], "costs": []}
    problem = {"nodes": nodes, "edges": edges, "usage_limit": 2**60 + 514}
    compact = condense(*draft_of(from_contest({"problem": problem}))).compact
    alive = np.array([False, True, True, True, True])
    low = branches_module._usage_split(Dual(compact), alive)
    assert low.tolist() == [True, True, False, True, True]
