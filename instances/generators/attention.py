"""Pieces of transformers: normalisation, attention, activations; fine (as exported) or fused.

`fine=True` writes the primitive ops that an exported graph shows (a layer norm is seven ops);
`fine=False` writes one op per fused kernel. Flops and parameters are the same up to element-wise work.

References
----------
A. Vaswani et al., "Attention is all you need", NeurIPS 2017.
J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization", arXiv:1607.06450, 2016.
B. Zhang, R. Sennrich, "Root mean square layer normalization", NeurIPS 2019.
J. Su et al., "RoFormer: enhanced transformer with rotary position embedding", arXiv:2104.09864, 2021.
N. Shazeer, "GLU variants improve transformer", arXiv:2002.05202, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placeopt.instances.generators.builder import GraphBuilder, Tensor


@dataclass(frozen=True)
class Style:
    """How detailed a transformer is written down.

    Attributes
    ----------
    fine : primitive ops instead of fused kernels.
    dropout : include the dropout ops of a training graph.
    """

    fine: bool = True
    dropout: bool = False


def layer_norm(b: GraphBuilder, x: Tensor, style: Style, name: str = "ln") -> Tensor:
    """Layer normalisation with learned scale and shift (Ba et al. 2016)."""
    width, rows = x.shape[-1], (*x.shape[:-1], 1)
    with b.layer(name):
        if not style.fine:
            return b.op("layer_norm", (x,), x.shape, flops=8 * x.size, parameters=2 * width)
        mean = b.op("reduce_mean", (x,), rows, name="mean", flops=x.size)
        centred = b.binary("sub", x, mean, name="centre")
        square = b.unary("square", centred)
        variance = b.op("reduce_mean", (square,), rows, name="variance", flops=x.size)
        inverse = b.unary("rsqrt", variance)
        return b.bias(b.scale(b.binary("mul", centred, inverse, name="normalise")))


def rms_norm(b: GraphBuilder, x: Tensor, style: Style, name: str = "norm") -> Tensor:
    """Root-mean-square normalisation with learned scale (Zhang and Sennrich 2019)."""
    width, rows = x.shape[-1], (*x.shape[:-1], 1)
    with b.layer(name):
        if not style.fine:
            return b.op("rms_norm", (x,), x.shape, flops=4 * x.size, parameters=width)
        square = b.unary("square", x)
        mean = b.op("reduce_mean", (square,), rows, name="mean", flops=x.size)
        inverse = b.unary("rsqrt", mean)
        return b.scale(b.binary("mul", x, inverse, name="normalise"))


def dense(b: GraphBuilder, x: Tensor, out: int, style: Style, *, bias: bool = True, name: str = "linear") -> Tensor:
    """Fully connected layer; in fine style the bias is an op of its own."""
    if bias and style.fine:
        return b.bias(b.linear(x, out, bias=False, name=name), name=f"{name}_bias")
    return b.linear(x, out, bias=bias, name=name)


def gelu(b: GraphBuilder, x: Tensor, style: Style) -> Tensor:
    """Gaussian error linear unit, tanh form."""
    if not style.fine:
        return b.unary("gelu", x, cost=8)
    cube = b.unary("pow", x, cost=2, name="gelu_cube")
    inner = b.binary("add", x, cube, name="gelu_inner")
    return b.binary("mul", x, b.unary("tanh", inner, cost=2, name="gelu_tanh"), name="gelu_gate")


def silu(b: GraphBuilder, x: Tensor, style: Style) -> Tensor:
    """Sigmoid linear unit."""
    if not style.fine:
        return b.unary("silu", x, cost=4)
    return b.binary("mul", x, b.unary("sigmoid", x, cost=3), name="silu")


def softmax(b: GraphBuilder, x: Tensor, style: Style) -> Tensor:
    """Softmax along the last dimension."""
    if not style.fine:
        return b.unary("softmax", x, cost=5)
    rows = (*x.shape[:-1], 1)
    shifted = b.binary("sub", x, b.op("reduce_max", (x,), rows, name="softmax_max", flops=x.size), name="softmax_sub")
    weights = b.unary("exp", shifted, name="softmax_exp")
    total = b.op("reduce_sum", (weights,), rows, name="softmax_sum", flops=x.size)
    return b.binary("div", weights, total, name="softmax_div")


def dropout(b: GraphBuilder, x: Tensor, style: Style, name: str = "dropout") -> Tensor:
    """Dropout in training graphs, nothing otherwise."""
    return b.unary("dropout", x, name=name) if style.dropout else x


def attention(
    b: GraphBuilder,
    x: Tensor,
    style: Style,
    *,
    heads: int,
    head_dim: int,
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
    """Multi-head attention (Vaswani et al. 2017) with its four projections, without the residual.

    Parameters
    ----------
    x : queries' input, shape (batch, seq, hidden).
    kv_heads : heads of keys and values (grouped-query attention), 0 for `heads`.
    context : input of keys and values, default `x`.
    fused_qkv : one projection for queries, keys and values.
    rotary : rotate queries and keys (Su et al. 2021).
    masked : add a mask to the scores; `position_bias` is added instead where it is given.
    """
    source = x if context is None else context
    kv_heads = kv_heads or heads
    (batch, seq, hidden), keys = x.shape, source.shape[1]
    with b.layer(name):
        if fused_qkv:
            joint = dense(b, x, (heads + 2 * kv_heads) * head_dim, style, bias=bias, name="qkv")
            q, k, v = b.ops("split", (joint,), [(batch, seq, heads * head_dim), (batch, seq, kv_heads * head_dim),
                                                (batch, seq, kv_heads * head_dim)])  # fmt: skip
        else:
            q = dense(b, x, heads * head_dim, style, bias=bias, name="q")
            k = dense(b, source, kv_heads * head_dim, style, bias=bias, name="k")
            v = dense(b, source, kv_heads * head_dim, style, bias=bias, name="v")
        if style.fine:
            q = b.reshape(q, (batch, heads, seq, head_dim), name="q_heads")
            k = b.reshape(k, (batch, kv_heads, keys, head_dim), name="k_heads")
            v = b.reshape(v, (batch, kv_heads, keys, head_dim), name="v_heads")
        if rotary:
            q, k = (b.unary("rotary", t, cost=3, name=f"{end}_rotary") for t, end in ((q, "q"), (k, "k")))
        if not style.fine:
            # one kernel for scores, softmax and weighted sum (flash attention)
            work = 4 * batch * heads * seq * keys * head_dim + 6 * batch * heads * seq * keys
            inputs = (q, k, v) if position_bias is None else (q, k, v, position_bias)
            mixed = b.op("attention", inputs, (batch, seq, heads * head_dim), flops=work)
            return b.linear(mixed, hidden, bias=bias, name="out")
        scores = b.matmul(q, k, (batch, heads, seq, keys), head_dim, name="scores")
        if scaled:
            scores = b.unary("mul_constant", scores, name="scale")
        if position_bias is not None:
            scores = b.add(scores, position_bias, name="position_bias")
        elif masked:
            scores = b.unary("mask", scores, name="mask")
        return _mix(b, scores, v, style, hidden, bias)


def _mix(b: GraphBuilder, scores: Tensor, v: Tensor, style: Style, hidden: int, bias: bool) -> Tensor:
    """Weigh the values by the softmax of the scores, merge the heads and project."""
    batch, heads, seq, keys = scores.shape
    weights = dropout(b, softmax(b, scores, style), style, "weights_dropout")
    mixed = b.matmul(weights, v, (batch, heads, seq, v.shape[-1]), keys, name="mix")
    merged = b.reshape(mixed, (batch, seq, heads * v.shape[-1]), name="merge_heads")
    return dense(b, merged, hidden, style, bias=bias, name="out")


def feed_forward(b: GraphBuilder, x: Tensor, width: int, style: Style, *, name: str = "mlp") -> Tensor:
    """Two fully connected layers around a GELU."""
    hidden = x.shape[-1]
    with b.layer(name):
        y = gelu(b, dense(b, x, width, style, name="fc1"), style)
        return dense(b, y, hidden, style, name="fc2")


def gated_feed_forward(b: GraphBuilder, x: Tensor, width: int, style: Style, *, activation: str = "silu",
                       name: str = "mlp") -> Tensor:  # fmt: skip
    """Gated feed-forward layer without biases (Shazeer 2020): down(act(gate(x)) * up(x))."""
    hidden = x.shape[-1]
    with b.layer(name):
        gate = b.linear(x, width, bias=False, name="gate")
        gate = silu(b, gate, style) if activation == "silu" else gelu(b, gate, style)
        up = b.linear(x, width, bias=False, name="up")
        return b.linear(b.binary("mul", gate, up, name="gated"), hidden, bias=False, name="down")


def tied_embedding(b: GraphBuilder, tokens: Tensor, rows: int, width: int, name: str = "wte") -> tuple[Tensor, Tensor]:
    """Embedding whose table is used again elsewhere: returns (embedded tokens, the table as a tensor)."""
    embedded, table = b.ops("embedding", (tokens,), ((*tokens.shape, width), (rows, width)), name=name,
                            parameters=rows * width, moved=2 * tokens.size * width * b.dtype_bytes)  # fmt: skip
    return embedded, table


def tied_head(b: GraphBuilder, x: Tensor, table: Tensor, name: str = "head") -> Tensor:
    """Logits from the embedding table; where the head is on another device, the table is sent there."""
    rows = table.shape[0]
    return b.matmul(x, table, (*x.shape[:-1], rows), x.shape[-1], name=name)
