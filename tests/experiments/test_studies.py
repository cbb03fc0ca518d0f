"""What the studies share: intervals of means."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.experiments.cell import commit
from placeopt.experiments.studies import half_width, read_csv, table_of, write_csv


def test_half_width_of_two_values():
    """Student's t with one degree of freedom: 12.706 times the standard error, which is 1 here."""
    assert half_width([0.0, 2.0]) == pytest.approx(12.7062, abs=1e-3)


def test_half_width_covers_the_mean():
    """Of 400 samples of five normal numbers about 95 % have the true mean in their interval."""
    rng = np.random.default_rng(0)
    samples = rng.normal(loc=3.0, size=(400, 5))
    covered = sum(abs(sample.mean() - 3.0) <= half_width(sample.tolist()) for sample in samples)
    assert 0.92 * 400 <= covered <= 0.98 * 400


def test_rows_say_where_they_are_from(tmp_path):
    """A new row gets commit and load; one that was read keeps its own, one without stays without."""
    table = tmp_path / "table.csv"
    table.write_text("value,commit,load\n1,12e4,0.5\n")
    rows = [*read_csv(table, numbers=True), {"value": 2}]
    write_csv(table, rows)
    old, new = read_csv(table)
    assert (old["value"], old["commit"], old["load"]) == ("1", "12e4", "0.5")
    assert new["commit"] == commit()
    assert float(new["load"]) >= 0
    assert table_of(rows) == ["| value |", "|---|", "| 1 |", "| 2 |"]
    table.write_text("value\n3\n")
    write_csv(table, read_csv(table))
    assert read_csv(table) == [{"value": "3", "commit": "", "load": ""}]


def test_a_load_that_a_row_says_itself_is_kept(tmp_path):
    """A column `load` that a study measured is not overwritten by that of the machine at the end."""
    write_csv(tmp_path / "table.csv", [{"value": 1, "load": 7.25}])
    assert read_csv(tmp_path / "table.csv")[0]["load"] == "7.25"
