"""What users get wrong: one line that says what was expected and how to mend it, and exit code 2."""

from __future__ import annotations

import json
import shlex

import pytest

import placeopt as po
from placeopt.cli import main
from placeopt.model.errors import InputError
from placeopt.schedules.problem import Block
from placeopt.schedules.solution import Repetend
from placeopt.splits.problem import SplitProblem

DATA_DEPENDENT = """
import torch


class Branch(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


def make():
    return Branch(), (torch.randn(3),)


def alone():
    return Branch()


def broken():
    raise ValueError("my own error")
"""

STUDY = 'name = "x"\ninstances = ["gen:fork-join"]\nclusters = ["uniform:2"]\nseconds = 1\n'
HEFT = '[[solvers]]\nname = "heft"\n'

FILES = {
    "text.onnx": "this is no model\n",
    "empty.onnx": "",
    "broken.json": "{",
    "cycle.dot": "digraph g { a -> b; b -> a; }",
    "nothing.dot": "digraph g { }",
    "afile": "",
    "bad.toml": 'name = "x"\n[[devices]\n',
    "key.toml": 'name = "x"\nspeed = 3\n',
    "twice.csv": "op,device\n0,0\n0,1\n",
    "head.csv": "node,gpu\n0,0\n",
    "model.py": DATA_DEPENDENT,
    "syntax.py": "def make(:\n",
    "table.toml": "blocks = 3\n",
    "key-study.toml": f"{STUDY}seedz = 3\n{HEFT}",
    "budget-study.toml": STUDY.replace("seconds = 1\n", "") + HEFT.replace("heft", "annealing"),
    "study.toml": STUDY + HEFT,
}

FOUR = "gen:fork-join?branches=2"

# (id, command, what the line says, the fix that it names)
MISTAKES = [
    # clusters
    ("cluster-unknown", "solve {g} -c 4xA1000", "cluster '4xA1000' is not known", "mean '4xA100'"),
    ("cluster-missing", "solve {g}", "needs devices", "--cluster 4xA100"),
    ("cluster-missing-plan", "plan gen:gpt2", "expected the devices", "'placeopt clusters'"),
    ("cluster-missing-schedule", "schedule gen:gpt2", "is a model", "--cluster 4xA100"),
    ("cluster-empty", "solve {g} -c uniform:0", "received 0", "expected 1..4096 devices"),
    ("cluster-file", "solve {g} -c none.toml", "none.toml", "no such file"),
    ("cluster-toml", "solve {g} -c bad.toml", "not valid TOML", "at line 2"),
    ("cluster-key", "solve {g} -c key.toml", "'speed' is not known", "known: name, contention"),
    ("cluster-unit", "solve {g} -c 4xA100?memory=lots", "received 'lots'", "a positive number"),
    ("cluster-link", "solve {g} -c 4xA100?contention=all", "received 'all'", "none, pair, source"),
    ("cluster-twice", "solve shape:V -c 4xA100", "its own devices", "leave out --cluster 4xA100"),
    # models
    ("file-missing", "solve none.onnx -c 4xA100", "none.onnx", "no such file"),
    (
        "model-shape",
        "info llama3-70b",
        "'llama3-70b': no such file",
        "'placeopt plan' takes llama3-70b",
    ),
    ("model-public", "info gpt-25b", "'gpt-25b': no such file", "'placeopt plan' takes gpt-"),
    ("model-bare", "solve gpt2 -c 4xA100", "'gpt2': no such file", "did you mean gen:gpt2?"),
    ("model-near", "bound llama-7c -c 4xA100", "'llama-7c': no such file", "mean gen:llama-7b?"),
    ("model-none", "info xyzzyx", "'xyzzyx': no such file", "a file, gen:NAME, onnx:NAME"),
    (
        "model-cut",
        "schedule llama3-70b -c 4xA100",
        "no such file",
        "'placeopt plan' takes llama3-70b",
    ),
    ("file-empty", "info empty.onnx", "the file is empty", "export the model again"),
    ("file-folder", "info folder", "received a folder", "name a file in it"),
    ("text-in-onnx", "info text.onnx", "expected an ONNX model", "export the model again"),
    ("json-broken", "info broken.json", "not valid JSON", "write the file again"),
    ("graph-empty", "info nothing.dot", "received none", "at least one op"),
    ("graph-cycle", "solve cycle.dot -c uniform:2", "the graph has a cycle", "a -> b -> a"),
    ("format", "info text.onnx --format onxx", "format 'onxx' is not known", "mean 'onnx'"),
    ("format-generator", "info {g} --format csv", "option 'format' is not known", "?key=value"),
    ("onnx-name", "info onnx:resnet5", "no such model", "did you mean onnx:resnet50?"),
    ("dim", "info {g} --dim batch=0", "received 'batch=0'", "NAME=VALUE"),
    ("dim-digit", "info {g} --dim batch=\N{SUPERSCRIPT TWO}", "received 'batch=", "NAME=VALUE"),
    ("dim-generator", "info {g} --dim batch=8", "option 'dims' is not known", "gen:NAME?key=value"),
    (
        "dim-torch",
        "info torch:model.py:make --dim batch=8",
        "option 'dims'",
        "known: dynamic_shapes",
    ),
    ("generator", "solve gen:fork-joint -c 4xA100", "generator 'fork-joint'", "mean 'fork-join'"),
    ("generator-option", "info gen:fork-join?width=3", "option 'width'", "known: stages, branches"),
    ("generator-value", "info gen:fork-join?branches=x", "received 'x'", "a whole number"),
    ("torch-name", "info torch:model.py:mak", "no 'mak' in model.py", "mean 'make'"),
    ("torch-file", "info torch:none.py:make", "none.py", "no such file"),
    ("torch-source", "info torch:model.py", "torch:model.py", "expected torch:FILE.py:NAME"),
    ("torch-syntax", "info torch:syntax.py:make", "SyntaxError", "line 1"),
    ("torch-inputs", "info torch:model.py:alone", "example inputs are missing", "return (module,"),
    ("torch-raises", "info torch:model.py:broken", "ValueError: my own error", "broken() raised"),
    ("torch-branch", "info torch:model.py:make", "depends on the values", "use torch.cond"),
    # options
    ("command", "sovle {g}", "no such command 'sovle'", "did you mean 'solve'?"),
    ("argument", "solve", "expected SOURCE", "'placeopt solve --help' has an example"),
    ("argument-extra", "solve {g} x -c 4xA100", "did not expect 'x'", "'placeopt solve --help'"),
    ("option", "solve {g} --clusters 4xA100", "no such option --clusters", "mean --cluster"),
    ("option-value", "solve {g} --out", "--out", "requires an argument"),
    ("seconds-negative", "solve {g} -t -1", "--seconds", "at least 0, received '-1'"),
    ("seconds-text", "bound {g} --seconds=ten", "--seconds", "a number, received 'ten'"),
    ("seed", "solve {g} --seed -1", "--seed", "at least 0, received '-1'"),
    ("evaluations", "solve {g} --evaluations 0", "--evaluations", "at least 1, received '0'"),
    ("objective", "solve {g} -c 4xA100 --objective beauty", "--objective", "makespan, period"),
    ("memory", "solve {g} -c 4xA100 --memory 16GiB", "--memory", "expected one of static, peak"),
    ("group", "solve {g} -c 4xA100 --group blocks", "--group", "none, layer, block"),
    ("queue", "evaluate {g} ok.json -c uniform:2 --queue lifo", "--queue", "fifo, priority"),
    ("slots", "solve {g} -c 4xA100 --slots 2", "--slots is for", "give --objective latency"),
    ("contiguity", "bound {g} -c 4xA100 --contiguity chain", "--contiguity", "--objective period"),
    ("profiles", "solve {g} -c 4xA100 --profiles x", "--profiles is for job", "leave it out"),
    ("costs", "solve {g} -c 4xA100 --costs none.json", "costs 'none.json'", "no such file"),
    # solvers
    ("solver", "solve {g} -c 4xA100 -s heff", "solver 'heff' is not known", "mean 'heft'"),
    ("solver-kind", "schedule shape:V -s heft", "for pipeline problems", "known: 1f1b"),
    ("solver-objective", "solve {g} -c 4xA100 -s ideal-dp", "'makespan'", "the objective period"),
    ("solver-option", "solve {g} -c 4xA100 -s heft --option x=1", "no option 'x'", "insertion"),
    ("solver-setting", "solve {g} -c 4xA100 -s heft --option x", "'x'", "expected KEY=VALUE"),
    (
        "solver-type",
        "solve {g} -c 4xA100 -s annealing --option threads=x",
        "threads",
        "a whole number",
    ),
    (
        "solver-digits",
        f"solve {{g}} -c 4xA100 -s annealing --option walks={9:9<5000}",
        "walks",
        "number",
    ),
    ("solver-several", "solve {g} -c 4xA100 --option x=1", "--option", "exactly one --solver"),
    ("policy-file", "solve {g} -c 4xA100 --policy-file broken.json", "policy", "truncated JSON"),
    # solutions
    ("placement-missing", "evaluate {g} -c uniform:2", "expected PLACEMENT", "JSON or CSV"),
    ("placement-file", "evaluate {g} none.csv -c uniform:2", "'none.csv'", "no such file"),
    ("placement-lacks", "evaluate {g} lacks.json -c uniform:2", "has no device", "to every op"),
    ("placement-device", "verify {g} device.json -c uniform:2", "'gpu7'", "known: device0"),
    ("placement-extra", "verify {g} extra.json -c uniform:2", "op 'nobody' is not", "known: op0"),
    ("placement-twice", "verify {g} twice.csv -c uniform:2", "is placed twice", "keep one"),
    ("placement-header", "verify {g} head.csv -c uniform:2", "received node,gpu", "op,device"),
    ("placement-other", "verify {g} other.json -c uniform:2", "for problem 'other'", "change or"),
    ("placement-kind", "verify shape:V ok.json", "this is a placement file", "placeopt/result"),
    # output
    ("out-file", "solve {g} -c 4xA100 --out afile", "received a file", "give another name"),
    ("out-unwritable", "solve {g} -c 4xA100 -o /proc/x", "cannot write there", "another folder"),
    ("out-lost", "verify {g} ok.json -c uniform:2 --proof /proc/x/p", "cannot write", "another"),
    ("out-folder", "verify {g} ok.json -c uniform:2 -o folder", "received a folder", "name a file"),
    ("out-twice", "verify {g} ok.json -c uniform:2 -o x --proof x", "goes there", "name another"),
    ("out-read", "verify {g} ok.json -c uniform:2 -o ok.json", "reads this file", "name another"),
    ("plot-read", "plot {g} ok.json -c uniform:2 -o ok.json", "reads this file", "name another"),
    ("out-of-a-check", "verify {g} ok.json --recheck c -o x", "writes nothing", "leave it out"),
    ("out-suffix", "plot {g} ok.json -c uniform:2 -o g.gif", "received 'g.gif'", ".png, .svg"),
    ("out-picture", "info {g} -o g.json", "received 'g.json'", ".png, .svg, .pdf"),
    ("out-format", "convert {g} -o g.xyz", "suffix '.xyz'", "use one of .json"),
    ("out-suffix", "solve {g} -c 4xA100 --out s.json", "the name of a file", "--out s"),
    ("out-none", "convert {g}", "the file to write", "--out GRAPH.json"),
    # the other commands
    ("shape", "schedule shape:Z", "shape 'Z' is not known", "known: V, X, M"),
    ("shape-option", "schedule shape:V?device=3", "'device' is not known", "known: devices"),
    ("shape-memory", "schedule shape:V --capacity 16GiB", "--capacity", "whole numbers such as 4"),
    ("shape-room", "schedule shape:V?memory=1 -s 1f1b", "whose capacity is 1", "raise it"),
    ("table", "schedule table.toml", "block table 'table'", "'devices' is missing"),
    ("transfers", "schedule shape:V --transfers some", "--transfers", "lag, channel, blocking"),
    ("joint", "schedule shape:V --joint", "--joint is for models", "--cluster 4xA100"),
    ("plan-batch", "plan gen:gpt2 -c 8xA100 -b 0", "--batch", "at least 1, received '0'"),
    ("plan-schedule", "plan {gpt} -c 8xA100 -b 8 --schedules 1f2b", "'1f2b'", "mean '1f1b'"),
    ("plan-hosts", "plan {gpt} -c 8xA100 -b 8 --lose A100", "received 'A100'", "KIND/HOST"),
    ("mesh", "shard {g} --mesh 2by4", "received '2by4'", "--mesh: expected sizes such as 2x4"),
    ("mesh-devices", "shard gen:ffnn --mesh 2x2", "mesh 2x2", "expected 4 devices"),
    ("stream", "jobs gen:fork-join", "no such file", "expected stream:ramp?"),
    ("stream-policy", "jobs {jobs} -p constant", "policy 'constant'", "known: constant-degree"),
    ("stream-profiles", "jobs stream:ramp?beta=A", "needs measured profiles", "--profiles DIR"),
    ("profile-model", "profile {g}", "expected a model that can be run", "give --trace"),
    ("export-target", "export {g} ok.json --to csvs -o x", "'csvs' is not known", "mean 'csv'"),
    ("export-placement", "export {g}", "expected the placement", "out/placement.json"),
    ("export-out", "export {g} ok.json --to csv", "--out: expected the file", "--out exported/"),
    ("run-runtime", "run {g} solver:heft --runtime gpu", "received 'gpu'", "model, dask, torch"),
    ("study", "bench none.toml", "study 'none.toml'", "no such file"),
    ("study-key", "bench key-study.toml", "'seedz' is not known", "did you mean 'seeds'?"),
    ("study-budget", "bench budget-study.toml", "has no budget", "seconds or evaluations"),
    ("study-backend", "bench study.toml --backend spark", "spark", "loky, threading, dask"),
    ("study-report", "report folder", "with runs.jsonl", "placeopt bench STUDY.toml"),
    ("kernels", "warm-up nobody", "no group 'nobody'", "did you mean"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the commands name."""
    from placeopt.io.placement_file import write_placement

    path = tmp_path_factory.mktemp("mistakes")
    (path / "folder").mkdir()
    for name, text in FILES.items():
        (path / name).write_text(text)
    problem = po.load(FOUR, cluster="uniform:2")
    write_placement(path / "ok.json", problem, po.Placement([0] * problem.num_ops), None)
    good = json.loads((path / "ok.json").read_text())
    first, *others = good["device"]
    changed = {
        "lacks.json": {"device": {op: good["device"][op] for op in others}},
        "device.json": {"device": {**good["device"], first: "gpu7"}},
        "extra.json": {"device": {**good["device"], "nobody": 0}},
        "other.json": {"problem": "other"},
    }
    for name, fields in changed.items():
        (path / name).write_text(json.dumps({**good, **fields}))
    return path


@pytest.mark.parametrize(
    ("command", "words", "fix"), [pytest.param(*rest, id=name) for name, *rest in MISTAKES]
)
def test_a_mistake_is_one_line_with_its_fix(folder, monkeypatch, capfd, command, words, fix):
    """Exit code 2, nothing on standard output, one line that says what was wrong and the fix."""
    if "torch:model.py:" in command:
        pytest.importorskip("torch")
    if "onnx:" in command:
        pytest.importorskip("onnx")
    monkeypatch.chdir(folder)
    sources = {
        "{g}": FOUR,
        "{gpt}": "gen:gpt2?detail=coarse",
        "{jobs}": "stream:ramp?models=gen:chain-mm&device=A100&jobs=5&beta=2&interval=2",
    }
    for short, source in sources.items():
        command = command.replace(short, shlex.quote(source))
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(command))
    out, err = capfd.readouterr()
    assert stop.value.code == 2, err
    assert out == ""
    assert err.startswith("placeopt: error: ")
    assert err.count("\n") == 1, err
    assert words in err
    assert fix in err


def test_a_plan_without_room_names_what_would_make_room(capsys):
    """Where no plan fits, the command is right and the answer is none: exit code 1 and the fix."""
    with pytest.raises(SystemExit) as stop:
        main(["plan", "gen:llama-7b?detail=coarse", "-c", "1xP100", "-b", "8", "-t", "5"])
    out, _ = capsys.readouterr()
    assert stop.value.code == 1
    assert out.startswith("no plan: ")
    assert "give more devices or devices with more memory" in out


def test_there_are_forty_mistakes():
    """The list does not shrink, and no mistake is tried twice."""
    commands = [command for _, command, *_ in MISTAKES]
    assert len(set(commands)) == len(commands) >= 40


CALLS = {
    "verify-seconds": (lambda p: po.verify(p, [0] * p.num_ops, seconds=None), "received None"),
    "bound-seconds": (lambda p: po.bound(p, seconds="5"), "received '5'"),
    "bound-upper": (lambda p: po.bound(p, upper="5"), "upper: expected a number, received '5'"),
    "name": (lambda p: p.replace(name=5), "name: expected a text, received 5"),
    "solver": (lambda p: po.solve(p, 3), "received int"),
    "on-progress": (lambda p: po.solve(p, "heft", on_progress=True), "received True"),
    "ragged": (lambda _: po.PlacementProblem.from_edges([[1, 2], [3]], []), "compute: expected an"),
    "edges": (lambda _: po.PlacementProblem.from_edges([[1, 2]], None), "received NoneType"),
    "tick": (lambda p: p.replace(tick_seconds="1"), "tick_seconds: expected a positive number"),
    "memory": (lambda _: po.load(FOUR, "4xA100", memory_limit=float("inf")), "received inf"),
    "part-of-a-byte": (lambda _: po.load(FOUR, "4xA100", memory_limit=1.5), "received 1.5"),
    "costs": (lambda _: po.load(FOUR, "4xA100", costs={}), "received dict"),
    "training": (lambda _: po.load(FOUR, "4xA100", training="no"), "received 'no'"),
    "block": (lambda _: Block("a", "F", 0, 1), "Block: devices: expected tuple"),
    "blocks": (lambda _: po.PipelineProblem.from_blocks("a", ["b"], ["c"]), "as Block records"),
    "repetend": (lambda _: Repetend("5", [[0]]), "period: expected a whole number"),
    "starts": (lambda _: Repetend(5, [["a"]]), "start: expected whole numbers"),
    "split": (lambda _: SplitProblem(None), "placement: expected PlacementProblem, received None"),
    "device": (lambda _: po.Device("a", "b", "c", "d", 1.0), "peak_flops: expected float"),
    "cluster": (
        lambda _: po.Cluster("a", ["b"], [po.Link("l", 0.0, 1.0)]),
        "devices: expected tuple.Device",
    ),
    "producer": (lambda p: p.replace(producer=None), "producer: expected an array of whole"),
    "names": (lambda p: p.replace(op_names=5), "op_names: expected tuple.*received 5"),
}


@pytest.mark.parametrize(("call", "words"), CALLS.values(), ids=CALLS)
def test_a_wrong_type_in_a_script_is_told(call, words):
    """What a script gives of another type is an InputError of one line, not Python's or numpy's."""
    with pytest.raises(InputError, match=words) as error:
        call(po.load(FOUR, cluster="uniform:2"))
    assert "\n" not in str(error.value)
