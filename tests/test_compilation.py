"""Kernels: one signature each, compiled before a clock starts, in groups that solvers name."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pickle
import pkgutil
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile

import placeopt as po
from placeopt.cli.comparison import SolverComparison
from placeopt.cli.solve import first_table
from placeopt.model import interpreted
from placeopt.model.compiled import FROZEN, entry, stamp_of
from placeopt.model.errors import InputError, Refused
from placeopt.model.objective import objective_of
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solving import compilation
from placeopt.solving.compilation import GROUPS, KernelGroup, entries, kernels_of
from placeopt.solving.registry import make_solver, specs
from placeopt.solving.run import run

JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
compiled_only = pytest.mark.skipif(not JIT, reason="looks at compiled kernels")

KERNEL_FOLDERS = ("makespan", "model", "solvers.heuristics", "solvers.search")
"""Where every kernel has one signature."""

SEVERAL: set[str] = set()
"""Kernels that may have several, none so far."""


def kernel_modules():
    """Import every module of the folders that hold kernels."""
    for folder in KERNEL_FOLDERS:
        package = importlib.import_module(f"placeopt.{folder}")
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            yield importlib.import_module(found.name)


def typical_problems():
    """A plain problem, one with channels, colocation and capacities, one limited by peak memory,
    unrelated devices.
    """
    rng = np.random.default_rng(5)
    edges = [
        (u, v, int(rng.integers(1, 9)))
        for u in range(12)
        for v in range(u + 1, 12)
        if rng.random() < 0.3
    ]
    compute = rng.integers(1, 20, (12, 3)).tolist()
    yield PlacementProblem.from_edges(compute, edges, name="plain")
    yield po.load("gen:ffnn", cluster="4xA100")
    yield po.load("gen:ffnn", cluster="cpu+gpu", memory="peak")
    yield po.load("gen:ffnn", cluster="uniform:3")


@compiled_only
def test_kernels_that_call_kernels_of_other_files_notice_their_edits():
    """What a kernel's module imports of other kernels is in the stamp of its cache, unless it never
    changes.
    """
    grouped = [
        importlib.import_module(f"placeopt.{name}")
        for group in GROUPS.values()
        for name in group.modules
    ]
    callers = 0
    for module in {module.__name__: module for module in (*kernel_modules(), *grouped)}.values():
        kernels = [value for value in vars(module).values() if stamp_of(value) is not None]
        others = [
            kernel
            for kernel in kernels
            if kernel.py_func.__module__ not in (module.__name__, *FROZEN)
        ]
        for kernel in kernels:
            if kernel.py_func.__module__ == module.__name__ and others:
                assert {stamp_of(other) for other in others} <= set(stamp_of(kernel)), (
                    f"{module.__name__}.{kernel.__name__}"
                )
                callers += 1
    assert callers > 50


def inlined(kernel):
    """Whether a kernel is a part of its callers, typed anew in each."""
    return bool(kernel.targetoptions.get("forceinline", False))


def test_a_cache_that_names_a_class_that_has_moved_is_empty(tmp_path):
    """A module that was joined with another one since: its kernels are compiled anew."""
    file = IndexDataCacheFile(str(tmp_path), "kernel", None)
    stale = pickle.dumps(file._version) + b"cplaceopt.model.moved\nUnits\n."
    Path(file._index_path).write_bytes(stale)
    assert file._load_index() == {}


@compiled_only
def test_one_signature_per_kernel():
    """Whatever the problem, a kernel is compiled for one type of each argument."""
    names = (
        "single-device",
        "heft",
        "cpop",
        "peft",
        "etf",
        "critical-path",
        "m-etf",
        "m-sct",
        "m-topo",
        "edge-zeroing",
        "dsc",
        "enumerative",
        "annealing",
        "cross-entropy",
        "genetic",
    )
    for problem in typical_problems():
        po.bound(problem, seconds=0.5)
        for name in names:
            try:
                run(problem, make_solver(name), Budget(0.3, 60))
            except Refused:
                continue
    found = {}
    for module in kernel_modules():
        for name, value in vars(module).items():
            if (
                hasattr(value, "py_func")
                and value.py_func.__module__ == module.__name__
                and not inlined(value)
            ):
                plain = {
                    re.sub(r"Literal\[(int|bool)\]\([^)]*\)", r"\1", str(signature))
                    for signature in value.signatures
                }
                found[f"{module.__name__}.{name}"] = len(plain)
    assert (
        sum(count > 0 for count in found.values()) >= 25
    )  # what is in the cache shows the kernels that Python calls
    assert {name: count for name, count in found.items() if count > 1 and name not in SEVERAL} == {}


LISTENER = """
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, started):
        compiled.append(started.data["dispatcher"].py_func)
    def on_end(self, ended):
        pass
event.register("numba:compile", Listener())
"""
"""A part of the programs below that keeps every function that numba compiles."""

CHILD = f"""
import json, os, sys
import placeopt as po
from placeopt.model.result import Budget
from placeopt.model.objective import objective_of
from placeopt.solving.compilation import ensure, kernels_of
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run
name, source, cluster, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
problem = po.load(source, cluster=cluster, **options)
solver = make_solver(name, problem.problem_kind)
ensure(kernels_of(objective_of(problem), [solver], bounds=True))
{LISTENER}
run(problem, solver, Budget(2.0), bound=True)
print(json.dumps([function.__qualname__ for function in compiled]), flush=True)
os._exit(0)  # taking numba and CP-SAT down takes most of a second
"""


@compiled_only
@pytest.mark.parametrize(
    ("solver", "cluster", "options"),
    [
        ("portfolio", "4xA100", {}),
        ("cp-sat", "2xA100+2xV100", {"objective": "period", "contiguity": "none"}),
        ("split-ideals", "2xA100+2xV100", {"objective": "period", "device_groups": 2}),
        *(
            pytest.param(name, "4xA100", {}, marks=pytest.mark.slow)
            for name in (
                "annealing",
                "cross-entropy",
                "genetic",
                "post",
                "lns",
                "cp-sat",
                "dual-policy",
                "graph-parsing",
                "grouper-placer",
                "m-sct",
            )
        ),
    ],
)
def test_nothing_is_compiled_while_the_clock_runs(solver, cluster, options):
    """The groups that a solver names are all that it calls: after them nothing is left to
    compile.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD, solver, "gen:ffnn", cluster, json.dumps(options)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert json.loads(done.stdout) == []


def test_solvers_name_groups_that_exist():
    """A solver's and an objective's groups are known, and those of other objectives are left
    out.
    """
    problem = PlacementProblem.from_edges([[1, 1], [1, 1]], [(0, 1, 1)])
    for name in specs("placement"):
        assert set(kernels_of(objective_of(problem), [make_solver(name)])) <= GROUPS.keys()
    groups = kernels_of(objective_of(problem), [make_solver("cp-sat")], bounds=True)
    assert "evaluator" in groups
    assert "bounds" in groups
    assert "period-search" not in groups

    class Foreign:
        name = "foreign"

    assert kernels_of(objective_of(problem), [Foreign()]) == ["evaluator", "ranks"]


def test_unknown_groups_are_named():
    """A wrong name is bad input, with the nearest right one."""
    with pytest.raises(InputError, match="walks"):
        compilation.ensure(["walk"])


@compiled_only
def test_entries_are_the_kernels_that_python_calls():
    """A group is compiled when its entries are; pieces that only kernels call are no entries."""
    from placeopt.makespan import simulator

    assert [kernel.py_func.__name__ for kernel in entries(simulator)] == ["batch"]
    for group in GROUPS.values():
        for module in group.modules:
            assert entries(importlib.import_module(f"placeopt.{module}")) or group.name in (
                "period",
                "policies",
                "latency",
            )


@compiled_only
def test_other_processes_compile(monkeypatch):
    """Groups go to other processes one by one; a first run that fails ends none of the others."""
    groups = [GROUPS["ranks"], KernelGroup("broken", (), 1.0)]
    monkeypatch.setitem(GROUPS, "broken", groups[1])
    told = []
    compilation.compile_cold(groups, lambda name, seconds: told.append(name))
    assert told == ["ranks"]


def test_a_process_that_nobody_listens_to_ends():
    """A worker ends when the process that started it is gone."""
    worker = subprocess.Popen(
        [sys.executable, "-c", "from placeopt.solving.compilation import serve; serve()"],
        stdin=subprocess.PIPE,
    )
    assert worker.stdin is not None
    time.sleep(0.1)
    worker.stdin.close()
    assert worker.wait(timeout=60) == 0


FIRST_RUN = f"""
import json, os, sys
import placeopt as po
from placeopt.cli.comparison import SolverComparison, compare
from placeopt.cli.solve import first_table
from placeopt.model.result import Budget
from placeopt.solving import compilation
from placeopt.solving.registry import make_solver
{LISTENER}
shown = []
slow = set(json.loads(sys.argv[1]))  # groups that no process will have compiled in time
class Workers:
    def __init__(self, groups, count, done):
        self.groups, self.done = groups, done
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass
    def wait(self, needed=None):
        for group in self.groups:
            if group.name not in slow:
                self.done(group.name, 0.0)
    def step_back(self):
        pass
compilation._Workers = Workers
compilation.cached = lambda group: False
solvers = [("heft", make_solver("heft")), ("portfolio", make_solver("portfolio", prove=False))]
comparison = SolverComparison(po.load("gen:ffnn", cluster="4xA100"))
budget = Budget(2.0) if sys.argv[2] == "seconds" else Budget(None, 500)
def meanwhile(comparison):
    first_table(comparison, solvers, quiet=True)
    shown.extend(result.value for result in comparison.first)
compare(comparison, solvers, budget, seed=0, initial=None, bound_seconds=0.5, announce=lambda stage: None, on_progress=None,
        keep=lambda result: None, meanwhile=meanwhile)
results = [[result.solver, result.value, result.message] for result in comparison.results]
print(json.dumps([[function.__module__ for function in compiled], shown, comparison.note, results]), flush=True)
os._exit(0)
"""


def first_run(budget, slow):
    """Compare heft and the portfolio where some groups of kernels are never compiled elsewhere."""
    command = [sys.executable, "-c", FIRST_RUN, json.dumps(slow), budget]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])


@compiled_only
def test_a_search_begins_before_all_is_compiled():
    """With a limit of time the portfolio waits for its own kernels only, starts from the first
    table, and says what it leaves out.
    """
    slow = ["ranks", "lists", "lists-by-time", "clusterings", "populations"]
    compiled, shown, note, results = first_run("seconds", slow)
    assert compiled == []  # nothing here: what is not compiled is interpreted
    (heft, portfolio), best = (
        results,
        run(po.load("gen:ffnn", cluster="4xA100"), make_solver("heft"), Budget()).value,
    )
    assert shown == [best]
    assert heft[:2] == ["heft", best]
    assert portfolio[1] <= best
    assert "first run" in note
    assert "heuristics" in portfolio[2]


@compiled_only
def test_an_evaluation_budget_waits_for_all_kernels():
    """What a search answers under an evaluation budget does not depend on what is compiled."""
    compiled, _, note, results = first_run("evaluations", [])
    assert compiled == []
    assert note == ""
    assert [message for _, _, message in results] == ["", ""]


@compiled_only
def test_interpreted_kernels_agree_with_compiled_ones():
    """The Python twin of a kernel, and of the kernels that it calls, gives the same numbers and
    compiles nothing.
    """
    from placeopt.makespan import simulator
    from placeopt.makespan.evaluate import evaluate_batch

    problem = po.load("gen:ffnn", cluster="cpu+gpu", memory="peak")
    rng = np.random.default_rng(0)
    rows = rng.integers(0, problem.num_devices, (20, problem.num_ops))
    ranks = rng.permutation(problem.num_ops)
    kernel = entry(simulator.batch.py_func)  # one that is neither compiled nor loaded
    for queue in ("fifo", "priority", "planned"):
        expected = evaluate_batch(problem, rows, None if queue == "fifo" else ranks, queue)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simulator, "batch", kernel)
            patch.setattr(interpreted, "MODULES", {"placeopt.makespan.simulator"})
            found = evaluate_batch(problem, rows, None if queue == "fifo" else ranks, queue)
        assert found.tolist() == expected.tolist()
    assert kernel.signatures == []


def test_the_first_table_needs_no_kernels(capsys):
    """Interpreted heuristics give results, judged, that count until there are others."""
    comparison = SolverComparison(po.load("gen:ffnn", cluster="4xA100"))
    first_table(
        comparison, [(name, make_solver(name)) for name in ("heft", "portfolio")], quiet=False
    )
    assert [result.solver for result in comparison.first] == ["heft"]
    assert comparison.first[0].value == run(comparison.problem, make_solver("heft"), Budget()).value
    assert "heft" in capsys.readouterr().err


@pytest.mark.interpreted
@pytest.mark.skipif(JIT, reason="sees which functions are called")
@pytest.mark.parametrize("group", GROUPS.values(), ids=list(GROUPS))
def test_a_first_run_calls_every_kernel_of_its_group(group):
    """What is not called is not compiled beforehand, and `warm-up` says that it could not."""
    modules = [importlib.import_module(f"placeopt.{name}") for name in group.modules]
    called = set()

    def note(frame, event, _):
        if event == "call":
            called.add((frame.f_code.co_filename, frame.f_code.co_name))

    run_first = compilation.first_run_of(group)
    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run_first()
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
    for module in modules:
        wanted = {(module.__file__, kernel) for kernel in entries_of(module)}
        assert wanted <= called, sorted(name for _, name in wanted - called)


def entries_of(module):
    """Yield the names of the functions of a module that are kernels which Python calls."""
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names = {word.id for word in node.decorator_list if isinstance(word, ast.Name)}
            if names & {"entry", "uncounted_entry"}:
                yield node.name


@pytest.mark.parametrize("group", GROUPS.values(), ids=list(GROUPS))
def test_python_calls_every_private_entry(group):
    """What only kernels call is not looked for in the cache: loaded from there, its caller does not
    compile it again, and the group would seem cold for good.
    """
    for name in group.modules:
        module = importlib.import_module(f"placeopt.{name}")
        kernels = {
            function.py_func.__name__
            for function in vars(module).values()
            if hasattr(function, "py_func")
        }
        private = {entry for entry in entries_of(module) if entry.startswith("_")}
        called = {
            word.id
            for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
            if not (isinstance(node, ast.FunctionDef) and node.name in kernels)
            for word in ast.walk(node)
            if isinstance(word, ast.Name)
        }
        assert private <= called, sorted(private - called)
