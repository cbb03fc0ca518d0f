"""Targets whose files other rooms know to write.

`csv`: one line per op, with its device and rank; other programs read it, and so does `placeopt
verify`.

`onnxruntime`: the model cut into one ONNX file per device and segment, a manifest, and a runner
that stands alone. A segment holds calls of one device that can run one after the other without
waiting for another device. Weights are in the part that uses them, in each where several do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.exports.export import Exported, text_file
from placeopt.io.placement_file import placement_csv
from placeopt.programs.calls import segments
from placeopt.programs.onnx_program import parts_of

if TYPE_CHECKING:
    from placeopt.exports.export import Job


def csv_table(job: Job) -> Exported:
    """Return the table as text; the rank is left out where the placement has none."""
    text = placement_csv(job.problem, job.placement)
    return Exported(text, {"placement.csv": text_file(text)})


def onnxruntime_parts(job: Job) -> Exported:
    """Return the manifest; `placeopt.programs.onnx_program.open_runner` runs what is written."""
    groups = segments(job.onnx.program, job.home.tolist())
    home = [int(job.home[group[0]]) for group in groups]
    manifest, files = parts_of(job.onnx, groups, home, job.devices)
    used = sorted({job.devices[d] for d in home})
    note = f"{len(groups)} parts on {len(used)} devices ({', '.join(used)})"
    return Exported(manifest, files, (note,))
