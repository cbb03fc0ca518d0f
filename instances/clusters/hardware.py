"""What devices and links can do: of GPUs in training (`Gpu`), and as the parts that clusters are
made of (`DEVICES`, `LINKS`).

gpus.json and presets.toml have the numbers, and the source of each. What kernels of 16-bit values
reach is the best measured product of gpus.json, and the bandwidth of memory, times factors that
were fitted to kernels of other devices (`results/plans/ops.py`). Fit your own with
`placeopt.instances.cost_fit` where real times are at hand.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from placeopt.model.cluster import Device, Link, Rates
from placeopt.model.files import table_beside

PRECISIONS = ("bf16", "fp16", "fp32", "fp8", "fp4")
BASE = "A100-80"
"""What a device that nobody knows is taken as."""


@dataclass(frozen=True)
class Gpu:
    """A kind of device.

    Attributes
    ----------
    peaks : dense flop/s by precision. sustained : of them, the part that the best measured matmul
    reaches (1 where none was measured). memory : bytes; what is sold as
    80 GB is 80 GiB. bandwidth, link, fabric : bytes per second
    of memory, of an all-reduce inside a host, and of a device's port to other hosts.
    domain : devices joined by links. source : of the numbers. mesh : (largest group, bytes per
    second) where small groups have fewer links.
    """

    name: str
    peaks: dict[str, float]
    sustained: dict[str, float]
    memory: float
    bandwidth: float
    link: float
    fabric: float
    per_host: int
    domain: int
    source: str
    mesh: tuple[tuple[int, float], ...] = ()

    def link_of(self, group: float) -> float:
        """Return bytes per second of an all-reduce of so many neighbours; in a mesh of links, as of
        V100, a small group has few of them.
        """
        return next((rate for size, rate in self.mesh if group <= size), self.link)

    def joined(self, per_host: int) -> int:
        """Return the devices that links join where a host has so many."""
        return max(per_host, self.domain if self.domain > self.per_host else 0)

    @property
    def fuses_attention(self) -> bool:
        """Whether kernels of fused attention run on it: they are for devices that know bf16."""
        return "bf16" in self.peaks

    def peak(self, precision: str) -> tuple[float, str]:
        """Return flop/s and the precision that stands for one the device does not have."""
        names = (precision, *_FALLBACKS[precision], "fp32")
        name = next(name for name in names if name in self.peaks)
        return self.peaks[name], name

    def share(self, precision: str) -> float:
        """Return the sustained part of a peak; 16-bit formats share theirs."""
        key = "bf16" if precision == "fp16" else precision
        return self.sustained.get(key, self.sustained.get("bf16", 0.82))


_FALLBACKS = {
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "fp32": (),
    "tf32": (),
    "fp8": ("bf16", "fp16"),
    "fp4": ("fp8", "bf16", "fp16"),
}


@cache
def _rows() -> dict[str, Any]:
    return table_beside(__file__, "gpus.json")["gpus"]


@cache
def known_gpus() -> dict[str, Gpu]:
    """Return the devices of gpus.json by name."""
    found = {}
    for name, row in _rows().items():
        peaks = {key: value * 1e12 for key, value in row["peak_tflops"].items()}
        sustained = {
            key: value * 1e12 / peaks[key] for key, value in row.get("sustained_tflops", {}).items()
        }
        found[name] = Gpu(
            name,
            peaks,
            sustained,
            row["memory_gb"] * 2**30,
            row["bandwidth_gbs"] * 1e9,
            row["link_gbs"] * 1e9,
            row["fabric_gbs"] * 1e9,
            row["gpus_per_host"],
            row.get("link_domain", row["gpus_per_host"]),
            row["source"],
            tuple((size, rate * 1e9) for size, rate in row.get("mesh_gbs", [])),
        )
    return found


@cache
def _names() -> list[tuple[str, str, re.Pattern[str]]]:
    """Return every way to write each device, its name, and where a text says so: 4000 is no 40."""
    return [
        (x, name, re.compile("[^a-z0-9]*".join(x) + r"(?!\d)"))
        for name, row in _rows().items()
        for x in row["names"]
    ]


SIZE = r"(?<!\d)(16|24|32|40|48|64|80|94|96|141|144|192)(?:\s*g(?:i?b)?(?![a-z])|$)"
"""GiB of a device behind its name; `GH200 480GB` says those of its host."""


def find_gpu(text: str, memory_gb: float | None = None) -> tuple[Gpu, str]:
    """Return the device that a name means, and what was assumed about it, empty if nothing.

    Parameters
    ----------
    text : as `A100-SXM-80`, `NVIDIA H100 80GB HBM3`, `8xV100` without the count.
    memory_gb : of a device, where it is known.
    """
    known, text = known_gpus(), text.strip()
    names = {x: name for x, name, said in _names() if said.search(text.lower())}
    if not names:
        return known[BASE], f"gpu '{text}' is not known: taken as {BASE}"
    gpu = known[names[max(names, key=len)]]
    if memory_gb is None:
        size = re.search(SIZE, text.lower())
        memory_gb = float(size.group(1)) if size else None
    if memory_gb and memory_gb > 0:
        if gpu.name == "A100" and memory_gb > 60:
            gpu = known["A100-80"]
        gpu = replace(gpu, memory=memory_gb * 2**30)
    if re.search(r"(?<![a-z])mig(?![a-z])|\dg\.\d", text.lower()):
        return gpu, f"gpu '{text}' is a part of one (MIG): taken as a whole {gpu.name}"
    return gpu, ""


GIB = 2**30
MAX_DEVICES = 4096

_TABLES = tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8"))

KERNELS: dict[str, dict[str, float]] = _TABLES["kernels"]
"""Parts of a device's rates that kernels of 16-bit values reach, and seconds beside, by kind."""


def with_kernels(device: Device) -> Device:
    """Return a device with the rates of 16-bit kernels, itself where it has no matrix units."""
    gpu = known_gpus().get(device.kind)
    if gpu is None or device.kind in _TABLES["without_matrix_units"]:
        return device
    peak, used = gpu.peak("bf16")
    found = {
        kind: Rates(
            peak * gpu.share(used) * row["flops"],
            device.memory_bandwidth * row["bandwidth"],
            row.get("launch", device.launch_overhead),
        )
        for kind, row in KERNELS.items()
    }
    return replace(device, half=found["product"], attention=found["attention"])


DEVICES = {
    name: with_kernels(Device(name, name, **row)) for name, row in _TABLES["devices"].items()
}

TENSOR_CORE_PEAKS: dict[str, dict[str, float]] = _TABLES["peaks"]

LINKS = {name: Link(name, **row) for name, row in _TABLES["links"].items()}

PCIE_OF: dict[str, str] = _TABLES["pcie"]
"""How each accelerator reaches its host."""

LINK_OF = PCIE_OF | _TABLES["direct"]
"""How accelerators of a kind reach each other in a host."""

PRESETS: dict[str, str] = _TABLES["clusters"]
"""The clusters that `placeopt clusters` lists; the grammar of `make_cluster` accepts many more."""
