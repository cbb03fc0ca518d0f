"""Bytes of a device of a training plan, part by part, on the fuller of the first and last stage.

Mixed precision keeps 16-bit weights, gradients, and 12 bytes of 32-bit weights and moments per
parameter: 16 bytes with 16-bit gradients, 18 with 32-bit ones. Activations are counted as by
Korthikanti et al., MLSys 2023 (their section 4), with the widths of the feed-forward part; fused
attention keeps no scores. A stage of 1F1B keeps as many micro-batches as stages follow, an
interleaved one (p - 1) / v of a stage's more. Beside what is kept, a device works either on the
loss or on one layer's backward pass: the larger of both counts (`_working`). Masks of dropout are
not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placeopt.plans.configuration import SHARDING

if TYPE_CHECKING:
    from placeopt.plans.configuration import Configuration
    from placeopt.plans.model_shapes import ModelShape

MEMORY_CONSTANTS = {"base": 2.5e9, "fragmentation": 1.1}
"""Bytes of driver, libraries and communicators, and the allocator's factor of activations; `base F`
is that of a framework F, where peaks were measured."""

MASTER_BYTES = {2: 12, 4: 8}
"""Bytes of 32-bit weights and moments of a parameter of 2 bytes, of moments of one of 4."""

LOGIT_BYTES = {"fsdp": 12, "megatron-deepspeed": 10}
"""PyTorch's own loss keeps a logit and its gradient in 16 and in 32 bits; the one of 2021's
Megatron a logit in 16 bits, in 32 bits, and less the largest one."""


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of the fullest device."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float
    buffers: float
    fragmentation: float

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return math.ceil(sum(self.to_json().values()))

    def to_json(self) -> dict[str, float]:
        """Return the parts by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def memory_parts(
    shape: ModelShape,
    conf: Configuration,
    held: float,
    constants: dict[str, float] | None = None,
    offloaded: bool = False,
) -> MemoryParts:
    """Return the parts; `held` counts the parameters of the device before states are sharded.

    `offloaded`: states and what recomputation starts from are in the host's memory; the device
    holds what a layer works with.
    """
    if conf.pipeline == 1:
        return _stage_parts(shape, conf, held, constants or {}, offloaded=offloaded)
    p, v = conf.pipeline, conf.chunks
    waiting = min(conf.rounds, p) + ((p - 1) / v if v > 1 else 0.0)
    first = _stage_parts(shape, conf, held, constants or {}, waiting, logits=False)
    # 1F1B's last stage keeps one micro-batch, an interleaved one the chunks before its last
    last = _stage_parts(shape, conf, held, constants or {}, ((v - 1) * min(conf.rounds, p) + 1) / v)
    return max(first, last, key=lambda parts: parts.total)


def _stage_parts(
    shape: ModelShape,
    conf: Configuration,
    held: float,
    constants: dict[str, float],
    waiting: float = 1.0,
    *,
    logits: bool = True,
    offloaded: bool = False,
) -> MemoryParts:
    """Return the parts of a stage on which `waiting` micro-batches have not gone back yet."""
    known = MEMORY_CONSTANTS | constants
    size = 4 if conf.precision in ("fp32", "tf32") else 2
    trained = 0.01 if conf.adapters else 1.0
    layers = math.ceil(shape.layers / conf.pipeline)
    one_layer = held / max(1.0, layers)
    kept = _kept(shape, conf, waiting, 0 if offloaded else layers, size)
    loss = _loss(shape, conf) if logits else 0.0
    activations = kept + max(loss, _working(shape, conf, size))
    # of two units the weights, of one the gradients, which are summed from another copy
    units = (3 * size + max(size, conf.main_gradients)) * one_layer
    base = known.get(f"base {conf.framework}", known["base"])
    more = (known["fragmentation"] - 1) * activations
    if offloaded:
        return MemoryParts(0.0, 0.0, 0.0, activations, units, base, more)
    level, own = SHARDING.index(conf.sharding), held / conf.shards
    states, gradients, weights = (own if level >= least else held for least in (1, 2, 3))
    return MemoryParts(
        size * weights,
        trained * _gradient_bytes(conf, size) * gradients,
        trained * MASTER_BYTES[size] * states,
        activations,
        _gathered(conf, units, (size + 4) * held),
        base,
        more,
    )


def _gradient_bytes(conf: Configuration, size: int, step_bytes: int = 4) -> int:
    """Bytes of the gradient of a parameter of `size` bytes.

    `step_bytes`: a copy of 16-bit gradients in 32 bits, while the optimizer of DeepSpeed steps.
    With ZeRO 1 it is whole: measured peaks of one model on 8 devices grow by 9 bytes per parameter
    of a stage.
    """
    copied = step_bytes if conf.framework == "megatron-deepspeed" and size == 2 else 0
    return max(size, conf.main_gradients) + copied


def _gathered(conf: Configuration, units: float, whole: float) -> float:
    """Bytes of sharded weights and gradients that a device has at a time: of two units, or with
    stages the whole ones, which stay until the end of the step.
    """
    if conf.sharding != "zero3" or conf.shards == 1:
        return 0.0
    return units if conf.pipeline == 1 else whole


def layer_activations(shape: ModelShape, conf: Configuration, size: int) -> float:
    """Bytes that a layer keeps of a micro-batch without recomputation."""
    t = conf.tensor
    tokens = conf.micro_batch * conf.sequence / conf.context
    low = 1 if conf.precision in ("fp8", "fp4") else size  # what enters a product is kept as it is
    between = 2.0 * tokens * shape.hidden * (size + low) / (t if conf.sequence_parallel else 1)
    keys = 2 * shape.kv_heads * shape.head_dim
    attention = tokens * (shape.attention_width * (size + low) + keys * size) / t
    sparse = shape.sparse_layers / shape.layers
    width = (1 - sparse) * shape.ffn + sparse * (shape.shared_ffn + shape.active * shape.expert_ffn)
    inner = tokens * width * (low + (2 if shape.gated else 1) * size) / t
    attention *= shape.with_attention / shape.layers
    routed = sparse * tokens * shape.active * shape.hidden * (size + low) / t
    kept = 0.0 if conf.recompute != "none" else _scores(shape, conf)
    return between + attention + inner + routed + kept


def _scores(shape: ModelShape, conf: Configuration) -> float:
    """Bytes of a layer's scores, kept where attention is not fused: two results of 16 bits and a
    mask.
    """
    if conf.flash:
        return 0.0
    tokens = conf.micro_batch * conf.sequence / conf.context
    return 5 * tokens * conf.sequence * shape.heads / conf.tensor


def _kept(
    shape: ModelShape,
    conf: Configuration,
    waiting: float,
    layers: int,
    size: int,
    start_bytes: int = 2,
) -> float:
    """Bytes that wait for the backward pass: of `waiting` micro-batches in so many layers.

    `start_bytes`: of a value that recomputation starts from.
    """
    found = waiting * layers * layer_activations(shape, conf, size)
    tokens = conf.micro_batch * conf.sequence / conf.context
    start = tokens * shape.hidden * start_bytes
    start /= conf.tensor if conf.sequence_parallel else 1
    if conf.recompute == "full":
        found = conf.share * waiting * layers * start + (1 - conf.share) * found
    if layers and conf.pipeline > 1 and conf.framework == "megatron-deepspeed":
        found += waiting * start  # its stages keep results that were sent
    return found


def _loss(
    shape: ModelShape, conf: Configuration, usual_bytes: int = 6, shared_bytes: int = 16
) -> float:
    """Bytes of logits and their gradients.

    Parameters
    ----------
    usual_bytes : of a logit in 16 bits and its gradient in 32, where `LOGIT_BYTES` has no others.
    shared_bytes : of PyTorch's loss of logits that tensor ranks share: its backward pass
    (torch/distributed/tensor/parallel/loss.py) holds the logarithms, a gradient, their exponentials
    and the sum of both, each in 32 bits.
    """
    each = LOGIT_BYTES.get(conf.framework, usual_bytes)
    if conf.framework == "fsdp" and conf.tensor > 1:
        each = shared_bytes
    tokens = conf.micro_batch * conf.sequence / conf.context
    return each * tokens * shape.vocab / conf.tensor


def _working(shape: ModelShape, conf: Configuration, size: int) -> float:
    """Bytes that the backward pass of one layer takes beside what is kept.

    What is recomputed of it; what enters a product and its gradient, whole on every tensor rank
    even where ranks share out what lies between (Korthikanti et al., section 4.2.2); and the
    gradients of the feed-forward part's inner values, or of scores before and behind the softmax.
    """
    tokens = conf.micro_batch * conf.sequence / conf.context
    sparse = shape.sparse_layers / shape.layers
    width = (1 - sparse) * shape.ffn + sparse * (shape.shared_ffn + shape.active * shape.expert_ffn)
    inner = tokens * width * (3 if shape.gated else 2) * size / conf.tensor
    scores = _scores(shape, conf)
    again = scores if conf.recompute != "none" else 0.0
    if conf.recompute == "full":
        again += conf.share * layer_activations(shape, conf, size)
    return again + 2 * tokens * shape.hidden * size + max(inner, 4 / 5 * scores)
