"""The attack by families: `python results/reliability/attack_families.py --problems 200000`; it
goes on where its CSV ends.

A row is a chunk of seeds of one family: problems, those with a solution, differences, the first of
them, and seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "attack"))

from families import FAMILIES  # noqa: E402

from placeopt.experiments.studies import read_csv, write_csv  # noqa: E402

CHUNK = 200
TABLE = HERE / "attack-families.csv"


def attack_chunk(family: str, first: int) -> dict[str, Any]:
    """Attack CHUNK problems of a family."""
    began, feasible, wrong = time.perf_counter(), 0, []
    for seed in range(first, first + CHUNK):
        outcome = FAMILIES[family](seed)
        feasible += outcome.feasible
        wrong += [f"seed {seed}: {outcome.differences[0]}"] if outcome.differences else []
    return {
        "family": family,
        "first": first,
        "problems": CHUNK,
        "feasible": feasible,
        "differences": len(wrong),
        "example": wrong[0] if wrong else "",
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Attack chunk after chunk, the families by turns, and write each to the CSV at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=1_000_000, help="first seed")
    options = parser.parse_args()
    rows = read_csv(TABLE)
    known = {(row["family"], int(row["first"])) for row in rows}
    for number in range(-(-options.problems // CHUNK)):
        family = list(FAMILIES)[number % len(FAMILIES)]
        first = options.first + CHUNK * (number // len(FAMILIES))
        if (family, first) not in known:
            rows.append(attack_chunk(family, first))
            write_csv(TABLE, rows)


if __name__ == "__main__":
    main()
