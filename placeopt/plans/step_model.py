"""What a training step takes and a device holds, part by part, where no layer of the model was
measured.

A device runs the matrix products of its layers, attention, and work that memory bounds; each
product (m, n, k) takes a launch, its flops at the sustained peak, and its matrices at the memory's
bandwidth (`Calibration`). Python and the driver launch a layer's kernels one by one: a pass takes
the larger of both, rounded off. Collectives run by rings over the link that their group takes:
inside a host, else the ports of those devices of a host that belong to the group. A pipeline of p
stages with v chunks fills in (p - 1) / v micro-batches (Narayanan et al., SC 2021, section 2.2).
Sharded weights (Rajbhandari et al., SC 2020; Zhao et al., VLDB 2023) are gathered beside the
compute, of which what is longer stays in sight. Factors of all parts are fitted
(`results/plans/calibrate.py`).

Bytes are those of the fuller of the first and last stage. Mixed precision keeps 16-bit weights,
gradients, and 12 bytes of 32-bit weights and moments per parameter: 16 bytes with 16-bit gradients,
18 with 32-bit ones. Activations are counted as by Korthikanti et al., MLSys 2023 (their section 4),
with the widths of the feed-forward part; fused attention keeps no scores. A stage of 1F1B keeps as
many micro-batches as stages follow, an interleaved one (p - 1) / v of a stage's more. Beside what
is kept, a device works either on the loss or on one layer's backward pass: the larger of both
counts (`_working`). Masks of dropout are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placeopt.plans.configuration import SHARDING, Configuration
from placeopt.plans.model_shapes import ModelShape, stage_layers

if TYPE_CHECKING:
    from placeopt.instances.clusters.hardware import Gpu
    from placeopt.plans.calibration import Calibration


BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "tf32": 4.0, "fp8": 1.0, "fp4": 0.5}

MEMORY_CONSTANTS = {"base": 2.5e9, "fragmentation": 1.1}
"""Bytes of driver, libraries and communicators, and the allocator's factor of activations; `base F`
is that of a framework F, where peaks were measured."""

MASTER_BYTES = {2: 12, 4: 8}
"""Bytes of 32-bit weights and moments of a parameter of 2 bytes, of moments of one of 4."""

LOGIT_BYTES = {"fsdp": 12, "megatron-deepspeed": 10}
"""PyTorch's own loss keeps a logit and its gradient in 16 and in 32 bits; the one of 2021's
Megatron a logit in 16 bits, in 32 bits, and less the largest one."""


@dataclass(frozen=True)
class StepParts:
    """Seconds of a step.

    Attributes
    ----------
    compute : of the micro-batches on the slowest stage, recomputation and launches included.
    tensor, context, experts : collectives inside layers. transfers : between stages.
    bubble : filling and draining. gradients : what is seen of gradients and sharded weights.
    optimizer : its step. fixed : per step and micro-batch. factor : of the framework and scale.
    """

    compute: float
    tensor: float
    experts: float
    transfers: float
    bubble: float
    gradients: float
    optimizer: float
    fixed: float
    factor: float

    @property
    def total(self) -> float:
        """Seconds of a step."""
        return self.factor * (
            self.compute
            + self.tensor
            + self.experts
            + self.transfers
            + self.bubble
            + self.gradients
            + self.optimizer
            + self.fixed
        )

    def to_json(self) -> dict[str, float]:
        """Return the parts with the factor applied; they add up to the step."""
        return {
            name: self.factor * seconds for name, seconds in vars(self).items() if name != "factor"
        }


def longer(*times: float) -> float:
    """Return the largest time, rounded off: the norm of times with the exponent 4."""
    return sum(time**4.0 for time in times) ** 0.25


def _greater(one: float, other: float) -> float:
    """Return the larger number, element by element where constants are arrays."""
    return (one + other + abs(one - other)) / 2


def _lesser(one: float, other: float) -> float:
    """Return the smaller number, element by element where constants are arrays."""
    return (one + other - abs(one - other)) / 2


def _outside(precision: str) -> str:
    """Return the precision of attention and the head: products of 8 bits or less are in layers."""
    return "bf16" if precision in ("fp8", "fp4") else precision


@dataclass(frozen=True)
class StepModel:
    """Prices of configurations of a model on devices of a kind."""

    shape: ModelShape
    gpu: Gpu
    constants: Calibration

    def parts(self, conf: Configuration) -> StepParts:
        """Return the parts of a step."""
        c, rounds = self.constants, conf.rounds
        layers = math.ceil(self.shape.layers / (conf.pipeline * conf.chunks)) * conf.chunks
        if conf.pipeline == 2 and stage_layers(self.shape.layers, 2 * conf.chunks):
            layers = self.shape.layers // 2  # both devices are ends
        compute, tensor, experts = self._layer(conf)
        head = self._head(conf)
        middle = self.shape.layers / conf.pipeline * (compute + tensor + experts)
        slowest = layers * compute + head
        if shorter_ends(self.shape, conf):  # a layer less, beside the head
            slowest = (layers - 1) * compute + _greater(compute, head)
        transfer = self._transfer(conf)
        sent = rounds * transfer * (2.0 * conf.chunks if conf.pipeline > 1 else 0.0)
        if conf.chunks > 1:  # behind the compute of other chunks
            sent = longer(rounds * slowest, sent) - rounds * slowest
        bubble = (conf.pipeline - 1) / conf.chunks * (middle + 2 * transfer)
        busy = rounds * (slowest + layers * (tensor + experts))
        own = own_parameters(self.shape, conf, self.held(conf))
        optimizer = c["optimizer"] * 34.0 * own / self.gpu.bandwidth
        return StepParts(
            rounds * slowest,
            rounds * layers * tensor,
            rounds * layers * experts,
            sent,
            bubble,
            self._gradients(conf, busy),
            optimizer,
            c["step"] + c["micro_batch"] * rounds,
            self.factor(conf),
        )

    def floor(self, conf: Configuration) -> float:
        """Seconds times devices that no plan of this batch goes below: the compute of its layers,
        of micro-batches so large that launches and weights count nothing, at the least offset.
        """
        large = replace(conf, tensor=1, context=1, expert=1, micro_batch=2**40, recompute="none")
        kinds = [replace(large, framework=name) for name in ("megatron", "fsdp")]
        times = [
            self._layer(kind)[0] * math.exp(self.constants.least_offset(self.shape, kind, self.gpu))
            for kind in kinds
        ]
        return conf.batch * conf.sequence * self.shape.layers / large.tokens * min(times)

    def held(self, conf: Configuration) -> float:
        """Parameters on the fullest device, before states are sharded."""
        shape = self.shape
        layers, each = math.ceil(shape.layers / conf.pipeline), shape.layer_parameters
        ends = shape.embedding_parameters
        if conf.pipeline == 1 and not shape.tied:
            ends *= 2
        if shorter_ends(shape, conf):
            layers, ends = layers - 1, max(each, ends)
        return (layers * each + ends) / conf.tensor + experts_held(shape, conf)

    def product(self, m: float, n: float, k: float, precision: str, groups: float = 1.0) -> float:
        """Seconds of `groups` equal matrix products that one kernel runs; a sum, since a kernel's
        tail and loads do not overlap.
        """
        c, gpu = self.constants, self.gpu
        peak, used = gpu.peak(precision)
        size = BYTES[used]
        flops = 2 * groups * m * n * k / (peak * gpu.share(used)) * c["gemm_flops"]
        if used in ("fp8", "fp4"):
            flops *= c[used]
        moved = c["gemm_out"] * 2 * m * n + c["gemm_in"] * size * (m * k + k * n)
        return c["gemm_launch"] + flops + groups * moved / gpu.bandwidth

    def _thrice(
        self, m: float, n: float, k: float, conf: Configuration, groups: float = 1.0
    ) -> float:
        """Forward passes and the gradients of inputs and weights.

        Inputs and gradients that enter products of 8 bits or less are read in 16 bits and written
        in two layouts, the second for the gradient of the weights.
        """
        c, gpu = self.constants, self.gpu
        found = conf.forwards * self.product(m, n, k, conf.precision, groups)
        found += self.product(m, k, n, conf.precision, groups)
        used = gpu.peak(conf.precision)[1]
        if used in ("fp8", "fp4"):
            each = groups * m * (2 + 2 * BYTES[used])
            found += c["convert"] * each * (conf.forwards * k + n) / gpu.bandwidth
        if conf.adapters:
            return found
        return found + self.product(k, n, m, conf.precision, groups)

    def _layer(self, conf: Configuration) -> tuple[float, float, float]:
        """Seconds of compute, tensor and context collectives, and expert exchange of an average
        layer for one micro-batch, forward and backward.
        """
        shape, t, c, gpu = self.shape, conf.tensor, self.constants, self.gpu
        tokens, forward = conf.tokens, conf.forwards
        sparse = shape.sparse_layers / shape.layers
        attending = shape.with_attention / shape.layers
        width = shape.attention_width
        hidden = shape.hidden
        work = attending * self._thrice(tokens, (width + shape.key_width) / t, hidden, conf)
        work += attending * self._thrice(tokens, hidden, width / t, conf)
        if shape.extra_parameters:
            extra = shape.extra_parameters / shape.layers / hidden
            work += self._thrice(tokens, extra / t, hidden, conf)
            scans = (1 - attending) * (forward + 2) * 16 * tokens * extra / t
            work += c["scan"] * scans / gpu.bandwidth
        gates = 2 if shape.gated else 1
        for part, middle in ((1 - sparse, shape.ffn), (sparse, shape.shared_ffn)):
            if part and middle:
                work += part * self._thrice(tokens, gates * middle / t, hidden, conf)
                work += part * self._thrice(tokens, hidden, middle / t, conf)
        if sparse:
            local = shape.experts / conf.expert  # less than one where ranks share an expert
            each = tokens / t * shape.active * conf.expert / shape.experts
            inside = shape.expert_width
            pair = self._thrice(each, gates * shape.expert_ffn, inside, conf, local)
            pair += self._thrice(each, inside, shape.expert_ffn, conf, local)
            pair += 2 * (forward + 2) * c["each_expert"] * local
            work += sparse * pair * c["expert_products"]
        work += attending * self._attention(conf)
        passes = forward + 2
        between = tokens * hidden / (t if conf.sequence_parallel else 1)
        inner = tokens * (sparse * (shape.active * shape.expert_ffn + shape.shared_ffn) / t)
        inner += tokens * (1 - sparse) * shape.ffn * gates / t
        # tokens are sorted by expert, and back: each read and written once
        routed = tokens * sparse * shape.active * shape.expert_width / t
        moved = 2 * c["elementwise"] * (8 * between + 2 * inner + 4 * routed)
        moved *= c["compiled"] if conf.compiled else 1.0
        work += passes * moved / gpu.bandwidth
        launch = c["launch"] if conf.flash else c["launch_unfused"]
        launch = launch + sparse * c["launch_experts"]
        launches = passes * launch * (1 + c["ranks"] * math.log2(t))
        sums = self._tensor(conf)
        sums += attending * self._context(conf)
        alone = longer(work, launches)
        return (alone, longer(work + sums, launches) - alone, sparse * self._exchange(conf))

    def _attention(self, conf: Configuration) -> float:
        """Scores, softmax and values; fused kernels keep nothing of the scores, others write them.

        The backward pass of fused kernels computes the scores again: 5 products for 2.
        """
        shape, c, gpu = self.shape, self.constants, self.gpu
        peak, used = gpu.peak(_outside(conf.precision))
        once = 4 * conf.tokens * conf.sequence * shape.score_width / conf.tensor
        if conf.flash:
            once *= shape.seen_keys(conf.sequence)
            slow = "fp8" in gpu.peaks and conf.framework not in ("megatron", "jax")
            once *= c["attention"] * (c["attention_portable"] if slow else 1.0)
            once *= c["attention_triton"] if conf.triton else 1.0
            if conf.framework == "fsdp" and shape.causal:
                # PyTorch's ranks have consecutive tokens: the last sees all, the mean one half
                once *= 2 - 1 / conf.context
            return once * (conf.forwards + 2.5) / (peak * gpu.share(used))
        again = conf.forwards + (1 if conf.recompute == "selective" else 0)
        scores = conf.tokens * conf.sequence * shape.heads / conf.tensor * 2
        return (again + 2) * (
            c["attention"] * once / (peak * gpu.share(used))
            + c["scores"] * 8 * scores / gpu.bandwidth
        )

    def _head(self, conf: Configuration) -> float:
        """Logits and loss of the last stage, never recomputed."""
        tokens, vocab = conf.tokens, self.shape.vocab / conf.tensor
        work = 3 * self.product(tokens, vocab, self.shape.hidden, _outside(conf.precision))
        return work + self.constants["logits"] * 20 * tokens * vocab / self.gpu.bandwidth

    def rate(self, stride: int, group: float, per_host: int) -> tuple[float, float]:
        """Return bytes per second of a ring of `group` devices, every `stride`-th one, and its
        latency.
        """
        gpu, c = self.gpu, self.constants
        domain = gpu.joined(per_host)
        if group * stride <= domain:
            return gpu.link_of(group * stride), c["latency"]
        inside = max(1, domain // stride)
        ports = min(inside, group)
        return _lesser(gpu.link, gpu.fabric * ports * c["fabric"]), c["latency"] + 1e-5

    def _ring(self, size: float, stride: int, group: float, per_host: int) -> float:
        """Seconds of an all-reduce; a reduce-scatter or all-gather takes half."""
        if group == 1:
            return 0.0
        rate, latency = self.rate(stride, group, per_host)
        return 2 * (group - 1) / group * size / rate + latency * math.log2(2 * group)

    def _tensor(self, conf: Configuration) -> float:
        """Two sums per pass, of what lies between the parts of a layer."""
        size = 2 * conf.tokens * self.shape.hidden
        sums = 2 * (conf.forwards + 1)
        once = self._ring(size, 1, conf.tensor, conf.per_host)
        c = self.constants
        overlaps = conf.framework == "megatron" and conf.flash
        seen = c["tensor_seen"] if overlaps else c["async_seen"] if conf.async_tensor else 1.0
        return c["tensor"] * seen * sums * once

    def _context(self, conf: Configuration) -> float:
        if conf.context == 1:
            return 0.0
        size = 2 * conf.tokens * conf.context * 2 * self.shape.kv_heads * self.shape.head_dim
        ring = self._ring(size / conf.tensor, conf.tensor, conf.context, conf.per_host)
        return self.constants["context"] * (conf.forwards + 2) * ring / 2

    def _exchange(self, conf: Configuration) -> float:
        """All-to-all before and behind the experts, each pass."""
        if conf.expert == 1:
            return 0.0
        gpu, shape = self.gpu, self.shape
        domain = gpu.joined(conf.per_host)
        hosts = math.ceil(conf.expert / domain)  # expert ranks are neighbours
        # other hosts that a token's experts are expected on; it is sent once to each
        spread = (hosts - 1) * (1 - (1 - 1 / hosts) ** shape.active)
        size = 2 * conf.tokens / conf.tensor * shape.expert_width
        near = size * shape.active * (conf.expert - 1) / conf.expert / gpu.link
        far = size * spread / gpu.fabric
        return self.constants["exchange"] * 2 * (conf.forwards + 1) * longer(near, far)

    def _transfer(self, conf: Configuration) -> float:
        """One activation to the next stage."""
        if conf.pipeline == 1:
            return 0.0
        size = 2 * conf.micro_batch * conf.sequence / conf.context * self.shape.hidden
        inside = conf.devices <= self.gpu.joined(conf.per_host)
        rate = self.gpu.link if inside else self.gpu.fabric
        size /= conf.tensor
        return self.constants["transfer"] * (size / rate + 2 * self.constants["latency"])

    def _gradients(self, conf: Configuration, busy: float) -> float:
        """What is seen of gradient sums, and of gathered weights, beside the compute."""
        c = self.constants
        if conf.ranks == 1 or (conf.adapters and conf.sharding != "zero3"):
            return 0.0
        if conf.sharding == "zero3":
            return self._gathered(conf, busy)
        experts = experts_held(self.shape, conf)
        dense = self.held(conf) - experts
        # gradients that are shared out are summed after every micro-batch
        times = conf.rounds if conf.sharding == "zero2" else 1
        size = float(conf.main_gradients * times)
        size = (size + 2) / 2 if conf.shards > 1 else size
        ring = self._ring(size * dense, conf.tensor, conf.ranks, conf.per_host)
        ring += self._expert_ring(size * experts, conf, conf.ranks)
        ring *= c["overlapped" if conf.framework != "megatron-deepspeed" else "reduce"]
        if conf.framework == "fsdp":
            return ring + 2 * self._hops(conf, conf.shards)
        # its optimizer sends each rank's weights to all others, one by one
        return ring + (c["broadcast"] * conf.shards if conf.framework == "internevo" else 0.0)

    def _gathered(self, conf: Configuration, busy: float) -> float:
        """What is seen of sharded weights, gathered for each pass, and of their gradients."""
        c, group, held = self.constants, conf.shards, self.held(conf)
        experts = experts_held(self.shape, conf)
        gathered = 4  # 2 bytes, for the forward and for the backward pass
        once = 0.5 * self._ring(held - experts, conf.tensor, group, conf.per_host)
        once += 0.5 * self._expert_ring(experts, conf, group)
        each = once * (gathered + (0 if conf.adapters else conf.main_gradients))
        # with stages, weights stay gathered and gradients are summed at the end of the step
        times = conf.rounds if conf.pipeline == 1 else 1
        if group < conf.ranks and not conf.adapters:
            outside = conf.ranks // group
            each += self._ring(2 * held / group, conf.per_host, outside, conf.per_host) / times
        hops = (2 if conf.adapters else 3) * times * self._hops(conf, group)
        if conf.framework.startswith("megatron"):  # measured runs hide none behind compute
            return c["gather"] * times * each + hops
        return longer(busy, c["gather"] * times * each) - busy + c["seen"] * each + hops

    def _expert_ring(self, size: float, conf: Configuration, ranks: int) -> float:
        """Seconds of an all-reduce between the copies of experts among so many ranks."""
        if not self.shape.experts:
            return 0.0
        stride = conf.expert if conf.expert > 1 else conf.tensor
        return self._ring(size, stride, conf.copies_among(ranks), conf.per_host)

    def _hops(self, conf: Configuration, group: int) -> float:
        """What is seen of a ring's way through the hosts, layer by layer."""
        hosts = group * conf.tensor / self.gpu.joined(conf.per_host)
        if hosts <= 1:
            return 0.0
        return self.shape.layers / conf.pipeline * self.constants["hop"] * hosts

    def factor(self, conf: Configuration) -> float:
        """Factor of the framework, precision and devices, and of scale."""
        hosts = max(1.0, conf.devices / conf.per_host)
        scale = 1 + self.constants["scale"] * math.log2(hosts)
        return scale * math.exp(self.constants.offset(self.shape, conf, self.gpu))


def shorter_ends(shape: ModelShape, conf: Configuration) -> bool:
    """Whether the first and the last device have a layer less than those between."""
    sizes = stage_layers(shape.layers, conf.pipeline * conf.chunks)
    return conf.pipeline > 2 and len(set(sizes)) > 1


def experts_held(shape: ModelShape, conf: Configuration) -> float:
    """Return the parameters of experts on the fullest device, which tensor ranks share where
    experts are not spread.
    """
    ranks = conf.expert if conf.expert > 1 else conf.tensor
    sparse = min(shape.sparse_layers, math.ceil(shape.layers / conf.pipeline))
    return shape.expert_parameters * sparse / max(1, shape.sparse_layers) / ranks


def own_parameters(shape: ModelShape, conf: Configuration, held: float) -> float:
    """Return the parameters, of those `held`, whose states are a device's own to keep."""
    experts = experts_held(shape, conf)
    return (held - experts) / conf.shards + experts / conf.expert_shards


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
        return dict(vars(self))


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
    known = MEMORY_CONSTANTS | (constants or {})
    if conf.pipeline == 1:
        return _stage_parts(shape, conf, held, known, offloaded=offloaded)
    p, v = conf.pipeline, conf.chunks
    waiting = min(conf.rounds, p + ((p - 1) / v if v > 1 else 0.0))
    first = _stage_parts(shape, conf, held, known, waiting, logits=False)
    # 1F1B's last stage keeps one micro-batch, an interleaved one the chunks before its last
    last = _stage_parts(shape, conf, held, known, ((v - 1) * min(conf.rounds, p) + 1) / v)
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
    size = 4 if conf.precision in ("fp32", "tf32") else 2
    trained = 0.01 if conf.adapters else 1.0
    layers = math.ceil(shape.layers / conf.pipeline)
    one_layer = held / max(1.0, layers)
    kept = _kept(shape, conf, waiting, 0 if offloaded else layers, size)
    loss = _loss(shape, conf) if logits else 0.0
    activations = kept + max(loss, _working(shape, conf, size))
    # of two units the weights, of one the gradients, which are summed from another copy
    units = (3 * size + max(size, conf.main_gradients)) * one_layer
    base = constants.get(f"base {conf.framework}", constants["base"])
    more = (constants["fragmentation"] - 1) * activations
    if offloaded:
        return MemoryParts(0.0, 0.0, 0.0, activations, units, base, more)
    level, own = SHARDING.index(conf.sharding), own_parameters(shape, conf, held)
    states, gradients, weights = (own if level >= least else held for least in (1, 2, 3))
    return MemoryParts(
        size * weights,
        trained * _gradient_bytes(conf, size) * gradients,
        trained * (4 if conf.short_states else MASTER_BYTES[size]) * states,
        activations,
        _gathered(conf, units, (size + 4) * held),
        base,
        more,
    )


def _gradient_bytes(conf: Configuration, size: int) -> int:
    """Bytes of the gradient of a parameter of `size` bytes.

    Beside is a copy of 16-bit gradients in 32 bits, while the optimizer of DeepSpeed steps.
    With ZeRO 1 it is whole: measured peaks of one model on 8 devices grow by 9 bytes per parameter
    of a stage.
    """
    copied = 4 if conf.framework == "megatron-deepspeed" and size == 2 else 0
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
    t, tokens = conf.tensor, conf.tokens
    low = 1 if conf.precision in ("fp8", "fp4") else size  # what enters a product is kept as it is
    between = 2.0 * tokens * shape.hidden * (size + low) / (t if conf.sequence_parallel else 1)
    attention = tokens * (shape.attention_width * (size + low) + shape.key_width * size) / t
    inner = tokens * shape.inner_width * (low + (2 if shape.gated else 1) * size) / t
    attention *= shape.with_attention / shape.layers
    sparse = shape.sparse_layers / shape.layers
    routed = sparse * tokens * shape.active * shape.hidden * (size + low) / t
    kept = 0.0 if conf.recompute != "none" else _scores(shape, conf)
    return between + attention + inner + routed + kept


def _scores(shape: ModelShape, conf: Configuration) -> float:
    """Bytes of a layer's scores, kept where attention is not fused: two results of 16 bits and a
    mask.
    """
    if conf.flash:
        return 0.0
    return 5 * conf.tokens * conf.sequence * shape.heads / conf.tensor


def _kept(shape: ModelShape, conf: Configuration, waiting: float, layers: int, size: int) -> float:
    """Bytes that wait for the backward pass: of `waiting` micro-batches in so many layers."""
    found = waiting * layers * layer_activations(shape, conf, size)
    start = conf.tokens * shape.hidden * 2  # recomputation starts from 16-bit values
    start /= conf.tensor if conf.sequence_parallel else 1
    if conf.recompute == "full":
        found = conf.share * waiting * layers * start + (1 - conf.share) * found
    if layers and conf.pipeline > 1 and conf.framework == "megatron-deepspeed":
        found += waiting * start  # its stages keep results that were sent
    return found


def _loss(shape: ModelShape, conf: Configuration) -> float:
    """Bytes of logits and their gradients.

    A logit takes 16 bits and its gradient 32, where `LOGIT_BYTES` has no others. The backward pass
    of PyTorch's loss of logits that tensor ranks share (torch/distributed/tensor/parallel/loss.py)
    holds the logarithms, a gradient, their exponentials and the sum of both, each in 32 bits.
    """
    each = LOGIT_BYTES.get(conf.framework, 6)
    if conf.framework == "fsdp" and conf.tensor > 1:
        each = 16
    return each * conf.tokens * shape.vocab / conf.tensor


def _working(shape: ModelShape, conf: Configuration, size: int) -> float:
    """Bytes that the backward pass of one layer takes beside what is kept.

    What is recomputed of it; what enters a product and its gradient, whole on every tensor rank
    even where ranks share out what lies between (Korthikanti et al., section 4.2.2); and the
    gradients of the feed-forward part's inner values, or of scores before and behind the softmax.
    """
    inner = conf.tokens * shape.inner_width * (3 if shape.gated else 2) * size / conf.tensor
    scores = _scores(shape, conf)
    again = scores if conf.recompute != "none" else 0.0
    if conf.recompute == "full":
        again += conf.share * layer_activations(shape, conf, size)
    return again + 2 * conf.tokens * shape.hidden * size + max(inner, 4 / 5 * scores)
