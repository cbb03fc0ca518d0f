"""Training graphs: append the backward pass and the optimizer to a forward OpGraph.

For every op v of the forward graph, in reverse order:

- `v/igrad` computes the gradients of v's inputs, if an op before v has weights (or no op has any:
  then nothing is known about weights, and every op has one backward op);
- `v/wgrad` computes the gradient of v's weights, if it has any;
- `v/update` applies the optimizer to them;
- `v/grad_sum` adds the gradients of an output of v that several ops consume.

Activations are kept until used: a forward tensor gains as consumers the backward ops that need it
(which depends on the type of the op: a product needs its inputs, a softmax its output, an addition
nothing). Where the forward graph ends, the loss and its gradient count as part of the last op.

Costs. With F the forward flops, `igrad` and `wgrad` of an op with weights take F each; an op with
two differentiable operands and no weights (attention scores) takes 2 F for a product; everything
else F. `update` takes 12 flops per parameter (Adam), 4 (momentum) or 2 (sgd). Bytes moved are the
tensors that an op reads and writes, plus weights. A measured time t turns into `backward_ratio` *
t, divided equally between `igrad` and `wgrad` where there are both; `update_ratio` * t for the
update; 0 for `grad_sum`.

Memory. The weights stay with the forward op, the gradients with `wgrad`, the optimizer state with
`update`: 8 bytes per parameter (Adam), 4 (momentum), 0 (sgd), and 4 more for a master copy if
weights have less than 4 bytes. These ops share a device (colocation), since they work on the same
weights.

What training needs of memory: weights, gradients, optimizer state and activations, by precision.

The rules are those of `placeopt.instances.training`: a gradient per weight; Adam's two moments of 4
bytes (momentum one, SGD none), and 4 bytes for a master copy where weights have 2; activations are
the tensors of the forward pass that a backward op reads, for the batch that the graph's shapes
have. Mixed precision has weights, gradients and activations of 2 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Ints, int_array, round_half_up, true_places
from placeopt.model.errors import InputError, check_choice
from placeopt.model.graph import UNKNOWN, UNSUPPORTED, OpGraph

OPTIMIZERS = {"adam": (12, 8), "momentum": (4, 4), "sgd": (2, 0)}
"""Flops and bytes of state per parameter."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Types whose backward op needs their output, or nothing but the incoming gradient; all others need
# their
# inputs. Lower case, so that names of exported graphs ("Softmax") match too.
_NEEDS_OUTPUT = _words(
    "relu sigmoid tanh softmax logsoftmax exp sqrt rsqrt leakyrelu elu relu6 clip hardswish "
    "hardsigmoid"
)
_NEEDS_NOTHING = _words(
    "add sub sum mean bias_add concat split slice reshape transpose flatten squeeze unsqueeze "
    "identity cast gather pad expand stack reduce reduce_sum reduce_mean reducesum reducemean "
    "avg_pool averagepool globalaveragepool mul_constant mask scale_mask rotary formation "
    "to_complex mul_complex to_real embedding variable shape constant resize upsample neg"
)
_PRODUCTS = _words("matmul gemm bmm batch_matmul attention einsum einsummable lstm_cell")
_LINEAR_IN_WEIGHTS = _words("linear conv matmul gemm convtranspose fullyconnected embedding")


def training_graph(
    graph: OpGraph,
    optimizer: str = "adam",
    *,
    backward_ratio: float = 2.0,
    update_ratio: float = 0.1,
    colocate: str = "weights",
) -> OpGraph:
    """Return the graph of one training step: forward, backward, optimizer.

    Parameters
    ----------
    graph : a forward graph; its ops and tensors keep their indices.
    optimizer : "adam", "momentum" or "sgd".
    backward_ratio : time of the backward pass over forward time, for ops with measured times.
    update_ratio : time of the update over forward time, for ops with measured times.
    colocate : "weights" ties the ops that work on the same weights to one device; "all" also ties
    the
        backward op of every other op to it.

    Raises
    ------
    InputError
        If an option is unknown, or the graph has backward ops already.
    """
    check_choice("optimizer", optimizer, OPTIMIZERS)
    check_choice("colocate", colocate, ("weights", "all"))
    for key, value in (("backward_ratio", backward_ratio), ("update_ratio", update_ratio)):
        if not (np.isfinite(value) and value >= 0):
            raise InputError(f"{key}: expected a number >= 0, received {value}")
    if graph.backward.any():
        raise InputError(
            f"graph '{graph.name}' has backward ops already; load it without training=True"
        )
    return _Derivation(graph, optimizer, backward_ratio, update_ratio, colocate).run()


class _NewOp(NamedTuple):
    """An op that is appended; they are numbered after the forward ops."""

    name: str
    type: str
    origin: int  # forward op
    flops: int
    weight_bytes: int  # weights read or written
    resident: int
    ratio: float  # of the forward op's measured time
    tied: bool  # shares the forward op's device


def _weight_counts(graph: OpGraph) -> Ints:
    """Weights of every op; where only bytes are known, 4 of them count as one weight."""
    return np.where(graph.parameters > 0, graph.parameters, -(-graph.resident // 4))


class _Derivation:
    """One derivation; see the module's docstring for the rules."""

    def __init__(
        self, graph: OpGraph, optimizer: str, backward: float, update: float, colocate: str
    ) -> None:
        self.graph, self.optimizer, self.tie_all = graph, optimizer, colocate == "all"
        self.backward, self.update = backward, update
        self.ops: list[_NewOp] = []
        self.taken = set(graph.op_names)
        self.weights = _weight_counts(graph).tolist()
        self.producer = graph.producer.tolist()
        self.consumers = graph.readers()
        self.bytes = graph.tensor_bytes.tolist()
        self.shapes: list[tuple[int, ...]] = list(graph.shapes or ((),) * graph.num_tensors)
        self.measured_transfer = graph.measured_transfer.tolist()
        # of each forward tensor, the tensors with its gradients
        self.gradients: list[list[int]] = [[] for _ in self.producer]
        self.inputs, self.outputs = graph.reads(), graph.makes()
        self.known = any(self.weights)
        self.differentiable = self._depend_on_weights()
        self.has_flops = bool(graph.flops.any())

    def _depend_on_weights(self) -> list[bool]:
        """Whether each op's output depends on weights, so that a gradient must reach the op."""
        found = [not self.known or count > 0 for count in self.weights]
        for v in self.graph.topological_order.tolist():
            found[v] = found[v] or any(found[self.producer[t]] for t in self.inputs[v])
        return found

    def run(self) -> OpGraph:
        """Differentiate every op, last first, and return the graph."""
        for v in self.graph.topological_order[::-1].tolist():
            if self.differentiable[v]:
                self._differentiate(v)
        return self._build()

    def _differentiate(self, v: int) -> None:
        """Add the backward ops of v; the gradients of its outputs are complete."""
        wanted = [t for t in self.inputs[v] if self.differentiable[self.producer[t]]]
        incoming = self._incoming(v)
        # nothing is known about weights: one backward op takes all the time
        if wanted or not self.known:
            self._add_igrad(v, wanted, incoming)
        if self.weights[v]:
            self._add_wgrad(v, self.backward / 2 if wanted else self.backward, incoming)

    def _add_igrad(self, v: int, wanted: list[int], incoming: list[int]) -> None:
        """Add the op that makes the gradients of the inputs that want one."""
        kind, weights = self.graph.op_types[v].lower(), self.weights[v]
        operands = 2 if kind in _PRODUCTS and not weights and len(wanted) > 1 else 1
        share = self.backward / 2 if weights else self.backward
        flops = int(self.graph.flops[v]) * operands
        op = self._op(v, "igrad", flops, self._weight_bytes(v), 0, share)
        self._consume(incoming + self._saved_by_igrad(v, kind), op)
        for t in wanted:
            self.gradients[t].append(self._tensor_like(t, op))

    def _add_wgrad(self, v: int, share: float, incoming: list[int]) -> None:
        """Add the op that makes the gradient of the weights, and the update that takes it."""
        weights, weight_bytes = self.weights[v], self._weight_bytes(v)
        op = self._op(v, "wgrad", int(self.graph.flops[v]), 0, weight_bytes, share)
        plain = self.graph.op_types[v].lower() in ("bias_add", "embedding")
        self._consume(incoming if plain else incoming + self.inputs[v], op)
        gradient = self._tensor(op, weight_bytes, (), 0)
        flops, state = OPTIMIZERS[self.optimizer]
        state_bytes = weights * (state + (4 if weight_bytes < 4 * weights else 0))
        # reads gradient and weights, reads and writes the state, writes the weights
        moved = weight_bytes + 2 * state_bytes
        update = self._op(v, "update", flops * weights, moved, state_bytes, self.update)
        self._consume([gradient], update)

    def _weight_bytes(self, v: int) -> int:
        """At most 4 bytes a weight: the rest are buffers (running statistics) without gradients."""
        return min(int(self.graph.resident[v]), 4 * self.weights[v])

    def _incoming(self, v: int) -> list[int]:
        """Gradient tensors of v's outputs, summed where several ops consumed one."""
        incoming: list[int] = []
        for t in self.outputs[v]:
            parts = self.gradients[t]
            if len(parts) > 1:
                flops = (len(parts) - 1) * (self.bytes[t] // 4) if self.has_flops else 0
                op = self._op(v, "grad_sum", flops, 0, 0, 0.0)
                self._consume(parts, op)
                parts = [self._tensor_like(t, op)]
            incoming += parts
        if not incoming:  # the loss: the backward pass starts from what v computed
            ends = [t for t in self.outputs[v] if not self.consumers[t]]
            ticks = 0 if self.graph.measured_kinds else UNKNOWN
            incoming = ends[:1] or [self._tensor(v, 0, (), ticks)]
        return incoming

    def _saved_by_igrad(self, v: int, kind: str) -> list[int]:
        if kind in _NEEDS_OUTPUT:
            return self.outputs[v]
        if kind in _NEEDS_NOTHING or (
            self.weights[v] and kind in _LINEAR_IN_WEIGHTS and len(self.inputs[v]) < 2
        ):
            return []
        return self.inputs[v]

    # --- bookkeeping
    # -------------------------------------------------------------------------------------

    def _op(
        self, v: int, role: str, flops: int, weight_bytes: int, resident: int, ratio: float
    ) -> int:
        name = base = f"{self.graph.op_names[v]}/{role}"
        attempt = 1
        while name in self.taken:
            name, attempt = f"{base}_{attempt}", attempt + 1
        self.taken.add(name)
        kind = self.graph.op_types[v]
        plain = {"update": self.optimizer, "grad_sum": "grad_sum"}
        title = plain.get(role, f"{kind}_{role}" if kind else role)
        tied = self.tie_all or (self.weights[v] > 0 and role != "grad_sum")
        self.ops.append(_NewOp(name, title, v, flops, weight_bytes, resident, ratio, tied))
        return self.graph.num_ops + len(self.ops) - 1

    def _tensor(self, op: int, size: int, shape: tuple[int, ...], ticks: int) -> int:
        self.producer.append(op)
        self.bytes.append(size)
        self.shapes.append(shape)
        self.measured_transfer.append(ticks)
        self.consumers.append([])
        return len(self.producer) - 1

    def _tensor_like(self, t: int, op: int) -> int:
        return self._tensor(op, self.bytes[t], self.shapes[t], self.measured_transfer[t])

    def _consume(self, tensors: Sequence[int], op: int) -> None:
        for t in dict.fromkeys(tensors):
            self.consumers[t].append(op)

    def _build(self) -> OpGraph:
        graph, ops = self.graph, self.ops
        n, extra = graph.num_ops, len(ops)
        origin = np.array([op.origin for op in ops], np.int64)
        moved = np.zeros(n + extra, np.int64)
        for op, size, consumers in zip(self.producer, self.bytes, self.consumers, strict=True):
            moved[[op, *consumers]] += size
        moved[n:] += int_array([op.weight_bytes for op in ops], (extra,), "bytes_moved")
        moved[:n] = graph.bytes_moved
        # unknown stays unknown
        moved[n:][graph.bytes_moved[origin] + graph.resident[origin] == 0] = 0
        return OpGraph.from_tensors(
            graph.name,
            [*graph.op_names, *(op.name for op in ops)],
            zip(self.producer, self.bytes, self.consumers, strict=True),
            op_types=graph.op_types + tuple(op.type for op in ops),
            layer=graph.layer + tuple(graph.layer[op.origin] for op in ops),
            flops=[*graph.flops.tolist(), *(op.flops for op in ops)],
            bytes_moved=moved,
            resident=[*graph.resident.tolist(), *(op.resident for op in ops)],
            parameters=np.pad(graph.parameters, (0, extra)),
            colocation=self._colocation(origin),
            backward=np.pad(graph.backward, (0, extra), constant_values=True),
            meta=np.pad(graph.meta, (0, extra), constant_values=-1),
            unshaped=np.concatenate([graph.unshaped, graph.unshaped[origin]]),
            measured_kinds=graph.measured_kinds,
            measured=self._measured(origin),
            measured_transfer=self.measured_transfer,
            shapes=tuple(self.shapes) if graph.shapes else (),
            tick_seconds=graph.tick_seconds,
        )

    def _colocation(self, origin: Ints) -> Ints:
        """Give forward ops with tied backward ops a group, new unless they have one."""
        groups = self.graph.colocation.copy()
        tied = np.array([op.tied for op in self.ops], np.bool_)
        new = np.unique(origin[tied & (groups[origin] < 0)])
        groups[new] = int(groups.max(initial=-1)) + 1 + np.arange(len(new))
        return np.concatenate([groups, np.where(tied, groups[origin], -1)])

    def _measured(self, origin: Ints) -> Ints:
        forward = self.graph.measured
        times = forward[origin]
        scaled = round_half_up(
            np.maximum(times, 0) * np.array([op.ratio for op in self.ops])[:, None],
            "measured backward time",
        )
        return np.concatenate(
            [forward, np.where(times >= 0, scaled, np.where(times == UNSUPPORTED, times, UNKNOWN))]
        )


WEIGHTS, GRADIENTS, STATES = range(3)
"""What resident bytes are: weights, gradients or optimizer states."""

PRECISIONS = {"fp32": 4, "mixed 16-bit": 2}
"""Bytes of a weight, a gradient and an element of an activation."""

AS_GIVEN = "as given"
"""The precision of a graph that has its backward pass already: whatever its bytes say."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on all devices together; `activations` is None where they were not counted."""

    precision: str
    weights: int
    gradients: int
    states: int
    activations: int | None

    @property
    def total(self) -> int:
        """Sum of what is known."""
        return self.weights + self.gradients + self.states + (self.activations or 0)


def resident_parts(
    op_names: Sequence[str], backward: Flags, resident: Ints, device: Ints, count: int
) -> Ints:
    """Return the bytes of weights, gradients and optimizer states on every device, by the names
    that derived backward ops have; shape (count, 3).
    """
    part = np.full(len(op_names), WEIGHTS, np.int64)
    for op in true_places(backward):
        leaf = op_names[op].rpartition("/")[2]
        if leaf.startswith("wgrad"):
            part[op] = GRADIENTS
        elif leaf.startswith("update"):
            part[op] = STATES
    found = np.zeros((count, 3), np.int64)
    np.add.at(found, (device, part), resident)
    return found


def training_memory(graph: OpGraph, optimizer: str = "adam") -> list[TrainingMemory]:
    """Return what training the graph needs, for every precision; for a training graph, what it
    holds as it is.

    Raises
    ------
    InputError
        If the optimizer is not known.
    """
    check_choice("optimizer", optimizer, OPTIMIZERS)
    if graph.backward.any():
        none = np.zeros(graph.num_ops, np.int64)
        weights, gradients, states = resident_parts(
            graph.op_names, graph.backward, graph.resident, none, 1
        )[0].tolist()
        return [TrainingMemory(AS_GIVEN, weights, gradients, states, saved_bytes(graph))]
    count, resident = int(_weight_counts(graph).sum()), int(graph.resident.sum())
    # Larger graphs are not differentiated for the sake of a line: their activations are not
    # counted
    max_derived_ops = 20_000
    saved = (
        saved_bytes(training_graph(graph, optimizer)) if graph.num_ops <= max_derived_ops else None
    )
    stored = (
        resident / count if count else 4.0
    )  # bytes per weight as the graph has it; buffers count with the weights
    found = []
    for precision, width in PRECISIONS.items():
        scale = width / (2 if stored < 3 else 4)
        states = count * (OPTIMIZERS[optimizer][1] + (4 if width < 4 else 0))
        found.append(
            TrainingMemory(
                precision,
                round(resident * scale),
                count * width,
                states,
                None if saved is None else round(saved * scale),
            )
        )
    return found


def saved_bytes(graph: OpGraph) -> int:
    """Return the bytes of the forward tensors that a backward op reads."""
    tensor = graph.edge_tensor
    saved = graph.backward[graph.consumer] & ~graph.backward[graph.producer[tensor]]
    return int(graph.tensor_bytes[np.unique(tensor[saved])].sum())
