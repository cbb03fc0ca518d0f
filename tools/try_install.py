"""Install the project as a stranger would, outside its tree, and run the README's main job.

    python tools/try_install.py                       # the wheel made from the sdist, this Python
    python tools/try_install.py --python python3.12   # another one; may be repeated
    python tools/try_install.py --both                # the sdist itself is installed, too

Builds an sdist, and a wheel from it; installs into a fresh environment in a temporary folder; runs
the README's first command, `verify` with a proof, and the checker of proofs by a bare Python. Ends
with exit code 1 at the first step that fails, and prints what it said.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(command: list[str], folder: Path) -> str:
    """Run a command in a folder, outside the tree's paths; return what it printed."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-3000:]
        sys.exit(f"failed: {' '.join(command)} (exit code {done.returncode})\n{said}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """Return the sdist and the wheel that is made from it."""
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], folder)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def main_job() -> list[str]:
    """Return the arguments of the README's first command, after `placeopt`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- output: placeopt (solve .*?) -->", text)
    if found is None:
        sys.exit("README.md: expected '<!-- output: placeopt solve ... -->', found none")
    return found[1].split()


def try_package(package: Path, python: str, folder: Path) -> None:
    """Install one package with one Python and use it."""
    folder.mkdir()
    run([python, "-m", "venv", "env"], folder)
    binary = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    # what is imported is compiled then
    install = ["-m", "pip", "install", "-q", "--no-compile", f"{package}[onnx,plot]"]
    run([str(binary / "python"), *install], folder)
    placeopt = str(binary / "placeopt")
    job = main_job()
    run([placeopt, *job], folder)
    out = folder / job[job.index("--out") + 1]
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    best = result["results"][result["best"]] if "results" in result else result
    source, cluster = job[1], job[job.index("--cluster") + 1]
    placement = str(out / "placement.json")
    asked = ["verify", source, placement, "--cluster", cluster, "--seconds", "5"]
    run([placeopt, *asked, "--proof", "proof.json"], folder)
    said = run([python, "-I", str(ROOT / "tools" / "check_proof.py"), "proof.json"], folder)
    version = run([str(binary / "python"), "--version"], folder).strip()
    gap = best["gap"]
    print(
        f"{version}, {package.name}: makespan {best['value']} ticks, gap {gap:.2%}; {said.strip()}"
    )


def main() -> None:
    """Read the options and try every package with every Python."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", action="append", metavar="PYTHON", help="a Python to try")
    parser.add_argument("--both", action="store_true", help="install the sdist, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="placeopt-install-") as temporary:
        folder = Path(temporary)
        sdist, wheel = build(folder)
        for i, python in enumerate(asked.python or [sys.executable]):
            for package in (wheel, sdist) if asked.both else (wheel,):
                try_package(package, python, folder / f"{i}-{package.suffix[1:]}")


if __name__ == "__main__":
    main()
