"""Placements executed for real on Dask workers, and what the simulator says about them.

    python results/real_execution/study.py [--again]   # about 13 minutes on two cores that are
                                                       # otherwise idle
    python results/real_execution/study.py --quick     # a trial: one round, small ops, nothing is
                                                       # written

Part 1 measures about a dozen placements of each of four workloads, `rounds` times in turn, and
compares the medians with the makespans that were simulated with nominal costs, with fitted
constants and with measured op times. The calibration uses other placements than the comparison.
Part 2 continues on the real system (stage III) from placements found on the simulator, and measures
start and outcome again in pairs. Part 3 learns the simulator's constants on the real system, on the
attention block, where it is biased, and measures the outcome in turn with every heuristic's
placement.

Writes comparison.csv, agreement.csv, calibration.csv, stage3.csv, tuning.csv, agreement.png and
gantt.png beside this file; tables that are there are kept.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from agreement import Comparison, agreement, simulate
from simulator_tuning import Candidate, SimulatorTuning, race

import placeopt as po
from placeopt.experiments.studies import row_options, write_csv
from placeopt.instances.sources import load_graph
from placeopt.makespan.evaluate import evaluate
from placeopt.model.result import Budget
from placeopt.plotting.gantt import comparison_figure
from placeopt.plotting.style import COLOURS, GREY, new_figure, write_figure
from placeopt.runtime import DaskRuntime, Measured, Measurement, refine
from placeopt.runtime.calibration import MODES, Calibration, calibrate, learn, overheads, probes
from placeopt.runtime.measurement import timeline, with_ranks
from placeopt.runtime.refinement import judge
from placeopt.solvers.policy.dual_policy import DualPolicy
from placeopt.solvers.search.annealing import Annealing
from placeopt.solvers.search.cross_entropy import CrossEntropy, Post

if TYPE_CHECKING:
    from placeopt.model.graph import OpGraph

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from whole_tables import wanted  # noqa: E402 - results/ is no package

WORKLOADS = {
    "chain of matrix products": "gen:chain-mm?size=2600&shards=2",
    "feed-forward network": "gen:ffnn?batch=2048&inputs=2048&hidden=2048&outputs=2048&shards=2",
    "attention block": "gen:llama-block?hidden=1408&heads=8&seq=1408&shards=2",
    "layered random DAG": "gen:layered?layers=10&width=7&degree=1.5&ccr=0.3",
}
QUICK = {
    "chain of matrix products": "gen:chain-mm?size=600",
    "layered random DAG": "gen:layered?layers=4&width=4&degree=1.5&ccr=0.3",
}
BIASED = "attention block"
"""The workload whose best simulated placement is slower than round robin."""

CONTEST = 24
"""Executions of each placement in the contest of part 3, in turn."""

HEURISTICS = ("heft", "critical-path", "edge-zeroing", "m-etf")
OP_SECONDS = 3e-5
"""A tick of a random DAG, whose ops take about 1000 ticks: thirty nominal milliseconds of work
each."""


def workload(source: str) -> OpGraph:
    """Return a graph to execute; random DAGs get ops of tens of milliseconds and tensors of about a
    megabyte.
    """
    graph, _ = load_graph(source)
    if graph.shapes:
        return graph
    return replace(
        graph, tick_seconds=OP_SECONDS, tensor_bytes=64 * graph.tensor_bytes, measured_transfer=None
    )


def placements(graph: OpGraph, learned: Calibration, seed: int = 7) -> dict[str, po.Placement]:
    """Return the placements that are compared, with ranks."""
    n = graph.num_ops
    rng = np.random.default_rng(seed)
    problem = learned.problem(graph)
    position = np.empty(n, dtype=np.int64)
    position[graph.topological_order] = np.arange(n)
    found = {
        "single device": po.Placement(np.zeros(n, dtype=np.int64)),
        "round robin": po.Placement(position % 2),
        "first half, second half": po.Placement(2 * position // n),
    }
    for share in (0.2, 0.35, 0.5, 0.5):
        found[f"random {share:.0%} ({len(found) - 2})"] = po.Placement(
            (rng.random(n) < share).astype(np.int64)
        )
    for name in HEURISTICS:
        solution = po.solve(problem, solver=name, seconds=5).solution
        assert solution is not None
        found[name] = solution
    best = po.solve(problem, solver="annealing", evaluations=20_000, seed=seed).solution
    assert best is not None
    found["best simulated"] = best
    return {name: with_ranks(problem, placement) for name, placement in found.items()}


Runs = dict[tuple[str, str], list[Measurement]]


def measure_all(
    runtime: DaskRuntime, graphs: dict[str, OpGraph], first: Calibration, rounds: int
) -> tuple[Runs, Calibration]:
    """Measure every placement of every workload, and the calibration's own, in rounds: a slow
    minute hits all of them.

    Returns the runs of the placements that are compared, and the calibration by the other ones.
    """
    runs: Runs = {}
    pairs = []
    for name, graph in graphs.items():
        table = placements(graph, first)
        apart = probes(graph, 2, 1, np.random.default_rng(1))
        calibration_runs = []
        for _ in range(rounds):
            for label, placement in table.items():
                runs.setdefault((name, label), []).append(runtime.run(graph, placement))
            calibration_runs += [runtime.run(graph, placement) for placement in apart]
        pairs.append((graph, calibration_runs))
    return runs, learn(pairs, runtime.cluster())


def compare(graphs: dict[str, OpGraph], runs: Runs, learned: Calibration) -> list[Comparison]:
    """Compare the median of each placement's runs with its simulation."""
    rows = []
    for name, graph in graphs.items():
        for label in [label for workload, label in runs if workload == name]:
            placement = runs[name, label][0].placement
            seconds = np.array([run.makespan for run in runs[name, label]])
            low, high = np.quantile(seconds, [0.25, 0.75])
            median = float(np.median(seconds))
            predicted = {mode: simulate(learned, graph, placement, mode) for mode in MODES}
            rows.append(
                Comparison(name, label, median, float((high - low) / 2 / median), predicted)
            )
            works, gaps = diagnosis(graph, runs[name, label], learned)
            print(
                f"{name:26} {label:24} {median:7.3f} s +-{100 * rows[-1].spread:4.1f} %  ops "
                f"x{works:.2f}  "
                f"overhead {1e3 * gaps:.2f} ms  "
                + "  ".join(
                    f"{mode} {100 * (value / median - 1):+6.1f} %"
                    for mode, value in predicted.items()
                ),
                flush=True,
            )
    return rows


def diagnosis(graph: OpGraph, runs: list[Measurement], learned: Calibration) -> tuple[float, float]:
    """Work in the ops over what the calibration says, and the engine's mean overhead per op in
    seconds.
    """
    work = float(np.median([run.op_seconds.sum() for run in runs])) / float(
        learned.op_seconds[graph.name].sum()
    )
    return work, float(np.median([overheads(graph, run, 0).mean() for run in runs]))


def simulator_trained(problem: po.PlacementProblem, seed: int) -> po.Placement:
    """Stage II: the dual policy trained on the simulator."""
    result = po.solve(problem, solver=DualPolicy(), evaluations=3000, seed=seed)
    assert result.solution is not None
    return result.solution


def stage_three(
    runtime: DaskRuntime,
    graph: OpGraph,
    learned: Calibration,
    candidates: int,
    pairs: int,
    path: Path | None,
) -> list[dict[str, Any]]:
    """Continue on the real system from placements trained on the simulator."""
    solvers = {
        "dual-policy": DualPolicy(teacher="", batch=4, temperature=0.5, final_temperature=0.2),
        "post": Post(start="random", batch=4, refit=8, groups=12),
        "cross-entropy": CrossEntropy(start="random", samples=8, elite=0.25, groups=12, refine=0.3),
        "annealing": Annealing(start="random", walks=1),
    }
    cases = [("nominal costs", "none", name) for name in solvers] + [
        ("measured costs", "measured", "dual-policy")
    ]
    rows = []
    for words, mode, name in cases:
        # The search knows the problem only as the simulator had it when it was trained.
        problem = learned.problem(graph, mode)
        start = simulator_trained(problem, seed=1)
        measure = Measured(runtime, graph, problem, repeats=2)
        began = time.perf_counter()
        end = refine(
            start, solvers[name], measure, Budget(evaluations=candidates), seed=2, pairs=pairs
        )
        rows.append(
            {
                "trained on": words,
                "stage III": name,
                "start [s]": _median(end.start_seconds),
                "candidate [s]": _median(end.candidate_seconds),
                "ratio": end.ratio,
                "low": end.interval[0],
                "high": end.interval[1],
                "pairs": len(end.start_seconds),
                "kept": "candidate" if end.improved else "start",
                "executions": end.executions,
                "minutes": (time.perf_counter() - began) / 60,
            }
        )
        print(
            {
                key: round(value, 3) if isinstance(value, float) else value
                for key, value in rows[-1].items()
            },
            flush=True,
        )
        if path is not None:
            write_csv(path, rows, digits=4)  # what is measured is kept, should the time run out
    return rows


def tuned_simulator(
    runtime: DaskRuntime,
    graph: OpGraph,
    learned: Calibration,
    tuning: SimulatorTuning,
    rounds: int,
    path: Path | None,
) -> list[dict[str, Any]]:
    """Tune the simulator's constants on the real system; measure the outcome in turn with the
    heuristics' placements.
    """
    others = {
        label: own
        for label, own in placements(graph, learned).items()
        if not label.startswith("random")
    }
    began = time.perf_counter()
    end = tuning.run(runtime, graph, learned, seed=0)
    minutes = (time.perf_counter() - began) / 60
    print(
        "factors:",
        [round(factor, 3) for factor in end.factors],
        "fastest of each generation:",
        [round(seconds, 4) for seconds in end.fastest],
        f"{end.executions} executions",
        flush=True,
    )
    contest = {
        label: Candidate(own) for label, own in {**others, "tuned simulator": end.placement}.items()
    }
    race(runtime, graph, list(contest.values()), np.random.default_rng(3), (rounds,))
    mine = np.array(contest["tuned simulator"].seconds)
    rows = []
    for label, candidate in contest.items():
        row: dict[str, Any] = {
            "placement": label,
            "measured [s]": candidate.median,
            "executions": len(candidate.seconds),
            "simulated [s]": simulate(learned, graph, candidate.placement, "measured"),
        }
        if label != "tuned simulator":
            ratio, interval, faster = judge(np.array(candidate.seconds), mine, 0.95)
            row |= {
                "tuned / this": ratio,
                "low": interval[0],
                "high": interval[1],
                "faster": "yes" if faster else "no",
            }
        else:
            row |= {
                "overhead": end.factors[0],
                "latency": end.factors[1],
                "bandwidth": end.factors[2],
                "learned from": end.executions,
                "minutes": minutes,
            }
        rows.append(row)
        print(
            {
                key: round(value, 3) if isinstance(value, float) else value
                for key, value in row.items()
            },
            flush=True,
        )
    if path is not None:
        write_csv(path, rows, digits=4)
    return rows


def _median(seconds: Any) -> float:
    return float(np.median(seconds)) if len(seconds) else math.nan


def agreement_figure(rows: list[Comparison]) -> Any:
    """Measured against simulated makespans, with nominal costs and with measured op times."""
    figure = new_figure(10, 4.6)
    for column, (mode, title) in enumerate(
        (("none", "nominal costs"), ("measured", "measured op times and transfers")), 1
    ):
        axes = figure.add_subplot(1, 2, column)
        top = 1.1 * max(max(row.measured, row.simulated[mode]) for row in rows)
        axes.plot([0, top], [0, top], color=GREY, linewidth=1)
        axes.fill_between(
            [0, top], [0, 0.85 * top], [0, 1.15 * top], color=GREY, alpha=0.25, linewidth=0
        )
        for colour, name in zip(COLOURS, dict.fromkeys(row.workload for row in rows), strict=False):
            own = [row for row in rows if row.workload == name]
            axes.scatter(
                [row.measured for row in own],
                [row.simulated[mode] for row in own],
                s=18,
                color=colour,
                label=name,
            )
        axes.set_xlabel("measured makespan (s), median")
        axes.set_ylabel("simulated makespan (s)")
        axes.set_title(f"{title}; the band is +-15 %", fontsize=10)
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return figure


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--stage3", type=int, default=10, help="candidates measured in stage III; 0 leaves it out"
    )
    options = row_options(__doc__, (), parser)
    files = [HERE / f"{name}.csv" for name in ("comparison", "agreement", "calibration", "stage3")]
    compared = options.quick or wanted(files, options)
    tuned = options.quick or wanted([HERE / "tuning.csv"], options)
    if not (compared or tuned):
        return
    graphs = {
        name: workload(source) for name, source in (QUICK if options.quick else WORKLOADS).items()
    }
    biased = BIASED if BIASED in graphs else next(iter(graphs))
    tuning = (
        SimulatorTuning(generations=1, samples=4, elite=2, final=2)
        if options.quick
        else SimulatorTuning()
    )
    began = time.perf_counter()
    with DaskRuntime(2) as runtime:
        if compared:
            learned = agreement_and_stage_three(runtime, graphs, options)
        else:
            learned = calibrate(runtime, [graphs[biased]])
        path = None if options.quick else HERE / "tuning.csv"
        if tuned:
            tuned_simulator(
                runtime, graphs[biased], learned, tuning, 4 if options.quick else CONTEST, path
            )
    print(f"{time.perf_counter() - began:.0f} s in all")


def agreement_and_stage_three(
    runtime: DaskRuntime, graphs: dict[str, OpGraph], options: argparse.Namespace
) -> Calibration:
    """Run parts 1 and 2; return the calibration."""
    rounds = 1 if options.quick else options.rounds
    first = calibrate(runtime, graphs.values(), placements=1, repeat=1)
    runs, learned = measure_all(runtime, graphs, first, rounds)
    print("calibrated:", {key: float(f"{value:.4g}") for key, value in learned.summary().items()})
    for name, graph in graphs.items():
        seconds = learned.op_seconds[graph.name]
        print(
            f"{name}: {graph.num_ops} ops, {seconds.sum():.2f} s of work, "
            f"{100 * seconds[seconds >= 5e-3].sum() / seconds.sum():.0f} % of it in ops >= 5 ms"
        )
    rows = compare(graphs, runs, learned)
    for mode in MODES:
        print(agreement(rows, mode))
    name = next(iter(graphs))
    if not options.quick:
        write_part_one(graphs[name], rows, runs[name, "best simulated"], learned)
    candidates, pairs = (6, 4) if options.quick else (options.stage3, 8)
    if options.stage3:
        stage_three(
            runtime,
            graphs[name],
            learned,
            candidates,
            pairs,
            None if options.quick else HERE / "stage3.csv",
        )
    return learned


def write_part_one(
    graph: OpGraph, rows: list[Comparison], best: list[Measurement], learned: Calibration
) -> None:
    """Write the tables and pictures of the comparison; `best` are the runs of the placement that is
    drawn.
    """
    write_csv(
        HERE / "comparison.csv",
        [
            {
                "workload": row.workload,
                "placement": row.placement,
                "measured [s]": row.measured,
                "spread": row.spread,
                **{f"simulated, {mode} [s]": value for mode, value in row.simulated.items()},
            }
            for row in rows
        ],
        digits=4,
    )
    summary = [agreement(rows, mode) for mode in MODES]
    write_csv(
        HERE / "agreement.csv",
        [
            {
                "mode": entry.mode,
                "placements": entry.placements,
                "median error": entry.median_error,
                "p90 error": entry.p90_error,
                **{f"tau, {key}": value for key, value in entry.tau.items()},
            }
            for entry in summary
        ],
        digits=4,
    )
    write_csv(HERE / "calibration.csv", [learned.summary()], digits=4)
    write_figure(agreement_figure(rows), HERE / "agreement.png", dpi=110)
    problem = learned.problem(graph)
    measured = min(
        best, key=lambda run: abs(run.makespan - _median([other.makespan for other in best]))
    )
    pictures = [
        ("simulated", evaluate(problem, measured.placement, "priority")),
        ("measured", timeline(problem, measured)),
    ]
    write_figure(comparison_figure(pictures), HERE / "gantt.png", dpi=90)


if __name__ == "__main__":
    main()
