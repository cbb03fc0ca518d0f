"""How well simulated makespans predict measured ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.evaluate import evaluate
from placeopt.model.errors import InputError
from placeopt.runtime.measurement import with_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.model.graph import OpGraph
    from placeopt.model.placement import Placement
    from placeopt.runtime.calibration import Calibration


@dataclass(frozen=True)
class Comparison:
    """A placement measured and simulated, in seconds."""

    workload: str
    placement: str
    measured: float
    spread: float
    simulated: dict[str, float]  # by mode


@dataclass(frozen=True)
class Agreement:
    """How well simulated makespans of one mode predict measured ones.

    Attributes
    ----------
    median_error, p90_error : quantiles of |simulated / measured - 1|.
    tau : Kendall's rank correlation by workload, and "all": over the pairs of placements of the
    same workload.
    """

    mode: str
    placements: int
    median_error: float
    p90_error: float
    tau: dict[str, float]


def simulate(calibration: Calibration, graph: OpGraph, placement: Placement, mode: str) -> float:
    """Return the simulated makespan in seconds, with the ranks that the engine is given."""
    problem = calibration.problem(graph, mode)
    run = evaluate(problem, with_ranks(problem, placement), "priority", check=False)
    return run.makespan * problem.tick_seconds


def agreement(rows: Sequence[Comparison], mode: str) -> Agreement:
    """Summarise comparisons; a workload with fewer than three placements has no rank
    correlation.
    """
    from scipy.stats import kendalltau

    if not rows:
        raise InputError("agreement: expected at least one comparison, received none")
    errors = [abs(row.simulated[mode] / row.measured - 1) for row in rows]
    tau, balance, pairs = {}, 0, 0
    for workload in dict.fromkeys(row.workload for row in rows):
        own = [row for row in rows if row.workload == workload]
        x, y = (
            np.array([row.measured for row in own]),
            np.array([row.simulated[mode] for row in own]),
        )
        if len(own) >= 3:
            tau[workload] = float(kendalltau(x, y).statistic)
        upper = np.triu_indices(len(own), 1)
        signs = np.sign(x[:, None] - x[None, :])[upper] * np.sign(y[:, None] - y[None, :])[upper]
        balance += int(signs.sum())
        pairs += int(np.count_nonzero(signs))
    if pairs:
        tau["all"] = balance / pairs
    return Agreement(
        mode, len(rows), float(np.median(errors)), float(np.quantile(errors, 0.9)), tau
    )
