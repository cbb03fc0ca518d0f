"""`placeopt report`: tables (Markdown, CSV), pictures (PNG, SVG) and one self-contained HTML page
of a study.
"""

from __future__ import annotations

import csv
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.experiments import analysis
from placeopt.experiments.store import cell_rows
from placeopt.model.errors import InputError, MissingExtraError
from placeopt.model.files import write_bytes, write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

Table = tuple[list[str], list[list[str]]]


def write_report(
    folder: str | Path, out: str | Path, *, parquet: bool = False
) -> tuple[list[Path], dict[str, Any]]:
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
    rows = cell_rows(path)
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
    }
    title = path.parent.name
    files = [
        write_text(out / "report.md", markdown(title, tables)),
        write_text(out / "solvers.csv", to_csv(tables["Solvers"])),
        write_text(out / "best-known.csv", to_csv(tables["Best known"])),
        write_text(out / "values.csv", to_csv(tables["Values"])),
    ]
    drawings = {}
    for name, figure in _figures(table, rows).items():
        drawings[name] = _draw(figure, "svg")
        files.append(write_bytes(out / f"{name}.svg", drawings[name]))
        files.append(write_bytes(out / f"{name}.png", _draw(figure, "png")))
    files.append(write_text(out / "report.html", page(title, tables, drawings)))
    if parquet:
        files.append(_write_parquet(rows, out / "runs.parquet"))
    summary = {
        "study": title,
        "rows": len(rows),
        "failed": len(failed),
        "instances": len(table.instances),
        "solvers": len(table.solvers),
        "best": [
            {
                "instance": b.instance,
                "cluster": b.cluster,
                "objective": b.objective,
                "value": b.value,
                "lower_bound": b.lower_bound,
                "bound_method": b.bound_method,
                "gap": b.gap,
                "solver": b.solver,
            }
            for b in best
        ],
    }
    return files, summary


# --- tables
# ----------------------------------------------------------------------------------------------


def solver_table(table: analysis.SolverTable) -> Table:
    """One line per solver: runs, failures, wins, mean gap, median runtime."""
    gaps, wins = analysis.mean_gaps(table), analysis.wins(table)
    order = np.argsort(np.where(np.isnan(gaps), np.inf, gaps), kind="stable")
    rows = [
        [
            table.solvers[j],
            str(table.runs[j]),
            str(table.failures[j]),
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
        "wins (median)",
        "mean gap to bound",
        "median runtime",
    ], rows


def best_table(best: Sequence[analysis.BestKnown]) -> Table:
    """One line per problem: best value, bound, gap, who found it."""
    rows = [
        [
            b.instance,
            b.cluster,
            b.objective,
            str(b.value),
            f"{b.value * b.tick_seconds:.6g}",
            str(b.lower_bound),
            b.bound_method,
            _percent(b.gap),
            b.solver,
            str(b.seed),
        ]
        for b in best
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


def target_table(rows: Sequence[dict[str, Any]]) -> Table:
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


def failure_table(rows: Sequence[dict[str, Any]]) -> Table:
    """List the runs that failed, with their message."""
    return ["instance", "solver", "seed", "error"], [
        [analysis.instance_name(row), row["label"], str(row["seed"]), row["error"]]
        for row in rows[:200]
    ]


def to_csv(table: Table) -> str:
    """Return a table as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([table[0], *table[1]])
    return stream.getvalue()


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


def _figures(table: analysis.SolverTable, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures by file name; none without matplotlib."""
    try:
        from placeopt.experiments.figures import convergence_figure, gap_figure, profile_figure

        figures = {"profile": profile_figure(table), "gaps": gap_figure(table)}
        if (figure := convergence_figure(rows, table.solvers)) is not None:
            figures["convergence"] = figure
    except MissingExtraError:
        return {}
    return figures


def _draw(figure: Any, kind: str) -> bytes:
    stream = io.BytesIO()
    metadata = {"png": {"Software": "placeopt"}, "svg": {"Date": None}}[kind]
    figure.savefig(stream, format=kind, dpi=130, metadata=metadata)
    return stream.getvalue()


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 13px; margin: .5rem 0 2rem; display: block; overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
th { background: #f4f4f4; position: sticky; top: 0; } figure { margin: 1rem 0 2rem; } svg { max-width: 100%; height: auto; }
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
                f"<h2>{html.escape(name)}</h2><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
            )
    name = html.escape(title)
    icon = '<link rel="icon" href="data:,">'  # no request for a favicon
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>{icon}'
        f"<style>{STYLE}</style></head><body><h1>{name}</h1>{''.join(parts)}</body></html>\n"
    )


def _write_parquet(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "--parquet") from error
    import json

    flat = [
        {
            key: json.dumps(value) if isinstance(value, dict | list) else value
            for key, value in row.items()
        }
        for row in rows
    ]
    keys = list(dict.fromkeys(key for row in flat for key in row))
    pyarrow.parquet.write_table(
        pyarrow.table({key: [row.get(key) for row in flat] for key in keys}), path
    )
    return path
