"""`csv`: one line per op, with its device and rank; other programs read it, and so does `placeopt
verify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.exports.job import Exported, text_file
from placeopt.io.placement_file import placement_csv

if TYPE_CHECKING:
    from placeopt.exports.job import Job


def export(job: Job) -> Exported:
    """Return the table as text; the rank is left out where the placement has none."""
    text = placement_csv(job.problem, job.placement)
    return Exported(text, {"placement.csv": text_file(text)})
