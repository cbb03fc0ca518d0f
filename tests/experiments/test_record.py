"""One command records every study that is not of this state of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from placeopt.experiments.cell import commit
from placeopt.experiments.studies import read_csv, write_csv

sys.path.insert(0, str(Path(__file__).parents[2] / "results"))

import record

SCRIPT = """
import sys
from pathlib import Path
from placeopt.experiments.studies import write_csv
write_csv(Path("results") / sys.argv[1] / "table.csv", [{"value": 1, "words": " ".join(sys.argv)}])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a tree of two studies that write a table, one of which goes on, and one that fails."""
    results = tmp_path / "results"
    lines = []
    for name in ("broken", "first", "second"):
        (results / name).mkdir(parents=True)
        script = "missing.py" if name == "broken" else "write.py"
        lines += [
            f"[{name}]",
            f'tables = ["{name}/*.csv"]',
            f'commands = ["python {script} {name}"]',
            f"goes_on = {str(name == 'second').lower()}",
        ]
    (tmp_path / "write.py").write_text(SCRIPT)
    (results / "studies.toml").write_text("\n".join(lines))
    monkeypatch.setattr(record, "RESULTS", results)
    monkeypatch.setattr(record, "STUDIES", results / "studies.toml")
    monkeypatch.setattr(record, "MINUTES", results / "minutes.csv")
    monkeypatch.setattr(record, "same_package", lambda name: name == commit())
    return results


def test_what_is_of_other_code_is_recorded(folder, capfd):
    """Every study is run once, in order, one that fails delays no other; on the same code only that
    is tried again; a row of other code has its study run again; minutes are noted.
    """
    record.run([], 5.0)
    assert not list((folder / "broken").iterdir())
    rows = {name: read_csv(folder / name / "table.csv")[0] for name in ("first", "second")}
    assert rows["first"]["words"].endswith("first")
    assert "--minutes" in rows["second"]["words"]
    assert {row["study"] for row in read_csv(folder / "minutes.csv")} == {
        "broken",
        "first",
        "second",
    }
    capfd.readouterr()
    record.run(["first", "second"], 5.0)
    assert "+ " not in capfd.readouterr().out
    table = folder / "first" / "table.csv"
    table.write_text(table.read_text().replace(commit(), "1234567"))
    record.status()
    said = capfd.readouterr().out.splitlines()
    begins = (
        "broken: 0 rows of ; 0.0 days; 1 are run again (",
        "first: 1 rows of 1234567 (1); 0.0 days; 1 are run again (",
        f"second: 1 rows of {commit()} (1); 0.0 days; all of today's code (",
    )
    assert all(line.startswith(begin) for line, begin in zip(said, begins, strict=True)), said
    record.run(["first", "second"], 5.0)
    assert "+ python write.py first" in capfd.readouterr().out
    assert read_csv(table)[0]["commit"] == commit()


def test_no_study_begins_too_late(folder, capfd):
    """After the minutes nothing is begun."""
    record.run([], -1.0)
    assert "+ " not in capfd.readouterr().out
    assert not list(folder.glob("*/*.csv"))


def test_drawn_rows_are_measured_again_in_a_clone(folder, capfd):
    """What differs is written, seconds aside; a command that fails says so; this tree's tables stay."""
    (folder / "studies.toml").write_text(
        '[first]\ntables = ["first/*.csv"]\nseconds = ["seconds"]\ntimed = ["runs"]\n'
        'spread = {value = "runs"}\nagain = "python again.py {table} {name}"\n'
    )
    names = "same", "other", "broken", "near", "far"
    rows: list[dict[str, object]] = [{"name": name, "value": 1, "seconds": 5} for name in names]
    rows[3]["runs"] = "1 2 3"  # t(2) = 4.30, times 1.15: up to 4.97 from 2
    rows[4]["runs"] = "1 1.5 2"
    write_csv(folder / "first" / "table.csv", rows)
    (folder.parent / "again.py").write_text(
        "import sys\n"
        "from placeopt.experiments.studies import read_csv, write_csv\n"
        "from pathlib import Path\n"
        'path = Path("results/first") / f"{sys.argv[1]}.csv"\n'
        "rows = read_csv(path)\n"
        'value = {"same": 1, "other": 2, "near": 6.9, "far": 6.9}[sys.argv[2]]\n'
        "rows = [row if row['name'] != sys.argv[2] else"
        " {'name': row['name'], 'value': value, 'seconds': 9} for row in rows]\n"
        "write_csv(path, rows)\n"
    )
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=folder.parent, check=True)
    before = (folder / "first" / "table.csv").read_text()
    record.again([], 20, 3)
    said = {row["row"].split(",")[0]: row["differs"] for row in read_csv(folder / "again.csv")}
    assert said["same"] == ""
    assert said["other"] == "value 1 -> 2"
    assert said["near"] == ""
    assert said["far"] == "value 1 -> 6.9"
    assert said["broken"].startswith("exit code 1")
    assert (folder / "first" / "table.csv").read_text() == before
    assert "first/table.csv: same, 1, 5: the same" in capfd.readouterr().out
