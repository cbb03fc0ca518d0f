"""The command line: JSON contracts, files, one line and exit code 2 for bad input."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import placeopt as po
from placeopt.cli import common, interrupt, main
from placeopt.cli.solve import SolveReport
from placeopt.instances.clusters import EXAMPLE
from placeopt.solving.registry import register


def run(capsys, *arguments):
    """Return (exit code, stdout, stderr) of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(x) for x in arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def run_json(capsys, *arguments):
    """Return the JSON object that a command prints; nothing else may be on stdout."""
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def problem_file(tmp_path):
    """A problem file with two devices, four ops and a capacity that is easily exceeded."""
    from placeopt.io.serialize import save
    from placeopt.model.problem import PlacementProblem

    problem = PlacementProblem.from_edges(
        [[5, 6], [7, 8], [9, 4], [3, -1]],
        [(0, 1, 2), (0, 2, 2), (1, 3, 2), (2, 3, 2)],
        name="four",
        op_names=("a", "b", "c", "d"),
        device_names=("x", "y"),
        resident=[6, 6, 6, 6],
        capacity=[20, 20],
    )
    return save(problem, tmp_path / "four.json")


def write(path, text):
    """Write a file and return its path."""
    path.write_text(text)
    return path


def placed(tmp_path, devices, name="p.csv", header="op,device"):
    """Write a placement CSV by op name."""
    return write(
        tmp_path / name,
        header + "\n" + "".join(f"{op},{d}\n" for op, d in zip("abcd", devices, strict=True)),
    )


def test_info_contract(capsys):
    """`info --json` has the promised fields."""
    data = run_json(capsys, "info", "gen:fork-join")
    assert {
        "ops",
        "tensors",
        "edges",
        "depth",
        "width",
        "parameters",
        "flops",
        "unshaped_ops",
        "bounds",
    } <= set(data)
    assert all(isinstance(value, int) for value in data["bounds"].values())


def test_solve_contract_for_one_and_for_several(capsys, problem_file, tmp_path):
    """One solver: the result object; several: `results` and `best`; files are written and can be
    evaluated.
    """
    fields = {
        "problem",
        "solver",
        "objective",
        "value",
        "seconds",
        "lower_bound",
        "bound_method",
        "gap",
        "status",
        "stop_reason",
        "evaluations",
        "runtime",
        "seed",
    }
    one = run_json(capsys, "solve", problem_file, "--solver", "heft")
    assert fields <= set(one)
    out = tmp_path / "out"
    many = run_json(
        capsys, "solve", problem_file, "-s", "heft,etf", "-s", "single-device", "--out", out
    )
    assert len(many["results"]) == 3
    best = many["results"][many["best"]]
    assert fields <= set(best)
    assert best["value"] == min(r["value"] for r in many["results"] if r["value"] is not None)
    again = run_json(capsys, "evaluate", problem_file, out / "placement.json")
    assert again["makespan"] == best["value"]
    assert {"queue", "peak_memory", "busy"} <= set(again)
    assert {"gantt.png", "trace.json", "placement.json", "result.json"} <= {
        p.name for p in out.iterdir()
    }
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" and e["pid"] == 1 for e in events) == 4


def test_bound_and_verify_contracts(capsys, problem_file, tmp_path):
    """`bound` names value, method and all bounds; `verify` certifies a placement given by names."""
    bound = run_json(capsys, "bound", problem_file, "--seconds", "1")
    assert bound["bounds"][bound["method"]] == bound["value"]
    data = run_json(capsys, "verify", problem_file, placed(tmp_path, "xxyx"), "--seconds", "5")
    assert {"feasible", "violations", "value", "lower_bound", "gap", "status"} <= set(data)
    assert data["feasible"]
    assert data["lower_bound"] <= data["value"]


def test_verify_lists_violations_and_exits_with_1(capsys, problem_file, tmp_path):
    """A placement that breaks constraints: every violation in words, exit code 1."""
    code, out, _ = run(capsys, "verify", problem_file, placed(tmp_path, "xxxx"))
    assert code == 1
    assert "capacity" in out
    code, out, _ = run(capsys, "verify", problem_file, placed(tmp_path, "xxyy"), "--json")
    assert code == 1
    assert any("'d' cannot run" in line for line in json.loads(out)["violations"])


def test_certificate_can_be_rechecked(capsys, problem_file, tmp_path):
    """A written certificate holds when checked again, and does not for another placement."""
    certificate = tmp_path / "certificate.json"
    given = placed(tmp_path, "xxyx")
    run(capsys, "verify", problem_file, given, "--seconds", "5", "--out", certificate)
    code, out, _ = run(capsys, "verify", problem_file, given, "--recheck", certificate)
    assert (code, "holds" in out) == (0, True)
    code, out, _ = run(
        capsys, "verify", problem_file, placed(tmp_path, "xyxx", "q.csv"), "--recheck", certificate
    )
    assert code == 1


def test_lists(capsys):
    """`solvers` and `clusters` list what the registry and the presets have."""
    names = {row["name"] for row in run_json(capsys, "solvers")["solvers"]}
    assert {"heft", "single-device", "edge-zeroing", "cp-sat"} <= names
    assert "4xA100" in {row["name"] for row in run_json(capsys, "clusters")["clusters"]}
    assert run_json(capsys, "clusters", "--example") == {"example": EXAMPLE}
    code, out, _ = run(capsys, "solvers")
    assert code == 0
    assert "heft" in out


def test_plot_and_convert(capsys, problem_file, tmp_path):
    """`plot` writes pictures and traces, `convert` a graph that reads back."""
    given = placed(tmp_path, "xxyx")
    for name in ("g.png", "g.svg", "g.json"):
        assert run_json(capsys, "plot", problem_file, given, "--out", tmp_path / name)[
            "file"
        ].endswith(name)
        assert (tmp_path / name).stat().st_size > 500
    made = run_json(capsys, "convert", "gen:fork-join", tmp_path / "graph.json")
    assert run_json(capsys, "info", tmp_path / "graph.json")["ops"] == made["ops"]


BAD_PLACEMENTS = [
    ("op,device\na,x\nb,x\nc,y\ne,x\n", "'e'"),
    ("op,device\na,x\nb,x\nc,y\nd,z\n", "'z'"),
    ("op,device\na,x\nb,x\nc,y\n", "'d'"),
    ("operation,where\na,x\n", "header"),
    ("op,device\na,x\na,y\nb,x\nc,y\nd,x\n", "'a'"),
    ('{"problem": "four", "device": {"a": "x", ', "JSON"),
    ('{"device": 7}', "device"),
    ("", "empty"),
]


@pytest.mark.parametrize(("text", "words"), BAD_PLACEMENTS)
@pytest.mark.parametrize("command", ["evaluate", "verify"])
def test_bad_placement_files(capsys, problem_file, tmp_path, command, text, words):
    """Every wrong placement file is one clear line and exit code 2."""
    code, out, err = run(capsys, command, problem_file, write(tmp_path / "p.csv", text))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_over_capacity_placement(capsys, problem_file, tmp_path):
    """`evaluate` refuses a placement that does not fit, naming the device."""
    code, _, err = run(capsys, "evaluate", problem_file, placed(tmp_path, "xxxx"))
    assert code == 2
    assert "'x' holds 24" in err


BAD_GRAPHS = [
    ("g.csv", "source,target,bytes\na,b,1\nb,a,1\n", "cycle"),
    ("g.csv", "source,target,bytes\na,b,-5\n", "-5"),
    ("g.csv", "source,target,bytes\na,b,nan\n", "nan"),
    ("g.json", '{"format": "placeopt/opgraph", "version": 1, "na', "JSON"),
    ("g.json", '{"format": "placeopt/opgraph", "version": 99}', "version"),
    ("g.json", '{"format": "placeopt/opgraph", "version": 1, "name": "x", "ops": []}', ""),
    ("g.onnx", "\x08\x07\x12\x07pytorch\x1a", "onnx"),
    ("g.txt", "", "empty"),
    ("g.bin", "\x00\x01\x02", "format"),
]


@pytest.mark.parametrize(("name", "text", "words"), BAD_GRAPHS)
def test_bad_graphs(capsys, tmp_path, name, text, words):
    """Cyclic, negative, NaN, truncated, empty and unknown graphs: one clear line, exit code 2."""
    code, out, err = run(capsys, "info", write(tmp_path / name, text))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words.lower() in err.lower()


def test_op_that_runs_nowhere(capsys, tmp_path):
    """An op that no device supports is named."""
    from placeopt.io.serialize import save
    from placeopt.model.graph import UNSUPPORTED, OpGraph

    graph = OpGraph.from_edges(
        "g", ["a", "b"], [(0, 1)], measured_kinds=("*",), measured=[[5], [UNSUPPORTED]]
    )
    code, _, err = run(capsys, "solve", save(graph, tmp_path / "g.json"), "--cluster", "2xA100")
    assert code == 2
    assert "'b' cannot run on any device" in err


def test_results_do_not_depend_on_the_hash_seed(capsys):
    """A process with another hash seed has the same output (runtimes aside)."""
    solvers = "heft,cpop,peft,etf,critical-path,edge-zeroing,dsc,m-sct,m-etf,m-topo,random"
    words = ["solve", "gen:llama-block", "-c", "uniform:4", "--bound-seconds", "0", "-s", solvers]
    words += ["--evaluations", "64"]
    done = subprocess.run(
        [sys.executable, "-m", "placeopt", *words, "--json"],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
        timeout=200,
    )
    here, there = (
        [(r["solver"], r["value"], r["solution"]) for r in answer["results"]]
        for answer in (run_json(capsys, *words), json.loads(done.stdout))
    )
    assert here == there


@register("cli-raises")
@dataclasses.dataclass(frozen=True)
class Raises:
    """Raises after it found something, if it is told to."""

    name = "cli-raises"

    def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
        """Raise."""
        raise RuntimeError("this solver always raises")


@register("cli-liar")
@dataclasses.dataclass(frozen=True)
class Liar:
    """Claims a value and a bound of one tick."""

    name = "cli-liar"

    def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
        """Put everything on the first device."""
        solution = po.Placement([0] * problem.num_ops)
        return po.Result(
            problem.name, self.name, solution, 1, 1, "magic", "optimal", "proved", 1, 0.0, seed
        )


def test_a_failing_solver_is_named_and_the_others_go_on(capsys, problem_file, tmp_path):
    """One solver that raises is one line; what the others found is printed and saved."""
    code, out, err = run(
        capsys,
        "solve",
        problem_file,
        "-s",
        "cli-raises,heft",
        "--out",
        tmp_path,
        "--bound-seconds",
        "0",
        "--json",
    )
    data = json.loads(out)
    assert code == 0
    assert data["solver"] == "heft"
    assert data["failures"] == [
        {
            "solver": "cli-raises",
            "refused": False,
            "error": "solver 'cli-raises' raised RuntimeError: this solver always raises",
        }
    ]
    assert err.count("\n") == 1
    assert (tmp_path / "placement.json").exists()


def test_only_failures_exit_with_3(capsys, problem_file):
    """Where every solver fails, each is a line on stderr and the exit code is 3."""
    code, out, err = run(capsys, "solve", problem_file, "-s", "cli-raises", "--bound-seconds", "0")
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert "always raises" in err


def test_a_made_up_value_is_not_reported(capsys, tmp_path):
    """The value of a plug-in is that of its solution, and its bound proves nothing."""
    data = run_json(
        capsys,
        "solve",
        "gen:fork-join",
        "-c",
        "uniform:2",
        "-s",
        "cli-liar",
        "--bound-seconds",
        "0",
    )
    problem = po.load("gen:fork-join", cluster="uniform:2")
    assert data["value"] == po.evaluate(problem, po.Placement([0] * problem.num_ops)).makespan > 1
    assert data["status"] == "feasible"
    assert "claim" in data["message"]


def test_no_device_can_hold_the_model(capsys, problem_file):
    """The line about one device says so where no device can hold the whole model."""
    code, out, _ = run(capsys, "solve", problem_file, "-s", "heft", "--bound-seconds", "0")
    assert code == 0
    assert "no single device can hold the whole model" in out
    assert "x slower" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["solve", "gen:fork-join", "-c", "uniform:2", "-s", "anneling"],
            "did you mean 'annealing'",
        ),
        (
            ["solve", "gen:fork-join", "-c", "uniform:2", "-s", "annealing", "--option", "walk=3"],
            "did you mean 'walks'",
        ),
        (["sovle", "gen:fork-join"], "did you mean 'solve'"),
        (["solvers", "hefd"], "did you mean 'heft'"),
        (["solve", "gen:fork-join", "-c", "uniform:2", "--seed", "-1"], "--seed"),
        (["evaluate", "shape:V?devices=2", "missing.json"], "missing.json"),
        (["bound", "shape:V?devices=2", "-c", "4xA100"], "brings its own devices"),
        (["bound", "shape:V?devices=2", "--objective", "makespan"], "option 'objective'"),
        (["plot", "shape:V?devices=2", "missing.json"], "missing.json"),
    ],
)
def test_hints_and_other_problems_are_one_line(capsys, arguments, words):
    """A misspelt solver, option or command is answered with the nearest; what does not fit is one
    line.
    """
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_pipelines_are_bounded_verified_and_evaluated(capsys, tmp_path):
    """A placement is no schedule: one line; the bound of a pipeline is its period per
    micro-batch.
    """
    bound = run_json(capsys, "bound", "shape:V?devices=4&memory=3", "-t", "1")
    assert (bound["objective"], bound["value"]) == ("period", pytest.approx(16 / 3))
    given = po.serialize.save(po.Placement([0, 0]), tmp_path / "p.json")
    for command in ("verify", "evaluate"):
        code, out, err = run(capsys, command, "shape:V?devices=2", given)
        assert (code, out, err.count("\n")) == (2, "", 1), err


def test_what_fails_after_a_signal_is_an_interruption(capsys, monkeypatch):
    """An import that a signal has broken off may fail in any way; without one it is an error."""
    from placeopt import cli

    with pytest.raises(ValueError, match="odd"):
        cli._explain(ValueError("odd"), [])
    monkeypatch.setattr(interrupt._SignalState, "received", signal.SIGTERM)
    monkeypatch.setattr(interrupt, "leave", sys.exit)  # a process would end at once
    interrupt._SignalState.said.clear()
    with pytest.raises(SystemExit) as stop:
        cli._explain(ValueError("odd"), [])
    assert stop.value.code == 143
    assert capsys.readouterr().err == "placeopt: error: interrupted\n"


def test_a_folder_is_tried_by_no_file_of_others(tmp_path):
    """What lies in an output folder stays there, whatever its name."""
    (tmp_path / ".placeopt").write_text("mine")
    common.out_folder(tmp_path)
    common.out_file(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == [".placeopt"]


def test_unwritable_output_still_prints(capsys, problem_file, tmp_path, monkeypatch):
    """A full disk is one line; what was computed is printed."""
    from placeopt.cli import solve
    from placeopt.model.errors import InputError

    def full(value, path):
        raise InputError(f"file '{path}': cannot be written: No space left on device")

    monkeypatch.setattr(solve, "save", full)
    code, out, err = run(
        capsys,
        "solve",
        problem_file,
        "-s",
        "heft",
        "--out",
        tmp_path,
        "--json",
        "--bound-seconds",
        "0",
    )
    assert code == 1
    assert json.loads(out)["value"] is not None
    assert err.count("\n") == 1
    assert "No space left" in err


@pytest.mark.parametrize(
    "command",
    [
        "schedule shape:V?devices=2 --micro-batches 4 --seconds 1",
        "evaluate gen:ffnn given.csv --cluster uniform:2",
        "jobs stream:ramp?models=gen:chain-mm&device=A100&jobs=3&beta=2&interval=2 -p min-degree",
        "shard gen:ffnn --mesh 8 --seconds 1",
        "plan gen:gpt2?layers=2 --cluster 2xA100 --batch 4 --seconds 1",
        "plan gpt2 --cluster 2xA100 --batch 4 --seconds 1",
    ],
)
def test_a_full_disk_hides_no_outcome(capsys, tmp_path, monkeypatch, command):
    """What was computed is printed, nothing is left half written, and one line says why."""
    from placeopt.model import files

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    ops = po.load("gen:ffnn", cluster="uniform:2").num_ops
    Path("given.csv").write_text("op,device\n" + "".join(f"{v},0\n" for v in range(ops)))
    monkeypatch.setattr(files.tempfile, "mkstemp", full)
    code, out, err = run(capsys, *command.split(), "--out", "out", "--json")
    assert (code, err.count("\n")) == (2, 1), err
    assert len(json.loads(out)) > 5
    assert "No space left" in err
    assert list(Path("out").iterdir()) == []


def test_a_certificate_that_is_not_written_keeps_no_proof_back(capsys, problem_file, tmp_path):
    """The disk of one file may be full, the other's not."""
    file, proof = placed(tmp_path, "xxyx"), tmp_path / "proof.json"
    given = ("verify", problem_file, file, "--out", "/dev/full", "--proof", proof)
    code, out, err = run(capsys, *given, "--seconds", "1")
    assert (code, err.count("\n")) == (2, 1), err
    assert "/dev/full" in err
    assert f"proof: {proof} shows" in out
    assert proof.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_the_best_so_far(tmp_path, number, code):
    """Interrupted in its second solver, `solve` writes and prints what the first one found."""
    command = [
        sys.executable,
        "-m",
        "placeopt",
        "solve",
        "gen:llama-block",
        "-c",
        "uniform:4",
        "-s",
        "heft,lns",
        "-t",
        "500",
        "--bound-seconds",
        "0",
        "--out",
        str(tmp_path),
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not (tmp_path / "results" / "heft.json").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert json.loads(out)["value"] is not None
    assert (tmp_path / "placement.json").exists()
    assert "Traceback" not in err


COMPILING = """
import os, signal, sys, time
from numba.core.compiler_lock import global_compiler_lock
from placeopt.cli import interrupt
with interrupt.signals_handled():
    try:
        with global_compiler_lock:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(float(sys.argv[1]))
            print("compiled")
        time.sleep(10)
    except KeyboardInterrupt:
        print("told")
        interrupt.leave(interrupt.exit_code())
"""


@pytest.mark.parametrize(("seconds", "words"), [(0.3, "compiled told"), (30, "")])
def test_a_compiler_is_not_interrupted(seconds, words):
    """A signal waits until the compiler has finished; if that takes too long the process ends all
    the same.
    """
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", COMPILING, str(seconds)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 143
    assert " ".join(done.stdout.split()) == words
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 25


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("redirect", "encoding", "expected"),
    [
        (">&-", "utf-8", ""),
        ("2>&-", "utf-8", '{"name": "\N{LATIN SMALL LETTER E WITH ACUTE}"'),
        ("", "ascii", '{"name": "\\u00e9"'),
    ],
)
def test_any_output_is_printed_to(redirect, encoding, expected, tmp_path):
    """A closed output, and one that cannot say a name, end no command."""
    source = tmp_path / "\N{LATIN SMALL LETTER E WITH ACUTE}.csv"
    source.write_text("op,time\na,3\n")
    info = f'"{sys.executable}" -m placeopt info "$0" --json {redirect}'
    done = subprocess.run(
        ["sh", "-c", info, source],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding).startswith(expected)


def test_a_command_goes_on_when_nobody_reads(tmp_path):
    """`placeopt ... | head -1` ended with exit code 1 before the command was done."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from placeopt.cli.common import say\n"
        "reader, writer = os.pipe()\n"
        "os.close(reader)\n"
        "os.dup2(writer, 1)\n"
        "say('nobody')\n"
        "sys.stderr.write('done')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "done")


TALKER = """
import os, sys
from placeopt.cli import command
from placeopt.model.placement import Placement
from placeopt.solving.registry import register

@register("talker")
class Talker:
    name = "talker"

    def __init__(self):
        print("made")

    def search(self, problem, tracker):
        print("searching")
        os.write(1, b"as a library does")
        tracker.offer(Placement([0] * problem.num_ops))

command()
"""


@pytest.mark.parametrize("json_", [["--json"], []])
def test_what_a_plugin_prints_is_no_json(json_):
    """With --json the standard output holds one object; what others print is on the error stream."""
    done = subprocess.run(
        [sys.executable, "-c", TALKER, "solve", "gen:ffnn", "-cuniform:2", "-stalker", *json_],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    said = done.stderr if json_ else done.stdout
    assert all(words in said for words in ("made", "searching", "as a library does"))
    if json_:
        assert json.loads(done.stdout)["solver"] == "talker"


def test_no_command_prints_the_help_alone(capsys):
    """Without a command the help says enough: no empty error follows."""
    code, out, err = run(capsys)
    assert (code, err) == (2, "")
    assert "Usage: placeopt" in out


def test_import_is_light():
    """`import placeopt` loads neither numba, ortools, onnx nor matplotlib."""
    code = (
        "import sys, placeopt; print([m for m in ('numba', 'ortools', 'onnx', 'matplotlib', "
        "'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    """What `placeopt` lists can be imported from it."""
    import placeopt

    assert [name for name in placeopt.__all__ if not hasattr(placeopt, name)] == []
    assert {"load", "solve", "verify", "bound", "plan", "Certificate", "ShardingProblem"} <= set(
        dir(placeopt)
    )


def test_generators_are_listed_and_explained(capsys):
    """`generators` lists what can be generated, one of them with its options; a wrong name has a
    suggestion.
    """
    names = {row["name"] for row in run_json(capsys, "generators")["generators"]}
    assert {"llama", "resnet50", "planted"} <= names
    (row,) = run_json(capsys, "generators", "gen:llama")["generators"]
    assert row["options"]["layers"] == 32


FINALIZED = """
import os, signal, sys, time
from placeopt.cli import interrupt

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

with interrupt.signals_handled():
    try:
        Finalized()
        time.sleep(30)
    except KeyboardInterrupt:
        print("told")
        interrupt.leave(interrupt.exit_code())
"""


def test_a_signal_in_a_finalizer_is_not_lost():
    """Python drops what a finalizer raises: the signal is told again outside it."""
    done = subprocess.run(
        [sys.executable, "-c", FINALIZED], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (143, "told", "")


def test_solve_explains_its_tactics(capsys, problem_file):
    """--explain shows what each tactic of a search did, beside the usual outcome."""
    words = ("solve", problem_file, "--solver", "cp-sat", "--evaluations", 50)
    plain = run(capsys, *words)
    code, out, _ = run(capsys, *words, "--explain")
    assert (code, plain[0]) == (0, 0)
    assert "tactics of cp-sat" not in plain[1]
    assert "best: cp-sat" in out


def test_brackets_are_shown_as_they_are(capsys):
    """Names and docstrings of others are no markup, which could be none, or vanish."""
    view = common.table("solver")
    view.add_row("[final] of [/tmp]")
    common.say("net[final]", "[/tmp]")
    common.say(view)
    words = ["net[final]", "[/tmp]", "solver", "[final]", "of", "[/tmp]"]
    assert capsys.readouterr().out.split() == words


def test_names_bring_no_codes_to_the_terminal(capsys, problem_file):
    """What a file calls its problem is printed without control characters, as are errors."""
    data = json.loads(Path(problem_file).read_text())
    Path(problem_file).write_text(json.dumps(data | {"name": "a\x1b[2Jb"}))
    code, out, err = run(capsys, "solve", problem_file, "--solver", "heft")
    assert (code, "a [2Jb" in out, "\x1b" in out + err) == (0, True, False)
    view = common.table("sol\x1b[31mver", title="\x9b31m")
    view.add_row("x\x1b]0;y\x07")
    common.say(view)
    assert not set(capsys.readouterr().out) & {"\x1b", "\x9b", "\x07"}


def test_a_result_stays_in_its_folder(problem_file, tmp_path):
    """Whatever a plug-in calls itself."""
    result = po.solve(po.load(problem_file), "heft")
    report = SolveReport(tmp_path / "out", single=True, json=False, own=False, explain=False)
    report.save_result(dataclasses.replace(result, solver="../lab/heft"))
    assert [str(x.relative_to(tmp_path)) for x in tmp_path.rglob("*heft*")] == [
        "out/results/..-lab-heft.json"
    ]
