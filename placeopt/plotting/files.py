"""Write the pictures and traces of a placement."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from placeopt.model.errors import MissingExtraError
from placeopt.model.files import write_bytes, write_text

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem


def write_figure(figure: Any, path: Path, dpi: int = 150) -> Path:
    """Write a matplotlib figure; the suffix of `path` chooses PNG, SVG or PDF. The file is replaced
    at once.
    """
    kind = path.suffix.lstrip(".").lower() or "png"
    return write_bytes(path, figure_bytes(figure, kind, dpi))


def figure_bytes(figure: Any, kind: str, dpi: int) -> bytes:
    """Return a matplotlib figure as a file of a kind, such as "png"."""
    stream = io.BytesIO()
    # Without a date, the same picture is the same file.
    metadata = {
        "png": {"Software": "placeopt"},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
    }.get(kind)
    figure.savefig(stream, format=kind, dpi=dpi, metadata=metadata)
    return stream.getvalue()


def write_pictures(
    folder: Path,
    problem: PlacementProblem,
    placement: Placement,
    queue: str | None = None,
    lower_bound: int | None = None,
) -> list[Path]:
    """Write gantt.png and trace.json of a placement into `folder`; return what was written.

    Without matplotlib the picture is left out: the trace needs nothing.
    """
    from placeopt.makespan.evaluate import evaluate
    from placeopt.plotting.trace import chrome_trace

    run = evaluate(problem, placement, queue, check=False)
    written = [write_text(folder / "trace.json", json.dumps(chrome_trace(run)) + "\n")]
    try:
        from placeopt.plotting.gantt import gantt_figure

        written.insert(
            0, write_figure(gantt_figure(run, lower_bound=lower_bound), folder / "gantt.png")
        )
    except MissingExtraError:
        pass
    return written
