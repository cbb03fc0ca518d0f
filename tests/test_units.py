"""Units and the projection of a problem against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.model.problem import PlacementProblem
from placeopt.model.projection import join_units


def random_problem(seed: int) -> PlacementProblem:
    """Return a problem with colocation groups, incompatible devices and bytes."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 12)), int(rng.integers(1, 4))
    compute = rng.integers(0, 9, (n, k))
    compute[:, 1:][rng.random((n, k - 1)) < 0.3] = -1
    edges = [
        (u, v, int(rng.integers(0, 5))) for v in range(n) for u in range(v) if rng.random() < 0.3
    ]
    return PlacementProblem.from_edges(
        compute,
        edges,
        colocation=rng.integers(-1, 4, n),
        resident=rng.integers(0, 7, n),
        capacity=np.full(k, 50),
    )


@pytest.mark.parametrize("seed", range(20))
def test_units_are_the_colocation_groups_and_single_ops_by_first_op(seed: int) -> None:
    """Every field of the units follows from the colocation ids, op by op."""
    problem = random_problem(seed)
    groups: dict[int, list[int]] = {}
    for op, group in enumerate(problem.colocation.tolist()):
        groups.setdefault(group if group >= 0 else -2 - op, []).append(op)
    units = problem.units
    assert units.first_op.tolist() == [ops[0] for ops in groups.values()]
    for unit, ops in enumerate(groups.values()):
        assert units.member[units.member_ptr[unit] : units.member_ptr[unit + 1]].tolist() == ops
        assert (units.unit[ops] == unit).all()
        assert units.bytes[unit] == sum(int(problem.resident[op]) for op in ops)
        assert units.allowed[unit].tolist() == (problem.compute[ops] >= 0).all(axis=0).tolist()


@pytest.mark.parametrize("seed", range(10))
def test_joined_units_add_their_bytes_and_share_their_devices(seed: int) -> None:
    """A cluster of units has the bytes of all and the devices that every one may use."""
    units = random_problem(seed).units
    count = len(units.bytes)
    cluster = np.unique(np.random.default_rng(seed).integers(0, count, count), return_inverse=True)[
        1
    ]
    joined = join_units(units, cluster)
    for label in range(int(cluster.max()) + 1):
        assert joined.bytes[label] == units.bytes[cluster == label].sum()
        assert (
            joined.allowed[label].tolist() == units.allowed[cluster == label].all(axis=0).tolist()
        )
    assert (joined.unit == cluster[units.unit]).all()


@pytest.mark.parametrize("seed", range(10))
def test_projection_lists_every_edge_from_both_ends(seed: int) -> None:
    """In-edges and out-edges are the pairs (tensor, consumer); every array is read-only int64."""
    problem = random_problem(seed)
    pairs = {
        (int(problem.producer[t]), int(v), int(t))
        for t, v in zip(problem.edge_tensor, problem.consumer, strict=True)
    }
    out, into = problem.graph.successors, problem.graph.predecessors
    edges = [
        (u, int(out.op[e]), int(out.tensor[e]))
        for u in range(problem.num_ops)
        for e in range(out.pointer[u], out.pointer[u + 1])
    ]
    back = [
        (int(into.op[e]), v, int(into.tensor[e]))
        for v in range(problem.num_ops)
        for e in range(into.pointer[v], into.pointer[v + 1])
    ]
    assert set(edges) == set(back) == pairs
    assert len(edges) == len(back) == problem.num_edges
    assert problem.graph.indegree.tolist() == [
        sum(v == op for _, v, _ in pairs) for op in range(problem.num_ops)
    ]
    for arrays in (problem.costs, problem.bytes, problem.graph.successors, problem.graph.outputs):
        assert all(array.dtype == np.int64 and not array.flags.writeable for array in arrays)
    assert problem.graph is problem.graph  # computed once
