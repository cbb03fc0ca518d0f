"""Tables of results/README.md about schedules and streams: Tessel, PAC-ML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables.front_page import LETTERS, SHAPES, blocking, runs
from page_tables.placement_systems import HEADS
from page_tables.source import (
    Source,
    bullets,
    floats,
    listed,
    middle,
    percent,
    seconds,
    span,
    table,
    times,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from page_tables.source import Line

SIZES = (4, 8, 16, 32)
MODELS = ("GPT", "mT5", "Flava")
COMMAND = "`python results/pipeline/study.py`"


def periods(source: Source, sizes: tuple[int, ...]) -> tuple[list[Line], list[Line], list[Line]]:
    """Return the cells of minimum periods: those proved, those proved infeasible, and the
    others.
    """
    rows = [row for size in sizes for row in source.rows(f"pipeline/periods{size}.csv")]
    proved = [row for row in rows if row["status"] == "proved"]
    infeasible = [row for row in rows if row["status"].startswith("infeasible")]
    return proved, infeasible, [row for row in rows if row not in proved and row not in infeasible]


def period_cells(source: Source, sizes: tuple[int, ...]) -> str:
    """Return what is proved of the minimum periods."""
    proved, infeasible, left = periods(source, sizes)
    work = sum(float(row["period"]) == float(row["work"]) for row in proved)
    known = f"{len(proved) + len(infeasible) + len(left)} cells: {work} proved by the work of a "
    known += f"device, {len(proved) - work} optimal by CP-SAT, believed"
    return known + (f", {len(infeasible)} infeasible, believed" if infeasible else "")


def open_cells(source: Source, sizes: tuple[int, ...]) -> str:
    """Return the periods that are not proved."""
    return (
        "; ".join(
            f"{row['shape']} on {row['devices']} at {row['capacity']}: "
            f"[{value(float(row['bound']))}, {value(float(row['period']))}]"
            for row in periods(source, sizes)[2]
        )
        or "met"
    )


def cpu_of(source: Source, devices: int, solver: str) -> list[float]:
    """Return the CPU seconds of a solver without a memory cap, shape by shape; on 4 devices the
    medians of several runs.
    """
    if devices == 4:
        return [float(row["cpu"]) for row in runs(source, solver)]
    return [
        source.number("pipeline/solvers.csv", "cpu", shape=shape, devices=devices, solver=solver)
        for shape in SHAPES
    ]


def models(source: Source) -> list[Line]:
    """Return the rows of whole models in training, those that fit."""
    return [
        row
        for size in SIZES
        for row in source.rows(f"pipeline/models{size}.csv")
        if row["throughput"]
    ]


def speed_up(source: Source, model: str | None = None) -> list[float]:
    """Return throughputs over 1F1B."""
    mine = {
        (row["model"], row["devices"], row["method"]): float(row["throughput"])
        for row in models(source)
    }
    return [
        mine[name, size, "best pipeline"] / mine[name, size, "1F1B"]
        for name, size, method in mine
        if method == "1F1B" and model in (None, name)
    ]


def faster_without_pipeline(source: Source) -> list[str]:
    """Return the models on which tensor parallelism alone, with replicas, is faster than the best
    pipeline.
    """
    mine = {
        (row["model"], row["devices"], row["method"]): float(row["throughput"])
        for row in models(source)
    }
    return [
        f"{name} on {size} ({value(mine[name, size, 'tensor parallel'])} against {value(found)} "
        "samples/s)"
        for (name, size, method), found in mine.items()
        if method == "best pipeline" and mine.get((name, size, "tensor parallel"), 0.0) > found
    ]


def gaps_of_cuts(source: Source) -> list[tuple[float, Line]]:
    """Return the gaps of what was found, each to the bound for its own cut, the widest last."""
    found = [
        (float(row["gap_of_cuts"]), row)
        for row in models(source)
        if row["method"] == "best pipeline"
    ]
    return sorted(found, key=lambda pair: pair[0])


def lower_latency(source: Source) -> list[tuple[float, Line]]:
    """Return by how much the latency in a full pipeline is below a plain one's, where it is."""
    rows = [
        row
        for size in SIZES
        for row in source.rows(f"pipeline/inference{size}.csv")
        if row["shape"] not in ("V", "T")
    ]
    both = [
        (1 - float(row["latency_at_common_ms"]) / float(row["latency_of_v_ms"]), row)
        for row in rows
        if row["latency_at_common_ms"] and row["latency_of_v_ms"]
    ]
    return [(gain, row) for gain, row in both if gain > 0.01]


def named(pairs: list[tuple[float, Line]]) -> str:
    """Return shares with what they are of."""
    return ", ".join(
        f"{row['model']} ({row['shape']}) on {row['devices']}: {percent(gain)}"
        for gain, row in pairs
    )


def tessel_misses(source: Source) -> list[str]:
    """What falls short of Tessel."""
    wide, row = gaps_of_cuts(source)[-1]
    return bullets(
        [
            f"Training throughput over 1F1B is {span(speed_up(source), times)} times, far below "
            "the printed "
            f"{times(source.reference('Tessel', 'training throughput over 1F1B', '4 to 32 devices'))}: 1F1B is tuned too, and sizes "
            "are such that it fits.",
            "Whole models: gaps and ratios hold for the cut that was found, which a time limit "
            "decides; no claim over all cuts. The "
            f"widest for its cut is {percent(wide)} ({row['model']} on {row['devices']} devices).",
            "Tensor parallelism within hosts beats every pipeline found on "
            f"{'; '.join(faster_without_pipeline(source)) or 'none'}; in the launch files' sizes a "
            "baseline beats what is searched on "
            f"{', '.join(lost_as_launched(source)) or 'none'}. A request alone is answered sooner "
            "than by any pipeline in "
            f"{sooner_without_pipeline(source)}.",
            f"Not proved: {open_cells(source, (16, 32))}.",
        ]
    )


def tessel(source: Source) -> list[str]:
    """Tessel: search, periods, makespans, whole models."""
    fast = listed(source.references("Tessel", "CPU seconds without a cap", SHAPES), seconds)
    spans = [source.row("pipeline/makespans.csv", shape=shape, capacity="none") for shape in SHAPES]
    three = source.row("pipeline/periods4.csv", shape="V", capacity=3)
    per_cut = [gap for gap, _ in gaps_of_cuts(source)]
    return table(
        HEADS,
        [
            [
                "search for a repetend without a memory cap, 4 devices: " + ", ".join(SHAPES),
                "-",
                f"the authors' code in its fast mode: {fast} CPU s",
                f"medians of three: `repetend` {listed(cpu_of(source, 4, 'repetend'), seconds)} "
                "CPU s; `tessel` "
                f"{listed(cpu_of(source, 4, 'tessel'), seconds)}",
                "met",
                COMMAND,
            ],
            [
                "the same on 8 devices",
                "-",
                "not within a minute",
                f"`repetend` {span(cpu_of(source, 8, 'repetend'), seconds)} CPU s",
                "met",
                COMMAND,
            ],
            [
                "minimum period under a memory cap, K = 1: 4, 6 and 8 devices",
                "-",
                "-",
                period_cells(source, (4, 6, 8)),
                open_cells(source, (4, 6, 8)),
                COMMAND,
            ],
            [
                "the same on 16 devices, and V and X on 32",
                "-",
                "-",
                period_cells(source, (16, 32)),
                open_cells(source, (16, 32)),
                COMMAND,
            ],
            [
                "V with room for 3 micro-batches, any number per repetend",
                "-",
                f"{value(float(three['period']))} with K = 1",
                f"{value(float(three['any_k']))} with K = {three['any_k_size']}",
                value(float(three["any_k_bound"])),
                COMMAND,
            ],
            [
                "makespan of 128 micro-batches: " + ", ".join(SHAPES),
                "-",
                listed(floats(spans, "best_known")),
                listed(floats(spans, "makespan")),
                listed(floats(spans, "bound")),
                COMMAND,
            ],
            [
                "training throughput over 1F1B, 4 to 32 devices",
                "up to "
                f"{times(source.reference('Tessel', 'training throughput over 1F1B', '4 to 32 devices'))} times (measured)",
                "-",
                f"{span(speed_up(source), times)} times (simulated)",
                f"for the cut that was found: gaps of {span(per_cut, percent)}",
                COMMAND,
            ],
            [
                "latency in a full pipeline against a plain one",
                "up to "
                f"{percent(source.reference('Tessel', 'inference latency below a plain pipeline'))} lower (measured)",
                "-",
                f"lower: {named(lower_latency(source))}; others not (simulated)",
                "-",
                COMMAND,
            ],
        ],
    )


def caps(source: Source) -> list[str]:
    """CPU seconds of searches under the memory cap that the authors' code was given, and without
    one.
    """
    rows = []
    for at, shape in enumerate(SHAPES):
        row = [shape, runs(source, "repetend", capped=True)[at]["capacity"]]
        for capped, what in (
            (True, "CPU seconds with a cap"),
            (False, "CPU seconds without a cap"),
        ):
            ours = (
                middle(runs(source, solver, capped=capped)[at]) for solver in ("repetend", "tessel")
            )
            row += [seconds(source.reference("Tessel", what, shape)), *ours]
        rows.append(row)
    heads = [
        f"{what}, {who}"
        for what in ("capped", "no cap")
        for who in ("authors' code", "`repetend`", "`tessel`")
    ]
    return table(["placement shape", "cap", *heads], rows)


def same_placement(source: Source) -> list[str]:
    """Periods on the same placement: the known schedule, and the search with its memory and with
    any.
    """
    rows = []
    for row in source.rows("pipeline/placements.csv"):
        known, same, free = (
            float(row[f"{name}_period"]) for name in ("baseline", "same_memory", "any_memory")
        )
        rows.append(
            [
                row["shape"],
                f"`{row['baseline']}`",
                row["memory"],
                *map(value, (known, same, free)),
                row["work"],
                f"{times(known / same)}, {times(known / free)}",
            ]
        )
    return table(
        [
            "placement",
            "known schedule",
            "its memory",
            "its period",
            "searched, same memory",
            "searched, any memory",
            "least possible",
            "gain of the schedule",
        ],
        rows,
    )


def by_method(source: Source, part: str, size: int, model: str) -> dict[str, Line]:
    """Return the rows of a model on so many devices, by method."""
    return {row["method"]: row for row in source.rows(f"pipeline/{part}{size}.csv", model=model)}


def rate(row: Line) -> float | None:
    """Return samples per second, None where nothing fits."""
    return float(row["throughput"]) if row["throughput"] else None


def gains(source: Source) -> list[str]:
    """Whole models: what the placement gains over 1F1B, and what the schedule gains on top."""
    rows = []
    for size in (4, 8):
        for model in MODELS:
            plain, plus, searched = map(rate, by_method(source, "gains", size, model).values())
            rows.append(
                [
                    f"{model} on {size}",
                    *(f"{value(x)}" if x else "does not fit" for x in (plain, plus, searched)),
                    times(plus / plain) if plus and plain else "-",
                    times(searched / plus) if searched and plus else "-",
                ]
            )
    return table(
        [
            "samples per second, simulated",
            "1F1B on V",
            "1F1B+ on M or K",
            "`repetend` on M or K",
            "gain of the placement",
            "gain of the schedule",
        ],
        rows,
    )


PUBLISHED = ("1F1B", "GPipe", "Chimera", "tensor parallel", "1F1B+ on M", "repetend on M")


def launched(source: Source) -> list[str]:
    """The sizes and vocabularies of the released launch files: what does not fit, and the ratio
    where it does.
    """
    rows = []
    for size in SIZES:
        for model in ("GPT", "mT5"):
            mine = by_method(source, "published", size, model)
            found = {name: rate(mine[name]) if name in mine else None for name in PUBLISHED}
            ours, others = (
                found["repetend on M"],
                [x for name in PUBLISHED[:4] if (x := found[name])],
            )
            plus = found["1F1B+ on M"]
            rows.append(
                [
                    f"{model} on {size}",
                    *(value(x) if x else "does not fit" for x in found.values()),
                    times(ours / max(others)) if ours and others else "-",
                    times(ours / plus) if ours and plus else "-",
                ]
            )
    heads = [
        *PUBLISHED[:4],
        "1F1B+ on M",
        "`repetend` on M",
        "over the best of the first four",
        "over 1F1B+",
    ]
    return table(["samples per second, simulated", *heads], rows)


def lost_as_launched(source: Source) -> list[str]:
    """Return where a baseline is faster than the search in the sizes of the launch files."""
    found = []
    for size in SIZES:
        for model in ("GPT", "mT5"):
            mine = {
                name: rate(row) or 0.0
                for name, row in by_method(source, "published", size, model).items()
            }
            best = max(PUBLISHED[:4], key=lambda name: mine.get(name, 0.0))
            if mine[best] > mine.get("repetend on M", 0.0):
                found.append(f"{model} on {size} ({best})")
    return found


def sooner_without_pipeline(source: Source) -> str:
    """Return in how many cases a single request is answered soonest by tensor parallelism, on one
    host.
    """
    won = total = 0
    for size in (4, 8):
        rows = source.rows(f"pipeline/inference{size}.csv")
        for model in dict.fromkeys(row["model"] for row in rows):
            mine = {
                row["shape"]: float(row["least_latency_ms"])
                for row in rows
                if row["model"] == model
            }
            won, total = won + (min(mine, key=lambda name: mine[name]) == "T"), total + 1
    return f"{won} of {total} cases inside a host"


def sizes(source: Source) -> list[str]:
    """Periods per micro-batch of patterns of one to three micro-batches; the best in bold."""
    rows, names = [], [f"repetend (size={size})" for size in (1, 2, 3)]
    for row in source.rows("pipeline_sizes/values.csv"):
        least = min(float(row[name]) for name in names)
        cells = (
            f"**{value(float(row[name]))}**"
            if float(row[name]) == least
            else value(float(row[name]))
            for name in names
        )
        rows.append(
            [
                row["instance"].removeprefix("shape:").partition("&micro")[0],
                *cells,
                value(float(row["lower bound"])),
            ]
        )
    return table(["ticks per micro-batch", "K = 1", "K = 2", "K = 3", "bound for every K"], rows)


STEPS = ("step_ms", "channel_step_ms", "blocking_step_ms", "blocking_searched_step_ms")


def transfers(source: Source) -> list[str]:
    """Steps of the same orders where transfers only take time, take a channel, or block both
    devices.
    """
    rows = []
    for size in (4, 8):
        for model in MODELS:
            mine = by_method(source, "gains", size, model)
            for method, name in (("1F1B on V", "1F1B"), ("repetend on M, K", "`repetend`")):
                lag, channel, blocking, searched = (float(mine[method][column]) for column in STEPS)
                rows.append(
                    [
                        f"{model} on {size}, {name}",
                        value(lag),
                        times(channel / lag),
                        times(blocking / lag),
                        times(searched / lag),
                    ]
                )
    return table(
        [
            "step, simulated",
            "ms, transfers beside computation",
            "one transfer at a time between two places",
            "blocking, the same order",
            "blocking, searched again",
        ],
        rows,
    )


def requests(source: Source) -> list[str]:
    """Latency of one request alone, and of a stream's, against the plain pipeline."""
    rows = []
    for size in (4, 8):
        for model in dict.fromkeys(
            row["model"] for row in source.rows(f"pipeline/inference{size}.csv")
        ):
            mine = {
                row["shape"]: row
                for row in source.rows(f"pipeline/inference{size}.csv", model=model)
            }
            shared = next(name for name in ("K", "M") if name in mine)
            rows.append(
                [
                    f"{model} on {size}",
                    shared,
                    *(
                        f"{value(float(mine[name]['least_latency_ms']))}, "
                        f"{value(float(mine[name]['throughput']))}"
                        for name in ("V", "T", shared)
                    ),
                ]
            )
    return table(
        [
            "one request alone, ms, and requests/s at most, simulated",
            "shape",
            "plain pipeline (V)",
            "tensor parallel (T)",
            "`repetend` on the shape",
        ],
        rows,
    )


def streams_misses(source: Source) -> list[str]:
    """What falls short of PAC-ML."""
    best = source.references("PAC-ML", "blocking of the best checkpoint", LETTERS)
    rollout = blocking(source, "published", "rollout")
    learned = {
        row["beta"]: float(row["blocking"])
        for row in source.streams("published", policy="policy-degree")
    }
    lost = [
        f"{letter} ({value(mine)} against {value(theirs)})"
        for letter, mine, theirs in zip(LETTERS, rollout, best, strict=True)
        if mine > theirs
    ]
    behind = [
        f"{letter} ({value(learned[letter])})"
        for letter, theirs in zip(LETTERS, best, strict=True)
        if learned.get(letter, 0.0) > theirs
    ]
    unmeasured = [letter for letter in LETTERS if letter not in learned]
    missing = f" (not measured on {', '.join(unmeasured)})" if unmeasured else ""
    return bullets(
        [
            "Under the published split rule `rollout` blocks more than PAC-ML's best checkpoint "
            f"on {', '.join(lost) or 'none'}, the "
            f"learned `policy-degree` on {', '.join(behind) or 'none'}{missing}.",
            *better_elsewhere(source),
        ]
    )


def better_elsewhere(source: Source) -> list[str]:
    """Where a policy learned on another distribution blocks fewer jobs than the one learned on the
    streams' own.
    """
    lines = []
    for letter in LETTERS:
        rows = source.rows(
            "job_streams/learned.csv", rule="published", beta=letter, policy="policy-degree"
        )
        own = [float(row["blocking"]) for row in rows if row["learned_on"] == letter]
        best = min(rows, key=lambda row: float(row["blocking"]), default=None)
        if own and best and float(best["blocking"]) < own[0]:
            lines.append(
                f"On {letter} the policy learned on {best['learned_on']} blocks less "
                f"({value(float(best['blocking']))}) "
                f"than the one learned there ({value(own[0])})."
            )
    return lines


def streams(source: Source) -> list[str]:
    """PAC-ML: blocking rates under both split rules."""

    def ours(rule: str) -> str:
        rates = {policy: blocking(source, rule, policy) for policy in ("rollout", "policy-degree")}
        return "; ".join(
            f"`{policy}` {listed(found)}"
            for policy, found in rates.items()
            if len(found) == len(LETTERS)
        )

    command = "`python results/job_streams/study.py`"
    return table(
        HEADS,
        [
            [
                "blocking on deadlines A, B, C, D, the published split rule",
                listed(source.references("PAC-ML", "blocking of the best checkpoint", LETTERS))
                + " (best checkpoint)",
                f"constant degree {listed(blocking(source, 'published', 'constant-degree'))}",
                ours("published"),
                listed(blocking(source, "published", "offline bound")),
                command,
            ],
            [
                "the same cluster under a uniform split rule (not the authors')",
                "-",
                f"constant degree 8: {listed(blocking(source, 'uniform', 'constant-degree:8'))}",
                ours("uniform"),
                listed(blocking(source, "uniform", "offline bound")),
                command,
            ],
        ],
    )


TABLES: dict[str, Callable[[Source], list[str]]] = {
    "tessel-misses": tessel_misses,
    "tessel": tessel,
    "tessel-caps": caps,
    "same-placement": same_placement,
    "gains": gains,
    "launched": launched,
    "transfers": transfers,
    "requests": requests,
    "pipeline-sizes": sizes,
    "streams-misses": streams_misses,
    "streams": streams,
}
