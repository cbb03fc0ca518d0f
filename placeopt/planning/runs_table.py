"""`plan --runs`: step time and memory of every row of a table of training runs."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from placeopt.model.errors import InputError
from placeopt.model.files import read_text, write_text
from placeopt.planning.run_rows import Run, read_run
from placeopt.plans.calibration import Calibration, default_calibration
from placeopt.plans.configuration import RECOMPUTE, SHARDING, Configuration
from placeopt.plans.memory_model import MemoryParts, memory_parts
from placeopt.plans.step_model import StepModel, StepParts

ADDED = ("predicted_step_s", "predicted_memory_gb", "predicted_oom", "note")
OFFLOADED = "offloading to the host assumed: nothing else fits"
USABLE = 0.95
"""Part of a device's memory that a run may use: the driver keeps the rest."""


def predict_run(run: Run, constants: Calibration) -> tuple[StepParts, MemoryParts, Run, str]:
    """Return time, memory, the run as it was priced, and what was assumed of recomputation.

    Where a row does not say what is recomputed or shared out, the least that fits is taken.
    """
    model, limit = StepModel(run.shape, run.gpu, constants), USABLE * run.gpu.memory
    held, least = model.held(run.conf), SHARDING.index(run.conf.sharding)
    found: list[tuple[Configuration, MemoryParts]] = []
    for sharding in SHARDING[least:] if run.unsaid_sharding else (run.conf.sharding,):
        for recompute in RECOMPUTE if run.unsaid_recompute else (run.conf.recompute,):
            conf = replace(run.conf, recompute=recompute, sharding=sharding)
            kept = replace(conf, sharding="zero1") if run.shares and sharding == "none" else conf
            memory = memory_parts(run.shape, kept, held, constants.memory)
            found.append((conf, memory))
            if memory.total <= limit:
                break
        if memory.total <= limit or (conf.pipeline > 1 and sharding == "zero1"):
            break
    offloaded = False
    if memory.total > limit:  # nothing fits: the row was leaner than this model
        conf, memory = found[0]
        if run.unsaid_sharding and conf.pipeline == 1 and conf.recompute == "full":
            lean = memory_parts(run.shape, conf, held, constants.memory, offloaded=True)
            offloaded = lean.total <= limit
            memory = lean if offloaded else memory
    elif run.unsaid_recompute and conf.recompute == "full":
        most = found[-len(RECOMPUTE)][1].total
        share = (most - limit) / max(1.0, most - memory.total)
        conf = replace(conf, share=min(1.0, share))
        kept = replace(conf, sharding="zero1") if run.shares and sharding == "none" else conf
        memory = memory_parts(run.shape, kept, held, constants.memory)
    part = f" of {100 * conf.share:.0f} % of the layers" if conf.share < 1 else ""
    said = [f"recompute {conf.recompute}{part} assumed"] if run.unsaid_recompute else []
    if run.unsaid_sharding and conf.data * conf.context > 1:
        said.append(f"sharding {conf.sharding} assumed")
    if offloaded:
        said.append(OFFLOADED)
    return model.parts(conf), memory, replace(run, conf=conf), "; ".join(said)


def read_runs(path: str | Path) -> list[dict[str, str]]:
    """Return the rows of a table.

    Raises
    ------
    InputError
        If the file is no table with a header.
    """
    reader = csv.DictReader(io.StringIO(read_text(path)))
    if not reader.fieldnames or not {"model", "gpu", "layers"} & set(reader.fieldnames):
        raise InputError(
            f"file '{path}': expected a CSV table with the columns model, gpu, n_gpus, seq_len, "
            f"global_batch, tp, pp, dp, ...; received {str(reader.fieldnames)[:60]}"
        )
    return [{key: value for key, value in row.items() if key} for row in reader]


def predicted_row(row: dict[str, Any], constants: Calibration) -> dict[str, Any]:
    """Return a row with its predictions, or with a note of what it lacks."""
    try:
        run = read_run(row)
        parts, memory, run, said = predict_run(run, constants)
    except InputError as error:
        return row | dict.fromkeys(ADDED[:3], "") | {"note": str(error)}
    notes = [*run.notes, *([said] if said else [])]
    total = memory.total / 2**30
    return row | {
        "predicted_step_s": f"{parts.total:.6g}",
        "predicted_memory_gb": f"{total:.4g}",
        "predicted_oom": int(memory.total > USABLE * run.gpu.memory),
        "note": "; ".join(notes),
    }


def predict_table(
    path: str | Path, out: str | Path, constants: Calibration | None = None
) -> list[dict[str, Any]]:
    """Predict every row of a table and write it with the columns `ADDED`."""
    rows = [predicted_row(row, constants or default_calibration()) for row in read_runs(path)]
    names = list(dict.fromkeys(key for row in rows for key in row)) or list(ADDED)
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(Path(out), text.getvalue())
    return rows
