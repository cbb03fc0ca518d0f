"""`csv`: one line per op, with its device and rank; other programs read it, and so does `placeopt
verify`.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from placeopt.exports.job import Exported, text_file

if TYPE_CHECKING:
    from placeopt.exports.job import Job


def export(job: Job) -> Exported:
    """Return the table as text; the rank is left out where the placement has none."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    ranks = None if job.placement.priority is None else job.placement.priority.tolist()
    writer.writerow(["op", "device"] + ([] if ranks is None else ["priority"]))
    for op, (name, device) in enumerate(
        zip(job.problem.op_names, job.placement.device.tolist(), strict=True)
    ):
        writer.writerow(
            [name, job.problem.device_names[device]] + ([] if ranks is None else [ranks[op]])
        )
    text = stream.getvalue()
    return Exported(text, {"placement.csv": text_file(text)})
