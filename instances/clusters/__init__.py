"""Clusters by name ("4xA100", "cpu+gpu", "2x4xA100", "uniform:8") or from a TOML file.

Names are `KIND`, `NxKIND` (the links that such devices have: NVLink, Infinity Fabric, PCI Express),
`NxKIND-pcie`, `HxNxKIND` (H hosts over Ethernet), several of them joined by `+` (hosts of unlike
devices: `2xA100+2xV100`), `cpu+gpu`, `cpu+NxKIND`, `edge` and `uniform:N`, each with options after
a question mark: `contention=none|pair|source|host|hardware`, `precision=fp32|tf32|fp16|bf16`,
`memory=GIB`, `efficiency=FRACTION`. `EXAMPLE` is a file with every kind of entry; `placeopt
clusters --example` prints it.

A cluster's name means one cluster: without the option `contention` nothing is shared, as in the
simulators that published placements were valued by. `hardware` shares links as machines do.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.instances.clusters.hardware import (
    DEVICES,
    GIB,
    LINK_OF,
    LINKS,
    MAX_DEVICES,
    PCIE_OF,
    PRESETS,
    TENSOR_CORE_PEAKS,
)
from placeopt.io.body import Body
from placeopt.model.arrays import Ints
from placeopt.model.cluster import CONTENTION, Cluster, Device, Link, contention_matrix
from placeopt.model.errors import InputError, check_choice, did_you_mean, nearest
from placeopt.model.files import Data, is_file, read_toml
from placeopt.model.query import parse_query

_HOSTS = re.compile(r"(?:([0-9]+)x)?(?:([0-9]+)x)?([A-Za-z]\w*)(-pcie)?")
"""Hosts of like devices: their number, devices per host, the kind, and whether they are joined by
PCI Express."""

OPTIONS = ("contention", "precision", "memory", "efficiency")

_PAIRS = {
    "cpu+gpu": ({"cpu": "cpu", "gpu": "V100"}, "pcie3"),
    "edge": ({"cpu": "edge-cpu", "accelerator": "edge-accelerator"}, "usb3"),
}
"""Hosts of two unlike devices: the kind of each by its name, and the link."""


def cluster_names() -> dict[str, str]:
    """Return the ready-made clusters and what they are."""
    return dict(PRESETS)


def make_cluster(source: str | Path | Cluster) -> Cluster:
    """Make a cluster from a name such as `4xA100`, or from a TOML file.

    Raises
    ------
    InputError
        If the name, the file or an option is not understood.
    """
    if isinstance(source, Cluster):
        return source
    text = str(source)
    base, _, query = text.partition("?")
    toml = base.endswith(".toml")
    cluster = read_cluster(base) if toml or is_file(base) else _by_name(base)
    options = parse_query(query, f"cluster '{text}'")
    for key in options:
        if key not in OPTIONS:
            raise InputError(
                f"cluster '{text}': unknown option '{key}'; {did_you_mean(key, OPTIONS)}"
            )
    cluster = _with_options(cluster, options, text)
    return cluster if toml else replace(cluster, name=text)


def _by_name(name: str) -> Cluster:
    if match := re.fullmatch(r"uniform:([0-9]+)", name):
        return _one_host(_numbered("uniform", _count(match[1], name), "device"), "uniform")
    if name in _PAIRS:
        kinds, link = _PAIRS[name]
        return _one_host([replace(DEVICES[kinds[own]], name=own) for own in kinds], link)
    if match := re.fullmatch(r"cpu\+(?:([0-9]+)x)?([A-Za-z]\w*)", name):
        return _cpu_and_gpus(_count(match[1] or "1", name), _gpu(match[2], name))
    parts = name.split("+")
    matches = [match for part in parts if (match := _HOSTS.fullmatch(part))]
    if len(matches) < len(parts):
        raise _unknown(name)
    return _hosts([_part(match, name) for match in matches], name)


def _numbered(kind: str, count: int, stem: str) -> list[Device]:
    """Return devices of a kind: STEM0, STEM1, ..."""
    return [replace(DEVICES[kind], name=f"{stem}{i}") for i in range(count)]


def _part(match: re.Match[str], name: str) -> tuple[int, int, str, str]:
    """Return (hosts, devices per host, kind, link inside a host) of one part of a name."""
    hosts, per_host = (match[1], match[2]) if match[2] else ("1", match[1] or "1")
    kind = _gpu(match[3], name)
    return (
        _count(hosts, name),
        _count(per_host, name),
        kind,
        PCIE_OF[kind] if match[4] else LINK_OF[kind],
    )


def _gpu(kind: str, name: str) -> str:
    for known in PCIE_OF:
        if known.lower() == kind.lower():
            return known
    raise _unknown(name)


def _unknown(name: str) -> InputError:
    near = nearest(name, PRESETS)
    hint = f"did you mean '{near}'? " if near else ""
    return InputError(
        f"cluster '{name}' is not known; {hint}Use NxKIND such as 4xA100, HxNxKIND, cpu+gpu, "
        "uniform:N or a .toml file; `placeopt clusters` lists examples"
    )


def _count(text: str, name: str) -> int:
    value = int(text) if len(text) < 10 else MAX_DEVICES + 1
    if not 1 <= value <= MAX_DEVICES:
        raise InputError(
            f"cluster '{name}': expected 1..{MAX_DEVICES} devices, received {text[:20]}"
        )
    return value


def _one_host(devices: list[Device], link: str) -> Cluster:
    return Cluster("", tuple(devices), (LINKS[link],))


def _hosts(parts: list[tuple[int, int, str, str]], name: str) -> Cluster:
    """Return hosts of like or unlike devices, joined by Ethernet; `parts` are as of `_part`."""
    k = sum(hosts * per_host for hosts, per_host, _, _ in parts)
    if k > MAX_DEVICES:
        raise InputError(f"cluster '{name}': expected at most {MAX_DEVICES} devices, received {k}")
    rows = [(count, kind, link) for hosts, count, kind, link in parts for _ in range(hosts)]
    if len(rows) == 1:
        count, kind, link = rows[0]
        return _one_host(_numbered(kind, count, "gpu"), link)
    inside = [link for _, _, link in rows]
    links = list(dict.fromkeys(["ethernet", *inside] if len(parts) > 1 else [*inside, "ethernet"]))
    devices = [
        device
        for host, (count, kind, _) in enumerate(rows)
        for device in _numbered(kind, count, f"host{host}/gpu")
    ]
    host = np.repeat(np.arange(len(rows)), [count for count, _, _ in rows])[:, None]
    own = np.array([links.index(link) for link in inside])[host]
    link_class = np.where(host == host.T, own, links.index("ethernet"))
    return Cluster("", tuple(devices), tuple(LINKS[link] for link in links), link_class)


def _cpu_and_gpus(count: int, kind: str) -> Cluster:
    devices = (replace(DEVICES["cpu"], name="cpu"), *_numbered(kind, count, "gpu"))
    k = len(devices)
    link_class = np.ones((k, k), np.int64)
    link_class[0, :] = link_class[:, 0] = 0
    return Cluster("", devices, (LINKS[PCIE_OF[kind]], LINKS[LINK_OF[kind]]), link_class)


def _with_options(cluster: Cluster, options: dict[str, str], text: str) -> Cluster:
    devices = list(cluster.devices)
    if "precision" in options:
        devices = [_at_precision(device, options["precision"], text) for device in devices]
    if "memory" in options:
        size = round(min(_positive(options["memory"], "memory", text), 2.0**33) * GIB)
        devices = [replace(device, memory=size) for device in devices]
    if "efficiency" in options:
        fraction = _positive(options["efficiency"], "efficiency", text)
        if fraction > 1:
            raise InputError(f"cluster '{text}': efficiency must be in (0, 1], received {fraction}")
        devices = [_slowed(device, fraction) for device in devices]
    channel = cluster.channel
    if "contention" in options:
        channel = channels(cluster, options["contention"], f"cluster '{text}'")
    return replace(cluster, devices=tuple(devices), channel=channel)


def _slowed(device: Device, fraction: float) -> Device:
    """Return a device with a part of its flop/s, at any precision."""
    half, attention = (
        rates and replace(rates, flops=rates.flops * fraction)
        for rates in (device.half, device.attention)
    )
    peak = device.peak_flops * fraction
    return replace(device, peak_flops=peak, half=half, attention=attention)


def _at_precision(device: Device, precision: str, text: str) -> Device:
    """Return a device with the data sheet's peak of one precision for all kernels."""
    check_choice(f"cluster '{text}': precision", precision, ("fp32", "tf32", "fp16", "bf16"))
    device = device.plain()
    if precision == "fp32" or device.family != "gpu":
        return device
    peaks = TENSOR_CORE_PEAKS.get(device.kind, {})
    if "tf32" in peaks:  # Ampere and later, MI300: as many bf16 products as fp16 ones
        peaks = peaks | {"bf16": peaks["fp16"]}
    if precision not in peaks:
        raise InputError(
            f"cluster '{text}': {device.kind} has no {precision} matrix units; use "
            f"{', '.join(['fp32', *peaks])}"
        )
    return replace(device, peak_flops=peaks[precision])


def _positive(value: str, what: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not (np.isfinite(number) and number > 0):
        raise InputError(f"cluster '{text}': {what} must be a positive number, received '{value}'")
    return number


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


def read_cluster(path: str | Path) -> Cluster:
    """Return the cluster described by a TOML file.

    Raises
    ------
    InputError
        If the file cannot be read, a field is missing, unknown or out of range, or two devices are
        not connected.
    """
    where = f"cluster file '{path}'"
    given = {"links": [], "connections": [], **read_toml(path, what="cluster file")}
    table = Body(given, where).only(("name", "contention", "devices", "links", "connections"))
    devices: list[Device] = []
    for row in table.bodies("devices"):
        devices += _devices(row.only(_DEVICE_KEYS))
        if len(devices) > MAX_DEVICES:
            raise InputError(
                f"{where}: expected at most {MAX_DEVICES} devices, received {len(devices)} or more"
            )
    links: dict[str, Link] = {}
    for row in table.bodies("links"):
        link = row.only(("name", "latency", "bandwidth")).made(Link)
        if link.name in links:
            raise InputError(
                f"{row.where}: link '{link.name}' is there twice; names must be distinct"
            )
        links[link.name] = link
    link_class = _connect(table.bodies("connections"), devices, links, where)
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
        ends = row.only(("between", "link", "one_way")).texts("between")
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
    if (link_class < 0).any():
        i, j = np.argwhere(link_class < 0)[0]
        raise InputError(
            f"{where}: '{names[i]}' and '{names[j]}' are not connected; "
            "add a [[connections]] entry that matches them"
        )
    return link_class


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


def _changes(row: Body) -> Data:
    """Return the fields of a device that an entry gives."""
    changes: Data = {key: row.number(key) for key in _SPEEDS if row.has(key)}
    if row.has("family"):
        changes["family"] = row.text("family")
    if row.has("memory_gib"):
        changes["memory"] = round(min(max(row.number("memory_gib"), -1.0), 2.0**33) * GIB)
    return changes


def _own_kind(row: Body, kind: str, changes: Data) -> Device:
    """Return a device of a kind that is not ready-made."""
    needed = ("family", "peak_flops", "memory_bandwidth")
    missing = [key for key in needed if key not in changes]
    if missing:
        raise InputError(
            f"{row.where}: device kind '{kind}' is not ready-made, so it needs "
            f"{', '.join(missing)}; ready-made: {', '.join(DEVICES)}"
        )
    return Device(kind, kind, *(changes[key] for key in needed))


MODELS = (*CONTENTION, "host", "hardware")
"""Names of the models; what the last two share depends on hosts and links."""


def channels(cluster: Cluster, contention: str, where: str) -> Ints:
    """Return the channel of every ordered pair of devices, -1 where transfers never wait; shape
    (num_devices, num_devices).
    """
    if contention == "host":
        return host_channels(cluster)
    if contention == "hardware":
        return hardware_channels(cluster)
    if contention not in CONTENTION:
        raise InputError(
            f"{where}: contention must be one of {', '.join(MODELS)}; received '{contention}'"
        )
    return contention_matrix(cluster.num_devices, contention)


def _host_of(cluster: Cluster) -> Ints:
    """Return the host of every device, in order of their first devices; shape (num_devices,)."""
    hosts: dict[str, int] = {}
    names = (device.name.rpartition("/")[0] for device in cluster.devices)
    return np.array([hosts.setdefault(name, len(hosts)) for name in names])


def host_channels(cluster: Cluster) -> Ints:
    """One channel per host for everything it sends to other hosts (its network card); none inside a
    host.
    """
    host = _host_of(cluster)[:, None]
    return np.where(host != host.T, host, -1)


SHARED = ("pcie", "usb")
"""Links, by the beginning of their names, that all devices of a host share."""


def hardware_channels(cluster: Cluster) -> Ints:
    """Share links as the hardware does.

    A device sends one transfer at a time into its switch (NVLink, Infinity Fabric, ICI); what
    crosses PCI Express or USB shares the root of its host; what leaves a host shares its network
    card.
    """
    outside, host = host_channels(cluster), _host_of(cluster)[:, None]
    hosts = int(host.max()) + 1
    shared = np.array([link.name.startswith(SHARED) for link in cluster.links])[cluster.link_class]
    port = np.arange(cluster.num_devices)[:, None] + 2 * hosts
    inside = np.where(shared, host + hosts, port)
    return np.where(outside >= 0, outside, inside)
