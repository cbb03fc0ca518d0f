"""The bound alone by the memory of its steps, with and without stars, on developed problems.

    PLACEOPT_DATA=../shared/data python results/sharding/step_memory.py [--seconds 2] [NAME ...]

A name is a row of generated.py, or a letter of a given problem. Every rule begins at the same
reductions and the same known value (`--known` seconds of a solve before, or for a letter what
contest.csv stores), takes steps and certifies as the tactic `prices` does, and is read at doubling
times. The clock is the processor time of the thread. Rows are written to step_memory.csv.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generated import problem_of, processor_clock

import placeopt as po
from placeopt.experiments.studies import data_folder, read_csv, write_csv
from placeopt.sharding.bounds import bounding as bounds
from placeopt.sharding.bounds import lagrangian

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.sharding.problem import ShardingProblem

HERE = Path(__file__).parent
TABLE = HERE / "step_memory.csv"
NAMES = ("inference:1000:7", "loose:1000:7", "staircase:1000:7", "training:5000:9", "R", "T")
CERTIFIED = 10
"""Time of the steps before an exact pass, relative to that of the last one."""

RULES: dict[str, Callable[[int, float], float]] = {
    "0.2": lambda _age, _length: 0.2,
    "0.05": lambda _age, _length: 0.05,
    "0.02": lambda _age, _length: 0.02,
    "1 / sqrt(age)": lambda age, _length: age**-0.5,
    "default": lagrangian.newest_weight,
}
"""Weight of the newest gradient."""


def problem_and_value(name: str, known: float) -> tuple[ShardingProblem, int]:
    """Return a problem and a known value of it."""
    if ":" not in name:
        rows = read_csv(HERE / "contest.csv", numbers=True)
        value = next(row["value"] for row in rows if row["name"] == name)
        return po.load(data_folder("iopddl") / f"asplos-2025-iopddl-{name}.json.gz"), int(value)
    problem = problem_of(name)
    with processor_clock():
        return problem, int(po.solve(problem, seconds=known, seed=5).value)


def gaps(bounding: bounds.Bounding, value: int, seconds: float) -> list[tuple[float, float, int]]:
    """Return (seconds, gap, steps) at doubling times up to `seconds`."""
    begun = certified = time.thread_time()
    found, pause, steps, mark = [], 0.0, 0, seconds / 8
    while mark <= seconds and not bounding.settled:
        bounding.step()
        steps += 1
        now = time.thread_time()
        if now - certified >= CERTIFIED * pause or now - begun >= mark:
            bounding.certify()
            certified = time.thread_time()
            pause = certified - now
            while mark <= min(seconds, certified - begun):
                found.append((mark, 1.0 - bounding.bound / value, steps))
                mark *= 2
    return found or [(seconds, 1.0 - bounding.bound / value, steps)]


def rows_of(name: str, seconds: float, known: float) -> list[dict[str, Any]]:
    """Return the rows of a problem."""
    problem, value = problem_and_value(name, known)
    forbidden = bounds.MAX_TOTAL // (problem.num_nodes + problem.num_edges + 1)
    remains = bounds.without_forbidden(problem, forbidden, value)
    reductions, rule, look = (
        bounds.without_forbidden,
        lagrangian.newest_weight,
        lagrangian.Dual.look_for_stars,
    )
    rows = []
    try:
        bounds.without_forbidden = lambda *_: remains  # the same for all
        for stars in (True, False):
            for words, weight in RULES.items():
                if not stars and words != "default":
                    continue
                lagrangian.newest_weight = weight
                lagrangian.Dual.look_for_stars = look if stars else lambda _dual: None  # type: ignore[method-assign]
                for at, gap, steps in gaps(bounds.Bounding(problem, value), value, seconds):
                    rows.append(
                        {"name": name, "weight": words, "stars": stars, "seconds": at}
                        | {"gap": gap, "steps": steps, "known": value}
                    )
    finally:
        bounds.without_forbidden = reductions
        lagrangian.newest_weight, lagrangian.Dual.look_for_stars = rule, look  # type: ignore[method-assign]
    return rows


def main() -> None:
    """Measure the problems named, and write their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--known", type=float, default=3.0)
    arguments = parser.parse_args()
    for name in arguments.names:
        rows = rows_of(name, arguments.seconds, arguments.known)
        kept = [row for row in read_csv(TABLE) if row["name"] != name]
        write_csv(TABLE, [*kept, *rows], digits=6)
        for row in rows:
            print(row, flush=True)


if __name__ == "__main__":
    main()
