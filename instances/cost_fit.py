"""Calibration: fit the constants of the cost model to measured times.

The cost model (cost_model.py) says that an op takes

    t(f, b) = overhead + max(f / peak, b / bandwidth)

seconds for f flops and b bytes moved, and a transfer of b bytes latency + b / bandwidth.
`fit_device` and `fit_link` find the constants that explain measured times best: the logarithm of
predicted over measured time is the residual, so that a microsecond op counts as much as a
second-long one, and noise is a factor. The logarithms of the constants are fitted by least squares
with a robust loss (scipy, trust region), from several starting points because of the maximum; a
first pass with the soft L1 loss, a second with the Cauchy loss at the scale of the median
deviation, so that outliers (a page fault, another process) hardly pull.

A constant that no measurement depends on is not known: the fit says so, and gives the value that
just does not matter (peak and bandwidth as large, overhead as small as the data tell).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from placeopt.model.arrays import UNLIMITED, Floats, positions, to_ticks
from placeopt.model.cluster import Device, Link
from placeopt.model.errors import InputError
from placeopt.model.graph import UNKNOWN, OpGraph


@dataclass(frozen=True, eq=False)
class DeviceFit:
    """A device with fitted constants.

    Attributes
    ----------
    median_error : that of |predicted over measured time - 1| over all measurements.
    known : whether the measurements determine the constant.
    """

    device: Device
    median_error: float
    known: dict[str, bool]


@dataclass(frozen=True, eq=False)
class LinkFit:
    """A link with fitted constants; see `DeviceFit`."""

    link: Link
    median_error: float
    known: dict[str, bool]


def fit_device(
    flops: ArrayLike,
    bytes_moved: ArrayLike,
    seconds: ArrayLike,
    *,
    kind: str = "fitted",
    family: str = "gpu",
    name: str = "",
    memory: int = UNLIMITED,
) -> DeviceFit:
    """Fit peak flop/s, memory bandwidth and launch overhead to measured op times.

    Parameters
    ----------
    flops, bytes_moved, seconds : one entry per measurement; at least four.
    kind, family, name, memory : the other fields of the device.

    Raises
    ------
    InputError
        If there are too few measurements, or one is negative, not finite or takes no time.
    """
    f, b, t = _columns(4, flops=flops, bytes_moved=bytes_moved, seconds=seconds)

    def parts(log_constants: Floats) -> Floats:
        peak, bandwidth, overhead = np.exp(log_constants)
        compute, move = f / peak, b / bandwidth
        return np.stack(
            [
                np.where(compute >= move, compute, 0),
                np.where(move > compute, move, 0),
                np.full(len(f), overhead),
            ]
        )

    top_f, top_b = _rate(f, t), _rate(b, t)
    small = float(t.min())
    starts = [
        np.log([top_f * x, top_b * y, small * z])
        for x in (0.5, 2.0)
        for y in (0.5, 2.0)
        for z in (0.1, 0.9)
    ]
    names = ("peak_flops", "memory_bandwidth", "launch_overhead")
    (peak, bandwidth, overhead), known, error = _fit(parts, starts, t, names)
    # A limit that never binds: the smallest value that leaves every time as it is. What the search
    # came to is of no meaning, and may be as large as floats go.
    slack = np.maximum(t - overhead, 1e-3 * t)
    if not known["peak_flops"]:
        peak = _rate(f, slack)
    if not known["memory_bandwidth"]:
        bandwidth = _rate(b, slack)
    if not known["launch_overhead"]:
        overhead = 0.0
    device = Device(
        name or kind, kind, family, float(peak), float(bandwidth), memory, float(overhead)
    )
    return DeviceFit(device, error, known)


def fit_link(size: ArrayLike, seconds: ArrayLike, *, name: str = "fitted") -> LinkFit:
    """Fit latency and bandwidth to measured transfer times.

    Parameters
    ----------
    size, seconds : bytes and time of each measurement; at least three.

    Raises
    ------
    InputError
        If there are too few measurements, or one is negative, not finite or takes no time.
    """
    b, t = _columns(3, size=size, seconds=seconds)

    def parts(log_constants: Floats) -> Floats:
        latency, bandwidth = np.exp(log_constants)
        return np.stack([np.full(len(b), latency), b / bandwidth])

    small, top = float(t.min()), _rate(b, t)
    starts = [np.log([small * x, top * y]) for x in (0.01, 0.5, 0.95) for y in (0.5, 1.0, 3.0)]
    (latency, bandwidth), known, error = _fit(parts, starts, t, ("latency", "bandwidth"))
    if not known["latency"]:
        latency = 0.0
    if not known["bandwidth"]:
        bandwidth = max(bandwidth, top)
    return LinkFit(Link(name, float(latency), float(bandwidth)), error, known)


def with_measured_times(graph: OpGraph, seconds: Mapping[str, float], kind: str = "*") -> OpGraph:
    """Return the graph with measured times for a kind of device; ops that are not named keep what
    they have.

    Parameters
    ----------
    seconds : time by op name.
    kind : column of `measured_kinds` to fill: a kind ("A100"), a family ("gpu") or "*".
    """
    index = positions(graph.op_names)
    for name in seconds:
        if name not in index:
            raise InputError(f"measured times: graph '{graph.name}' has no op '{name}'")
    kinds = graph.measured_kinds
    measured = graph.measured.copy()
    if kind not in kinds:
        kinds = (*kinds, kind)
        measured = np.concatenate([measured, np.full((graph.num_ops, 1), UNKNOWN)], axis=1)
    ops = [index[name] for name in seconds]
    measured[ops, kinds.index(kind)] = to_ticks(
        list(seconds.values()), graph.tick_seconds, "measured time"
    )
    return replace(graph, measured_kinds=kinds, measured=measured)


# --- fitting
# -------------------------------------------------------------------------------------------


def _fit(
    parts: Callable[[Floats], Floats], starts: list[Floats], t: Floats, names: tuple[str, ...]
) -> tuple[Floats, dict[str, bool], float]:
    """Minimise the robust squared logarithm of predicted over measured time; return the constants,
    which of them are known, and the median error.

    Parameters
    ----------
    parts : returns the contribution of every constant to every predicted time, which is their sum.
    """
    from scipy.optimize import least_squares

    log_t = np.log(t)

    def residual(x: Floats) -> Floats:
        return np.log(np.maximum(parts(x).sum(axis=0), 1e-300)) - log_t

    first = min(
        (least_squares(residual, x, loss="soft_l1", f_scale=0.1, max_nfev=200) for x in starts),
        key=lambda result: float(result.cost),
    )
    scale = max(1.4826 * float(np.median(np.abs(first.fun))), 1e-6)
    final = least_squares(residual, first.x, loss="cauchy", f_scale=2 * scale, max_nfev=400)
    x, off = final.x, final.fun
    scale = max(1.4826 * float(np.median(np.abs(off))), 1e-6)
    outlier = np.abs(off) > max(4 * scale, 0.01)
    share = parts(x) / parts(x).sum(axis=0)
    # a constant is known if it makes up this share of the predicted time of two measurements
    least_share = 0.05
    shown = (share[:, ~outlier] > least_share).sum(axis=1) >= 2
    known = dict(zip(names, shown.tolist(), strict=True))
    return np.exp(x), known, float(np.median(np.abs(np.expm1(off))))


def _rate(amount: Floats, t: Floats) -> float:
    """Return the largest amount per second seen; 1 where nothing was moved."""
    return float((amount / t).max()) or 1.0


def _columns(least: int, **given: ArrayLike) -> list[Floats]:
    """Return columns of at least so many measurements, `seconds` among them."""
    arrays = {what: np.asarray(values, np.float64) for what, values in given.items()}
    count = next(iter(arrays.values())).size
    for what, array in arrays.items():
        if array.ndim != 1:
            raise InputError(
                f"{what}: expected a list of numbers, received {array.ndim} dimensions"
            )
        if not np.isfinite(array).all() or (array < 0).any():
            raise InputError(f"{what}: expected finite numbers >= 0")
        if len(array) != count:
            raise InputError(
                f"{what}: expected {count} values, one per measurement, received {len(array)}"
            )
    if count < least:
        raise InputError(f"calibration needs at least {least} measurements, received {count}")
    idle = arrays["seconds"] == 0
    if idle.any():
        raise InputError(
            f"seconds[{int(idle.argmax())}]: expected a time above 0; leave ops out that take none"
        )
    return list(arrays.values())
