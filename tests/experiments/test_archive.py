"""The best-known archive: it only improves, takes nothing on trust, and what is committed holds."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest

import placeopt as po
from placeopt.experiments import cell
from placeopt.experiments.archive import read_archive, update_archive, write_archive
from placeopt.experiments.cell import pack_placement, run_cell
from placeopt.experiments.study import Study, expand
from placeopt.model.errors import InputError

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "best-known.json"
SMALL = 400  # ops


def rows(*solvers):
    """Return the rows of a small study."""
    entries = [{"name": name} for name in solvers]
    study = Study(
        name="s",
        instances=["gen:ffnn"],
        clusters=["uniform:2"],
        evaluations=50,
        solvers=entries,
        keep_placements=True,
    )
    return [run_cell(cell) for cell in expand(study)]


def test_only_improves(tmp_path):
    """A better value replaces a worse one, never the reverse; the better bound stays in both
    cases.
    """
    path = tmp_path / "best.json"
    worse, better = sorted(rows("single-device", "edge-zeroing"), key=lambda row: -row["value"])
    assert worse["value"] > better["value"]
    assert len(update_archive(path, [worse])) == 1
    update_archive(path, [{**better, "lower_bound": 5}])
    (record,) = read_archive(path).values()
    assert (record.value, record.solver) == (better["value"], "edge-zeroing")
    assert record.lower_bound == worse["lower_bound"] > 5
    assert update_archive(path, [worse, better]) == []
    assert record.violations() == []


def test_false_claims_are_refused(tmp_path):
    """A value its placement does not have, or a bound above a value, is not archived."""
    path = tmp_path / "best.json"
    (row,) = rows("single-device")
    assert "evaluated" in update_archive(path, [{**row, "value": row["value"] - 1}])[0]
    with pytest.raises(
        InputError, match=f"value {row['value']} .* is below the lower bound {row['value'] + 1}"
    ):
        update_archive(path, [{**row, "lower_bound": row["value"] + 1}])
    problem = po.load("gen:ffnn", cluster="uniform:2")
    outside = pack_placement(po.Placement([0] * (problem.num_ops - 1)))
    assert "refused" in update_archive(path, [{**row, "placement": outside}])[0]
    assert read_archive(path) == {}


def test_damaged_archive(tmp_path):
    """A file that is no archive, or has a damaged record, is refused in one line."""
    path = tmp_path / "best.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="format"):
        read_archive(path)
    path.write_text(
        json.dumps({"format": "placeopt-best-known", "version": 1, "records": [{"instance": "x"}]})
    )
    with pytest.raises(InputError, match="damaged record"):
        read_archive(path)
    data = json.loads(COMMITTED.read_text())
    data["records"][0]["value"] = "x"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"damaged record .*value.*whole number"):
        read_archive(path)


@pytest.mark.skipif(not COMMITTED.exists(), reason="no archive is committed")
def test_committed_records_hold():
    """Every committed record of a small problem has the value it claims, and no cheap bound passes
    it.
    """
    checked = 0
    for record in read_archive(COMMITTED).values():
        if record.load().num_ops <= SMALL:
            assert record.violations() == []
            checked += 1
    assert checked >= 5


def test_written_as_it_was_read(tmp_path):
    """Reading and writing the committed archive changes no byte."""
    write_archive(tmp_path / "copy.json", read_archive(COMMITTED))
    assert (tmp_path / "copy.json").read_bytes() == COMMITTED.read_bytes()


def test_a_bound_is_that_of_its_own_problem(tmp_path):
    """Two problems whose best rows have one value and one placement keep their own bounds."""
    path = tmp_path / "best.json"
    (row,) = rows("single-device")
    problem = po.load("gen:ffnn", cluster="uniform:3")
    other = {**row, "cluster": "uniform:3", "problem_hash": problem.hash, "lower_bound": 7}
    assert len(update_archive(path, [{**row, "lower_bound": 5}, other])) == 2
    found = {record.cluster: record.lower_bound for record in read_archive(path).values()}
    assert found == {"uniform:2": 5, "uniform:3": 7}


def test_damaged_rows_are_refused(tmp_path, monkeypatch):
    """A placement that cannot be unpacked, and a row of no kind, are no reason for a traceback."""
    path = tmp_path / "best.json"
    (row,) = rows("single-device")
    nested = base64.b85encode(zlib.compress(b"[" * 99_999)).decode()
    monkeypatch.setattr(cell, "MAX_BYTES", 100_000)
    vast = pack_placement(po.Placement([0] * 99_999))
    cut = pack_placement(po.Placement([0]))[:-3]
    for placement in ("x", "0" * 10, cut, 5, nested, vast):
        assert "damaged" in update_archive(path, [{**row, "placement": placement}])[0]
    assert update_archive(path, [{key: x for key, x in row.items() if key != "kind"}]) == []
