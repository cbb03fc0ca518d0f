"""Models as users have them: every command and every export, by three ways of reading a model.

    python results/models/study.py [--again] [--minutes M] [--model NAME] [--way WAY]

Every cell is one command of placeopt on one model of `zoo.py`; where the command writes something
that runs, it is run here, and its results are compared with those of the unsplit model. A cell says
"ok", or the sentence with which the command refuses, or how it failed. `cells.csv` holds all of
them; a model and a way of which all cells are there are left alone. `tables.md` is drawn from it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pipeline_rank  # noqa: E402
import zoo  # noqa: E402
from whole_tables import say_rows  # noqa: E402

from placeopt.cli import main  # noqa: E402
from placeopt.experiments.studies import (  # noqa: E402
    kept_rows,
    markdown_table,
    read_csv,
    row_options,
    write_csv,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ("torch.export", "onnx-dynamo", "onnx-older")
CELLS = (
    "info",
    "equal",
    "mixed",
    "limit",
    "layer",
    "block",
    "device-map",
    "torch",
    "torch-pipeline",
    "onnxruntime",
    "jax",
    "csv",
    "run",
)
NEED_BLOCK = {"device-map", "torch", "onnxruntime", "jax", "csv", "run"}
"""Cells that export or run the placement by block."""

EQUAL, MIXED, PAIR = "4xA100", "2xA100+2xV100", "2xA100"
SECONDS = 1
SHARE = 0.7
"""Memory limit of a device, as a share of what one device alone holds at its peak."""

TOLERANCE = 1e-4
"""Largest difference of a result, over its largest value."""


class Refused(Exception):
    """A command refused its input; the message is its one line."""


def placeopt(*words: Any) -> dict[str, Any]:
    """Run a command with --json in this process and return its object.

    Raises
    ------
    Refused
        If it exits with 1 or 2.
    """
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*map(str, words), "--json"])
        except SystemExit as stop:
            code = stop.code
    data = json.loads(out.getvalue()) if out.getvalue().strip() else {}
    if code:
        lines = [line for line in err.getvalue().splitlines() if "error: " in line]
        raise Refused(
            lines[-1].split("error: ", 1)[1] if lines else data.get("message", "no words")
        )
    return data


class Subject:
    """A model of the zoo by one way in: its source, and what the unsplit model gives."""

    def __init__(self, name: str, way: str, folder: Path) -> None:
        import torch

        self.name, self.way, self.folder = name, way, folder
        self.module, self.inputs, self.named = zoo.MODELS[name]()
        with torch.no_grad():
            self.expected = tensors(self.module(*self.inputs, **self.named))
        self.source = f"torch:{HERE / 'zoo.py'}:{name}"
        if way != "torch.export":
            self.source = str(self._onnx(folder / f"{name}.onnx"))
        self.limit = ""
        self.placement: Path | None = None

    @property
    def is_torch(self) -> bool:
        """Whether the source is a torch module."""
        return self.way == "torch.export"

    def _onnx(self, path: Path) -> Path:
        import torch

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            torch.onnx.export(
                self.module,
                self.inputs,
                str(path),
                kwargs=self.named or None,
                dynamo=self.way == "onnx-dynamo",
                **({} if self.way == "onnx-dynamo" else {"opset_version": 17}),
            )
        return path


def tensors(value: Any) -> list[Any]:
    """Return the tensors of a result, in order."""
    import torch
    from torch.utils import _pytree as pytree

    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def compare(found: list[Any], expected: list[Any]) -> None:
    """Raise ValueError unless tensors are equal up to rounding."""
    if len(found) != len(expected):
        raise ValueError(f"{len(found)} results where {len(expected)} are expected")
    for a, b in zip(found, expected, strict=True):
        a, b = a.detach().double(), b.detach().double()
        if a.shape != b.shape:
            raise ValueError(f"shape {tuple(a.shape)} where {tuple(b.shape)} is expected")
        off = float((a - b).abs().max()) if a.numel() else 0.0
        if not off <= TOLERANCE * max(1.0, float(b.abs().max()) if b.numel() else 1.0):
            raise ValueError(f"a result differs by {off:.3g}")


def imported(path: Path) -> Any:
    """Import a Python file that was written."""
    spec = importlib.util.spec_from_file_location(f"written_{abs(hash(path))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the cells
# -----------------------------------------------------------------------------------------


def solved(subject: Subject, *words: Any) -> dict[str, Any]:
    """Solve with the portfolio."""
    return placeopt("solve", subject.source, "-s", "portfolio", "-t", SECONDS, *words)


def info(subject: Subject) -> str:
    """Read the model."""
    data = placeopt("info", subject.source)
    return f"{data['ops']} ops"


def equal(subject: Subject) -> str:
    """Place it on four equal devices; remember the limit that forces a split."""
    data = solved(subject, "-c", EQUAL)
    return f"{data['devices_used']} devices"


def mixed(subject: Subject) -> str:
    """Place it on devices of two kinds."""
    return f"{solved(subject, '-c', MIXED)['devices_used']} devices"


def limit(subject: Subject) -> str:
    """Place it where no device can hold it alone."""
    import placeopt as po
    from placeopt.makespan.evaluate import evaluate

    problem = po.load(subject.source, EQUAL)
    alone = po.solve(problem, "single-device", evaluations=1).solution
    peak = int(evaluate(problem, alone, check=False).peak_memory.max())
    subject.limit = f"{int(SHARE * peak)}B"
    data = solved(subject, "-c", EQUAL, "--memory-limit", subject.limit)
    if data["devices_used"] < 2 or data["warning"]:
        raise ValueError(f"{data['devices_used']} devices; {data['warning']}")
    return f"{data['devices_used']} devices"


def grouped(subject: Subject, word: str) -> str:
    """Place it by layer or by block within the limit; the placement by block is exported."""
    out = subject.folder / word
    data = solved(
        subject, "-c", EQUAL, "--group", word, "--memory-limit", subject.limit, "--out", out
    )
    subject.placement = out / "placement.json"
    return f"{data['devices_used']} devices"


def exported(subject: Subject, to: str, *words: Any, placement: Path | None = None) -> Path:
    """Export the placement by block; return the folder."""
    out = subject.folder / to
    given = ("--model", subject.source, "--cluster", EQUAL if placement is None else PAIR)
    placement = placement or subject.placement
    if placement is None:
        raise Refused("there is no placement by block")
    placeopt("export", placement, "--to", to, *given, "--out", out, *words)
    return out


def parameters(subject: Subject) -> Path:
    """Return a file with the names of the module's parameters; a file of ONNX may lack some."""
    path = subject.folder / "parameters.json"
    path.write_text(json.dumps([name for name, _ in subject.module.named_parameters()]))
    return path


def device_map(subject: Subject) -> str:
    """Dispatch the module with accelerate by the map."""
    import copy

    import accelerate
    import torch

    out = exported(subject, "device-map", "--parameters", parameters(subject))
    table = json.loads((out / "device_map.json").read_text())
    modules = {name for name, _ in subject.module.named_modules()}
    stored = set(subject.module.state_dict(keep_vars=True))
    unknown = [path for path in table if path not in modules | stored]
    if unknown:
        raise ValueError(f"'{unknown[0]}' is no module")
    whole = dict.fromkeys(table, "cpu")
    placed = accelerate.dispatch_model(
        copy.deepcopy(subject.module), whole, main_device="cpu", force_hooks=True
    )
    with torch.no_grad():
        compare(tensors(placed(*subject.inputs, **subject.named)), subject.expected)
    return f"{len(set(table.values()))} devices"


def torch_module(subject: Subject) -> str:
    """Load the module that was written and run it."""
    import torch

    out = exported(subject, "torch", "--devices", "cpu,cpu:1,cpu:2,cpu:3")
    placed = imported(out / "placed.py").load()
    with torch.no_grad():
        compare(tensors(placed(*subject.inputs, **subject.named)), subject.expected)
    return "runs"


def torch_pipeline(subject: Subject) -> str:
    """Cut the module into a chain of stages and train it a step on gloo processes."""
    import torch

    if not subject.is_torch:
        exported(subject, "torch-pipeline")
    cut = subject.folder / "chain"
    words = ("--objective", "period", "--contiguity", "chain", "--group", "block")
    placeopt(
        "solve", subject.source, "-c", PAIR, *words, "--shared", "copy", "-t", SECONDS, "-o", cut
    )
    out = exported(
        subject,
        "torch-pipeline",
        *("--micro-batches", 2, "--solver", "1f1b"),
        placement=cut / "placement.json",
    )
    ranks = len(set(imported(out / "pipeline.py").RANK_OF_STAGE))
    leaves = [x for x in tensors((subject.inputs, subject.named))]
    torch.save([torch.cat([x, x.flip(0)]) for x in leaves], out / "batch.pt")
    run_ranks(ranks, out)
    found = [torch.load(out / f"rank{rank}.pt") for rank in range(ranks)]
    subject.module.zero_grad()
    losses = []
    for turn in (lambda x: x, lambda x: x.flip(0)):
        inputs = tuple(turn(x) for x in subject.inputs)
        named = {k: turn(x) if isinstance(x, torch.Tensor) else x for k, x in subject.named.items()}
        loss = pipeline_rank.loss_of(tensors(subject.module(*inputs, **named))[0])
        loss.backward()
        losses.append(loss)
    got = [x for part in found for x in part["losses"]]
    compare([torch.tensor(got)], [torch.tensor([float(x.detach()) for x in losses])])
    compare_gradients(subject.module, [part["gradients"] for part in found])
    subject.module.zero_grad()
    return f"{ranks} processes"


def compare_gradients(module: Any, found: list[dict[str, Any]]) -> None:
    """Raise ValueError unless every rank has the gradients of the unsplit module, up to rounding.

    A gradient that is 0 but for rounding, as that of a key's bias, is compared with the largest.
    """
    names = dict(module.named_parameters(remove_duplicate=False))
    largest = max(float(p.grad.abs().max()) for p in names.values() if p.grad is not None)
    seen = set()
    for gradients in found:
        for name, gradient in gradients.items():
            expected = names[name].grad
            if expected is None:
                raise ValueError(f"'{name}' has a gradient, which the unsplit module's has not")
            scale = max(float(expected.abs().max()), TOLERANCE * largest)
            compare([gradient / scale], [expected / scale])
            seen.add(id(names[name]))
    for name, parameter in names.items():
        if parameter.grad is not None and id(parameter) not in seen:
            raise ValueError(f"no rank has a gradient of '{name}'")


def run_ranks(ranks: int, folder: Path) -> None:
    """Run pipeline_rank.py once per rank."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                str(HERE / "pipeline_rank.py"),
                *(str(x) for x in (rank, ranks, folder / "init", folder)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(ranks)
    ]
    try:
        said = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    last = [x.strip().splitlines()[-1] for x, w in zip(said, workers, strict=True) if w.returncode]
    for words in sorted(last, key=lambda x: "Connection closed" in x):
        raise RuntimeError(words[:300])


def feeds(subject: Subject, names: list[str]) -> dict[str, Any]:
    """Return the inputs of an ONNX model by name, in its order."""
    given = [x.numpy() for x in tensors((subject.inputs, subject.named))]
    given += [np.array(0)] * (len(names) - len(given))  # logits_to_keep, which older files ask for
    return dict(zip(names, given, strict=True))


def onnxruntime_parts(subject: Subject) -> str:
    """Run the parts that were written, and compare with the file as a whole.

    A file may compute something else than its module: older exporters make `logits_to_keep`, 0 by
    default, a token's number.
    """
    import onnxruntime
    import torch

    from placeopt.programs.onnx_program import open_runner

    out = exported(subject, "onnxruntime", "--devices", "cpu,cpu,cpu,cpu")
    manifest = json.loads((out / "manifest.json").read_text())
    runner = open_runner(out)
    given = feeds(subject, manifest["inputs"])
    results = runner.run(given)
    whole = onnxruntime.InferenceSession(subject.source, providers=["CPUExecutionProvider"])
    expected = [torch.from_numpy(x) for x in whole.run(manifest["outputs"], given)]
    compare([torch.from_numpy(results[name]) for name in manifest["outputs"]], expected)
    return f"{len(manifest['parts'])} parts"


def jax_shardings(subject: Subject) -> str:
    """Place a tree of the module's parameters on host devices of jax."""
    out = exported(subject, "jax", "--parameters", parameters(subject))
    shapes = {name: list(p.shape) for name, p in subject.module.named_parameters()}
    (out / "shapes.json").write_text(json.dumps(shapes))
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", JAX, out],
        capture_output=True,
        text=True,
        env={**environment, "JAX_PLATFORMS": "cpu"},
        timeout=200,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1][:300])
    return f"{done.stdout.strip()} devices"


JAX = """
import importlib.util, json, pathlib, sys
import jax, numpy
folder = pathlib.Path(sys.argv[1])
spec = importlib.util.spec_from_file_location("shardings", folder / "shardings.py")
shardings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shardings)
tree = {}
for path, shape in json.loads((folder / "shapes.json").read_text()).items():
    *parents, leaf = path.split(".")
    home = tree
    for name in parents:
        home = home.setdefault(name, {})
    home[leaf] = numpy.zeros(shape, dtype=numpy.float32)
placed = shardings.place(tree)
print(len({d for x in jax.tree_util.tree_leaves(placed) for d in x.devices()}))
"""


def csv_table(subject: Subject) -> str:
    """Write a CSV and value it again: the same makespan as the placement's own file."""
    out = exported(subject, "csv")
    words = ("-c", EQUAL, "--group", "block")
    file = next(out.glob("*.csv"))
    values = []
    for path in (file, subject.placement):
        given = (*words, "--queue", "priority")  # which a CSV does not tell
        values.append(placeopt("evaluate", subject.source, path, *given)["makespan"])
    if values[0] != values[1]:
        raise ValueError(f"makespans {values}")
    return "same makespan"


def run(subject: Subject) -> str:
    """Run the model's own operators under the placement, and compare."""
    if subject.placement is None:
        raise Refused("there is no placement by block")
    data = placeopt("run", subject.source, subject.placement, "--workers", 4, "--repeat", 1)
    if not data["measured"]["checked"]:
        raise ValueError("results were not compared")
    return "equal results"


ACTIONS: dict[str, Callable[[Subject], str]] = {
    "info": info,
    "equal": equal,
    "mixed": mixed,
    "limit": limit,
    "layer": lambda subject: grouped(subject, "layer"),
    "block": lambda subject: grouped(subject, "block"),
    "device-map": device_map,
    "torch": torch_module,
    "torch-pipeline": torch_pipeline,
    "onnxruntime": onnxruntime_parts,
    "jax": jax_shardings,
    "csv": csv_table,
    "run": run,
}


def cells(name: str, way: str, wanted: tuple[str, ...] = CELLS) -> list[dict[str, str]]:
    """Return the rows of a model by one way in."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            subject = Subject(name, way, Path(folder))
        except Exception as error:
            why = f"torch's exporter: {type(error).__name__}: {error}"
            rows = [row(name, way, cell, "no file", why) for cell in CELLS]
            record(rows)
            return rows
        for cell in CELLS:
            if cell not in wanted and (
                cell not in ("limit", "block") or not set(wanted) & NEED_BLOCK
            ):
                continue
            try:
                rows.append(row(name, way, cell, "ok", ACTIONS[cell](subject)))
            except Refused as error:
                told = str(error).replace(f"{folder}/", "").replace(f"{HERE}/", "")
                rows.append(row(name, way, cell, "refused", told))
            except Exception as error:
                rows.append(row(name, way, cell, "failed", f"{type(error).__name__}: {error}"))
                if os.environ.get("TRACE"):
                    traceback.print_exc()
            print(" | ".join(rows[-1].values()), flush=True)
            if tuple(wanted) == CELLS:
                record(rows[-1:])  # what is killed has left what it knew
    return rows


def row(name: str, way: str, cell: str, outcome: str, words: str) -> dict[str, str]:
    """Return one row of the table."""
    told = " ".join(words.split())[:300]
    return {"model": name, "way": way, "cell": cell, "outcome": outcome, "words": told}


def record(rows: list[dict[str, str]]) -> None:
    """Put rows into the table, in the order of the models."""
    path = HERE / "cells.csv"
    with (Path(tempfile.gettempdir()) / "placeopt-models.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several may run beside each other
        _merge(path, rows)


def _merge(path: Path, rows: list[dict[str, str]]) -> None:
    table = {(x["model"], x["way"], x["cell"]): x for x in (*read_csv(path), *rows)}
    order = {
        key: i for i, key in enumerate((m, w, c) for m in zoo.MODELS for w in WAYS for c in CELLS)
    }
    write_csv(path, [table[key] for key in sorted(table, key=order.__getitem__)])


def draw() -> str:
    """Return the table of outcomes by model and way, and every sentence that is not ok."""
    found = {(x["model"], x["way"], x["cell"]): x for x in read_csv(HERE / "cells.csv")}
    words: dict[str, int] = {}

    def shown(x: dict[str, str] | None) -> str:
        if x is None or x["outcome"] == "ok":
            return "" if x is None else "ok"
        number = words.setdefault(f"{x['outcome']}: {x['words']}", len(words) + 1)
        return f"{x['outcome']} ({number})"

    lines = [
        [model, way, *(shown(found.get((model, way, cell))) for cell in CELLS)]
        for model in zoo.MODELS
        for way in WAYS
    ]
    table = markdown_table(("model", "way in", *CELLS), lines)
    notes = [f"{number}. {text}" for text, number in words.items()]
    return "\n".join([*table, "", *notes]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", action="append", choices=tuple(zoo.MODELS))
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--cell", action="append", choices=CELLS, help="only print these")
    given = row_options(__doc__, (), parser)
    say_rows(HERE / "cells.csv", given)
    kept = Counter((x["model"], x["way"]) for x in kept_rows(HERE / "cells.csv", given, ()))
    for model in given.model or zoo.MODELS:
        for way in given.way or WAYS:
            if (given.cell or kept[model, way] < len(CELLS)) and time.monotonic() < given.end:
                cells(model, way, tuple(given.cell or CELLS))
    (HERE / "tables.md").write_text(draw())
