"""The engine against every single tactic, and against an older version.

Run `python results/engine/study.py STAGE... [--apart] [--only NAMES] [--part P] [--minutes M]
[--one-core]` with stages of

problems    write the problems to FOLDER (by default 120 problems in 30 families)
run         the engine and every tactic alone, through `placeopt bench`
old PATH    the same problems by the default solvers of an older checkout
without     the engine twice, with two seeds, and without one tactic after the other
table       regret.csv (a line per problem), tactics.csv (what each is worth alone), pairs.csv and
            without.csv (what each is worth among the others)

A problem is run whole, the engine and all its tactics, before the next one begins; the first
problem of every family comes before the second of any, and objectives alternate, so that whatever
time there was gives a table over many families. Every stage goes on where it was ended: a run that
has a result of this state of the package is not repeated. `--apart` takes only the families set apart, `--part` that part of the
time of each run (the table is of the runs of that part), and no problem begins after `--minutes`.
`--only` runs some problems alone. `--one-core` takes all other cores away from this process; its
tables, and those with all the time, have names of their own; those of the families set apart with
all the time are in `results/regret`.
FOLDER is results/engine/runs, which is not kept.

Regret of a run: its gap minus that of the best single tactic with the same time, in points. The
engine is better or worse where they differ by more than a hundredth of a point. Two thirds of the
families may be looked at while something is chosen; the others (APART) only at the end. Parameters
are drawn at random, from the family's name alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zlib
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

import placeopt as po
from placeopt.experiments.runner import run_study
from placeopt.experiments.store import latest, read_rows
from placeopt.experiments.studies import ORIGIN, write_csv
from placeopt.experiments.study import Study
from placeopt.instances.sources import load_graph
from placeopt.io.serialize import save
from placeopt.solvers.exact.latency_tactics import TACTICS as LATENCY
from placeopt.solvers.exact.period_tactics import TACTICS as PERIODIC
from placeopt.solvers.portfolio_tactics import NAMES

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "runs"
PER_FAMILY = 4
SECONDS = {"makespan": 15.0, "latency": 60.0, "period": 60.0}
DEFAULT = {"makespan": "portfolio", "latency": "cp-sat", "period": "cp-sat"}
CLUSTERS = ("2xA100", "4xV100", "8xA100", "2xA100+2xV100", "4xP100?contention=pair", "uniform:6")

AGAIN = "engine again"
"""Label of the engine with another seed: by how much runs differ that do the same."""

ROUNDED = 0.01
"""Points of the gap that count as none."""

MAKESPAN = {
    "llama-layer": "gen:llama-layer?shards={4,9,16}&heads=48&hidden={1536,3072,6144}&ffn={6912,8640}",
    "llama-block": "gen:llama-block?shards={4,9}&heads=48&hidden={1536,3072}&layers={1,2}",
    "nasnet": "gen:nasnet-cell?cells={2,3,4}&filters={24,40,48}",
    "inception": "gen:inception-v3?batch={2,8,32}",
    "densenet": "gen:densenet121?batch={2,8,16}&growth={16,24}",
    "bert": "gen:bert?layers={2,3}&hidden={256,512}&heads={4,8}",
    "nmt": "gen:nmt?source={6,9,12}&target={5,8,11}",
    "fork-join": "gen:fork-join?stages={4,7,9}&branches={5,6,11}&ccr={1,2}&seed={1,2,3}",
    "layered": "gen:layered?layers={8,12,15}&width={6,9,14}&ccr={0.3,2}&seed={1,2,3}",
    "cholesky": "gen:cholesky?tiles={5,7,8}",
    "in-tree": "gen:in-tree?depth={5,6}&ccr={1,3}&seed={1,2,3}",
    "montage": "",
    "genome": "",
    "stencil": "gen:stencil?rows={3,5}&columns={4,6}&steps={4,7}&ccr={0.3,2}&seed={1,2,3}",
    "series-parallel": "gen:series-parallel?ops={70,130,190}&ccr={0.2,1.5}&seed={1,2,3}",
    "lu": "gen:lu?tiles={5,6,7}&ccr={0.2,2}&seed={1,2,3}",
    "pipedream": "{squeezenet1_0,resnet18,inception_v3,gnmt}",
    "squeezenet": "gen:squeezenet?batch={1,4,16}&image={128,224}",
}
"""Family -> source; {a,b} are the values that are drawn from."""

LAYERS = {
    "latency-inception": "gen:inception-v3",
    "latency-densenet": "gen:densenet121",
    "latency-resnet": "gen:resnet{50,101}",
    "latency-nasnet": "gen:nasnet-cell?cells={4,6,8}",
    "latency-bert": "gen:bert?layers={6,12}",
    "latency-mt5": "gen:mt5?layers={4,6}",
    "latency-flava": "gen:flava?image_layers={4,6}&text_layers={4,6}&layers=3",
}
"""Families of layer graphs on 14 to 24 accelerators and a pool of CPUs."""

PERIOD = {
    "period-inception": "gen:inception-v3?batch={2,8}",
    "period-bert": "gen:bert?layers={4,6}&hidden={256,512}&heads={4,8}",
    "period-layered": "gen:layered?layers={8,12}&width={6,9}&seed={4,5,6}",
    "period-moe": "gen:moe?layers={1,2}&experts={4,8}",
    "period-pipedream": "{resnet50,inception_v3,gnmt,resnet18}",
}

APART = (
    "stencil",
    "series-parallel",
    "lu",
    "pipedream",
    "squeezenet",
    "latency-mt5",
    "latency-flava",
    "period-moe",
    "period-pipedream",
)
"""Families that are not looked at while something is chosen."""


def drawn(text: str, rng: np.random.Generator) -> str:
    """Return a source with one of the values in each pair of braces."""
    while "{" in text:
        first, _, rest = text.partition("{")
        values, _, last = rest.partition("}")
        text = first + str(rng.choice(values.split(","))) + last
    return text


def problems() -> dict[str, Any]:
    """Return the problems by name, FAMILY-NUMBER."""
    found = {}
    for family in (*MAKESPAN, *LAYERS, *PERIOD):
        rng = np.random.default_rng(zlib.crc32(family.encode()))
        for number in range(PER_FAMILY):
            found[f"{family}-{number}"] = problem_of(family, rng)
    return found


def problem_of(family: str, rng: np.random.Generator) -> Any:
    """Draw a problem of a family (of a given profile for "pipedream")."""
    if family == "montage":
        return montage(int(rng.integers(12, 45)), int(rng.choice([4, 8])), rng)
    if family == "genome":
        return genome(
            int(rng.integers(2, 8)), int(rng.integers(6, 16)), int(rng.choice([4, 8])), rng
        )
    if family in LAYERS:
        return layers(drawn(LAYERS[family], rng), int(rng.integers(14, 25)), rng)
    cluster = str(rng.choice(CLUSTERS))
    source = drawn({**MAKESPAN, **PERIOD}[family], rng)
    if family.endswith("pipedream"):
        source = str(Path(os.environ["PLACEOPT_DATA"]) / "pipedream" / f"{source}.txt")
    if family in PERIOD:
        cluster = cluster.partition("?")[0]
        contiguity = str(rng.choice(["convex", "none"]))
        return po.load(source, cluster, objective="period", contiguity=contiguity)
    return po.load(source, cluster)


def montage(images: int, devices: int, rng: np.random.Generator) -> Any:
    """A workflow shaped as Montage: project, compare neighbours, fit, correct all, add up."""
    ticks: list[int] = []
    edges: list[tuple[int, int, int]] = []

    def op(mean: float) -> int:
        ticks.append(int(1000 * rng.lognormal(mean, 0.4)))
        return len(ticks) - 1

    def join(u: int, v: int, mean: float) -> None:
        edges.append((u, v, int(1000 * rng.lognormal(mean, 0.5))))

    images_at = [op(2.5) for _ in range(images)]
    fit = op(2.0)
    for i in range(images):
        for j in range(i + 1, min(images, i + 3)):
            compare = op(1.5)
            join(images_at[i], compare, 1.0)
            join(images_at[j], compare, 1.0)
            join(compare, fit, 0.0)
    model, table = op(2.5), op(1.0)
    join(fit, model, 0.0)
    for image in images_at:
        correct = op(1.8)
        join(image, correct, 1.0)
        join(model, correct, 0.0)
        join(correct, table, 1.0)
    add = op(3.0)
    join(table, add, 1.0)
    return _workflow("montage", ticks, edges, devices)


def genome(chromosomes: int, width: int, devices: int, rng: np.random.Generator) -> Any:
    """A workflow shaped as 1000-genome: per chromosome many readers, a merge, and analyses."""
    ticks: list[int] = []
    edges: list[tuple[int, int, int]] = []

    def op(mean: float) -> int:
        ticks.append(int(1000 * rng.lognormal(mean, 0.4)))
        return len(ticks) - 1

    for _ in range(chromosomes):
        merge, sift = op(2.5), op(1.0)
        for _ in range(width):
            edges.append((op(3.0), merge, int(1000 * rng.lognormal(1.5, 0.5))))
        for _ in range(10):
            analysis = op(2.3)
            edges.append((merge, analysis, int(1000 * rng.lognormal(1.5, 0.5))))
            edges.append((sift, analysis, int(1000 * rng.lognormal(0.0, 0.5))))
    return _workflow("genome", ticks, edges, devices)


def _workflow(name: str, ticks: list[int], edges: list[tuple[int, int, int]], devices: int) -> Any:
    return po.PlacementProblem.from_edges([[t] * devices for t in ticks], edges, name=name)


def layers(source: str, accelerators: int, rng: np.random.Generator) -> Any:
    """The latency of a layer graph in the form of the published ones: CPUs ten times slower,
    transfers through the host dear, memory that about two thirds of the accelerators would hold.
    """
    graph, _ = load_graph(source)
    n = graph.num_ops
    work = np.asarray(graph.flops, float) + 3.0 * np.asarray(graph.bytes_moved, float)
    ticks = np.maximum(1, 2e8 * work / work.sum()).astype(np.int64)
    sent = np.zeros(n)
    np.add.at(sent, graph.producer, np.asarray(graph.tensor_bytes, float))
    transfer = np.asarray(graph.tensor_bytes, float)
    scale = rng.uniform(5.0, 50.0) * 2e8 / sent[graph.producer[graph.edge_tensor]].sum()
    resident = (np.asarray(graph.resident, float) + 2.0 * sent).astype(np.int64)
    room = int(max(resident.max(), resident.sum() / accelerators / rng.uniform(0.4, 0.8)))
    k = accelerators + 1
    return po.PlacementProblem(
        name=source.removeprefix("gen:"),
        compute=np.repeat(ticks[:, None], k, axis=1) * np.where(np.arange(k) < k - 1, 1, 10),
        producer=np.asarray(graph.producer, np.int64),
        consumer_ptr=np.asarray(graph.consumer_ptr, np.int64),
        consumer=np.asarray(graph.consumer, np.int64),
        transfer=(scale * transfer).astype(np.int64)[:, None],
        io_class=np.array([0] * accelerators + [-1]),
        resident=resident,
        capacity=np.array([room] * accelerators + [int(resident.sum())]),
        objective="latency",
    )


def files(apart: bool) -> list[tuple[str, Path]]:
    """Write the problems that are not there yet; return (objective, file) in the order of runs."""
    found: dict[tuple[str, str], list[tuple[str, Path]]] = {}
    for name, problem in problems().items():
        family, _, number = name.rpartition("-")
        path = FOLDER / "problems" / f"{name}.json"
        if not path.exists():
            save(problem, path)
        if family in APART or not apart:
            found.setdefault((number, problem.objective), []).append((problem.objective, path))
    rounds = [
        zip_longest(*(some for (at, _), some in found.items() if at == number))
        for number in sorted({number for number, _ in found})
    ]
    return [one for turns in rounds for turn in turns for one in turn if one is not None]


def tactics(objective: str) -> list[str]:
    """Names of the tactics of an objective."""
    table = {"makespan": NAMES, "latency": LATENCY, "period": PERIODIC}[objective]
    names = [tactic if isinstance(tactic, str) else tactic.name for tactic in table]
    return [name for name in names if name != "starts"]


def study(objective: str, path: Path, part: float, runs: str = "") -> dict[str, Any]:
    """The definition of the runs of one problem: of the engine, of every tactic `alone`, or of the
    engine `without` each.
    """
    solvers: list[dict[str, Any]] = [{"name": DEFAULT[objective], "label": "engine"}]
    first = [] if objective == "makespan" else ["starts"]  # an incumbent to begin with
    names = tactics(objective)
    kept = {name: [name] for name in names}
    if runs == "without":
        solvers += [{"name": DEFAULT[objective], "label": AGAIN, "seeds": [1]}]
        kept = {f"without {name}": [other for other in names if other != name] for name in names}
    if runs:
        solvers += [
            {
                "name": DEFAULT[objective],
                "label": label,
                "options": {"tactics": ",".join(first + some)},
            }
            for label, some in kept.items()
        ]
    return {
        "name": name_of(objective, part),
        "instances": [str(path)],
        "objectives": [objective],
        "seconds": part * SECONDS[objective],
        "solvers": solvers,
    }


def name_of(objective: str, part: float) -> str:
    """Folder of the runs of an objective with a part of the time."""
    return f"engine-{objective}-{part * SECONDS[objective]:g}s"


def run(options: argparse.Namespace, runs: str) -> None:
    """Run the engine and every tactic alone, or the engine without each; one at a time, on two
    cores.
    """
    started = time.monotonic()
    for objective, path in files(options.apart):
        if options.only and path.stem not in options.only:
            continue
        if time.monotonic() - started > 60.0 * options.minutes:
            break
        definition = Study.model_validate(study(objective, path, options.part, runs))
        summary = run_study(
            definition,
            FOLDER / options.folder,
            jobs=1,
            backend="threading",
            allow_oversubscription=True,
            again="changed",
        )
        print(path.stem, summary.done, "runs,", summary.failed, "failed", *summary.errors[:3])


RUN_OLD = """
import json, sys
from placeopt.experiments.runner import run_study
from placeopt.experiments.study import Study
study = Study.model_validate(json.load(open(sys.argv[1])))
run_study(study, sys.argv[2], jobs=1, backend="threading", allow_oversubscription=True)
"""
"""What an older checkout runs."""


def run_old(options: argparse.Namespace) -> None:
    """Run the default solvers of another checkout on the problems that the engine has run."""
    done = {
        (objective, problem)
        for objective in SECONDS
        for problem, _ in rows("new", objective, options.part)
    }
    started = time.monotonic()
    for objective, path in files(options.apart):
        if time.monotonic() - started > 60.0 * options.minutes:
            break
        if (objective, path.stem) in done:
            definition = FOLDER / "old.json"
            definition.write_text(json.dumps(study(objective, path, options.part)))
            subprocess.run(
                [sys.executable, "-c", RUN_OLD, str(definition), str(FOLDER / "old")],
                cwd=options.old,
                env={**os.environ, "PYTHONPATH": str(options.old)},
                check=True,
            )


def rows(folder: str, objective: str, part: float) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows of the runs by problem and label."""
    path = FOLDER / folder / name_of(objective, part) / "runs.jsonl"
    found = latest(read_rows(path)).values() if path.exists() else ()
    return {(Path(row["instance"]).stem, row["label"]): row for row in found}


def gap(row: dict[str, Any]) -> float:
    """Gap of a run in points; of one without a placement, all."""
    if row.get("value") is None:
        return 100.0
    return 100.0 * (row["value"] - row["lower_bound"]) / max(1, row["value"])


def table(part: float, folder: str, home: Path) -> None:
    """Write the tables over the problems whose runs are all there, and print their means."""
    regret, alone, pairs, without = [], [], [], []
    for objective in SECONDS:
        new = rows(folder, objective, part)
        old = rows("old", objective, part) if folder == "new" else {}
        names = {"engine", *tactics(objective)}
        for name in dict.fromkeys(problem for problem, _ in new):
            family = name.rpartition("-")[0]
            mine = {label: gap(row) for (at, label), row in new.items() if at == name}
            if "engine" not in mine:
                continue
            engine, now = mine.pop("engine"), new[name, "engine"]
            head = {"problem": name, "objective": objective, "apart": int(family in APART)}
            head |= {key: now[key] for key in ORIGIN}  # when it was run, not when this is written
            less = {label: mine.pop(label) for label in list(mine) if label not in names}
            without += [
                {**head, "runs": label, **rounded({"engine_gap": engine, "gap": value})}
                for label, value in less.items()
            ]
            if not names <= {"engine", *mine}:
                continue
            best = min(mine, key=lambda label: mine[label])
            numbers = {"engine_gap": engine, "best_gap": mine[best], "regret": engine - mine[best]}
            regret.append({**head, "best_tactic": best, **rounded(numbers)})
            alone += [
                {**head, "tactic": label, **rounded({"gap": value})}
                for label, value in mine.items()
            ]
            if (name, "engine") in old:
                then = old[name, "engine"]
                numbers = {
                    "old_gap": gap(then),
                    "new_gap": engine,
                    "value_ratio": (now["value"] or 0) / (then["value"] or 1),
                    "bound_ratio": now["lower_bound"] / max(1, then["lower_bound"]),
                }
                pairs.append({**head, **rounded(numbers)})
    end = ("" if folder == "new" else f"-{folder}") + ("-whole" if part == 1.0 else "")
    for stem, lines in (
        ("regret", regret),
        ("tactics", alone),
        ("pairs", pairs),
        ("without", without),
    ):
        if lines:
            write_csv(home / f"{stem}{end}.csv", lines)
    for apart in (1, 0):
        for objective in ("", *SECONDS):
            some = [
                line["regret"]
                for line in regret
                if line["apart"] == apart and objective in ("", line["objective"])
            ]
            describe(f"{'apart' if apart else 'chosen on'}, {objective or 'all'}", some)
    for label in dict.fromkeys((line["objective"], line["runs"]) for line in without):
        more = [
            line["gap"] - line["engine_gap"]
            for line in without
            if (line["objective"], line["runs"]) == label
        ]
        print(*label, f"{len(more)} problems, {np.mean(more):+.3f} points, most {max(more):.3f}")
    for line in pairs:
        print(line)


def rounded(numbers: dict[str, float]) -> dict[str, float]:
    """Return the numbers as the tables have them."""
    return {name: round(number, 5) for name, number in numbers.items()}


def describe(what: str, regret: list[float]) -> None:
    """Print what the regrets of some problems are."""
    if regret:
        better, worse = sum(x < -ROUNDED for x in regret), sum(x > ROUNDED for x in regret)
        print(
            f"{what}: {len(regret)} problems, regret mean {np.mean(regret):.3f}, most "
            f"{max(regret):.3f} points; better than the best single tactic on {better} "
            f"({better / len(regret):.0%}), equal on {len(regret) - better - worse}, worse on {worse}"
        )


def main(words: list[str]) -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description="The engine against its tactics.")
    parser.add_argument("stages", nargs="+", metavar="STAGE")
    parser.add_argument("--apart", action="store_true", help="only families set apart")
    parser.add_argument("--part", type=float, default=1.0, help="part of the time of each run")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing later")
    parser.add_argument("--only", type=lambda text: text.split(","), help="problems, by commas")
    parser.add_argument("--one-core", action="store_true", help="leave this process one core")
    options = parser.parse_args(words)
    stages = options.stages
    options.folder = "one-core" if options.one_core else "new"
    if options.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if "problems" in stages:
        print(len(files(options.apart)), "problems")
    if "run" in stages:
        run(options, "alone")
    if "without" in stages:
        run(options, "without")
    if "old" in stages:
        options.old = Path(stages[stages.index("old") + 1]).resolve()
        run_old(options)
    if "table" in stages:
        whole = options.apart and options.part == 1.0
        table(options.part, options.folder, HERE.parent / "regret" if whole else HERE)


if __name__ == "__main__":
    main(sys.argv[1:])
