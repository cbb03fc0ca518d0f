"""Fit a calibration to a table of training runs.

The logarithm of measured over predicted is made small by robust least squares over the logarithms
of the constants and the offsets of kinds of runs; both are drawn to what they start from (a prior),
so that what the runs do not tell stays there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from placeopt.model.arrays import Flags, Floats, positions, value_ranks
from placeopt.model.errors import InputError
from placeopt.planning.runs_table import USABLE, Run, predict_run, read_run
from placeopt.plans.calibration import CONSTANTS, Calibration, offset_keys
from placeopt.plans.step_model import MEMORY_CONSTANTS, StepModel


@dataclass(frozen=True)
class Widths:
    """Standard deviations of what is fitted around its start, as logarithms.

    `results/plans/calibrate.py priors` compares others, linear around one fit, by the errors of
    runs of sources and halves apart and of published steps, each source counting as much, and
    writes results/plans/priors.csv. What it finds is taken where fits of the halves agree:
    results/measured_runs says which did not.

    Attributes
    ----------
    counted : of a factor of bytes or flops that are counted, at a rate that is known. kernel : of
    one that tables of measured kernels give. free : of the other constants. kind, combined, model,
    layer : of the offsets of these levels; `combined` is that of a family of launchers with a
    generation of devices and a precision, which differ by the kernels that they choose. tail :
    degrees of freedom of Student's t, which errors over their noise are distributed by (Lange et
    al., JASA 1989): runs that something unsaid slows down hardly count.
    """

    counted: float = 0.3
    kernel: float = 0.1
    free: float = 0.7
    kind: float = 0.02
    combined: float = 0.2
    model: float = 0.03
    layer: float = 0.03
    tail: float = 8.0

    def of_constant(self, name: str) -> float:
        """Return that of a constant."""
        if name in KERNELS:
            return self.kernel
        return self.free if name in FREE else self.counted

    def of_key(self, key: str) -> float:
        """Return that of an offset."""
        level, *others = key.split()
        kind = self.combined if len(others) == 2 else self.kind
        return {"model": self.model, "layer": self.layer}.get(level, kind)


KERNELS = ("gemm_flops", "gemm_out", "gemm_in", "attention")
FREE: tuple[str, ...] = (
    "gemm_launch",
    "launch",
    "launch_unfused",
    "launch_experts",
    "each_expert",
    "ranks",
    "overlapped",
    "seen",
    "latency",
    "hop",
    "broadcast",
    "context",
    "exchange",
    "transfer",
    "tensor_seen",
    "async_seen",
    "step",
    "micro_batch",
    "scale",
)
"""Seconds of software, and parts that overlap leaves in sight: nothing counts them beforehand."""

LEAST_RUNS = 10


def usable(rows: list[dict[str, Any]]) -> list[Run]:
    """Return the runs with a measured step, without flagged rows."""
    found = []
    for row in rows:
        try:
            run = read_run(row)
        except InputError:
            continue
        if run.seconds and not row.get("flag"):
            found.append(run)
    return found


def ratios(runs: list[Run], constants: Calibration) -> Floats:
    """Return the measured steps of runs over the predicted ones."""
    predicted = [predict_run(run, constants)[0].total for run in runs]
    return np.array([run.seconds or 1.0 for run in runs]) / np.array(predicted)


class LinearFit:
    """Residuals of runs and their derivatives over constants and offsets.

    Attributes
    ----------
    least_noise : repeats of a published run differ by up to so much (data/measured), so that no
    source is taken to be known better.
    """

    least_noise = 0.05

    def __init__(self, runs: list[Run], start: Calibration, widths: Widths) -> None:
        self.start = start
        self.runs = [replace(predict_run(run, start)[2], unsaid_recompute=False) for run in runs]
        self.names = list(CONSTANTS)
        keys = [offset_keys(run.shape, run.conf, run.gpu) for run in self.runs]
        self.keys = list(dict.fromkeys(chain.from_iterable(keys)))
        known = [start.offset(run.shape, run.conf, run.gpu) for run in self.runs]
        self.measured = np.log([run.seconds or 1.0 for run in self.runs]) - known
        self.kinds = _one_hot(keys, self.keys)
        self.tail = widths.tail
        self.widths = np.array(
            [*map(widths.of_constant, self.names), *map(widths.of_key, self.keys)]
        )
        self.prior = np.log([start[name] for name in self.names])
        sources = np.array([run.source for run in self.runs])
        self.sources = value_ranks(sources).reshape(-1)

    def predicted(self, logs: Floats) -> Floats:
        """Return the logarithms of the steps, offsets apart.

        Of shape (runs,) for constants of shape (constants,); for columns of constants, shape
        (constants, columns), of shape (runs, columns): the model takes arrays as it takes numbers.
        """
        values: dict[str, Any] = dict(zip(self.names, np.exp(logs), strict=True))
        constants = Calibration(values, memory=self.start.memory)
        steps = [
            StepModel(run.shape, run.gpu, constants).parts(run.conf).total for run in self.runs
        ]
        return np.log(np.array([np.broadcast_to(step, logs.shape[1:]) for step in steps]))

    def slopes(self, logs: Floats) -> Floats:
        """Return the derivatives, shape (runs, constants)."""
        moved = self.predicted(np.hstack([logs[:, None], logs[:, None] + 0.01 * np.eye(len(logs))]))
        return (moved[:, 1:] - moved[:, :1]) / 0.01

    def noise(self, slopes: Floats, error: Floats, weights: Floats) -> Floats:
        """Return the noise of each run: the spread of its source, robustly, over its rows less the
        constants that they alone tell, with one row of the least noise added (a prior worth one
        row, Kass and Wasserman, JASA 1995).
        """
        design, gram = self._normal(slopes, weights)
        free = 1 - np.einsum("ij,ji->i", design, np.linalg.solve(gram, design.T))
        found, least = np.empty(len(error)), self.least_noise
        for source in range(self.sources.max() + 1):
            mine = self.sources == source
            spread = mine.sum() * (1.4826 * float(np.median(np.abs(error[mine])))) ** 2
            found[mine] = np.sqrt((least**2 + spread) / (1 + float(free[mine].sum())))
        return np.maximum(found, least)

    def solve(self, slopes: Floats, wanted: Floats, weights: Floats, away: Floats) -> Floats:
        """Return steps of the constants and offsets; ridge least squares with weights of runs."""
        design, gram = self._normal(slopes, weights)
        right = design.T @ (wanted * weights) - away / self.widths**2
        return np.asarray(np.linalg.solve(gram, right), np.float64)

    def _normal(self, slopes: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return the weighted rows of the runs, and the matrix of their normal equations."""
        design = np.hstack([slopes, self.kinds]) * weights[:, None]
        return design, design.T @ design + np.diag(self.widths**-2.0)


def _one_hot(rows: list[list[str]], keys: list[str]) -> Floats:
    """Return 1 where a row has a key, 0 elsewhere; shape (rows, keys)."""
    return np.array([[key in row for key in keys] for row in map(set, rows)], np.float64)


@dataclass(frozen=True)
class Solution:
    """Where a fit ended: logarithms of constants, offsets, errors of the runs and their noise."""

    logs: Floats
    offsets: Floats
    error: Floats
    noise: Floats


def student(error: Floats, noise: Floats, tail: float) -> Floats:
    """Return the square roots of the weights of errors in a fit by Student's t."""
    return np.asarray(np.sqrt((tail + 1) / (tail + (error / noise) ** 2)) / noise)


def minimize(model: LinearFit, near: Calibration | None = None) -> Solution:
    """Fit constants and offsets by Gauss-Newton, in 12 rounds at most; steps that make the fit
    worse are halved.

    `near`: where to begin, which saves rounds; the end is the same.
    """
    near = near or model.start
    logs = np.log([near[name] for name in model.names])
    offsets = np.array([near.offsets.get(key, 0.0) for key in model.keys])
    offsets -= [model.start.offsets.get(key, 0.0) for key in model.keys]
    error = model.measured - model.predicted(logs) - model.kinds @ offsets
    spread = 1.4826 * float(np.median(np.abs(error)))
    noise = np.full(len(error), max(model.least_noise, spread))
    for _ in range(12):
        weights = student(error, noise, model.tail)
        away = np.concatenate([logs - model.prior, offsets])
        slopes = model.slopes(logs)
        step = model.solve(slopes, error, weights, away)
        before = _loss(error / noise, away / model.widths, model.tail)
        for scale in (1.0, 0.5, 0.25, 0.1):
            trial = logs + scale * step[: len(logs)]
            moved = offsets + scale * step[len(logs) :]
            left = model.measured - model.predicted(trial) - model.kinds @ moved
            far = np.concatenate([trial - model.prior, moved]) / model.widths
            if _loss(left / noise, far, model.tail) < before:
                break
        logs, offsets, error = trial, moved, left
        found = model.noise(slopes, error, weights)
        still = np.abs(scale * step).max() < 1e-2 and np.allclose(found, noise, rtol=0.05)
        noise = found
        if still:
            break
    return Solution(logs, offsets, error, noise)


def fit(
    runs: list[Run],
    start: Calibration,
    source: str = "",
    near: Calibration | None = None,
    bootstraps: int = 100,
) -> Calibration:
    """Return the calibration of some runs; what they do not tell stays as it starts.

    `bootstraps`: drawn samples behind the intervals, 0 for none. `near`: see `minimize`.

    Raises
    ------
    InputError
        If there are too few runs.
    """
    if len(runs) < LEAST_RUNS:
        raise InputError(
            f"--calibrate: expected at least {LEAST_RUNS} rows with a measured step_s and all that "
            f"a prediction needs, received {len(runs)}"
        )
    model = LinearFit(runs, start, Widths())
    found = minimize(model, near)
    values = zip(model.names, np.exp(found.logs).tolist(), strict=True)
    factors = dict(start.offsets)
    for key, moved in zip(model.keys, found.offsets.tolist(), strict=True):
        if abs(moved) >= 5e-4:  # less is not seen in three digits of a step
            factors[key] = round(factors.get(key, 0.0) + moved, 4)
    fitted = Calibration(
        {name: float(f"{value:.4g}") for name, value in values},
        factors,
        memory=fit_memory(runs, start),
        spread=start.spread,
        source=source or f"fitted to {len(runs)} runs",
        launchers=tuple(sorted({*start.launchers, *(run.launcher for run in runs)} - {""})),
    )
    return bootstrapped(fitted, model, found, bootstraps) if bootstraps else fitted


def _loss(error: Floats, away: Floats, tail: float) -> float:
    """Return twice the negative logarithm of the likelihood, constants apart."""
    return float((tail + 1) * np.log1p(error**2 / tail).sum() + (away**2).sum())


def bootstrapped(
    fitted: Calibration, model: LinearFit, found: Solution, bootstraps: int
) -> Calibration:
    """Return a calibration with intervals (5th to 95th part) and samples of its constants.

    Whole groups of (model, devices) are drawn again, the fit is linear around the one of all.
    """
    kept = 40  # samples that a calibration file holds, of those drawn
    random = np.random.default_rng(0)
    groups = [(run.shape.layers, run.shape.hidden, run.conf.devices) for run in model.runs]
    number = positions(sorted(set(groups)))  # whatever the rows' order is
    member = np.array([number[key] for key in groups])
    slopes = model.slopes(found.logs)
    away = np.concatenate([found.logs - model.prior, found.offsets])
    drawn = []
    for _ in range(bootstraps):
        times = np.bincount(random.integers(0, len(number), len(number)), minlength=len(number))
        weights = student(found.error, found.noise, model.tail) * np.sqrt(times[member])
        step = model.solve(slopes, found.error, weights, away)
        drawn.append(found.logs + step[: len(found.logs)])
    values = np.exp(drawn)

    def by_name(rows: Floats) -> dict[str, list[float]]:
        columns = zip(model.names, rows.T, strict=True)
        return {name: [float(f"{value:.3g}") for value in column] for name, column in columns}

    intervals = np.percentile(values, (5, 95), axis=0)
    return replace(fitted, intervals=by_name(intervals), samples=by_name(values[:kept]))


def fit_memory(runs: list[Run], start: Calibration) -> dict[str, float]:
    """Return the constants of memory with the least median error of measured peaks, plus the share
    of runs that are called wrongly: those with a step fitted into memory.

    Families of frameworks with enough peaks get a base of their own, the others that of all runs.
    Bases tried are what single peaks leave; factors of the allocator, steps of 0.05 up to 1.5.
    """
    peaks = np.array([run.memory_gb for run in runs], np.float64) * 2**30  # NaN: not measured
    known = ~np.isnan(peaks)
    if known.sum() < LEAST_RUNS:
        return MEMORY_CONSTANTS | start.memory
    plain = replace(start, memory={"base": 0.0, "fragmentation": 1.0})
    parts = [predict_run(run, plain)[1] for run in runs]
    kept, rest = np.array([(part.activations, part.total - part.activations) for part in parts]).T
    room, left = np.array([(USABLE * run.gpu.memory, not run.oom) for run in runs]).T
    kinds = np.array([run.conf.framework for run in runs])

    def least(share: float, rows: Flags) -> tuple[float, float]:
        """Return the least loss and its base."""
        used = rest + share * kept
        bases = np.unique(np.maximum(0.0, peaks - used)[rows & known])
        totals = used[rows] + bases[:, None]
        wrong = ((totals <= room[rows]) != left[rows]).mean(axis=1)
        errors = np.abs(np.log(totals / peaks[rows]))[:, known[rows]]
        losses = wrong + np.median(errors, axis=1)
        return float(losses.min()), float(bases[int(np.argmin(losses))])

    names, counts = np.unique(kinds[known], return_counts=True)
    enough = names[counts >= LEAST_RUNS].tolist()
    found: list[tuple[float, dict[str, float]]] = []
    for share in np.arange(20, 31) / 20:
        usual = least(share, np.ones(len(runs), dtype=bool))
        own = {kind: least(share, kinds == kind) for kind in enough}
        bases = {f"base {kind}": float(f"{base:.3g}") for kind, (_, base) in own.items()}
        memory = {"base": float(f"{usual[1]:.3g}"), "fragmentation": float(share)}
        found.append((usual[0] + sum(worth for worth, _ in own.values()), memory | bases))
    return min(found, key=lambda item: item[0])[1]
