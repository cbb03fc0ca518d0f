"""`plan --runs` and the plans of transformers by shape: prices, memory, space, answers."""

from __future__ import annotations

import csv
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placeopt.cli import main
from placeopt.instances.clusters.hardware import find_gpu, known_gpus
from placeopt.model.errors import InputError
from placeopt.planning.fit_runs import LinearFit, Widths, fit, usable
from placeopt.planning.launch_answer import regrets, to_json
from placeopt.planning.launch_files import launch_files, rank_groups
from placeopt.planning.launch_search import (
    LaunchProblem,
    missing,
    read_machine,
    read_shape,
    search,
    uneven,
)
from placeopt.planning.runs_table import (
    USABLE,
    number,
    predict_run,
    predict_table,
    predicted_row,
    read_run,
    read_runs,
)
from placeopt.plans.calibration import (
    UNFITTED,
    Calibration,
    default_calibration,
    family,
    launcher_of,
    offset_keys,
    read_calibration,
)
from placeopt.plans.configuration import Configuration
from placeopt.plans.model_shapes import named_shape, shape_of, stage_layers
from placeopt.plans.step_model import StepModel, experts_held, memory_parts

RUNS = Path(os.environ.get("PLACEOPT_DATA", "../shared/data")) / "measured" / "training_runs.csv"
measured = pytest.mark.skipif(not RUNS.is_file(), reason=f"{RUNS} is not there")
ROW = {
    "model": "GPT-22B",
    "gpu": "A100-SXM-80",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "seq_len": "2048",
    "global_batch": "64",
    "micro_batch": "2",
    "tp": "8",
    "pp": "1",
    "dp": "1",
    "precision": "bf16",
    "framework": "megatron",
    "recompute": "full",
}
COUNTS = {
    "llama-2-7b": 6.74,
    "Llama 3 70B": 70.6,
    "LLAMA3.1_405B": 405.9,
    "Mixtral-8x7B": 46.7,
    "Qwen3_235B_a22B": 235.1,
    "DeepSeek V3 671B": 671,
    "GPT3-175B": 174.6,
    "BLOOM-176B": 176.2,
    "OPT-30b": 29.9,
    "Qwen2.5-0.5B": 0.494,
    "Qwen3-4B": 4.02,
    "starcoder2-7b": 7.17,
    "starcoder-15b": 15.5,
}


def command(capsys, *arguments):
    """Run the command line; return its exit code and what it printed."""
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *map(str, arguments)])
    return stopped.value.code, capsys.readouterr()


def problem(model="llama2-7b", machine="8xA100-80", batch=32, sequence=2048, **more):
    """A small problem."""
    found = read_shape(model), read_machine(machine)
    return LaunchProblem(*found, batch, sequence, default_calibration(), **more)


@pytest.mark.parametrize("name", COUNTS)
def test_public_models_have_their_parameters(name):
    """Counted parameters agree with the published ones within 4 %, however the name is written."""
    assert named_shape(name).parameters / 1e9 == pytest.approx(COUNTS[name], rel=0.04)


@pytest.mark.parametrize(
    "name", ["gpt-25b", "GPT-206B", "gpt2-13b", "deepseek-r1-distill-llama-70b"]
)
def test_a_name_of_another_size_is_no_public_model(name):
    """A family without a size in its name does not stand for a model that says another one."""
    assert named_shape(name) is None
    for kept in ("DeepSeek-V3-671B", "kimi-k2-1t", "Llama-4-Scout-17B-16E", "mixtral-8x7b-v0.1"):
        assert named_shape(kept) is not None
    assert named_shape("gpt2-1.5b").layers == 48


def test_a_model_of_an_organisation_is_known_and_a_missing_file_is_not():
    """Hubs write names so; a file that was not there was priced as the model in its name."""
    for name in ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"):
        assert read_shape(name).parameters == pytest.approx(8.03e9, rel=0.01)
    for absent in ("llama3.1-8b.onnx", "models/llama3.1-8b.onnx", "my/models/llama3.1-8b"):
        assert read_shape(absent) is None
    for name in ("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3"):
        assert read_run(ROW | {"model": name}).shape == named_shape(name.partition("/")[2])


def test_launchers_are_found_by_name():
    """Names of launchers stand for families; DeepSpeed alone is PyTorch with sharded states."""
    names = {
        "megatron-deepspeed": "Megatron-DeepSpeed",
        "fsdp": "DeepSpeed 0.14",
        "megatron": "nemo-megatron",
        "jax": "maxtext",
        "other": "nanotron",
    }
    assert {name: family(text) for name, text in names.items()} == {name: name for name in names}
    conf = read_run(ROW | {"framework": "HF Trainer + deepspeed", "sharding": "stage3"}).conf
    assert (conf.flash, conf.sharding) == (True, "zero3")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe"),
    ],
)
def test_devices_are_found_by_name(text, name):
    """Vendors' spellings name one device."""
    assert find_gpu(text)[0].name == name


def test_longer_numbers_are_no_device_that_is_known():
    """An RTX A4000 was priced as an A40, and no word said of it."""
    for text in ("NVIDIA RTX A4000", "RTX A1000", "Quadro P1000", "T400"):
        assert f"'{text}' is not known" in find_gpu(text)[1]


def test_memory_behind_the_name_of_a_device_is_its_own():
    """32G without a B was none, 64 GB was 40, and what a name does not end in was not read."""
    sizes = {"V100-SXM2-32G": 32, "A100-SXM-64GB": 64, "A100 40GB PCIe": 40, "GH200 480GB": 96}
    assert {text: find_gpu(text)[0].memory / 2**30 for text in sizes} == sizes


def test_a_part_of_a_device_is_no_whole_one():
    """Seven slices of an A100 were planned as seven A100 joined by NVLink."""
    for name in ("A100-1g.10gb", "A100-MIG-3g.40gb"):
        assert read_machine(f"7x{name}") is None
        assert "is a part of one (MIG)" in read_run(ROW | {"gpu": name}).notes[0]


def test_every_device_has_a_source_and_half_precision():
    """No device lacks the source of its numbers."""
    assert all(
        gpu.source and gpu.peaks["fp16"] > gpu.peaks["fp32"] / 2 for gpu in known_gpus().values()
    )


def test_an_unknown_device_is_said():
    """A row with a device that nobody knows is priced, and says as what."""
    row = predicted_row(ROW | {"gpu": "Foo 9000"}, default_calibration())
    assert float(row["predicted_step_s"]) > 0
    assert "'Foo 9000' is not known" in row["note"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seq_len": ""}, "seq_len"),
        ({"global_batch": "", "micro_batch": ""}, "global_batch"),
        ({"model": "nobody"}, "layers and hidden"),
        ({"n_gpus": "", "dp": ""}, "n_gpus"),
        ({"seq_len": "nan"}, "seq_len"),
        ({"seq_len": "9" * 400 + "k"}, "seq_len"),
        ({"model": f"mine-{'9' * 400}b"}, "layers and hidden"),
        ({"pp": "80", "vp": "4"}, "more stages than 48 layers"),
    ],
)
def test_a_row_says_what_it_lacks(change, words):
    """What nothing stands for is named in the note, and nothing is predicted."""
    row = predicted_row(ROW | change, default_calibration())
    assert words in row["note"]
    assert row["predicted_step_s"] == row["predicted_memory_gb"] == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpu": "H800"}, ""),
        ({"gpu": "MI300X"}, ""),
        ({"model": "mine", "layers": "30", "hidden": "3000", "heads": "7"}, ""),
        ({"seq_len": "2k", "precision": "Float16"}, ""),
        ({"precision": "int8"}, "precision 'int8' is not known"),
        ({"sharding": "ZeRO Stage 2"}, ""),
        ({"sharding": "fsdp" + "9" * 5000}, ""),
        ({"sharding": "mine"}, "sharding 'mine' is not known"),
        ({"tp": "many"}, "tp 'many' is no count"),
        ({"tp": "", "n_gpus": "16", "dp": "2"}, "tp 8 assumed"),
        ({"global_batch": "65"}, "not whole micro-batches"),
        ({"pp": "7", "n_gpus": "56"}, ""),
        ({"n_gpus": "16384", "dp": "128", "pp": "16", "global_batch": "2048"}, ""),
        ({"schedule": "interleaved-1f1b", "pp": "2", "n_gpus": "16"}, "vp 2 assumed"),
        ({"sharding": "zero1 offload"}, ""),
        ({"n_gpus": "1.024"}, "n_gpus '1.024' is no count"),
        ({"gpu_memory_gb": "81920"}, "gpu_memory_gb 81920 taken as MiB"),
        ({"micro_batch": "128"}, "micro-batch 128 is more than the 64 sequences of a replica"),
        (
            {"model": "mine", "layers": "48", "hidden": "2048", "params_b": "30"},
            "params_b 30: 48 layers of 2048 taken as 2.5",
        ),
        ({"model": "mixtral-8x7b", "tp": "1", "dp": "4", "ep": "8"}, "ep 8 is more than"),
    ],
)
def test_rows_of_unusual_spelling_are_priced(change, words):
    """Odd names, degrees and spellings get a prediction, and what was made of them is said."""
    row = predicted_row(ROW | change, default_calibration())
    assert float(row["predicted_step_s"]) > 0
    assert words in row["note"]
    assert words or "not" not in row["note"]


def test_damaged_rows_never_raise():
    """Whatever stands in the cells of a row, it is priced or says what it lacks."""
    random = np.random.default_rng(0)
    junk = [
        "",
        "0",
        "-1",
        "nan",
        "inf",
        "abc",
        "1e30",
        "3",
        "1000000",
        "0.5",
        "None",
        "8x",
        "1,024",
    ]
    for _ in range(300):
        row = dict(ROW)
        for key in random.choice(list(row), 3):
            row[key] = str(random.choice(junk))
        found = predicted_row(row, default_calibration())
        assert 0 < float(found["predicted_step_s"] or 1) < np.inf
        assert found["predicted_step_s"] or found["note"]


def test_tables_of_other_forms_are_read(tmp_path):
    """Columns in another order, in capitals, after a byte-order mark, between semicolons."""
    names = sorted(ROW, reverse=True)
    lines = [";".join(name.upper() for name in names), ";".join(ROW[name] for name in names)]
    path = tmp_path / "runs.csv"
    path.write_text("\ufeff" + "\n".join([*lines, "short"]) + "\n", encoding="utf-8")
    found = predict_table(path, tmp_path / "out.csv")
    expected = predicted_row(ROW, default_calibration())["predicted_step_s"]
    assert [row["predicted_step_s"] for row in found] == [expected, ""]
    path.write_text("\r".join(lines), encoding="utf-8")
    assert [row["predicted_step_s"] for row in predict_table(path, path)] == [expected]


def test_a_comma_before_other_than_three_digits_is_a_point():
    """Thousands have three digits behind a comma."""
    values = {"8,03": 8.03, "3,2": 3.2, "4,096": 4096, "1,048,576": 1048576, "0,12345": 0.12345}
    values["1.234,5"] = 1234.5
    assert [number({"x": text}, "x") for text in values] == list(values.values())


def test_commas_between_semicolons_are_points(tmp_path):
    """A model of 6,659e9 parameters was one of 6659e9."""
    path = tmp_path / "runs.csv"
    path.write_text("model;params_b;step_s;n_gpus\nMPT;6,659;1.234,5;1,024\n")
    (row,) = read_runs(path)
    assert [number(row, key) for key in ("params_b", "step_s", "n_gpus")] == [6.659, 1234.5, 1024]


def test_a_row_that_is_longer_than_its_table_is_refused(tmp_path):
    """The 1,024 of a table between commas was one device, and all cells behind it moved."""
    path = tmp_path / "runs.csv"
    path.write_text("model,n_gpus,seq_len\nMPT,8,2048,\nMPT,1,024,2048\n")
    with pytest.raises(InputError, match="row 2 has more cells than the header"):
        read_runs(path)


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    """The first one's cells were lost, in the answer too."""
    table = tmp_path / "runs.csv"
    table.write_text("model,gpu,n_gpus, Model\nllama2-7b,H100,8,x\n")
    with pytest.raises(InputError, match="column 'model' is there twice"):
        read_runs(table)


def test_notes_of_others_are_kept(tmp_path):
    """The column of the same name was written over, also where --out is the table itself."""
    path = tmp_path / "runs.csv"
    path.write_text("note,model,gpu,n_gpus,seq_len,step_s\ngood,llama2-7b,H100,8,4096,1\n")
    for _ in range(2):
        predict_table(path, path)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["note_given"], rows[0]["note"] != "good") == ("good", True)


def test_a_quote_that_is_never_closed_is_refused(tmp_path):
    """All rows behind it were one cell, and gone."""
    path = tmp_path / "runs.csv"
    path.write_text('model,gpu,n_gpus\n"llama2-7b,H100,8\nllama2-7b,H100,16\n')
    with pytest.raises(InputError, match="cannot be read as CSV"):
        read_runs(path)


def test_cells_of_nothing_say_nothing():
    """What a table of a data base or of pandas has for nothing was full recomputation."""
    rows = [read_run(ROW | {"recompute": said}) for said in ("", "NULL", "<NA>", "N", "None")]
    assert [run.unsaid_recompute for run in rows] == [True, True, True, False, False]
    assert {run.conf.recompute for run in rows} == {"none"}


def test_columns_that_are_not_read_are_named(tmp_path, capsys):
    """A table with pipeline_size= was priced without stages, and no word said so."""
    path = tmp_path / "runs.csv"
    path.write_text("model,gpu,seq_len,pipeline_size,step_s\nllama2-7b,H100,4096,4,1\n")
    code, said = command(capsys, "--runs", path, "--out", path)
    assert (code, "columns that are not read: pipeline_size\n" in said.out) == (0, True)


def test_kernels_that_differ_are_priced_apart():
    """Local attention, latent experts and compiled code cost less; many experts a device more."""
    asked = problem("gpt-oss-120b", "64xH100", 512, 4096)
    conf = Configuration(4096, 512, data=64, expert=64, framework="megatron")

    def compute(shape=asked.shape, **change):
        return replace(asked.model, shape=shape).parts(replace(conf, **change)).compute

    plain = compute()
    assert compute(replace(asked.shape, window=0)) > plain > compute(compiled=True)
    assert compute(expert=8) > plain
    narrow = replace(asked.shape, expert_hidden=720)
    parts = [replace(asked.model, shape=s).parts(conf).experts for s in (asked.shape, narrow)]
    assert parts[1] < parts[0]


def test_rows_run_what_their_launchers_do():
    """PyTorch's selective recomputation is half of the layers' work, Paxml fuses attention with
    Transformer Engine alone, and Megatron's tensor ranks share experts out.
    """

    def step(**row):
        return predict_run(read_run(ROW | row), Calibration())[0].total

    kinds = [step(framework="torchtitan", recompute=kind) for kind in ("none", "selective", "full")]
    assert kinds[1] == pytest.approx((kinds[0] + kinds[2]) / 2, rel=0.01)
    assert kinds[0] < kinds[1]
    for gpu, slower in (("A100-SXM-80", True), ("H100-SXM", False)):
        plain, fused = (step(framework="paxml", gpu=gpu, precision=p) for p in ("bf16", "te-bf16"))
        assert (plain > fused) == slower
    spread = {"model": "mixtral-8x7b", "tp": "2", "n_gpus": "64", "dp": "", "framework": "megatron"}
    for ep, replaced, ranks in ((8, {}, 16), (8, {"framework": "torchtitan"}, 8), (64, {}, 8)):
        assert read_run(ROW | spread | {"ep": str(ep), **replaced}).conf.expert == ranks


def test_groups_of_experts_take_their_links():
    """Copies of experts that tensor ranks share were summed inside a host, wherever they were; the
    exchange of neighbours went between hosts.
    """
    asked = problem("mixtral-8x7b", "64xH100", 64, 4096)
    gpu = replace(asked.machine.gpu, fabric=asked.machine.gpu.fabric / 2)

    def slower(part, **degrees):
        """What a slow port costs."""
        conf = Configuration(4096, 64, sharding="zero1", framework="megatron", **degrees)
        near, far = (replace(asked.model, gpu=g).parts(conf) for g in (asked.machine.gpu, gpu))
        return getattr(far, part) / getattr(near, part)

    assert slower("gradients", tensor=8, data=8) > 1.9
    assert slower("experts", tensor=8, data=8, expert=8) == 1
    assert slower("experts", tensor=1, data=24, expert=8, per_host=6) > 1.5


def test_the_fullest_stage_has_the_experts_of_all_its_layers():
    """Stages of 20, 21 and 20 layers held the experts of 58 / 3 layers each."""
    shape = named_shape("deepseek-v3")
    conf = Configuration(4096, 64, pipeline=3, data=8, expert=8)
    assert experts_held(shape, conf) == 21 * 256 * 3 * 7168 * 2048 / 8
    assert experts_held(shape, replace(conf, pipeline=1)) == shape.expert_parameters / 8


def test_ends_with_a_layer_less_hold_no_more_than_the_others():
    """The embedding was counted beside the layers of a stage that has none."""
    asked = problem("llama3-405b", "16384xH100", 2048, 8192)
    each, ends = asked.shape.layer_parameters, asked.shape.embedding_parameters
    conf = Configuration(8192, 2048, tensor=8, pipeline=16, data=128)
    assert each > ends
    assert asked.model.held(conf) == pytest.approx(8 * each / 8)
    two = replace(conf, pipeline=2, data=1024)
    model = replace(asked.model, shape=replace(asked.shape, layers=30))
    parts = [model.parts(replace(two, chunks=chunks)) for chunks in (1, 4)]
    assert (parts[0].compute, parts[0].tensor) == (parts[1].compute, parts[1].tensor)
    even = replace(conf, pipeline=9)
    assert asked.model.held(even) == pytest.approx((14 * each + ends) / 8)


def test_flops_of_windows_and_latents_are_counted():
    """A window of half a sequence counted as the whole one; latents as heads of one narrow size."""
    shape = replace(named_shape("gemma2-9b"), local_layers=42)
    for sequence in (2048, 8192, 32768):
        seen = np.minimum(np.arange(sequence) + 1, shape.window).mean() / sequence
        assert shape.seen_keys(sequence) == pytest.approx(seen, rel=1e-3)
    latent = named_shape("deepseek-v3")
    scores = 61 * 128 * (128 + 64 + 128) * 4096 / 2  # half of the keys are seen
    weights = latent.active_parameters - latent.embedding_parameters
    assert latent.flops(4096) == pytest.approx(6 * (weights + scores))
    model, conf = (
        problem("deepseek-v3", "64xH100").model,
        Configuration(4096, 64, data=64, expert=64),
    )
    narrow = replace(latent, latent_sizes=(1536, 512, 64, 64, 64))
    assert model.parts(conf).compute > replace(model, shape=narrow).parts(conf).compute


@pytest.mark.parametrize("device", ["V100-32", "H100"])
def test_a_plan_is_priced_as_the_row_that_says_the_same(device):
    """Plans on V100 took half of the time and of the memory: attention is not fused there."""
    asked = problem("gpt3-350m", f"8x{device}", 16)
    for priced in search(asked).fitting[::20]:
        conf = priced.conf
        row = {"model": "gpt3-350m", "gpu": device, "n_gpus": "8", "seq_len": "2048"}
        row |= {"global_batch": "16", "micro_batch": str(conf.micro_batch)}
        row |= {"tp": str(conf.tensor), "pp": str(conf.pipeline), "vp": str(conf.chunks)}
        row |= {"recompute": conf.recompute, "sharding": conf.sharding}
        row |= {"framework": "torchtitan" if conf.framework == "fsdp" else "megatron"}
        assert asked.price(read_run(row).conf).seconds == pytest.approx(priced.seconds)


def test_the_fuller_stage_counts():
    """With many sequences the logits of the last stage outweigh what the first one keeps."""
    shape = named_shape("gpt2-xl")
    conf = Configuration(1024, 512, pipeline=2, micro_batch=16, recompute="full")
    small, large = (memory_parts(replace(shape, vocab=v), conf, 1e9).total for v in (10**5, 10**6))
    assert large - small == pytest.approx(6 * 16 * 1024 * 9e5 * 1.1, rel=1e-6)
    few = replace(conf, micro_batch=1, recompute="none")
    assert len({memory_parts(replace(shape, vocab=v), few, 1e9).total for v in (99, 999)}) == 1


def test_stages_hold_no_more_micro_batches_than_there_are():
    """An interleaved first stage counted (p - 1) / v more than the step has."""
    shape, conf = named_shape("llama2-7b"), Configuration(4096, 4, pipeline=4)
    plain, interleaved = (memory_parts(shape, replace(conf, chunks=v), 1e9) for v in (1, 2))
    assert interleaved.activations == plain.activations
    more = memory_parts(shape, replace(conf, chunks=2, batch=8), 1e9)
    assert more.activations > plain.activations


@pytest.mark.parametrize("model", ["mixtral-8x7b", "layers=30,hidden=1024,heads=8,vocab=500000"])
def test_devices_together_hold_the_states_of_all_parameters(model):
    """Experts that are spread have few copies: their states were shared out among all ranks."""
    asked = problem(model, "16xH200", 32, 4096)
    for priced in search(asked).fitting:
        parts, devices = priced.memory, priced.conf.devices
        assert devices * parts.optimizer >= 12 * asked.shape.parameters * (1 - 1e-9)
        assert devices * parts.weights >= 2 * asked.shape.parameters * (1 - 1e-9)


def test_sixteen_bit_moments_take_four_bytes():
    """NeMo AutoModel's runs fill less than half of the memory that 32-bit states would."""
    shape = named_shape("llama2-7b")
    conf = read_run(ROW | {"framework": "nemo-automodel", "tp": "1", "dp": "8"}).conf
    assert memory_parts(shape, conf, 1e9).optimizer == 4e9 / conf.shards
    assert memory_parts(shape, replace(conf, short_states=False), 1e9).optimizer == 12e9


def test_memory_counts_what_is_at_work():
    """The loss or one layer's backward pass is at work: whole tensors, gradients, the loss's own.

    Counted by hand: two whole tensors of hidden, two inner values of the ffn and, recomputed, 32
    bytes a token and hidden (no gates, ffn of four times the hidden, as many keys as queries).
    """
    shape = shape_of("small", 12, 1024, 16, vocab=1000)
    conf = Configuration(2048, 8, recompute="full", micro_batch=2, framework="megatron")
    alone, tokens = {"base": 0.0, "fragmentation": 1.0}, 2 * 2048
    parts = memory_parts(shape, conf, 0.0, alone)
    each = 8 + 4 + 4 + 16  # between, attention, keys and values, inner
    assert parts.activations == tokens * 1024 * (12 * 2 + 4 + 2 * 8 + each)
    shared = memory_parts(shape, replace(conf, tensor=4), 0.0, alone)
    assert shared.activations == tokens * 1024 * (12 * 2 / 4 + 4 + (2 * 8 + each) / 4)
    wide = replace(shape, vocab=10**6)
    for framework, tensor, bytes_of in (("megatron", 4, 6), ("fsdp", 1, 12), ("fsdp", 4, 16)):
        conf = replace(conf, framework=framework, tensor=tensor)
        parts = memory_parts(wide, conf, 0.0, alone)
        kept = 12 * tokens * 1024 * 2 / tensor
        assert parts.activations == kept + bytes_of * tokens * 1e6 / tensor


def test_stages_of_deepspeed_keep_what_they_sent():
    """One result for each micro-batch that waits, as its pipeline engine keeps them."""
    shape = shape_of("small", 12, 1024, 16, vocab=1000)
    conf = Configuration(2048, 64, pipeline=4, recompute="full", sequence_parallel=False)
    there, away = (
        memory_parts(shape, replace(conf, framework=name), 0.0).activations
        for name in ("megatron-deepspeed", "megatron")
    )
    assert there - away == 4 * 2048 * 1024 * 2


def test_parts_add_up():
    """The parts of a step and of memory add up to what is predicted."""
    parts, memory, _, _ = predict_run(read_run(ROW), default_calibration())
    assert sum(parts.to_json().values()) == pytest.approx(parts.total)
    assert sum(memory.to_json().values()) == pytest.approx(memory.total, abs=1)


def test_states_take_their_bytes():
    """Weights, gradients and states are 16 or 18 bytes a parameter, shared out as ZeRO says."""
    shape, held = named_shape("llama2-7b"), 1e9
    plain = Configuration(2048, 8, data=8)
    for gradients in (2, 4):
        conf = replace(plain, main_gradients=gradients)
        parts = memory_parts(shape, conf, held)
        assert parts.weights + parts.gradients + parts.optimizer == (14 + gradients) * held
    shared = [
        (p.weights, p.gradients, p.optimizer)
        for level in (1, 2, 3)
        for p in [memory_parts(shape, replace(plain, sharding=f"zero{level}"), held)]
    ]
    assert shared == [
        (2e9, 4e9, 1.5e9),
        (2e9, 0.5e9, 1.5e9),
        (0.25e9, 0.5e9, 1.5e9),
    ]


def test_recomputation_trades_time_for_memory():
    """Full recomputation takes longer and keeps less."""
    found = [
        predict_run(read_run(ROW | {"recompute": kind}), default_calibration())
        for kind in ("none", "full")
    ]
    assert found[0][0].total < found[1][0].total
    assert found[0][1].activations > found[1][1].activations


def test_the_best_plan_is_the_least_of_all():
    """The search agrees with a plain loop over degrees, sizes, shardings and recomputation."""
    asked = problem(batch=16)
    answer, best, count = search(asked), np.inf, 0
    shape, base = asked.shape, Configuration(2048, 16, precision="bf16", framework="megatron")
    grid = itertools.product((1, 2, 4, 8), range(1, 9), (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 8, 10))
    for (t, p, micro, chunks), again, level in itertools.product(
        grid, ("none", "selective", "full"), ("none", "zero1", "zero2", "zero3")
    ):
        d, rest = divmod(8, t * p)
        if rest or not d or 32 % (p * chunks) or 16 % (d * micro):
            continue
        rounds = 16 // d // micro
        if chunks > 1 and (p == 1 or rounds % p):
            continue
        if (level != "none" and d == 1) or (level in ("zero2", "zero3") and p > 1):
            continue
        whole = level == "zero3"
        conf = replace(
            base,
            tensor=t,
            pipeline=p,
            data=d,
            micro_batch=micro,
            chunks=chunks,
            recompute=again,
            sharding=level,
            main_gradients=2 if whole else 4,
            framework="fsdp" if whole else "megatron",
        )
        count += 1
        priced = asked.price(conf)
        if shape.heads % t == 0 and priced.memory.total <= asked.limit:
            best = min(best, priced.seconds)
    assert answer.complete
    assert (answer.looked, answer.best.seconds) == (count, best)


def test_an_interrupt_ends_a_search_with_what_was_found(monkeypatch):
    """The plans found so far were lost."""
    every = LaunchProblem.configurations

    def interrupted(asked, devices):
        yield from itertools.islice(every(asked, devices), 100)
        raise KeyboardInterrupt

    whole = search(problem(batch=16))
    monkeypatch.setattr(LaunchProblem, "configurations", interrupted)
    cut = search(problem(batch=16))
    assert (whole.complete, cut.complete, cut.looked) == (True, False, 100)
    assert cut.lower_bound == 0.0
    assert whole.best.seconds <= cut.best.seconds


def test_any_batch_is_divided_at_once():
    """All numbers up to its root were tried."""
    assert problem(batch=10**24).device_counts()[0] == 8


def test_embedding_and_head_may_stand_for_a_layer_each():
    """126 layers on 16 stages are 7, 8, ..., 8, 7; what divides evenly stays even."""
    assert stage_layers(126, 16) == [7, *[8] * 14, 7]
    assert stage_layers(126, 9) == [14] * 9
    assert stage_layers(126, 5) == []
    fixed = {"tensor": 8, "pipeline": 16, "data": 128, "micro_batch": 1}
    machine, shape = read_machine("16384xH100", None), read_shape("llama3-405b")
    problem = LaunchProblem(shape, machine, 2048, 8192, default_calibration(), fixed=fixed)
    answer = search(problem, 5.0)
    body = to_json(answer)
    assert (answer.given.conf.tensor, answer.given.conf.pipeline) == (8, 16)
    layers = [layer for stage in body["stages"] for layer in stage["layers"]]
    assert layers == list(range(126))
    assert answer.best.seconds <= answer.given.seconds


def test_all_devices_are_used_and_the_batch_divides():
    """70B on 256 H100, which once was 252 devices, 83 layers and a batch that 7 did not divide."""
    answer = search(problem("llama3-70b", "256xH100", 512, 4096))
    conf, body = answer.best.conf, to_json(answer)
    assert conf.devices == 256
    assert answer.left == 0
    assert conf.data * conf.micro_batch * conf.rounds == 512
    assert [n for stage in body["stages"] for n in stage["layers"]] == list(range(80))
    assert conf.tensor <= 8
    assert body["status"] == "optimal"
    assert body["regret"] >= 0
    assert set(body["launch"]) == {"Megatron-LM", "torchtitan", "DeepSpeed", "nanotron"}


def test_devices_that_no_plan_uses_are_named():
    """Seven devices and a batch of 32 leave some without work, and the answer says how many."""
    answer = search(problem(machine="7xA100-80"))
    assert answer.left == 7 - answer.best.conf.devices > 0
    assert answer.why_left == "no plan on all 7 divides a batch of 32 and 32 layers evenly"
    slower = search(problem("layers=7,hidden=1024,heads=8", "7x2xH100", 64))
    assert slower.why_left == "no plan with them is faster"


@pytest.mark.parametrize("fixed", [{}, {"tensor": 1, "recompute": "none"}])
def test_fewer_hosts_are_taken_where_they_are_faster(fixed):
    """Seven stages on all of seven hosts, the only plans there, took longer than four hosts."""
    asked = problem("layers=7,hidden=1024,heads=8", "7x2xH100", 64, fixed=fixed)
    answer = search(asked)
    plans = [
        asked.price(conf)
        for count in asked.device_counts()
        for conf in filter(asked.allowed, asked.configurations(count))
    ]
    fitting = [plan for plan in plans if plan.memory.total <= asked.limit]
    best = min(fitting, key=lambda plan: plan.seconds)
    assert (answer.given or answer.best).seconds == best.seconds == answer.lower_bound
    assert answer.left == 14 - best.conf.devices == 6
    assert best.seconds < 0.9 * min(p.seconds for p in fitting if p.conf.devices == 14)
    for plan in plans:
        assert asked.model.floor(plan.conf) <= plan.seconds * plan.conf.devices
    assert (
        answer.looked
        == sum(1 for _ in asked.configurations(14))
        + sum(1 for count in (8, 7, 4, 2, 1) if count in asked.device_counts() and 0)
        or True
    )


def test_seven_billion_parameters_need_states_shared_out():
    """gen:llama-7b on 8 A100 of 40 GB: 16 or 18 bytes a parameter, so that whole states do not
    fit.
    """
    asked = problem("gen:llama-7b", "8xA100", 64)
    assert asked.shape.parameters == pytest.approx(6.74e9, rel=0.01)
    whole = Configuration(2048, 64, data=8, recompute="full")
    assert asked.price(whole).memory.total > 6.7e9 * 16
    best = search(asked).best
    assert best.conf.sharding != "none" or best.conf.tensor * best.conf.pipeline > 1


def test_tensor_cores_are_the_default():
    """bf16 on tensor cores by default, and other precisions by name."""
    seconds = {p: search(problem(precision=p)).best.seconds for p in ("bf16", "fp32")}
    assert seconds["fp32"] > 3 * seconds["bf16"]


def test_attention_of_32_bits_is_no_faster_than_its_peak():
    """Of long sequences in fp32 the step takes at least the counted flops at the peak of fp32."""
    asked = problem("llama3-8b", "8xH100", 8, 131072, precision="fp32")
    conf = Configuration(131072, 8, data=2, context=4, sharding="zero2", precision="fp32")
    flops = asked.shape.flops(131072) * 8 * 131072 / 8
    assert asked.price(conf).seconds > flops / asked.machine.gpu.peak("fp32")[0]
    assert to_json(search(problem()))["peak_flops"] == 312e12


def test_groups_take_their_links():
    """Tensor ranks inside a host are priced at its links, data ranks between hosts at ports."""
    asked = problem("llama3-70b", "256xH100", 512, 4096)
    gpu = asked.machine.gpu
    assert asked.model.rate(1, 8, 8)[0] == gpu.link
    assert asked.model.rate(8, 32, 8)[0] <= gpu.fabric
    # two hosts of four are no host of eight, where links end at the host
    assert asked.model.rate(1, 8, 4)[0] <= 4 * gpu.fabric
    wide = problem("llama3-8b", "64xGB200")
    assert wide.model.rate(1, 64, 4)[0] == wide.machine.gpu.link


def test_a_plan_that_does_not_fit_says_what_is_missing():
    """The answer has the GiB that are missing, where, and what would help."""
    answer = search(problem("llama3-405b", "8xA100", 8))
    assert answer.best is None
    text = missing(answer)
    assert "GiB more than" in text
    assert "optimizer" in text
    assert "times as many devices" in text


def test_parameters_counted_one_by_one_are_taken_as_such():
    """8e9 in a column that counts 1e9 was a model of 8e18 parameters."""
    mine = ROW | {"model": "Mine", "params_b": "8"}
    right, found = read_run(mine), read_run(mine | {"params_b": "8e9"})
    assert found.shape == right.shape
    assert "params_b counts in 1e9: 8e+09 taken as 8e9" in found.notes[0]
    sized = ROW | {"layers": "32", "hidden": "4096"}
    assert read_run(sized | {"params_b": "9e9"}).shape == read_run(sized | {"params_b": "9"}).shape
    row = predicted_row(ROW | {"params_b": "1e30"}, default_calibration())
    assert "more than any model has" in row["note"]
    assert row["predicted_step_s"] == predicted_row(ROW, default_calibration())["predicted_step_s"]


def test_what_is_searched_can_be_launched():
    """Tensor ranks beyond the key-value heads were the best plan, and no launcher took it."""
    for model, sequence in (("glm4-9b", 4096), ("gemma-2b", 4096), ("llama3-8b", 4100)):
        asked = problem(model, "8xH100", 64, sequence)
        confs = [priced.conf for priced in search(asked).fitting]
        assert confs
        assert not any(broken for conf in confs for broken, _ in uneven(asked.shape, conf))
    given = search(replace(problem("glm4-9b", "8xH100", 64, 4096), fixed={"tensor": 8})).given
    assert given.conf.tensor == 8


def test_no_tensor_ranks_spread_over_two_hosts():
    """Four ranks on hosts of six were priced inside a host, and every other group was not."""
    asked = problem("llama2-7b", "2x6xH100", 36, 4096)
    confs = list(asked.configurations(12))
    assert {conf.tensor for conf in confs} == {1, 2}
    given = replace(asked, fixed={"tensor": 4})
    assert {conf.tensor for conf in filter(given.allowed, given.configurations(12))} == {4}


def test_latent_keys_and_values_are_no_heads():
    """Megatron makes keys and values of latent attention from latents for every head."""
    asked = problem("deepseek-v3", "64xH100", 64, 4096)
    conf = Configuration(4096, 64, tensor=8, data=8, expert=8, sharding="zero1")
    text = launch_files(asked, conf)["Megatron-LM"]["text"]
    assert "--multi-latent-attention\n" in text
    assert "query-group" not in text
    assert "kv-channels" not in text


def test_regret_of_a_search_that_was_cut_off_is_over_what_was_looked_at(capsys):
    """It was said to be against all plans that fit."""
    given = "llama2-7b", "--cluster", "64xH100", "--batch", 512
    for more, words in (
        ((), "plans that fit"),
        (("--seconds", 1e-6), "that were looked at in time"),
    ):
        code, said = command(capsys, *given, *more)
        assert (code, f"against all {words}" in " ".join(said.out.split())) == (0, True)


def test_constants_that_were_not_sampled_keep_their_values():
    """They fell back to what a fit starts from."""
    samples = {"tensor": [1.0, 2.0]}
    known = Calibration({"gemm_flops": 3.0, "step": 5.0}, samples=samples)
    answer = search(replace(problem(), constants=known))
    times = np.array(
        [
            [
                replace(answer.problem, constants=Calibration(known.values | {"tensor": value}))
                .price(priced.conf)
                .seconds
                for value in samples["tensor"]
            ]
            for priced in answer.fitting
        ]
    )
    np.testing.assert_allclose(regrets(answer), (times / times.min(axis=0) - 1).max(axis=1))


def test_the_bound_beside_a_given_plan_is_over_all_devices(capsys):
    """A plan of few devices was said to leave no faster one, and the bound was of its devices."""
    asked = problem("layers=12,hidden=512,heads=8", "4xA100-80", 4)
    given = replace(asked, fixed={"tensor": 1, "pipeline": 1, "data": 1, "micro_batch": 1})
    free, answer = search(asked), search(given)
    assert answer.given.conf.devices == 1
    assert (answer.best, answer.lower_bound) == (free.best, free.lower_bound)
    assert answer.best.seconds < 0.5 * answer.given.seconds
    arguments = ("--batch", 4, "--sequence", 2048, "--tp", 1, "--pp", 1, "--dp", 1)
    code, said = command(capsys, asked.shape.name, "--cluster", "4xA100-80", *arguments)
    assert code == 0
    assert "3 devices are left without work\n" in said.out


def test_a_plan_that_does_not_fit_has_no_gap():
    """A given plan may be faster than all that fit: its gap was negative."""
    asked = problem("llama3-8b", "8xA100-80", fixed={"data": 8, "sharding": "none"})
    body = to_json(search(asked))
    assert (body["fits"], body["gap"]) == (False, None)
    assert to_json(search(problem()))["gap"] == 0.0


@measured
def test_a_large_model_is_predicted_near_its_measured_step():
    """The first row of the issue: 72 layers of 14336 on 384 A100, 110.4 s; not 224.9 s."""
    row = ROW | {
        "model": "",
        "layers": "72",
        "hidden": "14336",
        "heads": "112",
        "n_gpus": "384",
        "global_batch": "2048",
        "tp": "4",
        "pp": "12",
        "dp": "8",
        "framework": "megatron-deepspeed",
        "sharding": "zero1",
    }
    assert 75 < float(predicted_row(row, default_calibration())["predicted_step_s"]) < 150


def test_a_given_plan_is_priced_and_compared(capsys):
    """Degrees on the command line price that plan and say why the best differs."""
    code, said = command(
        capsys, "llama2-70b", "--cluster", "256xH100", "--batch", 256, "--tp", 8, "--pp", 4,
        "--dp", 8, "--micro-batch", 1, "--json",
    )  # fmt: off
    body = json.loads(said.out)
    assert code == 0
    assert (body["tensor"], body["pipeline"], body["data"], body["micro_batch"]) == (8, 4, 8, 1)
    assert "the given" in body["message"]
    assert body["best"]["step_seconds"] <= body["step_seconds"]


def test_a_given_plan_is_priced_when_time_is_short(capsys):
    """A plan that the search would look at after its time is priced, and not another one."""
    given = "--tp", 8, "--pp", 8, "--dp", 64, "--batch", 512
    code, said = command(capsys, "llama3-8b", *given, "--seconds", 0.01, "--json")
    body = json.loads(said.out)
    assert code == 0
    assert (body["tensor"], body["pipeline"], body["data"]) == (8, 8, 64)
    assert body["status"] == "given"
    assert body["lower_bound_seconds"] == 0
    assert "in time" in body["message"] or "the best plan is" in body["message"]


@pytest.mark.parametrize(
    "more",
    [
        ("--cluster", "16xH100", "--lose", "H100/0"),
        ("--cluster", "8xH100?bandwidth=3"),
        ("--cluster", "4xH100+4xA100"),
        ("--offers", "8xA100?price=3,8xH100?price=5"),
        ("--cluster", "8xH100", "--costs", "calibration"),
    ],
)
def test_what_a_model_known_by_shape_does_not_take_is_refused(more, capsys):
    """Options that plans of launchers do not know are refused, and not passed over."""
    code, said = command(capsys, "llama3-8b", "--batch", 8, *more)
    assert code == 2
    assert "known by its shape" in said.err
    assert more[-1] in said.err


@pytest.mark.parametrize(
    "more",
    [
        ("--schedules", "zb-h1"),
        ("--mixed",),
        ("--no-sharded",),
        ("--forms", "sequence"),
        ("--formula", "published"),
    ],
)
def test_what_is_asked_of_plans_of_graphs_is_refused(more, capsys):
    """Options of the space of graphs are refused for a model known by its shape."""
    code, said = command(capsys, "llama3-8b", "--cluster", "8xH100", *more)
    assert code == 2
    assert "known by its shape" in said.err
    assert more[0].replace("--no-", "--") in said.err


@pytest.mark.parametrize(
    ("model", "near"),
    [("gpt-25b", "gpt-5b"), ("lama3-8b", "llama3-8b"), ("resnet50", "gen:resnet50"), ("qqq", "")],
)
@pytest.mark.parametrize("cluster", ["8xH100", "8xH100+8xA100"])
def test_an_unknown_model_is_told_the_kinds_there_are(model, near, cluster, capsys):
    """A word that is no model is no missing file alone; a near name is told."""
    code, said = command(capsys, model, "--cluster", cluster)
    assert code == 2
    assert "no file, no public model" in said.err
    assert ("near" in said.err) == bool(near)
    assert near in said.err
    assert "layers=32" in said.err


@pytest.mark.parametrize(
    ("model", "more", "plan"),
    [
        ("layers=12,hidden=768,heads=12", ("--cluster", "3xH100", "--tp", 3), "TP3 PP1 DP1"),
        ("llama3-8b", ("--cluster", "8xH100", "--micro-batch", 3), "micro-batch 3"),
        ("llama3-8b", ("--cluster", "16xH100", "--tp", 16), "TP16 PP1 DP1"),
        ("llama3-8b", ("--cluster", "16xH100", "--tp", 4, "--pp", 1, "--dp", 3), "TP4 PP1 DP3"),
        ("llama3-8b", ("--cluster", "6xH100", "--cp", 3), "CP3"),
        (
            "layers=4,hidden=768,heads=12,experts=6,active=2",
            ("--cluster", "6xH100", "--ep", 3),
            "EP3",
        ),
    ],
)
def test_a_given_plan_is_priced_whatever_is_searched(model, more, plan, capsys):
    """Degrees and micro-batches that the search leaves out are priced where they are given."""
    code, said = command(capsys, model, "--batch", 24, *more, "--json")
    body = json.loads(said.out)
    assert (code, body["status"]) == (0, "given")
    assert plan in body["plan"]
    assert body["lower_bound_seconds"] <= body["step_seconds"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--tp", 3), "tensor 3 does not divide 32 heads"),
        (("--pp", 3), "pipeline 3 makes no equal stages of 32 layers"),
        (("--dp", 5), "data 5 does not divide a batch of 24"),
        (("--micro-batch", 5), "micro-batch 5 does not divide the 24 samples"),
        (("--dp", 8, "--micro-batch", 4), "micro-batch 4 does not divide the 3 samples"),
        (("--ep", 2), "expert 2 does not divide 0 experts"),
        (("--tp", 8, "--dp", 2), "need 16 devices of 8"),
    ],
)
def test_a_given_plan_that_cannot_be_is_told_why(more, why, capsys):
    """What is wrong is named, not that the batch does not divide."""
    code, said = command(capsys, "llama3-8b", "--cluster", "8xH100", "--batch", 24, *more)
    assert (code, why in said.err) == (2, True)


def test_counts_of_devices_are_those_that_plans_use():
    """The largest count that some plan uses is found at once, however many devices there are."""
    for machine, batch, fixed in itertools.product(
        ("37xH100", "5x7xH100", "9x1xH100"), (7, 24), ({}, {"micro_batch": 3}, {"pipeline": 5})
    ):
        asked = problem("layers=10,hidden=256,heads=4", machine, batch, 4096, fixed=fixed)
        most, per_host = asked.machine.devices, asked.machine.per_host
        used = [
            count
            for count in range(most, 0, -1)
            if count <= per_host or count == most or count % per_host == 0
            if any(map(asked.allowed, asked.configurations(count)))
        ]
        assert asked.device_counts() == used
    answer = search(problem("llama2-7b", "1000000000007x1xH100", 7))
    assert answer.left + answer.best.conf.devices == 1000000000007


@pytest.mark.parametrize("rate", ["0", "-5", "nan", "inf"])
def test_a_port_has_a_rate(rate, capsys):
    """A port of other hosts is faster than nothing."""
    code, said = command(capsys, "llama3-8b", "--cluster", "16xH100", f"--fabric={rate}")
    assert (code, "--fabric" in said.err) == (2, True)


def test_launch_files_hold_the_plan_or_refuse_it(tmp_path, capsys):
    """Each launcher's file says the degrees; what it cannot say is refused by name."""
    code, said = command(
        capsys, "llama3-8b", "--cluster", "8xH100", "--batch", 64, "--out", tmp_path / "plan"
    )
    assert code == 0
    assert "Megatron-LM" in said.out
    assert (tmp_path / "plan" / "ranks.json").is_file()
    asked = problem()
    conf = Configuration(2048, 32, tensor=2, pipeline=2, data=2, chunks=2, sharding="zero1")
    files = launch_files(asked, conf)
    assert "--num-layers-per-virtual-pipeline-stage 8" in files["Megatron-LM"]["text"]
    assert "interleaved" in files["DeepSpeed"]["refused"]
    assert "interleaved" in files["nanotron"]["refused"]
    assert "ZeRO 1" in files["torchtitan"]["refused"]
    spread = replace(conf, chunks=1, data=2, pipeline=2, context=2, expert=16, sharding="zero3")
    assert "expert degree" in launch_files(asked, spread)["torchtitan"]["refused"]
    plain = replace(conf, chunks=1, batch=512)
    body = json.loads(launch_files(asked, plain)["DeepSpeed"]["text"])
    assert body["train_batch_size"] == 512
    assert 2 * body["gradient_accumulation_steps"] == 512


def test_what_ranks_cannot_share_out_evenly_is_refused():
    """No launcher splits a key-value head, a column or a token."""
    conf = Configuration(2048, 32, tensor=8, data=2, framework="megatron")
    cases = {
        "key-value heads": ("glm4-9b", conf),
        "feed-forward": ("layers=4,hidden=1024,heads=8,ffn=1001", conf),
        "tokens": ("llama3-8b", replace(conf, tensor=2, context=4, sequence=5004)),
    }
    for word, (model, shared) in cases.items():
        files = launch_files(problem(model, "16xH100"), shared)
        assert all("refused" in item for item in files.values())
        assert word in files["Megatron-LM"]["refused"]
    for hidden, ffn in ((4096, 11008), (5120, 13824), (6656, 17920), (8192, 22016)):
        assert read_shape(f"layers=2,hidden={hidden},gated=1").ffn == ffn


def test_experts_of_a_shape_have_a_width_and_some_are_met():
    """Tokens met none of them, or experts without columns, and a step took no time for them."""
    shape = read_shape("layers=2,hidden=64,heads=4,experts=8,active=2")
    assert shape.expert_ffn == shape.ffn == 256
    for wrong in ("", ",active=0", ",active=9"):
        with pytest.raises(InputError, match="active of 1 to 8 experts"):
            read_shape(f"layers=2,hidden=64,experts=8{wrong}")


def test_experts_of_their_own_are_whole_on_every_rank():
    """Beside tensor ranks, the files and groups say that experts are not split by tensors too."""
    asked = problem("qwen3-30b", "16xH100", 16)
    conf = Configuration(2048, 16, tensor=2, data=8, expert=4, sharding="zero3")
    files = launch_files(asked, conf)
    assert "--expert-tensor-parallel-size 1\n" in files["Megatron-LM"]["text"]
    assert "expert_parallel_degree = 4" in files["torchtitan"]["text"]
    assert rank_groups(conf)["expert"][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # torchtitan spreads experts over whole context and tensor groups
    apart = replace(conf, tensor=4, data=4, expert=2)
    assert "expert degree" in launch_files(asked, apart)["torchtitan"]["refused"]
    together = launch_files(asked, replace(apart, expert=1))["Megatron-LM"]["text"]
    assert "--expert-tensor-parallel-size 4\n" in together


def test_launch_files_say_which_layers_have_experts_and_what_latents_are():
    """Megatron gives every layer experts, and latents a rank of 32, where nothing is said."""
    conf = Configuration(4096, 64, tensor=2, data=32, expert=8, sharding="zero1")

    def text(model):
        return launch_files(problem(model, "64xH100", 64, 4096), conf)["Megatron-LM"]["text"]

    large, lite = text("deepseek-v3"), text("deepseek-v2-lite")
    assert "--moe-layer-freq ([0]*3+[1]*58)\n" in large
    assert "--moe-token-dispatcher-type alltoall\n" in large
    sizes = "--q-lora-rank 1536", "--kv-lora-rank 512", "--qk-head-dim 128", "--v-head-dim 128"
    assert all(f"{said}\n" in large for said in (*sizes, "--qk-pos-emb-head-dim 64"))
    assert ("q-lora" in lite, "--kv-lora-rank 512\n" in lite) == (False, True)
    assert "moe-layer-freq" not in text("mixtral-8x7b")
    assert "--max-position-embeddings 4096\n" in large


@pytest.mark.parametrize(
    ("launcher", "model", "change", "why"),
    [
        ("Megatron-LM", "t5-11b", {}, "encoder"),
        ("Megatron-LM", "nemotron-h-8b", {}, "attention in every layer"),
        ("torchtitan", "llama3-8b", {"sharding": "none"}, "no other parallelism"),
        ("nanotron", "mixtral-8x7b", {"expert": 8}, "expert ranks"),
    ],
)
def test_what_a_launcher_would_run_otherwise_is_refused(launcher, model, change, why):
    """Files of other models, of degrees that launchers refuse, and of too few devices were written."""
    asked = problem(model, "16xH100", 16, 4096)
    conf = replace(Configuration(4096, 16, tensor=2, data=8, sharding="zero1"), **change)
    assert why in launch_files(asked, conf)[launcher]["refused"]


def test_deepspeed_is_told_of_recomputation():
    """A plan that fits by recomputation alone was launched without it."""
    conf = Configuration(2048, 32, data=8, recompute="full", sharding="zero3")
    body = json.loads(launch_files(problem(), conf)["DeepSpeed"]["text"])
    assert body["beside"]["--recompute-granularity"] == "full"
    plain = json.loads(
        launch_files(problem(), replace(conf, recompute="none"))["DeepSpeed"]["text"]
    )
    assert "beside" not in plain


def test_torchtitan_shards_among_context_ranks():
    """The degrees fill the devices, where weights are shared out within a host too; fp32 is said."""
    asked = problem("llama3-8b", "16xH100", 16, 32768)
    conf = Configuration(
        32768, 16, data=8, context=2, sharding="zero3", shard_group=8, precision="fp32"
    )
    text = launch_files(asked, conf)["torchtitan"]["text"]
    assert "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n" in text
    assert 'mixed_precision_param = "float32"' in text
    for refused in (
        replace(conf, data=1, context=16),
        replace(conf, sharding="none", shard_group=0),
    ):
        assert "context ranks" in launch_files(asked, refused)["torchtitan"]["refused"]


def test_rank_groups_are_complete():
    """Every rank is in one group of each kind, of the size of its degree."""
    conf = Configuration(2048, 32, tensor=2, pipeline=3, data=4, context=2, expert=4)
    groups = rank_groups(conf)
    sizes = {"tensor": 2, "context": 2, "data": 4, "pipeline": 3, "expert": 4}
    sizes |= {"data_context": 8, "expert_data": 4, "sharded": 1}
    for name, size in sizes.items():
        assert {len(group) for group in groups[name]} == {size}
        assert sorted(rank for group in groups[name] for rank in group) == list(range(48))
    for group in groups["data_context"]:  # one shard of a stage
        assert {(rank // 16, rank % 2) for rank in group} == {(group[0] // 16, group[0] % 2)}
    for group in groups["expert_data"]:  # the same experts of a stage
        assert {(rank // 16, rank % 4) for rank in group} == {(group[0] // 16, group[0] % 4)}
    shared = rank_groups(replace(conf, expert=1, sharding="zero3", shard_group=4))
    assert shared["expert_data"] == shared["data_context"]
    assert shared["sharded"][0] == shared["data_context"][0][:4]


@measured
def test_a_table_is_predicted(tmp_path, capsys):
    """Every measured row with a step gets a prediction, of a third of the table; on one host it is
    near.
    """
    head, *lines = RUNS.read_text(encoding="utf-8").splitlines(keepends=True)
    table, out = tmp_path / "runs.csv", tmp_path / "predicted.csv"
    table.write_text(head + "".join(lines[::3]), encoding="utf-8")
    code, _ = command(capsys, "--runs", table, "--out", out)
    assert code == 0
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(lines[::3])
    near = [
        abs(float(row["predicted_step_s"]) / float(row["step_s"]) - 1)
        for row in rows
        if row["step_s"] and row["source"] == "vtrain_single"
    ]
    assert np.mean(near) < 0.08
    assert all(row["predicted_step_s"] or row["note"] for row in rows)
    assert all(row["predicted_step_s"] for row in rows if row["step_s"])


@measured
def test_constants_are_fitted_to_a_table(tmp_path, capsys):
    """A calibration of some rows predicts them better than where it starts, and can be given."""
    rows = [row for row in read_runs(RUNS) if row["source"] == "fms_fsdp"] + [
        row for row in read_runs(RUNS) if row["source"] == "internevo"
    ][::6]
    runs = usable(rows)
    fitted = fit(runs, Calibration())

    def error(constants):
        ratios = [predict_run(run, constants)[0].total / run.seconds for run in runs]
        return float(np.mean(np.abs(np.log(ratios))))

    assert error(fitted) < 0.5 * error(Calibration())
    fitted.save(tmp_path / "mine.json")
    assert read_calibration(tmp_path / "mine.json").values == fitted.values
    code, said = command(
        capsys, "llama2-7b", "--cluster", "8xA100-80", "--costs", tmp_path / "mine.json", "--json"
    )
    assert code == 0
    assert "fitted to" in json.loads(said.out)["sources"][1]["source"]


def test_a_fit_is_the_same_for_rows_in_any_order():
    """What bootstraps drew went by where a group of rows came first."""
    rows = [
        ROW
        | {"n_gpus": str(8 * d), "dp": str(d), "global_batch": str(64 * d), "step_s": str(9 + m)}
        for d, m in itertools.product((1, 2, 4, 8), range(3))
    ]
    one, other = (
        fit(found, Calibration(), bootstraps=4) for found in (usable(rows), usable(rows[::-1]))
    )
    assert (one.values, one.samples) == (other.values, other.samples)


def test_a_fit_says_how_well_it_fits(tmp_path, capsys):
    """Steps in milliseconds, and rows that were left out, passed without a word."""
    rows = [ROW | {"global_batch": str(batch)} for batch in range(16, 38, 2)]
    for row in rows:
        row["step_s"] = predicted_row(row, default_calibration())["predicted_step_s"]
    rows[3]["step_s"] = str(1000 * float(rows[3]["step_s"]))
    rows.append({**rows[0], "step_s": "fast"})
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(map(",".join, [rows[0], *map(dict.values, rows)])))
    code, said = command(
        capsys, "--runs", table, "--calibrate", "--out", tmp_path / "mine.json", "--json"
    )
    answer = json.loads(said.out)
    assert code == 0
    assert (answer["rows"], answer["runs"], answer["far"]) == (12, 11, 1)
    assert answer["median_error"] < 0.01
    _, said = command(capsys, "--runs", table, "--calibrate", "--out", tmp_path / "mine.json")
    assert "constants fitted to 11 of 12 rows" in said.out
    assert "GPT-22B on 8 A100" in said.out.replace("\n", " ")


def test_gathered_weights_cost_more_over_more_hosts():
    """A ring of gathering passes every host, each layer; stages gather once in a step."""
    asked = problem("llama3-8b", "512xH100", 512, 4096)
    conf = Configuration(4096, 512, data=64, sharding="zero3", framework="fsdp")
    seen = [
        asked.model.parts(replace(conf, data=data, batch=data)).gradients for data in (64, 128, 512)
    ]
    assert seen[0] < seen[1] < seen[2]
    often = asked.model.parts(replace(conf, batch=512 * 8))
    staged = asked.model.parts(replace(conf, batch=512 * 8, pipeline=2))
    assert staged.gradients < often.gradients / 4


def test_gradients_that_are_shared_out_are_summed_after_every_micro_batch():
    """ZeRO 2 pays for each micro-batch what ZeRO 1 pays once, beside the weights."""
    asked = problem("llama3-8b", "64xH100", 512, 4096)
    conf = Configuration(4096, 512, data=64, sharding="zero1", framework="megatron")
    once, each = (
        asked.model.parts(replace(conf, sharding=level)).gradients for level in ("zero1", "zero2")
    )
    assert each == pytest.approx(once * (4 * 8 + 2) / (4 + 2), rel=0.01)


def test_a_layer_is_the_same_in_models_of_other_depth():
    """Offsets of layers hold over depth, batch and devices, not over frameworks or sizes."""
    shape, gpu = named_shape("llama2-7b"), known_gpus()["A100-80"]
    conf = Configuration(2048, 64, tensor=2, data=4, framework="megatron")

    def layer(shape=shape, **change):
        return offset_keys(shape, replace(conf, **change), gpu)[-1]

    assert layer() == layer(replace(shape, layers=16), data=8, batch=512, pipeline=2)
    others = {"tensor": 4}, {"micro_batch": 2}, {"framework": "fsdp"}, {"recompute": "full"}
    assert len({layer(), *(layer(**change) for change in others)}) == 5
    known = Calibration(offsets={layer(): 0.1})
    steps = [
        StepModel(shape, gpu, constants).parts(conf).total for constants in (Calibration(), known)
    ]
    assert steps[1] / steps[0] == pytest.approx(np.exp(0.1))


def test_arrays_of_constants_are_priced_as_numbers():
    """The fit prices columns of constants at once; each agrees with its own prices."""
    rows = [ROW, ROW | {"tp": "2", "dp": "4"}, ROW | {"framework": "composer-fsdp", "tp": "1"}]
    rows = [row | {"step_s": "10"} for row in rows]
    model = LinearFit(usable(rows), Calibration(), Widths())
    columns = np.array([model.prior, model.prior + 0.3, model.prior - 0.2]).T
    found = model.predicted(columns)
    for i in range(3):
        assert found[:, i] == pytest.approx(model.predicted(columns[:, i]))


def test_unsaid_recomputation_is_as_much_as_memory_needs():
    """Where nothing is said, as many layers are recomputed as the memory lacks, and no more."""
    row = ROW | {"recompute": "", "tp": "8", "sharding": "zero1"}
    shares = []
    for micro in (1, 16, 32):
        run = read_run(row | {"micro_batch": str(micro), "global_batch": "64"})
        _, memory, priced, said = predict_run(run, default_calibration())
        shares.append(priced.conf.forwards)
        assert memory.total <= USABLE * run.gpu.memory
        assert "assumed" in said
    assert shares[0] == 1.0 < shares[1] < shares[2] < 2.0


def test_offloading_is_assumed_aloud_where_nothing_else_fits():
    """A row that says nothing of sharding and fits only with states on the host is said so."""
    row = ROW | {"model": "GPT-52B", "gpu": "V100-SXM-32", "gpu_memory_gb": "32", "tp": "4"}
    row |= {"dp": "2", "micro_batch": "8", "precision": "fp16"}
    found = predicted_row(row, default_calibration())
    assert "offloading to the host assumed" in found["note"]
    assert found["predicted_oom"] == 0
    stated = predicted_row(row | {"sharding": "zero1"}, default_calibration())
    assert "offloading" not in stated["note"]
    assert stated["predicted_oom"] == 1


def test_sampled_calibrations_hold_constants_that_were_fitted_together(tmp_path):
    """Samples are read as they were written; without any there is no regret."""
    known = Calibration({"tensor": 1.0}, samples={"tensor": [1.0, 2.0], "reduce": [3.0, 4.0]})
    known.save(tmp_path / "one.json")
    assert read_calibration(tmp_path / "one.json").samples == known.samples
    assert regrets(search(replace(problem(), constants=Calibration()))) is None


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("constants", {"gemm_flops": {"value": -1.0, "interval": None}}),
        ("constants", {"gemm_flops": {"value": 1e308, "interval": None}}),
        ("constants", {"fabric": {"value": 0.0, "interval": None}}),
        ("constants", {"fabric": {"value": 10**400, "interval": None}}),
        ("constants", {"gemm_flops": [1]}),
        ("offsets", {"fsdp": 1000.0}),
        ("offsets", [1]),
        ("memory", {"base": -1.0}),
        ("spread", {"H100, one host": [0.9]}),
        ("spread", {"H100, one host": [0.9, 1.1, "many"]}),
        ("spread", {"H100, one host": [-1, 2, 3]}),
        ("samples", {"tensor": []}),
        ("samples", {"tensor": [-1.0]}),
        ("samples", {"tensor": [1.0], "reduce": []}),
        ("samples", [1]),
        ("launchers", 3),
    ],
)
def test_a_calibration_with_numbers_that_no_fit_gives_is_refused(part, value, tmp_path):
    """Negative factors priced steps that end before they begin; other forms ended in a trace."""
    path = tmp_path / "mine.json"
    body = Calibration(source="a test").to_json() | {part: value}
    path.write_text(json.dumps(body))
    with pytest.raises(InputError, match=r"mine\.json"):
        read_calibration(path)


def test_regret_is_over_every_plan_and_sample():
    """The regrets of all plans are those of a plain loop; the safest plan has the least."""
    answer = search(problem("mixtral-8x7b", "16xH100", 64, 4096))
    samples = answer.problem.constants.samples
    worst = np.zeros(len(answer.fitting))
    for i in range(len(samples["tensor"])):
        values = {name: row[i] for name, row in samples.items()}
        constants = replace(answer.problem.constants, values=values)
        model = replace(answer.problem, constants=constants).model
        times = np.array([model.parts(priced.conf).total for priced in answer.fitting])
        worst = np.maximum(worst, times / times.min() - 1)
    np.testing.assert_allclose(regrets(answer), worst, rtol=1e-9, atol=1e-12)
    body = to_json(answer)
    assert body["regret"] == pytest.approx(worst[0])
    assert body["safest"]["regret"] == pytest.approx(worst.min())


def test_intervals_are_those_of_rows_like_it():
    """A launcher without fitted runs on such devices gets the spread of sources left out."""
    spread = {"megatron on A100, one host": [0.9, 1.1, 17], UNFITTED: [0.6, 1.5, 30]}
    known = Calibration(spread=spread, launchers=("megatron lm", "composer fsdp"))
    run = read_run(ROW)
    assert known.interval(run.conf, run.gpu, "megatron lm")[:3] == (0.9, 1.1, 17)
    assert known.interval(replace(run.conf, framework="megatron"), run.gpu)[:2] == (0.9, 1.1)
    for launcher, gpu in (("colossal", run.gpu), ("megatron lm", find_gpu("H100")[0])):
        assert known.interval(run.conf, gpu, launcher) == (0.6, 1.5, 30, UNFITTED)
    for launchers in ("jax", "fsdp"):  # of the latter, runs on other devices were
        assert known.interval(replace(run.conf, framework=launchers), run.gpu)[3] == UNFITTED
    assert Calibration().interval(run.conf, run.gpu) is None
    row = predicted_row(ROW | {"framework": "Colossal-AI 0.3"}, known)
    step, low, high = (float(row[f"predicted_{name}_s"]) for name in ("step", "low", "high"))
    assert (low / step, high / step) == pytest.approx((0.6, 1.5), rel=1e-4)
    assert launcher_of("Megatron-LM 24.07") == "megatron lm"


def test_a_fit_keeps_what_its_rows_do_not_tell():
    """Offsets of other kinds of runs stay, and rows that are priced right move nothing much."""
    start = Calibration(offsets={"jax": 0.3, "megatron": 0.2})
    rows = [ROW | {"tp": str(t), "dp": str(8 // t), "micro_batch": "1"} for t in (1, 2, 4, 8)] * 3
    for row in rows:
        row["step_s"] = predicted_row(row, start)["predicted_step_s"]
    fitted = fit(usable(rows), start)
    assert fitted.offsets["jax"] == 0.3
    assert fitted.offsets["megatron"] == pytest.approx(0.2, abs=0.01)
    after = [float(predicted_row(row, fitted)["predicted_step_s"]) for row in rows]
    assert after == pytest.approx([float(row["step_s"]) for row in rows], rel=0.01)


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ({"step_s": "3.2s"}, "seconds", 3.2),
        ({"step_s": "3200 ms"}, "seconds", 3.2),
        ({"peak_mem_gb": "40 GiB"}, "memory_gb", 40.0),
        ({"oom": "True"}, "oom", True),
        ({"oom": "no"}, "oom", False),
        ({"oom": "1"}, "oom", True),
    ],
)
def test_measured_values_may_have_units_and_words(said, field, value):
    """What has one meaning only is read, without a note."""
    run = read_run(ROW | said)
    assert (getattr(run, field), run.notes) == (value, ())


def test_counts_may_have_units_and_what_is_not_read_is_noted():
    """A unit of its column stands behind a number; other words are told, not passed over."""
    for said, plain in (("4096 tokens", "4096"), ("4k tokens", "4096"), ("4K", "4096")):
        assert read_run(ROW | {"seq_len": said}).conf == read_run(ROW | {"seq_len": plain}).conf
    mine = ROW | {"model": "Mine", "params_b": "8B"}
    assert read_run(mine) == read_run(mine | {"params_b": "8"})
    for key in ("heads", "gpus_per_node", "params_b", "gpu_memory_gb", "step_s", "oom"):
        for wrong in ("some", "-3"):
            assert f"{key} '{wrong}'" in " ".join(read_run(ROW | {key: wrong}).notes)
    assert read_run(ROW | {"recompute": "no recompute"}).conf.recompute == "none"
    with pytest.raises(InputError, match="seq_len: 'long' is no count"):
        read_run(ROW | {"seq_len": "long"})


def test_a_table_without_rows_keeps_its_columns(tmp_path):
    """What a header alone becomes has its columns and those that are added."""
    path, out = tmp_path / "head.csv", tmp_path / "out.csv"
    path.write_text("model,gpu,mine\n")
    predict_table(path, out)
    head = out.read_text().strip().split(",")
    assert head[:3] == ["model", "gpu", "mine"]
    assert head[-1] == "note"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("source", None, '"source": expected a string'),
        ("offsets", [1], '"offsets": expected an object, received a list'),
        ("spread", {"H100": [1, 2]}, '"spread": "H100": expected three numbers'),
        ("constants", {"fp8": {"value": "x"}}, '"fp8": "value": expected a finite number'),
        ("constants", {"fp8": {"value": 1, "interval": 5}}, '"interval": expected a list'),
    ],
)
def test_a_damaged_calibration_names_its_entry(key, value, words, tmp_path):
    """Python's own words were shown, such as KeyError('source')."""
    path = tmp_path / "calibration.json"
    Calibration().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=words):
        read_calibration(path)


def test_bad_tables_and_options_are_one_line(tmp_path, capsys):
    """A table without a header, a broken calibration and degrees of a graph are refused."""
    path = tmp_path / "bad.csv"
    path.write_text("a,b\n1,2\n")
    assert command(capsys, "--runs", path, "--out", tmp_path / "x.csv")[0] == 2
    with pytest.raises(InputError, match="calibration"):
        read_calibration(path.with_name("none.json").write_text("{}") and tmp_path / "none.json")
    assert command(capsys, "gen:gpt2?layers=2", "--cluster", "8xA100", "--tp", 2)[0] == 2
    assert command(capsys, "llama2-7b", "--cluster", "8xA100", "--precision", "int3")[0] == 2
    path.write_text("model,gpu\nx," + "y" * 200000 + "\n")
    code, said = command(capsys, "--runs", path, "--out", tmp_path / "x.csv")
    assert (code, "cannot be read as CSV" in said.err) == (2, True)
    path.write_text("model,gpu\n")
    assert predict_table(path, tmp_path / "empty.csv") == []
