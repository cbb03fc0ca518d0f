"""placeopt's own JSON of a graph (see `placeopt.io.serialize`)."""

from __future__ import annotations

from pathlib import Path

from placeopt.io.serialize import load, to_text
from placeopt.model.graph import OpGraph


def read(path: Path, *, max_bytes: int) -> OpGraph:
    """Read a graph written by `write` or `placeopt.io.serialize.save`."""
    return load(path, "opgraph", max_bytes=max_bytes)


def write(graph: OpGraph) -> str:
    """Return the JSON text of a graph."""
    return to_text(graph)
