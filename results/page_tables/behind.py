"""Where we are behind, on one page: what the tables of every study say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables import (
    doppler_graphs,
    groupings,
    own_systems,
    placement_systems,
    scheduling_systems,
)
from page_tables.source import Source, bullets, percent

if TYPE_CHECKING:
    from collections.abc import Callable

PUBLISHED_PLAN_ERRORS = {"vtrain_single": 8.37, "vtrain_multi": 14.73}
"""Mean errors in percent of the simulator that was published with the measured rows."""


def plans(source: Source) -> list[str]:
    """Sources of measured steps that the fit which did not see them misses by more than published,
    or, where nothing is published, by more than a tenth.
    """
    rows = [row for row in source.rows("plans/runs.csv", gpu="all") if row["source"] != "all"]
    apart = [row for row in rows if row["half"].endswith("apart")]
    errors: dict[str, float] = {}
    for name in sorted({row["source"] for row in apart}):
        own = [row for row in apart if row["source"] == name]
        count = sum(int(row["rows"]) for row in own)
        errors[name] = sum(float(row["mean"]) * int(row["rows"]) for row in own) / count / 100
    far = [
        f"{name} {percent(error)}"
        for name, error in errors.items()
        if error > PUBLISHED_PLAN_ERRORS.get(name, 10.0) / 100
    ]
    published = ", ".join(f"{name} {error} %" for name, error in PUBLISHED_PLAN_ERRORS.items())
    return bullets(
        [
            f"Mean errors of measured steps apart from the fit: {', '.join(far)}; printed: {published}."
        ]
    )


def learning(source: Source) -> list[str]:
    """What the learned weights of the list scheduler are worth after a walk."""
    page = (source.folder / "policy/ablation.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if "tuned-list, without learned weights" in line)
    ratio = row.split("|")[3].strip()
    return bullets(
        [f"`tuned-list` without its learned weights ends {ratio} times as high: not clear of 1."]
    )


PARTS: dict[str, Callable[[Source], list[str]]] = {
    "Splits of a graph": placement_systems.TABLES["splits-misses"],
    "Pipeline schedules": scheduling_systems.TABLES["tessel-misses"],
    "Doppler": placement_systems.TABLES["doppler-misses"],
    "Doppler's other graphs": doppler_graphs.TABLES["doppler-graphs-misses"],
    "Post": placement_systems.TABLES["post-misses"],
    "Groupings": groupings.TABLES["groupings-misses"],
    "Learned lists": learning,
    "Job streams": scheduling_systems.TABLES["streams-misses"],
    "Sharding": own_systems.TABLES["sharding-misses"],
    "Training plans": plans,
}
"""Subject: what falls short there."""


def behind(source: Source) -> list[str]:
    """Every subject with what falls short."""
    lines: list[str] = []
    for title, part in PARTS.items():
        lines += [f"**{title}**", "", *part(source), ""]
    return lines[:-1]


TABLES: dict[str, Callable[[Source], list[str]]] = {"behind": behind}
