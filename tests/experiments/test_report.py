"""Reports: the numbers are right, the page is self-contained, 10^5 rows are no problem."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest

from placeopt.cli import main
from placeopt.experiments import analysis
from placeopt.experiments.report import write_report
from placeopt.model.errors import InputError


def row(instance, label, seed, value, bound=10, trace=None, **more):
    """Return a row of a results file."""
    status = "failed" if value is None else "feasible"
    return {
        "key": f"{instance}-{label}-{seed}",
        "instance": instance,
        "cluster": "uniform:2",
        "problem_hash": instance,
        "objective": "makespan",
        "label": label,
        "solver": label,
        "seed": seed,
        "value": value,
        "lower_bound": bound,
        "bound_method": "load",
        "gap": None if value is None else (value - bound) / value,
        "status": status,
        "evaluations": 100,
        "runtime": 1.0,
        "version": "0",
        "error": "no luck" if value is None else None,
        "trace": trace
        if trace is not None
        else [[0.1, 1, 2 * (value or 1), 0], [0.5, 50, value, bound]],
        **more,
    }


def sample():
    """Return rows of three solvers on four instances; 'good' is best on all but one, 'bad' fails
    once.
    """
    rows = []
    for i, best in enumerate((10, 20, 30, 40)):
        for seed in range(3):
            rows.append(row(f"i{i}", "good", seed, best + seed))
            rows.append(row(f"i{i}", "fair", seed, best + 5 - 8 * (i == 3), bound=5 + i))
            rows.append(row(f"i{i}", "bad", seed, None if i == 0 else 3 * best))
    return rows


def test_numbers_of_a_known_sample():
    """Wins, gaps, best-known values and profiles equal what the sample was built to have."""
    table = analysis.compare(sample())
    assert table.solvers == ("good", "fair", "bad")
    assert analysis.wins(table).tolist() == [3, 1, 0]
    assert table.failures.tolist() == [0, 0, 3]
    assert table.median[:, 0].tolist() == [11, 21, 31, 41]
    good = np.mean([(v - 10) / v for v in (11, 21, 31, 41)])
    assert analysis.mean_gaps(table)[0] == pytest.approx(good)
    best = analysis.best_known(sample())
    assert [(b["value"], b["lower_bound"], b["label"]) for b in best] == [
        (10, 10, "good"),
        (20, 10, "good"),
        (30, 10, "good"),
        (37, 10, "fair"),
    ]
    shares = analysis.profile(table, np.array([1.0, 1.2, 10.0]))
    assert shares[0].tolist() == [0.75, 1.0, 1.0]
    assert shares[2].tolist() == [0.0, 0.0, 0.75]


def test_a_label_of_several_configurations_is_told_apart(tmp_path):
    """Runs of two budgets or two versions under one label are not averaged; the page says where
    runs are from.
    """
    short, long = ({"seconds": x, "evaluations": None} for x in (1.0, 10.0))
    rows = [
        row("i", "a", 0, 30, key="1", budget=short, options={"x": 1}, host="left"),
        row("i", "a", 0, 20, key="2", budget=long, options={"x": 1}, host="right"),
        row("i", "b", 0, 20, key="3", budget=long),
        row("i", "b", 0, 40, key="4", budget=long, version="1"),
    ]
    write_report(store(tmp_path / "s", rows), tmp_path)
    assert (tmp_path / "values.csv").read_text().splitlines() == [
        "instance,lower bound,a (seconds=1.0),a (seconds=10.0),b (version=0),b (version=1)",
        "i on uniform:2,10,30,20,20,40",
    ]
    page = (tmp_path / "report.md").read_text()
    assert "| 0 |  | left |  | 1 |" in page
    assert "| 1 |  |  |  | 1 |" in page


def test_the_file_of_a_folder_is_reported_like_the_folder(tmp_path, capsys):
    """`placeopt report FOLDER/runs.jsonl` writes into the folder."""
    folder = store(tmp_path / "s", [row("i", "a", 0, 12)])
    archive = ["--archive", str(tmp_path / "best.json")]
    with pytest.raises(SystemExit) as stop:
        main(["report", str(folder / "runs.jsonl"), *archive])
    assert stop.value.code == 0
    assert f"wrote {folder / 'report.html'}" in capsys.readouterr().out.replace("\n", "")


def test_who_solves_less_is_not_first(tmp_path, recwarn):
    """A mean over the easy instances alone is shown as such, below those that solve more; an
    instance that nobody solves is no warning.
    """
    values = {"a": (None, 20, None), "b": (None, 30, 90)}
    rows = [row(f"i{i}", label, 0, x) for label in values for i, x in enumerate(values[label])]
    write_report(store(tmp_path / "s", rows), tmp_path)
    shown = (tmp_path / "solvers.csv").read_text().splitlines()[1:]
    assert [line.split(",")[:5] for line in shown] == [
        ["b", "3", "1", "2 / 3", "1 / 3"],
        ["a", "3", "2", "1 / 3", "1 / 3"],
    ]
    assert not recwarn


def test_blocked_jobs_are_no_seconds(tmp_path):
    """Two blocked jobs are not two billionths of a second."""
    write_report(store(tmp_path / "s", [row("i", "a", 0, 12, kind="jobs")]), tmp_path)
    assert "makespan,12,-,10" in (tmp_path / "best-known.csv").read_text()


def test_targets_and_convergence():
    """The share of runs that reach the target and the quartiles over seeds are those of the
    traces.
    """
    rows = [
        row("i", "a", s, 100, trace=[[0.1, 10, 200, 0], [0.2, 10 * (s + 2), 100, 0]])
        for s in range(3)
    ]
    rows.append(row("i", "b", 0, 150))
    found = analysis.to_target(rows)["i on uniform:2"]
    assert found["a"] == (1.0, 30.0, 0.2)
    assert found["b"][0] == 0.0
    x, (low, middle, high) = analysis.convergence(rows)["i on uniform:2"]["a"]
    assert middle[0] == 200
    assert middle[-1] == 100
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert (np.diff(x) > 0).all()


def test_pairwise_test_sees_a_clear_difference():
    """Twenty instances with one solver always better: small p, effect -1."""
    rows = [
        r
        for i in range(20)
        for r in (row(f"i{i}", "a", 0, 100 + i), row(f"i{i}", "b", 0, 120 + 2 * i))
    ]
    ((a, b, count, p, effect),) = analysis.pairwise_tests(analysis.compare(rows))
    assert (a, b, count, effect) == ("a", "b", 20, -1.0)
    assert p < 1e-4


def store(folder, rows):
    """Write rows as a store."""
    folder.mkdir(exist_ok=True)
    (folder / "runs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def test_report_files(tmp_path):
    """All files are written; tables escape what they must; the CSV has the numbers."""
    names = "<script>alert(1)</script>", "$\\frac$"
    rows = [*sample(), *(row(name, "good", 0, 7, bound=5) for name in names)]
    files, summary = write_report(store(tmp_path / "s", rows), tmp_path / "out")
    assert {f.name for f in files} >= {
        "report.md",
        "report.html",
        "solvers.csv",
        "best-known.csv",
        "values.csv",
    }
    assert summary["failed"] == 3
    page = (tmp_path / "out/report.html").read_text()
    assert "<script" not in page
    assert "src=" not in page
    assert "i3,uniform:2,makespan,37," in (tmp_path / "out/best-known.csv").read_text()


def test_nothing_to_report_is_one_line(tmp_path):
    """A folder without runs is refused with a hint."""
    with pytest.raises(InputError, match="placeopt bench"):
        write_report(tmp_path, tmp_path)


def test_many_rows(tmp_path):
    """Many rows are read and reported (speed, at 10^5 rows, is measured in results/grids)."""
    rng = np.random.default_rng(0)
    rows = [
        row(f"i{i % 50}", f"s{i % 4}", i, int(v), trace=None if i % 50 < 3 else [])
        for i, v in enumerate(rng.integers(10, 99, 8_000))
    ]  # twelve panels with a trace take seconds to draw
    _, summary = write_report(store(tmp_path / "s", rows), tmp_path / "out")
    assert summary["rows"] == 8_000


def test_page_in_a_browser(tmp_path):
    """Headless Chromium opens the page without console messages and draws every chart with a
    size.
    """
    browser = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if browser is None:
        pytest.skip("no Chromium on this machine: install it to check the page in a browser")
    pytest.importorskip("matplotlib", reason="charts need the plot extra")
    write_report(store(tmp_path / "s", sample()), tmp_path / "out")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr",
        "--v=0",
        "--dump-dom",
    ]
    page = (tmp_path / "out/report.html").as_uri()
    done = subprocess.run(
        [browser, *flags, page], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == 3
    for name in ("profile", "gaps", "convergence"):
        assert f'<figure id="{name}"><svg' in done.stdout
