"""Sharding problems like the contest's, drawn or derived: gaps, and values against longer runs.

    PLACEOPT_DATA=../shared/data python results/sharding/generated.py [--seconds 10]
        [--per-node 0.001] [--long 0] [--minutes 60]

Each problem is solved for `--per-node` seconds times its nodes, at least for `--seconds`, of a
clock that counts half the processor time of this process: that is time on two idle cores, whatever
else the machine does. The contest allowed 60 to 300 s for some 800 to 62 000 nodes. `--long`
measures rows that are there once more with so many seconds and another seed, and keeps the lowest
value; a row whose gap is at most 1 % is within that of every choice, and is not run longer. `set`
says whether a choice was made on a family ("developed") or not ("apart"). Rows come in rounds over
all families, those apart first, so that a run that is stopped early says something of each; each
row is written to generated.csv when it is done, and rows of other code are measured anew. The sums,
by set and by family, are printed and written to generated.md.
"""

from __future__ import annotations

import argparse
import time
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contest_like import APART, FAMILIES, contest_like, derived

import placeopt as po
from placeopt.experiments.studies import data_folder, markdown_table, read_csv, write_csv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.sharding.problem import ShardingProblem

HERE = Path(__file__).parent
TABLE = HERE / "generated.csv"
SIZES = (1000, 300, 5000, 20000, 100000)
DERIVED: dict[str, dict[str, Any]] = {
    "limit 1.02": {"limit": Fraction(102, 100)},
    "limit 1.3": {"limit": Fraction(13, 10)},
    "permuted": {"permuted": 1},
    "twice": {"copies": 2, "limit": Fraction(11, 10)},
}
DEVELOPED_LETTERS = "BRT"
APART_LETTERS = "GDL"
NEAR = 0.01
"""Gap up to which a value counts as close to the best one: no choice costs less by a larger part."""

WARM_SECONDS = 1.0
"""Of a solve before the first row, in which kernels are compiled and loaded."""


def rows() -> list[tuple[str, str]]:
    """Return the names of all problems with the set that they belong to, in rounds."""
    families = [*APART, *FAMILIES]
    drawn = [[f"{f}:{n}:{7 + i}" for f in families] for i, n in enumerate(SIZES)]
    made = [f"{x}:{how}:0" for how in DERIVED for x in APART_LETTERS + DEVELOPED_LETTERS]
    names = [*chain(*drawn[:3]), *made, *chain(*drawn[3:])]
    return [(name, set_of(name.split(":")[0])) for name in names]


def set_of(family: str) -> str:
    """Return the set of a family, or of the letter of a given problem."""
    return "developed" if family in FAMILIES or family in DEVELOPED_LETTERS else "apart"


def problem_of(name: str) -> ShardingProblem:
    """Return the problem of a row."""
    family, size, seed = name.split(":")
    if size in DERIVED:
        given = po.load(data_folder("iopddl") / f"asplos-2025-iopddl-{family}.json.gz")
        return derived(given, **DERIVED[size])
    return contest_like(family, int(size), int(seed))


@contextmanager
def processor_clock() -> Iterator[None]:
    """Have the package's clock count half the processor time of this process."""
    clock = time.perf_counter
    time.perf_counter = lambda: time.process_time() / 2
    try:
        yield
    finally:
        time.perf_counter = clock


def measured(name: str, seconds: float, seed: int, *, per_node: float = 0.0) -> dict[str, Any]:
    """Return value and bound after `seconds`, or `per_node` of them for each node if that is
    more.
    """
    problem = problem_of(name)
    seconds = max(seconds, per_node * problem.num_nodes)
    with processor_clock():
        result = po.solve(problem, seconds=seconds, seed=seed)
    violations = po.verify(problem, result, seconds=0).violations
    if violations:
        raise SystemExit(f"{name}: {violations[0]}")
    return {
        "nodes": problem.num_nodes,
        "value": result.value,
        "bound": result.lower_bound,
        "gap": 1.0 - result.lower_bound / result.value if result.value else 0.0,
        "status": result.status,
        "spent": round(result.runtime, 2),
    }


def main() -> None:
    """Measure what is missing, then print the sums."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--per-node", type=float, default=0.001)
    parser.add_argument("--long", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no row after these")
    arguments = parser.parse_args()
    from study import sources

    limits = {"seconds": f"{arguments.seconds:g}", "per_node": f"{arguments.per_node:g}"}
    made_by = {**limits, "sources": sources()}
    order = {name: i for i, (name, _) in enumerate(rows())}
    end = time.monotonic() + 60 * arguments.minutes
    po.solve(problem_of("training:100:0"), seconds=WARM_SECONDS)
    for name, kind in rows():
        table = [row for row in read_csv(TABLE) if row["name"] in order]
        mine = next((row for row in table if row["name"] == name), {})
        fresh = made_by.items() <= mine.items()
        near = fresh and float(mine["gap"]) <= NEAR
        if fresh and (near or not arguments.long or mine.get("long") == f"{arguments.long:g}"):
            continue
        if time.monotonic() > end:
            break
        if fresh:
            longer = measured(name, arguments.long, seed=1)
            best = min(longer["value"], int(mine.get("best") or mine["value"]))
            row = mine | {"best": best, "long": f"{arguments.long:g}"}
        else:
            found = measured(name, arguments.seconds, seed=0, per_node=arguments.per_node)
            row = {"name": name, "set": kind} | found | made_by
        table = [x for x in table if x["name"] != name] + [row]
        write_csv(TABLE, sorted(table, key=lambda x: order[x["name"]]), digits=6)
        print(row, flush=True)
    lines = ["# Drawn and derived problems", "", *sums(made_by)]
    (HERE / "generated.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[2:]))


def sums(made_by: dict[str, str]) -> list[str]:
    """Return mean and largest gaps, and values against longer runs, by set and by family: of this
    code's rows.
    """
    found = [row for row in read_csv(TABLE, numbers=True) if row["sources"] == made_by["sources"]]
    heads = (
        "set",
        "of",
        "problems",
        "proved",
        "mean gap %",
        "largest %",
        "at most 1 %",
        "above 15 %",
        "longer runs",
        "worst value / best",
    )
    lines = []
    for kind in ("apart", "developed"):
        mine = [row for row in found if row["set"] == kind]
        groups: dict[str, list[dict[str, Any]]] = {
            "all": mine,
            "below 4000 nodes": [row for row in mine if row["nodes"] < 4000],
            "more nodes": [row for row in mine if row["nodes"] >= 4000],
        }
        for row in mine:
            groups.setdefault(row["name"].split(":")[0], []).append(row)
        lines += [(kind, words, *_counts(rows)) for words, rows in groups.items() if rows]
    return markdown_table(heads, lines)


def _counts(rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Return the numbers of a line of the table."""
    gaps = [100 * float(row["gap"]) for row in rows]
    ratios = [row["value"] / row["best"] for row in rows if row.get("best")]
    proved = sum(row["status"] == "optimal" for row in rows)
    mean, most = sum(gaps) / len(gaps), max(gaps)
    near, above = sum(gap <= 100 * NEAR for gap in gaps), sum(gap > 15 for gap in gaps)
    worst = round(max(ratios, default=0), 4) or "-"
    return (len(rows), proved, round(mean, 2), round(most, 2), near, above, len(ratios), worst)


if __name__ == "__main__":
    main()
