"""`placeopt report`: tables (Markdown, CSV), pictures (PNG, SVG) and one self-contained HTML page
of a study.

Pictures of a study: performance profile, gaps to the bound, convergence with bands over
seeds.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.experiments import analysis
from placeopt.experiments.store import Row, cell_rows
from placeopt.model.arrays import stable_order
from placeopt.model.errors import InputError, MissingExtraError, needed_package
from placeopt.model.files import Data, csv_text, write_bytes, write_text
from placeopt.model.result import gap_of
from placeopt.plotting.style import COLOURS, figure_bytes, new_figure, write_figure

Table = tuple[list[str], list[list[str]]]


def write_report(
    folder: str | Path, out: str | Path, *, parquet: bool = False
) -> tuple[list[Path], Data]:
    """Write the report of results folder `folder` into `out`; return the files and a summary.

    Raises
    ------
    InputError
        If there are no runs, or a line of the store is damaged.
    """
    source = Path(folder)
    path = source if source.is_file() else source / "runs.jsonl"
    if not path.exists():
        raise InputError(
            f"'{folder}': expected a folder with runs.jsonl; run 'placeopt bench STUDY.toml' first"
        )
    rows = analysis.told_apart(cell_rows(path))
    if not rows:
        raise InputError(f"'{path}' has no runs yet; run 'placeopt bench STUDY.toml' first")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    table = analysis.compare(rows)
    best = analysis.best_known(rows)
    failed = [row for row in rows if row["status"] == "failed"]
    tables = {
        "Solvers": solver_table(table),
        "Best known": best_table(best),
        "Values": value_table(table),
        "To target (within 1 % of the best)": target_table(rows),
        "Pairwise tests": test_table(table),
        "Failures": failure_table(failed),
        "Made by": origin_table(rows),
    }
    title = path.parent.name
    files = [write_text(out / "report.md", markdown(title, tables))]
    for name, shown in (("solvers", "Solvers"), ("best-known", "Best known"), ("values", "Values")):
        head, body = tables[shown]
        files.append(write_text(out / f"{name}.csv", csv_text([head, *body])))
    drawings = {}
    for name, figure in _figures(table, rows).items():
        drawings[name] = figure_bytes(figure, "svg", dpi=130)
        files.append(write_bytes(out / f"{name}.svg", drawings[name]))
        files.append(write_figure(figure, out / f"{name}.png", dpi=130))
    files.append(write_text(out / "report.html", page(title, tables, drawings)))
    if parquet:
        files.append(_write_parquet(rows, out / "runs.parquet"))
    known = ("instance", "cluster", "objective", "value", "lower_bound", "bound_method")
    summary = {
        "study": title,
        "rows": len(rows),
        "failed": len(failed),
        "instances": len(table.instances),
        "solvers": len(table.solvers),
        "best": [
            {**{key: row[key] for key in known}, "gap": _gap(row), "solver": row["label"]}
            for row in best
        ],
    }
    return files, summary


# --- tables
# ----------------------------------------------------------------------------------------------


def solver_table(table: analysis.SolverTable) -> Table:
    """One line per solver: runs, failures, instances solved, wins, mean gap over those that are
    solved, median runtime; those that solve most come first.
    """
    gaps, wins = analysis.mean_gaps(table), analysis.wins(table)
    solved = (~np.isnan(table.median)).sum(axis=0)
    order = np.lexsort((gaps, -solved))
    rows = [
        [
            table.solvers[j],
            str(table.runs[j]),
            str(table.failures[j]),
            f"{solved[j]} / {len(table.instances)}",
            f"{wins[j]} / {len(table.instances)}",
            _percent(gaps[j]),
            _number(_median(table.runtime[:, j]), " s"),
        ]
        for j in order
    ]
    return [
        "solver",
        "runs",
        "failed",
        "solved",
        "wins (median)",
        "mean gap to bound",
        "median runtime",
    ], rows


def _gap(row: Row) -> float:
    return gap_of(row["value"], row["lower_bound"])


def best_table(best: Sequence[Row]) -> Table:
    """One line per problem: best value, bound, gap, who found it."""
    rows = [
        [
            row["instance"],
            row["cluster"],
            row["objective"],
            str(row["value"]),
            _seconds(row),
            str(row["lower_bound"]),
            row["bound_method"],
            _percent(_gap(row)),
            row["label"],
            str(row["seed"]),
        ]
        for row in best
    ]
    head = [
        "instance",
        "cluster",
        "objective",
        "value (ticks)",
        "seconds",
        "lower bound",
        "proved by",
        "gap",
        "solver",
        "seed",
    ]
    return head, rows


def _seconds(row: Row) -> str:
    """Write a value as seconds; of job streams and sharding it is no time."""
    timed = row.get("kind") not in ("jobs", "sharding")
    return f"{row['value'] * row.get('tick_seconds', 1e-9):.6g}" if timed else "-"


def value_table(table: analysis.SolverTable) -> Table:
    """Median value of every solver on every instance."""
    rows = [
        [
            name,
            _ticks(table.lower_bound[i]),
            *("-" if np.isnan(x) else _ticks(x) for x in table.median[i]),
        ]
        for i, name in enumerate(table.instances)
    ]
    return ["instance", "lower bound", *table.solvers], rows


def target_table(rows: Sequence[Row]) -> Table:
    """Share of runs that reach the target, median evaluations and seconds they need."""
    body = [
        [name, label, f"{100 * share:.0f} %", _number(evaluations), _number(seconds, " s")]
        for name, solvers in analysis.to_target(rows).items()
        for label, (share, evaluations, seconds) in solvers.items()
    ]
    return ["instance", "solver", "runs that reach it", "median evaluations", "median time"], body


def test_table(table: analysis.SolverTable) -> Table:
    """Wilcoxon tests between solvers."""
    rows = [
        [a, b, str(count), f"{p:.3g}", f"{effect:+.2f}"]
        for a, b, count, p, effect in analysis.pairwise_tests(table)
    ]
    return ["a", "b", "instances", "p (Wilcoxon)", "effect (negative: a better)"], rows


def failure_table(rows: Sequence[Row]) -> Table:
    """List the runs that failed, with their message."""
    return ["instance", "solver", "seed", "error"], [
        [analysis.instance_name(row), row["label"], str(row["seed"]), row.get("error") or ""]
        for row in rows[:200]
    ]


def origin_table(rows: Sequence[Row]) -> Table:
    """Count the runs of every state of the package and every machine."""
    keys = ("version", "commit", "host", "python")
    counts = Counter(tuple(str(row.get(key, "")) for key in keys) for row in rows)
    return [*keys, "runs"], [[*where, str(count)] for where, count in counts.items()]


def markdown(title: str, tables: dict[str, Table]) -> str:
    """Return the tables as one Markdown page; empty ones are left out."""
    parts = [f"# {title}\n"]
    for name, (head, rows) in tables.items():
        if rows:
            lines = [head, ["---"] * len(head), *rows]
            body = "\n".join(
                "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                for line in lines
            )
            parts.append(f"## {name}\n\n{body}\n")
    return "\n".join(parts)


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.2f} %"


def _ticks(value: float) -> str:
    """Write ticks: whole ones as such, the period per micro-batch of several with two decimals."""
    return f"{value:.0f}" if value == round(value) else f"{value:.2f}"


def _number(value: float, unit: str = "") -> str:
    return "-" if np.isnan(value) else f"{value:.4g}{unit}"


def _median(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


# --- pictures and the page
# ---------------------------------------------------------------------------------


def _figures(table: analysis.SolverTable, rows: Sequence[Row]) -> Data:
    """Return the figures by file name; none without matplotlib."""
    try:
        figures = {"profile": profile_figure(table), "gaps": gap_figure(table)}
        if (figure := convergence_figure(rows, table.solvers)) is not None:
            figures["convergence"] = figure
    except MissingExtraError:
        return {}
    return figures


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem;
  color: #222; }
table { border-collapse: collapse; font-size: 13px; margin: .5rem 0 2rem; display: block;
  overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: left;
  white-space: nowrap; }
th { background: #f4f4f4; position: sticky; top: 0; }
figure { margin: 1rem 0 2rem; } svg { max-width: 100%; height: auto; }
"""


def page(title: str, tables: dict[str, Table], drawings: dict[str, bytes]) -> str:
    """Return one HTML page with everything in it: no scripts, no other files."""
    parts = []
    for name, svg in drawings.items():
        drawing = svg.decode()
        parts.append(f'<figure id="{name}">{drawing[drawing.index("<svg") :]}</figure>')
    for name, (head, rows) in tables.items():
        if rows:
            top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
                for row in rows
            )
            parts.append(
                f"<h2>{html.escape(name)}</h2>"
                f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
            )
    name = html.escape(title)
    icon = '<link rel="icon" href="data:,">'  # no request for a favicon
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>{icon}'
        f"<style>{STYLE}</style></head><body><h1>{name}</h1>{''.join(parts)}</body></html>\n"
    )


def _write_parquet(rows: Sequence[Row], path: Path) -> Path:
    pyarrow = needed_package("pyarrow", "parquet", "--parquet")
    from pyarrow.parquet import write_table

    def flat(entry: Any) -> Any:
        return json.dumps(entry) if isinstance(entry, dict | list) else entry

    keys = dict.fromkeys(chain.from_iterable(rows))
    table = pyarrow.table({key: [flat(row.get(key)) for row in rows] for key in keys})
    write_table(table, path)
    return path


DASHES = ("solid", (0, (5, 2)), (0, (1, 1.4)))


def _look(index: int) -> Data:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def profile_figure(table: analysis.SolverTable) -> Any:
    """Share of instances (y) that a solver brings within a percentage (x) of the best median."""
    figure = new_figure(8, 4.4)
    axes = figure.add_subplot()
    with np.errstate(invalid="ignore", divide="ignore"):
        best = np.fmin.reduce(table.median, axis=1, keepdims=True)
        worst = np.fmax.reduce(table.median / best, axis=None)
    most = 100 * (float(np.clip(worst, 1.05, 10.0)) - 1) if np.isfinite(worst) else 5.0
    excess = np.concatenate([np.linspace(0, 1, 101), np.geomspace(1, most, 400)[1:]])
    for j, share in enumerate(analysis.profile(table, 1 + excess / 100)):
        axes.step(excess, share, where="post", label=table.solvers[j], **_look(j))
    axes.set_xscale(
        "symlog", linthresh=1
    )  # from a tenth of a per cent to twice as long on one axis
    axes.set_xlim(0, most)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("above the best median, at most (%)")
    axes.set_ylabel("share of instances")
    axes.set_ylim(0, 1.02)
    axes.set_title("Performance profile", fontsize=10)
    _finish(figure, axes, len(table.solvers))
    return figure


def gap_figure(table: analysis.SolverTable) -> Any:
    """Gap of every solver's median to the proven bound: one dot per instance, a bar for the
    mean.
    """
    figure = new_figure(8, 1.2 + 0.32 * len(table.solvers))
    axes = figure.add_subplot()
    gaps = 100 * analysis.gaps(table)
    means = 100 * analysis.mean_gaps(table)
    order = stable_order(means)  # what is not a number comes last
    for row, j in enumerate(order):
        if not np.isnan(means[j]):
            axes.barh(row, means[j], color=COLOURS[0], alpha=0.35, height=0.7)
            axes.plot(
                gaps[:, j], np.full(len(gaps), row), "o", markersize=3, color=COLOURS[0], alpha=0.7
            )
    axes.set_yticks(range(len(order)), [table.solvers[j] for j in order])
    axes.invert_yaxis()
    axes.set_xlabel("gap to the proven lower bound (%); bar: mean, dots: instances")
    axes.set_xlim(0)
    axes.set_title("Gaps", fontsize=10)
    _finish(figure, axes, 0)
    return figure


def convergence_figure(rows: Sequence[Row], solvers: Sequence[str]) -> Any:
    """Incumbent against evaluations, median and quartiles over seeds; None if no run has a
    trace.
    """
    curves = analysis.convergence(rows)
    max_panels = 12
    names = [name for name in curves if curves[name]][:max_panels]
    if not names:
        return None
    columns = min(3, len(names))
    height = -(-len(names) // columns)
    figure = new_figure(4.4 * columns, 3.0 * height + 0.6)
    panels = figure.subplots(height, columns, squeeze=False).ravel()
    for at, (axes, name) in enumerate(zip(panels, names, strict=False)):
        starts, ends = [], []
        for j, label in enumerate(solvers):
            if label in curves[name]:
                x, (low, middle, high) = curves[name][label]
                axes.plot(x, middle, label=label, linewidth=1.3, **_look(j))
                axes.fill_between(x, low, high, color=_look(j)["color"], alpha=0.18, linewidth=0)
                starts.append(np.nanmax(high))
                ends.append(middle[-1])
        _zoom(axes, np.array(starts), np.array(ends))
        axes.set_xscale("log")
        axes.set_title(name, fontsize=7)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#E8E8E8", linewidth=0.5)
        if at + columns >= len(names):
            axes.set_xlabel("evaluations", fontsize=8)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    handles: Data = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.supylabel("incumbent (ticks)", fontsize=8)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=4,
        fontsize=7,
        frameon=False,
    )
    return figure


def _zoom(axes: Any, starts: Any, ends: Any) -> None:
    """Set the y axis to where solvers end, not to where a bad start would draw it."""
    starts, ends = starts[np.isfinite(starts)], ends[np.isfinite(ends)]
    if not len(ends):
        return
    low, high = ends.min(), np.quantile(ends, 0.8)
    room = max(high - low, 0.02 * low, 1)
    top = min(starts.max(), high + room)
    axes.set_ylim(low - 0.08 * room, top + 0.05 * room)


def _finish(figure: Any, axes: Any, entries: int) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)
    if entries:
        figure.legend(loc="outside lower center", ncols=min(4, entries), fontsize=8, frameon=False)
