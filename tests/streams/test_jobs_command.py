"""`placeopt jobs`: its JSON contract, its files, and one line for bad input."""

from __future__ import annotations

import json

import pytest

from placeopt.cli import main
from placeopt.solving.registry import register

SOURCE = "stream:ramp?models=gen:chain-mm&device=A100&jobs=30&beta=0.6&interval=0.02&groups=2&racks=2&servers=2"


def run(capsys, *arguments):
    """Return (exit code, stdout, stderr) of the command."""
    with pytest.raises(SystemExit) as stop:
        main(["jobs", *map(str, arguments)])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_json_contract(capsys):
    """One object with the promised fields; policies come repeated or separated by commas."""
    code, out, err = run(
        capsys,
        SOURCE,
        "-p",
        "max-degree,constant-degree:2",
        "--policy",
        "random-degree",
        "--episodes",
        3,
        "--bound",
        "--lookahead",
        "--json",
    )
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert [row["policy"] for row in data["policies"]] == [
        "max-degree",
        "constant-degree:2",
        "random-degree",
    ]
    for row in data["policies"]:
        assert {
            "policy",
            "blocking_rate",
            "ci95",
            "mean_jct",
            "throughput",
            "mean_degree",
            "episodes",
        } <= set(row)
        assert row["ci95"][0] <= row["blocking_rate"] <= row["ci95"][1]
        assert row["episodes"] == 3
        assert sum(row["causes"].values()) == pytest.approx(row["blocking_rate"])
    assert 0 <= data["offline_bound"] <= min(row["blocking_rate"] for row in data["policies"])
    assert set(data["lookahead"]["gen:chain-mm"]) == {"1", "2", "4", "8"}
    assert (
        json.loads(run(capsys, SOURCE, "-p", "random-degree", "--episodes", 3, "--json")[1])[
            "policies"
        ][0]
        == (data["policies"][2])
    )


def test_text_and_files(capsys, tmp_path):
    """The table names every policy; pictures, traces and results are written."""
    out_folder = tmp_path / "out"
    code, out, _ = run(
        capsys,
        SOURCE,
        "-p",
        "min-degree",
        "-p",
        "feasible-first:2-1",
        "--episodes",
        2,
        "--bound",
        "--lookahead",
        "--out",
        out_folder,
    )
    assert code == 0
    assert "min-degree" in out
    assert "feasible-first:2-1" in out
    assert "no policy blocks less than" in out
    names = {path.name for path in out_folder.iterdir()}
    assert {"jobs.json", "trace-min-degree.json", "occupancy-feasible-first-2-1.png"} <= names
    assert json.loads((out_folder / "trace-min-degree.json").read_text())["traceEvents"]
    assert len(json.loads((out_folder / "jobs.json").read_text())["policies"]) == 2


def test_default_policies(capsys):
    """Without --policy the baselines and feasible-first are compared."""
    data = json.loads(run(capsys, SOURCE, "--episodes", 2, "--json")[1])
    names = [row["policy"] for row in data["policies"]]
    assert names == [
        "max-degree",
        "min-degree",
        "random-degree",
        "constant-degree",
        "feasible-first",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stream:ramp"], "--profiles DIR"),
        ([SOURCE + "&beta=2"], "'beta' is given twice"),
        ([SOURCE, "-p", "constant-degree:3"], "degree 3 does not exist on the 2x2x2 grid"),
        ([SOURCE, "-p", "max-degree", "-p", "best"], "policy 'best' is not known"),
        ([SOURCE.replace("interval=0.02", "interval=-1")], "interval must be a positive time"),
        ([SOURCE.replace("interval=0.02", "interval=1e300")], "expected a finite number"),
        ([SOURCE.replace("chain-mm", "nothing")], "nothing"),
        ([SOURCE, "--episodes", "0"], "at least 1, received '0'"),
        (["missing.csv"], "missing.csv"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, words):
    """Exit code 2, nothing on stdout, one line on stderr."""
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_interrupt_keeps_what_is_done(capsys, monkeypatch):
    """Ctrl-C during the second policy prints the first and exits with 130."""
    from placeopt.solvers.degree import tuning

    plain = tuning.tuned_result

    def tuned(text, *arguments, **options):
        if text == "min-degree":
            raise KeyboardInterrupt
        return plain(text, *arguments, **options)

    monkeypatch.setattr(tuning, "tuned_result", tuned)
    code, out, _ = run(capsys, SOURCE, "-p", "max-degree,min-degree", "--episodes", 2, "--json")
    assert code == 130
    assert [row["policy"] for row in json.loads(out)["policies"]] == ["max-degree"]


@register("silent-degree", kind="jobs", objectives=("blocking",))
class Silent:
    """Finds nothing."""

    name = "silent-degree"

    def search(self, problem, tracker):
        """Offer nothing."""


def test_a_policy_that_fails_takes_no_other_along(capsys):
    """What the others found is printed; the exit code and one line tell of the plug-in."""
    code, out, err = run(
        capsys, SOURCE, "-p", "silent-degree,max-degree", "--episodes", 2, "--json"
    )
    assert [row["policy"] for row in json.loads(out)["policies"]] == ["max-degree"]
    assert (code, err.count("\n")) == (3, 1)
    assert "policy 'silent-degree' gave no episode" in err


def test_a_package_that_cannot_be_imported_takes_no_other_along(capsys, tmp_path, monkeypatch):
    """It is named as that, not as a policy that nobody knows."""
    site = tmp_path / "gone-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text("[placeopt.solvers]\ngone = nosuchmodule:Solver\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = run(capsys, SOURCE, "-p", "gone,max-degree", "--json")
    assert [row["policy"] for row in json.loads(out)["policies"]] == ["max-degree"]
    assert (code, err.count("\n")) == (3, 1)
    assert "solver 'gone' cannot be imported from nosuchmodule:Solver" in err
