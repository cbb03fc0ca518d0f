"""Prices of single matrix products where nothing was measured, against measured ones: one command.

    PLACEOPT_DATA=../shared/data python results/plans/ops.py

Writes ops.csv: the error of the time of 16-bit products (data/measured/gemm.csv.gz) by what
`solve`, `shard` and `schedule` take without measured costs, the roofline of a cluster's device, at
each precision; by the same at the peak that the best product sustains (placeopt/plans/gpus.json);
and by the products of `plan`, whose constants were fitted to whole training steps. Nothing is
fitted here.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

from placeopt.experiments.studies import data_folder, write_csv
from placeopt.instances.clusters import make_cluster
from placeopt.plans.calibration import default_calibration
from placeopt.plans.gpus import find_gpu

HERE = Path(__file__).parent
KINDS = {"a100": "A100", "h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "l40s": "L40S"}


def main() -> None:
    """Price every product and write the table."""
    with gzip.open(data_folder("measured") / "gemm.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["gemm_dtype"] in ("bfloat16", "float16")]
    table = []
    for name, kind in KINDS.items():
        mine = [row for row in rows if row["gpu"].lower().startswith(name)]
        if not mine:
            continue
        m, n, k, seconds = (
            np.array([float(row[key]) for row in mine]) for key in ("m", "n", "k", "seconds")
        )
        flops, moved = 2 * m * n * k, 2 * (m * n + m * k + k * n)
        device, gpu, c = (
            make_cluster(f"1x{kind}").devices[0],
            find_gpu(kind)[0],
            default_calibration(),
        )
        peaks = {
            f"roofline, precision={precision}": make_cluster(f"1x{kind}?precision={precision}")
            .devices[0]
            .peak_flops
            for precision in ("fp32", "bf16")
        }
        best = gpu.peak("bf16")[0] * gpu.share("bf16")
        peaks["roofline, sustained bf16"] = best
        priced = {
            what: np.maximum(flops / peak, moved / device.memory_bandwidth) + device.launch_overhead
            for what, peak in peaks.items()
        }
        read = c["gemm_out"] * 2 * m * n + c["gemm_in"] * 2 * (m * k + k * n)
        priced["products of `plan`"] = (
            c["gemm_launch"] + c["gemm_flops"] * flops / best + read / gpu.bandwidth
        )
        for what, times in priced.items():
            off = 100 * np.abs(times / seconds - 1)
            table.append(
                {
                    "gpu": kind,
                    "products": len(mine),
                    "priced_by": what,
                    "median_error": round(float(np.median(off)), 1),
                    "mean_error": round(float(off.mean()), 1),
                    "predicted_by_measured": round(float(np.median(times / seconds)), 2),
                }
            )
            print(*table[-1].values())
    write_csv(HERE / "ops.csv", table)


if __name__ == "__main__":
    main()
