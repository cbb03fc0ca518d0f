"""The shape of a model from its Hugging Face `config.json`, by the keys in config_keys.json.

Keys that a file leaves out are as its type has them, where that matters. Latent attention
(DeepSeek-V2, 2024, section 2.1) has no heads of one size: theirs is here the largest with which a
layer has no more parameters than it does, and the rest is added (`ModelShape.published`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from placeopt.model.errors import InputError
from placeopt.model.files import Data, first_bytes, read_json, table_beside
from placeopt.plans.model_shapes import ModelShape, shape_of

MAX_CONFIG_BYTES = 2**20
"""A larger file is no configuration: it is not read to see whether it is one."""

SAID = ("model_type", "architectures", "hidden_size")
"""Keys of which a configuration has one."""

COPIED = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "positions")
"""Fields of a shape that are in a file as they are."""


@cache
def _table() -> Data:
    return table_beside(__file__, "config_keys.json")


def config_shape(model: str) -> ModelShape | None:
    """Return the shape of a `config.json`, or of the one in a folder; None if it is none.

    Raises
    ------
    InputError
        If the model has something that no ModelShape expresses, or a size is missing.
    """
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    if not any(b'"%b"' % key.encode() in first_bytes(path, MAX_CONFIG_BYTES) for key in SAID):
        return None
    body, table = read_json(path), _table()
    if not (isinstance(body, dict) and body.keys() & set(SAID)):
        return None
    config = _flat(body)
    kind = str(config.get("model_type", ""))
    config = table["types"].get(kind, {}) | config
    _refuse_foreign(model, kind, config)
    sizes = {field: _whole(model, config, keys) for field, keys in table["keys"].items()}
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        sizes["kv_heads"] = 1
    gated = kind not in table["ungated"]
    needed = ["layers", "hidden", "heads", "vocab", *(["ffn"] if gated else [])]
    needed += ["active", "expert_ffn"] if sizes["experts"] else []
    missing = next((table["keys"][name] for name in needed if not sizes[name]), None)
    if missing:
        keys = " or ".join(missing[:2])
        raise InputError(f"model '{model}': expected {keys} of at least 1, received none")
    shape = shape_of(
        model,
        **{name: sizes[name] for name in COPIED},
        **_windows(config, sizes),
        **_experts(config, sizes),
        gated=gated,
        tied=bool(config.get("tie_word_embeddings", kind in table["tied"])),
        causal=kind not in table["encoders"],
    )
    return _with_latents(shape, sizes) if sizes["rank"] else shape


def _flat(config: Data) -> Data:
    """Return what is said at the top, and in the parts that say more of the language model."""
    said: Data = {}
    for part in ("", *_table()["parts"]):
        more = said.get(part) if part else config
        if isinstance(more, dict):
            said |= {key: value for key, value in more.items() if value not in (None, "")}
    return said


def _refuse_foreign(model: str, kind: str, config: Data) -> None:
    """Refuse what no ModelShape expresses."""
    said = [kind, *(key for key, value in config.items() if value)]
    said += map(str, _listed(config, "layer_types"))
    for pattern, what in _table()["refused"].items():
        for word in said:
            if re.fullmatch(pattern, word):
                raise InputError(
                    f"model '{model}': expected a decoder of transformer layers, received {what} "
                    f"({word}), whose training is not priced"
                )


def _whole(model: str, config: Data, keys: list[str]) -> int:
    """Return the number of the first key that is there, 0 without one."""
    key = next((key for key in keys if key in config), "")
    value = config.get(key, 0)
    if isinstance(value, list) and value == value[:1] * len(value):
        value = next(iter(value), 0)  # the same for every layer
    if type(value) is not int or not 0 <= value < 2**31:
        raise InputError(f"model '{model}': expected a whole number as {key}, received {value}")
    return value


def _listed(config: Data, key: str) -> list[Any]:
    """Return a list, an empty one where none is there."""
    value = config.get(key)
    return value if isinstance(value, list) else []


def _windows(config: Data, sizes: dict[str, int]) -> dict[str, int]:
    """Return the window, and the layers that see no more than it."""
    if not sizes["window"] or config.get("use_sliding_window") is False:
        return {}
    layers, step = sizes["layers"], sizes["window_step"]
    local = layers - layers // step if step else layers
    kinds = _listed(config, "layer_types")[:layers]
    if kinds:
        local = sum("full" not in str(kind) for kind in kinds)
    return {"window": sizes["window"], "local_layers": local}


def _experts(config: Data, sizes: dict[str, int]) -> dict[str, int]:
    """Return the fields of a mixture, none without experts."""
    if not sizes["experts"]:
        return {}
    layers, step = sizes["layers"], sizes["step"] or 1
    sparse = range(step * (sizes["first_sparse"] // step + 1) - 1, layers, step)
    plain = {i for i in _listed(config, "mlp_only_layers") if i in sparse}
    return {
        "experts": sizes["experts"],
        "active": min(sizes["active"], sizes["experts"]),
        "expert_ffn": sizes["expert_ffn"],
        "shared_ffn": sizes["shared_ffn"] or sizes["shared_experts"] * sizes["expert_ffn"],
        "dense_layers": layers - len(sparse) + len(plain),
    }


def _with_latents(shape: ModelShape, sizes: dict[str, int]) -> ModelShape:
    """Return a shape with the parameters of latent attention; see the module."""
    hidden, heads, rank = shape.hidden, shape.heads, sizes["rank"]
    plain, rotary, value = (sizes[name] for name in ("plain_dim", "rotary_dim", "value_dim"))
    query, first = heads * (plain + rotary), sizes["query_rank"]
    own = first * (hidden + query) if first else hidden * query
    own += hidden * (rank + rotary) + rank * heads * (plain + value) + heads * value * hidden
    head_dim = max(1, (own // hidden - rank - rotary) // (2 * heads))
    kv_heads = max(1, (rank + rotary) // (2 * head_dim))
    parts = first, rank, plain, rotary, value
    shape = replace(shape, latent=True, latent_sizes=parts, head_dim=head_dim, kv_heads=kv_heads)
    more = shape.layers * (own - shape.attention_parameters)
    return replace(shape, published=shape.parameters + more)
