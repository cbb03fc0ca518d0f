"""The examples run, each in a process of its own; their time limits are cut to one second."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"
NEEDS = {"grid_on_dask": "distributed"}


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(script, tmp_path):
    """An example ends well and prints something."""
    pytest.importorskip(NEEDS.get(script.stem, "numpy"))
    shorter = tmp_path / script.name
    shorter.write_text(re.sub(r"seconds=\d+", "seconds=1", script.read_text()))
    done = subprocess.run(
        [sys.executable, str(shorter)],
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
    assert done.stdout.strip()


def test_every_example_is_in_the_table():
    """The table of examples/README.md lists every script."""
    text = (FOLDER / "README.md").read_text()
    assert [path.name for path in FOLDER.glob("*.py") if f"]({path.name})" not in text] == []
