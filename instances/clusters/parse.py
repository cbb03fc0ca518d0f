"""Make a cluster from its name or from a TOML file.

Names are `KIND`, `NxKIND` (the links that such devices have: NVLink, Infinity Fabric, PCI Express),
`NxKIND-pcie`, `HxNxKIND` (H hosts over Ethernet), several of them joined by `+` (hosts of unlike
devices: `2xA100+2xV100`), `cpu+gpu`, `cpu+NxKIND`, `edge` and `uniform:N`, each with options after
a question mark: `contention=none|pair|source|host|hardware`, `precision=fp32|tf32|fp16|bf16`,
`memory=GIB`, `efficiency=FRACTION`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import numpy as np

from placeopt.instances.clusters.contention import channels
from placeopt.instances.clusters.presets import (
    DEVICES,
    GIB,
    LINK_OF,
    LINKS,
    MAX_DEVICES,
    PCIE_OF,
    PRESETS,
    TENSOR_CORE_PEAKS,
)
from placeopt.instances.clusters.toml_file import read_cluster
from placeopt.model.cluster import Cluster, Device
from placeopt.model.errors import InputError, did_you_mean, nearest
from placeopt.model.files import is_file

if TYPE_CHECKING:
    from pathlib import Path

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
    if base.endswith(".toml") or is_file(base):
        cluster = read_cluster(base)
    else:
        cluster = _by_name(base)
    options: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in OPTIONS:
            raise InputError(
                f"cluster '{text}': unknown option '{key}'; {did_you_mean(key, OPTIONS)}"
            )
        if key in options:
            raise InputError(f"cluster '{text}': option '{key}' is given twice; keep one")
        options[key] = value
    return replace(
        _with_options(cluster, options, text),
        name=text if not base.endswith(".toml") else cluster.name,
    )


def _by_name(name: str) -> Cluster:
    if match := re.fullmatch(r"uniform:([0-9]+)", name):
        return _one_host(_numbered("uniform", _count(match[1], name), "device"), "uniform")
    if name in _PAIRS:
        kinds, link = _PAIRS[name]
        return _one_host([replace(DEVICES[kinds[own]], name=own) for own in kinds], link)
    if match := _HOSTS.fullmatch(name):
        return _hosts(*_part(match, name))
    if match := re.fullmatch(r"cpu\+(?:([0-9]+)x)?([A-Za-z]\w*)", name):
        return _cpu_and_gpus(_count(match[1] or "1", name), _gpu(match[2], name))
    parts = name.split("+")
    matches = [match for part in parts if (match := _HOSTS.fullmatch(part))]
    if 1 < len(parts) == len(matches):
        return _mixed([_part(match, name) for match in matches], name)
    raise _unknown(name)


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
    k = len(devices)
    return Cluster("", tuple(devices), (LINKS[link],), np.zeros((k, k), np.int64))


def _hosts(hosts: int, per_host: int, kind: str, link: str) -> Cluster:
    k = hosts * per_host
    if k > MAX_DEVICES:
        raise InputError(f"cluster: expected at most {MAX_DEVICES} devices, received {k}")
    if hosts == 1:
        return _one_host(_numbered(kind, k, "gpu"), link)
    devices = [device for h in range(hosts) for device in _numbered(kind, per_host, f"host{h}/gpu")]
    host = np.repeat(np.arange(hosts), per_host)
    link_class = (host[:, None] != host[None, :]).astype(np.int64)
    return Cluster("", tuple(devices), (LINKS[link], LINKS["ethernet"]), link_class)


def _mixed(parts: list[tuple[int, int, str, str]], name: str) -> Cluster:
    """Return hosts of unlike devices, joined by Ethernet."""
    links = [LINKS["ethernet"]]
    devices: list[Device] = []
    host_of: list[int] = []
    link_of: list[int] = []
    for hosts, per_host, kind, link in parts:
        if len(devices) + hosts * per_host > MAX_DEVICES:
            raise InputError(f"cluster '{name}': expected at most {MAX_DEVICES} devices")
        if LINKS[link] not in links:
            links.append(LINKS[link])
        for _ in range(hosts):
            host = host_of[-1] + 1 if host_of else 0
            devices += _numbered(kind, per_host, f"host{host}/gpu")
            host_of += [host] * per_host
            link_of += [links.index(LINKS[link])] * per_host
    host_at = np.array(host_of)
    link_class = np.where(
        host_at[:, None] == host_at[None, :], np.array(link_of)[:, None], 0
    ).astype(np.int64)
    return Cluster("", tuple(devices), tuple(links), link_class)


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
        size = round(_positive(options["memory"], "memory", text) * GIB)
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
    device = device.plain()
    if precision == "fp32":
        return device
    peaks = TENSOR_CORE_PEAKS.get(device.kind, {})
    if "tf32" in peaks:  # Ampere and later, MI300: as many bf16 products as fp16 ones
        peaks = peaks | {"bf16": peaks["fp16"]}
    if precision not in ("tf32", "fp16", "bf16"):
        raise InputError(
            f"cluster '{text}': precision must be fp32, tf32, fp16 or bf16, received '{precision}'"
        )
    if device.family != "gpu":
        return device
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
