"""Seconds used of a time limit: every search and the bounds on layered graphs of 10^2 to 10^6 ops
and 64 devices.

`python results/reliability/limits.py OBJECTIVE SOLVER FOLDER SIZE ...` is the process that one
solver has: it prints a JSON object per size. The graphs are made once and read from FOLDER, kernels
are compiled and loaded before the clock starts. `... limits.py million STEP FOLDER` is that of a
step of `million`.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from whole_tables import peak_mb, replaced

import placeopt as po
from placeopt.experiments.studies import kept_rows, read_csv, write_csv
from placeopt.model.errors import InputError
from placeopt.solving.registry import specs

Row = dict[str, Any]
HERE = Path(__file__).resolve().parent
SHAPES = {
    100: (10, 10),
    1000: (10, 100),
    10_000: (100, 100),
    100_000: (1000, 100),
    1_000_000: (10_000, 100),
}
"""Layers and ops per layer."""

OBJECTIVES = ("makespan", "period", "latency")
DEVICES = 64


def limit_of(size: int) -> float:
    """Return the time limit for graphs of a size."""
    return {100_000: 5.0, 1_000_000: 15.0}.get(size, 2.0)


def allowed(limit: float) -> float:
    """Return the seconds that a limit allows: 5 % and 0.3 s more."""
    return 1.05 * limit + 0.3


def pairs() -> list[tuple[str, str]]:
    """Return every objective with every solver that takes it, and with "bound"."""
    found = []
    for objective in OBJECTIVES:
        names = [name for name, spec in specs("placement").items() if objective in spec.objectives]
        found += [(objective, name) for name in ["bound", *names]]
    return found


def make_graphs(folder: Path, sizes: list[int]) -> None:
    """Generate the graphs that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for size in sizes:
        paths = {objective: folder / f"{objective}-{size}.pickle" for objective in OBJECTIVES}
        if not all(path.exists() for path in paths.values()):
            layers, width = SHAPES[size]
            problem = po.load(
                f"gen:layered?layers={layers}&width={width}&seed=1", f"uniform:{DEVICES}"
            )
            for objective, path in paths.items():
                path.write_bytes(pickle.dumps(problem.replace(objective=objective), protocol=5))


def measure(options: Any) -> None:
    """Every search and the bounds on layered graphs with 64 devices: seconds used of the limit.

    Rows that limits.csv has already are kept, unless they are to be measured `--again`; `--only`
    names a solver.
    """
    sizes = [size for size in SHAPES if size <= options.largest]
    make_graphs(options.folder, sizes)
    path = HERE / "limits.csv"
    rows, kept = read_csv(path), kept_rows(path, options, ("solver",))
    done = {(row["objective"], row["solver"], row["ops"]) for row in kept}
    for objective, name in pairs():
        todo = [size for size in sizes if (objective, name, str(size)) not in done]
        if options.only not in name:
            continue
        for size, row in probe_process(objective, name, options.folder, todo, options.end):
            named = {"objective": objective, "solver": name, "ops": size}
            print("limits:", named | row, flush=True)
            rows = replaced(rows, named | row, named)
            write_csv(path, in_order(rows), digits=4)


def in_order(rows: list[Row]) -> list[Row]:
    """Sort rows as `pairs` names them."""
    order = {pair: number for number, pair in enumerate(pairs())}
    rows = [row for row in rows if (row["objective"], row["solver"]) in order]
    return sorted(rows, key=lambda row: (order[row["objective"], row["solver"]], int(row["ops"])))


def probe_process(objective: str, name: str, folder: Path, sizes: list[int], end: float) -> Any:
    """Yield (size, row) of one solver, run in a process of its own."""
    if not sizes or time.monotonic() > end:
        return
    command = [sys.executable, __file__, objective, name, str(folder), *map(str, sizes)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        left = list(sizes)
        for line in process.stdout:
            if not line.startswith("{"):
                continue  # what a library prints
            yield left.pop(0), json.loads(line)
            if time.monotonic() > end:
                process.kill()
                return
        if process.wait():
            words = (
                process.stderr.read().strip().splitlines() or [f"exit code {process.returncode}"]
            )[-1][:160]
            row = {
                "limit": limit_of(left[0]),
                "seconds": 0.0,
                "CPU": 0.0,
                "status": words,
                "value": "",
                "MB": 0,
            }
            yield left[0], {**row, "as required": False}


def probe(objective: str, name: str, folder: Path, sizes: list[int]) -> None:
    """Print a row for every size; one that is refused ends the run, for larger ones are refused
    too.
    """

    def once(problem: Any, seconds: float) -> Any:
        return (
            po.bound(problem, seconds=seconds)
            if name == "bound"
            else po.solve(problem, name, seconds=seconds)
        )

    def read(size: int) -> Any:
        return pickle.loads((folder / f"{objective}-{size}.pickle").read_bytes())

    with contextlib.suppress(InputError):
        once(read(100), 0.3)  # kernels and libraries are loaded
    refused = ""
    for size in sizes:
        limit = limit_of(size)
        row: Row = {"limit": limit, "seconds": 0.0, "CPU": 0.0}
        if not refused:
            problem = read(size)
            began, used = time.perf_counter(), time.process_time()
            try:
                answer = once(problem, limit)
                row |= {"status": getattr(answer, "status", "bound"), "value": answer.value}
            except InputError as error:
                refused = " ".join(str(error).split())[:160]
            row |= {"seconds": time.perf_counter() - began, "CPU": time.process_time() - used}
        if refused:
            row |= {"status": f"refused: {refused}", "value": ""}
        row["MB"] = round(peak_mb())
        row["as required"] = row["seconds"] <= allowed(limit)
        print(json.dumps(row, default=float), flush=True)


MOST_MB = 4096
STEPS = {"read an edge list": 10.0, "heft": 15.0, "etf": 0.0, "bound": 30.0}
"""Steps with 10^6 ops and 64 devices, and the seconds that are asked of them; 0 for none."""


def million(options: Any) -> list[Row]:
    """10^6 ops on 64 devices, without a limit but the bound's: seconds and memory of each step in a
    process of its own.
    """
    sizes = [10_000, 1_000_000]
    make_graphs(options.folder, sizes)
    for size in sizes:
        path = options.folder / f"{size}.edges"
        if not path.exists():
            problem = pickle.loads((options.folder / f"makespan-{size}.pickle").read_bytes())
            ends = zip(
                problem.producer[problem.edge_tensor].tolist(),
                problem.consumer.tolist(),
                strict=True,
            )
            path.write_text("".join(f"op{u} op{v} {u % 97}\n" for u, v in ends))
    rows = []
    for step, asked in STEPS.items():
        command = [sys.executable, __file__, "million", step, str(options.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.strip().splitlines()[-1])
        good = (not asked or row["seconds"] <= asked) and row["MB"] <= MOST_MB
        rows.append({"step": step, "asked": asked or "", **row, "as required": good})
        print("million:", rows[-1], flush=True)
    write_csv(HERE / "million.csv", rows, digits=4)
    return rows


def million_step(step: str, folder: Path) -> None:
    """Print what a step takes, after it was taken with 10^4 ops."""

    def take(size: int) -> int:
        if step.startswith("read"):
            return int(po.load(str(folder / f"{size}.edges"), cluster=f"uniform:{DEVICES}").num_ops)
        problem = pickle.loads((folder / f"makespan-{size}.pickle").read_bytes())
        began[:] = time.perf_counter(), time.process_time()
        return int(
            (
                po.bound(problem, seconds=STEPS[step])
                if step == "bound"
                else po.solve(problem, step, seconds=600)
            ).value
        )

    for size in (10_000, 1_000_000):
        began = [time.perf_counter(), time.process_time()]
        value = take(size)
    row = {
        "seconds": time.perf_counter() - began[0],
        "CPU": time.process_time() - began[1],
        "value": value,
    }
    print(json.dumps({**row, "MB": round(peak_mb())}))


if __name__ == "__main__" and sys.argv[1] == "million":
    million_step(sys.argv[2], Path(sys.argv[3]))
elif __name__ == "__main__":
    probe(sys.argv[1], sys.argv[2], Path(sys.argv[3]), [int(text) for text in sys.argv[4:]])
