"""A model cut into stages: made from a source, told as a table, written as a placement file with
stages.

The file is a placement of the graph as it was read ("device" by op), with "stage" by op beside it:
what every command that takes a placement reads, and what the export to torch.distributed.pipelining
cuts by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.instances.clusters import make_cluster
from placeopt.instances.sources import load, load_graph, with_costs
from placeopt.instances.training import training_graph
from placeopt.io.placement_file import write_placement
from placeopt.model.errors import InputError, check_choice
from placeopt.model.placement import Placement
from placeopt.schedules.cuts import SHAPES, Cut, cut_model, with_memory
from placeopt.schedules.from_model import join_passes, stage_of_ops
from placeopt.schedules.placed_model import ALL
from placeopt.schedules.shapes import check_mode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from placeopt.model.cluster import Cluster
    from placeopt.model.problem import PlacementProblem


@dataclass(frozen=True)
class StageRow:
    """One stage of a cut.

    Attributes
    ----------
    device : name, "all" for a tensor-parallel stage.
    first, last : names of its first and last forward op in topological order; `num_ops` of them.
    forward, backward : ticks of its passes of one micro-batch, recomputation included.
    resident : bytes of weights, and when training of gradients and optimizer state.
    activations : bytes that one micro-batch holds from the forward to the backward pass.
    """

    stage: int
    device: str
    first: str
    last: str
    num_ops: int
    forward: int
    backward: int
    resident: int
    activations: int


@dataclass(frozen=True, eq=False)
class ModelCut:
    """A cut and what was cut.

    Attributes
    ----------
    read : the graph as it was read, without the backward ops that were derived, on the devices of
    the cut.
    costs : how measured times are known, "" where there are none.
    """

    cut: Cut
    read: PlacementProblem
    costs: str = ""

    def rows(self, *, mode: str, recompute: bool = False, split: bool = False) -> list[StageRow]:
        """Return the stages, in order; for X those of one direction."""
        placed, one = (
            self.cut.placed,
            self.cut.one_direction(mode=mode, recompute=recompute, split=split),
        )
        stage, homes = stage_of_ops(placed, self.cut.device, self.cut.parts)
        position = np.empty(placed.num_ops, np.int64)
        position[placed.topological_order] = np.arange(placed.num_ops)
        held = np.maximum(one.memory, 0).sum(axis=1)
        forward = np.array([kind == "F" for kind in one.kind])
        rows = []
        for number, home in enumerate(homes):
            ops = np.flatnonzero((stage == number) & ~placed.backward)
            ops = ops[np.argsort(position[ops])]
            blocks = one.stage == number
            rows.append(
                StageRow(
                    number,
                    "all" if home == ALL else placed.device_names[home],
                    placed.op_names[ops[0]],
                    placed.op_names[ops[-1]],
                    len(ops),
                    int(one.span[blocks & forward].sum()),
                    int(one.span[blocks & ~forward].sum()),
                    int(placed.resident[stage == number].sum()),
                    int(held[blocks].sum()),
                )
            )
        return rows

    @property
    def resident(self) -> list[int]:
        """Bytes that stay on every device: those of its stages, and its share of tensor-parallel
        ones.

        With X the opposite device has a copy of each.
        """
        placed, device = self.cut.placed, self.cut.device
        spread = int(placed.resident[device == ALL].sum())
        own = [
            int(placed.resident[device == d].sum()) - (-spread // placed.num_devices)
            for d in range(placed.num_devices)
        ]
        return (
            [a + b for a, b in zip(own, own[::-1], strict=True)] if self.cut.shape == "X" else own
        )

    def write(self, path: Path) -> Path:
        """Write the device and the stage of every op of the model as it was read.

        Raises
        ------
        InputError
            If ops run on all devices: no placement can say that.
        """
        if (self.cut.device == ALL).any():
            raise InputError(
                "ops that run on all devices at once (tensor-parallel) are in no placement"
            )
        count = self.read.num_ops  # ops keep their numbers when the backward pass is derived
        stage = stage_of_ops(self.cut.placed, self.cut.device, self.cut.parts)[0]
        told = stage[:count].tolist() if (stage[:count] >= 0).all() else None
        return write_placement(path, self.read, Placement(self.cut.device[:count]), stage=told)


def cut_source(
    source: Any,
    cluster: Any,
    *,
    shape: str = "V",
    mode: str = "train",
    memory: Sequence[int] | None = None,
    seconds: float = 10.0,
    costs: Any = None,
    **options: Any,
) -> ModelCut:
    """Return a model cut for a shape by the period DP.

    Parameters
    ----------
    source, cluster, options : as for `placeopt.load`; the backward graph is derived for
    mode="train" if it is missing.
    memory : bytes of each device instead of the cluster's.
    seconds : time limit of the DP. costs : a cost file or a trace.

    Raises
    ------
    InputError
        If the model has no such shape, or does not fit.
    """
    check_mode(mode)
    check_choice("shapes", shape, SHAPES)
    graph, bundled = load_graph(source, **options)
    devices = bundled if cluster is None else make_cluster(cluster)
    if devices is None:
        raise InputError(
            f"graph '{graph.name}' needs devices: give --cluster 4xA100 or another ('placeopt "
            "clusters')"
        )
    if memory is not None:
        devices = with_memory(devices, _for_each(devices, memory))
    words = ""
    if costs is not None:
        graph, words = with_costs(graph, devices, costs)
    whole = training_graph(graph) if mode == "train" and not graph.backward.any() else graph
    cut = cut_model(shape, devices.num_devices, join_passes(whole), devices, mode, seconds)
    return ModelCut(cut, load(graph, devices, objective="period"), words)


def _for_each(devices: Cluster, memory: Sequence[int]) -> list[int]:
    """Return the bytes of each device, from one number for all or one for each."""
    if len(memory) not in (1, devices.num_devices):
        raise InputError(
            f"memory: expected one number of bytes, or one for each of {devices.num_devices} "
            f"devices, received {len(memory)}"
        )
    return list(memory) * (devices.num_devices if len(memory) == 1 else 1)
