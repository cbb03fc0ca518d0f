"""Grids survive kills, hangs, errors and full disks, and give the same values on every back end."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

import placeopt as po
from placeopt.experiments.analysis import best_known
from placeopt.experiments.cell import pack_placement, run_cell, unpack_placement
from placeopt.experiments.report import write_report
from placeopt.experiments.runner import run_study
from placeopt.experiments.store import RunStore, cell_rows, latest, read_rows
from placeopt.experiments.study import expand, expand_instances, load_cell_problem, load_study
from placeopt.model import objective as objectives
from placeopt.model.errors import InputError
from placeopt.model.objective import Finished, PlainObjective
from placeopt.model.placement import Placement
from placeopt.solving import registry
from placeopt.solving.registry import solver_class

STUDY = """
name = "grid"
instances = ["gen:layered?layers=5&width=4&seed={0..4}", "gen:fork-join"]
clusters = ["uniform:2", "uniform:4"]
seeds = {count = 3}
evaluations = 20
keep_placements = true
[[solvers]]
name = "heft"
seeds = [0]
[[solvers]]
name = "random"
[[solvers]]
name = "critical-path"
grid = {runs = [1, 5]}
"""

OUTCOME = (
    "instance",
    "cluster",
    "label",
    "seed",
    "value",
    "lower_bound",
    "status",
    "evaluations",
    "placement",
)


def study_of(folder: Path, text: str = STUDY):
    """Write a study file and load it."""
    path = folder / "grid.toml"
    path.write_text(text)
    return load_study(path)


def outcomes(path: Path):
    """Return what must not depend on when and where cells ran."""
    rows = [{key: row.get(key) for key in OUTCOME} for row in latest(read_rows(path)).values()]
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def test_expansion_counts_and_keys(tmp_path):
    """Cells are the product of instances, clusters, configurations and seeds, with distinct stable
    keys.
    """
    cells = expand(study_of(tmp_path))
    assert len(cells) == 6 * 2 * (1 + 3 + 2 * 3)
    assert len({cell.key for cell in cells}) == len(cells)
    assert [cell.key for cell in expand(study_of(tmp_path))] == [cell.key for cell in cells]


def test_one_problem_under_two_names_is_told(tmp_path):
    """Runs of a problem that the study names twice are not left out in silence."""
    text = STUDY.replace('"uniform:2", "uniform:4"', '"uniform:2", "uniform:2?contention=none"')
    with pytest.warns(UserWarning, match="uniform:2 and .* are one problem: it is run .* once"):
        assert len(expand(study_of(tmp_path, text))) == 6 * (1 + 3 + 2 * 3)


def test_keys_depend_on_everything_that_matters(tmp_path):
    """Another budget, option, seed or problem is another cell; another label is not."""
    base = {cell.key for cell in expand(study_of(tmp_path))}
    for old, new in [("evaluations = 20", "evaluations = 21"), ("runs = [1, 5]", "runs = [2, 6]")]:
        other = {cell.key for cell in expand(study_of(tmp_path, STUDY.replace(old, new)))}
        assert other != base
    same = {
        cell.key
        for cell in expand(
            study_of(tmp_path, STUDY.replace('name = "random"', 'name = "random"\nlabel = "R"'))
        )
    }
    assert same == base


def test_instances_expand_globs_braces_and_ranges(tmp_path):
    """Braces and ranges multiply, globs list files in order, a glob without a file is an error."""
    for name in ("b.json", "a.json"):
        (tmp_path / name).write_text("{}")
    found = expand_instances(["*.json", "gen:x?k={1,2}&s={3..4}"], str(tmp_path))
    assert [Path(x).name for x in found[:2]] == ["a.json", "b.json"]
    assert found[2:] == ["gen:x?k=1&s=3", "gen:x?k=1&s=4", "gen:x?k=2&s=3", "gen:x?k=2&s=4"]
    with pytest.raises(InputError, match="no file matches"):
        expand_instances(["*.onnx"], str(tmp_path))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("m[1].json", ["m[1].json"]),
        ("m{1}.json", ["m{1}.json"]),
        ("h#1.json", ["h#1.json"]),
        ("v2:x.json", ["v2:x.json"]),
        ("v2:x.json?unit=ms", ["v2:x.json?unit=ms"]),
        ("m[1].json#g?unit=ms", ["m[1].json#g?unit=ms"]),
        ("?2*.json?a=1&unit={s,ms}", ["v2:x.json?a=1&unit=s", "v2:x.json?a=1&unit=ms"]),
        ("m?1?.json", ["m[1].json", "m{1}.json"]),
    ],
)
def test_files_of_any_name_and_their_options(tmp_path, pattern, names):
    """A file is found by its very name, whatever that has in it; options stand behind names."""
    for name in ("m[1].json", "m{1}.json", "h#1.json", "v2:x.json"):
        (tmp_path / name).write_text("{}")
    assert expand_instances([pattern], str(tmp_path)) == [str(tmp_path / name) for name in names]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("evaluations = 20", "", "no budget"),
        ('name = "heft"', 'name = "hefty"', "hefty"),
        ("runs = [1, 5]", "speed = [1]", "no option 'speed'"),
        ('name = "grid"', 'name = "a/b"', "pattern"),
        ("seeds = {count = 3}", "seeds = {count = 0}", "greater than"),
        ("runs = [1, 5]", "runs = []", "runs: List should have at least 1 item"),
        ("seeds = [0]", "seeds = []", "seeds.*: List should have at least 1 item"),
        ("[[solvers]]", "[[solvers", "not valid TOML"),
        ("keep_placements", "keep_everything", "keep_everything"),
    ],
)
def test_wrong_studies_are_one_line(tmp_path, old, new, words):
    """Each mistake in a study is one clear line."""
    with pytest.raises(InputError, match=words) as error:
        expand(study_of(tmp_path, STUDY.replace(old, new, 1)))
    assert "\n" not in str(error.value)


def test_same_values_on_every_back_end_and_resume_skips(tmp_path):
    """loky, threading and dask give equal rows; a second run does nothing."""
    study = study_of(tmp_path)
    for backend in ("threading", "loky", "dask"):
        if backend == "dask":
            pytest.importorskip("distributed", reason="the dask back end needs the dask extra")
        summary = run_study(study, tmp_path / backend, jobs=2, backend=backend)
        assert (summary.done, summary.failed) == (summary.total, 0), summary.errors
        assert outcomes(tmp_path / backend / "grid/runs.jsonl") == outcomes(
            tmp_path / "threading/grid/runs.jsonl"
        )
    again = run_study(study, tmp_path / "loky", jobs=2)
    assert (again.skipped, again.done) == (again.total, 0)


@pytest.fixture
def bad_solvers(tmp_path, monkeypatch):
    """Install a package whose entry points are solvers that misbehave, and one that cannot be
    imported.
    """
    here = str(Path(__file__).parent)
    distribution = tmp_path / "site" / "bad-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
    points = "[placeopt.solvers]\nmisbehave = badsolvers:Misbehave\nbroken = nosuchmodule:Solver\n"
    (distribution / "entry_points.txt").write_text(points)
    for folder in (here, str(distribution.parent)):
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv(
            "PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        )
    return distribution


def study_of_deeds(folder, deeds, more="", **fields):
    """Return a study with a cell per deed, in the order of the seeds."""
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in fields.items())
    return study_of(
        folder,
        f"""
        name = "grid"
        instances = ["gen:fork-join"]
        clusters = ["uniform:2"]
        seeds = {{count = {len(deeds)}}}
        evaluations = 5
        {settings}
        [[solvers]]
        name = "misbehave"
        options = {{deeds = {json.dumps(deeds)}}}
        {more}
        """,
    )


WORDS = {
    "raise": "always raises",
    "kill": "signal 9",
    "hang": "hard timeout",
    "full": "No space left",
    "exit": "exit code 7",
    "interrupt": "interrupted itself",
}


@pytest.mark.parametrize(
    ("backend", "jobs"),
    [("loky", 2), pytest.param("loky", 1, marks=pytest.mark.slow), ("threading", 2), ("dask", 2)],
)
@pytest.mark.usefixtures("bad_solvers")
def test_misbehaving_solvers_are_recorded_and_the_rest_completes(tmp_path, backend, jobs):
    """A solver that raises, exits, dies or never returns is a recorded failure on every back end;
    the rest finishes.
    """
    if backend == "dask":
        pytest.importorskip("distributed", reason="the dask back end needs the dask extra")
    deeds = ["good", "kill", "exit", "hang", "raise", "good", "full", "interrupt", "good"]
    if backend != "loky":  # there each has a process of its own, which takes a second to start
        deeds = [*WORDS, "good"]
    study = study_of_deeds(tmp_path, deeds, hard_timeout=5)
    summary = run_study(study, tmp_path / "out", jobs=jobs, backend=backend)
    rows = {
        row["seed"]: row for row in latest(read_rows(tmp_path / "out/grid/runs.jsonl")).values()
    }
    assert (summary.done, summary.failed) == (deeds.count("good"), 6)
    for seed, deed in enumerate(deeds):
        if deed == "good":
            assert rows[seed]["value"]
        else:
            assert rows[seed]["status"] == "failed"
            assert WORDS[deed] in rows[seed]["error"]
            assert "\n" not in rows[seed]["error"]
    assert run_study(study, tmp_path / "out", jobs=1, retry_failed=False).done == 0


@pytest.mark.usefixtures("bad_solvers")
def test_lies_and_broken_packages_in_a_grid(tmp_path):
    """A made-up value is replaced by that of the solution; a package that cannot be imported is a
    failure of its own.
    """
    study = study_of_deeds(tmp_path, ["lie"], '[[solvers]]\nname = "broken"', keep_placements=True)
    summary = run_study(study, tmp_path / "out", jobs=1)
    rows = {
        row["solver"]: row for row in latest(read_rows(tmp_path / "out/grid/runs.jsonl")).values()
    }
    assert (summary.done, summary.failed) == (1, 1)
    assert "nosuchmodule" in rows["broken"]["error"]
    problem = po.load("gen:fork-join", cluster="uniform:2")
    placement = unpack_placement(rows["misbehave"]["placement"])
    assert rows["misbehave"]["value"] == po.evaluate(problem, placement).makespan > 1
    assert rows["misbehave"]["lower_bound"] <= rows["misbehave"]["value"]
    files, _ = write_report(tmp_path / "out/grid", tmp_path / "report")
    assert str(rows["misbehave"]["value"]) in (tmp_path / "report/best-known.csv").read_text()
    assert files


def test_the_key_has_the_version_of_the_solver(tmp_path, bad_solvers, monkeypatch):
    """A new version of somebody's solver is another cell; our own has the version of the
    package.
    """
    keys = [expand(study_of_deeds(tmp_path, ["good"]))[0].key]
    (bad_solvers / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 2.0\n")
    keys.append(expand(study_of_deeds(tmp_path, ["good"]))[0].key)
    monkeypatch.setattr(solver_class("misbehave"), "version", "3", raising=False)
    keys.append(expand(study_of_deeds(tmp_path, ["good"]))[0].key)
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{0..4}", "{1..1000000000}"),
        ('"gen:fork-join"', json.dumps("gen:x?k=" + "{a,b}" * 40)),
        ("seeds = {count = 3}", "seeds = [-1]"),
        ("seeds = {count = 3}", "seeds = {first = -1, count = 3}"),
        ("seeds = {count = 3}", f"seeds = {'[' * 5000}{']' * 5000}"),
        ("evaluations = 20", f"evaluations = {'9' * 5000}"),
        ("runs = [1, 5]", f"runs = {[1] * 3000}, a = {[1] * 3000}"),
    ],
)
def test_huge_studies_are_refused_at_once(tmp_path, old, new):
    """Ranges, braces, nesting and numbers without end are one line each."""
    assert old in STUDY
    with pytest.raises(InputError) as error:
        expand(study_of(tmp_path, STUDY.replace(old, new, 1)))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_study_with_a_byte_order_mark_is_read(tmp_path):
    """An editor may put a byte-order mark before TOML."""
    (tmp_path / "grid.toml").write_bytes(b"\xef\xbb\xbf" + STUDY.encode())
    assert load_study(tmp_path / "grid.toml").name == "grid"


@pytest.mark.parametrize(
    "line", ["{}", "[1]", '{"key": 5}', '{"key": "a"}', "[" * 100_000, '{"key": "a", "value": "x"}']
)
def test_damaged_rows_are_one_line(tmp_path, line):
    """A line that is no row of a cell is named."""
    (tmp_path / "runs.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="damaged") as error:
        write_report(tmp_path, tmp_path)
    assert "\n" not in str(error.value)


def test_rows_are_read_back_whatever_a_solver_raises(tmp_path, bad_solvers, monkeypatch):
    """Escape codes and names of files that are no text neither end a grid nor damage its rows; nor
    does a clock that goes back.
    """
    clock = iter(range(10**6, 0, -1))
    monkeypatch.setattr(time, "time", lambda: next(clock))
    (cell,) = expand(study_of_deeds(tmp_path, ["colour"]))
    with RunStore(tmp_path) as store:
        assert store.append(run_cell(cell))
    (row,) = cell_rows(tmp_path / "runs.jsonl")
    assert "[31mno caf\udce9" in row["error"]
    assert "\x1b" not in row["error"]


def test_a_cell_takes_along_what_this_process_has_registered(tmp_path, monkeypatch):
    """A solver and an objective of a script's own are there where a cell is unpickled; of a module
    that is missing there, the cell fails alone.
    """
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_classes", {})
    monkeypatch.setattr(objectives, "_targets", dict(objectives._targets))

    class Weight(PlainObjective):
        name, kind, default_solver = "weight", "placement", "first"

        def judge(self, problem, solution, queue=None):
            return []

        def finish(self, problem, solution, queue=None):
            return Finished(int(solution.device.sum()), "", ())

    class First:
        name = "first"

        def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
            return SimpleNamespace(solution=Placement([1] * problem.num_ops))

    for cls in (Weight, First):
        cls.__module__ = "__main__"  # of a script: nobody can import it
    objectives.register_objective(Weight())
    objectives.register_objective(Weight())
    registry.register("first", objectives=("weight",))(First)
    study = study_of(
        tmp_path,
        """
        instances = ["gen:fork-join"]
        clusters = ["uniform:2"]
        objectives = ["weight"]
        evaluations = 5
        [[solvers]]
        name = "first"
        """,
    )
    (cell,) = expand(study)
    data = pickle.dumps(cell)
    registry._registered.clear()
    del objectives._targets["placement", "weight"]
    for _ in range(2):
        row = run_cell(pickle.loads(data))
        assert row["value"] == po.load("gen:fork-join", cluster="uniform:2").num_ops
    monkeypatch.setitem(sys.modules, "gone", SimpleNamespace(__name__="gone", First=First))
    First.__module__, First.__qualname__ = "gone", "First"
    data = pickle.dumps(cell)
    registry._registered.clear()
    monkeypatch.delitem(sys.modules, "gone")
    assert "'first' is not known" in run_cell(pickle.loads(data))["error"]


def test_a_package_of_a_solver_may_bring_its_objective(tmp_path, bad_solvers, monkeypatch):
    """A study that names both finds both, in whatever order they are read."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(objectives, "_targets", dict(objectives._targets))
    points = bad_solvers / "entry_points.txt"
    points.write_text(points.read_text() + "weigh = weighpackage:Weigh\n")
    (bad_solvers.parent / "weighpackage.py").write_text(
        "from placeopt.model.objective import PlainObjective, register_objective\n"
        "class Weight(PlainObjective):\n"
        "    name, kind, default_solver = 'weight', 'placement', 'weigh'\n"
        "    def judge(self, problem, solution, queue=None): ...\n"
        "    def finish(self, problem, solution, queue=None): ...\n"
        "register_objective(Weight())\n"
        "class Weigh:\n"
        "    name, objectives = 'weigh', ('weight',)\n"
    )
    text = STUDY.replace('name = "heft"', 'name = "weigh"').partition(
        '[[solvers]]\nname = "random"'
    )
    study = study_of(tmp_path, 'objectives = ["weight"]\n' + text[0])
    assert {cell.objective for cell in expand(study)} == {"weight"}


@pytest.mark.parametrize("value", ["1979-05-27", "inf", "nan", "[{a = nan}]"])
@pytest.mark.parametrize("where", ["grid = {changes = [%s]}", "options = {changes = %s}"])
def test_options_that_a_row_cannot_hold_are_one_line(tmp_path, where, value):
    """JSON has no dates, and no numbers that are none: such rows could not be read back."""
    text = STUDY.replace("grid = {runs = [1, 5]}", where % value)
    with pytest.raises(InputError, match=r"study .*changes.*(JSON|finite)"):
        study_of(tmp_path, text)


def test_a_cell_runs_where_nothing_can_be_noted(tmp_path):
    """A full disk takes no note of what runs: the cell runs all the same, once."""
    assert run_cell(expand(study_of(tmp_path))[0], str(tmp_path / "nowhere"))["value"] > 0


def test_grids_of_job_streams_have_a_bound(tmp_path):
    """Jobs that no degree completes in time are a bound of every row."""
    source = "stream:ramp?models=gen:chain-mm&device=A100&jobs=9&beta=0.01"
    text = f'kind = "jobs"\ninstances = ["{source}"]\nevaluations = 1\n[[solvers]]\n'
    run_study(study_of(tmp_path, text + 'name = "max-degree"'), tmp_path, jobs=1)
    (row,) = read_rows(tmp_path / "grid/runs.jsonl")
    assert (row["value"], row["lower_bound"], row["status"]) == (9, 9, "optimal")


def test_grids_of_pipelines_have_the_period_of_a_micro_batch(tmp_path):
    """A pipeline's value is ticks per micro-batch, exact where that is a fraction; patterns of any
    size are ranked by it.
    """
    study = study_of(
        tmp_path,
        """
        name = "grid"
        kind = "pipeline"
        instances = ["shape:V?devices=4&memory=3"]
        seconds = 60
        [[solvers]]
        name = "repetend"
        grid = {size = [1, 2, 3]}
        """,
    )
    summary = run_study(study, tmp_path, jobs=1)
    assert summary.failed == 0, summary.errors
    rows = {row["label"]: row for row in read_rows(tmp_path / "grid/runs.jsonl")}
    assert {row["objective"] for row in rows.values()} == {"period"}
    last = rows["repetend (size=3)"]
    assert (last["value"], last["value_exact"]) == (float(Fraction(16, 3)), "16/3")
    values = [rows[f"repetend (size={size})"]["value"] for size in (1, 2, 3)]
    assert values[0] > values[2]
    (best,) = best_known(rows.values())
    assert (best["label"], best["objective"]) == ("repetend (size=3)", "period")
    assert all(row["lower_bound"] <= row["value"] for row in rows.values())
    write_report(tmp_path / "grid", tmp_path / "report")
    head, line = (tmp_path / "report/values.csv").read_text().splitlines()
    shown = dict(zip(head.split(","), line.split(","), strict=True))
    assert [shown[f"repetend (size={size})"] for size in (1, 2, 3)] == [
        "8",
        f"{values[1]:g}",
        "5.33",
    ]
    assert shown["lower bound"] == "5.33"
    wins = (tmp_path / "report/solvers.csv").read_text().splitlines()[1].split(",")
    assert (wins[0], wins[3]) == ("repetend (size=3)", "1 / 1")


def test_torn_last_line_is_repaired(tmp_path):
    """A half-written last line is cut off when the store is opened; whole lines stay."""
    with RunStore(tmp_path) as store:
        for i in range(50):
            store.append({"key": str(i), "text": "x" * 3000})
    path = tmp_path / "runs.jsonl"
    whole = path.read_bytes()
    for torn in (
        b'{"key": "51", "te',
        b'{"key": "51"',
        b"\x00" * 100 + b"\n",
        b'{"key": 1}{"broken\n',
    ):
        path.write_bytes(whole + torn)
        with RunStore(tmp_path) as store:
            assert store.repaired == len(torn)
            assert len(list(store.rows())) == 50
    assert path.read_bytes() == whole


def test_no_more_than_a_line_is_cut_off(tmp_path):
    """A file that is no store, or was written anew by another program, is not emptied."""
    path = tmp_path / "runs.jsonl"
    path.write_text('{\n  "key": "a"\n}\n')
    with RunStore(tmp_path) as store, pytest.raises(InputError, match="line 1 is damaged"):
        list(store.rows())
    assert path.read_text() == '{\n  "key": "a"\n'


def test_second_process_is_kept_out(tmp_path):
    """While one process holds the store, another is refused with a clear line."""
    with (
        RunStore(tmp_path),
        pytest.raises(InputError, match="in use by process"),
        RunStore(tmp_path),
    ):
        pass


def test_full_disk_keeps_rows_until_there_is_room(tmp_path):
    """When writing fails, no half line stays, and the rows are written as soon as there is room; a
    disk that is full before is named.
    """
    code = f"""
import resource, signal
from placeopt.experiments.store import RunStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with RunStore({str(tmp_path)!r}) as store:
    assert store.append({{"key": "a", "x": "y" * 100}})
    resource.setrlimit(resource.RLIMIT_FSIZE, (160, resource.RLIM_INFINITY))
    assert not store.append({{"key": "b", "x": "y" * 100}})
    assert not store.append({{"key": "c", "x": "y" * 100}})
    assert [row["key"] for row in store.rows()] == ["a"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert store.append({{"key": "d"}})
assert [row["key"] for row in store.rows()] == ["a", "b", "c", "d"]
assert store.unsaved == []
"""
    code += f"""
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
from placeopt.model.errors import InputError
try:
    RunStore({str(tmp_path)!r}).__enter__()
except InputError as error:
    assert "cannot be written to" in str(error), error
else:
    raise AssertionError("a store that takes nothing was opened")
"""
    assert resource.RLIM_INFINITY is not None
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.jit
@pytest.mark.parametrize(
    ("kills", "cells"), [(2, 200), pytest.param(10, 400, marks=pytest.mark.slow)]
)
def test_killed_grid_resumes_to_the_same_results(tmp_path, kills, cells):
    """Killed with SIGKILL at random moments and resumed: every cell has one result, of equal
    values.
    """
    text = f"""
        name = "grid"
        instances = ["gen:layered?layers=4&width=3&seed={{0..9}}"]
        clusters = ["uniform:2"]
        seeds = {{count = {cells // 10}}}
        evaluations = 3
        [[solvers]]
        name = "random"
        """
    study = study_of(tmp_path, text)
    run_study(study, tmp_path / "whole", jobs=2, backend="threading")
    expected = outcomes(tmp_path / "whole/grid/runs.jsonl")
    assert len(expected) == cells
    command = [
        sys.executable,
        "-m",
        "placeopt",
        "bench",
        str(tmp_path / "grid.toml"),
        "--results",
        str(tmp_path / "cut"),
        "-j",
        "2",
    ]
    moments = random.Random(1)
    store = tmp_path / "cut/grid/runs.jsonl"
    for _ in range(kills):
        process = subprocess.Popen(
            command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        before = store.stat().st_size if store.exists() else 0
        deadline = time.time() + 60
        while (
            time.time() < deadline
            and process.poll() is None
            and (store.stat().st_size if store.exists() else 0) <= before
        ):
            time.sleep(0.01)
        time.sleep(moments.random() * 0.15)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(
        command, check=True, timeout=240, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    rows = list(read_rows(store))
    assert len({row["key"] for row in rows}) == len(rows) == cells
    assert outcomes(store) == expected


def test_workers_of_a_killed_grid_end(tmp_path):
    """SIGKILL of the main process alone leaves no worker behind that the next run would share its
    cores with.
    """
    text = STUDY.replace('name = "random"', 'name = "misbehave"\noptions = {deeds = ["hang"]}')
    (tmp_path / "grid.toml").write_text(text)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import badsolvers
from placeopt.experiments.runner import run_study
from placeopt.experiments.study import load_study
run_study(load_study({str(tmp_path / "grid.toml")!r}), {str(tmp_path)!r}, jobs=2)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    running, found = tmp_path / "grid/running", set()
    deadline = time.time() + 120
    while len(found) < 2 and time.time() < deadline:
        found = {int(note.name) for note in running.iterdir()} if running.exists() else set()
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert found
    while any(Path(f"/proc/{worker}").exists() for worker in found) and time.time() < deadline:
        time.sleep(0.05)
    assert not [worker for worker in found if Path(f"/proc/{worker}").exists()]


def test_crowded_cores_are_refused(tmp_path):
    """CP-SAT workers times jobs beyond the cores is an error that says what to change."""
    text = STUDY.replace(
        'name = "random"', 'name = "cp-sat"\noptions = {num_workers = 64}'
    ).replace("evaluations = 20", "seconds = 1")
    with pytest.raises(InputError, match="num_workers"):
        run_study(study_of(tmp_path, text), tmp_path, jobs=2)


def test_packed_placements_come_back():
    """A placement survives packing."""
    for placement in (Placement([0, 1, 2]), Placement([3, 3], [1, 0])):
        assert unpack_placement(pack_placement(placement)) == placement


def test_a_file_system_without_locks_is_not_in_use(tmp_path, monkeypatch):
    """Where nothing can be locked a study runs, with a warning that two may not."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="No locks available"), RunStore(tmp_path) as store:
        assert store.append({"key": "a"})
    assert [row["key"] for row in read_rows(tmp_path / "runs.jsonl")] == ["a"]


def test_runs_are_in_a_regular_file(tmp_path):
    """A device, which has no end, is refused in one line."""
    path = tmp_path / "runs.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(InputError, match="regular file"), RunStore(tmp_path):
        pass
    with pytest.raises(InputError, match="regular file"):
        list(read_rows(path))


def test_a_last_line_that_is_nested_too_deeply_is_torn(tmp_path):
    """No content of a store ends in a traceback."""
    (tmp_path / "runs.jsonl").write_text('{"key": "a"}\n' + "[" * 100_000 + "\n")
    with RunStore(tmp_path) as store:
        assert [row["key"] for row in store.rows()] == ["a"]


@pytest.mark.parametrize(
    ("kind", "instance", "fields"),
    [
        ("placement", "gen:ffnn", {"objective": "period"}),
        ("pipeline", "shape:V", {"memori": 3}),
        ("jobs", "stream:ramp?beta=A", {"folder": "x"}),
        ("sharding", "none.json", {"limit": 3}),
    ],
)
def test_fields_that_nothing_takes_are_one_line(kind, instance, fields):
    """What a study asks of a problem that its kind does not have names the field."""
    with pytest.raises(InputError, match=next(iter(fields))):
        load_cell_problem(instance, None, "makespan", kind, False, fields)
