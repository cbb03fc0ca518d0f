"""The contraction of period problems: an optimal placement is kept, equal devices are one type, and
what joins is what may.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.model.errors import InfeasibleProblemError
from placeopt.period import contracted
from placeopt.period.contracted import contract, device_types


@problems.every_meaning
def test_an_optimal_placement_is_kept(contiguity, pipeline, training):
    """The best placement of nodes is the best of ops, also where heavy transfers joined under a
    limit that it keeps.
    """
    joined = 0
    for seed in range(10):
        problem = problems.random_problem(
            seed, n=5, contiguity=contiguity, pipeline=pipeline, training=training
        )
        if seed % 2:  # some ops take no time, and some transfers much
            idle = np.random.default_rng(seed).random((5, 1)) < 0.4
            problem = problem.replace(
                compute=np.where(idle, np.minimum(problem.compute, 0), problem.compute),
                transfer=problem.transfer * 4,
            )
        best = problems.best_period(problem)
        for limit in (None, best, 2**40 if best is None else best + 3):
            try:
                model = contract(problem, limit=limit)
            except InfeasibleProblemError:
                assert best is None
                continue
            joined += problem.num_ops - model.num_nodes
            values = [
                problems.oracle_period(problem, tuple(model.expand(np.array(device)).tolist()))
                for device in product(range(3), repeat=model.num_nodes)
            ]
            assert min((x for x in values if x is not None), default=None) == best, (seed, limit)
            place = {v: i for i, v in enumerate(range(model.num_nodes))}
            if contiguity == "chain":
                pairs = zip(model.order_from.tolist(), model.order_to.tolist(), strict=True)
                assert all(place[u] < place[v] for u, v in pairs)
            if best is not None:
                assert model.largest_load >= best
    assert joined > 5


def model_of(compute, edges, limit=None, **fields):
    """Return the contraction of a problem, and which ops share its nodes."""
    settings = {"objective": "period", "contiguity": "none", **fields}
    model = contract(po.PlacementProblem.from_edges(compute, edges, **settings), limit=limit)
    return model, sorted(np.flatnonzero(model.node == v).tolist() for v in range(model.num_nodes))


def test_idle_leaves_join_their_neighbour():
    """An op of no time that one other op feeds; not where that one can be on a device that it
    cannot, nor where memory may be short; a chain of leaves joins end by end.
    """
    times = [[4, 4], [0, 0], [5, 5]]
    edges = [(0, 1, 3), (0, 2, 7)]
    assert model_of(times, edges)[1] == [[0, 1], [2]]
    assert model_of([[4, 4], [0, -1], [5, 5]], edges)[1] == [[0], [1], [2]]
    assert model_of([[4, -1], [0, -1], [5, 5]], edges)[1] == [[0, 1], [2]]
    full = {"resident": [1, 1, 1], "capacity": [2, 3]}
    assert model_of(times, edges, **full)[1] == [[0], [1], [2]]
    assert model_of(times, edges, **{**full, "capacity": [3, 3]})[1] == [[0, 1], [2]]
    assert model_of(times, [*edges, (1, 2, 1)])[1] == [[0], [1], [2]]
    chain = [(0, 1, 3), (1, 2, 3), (2, 3, 3), (0, 4, 9)]
    assert model_of([[4, 4], [0, 0], [0, 0], [0, 0], [5, 5]], chain)[1] == [[0, 1, 2, 3], [4]]
    assert len(model_of([[4, 4], [0, 0], [5, 5]], [(0, 2, 7)])[1]) == 2
    problem = model_of(times, edges)[0].problem
    for sync, nodes in ([0, 0, 0], 2), ([1, 0, 1], 2), ([0, 1, 0], 3):
        assert contract(problem, contiguity="none", sync=np.array(sync)).num_nodes == nodes


def test_heavy_transfers_join_their_ends():
    """Where either end beside the transfer exceeds the limit on every device that pays, and at most
    one device does not; not a tick above.
    """
    times, edges = [[4, 4], [5, 5], [1, 1]], [(0, 1, 9), (1, 2, 1)]
    pays = {"io_class": [0, 0]}
    assert model_of(times, edges, 12, **pays)[1] == [[0, 1], [2]]
    assert model_of(times, edges, 13, **pays)[1] == [[0], [1], [2]]
    one = [[*row, 20] for row in times]
    assert model_of(one, edges, 12, io_class=[0, 0, -1])[1] == [[0, 1], [2]]
    two = [[*row, 20, 20] for row in times]
    assert model_of(two, edges, 12, io_class=[0, 0, -1, -1])[1] == [[0], [1], [2]]
    assert model_of(times, edges, 0, io_class=[-1, -1])[1] == [[0], [1], [2]]
    apart = [[4, -1], [-1, 5], [1, 1]]
    assert model_of(apart, edges, 3, **pays)[1] == [[0], [1], [2]]
    assert model_of([[4, 4], [5, -1], [1, 1]], edges, 12, **pays)[1] == [[0, 1], [2]]
    some = [[4, 4, -1], [5, -1, 5], [-1, 1, 1]]  # the first two join on device 0, which excludes 2
    heavy = [(0, 1, 9), (1, 2, 9)]
    assert model_of(some, heavy, 3, io_class=[0, 0, 0])[1] == [[0, 1], [2]]


def test_devices_alike_are_one_type():
    """By times, costs of transfers and capacity; those without such costs last."""
    problem = po.PlacementProblem.from_edges(
        [[1, 1, 2, 1, 1, 1]] * 3,
        [(0, 1, 5), (1, 2, 5)],
        capacity=[9, 9, 9, 8, 9, 9],
        io_class=[-1, 0, 0, 0, 0, -1],
        objective="period",
    )
    expected = {(0, 5), (1, 4), (2,), (3,)}
    assert set(device_types(problem)) == expected
    assert device_types(problem)[-1] == (0, 5)


def test_tensors_with_the_same_ends_add_up():
    """Whichever end produces them; not those of other passes, nor those that cost nothing."""
    edges = [(0, 1, 3), (0, 1, 4), (1, 2, 0), (0, 2, 2)]
    model, ops = model_of([[4, 4], [5, 5], [6, 6]], edges, colocation=[-1, -1, -1])
    assert ops == [[0], [1], [2]]
    found = {
        frozenset((int(model.producer[t]), int(v))): model.weight[t].tolist()
        for t in range(len(model.producer))
        for v in model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]]
    }
    node = model.node.tolist()
    assert found == {frozenset((node[0], node[1])): [7], frozenset((node[0], node[2])): [2]}
    assert model.largest_load == 15 + 9
    passes = model_of(
        [[4, 4], [5, 5], [6, 6]],
        edges,
        backward=[False, True, True],
        pipeline="gpipe",
    )[0]
    assert passes.two_pass
    assert passes.compute.sum(axis=1).tolist() == [[4], [11]]
    late = model_of([[4, 4], [5, 5], [6, 6]], edges, backward=[False, True, True])[0]
    assert not late.two_pass
    assert late.compute.sum(axis=1).tolist() == [[15], [0]]
    assert late.tensor_pass.tolist() == [0, 0]


def test_ops_without_a_device_in_common_are_named():
    """Those that must share one."""
    with pytest.raises(InfeasibleProblemError, match=r"'op0', 'op2' must share a device"):
        model_of([[1, -1], [2, 2], [-1, 1]], [], colocation=[4, -1, 4])


def test_idle_leaves_are_joined_at_once(monkeypatch):
    """Stars, chains and lone ops of no time join what they hang on in one look, not one a look."""
    n, looks, build = 100, [], contracted._build
    edges = [(0, v, 1) for v in range(1, n + 1)] + [(v, v + 1, 1) for v in range(n, 2 * n)]
    compute = np.zeros((3 * n, 2), dtype=np.int64)
    compute[0] = 5
    problem = po.PlacementProblem.from_edges(compute, edges, objective="period", contiguity="none")

    def counted(*given):
        looks.append(given)
        return build(*given)

    monkeypatch.setattr(contracted, "_build", counted)
    assert contract(problem).num_nodes == 1
    assert len(looks) == 2


def test_joined_neighbours_have_a_device():
    """A coarse model has at most the nodes that were asked for and those that fit no device with
    the nodes before them; its chains are chains of ops.
    """
    for seed in range(12):
        problem = problems.random_problem(seed, n=12, contiguity="chain", training=seed % 3 == 0)
        try:
            model = contract(problem)
        except InfeasibleProblemError:
            continue
        assert model.coarse(model.num_nodes) is model
        for most in (1, 2, 5):
            coarse = model.coarse(most)
            size = -(-model.num_nodes // most)
            blocks = [np.flatnonzero(coarse.node == b) for b in range(coarse.num_nodes)]
            place = [np.unique(model.node[block]).tolist() for block in blocks]
            assert np.concatenate(place).tolist() == list(range(model.num_nodes))
            assert max(map(len, place)) <= size
            able = coarse.allowed & (coarse.resident[:, None] <= coarse.capacity)
            alone = model.allowed & (model.resident[:, None] <= model.capacity)
            assert able.any(axis=1).all() or not alone.any(axis=1).all()
            assert (coarse.order_from < coarse.order_to).all()
