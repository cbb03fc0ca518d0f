"""JobProfile: what one training step of a model costs, op by op, as a job stream needs it.

References
----------
C. W. F. Parsonson, Z. Shabka, A. Ottino, G. Zervas, "Partitioning distributed compute jobs with
reinforcement learning and graph neural networks" (PAC-ML), 2023.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from placeopt.instances.readers.pipedream import PipedreamProfile, read_pipedream
from placeopt.model.arrays import (
    ArrayHolder,
    Floats,
    Ints,
    as_pairs,
    by_number,
    frozen,
    int_array,
    place_in,
    together,
)
from placeopt.model.cluster import Device
from placeopt.model.errors import InputError
from placeopt.model.files import is_file
from placeopt.model.graph import OpGraph

PAC_ML_MODELS = ("alexnet", "resnet18", "squeezenet1_0", "vgg16", "gnmt")
"""The five models of PAC-ML (Parsonson et al. 2023), measured by PipeDream."""


@dataclass(frozen=True, eq=False)
class JobProfile(ArrayHolder):
    """Forward ops 0..V-1 of a model; op v has a backward op with the mirrored edges.

    Ops are numbered by id; `order` is the breadth-first topological order in which ops are placed,
    `split_rank` the order in which they are split (that of the lines of the file, ids by default),
    which decides whose bytes an edge between two split ops carries.
    """

    name: str
    forward: Floats  # (V,) seconds
    backward: Floats  # (V,) seconds
    memory: Floats  # (V,) bytes: activation + parameters, of either copy
    edges: Ints  # (E, 2) source, target
    split_rank: Ints | None = None  # (V,)

    def __post_init__(self) -> None:
        size = len(self.forward)
        if size == 0:
            raise InputError(f"job type '{self.name}': expected at least one op, received none")
        for key in ("forward", "backward", "memory"):
            object.__setattr__(self, key, self._amounts(key, size))
        edges = int_array(self.edges, (len(self.edges), 2), f"job type '{self.name}': edges")
        if edges.size and (edges.min() < 0 or edges.max() >= size):
            raise InputError(f"job type '{self.name}': an edge names an op outside 0..{size - 1}")
        object.__setattr__(self, "edges", edges)
        rank = np.arange(size) if self.split_rank is None else np.asarray(self.split_rank)
        if sorted(rank.tolist()) != list(range(size)):
            raise InputError(
                f"job type '{self.name}': split_rank must be a permutation of 0..{size - 1}"
            )
        object.__setattr__(self, "split_rank", frozen(rank.astype(np.int64)))
        if not self.sequential > 0:
            raise InputError(
                f"job type '{self.name}': all ops take no time, so that no deadline can be set"
            )
        if len(self.order) != size:
            raise InputError(f"job type '{self.name}': the edges form a cycle")

    def _amounts(self, key: str, size: int) -> Floats:
        """Return a column of times or bytes, checked and read-only."""
        array = np.array(getattr(self, key), np.float64)
        if array.shape != (size,):
            raise InputError(
                f"job type '{self.name}': {key} must have {size} values, received {array.shape}"
            )
        wrong = ~np.isfinite(array) | (array < 0)
        if wrong.any():
            bad = int(np.argmax(wrong))
            raise InputError(
                f"job type '{self.name}': {key}[{bad}] must be a number >= 0, received {array[bad]}"
            )
        return frozen(array)

    @property
    def num_ops(self) -> int:
        """Number of forward ops."""
        return len(self.forward)

    @property
    def rank(self) -> Ints:
        """(V,) position of each op in the order of splitting."""
        assert self.split_rank is not None
        return self.split_rank

    @cached_property
    def sequential(self) -> float:
        """Seconds of one training step on one server."""
        return float(self.forward.sum() + self.backward.sum())

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """Parents of each op, in the order of the edges."""
        return self._neighbours(0)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each op, in the order of the edges."""
        return self._neighbours(1)

    def _neighbours(self, column: int) -> tuple[tuple[int, ...], ...]:
        ends = ((edge[1 - column], edge[column]) for edge in self.edges.tolist())
        return tuple(map(tuple, by_number(self.num_ops, ends)))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Breadth-first topological order (shorter than the ops if there is a cycle)."""
        missing = [len(parents) for parents in self.parents]
        sequence = [op for op in range(self.num_ops) if missing[op] == 0]
        for op in sequence:
            for child in self.children[op]:
                missing[child] -= 1
                if missing[child] == 0:
                    sequence.append(child)
        return tuple(sequence)

    @cached_property
    def hash(self) -> str:
        """Digest of everything that a step time depends on (not of the name)."""
        digest = hashlib.sha256()
        for array in (self.forward, self.backward, self.memory, self.edges, self.rank):
            digest.update(str(array.shape).encode())
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def without_input(self) -> JobProfile:
        """Return the profile with the ops that load data (no parent, no backward time) made
        free.
        """
        source = np.array([not parents for parents in self.parents]) & (self.backward == 0)
        return replace(self, forward=np.where(source, 0.0, self.forward))

    @classmethod
    def from_pipedream(cls, profile: PipedreamProfile) -> JobProfile:
        """Return the job type of a PipeDream profile (milliseconds become seconds).

        Raises
        ------
        InputError
            If the ids are not 1..V: mirroring op i to 2V + 1 - i needs that.
        """
        ids = [node.node_id for node in profile.nodes]
        if ids != list(range(1, len(ids) + 1)):
            raise InputError(
                f"job type '{profile.name}': node ids must be 1..{len(ids)}, received "
                f"{ids[0]}..{ids[-1]}"
            )
        rank = np.argsort(np.array(profile.file_order or ids, np.int64) - 1)
        return cls(
            profile.name,
            np.array([node.forward for node in profile.nodes]) / 1e3,
            np.array([node.backward for node in profile.nodes]) / 1e3,
            np.array([node.activation + node.parameters for node in profile.nodes]),
            as_pairs(profile.edges) - 1,
            rank,
        )

    @classmethod
    def from_graph(
        cls,
        graph: OpGraph,
        *,
        device: Device | None = None,
        backward_ratio: float = 2.0,
        name: str | None = None,
    ) -> JobProfile:
        """Return the job type of any forward graph.

        Parameters
        ----------
        graph : backward ops are dropped, because the model mirrors the forward graph.
        device : what the servers are made of; the cost model prices the ops on it, measured times
        first. None takes
            the first column of measured times.
        backward_ratio : time of a backward op relative to its forward op.

        Raises
        ------
        InputError
            If an op has no time.
        """
        name = graph.name if name is None else name
        if not (np.isfinite(backward_ratio) and backward_ratio >= 0):
            raise InputError(
                f"job type '{name}': backward_ratio must be a number >= 0, received "
                f"{backward_ratio}"
            )
        keep = np.flatnonzero(~graph.backward)
        times = _op_ticks(graph, keep, device, name)
        position = place_in(keep, graph.num_ops)
        source, target = position[graph.producer], position[graph.consumer]
        memory = graph.resident[keep].astype(np.float64)
        np.add.at(memory, source[source >= 0], graph.tensor_bytes[source >= 0])
        ends = together(source[graph.edge_tensor], target)
        pairs = dict.fromkeys(pair for pair in ends if min(pair) >= 0)
        forward = times.astype(np.float64) * graph.tick_seconds
        edges = as_pairs(list(pairs))
        return cls(name, forward, forward * backward_ratio, memory, edges)


def _op_ticks(graph: OpGraph, ops: Ints, device: Device | None, name: str) -> Ints:
    """Return the ticks of some ops on a device; without one, those of the first that was
    measured.
    """
    if device is not None:
        from placeopt.model.cost_model import op_ticks

        times, where = op_ticks(graph, device)[ops], device.kind
    elif (graph.measured[ops] > 0).any():
        times, where = graph.measured[ops, 0], graph.measured_kinds[0]
    else:
        raise InputError(
            f"job type '{name}': the graph has no measured times; name a device, such as A100"
        )
    if (times < 0).any():
        op = graph.op_names[int(ops[int(np.argmax(times < 0))])]
        raise InputError(f"job type '{name}': op '{op}' has no time on '{where}'")
    return times


def load_profiles(
    folder: str | Path | None,
    models: Sequence[str] = PAC_ML_MODELS,
    *,
    zero_input: bool = False,
    device: str | None = None,
    backward_ratio: float = 2.0,
) -> tuple[JobProfile, ...]:
    """Return the job types of a stream.

    Parameters
    ----------
    folder : where files are; None where no model is a file.
    models : NAME for the PipeDream profile ``NAME.txt`` of the folder; the name of any other file
    of the folder, with
        its suffix; ``gen:NAME?...`` or ``onnx:NAME``. The text becomes the name of the job type.
    zero_input : make the ops that load data free (PipeDream profiles).
    device : kind of device of the servers, such as A100; needed for graphs without measured times.
    backward_ratio : of graphs other than PipeDream profiles, which have measured backward times.

    Raises
    ------
    InputError
        If the folder or a model does not exist, or a file cannot be read.
    """
    root = None if folder is None else Path(folder)
    if root is not None and not root.is_dir():
        raise InputError(
            f"profiles '{folder}': no such folder; give the folder of the PipeDream profiles by "
            "--profiles"
        )
    return tuple(_profile(root, model, zero_input, device, backward_ratio) for model in models)


def _profile(
    folder: Path | None, model: str, zero_input: bool, device: str | None, backward_ratio: float
) -> JobProfile:
    """Return one job type; see `load_profiles`."""
    source = model
    if not model.startswith(("gen:", "onnx:")):
        if folder is None:
            raise InputError(
                "a job stream needs measured profiles: give their folder by --profiles DIR"
            )
        path = folder / f"{model}.txt"
        if is_file(path):
            profile = replace(JobProfile.from_pipedream(read_pipedream(path)), name=model)
            return profile.without_input() if zero_input else profile
        if not is_file(folder / model):
            known = sorted(p.stem for p in folder.glob("*.txt") if "license" not in p.stem.lower())
            raise InputError(
                f"model '{model}' is not among the profiles in '{folder}'; known: "
                f"{', '.join(known) or 'none'}"
            )
        source = str(folder / model)
    from placeopt.instances.sources import load_graph

    graph, _ = load_graph(source)
    kind = None
    if device is not None:
        from placeopt.instances.clusters import make_cluster

        kind = make_cluster(f"1x{device}").devices[0]
    return JobProfile.from_graph(graph, device=kind, backward_ratio=backward_ratio, name=model)
