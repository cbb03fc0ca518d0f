"""What constants of annealing in cycles, of the flows' longest path and of first pieces are worth.

    PLACEOPT_DATA=../shared/data python results/engine/constants.py [run] [table] [--jobs 2]
        [--minutes M] [--only CONSTANT]

run      every setting on problems of every family: constants.csv, a row per run; goes on where it
         was ended, and measures again what is of other code
table    constants.md: per setting the mean ratio to the setting of the package, over the families
         that choices are made on and over those set apart, with the most and least of a family

Annealing runs alone, from what the starts give, for a number of evaluations (chunks of equally many
moves): results do not depend on the machine; what counts is the value, lower is better. Flows run
alone for seconds of this process's own processor time; what counts is the bound, higher is better,
and ratios are turned so that below 1 is better than the package's setting in both. First pieces are
those of the tactics that prove makespans (`prior` of `Runs`); each is a whole solve, alone on the
machine whatever `--jobs` says, and what counts is the geometric mean of the gaps after 1, 2, 4 and
8 seconds, a hundredth of a point at least. "Left out": the setting that is best on the other
families of the chosen set (least mean), and its ratio on the family that was left out.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
from scipy.stats import gmean
from study import APART, LAYERS, MAKESPAN, PERIOD, ROUNDED, problem_of

import placeopt as po
from placeopt.experiments.cell import commit, same_package
from placeopt.experiments.studies import markdown_table, read_csv, write_csv
from placeopt.latency.bounds import flow
from placeopt.solvers import portfolio_tactics
from placeopt.solvers.exact.annealing_cycles import Cycles, anneal_in_cycles
from placeopt.solving.tactic import Runs

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
TABLE = HERE / "constants.csv"
PER_FAMILY = 2
EVALUATIONS = 150
SECONDS = 11.0

ANNEALING = {
    "hot .3, cold 1e-4, most 256": (0.3, 1e-4, 256),
    "hot .03": (0.03, 1e-4, 256),
    "hot 1": (1.0, 1e-4, 256),
    "cold 1e-5": (0.3, 1e-5, 256),
    "most 8": (0.3, 1e-4, 8),
    "hot .03, cold 1e-5, most 32": (0.03, 1e-5, 32),
}
"""Fields of the cycles of annealing; the first setting is the package's."""

FLOWS = {"on path 100": 100, "on path 10": 10, "on path 1": 1}
"""`Reduction.on_path` of the bound by flows; the first setting is the package's."""

FIRST = {
    "segments 2": {"segments": 2.0},
    "none": {},
    "segments 2, grids 1": {"segments": 2.0, "grids": 1.0},
    "segments 2, ladder 1": {"segments": 2.0, "ladder": 1.0},
    "segments 2, grids 1, ladder 1": {"segments": 2.0, "grids": 1.0, "ladder": 1.0},
    "segments 2, fronts 3": {"segments": 2.0, "fronts": 3.0},
}
"""Seconds of first pieces by tactic; the first setting is the package's."""

LOOKS = (1.0, 2.0, 4.0, 8.0)
"""Seconds after which the gap of a solve counts."""


def jobs() -> list[dict[str, Any]]:
    """Return every run, in rounds over the families: what names it and what it is of."""
    found = []
    for number in range(PER_FAMILY):
        for family in (*LAYERS, *PERIOD):
            of = {"family": family, "number": number, "set": set_of(family)}
            found += [{"constant": "annealing", "setting": s, **of} for s in ANNEALING]
            if family in LAYERS:
                found += [{"constant": "flows", "setting": s, **of} for s in FLOWS]
        for family in MAKESPAN:
            of = {"family": family, "number": number, "set": set_of(family)}
            found += [{"constant": "first pieces", "setting": s, **of} for s in FIRST]
    return found


def set_of(family: str) -> str:
    """Return whether choices may be made on a family."""
    return "apart" if family in APART else "chosen on"


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """Return what names a run."""
    return tuple(str(row[name]) for name in ("constant", "setting", "family", "number"))


@contextmanager
def own_clock() -> Iterator[None]:
    """Have the package's clock count this process's processor time."""
    clock = time.perf_counter
    time.perf_counter = time.process_time
    try:
        yield
    finally:
        time.perf_counter = clock


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """Run one setting on one problem."""
    family = job["family"]
    rng = np.random.default_rng(zlib.crc32(family.encode()))
    problem = [problem_of(family, rng) for _ in range(job["number"] + 1)][-1]
    begun = time.process_time()
    if job["constant"] == "annealing":
        anneal_in_cycles.__kwdefaults__["cycles"] = Cycles(*ANNEALING[job["setting"]])
        limit = {"evaluations": EVALUATIONS}
        result = po.solve(problem, "cp-sat", tactics="starts,annealing", num_workers=1, **limit)
        found, limited = result.value, f"{EVALUATIONS} evaluations"
    elif job["constant"] == "first pieces":
        found, limited = gaps_of(problem, FIRST[job["setting"]]), f"{LOOKS[-1]:g} s"
    else:
        flow.Reduction.on_path = FLOWS[job["setting"]]
        with own_clock():
            result = po.solve(
                problem, "cp-sat", tactics="starts,flow", num_workers=1, seconds=SECONDS
            )
        found, limited = result.lower_bound, f"{SECONDS:g} s"
    spent = round(time.process_time() - begun, 1)
    return {**job, "found": found, "limit": limited, "cpu": spent}


def gaps_of(problem: Any, pieces: dict[str, float]) -> float:
    """Return the geometric mean of the gaps, in points, of a solve with these first pieces."""
    po.solve(problem, seconds=0.5)  # kernels are loaded
    known = portfolio_tactics.PROVERS
    portfolio_tactics.PROVERS = tuple(
        replace(t, prior=pieces.get(t.name, 0.0)) if isinstance(t, Runs) else t for t in known
    )
    try:
        trace = po.solve(problem, seconds=LOOKS[-1]).trace
    finally:
        portfolio_tactics.PROVERS = known
    gaps = []
    for look in LOOKS:
        seen = [p for p in trace if p.seconds <= look and p.incumbent]
        value = min((p.incumbent for p in seen), default=0)
        bound = max((p.lower_bound for p in seen), default=0)
        gaps.append(max(100 * (value - bound) / value if value else 100.0, ROUNDED))
    return round(float(gmean(gaps)), 4)


def run(count: int, minutes: float, only: str) -> None:
    """Measure what is missing or of other code; old rows stay until then."""
    end = time.monotonic() + 60 * minutes
    wanted = {key(job): job for job in jobs()}
    rows = {key(row): row for row in read_csv(TABLE)} if TABLE.exists() else {}
    done = {k for k, row in rows.items() if same_package(row["commit"])}
    left = [job for k, job in wanted.items() if k not in done and only in job["constant"]]
    alone = [[job] for job in left if job["constant"] == "first pieces"]
    beside = [job for job in left if job["constant"] != "first pieces"]
    for some in (*(beside[i : i + count] for i in range(0, len(beside), count)), *alone):
        if time.monotonic() > end:
            break
        workers = joblib.Parallel(n_jobs=len(some))  # a job alone stays in this process
        for row in workers(joblib.delayed(measured)(job) for job in some):
            rows[key(row)] = row
            done.add(key(row))
        write_csv(TABLE, [rows[k] for k in wanted if k in rows])
    print(f"{len(done & wanted.keys())} of {len(wanted)} runs of the package at {commit()}")


def ratios(constant: str, settings: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return by setting and family what the setting finds over what the package's does; below 1 is
    better.
    """
    found = {key(row): float(row["found"]) for row in read_csv(TABLE)}
    default, *_ = settings
    by: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (kind, setting, family, number), value in found.items():
        base = found.get((constant, default, family, number))
        if kind == constant and base:
            better = base / max(value, 1.0) if constant == "flows" else value / base
            by[setting][family].append(better)
    return by


def tables() -> list[str]:
    """Return the lines of constants.md."""
    lines = [
        "# Constants of annealing in cycles, of the flows' longest path and of first pieces",
        "",
    ]
    for constant, settings in (("annealing", ANNEALING), ("flows", FLOWS), ("first pieces", FIRST)):
        by = ratios(constant, settings)
        if not by:
            continue
        rows = []
        for setting in settings:
            cells = [setting]
            for kind in ("chosen on", "apart"):
                means = [gmean(x) for f, x in by[setting].items() if set_of(f) == kind]
                some = f"{gmean(means):.4f} ({min(means):.3f} to {max(means):.3f})" if means else ""
                cells.append(some)
            rows.append(cells)
        lines += [f"{constant}: ratio to the package's setting, below 1 is better", ""]
        lines += [*markdown_table(["setting", "chosen on", "apart"], rows), "", left_out(by), ""]
    return lines


def left_out(by: dict[str, dict[str, list[float]]]) -> str:
    """Say which setting the other families of the chosen set would choose, and what it is worth."""
    families = sorted({f for some in by.values() for f in some if set_of(f) == "chosen on"})
    said, worth = [], []
    for family in families:
        rest = [x for x in families if x != family]
        others = {
            setting: gmean([x for f in rest for x in some[f]]) for setting, some in by.items()
        }
        best = min(others, key=others.__getitem__)
        worth.append(gmean(by[best][family]))
        said.append(f"{family}: {best} ({worth[-1]:.3f})")
    return f"Left out, {'; '.join(said)}: {gmean(worth):.4f} in the mean."


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", default=["run", "table"])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run later")
    parser.add_argument("--only", default="", help="annealing, flows or first")
    options = parser.parse_args()
    cycles = astuple(Cycles())
    pieces = {t.name: t.prior for t in portfolio_tactics.PROVERS if getattr(t, "prior", 0.0)}
    package = cycles, flow.Reduction.on_path, pieces
    if package != tuple(next(iter(some.values())) for some in (ANNEALING, FLOWS, FIRST)):
        parser.error(f"the package's constants are {package} now: put them first in this study")
    if "run" in options.stages:
        run(options.jobs, options.minutes, options.only)
    if "table" in options.stages:
        text = "\n".join(tables())
        (HERE / "constants.md").write_text(text, encoding="utf-8")
        print(text)


if __name__ == "__main__":
    main()
