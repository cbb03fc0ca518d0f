"""The dynamic program over ideals against a plain search through all chains of sets, for any limits,
with replicas and for both passes.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from math import ceil

import numpy as np
import period_problems as problems
import pytest

from placeopt.model.arrays import NO_VALUE
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.ideals import _find, ideal_lattice, lattice_in_time, linear_lattice
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.period.contracted import contract
from placeopt.solvers.exact.ideal_program import IdealProgram, Stage, stage_devices
from placeopt.solvers.exact.linear_dp import _orders
from placeopt.solving.registry import make_solver


def models(seeds, **fields):
    """Yield (seed, contracted chain model) of random problems."""
    for seed in seeds:
        problem = problems.random_problem(
            seed, n=5 + seed % 2, training=seed % 3 == 0, contiguity="chain", **fields
        )
        if seed % 4 == 3:  # five devices of up to three types
            some = np.sort(np.random.default_rng(seed).integers(0, 3, 5))
            problem = problem.replace(
                compute=problem.compute[:, some],
                capacity=problem.capacity[some],
                io_class=problem.io_class[some],
                link_class=np.zeros((5, 5), dtype=np.int64),
                channel=np.full((5, 5), -1),
                device_names=(),
            )
        try:
            yield seed, contract(problem, contiguity="chain")
        except InfeasibleProblemError:
            continue


def stage_loads(model, nodes, g, r, sync):
    """Return the load of every pass of a stage on `r` devices of type `g`, None if it has no place."""
    if not all(model.allowed[v, g] for v in nodes):
        return None
    if sum(int(model.resident[v]) for v in nodes) > int(model.capacity[g]):
        return None
    passes = model.pass_compute
    loads = [sum(int(ticks[v, g]) for v in nodes) for ticks in passes]
    for t, u in enumerate(model.producer.tolist()):
        ends = model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]].tolist()
        if (u in nodes and set(ends) - nodes) or (u not in nodes and set(ends) & nodes):
            loads[int(model.tensor_pass[t])] += int(model.weight[t, g])
    ring = ceil(2 * (r - 1) * sum(int(sync[v]) for v in nodes) / r)
    loads = [-(-load // r) for load in loads]
    loads[-1] += ring
    return loads


def best_chain(model, most, sync, limits):
    """Return the least largest load of the first pass over all chains within limits, None without."""
    n, counts = model.num_nodes, model.type_counts.tolist()
    pairs = list(zip(model.order_from.tolist(), model.order_to.tolist(), strict=True))

    @cache
    def load(nodes, g, r):
        return stage_loads(model, nodes, g, r, sync)

    @cache
    def search(done, used):
        left = [v for v in range(n) if v not in done]
        if not left:
            return 0
        best = None
        for size in range(1, len(left) + 1):
            for some in combinations(left, size):
                nodes = frozenset(some)
                if any(u in left and u not in nodes for u, v in pairs if v in nodes):
                    continue
                for g in range(model.num_types):
                    for r in range(1, min(most, counts[g] - used[g]) + 1):
                        ticks = load(nodes, g, r)
                        if ticks is None or ticks[0] > limits[0] or ticks[-1] > limits[-1]:
                            continue
                        more = tuple(x + r * (h == g) for h, x in enumerate(used))
                        rest = search(done | nodes, more)
                        if rest is not None and (best is None or max(ticks[0], rest) < best):
                            best = max(ticks[0], rest)
        return best

    return search(frozenset(), (0,) * model.num_types)


def check_stages(model, outcome, most, sync, limits):
    """The stages of an outcome are a chain within limits, and the largest load is its value."""
    assert sorted(v for stage in outcome.stages for v in stage.nodes) == list(
        range(model.num_nodes)
    )
    place = {int(v): i for i, stage in enumerate(outcome.stages) for v in stage.nodes}
    for u, v in zip(model.order_from.tolist(), model.order_to.tolist(), strict=True):
        assert place[u] <= place[v]
    largest = 0
    for stage in outcome.stages:
        nodes = frozenset(stage.nodes.tolist())
        loads = stage_loads(model, nodes, stage.device_type, stage.replicas, sync)
        assert 1 <= stage.replicas <= most
        assert loads[0] <= limits[0]
        assert loads[-1] <= limits[-1]
        largest = max(largest, loads[0])
    assert largest == outcome.value
    device, groups = stage_devices(model, outcome.stages)
    held = [d for group in groups for d in group]
    assert len(set(held)) == len(held)
    for stage, group in zip(outcome.stages, groups, strict=True):
        assert set(group) <= set(model.types[stage.device_type])
        assert len(group) == stage.replicas
        ops = np.isin(model.node, stage.nodes)
        assert set(device[ops].tolist()) == {group[0]}


@pytest.mark.parametrize("pipeline", ["1f1b", "gpipe"])
@pytest.mark.parametrize("part", range(4))
def test_the_program_finds_the_best_chain_within_limits(pipeline, part):
    """Without limits, at the best value and one tick below, and under a limit on the second pass."""
    checked = none = 0
    for seed, model in models(range(10 * part, 10 * part + 10), pipeline=pipeline):
        rng = np.random.default_rng(seed)
        most = 1 + seed % 3
        sync = rng.integers(0, 6, model.num_nodes) * (most > 1)
        lattice = ideal_lattice(model.num_nodes, model.order_from, model.order_to, limit=10**6)
        program = IdealProgram(model, lattice, max_replicas=most, sync=sync)
        assert not program.restricted
        best = best_chain(model, most, sync, (NO_VALUE, NO_VALUE))
        top = 10 if best is None else best
        limits = [(NO_VALUE, NO_VALUE), (top, NO_VALUE), (top - 1, NO_VALUE), (NO_VALUE, top)]
        limits.append((int(rng.integers(0, 2 * top + 2)), int(rng.integers(0, 2 * top + 2))))
        for first, second in limits:
            given = (first, second) if model.two_pass else (min(first, second),) * 2
            expected = best_chain(model, most, sync, given) if min(given) >= 0 else None
            outcome = program.run(*given)
            assert outcome.complete
            assert outcome.value == expected, (seed, given)
            checked, none = checked + 1, none + (expected is None)
            if expected is not None:
                check_stages(model, outcome, most, sync, given)
                assert most > 1 or program.area_bound() <= expected
        stopped = program.run(NO_VALUE, stop=lambda: True)
        assert not stopped.complete or lattice.num_ideals <= 16
        assert (program.run(-1).value, program.run(5, -1).complete) == (None, True)
    assert none > 3
    assert checked - none > 6


def test_work_spread_evenly_is_a_bound():
    """Of equal devices exactly the work by their number, rounded up; 0 where a type does it in no
    time.
    """
    for compute, expected in (
        ([[3, 3, 3], [4, 4, 4], [6, 6, 6]], 5),  # 13 by 3
        ([[3, 6], [4, 8], [5, 10]], 8),  # 12 at a rate of 1 + 1/2
        ([[3, 0], [4, 8]], 0),
        ([[0, 3], [4, 8]], 3),  # 4 of type 0 at a rate of 1 + 1/2; type 0 does not do op 0 slower
        ([[3, -1], [4, 2]], 3),  # 7 at a rate of 1 + 2
    ):
        problem = PlacementProblem.from_edges(compute, [], objective="period", contiguity="chain")
        model = contract(problem, contiguity="chain")
        program = IdealProgram(model, linear_lattice(model.num_nodes))
        assert program.area_bound() == expected, compute


def test_orders_are_topological():
    """As many as asked, the first one the model's own, the others by the seed, each before what it
    leads to.
    """
    various = set()
    for seed, model in models(range(12)):
        orders = list(_orders(model, 4, np.random.default_rng(seed)))
        assert len(orders) == 4
        assert orders[0].tolist() == list(range(model.num_nodes))
        for order in orders:
            place = {v: i for i, v in enumerate(order.tolist())}
            assert sorted(place) == list(range(model.num_nodes))
            for u, v in zip(model.order_from.tolist(), model.order_to.tolist(), strict=True):
                assert place[u] < place[v]
            various.add((seed, tuple(order.tolist())))
        assert len(list(_orders(model, 1, np.random.default_rng(seed)))) == 1
    assert len(various) > 18


def test_devices_are_given_in_order():
    """Each stage gets the next devices of its type, its ops the first of them."""
    _, model = next(models([1]))
    g = int(np.argmax(model.type_counts))
    parts = np.array_split(np.arange(model.num_nodes), model.type_counts[g])
    stages = tuple(Stage(nodes, g, 1) for nodes in parts)
    device, groups = stage_devices(model, stages)
    assert groups == [(d,) for d in model.types[g]]
    assert device.tolist() == [
        model.types[g][next(i for i, nodes in enumerate(parts) if v in nodes)]
        for v in model.node.tolist()
    ]


def test_five_types_have_states_of_their_own():
    """Devices that all differ are all used where that is best."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        problem = PlacementProblem.from_edges(
            rng.integers(1, 30, (4, 5)), [(0, 2, 1), (1, 2, 2)], objective="period"
        ).replace(contiguity="chain")
        model = contract(problem, contiguity="chain")
        lattice = ideal_lattice(model.num_nodes, model.order_from, model.order_to, limit=100)
        none = np.zeros(model.num_nodes, dtype=np.int64)
        limits = (NO_VALUE, NO_VALUE)
        outcome = IdealProgram(model, lattice).run(NO_VALUE)
        assert outcome.value == best_chain(model, 1, none, limits)
        check_stages(model, outcome, 1, none, limits)


def test_no_chain_is_no_proof_that_nothing_fits():
    """Ops that a chain would keep together, without a device in common: infeasible as a chain, and
    a message elsewhere.
    """
    problem = PlacementProblem.from_edges(
        [[1, -1], [-1, 1], [1, -1]],
        [(0, 1, 1), (1, 2, 1)],
        colocation=[3, -1, 3],
        objective="period",
    )
    for contiguity, status in (("none", "unknown"), ("chain", "infeasible")):
        result = make_solver("linear-dp").solve(
            problem.replace(contiguity=contiguity), Budget(), seed=0
        )
        assert result.status == status
        assert ("no chain: " in result.message) == (contiguity == "none")


def test_orders_are_counted_and_end_with_the_evaluations():
    """Four orders by default, as many as evaluations allow; ideals are enumerated in tries that
    grow up to their limit.
    """
    problem = PlacementProblem.from_edges(
        [[3, 3]] * 4, [(0, 2, 1), (1, 3, 2)], objective="period"
    ).replace(contiguity="chain")
    for evaluations, expected in ((None, 4), (1, 1), (2, 2)):
        budget = Budget(evaluations=evaluations)
        result = make_solver("linear-dp").solve(problem, budget, seed=0)
        assert (result.evaluations, result.value) == (expected, 6)
    for seed in range(4):
        problem = problems.random_problem(seed, n=5, contiguity="chain")
        result = make_solver("ideal-dp", max_ideals=64).solve(problem, Budget(), seed=0)
        best = problems.best_period(problem)
        assert result.value == best
        assert result.status == ("infeasible" if best is None else "optimal"), seed


def test_devices_in_an_order_are_used_as_well_as_can_be():
    """Where the states of all devices are too many, the program finds the best chain along an order
    of the devices; it says that it has not seen the others.
    """
    for seed, model in models(range(16)):
        n, types = model.num_nodes, np.random.default_rng(seed).permutation(model.type_of)
        none = np.zeros(n, dtype=np.int64)
        most = len(types) + 1
        program = IdealProgram(model, linear_lattice(n), most_states=most, sequence=types)
        assert program.restricted == (model.num_types > 1)
        best = [0, *[NO_VALUE] * n]
        for g in types.tolist() if program.restricted else ():
            before = list(best)
            for i, j in combinations(range(n + 1), 2):
                load = stage_loads(model, frozenset(range(i, j)), g, 1, none)
                if load is not None:
                    best[j] = min(best[j], max(before[i], load[0]))
        outcome = program.run(NO_VALUE)
        if program.restricted:
            assert outcome.value == (None if best[n] == NO_VALUE else best[n])
        if outcome.value is not None:
            check_stages(model, outcome, 1, none, (NO_VALUE, NO_VALUE))


def test_devices_of_many_types_all_have_a_stage():
    """Half of the devices were left out where those of all states were too many."""
    rng = np.random.default_rng(0)
    chain = [(v, v + 1, 1) for v in range(11)]
    problem = PlacementProblem.from_edges(
        rng.integers(5, 9, (12, 12)), chain, objective="period", contiguity="chain"
    )
    model = contract(problem, contiguity="chain")
    program = IdealProgram(model, linear_lattice(12), most_states=100)
    assert program.restricted
    assert program.run(NO_VALUE).value <= 10  # an op and two transfers


def test_ideals_of_large_graphs_are_counted_from_few_on():
    """The first try takes no longer than a second, however many nodes each ideal looks at."""
    none = np.zeros(0, dtype=np.int64)
    for nodes, enough in ((60, 15_625), (70, 30)):
        found = lattice_in_time(
            nodes,
            none,
            none,
            limit=10**6,
            left=lambda: 0.0,
            first_steps=5000 if nodes > 64 else 2**31,
        )
        assert found == (None, enough)


@pytest.mark.parametrize("words", [1, 2])
def test_ideals_that_differ_in_their_last_nodes_are_found_apart(words):
    """Sets of the last ten nodes of a word have slots of their own: with one for all, each would
    pass by all others (62 nodes with 80 000 ideals took four seconds).
    """
    table = np.full(2**14, -1, np.int32)
    rows = np.zeros((2**10, words), np.uint64)
    rows[:, -1] = np.arange(2**10, dtype=np.uint64) << np.uint64(54)
    find = getattr(_find, "py_func", _find)
    with np.errstate(over="ignore"):
        slots = {int(find(rows, table, len(table) - 1, row)) for row in rows}
    assert len(slots) > 900
