"""Studies that measure whole tables keep what is of this state of the package."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import pytest

from placeopt.experiments import runner
from placeopt.experiments.cell import commit
from placeopt.experiments.studies import read_csv, write_csv

sys.path.insert(0, str(Path(__file__).parents[2] / "results"))

import whole_tables


@pytest.fixture(autouse=True)
def one_state(monkeypatch):
    """Let rows of this commit be of this state of the package, and no others."""
    for module in (runner, whole_tables):
        monkeypatch.setattr(module, "same_package", lambda name: name == commit())


def given(again="", minutes=math.inf):
    """Return what the command line of a study says."""
    return argparse.Namespace(again=again, only="", end=time.monotonic() + 60 * minutes)


def test_tables_are_measured_where_absent_or_old(tmp_path, capsys):
    """A table is measured once, and again only when asked for; after the minutes none is."""
    asked = []
    tables = {name: lambda name=name: [{"value": asked.append(name) or 1}] for name in "ab"}
    whole_tables.record_tables(tmp_path, tables, given(minutes=-1))
    assert "stopped before a.csv" in capsys.readouterr().out
    for again in ("", "", "changed"):
        whole_tables.record_tables(tmp_path, tables, given(again))
    assert asked == ["a", "b"]
    write_csv(tmp_path / "b.csv", [{"value": 1, "commit": "1234567"}])
    capsys.readouterr()
    whole_tables.record_tables(tmp_path, tables, given())
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "a.csv: 1 rows are there, 0 of another state of the package",
        "b.csv: 1 rows are there, 1 of another state of the package (measured anew with --again)",
    ]
    whole_tables.record_tables(tmp_path, tables, given("changed"))
    assert asked == ["a", "b", "b"]
    assert read_csv(tmp_path / "b.csv")[0]["commit"] == commit()


def test_rows_of_several_names_go_on(tmp_path):
    """Old rows stay until they are measured, in their places; one that fails loses none before."""
    path = tmp_path / "rows.csv"
    old = [{"solver": "heft", "ops": n, "seconds": 1, "commit": "1234567"} for n in (10, 20)]
    write_csv(path, old)

    def fails():
        raise OSError("disk")

    def jobs(last):
        yield {"solver": "heft", "ops": 10}, lambda: {"seconds": 2}
        yield {"solver": "heft", "ops": 20}, last
        yield {"solver": "etf", "ops": 10}, lambda: {"seconds": 4}

    with pytest.raises(OSError, match="disk"):
        whole_tables.record_named(path, jobs(fails), given("changed"))
    assert [row["seconds"] for row in read_csv(path)] == ["2", "1"]
    whole_tables.record_named(path, jobs(lambda: {"seconds": 3}), given("changed"))
    assert [row["seconds"] for row in read_csv(path)] == ["2", "3", "4"]
    whole_tables.record_named(path, jobs(fails), given("changed"))
