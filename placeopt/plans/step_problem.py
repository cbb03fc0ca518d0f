"""StepPlanProblem: stages of consecutive layers on devices of some kinds, time of a training step.

Every stage has the same data degree D, so that n = ceil(batch / (micro-batch D)) micro-batches pass
each replica. The replicas of a stage are of one kind or, where `mixed` allows it, of two kinds in
shares of quarters; a replica spreads over one tensor degree per kind, inside a host. The schedule
is one of `schedules`, which says what a stage keeps in flight; interleaved ones have like replicas
on all devices. The cost model prices the rest.

Devices may be written as text, for cost files that bring their own kinds:
`32xA100-40+96xV100-16@us-west1-b?price=2.5`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

from placeopt.model.arrays import UNLIMITED, Ints
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.shown import Shown
from placeopt.plans.layer_tables import device_kind
from placeopt.plans.plan import FORMS
from placeopt.plans.step_costs import TICK_SECONDS, StepCosts
from placeopt.plans.step_schedules import parse_schedule

GIB = 2**30
MOST_DEVICES = 10**6
"""Devices of a kind, at most."""
MOST_SAMPLES = 10**15
"""Samples of a batch, and stages of a plan, at most."""

KNOWN: dict[str, tuple[int, int]] = {
    # kind: GiB of a device, devices of a host; from the vendors' datasheets and the published
    # clusters
    "A100-40": (40, 4),
    "A100-80": (80, 4),
    "V100-16": (16, 4),
    "GH-96": (96, 4),
    "Titan-RTX": (24, 8),
    "RTX-2080": (11, 8),
    "RTX-3090": (24, 8),
}

OPTIONS = ("memory", "per_host", "price")
"""Kinds of devices, and options, of pools that are written as text."""


@dataclass(frozen=True)
class DevicePool:
    """Devices of one kind.

    Attributes
    ----------
    kind : as in the cost model. count : devices. per_host : devices of a host, which limits the
    tensor degree.
    memory : bytes of a device. price : of a device per hour.
    """

    kind: str
    count: int
    per_host: int
    memory: int
    price: float = 0.0

    def __post_init__(self) -> None:
        counts = 0 <= self.count <= MOST_DEVICES and self.per_host >= 1
        if not (counts and 0 <= self.memory <= UNLIMITED and 0 <= self.price < float("inf")):
            raise InputError(
                f"devices '{self.kind}': expected a count of 0 to {MOST_DEVICES}, at least 1 per "
                "host, memory of 0 to 2^62 bytes and a price of at least 0, received "
                f"{self.count}, {self.per_host}, {self.memory} and {self.price}"
            )


Pools = tuple[DevicePool, ...]
"""Devices of each kind."""


@dataclass(frozen=True, eq=False, repr=False)
class StepPlanProblem(Shown):
    """A cost model, devices and a batch; see the module.

    Attributes
    ----------
    pools : one per kind of device. batch : samples of a step.
    micro_batches, data_degrees : sizes to choose from; by default those that the costs know, and
    all.
    max_stages : most stages of a plan. recompute : whether stages may be recomputed. mixed :
    whether a stage may have
        replicas of two kinds, which multiplies the work of a search.
    schedules : names to choose from, see `placeopt.plans.step_schedules`. sharded : whether the
    replicas of a stage may
        share the optimizer's states out among themselves.
    forms : further ways to split layers to choose from (`placeopt.plans.plan.FORMS`), for stages
    with replicas of one kind.
    """

    problem_kind: ClassVar[str] = "plan"
    objective: ClassVar[str] = "step-time"

    costs: StepCosts
    pools: Pools
    batch: int
    micro_batches: tuple[int, ...] = ()
    data_degrees: tuple[int, ...] = ()
    max_stages: int = 32
    recompute: bool = False
    mixed: bool = False
    schedules: tuple[str, ...] = ("1f1b",)
    sharded: bool = False
    name: str = "plan"
    tick_seconds: float = TICK_SECONDS
    forms: tuple[str, ...] = ()

    def shown(self) -> dict[str, str]:
        """Return the model and devices, and the batch."""
        return {"": f"'{self.name}'", "batch": f"{self.batch} samples"}

    def __post_init__(self) -> None:
        sizes = min(self.batch, self.max_stages) >= 1 and self.tick_seconds > 0
        sizes = sizes and max(self.batch, self.max_stages) <= MOST_SAMPLES
        if not sizes or not self.pools:
            raise self._wrong(
                "expected a batch, stages (at most 1e15), devices and ticks, received a batch of "
                f"{self.batch}, {self.max_stages} stages, {len(self.pools)} kinds of devices and "
                f"{self.tick_seconds:g} s"
            )
        self._check_pools()
        for form in self.forms:
            if form not in FORMS:
                raise self._wrong(
                    f"expected ways to split layers among {', '.join(FORMS)}, received '{form}'"
                )
        self._check_schedules()
        self._choose_sizes()

    def _wrong(self, what: str) -> InputError:
        return InputError(f"plan '{self.name}': {what}")

    def _check_pools(self) -> None:
        kinds = [pool.kind for pool in self.pools]
        if len(set(kinds)) < len(kinds):
            raise self._wrong(f"expected one pool of devices per kind, received {', '.join(kinds)}")
        for pool in self.pools:
            if not self.degrees(pool):
                raise self._wrong(
                    f"the cost model knows no times on '{pool.kind}' with up to {pool.per_host} "
                    "devices per host"
                )

    def _check_schedules(self) -> None:
        schedules = {parse_schedule(name).name: parse_schedule(name) for name in self.schedules}
        object.__setattr__(self, "schedules", tuple(schedules))
        if not schedules:
            raise self._wrong("expected a schedule, received none")
        model = f"the cost model '{self.costs.name}'"
        if self.sharded and not self.costs.shards_states:
            raise self._wrong(f"{model} knows no sharded optimizer states")
        splits = any(schedule.splits_backward for schedule in schedules.values())
        if splits and not self.costs.splits_backward:
            raise self._wrong(
                f"{model} does not tell the gradients of weights apart, which zero-bubble "
                "schedules move"
            )

    def _choose_sizes(self) -> None:
        """Check the micro-batches; where none or no data degrees are given, all are taken."""
        known = self.costs.micro_batches(tuple(pool.kind for pool in self.pools))
        for size in self.micro_batches:
            if size not in known:
                raise self._wrong(f"micro-batch {size}: the cost model knows {list(known)}")
        sizes = self.micro_batches or tuple(size for size in known if size <= self.batch)
        if not sizes:
            raise self._wrong(
                "expected a batch of at least a micro-batch that the cost model knows, "
                f"{list(known)}, received {self.batch}"
            )
        object.__setattr__(self, "micro_batches", sizes)
        most = min(sum(pool.count for pool in self.pools), self.batch)
        degrees = self.data_degrees or tuple(range(1, most + 1))
        if min(degrees, default=0) < 1:
            raise self._wrong(
                f"expected devices, and data degrees of at least 1, received {list(degrees)[:8]}"
            )
        object.__setattr__(self, "data_degrees", degrees)

    @property
    def space(self) -> tuple[str, ...]:
        """What a bound is over, in words."""
        kinds = ", ".join(f"{pool.count} {pool.kind}" for pool in self.pools)
        data, widths = sorted(self.data_degrees), {t for p in self.pools for t in self.degrees(p)}
        every = len(data) > 2 and data == list(range(data[0], data[-1] + 1))
        two = " or of two, in their order, in shares of quarters" if self.shares_stages else ""
        return (
            f"at most {self.max_stages} stages of consecutive layers on {kinds}, one data degree "
            f"of {f'{data[0]}..{data[-1]}' if every else _listed(data)} for all, micro-batches of "
            f"{_listed(self.micro_batches)}",
            f"replicas of a stage of one kind{two}, each with a tensor degree of "
            f"{_listed(sorted(widths))} inside a host",
            f"schedules {_listed(self.schedules)}; stages recomputed "
            f"{'or not' if self.recompute else 'never'}; "
            f"optimizer states {'sharded or not' if self.sharded else 'whole'}",
            "layers split by tensor"
            + "".join(f" or {form}" for form in self.forms)
            + " parallelism; no offloading; repetends of one micro-batch",
        )

    @property
    def shares_stages(self) -> bool:
        """Whether a stage may have replicas of two kinds."""
        return self.mixed and len(self.pools) > 1

    def degrees(self, pool: DevicePool) -> tuple[int, ...]:
        """Tensor degrees that are known and of which whole replicas fill a host, so that none
        spreads over two; in a single host all that fit.
        """
        found = (t for t in self.costs.degrees(pool.kind) if t <= pool.per_host)
        return tuple(t for t in found if pool.per_host % t == 0 or pool.count <= pool.per_host)

    def forms_of(self, kind: str, tensor: int) -> tuple[str, ...]:
        """Ways in which a replica may split layers, "" for tensor parallelism."""
        return tuple(
            form for form in self.costs.forms(kind, tensor) if not form or form in self.forms
        )

    def pool(self, kind: str) -> DevicePool:
        """Return the devices of a kind.

        Raises
        ------
        InputError
            If there are none.
        """
        pools = {pool.kind: pool for pool in self.pools}
        if kind not in pools:
            raise InputError(f"devices '{kind}' are not there; {did_you_mean(kind, list(pools))}")
        return pools[kind]

    def rounds(self, micro_batch: int, data: int) -> int:
        """Micro-batches that pass each replica, n."""
        return -(-self.batch // (micro_batch * data))

    @cached_property
    def hash(self) -> str:
        """Digest of everything that a value depends on; of one's own costs, of the times of
        single layers.
        """
        digest = hashlib.sha256(getattr(self.costs, "fingerprint", b""))
        for ticks in self._known_ticks():
            digest.update(b"-" if ticks is None else ticks.tobytes())
        rest = (
            self.pools,
            self.batch,
            self.micro_batches,
            self.data_degrees,
            self.max_stages,
            self.recompute,
            self.mixed,
            self.schedules,
            self.sharded,
            self.costs.name,
            self.costs.sources,
            *self.forms,
        )
        digest.update(repr(rest).encode())
        return digest.hexdigest()[:16]

    def _known_ticks(self) -> Iterator[Ints | None]:
        """Yield what the cost model knows of single layers."""
        costs = self.costs
        for pool in self.pools:
            for tensor in self.degrees(pool):
                for size, form in product(self.micro_batches, self.forms_of(pool.kind, tensor)):
                    yield costs.layer_ticks(pool.kind, tensor, size, False, form)
                    yield costs.layer_ticks(pool.kind, tensor, size, True, form)
                    split = costs.splits_backward
                    yield costs.weight_ticks(pool.kind, tensor, size, form) if split else None

    def replace(self, **changes: Any) -> StepPlanProblem:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def shared_counts(data: int) -> list[int]:
    """Return how many of `data` replicas of a stage may be of one of two unlike kinds: one to three
    quarters, to the nearest replica of either.
    """
    quarters = {round(data * part / 4) for part in range(1, 4)}
    return sorted(quarters | {data - count for count in quarters})


def parse_pools(text: str) -> Pools:
    """Return the devices of `NxKIND@ZONE?memory=GIB&per_host=4&price=2.5`, several joined by "+".

    Raises
    ------
    InputError
        If a part is malformed, or a kind is not known and brings no memory and devices per host.
    """
    return tuple(_pool(part, text) for part in text.split("+"))


def _pool(part: str, whole: str) -> DevicePool:
    found = re.fullmatch(r"(\d+)x([^?]+)(?:\?(.*))?", part.strip())
    if not found:
        raise InputError(
            f"devices '{whole}': expected COUNTxKIND, joined by '+', received '{part}'"
        )
    kind, options = found[2], {}
    for pair in found[3].split("&") if found[3] else ():
        key, _, value = pair.partition("=")
        if key not in OPTIONS:
            raise InputError(
                f"devices '{part}': expected options among {', '.join(OPTIONS)}, received '{key}'"
            )
        try:
            options[key] = float(value)
            int(options[key])
        except (ValueError, OverflowError):
            raise InputError(
                f"devices '{part}': {key}: expected a number, received '{value}'"
            ) from None
    if device_kind(kind) in KNOWN:
        options = dict(zip(("memory", "per_host"), KNOWN[device_kind(kind)], strict=True)) | options
    memory, per_host = options.get("memory"), options.get("per_host")
    if memory is None or per_host is None:
        raise InputError(
            f"devices '{part}': kind '{kind}' is not among {', '.join(KNOWN)}; add "
            "?memory=GIB&per_host=N"
        )
    return DevicePool(
        kind, int(found[1]), int(per_host), int(memory * GIB), options.get("price", 0.0)
    )
