"""The dual policy as data: its weights by feature name, the heuristics that it can start as, its file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.files import read_json, write_text
from placeopt.solvers.policy.episode_arrays import Plc, Sel
from placeopt.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT, VERSION = "placeopt/dual-policy", 1
SEL_FEATURES, PLC_FEATURES = (tuple(feature.name.lower() for feature in kind) for kind in (Sel, Plc))
SCALINGS = ("graph", "candidates")
HEURISTICS = ("critical-path", "eft", "scratch")
SHARPNESS = 12.0
"""Weight of a heuristic's own feature in the policy that starts as that heuristic."""


@dataclass(frozen=True, eq=False)
class DualPolicyModel:
    """Weights of SEL and PLC, by feature name, and where they come from.

    Attributes
    ----------
    sel_scaling : what SEL's features are scaled by: "graph" (its maxima) or "candidates" (the ready ops, every time).
    provenance : the graphs and the number of episodes the policy was trained on.
    """

    sel: NDArray[np.float64]  # (SEL features,)
    plc: NDArray[np.float64]  # (PLC features,)
    temperature: float = 1.0
    provenance: tuple[str, ...] = field(default=())
    sel_scaling: str = "graph"

    def __post_init__(self) -> None:
        if self.sel_scaling not in SCALINGS:
            raise InputError(f"dual policy: sel_scaling must be one of {', '.join(SCALINGS)}, received '{self.sel_scaling}'")
        for key, names in (("sel", SEL_FEATURES), ("plc", PLC_FEATURES)):
            array = np.array(getattr(self, key), dtype=np.float64)
            if array.shape != (len(names),) or not np.isfinite(array).all():
                raise InputError(f"dual policy: {key} must be {len(names)} finite weights, received shape {array.shape}")
            array.setflags(write=False)
            object.__setattr__(self, key, array)
        if not (np.isfinite(self.temperature) and self.temperature > 0):
            raise InputError(f"dual policy: temperature must be > 0, received {self.temperature}")

    @classmethod
    def heuristic(cls, name: str, sel_scaling: str = "graph") -> DualPolicyModel:
        """Return the policy that is a heuristic when it acts greedily.

        "critical-path": highest b-level, earliest start. "eft": highest b-level, earliest finish (HEFT without
        insertion). "scratch": uniform over ready ops and devices.
        """
        sel, plc = np.zeros(len(SEL_FEATURES)), np.zeros(len(PLC_FEATURES))
        if name == "critical-path":
            sel[Sel.B_LEVEL] = SHARPNESS
            plc[Plc.EARLIEST_START] = -SHARPNESS
        elif name == "eft":
            sel[Sel.B_LEVEL] = SHARPNESS
            plc[Plc.EARLIEST_FINISH] = -SHARPNESS
        elif name != "scratch":
            raise InputError(f"dual policy: expected one of {', '.join(HEURISTICS)}, received '{name}'")
        return cls(sel, plc, sel_scaling=sel_scaling, provenance=(name,))

    def trained(self, sel: NDArray[np.float64], plc: NDArray[np.float64], note: str) -> DualPolicyModel:
        """Return the policy with new weights and one more line of provenance."""
        return replace(self, sel=sel, plc=plc, provenance=(*self.provenance, note))

    def save(self, path: str | Path) -> Path:
        """Write the policy as JSON."""
        data = {
            "format": FORMAT, "version": VERSION, "placeopt": __version__, "temperature": self.temperature,
            "normalisation": "PLC: minimum to maximum over the candidate devices; SEL: by sel_scaling",
            "sel_scaling": self.sel_scaling,
            "sel": dict(zip(SEL_FEATURES, self.sel.tolist(), strict=True)),
            "plc": dict(zip(PLC_FEATURES, self.plc.tolist(), strict=True)),
            "provenance": list(self.provenance),
        }  # fmt: skip
        return write_text(path, json.dumps(data, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> DualPolicyModel:
        """Read a policy file.

        Raises
        ------
        InputError
            If it is not a policy file, or its features are not those of this version.
        """
        data = read_json(path)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"policy '{path}': expected a file with \"format\": \"{FORMAT}\"")
        if data.get("version") != VERSION:
            raise InputError(f"policy '{path}': expected version {VERSION}, received {data.get('version')!r}")
        return cls(
            _column(data, "sel", SEL_FEATURES, path), _column(data, "plc", PLC_FEATURES, path),
            _number(data.get("temperature", 1.0), "temperature", path),
            tuple(str(line) for line in data.get("provenance", ())), str(data.get("sel_scaling", "graph")),
        )  # fmt: skip


def _column(data: dict[str, Any], key: str, names: tuple[str, ...], path: str | Path) -> NDArray[np.float64]:
    table = data.get(key)
    if not isinstance(table, dict) or sorted(table) != sorted(names):
        raise InputError(f"policy '{path}': \"{key}\" must give a weight for each of {', '.join(names)}")
    return np.array([_number(table[name], f"{key}.{name}", path) for name in names])


def _number(value: Any, where: str, path: str | Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"policy '{path}': {where} must be a number, received {value!r}")
    return float(value)
