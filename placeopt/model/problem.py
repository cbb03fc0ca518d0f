"""PlacementProblem: ops with integer costs on devices, ready for evaluators, bounds and solvers.

Time is int64 ticks, memory int64 bytes. Execution and objectives are described in docs/concepts.md:
a tensor is sent at most once to each device that hosts a consumer and is not its producer's device;
a device runs one op at a time; a channel carries one transfer at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from placeopt.model.arrays import (
    MAX_SUM,
    UNLIMITED,
    Flags,
    Ints,
    arrays_digest,
    as_array,
    check_count,
    check_positive,
    columns_of,
    fastest,
    flags,
    frozen,
    ints,
    names,
    numbered,
    own_links,
    settle,
    unique_columns,
    value_ranks,
)
from placeopt.model.errors import InputError, check_choice
from placeopt.model.graph import SharedTensors
from placeopt.model.objective import objective_names
from placeopt.model.projection import (
    CostArrays,
    Edges,
    GraphArrays,
    MemoryArrays,
    Outputs,
    Units,
    edges_by,
    group_units,
    grouped,
    unit_of_ops,
)

CONTIGUITY = ("chain", "convex", "none")
PIPELINES = ("1f1b", "gpipe")
MEMORY = ("static", "peak")
INCOMPATIBLE = -1
"""Entry of `compute` for an op that cannot run on a device."""


@dataclass(frozen=True, eq=False)
class PlacementProblem(SharedTensors):
    """Place n ops on k devices; m tensors travel over c link classes.

    Attributes
    ----------
    compute : ticks of each op on each device, -1 where incompatible.
    producer, consumer_ptr, consumer : tensors and their distinct consumers (CSR).
    transfer : ticks of each tensor over each link class.
    link_class : link class of each ordered pair of devices (diagonal ignored).
    channel : channel of each ordered pair of devices, -1 for no contention.
    resident : bytes that stay on the op's device; `capacity` : bytes of each device.
    memory : "static" bounds the resident bytes, "peak" the dynamic peak (resident plus live
    tensors).
    tensor_bytes : size of each tensor, used by memory="peak".
    colocation : ops with the same non-negative id share a device.
    objective : "makespan" (one run), "period" (max-load of a pipeline), "latency" (slots).
    contiguity, pipeline, backward, io_class, slots : the period and latency objectives only:
        contiguity of each device's forward set; "1f1b" or "gpipe" for training; which ops are
        backward ops; the link class over which a device exchanges tensors with host memory, -1
        where that is free (a CPU); convex slots per accelerator (latency).
    meta : label of the sharded op that an op is a piece of, -1 for none.
    """

    name: str
    compute: Ints = ints("ops", "devices")  # ticks
    producer: Ints = ints("tensors")
    consumer_ptr: Ints = ints("bounds")
    consumer: Ints = ints("edges")
    transfer: Ints = ints("tensors", "classes", low=0)  # ticks
    link_class: Ints = ints("devices", "devices", default=0)
    channel: Ints = ints(
        *("devices", "devices"), default=-1, low=-1, expected="ids >= 0, or -1 for no contention"
    )
    resident: Ints = ints("ops", default=0, low=0)  # bytes
    capacity: Ints = ints("devices", default=UNLIMITED, low=0)  # bytes
    colocation: Ints = ints("ops", default=-1)
    tensor_bytes: Ints = ints("tensors", default=0, low=0)
    memory: str = "static"
    tick_seconds: float = 1e-9
    objective: str = "makespan"
    contiguity: str = "chain"
    pipeline: str = "1f1b"
    backward: Flags = flags("ops")
    io_class: Ints = ints("devices", default=0, low=-1)  # link class or -1
    slots: int = 1
    meta: Ints = ints("ops", default=-1, low=-1)
    op_names: tuple[str, ...] = names("ops", "op")
    op_types: tuple[str, ...] = names("ops")
    device_names: tuple[str, ...] = names("devices", "device")

    problem_kind: ClassVar[str] = "placement"

    def __post_init__(self) -> None:
        compute = as_array(self.compute, "compute")
        if compute.ndim != 2:
            raise InputError(
                f"compute: expected a table (ops x devices), received {compute.ndim} dimension(s)"
            )
        for count, what in zip(compute.shape, ("op", "device"), strict=True):
            if count == 0:
                raise InputError(f"compute: expected at least one {what}, received none")
        m = len(np.asarray(self.producer))
        transfer = as_array(self.transfer, "transfer")
        if transfer.ndim == 1:
            transfer = transfer.reshape(-1, 1)
        object.__setattr__(self, "transfer", transfer)
        settle(
            self,
            ops=compute.shape[0],
            devices=compute.shape[1],
            tensors=m,
            bounds=m + 1,
            edges=len(np.asarray(self.consumer)),
            classes=transfer.shape[1] if transfer.ndim == 2 else 1,
        )
        self._check_words()
        self._check_times()
        self._check_links(self.transfer.shape[1])
        self.check_tensors()

    def _check_words(self) -> None:
        if not isinstance(self.name, str):
            raise InputError(f"name: expected a text, received {self.name!r:.40}")
        tick = check_positive("tick_seconds", self.tick_seconds)
        object.__setattr__(self, "tick_seconds", tick)  # its text is part of hashes and files
        for key, options in (
            ("memory", MEMORY),
            ("objective", objective_names(self.problem_kind)),
            ("contiguity", CONTIGUITY),
            ("pipeline", PIPELINES),
        ):
            check_choice(key, getattr(self, key), options)
            object.__setattr__(self, key, str(getattr(self, key)))
        check_count("slots", self.slots)
        object.__setattr__(self, "slots", min(int(self.slots), self.num_ops))  # each holds an op

    def _check_times(self) -> None:
        """Refuse ops that run nowhere, and sums that int64 cannot hold."""
        if (self.compute < INCOMPATIBLE).any():
            op, device = (int(x) for x in np.argwhere(self.compute < INCOMPATIBLE)[0])
            raise InputError(
                f"compute of op '{self.op_names[op]}' on '{self.device_names[device]}': expected "
                f"ticks >= 0, or -1 for incompatible, received {self.compute[op, device]}"
            )
        nowhere = (self.compute == INCOMPATIBLE).all(axis=1)
        if nowhere.any():
            raise InputError(
                f"op '{self.op_names[int(nowhere.argmax())]}' cannot run on any device of the "
                "cluster"
            )
        longest = self.transfer.max(axis=1, initial=0).astype(np.float64)
        copies = np.minimum(np.diff(self.consumer_ptr), self.num_devices * self.slots)
        total = float((longest * copies).sum())
        total += float(self.compute.max(axis=1).astype(np.float64).sum())
        if total >= MAX_SUM:
            raise InputError(
                f"times: the sum of all ops and transfers is {total:.3g} ticks, which passes 2^62; "
                "use a larger tick_seconds"
            )
        tensors = self.tensor_bytes.astype(np.float64).sum() * self.num_devices
        if self.resident.astype(np.float64).sum() + tensors >= MAX_SUM:
            raise InputError("bytes: the sum of all memory passes 2^62; use larger units")

    def _check_links(self, num_classes: int) -> None:
        if not self.num_tensors:  # any width is the same
            named = 1 + int(max(self.link_class.max(initial=0), self.io_class.max(initial=0)))
            width = min(named, self.link_class.size)
            object.__setattr__(self, "transfer", frozen(np.zeros((0, width), np.int64)))
            return
        if not num_classes:
            raise InputError("transfer: expected a column for each link class, received none")
        object.__setattr__(self, "link_class", own_links(self.link_class, num_classes))
        if (self.io_class >= num_classes).any():
            highest = self.io_class.max()
            raise InputError(f"io_class: expected -1..{num_classes - 1}, received {highest}")

    # --- sizes
    # ---------------------------------------------------------------------------------------

    @property
    def num_devices(self) -> int:
        """Number of devices, k."""
        return int(self.compute.shape[1])

    @property
    def num_channels(self) -> int:
        """Number of channels; 0 without contention."""
        return 1 + int(self.lanes.max())

    @cached_property
    def lanes(self) -> Ints:
        """Channels of pairs of devices as kernels index them: numbered from 0 without gaps."""
        apart = np.where(np.eye(self.num_devices, dtype=np.bool_), -1, self.channel)
        return frozen(value_ranks(apart).reshape(apart.shape) - 1)

    # --- derived structure
    # ---------------------------------------------------------------------------

    @cached_property
    def successors(self) -> Edges:
        """Out-edges of each op: (pointer, op, tensor), ordered by (tensor, position in
        `consumer`).
        """
        return edges_by(self.num_ops, self.edge_source, self.consumer, self.edge_tensor)

    @cached_property
    def predecessors(self) -> Edges:
        """In-edges of each op: (pointer, op, tensor), ordered by tensor."""
        return edges_by(self.num_ops, self.consumer, self.edge_source, self.edge_tensor)

    @cached_property
    def outputs(self) -> Outputs:
        """The tensors that each op produces, by index: (pointer, tensor)."""
        return Outputs(*grouped(self.num_ops, self.producer))

    @cached_property
    def units(self) -> Units:
        """Ops that share a device: colocation groups, and single ops otherwise, numbered by their
        first op.
        """
        return group_units(
            unit_of_ops(self.colocation), self.resident, self.compute != INCOMPATIBLE, self.capacity
        )

    @cached_property
    def graph(self) -> GraphArrays:
        """The graph as kernels read it."""
        indegree = frozen(np.diff(self.predecessors.pointer))
        return GraphArrays(
            self.topological_order, self.predecessors, self.successors, self.outputs, indegree
        )

    @cached_property
    def costs(self) -> CostArrays:
        """Times and channels as kernels read them."""
        return CostArrays(self.compute, self.transfer, self.link_class, self.lanes)

    @cached_property
    def bytes(self) -> MemoryArrays:
        """Bytes as kernels read them."""
        return MemoryArrays(self.resident, self.tensor_bytes, self.capacity)

    @cached_property
    def common_unit(self) -> int:
        """Greatest common divisor of all times, ticks; 1 where all are 0."""
        times = self.compute[self.compute > 0], self.transfer[self.transfer > 0]
        return int(np.gcd.reduce(np.concatenate(times))) or 1

    @cached_property
    def min_compute(self) -> Ints:
        """Ticks of each op on its fastest compatible device, shape (num_ops,)."""
        return frozen(fastest(self.compute))

    @cached_property
    def min_transfer(self) -> Ints:
        """Ticks of each tensor over its cheapest link between two different devices, shape
        (num_tensors,).
        """
        k = self.num_devices
        if k == 1 or not self.num_tensors:
            return frozen(np.zeros(self.num_tensors, np.int64))
        used = np.unique(self.link_class[~np.eye(k, dtype=np.bool_)])
        return frozen(self.transfer[:, used].min(axis=1))

    @cached_property
    def io_ticks(self) -> Ints:
        """Ticks to move each tensor between each device and host memory, shape (num_tensors,
        num_devices).
        """
        table = np.zeros((self.num_tensors, self.num_devices), np.int64)
        pays = self.io_class >= 0
        if self.num_tensors:
            table[:, pays] = self.transfer[:, self.io_class[pays]]
        return frozen(table)

    @cached_property
    def identical_devices(self) -> tuple[tuple[int, ...], ...]:
        """Classes of interchangeable devices: swapping two of a class leaves the problem
        unchanged.
        """
        classes: list[list[int]] = []
        kind = unique_columns(self.compute)[1].tolist()
        for device in range(self.num_devices):
            for members in classes:
                alike = kind[members[0]] == kind[device]
                if alike and self.interchangeable([members[0]], [device]):
                    members.append(device)
                    break
            else:
                classes.append([device])
        return tuple(tuple(members) for members in classes)

    def interchangeable(self, first: Sequence[int] | Ints, second: Sequence[int] | Ints) -> bool:
        """Whether swapping these devices with those, in their order, changes nothing."""
        if len(first) != len(second):
            return False
        keep = np.arange(self.num_devices)
        swap = keep.copy()
        swap[first], swap[second] = second, first
        columns = self.capacity, self.io_class, self.compute.T
        if any((column[first] != column[second]).any() for column in columns):
            return False
        moved = np.flatnonzero(swap != keep)
        one, other = np.repeat(moved, len(keep)), np.tile(keep, len(moved))
        pairs = np.stack([np.append(one, other), np.append(other, one)])
        here = tuple(pairs[:, pairs[0] != pairs[1]])  # all pairs with a device that is moved
        there = swap[here[0]], swap[here[1]]
        if (self.link_class[there] != self.link_class[here]).any():
            return False
        return self._same_channels(here, there, swap == keep)

    def _same_channels(self, here: Any, there: Any, stays: Flags) -> bool:
        """Whether the channels of pairs of devices are those of other pairs, up to a one-to-one
        renaming that keeps -1 and all channels between devices that stay.
        """
        was, now = self.channel[here], self.channel[there]
        if (was == now).all():
            return True
        renamed = np.unique(np.stack([was, now]), axis=1)
        one_to_one = all(len(np.unique(ids)) == len(ids) for ids in renamed)
        if not one_to_one or ((renamed == -1).sum(axis=0) == 1).any():
            return False
        others = ~np.eye(self.num_devices, dtype=np.bool_) & stays & stays[:, None]
        changed = renamed[0, renamed[0] != renamed[1]]
        return not np.isin(changed, self.channel[others]).any()

    def __repr__(self) -> str:
        return (
            f"<PlacementProblem '{self.name}': {self.num_ops} ops, {self.num_tensors} tensors on "
            f"{self.num_devices} devices, {self.objective}, ticks of {self.tick_seconds:g} s>"
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 of everything that decides the value of a placement, and of the names where ops
        or devices have any.
        """
        arrays = [
            key
            for key, column in columns_of(self).items()
            if column.kind is not str and key != "meta"
        ]
        rest = (
            self.memory,
            self.tick_seconds,
            self.objective,
            self.contiguity,
            self.pipeline,
            self.slots,
        )
        digest = arrays_digest(self, arrays, rest)
        for key, stem in (("op_names", "op"), ("device_names", "device")):
            found = getattr(self, key)
            if found != numbered(stem, len(found)):
                # placements are written and read by these names
                digest.update(f"{key}{json.dumps(found)}".encode())
        return digest.hexdigest()

    def replace(self, **changes: Any) -> PlacementProblem:
        """Return a copy with some fields changed (and checked again)."""
        return replace(self, **changes)

    # --- constructors
    # --------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        *,
        compute: ArrayLike,
        producer: ArrayLike,
        consumer_ptr: ArrayLike,
        consumer: ArrayLike,
        transfer: ArrayLike,
        name: str = "problem",
        **fields: Any,
    ) -> PlacementProblem:
        """Build a problem from the arrays of the class; the rest default to no memory limit, no
        colocation.
        """
        return cls(
            name=name,
            compute=as_array(compute, "compute"),
            producer=as_array(producer, "producer"),
            consumer_ptr=as_array(consumer_ptr, "consumer_ptr"),
            consumer=as_array(consumer, "consumer"),
            transfer=as_array(transfer, "transfer"),
            **fields,
        )

    @classmethod
    def from_edges(
        cls,
        compute: ArrayLike,
        edges: Iterable[tuple[int, int, int]] | Iterable[Sequence[int]],
        *,
        name: str = "problem",
        **fields: Any,
    ) -> PlacementProblem:
        """Classic DAG scheduling: every edge (u, v, ticks) is a tensor that costs `ticks` between
        any two devices.

        Parameters
        ----------
        compute : ticks, shape (num_ops, num_devices), -1 where incompatible.
        edges : triples (producer, consumer, ticks).
        """
        try:
            triples = [tuple(edge) for edge in edges]
        except TypeError:
            raise InputError(
                "edges: expected triples (producer, consumer, ticks), received "
                f"{type(edges).__name__}"
            ) from None
        for position, edge in enumerate(triples):
            if len(edge) != 3:
                raise InputError(
                    f"edges[{position}]: expected (producer, consumer, ticks), received {edge}"
                )
        table = as_array(triples, "edges").reshape(-1, 3)
        return cls.from_arrays(
            name=name,
            compute=compute,
            producer=table[:, 0],
            consumer_ptr=np.arange(len(triples) + 1),
            consumer=table[:, 1],
            transfer=table[:, 2],
            **fields,
        )
