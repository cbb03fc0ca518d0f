"""The examples run; their time limits are cut to one second."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"
NEEDS = {"grid_on_dask": "distributed"}
SCRIPTS = sorted(FOLDER.glob("*.py"))

ONE_BY_ONE = """
import runpy, sys
for script in sys.argv[1:]:
    print("\\f", flush=True)
    runpy.run_path(script, run_name="__main__")
"""
"""Main programs in one process, which loads the package once; a form feed before what each prints."""


@pytest.mark.parametrize(
    ("scripts", "before"),
    [
        ([script for script in SCRIPTS if script.stem not in NEEDS], ("-c", ONE_BY_ONE)),
        *(([FOLDER / f"{name}.py"], ()) for name in NEEDS),  # whose workers import it
    ],
    ids=["most", *NEEDS],
)
def test_examples_run(scripts, before, tmp_path):
    """An example ends well and prints something."""
    for script in scripts:
        pytest.importorskip(NEEDS.get(script.stem, "numpy"))
        shorter = re.sub(r"seconds=\d+", "seconds=1", script.read_text())
        (tmp_path / script.name).write_text(shorter)
    done = subprocess.run(
        [sys.executable, *before, *(str(tmp_path / script.name) for script in scripts)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.split("\f")[-len(scripts) :]
    assert len(said) == len(scripts)
    assert all(text.strip() for text in said)


def test_every_example_is_in_the_table():
    """The table of examples/README.md lists every script."""
    text = (FOLDER / "README.md").read_text()
    assert [path.name for path in SCRIPTS if f"]({path.name})" not in text] == []
