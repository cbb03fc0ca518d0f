"""Generators: published totals, structure, determinism, options."""

from __future__ import annotations

import numpy as np
import pytest

import placeopt as po
from placeopt.instances.generators import generate, generator_help, generator_names
from placeopt.io import serialize
from placeopt.model.errors import InputError

# published parameter counts, and flops (2 per multiply-add) per sample where a paper or the usual
# model
# cards state them
PUBLISHED = [
    ("resnet50", 25.557e6, 2 * 4.09e9),
    ("resnet101", 44.549e6, 2 * 7.80e9),
    ("resnet152", 60.193e6, 2 * 11.51e9),
    ("vgg16", 138.358e6, 2 * 15.47e9),
    ("alexnet", 61.101e6, 2 * 0.714e9),
    ("squeezenet", 1.248e6, 2 * 0.82e9),
    ("inception-v3", 23.835e6, 2 * 5.71e9),
    ("densenet121", 7.979e6, 2 * 2.83e9),
    ("bert-base", 109.48e6, 2 * 11.17e9),
    ("bert-large", 335.14e6, None),
    ("gpt2", 124.44e6, None),
    ("gpt2?layers=48&hidden=1600&heads=25", 1557.6e6, None),
    ("gpt3", 175e9, None),
    ("llama-7b", 6.738e9, None),
    ("llama?layers=40&hidden=5120&heads=40&ffn=13824", 13.016e9, None),
    ("llama?layers=32&hidden=4096&heads=32&kv_heads=8&ffn=14336&vocab=128256", 8.03e9, None),
    ("gpt2?tied=0", (124.44 + 38.6) * 1e6, None),
    ("mt5", 300.18e6, None),
    ("mt5?tied=0", (300.18 + 128.06) * 1e6, None),
    ("mt5?layers=12&hidden=768&heads=12&ffn=2048", 582.4e6, None),
    ("moe?layers=32&vocab=32000", 46.70e9, None),
    ("gnmt", 278e6, None),
    ("flava", 241e6, None),
]


@pytest.mark.parametrize(
    ("spec", "parameters", "flops"), PUBLISHED, ids=[row[0] for row in PUBLISHED]
)
def test_totals_are_the_published_ones(spec, parameters, flops):
    """Parameters within 1 % (2 % for FLAVA-like, whose data heads are left out), flops within 5
    %.
    """
    graph = generate(f"gen:{spec}")
    assert graph.parameters.sum() == pytest.approx(
        parameters, rel=0.02 if spec == "flava" else 0.01
    )
    if flops is not None:
        assert graph.flops.sum() == pytest.approx(flops, rel=0.05)


@pytest.mark.parametrize(
    ("spec", "layers", "hidden", "seq", "tokens_params"),
    [
        ("gpt2", 12, 768, 1024, 124.4e6 - 1024 * 768),
        ("gpt3", 96, 12288, 2048, 174.6e9),
        ("llama-7b", 32, 4096, 2048, 6.738e9 - 32000 * 4096),
    ],
)
def test_transformer_flops_follow_the_closed_form(spec, layers, hidden, seq, tokens_params):
    """Forward flops are 2 per parameter and token plus 4 * layers * hidden * seq per token for
    attention.
    """
    flops = generate(spec).flops.sum()
    assert flops == pytest.approx(seq * (2 * tokens_params + 4 * layers * hidden * seq), rel=0.02)


@pytest.mark.parametrize("name", generator_names())
def test_graphs_are_deterministic_and_round_trip(name):
    """The same specification gives the same graph, and placeopt JSON keeps all of it, training or
    not.
    """
    spec = f"gen:{name}" + ("?layers=2" if name in ("gpt3", "llama", "llama-7b") else "")
    for suffix in ("", ("&" if "?" in spec else "?") + "training=1"):
        graph = generate(spec + suffix)
        text = serialize.to_dict(graph)
        assert text == serialize.to_dict(generate(spec + suffix))
        assert serialize.to_dict(serialize.from_dict(text)) == text
        assert (graph.backward.any()) == bool(suffix)
        assert not graph.unshaped.any()


@pytest.mark.parametrize("name", generator_names())
def test_every_graph_lowers_to_a_valid_problem(name):
    """A cluster gives every op a positive time where it computes something."""
    cluster = "uniform:4"
    graph = generate(f"gen:{name}" + ("?layers=2" if name in ("gpt3", "llama", "llama-7b") else ""))
    if graph.flops.any():
        cluster = "4xA100"
    problem = po.load(graph, cluster)
    assert problem.num_ops == graph.num_ops
    busy = (graph.flops > 0) | (graph.bytes_moved > 0) | (graph.measured.sum(axis=1) > 0)
    assert (problem.compute[busy] > 0).all()


def test_shapes_agree_with_bytes():
    """Bytes of a tensor are the product of its shape times the element size."""
    for spec in ("resnet50?batch=2", "gpt2?dtype_bytes=2", "nmt", "llama-layer", "moe"):
        graph = generate(spec)
        size = 2 if "=2" in spec.partition("dtype")[2] or spec == "moe" else 4
        expected = [int(np.prod(shape)) * size for shape in graph.shapes]
        assert graph.tensor_bytes.tolist() == expected


@pytest.mark.parametrize("image", [3, 33])
def test_cells_of_odd_images_add_what_is_of_one_size(image):
    """Inputs from before a reduction kept their size, and a stride became 0."""
    graph = generate(f"gen:nasnet-cell?image={image}")
    shapes = dict(zip(graph.producer.tolist(), graph.shapes, strict=True))
    reads = graph.reads()
    for op, kind in enumerate(graph.op_types):
        if kind in ("add", "concat"):
            read = {graph.shapes[tensor][2:] for tensor in reads[op]}
            assert read == {shapes[op][2:]}


def test_batch_scales_the_work_and_not_the_weights():
    """Four times the batch is four times the flops with the same parameters."""
    for name in ("resnet50", "bert-base", "inception-v3", "flava", "gpt2", "nmt"):
        base = generator_help(name)[1]["batch"]
        one, four = generate(f"{name}?batch={base}"), generate(f"{name}?batch={4 * base}")
        assert four.flops.sum() == 4 * one.flops.sum()
        assert four.parameters.sum() == one.parameters.sum()


def test_generated_and_exported_networks_agree():
    """The ONNX files inside the onnx package have the parameters and flops of the generated
    graphs.
    """
    pytest.importorskip("onnx")
    for name in ("resnet50", "densenet121"):
        exported, generated = po.read_graph(f"onnx:{name}"), generate(name)
        assert exported.parameters.sum() == generated.parameters.sum()
        assert exported.flops.sum() == pytest.approx(generated.flops.sum(), rel=0.005)


def test_coarse_and_fine_transformers_agree():
    """Both levels of detail have the same weights and, up to element-wise ops, the same flops."""
    for spec in ("gpt2", "bert-base", "llama?layers=2", "mt5", "flava", "moe"):
        joint = "&" if "?" in spec else "?"
        fine, coarse = generate(spec), generate(f"{spec}{joint}detail=coarse")
        assert fine.parameters.sum() == coarse.parameters.sum()
        assert fine.flops.sum() == pytest.approx(coarse.flops.sum(), rel=0.02)
        assert coarse.num_ops < fine.num_ops


def test_sharded_workloads_have_the_size_of_the_published_ones():
    """About 76, 180, 180 and 229 ops on four shards; each op has a meta label; pieces sum to the
    whole.
    """
    for name, ops in (("chain-mm", 76), ("ffnn", 180), ("llama-block", 180), ("llama-layer", 229)):
        graph = generate(name)
        assert graph.num_ops == pytest.approx(ops, rel=0.12)
        assert (graph.meta >= 0).all()
    assert abs(generate("llama-layer").num_ops - 229) <= 3


def test_sharding_keeps_the_matrix_work():
    """Block products of any sharding add up to the flops of the unsharded products."""
    for shards in (1, 2, 4, 8):
        graph = generate(f"chain-mm?size=1024&shards={shards}")
        products = np.array(graph.op_types) == "matmul"
        assert graph.flops[products].sum() == 3 * 2 * 1024**3
        layer = generate(f"llama-layer?hidden=512&heads=8&ffn=1024&seq=256&shards={shards}")
        products = np.array(layer.op_types) == "matmul"
        assert (
            layer.flops[products].sum()
            == 2 * 256 * (4 * 512**2 + 3 * 512 * 1024) + 4 * 256**2 * 512
        )
        assert layer.parameters.sum() == 4 * 512**2 + 3 * 512 * 1024


def test_meta_ops_are_products_followed_by_their_reductions():
    """Within a meta-op, reductions consume only pieces of the same meta-op."""
    graph = generate("llama-layer?shards=4")
    for u, v in graph.edges.tolist():
        if graph.op_types[v] == "reduce":
            assert graph.meta[u] == graph.meta[v]


def test_llama_layers_stack():
    """Two layers are twice the ops of one."""
    assert generate("llama-layer?layers=2").num_ops == 2 * generate("llama-layer").num_ops


def test_numeric_families_have_the_textbook_number_of_tasks():
    """Cholesky t(t+1)(t+2)/6, LU t(t+1)(2t+1)/6, FFT 2p-1 calls and p log p butterflies, trees,
    stencils.
    """
    assert generate("cholesky?tiles=6").num_ops == 6 * 7 * 8 // 6
    assert generate("lu?tiles=6").num_ops == 6 * 7 * 13 // 6
    fft = generate("fft?points=16")
    assert fft.num_ops == 2 * 16 - 1 + 16 * 4
    assert (np.bincount(fft.edges[:, 1], minlength=fft.num_ops)[31:] == 2).all()
    assert generate("out-tree?depth=4&arity=3").num_ops == 121
    assert generate("in-tree?depth=3&arity=2").edges.tolist()[-1][1] == 14
    assert generate("stencil?rows=3&columns=2&steps=4").num_ops == 24


def test_random_families_keep_their_ratios():
    """The mean transfer over the mean op time is the requested ratio, the sizes are as asked."""
    for spec in (
        "layered?layers=40&width=50",
        "series-parallel?ops=500",
        "fork-join?stages=20",
        "cholesky?tiles=12",
    ):
        for ccr in (0.1, 1.0, 5.0):
            graph = generate(f"{spec}&ccr={ccr}&seed=3")
            assert graph.measured_transfer.mean() / graph.measured.mean() == pytest.approx(
                ccr, rel=0.1
            )
    assert generate("series-parallel?ops=500").num_ops == 500
    layered = generate("layered?layers=40&width=50")
    assert 40 * 35 < layered.num_ops < 40 * 65
    assert len(set(layered.layer)) == 40
    assert not np.array_equal(
        generate("layered?seed=1").measured, generate("layered?seed=2").measured
    )


def test_series_parallel_graphs_reduce_to_one_edge():
    """Series and parallel reductions of the vertex-series-parallel graph end in a single vertex."""
    for seed in range(5):
        graph = generate(f"series-parallel?ops=40&seed={seed}")
        before = {v: set() for v in range(40)}
        after = {v: set() for v in range(40)}
        for u, v in graph.edges.tolist():
            after[u].add(v)
            before[v].add(u)
        changed = True
        while changed:
            changed = False
            for v in sorted(before):
                if (
                    len(after[v]) == 1 and len(before[w := next(iter(after[v]))]) == 1
                ):  # series: merge v and w
                    after[v] = after.pop(w)
                    before.pop(w)
                    for x in after[v]:
                        before[x] = before[x] - {w} | {v}
                    changed = True
                    break
                twin = next(
                    (
                        w
                        for w in sorted(before)
                        if w > v and before[w] == before[v] and after[w] == after[v]
                    ),
                    None,
                )
                if twin is not None:  # parallel: drop one of two with the same neighbours
                    for x in before.pop(twin):
                        after[x].discard(twin)
                    for x in after.pop(twin):
                        before[x].discard(twin)
                    changed = True
                    break
        assert len(before) == 1


def test_a_96_layer_training_graph_has_tens_of_thousands_of_ops():
    """GPT-3's training graph is generated at once: over 10000 ops, three times the forward flops,
    16 bytes a weight.
    """
    forward, graph = generate("gpt3"), generate("gpt3?training=1")
    assert graph.num_ops > 10_000
    assert graph.flops.sum() == pytest.approx(3 * forward.flops.sum(), rel=0.05)
    assert graph.resident.sum() == 16 * graph.parameters.sum()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gen:resnet51", "did you mean 'resnet"),
        ("gen:nothing-like-it", "known: alexnet"),
        ("gen:resnet50?bach=2", "did you mean 'batch'"),
        ("gen:resnet50?batch=two", "whole number"),
        ("gen:resnet50?batch=0", "at least 1"),
        ("gen:resnet50?batch", "key=value"),
        ("gen:resnet50?batch=1&batch=2", "given twice"),
        ("gen:resnet50?training=maybe", "0 or 1"),
        ("gen:inception-v3?image=32", "image vanishes"),
        ("gen:gpt2?heads=7", "multiple of heads"),
        ("gen:gpt2?detail=huge", "fine, coarse"),
        ("gen:gpt2?training=1&optimizer=magic", "adam"),
        ("gen:llama?kv_heads=5", "kv_heads"),
        ("gen:moe?top_k=9", "top_k"),
        ("gen:layered?ccr=-1", "ccr"),
        ("gen:layered?ccr=nan", "finite"),
        ("gen:layered?ccr=1e20", "at most"),
        ("gen:layered?layers=" + "1" * 400, "at most"),
        ("gen:layered?seed=-1", "seed"),
        ("gen:fft?points=12", "power of two"),
        ("gen:planted?ops=3&devices=4", "at least devices"),
        ("gen:llama-layer?shards=3&heads=32", "heads"),
        ("gen:llama-layer?shards=100000", "shards"),
        ("gen:in-tree?depth=99", "at most"),
        ("gen:layered?layers=1000000&width=1000000", "at most 2000000"),
        ("gen:stencil?rows=9999999999", "at most"),
        ("gen:fft?points=1073741824", "at most"),
        ("gen:gpt2?layers=1000000", "at most 10000"),
        ("gen:gpt2?ffn=-1", "at least 0"),
        ("gen:mt5?decoder_layers=-1", "at least 0"),
        ("gen:gpt2?layers=1&batch=1000000000", "2.62"),
    ],
)
def test_wrong_specifications_are_refused_in_one_line(spec, words):
    """Unknown names and options get a suggestion, wrong values the expectation."""
    with pytest.raises(InputError, match=words) as error:
        generate(spec)
    assert "\n" not in str(error.value)


def test_options_show_in_the_name():
    """Graphs of different options have different names, so that results can be told apart."""
    assert generate("gen:alexnet").name == "alexnet"
    assert generate("gen:alexnet?batch=2&training=1").name == "alexnet?batch=2&training=1"


def test_help_lists_every_option():
    """Each generator says in one line what it is, and its options with defaults."""
    for name in generator_names():
        summary, options = generator_help(name)
        assert summary
        assert options["training"] is False
        text = "&".join(
            f"{key}={int(value) if isinstance(value, bool) else value}"
            for key, value in options.items()
        )
        if name not in ("gpt3", "llama", "llama-7b"):
            assert generate(f"{name}?{text}").num_ops == generate(name).num_ops


def test_options_that_nothing_takes_are_refused(tmp_path):
    """What a reader would be told is not passed over where nothing is read."""
    with pytest.raises(InputError, match=r"option 'batch' is not known.*\(gen:NAME\?key=value\)"):
        po.load("gen:fork-join", "uniform:2", batch=8)
    path = serialize.save(po.load("gen:fork-join", "uniform:2"), tmp_path / "p.json")
    for given in ({"training": True}, {"costs": "costs.json"}, {"group": 4}, {"dims": "batch=2"}):
        with pytest.raises(InputError, match=f"give {next(iter(given))} to the model"):
            po.load(path, **given)
    assert po.load(path, group="none", training=False).num_ops > 0
