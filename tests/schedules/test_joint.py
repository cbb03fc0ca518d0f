"""The joint choice of stages, shape, micro-batch size and recomputation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import placeopt as po
from placeopt.instances.clusters import make_cluster
from placeopt.instances.generators import generate
from placeopt.instances.training import training_graph
from placeopt.schedules import choose_pipeline, joint, schedule
from placeopt.schedules.cuts import branches, cut_model, outsized_ops, subgraph
from placeopt.schedules.from_model import ALL, join_passes
from placeopt.schedules.judge import pipeline_violations

if TYPE_CHECKING:
    from placeopt.schedules.joint import JointResult

GPT = "gen:gpt2?layers=4&hidden=256&heads=4&vocab=500&seq=128&detail=coarse"
WIDE = "gen:gpt2?layers=4&hidden=128&heads=4&vocab=60000&seq=128&detail=coarse"
FLAVA = "gen:flava?image_layers=2&text_layers=2&layers=1&hidden=128&heads=4&vocab=500&seq=64&image=128&detail=coarse"


def chosen(source: str, cluster: str = "4xA100", **options: object) -> JointResult:
    """Return a small, repeatable choice."""
    given = {"batch": 16, "micro_batches": (1, 2), "num_workers": 1, "seconds": 1.0}
    return choose_pipeline(source, cluster, **(given | options))  # type: ignore[arg-type]


def test_best_and_runner_up_are_those_of_scheduling_every_candidate():
    """Giving candidates up by their bounds loses neither the best nor the second best."""
    found = chosen(GPT, memory=100_000_000)
    assert found.runner_up is not None
    steps = []
    for choice in found.candidates:
        if choice.problem is None:
            continue
        made = schedule(choice.problem, num_workers=1, seconds=5, latency_seconds=0.2)
        steps.append(made.makespan * choice.problem.tick_seconds + choice.sync)
        assert choice.cut_bound <= steps[-1] * (1 + 1e-12)
    assert found.best.step <= min(steps) * (1 + 1e-12)
    assert found.runner_up.step <= sorted(steps)[1] * (1 + 1e-12)
    assert found.step_bound <= found.cut_bound <= found.best.step <= found.runner_up.step
    assert 0 <= found.gap_of_cuts <= found.gap < 1
    assert found.throughput == pytest.approx(16 / found.best.step)
    assert found.why.startswith(found.runner_up.title)
    assert {choice.shape for choice in found.candidates} == {"V", "wave", "X", "M", "K", "T"}


def test_schedules_are_valid_and_within_what_the_weights_leave():
    """The chosen schedule has all samples of the batch in it and keeps the memory limit."""
    for memory in (None, 40_000_000):
        found = chosen(GPT, memory=memory)
        made, best = found.best.schedule, found.best
        assert pipeline_violations(best.problem, made.start) == []
        assert made.micro_batches * best.samples * best.replicas == 16
        assert all(
            peak <= limit
            for peak, limit in zip(made.peak_memory, best.problem.capacity, strict=True)
        )


def test_less_memory_never_gives_a_faster_step_and_forces_stages():
    """From plenty of memory to too little: steps get slower, one stage gives way to several, then
    nothing fits.
    """
    steps, stages = [], []
    for memory in (4_000_000_000, 60_000_000, 36_000_000):
        found = chosen(GPT, memory=memory)
        steps.append(found.best.step)
        stages.append(found.best.stages)
    assert steps == sorted(steps)
    assert stages[0] < stages[-1]
    with pytest.raises(po.InputError, match="no pipeline of this model fits"):
        chosen(GPT, memory=1_000_000)


def test_a_large_vocabulary_is_spread_over_all_devices():
    """Where embedding and head outweigh the layers, shape M beats every V of as many stages."""
    found = chosen(WIDE, shapes=("V", "M"), stages=(4,))
    assert found.best.shape == "M"
    assert any(
        len(found.best.problem.devices_of(i)) == 4 for i in range(found.best.problem.num_blocks)
    )
    chain = next(
        choice for choice in found.candidates if choice.shape == "V" and not choice.recompute
    )
    assert chain.cut_bound > found.best.step
    graph = join_passes(training_graph(generate(WIDE)))
    spread = {graph.op_names[i].split("/")[0] for i in np.flatnonzero(outsized_ops(graph, 4))}
    assert spread == {"embeddings", "final"}
    assert not outsized_ops(join_passes(training_graph(generate(GPT))), 4).any()


def test_two_branches_run_side_by_side():
    """A two-branch model has shape K: each branch on its half of the devices, what joins them on
    all.
    """
    graph = join_passes(training_graph(generate(f"{FLAVA}&batch=1")))
    parts = branches(graph)
    assert parts is not None
    assert {graph.layer[i].split("/")[0] for i in np.flatnonzero(parts[0] | parts[1])} == {
        "image",
        "text",
    }
    plan = cut_model("K", 4, graph, make_cluster("4xA100"), "train", 5.0)
    assert [set(plan.device[part].tolist()) for part in parts] == [{0, 1}, {2, 3}]
    assert set(plan.device[~(parts[0] | parts[1])].tolist()) == {ALL}
    found = chosen(FLAVA, shapes=("K",))
    assert found.best.shape == "K"
    inference = chosen(FLAVA, shapes=("K",), mode="infer")
    assert set(inference.best.problem.kind) == {"F"}
    assert inference.best.sync == 0


def test_both_directions_double_blocks_and_weights():
    """Shape X has the blocks of V twice, the second time mirrored, and the memory that both weights
    leave.
    """
    graph = join_passes(training_graph(generate(GPT)))
    cluster = make_cluster("4xA100")
    one = cut_model("V", 4, graph, cluster, "train", 5.0).problem(mode="train", recompute=False)
    plan = cut_model("X", 4, graph, cluster, "train", 5.0)
    both = plan.problem(mode="train", recompute=False)
    assert both.work.tolist() == (one.work + one.work[::-1]).tolist()
    held = cluster.devices[0].memory - one.capacity
    assert (cluster.devices[0].memory - both.capacity).tolist() == (held + held[::-1]).tolist()
    assert schedule(both, "chimera", micro_batches=8).makespan > 0
    assert plan.sync > 0


def test_replicas_pay_for_their_gradients():
    """Fewer stages than devices leave replicas: each takes its share of the batch, and sums
    gradients over its links.
    """
    graph = join_passes(training_graph(generate(GPT)))
    slow, fast = (
        cut_model("V", 2, graph, make_cluster(name), "train", 5.0)
        for name in ("4xA100-pcie", "4xA100")
    )
    assert slow.replicas == fast.replicas == 2
    assert slow.sync > fast.sync > 0
    gradients = np.array([name.endswith("wgrad") for name in graph.op_names])
    size = max(int(graph.resident[gradients & (fast.device == d)].sum()) for d in range(2))
    link = make_cluster("4xA100").links[0]
    assert fast.sync == pytest.approx(2 * (link.latency + size / 2 / link.bandwidth))
    assert cut_model("V", 4, graph, make_cluster("4xA100"), "train", 5.0).sync == 0


def test_unequal_devices_have_no_replicas_and_no_mirror():
    """Groups of different devices are not taken for replicas of each other."""
    graph = join_passes(training_graph(generate(GPT)))
    cluster = make_cluster("4xA100")
    mixed = replace(
        cluster, devices=(*cluster.devices[:3], replace(cluster.devices[3], peak_flops=1e12))
    )
    with pytest.raises(po.InputError, match="does not split into equal groups of 2"):
        cut_model("V", 2, graph, mixed, "train", 5.0)
    with pytest.raises(po.InputError, match="needs equal devices"):
        cut_model("X", 4, graph, mixed, "train", 5.0)
    assert cut_model("V", 4, graph, mixed, "train", 5.0).replicas == 1


def test_unlike_links_have_no_mirror():
    """Both directions of X need the same links from either end; one pass of a stage takes others."""
    graph = join_passes(training_graph(generate(GPT)))
    cluster = make_cluster("4xA100")
    links = (*cluster.links, replace(cluster.links[0], name="slow", bandwidth=1e8))
    for slow, mirrored in ([(0, 1)], False), ([(0, 1), (3, 2)], True):
        link_class = np.zeros((4, 4), np.int64)
        link_class[tuple(zip(*slow, strict=True))] = 1
        other = replace(cluster, links=links, link_class=link_class)
        if mirrored:
            assert cut_model("X", 4, graph, other, "train", 5.0).shape == "X"
        else:
            with pytest.raises(po.InputError, match="same links from either end"):
                cut_model("X", 4, graph, other, "train", 5.0)


def test_subgraph_keeps_what_lies_inside():
    """The ops and tensors of a part stay as they are."""
    graph = generate(FLAVA)
    keep = np.array([name.startswith("text") for name in graph.layer])
    part, kept = subgraph(graph, keep)
    assert part.op_names == tuple(graph.op_names[i] for i in kept)
    assert part.flops.sum() == graph.flops[keep].sum()
    inside = {
        (graph.op_names[u], graph.op_names[v])
        for u, v in graph.edges.tolist()
        if keep[u] and keep[v]
    }
    assert {(part.op_names[u], part.op_names[v]) for u, v in part.edges.tolist()} == inside


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": ("Y",)}, "shapes: expected some of V, wave, X, M, K, T, received 'Y'"),
        ({"mode": "both"}, "mode: expected train or infer"),
        ({"batch": 0}, "expected at least 1"),
        ({"micro_batches": (0,)}, "expected at least 1"),
        ({"solvers": ()}, "solvers: expected at least one"),
        ({"shapes": ("V",), "stages": (4, 0)}, r"stages: expected at least 1, received \[4, 0\]"),
        ({"batch": 3}, "the batch of 3 is no multiple of"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str):
    """One line says which option and what it expects."""
    given: dict[str, object] = {"shapes": ("X",), **options}
    with pytest.raises(po.InputError, match=message):
        chosen(GPT, **given)


def test_an_interruption_ends_the_choice_with_what_is_known(monkeypatch):
    """What is scheduled counts, what is not has lost nothing: the bound holds over it, too."""
    whole = chosen(GPT)
    run = joint.schedule_result

    def interrupted(problem, name, **settings):
        found = run(problem, name, **settings)
        return replace(found, stop_reason="interrupted")

    monkeypatch.setattr(joint, "schedule_result", interrupted)
    found = chosen(GPT)
    waiting = [
        choice for choice in found.candidates if choice.reason == "interrupted before its turn"
    ]
    assert sum(choice.step is not None for choice in found.candidates) == 1
    assert len(waiting) > 1
    assert found.cut_bound <= whole.cut_bound * (1 + 1e-9)
    assert found.step_bound == whole.step_bound


def test_an_interrupted_cut_is_none(monkeypatch):
    """A cut is a step towards a schedule: Ctrl-C ends both."""

    class Interrupted:
        stop_reason = "interrupted"

    monkeypatch.setattr("placeopt.solving.run.run", lambda *_, **__: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        chosen(GPT)
