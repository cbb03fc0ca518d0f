"""The README of the job-stream study says what its committed CSV files say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[2] / "results" / "job_streams"
ROWS = {
    "`rollout`": "rollout", "`policy-degree`": "policy-degree", "constant degree 4": "constant-degree:4",
    "constant degree 8": "constant-degree:8", "no policy blocks less than": "offline bound",
}  # fmt: skip


@pytest.mark.parametrize("rule", ["published", "uniform"])
def test_headline_tables(rule):
    """Every number of ours in the table of a split rule is that of the CSV, to four digits, with its half interval."""
    with (STUDY / f"{rule}.csv").open(newline="") as file:
        found = {(row["policy"], row["beta"]): row for row in csv.DictReader(file)}
    text = (STUDY / "README.md").read_text()
    table = text[text.index(f"| blocking rate, {rule} split rule") :].split("\n\n")[0].splitlines()[2:]
    seen = 0
    for line in table:
        name, *cells = (cell.strip().strip("*") for cell in line.strip("|").split("|"))
        if name not in ROWS:
            continue
        for beta, cell in zip("ABCD", cells, strict=True):
            row = found[ROWS[name], beta]
            expected = f"{float(row['blocking']):.4f}"
            if "±" in cell:
                expected += f" ± {(float(row['high']) - float(row['low'])) / 2:.4f}"
            assert cell == expected, (name, beta)
            seen += 1
    assert seen == 16


def test_the_published_rule_comes_first():
    """The comparison with the paper stands before the one under another rule."""
    text = (STUDY / "README.md").read_text()
    assert text.index("published split rule |") < text.index("uniform split rule |")
