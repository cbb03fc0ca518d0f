"""Recurrent networks with their steps unrolled: NMT, GNMT and an RNN language model.

The weights of an LSTM layer belong to one op of type "variable" and reach every step as a tensor,
which is sent at most once to each device. So the steps of a layer may run on different devices, as
in the placements of Mirhoseini et al. (2017), and whoever separates them pays for the weights.

References
----------
S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation 9, 1997.
W. Zaremba, I. Sutskever, O. Vinyals, "Recurrent neural network regularization", arXiv:1409.2329,
2014. M.-T. Luong, H. Pham, C. D. Manning, "Effective approaches to attention-based neural machine
      translation", EMNLP 2015.
Y. Wu et al., "Google's neural machine translation system", arXiv:1609.08144, 2016.
A. Mirhoseini et al., "Device placement optimization with reinforcement learning", ICML 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

from placeopt.instances.generators import MAX_REPEATS, built
from placeopt.instances.generators.builder import GraphBuilder, Tensor


class Sentences(GraphBuilder):
    """Builds networks that read a batch of sentences word by word."""

    def __init__(
        self,
        name: str,
        hidden: int = 1024,
        vocab: int = 32000,
        batch: int = 64,
        detail: str = "fine",
        dtype_bytes: int = 4,
    ) -> None:
        super().__init__(name, dtype_bytes)
        self.hidden, self.vocab, self.batch, self.fine = hidden, vocab, batch, detail == "fine"

    def embed(self, steps: int) -> list[Tensor]:
        """Embed the words of all sentences; one output tensor per step."""
        return self.ops(
            "embedding",
            (self.input(self.batch, steps),),
            [(self.batch, self.hidden)] * steps,
            parameters=self.vocab * self.hidden,
            moved=2 * self.batch * steps * self.hidden * self.dtype_bytes,
        )


class Lstm:
    """One LSTM layer (Hochreiter and Schmidhuber 1997) whose steps share a variable."""

    def __init__(self, b: Sentences, inputs: int, name: str) -> None:
        self.b, self.name = b, name
        self.rows = inputs + b.hidden
        self.state: tuple[Tensor, ...] = ()  # hidden and cell, after the first step
        with b.layer(name):
            self.weights = b.variable((self.rows + 1, 4 * b.hidden))  # weights and biases

    def step(self, x: Tensor, time: int) -> Tensor:
        """Run one step and return the hidden state."""
        b, batch, hidden = self.b, self.b.batch, self.b.hidden
        shape = (batch, hidden)
        product = 2 * batch * self.rows * 4 * hidden + 4 * batch * hidden
        with b.layer(f"{self.name}/step{time}"):
            if not b.fine:
                flops, inputs = product + 30 * batch * hidden, (x, *self.state, self.weights)
                h, c = b.ops("lstm_cell", inputs, (shape, shape), flops=flops)
            else:
                joined = b.op("concat", (x, *self.state[:1]), (batch, self.rows))
                gates = b.op("matmul", (joined, self.weights), (batch, 4 * hidden), flops=product)
                i, f, o, g = b.ops("split", (gates,), [shape] * 4)
                i = b.unary("sigmoid", i, cost=4, name="input_gate")
                f = b.unary("sigmoid", f, cost=4, name="forget_gate")
                o = b.unary("sigmoid", o, cost=4, name="output_gate")
                g = b.unary("tanh", g, cost=4, name="candidate")
                c = b.binary("mul", i, g, name="write")
                if self.state:
                    c = b.add(b.binary("mul", f, self.state[1], name="keep"), c, name="cell")
                h = b.binary("mul", o, b.unary("tanh", c, cost=4, name="cell_tanh"), name="hidden")
        self.state = h, c
        return h

    def run(self, inputs: Sequence[Tensor], reverse: bool = False) -> list[Tensor]:
        """Run all steps and return the hidden states, in the order of `inputs`."""
        order = -1 if reverse else 1
        steps = list(enumerate(inputs))[::order]
        return [self.step(x, time) for time, x in steps][::order]


class Softmax:
    """Output layer whose weights all steps share."""

    def __init__(self, b: Sentences) -> None:
        self.b = b
        with b.layer("softmax"):
            self.weights = b.variable((b.hidden + 1, b.vocab))

    def step(self, x: Tensor, time: int) -> Tensor:
        """Return the word probabilities of one step."""
        b = self.b
        with b.layer(f"softmax/step{time}"):
            logits = b.matmul(x, self.weights, (b.batch, b.vocab), b.hidden, name="logits")
            return b.unary("softmax", logits, cost=5)


class Attention:
    """Global attention over the encoder states (Luong et al. 2015), one call per decoder step."""

    def __init__(self, b: Sentences, states: Sequence[Tensor]) -> None:
        self.b, self.steps = b, len(states)
        with b.layer("attention"):
            self.memory = b.op("stack", states, (b.batch, self.steps, b.hidden), name="memory")
            self.keys = b.linear(self.memory, b.hidden, bias=False, name="keys")

    def step(self, query: Tensor, time: int) -> Tensor:
        """Return the context vector of a query."""
        b, batch, hidden = self.b, self.b.batch, self.b.hidden
        with b.layer(f"attention/step{time}"):
            scores = b.matmul(query, self.keys, (batch, self.steps), hidden, name="scores")
            weights = b.unary("softmax", scores, cost=5)
            return b.matmul(weights, self.memory, (batch, hidden), self.steps, name="context")


@built(Sentences, vocab=10000)
def rnn_lm(b: Sentences, *, layers: int = 2, steps: int = 20) -> None:
    """Build a language model of stacked LSTM layers (Zaremba et al. 2014), `steps` steps
    unrolled.
    """
    xs = b.embed(steps)
    for layer in range(layers):
        xs = Lstm(b, b.hidden, f"lstm{layer}").run(xs)
    softmax = Softmax(b)
    for time, x in enumerate(xs):
        softmax.step(x, time)


@built(Sentences, hidden=512)
def nmt(b: Sentences, *, layers: int = 2, source: int = 20, target: int = 20) -> None:
    """Build a sequence-to-sequence model with global attention and input feeding (Luong et al.
    2015).

    Parameters
    ----------
    layers : LSTM layers of the encoder, and as many of the decoder.
    source, target : steps of the encoder and of the decoder.
    """
    hidden = b.hidden
    with b.layer("encoder"):
        xs = b.embed(source)
        for layer in range(layers):
            xs = Lstm(b, hidden, f"lstm{layer}").run(xs)
    with b.layer("decoder"):
        attention = Attention(b, xs)
        words = b.embed(target)
        cells = [
            Lstm(b, hidden if layer else 2 * hidden, f"lstm{layer}") for layer in range(layers)
        ]
        mixer = b.variable((2 * hidden, hidden), name="mixer_weights")
        softmax = Softmax(b)
        feed: Tensor | None = None
        for time, word in enumerate(words):
            x = word if feed is None else b.concat((word, feed), name=f"feed{time}")
            for cell in cells:
                x = cell.step(x, time)
            context = attention.step(x, time)
            with b.layer(f"attention/step{time}"):
                mixed = b.matmul(
                    b.concat((context, x)), mixer, (b.batch, hidden), 2 * hidden, name="mix"
                )
                feed = b.unary("tanh", mixed, cost=4)
            softmax.step(feed, time)


@built(Sentences, {"layers": (2, MAX_REPEATS)}, detail="coarse")
def gnmt(b: Sentences, *, layers: int = 8, source: int = 20, target: int = 20) -> None:
    """Build GNMT (Wu et al. 2016).

    The first encoder layer is bidirectional, residual connections start at the third layer, and the
    attention of the first decoder layer feeds its context to every decoder layer.

    Parameters
    ----------
    layers : layers of the encoder, and as many of the decoder; at least 2.
    """
    with b.layer("encoder"):
        xs = _encoded(b, b.embed(source), layers)
    with b.layer("decoder"):
        attention = Attention(b, xs)
        words = b.embed(target)
        cells = [Lstm(b, 2 * b.hidden, f"lstm{layer}") for layer in range(layers)]
        _decode(b, cells, attention, Softmax(b), words)


def _encoded(b: Sentences, xs: list[Tensor], layers: int) -> list[Tensor]:
    """Return what GNMT's encoder makes of a sequence."""
    ahead = Lstm(b, b.hidden, "lstm0_forward").run(xs)
    back = Lstm(b, b.hidden, "lstm0_backward").run(xs, reverse=True)
    with b.layer("bidirectional"):
        xs = [b.concat(pair) for pair in zip(ahead, back, strict=True)]
    for layer in range(1, layers):
        outputs = Lstm(b, xs[0].shape[1], f"lstm{layer}").run(xs)
        if layer >= 2:
            with b.layer(f"residual{layer}"):
                outputs = [b.add(y, x) for y, x in zip(outputs, xs, strict=True)]
        xs = outputs
    return xs


def _decode(
    b: Sentences, cells: list[Lstm], attention: Attention, softmax: Softmax, words: list[Tensor]
) -> None:
    """Add GNMT's decoder: one step of all cells for each word."""
    context: Tensor | None = None
    for time, x in enumerate(words):
        for layer, cell in enumerate(cells):
            joined = (
                x if context is None else b.concat((x, context), name=f"lstm{layer}/join{time}")
            )
            y = cell.step(joined, time)
            x = b.add(y, x, name=f"lstm{layer}/residual{time}") if layer >= 2 else y
            if layer == 0:
                context = attention.step(x, time)
        softmax.step(x, time)
