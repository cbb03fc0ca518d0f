"""The user's own models on two CPU workers, measured beside simulated: torch modules op by op, ONNX
models in parts.

    python results/real_execution/own_models.py [--again]   # about 5 minutes on two cores
    python results/real_execution/own_models.py --quick     # a trial: small models, one round,
                                                            # nothing is written

Every model is placed in a dozen ways and each placement is executed `rounds` times in turn; its
results are compared with those of the unsplit model once. Torch modules are calibrated on other
placements (as study.py does it), ONNX models by a profile of ONNX Runtime in every round. Writes
own_models.csv (every placement) and own_models_summary.csv (error, rank correlation, speed-up of
the best simulated placement, measured and simulated).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
import numpy as np
from agreement import Comparison, agreement, simulate
from study import placements, wanted

import placeopt as po
from placeopt.experiments.studies import row_options, write_csv
from placeopt.instances.cost_fit import with_measured_times
from placeopt.instances.sources import load_graph
from placeopt.makespan.evaluate import evaluate
from placeopt.model.cost_model import lower
from placeopt.programs.onnx_program import onnx_program
from placeopt.programs.torch_program import torch_program
from placeopt.runtime.calibration import Calibration, calibrate, learn, probes
from placeopt.runtime.module_runtime import ModuleRuntime
from placeopt.runtime.onnx_sessions import OnnxSessions
from placeopt.runtime.profile_model import onnx_op_seconds

if TYPE_CHECKING:
    from placeopt.model.graph import OpGraph

HERE = Path(__file__).parent


@dataclass
class Nominal:
    """Stands for a calibration where op times come from a profile: all that `placements` asks of
    one.
    """

    given: Any

    def problem(self, graph: OpGraph, mode: str = "measured") -> Any:
        """Return the problem with measured op times."""
        return self.given


def torch_rows(name: str, module: Any, inputs: tuple[Any, ...], rounds: int) -> list[Comparison]:
    """Measure a torch module."""
    graph = load_graph(module, inputs=inputs)[0]
    runtime = ModuleRuntime(torch_program(module, inputs=inputs))
    first = calibrate(runtime, [graph], placements=1, repeat=1)
    table = placements(graph, first)
    apart = probes(graph, 2, 1, np.random.default_rng(1))
    runs: dict[str, list[float]] = {label: [] for label in table}
    learned_from = []
    for turn in range(rounds):
        for label, placement in table.items():
            runs[label].append(runtime.run(graph, placement, check=turn == 0).makespan)
        learned_from += [runtime.run(graph, placement) for placement in apart]
    learned: Calibration = learn([(graph, learned_from)], runtime.cluster())
    print(
        name,
        graph.num_ops,
        "ops",
        {key: float(f"{value:.4g}") for key, value in learned.summary().items()},
        flush=True,
    )
    return [
        _row(name, label, runs[label], simulate(learned, graph, placement, "measured"))
        for label, placement in table.items()
    ]


def onnx_rows(name: str, write: Any, rounds: int, quick: bool) -> list[Comparison]:
    """Measure an ONNX model, cut into parts by each placement."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        feeds, dims = write(path, quick)
        graph = load_graph(path, **({"dims": dims} if dims else {}))[0]
        sessions = OnnxSessions(onnx_program(path), feeds)
        profiles = [onnx_op_seconds(sessions.program, feeds, graph)]
        kind = sessions.cluster().devices[0].kind
        timed = with_measured_times(graph, profiles[0].seconds, kind)
        table = placements(timed, Nominal(lower(timed, sessions.cluster())))  # type: ignore[arg-type]
        runs: dict[str, list[float]] = {label: [] for label in table}
        for turn in range(rounds):
            for label, placement in table.items():
                parts = sessions.parts(timed, placement)
                runs[label].append(sessions.run(parts, repeat=5, check=turn == 0).makespan)
            profiles.append(
                onnx_op_seconds(sessions.program, feeds, graph)
            )  # as the machine is in this round
        medians = {
            op: float(np.median([profile.seconds[op] for profile in profiles[1:]]))
            for op in profiles[0].seconds
        }
        timed = with_measured_times(graph, medians, kind)
        simulated = {}
        for label, placement in table.items():
            parts = sessions.parts(timed, placement)
            coarse = lower(parts.graph, sessions.cluster())
            simulated[label] = (
                evaluate(coarse, parts.placement, "priority", check=False).makespan
                * coarse.tick_seconds
            )
        print(name, graph.num_ops, "ops", profiles[0].counts(), flush=True)
        return [_row(name, label, runs[label], simulated[label]) for label in table]


def _row(name: str, label: str, seconds: list[float], simulated: float) -> Comparison:
    low, high = np.quantile(seconds, [0.25, 0.75])
    median = float(np.median(seconds))
    print(
        f"  {label:26} {1e3 * median:8.2f} ms  simulated {100 * (simulated / median - 1):+6.1f} %",
        flush=True,
    )
    return Comparison(name, label, median, float(high - low) / 2 / median, {"measured": simulated})


def summary(rows: list[Comparison]) -> list[dict[str, Any]]:
    """Return error, rank correlation and speed-up by model, and over all."""
    found = []
    for name in [*dict.fromkeys(row.workload for row in rows), "all"]:
        own = [row for row in rows if name in (row.workload, "all")]
        told = agreement(own, "measured")
        line: dict[str, Any] = {
            "model": name,
            "placements": len(own),
            "median error": told.median_error,
            "p90 error": told.p90_error,
            "tau": told.tau["all"],
        }
        if name != "all":
            by = {row.placement: row for row in own}
            alone, best = by["single device"], by["best simulated"]
            line |= {
                "one device [s]": alone.measured,
                "best simulated [s]": best.measured,
                "speed-up": alone.measured / best.measured,
                "simulated speed-up": alone.simulated["measured"] / best.simulated["measured"],
            }
        found.append(line)
    return found


def main() -> None:
    """Measure all models."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true")
    options = row_options(__doc__, (), parser)
    tables = [HERE / f"{name}.csv" for name in ("own_models", "own_models_summary")]
    if not options.quick and not wanted(tables, options):
        return
    rounds = 1 if options.quick else options.rounds
    began, rows = time.perf_counter(), list[Comparison]()
    for name, make in models.TORCH.items():
        rows += torch_rows(name, *make(options.quick), rounds)
    for name, write in models.ONNX.items():
        rows += onnx_rows(name, write, rounds, options.quick)
    table = summary(rows)
    for line in table:
        print(
            {
                key: float(f"{value:.4g}") if isinstance(value, float) else value
                for key, value in line.items()
            }
        )
    if not options.quick:
        write_csv(HERE / "own_models_summary.csv", table, digits=4)
        write_csv(
            HERE / "own_models.csv",
            [
                {
                    "model": row.workload,
                    "placement": row.placement,
                    "measured [s]": row.measured,
                    "spread": row.spread,
                    "simulated [s]": row.simulated["measured"],
                }
                for row in rows
            ],
            digits=4,
        )
    print(
        f"{time.perf_counter() - began:.0f} s, load of the machine {os.getloadavg()[0]:.1f}, "
        f"placeopt {po.__version__}"
    )


if __name__ == "__main__":
    main()
