"""What is recorded: every table of results/, its rows, and the commits that it was recorded on.

    python results/record.py          # a line per CSV file
    python results/record.py --json

A row names its commit in the column `commit` and the load of the machine in `load`, which
`write_csv` of placeopt.experiments.studies adds; where a file has none, the commit that last
changed the file stands in brackets. Ages are in days, by the date of the commit.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

RESULTS = Path(__file__).resolve().parent


def git(*words: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *words], cwd=RESULTS, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def described(path: Path) -> dict[str, object]:
    """Return the study, file, rows, commits and age of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    commits = Counter(row["commit"] or "not said" for row in rows if "commit" in row)
    last, _, date = git("log", "-1", "--format=%h %ct", "--", str(path)).partition(" ")
    return {
        "study": str(path.parent.relative_to(RESULTS)),
        "file": path.name,
        "rows": len(rows),
        "commits": dict(commits) if commits else f"[{last}]",
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


if __name__ == "__main__":
    main()
