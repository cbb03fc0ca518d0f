"""Plans: predicted against measured, published optima, unlike devices, whole models, robustness:
one command.

    PLACEOPT_DATA=../shared/data python results/plans/study.py [STAGE ...] [--again]

Stages: measured, fit, piper, opt350, large, models, schedules, robust, gpt2, random (default: all).
A stage writes results/plans/STAGE.csv row by row and skips rows that are there (`--help` says what
else); `tables.md` is drawn from the CSV files after every stage.
"""

from __future__ import annotations

import csv
import json
import os
import runpy
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import kendalltau

import placeopt as po
from placeopt.experiments.studies import (
    Clock,
    data_folder,
    markdown_table,
    read_csv,
    record_rows,
    row_options,
)
from placeopt.model.result import Budget
from placeopt.planning.launch_files import write_launch_files
from placeopt.planning.plan_model import plan, plan_problem
from placeopt.plans.layer_tables import read_layer_table
from placeopt.plans.network_table import read_network
from placeopt.plans.piper_json import read_piper
from placeopt.plans.plan import ReplicaGroup, read_measured_plan
from placeopt.plans.predicted_costs import (
    FITTED_ON,
    MEMORY_FITTED_ON,
    Constants,
    PredictedStepCosts,
)
from placeopt.plans.published_costs import PublishedStepCosts
from placeopt.plans.step_costs import Load
from placeopt.plans.step_price import step_price
from placeopt.plans.step_problem import DevicePool, StepPlanProblem, parse_pools
from placeopt.plans.timeline import step_spread, step_timeline
from placeopt.plotting.plans import plan_figure
from placeopt.plotting.style import write_figure
from placeopt.solving.compilation import ensure
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from whole_tables import peak_mb  # noqa: E402 - results/ is no package

PROFILES = data_folder("training_plans") / "profiles"
Row = dict[str, Any]
Job = tuple[str, "Callable[[], Row]"]
OTHERS = ((8.0, 12.5), (12, 24), (12, 20), (17, 25), (55, 50), (53, 109), (63, 117))
RANDOM_PROBLEMS = 3000
NAMES = ("the data's authors", "Varuna", "Metis", "Piper", "FlashFlex", "AMP", "Galvatron")
"""Median and mean error in percent of published simulators on all 36 plans, from the data's
README."""


def short(name: str) -> str:
    """Return the name of a measured plan as the fitted constants name it."""
    cluster, _, rest = name.partition("-")
    return f"{cluster} {rest.partition('-')[2]}"


def measured() -> Iterator[Job]:
    """Every measured plan, predicted by us and by the published formula."""
    table = read_layer_table(PROFILES, "OPT-350")
    models = {
        "predicted": PredictedStepCosts(table.monotone(), read_network(PROFILES / "network.json")),
        "published": PublishedStepCosts(table, read_network(PROFILES / "network.json", raw=True)),
    }

    def row(path: Path) -> Row:
        given = read_measured_plan(path)
        found: Row = {"seconds": given.seconds, "memory": given.memory}
        for name, costs in models.items():
            pools = tuple(DevicePool(kind, 1000, 8, 96 * 2**30) for kind in given.kinds())
            price = step_price(StepPlanProblem(costs, pools, given.batch), given.plan)
            found[name] = price.step * 1e-9
            found[f"{name}_memory"] = max(stage.memory for stage in price.stages)
        return found | {
            "fitted": short(given.name) in FITTED_ON,
            "memory_fitted": short(given.name) in MEMORY_FITTED_ON,
        }

    for path in sorted((data_folder("training_plans") / "plans").glob("*.json")):
        yield read_measured_plan(path).name, lambda path=path: row(path)


def fit() -> Iterator[Job]:
    """The constants of the prediction: the best of a grid on the named plans, mean error for time
    and for memory.
    """
    table = read_layer_table(PROFILES, "OPT-350").monotone()
    network = read_network(PROFILES / "network.json")
    given = [
        read_measured_plan(path)
        for path in sorted((data_folder("training_plans") / "plans").glob("*.json"))
    ]

    def error(constants: Constants, names: tuple[str, ...], memory: bool) -> float:
        found = []
        for one in given:
            if short(one.name) in names:
                pools = tuple(DevicePool(kind, 1000, 8, 96 * 2**30) for kind in one.kinds())
                costs = PredictedStepCosts(table, network, constants)
                price = step_price(StepPlanProblem(costs, pools, one.batch), one.plan)
                predicted = (
                    max(stage.memory for stage in price.stages) / one.memory
                    if memory
                    else price.step * 1e-9 / one.seconds
                )
                found.append(abs(predicted - 1))
        return float(np.mean(found))

    def best(names: tuple[str, ...], memory: bool, **grid: tuple[float, ...]) -> Row:
        every = [
            Constants(**dict(zip(grid, values, strict=True))) for values in product(*grid.values())
        ]
        chosen = min(every, key=lambda constants: error(constants, names, memory))
        used = error(Constants(), names, memory)
        return {
            "fitted_on": ", ".join(names),
            **{key: getattr(chosen, key) for key in grid},
            "error": error(chosen, names, memory),
            "error_of_constants_used": used,
        }

    rates, shares = (
        (10e9, 11e9, 12e9, 13e9, 14e9, 16e9, 20e9),
        (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0),
    )
    yield "time", lambda: best(FITTED_ON, False, largest_rate=rates, exposed=shares)
    yield (
        "memory",
        lambda: best(
            MEMORY_FITTED_ON,
            True,
            base_bytes=(2e9, 2.5e9, 3e9, 3.5e9, 4e9),
            state_bytes=(16.0, 20.0, 24.0, 28.0, 32.0),
            overhead=(1.05, 1.1, 1.15, 1.2, 1.25),
            loss=(0.0, 0.25, 0.5, 1.0),
        ),
    )


def piper() -> Iterator[Job]:
    """The published planner's inputs, at the bandwidth of 25 * 2^30 B/s that its own values were
    computed with.
    """
    files = {"bert": "bert32a100", "resnet": "resnet", "gnmt": "gnmt"}

    def row(given: dict[str, str]) -> Row:
        longer = (
            int(given["layers_kept"])
            if given["input"] == "bert" and given["layers_kept"] != "32"
            else None
        )
        problem = read_piper(
            data_folder("piper") / f"{files[given['input']]}.json",
            devices=int(given["devices"]),
            memory=float(given["memory_gib"]) * 2**30,
            bandwidth=25 * 2**30,
            copies=longer,
        )
        solver = make_solver("plan-ideals", "plan")
        ensure(solver.kernels)
        with Clock() as clock:
            result = run(problem, solver, Budget(300.0))
        return {
            "reference": float(given["time_per_sample"]),
            "ours": result.seconds,
            "bound": result.lower_bound * problem.tick_seconds,
            "status": result.status,
            "their_seconds": given["seconds"],
            "their_mib": given["mib"],
            "wall": clock.wall,
            "cpu": clock.cpu,
            "mib": peak_mb(),
            "plan": result.solution.text() if result.solution else "",
        }

    with (data_folder("piper") / "reference.csv").open() as file:
        for given in csv.DictReader(file):
            name = " ".join(given[key] for key in ("input", "layers_kept", "devices", "memory_gib"))
            yield name, lambda given=given: row(given)


def step_row(
    problem: StepPlanProblem, seconds: float, tolerance: float = 0.0, reference: float | None = None
) -> Row:
    """Search one problem and return what came of it."""
    solver = make_solver("plan-stages", "plan", tolerance=tolerance)
    ensure(solver.kernels)
    with Clock() as clock:
        result = run(problem, solver, Budget(seconds))
    found = result.seconds is not None
    return {
        "reference": reference,
        "steps_per_second": 1 / result.seconds if found else None,
        "seconds": result.seconds,
        "gap": result.gap,
        "status": result.status,
        "wall": clock.wall,
        "cpu": clock.cpu,
        "plan": result.solution.text() if found else result.message,
    }


def opt350() -> Iterator[Job]:
    """OPT-350M under the published step time, on like and on unlike devices."""
    costs = PublishedStepCosts(
        read_layer_table(PROFILES, "OPT-350"), read_network(PROFILES / "network.json", raw=True)
    )
    for devices, reference in ((32, 0.130), (80, 0.272), (128, 0.418)):
        problem = StepPlanProblem(costs, parse_pools(f"{devices}xA100-40"), 1024)
        yield f"{devices} A100", lambda p=problem, r=reference: step_row(p, 60.0, reference=r)
    for a100, v100, reference in ((32, 96, 0.170), (80, 240, 0.361), (128, 384, 0.523)):
        problem = StepPlanProblem(costs, parse_pools(f"{a100}xA100-40+{v100}xV100-16"), 1024)
        for seconds in (5.0, 60.0):
            yield (
                f"{a100} A100 + {v100} V100, {seconds:g} s",
                lambda p=problem, s=seconds, r=reference: step_row(p, s, 0.001, r),
            )


def large() -> Iterator[Job]:
    """LLaMA-3-8B (predicted, with recomputation) and OPT-30B (published formula) on A100 and V100
    hosts.
    """
    pools = "32xA100-40+32xV100-16"
    llama = plan_problem(
        "LLAMA-3-8", pools, 256, costs=PROFILES, schedules=("1f1b",), sharded=False
    )
    yield "LLaMA-3-8B, 32 + 32, recomputation", lambda: step_row(llama, 60.0, 0.01)
    plain = plan_problem("LLAMA-3-8", pools, 256, costs=PROFILES, formula="published")
    yield "LLaMA-3-8B, 32 + 32, published formula, none", lambda: step_row(plain, 60.0, 0.01)
    opt = plan_problem("OPT-30", "64xA100-40+64xV100-16", 256, costs=PROFILES, formula="published")
    yield "OPT-30B, 64 + 64, published formula", lambda: step_row(opt, 120.0, 0.01)
    both = opt.replace(schedules=("1f1b", "repetend"))
    yield "OPT-30B, 64 + 64, published formula, repetends too", lambda: step_row(both, 40.0, 0.01)


def pipeline_models() -> Iterator[tuple[str, str, str]]:
    """Yield name, source and cluster of every model and number of devices of results/pipeline."""
    spec = runpy.run_path(
        str(HERE.parent / "pipeline" / "whole_models.py"), run_name="whole_models"
    )
    for model in spec["MODELS"]:
        for devices in (4, 8, 16, 32):
            yield (
                f"{model} {devices}",
                spec["source_of"](model, devices),
                spec["cluster_of"](devices),
            )


def models() -> Iterator[Job]:
    """GPT, mT5 and Flava of results/pipeline, by roofline, with a bound over all plans of the
    space.
    """
    for name, source, cluster in pipeline_models():
        yield (
            name,
            lambda s=source, c=cluster: step_row(
                plan_problem(s, c, 128, schedules=("1f1b",), sharded=False), 150.0
            ),
        )


def schedules() -> Iterator[Job]:
    """The same with interleaved and zero-bubble schedules, repetends and sharded states; the plan
    is simulated, too.
    """

    def row(source: str, cluster: str) -> Row:
        problem = plan_problem(source, cluster, 128)
        solver = make_solver("plan-stages", "plan", tolerance=0.001)
        ensure(solver.kernels)
        with Clock() as clock:
            result = run(problem, solver, Budget(150.0))
        found = result.solution
        return {
            "seconds": result.seconds,
            "gap": result.gap,
            "status": result.status,
            "simulated": float(step_timeline(problem, found)[1]) * problem.tick_seconds
            if found
            else None,
            "schedule": found.schedule if found else None,
            "sharded": found.sharded if found else None,
            "wall": clock.wall,
            "cpu": clock.cpu,
            "plan": found.text() if found else result.message,
        }

    for name, source, cluster in pipeline_models():
        yield name, lambda s=source, c=cluster: row(s, c)


def robust() -> Iterator[Job]:
    """Simulated steps of the plan of OPT-350M on 32 A100 and 96 V100: noise of 5 %, and one stage
    20 % slower.
    """
    found = plan(
        "OPT-350",
        "32xA100-40+96xV100-16",
        1024,
        costs=PROFILES,
        seconds=20.0,
        runner_ups=0,
        schedules=("1f1b",),
        sharded=False,
    )
    write_figure(plan_figure(found), HERE / "plan.png")
    for name, noise, straggler in (
        ("no noise", 0.0, 1.0),
        ("noise", 0.05, 1.0),
        ("noise and straggler", 0.05, 1.2),
    ):

        def row(noise: float = noise, straggler: float = straggler) -> Row:
            steps = step_spread(
                found.problem, found.plan, samples=100, noise=noise, straggler=straggler
            )
            return {
                "price": found.step_seconds,
                "mean": float(steps.mean()),
                "p95": float(np.quantile(steps, 0.95)),
            }

        yield name, row


def gpt2() -> Iterator[Job]:
    """A plan of GPT-2 on 2 stages of 2 replicas, exported and run for three steps on four gloo
    processes.
    """

    def row() -> Row:
        problem = plan_problem(
            "gen:gpt2?detail=coarse&tied=0&seq=64",
            "4xA100",
            8,
            recompute=False,
            schedules=("1f1b",),
            sharded=False,
        )
        apart = problem.replace(data_degrees=(2,), micro_batches=(1,))
        # one stage is ruled out by memory: devices have three quarters of what the whole model
        # needs
        whole = apart.costs.memory_bytes(
            Load(0, apart.costs.num_layers, 1, 1, False), ReplicaGroup(apart.pools[0].kind, 1, 1)
        )
        pool = apart.pools[0]
        small = DevicePool(pool.kind, pool.count, 1, int(0.75 * whole))
        found = plan(apart.replace(pools=(small,), max_stages=2), "", 0, seconds=20.0, runner_ups=0)
        with tempfile.TemporaryDirectory() as folder:
            write_launch_files(found, Path(folder))
            out = Path(folder) / "losses.json"
            script = str(HERE / "gloo_gpt2.py")
            with Clock() as clock:
                subprocess.run(
                    [sys.executable, script, str(Path(folder) / "torch.json"), str(out)],
                    check=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            losses = json.loads(out.read_text())
        difference = max(abs(a - b) for a, b in zip(losses["plan"], losses["alone"], strict=True))
        return {
            "plan": found.plan.text(),
            "losses": losses["plan"],
            "alone": losses["alone"],
            "largest_difference": difference,
            "wall": clock.wall,
        }

    yield "GPT-2", row


def random() -> Iterator[Job]:
    """Tiny problems with some of everything, compared with brute force: the tests' code, in parts
    of 100 problems.
    """
    sys.path.insert(0, str(HERE.parents[1] / "tests"))
    from small_plans import compare_with_brute_force

    def row(start: int) -> Row:
        total: Row = {}
        with Clock() as clock:
            for seed in range(start, start + 100):
                for key, count in compare_with_brute_force(seed).items():
                    total[key] = total.get(key, 0) + count
        return total | {"wall": clock.wall, "cpu": clock.cpu}

    for start in range(0, RANDOM_PROBLEMS, 100):
        yield f"seeds {start} to {start + 99}", lambda start=start: row(start)


STAGES: dict[str, Callable[[], Iterator[Job]]] = {
    "measured": measured,
    "fit": fit,
    "piper": piper,
    "opt350": opt350,
    "large": large,
    "models": models,
    "schedules": schedules,
    "robust": robust,
    "gpt2": gpt2,
    "random": random,
}


def errors_of(rows: list[Row], key: str, truth: str) -> np.ndarray:
    """Return the relative errors of a column."""
    return np.array([abs(float(row[key]) / float(row[truth]) - 1) for row in rows])


def measured_table() -> list[str]:
    """Return the summary of the measured plans."""
    rows = read_csv(HERE / "measured.csv")
    if not rows:
        return []
    lines = ["## Measured plans", ""]
    body = []
    for label, key in (("ours", "predicted"), ("published formula", "published")):
        for what, chosen in (
            ("all", rows),
            ("not fitted", [row for row in rows if row["fitted"] == "False"]),
        ):
            errors = errors_of(chosen, key, "seconds")
            three = (100 * float(x) for x in (np.median(errors), errors.mean(), errors.max()))
            body.append([f"{label}, {what} ({len(chosen)})", *three])
    body += [
        [f"{name} (all 36, from the data's README)", *pair, ""]
        for name, pair in zip(NAMES, OTHERS, strict=True)
    ]
    lines += markdown_table(["step time", "median %", "mean %", "largest %"], body)
    body = []
    for what, chosen in (
        ("all", rows),
        ("not fitted", [row for row in rows if row["memory_fitted"] == "False"]),
    ):
        for label, key in (("ours", "predicted_memory"), ("published formula", "published_memory")):
            body.append(
                [
                    f"{label}, {what} ({len(chosen)})",
                    100 * float(np.median(errors_of(chosen, key, "memory"))),
                ]
            )
    lines += ["", *markdown_table(["memory", "median %"], body), ""]
    for cluster in ("clariden", "mit"):
        chosen = [row for row in rows if row["name"].startswith(cluster)]
        tau = kendalltau(
            [float(row["seconds"]) for row in chosen], [float(row["predicted"]) for row in chosen]
        ).statistic
        lines.append(f"Kendall's tau within {cluster}: {tau:.3f}.")
    body = [
        [
            row["name"],
            *(float(row[key]) for key in ("seconds", "predicted", "published")),
            100 * (float(row["predicted"]) / float(row["seconds"]) - 1),
            float(row["memory"]) / 1e9,
            float(row["predicted_memory"]) / 1e9,
            "time" * (row["fitted"] == "True") + " memory" * (row["memory_fitted"] == "True"),
        ]
        for row in rows
    ]
    heads = [
        "plan",
        "measured s",
        "ours s",
        "published s",
        "our error %",
        "measured GB",
        "ours GB",
        "fitted on",
    ]
    return [*lines, "", *markdown_table(heads, body), ""]


def draw_tables() -> None:
    """Write tables.md from what is there."""
    lines = [
        "# Tables",
        "",
        "Written by `python results/plans/study.py` from the CSV files.",
        "",
        *measured_table(),
    ]
    for name in STAGES:
        rows = read_csv(HERE / f"{name}.csv", numbers=True)
        if rows and name != "measured":
            heads = [
                key
                for key in rows[0]
                if key != "plan" or name in ("opt350", "large", "gpt2", "models", "schedules")
            ]
            body = [
                [str(row[key]).replace(" | ", "; ") if key == "plan" else row[key] for key in heads]
                for row in rows
            ]
            lines += [f"## {name}", "", *markdown_table(heads, body), ""]
    (HERE / "tables.md").write_text("\n".join(lines))


def main() -> None:
    """Run the stages that are named, or all."""
    given = row_options(__doc__, tuple(STAGES))
    print("placeopt", po.__version__)
    for name in given.stages:
        record_rows(HERE / f"{name}.csv", "name", STAGES[name](), given, digits=9)
        draw_tables()


if __name__ == "__main__":
    main()
