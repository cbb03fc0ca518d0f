"""Plans of a transformer on many equal devices, as launchers know them: all of them priced.

The space is that of today's launchers: tensor parallelism inside a host, equal pipeline stages,
interleaved or not, data parallelism with whole or sharded states, context and expert parallelism,
three kinds of recomputation. Plans use all devices or fewer whole hosts, and divide the batch.
Every plan of it that fits into memory is priced, from the most devices down to where the layers'
compute alone takes longer, so that the least price is a bound over the space, under the cost model.
"""

from __future__ import annotations

import math
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.instances.clusters.hardware import Gpu, find_gpu
from placeopt.model.errors import InputError
from placeopt.plans.configuration import RECOMPUTE, Configuration
from placeopt.plans.model_config import config_shape
from placeopt.plans.model_shapes import ModelShape, named_shape, shape_of, stage_layers
from placeopt.plans.step_model import MemoryParts, StepModel, StepParts, memory_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from placeopt.plans.calibration import Calibration

GIB = 2**30

SEARCHED = (
    "searched: tensor ranks of powers of two to 16 that divide a host and context ranks of powers "
    "of two to 16 with at least 2048 tokens each, both of which share heads, columns and tokens "
    "out evenly, expert ranks of powers of two to 64 among the data-parallel ones, equal stages "
    "(or a layer less in the first and the last), 1F1B and, where stages divide the micro-batches, "
    "interleaved with 2, 3, 4, 5, 6, 8 or 10 stages a device, micro-batches of 1, 2, 4, 8, 16 or "
    "32, recomputation none, selective or full, ZeRO 1 or whole states with stages, ZeRO 2 and 3 "
    "(FSDP, also within a host) without; all devices or fewer whole hosts, batch divided evenly; "
    "beside, the degrees and the micro-batch that are given"
)
NOT_SEARCHED = (
    "not searched: other uneven stages, zero-bubble schedules, offloading, tensor parallelism over "
    "hosts, unlike replicas"
)


@dataclass(frozen=True)
class Machine:
    """Equal devices in equal hosts.

    Attributes
    ----------
    said : what was assumed of them.
    """

    gpu: Gpu
    devices: int
    per_host: int
    said: str


def read_machine(text: str, fabric: float | None = None) -> Machine | None:
    """Return the devices of `384xA100-80` or `32x8xH100`, None for another kind of cluster.

    `384x...` fills hosts of the size they are sold in; `fabric` is a device's port in bytes per
    second. A price is not used; with other options it is another kind.
    """
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)x([A-Za-z][\w.-]*)(?:\?price=[^&]*)?", text)
    if not match:
        return None
    gpu, unknown = find_gpu(match.group(3))
    if unknown:
        return None
    hosts, count = match.group(1), int(match.group(2))
    per_host = count if hosts or count < gpu.per_host else gpu.per_host
    devices = count * int(hosts or 1)
    if devices < 1:
        raise InputError(f"--cluster: expected at least one device, received '{text}'")
    said = "" if hosts or count <= per_host else f"hosts of {per_host}"
    return Machine(replace(gpu, fabric=fabric) if fabric else gpu, devices, per_host, said)


def read_shape(model: Any) -> ModelShape | None:
    """Return the shape that a name or a file means, None if it is no transformer that is known so.

    A `config.json` of Hugging Face, or a folder with one, says the shape of its model;
    `gen:NAME` without options, and `ORGANISATION/NAME`, is the public model of that name;
    `layers=72,hidden=14336,heads=112` (also kv_heads, ffn, vocab, gated, experts, active,
    expert_ffn) is one of the user's own.
    """
    if not isinstance(model, str) or "?" in model:
        return None
    if Path(model).exists():
        return config_shape(model)
    if re.search(r"\.(onnx|pt2|xml|json|csv|dot|txt|py)$", model):  # a file that is not there
        return None
    if "layers=" in model:
        return _own_shape(model)
    name = model.removeprefix("gen:")
    if model.startswith("gen:") and not re.search(r"\d+b$", name):
        return None
    return named_shape(name)


def _own_shape(text: str) -> ModelShape:
    known = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gated", "experts", "active")
    values: dict[str, Any] = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        if name not in (*known, "expert_ffn", "head_dim") or not value.isdecimal():
            raise InputError(
                f"model '{text}': expected layers=L,hidden=H and any of {', '.join(known[2:])}, "
                f"expert_ffn, received '{item}'"
            )
        values[name] = int(value)
    if not values.get("layers") or not values.get("hidden"):
        raise InputError(f"model '{text}': expected layers and hidden of at least 1")
    shape = shape_of(text, **values)
    if not shape.experts:
        return shape
    if not 1 <= shape.active <= shape.experts:
        raise InputError(f"model '{text}': expected active of 1 to {shape.experts} experts")
    return replace(shape, expert_ffn=shape.expert_ffn or shape.ffn)


@dataclass(frozen=True)
class Priced:
    """A plan with its time and memory."""

    conf: Configuration
    parts: StepParts
    memory: MemoryParts

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.parts.total


DEGREES = (1, 2, 4, 8, 16)
"""Tensor and context degrees that are searched; `SEARCHED` says in words which plans are."""

EXPERT_DEGREES = (*DEGREES, 32, 64)
MICRO_BATCHES = (*DEGREES, 32)
"""Samples of a micro-batch."""

CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10)
"""Stages of a device."""

LEAST_SLICE = 2048
"""Tokens of a sequence that a rank of context parallelism has at least."""

FILLED = 0.95
"""Part of a device's memory that a plan may fill: peaks are predicted to a tenth only."""


@dataclass(frozen=True)
class LaunchProblem:
    """A model, devices, a batch, and what is fixed.

    Attributes
    ----------
    fixed : fields of a Configuration that are given.
    memory_limit : bytes that a plan may use on a device, instead of the usable share of its memory.
    """

    shape: ModelShape
    machine: Machine
    batch: int
    sequence: int
    constants: Calibration
    precision: str = "bf16"
    recompute: bool = True
    fixed: dict[str, Any] = field(default_factory=dict)
    memory_limit: int | None = None

    @property
    def model(self) -> StepModel:
        """Prices of its plans."""
        return StepModel(self.shape, self.machine.gpu, self.constants)

    @property
    def limit(self) -> float:
        """Bytes that a plan may use on a device."""
        if self.memory_limit is not None:
            return float(self.memory_limit)
        return FILLED * self.machine.gpu.memory

    def memory(self, conf: Configuration) -> MemoryParts:
        """Return the memory of a plan."""
        return memory_parts(self.shape, conf, self.model.held(conf), self.constants.memory)

    def price(self, conf: Configuration) -> Priced:
        """Return a plan with its price."""
        return Priced(conf, self.model.parts(conf), self.memory(conf))

    def configurations(self, devices: int) -> Iterator[Configuration]:
        """Yield every plan of the space on so many devices, whether it fits or not."""
        base = Configuration(
            self.sequence,
            self.batch,
            per_host=min(self.machine.per_host, devices),
            precision=self.precision,
            flash=self.machine.gpu.fuses_attention,
        )
        tensors = [t for t in self._tensor_degrees() if self._fills_hosts(t, devices)]
        for tensor, context in product(tensors, self._context_degrees()):
            for pipeline in self._stage_counts(devices // tensor // context):
                data, rest = divmod(devices, tensor * context * pipeline)
                if rest == 0 and self.batch % data == 0:
                    outer = replace(
                        base, tensor=tensor, context=context, pipeline=pipeline, data=data
                    )
                    yield from self._inner(outer)

    def _fills_hosts(self, tensor: int, devices: int) -> bool:
        """Whether no tensor ranks of a plan on so many devices spread over two hosts, or their
        degree is given.
        """
        per_host = min(self.machine.per_host, devices)
        return per_host % tensor == 0 or self.fixed.get("tensor") == tensor

    def _launchable(self, conf: Configuration) -> bool:
        """Whether ranks share a plan out evenly, or it has the tensor and context degrees that are
        given.
        """
        given = {"tensor", "context"} & self.fixed.keys()
        if given and all(getattr(conf, key) == self.fixed[key] for key in given):
            return True
        return not any(broken for broken, _ in uneven(self.shape, conf))

    def _stage_counts(self, most: int) -> list[int]:
        layers = self.shape.layers
        return [p for p in range(1, min(layers, most) + 1) if stage_layers(layers, p)]

    def _and_given(self, name: str, searched: Iterable[int]) -> list[int]:
        """Return what is searched and what is given: a user's own plan is priced, too."""
        return sorted({*searched, *([self.fixed[name]] if name in self.fixed else [])})

    def _tensor_degrees(self) -> list[int]:
        searched = (t for t in DEGREES if t <= self.machine.per_host)
        return [t for t in self._and_given("tensor", searched) if self.shape.heads % t == 0]

    def _context_degrees(self) -> list[int]:
        searched = (c for c in DEGREES if c <= max(1, self.sequence // LEAST_SLICE))
        return [c for c in self._and_given("context", searched) if c <= self.sequence]

    def _inner(self, outer: Configuration) -> Iterator[Configuration]:
        """Yield the choices below the degrees."""
        each, experts = self.batch // outer.data, self._expert_degrees(outer.ranks)
        choices = (
            [e for e in experts if self._launchable(replace(outer, expert=e))],
            self._shardings(outer),
            RECOMPUTE if self.recompute else RECOMPUTE[:1],
        )
        for micro in self._and_given("micro_batch", MICRO_BATCHES):
            if each % micro:
                continue
            for chunks in self._chunk_counts(outer.pipeline, each // micro):
                for expert, (sharding, group), recompute in product(*choices):
                    yield replace(
                        outer,
                        micro_batch=micro,
                        chunks=chunks,
                        expert=expert,
                        sharding=sharding,
                        shard_group=group,
                        recompute=recompute,
                        main_gradients=2 if sharding == "zero3" else 4,
                        framework="fsdp" if sharding == "zero3" else "megatron",
                    )

    def _chunk_counts(self, pipeline: int, rounds: int) -> list[int]:
        if pipeline == 1 or rounds % pipeline:
            return [1]
        layers = self.shape.layers
        return [c for c in CHUNKS if c == 1 or stage_layers(layers, pipeline * c)]

    def _expert_degrees(self, ranks: int) -> list[int]:
        experts = self.shape.experts
        if not experts:
            return [1]
        degrees = self._and_given("expert", EXPERT_DEGREES)
        return [e for e in degrees if experts % e == 0 and ranks % e == 0]

    def _shardings(self, outer: Configuration) -> list[tuple[str, int]]:
        if outer.ranks == 1:
            return [("none", 0)]
        found = [("none", 0), ("zero1", 0)]
        if outer.pipeline == 1:
            found += [("zero2", 0), ("zero3", 0)]
            near = max(1, outer.per_host // outer.tensor)
            if 1 < near < outer.ranks and outer.ranks % near == 0:
                found.append(("zero3", near))
        return found

    def device_counts(self) -> list[int]:
        """Return the counts of devices, in whole hosts beyond one, that some plan with what is
        fixed may use; the largest first.
        """
        most, per_host, fixed = self.machine.devices, self.machine.per_host, self.fixed
        micro, expert = fixed.get("micro_batch", 1), fixed.get("expert", 1)
        counts = {
            data * context
            for data, context in product(_divisors(self.batch, most), self._context_degrees())
            if fixed.get("data", data) == data and fixed.get("context", context) == context
            if self.batch // data % micro == 0 and expert in self._expert_degrees(data * context)
        }
        inner = {"pipeline": self._stage_counts(most), "tensor": self._tensor_degrees()}
        for name, degrees in inner.items():
            kept = [degree for degree in degrees if fixed.get(name, degree) == degree]
            counts = {
                n * degree
                for n, degree in product(counts, kept)
                if n * degree <= most
                and (name == "pipeline" or self._fills_hosts(degree, n * degree))
            }
        if not {"tensor", "pipeline", "data"} <= fixed.keys():
            counts = {n for n in counts if n <= per_host or n == most or n % per_host == 0}
        return sorted(counts, reverse=True)

    def allowed(self, conf: Configuration) -> bool:
        """Whether a plan has what is fixed."""
        return all(getattr(conf, name) == value for name, value in self.fixed.items())


def uneven(shape: ModelShape, conf: Configuration) -> Iterator[tuple[bool, str]]:
    """Yield what tensor and context ranks may have to share out unevenly: whether they do, and what
    launchers say of it.
    """
    # heads make their keys and values from latents that every rank has
    widths = {"key-value heads": shape.heads if shape.latent else shape.kv_heads}
    widths |= {"feed-forward columns": shape.ffn, "shared experts' columns": shape.shared_ffn}
    widths["experts' columns"] = shape.expert_ffn if conf.expert == 1 else 0
    for what, width in widths.items():
        yield (
            width % conf.tensor > 0,
            f"its tensor ranks share out evenly; the plan has {conf.tensor} for {width} {what}",
        )
    # context ranks have two slices each, one from either end
    slices = 2 * conf.context if conf.context > 1 else 1
    yield (
        conf.sequence % math.lcm(slices, conf.context * conf.tensor) > 0,
        f"its ranks share a sequence out evenly; the plan has {conf.context} x {conf.tensor} for "
        f"{conf.sequence} tokens",
    )


@dataclass(frozen=True)
class LaunchAnswer:
    """What was found.

    Attributes
    ----------
    given : the plan with what was fixed, where something was.
    others : the best plans that differ in one choice, by what differs. looked : plans looked at.
    leanest : the plan with the least memory. fits : plans that fit.
    complete : whether all plans of the space were looked at. fitting : those that fit on as many
    devices as the best, fastest first.
    """

    problem: LaunchProblem
    given: Priced | None
    others: dict[str, Priced]
    looked: int
    leanest: Priced | None
    fits: int
    complete: bool
    runtime: float
    fitting: tuple[Priced, ...]

    @property
    def best(self) -> Priced | None:
        """The fastest plan, None if nothing fits."""
        return self.fitting[0] if self.fitting else None

    @property
    def left(self) -> int:
        """Devices without work."""
        shown = self.given or self.best or self.leanest
        return self.problem.machine.devices - (shown.conf.devices if shown else 0)

    @property
    def why_left(self) -> str:
        """Why the best plan leaves devices without work, "" where not all plans were looked at."""
        problem, count = self.problem, self.problem.machine.devices
        if self.given or not (self.left and self.complete):
            return ""
        if count in problem.device_counts():
            return "no plan with them is faster"
        return (
            f"no plan on all {count} divides a batch of {problem.batch} and "
            f"{problem.shape.layers} layers evenly"
        )

    @property
    def lower_bound(self) -> float:
        """Seconds that no plan of the space goes below, 0 if some were not looked at."""
        return self.fitting[0].seconds if self.fitting and self.complete else 0.0


def search(problem: LaunchProblem, seconds: float = 10.0) -> LaunchAnswer:
    """Price all plans of a problem that fit; see the module.

    Raises
    ------
    InputError
        If no plan can be launched on these devices with this batch at all.
    """
    start, answer, seen = time.perf_counter(), None, set()
    for devices in problem.device_counts():
        if answer and (not answer.complete or _beats(answer, devices)):
            break
        if any(map(problem.allowed, problem.configurations(devices))):
            found = _search(problem, devices, start, seconds)
            answer = found if answer is None else _joined(answer, found)
            seen.add(devices)
    if answer is None:
        raise InputError(f"plan: {_refusal(problem)}")
    free = replace(problem, fixed={})
    # the best plan may use other devices than what is fixed
    for devices in free.device_counts() if problem.fixed else ():
        if not answer.complete or _beats(replace(answer, problem=free), devices):
            break
        if devices not in seen:
            answer = _joined(answer, _search(problem, devices, start, seconds))
    return replace(answer, runtime=time.perf_counter() - start)


def _beats(answer: LaunchAnswer, devices: int) -> bool:
    """Whether no plan on so many devices is faster than what was found, and fits."""
    problem = answer.problem
    found = answer.given if problem.fixed else answer.best
    if found is None or found.memory.total > problem.limit:
        return False
    return problem.model.floor(found.conf) / devices >= found.seconds


def _joined(one: LaunchAnswer, other: LaunchAnswer) -> LaunchAnswer:
    """Return the answer over the plans of two."""
    limit = one.problem.limit

    def order(priced: Priced) -> tuple[float, float]:
        over = priced.memory.total > limit
        return (priced.memory.total, 0.0) if over else (0.0, priced.seconds)

    def least(name: str, key: Any) -> Priced | None:
        known = (getattr(answer, name) for answer in (one, other))
        return min((priced for priced in known if priced), key=key, default=None)

    return replace(
        min((one, other), key=lambda answer: answer.best.seconds if answer.best else math.inf),
        given=least("given", order),
        leanest=least("leanest", lambda priced: priced.memory.total),
        looked=one.looked + other.looked,
        fits=one.fits + other.fits,
        complete=other.complete,
    )


def _refusal(problem: LaunchProblem) -> str:
    """Say which of the degrees that are fixed no plan has, or that they do not go together."""
    shape, fixed, batch, devices = problem.shape, problem.fixed, problem.batch, problem.machine
    names = ("tensor", "pipeline", "data", "context", "expert", "micro_batch")
    tensor, pipeline, data, context, expert, micro = (fixed.get(name, 1) for name in names)
    needed = tensor * pipeline * data * context
    rules = (
        (shape.heads % tensor, f"tensor {tensor} does not divide {shape.heads} heads"),
        (
            not stage_layers(shape.layers, pipeline),
            f"pipeline {pipeline} makes no equal stages of {shape.layers} layers, nor with a layer "
            "less in the first and the last; other uneven stages are not priced",
        ),
        (context > problem.sequence, f"context {context} is more than {problem.sequence} tokens"),
        (
            expert > 1 and (shape.experts == 0 or shape.experts % expert),
            f"expert {expert} does not divide {shape.experts} experts",
        ),
        (batch % data, f"data {data} does not divide a batch of {batch}"),
        (
            batch % (data * micro),
            f"micro-batch {micro} does not divide the {batch // data} samples of a replica",
        ),
        (needed > devices.devices, f"these degrees need {needed} devices of {devices.devices}"),
    )
    given = ", ".join(f"{key} {value}" for key, value in fixed.items())
    other = (
        f"no plan on {devices.devices} devices divides a batch of {batch} and {shape.layers} "
        f"layers evenly{f' with {given}' if given else ''}; change the batch or the degrees"
    )
    return next((said for broken, said in rules if broken), other)


def _divisors(number: int, most: int) -> list[int]:
    """Return the divisors of a number, of those larger than `most` not all."""
    small = [n for n in range(1, min(math.isqrt(number), most) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _search(problem: LaunchProblem, devices: int, start: float, seconds: float) -> LaunchAnswer:
    """Return the answer of the plans on so many devices, up to an interrupt."""
    found: list[Priced] = []
    leanest: tuple[float, Configuration] | None = None
    looked, in_time, ended = 0, True, False
    with suppress(KeyboardInterrupt):
        for conf in problem.configurations(devices):
            looked += 1
            allowed = problem.allowed(conf)
            if looked % 256 == 0:
                in_time = in_time and time.perf_counter() - start <= seconds
            if not (in_time or problem.fixed):
                break
            if not (in_time or allowed):
                continue
            memory = problem.memory(conf)
            if allowed and (leanest is None or memory.total < leanest[0]):
                leanest = memory.total, conf
            if memory.total <= problem.limit:
                found.append(Priced(conf, problem.model.parts(conf), memory))
        ended = True
    found.sort(key=lambda priced: priced.seconds)
    lean = None if leanest is None else problem.price(leanest[1])
    return LaunchAnswer(
        problem,
        _given(problem, found, lean),
        _others(found),
        looked,
        lean,
        len(found),
        in_time and ended,
        0.0,
        tuple(found),
    )


def _given(problem: LaunchProblem, found: list[Priced], leanest: Priced | None) -> Priced | None:
    """Return the fastest plan with what is fixed, the leanest if none fits, None if nothing is."""
    if not problem.fixed:
        return None
    return next((priced for priced in found if problem.allowed(priced.conf)), leanest)


CHOICES = {
    "tensor": "another tensor degree",
    "pipeline": "another number of stages",
    "micro_batch": "another micro-batch",
    "recompute": "another recomputation",
    "sharding": "another sharding of states",
    "chunks": "another schedule",
}


def _others(found: list[Priced]) -> dict[str, Priced]:
    """Return the best plan that differs from the best in each choice."""
    others = {}
    for name, what in CHOICES.items():
        for priced in found[1:]:
            if getattr(priced.conf, name) != getattr(found[0].conf, name):
                others[what] = priced
                break
    return others


def why(mine: StepParts, theirs: StepParts) -> str:
    """Say which part makes another plan longer."""
    ours, other = (
        {WORDS[name]: seconds for name, seconds in parts.to_json().items()}
        for parts in (mine, theirs)
    )
    return slower_by(ours, other, mine.total, theirs.total, digits=1)


def slower_by(
    ours: Mapping[str, float],
    other: Mapping[str, float],
    mine: float,
    theirs: float,
    digits: int = 2,
) -> str:
    """Say by how much of a step of mine another one is slower, and by which of its parts."""
    if theirs <= mine:
        return "it takes as long"
    name = max(ours, key=lambda key: other[key] - ours[key])
    slower, share = (100 * part / mine for part in (theirs - mine, other[name] - ours[name]))
    return f"{slower:.{digits}f} % slower: {name} costs {share:.{digits}f} % of a step more"


WORDS = {
    "compute": "compute",
    "tensor": "summing over tensor ranks",
    "experts": "exchange between experts",
    "transfers": "transfers between stages",
    "bubble": "filling and draining",
    "gradients": "gradients and gathered weights",
    "optimizer": "the optimizer",
    "fixed": "overhead of micro-batches",
}


def missing(answer: LaunchAnswer) -> str:
    """Say how much memory the leanest plan lacks, where, and what would help."""
    problem, lean = answer.problem, answer.leanest
    if lean is None:
        return "no plan was looked at in time"
    nothing = "nothing" if answer.complete else "nothing that was looked at in time"
    lacks = (lean.memory.total - problem.limit) / GIB
    parts = lean.memory.to_json()
    largest = sorted(parts, key=lambda key: -parts[key])[:2]
    where = " and ".join(f"{name} {parts[name] / GIB:.1f} GiB" for name in largest)
    state = parts["weights"] + parts["gradients"] + parts["optimizer"]
    more = -(-state // max(1.0, problem.limit - (lean.memory.total - state)))
    helps = (
        f"about {max(2, int(more))} times as many devices to share states out"
        if state > lean.memory.total / 2 and more > 1
        else "a shorter sequence, more context parallelism or more devices"
    )
    return (
        f"{nothing} fits: the leanest plan ({lean.conf.text()}) needs "
        f"{lean.memory.total / GIB:.1f} GiB a device, {lacks:.1f} GiB more than the "
        f"{problem.limit / GIB:.1f} GiB of a {problem.machine.gpu.name}; most is {where}; "
        f"what would help: {helps}"
    )
