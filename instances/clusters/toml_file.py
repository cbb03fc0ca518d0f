"""Read a cluster from a TOML file.

`EXAMPLE` is one, with every kind of entry; `placeopt clusters --example` prints it.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.instances.clusters.contention import channels
from placeopt.instances.clusters.presets import DEVICES, GIB, LINKS, MAX_DEVICES
from placeopt.io.body import Body
from placeopt.model.cluster import Cluster, Device, Link
from placeopt.model.errors import InputError
from placeopt.model.files import read_toml

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints

EXAMPLE = """\
# A cluster: devices, links, and which link joins which devices. Use it by --cluster FILE or
# po.load(..., cluster=FILE).
name = "lab"
# Who waits for whom: none, pair (one transfer at a time per pair of devices), source (per sender),
# host or hardware.
contention = "source"

[[devices]]
kind = "A100"              # a ready-made kind as the base; any field below overrides it
count = 2                  # named A100-0, A100-1
memory_gib = 80

[[devices]]
name = "board"             # a kind of its own
kind = "my-accelerator"
family = "accelerator"     # gpu, cpu or accelerator
peak_flops = 4e12          # per second, as large kernels reach it
memory_bandwidth = 25e9    # bytes per second
memory_gib = 8
launch_overhead = 1e-5     # seconds that every op costs at least

[[devices]]
name = "host"
kind = "cpu"

[[links]]
name = "nvlink"
latency = 5e-6             # seconds
bandwidth = 300e9          # bytes per second, one direction

[[links]]
name = "pcie"
latency = 1e-5
bandwidth = 25e9

[[connections]]            # later entries win; both directions unless one_way = true
between = ["*", "*"]
link = "pcie"

[[connections]]
between = ["A100-*", "A100-*"]
link = "nvlink"
"""

_CLUSTER_KEYS = ("name", "contention", "devices", "links", "connections")
_DEVICE_KEYS = (
    "kind",
    "name",
    "count",
    "family",
    "peak_flops",
    "memory_bandwidth",
    "memory_gib",
    "launch_overhead",
)
_SPEEDS = ("peak_flops", "memory_bandwidth", "launch_overhead")
_LINK_KEYS = ("name", "latency", "bandwidth")
_CONNECTION_KEYS = ("between", "link", "one_way")


def read_cluster(path: str | Path) -> Cluster:
    """Return the cluster described by a TOML file.

    Raises
    ------
    InputError
        If the file cannot be read, a field is missing, unknown or out of range, or two devices are
        not connected.
    """
    where = f"cluster file '{path}'"
    table = Body(read_toml(path, what="cluster file"), where).only(_CLUSTER_KEYS)
    devices: list[Device] = []
    for row in table.bodies("devices"):
        devices += _devices(row.only(_DEVICE_KEYS))
        if len(devices) > MAX_DEVICES:
            raise InputError(
                f"{where}: expected at most {MAX_DEVICES} devices, received {len(devices)} or more"
            )
    links: dict[str, Link] = {}
    for row in table.bodies("links") if table.has("links") else []:
        link = Link(
            row.only(_LINK_KEYS).text("name"), row.number("latency"), row.number("bandwidth")
        )
        if link.name in links:
            raise InputError(
                f"{row.where}: link '{link.name}' is there twice; names must be distinct"
            )
        links[link.name] = link
    connections = table.bodies("connections") if table.has("connections") else []
    link_class = _connect(connections, devices, links, where)
    links = links or {"uniform": LINKS["uniform"]}  # one device: nothing is ever sent
    name = table.text("name", "") or Path(path).stem
    cluster = Cluster(name, tuple(devices), tuple(links.values()), link_class)
    return replace(cluster, channel=channels(cluster, table.text("contention", "none"), where))


def _connect(rows: list[Body], devices: list[Device], links: dict[str, Link], where: str) -> Ints:
    """Return the link of every pair of devices; ready-made links that are used are added to
    `links`.
    """
    names = [device.name for device in devices]
    k = len(names)
    link_class = np.full((k, k), -1, np.int64)
    covered = 0
    # How often the connections may cover all pairs of devices
    max_cover = 64
    for row in rows:
        ends = row.only(_CONNECTION_KEYS).texts("between")
        if len(ends) != 2:
            raise row.wrong("between", "two patterns of device names", ends)
        number = _link_number(row, links)
        first, second = (np.flatnonzero([fnmatchcase(name, end) for name in names]) for end in ends)
        covered += len(first) * len(second)
        if covered > max_cover * k * k:
            raise InputError(
                f"{row.where}: the connections cover all pairs more than {max_cover} times; write "
                "fewer"
            )
        pairs = len(first) * len(second) - len(np.intersect1d(first, second))
        if not pairs and k > 1:
            raise InputError(
                f"{row.where}: {list(ends)} matches no pair of devices; devices are "
                f"{', '.join(names)}"
            )
        link_class[np.ix_(first, second)] = number
        if not row.flag("one_way"):
            link_class[np.ix_(second, first)] = number
    np.fill_diagonal(link_class, 0)
    _check_connected(link_class, names, where)
    return link_class


def _check_connected(link_class: Ints, names: list[str], where: str) -> None:
    if (link_class < 0).any():
        i, j = np.argwhere(link_class < 0)[0]
        raise InputError(
            f"{where}: '{names[i]}' and '{names[j]}' are not connected; "
            "add a [[connections]] entry that matches them"
        )


def _link_number(row: Body, links: dict[str, Link]) -> int:
    """Return the number of the link that a connection names, which may be a ready-made one."""
    link = row.text("link")
    if link not in links:
        if link not in LINKS:
            raise InputError(
                f"{row.where}: link '{link}' is not defined; "
                f"defined: {', '.join(links) or 'none'}; ready-made: {', '.join(LINKS)}"
            )
        links[link] = LINKS[link]
    return list(links).index(link)


def _devices(row: Body) -> list[Device]:
    """Return the devices of one [[devices]] entry."""
    kind, count = row.text("kind"), row.integer("count", 1)
    if not 1 <= count <= MAX_DEVICES:
        raise row.wrong("count", f"a whole number in 1..{MAX_DEVICES}", count)
    changes = _changes(row)
    base = DEVICES.get(kind) or _own_kind(row, kind, changes)
    if set(_SPEEDS) & set(changes):
        base = base.plain()  # its own numbers hold for all kernels
    stem = row.text("name", "") or kind
    names = [stem] if count == 1 and row.has("name") else [f"{stem}-{i}" for i in range(count)]
    return [replace(base, kind=kind, name=name, **changes) for name in names]


def _changes(row: Body) -> dict[str, Any]:
    """Return the fields of a device that an entry gives."""
    changes: dict[str, Any] = {key: row.number(key) for key in _SPEEDS if row.has(key)}
    if row.has("family"):
        changes["family"] = row.text("family")
    if row.has("memory_gib"):
        changes["memory"] = round(min(max(row.number("memory_gib"), -1.0), 2.0**33) * GIB)
    return changes


def _own_kind(row: Body, kind: str, changes: dict[str, Any]) -> Device:
    """Return a device of a kind that is not ready-made."""
    needed = ("family", "peak_flops", "memory_bandwidth")
    missing = [key for key in needed if key not in changes]
    if missing:
        raise InputError(
            f"{row.where}: device kind '{kind}' is not ready-made, so it needs "
            f"{', '.join(missing)}; ready-made: {', '.join(DEVICES)}"
        )
    return Device(kind, kind, *(changes[key] for key in needed))
