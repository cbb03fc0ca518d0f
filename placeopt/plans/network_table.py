"""Networks: seconds to move bytes between hosts, by kind of device and devices per host.

`FittedNetwork` holds the published fits: between two hosts with k devices each the aggregate GB/s
is c0 l^2 + c1 l + c2 with l = log2(bytes / 1e6). `FlatNetwork` has one bandwidth inside and one
between hosts, from a cluster description.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.io.body import Body
from placeopt.model.errors import InputError
from placeopt.model.files import read_json

Replica = tuple[str, int]
"""Kind and tensor degree of a replica."""


Fits = dict[tuple[str, int, str, int], tuple[float, float, float, float]]
DEFAULT_ZONE = "us-central1-a"


@dataclass(frozen=True, eq=False)
class FittedNetwork:
    """The published fits.

    Attributes
    ----------
    fits : (place, devices, place, devices), a place being KIND, in the zone that was read, or
    KIND@ZONE: three
        coefficients and the largest bytes per second measured.
    raw : whether the fit is taken as it stands, without limits.
    """

    fits: Fits
    source: str
    raw: bool

    def __post_init__(self) -> None:
        _check_rates({f"{ends}": fit[3] for ends, fit in self.fits.items()})

    def bandwidth(self, sender: Replica, receiver: Replica, size: Any) -> Any:
        """Bytes per second between (kind, devices) and (kind, devices) for messages of `size`
        bytes, or of each of an array of sizes; see the module.

        Raises
        ------
        InputError
            If the pair was not measured.
        """
        c0, c1, c2, largest = self._fit(sender, receiver)
        level = np.log2(np.maximum(size, 1.0) / 1e6)
        rate = 1e9 * (c0 * level * level + c1 * level + c2)
        return rate if self.raw else np.clip(rate, _slowest(largest), largest)

    def inside(self, kind: str) -> float:
        """Bytes per second of a device to another one of its host. Nothing inside hosts was fitted:
        the largest rate measured between single devices of two
        hosts.
        """
        return self._fit((kind, 1), (kind, 1))[3]

    def _fit(self, sender: Replica, receiver: Replica) -> tuple[float, float, float, float]:
        fit = self.fits.get((*sender, *receiver)) or self.fits.get((*receiver, *sender))
        if fit is None:
            raise InputError(
                f"network: no fit between {sender[1]} x {sender[0]} and {receiver[1]} x "
                f"{receiver[0]}"
            )
        return fit


def _slowest(largest: float) -> float:
    """Return the bandwidth that a fit is trusted down to, a part of the largest measured one:
    outside the sizes measured it may be negative.
    """
    return 1e-3 * largest


@dataclass(frozen=True)
class FlatNetwork:
    """One bandwidth between hosts per kind, shared by the devices of a host.

    Attributes
    ----------
    rates : bytes per second of a device by kind; the slower end counts. near : the same inside a
    host.
    """

    rates: dict[str, float]
    source: str = "cluster description"
    near: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_rates(self.rates)
        _check_rates(self.near)

    def bandwidth(self, sender: Replica, receiver: Replica, size: Any) -> float:
        """Bytes per second of the slower end, times the devices that send together, whatever the
        size.
        """
        return min(self.rates[sender[0]], self.rates[receiver[0]]) * min(sender[1], receiver[1])

    def inside(self, kind: str) -> float:
        """Bytes per second inside a host."""
        return self.near.get(kind, self.rates[kind])


Network = FittedNetwork | FlatNetwork


def _check_rates(rates: dict[str, float]) -> None:
    """Refuse bytes per second that nothing could ever be sent at."""
    for where, rate in rates.items():
        if not rate > 0:
            raise InputError(
                f"network: {where}: expected bytes per second above 0, received {rate:g}"
            )


def read_network(
    path: str | Path, zone: str = DEFAULT_ZONE, *, raw: bool = False, zones: tuple[str, ...] = ()
) -> FittedNetwork:
    """Read the fits of one zone from `network.json`, and those within and between further `zones`.

    Raises
    ------
    InputError
        If the file is malformed or has no such zone.
    """
    body = Body(read_json(path), f"file '{path}'")
    places = [("", zone), *((f"@{name}", name) for name in dict.fromkeys(zones))]
    fits: Fits = {}
    for (suffix, name), (ending, far) in product(places, repeat=2):
        fits |= _fits(body.body(name), suffix, ending, far)
    where = f"zone {zone}" if not zones else f"zones {', '.join(name for _, name in places)}"
    return FittedNetwork(
        fits, raw=raw, source=f"fitted to measurements: {Path(path).name}, {where}"
    )


def _fits(body: Body, suffix: str, ending: str, far: str) -> Fits:
    """Return the fits between the devices of a zone and those of another; the names get a suffix
    and an ending.
    """
    fits: Fits = {}
    for kind, count in _keys(body):
        there = body.body(kind).body(count)
        for other, size in _keys(there.body(far)) if far in there.data else ():
            value: Any = there.body(far).body(other).items(size)
            try:
                c0, c1, c2, largest = map(float, (*value[0], *value[1:]))
                fits[kind + suffix, int(count), other + ending, int(size)] = c0, c1, c2, largest
            except (TypeError, ValueError, IndexError) as error:
                raise InputError(
                    f"{there.where}: expected [[c0, c1, c2], bytes per second], received "
                    f"{value!r:.60}"
                ) from error
    return fits


def _keys(body: Body) -> Iterator[tuple[str, str]]:
    """Yield the keys of objects of objects."""
    return ((outer, inner) for outer in body.data for inner in body.body(outer).data)
