"""What is recorded: every table of results/, its rows, and the commits that it was recorded on.

    python results/record.py          # a line per CSV file, then how many rows are of today's code
    python results/record.py --json

A row names its commit in the column `commit` and the load of the machine in `load`, which
`write_csv` of placeopt.experiments.studies adds; where a table has no such column, the commit that
last changed the file stands in brackets. Ages are in days, by the date of the commit. A row is of
today's code where no file of the package differs between its commit and the present one. One that
was recorded on a changed tree (a plus sign) is not.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent
PACKAGE = "placeopt", "solvers", "schedules", "instances"


def git(*words: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *words], cwd=RESULTS, capture_output=True, text=True, check=False)
    return done.stdout.strip()


@lru_cache
def current(commit: str) -> bool:
    """Return whether the package of a commit is that of the present one."""
    known = re.fullmatch("[0-9a-f]{7,40}", commit)
    differs = ["git", "diff", "--quiet", commit, "HEAD", "--", *(f":/{room}" for room in PACKAGE)]
    return bool(known) and subprocess.run(differs, cwd=RESULTS, check=False).returncode == 0


def described(path: Path) -> dict[str, Any]:
    """Return the study, file, rows, commits and age of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    commits = Counter(row["commit"] or "not said" for row in rows if "commit" in row)
    last, _, date = git("log", "-1", "--format=%h %ct", "--", str(path)).partition(" ")
    of = commits or {last: len(rows)}
    return {
        "study": str(path.parent.relative_to(RESULTS)),
        "file": path.name,
        "rows": len(rows),
        "commits": dict(commits) if commits else f"[{last}]",
        "rows of today's code": sum(count for commit, count in of.items() if current(commit)),
        "days": round((time.time() - int(date)) / 86400, 1) if date else None,
    }


def main() -> None:
    """Print a line per table."""
    tables = [described(path) for path in sorted(RESULTS.rglob("*.csv"))]
    if "--json" in sys.argv[1:]:
        print(json.dumps(tables, indent=1))
        return
    for table in tables:
        commits = table["commits"]
        said = (
            commits
            if isinstance(commits, str)
            else ", ".join(f"{c} ({n})" for c, n in commits.items())
        )
        print(
            f"{table['study']}/{table['file']}: {table['rows']} rows, {said}, {table['days']} days"
        )
    fresh, rows = (sum(table[key] for table in tables) for key in ("rows of today's code", "rows"))
    print(f"{len(tables)} tables with {rows} rows, {fresh} of them of today's code")


if __name__ == "__main__":
    main()
