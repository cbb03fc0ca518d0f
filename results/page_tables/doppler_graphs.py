"""Tables of the study of Doppler's released graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables.source import Source, bullets, floats, percent, seconds, span, table, value

if TYPE_CHECKING:
    from collections.abc import Callable

    from page_tables.source import Line

RUNS, EQUAL_TIME = "doppler/runs.csv", "doppler/equal_time.csv"
SEARCHES = ("random", "critical path, best of 50", "cross-entropy", "annealing", "genetic")
CLOCK = "dual-policy, critical path"
Graph = tuple[str, str]


def columns(source: Source, file: str = RUNS) -> dict[Graph, list[Line]]:
    """Return the runs of every (graph, devices) that is complete: as many methods as any has."""
    found: dict[Graph, list[Line]] = {}
    for row in source.rows(file):
        found.setdefault((row["graph"], row["devices"]), []).append(row)
    return {key: rows for key, rows in found.items() if len(rows) == max(map(len, found.values()))}


def lines_of(runs: dict[Graph, list[Line]], extra: str) -> list[list[str]]:
    """Return a line for every method: its means with half of their intervals, the least in bold;
    runs; a column's span.
    """
    least = {key: min(floats(rows, "mean")) for key, rows in runs.items()}
    lines = []
    for i, row in enumerate(next(iter(runs.values()))):
        own = [rows[i] for rows in runs.values()]
        numbers = [float(one[extra]) for one in own if one[extra]]
        cells = [with_interval(one, least[key]) for key, one in zip(runs, own, strict=True)]
        shown = span(numbers, seconds if extra == "cpu" else value) if numbers else "-"
        lines.append([row["method"], span(floats(own, "runs")), shown, *cells])
    return lines


def with_interval(row: Line, least: float) -> str:
    """Write a mean, in bold if it is the least, and half of its interval if that is seen."""
    mean = value(float(row["mean"]))
    text = f"**{mean}**" if float(row["mean"]) <= least else mean
    half = round(float(row["interval"] or 0), 2)
    return f"{text} ± {half:.2f}" if half else text


def graphs(source: Source) -> list[str]:
    """Mean makespans of every method on every graph at equal evaluations, the best in bold, and the
    bound.
    """
    runs = columns(source)
    bound = ["proven bound", "", "", *(value(max(floats(rows, "bound"))) for rows in runs.values())]
    heads = [
        "mean of the runs",
        "runs",
        "CPU s each",
        *(f"{graph}, {devices}" for graph, devices in runs),
    ]
    return table(heads, [*lines_of(runs, "cpu"), bound])


def equal_time(source: Source) -> list[str]:
    """The same at equal processor seconds."""
    timed = columns(source, EQUAL_TIME)
    clock = ["*CPU s allowed*", "", ""]
    clock += [
        seconds(source.number(RUNS, "cpu", graph=graph, devices=devices, method=CLOCK))
        for graph, devices in timed
    ]
    heads = [
        "mean of the runs",
        "runs",
        "evaluations",
        *(f"{graph}, {devices}" for graph, devices in timed),
    ]
    return table(heads, [*lines_of(timed, "evaluations"), clock])


def learners(rows: list[Line]) -> list[Line]:
    """Return the rows of methods that learn."""
    return [row for row in rows if row["evaluations"] and row["method"] not in SEARCHES]


def heuristic(rows: list[Line]) -> float:
    """Return the best value of a method that needs no evaluations and no time."""
    return min(
        float(row["mean"])
        for row in rows
        if not row["evaluations"] and not row["method"].endswith(" s")
    )


def misses(source: Source) -> list[str]:
    """Where no method meets the bound, where no policy meets the best heuristic, and how far
    learning from scratch gets.
    """
    lines, runs = [], columns(source)
    for (graph, devices), rows in runs.items():
        bound, best = max(floats(rows, "bound")), min(floats(rows, "best"))
        if best > bound * (1 + 1e-6):
            lines.append(
                f"{graph} on {devices}: the best of all methods keeps a gap of "
                f"{percent(1 - bound / best)} to the bound."
            )
        learned = min(floats(learners(rows), "mean"))
        if learned > heuristic(rows):
            lines.append(
                f"{graph} on {devices}: the best policy ends at {value(learned)}, a heuristic "
                "alone at "
                f"{value(heuristic(rows))}."
            )
    above = [
        min(float(row["mean"]) for row in rows if "scratch" in row["method"]) / heuristic(rows)
        for rows in runs.values()
    ]
    lines.append(
        f"The best policy from scratch ends at {span(above)} times the best heuristic, "
        f"below it on {sum(x < 1 for x in above)} of {len(above)} graphs."
    )
    whole, still = (
        [means_of(rows)[method] for rows in runs.values()]
        for method in (f"{CLOCK}, whole episodes", "the same, nothing learns")
    )
    lines.append(
        "Whole episodes whose policies learn by policy gradient end above those whose policies do "
        "not (nothing learns) on "
        f"{sum(x > y for x, y in zip(whole, still, strict=True))} of {len(whole)} graphs."
    )
    return bullets(lines)


def means_of(rows: list[Line]) -> dict[str, float]:
    """Return the mean of every method."""
    return {row["method"]: float(row["mean"]) for row in rows}


FRONT = (
    "critical path, best of 50",
    "enumerative",
    "visiting-placer (Placeto), scratch",
    "graph-placer (GDP), scratch",
    "dual-policy, critical path, whole episodes",
    "dual-policy, critical path",
    "dual-policy, edge zeroing",
)


def front(source: Source) -> list[str]:
    """The published list of methods, the best heuristic, the best of all, and the bound: a line for
    every graph.
    """
    lines = []
    for (graph, devices), rows in columns(source).items():
        means = means_of(rows)
        lines.append(
            [
                f"{graph}, {devices}",
                *(value(means[method]) for method in FRONT),
                value(heuristic(rows)),
                value(min(floats(rows, "best"))),
                value(max(floats(rows, "bound"))),
            ]
        )
    heads = [
        method.replace("dual-policy", "`dual-policy`")
        .replace("visiting-placer (Placeto)", "Placeto-like")
        .replace("graph-placer (GDP)", "GDP-like")
        for method in FRONT
    ]
    return table(
        ["mean of the runs", *heads, "best heuristic", "best of all", "proven bound"], lines
    )


TABLES: dict[str, Callable[[Source], list[str]]] = {
    "doppler-graphs": graphs,
    "doppler-graphs-misses": misses,
    "doppler-equal-time": equal_time,
    "doppler-front": front,
}
