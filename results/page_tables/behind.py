"""Where we are behind, on one page: what the tables of every study say of themselves."""

from __future__ import annotations

from math import exp, log
from statistics import fmean, stdev
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

TENTH = 0.1
"""An error of a plan that is named where nothing is printed to compare with."""


def plans(source: Source) -> list[str]:
    """Sources of measured steps that the fit which did not see them misses by more than published,
    or, where nothing is published, by more than a tenth.
    """
    rows = source.rows("plans/runs.csv", gpu="all", rows_are="apart")
    apart = [row for row in rows if row["source"] != "all"]
    errors: dict[str, float] = {}
    for name in sorted({row["source"] for row in apart}):
        own = [row for row in apart if row["source"] == name]
        count = sum(int(row["rows"]) for row in own)
        errors[name] = sum(float(row["mean"]) * int(row["rows"]) for row in own) / count / 100
    printed = {
        row["case"]: float(row["value"])
        for row in source.rows("references.csv", system="vTrain", quantity="mean error of a step")
    }
    far = [
        f"{name} {percent(error)}"
        + (f" ({percent(printed[name])} printed)" if name in printed else "")
        for name, error in errors.items()
        if error > printed.get(name, TENTH)
    ]
    return bullets([f"Mean errors of measured steps apart from the fit: {', '.join(far)}."])


NORMAL = 1.96
"""Standard deviations to each side of a mean that hold 95 % of a normal distribution."""


def learning(source: Source) -> list[str]:
    """What the learned weights of the list scheduler are worth after a walk."""
    with_, without = (
        {
            graph: fmean(log(float(row["value"])) for row in rows if row["graph"] == graph)
            for graph in {row["graph"] for row in rows}
        }
        for rows in (
            source.rows("policy/ablation_test.csv", variant=variant)
            for variant in ("tuned-list", "tuned-list, without learned weights")
        )
    )
    ratios = [without[graph] - with_[graph] for graph in without]
    half = NORMAL * stdev(ratios) / len(ratios) ** 0.5
    low, middle, high = (f"{exp(fmean(ratios) + off):.4f}" for off in (-half, 0.0, half))
    return bullets(
        [
            f"`tuned-list` without its learned weights ends {middle} times as high, between {low} "
            f"and {high}, on {len(ratios)} graphs of other families."
        ]
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
