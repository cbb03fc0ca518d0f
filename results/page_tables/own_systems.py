"""Tables of results/README.md about task graphs, planners, sharding and the studies of our own."""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING

from page_tables.placement_systems import HEADS
from page_tables.source import (
    Line,
    Source,
    bullets,
    floats,
    listed,
    percent,
    seconds,
    span,
    table,
    times,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MIXED = ("32 A100 + 96 V100, 60 s", "80 A100 + 240 V100, 60 s", "128 A100 + 384 V100, 60 s")


def gaps_by_seed(row: Line) -> list[float]:
    """Return the relative gaps of `solve` after its limit, one per seed that was run."""
    ends = "after value", "after bound"
    runs = [(row.get(f"{end}s") or row[end]).split() for end in ends]
    return [1 - float(bound) / float(found) for found, bound in zip(*runs, strict=True)]


def gaps_of_solve(source: Source) -> dict[str, list[float]]:
    """Return the relative gaps of `solve` after its limit, by instance."""
    return {row["instance"]: gaps_by_seed(row) for row in source.rows("exact/sixty.csv")}


def limit(source: Source) -> str:
    """Return the seconds that `solve` had for these gaps."""
    return f"{span(source.numbers('exact/sixty.csv', 'limit'))} s"


def tasks(source: Source) -> list[str]:
    """Published optima of task graphs, and graphs nobody solved."""
    optima = source.rows("exact/optima.csv")
    proved = [
        row
        for row in optima
        if row["status"] == "optimal" and float(row["value"]) == float(row["published"])
    ]
    layered = [
        gap
        for name, gaps in gaps_of_solve(source).items()
        if name.startswith("layered-60-")
        for gap in gaps
    ]
    return table(
        HEADS,
        [
            [
                "makespans of small task graphs",
                f"{len(optima)} optima",
                "-",
                f"{len(proved)} proved, {seconds(sum(float(row['seconds']) for row in optima))} s "
                "together",
                "met",
                "`python results/exact/study.py optima`",
            ],
            [
                f"random layered graphs, 60 ops, 4 devices, {limit(source)}",
                "-",
                "-",
                f"gaps of {span(layered, percent)}",
                "the same",
                "`python results/exact/sixty.py`",
            ],
        ],
    )


def errors(source: Source, column: str = "predicted", fitted: bool = True) -> list[float]:
    """Return the relative errors of a predicted step time."""
    return [
        abs(float(row[column]) / float(row["seconds"]) - 1)
        for row in source.rows("plans/measured.csv")
        if fitted or row["fitted"] == "False"
    ]


def piper(source: Source) -> tuple[int, int, int]:
    """Return how many of the planner's values are met, beaten and proved to fit nothing."""
    rows = [row for row in source.rows("plans/piper.csv") if not row["name"].startswith("bert 96")]
    fit = [(float(row["ours"]), float(row["reference"])) for row in rows if row["ours"]]
    return (
        sum(abs(x / y - 1) <= 1e-5 for x, y in fit),
        sum(x / y < 1 - 1e-5 for x, y in fit),
        sum(row["status"] == "infeasible" for row in rows),
    )


def plans(source: Source) -> list[str]:
    """Training plans."""
    met, beaten, nothing = piper(source)
    theirs = source.rows("plans/piper.csv")
    largest = {
        name: max(
            (row for row in theirs if row["name"].startswith(name)),
            key=lambda row: float(row["their_seconds"]),
        )
        for name in ("gnmt", "bert 32 2048")
    }
    mixed = [source.row("plans/opt350.csv", name=name) for name in MIXED]
    command = "`python results/plans/study.py"
    return table(
        HEADS,
        [
            [
                f"steps of {len(errors(source))} training plans, measured by others, predicted: "
                "median error",
                f"{percent(source.reference('measured plans', 'median error of the step time', '36 plans'))} (the data's authors, on 36)",
                "the authors' formula as we read it: "
                f"{percent(median(errors(source, 'published')))}",
                f"{percent(median(errors(source)))}; "
                f"{percent(median(errors(source, fitted=False)))} on the "
                f"{len(errors(source, fitted=False))} plans that its constants were not fitted on",
                "-",
                f"{command} measured`",
            ],
            [
                "a published multidimensional planner's inputs, time per sample",
                "-",
                "the authors' program: GNMT "
                + seconds(float(largest["gnmt"]["their_seconds"]))
                + " s, 2048 devices "
                + seconds(float(largest["bert 32 2048"]["their_seconds"]))
                + " s",
                f"{met} values met, {beaten} beaten, {nothing} where nothing fits; "
                + listed(floats(largest.values(), "cpu"), seconds)
                + " CPU s",
                "met, by the search over ideals, believed",
                f"{command} piper`",
            ],
            [
                "OPT-350M on 32 + 96, 80 + 240, 128 + 384 A100 and V100, the published step time, "
                "steps/s",
                "-",
                "the authors' planner: " + listed(floats(mixed, "reference")),
                listed(floats(mixed, "steps_per_second")) + " (stages of one kind of device each)",
                f"gaps of {span(floats(mixed, 'gap'), percent)}",
                f"{command} opt350`",
            ],
        ],
    )


def sharding_misses(source: Source) -> list[str]:
    """What falls short of the contest."""
    rows = source.rows("sharding/contest.csv")
    ratio = {row["name"]: float(row["ratio"]) for row in rows}
    below = [f"{name} {value(x)}" for name, x in ratio.items() if x < 0.9995]
    open_ = [
        f"{row['name']} {percent(float(row['gap']))}" for row in rows if float(row["gap"]) > 0.02
    ]
    return bullets(
        [
            "In 120 s on two cores the sum of (best known / ours) is "
            f"{times(sum(ratio.values()))} of {len(rows)}; below the best "
            f"known are {', '.join(below) or 'none'}.",
            f"Gaps above 2 %: {', '.join(open_) or 'none'}; the mean gap is "
            f"{percent(mean(float(row['gap']) for row in rows))}, stored "
            f"{percent(mean(float(row['published_gap']) for row in rows))}.",
        ]
    )


def sharding(source: Source) -> list[str]:
    """The contest's instances, and models."""
    rows = source.rows("sharding/contest.csv")
    best = [row["name"] for row in rows if float(row["ratio"]) >= 1]
    near = [row["name"] for row in rows if 0.96 <= float(row["ratio"]) < 1]
    above = sum(float(row["bound"]) > float(row["published_bound"]) for row in rows)
    names = ("llama layer", "gpt2", "llama layer, training", "gpt2, training")
    ours, megatron = (
        [source.number("sharding/models.csv", column, name=name) for name in names]
        for column in ("milliseconds", "megatron_milliseconds")
    )
    return table(
        HEADS,
        [
            [
                "ASPLOS 2025 contest, nine instances",
                "best known values and bounds",
                "-",
                f"at the best known: {', '.join(best)}; within 4 %: {', '.join(near)}; {above} "
                "bounds above the stored ones",
                f"gaps of {span(floats(rows, 'gap'), percent)}",
                "`python results/sharding/study.py`",
            ],
            [
                "Llama layer, GPT-2, and both in training, on 2 x 4 A100, ms",
                "-",
                f"Megatron's layout in the same problem: {listed(megatron)}",
                f"{listed(ours)} (by our cost model)",
                "met",
                "`python results/sharding/study.py`",
            ],
        ],
    )


def benchmark_gaps(source: Source) -> dict[str, float]:
    """Return the gap of every instance of the generated benchmark, from value and bound (the gaps
    there are rounded).
    """
    return {
        row["instance"]: 1 - float(row["lower bound"]) / float(row["value (ticks)"])
        for row in source.rows("benchmark/best-known.csv")
    }


def own(source: Source) -> list[str]:
    """Studies with nothing published beside them."""
    gaps = list(benchmark_gaps(source).values())
    tight = sum(gap <= 0.0002 for gap in gaps)
    grid = source.row("grids/overhead.csv", backend="loky", jobs=2)
    one, two = (source.number("grids/two_cores.csv", "wall", jobs=jobs) for jobs in (1, 2))
    report = source.row("grids/report.csv")
    return table(
        ["what", "placeopt", "proven bound", "command"],
        [
            [
                f"generated benchmark, {len(gaps)} models on 4 P100, portfolio, 15 s",
                f"mean gap {percent(mean(gaps))}, {tight} of {len(gaps)} within 0.02 %",
                f"gaps of {span(gaps, percent)}",
                "[benchmark](benchmark/README.md)",
            ],
            [
                f"a grid of {grid['cells']} cells on two cores",
                f"{times(float(grid['overhead_ms']))} ms of overhead a cell; "
                f"{times(one / two)} times as fast on two cores; report of {report['rows']} "
                f"runs in {seconds(float(report['wall']))} s",
                "-",
                "`python results/grids/study.py`",
            ],
        ],
    )


TABLES: dict[str, Callable[[Source], list[str]]] = {
    "tasks": tasks,
    "plans": plans,
    "sharding-misses": sharding_misses,
    "sharding": sharding,
    "own": own,
}
