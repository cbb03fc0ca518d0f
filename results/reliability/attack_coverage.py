"""What the attack executes of the code that decides truth: lines and branches, and by how many
problems.

    python results/reliability/attack_coverage.py run --pieces DIR --family makespan --problems 100
    python results/reliability/attack_coverage.py report --pieces DIR

`run` attacks problems of a family (`tests/attack/families.py`, or `adversary`, the derivations of
`tests/proofs/adversary.py`) with interpreted kernels and leaves what they executed in DIR, one file
per piece, each problem a context of its own; it goes on where the pieces end, and stops after
--seconds. `report` joins the pieces: `coverage.csv` has a row per file, `coverage-unreached.csv`
every line and branch that no problem reaches, with the reason that `coverage-reasons.csv` gives for
it: for a line by its text, or for all of a file (`*`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PIECE = 20
"""Problems of a piece."""

ENOUGH = 50
"""Problems that should reach every line and branch."""

DECIDING = (
    "placeopt/*/bounds/*.py",
    "placeopt/splits/bounds.py",
    "schedules/bounds.py",
    "placeopt/period/contracted.py",
    "placeopt/sharding/reduction.py",
    "placeopt/sharding/compact.py",
    "placeopt/makespan/coarsening.py",
    "tools/proof_checker/*.py",
)
"""Bounds, reductions, contractions, and the steps of the checker."""


def deciding_files() -> list[Path]:
    """Return the files that decide truth, without those that hold nothing but a docstring."""
    found = [path for pattern in DECIDING for path in sorted(ROOT.glob(pattern))]
    return [
        path.resolve()
        for path in found
        if "\nimport" in (text := path.read_text()) or "\nfrom" in text
    ]


def attacks() -> dict[str, Callable[[int], Any]]:
    """Return what attacks one seed, by family."""
    sys.path[:0] = [str(ROOT / "tests" / "attack"), str(ROOT / "tests" / "proofs")]
    from families import FAMILIES

    def adversary(seed: int) -> None:
        from adversary import FAMILIES as AIMS
        from adversary import attacked

        attacked(AIMS[seed % len(AIMS)], seed, 10)

    return {**FAMILIES, "adversary": adversary}


def run(options: argparse.Namespace) -> None:
    """Attack piece after piece of a family."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    from coverage import Coverage

    options.pieces.mkdir(parents=True, exist_ok=True)
    end, attack = time.monotonic() + options.seconds, attacks()[options.family]
    attack(options.first)  # imports and caches belong to no problem
    for first in range(options.first, options.first + options.problems, PIECE):
        path = options.pieces / f"{options.family}-{first}.coverage"
        if path.exists() or time.monotonic() > end:
            continue
        partial = path.with_suffix(".partial")
        cover = Coverage(
            data_file=str(partial),
            branch=True,
            config_file=False,
            include=[str(p) for p in deciding_files()],
        )
        cover.erase()
        cover.start()
        for seed in range(first, first + PIECE):
            cover.switch_context(f"{options.family}:{seed}")
            attack(seed)
        cover.stop()
        cover.save()
        partial.rename(path)
        print(path.name, flush=True)


def report(options: argparse.Namespace) -> None:
    """Join the pieces and write the tables."""
    from coverage import Coverage

    from placeopt.experiments.studies import read_csv, write_csv

    cover = Coverage(data_file=None, branch=True, config_file=False)
    cover.exclude("if TYPE_CHECKING:")
    cover.combine([str(p) for p in sorted(options.pieces.glob("*.coverage"))], keep=True)
    data = cover.get_data()
    problems = sorted(x for x in data.measured_contexts() if x)
    lines, arcs = _reached(cover, data, problems)
    reasons = {
        (row["file"], row["text"]): row["reason"] for row in read_csv(HERE / "coverage-reasons.csv")
    }
    rows, unreached = [], []
    for path in deciding_files():
        name = path.relative_to(ROOT).as_posix()
        row, rest = _file_rows(cover, path, name, lines[str(path)], arcs[str(path)], reasons)
        rows.append(row)
        unreached += rest
    whole = {key: sum(row[key] for row in rows) for key in rows[0] if key != "file"}
    rows.append({"file": f"all, {len(problems)} problems", **whole})
    write_csv(HERE / "coverage.csv", rows)
    write_csv(HERE / "coverage-unreached.csv", unreached)
    counts = Counter(x.split(":")[0] for x in problems)
    print(", ".join(f"{family} {count}" for family, count in sorted(counts.items())))
    print(rows[-1])


def _reached(
    cover: Any, data: Any, problems: list[str]
) -> tuple[dict[str, Counter[int]], dict[str, Counter[Any]]]:
    """Return, per file, the number of problems that reach each line and each branch."""
    lines: dict[str, Counter[int]] = defaultdict(Counter)
    arcs: dict[str, Counter[Any]] = defaultdict(Counter)
    readers = {name: cover._get_file_reporter(name) for name in data.measured_files()}
    for problem in problems:
        data.set_query_context(problem)
        for name, reader in readers.items():
            raw = data.arcs(name) or ()
            arcs[name].update(set(reader.translate_arcs(raw)))
            lines[name].update(
                set(reader.translate_lines({x for pair in raw for x in pair if x > 0}))
            )
    data.set_query_contexts(None)
    return lines, arcs


def _file_rows(
    cover: Any,
    path: Path,
    name: str,
    lines: Counter[int],
    arcs: Counter[Any],
    reasons: dict[tuple[str, str], str],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row of a file, and those of what fewer than ENOUGH problems reach in it."""
    analysis = cover._analyze(str(path))
    body, text = _body(analysis), path.read_text().splitlines()
    known = analysis.executed_branch_arcs(), analysis.missing_branch_arcs()
    branches = sorted((a, b) for found in known for a, ends in found.items() for b in ends)
    rest = []
    for place, count in [((a,), lines[a]) for a in body] + [
        ((a, b), arcs[a, b]) for a, b in branches
    ]:
        if count:
            continue
        said = text[place[0] - 1].strip()
        target = "" if len(place) < 2 else ("leave" if place[1] < 0 else text[place[1] - 1].strip())
        rest.append(
            {
                "file": name,
                "kind": "line" if len(place) < 2 else "branch",
                "line": place[0],
                "text": said,
                "to": target,
                "reason": reasons.get((name, said), reasons.get((name, "*"), "")),
            }
        )
    hit = [lines[a] for a in body], [arcs[pair] for pair in branches]
    row: dict[str, Any] = {"file": name}
    for what, counts in zip(("lines", "branches"), hit, strict=True):
        row[what] = len(counts)
        row[f"{what} reached"] = sum(x > 0 for x in counts)
        row[f"{what} by {ENOUGH} problems"] = sum(x >= ENOUGH for x in counts)
    row["unreached without a reason"] = sum(not x["reason"] for x in rest)
    return row, rest


def _body(analysis: Any) -> list[int]:
    """Return the lines of statements that run inside functions: imports, definitions and constants
    run once, before any problem.
    """
    import ast

    tree = ast.parse(Path(analysis.filename).read_text())
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            first = node.body[0] if isinstance(node, ast.FunctionDef) else node.body
            inside.update(range(first.lineno, (node.end_lineno or first.lineno) + 1))
    return sorted(set(analysis.statements) & inside)


def main() -> None:
    """Run pieces, or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=["run", "report"])
    parser.add_argument("--pieces", type=Path, required=True, help="folder of the pieces")
    parser.add_argument("--family", default="makespan")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--first", type=int, default=2_000_000, help="first seed")
    parser.add_argument("--seconds", type=float, default=420.0, help="begin no piece after that")
    options = parser.parse_args()
    (run if options.stage == "run" else report)(options)


if __name__ == "__main__":
    main()
