"""Prices of single kernels where nothing was measured, against measured ones: one command.

    PLACEOPT_DATA=../shared/data python results/plans/ops.py [--again]

What `solve`, `shard` and `schedule` take for 16-bit matrix products (data/measured/gemm.csv.gz) and
for causal attention (attention_prefill.csv.gz) without measured costs. The factors of `[kernels]`
in instances/clusters/presets.toml are fitted to kernels of two devices, by the logarithm of
predicted over measured with a robust loss, and printed; all other devices are unseen. Writes
ops.csv, unless it is there: errors of the time, by the data sheet's peaks and by these factors, and
of the products of `plan`, whose constants were fitted to whole training steps.
"""

from __future__ import annotations

import csv
import gzip
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import least_squares

from placeopt.experiments.studies import data_folder, row_options
from placeopt.instances.clusters.hardware import KERNELS, known_gpus
from placeopt.plans.calibration import default_calibration

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.instances.clusters.hardware import Gpu
    from placeopt.model.arrays import Floats

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from whole_tables import record_tables  # noqa: E402 - results/ is no package

KINDS = {
    "a100_sxm": "A100",
    "h100_sxm": "H100",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTXPRO6000",
}
FITTED = ("A100", "H100")
LAUNCH = 4e-6
"""Seconds beside a kernel that ready-made devices of these generations have."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Kernels of a device: flops, bytes of operands and of results, and measured seconds."""

    gpu: Gpu
    flops: Floats
    read: Floats
    written: Floats
    seconds: Floats

    def roofline(self, peak: float, bandwidth: float, launch: float) -> Floats:
        """Seconds by the cost model (placeopt/model/cost_model.py)."""
        work = np.maximum(self.flops / peak, (self.read + self.written) / bandwidth)
        return np.asarray(work + launch)

    @property
    def best(self) -> float:
        """Flop/s of the best product."""
        peak, used = self.gpu.peak("bf16")
        return peak * self.gpu.share(used)

    def fitted(self, row: dict[str, float]) -> Floats:
        """Seconds by a row of `KERNELS`."""
        launch = row.get("launch", LAUNCH)
        bandwidth = row["bandwidth"] * self.gpu.bandwidth
        return self.roofline(row["flops"] * self.best, bandwidth, launch)

    def planned(self) -> Floats:
        """Seconds of products by the constants of `plan`."""
        c = default_calibration()
        moved = (c["gemm_out"] * self.written + c["gemm_in"] * self.read) / self.gpu.bandwidth
        return np.asarray(c["gemm_launch"] + c["gemm_flops"] * self.flops / self.best + moved)


def columns(name: str, kind: str, keys: str) -> dict[str, list[Floats]]:
    """Return columns of a table by device: rows of 16-bit kernels."""
    found: dict[str, list[list[float]]] = {gpu: [] for gpu in KINDS.values()}
    with gzip.open(data_folder("measured") / name, "rt") as file:
        for row in csv.DictReader(file):
            if row[kind] in ("bfloat16", "float16") and row["gpu"] in KINDS:
                found[KINDS[row["gpu"]]].append([float(row[key]) for key in keys.split()])
    return {gpu: list(np.array(rows).T) for gpu, rows in found.items()}


def products() -> dict[str, Measured]:
    """Return measured products (m, n, k)."""
    return {
        gpu: Measured(known_gpus()[gpu], 2 * m * n * k, 2 * (m * k + k * n), 2 * m * n, seconds)
        for gpu, (m, n, k, seconds) in columns("gemm.csv.gz", "gemm_dtype", "m n k seconds").items()
    }


def attention() -> dict[str, Measured]:
    """Return measured causal attention: half of the two products counts."""
    keys = "batch_size isl num_heads num_key_value_heads head_dim seconds"
    found = {}
    for gpu, (batch, length, heads, shared, width, seconds) in columns(
        "attention_prefill.csv.gz", "attn_dtype", keys
    ).items():
        token = 2 * batch * length * width  # bytes of one head
        flops = 2 * batch * length**2 * heads * width
        read = token * (heads + 2 * shared)
        found[gpu] = Measured(known_gpus()[gpu], flops, read, token * heads, seconds)
    return found


def fit(rows: dict[str, Measured], start: dict[str, float]) -> dict[str, float]:
    """Return the factors of the devices that are fitted, each device counting as much."""
    names = list(start)

    def errors(logs: Floats) -> Floats:
        row = dict(zip(names, np.exp(logs), strict=True))
        parts = [rows[gpu] for gpu in FITTED]
        return np.concatenate([np.log(part.fitted(row) / part.seconds) for part in parts])

    first = np.log(list(start.values()))
    found = least_squares(errors, first, loss="soft_l1", f_scale=0.1)
    return {name: float(f"{value:.3g}") for name, value in zip(names, np.exp(found.x), strict=True)}


def judged(what: str, rows: dict[str, Measured], priced: dict[str, Any]) -> list[dict[str, Any]]:
    """Return errors of the time, by device and price."""
    table = []
    for gpu, part in rows.items():
        for name, price in priced.items():
            times = price(part)
            off = 100 * np.abs(times / part.seconds - 1)
            table.append(
                {
                    "kernels": what,
                    "gpu": gpu,
                    "rows": len(off),
                    "unseen": int(gpu not in FITTED),
                    "priced_by": name,
                    "median_error": round(float(np.median(off)), 1),
                    "mean_error": round(float(off.mean()), 1),
                    "predicted_by_measured": round(float(np.median(times / part.seconds)), 2),
                }
            )
            print(*table[-1].values())
    return table


def kernels() -> list[dict[str, Any]]:
    """Fit the factors and price every kernel."""
    table = []
    sheet: dict[str, Callable[[Measured], Floats]] = {
        f"roofline, precision={precision}": lambda part, precision=precision: part.roofline(
            part.gpu.peak(precision)[0], part.gpu.bandwidth, LAUNCH
        )
        for precision in ("fp32", "bf16")
    }
    for what, rows in (("product", products()), ("attention", attention())):
        print("fitted:", what, fit(rows, KERNELS[what]))
        priced = sheet | {"default": lambda part, row=KERNELS[what]: part.fitted(row)}
        if what == "product":
            priced["products of `plan`"] = Measured.planned
        table += judged(what, rows, priced)
    return table


if __name__ == "__main__":
    record_tables(HERE, {"ops": kernels}, row_options(__doc__))
