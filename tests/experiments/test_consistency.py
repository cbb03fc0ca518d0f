"""Rows that cannot all be true are refused wherever grids are read, by naming two of them."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from placeopt.cli import main
from placeopt.experiments import analysis
from placeopt.experiments.archive import read_archive, update_archive
from placeopt.experiments.cell import run_cell
from placeopt.experiments.report import write_report
from placeopt.experiments.store import cell_rows, contradiction, is_above
from placeopt.experiments.study import Study, expand
from placeopt.model.errors import InputError

RESULTS = Path(__file__).resolve().parents[2] / "results"


def row(solver, seed, value, bound=0, status="feasible", **more):
    """Return a row about one problem."""
    return {
        "key": f"cell-{solver}-{seed}",
        "instance": "gen:x",
        "cluster": "2xA100",
        "objective": "makespan",
        "problem_hash": "h",
        "label": solver,
        "seed": seed,
        "status": status,
        "value": value,
        "lower_bound": bound,
        "bound_method": "load",
        "evaluations": 1,
        "runtime": 1.0,
        "version": "0",
        "trace": [],
        "error": None,
        **more,
    }


LIES = {
    "a bound above another row's value": (
        [row("a", 0, 7), row("b", 3, 12, 8)],
        ("value 7", "lower bound 8 by 'load'"),
    ),
    "a bound above the row's own value": (
        [row("a", 0, 7, 8), row("b", 3, 12)],
        ("value 7", "lower bound 8"),
    ),
    "a bound of a row without a value": (
        [row("a", 0, 7), row("b", 3, None, 8, "unknown")],
        ("value 7", "bound 8"),
    ),
    "two optima": (
        [row("a", 0, 7, 7, "optimal"), row("b", 3, 8, 8, "optimal")],
        ("value 7", "optimal value 8"),
    ),
    "better than optimal": (
        [row("a", 0, 7), row("b", 3, 8, 1, "optimal")],
        ("value 7", "optimal value 8"),
    ),
    "infeasible": (
        [row("a", 0, 7), row("b", 3, None, 0, "infeasible")],
        ("value 7", "infeasible says"),
    ),
    "a fraction": (
        [row("a", 0, 16 / 3, value_exact="16/3"), row("b", 3, 6, 27 / 5, lower_bound_exact="27/5")],
        ("value 16/3", "lower bound 27/5"),
    ),
    "two problems of one name, so that no bound meets a value": (
        [row("a", 0, 7), row("b", 3, None, 100, "unknown", problem_hash="g")],
        ("solved two different problems: the instance or the study was changed",),
    ),
    "the same without a cluster": (
        [
            row("a", 0, 7, instance="gen:x on 2xA100", cluster=None),
            row("b", 3, 120, 100, instance="gen:x on 2xA100", cluster="", problem_hash="g"),
        ],
        ("solved two different problems",),
    ),
}


NO_NUMBER = (True, -1, -0.5, 10**30, 2**63, "7", [], float("nan"), float("inf"))
FORGED = {
    "key": ("two\nlines", "\x1b[2J"),
    "instance": ("two\nlines", "\x1b[2J", 7, None),
    "cluster": ("two\nlines", 7, True),
    "label": ("two\nlines", "\u2028", None),
    "bound_method": ("\x1b[2J", 1),
    "seed": (-1, True, 1.0, 2**63),
    "status": ("proved", "optimal", "infeasible", "unknown", "failed", None, ["feasible"]),
    "value": (*NO_NUMBER, None),
    "lower_bound": (*NO_NUMBER, None),
    "evaluations": (*NO_NUMBER, None, 1.5),
    "runtime": (*NO_NUMBER, None),
    "tick_seconds": (*NO_NUMBER, None, 0, 0.0, 1e-6),
    "value_exact": ("7", "8/1", "1/0", 7, None, "-7/1"),
    "lower_bound_exact": ("7/2", "nan/1", ""),
    "gap": (0.5, 0, -0.1, 1e300, 10**400, "0.5", True),
    "trace": (
        [[0.0, 1, 6, 3]],
        [[0.0, 1, 7]],
        [[0.0, 1, float("nan"), 3]],
        [[-1.0, 1, 7, 3]],
        [[0.0, True, 7, 3]],
        [[0.0, 1, 7, None]],
        "none",
    ),
}


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column, values in FORGED.items() for value in values]
)
def test_a_forged_row_is_refused(column, value, tmp_path, capsys):
    """A column of another type, out of range, or that the others contradict: one line names the row
    or the line.
    """
    fields = {"tick_seconds": 1e-9, "gap": 4 / 7, "value_exact": "7/1"}
    true = [row("a", 0, 7, 3, **fields), row("b", 1, 9, 3, tick_seconds=1e-9)]
    assert len(cell_rows(write(tmp_path / "true", true) / "runs.jsonl")) == 2
    folder = write(tmp_path / "forged", [{**true[0], column: value}, true[1]])
    with pytest.raises(SystemExit) as stop:
        main(["report", str(folder), "--out", str(tmp_path / "out")])
    told = capsys.readouterr()
    assert (stop.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert "runs.jsonl" in told.err
    assert "Traceback" not in told.err


def test_a_row_says_nothing_twice(tmp_path):
    """A key that occurs twice in a row is damage: readers would not agree on it."""
    line = json.dumps(row("a", 0, 7, 3))
    path = tmp_path / "runs.jsonl"
    path.write_text(line[:-1] + ', "lower_bound": 7}\n')
    with pytest.raises(InputError, match="line 1 is damaged"):
        cell_rows(path)


def write(folder, rows):
    """Write rows as the store of a study."""
    folder.mkdir(exist_ok=True)
    (folder / "runs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


@pytest.mark.parametrize("lie", LIES)
def test_two_rows_that_cannot_both_be_true(lie, tmp_path, capsys):
    """Every reader refuses them; the message names file, problem, values, solvers, seeds and
    rows.
    """
    rows, words = LIES[lie]
    for reader in (analysis.best_known, analysis.compare):
        with pytest.raises(InputError):
            reader(rows)
    folder = write(tmp_path / "s", rows)
    with pytest.raises(InputError):
        cell_rows(folder / "runs.jsonl")
    with pytest.raises(InputError):
        write_report(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for more in ((), ("--json",), ("--archive", str(tmp_path / "best.json"))):
        with pytest.raises(SystemExit) as stop:
            main(["report", str(folder), "--out", str(tmp_path / "out"), *more])
        told = capsys.readouterr()
        assert stop.value.code == 2
        assert told.err.count("\n") == 1
        for word in ("runs.jsonl", "gen:x on 2xA100", *words):
            assert word in told.err
        named = [
            r
            for r in rows
            if f"solver '{r['label']}', seed {r['seed']} (row '{r['key']}')" in told.err
        ]
        assert len(named) == (1 if "own" in lie else 2)
        assert told.out == ""


def test_what_can_be_true_passes():
    """Equal optima, other problems and objectives, failures, and fractions beside their rounded
    selves are no contradiction.
    """
    third, other = 16 / 3, {"instance": "gen:z", "problem_hash": "p"}
    rows = [
        row("a", 0, 7, 7, "optimal"),
        row("b", 0, 7, 7, "optimal"),
        row("c", 0, 9, 3),
        row("d", 0, None, 0, "failed"),
        row("a", 1, 5, 5, "optimal", instance="gen:y", problem_hash="other"),
        row("a", 2, 3, 3, "optimal", objective="period"),
        row("a", 3, None, 0, "infeasible", cluster="3xA100", problem_hash="third"),
        row(
            "a",
            4,
            third,
            third,
            "optimal",
            value_exact="16/3",
            lower_bound_exact="16/3",
            **other,
        ),
        row("b", 4, third, third * (1 + 1e-15), "optimal", **other),
        row("b", 5, third, 5, value_exact="nonsense", **other),
    ]
    assert contradiction(rows) == ""
    assert contradiction([{"key": "damaged"}]) == ""


def test_a_bound_on_one_objective_is_none_on_another():
    """Rows that name one problem under two objectives: each objective has its own best row."""
    rows = [row("a", 0, 7, 2), row("b", 0, 120, 100, objective="period")]
    found = {
        best["objective"]: (best["value"], best["lower_bound"])
        for best in analysis.best_known(rows)
    }
    assert found == {"makespan": (7, 2), "period": (120, 100)}


def test_numbers_are_compared_exactly_where_they_are_exact():
    """Ticks beyond 2^53 and fractions are compared exactly, floats within rounding, and what is no
    number is above.
    """
    assert is_above(2**60 + 1, 2**60)
    assert not is_above(2**60, 2**60)
    assert is_above(Fraction(16, 3) + Fraction(1, 10**20), Fraction(16, 3))
    assert not is_above(float(Fraction(16, 3)), Fraction(16, 3))
    assert is_above(5.34, Fraction(16, 3))
    assert is_above(float("nan"), 3)


def test_committed_grids_are_consistent():
    """What is recorded holds."""
    paths = sorted(RESULTS.rglob("runs.jsonl"))
    assert paths
    assert sum(len(cell_rows(path)) for path in paths) > 100


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A study of two cells, as a file and as rows."""
    path = tmp_path_factory.mktemp("study") / "grid.toml"
    path.write_text(
        'name = "grid"\ninstances = ["gen:ffnn"]\nclusters = ["uniform:2"]\nevaluations = '
        "50\nkeep_placements = true\n"
        '[[solvers]]\nname = "single-device"\n[[solvers]]\nname = "edge-zeroing"\n'
    )
    entries = [{"name": name} for name in ("single-device", "edge-zeroing")]
    study = Study(
        name="grid",
        instances=["gen:ffnn"],
        clusters=["uniform:2"],
        evaluations=50,
        solvers=entries,
        keep_placements=True,
    )
    return path, [run_cell(cell) for cell in expand(study)]


def test_the_archive_refuses_rows_that_contradict_it(cells, tmp_path):
    """A bound above the archived value, or a value below the archived bound, names the archive and
    the row.
    """
    _, (single, zeroing) = cells
    path = tmp_path / "best.json"
    worse, better = sorted((single, zeroing), key=lambda r: -r["value"])
    update_archive(path, [better])
    with pytest.raises(
        InputError, match=r"row .of the archive.*single-device|single-device.*row .of the archive"
    ):
        update_archive(path, [{**worse, "lower_bound": better["value"] + 1}])
    (record,) = read_archive(path).values()
    assert record.value == better["value"]


def test_bench_says_so(cells, tmp_path, capsys):
    """A grid that goes on beside a false row ends with exit code 2 and both rows."""
    study, (first, second) = cells
    folder = tmp_path / "out" / "grid"
    folder.mkdir(parents=True)
    (folder / "runs.jsonl").write_text(
        json.dumps({**first, "lower_bound": second["value"] + 1}) + "\n"
    )
    with pytest.raises(SystemExit) as stop:
        main(["bench", str(study), "--results", str(tmp_path / "out"), "--jobs", "1", "--json"])
    told = capsys.readouterr()
    assert stop.value.code == 2
    assert "is below the lower bound" in told.err
    assert "edge-zeroing" in json.loads(told.out)["contradiction"]


def test_bench_goes_on_beside_a_damaged_row(cells, tmp_path, capsys):
    """What is no row of a study contradicts nothing; the report says that it is damaged."""
    study, (first, _) = cells
    folder = tmp_path / "out" / "grid"
    folder.mkdir(parents=True)
    (folder / "runs.jsonl").write_text(json.dumps({**first, "key": "x", "value": "7"}) + "\n")
    with pytest.raises(SystemExit) as stop:
        main(["bench", str(study), "--results", str(tmp_path / "out"), "--jobs", "1", "--json"])
    assert (stop.value.code, json.loads(capsys.readouterr().out)["contradiction"]) == (0, "")
    with pytest.raises(InputError, match="row 'x' is damaged"):
        cell_rows(folder / "runs.jsonl")


@pytest.mark.parametrize("error", [{}, {"error": None}])
def test_a_failure_may_say_nothing(tmp_path, error):
    """A failed run without a message has a row in the report."""
    failed = {key: x for key, x in row("b", 0, None, status="failed").items() if key != "error"}
    folder = write(tmp_path / "s", [row("a", 0, 7, 2), {**failed, **error}])
    files, data = write_report(folder, tmp_path / "out")
    assert data["failed"] == 1
    assert files
