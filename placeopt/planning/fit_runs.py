"""Fit a calibration to a table of training runs.

The logarithm of measured over predicted is made small by robust least squares over the logarithms
of the constants and the offsets of kinds of runs; both are drawn to what they start from (a prior),
so that what the runs do not tell stays there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InputError
from placeopt.planning.run_rows import Run, read_run
from placeopt.planning.runs_table import USABLE, predict_run
from placeopt.plans.calibration import CONSTANTS, Calibration, offset_keys
from placeopt.plans.memory_model import MEMORY_CONSTANTS
from placeopt.plans.step_model import StepModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRIOR = 0.5
"""Standard deviation of a constant's logarithm around its start."""

KERNEL_PRIORS = {"gemm_flops": 0.07, "gemm_out": 0.3, "gemm_in": 0.3, "attention": 0.3}
"""The same for what tables of measured kernels give; theirs differ so much between devices."""

OFFSET_PRIOR = 0.1
NOISE = 0.06
"""Errors beyond this count linearly."""

ROUNDS = 8
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


class _Fit:
    """Residuals and their derivatives over constants and offsets."""

    def __init__(self, runs: list[Run], start: Calibration) -> None:
        self.start = start
        self.runs = [predict_run(run, start)[2] for run in runs]
        self.runs = [replace(run, unsaid_recompute=False) for run in self.runs]
        self.names = list(CONSTANTS)
        every = (key for run in self.runs for key in offset_keys(run.conf, run.gpu))
        self.keys = list(dict.fromkeys(every))
        self.measured = np.log([run.seconds or 1.0 for run in self.runs])
        place = {key: i for i, key in enumerate(self.keys)}
        self.kinds = np.zeros((len(self.runs), len(self.keys)))
        for i, run in enumerate(self.runs):
            for key in offset_keys(run.conf, run.gpu):
                self.kinds[i, place[key]] = 1.0
        widths = [KERNEL_PRIORS.get(name, PRIOR) for name in self.names]
        self.widths = np.array(widths + [OFFSET_PRIOR] * len(self.keys))
        self.prior = np.log([start[name] for name in self.names])

    def predicted(self, logs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithms of the steps, offsets apart."""
        values = dict(zip(self.names, np.exp(logs).tolist(), strict=True))
        constants = Calibration(values, memory=self.start.memory)
        return np.log(
            [StepModel(run.shape, run.gpu, constants).parts(run.conf).total for run in self.runs]
        )

    def slopes(self, logs: NDArray[np.float64], base: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the derivatives, shape (runs, constants)."""
        columns = []
        for i in range(len(logs)):
            moved = logs.copy()
            moved[i] += 0.01
            columns.append((self.predicted(moved) - base) / 0.01)
        return np.array(columns).T

    def solve(
        self,
        slopes: NDArray[np.float64],
        wanted: NDArray[np.float64],
        weights: NDArray[np.float64],
        away: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return steps of the constants and offsets; ridge least squares with weights of runs."""
        design = np.hstack([slopes, self.kinds]) * weights[:, None]
        ridge = np.diag(NOISE / self.widths)
        target = np.concatenate([wanted * weights, -ridge @ away])
        found, *_ = np.linalg.lstsq(np.vstack([design, ridge]), target, rcond=None)
        return np.asarray(found, dtype=np.float64)


def fit(runs: list[Run], start: Calibration | None = None, source: str = "") -> Calibration:
    """Return the calibration of some runs.

    Gauss-Newton with weights that make large errors count linearly; steps that make the fit worse
    are halved.

    Raises
    ------
    InputError
        If there are too few runs.
    """
    start = start or Calibration()
    if len(runs) < LEAST_RUNS:
        raise InputError(
            f"--calibrate: expected at least {LEAST_RUNS} rows with a measured step_s and all that "
            f"a prediction needs, received {len(runs)}"
        )
    model = _Fit(runs, start)
    logs, offsets = model.prior.copy(), np.zeros(len(model.keys))
    base = model.predicted(logs)
    for _ in range(ROUNDS):
        slopes = model.slopes(logs, base)
        error = model.measured - base - model.kinds @ offsets
        weights = 1 / np.sqrt(np.maximum(1.0, np.abs(error) / NOISE))
        away = np.concatenate([logs - model.prior, offsets])
        step = model.solve(slopes, error, weights, away)
        before = _loss(error, away / model.widths)
        for scale in (1.0, 0.5, 0.25, 0.1):
            trial = logs + scale * step[: len(logs)]
            moved = offsets + scale * step[len(logs) :]
            found = model.predicted(trial)
            left = model.measured - found - model.kinds @ moved
            far = np.concatenate([trial - model.prior, moved]) / model.widths
            if _loss(left, far) < before:
                break
        done = float(np.abs(scale * step).max()) < 1e-2
        logs, offsets, base = trial, moved, found
        if done:
            break
    values = dict(zip(model.names, np.exp(logs).tolist(), strict=True))
    factors = {key: round(float(o), 4) for key, o in zip(model.keys, offsets, strict=True)}
    fitted = Calibration(
        {name: float(f"{value:.4g}") for name, value in values.items()},
        factors,
        memory=fit_memory(runs, start),
        source=source or f"fitted to {len(runs)} runs",
    )
    return replace(fitted, intervals=_intervals(model, logs, offsets, base))


def _loss(error: NDArray[np.float64], away: NDArray[np.float64]) -> float:
    far = np.abs(error) / NOISE
    return float(np.where(far < 1, far**2, 2 * far - 1).sum() + (away**2).sum())


def _intervals(
    model: _Fit,
    logs: NDArray[np.float64],
    offsets: NDArray[np.float64],
    base: NDArray[np.float64],
    samples: int = 200,
) -> dict[str, list[float]]:
    """Bootstrap whole groups of (model, devices), linear around the fit; 5th and 95th part."""
    random = np.random.default_rng(0)
    groups = [(run.shape.layers, run.shape.hidden, run.conf.devices) for run in model.runs]
    number = {key: i for i, key in enumerate(dict.fromkeys(groups))}
    member = np.array([number[key] for key in groups])
    slopes = model.slopes(logs, base)
    error = model.measured - base - model.kinds @ offsets
    robust = 1 / np.maximum(1.0, np.abs(error) / NOISE)
    away = np.concatenate([logs - model.prior, offsets])
    found = []
    for _ in range(samples):
        drawn = np.bincount(random.integers(0, len(number), len(number)), minlength=len(number))
        weights = np.sqrt(robust * drawn[member])
        found.append(logs + model.solve(slopes, error, weights, away)[: len(logs)])
    low, high = np.exp(np.percentile(found, (5, 95), axis=0))
    return {
        name: [float(f"{low[i]:.3g}"), float(f"{high[i]:.3g}")]
        for i, name in enumerate(model.names)
    }


def fit_memory(runs: list[Run], start: Calibration) -> dict[str, float]:
    """Return the constants of memory with the least median error of measured peaks, plus the share
    of runs that are called wrongly: those with a step fitted into memory.

    Families of frameworks with enough peaks get a base of their own, the others the usual one.
    """
    if sum(run.memory_gb is not None for run in runs) < LEAST_RUNS:
        return MEMORY_CONSTANTS | start.memory
    plain = replace(start, memory={"base": 0.0, "fragmentation": 1.0})
    parts = [predict_run(run, plain)[1] for run in runs]
    kept = np.array([part.activations for part in parts])
    rest = np.array([part.total for part in parts]) - kept
    peaks = np.array([(run.memory_gb or np.nan) * 2**30 for run in runs])
    room = np.array([USABLE * run.gpu.memory for run in runs])
    known, left = ~np.isnan(peaks), np.array([not run.oom for run in runs])

    kinds = np.array([run.conf.framework for run in runs])

    bases = np.arange(2, 17) / 2 * 1e9

    def loss(base: float, share: float, rows: NDArray[np.bool_]) -> float:
        total = rest + base + share * kept
        wrong = np.mean(((total <= room) != left)[rows])
        errors = np.abs(np.log(total / peaks))[rows & known]
        return float(wrong + (np.median(errors) if len(errors) else 0.0))

    enough = [
        kind
        for kind in dict.fromkeys(kinds.tolist())
        if (known & (kinds == kind)).sum() >= LEAST_RUNS
    ]
    rest_of = ~np.isin(kinds, enough)
    usual = MEMORY_CONSTANTS["base"]
    found: list[tuple[float, dict[str, float]]] = []
    for share in np.arange(16, 31) / 20:
        memory = {"base": usual, "fragmentation": float(share)}
        worth = loss(usual, share, rest_of) if rest_of.any() else 0.0
        for kind in enough:
            losses = [loss(base, share, kinds == kind) for base in bases]
            memory[f"base {kind}"] = float(bases[int(np.argmin(losses))])
            worth += min(losses)
        found.append((worth, memory))
    return min(found, key=lambda item: item[0])[1]
