"""`onnxruntime`: the model cut into one ONNX file per device and segment, a manifest, and a runner
that stands alone.

A segment holds calls of one device that can run one after the other without waiting for another
device. Weights are in the part that uses them, in each where several do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.exports.job import Exported
from placeopt.programs.calls import segments
from placeopt.programs.onnx_program import parts_of

if TYPE_CHECKING:
    from placeopt.exports.job import Job


def export(job: Job) -> Exported:
    """Return the manifest; `placeopt.programs.onnx_program.open_runner` runs what is written."""
    groups = segments(job.onnx.program, job.home.tolist())
    home = [int(job.home[group[0]]) for group in groups]
    manifest, files = parts_of(job.onnx, groups, home, job.devices)
    used = sorted({job.devices[d] for d in home})
    note = f"{len(groups)} parts on {len(used)} devices ({', '.join(used)})"
    return Exported(manifest, files, (note,))
