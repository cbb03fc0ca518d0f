"""Tables of the study of Doppler's released graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables.source import Source, bullets, floats, percent, table, value

if TYPE_CHECKING:
    from collections.abc import Callable

    from page_tables.source import Line

FILE = "doppler/runs.csv"


def columns(source: Source) -> dict[tuple[str, str], list[Line]]:
    """Return the runs of every (graph, devices) that is complete: as many methods as any has."""
    found: dict[tuple[str, str], list[Line]] = {}
    for row in source.rows(FILE):
        found.setdefault((row["graph"], row["devices"]), []).append(row)
    return {key: rows for key, rows in found.items() if len(rows) == max(map(len, found.values()))}


def graphs(source: Source) -> list[str]:
    """Mean makespans of every method on every graph, the best in bold, and the bound."""
    runs = columns(source)
    least = {key: min(floats(rows, "mean")) for key, rows in runs.items()}
    lines = []
    for i, row in enumerate(next(iter(runs.values()))):
        means = {key: float(rows[i]["mean"]) for key, rows in runs.items()}
        lines.append([row["method"], *(f"**{value(x)}**" if x <= least[key] else value(x) for key, x in means.items())])
    lines.append(["proven bound", *(value(max(floats(rows, "bound"))) for rows in runs.values())])
    return table(["mean of the runs", *(f"{graph}, {devices}" for graph, devices in runs)], lines)


def misses(source: Source) -> list[str]:
    """Where no method meets the bound, and where no policy meets the best heuristic."""
    lines = []
    for (graph, devices), rows in columns(source).items():
        bound, best = max(floats(rows, "bound")), min(floats(rows, "best"))
        if best > bound * (1 + 1e-6):
            lines.append(f"{graph} on {devices}: the best of all methods keeps a gap of {percent(1 - bound / best)} to the bound.")
        learned = min(float(row["mean"]) for row in rows if row["method"].startswith(("dual", "grouper", "graph-p", "post")))
        other = min(float(row["mean"]) for row in rows if not row["evaluations"] and not row["method"].endswith(" s"))
        if learned > other:
            lines.append(f"{graph} on {devices}: the best policy ends at {value(learned)}, a heuristic alone at {value(other)}.")
    return bullets(lines or ["None: every graph is solved to its bound."])


TABLES: dict[str, Callable[[Source], list[str]]] = {"doppler-graphs": graphs, "doppler-graphs-misses": misses}
