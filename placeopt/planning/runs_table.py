"""`plan --runs`: step time and memory of every row of a table of training runs."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError
from placeopt.model.files import read_text, write_text
from placeopt.planning.run_rows import Run, read_run
from placeopt.plans.calibration import Calibration, default_calibration
from placeopt.plans.configuration import RECOMPUTE, SHARDING, Configuration
from placeopt.plans.step_model import MemoryParts, StepModel, StepParts, memory_parts

if TYPE_CHECKING:
    from collections.abc import Callable

PREDICTED = (
    "predicted_step_s",
    "predicted_low_s",
    "predicted_high_s",
    "predicted_memory_gb",
    "predicted_oom",
)
ADDED = (*PREDICTED, "note")
OFFLOADED = "offloading to the host assumed: nothing else fits"
USABLE = 0.99
"""Part of the memory as sold that drivers report, to a hundredth: 16160 MiB on V100-16, 32510 on
V100-32, 81251 on A100-80, 81559 on H100."""


def predict_run(run: Run, constants: Calibration) -> tuple[StepParts, MemoryParts, Run, str]:
    """Return time, memory, the run as it was priced, and what was assumed of recomputation.

    Where a row does not say what is shared out, the least that fits is taken; where it does not say
    what is recomputed, as many layers as the memory lacks.
    """
    model = StepModel(run.shape, run.gpu, constants)
    held, limit = model.held(run.conf), USABLE * run.gpu.memory

    def memory_of(conf: Configuration, offloaded: bool = False) -> MemoryParts:
        shared = run.shares and conf.sharding == "none"
        kept = replace(conf, sharding="zero1") if shared else conf
        parts = memory_parts(run.shape, kept, held, constants.memory, offloaded)
        return replace(parts, optimizer=0.0) if run.offloads else parts

    found = _leanest(run, memory_of, limit)
    conf, memory = found[-1]
    offloaded = False
    if memory.total > limit:  # nothing fits: the row was leaner than this model
        conf, memory = found[0]
        if run.unsaid_sharding and conf.pipeline == 1 and conf.recompute == "full":
            lean = memory_of(conf, offloaded=True)
            offloaded = lean.total <= limit
        if offloaded:  # no rank holds all weights, so that they are gathered layer by layer
            memory, conf = lean, replace(conf, sharding="zero3")
    elif run.unsaid_recompute and conf.recompute == "full":
        most = found[-len(RECOMPUTE)][1].total
        lacking = most - limit + 1e-6 * limit  # what is rounded must not count as too much
        conf = replace(conf, share=min(1.0, lacking / max(1.0, most - memory.total)))
        memory = memory_of(conf)
    return model.parts(conf), memory, replace(run, conf=conf), _assumed(run, conf, offloaded)


def _leanest(
    run: Run, memory_of: Callable[[Configuration], MemoryParts], limit: float
) -> list[tuple[Configuration, MemoryParts]]:
    """Return what a row may have run, in order, up to the first that fits."""
    found = []
    for sharding in (
        SHARDING[SHARDING.index(run.conf.sharding) :]
        if run.unsaid_sharding
        else (run.conf.sharding,)
    ):
        for recompute in RECOMPUTE if run.unsaid_recompute else (run.conf.recompute,):
            conf = replace(run.conf, recompute=recompute, sharding=sharding)
            found.append((conf, memory_of(conf)))
            if found[-1][1].total <= limit:
                return found
        if run.conf.pipeline > 1 and sharding == "zero1":
            return found
    return found


def _assumed(run: Run, conf: Configuration, offloaded: bool) -> str:
    """Say what a row does not."""
    part = f" of {100 * conf.share:.0f} % of the layers" if conf.share < 1 else ""
    said = [f"recompute {conf.recompute}{part} assumed"] if run.unsaid_recompute else []
    if run.unsaid_sharding and conf.data * conf.context > 1:
        said.append(f"sharding {conf.sharding} assumed")
    if offloaded:
        said.append(OFFLOADED)
    return "; ".join(said)


def read_runs(path: str | Path) -> list[dict[str, str]]:
    """Return the rows of a table.

    Raises
    ------
    InputError
        If the file is no table with a header.
    """
    text = read_text(path).lstrip("\ufeff")
    first = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=first.count))
    names = [str(name or "").strip().lower() for name in reader.fieldnames or []]
    if not {"model", "gpu", "layers"} & set(names):
        raise InputError(
            f"file '{path}': expected a CSV table with the columns model, gpu, n_gpus, seq_len, "
            f"global_batch, tp, pp, dp, ...; received {str(names)[:60]}"
        )
    reader.fieldnames = names
    return [{key: value or "" for key, value in row.items() if key} for row in reader]


def predicted_row(row: dict[str, Any], constants: Calibration) -> dict[str, Any]:
    """Return a row with its predictions, or with a note of what it lacks."""
    try:
        run = read_run(row)
        parts, memory, run, said = predict_run(run, constants)
    except InputError as error:
        return row | dict.fromkeys(PREDICTED, "") | {"note": str(error)}
    notes = [*run.notes, *([said] if said else [])]
    total = memory.total / 2**30
    spread = constants.interval(run.conf, run.gpu, run.launcher)
    low, high = spread[:2] if spread else (None, None)
    return row | {
        "predicted_step_s": f"{parts.total:.6g}",
        "predicted_low_s": f"{low * parts.total:.6g}" if low else "",
        "predicted_high_s": f"{high * parts.total:.6g}" if high else "",
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
