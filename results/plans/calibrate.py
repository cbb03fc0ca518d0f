"""Fit the cost model to some of the measured runs and judge it on the others: one command.

    PLACEOPT_DATA=../shared/data python results/plans/calibrate.py [STAGE ...] [--again]

Stages: priors, final, halves, sources; all by default, and what is there is kept. `memory` fits
the constants of memory alone.

Every source is halved: its groups of (model, devices), those with most rows first and equal ones in
the order of a hash of their names, go to the half with fewer rows of the source so far. The rule
knows names and counts alone. Each half is predicted by the fit of the other.

`priors` finds the widths that constants and offsets are drawn to their starts with (priors.csv).
`final` fits all rows and writes placeopt/plans/calibration.json and constants.csv. `halves` judges
halves: runs.csv has the errors of the step by source and devices, choices.csv the groups of rows that
differ in the plan alone, memory.csv peaks and rows out of memory, groups.csv the groups that are
predicted worst; the spread of measured over predicted of rows apart goes to calibration.json.
`sources` leaves one source out at a time: sources.csv, and their spread, which the interval of
launchers without fitted runs comes from; and predicts published_steps.csv, steps that their authors
printed and no fit sees: `priors` chooses on some families of them, by a hash of the name, and not
on the others. coverage.csv counts the rows in intervals that other rows
gave: the other half's, the other sources'. runs.md is drawn from these tables.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placeopt.plans
from placeopt.experiments.studies import (
    data_folder,
    markdown_table,
    read_csv,
    row_options,
    table_of,
    write_csv,
)
from placeopt.model.errors import InputError
from placeopt.planning.fit_runs import (
    LinearFit,
    Widths,
    fit,
    fit_memory,
    minimize,
    student,
    usable,
)
from placeopt.planning.runs_table import OFFLOADED, USABLE, predict_run, read_run, read_runs
from placeopt.plans.calibration import (
    CONSTANTS,
    UNFITTED,
    Calibration,
    read_calibration,
    spread_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from whole_tables import wanted  # noqa: E402 - results/ is no package

SHIPPED = Path(placeopt.plans.__file__).parent / "calibration.json"
Row = dict[str, Any]
APART = "apart"


def digest(text: str) -> int:
    """Return a number that depends on a text alone."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def halves_of(rows: list[Row]) -> dict[tuple[str, str, str], int]:
    """Return the half of every group (source, model, devices)."""
    groups: dict[str, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        groups[row["source"]][row["model"], row["n_gpus"]] += 1
    found = {}
    for source, counts in groups.items():
        filled, first = [0, 0], digest(source) % 2
        for key in sorted(counts, key=lambda key: (-counts[key], digest(" ".join(key)))):
            side = first if filled[0] == filled[1] else int(filled[1] < filled[0])
            filled[side] += counts[key]
            found[(source, *key)] = side
    return found


def predictions(rows: list[Row], constants: Calibration) -> list[Row]:
    """Return the rows that can be priced, with predicted and measured step and memory; `plain` is
    the step without the offsets of layers that were measured in other models.
    """
    layers = {key: o for key, o in constants.offsets.items() if not key.startswith("layer ")}
    without = replace(constants, offsets=layers)
    found = []
    for row in rows:
        try:
            run = read_run(row)
        except InputError:
            continue
        parts, memory, said, notes = predict_run(run, constants)
        plain = predict_run(run, without)[0].total
        more = {"run": said, "step": parts.total, "plain": plain, "memory": memory.total}
        found.append(row | more | {"offloaded": OFFLOADED in notes})
    return found


def judged(rows: list[Row]) -> list[Row]:
    """Return the rows with a measured step that nothing is odd about."""
    return [row for row in rows if row["run"].seconds and not row.get("flag")]


def hosts(row: Row) -> str:
    """Say whether a run took one host or many."""
    conf = row["run"].conf
    return "one" if conf.devices <= conf.per_host else "many"


def errors(rows: list[Row], kind: str) -> list[Row]:
    """Return error statistics of the step by source, devices and hosts."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in judged(rows):
        many = hosts(row)
        for source in (row["source"], "all"):
            groups[source, row["gpu"], many].append(row)
            groups[source, "all", many].append(row)
    table = []
    for (source, gpu, many), members in sorted(groups.items()):
        ratios = np.array([row["step"] / row["run"].seconds for row in members])
        plain = np.array([row["plain"] / row["run"].seconds for row in members])
        off = 100 * np.abs(ratios - 1)
        table.append(
            {
                "rows_are": kind,
                "source": source,
                "gpu": gpu,
                "hosts": many,
                "rows": len(off),
                "groups": len({(row["source"], row["model"], row["n_gpus"]) for row in members}),
                "median": round(float(np.median(off)), 2),
                "mean": round(float(off.mean()), 2),
                "worst": round(float(off.max()), 1),
                "predicted_by_measured": round(float(np.median(ratios)), 3),
                "mean_without_layers": round(float(100 * np.abs(plain - 1).mean()), 2),
            }
        )
    return table


def worst_groups(rows: list[Row], count: int = 20) -> list[Row]:
    """Return the groups of a source, model and devices that are predicted worst."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in judged(rows):
        key = tuple(row[name] for name in ("source", "model", "gpu", "n_gpus", "precision"))
        groups[key].append(row["step"] / row["run"].seconds)
    table = [
        {
            **dict(zip(("source", "model", "gpu", "devices", "precision"), key, strict=True)),
            "rows": len(ratios),
            "mean_error": round(100 * float(np.abs(np.array(ratios) - 1).mean()), 1),
            "predicted_by_measured": round(float(np.median(ratios)), 2),
        }
        for key, ratios in groups.items()
    ]
    return sorted(table, key=lambda row: -row["mean_error"])[:count]


def choices(rows: list[Row], kind: str) -> list[Row]:
    """Return, for every group of rows that differ in the plan alone, how the first choice did."""
    same = ("source", "model", "layers", "hidden", "seq_len", "gpu", "gpu_memory_gb", "n_gpus")
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["run"].seconds and not row["flag"]:
            rest = (row["global_batch"], row["precision"], row["framework"], row["kind"])
            groups[(*(row[key] for key in same), *rest)].append(row)
    plans = ("tp", "pp", "vp", "dp", "cp", "ep", "micro_batch", "sharding", "recompute")
    table = []
    for key, members in groups.items():
        if len({tuple(row[name] for name in plans) for row in members}) < 4:
            continue
        first = min(members, key=lambda row: row["step"])
        plain = min(members, key=lambda row: row["plain"])
        best = min(row["run"].seconds for row in members)
        table.append(
            {
                "rows_are": kind,
                "source": key[0],
                "model": key[1],
                "gpu": key[5],
                "devices": key[7],
                "batch": key[8],
                "plans": len(members),
                "measured_by_best": round(first["run"].seconds / best, 4),
                "without_layers": round(plain["run"].seconds / best, 4),
            }
        )
    return table


def memory(rows: list[Row], kind: str) -> list[Row]:
    """Return errors of peaks, and how rows that say whether they fit were called, by source; rows
    that fit by assumed offloading alone are counted too.
    """
    table = []
    for source in [*sorted({row["source"] for row in rows}), "all"]:
        mine = [row for row in rows if source in (row["source"], "all")]
        peaks = [
            abs(row["memory"] / 2**30 / row["run"].memory_gb - 1)
            for row in mine
            if row["run"].memory_gb
        ]
        called = [
            (row["run"].oom, row["memory"] > USABLE * row["run"].gpu.memory, row["offloaded"])
            for row in mine
            if row["run"].oom is not None
        ]
        if peaks or called:
            table.append(
                {
                    "rows_are": kind,
                    "source": source,
                    "peaks": len(peaks),
                    "median_error": round(100 * float(np.median(peaks)), 1) if peaks else "",
                    "said": len(called),
                    "called_right": sum(a == b for a, b, _ in called),
                    "out_of_memory": sum(a for a, _, _ in called),
                    "of_them_called": sum(a and b for a, b, _ in called),
                    "offloading_assumed": sum(c for _, _, c in called),
                    "of_them_right": sum(c and a == b for a, b, c in called),
                }
            )
    return table


def spreads(rows: list[Row]) -> dict[str, list[float]]:
    """Return the tenths of measured over predicted on rows apart, by kind of run; fewer than ten
    rows have none.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for row in judged(rows):
        run = row["run"]
        groups[spread_key(run.conf, run.gpu)].append(run.seconds / row["step"])
    return {
        key: [*np.round(np.percentile(ratios, (10, 90)), 3).tolist(), len(ratios)]
        for key, ratios in groups.items()
        if len(ratios) >= 10
    }


def spread_of_sources(rows: list[Row]) -> list[float]:
    """Return the tenths of measured over predicted, every source counting as much, and the rows."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for row in judged(rows):
        by_source[row["source"]].append(row["run"].seconds / row["step"])
    ratios = np.concatenate(list(by_source.values()))
    weights = np.concatenate([np.full(len(r), 1 / len(r)) for r in by_source.values()])
    order = np.argsort(ratios)
    parts = np.cumsum(weights[order])
    parts = (parts - weights[order] / 2) / parts[-1]
    return [*np.round(np.interp((0.1, 0.9), parts, ratios[order]), 3).tolist(), len(ratios)]


def coverage(rows: list[Row], known: dict[str, list[float]], kind: str) -> list[Row]:
    """Return how many rows of each source lie in the interval of their kind of run."""
    table = []
    for source in sorted({row["source"] for row in rows}):
        inside = []
        for row in judged([row for row in rows if row["source"] == source]):
            low, high, _ = known.get(spread_key(row["run"].conf, row["run"].gpu), known[UNFITTED])
            inside.append(low <= row["run"].seconds / row["step"] <= high)
        table.append(
            {"rows_are": kind, "source": source, "rows": len(inside), "inside": sum(inside)}
        )
    return table


WIDTHS = {
    "counted": (0.2, 0.3, 0.4, 0.5),
    "kernel": (0.1, 0.2, 0.3, 0.5),
    "free": (0.3, 0.5, 0.7, 1.0, 1.4),
    "kind": (0.01, 0.02, 0.03, 0.05),
    "combined": (0.02, 0.05, 0.1, 0.2, 0.4),
    "model": (0.02, 0.03, 0.05, 0.1),
    "layer": (0.02, 0.03, 0.05, 0.08),
    "tail": (2.0, 4.0, 8.0, 16.0),
}
"""Tried, from narrow to wide; the fewer degrees of freedom, the less do outliers count."""

CAP = 1.0
"""An error of a logarithm counts at most so much in the choice of widths."""


def chosen_on(row: Row) -> bool:
    """Whether widths are chosen on a published step, by its family."""
    return digest(row["source"]) % 2 == 0


class Folds:
    """Fits of parts of the runs, linear around the fit of all of them; published steps are no part
    of any fit.
    """

    def __init__(self, rows: list[Row], published: list[Row]) -> None:
        self.known: dict[Widths, np.ndarray[Any, Any]] = {}
        sides = halves_of(rows)
        given = [row for row in rows if not row["flag"] and usable([row])]
        kept = given + published
        fitted, self.model = (LinearFit(usable(r), Calibration(), Widths()) for r in (given, kept))
        found = minimize(fitted)
        slopes = self.model.slopes(found.logs)
        self.design = np.hstack([slopes, self.model.kinds])
        known = dict(zip(fitted.keys, found.offsets.tolist(), strict=True))
        away = [*found.logs - self.model.prior, *(known.get(key, 0.0) for key in self.model.keys)]
        error = self.model.measured - self.model.predicted(found.logs)
        self.wanted = error + slopes @ np.array(away)[: len(found.logs)]
        self.noise = np.append(found.noise, np.ones(len(published)))
        sources = np.array([row["source"] for row in kept])
        self.given = np.arange(len(kept)) < len(given)
        self.sources = sources
        halves = np.array([sides.get((r["source"], r["model"], r["n_gpus"]), -1) for r in kept])
        self.parts = [halves == side for side in (0, 1)]
        self.parts += [sources == source for source in np.unique(sources)]

    def apart(self, widths: Widths, part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the errors of a part by the fit of the others."""
        drawn = [widths.of_constant(name) for name in self.model.names]
        drawn += [widths.of_key(key) for key in self.model.keys]
        others = self.given & ~part
        used = self.design[others].any(axis=0)
        design, wanted, noise = (
            self.design[others][:, used],
            self.wanted[others],
            self.noise[others],
        )
        ridge = np.diag(np.array(drawn)[used] ** -2.0)
        error = wanted
        for _ in range(4):
            weights = student(error, noise, widths.tail)
            scaled = design * weights[:, None]
            found = np.linalg.solve(scaled.T @ scaled + ridge, scaled.T @ (wanted * weights))
            error = wanted - design @ found
        return np.asarray(self.wanted[part] - self.design[part][:, used] @ found)

    def scores(self, widths: Widths) -> np.ndarray[Any, Any]:
        """Return the mean error of each source, by halves and as a source left out, and of each
        published one.
        """
        if widths not in self.known:
            self.known[widths] = self._scores(widths)
        return self.known[widths]

    def _scores(self, widths: Widths) -> np.ndarray[Any, Any]:
        total = []
        for kind in (self.parts[:2], self.parts[2:]):
            errors = np.zeros(len(self.wanted))
            for part in kind:
                errors[part] = np.minimum(CAP, np.abs(self.apart(widths, part)))
            seen = np.any(kind, axis=0)
            total += [errors[self.sources == s].mean() for s in np.unique(self.sources[seen])]
        return np.array(total)


def published() -> list[Row]:
    """Return the steps that their authors printed."""
    return read_runs(HERE.parent / "published_steps.csv")


def priors(rows: list[Row]) -> None:
    """Find widths with less error of runs apart, one after the other, twice, from those that ship.

    One is taken where the mean gain of the sources is more than its standard error: the estimate is
    linear, and whole fits with the widths of least error were worse on sources left out.
    """
    folds = Folds(rows, [row for row in published() if chosen_on(row)])
    best, table = Widths(), []
    for turn in (1, 2):
        for name, values in WIDTHS.items():
            for value in values:
                tried = replace(best, **{name: value})
                gain = folds.scores(best) - folds.scores(tried)
                score, doubt = folds.scores(tried).mean(), gain.std(ddof=1) / len(gain) ** 0.5
                print(turn, name, value, score, gain.mean(), doubt, flush=True)
                table.append({"turn": turn, "width": name, "value": value, "error": score})
                if gain.mean() > doubt:
                    best = tried
    least = folds.scores(best).mean()
    table += [
        {"turn": "best", "width": field.name, "value": getattr(best, field.name), "error": least}
        for field in fields(best)
    ]
    write_csv(HERE / "priors.csv", table, 4)
    print(best, least)


def final(rows: list[Row]) -> None:
    """Fit all rows and write the calibration of the package; its spread stays."""
    runs = usable(rows)
    said = f"fitted to {len(runs)} measured runs by results/plans/calibrate.py"
    fitted = shipped(fit(runs, Calibration(), said), rows)
    spread = read_calibration(SHIPPED).spread if SHIPPED.is_file() else {}
    replace(fitted, spread=spread).save(SHIPPED)
    table = [
        {
            "constant": name,
            "start": start,
            "value": fitted[name],
            "low": fitted.intervals[name][0],
            "high": fitted.intervals[name][1],
            "what": what,
        }
        for name, (start, what) in CONSTANTS.items()
    ]
    write_csv(HERE / "constants.csv", table)
    for row in table:
        print(*row.values())


LEAST_ROWS = 2
"""Offsets of models and layers with fewer rows are not shipped: they would tell single rows."""


def shipped(fitted: Calibration, rows: list[Row]) -> Calibration:
    """Return a calibration without offsets that a single row tells."""
    model = LinearFit(usable(rows), Calibration(), Widths())
    counts = dict(zip(model.keys, model.kinds.sum(axis=0), strict=True))
    kept = {key: o for key, o in fitted.offsets.items() if counts[key] >= LEAST_ROWS}
    return replace(fitted, offsets=kept)


def halves(rows: list[Row]) -> None:
    """Fit each half, judge it on the other, and keep the spread that the others had."""
    sides = halves_of(rows)
    parts = [
        [row for row in rows if sides[row["source"], row["model"], row["n_gpus"]] == side]
        for side in (0, 1)
    ]
    sides_apart: list[list[Row]] = []
    for side in (1, 0):
        constants = shipped(fit(usable(parts[side]), Calibration(), bootstraps=0), parts[side])
        sides_apart.append(predictions(parts[1 - side], constants))
    apart = sides_apart[0] + sides_apart[1]
    everything = predictions(rows, read_calibration(SHIPPED))
    write_csv(HERE / "runs.csv", errors(apart, APART) + errors(everything, "fitted"))
    write_csv(HERE / "choices.csv", choices(apart, APART))
    write_csv(HERE / "memory.csv", memory(apart, APART) + memory(everything, "fitted"))
    write_csv(HERE / "groups.csv", worst_groups(apart))
    known = read_calibration(SHIPPED)
    unfitted = {key: row for key, row in known.spread.items() if key == UNFITTED}
    replace(known, spread=spreads(apart) | unfitted).save(SHIPPED)
    covered = []
    for side in (0, 1):
        other = sides_apart[1 - side]
        spread = spreads(other) | {UNFITTED: spread_of_sources(other)}
        covered += coverage(sides_apart[side], spread, f"half {side}, interval of the other")
    write_csv(HERE / "coverage.csv", covered + _covered(LEFT_OUT))


def sources(rows: list[Row]) -> None:
    """Predict each source by the fit of all others, as a stranger's rows are predicted."""
    table, left_out = [], []
    for source in sorted({row["source"] for row in rows}):
        others = [row for row in rows if row["source"] != source]
        near = read_calibration(SHIPPED)
        constants = shipped(fit(usable(others), Calibration(), near=near, bootstraps=0), others)
        mine = predictions([row for row in rows if row["source"] == source], constants)
        left_out += mine
        table += [row for row in errors(mine, LEFT_OUT) if row["source"] != "all"]
        print(*table[-1].values(), flush=True)
    fitted = read_calibration(SHIPPED)
    for kind, side in (("published, chosen on", True), ("published, apart", False)):
        mine = predictions([row for row in published() if chosen_on(row) == side], fitted)
        table += errors(mine, kind)
    write_csv(HERE / "sources.csv", table)
    covered = [row for row in _covered("") if row["rows_are"] != LEFT_OUT]
    for source in sorted({row["source"] for row in left_out}):
        mine = [row for row in left_out if row["source"] == source]
        others = spread_of_sources([row for row in left_out if row["source"] != source])
        covered += coverage(mine, {UNFITTED: others}, LEFT_OUT)
    write_csv(HERE / "coverage.csv", covered)
    known = read_calibration(SHIPPED)
    replace(known, spread=known.spread | {UNFITTED: spread_of_sources(left_out)}).save(SHIPPED)


LEFT_OUT = "of a source left out"


def _covered(kind: str) -> list[Row]:
    """Return the rows of coverage.csv of a kind, of all kinds for ""."""
    path = HERE / "coverage.csv"
    rows = read_csv(path, numbers=True) if path.is_file() else []
    return [row for row in rows if kind in ("", row["rows_are"])]


def choices_table(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """Return how first choices did, by source."""
    body: list[list[Any]] = []
    for source in sorted({row["source"] for row in rows}):
        ratios = [float(row["measured_by_best"]) for row in rows if row["source"] == source]
        near = 100 * float(np.mean(np.array(ratios) <= NEAR))
        body.append([source, len(ratios), float(np.mean(ratios)), near, max(ratios)])
    return body


NEAR = 1.1


def draw() -> None:
    """Write runs.md from the tables."""
    lines = ["# Measured runs", "", "Drawn by `python results/plans/calibrate.py` from its tables."]
    for title, name, heads in (
        ("Step time, by source and hosts (%)", "runs", ("rows_are", "source", "gpu", "hosts")),
        ("A source left out, or published (%)", "sources", ("rows_are", "source", "gpu", "hosts")),
    ):
        shown = [*heads, "rows", "groups", "median", "mean", "worst", "mean_without_layers"]
        rows = read_csv(HERE / f"{name}.csv", numbers=True)
        body = [[row.get(key, "") for key in shown] for row in rows]
        lines += ["", f"## {title}", "", *markdown_table(shown, body)]
    shown = ["source", "groups", "mean of measured over best", "within 1.10 (%)", "worst"]
    lines += ["", "## First choices among plans of one group", ""]
    lines += markdown_table(shown, choices_table(read_csv(HERE / "choices.csv")))
    for title, name in (
        ("Memory", "memory"),
        ("Rows in the interval of eight in ten", "coverage"),
        ("Groups that are predicted worst", "groups"),
    ):
        rows = read_csv(HERE / f"{name}.csv", numbers=True)
        if rows:
            lines += ["", f"## {title}", ""]
            lines += table_of(rows)
    (HERE / "runs.md").write_text("\n".join([*lines, ""]))


def refit_memory(rows: list[Row]) -> None:
    """Fit the constants of memory again, the others as they are."""
    known = read_calibration(SHIPPED)
    replace(known, memory=fit_memory(usable(rows), known)).save(SHIPPED)


STAGES: dict[str, tuple[Callable[[list[Row]], None], tuple[str, ...]]] = {
    "priors": (priors, ("priors",)),
    "final": (final, ("constants",)),
    "halves": (halves, ("runs", "choices", "memory", "groups")),
    "sources": (sources, ("sources", "coverage")),
}
"""What measures a stage, and its tables."""


def main() -> None:
    """Fit, judge, write."""
    rows = read_runs(data_folder("measured") / "training_runs.csv")
    if sys.argv[1:] == ["memory"]:
        refit_memory(rows)
        return
    given = row_options(__doc__, tuple(STAGES))
    for stage in given.stages:
        measured, tables = STAGES[stage]
        if wanted([HERE / f"{name}.csv" for name in tables], given):
            measured(rows)
    draw()


if __name__ == "__main__":
    main()
