"""The baselines of Tarnawski et al.: each does what its paper says, checked by brute force."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from placeopt.model.errors import MissingExtraError, Refused
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_batch
from placeopt.solvers.splits import graph_partition
from placeopt.solvers.splits.graph_partition import GraphPartition, MinCut, edges_of, parts_of
from placeopt.solvers.splits.pipedream import PipeDream, best_stages, cuts, stage_times
from placeopt.solvers.splits.split_local_search import SplitLocalSearch
from placeopt.solving.run import run


def problem_of(seed, ops=8, devices=3, contiguity="none", capacity=100):
    """Return a small random graph on identical accelerators."""
    rng = np.random.default_rng(seed)
    edges = [
        (u, v, int(rng.integers(1, 8)))
        for u in range(ops)
        for v in range(u + 1, ops)
        if rng.random() < 0.4
    ]
    compute = np.repeat(rng.integers(1, 30, (ops, 1)), devices, axis=1)
    return PlacementProblem.from_edges(
        compute,
        edges,
        resident=rng.integers(1, 9, ops),
        capacity=[capacity] * devices,
        objective="period",
        contiguity=contiguity,
        io_class=[0] * devices,
    )


def slowest(model, bounds):
    """Return PipeDream's price of stages that end at these nodes, by its definition."""
    largest = 0
    for start, end in itertools.pairwise((0, *bounds)):
        inside = set(range(start, end))
        if sum(model.resident[v] for v in inside) > model.capacity[0]:
            return None
        largest = max(largest, sum(int(model.total[v, 0]) for v in inside))
        for t in range(len(model.producer)):
            pins = {
                int(model.producer[t]),
                *model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]].tolist(),
            }
            crossing = sum(
                int(model.weight[t, 0]) for end_ in (end,) if min(pins) < end_ <= max(pins)
            )
            if crossing:
                largest = max(largest, total_cut(model, end))
    return largest


def total_cut(model, end):
    """Return the ticks of all tensors between the first nodes and the rest."""
    return sum(
        int(model.weight[t, 0])
        for t in range(len(model.producer))
        if min(pins_of(model, t)) < end <= max(pins_of(model, t))
    )


def pins_of(model, t):
    """Return the nodes of a tensor."""
    return {
        int(model.producer[t]),
        *model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]].tolist(),
    }


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("capacity", [100, 18])
def test_pipedream_is_the_best_of_its_stages(seed, capacity):
    """The dynamic program finds stages as fast as the best of all cuts of the order, memory
    kept.
    """
    problem = problem_of(seed, capacity=capacity)
    model = contract(problem, contiguity="chain")
    n = model.num_nodes
    choices = [(*inner, n) for m in range(3) for inner in itertools.combinations(range(1, n), m)]
    prices = [price for bounds in choices if (price := slowest(model, bounds)) is not None]
    part = best_stages(stage_times(model, 0), cuts(model, 0), 3)
    assert (part is None) == (not prices)
    if part is not None:
        ends = [*(np.flatnonzero(np.diff(part)) + 1).tolist(), n]
        assert slowest(model, ends) == min(prices)


def test_pipedream_keeps_chains():
    """Its stages are a pipeline of ideals, whatever contiguity asks for."""
    for contiguity in ("chain", "convex", "none"):
        result = run(problem_of(1, contiguity=contiguity), PipeDream(), Budget(seconds=10))
        assert result.solution is not None, contiguity


@pytest.mark.parametrize("seed", range(5))
def test_local_search_ends_where_no_move_helps(seed):
    """With one start it ends in a local optimum of single moves; more starts are never worse."""
    problem = problem_of(seed)
    one = run(problem, SplitLocalSearch(restarts=1), Budget(evaluations=100_000), seed=seed)
    home = one.solution.device
    moves = []
    for op, device in itertools.product(range(problem.num_ops), range(3)):
        moved = home.copy()
        moved[op] = device
        moves.append(moved)
    assert period_batch(problem, np.array(moves)).min() >= one.objective
    more = run(problem, SplitLocalSearch(restarts=5), Budget(evaluations=100_000), seed=seed)
    best = period_batch(
        problem, np.array(list(itertools.product(range(3), repeat=problem.num_ops)))
    ).min()
    assert best <= more.objective <= one.objective


def test_local_search_takes_no_contiguity():
    """A problem that asks for contiguity is refused, not answered with something else."""
    with pytest.raises(Refused, match="contiguity"):
        run(problem_of(0, contiguity="chain"), SplitLocalSearch(), Budget(seconds=1))


class FakePartitioner:
    """A partitioner that notes what it was given."""

    def __init__(self):
        self.calls = []

    class Options:
        """Options by name."""

        def __init__(self, **given):
            self.given = given

    class CSRAdjacency:
        """A graph by rows."""

        def __init__(self, starts, adjacent):
            self.starts, self.adjacent = starts, adjacent

    def part_graph(self, parts, adjacency, **given):
        """Put all nodes on alternating parts."""
        self.calls.append((parts, given))
        return 0, [v % parts for v in range(len(given["vweights"]))]


def test_what_the_partitioner_is_given():
    """Nodes weigh their time, edges their transfer, both ways alike; the graph has no loops."""
    model, fake = contract(problem_of(3), contiguity="none"), FakePartitioner()
    parts, graph = len(model.types[0]), edges_of(model, 0)
    found = list(parts_of(fake, parts, graph, model.total[:, 0], seed=1, starts=1))
    imbalances = {given["options"].given["ufactor"] for _, given in fake.calls}
    assert len(found) == len(fake.calls) == len(imbalances) > 1
    pointer, neighbour, weight = graph
    table = {
        (u, neighbour[i]): weight[i]
        for u in range(model.num_nodes)
        for i in range(pointer[u], pointer[u + 1])
    }
    assert all(u != v and table[v, u] == w for (u, v), w in table.items())
    assert {
        pair
        for t in range(len(model.producer))
        for p in pins_of(model, t) - {int(model.producer[t])}
        for pair in ((int(model.producer[t]), p), (p, int(model.producer[t])))
    } == set(table)
    assert fake.calls[0][1]["vweights"] == model.total[:, 0].tolist()


def test_a_fake_partition_is_judged(monkeypatch):
    """Parts are offered as splits over the accelerators, and those that break a limit are
    dropped.
    """
    monkeypatch.setattr(graph_partition, "load_partitioner", FakePartitioner)
    problem = problem_of(3)
    result = run(problem, GraphPartition(), Budget(seconds=10))
    assert result.solution.device.tolist() == [
        v % 3 for v in contract(problem, contiguity="none").node
    ]
    parts = np.bincount(result.solution.device, weights=problem.resident).astype(int)
    tight = run(problem_of(3, capacity=int(parts.max()) - 1), GraphPartition(), Budget(seconds=10))
    assert tight.solution is None
    assert "memory" in tight.message


def test_without_the_package(monkeypatch):
    """Where pymetis is not installed the solver says which extra brings it."""
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(MissingExtraError, match=r"placeopt\[partition\]"):
        run(problem_of(0), GraphPartition(), Budget(seconds=1))


def test_metis_cuts_little():
    """Of two cliques joined by one edge the partitioner finds the joint."""
    pytest.importorskip("pymetis")
    edges = [
        (u, v, 10) for base in (0, 4) for u in range(base, base + 4) for v in range(u + 1, base + 4)
    ] + [(3, 4, 1)]
    problem = PlacementProblem.from_edges(
        [[5, 5]] * 8, edges, objective="period", contiguity="none", io_class=[0, 0]
    )
    result = run(problem, GraphPartition(), Budget(seconds=10), seed=0)
    assert len(set(result.solution.device[:4])) == len(set(result.solution.device[4:])) == 1
    assert result.objective == 21


def test_min_cut_separates_what_is_independent():
    """Two independent chains go to two devices, each as a whole: no transfer is paid."""
    pytest.importorskip("pymetis")
    edges = [(u, u + 1, 50) for base in (0, 4) for u in range(base, base + 3)]
    problem = PlacementProblem.from_edges([[5, 5]] * 8, edges)
    result = run(problem, MinCut(), Budget(seconds=10), seed=0)
    assert result.objective == 20


def test_min_cut_makes_no_more_parts_than_nodes(capfd):
    """Three ops on eight devices: METIS has nothing to complain of on standard output."""
    pytest.importorskip("pymetis")
    problem = PlacementProblem.from_edges([[5] * 8] * 3, [(0, 1, 50), (0, 2, 50)])
    result = run(problem, MinCut(), Budget(seconds=10), seed=0)
    assert result.objective == 5 + 50 + 5
    assert capfd.readouterr().out == ""


def test_min_cut_without_the_package(monkeypatch):
    """The makespan's baseline names the extra, too."""
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(MissingExtraError, match=r"placeopt\[partition\]"):
        run(problem_of(0).replace(objective="makespan"), MinCut(), Budget(seconds=1))


def test_pipedream_refuses_what_its_table_cannot_hold(monkeypatch):
    """A number for every pair of nodes: a graph with too many is refused in one line."""
    monkeypatch.setattr(PipeDream, "most_nodes", 3)
    with pytest.raises(Refused, match="takes 3 at most"):
        run(problem_of(0, contiguity="chain"), PipeDream(), Budget())
