"""The kernels and operands of a graph: sharded graphs compute what the whole matrices do."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.instances.sources import load_graph
from placeopt.model.errors import ExecutionError, InputError
from placeopt.model.graph import OpGraph
from placeopt.runtime.array_ops import KERNELS, constant
from placeopt.runtime.execution_plan import Constant, make_plan
from placeopt.runtime.measurement import check_close
from placeopt.runtime.serial_runtime import execute, result_tensors

FFNN = "gen:ffnn?batch=24&inputs=16&hidden=32&outputs=16&layers=2"
LLAMA = "gen:llama-block?hidden=32&heads=4&seq=24"


class Whole:
    """The blocks of a graph's constants and results, put together to whole matrices."""

    def __init__(self, source: str) -> None:
        self.graph, _ = load_graph(source)
        self.plan = make_plan(self.graph)
        self.results, _ = execute(self.graph, self.plan, self.graph.topological_order)
        self.constants: dict[str, Constant] = {
            x.name: x for step in self.plan.steps for x in step.operands if isinstance(x, Constant)
        }

    def constant(self, name: str) -> np.ndarray:
        """Return a constant by its name."""
        return constant(*self.constants[name])

    def matrix(self, stem: str) -> np.ndarray:
        """Return the matrix whose blocks are called stem + "row.column"."""
        places = sorted(
            tuple(int(x) for x in name.removeprefix(stem).split("."))
            for name in self.constants
            if name.startswith(stem)
        )
        rows, columns = (1 + max(place[i] for place in places) for i in range(2))
        assert len(places) == rows * columns
        return np.block(
            [[self.constant(f"{stem}{r}.{c}") for c in range(columns)] for r in range(rows)]
        )

    def result(self, rows: int, columns: int) -> np.ndarray:
        """Return the results of the graph, which are blocks in order."""
        blocks = [self.results[tensor] for tensor in result_tensors(self.graph)]
        assert len(blocks) == rows * columns
        return np.block([blocks[r * columns : (r + 1) * columns] for r in range(rows)])


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax of the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("shards", [1, 2, 4, 6])
def test_chain_of_products(shards: int) -> None:
    """The sharded chain computes (A B) + (C (D E)) on the matrices that its blocks make."""
    whole = Whole(f"gen:chain-mm?size=24&shards={shards}")
    a, b, d, e, c = (
        whole.matrix(x) for x in ("ab/left", "ab/weights", "de/left", "de/weights", "cde/left")
    )
    rows = {1: 1, 2: 1, 4: 2, 6: 2}[shards]
    np.testing.assert_allclose(
        whole.result(rows, shards // rows), a @ b + c @ (d @ e), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_feed_forward_network(shards: int) -> None:
    """The sharded network computes softmax(W3 relu(W2 relu(W1 x + b1) + b2) + b3)."""
    whole = Whole(f"{FFNN}&shards={shards}")
    rows, columns = {1: (1, 1), 2: (1, 2), 4: (2, 2)}[shards]
    x = whole.matrix("linear0/left")
    for layer in range(2):
        bias = np.tile(whole.constant(f"bias{layer}/bias"), columns)
        x = np.maximum(x @ whole.matrix(f"linear{layer}/weights") + bias, 0)
    x = softmax(
        x @ whole.matrix("output/weights") + np.tile(whole.constant("output_bias/bias"), columns)
    )
    np.testing.assert_allclose(whole.result(rows, columns), x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_attention_block(shards: int) -> None:
    """The sharded block computes norm, rotary attention by heads with a causal mask, and the
    residual.
    """
    whole = Whole(f"{LLAMA}&shards={shards}")
    rows, columns = {1: (1, 1), 2: (1, 2), 4: (2, 2)}[shards]
    x = whole.matrix("input")
    length, hidden = x.shape
    heads, width = 4, hidden // 4
    y = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6)
    q, k, v = (y @ whole.matrix(f"layer0/{key}/weights") for key in "qkv")

    def rotate(z: np.ndarray) -> np.ndarray:
        pairs = hidden // columns // 2  # features of a column of blocks are rotated together
        angle = np.arange(length)[:, None] * 10000.0 ** (-np.arange(pairs) / pairs)[None, :]
        parts = [
            (part[:, ::2] + 1j * part[:, 1::2]) * np.exp(1j * angle)
            for part in np.split(z, columns, axis=1)
        ]
        return np.concatenate(
            [np.stack([part.real, part.imag], axis=-1).reshape(length, -1) for part in parts],
            axis=1,
        )

    q, k, v = (
        z.reshape(length, heads, width).transpose(1, 0, 2) for z in (rotate(q), rotate(k), v)
    )
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(width) + np.triu(np.full((length, length), -1e9), 1)
    mixed = (softmax(scores) @ v).transpose(1, 0, 2).reshape(length, hidden)
    expected = x + mixed @ whole.matrix("layer0/out/weights")
    np.testing.assert_allclose(whole.result(rows, columns), expected, rtol=1e-3, atol=1e-4)


def test_convolution_is_the_definition() -> None:
    """Im2col equals the sums that define a convolution with stride, padding and groups."""
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((2, 4, 7, 6)), rng.standard_normal((6, 2 * 3 * 2))
    options = {"shape": (2, 6, 4, 3), "kernel": (3, 2), "stride": 2, "padding": (1, 0), "groups": 2}
    found = KERNELS["conv"](options, x, weights)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    for b, f, i, j in np.ndindex(2, 6, 4, 3):
        group = slice(0, 2) if f < 3 else slice(2, 4)
        window = padded[b, group, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2]
        assert found[b, f, i, j] == pytest.approx((window * weights[f].reshape(2, 3, 2)).sum())


@pytest.mark.parametrize(
    ("source", "share"),
    [
        ("gen:resnet50?image=64", 1.0),
        ("gen:inception-v3?image=96", 1.0),
        ("gen:llama-layer?hidden=32&heads=4&seq=16&ffn=48", 1.0),
        ("gen:gpt2?layers=1&seq=16&hidden=32&heads=2&vocab=64", 0.9),
        ("gen:layered?layers=4&width=4", 0.0),
    ],
)
def test_every_output_has_its_shape(source: str, share: float) -> None:
    """Whatever the kernel, an op's outputs have the shapes, types and bytes that the graph says."""
    graph, _ = load_graph(source)
    plan = make_plan(graph)
    assert plan.exact >= share * graph.num_ops
    values: dict[object, np.ndarray] = {}
    for op in graph.topological_order.tolist():
        values.update({key: constant(*key) for key in plan.constants(op)})
        found = plan.run(op, values)
        step = plan.steps[op]
        assert [(x.shape, str(x.dtype)) for x in found] == list(step.result), graph.op_names[op]
        assert [x.nbytes for x in found] == graph.tensor_bytes[list(step.outputs)].tolist()
        assert all(np.isfinite(x).all() for x in found), graph.op_names[op]
        values.update(zip(step.outputs, found, strict=True))


def test_calibrated_kernel_depends_on_every_input() -> None:
    """An op of unknown kind passes on whether each of its inputs was right, in the right order."""
    options = {"flops": 1000, "bytes": 5000, "outputs": (((7,), "float32"),)}
    x, y = np.linspace(0, 1, 100), np.linspace(1, 2, 100)
    values = {
        float(KERNELS["calibrated"](options, *inputs)[0][0])
        for inputs in ((x, y), (y, x), (x, x), (x,), ())
    }
    assert len(values) == 5


def test_huge_work_is_refused() -> None:
    """An op too large to be executed here is refused before anything runs."""
    graph = OpGraph.from_tensors("huge", ("a", "b"), [(0, 4, [1])], flops=np.array([10**16, 1]))
    with pytest.raises(InputError, match="too much to be executed here"):
        make_plan(graph)


def test_results_without_axes_are_executed() -> None:
    """An op with one value as its result, and weights, ended in an IndexError."""
    kinds = ["linear", "embedding", "variable", "scale", "add", "softmax", "relu"]
    tensors = [(i, 4, [i + 1] if i + 1 < len(kinds) else []) for i in range(len(kinds))]
    graph = OpGraph.from_tensors(
        "scalars",
        [f"op{i}" for i in range(len(kinds))],
        tensors,
        op_types=tuple(kinds),
        shapes=((),) * len(kinds),
        resident=np.full(len(kinds), 4),
        flops=np.full(len(kinds), 2),
    )
    plan = make_plan(graph)
    found, _ = execute(graph, plan, graph.topological_order)
    assert np.asarray(found[len(kinds) - 1]).shape == ()
    assert [step.kernel for step in plan.steps][4::2] == ["binary", "unary"]


def test_values_that_are_not_finite_are_compared() -> None:
    """Results with masked scores of minus infinity differed by nan from themselves."""
    right = np.array([1.0, -np.inf, np.nan, np.inf])
    check_close(right.copy(), right, 1e-4, "it differs")
    for found in ([1.1, -np.inf, np.nan, np.inf], [1.0, np.inf, np.nan, np.inf], [1.0, 0, 0, 0]):
        with pytest.raises(ExecutionError, match="it differs"):
            check_close(np.array(found), right, 1e-4, "it differs")


def test_small_values_beside_large_ones_are_compared():
    """Scores were as wrong as a share of the boxes beside them, and tokens one of many off."""
    boxes = np.float32([640, *np.linspace(0.01, 0.02, 9)])
    check_close(boxes * np.float32(1 + 5e-5), boxes, 1e-4, "it differs")
    peak = np.float32([1, 0, 0, 1e-9])  # what rounding leaves of a product of others
    check_close(peak + np.float32(2e-7), peak, 1e-4, "it differs")
    for found, right in (
        (boxes + np.float32([0] * 9 + [0.004]), boxes),
        (np.array([50_001, 7]), np.array([50_000, 7])),
    ):
        with pytest.raises(ExecutionError, match="it differs: expected"):
            check_close(found, right, 1e-4, "it differs")
