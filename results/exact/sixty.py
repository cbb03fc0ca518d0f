"""The gap of `solve` in 20 s, beside what an earlier version proves by `solve` and `bound` with 60
s each.

    git worktree add --detach EARLIER 2f0eb8a
    python results/exact/sixty.py                          # this version, each instance in a
                                                           process of its own
    python results/exact/sixty.py before --tree EARLIER    # its `solve` and its `bound`, one after
                                                           the other

Instances are those of results/exact, results/benchmark and results/scaling, without the 139
published optima (all proved, stage `optima` of study.py), and Llama graphs: Doppler's, and sharded
for eight devices. A row that is there is skipped (`--help` says what else); `before` skips what
this version ended within 0.01 % of its bound. Both write sixty.csv, whose `commit` is that of this
version's side; `limit` are the seconds that it had. What the clock ended, further from its bound
than that, differs from run to run: it is run with three seeds, and `after values` and `after
bounds` have one number per seed. It is no grid: the earlier version runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = HERE / "sixty.csv"
CLOSED = 0.01
"""Gap in per cent below which neither the earlier version nor a further seed is run."""

MEASURED = "value", "bound", "method", "seconds"
HEADS = (
    "instance",
    *(f"{side} {key}" for side in ("before", "after") for key in MEASURED),
    "before bound alone",
    "before seconds alone",
    "limit",
    "after values",
    "after bounds",
)
FURTHER = 1, 2
"""Seeds beside 0 of what the clock ended."""


Row = dict[str, Any]
Source = tuple[Any, ...]
"""Kind of an instance ("doppler", "random", "llama", "generated", "split", "latency") and what
names it."""

LATENCIES = (
    "layer_bert24_inference",
    "layer_gnmt_inference",
    "layer_resnet50_inference",
    "operator_bert_l-3_inference",
    "operator_bert_l-6_inference",
    "operator_resnet50_inference",
)


def instances() -> dict[str, Source]:
    """Return what to load by the name of its row."""
    from study import PERIOD

    from placeopt.experiments.study import expand_instances, load_study

    found: dict[str, Source] = {}
    for contention in ("none", "pair"):
        for devices in (4, 8):
            for name in ("chain_mm", "ffnn", "llama_block"):
                found[f"{name}, {devices} devices, {contention}"] = (
                    "doppler",
                    name,
                    devices,
                    contention,
                )
    for name, devices in (("llama_layer", 4), ("llama_layer", 8), ("llama_block_8gpu", 8)):
        found[f"{name}, {devices} devices, none"] = ("doppler", name, devices, "none")
    for devices in (4, 8):
        for costs in ("own", "doppler"):
            found[f"llama-layer, {devices} devices, {costs} costs"] = (
                "llama",
                "gen:llama-layer",
                devices,
                costs,
            )
    for name in ("block", "layer"):
        for costs in ("own", "doppler"):
            found[f"llama-{name} in 8 shards, 8 devices, {costs} costs"] = (
                "llama",
                f"gen:llama-{name}?shards=8",
                8,
                costs,
            )
    for seed in range(5):
        found[f"layered-60-{seed}, 4 devices"] = ("random", seed)
    for folder in ("benchmark", "scaling"):
        study = load_study(HERE.parent / folder / "study.toml")
        for source in expand_instances(study.instances):
            for cluster in study.clusters:
                found[f"{source} on {cluster}"] = ("generated", source, cluster)
    for name in PERIOD:
        for contiguity in ("chain", "none"):
            found[f"period of {name}, contiguity {contiguity}"] = ("split", name, contiguity)
    for name in LATENCIES:
        for slots in (1, 2):
            found[f"latency of {name}, {slots} slots"] = ("latency", name, slots)
    for seed in (1, 2, 3):
        source = f"gen:layered?layers=400&width=256&seed={seed}"
        found[f"{source} on uniform:64"] = ("generated", source, "uniform:64")
    return found


# --- in the process of one row: only names that both versions have
# ---------------------------------------


def load(source: Source) -> Any:
    """Return the problem of an instance, read by the version that PYTHONPATH names."""
    import numpy as np
    from exact_instances import doppler, random_layered

    import placeopt as po

    data = Path(os.environ["PLACEOPT_DATA"])
    kind, *names = source
    if kind == "doppler":
        return doppler(data, *names)
    if kind == "random":
        return random_layered(60, 4, *names)
    if kind == "generated":
        return po.load(names[0], cluster=names[1])
    if kind == "llama":
        own = po.load(names[0], cluster=f"uniform:{names[1]}")
        ticks = np.repeat(4 * own.min_compute[own.producer][:, None], own.transfer.shape[1], axis=1)
        return own if names[2] == "own" else own.replace(transfer=ticks)
    files = data / "dnn-partitioning"
    if kind == "split":
        return po.load(
            files / "throughput" / f"{names[0]}.json", objective="period", contiguity=names[1]
        )
    return po.load(files / "latency" / f"{names[0]}.json", objective="latency", slots=names[1])


def warm_up(problem: Any, seconds: float) -> None:
    """Compile and load what a small problem of the same objective needs."""
    import placeopt as po

    name = "layer_bert24_inference"
    small = {
        "makespan": ("random", 0),
        "period": ("split", name, "none"),
        "latency": ("latency", name, 1),
    }
    problem = load(small[problem.objective])
    po.solve(problem, seconds=seconds)
    bound(problem, seconds / 2)


def bound(problem: Any, seconds: float) -> int:
    """Return what `bound` proves; its home has moved since."""
    import placeopt as po

    if hasattr(po, "bound"):
        return int(po.bound(problem, seconds=seconds).value)
    from placeopt.bounds import bound as prove

    return int(prove(problem, seconds=seconds).value)


def one(source: Source, seconds: float, side: str, seed: int) -> None:
    """Print value, bound and times of one instance; of the earlier version those of `bound` too."""
    import placeopt as po

    problem = load(source)
    warm_up(problem, 6 if side == "before" else 1)  # of the earlier version the clock compiles
    began = time.perf_counter()
    result = po.solve(problem, seconds=seconds, seed=seed)
    row: Row = {
        "value": result.objective,
        "bound": result.lower_bound,
        "method": result.bound_method,
        "seconds": round(time.perf_counter() - began, 2),
    }
    if side == "before" and result.objective != result.lower_bound:
        began = time.perf_counter()
        row["bound alone"] = bound(problem, seconds)
        row["seconds alone"] = round(time.perf_counter() - began, 2)
    print(json.dumps(row))


# --- rows
# ------------------------------------------------------------------------------------------------


def in_own_process(source: Source, given: argparse.Namespace, seed: int = 0) -> Row:
    """Run one instance with the version in the tree."""
    tree = given.tree.resolve()
    words = [json.dumps(source), str(given.seconds), given.side, str(seed)]
    answer = subprocess.run(
        [sys.executable, __file__, "one", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), str(tree / "tests")])},
        cwd=tree,
    )
    if answer.returncode:
        raise SystemExit(f"{source}: {answer.stderr.strip()}")
    row: Row = json.loads(answer.stdout.splitlines()[-1])
    return row


def gap(row: Row, side: str) -> float | None:
    """Return the gap in per cent that a row shows for "before" (by the better bound) or "after";
    None where not measured.
    """
    value, proved = row.get(f"{side} value"), row.get(f"{side} bound")
    if value in (None, ""):
        return None
    alone = row.get(f"{side} bound alone") or 0
    return 100 * (1 - max(float(proved), float(alone)) / float(value))


def is_kept(row: Row, given: argparse.Namespace) -> bool:
    """Return whether a side of a row is not measured."""
    from placeopt.experiments.runner import stays

    there = row.get(f"{given.side} seconds") not in (None, "")
    if given.side == "after":
        return there and stays(row, given.again)
    narrow = gap(row, "after")
    return (there and not given.again) or (narrow is not None and narrow < CLOSED)


def lacks_seeds(row: Row) -> bool:
    """Return whether the clock ended a row of this version, which no further seed has."""
    wide = gap(row, "after")
    clocked = float(row["after seconds"] or 0) >= float(row["limit"] or math.inf)
    return clocked and wide is not None and wide >= CLOSED and not row["after values"]


def by_seeds(row: Row, source: Source, given: argparse.Namespace) -> Row:
    """Return the values and bounds of a row and of the further seeds, in a line each."""
    runs = [in_own_process(source, given, seed) for seed in FURTHER]
    return {
        f"after {key}s": " ".join(
            str(x) for x in (row[f"after {key}"], *(run[key] for run in runs))
        )
        for key in ("value", "bound")
    }


def measure(given: argparse.Namespace) -> None:
    """Measure the rows of one side that are missing, rewriting the table after each."""
    from placeopt.experiments.runner import stays
    from placeopt.experiments.studies import read_csv, write_csv

    empty = dict.fromkeys(HEADS, "")
    rows: dict[str, Row] = {row["instance"]: empty | row for row in read_csv(TABLE)}
    for name, source in instances().items():
        row = rows.get(name, empty | {"instance": name, "commit": ""})
        kept = is_kept(row, given)
        further = given.side == "after" and lacks_seeds(row) and stays(row, "changed")
        if given.only not in name or (kept and not further):
            continue
        if time.monotonic() > given.end:
            print(f"stopped before {name}; run it again to continue")
            return
        if not kept:
            found = in_own_process(source, given)
            row |= {f"{given.side} {key}": x for key, x in found.items()}
        if given.side == "after":
            if not kept:
                row |= {"limit": given.seconds, "after values": "", "after bounds": ""}
            if lacks_seeds(row):
                row |= by_seeds(row, source, given)
            del row["commit"]
        rows[name] = row
        write_csv(TABLE, [rows[n] for n in instances() if n in rows])
        print({key: x for key, x in row.items() if x not in ("", None)}, flush=True)


def main() -> None:
    """Measure one side."""
    if sys.argv[1:2] == ["one"]:
        source, seconds, side, seed = sys.argv[2:]
        one(tuple(json.loads(source)), float(seconds), side, int(seed))
        return
    from placeopt.experiments.studies import data_folder, row_options

    os.environ["PLACEOPT_DATA"] = str(data_folder())
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("side", nargs="?", choices=("before", "after"), default="after")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the version to measure")
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of each search")
    measure(row_options(__doc__, (), parser))


if __name__ == "__main__":
    main()
