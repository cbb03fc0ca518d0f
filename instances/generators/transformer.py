"""Transformers of one stack: BERT, GPT, Llama and mixture-of-experts decoders.

`detail="fine"` writes primitive ops, as an exported graph shows them; `detail="coarse"` one op per
fused kernel. `training=True` adds the dropout ops of the training graph.

Of their pieces (normalisation, attention, activations) `fine=True` writes the primitive ops that an
exported graph shows (a layer norm is seven ops); `fine=False` writes one op per fused kernel. Flops
and parameters are the same up to element-wise work.

Transformers of several stacks: an mT5-like encoder-decoder and a two-branch vision-language
model.

References
----------
J. Devlin, M.-W. Chang, K. Lee, K. Toutanova, "BERT: pre-training of deep bidirectional transformers
for language understanding", NAACL 2019.
T. B. Brown et al., "Language models are few-shot learners", NeurIPS 2020.
H. Touvron et al., "LLaMA: open and efficient foundation language models", arXiv:2302.13971, 2023.
A. Q. Jiang et al., "Mixtral of experts", arXiv:2401.04088, 2024.
L. Xue et al., "mT5: a massively multilingual pre-trained text-to-text transformer", NAACL 2021.
A. Singh et al., "FLAVA: a foundational language and vision alignment model", CVPR 2022.
A. Vaswani et al., "Attention is all you need", NeurIPS 2017.
J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization", arXiv:1607.06450, 2016.
B. Zhang, R. Sennrich, "Root mean square layer normalization", NeurIPS 2019.
J. Su et al., "RoFormer: enhanced transformer with rotary position embedding", arXiv:2104.09864,
2021. N. Shazeer, "GLU variants improve transformer", arXiv:2002.05202, 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from placeopt.instances.generators import built, check_count
from placeopt.instances.generators.builder import MAX_BUILT, GraphBuilder, Tensor
from placeopt.model.errors import InputError


class TransformerBuilder(GraphBuilder):
    """Builds graphs of the pieces of transformers.

    Parameters
    ----------
    seq, batch : tokens of a sequence, and sequences.
    detail : "fine" for primitive ops, "coarse" for fused kernels.
    training : include the dropout ops of a training graph.
    """

    def __init__(
        self,
        name: str,
        hidden: int = 768,
        heads: int = 12,
        vocab: int = 30522,
        seq: int = 128,
        batch: int = 1,
        detail: str = "fine",
        dtype_bytes: int = 4,
        training: bool = False,
    ) -> None:
        super().__init__(name, dtype_bytes)
        self.hidden, self.heads, self.vocab = hidden, heads, vocab
        self.seq, self.batch = seq, batch
        self.fine, self.drops = detail == "fine", training

    def layer_norm(self, x: Tensor, name: str = "ln") -> Tensor:
        """Layer normalisation with learned scale and shift (Ba et al. 2016)."""
        with self.layer(name):
            if not self.fine:
                return self.op(
                    "layer_norm", (x,), x.shape, flops=8 * x.size, parameters=2 * x.shape[-1]
                )
            centred = self.binary("sub", x, self.reduce("mean", x, "mean"), name="centre")
            variance = self.reduce("mean", self.unary("square", centred), "variance")
            inverse = self.unary("rsqrt", variance)
            return self.bias(self.scale(self.binary("mul", centred, inverse, name="normalise")))

    def rms_norm(self, x: Tensor, name: str = "norm") -> Tensor:
        """Root-mean-square normalisation with learned scale (Zhang and Sennrich 2019)."""
        with self.layer(name):
            if not self.fine:
                return self.op("rms_norm", (x,), x.shape, flops=4 * x.size, parameters=x.shape[-1])
            inverse = self.unary("rsqrt", self.reduce("mean", self.unary("square", x), "mean"))
            return self.scale(self.binary("mul", x, inverse, name="normalise"))

    def reduce(self, kind: str, x: Tensor, name: str) -> Tensor:
        """Reduce the last dimension to one entry: "mean", "max" or "sum"."""
        return self.op(f"reduce_{kind}", (x,), (*x.shape[:-1], 1), name=name, flops=x.size)

    def dense(self, x: Tensor, out: int, *, bias: bool = True, name: str = "linear") -> Tensor:
        """Fully connected layer; in fine style the bias is an op of its own."""
        if bias and self.fine:
            return self.bias(self.linear(x, out, bias=False, name=name), name=f"{name}_bias")
        return self.linear(x, out, bias=bias, name=name)

    def gelu(self, x: Tensor) -> Tensor:
        """Gaussian error linear unit, tanh form."""
        if not self.fine:
            return self.unary("gelu", x, cost=8)
        cube = self.unary("pow", x, cost=2, name="gelu_cube")
        inner = self.binary("add", x, cube, name="gelu_inner")
        return self.binary(
            "mul", x, self.unary("tanh", inner, cost=2, name="gelu_tanh"), name="gelu_gate"
        )

    def silu(self, x: Tensor) -> Tensor:
        """Sigmoid linear unit."""
        if not self.fine:
            return self.unary("silu", x, cost=4)
        return self.binary("mul", x, self.unary("sigmoid", x, cost=3), name="silu")

    def softmax(self, x: Tensor) -> Tensor:
        """Softmax along the last dimension."""
        if not self.fine:
            return self.unary("softmax", x, cost=5)
        largest = self.reduce("max", x, "softmax_max")
        shifted = self.binary("sub", x, largest, name="softmax_sub")
        weights = self.unary("exp", shifted, name="softmax_exp")
        total = self.reduce("sum", weights, "softmax_sum")
        return self.binary("div", weights, total, name="softmax_div")

    def dropout(self, x: Tensor, name: str = "dropout") -> Tensor:
        """Dropout in training graphs, nothing otherwise."""
        return self.unary("dropout", x, name=name) if self.drops else x

    def attention(
        self,
        x: Tensor,
        *,
        head_dim: int = 0,
        kv_heads: int = 0,
        context: Tensor | None = None,
        fused_qkv: bool = False,
        bias: bool = True,
        rotary: bool = False,
        masked: bool = True,
        position_bias: Tensor | None = None,
        scaled: bool = True,
        name: str = "attention",
    ) -> Tensor:
        """Multi-head attention (Vaswani et al. 2017) with its four projections, without the
        residual.

        Parameters
        ----------
        x : queries' input, shape (batch, seq, hidden).
        head_dim : features of a head, 0 for hidden / heads.
        kv_heads : heads of keys and values (grouped-query attention), 0 for those of queries.
        context : input of keys and values, default `x`.
        fused_qkv : one projection for queries, keys and values.
        rotary : rotate queries and keys (Su et al. 2021).
        masked : add a mask to the scores; `position_bias` is added instead where it is given.
        """
        source = x if context is None else context
        (batch, seq, hidden), keys = x.shape, source.shape[1]
        heads = self.heads
        head_dim, kv_heads = head_dim or hidden // heads, kv_heads or heads
        with self.layer(name):
            if fused_qkv:
                joint = self.dense(x, (heads + 2 * kv_heads) * head_dim, bias=bias, name="qkv")
                shapes = [(batch, seq, each * head_dim) for each in (heads, kv_heads, kv_heads)]
                q, k, v = self.ops("split", (joint,), shapes)
            else:
                q = self.dense(x, heads * head_dim, bias=bias, name="q")
                k = self.dense(source, kv_heads * head_dim, bias=bias, name="k")
                v = self.dense(source, kv_heads * head_dim, bias=bias, name="v")
            if self.fine:
                q = self.reshape(q, (batch, heads, seq, head_dim), name="q_heads")
                k = self.reshape(k, (batch, kv_heads, keys, head_dim), name="k_heads")
                v = self.reshape(v, (batch, kv_heads, keys, head_dim), name="v_heads")
            if rotary:
                q, k = (
                    self.unary("rotary", t, cost=3, name=f"{end}_rotary")
                    for t, end in ((q, "q"), (k, "k"))
                )
            if self.fine:
                scores = self.matmul(q, k, (batch, heads, seq, keys), head_dim, name="scores")
                if scaled:
                    scores = self.unary("mul_constant", scores, name="scale")
                mixed = self._mix(self._biased(scores, position_bias, masked), v)
            else:
                # one kernel for scores, softmax and weighted sum (flash attention)
                work = batch * heads * seq * keys * (4 * head_dim + 6)
                inputs = (q, k, v) if position_bias is None else (q, k, v, position_bias)
                mixed = self.op("attention", inputs, (batch, seq, heads * head_dim), flops=work)
            return self.dense(mixed, hidden, bias=bias, name="out")

    def _biased(self, scores: Tensor, position_bias: Tensor | None, masked: bool) -> Tensor:
        """Add what is given of positions to the scores, else a mask if there is one."""
        if position_bias is not None:
            return self.add(scores, position_bias, name="position_bias")
        return self.unary("mask", scores, name="mask") if masked else scores

    def _mix(self, scores: Tensor, v: Tensor) -> Tensor:
        """Weigh the values by the softmax of the scores and merge the heads."""
        batch, heads, seq, keys = scores.shape
        weights = self.dropout(self.softmax(scores), "weights_dropout")
        mixed = self.matmul(weights, v, (batch, heads, seq, v.shape[-1]), keys, name="mix")
        return self.reshape(mixed, (batch, seq, heads * v.shape[-1]), name="merge_heads")

    def feed_forward(self, x: Tensor, width: int) -> Tensor:
        """Two fully connected layers around a GELU."""
        with self.layer("mlp"):
            y = self.gelu(self.dense(x, width, name="fc1"))
            return self.dense(y, x.shape[-1], name="fc2")

    def gated_feed_forward(
        self, x: Tensor, width: int, *, activation: str = "silu", name: str = "mlp"
    ) -> Tensor:
        """Gated feed-forward layer without biases (Shazeer 2020): down(act(gate(x)) * up(x))."""
        with self.layer(name):
            gate = self.linear(x, width, bias=False, name="gate")
            gate = self.silu(gate) if activation == "silu" else self.gelu(gate)
            up = self.linear(x, width, bias=False, name="up")
            gated = self.binary("mul", gate, up, name="gated")
            return self.linear(gated, x.shape[-1], bias=False, name="down")

    def shared_embedding(
        self, tokens: Tensor, rows: int, width: int, tied: bool, name: str = "embedding"
    ) -> tuple[Tensor, Tensor | None]:
        """Embedding whose table is used again elsewhere if it is tied: returns (embedded tokens,
        the table as a tensor, None where it is not tied).
        """
        if not tied:
            return self.embedding(tokens, rows, width, name=name), None
        embedded, table = self.ops(
            "embedding",
            (tokens,),
            ((*tokens.shape, width), (rows, width)),
            name=name,
            parameters=rows * width,
            moved=2 * tokens.size * width * self.dtype_bytes,
        )
        return embedded, table

    def class_token(self, x: Tensor) -> Tensor:
        """Append a learned token to a sequence."""
        batch, length, hidden = x.shape
        shape = (batch, length + 1, hidden)
        return self.op("concat", (x,), shape, name="class_token", parameters=hidden)

    def pooler(self, x: Tensor, name: str = "linear") -> Tensor:
        """Summary of a sequence: a layer on its first token."""
        batch, _, hidden = x.shape
        moved = 2 * batch * hidden * self.dtype_bytes
        first = self.op("slice", (x,), (batch, hidden), name="first_token", moved=moved)
        return self.unary("tanh", self.linear(first, hidden, name=name))


def check_heads(b: TransformerBuilder, kv_heads: int = 1) -> None:
    """Refuse heads that do not divide the hidden size or the query heads."""
    if b.hidden % b.heads:
        raise InputError(
            f"generator '{b.name}': hidden must be a multiple of heads, received {b.hidden} and "
            f"{b.heads}"
        )
    if b.heads % kv_heads:
        raise InputError(
            f"generator '{b.name}': heads must be a multiple of kv_heads, received {b.heads} and "
            f"{kv_heads}"
        )


@built(TransformerBuilder)
def bert(b: TransformerBuilder, *, layers: int = 12, ffn: int = 0) -> None:
    """Build a BERT encoder with its pooler (Devlin et al. 2019); `ffn` 0 means 4 * hidden."""
    check_heads(b)
    x = _bert_stack(b, layers, ffn)
    with b.layer("pooler"):
        b.pooler(x)


def _bert_stack(b: TransformerBuilder, layers: int, ffn: int = 0) -> Tensor:
    """Embeddings and post-norm encoder layers of BERT; returns the last hidden states."""
    seq, hidden, tokens = b.seq, b.hidden, b.input(b.batch, b.seq)
    with b.layer("embeddings"):
        words = b.embedding(tokens, b.vocab, hidden, name="word")
        positions = b.embedding(b.input(seq), max(512, seq), hidden, name="position")
        types = b.embedding(tokens, 2, hidden, name="token_type")
        x = b.add(b.add(words, types), positions)
        x = b.dropout(b.layer_norm(x))
    for layer in range(layers):
        with b.layer(f"layer/{layer}"):
            y = b.attention(x)
            x = b.layer_norm(b.add(x, b.dropout(y)), "ln1")
            y = b.feed_forward(x, ffn or 4 * hidden)
            x = b.layer_norm(b.add(x, b.dropout(y)), "ln2")
    return x


@built(TransformerBuilder, vocab=50257, seq=1024)
def gpt(b: TransformerBuilder, *, layers: int = 12, ffn: int = 0, tied: bool = True) -> None:
    """Build a GPT decoder (Radford et al. 2019; Brown et al. 2020).

    Parameters
    ----------
    tied : whether input and output embedding share one table; if not, the head has its own.
    """
    check_heads(b)
    hidden, seq = b.hidden, b.seq
    with b.layer("embeddings"):
        x, table = b.shared_embedding(b.input(b.batch, seq), b.vocab, hidden, tied, name="wte")
        x = b.dropout(b.add(x, b.embedding(b.input(seq), seq, hidden, name="wpe")))
    for layer in range(layers):
        with b.layer(f"layer/{layer}"):
            y = b.layer_norm(x, "ln1")
            y = b.attention(y, fused_qkv=True)
            x = b.add(x, b.dropout(y))
            y = b.feed_forward(b.layer_norm(x, "ln2"), ffn or 4 * hidden)
            x = b.add(x, b.dropout(y))
    with b.layer("final"):
        x = b.layer_norm(x)
        if table is None:
            b.linear(x, b.vocab, bias=False, name="head")
        else:
            # where the head is on another device, the table is sent there
            shape = (*x.shape[:-1], table.shape[0])
            b.matmul(x, table, shape, x.shape[-1], name="head")


_LLAMA: dict[str, Any] = {
    "hidden": 4096,
    "heads": 32,
    "seq": 2048,
    "dtype_bytes": 2,
    "training": None,
}
"""Options of decoders like Llama, whose graphs have no dropout."""


@built(TransformerBuilder, **_LLAMA, vocab=32000)
def llama(b: TransformerBuilder, *, layers: int = 32, kv_heads: int = 0, ffn: int = 11008) -> None:
    """Build a Llama decoder (Touvron et al. 2023); `kv_heads` 0 means as many as `heads`."""
    check_heads(b, kv_heads or b.heads)
    _decoder(b, layers, kv_heads, partial(b.gated_feed_forward, width=ffn))


def _decoder(
    b: TransformerBuilder, layers: int, kv_heads: int, feed_forward: Callable[[Tensor], Tensor]
) -> None:
    """Add layers of attention and a feed-forward part, between an embedding and an output layer
    unless the vocabulary is empty.
    """
    x = b.input(b.batch, b.seq, b.hidden)
    if b.vocab:
        with b.layer("embeddings"):
            x = b.embedding(b.input(b.batch, b.seq), b.vocab, b.hidden)
    for layer in range(layers):
        with b.layer(f"layer/{layer}"):
            y = b.rms_norm(x, "norm1")
            y = b.attention(y, kv_heads=kv_heads, bias=False, rotary=True)
            x = b.add(x, y, name="residual1")
            x = b.add(x, feed_forward(b.rms_norm(x, "norm2")), name="residual2")
    if b.vocab:
        with b.layer("final"):
            b.linear(b.rms_norm(x), b.vocab, bias=False, name="head")


@built(TransformerBuilder, **_LLAMA, vocab=0)
def moe(
    b: TransformerBuilder,
    *,
    layers: int = 1,
    kv_heads: int = 8,
    ffn: int = 14336,
    experts: int = 8,
    top_k: int = 2,
) -> None:
    """Build decoder layers whose feed-forward part is a mixture of experts (Jiang et al. 2024).

    Tokens are assumed to spread evenly: every expert receives batch * seq * top_k / experts of
    them, rounded up.

    Parameters
    ----------
    vocab : 0 leaves the embedding and the output layer out.
    """
    check_heads(b, kv_heads)
    check_count(b.name, layers * experts * 5, MAX_BUILT)
    if top_k > experts:
        raise InputError(
            f"generator '{b.name}': top_k must be at most experts = {experts}, received {top_k}"
        )
    mixture = partial(_expert_mixture, b, ffn=ffn, experts=experts, top_k=top_k)
    _decoder(b, layers, kv_heads, mixture)


def _expert_mixture(b: TransformerBuilder, x: Tensor, ffn: int, experts: int, top_k: int) -> Tensor:
    """Router, dispatch, gated experts and weighted combination."""
    tokens, hidden = x.size // x.shape[-1], x.shape[-1]
    share = -(-tokens * top_k // experts)
    with b.layer("router"):
        scores = b.unary("softmax", b.linear(x, experts, bias=False, name="gate"), cost=5)
        weights = b.op("top_k", (scores,), (tokens, top_k), flops=scores.size)
        parts = b.ops("dispatch", (x, weights), [(share, hidden)] * experts)
    outputs = [
        b.gated_feed_forward(part, ffn, name=f"expert{expert}") for expert, part in enumerate(parts)
    ]
    return b.op("combine", (weights, *outputs), x.shape, flops=2 * x.size * top_k)


@built(TransformerBuilder, hidden=512, heads=6, vocab=250112, seq=512)
def mt5(
    b: TransformerBuilder,
    *,
    layers: int = 8,
    decoder_layers: int = 0,
    head_dim: int = 64,
    ffn: int = 1024,
    target: int = 128,
    tied: bool = True,
) -> None:
    """Build an mT5 encoder-decoder (Xue et al. 2021), mT5-small by default.

    The output layer has its own weights.

    Parameters
    ----------
    tied : whether one table embeds source and target; if not, the decoder has its own.
    decoder_layers : 0 means as many as `layers`.
    seq, target : tokens of the source and of the target.
    """
    with b.layer("shared"):
        x, table = b.shared_embedding(b.input(b.batch, b.seq), b.vocab, b.hidden, tied)
    with b.layer("encoder"):
        x = _t5_stack(b, b.dropout(x), None, layers, head_dim, ffn)
    with b.layer("decoder"):
        tokens = b.input(b.batch, target)
        if table is None:
            y = b.embedding(tokens, b.vocab, b.hidden)
        else:
            y = b.op(
                "embedding",
                (table, tokens),
                (*tokens.shape, b.hidden),
                moved=2 * tokens.size * b.hidden * b.dtype_bytes,
            )
        y = _t5_stack(b, b.dropout(y), x, decoder_layers or layers, head_dim, ffn)
    with b.layer("final"):
        b.linear(y, b.vocab, bias=False, name="head")


def _t5_stack(
    b: TransformerBuilder, x: Tensor, memory: Tensor | None, layers: int, head_dim: int, ffn: int
) -> Tensor:
    """Pre-norm layers with relative position biases; with `memory`, layers attend to the encoder
    too.
    """
    seq, heads = x.shape[1], b.heads
    buckets = b.input(seq, seq)
    position = b.op(
        "embedding", (buckets,), (1, heads, seq, seq), name="position_bias", parameters=32 * heads
    )
    attend = partial(b.attention, head_dim=head_dim, bias=False, scaled=False)
    for layer in range(layers):
        with b.layer(f"layer/{layer}"):
            y = attend(b.rms_norm(x, "norm1"), position_bias=position)
            x = b.add(x, b.dropout(y), name="residual1")
            if memory is not None:
                y = b.rms_norm(x, "norm_cross")
                y = attend(y, context=memory, masked=False, name="cross")
                x = b.add(x, b.dropout(y), name="residual_cross")
            y = b.gated_feed_forward(b.rms_norm(x, "norm2"), ffn, activation="gelu")
            x = b.add(x, b.dropout(y), name="residual2")
    return b.rms_norm(x, "final_norm")


@built(TransformerBuilder, seq=77, batch=8)
def flava(
    b: TransformerBuilder,
    *,
    image_layers: int = 12,
    text_layers: int = 12,
    layers: int = 6,
    image: int = 224,
    patch: int = 16,
) -> None:
    """Build a vision-language model (after FLAVA, Singh et al. 2022).

    A vision transformer on patches and a BERT-like text encoder run side by side; their hidden
    states are projected, joined and read by a multimodal encoder.

    Parameters
    ----------
    image_layers, text_layers, layers : layers of the image, text and multimodal encoder.
    """
    check_heads(b)
    if image % patch:
        raise InputError(
            f"generator '{b.name}': image must be a multiple of patch, received {image} and {patch}"
        )
    patches, batch, hidden = (image // patch) ** 2, b.batch, b.hidden
    with b.layer("image"):
        x = b.conv(b.input(batch, 3, image, image), hidden, patch, patch, bias=True, name="patches")
        x = b.reshape(x, (batch, patches, hidden), name="sequence")
        x = b.class_token(x)
        x = b.op(
            "bias_add",
            (x,),
            x.shape,
            name="position",
            flops=x.size,
            parameters=(patches + 1) * hidden,
        )
        x = _encoder(b, b.dropout(x), image_layers)
    with b.layer("text"):
        y = _bert_stack(b, text_layers)
    with b.layer("multimodal"):
        x = b.linear(x, hidden, name="image_projection")
        y = b.linear(y, hidden, name="text_projection")
        joint = b.class_token(b.concat((x, y)))
        b.pooler(_encoder(b, joint, layers), name="pooler")


def _encoder(b: TransformerBuilder, x: Tensor, layers: int) -> Tensor:
    """Pre-norm encoder layers and a final norm, as in the vision transformer."""
    for layer in range(layers):
        with b.layer(f"layer/{layer}"):
            y = b.attention(b.layer_norm(x, "ln1"), masked=False)
            x = b.add(x, b.dropout(y), name="residual1")
            y = b.feed_forward(b.layer_norm(x, "ln2"), 4 * x.shape[-1])
            x = b.add(x, b.dropout(y), name="residual2")
    return b.layer_norm(x, "final_norm")
