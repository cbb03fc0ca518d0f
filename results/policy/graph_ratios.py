"""What studies of the default searches share: their graphs, their rows, and a page of ratios."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from graph_families import CHOICE, LARGE, TEST, drawn

from placeopt.experiments.studies import kept_rows, markdown_table, row_options, write_csv
from placeopt.model.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import placeopt as po

SPLITS = {"CHOICE": CHOICE, "TEST": TEST, "LARGE": LARGE}
Row = dict[str, Any]


def contended(split: str, seed: int, shared: str = "pair") -> tuple[str, po.PlacementProblem]:
    """Return the name and a graph whose transfers wait for one another: those between two devices,
    those of one `source`, or all on one `bus`.
    """
    name, problem = drawn(SPLITS[split], seed)
    k = problem.num_devices
    channel = np.arange(k * k).reshape(k, k) // {"pair": 1, "source": k, "bus": k * k}[shared]
    np.fill_diagonal(channel, -1)
    return f"{name}, {shared}", problem.replace(channel=channel)


def kind_of(problem: po.PlacementProblem) -> str:
    """How devices differ: not, in speed, or every op likes others best."""
    able = problem.compute[(problem.compute > 0).all(axis=1)].astype(float)
    share = able / able[:, :1]
    if (share == 1.0).all():
        return "equal"
    return "speeds" if share.std(axis=0).max() < 1e-3 else "unrelated"


def record(
    doc: str | None,
    table: Path,
    graphs: Iterator[tuple[str, str, po.PlacementProblem]],
    variants: Sequence[str],
    solve: Callable[[Any, str], Row],
    head: str,
    pairs: Sequence[tuple[str, str]],
) -> None:
    """Run what is missing, and write the page.

    Parameters
    ----------
    graphs : split, name and problem of each. solve : a problem by a variant, to columns of its row.
    head : of the page. pairs : variants whose values are compared.
    """
    options = row_options(doc)
    rows = kept_rows(table, options, ("graph", "variant"), numbers=True)
    done = {(row["graph"], row["variant"]) for row in rows}
    for split, name, problem in graphs:
        for variant in variants:
            late = time.monotonic() > options.end
            if (name, variant) in done or late or options.only not in f"{name}, {variant}":
                continue
            row = {"graph": name, "variant": variant, "split": split, "devices": kind_of(problem)}
            rows.append(row | solve(problem, variant))
            write_csv(table, rows)
    lines = [
        *(head, "Ratios of makespans, with 95 % intervals over graphs; better and worse: by more "),
        *("than .01 %.", ""),
    ]
    for split in sorted({row["split"] for row in rows}):
        lines += [f"## {split}", "", *ratios(rows, split, pairs), ""]
    write_text(table.with_suffix(".md"), "\n".join(lines))


def ratios(rows: list[Row], split: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return a table of the ratios of pairs of variants, by the kind of devices."""
    value = {(row["graph"], row["variant"]): row["value"] for row in rows}
    kinds = {row["graph"]: row["devices"] for row in rows if row["split"] == split}
    table = []
    for kind in ("equal", "speeds", "unrelated", "all"):
        for one, other in pairs:
            logs = np.log(
                [
                    value[graph, one] / value[graph, other]
                    for graph, of in kinds.items()
                    if kind in (of, "all") and {(graph, one), (graph, other)} <= set(value)
                ]
            )
            if len(logs) > 1:
                spread = 1.96 * logs.std(ddof=1) / len(logs) ** 0.5
                low, mean, high = np.exp(logs.mean() + spread * np.array([-1, 0, 1]))
                counts = [str((logs < -1e-4).sum()), str((logs > 1e-4).sum())]
                words = f"{mean:.4f} [{low:.4f}, {high:.4f}]"
                table.append([kind, str(len(logs)), f"{one} / {other}", words, *counts])
    return markdown_table(["devices", "graphs", "ratio of", "mean", "better", "worse"], table)
