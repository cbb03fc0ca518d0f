"""Where pipeline problems come from: the name of a shape, or a block table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.schedules.shapes import shape_from_text
from placeopt.schedules.table import read_table

if TYPE_CHECKING:
    import os

    from placeopt.schedules.problem import PipelineProblem


def load_pipeline(source: str | os.PathLike[str], **options: Any) -> PipelineProblem:
    """Read a pipeline problem from a shape's name, a block table, or a table file.

    Parameters
    ----------
    source : `shape:NAME?devices=4&...` (see `placeopt.schedules.shapes`), or the path of a `.toml`,
    `.json`
        or `.csv` block table (see `placeopt.schedules.table`).
    options : what may also stand behind the `?`; an option given here wins. All sources take
    `memory` (capacity
        of every device, or a sequence), `micro_batches` and `mode` ("train" or "infer").

    Examples
    --------
    >>> load_pipeline("shape:V?devices=4&memory=3").work.tolist()
    [4, 4, 4, 4]
    """
    text = str(source)
    return (
        shape_from_text(text, **options)
        if text.startswith("shape:")
        else read_table(text, **options)
    )
