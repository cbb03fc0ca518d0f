"""The topological order: by depth, then index, whatever the order of the ops."""

import networkx as nx
import numpy as np
import pytest

from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph, topological_order


@pytest.mark.parametrize("in_order", [True, False])
def test_topological_order_is_by_depth_then_index(in_order):
    """Depths equal those of networkx, where every edge leads to a later op and where not."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 40))
        name = np.arange(n) if in_order else rng.permutation(n)
        pairs = sorted({(int(a), int(b)) for a, b in rng.integers(0, n, (2 * n, 2)) if a < b})
        source = np.array([name[a] for a, _ in pairs], dtype=np.int64)
        target = np.array([name[b] for _, b in pairs], dtype=np.int64)
        layers = nx.topological_generations(
            nx.DiGraph(zip(source.tolist(), target.tolist(), strict=True))
        )
        depth = {op: number for number, layer in enumerate(layers) for op in layer}
        expected = sorted(range(n), key=lambda op: (depth.get(op, 0), op))
        assert (
            topological_order(n, source, target, [str(op) for op in range(n)]).tolist() == expected
        )


def test_a_cycle_is_refused_and_named():
    """An edge that leads back is enough for a closer look."""
    with pytest.raises(InputError, match="cycle: "):
        OpGraph.from_edges("loop", ["a", "b", "c"], [(0, 1), (1, 2), (2, 1)])


def test_a_tensor_of_too_many_elements_is_refused():
    """More than int64 holds, or a float, is no shape; costs are computed from their number."""
    for shape in ((2**40, 2**40), (10**200, 10**200)):
        with pytest.raises(InputError, match=r"shapes\[0\]: expected fewer than 2\^62"):
            OpGraph.from_edges("large", ["a", "b"], [(0, 1)], shapes=(shape,))
