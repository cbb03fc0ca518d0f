"""Where streams come from: source strings, JSON or TOML descriptions and trace files.

``stream:ramp?beta=A|B|C|D&rule=published|uniform&units=published|consistent&jobs=1001&seed=0`` is
the published set-up; `StreamSpec` has every other parameter. A trace is a CSV with the header
``arrival,model,deadline`` (time units; the deadline counts from the arrival) or
``arrival,model,beta`` (deadline = beta * sequential time).

References
----------
C. W. F. Parsonson, Z. Shabka, A. Ottino, G. Zervas, "Partitioning distributed compute jobs with
reinforcement learning and graph neural networks" (PAC-ML), 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.model.arrays import Floats, round_half_up, running_sums, tells_types, to_ticks
from placeopt.model.errors import InputError
from placeopt.model.files import Data, csv_columns, is_file, read_json, read_text, read_toml
from placeopt.model.query import parse_query
from placeopt.streams.lookahead import LookaheadConfig
from placeopt.streams.problem import JobStreamProblem, JobTable
from placeopt.streams.profiles import PAC_ML_MODELS, load_profiles
from placeopt.streams.topology import RampTopology

MAX_JOBS = 10**7
"""More jobs are refused. A stream has 24 bytes a job, its episode 16 and one for each server: with
60 servers so many jobs take a gigabyte."""

BETAS = ("A", "B", "C", "D")
_SKEW = {"B": (5.0, 18), "C": (0.0, 52), "D": (-5.0, 212)}
"""Shape of each skew-normal distribution, and the seed of its samples. The published recipe divides
by the extremes of 50000 samples, so that its mean moves by up to 0.05 from draw to draw; these
draws have the known means (0.300, 0.488 and 0.717)."""


@lru_cache(maxsize=512)
def beta_distribution(name: str, draw: int | None = None) -> tuple[Floats, Floats]:
    """Return (values, probabilities) of a published distribution of deadline fractions.

    A is uniform on 0.10, 0.11, .., 1.00. B, C and D are skew-normal with shape 5, 0 and -5: 50000
    samples, shifted to a minimum of 0, divided by the maximum, floored at 0.1, binned in 1000 bins
    whose right edges are rounded to two digits (Parsonson et al. 2023).

    Parameters
    ----------
    draw : seed of the samples; None is the draw whose mean is the known one.
    """
    if name == "A":
        values = np.round(np.arange(10, 101) / 100, 2)
        return values, np.full(len(values), 1 / len(values))
    if name not in _SKEW:
        raise InputError(
            f"beta: expected one of {', '.join(BETAS)} or a number > 0, received '{name}'"
        )
    shape, seed = _SKEW[name]
    rng = np.random.default_rng(seed if draw is None else [draw, 0xBE7A])
    delta = shape / math.sqrt(1 + shape * shape)
    samples = delta * np.abs(rng.standard_normal(50_000)) + math.sqrt(
        1 - delta**2
    ) * rng.standard_normal(50_000)
    samples -= samples.min()
    samples = np.maximum(samples / samples.max(), 0.1)
    counts, edges = np.histogram(samples, bins=1000)
    values, inverse = np.unique(np.round(edges[1:], 2), return_inverse=True)
    weights = np.bincount(inverse, weights=counts)
    return values, weights / weights.sum()


@tells_types
@dataclass(frozen=True)
class StreamSpec:
    """How to draw a stream.

    Attributes
    ----------
    beta : A, B, C or D, or a number: the deadline as a fraction of the sequential time.
    jobs : number of arrivals.
    arrivals : "fixed" (every `interval`) or "poisson" (with that mean).
    interval : time units between arrivals; None is 1000 in published units and 1 in consistent
    units.
    horizon : time units; None is `interval` * (jobs - 1).
    models : job types; equal numbers of each, drawn without replacement.
    redraw : whether every stream draws the distribution B, C or D anew, as each run of the
    published experiments does
        (its mean varies by 0.015); None does so under the published split rule only, so that those
        runs are repeated and comparisons under the uniform rule share one distribution.
    """

    beta: str = "A"
    jobs: int = 1001
    arrivals: str = "fixed"
    interval: float | None = None
    horizon: float | None = None
    models: tuple[str, ...] = PAC_ML_MODELS
    name: str = "ramp"
    redraw: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", str(self.beta))
        if not 1 <= self.jobs <= MAX_JOBS:
            raise InputError(
                f"stream '{self.name}': jobs must be >= 1 and <= {MAX_JOBS}, received {self.jobs}"
            )
        if self.arrivals not in ("fixed", "poisson"):
            raise InputError(
                f"stream '{self.name}': arrivals must be fixed or poisson, received "
                f"'{self.arrivals}'"
            )
        for key in ("interval", "horizon"):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(
                    f"stream '{self.name}': {key} must be a positive time, received {value}"
                )
        self.betas()

    def betas(self, draw: int | None = None) -> tuple[Floats, Floats]:
        """Return (values, probabilities) of the deadline fractions; `draw` as in
        `beta_distribution`.
        """
        try:
            value = float(self.beta)
        except ValueError:
            return beta_distribution(self.beta, draw)
        if not 0 < value <= 10:
            raise InputError(
                f"stream '{self.name}': beta must be A, B, C, D or a number > 0 and <= 10, "
                f"received {self.beta}"
            )
        return np.array([value]), np.ones(1)

    def gap(self, table: JobTable) -> float:
        """Return the (mean) time units between arrivals."""
        if self.interval is not None:
            return self.interval
        return 1000.0 if table.config.units == "published" else 1.0

    def draw(self, table: JobTable, seed: int) -> JobStreamProblem:
        """Draw a stream."""
        rng = np.random.default_rng(seed)
        size, kinds = self.jobs, len(table.profiles)
        model = rng.permutation(np.tile(np.arange(kinds), -(-size // kinds)))[:size]
        redraw = table.config.rule == "published" if self.redraw is None else self.redraw
        values, weights = self.betas(seed if redraw else None)
        beta = rng.choice(values, size=size, p=weights)
        gap = self.gap(table)
        if self.arrivals == "fixed":
            arrival = np.arange(size) * gap
        else:
            arrival = running_sums(rng.exponential(gap, size - 1))
        horizon = self.horizon if self.horizon is not None else gap * max(1, size - 1)
        sequential = table.arrays.sequential[model]
        return JobStreamProblem(
            name=f"{self.name}-{self.beta}-{table.config.rule}-{table.config.units}",
            jobs=table,
            arrival=to_ticks(arrival, table.tick_seconds, "arrival"),
            model=model,
            deadline=round_half_up(beta * sequential, "deadline"),
            horizon=int(to_ticks(horizon, table.tick_seconds, "horizon")),
            spec=self,
            seed=seed,
        )


def load_stream(
    source: str | Path | Mapping[str, Any],
    *,
    profiles: str | Path | None = None,
    seed: int | None = None,
) -> JobStreamProblem:
    """Return the stream that `source` describes.

    Parameters
    ----------
    source : ``stream:ramp?key=value&...``, the path of a .json, .toml or .csv file, or a mapping.
    Keys are the fields
        of `StreamSpec`, `LookaheadConfig` and `RampTopology`; `steps` and `contention` of
        `JobTable`; `zero_input`, `device` and `backward_ratio` of `load_profiles`; `seed`,
        `profiles` and `trace` (a CSV beside the description).
    profiles : folder of the profiles; required unless the description names one or no model is a
    file.
    seed : replaces the seed of the source.

    Raises
    ------
    InputError
        One line, for anything that is unknown, missing or out of range.
    """
    folder = Path()
    if isinstance(source, str) and source.startswith("stream:"):
        options: Data = dict(_parse_query(source))
    elif isinstance(source, (str, Path)):
        path = Path(source)
        folder = path.parent
        options = {"trace": path.name} if path.suffix == ".csv" else _read_description(path)
    else:
        options = dict(source)
    return _build(options, folder, profiles, seed)


def _parse_query(source: str) -> dict[str, str]:
    kind, _, query = source.removeprefix("stream:").partition("?")
    if kind != "ramp":
        raise InputError(f"stream '{source}': expected stream:ramp?..., received stream:{kind}")
    return parse_query(query, f"stream '{source}'")


def _read_description(path: Path) -> Data:
    if not is_file(path):
        raise InputError(
            f"stream '{path}': no such file; expected stream:ramp?..., or a .json, .toml or .csv "
            "file"
        )
    read = read_toml if path.suffix == ".toml" else read_json
    options = read(path, what="stream")
    if not isinstance(options, dict):
        raise InputError(
            f"stream '{path}': expected an object of options, received {type(options).__name__}"
        )
    return options


_OPTIONS: dict[str, tuple[str, str]] = {
    field.name: (part, str(field.type).removesuffix(" | None"))
    for part, cls in (("spec", StreamSpec), ("config", LookaheadConfig), ("topology", RampTopology))
    for field in fields(cls)
} | {
    "steps": ("table", "int"),
    "contention": ("table", "str"),
    "zero_input": ("profiles", "bool"),
    "device": ("profiles", "str"),
    "backward_ratio": ("profiles", "float"),
    "seed": ("other", "int"),
    "profiles": ("other", "str"),
    "trace": ("other", "str"),
}
"""What each option describes, and its type."""


def _flag(key: str, value: Any) -> bool:
    if str(value).lower() not in ("true", "false", "1", "0"):
        raise _expected(key, "true or false", value)
    return str(value).lower() in ("true", "1")


def _names(key: str, value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise _expected(key, "a list of names", value)
    return tuple(names)


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _expected(key, "a text", value)
    return str(value)


def _number(key: str, value: Any) -> float:
    real = _OPTIONS[key][1] == "float"
    try:
        number = float(value)
        if real:
            return number
        if isinstance(value, bool) or number != int(number):
            raise ValueError
        return int(number)
    except (TypeError, ValueError, OverflowError):
        raise _expected(key, "a number" if real else "a whole number", value) from None


def _expected(key: str, kind: str, value: Any) -> InputError:
    return InputError(f"stream option {key}: expected {kind}, received '{value}'")


_READ: dict[str, Callable[[str, Any], Any]] = {
    "str": _text,
    "int": _number,
    "float": _number,
    "bool": _flag,
    "tuple[str, ...]": _names,
}
"""How an option of each type is read."""


def _build(
    options: Data, folder: Path, profiles: str | Path | None, seed: int | None
) -> JobStreamProblem:
    parts = _parts(options)
    other = parts["other"]
    if profiles is None and "profiles" in other:
        profiles = folder / other["profiles"]
    spec = StreamSpec(**parts["spec"])
    trace = _read_trace(folder / other["trace"]) if "trace" in other else None
    drawn = [key for key in parts["spec"] if key not in ("horizon", "models", "name")]
    if trace is not None and drawn:
        raise InputError(
            f"stream option {drawn[0]}: the trace '{other['trace']}' says when which job comes, so "
            "nothing is drawn; leave the option or the trace out"
        )
    if trace is not None and "models" not in parts["spec"]:
        spec = replace(spec, models=tuple(dict.fromkeys(row.model for row in trace)))
    table = JobTable(
        load_profiles(profiles, spec.models, **parts["profiles"]),
        RampTopology(**parts["topology"]),
        LookaheadConfig(**parts["config"]),
        **parts["table"],
    )
    draw = seed if seed is not None else other.get("seed", 0)
    if draw < 0:
        raise InputError(f"stream option seed: expected a whole number >= 0, received {draw}")
    if trace is None:
        return spec.draw(table, draw)
    name = parts["spec"].get("name", Path(other["trace"]).stem)
    problem = _trace_problem(trace, table, spec, name)
    return replace(problem, seed=draw)


def _parts(options: Data) -> dict[str, Data]:
    """Return the options by what they describe; those of a file may be nested."""
    parts: dict[str, Data] = {part: {} for part, _ in _OPTIONS.values()}
    flat: Data = {}
    for key, value in options.items():
        nested = isinstance(value, dict) and key in ("topology", "stream", "lookahead")
        flat.update(value if nested else {key: value})
    for key, value in flat.items():
        if key not in _OPTIONS:
            raise InputError(
                f"stream option '{key}' is not known; known: {', '.join(sorted(_OPTIONS))}"
            )
        part, kind = _OPTIONS[key]
        parts[part][key] = _READ[kind](key, value)
    return parts


@dataclass(frozen=True)
class _Row:
    arrival: float
    model: str
    deadline: float
    relative: bool  # the deadline is a fraction of the sequential time


def _read_trace(path: Path) -> list[_Row]:
    header, lines = csv_columns(read_text(path, what="trace"), f"trace '{path}'")
    if header not in (["arrival", "model", "deadline"], ["arrival", "model", "beta"]):
        raise InputError(
            f"trace '{path}': expected the header arrival,model,deadline or "
            f"arrival,model,beta, received '{','.join(header)}'"
        )
    rows = [
        _row(line, header[2], f"trace '{path}', line {i}") for i, line in enumerate(lines, start=2)
    ]
    if not rows:
        raise InputError(f"trace '{path}': expected at least one job, received none")
    for i, (before, after) in enumerate(pairwise(rows), start=3):
        if after.arrival < before.arrival:
            raise InputError(
                f"trace '{path}', line {i}: arrivals out of order: {after.arrival:g} after "
                f"{before.arrival:g}; sort them"
            )
    return rows


def _row(line: Data, last: str, where: str) -> _Row:
    values = []
    for key in ("arrival", last):
        try:
            value = float(line[key])
        except (TypeError, ValueError):
            raise InputError(f"{where}: {key} must be a number, received '{line[key]}'") from None
        if not math.isfinite(value) or value < 0:
            raise InputError(f"{where}: {key} must be a time >= 0, received {line[key]}")
        values.append(value)
    if not line["model"] or None in line:
        raise InputError(f"{where}: expected three columns arrival,model,{last}")
    return _Row(values[0], line["model"].strip(), values[1], last == "beta")


def _trace_problem(
    rows: list[_Row], table: JobTable, spec: StreamSpec, name: str
) -> JobStreamProblem:
    model = np.array([table.model_index(row.model) for row in rows])
    fraction = np.array([row.deadline for row in rows])
    if rows[0].relative:
        with np.errstate(over="ignore"):  # what is endless is refused
            ticks = fraction * table.arrays.sequential[model]
        deadline = round_half_up(ticks, "deadline")
    else:
        deadline = to_ticks(fraction, table.tick_seconds, "deadline")
    arrival = to_ticks([row.arrival for row in rows], table.tick_seconds, "arrival")
    end = int((arrival + deadline).max())
    horizon = (
        end if spec.horizon is None else int(to_ticks(spec.horizon, table.tick_seconds, "horizon"))
    )
    return JobStreamProblem(name, table, arrival, model, deadline, max(1, horizon))
