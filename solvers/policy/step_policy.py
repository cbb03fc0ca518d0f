"""A policy of placing steps as data: its weights by feature name, its file, and what it says on a graph.

Every weight is linear in what is said of the whole graph (`WHOLE`), so that one policy weighs communication differently where there
is more of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.files import read_json, write_text
from placeopt.solvers.policy.message_passing import OWN, TYPE_NUMBERS
from placeopt.solvers.policy.placing_steps import Kind, Pick, Place
from placeopt.solvers.policy.step_arrays import StepPolicy
from placeopt.version import __version__

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.solvers.policy.episodes import OrderedProblem

    Floats = NDArray[np.float64]

FORMAT, VERSION = "placeopt/step-policy", 1

WHOLE = ("one", "communication", "parallelism")
"""What is said of the whole graph: communication as a part of all time, work over the longest path and the devices."""

ORDER = OWN[: len(OWN) - TYPE_NUMBERS]
"""Features of an op that decide when it is placed: highest sum first."""

PRETRAINED = Path(__file__).resolve().parent / "pretrained_steps.json"
"""What was learned on families of generated graphs: see results/policy/pretrain.py."""

TIMES = Place.LOAD
"""Features of a device before this one are ticks."""

TABLES = {
    "order": ORDER, "place": tuple(f.name.lower() for f in Place), "move": tuple(f.name.lower() for f in Place),
    "pick": tuple(f.name.lower() for f in Pick),
    "kind": tuple(f.name.lower() for f in Kind), "kind_late": tuple(f.name.lower() for f in Kind),
    "log_reach": tuple(f.name.lower() for f in Kind), "walk": ("log_heat",),
}  # fmt: skip
"""Names of the rows of every table; each row has a number for each of WHOLE."""


@dataclass(frozen=True, eq=False)
class StepPolicyModel:
    """Weights of a policy of placing steps.

    Attributes
    ----------
    tables : of each of TABLES, an array of shape (rows, len(WHOLE)).
    provenance : what it was trained on.
    """

    tables: dict[str, Floats]
    provenance: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name, rows in TABLES.items():
            array = np.array(self.tables.get(name, ()), dtype=np.float64)
            if array.shape != (len(rows), len(WHOLE)) or not np.isfinite(array).all():
                expected = f"finite numbers of shape {(len(rows), len(WHOLE))}"
                raise InputError(f"step policy: {name} must be {expected}, received shape {array.shape}")
            array.setflags(write=False)
            self.tables[name] = array

    @classmethod
    def untrained(cls) -> StepPolicyModel:
        """Return the policy before any training: ops by b-level on the device of their earliest finish; steps at random."""
        tables = {name: np.zeros((len(rows), len(WHOLE))) for name, rows in TABLES.items()}
        tables["order"][ORDER.index("b_level"), 0] = 1.0
        tables["place"][Place.FINISH, 0] = tables["move"][Place.FINISH, 0] = -1.0
        tables["walk"][0, 0] = np.log(0.003)
        return cls(tables, ("untrained",))

    @property
    def vector(self) -> Floats:
        """All weights in one row."""
        return np.concatenate([self.tables[name].ravel() for name in TABLES])

    def with_tables(self, tables: dict[str, Floats]) -> StepPolicyModel:
        """Return a policy with some tables replaced."""
        return StepPolicyModel({**self.tables, **tables}, self.provenance)

    def with_vector(self, vector: Floats, *notes: str) -> StepPolicyModel:
        """Return a policy with other weights, and more lines of provenance."""
        tables, at = {}, 0
        for name, rows in TABLES.items():
            size = len(rows) * len(WHOLE)
            tables[name] = vector[at : at + size].reshape(len(rows), len(WHOLE)).copy()
            at += size
        return StepPolicyModel(tables, (*self.provenance, *notes))

    def save(self, path: str | Path) -> Path:
        """Write the policy as JSON, in six digits."""
        data = {"format": FORMAT, "version": VERSION, "placeopt": __version__, "whole": list(WHOLE)} | {
            name: {row: [float(f"{x:.6g}") for x in values] for row, values in zip(rows, self.tables[name], strict=True)}
            for name, rows in TABLES.items()
        } | {"provenance": list(self.provenance)}  # fmt: skip
        return write_text(path, json.dumps(data, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> StepPolicyModel:
        """Read a policy file.

        Raises
        ------
        InputError
            If it is not a policy file, or its features are not those of this version.
        """
        data = read_json(path)
        if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
            raise InputError(f"policy '{path}': expected a file with \"format\": \"{FORMAT}\" and version {VERSION}")
        tables: dict[str, Any] = {}
        for name, rows in TABLES.items():
            table = data.get(name)
            if not isinstance(table, dict) or sorted(table) != sorted(rows):
                raise InputError(f"policy '{path}': \"{name}\" must give a row for each of {', '.join(rows)}")
            try:
                tables[name] = np.array([table[row] for row in rows], dtype=np.float64)
            except (TypeError, ValueError):
                raise InputError(f"policy '{path}': \"{name}\" must be a table of numbers") from None
        return cls(tables, tuple(str(line) for line in data.get("provenance", ())))


@cache
def pretrained() -> StepPolicyModel:
    """Return the policy that comes with the package."""
    return StepPolicyModel.load(PRETRAINED)


@dataclass(frozen=True, eq=False)
class GraphView:
    """What policies of placing steps read of a graph, whatever their weights.

    Attributes
    ----------
    whole : numbers of WHOLE. order : (num_ops, ORDER) features, by op. typical : mean ticks of an op with its transfers.
    """

    whole: Floats
    order: Floats
    cluster: NDArray[np.int64]
    work: Floats
    least: NDArray[np.int64]
    devices: int
    typical: float

    @classmethod
    def of(cls, ordered: OrderedProblem) -> GraphView:
        """Describe a problem."""
        problem, graph = ordered.problem, ordered.graph
        work = ordered.to_ops(graph.work)
        total = float(work.sum()) + 1e-300
        delay = float(graph.weight[problem.edge_tensor].sum()) if problem.num_edges else 0.0
        own = ordered.own[:, : len(ORDER)]
        path = max(1e-300, float(work[own[:, OWN.index("free_slack")] == 0].sum()))
        whole = np.array([
            1.0, delay / (delay + total), min(1.0, total / path / (2 * problem.num_devices)),
        ])  # fmt: skip
        return cls(whole, own, ordered.to_ops(graph.cluster), work, np.array(problem.min_compute, dtype=np.int64),
                   problem.num_devices, (total + delay) / problem.num_ops)  # fmt: skip

    def policy(self, model: StepPolicyModel) -> StepPolicy:
        """Return what the kernels take of a model on this graph."""
        said = {name: table @ self.whole for name, table in model.tables.items()}
        for name in ("place", "move"):
            said[name][:TIMES] /= self.typical
        return StepPolicy(
            place=said["place"], move=said["move"], pick=said["pick"], kind=said["kind"], kind_late=said["kind_late"],
            reach=np.exp(np.clip(said["log_reach"], -3.0, 3.0)), cluster=self.cluster,
            cluster_work=np.maximum(1e-9, np.bincount(self.cluster, self.work)), work=self.work,
            least=self.least, share=max(1e-9, float(self.work.sum()) / self.devices),
        )  # fmt: skip

    def heat(self, model: StepPolicyModel) -> float:
        """First temperature of accepting worse steps, as a share of the value."""
        return float(np.exp(np.clip(model.tables["walk"][0] @ self.whole, -12.0, -2.0)))

    def priority(self, model: StepPolicyModel) -> Floats:
        """Which ops are placed first: those with the largest number."""
        return np.asarray(self.order @ (model.tables["order"] @ self.whole))
