"""Sharding problems like the contest's, drawn or derived: gaps, and values against longer runs.

    PLACEOPT_DATA=../shared/data python results/sharding/generated.py [--seconds 10] [--long 0]
        [--rows 99]

Bound and search take turns, each for `--seconds` of processor time, CP-SAT counted, so that the load
of the machine does not count. `--long` measures rows that are there once more with so many seconds
and another seed, and keeps the lowest value. Each row is written to generated.csv when it is done;
the study may be stopped and continued, and rows of other code are measured anew. `set` says whether
a choice was made on a family ("developed") or not ("apart").
"""

from __future__ import annotations

import argparse
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placeopt as po
from placeopt.experiments.studies import data_folder, markdown_table, read_csv, write_csv
from placeopt.sharding.contest_like import APART, FAMILIES, contest_like, derived
from placeopt.sharding.two_sided import TwoSided

if TYPE_CHECKING:
    from placeopt.sharding.problem import ShardingProblem

HERE = Path(__file__).parent
TABLE = HERE / "generated.csv"
SIZES = (1000, 5000, 20000, 100000)
DERIVED: dict[str, dict[str, Any]] = {
    "limit 1.02": {"limit": Fraction(102, 100)},
    "limit 1.3": {"limit": Fraction(13, 10)},
    "permuted": {"permuted": 1},
    "twice": {"copies": 2, "limit": Fraction(11, 10)},
}
DEVELOPED_LETTERS = "BRT"
APART_LETTERS = "GDL"


def rows() -> list[tuple[str, str]]:
    """Return the names of all problems with the set that they belong to, small ones first."""
    named = [("developed", f) for f in FAMILIES] + [("apart", f) for f in APART]
    drawn = [(f"{f}:{n}:{7 + i}", kind) for i, n in enumerate(SIZES) for kind, f in named]
    letters = [(x, "developed") for x in DEVELOPED_LETTERS] + [(x, "apart") for x in APART_LETTERS]
    made = [(f"{x}:{how}:0", kind) for how in DERIVED for x, kind in letters]
    return drawn[:32] + made + drawn[32:]


def problem_of(name: str) -> ShardingProblem:
    """Return the problem of a row."""
    family, size, seed = name.split(":")
    if size in DERIVED:
        given = po.load(data_folder("iopddl") / f"asplos-2025-iopddl-{family}.json.gz")
        return derived(given, **DERIVED[size])
    return contest_like(family, int(size), int(seed))


def measured(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """Return value and bound after `seconds` of processor time of each side."""
    problem = problem_of(name)
    sides = TwoSided(problem, np.random.default_rng(seed))
    sides.start()
    spent = part = 0.1
    while spent < seconds and not sides.trivial and sides.search is not None:
        begun = time.process_time()
        while time.process_time() - begun < part:
            sides.dual.step()
        half = time.process_time()
        while time.process_time() - half < half - begun:
            sides.moves += sides.search.round(500)
        sides.exchange()
        spent += half - begun
        part = min(2.0, 0.1 + spent / 5)
        if spent >= seconds or sides.certify_seconds < part / 10:
            sides.certify()
            sides.finish(part)
    value = sides.condensed.offset + (0 if sides.search is None else sides.search.best_cost)
    return {
        "nodes": problem.num_nodes,
        "core": sides.compact.num_nodes - sides.compact.core,
        "value": value,
        "bound": sides.bound,
        "gap": 1.0 - sides.bound / value if value else 0.0,
    }


def main() -> None:
    """Measure what is missing, then print the sums."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--long", type=float, default=0.0)
    parser.add_argument("--rows", type=int, default=999, help="at most so many rows")
    arguments = parser.parse_args()
    from study import sources

    made_by = {"seconds": f"{arguments.seconds:g}", "sources": sources()}
    left = arguments.rows
    for name, kind in rows():
        table = read_csv(TABLE)
        mine = next((row for row in table if row["name"] == name), {})
        fresh = made_by.items() <= mine.items()
        if left <= 0 or (fresh and not arguments.long):
            continue
        left -= 1
        if fresh:
            longer = measured(name, arguments.long, seed=1)
            best = min(longer["value"], int(mine.get("best") or mine["value"]))
            row = mine | {"best": best, "long": arguments.long}
        else:
            row = {"name": name, "set": kind} | measured(name, arguments.seconds, seed=0) | made_by
        order = {x: i for i, (x, _) in enumerate(rows())}
        table = [x for x in table if x["name"] != name] + [row]
        write_csv(TABLE, sorted(table, key=lambda x: order[x["name"]]), digits=6)
        print(row, flush=True)
    print("\n".join(sums()))


def sums() -> list[str]:
    """Return mean and largest gaps, and values against longer runs, by set."""
    found = read_csv(TABLE, numbers=True)
    heads = ("set", "problems", "mean gap %", "largest %", "longer runs", "worst value / best")
    lines = []
    for kind in ("developed", "apart"):
        mine = [row for row in found if row["set"] == kind]
        if mine:
            gaps = [100 * float(row["gap"]) for row in mine]
            ratios = [row["value"] / row["best"] for row in mine if row.get("best")]
            worst = round(max(ratios), 4) if ratios else "-"
            mean = round(sum(gaps) / len(gaps), 2)
            lines.append((kind, len(mine), mean, round(max(gaps), 2), len(ratios), worst))
    return markdown_table(heads, lines)


if __name__ == "__main__":
    main()
