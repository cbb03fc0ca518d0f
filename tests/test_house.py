"""The house stays as it is: sizes, arrows, one caller of a search, no comparison of objectives'
names.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from placeopt.model.objective import objective_names

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    path
    for top in ("placeopt", "solvers", "schedules", "instances")
    for path in (ROOT / top).rglob("*.py")
    if not any(part.is_symlink() for part in (path, *path.parents))
)


@cache
def trees():
    """Parse every file, once."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


@cache
def functions():
    """Return (file, function) of every function."""
    return [
        (path, node)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


REGISTRY = "placeopt/model/objective.py"

MANY_PARAMETERS = {
    "instances/sources.py:load": "the call that scripts make: its parameters are its meaning",
    "instances/coarsen.py:match_edges": "a kernel on flat arrays",
}
"""What is over the measure, and why; nothing else may be."""


def name_of(path: Path) -> str:
    """Return a path as it is written in the repository."""
    return path.relative_to(ROOT).as_posix()


def test_the_files_are_there():
    """The checks below look at the whole package, through no link twice."""
    assert len(FILES) > 200
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == {
        "placeopt",
        "solvers",
        "schedules",
        "instances",
    }


def test_functions_take_few_parameters():
    """No function takes more than 8 parameters but commands, and generators, whose parameters are
    their meaning.
    """
    many = {
        f"{name_of(path)}:{node.name}": count
        for path, node in functions()
        if (
            count := len(node.args.posonlyargs)
            + len(node.args.args)
            + len(node.args.kwonlyargs)
            - (bool(node.args.args) and node.args.args[0].arg in ("self", "cls"))
        )
        > 8
        and not name_of(path).startswith(("placeopt/cli/", "instances/generators/"))
    }
    assert many.keys() - MANY_PARAMETERS.keys() == set()


def test_one_caller_of_a_search():
    """Only `placeopt.solving.run` calls the search, or the `solve`, of a solver."""
    callers = {
        f"{name_of(path)}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            (node.func.attr == "search" and "solver" in ast.unparse(node.func.value))
            or (
                node.func.attr == "solve"
                and ast.unparse(node.func.value) in ("solver", "self.solver", "chosen", "made")
            )
            or (
                node.func.attr in ("solve", "search")
                and "make_solver" in ast.unparse(node.func.value)
            )
        )
    }
    assert {caller.partition(":")[0] for caller in callers} == {"placeopt/solving/run.py"}
    assert (
        len(callers) == 3
    )  # a search of ours, one of another package, and the `solve` of a solver without a search


def test_no_code_compares_names_of_objectives():
    """Outside the registry nothing compares the name of an objective."""
    names = {
        name
        for kind in ("placement", "pipeline", "jobs", "sharding", "plan")
        for name in objective_names(kind)
    }
    found = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Compare) or name_of(path) == REGISTRY:
                continue
            constants = {
                x.value
                for x in ast.walk(node)
                if isinstance(x, ast.Constant) and isinstance(x.value, str)
            }
            if constants & names and "objective" in ast.unparse(node):
                found.append(f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_arrows_run_down_only():
    """The import contracts of pyproject.toml hold, lazy and type-checking imports counted."""
    pytest.importorskip("importlinter")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_threads_are_made_in_one_place():
    """Only `placeopt.model.threads` makes threads and pools; the runner of exported ONNX parts is
    copied beside them and stands alone.
    """
    makers = ("Thread", "ThreadPoolExecutor")
    made = {
        name_of(path)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) in makers
    }
    assert made == {"placeopt/model/threads.py", "placeopt/programs/onnx_runner.py"}


NAMED_IN_STRINGS = {
    "placeopt/model/objective.py": 8,
    "placeopt/solving/registry.py": 1,
    # no registry: who stands below names who stands above
    "placeopt/model/result.py": 1,
}
"""Modules of other rooms, or of the same one, that a file names in strings, which no contract sees:
at most so many."""


def test_few_modules_are_named_in_strings():
    """Imports are statements, but for the registries of plug-ins and what is listed."""
    modules = {
        re.sub(r"^(?!placeopt)", "placeopt.", name_of(path)[: -len(".py")].replace("/", "."))
        for path in FILES
    }
    found = {}
    for path, tree in trees().items():
        own = name_of(path)
        package = re.sub(r"^(?!placeopt)", "placeopt.", own.rpartition("/")[0].replace("/", "."))
        named = {
            word.partition(":")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(word := node.value, str)
        }
        rooms = {f"{word}.__init__" for word in named} & modules
        there = (named & modules) | {room.removesuffix(".__init__") for room in rooms}
        # a runner starts itself by name, and the group of entry points is called like a room
        there -= {"placeopt", package, f"{package}.{path.stem}"}
        if there:
            found[own] = len(there)
    assert {own: n for own, n in found.items() if n > NAMED_IN_STRINGS.get(own, 0)} == {}


def test_importing_the_package_is_light():
    """`import placeopt` loads none of the heavy libraries."""
    heavy = "{'numba', 'ortools', 'matplotlib', 'onnx', 'torch', 'scipy', 'dask', 'networkx'}"
    code = f"import sys, placeopt; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_cp_sat_leaves_signals_alone():
    """CP-SAT takes SIGINT for itself unless it is told not to: solvers are made, and run, by
    `placeopt.model.cp_sat` alone.
    """
    direct = re.compile(r"CpSolver\(|\b(cp_)?solver\.solve\(\w*(model|cp)\b")
    found = {name_of(path) for path in FILES if direct.search(path.read_text())}
    assert found == {"placeopt/model/cp_sat.py"}


@pytest.mark.parametrize(
    ("module", "late"),
    [
        ("placeopt.solvers.portfolio", "ortools.sat.python.cp_model"),
        ("placeopt.runtime.torch_runtime", "torch"),
    ],
)
def test_what_takes_long_to_import_is_imported_late(module, late):
    """The portfolio loads CP-SAT while its heuristics run; a runtime says what is not installed."""
    code = f"import sys, {module}; sys.exit({late!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
