"""Transformers of several stacks: an mT5-like encoder-decoder and a two-branch vision-language
model.

References
----------
L. Xue et al., "mT5: a massively multilingual pre-trained text-to-text transformer", NAACL 2021.
A. Singh et al., "FLAVA: a foundational language and vision alignment model", CVPR 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.instances.generators.attention import TransformerBuilder
from placeopt.instances.generators.table import generator
from placeopt.instances.generators.transformer import bert_stack, check_heads, make_style
from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from placeopt.instances.generators.builder import Tensor
    from placeopt.model.graph import OpGraph


@generator()
def mt5(
    *,
    layers: int = 8,
    decoder_layers: int = 0,
    hidden: int = 512,
    heads: int = 6,
    head_dim: int = 64,
    ffn: int = 1024,
    vocab: int = 250112,
    seq: int = 512,
    target: int = 128,
    batch: int = 1,
    tied: bool = True,
    detail: str = "fine",
    dtype_bytes: int = 4,
    training: bool = False,
    name: str = "mt5",
) -> OpGraph:
    """Build an mT5 encoder-decoder (Xue et al. 2021), mT5-small by default.

    The output layer has its own weights.

    Parameters
    ----------
    tied : whether one table embeds source and target; if not, the decoder has its own.
    decoder_layers : 0 means as many as `layers`.
    seq, target : tokens of the source and of the target.
    """
    b = TransformerBuilder(name, make_style(name, detail, training), dtype_bytes)
    table: Tensor | None = None
    with b.layer("shared"):
        source = b.input(batch, seq)
        if tied:
            x, table = b.tied_embedding(source, vocab, hidden, name="embedding")
        else:
            x = b.embedding(source, vocab, hidden, name="embedding")
    with b.layer("encoder"):
        x = b.dropout(x)
        x = _t5_stack(b, x, None, layers, heads, head_dim, ffn)
    with b.layer("decoder"):
        tokens = b.input(batch, target)
        if table is None:
            y = b.embedding(tokens, vocab, hidden, name="embedding")
        else:
            y = b.op(
                "embedding",
                (table, tokens),
                (batch, target, hidden),
                name="embedding",
                moved=2 * batch * target * hidden * dtype_bytes,
            )
        y = _t5_stack(b, b.dropout(y), x, decoder_layers or layers, heads, head_dim, ffn)
    with b.layer("final"):
        b.linear(y, vocab, bias=False, name="head")
    return b.build()


def _t5_stack(
    b: TransformerBuilder,
    x: Tensor,
    memory: Tensor | None,
    layers: int,
    heads: int,
    head_dim: int,
    ffn: int,
) -> Tensor:
    """Pre-norm layers with relative position biases; with `memory`, layers attend to the encoder
    too.
    """
    seq = x.shape[1]
    buckets = b.input(seq, seq)
    position = b.op(
        "embedding", (buckets,), (1, heads, seq, seq), name="position_bias", parameters=32 * heads
    )
    for layer in range(layers):
        with b.layer(f"layer/{layer}"):
            y = b.attention(
                b.rms_norm(x, "norm1"),
                heads=heads,
                head_dim=head_dim,
                bias=False,
                scaled=False,
                position_bias=position,
            )
            x = b.add(x, b.dropout(y), name="residual1")
            if memory is not None:
                y = b.attention(
                    b.rms_norm(x, "norm_cross"),
                    heads=heads,
                    head_dim=head_dim,
                    context=memory,
                    bias=False,
                    scaled=False,
                    masked=False,
                    name="cross",
                )
                x = b.add(x, b.dropout(y), name="residual_cross")
            y = b.gated_feed_forward(b.rms_norm(x, "norm2"), ffn, activation="gelu")
            x = b.add(x, b.dropout(y), name="residual2")
    return b.rms_norm(x, "final_norm")


@generator()
def flava(
    *,
    image_layers: int = 12,
    text_layers: int = 12,
    layers: int = 6,
    hidden: int = 768,
    heads: int = 12,
    vocab: int = 30522,
    image: int = 224,
    patch: int = 16,
    seq: int = 77,
    batch: int = 8,
    detail: str = "fine",
    dtype_bytes: int = 4,
    training: bool = False,
    name: str = "flava",
) -> OpGraph:
    """Build a vision-language model (after FLAVA, Singh et al. 2022).

    A vision transformer on patches and a BERT-like text encoder run side by side; their hidden
    states are projected, joined and read by a multimodal encoder.

    Parameters
    ----------
    image_layers, text_layers, layers : layers of the image, text and multimodal encoder.
    """
    check_heads(name, hidden, heads)
    if image % patch:
        raise InputError(
            f"generator '{name}': image must be a multiple of patch, received {image} and {patch}"
        )
    b = TransformerBuilder(name, make_style(name, detail, training), dtype_bytes)
    patches = (image // patch) ** 2
    with b.layer("image"):
        x = b.conv(b.input(batch, 3, image, image), hidden, patch, patch, bias=True, name="patches")
        x = b.reshape(x, (batch, patches, hidden), name="sequence")
        x = b.op(
            "concat", (x,), (batch, patches + 1, hidden), name="class_token", parameters=hidden
        )
        x = b.op(
            "bias_add",
            (x,),
            x.shape,
            name="position",
            flops=x.size,
            parameters=(patches + 1) * hidden,
        )
        x = _encoder(b, b.dropout(x), image_layers, heads)
    with b.layer("text"):
        y = bert_stack(b, b.input(batch, seq), text_layers, hidden, heads, 4 * hidden, vocab)
    with b.layer("multimodal"):
        x = b.linear(x, hidden, name="image_projection")
        y = b.linear(y, hidden, name="text_projection")
        joint = b.concat((x, y), 1)
        joint = b.op(
            "concat",
            (joint,),
            (batch, joint.shape[1] + 1, hidden),
            name="class_token",
            parameters=hidden,
        )
        joint = _encoder(b, joint, layers, heads)
        first = b.op(
            "slice",
            (joint,),
            (batch, hidden),
            name="first_token",
            moved=2 * batch * hidden * dtype_bytes,
        )
        b.unary("tanh", b.linear(first, hidden, name="pooler"))
    return b.build()


def _encoder(b: TransformerBuilder, x: Tensor, layers: int, heads: int) -> Tensor:
    """Pre-norm encoder layers and a final norm, as in the vision transformer."""
    hidden = x.shape[-1]
    for layer in range(layers):
        with b.layer(f"layer/{layer}"):
            y = b.attention(
                b.layer_norm(x, "ln1"), heads=heads, head_dim=hidden // heads, masked=False
            )
            x = b.add(x, b.dropout(y), name="residual1")
            y = b.feed_forward(b.layer_norm(x, "ln2"), 4 * hidden)
            x = b.add(x, b.dropout(y), name="residual2")
    return b.layer_norm(x, "final_norm")
