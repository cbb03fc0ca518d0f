"""Pretrain the dual policy on families of generated graphs, and apply it to families and device counts it has not seen.

Run `python results/policy/pretrain.py train` to write the two policies in the package (pretrained_episodes.json and
pretrained_rewriting.json in solvers/policy), and `python results/policy/pretrain.py apply [GRAPHS]` for zero_shot.csv and
zero_shot.md beside this file, from 100 graphs or from that many; `few` compares with a portfolio on the first twelve of them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import placeopt as po
from placeopt.experiments.studies import markdown_table, read_csv, write_csv
from placeopt.model.files import write_text
from placeopt.solvers.policy.dual_policy import PRETRAINED
from placeopt.solvers.policy.dual_policy_file import DualPolicyModel
from placeopt.solvers.policy.transfer import apply_policy, train_policy, train_rewriting
from placeopt.solving.registry import make_solver

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]

TRAINING = (
    "gen:layered?layers=8&width=8", "gen:layered?layers=5&width=14", "gen:fork-join?stages=4&branches=6",
    "gen:series-parallel?ops=80", "gen:in-tree?depth=5", "gen:lu?tiles=5",
)  # fmt: skip
"""Families, each with four seeds, cost ratios and device counts."""

RATIOS, DEVICES = (0.5, 1.0, 2.0, 4.0), (2, 3, 4, 6)

UNSEEN = (
    "gen:cholesky?tiles=9", "gen:fft?points=32", "gen:stencil?rows=5&columns=5&steps=8", "gen:out-tree?depth=6",
    "gen:layered?layers=14&width=14&degree=3",
)  # fmt: skip
"""Families of about 200 ops; the last one is known, but not its size, degree and devices."""

UNSEEN_DEVICES = (5, 8, 12, 16)

LISTS = ("heft", "cpop", "peft", "etf", "critical-path", "m-etf", "m-sct", "m-topo", "dsc")
"""List heuristics and clusterings besides edge zeroing, each with its own defaults."""

SAMPLES = 64
PORTFOLIO_GRAPHS = 12
PORTFOLIO_SECONDS = 3.0


def train() -> None:
    """Ask teachers, imitate them and learn from own episodes; then train the local steps."""
    began = time.process_time()
    problems, teachers = [], []
    for i, source in enumerate(TRAINING):
        for j, ratio in enumerate(RATIOS):
            k = DEVICES[(i + j) % len(DEVICES)]
            problem = po.load(f"{source}&ccr={ratio}&seed={10 * i + j}", cluster=f"uniform:{k}")
            teacher = make_solver("portfolio").solve(problem, po.Budget(seconds=1.0), seed=0)
            problems.append(problem)
            teachers.append(teacher.solution)
    print(f"teachers: {time.process_time() - began:.0f} s of the processor", flush=True)
    first = DualPolicyModel.heuristic("critical-path").with_hidden(8, np.random.default_rng(0))
    model = train_policy(problems, seed=0, model=first, steps=120, batch=16, learning_rate=0.15, teachers=teachers)
    model.save(PRETRAINED["episodes"])
    print(f"episodes: {time.process_time() - began:.0f} s", flush=True)
    first = DualPolicyModel.heuristic("rewriting").with_hidden(8, np.random.default_rng(0))
    model = train_rewriting(problems, seed=0, model=first, steps=150, batch=16, learning_rate=0.05)
    model.save(PRETRAINED["rewriting"])
    print(f"local steps: {time.process_time() - began:.0f} s", flush=True)


def unseen(count: int) -> list[po.PlacementProblem]:
    """Return problems of families, sizes and device counts that were not trained on."""
    rng = np.random.default_rng(7)
    problems = []
    for i in range(count):
        source = UNSEEN[i % len(UNSEEN)]
        ratio, k = round(float(rng.uniform(0.3, 4.0)), 2), int(rng.choice(UNSEEN_DEVICES))
        join = "&" if "?" in source else "?"
        problems.append(po.load(f"{source}{join}ccr={ratio}&seed={1000 + i}", cluster=f"uniform:{k}"))
    return problems


def apply(count: int) -> list[Row]:
    """Compare the pretrained policy with the heuristics, and with its own untrained start, on unseen graphs."""
    models = {"untrained": DualPolicyModel.heuristic("critical-path"), "pretrained": DualPolicyModel.load(PRETRAINED["episodes"])}
    rows = []
    for problem in unseen(count):
        row: Row = {"graph": problem.name, "ops": problem.num_ops, "devices": problem.num_devices}
        values = {name: make_solver(name).solve(problem, po.Budget(evaluations=10_000), seed=0) for name in LISTS}
        row["best_list"] = min(int(run.value) for run in values.values())
        zeroed = make_solver("edge-zeroing").solve(problem, po.Budget(evaluations=10_000), seed=0)
        row["edge_zeroing"] = int(zeroed.value)
        row["best_heuristic"] = min(row["best_list"], row["edge_zeroing"])
        row["bound"] = int(po.bound(problem, seconds=0.5).value)
        for name, model in models.items():
            row[f"{name}_greedy"] = apply_policy(problem, model).value
            started = time.process_time()
            row[f"{name}_64"] = apply_policy(problem, model, samples=SAMPLES - 1).value
            row[f"{name}_64_ms"] = round(1000 * (time.process_time() - started), 1)
        seed = min((*values.values(), zeroed), key=lambda run: run.value)
        for name, start in (("untrained", "heuristic"), ("pretrained", "pretrained")):
            solver = make_solver("dual-policy", teacher="", rewriting=start, imitation=0, local=1.0, heat=0.001)
            started = time.process_time()
            run = solver.solve(problem, po.Budget(evaluations=SAMPLES), seed=0, initial=seed.solution)
            row[f"{name}_64_steps"] = int(run.value)
            row[f"{name}_64_steps_ms"] = round(1000 * (time.process_time() - started), 1)
        if len(rows) < PORTFOLIO_GRAPHS:
            row["portfolio"] = int(make_solver("portfolio").solve(problem, po.Budget(seconds=PORTFOLIO_SECONDS), seed=0).value)
        rows.append(row)
        print(row, flush=True)
    return rows


def page(rows: list[Row]) -> str:
    """Say what the rows show."""
    def mean(key: str, over: str, some: list[Row] = rows) -> float:
        return float(np.mean([row[key] / row[over] for row in some]))

    def better(key: str) -> str:
        return f"{np.mean([row[key] < row['best_heuristic'] for row in rows]):.0%}"

    keys = ["untrained_greedy", "pretrained_greedy", "untrained_64", "pretrained_64", "untrained_64_steps", "pretrained_64_steps"]
    table = [[key, mean(key, "best_heuristic"), mean(key, "bound"), better(key)] for key in keys]
    heuristics = ("best_list", "edge_zeroing", "best_heuristic")
    table += [[key, mean(key, "best_heuristic"), mean(key, "bound"), "-"] for key in heuristics]
    known = [row for row in rows if row.get("portfolio")]
    times = [f"{key} {np.median([row[key] for row in rows]):.0f} ms" for key in rows[0] if key.endswith("_ms")]
    families, trained = (
        ", ".join(dict.fromkeys(source.removeprefix("gen:").split("?")[0] for source in some)) for some in (UNSEEN, TRAINING)
    )
    lines = [
        "# The pretrained policy on graphs it has not seen", "",
        f"{len(rows)} graphs of the families {families} on {', '.join(map(str, UNSEEN_DEVICES))} devices, "
        f"{int(np.mean([row['ops'] for row in rows]))} ops on average; trained on {trained} with "
        f"{', '.join(map(str, DEVICES))} devices. "
        "`greedy`: one episode without any seed. `64`: the best of 64. `64_steps`: 64 evaluations of local steps from the best "
        "heuristic's placement, so never above it. `untrained` is the same with the heuristic policies.", "",
        *markdown_table(["method", "mean / best heuristic", "mean / bound", "better than every heuristic"], table), "",
        f"Medians of processor time: {', '.join(times)}.", "",
    ]  # fmt: skip
    if known:
        lines += [
            f"Against a portfolio of {PORTFOLIO_SECONDS:g} s on the first {len(known)} graphs: pretrained, best of 64 samples "
            f"{mean('pretrained_64', 'portfolio', known):.3f}, 64 local steps "
            f"{mean('pretrained_64_steps', 'portfolio', known):.3f}, best heuristic "
            f"{mean('best_heuristic', 'portfolio', known):.3f} times its value on average.", "",
        ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    if "train" in sys.argv:
        train()
    if "apply" in sys.argv:
        sizes = [int(word) for word in sys.argv if word.isdigit()]
        found = apply(sizes[0] if sizes else 100)
        write_csv(HERE / "zero_shot.csv", found)
    written = read_csv(HERE / "zero_shot.csv", numbers=True)
    if written:
        write_text(HERE / "zero_shot.md", page(written))
