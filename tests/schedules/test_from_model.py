"""Pipeline problems made from placed models: blocks, lags, memory."""

from __future__ import annotations

import numpy as np
import pytest

import placeopt as po
from placeopt.instances.sources import load_graph
from placeopt.instances.training import training_graph
from placeopt.model.graph import OpGraph
from placeopt.schedules import schedule
from placeopt.schedules.from_model import ALL, join_passes, pipeline_of_placement
from placeopt.schedules.judge import pipeline_violations

GPT = "gen:gpt2?layers=4&hidden=128&heads=4&vocab=1000&seq=64&detail=coarse"


def pipeline_of_model(source, cluster, *, mode="train", split=False, recompute=False):
    """Cut a model into stages with the period DP and return its pipeline problem."""
    graph = load_graph(source)[0]
    if mode == "train" and not graph.backward.any():
        graph = training_graph(graph)
    placed = po.load(join_passes(graph), cluster, objective="period")
    result = po.solve(placed, solver="ideal-dp", seconds=10)
    return pipeline_of_placement(
        placed, result.solution.device, split=split, recompute=recompute, mode=mode
    )


def chain(ops: int = 4, training: bool = True) -> OpGraph:
    """Return a chain of layers with weights, 1000 bytes between them."""
    graph = OpGraph.from_tensors(
        "chain",
        [f"op{i}" for i in range(ops)],
        [(i, 1000, [i + 1]) for i in range(ops - 1)] + [(ops - 1, 1000, [])],
        op_types=("linear",) * ops,
        flops=np.full(ops, 10**9),
        resident=np.full(ops, 400),
        parameters=np.full(ops, 100),
    )
    return join_passes(training_graph(graph)) if training else graph


def test_blocks_have_the_times_lags_and_activations_of_their_ops():
    """Two stages of a chain: spans are sums of op times, lags those of the tensors between, memory
    what backward reads.
    """
    problem = po.load(chain(), "2xA100", objective="period")
    family = np.array([int(name[2]) for name in problem.op_names])
    device = (family >= 2).astype(np.int64)
    found = pipeline_of_placement(problem, device)
    assert found.block_names == ("F0", "F1", "B1", "B0")
    update = np.array([name.endswith("update") for name in problem.op_names])
    for name, place, backward in (
        ("F0", 0, False),
        ("F1", 1, False),
        ("B1", 1, True),
        ("B0", 0, True),
    ):
        ops = (device == place) & (problem.backward == backward) & ~update
        assert found.span[found.block_names.index(name)] == problem.compute[ops, place].sum()
    hop = int(problem.transfer[0, problem.link_class[0, 1]])
    # What enters stage 1 is read by its backward pass, too.
    assert [(u, v, lag) for u, v, lag in found.edges if lag] == [
        (0, 1, hop),
        (0, 2, hop),
        (2, 3, hop),
    ]
    # Stage 0 keeps the tensor between its two ops for op1's weight gradient; stage 1 what enters
    # it, the
    # tensor inside, and its own result, from which the loss starts.
    assert found.memory.tolist() == [[1000, 0], [0, 3000], [0, -3000], [-1000, 0]]
    held = [int(problem.resident[device == d].sum()) for d in (0, 1)]
    assert (found.capacity + held).tolist() == problem.capacity.tolist()


def test_split_backward_keeps_the_work_and_lets_weights_wait():
    """With `split` I and W together take as long as B, W waits for I, and only I is waited for."""
    whole, split = (pipeline_of_model(GPT, "4xA100", split=cut) for cut in (False, True))
    assert whole.work.tolist() == split.work.tolist()
    assert {*split.kind} == {"F", "I", "W"}
    weights = [i for i, kind in enumerate(split.kind) if kind == "W"]
    assert all(any(split.kind[u] == "I" for u, _ in split.predecessors_of(i)) for i in weights)
    assert not any(split.kind[u] == "W" for u, v, _ in split.edges)
    assert schedule(split, num_workers=1).makespan <= schedule(whole, num_workers=1).makespan


def test_recomputation_trades_time_for_memory():
    """With `recompute` stages hold less per micro-batch and work longer by their forward pass."""
    plain, again = (pipeline_of_model(GPT, "4xA100", recompute=cut) for cut in (False, True))
    assert (again.memory.max(axis=0) <= plain.memory.max(axis=0)).all()
    assert again.memory.max() < plain.memory.max()
    forward = np.array(
        [
            plain.span[list(here)][[plain.kind[i] == "F" for i in here]].sum()
            for here in plain.on_device
        ]
    )
    assert (again.work - plain.work).tolist() == forward.tolist()


def test_inference_keeps_forward_blocks_without_memory():
    """mode=infer drops the backward pass and holds nothing."""
    found = pipeline_of_model(GPT, "4xA100", mode="infer")
    assert set(found.kind) == {"F"}
    assert not found.memory.any()


@pytest.mark.parametrize(
    "source", [GPT, "gen:mt5?layers=2&hidden=64&heads=2&vocab=500&detail=coarse"]
)
def test_stages_of_a_cut_model_run_the_known_schedules(source: str):
    """Passes of one op stay together, so that 1F1B fits the cut; repetend is no slower in the
    steady state.
    """
    problem = pipeline_of_model(source, "4xA100").replace(micro_batches=8)
    known, ours = schedule(problem, "1f1b"), schedule(problem, num_workers=1)
    assert ours.period <= known.period
    assert (
        pipeline_violations(problem, known.start) == pipeline_violations(problem, ours.start) == []
    )


def test_any_placement_can_be_scheduled():
    """A random placement, contiguous or not, gives an acyclic problem with all work in it."""
    problem = po.load(chain(6), "3xA100", objective="period")
    family = np.array([int(name[2]) for name in problem.op_names])
    for seed in range(5):
        device = np.random.default_rng(seed).integers(0, 3, 6)[family]
        found = pipeline_of_placement(problem, device)
        kept = np.array([not name.endswith("update") for name in problem.op_names])
        work = [int(problem.compute[kept & (device == d), d].sum()) for d in range(3)]
        assert found.work.tolist() == work
        made = schedule(found, num_workers=1, micro_batches=4)
        assert pipeline_violations(found, made.start) == []


def test_what_arrives_again_for_a_later_pass_is_not_kept_for_it():
    """A device that reads a tensor in both passes need not run them in that order: with several
    results of a model neither may wait for the other.
    """
    graph = po.OpGraph.from_tensors(
        "two results",
        ["a", "x", "c"],
        [(0, 1000, [1, 2])],
        op_types=("linear", "relu", "softplus"),
        flops=[10**9] * 3,
        resident=[4000] * 3,
    )
    problem = po.load(training_graph(graph), "2xA100", objective="period")
    far = {"x": 0, "c/igrad": 0, "x/igrad": 1}
    device = np.array([far.get(name, 1) for name in problem.op_names])
    found = pipeline_of_placement(problem, device)
    at = [found.block_names.index(name) for name in ("F0", "B0")]
    assert not found.ancestors[at[1]] >> at[0] & 1
    assert found.memory[at, 0].tolist() == [0, 0]


def test_tensor_parallel_ops_take_a_share_of_their_time_on_every_device():
    """An op on all devices takes 1/D of its time plus what it gathers, and the tensor that enters
    it is a lag.
    """
    problem = po.load(chain(training=False), "4xA100", objective="period")
    device = np.array([0, ALL, 1, 2])
    found = pipeline_of_placement(problem, device, mode="infer")
    at = found.block_names.index("TF")
    hop = int(problem.transfer[0, problem.link_class[0, 1]])
    assert found.devices_of(at).tolist() == [0, 1, 2, 3]
    assert found.span[at] == -(-int(problem.compute[1].max()) // 4) + hop
    assert found.predecessors_of(at) == [(found.block_names.index("F0"), hop)]
    assert found.predecessors_of(found.block_names.index("F1")) == [(at, 0)]


def test_join_passes_ties_an_op_without_weights_to_its_backward_ops():
    """Every backward op shares the group of its forward op, groups that were tied before stay
    tied.
    """
    graph = join_passes(training_graph(chain(training=False)))
    index = {name: i for i, name in enumerate(graph.op_names)}
    for name, i in index.items():
        if graph.backward[i]:
            assert graph.colocation[i] == graph.colocation[index[name.rpartition("/")[0]]] >= 0


def test_placements_that_cannot_run_are_refused():
    """Weights that do not fit, devices that do not exist, and arrays of the wrong length: one line
    each.
    """
    problem = po.load(chain(), "2xA100", objective="period")
    with pytest.raises(po.InputError, match="expected one entry per op"):
        pipeline_of_placement(problem, [0])
    with pytest.raises(po.InputError, match=r"expected 0\.\.1, or -1 for all devices, received 2"):
        pipeline_of_placement(problem, np.full(problem.num_ops, 2))
    somewhere = np.zeros(problem.num_ops, np.int64)
    for arguments, words in (
        ({"device": somewhere - 2}, "or -1 for all devices, received -2"),
        ({"device": somewhere, "parts": [0]}, "parts: expected one entry per op"),
        ({"device": somewhere, "mode": "inference"}, "mode: expected train or infer"),
    ):
        with pytest.raises(po.InputError, match=words):
            pipeline_of_placement(problem, **arguments)
    small = problem.replace(capacity=np.array([100, 100]))
    with pytest.raises(po.InputError, match="needs 6400 for weights"):
        pipeline_of_placement(small, np.zeros(problem.num_ops, dtype=np.int64))


def test_ops_on_all_devices_run_on_each_of_them():
    """One that a device cannot run took the time of the others there; on a single device no link
    was found.
    """
    arrays = {"producer": [0], "consumer_ptr": [0, 1], "consumer": [1], "transfer": [1]}
    fields = {key: np.array(value) for key, value in arrays.items()}
    two = po.PlacementProblem.from_arrays(
        compute=np.array([[5, -1], [5, 5]]), objective="period", **fields
    )
    with pytest.raises(po.InputError, match="op 'op0' cannot run on"):
        pipeline_of_placement(two, [-1, 0], mode="infer")
    one = po.PlacementProblem.from_arrays(
        compute=np.array([[5], [5]]), objective="period", **fields
    )
    assert pipeline_of_placement(one, [0, -1], mode="infer").span.tolist() == [5, 5]
