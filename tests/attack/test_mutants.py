"""The tool that makes mutants and tries them: edits are what they say, and the tests kill some of
the checker's.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import mutants
from mutation import mutants_of

SOURCE = '''"""A module."""

LIMIT = 2**4


def f(a: int, b: int) -> int:
    """Return a number."""
    if a < b and not b:
        return min(a, b)
    found = [x for x in range(a) if x]
    found[0] = a + 1
    for x, y in zip(found, found, strict=True):
        demand(x == y, f"{x + 1}")
    return found[a]
'''


def test_an_edit_is_one_small_fault(tmp_path):
    """Every operator is drawn, every mutant compiles, names are unique, and messages stay."""
    (tmp_path / "m.py").write_text(SOURCE)
    found = mutants_of(tmp_path, "m.py")
    assert len({mutant.key for mutant in found}) == len(found)
    texts = [mutant.applied(SOURCE.encode()).decode() for mutant in found]
    assert len(set(texts)) == len(texts)
    assert all('f"{x + 1}"' in text or "demand(" not in text for text in texts)
    assert {mutant.operator for mutant in found} == {
        "and/or",
        "comparison",
        "condition negated",
        "condition removed",
        "constant",
        "index shifted",
        "min/max",
        "range shortened",
        "return removed",
        "statement removed",
        "term dropped",
        "zip shortened",
    }
    assert "LIMIT = 3**4" in texts[0]
    lines = {(m.before, m.after): (m.line, m.first, m.last, m.where) for m in found}
    assert lines["a < b", "a <= b"] == (8, 8, 8, "f")


def test_functions_get_the_code_of_the_edited_file(tmp_path):
    """Whoever holds a function meets the fault, closures and methods too; numbers of the module
    change wherever they are held.
    """
    text = "N = 3\n\ndef outer(k=N):\n    def inner(x):\n        return x + k\n    return inner\n"
    path = tmp_path / "held.py"
    path.write_text(text)
    module = type(sys)("held")
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), vars(module))
    inner = module.outer(10)
    edited = text.replace("x + k", "x - k").encode()
    mutants.replace_code([module.outer, inner], text.encode(), edited, str(path))
    assert (inner(1), module.outer(5)(1)) == (-9, -4)
    sys.modules["held"] = module
    try:
        mutants.replace_value(
            [module.outer],
            text.encode(),
            text.replace("N = 3", "N = 4").encode(),
            str(path.resolve()),
        )
    finally:
        del sys.modules["held"]
    assert (module.N, module.outer()(1)) == (4, -3)


def test_a_sample_of_the_checker_is_killed(tmp_path):
    """The whole way on five mutants of one file: a copy, a server, the map, the children, rows."""
    pytest.importorskip("coverage")
    output = tmp_path / "mutants.csv"
    tests = ("test_names_of_steps_reach_nothing_else*", "test_two_fronts*")
    options = ["--share", "1", "--count", "5", "--work", str(tmp_path / "work")]
    for name in tests:
        options += ["--tests", f"test_checker_strict.py::{name}"]
    mutants.main(["--files", "tools/proof_checker/graphs.py", "--output", str(output), *options])
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["outcome"] for row in rows] == ["killed"] * 3 + ["survived"] * 2, rows
    assert [row["killer"] for row in rows[3:]] == ["no test that was tried runs this line"] * 2
    assert (mutants.ROOT / "tools/proof_checker/graphs.py").read_bytes() == (
        tmp_path / "work/tree/tools/proof_checker/graphs.py"
    ).read_bytes()
