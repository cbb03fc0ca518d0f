"""Plans of public models at public scales by the shipped cost model: one command.

    python results/plans/launches.py [--again]

Writes launches.csv, unless it is there: plan, step, gap, MFU, plans priced, seconds of search;
beside them what public recipes run there, where one is known, and the best step with the recipe's
degrees under the same model. Seven rows that once went wrong come first.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from placeopt.experiments.studies import row_options
from placeopt.planning.launch_answer import to_json
from placeopt.planning.launch_search import (
    LaunchProblem,
    read_machine,
    read_shape,
    search,
)
from placeopt.plans.calibration import default_calibration

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from whole_tables import record_tables  # noqa: E402 - results/ is no package

CASES = (
    ("layers=72,hidden=14336,heads=112", "384xA100-80", 2048, 2048, "fp16", ""),
    ("llama-7b", "8xA100", 64, 2048, "bf16", ""),
    ("llama3-70b", "256xH100", 512, 4096, "bf16", ""),
    ("llama3-405b", "8xA100", 16, 4096, "bf16", ""),
    ("llama2-7b", "8xH100", 128, 4096, "bf16", "NeMo: TP1 PP1 (fp8)"),
    ("llama3-70b", "64xH100", 128, 8192, "bf16", "NeMo: TP4 PP4 CP2 (fp8)"),
    ("llama3-405b", "1024xH100", 512, 8192, "bf16", "Megatron: TP8 PP8 VP8 CP2 (fp8)"),
    ("llama3-405b", "16384xH100", 2048, 8192, "bf16", "Llama 3 paper: TP8 PP16 DP128"),
    ("mixtral-8x7b", "64xH100", 512, 4096, "bf16", "NeMo: TP1 PP4 EP8"),
    ("deepseek-v3", "1024xH100", 8192, 4096, "bf16", "automodel: PP4 EP64 FSDP256"),
)


DEGREES = {
    ("llama2-7b", "8xH100"): {"tensor": 1, "pipeline": 1},
    ("llama3-70b", "64xH100"): {"tensor": 4, "pipeline": 4, "context": 2},
    ("llama3-405b", "1024xH100"): {"tensor": 8, "pipeline": 8, "context": 2},
    ("llama3-405b", "16384xH100"): {"tensor": 8, "pipeline": 16, "context": 1},
    ("mixtral-8x7b", "64xH100"): {"tensor": 1, "pipeline": 4, "expert": 8},
}
"""Degrees of the recipes; 61 layers on 4 stages are not in the space."""


def launches() -> list[dict[str, Any]]:
    """Search every case."""
    rows = []
    for model, cluster, batch, sequence, precision, recipe in CASES:
        shape, machine = read_shape(model), read_machine(cluster)
        if shape is None or machine is None:
            raise SystemExit(f"{model} on {cluster} is not known")
        problem = LaunchProblem(shape, machine, batch, sequence, default_calibration(), precision)
        answer = search(problem, 10.0)
        fixed = DEGREES.get((model, cluster))
        given = search(replace(problem, fixed=fixed), 10.0).given if fixed else None
        body = to_json(answer)
        rows.append(
            {
                "model": model,
                "devices": cluster,
                "batch": batch,
                "sequence": sequence,
                "precision": precision,
                "plan": body.get("plan", ""),
                "step_s": body["step_seconds"] and round(body["step_seconds"], 3),
                "gap": body["gap"],
                "mfu": body.get("mfu") and round(body["mfu"], 3),
                "memory_gib": body.get("peak_memory_bytes", 0) / 2**30,
                "priced": body["plans_that_fit"],
                "looked_at": body["plans_looked_at"],
                "search_s": round(answer.runtime, 2),
                "regret": body.get("regret"),
                "safest_plan": body.get("safest", {}).get("plan", ""),
                "safest_step_s": body.get("safest", {}).get("step_seconds"),
                "safest_regret": body.get("safest", {}).get("regret"),
                "recipe": recipe,
                "recipe_step_s": given and round(given.seconds, 3),
                "recipe_fits": given and given.memory.total <= problem.limit,
                "said": body["message"],
            }
        )
        print(*rows[-1].values())
    return rows


if __name__ == "__main__":
    record_tables(HERE, {"launches": launches}, row_options(__doc__), 3)
