"""The dual policy as data: its weights by feature name, its hidden layers, the heuristics that it
can start as, its file.

Policies as files: JSON that says what it is, which version wrote it, and what the policy was
trained on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.files import Data, read_json, write_json
from placeopt.solvers.policy.episode_arrays import Plc, Sel
from placeopt.solvers.policy.message_passing import NUM_COLUMNS
from placeopt.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.model.arrays import Floats
    from placeopt.solvers.policy.advantages import Parameters


class PolicyFile(ABC):
    """A policy that is saved and loaded; `format` and `version` are those of its file."""

    format: ClassVar[str]
    version: ClassVar[int]

    @abstractmethod
    def content(self) -> Data:
        """Return the policy as plain JSON."""

    @classmethod
    @abstractmethod
    def from_content(cls, data: Any, path: str | Path) -> Self:
        """Return the policy of a file's JSON, of this format and version.

        Raises
        ------
        InputError
            If what it names is not what this version knows.
        """

    def save(self, path: str | Path) -> Path:
        """Write the policy as JSON, what is learned in six digits."""
        head = {"format": self.format, "version": self.version, "placeopt": __version__}
        return write_json(path, head | self.content())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a policy file.

        Raises
        ------
        InputError
            If it is none of this format and version, or as `from_content` does.
        """
        data = read_json(path)
        if not isinstance(data, dict) or data.get("format") != cls.format:
            raise InputError(f'policy \'{path}\': expected a file with "format": "{cls.format}"')
        if data.get("version") != cls.version:
            raise InputError(
                f"policy '{path}': expected version {cls.version}, received {data.get('version')!r}"
            )
        if not isinstance(data.get("provenance", []), list):
            raise InputError(f"policy '{path}': \"provenance\" must be a list of lines")
        return cls.from_content(data, path)


FEATURES = {
    kind: tuple(feature.name.lower() for feature in features)
    for kind, features in (("sel", Sel), ("plc", Plc))
}
"""Names of the features of both policies."""

HEURISTICS = ("critical-path", "eft", "scratch")
"""What whole episodes may begin as."""

LAYERS = ("sel_inside", "sel_context", "sel_out", "plc_inside", "plc_context", "plc_out")
"""The arrays of the hidden layers."""

ARRAYS = ("sel", "plc", *LAYERS)
"""All that is learned for every graph."""


_NOTHING: Any = ()
"""An array of the hidden layer of a policy that has none, whatever its shape."""


@dataclass(frozen=True, eq=False)
class DualPolicyModel(PolicyFile):
    """Weights of SEL and PLC, by feature name, their hidden layers, and where they come from.

    Attributes
    ----------
    sel_inside, sel_context, sel_out : the hidden layer of SEL: weights of the features, of the op's
    context, and of what
        comes out, shapes (features, hidden), (NUM_COLUMNS, hidden) and (hidden,). Those of PLC
        likewise.
    provenance : the graphs and the number of episodes the policy was trained on.
    """

    format = "placeopt/dual-policy"
    version = 3

    sel: Floats  # (SEL features,)
    plc: Floats  # (PLC features,)
    temperature: float = 1.0
    provenance: tuple[str, ...] = ()
    sel_inside: Floats = _NOTHING
    sel_context: Floats = _NOTHING
    sel_out: Floats = _NOTHING
    plc_inside: Floats = _NOTHING
    plc_context: Floats = _NOTHING
    plc_out: Floats = _NOTHING

    def __post_init__(self) -> None:
        for kind, names in FEATURES.items():
            hidden = int(np.size(getattr(self, f"{kind}_out")))
            self._keep(kind, (len(names),))
            self._keep(f"{kind}_inside", (len(names), hidden))
            self._keep(f"{kind}_context", (NUM_COLUMNS, hidden))
            self._keep(f"{kind}_out", (hidden,))
        if not (np.isfinite(self.temperature) and self.temperature > 0):
            raise InputError(f"dual policy: temperature must be > 0, received {self.temperature}")

    def _keep(self, name: str, shape: tuple[int, ...]) -> None:
        array = np.array(getattr(self, name), np.float64)
        if array.size == 0 and 0 in shape:
            array = np.zeros(shape)
        if array.shape != shape or not np.isfinite(array).all():
            raise InputError(
                f"dual policy: {name} must be finite numbers of shape {shape}, received shape "
                f"{array.shape}"
            )
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    @property
    def hidden(self) -> int:
        """Width of the hidden layers; 0 for a policy that is linear in its features."""
        return len(self.sel_out)

    @classmethod
    def heuristic(cls, name: str, *, sharpness: float = 12.0) -> DualPolicyModel:
        """Return the policy that is a heuristic when it acts greedily.

        "critical-path": highest b-level, earliest start. "eft": highest b-level, earliest finish
        (HEFT without insertion). "scratch": uniform over ready ops and devices.

        Parameters
        ----------
        sharpness : weight of the own feature of the first two.
        """
        sel, plc = np.zeros(len(Sel)), np.zeros(len(Plc))
        if name in ("critical-path", "eft"):
            sel[Sel.B_LEVEL] = sharpness
            plc[Plc.EARLIEST_START if name == "critical-path" else Plc.EARLIEST_FINISH] = -sharpness
        elif name != "scratch":
            raise InputError(
                f"dual policy: expected one of {', '.join(HEURISTICS)}, received '{name}'"
            )
        return cls(sel, plc, provenance=(name,))

    def with_hidden(self, hidden: int, rng: np.random.Generator) -> DualPolicyModel:
        """Return the same policy with hidden layers that do not matter yet: nothing comes out of
        them.
        """
        layers: Data = {}
        for kind, names in FEATURES.items():
            layers[f"{kind}_inside"] = rng.normal(size=(len(names), hidden)) / len(names) ** 0.5
            layers[f"{kind}_context"] = rng.normal(size=(NUM_COLUMNS, hidden)) / NUM_COLUMNS**0.5
            layers[f"{kind}_out"] = np.zeros(hidden)
        return replace(self, **layers)

    def trained(self, arrays: Parameters, note: str) -> DualPolicyModel:
        """Return the policy with new `ARRAYS` and one more line of provenance."""
        known: Data = {name: arrays[name] for name in ARRAYS}
        return replace(self, **known, provenance=(*self.provenance, note))

    def content(self) -> Data:
        """Return the policy as JSON; hidden layers are rounded to six digits."""
        data: Data = {
            "temperature": self.temperature,
            "normalisation": "PLC: minimum to maximum over the candidate devices; SEL: the graph's "
            "maxima",
            "sel": dict(zip(FEATURES["sel"], self.sel.tolist(), strict=True)),
            "plc": dict(zip(FEATURES["plc"], self.plc.tolist(), strict=True)),
            "provenance": list(self.provenance),
        }
        if self.hidden:
            data["layers"] = {name: _rounded(getattr(self, name)) for name in LAYERS}
        return data

    @classmethod
    def from_content(cls, data: Any, path: str | Path) -> DualPolicyModel:
        """Return the policy of a file's JSON; see `PolicyFile`."""
        layers = data.get("layers", {})
        if not isinstance(layers, dict) or (layers and sorted(layers) != sorted(LAYERS)):
            raise InputError(f"policy '{path}': \"layers\" must give each of {', '.join(LAYERS)}")
        return cls(
            _column(data, "sel", path),
            _column(data, "plc", path),
            _number(data.get("temperature", 1.0), "temperature", path),
            tuple(str(line) for line in data.get("provenance", ())),
            **{name: _array(layers[name], f"layers.{name}", path) for name in layers},
        )


def _rounded(array: Floats) -> Any:
    """Return an array as lists, numbers in six digits."""
    if array.ndim > 1:
        return [_rounded(row) for row in array]
    return [float(f"{x:.6g}") for x in array]


def _array(rows: Any, where: str, path: str | Path) -> Floats:
    try:
        return np.array(rows, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"policy '{path}': {where} must be a table of numbers") from None


def _column(data: Data, key: str, path: str | Path) -> Floats:
    table, names = data.get(key), FEATURES[key]
    if not isinstance(table, dict) or sorted(table) != sorted(names):
        raise InputError(
            f"policy '{path}': \"{key}\" must give a weight for each of {', '.join(names)}"
        )
    return np.array([_number(table[name], f"{key}.{name}", path) for name in names])


def _number(value: Any, where: str, path: str | Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"policy '{path}': {where} must be a number, received {value!r}")
    return float(value)
