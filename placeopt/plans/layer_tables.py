"""Layer tables: how long each layer takes and how large it is, per device kind, micro-batch and tensor degree.

Read from a folder of measured profiles (`layer_times.json`, `layer_sizes.json`, in the format of the published training
plans) or made from a model by roofline; either way a table says where its numbers come from.

A measured time of a small micro-batch can exceed that of a larger one where launching, and not computing, was measured.
More samples never take less time, so `monotone` replaces each time by the least one measured of as many or more samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from placeopt.io.body import Body
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.files import read_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORWARD, BACKWARD, OPTIMIZER = range(3)
"""Columns of the times of a layer, in seconds."""


def device_kind(name: str) -> str:
    """Return the kind of `KIND@ZONE`: devices of a kind compute alike in all zones."""
    return name.partition("@")[0]


@dataclass(frozen=True, eq=False)
class LayerTable:
    """Times and sizes of the L layers of a model.

    Attributes
    ----------
    times : seconds per (kind, micro-batch, tensor degree): forward, backward, one optimizer step; shape (L, 3).
    parameters, activations : floats per device of each tensor degree, shape (L,); activations are what one sample keeps
        until its backward pass.
    outputs : floats of the output of each layer, per sample, shape (L,).
    float_bytes : bytes of a float.
    source : where the numbers come from.
    weight_part : part of each layer's backward pass that only the gradients of its weights take, shape (L,), and
        weights_source : where that comes from; by default half of it where a layer has weights.
    """

    model: str
    times: dict[tuple[str, int, int], NDArray[np.float64]]
    parameters: dict[int, NDArray[np.float64]]
    activations: dict[int, NDArray[np.float64]]
    outputs: NDArray[np.float64]
    float_bytes: int = 4
    source: str = "measured"
    weight_part: NDArray[np.float64] | None = None
    weights_source: str = "assumed: half of the backward pass of layers with weights"

    def __post_init__(self) -> None:
        if self.weight_part is None:
            object.__setattr__(self, "weight_part", 0.5 * (next(iter(self.parameters.values())) > 0))
        for key, value in self.times.items():
            if value.shape != (self.num_layers, 3):
                raise InputError(f"layer table '{self.model}': times of {key}: expected {self.num_layers} layers with 3 "
                                 f"times, received shape {value.shape}")  # fmt: skip
            if not np.isfinite(value).all() or (value < 0).any():
                raise InputError(f"layer table '{self.model}': times of {key}: expected finite numbers >= 0")

    @property
    def num_layers(self) -> int:
        """Number of layers, L."""
        return len(self.outputs)

    @cached_property
    def layer_types(self) -> tuple[int, ...]:
        """Number of each layer, equal for layers with equal numbers everywhere."""
        known: dict[bytes, int] = {}
        tables = [*self.times.values(), *(t[:, None] for t in (*self.parameters.values(), *self.activations.values()))]
        rows = np.concatenate([*tables, self.outputs[:, None], np.asarray(self.weight_part)[:, None]], axis=1)
        return tuple(known.setdefault(row.tobytes(), len(known)) for row in rows)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Device kinds with times."""
        return tuple(sorted({kind for kind, _, _ in self.times}))

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Micro-batch sizes with times."""
        return tuple(sorted({size for _, size, _ in self.times}))

    def degrees(self, kind: str) -> tuple[int, ...]:
        """Tensor degrees with times and sizes of a device kind."""
        kind = device_kind(kind)
        return tuple(sorted({t for known, _, t in self.times if known == kind and t in self.parameters}))

    def times_of(self, kind: str, micro_batch: int, tensor: int) -> NDArray[np.float64] | None:
        """Return the seconds of the layers on devices of a kind in any zone, None where nothing is known."""
        return self.times.get((device_kind(kind), micro_batch, tensor))

    def monotone(self) -> LayerTable:
        """Return the table whose forward and backward times never fall with the micro-batch; see the module."""
        times = {}
        for (kind, size, degree), value in self.times.items():
            larger = [other for (k, b, t), other in self.times.items() if (k, t) == (kind, degree) and b >= size]
            least = np.min(larger, axis=0)
            least[:, OPTIMIZER] = value[:, OPTIMIZER]
            times[kind, size, degree] = least
        return replace(self, times=times, source=f"{self.source}, no time above that of a larger micro-batch")


def read_layer_table(folder: str | Path, model: str) -> LayerTable:
    """Read the profiles of a model.

    Parameters
    ----------
    folder : with `layer_times.json` and `layer_sizes.json`; `layer_times_opt350_gh200.json`, where there is one, replaces
        the times of OPT-350 on GH-96, which the larger file has rounded.

    Raises
    ------
    InputError
        If a file is malformed or does not know the model.
    """
    folder = Path(folder)
    times = _times(_model(folder / "layer_times.json", model))
    exact = folder / "layer_times_opt350_gh200.json"
    if model == "OPT-350" and exact.is_file():
        times.update(_by_batch("GH-96", Body(read_json(exact), f"file '{exact}'")))
    sizes = _model(folder / "layer_sizes.json", model)
    parameters, activations, outputs = {}, {}, {}
    for degree in sizes.data:
        rows = sizes.body(degree)
        layers = [rows.body(str(i)) for i in range(len(rows.data))]
        parameters[int(degree)] = np.array([row.number("params_floats") for row in layers])
        activations[int(degree)] = np.array([row.number("act_mem_floats") for row in layers])
        outputs[int(degree)] = np.array([row.number("act_output_floats") for row in layers])
    if 1 not in outputs:
        raise InputError(f"{sizes.where}: expected the tensor degree 1, received {', '.join(sizes.data)}")
    return LayerTable(model, times, parameters, activations, outputs[1], source=f"measured: {folder.name}/layer_times.json")


def _model(path: Path, model: str) -> Body:
    body = Body(read_json(path), f"file '{path}'")
    if model not in body.data:
        raise InputError(f"file '{path}': model '{model}' is not known; {did_you_mean(model, list(body.data))}")
    return body.body(model)


def _times(body: Body) -> dict[tuple[str, int, int], NDArray[np.float64]]:
    found = {}
    for kind in body.data:
        found.update(_by_batch(kind, body.body(kind)))
    return found


def _by_batch(kind: str, body: Body) -> dict[tuple[str, int, int], NDArray[np.float64]]:
    found = {}
    for size in body.data:
        degrees = body.body(size)
        for degree in degrees.data:
            rows = degrees.body(degree)
            found[kind, int(size), int(degree)] = np.array([rows.items(str(i)) for i in range(len(rows.data))], dtype=float)
    return found
