"""Ready-made devices, links and clusters, with the source of every number.

Peaks are datasheet values of dense arithmetic without sparsity; bandwidths are per direction. Fit
your own with `placeopt.instances.cost_fit` where real times are at hand.
"""

from __future__ import annotations

from placeopt.model.cluster import Device, Link

GIB = 2**30
MAX_DEVICES = 4096

DEVICES: dict[str, Device] = {
    # NVIDIA Tesla P100 datasheet (SXM2): 10.6 TFLOP/s fp32, 732 GB/s HBM2, 16 GB.
    "P100": Device("P100", "P100", "gpu", 10.6e12, 732e9, 16 * GIB, 5e-6),
    # NVIDIA V100 datasheet (SXM2): 15.7 TFLOP/s fp32, 900 GB/s HBM2, 16 GB.
    "V100": Device("V100", "V100", "gpu", 15.7e12, 900e9, 16 * GIB, 5e-6),
    # NVIDIA A100 datasheet (SXM4, 40 GB): 19.5 TFLOP/s fp32, 1555 GB/s HBM2.
    "A100": Device("A100", "A100", "gpu", 19.5e12, 1555e9, 40 * GIB, 4e-6),
    # NVIDIA H100 datasheet (SXM5, 80 GB): 67 TFLOP/s fp32, 3.35 TB/s HBM3.
    "H100": Device("H100", "H100", "gpu", 67e12, 3350e9, 80 * GIB, 4e-6),
    # NVIDIA H200 datasheet (SXM): 67 TFLOP/s fp32, 4.8 TB/s HBM3e, 141 GB.
    "H200": Device("H200", "H200", "gpu", 67e12, 4800e9, 141 * GIB, 4e-6),
    # NVIDIA Blackwell datasheet, HGX B200, per GPU: 75 TFLOP/s fp32, 7.7 TB/s HBM3e, 180 GB.
    "B200": Device("B200", "B200", "gpu", 75e12, 7700e9, 180 * GIB, 4e-6),
    # NVIDIA L40S datasheet: 91.6 TFLOP/s fp32, 864 GB/s GDDR6, 48 GB.
    "L40S": Device("L40S", "L40S", "gpu", 91.6e12, 864e9, 48 * GIB, 4e-6),
    # NVIDIA L4 datasheet: 30.3 TFLOP/s fp32, 300 GB/s GDDR6, 24 GB.
    "L4": Device("L4", "L4", "gpu", 30.3e12, 300e9, 24 * GIB, 4e-6),
    # NVIDIA T4 datasheet: 8.1 TFLOP/s fp32, 320 GB/s GDDR6, 16 GB.
    "T4": Device("T4", "T4", "gpu", 8.1e12, 320e9, 16 * GIB, 5e-6),
    # NVIDIA A10G datasheet: 35 TFLOP/s fp32, 600 GB/s GDDR6, 24 GB.
    "A10G": Device("A10G", "A10G", "gpu", 35e12, 600e9, 24 * GIB, 4e-6),
    # NVIDIA Ada architecture paper, GeForce RTX 4090: 82.6 TFLOP/s fp32, 1008 GB/s GDDR6X, 24 GB.
    "RTX4090": Device("RTX4090", "RTX4090", "gpu", 82.6e12, 1008e9, 24 * GIB, 4e-6),
    # AMD Instinct MI300X datasheet: 163.4 TFLOP/s fp32 (vector), 5.3 TB/s HBM3, 192 GB.
    "MI300X": Device("MI300X", "MI300X", "gpu", 163.4e12, 5300e9, 192 * GIB, 5e-6),
    # Google Cloud documentation of TPU v5e, per chip: 197 TFLOP/s bf16 (no fp32 peak is given), 819
    # GB/s HBM2, 16 GB.
    "TPUv5e": Device("TPUv5e", "TPUv5e", "accelerator", 197e12, 819e9, 16 * GIB, 5e-6),
    # Intel Xeon Gold 6148 (20 cores, 2 AVX-512 units at 1.6 GHz): 20 * 64 * 1.6e9 flop/s, 6 x
    # DDR4-2666.
    "cpu": Device("cpu", "cpu", "cpu", 2.05e12, 128e9, 256 * GIB, 1e-6),
    # Arm Cortex-A72, 4 cores at 1.5 GHz, 8 flop per cycle each; LPDDR4 (Raspberry Pi 4).
    "edge-cpu": Device("edge-cpu", "edge-cpu", "cpu", 48e9, 6e9, 4 * GIB, 1e-6),
    # Google Edge TPU datasheet: 4 TOP/s int8, 8 MiB of on-chip memory; host memory behind it is not
    # counted.
    "edge-accelerator": Device(
        "edge-accelerator", "edge-accelerator", "accelerator", 4e12, 25e9, 8 * 2**20, 1e-5
    ),
    # A nominal device, for graphs that carry their own times: 1 TFLOP/s, 100 GB/s, no memory limit.
    "uniform": Device("uniform", "uniform", "accelerator", 1e12, 100e9),
}

TENSOR_CORE_PEAKS: dict[str, dict[str, float]] = {
    # The same datasheets, matrix units.
    "P100": {"fp16": 21.2e12},
    "V100": {"fp16": 125e12},
    "A100": {"tf32": 156e12, "fp16": 312e12},
    "H100": {"tf32": 494.7e12, "fp16": 989.4e12},
    "H200": {"tf32": 494.7e12, "fp16": 989.4e12},
    "B200": {"tf32": 1100e12, "fp16": 2250e12},
    "L40S": {"tf32": 183e12, "fp16": 362e12},
    "L4": {"tf32": 60e12, "fp16": 121e12},
    "T4": {"fp16": 65e12},
    "A10G": {"tf32": 35e12, "fp16": 70e12},
    "RTX4090": {"tf32": 82.6e12, "fp16": 165.2e12},
    "MI300X": {"tf32": 653.7e12, "fp16": 1307.4e12},
}

LINKS: dict[str, Link] = {
    # NVLink 1 (P100, 4 x 20 GB/s), 2 (V100, 6 x 25 GB/s), 3 (A100, 12 x 25 GB/s), 4 (H100 and H200,
    # 18 x 25 GB/s),
    # 5 (B200, 18 x 50 GB/s), per direction.
    "nvlink-P100": Link("nvlink-P100", 5e-6, 80e9),
    "nvlink-V100": Link("nvlink-V100", 5e-6, 150e9),
    "nvlink-A100": Link("nvlink-A100", 5e-6, 300e9),
    "nvlink-H100": Link("nvlink-H100", 5e-6, 450e9),
    "nvlink-H200": Link("nvlink-H200", 5e-6, 450e9),
    "nvlink-B200": Link("nvlink-B200", 5e-6, 900e9),
    # Infinity Fabric between two MI300X of a host: one of seven links, 64 GB/s per direction.
    "xgmi-MI300X": Link("xgmi-MI300X", 5e-6, 64e9),
    # TPU v5e: 400 GB/s of both directions together over four ports.
    "ici-TPUv5e": Link("ici-TPUv5e", 5e-6, 50e9),
    # PCI Express x16: generation 3 15.75 GB/s, 4 31.5 GB/s, 5 63 GB/s.
    "pcie3": Link("pcie3", 1e-5, 15.75e9),
    "pcie4": Link("pcie4", 1e-5, 31.5e9),
    "pcie5": Link("pcie5", 1e-5, 63e9),
    # 100 Gb/s Ethernet between hosts.
    "ethernet": Link("ethernet", 3e-5, 12.5e9),
    # USB 3.0, 5 Gb/s with 8b/10b coding: 500 MB/s.
    "usb3": Link("usb3", 1e-4, 0.5e9),
    "uniform": Link("uniform", 0.0, 10e9),
}

PCIE_OF = {
    "P100": "pcie3",
    "V100": "pcie3",
    "A100": "pcie4",
    "H100": "pcie5",
    "H200": "pcie5",
    "B200": "pcie5",
    "L40S": "pcie4",
    "L4": "pcie4",
    "T4": "pcie3",
    "A10G": "pcie4",
    "RTX4090": "pcie4",
    "MI300X": "pcie5",
    "TPUv5e": "pcie3",
}
"""How each accelerator reaches its host, by its datasheet."""

LINK_OF = {
    **PCIE_OF,
    **{kind: f"nvlink-{kind}" for kind in ("P100", "V100", "A100", "H100", "H200", "B200")},
    "MI300X": "xgmi-MI300X",
    "TPUv5e": "ici-TPUv5e",
}
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
