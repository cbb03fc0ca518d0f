"""Layer tables: how long each layer takes and how large it is, per device kind, micro-batch and
tensor degree; and what cost models of a training step share that take their times from one.

Read from a folder of measured profiles (`layer_times.json`, `layer_sizes.json`, in the format of
the published training plans) or made from a model by roofline; either way a table says where its
numbers come from.

A measured time of a small micro-batch can exceed that of a larger one where launching, and not
computing, was measured. More samples never take less time, so `monotone` replaces each time by the
least one measured of as many or more samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from placeopt.io.body import Body
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.files import read_json
from placeopt.plans.plan import FORMS, SEQUENCE, ReplicaGroup
from placeopt.plans.step_costs import MOST_SECONDS, StepCosts

if TYPE_CHECKING:
    from placeopt.model.arrays import Floats
    from placeopt.plans.network_table import Network


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
    times : seconds per (kind, micro-batch, tensor degree): forward, backward, one optimizer step;
    shape (L, 3).
    parameters, activations : floats per device of each tensor degree, shape (L,); activations are
    what one sample keeps
        until its backward pass.
    outputs : floats of the output of each layer, per sample, shape (L,).
    float_bytes : bytes of a float.
    source : where the numbers come from.
    weight_part : part of each layer's backward pass that only the gradients of its weights take,
    shape (L,), and
        weights_source : where that comes from; by default half of it where a layer has weights.
    shared : floats of `parameters` that all devices of a replica hold, by tensor degree, shape
    (L,); none by default.
    forms : tables of the further ways to split layers (`placeopt.plans.plan.FORMS`), by name.
    """

    model: str
    times: dict[tuple[str, int, int], Floats]
    parameters: dict[int, Floats]
    activations: dict[int, Floats]
    outputs: Floats
    float_bytes: int = 4
    source: str = "measured"
    weight_part: Floats | None = None
    weights_source: str = "assumed: half of the backward pass of layers with weights"
    shared: dict[int, Floats] = field(default_factory=dict)
    forms: dict[str, LayerTable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.weight_part is None:
            parameters = next(iter(self.parameters.values()), self.outputs)
            object.__setattr__(self, "weight_part", 0.5 * (parameters > 0))
        columns = {"outputs": self.outputs, "weight_part": np.asarray(self.weight_part)}
        for what in ("parameters", "activations", "shared"):
            columns |= {f"{what} at {t}": value for t, value in getattr(self, what).items()}
        columns |= {f"times of {key}": value for key, value in self.times.items()}
        for what, value in columns.items():
            shape = (self.num_layers, 3) if what.startswith("times") else (self.num_layers,)
            if (
                value.shape != shape
                or not 0 <= value.min(initial=0) <= value.max(initial=-1) < np.inf
            ):
                raise InputError(
                    f"layer table '{self.model}': {what}: expected finite numbers of at least 0 "
                    f"for {self.num_layers} layers, received shape {value.shape} with "
                    f"{value.min(initial=0):g} to {value.max(initial=0):g}"
                )
        if min([self.float_bytes, *(min(key[1:]) for key in self.times)]) < 1:
            raise InputError(
                f"layer table '{self.model}': expected micro-batches, degrees and bytes of a float "
                "of at least 1, received less"
            )
        for (kind, _, tensor), value in self.times.items():
            if value.sum() * tensor >= MOST_SECONDS:
                raise InputError(
                    f"layer table '{self.model}': times on '{kind}': expected layers of less than "
                    f"{MOST_SECONDS:.3g} s together, received {value.sum():.3g}"
                )

    @property
    def num_layers(self) -> int:
        """Number of layers, L."""
        return len(self.outputs)

    @cached_property
    def numbers(self) -> Floats:
        """Everything that is known of each layer, one row each."""
        columns = [self.outputs, np.asarray(self.weight_part)]
        for one in (self, *self.forms.values()):
            for by in (one.times, one.parameters, one.activations, one.shared):
                columns += by.values()
        return np.column_stack(columns)

    @cached_property
    def layer_types(self) -> tuple[int, ...]:
        """Number of each layer, equal for layers with equal numbers everywhere."""
        known: dict[bytes, int] = {}
        return tuple(known.setdefault(row.tobytes(), len(known)) for row in self.numbers)

    def form(self, name: str) -> LayerTable:
        """Return the table of a way to split layers, "" for this one.

        Raises
        ------
        LookupError
            If it is not known.
        """
        return self.forms[name] if name else self

    def degrees(self, kind: str) -> tuple[int, ...]:
        """Tensor degrees with times and sizes of a device kind, split in any way."""
        own = (table.own_degrees(kind) for table in (self, *self.forms.values()))
        return tuple(sorted(set[int]().union(*own)))

    def own_degrees(self, kind: str) -> set[int]:
        """Those of this way to split layers."""
        kind = device_kind(kind)
        return {t for known, _, t in self.times if known == kind and t in self.parameters}

    def forms_of(self, kind: str, tensor: int) -> tuple[str, ...]:
        """Ways to split layers over so many devices of a kind."""
        tables = {"": self, **self.forms}
        return tuple(name for name, one in tables.items() if tensor in one.own_degrees(kind))

    def with_sequence(self) -> LayerTable:
        """Return the table with sequence parallelism where it is not given.

        Its devices keep an even share of all activations. A reduce-scatter and an all-gather by a
        ring take together as long as the all-reduce in the times; what the work between matrices
        gains is not counted.
        """
        times = {key: value for key, value in self.times.items() if key[2] > 1}
        if SEQUENCE in self.forms or not times or 1 not in self.activations:
            return self
        whole = self.activations[1]
        kept = {t: np.minimum(own, whole / t) for t, own in self.activations.items() if t > 1}
        parameters = {t: value for t, value in self.parameters.items() if t > 1}
        table = replace(self, times=times, parameters=parameters, activations=kept, forms={})
        return replace(self, forms=self.forms | {SEQUENCE: table})

    def times_of(self, kind: str, micro_batch: int, tensor: int) -> Floats | None:
        """Return the seconds of the layers on devices of a kind in any zone, None where nothing is
        known.
        """
        return self.times.get((device_kind(kind), micro_batch, tensor))

    def monotone(self) -> LayerTable:
        """Return the table whose forward and backward times never fall with the micro-batch; see
        the module.
        """
        times = {}
        for (kind, size, degree), value in self.times.items():
            larger = [
                other
                for (k, b, t), other in self.times.items()
                if (k, t) == (kind, degree) and b >= size
            ]
            least = np.min(larger, axis=0)
            least[:, OPTIMIZER] = value[:, OPTIMIZER]
            times[kind, size, degree] = least
        forms = {name: table.monotone() for name, table in self.forms.items()}
        return replace(
            self,
            times=times,
            source=f"{self.source}, no time above that of a larger micro-batch",
            forms=forms,
        )


def read_layer_table(folder: str | Path, model: str) -> LayerTable:
    """Read the profiles of a model.

    Parameters
    ----------
    folder : with `layer_times.json` and `layer_sizes.json`; `layer_times_opt350_gh200.json`, where
    there is one, replaces
        the times of OPT-350 on GH-96, which the larger file has rounded.

    Raises
    ------
    InputError
        If a file is malformed or does not know the model.
    """
    folder = Path(folder)
    profiles = _model(folder / "layer_times.json", model)
    times = {
        key: value
        for kind in profiles.data
        for key, value in _by_batch(kind, profiles.body(kind)).items()
    }
    exact = folder / "layer_times_opt350_gh200.json"
    if model == "OPT-350" and exact.is_file():
        times |= _by_batch("GH-96", Body(read_json(exact), f"file '{exact}'"))
    sizes = _model(folder / "layer_sizes.json", model)
    if "1" not in sizes.data:
        raise InputError(
            f"{sizes.where}: expected the tensor degree 1, received {', '.join(sizes.data)}"
        )
    outputs = _column(sizes.body("1"), "act_output_floats")
    tables = {}
    for form in ("", *FORMS):
        parameters, kept, shared = _sizes(sizes, form)
        own = {key[:3]: value for key, value in times.items() if key[3] == form}
        if own:
            tables[form] = LayerTable(
                model,
                own,
                parameters,
                kept,
                outputs,
                source=f"measured: {folder.name}/layer_times.json",
                shared=shared,
            )
    if "" not in tables:
        raise InputError(
            f"file '{folder / 'layer_times.json'}': model '{model}': expected times of plain "
            "tensor degrees"
        )
    return replace(tables.pop(""), forms=tables)


def _sizes(sizes: Body, form: str) -> tuple[dict[int, Floats], ...]:
    """Return the parameters, activations and shared parameters of a way to split layers."""
    rows = {}
    for key in sizes.data:
        degree, name = _degree(key, sizes)
        if name == form:
            rows[degree] = sizes.body(key)
    return (
        {degree: _column(body, "params_floats") for degree, body in rows.items()},
        {degree: _column(body, "act_mem_floats") for degree, body in rows.items()},
        {degree: _column(body, "shared_floats", 0.0) for degree, body in rows.items() if form},
    )


def _degree(key: str, body: Body) -> tuple[int, str]:
    """Return degree and form of a column of a cost file: `4`, `4:sequence`, `8:expert`."""
    number, _, form = key.partition(":")
    if not number.isdecimal() or int(number) < 1 or (form or FORMS[0]) not in FORMS:
        raise InputError(
            f"{body.where}: expected a degree, as 4 or 4:{FORMS[0]} ({', '.join(FORMS)}), received "
            f"'{key}'"
        )
    return int(number), form


def _column(rows: Body, key: str, default: float | None = None) -> Floats:
    """Return a number of every layer."""
    return np.array([rows.body(str(i)).number(key, default) for i in range(len(rows.data))])


def _model(path: Path, model: str) -> Body:
    body = Body(read_json(path), f"file '{path}'")
    if model not in body.data:
        raise InputError(
            f"file '{path}': model '{model}' is not known; {did_you_mean(model, list(body.data))}"
        )
    return body.body(model)


def _by_batch(kind: str, body: Body) -> dict[tuple[str, int, int, str], Floats]:
    found = {}
    for size in body.data:
        if not size.isdecimal() or int(size) < 1:
            raise InputError(f"{body.where}: expected micro-batches as keys, received '{size}'")
        degrees = body.body(size)
        for degree in degrees.data:
            rows = degrees.body(degree)
            layers = [_seconds(rows, str(i)) for i in range(len(rows.data))]
            found[kind, int(size), *_degree(degree, degrees)] = np.array(layers)
    return found


def _seconds(rows: Body, key: str) -> Floats:
    """Return the three times of a layer."""
    found = rows.numbers(key)
    if len(found) != 3:
        raise rows.wrong(key, "seconds of forward, backward and optimizer", rows.items(key))
    return found


@dataclass(frozen=True, eq=False)
class TabledStepCosts(StepCosts):
    """Costs from a table of layers and a network."""

    table: LayerTable
    network: Network

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return self.table.num_layers

    @property
    def layer_types(self) -> tuple[int, ...]:
        """Layers that are priced alike have equal numbers."""
        return self.table.layer_types

    @cached_property
    def fingerprint(self) -> bytes:
        """Everything that prices are made of, for the hash of a problem."""
        rest = self.table.float_bytes, self.network, getattr(self, "constants", None)
        return self.table.numbers.tobytes() + repr(rest).encode()

    @property
    def table_sources(self) -> tuple[tuple[str, str], ...]:
        """Where times, sizes and transfers come from."""
        return ("layer times, sizes", self.table.source), (
            "transfers, all-reduce",
            self.network.source,
        )

    @property
    def spans(self) -> Self:
        """See `StepCosts`."""
        return self

    def _known(self, group: ReplicaGroup, micro_batch: int) -> Floats:
        times = self.table.form(group.form).times_of(group.kind, micro_batch, group.tensor)
        if times is None:
            raise LookupError(
                f"no times of {group.kind} at degree {group.tensor} and micro-batch {micro_batch}"
            )
        return times

    def micro_batches(self, kinds: tuple[str, ...]) -> tuple[int, ...]:
        """Micro-batch sizes with times on any of the kinds."""
        known = {device_kind(kind) for kind in kinds}
        return tuple(sorted({size for kind, size, _ in self.table.times if kind in known}))

    def degrees(self, kind: str) -> tuple[int, ...]:
        """Tensor degrees with times."""
        return self.table.degrees(kind)
