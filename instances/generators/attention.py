"""Pieces of transformers: normalisation, attention, activations; fine (as exported) or fused.

`fine=True` writes the primitive ops that an exported graph shows (a layer norm is seven ops);
`fine=False` writes one op per fused kernel. Flops and parameters are the same up to element-wise
work.

References
----------
A. Vaswani et al., "Attention is all you need", NeurIPS 2017.
J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization", arXiv:1607.06450, 2016.
B. Zhang, R. Sennrich, "Root mean square layer normalization", NeurIPS 2019.
J. Su et al., "RoFormer: enhanced transformer with rotary position embedding", arXiv:2104.09864,
2021. N. Shazeer, "GLU variants improve transformer", arXiv:2002.05202, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placeopt.instances.generators.builder import GraphBuilder

if TYPE_CHECKING:
    from placeopt.instances.generators.builder import Tensor


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


class TransformerBuilder(GraphBuilder):
    """Builds graphs of the pieces of transformers, written down in one style."""

    def __init__(self, name: str, style: Style, dtype_bytes: int = 4) -> None:
        super().__init__(name, dtype_bytes)
        self.style = style

    def layer_norm(self, x: Tensor, name: str = "ln") -> Tensor:
        """Layer normalisation with learned scale and shift (Ba et al. 2016)."""
        width, rows = x.shape[-1], (*x.shape[:-1], 1)
        with self.layer(name):
            if not self.style.fine:
                return self.op("layer_norm", (x,), x.shape, flops=8 * x.size, parameters=2 * width)
            mean = self.op("reduce_mean", (x,), rows, name="mean", flops=x.size)
            centred = self.binary("sub", x, mean, name="centre")
            square = self.unary("square", centred)
            variance = self.op("reduce_mean", (square,), rows, name="variance", flops=x.size)
            inverse = self.unary("rsqrt", variance)
            return self.bias(self.scale(self.binary("mul", centred, inverse, name="normalise")))

    def rms_norm(self, x: Tensor, name: str = "norm") -> Tensor:
        """Root-mean-square normalisation with learned scale (Zhang and Sennrich 2019)."""
        width, rows = x.shape[-1], (*x.shape[:-1], 1)
        with self.layer(name):
            if not self.style.fine:
                return self.op("rms_norm", (x,), x.shape, flops=4 * x.size, parameters=width)
            square = self.unary("square", x)
            mean = self.op("reduce_mean", (square,), rows, name="mean", flops=x.size)
            inverse = self.unary("rsqrt", mean)
            return self.scale(self.binary("mul", x, inverse, name="normalise"))

    def dense(self, x: Tensor, out: int, *, bias: bool = True, name: str = "linear") -> Tensor:
        """Fully connected layer; in fine style the bias is an op of its own."""
        if bias and self.style.fine:
            return self.bias(self.linear(x, out, bias=False, name=name), name=f"{name}_bias")
        return self.linear(x, out, bias=bias, name=name)

    def gelu(self, x: Tensor) -> Tensor:
        """Gaussian error linear unit, tanh form."""
        if not self.style.fine:
            return self.unary("gelu", x, cost=8)
        cube = self.unary("pow", x, cost=2, name="gelu_cube")
        inner = self.binary("add", x, cube, name="gelu_inner")
        return self.binary(
            "mul", x, self.unary("tanh", inner, cost=2, name="gelu_tanh"), name="gelu_gate"
        )

    def silu(self, x: Tensor) -> Tensor:
        """Sigmoid linear unit."""
        if not self.style.fine:
            return self.unary("silu", x, cost=4)
        return self.binary("mul", x, self.unary("sigmoid", x, cost=3), name="silu")

    def softmax(self, x: Tensor) -> Tensor:
        """Softmax along the last dimension."""
        if not self.style.fine:
            return self.unary("softmax", x, cost=5)
        rows = (*x.shape[:-1], 1)
        largest = self.op("reduce_max", (x,), rows, name="softmax_max", flops=x.size)
        shifted = self.binary("sub", x, largest, name="softmax_sub")
        weights = self.unary("exp", shifted, name="softmax_exp")
        total = self.op("reduce_sum", (weights,), rows, name="softmax_sum", flops=x.size)
        return self.binary("div", weights, total, name="softmax_div")

    def dropout(self, x: Tensor, name: str = "dropout") -> Tensor:
        """Dropout in training graphs, nothing otherwise."""
        return self.unary("dropout", x, name=name) if self.style.dropout else x

    def attention(
        self,
        x: Tensor,
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
        """Multi-head attention (Vaswani et al. 2017) with its four projections, without the
        residual.

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
        with self.layer(name):
            if fused_qkv:
                joint = self.dense(x, (heads + 2 * kv_heads) * head_dim, bias=bias, name="qkv")
                q, k, v = self.ops(
                    "split",
                    (joint,),
                    [
                        (batch, seq, heads * head_dim),
                        (batch, seq, kv_heads * head_dim),
                        (batch, seq, kv_heads * head_dim),
                    ],
                )
            else:
                q = self.dense(x, heads * head_dim, bias=bias, name="q")
                k = self.dense(source, kv_heads * head_dim, bias=bias, name="k")
                v = self.dense(source, kv_heads * head_dim, bias=bias, name="v")
            if self.style.fine:
                q = self.reshape(q, (batch, heads, seq, head_dim), name="q_heads")
                k = self.reshape(k, (batch, kv_heads, keys, head_dim), name="k_heads")
                v = self.reshape(v, (batch, kv_heads, keys, head_dim), name="v_heads")
            if rotary:
                q, k = (
                    self.unary("rotary", t, cost=3, name=f"{end}_rotary")
                    for t, end in ((q, "q"), (k, "k"))
                )
            if not self.style.fine:
                # one kernel for scores, softmax and weighted sum (flash attention)
                work = 4 * batch * heads * seq * keys * head_dim + 6 * batch * heads * seq * keys
                inputs = (q, k, v) if position_bias is None else (q, k, v, position_bias)
                mixed = self.op("attention", inputs, (batch, seq, heads * head_dim), flops=work)
                return self.linear(mixed, hidden, bias=bias, name="out")
            scores = self.matmul(q, k, (batch, heads, seq, keys), head_dim, name="scores")
            if scaled:
                scores = self.unary("mul_constant", scores, name="scale")
            if position_bias is not None:
                scores = self.add(scores, position_bias, name="position_bias")
            elif masked:
                scores = self.unary("mask", scores, name="mask")
            return self._mix(scores, v, hidden, bias)

    def _mix(self, scores: Tensor, v: Tensor, hidden: int, bias: bool) -> Tensor:
        """Weigh the values by the softmax of the scores, merge the heads and project."""
        batch, heads, seq, keys = scores.shape
        weights = self.dropout(self.softmax(scores), "weights_dropout")
        mixed = self.matmul(weights, v, (batch, heads, seq, v.shape[-1]), keys, name="mix")
        merged = self.reshape(mixed, (batch, seq, heads * v.shape[-1]), name="merge_heads")
        return self.dense(merged, hidden, bias=bias, name="out")

    def feed_forward(self, x: Tensor, width: int, *, name: str = "mlp") -> Tensor:
        """Two fully connected layers around a GELU."""
        hidden = x.shape[-1]
        with self.layer(name):
            y = self.gelu(self.dense(x, width, name="fc1"))
            return self.dense(y, hidden, name="fc2")

    def gated_feed_forward(
        self, x: Tensor, width: int, *, activation: str = "silu", name: str = "mlp"
    ) -> Tensor:
        """Gated feed-forward layer without biases (Shazeer 2020): down(act(gate(x)) * up(x))."""
        hidden = x.shape[-1]
        with self.layer(name):
            gate = self.linear(x, width, bias=False, name="gate")
            gate = self.silu(gate) if activation == "silu" else self.gelu(gate)
            up = self.linear(x, width, bias=False, name="up")
            return self.linear(
                self.binary("mul", gate, up, name="gated"), hidden, bias=False, name="down"
            )

    def tied_embedding(
        self, tokens: Tensor, rows: int, width: int, name: str = "wte"
    ) -> tuple[Tensor, Tensor]:
        """Embedding whose table is used again elsewhere: returns (embedded tokens, the table as a
        tensor).
        """
        embedded, table = self.ops(
            "embedding",
            (tokens,),
            ((*tokens.shape, width), (rows, width)),
            name=name,
            parameters=rows * width,
            moved=2 * tokens.size * width * self.dtype_bytes,
        )
        return embedded, table

    def tied_head(self, x: Tensor, table: Tensor, name: str = "head") -> Tensor:
        """Logits from the embedding table; where the head is on another device, the table is sent
        there.
        """
        rows = table.shape[0]
        return self.matmul(x, table, (*x.shape[:-1], rows), x.shape[-1], name=name)
