"""Ready-made devices, links and clusters; presets.toml has the numbers, and the source of each.

What kernels of 16-bit values reach is the best measured product of gpus.json, and the bandwidth of
memory, times factors that were fitted to kernels of other devices (`results/plans/ops.py`).

Fit your own with `placeopt.instances.cost_fit` where real times are at hand.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from placeopt.instances.clusters.gpus import known_gpus
from placeopt.model.cluster import Device, Link, Rates

GIB = 2**30
MAX_DEVICES = 4096

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))

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

PRESETS = {
    **{
        f"{n}x{kind}": f"{n} {kind} in one host, NVLink"
        for kind in ("P100", "V100", "A100", "H100", "H200", "B200")
        for n in (1, 2, 4, 8)
    },
    **{
        f"{n}x{kind}-pcie": f"{n} {kind} in one host, PCI Express"
        for kind in ("P100", "V100", "A100")
        for n in (2, 4, 8)
    },
    **{
        f"4x{kind}": f"4 {kind} in one host, PCI Express"
        for kind in ("L40S", "L4", "T4", "A10G", "RTX4090")
    },
    "8xMI300X": "8 MI300X in one host, Infinity Fabric",
    "8xTPUv5e": "8 TPU v5e chips, any two joined as neighbours are",
    "cpu+gpu": "a CPU and a V100 over PCI Express",
    "cpu+2xV100": "a CPU and 2 V100, NVLink between the GPUs",
    "cpu+4xP100": "a CPU and 4 P100, NVLink between the GPUs",
    "edge": "a small CPU and an accelerator over USB",
    "2x4xA100": "2 hosts with 4 A100 each, NVLink inside, Ethernet between",
    "2xA100+2xV100": "2 A100 in one host and 2 V100 in another, Ethernet between",
    "uniform:4": "4 identical devices, for files that carry their own times",
}
"""The clusters that `placeopt clusters` lists; the grammar of `make_cluster` accepts many more."""
