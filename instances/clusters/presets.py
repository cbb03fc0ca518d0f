"""Ready-made devices, links and clusters; presets.toml has the numbers, and the source of each.

Fit your own with `placeopt.instances.cost_fit` where real times are at hand.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from placeopt.model.cluster import Device, Link

GIB = 2**30
MAX_DEVICES = 4096

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))

DEVICES = {name: Device(name, name, **row) for name, row in _TABLES["devices"].items()}

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
