"""Cluster: devices, the links between them, and the channels that transfers share."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from placeopt.model.arrays import UNLIMITED, ArrayHolder, Ints, ints, own_links, settle, tells_types
from placeopt.model.errors import InputError, check_choice

SLOWEST = 1e-3
"""Smallest rate of a device or link, per second: what is slower is a mistake in a unit."""

CONTENTION = ("none", "pair", "source")
"""Ready-made channel matrices; `Cluster.channel` can express any other sharing."""


@dataclass(frozen=True)
class Rates:
    """What kernels of a kind reach: flop/s, bytes per second of memory, and seconds beside."""

    flops: float
    bandwidth: float
    launch: float


@tells_types
@dataclass(frozen=True)
class Device:
    """One device.

    Attributes
    ----------
    kind : the model ("A100"); `family` is its class: "gpu", "cpu" or "accelerator".
    peak_flops : floating-point operations per second that large kernels reach.
    memory_bandwidth : bytes per second.
    memory : capacity in bytes.
    launch_overhead : seconds that every op costs at least.
    half, attention : what kernels of 16-bit values reach, and among them fused attention; the three
    numbers above where None.
    """

    name: str
    kind: str
    family: str
    peak_flops: float
    memory_bandwidth: float
    memory: int = UNLIMITED
    launch_overhead: float = 0.0
    half: Rates | None = None
    attention: Rates | None = None

    def __post_init__(self) -> None:
        for key in ("peak_flops", "memory_bandwidth"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= SLOWEST):
                raise InputError(
                    f"device '{self.name}': {key} must be a number of at least {SLOWEST} per "
                    f"second, received {value}"
                )
        if not (math.isfinite(self.launch_overhead) and self.launch_overhead >= 0):
            raise InputError(
                f"device '{self.name}': launch_overhead must be >= 0, received "
                f"{self.launch_overhead}"
            )
        if not 0 <= self.memory <= UNLIMITED:
            raise InputError(
                f"device '{self.name}': memory must be in 0..2^62 bytes, received {self.memory}"
            )

    def rates(self, *, half: bool = False, attention: bool = False) -> Rates:
        """Return what kernels of 16-bit or of other values reach, and fused attention of them."""
        found = (self.attention or self.half) if attention else self.half
        plain = Rates(self.peak_flops, self.memory_bandwidth, self.launch_overhead)
        return found if half and found is not None else plain

    def plain(self) -> Device:
        """Return this device with one rate for all kernels."""
        return replace(self, half=None, attention=None)


@tells_types
@dataclass(frozen=True)
class Link:
    """A class of connections: time of b bytes is latency + b / bandwidth."""

    name: str
    latency: float  # seconds
    bandwidth: float  # bytes per second

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise InputError(
                f"link '{self.name}': latency must be >= 0 seconds, received {self.latency}"
            )
        if not (math.isfinite(self.bandwidth) and self.bandwidth >= SLOWEST):
            raise InputError(
                f"link '{self.name}': bandwidth must be at least {SLOWEST} bytes per second, "
                f"received {self.bandwidth}"
            )


@dataclass(frozen=True, eq=False)
class Cluster(ArrayHolder):
    """k devices, c link classes, and the channel of every ordered pair of devices.

    Attributes
    ----------
    link_class : index into `links` per (source, destination), the first by default; the diagonal is
    ignored.
    channel : channel id per (source, destination), -1 where transfers never wait for each other.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    link_class: Ints = ints("devices", "devices", default=0)
    channel: Ints = ints(
        *("devices", "devices"), default=-1, low=-1, expected="ids >= 0, or -1 for no contention"
    )

    def __post_init__(self) -> None:
        k = len(self.devices)
        for what, given in (("device", self.devices), ("link", self.links)):
            if not given:
                raise InputError(
                    f"cluster '{self.name}': expected at least one {what}, received none"
                )
        names = [device.name for device in self.devices]
        if len(set(names)) != k:
            raise InputError(
                f"cluster '{self.name}': device names must be distinct, received {names}"
            )
        settle(self, devices=k)
        where = f"cluster '{self.name}': "
        link_class = own_links(self.link_class, len(self.links), where)
        object.__setattr__(self, "link_class", link_class)

    def __repr__(self) -> str:
        kinds = Counter(device.kind for device in self.devices)
        return (
            f"<Cluster '{self.name}': "
            f"{' + '.join(f'{count} {kind}' for kind, count in kinds.items())}>"
        )

    @property
    def num_devices(self) -> int:
        """Number of devices, k."""
        return len(self.devices)


def contention_matrix(num_devices: int, contention: str) -> Ints:
    """Return the channel matrix of a named contention model.

    `none`: transfers never wait; `pair`: one channel per ordered pair of devices; `source`: one
    outgoing channel per device.
    """
    check_choice("contention", contention, CONTENTION)
    k = num_devices
    if contention == "none":
        return np.full((k, k), -1, np.int64)
    if contention == "pair":
        return np.arange(k * k, dtype=np.int64).reshape(k, k)
    return np.repeat(np.arange(k, dtype=np.int64)[:, None], k, axis=1)
