"""Tables and pictures of the pipeline study, from the CSV files that study.py writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import placeopt as po
from placeopt.experiments.studies import markdown_table, read_csv
from placeopt.plotting.pipeline import draw_pipeline
from placeopt.plotting.style import COLOURS, new_figure
from placeopt.schedules import schedule

if TYPE_CHECKING:
    from pathlib import Path

SHAPES = ("V", "X", "K", "M", "NN")


def write_report(folder: Path) -> None:
    """Write report.md and the pictures from whatever CSV files are there."""
    parts = [
        "# Pipeline schedules: measured tables",
        "",
        "Written by `study.py report`; see README.md for what it means.",
        "",
    ]
    periods = [
        row for devices in (4, 6, 8, 16, 32) for row in read_csv(folder / f"periods{devices}.csv")
    ]
    if periods:
        parts += period_tables(periods)
    solvers = read_csv(folder / "solvers.csv")
    if solvers:
        parts += solver_tables(solvers)
        solver_picture(solvers, folder / "solvers.png")
    makespans = read_csv(folder / "makespans.csv")
    if makespans:
        parts += makespan_table(makespans)
    models = [
        row for devices in (4, 8, 16, 32) for row in read_csv(folder / f"models{devices}.csv")
    ]
    if models:
        parts += model_tables(models)
        model_picture(models, folder / "models.png")
    inference = [
        row for devices in (4, 8, 16, 32) for row in read_csv(folder / f"inference{devices}.csv")
    ]
    if inference:
        parts += inference_table(inference)
    (folder / "report.md").write_text("\n".join(parts).rstrip() + "\n")
    for name, source in (
        ("gantt_v", "shape:V?devices=4&memory=4"),
        ("gantt_k", "shape:K?devices=4&memory=3"),
    ):
        draw_pipeline(schedule(po.load_pipeline(source), micro_batches=12), folder / f"{name}.png")
    tight = schedule(po.load_pipeline("shape:V?devices=4&memory=3"), size=3, micro_batches=12)
    draw_pipeline(tight, folder / "gantt_v_three.png")


def table(heading: list[str], rows: list[list[Any]]) -> list[str]:
    """Return a Markdown table and an empty line."""
    return [*markdown_table(heading, rows), ""]


def period_tables(rows: list[dict[str, str]]) -> list[str]:
    """Minimum period by capacity; CPU seconds; more micro-batches per repetend."""
    lines = [
        "## Minimum period, one micro-batch per repetend, training",
        "",
        "In ticks; every number is proved minimal unless a range [bound, found] is given; `-`: no "
        "micro-batch fits. "
        "In brackets: CPU seconds of search and proof.",
        "",
    ]
    for devices in ("4", "6", "8", "16", "32"):
        mine = [row for row in rows if row["devices"] == devices]
        capacities = sorted({int(row["capacity"]) for row in mine})
        cells = {(row["shape"], int(row["capacity"])): row for row in mine}
        shapes = [name for name in SHAPES if any(row["shape"] == name for row in mine)]
        body = [
            [capacity, *(cell(cells[name, capacity]) for name in shapes)] for capacity in capacities
        ]
        if body:
            lines += table([f"D = {devices}, capacity", *shapes], body)
    more = [row for row in rows if row["any_k"]]
    if more:
        lines += [
            "## Several micro-batches per repetend (K <= 4), D = 4, where one misses the load "
            "bound",
            "",
        ]
        lines += table(
            [
                "shape",
                "capacity",
                "K = 1",
                "best",
                "at K",
                "by seed, 20 s each",
                "bound for every K",
            ],
            [
                [
                    r["shape"],
                    r["capacity"],
                    f"{float(r['period']):g}",
                    r["any_k"],
                    r["any_k_size"],
                    r.get("any_k_runs", r["any_k"]),
                    r["any_k_bound"],
                ]
                for r in more
            ],
        )
    return lines


def cell(row: dict[str, str]) -> str:
    """Return one period with its proof and cost."""
    if not row["period"]:
        return "-"
    period, bound = float(row["period"]), float(row["bound"])
    value = f"{period:g}" if row["status"] == "proved" else f"[{bound:g}, {period:g}]"
    return f"{value} ({float(row['cpu']):.2f})"


def solver_tables(rows: list[dict[str, str]]) -> list[str]:
    """Candidates, CPU seconds and period of the three searches."""
    lines = [
        "## Tessel's enumeration, the repetend search, and the exact schedule",
        "",
        "No memory limit. CPU seconds of one worker, completion to 128 micro-batches included; "
        "`authors`: CPU seconds of "
        "Tessel's released code in its fast mode, without a limit too, run here.",
        "",
    ]
    body = []
    for devices in ("4", "8"):
        for name in SHAPES:
            mine = {r["solver"]: r for r in rows if r["shape"] == name and r["devices"] == devices}
            ours, theirs = mine["repetend"], mine["tessel"]
            authors = ours["authors_fast_cpu"]
            faster = f"{float(authors) / float(ours['cpu']):.0f}x" if authors else "not run"
            body.append(
                [
                    name,
                    devices,
                    f"{float(ours['period']):g}",
                    ours["cpu"],
                    ours["candidates"],
                    f"{float(theirs['period']):g}" if theirs["period"] else "none in time",
                    theirs["cpu"],
                    theirs["candidates"],
                    authors or "-",
                    faster,
                ]
            )
    lines += table(
        [
            "shape",
            "D",
            "repetend: period",
            "CPU s",
            "periods tried",
            "tessel: period",
            "CPU s",
            "assignments",
            "authors CPU s",
            "authors / repetend",
        ],
        body,
    )
    lines += [
        "`time-optimal` on 4 devices, makespan of n micro-batches (CPU seconds); `>`: not proved "
        "within the limit.",
        "",
    ]
    body = []
    for name in SHAPES:
        mine = {
            r["micro_batches"]: r
            for r in rows
            if r["shape"] == name and r["solver"] == "time-optimal"
        }
        body.append([name, *(exact_cell(mine.get(str(n))) for n in range(1, 9))])
    return lines + table(["shape", *(f"n = {n}" for n in range(1, 9))], body)


def exact_cell(row: dict[str, str] | None) -> str:
    """Return one exact makespan and its cost."""
    if row is None:
        return ""
    return f"{'' if row['proved'] == 'True' else '> '}{row['makespan']} ({float(row['cpu']):.2f})"


def makespan_table(rows: list[dict[str, str]]) -> list[str]:
    """Makespan of 128 micro-batches."""
    lines = ["## Makespan of 128 micro-batches, D = 4", ""]
    body = [
        [
            r["shape"],
            r["capacity"],
            r["makespan"],
            r["best_known"],
            r["bound"],
            f"{1 - int(r['bound']) / int(r['makespan']):.2%}",
            r["peak_memory"],
            r["cpu"],
        ]
        for r in rows
    ]
    return lines + table(
        [
            "shape",
            "capacity",
            "makespan",
            "best known",
            "lower bound",
            "gap",
            "peak memory",
            "CPU s",
        ],
        body,
    )


def ratio(ours: dict[str, str], other: dict[str, str] | None) -> str:
    """Return the speed-up over a method."""
    if other is None or not other["throughput"]:
        return "does not fit"
    return f"{float(ours['throughput']) / float(other['throughput']):.2f}x"


def by_model(
    rows: list[dict[str, str]], key: str
) -> list[tuple[str, str, dict[str, dict[str, str]]]]:
    """Return (model, devices, its rows by a column) for every model on every number of devices, in
    order.
    """
    return [
        (
            model,
            devices,
            {r[key]: r for r in rows if (r["model"], r["devices"]) == (model, devices)},
        )
        for model, devices in dict.fromkeys((r["model"], r["devices"]) for r in rows)
    ]


def model_tables(rows: list[dict[str, str]]) -> list[str]:
    """Training throughput of whole models."""
    lines = [
        "## Training throughput of whole models (simulated)",
        "",
        "Samples per second, batch of 128; every method chooses its own stages, replicas, "
        "micro-batch size and "
        "recomputation. The gap is to the bound on all schedules of the cuts that were tried; "
        "other cuts may be "
        "better.",
        "",
    ]
    body = []
    for model, devices, mine in by_model(rows, "method"):
        ours = mine["best pipeline"]
        body.append(
            [
                model,
                devices,
                ours["throughput"],
                ours["choice"],
                ours["schedule"],
                f"{float(ours['gap_of_cuts']):.1%}" if ours["gap_of_cuts"] else "",
                *(
                    ratio(ours, mine.get(name))
                    for name in ("1F1B", "GPipe", "Chimera", "tensor parallel")
                ),
            ]
        )
    heading = [
        "model",
        "devices",
        "samples/s",
        "choice",
        "schedule",
        "gap of the cuts",
        "over 1F1B",
        "over GPipe",
        "over Chimera",
        "over tensor parallel",
    ]
    lines += table(heading, body)
    return lines


def inference_table(rows: list[dict[str, str]]) -> list[str]:
    """Latency alone, at a rate that both can serve, and at full throughput."""
    lines = [
        "## Inference (simulated): latency of one request, and what it saves against the plain "
        "pipeline V",
        "",
        "Alone: nothing else runs. At the common rate: the fastest at which both can serve. Full: "
        "at the shape's own best "
        "throughput.",
        "",
    ]
    body = []
    for model, devices, mine in by_model(rows, "shape"):
        plain = mine["V"]
        for name, row in mine.items():
            cells = [model, devices, name, row["throughput"]]
            if name == "V":
                body.append(
                    [*cells, row["least_latency_ms"], "", "", "", "", row["latency_ms"], ""]
                )
                continue
            at = row["latency_at_common_ms"]
            body.append(
                [
                    *cells,
                    row["least_latency_ms"],
                    saved(row["least_latency_ms"], plain["least_latency_ms"]),
                    row["common_rate"],
                    at or "none in time",
                    saved(at, row["latency_of_v_ms"]),
                    row["latency_ms"],
                    saved(row["latency_ms"], plain["latency_ms"]),
                ]
            )
    return lines + table(
        [
            "model",
            "devices",
            "shape",
            "samples/s",
            "alone, ms",
            "saved",
            "common rate, samples/s",
            "there, ms",
            "saved",
            "full, ms",
            "saved",
        ],
        body,
    )


def saved(ours: str, plain: str) -> str:
    """Return the share of a latency that is saved."""
    return f"{1 - float(ours) / float(plain):+.0%}" if ours and plain else ""


def solver_picture(rows: list[dict[str, str]], path: Path) -> None:
    """CPU seconds of time-optimal over n, with the lines of repetend and tessel."""
    figure = new_figure(11, 2.9)
    panels = figure.subplots(1, len(SHAPES), sharey=True)
    for axes, name in zip(panels, SHAPES, strict=True):
        mine = [r for r in rows if r["shape"] == name and r["devices"] == "4"]
        exact = [
            (int(r["micro_batches"]), float(r["cpu"]))
            for r in mine
            if r["solver"] == "time-optimal"
        ]
        axes.plot(
            *zip(*exact, strict=True),
            marker="o",
            markersize=3,
            color=COLOURS[0],
            label="time-optimal, n micro-batches",
        )
        for solver, colour in (("tessel", COLOURS[1]), ("repetend", COLOURS[2])):
            cpu = next(float(r["cpu"]) for r in mine if r["solver"] == solver)
            axes.axhline(cpu, color=colour, label=f"{solver}, any number")
        authors = next(float(r["authors_fast_cpu"]) for r in mine if r["authors_fast_cpu"])
        axes.axhline(
            authors, color="#808080", linestyle="--", label="the authors' search, run here"
        )
        axes.set_yscale("log")
        axes.set_xlim(1, 8)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("n", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("CPU seconds")
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    figure.savefig(path, dpi=110)


def model_picture(rows: list[dict[str, str]], path: Path) -> None:
    """Throughput of every method relative to 1F1B."""
    names = list(dict.fromkeys(r["model"] for r in rows))
    methods = list(dict.fromkeys(r["method"] for r in rows))
    figure = new_figure(11, 3.2)
    for axes, model in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
        sizes = list(dict.fromkeys(r["devices"] for r in rows if r["model"] == model))
        for k, method in enumerate(methods):
            for x, devices in enumerate(sizes):
                mine = {
                    r["method"]: r for r in rows if (r["model"], r["devices"]) == (model, devices)
                }
                value, base = mine[method]["throughput"], mine["1F1B"]["throughput"]
                at = x + (k - 1.5) * 0.2
                if value and base:
                    axes.bar(
                        at,
                        float(value) / float(base),
                        0.19,
                        color=COLOURS[k],
                        label=method if x == 0 else None,
                    )
                else:
                    axes.text(at, 0.03, "no fit", rotation=90, ha="center", va="bottom", fontsize=6)
        axes.axhline(1, color="#808080", linewidth=0.7)
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_xlabel("devices", fontsize=8)
        axes.set_title(model, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("throughput, 1F1B = 1\n(simulated)")
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=COLOURS[k], label=method) for k, method in enumerate(methods)],
        loc="outside lower center",
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    figure.savefig(path, dpi=110)
