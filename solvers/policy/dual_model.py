"""The dual policy as data: its weights, its file, and the arrays that rolling it out on a problem needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.files import read_json, write_text
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.policy import rollout
from placeopt.solvers.policy.rollout import PLC_FEATURES, SEL_FEATURES, RolloutArrays, Weights
from placeopt.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from placeopt.model.problem import PlacementProblem

FORMAT, VERSION = "placeopt/dual-policy", 1
SCALINGS = ("graph", "candidates")
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
            sel[SEL_FEATURES.index("b_level")] = SHARPNESS
            plc[PLC_FEATURES.index("earliest_start")] = -SHARPNESS
        elif name == "eft":
            sel[SEL_FEATURES.index("b_level")] = SHARPNESS
            plc[PLC_FEATURES.index("earliest_finish")] = -SHARPNESS
        elif name != "scratch":
            raise InputError(f"dual policy: expected critical-path, eft or scratch, received '{name}'")
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


@dataclass(frozen=True, eq=False)
class Stage:
    """A problem prepared for rollouts; ops are renumbered in topological order.

    Attributes
    ----------
    order : op at each place of the topological order; column i of rollout arrays is op order[i].
    """

    problem: PlacementProblem
    arrays: RolloutArrays
    order: NDArray[np.int64]

    @classmethod
    def of(cls, problem: PlacementProblem) -> Stage:
        """Prepare a problem."""
        view = Context(problem)
        order = np.asarray(problem.topological_order)
        place = view.inverse(order)
        level, _ = view.upward_rank()
        mean = view.mean_compute
        delay = view.mean_transfer
        top = _t_level(problem, mean, delay)
        incoming, outgoing = np.zeros(problem.num_ops), np.zeros(problem.num_ops)
        pred_ptr, pred_op, pred_tensor = _renumber(problem.predecessors, order, place)
        succ_ptr, succ_op, succ_tensor = _renumber(problem.successors, order, place)
        if problem.num_tensors:
            np.add.at(incoming, problem.consumer, delay[problem.edge_tensor])
            np.add.at(outgoing, problem.producer, delay)
        degree = np.diff(problem.successors[0]).astype(np.float64)
        columns = [level, top, mean, incoming, outgoing, degree, np.zeros(problem.num_ops)]
        static = np.column_stack([column / max(1e-300, float(column.max())) for column in columns])[order]
        units = view.units
        return cls(
            problem,
            RolloutArrays(
                compute=problem.compute[order].astype(np.float64),
                transfer=problem.transfer.astype(np.float64),
                link_class=np.array(problem.link_class),
                pred_ptr=pred_ptr,
                pred_op=pred_op,
                pred_tensor=pred_tensor,
                succ_ptr=succ_ptr,
                succ_op=succ_op,
                succ_tensor=succ_tensor,
                weight=delay,
                sel_static=np.ascontiguousarray(static),
                horizon=max(1.0, float(level.max()) * 2, float(mean.sum()) / problem.num_devices * 2),
                unit=units.unit[order],
                unit_allowed=np.array(units.allowed),
                unit_bytes=units.bytes.astype(np.float64),
                capacity=problem.capacity.astype(np.float64),
            ),
            order,
        )

    def to_ops(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rollout rows (columns by topological place) with columns by op."""
        result = np.empty_like(rows)
        result[..., self.order] = rows
        return result

    def from_ops(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows by op with columns by topological place."""
        return np.ascontiguousarray(rows[..., self.order])


def _renumber(
    edges: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    order: NDArray[np.int64],
    place: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    pointer, op, tensor = edges
    counts = np.diff(pointer)[order]
    new = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    flat = np.concatenate([np.arange(pointer[v], pointer[v + 1]) for v in order]) if len(op) else np.zeros(0, np.int64)
    return new, place[op[flat]], tensor[flat]


def _t_level(problem: PlacementProblem, work: NDArray[np.float64], delay: NDArray[np.float64]) -> NDArray[np.float64]:
    """Longest path from a source to the start of each op, with mean costs."""
    pointer, source, tensor = problem.predecessors
    level = np.zeros(problem.num_ops)
    for v in problem.topological_order.tolist():
        here = slice(pointer[v], pointer[v + 1])
        if pointer[v + 1] > pointer[v]:
            level[v] = (level[source[here]] + work[source[here]] + delay[tensor[here]]).max()
    return level


def weights_of(
    model: DualPolicyModel,
    num_devices: int,
    *,
    sel_residual: NDArray[np.float64] | None = None,
    plc_residual: NDArray[np.float64] | None = None,
    temperature: float | None = None,
    sel_random: bool = True,
    plc_random: bool = True,
) -> Weights:
    """Return what the kernels take of a policy."""
    return Weights(
        np.array(model.sel), np.array(model.plc),
        np.zeros(0) if sel_residual is None else sel_residual,
        np.zeros((0, num_devices)) if plc_residual is None else plc_residual,
        model.temperature if temperature is None else temperature, sel_random, plc_random,
        model.sel_scaling == "candidates",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Episodes:
    """What a batch of episodes returns; ops are columns in the problem's own numbering.

    Attributes
    ----------
    sel, plc : d log-probability / d weights of each episode.
    sel_residual, plc_residual : the same for the residuals, in topological numbering; empty without residual.
    """

    devices: NDArray[np.int32]  # (batch, n)
    ranks: NDArray[np.int64]  # (batch, n)
    sel: NDArray[np.float64]  # (batch, SEL features)
    plc: NDArray[np.float64]  # (batch, PLC features)
    sel_residual: NDArray[np.float64]  # (batch, n) or (0, n)
    plc_residual: NDArray[np.float64]  # (batch, n, k) or (0, n, k)
    log_probability: NDArray[np.float64]  # (batch,)
    entropy: NDArray[np.float64]  # (batch,) summed over decisions


def roll(
    stage: Stage,
    weights: Weights,
    seeds: NDArray[np.uint64],
    mode: int = rollout.SAMPLE,
    devices: NDArray[Any] | None = None,
    ranks: NDArray[Any] | None = None,
) -> Episodes:
    """Run one episode per seed, on all cores; the result does not depend on how many there are.

    With mode REPLAY or REPLAY_TIES the given `devices` and `ranks` are repeated (ranks topological).
    """
    from placeopt.makespan.evaluate import parallel_slices

    n, k = stage.arrays.compute.shape
    batch = len(seeds)
    residual = weights.sel_residual.shape[0] > 0 or weights.plc_residual.shape[0] > 0
    device = np.zeros((batch, n), np.int32) if devices is None else stage.from_ops(devices).astype(np.int32)
    rank = np.zeros((batch, n), np.int64) if ranks is None else stage.from_ops(ranks).astype(np.int64)
    sel, plc = np.zeros((batch, len(SEL_FEATURES))), np.zeros((batch, len(PLC_FEATURES)))
    rows = batch if residual else 0
    sel_residual, plc_residual = np.zeros((rows, n)), np.zeros((rows, n, k))
    out = np.zeros((batch, 2))

    def run(part: slice) -> None:
        inner = part if residual else slice(0, 0)
        rollout.episodes(
            stage.arrays, weights, seeds[part], mode, device[part], rank[part], sel[part], plc[part],
            sel_residual[inner], plc_residual[inner], out[part],
        )  # fmt: skip

    parallel_slices(run, batch, batch * n * 20)
    return Episodes(
        stage.to_ops(device), stage.to_ops(rank), sel, plc, sel_residual, plc_residual, out[:, 0], out[:, 1]
    )
