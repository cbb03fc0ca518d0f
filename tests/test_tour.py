"""The newcomer's tour of CONTRIBUTING.md leads through files and names that exist, and is short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` \(([^)]+)\)")


def walks() -> dict[str, str]:
    """Return the text of each walk by its title."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tour = page[page.index("## A newcomer's tour") : page.index("## Rules that are easy to break")]
    parts = re.split(r"^\*\*(.+?)\*\*.*:$", tour, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_there_are_three_walks():
    """A problem, a bound and a plan are followed from their beginning to what the user sees."""
    assert [title.split()[1] for title in walks()] == ["problem", "bound", "plan"]


@pytest.mark.parametrize("title", walks())
def test_a_walk_names_what_exists(title):
    """Every file of a walk is there, and defines the names that it is visited for."""
    steps = [STEP.match(line) for line in walks()[title].splitlines() if line[:1].isdigit()]
    assert steps
    for step in steps:
        assert step is not None, f"{title}: a step without file and names"
        path, names = step[1], re.findall(r"`(\w+)`", step[2])
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        known = {getattr(node, "name", None) for node in tree.body}
        assert names, f"{path} is visited for nothing"
        assert set(names) <= known, f"{path} does not define {set(names) - known}"


@pytest.mark.parametrize("title", walks())
def test_a_walk_is_short(title):
    """A walk leads through at most 12 files and goes back to one of them at most 3 times."""
    visited = re.findall(r"`([\w/]+\.py)`", walks()[title])
    assert len(set(visited)) <= 12
    assert len(visited) - len(set(visited)) <= 3
