"""SplitProblem: stages of a pipeline with replicated stages, groups of devices, and overlapped
communication; and the JSON of problems and splits (`placeopt.io.serialize`).

Three extensions of the period of a placement (`placeopt.period.evaluate`), each of which a split of
ops over single devices cannot say. A split is a chain of stages S; every op lies in one, every
forward edge stays or leads to a later stage. With work(S) the ticks of its ops, moved(S) those of
its tensors to and from other stages, and sync(S) those to send its weights once,

- replication: r devices of one type that all hold the stage's weights take turns with the samples;
      load(S, r) = ceil((work + moved) / r) + ceil(2 (r - 1) sync / r),
  the last term being the ring all-reduce of its gradients (0 for inference);
- overlap: communication runs beside computation;
      load(S, r) = max(ceil(work / r), ceil(moved / r) + ceil(2 (r - 1) sync / r));
- hierarchy: the devices of the most numerous type form h equal groups, others are not used; a
  tensor that crosses the border of a group also occupies the group's uplink, once for each group
  that it leaves or enters.

The period is the largest load of a stage and of an uplink.

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 5 and appendix (replication,
hierarchy, communication overlapped).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from placeopt.io.body import Body, plain
from placeopt.io.serialize import Codec, from_dict, register, to_dict
from placeopt.model.arrays import (
    MAX_SUM,
    ArrayHolder,
    Ints,
    as_array,
    check_count,
    int_array,
    tells_types,
)
from placeopt.model.errors import InputError
from placeopt.model.objective import check_objective
from placeopt.model.problem import PlacementProblem
from placeopt.model.shown import Shown
from placeopt.period.contracted import device_types


def _of_placement(name: str, meaning: str) -> Any:
    """Return a property of a split problem that is its placement problem's."""
    return property(lambda problem: getattr(problem.placement, name), doc=meaning)


@dataclass(frozen=True, eq=False, repr=False)
class SplitProblem(ArrayHolder):
    """Split the ops of a placement problem into stages, each on one or several devices.

    Attributes
    ----------
    placement : ops, tensors and devices, taken as a problem of the period with contiguity "chain"
    and pipeline "1f1b".
    max_replicas : largest number of devices of a stage.
    groups : number of equal groups of devices, 1 for none.
    overlap : whether communication runs beside computation.
    name : the placement's, and what is asked for, unless given.
    """

    placement: PlacementProblem
    max_replicas: int = 1
    groups: int = 1
    overlap: bool = False
    # (num_ops,) ticks to send an op's weights once; default 0
    sync: Ints = None  # type: ignore[assignment]
    # (num_tensors,) ticks on an uplink; default: between devices
    uplink: Ints = None  # type: ignore[assignment]
    objective: str = "period"
    name: str = ""

    problem_kind: ClassVar[str] = "split"

    def shown(self) -> dict[str, str]:
        """Return the name, which says what is asked for."""
        return {"": f"'{self.name}'", "ops": str(self.placement.num_ops)}

    def __post_init__(self) -> None:
        where = f"split of '{self.placement.name}'"
        check_objective(self, where)
        for key, expected in (("pipeline", "1f1b"), ("memory", "static")):
            received = getattr(self.placement, key)
            if received != expected:
                raise InputError(f"{where}: expected {key}='{expected}', received '{received}'")
        base = self.placement.replace(objective=self.objective, contiguity="chain")
        object.__setattr__(self, "placement", base)
        for key in ("max_replicas", "groups"):
            check_count(f"{where}: {key}", getattr(self, key))
        if not isinstance(self.overlap, bool | np.bool_):
            raise InputError(
                f"{where}: overlap: expected True or False, received {self.overlap!r:.40}"
            )
        object.__setattr__(self, "name", self.name or self._title())
        # replicas send their weights up to twice, which is reckoned before it is divided by them
        sent = 2 * min(self.max_replicas, base.num_devices)
        for key, size, default, times in (
            ("sync", base.num_ops, np.zeros(base.num_ops, np.int64), sent),
            ("uplink", base.num_tensors, base.transfer.max(axis=1, initial=0), 1),
        ):
            value = default if getattr(self, key) is None else getattr(self, key)
            array = int_array(value, (size,), f"{where}: {key}")
            if array.size and array.min() < 0:
                raise InputError(
                    f"{where}: {key}: expected ticks of at least 0, received {int(array.min())}"
                )
            if times * float(array.sum(dtype=np.float64)) >= MAX_SUM:
                raise InputError(f"{where}: {key}: the sum passes 2^62; use a larger tick_seconds")
            object.__setattr__(self, key, array)
        usable = len(self.usable_devices)
        if usable % self.groups:
            raise InputError(
                f"{where}: groups: expected a divisor of {usable} devices, received {self.groups}"
            )

    def _title(self) -> str:
        """Name of the graph and of what is asked for."""
        words = [f"up to {self.max_replicas} replicas"] if self.max_replicas > 1 else []
        words += [f"{self.groups} groups"] if self.groups > 1 else []
        words += ["overlapped"] if self.overlap else []
        return ", ".join([self.placement.name, *words])

    tick_seconds = _of_placement("tick_seconds", "Seconds per tick.")
    num_ops = _of_placement("num_ops", "Number of ops.")
    num_edges = _of_placement("num_edges", "Number of edges.")
    num_devices = _of_placement(
        "num_devices", "Number of devices, those that groups leave out counted."
    )

    @cached_property
    def types(self) -> tuple[tuple[int, ...], ...]:
        """Devices of each type: equal times, costs of transfers, and capacity, and either all CPUs
        or none: replicas share a type.
        """
        return device_types(self.placement)

    @cached_property
    def usable_devices(self) -> tuple[int, ...]:
        """Devices that a split may use: with groups those of the most numerous type."""
        if self.groups == 1:
            return tuple(range(self.placement.num_devices))
        return max(self.types, key=len)

    @cached_property
    def group_of(self) -> dict[int, int]:
        """Group of every usable device; groups are of consecutive ones."""
        size = len(self.usable_devices) // self.groups
        return {device: at // size for at, device in enumerate(self.usable_devices)}

    @cached_property
    def hash(self) -> str:
        """Digest of everything that decides values."""
        digest = hashlib.sha256(
            f"{self.placement.hash}{self.max_replicas},{self.groups},{self.overlap}".encode()
        )
        for array in (self.sync, self.uplink):
            digest.update(array.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class SplitStage:
    """One stage: its ops, and the devices that hold it (several are replicas)."""

    ops: tuple[int, ...]
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        for key in ("ops", "devices"):
            given = as_array(getattr(self, key), f"stage: {key}")
            whole = int_array(given, (given.size,), f"stage: {key}")
            object.__setattr__(self, key, tuple(whole.tolist()))


@tells_types
@dataclass(frozen=True, repr=False)
class Split(Shown):
    """A chain of stages, first to last."""

    stages: tuple[SplitStage, ...]

    def shown(self) -> dict[str, str]:
        """Return the stages by ops and devices."""
        stages = (f"{len(x.ops)} ops on {len(x.devices)} devices" for x in self.stages[:8])
        rest = ", ..." if len(self.stages) > 8 else ""
        return {"of": f"{len(self.stages)} stages", "with": "; ".join(stages) + rest}

    def __post_init__(self) -> None:
        stages = tuple(self.stages)
        if not all(isinstance(stage, SplitStage) for stage in stages):
            raise InputError("split: expected a list of stages with ops and devices")
        object.__setattr__(self, "stages", stages)


def _encode_problem(problem: SplitProblem) -> dict[str, Any]:
    return {
        "name": problem.name,
        **plain(problem, "max_replicas", "groups", "overlap", "sync", "uplink"),
        "placement": to_dict(problem.placement),
    }


def _decode_problem(body: Body) -> SplitProblem:
    placement = from_dict(body.get("placement"), "problem", f'{body.where}: "placement"')
    return body.made(SplitProblem, but=("placement", "objective"), placement=placement)


def _encode_split(split: Split) -> dict[str, Any]:
    return {
        "stages": [
            {"ops": list(stage.ops), "devices": list(stage.devices)} for stage in split.stages
        ]
    }


def _decode_split(body: Body) -> Split:
    return Split(tuple(item.made(SplitStage) for item in body.bodies("stages")))


register(Codec("split", SplitProblem, _encode_problem, _decode_problem))
register(Codec("split-stages", Split, _encode_split, _decode_split))
