"""Colours and the lazy import of matplotlib."""

from __future__ import annotations

from typing import Any

from placeopt.model.errors import MissingExtraError

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


def pyplot() -> Any:
    """Return matplotlib.figure (no global state, no display needed).

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    try:
        import matplotlib

        # figures choose what draws them by the suffix: no backend is set, no display needed
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing pictures") from error
    return matplotlib


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of the given size in inches."""
    matplotlib = pyplot()
    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


def time_unit(ticks: float, tick_seconds: float) -> tuple[str, float]:
    """Return (unit, ticks per unit) that suit a duration."""
    seconds = ticks * tick_seconds
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return unit, size / tick_seconds
    return "ns", 1e-9 / tick_seconds
