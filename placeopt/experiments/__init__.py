"""Experiments: parallel, resumable grids of solver runs, and their reports.

A study (TOML) is expanded into cells, one solver run each, keyed by a hash of everything that
matters. Cells run on joblib's back ends; every finished one is a line of results/<study>/runs.jsonl
before the next is handed out, so a killed study loses at most the cells in flight.
"""

from typing import TYPE_CHECKING

from placeopt.model.lazy import on_first_use

if TYPE_CHECKING:
    from placeopt.experiments.runner import run_study
    from placeopt.experiments.study import Study, load_study

__all__ = ["Study", "load_study", "run_study"]

_HOMES = {
    "study": "Study load_study",
    "runner": "run_study",
}

__getattr__, _ = on_first_use(__name__, _HOMES)
