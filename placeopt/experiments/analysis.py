"""Statistics of a study's rows: best-known values, gaps, wins, performance profiles, targets,
pairwise tests.

References
----------
E. D. Dolan, J. J. Moré, "Benchmarking optimization software with performance profiles",
Mathematical Programming 91, 2002.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from placeopt.experiments.store import Row, check_consistent
from placeopt.model.arrays import Floats, Ints, by_key
from placeopt.model.files import one_line
from placeopt.model.objective import objective_names


@dataclass(frozen=True, eq=False)
class SolverTable:
    """Values of s solvers on p instances, medians over seeds.

    Attributes
    ----------
    median : median value in ticks, NaN where a solver has no result; shape (instances, solvers).
    runtime : median runtime in seconds; same shape.
    runs, failures : number of runs and of failures per solver.
    """

    instances: tuple[str, ...]
    solvers: tuple[str, ...]
    median: Floats
    runtime: Floats
    lower_bound: Floats  # (instances,)
    runs: Ints
    failures: Ints


USUAL = objective_names("placement")[:1]
"""The objective that tables do not name."""


def instance_name(row: Row) -> str:
    """Return the name of a row's problem in tables."""
    words = [row["instance"]] + ([f"on {row['cluster']}"] if row.get("cluster") else [])
    return " ".join(words + ([f"({row['objective']})"] if row["objective"] not in USUAL else []))


def told_apart(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with labels that stand for one configuration each: behind one that stood for
    several it is said in what they differ (solver, options, budget, version of the package).
    """
    listed = [(row, _configuration(row)) for row in rows]
    keys = dict.fromkeys(key for _, own in listed for key in own)
    found = by_key(((row["label"], key), own.get(key)) for row, own in listed for key in keys)
    several = {which for which, values in found.items() if len(set(values)) > 1}
    apart = []
    for row, own in listed:
        words = [f"{key}={x}" for key, x in own.items() if (row["label"], key) in several]
        more = f" ({', '.join(words)})" if words else ""
        apart.append({**row, "label": one_line(row["label"] + more, 1000)})
    return apart


def _configuration(row: Row) -> dict[str, str]:
    """Return what decides a row's result beside problem and seed, where the row says it."""
    parts = {key: row.get(key) for key in ("solver", "version")}
    said = {**parts, **row.get("options", {}), **row.get("budget", {})}
    return {key: str(x) for key, x in said.items() if x is not None}


def best_known(rows: Iterable[Row]) -> list[Row]:
    """Return the row of the best value of every problem, with the best bound, in order of first
    appearance.

    Raises
    ------
    InputError
        If rows contradict one another.
    """
    rows = list(rows)
    check_consistent(rows)
    values: dict[tuple[str, str], Row] = {}
    bounds: dict[tuple[str, str], tuple[int, str]] = {}
    for row in rows:
        key = row["problem_hash"], row["objective"]
        if row["lower_bound"] > bounds.get(key, (-1, ""))[0]:
            bounds[key] = (row["lower_bound"], row["bound_method"])
        if row["value"] is None:
            continue
        # Equal values: the one that was found with fewer evaluations gets the credit.
        rank = (row["value"], row["evaluations"])
        if key not in values or rank < (values[key]["value"], values[key]["evaluations"]):
            values[key] = row
    return [
        row
        | {"cluster": row.get("cluster") or ""}
        | dict(zip(("lower_bound", "bound_method"), bounds[key], strict=True))
        for key, row in values.items()
    ]


def compare(rows: Iterable[Row]) -> SolverTable:
    """Gather the values of all solvers on all instances.

    Raises
    ------
    InputError
        If rows contradict one another.
    """
    rows = list(rows)
    check_consistent(rows)
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    bounds: dict[str, int] = {}
    runs, failures = Counter[str](), Counter[str]()
    for row in rows:
        name, label = instance_name(row), row["label"]
        bounds[name] = max(bounds.get(name, 0), row["lower_bound"])
        runs[label] += 1
        failures[label] += row["status"] == "failed"
        if row["value"] is not None:
            found[name, label].append((row["value"], row["runtime"]))
    median, runtime = np.full((2, len(bounds), len(runs)), np.nan)
    for i, name in enumerate(bounds):
        for j, label in enumerate(runs):
            if (name, label) in found:
                median[i, j], runtime[i, j] = np.median(found[name, label], axis=0)
    return SolverTable(
        tuple(bounds),
        tuple(runs),
        median,
        runtime,
        np.array(list(bounds.values()), np.float64),
        np.array(list(runs.values())),
        np.array(list(failures.values())),
    )


def gaps(table: SolverTable) -> Floats:
    """Return the gap of each median to the bound, NaN where a solver has no result."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (table.median - table.lower_bound[:, None]) / table.median
    found[table.median == 0] = 0.0
    return found


def mean_gaps(table: SolverTable) -> Floats:
    """Return each solver's mean gap to the bound over the instances it solved, NaN where none;
    shape (solvers,).
    """
    each = gaps(table)
    counts = (~np.isnan(each)).sum(axis=0)
    return np.where(counts > 0, np.nansum(each, axis=0) / np.maximum(counts, 1), np.nan)


def wins(table: SolverTable) -> Ints:
    """Return on how many instances each solver's median is the best (ties count for all); shape
    (solvers,).
    """
    value, top = _values_and_best(table)
    return ((value == top) & np.isfinite(value)).sum(axis=0)


def _values_and_best(table: SolverTable) -> tuple[Floats, Floats]:
    """Return the medians, infinite where a solver has none, and the best of each instance."""
    value = np.where(np.isnan(table.median), np.inf, table.median)
    return value, value.min(axis=1, keepdims=True)


def profile(table: SolverTable, ratios: Floats) -> Floats:
    """Return the share of instances solved within a ratio of the best median (Dolan and More 2002).

    Shape (solvers, ratios).
    """
    value, top = _values_and_best(table)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(top > 0, value / top, np.where(value == 0, 1.0, np.inf))
    return (ratio[:, :, None] <= ratios[None, None, :] * (1 + 1e-12)).mean(axis=0)


def to_target(rows: Iterable[Row]) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return, per instance and solver, (share of runs, median evaluations, median seconds) to a
    common target.

    The target of an instance is the best value over all runs, plus a hundredth.
    """
    slack = 0.01
    listed = list(rows)
    target: dict[str, float] = {}
    for row in listed:
        if row["value"] is not None:
            name = instance_name(row)
            target[name] = min(target.get(name, np.inf), row["value"] * (1 + slack))
    hits: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in listed:
        name = instance_name(row)
        reached = (p for p in row["trace"] if p[2] is not None and p[2] <= target.get(name, -1))
        seconds, evaluations, *_ = next(reached, (np.inf, np.inf))
        hits[name, row["label"]].append((evaluations, seconds))
    found: dict[str, dict[str, tuple[float, float, float]]] = defaultdict(dict)
    for (name, label), points in hits.items():
        known = [point for point in points if np.isfinite(point[0])]
        evaluations, seconds = np.median(known, axis=0).tolist() if known else (np.nan, np.nan)
        found[name][label] = (len(known) / len(points), evaluations, seconds)
    return found


def convergence(rows: Iterable[Row]) -> dict[str, dict[str, tuple[Floats, Floats]]]:
    """Return, per instance and solver, (evaluations, quartiles of the incumbent over seeds).

    Evaluations are spaced evenly on a logarithmic scale; the quartiles have the shape (3, points).
    """
    points = 60
    traces: dict[tuple[str, str], list[list[Any]]] = defaultdict(list)
    for row in rows:
        steps = [p for p in row["trace"] if p[2] is not None]
        if steps:
            # The run went on after its last improvement: its end is part of the curve.
            last = [row["runtime"], max(row["evaluations"], steps[-1][1]), steps[-1][2], 0]
            traces[instance_name(row), row["label"]].append([*steps, last])
    found: dict[str, dict[str, tuple[Floats, Floats]]] = defaultdict(dict)
    for (name, label), runs in traces.items():
        end = max(run[-1][1] for run in runs)
        start = max(1, min(run[0][1] for run in runs))
        if end <= start:
            continue
        grid = np.geomspace(start, end, points)
        values = np.array([_incumbents(run, grid) for run in runs])
        seen = ~np.isnan(values).any(axis=0)
        if seen.any():
            found[name][label] = (grid[seen], np.percentile(values[:, seen], [25, 50, 75], axis=0))
    return found


def _incumbents(run: list[list[Any]], grid: Floats) -> Floats:
    """Return what a run had found after each of these numbers of evaluations, NaN for nothing."""
    at = np.searchsorted([point[1] for point in run], grid, side="right")
    return np.array([math.nan, *(point[2] for point in run)], np.float64)[at]


def pairwise_tests(table: SolverTable) -> list[tuple[str, str, int, float, float]]:
    """Compare solvers pairwise over instances: (a, b, instances, p value, effect size).

    Wilcoxon signed-rank test of the relative differences of medians; the effect size is the
    matched-pairs rank-biserial correlation, negative where a is better (smaller).
    """
    from scipy.stats import rankdata, wilcoxon

    found = []
    medians = zip(table.solvers, table.median.T, strict=True)
    for (a, of_a), (b, of_b) in combinations(medians, 2):
        both = ~np.isnan(of_a) & ~np.isnan(of_b)
        x, y = of_a[both], of_b[both]
        difference = (x - y) / np.maximum(1.0, np.minimum(x, y))
        moved = difference[difference != 0]
        if len(difference) < 2:
            continue
        p, effect = 1.0, 0.0
        if len(moved):
            ranks = rankdata(np.abs(moved))
            effect = float((ranks * np.sign(moved)).sum() / ranks.sum())
            p = float(wilcoxon(difference, zero_method="wilcox").pvalue)
        found.append((a, b, len(difference), p, effect))
    return found
