"""The warm start of the latency: CPUs that differ are no single pool."""

from __future__ import annotations

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.latency import evaluate
from placeopt.model.errors import InfeasibleProblemError, InputError
from placeopt.model.interpreted import as_python
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.period.contracted import contract
from placeopt.solvers.exact import latency_tactics
from placeopt.solvers.exact.latency_tactics import pooled
from placeopt.solving.tracker import Tracker


def two_cpus(capacity):
    """Five ops on two CPUs, of which the first is faster for some; no accelerator."""
    return po.PlacementProblem.from_arrays(
        compute=[[12, 12], [0, 11], [20, 0], [19, 5], [8, 15]],
        producer=np.array([0, 0, 1, 2]),
        consumer_ptr=[0, 2, 4, 7, 9],
        consumer=np.array([2, 4, 1, 3, 2, 3, 4, 3, 4]),
        transfer=np.zeros((4, 1), dtype=np.int64),
        link_class=np.zeros((2, 2), dtype=np.int64),
        channel=[[0, 0], [1, 1]],
        resident=[0, 3, 1, 0, 3],
        capacity=capacity,
        tensor_bytes=np.array([0, 0, 1, 0]),
        objective="latency",
        io_class=[-1, -1],
        slots=2,
    )


@pytest.mark.parametrize("seed", range(8))
def test_cpus_that_differ_are_no_pool(seed):
    """A CPU without room stays empty in every start, and no solution is lost to a start that was
    never valid.
    """
    result = po.solve(two_cpus([0, 8]), "cp-sat", seconds=60, seed=seed, num_workers=1)
    assert (result.value, result.status) == (38, "optimal")


def test_which_cpus_are_one_pool():
    """Those with equal times that can hold every op; not those that differ in either."""
    same = [[3, 3, 3], [4, 4, 4]]
    of = {
        "alike": (same, [9, 9, 9], [-1, -1, -1], [0, 0, 0]),
        "one without room": (same, [9, 1, 9], [-1, -1, -1], [0, 1, 0]),
        "one slower": ([[3, 3, 3], [4, 5, 4]], [9, 9, 9], [-1, -1, -1], [0, 1, 0]),
        "an accelerator": (same, [9, 9, 9], [-1, 0, -1], [0, 1, 0]),
    }
    for name, (compute, capacity, io_class, expected) in of.items():
        problem = po.PlacementProblem.from_edges(compute, [(0, 1, 1)], objective="latency").replace(
            capacity=np.array(capacity), resident=np.array([4, 4]), io_class=np.array(io_class)
        )
        assert pooled(problem).tolist() == expected, name


@pytest.mark.parametrize("slots", [1, 2])
def test_the_shortest_limit_gives_a_placement(slots):
    """A time that is over as the search begins ends with everything on one device."""
    problem = po.load("gen:fork-join", cluster="cpu+gpu", objective="latency", slots=slots)
    result = po.solve(problem, seconds=1e-9)
    assert result.solution is not None
    assert len(set(result.solution.device.tolist())) == 1


@pytest.mark.parametrize("slots", [3, 10**9])
def test_a_tensor_may_be_read_by_several_slots_of_one_accelerator(slots):
    """Each slot that reads a tensor pays for it: without a start the model cuts nothing off. More
    slots than ops are no more than as many.
    """
    problem = po.PlacementProblem.from_arrays(
        compute=[[-1, 1], [1, -1], [-1, 1], [1, -1], [-1, 1], [1, -1]],
        producer=np.arange(5),
        consumer_ptr=[0, 3, 4, 5, 6, 7],
        consumer=[1, 3, 5, 2, 3, 4, 5],
        transfer=[[100], [0], [0], [0], [0]],
        objective="latency",
        slots=slots,
    )
    result = po.solve(problem, "cp-sat", seconds=60, tactics="cp-sat", num_workers=1)
    assert (result.value, result.status) == (406, "optimal")
    assert po.solve(problem, seconds=60).value == 406


def test_slots_are_whole_numbers_whose_ticks_have_room():
    """Anything else is one clear line, and so are tensors that many slots read for too long."""
    given = {"compute": [[1, 1]] * 5, "edges": [(v, v + 1, 1) for v in range(4)]}
    for slots in (0, 2.5, "2"):
        with pytest.raises(InputError, match="slots: expected a whole number of at least 1"):
            po.PlacementProblem.from_edges(**given, objective="latency", slots=slots)
    shared = {
        "compute": [[1, 1]] * 5,
        "producer": [0],
        "consumer_ptr": [0, 4],
        "consumer": [1, 2, 3, 4],
        "transfer": [[2**60]],
    }
    assert po.PlacementProblem.from_arrays(**shared, objective="latency").num_ops == 5
    with pytest.raises(InputError, match=r"passes 2\^62"):
        po.PlacementProblem.from_arrays(**shared, objective="latency", slots=2)


def test_slots_of_a_segment_take_as_long_as_they_do():
    """The table of all segments of an order has the time of each slot by its definition, and 2^62
    where it does not fit.
    """
    fitting = 0
    for seed in range(20):
        try:
            model = contract(problems.random_problem(seed, n=7), contiguity="chain")
        except InfeasibleProblemError:
            continue
        for g in range(model.num_types):
            table = latency_tactics._durations(model, g)
            for i in range(model.num_nodes):
                for j in range(i + 1, model.num_nodes + 1):
                    nodes = set(range(i, j))
                    ticks = int(model.total[i:j, g].sum())
                    for t, u in enumerate(model.producer.tolist()):
                        ends = {u, *model.readers(t)}
                        ticks += int(model.weight[t, g]) * bool(ends & nodes and ends - nodes)
                    fits = model.allowed[i:j, g].all()
                    fits = fits and model.resident[i:j].sum() <= model.capacity[g]
                    assert table[i, j] == (ticks if fits else 2**62)
                    fitting += fits
    assert fitting > 200


def test_a_chunk_is_short_on_large_graphs():
    """A chunk of annealing, which no clock ends, looks at no more ops and edges than in a second."""
    problem = two_cpus([9, 9])
    tracker = Tracker("walk", problem, Budget(1.0))
    next(latency_tactics.starts(tracker))
    size = problem.num_ops + problem.num_edges
    assert latency_tactics._Walk(tracker, work=50 * size).moves == 51
    assert latency_tactics._Walk(tracker).moves == 300 * 5 * 2


def test_annealing_goes_through_full_memory():
    """Where both accelerators are full, no op moves between them without breaking a capacity."""
    problem = PlacementProblem.from_edges(
        [[5, 5], [5, 5], [1, 1], [1, 1]],
        [],
        resident=[1] * 4,
        capacity=[2, 2],
        objective="latency",
    )
    given = po.Placement(np.array([0, 0, 1, 1]))
    found = po.solve(problem, "cp-sat", initial=given, evaluations=4, tactics="annealing")
    assert found.value == 6


@pytest.mark.parametrize("seed", range(6))
def test_a_move_leaves_the_units_of_the_whole(monkeypatch, seed):
    """After every move, taken or not, the latency by what it changed is that of the placement, and
    so are the durations of all units; with slots, a pool, classes and ops that begin where they
    cannot run.
    """
    anneal = as_python(evaluate.anneal_slots)
    parts = anneal.__globals__
    evaluated, whole = parts["latency_of"], []

    def checked(arrays, units):
        fresh = parts["_no_units"](arrays)
        parts["_count_all"](arrays, device, slot, fresh)
        assert evaluated(arrays, units) == evaluated(arrays, fresh)
        assert units.duration.tolist() == fresh.duration.tolist()
        whole.append(units)
        return evaluated(arrays, units)

    monkeypatch.setitem(parts, "latency_of", checked)
    problem = problems.random_problem(seed, n=9, objective="latency", slots=1 + seed % 3)
    walk = latency_tactics._Walk(Tracker("walk", problem, Budget(1.0)))
    device, slot = walk.device, walk.slot
    cooling = evaluate.Cooling(50.0, 1.0, 150, 0.01, walk.weight, 1e6)
    anneal(walk.arrays, walk.groups, device, slot, cooling, seed, device.copy(), slot.copy())
    assert len(whole) > 20


@pytest.mark.parametrize("seed", [1, 2])
def test_annealing_gathers_communities(seed):
    """Trees of heavy edges, one for each slot, which light edges join, come together: op by op, all
    that an op exchanges much with holds it back.
    """
    rng, devices, turns, size = np.random.default_rng(seed), 3, 3, 6
    edges = []
    for first in range(0, devices * turns * size, size):
        edges += [(first + int(rng.integers(i)), first + i, 100) for i in range(1, size)]
        before = first // (devices * size) - 1
        for part in rng.permutation(devices)[:2].tolist() if before >= 0 else ():
            source = (before * devices + part) * size + int(rng.integers(size))
            edges.append((source, first + int(rng.integers(size)), 1))
    tree = np.arange(devices * turns * size) // size
    problem = PlacementProblem.from_edges(
        [[10] * devices] * len(tree),
        edges,
        resident=[1] * len(tree),
        capacity=[turns * size] * devices,
        objective="latency",
        slots=turns,
    )
    planted = evaluate.latency_value(problem, po.Placement(tree % devices, tree // devices))
    found = po.solve(problem, "cp-sat", evaluations=10, tactics="starts,annealing")
    assert found.value <= planted


def test_annealing_finds_a_placement_where_no_start_is_one():
    """Ops that run on the accelerator only, and others that do not, alternate in every order of
    which starts are segments: the one accelerator op of a chain ends before the other one can begin.
    """
    compute = [[-1, 1], [1, -1], [-1, 9], [-1, 9], [1, -1], [-1, 1]]
    edges = [(0, 1, 1), (1, 2, 1), (3, 4, 1), (4, 5, 1)]
    problem = PlacementProblem.from_edges(compute, edges, objective="latency", io_class=[0, -1])
    tracker = Tracker("starts", problem, Budget(evaluations=100))
    list(latency_tactics.starts(tracker))
    assert tracker.value is None
    found = po.solve(problem, "cp-sat", evaluations=8, tactics="starts,annealing")
    assert found.value == 9 + 6 + 9


def test_a_latency_begins_with_few_states_of_unlike_devices(monkeypatch):
    """The pipeline among the starts looks at few states of devices: all of them took seconds, and
    whatever follows waits for it.
    """
    rng = np.random.default_rng(0)
    compute = rng.integers(1, 9, (20, 1)) * np.repeat([1, 2, 3, 4, 5], 4)
    problem = PlacementProblem.from_edges(compute, [(0, 1, 1)], objective="latency")
    states = []
    best_chain = latency_tactics.best_chain

    def noted(program, *rest):
        states.append(len(program.arrays.digit))
        return best_chain(program, *rest)

    monkeypatch.setattr(latency_tactics, "best_chain", noted)
    list(latency_tactics.starts(Tracker("starts", problem, Budget(evaluations=100))))
    assert max(states) <= latency_tactics.QUICK


def test_starts_on_each_device_keep_to_the_evaluations():
    """Every device alone is one start, and counts."""
    problem = PlacementProblem.from_edges(
        [[v + d + 1 for d in range(6)] for v in range(4)], [(0, 1, 1)], objective="latency"
    )
    assert po.solve(problem, "cp-sat", evaluations=2, seed=0, num_workers=1).evaluations <= 2
