"""What is recorded: every study of results/, its tables and rows, the commits that they are of, and
the one command that records it all.

    python results/record.py                            # a line per study
    python results/record.py tables [--json]            # a line per CSV file
    python results/record.py run [STUDY ...] [--minutes M]    # record what is of other code, in order
    python results/record.py again [STUDY ...] [--rows 20] [--seed 3]    # measure drawn rows again

Studies and their commands are in studies.toml. A row names its commit in the column `commit` and
the load of the machine in `load`, which `write_csv` of placeopt.experiments.studies adds, as does
the store of a grid; where a table has no such column, the commit that last changed the file stands
in brackets. A row is of today's code where no file of the package differs between its commit and
the present tree. One that was recorded on a changed tree (a plus sign) is not.

`run` runs the commands of every study of which a row is not of today's code, draws the pages, and
notes in minutes.csv how long a study took and what ran beside it. Stop it and start it again: what
is of today's code by then is not run again. After `--minutes` it begins no study, and those that go
on where they ended begin no row.

`again` draws rows of today's code by a seed, measures each by the command that studies.toml has for
one row, in a fresh clone, and writes what differs to again.csv; seconds are not compared. Where a
row has the numbers of several runs that a clock ended (the columns `spread` of the study), one more
may end in the interval in which 95 % of further runs lie (Student's t for one more value).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from placeopt.experiments.cell import commit, same_package
from placeopt.experiments.store import latest, read_rows
from placeopt.experiments.studies import ORIGIN, data_folder, read_csv, write_csv

RESULTS = Path(__file__).resolve().parent
STUDIES = RESULTS / "studies.toml"
MINUTES = RESULTS / "minutes.csv"
Study = dict[str, Any]


def studies() -> dict[str, Study]:
    """Return the studies by name."""
    return tomllib.loads(STUDIES.read_text(encoding="utf-8"))


def files(study: Study) -> list[Path]:
    """Return the tables of a study that are there."""
    return [path for pattern in study["tables"] for path in sorted(RESULTS.glob(pattern))]


def described(path: Path) -> dict[str, Any]:
    """Return the file, rows, commits and age of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if rows and "commit" not in rows[0]:  # the report of a grid, whose runs say it
        runs = list(latest(read_rows(path.parent / "runs.jsonl")).values())
        rows = runs if runs and all("commit" in run for run in runs) else rows
    commits = Counter(row["commit"] or "not said" for row in rows if "commit" in row)
    words = ["git", "log", "-1", "--format=%h %ct", "--", str(path)]
    done = subprocess.run(words, cwd=RESULTS, capture_output=True, text=True, check=False)
    last, _, date = done.stdout.strip().partition(" ")
    of = commits or {last: len(rows)}
    return {
        "file": str(path.relative_to(RESULTS)),
        "rows": len(rows),
        "commits": dict(commits) if commits else f"[{last}]",
        "rows of today's code": sum(n for name, n in of.items() if same_package(name)),
        "days": round((time.time() - int(date)) / 86400, 1) if date else None,
    }


def stale(study: Study) -> int:
    """Return how many rows of a study are not of today's code; one where it has none."""
    tables = [described(path) for path in files(study)]
    return sum(x["rows"] - x["rows of today's code"] for x in tables) if tables else 1


def minutes_of(name: str, study: Study) -> str:
    """Say how long a study takes: as it was noted, or by the seconds of its rows."""
    noted = [row for row in read_csv(MINUTES) if row["study"] == name]
    if noted:
        return f"{noted[0]['minutes']} minutes on {noted[0]['commit']}"
    spent = sum(
        float(row[column] or 0) * float(row.get("runs") or 1)
        for path in files(study)
        for row in read_csv(path)
        for column in study.get("seconds", ())
        if column in row
    )
    return f"about {spent / 60:.0f} minutes by its rows" if spent else "minutes not noted yet"


def line_of(table: dict[str, Any]) -> str:
    """Return the line of a table."""
    commits = table["commits"]
    if not isinstance(commits, str):
        commits = ", ".join(f"{name} ({n})" for name, n in commits.items())
    return f"{table['file']}: {table['rows']} rows, {commits}, {table['days']} days"


def status() -> None:
    """Print rows, commits and age of every study, what would be run again, and about how long that
    takes.
    """
    for name, study in studies().items():
        tables, old = [described(path) for path in files(study)], stale(study)
        rows, of = sum(table["rows"] for table in tables), Counter[str]()
        for table in tables:
            known = table["commits"]
            of.update({known: table["rows"]} if isinstance(known, str) else known)
        commits = ", ".join(f"{commit} ({n})" for commit, n in of.items())
        days = max((table["days"] or 0.0 for table in tables), default=0.0)
        again = f"{old} are run again" if old else "all of today's code"
        took = minutes_of(name, study)
        print(f"{name}: {rows} rows of {commits}; {days} days; {again} ({took})")


def run(names: list[str], minutes: float) -> None:
    """Record the studies that are named, all by default."""
    end = time.monotonic() + 60 * minutes
    for name in names or studies():
        study, left = studies()[name], end - time.monotonic()
        old = stale(study)
        print(
            f"{name}: {old} rows to be recorded" if old else f"{name}: of today's code", flush=True
        )
        if not old or left <= 0:
            continue
        began = time.monotonic()
        for command in study["commands"]:
            words = shlex.split(command)
            words[:1] = [sys.executable, *(["-m", "placeopt"] if words[0] == "placeopt" else [])]
            if study.get("goes_on") and minutes < math.inf:
                words += ["--minutes", f"{left / 60:.2f}"]
            print(f"+ {command}", flush=True)
            if subprocess.run(words, cwd=RESULTS.parent, check=False).returncode:
                print(f"{name}: '{command}' failed; the next study", flush=True)
                break
        note(name, (time.monotonic() - began) / 60)
    subprocess.run([sys.executable, str(RESULTS / "draw.py")], check=False)


def again(names: list[str], count: int, seed: int) -> None:
    """Measure rows that a seed draws again, in a fresh clone, and write what differs."""
    there = [
        (name, path.relative_to(RESULTS), i)
        for name, study in studies().items()
        if "again" in study and (name in names or not names)
        for path in files(study)
        for i, row in enumerate(read_csv(path))
        if same_package(row["commit"])
    ]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", str(RESULTS.parent), folder], check=True)
        places = {"PYTHONPATH": folder, "PLACEOPT_DATA": str(data_folder().resolve())}
        for name, table, i in random.Random(seed).sample(there, min(count, len(there))):
            study, row = studies()[name], read_csv(RESULTS / table)[i]
            command = study["again"].format(table=table.stem, **row)
            words = [sys.executable, *shlex.split(command)[1:]]
            done = subprocess.run(
                words, cwd=folder, env=os.environ | places, check=False, capture_output=True
            )
            found = read_csv(Path(folder) / "results" / table)[i]
            uncompared = {*ORIGIN, *study.get("seconds", ()), *study.get("timed", ())}
            spread = study.get("spread", {})
            differing = [
                f"{key} {x} -> {found.get(key)}"
                for key, x in row.items()
                if key not in uncompared
                and x != found.get(key)
                and not within(found.get(key), row.get(spread.get(key, ""), ""))
            ]
            if done.returncode:
                differing = [f"exit code {done.returncode}: {done.stderr.decode()[-200:]}"]
            named = ", ".join(list(row.values())[:3])
            differs = "; ".join(differing)
            rows.append({"table": str(table), "row": named, "command": command, "differs": differs})
            print(f"{table}: {named}: {differs or 'the same'}", flush=True)
            write_csv(RESULTS / "again.csv", rows)


def within(number: str | None, runs: str) -> bool:
    """Return whether a number lies where 95 % of further runs do, by the runs of a row (numbers
    parted by blanks): within t(n - 1) * s * sqrt(1 + 1 / n) of their mean.
    """
    measured = [float(x) for x in runs.split()]
    if not number or len(measured) < 2:
        return False
    half = float(student.ppf(0.975, len(measured) - 1)) * statistics.stdev(measured)
    return abs(float(number) - statistics.mean(measured)) <= half * math.sqrt(1 + 1 / len(measured))


def note(name: str, minutes: float) -> None:
    """Note how long a study took; what it took before on this commit counts."""
    rows = {row["study"]: row for row in read_csv(MINUTES)}
    if name in rows and rows[name]["commit"] == commit():
        minutes += float(rows[name]["minutes"])
    load = round(os.getloadavg()[0], 1)
    rows[name] = {"study": name, "minutes": round(minutes, 1), "commit": commit(), "load": load}
    write_csv(MINUTES, [rows[name] for name in studies() if name in rows])


def main() -> None:
    """List, run, or run again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="?", choices=("studies", "tables", "run", "again"), default="studies"
    )
    parser.add_argument("names", nargs="*", metavar="STUDY", help=", ".join(studies()))
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing later")
    parser.add_argument("--rows", type=int, default=20, help="drawn by `again`")
    parser.add_argument("--seed", type=int, default=3, help="of `again`")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in studies()]:
        parser.error(f"study: expected one of {', '.join(studies())}, received '{unknown[0]}'")
    if given.what == "run":
        run(given.names, given.minutes)
    elif given.what == "again":
        again(given.names, given.rows, given.seed)
    elif given.what == "studies":
        status()
    else:
        tables = [described(path) for path in sorted(RESULTS.glob("*/*.csv"))]
        print(json.dumps(tables, indent=1) if given.json else "\n".join(map(line_of, tables)))


if __name__ == "__main__":
    main()
