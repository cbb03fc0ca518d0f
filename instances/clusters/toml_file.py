"""Read a cluster from a TOML file.

Example::

    name = "lab"
    contention = "source"

    [[devices]]
    kind = "A100"          # a preset as the base; any field below overrides it
    count = 2
    memory_gib = 80

    [[devices]]
    name = "host"
    kind = "cpu"

    [[links]]
    name = "nvlink"
    latency = 5e-6         # seconds
    bandwidth = 300e9      # bytes per second

    [[links]]
    name = "pcie"
    latency = 1e-5
    bandwidth = 25e9

    [[connections]]        # later lines win; both directions unless one_way = true
    between = ["*", "*"]
    link = "pcie"

    [[connections]]
    between = ["A100-*", "A100-*"]
    link = "nvlink"
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placeopt.instances.clusters.parse import MAX_DEVICES, read_toml
from placeopt.instances.clusters.presets import DEVICES, GIB, LINKS
from placeopt.model.cluster import Cluster, Device, Link, contention_matrix
from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _DeviceTable(_Strict):
    kind: str
    name: str | None = None
    count: int = Field(1, ge=1, le=MAX_DEVICES)
    family: str | None = None
    peak_flops: float | None = Field(None, gt=0)
    memory_bandwidth: float | None = Field(None, gt=0)
    memory_gib: float | None = Field(None, gt=0)
    launch_overhead: float | None = Field(None, ge=0)


class _LinkTable(_Strict):
    name: str
    latency: float = Field(ge=0)
    bandwidth: float = Field(gt=0)


class _ConnectionTable(_Strict):
    between: tuple[str, str]
    link: str
    one_way: bool = False


class _ClusterTable(_Strict):
    name: str | None = None
    contention: str = "none"
    devices: list[_DeviceTable] = Field(min_length=1)
    links: list[_LinkTable] = []
    connections: list[_ConnectionTable] = []


def read_cluster(path: Path) -> Cluster:
    """Return the cluster described by a TOML file.

    Raises
    ------
    InputError
        If the file cannot be read, a field is missing, unknown or out of range, or two devices are not connected.
    """
    try:
        table = _ClusterTable.model_validate(read_toml(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"cluster file '{path}': {where}: {first['msg']}, received {first['input']!r}") from error
    devices = [device for row in table.devices for device in _devices(row, path)]
    links = [Link(row.name, row.latency, row.bandwidth) for row in table.links]
    index = {link.name: i for i, link in enumerate(links)}
    k = len(devices)
    link_class = np.full((k, k), -1, dtype=np.int64)
    for row in table.connections:
        if row.link not in index:
            if row.link not in LINKS:
                raise InputError(f"cluster file '{path}': connection uses the link '{row.link}', which is not defined; "
                                 f"defined: {', '.join(index) or 'none'}; ready-made: {', '.join(LINKS)}")  # fmt: skip
            index[row.link] = len(links)
            links.append(LINKS[row.link])
        matched = False
        for i, source in enumerate(devices):
            for j, target in enumerate(devices):
                ways = [row.between] if row.one_way else [row.between, row.between[::-1]]
                if i != j and any(fnmatchcase(source.name, a) and fnmatchcase(target.name, b) for a, b in ways):
                    link_class[i, j] = index[row.link]
                    matched = True
        if not matched and k > 1:
            raise InputError(f"cluster file '{path}': connection between {row.between} matches no pair of devices; "
                             f"devices are {', '.join(d.name for d in devices)}")  # fmt: skip
    np.fill_diagonal(link_class, 0)
    if (link_class < 0).any():
        i, j = (int(x) for x in np.argwhere(link_class < 0)[0])
        raise InputError(f"cluster file '{path}': '{devices[i].name}' and '{devices[j].name}' are not connected; "
                         "add a [[connections]] entry that matches them")  # fmt: skip
    if not links:
        links = [LINKS["uniform"]]  # one device: nothing is ever sent
    channel = contention_matrix(k, table.contention)
    return Cluster(table.name or path.stem, tuple(devices), tuple(links), link_class, channel)


def _devices(row: _DeviceTable, path: Path) -> list[Device]:
    base = DEVICES.get(row.kind)
    if base is None:
        missing = [key for key in ("family", "peak_flops", "memory_bandwidth") if getattr(row, key) is None]
        if missing:
            raise InputError(f"cluster file '{path}': device kind '{row.kind}' is not ready-made ({', '.join(DEVICES)}), "
                             f"so it needs {', '.join(missing)}")  # fmt: skip
        base = Device(row.kind, row.kind, str(row.family), float(row.peak_flops or 0), float(row.memory_bandwidth or 0))
    changes = {
        key: value
        for key in ("family", "peak_flops", "memory_bandwidth", "launch_overhead")
        if (value := getattr(row, key)) is not None
    }
    if row.memory_gib is not None:
        changes["memory"] = round(row.memory_gib * GIB)
    stem = row.name or row.kind
    names = [stem] if row.count == 1 and row.name else [f"{stem}-{i}" for i in range(row.count)]
    return [replace(base, kind=row.kind, name=name, **changes) for name in names]
