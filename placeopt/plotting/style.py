"""What pictures share: colours, units of time, lanes; matplotlib, imported late; their files."""

from __future__ import annotations

import heapq
import io
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.errors import needed_package
from placeopt.model.files import write_bytes

# Paul Tol's bright and muted schemes: told apart by colour-blind readers too.
COLOURS = (
    "#4477AA",
    "#EE6677",
    "#228833",
    "#CCBB44",
    "#66CCEE",
    "#AA3377",
    "#332288",
    "#DDCC77",
    "#117733",
    "#88CCEE",
    "#882255",
    "#44AA99",
)
GREY = "#BBBBBB"
ATTENTION = "#FF8800"
"""Orange, which no other type of ops gets."""


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of the given size in inches (no global state, no display needed).

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    needed_package("matplotlib", "plot", "drawing pictures")
    # figures choose what draws them by the suffix: no backend is set, no display needed
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def write_figure(figure: Any, path: Path, dpi: int = 150) -> Path:
    """Write a matplotlib figure; the suffix of `path` chooses PNG, SVG or PDF. The file is replaced
    at once.
    """
    kind = path.suffix.lstrip(".").lower() or "png"
    return write_bytes(path, figure_bytes(figure, kind, dpi))


def figure_bytes(figure: Any, kind: str, dpi: int) -> bytes:
    """Return a matplotlib figure as a file of a kind, such as "png"."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if "$" in text.get_text() and "mathdefault" not in text.get_text():
            text.set_parse_math(False)  # a name; what an axis writes by itself is a formula
    stream = io.BytesIO()
    # Without a date, the same picture is the same file.
    metadata = {
        "png": {"Software": "placeopt"},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
    }.get(kind)
    figure.savefig(stream, format=kind, dpi=dpi, metadata=metadata)
    return stream.getvalue()


def time_unit(ticks: float, tick_seconds: float) -> tuple[str, float]:
    """Return (unit, ticks per unit) that suit a duration."""
    seconds = ticks * tick_seconds
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return unit, size / tick_seconds
    return "ns", 1e-9 / tick_seconds


def pack_lanes(start: Ints, finish: Ints) -> Ints:
    """Return a lane for each interval, as few lanes as possible, so that none overlaps another in
    its lane.
    """
    lanes = np.zeros(len(start), np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used = 0
    for i in np.lexsort((finish, start)).tolist():
        while busy and busy[0][0] <= start[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        lanes[i] = lane
        heapq.heappush(busy, (int(finish[i]), lane))
    return lanes
