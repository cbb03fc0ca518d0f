"""ModelShape: the sizes of a transformer that a cost model needs, counted or by public name.

models.json holds public families. Parameters are counted from the shape; where the published count
is larger (latent attention, state-space layers), the rest is spread over the layers as further
matrices, so that both the parameters and those that a token meets agree with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from placeopt.model.files import table_beside


@dataclass(frozen=True)
class ModelShape:
    """A transformer.

    Attributes
    ----------
    ffn : width of the feed-forward part, twice of it to the hidden size where it is `gated`.
    experts, active, expert_ffn, shared_ffn : of a mixture; the first `dense_layers` have none.
    latent : whether heads make keys and values from latents; `kv_heads` then says their size alone.
    latent_sizes : ranks of queries (0: none) and of keys and values, sizes of a head's plain part,
    rotary part and value; empty if not known.
    expert_hidden : width that tokens are brought to for the experts, 0 for the hidden size.
    attention_layers : layers with attention, all by default; of them `local_layers` see the last
    `window` tokens. positions : tokens of a sample at most, 0 if not known.
    published, published_active : parameters that the shape is completed to.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int
    tied: bool = False
    causal: bool = True
    experts: int = 0
    active: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    attention_layers: int = -1
    expert_hidden: int = 0
    local_layers: int = 0
    window: int = 0
    latent: bool = False
    latent_sizes: tuple[int, ...] = ()
    positions: int = 0
    published: float = 0.0
    published_active: float = 0.0

    @property
    def with_attention(self) -> int:
        """Layers with attention."""
        return self.layers if self.attention_layers < 0 else self.attention_layers

    @property
    def expert_width(self) -> int:
        """Width of what experts take and return."""
        return self.expert_hidden or self.hidden

    def seen_keys(self, sequence: int) -> float:
        """Part of a sequence that a token sees, on average over tokens and layers."""
        everything = 0.5 if self.causal else 1.0
        local = min(1.0, self.window / sequence) if self.window else 1.0
        local *= 1 - local / 2 if self.causal else 1.0  # the first tokens see fewer
        share = self.local_layers / self.with_attention if self.with_attention else 0.0
        return (1 - share) * everything + share * local

    @property
    def matrices(self) -> int:
        """Matrices of a feed-forward part."""
        return 3 if self.gated else 2

    @property
    def attention_width(self) -> int:
        """Heads times their size."""
        return self.heads * self.head_dim

    @property
    def score_width(self) -> float:
        """Mean width, over all heads, of what scores are made of and of what they mix."""
        sizes = self.latent_sizes[2:]
        return self.heads * sum(sizes) / 2 if sizes else float(self.attention_width)

    @property
    def key_width(self) -> int:
        """Size of the keys and values of a token."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> float:
        """Of a layer."""
        return float(self.hidden * (2 * self.attention_width + self.key_width))

    @property
    def sparse_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def inner_width(self) -> float:
        """Width of the feed-forward parts that a token meets, on average over the layers."""
        sparse = self.sparse_layers / self.layers
        return (1 - sparse) * self.ffn + sparse * (self.shared_ffn + self.active * self.expert_ffn)

    @property
    def embedding_parameters(self) -> float:
        """Of the table of tokens, which the head shares where `tied`."""
        return float(self.vocab * self.hidden)

    @property
    def expert_parameters(self) -> float:
        """Of all experts of all layers that are routed to."""
        each = self.matrices * self.expert_width * self.expert_ffn
        return float(self.sparse_layers * self.experts * each)

    @property
    def extra_parameters(self) -> float:
        """What the published counts have beyond the shape, met by every token."""
        if self.published and not self.published_active:
            return max(0.0, self.published - self._counted)
        return max(0.0, self.published_active - self._active_counted)

    @property
    def _dense_counted(self) -> float:
        width = self.matrices * self.hidden
        plain = self.layers - self.sparse_layers
        inner = self.with_attention * self.attention_parameters + plain * width * self.ffn
        shared = self.sparse_layers * (width * self.shared_ffn + self.hidden * self.experts)
        norms = (2 * self.layers + 1) * self.hidden * (1 if self.gated else 2)
        return inner + shared + norms + self.embedding_parameters * (1 if self.tied else 2)

    @property
    def _counted(self) -> float:
        return self._dense_counted + self.expert_parameters

    @property
    def _active_counted(self) -> float:
        part = self.active / self.experts if self.experts else 0.0
        return self._dense_counted + part * self.expert_parameters

    @property
    def parameters(self) -> float:
        """All of them."""
        return self._counted + self.extra_parameters

    @property
    def active_parameters(self) -> float:
        """Those that a token meets."""
        return self._active_counted + self.extra_parameters

    @property
    def layer_parameters(self) -> float:
        """Dense parameters of a layer on average: everything but experts, embedding and head."""
        ends = self.embedding_parameters * (1 if self.tied else 2)
        return (self._dense_counted + self.extra_parameters - ends) / self.layers

    def flops(self, sequence: int) -> float:
        """Flops of a token, forward and backward, without recomputation: what MFU counts."""
        scores = 12.0 * self.with_attention * self.score_width * sequence
        lookup = 0.0 if self.tied else self.embedding_parameters
        weights = 6 * (self.active_parameters - lookup)
        return weights + scores * self.seen_keys(sequence)


@cache
def _sizes() -> list[tuple[str, dict[str, Any]]]:
    """Return (name, row) of every size of every family."""
    rows = table_beside(__file__, "models.json")
    found = []
    for family in rows["families"]:
        shared = {key: family[key] for key in family if key not in ("names", "sizes")}
        for size, row in family["sizes"].items():
            keys = ("layers", "hidden", "heads", "kv_heads", "ffn")
            body = dict(zip(keys, row, strict=False)) if isinstance(row, list) else row
            found += [(f"{name}-{size}".rstrip("-"), shared | body) for name in family["names"]]
    return found


@cache
def _families() -> list[tuple[str, dict[str, Any]]]:
    """Return (alias without punctuation, row) of every size of every family."""
    return [(_plain(name), row) for name, row in _sizes()]


def _plain(text: str) -> str:
    text = re.sub(r"\([^)]*\)|meta|nvidia|instruct|\bhf\b", "", text.lower())
    text = re.sub(r"v(?=\d)", "", text)
    return re.sub(r"[^a-z0-9.]|\.(?!\d)", "", text)


@cache
def named_shape(name: str) -> ModelShape | None:
    """Return the shape of a public model, also as ORGANISATION/NAME; None if the name is none of a
    family.
    """
    own = re.sub(r"^[\w.-]+/(?=[^/]+$)", "", name)
    return _shape_named(name) or _shape_named(own)


def _shape_named(name: str) -> ModelShape | None:
    plain = _plain(name)
    exact = [item for item in _families() if item[0] == plain]
    inside = [
        item
        for item in _families()
        if len(item[0]) > 3
        and item[0] in plain  # which is quick, and true of few
        and re.search(r"(?<![a-z])" + re.escape(item[0]), plain)
    ]
    for alias, row in exact or sorted(inside, key=lambda item: -len(item[0])):
        shape = shape_of(name, **row)
        if exact or re.search(r"\d[bm]", alias) or _has_size(shape, said_billions(name)):
            return shape
    return None


def public_names() -> list[str]:
    """Return a name of every size of every public family."""
    return [name for name, _ in _sizes()]


def said_billions(name: str) -> float:
    """Return the parameters that a name says, in 1e9, 0 if it says none."""
    size = re.search(r"(\d+(?:\.\d+)?)\s*([bmt])(?![a-z])", name.lower())
    return float(size[1]) * {"m": 1e-3, "b": 1.0, "t": 1e3}[size[2]] if size else 0.0


def _has_size(shape: ModelShape, said: float) -> bool:
    """Whether a model has about the parameters, all or active, that a name says: GPT-25B is no
    GPT-2.
    """
    counts = shape.parameters, shape.active_parameters
    return not said or any(abs(count / said / 1e9 - 1) < 0.15 for count in counts)


def shape_of(name: str, layers: int, hidden: int, heads: int = 0, **rest: Any) -> ModelShape:
    """Return a shape; what is not given is as in GPT: 4 x hidden, heads of 128 or 64, a vocabulary
    of 51200; of gated parts as in Llama, 8/3 x hidden, filled up to a multiple of 256.

    `rest` holds fields of ModelShape, and params_b and active_b, published counts in 1e9.
    """
    heads = heads or max(1, hidden // (128 if hidden >= 4096 else 64))
    gated = bool(rest.get("gated", False))
    usual = {
        "kv_heads": heads,
        "head_dim": max(1, hidden // heads),
        "ffn": -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden,
        "gated": gated,
        "vocab": 51200,
        "published": rest.pop("params_b", 0.0) * 1e9,
        "published_active": rest.pop("active_b", 0.0) * 1e9,
    }
    rest["latent_sizes"] = tuple(rest.get("latent_sizes", ()))
    given = {key: value for key, value in rest.items() if value or key == "causal"}
    return ModelShape(name, layers, hidden, heads, **usual | given)


def counted_shape(params: float, name: str) -> ModelShape:
    """Return a GPT-like shape with about so many parameters."""
    aspect = 110  # hidden size by layer: GPT-3's sizes from 6.7B to 175B have 128, those below 85
    layers = max(2, round((params / 12 / aspect**2) ** (1 / 3)))
    hidden = max(64, round((params / 12 / layers) ** 0.5 / 64) * 64)
    return replace(shape_of(name or f"{params / 1e9:.3g}B", layers, hidden), tied=True)


def stage_layers(layers: int, stages: int) -> list[int]:
    """Return the layers of each stage: as many each, or one less in the first and the last, which
    hold the embedding and the head; empty where neither divides evenly.
    """
    if layers % stages == 0:
        return [layers // stages] * stages
    if stages > 1 and (layers + 2) % stages == 0 and layers + 2 > stages:
        each = (layers + 2) // stages
        return [each - 1, *[each] * (stages - 2), each - 1]
    return []
