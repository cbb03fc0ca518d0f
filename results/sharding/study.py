"""Sharding: nine instances of the ASPLOS 2025 contest, and models sharded on 2 x 4 devices: one
command.

    PLACEOPT_DATA=../shared/data python results/sharding/study.py [ROW ...] [--again] [--seconds
    120]

A row is an instance (A B D G L M P R T) or a model; each is measured in a process of its own and
written to contest.csv or models.csv when it is done, so the study may be stopped and continued:
rows that this code measured with this limit stay, those of other code are measured anew (`--again`:
all). `tables.md` is drawn from the CSV files, and its sums are printed, at the end. Two threads;
run it on a machine with two idle cores.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import placeopt as po
from placeopt.experiments.studies import data_folder, markdown_table, read_csv, write_csv
from placeopt.instances.clusters import make_cluster
from placeopt.instances.sources import load_graph
from placeopt.programs.torch_program import torch_program
from placeopt.sharding.evaluate import total_cost, usage_profile
from placeopt.sharding.from_model import sharding_model
from placeopt.sharding.layout_table import megatron_layout
from placeopt.sharding.problem import ShardingSolution

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from whole_tables import peak_mb  # noqa: E402 - results/ is no package

DATA = data_folder("iopddl")
INSTANCES = ("A", "B", "D", "G", "L", "M", "P", "R", "T")
CLUSTER = "8xA100?precision=fp16"

MODELS = {
    "llama layer": ("gen:llama?layers=1&batch=2&vocab=32000", False),
    "llama layer, training": ("gen:llama?layers=1&batch=2&vocab=32000", True),
    "llama layer, training, 1.5 GiB": ("gen:llama?layers=1&batch=2&vocab=32000", True),
    "gpt2": ("gen:gpt2?batch=2&vocab=50304", False),
    "gpt2, training": ("gen:gpt2?batch=2&vocab=50304", True),
    "llama layer, torch.export": ("torch", False),
    "llama layer, torch.export, training": ("torch", True),
}
MEMORY = {"llama layer, training, 1.5 GiB": 1.5}


def main() -> None:
    """Measure the rows that are missing, then draw the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of each search")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        measure = contest_row if arguments.child in INSTANCES else model_row
        print(json.dumps(measure(arguments.child, arguments.seconds)))
        return
    order = [*INSTANCES, *MODELS]
    for name in arguments.rows or order:
        if name not in order:
            raise SystemExit(f"row: expected one of {', '.join(order)}, received '{name}'")
    made_by = {"limit": f"{arguments.seconds:g}", "sources": sources()}
    for name in arguments.rows or order:
        path = HERE / ("contest.csv" if name in INSTANCES else "models.csv")
        rows = read_csv(path)
        mine = next((row for row in rows if row["name"] == name and not row.get("failed")), {})
        if not arguments.again and made_by.items() <= mine.items():
            continue
        row = in_a_process(name, arguments.seconds) | made_by
        write_csv(
            path,
            sorted(
                [x for x in rows if x["name"] != name] + [row], key=lambda x: order.index(x["name"])
            ),
        )
        print(row, flush=True)
    lines = tables()
    (HERE / "tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(line for line in lines if line.startswith("Sum of")))


def sources() -> str:
    """Return a digest of the code that is measured."""
    digest = hashlib.sha256()
    for folder in ("placeopt/sharding", "solvers/sharding"):
        for path in sorted((HERE.parents[1] / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def in_a_process(name: str, seconds: float) -> dict[str, Any]:
    """Return the row that a fresh process measures; what fails is a row too."""
    command = [sys.executable, __file__, "--child", name, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"name": name, "failed": " ".join(done.stderr.split())[-200:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def contest_row(name: str, seconds: float) -> dict[str, Any]:
    """Read an instance, search and bound it, verify the choice."""
    with (DATA / "reference.csv").open(newline="") as file:
        reference = next(row for row in csv.DictReader(file) if row["instance"] == name)
    known = min(
        int(x)
        for x in (
            reference["best_contest"],
            reference["best_stored"],
            last_number(reference["note"]),
        )
        if x
    )
    started = time.perf_counter()
    problem = po.load(DATA / f"asplos-2025-iopddl-{name}.json.gz")
    read, read_memory = time.perf_counter() - started, peak_gib()
    result = po.solve(problem, seconds=seconds, seed=0)
    violations = (
        po.verify(problem, result, seconds=0).violations
        if result.solution is not None
        else ("none",)
    )
    published = int(reference["best_bound"])
    return {
        "name": name,
        "read_seconds": round(read, 2),
        "read_gib": read_memory,
        "value": result.value,
        "bound": result.lower_bound,
        "gap": result.gap,
        "status": result.status,
        "best_known": known,
        "published_bound": published,
        "ratio": 0.0 if result.value is None else known / result.value,
        "published_gap": (known - published) / known,
        "violations": len(violations),
        "seconds": round(result.runtime, 1),
        "peak_gib": peak_gib(),
    }


def last_number(note: str) -> str:
    """Return the value that a note of the reference ends with ("XLA 651833115436"), "" if it names
    none.
    """
    word = note.split(" ")[-1] if note else ""
    return word if word.isdigit() and len(word) > 6 else ""


def model_row(name: str, seconds: float) -> dict[str, Any]:
    """Shard a model; compare with Megatron's layout in the same problem."""
    source, training = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        file = exported_layer(Path(folder) / "layer.pt2") if source == "torch" else source
        graph, _ = load_graph(file)
        program = torch_program(file) if source == "torch" else None
    memory = int(MEMORY[name] * 2**30) if name in MEMORY else None
    model = sharding_model(
        graph,
        make_cluster(CLUSTER),
        (2, 4),
        training=training,
        memory=memory,
        program=program,
    )
    reference = megatron_layout(model)
    result = po.solve(model.problem, seconds=seconds, seed=0)
    solution: ShardingSolution = result.solution
    return {
        "name": name,
        "ops": graph.num_ops,
        "nodes": model.problem.num_nodes,
        "milliseconds": result.value / 1e6,
        "bound": result.lower_bound / 1e6,
        "gap": result.gap,
        "status": result.status,
        "gib": usage_profile(model.problem, solution).peak / 2**30,
        "limit_gib": model.problem.usage_limit / 2**30,
        "megatron_milliseconds": total_cost(model.problem, reference) / 1e6,
        "megatron_gib": usage_profile(model.problem, reference).peak / 2**30,
        "seconds": round(result.runtime, 2),
    }


def exported_layer(path: Path) -> Path:
    """Write a Llama layer (hidden 4096, 32 heads) as torch.export does, and return the file."""
    import torch
    from torch.nn import functional

    class Layer(torch.nn.Module):
        def __init__(self, hidden: int = 4096, heads: int = 32, inner: int = 11008) -> None:
            super().__init__()
            self.heads = heads
            names = {
                "q": (hidden, hidden),
                "k": (hidden, hidden),
                "v": (hidden, hidden),
                "out": (hidden, hidden),
                "gate": (hidden, inner),
                "up": (hidden, inner),
                "down": (inner, hidden),
            }
            for key, (rows, columns) in names.items():
                setattr(self, key, torch.nn.Linear(rows, columns, bias=False))
            self.norm1, self.norm2 = torch.nn.RMSNorm(hidden), torch.nn.RMSNorm(hidden)

        def split(self, x: Any) -> Any:
            return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            y = functional.scaled_dot_product_attention(
                self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y)), is_causal=True
            )
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            y = self.norm2(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    with torch.device("meta"):
        layer = Layer().half()
        example = torch.empty(2, 2048, 4096, dtype=torch.float16)
    program = torch.export.export(layer, (example,))
    try:
        torch.export.save(program, path)
    except Exception:  # a version that cannot save weights without storage
        layer = layer.to_empty(device="cpu")
        torch.export.save(
            torch.export.export(layer, (torch.zeros(2, 2048, 4096, dtype=torch.float16),)), path
        )
    return path


def peak_gib() -> float:
    """Return the most memory that this process has used."""
    return round(peak_mb() / 1024, 2)


def tables() -> list[str]:
    """Return the tables and their sums as Markdown."""
    lines = ["# Sharding", "", "Written by `python results/sharding/study.py`.", ""]
    rows = [row for row in read_csv(HERE / "contest.csv", numbers=True) if not row.get("failed")]
    if rows:
        heads = (
            "instance",
            "read s",
            "value",
            "bound",
            "gap %",
            "best known",
            "ratio",
            "published bound",
            "its gap %",
            "status",
        )
        lines += [
            "## The contest's instances",
            "",
            *markdown_table(
                heads,
                [
                    (
                        r["name"],
                        r["read_seconds"],
                        r["value"],
                        r["bound"],
                        round(100 * r["gap"], 3),
                        r["best_known"],
                        round(r["ratio"], 5),
                        r["published_bound"],
                        round(100 * r["published_gap"], 3),
                        r["status"],
                    )
                    for r in rows
                ],
            ),
        ]
        total = sum(r["ratio"] for r in rows)
        above = sum(r["bound"] > r["published_bound"] for r in rows)
        gaps = [sum(r[key] for r in rows) / len(rows) for key in ("gap", "published_gap")]
        lines += [
            "",
            f"Sum of best known / ours: {total:.4f} of {len(rows)}; at or below the best known: "
            f"{sum(r['value'] <= r['best_known'] for r in rows)}. Bounds above the published ones: "
            f"{above}; proved optimal: "
            f"{sum(r['status'] == 'optimal' for r in rows)}. Mean gap {100 * gaps[0]:.3f} %, "
            f"published {100 * gaps[1]:.3f} %. "
            f"Most memory {max(r['peak_gib'] for r in rows)} GiB, longest reading "
            f"{max(r['read_seconds'] for r in rows)} s.",
            "",
        ]
    rows = [row for row in read_csv(HERE / "models.csv", numbers=True) if not row.get("failed")]
    if rows:
        heads = (
            "model",
            "ops",
            "ours ms",
            "bound ms",
            "gap %",
            "GiB",
            "Megatron ms",
            "its GiB",
            "limit GiB",
            "status",
            "s",
        )
        lines += [
            f"## Models on 2 x 4 of {CLUSTER}",
            "",
            *markdown_table(
                heads,
                [
                    (
                        r["name"],
                        r["ops"],
                        r["milliseconds"],
                        r["bound"],
                        round(100 * r["gap"], 3),
                        round(r["gib"], 3),
                        r["megatron_milliseconds"],
                        round(r["megatron_gib"], 3),
                        r["limit_gib"],
                        r["status"],
                        r["seconds"],
                    )
                    for r in rows
                ],
            ),
        ]
    return lines


if __name__ == "__main__":
    main()
