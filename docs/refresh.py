"""Make every picture of the documentation and every output in README.md and the notebook, by
running what they show.

Run `python docs/refresh.py` (two minutes) from a checkout with the extra `dev`. It runs the
commands of README.md as they stand there and puts their output below them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

import placeopt as po
from placeopt.plotting.gantt import gantt_figure
from placeopt.plotting.style import write_figure

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
OUT = ROOT / "out"


def main() -> None:
    """Refresh all of it."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    draw_execution_models()
    readme = ROOT / "README.md"
    text = readme.read_text()
    for marker in re.findall(r"<!-- output: ((?:placeopt|python3) [^\n]*?) -->", text):
        text = replace_output(text, marker, run(marker))
    for marker in re.findall(r"<!-- first output: (placeopt [^\n]*?) -->", text):
        text = replace_output(text, marker, first_run(marker), label="first output")
    readme.write_text(text)
    shutil.copy(OUT / "gantt.png", PICTURES / "inception_v1.png")
    execute_notebook(ROOT / "docs" / "tour.ipynb")


def run(command: str, kernel_cache: str | None = None) -> str:
    """Return what a command prints, with the kernels of that folder, by default the usual ones."""
    print("$", command, flush=True)
    name, *words = command.split()
    arguments = [sys.executable, *(["-m", name] if name == "placeopt" else []), *words]
    kernels = {} if kernel_cache is None else {"NUMBA_CACHE_DIR": kernel_cache}
    done = subprocess.run(
        arguments,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **kernels},
    )
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def first_run(command: str) -> str:
    """Return what a command prints where no kernel is compiled yet, its files left out."""
    with tempfile.TemporaryDirectory() as cache:
        printed = run(command, cache)
    return "\n".join(line for line in printed.splitlines() if not line.startswith("wrote "))


def replace_output(text: str, command: str, output: str, label: str = "output") -> str:
    """Put `output` into the text block after the marker of `command`."""
    pattern = re.compile(rf"(<!-- {label}: {re.escape(command)} -->\n```text\n).*?(```)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + output + "\n" + match[2], text, count=1)


def execute_notebook(path: Path) -> None:
    """Run a notebook and keep its outputs, without the times that differ between runs."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, record_timing=False).execute()
    nbformat.write(notebook, path)


def draw_execution_models() -> None:
    """Draw one small fork-join graph under three execution models: what the concepts page
    explains.
    """
    fork = [(0, v, 40) for v in range(1, 5)] + [(v, 5, 20) for v in range(1, 5)]
    compute = [[20, 20], [40, 40], [40, 40], [20, 20], [50, 50], [20, 20]]
    devices = [0, 0, 0, 1, 1, 0]
    kinds = ("fork", "branch", "branch", "short branch", "long branch", "join")
    free = po.PlacementProblem.from_edges(compute, fork, op_types=kinds)
    shared = po.PlacementProblem.from_edges(
        compute, fork, op_types=kinds, channel=[[-1, 0], [1, -1]]
    )
    ranked = po.Placement(devices, priority=[0, 1, 2, 4, 3, 5])
    pictures = {
        "fifo": (
            free,
            po.Placement(devices),
            "fifo",
            "no contention, fifo: ready time, then index",
        ),
        "contention": (
            shared,
            po.Placement(devices),
            "fifo",
            "one channel per ordered pair, fifo: the tensors queue",
        ),
        "priority": (
            shared,
            ranked,
            "priority",
            "one channel per ordered pair, priority: the long op's input goes first",
        ),
    }
    for name, (problem, placement, queue, title) in pictures.items():
        evaluation = po.evaluate(problem, placement, queue=queue)
        figure = gantt_figure(evaluation, title=f"{title}; makespan {evaluation.makespan} ticks")
        figure.set_size_inches(9, 2.6)
        write_figure(figure, PICTURES / f"execution_{name}.png", dpi=110)


if __name__ == "__main__":
    main()
