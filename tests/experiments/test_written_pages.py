"""Pages that a study writes as a whole are what it would write from its committed CSV files."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from placeopt.experiments.studies import read_csv

RESULTS = Path(__file__).parents[2] / "results"


def load(name):
    """Import a study's script under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"{name}_study", RESULTS / name / "study.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(name, file):
    """Return the rows of a study's CSV file; empty cells are None."""
    return [
        {key: None if x == "" else x for key, x in row.items()}
        for row in read_csv(RESULTS / name / f"{file}.csv", numbers=True)
    ]


def evaluator(study):
    """Write the page of the evaluator's speed."""
    study.write_page(rows("evaluator", "speed"))


def grids(study):
    """Write the page of what a grid costs."""
    names = (*study.PARTS, "faults")
    study.write_page(*(read_csv(RESULTS / "grids" / f"{name}.csv") for name in names))


def start(study):
    """Write the page of the first run."""
    study.write_page(rows("start", "groups"), rows("start", "command"))


def search(study):
    """Write the page of searches at equal evaluations."""
    study.write_page(*(rows("search", file) for file in study.TABLES))


def policy(study):
    """Write the page of the policies."""
    names = ("doppler", "other_seeds", "episodes_alone", "ablation", "published", "throughput")
    study.write_page(
        {name: read_csv(RESULTS / "policy" / f"{name}.csv", numbers=True) for name in names}
    )


def differing(name, write, folder):
    """Return the lines of a page written anew into a folder, and of the committed one; the minutes
    of the run left out.
    """
    study = load(name)
    study.HERE = folder
    write(study)
    return [
        re.sub(
            r"last run: \d+ minutes?", "last run", (where / "README.md").read_text(encoding="utf-8")
        ).splitlines()
        for where in (folder, RESULTS / name)
    ]


@pytest.mark.parametrize(
    "write", [evaluator, grids, start, policy, search], ids=lambda write: write.__name__
)
def test_a_written_page_follows_from_its_files(write, tmp_path):
    """Every number of the page is in the CSV files: written from them anew, it is the same."""
    written, committed = differing(write.__name__, write, tmp_path)
    assert written == committed
