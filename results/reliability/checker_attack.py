"""The checker of proofs against an adversary (`tests/proofs/adversary.py`): a part of
`study.py`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

Row = dict[str, Any]
PROOFS = Path(__file__).resolve().parents[2] / "tests" / "proofs"
PER_PROBLEM = 40
CHUNK = 100
"""Problems that a process takes at a time."""


def adversary(options: argparse.Namespace) -> list[Row]:
    """Random and changed derivations at an optimum that brute force knows, where none may close,
    and just below it.
    """
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for family in _families():
            row: Row = {"family": family, "problems": 0, "derivations": 0, "steps that passed": 0}
            row.update({"closed at the optimum": 0, "closed just below it": 0})
            first, wrong = options.first, ""
            while row["derivations"] < options.derivations:
                starts = range(first, first + 4 * CHUNK, CHUNK)
                for problems, tally in pool.map(_chunk, [family] * len(starts), starts):
                    row["problems"] += problems
                    row["derivations"] += tally.derivations
                    row["steps that passed"] += tally.steps
                    row["closed at the optimum"] += tally.at_optimum
                    row["closed just below it"] += tally.below
                    wrong = wrong or tally.first
                first += 4 * CHUNK
            row["share just below it"] = round(row["closed just below it"] / row["derivations"], 3)
            row["as required"] = row["closed at the optimum"] == 0
            print("adversary:", row, wrong, flush=True)
            rows.append(row)
    return rows


def _families() -> tuple[str, ...]:
    sys.path.insert(0, str(PROOFS))
    import adversary

    return adversary.FAMILIES


def _chunk(family: str, start: int) -> tuple[int, Any]:
    """Return how many of the problems from a seed on have a solution to attack, and the tally of
    all of them.
    """
    sys.path.insert(0, str(PROOFS))
    import adversary

    total, problems = adversary.Tally(), 0
    for seed in range(start, start + CHUNK):
        tally = adversary.attacked(family, seed, PER_PROBLEM)
        problems += tally.derivations > 0
        total.add(tally)
    return problems, total


__all__ = ["adversary"]
