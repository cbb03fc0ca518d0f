"""Calibration: the fitted constants of `StepModel` and of memory, and factors of kinds of runs.

calibration.json holds what `results/plans/calibrate.py` fitted; `--calibrate` writes another one.
Offsets are logarithms of factors, known from what a run says of itself: its framework, precision
and generation of devices. They are shrunk to 0, which is what an unknown kind of run gets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from placeopt.io.body import Body
from placeopt.model.errors import InputError
from placeopt.model.files import Data, read_json, table_beside, write_json
from placeopt.model.query import told

if TYPE_CHECKING:
    from placeopt.instances.clusters.hardware import Gpu
    from placeopt.plans.configuration import Configuration
    from placeopt.plans.model_shapes import ModelShape

RUN_WORDS: Data = table_beside(__file__, "run_words.json")
"""What tables of training runs say, and what is fitted to them."""

CONSTANTS: dict[str, tuple[float, str]] = {
    name: (value, what) for name, (value, what) in RUN_WORDS["constants"].items()
}
"""Value to start from and to shrink to, and meaning; all factors are 1 where data sheets and counts
are right."""


def family(framework: str) -> str:
    """Return the family of launchers, without its release."""
    text = framework.lower()
    known = RUN_WORDS["families"]
    return next((name for name, words in known if any(word in text for word in words)), "other")


def launcher_of(framework: str) -> str:
    """Return a launcher's name without release and punctuation: "NeMo 24.07" is "nemo"."""
    return re.sub(r"[^a-z]+", " ", framework.lower()).strip()


def offset_keys(shape: ModelShape, conf: Configuration, gpu: Gpu) -> list[str]:
    """Return the kinds that a run is of, widest first; the last two are its model, and its layer.

    The layer is what the kernels of a micro-batch see. A smooth model of kernels misses how good
    the libraries' choices for just these sizes are; where the same layer was measured in models of
    other depth, batch or number of devices, that is known.
    """
    widths = {"fp8": "8-bit", "bf16": "16-bit", "fp16": "16-bit"}
    name, kind = conf.framework or "other", widths.get(conf.precision, conf.precision)
    generation = gpu.name.partition("-")[0]
    if generation.startswith("GB"):
        generation = generation.removeprefix("G")
    tokens = conf.micro_batch * conf.sequence // conf.context
    sizes = f"{shape.hidden} wide, tp {conf.tensor}, {tokens} tokens of {conf.sequence}"
    passes = f"recompute {conf.recompute}, {conf.precision}"
    return [
        name,
        kind,
        generation,
        f"{name} {kind}",
        f"{name} {generation} {kind}",
        f"model {shape.layers}x{shape.hidden}x{shape.experts} {name} {generation}",
        f"layer {sizes}, {passes}, {name} {gpu.name}",
    ]


UNFITTED = "a launcher on devices that hardly any run was fitted of"
"""Key of the spread of sources left out of the fit."""


def spread_key(conf: Configuration, gpu: Gpu) -> str:
    """Return the kind of run whose measured steps the spread of a prediction comes from."""
    scale = "one host" if conf.devices <= conf.per_host else "many hosts"
    return f"{conf.framework or 'other'} on {gpu.name.partition('-')[0]}, {scale}"


@dataclass(frozen=True)
class Calibration:
    """Constants by name, offsets by kind of run; see the module.

    Attributes
    ----------
    intervals : 5th to 95th part of the constants over bootstrapped groups of runs. samples : values
    of the constants in some of these bootstraps, the i-th of each together. spread : measured over
    predicted of runs apart by kind of run: (lowest tenth, highest tenth, runs).
    memory : constants of memory. source : in words. launchers : those with runs that were fitted.
    """

    values: dict[str, float] = field(default_factory=dict)
    offsets: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, list[float]] = field(default_factory=dict)
    spread: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    source: str = "not fitted"
    samples: dict[str, list[float]] = field(default_factory=dict)
    launchers: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float:
        return self.values.get(name, CONSTANTS[name][0])

    def offset(self, shape: ModelShape, conf: Configuration, gpu: Gpu) -> float:
        """Return the sum of the offsets of a run's kinds."""
        if not self.offsets:
            return 0.0
        return sum(self.offsets.get(key, 0.0) for key in offset_keys(shape, conf, gpu))

    def least_offset(self, shape: ModelShape, conf: Configuration, gpu: Gpu) -> float:
        """Return the least offset of runs that differ in degrees, tokens and recomputation."""
        *kinds, layer = offset_keys(shape, conf, gpu)
        sizes = layer.partition(",")[0] + ","
        known = [offset for key, offset in self.offsets.items() if key.startswith(sizes)]
        return sum(self.offsets.get(key, 0.0) for key in kinds) + min([0.0, *known])

    def interval(
        self, conf: Configuration, gpu: Gpu, launcher: str = ""
    ) -> tuple[float, float, int, str] | None:
        """Return the tenths of measured over predicted in runs like this one, how many these are,
        and their kind; None if none are known.

        Without a `launcher`, the plan's family of launchers counts. Where no runs of the launcher,
        or hardly any of its family on such devices, were fitted, it is that of sources left out,
        which is wider.
        """
        families = {family(name) for name in self.launchers}
        known = launcher in self.launchers if launcher else conf.framework in families
        key = spread_key(conf, gpu)
        key = key if known and key in self.spread else UNFITTED
        if key not in self.spread:
            return None
        low, high, rows = self.spread[key]
        return low, high, int(rows), key

    def to_json(self) -> Data:
        """Return it as JSON."""
        return {
            "calibration": 1,
            "constants": {
                name: {"value": self[name], "interval": self.intervals.get(name), "what": what}
                for name, (_, what) in CONSTANTS.items()
            },
            **told(self, "source offsets memory spread samples"),
            "launchers": list(self.launchers),
        }

    def save(self, path: Path) -> None:
        """Write it to a file that `--costs` takes."""
        write_json(path, self.to_json())


def is_calibration(path: str | Path) -> bool:
    """Whether a file holds a calibration."""
    path = Path(path)
    return path.is_file() and path.suffix == ".json" and "calibration" in _body(path)


def _body(path: Path) -> Data:
    body = read_json(path)
    return body if isinstance(body, dict) else {}


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file.

    Raises
    ------
    InputError
        If it is none.
    """
    body = Body(_body(Path(path)), f"file '{path}'")
    if body.get("calibration", 0) != 1:
        raise InputError(
            f"file '{path}': expected a calibration, as `placeopt plan --calibrate` writes it"
        )
    constants, spread = body.body("constants"), body.body("spread")
    rows = {name: constants.body(name) for name in constants.data}
    samples = body.body("samples") if body.has("samples") else Body({}, body.where)
    found = Calibration(
        {name: row.number("value") for name, row in rows.items()},
        _numbers(body.body("offsets")),
        {
            name: row.numbers("interval").tolist()
            for name, row in rows.items()
            if row.has("interval")
        },
        {key: _tenths(spread, key) for key in spread.data},
        _numbers(body.body("memory")),
        body.text("source"),
        {name: samples.numbers(name).tolist() for name in samples.data},
        body.texts("launchers") if body.has("launchers") else (),
    )
    _check_numbers(found, path)
    return found


def _numbers(body: Body) -> dict[str, float]:
    return {key: body.number(key) for key in body.data}


def _tenths(spread: Body, key: str) -> list[float]:
    """Return the lowest tenth, the highest one, and of how many runs."""
    found = spread.numbers(key).tolist()
    if len(found) != 3:
        raise spread.wrong(key, "three numbers", found)
    return [*found[:2], int(found[2])]


SMALLEST = 1e-15
"""Constants are no smaller: their logarithms are fitted."""

LARGEST = 1e15
"""No constant is larger: bytes, seconds or factors."""

LARGEST_OFFSET = 20.0
"""Logarithm of a factor of 5e8."""


def _check_numbers(found: Calibration, path: str | Path) -> None:
    """Refuse numbers that no fit gives, and samples that are not of one count."""
    numbers = [
        *((f"constants, {name}", value) for name, value in found.values.items()),
        *((f"memory, {name}", value) for name, value in found.memory.items()),
        *((f"spread, {name}", value) for name, row in found.spread.items() for value in row),
        *((f"samples, {name}", value) for name, row in found.samples.items() for value in row),
    ]
    for name, value in numbers:
        least = SMALLEST if name.startswith(("constants", "samples")) else 0.0
        if not least <= value <= LARGEST:
            raise InputError(
                f"file '{path}': {name}: expected a number of at least {least:g}, received "
                f"{value:g}"
            )
    for name, value in found.offsets.items():
        if not abs(value) <= LARGEST_OFFSET:
            raise InputError(
                f"file '{path}': offsets, {name}: expected a logarithm of at most "
                f"{LARGEST_OFFSET:g}, received {value:g}"
            )
    counts = {len(row) for row in found.samples.values()}
    if len(counts) > 1 or 0 in counts:
        raise InputError(f"file '{path}': samples: expected values, as many of every constant")


@cache
def default_calibration() -> Calibration:
    """Return what was fitted to the measured runs."""
    return read_calibration(Path(__file__).parent / "calibration.json")
