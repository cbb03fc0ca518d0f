"""Compiled code must not sort both values and indices by quicksort.

Numba compiles `np.sort` (and `np.unique`) and `np.argsort` to inner functions of one name. Read
from its cache in one process, the first one loaded stands for both, and `argsort` then sorts its
argument in place. Stable sorts have names of their own.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import placeopt

ROOT = Path(placeopt.__file__).resolve().parent.parent


def compiled_functions():
    """Yield (file, function) of everything numba compiles."""
    for folder in ("placeopt", "solvers", "schedules", "instances"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and any(
                    word in ast.unparse(d)
                    for d in node.decorator_list
                    for word in ("jit", "inlined", "entry", "inner_kernel", "uncounted_kernel")
                ):
                    yield path, node


def test_compiled_argsorts_are_stable():
    """Every np.argsort in compiled code asks for mergesort."""
    seen = 0
    for path, function in compiled_functions():
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "np.argsort":
                seen += 1
                kinds = [ast.unparse(k.value) for k in node.keywords if k.arg == "kind"]
                assert kinds == ["'mergesort'"], f"{path.name}: {function.name} line {node.lineno}"
    assert seen >= 2


@pytest.mark.jit
def test_bounds_first_changes_no_search():
    """The same search gives the same answer whether or not bounds were computed before, from a warm
    cache.
    """
    code = (
        "import os, sys, placeopt as po\n"
        "p = po.load('gen:chain-mm', '4xP100-pcie')\n"
        "if sys.argv[1] == 'bound': po.bound(p, methods=['communication'])\n"
        "r = po.solve(p, 'dual-policy', evaluations=600, teacher='critical-path')\n"
        "print(r.objective, r.solution.device.tolist(), r.solution.priority.tolist(), flush=True)\n"
        "os._exit(0)\n"
    )
    answers = set()
    for first in ("bound", "none"):
        done = subprocess.run(
            [sys.executable, "-c", code, first],
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        answers.add(done.stdout)
    assert len(answers) == 1
