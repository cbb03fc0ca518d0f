"""Twelve kinds of models as users have them: from `transformers` and `diffusers`, by configuration.

Every function returns (module, example inputs, keyword inputs) of a small model with random weights
and needs no network. They are sources of the command line: `torch:results/models/zoo.py:llama`.
"""

from __future__ import annotations

from typing import Any

Source = tuple[Any, tuple[Any, ...], dict[str, Any]]

LAYERS, WIDTH, HEADS, TOKENS, WORDS, BATCH, IMAGE = 4, 32, 4, 8, 64, 2, 16


def _tokens(seed: int = 1) -> Any:
    import torch

    return torch.randint(2, WORDS, (BATCH, TOKENS), generator=torch.Generator().manual_seed(seed))


def _made(kind: Any, config: Any, inputs: tuple[Any, ...], **named: Any) -> Source:
    import torch

    torch.manual_seed(0)
    return kind(config).eval(), inputs, named


def _decoder() -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2,
        "use_cache": False,
    }


def _masked() -> dict[str, Any]:
    """Return what a tokenizer gives beside the ids."""
    import torch

    return {"attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.int64)}


def llama() -> Source:
    """Return a Llama with its head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _made(LlamaForCausalLM, LlamaConfig(**_decoder()), (_tokens(),), **_masked())


def qwen() -> Source:
    """Return a Qwen 3 whose head is tied to its embedding."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**_decoder(), head_dim=WIDTH // HEADS, tie_word_embeddings=True)
    return _made(Qwen3ForCausalLM, config, (_tokens(),), **_masked())


def mixtral() -> Source:
    """Return a Mixtral: two of four experts per token."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_decoder(), num_local_experts=4, num_experts_per_tok=2)
    return _made(MixtralForCausalLM, config, (_tokens(),), **_masked())


def gpt2() -> Source:
    """Return a GPT-2, whose head is tied to its embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=4 * TOKENS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    return _made(GPT2LMHeadModel, config, (_tokens(),), **_masked())


def bert() -> Source:
    """Return a BERT classifier with a mask of attention."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=4 * TOKENS,
    )
    mask = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    return _made(BertForSequenceClassification, config, (_tokens(), mask))


def t5() -> Source:
    """Return a T5: encoder and decoder, and one embedding for both."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        num_layers=LAYERS // 2,
        num_heads=HEADS,
        use_cache=False,
    )
    return _made(
        T5ForConditionalGeneration, config, (), input_ids=_tokens(), decoder_input_ids=_tokens(2)
    )


def vit() -> Source:
    """Return a vision transformer."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        image_size=IMAGE,
        patch_size=IMAGE // 4,
    )
    images = torch.randn(BATCH, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(1))
    return _made(ViTForImageClassification, config, (images,))


def whisper() -> Source:
    """Return a Whisper: an encoder of sound and a decoder of text."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=WORDS,
        num_mel_bins=16,
        d_model=WIDTH,
        encoder_layers=LAYERS // 2,
        decoder_layers=LAYERS // 2,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=2 * WIDTH,
        decoder_ffn_dim=2 * WIDTH,
        max_source_positions=TOKENS,
        max_target_positions=2 * TOKENS,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    sound = torch.randn(BATCH, 16, 2 * TOKENS, generator=torch.Generator().manual_seed(1))
    return _made(
        WhisperForConditionalGeneration,
        config,
        (),
        input_features=sound,
        decoder_input_ids=_tokens(),
    )


def unet() -> Source:
    """Return a U-Net of diffusion, conditioned by text."""
    import torch
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    module = UNet2DConditionModel(
        sample_size=IMAGE // 2,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(BATCH, 4, IMAGE // 2, IMAGE // 2, generator=generator)
    text = torch.randn(BATCH, TOKENS, WIDTH, generator=generator)
    return module, (latent, torch.tensor([10, 10]), text), {"return_dict": False}


def dit() -> Source:
    """Return a diffusion transformer."""
    import torch
    from diffusers import DiTTransformer2DModel

    torch.manual_seed(0)
    module = DiTTransformer2DModel(
        num_attention_heads=HEADS,
        attention_head_dim=WIDTH // HEADS,
        in_channels=4,
        out_channels=8,
        num_layers=LAYERS,
        norm_num_groups=4,
        sample_size=IMAGE // 2,
        patch_size=2,
        num_embeds_ada_norm=10,
    ).eval()
    latent = torch.randn(BATCH, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    named = {"timestep": torch.tensor([3, 3]), "class_labels": torch.tensor([1, 2])}
    return module, (latent,), {**named, "return_dict": False}


def mamba() -> Source:
    """Return a Mamba: a state-space model."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        state_size=4,
        num_hidden_layers=LAYERS,
        time_step_rank=4,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
    )
    return _made(MambaForCausalLM, config, (_tokens(),))


def clip() -> Source:
    """Return a CLIP: a tower of images and one of text."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    text = {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS // 2,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 2 * TOKENS,
        "eos_token_id": 1,
    }
    vision = {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS // 2,
        "num_attention_heads": HEADS,
        "image_size": IMAGE,
        "patch_size": IMAGE // 4,
    }
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH // 2)
    images = torch.randn(BATCH, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(1))
    return _made(CLIPModel, config, (), input_ids=_tokens(), pixel_values=images)


MODELS = {
    x.__name__: x
    for x in (llama, qwen, mixtral, gpt2, bert, t5, vit, whisper, unet, dit, mamba, clip)
}
"""Every model by name."""
