"""What the studies share: intervals of means."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.experiments import runner, studies
from placeopt.experiments.cell import commit, same_package
from placeopt.experiments.runner import HowToRun, run_cells
from placeopt.experiments.store import latest, read_rows
from placeopt.experiments.studies import (
    grid_options,
    half_width,
    read_csv,
    record_grid,
    record_rows,
    row_options,
    table_of,
    write_csv,
)
from placeopt.experiments.study import Study, expand


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


def options(monkeypatch, *words, read=grid_options):
    """Return what a study reads from a command line."""
    monkeypatch.setattr("sys.argv", ["study.py", *words])
    return read("A study.")


@pytest.fixture
def of_this_package(monkeypatch):
    """Let rows be of this package where they name this commit, whatever the tree is."""
    for module in (runner, studies):
        monkeypatch.setattr(module, "same_package", lambda name: name == commit())


def cells(evaluations=20):
    """Return the runs of two solvers on one graph, two seeds each."""
    solvers = [{"name": "random"}, {"name": "annealing", "label": "walk"}]
    study = {"name": "s", "instances": ["gen:fork-join"], "clusters": ["uniform:2"]}
    more = {"solvers": solvers, "seeds": {"count": 2}, "evaluations": evaluations}
    return expand(Study.model_validate({**study, **more}))


def named(cell):
    """Return the first columns of a row."""
    return {"instance": cell.instance, "method": cell.label}


def summed(rows):
    """Return the others."""
    return {"runs": len(rows), "best": min(row["value"] for row in rows)}


def test_a_table_of_a_grid_keeps_what_is_there(tmp_path, monkeypatch, of_this_package, capsys):
    """A row that is there is kept; one of other code is measured again by --again, of this code by
    `--again all`, and by --only what its name holds; a run that is in the store is not done twice.
    """
    path = tmp_path / "table.csv"

    def recorded(*words):
        """Record, and return the rows and how many were to be measured."""
        capsys.readouterr()
        rows = record_grid(path, cells(), named, summed, options(monkeypatch, *words))
        return rows, int(capsys.readouterr().out.split(", ")[1].split()[0])

    rows, new = recorded()
    assert ([row["runs"] for row in rows], new) == ([2, 2], 2)
    assert {row["commit"] for row in rows} == {commit()}
    assert recorded()[1] == 0
    assert recorded("--again")[1] == 0
    assert recorded("--again", "all", "--only", "walk")[1] == 1
    before = path.read_text()
    path.write_text(before.replace(f",{commit()},", ",1234567,", 1))
    assert recorded("--only", "random")[1] == 0
    assert recorded("--again", "--only", "walk")[1] == 0
    stored = len(list(read_rows(tmp_path / "runs" / "runs.jsonl")))
    assert recorded("--again")[1] == 1
    assert len(list(read_rows(tmp_path / "runs" / "runs.jsonl"))) == stored
    assert [row["best"] for row in read_csv(path)] == [str(row["best"]) for row in rows]


def test_runs_of_other_code_are_done_again(tmp_path, of_this_package):
    """`again` takes the rows of another commit only, `all` everything; no cell begins too late."""
    some, folder = cells(), tmp_path / "runs"
    assert run_cells(some, folder, HowToRun(jobs=1, minutes=-1.0)).left == len(some)
    assert run_cells(some, folder, HowToRun(jobs=1)).done == len(some)
    path = folder / "runs.jsonl"
    path.write_text(path.read_text().replace(f'"commit": "{commit()}"', '"commit": "1234567"', 1))
    assert run_cells(some, folder, HowToRun(jobs=1)).done == 0
    assert run_cells(some, folder, HowToRun(jobs=1, again="changed")).done == 1
    assert run_cells(some, folder, HowToRun(jobs=1, again="changed")).done == 0
    assert run_cells(some, folder, HowToRun(jobs=1, again="all")).done == len(some)
    assert all(row["cpu"] >= 0 for row in latest(read_rows(path)).values())


def test_rows_of_jobs_go_on_where_they_ended(tmp_path, monkeypatch, of_this_package):
    """Of a table whose rows are measured one by one none is measured twice; old names leave."""
    path, done = tmp_path / "table.csv", []

    def recorded(names, *words):
        """Record rows by these names, and return which of them were measured."""
        done.clear()
        jobs = ((name, lambda name=name: done.append(name) or {"value": 1}) for name in names)
        record_rows(path, "name", jobs, options(monkeypatch, *words, read=row_options))
        return "".join(done)

    assert recorded("ab") == "ab"
    assert recorded("abc") == "c"
    assert recorded("abc", "--again") == ""
    assert recorded("abc", "--again", "all", "--only", "b") == "b"
    assert recorded("abd", "--minutes", "-1") == ""
    path.write_text(path.read_text().replace(f",{commit()},", ",1234567,", 1))
    assert recorded("bca", "--again") == "a"
    recorded("ac")
    assert {row["name"] for row in read_csv(path)} == {"a", "c"}


def test_what_is_of_an_unknown_commit_is_of_other_code():
    """Nobody knows the package of a changed tree, of a commit that is not there or of no commit."""
    assert [
        same_package(name) for name in ("", "not said", "1234567", commit().rstrip("+") + "+")
    ] == [False] * 4
