"""Exact methods against published optima and against instances nobody has solved: one command, one
table per stage.

    PLACEOPT_DATA=../shared/data python results/exact/study.py [STAGE ...] [--again] [--minutes M]

Stages: optima, doppler, doppler-seeds, wide, chain, pipeline, latency, splits, replicas, slots
(default: all). What `solve` says after a minute is in sixty.py.
A stage writes results/exact/STAGE.csv row by row and skips rows that are there (`--help` says what
else), so it may be stopped and continued. It is no grid: many problems are put together here, and
rows hold what the authors' programs and bounds say beside. `tables.md` is drawn from the CSV files after every stage. Two CP-SAT workers throughout.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placeopt as po
from placeopt.experiments.studies import (
    data_folder,
    read_csv,
    record_rows,
    row_options,
    table_of,
)
from placeopt.instances.readers.dnn_partitioning import read_split
from placeopt.model.objective import objective_of
from placeopt.model.result import Budget
from placeopt.solving.registry import make_solver
from placeopt.splits.problem import SplitProblem

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DATA = data_folder()
sys.path[:0] = [str(HERE.parent), str(ROOT / "tests")]

from exact_instances import doppler, known_optima, random_layered  # noqa: E402 - tests/ is no package
from whole_tables import peak_mb  # noqa: E402

Row = dict[str, Any]
Job = tuple[str, Callable[[], Row]]
"""Key of a row, and what measures it."""


# --- makespan
# --------------------------------------------------------------------------------------------


def optima() -> Iterator[Job]:
    """All 139 published optimal makespans, 60 s each at most."""
    for problem, optimum in known_optima(DATA):
        yield problem.name, lambda p=problem, o=optimum: {**solve(p, 60), "published": o}


def doppler_graphs() -> Iterator[Job]:
    """Doppler's sharded graphs on 4 and 8 identical devices, 30 s each; ticks * 1e-10."""
    for contention in ("none", "pair"):
        for devices in (4, 8):
            for name in ("chain_mm", "ffnn", "llama_block"):
                problem = doppler(DATA, name, devices, contention)
                load = f"{name} {devices} devices {contention}"
                yield load, lambda p=problem: solve(p, 30, unit=1e-10)


def doppler_seeds() -> Iterator[Job]:
    """Doppler's graphs on 4 devices by the default solver, ten other seeds each, 20 s each at most;
    ticks * 1e-10.
    """
    for name in ("chain_mm", "ffnn", "llama_block"):
        problem = doppler(DATA, name, 4, "none")
        for seed in range(1, 11):
            yield f"{name} seed {seed}", lambda p=problem, s=seed: by_default(p, s, 20, unit=1e-10)


def by_default(problem: PlacementProblem, seed: int, seconds: float, unit: float) -> Row:
    """Solve as `placeopt solve` does and return the row of the table."""
    warm_up(problem.objective)
    return record(po.solve(problem, seconds=seconds, seed=seed), unit)


def wide() -> Iterator[Job]:
    """Layered graphs of 400 layers, 256 wide, on 64 devices: the bound in 10 s at most, and list
    heuristics; CPU seconds.
    """
    for seed in (1, 2, 3):
        source = f"gen:layered?layers=400&width=256&seed={seed}"
        yield source, lambda s=source: wide_row(po.load(s, "uniform:64"))


def wide_row(problem: PlacementProblem) -> Row:
    """Return the bound of a large graph and how far above it heuristics end, each with its CPU
    seconds.
    """
    warm_up(problem.objective)
    began = time.process_time()
    proved = po.bound(problem, seconds=10)
    row: Row = {
        "ops": problem.num_ops,
        "edges": problem.num_edges,
        "bound": proved.value,
        "method": proved.method,
        "bound seconds": round(time.process_time() - began, 2),
    }
    for name in ("etf", "m-etf", "heft", "peft", "cpop"):
        began = time.process_time()
        found = po.solve(problem, name, seconds=120)
        row |= {
            name: found.value,
            f"{name} gap_percent": round(100 * (found.value / proved.value - 1), 4),
            f"{name} seconds": round(time.process_time() - began, 2),
        }
    return row


def solve(problem: PlacementProblem, seconds: float, unit: float = 1.0, **options: Any) -> Row:
    """Solve with cp-sat and return the row of the table."""
    warm_up(problem.objective)
    result = make_solver("cp-sat", **options).solve(problem, Budget(seconds=seconds), seed=0)
    return record(result, unit)


def record(result: Result[Any], unit: float) -> Row:
    """Return value, bound, gap and time of a result, values in `unit`s."""
    return {
        "value": None if result.objective is None else round(result.objective * unit, 6),
        "bound": round(result.lower_bound * unit, 6),
        "gap_percent": None if result.gap is None else round(100 * result.gap, 4),
        "status": result.status,
        "method": result.bound_method,
        "seconds": round(result.runtime, 2),
    }


_warm: set[str] = set()


def warm_up(objective: str) -> None:
    """Compile the kernels outside of the measured time."""
    if objective in _warm:
        return
    _warm.add(objective)
    if objective == "makespan":
        for problem in (random_layered(14, 3, 0), doppler(DATA, "chain_mm", 3, "pair")):
            make_solver("cp-sat").solve(problem, Budget(seconds=2), seed=0)
    else:
        problem = load_dnn(
            "throughput" if objective == "period" else "latency",
            "layer_bert24_inference",
            objective,
        )
        for solver in ("cp-sat", "ideal-dp") if objective == "period" else ("cp-sat",):
            make_solver(solver).solve(problem, Budget(seconds=4), seed=0)


# --- period and latency
# ----------------------------------------------------------------------------------

# file: (chain optimum of the authors' program, non-contiguous best and bound of a plain CP-SAT
# model), run here, in the
# files' unit
PERIOD = {
    "layer_bert24_inference": (17.78991, 17.7147, 17.703),
    "layer_bert24_training": (41.74581, 39.7895, 39.7895),
    "layer_gnmt_inference": (32.91066, 31.6873, 31.6873),
    "layer_resnet50_inference": (33.77467, 33.3214, 33.054),
    "layer_inceptionv3_inference": (51.55186, 51.2599, 50.989),
    "layer_inceptionv3_training": (122.76162, 117.5385, 116.658),
    "operator_bert_l-3_inference": (27.91857, 21.9084, 21.9084),
    "operator_bert_l-3_training": (65.30315, 54.2074, 54.2074),
    "operator_bert_l-12_inference": (147.47798, 135.0442, 112.950),
    "operator_resnet50_inference": (124.34885, 124.3488, 124.3488),
}

HARD = (
    "layer_resnet50_inference",
    "layer_inceptionv3_inference",
    "layer_inceptionv3_training",
    "operator_bert_l-12_inference",
)
"""Instances whose best split without contiguity a plain CP-SAT model does not prove."""

# file: (the authors' greedy, an earlier search of ours with one slot, its bound), run here
LATENCY = {
    "layer_bert24_inference": (100.219, 100.218, 100.218),
    "layer_gnmt_inference": (268.5, 225.648, 225.648),
    "layer_resnet50_inference": (4197.06, 1443.79, 187.5),
    "operator_bert_l-3_inference": (416.204, 408.475, 408.475),
    "operator_resnet50_inference": (839.536, 712.457, 289.9),
}


def load_dnn(folder: str, name: str, objective: str, **fields: Any) -> PlacementProblem:
    """Load an instance of dnn-partitioning/; a tick is 1e-6 of the file's unit."""
    return po.load(
        DATA / "dnn-partitioning" / folder / f"{name}.json", objective=objective, **fields
    )


def chain() -> Iterator[Job]:
    """Chain optima by ideal-dp, each in a process of its own: CPU seconds and peak memory beyond
    the imports.
    """
    for name, (optimum, _, _) in PERIOD.items():
        yield name, lambda n=name, o=optimum: {**in_own_process(n), "authors_program": o}


def in_own_process(name: str) -> Row:
    """Run `ideal-dp` in a fresh interpreter."""
    answer = subprocess.run(
        [sys.executable, __file__, "--one-chain", name], check=True, capture_output=True, text=True
    )
    value, status, cpu, base, peak = answer.stdout.split()[-5:]
    return {
        "value": float(value),
        "status": status,
        "cpu_seconds": float(cpu),
        "imported_mb": float(base),
        "extra_mb": float(peak),
    }


def one_chain(name: str) -> None:
    """Print value, status, CPU seconds, MB after the imports and a compiling run, and MB beyond
    that.
    """
    warm = load_dnn("throughput", "layer_bert24_inference", "period")
    make_solver("ideal-dp").solve(warm, Budget(), seed=0)
    problem = load_dnn("throughput", name, "period")
    base = peak_mb()
    begin = time.process_time()
    result = make_solver("ideal-dp").solve(problem, Budget(), seed=0)
    cpu = time.process_time() - begin
    extra = peak_mb() - base
    assert result.objective is not None
    print(f"{result.objective * 1e-6:.5f} {result.status} {cpu:.2f} {base:.0f} {extra:.1f}")


def pipeline() -> Iterator[Job]:
    """Splits without contiguity by cp-sat, with proven bounds, 60 s (300 s where a plain model
    leaves a gap).
    """
    for name, (_, best, bound) in PERIOD.items():
        problem = load_dnn("throughput", name, "period", contiguity="none")
        seconds = 300 if name in HARD else 60
        yield (
            name,
            lambda p=problem, b=best, low=bound, s=seconds: {
                **solve(p, s, 1e-6),
                "plain_cp_sat": b,
                "plain_cp_sat_bound": low,
            },
        )


def latency() -> Iterator[Job]:
    """Latency of one sample with one slot per accelerator by cp-sat, 100 s each, and that of the
    split of the least load.
    """
    for name, (greedy, best, bound) in LATENCY.items():
        problem = load_dnn("latency", name, "latency")
        yield (
            name,
            lambda p=problem, g=greedy, b=best, low=bound: {
                **solve(p, 100, 1e-6),
                "authors_greedy": g,
                "our_earlier": b,
                "our_earlier_bound": low,
                "max_load_dp": max_load(p),
            },
        )


SPLITS = ("ideal-dp", "pipedream", "metis", "split-local-search")


def splits() -> Iterator[Job]:
    """Every throughput instance: the expert's split where there is one, and the baselines; 30 s
    each, period in the file's unit.
    """
    for path in sorted((DATA / "dnn-partitioning" / "throughput").glob("*.json")):
        yield path.stem, lambda p=path: split_row(p)


def split_row(path: Path) -> Row:
    """Return the periods of the expert and of every baseline, judged under the same load."""
    problem = po.load(path, objective="period", contiguity="none")
    expert = path.parents[1] / "human-experts" / f"{path.stem.removeprefix('layer_')}_expert.json"
    row: Row = {"devices": problem.num_devices - 1, "expert": ""}
    if path.stem.startswith("layer_") and expert.is_file():
        value = objective_of(problem).finish(problem, read_split(expert, path, problem), None).value
        row["expert"] = round(value * 1e-6, 6)
    warm_up("period")
    for name in SPLITS:
        result = make_solver(name).solve(problem, Budget(seconds=30), seed=0)
        row[name] = "" if result.objective is None else round(result.objective * 1e-6, 6)
        row[f"{name}_seconds"] = round(result.runtime, 2)
    return row | {"local_search_stopped": result.stop_reason}


def replicas() -> Iterator[Job]:
    """Every throughput graph with replicated stages, devices in two groups, and transfers beside
    computation; 60 s each.
    """
    for path in sorted((DATA / "dnn-partitioning" / "throughput").glob("*.json")):
        yield path.stem, lambda p=path: replica_row(p)


EXTENSIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "replicas": {"max_replicas": 3},
    "groups": {"groups": 2},
    "overlap": {"overlap": True},
    "overlap_replicas": {"overlap": True, "max_replicas": 3},
}


def replica_row(path: Path) -> Row:
    """Return the best period with each extension over pipelines of ideals, and whether it is
    proved; no weights are exchanged.
    """
    problem = po.load(path, objective="period", contiguity="chain")
    row: Row = {}
    for name, fields in EXTENSIONS.items():
        usable = problem.num_devices - 1
        if name == "groups" and usable % 2:
            row |= {
                name: "",
                f"{name}_proved": "",
                f"{name}_seconds": "",
            }  # three accelerators make no two groups
            continue
        result = make_solver("split-ideals", "split").solve(
            SplitProblem(problem, **fields), Budget(seconds=60), seed=0
        )
        value = "" if result.value is None else round(result.value * 1e-6, 6)
        row |= {
            name: value,
            f"{name}_proved": result.status == "optimal",
            f"{name}_seconds": round(result.runtime, 2),
        }
    return row


def slots() -> Iterator[Job]:
    """Latency of one sample on every given instance, with one and two slots per accelerator, 30 s
    each.
    """
    for path in sorted((DATA / "dnn-partitioning" / "latency").glob("*.json")):
        for number in (1, 2):
            problem = po.load(path, objective="latency", slots=number)
            yield f"{path.stem}, {number} slots", lambda p=problem: solve(p, 30, 1e-6)


def max_load(problem: PlacementProblem) -> float | str:
    """Return the latency of the split of the least load."""
    result = make_solver("max-load-dp").solve(problem, Budget(seconds=60), seed=0)
    return "" if result.value is None else round(result.value * 1e-6, 6)


STAGES: dict[str, Callable[[], Iterator[Job]]] = {
    "optima": optima,
    "doppler": doppler_graphs,
    "doppler-seeds": doppler_seeds,
    "wide": wide,
    "chain": chain,
    "pipeline": pipeline,
    "latency": latency,
    "splits": splits,
    "replicas": replicas,
    "slots": slots,
}


# --- files
# -----------------------------------------------------------------------------------------------


def draw_tables() -> None:
    """Write tables.md from the CSV files; of the optima only a summary and the slowest."""
    parts = ["# Tables\n\nDrawn by `study.py` from the CSV files of this folder. See README.md.\n"]
    for stage, jobs in STAGES.items():
        path = HERE / f"{stage}.csv"
        if not path.exists():
            continue
        rows = read_csv(path)
        parts.append(f"## {stage}\n\n{' '.join((jobs.__doc__ or '').split())}\n")
        if stage == "optima":
            seconds = np.array([float(row["seconds"]) for row in rows])
            proved = sum(
                row["status"] == "optimal" and float(row["value"]) == float(row["published"])
                for row in rows
            )
            parts.append(
                f"{proved} of {len(rows)} proved equal to the published value; {seconds.sum():.1f} "
                "s together, "
                f"median {np.median(seconds):.3f} s, longest {seconds.max():.2f} s. The slowest:\n"
            )
            rows = sorted(rows, key=lambda row: -float(row["seconds"]))[:8]
        parts.append("\n".join([*table_of(rows), ""]))
    (HERE / "tables.md").write_text("\n".join(parts))


def main() -> None:
    """Run the chosen stages."""
    if sys.argv[1:2] == ["--one-chain"]:
        one_chain(sys.argv[2])
        return
    given = row_options(__doc__, tuple(STAGES))
    for stage in given.stages:
        record_rows(HERE / f"{stage}.csv", "instance", STAGES[stage](), given)
        draw_tables()


if __name__ == "__main__":
    main()
