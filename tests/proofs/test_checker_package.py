"""The checker is plain: standard library only, short lines, little branching, one command on a bare
Python.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
FILES = [TOOLS / "check_proof.py", *sorted((TOOLS / "proof_checker").glob("*.py"))]
PROOF = ROOT / "results" / "proofs" / "archive" / "resnet50.json.gz"
COUNTED = (
    ast.If,
    ast.For,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.Assert,
    ast.match_case,
)


def branches(function):
    """Return 1 and the number of branches of a function, functions inside it left out."""
    count, todo = 1, list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        count += isinstance(node, COUNTED) + (
            len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        )
        todo += ast.iter_child_nodes(node)
    return count


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_plain(path):
    """Nothing imported but the standard library and the package, lines of at most 100 columns, at
    most 10 branches.
    """
    text = path.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 100
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            assert node.module.split(".")[0] in {"proof_checker", *sys.stdlib_module_names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            assert isinstance(node, ast.ClassDef) or branches(node) <= 10, node.name
            named = not node.name.startswith("_") and node.name not in ("unique", "refuse")
            assert not named or ast.get_docstring(node), node.name


def answer(*command, folder):
    """Return exit code and output of a bare Python, without site packages, somewhere else."""
    run = subprocess.run(
        [sys.executable, "-I", "-S", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, run.stdout + run.stderr


def test_a_bare_python_runs_a_copy(tmp_path):
    """Without site packages, outside the repository; without a file it says how it is called."""
    shutil.copytree(TOOLS, tmp_path / "copy")
    code, said = answer("copy/check_proof.py", PROOF, folder=tmp_path)
    assert (code, "accepted" in said) == (0, True), said
    assert answer("copy/check_proof.py", folder=tmp_path)[0] == 2


def test_what_nobody_reads_is_no_false_statement():
    """Where the output takes nothing the exit code does not say that a right proof is wrong."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as nowhere:
        command = [sys.executable, "-I", TOOLS / "check_proof.py", PROOF]
        run = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, check=False)
    assert (run.returncode, len(run.stderr.splitlines())) == (2, 1), run


def test_a_zip_of_it_runs(tmp_path):
    """As `python -m zipapp` makes it; the exit code counts there too."""
    target = tmp_path / "check_proof.pyz"
    command = [sys.executable, "-m", "zipapp", TOOLS, "-o", target, "-m", "check_proof:command"]
    subprocess.run(command, check=True)
    code, said = answer(target, PROOF, folder=tmp_path)
    assert (code, "accepted" in said) == (0, True), said
    (tmp_path / "wrong.json").write_text("{}")
    assert answer(target, PROOF, "wrong.json", folder=tmp_path)[0] == 2
