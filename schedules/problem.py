"""PipelineProblem: the blocks of one micro-batch on devices, to be repeated for many micro-batches.

A model is cut into *blocks*. A block occupies one or several devices *at the same time* for its
span, adds its memory delta to each of them the moment it starts, and waits for its predecessors
(plus a lag for communication). Micro-batches are identical and independent: block b of micro-batch
j is an *instance* (j, b). A schedule gives a start to every instance such that no device runs two
at once and no device ever holds more memory than its capacity. The model is Tessel's (Lin et al.,
"Tessel: Boosting Distributed Execution of Large DNN Models via Flexible Schedule Search", HPCA
2024), plus lags and a capacity per device.

Memory that is freed before it is surely allocated: what no pipeline problem may ask for.

References
----------
Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible Schedule
Search", HPCA 2024.
.. [1] P. Hall, "On representatives of subsets", Journal of the London Mathematical Society 10(1),
1935.
.. [2] L. R. Ford, D. R. Fulkerson, "Maximal flow through a network", Canadian Journal of
Mathematics 8, 1956.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.arrays import (
    MAX_SUM,
    UNLIMITED,
    ArrayHolder,
    Flags,
    Ints,
    arrays_digest,
    by_number,
    check_count,
    check_positive,
    csr,
    frozen,
    ints,
    names,
    positions,
    refuse_types,
    row_at,
    row_numbers,
    settle,
    together,
)
from placeopt.model.errors import InputError, twice_in
from placeopt.model.graph import topological_order

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import networkx as nx


KINDS = ("F", "B", "I", "W", "other")
"""Forward, full backward, backward of the inputs only, of the weights only, anything else."""


@dataclass(frozen=True)
class Block:
    """One block of a micro-batch, as a person writes it.

    Attributes
    ----------
    devices : indices of the devices it occupies at the same time.
    memory : what its start adds (or frees, if negative) on each of those devices, in that order.
    after : (block name, lag in ticks) of each predecessor.
    stage : pipeline stage that it belongs to, -1 where it belongs to none.
    """

    name: str
    kind: str
    devices: tuple[int, ...]
    span: int
    memory: tuple[int, ...] = ()
    after: tuple[tuple[str, int], ...] = ()
    stage: int = -1

    def __post_init__(self) -> None:
        refuse_types(self)


@dataclass(frozen=True, eq=False)
class PipelineProblem(ArrayHolder):
    """Schedule b blocks on d devices for any number of micro-batches.

    Attributes
    ----------
    capacity : the most memory a device may hold at any time.
    micro_batches : how many micro-batches a finite schedule has, unless a call says otherwise.
    stage : pipeline stage of each block, -1 where it belongs to none; needed by exports only.
    """

    name: str
    block_names: tuple[str, ...]
    kind: tuple[str, ...]  # (num_blocks,) one of KINDS
    span: Ints = ints("blocks")  # ticks, >= 1
    device_ptr: Ints = ints("bounds")
    device: Ints = ints("uses")  # devices of each block, ascending
    memory: Ints = ints("blocks", "devices")  # change at the start; bytes or units
    pred_ptr: Ints = ints("bounds")
    pred: Ints = ints("edges")  # predecessors of each block
    lag: Ints = ints(  # ticks between a predecessor's end and the block's start
        "edges", low=0, expected="ticks >= 0"
    )
    capacity: Ints = ints("devices", default=UNLIMITED, low=0)
    micro_batches: int = 8
    stage: Ints = ints("blocks", default=-1, low=-1)
    device_names: tuple[str, ...] = names("devices", "device")
    tick_seconds: float = 1e-9

    problem_kind: ClassVar[str] = "pipeline"
    objective: ClassVar[str] = "period"

    def __post_init__(self) -> None:
        b = len(self.block_names)
        if b == 0:
            raise InputError(f"pipeline '{self.name}': expected at least one block, received none")
        memory = np.asarray(self.memory)
        if memory.ndim != 2:
            raise InputError(
                f"memory: expected a table (blocks x devices), received {memory.ndim} dimension(s)"
            )
        d = memory.shape[1]
        if d == 0:
            raise InputError(f"pipeline '{self.name}': expected at least one device, received none")

        for key in ("block_names", "kind"):
            object.__setattr__(self, key, tuple(map(str, getattr(self, key))))
        edges, uses = (len(np.asarray(array)) for array in (self.pred, self.device))
        settle(self, blocks=b, devices=d, bounds=b + 1, uses=uses, edges=edges)
        self._check()
        for i in range(b):
            self._check_block(i)
        _ = self.topological_order  # refuses a cycle
        self._check_memory()

    def _check(self) -> None:
        b, where = self.num_blocks, f"pipeline '{self.name}'"
        if len(self.kind) != b:
            raise InputError(f"{where}: expected {b} kinds, received {len(self.kind)}")
        if len(set(self.block_names)) != b:
            twice = twice_in(self.block_names)
            raise InputError(f"{where}: block names must be distinct, '{twice}' occurs twice")
        check_count("micro_batches", self.micro_batches)
        object.__setattr__(self, "micro_batches", int(self.micro_batches))
        tick = check_positive("tick_seconds", self.tick_seconds)
        object.__setattr__(self, "tick_seconds", tick)  # its text is part of hashes and files
        wrong = self.pred[(self.pred < 0) | (self.pred >= b)]
        if wrong.size:
            raise InputError(f"pred: expected block indices in 0..{b - 1}, received {wrong[0]}")
        total = self.span.sum(dtype=np.float64) + self.lag.sum(dtype=np.float64)
        most = MAX_SUM / self.micro_batches
        if total >= most:
            raise InputError(
                "span: the sum over all micro-batches passes 2^62; use a larger tick_seconds"
            )
        if np.abs(self.memory, dtype=np.float64).sum() >= most:
            raise InputError("memory: the sum over all micro-batches passes 2^62; use larger units")

    def _check_block(self, i: int) -> None:
        name, devices = self.block_names[i], self.devices_of(i)
        if self.kind[i] not in KINDS:
            raise InputError(
                f"block '{name}': kind must be one of {', '.join(KINDS)}, received '{self.kind[i]}'"
            )
        if self.span[i] < 1:
            raise InputError(
                f"block '{name}': span must be at least 1 tick, received {self.span[i]}; "
                "merge a free block into its neighbour"
            )
        if len(devices) == 0:
            raise InputError(f"block '{name}': expected at least one device, received none")
        unknown = devices[(devices < 0) | (devices >= self.num_devices)]
        if unknown.size:
            raise InputError(
                f"block '{name}': unknown device {unknown[0]}; the devices are "
                f"0..{self.num_devices - 1}"
            )
        if (np.diff(devices) <= 0).any():
            raise InputError(
                f"block '{name}': devices must be distinct and ascending, received "
                f"{devices.tolist()}"
            )
        elsewhere = np.setdiff1d(np.flatnonzero(self.memory[i]), devices)
        if elsewhere.size:
            raise InputError(
                f"block '{name}': changes the memory of device "
                f"'{self.device_names[elsewhere[0]]}', which it does not occupy"
            )

    def _check_memory(self) -> None:
        """Refuse memory that grows without end, is freed too early, or cannot fit one block."""
        left = self.memory.sum(axis=0)
        if left.any():
            at = int(np.flatnonzero(left)[0])
            raise InputError(
                f"memory of device '{self.device_names[at]}' never returns to zero: one "
                f"micro-batch leaves {left[at]:+d}; make the deltas of its blocks add up to 0"
            )
        early = freed_too_early(self.memory, self.ancestors)
        if early is not None:
            block, at = early
            raise InputError(
                f"block '{self.block_names[block]}' frees memory of device "
                f"'{self.device_names[at]}' that no predecessor "
                "has allocated; let it wait for the block that allocates it"
            )
        over = np.argwhere(self.memory > self.capacity)
        if over.size:
            i, at = over[0].tolist()
            raise InputError(
                f"capacity of device '{self.device_names[at]}' is {self.capacity[at]}, below the "
                f"{self.memory[i, at]} that block '{self.block_names[i]}' alone needs; raise it to "
                f"at least {self.memory[i, at]}"
            )

    # --- sizes and structure
    # -------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """Number of blocks of one micro-batch, b."""
        return len(self.block_names)

    @property
    def num_devices(self) -> int:
        """Number of devices, d."""
        return int(self.memory.shape[1])

    def devices_of(self, block: int) -> Ints:
        """Return the devices that `block` occupies."""
        return row_at(self.device, self.device_ptr, block)

    def home_of(self, block: int) -> int:
        """Return the only device of `block`, or the first one."""
        return int(self.device[self.device_ptr[block]])

    def predecessors_of(self, block: int) -> list[tuple[int, int]]:
        """Return (predecessor, lag in ticks) pairs of `block`."""
        low, high = self.pred_ptr[block], self.pred_ptr[block + 1]
        return list(together(self.pred[low:high], self.lag[low:high]))

    @cached_property
    def edges(self) -> tuple[tuple[int, int, int], ...]:
        """All (predecessor, block, lag) triples, by block."""
        return tuple(
            (u, v, lag) for v in range(self.num_blocks) for u, lag in self.predecessors_of(v)
        )

    def edges_of(self, micro_batches: int) -> list[tuple[int, int, int]]:
        """Return the edges of several micro-batches with the ticks from start to start at least;
        block b of the q-th micro-batch is q * num_blocks + b.
        """
        b, span = self.num_blocks, self.span.tolist()
        return [
            (q * b + u, q * b + v, span[u] + lag)
            for q in range(micro_batches)
            for u, v, lag in self.edges
        ]

    def graph(self, micro_batches: int = 1) -> nx.DiGraph:
        """Return the graph of the instances of several micro-batches and their edges."""
        import networkx as nx

        graph = nx.DiGraph((u, v) for u, v, _ in self.edges_of(micro_batches))
        graph.add_nodes_from(range(micro_batches * self.num_blocks))
        return graph

    def instances_on(self, device: int, micro_batches: int) -> list[int]:
        """Return the instances of several micro-batches on a device, numbered as in `edges_of`."""
        b = self.num_blocks
        return [q * b + i for q in range(micro_batches) for i in self.on_device[device]]

    @cached_property
    def topological_order(self) -> Ints:
        """Block indices, every predecessor before its successors."""
        target = row_numbers(self.pred_ptr)
        return frozen(topological_order(self.num_blocks, self.pred, target, self.block_names))

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Blocks that each block waits for, directly or not: bit u says so of block u."""
        found = [0] * self.num_blocks
        for v in self.topological_order.tolist():
            for u, _ in self.predecessors_of(v):
                found[v] |= found[u] | 1 << u
        return tuple(found)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Blocks that wait for each block."""
        return tuple(map(tuple, by_number(self.num_blocks, ((u, v) for u, v, _ in self.edges))))

    @cached_property
    def work(self) -> Ints:
        """Busy ticks of each device in one micro-batch, shape (num_devices,)."""
        return frozen(np.array([self.span[list(here)].sum() for here in self.on_device]))

    @cached_property
    def on_device(self) -> tuple[tuple[int, ...], ...]:
        """Blocks that occupy each device, ascending."""
        owner = row_numbers(self.device_ptr)
        return tuple(tuple(owner[self.device == d].tolist()) for d in range(self.num_devices))

    @cached_property
    def unit(self) -> int:
        """Greatest common divisor of all spans and lags, in ticks."""
        return int(np.gcd.reduce(np.append(self.span, self.lag)))

    def in_units(self, unit: int) -> PipelineProblem:
        """Return the problem with this divisor of its unit as the tick."""
        if unit == 1:
            return self
        ticks = self.tick_seconds * unit
        return replace(self, span=self.span // unit, lag=self.lag // unit, tick_seconds=ticks)

    @cached_property
    def critical_path(self) -> int:
        """Ticks that one micro-batch takes at least: the longest chain of spans and lags."""
        return int((self.heads + self.span).max())

    @cached_property
    def heads(self) -> Ints:
        """Earliest start of each block when nothing waits for a device, shape (num_blocks,)
        ticks.
        """
        head = np.zeros(self.num_blocks, np.int64)
        for v in self.topological_order.tolist():
            for u, lag in self.predecessors_of(v):
                head[v] = max(head[v], head[u] + self.span[u] + lag)
        return frozen(head)

    @cached_property
    def forward(self) -> Ints:
        """1 for every F block, else 0, shape (num_blocks,)."""
        return frozen(np.array([kind == "F" for kind in self.kind], np.int64))

    @cached_property
    def limited(self) -> Flags:
        """Devices whose capacity could ever bind: less than all allocations of one block times its
        instances.
        """
        return frozen((self.capacity < UNLIMITED) & (self.memory != 0).any(axis=0))

    def __repr__(self) -> str:
        return (
            f"<PipelineProblem '{self.name}': {self.num_blocks} blocks, {self.micro_batches} "
            f"micro-batches on {self.num_devices} devices>"
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 of everything that decides the value of a schedule (not of the names)."""
        arrays = ("span", "device_ptr", "device", "memory", "pred_ptr", "pred", "lag", "capacity")
        rest = (self.kind, self.micro_batches, self.tick_seconds)
        return str(arrays_digest(self, arrays, rest).hexdigest())

    def replace(self, **changes: Any) -> PipelineProblem:
        """Return a copy with some fields changed (and checked again)."""
        return replace(self, **changes)

    def with_capacity(self, capacity: int | Sequence[int] | None) -> PipelineProblem:
        """Return a copy with another memory capacity: one value for every device, or one per
        device.
        """
        return self.replace(capacity=_limits(capacity, self.num_devices))

    # --- constructors
    # --------------------------------------------------------------------------------

    @classmethod
    def from_blocks(
        cls,
        name: str,
        blocks: Sequence[Block],
        device_names: Sequence[str],
        *,
        capacity: int | Sequence[int] | None = None,
        micro_batches: int = 8,
        tick_seconds: float = 1e-9,
    ) -> PipelineProblem:
        """Build a problem from `Block` records; predecessors are named, in any order.

        Raises
        ------
        InputError
            If a predecessor or device is unknown, predecessors form a cycle, the memory of one
            micro-batch does not return to zero, or a block alone exceeds a capacity.
        """
        if not all(isinstance(block, Block) for block in blocks):
            raise InputError(f"pipeline '{name}': expected blocks as Block records")

        def column(field: str) -> list[Any]:
            return [getattr(block, field) for block in blocks]

        index = positions(column("name"))
        memory = np.zeros((len(blocks), len(device_names)), np.int64)
        for i, block in enumerate(blocks):
            _check_block(block, device_names, index)
            memory[i, list(block.devices)] = block.memory or 0
        device_ptr, device = csr([sorted(devices) for devices in column("devices")])
        pred_ptr, pred = csr([[index[before] for before, _ in after] for after in column("after")])
        return cls(
            name=name,
            block_names=tuple(column("name")),
            kind=tuple(column("kind")),
            span=np.array(column("span")),
            device_ptr=device_ptr,
            device=device,
            memory=memory,
            pred_ptr=pred_ptr,
            pred=pred,
            lag=np.array([lag for after in column("after") for _, lag in after]),
            capacity=_limits(capacity, len(device_names)),  # type: ignore[arg-type]
            micro_batches=micro_batches,
            stage=np.array(column("stage")),
            device_names=tuple(device_names),
            tick_seconds=tick_seconds,
        )

    def blocks(self) -> list[Block]:
        """Return the blocks as records: the inverse of `from_blocks`."""
        return [
            Block(
                name,
                self.kind[i],
                tuple(self.devices_of(i).tolist()),
                int(self.span[i]),
                tuple(self.memory[i, self.devices_of(i)].tolist()),
                tuple((self.block_names[u], lag) for u, lag in self.predecessors_of(i)),
                int(self.stage[i]),
            )
            for i, name in enumerate(self.block_names)
        ]


def freed_too_early(memory: Ints, ancestors: Sequence[int]) -> tuple[int, int] | None:
    """Return a (block, device) that frees memory which no predecessor has surely allocated, or
    None.

    Each unit that a block frees is matched with a unit that an ancestor allocated: a maximum flow
    [2]_. By Hall's theorem [1]_ all are matched exactly when the memory of one micro-batch never
    drops below zero in any order.

    Parameters
    ----------
    memory : change of each device's memory at each block's start, shape (num_blocks, num_devices).
    ancestors : blocks that each block waits for, directly or not, as bits.
    """
    import networkx as nx

    for device, column in enumerate(memory.T.tolist()):
        if _matched_in_turn(column, ancestors):
            continue
        flow = nx.DiGraph()
        flow.add_nodes_from(("allocated", "freed"))
        for block, change in enumerate(column):
            if change > 0:
                flow.add_edge("allocated", block, capacity=change)
            elif change < 0:
                flow.add_edge(block, "freed", capacity=-change)
                givers = (u for u, given in enumerate(column) if given > 0)
                flow.add_edges_from((u, block) for u in givers if ancestors[block] >> u & 1)
        matched = nx.maximum_flow(flow, "allocated", "freed")[1]
        for block, change in enumerate(column):
            if change < 0 and matched[block]["freed"] < -change:
                return block, device
    return None


def _matched_in_turn(column: Sequence[int], ancestors: Sequence[int]) -> bool:
    """Whether all that blocks free is matched one block after the other, those with few ancestors
    first: nearly always, and much faster than a flow.
    """
    spare = {u: change for u, change in enumerate(column) if change > 0}
    freeing = [v for v, change in enumerate(column) if change < 0]
    for block in sorted(freeing, key=lambda v: ancestors[v].bit_count()):
        need = -column[block]
        for u in (u for u in spare if ancestors[block] >> u & 1):
            taken = min(need, spare[u])
            spare[u] -= taken
            need -= taken
        if need:
            return False
    return True


def _check_block(block: Block, device_names: Sequence[str], known: Collection[str]) -> None:
    """Refuse a block on an unknown device, after an unknown block, or with memory for other
    devices.
    """
    for place in block.devices:
        if not 0 <= place < len(device_names):
            raise InputError(
                f"block '{block.name}': unknown device {place}; the devices are "
                f"{', '.join(device_names)}"
            )
    if block.memory and len(block.memory) != len(block.devices):
        raise InputError(
            f"block '{block.name}': expected a memory delta for each of its "
            f"{len(block.devices)} device(s), received {len(block.memory)}"
        )
    for before, _ in block.after:
        if before not in known:
            raise InputError(
                f"block '{block.name}': unknown predecessor '{before}'; "
                f"the blocks are {', '.join(list(known)[:12])}"
            )


def _limits(capacity: int | Sequence[int] | None, devices: int) -> Ints | None:
    """Return the capacity of each device, from one for all or one for each."""
    if capacity is None:
        return None
    one = isinstance(capacity, int | np.integer)
    limits = np.full(devices, capacity) if one else np.asarray(capacity)
    if limits.shape != (devices,):
        raise InputError(f"capacity: expected 1 or {devices} values, received {limits.size}")
    return limits
