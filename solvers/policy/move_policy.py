"""A policy of moves as data: how often a walk tries each kind of move, and how warm it is, on a
graph and as the walk goes on.

The kinds are those of annealing (`walk_kernels.MOVES`). Each gets a score, linear in what is said
of the whole graph (`WHOLE`), to which something is added as the walk goes on; a move is drawn by
the softmax of the scores. The temperature falls geometrically between two values that depend on the
graph likewise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.policy.policy_file import PolicyFile
from placeopt.solvers.search.walk_kernels import MOVES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.solvers.search.search_space import SearchSpace

    Floats = NDArray[np.float64]

WHOLE = ("one", "communication", "parallelism")
"""What is said of the whole graph: communication as a part of all time, work over the longest path
and the devices."""

PRETRAINED = Path(__file__).resolve().parent / "pretrained_moves.json"
"""What training on families of generated graphs left, which may be what it began from: see
results/policy/pretrain.py."""

TABLES = {"kind": MOVES, "kind_late": MOVES, "walk": ("log_heat", "log_cooling")}
"""Names of the rows of every table; each row has a number for each of WHOLE."""

MOST = 6.0
"""Largest score of a kind of move, either way, so that none takes all."""

HOTTEST, COLDEST = 0.1, 1e-7
"""Bounds of temperatures, as shares of the mean work of a device."""


@dataclass(frozen=True, eq=False)
class MovePolicy(PolicyFile):
    """Weights of a policy of moves.

    Attributes
    ----------
    tables : of each of TABLES, an array of shape (rows, len(WHOLE)).
    provenance : what it was trained on.
    """

    format: ClassVar[str] = "placeopt/move-policy"
    version: ClassVar[int] = 1

    tables: dict[str, Floats]
    provenance: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name, rows in TABLES.items():
            array = np.array(self.tables.get(name, ()), dtype=np.float64)
            if array.shape != (len(rows), len(WHOLE)) or not np.isfinite(array).all():
                expected = f"finite numbers of shape {(len(rows), len(WHOLE))}"
                raise InputError(
                    f"move policy: {name} must be {expected}, received shape {array.shape}"
                )
            array.setflags(write=False)
            self.tables[name] = array

    @classmethod
    def untrained(cls, *likely: str) -> MovePolicy:
        """Return the policy before any training: all kinds of moves alike, those named ten times as
        often as the others.
        """
        tables = {name: np.zeros((len(rows), len(WHOLE))) for name, rows in TABLES.items()}
        tables["kind"][[MOVES.index(name) for name in likely], 0] = np.log(10.0)
        tables["walk"][:, 0] = np.log(0.001), np.log(0.01)
        return cls(tables, (" and ".join(("untrained", *likely)),))

    @property
    def vector(self) -> Floats:
        """All weights in one row."""
        return np.concatenate([self.tables[name].ravel() for name in TABLES])

    def with_vector(self, vector: Floats, *notes: str) -> MovePolicy:
        """Return a policy with other weights, and more lines of provenance."""
        tables, at = {}, 0
        for name, rows in TABLES.items():
            size = len(rows) * len(WHOLE)
            tables[name] = vector[at : at + size].reshape(len(rows), len(WHOLE)).copy()
            at += size
        return MovePolicy(tables, (*self.provenance, *notes))

    def chances(self, whole: Floats, progress: float) -> Floats:
        """Return the probability of each kind of move on a graph, when a walk has come so far, in
        [0, 1].
        """
        score = np.clip(
            (self.tables["kind"] + progress * self.tables["kind_late"]) @ whole, -MOST, MOST
        )
        mass = np.exp(score - score.max())
        return np.asarray(mass / mass.sum())

    def heats(self, whole: Floats) -> tuple[float, float]:
        """Return the first and the last temperature, as shares of the mean work of a device."""
        heat, cooling = (self.tables["walk"] @ whole).tolist()
        hot, cold = np.clip(
            np.exp(np.clip([heat, heat + cooling], -30.0, 0.0)), COLDEST, HOTTEST
        ).tolist()
        return hot, min(hot, cold)

    def content(self) -> dict[str, Any]:
        """Return the policy as JSON, in six digits."""
        return (
            {"whole": list(WHOLE)}
            | {
                name: {
                    row: [float(f"{x:.6g}") for x in values]
                    for row, values in zip(rows, self.tables[name], strict=True)
                }
                for name, rows in TABLES.items()
            }
            | {"provenance": list(self.provenance)}
        )

    @classmethod
    def from_content(cls, data: Any, path: str | Path) -> MovePolicy:
        """Return the policy of a file's JSON; see `PolicyFile`."""
        if (
            not isinstance(data, dict)
            or data.get("format") != cls.format
            or data.get("version") != cls.version
        ):
            raise InputError(
                f'policy \'{path}\': expected a file with "format": "{cls.format}" and version '
                f"{cls.version}"
            )
        tables: dict[str, Any] = {}
        for name, rows in TABLES.items():
            table = data.get(name)
            if not isinstance(table, dict) or sorted(table) != sorted(rows):
                raise InputError(
                    f"policy '{path}': \"{name}\" must give a row for each of {', '.join(rows)}"
                )
            try:
                tables[name] = np.array([table[row] for row in rows], dtype=np.float64)
            except (TypeError, ValueError):
                raise InputError(
                    f"policy '{path}': \"{name}\" must be a table of numbers"
                ) from None
        return cls(tables, tuple(str(line) for line in data.get("provenance", ())))


@cache
def pretrained() -> MovePolicy:
    """Return the policy that comes with the package."""
    return MovePolicy.load(PRETRAINED)


def said_of(space: SearchSpace) -> Floats:
    """Return the numbers of WHOLE of a problem."""
    problem, context = space.problem, space.context
    total = float(context.mean_compute.sum()) + 1e-300
    delay = float(context.mean_transfer[problem.edge_tensor].sum()) if problem.num_edges else 0.0
    path = max(1e-300, float(context.upward_rank(communication=False)[0].max()))
    return np.array(
        [1.0, delay / (delay + total), min(1.0, total / path / (2 * problem.num_devices))]
    )
