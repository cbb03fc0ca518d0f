"""Experiments: parallel, resumable grids of solver runs, and their reports.

A study (TOML) is expanded into cells, one solver run each, keyed by a hash of everything that matters. Cells
run on joblib's back ends; every finished one is a line of results/<study>/runs.jsonl before the next is handed
out, so a killed study loses at most the cells in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeopt.experiments.runner import run_study
    from placeopt.experiments.study import Study, load_study

__all__ = ["Study", "load_study", "run_study"]

_HOME = {"Study": "study", "load_study": "study", "run_study": "runner"}


def __getattr__(name: str) -> Any:
    """Import on first use."""
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(f"placeopt.experiments.{_HOME[name]}"), name)
    raise AttributeError(f"module 'placeopt.experiments' has no attribute {name!r}")
