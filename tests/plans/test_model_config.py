"""Models read from Hugging Face's config.json: sizes, published counts, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from placeopt.cli import main
from placeopt.model.errors import InputError
from placeopt.planning.launch_search import read_shape
from placeopt.plans.model_config import config_shape
from placeopt.plans.model_shapes import named_shape


def sized(kind, layers, hidden, heads, kv_heads, ffn, vocab, **more):
    """A configuration with the usual keys."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **more,
    }


def sparse(experts, active, ffn, **more):
    """Keys of experts in today's files."""
    keys = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
    return dict(zip(keys, (experts, active, ffn), strict=True)) | more


LATENT = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
LLAMA = sized("llama", 32, 4096, 32, 8, 14336, 128256, max_position_embeddings=8192)
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
GEMMA = {"model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360}
GEMMA |= {"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8}
MIXTRAL = sized("mixtral", 32, 4096, 32, 8, 14336, 32000, num_local_experts=8)
DBRX = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352}
EXPERTS = {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "model_type": ""}
FALCON = {"multi_query": True, "new_decoder_architecture": False, "num_kv_heads": 71}
FALCON |= {"num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71}
MAVERICK = sized("llama4_text", 48, 5120, 40, 8, 8192, 202048, intermediate_size_mlp=16384)
MAVERICK |= {"num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}

PUBLISHED = {
    "gpt2": (GPT2 | {"n_inner": None}, 0.124),
    "llama3-8b": (LLAMA, 8.03),
    "llava-1.5-7b": ({"model_type": "llava", "text_config": {"model_type": "llama"}}, 6.74),
    "gemma3-12b": ({"model_type": "gemma3", "text_config": GEMMA, "vision_config": LLAMA}, 11.77),
    "mixtral-8x7b": (MIXTRAL | {"num_experts_per_tok": 2}, 46.7),
    "dbrx": (DBRX | {"attn_config": {"kv_n_heads": 8}, "ffn_config": EXPERTS}, 131.6),
    "falcon-7b": ({"model_type": "falcon", "vocab_size": 65024} | FALCON, 6.92),
    "phi-2": (sized("phi", 32, 2560, 32, 32, 10240, 51200), 2.78),
    "llama4-maverick": ({"model_type": "llama4", "text_config": MAVERICK}, 400.7),
    "qwen3-30b": (
        sized("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, head_dim=128, num_experts=128)
        | {"num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": []},
        30.53,
    ),
    "qwen2-57b": (
        sized("qwen2_moe", 28, 3584, 28, 4, 18944, 151936, num_experts=64, sliding_window=65536)
        | {"num_experts_per_tok": 8, "moe_intermediate_size": 2560, "use_sliding_window": False}
        | {"shared_expert_intermediate_size": 20480},
        57.41,
    ),
    "hunyuan-a13b": (
        sized("hunyuan_v1_moe", 32, 4096, 32, 8, 3072, 128167, num_experts=64, head_dim=128)
        | {
            "moe_topk": [8] * 32,
            "moe_intermediate_size": [3072] * 32,
            "num_shared_expert": [1] * 32,
        }
        | {"tie_word_embeddings": True},
        80.4,
    ),
    "modernbert-base": (
        sized("modernbert", 22, 768, 12, 12, 1152, 50368, local_attention=128),
        0.149,
    ),
    "deepseek-v3": (
        sized("deepseek_v3", 61, 7168, 128, 128, 18432, 129280, **LATENT)
        | sparse(256, 8, 2048, n_shared_experts=1, first_k_dense_replace=3),
        671.03,
    ),
    "deepseek-v2": (
        sized("deepseek_v2", 60, 5120, 128, 128, 12288, 102400, **LATENT)
        | sparse(160, 6, 1536, n_shared_experts=2, first_k_dense_replace=1),
        235.74,
    ),
    "deepseek-v2-lite": (
        sized("deepseek_v2", 27, 2048, 16, 16, 10944, 102400, **LATENT | {"q_lora_rank": None})
        | sparse(64, 6, 1408, n_shared_experts=2, first_k_dense_replace=1, moe_layer_freq=1),
        15.71,
    ),
}


def written(folder, body):
    """Write a configuration into a folder; return the folder."""
    (folder / "config.json").write_text(json.dumps(body))
    return str(folder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_their_published_parameters(name, tmp_path):
    """Of a folder as of its file, whatever the keys are called and left out."""
    body, billions = PUBLISHED[name]
    shape = config_shape(written(tmp_path, body))
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=5e-3)
    assert read_shape(f"{tmp_path}/config.json").parameters == shape.parameters


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "mixtral-8x7b", "dbrx", "qwen3-30b"])
def test_a_file_means_the_public_model(name, tmp_path):
    """The shape of a file is that of its name: prices are the same."""
    shape = config_shape(written(tmp_path, PUBLISHED[name][0]))
    assert replace(shape, name=name, positions=0) == named_shape(name)


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v2-lite", "deepseek-v3"])
def test_latent_attention_by_name_is_that_of_the_file(name, tmp_path):
    """DeepSeek-V2 by name had keys of 128 heads: a token met 27.5e9 parameters of 21.4e9."""
    file, known = config_shape(written(tmp_path, PUBLISHED[name][0])), named_shape(name)
    assert known.parameters == pytest.approx(file.parameters, rel=0.005)
    assert known.active_parameters == pytest.approx(file.active_parameters, rel=0.005)


def test_latents_windows_and_layers_without_experts_are_read(tmp_path):
    """Heads share latents; what sees a window, and which layers have experts, is counted."""
    latent = config_shape(written(tmp_path, PUBLISHED["deepseek-v3"][0]))
    assert (latent.latent, latent.dense_layers, latent.shared_ffn) == (True, 3, 2048)
    assert latent.latent_sizes == named_shape("deepseek-v3").latent_sizes == tuple(LATENT.values())
    assert latent.extra_parameters < 0.01 * latent.parameters
    assert config_shape(written(tmp_path, PUBLISHED["llama4-maverick"][0])).dense_layers == 24
    gemma = config_shape(written(tmp_path, PUBLISHED["gemma3-12b"][0]))
    assert (gemma.local_layers, gemma.window, gemma.tied) == (40, 4096, True)
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    some = GEMMA | {"num_hidden_layers": 3, "sliding_window": 512, "layer_types": kinds}
    assert config_shape(written(tmp_path, some)).local_layers == 1
    plain = PUBLISHED["qwen3-30b"][0] | {"mlp_only_layers": [0, 2, 99], "decoder_sparse_step": 2}
    assert config_shape(written(tmp_path, plain)).dense_layers == 24


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"model_type": "mamba", "state_size": 16}, "layers of states"),
        (LLAMA | {"layer_types": ["linear_attention"]}, "linear_attention"),
        (LLAMA | {"is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"model_type": "llama9", "hidden_size": 64}, "num_hidden_layers or n_layer"),
        (LLAMA | {"num_attention_heads": [4, 8]}, "whole number as num_attention_heads"),
        (LLAMA | {"hidden_size": 10**30}, "whole number as hidden_size"),
        (MIXTRAL, "num_experts_per_tok"),
    ],
)
def test_what_no_shape_expresses_is_refused(body, part, tmp_path):
    """One line says what it is, or what is missing."""
    with pytest.raises(InputError, match=part):
        config_shape(written(tmp_path, body))


def test_the_command_refuses_in_a_line(tmp_path, capsys):
    """It ends with 2, whatever the devices are."""
    name = written(tmp_path, {"model_type": "mamba", "state_size": 16})
    with pytest.raises(SystemExit) as stopped:
        main(["plan", name, "--cluster", "8xH100+8xA100"])
    assert stopped.value.code == 2
    assert "layers of states" in capsys.readouterr().err


def test_a_file_is_planned_and_another_json_is_none(tmp_path, capsys):
    """Samples have no more tokens than positions; other files and folders are left to readers."""
    name = written(tmp_path, GPT2 | {"n_positions": 1024})
    with pytest.raises(SystemExit) as stopped:
        main(["plan", name, "--cluster", "2xH100", "--batch", "8", "--dp", "2", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (stopped.value.code, said["sequence"], said["data"]) == (0, 1024, 2)
    (tmp_path / "graph.json").write_text('{"nodes": [{"hidden_size": 1}], "links": []}')
    assert config_shape(f"{tmp_path}/graph.json") is None
    (tmp_path / "empty").mkdir()
    assert read_shape(f"{tmp_path}/empty") is None
